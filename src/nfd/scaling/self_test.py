"""A plan tests itself: it is carried to three small sizes, and what its networks do is held against
its rule.

Of every kind of tensors, those of one name in all blocks, and of the network,
``nfd.scaling.one_pass`` measures a few quantities in the smallest model, in one that is wider and
in one that is deeper. ``nfd.scaling.self_judge`` says which powers of width and depth are promised.
This is blind to how a model is written: no name of a module and no graph decides what is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from nfd.core.checks import check_count, check_flag
from nfd.core.errors import InputError
from nfd.core.modes import gradients
from nfd.core.random import global_streams
from nfd.core.tables import rows_as_text, said
from nfd.core.words import quoted
from nfd.scaling.base import MakeModel, instance
from nfd.scaling.carried import Axis, Carrier
from nfd.scaling.model import in_any_block
from nfd.scaling.one_pass import FACTOR, SMALLEST, Bench, Pass, Place
from nfd.scaling.plan import Plan
from nfd.scaling.plans_itself import told_by
from nfd.scaling.rules import rule_named
from nfd.scaling.self_judge import LIMIT, Judge, Judged, Quantity

_SEEDS = 2
_MORE_SEEDS = 2  # at most, where two do not settle it
_SEVERAL_KINDS = 3


@dataclass(frozen=True)
class Reading:
    """How one quantity of a kind of tensors, or of the network, follows the size.

    Attributes:
        kind: name of the tensors, with ``*`` for their block; empty for the network.
        quantity: ``"update"``, ``"start"``, ``"added"``, ``"stream"``, ``"output"`` or
            ``"logits"``.
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
            f"{self.kind or 'the network'}: {_NAMES[self.quantity]} too {side} by "
            f"{self.axis}^{self.power:+.2f} +- {self.error:.2f}, x{self.factor:.3g} at {FACTOR} "
            f"times the {self.axis}"
        )


_NAMES: dict[Quantity, str] = {
    "update": "effect of its update",
    "start": "initial activations",
    "added": "what blocks add to the stream",
    "stream": "residual stream",
    "output": "outputs",
    "logits": "logits of attention",
}


@dataclass(frozen=True)
class Proposal:
    """Factors on the initial weights and the learning rate of a kind of tensors that make the rest
    scale.

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
    """The result of ``Plan.self_test``. Print it: the verdict, then what is off, where, by which
    power, what to do.

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
        return tuple(
            text
            for axis in self.axes
            for text in _causes([row for row in self.off if row.axis == axis])
        )

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
        return said(
            self.verdict, *(f"! {cause}" for cause in self.causes), *proposed, *self.notes, *table
        )


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
        return [
            f"{updates[0]}. It is off for this tensor only: its learning rate. "
            f"{_RATE.format(updates[0].kind)}"
        ]
    texts = list[str]()
    for row in starts:
        texts.append(f"{row}. {_START}")
    for row in others:
        if row.quantity != "start":
            texts.append(f"{row}. {_STREAM[row.quantity]}")
    spread = max((row.power for row in updates), default=0.0) - min(
        (row.power for row in updates), default=0.0
    )
    names = quoted([row.kind for row in updates], 4)
    if len(updates) > 1 and spread < LIMIT:
        power = sum(row.power for row in updates) / len(updates)
        texts.append(
            f"The effect of updates of {names} is off by {axis}^{power:+.2f} alike. {_ALIKE}"
        )
    elif len(updates) > 1 or (updates and texts):
        texts.append(f"The effect of updates of {names} is off. {_SEVERAL}")
    return texts


_RATE = "Look at its role in print(plan), and give another by roles={{{!r}: ...}}."
_START = (
    "Its initial weights, or a factor between its inputs and these activations: look at its role "
    "in print(plan), and at what the forward pass multiplies it by."
)
_ALIKE = (
    "Off for all by the same power: the initial weights of a tensor, or a factor, between these "
    "and the output. repair=True tries which."
)
_SEVERAL = (
    "Initial weights or a factor before or behind these may be wrong, or rates of several. "
    "repair=True tries which."
)
_STREAM = {
    "added": "Initial weights of what writes the stream, or a factor on the branches, do not "
    "follow the rule.",
    "stream": "What writes the stream, or reads the inputs, does not follow the rule.",
    "output": "The head, or what is behind it, grows: its role, or a factor on the outputs.",
    "logits": "They grow once queries fit keys: divide them by the size of a head in place of its "
    "root.",
}


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
        test = _Test(bench, seeds)
        rows = [_reading(axis, one) for axis in grown for one in test.along(axis)]
        rows += _logits(plan)
        result = SelfTest(
            tuple(rows), plan.rule, carrier.size, tuple(grown), notes=tuple(_notes(plan, grown))
        )
        if repair and not result.ok:
            from nfd.scaling.self_repair import proposals

            result = replace(result, proposals=tuple(proposals(bench, result.off, seeds)))
    return result


def _reading(axis: Axis, judged: Judged) -> Reading:
    return Reading(
        judged.kind, judged.quantity, axis, judged.deviation, judged.power.error, judged.off
    )


def _logits(plan: Plan) -> list[Reading]:
    """What the plan knows of logits of attention, which grow only once queries fit keys, and so in
    no first pass.
    """
    readings = dict[str, Reading]()
    for name, larger in plan.logits.items():
        kind = in_any_block(name, plan.blocks)
        if plan.width != 1 and larger > 0:
            power = math.log(larger) / math.log(plan.width)
            readings[kind] = Reading(kind, "logits", "width", power, 0.0, abs(power) > LIMIT)
    return [*readings.values()]


def _carrier(plan: Plan, make_model: MakeModel, base: tuple[int, int] | None) -> Carrier:
    """The plan with its constructor; ValueError where there is nothing that it promises."""
    if not rule_named(plan.rule).scales_width:
        raise InputError(
            f"rule={plan.rule!r} promises nothing of other sizes, so that there is nothing to test."
        )
    size = plan.base if base is None else base
    if size is None:
        raise InputError(
            "the plan does not know the size of its base. Pass base=(width, depth), the arguments "
            "of make_model."
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
    """The axes along which the plan is of another size than its base, and its rule promises
    something.
    """
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
        f"Not tested with {axis}: the plan is of the {axis} of its base. Plan a model of another "
        f"{axis}."
        for axis in possible
        if axis not in grown
    ]


@dataclass
class _Test:
    """Measures the networks that are needed, each once."""

    bench: Bench
    seeds: int
    passes: dict[tuple[Place, int], Pass] = field(default_factory=dict)

    def along(self, axis: Axis) -> list[Judged]:
        """What is read along one axis, adding one seed after another until they settle it."""
        judged = self._judged(axis, self.seeds)
        for more in range(1, _MORE_SEEDS + 1):
            # What is within the limit gets one look more, and what is beyond it two.
            is_beyond = any(one.off or (one.is_open and one.is_beyond) for one in judged)
            if _is_settled(judged) or (more > 1 and not is_beyond):
                break
            judged = self._judged(axis, self.seeds + more)
        return judged

    def _judged(self, axis: Axis, seeds: int) -> list[Judged]:
        larger: Place = (axis, FACTOR)
        pairs = [
            (self._measured(SMALLEST, seed), self._measured(larger, seed)) for seed in range(seeds)
        ]
        return Judge(self.bench.plans[larger], axis, pairs).judged()

    def _measured(self, place: Place, seed: int) -> Pass:
        if (place, seed) not in self.passes:
            self.passes[place, seed] = self.bench.measure(place, seed)
        return self.passes[place, seed]


def _is_settled(judged: Sequence[Judged]) -> bool:
    """Whether more seeds would hardly change what is off."""
    off = [one for one in judged if one.off]
    if not off:
        return not any(one.is_open for one in judged)
    # Two seeds may agree by luck on one kind, such as a head with one output, but hardly on
    # several.
    if len({one.kind for one in off}) >= _SEVERAL_KINDS:
        return True
    usual = median([one.power.error for one in judged if one.quantity == "update"] or [0.0])
    return all(one.power.is_far_from(one.promised, usual) for one in off)
