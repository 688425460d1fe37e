"""What training a group of runs gives: stacked where nothing but losses is asked for, one by one otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor, nn

from nfd.data.dataset import Dataset
from nfd.experiment.metering import metered
from nfd.experiment.settings import RunConfig
from nfd.meters.start import start
from nfd.nets.mlp import MLP
from nfd.nets.network import Network
from nfd.nets.resnet import ResNet
from nfd.nets.stack import Stack
from nfd.scaling.rules import exponent_of
from nfd.training.loop import train
from nfd.training.losses import cross_entropy
from nfd.training.optimizers import optimizer_named
from nfd.training.stacked import train_stack

TESTED = 256  # first test samples, on which a run with a meter is tested: wide ones would test longer than they train
PROBES = 64  # of those, on which updates are measured
STARTS = 8  # of those, on which streams are

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
    return config.weights == "dense" and config.meter == "none" and not config.coupled


def trained(configs: Sequence[RunConfig], dataset: Dataset, device: str = "cpu") -> list[Trained]:
    """Train the runs of a group, all on the same batches."""
    first = configs[0]
    order = dataset.order(first.batch, first.steps, first.data_seed).to(device)
    if is_stackable(first):
        return _together(configs, dataset, order, device)
    return [_Alone(config, dataset, order, device).trained() for config in configs]


def tested(config: RunConfig) -> slice:
    """The test samples that a run is tested on: whatever its losses are compared with must be of the same."""
    return slice(None if config.meter == "none" else TESTED)


def network(config: RunConfig, dataset: Dataset, device: str = "cpu") -> Network:
    """The untrained network of a run."""
    inputs, classes = dataset.inputs.shape[1], len(dataset.classes)
    shared = {
        "activation": config.activation,
        "regime": "kernel" if config.rule == "ntk" else "feature",
        "weights": config.weights,
        "feedback": config.feedback,
        "seed": config.seed,
        "device": device,
    }
    if config.network == "mlp":
        return MLP(inputs, classes, config.width, config.depth, **shared)  # type: ignore[arg-type]
    return ResNet(
        inputs,
        classes,
        config.width,
        config.depth,
        horizon=config.horizon,
        block=config.block,
        order=config.order,
        branch_exponent=exponent_of(config.rule),
        coupled=config.coupled,
        **shared,  # type: ignore[arg-type]
    )


def looks(config: RunConfig) -> list[int]:
    """Numbers of updates after which a run is looked at: none, every so many, all."""
    return sorted({*range(0, config.steps, config.every or config.steps), config.steps})


def _together(configs: Sequence[RunConfig], dataset: Dataset, order: Tensor, device: str) -> list[Trained]:
    first = configs[0]
    stack = Stack([network(config, dataset, device) for config in configs])
    inputs, labels, _ = _placed(dataset, device)
    groups = stack.param_groups([c.eta_c for c in configs], [c.rule for c in configs], first.optimizer)
    seen: dict[int, Tensor] = {}

    def look(step: int) -> None:
        if first.every and step in moments:
            seen[step] = _tested(stack, _placed(dataset, device)[2])

    moments = set(looks(first)) - {first.steps}
    losses = train_stack(stack, groups, first.optimizer, first.momentum, inputs, labels, order, look).cpu()
    seen[first.steps] = outputs = _tested(stack, _placed(dataset, device)[2])
    found = [Trained(*each) for each in zip(losses, outputs, strict=True)]
    for k, one in enumerate(found):
        one.curves |= _curves(first, dataset, {step: each[k] for step, each in seen.items()})
    return found


class _Alone:
    """One run, with its meter."""

    def __init__(self, config: RunConfig, dataset: Dataset, order: Tensor, device: str) -> None:
        self.config, self.dataset, self.device, self.order = config, dataset, device, order
        self.net = network(config, dataset, device)
        self.tests = _placed(dataset, device)[2][tested(config)]
        self.meter = metered(config.meter)(self.net, config, self.tests[:PROBES])
        self.moments = set(looks(config))
        self.seen: dict[int, Tensor] = {}
        self.readings: dict[int, dict[str, Tensor]] = {}
        self.blank = {name: torch.full_like(x, math.nan) for name, x in self.meter.read().items()}

    def trained(self) -> Trained:
        found = Trained(torch.full((len(self.order),), math.nan), torch.empty(0))
        if self.config.meter == "start":
            found.metrics, found.curves = start(self.net, self.meter.probes[:STARTS])
        for step, loss in self._steps():
            found.losses[step] = loss
        blank = torch.full((len(self.tests), len(self.dataset.classes)), math.nan)
        found.outputs = self.seen.get(self.config.steps, blank)
        found.curves |= _curves(self.config, self.dataset, self.seen) | self._measured()
        if self.config.meter == "outputs":
            found.curves["outputs"] = found.outputs.flatten()
        return found

    def _steps(self) -> Iterator[tuple[int, float]]:
        """Losses by step, with a look at the network at its moments."""
        inputs, labels, _ = _placed(self.dataset, self.device)
        self.net.reserve(self.order.numel())
        batches = ((inputs[samples], labels[samples]) for samples in self.order)
        c = self.config
        groups = self.net.param_groups(c.eta_c, c.rule, c.optimizer)
        optimizer = optimizer_named(c.optimizer, groups, momentum=c.momentum)
        self._look(0)
        for row in train(self.meter.net, optimizer, batches, cross_entropy):
            yield row.step, row.loss
            if row.diverged:
                return
            self.meter.after()
            self._look(row.step + 1)

    def _look(self, step: int) -> None:
        if step not in self.moments:
            return
        if self.config.every or step == self.config.steps:
            self.seen[step] = _tested(self.net, self.tests)
        if step:
            self.readings[step] = self.meter.read()

    def _measured(self) -> dict[str, Tensor]:
        """Readings ``[looks x parts]``, flat, not-a-number after the run ended, and the steps of the looks."""
        if not self.blank:
            return {}
        steps = looks(self.config)[1:]
        found = {name: torch.cat([self.readings.get(step, self.blank)[name] for step in steps]) for name in self.blank}
        return found | {"measured_after": torch.tensor(steps, dtype=torch.float32)}


@torch.no_grad()
def _tested(net: nn.Module, inputs: Tensor) -> Tensor:
    """Outputs on test inputs ``[N, d]``, ``[..., N, C]``."""
    training = net.training
    try:
        net.eval()
        return torch.cat([net(x) for x in torch.split(inputs, _EVALUATED)], dim=-2).cpu()
    finally:
        net.train(training)


def _curves(config: RunConfig, dataset: Dataset, seen: dict[int, Tensor]) -> dict[str, Tensor]:
    """Test loss and accuracy at every look, where there are several."""
    if not config.every:
        return {}
    labels = dataset.test_labels[tested(config)]
    blank = torch.full((len(labels), len(dataset.classes)), math.nan)
    outputs = torch.stack([seen.get(step, blank) for step in looks(config)])
    right = (outputs.argmax(-1) == labels).float().mean(-1)
    finite = outputs.isfinite().all(-1).all(-1)
    return {
        "test_loss": cross_entropy(outputs, labels),
        "test_accuracy": torch.where(finite, right, math.nan),
        "tested_after": torch.tensor(looks(config), dtype=torch.float32),
    }


@lru_cache(maxsize=2)
def _placed(dataset: Dataset, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Training inputs and labels and test inputs, where they are used."""
    return dataset.inputs.to(device), dataset.labels.to(device), dataset.test_inputs.to(device)
