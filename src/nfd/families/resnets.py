"""``nfd.resnets``: the paper's networks as a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import torch
from torch import nn

from nfd.core.names import NetworkWeights, RuleName
from nfd.families.family import Family
from nfd.families.member import PaperMember
from nfd.families.network import Network
from nfd.families.resnet import ResNet
from nfd.scaling.plan import Plan


@dataclass(frozen=True)
class Networks:
    """A class of the paper's networks as a function of width and depth that can be sent to other processes.

    Args:
        kind: ``nfd.ResNet``, ``nfd.MLP`` or a subclass with the same arguments.
        inputs, outputs: d and C.
        settings: further arguments of the class.
    """

    kind: type[Network]
    inputs: int
    outputs: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, width: int, depth: int, **more: Any) -> nn.Module:
        """The network of a size."""
        return self.kind(self.inputs, self.outputs, width, depth, **{**self.settings, **more})


class NetworkFamily(Family):
    """A family of networks of the paper: the rule decides their residual multiplier and regime too."""

    make_model: Networks

    @property
    def identity(self) -> Mapping[str, Any]:
        made = self.make_model
        sizes = {"in_features": made.inputs, "out_features": made.outputs}
        return {**super().identity, **sizes, "settings": dict(sorted(made.settings.items()))}

    @property
    def resolution(self) -> float | None:
        return None if self.optimizer == "sgd" else super().resolution

    def along_one_path(self, depth: int) -> Self:
        if self.make_model.settings.get("block") == "two-layer" or self.make_model.kind is not ResNet:
            return self
        made = replace(self.make_model, settings={**self.make_model.settings, "coupled": depth})
        return replace(self, make_model=made)

    def member(
        self,
        width: int,
        depth: int,
        seed: int = 0,
        weights: NetworkWeights = "dense",
        device: torch.device | str | None = None,
        resolution: float | None = None,
    ) -> PaperMember:
        kind, own = self.make_model.kind, self.make_model.settings
        more = kind.settings_of(self.rule) | dict(own) | {"weights": weights, "seed": seed, "device": device or "cpu"}
        more |= {} if resolution is None else {"resolution": resolution}
        net = cast(Network, self.make_model(width, depth, **more))
        return PaperMember(net, net, self.rule, self.optimizer)

    def outline(self, width: int, depth: int, seed: int = 0) -> tuple[nn.Module, Plan]:
        member = self.member(width, depth, seed)
        return member.module, member.plan

    def check_sizes(self, *sizes: Any) -> None:
        """All sizes differ in width and depth alone."""


def networks(
    kind: type[Network],
    inputs: int,
    outputs: int,
    *,
    rule: RuleName = "depth-mup",
    optimizer: str = "sgd",
    version: str | None = None,
    **settings: Any,
) -> NetworkFamily:
    """The family of a class of the paper's networks; ``settings`` are further arguments of the class."""
    made = Networks(kind, inputs, outputs, settings)
    return NetworkFamily(made, (1, 1), rule, optimizer, name=kind.__qualname__, version=version)


def resnets(
    inputs: int,
    outputs: int,
    *,
    horizon: float = 1.0,
    activation: str = "relu",
    block: str = "one-layer",
    feedback: str = "shared",
    rule: RuleName = "depth-mup",
    optimizer: str = "sgd",
) -> NetworkFamily:
    """The paper's residual networks of every width and depth (``nfd.ResNet``), as a family.

    Their base has width 1 and depth 1, so that the learning rate is the paper's ``eta_c``: under SGD every step
    subtracts ``eta_c n dloss/dW`` times the depth factor of the rule from a weight matrix W that starts N(0, 1).

    Args:
        inputs, outputs: d and C, the sizes of an input and of the output.
        horizon, activation, block, feedback: as in ``nfd.ResNet``.
        rule: decides the rates and the residual multiplier ``sqrt(T) L**-a``.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"`` or ``"muon"``.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Eqs. 1, 6 and 8.

    Example::

        family = nfd.resnets(64, 10, activation="tanh")
        net = family.build(width=64, depth=4, seed=0)
    """
    settings: dict[str, Any] = {"horizon": horizon, "activation": activation, "block": block, "feedback": feedback}
    return networks(ResNet, inputs, outputs, rule=rule, optimizer=optimizer, **settings)
