"""How often the verdict of a transfer is wrong, and what it costs to reach.

Every replay draws seeds from a bank of real losses (``calibration.transfer_bank``) or a made-up
world, and lets a design ask for trainings. A verdict is false where the population says otherwise
of the rate that was advised: TRANSFERS where it costs more than 10 % of the progress, COSTS where
it costs less.

    python -m calibration.transfer_verdicts --replays 10 --keep
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from calibration.transfer_bank import BANK, KINDS, WORLDS, guess_of
from makers.pages.words import LEVEL, paragraph, scaled, sentence
from makers.tables import fill_page, markdown
from nfd.core.estimates import Interval, share
from nfd.core.files import write_json
from nfd.core.tables import Row
from nfd.laws.best_rate import LEARNT, Scores, rounded
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import TOLERANCE, RuleTransfer
from nfd.laws.sequential import Runs, Search

NUMBERS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs/transfer-verdicts.md"
# How the page names the designs.
SHOWN = {"grid": "grid", "sequential": "search"}
WORLD_NAMES = {"bank": "bank of {worlds}", "made up": "{worlds} made up"}
# Of the true regret from the tolerance: nearer cases are not clear.
CLEAR = 0.05


class Outcome(NamedTuple):
    """A training: its final loss, and whether it was upset."""

    loss: float
    upset: bool


@dataclass(frozen=True)
class Table:
    """The losses of one size of a world, by log2 of the learning rate and seed."""

    outcomes: Mapping[float, list[Outcome]]
    seconds: float

    @property
    def rates(self) -> list[float]:
        return sorted(self.outcomes)

    def at(self, rate: float, seed: int) -> Outcome:
        """The training of a seed, between two rates by a line between its logarithms."""
        rates = np.array(self.rates)
        place = int(np.clip(np.searchsorted(rates, rate), 1, len(rates) - 1))
        low, high = rates[place - 1], rates[place]
        share = float(np.clip((rate - low) / (high - low), 0.0, 1.0))
        of_low = self._seed(low, seed)
        of_high = self._seed(high, seed)
        nearest = of_high if share > 0.5 else of_low
        if not (math.isfinite(of_low.loss) and math.isfinite(of_high.loss)):
            return nearest
        log = (1 - share) * math.log(of_low.loss) + share * math.log(of_high.loss)
        return Outcome(math.exp(log), nearest.upset)

    def _seed(self, rate: float, seed: int) -> Outcome:
        # Far from the best rate few seeds were trained.
        outcomes = self.outcomes[rate]
        return outcomes[seed % len(outcomes)]

    @property
    def count(self) -> int:
        """The number of seeds."""
        return max(map(len, self.outcomes.values()))

    def mean(self, rate: float, guess: float) -> float:
        """The mean score of the population."""
        return fmean(min(self.at(rate, seed).loss, guess) for seed in range(self.count))


@dataclass(frozen=True)
class MadeUp:
    """The losses of one size of a made-up world: a bowl, a wall, and noise.

    Attributes:
        best: log2 of the bowl's vertex. curvature: of the logarithm of the loss, per octave
            squared; asymmetry: that to the right, over it.
        lowest: the loss at the vertex. noise: of the logarithm, of a seed and of a training;
            growth: by how many times itself the latter grows in an octave right of the vertex.
        edge, scatter: middle and deviation over seeds of the edge of stability.
    """

    best: float
    curvature: float
    asymmetry: float
    lowest: float
    noise: tuple[float, float]
    growth: float
    edge: float
    scatter: float
    key: int
    count: int = 200

    @property
    def rates(self) -> list[float]:
        return [self.best - 8, self.best + 8]

    def at(self, rate: float, seed: int) -> Outcome:
        """The training of a seed."""
        of_seed = np.random.default_rng([self.key, seed])
        edge = self.edge + self.scatter * of_seed.normal()
        level = self.noise[0] * of_seed.normal()
        if rate > edge:
            return Outcome(math.inf, True)
        of_run = np.random.default_rng([self.key, seed, round(1000 * (rate + 100))])
        apart = rate - self.best
        noise = self.noise[1] * (1 + self.growth * max(apart, 0.0)) * of_run.normal()
        rise = self.curvature * apart**2 * (self.asymmetry if apart > 0 else 1.0)
        return Outcome(self.lowest * math.exp(level + noise + rise), False)

    def mean(self, rate: float, guess: float) -> float:
        """The mean score of the population."""
        return fmean(min(self.at(rate, seed).loss, guess) for seed in range(self.count))


@dataclass(frozen=True)
class World:
    """The population of one rule's trainings.

    ``small_cost`` is that of a training of the small network, in trainings of the large one.
    """

    name: str
    small: Table | MadeUp
    large: Table | MadeUp
    guess: float
    usual: float
    small_cost: float

    @cached_property
    def best(self) -> float:
        """The mean score of the large network at its best rate."""
        rates = np.arange(self.large.rates[0], self.large.rates[-1], 0.125)
        return min(self.large.mean(rate, self.guess) for rate in rates)

    def regret(self, rate: float) -> float:
        """The true regret of a rate, over the progress of the best one."""
        mean = self.large.mean(rate, self.guess)
        best = min(mean, self.best)
        return (mean - best) / (self.guess - best)


def made_up(key: int) -> World:
    """Draw a world: half of them drift, a third have a wall near the best rate."""
    random = np.random.default_rng([7, key])
    guess = math.log(10)
    drift = float(random.choice([0.0, -random.uniform(0, 3)]))
    start = random.uniform(-2.5, 2.5)
    curvature = math.exp(random.normal(-3.0, 0.7))
    asymmetry = math.exp(random.normal(0.7, 0.6))
    noise = (math.exp(random.normal(-4.0, 0.7)), math.exp(random.normal(-4.0, 0.7)))
    growth = float(random.choice([0.0, random.uniform(0, 3)]))
    wall = float(random.choice([random.uniform(0.3, 1.5), random.uniform(1.5, 5), 9.0]))
    scatter = random.uniform(0.1, 0.6)
    sizes = []
    for place, moved in enumerate((0.0, drift)):
        lowest = 0.5 * guess * math.exp(-0.3 * place)
        best = -10 + start + moved
        of_size = 2 * key + place
        sizes.append(
            MadeUp(best, curvature, asymmetry, lowest, noise, growth, best + wall, scatter, of_size)
        )
    return World(f"made up {key}", sizes[0], sizes[1], guess, -10.0, 1 / 16)


@cache
def bank() -> list[World]:
    """The worlds of the bank."""
    tables = defaultdict[tuple[str, str], dict[float, list[Outcome]]](dict)
    seconds = defaultdict[tuple[str, str], list[float]](list)
    with BANK.open() as file:
        for row in csv.DictReader(file):
            place = row["world"], row["size"]
            outcome = Outcome(float(row["loss"]), row["upset"] == "1")
            tables[place].setdefault(math.log2(float(row["lr"])), []).append(outcome)
            seconds[place].append(float(row["seconds"]))
    worlds = []
    for world in WORLDS:
        sizes = []
        for size in ("small", "large"):
            place = str(world), size
            sizes.append(Table(tables[place], fmean(seconds[place])))
        kind = KINDS[world.kind]
        usual = _USUAL[kind.optimizer]
        cost = _operations(kind.small) / _operations(kind.large)
        worlds.append(World(str(world), sizes[0], sizes[1], guess_of(world.kind), usual, cost))
    return worlds


def _operations(size: tuple[int, int]) -> float:
    width, depth = size
    return width * width * depth


# log2 of the usual learning rates of optimizers.
_USUAL = {"adamw": math.log2(1e-3), "sgd": math.log2(0.1), "muon": math.log2(0.02)}


# ---- designs


@dataclass(frozen=True)
class Result:
    """What a design answered in one replay: its cost in trainings of the large network."""

    verdict: str
    advised: float
    share: Interval | None
    cost: float
    trainings: int


def _drawn(table: Table | MadeUp, random: np.random.Generator) -> Callable[[float, int], Outcome]:
    order = random.permutation(table.count)
    return lambda rate, seed: table.at(rate, int(order[seed % table.count]))


def sequential(world: World, seed: int) -> Result:
    """The search of ``nfd.transfer``."""
    random = np.random.default_rng(seed)
    train = {"small": _drawn(world.small, random), "large": _drawn(world.large, random)}
    search = Search(Runs(world.guess), Runs(world.guess), world.usual, TOLERANCE)
    asking = search.decide()
    while True:
        try:
            wanted = next(asking)
        except StopIteration as end:
            decision = end.value
            break
        runs = search.small if wanted.which == "small" else search.large
        for rate, one in product(wanted.log2_rates, wanted.seeds):
            runs.losses.setdefault((rate, one), train[wanted.which](rate, one))
    cost = len(search.small.losses) * world.small_cost + len(search.large.losses)
    share = decision.regret.share if decision.regret is not None else None
    return Result(decision.verdict, decision.at, share, cost, search.trained)


def grid(world: World, seed: int, seeds: int = 3) -> Result:
    """The grid of 0.3.0: seven octaves, three seeds, six fresh ones at two rates."""
    random = np.random.default_rng(seed)
    train = {"small": _drawn(world.small, random), "large": _drawn(world.large, random)}
    cells = dict[str, Scores]()
    counts = dict[str, int]()
    for which in ("small", "large"):
        rates = [world.usual + k for k in range(-3, 4)]
        for _ in range(12):
            cell = _cell(train[which], rates, range(seeds), world.guess)
            if not cell.edge:
                break
            end = rates[0] if cell.edge < 0 else rates[-1]
            rates = sorted([*rates, end + cell.edge, end + 2 * cell.edge])
        cells[which] = cell
        counts[which] = cell.losses.size
    at = math.log2(rounded(cells["small"].best()))
    own = math.log2(rounded(cells["large"].best()))
    new = _cell(train["large"], [at, own], range(seeds, 3 * seeds), world.guess)
    counts["large"] += new.losses.size
    regret = Regret(new, cells["large"])
    answer = RuleTransfer("", {(1, 1): cells["small"], (2, 1): cells["large"]}, regret)
    cost = counts["small"] * world.small_cost + counts["large"]
    return Result(answer.verdict, at, regret.share, cost, sum(counts.values()))


def _cell(
    train: Callable[[float, int], Outcome], rates: Sequence[float], seeds: range, guess: float
) -> Scores:
    outcomes = [[train(rate, seed) for rate in rates] for seed in seeds]
    numbers = np.array(outcomes, float)
    return Scores(np.array(rates), numbers[..., 0], numbers[..., 1] > 0, guess, least=LEARNT)


DESIGNS: dict[str, Callable[[World, int], Result]] = {"grid": grid, "sequential": sequential}


# ---- error rates


def judged(world: World, result: Result) -> dict[str, Any]:
    """Compare an answer with the population."""
    truth = world.regret(result.advised)
    covered = None
    if result.share is not None and math.isfinite(result.share.value):
        covered = result.share.low <= truth <= result.share.high
    return {
        "world": world.name,
        "truth": truth,
        "verdict": result.verdict,
        "is_clear": abs(truth - TOLERANCE) > CLEAR,
        "is_false": (result.verdict == "TRANSFERS" and truth > TOLERANCE)
        or (result.verdict == "COSTS" and truth < TOLERANCE),
        "covered": covered,
        "cost": result.cost,
        "trainings": result.trainings,
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Error rates, undecided shares, coverage and cost."""

    def share(values: Iterator[bool]) -> float:
        several = list(values)
        return fmean(several) if several else math.nan

    clear = [row for row in rows if row["is_clear"]]
    return {
        "false TRANSFERS": share(r["is_false"] and r["verdict"] == "TRANSFERS" for r in rows),
        "false COSTS": share(r["is_false"] and r["verdict"] == "COSTS" for r in rows),
        "undecided": share(r["verdict"] == "UNCERTAIN" for r in rows),
        "undecided, clear": share(r["verdict"] == "UNCERTAIN" for r in clear),
        "coverage": share(r["covered"] for r in rows if r["covered"] is not None),
        "cost": fmean(r["cost"] for r in rows),
        "trainings": fmean(r["trainings"] for r in rows),
    }


def main() -> None:
    """Print the error rates of both designs, by world and in all; keep those in all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replays", type=int, default=30)
    parser.add_argument("--made-up", type=int, default=0, help="so many worlds, not the bank")
    parser.add_argument("--keep", action="store_true", help="store the rates, and fill the page")
    asked = parser.parse_args()
    rows = defaultdict[str, list[dict[str, Any]]](list)
    worlds = [made_up(key) for key in range(asked.made_up)] or bank()
    for world in worlds:
        for name, design in DESIGNS.items():
            own = [judged(world, design(world, seed)) for seed in range(asked.replays)]
            rows[name] += own
            print(f"{world.name:24} {name:10} true {100 * own[0]['truth']:5.1f} %", _line(own))
    for name, all_rows in rows.items():
        print(f"{'all':24} {name:10}", _line(all_rows))
    if asked.keep:
        stored = read()
        stored["made up" if asked.made_up else "bank"] = {
            "worlds": len(worlds),
            "replays": asked.replays,
            "designs": {name: summary(all_rows) for name, all_rows in rows.items()},
        }
        write_json(NUMBERS, stored)
        if stored.keys() >= WORLD_NAMES.keys():
            fill_page(PAGE, texts(stored))


def read() -> dict[str, Any]:
    """The stored rates, by worlds."""
    stored: dict[str, Any] = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    return stored


def texts(stored: Mapping[str, Any]) -> dict[str, str]:
    """The texts of the page."""
    table = list[Row]()
    for worlds, words in WORLD_NAMES.items():
        of_worlds = stored[worlds]
        for design, name in SHOWN.items():
            rates = of_worlds["designs"][design]
            row: Row = {"worlds": words.format(**of_worlds), "design": name}
            table.append(row | _cells(rates))
    return {"answer": _answer(stored), "rates": markdown(table)}


def _answer(stored: Mapping[str, Any]) -> str:
    """How many verdicts of a search are false, and its compute beside a grid."""
    false = 0
    replays = 0
    shares = []
    for of_worlds in stored.values():
        search = of_worlds["designs"]["sequential"]
        count = of_worlds["worlds"] * of_worlds["replays"]
        false += round(count * (search["false TRANSFERS"] + search["false COSTS"]))
        replays += count
        shares.append(100 * search["cost"] / of_worlds["designs"]["grid"]["cost"])
    wrong = scaled(share(false, replays).limits, 100)
    return paragraph(
        f"**Of {replays} verdicts of a search {false} are false, "
        f"{sentence(wrong, '.1f', ' %', LEVEL)}** (replays count as independent), for "
        f"{min(shares):.0f} to {max(shares):.0f} % of the compute of a grid."
    )


def _cells(rates: Mapping[str, float]) -> Row:
    """The rates of one design as a row of the page."""
    cells: Row = {}
    for name in ("false TRANSFERS", "false COSTS"):
        cells[name] = f"{100 * rates[name]:.1f} %" if rates[name] else "none"
    for name in ("undecided", "undecided, clear"):
        cells[name] = f"{100 * rates[name]:.0f} %"
    cells["coverage"] = f"{100 * rates['coverage']:.0f} %"
    return cells | {"compute": f"{rates['cost']:.1f}", "trainings": f"{rates['trainings']:.1f}"}


def _line(rows: Sequence[Mapping[str, Any]]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in summary(rows).items())


if __name__ == "__main__":
    main()
