"""The law of the loss curve of one training run: its final loss, from its losses so far.

The schedule of the run is known. After t steps, with r(t) the learning rate over its peak, S(t) the
sum of r over the steps so far, and s the latest step,

    loss(t) / loss(s) = E + f (S(t) / S(s))^-a - b h(t),
    h(t) = sum over steps k < t of (r(k-1) - r(k)) G(t - k),
    G(n) = 1 - (1 + n / 100)^(-1/2).

The power law is what a constant learning rate gives. Every fall of the rate after the warm-up
lowers the loss by b times the fall, most of it within some hundred steps: by b in all where the
rate falls to zero slowly. What this form misses is a Gaussian process over log S, and a share of
b h (1 - h), since the first part of a fall may lower the loss by less than the last one. A run
before its fall does not show b: it has a prior, as has a, learned from other people's runs
(``curves.json``; docs/real-ladders.md). E, f and b are normal given a, so that the posterior is a
sum over a grid of a.

Sources: Tissue et al. 2024, "Scaling law with learning rate annealing" (arXiv 2408.11029); Luo et
al. 2025, "A multi-power law for loss curve prediction across learning rate schedules" (2503.12811),
whose G has two more numbers, which 300 curves do not tell apart.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.checks import check_count, check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.core.estimates import Interval, f_tail
from nfd.core.tables import Row
from nfd.core.words import alike, listed, number
from nfd.laws.ladder_posterior import Calibration
from nfd.laws.priors import read_prior
from nfd.laws.schedules import Fall, RateSchedule
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.report.page import Section

Array = NDArray[np.float64]
Schedule = RateSchedule | Callable[[int], float] | Sequence[float]

# Steps within which the loss follows a fall of the learning rate.
_RELAXED = 100.0
# A schedule is read at so many steps, at most.
_GRID = 4096
# The warm-up has ended at this share of the peak.
_AT_PEAK = 0.999
# Losses are fitted from a quarter of the latest S on, and after the warm-up, whose S counts by the
# second factor.
_BACK = 4.0
_WARMED = 1.2
# Losses are averaged in bins of log S; a fit needs so many losses.
_BINS = 40
_FEWEST = 5
# The Gaussian process of what the form misses: its length in log S, and its size over the loss.
_LENGTH = 1.0
_MISSED = 0.0015
_LEAST_NOISE = 2e-4
# The standard deviation of the share of b h (1 - h) that the form misses. Without it, runs early in
# a slow fall take b to be too small: of 124 published runs with such a fall, intervals at
# 0.35 of the run held 79 % of the final losses, and with it 90 %. Twice this value adds 1 %.
_UNEVEN = 0.5
# The grid of a.
POWERS = np.exp(np.linspace(math.log(0.15), math.log(1.6), 33))
# The prior of E and f: means, and the standard deviation of both.
_TYPICAL = np.array([0.88, 0.12])
_WITHIN = 0.3
# The learning rate of AdamW at which the prior's coefficients are.
_USUAL_RATE = 1e-3
# A forecast is refused where its interval is a wider share of the final loss.
_REFUSED = 0.06
# The steps of the shortest published run. Of twelve trainings of 400 steps, intervals at 0.25 and
# 0.35 of the run held 14 of 24 final losses.
_SHORTEST = 3000
# Rows of the table.
_ROWS = 4
# A schedule is contradicted where another explains the losses so far e^5, 150, times better; it is
# compared with those that differ by this share of the peak in what is done, after the warm-up
# (cosine and linear falls do not, and the law misses either by more). Of 241 published runs, .4 %
# were contradicted under their own schedule at a quarter, a half and three quarters of the run, and
# 32, 67 and 72 % under others that are wrong by .4 of the peak or more in what was done.
_CONTRADICTED = 5.0
_ANOTHER = 0.2
_OTHERS: dict[str, Fall] = {
    "a constant rate": "constant",
    "a cosine over all steps": "cosine",
    "a linear fall over all steps": "linear",
}
# Losses rise where a line through those that are fitted, or through the later ones at which S is at
# least its latest value over this, rises by more than a share that says nothing of the forecast,
# and by more than noise about a parabola does in one of ten thousand runs.
_LATER = 1.5
_LEAST_RISE = 0.002
_BY_CHANCE = 1e-4
_FEWEST_LATER = 8
# The last three losses rise fast, as they do in divergence, where by so many times their noise.
_FAST = 8.0
# By how much the losses of two seeds differ, over the loss.
SEED_NOISE = 0.0003


@dataclass(frozen=True)
class CurvePrior:
    """The normal prior of log a and log b.

    Its means are linear in the log of AdamW's peak learning rate over 0.001.

    Attributes:
        name: for the answer.
        coefficients: ``[2, 2]``, of 1 and of the log rate.
        covariance: of log a and log b of one training run.
        rates: mean and variance of the log rate, where it is not known.
        calibration: of intervals.
        curves: what it was learned from.
    """

    name: str
    coefficients: Array
    covariance: Array
    rates: tuple[float, float] = (0.0, 0.0)
    calibration: Calibration = field(default_factory=Calibration)
    curves: Mapping[str, str] = field(default_factory=dict)

    def at(self, rate: float | None) -> tuple[Array, Array]:
        """Compute mean and covariance at a learning rate; None where it is not known."""
        if rate is None:
            log_rate, variance = self.rates
        else:
            log_rate = math.log(rate / _USUAL_RATE)
            variance = 0.0
        slope = self.coefficients[:, 1]
        mean = self.coefficients[:, 0] + slope * log_rate
        return mean, self.covariance + variance * np.outer(slope, slope)


def read_curve_prior() -> CurvePrior:
    """Read the prior of the package."""
    return read_prior("curves", "curves", _parsed)


def _parsed(stored: Mapping[str, Any]) -> CurvePrior:
    """Make a prior of the content of its file."""
    return CurvePrior(
        name=stored["name"],
        coefficients=np.array(stored["coefficients"]),
        covariance=np.array(stored["covariance"]),
        rates=(stored["rates"][0], stored["rates"][1]),
        calibration=Calibration(**stored["calibration"]),
        curves=stored["curves"],
    )


class RunCurve:
    """The losses of a run so far, ``[K]`` after ``[K]`` steps, and its whole schedule.

    Losses are fitted at which S is at least its latest value over ``back``.
    """

    def __init__(
        self,
        losses: Mapping[int, float] | Sequence[float],
        schedule: Schedule,
        total_steps: int,
        back: float = _BACK,
    ) -> None:
        self.back = back
        self.total = check_count("total_steps", total_steps)
        by_step = losses if isinstance(losses, Mapping) else dict(enumerate(losses, 1))
        if not all(isinstance(step, int | float | np.number) for step in by_step):
            raise InputTypeError(
                "losses must be by step, whose keys are numbers, as {200: 5.1}; got the keys "
                f"{listed([step for step in by_step if isinstance(step, str)][:3])}."
            )
        self.steps = np.array(sorted(step for step in by_step if step > 0), dtype=float)
        self.losses = np.array([by_step[int(step)] for step in self.steps], dtype=float)
        if not (np.isfinite(self.losses).all() and (self.losses > 0).all()):
            raise InputError(
                "losses must be finite and above 0, those of log probabilities. Leave out others."
            )
        if len(self.steps) and self.steps[-1] > self.total:
            raise InputError(
                f"total_steps must be at least the {self.steps[-1]:g} steps done; got {self.total}."
            )
        self._read(schedule)

    def _read(self, schedule: Schedule) -> None:
        """Read the schedule on a grid of steps: the sum of shares, and the falls after the peak."""
        grid = np.unique(np.linspace(0, self.total - 1, min(self.total, _GRID)).round())
        shares = _shares(schedule, grid.astype(int), self.total)
        self._grid = grid
        self._shares = shares
        ends = np.append(grid[1:], self.total)
        self._ends = np.append(0.0, ends)
        self._summed = np.append(0.0, np.cumsum(shares * (ends - grid)))
        peak = int(np.argmax(shares >= _AT_PEAK))
        self.warmed = float(grid[peak])
        falls = -np.diff(shares[peak:])
        self._falls = falls[falls != 0]
        self._fall_steps = grid[peak + 1 :][falls != 0]

    def under(self, schedule: Schedule) -> RunCurve:
        """The same losses, as fitted here, had the run another schedule."""
        # Both are kept: which losses are fitted, and their bins, follow from the schedule.
        assert len(self.binned)
        other = copy.copy(self)
        other._read(schedule)
        return other

    def since(self, back: float) -> RunCurve | None:
        """The same run, of which the losses are fitted at which S is at least its latest over this.

        None where they are too few.
        """
        other = copy.copy(self)
        other.back = back
        for name in ("recent", "noise", "binned"):
            other.__dict__.pop(name, None)
        return other if self._recent(back).sum() >= _FEWEST else None

    def rate_rises(self, step: float) -> bool:
        """Whether the learning rate rises after a step, up to the latest one."""
        is_done = (step <= self._fall_steps) & (self._fall_steps <= self.steps[-1])
        return bool((self._falls[is_done] < 0).any())

    def apart(self, other: RunCurve) -> float:
        """By how much two schedules differ in the steps done, after the warm-up, over the peak."""
        is_done = (self.warmed <= self._grid) & (self._grid <= self.steps[-1])
        differences = np.abs(self._shares - other._shares)[is_done]
        return float(differences.max(initial=0.0))

    def progress(self, steps: Array) -> Array:
        """The sum S of shares of the peak rate after steps."""
        return np.asarray(np.interp(steps, self._ends, self._summed))

    def fallen(self, steps: Array) -> Array:
        """The falls of the rate, h, as far as the loss follows them after steps."""
        since = np.clip(steps[:, None] - self._fall_steps, 0.0, None)
        return np.asarray((1 - (1 + since / _RELAXED) ** -0.5) @ self._falls)

    @cached_property
    def recent(self) -> NDArray[np.bool_]:
        """Which losses are fitted."""
        is_recent = self._recent(self.back)
        if is_recent.sum() < _FEWEST:
            raise InputError(
                f"a forecast needs at least {_FEWEST} losses after the warm-up, in the last three "
                f"quarters of the run so far; got {is_recent.sum()}. Log more of them, or ask "
                "later."
            )
        return is_recent

    def _recent(self, back: float) -> NDArray[np.bool_]:
        """Which losses follow the warm-up, and an S of at least the latest over ``back``."""
        S = self.progress(self.steps)
        least = 0.0
        if len(S):
            S_warmed = self.progress(np.array([self.warmed]))[0]
            least = max(S[-1] / back, _WARMED * S_warmed)
        return np.asarray(least <= S)

    @cached_property
    def noise(self) -> float:
        """The standard deviation of one loss about the curve, over the loss.

        It comes from second differences.
        """
        bends = np.abs(np.diff(np.log(self.losses[self.recent]), 2))
        return max(_LEAST_NOISE, float(np.median(bends)) / 0.6745 / math.sqrt(6))

    @cached_property
    def binned(self) -> tuple[Array, Array, Array]:
        """Means of the fitted losses in bins of log S, ``[B]`` each.

        They are of the step and of the loss; the third is the noise of the mean loss.
        """
        steps = self.steps[self.recent]
        losses = self.losses[self.recent]
        logs = np.log(self.progress(steps))
        # One bin where all of them follow the end of the learning rate.
        span = (logs[-1] - logs[0]) or 1.0
        bins = np.minimum((logs - logs[0]) / span * _BINS, _BINS - 1).astype(int)
        counts = np.bincount(bins)
        kept = counts > 0
        counts = counts[kept]
        mean_steps = np.bincount(bins, steps)[kept] / counts
        mean_losses = np.bincount(bins, losses)[kept] / counts
        return mean_steps, mean_losses, self.noise / np.sqrt(counts)


def _shares(schedule: Schedule, steps: NDArray[np.int64], total: int) -> Array:
    """Read the learning rates at steps, over their peak."""
    if isinstance(schedule, RateSchedule):
        rates = [schedule(step, total) for step in steps.tolist()]
    elif callable(schedule):
        rates = [float(schedule(step)) for step in steps.tolist()]
    elif isinstance(schedule, Sequence | np.ndarray) and not isinstance(schedule, str):
        if len(schedule) != total:
            raise InputError(
                f"schedule must have a rate for each of the {total} steps; got {len(schedule)}."
            )
        rates = [float(schedule[step]) for step in steps.tolist()]
    else:
        kinds = "an nfd.RateSchedule, a function of the step such as LambdaLR's, or a list of rates"
        raise InputTypeError(f"schedule must be {kinds}; got {type(schedule).__name__}.")
    by_step = np.array(rates)
    if not (np.isfinite(by_step).all() and (by_step >= 0).all() and by_step.max() > 0):
        raise InputError("schedule must give finite rates of at least 0, some above it.")
    return np.asarray(by_step / by_step.max())


@dataclass(frozen=True)
class _AtPower:
    """The numbers E, f and b of the law at one power a, which are normal.

    Attributes:
        height: the logarithm of the density of a, up to a constant.
        numbers, covariance: mean ``[3]`` and covariance ``[3, 3]``.
    """

    a: float
    height: float
    numbers: Array
    covariance: Array


class CurvePosterior:
    """What the losses of a run and a prior allow: numbers of the law, and losses to come."""

    def __init__(self, run: RunCurve, prior: CurvePrior, rate: float | None = None) -> None:
        self.run = run
        steps, losses, noise = run.binned
        self.level = float(losses[-1])
        self._last = run.progress(steps[-1:])[0]
        self._logs = np.log(run.progress(steps) / self._last)
        self._fallen = run.fallen(steps)
        mean, covariance = prior.at(rate)
        self._uneven_b = _UNEVEN * math.exp(mean[1])
        missed = self._missed(self._logs, self._fallen)
        self._sure = np.linalg.inv(missed + np.diag(noise**2 + 1e-8))
        self._losses = losses / self.level
        at_powers = [self._at_power(a, mean, covariance) for a in POWERS]
        heights = np.array([at.height for at in at_powers])
        # The log of the chance of these losses, up to a constant of the run.
        volume = np.linalg.slogdet(self._sure)[1] / 2
        self.evidence = float(logsumexp(heights) + volume)
        weights = np.exp(heights - heights.max())
        self._weights = weights / weights.sum()
        self._at_powers = at_powers

    def _at_power(self, a: float, mean: Array, covariance: Array) -> _AtPower:
        """Fit E, f and b at a power a, given the prior of log a and log b."""
        shared = covariance[0, 1] / covariance[0, 0]
        # The standard deviation of log b, where a is known.
        error = math.sqrt(covariance[1, 1] - shared * covariance[0, 1])
        form = self._form(self._logs, self._fallen, a)
        b = math.exp(mean[1] + shared * (math.log(a) - mean[0]))
        expected = np.append(_TYPICAL, b)
        prior_precision = np.diag([_WITHIN**-2, _WITHIN**-2, (error * b) ** -2])
        precision = form.T @ self._sure @ form + prior_precision
        residuals = self._losses - form @ expected
        gradient = form.T @ self._sure @ residuals
        step = np.linalg.solve(precision, gradient)
        volume = np.linalg.slogdet(precision)[1]
        prior_volume = np.linalg.slogdet(prior_precision)[1]
        likely = gradient @ step - volume + prior_volume
        misfit = residuals @ self._sure @ residuals
        surprise = (math.log(a) - mean[0]) ** 2 / covariance[0, 0]
        return _AtPower(
            a=a,
            height=(likely - misfit - surprise) / 2,
            numbers=np.asarray(expected + step),
            covariance=np.asarray(np.linalg.inv(precision)),
        )

    def _missed(self, logs: Array, fallen: Array) -> Array:
        """The covariance ``[K, B]`` of what the form misses, later and in the fitted losses."""
        smooth = _discrepancy(logs, self._logs)
        return smooth + np.outer(self._uneven(fallen), self._uneven(self._fallen))

    def _uneven(self, fallen: Array) -> Array:
        """By how much a fall may lower the loss by less so far than its share of b."""
        return self._uneven_b * fallen * (1 - fallen)

    @staticmethod
    def _form(logs: Array, fallen: Array, a: float) -> Array:
        """The factors ``[K, 3]`` of E, f and b in the loss."""
        return np.stack([np.ones_like(logs), np.exp(-a * logs), -fallen], 1)

    def drop(self, steps: ArrayLike) -> Array:
        """By how much falls of the rate lower the log loss from now to steps ``[K]``."""
        fall = self._weights @ np.array([at.numbers[2] for at in self._at_powers])
        later = self.run.fallen(np.asarray(steps, dtype=float))
        return np.asarray(np.clip(fall * (later - self._fallen[-1]), 0.0, None))

    def moments(self, steps: ArrayLike) -> tuple[Array, Array]:
        """Compute the mean of the log loss after steps ``[K]``, and its standard deviation."""
        steps = np.asarray(steps, dtype=float)
        logs = np.log(self.run.progress(steps) / self._last)
        fallen = self.run.fallen(steps)
        covariance = self._missed(logs, fallen)
        across = covariance @ self._sure
        missed = _MISSED**2 + self._uneven(fallen) ** 2
        missed -= np.einsum("kb,kb->k", across, covariance)
        missed = np.clip(missed, 0.0, None)
        means = list[Array]()
        variances = list[Array]()
        for at in self._at_powers:
            fitted = self._form(self._logs, self._fallen, at.a)
            form = self._form(logs, fallen, at.a)
            residuals = self._losses - fitted @ at.numbers
            means.append(form @ at.numbers + across @ residuals)
            # What is not seen of the numbers through the fitted losses.
            open_form = form - across @ fitted
            of_numbers = np.einsum("ki,ij,kj->k", open_form, at.covariance, open_form)
            variances.append(of_numbers + missed)
        mean = self._weights @ np.array(means)
        variance = self._weights @ (np.array(variances) + np.square(means)) - mean**2
        return np.log(self.level * mean), np.sqrt(np.clip(variance, 0.0, None)) / mean


def _discrepancy(rows: Array, columns: Array) -> Array:
    """Compute the covariance of what the form misses, between two lists of log S."""
    return np.asarray(_MISSED**2 * np.exp(-0.5 * np.square((rows[:, None] - columns) / _LENGTH)))


@dataclass(frozen=True, repr=False)
class RunForecast(Shown):
    """The losses to come of a training run, from its losses so far.

    Print it; a notebook shows the chart, which ``plot()`` returns.

    Attributes:
        seen: the step of the latest loss that it knows.
        total_steps: of the run.
        prior: the prior of the law's numbers.
        contradicted_by: the schedule that the losses so far follow instead of the given one, in
            words; empty where they follow it, or do not show another.
        rises: whether the losses rise, all of them or the latest.

    ``table`` and ``to_pandas()`` have a row for each of some steps to come: ``step``, ``loss``, and
    ``loss_low`` and ``loss_high``, its 95 % interval.
    """

    posterior: CurvePosterior
    seen: int
    total_steps: int
    prior: CurvePrior
    contradicted_by: str = ""
    rises: bool = False

    def at(self, step: int) -> Interval:
        """The loss after a step, from ``seen`` to ``total_steps``.

        It is without the noise of single batches.
        """
        check_count("step", step, minimum=self.seen)
        mean, sd = self.posterior.moments([step])
        # The gain of a run is the drop, whose course differs from run to run.
        calibration = self.prior.calibration
        error = float(calibration.spread(sd, self.posterior.drop([step]))[0])
        half = calibration.q * error
        middle = float(mean[0])
        return Interval(middle, error, middle - half, middle + half).exp()

    @cached_property
    def loss(self) -> Interval:
        """The loss after the last step."""
        return self.at(self.total_steps)

    @property
    def _width(self) -> float:
        """The width of the interval of the final loss, over its value."""
        return (self.loss.high - self.loss.low) / self.loss.value

    @cached_property
    def refusal(self) -> str | None:
        """Why not to rely on the final loss; None where its interval is at most 6 % of it wide.

        It is refused, too, where the losses so far rise, or contradict the schedule.
        """
        if self.rises:
            return f"{self._risen} {_RISES}"
        if self.contradicted_by:
            return f"{self._contradiction} {_CHECK}"
        width = self._width
        if width <= _REFUSED:
            return None
        falls = self.posterior.run.fallen(np.array([float(self.total_steps), float(self.seen)]))
        remedy = "Ask again later in the run."
        if falls[0] > 2 * max(falls[1], 0.1):
            remedy = (
                "Most of the fall of the rate is still to come: ask again when half of it is done."
            )
        return (
            f"The forecast of the final loss is {number(100 * width)} % wide, more than "
            f"{number(100 * _REFUSED)} %. {remedy}"
        )

    @property
    def _risen(self) -> str:
        """From which loss to which the losses rise."""
        _, losses, _ = self.posterior.run.binned
        lowest, latest = (f"{loss:.4g}" for loss in (losses.min(), losses[-1]))
        return f"The losses rise: from {lowest} to {latest} at step {self.seen:,}."

    @property
    def _contradiction(self) -> str:
        """What the losses so far follow."""
        return (
            f"The losses so far do not follow this schedule: {self.contradicted_by} explains them "
            f"more than {math.exp(_CONTRADICTED):.0f} times better."
        )

    def outside(self, losses: Mapping[int, float]) -> Interval | None:
        """The interval of the mean of later losses, where their mean is outside; else None.

        Outside is by more than the noise of seeds and of the losses.
        """
        if not losses:
            return None
        values = np.array(list(losses.values()))
        band = self.at(min(round(float(np.mean(list(losses)))), self.total_steps))
        noise = SEED_NOISE + 2 * self.posterior.run.noise / math.sqrt(len(values))
        low = band.low * (1 - noise)
        high = band.high * (1 + noise)
        if low <= values.mean() <= high:
            return None
        return Interval(band.value, band.stderr, low, high)

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""
        value, _, _ = alike(self.loss.value, self.loss.low, self.loss.high)
        because = f"Expect {self.loss.in_words()}, from the first {self.seen:,} steps"
        about = f"{self.total_steps:,} steps, {self.seen:,} of them done"
        details = [f"Prior: {self.prior.name}."]
        but = ""
        if self.total_steps < _SHORTEST:
            but = (
                f"intervals are calibrated on runs of {_SHORTEST:,} steps or more, and those of "
                "much shorter ones hold too few final losses."
            )
        table = [_in_words(row) for row in self.table]
        code = f"nfd.forecast_run(losses, schedule, total_steps={self.total_steps})"
        if self.rises:
            return Answer(
                tone="bad",
                state="Losses rise",
                title="The run diverges or overfits: its losses rise",
                because=f"{self._risen} The law is of losses that fall.",
                next=Next(f"{_RISES} Then", code),
                about=about,
                table=table,
                details=[*details, f"{because}, if they fell."],
            )
        if self.contradicted_by:
            return Answer(
                tone="bad",
                state="Schedule contradicted",
                title="The losses so far do not follow this schedule",
                because=f"{self.contradicted_by[:1].upper()}{self.contradicted_by[1:]} explains "
                f"them more than {math.exp(_CONTRADICTED):.0f} times better.",
                next=Next(f"{_CHECK} Then", code),
                about=about,
                table=table,
                details=[*details, f"{because}, if it were right."],
            )
        if self.refusal is None:
            return Answer(
                tone="good",
                state="Forecast usable",
                title=f"The run ends at a loss of {value}",
                because=f"{because}.",
                but=but,
                next=Next(
                    "Next: an alert where losses leave this forecast",
                    f"watch.forecast({self.total_steps}, schedule)",
                ),
                about=about,
                table=table,
                details=details,
            )
        later = self._ask_again
        return Answer(
            tone="open",
            state=NOT_DECIDED,
            title="These losses do not tell where the run ends",
            because=f"{because}: {number(100 * self._width)} % wide, and "
            f"{number(100 * _REFUSED)} % is the limit.",
            but=but,
            next=Next(f"Ask again after about {number(later)} steps", code),
            about=about,
            table=table,
            details=[*details, self.refusal],
        )

    @property
    def _ask_again(self) -> int:
        """The step after which half of the fall of the rate that is to come is done."""
        run = self.posterior.run
        steps = np.linspace(self.seen, self.total_steps, _GRID)
        fallen = run.fallen(steps)
        half = (fallen[0] + fallen[-1]) / 2
        if fallen[-1] - fallen[0] < 1e-9:
            return round((self.seen + self.total_steps) / 2)
        return round(float(steps[int(np.argmax(fallen >= half))]))

    @cached_property
    def table(self) -> list[Row]:
        """One dict for each of some steps to come, the last of which ends the run."""
        rows = []
        for step in np.linspace(self.seen, self.total_steps, _ROWS + 1)[1:].round().tolist():
            loss = self.at(int(step))
            ends = {"loss": loss.value, "loss_low": loss.low, "loss_high": loss.high}
            rows.append({"step": int(step)} | ends)
        return rows

    def first_sections(self) -> list[Section]:
        """The losses so far, and the losses to come."""
        from nfd.laws.curve_page import first_sections

        return first_sections(self)


_RISES = (
    "Losses of training that rise diverge: lower the learning rate. Losses of evaluation that rise "
    "overfit: stop at the lowest, or train on more data."
)
_CHECK = "Check the schedule, and its number of steps."


def forecast_of(run: RunCurve, prior: CurvePrior, rate: float | None) -> RunForecast:
    """Forecast a run by a prior; ``rate`` is AdamW's peak."""
    posterior = CurvePosterior(run, prior, rate)
    return RunForecast(
        posterior=posterior,
        seen=int(run.steps[-1]),
        total_steps=run.total,
        prior=prior,
        contradicted_by=_contradicting(posterior, rate, prior),
        rises=_rises(posterior.run),
    )


def _rises(run: RunCurve) -> bool:
    """Say whether the losses that are fitted rise, or the later part of them does."""
    if _is_rising(run) or _rises_fast(run):
        return True
    later = run.since(_LATER)
    if later is None or len(later.binned[1]) < _FEWEST_LATER:
        return False
    return _is_rising(later)


def _rises_fast(run: RunCurve) -> bool:
    """Say whether each of the last three losses is above the one before, by far more than noise."""
    steps, losses, noise = run.binned
    if len(losses) < _FEWEST_LATER or run.rate_rises(steps[-3]):
        return False
    logs = np.log(run.progress(steps))
    earlier = _about_parabola(logs[:-3], np.log(losses[:-3]))
    wander = math.sqrt(earlier @ earlier / (len(earlier) - 3))
    latest = np.log(losses[-3:])
    rise = latest[-1] - latest[0]
    is_fast = rise > max(_FAST * max(noise[-3:].max(), wander), _LEAST_RISE)
    return bool((np.diff(latest) > 0).all() and is_fast)


def _is_rising(run: RunCurve) -> bool:
    """Say whether a line through the fitted losses rises over log S, by more than their noise."""
    steps, losses, _ = run.binned
    count = len(losses)
    # Losses rise with the learning rate, as after a warm restart.
    if count < _FEWEST or run.rate_rises(steps[0]):
        return False
    logs = np.log(run.progress(steps))
    logs -= logs.mean()
    slope = float(logs @ losses / (logs @ logs))
    if slope * (logs[-1] - logs[0]) < _LEAST_RISE * losses.mean():
        return False
    residuals = _about_parabola(logs, losses)
    squares = float(residuals @ residuals) + (_LEAST_NOISE * losses.mean()) ** 2
    follow = max(float(residuals[1:] @ residuals[:-1]) / squares, 0.0)
    variance = squares / (count - 3) * (1 + follow) / (1 - follow)
    return f_tail(slope**2 * (logs @ logs) / variance, 1, count - 3) / 2 < _BY_CHANCE


def _about_parabola(x: Array, y: Array) -> Array:
    """What a parabola in ``x`` leaves of ``y``."""
    return np.asarray(y - np.polyval(np.polyfit(x, y, 2), x))


def _contradicting(posterior: CurvePosterior, rate: float | None, prior: CurvePrior) -> str:
    """Name the schedule that the losses follow instead of the given one; empty if there is none."""
    run = posterior.run
    most = posterior.evidence + _CONTRADICTED
    name_of_best = ""
    for name, fall in _OTHERS.items():
        other = run.under(RateSchedule(warmup=round(run.warmed), fall=fall))
        if run.apart(other) < _ANOTHER:
            continue
        evidence = CurvePosterior(other, prior, rate).evidence
        if evidence > most:
            most = evidence
            name_of_best = name
    return name_of_best


def _in_words(row: Row) -> dict[str, str]:
    """Write a row of the table."""
    loss, low, high = alike(row["loss"], row["loss_low"], row["loss_high"])
    return {"step": f"{row['step']:,}", "loss": loss, "95 %": f"{low} to {high}"}


def forecast_run(
    losses: Mapping[int, float] | Sequence[float],
    schedule: Schedule,
    total_steps: int,
    *,
    rate: float | None = None,
) -> RunForecast:
    """Forecast the final loss of a language model's training run from its losses so far.

    The law is documented in ``nfd.laws.curve``: a power of the summed rates, less a drop for every
    fall of the rate. The drop that a run has not shown yet comes from other people's runs, so that
    its interval is wide. Intervals are calibrated on runs of others, each source of which was
    forecast from the others; those of runs as short as 400 steps hold too few final losses. A
    schedule that the losses so far contradict is refused, as are losses that rise; one that is
    wrong only in what is to come cannot be noticed.

    Args:
        losses: by step, as ``{200: 5.1, 400: 4.3}``, or one for each step from the first; of
            training or of evaluation, in one unit. Noise is averaged.
        schedule: of all steps: an ``nfd.RateSchedule``, a function of the step (from 0) such as
            that of ``LambdaLR``, or a list with a rate per step. Only ratios of rates count.
        total_steps: of the run.
        rate: the peak rate of AdamW for the matrices, where that is the optimizer. The drop grows
            with it, and the interval is narrower.

    Raises:
        ValueError, TypeError: naming the argument; with fewer than five losses after the warm-up.

    Example::

        schedule = nfd.RateSchedule(warmup=100, fall="linear", share=0.2)
        losses = {step: 2.5 + 30 * step**-0.5 for step in range(50, 2501, 50)}
        forecast = nfd.forecast_run(losses, schedule, total_steps=10_000, rate=1e-3)
        print(forecast.loss, forecast.at(8000), forecast.refusal)
    """
    if rate is not None:
        check_real("rate", rate, above=0.0)
    return forecast_of(RunCurve(losses, schedule, total_steps), read_curve_prior(), rate)
