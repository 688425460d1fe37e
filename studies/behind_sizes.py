"""Do laws of repeated tokens, and of mixtures of experts, forecast other people's runs?

``python -m studies.behind_sizes --data FOLDER`` fits ``nfd.fit_ladder`` to a part of published runs
and forecasts the others, once with what stands behind their sizes and once without it. The folder
has two tables, which are not ours to copy:

- ``repeats.csv``: params, tokens, unique_tokens, loss, of ``utils/parametric_fit.ipynb`` of
  huggingface/datablations (Apache-2.0; arXiv 2305.16264).
- ``experts.csv``: active_params, tokens, total_params, loss, the lowest loss of every cell of
  step-law/steplaw (arXiv 2503.04715): 17 dense networks, and 16 of 2.15B parameters in all.

Runs of one size and one number of distinct tokens are averaged.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import nfd
from makers.pages.words import LEVEL, paragraph, sentence
from makers.tables import fill_page, markdown
from nfd.laws.ladder import LadderLaw
from nfd.laws.supplies import MOST_REPEATS

RESULT = Path(__file__).with_suffix(".json")
# The cases of the first paragraph.
ABOVE = "repeated, above 3e+20 FLOPs, from below"
MIXTURES = "mixtures on 4B to 20B tokens, from dense ones and mixtures on 2B"
PAGE = Path(__file__).parents[1] / "docs" / "repeats-and-experts.md"
Run = dict[str, float]
# Repeats that are worth nearly as much as new tokens.
_FEW = 4.0


def read(path: Path, names: tuple[str, str, str]) -> list[Run]:
    """The mean loss of every size of a table, with the fields' names."""
    losses = dict[tuple[float, ...], list[float]]()
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            losses.setdefault(tuple(float(row[name]) for name in names), []).append(
                float(row["loss"])
            )
    fields = ("parameters", "tokens", _field(names[2]))
    runs = []
    for size, of_seeds in losses.items():
        runs.append(dict(zip(fields, size, strict=True)) | {"loss": float(np.mean(of_seeds))})
    return runs


def _field(name: str) -> str:
    return "total_parameters" if name == "total_params" else name


def judged(name: str, runs: list[Run], supply: str, fitted: Callable[[Run], bool],
           target: Callable[[Run], bool]) -> dict[str, Any]:  # fmt: skip
    """The row of a case: errors and widths in percent, in the median of its targets."""
    rows = [run for run in runs if fitted(run)]
    targets = [run for run in runs if target(run)]
    columns = {"parameters": "parameters", supply: supply}
    law = nfd.fit_ladder(rows, columns=columns)
    without = nfd.fit_ladder(rows, columns={supply: None, "parameters": "parameters"})
    row: dict[str, Any] = {"case": name, "runs": len(law.losses), "targets": len(targets)}
    letter = {"unique_tokens": "R", "total_parameters": "g"}[supply]
    if letter in law.terms:
        row[letter] = law.terms[letter].limits
    row |= _scored(law, targets, supply if letter in law.terms else "")
    return row | {f"without: {key}": value for key, value in _scored(without, targets, "").items()}


def _scored(law: LadderLaw, targets: list[Run], supply: str) -> dict[str, float]:
    """How far forecasts are off, and how many intervals hold the loss."""
    errors = []
    inside = []
    widths = []
    refused = []
    for run in targets:
        size = {"parameters": run["parameters"], "tokens": run["tokens"]}
        if supply:
            size[supply] = run[supply]
        forecast = law.at(**size)
        errors.append(abs(forecast.value / run["loss"] - 1))
        inside.append(forecast.low <= run["loss"] <= forecast.high)
        widths.append((forecast.high - forecast.low) / forecast.value)
        refused.append(law.doubt(**size) != "")
    return {
        "error": 100 * float(np.median(errors)),
        "largest": 100 * float(np.max(errors)),
        "inside": float(np.mean(inside)),
        "width": 100 * float(np.median(widths)),
        "refused": float(np.mean(refused)),
    }


def repeated(runs: list[Run]) -> list[dict[str, Any]]:
    """Runs whose tokens repeat, forecast from cheaper ones and from those that repeat less."""

    def repeats(run: Run) -> float:
        return run["tokens"] / run["unique_tokens"]

    def flops(run: Run) -> float:
        return 6 * run["parameters"] * run["tokens"]

    def above(most: float) -> dict[str, Any]:
        return judged(
            f"repeated, above {most:.0e} FLOPs, from below",
            runs,
            "unique_tokens",
            lambda run: flops(run) < most,
            lambda run: flops(run) >= most and 1 < repeats(run) <= MOST_REPEATS,
        )

    rows = [above(3e20), above(1e21)]
    rows.append(
        judged(
            "repeated 4 to 16 times, from up to 4 times",
            runs,
            "unique_tokens",
            lambda run: repeats(run) <= _FEW,
            lambda run: _FEW < repeats(run) <= MOST_REPEATS,
        )
    )
    rows.append(
        judged(
            "repeated 16 to 60 times, from up to 16 times",
            runs,
            "unique_tokens",
            lambda run: repeats(run) <= MOST_REPEATS,
            lambda run: MOST_REPEATS < repeats(run) <= 60,
        )
    )
    return rows


def with_experts(runs: list[Run]) -> list[dict[str, Any]]:
    """Mixtures of experts, forecast from dense networks and from shorter mixtures."""

    def is_mixture(run: Run) -> bool:
        return run["total_parameters"] > run["parameters"]

    def shortest(run: Run) -> bool:
        return is_mixture(run) and run["tokens"] < 3e9

    supply = "total_parameters"
    return [
        judged(
            "mixtures on 4B to 20B tokens, from dense ones and mixtures on 2B",
            runs,
            supply,
            lambda run: not is_mixture(run) or shortest(run),
            lambda run: is_mixture(run) and not shortest(run),
        ),
        judged(
            "mixtures of two sparsities, from dense ones and those of two others",
            runs,
            supply,
            lambda run: not is_mixture(run) or 2e8 < run["parameters"] < 1e9,
            lambda run: is_mixture(run) and not 2e8 < run["parameters"] < 1e9,
        ),
        judged(
            "mixtures on 20B tokens, from mixtures on 2B to 8B",
            runs,
            supply,
            lambda run: is_mixture(run) and run["tokens"] < 1e10,
            lambda run: is_mixture(run) and run["tokens"] > 1e10,
        ),
    ]


def read_results() -> list[dict[str, Any]]:
    """The stored cases."""
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))
    return rows


def texts(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The texts of the page."""
    cases = []
    for row in rows:
        cases.append(
            {
                "forecast": row["case"],
                "held out": f"{row['targets']}",
                "R or g": _number(row),
                "error, % (largest)": f"{row['error']:.1f} ({row['largest']:.1f})",
                "inside": f"{100 * row['inside']:.0f} %",
                "without: error, %": f"{row['without: error']:.1f} ({row['without: largest']:.1f})",
                "without: inside": f"{100 * row['without: inside']:.0f} %",
            }
        )
    return {"answer": _answer(rows), "cases": markdown(cases)}


def _answer(rows: list[dict[str, Any]]) -> str:
    by_case = {row["case"]: row for row in rows}
    repeated_row = by_case[ABOVE]
    mixed = by_case[MIXTURES]
    return paragraph(
        "**In public runs repeated tokens lose their worth over R = "
        f"{sentence(repeated_row['R'], '.0f', level=LEVEL)} repeats, and idle experts are worth a "
        f"power g = {sentence(mixed['g'])} of total over active parameters.** With both in the "
        f"law, larger runs of repeated data are forecast {repeated_row['error']:.1f} % off in the "
        f"median in place of {repeated_row['without: error']:.0f} %, longer ones of mixtures "
        f"{mixed['error']:.1f} % in place of {mixed['without: error']:.1f} %."
    )


def _number(row: dict[str, Any]) -> str:
    for letter in ("R", "g"):
        if letter in row:
            term = row[letter]
            digits = 0 if letter == "R" else 2
            ends = f"{term['low']:.{digits}f}, {term['high']:.{digits}f}"
            return f"{letter} {term['value']:.{digits}f} [{ends}]"
    return "not shown"


def main() -> None:
    """Print and store every case, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of both tables")
    folder = parser.parse_args().data
    rows = repeated(read(folder / "repeats.csv", ("params", "tokens", "unique_tokens")))
    rows += with_experts(read(folder / "experts.csv", ("active_params", "tokens", "total_params")))
    for row in rows:
        print(row, flush=True)
    RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    fill_page(PAGE, texts(rows))


if __name__ == "__main__":
    main()
