"""Coverage of intervals of means, differences, ratios, exponents, variances and shares, on simulated numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.coverage_case import Draw, Outcome, Row, normal, outcome, repeated, share
from benchmarks.ratio import Ratio, improvement
from nfd.core.estimates import Interval, combined, interval, mean
from nfd.paper.claims.claim import exponent, ratio
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.figure1 import variance_ratio
from nfd.paper.figures.figure5 import tuned_advantage
from nfd.paper.figures.panels import curve_rows, difference, slope

_SIZES = torch.tensor([64.0, 128.0, 256.0, 512.0], dtype=torch.float64)
_RATES = (-1.0, 0.0, 1.0, 2.0)


def means(replicates: int, skew: float, g: torch.Generator) -> Iterator[Outcome]:
    """A mean; of logarithms that are normal with standard deviation ``skew``, or of normal numbers."""
    samples = (skew * normal(g, replicates)).exp() if skew else 1 + normal(g, replicates)
    shape = f"log-normal, {skew:g}" if skew else "normal"
    truth = math.exp(skew * skew / 2) if skew else 1.0
    yield outcome("mean of replicates", f"{replicates} replicates, {shape}", mean(samples), truth)


def bands(runs: int, g: torch.Generator) -> Iterator[Outcome]:
    """A place of a curve of a figure."""
    rows = curve_rows("series", [0.0, 1.0], "loss", 2 + normal(g, runs, 2))
    yield Outcome("band of a figure", f"{runs} runs", rows[1]["low"], rows[1]["high"], 2.0)


def differences(first: int, second: int, g: torch.Generator) -> Iterator[Outcome]:
    """Means of two groups apart, the first with three times the scatter; by Welch, and from the intervals of both."""
    a, b = 3 * normal(g, first), 1 + normal(g, second)
    case = f"{first} and {second} replicates, one scatters three times as much"
    welch = interval(lambda x, y: y.mean(0) - x.mean(0), a, b)
    yield outcome("difference of two groups", case, welch, 1.0)
    yield outcome("difference of two intervals", case, mean(b).minus(mean(a)), 1.0)
    yield outcome("sum of variances", case, combined(1.0 + float(b.mean() - 1 - a.mean()), _variances(a, b)), 1.0)


def _variances(*samples: Tensor) -> list[tuple[float, float]]:
    return [(float(s.var(0)) / len(s), len(s) - 1) for s in samples]


def pairs(seeds: int, g: torch.Generator) -> Iterator[Outcome]:
    """Means paired by seed apart, and the ratio of the two."""
    common = normal(g, seeds)
    a, b = 1 + 0.2 * (common + normal(g, seeds)), 2 + 0.2 * (common + normal(g, seeds))
    yield outcome("difference paired by seed", f"{seeds} seeds", difference(a, b), 1.0)
    found = interval(lambda p: p[:, 0].mean() / p[:, 1].mean(), torch.stack([a, b], 1))
    yield outcome("ratio paired by seed", f"{seeds} seeds, 28 % scatter below", found, 0.5)


def ratios(networks: int, scatter: float, g: torch.Generator) -> Iterator[Outcome]:
    """Means of two independent groups over each other."""
    found = ratio(2 * (1 + scatter * normal(g, networks)), 1 + scatter * normal(g, networks))
    yield outcome("ratio of two groups", f"{networks} networks, {scatter:.0%} scatter", found, 2.0)


def timings(rounds: int, g: torch.Generator) -> Iterator[Outcome]:
    """A ratio of the benchmarks, and how it changed."""
    old, new = (Ratio(tuple((math.log(2) + 0.1 * normal(g, rounds)).exp().tolist())) for _ in range(2))
    yield outcome("exponential of a logarithm", f"{rounds} rounds", old.interval, 2.0)
    yield outcome("change of a ratio", f"{rounds} rounds", improvement(old, new, 0.025), 1.0)


def exponents(seeds: int, power: float, g: torch.Generator) -> Iterator[Outcome]:
    """The power of the size in a mean over seeds, whose scatter changes with the size."""
    relative = 0.3 * (_SIZES / _SIZES[0]).pow(power)
    samples = _SIZES.pow(-0.5) * (1 + relative * normal(g, seeds, len(_SIZES)))
    case = f"{seeds} seeds, 4 sizes, scatter as n^{power:g}"
    yield outcome("exponent of means over seeds", case, exponent(_SIZES.tolist(), samples), -0.5)
    row = slope("series", _SIZES.tolist(), samples)
    yield Outcome("exponent of a figure", case, row["low"], row["high"], -0.5)


def variances(seeds: int, g: torch.Generator) -> Iterator[Outcome]:
    """The log ratio of the variances of final losses, as figure 1 has it."""
    losses = {"pre": 1 + 0.1 * normal(g, seeds), "post": 1 + 0.3 * normal(g, seeds)}
    records = [_run({"order": order}, test_loss=v) for order, some in losses.items() for v in some.tolist()]
    yield outcome("ratio of variances", f"{seeds} seeds, normal losses", variance_ratio(Runs(records)), 2 * math.log(3))


def tuned(seeds: int, g: torch.Generator) -> Iterator[Outcome]:
    """Two rules apart, each at the rate with its lowest mean training loss, which the seeds choose."""
    common, records = normal(g, seeds), []
    for rule, best in (("depth-mup", 0.0), ("depth-mup-inner", 1.0)):
        for eta in _RATES:
            train, test = (1 - best / 5 + 0.2 * (eta - best) ** 2 + 0.05 * (common + normal(g, seeds)) for _ in "ab")
            config = {"rule": rule, "eta_c": 2.0**eta}
            records += [
                _run(config, train_loss=a, test_loss=b) for a, b in zip(train.tolist(), test.tolist(), strict=True)
            ]
    found = tuned_advantage(Runs(records), "test_loss")
    yield outcome("two rules, each at its best rate", f"{seeds} seeds", found, -0.2)


def _run(config: Mapping[str, Any], **metrics: float) -> Any:
    return cast(Any, SimpleNamespace(config=config, metrics=metrics))


def shares(count: int, chance: float, g: torch.Generator) -> Iterator[Outcome]:
    """A share of a count."""
    found: Interval = share(int((torch.rand(count, generator=g) < chance).sum()), count)
    yield outcome("share of a count", f"{chance:g} of {count}", found, chance)


DRAWS: tuple[Draw, ...] = (
    *(partial(means, R, 0.0) for R in (2, 3, 8)),
    *(partial(means, R, skew) for R, skew in ((3, 0.2), (8, 0.2), (8, 0.5))),
    *(partial(bands, R) for R in (2, 3, 8)),
    *(partial(differences, *counts) for counts in ((2, 2), (3, 3), (3, 5), (8, 5))),
    *(partial(pairs, R) for R in (3, 5, 8)),
    *(partial(ratios, *case) for case in ((3, 0.1), (3, 0.3), (12, 0.1), (12, 0.3))),
    *(partial(timings, R) for R in (3, 5)),
    *(partial(exponents, R, power) for R in (2, 3, 5) for power in (-0.5, -1.0)),
    *(partial(variances, R) for R in (3, 5)),
    *(partial(tuned, R) for R in (3, 5)),
    *(partial(shares, *case) for case in ((10, 0.5), (50, 0.05), (500, 0.9))),
)


def means_cover(repetitions: int, seed: int) -> list[Row]:
    """Rows of every case here."""
    return repeated(DRAWS, repetitions, seed)
