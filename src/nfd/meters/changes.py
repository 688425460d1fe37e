"""What to change, so that a network scales: a row for each kind of tensors and each quantity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nfd.core.names import AXES, Axis
from nfd.core.words import number
from nfd.meters.ratios import TIMES, arrow, axes_of, divided, exact
from nfd.meters.suspects import Kinds, Quantity, Suspect

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

# What the tensors of a role do, in the order of a network's table.
ROLE_NAMES = {
    "outer": "Weights that write to the residual stream",
    "inner": "Weights that read the residual stream",
    "hidden": "Weights in between",
    "skip": "Factors of the residual stream",
    "input": "Inputs",
    "embedding": "Embeddings",
    "tied": "Embeddings that are the readout too",
    "vector": "Biases and gains",
    "readout": "Readout",
    "": "Other",
}
# What is to be had instead, in titles.
NEEDS: dict[Quantity, str] = {
    "learning rate": "another learning rate",
    "initial std": "another initial scale",
    "initial value": "another initial scale",
    "weight decay": "another weight decay",
    "epsilon": "a lower epsilon of Adam",
    "forward factor": "another factor in the forward pass",
    "attention logits": "attention by 1/d",
    "update": "updates of another size",
    "rounding": "weights of 32 bits",
}
# What no plan sets, and what to do about it in the model. A plan sets initial weights and the
# optimizer; it leaves the forward pass and the type of numbers as they are.
EDITS: dict[Quantity, str] = {
    "attention logits": (
        "scale the logits by d₀**0.5 / d in place of d**-0.5 (d: size of a head, d₀: that of "
        "the base), or let the number of heads grow with width"
    ),
    "rounding": "keep its weights in 32 bits",
}
# Values that nearly agree are not worth a change.
_LEAST_CHANGE = 0.05
# What plans give every tensor
_PLANNED: tuple[Quantity, ...] = ("learning rate", "initial std")


@dataclass(frozen=True)
class Change:
    """What is to change of one kind of tensors.

    Attributes:
        tensor: its name, with ``*`` for every block. role: as in ``nfd.scaling.rules``.
        quantity: such as ``"learning rate"``.
        now, sound: its value in the largest network, and what it should be there.
        ratios: by axis, the factor by which it is too large over the sizes of this axis, and by
            which factor the axis grows; empty where it does not follow one.
        since: by axis, the size from which on it deviates.
    """

    tensor: str
    role: str
    quantity: Quantity
    now: float
    sound: float
    ratios: Mapping[Axis, tuple[float, float]] = field(default_factory=dict)
    since: Mapping[Axis, int] = field(default_factory=dict)

    @property
    def values(self) -> str:
        """Now and should be: ``0.004 → 0.001``."""
        if self.quantity in ("forward factor", "update"):
            return ""
        if self.quantity == "attention logits":
            return "1/√d → 1/d"
        if self.quantity == "rounding":
            return "16 → 32 bits"
        if self.quantity == "epsilon":
            return f"{number(self.now)} → below {number(self.sound)} of the gradient"
        return arrow(self.now, self.sound)

    @property
    def factor(self) -> str:
        """By what to multiply or divide: ``÷ 16``; empty where that says nothing."""
        is_number = math.isfinite(self.now) and self.now > 0 and self.sound > 0
        if not is_number or self.quantity == "rounding":
            return ""
        return divided(exact(self.ratios) if self.ratios else self.now / self.sound)

    @property
    def axes(self) -> str:
        """The sizes that the factor follows: ``width · depth``."""
        if not self.ratios or not self.factor or self.quantity == "epsilon":
            return ""
        return axes_of(self.ratios)

    @property
    def begins(self) -> str:
        """Since which size it deviates: ``width 32 · depth 2``."""
        return " · ".join(f"{axis} {size}" for axis, size in self.since.items())

    @property
    def strength(self) -> float:
        """How far it is from sound, as a logarithm."""
        if not self.factor:
            return 0.0
        return abs(math.log(self.now / self.sound))


def changes_of_suspects(suspects: Iterable[Suspect], spans: Mapping[Axis, float]) -> list[Change]:
    """Join what deviates with width and what deviates with depth, each cause once.

    Args:
        suspects: of both axes.
        spans: the largest size over the smallest, by axis.
    """
    together: dict[tuple[str, Quantity], list[Suspect]] = {}
    for suspect in suspects:
        together.setdefault((suspect.tensor, suspect.quantity), []).append(suspect)
    changes = []
    for (tensor, quantity), parts in together.items():
        ratios = dict[Axis, tuple[float, float]]()
        since = dict[Axis, int]()
        sound = parts[0].now
        for part in sorted(parts, key=lambda part: AXES.index(part.axis)):
            since[part.axis] = part.since
            if part.sound > 0 and part.now > 0:
                ratio = part.now / part.sound
                ratios[part.axis] = (ratio, spans[part.axis])
                sound /= ratio
            else:
                sound = part.sound
        changes.append(Change(tensor, parts[0].role, quantity, parts[0].now, sound, ratios, since))
    return in_order(changes)


@dataclass(frozen=True)
class Planned:
    """The plans of one rule at the sizes that say what follows width, and what depth.

    Attributes:
        largest: of the largest network.
        along: of the network that is as large along one axis, and the smallest along the other.
    """

    largest: Plan
    along: Mapping[Axis, Plan]


@dataclass(frozen=True)
class Two:
    """What one rule gives tensors, beside what another one gives them.

    Attributes:
        now, remedy: plans of the same networks, from one base.
        lr: the learning rate of the base.
        smallest: the base's sizes. spans: the largest size over the smallest, by axis.
    """

    now: Planned
    remedy: Planned
    lr: float
    smallest: Mapping[Axis, int]
    spans: Mapping[Axis, float]

    def changes(self) -> list[Change]:
        """What the other rule changes, a row for each kind of tensors and quantity."""
        kinds = dict[str, str]()
        names = Kinds(self.now.largest)
        for name in self.now.largest.entries:
            kinds.setdefault(names.of(name), name)
        changes = list[Change]()
        for kind, name in kinds.items():
            for quantity in _PLANNED:
                change = self._change(kind, name, quantity)
                if change is not None:
                    changes.append(change)
        return in_order(changes)

    def _change(self, kind: str, name: str, quantity: Quantity) -> Change | None:
        entry = self.now.largest.entries[name]
        # Biases that are drawn too small harm nothing.
        is_drawn_vector = entry.is_vector and entry.start.constant is None
        if quantity == "initial std" and is_drawn_vector:
            return None
        now = self._value(self.now.largest, name, quantity)
        sound = self._value(self.remedy.largest, name, quantity)
        if not now or not sound or math.isclose(now, sound, rel_tol=_LEAST_CHANGE):
            return None
        ratios = dict[Axis, tuple[float, float]]()
        since = dict[Axis, int]()
        for axis, span in self.spans.items():
            there = self._value(self.now.along[axis], name, quantity)
            sound_there = self._value(self.remedy.along[axis], name, quantity)
            if not math.isclose(there, sound_there, rel_tol=_LEAST_CHANGE):
                ratios[axis] = (there / sound_there, span)
                since[axis] = self.smallest[axis]
        return Change(kind, entry.role, quantity, now, sound, ratios, since)

    def _value(self, plan: Plan, name: str, quantity: Quantity) -> float:
        """What a plan gives a tensor."""
        if quantity == "learning rate":
            return self.lr * plan.rate(name)
        constant = plan.constant(name)
        return plan.std(name) if constant is None else abs(constant)


def in_order(changes: Sequence[Change]) -> list[Change]:
    """Sort by role and name; within a role, the tensors that are furthest from sound first."""
    strongest = dict[str, float]()
    for change in changes:
        strongest[change.tensor] = max(change.strength, strongest.get(change.tensor, 0.0))
    roles = list(ROLE_NAMES)

    def order(change: Change) -> tuple[int, float, str]:
        role = change.role if change.role in ROLE_NAMES else ""
        return roles.index(role), -strongest[change.tensor], change.tensor

    return sorted(changes, key=order)


def by_tensor(changes: Iterable[Change]) -> dict[str, list[Change]]:
    """The changes of every kind of tensors."""
    tensors = dict[str, list[Change]]()
    for change in changes:
        tensors.setdefault(change.tensor, []).append(change)
    return tensors


def in_short(change: Change) -> str:
    """Write factor and axes in few letters: ``÷16 w·d``."""
    factor = change.factor.replace("÷ ", "÷").replace(f"{TIMES} ", TIMES)
    axes = change.axes.replace("width", "w").replace("depth", "d").replace(" ", "")
    return f"{factor} {axes}".strip()
