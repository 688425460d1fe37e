"""What the largest network loses at the smallest one's best rate, with an interval that knows of
rare divergence.

Of the networks that do not diverge the loss is a mean over starts. Whether one diverges is a matter
of few cases: where none of eight did, one of ten may. So every start is taken to have an edge of
stability, normally distributed over log eta_c. Its distribution is fitted to the new runs and to
the largest network's whole grid. A calm run that learns nothing at a rate below the best lies not
beyond its edge: the rate was too small. With

    ``q`` the chance at the smallest one's rate less that at its own,
    ``A`` the mean loss paid by starts that train at both rates, ``D`` what a start loses that
    trains at its own only,

the regret is ``(1 - q) A + q D``. The limits of q are those of the likelihood ratio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from nfd.core.estimates import UNKNOWN, Interval, combined, mean, standard_errors
from nfd.laws.best_rate import Scores, Size, in_words, rate_in_words
from nfd.laws.bowl import Array, Bools

if TYPE_CHECKING:
    from nfd.laws.transfer import RuleTransfer

# Of the fit: middles of the distribution are so many doublings apart, and it may have so many
# widths.
_STEP = 0.05
_WIDTHS = 40
_NARROWEST = 0.05  # doublings, of the normal distribution
_WIDEST = 3.0
_BEYOND = 3.0  # doublings beyond the rates
_LEAST_CHANCE = 1e-9
_SAME = 1e-6  # doublings, by which the logarithm of a rate may differ from itself


@dataclass(frozen=True)
class Regret:
    """What the largest network loses at the smallest one's best rate, by networks that were trained
    for this alone.

    Attributes:
        new: scores of the largest network at the smallest one's best rate and at its own, a column
            each, in this order, from starts that chose neither.
        grid: the scores by which its own best rate was chosen. Progress counts from its ``guess``.
    """

    new: Scores
    grid: Scores

    @property
    def own(self) -> Array:
        """Scores ``[S]`` at its own best rate."""
        return self.new.scores[:, 1]

    @property
    def diverges(self) -> tuple[float, float, float]:
        """The chance to diverge at the smallest network's rate less that at its own: most likely,
        and 95 % limits.
        """
        rates = self.new.log2_eta
        order = rates.argsort()
        grid_lost = self._lost(self.grid)
        new_lost = self._lost(self.new)
        middles, widths = self._edges(grid_lost)
        likely = _log_likelihood(self.grid.log2_eta, grid_lost, middles, widths)
        likely = likely + _log_likelihood(rates[order], new_lost[:, order], middles, widths)

        chance = _chance(rates, middles, widths)
        difference = chance[:, 0] - chance[:, 1]
        starts = len(grid_lost) + len(new_lost)
        within = difference[likely > likely.max() - standard_errors(starts - 2) ** 2 / 2]
        return float(difference[likely.argmax()]), float(within.min()), float(within.max())

    def _edges(self, grid_lost: Bools) -> tuple[Array, Array]:
        """Middles and widths ``[M]`` of every edge of stability that is tried."""
        # Calm rates below all that diverge say nothing of the edge.
        diverging = np.append(self.new.log2_eta, self.grid.log2_eta[grid_lost.any(0)])
        low = float(diverging.min()) - _BEYOND
        high = max(float(self.grid.log2_eta[-1]), float(self.new.log2_eta.max())) + _BEYOND
        middles = np.arange(low, high, _STEP)
        widths = np.geomspace(_NARROWEST, _WIDEST, _WIDTHS)
        return middles.repeat(_WIDTHS), np.tile(widths, len(middles))

    @property
    def loss(self) -> Interval:
        """The loss paid, in nats."""
        lost = self._lost(self.new)
        trains = ~lost[:, 1]
        trains_at_both = trains & ~lost[:, 0]
        if int(trains.sum()) < 2:
            return UNKNOWN

        q, low, high = self.diverges
        learnt = self.grid.guess - self.own[trains]
        paid = np.zeros(2)  # where too few train at both, q is near 1
        if int(trains_at_both.sum()) > 1:
            paid = (self.new.scores[:, 0] - self.own)[trains_at_both]
        A = float(paid.mean())
        D = float(learnt.mean())
        calm = combined(A + q * (D - A), [_part(1 - q, paid), _part(q, learnt)])
        error = math.hypot(calm.stderr, (D - A) * (high - low) / (2 * standard_errors(math.inf)))
        down = math.hypot(calm.value - calm.low, (D - A) * (q - low))
        up = math.hypot(calm.high - calm.value, (D - A) * (high - q))
        return Interval(calm.value, error, calm.value - down, calm.value + up)

    @property
    def share(self) -> Interval:
        """The loss paid over the progress: what is learnt at the own best rate, in nats below a
        uniform guess.
        """
        progress = self.grid.guess - float(self.own.mean())
        return self.loss.scaled(1 / progress) if progress > 0 else UNKNOWN

    @property
    def in_percent(self) -> str:
        """``share`` as ``12.8 % [4.6, 27.0]``."""
        percent = self.share.scaled(100)
        if math.isnan(percent.value):
            return "an unknown part"
        # Adding 0 turns -0.0 into 0.0.
        value, low, high = (
            f"{round(part, 1) + 0:.1f}" for part in (percent.value, percent.low, percent.high)
        )
        return f"{value} % [{low}, {high}]"

    def _lost(self, scores: Scores) -> Bools:
        """Which runs ``[S, E]`` diverged: those that know nothing, unless they are calm and below
        the best rate.
        """
        too_small = scores.log2_eta < self.new.log2_eta[1] - _SAME
        lost: Bools = (scores.losses >= self.grid.guess) & ~(too_small & ~scores.upset)
        return lost


def _part(weight: float, values: Array) -> tuple[float, float]:
    """The variance of a weighted mean, and its degrees of freedom."""
    return float((weight * values).var(ddof=1)) / len(values), len(values) - 1


def _chance(log2_eta: Array, middles: Array, widths: Array) -> Array:
    """The chance to diverge at rates ``[E]``, for middles and widths ``[M]`` of the edge of
    stability: ``[M, E]``.
    """
    chance: Array = ndtr((log2_eta - middles[:, None]) / widths[:, None])
    return chance


def _log_likelihood(log2_eta: Array, lost: Bools, middles: Array, widths: Array) -> Array:
    """The log-likelihood ``[M]`` of starts that diverge or not ``[S, E]`` at ascending rates
    ``[E]``.

    The edge of each lies below the first rate at which it diverges, and above the rate before.
    """
    chance = _chance(log2_eta, middles, widths)
    within = np.diff(chance, prepend=0.0, append=1.0)
    first = np.where(lost.any(1), lost.argmax(1), lost.shape[1])
    counts = np.bincount(first, minlength=within.shape[1])
    log_likelihood: Array = np.log(np.maximum(within, _LEAST_CHANCE)) @ counts
    return log_likelihood


# ---- what the rules say together


def compared(rules: Sequence[RuleTransfer]) -> list[str]:
    """What the rules say together, and last what to do; nothing unless every rule has a regret.

    Advised is the rule with the lowest loss of the largest network: of those that transfer at the
    smallest one's rate, else of all at their own. Another rule may be better there at its own rate.
    It is chosen by the grid and judged by new starts, so that chance counts once. Rules share their
    seeds, so the test is one of pairs.
    """
    regrets = {answer.rule: answer.regret for answer in rules if answer.regret is not None}
    if len(regrets) < len(rules):
        return []
    transferring = [answer for answer in rules if answer.verdict == "TRANSFERS"]
    rate = 0 if transferring else 1  # the smallest one's, or its own
    best = min(
        transferring or rules,
        key=lambda answer: float(regrets[answer.rule].new.scores[:, rate].mean()),
    )
    small, *_, large = best.cells
    learning = [answer for answer in rules if answer.cells[large].learns]
    if not learning:
        return [
            f"Nothing is learnt at {in_words(large)} at any rate: take more steps, or other "
            "initial weights."
        ]

    notes = _growth(best, small, large)
    if not transferring:
        own_rate = rate_in_words(best.cells[large].rate())
        return [
            *notes,
            f"No rule is known to transfer: tune at the size that you train. At {in_words(large)} "
            f"the loss is lowest under {best.rule} at lr = {own_rate}.",
        ]
    better = _better_rule(best, [answer for answer in learning if answer is not best], large)
    if better is not None:
        return [*notes, better]
    return [
        *notes,
        f"Use {best.rule} at lr = {rate_in_words(best.cells[small].rate())}: tuned at "
        f"{in_words(small)} it costs {regrets[best.rule].in_percent} of the progress at "
        f"{in_words(large)}.",
    ]


def _growth(best: RuleTransfer, small: Size, large: Size) -> list[str]:
    """A note where the larger network is not better than the smaller one."""
    change = best.loss(large).minus(best.loss(small))
    if change.high < 0:
        return []
    word = "worse" if change.low > 0 else "not known to be better"
    return [
        f"Under {best.rule} the larger network is {word}: from {in_words(small)} to "
        f"{in_words(large)} the best loss changes by {change} nats."
    ]


def _better_rule(best: RuleTransfer, others: Sequence[RuleTransfer], large: Size) -> str | None:
    """The advice where another rule has a lower loss at its own best rate than the one that
    transfers.
    """
    if not others:
        return None
    other = min(others, key=lambda answer: float(answer.cells[large].reached.mean()))
    of_best = best.reached(large)
    of_other = other.reached(large)
    are_pairs = len(of_best) == len(of_other)  # from the same seeds
    lower = mean(of_best - of_other) if are_pairs else mean(of_best).minus(mean(of_other))
    # A smaller difference is not learning anything at all.
    if lower.low <= 0 or lower.value <= best.cells[large].least:
        return None
    return (
        f"{best.rule} transfers, but at {in_words(large)} {other.rule} is better: the loss at its "
        f"own best lr is lower by {lower.unsigned} nats. Find out why, or tune {other.rule} at the "
        "size that you train."
    )
