"""What a regret does not show: how low the loss is, beside other rules and beside the smallest network.

A rule under which nothing is lost by tuning small may train every size badly. So the losses that rules reach at their
own best rates are compared, by starts that chose none of these rates: the best of a grid is too low by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nfd.core.intervals import Interval, combined, mean
from nfd.questions.optimum import Array
from nfd.questions.rule_transfer import RuleTransfer, in_words

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
