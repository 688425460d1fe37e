"""A network of ``nfd.nets`` under its plan: it has its scales in its forward pass, and streams that can be read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.names import RuleName
from nfd.families.member import Member
from nfd.families.streams import StreamEnds
from nfd.nets.dense import factor_gradients_
from nfd.nets.network import Network
from nfd.scaling.base import roles_of, told_by
from nfd.scaling.plan import Plan, plan
from nfd.scaling.rules import Role, rule_named
from nfd.wide.linear import FactoredLinear


class PaperMember(Member):
    """A network of ``nfd.nets``, or of a subclass: its base is the network of width 1 and depth 1.

    Args:
        module: the network, or what PyTorch wrapped it in. net: the network itself.
        rule, optimizer: which it is trained by. planned: its plan, where it is made already.
    """

    def __init__(
        self,
        module: nn.Module,
        net: Network,
        rule: RuleName,
        optimizer: str,
        planned: Plan | None = None,
    ) -> None:
        self.module, self.net, self.rule, self._optimizer = module, net, rule, optimizer
        self.width, self.depth = net.width, net.depth
        if planned is not None:
            self.plan = planned

    @cached_property
    def plan(self) -> Plan:  # type: ignore[override]
        return plan(self.module, rule=self.rule, optimizer=self.optimizer)

    @property
    def optimizer(self) -> str:
        return self._optimizer

    @property
    def roles(self) -> dict[str, Role]:
        return super().roles if self.net.weights == "dense" else roles_of(self.net)

    @property
    def blocks(self) -> tuple[str, ...]:
        return tuple(self.net.block_names())

    def time_step(self, stack: str = "") -> float:
        return cast(float, getattr(self.net, "horizon", 1.0)) / self.net.depth

    def multiplier(self, name: str) -> float:
        if name.endswith("feedback_weight"):
            return 0.0
        return self.net.scale(self.roles[name]) if name in self.net.forward_multipliers() else 1.0

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

    def reserve(self, samples: int) -> None:
        if self.optimizer == "sgd":
            factor_gradients_(self.net)
        self.net.reserve(samples)


def member_of(module: nn.Module, planned: Plan, width: int | None = None, depth: int | None = None) -> Member:
    """The member that a planned module is: the one place that looks at which kind it is."""
    net = told_by(module)
    if isinstance(net, Network):
        return PaperMember(module, net, planned.rule, planned.optimizer, planned)
    return Member(module, planned, width, depth)
