"""How well the final loss of other people's runs is forecast from their first quarter: ``python -m
priors.curves``.

``--data`` is a folder with curves.csv, one row for each logged step of a run: source, model, curve,
parameters, adam (whether the rate is that of AdamW), step, rate, loss (empty where only the rate is
known; rates are linear between rows). Every source is forecast by priors and a calibration of the
others; beside it every model by those of all other models, which may be of its source. ``--prior``
writes the prior of the package, from all sources. Alerts are counted on sound runs and on the same
runs with a loss that rises by 3 % from the middle of what is left.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from nfd.core.errors import InputError
from nfd.laws.curve import POWERS, CurvePosterior, CurvePrior, RunCurve, RunForecast
from nfd.laws.ladder_posterior import Calibration
from nfd.laws.priors import file_of

Array = NDArray[np.float64]

SOURCES = {
    "gpt-100m": "zkshan2002/ScalingLaw, three curves of a course",
    "lr-scheduling": "fabian-sp/lr-scheduling, arXiv 2501.18965 and 2405.18392",
    "modded-nanogpt": "KellerJordan/modded-nanogpt, records with a trapezoid, and llm.c",
    "multi-power": "thu-yao-01-luo/MultiPowerLaw, arXiv 2503.12811",
    "olmo": "allenai/OLMo-ladder, arXiv 2412.04403 and 2501.00656",
}
# Of the steps of a run.
SEEN = 0.25
# Of the steps: the final loss is the mean of the losses behind.
_AT_END = 0.99
# Of b, where a run says little of it.
_SURE = 0.003
_USUAL = 0.06
# Of h: a run whose rate fell by less says nothing of b.
_SHOWS = 0.2


@dataclass(frozen=True)
class Curve:
    """A run of other people: its losses by step, its rate at every step."""

    source: str
    model: str
    name: str
    losses: dict[int, float]
    rates: Array
    rate: float | None

    @property
    def total(self) -> int:
        """Its steps."""
        return len(self.rates)

    @property
    def group(self) -> tuple[str, str]:
        """What counts as one case: a model. Records share most of theirs."""
        return self.source, "" if self.source == "modded-nanogpt" else self.model

    def until(self, share: float, back: float = 4.0) -> RunCurve:
        """The run so far, after a share of its steps."""
        seen = {step: loss for step, loss in self.losses.items() if step <= share * self.total}
        return RunCurve(seen, self.rates, self.total, back)  # type: ignore[arg-type]  # an array is read as a list

    @cached_property
    def last(self) -> tuple[float, float]:
        """The last losses: their mean step, and their mean."""
        at_end = [
            (step, loss) for step, loss in self.losses.items() if step >= _AT_END * self.total
        ]
        step, loss = np.mean(at_end or list(self.losses.items())[-1:], axis=0).tolist()
        return step, loss

    @cached_property
    def whole(self) -> tuple[float, float, float]:
        """log a and log b of the whole run by least squares, and the h that it shows."""
        # As far back as a forecast from the first quarter.
        run = self.until(1.0, 4.0 / SEEN)
        steps, losses, _ = run.binned
        S = run.progress(steps)
        fallen = run.fallen(steps)
        # b is over the loss at the time of a forecast.
        losses = losses / np.interp(SEEN * self.total, steps, losses)
        fits = list[tuple[float, float, float]]()
        for a in POWERS:
            form = np.stack([np.ones_like(S), (S / S[-1]) ** -a, -fallen], 1)
            system = np.vstack([form, [0.0, 0.0, _SURE]]), np.append(losses, _SURE * _USUAL)
            numbers = np.linalg.lstsq(*system, rcond=None)[0]
            error = np.sqrt(np.mean(np.square(form @ numbers - losses)))
            # all but the fewest runs tell a: this decides in those alone
            fits.append(
                (
                    float(error) + 1e-4 * math.log(a / 0.5) ** 2,
                    math.log(a),
                    math.log(max(numbers[2], 1e-3)),
                )
            )
        return *min(fits)[1:], float(fallen[-1])


def read(folder: Path) -> list[Curve]:
    """All curves of the folder from whose first quarter a forecast can be made."""
    rows = defaultdict[tuple[str, ...], list[dict[str, str]]](list)
    with (folder / "curves.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows[row["source"], row["model"], row["curve"]].append(row)
    curves = list[Curve]()
    for (source, model, name), steps_of_run in rows.items():
        steps = np.array([float(row["step"]) for row in steps_of_run])
        rates = np.interp(
            np.arange(round(steps[-1])), steps, [float(row["rate"]) for row in steps_of_run]
        )
        losses = {
            round(float(row["step"])): float(row["loss"])
            for row in steps_of_run
            if row["loss"] and float(row["step"]) > 0
        }
        peak = float(rates.max()) if steps_of_run[0]["adam"] == "1" else None
        curve = Curve(source, model, name, losses, rates, peak)
        # Too few losses.
        with suppress(InputError):
            assert len(curve.until(SEEN).binned[0])
            curves.append(curve)
    return curves


# ---- priors and calibrations of some sources


# No number is better known; runs that the power 0 of the rate counts.
_SPREAD = np.diag([0.08**2, 0.05**2])
_PULL = 0.3


def learned(curves: Sequence[Curve]) -> CurvePrior:
    """The prior of a run of a new source.

    Models at one rate count alike, and a source as the root of how many it has. The means of
    sources differ by more than chance: their covariance comes on top of that of runs.
    """
    informative = [curve for curve in curves if curve.whole[2] > _SHOWS]
    cells = [
        (curve.group, curve.rate and round(math.log10(curve.rate), 1)) for curve in informative
    ]
    runs = Counter(cells)
    models = Counter(source for (source, _), _ in set(cells))
    weights = np.array([1 / runs[cell] / math.sqrt(models[cell[0][0]]) for cell in cells])
    numbers = np.array([curve.whole[:2] for curve in informative])
    logs = np.array(
        [math.nan if curve.rate is None else math.log(curve.rate / 1e-3) for curve in informative]
    )
    place = float(np.nanmean(logs))
    variance = float(np.nanvar(logs))
    terms = np.stack([np.ones_like(logs), np.where(np.isnan(logs), place, logs)], 1)
    square = (terms * weights[:, None]).T @ terms + np.diag([0.0, _PULL])
    coefficients = np.linalg.solve(square, (terms * weights[:, None]).T @ numbers).T
    residuals = numbers - terms @ coefficients.T
    covariance = (residuals * weights[:, None]).T @ residuals / weights.sum() + _SPREAD
    sources = np.array([curve.source for curve in informative])
    means = np.array(
        [
            np.average(residuals[sources == s], 0, weights=weights[sources == s])
            for s in set(sources.tolist())
        ]
    )
    covariance += means.T @ means / max(1, len(means) - 1)
    return CurvePrior("other runs", coefficients, covariance, (place, variance))


@dataclass(frozen=True)
class Forecast:
    """What was said of the final loss of a run, in log loss, and the truth."""

    curve: Curve
    forecast: RunForecast
    middle: float
    sd: float
    gain: float

    @property
    def error(self) -> float:
        """By how much the forecast is above the truth."""
        return self.middle - math.log(self.curve.last[1])

    @property
    def half(self) -> float:
        """Half of the width of the interval."""
        calibration = self.forecast.prior.calibration
        return calibration.q * float(calibration.spread(np.array(self.sd), np.array(self.gain)))


def forecast(curve: Curve, prior: CurvePrior) -> Forecast:
    """The forecast of a run from its first quarter."""
    run = curve.until(SEEN)
    posterior = CurvePosterior(run, prior, curve.rate)
    middle, sd = (float(x[0]) for x in posterior.moments([curve.last[0]]))
    gain = float(posterior.drop([curve.last[0]])[0])
    return Forecast(
        curve, RunForecast(posterior, int(run.steps[-1]), run.total, prior), middle, sd, gain
    )


_BELIEVED = np.log([1.0, 0.004, 0.2])
_FACTOR = math.log(2)
# Of four sources, so that a fifth is covered to 95 %.
_COVERED = 0.97


def calibrated(forecasts: Sequence[Forecast]) -> Calibration:
    """The likeliest k, tau and kappa where errors are Student's t, believed within a factor of 2
    before, and the q that covers ``_COVERED``; sources count alike, in them models."""
    runs = Counter(one.curve.group for one in forecasts)
    models = Counter(source for source, _ in runs)
    weights = np.array([1 / runs[one.curve.group] / models[one.curve.source] for one in forecasts])
    error, sd, gain = (
        np.array([getattr(one, name) for one in forecasts]) for name in ("error", "sd", "gain")
    )

    def cost(x: Array) -> float:
        spread = Calibration(*np.exp(x).tolist()).spread(sd, gain)
        surprise = weights @ (np.log(spread) + 2.5 * np.log1p((error / spread) ** 2 / 4))
        return float(surprise + np.square((x - _BELIEVED) / _FACTOR).sum() / 2)

    x = minimize(cost, _BELIEVED, method="Nelder-Mead").x
    ratios = np.abs(error) / Calibration(*np.exp(x).tolist()).spread(sd, gain)
    order = np.argsort(ratios)
    q = ratios[order][np.searchsorted(np.cumsum(weights[order]) / weights.sum(), _COVERED)]
    return Calibration(*(float(f"{number:.3g}") for number in (*np.exp(x), q)))


def prior_of(curves: Sequence[Curve]) -> CurvePrior:
    """The prior of some curves, with a calibration by leaving each of their sources out."""
    forecasts = list[Forecast]()
    for source in sorted({curve.source for curve in curves}):
        others = learned([curve for curve in curves if curve.source != source])
        forecasts += [forecast(curve, others) for curve in curves if curve.source == source]
    prior = learned(curves)
    return CurvePrior(
        prior.name, prior.coefficients, prior.covariance, prior.rates, calibrated(forecasts)
    )


def left_out(curves: Sequence[Curve], of: Callable[[Curve], object]) -> list[Forecast]:
    """Every run, forecast by what is known of others: those that ``of`` says are not of its
    kind.
    """
    forecasts = list[Forecast]()
    for kind in sorted({of(curve) for curve in curves}, key=str):
        prior = prior_of([curve for curve in curves if of(curve) != kind])
        forecasts += [forecast(curve, prior) for curve in curves if of(curve) == kind]
    return forecasts


# ---- alerts


# Means of later losses that are judged.
_LATER = 24
_RISE = 1.03


def alerted(one: Forecast, rise: float = 1.0) -> bool:
    """Whether later losses of a run raise an alert; from the middle of what is left they are
    ``rise`` times higher.
    """
    total = one.curve.total
    run = one.forecast
    later = {step: loss for step, loss in one.curve.losses.items() if step > run.seen}
    middle = (run.seen + total) / 2
    for steps in np.array_split(np.array(list(later)), min(_LATER, len(later))):
        if run.outside(
            {step: later[step] * (rise if step > middle else 1.0) for step in steps.tolist()}
        ):
            return True
    return False


# ---- the answer


def row_of(source: str, forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """The numbers of a source, in percent where they are of losses."""
    errors = np.array([one.error for one in forecasts])
    halves = np.array([one.half for one in forecasts])
    accepted = [one for one in forecasts if one.forecast.refusal is None]
    errors_of_accepted = np.array([abs(one.error) for one in accepted] or [math.nan])
    are_inside = np.array([float(abs(one.error) <= one.half) for one in accepted] or [math.nan])
    return {
        "source": source,
        "curves": len(forecasts),
        "error": 100 * float(np.median(np.abs(errors))),
        "bias": 100 * float(np.median(errors)),
        "coverage": float(np.mean(np.abs(errors) <= halves)),
        "width": 200 * float(np.median(halves)),
        "accepted": len(accepted) / len(forecasts),
        "error of accepted": 100 * float(np.median(errors_of_accepted)),
        "coverage of accepted": float(np.mean(are_inside)),
        "false alerts": float(np.mean([alerted(one) for one in forecasts])),
        "alerts to 3 % more": float(np.mean([alerted(one, _RISE) for one in forecasts])),
    }


def table(forecasts: Sequence[Forecast]) -> list[dict[str, Any]]:
    """A row per source and one of all."""
    by_source = dict[str, list[Forecast]]()
    for one in forecasts:
        by_source.setdefault(one.curve.source, []).append(one)
    rows = [row_of(source, of_source) for source, of_source in sorted(by_source.items())]
    return [*rows, row_of("all", forecasts)]


def write_prior(curves: Sequence[Curve]) -> None:
    """Write the prior of all curves, for the package."""
    prior = prior_of(curves)
    content = {
        "name": f"{len(curves)} runs of others",
        "numbers": ["ln a", "ln b"],
        "coefficients": prior.coefficients.round(4).tolist(),
        "covariance": prior.covariance.round(4).tolist(),
        "rates": [round(number, 4) for number in prior.rates],
        "calibration": vars(prior.calibration),
        "curves": {
            source: SOURCES[source] for source in sorted({curve.source for curve in curves})
        },
    }
    lines = ",\n".join(
        f" {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()
    )
    file_of("curves").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def run_of(one: Forecast) -> dict[str, Any]:
    """A run and its forecast: the error and the width of the interval, in percent."""
    curve = one.curve
    place = {"source": curve.source, "model": curve.model, "curve": curve.name}
    return place | {"error": 100 * one.error, "width": 200 * one.half}


def main() -> None:
    """Print the forecasts of every source, or write the prior of the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of curves")
    parser.add_argument("--prior", action="store_true", help="write the prior of all curves")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    curves = read(options.data)
    if options.prior:
        write_prior(curves)
        return
    forecasts = {
        "source left out": left_out(curves, lambda curve: curve.source),
        "model left out": left_out(curves, lambda curve: curve.group),
    }
    tables = {name: table(of_split) for name, of_split in forecasts.items()}
    for name, rows in tables.items():
        print(name)
        for row in rows:
            cells = (
                f"{key} {value if isinstance(value, str) else round(value, 3)}"
                for key, value in row.items()
            )
            print("  " + ", ".join(cells))
    if options.out:
        runs = {name: [run_of(one) for one in of_split] for name, of_split in forecasts.items()}
        options.out.write_text(json.dumps({"tables": tables, "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
