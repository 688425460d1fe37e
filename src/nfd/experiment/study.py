"""The main job: how a residual network trains when infinitely wide and deep, and how far real ones are from that.

A study measures in units (one ensemble, one size of real networks, one set of two-layer networks), each kept as soon
as it is done, so that a study that is interrupted has something to say. What it says is in ``findings``.
"""

from __future__ import annotations

import copy
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

import nfd
from nfd.core.machine import peak_memory
from nfd.core.progress import Bar, bar
from nfd.core.random import derive
from nfd.data.dataset import Dataset
from nfd.data.load import load
from nfd.experiment.settings import StudyConfig
from nfd.limits.cost import bytes_of, within
from nfd.limits.ensemble import ensemble
from nfd.limits.problem import Problem, problem
from nfd.limits.sampler import chosen_weights
from nfd.meters.updates import updates
from nfd.nets.resnet import ResNet
from nfd.nets.sgd import SGD
from nfd.training.loop import Row as TrainingRow
from nfd.training.loop import train
from nfd.training.losses import cross_entropy

FEEDBACKS = ("shared", "independent")
RULES = ("depth-mup", "depth-mup-inner")
_MEMORY = bytes_of("8 GiB")
_PROBES = 64  # test samples on which updates are measured


@dataclass
class Measured:
    """What has been measured so far; outputs are those of every step before its update.

    Attributes:
        limits: (feedback, depth) to outputs [R, steps, batch, C] of networks that stand for infinitely wide ones.
        real: (depth, width) to outputs [seeds, steps, batch, C].
        blocks: a row per rule, depth and seed of two-layer networks, after the first step and after the last.
        seconds: unit to the time it took. complete: whether every unit is done.
    """

    limits: dict[tuple[str, int], Tensor] = field(default_factory=dict)
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

    def __init__(self, config: StudyConfig, *, progress: bool = False) -> None:
        self.config, self.progress = config, progress
        self.measured = Measured()
        self.dataset: Dataset = load(
            config.data, config.data_dir, image_size=config.image_size, seed=config.seed, progress=progress
        )
        self.inputs, self.targets = self.dataset.batches(config.batch, config.steps, config.seed)

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
        return cross_entropy(outputs, self.targets)

    def facts(self) -> dict[str, Any]:
        """What ran, where, and on what."""
        c = self.config
        return {
            "data": self.dataset.source,
            "data_fingerprint": self.dataset.fingerprint,
            "training_samples": len(self.dataset.train),
            "inputs_and_classes": f"{self.inputs.shape[2]} and {len(self.dataset.classes)}",
            "samples_seen": c.steps * c.batch,
            "seconds": {name: round(value, 2) for name, value in self.measured.seconds.items()},
            "total_seconds": round(sum(self.measured.seconds.values()), 1),
            "peak_memory_gib": round(peak_memory() / 2**30, 2),
            "complete": self.measured.complete,
            "nfd": nfd.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
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
        for feedback in FEEDBACKS:
            for depth in c.depths:
                cost = c.replicates * self._cost(c.limit_width, depth)
                run = partial(self._limit, feedback, depth)
                yield _Unit(f"infinitely wide, {feedback} feedback, depth {depth}", cost, run)
            if feedback == "shared":
                yield from self._real_units()
        for rule in RULES:
            for depth in c.block_depths:
                cost = 2 * c.block_seeds * self._cost(c.block_width, depth)
                yield _Unit(f"two-layer blocks, {rule}, depth {depth}", cost, partial(self._block, rule, depth))

    def _real_units(self) -> Iterator[_Unit]:
        for depth in reversed(self.config.depths):
            for width in self.config.widths:
                cost = self.config.seeds * self._cost(width, depth)
                yield _Unit(f"real networks, width {width}, depth {depth}", cost, partial(self._real, depth, width))

    def _cost(self, width: int, depth: int) -> float:
        way = within(self._problems["shared"], width, depth, _MEMORY)
        return way.seconds if way else 1.0

    @cached_property
    def _problems(self) -> dict[str, Problem]:
        c = self.config
        return {
            feedback: problem(
                self.inputs,
                self.targets,
                loss="cross-entropy",
                classes=len(self.dataset.classes),
                horizon=c.horizon,
                activation=c.activation,
                block="one-layer",
                eta_c=c.eta_c,
                momentum=0.0,
                feedback=feedback,
                rule="depth-mup",
                device="cpu",
                coupled=True,
            )
            for feedback in FEEDBACKS
        }

    def _limit(self, feedback: str, depth: int) -> None:
        given, n = self._problems[feedback], self.config.limit_width
        weights = chosen_weights(given, n, depth, _MEMORY)
        found = ensemble(given, n, depth, weights, range(self.config.replicates), self.config.seed, lambda: None)
        self.measured.limits[feedback, depth] = found.outputs

    def _real(self, depth: int, width: int) -> None:
        runs = []
        for index in range(self.config.seeds):
            net = self._network(width, depth, derive(self.config.seed, "real", index))
            outputs = self.inputs.new_full((*self.targets.shape, net.out_features), torch.nan, dtype=torch.float64)
            for row in self._training(net, "depth-mup"):
                outputs[row.step] = row.outputs if not row.diverged else torch.nan
            runs.append(outputs)
        self.measured.real[depth, width] = torch.stack(runs)

    def _block(self, rule: str, depth: int) -> None:
        c, rows = self.config, []
        probes = self.dataset.normalised(self.dataset.test.pixels[:_PROBES])
        for index in range(c.block_seeds):
            net = self._network(c.block_width, depth, derive(c.seed, "block", index), block="two-layer")
            start = copy.deepcopy(net)
            for row in self._training(net, rule):
                if row.step in (0, c.steps - 1):
                    changed = asdict(updates(net, start, probes))
                    rows.append({"rule": rule, "depth": depth, "index": index, "steps": row.step + 1, **changed})
        self.measured.blocks += rows

    def _network(self, width: int, depth: int, seed: int, block: str = "one-layer") -> ResNet:
        c = self.config
        return ResNet(
            self.inputs.shape[2],
            len(self.dataset.classes),
            width,
            depth,
            horizon=c.horizon,
            activation=c.activation,
            block=block,  # type: ignore[arg-type]
            seed=seed,
        )

    def _training(self, net: ResNet, rule: str) -> Iterator[TrainingRow]:
        optimizer = SGD(net.param_groups(self.config.eta_c, rule))
        return train(net, optimizer, zip(self.inputs, self.targets, strict=True), cross_entropy)
