"""How often the forecast of a running job is right, by the share of it that is done.

``python -m calibration.running_jobs --data FOLDER`` forecasts the final losses of finished runs
from a share of their steps, and fills the tables of docs/howto/watch.md. FOLDER has curves.csv as
``priors.curves`` reads it. The stored result is of the repositories fabian-sp/lr-scheduling (arXiv
2501.18965 and 2405.18392; its runs that go on from another run's checkpoint begin with the losses
of that run) and thu-yao-01-luo/MultiPowerLaw (arXiv 2503.12811). These are forecast twice:

- by the *package's* prior, which has learned from these runs too, so that it looks better than it
  is;
- by a prior of *others*: of the runs in FOLDER of all other models. It knows less than the
  package's.

Runs of ours (``calibration.small_runs``), which no prior has learned from, are forecast by the
package's.

A schedule is contradicted by the losses where ``RunForecast.contradicted_by`` names another. Of
true ones this is an error. Wrong ones are the five of ``claims``, where they differ from the true
one by 0.2 of the peak or more in the steps done, after the warm-up.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from calibration import small_runs
from makers.tables import fill_page, markdown
from nfd.core.errors import InputError
from nfd.core.estimates import Interval
from nfd.laws.curve import (
    CurvePrior,
    RunCurve,
    RunForecast,
    Schedule,
    forecast_of,
    read_curve_prior,
)
from nfd.laws.schedules import RateSchedule
from priors.curves import Curve, prior_of, read

RESULT = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs" / "howto" / "watch.md"
# Of the steps of a run.
DONE = (0.125, 0.25, 0.35, 0.5, 0.75, 0.9)
# The same, where wrong schedules are told, to one published run of so many.
TOLD = (0.25, 0.5, 0.75)
_EVERY = 3
# The share of which the page shows how many wrong schedules are noticed.
SHOWN = 0.5
# Classes of how wrong a schedule is in what was done, over the peak rate.
WRONG_BY = ((0.2, 0.4), (0.4, 0.7), (0.7, 1.01))
_AT_PEAK = 0.999
# A warm-up is no longer: a schedule may reach its peak late.
_WARM = 0.1


@dataclass(frozen=True)
class Truth:
    """Forecasts of runs under their own schedules, from one share of their steps.

    Attributes:
        runs: whose runs they are.
        prior: which prior forecasts them.
        done: the share of the steps.
        count: how many forecasts there are.
        inside, inside_alike: the share of final losses inside; the same with models counting alike.
        contradicted: how many schedules are, by error.
        accepted, accepted_inside: how many forecasts are not refused, and how many of these hold.
        error, width: medians, in percent of the final loss.
    """

    runs: str
    prior: str
    done: float
    count: int
    inside: float
    inside_alike: float
    contradicted: int
    accepted: int
    accepted_inside: int
    error: float
    width: float


@dataclass(frozen=True)
class Wrong:
    """Forecasts under wrong schedules, from one share of the steps.

    Attributes:
        low, high: by how much they are wrong in what was done, over the peak.
        count, noticed: how many are told, and contradicted by the losses.
        outside, outside_noticed: the same of those whose final loss is outside.
    """

    runs: str
    done: float
    low: float
    high: float
    count: int
    noticed: int
    outside: int
    outside_noticed: int


def forecast(curve: Curve, done: float, schedule: Schedule, prior: CurvePrior) -> RunForecast:
    """The forecast of a run from a share of its steps, under a schedule."""
    losses = {step: loss for step, loss in curve.losses.items() if step <= done * curve.total}
    return forecast_of(RunCurve(losses, schedule, curve.total), prior, curve.rate)


def at_end(curve: Curve, said: RunForecast) -> Interval:
    """The forecast over the final loss, so that 1 is the truth."""
    interval = said.at(max(round(curve.last[0]), said.seen))
    final = curve.last[1]
    return Interval(
        interval.value / final, interval.stderr / final, interval.low / final, interval.high / final
    )


def holds(curve: Curve, said: RunForecast) -> bool:
    """Whether the final loss is inside."""
    interval = at_end(curve, said)
    return interval.low <= 1 <= interval.high


def truth(
    runs: str, prior: str, done: float, curves: Sequence[Curve], of: Callable[[Curve], CurvePrior]
) -> Truth:
    """Forecast runs under their own schedules; those with too few losses by then are left out."""
    kept = list[tuple[Curve, RunForecast]]()
    for curve in curves:
        with suppress(InputError):
            kept.append((curve, forecast(curve, done, curve.rates.tolist(), of(curve))))
    inside = np.array([holds(curve, said) for curve, said in kept])
    is_accepted = np.array([said.refusal is None for _, said in kept])
    groups = [curve.group for curve, _ in kept]
    weights = [1 / groups.count(group) for group in groups]
    ends = [at_end(curve, said) for curve, said in kept]
    errors = [abs(end.value - 1) for end in ends]
    widths = [(end.high - end.low) / end.value for end in ends]
    return Truth(
        runs=runs,
        prior=prior,
        done=done,
        count=len(kept),
        inside=round(float(inside.mean()), 4),
        inside_alike=round(float(np.average(inside, weights=weights)), 4),
        contradicted=sum(bool(said.contradicted_by) for _, said in kept),
        accepted=int(is_accepted.sum()),
        accepted_inside=int(inside[is_accepted].sum()),
        error=round(100 * float(np.median(errors)), 3),
        width=round(100 * float(np.median(widths)), 3),
    )


def claims(warmed: int) -> dict[str, Callable[[int, int], float]]:
    """Schedules that a run is told, given its warm-up."""
    cosine = RateSchedule(warmup=warmed, fall="cosine")
    return {
        "constant": RateSchedule(warmup=warmed),
        "cosine": cosine,
        "linear": RateSchedule(warmup=warmed, fall="linear"),
        "cosine over twice the steps": lambda step, steps: cosine(step, 2 * steps),
        "cosine over half of the steps": lambda step, steps: cosine(step, steps // 2),
    }


def told_wrong(curve: Curve, done: float, prior: CurvePrior) -> Iterator[tuple[float, RunForecast]]:
    """By how much each wrong schedule is wrong in what was done, and the forecast under it."""
    shares = curve.rates / curve.rates.max()
    warmed = min(int(np.argmax(shares >= _AT_PEAK)), int(_WARM * curve.total))
    for claim in claims(warmed).values():
        told = np.array([claim(step, curve.total) for step in range(curve.total)])
        apart = np.abs(told - shares)[warmed + 1 : int(done * curve.total)].max(initial=0.0)
        if apart >= WRONG_BY[0][0]:
            yield float(apart), forecast(curve, done, told.tolist(), prior)


def wrong(runs: str, done: float, curves: Sequence[Curve], prior: CurvePrior) -> list[Wrong]:
    """Tell runs wrong schedules: a row for each class of how wrong they are."""
    cases = list[tuple[float, bool, bool]]()
    for curve in curves:
        with suppress(InputError):
            for apart, said in told_wrong(curve, done, prior):
                cases.append((apart, bool(said.contradicted_by), not holds(curve, said)))
    rows = []
    for low, high in WRONG_BY:
        of_class = [(noticed, outside) for apart, noticed, outside in cases if low <= apart < high]
        rows.append(
            Wrong(
                runs=runs,
                done=done,
                low=low,
                high=high,
                count=len(of_class),
                noticed=sum(noticed for noticed, _ in of_class),
                outside=sum(outside for _, outside in of_class),
                outside_noticed=sum(noticed and outside for noticed, outside in of_class),
            )
        )
    return rows


# ---- the page

# The shares of the steps that the page shows.
SHOWN_DONE = (0.25, 0.35, 0.5, 0.75)


def table_of_truth(rows: Sequence[Truth]) -> str:
    """A row for each share done: how many final losses are inside, and how many are accepted."""
    by_set = {(row.runs, row.prior, row.done): row for row in rows}
    cells = []
    for done in SHOWN_DONE:
        package = by_set["published", "package", done]
        others = by_set["published", "others", done]
        ours = by_set["ours", "package", done]
        cells.append(
            {
                "done": f"{done:g}",
                "inside, model left out": f"{others.inside:.3f}",
                "inside, package": f"{package.inside:.3f}",
                "of them accepted": f"{package.accepted} of {package.count}",
                "accepted inside": _share(package.accepted_inside, package.accepted),
                "error, %": f"{package.error:.2f}",
                "contradicted": f"{package.contradicted} of {package.count}",
                "ours inside": f"{round(ours.inside * ours.count)} of {ours.count}",
            }
        )
    return markdown(cells)


def table_of_wrong(rows: Sequence[Wrong]) -> str:
    """A row for each class: how many wrong schedules are noticed in half of a published run."""
    cells = []
    for low, high in WRONG_BY:
        for row in rows:
            if (row.runs, row.done, row.low) == ("published", SHOWN, low) and row.count > 0:
                cells.append(
                    {
                        "wrong by": f"{low:g} to {min(high, 1.0):g}",
                        "noticed": f"{row.noticed} of {row.count}",
                        "of those outside": f"{row.outside_noticed} of {row.outside}",
                    }
                )
    return markdown(cells)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else ""


def stored() -> tuple[list[Truth], list[Wrong]]:
    """The stored result."""
    content = json.loads(RESULT.read_text(encoding="utf-8"))
    return [Truth(**row) for row in content["true"]], [Wrong(**row) for row in content["wrong"]]


def fill() -> None:
    """Fill the page from the stored result."""
    of_truth, of_wrong = stored()
    tables = {"jobs": table_of_truth(of_truth), "wrong": table_of_wrong(of_wrong)}
    fill_page(PAGE, tables)


def main() -> None:
    """Forecast all runs, store the rows, and fill the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of curves")
    curves = read(parser.parse_args().data)
    ours = small_runs.read()
    package = read_curve_prior()
    others = {
        group: prior_of([curve for curve in curves if curve.group != group])
        for group in sorted({curve.group for curve in curves})
    }
    of_truth = list[Truth]()
    for done in DONE:
        of_truth.append(truth("published", "package", done, curves, lambda _: package))
        of_truth.append(truth("published", "others", done, curves, lambda c: others[c.group]))
        of_truth.append(truth("ours", "package", done, ours, lambda _: package))
        print(*of_truth[-3:], sep="\n", flush=True)
    of_wrong = list[Wrong]()
    for done in TOLD:
        of_wrong += wrong("published", done, curves[::_EVERY], package)
        of_wrong += wrong("ours", done, ours, package)
        print(*of_wrong[-6:], sep="\n", flush=True)
    content = {
        name: ",\n".join(json.dumps(asdict(row)) for row in rows)
        for name, rows in (("true", of_truth), ("wrong", of_wrong))
    }
    lists = ",\n".join(f'"{name}": [\n{lines}\n]' for name, lines in content.items())
    RESULT.write_text(f"{{\n{lists}\n}}\n", encoding="utf-8")
    fill()


if __name__ == "__main__":
    main()
