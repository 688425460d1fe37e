"""Beside which other forms ours stands: forecasts of the same published ladders by each.

``python -m calibration.forms --data FOLDER`` takes of every ladder of ``priors.ladders`` the case
whose targets have nearest to 30 times the compute, and fits it by

- *usual*: ``E + A/N^a + B/D^b`` by Huber's loss of log losses (Hoffmann et al. 2022);
- *one exponent*: ``E + (A/N^a + B/D^b)^c``. It is ours, ``E + ((A/N^a)^p + (B/D^b)^p)^(1/p)``, with
  ``p = 1/c`` and other letters;
- *Kaplan's*: ``E + (A/N^a + B/D)^c``, whose exponent of D also couples (Kaplan et al. 2020, with a
  floor);

each by Huber's loss, with the interval of a bootstrap over runs; and by

- *ours*: prior, discrepancy and calibration of other groups of ladders, as in
  ``docs/real-ladders.json``.

Coverage is the share of a ladder's targets inside, its cases and then its group counting alike; the
error is the median over the targets of a case. Two forms are told apart where the sign test over
groups of ladders has p < 0.05. ``python -m makers.real_ladders_page`` shows the rows.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.stats import binomtest

from makers.tables import markdown
from nfd.core.words import listed
from priors.ladders import Case, cases_of, over_groups, read

Array = NDArray[np.float64]
RESULT = Path(__file__).with_suffix(".json")
ROOT = Path(__file__).parents[1]
OURS = ROOT / "docs" / "real-ladders.json"
# Refits to runs that are drawn again, with which an interval ends at its 2.5 and 97.5 %.
_DRAWS = 20
_NEAREST = 30.0
# The residual of the log loss beyond which Huber's loss is linear.
_HUBER = 1e-3
_P = 0.05


def _additive(x: Array, logs: Array) -> Array:
    """The reducible log loss; x is the logs of the terms at the middle, and the powers."""
    return np.asarray(np.logaddexp(x[0] - np.exp(x[2]) * logs[0], x[1] - np.exp(x[3]) * logs[1]))


def _one_exponent(x: Array, logs: Array) -> Array:
    """The same with an exponent of the sum, ``exp(x[4])``."""
    return np.asarray(np.exp(x[4]) * _additive(x, logs))


def _kaplan(x: Array, logs: Array) -> Array:
    """The same where D has the power 1 within the sum."""
    inner = np.logaddexp(x[0] - np.exp(x[2]) * logs[0], x[1] - logs[1])
    return np.asarray(np.exp(x[3]) * inner)


Form = Callable[[Array, Array], Array]
# Each form with the numbers that its fit starts from.
FORMS: dict[str, tuple[Form, list[list[float]]]] = {
    "usual": (_additive, [[-1.6, -1.6, -1.4, -1.4], [-1.6, -1.6, -0.7, -0.7]]),
    "one exponent": (
        _one_exponent,
        [[-1.6, -1.6, -1.4, -1.4, 0.0], [-3.2, -3.2, -0.7, -0.7, -0.7]],
    ),
    "Kaplan's": (_kaplan, [[-3.2, -3.2, 0.0, -1.2], [-3.2, -3.2, 0.2, -0.7]]),
}


# The forms in the order of the page, with their formulas.
SHOWN = {
    "ours": "ours: $E + ((A/N^a)^p + (B/D^b)^p)^{1/p}$",
    "one exponent": "one exponent: $E + (A/N^a + B/D^b)^c$",
    "Kaplan's": "[Kaplan's](https://arxiv.org/abs/2001.08361), with a floor: $E + (A/N^a + B/D)^c$",
    "usual": "[usual](https://arxiv.org/abs/2203.15556): $E + A/N^a + B/D^b$",
}


@dataclass(frozen=True)
class Fitted:
    """A form with its numbers, fitted to losses at sizes about a middle one.

    Attributes:
        form: the reducible log loss.
        least: the log of the lowest loss.
        middle: ``[2]``.
        numbers: of the fit; the first says how far the floor is below the lowest loss.
    """

    form: Form
    least: float
    middle: Array
    numbers: Array

    def loss(self, sizes: Array) -> Array:
        """The losses ``[K]`` at sizes ``[K, 2]``."""
        return np.asarray(np.exp(self.log_loss(self.numbers, np.log(sizes / self.middle).T)))

    def log_loss(self, numbers: Array, logs: Array) -> Array:
        """The log losses by other numbers."""
        floor = self.least - np.exp(numbers[0])
        return np.asarray(np.logaddexp(floor, self.form(numbers[1:], logs)))


def fitted(name: str, sizes: Array, losses: Array, start: Array | None = None) -> Fitted:
    """A form fitted to losses ``[K]`` at sizes ``[K, 2]``, from its own start or from another."""
    form, starts = FORMS[name]
    middle = np.exp(np.log(sizes).mean(0))
    logs = np.log(sizes / middle).T
    least = float(np.log(losses.min()))
    law = Fitted(form, least, middle, np.zeros(0))

    def residuals(x: Array) -> Array:
        return np.asarray(law.log_loss(x, logs) - np.log(losses))

    begin = [np.array([-0.7, *one]) for one in starts] if start is None else [start]
    most = 300 if start is None else 60
    fits = []
    for one in begin:
        one = one.copy()
        if start is None:
            # Terms start at 0.2 of the lowest loss.
            one[1:3] += least / (np.exp(one[-1]) if name != "usual" else 1.0)
        fits.append(least_squares(residuals, one, loss="huber", f_scale=_HUBER, max_nfev=most))
    best = min(fits, key=lambda fit: float(fit.cost)).x
    return replace(law, numbers=np.asarray(best))


def forecast(case: Case, name: str) -> dict[str, Any]:
    """How far a form is off the targets of a case, and how many its bootstrap holds."""
    ladder = case.ladder
    sizes = ladder.sizes[case.fitted]
    losses = ladder.losses[case.fitted]
    targets = ladder.sizes[ladder.target]
    truth = ladder.losses[ladder.target]
    law = fitted(name, sizes, losses)
    stream = np.random.default_rng(0)
    drawn = []
    for _ in range(_DRAWS):
        rows = stream.integers(len(losses), size=len(losses))
        drawn.append(fitted(name, sizes[rows], losses[rows], law.numbers).loss(targets))
    low, high = np.quantile(drawn, (0.025, 0.975), axis=0)
    errors = np.abs(law.loss(targets) / truth - 1)
    return {
        "ladder": ladder.name,
        "group": ladder.group,
        "factor": round(case.factor, 1),
        "form": name,
        "error": 100 * float(np.median(errors)),
        "covered": float(np.mean((low <= truth) & (truth <= high))),
        "width": 100 * float(np.median((high - low) / truth)),
    }


def nearest(cases: Iterable[Case]) -> list[Case]:
    """Of every ladder the case whose targets have nearest to 30 times the compute."""
    chosen = dict[str, Case]()
    for case in cases:
        name = case.ladder.name
        if name not in chosen or _away(case.factor) < _away(chosen[name].factor):
            chosen[name] = case
    return list(chosen.values())


def _away(factor: float) -> float:
    return abs(math.log(factor / _NEAREST))


def ours(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """Our forecasts of the same cases, each from the priors of other groups."""
    rows = []
    wanted = {(case.ladder.name, int(case.fitted.sum())) for case in cases}
    for case in json.loads(OURS.read_text(encoding="utf-8"))["cases"]:
        if (case["ladder"], case["runs"]) not in wanted:
            continue
        row = {
            name: case[name] for name in ("ladder", "group", "factor", "error", "covered", "width")
        }
        rows.append(row | {"form": "ours"})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """A row for each form."""
    cells = []
    for name, words in SHOWN.items():
        of_form = [row for row in rows if row["form"] == name]
        errors = [row["error"] for row in of_form]
        cells.append(
            {
                "law": words,
                "error, %": f"{np.median(errors):.2f}",
                "9 of 10 below, %": f"{np.quantile(errors, 0.9):.1f}",
                "inside": f"{100 * over_groups(of_form):.0f} %",
                "width, %": f"{np.median([row['width'] for row in of_form]):.1f}",
                "ours nearer": "" if name == "ours" else against(rows, name),
            }
        )
    return markdown(cells)


def read_rows() -> list[dict[str, Any]]:
    """The stored forecasts, a row for each ladder and form."""
    rows: list[dict[str, Any]] = json.loads(RESULT.read_text(encoding="utf-8"))
    return rows


def texts(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The texts of the page."""
    errors = dict[str, float]()
    inside = dict[str, float]()
    for name in ("ours", *FORMS):
        of_form = [row for row in rows if row["form"] == name]
        errors[name] = float(np.median([row["error"] for row in of_form]))
        inside[name] = 100 * over_groups(of_form)
    ladders = len({row["ladder"] for row in rows})
    others = [name for name in FORMS if name != "usual"]
    answer = (
        f"**Ours forecasts {ladders} ladders best: off by {errors['ours']:.1f} % in the median**, "
        f"the usual law by {errors['usual']:.1f} % (ours nearer in {against(rows, 'usual')}), "
        f"other coupled ones by {listed(f'{errors[name]:.1f}' for name in others)} %. Ours holds "
        f"{inside['ours']:.0f} % of the targets, bootstraps about half: they do not see that the "
        "form itself may be wrong. Without a prior coupled forms are no better than the usual one."
    )
    return {"answer": answer, "forms": table(rows)}


def against(rows: list[dict[str, Any]], name: str) -> str:
    """In how many groups of ladders ours is nearer, and whether that is told from chance."""
    errors = dict[str, dict[str, list[float]]]()
    for row in rows:
        errors.setdefault(row["group"], {}).setdefault(row["form"], []).append(row["error"])
    nearer = [np.mean(one["ours"]) < np.mean(one[name]) for one in errors.values()]
    p = float(binomtest(int(np.sum(nearer)), len(nearer)).pvalue)
    word = "told apart" if p < _P else "not told apart"
    return f"{sum(nearer)} of {len(nearer)} groups, p = {p:.2g}: {word}"


def main() -> None:
    """Fit every case by every form, and store the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of ladders")
    cases = nearest(cases_of(read(parser.parse_args().data)))
    rows = ours(cases)
    for case in cases:
        for name in FORMS:
            rows.append(forecast(case, name))
            print(rows[-1], flush=True)
    RESULT.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
