"""Claims of section 3 on shape: pre- or post-activation, the horizon, and what size buys (Figs. 1 and 2)."""

from __future__ import annotations

import math

import torch

from nfd.claims.claim import Claim, Judged
from nfd.claims.evidence import Evidence
from nfd.claims.rules import above, below, between, conditional, undecided
from nfd.core.statistics import Interval, interval, share
from nfd.figures import figure1, figure2
from nfd.figures.panels import difference
from nfd.figures.runs import Runs
from nfd.sweep.sweep import upset_in


def _faster(evidence: Evidence) -> Judged:
    found = figure1.advantage(evidence.runs["1"]["training"], "train_loss")
    return above(found, 0.0, f"At the end of training post-activation is {found} nats above pre-activation.")


def _lower(evidence: Evidence) -> Judged:
    found = figure1.advantage(evidence.runs["1"]["training"])
    return above(found, 0.0, f"At the end of training post-activation is {found} nats above pre-activation.")


def _steadier(evidence: Evidence) -> Judged:
    found = figure1.variance_ratio(evidence.runs["1"]["training"])
    return above(found, 0.0, f"The variance over seeds is {math.exp(found.value):.2g} times that of pre-activation.")


def _moderate(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["horizon"]
    first, second = (1.0, 2.0) if 2.0 in runs.values("horizon") else sorted(runs.values("horizon"))[:2]
    found = figure2.gain(runs, first, second)
    return below(found, 0.0, f"The test loss changes by {found} from T = {first:g} to {second:g}.")


def _optimum(evidence: Evidence) -> Judged:
    """Whether the best horizon is about two."""
    runs = evidence.runs["2"]["horizon"]
    best = figure2.best(runs)
    tops = torch.tensor([_best_of(runs, k) for k in range(len(runs.values("seed")))], dtype=torch.float64).log2()
    found = interval(lambda t: t.mean(0), tops)
    half = 0.5  # of a doubling: the grid
    found = Interval(found.value, found.stderr, found.low - half, found.high + half)
    return between(found, 0.0, 2.0, f"The test loss is lowest at T = {best:g}; by seed, log2 T = {found}.")


def _best_of(runs: Runs, seed: int) -> float:
    scores = {T: float(s[seed]) for T, s in figure2.scores(runs).items()}
    return min(scores, key=lambda T: scores[T])


def _excessive(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["horizon"]
    best, largest = figure2.best(runs), max(runs.values("horizon"))
    if best == largest:
        return undecided(f"The largest horizon, {largest:g}, is the best one here: train longer, or take larger ones.")
    found = figure2.gain(runs, best, largest)
    return above(found, 0.0, f"The test loss at T = {largest:g} is above that at T = {best:g} by {found} nats.")


def _unstable_horizon(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["both"]
    horizons = sorted(runs.values("horizon"))
    return _more_upset(runs.where(horizon=horizons[-1]), runs.where(horizon=horizons[0]), f"T = {horizons[-1]:g}")


def _unstable_depth(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["both"]
    moderate = Runs([r for r in runs if r.config["horizon"] <= 2.0])
    depths = sorted(runs.values("depth"))
    found = _more_upset(
        moderate.where(depth=depths[-1]), moderate.where(depth=depths[0]), f"depth {depths[-1]}, T <= 2"
    )
    return conditional(found, "With T <= 2:")


def _more_upset(many: Runs, few: Runs, name: str) -> Judged:
    """Whether a larger share of networks is upset: diverged, or with a loss that rose to twice the first."""
    more, less = _upset(many), _upset(few)
    found = Interval(
        more.value - less.value, math.hypot(more.stderr, less.stderr), more.low - less.high, more.high - less.low
    )
    shown = f"{more.value:.0%} [{more.low:.0%}, {more.high:.0%}]"
    return above(found, 0.0, f"At {name} {shown} of the networks are upset, otherwise {less.value:.0%}.")


def _upset(runs: Runs) -> Interval:
    return share(sum(upset_in(r) for r in runs), len(runs))


def _depth_helps(evidence: Evidence) -> Judged:
    runs = evidence.runs["2"]["both"].where(horizon=1.0)
    first, second, *_ = sorted(runs.values("depth"))
    found = difference(*(runs.where(depth=L).metric("test_loss") for L in (first, second)))
    return below(found, 0.0, f"The test loss changes by {found} nats from depth {first} to {second} at T = 1.")


def _width_saturates(evidence: Evidence) -> Judged:
    return _saturates(evidence, "width", "depth")


def _depth_saturates(evidence: Evidence) -> Judged:
    return _saturates(evidence, "depth", "width")


def _saturates(evidence: Evidence, axis: str, other: str) -> Judged:
    """The gain of the last doubling of a size over that of the first, in test loss."""
    real = evidence.runs["3"]["real"]
    runs = real.where(**{other: max(real.values(other))})
    sizes = sorted(runs.values(axis))
    if len(sizes) < 3:
        return undecided("It takes three sizes or more.")
    losses = torch.stack([runs.where(**{axis: size}).metric("test_loss") for size in sizes], 1)
    first = interval(lambda s: (s[:, 0] - s[:, 1]).mean(), losses)
    last = interval(lambda s: (s[:, -2] - s[:, -1]).mean(), losses)
    found = interval(lambda s: (s[:, -2] - s[:, -1]).mean() - (s[:, 0] - s[:, 1]).mean(), losses)
    return below(
        found, 0.0,
        f"Doubling {axis} from {sizes[0]} lowers the test loss by {first} nats, from {sizes[-2]} by {last}.",
    )  # fmt: skip


CLAIMS = (
    Claim(
        "fig1-train", "Fig. 1b", "Pre-activation networks train faster than post-activation ones.",
        "Training loss at the end, post- minus pre-activation, paired by seed: holds above 0.", _faster,
    ),
    Claim(
        "fig1-test", "Fig. 1c", "Pre-activation networks reach a lower test loss.",
        "Test loss at the end, post- minus pre-activation, paired by seed: holds above 0.", _lower,
    ),
    Claim(
        "fig1-variance", "Fig. 1, caption", "Pre-activation losses vary less from run to run.",
        "log of the ratio of variances of the test loss over seeds, by the F distribution: holds above 0.", _steadier,
    ),
    Claim(
        "fig2-moderate", "Section 3.3; Fig. 2a-b", "A moderate increase of T improves performance.",
        "Test loss at T = 2 minus T = 1, paired by seed: holds below 0.", _moderate,
    ),
    Claim(
        "fig2-optimum", "Fig. 2, caption", "The moderate horizon that does best is about T = 2.",
        "log2 of the best T of each seed, half a doubling added for the grid: holds within 0 to 2.", _optimum,
    ),
    Claim(
        "fig2-large", "Section 3.3; Fig. 2a-b", "A very large T, such as 32, degrades performance.",
        "Test loss at the largest T minus the best one's, paired by seed: holds above 0.", _excessive,
    ),
    Claim(
        "fig2-unstable-horizon", "Fig. 2c-d", "A very large T makes training unstable.",
        "Share of networks that diverge or whose loss doubles on the way, at the largest T minus at the smallest, all "
        "depths: holds above 0.", _unstable_horizon,
    ),
    Claim(
        "fig2-unstable-depth", "Fig. 2c-d", "A very large depth makes training unstable.",
        "The same share at the largest depth minus at the smallest, T <= 2: holds above 0.", _unstable_depth,
    ),
    Claim(
        "fig2-depth", "Fig. 2c-d", "A moderate increase of depth improves performance.",
        "Test loss at the second depth minus the first at T = 1, paired by seed: holds below 0.", _depth_helps,
    ),
    Claim(
        "ceiling-width", "Sections 1 and 3.3", "Growing the width pays less and less: the limit is a ceiling.",
        "Gain in test loss of the last doubling of width minus that of the first, at the largest depth: holds below 0.",
        _width_saturates,
    ),
    Claim(
        "ceiling-depth", "Sections 1 and 3.3", "Growing the depth pays less and less: the limit is a ceiling.",
        "Gain in test loss of the last doubling of depth minus that of the first, at the largest width: holds below 0.",
        _depth_saturates,
    ),
)  # fmt: skip
