"""How much compute a designed ladder saves, replayed on ladders that others trained.

    python -m calibration.ladder_design --data FOLDER --bank FILE

Of every ladder the dearest held-out run is forecast from runs that are added one by one, until the
forecast is accepted (``LadderLaw.doubt`` is empty), from six runs or more with one of a 300th of
the target's compute: as ``nfd.design_ladder`` says, in its authors'
order (ascending compute), on a grid of four sizes and four lengths, and in ten random orders. Prior
and calibration come from other groups' ladders. FOLDER is that of ``priors.ladders``. Answers that
FILE lacks are computed, half an hour of one core for all; docs/ladder-design.json and .md follow.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from makers.pages.words import LEVEL, paragraph
from makers.tables import fill_page
from nfd.core.estimates import Interval, mean, share
from nfd.core.files import write_json
from nfd.core.tables import Row
from nfd.core.words import listed
from nfd.laws.ladder import LadderLaw
from nfd.laws.ladder_outlook import FEWEST_RUNS, REACH, plan_of
from nfd.laws.ladder_posterior import VARIABLES, Posterior, Prior
from nfd.laws.loss_runs import FEWEST_SIZES
from priors.ladders import Ladder, folds, read

Array = NDArray[np.float64]
Order = NDArray[np.int64]
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "ladder-design.md"
NUMBERS = DOCS / "ladder-design.json"
RANDOM_ORDERS = 10
# The share of the compute of the best other order that was asked for.
GOAL = 1 / 3
# Sizes, and lengths, of a grid.
GRID = 4
# A designed ladder that is not accepted after so many runs counts as never accepted.
MOST_RUNS = 20
# A search for the first accepted forecast of an order looks ahead by this factor.
_AHEAD = 1.4


@dataclass(frozen=True)
class Question:
    """A target, and the runs that may be trained for its forecast.

    Attributes:
        name, group: of the ladder.
        prior: from the ladders of other groups.
        sizes, losses, costs: of the runs that may be trained, in ascending compute.
        target, loss: the size that is forecast, and its loss.
    """

    name: str
    group: str
    prior: Prior
    sizes: Array
    losses: Array
    costs: Array
    target: Array
    loss: float

    @property
    def least(self) -> float:
        """Operations without which no order can stop: the cheapest runs that may be enough.

        They are six with one that the target is within reach of.
        """
        nearest = min(6 * float(self.target.prod()) / REACH, float(self.costs.max()))
        near = float(self.costs[self.costs >= nearest].min())
        others = np.sort(np.delete(self.costs, int(np.flatnonzero(self.costs == near)[0])))
        return near + float(others[: FEWEST_RUNS - 1].sum())

    def law(self, runs: Sequence[int] | Order) -> LadderLaw:
        """The law of some of the runs."""
        chosen = np.array(runs, dtype=int)
        sizes = self.sizes[chosen]
        losses = self.losses[chosen]
        by_size = {tuple(size): [loss] for size, loss in zip(sizes.tolist(), losses, strict=True)}
        posterior = Posterior(VARIABLES, sizes, losses, self.prior)
        return LadderLaw(posterior, by_size, self.name)

    def width(self, runs: Sequence[int]) -> float:
        """The width of the forecast from some of the runs, over its value."""
        forecast = self.law(runs).at(**dict(zip(VARIABLES, self.target.tolist(), strict=True)))
        return (forecast.high - forecast.low) / forecast.value

    def is_calibrated(self, runs: Sequence[int] | Order) -> bool:
        """Whether intervals are calibrated for the runs, as far as others may be trained."""
        if len(runs) < FEWEST_RUNS:
            return False
        nearest = min(6 * float(self.target.prod()) / REACH, float(self.costs.max()))
        return float(self.costs[np.array(runs, dtype=int)].max()) >= nearest

    def stop(self, runs: Sequence[int] | Order) -> Stop | None:
        """What was spent on runs, and what they forecast.

        None where that is refused, or intervals are not calibrated for it.
        """
        if not self.is_calibrated(runs):
            return None
        law = self.law(runs)
        size = dict(zip(VARIABLES, self.target.tolist(), strict=True))
        if law.doubt(**size):
            return None
        forecast = law.at(**size)
        spent = float(self.costs[np.array(runs, dtype=int)].sum())
        return Stop(len(runs), spent, forecast, bool(forecast.low <= self.loss <= forecast.high))


@dataclass(frozen=True)
class Stop:
    """Where a forecast was accepted: after how many runs, for how many operations."""

    runs: int
    spent: float
    forecast: Interval
    holds: bool

    @property
    def row(self) -> Row:
        """The stop as JSON holds it."""
        limits = self.forecast.limits
        return {"runs": self.runs, "spent": self.spent, "holds": self.holds} | limits


def questions(ladders: Sequence[Ladder], priors: Mapping[str, Prior]) -> Iterator[Question]:
    """The dearest held-out run of every ladder, with the runs that are not held out."""
    for ladder in ladders:
        dearest = int(np.where(ladder.target, ladder.flops, 0.0).argmax())
        order = np.argsort(ladder.flops, kind="stable")
        runs = order[~ladder.target[order]]
        sizes = ladder.sizes[runs]
        yield Question(
            ladder.name,
            ladder.group,
            priors[ladder.group],
            sizes,
            ladder.losses[runs],
            6 * sizes.prod(1),
            ladder.sizes[dearest],
            float(ladder.losses[dearest]),
        )


# ---- orders that are given


def ascending(question: Question) -> Order:
    """The order of the authors: ascending compute."""
    return np.arange(len(question.costs))


def grid(question: Question) -> Order:
    """The runs nearest to a regular grid, in ascending compute, and then the others."""
    logs = np.log(question.sizes)
    places = np.linspace(logs.min(0), logs.max(0), GRID).T
    nearest = set[int]()
    for size in places[0]:
        for length in places[1]:
            apart = np.square((logs - [size, length]) / np.ptp(logs, axis=0)).sum(1)
            nearest.add(int(apart.argmin()))
    others = [k for k in range(len(logs)) if k not in nearest]
    return np.array([*sorted(nearest), *others])


def shuffled(question: Question, seed: int) -> Order:
    """A random order."""
    return np.random.default_rng(seed).permutation(len(question.costs))


def first_stop(question: Question, order: Order) -> Stop | None:
    """Where an order's forecast is first accepted, by looking ahead and then halving.

    Whether a forecast is accepted hardly ever changes back as runs are added.
    """
    stop = cache(lambda count: question.stop(order[:count]))
    refused = FEWEST_RUNS - 1
    count = FEWEST_RUNS
    while stop(count) is None:
        if count == len(order):
            return None
        refused = count
        count = min(len(order), math.ceil(_AHEAD * count))
    while count - refused > 1:
        middle = (count + refused) // 2
        if stop(middle) is None:
            refused = middle
        else:
            count = middle
    return stop(count)


# ---- orders that are chosen on the way


def followed(question: Question) -> Row | None:
    """Train the first run of the plan, and plan again, until the forecast is accepted.

    Returns:
        The stop as a row, with the widths that were expected after each run and came, or None.
    """
    trained = list[int]()
    widths = list[tuple[float, float]]()
    expected = math.nan
    while len(trained) < min(len(question.costs), MOST_RUNS):
        left = np.setdiff1d(np.arange(len(question.costs)), trained)
        chosen = np.array(trained, dtype=int)
        posterior = Posterior(
            VARIABLES, question.sizes[chosen], question.losses[chosen], question.prior
        )
        lacking = max(1, FEWEST_RUNS - len(trained))
        plan = plan_of(posterior, question.target, question.sizes[left], fewest=lacking)
        place, expected = plan[0]
        trained.append(int(left[place]))
        if len(trained) < FEWEST_SIZES:
            continue
        widths.append((expected, question.width(trained)))
        stop = question.stop(trained)
        if stop is not None:
            return stop.row | {"widths": widths}
    return None


def answer(question: Question, policy: str) -> list[Row | None]:
    """Where a policy's forecast is accepted: one stop, or that of every random order."""
    if policy == "designed":
        return [followed(question)]
    orders = {"ascending": ascending, "grid": grid}
    if policy in orders:
        stops = [first_stop(question, orders[policy](question))]
    else:
        stops = [first_stop(question, shuffled(question, seed)) for seed in range(RANDOM_ORDERS)]
    return [None if stop is None else stop.row for stop in stops]


# ---- the page

RIVALS = ("ascending", "grid", "random")
POLICIES = (*RIVALS, "designed")


def mean_spent(stops: Sequence[Row | None], all_runs: float) -> float:
    """The mean compute until acceptance; an order that is never accepted costs all runs."""
    return float(np.mean([all_runs if stop is None else stop["spent"] for stop in stops]))


def compared(question: Question, bank: Mapping[str, Sequence[Row | None]]) -> Row | None:
    """A ladder's row: operations until accepted, by policy; None where all runs are refused."""
    if bank[f"{question.name} ascending"][0] is None:
        return None
    of_policy = {policy: bank[f"{question.name} {policy}"] for policy in POLICIES}
    total = float(question.costs.sum())
    row: Row = {"ladder": question.name, "group": question.group, "pool": len(question.costs)}
    row["target"] = 6 * float(question.target.prod())
    row["least"] = question.least
    for policy, stops in of_policy.items():
        row[policy] = mean_spent(stops, total)
    row["best"] = min(RIVALS, key=lambda policy: float(row[policy]))
    row["ratio"] = row["designed"] / row[row["best"]]
    row["of ascending"] = row["designed"] / row["ascending"]
    row["bound"] = row["least"] / row[row["best"]]
    return row


def inside(policy: str, names: Sequence[str], bank: Mapping[str, Sequence[Row | None]]) -> Interval:
    """The share of accepted forecasts of a policy that hold the target."""
    holds = list[bool]()
    for name in names:
        holds += [stop["holds"] for stop in bank.get(f"{name} {policy}", []) if stop is not None]
    return share(sum(holds), len(holds))


def geometric(rows: Sequence[Row], column: str, level: str = "") -> str:
    """The geometric mean of ratios with its 95 % interval over ladders."""
    logs = mean([math.log(row[column]) for row in rows])
    value, low, high = np.exp([logs.value, logs.low, logs.high]).tolist()
    return f"{value:.2f} ({level}{low:.2f} to {high:.2f})"


def in_percent(one: Interval) -> str:
    """A share with its interval."""
    return f"{100 * one.value:.0f} % ({100 * one.low:.0f} to {100 * one.high:.0f} %)"


def texts(stored: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the page: what the replay says."""
    rows: Sequence[Row] = stored["ladders"]
    bank: Mapping[str, Sequence[Row | None]] = stored["stops"]
    names = [row["ladder"] for row in rows]
    reachable = [row for row in rows if row["bound"] < GOAL]
    others = [row for row in rows if row["bound"] >= GOAL]
    met = [row for row in reachable if row["ratio"] <= GOAL]
    holds = {policy: inside(policy, names, bank) for policy in ("designed", *RIVALS)}
    answer = paragraph(
        f"**On {len(rows)} published ladders a designed one costs "
        f"{geometric(rows, 'ratio', LEVEL)} times the compute of the best of three other orders, "
        f"and {geometric(rows, 'of ascending')} times that of ascending compute.** Accepted "
        f"forecasts hold the target in {in_percent(holds['designed'])} of these ladders; in "
        f"ascending order in {in_percent(holds['ascending'])}."
    )
    sentences = [
        f"The goal, a third, can be met on {len(reachable)} ladders, where a designed one costs "
        f"{geometric(reachable, 'ratio', LEVEL)} times the best order and meets it on {len(met)}. "
        f"On the other {len(others)} it costs {geometric(others, 'ratio')} times, and the least "
        f"that may be enough {geometric(others, 'bound')} times.",
        f"Of forecasts on grids {in_percent(holds['grid'])} hold, in random orders "
        f"{in_percent(holds['random'])}.",
        by_ladder(rows),
        of_refused(names, bank),
        of_widths(names, bank),
    ]
    points = [paragraph(f"- {text}").replace("\n", "\n  ") for text in sentences]
    return {"answer": answer, "summary": "\n".join(points)}


def read_numbers() -> dict[str, Any]:
    """The stored replay."""
    numbers: dict[str, Any] = json.loads(NUMBERS.read_text("utf-8"))
    return numbers


def of_refused(compared_names: Sequence[str], bank: Mapping[str, Sequence[Row | None]]) -> str:
    """What a designed order did on ladders whose own order is never accepted."""
    names = [key.removesuffix(" designed") for key in bank if key.endswith(" designed")]
    refused = [name for name in names if name not in compared_names]
    stops = {name: bank[f"{name} designed"][0] for name in refused}
    accepted = {name: stop["holds"] for name, stop in stops.items() if stop is not None}
    return (
        f"On {len(refused)} more ladders the order of their authors is never accepted; a designed "
        f"one was on {len(accepted)} ({listed(accepted)}), and {sum(accepted.values())} of these "
        "forecasts hold."
    )


def of_widths(names: Sequence[str], bank: Mapping[str, Sequence[Row | None]]) -> str:
    """How far the widths that were expected came."""
    ratios = list[float]()
    for name in names:
        stop = bank[f"{name} designed"][0]
        if stop is not None:
            ratios += [came / expected for expected, came in stop["widths"]]
    low, middle, high = np.quantile(ratios, (0.1, 0.5, 0.9)).tolist()
    return (
        f"The width after a run is {middle:.2f} times the expected one in the median, {low:.2f} to "
        f"{high:.2f} in 8 of 10."
    )


def by_ladder(rows: Sequence[Row]) -> str:
    """The least and the largest ratio, and how often it is above 1."""
    ordered = sorted(rows, key=lambda row: float(row["ratio"]))
    ends = [f"{row['ratio']:.2f} ({row['ladder']})" for row in (ordered[0], ordered[-1])]
    dearer = sum(row["ratio"] > 1 for row in rows)
    return (
        f"By ladder it costs {ends[0]} to {ends[1]} times the best order, and more than that on "
        f"{dearer} of {len(rows)}."
    )


def filled(path: Path, asked: Sequence[Question]) -> dict[str, list[Row | None]]:
    """The answers of a bank, which gets those that it lacks.

    Of a ladder whose own order is never accepted only the designed order is followed.
    """
    bank = json.loads(path.read_text("utf-8")) if path.exists() else {}
    for policy in POLICIES:
        for question in asked:
            key = f"{question.name} {policy}"
            refused = policy != "ascending" and bank[f"{question.name} ascending"][0] is None
            if key in bank or (refused and policy != "designed"):
                continue
            bank[key] = answer(question, policy)
            write_json(path, bank)
            print(key, [stop and (stop["runs"], stop["holds"]) for stop in bank[key]], flush=True)
    return bank


def write_page(asked: Sequence[Question], bank: Mapping[str, Sequence[Row | None]]) -> None:
    """Write docs/ladder-design.json, and fill the page."""
    candidates = [compared(question, bank) for question in asked]
    rows = [row for row in candidates if row is not None]
    stored = {"ladders": rows, "stops": bank}
    write_json(NUMBERS, stored)
    fill_page(PAGE, texts(stored))


def main() -> None:
    """Fill the bank, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder of ladders")
    parser.add_argument("--bank", type=Path, required=True, help="a file of answers, as JSON")
    options = parser.parse_args()
    ladders = read(options.data)
    priors = {}
    for fold in folds(ladders)[0]:
        priors[fold.group] = replace(fold.prior, calibration=fold.calibration)
    asked = list(questions(ladders, priors))
    write_page(asked, filled(options.bank, asked))


if __name__ == "__main__":
    main()
