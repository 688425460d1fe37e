"""Ladders that the package's prior was not learned from, by the public call: ``python -m benchmarks.unseen_ladders``.

``--data FOLDER`` has CSV as for ``benchmarks.ladders``, whose cases these are. A ladder in one variable is left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import nfd
from benchmarks.ladders import Case, cases_of, read, summary


def forecast(case: Case) -> dict[str, Any]:
    """What ``nfd.fit_ladder`` says of a case's targets; errors and widths in percent, in their median."""
    ladder = case.ladder
    runs = zip(ladder.sizes[case.fitted], ladder.losses[case.fitted], strict=True)
    law = nfd.fit_ladder([{"parameters": N, "tokens": D, "loss": loss} for (N, D), loss in runs])
    targets, losses = ladder.sizes[ladder.target], ladder.losses[ladder.target]
    said = [law.at(parameters=N, tokens=D) for N, D in targets]
    refused = [law.refused(parameters=N, tokens=D) is not None for N, D in targets]
    errors = [one.value / loss - 1 for one, loss in zip(said, losses, strict=True)]
    return {
        "ladder": ladder.name,
        "group": ladder.group,
        "factor": round(case.factor, 1),
        "width": 100 * float(np.median([(one.high - one.low) / one.value for one in said])),
        "error": 100 * float(np.median(np.abs(errors))),
        "plain": 100 * float(np.median(np.abs(law.additive.loss(targets) / losses - 1))),
        "covered": float(np.mean([one.low <= loss <= one.high for one, loss in zip(said, losses, strict=True)])),
        "accepted": bool(np.mean(refused) < 0.5),
    }


def main() -> None:
    """Print the forecasts of every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of ladders")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    rows = list[dict[str, Any]]()
    for case in cases_of(ladder for ladder in read(options.data) if (np.ptp(ladder.sizes, axis=0) > 0).all()):
        rows.append(forecast(case))
        print(
            ", ".join(f"{name} {round(v, 2) if isinstance(v, float) else v}" for name, v in rows[-1].items()),
            flush=True,
        )
    covered = [
        np.mean([row["covered"] for row in rows if row["ladder"] == name]) for name in {row["ladder"] for row in rows}
    ]
    over = {"coverage": float(np.mean(covered)), "at least .9": float(np.mean(np.array(covered) >= 0.9))}
    print(f"over ladders: {over}", *summary(rows), sep="\n")
    if options.out:
        options.out.write_text(json.dumps({"cases": rows, "over ladders": over}, indent=1) + "\n")


if __name__ == "__main__":
    main()
