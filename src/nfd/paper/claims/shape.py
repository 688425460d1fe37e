"""Claims of Figs. 1 to 3: pre- or post-activation, the horizon, what size buys, and rates of
convergence.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from nfd.core import interval, mean, squared_distances
from nfd.paper.claims.claim import (
    Claim,
    Evidence,
    Judged,
    above,
    as_fast_as,
    below,
    between,
    inside,
    known,
    no_number,
    power_said,
    rescued,
    undecided,
)
from nfd.paper.figures import figure1, figure2, figure3
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.panels import difference
from nfd.runs import upset_in

_MODERATE = 2.0  # the horizon up to which the paper's "moderate" is taken here


def _advantage(evidence: Evidence, metric: str) -> Judged:
    runs = evidence.part("1", "training")
    advantage = figure1.advantage(runs, metric)
    if not known(advantage):
        return no_number(runs, "order", "")
    return above(
        advantage,
        0.0,
        f"At the end of training post-activation is {advantage} nats above pre-activation.",
        *_budget(evidence),
    )


def _budget(evidence: Evidence) -> tuple[str, ...]:
    config = evidence.part("1", "training").configs[0]
    return (f"depth {config.depth}, width {config.width}, {config.steps} steps of {config.batch}",)


def _steadier(evidence: Evidence) -> Judged:
    """By the test loss at the end; the curves before it are the condition, if they alone vary
    less.
    """
    runs = evidence.part("1", "training")
    end = figure1.variance_ratio(runs)
    if not known(end):
        return no_number(runs, "order", "")
    losses = runs.curve("loss")
    moments = {
        "the first step": losses[:, 0],
        "the second half of training": losses[:, losses.shape[1] // 2 :].mean(1),
    }
    before = {
        name: ratio
        for name, loss in moments.items()
        if known(ratio := figure1.variances(runs, loss))
    }
    times = ", ".join(
        f"{math.exp(ratio.value):.2g} times in {name}" for name, ratio in before.items()
    )
    verdict, condition = rescued(
        inside(end, 0.0, math.inf),
        {f"in {name}": inside(ratio, 0.0, math.inf) for name, ratio in before.items()},
    )
    reading = (
        f"The variance of the test loss over {_seeds(runs)} seeds is {math.exp(end.value):.2g} "
        f"times that of pre-activation; of training losses {times or 'unknown'}.{condition}"
    )
    return replace(above(end, 0.0, reading, *_budget(evidence), *moments), verdict=verdict)


def _moderate(evidence: Evidence, metric: str) -> Judged:
    """From the smallest horizon that is at least 1 to the next."""
    runs = evidence.runs["2"]["horizon"]
    first, second = [T for T in sorted(runs.values("horizon")) if T >= 1][:2]
    some = [runs.where(horizon=T) for T in (first, second)]
    if not any(r.status == "done" for r in (*some[0], *some[1])):
        return no_number(runs, "horizon", "T =")
    change = figure2.gain(runs, first, second, evidence.classes, metric)
    best = figure2.best(runs, metric)
    lowest = (
        "some networks diverged at every T" if math.isnan(best) else f"it is lowest at T = {best:g}"
    )
    return below(
        change,
        0.0,
        f"The {_named(metric)} changes by {change} nats from T = {first:g} to {second:g}; "
        f"{lowest}.",
        f"horizons {', '.join(f'{T:g}' for T in sorted(runs.values('horizon')))}",
    )


def _excessive(evidence: Evidence) -> Judged:
    """The largest horizon against the best smaller one, which is chosen without the seed that is
    compared.
    """
    runs = evidence.part("2", "horizon", "large")
    if all(r.status == "diverged" for r in runs):
        return no_number(runs, "horizon", "T =")
    losses = {T: s.clamp(max=math.log(evidence.classes)) for T, s in figure2.scores(runs).items()}
    *smaller, largest = sorted(losses)
    lost = torch.stack(
        [
            losses[largest][k] - losses[_best_without(losses, smaller, k)][k]
            for k in range(_seeds(runs))
        ]
    )
    apart = mean(lost)
    beside = "".join(
        f"; {difference(losses[T], losses[largest])} against T = {T:g}"
        for T in smaller
        if 1 <= T <= _MODERATE
    )
    config = runs.configs[0]
    passes = config.steps * config.batch / len(evidence.dataset.train)
    return above(
        apart,
        0.0,
        f"At T = {largest:g} the test loss is {apart} nats above that of the best smaller "
        f"T{beside}.",
        f"{passes:.2g} passes over the images: longer training was not tried",
    )


def _best_without(losses: dict[float, Tensor], horizons: list[float], seed: int) -> float:
    rest = [k for k in range(len(losses[horizons[0]])) if k != seed]
    return min(horizons, key=lambda T: float(losses[T][rest].mean()))


def _unstable_horizon(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["both"]
    horizons = sorted(runs.values("horizon"))
    every = ", ".join(f"{_upset(runs.where(horizon=T)).mean():.0%} at {T:g}" for T in horizons)
    return _more_upset(
        runs.where(horizon=horizons[-1]),
        runs.where(horizon=horizons[0]),
        f"T = {horizons[-1]:g}",
        f"T = {horizons[0]:g}",
        f"every T: {every}",
    )


def _unstable_depth(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["both"]
    depths = sorted(runs.values("depth"))
    every = " and ".join(
        f"{_upset(runs.where(depth=L)).mean():.0%} at depth {L}" for L in (depths[0], depths[-1])
    )
    moderate = Runs([r for r in runs if r.config["horizon"] <= _MODERATE])
    return _more_upset(
        moderate.where(depth=depths[-1]),
        moderate.where(depth=depths[0]),
        f"depth {depths[-1]}",
        f"depth {depths[0]}",
        f"every T up to the largest: {every}",
        "depths up to 256 under tuned rates: docs/sweeps.md",
    )


def _more_upset(many: Runs, few: Runs, name: str, other: str, *tried: str) -> Judged:
    """Whether a larger share of networks is upset; one share for each seed."""
    shares = torch.stack([_upset(many), _upset(few)], 1)
    more = interval(lambda s: (s[:, 0] - s[:, 1]).mean(), shares)
    compared = (
        f"{shares[:, 0].mean():.0%} of networks at {name}, {shares[:, 1].mean():.0%} at {other}"
    )
    reading = f"Diverged or doubled its loss: {compared}, over {len(shares)} seeds."
    if bool((shares == 1).all()):
        return undecided(f"{reading} There can be no more.")
    return above(more, 0.0, reading, *tried)


def _upset(runs: Runs) -> Tensor:
    return torch.tensor(
        [sum(upset_in(r) for r in some) / len(some) for some in runs.by("seed").values()]
    ).double()


def _depth_helps(evidence: Evidence) -> Judged:
    runs = evidence.part("2", "both", "depth").where(horizon=1.0)
    first, second, *_ = sorted(runs.values("depth"))
    change = difference(*(runs.where(depth=L).metric("test_loss") for L in (first, second)))
    if not known(change):
        return no_number(runs, "depth", "depth")
    return below(
        change,
        0.0,
        f"The test loss changes by {change} nats from depth {first} to {second} at T = 1.",
        "T = 1 alone",
    )


def _saturates(evidence: Evidence, axis: str, other: str) -> Judged:
    """The gain of the last doubling of a size minus that of the first, in test loss."""
    real = evidence.part("3", "real", axis)
    runs = real.where(**{other: max(real.values(other))})
    sizes = sorted(runs.values(axis))
    if len(sizes) < 3:
        return undecided("It takes three sizes or more.")
    runs = _at_the_rate_of(runs.where(**{axis: sizes[0]}), runs)
    losses = torch.stack([runs.where(**{axis: size}).metric("test_loss") for size in sizes], 1)
    if not bool(losses.isfinite().all()):
        return no_number(runs, axis, axis)
    gains = losses[:, :-1] - losses[:, 1:]
    first = mean(gains[:, 0])
    last = mean(gains[:, -1])
    config = runs.configs[0]
    reading = (
        f"After {config.steps} steps of {config.batch} at eta_c = {config.eta_c:g}, doubling "
        f"{axis} from {sizes[0]} lowers the test loss by {first} nats, from {sizes[-2]} by {last}."
    )
    if not first.low > 0:
        return undecided(f"{reading} There is no first gain to compare with.")
    return below(
        mean(gains[:, -1] - gains[:, 0]), 0.0, reading, "the law of size on digits: nfd scaling-law"
    )


def _at_the_rate_of(smallest: Runs, runs: Runs) -> Runs:
    """Those at the rate that is best for the training loss of the smallest networks."""
    rates = smallest.by("eta_c")
    if len(rates) == 1:
        return runs
    return runs.where(
        eta_c=min(rates, key=lambda eta_c: float(rates[eta_c].metric("train_loss").mean()))
    )


def _named(metric: str) -> str:
    return {"train_loss": "training loss", "test_loss": "test loss"}[metric]


def _seeds(runs: Runs) -> int:
    return len(runs.values("seed"))


SHAPE = (
    Claim(
        "fig1-train",
        "Fig. 1b",
        "Pre-activation networks train faster than post-activation ones.",
        "Training loss at the end, post- minus pre-activation, paired by seed: holds above 0.",
        partial(_advantage, metric="train_loss"),
    ),
    Claim(
        "fig1-test",
        "Fig. 1c",
        "Pre-activation networks reach a lower test loss.",
        "Test loss at the end, post- minus pre-activation, paired by seed: holds above 0.",
        partial(_advantage, metric="test_loss"),
    ),
    Claim(
        "fig1-variance",
        "Fig. 1, caption",
        "Pre-activation losses vary less from run to run.",
        "log of the ratio of variances of the test loss over seeds, by the F distribution: holds "
        "above 0; with a condition where training losses on the way alone vary less.",
        _steadier,
    ),
    Claim(
        "fig2-moderate-train",
        "Section 3.3; Fig. 2a",
        "A moderate increase of T improves training.",
        "Training loss at the second T from 1 on (2) minus that at the first (1), paired by seed: "
        "holds below 0.",
        partial(_moderate, metric="train_loss"),
    ),
    Claim(
        "fig2-moderate-test",
        "Section 3.3; Fig. 2b",
        "A moderate increase of T improves performance.",
        "Test loss at the second T from 1 on (2) minus that at the first (1), paired by seed: "
        "holds below 0.",
        partial(_moderate, metric="test_loss"),
    ),
    Claim(
        "fig2-large",
        "Section 3.3; Fig. 2a-b",
        "A very large T, such as 32, degrades performance.",
        "Test loss at the largest T minus at the best smaller one, which is chosen from the other "
        "seeds; diverged networks count as log C: holds above 0.",
        _excessive,
    ),
    Claim(
        "fig2-unstable-horizon",
        "Fig. 2c-d",
        "A very large T makes training unstable.",
        "Share of networks of all depths that diverge or double their loss on the way, at the "
        "largest T minus that at the smallest, by seed: holds above 0.",
        _unstable_horizon,
    ),
    Claim(
        "fig2-unstable-depth",
        "Fig. 2c-d",
        "A very large depth makes training unstable.",
        f"The same share over T up to {_MODERATE:g}, at the largest depth minus that at the "
        "smallest: holds above 0.",
        _unstable_depth,
    ),
    Claim(
        "fig2-depth",
        "Fig. 2c-d",
        "A moderate increase of depth improves performance.",
        "Test loss at the second depth minus the first at T = 1, paired by seed: holds below 0.",
        _depth_helps,
    ),
    Claim(
        "ceiling-width",
        "Sections 1 and 3.3",
        "Growing the width pays less and less: the limit is a ceiling.",
        "Gain in test loss of the last doubling of width minus that of the first, which is above "
        "0, at the narrowest one's best rate: holds below 0.",
        partial(_saturates, axis="width", other="depth"),
    ),
    Claim(
        "ceiling-depth",
        "Sections 1 and 3.3",
        "Growing the depth pays less and less: the limit is a ceiling.",
        "Gain in test loss of the last doubling of depth minus that of the first, which is above "
        "0, at the largest width: holds below 0.",
        partial(_saturates, axis="depth", other="width"),
    ),
)


# ---- Claims on rates of convergence to the limit while training (Theorem 1, Fig. 3)

_SAME = 0.5  # exponents that differ by less are called the same


def _error_in_width(evidence: Evidence) -> Judged:
    real, limit = (evidence.runs["3"][part] for part in ("real", "limit"))
    slopes = {L: figure3.width_slope(real, limit, L) for L in sorted(real.values("depth"))}
    powers = "; ".join(f"{power_said('n', power)} at depth {L}" for L, power in slopes.items())
    return as_fast_as(
        list(slopes.values())[-1],
        -1.0,
        f"The mean square goes as {powers}.",
        "every depth of the figure",
    )


def _error_in_depth(evidence: Evidence) -> Judged:
    power = figure3.depth_slope(evidence.runs["3"]["limit"])
    measured = f"The mean square of very wide networks goes as {power_said('L', power)}"
    reading = f"{measured}; O(1/L) is a bound that need not be reached."
    return as_fast_as(
        power, -1.0, reading, "particles and independent feedback: docs/two-limits.md"
    )


def _uniform(evidence: Evidence) -> Judged:
    """Whether the rate in width is the same at the largest and at the smallest depth."""
    real, limit = (evidence.runs["3"][part] for part in ("real", "limit"))
    depths = sorted(real.values("depth"))
    ends = [figure3.width_squares(real, limit, L) for L in (depths[0], depths[-1])]
    widths = ends[0][0]
    runs = torch.stack([end[1] for end in ends], 1)
    limits = torch.stack([end[2] for end in ends], 1)
    powers = [figure3.width_slope(real, limit, L) for L in (depths[0], depths[-1])]
    numbers = " and ".join(
        f"{power_said('n', p)} at depth {L}"
        for p, L in zip(powers, (depths[0], depths[-1]), strict=True)
    )
    reading = f"The mean square goes as {numbers}."
    resolved = [set(figure3.resolved(squared_distances, *end[1:])) for end in ends]
    kept = sorted(resolved[0] & resolved[1])
    if not all(map(known, powers)) or len(kept) < 2:
        return undecided(
            f"{reading} Elsewhere networks diverged, or are as near to the limit as it is known."
        )
    widths = [widths[k] for k in kept]
    runs = runs[:, :, kept]
    change = interval(
        lambda r, e: (
            figure3.squares_slope(widths, r[:, 1], e[:, 1])
            - figure3.squares_slope(widths, r[:, 0], e[:, 0])
        ),
        runs,
        limits,
    )
    return between(
        change,
        -_SAME,
        _SAME,
        f"{reading} Orders of limits while training: docs/two-limits.md.",
        "other depths",
    )


CONVERGENCE = (
    Claim(
        "fig3-width",
        "Fig. 3; Theorem 1",
        "While training the error falls as O(1/n).",
        "Exponent in n of the mean square of outputs of one trained network, at the largest depth, "
        "minus the mean of very wide standard ones: holds where it is at most -3/4.",
        _error_in_width,
    ),
    Claim(
        "fig3-depth",
        "Fig. 3; Theorem 1",
        "While training the error falls as O(1/L).",
        "Exponent in L of the mean square of outputs of very wide trained networks minus infinite "
        "depth, extrapolated from the two deepest as 2 f(2L) - f(L): holds where it is at most "
        "-3/4.",
        _error_in_depth,
    ),
    Claim(
        "fig3-uniform",
        "Fig. 3, caption",
        "The error falls with width in the same way at every depth.",
        f"Exponent in n at the largest depth minus at the smallest: holds within {_SAME} of 0.",
        _uniform,
    ),
)
