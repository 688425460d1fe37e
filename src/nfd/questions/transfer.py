"""What a regret does not show: how low the loss is, beside other rules and beside the smallest network.

A rule under which nothing is lost by tuning small may train every size badly. So the losses that rules reach at their
own best rates are compared, by starts that chose none of these rates: the best of a grid is too low by chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from nfd.core.errors import InputError, check_choice
from nfd.core.estimates import UNKNOWN, Interval, combined, mean
from nfd.core.names import AXES, Axis
from nfd.core.tables import rows_as_text
from nfd.questions.optimum import Array, Size, in_words, rate_in_words, rate_of
from nfd.questions.rule_transfer import GUESS, RuleTransfer, TransferVerdict

_FAR = 3.0  # times fan-in scaling, or one over it; PyTorch's layers begin at 0.58, those for relu at 1.4
_TRIED = 4  # scales to try, at most


def better_than(answers: Sequence[RuleTransfer], rule: str) -> tuple[str, Interval] | None:
    """Another rule whose loss at the largest size is significantly lower, each at its own best rate; and by how much.

    The other rule is chosen by the grid and judged by new starts, so that chance counts once. Rules share their seeds,
    so the test is one of pairs. What is less than learning anything at all is left out.
    """
    own = next(answer for answer in answers if answer.rule == rule)
    large = [*own.cells][-1]
    others = [answer for answer in answers if answer.rule != rule and answer.cells[large].learns]
    if not others:
        return None
    other = min(others, key=lambda answer: float(answer.cells[large].reached.mean()))
    gap = _difference(other.reached(large), own.reached(large))
    return (other.rule, gap) if gap.high < 0 and -gap.value > own.cells[large].least else None


def growth(answer: RuleTransfer) -> Interval:
    """The loss of the largest network less that of the smallest, each at its own best rate."""
    small, *_, large = answer.cells
    return _apart(answer.reached(large), answer.reached(small))


def of_level(answers: Sequence[RuleTransfer], rule: str) -> list[str]:
    """A sentence where another rule is better than this one, and one where its largest network is no better than its
    smallest."""
    own = next(answer for answer in answers if answer.rule == rule)
    small, *_, large = own.cells
    said, better, grown = [], better_than(answers, rule), growth(own)
    if better is not None:
        other, gap = better
        said.append(
            f"At {in_words(large)} {other} is better than {rule}: the loss at its own best {own.rate} is lower by "
            f"{_positive(gap)} nats."
        )
    if not grown.high < 0:
        half = grown.value - grown.low  # of the interval: a gain below half of it is nearer to none than to a known one
        word = "worse" if grown.low > 0 else "no better" if grown.value > -half / 2 else "not known to be better"
        said.append(
            f"Under {rule} the larger network is {word}: from {in_words(small)} to {in_words(large)} the best loss "
            f"changes by {grown} nats."
        )
    return said


def of_initial_scale(scale: float) -> list[str]:
    """A sentence where initial weights are far from fan-in scaling, with the axis to try."""
    if not max(scale, 1 / scale) > _FAR:
        return []
    octaves = -math.log2(scale)
    steps = math.copysign(math.ceil(abs(octaves) / (_TRIED - 1)), octaves)
    values = sorted(2.0 ** (k * steps) for k in range(math.ceil(octaves / steps) + 1))
    tried = ", ".join(f"{value:g}" for value in values)
    return [
        f"Initial weights are {'small' if scale < 1 else 'large'}: inner matrices of the smallest network begin at "
        f"{scale:.2g} times fan_in^-1/2, and a rule keeps this at every size. Others may be better: try "
        f"axes={{'init_scale': ({tried})}} (in the shell --axes init_scale={tried.replace(' ', '')})."
    ]


def _difference(first: Array, second: Array) -> Interval:
    """The mean of samples less that of others, as pairs where there are as many of both."""
    return mean(first - second) if len(first) == len(second) else _apart(first, second)


def _apart(first: Array, second: Array) -> Interval:
    """The mean of samples less that of other, independent ones."""
    parts = [(float(own.var(ddof=1)) / len(own), len(own) - 1) for own in (first, second)]
    return combined(float(first.mean() - second.mean()), parts)


def _positive(gap: Interval) -> str:
    """The size of a negative number."""
    return Interval(-gap.value, gap.stderr, -gap.high, -gap.low).unsigned


# ---- What to do after a transfer sweep, in one line: which rule at which rate, or what else where none transfers.


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


# ---- The answer of a transfer sweep: all rules, and what to do.


@dataclass(frozen=True)
class Transfer:
    """The result of ``nfd.transfer`` and ``nfd.fit_transfer``. Print it to see the table.

    Best rates, their drift with size, and the regret of tuning on a small network.

    Attributes:
        rules: the answer for each rule. about: a description of the runs. score: the loss that best rates minimise.
        notes: which runs were left out, and why.
        initial_scale: standard deviation of the initial inner matrices of the smallest network over fan_in^-1/2;
            not-a-number if it is not known.

    Example::

        rows = [
            {"width": n, "lr": 2.0**k, "seed": seed, "loss": 2 + 0.1 * (k + 9 + seed / 9) ** 2}
            for n in (64, 128)
            for seed in (0, 1)
            for k in range(-12, -6)
        ]
        answer = nfd.fit_transfer(rows)
        best = answer.best("logged", 128, 1)
        best.value, best.low, best.high  # the best rate and its 95 % interval
        answer.drift("logged", "width").resolved  # whether it moves significantly with width
    """

    rules: tuple[RuleTransfer, ...]
    about: str
    score: str
    notes: tuple[str, ...] = ()
    initial_scale: float = math.nan

    def __iter__(self) -> Iterator[RuleTransfer]:
        return iter(self.rules)

    def of(self, rule: str) -> RuleTransfer:
        """The answer for one rule."""
        named = {transfer.rule: transfer for transfer in self.rules}
        return named[check_choice("rule", rule, named)]

    def best(self, rule: str, width: int, depth: int, **setting: float) -> Interval:
        """The best rate at a size; not-a-number where it lies at an end of the grid.

        Args:
            setting: a value of one further axis, such as ``batch_size=32``.

        Raises:
            ValueError: for a rule, a size or a value of which there are no runs.
        """
        transfer = self._trained(rule, width, depth)
        if not setting:
            return rate_of(transfer.optimum((width, depth)))
        if not transfer.against:
            raise InputError(f"nothing but width and depth varied; got {', '.join(setting)}. Measure it with axes=.")
        if len(setting) > 1:
            raise InputError(f"settings vary one at a time; got {', '.join(setting)}. Ask for one of them.")
        ((name, value),) = setting.items()
        return transfer.against[check_choice("setting", name, transfer.against)].best((width, depth), value)

    def loss(self, rule: str, width: int, depth: int) -> Interval:
        """The loss at the best rate of a size.

        For the smallest and the largest size it is that of starts which chose no rate, for others that of the grid,
        each seed at the rate that the others choose.

        Raises:
            ValueError: for a rule or a size of which there are no runs.
        """
        return self._trained(rule, width, depth).loss((width, depth))

    def drift(self, rule: str, axis: str) -> Interval:
        """Doublings of the best rate per doubling of an axis, with a 95 % interval: 0 if the rate transfers.

        Args:
            rule: one of the rules that were trained; ``"logged"`` for logs without a rule.
            axis: ``"width"``, ``"depth"`` or a further axis, such as ``"batch_size"``. If it did not vary, the result
                is not-a-number.
        """
        transfer = self.of(rule)
        if check_choice("axis", axis, [*AXES, *transfer.against]) in transfer.against:
            return transfer.against[axis].exponent
        return transfer.drifts.get(cast(Axis, axis), UNKNOWN)

    def regret(self, rule: str) -> Interval:
        """The loss that the largest network loses at the smallest one's best rate, in nats; not-a-number if unknown."""
        regret = self.of(rule).regret
        return UNKNOWN if regret is None else regret.loss

    def verdict(self, rule: str) -> TransferVerdict:
        """Whether the best rate of the smallest network serves the largest: an enum; ``str`` gives the word."""
        return self.of(rule).verdict

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per rule and quantity (best rates, drifts, regret), followed by those of further axes."""
        sizes = [row for transfer in self.rules for row in transfer.table]
        return [*sizes, *(row for t in self.rules for against in t.against.values() for row in against.table)]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a small regret does not show: another rule whose loss is lower, a larger network that is no better than
        the smallest, initial weights far from fan-in scaling. Empty if there is nothing of the kind."""
        advised = recommended(self.rules).rule if self._is_trained else None
        measured = any("init_scale" in answer.against for answer in self.rules)
        of_levels = [] if advised is None else of_level(self.rules, advised)
        return (*of_levels, *([] if measured else of_initial_scale(self.initial_scale)))

    @property
    def along_settings(self) -> list[str]:
        """One sentence per rule and further axis: how the best rate depends on it."""
        return [against.sentence for answer in self.rules for against in answer.against.values()]

    def __str__(self) -> str:
        against = [str(against) for answer in self.rules for against in answer.against.values()]
        warnings = [f"Warning: {warning}" for warning in self.warnings]
        advice = [str(recommended(self.rules))] if self._is_trained else []
        return "\n".join([self.levels, *map(str, self.rules), *against, *self.notes, *warnings, *advice])

    @property
    def levels(self) -> str:
        """The best rates and losses of all rules at all sizes, as text."""
        sizes = dict.fromkeys(size for answer in self.rules for size in answer.cells)
        return rows_as_text(
            [
                {"width": n, "depth": L, "rule": answer.rule, f"best {answer.rate}": rate_in_words(rate), "loss": loss}
                for n, L in sizes
                for answer in self.rules
                if (n, L) in answer.cells
                for rate, loss in [(rate_of(answer.optimum((n, L))), answer.loss((n, L)).unsigned)]
            ]
        )

    @property
    def _is_trained(self) -> bool:
        """Whether every rule has a regret, so that there is something to advise."""
        return all(answer.regret for answer in self.rules)

    def _trained(self, rule: str, width: int, depth: int) -> RuleTransfer:
        """The answer for a rule, of which there are runs of this size."""
        transfer = self.of(rule)
        if (width, depth) not in transfer.cells:
            sizes = "; ".join(map(in_words, transfer.cells))
            raise InputError(f"there are no runs of {in_words((width, depth))}. There are some of {sizes}.")
        return transfer
