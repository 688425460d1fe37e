"""The tables of the page about verdicts that are made from the bank."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scipy.stats import beta

from calibration.sound_bank.cases import BY_NAME, Case
from calibration.sound_bank.judges import BREAKS, is_surely_fine, is_surely_worse
from makers.pages.words import paragraph
from makers.tables import fill_page, markdown
from nfd.core.tables import Row

NUMBERS = Path(__file__).parents[1] / "sound_bank.json"
PAGE = Path(__file__).parents[2] / "docs/verdicts.md"
JUDGES = {
    "check": "`nfd.check`",
    "self-test": "`plan.self_test`",
    "transfer": "`nfd.transfer`",
    "watch": "`nfd.Watch`",
}
SOUND = ("planned", "by hand", "sound")
Answers = Iterator[tuple[Case, str, Row]]


def read_numbers() -> dict[str, Any]:
    """The stored answers: by judge, case and variant."""
    stored: dict[str, Any] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return stored


def exact(count: float, total: float) -> tuple[float, float]:
    """The 95 % interval of a share (Clopper and Pearson 1934)."""
    low = float(beta.ppf(0.025, count, total - count + 1)) if count > 0 else 0.0
    high = float(beta.ppf(0.975, count + 1, total - count)) if count < total else 1.0
    return low, high


def answers_of(stored: Mapping[str, Any], judge: str, *, sound: bool) -> Answers:
    """The answers about sound networks, or about broken ones; refusals too."""
    for name, variants in stored.get(judge, {}).items():
        case = BY_NAME[name]
        for variant, row in variants.items():
            if (variant in SOUND) == sound and (case.is_sound or not sound):
                yield case, variant, row


def is_false_alarm(judge: str, row: Row) -> bool:
    """Whether a sound network was called wrong; by a transfer, where it surely transfers."""
    return row["said"] == "wrong" and (judge != "transfer" or is_surely_fine(row))


def is_missed(row: Row) -> bool:
    """Whether a broken network was called sound."""
    return bool(row["said"] == "ok")


def counts(judge: str, row: Row) -> bool:
    """Whether a broken network counts: a transfer is wrong only where truth is clear."""
    return row["said"] != "refused" and (judge != "transfer" or is_surely_worse(row))


def summary(stored: Mapping[str, Any]) -> Row:
    """Counts by judge, as numbers, and the names of what went wrong."""
    table: Row = {}
    for judge in JUDGES:
        sound = [*answers_of(stored, judge, sound=True)]
        broken = [*answers_of(stored, judge, sound=False)]
        asked = [one for one in sound if one[2]["said"] != "refused"]
        counted = [one for one in broken if counts(judge, one[2])]
        alarmed = [one for one in asked if is_false_alarm(judge, one[2])]
        missed = [one for one in counted if is_missed(one[2])]
        table[judge] = {
            "sound": float(len(asked)),
            "alarmed": float(len(alarmed)),
            "sound open": float(sum(one[2]["said"] == "open" for one in asked)),
            "refused": float(len(sound) - len(asked)),
            "broken": float(len(counted)),
            "missed": float(len(missed)),
            "broken open": float(sum(one[2]["said"] == "open" for one in counted)),
            "names of alarmed": [named(*one) for one in alarmed],
            "names of missed": [named(*one) for one in missed],
            "names of refused": [named(*one) for one in sound if one[2]["said"] == "refused"],
        }
    return table


def named(case: Case, variant: str, row: Row) -> str:
    """A case as the page names it."""
    if variant in BREAKS:
        return f"`{case.name}` ({BREAKS[variant]})"
    if variant == "broken" and case.mistake is not None:
        return f"`{case.name}` ({case.mistake.says})"
    return f"`{case.name}`" + (" by hand" if variant == "by hand" else "")


def read() -> Row:
    """The summary of the stored answers."""
    return summary(read_numbers())


def texts(table: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the page."""
    rows = []
    for judge, words in JUDGES.items():
        row = table[judge]
        rows.append(
            {
                "judge": words,
                "false alarms": _rate(row["alarmed"], row["sound"]),
                "undecided": f"{row['sound open']:g}",
                "refused": f"{row['refused']:g}",
                "misses": _rate(row["missed"], row["broken"]),
                "undecided, broken": f"{row['broken open']:g}",
            }
        )
    return {
        "bank": markdown(rows),
        "bank-alarmed": _list(table, "alarmed", "Sound, but called wrong"),
        "bank-missed": _list(table, "missed", "Broken, but called sound"),
        "bank-refused": _list(table, "refused", "Sound, but refused with a reason"),
    }


def _rate(count: float, total: float) -> str:
    """A share in percent, with its interval and its counts."""
    low, high = exact(count, total)
    return (
        f"{100 * count / total:.0f} % [{100 * low:.1f}, {100 * high:.1f}], {count:g} of {total:g}"
    )


def _list(table: Mapping[str, Any], what: str, words: str) -> str:
    """The names of what went wrong, by judge."""
    parts = []
    for judge, title in JUDGES.items():
        row = table[judge]
        names = ", ".join(row[f"names of {what}"]) or "none"
        total = row["broken" if what == "missed" else "sound"]
        parts.append(f"{title}, {row[what]:g} beside {total:g}: {names}")
    return paragraph(f"{words}. {'. '.join(parts)}.")


def write_page(stored: Mapping[str, Any]) -> None:
    """Fill the page."""
    fill_page(PAGE, texts(summary(stored)))
