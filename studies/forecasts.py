"""Forecasts of public trainings, on record: made, frozen, and scored when the training ends.

``python -m studies.forecasts --add SPEC`` forecasts a training and appends the row to
``docs/forecasts.json``; ``--outcome ID VALUE DATE SOURCE`` appends what was measured; ``--again
ID`` prints a row's forecast beside that of the code of today. Without arguments the page is made.

A row is never edited: it has the runs that it was made from, so that anyone can repeat it, and
``tests/test_forecasts.py`` keeps its hash. A better forecast is a row of its own. A SPEC is a JSON
file with all that a row has except ``forecast``, ``refused``, ``usual`` and ``version``:

- ``id``, ``run``, ``score``: names of the row and the training, and the loss with its unit.
- ``made``: the day of the forecast. ``known``: the day on which its runs were public.
- ``before``: whether it was made before the training ended.
- ``target``: what is asked of the law, such as ``{"flops": 1e23}``.
- ``source``, ``columns``, ``runs``: where the fitted runs are from, and their numbers.
- ``authors``: ``value``, ``date``, ``source`` and perhaps ``note``, of their own forecast.
- ``caveat``: what differs between the fitted runs and the target.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import nfd
from makers.tables import fill_page, markdown
from nfd.core.files import write_text
from nfd.core.words import in_words

STORE = Path(__file__).parents[1] / "docs" / "forecasts.json"
PAGE = STORE.with_suffix(".md")
Row = dict[str, Any]


def read() -> dict[str, list[Row]]:
    """The forecasts and the outcomes."""
    stored: dict[str, list[Row]] = json.loads(STORE.read_text(encoding="utf-8"))
    return stored


def forecast_of(row: Row) -> Row:
    """What the code of today says of the target of a row."""
    runs = [dict(zip(row["columns"], run, strict=True)) for run in row["runs"]]
    law = nfd.fit_ladder(runs)
    said = law.at(**row["target"])
    place = law.forecast_at(**row["target"]).place
    return {
        "forecast": {name: round(end, 4) for name, end in said.limits.items() if name != "stderr"},
        "refused": law.refused(**row["target"]),
        "usual": round(float(law.additive.loss(np.array([place]))[0]), 4),
        "version": nfd.__version__,
    }


def added(stored: dict[str, list[Row]], spec: Row) -> dict[str, list[Row]]:
    """The store with one more forecast."""
    if any(row["id"] == spec["id"] for row in stored["forecasts"]):
        raise ValueError(
            f"{spec['id']} is on record already; a new forecast needs an id of its own"
        )
    return stored | {"forecasts": [*stored["forecasts"], spec | forecast_of(spec)]}


def ended(stored: dict[str, list[Row]], outcome: Row) -> dict[str, list[Row]]:
    """The store with the outcome of one more training."""
    if outcome["id"] not in {row["id"] for row in stored["forecasts"]}:
        raise ValueError(f"no forecast on record has the id {outcome['id']}")
    if any(row["id"] == outcome["id"] for row in stored["outcomes"]):
        raise ValueError(f"{outcome['id']} has an outcome already, which is not edited")
    return stored | {"outcomes": [*stored["outcomes"], outcome]}


# ---- scores


def score_of(row: Row, outcome: Row | None) -> Row:
    """Whether the interval holds the outcome, and by how many percent the forecast is off."""
    if outcome is None:
        return {}
    said = row["forecast"]
    measured = outcome["value"]
    return {
        "inside": said["low"] <= measured <= said["high"],
        "error": 100 * (said["value"] / measured - 1),
        "authors": 100 * (row["authors"]["value"] / measured - 1),
        "usual": 100 * (row["usual"] / measured - 1),
    }


def texts(stored: dict[str, list[Row]]) -> dict[str, str]:
    """The parts of the page, by name."""
    outcomes = {outcome["id"]: outcome for outcome in stored["outcomes"]}
    running = [row for row in stored["forecasts"] if row["id"] not in outcomes]
    ended_rows = [row for row in stored["forecasts"] if row["id"] in outcomes]
    notes = []
    for row in stored["forecasts"]:
        notes.append(_note(row, outcomes.get(row["id"])))
    return {
        "running": markdown([_cells(row, None) for row in running]),
        "ended": markdown([_cells(row, outcomes[row["id"]]) for row in ended_rows]),
        "score": _score(stored["forecasts"], outcomes),
        "rows": "\n".join(notes),
    }


def _cells(row: Row, outcome: Row | None) -> Row:
    """A forecast as a row of the page."""
    said = row["forecast"]
    ours = f"{said['value']:.3f} [{said['low']:.3f}, {said['high']:.3f}]"
    cells = {
        "training": row["run"],
        "made": row["made"],
        "forecast": ours + (", refused" if row["refused"] else ""),
        "its authors": f"{row['authors']['value']:.3f}",
        "usual fit": f"{row['usual']:.3f}",
    }
    if outcome is None:
        return cells
    score = score_of(row, outcome)
    return cells | {
        "measured": f"{outcome['value']:.3f}",
        "inside": "yes" if score["inside"] else "no",
        "off by, %": f"{score['error']:+.1f}",
    }


def _score(rows: list[Row], outcomes: dict[str, Row]) -> str:
    """How many forecasts hold, made before the end and after it."""
    sentences = []
    for before, how in ((True, "before its training ended"), (False, "afterwards")):
        scores = []
        for row in rows:
            if row["before"] == before and row["id"] in outcomes:
                scores.append(score_of(row, outcomes[row["id"]]))
        if not scores:
            sentences.append(f"No forecast that was made {how} is scored yet.")
            continue
        inside = sum(score["inside"] for score in scores)
        error = float(np.median([abs(score["error"]) for score in scores]))
        theirs = float(np.median([abs(score["authors"]) for score in scores]))
        sentences.append(
            f"Made {how}: {inside} of {len(scores)} inside, off by {error:.1f} % in the median "
            f"(authors {theirs:.1f} %)."
        )
    return " ".join(sentences)


def _note(row: Row, outcome: Row | None) -> str:
    """What speaks against a row, and where its outcome is from."""
    note = row["authors"].get("note", "")
    note = f"Its authors: {note}" if note else ""
    refused = f"Refused: {row['refused'].split('. ')[0]}." if row["refused"] else ""
    measured = f"Measured: {outcome['source']}." if outcome is not None else ""
    parts = [row["caveat"], note, refused, measured]
    words = " ".join(part for part in parts if part)
    return _linked(f"- **{row['run']}**, {in_words(row['target'])}: {words}")


def _linked(text: str) -> str:
    """A text whose addresses of threads are links."""
    return re.sub(r"https://github\.com/([\w/-]+)/issues/(\d+)", r"[\1#\2](\g<0>)", text)


def write(stored: dict[str, list[Row]]) -> None:
    """Write the store, and the page from it."""
    write_text(STORE, json.dumps(stored, indent=1, ensure_ascii=True) + "\n")
    fill_page(PAGE, texts(stored))


def main() -> None:
    """Add a forecast or an outcome, or repeat a forecast."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", type=Path, help="a file of a forecast to make")
    parser.add_argument("--outcome", nargs=4, metavar=("ID", "VALUE", "DATE", "SOURCE"))
    parser.add_argument("--again", help="the id of a forecast to repeat")
    options = parser.parse_args()
    stored = read()
    if options.add:
        stored = added(stored, json.loads(options.add.read_text(encoding="utf-8")))
    if options.outcome:
        name, value, date, source = options.outcome
        outcome = {"id": name, "value": float(value), "date": date, "source": source}
        stored = ended(stored, outcome)
    if options.again:
        (row,) = [row for row in stored["forecasts"] if row["id"] == options.again]
        print("stored:", {name: row[name] for name in ("version", "forecast", "refused")})
        print("today: ", forecast_of(row))
        return
    write(stored)


if __name__ == "__main__":
    main()
