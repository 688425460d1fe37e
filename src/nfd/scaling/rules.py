"""Learning-rate rules for the paper's networks, with ``eta_c`` the width- and depth-free rate.

In the feature-learning regime (section 4.2) every rate carries a factor ``n``; the kernel regime has none. With
the residual multiplier ``sqrt(T) L**-a`` the depth factors are

==================  ===  ========================  ===================
rule                a    U, V                      hidden: outer, inner
==================  ===  ========================  ===================
``mup``             0    1                         1, 1
``depth-mup``       1/2  1                         ``L**(2a-1)`` both
``depth-mup-inner`` 1/2  1                         ``L**(2a-1)``, ``L**a`` (Eq. 8)
``complete-p``      1    1                         ``L**(2a-1)`` both
==================  ===  ========================  ===================

``standard`` sets every factor to 1, the one ``n`` included; ``ntk`` is ``standard`` in the kernel regime.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

from nfd.core.errors import check_choice
from nfd.core.names import RuleName

MAX_ETA_C = 1e20  # rates must stay representable in float32 after the factors of width and depth

Role = Literal["input", "outer", "inner", "readout"]


@dataclass(frozen=True)
class Rule:
    """How a rule treats depth: the exponent ``a`` it is made for (None: any) and its hidden factors."""

    exponent: float | None
    scales_width: bool = True
    scales_depth: bool = True
    boosts_inner: bool = False

    def depth_factor(self, role: Role, depth: int) -> float:
        """The factor of ``L`` in the rate of a tensor with this role."""
        if role in ("input", "readout") or not self.scales_depth or self.exponent is None:
            return 1.0
        power = self.exponent if role == "inner" and self.boosts_inner else 2 * self.exponent - 1
        return math.pow(depth, power)


RULES: dict[RuleName, Rule] = {
    "standard": Rule(exponent=None, scales_width=False, scales_depth=False),
    "ntk": Rule(exponent=None, scales_width=False, scales_depth=False),
    "mup": Rule(exponent=0.0, scales_depth=False),
    "depth-mup": Rule(exponent=0.5),
    "depth-mup-inner": Rule(exponent=0.5, boosts_inner=True),
    "complete-p": Rule(exponent=1.0),
}


def rule_named(name: str) -> Rule:
    """The rule called ``name``; ValueError with the nearest name when there is none."""
    return RULES[cast(RuleName, check_choice("rule", name, RULES))]


def exponent_of(name: str, default: float = 0.5) -> float:
    """The branch exponent ``a`` a network needs for rule ``name`` (``default`` where any will do)."""
    exponent = rule_named(name).exponent
    return default if exponent is None else exponent
