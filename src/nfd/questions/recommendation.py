"""What to do after a transfer sweep, in one line: which rule at which rate, or what else where none transfers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from nfd.core.intervals import Interval
from nfd.questions.levels import better_than
from nfd.questions.optimum import Array, rate_of
from nfd.questions.rule_transfer import GUESS, RuleTransfer, Size, in_words, rate_in_words

RecommendationKind = Literal["use", "more seeds", "tune large", "other rates", "one size", "no guess"]


@dataclass(frozen=True)
class Recommendation:
    """What to do.

    Attributes:
        kind: ``"use"`` a rule that transfers; take ``"more seeds"`` where the seeds leave that open; ``"tune large"``
            where every rule costs; ``"other rates"`` or more steps where no best rate is known; ``"one size"`` was
            tuned, so that nothing is known of another; ``"no guess"`` was given to measure progress from.
        rule: the one of the lowest loss at the largest size, of those that the advice is about; None for other rates.
        rate: the best one, at the smallest size for ``"use"``, else at the largest.
        small, large: sizes that were tuned and trained.
        share: what the smallest network's best rate costs the largest, over its progress. progress: of the largest at
            its own best rate, in nats below a uniform guess; not-a-number where it is not known.
        seeds: of each size. name: what the learning rate is called.
        better: another rule whose loss at the largest size is significantly lower, each at its own best rate; None if
            there is none. gap: by how much, in nats, below zero.
    """

    kind: RecommendationKind
    rule: str | None
    rate: Interval | None
    small: Size
    large: Size
    share: Interval | None
    seeds: int
    name: str = "eta_c"
    progress: float = math.nan
    better: str | None = None
    gap: Interval | None = None

    def __str__(self) -> str:
        if self.rule is None or self.rate is None:
            return "No rule can be recommended: no best rate is known at every size. Give other rates or more steps."
        rate, large = rate_in_words(self.rate), in_words(self.large)
        if self.share is None:
            return (
                f"At {large} the loss is lowest under {self.rule}, at {self.name} = {rate}. Give two sizes or more to "
                "see whether that transfers."
            )
        if self.kind == "no guess":
            return (
                f"At {large} the loss is lowest under {self.rule}, at {self.name} = {rate}. To tell what tuning a "
                f"smaller network costs, give {GUESS}."
            )
        cost = "an unknown part"
        if math.isfinite(self.share.value):
            value, low, high = (round(100 * share) for share in (self.share.value, self.share.low, self.share.high))
            cost = f"{value} % [{low}, {high}]"
        nats = f" of {self.progress:.2g} nats" if math.isfinite(self.progress) else ""
        if self.kind == "use" and self.better is not None and self.gap is not None:
            return (
                f"{self.rule} transfers, but its loss is not the lowest: at {self.name} = {rate}, tuned at "
                f"{in_words(self.small)}, it costs {cost} of the progress at {large}, and {self.better} tuned there is "
                f"better by {-self.gap.value:.2g} nats. Find out why before you train at this rate, or tune "
                f"{self.better} at the size that you train."
            )
        if self.kind == "use":
            return (
                f"Use {self.rule} at {self.name} = {rate}: tuned at {in_words(self.small)} it costs {cost} of the "
                f"progress at {large}."
            )
        if self.kind == "more seeds":
            return (
                f"No rule is known to transfer: {self.rule} costs {cost} of the progress{nats} at {large}. Ask again "
                f"with {2 * self.seeds} seeds or more steps, or tune at the size that you train: there its best "
                f"{self.name} is {rate}."
            )
        return (
            f"No rule transfers: {self.rule} costs {cost} of the progress{nats} at {large}. Tune at the size that you "
            f"train: there its best {self.name} is {rate}."
        )


def recommended(answers: Sequence[RuleTransfer]) -> Recommendation:
    """The advice that all rules together give, of which the regrets are known."""
    regrets = {answer.rule: answer.regret for answer in answers if answer.regret is not None}
    sizes = [*answers[0].cells]
    small, large = sizes[0], sizes[-1]
    seeds = len(answers[0].cells[large].losses)
    known = [answer for answer in answers if not answer.doubt]
    transferring = [answer for answer in known if answer.verdict == "TRANSFERS"]
    uncertain = [answer for answer in known if answer.verdict == "UNCERTAIN"]

    def of(
        kind: RecommendationKind, losses: dict[str, Array], tuned: Size, among: Sequence[RuleTransfer]
    ) -> Recommendation:
        best = min(among, key=lambda answer: float(losses[answer.rule].mean()))
        rate, regret = rate_of(best.optimum(tuned)), regrets[best.rule]
        better, gap = better_than(answers, best.rule) or (None, None)
        return Recommendation(
            kind, best.rule, rate, small, large, regret.share, seeds, best.rate, regret.progress, better, gap
        )

    if not known:
        return Recommendation("other rates", None, None, small, large, None, seeds)
    if small == large:
        best = min(known, key=lambda answer: float(answer.cells[large].typical.min()))
        return Recommendation("one size", best.rule, rate_of(best.optimum(large)), small, large, None, seeds, best.rate)
    if transferring:
        return of("use", {rule: regret.foreign for rule, regret in regrets.items()}, small, transferring)
    own = {rule: regret.own for rule, regret in regrets.items()}
    if not all(regret.counts_progress for regret in regrets.values()):
        return of("no guess", own, large, known)
    return of("more seeds", own, large, uncertain) if uncertain else of("tune large", own, large, known)
