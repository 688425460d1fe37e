"""A plan tests itself: it is carried to three small sizes, and what its networks do is held against its rule.

Of every kind of tensors, those of one name in all blocks, and of the network, the powers of width and depth in the
quantities of ``nfd.scaling.one_pass`` are to be

========  ==========================================================================================================
update    0. Of what is the same at every size, such as a router, ``move`` is to be 0
start     0 where the result grows with width, -1/2 where it does not: sums that training aligns start as small
added     -1 of depth under ``complete-p``, -1/2 under ``depth-mup``; 0 of width
stream    0
output    at most 0, beside something else that is off
========  ==========================================================================================================

This is blind to how a model is written: no name of a module and no graph decides what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import torch

from nfd.core.checks import check_count, check_flag
from nfd.core.errors import InputError
from nfd.core.modes import gradients
from nfd.core.random import global_streams
from nfd.core.tables import rows_as_text, said
from nfd.core.words import quoted
from nfd.scaling.base import MakeModel, instance
from nfd.scaling.carried import Axis, Carrier
from nfd.scaling.model import in_any_block
from nfd.scaling.one_pass import ELEMENTWISE, FACTOR, LOOKUPS, PRODUCTS, SMALLEST, Bench, Pass
from nfd.scaling.plan import Plan
from nfd.scaling.planning import told_by
from nfd.scaling.rules import rule_named

Quantity = Literal["update", "start", "added", "stream", "output"]

LIMIT = 0.33  # on powers; wrong ones are 1/2 or more
FIT_OF_SGD = 0.45
LIMIT_OF_SGD = 0.6  # on the effect of its updates, which has the square of a gradient, and of the chance in it
_ALIGNED = 0.4  # by no more than this random sums are still off after updates
_ERRORS = 3.0  # standard errors, of two to four seeds
_UPDATES, _LOOKS = 6, 3  # updates that align what is random, and over how many of the last powers are averaged
_RANDOM = -0.5  # the power of a sum of random terms, which aligns once trained
_SEEDS = 2
_SEVERAL_KINDS = 3
_MORE_SEEDS = 2  # where two do not settle it
_NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm")
_KNOWN = (*PRODUCTS, *_NORMS, *ELEMENTWISE, *LOOKUPS)


@dataclass(frozen=True)
class Reading:
    """How one quantity of a kind of tensors, or of the network, follows the size.

    Attributes:
        kind: name of the tensors, with ``*`` for their block; empty for the network.
        quantity: ``"update"``, ``"start"``, ``"added"``, ``"stream"`` or ``"output"``.
        axis: ``"width"`` or ``"depth"``.
        power: by which power of the axis it is too large, or if negative too small.
        error: the standard error of ``power``, over seeds.
        off: whether that is more than chance and small sizes explain.
    """

    kind: str
    quantity: Quantity
    axis: Axis
    power: float
    error: float
    off: bool

    @property
    def factor(self) -> float:
        """By how much it is off in a model 4 times as large."""
        return math.pow(FACTOR, self.power)

    def __str__(self) -> str:
        side = "large" if self.power > 0 else "small"
        return (
            f"{self.kind or 'the network'}: {_NAMES[self.quantity]} too {side} by {self.axis}^{self.power:+.2f} "
            f"+- {self.error:.2f}, x{self.factor:.3g} at {FACTOR} times the {self.axis}"
        )


_NAMES: dict[Quantity, str] = {
    "update": "effect of its update",
    "start": "initial activations",
    "added": "what blocks add to the stream",
    "stream": "residual stream",
    "output": "outputs",
}


@dataclass(frozen=True)
class Proposal:
    """Factors on the initial weights and the learning rate of a kind of tensors that make the rest scale.

    Attributes:
        kind, axis: as in ``Reading``.
        start, rate: powers of the axis, of the ratio of sizes, by which to multiply both.
        roles: role that has these powers, to pass as ``roles=``; empty where none has.
    """

    kind: str
    axis: Axis
    start: float
    rate: float
    roles: str = ""

    def __str__(self) -> str:
        parts = [f"its {what} by {self.axis}^{power:+g}" for what, power in self._powers if power]
        role = f"; this is roles={{{self.kind!r}: {self.roles!r}}}" if self.roles else ""
        return f"{self.kind}: multiply {' and '.join(parts)}{role}"

    @property
    def _powers(self) -> tuple[tuple[str, float], tuple[str, float]]:
        return ("initial weights", self.start), ("learning rate", self.rate)


@dataclass(frozen=True)
class SelfTest:
    """The result of ``Plan.self_test``. Print it: the verdict, then what is off, where, by which power, what to do.

    Attributes:
        rows: a ``Reading`` for every quantity of every kind of tensors along every axis.
        rule: of the plan. base: width and depth of the smallest network.
        axes: along which the plan grows, and was tested.
        proposals: with ``repair=True`` what makes the rest scale.
        notes: in words, what was not tested.

    Example::

        test = plan.self_test(make_model, x)
        assert test.ok, test
    """

    rows: tuple[Reading, ...]
    rule: str
    base: tuple[int, int]
    axes: tuple[Axis, ...]
    proposals: tuple[Proposal, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def off(self) -> tuple[Reading, ...]:
        """The readings that are off, the furthest first."""
        return tuple(sorted((row for row in self.rows if row.off), key=lambda row: -abs(row.power)))

    @property
    def ok(self) -> bool:
        """Whether nothing is off."""
        return not self.off

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        if not self.axes:
            return "Nothing was tested: the plan is of the size of its base."
        sizes = " and ".join(self.axes)
        if self.ok:
            return f"The plan scales with {sizes} as rule {self.rule!r} promises."
        kinds = len({row.kind for row in self.off if row.kind})
        where = f"{kinds} kinds of tensors are" if kinds > 1 else "one kind of tensors is"
        where = where if kinds else "the network is"
        axes = " and ".join(dict.fromkeys(row.axis for row in self.off))
        return f"The plan does not scale as rule {self.rule!r} promises: {where} off with {axes}."

    @property
    def causes(self) -> tuple[str, ...]:
        """What is off and what to do, in sentences."""
        return tuple(text for axis in self.axes for text in _causes([row for row in self.off if row.axis == axis]))

    def __str__(self) -> str:
        rows = [
            {
                "tensor": row.kind or "the network",
                "quantity": row.quantity,
                "axis": row.axis,
                "power": f"{row.power:+.2f} +- {row.error:.2f}",
                f"at {FACTOR} times": f"x{row.factor:.3g}",
            }
            for row in self.off
        ]
        proposed = [f"Proposal: {proposal}." for proposal in self.proposals]
        table = [rows_as_text(rows)] if rows else []
        return said(self.verdict, *(f"! {cause}" for cause in self.causes), *proposed, *self.notes, *table)


def _causes(off: Sequence[Reading]) -> list[str]:
    """What readings along one axis mean together."""
    if not off:
        return []
    axis = off[0].axis
    updates = [row for row in off if row.quantity == "update"]
    others = [row for row in off if row.quantity != "update"]
    # A bias has the activations of its matrix: one sentence for both.
    alike = [row for row in others if row.quantity == "start"]
    starts = [row for row in alike if not row.kind.endswith("bias")] or alike
    if len(updates) == len(off) == 1:
        return [f"{updates[0]}. It is off for this tensor only: its learning rate. {_RATE.format(updates[0].kind)}"]
    texts = list[str]()
    for row in starts:
        texts.append(f"{row}. {_START}")
    for row in others:
        if row.quantity != "start":
            texts.append(f"{row}. {_STREAM[row.quantity]}")
    spread = max((row.power for row in updates), default=0.0) - min((row.power for row in updates), default=0.0)
    names = quoted([row.kind for row in updates], 4)
    if len(updates) > 1 and spread < LIMIT:
        power = sum(row.power for row in updates) / len(updates)
        texts.append(f"The effect of updates of {names} is off by {axis}^{power:+.2f} alike. {_ALIKE}")
    elif len(updates) > 1 or (updates and texts):
        texts.append(f"The effect of updates of {names} is off. {_SEVERAL}")
    return texts


_RATE = "Look at its role in print(plan), and give another by roles={{{!r}: ...}}."
_START = (
    "Its initial weights, or a factor between its inputs and these activations: look at its role in print(plan), and "
    "at what the forward pass multiplies it by."
)
_ALIKE = (
    "Off for all by the same power: the initial weights of a tensor, or a factor, between these and the output. "
    "repair=True tries which."
)
_SEVERAL = (
    "Initial weights or a factor before or behind these may be wrong, or rates of several. repair=True tries which."
)
_STREAM = {
    "added": "Initial weights of what writes the stream, or a factor on the branches, do not follow the rule.",
    "stream": "What writes the stream, or reads the inputs, does not follow the rule.",
    "output": "The head, or what is behind it, grows: its role, or a factor on the outputs.",
}


# ---- judging


Pairs = list[tuple[Pass, Pass]]  # of every seed, in the small and in the large network


@dataclass(frozen=True)
class _Power:
    value: float
    error: float

    limit: float = LIMIT

    def exceeds(self, promised: float) -> bool:
        """Whether it is off by more than the limit and chance."""
        return abs(self.value - promised) > max(self.limit, _ERRORS * self.error)

    def is_open(self, promised: float) -> bool:
        """Whether more seeds could change the answer."""
        distance = abs(self.value - promised)
        return distance > self.limit / 2 and _ERRORS * self.error > abs(distance - self.limit)


def _power(pairs: Pairs, quantity: str, kind: str, limit: float = LIMIT) -> _Power | None:
    """The power of size in a quantity; None where it is zero or not seen."""
    logs = list[float]()
    for small, large in pairs:
        a, b = (seen.values.get((quantity, kind), 0.0) for seen in (small, large))
        if a <= 0 or b <= 0 or not math.isfinite(a * b):
            return None
        logs.append(math.log(b / a) / math.log(FACTOR))
    powers = torch.tensor(logs, dtype=torch.float64)
    return _Power(float(powers.mean()), float(powers.std()) / math.sqrt(len(logs)), limit)


@dataclass(frozen=True)
class Judge:
    """Judges the networks along one axis, with initial weights (``first``) and after each of a few updates."""

    plan: Plan
    axis: Axis
    first: Pairs
    last: Sequence[Pairs] | None = None

    def readings(self) -> list[tuple[Reading, _Power, float]]:
        """Of every kind and quantity, with the power as it was measured and the one that is promised."""
        small, _ = self.first[0]
        found = list[tuple[Reading, _Power, float]]()
        for quantity, kind in small.values:
            judged = self._judged(quantity, kind)
            if judged is not None:
                power, promised, off = judged
                reading = Reading(kind, quantity, self.axis, power.value - promised, power.error, off)  # type: ignore[arg-type]
                found.append((reading, power, promised))
        if any(reading.off for reading, _, _ in found if reading.quantity != "output"):
            return found
        # Outputs are few, and so are noisy. What makes them grow shows in something else, too.
        return [(replace(reading, off=False), power, promised) for reading, power, promised in found]

    def _judged(self, quantity: str, kind: str) -> tuple[_Power, float, bool] | None:
        if quantity == "update":
            return self._update(kind)
        if quantity == "start":
            return self._start(kind)
        if quantity in ("added", "stream", "output"):
            return self._network(quantity)
        return None

    def _network(self, quantity: str) -> tuple[_Power, float, bool] | None:
        power = _power(self.first, quantity, "")
        if power is None:
            return None
        exponent = rule_named(self.plan.rule).exponent or 0.0
        promised = -exponent if quantity == "added" and self.axis == "depth" else 0.0
        if quantity == "output" or self.axis == "width":
            promised = min(power.value, 0.0)  # sums that training aligns start as small
        return power, promised, power.exceeds(promised)

    def _grows(self, kind: str) -> bool:
        """Whether the first result of a kind has more entries in the larger network, as far as that is seen."""
        small, large = self.first[0]
        if self.axis == "depth" or kind not in small.results or kind not in large.results:
            return True
        return small.results[kind] != large.results[kind]

    def _is_same(self, kind: str) -> bool:
        """Whether a tensor has one shape at all widths, and its first result has not: a gain of all heads, a scalar."""
        small, large = self.first[0]
        is_seen = kind in small.shapes and kind in large.shapes
        return self.axis == "width" and is_seen and small.shapes[kind] == large.shapes[kind] and self._grows(kind)

    def _update(self, kind: str) -> tuple[_Power, float, bool] | None:
        is_same = self._is_same(kind)
        fit = self._fit(kind, "coherent fit" if is_same else "fit")
        if fit is not None and fit[2]:
            return fit
        limit = LIMIT_OF_SGD if self.plan.law_for(self.names[kind]).is_linear else LIMIT
        quantity = "update"
        if is_same:
            quantity = "coherent"
        elif not self._grows(kind) and self._output != self.first[0][0].results.get(kind, ())[1:]:
            quantity = "move" if _power(self.first, "move", kind) else "update"
        power = _power(self.first, quantity, kind, limit)
        if power is None:
            return None
        off = power.exceeds(0.0)
        if off and quantity == "update":
            off = not self.is_explained(power, kind) and self._off_in_all(power, kind)
        return power, 0.0, off

    @property
    def _output(self) -> tuple[int, ...]:
        return self.first[0][0].output[1:]

    def _fit(self, kind: str, quantity: str) -> tuple[_Power, float, bool] | None:
        """Whether the rate of a tensor fits its initial weights, whatever stands before or behind it."""
        start = self._start(kind)
        law = self.plan.law_for(self.names[kind])
        power = _power(self.first, quantity, kind, FIT_OF_SGD if law.is_linear else LIMIT)
        entry = self.plan.entries[self.names[kind]]
        is_judged = self.first[0][0].operations.get(kind) in _KNOWN
        if power is None or not is_judged or entry.start.kept or (start is not None and start[2]):
            return None
        promised = 0.0
        if self.axis == "depth":
            rule = rule_named(self.plan.rule)
            promised = rule.rate(entry.role, law).depth - (1 + law.degree) * rule.std(entry.role).depth
        elif not self._grows(kind) and not self._is_fixed(kind) and not entry.is_vector:
            promised = -_RANDOM * (1 + law.degree)
        return power, promised, power.exceeds(promised)

    def _is_fixed(self, kind: str) -> bool:
        """Whether a tensor has one shape at all widths."""
        small, large = self.first[0]
        return small.shapes.get(kind) == large.shapes.get(kind)

    def is_explained(self, power: _Power, kind: str) -> bool:
        """Whether it is the fall of a sum of random terms, which is not there once training aligns them."""
        if not self.could_be_random(power, kind):
            return False
        later = [found.value for pairs in self.last or () if (found := _power(pairs, "update", kind))]
        return bool(later) and sum(later) / len(later) > -_ALIGNED * power.limit / LIMIT

    def could_be_random(self, power: _Power, kind: str) -> bool:
        """Whether a power is that of a sum of random terms, or of two."""
        if not kind:
            return False
        lowest = 2 * _RANDOM * (1 + self.plan.law_for(self.names[kind]).degree)
        return lowest < power.value < 0

    @cached_property
    def names(self) -> dict[str, str]:
        """A tensor of every kind."""
        return {in_any_block(name, self.plan.blocks): name for name in self.plan.entries}

    def _off_in_all(self, power: _Power, kind: str) -> bool:
        """Whether a kind that stands in some blocks only is off for its share of the blocks, too."""
        rest = _power(self.first, "update in all", kind) if self.axis == "depth" else None
        return rest is None or (rest.value * power.value > 0 and rest.exceeds(0.0))

    def _start(self, kind: str) -> tuple[_Power, float, bool] | None:
        small, _ = self.first[0]
        power, response = (_power(self.first, quantity, kind) for quantity in ("gain", "response"))
        operation = small.operations.get(kind)
        if self.axis == "depth" or power is None or response is None or operation in ELEMENTWISE:
            return None
        entry = self.plan.entries[self.names[kind]]
        promised = 0.0
        is_output = small.results[kind][1:] == self._output
        if not self._grows(kind):
            is_drawn = entry.start.constant is None and not entry.start.kept
            if self._is_fixed(kind) or not is_drawn or operation not in PRODUCTS:
                return None
            if not is_output:
                return (power, _RANDOM, power.exceeds(_RANDOM)) if entry.own_factor == 1 else None
            promised = _RANDOM
        moved = response.value - promised
        off = power.exceeds(promised) and response.exceeds(promised) and (power.value - promised) * moved > 0
        return power, promised, off


# ---- asking


@gradients()
def self_test(
    plan: Plan,
    make_model: MakeModel,
    sample: Any,
    *,
    base: tuple[int, int] | None = None,
    repair: bool = False,
    seeds: int = _SEEDS,
) -> SelfTest:
    """Do what ``Plan.self_test`` says."""
    carrier = _carrier(plan, make_model, base)
    seeds = check_count("seeds", seeds, minimum=2)
    check_flag("repair", repair)
    grown = _grown(plan, carrier)
    with global_streams():
        bench = Bench(carrier, sample)
        test = _Test(bench, plan.rule, seeds)
        rows = [row for axis in grown for row in test.along(axis)]
        result = SelfTest(tuple(rows), plan.rule, carrier.size, tuple(grown), notes=tuple(_notes(plan, grown)))
        if repair and not result.ok:
            from nfd.scaling.self_repair import proposals

            result = replace(result, proposals=tuple(proposals(bench, result.off, seeds)))
    return result


def _carrier(plan: Plan, make_model: MakeModel, base: tuple[int, int] | None) -> Carrier:
    """The plan with its constructor; ValueError where there is nothing that it promises."""
    if not rule_named(plan.rule).scales_width:
        raise InputError(f"rule={plan.rule!r} promises nothing of other sizes, so that there is nothing to test.")
    size = plan.base if base is None else base
    if size is None:
        raise InputError(
            "the plan does not know the size of its base. Pass base=(width, depth), the arguments of make_model."
        )
    width, depth = (check_count("base", int(number)) for number in size)
    carrier = Carrier(plan, make_model, (width, depth))
    if not tests_itself(make_model, (width, depth)):
        raise InputError("a network of the paper plans itself, and needs no test.")
    return carrier


def tests_itself(make_model: MakeModel, size: tuple[int, int]) -> bool:
    """Whether a plan reads such models; networks of the paper know their own."""
    return told_by(instance(make_model, *size)) is None


def _grown(plan: Plan, carrier: Carrier) -> list[Axis]:
    """The axes along which the plan is of another size than its base, and its rule promises something."""
    axes = list[Axis]()
    if plan.width != 1:
        axes.append("width")
    if not rule_named(plan.rule).scales_depth:
        return axes
    is_deeper = plan.depth != 1 or any(entry.ratios.depth != 1 for entry in plan.entries.values())
    if is_deeper or carrier.is_shared:
        axes.append("depth")
    return axes


def _notes(plan: Plan, grown: Sequence[Axis]) -> list[str]:
    """What was not tested, and why."""
    possible: list[Axis] = ["width", "depth"] if rule_named(plan.rule).scales_depth else ["width"]
    return [
        f"Not tested with {axis}: the plan is of the {axis} of its base. Plan a model of another {axis}."
        for axis in possible
        if axis not in grown
    ]


@dataclass
class _Test:
    """Measures the networks that are needed, each once."""

    bench: Bench
    rule: str
    seeds: int
    passes: dict[tuple[Any, int, int], list[Pass]] = field(default_factory=dict)

    def along(self, axis: Axis) -> list[Reading]:
        """The readings along one axis, with more seeds and after updates where the first look does not settle them."""
        seeds = range(self.seeds)
        judge = self._judge(axis, seeds, 0)
        judged = judge.readings()
        off = [(reading, power) for reading, power, _ in judged if reading.off]
        surely = {reading.kind for reading, power in off if not judge.could_be_random(power, reading.kind)}
        # Two seeds may agree by luck on one kind, such as a head with one output, but hardly on several.
        is_open = not surely and any(power.is_open(promised) for _, power, promised in judged)
        if is_open or (off and len(surely) < _SEVERAL_KINDS):
            seeds = range(self.seeds + _MORE_SEEDS)
            judge = self._judge(axis, seeds, 0)
            judged = judge.readings()
        off = [(reading, power) for reading, power, _ in judged if reading.off]
        if off and all(
            reading.quantity == "update" and judge.could_be_random(power, reading.kind) for reading, power in off
        ):
            aligned = self._judge(axis, range(self.seeds), _UPDATES)
            judged = replace(judge, last=aligned.last).readings()
        return [reading for reading, _, _ in judged]

    def _judge(self, axis: Axis, seeds: range, updates: int) -> Judge:
        pairs = [
            (self._measured(SMALLEST, seed, updates), self._measured((axis, FACTOR), seed, updates)) for seed in seeds
        ]
        looks = [[(small[k], large[k]) for small, large in pairs] for k in range(updates + 1)]
        return Judge(self.bench.plans[axis, FACTOR], axis, looks[0], looks[-_LOOKS:] if updates else None)

    def _measured(self, place: Any, seed: int, updates: int) -> list[Pass]:
        key = (place, seed, updates)
        if key not in self.passes:
            self.passes[key] = self.bench.measure(place, seed, updates)
        return self.passes[key]
