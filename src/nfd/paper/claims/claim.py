"""A statement of the paper, the measurement that tests it, and the verdict."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from nfd.core import Interval
from nfd.paper.claims.evidence import Evidence


class ClaimVerdict(StrEnum):
    """Whether a statement holds, by the measurement that tests it."""

    HOLDS = "holds"
    CONDITIONAL = "holds with a condition"
    FAILS = "does not hold"
    UNDECIDED = "undecided"
    UNTESTABLE = "not testable here"

    @classmethod
    def of(cls, holds: bool) -> ClaimVerdict:
        """The verdict where the answer is known: a number without randomness, on one side of its bound."""
        return cls.HOLDS if holds else cls.FAILS

    @property
    def opposite(self) -> ClaimVerdict:
        """The verdict on the negation of the statement."""
        return {ClaimVerdict.HOLDS: ClaimVerdict.FAILS, ClaimVerdict.FAILS: ClaimVerdict.HOLDS}.get(self, self)


@dataclass(frozen=True)
class Judged:
    """What a measurement says of a statement.

    ``reading`` names the condition, the counter-measurement, or why nothing can be said; ``tried`` is what was varied,
    so that the statement might hold where it does not: never empty there.
    """

    value: Interval
    verdict: ClaimVerdict
    reading: str
    tried: tuple[str, ...] = ()


def only_of(figure: str) -> str:
    """The name by which ``--only`` takes the statements of a figure: ``fig5`` for "figure-5"."""
    return figure.replace("figure-", "fig")


def figure_of(id_: str, source: str) -> str | None:
    """The figure that a statement is about, as "figure-5": the first that its source names, or that of its id."""
    match = re.search(r"Fig\. (\d)", source) or re.match(r"fig(\d)-", id_)
    return f"figure-{match[1]}" if match else None


@dataclass(frozen=True)
class Claim:
    """A statement: where it stands in the text, what it says in our words, and what is measured to test it."""

    id: str
    source: str
    statement: str
    measurement: str
    measure: Callable[[Evidence], Judged]

    def row(self, evidence: Evidence) -> dict[str, Any]:
        """The claim and its verdict as one line of the table."""
        judged = self.measure(evidence)
        about = {name: value for name, value in vars(self).items() if name != "measure"}
        return about | asdict(judged.value) | {
            "verdict": str(judged.verdict), "reading": judged.reading, "tried": list(judged.tried),
        }  # fmt: skip
