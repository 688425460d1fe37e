"""What the largest network loses at the smallest one's best rate, with an interval that knows of rare divergence.

Of the networks that do not diverge the loss is a mean over starts. Whether one diverges is a matter of few cases:
where none of eight did, one of ten may. So every start is taken to have an edge of stability, normally distributed
over log eta_c. Its distribution is fitted to the new runs and to the largest network's whole grid. A calm run that
learns nothing at a rate below the best lies not beyond its edge: the rate was too small. With

    ``q`` the chance at the smallest one's rate less that at its own,
    ``A`` the mean loss paid by starts that train at both rates, ``D`` what a start loses that trains at its own only,

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
from nfd.laws.best_rate import Scores, in_words, rate_in_words
from nfd.laws.bowl import Array, Bools

if TYPE_CHECKING:
    from nfd.laws.transfer import RuleTransfer

_STEP, _WIDTHS = 0.05, 40  # of the fit: doublings between middles of the distribution, and how many widths it may have
_NARROWEST, _WIDEST = 0.05, 3.0  # doublings, of the normal distribution
_BEYOND = 3.0  # doublings beyond the rates
_SURE = 1e-9  # the least chance
_SAME = 1e-6  # doublings, by which the logarithm of a rate may differ from itself


@dataclass(frozen=True)
class Regret:
    """Scores of the largest network at the smallest one's best rate and at its own, trained for this from starts of
    their own.

    ``new`` has one column for each of the two rates, in this order; ``grid`` are the scores by which its own best rate
    was chosen. Progress counts from its ``guess``.
    """

    new: Scores
    grid: Scores

    @property
    def own(self) -> Array:
        """Scores ``[S]`` at its own best rate."""
        return self.new.scores[:, 1]

    @property
    def diverges(self) -> tuple[float, float, float]:
        """The chance to diverge at the smallest network's rate less that at its own: most likely, and 95 % limits."""
        rates, grid = self.new.log2_eta, self.grid.log2_eta
        order, lost, new = rates.argsort(), self._lost(self.grid), self._lost(self.new)
        diverging = np.append(rates, grid[lost.any(0)])  # calm rates below all of these say nothing of the edge
        low, high = float(diverging.min()) - _BEYOND, max(float(grid[-1]), float(rates.max())) + _BEYOND
        middle = np.arange(low, high, _STEP)
        width = np.geomspace(_NARROWEST, _WIDEST, _WIDTHS)
        edges = middle.repeat(_WIDTHS), np.tile(width, len(middle))
        likely = _likely(grid, lost, *edges) + _likely(rates[order], new[:, order], *edges)
        chance = _chance(rates, *edges)
        apart = chance[:, 0] - chance[:, 1]
        starts = len(lost) + len(new)
        within = apart[likely > likely.max() - standard_errors(starts - 2) ** 2 / 2]
        return float(apart[likely.argmax()]), float(within.min()), float(within.max())

    @property
    def loss(self) -> Interval:
        """The loss paid, in nats."""
        lost = self._lost(self.new)
        trains = ~lost[:, 1]
        both = trains & ~lost[:, 0]
        if int(trains.sum()) < 2:
            return UNKNOWN
        q, low, high = self.diverges
        known = self.grid.guess - self.own[trains]
        paid = (self.new.scores[:, 0] - self.own)[both] if int(both.sum()) > 1 else np.zeros(2)  # q is near 1
        A, D = float(paid.mean()), float(known.mean())
        parts = [(float((w * v).var(ddof=1)) / len(v), len(v) - 1) for w, v in ((1 - q, paid), (q, known))]
        calm = combined(A + q * (D - A), parts)
        down, up = (calm.value - calm.low, (D - A) * (q - low)), (calm.high - calm.value, (D - A) * (high - q))
        error = math.hypot(calm.stderr, (D - A) * (high - low) / (2 * standard_errors(math.inf)))
        return Interval(calm.value, error, calm.value - math.hypot(*down), calm.value + math.hypot(*up))

    @property
    def share(self) -> Interval:
        """The loss paid over the progress: what is learnt at the own best rate, in nats below a uniform guess."""
        progress = self.grid.guess - float(self.own.mean())
        return self.loss.scaled(1 / progress) if progress > 0 else UNKNOWN

    @property
    def in_percent(self) -> str:
        """``share`` as ``12.8 % [4.6, 27.0]``."""
        known = self.share.scaled(100)
        value, low, high = (f"{round(share, 1) + 0:.1f}" for share in (known.value, known.low, known.high))
        return "an unknown part" if math.isnan(self.share.value) else f"{value} % [{low}, {high}]"

    def _lost(self, scores: Scores) -> Bools:
        """Which runs ``[S, E]`` diverged: those that know nothing, unless they are calm and below the best rate."""
        too_small = scores.log2_eta < self.new.log2_eta[1] - _SAME
        lost: Bools = (scores.losses >= self.grid.guess) & ~(too_small & ~scores.upset)
        return lost


def _chance(log2_eta: Array, middle: Array, width: Array) -> Array:
    """The chance to diverge at rates ``[E]``, for middles and widths ``[M]`` of the edge of stability: ``[M, E]``."""
    chance: Array = ndtr((log2_eta - middle[:, None]) / width[:, None])
    return chance


def _likely(log2_eta: Array, lost: Bools, middle: Array, width: Array) -> Array:
    """Log likelihood ``[M]`` of starts that diverge or not ``[S, E]`` at ascending rates ``[E]``.

    The edge of each lies below the first rate at which it diverges, and above the rate before.
    """
    chance = _chance(log2_eta, middle, width)
    within = np.diff(chance, prepend=0.0, append=1.0)
    first = np.where(lost.any(1), lost.argmax(1), lost.shape[1])
    likely: Array = np.log(np.maximum(within, _SURE)) @ np.bincount(first, minlength=within.shape[1])
    return likely


# ---- what the rules say together


def compared(rules: Sequence[RuleTransfer]) -> list[str]:
    """What the rules say together, and last what to do; nothing unless every rule has a regret.

    Advised is the rule with the lowest loss of the largest network: of those that transfer at the smallest one's rate,
    else of all at their own. Another rule may be better there at its own rate. It is chosen by the grid and judged by
    new starts, so that chance counts once. Rules share their seeds, so the test is one of pairs.
    """
    regrets = {answer.rule: answer.regret for answer in rules if answer.regret is not None}
    if len(regrets) < len(rules):
        return []
    transferring = [answer for answer in rules if answer.verdict == "TRANSFERS"]
    place = 0 if transferring else 1
    best = min(transferring or rules, key=lambda own: float(regrets[own.rule].new.scores[:, place].mean()))
    (small, *_, large), notes = best.cells, list[str]()
    grown = best.loss(large).minus(best.loss(small))
    if not grown.high < 0:
        word = "worse" if grown.low > 0 else "not known to be better"
        notes.append(
            f"Under {best.rule} the larger network is {word}: from {in_words(small)} to {in_words(large)} the best "
            f"loss changes by {grown} nats."
        )
    if not any(answer.cells[large].learns for answer in rules):
        return [f"Nothing is learnt at {in_words(large)} at any rate: take more steps, or other initial weights."]
    if not transferring:
        rate = rate_in_words(best.cells[large].rate())
        return [
            *notes,
            f"No rule is known to transfer: tune at the size that you train. At {in_words(large)} the loss is lowest "
            f"under {best.rule} at lr = {rate}.",
        ]
    if others := [answer for answer in rules if answer is not best and answer.cells[large].learns]:
        other = min(others, key=lambda answer: float(answer.cells[large].reached.mean()))
        a, b = best.reached(large), other.reached(large)
        lower = mean(a - b) if len(a) == len(b) else mean(a).minus(mean(b))
        if lower.low > 0 and lower.value > best.cells[large].least:  # less is not learning anything at all
            return [
                *notes,
                f"{best.rule} transfers, but at {in_words(large)} {other.rule} is better: the loss at its own best lr "
                f"is lower by {lower.unsigned} nats. Find out why, or tune {other.rule} at the size that you train.",
            ]
    return [
        *notes,
        f"Use {best.rule} at lr = {rate_in_words(best.cells[small].rate())}: tuned at {in_words(small)} it costs "
        f"{regrets[best.rule].in_percent} of the progress at {in_words(large)}.",
    ]
