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
            if (variant in SOUND) == sound and variant not in case.unsound:
                yield case, variant, row


def is_false_alarm(judge: str, row: Row) -> bool:
    """Whether a sound network was called wrong; by a transfer, where it surely transfers."""
    return row["said"] == "wrong" and (judge != "transfer" or is_surely_fine(row))


def is_missed(row: Row) -> bool:
    """Whether a broken network was called sound."""
    return bool(row["said"] == "ok")


def counts(judge: str, row: Row) -> bool:
    """Whether a broken network counts: a transfer is wrong only where truth is clear."""
    return bool(row["said"] != "refused" and (judge != "transfer" or is_surely_worse(row)))


def summary(stored: Mapping[str, Any]) -> Row:
    """Counts by judge, as numbers, and the names of what went wrong."""
    table: Row = {
        "breaks": _breaks(stored),
        "unsound": _count_of_unsound(stored),
        "truths": _truths(stored),
    }
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
            "alarmed since": float(sum(is_false_alarm(judge, latest(one[2])) for one in asked)),
            "missed since": float(sum(is_missed(latest(one[2])) for one in counted)),
            "open since": float(sum(latest(one[2])["said"] == "open" for one in counted)),
            "names of alarmed since": [
                named(*one) for one in asked if is_false_alarm(judge, latest(one[2]))
            ],
            "names of alarmed": [named(*one) for one in alarmed],
            "names of missed": [named(*one) for one in missed],
            "names of refused": [named(*one) for one in sound if one[2]["said"] == "refused"],
        }
    return table


def _count_of_unsound(stored: Mapping[str, Any]) -> float:
    """How many answers are about networks that are not sound after all."""
    count = 0
    for variants_of in stored.values():
        for name, variants in variants_of.items():
            count += len(variants.keys() & BY_NAME[name].unsound.keys())
    return float(count)


def _truths(stored: Mapping[str, Any]) -> dict[str, float]:
    """What transfers say of broken networks, beside the truth."""
    rows = [row for _, _, row in answers_of(stored, "transfer", sound=False)]
    transfers = [row for row in rows if is_missed(row)]
    return {
        "asked": float(len(rows)),
        "worse": float(sum(map(is_surely_worse, rows))),
        "transfers": float(len(transfers)),
        "rightly": float(sum(map(is_surely_fine, transfers))),
        "open": float(sum(row["said"] == "open" for row in rows)),
    }


def _breaks(stored: Mapping[str, Any]) -> dict[str, list[float]]:
    """By the way in which a training breaks: with alerts, with alerts since, and all."""
    table = dict[str, list[float]]()
    for broken in BREAKS:
        rows = [rows[broken] for rows in stored["watch"].values() if broken in rows]
        asked = [row for row in rows if row["said"] != "refused"]
        alerts = sum(row["said"] == "wrong" for row in asked)
        later = sum(latest(row)["said"] == "wrong" for row in asked)
        table[broken] = [float(alerts), float(later), float(len(asked))]
    return table


def latest(row: Row) -> Row:
    """The answer since faults of the library were mended, where it was asked again."""
    later: Row = row.get("later", {})
    return row | later


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
                "misses": _rate(row["missed"], row["broken"]),
                "undecided: sound, broken": f"{row['sound open']:g}, {row['broken open']:g}",
                "since: alarms, misses, undecided broken": (
                    f"{row['alarmed since']:g}, {row['missed since']:g}, {row['open since']:g}"
                ),
            }
        )
    return {
        "bank": markdown(rows),
        "bank-alarmed": paragraph(_names(table, "alarmed", "Called wrong, though sound")),
        "bank-missed": paragraph(_names(table, "missed", "Called sound, though broken")),
        "bank-rest": paragraph(
            _names(table, "refused", "Refused, with the reason"),
            f"{table['unsound']:g} answers about {_unsound()} do not count, as these are not sound",
            "after all: the alarms were right.",
        ),
        "bank-truths": paragraph(
            "**A transfer of broken networks**, all without a stream: some with a mistake and four "
            "times as wide, some under PyTorch's defaults and sixteen times as wide. Of {asked:g} "
            "{transfers:g} transfer, as fresh seeds confirm for {rightly:g}; {open:g} are not "
            "decided. {worse:g} surely lose a tenth, and so are there to miss.".format(
                **table["truths"]
            )
        ),
        "bank-breaks": markdown(
            [
                {
                    "at step 7 of 16": BREAKS[broken],
                    "alerts": f"{alerts:g} of {total:g}",
                    "since": f"{later:g}",
                }
                for broken, (alerts, later, total) in table["breaks"].items()
            ]
        ),
    }


def _rate(count: float, total: float) -> str:
    """A share in percent, with its interval and its counts."""
    if not total:
        return f"{count:g} of {total:g}"
    low, high = exact(count, total)
    percent = f"{100 * count / total:.0f} % [{100 * low:.1f}, {100 * high:.1f}]"
    return f"{count:g} of {total:g}, {percent}"


def _names(table: Mapping[str, Any], what: str, words: str) -> str:
    """The names of what went wrong, by judge."""
    parts = []
    for judge, title in JUDGES.items():
        row = table[judge]
        if row[f"names of {what}"]:
            names = ", ".join(row[f"names of {what}"])
            parts.append(f"by {title} {row[what]:g}: {names}")
    return f"**{words}**: {'; '.join(parts) or 'none'}."


def _unsound() -> str:
    """The cases that are not sound after all, and why."""
    parts = []
    for case in BY_NAME.values():
        if case.unsound:
            which = " by hand" if list(case.unsound) == ["by hand"] else ""
            parts.append(f"`{case.name}`{which} ({next(iter(case.unsound.values()))})")
    return " and ".join(parts)


def write_page(stored: Mapping[str, Any]) -> None:
    """Fill the page."""
    fill_page(PAGE, texts(summary(stored)))
