"""Whether the learning rate of a training run follows the schedule of the small networks.

With ``r_t`` the learning rate at step t and ``f_t`` the small networks' factor on theirs, the
schedules are the same where ``r_t / f_t`` is one number at all looks so far, and where this is the
rate before the schedule over the small networks' peak factor. PyTorch's schedulers keep that rate
in the groups of the optimizer. The size of this number is no matter of the schedule: another rate
at every step is a fault, which the bands show.

``_SAME``: under a linear decay beside a constant rate, the rates differ by 1.5 after a third of the
run, when the sums of rates, which weights follow, differ by 1.2. That is within most bands.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import NamedTuple

import torch
from torch import Tensor

from nfd.core.words import number
from nfd.scaling.base_group import OF_MATRICES, SCALE
from nfd.scaling.kept_rates import FIRST, PEAK

# Rates whose ratio is no larger are the same.
_SAME = 1.5
# A share of the peak that is written as the peak
_AT_PEAK = 0.995


class Rate(NamedTuple):
    """A learning rate as a step had it, and before its schedule, by the scale of its tensors.

    ``peak`` is 0 where no scheduler says it.
    """

    now: float
    peak: float


def rate_of(optimizer: torch.optim.Optimizer) -> Rate:
    """Return the tuned rate of an optimizer, which a schedule changes like all others.

    It is the rate of most tensors: a schedule does not change one group alone, a fault does. What
    Muon leaves to AdamW has a tuned rate of its own; the larger of the two counts.
    """
    rates = defaultdict[bool, list[Rate]](list)
    for group in optimizer.param_groups:
        scale = float(group.get(SCALE) or 1.0)
        peak = float(group.get(PEAK) or group.get(FIRST) or 0.0)
        rate = Rate(float(group.get("lr") or 0.0) / scale, peak / scale)
        rates[bool(group.get(OF_MATRICES, True))] += [rate] * max(1, len(group["params"]))
    usual = [median_low(of_law) for of_law in rates.values()]
    return max(usual, key=lambda rate: (rate.peak, rate.now))


class LatestRate:
    """The rate of the latest step that is looked at: a hook of its optimizer notes it there.

    A scheduler may change it before the watch is told of the step.
    """

    def __init__(self) -> None:
        self.rate: Rate | None = None
        self.is_due = True
        # The rate of the latest step, until it is taken
        self._untaken: Rate | None = None

    def note(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the rate of a step if a look follows it: a rate may lie on an accelerator."""
        is_read_at_once = not any(
            isinstance(group.get("lr"), Tensor) for group in optimizer.param_groups
        )
        if not self.is_due and not is_read_at_once:
            return
        rate = rate_of(optimizer)
        if self.is_due:
            self.rate = rate
        if is_read_at_once:
            self._untaken = rate

    def taken(self) -> Rate | None:
        """The rate of the step since the last call; None without a step, or on an accelerator."""
        rate = self._untaken
        self._untaken = None
        return rate


class Rises:
    """Finds a step at which the learning rate rises above all that its schedule foresees.

    It rises so where it is ``_SAME`` times the rate of the step before, of every earlier step, and
    of the peak that the scheduler says; and where the rate did not rise a step before, as in a
    warm-up. Where no scheduler says a peak, the rate must have fallen before: who trains at a low
    rate first, and then by hand at the full one, warms up.
    """

    def __init__(self) -> None:
        # Of the two latest steps, and the largest so far
        self.latest: list[float] = []
        self.largest = 0.0

    def times(self, rate: Rate) -> float | None:
        """Note the rate of a step: how many times the one before it is, where it rises so."""
        latest = self.latest
        self.latest = [*latest, rate.now][-2:]
        top = max(self.largest, rate.peak)
        has_fallen = bool(latest) and latest[-1] < self.largest
        self.largest = max(self.largest, rate.now)
        if len(latest) < 2 or latest[1] <= 0 or latest[1] > latest[0]:
            return None
        rises = rate.now > _SAME * latest[1] and rate.now > _SAME * top
        return rate.now / latest[1] if rises and (rate.peak or has_fallen) else None


@dataclass(frozen=True)
class Difference:
    """A step at which two schedules differ, with both rates as shares of their peaks."""

    step: int
    share: float
    small_share: float
    has_fallen: bool

    def __str__(self) -> str:
        """Say in a clause how the rates differ: ``your learning rate has fallen to ...``."""
        if self.share > 1 / _AT_PEAK:
            of_run = f"your learning rate was {number(self.share, 2)} times its peak"
        elif self.share >= _AT_PEAK:
            of_run = "your learning rate stayed at its peak"
        elif self.has_fallen:
            of_run = f"your learning rate has fallen to {number(self.share, 2)} of its peak"
        else:
            of_run = f"your learning rate was {number(self.share, 2)} of its peak"
        small = "stayed"
        if self.small_share < _AT_PEAK:
            small = f"was {number(self.small_share, 2)} of its peak"
        return f"{of_run} at step {self.step:,}, the small networks' {small}"


class ScheduleCheck:
    """Compares the learning rates at the looks of a run with the small networks' schedule.

    Args:
        factors: the small networks' factors on their rate, one for each step.
        lr: their rate, which the factors multiply; None if it is not known.
    """

    def __init__(self, factors: Sequence[float], lr: float | None) -> None:
        self.factors = factors
        self.lr = lr
        self.rates: dict[int, Rate] = {}
        # The smallest and the largest of ``r_t / f_t`` so far; none before the first
        self._ratios: tuple[float, ...] = ()
        self._peak = 0.0
        self._small_peak = max([1.0, *factors])
        # The first look at which the schedules differed
        self.since: int | None = None

    def note(self, step: int, rate: Rate) -> None:
        """Note the rate at the step of a look, and compare all looks so far."""
        if step > len(self.factors):
            return
        self.rates[step] = rate
        self._peak = max(self._peak, rate.peak)
        ratio = _over(rate.now, self.factors[step - 1])
        if not math.isnan(ratio):
            ratios = [*self._ratios, ratio]
            self._ratios = min(ratios), max(ratios)
        if self.since is None and self._differ():
            self.since = step

    def _differ(self) -> bool:
        ratios = [*self._ratios]
        # Where a scheduler multiplies 1 by absolute rates, its peak is not what it says.
        if self.lr is not None and _are_same([self.lr, *ratios]):
            return False
        peak = self._peak
        if peak:
            ratios.append(peak / self._small_peak)
        return not _are_same(ratios)

    @property
    def largest(self) -> Difference | None:
        """The look at which the schedules differ most; None where they do not."""
        if self.since is None:
            return None
        peak = self._peak or max(rate.now for rate in self.rates.values())
        differences = []
        highest = 0.0
        for step, rate in self.rates.items():
            share = rate.now / peak
            small_share = self.factors[step - 1] / self._small_peak
            differences.append(Difference(step, share, small_share, has_fallen=highest > share))
            highest = max(highest, share)
        return max(differences, key=_distance)


def _over(rate: float, factor: float) -> float:
    """A rate over a factor; not-a-number where both are 0, as before a warm-up."""
    if factor:
        return rate / factor
    return math.inf if rate else math.nan


def _are_same(ratios: Sequence[float]) -> bool:
    if not ratios:
        return True
    return max(ratios) <= _SAME * min(ratios) < math.inf


def _distance(difference: Difference) -> float:
    """How far two shares are apart, as a logarithm."""
    shares = sorted((difference.share, difference.small_share))
    if shares[0] == shares[1]:
        return 0.0
    return math.log(shares[1] / shares[0]) if shares[0] else math.inf
