"""A study: how infinitely wide and deep networks train, and how far real ones are from that.

A study measures in units (one ensemble, one size of real networks, one set of two-layer networks).
Its networks are trials of a sweep, so that an interrupted study has partial results and continues
when it is started again. What it says is in ``nfd.paper.findings``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

import nfd
from nfd import Family, Observation, Observer, ResNet, Sweep, Task, Trial
from nfd.core import Feedback, RuleName, derive, generator, peak_memory
from nfd.data import Dataset
from nfd.families import Member, networks
from nfd.limits import Outputs
from nfd.meters import Baseline
from nfd.paper.data import load
from nfd.paper.settings import StudyConfig
from nfd.runs import Step, cross_entropy
from nfd.store import Record

LIMITS: tuple[Feedback, ...] = ("shared", "independent")
BLOCK_RULES: tuple[RuleName, ...] = ("depth-mup", "depth-mup-inner")
# The width bias is measured against networks this many times narrower.
NARROW = 4
# The weights of networks that stand for infinitely wide ones.
WEIGHTS = "structured"
# Updates are measured on so many test samples.
_PROBES = 64

K = TypeVar("K")


@dataclass
class Measured:
    """What has been measured so far.

    Outputs are read at every step before its update, and not-a-number once a network diverged.

    Attributes:
        limits: outputs [R, steps, batch, C] of networks that stand for infinitely wide ones, by
            (feedback, depth).
        narrow: outputs at a ``NARROW``th of that width and the last depth but one, by feedback.
        real: outputs [seeds, steps, batch, C] of real networks, by (depth, width).
        blocks: a row per rule, depth and seed of two-layer networks, after the last step.
        seconds: the time that a unit took, by its name.
        complete: whether every unit is done.
    """

    limits: dict[tuple[Feedback, int], Tensor] = field(default_factory=dict)
    narrow: dict[Feedback, Tensor] = field(default_factory=dict)
    real: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class _Unit:
    """One piece of what is measured: its name, its networks, and what keeps what they gave."""

    name: str
    trials: Sequence[Trial]
    keep: Callable[[Sequence[Record]], None]


@dataclass(frozen=True)
class BlockUpdates(Observer):
    """Updates on probes ``[P, d]`` after the last step."""

    probes: Tensor = field(repr=False)
    seed: int

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"probes": list(self.probes.shape), "seed": self.seed}

    def begin(self, member: Member, task: Task) -> Observation:
        return _BlockUpdates(Baseline(member, self.probes.to(task.device)), task.steps)


class _BlockUpdates(Observation):
    def __init__(self, baseline: Baseline, steps: int) -> None:
        self.baseline = baseline
        self.steps = steps
        self.rows = list[dict[str, Any]]()

    def after(self, row: Step) -> None:
        if row.step == self.steps - 1 and not row.diverged:
            self.rows.append({"steps": row.step + 1, **self.baseline.look().network})

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        return {}, {}, self.rows


class Study:
    """A study of one configuration.

    ``measure`` does the work, and may be interrupted; ``measured`` holds what was measured by then.
    """

    def __init__(self, config: StudyConfig, *, device: str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        self.measured = Measured()
        self.dataset: Dataset = load(*config.source, seed=config.seed)
        batches = self.dataset.batches(config.batch, config.steps, config.seed)
        self.inputs, self.targets = (x.to(self.device) for x in batches)
        self.task = Task(list(zip(self.inputs, self.targets, strict=True)))

    def measure(self, sweep: Sweep) -> Measured:
        """Have every network trained that is not stored yet."""
        units = list(self._units())
        trials: list[Trial] = []
        for unit in units:
            trials += unit.trials
        with sweep:
            try:
                sweep.run_all({"study": trials}, "study")
            finally:
                for unit in units:
                    self._keep(unit, sweep)
        self.measured.complete = True
        return self.measured

    def mean_loss(self, outputs: Tensor) -> Tensor:
        """Return batch-mean losses ``[..., steps]`` of outputs ``[..., steps, batch, C]``."""
        return cross_entropy(outputs, self.targets.cpu())

    def facts(self) -> dict[str, Any]:
        """Return what ran, where, and on what."""
        c = self.config
        return {
            "data": self.dataset.source,
            "data_fingerprint": self.dataset.fingerprint,
            "samples_seen": c.steps * c.batch,
            "seconds": {name: round(value, 2) for name, value in self.measured.seconds.items()},
            "total_seconds": round(sum(self.measured.seconds.values()), 1),
            "peak_memory_gib": round(peak_memory() / 2**30, 2),
            "complete": self.measured.complete,
            "nfd": nfd.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": str(self.device),
            "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} "
            "threads",
        }

    # ---- the units

    def _keep(self, unit: _Unit, sweep: Sweep) -> None:
        if sweep.missing(unit.trials):
            return
        records = [sweep.record(trial) for trial in unit.trials]
        unit.keep(records)
        self.measured.seconds[unit.name] = sum(record.seconds for record in records)

    def _units(self) -> Iterator[_Unit]:
        c = self.config
        measured = self.measured
        for feedback in LIMITS:
            for depth in c.depths:
                name = f"infinitely wide, {feedback} feedback, depth {depth}"
                wide = self._limit(feedback, c.limit_width, depth, c.replicates)
                yield self._outputs(name, wide, measured.limits, (feedback, depth))
            narrow_width = max(1, c.limit_width // NARROW)
            narrow = self._limit(feedback, narrow_width, c.depths[-2], c.replicates)
            name = f"width bias, {feedback} feedback"
            yield self._outputs(name, narrow, measured.narrow, feedback)
            if feedback == "shared":
                yield from self._real_units()
        for rule in BLOCK_RULES:
            for depth in c.block_depths:
                yield self._block(rule, depth)

    def _outputs(self, name: str, trials: Sequence[Trial], kept: dict[K, Tensor], key: K) -> _Unit:
        shape = self.config.steps, self.config.batch, len(self.dataset.classes)
        return _Unit(name, trials, partial(_keep_outputs, shape, kept, key))

    def _limit(self, feedback: Feedback, width: int, depth: int, count: int) -> list[Trial]:
        """Return networks that stand for infinitely wide ones.

        They have one Brownian path at all depths, drawn at the last depth but one.
        """
        family = self._family(feedback=feedback, coupled=self.config.depths[-2])
        limit_seed = derive(self.config.seed, "limit")
        seeds = [derive(limit_seed, "replicate", width, index) for index in range(count)]
        return [self._trial(family, width, depth, seed, Outputs(), WEIGHTS) for seed in seeds]

    def _real_units(self) -> Iterator[_Unit]:
        c = self.config
        family = self._family()
        real_seed = derive(c.seed, "real")
        for depth in reversed(c.depths):
            for width in c.widths:
                seeds = [derive(real_seed, "replicate", width, index) for index in range(c.seeds)]
                trials = [self._trial(family, width, depth, seed, Outputs()) for seed in seeds]
                name = f"real networks, width {width}, depth {depth}"
                yield self._outputs(name, trials, self.measured.real, (depth, width))

    def _block(self, rule: RuleName, depth: int) -> _Unit:
        """Return two-layer networks whose updates are measured."""
        c = self.config
        family = self._family(block="two-layer", rule=rule)
        seeds = [derive(c.seed, "block", index) for index in range(c.block_seeds)]
        observer = BlockUpdates(self._probes, c.seed)

        def keep(records: Sequence[Record]) -> None:
            for index, record in enumerate(records):
                about: dict[str, Any] = {"rule": rule, "depth": depth, "index": index}
                self.measured.blocks += [{**about, **row} for row in record.observed[0]]
                if "diverged_at" in record.metrics:
                    end = int(record.metrics["diverged_at"])
                    self.measured.blocks.append(about | {"steps": c.steps, "diverged_at": end})

        trials = [self._trial(family, c.block_width, depth, seed, observer) for seed in seeds]
        return _Unit(f"two-layer blocks, {rule}, depth {depth}", trials, keep)

    def _trial(
        self,
        family: Family,
        width: int,
        depth: int,
        seed: int,
        observer: Observer,
        weights: Any = "dense",
    ) -> Trial:
        return Trial(
            family,
            self.task,
            width,
            depth,
            seed,
            self.config.eta_c,
            weights=weights,
            observe=(observer,),
        )

    @cached_property
    def _probes(self) -> Tensor:
        pixels = self.dataset.test.pixels
        order = torch.randperm(len(pixels), generator=generator(self.config.seed, "probe"))
        return self.dataset.normalised(pixels[order[:_PROBES]])

    def _family(self, *, rule: RuleName = "depth-mup", **settings: Any) -> Family:
        c = self.config
        sizes = (self.inputs.shape[2], len(self.dataset.classes))
        return networks(
            ResNet, *sizes, rule=rule, horizon=c.horizon, activation=c.activation, **settings
        )


def _keep_outputs(
    shape: tuple[int, ...], kept: dict[K, Tensor], key: K, records: Sequence[Record]
) -> None:
    """Keep outputs [records, *shape] under a key; they stay not-a-number once a run ended."""
    outputs = torch.full((len(records), *shape), torch.nan, dtype=torch.float64)
    for index, record in enumerate(records):
        steps = torch.as_tensor(record.curves["outputs"]).double().view(-1, *shape[1:])
        outputs[index, : len(steps)] = steps
    kept[key] = outputs
