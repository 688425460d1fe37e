"""How a network of the paper is scaled: roles, multipliers and rates of its tensors, under every rule."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, cast

from torch import nn

from nfd.core.errors import InputError, check_real
from nfd.core.names import NetworkWeights, Regime, RuleName
from nfd.scaling.laws import OptimizerLaw, check_optimizer, law_of
from nfd.scaling.plan import Plan
from nfd.scaling.rules import ADAM_EPSILON, MAX_ETA_C, ROLES, Power, Role, rule_named
from nfd.scaling.self_scaled import SelfScaled, own_entries


class ScaledNetwork(SelfScaled):
    """Hidden weights are N(0, 1) and multiplied by ``1 / sqrt(n)``, in the forward pass and so in these rates.

    ``alpha`` is the output multiplier of ``f = alpha / sqrt(n) V h_L``.
    """

    in_features: int
    width: int
    depth: int
    regime: Regime
    weights: NetworkWeights
    branch_exponent: float = 0.0

    @property
    def alpha(self) -> float:
        """The output multiplier in ``f = alpha / sqrt(n) V h_L``: 1/sqrt(n), or 1 in the kernel regime."""
        return 1 / math.sqrt(self.width) if self.regime == "feature" else 1.0

    def param_groups(self, eta_c: float, rule: str | None = None, optimizer: str = "sgd") -> list[dict[str, Any]]:
        """Parameters by role with their rates; for SGD ``eta_c n`` times the rule's depth factor (kernel: no n).

        For Adam they are ``eta_c / sqrt(n)`` for hidden matrices, ``eta_c`` for U and V, times the depth factor, each
        with its own epsilon: 1e-8 times how the entries of its gradient scale. What a subclass adds learns by its role,
        as a plain parameter that nothing multiplies.

        Args:
            eta_c: the rate that does not depend on width or depth, at least 0.
            rule: a name of ``nfd.scaling.rules``; its exponent must be this network's ``branch_exponent``. Default
                ``"depth-mup"`` for ``ResNet``, ``"mup"`` for ``MLP``.
            optimizer: ``"sgd"``, ``"adam"``, or another registered one that takes every tensor.

        Raises:
            ValueError: when the rule belongs to another residual multiplier or needs two-layer blocks; when the
                optimizer is not exact for these weights or this rule; naming the parameters of a subclass that have no
                role.
        """
        eta_c = check_real("eta_c", eta_c, least=0.0, below=MAX_ETA_C)
        law = law_of(optimizer)
        if law.rest is not None:
            raise InputError(f"optimizer={law.name!r} takes matrices alone. Use nfd.plan(net, optimizer={law.name!r}).")
        rule = self.default_rule if rule is None else rule
        self.check_rule(rule)
        check_optimizer(law.name, rule=rule, weights=self.weights)
        rates = self._rates(cast(RuleName, rule), law)
        groups: dict[tuple[Any, ...], dict[str, Any]] = {}
        for name, role in sorted(self.settled_roles().items(), key=lambda pair: ROLES.index(pair[1])):
            settings = {"lr": eta_c * rates.rate(name), "role": role}
            settings |= {"eps": ADAM_EPSILON * rates.epsilon(name)} if law.epsilon else {}
            groups.setdefault(tuple(settings.items()), {"params": [], **settings})["params"].append(
                self.get_parameter(name)
            )
        return list(groups.values())

    def _rates(self, rule: RuleName, law: OptimizerLaw) -> Plan:
        """The plan from the network of width 1; in the kernel regime rates are those of that base at every width."""
        m = float(self.width) if self.regime == "feature" else 1.0
        return Plan(rule, law.name, "raw", m, self.depth, own_entries(self, self, m), (), {}, ())

    def multiplier(self, role: Role) -> Power:
        """How the forward multiplier of weights with this role scales with n and L: they are N(0, 1) themselves."""
        readout = 0.5 if self.regime == "kernel" else 1.0
        width = {"input": 0.0, "readout": readout}.get(role, 0.5)
        return Power(fan_in=-width, depth=-self.branch_exponent if role == "outer" else 0.0)

    def scale(self, role: Role) -> float:
        """The forward multiplier of weights with this role."""
        width = self.in_features if role == "input" else self.width
        return {"input": 1.0, "readout": self.alpha}.get(role, 1.0) / math.sqrt(width)

    def named_roles(self) -> dict[str, Role]:
        """The role of every trainable parameter, by its name; a subclass with more parameters adds theirs."""
        roles = {id(p): role for role, parameters in self._roles().items() for p in parameters}
        return {name: roles[id(p)] for name, p in self.named_parameters() if id(p) in roles}

    def check_rule(self, rule: str) -> None:
        """ValueError when a rule is made for another regime, residual multiplier or block."""
        chosen = rule_named(rule)
        if chosen.regime == "kernel" and self.regime != "kernel":
            raise InputError(f"Rule {rule!r} is for regime='kernel'; this network has 'feature'. Choose another rule.")
        if chosen.scales_depth and not self.block_names():
            raise InputError(f"Rule {rule!r} needs a residual branch; {type(self).__name__} has none. Choose 'mup'.")
        if chosen.exponent is not None and chosen.exponent != self.branch_exponent:
            raise InputError(
                f"Rule {rule!r} is made for branch_exponent={chosen.exponent:g}; this network has "
                f"{self.branch_exponent:g}. Build it with branch_exponent={chosen.exponent:g} or choose another rule."
            )
        if chosen.boosts_inner and not self._roles().get("inner"):
            raise InputError(
                f"Rule {rule!r} needs inner and outer roles; got {sorted(r for r, p in self._roles().items() if p)}. "
                "Build the network with block='two-layer' or use rule='depth-mup'."
            )

    def block_names(self) -> list[str]:
        return []

    @abstractmethod
    def _roles(self) -> dict[Role, list[nn.Parameter]]:
        """Trainable parameters by role; ``outer`` writes the stream, ``inner`` is every earlier matrix."""
