"""A statement of the paper, the measurement that tests it, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from nfd.core import Interval
from nfd.paper.claims.evidence import Evidence

Verdict = Literal["holds", "holds with a condition", "does not hold", "undecided", "not testable here"]


@dataclass(frozen=True)
class Judged:
    """What a measurement says of a statement.

    ``reading`` names the condition, the counter-measurement, or why nothing can be said; ``tried`` is what was varied,
    so that the statement might hold where it does not: never empty there.
    """

    value: Interval
    verdict: Verdict
    reading: str
    tried: tuple[str, ...] = ()


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
            "verdict": judged.verdict, "reading": judged.reading, "tried": list(judged.tried),
        }  # fmt: skip
