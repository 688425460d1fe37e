"""How initial weights, learning rate and epsilon scale with size: one table for every module.

The table is for effective weights, those of a plain module without forward multipliers. ``in`` and
``out`` are the ratios of a tensor's fan-in and fan-out to those of the base model (1 where a
dimension does not scale; biases, gains and embeddings have fan-in 1), ``l`` the ratio of depths and
``a`` the exponent of the residual multiplier ``l**-a``.

=========  ==============  =======================  =======================  ===============
role       std             SGD rate                 Adam rate                Adam epsilon
=========  ==============  =======================  =======================  ===============
input      1               out                      1                        1/out
hidden     in^-1/2         out/in                   1/in                     1/out
outer      in^-1/2 l^-a    out/in l^-1              1/in l^-1                1/out
inner      in^-1/2         out/in l^(2a-1)          1/in l^(a-1)             1/out l^-a
skip       1               out l^-1                 l^-1                     1/out
readout    in^-1           1/in                     1/in                     1
=========  ==============  =======================  =======================  ===============

A matrix in a block whose outputs do not grow, such as a router or keys of a fixed number of heads,
has ``in^-1`` for ``in^-1/2``: its outputs would else move as in^1/2 once training aligns the stream
with its start. ``skip`` is a learned number, or one for each feature, that multiplies the stream at
every block, and is 1 at first: if each moves by d, the stream is multiplied by ``(1 + d)^L``.
``input`` stands for embeddings, tied embeddings, and biases and gains outside blocks too. Under
``depth-mup-inner`` (Eq. 8) the inner rates are ``out/in l^a`` and ``1/in``. Adam's column is the
rate of updates with entries of order one, its epsilon the size of the gradient's entries; every
other rate follows from these two by the optimizer's law (``nfd.scaling.optimizers``): SGD's is
Adam's over epsilon. A weight ``W`` after a forward multiplier ``s``, effective weight ``s W``, has
``std / s``, ``rate / s^(1 + degree)`` (SGD ``rate / s^2``, Adam ``rate / s``) and ``epsilon s``.

==================  ===  ==========================================================
rule                a
==================  ===  ==========================================================
``standard``        -    every factor is 1
``ntk``             -    as ``standard``, for the kernel regime of ``nfd.ResNet``
``mup``             0    factors of width only
``depth-mup``       1/2  uniform rates in a block
``depth-mup-inner`` 1/2  the rate of Eq. 8 for inner layers
``complete-p``      1
==================  ===  ==========================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol, cast, get_args

from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.names import Regime, RuleName

# The largest learning rate of one tensor that float32 holds.
MAX_RATE = 1e37
# Adam's epsilon in the base.
ADAM_EPSILON = 1e-8
# Learning rates must stay representable in float32 after the factors of width and depth.
MAX_ETA_C = 1e20

Role = Literal[
    "input", "embedding", "tied", "vector", "hidden", "outer", "inner", "skip", "readout"
]
ROLES: tuple[Role, ...] = get_args(Role)
# Roles of fan-in 1.
INPUT_LIKE: tuple[Role, ...] = ("input", "embedding", "tied", "vector", "skip")
# Roles whose matrices Muon takes; the rest goes to Adam.
SPECTRAL: tuple[Role, ...] = ("hidden", "outer", "inner")


@dataclass(frozen=True)
class Power:
    """``in**fan_in * out**fan_out * l**depth``."""

    fan_in: float = 0.0
    fan_out: float = 0.0
    depth: float = 0.0

    def at(self, fan_in: float, fan_out: float, depth: float) -> float:
        """Return its value at these ratios."""
        if fan_in == fan_out:
            # The value is exactly 1 where the powers cancel.
            return math.pow(fan_in, self.fan_in + self.fan_out) * math.pow(depth, self.depth)
        return (
            math.pow(fan_in, self.fan_in)
            * math.pow(fan_out, self.fan_out)
            * math.pow(depth, self.depth)
        )

    def of_vector(self) -> Power:
        """Return the power of a tensor whose fan-in is 1 at every size."""
        return replace(self, fan_in=0.0)

    def __mul__(self, other: Power) -> Power:
        return Power(
            self.fan_in + other.fan_in, self.fan_out + other.fan_out, self.depth + other.depth
        )

    def __pow__(self, exponent: float) -> Power:
        return Power(self.fan_in * exponent, self.fan_out * exponent, self.depth * exponent)

    def __str__(self) -> str:
        named = (("in", self.fan_in), ("out", self.fan_out), ("l", self.depth))
        halves = {0.5: "^1/2", -0.5: "^-1/2", 1.0: ""}
        return " ".join(base + halves.get(p, f"^{p:g}") for base, p in named if p) or "1"


class Powers(NamedTuple):
    """How the initial standard deviation, the learning rate and the epsilon of a tensor scale."""

    std: Power
    rate: Power
    epsilon: Power


class Updates(Protocol):
    """The size of an optimizer's updates: ``unit`` times the gradient to the power ``degree``."""

    @property
    def degree(self) -> float: ...
    @property
    def unit(self) -> Power: ...


@dataclass(frozen=True)
class Rule:
    """A row of the rules above.

    Attributes:
        exponent: the exponent ``a``; None for any.
        scales_width, scales_depth: which sizes change initial weights and learning rates.
        boosts_inner: whether inner learning rates follow Eq. 8.
        regime: the regime that the rule is for.
    """

    exponent: float | None
    scales_width: bool = True
    scales_depth: bool = True
    boosts_inner: bool = False
    regime: Regime = "feature"

    @property
    def has_width_limit(self) -> bool:
        """Whether training has a limit of large width.

        It has one where initial weights do not make outputs grow, and updates move them as much at
        every width: entries of updates add up as the fan-in, initial ones as its root.
        """
        if not self.scales_width:
            return False
        for role in ROLES:
            summed = 0.0 if role in INPUT_LIKE else 1.0
            update = self.rate(role, _OF_ENTRIES)
            moves_alike = update.fan_in + summed == 0 and update.fan_out == 0
            start = self.std(role)
            if not moves_alike or start.fan_in + summed / 2 > 0 or start.fan_out > 0:
                return False
        return True

    @property
    def has_depth_limit(self) -> bool:
        """Whether training has a limit of large depth.

        It has one where branches shrink with depth, and inner learning rates do not outgrow them.
        """
        return self.scales_depth and self._a > 0 and not self.boosts_inner

    def std(self, role: Role) -> Power:
        """Return how the standard deviation of initial entries scales."""
        width = -0.5
        if role in INPUT_LIKE:
            width = 0.0
        elif role == "readout":
            width = -1.0
        return self._kept(Power(fan_in=width, depth=-self._a if role == "outer" else 0.0))

    def rate(self, role: Role, law: Updates) -> Power:
        """Return how the learning rate scales.

        It is the rate of updates with entries of order one, over the size of this optimizer's
        updates.
        """
        depth = 0.0
        if role in ("outer", "skip"):
            depth = -1.0
        elif role == "inner" and not self.boosts_inner:
            depth = self._a - 1
        of_entries = Power(fan_in=0.0 if role in INPUT_LIKE else -1.0, depth=depth)
        return self._kept(of_entries * (self.epsilon(role) ** law.degree * law.unit) ** -1)

    def epsilon(self, role: Role) -> Power:
        """Return how Adam's epsilon scales, which is as the entries of the gradient."""
        width = 0.0 if role == "readout" else -1.0
        return self._kept(Power(fan_out=width, depth=-self._a if role == "inner" else 0.0))

    def powers(
        self,
        role: Role,
        law: Updates,
        multiplier: Power,
        *,
        vector: bool = False,
        narrow: bool = False,
    ) -> Powers:
        """Return the powers of a tensor after a forward multiplier.

        Args:
            role: the role of the tensor.
            law: the size of the optimizer's updates.
            multiplier: how the forward multiplier ``s`` scales.
            vector: whether the fan-in of the tensor is 1 at every size.
            narrow: whether its fan-out keeps its size while its fan-in grows.
        """
        size = _Size(law.degree, law.unit)
        return _powers(self, role, size, multiplier, vector=vector, narrow=narrow)

    @property
    def _a(self) -> float:
        return self.exponent or 0.0

    def _kept(self, power: Power) -> Power:
        if not self.scales_width:
            return Power()
        return power if self.scales_depth else replace(power, depth=0.0)


class _Size(NamedTuple):
    """The size of an optimizer's updates, without the rest of its law."""

    degree: float
    unit: Power


# Updates whose entries are of order one at every size, as Adam's.
_OF_ENTRIES = _Size(0.0, Power())


# Every tensor of every training asks for them several times, and few differ.
@lru_cache(maxsize=1024)
def _powers(
    rule: Rule, role: Role, law: _Size, multiplier: Power, *, vector: bool, narrow: bool
) -> Powers:
    """Do what ``Rule.powers`` says."""
    s = multiplier if rule.scales_width else Power()
    std = rule.std(role) * s**-1
    rate = rule.rate(role, law) * s ** -(1 + law.degree)
    if narrow:
        std *= rule._kept(Power(fan_in=-0.5))
    if vector:
        std = std.of_vector()
        rate = rate.of_vector()
    return Powers(std, rate, rule.epsilon(role) * s)


RULES: dict[RuleName, Rule] = {
    "standard": Rule(exponent=None, scales_width=False, scales_depth=False),
    "ntk": Rule(exponent=None, scales_width=False, scales_depth=False, regime="kernel"),
    "mup": Rule(exponent=0.0, scales_depth=False),
    "depth-mup": Rule(exponent=0.5),
    "depth-mup-inner": Rule(exponent=0.5, boosts_inner=True),
    "complete-p": Rule(exponent=1.0),
}


def rule_named(name: str) -> Rule:
    """Return the rule called ``name``.

    Raises:
        ValueError: with the nearest name, when there is none.
    """
    return RULES[cast(RuleName, check_choice("rule", name, RULES))]


def check_limit(rule: str, depth: float) -> None:
    """Raise ValueError where training under a rule has no limit of large width.

    For an infinite depth, also where it has no limit of large depth.
    """
    chosen = rule_named(rule)
    if not chosen.has_width_limit:
        wide = " or ".join(repr(name) for name, other in RULES.items() if other.has_width_limit)
        raise InputError(
            f"rule={rule!r} has no limit of large width: updates do not move outputs as much at "
            f"every width. Choose {wide}."
        )
    if depth == math.inf and not chosen.has_depth_limit:
        deep = " or ".join(repr(name) for name, other in RULES.items() if other.has_depth_limit)
        raise InputError(
            f"rule={rule!r} has no limit of large depth. Choose {deep}, or give a finite depth."
        )
