"""The result of a self-test: its readings, and in words what they mean and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.tables import Row
from nfd.core.words import listed, number, plural, quoted
from nfd.report.shown import Shown
from nfd.scaling.carried import Axis
from nfd.scaling.one_pass import FACTOR
from nfd.scaling.self_judge import LIMIT, Quantity

if TYPE_CHECKING:
    from nfd.report.page import Section


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
        return (
            f"{self.kind or 'the network'}: {_NAMES[self.quantity]} {_VERBS[self.quantity]} "
            f"{self.too_large} at {FACTOR} times the {self.axis}, as {self.axis}^{self.power:.2g}"
        )

    @property
    def too_large(self) -> str:
        """How far it is off in a model 4 times as large: ``2 times too large``."""
        side = "large" if self.power > 0 else "small"
        return f"{number(max(self.factor, 1 / self.factor))} times too {side}"


_NAMES: dict[Quantity, str] = {
    "update": "effect of its update",
    "start": "initial activations",
    "added": "what blocks add to the stream",
    "stream": "residual stream",
    "output": "outputs",
    "logits": "logits of attention",
}


_VERBS: dict[Quantity, str] = {
    "update": "is",
    "start": "are",
    "added": "is",
    "stream": "is",
    "output": "are",
    "logits": "are",
}


@dataclass(frozen=True)
class Proposal:
    """Factors on initial weights and learning rate of a kind of tensors that mend what is off.

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


@dataclass(frozen=True, repr=False)
class SelfTest(Shown):
    """The result of ``Plan.self_test``.

    Print it: the answer, what is off, where, by how much, and what to do. ``to_pandas()`` has the
    columns of ``table``.

    Attributes:
        rows: a ``Reading`` for every quantity of every kind of tensors along every axis.
        rule: of the plan. base: width and depth of the smallest network.
        axes: along which the plan grows, and was tested.
        proposals: with ``repair=True`` what makes the rest scale.
        notes: in words, what was not tested.

    Example::

        test = plan.self_test(make_model, x)
        assert test.ok, str(test)
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

    @property
    def table(self) -> list[Row]:
        """A dict for every reading, those that are off first.

        Its columns are ``tensor`` (empty for the network), ``quantity``, ``axis``, ``power`` (of
        the axis, by which it is too large), ``stderr`` of it, ``factor`` at 4 times the size, and
        whether it is ``off``.
        """
        rows = []
        for reading in [*self.off, *(row for row in self.rows if not row.off)]:
            rows.append(
                {
                    "tensor": reading.kind,
                    "quantity": reading.quantity,
                    "axis": reading.axis,
                    "power": reading.power,
                    "stderr": reading.error,
                    "factor": reading.factor,
                    "off": reading.off,
                }
            )
        return rows

    @property
    def answer(self) -> Answer:
        """State, decision, evidence, and what to do."""
        width, depth = self.base
        about = f"self-test of the plan {self.rule} · from width {width}, depth {depth}"
        details = [*self.causes, *(f"Proposal: {one}." for one in self.proposals), *self.notes]
        if not self.axes:
            next_step = Next("Plan a larger network", "nfd.plan(make_model(128, 8), ...)")
            title = self.verdict.rstrip(".")
            return Answer("open", NOT_DECIDED, title, next=next_step, about=about, details=details)
        sizes = " and ".join(self.axes)
        if self.ok:
            because = (
                f"{plural(len(self.rows), 'quantity', 'quantities')} of its tensors keep their "
                f"size in a network {FACTOR} times as large."
            )
            title = f"The plan scales with {sizes} as the rule {self.rule} promises"
            return Answer("good", "Scales", title, because, about=about, details=details)
        return Answer(
            "bad",
            "Does not scale",
            f"The plan does not scale with {self._axes_off}: {self._off_in_words}",
            self._because,
            next=self._next,
            about=about,
            table=[_cells(row) for row in self.off],
            details=details,
        )

    @property
    def _because(self) -> str:
        """The first cause."""
        return self.causes[0] if self.causes else f"{self.off[0]}."

    @property
    def _next(self) -> Next:
        """The proposed role, or the call that finds one."""
        roles = {one.kind: one.roles for one in self.proposals if one.roles}
        if roles:
            return Next("Plan with", f"nfd.plan(..., roles={roles!r})")
        if self.proposals:
            return Next("Proposed", "\n".join(str(one) for one in self.proposals))
        return Next("Find what mends it", "plan.self_test(make_model, x, repair=True)")

    @property
    def _axes_off(self) -> str:
        return listed(dict.fromkeys(row.axis for row in self.off))

    @property
    def _off_in_words(self) -> str:
        """How many kinds of tensors are off, or the network."""
        kinds = {row.kind for row in self.off if row.kind}
        if not kinds:
            return "the network is off"
        verb = "is" if len(kinds) == 1 else "are"
        return f"{plural(len(kinds), 'kind of tensors', 'kinds of tensors')} {verb} off"

    def first_sections(self) -> list[Section]:
        """What is off."""
        from nfd.report.page import Section

        if self.ok:
            return []
        return [Section("What is off", [], table=[_cells(row) for row in self.off], cards=True)]


def _cells(row: Reading) -> Row:
    """What is off, in the cells of a table."""
    return {
        "tensor": row.kind or "the network",
        "quantity": _NAMES[row.quantity],
        f"at {FACTOR} times the size": row.too_large,
        "follows": f"{row.axis}^{row.power:.2g}",
    }


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
            f"The effect of updates of {names} is off by {axis}^{power:.2g} alike. {_ALIKE}"
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
    "Initial weights or a factor before or after these may be wrong, or rates of several. "
    "repair=True tries which."
)
_STREAM = {
    "added": "Initial weights of what writes the stream, or a factor on the branches, do not "
    "follow the rule.",
    "stream": "What writes the stream, or reads the inputs, does not follow the rule.",
    "output": "The head, or what comes after it, grows: its role, or a factor on the outputs.",
    "logits": "They grow once queries fit keys: divide them by the size of a head in place of its "
    "root.",
}
