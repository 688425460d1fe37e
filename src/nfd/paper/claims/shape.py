"""Claims of Figs. 1 to 3.

They are about pre- or post-activation, the horizon, what size buys, and rates of convergence.
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
    ClaimVerdict,
    Evidence,
    Judged,
    above,
    as_fast_as,
    below,
    between,
    inside,
    known,
    no_number,
    power_in_words,
    rescued,
    undecided,
)
from nfd.paper.figures import figure1, figure2, figure3
from nfd.paper.figures.figure import Runs
from nfd.paper.figures.panels import difference
from nfd.runs import upset_in

# The horizon up to which the paper's "moderate" is taken here.
_MODERATE = 2.0


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
    """Judge by the variance of the test loss at the end of training.

    The condition is that only training losses before the end vary less.
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
    times: list[str] = []
    variants: dict[str, ClaimVerdict] = {}
    for name, loss in moments.items():
        ratio = figure1.variances(runs, loss)
        if known(ratio):
            times.append(f"{math.exp(ratio.value):.2g} times in {name}")
            variants[f"in {name}"] = inside(ratio, 0.0, math.inf)
    verdict, condition = rescued(inside(end, 0.0, math.inf), variants)
    reading = (
        f"The variance of the test loss over {_seeds(runs)} seeds is {math.exp(end.value):.2g} "
        "times that of pre-activation; of training losses "
        f"{', '.join(times) or 'unknown'}.{condition}"
    )
    return replace(above(end, 0.0, reading, *_budget(evidence), *moments), verdict=verdict)


def _moderate(evidence: Evidence, metric: str) -> Judged:
    """Judge the step from the smallest horizon that is at least 1 to the next."""
    runs = evidence.runs["2"]["horizon"]
    horizons = sorted(runs.values("horizon"))
    first, second, *_ = (T for T in horizons if T >= 1)
    both = [*runs.where(horizon=first), *runs.where(horizon=second)]
    if not any(record.status == "done" for record in both):
        return no_number(runs, "horizon", "T =")
    change = figure2.gain(runs, first, second, evidence.classes, metric)
    best = figure2.best(runs, metric)
    lowest = f"it is lowest at T = {best:g}"
    if math.isnan(best):
        lowest = "some networks diverged at every T"
    reading = (
        f"The {_named(metric)} changes by {change} nats from T = {first:g} to {second:g}; {lowest}."
    )
    return below(change, 0.0, reading, f"horizons {', '.join(f'{T:g}' for T in horizons)}")


def _excessive(evidence: Evidence) -> Judged:
    """Judge the largest horizon against the best smaller one.

    For each seed the best one is chosen by the other seeds.
    """
    runs = evidence.part("2", "horizon", "large")
    if all(r.status == "diverged" for r in runs):
        return no_number(runs, "horizon", "T =")
    losses = {T: s.clamp(max=math.log(evidence.classes)) for T, s in figure2.scores(runs).items()}
    *smaller, largest = sorted(losses)
    above_best: list[Tensor] = []
    for seed in range(_seeds(runs)):
        best = _best_without(losses, smaller, seed)
        above_best.append(losses[largest][seed] - losses[best][seed])
    apart = mean(torch.stack(above_best))
    reading = f"At T = {largest:g} the test loss is {apart} nats above that of the best smaller T"
    for T in smaller:
        if 1 <= T <= _MODERATE:
            reading += f"; {difference(losses[T], losses[largest])} against T = {T:g}"
    config = runs.configs[0]
    passes = config.steps * config.batch / len(evidence.dataset.train)
    tried = f"{passes:.2g} passes over the images: longer training was not tried"
    return above(apart, 0.0, f"{reading}.", tried)


def _best_without(losses: dict[float, Tensor], horizons: list[float], seed: int) -> float:
    """Return the horizon with the lowest mean loss of all seeds but one."""
    kept = [k for k in range(len(losses[horizons[0]])) if k != seed]
    return min(horizons, key=lambda T: float(losses[T][kept].mean()))


def _unstable_horizon(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["both"]
    horizons = sorted(runs.values("horizon"))
    shares = ", ".join(f"{_upset(runs.where(horizon=T)).mean():.0%} at {T:g}" for T in horizons)
    return _more_upset(
        runs.where(horizon=horizons[-1]),
        runs.where(horizon=horizons[0]),
        f"T = {horizons[-1]:g}",
        f"T = {horizons[0]:g}",
        f"every T: {shares}",
    )


def _unstable_depth(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["both"]
    depths = sorted(runs.values("depth"))
    shallow = depths[0]
    deep = depths[-1]
    of_shallow = _upset(runs.where(depth=shallow)).mean()
    of_deep = _upset(runs.where(depth=deep)).mean()
    shares = f"{of_shallow:.0%} at depth {shallow} and {of_deep:.0%} at depth {deep}"
    moderate = Runs([r for r in runs if r.config["horizon"] <= _MODERATE])
    return _more_upset(
        moderate.where(depth=deep),
        moderate.where(depth=shallow),
        f"depth {deep}",
        f"depth {shallow}",
        f"every T up to the largest: {shares}",
        "depths up to 256 under tuned rates: docs/sweeps.md",
    )


def _more_upset(large: Runs, small: Runs, large_name: str, small_name: str, *tried: str) -> Judged:
    """Judge whether a larger share of the first networks is upset; one share for each seed."""
    shares = torch.stack([_upset(large), _upset(small)], 1)
    more = interval(lambda s: (s[:, 0] - s[:, 1]).mean(), shares)
    of_large, of_small = shares.mean(0)
    reading = (
        f"Diverged or doubled its loss: {of_large:.0%} of networks at {large_name}, "
        f"{of_small:.0%} at {small_name}, over {len(shares)} seeds."
    )
    if bool((shares == 1).all()):
        return undecided(f"{reading} There can be no more.")
    return above(more, 0.0, reading, *tried)


def _upset(runs: Runs) -> Tensor:
    """Return the share of networks that diverged or doubled their loss, by seed."""
    shares = []
    for some in runs.by("seed").values():
        count = sum(upset_in(record) for record in some)
        shares.append(count / len(some))
    return torch.tensor(shares).double()


def _depth_helps(evidence: Evidence) -> Judged:
    runs = evidence.part("2", "both", "depth").where(horizon=1.0)
    first, second, *_ = sorted(runs.values("depth"))
    of_first = runs.where(depth=first).metric("test_loss")
    of_second = runs.where(depth=second).metric("test_loss")
    change = difference(of_first, of_second)
    if not known(change):
        return no_number(runs, "depth", "depth")
    reading = f"The test loss changes by {change} nats from depth {first} to {second} at T = 1."
    return below(change, 0.0, reading, "T = 1 alone")


def _saturates(evidence: Evidence, axis: str, other: str) -> Judged:
    """Judge the gain of the last doubling of a size minus the first one's, in test loss."""
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
    change = mean(gains[:, -1] - gains[:, 0])
    return below(change, 0.0, reading, "the law of size on digits: nfd scaling-law")


def _at_the_rate_of(smallest: Runs, runs: Runs) -> Runs:
    """Return those at the learning rate that is best for the smallest networks' training loss."""
    by_rate = smallest.by("eta_c")
    if len(by_rate) == 1:
        return runs
    losses = {eta_c: float(some.metric("train_loss").mean()) for eta_c, some in by_rate.items()}
    return runs.where(eta_c=min(losses, key=lambda eta_c: losses[eta_c]))


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

# Exponents that differ by less are called the same.
_SAME = 0.5


def _error_in_width(evidence: Evidence) -> Judged:
    real = evidence.runs["3"]["real"]
    limit = evidence.runs["3"]["limit"]
    slopes = {L: figure3.width_slope(real, limit, L) for L in sorted(real.values("depth"))}
    powers = "; ".join(f"{power_in_words('n', power)} at depth {L}" for L, power in slopes.items())
    *_, of_deepest = slopes.values()
    reading = f"The mean square goes as {powers}."
    return as_fast_as(of_deepest, -1.0, reading, "every depth of the figure")


def _error_in_depth(evidence: Evidence) -> Judged:
    power = figure3.depth_slope(evidence.runs["3"]["limit"])
    measured = f"The mean square of very wide networks goes as {power_in_words('L', power)}"
    reading = f"{measured}; O(1/L) is a bound that need not be reached."
    return as_fast_as(
        power, -1.0, reading, "particles and independent feedback: docs/two-limits.md"
    )


def _uniform(evidence: Evidence) -> Judged:
    """Judge whether the rate in width is the same at the largest and at the smallest depth."""
    real = evidence.runs["3"]["real"]
    limit = evidence.runs["3"]["limit"]
    depths = sorted(real.values("depth"))
    shallow = depths[0]
    deep = depths[-1]
    widths, runs_0, limit_0 = figure3.width_squares(real, limit, shallow)
    _, runs_1, limit_1 = figure3.width_squares(real, limit, deep)
    power_0 = figure3.width_slope(real, limit, shallow)
    power_1 = figure3.width_slope(real, limit, deep)
    reading = (
        f"The mean square goes as {power_in_words('n', power_0)} at depth {shallow} and "
        f"{power_in_words('n', power_1)} at depth {deep}."
    )
    resolved_0 = figure3.resolved(squared_distances, runs_0, limit_0)
    resolved_1 = figure3.resolved(squared_distances, runs_1, limit_1)
    kept = sorted(set(resolved_0) & set(resolved_1))
    if not known(power_0) or not known(power_1) or len(kept) < 2:
        return undecided(
            f"{reading} Elsewhere networks diverged, or are as near to the limit as it is known."
        )
    widths = [widths[k] for k in kept]

    def of_deep_minus_shallow(runs: Tensor, limits: Tensor) -> Tensor:
        of_shallow = figure3.squares_slope(widths, runs[:, 0], limits[:, 0])
        return figure3.squares_slope(widths, runs[:, 1], limits[:, 1]) - of_shallow

    runs = torch.stack([runs_0, runs_1], 1)[:, :, kept]
    limits = torch.stack([limit_0, limit_1], 1)
    change = interval(of_deep_minus_shallow, runs, limits)
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
