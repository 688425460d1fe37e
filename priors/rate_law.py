"""The law of the best rate on public sweeps: ``python -m priors.rate_law --data FOLDER``, and its
package prior.

Every case holds out part of one source; priors come from other sources alone. ``--out`` writes the
numbers as JSON, ``--prior`` the file that the package reads, from all sources. FOLDER holds
``rates.csv``, one row per run: source, cell, N, D, batch_tokens, lr, loss. Its rows are other
people's and stay there.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nfd.laws.bowl import Array
from nfd.laws.rate_law import REFERENCE, Cell, Prior, RateLaw, law_of_cells

TERMS = ("level", "parameters", "tokens", "batch", "critical_level", "critical_batch", "sharpness")
# What papers say, before any sweep: normal distributions of the mean over sources.
PUBLISHED = Prior(
    terms={
        "level": (-9.0, 4.0),
        # 1/width: -1/2 at fixed depth, -1/3 where depth grows as width.
        "parameters": (-0.5, 0.2),
        # above the critical batch: the -0.32 of small batches + 0.75 x 0.47 = 0.03; DeepSeek's rate
        # follows C^-0.125 at a batch of C^0.33, with N and D of C^0.5 each, which is 0.25 beside
        # -1/2 of N
        "tokens": (0.12, 0.15),
        # Between 1/2 (Adam, noise alone) and 1 (as for SGD).
        "batch": (0.75, 0.2),
        "critical_level": (1.5, 1.5),
        "critical_batch": (0.47, 0.2),
        # 1 where noise alone limits the rate (McCandlish et al. 2018), without bound where
        # divergence does
        "sharpness": (math.log(2.0), 0.7),
    },
    bowl={
        "curvature": (math.log(0.003), 2.0),
        # 1.0 let six cells of few runs come out all alike.
        "spread": (math.log(0.5), 0.5),
        "noise": (math.log(0.001), 1.5),
        "form": (math.log(0.3), 0.7),
        "asymmetry": (math.log(2.0), 0.5),
    },
    departure={
        "near": (math.log(0.3), 0.3),
        "cell": (math.log(0.12), 0.4),
        "length": (math.log(3.0), 0.3),
    },
    curvature={"parameters": (-0.2, 0.15), "tokens": (-0.3, 0.2), "batch": (0.25, 0.15)},
    sources=(
        "Yang et al. 2022 (2203.03466)",
        "Bjorck et al. 2025 (2409.19913)",
        "DeepSeek-AI 2024 (2401.02954)",
        "Malladi et al. 2022 (2205.10287)",
        "Zhang et al. 2024 (2410.21676)",
        "Bergsma et al. 2025 (2505.13738)",
    ),
)
# Deviation of terms between sources; the level is each one's own. That of parameters was chosen
# with all sources seen: their powers go from -0.15 to -0.54, and 0.1 covered 0.85 of the largest
# mixtures of experts.
APART = np.array([1e3, 0.2, 0.1, 0.1, 1.0, 0.1, 0.7])
CITED = {
    "steplaw": "Li et al. 2025 (2503.04715)",
    "fantastic": "Wen et al. 2025 (2509.02046)",
    "epfl": "Haegele et al. 2024 (2405.18392)",
}
# Share of the loss: a run that loses so much has diverged, or nearly.
DIVERGED = 0.1
# Sources of the prior: dense networks under AdamW and what steps alike. Best rates of Muon, Lion,
# Kron follow N by -0.25 to -0.39, those of mixtures of experts by -0.15: these share a width.
STEPS_ALIKE = ("steplaw", "fantastic_adamw", "fantastic_nadamw", "epfl_cos", "epfl_wsd")
# Parameters, tokens, tokens per batch.
Place = tuple[float, float, float]
# Whether a cell is fitted (True), held out (False), or neither.
Side = Callable[[Place], bool | None]


def read(folder: Path) -> dict[str, list[tuple[Place, Cell]]]:
    """Cells with two rates or more, by source."""
    rows = dict[tuple[str, str], list[dict[str, str]]]()
    with (folder / "rates.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.setdefault((row["source"], row["cell"]), []).append(row)
    cells = dict[str, list[tuple[Place, Cell]]]()
    for (source, _), runs in rows.items():
        runs.sort(key=lambda row: float(row["lr"]))
        if len({row["lr"] for row in runs}) < max(2, len(runs)):
            continue
        place = (float(runs[0]["N"]), float(runs[0]["D"]), float(runs[0]["batch_tokens"]))
        rates = np.log2([float(row["lr"]) for row in runs])
        losses = np.array([float(row["loss"]) for row in runs])
        cell = Cell(np.log2(np.array(place) / np.array([*REFERENCE.values()])), rates, losses)
        cells.setdefault(source, []).append((place, cell))
    return cells


# ---- Priors


def prior_from(
    sources: Mapping[str, Sequence[tuple[Place, Cell]]], but: str | None = None
) -> Prior:
    """What a new source is expected to have, from papers and from sources other than those that
    begin with ``but``.

    Sources scatter about a common law with deviations ``APART``. Those of one group (the same
    authors) count as one.
    """
    used = {
        name: sources[name]
        for name in STEPS_ALIKE
        if name in sources and not (but and name.startswith(but))
    }
    groups = [name.split("_")[0] for name in used]
    mean, deviation = PUBLISHED.arrays("terms", TERMS)
    start = np.diag(deviation**-2)
    precision = start.copy()
    push = start @ mean
    apart = np.diag(APART**2)
    shapes = dict[str, list[tuple[Array, Array, Array]]]()
    for name, cells in used.items():
        law = law_of_cells([cell for _, cell in cells], PUBLISHED)
        precision_of_law = np.linalg.inv(law.spread)
        share = 1 / groups.count(name.split("_")[0])
        informed = precision_of_law - start
        pushed = precision_of_law @ law.terms - start @ mean
        widened = np.linalg.inv(np.eye(7) + informed @ apart)
        precision = precision + share * widened @ informed
        push = push + share * widened @ pushed
        shapes.setdefault(name.split("_")[0], []).append(
            (law.bowl, law.departure, law.curvature[1:4])
        )
    spread = np.linalg.inv(precision)
    terms = spread @ push
    scatter = np.sqrt(np.diag(spread) + APART**2 * (APART < 10) + (APART > 10) * 4.0**2)
    scatter[0] = 4.0

    def shape(
        place: int, usual: Mapping[str, tuple[float, float]]
    ) -> dict[str, tuple[float, float]]:
        means = [np.mean([numbers[place] for numbers in group], 0) for group in shapes.values()]
        expected = {}
        for k, (name, (usual_mean, width)) in enumerate(usual.items()):
            each = [usual_mean, *(numbers[k] for numbers in means)]
            expected[name] = (float(np.mean(each)), float(math.hypot(np.std(each), width / 2)))
        return expected

    return Prior(
        {
            name: (float(m), float(s))
            for name, m, s in zip(TERMS, [-9.0, *terms[1:]], scatter, strict=True)
        },
        shape(0, PUBLISHED.bowl),
        shape(1, PUBLISHED.departure),
        shape(2, PUBLISHED.curvature),
        (*PUBLISHED.sources, *(CITED[group] for group in dict.fromkeys(groups))),
    )


def written(prior: Prior, evidence: Mapping[str, Any], path: Path) -> None:
    """The prior as the package reads it, in three digits, and what a plan costs that trusts it."""
    groups: dict[str, Any] = {
        group: {name: [round(m, 3), round(s, 3)] for name, (m, s) in getattr(prior, group).items()}
        for group in ("terms", "bowl", "departure", "curvature")
    }
    groups |= {"sources": prior.sources, "evidence": evidence}
    path.write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")


# ---- Cases held out


@dataclass(frozen=True)
class Score:
    """How a law did on cells that it had not seen.

    Attributes:
        error, half: mean absolute error and median half width of the interval, in doublings of the
            rate.
        covered: the share of cells whose best rate lies in its interval.
        excess, same, plan: mean excess loss in percent at the advised rate, at the nearest fitted
            cell's best rate, and by fixed powers of it.
        promised: mean of the costs that the law expects, in percent.
        above: the share of cells that cost more than the law's "at most".
        diverged, chance: the share of advised rates that lose ``DIVERGED`` or more, and the mean
            chance of divergence that the law says.
    """

    cells: int
    error: float
    half: float
    covered: float
    excess: float
    same: float
    plan: float
    promised: float
    above: float
    diverged: float
    chance: float

    def __str__(self) -> str:
        numbers = tuple(asdict(self).values())[1:]
        return f"{self.cells:4d} {' '.join(f'{v:7.3f}' for v in numbers)}"


def excess(cell: Cell, log2_rate: float) -> float:
    """Share of the lowest loss that a rate loses, by the straight line between runs; beyond them as
    at their end.
    """
    return float(np.interp(log2_rate, cell.log2_rates, cell.losses) / cell.losses.min() - 1)


def scored(law: RateLaw, fitted: Sequence[Cell], held: Sequence[Cell]) -> Score:
    """The law at cells that it has not seen.

    A best rate is known with an error of its own: it lies inside where it is nearer than 1.96 of
    both deviations.
    """
    places = np.array([cell.place for cell in held])
    means, deviations = law.predicted(places)
    truth = np.array([cell.moments(law.bowl)[:2] for cell in held])
    error = np.abs(means - truth[:, 0])
    costs = list[tuple[float, ...]]()
    for cell, mean, deviation in zip(held, means, deviations, strict=True):
        answer = law.missed(float(mean), float(deviation), cell.place)
        cost = excess(cell, math.log2(answer.advised))
        near = nearest(cell, fitted)
        costs.append(
            (
                100 * cost,
                100 * excess(cell, near.best),
                100 * excess(cell, by_powers(cell, near)),
                100 * answer.excess.value,
                cost > answer.excess.high,
                cost >= DIVERGED,
                answer.diverges,
            )
        )
    inside = float(np.mean(error < 1.96 * np.sqrt(deviations**2 + truth[:, 1])))
    half = float(np.median(1.96 * deviations))
    return Score(len(held), float(error.mean()), half, inside, *np.mean(costs, 0).tolist())


def nearest(cell: Cell, fitted: Sequence[Cell]) -> Cell:
    """The fitted cell that is the fewest doublings away."""
    return min(fitted, key=lambda other: float(np.square(other.place - cell.place).sum()))


def by_powers(cell: Cell, small: Cell) -> float:
    """log2 of a cell's rate by fixed powers of a small one's best, with width as a root of N."""
    return small.best + float((cell.place - small.place) @ [-0.5, -0.32, 0.5])


def by_complete_d_p(cell: Cell, small: Cell) -> float:
    """log2 of a cell's rate by Complete(d)P at the same size: the root of batch over tokens."""
    return small.best + float((cell.place - small.place) @ [0.0, -0.5, 0.5])


def split(low: float, high: float, axis: int, largest: bool = True) -> Side:
    """Fit up to ``low`` and hold out from ``high`` on, or the other way round."""

    def side(place: Place) -> bool | None:
        is_low = place[axis] <= low
        is_high = place[axis] >= high
        if not is_low and not is_high:
            return None
        return is_low if largest else is_high

    return side


def four_batches(size: Place) -> Side:
    """Fit .13M, .26M, .52M and 2.1M of one size and number of tokens, hold out all others."""

    def side(place: Place) -> bool | None:
        if place[:2] != size[:2]:
            return False
        is_fitted = any(
            abs(place[2] / batch - 1) < 0.05 for batch in (1.31e5, 2.62e5, 5.24e5, 2.1e6)
        )
        return True if is_fitted else None

    return side


DENSE: dict[str, Side] = {
    "N = 1.07B": split(9e8, 1e9, 0),
    "N = 1.07B from .27B": split(2.8e8, 1e9, 0),
    "D >= 50B from 14B": split(14.3e9, 5e10, 1),
    "B <= .2M from .39M": split(2e5, 3.9e5, 2, largest=False),
    "B >= 1.4M from .74M": split(7.4e5, 1.4e6, 2),
}
MOE: dict[str, Side] = {
    "largest N": split(6e8, 1e9, 0),
    "largest D": split(8e9, 2e10, 1),
    "largest B": split(5.3e5, 1e6, 2),
}
OTHERS: dict[str, Side] = {
    "largest N": split(3.1e8, 5e8, 0),
    "largest D / N": lambda place: place[1] / place[0] < 50,
}


# A plan for another batch or length, without runs of one's own but that of the small size: which
# sources, and where.
PLANS: dict[str, dict[str, Side]] = {
    "adam": {
        "more tokens": DENSE["D >= 50B from 14B"],
        "larger batches": DENSE["B >= 1.4M from .74M"],
        "smaller batches": DENSE["B <= .2M from .39M"],
    },
    "other": {"more tokens": OTHERS["largest D / N"]},
}
TRIED = {
    "adam": ("steplaw",),
    "other": ("fantastic_muon", "fantastic_lion", "fantastic_mars", "fantastic_soape"),
}


Carried = tuple[float, float, float, float, bool]


def carried(law: RateLaw, small: Cell, cell: Cell) -> Carried:
    """Find excess losses at four rates, and whether the law's interval holds the best one."""
    sizes = np.exp2([small.place, cell.place]) * [*REFERENCE.values()]
    moved = law.factor(**dict(zip(REFERENCE, map(tuple, sizes.T.tolist()), strict=True)))
    before, one = small.moments(law.bowl)[:2]
    after, other = cell.moments(law.bowl)[:2]
    deviation = moved.rate.stderr / moved.rate.value / math.log(2)
    missed = abs(after - before - math.log2(moved.rate.value))
    one_law = 100 * excess(cell, small.best + math.log2(moved.advised))
    powers = 100 * excess(cell, by_powers(cell, small))
    complete = 100 * excess(cell, by_complete_d_p(cell, small))
    same = 100 * excess(cell, small.best)
    return one_law, powers, complete, same, missed < 1.96 * math.sqrt(deviation**2 + one + other)


def carried_to_held(law: RateLaw, cells: Sequence[tuple[Place, Cell]], side: Side) -> list[Carried]:
    """The costs of every held cell that has a fitted cell of its size."""
    fitted = [cell for place, cell in cells if side(place)]
    held = [cell for place, cell in cells if side(place) is False]
    costs = []
    for cell in held:
        of_its_size = [other for other in fitted if abs(other.place[0] - cell.place[0]) < 0.05]
        if of_its_size:
            costs.append(carried(law, nearest(cell, of_its_size), cell))
    return costs


def planned(
    sources: Mapping[str, Sequence[tuple[Place, Cell]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """What plans cost that carry the best run of a cell to a held one of the same size: the nearest
    that is fitted.

    ``law``, ``powers``, ``complete_d_p`` and ``same`` are mean excess losses in percent: by the
    prior of other sources, by fixed powers, by Complete(d)P, and at the same rate; ``covered`` is
    the share of best rates in the law's 95 % intervals. By kind of optimizer, and case.
    """
    plans = dict[str, dict[str, dict[str, float]]]()
    for kind, tried in TRIED.items():
        law = law_of_cells([], prior_from(sources, but=tried[0].split("_")[0]))
        for case, side in PLANS[kind].items():
            costs = list[Carried]()
            for source in tried:
                costs += carried_to_held(law, sources[source], side)
            means = dict(
                zip(
                    ("law", "powers", "complete_d_p", "same", "covered"),
                    np.mean(costs, 0).round(3).tolist(),
                    strict=True,
                )
            )
            plans.setdefault(kind, {})[case] = {"cells": len(costs)} | means
    return plans


def tabled(evidence: Mapping[str, Mapping[str, Mapping[str, float]]], page: Path) -> None:
    """Write the evidence into the page's table that begins with the column ``optimizer``."""
    lines = page.read_text("utf-8").splitlines()
    start = 2 + next(k for k, line in enumerate(lines) if line.startswith("| optimizer |"))
    rows = [
        f"| {kind} | {case} | {cost['cells']} | {cost['law']:.2g} % | {cost['powers']:.2g} % | "
        f"{cost['complete_d_p']:.2g} % | {cost['same']:.2g} % | {cost['covered']:.2f} |"
        for kind, cases in evidence.items()
        for case, cost in cases.items()
    ]
    page.write_text(
        "\n".join([*lines[:start], *rows, *lines[lines.index("", start) :]]) + "\n",
        encoding="utf-8",
    )


# Mean excess loss in percent.
GOALS = {
    "N = 1.07B": 0.06,
    "N = 1.07B from .27B": 0.113,
    "D >= 50B from 14B": 0.05,
    "B <= .2M from .39M": 0.08,
    "B >= 1.4M from .74M": 0.17,
    "four batches of one size and length": 0.09,
    "two lengths of one size and batch": 0.31,
    "largest D": 0.06,
    "largest B": 0.06,
}
# Powers of the best rate that others report, and of the batch that goes with it.
REPORTED = {
    "parameters": "-0.23 (2409.19913); -0.71 (2503.04715); -1/2 (2203.03466, by width)",
    "tokens": "+0.31 at the best batch (2503.04715)",
    "small-batch tokens": "-0.32 (2409.19913)",
    "batch": "1/2 (2205.10287); 1 (1706.02677, SGD)",
    "critical_batch": "0.46 (2505.13738); 0.47 (2410.21676); best batch: 0.57 (2503.04715), 0.38 "
    "(2505.13738)",
}


def two_lengths(small: Place, large: Place) -> Side:
    """Fit one batch at two numbers of tokens of one size, hold out all other numbers of tokens and
    sizes.
    """

    def side(place: Place) -> bool | None:
        if place in (small, large):
            return True
        return None if place[:2] in (small[:2], large[:2]) else False

    return side


def evaluated(cells: Sequence[tuple[Place, Cell]], side: Side, prior: Prior) -> Score | None:
    """The score of one case; None where nothing is fitted or held out."""
    fitted = [cell for place, cell in cells if side(place)]
    held = [cell for place, cell in cells if side(place) is not None and not side(place)]
    return scored(law_of_cells(fitted, prior), fitted, held) if fitted and held else None


# Source, case, and its score.
Scored = tuple[str, str, Score]


def dense(cells: Sequence[tuple[Place, Cell]], prior: Prior) -> Iterator[Scored]:
    """Every case of the dense sweep; of one size alone, a row for each choice of it."""
    for name, side in DENSE.items():
        yield from _named("steplaw", name, evaluated(cells, side, prior))
    lengths = sorted({place[:2] for place, _ in cells})
    for N, D in lengths:
        case = f"four batches of {N / 1e9:.2f}B, {D / 1e9:.0f}B"
        yield from _named("steplaw", case, evaluated(cells, four_batches((N, D, 0.0)), prior))
    batches = {place[2] for place, _ in cells if abs(place[2] / 5.24e5 - 1) < 0.05}
    for N in dict.fromkeys(N for N, _ in lengths):
        short, *_, long = [(N, D, B) for size, D in lengths for B in batches if size == N]
        case = f"two lengths of {N / 1e9:.2f}B"
        yield from _named("steplaw", case, evaluated(cells, two_lengths(short, long), prior))


def _named(source: str, case: str, score: Score | None) -> Iterator[Scored]:
    if score is not None:
        print(f"{source:18s} {case:32s} {score}", flush=True)
        yield source, case, score


def mean_of_choices(scores: Sequence[Scored], begins: str, case: str) -> Scored:
    """The means over choices of one size, as a case."""
    choices = [asdict(score) for _, name, score in scores if name.startswith(begins)]
    means = {key: float(np.mean([one[key] for one in choices])) for key in choices[0]}
    print(
        f"{case}: excess {means['excess']:.3f}, median "
        f"{np.median([one['excess'] for one in choices]):.3f} %"
    )
    return "steplaw", case, Score(**means | {"cells": choices[0]["cells"]})


def moe(cells: Sequence[tuple[Place, Cell]], prior: Prior) -> Iterator[Scored]:
    """Every case of the mixtures of experts, whose widths are equal."""
    for name, side in MOE.items():
        yield from _named("steplaw_moe", name, evaluated(cells, side, prior))


def others(sources: Mapping[str, Sequence[tuple[Place, Cell]]]) -> Iterator[Scored]:
    """Every case of the small sources."""
    for group in ("fantastic", "epfl"):
        prior = prior_from(sources, but=group)
        for source in sorted(source for source in sources if source.startswith(group)):
            for name, side in OTHERS.items():
                yield from _named(source, name, evaluated(sources[source], side, prior))


def exponents(
    sources: Mapping[str, Sequence[tuple[Place, Cell]]], prior: Prior
) -> list[dict[str, object]]:
    """Powers by the dense sweep alone and by what all sweeps have in common, beside those that are
    reported.
    """
    laws = {
        "steplaw": law_of_cells([cell for _, cell in sources["steplaw"]], prior).exponents,
        "sweeps": RateLaw.of_sweeps().exponents,
    }
    return [
        {"of": of, "reported": text}
        | {
            name: [of_law[of].value, of_law[of].low, of_law[of].high]
            for name, of_law in laws.items()
        }
        for of, text in REPORTED.items()
    ]


def covered_of(scores: Sequence[Score]) -> float:
    """The share of best rates that lie in their intervals; cells count alike."""
    return float(np.average([one.covered for one in scores], weights=[one.cells for one in scores]))


def priced(scores: Sequence[Score]) -> dict[str, float]:
    """Compare what laws promise of the cost with what it was; cells count alike.

    Returns:
        Mean real and promised cost in percent, and the shares of cells that cost more than "at
        most", that diverged, and of which divergence was expected.
    """
    weights = [score.cells for score in scores]

    def mean(name: str) -> float:
        return float(np.average([getattr(score, name) for score in scores], weights=weights))

    names = ("excess", "promised", "above", "diverged", "chance")
    return {"cells": sum(weights)} | {name: mean(name) for name in names}


def main() -> None:
    """Print the scores of every case, or write the prior of the package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of rates.csv")
    parser.add_argument(
        "--prior",
        action="store_true",
        help="write the package's prior, and what plans cost by it, instead",
    )
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    arguments = parser.parse_args()
    sources = read(arguments.data)
    if arguments.prior:
        root = Path(__file__).parents[1]
        evidence = planned(sources)
        written(
            prior_from(sources), evidence, root / "src" / "nfd" / "laws" / "priors" / "rates.json"
        )
        tabled(evidence, root / "docs" / "mathematics" / "recipe.md")
        return
    print(
        "cells; error and half width in doublings; coverage; excess loss in %: law, same rate, "
        "assumed powers"
    )
    prior = prior_from(sources, but="steplaw")
    rows = [*dense(sources["steplaw"], prior)]
    rows.append(mean_of_choices(rows, "four batches of ", "four batches of one size and length"))
    rows.append(mean_of_choices(rows, "two lengths of ", "two lengths of one size and batch"))
    rows += moe(sources["steplaw_moe"], prior_from(sources).of_one_width)
    rows += others(sources)
    by_source = dict[str, list[Score]]()
    for source, _, score in rows:
        by_source.setdefault(source, []).append(score)
    covered = {source: covered_of(scores) for source, scores in by_source.items()}
    prices = {source: priced(scores) for source, scores in by_source.items()}
    prices["all"] = priced([score for _, _, score in rows])
    for source, price in prices.items():
        print(f"{source:18s}", {name: round(number, 3) for name, number in price.items()})
    print("coverage by source:", {source: round(share, 3) for source, share in covered.items()})
    powers = exponents(sources, prior)
    for power in powers:
        print(power)
    if arguments.out:
        cases = [
            {"source": source, "case": case, "goal": GOALS.get(case)} | asdict(score)
            for source, case, score in rows
        ]
        content = {"cases": cases, "coverage": covered, "prices": prices, "exponents": powers}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
