"""The paper's networks as a family: they have their scales in their forward pass, and streams that can be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import signature
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, InputTypeError
from nfd.core.names import NetworkWeights, RuleName
from nfd.families.family import Family
from nfd.families.fingerprint import check_version, fingerprint
from nfd.families.member import Member, StackedMembers
from nfd.families.streams import StreamEnds
from nfd.nets.factored import FactoredLinear
from nfd.nets.mlp import MLP
from nfd.nets.network import Network
from nfd.nets.resnet import ResNet
from nfd.nets.stack import Stack
from nfd.nets.stacked_optimizers import by_name
from nfd.scaling.grouping import Groups
from nfd.scaling.plan import Plan
from nfd.scaling.planning import plan
from nfd.scaling.rules import Role, rule_named


class PaperMember(Member):
    """A network of ``nfd.nets``, or of a subclass: its base is the network of width 1 and depth 1.

    Args:
        module: the network, or what PyTorch wrapped it in. net: the network itself.
        rule, optimizer: which it is trained by. planned: its plan, where it is made already.
    """

    def __init__(
        self, module: nn.Module, net: Network, rule: RuleName, optimizer: str, planned: Plan | None = None
    ) -> None:
        self.module, self.net, self.rule, self.optimizer = module, net, rule, optimizer
        self.width, self.depth = net.width, net.depth
        if planned is not None:
            self.plan = planned

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        return plan(self.module, rule=self.rule, optimizer=self.optimizer)

    @property
    def roles(self) -> dict[str, Role]:
        return super().roles if self.net.weights == "dense" else self.net.settled_roles()

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.net.block_names())

    def time_step(self, stack: str = "") -> float:
        return cast(float, getattr(self.net, "horizon", 1.0)) / self.net.depth

    def multiplier(self, name: str) -> float:
        if name.endswith("feedback_weight"):
            return 0.0
        return self.net.scale(self.roles[name]) if self.net.is_standard_normal(name) else 1.0

    def groups(self, lr: float, weight_decay: float = 0.0, adamw_lr: float | None = None) -> list[dict[str, Any]]:
        if self.net.weights != "dense" or rule_named(self.rule).regime == "kernel":  # which no plan is for
            if weight_decay or adamw_lr is not None:
                raise InputError(
                    "weight_decay and adamw_lr are for plans: weights that are not stored, and rule='ntk', have none. "
                    "Leave them out."
                )
            return self.net.param_groups(lr, self.rule, self.optimizer)
        return super().groups(lr, weight_decay, adamw_lr)

    def begin_(self, seed: int) -> None:
        self.plan.initialize_(self.module, seed)  # its own start is that of its own seed, whatever the rule

    @cached_property
    def parameters(self) -> int:
        """How many weights its forward pass has, stored or deferred."""
        layers = [m for m in self.net.modules() if isinstance(m, FactoredLinear)]
        theirs = {id(p) for layer in layers for p in layer.parameters()}
        stored = [(name, p) for name, p in self.net.named_parameters() if id(p) not in theirs]
        plain = sum(p.numel() for name, p in stored if not name.endswith("feedback_weight"))
        return plain + sum(layer.in_features * layer.out_features for layer in layers)

    def operations(self, sample: Any) -> float:
        if self.net.weights != "dense":
            raise InputError(
                f"The operations of {self.net.weights} weights grow with the samples seen, so that none can be "
                "counted per sample. Ask the same network with weights='dense'."
            )
        return super().operations(sample)

    @contextmanager
    def stream(self) -> Iterator[StreamEnds]:
        ends = StreamEnds()

        def see(layers: list[Tensor], _inner: list[Tensor]) -> None:
            ends.keep(ends.first[""], layers[0])
            ends.keep(ends.last[""], layers[-1])
            hidden = [h.detach() for h in layers]
            ends.before |= dict(zip(self.blocks, hidden, strict=False))
            ends.behind |= dict(zip(self.blocks, hidden[1:], strict=False))

        with self.net.watched(see):
            yield ends
        self.net.check_one_pass(len(ends.first[""]))

    def network(self) -> Network:
        return self.net

    def twin(self) -> Member:
        if self.net.feedback != "shared" or self.net.weights != "dense":
            return super().twin()
        twin = self.net.decoupled()
        return PaperMember(twin, twin, self.rule, self.optimizer)

    def reserve(self, samples: int) -> None:
        self.net.reserve(samples)

    @classmethod
    def stacked(cls, members: Sequence[Self]) -> StackedMembers | None:
        nets = [member.net for member in members]
        return None if any(net.weights != "dense" for net in nets) else _PaperStack(nets, members)


class _PaperStack(StackedMembers):
    def __init__(self, nets: Sequence[Network], members: Sequence[PaperMember]) -> None:
        self.module = self.stack = Stack(nets)
        self.members = members

    def groups(self, alone: Sequence[Groups]) -> Groups:
        settings = [by_name(member.net, own) for member, own in zip(self.members, alone, strict=True)]
        return self.stack.folded(settings, self.members[0].optimizer)


@dataclass(frozen=True)
class PaperFamily(Family):
    """The paper's networks as a family: one class of ``nfd.nets``, or a subclass with the same arguments.

    Args:
        kind: ``nfd.ResNet``, ``nfd.MLP`` or a subclass.
        in_features, out_features: d and C.
        rule: also decides the residual multiplier and the regime, unless ``settings`` do.
        optimizer: the name of a law that takes every tensor, such as ``"sgd"`` or ``"adam"``.
        settings: further arguments of the class, such as ``{"horizon": 2.0, "activation": "tanh"}``.
        version: of the code of a subclass, in place of a fingerprint.

    Example::

        family = nfd.PaperFamily(nfd.ResNet, 64, 10, settings={"activation": "tanh"})
        member = family.build(width=64, depth=4, seed=0)
    """

    kind: type[Network]
    in_features: int
    out_features: int
    rule: RuleName = "depth-mup"
    optimizer: str = "sgd"
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None
    base: tuple[int, int] = field(default=(1, 1), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.kind, type) and issubclass(self.kind, Network)):
            raise InputTypeError(f"kind must be nfd.ResNet, nfd.MLP or a subclass; got {self.kind!r}.")
        if not isinstance(self.settings, Mapping) or not self.settings.keys() <= signature(self.kind).parameters.keys():
            raise InputTypeError(f"settings must be a dict of arguments of {self.name}; got {self.settings!r}.")
        check_version(self.version)

    @property
    def name(self) -> str:
        return f"nfd.{self.kind.__name__}" if self._is_ours else self.kind.__qualname__

    @property
    def identity(self) -> Mapping[str, Any]:
        about = {
            "family": self.name,
            "in_features": self.in_features,
            "out_features": self.out_features,
            "rule": self.rule,
            "optimizer": self.optimizer,
            "settings": dict(sorted(self.settings.items())),
        }
        return about if self._is_ours else about | {"code": self._code}

    def build(
        self,
        width: int,
        depth: int,
        seed: int,
        weights: NetworkWeights = "dense",
        device: torch.device | str | None = None,
        resolution: float | None = None,
    ) -> PaperMember:
        own = self if resolution is None else replace(self, settings={**self.settings, "resolution": resolution})
        net = own._network(width, depth, seed, weights, device or "cpu")
        return PaperMember(net, net, self.rule, self.optimizer)

    def _network(self, width: int, depth: int, seed: int, weights: str, device: torch.device | str) -> Network:
        settings = self.kind.settings_of(self.rule) | dict(self.settings)
        make = cast(Callable[..., Network], self.kind)
        sizes = (self.in_features, self.out_features, width, depth)
        return make(*sizes, **settings, weights=weights, seed=seed, device=device)

    @property
    def _is_ours(self) -> bool:
        return self.kind in (ResNet, MLP)

    @cached_property
    def _code(self) -> str:
        sample = torch.linspace(-1, 1, 3 * self.in_features).view(3, self.in_features)
        return self.version or fingerprint(
            self.name, lambda width, depth: self._network(width, depth, 0, "dense", "cpu"), (4, 2), sample
        )
