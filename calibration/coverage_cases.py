"""Draws of coverage: means, differences, slopes of a check, noise scales, and predictions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

import nfd
from calibration.coverage import Draw, Outcome, outcome
from nfd.core.estimates import interval, mean, pooled_slope, share
from nfd.data import digits
from nfd.meters.noise import GradientNoise


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Independent standard normal numbers, float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


# ---- means, differences, ratios, shares


def means(replicates: int, skew: float, g: torch.Generator) -> Iterator[Outcome]:
    """Draw the mean of normal numbers, or of log-normal ones.

    Logarithms have the standard deviation ``skew``; where it is zero, the numbers are normal.
    """
    if skew:
        samples = (skew * normal(g, replicates)).exp()
        shape = f"log-normal, {skew:g}"
        truth = math.exp(skew * skew / 2)
    else:
        samples = 1 + normal(g, replicates)
        shape = "normal"
        truth = 1.0
    yield outcome("mean of replicates", f"{replicates} replicates, {shape}", mean(samples), truth)


def differences(first: int, second: int, g: torch.Generator) -> Iterator[Outcome]:
    """Draw the difference of the means of two groups, the first with three times the scatter.

    Its intervals are Welch's, and that from the intervals of both means.
    """
    a = 3 * normal(g, first)
    b = 1 + normal(g, second)
    case = f"{first} and {second} replicates, one scatters three times as much"
    welch = interval(lambda x, y: y.mean(0) - x.mean(0), a, b)
    yield outcome("difference of two groups", case, welch, 1.0)
    yield outcome("difference of two intervals", case, mean(b).minus(mean(a)), 1.0)


def pairs(seeds: int, g: torch.Generator) -> Iterator[Outcome]:
    """Draw the difference of two means that are paired by seed, and their ratio."""
    common = normal(g, seeds)
    a = 1 + 0.2 * (common + normal(g, seeds))
    b = 2 + 0.2 * (common + normal(g, seeds))
    yield outcome("difference paired by seed", f"{seeds} seeds", mean(b - a), 1.0)
    ratio = interval(lambda p: p[:, 0].mean() / p[:, 1].mean(), torch.stack([a, b], 1))
    yield outcome("ratio paired by seed", f"{seeds} seeds, 28 % scatter below", ratio, 0.5)


def shares(count: int, chance: float, g: torch.Generator) -> Iterator[Outcome]:
    """Draw a share of a count."""
    measured = share(int((torch.rand(count, generator=g) < chance).sum()), count)
    yield outcome("share of a count", f"{chance:g} of {count}", measured, chance)


MEANS: tuple[Draw, ...] = (
    *(partial(means, R, 0.0) for R in (2, 3, 8)),
    *(partial(means, R, skew) for R, skew in ((3, 0.2), (8, 0.2), (8, 0.5))),
    *(partial(differences, *counts) for counts in ((2, 2), (3, 3), (3, 5), (8, 5))),
    *(partial(pairs, R) for R in (3, 5, 8)),
    *(partial(shares, *case) for case in ((10, 0.5), (50, 0.05), (500, 0.9))),
)


# ---- slopes of a check


def slopes(
    sizes: int, seeds: int, groups: int, power: float, g: torch.Generator
) -> Iterator[Outcome]:
    """Draw the slope of logarithms that fall as the root of the size and scatter as its power.

    They lie in several groups, which differ in the other size.
    """
    log_n = torch.tensor([64.0 * 2**k for k in range(sizes)], dtype=torch.float64).log()
    x = log_n.repeat(groups).repeat_interleave(seeds)
    group = torch.arange(groups).repeat_interleave(sizes * seeds)
    y = group - 0.5 * x + 0.3 * (power * (x - log_n[0])).exp() * normal(g, len(x))
    case = f"{seeds} seeds, {sizes} sizes, {groups} of the other, scatter as n^{power:g}"
    yield outcome("slope of a check", case, pooled_slope(x, y, group), -0.5)


SLOPES: tuple[Draw, ...] = (
    *(partial(slopes, 4, 3, *case) for case in product((1, 2, 4), (0.0, -0.5, -1.0))),
    *(partial(slopes, 3, 3, groups, -1.0) for groups in (1, 2, 4)),
    *(partial(slopes, 2, 3, groups, -1.0) for groups in (1, 3)),
    *(partial(slopes, sizes, 2, groups, -1.0) for sizes, groups in product((2, 4), (1, 3))),
)


# ---- noise scales

_GROUP = 8
_SAMPLES = 4
# In place of infinity, which stands for an interval that is not known.
_BOUNDED = 1e300


def students(g: torch.Generator, freedom: float, *shape: int) -> Tensor:
    """Numbers of Student's t with variance 1; normal ones where ``freedom`` is infinite."""
    if math.isinf(freedom):
        return normal(g, *shape)
    halves = torch._standard_gamma(torch.full(shape, freedom / 2, dtype=torch.float64), generator=g)
    return normal(g, *shape) * ((freedom - 2) / (2 * halves)).sqrt()


def scales(
    freedom: float, size: int, groups: int, truth: float, g: torch.Generator
) -> Iterator[Outcome]:
    """Draw the noise scale of gradients of ``size`` numbers.

    Each number is 1 with independent noise of variance ``truth``. An interval without an upper
    limit counts by its lower one: it says that the data do not decide how large it is.
    """
    noise = GradientNoise(_SAMPLES, _GROUP)
    draws = students(g, freedom, groups * _GROUP, _SAMPLES, size).mean(1)
    for gradient in 1 + truth**0.5 * draws:
        noise.add([gradient])
    estimate = noise.estimate()
    law = "normal" if math.isinf(freedom) else f"t({freedom:g})"
    case = f"{law}, {size} dimension{'s' * (size > 1)}, scale {truth:g}, {groups} groups"
    yield Outcome(
        "noise scale of gradients", case, estimate.low, min(estimate.high, _BOUNDED), truth
    )


_NOISES = (
    (math.inf, 60, 4.0),
    (math.inf, 60, 64.0),
    (math.inf, 1, 16.0),
    (math.inf, 1, 64.0),
    (2.5, 60, 4.0),
    (2.5, 60, 16.0),
    (2.5, 1000, 4.0),
    (2.5, 1, 16.0),
)
SCALES: tuple[Draw, ...] = tuple(
    partial(scales, freedom, size, groups, truth)
    for (freedom, size, truth), groups in product(_NOISES, (2, 3, 6, 20))
)


# ---- predictions

# Ten steps of 16 digits at a learning rate of 1, depth 2: width n adds about 3.1 / n to the
# evaluation loss, up to two standard errors of the ensembles below. The truth is from 640 networks
# of width 512 and 1,600 of width 128, the bias of order 1 / n subtracted. The evaluation loss is
# known to 0.0014, the last loss to 0.0021.
_EVALUATION_LOSS = 1.3179
_LAST_LOSS = 1.5498
_STEPS = 10
_BATCH = 16
_EVALUATED = 32
_REPLICATES = 4


def predictions(width: int, g: torch.Generator) -> Iterator[Outcome]:
    """Draw what ``nfd.predict`` says of the infinitely wide network, from a few of a width."""
    more: dict[str, Any] = {"weights": "dense", "replicates": _REPLICATES, "seed": g.initial_seed()}
    predicted = nfd.predict(nfd.resnets(64, 10), _task(), 1.0, depth=2, width=width, **more)
    case = f"width {width}, {_REPLICATES} replicates"
    assert predicted.eval_interval is not None
    evaluation = f"{case}, evaluation loss"
    yield outcome("nfd.predict", evaluation, predicted.eval_interval, _EVALUATION_LOSS)
    low = float(predicted.loss_low[-1])
    high = float(predicted.loss_high[-1])
    yield Outcome("nfd.predict", f"{case}, loss before the last step", low, high, _LAST_LOSS)


def untrained(g: torch.Generator) -> Iterator[Outcome]:
    """Draw the loss before training by default settings.

    Outputs of the limit are zero, so that cross-entropy is log C. The first loss is known: without
    a learning rate the second is the same, and is estimated.
    """
    inputs = torch.randn(8, 16, generator=g)
    labels = torch.randint(10, (8,), generator=g)
    family = nfd.resnets(16, 10, activation="gelu", horizon=2.0)
    batches = [(inputs, labels)] * 2
    predicted = nfd.predict(family, batches, 0.0, depth=4, seed=g.initial_seed())
    case = (
        f"width {predicted.width}, {predicted.replicates} replicates, gelu, T = 2, second loss at "
        "a learning rate of 0"
    )
    low = float(predicted.loss_low[1])
    high = float(predicted.loss_high[1])
    yield Outcome("nfd.predict", case, low, high, math.log(10))


@lru_cache
def _task() -> nfd.Task:
    data = digits()
    x, y = data.batches(_BATCH, _STEPS, 0)
    tests = data.test_inputs[:_EVALUATED], data.test_labels[:_EVALUATED]
    return nfd.Task(list(zip(x, y, strict=True)), eval_batches=[tests])


PREDICTIONS: tuple[Draw, ...] = (
    *(partial(predictions, width) for width in (32, 64, 128, 512)),
    untrained,
)
