"""The result of ``nfd.compare``: which factors differ from a plan's, in which tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.tables import Row
from nfd.core.words import listed, number, plural
from nfd.report.shown import Shown
from nfd.scaling.compared import Compared, Origin, Reference, Setting
from nfd.scaling.plan_answer import factor_in_words, names_of_kinds
from nfd.scaling.plan_table import kind_of

if TYPE_CHECKING:
    from nfd.report.page import Section
    from nfd.scaling.plan import Plan

_NAMES: dict[Setting, str] = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "eps": "epsilon",
    "beta": "running means",
    "std": "initial std",
    "forward": "forward factor",
    "attention": "attention logits",
}
# Those that parameter groups set.
_OF_GROUPS: tuple[Setting, ...] = ("lr", "weight_decay", "eps", "beta")
# Digits of a table; initial weights are measured, and differ by chance.
_DIGITS = 3
_MEASURED_DIGITS = 2
_EPSILON = "Epsilon acts only where gradients are about as small as it."


@dataclass(frozen=True, repr=False)
class PlanComparison(Shown):
    """The result of ``nfd.compare``.

    Print it: what differs, in which tensors and by how much. ``to_pandas()`` has the columns of
    ``table``.

    Attributes:
        plan: what was compared with.
        rows: a ``Compared`` for every setting of every tensor.
        references: the values of the base over which settings were compared.
        faults: in sentences, what numbers cannot say, such as tensors that no group has.
        unseen: what the plan counts on in the forward pass, and nobody saw.
        left_out, notes: what was not compared.
        count: how many tensors were.

    Example::

        comparison = nfd.compare(model, optimizer, plan)
        assert comparison.agrees, str(comparison)
    """

    plan: Plan
    rows: tuple[Compared, ...]
    references: tuple[Reference, ...]
    faults: tuple[str, ...]
    unseen: tuple[str, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]
    count: int

    @property
    def differing(self) -> tuple[Compared, ...]:
        """The rows that differ."""
        return tuple(row for row in self.rows if row.differs)

    @property
    def agrees(self) -> bool:
        """Whether nothing that was compared differs, and nothing that the plan needs is unseen."""
        return not self.differing and not self.faults and not self.unseen

    @property
    def answer(self) -> Answer:
        """What differs, and what was not compared."""
        but = (
            f"{listed(self.left_out)} {_was(self.left_out)} not compared." if self.left_out else ""
        )
        details = [*self.unseen, *self.notes]
        about = f"{self.plan.rule} · {self.plan.optimizer} · {plural(self.count, 'tensor')}"
        tensors = f"all {plural(self.count, 'tensor')}"
        if self.differing or self.faults:
            return Answer(
                "bad",
                "Differs",
                self._what_differs(),
                because=self._because(),
                but=but,
                next=self._next(),
                about=about,
                table=self._cells(),
                details=details,
            )
        if self.unseen:
            return Answer(
                "open",
                NOT_DECIDED,
                f"Rates of {tensors} are the plan's; its forward factors are not seen",
                because=self.unseen[0],
                but=but,
                about=about,
                details=details[1:],
            )
        return Answer(
            "good",
            "Agrees",
            self._what_agrees(),
            because=self._because(),
            but=but,
            about=about,
            details=details,
        )

    def _what_agrees(self) -> str:
        """Say how many tensors train, and begin, by the plan."""
        begun = {row.tensor for row in self.rows if row.setting == "std"}
        tensors = f"All {plural(self.count, 'tensor')}"
        if len(begun) == self.count:
            return f"{tensors} begin and train as the plan says"
        return f"{tensors} train as the plan says" + (f", {len(begun)} begin so" if begun else "")

    def _what_differs(self) -> str:
        """Say how many tensors differ, and in what."""
        if not self.differing:
            return "The optimizer does not step the tensors as the plan says"
        tensors = {row.tensor for row in self.differing}
        settings = [name for name in _NAMES if any(row.setting == name for row in self.differing)]
        verb = "differs" if len(tensors) == 1 else "differ"
        return (
            f"{len(tensors)} of {plural(self.count, 'tensor')} {verb} from the plan in "
            f"{listed(_NAMES[setting] for setting in settings)}"
        )

    def _because(self) -> str:
        """Say what speaks beside numbers, and over what they were compared."""
        texts = list(self.faults)
        references = [_in_words(reference) for reference in self.references]
        if references:
            texts.append(f"Compared at {listed(references)}.")
        if {row.setting for row in self.differing} == {"eps"}:
            texts.append(_EPSILON)
        return " ".join(texts)

    def _next(self) -> Next | None:
        """Say how to get the plan's groups, where the optimizer's differ."""
        rates = [reference for reference in self.references if reference.setting == "lr"]
        is_of_groups = any(row.setting in _OF_GROUPS for row in self.differing)
        if not rates or not (is_of_groups or self.faults):
            return None
        return Next(
            "The plan's groups",
            f"plan.param_groups(model, lr={rates[0].value:.6g})",
        )

    def _cells(self) -> list[dict[str, str]]:
        """A row for all tensors that differ alike, the largest factors of every setting first."""
        kinds = dict[tuple[Setting, float, str, str], dict[str, None]]()
        for row in self.differing:
            digits = _MEASURED_DIGITS if row.setting == "std" else _DIGITS
            place = (
                row.setting,
                float(f"{row.ratio:.{digits}g}"),
                number(row.value, digits),
                number(row.planned, digits),
            )
            kinds.setdefault(place, {})[kind_of(self.plan, row.tensor)] = None
        order = list(_NAMES)
        cells = []
        for place in sorted(kinds, key=lambda place: (order.index(place[0]), _nearness(place[1]))):
            setting, ratio, value, planned = place
            cells.append(
                {
                    "differs": _NAMES[setting],
                    "in": names_of_kinds([*kinds[place]]),
                    "is": value,
                    "plan": planned,
                    "off by": factor_in_words(ratio),
                }
            )
        return cells

    @property
    def table(self) -> list[Row]:
        """A row for every setting of every tensor."""
        return [{**asdict(row), "ratio": row.ratio} for row in self.rows]

    def first_sections(self) -> list[Section]:
        """What differs."""
        from nfd.report.page import Section

        return [Section("", [], table=self._cells())] if self.differing else []

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for JSON."""
        return {
            "agrees": self.agrees,
            "rows": self.table,
            "references": [asdict(reference) for reference in self.references],
            "faults": list(self.faults),
            "unseen": list(self.unseen),
            "left_out": list(self.left_out),
            "notes": list(self.notes),
        }


def _nearness(ratio: float) -> float:
    """How near a ratio is to 1: from 0, where one of two numbers is 0, to 1."""
    return min(ratio, 1 / ratio) if ratio else 0.0


def _was(parts: Sequence[str]) -> str:
    is_plural = len(parts) > 1 or parts[0].startswith("initial weights")
    return "were" if is_plural else "was"


def _in_words(reference: Reference) -> str:
    """Write ``learning rate 0.003 (yours)``, or how many tensors agree on it."""
    names: dict[Setting, str] = {"weight_decay": "rate times decay"}
    name = names.get(reference.setting, _NAMES[reference.setting])
    origins: dict[Origin, str] = {
        "given": "yours",
        "one": "of all tensors",
        "most": f"{reference.agreeing} of {reference.count} agree",
    }
    return f"{name} {number(reference.value, _DIGITS)} ({origins[reference.origin]})"
