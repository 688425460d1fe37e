"""The main job: how a residual network trains when infinitely wide and deep, and how far real ones are from that.

A study measures in units (one ensemble, one size of real networks, one set of two-layer networks). Its networks are
runs of a sweep, so that an interrupted study has partial results and continues when it is started again. What it
says is in ``questions.findings``.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

import nfd
from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError, check_device
from nfd.core.machine import bytes_of, peak_memory
from nfd.core.names import Block, Feedback, NetworkWeights, RuleName
from nfd.core.random import derive, generator
from nfd.core.statistics import interval, mean
from nfd.core.tables import rows_as_text
from nfd.data.dataset import Dataset
from nfd.data.load import load
from nfd.limits.cost import within
from nfd.limits.ensemble import Ensemble, Replicate, Trajectory, replicates
from nfd.limits.problem import Problem, problem
from nfd.meters.updates import UPDATES
from nfd.runs.replicates import Replicates
from nfd.runs.settings import StudyConfig
from nfd.runs.sweep import Sweep
from nfd.training.losses import cross_entropy

LIMITS: tuple[Feedback, ...] = ("shared", "independent")
BLOCK_RULES: tuple[RuleName, ...] = ("depth-mup", "depth-mup-inner")
NARROW = 4  # the width bias is measured against networks this many times narrower
_MEMORY = bytes_of("8 GiB")
_CERTIFICATES = 10  # narrow networks with Gaussian weights that certify structured ones, of every kind of feedback
_PROBES = 64  # test samples on which updates are measured

K = TypeVar("K")


@dataclass
class Measured:
    """What has been measured so far; outputs are those of every step before its update, not-a-number once diverged.

    Attributes:
        limits: (feedback, depth) to outputs [R, steps, batch, C] of networks that stand for infinitely wide ones.
        narrow: feedback to the same at a ``NARROW``th of the width and the last depth but one.
        exact: feedback to the same of networks with Gaussian weights, which certify those of ``narrow`` with their
            seeds; empty where no weights are structured.
        real: (depth, width) to outputs [seeds, steps, batch, C].
        blocks: a row per rule, depth and seed of two-layer networks, after the first step and after the last.
        seconds: unit to the time it took. complete: whether every unit is done.
    """

    limits: dict[tuple[Feedback, int], Tensor] = field(default_factory=dict)
    narrow: dict[Feedback, Tensor] = field(default_factory=dict)
    exact: dict[Feedback, Tensor] = field(default_factory=dict)
    real: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class _Unit:
    """One piece of what is measured: its name, its networks, and what keeps what they gave."""

    name: str
    replicates: Sequence[Replicate]
    keep: Callable[[Sequence[Trajectory]], None]


class Study:
    """A study of one configuration.

    ``measure`` does the work, and may be interrupted; ``measured`` and ``facts`` hold what there is.
    """

    @undisturbed()
    def __init__(self, config: StudyConfig, *, device: str = "cpu", progress: bool = False) -> None:
        self.config, self.device = config, check_device(device)
        self.measured = Measured()
        self.dataset: Dataset = load(
            config.data, config.data_dir, image_size=config.image_size, seed=config.seed, progress=progress
        )
        batches = self.dataset.batches(config.batch, config.steps, config.seed)
        self.inputs, self.targets = (x.to(self.device) for x in batches)

    @undisturbed()
    def measure(self, sweep: Sweep) -> Measured:
        """Have every network trained that is not stored yet, the most telling first."""
        units, networks = list(self._units()), Replicates(sweep)
        try:
            networks.run([replicate for unit in units for replicate in unit.replicates], "study")
        finally:
            for unit in units:
                self._keep(unit, networks)
        self.measured.complete = True
        return self.measured

    def mean_loss(self, outputs: Tensor) -> Tensor:
        """Batch-mean losses ``[..., steps]`` of outputs ``[..., steps, batch, C]``."""
        return cross_entropy(outputs, self.targets.cpu())

    @cached_property
    def weights(self) -> NetworkWeights:
        """How the networks that stand for infinitely wide ones hold their weights: the cheaper way, for all alike."""
        c = self.config
        given = self._limit_problem("shared")
        way = within(given, c.limit_width, c.depths[-1], _MEMORY, get_args(NetworkWeights))
        if way is None:
            raise InputError(
                f"limit_width={c.limit_width} at depth {c.depths[-1]} needs more than 8 GiB. Lower limit_width, "
                "depths, steps or batch."
            )
        return way.weights

    @property
    def narrow_width(self) -> int:
        """Width of the networks that show what ``limit_width`` adds, and of those that certify structured weights."""
        return max(1, self.config.limit_width // NARROW)

    @cached_property
    def exact_weights(self) -> NetworkWeights:
        """How the networks that certify structured ones hold their weights, which have the law of Gaussian ones."""
        way = within(self._limit_problem("shared"), self.narrow_width, self.config.depths[-2], _MEMORY)
        return "deferred" if way is None else way.weights

    def facts(self) -> dict[str, Any]:
        """What ran, where, and on what."""
        c = self.config
        return {
            "data": self.dataset.source,
            "data_fingerprint": self.dataset.fingerprint,
            "training_samples": len(self.dataset.train),
            "inputs_and_classes": f"{self.inputs.shape[2]} and {len(self.dataset.classes)}",
            "samples_seen": c.steps * c.batch,
            "weights_of_the_limit": self.weights,
            "seconds": {name: round(value, 2) for name, value in self.measured.seconds.items()},
            "total_seconds": round(sum(self.measured.seconds.values()), 1),
            "peak_memory_gib": round(peak_memory() / 2**30, 2),
            "complete": self.measured.complete,
            "nfd": nfd.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": str(self.device),
            "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} threads",
        }

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per kind of networks, depth, width and quantity of what is measured so far: value, low, high.

        Losses are means over the steps: of the mean outputs of the networks that stand for infinitely wide ones (their
        width is that of the stand-ins), and of every real network. Quantities of two-layer blocks are those after the
        last step.
        """
        return [*self._losses(), *self._updates()]

    def __str__(self) -> str:
        return rows_as_text(self.table)

    def _losses(self) -> Iterator[dict[str, Any]]:
        for (feedback, depth), outputs in self.measured.limits.items():
            name = f"infinitely wide, {feedback} feedback"
            about = {"networks": name, "depth": depth, "width": self.config.limit_width, "quantity": "loss"}
            yield about | interval(lambda r: self.mean_loss(r.mean(0)).mean(), outputs).limits
        for (depth, width), outputs in self.measured.real.items():
            loss = mean(self.mean_loss(outputs).mean(-1))
            yield {"networks": "real", "depth": depth, "width": width, "quantity": "loss"} | loss.limits

    def _updates(self) -> Iterator[dict[str, Any]]:
        last = [row for row in self.measured.blocks if row["steps"] == self.config.steps]
        for rule, depth in dict.fromkeys((row["rule"], row["depth"]) for row in last):
            own = [row for row in last if (row["rule"], row["depth"]) == (rule, depth)]
            about = {"networks": f"two-layer, {rule}", "depth": depth, "width": self.config.block_width}
            for meter in (name for name in UPDATES if all(name in row for row in own)):
                values = torch.tensor([row[meter] for row in own], dtype=torch.float64)
                yield about | {"quantity": meter} | mean(values).limits

    # ---- the units -------------------------------------------------------------------------------------------

    def _keep(self, unit: _Unit, networks: Replicates) -> None:
        trajectories = networks.kept(unit.replicates)
        if trajectories is not None:
            unit.keep(trajectories)
            self.measured.seconds[unit.name] = sum(trajectory.seconds for trajectory in trajectories)

    def _units(self) -> Iterator[_Unit]:
        c, measured = self.config, self.measured
        for feedback in LIMITS:
            given = self._limit_problem(feedback)
            for depth in c.depths:
                name = f"infinitely wide, {feedback} feedback, depth {depth}"
                asked = self._limit(given, c.limit_width, depth, self.weights, c.replicates)
                yield _Unit(name, asked, partial(_keep_outputs, asked, measured.limits, (feedback, depth)))
            certificates = _CERTIFICATES if self.weights == "structured" else 0
            size, count = (self.narrow_width, c.depths[-2]), max(c.replicates, certificates)
            narrow = self._limit(given, *size, self.weights, count)
            keep = partial(_keep_outputs, narrow, measured.narrow, feedback)
            yield _Unit(f"width bias, {feedback} feedback", narrow, keep)
            if certificates:
                exact = self._limit(given, *size, self.exact_weights, certificates)
                keep = partial(_keep_outputs, exact, measured.exact, feedback)
                yield _Unit(f"certificate, {feedback} feedback", exact, keep)
            if feedback == "shared":
                yield from self._real_units()
        for rule in BLOCK_RULES:
            given = self._problem("shared", "two-layer", rule)
            for depth in c.block_depths:
                yield self._block(given, depth)

    def _limit(self, given: Problem, width: int, depth: int, weights: NetworkWeights, count: int) -> list[Replicate]:
        """Networks of the seeds of those that stand for infinitely wide ones."""
        return replicates(given, width, depth, weights, range(count), derive(self.config.seed, "limit"))

    def _real_units(self) -> Iterator[_Unit]:
        given = self._problem("shared", "one-layer", "depth-mup")
        indices, seed = range(self.config.seeds), derive(self.config.seed, "real")
        for depth in reversed(self.config.depths):
            for width in self.config.widths:
                asked = replicates(given, width, depth, "dense", indices, seed)
                keep = partial(_keep_outputs, asked, self.measured.real, (depth, width))
                yield _Unit(f"real networks, width {width}, depth {depth}", asked, keep)

    def _block(self, given: Problem, depth: int) -> _Unit:
        """Two-layer networks whose updates are measured."""
        c = self.config
        seeds = [derive(c.seed, "block", index) for index in range(c.block_seeds)]
        asked = [Replicate(given, c.block_width, depth, "dense", seed, self._probes) for seed in seeds]

        def keep(trajectories: Sequence[Trajectory]) -> None:
            for index, trajectory in enumerate(trajectories):
                about: dict[str, Any] = {"rule": given.rule, "depth": depth, "index": index}
                self.measured.blocks += [{**about, "steps": k, **row} for k, row in trajectory.updates.items()]
                if trajectory.diverged_at is not None:
                    self.measured.blocks.append(about | {"steps": c.steps, "diverged_at": trajectory.diverged_at})

        return _Unit(f"two-layer blocks, {given.rule}, depth {depth}", asked, keep)

    @cached_property
    def _probes(self) -> Tensor:
        pixels = self.dataset.test.pixels
        order = torch.randperm(len(pixels), generator=generator(self.config.seed, "probe"))
        return self.dataset.normalised(pixels[order[:_PROBES]]).to(self.device)

    def _limit_problem(self, feedback: Feedback) -> Problem:
        """Of the limits: one Brownian path at all depths, drawn at the last but one."""
        return self._problem(feedback, "one-layer", "depth-mup", coupled=self.config.depths[-2])

    def _problem(self, feedback: Feedback, block: Block, rule: RuleName, *, coupled: int = False) -> Problem:
        c = self.config
        return problem(
            self.inputs,
            self.targets,
            loss="cross-entropy",
            classes=len(self.dataset.classes),
            horizon=c.horizon,
            activation=c.activation,
            block=block,
            eta_c=c.eta_c,
            momentum=0.0,
            feedback=feedback,
            rule=rule,
            device=self.device,
            coupled=coupled,
        )


def _keep_outputs(
    asked: Sequence[Replicate], kept: dict[K, Tensor], key: K, trajectories: Sequence[Trajectory]
) -> None:
    kept[key] = Ensemble.of(asked, trajectories).outputs.cpu()
