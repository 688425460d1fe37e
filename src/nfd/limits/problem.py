"""A training run whose limit is asked for: a task, a network and rates, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast, get_args

import torch

from nfd.core.errors import InputError, check_choice, check_device, check_numbers, check_real
from nfd.core.names import Block, NetworkWeights, RuleName
from nfd.families.paper import PaperFamily, PaperMember
from nfd.limits.table import check_horizon
from nfd.nets.network import Network
from nfd.nets.resnet import ResNet
from nfd.scaling.rules import MAX_ETA_C
from nfd.training.tensors import TensorTask


@dataclass(frozen=True)
class Problem:
    """A task and everything that fixes the run but n, L, seed.

    ``coupled``: where networks of one seed at depths L and 2L are one Brownian path, the depth at which its increments
    are drawn (see ``nfd.ResNet``); False elsewhere.
    """

    task: TensorTask
    horizon: float
    activation: str
    block: str
    eta_c: tuple[float, ...]
    momentum: float
    feedback: str
    rule: RuleName
    device: torch.device
    coupled: int

    @property
    def layers_per_block(self) -> int:
        """Hidden matrices in a block."""
        return 2 if self.block == "two-layer" else 1

    @cached_property
    def family(self) -> PaperFamily:
        """The networks of this problem."""
        names = ("horizon", "activation", "block", "feedback", "coupled")
        settings = {name: getattr(self, name) for name in names} | {"regime": "feature"}
        return PaperFamily(ResNet, self.task.features, self.task.outputs, self.rule, "sgd", settings)

    def first(self, steps: int) -> Problem:
        """The same, of its first batches alone."""
        return replace(self, task=self.task.first(steps))

    def member(
        self, width: int, depth: int, weights: NetworkWeights, seed: int, resolution: float | None = None
    ) -> PaperMember:
        """The network of this problem at a size, with its plan."""
        return self.family.build(width, depth, seed, weights, self.device, resolution)

    def network(self, width: int, depth: int, weights: NetworkWeights, seed: int) -> Network:
        """The network of this problem at a size."""
        return self.member(width, depth, weights, seed).net

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What is set beside the task, as plain data."""
        names = [f.name for f in fields(self) if f.name not in ("task", "device")]
        return {name: getattr(self, name) for name in names} | {"eta_c": list(self.eta_c)}


def problem(
    inputs: Any,
    targets: Any,
    *,
    eval_inputs: Any = None,
    eval_targets: Any = None,
    loss: str,
    classes: int | None,
    horizon: float,
    activation: str,
    block: str,
    eta_c: float | Sequence[float],
    momentum: float,
    feedback: str,
    rule: str,
    device: torch.device | str,
    coupled: int,
) -> Problem:
    """Check what ``nfd.predict`` was given and bring it into one shape."""
    place = check_device(device)
    task = TensorTask.of_tensors(
        inputs,
        targets,
        loss=loss,
        classes=classes,
        eval_inputs=eval_inputs,
        eval_targets=eval_targets,
        device=place,
    )
    made = Problem(
        task,
        horizon=check_horizon(horizon),
        activation=activation,
        block=check_choice("block", block, get_args(Block)),
        eta_c=_rates(eta_c, task.steps),
        momentum=check_real("momentum", momentum, least=0.0, below=1.0),
        feedback=feedback,
        rule=cast(RuleName, rule),
        device=place,
        coupled=coupled,
    )
    made.network(1, 1, "dense", 0).param_groups(1.0, rule)  # the network knows its own names and rules
    return made


def _rates(eta_c: float | Sequence[float], steps: int) -> tuple[float, ...]:
    if isinstance(eta_c, int | float):
        return (check_real("eta_c", eta_c, least=0.0, below=MAX_ETA_C),) * steps
    values = check_numbers("eta_c", eta_c)
    if values.shape not in ((), (steps,)):
        raise InputError(f"eta_c must be a number or one per step, [{steps}]; got shape {list(values.shape)}.")
    rates = enumerate(values.expand(steps).tolist())
    return tuple(check_real(f"eta_c[{k}]", rate, least=0.0, below=MAX_ETA_C) for k, rate in rates)
