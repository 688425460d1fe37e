"""The published tables of muP and CompleteP for AdamW, written down again without the library, and
exhibits of the zoo.

A kind says where a tensor stands and which of its sides grow: ``"inner n->n"``, ``"readout n->1"``,
``"input 1->n"``. Vectors (biases, gains, embeddings) have fan-in 1: ``"inner 1->n"``. With m the
ratio of widths and l of depths:

=========  ===========================================  =======================================
place      Tensor Programs V, table 8 (mup)             CompleteP, table 1
=========  ===========================================  =======================================
input      std 1, rate 1                                the same
hidden     std in^-1/2, rate 1/in: a matrix outside     the same
           of residual branches
inner      std in^-1/2, rate 1/in                       rate times l^(a-1), a = 1
outer      the same: it writes the residual stream      branch times l^-a, rate times l^(a-1)
readout    std 1/in, rate 1/in: outputs that do not     the same; in blocks rates of inner
           grow
=========  ===========================================  =======================================

Source: Yang et al., Tensor Programs V; Dey et al., CompleteP.

The multiplier l^-a of a branch is folded into what writes the stream: a weight behind a factor s
trains under Adam as one with start and rate times s and no factor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import nn

Rule = Literal["mup", "complete-p"]


class Factors(NamedTuple):
    """Of a tensor's start and of its rate under AdamW, over those of the base."""

    start: float
    rate: float


def published(kind: str, rule: Rule, m: float, l: float) -> Factors:  # noqa: E741
    """What the tables say of a tensor of this kind."""
    found = re.fullmatch(r"(input|hidden|inner|outer|readout) ([n1])->([n1])", kind)
    assert found, kind
    place = found[1]
    fan_in = m if found[2] == "n" else 1.0
    a, depth = (1.0, l) if rule == "complete-p" else (0.0, 1.0)
    if place == "input":
        return Factors(1.0, 1.0)
    if place == "readout":
        return Factors(1 / fan_in, 1 / fan_in)
    branch = depth**-a if place == "outer" else 1.0
    block = depth ** (a - 1) if place in ("inner", "outer") else 1.0
    # table 8: from infinite to finite is output
    start = 1 / fan_in if found[3] == "1" else fan_in**-0.5
    return Factors(start * branch, block * branch / fan_in)


@dataclass(frozen=True)
class Exhibit:
    """A model of the zoo.

    Attributes:
        name: as people call it. field: language, vision, speech, diffusion, ... source: the package
            it comes from.
        make: ``make_model(width, depth)``.
        batch: from a seed to one batch, as ``nfd.Task`` takes it.
        kinds: pattern of a tensor's name (``*`` for one part, a first or last ``**`` for several)
            to its kind; the first match counts.
        own: pattern to the power of m of a factor that the model's own forward pass has on a
            tensor, as Gemma's root of the width on embeddings: start and rate are divided by it.
        multipliers: pattern of a module to ``"1/m"``, ``"m^-1/2"`` or ``"1/l"``, the factor that
            the plan puts behind it.
        tied: patterns of gains and biases of the norm before a tied head, which take the head's
            1/m.
        base: width and depth of the smallest network; widths double.
        loss, rules, options: of the task, those that a plan takes, further arguments of
            ``nfd.plan``.
        read: patterns of matrices that the model reads without calling their module, so that they
            have to be stored.
        note: what is said of it on the page.
    """

    name: str
    field: str
    source: str
    make: Callable[[int, int], nn.Module]
    batch: Callable[[int], Any]
    kinds: Mapping[str, str]
    own: Mapping[str, float] = field(default_factory=dict)
    multipliers: Mapping[str, str] = field(default_factory=dict)
    tied: tuple[str, ...] = ()
    base: tuple[int, int] = (32, 2)
    loss: Any = "cross-entropy"
    rules: tuple[Rule, ...] = ("mup", "complete-p")
    options: Mapping[str, Any] = field(default_factory=dict)
    read: tuple[str, ...] = ()
    note: str = ""
