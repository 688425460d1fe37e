"""What training a group of runs gives: stacked where nothing but losses is asked for, one by one otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

from nfd.data.dataset import Dataset
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.families.paper import PaperFamily
from nfd.nets.mlp import MLP
from nfd.nets.resnet import ResNet
from nfd.nets.structured import StructuredLinear
from nfd.runs.metering import METERS
from nfd.runs.settings import RunConfig
from nfd.runs.trials import DIRECTIONS
from nfd.scaling.laws import law_of
from nfd.training.loop import Optimizer, train
from nfd.training.losses import cross_entropy
from nfd.training.optimizers import optimizer_named, stacked_optimizer_named

TESTED = 256  # first test samples, on which a run with a meter is tested: wide ones would test longer than they train
PROBES = 64  # of those, on which updates are measured

_EVALUATED = 512  # test samples at a time


@dataclass
class Trained:
    """Losses ``[steps]`` before each update, outputs ``[N, C]`` on the test part, and what else was measured."""

    losses: Tensor
    outputs: Tensor
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, Tensor] = field(default_factory=dict)


def is_stackable(config: RunConfig) -> bool:
    """Whether runs with these settings can be trained as one."""
    plain = config.weights == "dense" and config.meter == "none" and not config.coupled
    return plain and law_of(config.optimizer).make_stacked is not None


def trained(configs: Sequence[RunConfig], dataset: Dataset, device: str = "cpu") -> list[Trained]:
    """Train the runs of a group, all on the same batches."""
    together = [configs] if is_stackable(configs[0]) else [[config] for config in configs]
    return [result for group in together for result in _Training(group, dataset, device).trained()]


def tested(config: RunConfig) -> slice:
    """The test samples that a run is tested on: losses that they are compared with must be of the same."""
    return slice(None if config.meter == "none" else TESTED)


def member(config: RunConfig, dataset: Dataset, device: str = "cpu") -> Member:
    """The untrained network of a run."""
    return family(config, dataset).build(config.width, config.depth, config.seed, config.weights, device)


def family(config: RunConfig, dataset: Dataset) -> Family:
    """The networks of every size that a run's network is one of."""
    plain = config.network == "mlp"
    shared = ("activation", "feedback", "resolution")
    names = shared if plain else (*shared, "horizon", "block", "order", "coupled")
    settings = {name: getattr(config, name) for name in names}
    sizes = dataset.inputs.shape[1], len(dataset.classes)
    return PaperFamily(MLP if plain else ResNet, *sizes, config.rule, config.optimizer, settings)


def looks(config: RunConfig) -> list[int]:
    """Numbers of updates after which a run is looked at: none, every so many, all."""
    return sorted({*range(0, config.steps, config.every or config.steps), config.steps})


class _Training:
    """A stack of runs, or one run with its meter, while it is trained: vectors are of all of them, ``[R, ...]``."""

    def __init__(self, configs: Sequence[RunConfig], dataset: Dataset, device: str) -> None:
        self.configs, self.dataset, self.first = configs, dataset, configs[0]
        self.inputs, self.labels, tests = _placed(dataset, device)
        self.tests = tests[tested(self.first)]
        self.order = dataset.order(self.first.batch, self.first.steps, self.first.data_seed).to(device)
        self.members = [member(config, dataset, device) for config in configs]
        for network in self.members:
            network.reserve(self.order.numel())
        self.member = self.members[0]
        self.stack = type(self.member).stacked(self.members) if is_stackable(self.first) else None
        self.net = self.member.module if self.stack is None else self.stack.module
        self.meter = METERS[self.first.meter](self.net, self.member, self.tests[:PROBES])
        self.blank = {name: torch.full_like(x, math.nan) for name, x in self.meter.read().items()}
        self.moments = looks(self.first)
        self.seen: dict[int, Tensor] = {}
        self.readings: dict[int, dict[str, Tensor]] = {}

    def trained(self) -> list[Trained]:
        """Train them, and what that gave for each."""
        metrics, curves = self.meter.start()
        losses = self._losses()
        metrics |= recorded(self.net)
        outputs = self._outputs(self.first.steps)
        tests = self._test_curves() if self.first.every else {}
        results = []
        for k in range(len(self.configs)):
            own = {name: x[k] for name, x in tests.items()} | self._readings() | self.meter.end(outputs[k])
            results.append(Trained(losses[k], outputs[k], dict(metrics), curves | own))
        return results

    def _losses(self) -> Tensor:
        """Losses ``[R, steps]``, with a look at the networks at their moments."""
        batches = ((self.inputs[samples], self.labels[samples]) for samples in self.order)
        losses = []
        self._look(0)
        for row in train(self.meter.net, self._optimizer(), batches, cross_entropy):
            losses.append(row.losses.view(-1))
            if not row.diverged:
                self.meter.after()
                self._look(row.step + 1)
        last = losses[-1] if self.stack else torch.full_like(losses[-1], math.nan)  # as stored runs have it
        return torch.stack([*losses, *[last] * (self.first.steps - len(losses))], dim=1).cpu()

    def _optimizer(self) -> Optimizer:
        c = self.first
        if self.stack is not None:
            alone = [m.groups(config.eta_c) for m, config in zip(self.members, self.configs, strict=True)]
            return stacked_optimizer_named(c.optimizer, self.stack.groups(alone), momentum=c.momentum)
        return optimizer_named(c.optimizer, self.member.groups(c.eta_c), momentum=c.momentum)

    def _look(self, step: int) -> None:
        if step not in self.moments:
            return
        if self.first.every or step == self.first.steps:
            self.seen[step] = _tested(self.net, self.tests)
        if step:
            self.readings[step] = self.meter.read()

    def _outputs(self, step: int) -> Tensor:
        """Outputs ``[R, N, C]`` on the test part at a look, not-a-number where it was not reached."""
        shape = len(self.configs), len(self.tests), len(self.dataset.classes)
        return self.seen[step].view(shape) if step in self.seen else torch.full(shape, math.nan)

    def _test_curves(self) -> dict[str, Tensor]:
        """Test loss and accuracy ``[R, looks]``, and the steps of the looks."""
        labels = self.dataset.test_labels[tested(self.first)]
        outputs = torch.stack([self._outputs(step) for step in self.moments], dim=1)
        right = (outputs.argmax(-1) == labels).float().mean(-1)
        finite = outputs.isfinite().all(-1).all(-1)
        return {
            "test_loss": cross_entropy(outputs, labels),
            "test_accuracy": torch.where(finite, right, math.nan),
            "tested_after": torch.tensor(self.moments, dtype=torch.float32).expand(len(outputs), -1),
        }

    def _readings(self) -> dict[str, Tensor]:
        """Readings ``[looks x parts]``, flat, not-a-number after the run ended, and the steps of the looks."""
        if not self.blank:
            return {}
        steps = self.moments[1:]
        vectors = {
            name: torch.cat([self.readings.get(step, self.blank)[name] for step in steps]) for name in self.blank
        }
        return vectors | {"measured_after": torch.tensor(steps, dtype=torch.float32)}


def recorded(net: nn.Module) -> dict[str, float]:
    """``DIRECTIONS``: how many directions the update of a structured layer has, the mean over layers."""
    ranks = [layer.rank for layer in net.modules() if isinstance(layer, StructuredLinear)]
    return {DIRECTIONS: sum(ranks) / len(ranks)} if ranks else {}


@torch.no_grad()
def _tested(net: nn.Module, inputs: Tensor) -> Tensor:
    """Outputs on test inputs ``[N, d]``, ``[..., N, C]``."""
    training = net.training
    try:
        net.eval()
        return torch.cat([net(x) for x in torch.split(inputs, _EVALUATED)], dim=-2).cpu()
    finally:
        net.train(training)


@lru_cache(maxsize=2)
def _placed(dataset: Dataset, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs and labels and test inputs, where they are used."""
    return dataset.inputs.to(device), dataset.labels.to(device), dataset.test_inputs.to(device)
