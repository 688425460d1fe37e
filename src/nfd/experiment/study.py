"""The main job: how a residual network trains when infinitely wide and deep, and how far real ones are from that.

A study measures in units (one ensemble, one size of real networks, one set of two-layer networks), each kept as soon
as it is done, so that a study that is interrupted has something to say. What it says is in ``experiment.findings``.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

import nfd
from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError, check_device
from nfd.core.machine import peak_memory
from nfd.core.names import Block, Feedback, RuleName
from nfd.core.progress import Bar, bar
from nfd.core.random import derive, generator
from nfd.data.dataset import Dataset
from nfd.data.load import load
from nfd.experiment.settings import StudyConfig
from nfd.families.constructed import member_of
from nfd.limits.cost import bytes_of, within
from nfd.limits.ensemble import ensemble
from nfd.limits.problem import Problem, problem
from nfd.meters.updates import Baseline
from nfd.scaling.planning import plan
from nfd.training.loop import train
from nfd.training.losses import cross_entropy
from nfd.training.optimizers import optimizer_named

LIMITS: tuple[Feedback, ...] = ("shared", "independent")
BLOCK_RULES: tuple[RuleName, ...] = ("depth-mup", "depth-mup-inner")
NARROW = 4  # the width bias is measured against networks this many times narrower
_MEMORY = bytes_of("8 GiB")
_PROBES = 64  # test samples on which updates are measured


@dataclass
class Measured:
    """What has been measured so far; outputs are those of every step before its update, not-a-number once diverged.

    Attributes:
        limits: (feedback, depth) to outputs [R, steps, batch, C] of networks that stand for infinitely wide ones.
        narrow: feedback to the same at a ``NARROW``th of the width and the last depth but one.
        real: (depth, width) to outputs [seeds, steps, batch, C].
        blocks: a row per rule, depth and seed of two-layer networks, after the first step and after the last.
        seconds: unit to the time it took. complete: whether every unit is done.
    """

    limits: dict[tuple[Feedback, int], Tensor] = field(default_factory=dict)
    narrow: dict[Feedback, Tensor] = field(default_factory=dict)
    real: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    blocks: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    complete: bool = False


@dataclass(frozen=True)
class _Unit:
    """One piece of work: its name, predicted seconds, and what does it."""

    name: str
    cost: float
    run: Callable[[], None]


class Study:
    """A study of one configuration.

    ``measure`` does the work, and may be interrupted; ``measured`` and ``facts`` hold what there is.
    """

    @undisturbed()
    def __init__(self, config: StudyConfig, *, device: str = "cpu", progress: bool = False) -> None:
        self.config, self.device, self.progress = config, check_device(device), progress
        self.measured = Measured()
        self.dataset: Dataset = load(
            config.data, config.data_dir, image_size=config.image_size, seed=config.seed, progress=progress
        )
        batches = self.dataset.batches(config.batch, config.steps, config.seed)
        self.inputs, self.targets = (x.to(self.device) for x in batches)

    @undisturbed()
    def measure(self) -> Measured:
        """Run every unit that is not done, the most telling first."""
        with bar("study", enabled=self.progress) as shown:
            units = [unit for unit in self._units() if unit.name not in self.measured.seconds]
            shown.plan(sum(unit.cost for unit in units))
            for unit in units:
                self._run(unit, shown)
        self.measured.complete = True
        return self.measured

    def mean_loss(self, outputs: Tensor) -> Tensor:
        """Batch-mean losses ``[..., steps]`` of outputs ``[..., steps, batch, C]``."""
        return cross_entropy(outputs, self.targets.cpu())

    @cached_property
    def weights(self) -> str:
        """How the networks that stand for infinitely wide ones hold their weights: the cheaper way, for all alike."""
        c = self.config
        way = within(self._limit_problem("shared"), c.limit_width, c.depths[-1], _MEMORY)
        if way is None:
            raise InputError(
                f"limit_width={c.limit_width} at depth {c.depths[-1]} needs more than 8 GiB. Lower limit_width, "
                "depths, steps or batch."
            )
        return way.weights

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

    # ---- the units -------------------------------------------------------------------------------------------

    def _run(self, unit: _Unit, shown: Bar) -> None:
        shown.plan(0.0, unit.name)
        start = time.perf_counter()
        unit.run()
        self.measured.seconds[unit.name] = time.perf_counter() - start
        shown.advance(unit.cost)

    def _units(self) -> Iterator[_Unit]:
        c = self.config
        for feedback in LIMITS:
            for depth in c.depths:
                cost = c.replicates * self._cost(c.limit_width, depth)
                run = partial(self._limit, feedback, depth)
                yield _Unit(f"infinitely wide, {feedback} feedback, depth {depth}", cost, run)
            cost = c.replicates * self._cost(c.limit_width // NARROW, c.depths[-2])
            yield _Unit(f"width bias, {feedback} feedback", cost, partial(self._narrow, feedback))
            if feedback == "shared":
                yield from self._real_units()
        for rule in BLOCK_RULES:
            for depth in c.block_depths:
                cost = 2 * c.block_seeds * self._cost(c.block_width, depth)
                yield _Unit(f"two-layer blocks, {rule}, depth {depth}", cost, partial(self._block, rule, depth))

    def _real_units(self) -> Iterator[_Unit]:
        for depth in reversed(self.config.depths):
            for width in self.config.widths:
                cost = self.config.seeds * self._cost(width, depth)
                yield _Unit(f"real networks, width {width}, depth {depth}", cost, partial(self._real, depth, width))

    def _cost(self, width: int, depth: int) -> float:
        way = within(self._limit_problem("shared"), max(width, 1), depth, _MEMORY)
        return way.seconds if way else 1.0

    def _limit(self, feedback: Feedback, depth: int) -> None:
        outputs = self._ensemble(self._limit_problem(feedback), self.config.limit_width, depth, "replicates")
        self.measured.limits[feedback, depth] = outputs

    def _narrow(self, feedback: Feedback) -> None:
        width = max(1, self.config.limit_width // NARROW)
        given, depth = self._limit_problem(feedback), self.config.depths[-2]
        self.measured.narrow[feedback] = self._ensemble(given, width, depth, "replicates")

    def _real(self, depth: int, width: int) -> None:
        given = self._problem("shared", "one-layer", "depth-mup")
        self.measured.real[depth, width] = self._ensemble(given, width, depth, "seeds")

    def _ensemble(self, given: Problem, width: int, depth: int, count: str) -> Tensor:
        """Outputs of as many networks as the setting ``count`` says, dense where these are the real ones."""
        weights, stream = ("dense", "real") if count == "seeds" else (self.weights, "limit")
        seeds, seed = range(getattr(self.config, count)), derive(self.config.seed, stream)
        return ensemble(given, width, depth, weights, seeds, seed, lambda: None).outputs.cpu()

    def _block(self, rule: RuleName, depth: int) -> None:
        c, rows = self.config, list[dict[str, Any]]()
        given = self._problem("shared", "two-layer", rule)
        for index in range(c.block_seeds):
            net = given.network(c.block_width, depth, "dense", derive(c.seed, "block", index))
            baseline = Baseline(member_of(net, plan(net, rule=rule, optimizer="sgd")), self._probes)
            about = {"rule": rule, "depth": depth, "index": index}
            optimizer = optimizer_named("sgd", net.param_groups(c.eta_c, rule))
            for row in train(net, optimizer, zip(self.inputs, self.targets, strict=True), cross_entropy):
                if row.diverged:
                    rows.append(about | {"steps": c.steps, "diverged_at": row.step})
                elif row.step in (0, c.steps - 1):
                    rows.append(about | {"steps": row.step + 1} | baseline.updates())
        self.measured.blocks += rows

    @cached_property
    def _probes(self) -> Tensor:
        pixels = self.dataset.test.pixels
        order = torch.randperm(len(pixels), generator=generator(self.config.seed, "probe"))
        return self.dataset.normalised(pixels[order[:_PROBES]]).to(self.device)

    def _limit_problem(self, feedback: Feedback) -> Problem:
        return self._problem(feedback, "one-layer", "depth-mup", coupled=True)

    def _problem(self, feedback: Feedback, block: Block, rule: RuleName, *, coupled: bool = False) -> Problem:
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
