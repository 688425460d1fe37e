"""How much compute a designed ladder saves, replayed on ladders that others trained.

    python -m calibration.ladder_design --data FOLDER --bank FILE

Of every ladder the dearest held-out run is forecast from runs that are added one by one, until the
forecast is accepted (``LadderLaw.doubt`` is empty): as ``nfd.design_ladder`` says, in its authors'
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
from statistics import median

import numpy as np
from numpy.typing import NDArray

from makers.tables import fill_page, markdown
from nfd.core.estimates import Interval, mean, share
from nfd.core.files import write_json
from nfd.core.tables import Row
from nfd.core.words import listed, number, power_of_ten
from nfd.laws.ladder import LadderLaw
from nfd.laws.ladder_outlook import FEWEST_RUNS, HOPED, REACH, Outlook, plan_of
from nfd.laws.ladder_posterior import VARIABLES, Posterior, Prior
from nfd.laws.loss_runs import FEWEST_SIZES
from priors.ladders import Ladder, folds, read

Array = NDArray[np.float64]
Order = NDArray[np.int64]
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "ladder-design.md"
NUMBERS = DOCS / "ladder-design.json"
RANDOM_ORDERS = 10
# Sizes, and lengths, of a grid.
GRID = 4
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

    def stop(self, runs: Sequence[int] | Order) -> Stop | None:
        """What was spent on runs, and what they forecast; None where that is refused."""
        if len(runs) < FEWEST_SIZES:
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
    refused = FEWEST_SIZES - 1
    count = FEWEST_SIZES
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

LIMITED = "no dearer than all before"
# The quantile of the error that the first run is planned for.
HOPES = {"designed": HOPED, "for the expected error": 0.5}


def followed(question: Question, hoped: float) -> Row | None:
    """Train the first run of the plan, and plan again, until the forecast is accepted.

    Returns:
        The stop as a row, with the widths that were expected after each run and came, or None.
    """
    trained = list[int]()
    widths = list[tuple[float, float]]()
    expected = math.nan
    while len(trained) < len(question.costs):
        left = np.setdiff1d(np.arange(len(question.costs)), trained)
        chosen = np.array(trained, dtype=int)
        posterior = Posterior(
            VARIABLES, question.sizes[chosen], question.losses[chosen], question.prior
        )
        lacking = max(1, FEWEST_RUNS - len(trained))
        plan = plan_of(
            posterior, question.target, question.sizes[left], fewest=lacking, hoped=hoped
        )
        place, expected = plan[0]
        trained.append(int(left[place]))
        if len(trained) < FEWEST_SIZES:
            continue
        widths.append((expected, question.width(trained)))
        stop = question.stop(trained)
        if stop is not None and is_calibrated(question, trained):
            return stop.row | {"widths": widths}
    return None


def is_calibrated(question: Question, trained: Sequence[int]) -> bool:
    """Whether intervals are calibrated for the runs, as far as others may be trained."""
    nearest = min(6 * float(question.target.prod()) / REACH, float(question.costs.max()))
    return len(trained) >= FEWEST_RUNS and float(question.costs[list(trained)].max()) >= nearest


def limited(question: Question) -> Row | None:
    """Train the run that narrows most of those no dearer than all before, until accepted."""
    trained = [*range(FEWEST_SIZES)]
    while question.stop(trained) is None:
        left = np.setdiff1d(np.arange(len(question.costs)), trained)
        if not len(left):
            return None
        posterior = Posterior(
            VARIABLES, question.sizes[trained], question.losses[trained], question.prior
        )
        most = max(question.costs[trained].sum(), question.costs[left].min())
        left = left[question.costs[left] <= most]
        outlook = Outlook(posterior, question.target, question.sizes[left])
        trained.append(int(left[outlook.most_telling()]))
    stop = question.stop(trained)
    return stop.row if stop is not None else None


def answer(question: Question, policy: str) -> list[Row | None]:
    """Where a policy's forecast is accepted: one stop, or that of every random order."""
    if policy in HOPES:
        return [followed(question, HOPES[policy])]
    if policy == LIMITED:
        return [limited(question)]
    orders = {"ascending": ascending, "grid": grid}
    if policy in orders:
        stops = [first_stop(question, orders[policy](question))]
    else:
        stops = [first_stop(question, shuffled(question, seed)) for seed in range(RANDOM_ORDERS)]
    return [None if stop is None else stop.row for stop in stops]


# ---- the page

RIVALS = ("ascending", "grid", "random")
POLICIES = (*RIVALS, *HOPES, LIMITED)


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
    row["least"] = float(np.sort(question.costs)[:FEWEST_SIZES].sum())
    for policy, stops in of_policy.items():
        row[policy] = mean_spent(stops, total)
    row["best"] = min(RIVALS, key=lambda policy: float(row[policy]))
    for policy in (*HOPES, LIMITED):
        row[f"{policy}, ratio"] = row[policy] / row[row["best"]]
    row["bound"] = row["least"] / row[row["best"]]
    return row


def inside(
    policy: str, names: Sequence[str], bank: Mapping[str, Sequence[Row | None]]
) -> tuple[int, int]:
    """How many accepted forecasts of a policy hold the target, and how many there are."""
    holds = list[bool]()
    for name in names:
        holds += [stop["holds"] for stop in bank[f"{name} {policy}"] if stop is not None]
    return sum(holds), len(holds)


def geometric(ratios: Sequence[float]) -> Interval:
    """The geometric mean of ratios with its 95 % interval over ladders."""
    logs = mean([math.log(ratio) for ratio in ratios])
    value, low, high = np.exp([logs.value, logs.low, logs.high]).tolist()
    return Interval(value, value * logs.stderr, low, high)


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
