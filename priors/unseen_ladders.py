"""Ladders that the package's prior was not learned from, by the public call: ``python -m
priors.unseen_ladders``.

``--data FOLDER`` has CSV as for ``priors.ladders``, whose cases these are. A ladder in one variable
is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import nfd
from priors.ladders import Case, cases_of, over_ladders, read, summary


def forecast(case: Case) -> dict[str, Any]:
    """What ``nfd.fit_ladder`` says of a case's targets; errors and widths in percent, in their
    median.
    """
    ladder = case.ladder
    runs = zip(ladder.sizes[case.fitted], ladder.losses[case.fitted], strict=True)
    law = nfd.fit_ladder([{"parameters": N, "tokens": D, "loss": loss} for (N, D), loss in runs])
    targets = ladder.sizes[ladder.target]
    losses = ladder.losses[ladder.target]
    intervals = [law.at(parameters=N, tokens=D) for N, D in targets]
    refused = [law.refused(parameters=N, tokens=D) is not None for N, D in targets]
    errors = [one.value / loss - 1 for one, loss in zip(intervals, losses, strict=True)]
    return {
        "ladder": ladder.name,
        "group": ladder.group,
        "factor": round(case.factor, 1),
        "width": 100 * float(np.median([(one.high - one.low) / one.value for one in intervals])),
        "error": 100 * float(np.median(np.abs(errors))),
        "plain": 100 * float(np.median(np.abs(law.additive.loss(targets) / losses - 1))),
        "covered": float(
            np.mean(
                [one.low <= loss <= one.high for one, loss in zip(intervals, losses, strict=True)]
            )
        ),
        "accepted": bool(np.mean(refused) < 0.5),
    }


def main() -> None:
    """Print the forecasts of every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of ladders")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    rows = list[dict[str, Any]]()
    in_two_variables = [
        ladder for ladder in read(options.data) if (np.ptp(ladder.sizes, axis=0) > 0).all()
    ]
    for case in cases_of(in_two_variables):
        row = forecast(case)
        cells = (
            f"{name} {round(value, 2) if isinstance(value, float) else value}"
            for name, value in row.items()
        )
        print(", ".join(cells), flush=True)
        rows.append(row)
    over = over_ladders(rows)
    print(f"over ladders: {over}", *summary(rows), sep="\n")
    if options.out:
        options.out.write_text(json.dumps({"cases": rows, "over ladders": over}, indent=1) + "\n")


if __name__ == "__main__":
    main()
