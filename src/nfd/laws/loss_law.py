"""The loss law: what trained networks lose against the infinite one, its fit, and its intervals.

With ``s = x0 / x`` for every variable x of a training run (width n, depth L, tokens), x0 its
smallest fitted value,

    loss = floor + sum_k A_k s_k^p_k + C_n s_n^2 + C_L s_L^2 + C_nL s_n s_L.

The floor is the loss of the infinite network after the same training. Width and depth have the
power 1 of the first correction to their limits, and terms of second order, as networks that can be
trained are of moderate size. Where four or more sizes show a power, it may be far from 1, too: laws
with either prior count by their chance, given the losses. Tokens have a power that only the losses
show. Every number has a prior: a power is what theory or earlier laws say, within a factor; a term
of second order is 0, within the term of first order. So the fit learns from the losses what it can,
and what it cannot learn widens the intervals.

Source: Hoffmann et al. 2022, "Training compute-optimal large language models" (the term of tokens).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.special import fdtrc, gammaincinv

from nfd.core.checks import check_count
from nfd.core.errors import InputError
from nfd.core.estimates import Interval, f_tail

Array = NDArray[np.float64]
Places = NDArray[np.intp]
Sizes = tuple[float, ...]
# The losses of training runs, by the sizes of the runs.
Losses = Mapping[Any, Sequence[float]]

# The p-value below which the law does not hold.
GOOD = 0.05

# ---- The form and the priors: all that is assumed before any loss is seen. The likelihood is
# ``_Fit._settled``.


# Variables with a limit: their power is 1 there, and they have terms of second order.
_LIMITED = ("width", "depth")
_LETTERS = {"width": ("a", ""), "depth": ("b", ""), "tokens": ("c", "beta")}

# Median and standard error of a power's logarithm. At sizes that can be trained, powers of width
# and depth between 0.75 and 1.5 were seen; intervals with only the power 1 held the floor 24 to 90
# times in 100.
_POWERS = dict.fromkeys(_LIMITED, (1.0, 0.4)) | {"tokens": (0.4, 1.0)}
# Powers of width and depth far from 1, too, where enough sizes show one: median, standard error of
# the logarithm, and their chance before the losses. Of ladders of five widths with the power 0.25
# a third was refused without them, and the floor lay in none of the intervals of the others.
_UNUSUAL_POWER = (0.6, 1.1)
# At 0.75 losses that saturate at small sizes were held by 137 of 149 intervals, at 0.5 by 97 of 99.
_UNUSUAL = 0.5
# A steeper power is a smallest size that breaks the law, not a law. One that lay above it was
# fitted by a power of 4, and the law then refused, in 5 of 14 draws. Powers to 2 are promised.
_STEEPEST = 2.5
# The answer is the law with the usual powers where another explains no more than this, of a
# chi-squared: the prior of unusual powers moves powers that losses show exactly.
_GAIN = 4.0
# With them, second order may be this share of what it may be beside the power 1: it bends a law
# like another power does, and pulled powers of 0.25 to the prior's.
_UNUSUAL_BEND = 0.1

# The slope of the logarithm of a run's variance in the logarithm of a variable; of others 0.
_SLOPES = {"width": -0.5}
# One over the variance of these slopes.
_SLOPE_SURE = 4.0
# Variance that sizes share, over the variance of one size; each ratio has the same chance.
_SHARED = (0.0, 0.3, 1.0, 4.0, 16.0, 64.0)


@dataclass(frozen=True)
class Form:
    """The variables of a loss law and the smallest size of each, ``x0``.

    A law is a row of numbers: the floor; the term of every variable at its smallest size, ``A``;
    the logarithm of every power; the terms of second order, ``C``, of each limited variable and of
    two together.
    """

    variables: tuple[str, ...]
    smallest: Sizes

    @cached_property
    def limited(self) -> list[int]:
        """The variables with the power 1 of a limit."""
        return [k for k, name in enumerate(self.variables) if name in _LIMITED]

    @cached_property
    def free(self) -> list[int]:
        """The variables whose power only the losses show."""
        return [k for k, name in enumerate(self.variables) if name not in _LIMITED]

    @cached_property
    def first(self) -> slice:
        """The place of the terms of first order in a law."""
        return slice(1, 1 + len(self.variables))

    @cached_property
    def powers(self) -> slice:
        """The place of the logarithms of powers."""
        return slice(self.first.stop, self.first.stop + len(self.variables))

    @cached_property
    def prior(self) -> tuple[Array, Array]:
        """The middle of every number, and one over its variance; 0 where only losses show it.

        How large second order may be depends on the first, which only a fit knows (``_Fit``).
        """
        middle = np.zeros(self.second.stop)
        sure = np.zeros(self.second.stop)
        for k, name in enumerate(self.variables, self.powers.start):
            power, error = _POWERS[name]
            middle[k] = math.log(power)
            sure[k] = error**-2
        return middle, sure

    @cached_property
    def second(self) -> slice:
        """The place of the terms of second order."""
        count = len(self.limited)
        return slice(self.powers.stop, self.powers.stop + count * (count + 1) // 2)

    def shrunk(self, laws: Array, sizes: Array) -> Array:
        """``s^p`` for laws ``[B, numbers]`` and sizes ``[K, variables]``: ``[B, K, variables]``."""
        return np.asarray((np.array(self.smallest) / sizes) ** np.exp(laws[:, None, self.powers]))

    def bends(self, sizes: Array) -> Array:
        """The factors of the terms of second order, ``[K, terms]``."""
        s = (np.array(self.smallest) / sizes)[:, self.limited]
        return np.hstack([s**2, s[:, :1] * s[:, 1:]])

    def losses(self, laws: Array, sizes: Array) -> Array:
        """The losses by laws ``[B, numbers]`` at sizes ``[K, variables]``: ``[B, K]``."""
        first = (self.shrunk(laws, sizes) @ laws[:, self.first, None])[..., 0]
        return np.asarray(laws[:, :1] + first + laws[:, self.second] @ self.bends(sizes).T)

    def slopes(self, laws: Array, sizes: Array) -> Array:
        """Derivatives of ``losses`` by the numbers of each law, ``[B, K, numbers]``.

        Sizes are finite.
        """
        shrunk = self.shrunk(laws, sizes)
        bends = self.bends(sizes)
        logs = np.exp(laws[:, None, self.powers]) * np.log(np.array(self.smallest) / sizes)
        ones = np.ones((*shrunk.shape[:2], 1))
        bent = np.broadcast_to(bends, (len(laws), *bends.shape))
        return np.concatenate([ones, shrunk, laws[:, None, self.first] * shrunk * logs, bent], -1)


@dataclass(frozen=True)
class Law:
    """A fitted loss law, with 95 % intervals.

    It is ``loss = floor + sum_k A_k / x_k^p_k`` with terms of second order. The intervals include
    the noise of the seeds, also noise that the sizes of a seed share, terms of second order as
    large as those of first order at the smallest size, and powers of width and depth that differ
    from 1 by a factor of 1.5 (one standard error). Where four sizes or more show a power, they
    also include powers of about 0.2 to 2 without such terms. If the truth is further away, and the
    noise hides it, the floor is biased. All is said of the data and their order in these runs:
    where all runs share one order, its noise is in none of the intervals.

    Attributes:
        form: its variables (width, depth, tokens) and the smallest size of each.
        largest: the largest size of each that was fitted.
        terms: the floor and the numbers of the law, by their letters in ``formula``. For width and
            depth it is the slope at the smallest size: ``a / n`` is the term of width n there.
        p_value: the probability of a larger misfit if the law holds; not-a-number if it cannot be
            tested.
        seeds: the smallest number of seeds of a size.
        good: whether the law may be extrapolated: p_value at least 0.05, and enough sizes of every
            variable.
        note: the reason if not, and what would settle it; the runs that were left out; otherwise
            empty.
        fit: the law, ``[numbers]``.
        draws: laws that the losses allow, ``[B, numbers]``.
        noise: for each draw, the logarithm of a run's variance, a constant and a slope in the
            logarithm of each variable, ``[B, 1 + variables]``.
    """

    form: Form
    largest: Sizes
    terms: dict[str, Interval]
    p_value: float
    seeds: int
    good: bool
    note: str
    fit: Array = field(repr=False)
    draws: Array = field(repr=False)
    noise: Array = field(repr=False)

    @property
    def floor(self) -> Interval:
        """The loss where every variable is infinite."""
        return self.terms["floor"]

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the law, in the order of the arguments of ``loss``."""
        return self.form.variables

    @property
    def smallest(self) -> Sizes:
        """The smallest size of each variable that was fitted."""
        return self.form.smallest

    @property
    def formula(self) -> str:
        """The law with its numbers.

        Such as ``loss = 1.00 [0.98, 1.02] + (+4.1 [+3.9, +4.3]) / width``.
        """
        formula = f"loss = {self.floor.unsigned}"
        for variable in self.variables:
            letter, letter_of_power = _LETTERS[variable]
            formula += f" + ({self.terms[letter]}) / {variable}"
            if letter_of_power in self.terms:
                formula += f"^({self.terms[letter_of_power].unsigned})"
        return formula

    def in_words(self) -> str:
        """The law with its numbers and their intervals, in words."""
        terms = [f"floor {self.floor.in_words()}"]
        formula = "loss = floor"
        for variable in self.variables:
            letter, letter_of_power = _LETTERS[variable]
            formula += f" + {letter} / {variable}"
            terms.append(f"{letter} {self.terms[letter].in_words()}")
            if letter_of_power in self.terms:
                formula += f"^{letter_of_power}"
                terms.append(f"{letter_of_power} {self.terms[letter_of_power].in_words()}")
        return f"{formula}, {', '.join(terms)}"

    @property
    def test(self) -> str:
        """The test of the law in words."""
        if math.isnan(self.p_value):
            return "its misfit cannot be tested: no size has two seeds"
        return f"p = {self.p_value:.2g}"

    def __str__(self) -> str:
        return f"{self.formula}: {self.test}. {self.note}".strip()

    def loss(self, *sizes: float) -> Interval:
        """The mean loss of runs of a size, in the order of ``variables``; each may be ``math.inf``.

        Raises:
            ValueError: outside the sizes that were fitted, when the law is not good.
        """
        return interval_of(*self._losses(sizes))

    def network(self, *sizes: float, networks: int = 1) -> Interval:
        """The mean loss of this many new runs of a size, with a 95 % prediction interval.

        Raises as ``loss`` does.
        """
        value, draws = self._losses(sizes)
        variance = np.exp(self.noise @ [1.0, *map(math.log, sizes)])
        noise = np.random.default_rng(1).standard_normal(len(draws))
        errors = np.sqrt(variance / check_count("networks", networks))
        return interval_of(value, draws + noise * errors)

    def excess(self, *sizes: float) -> Interval:
        """The loss above the floor, which is the most that larger networks can gain.

        Raises as ``loss`` does.
        """
        return self.bought(*sizes, *(math.inf for _ in self.variables))

    def bought(self, *sizes: float) -> Interval:
        """The fall of the loss from one size to a second one, given after it.

        Raises as ``loss`` does.
        """
        first, first_draws = self._losses(sizes[: len(self.variables)])
        second, second_draws = self._losses(sizes[len(self.variables) :])
        return interval_of(first - second, first_draws - second_draws)

    def _losses(self, sizes: Sizes) -> tuple[float, Array]:
        """The loss of a size by the law, and by every draw ``[B]``."""
        if len(sizes) != len(self.variables):
            raise InputError(
                f"this law needs {', '.join(self.variables)}; got {len(sizes)} numbers."
            )
        for name, size, least, most in zip(
            self.variables, sizes, self.smallest, self.largest, strict=True
        ):
            if not size > 0:
                raise InputError(f"{name} must be above 0; got {size}.")
            if not self.good and not least <= size <= most:
                raise InputError(
                    f"{name} must be within {least:g}..{most:g}, what was fitted; got {size:g}. "
                    f"This law may not be extrapolated: {self.note}"
                )
        place = np.array([sizes], dtype=float)
        loss = float(self.form.losses(self.fit[None], place)[0, 0])
        return loss, self.form.losses(self.draws, place)[:, 0]


@dataclass(frozen=True)
class HeldOut:
    """A size outside the fit, with the mean loss of its runs as predicted and as measured."""

    size: Sizes
    networks: int
    predicted: Interval
    measured: Interval

    @property
    def inside(self) -> bool:
        """Whether the measured mean lies in the prediction's 95 % interval."""
        return self.predicted.low <= self.measured.value <= self.predicted.high

    @property
    def contradicts(self) -> Literal["", "above", "below"]:
        """On which side the measured mean lies so far off that no chance explains it.

        It is more than twice as far from the prediction as the interval reaches: four standard
        errors, which one true law in ten thousand shows. Empty where it is not.
        """
        predicted = self.predicted
        if self.measured.value > 2 * predicted.high - predicted.value:
            return "above"
        if self.measured.value < 2 * predicted.low - predicted.value:
            return "below"
        return ""


def interval_of(value: float, draws: Array) -> Interval:
    """A number with the interval that its draws make; its error is half of the middle 68 %."""
    low, below, above, high = np.quantile(draws, (0.025, 0.16, 0.84, 0.975)).tolist()
    return Interval(value, (above - below) / 2, low, high)


# ---- The fit.
#
# Least squares of the mean losses, weighed by the covariance of the noise, and of the priors.
# Intervals come from fits to losses and priors that are drawn again about those there are: the
# noise of each draw has a variance and a correlation that the seeds allow. They are Student's t
# where the law is linear, and skewed where it is not.


# Sizes of a variable that show its law, by whether its power is known.
FEWEST = 3
FEWEST_FREE = 4
_DRAWS = 500
# Free powers from which fits start.
_STARTS = np.geomspace(0.05, 2.0, 8)
_LOG_POWERS = math.log(0.02), math.log(3.0)
# Rounds in which the variance is learned from the misfit.
_REFINED = 4
# Steps of Levenberg and Marquardt; a smaller gain, of a chi-squared, ends them.
_ROUNDS = 60
_SETTLED = 1e-6
# A share of a loss: smaller differences are not the scatter of runs.
_ROUNDING = 1e-12


def fit_law(variables: tuple[str, ...], losses: Losses, *, paired: bool = True) -> Law:
    """Fit the loss law to the final losses of training runs.

    Args:
        variables: what the sizes of a run are.
        losses: sizes -> losses of the runs, one or more. A size at which a run diverged is left
            out, and the note says so.
        paired: whether the i-th losses of all sizes come from one seed, and so perhaps from common
            random weights or batches. False, where every run had another seed.

    Raises:
        ValueError: with no more sizes than the law has numbers, with variables that grow together,
            or with seeds that do not differ.
    """
    trained = dict[Sizes, Array]()
    diverged = list[str]()
    for size, of_seeds in sorted(losses.items()):
        if np.isfinite(of_seeds).all():
            trained[size] = np.array(of_seeds, dtype=float)
        else:
            diverged.append(" x ".join(f"{x:g}" for x in size))
    note = ""
    if diverged:
        places = ", ".join(diverged)
        note = f"Left out, as runs diverged there: {' x '.join(variables)} {places}."
    check_sizes(variables, trained, note)
    sizes = np.array(list(trained), dtype=float)
    runs = list(trained.values())
    seeds = [len(of_seeds) for of_seeds in runs]
    if max(seeds) > 1 and all(np.ptp(of_seeds) == 0 for of_seeds in runs):
        raise InputError(
            "losses of different seeds must differ; they are equal at every size. Train from other "
            "seeds."
        )

    form = Form(variables, tuple(sizes.min(0).tolist()))
    noise = _noise(variables, sizes, runs, paired)
    fit = _Fit(form, sizes, np.array([of_seeds.mean() for of_seeds in runs]), noise)
    p_value, bent = _tested(fit)
    residuals = (fit.means - form.losses(fit.law[None], sizes)[0]) / noise.errors
    reason = _reason(form, sizes, p_value, bent, sizes[np.abs(residuals).argmax()])
    return Law(
        form=form,
        largest=tuple(sizes.max(0).tolist()),
        terms=_terms(form, fit.law, fit.draws),
        p_value=p_value,
        seeds=min(seeds),
        good=reason is None,
        note=" ".join(filter(None, (reason, note))),
        fit=fit.law,
        draws=fit.draws,
        noise=fit.log_variances,
    )


def check_sizes(variables: tuple[str, ...], sizes: Collection[Any], note: str = "") -> None:
    """Raise ValueError where sizes are too few, or too alike, for a law in the variables.

    ``note`` says why they are.
    """
    form = Form(variables, ())
    terms = 1 + len(variables) + len(form.free)
    if len(sizes) <= terms:
        raise InputError(
            f"a law in {' and '.join(variables)} has {terms} numbers and needs more sizes than "
            f"that; got {len(sizes)}. Add sizes. {note}".rstrip()
        )
    places = np.array([*sizes], dtype=float)
    columns = np.hstack([np.ones((len(sizes), 1)), places.min(0) / places])
    if np.linalg.matrix_rank(columns, tol=1e-6) <= len(variables):
        raise InputError(
            f"{' and '.join(variables)} must vary independently of each other; in these sizes they "
            "do not. Add sizes."
        )


@dataclass(frozen=True)
class _Mode:
    """The nearest law under one prior.

    Attributes:
        law: ``[numbers]``.
        middle: the prior's, of every number.
        sure: one over the prior's variance of every number; 0 where only losses show it.
        variance, freedom: of the noise, over what the seeds say, and its degrees of freedom.
    """

    law: Array
    middle: Array
    sure: Array
    variance: float
    freedom: float


class _Fit:
    """The laws nearest to mean losses ``[K]``, with noise, at sizes ``[K, variables]``.

    Attributes:
        whitening: ``[K, K]``, makes the noise of the means independent, with variance 1.
        least: the least variance of the noise, over what the seeds say, which is rounding.
        prior: the middle of the numbers of a law.
        allowed: the standard deviation of second order.
        likeliest: the nearest law ``[numbers]`` of the likeliest mode.
        law: that, or the one of the usual powers where it is about as near.
        draws, log_variances: as ``Law.draws`` and ``Law.noise``.
    """

    def __init__(self, form: Form, sizes: Array, means: Array, noise: _Noise) -> None:
        self.form = form
        self.sizes = sizes
        self.means = means
        self.noise = noise
        self.whitening = np.linalg.inv(np.linalg.cholesky(noise.covariance))
        self.least = float(np.square(self.whitening @ (_ROUNDING * means)).mean())
        self.prior, sure = form.prior
        self.law = self._of_first_order()
        self.allowed, variance = self._second_order()
        usual = np.concatenate([sure[: form.powers.stop], self.allowed**-2])
        modes = list[_Mode]()
        for middle, precision in self._priors(usual):
            mode = self._mode(middle, precision, variance)
            powers = np.exp(mode.law[form.powers])
            if not modes or powers.max(initial=0.0) <= _STEEPEST:
                modes.append(mode)
        chances = self._chances(modes)
        self.likeliest = modes[int(np.argmax(chances))].law
        gain = self.misfit(modes[0].law) - self.misfit(self.likeliest)
        is_usual = gain <= _GAIN * max(modes[0].variance, self.least)
        self.law = modes[0].law if is_usual else self.likeliest
        self.draws, self.log_variances = self._drawn(modes, chances)

    def _priors(self, usual: Array) -> list[tuple[Array, Array]]:
        """Middle and precision of the numbers, for every set of powers that may be unusual.

        Only powers of variables with enough sizes to show one may be; the first set is empty.
        """
        power, error = _UNUSUAL_POWER
        priors = [(self.prior, usual)]
        for place, k in enumerate(self.form.limited):
            if len({*self.sizes[:, k].tolist()}) < FEWEST_FREE:
                continue
            for middle, precision in tuple(priors):
                moved = middle.copy()
                moved[self.form.powers.start + k] = math.log(power)
                unusual = precision.copy()
                unusual[self.form.powers.start + k] = error**-2
                # Its own term of second order, and the one with another variable.
                for term in {place, len(self.allowed) - 1}:
                    unusual[self.form.second.start + term] = (
                        _UNUSUAL_BEND * self.allowed[term]
                    ) ** -2
                priors.append((moved, unusual))
        return priors

    def _mode(self, middle: Array, sure: Array, variance: float) -> _Mode:
        """Find the nearest law under a prior, and the noise that it leaves."""
        law = self.law[None]
        for _ in range(_REFINED):
            law = self._settled(
                law, self.means[None], middle[None], sure[None], np.array([variance])
            )
            variance, freedom = self._variance(law[0], sure, variance)
        return _Mode(law[0], middle, sure, variance, freedom)

    def _chances(self, modes: Sequence[_Mode]) -> Array:
        """The chances of modes given the losses, by Laplace's approximation.

        The variance of the noise is integrated over: it is known by the scatter of the seeds.
        """
        seeds = self.noise.freedom
        form = self.form
        logs = list[float]()
        for mode in modes:
            unusual = int((mode.sure != modes[0].sure)[form.powers].sum())
            known = mode.sure > 0
            slopes = self.whitening @ form.slopes(mode.law[None], self.sizes)[0]
            freedom = seeds + len(self.means) - int((~known).sum())
            left = seeds + self.misfit(mode.law) + len(self.means) * self.least
            volume = np.linalg.slogdet(slopes.T @ slopes * freedom / left + np.diag(mode.sure))[1]
            away = float(np.square(mode.law - mode.middle) @ mode.sure)
            fits = -freedom * math.log(left) - away
            log = (fits + float(np.log(mode.sure[known]).sum()) - volume) / 2
            logs.append(log + unusual * math.log(_UNUSUAL / (1 - _UNUSUAL)))
        chances = np.exp(np.array(logs) - max(logs))
        return np.asarray(chances / chances.sum())

    def _of_first_order(self) -> Array:
        """Find the nearest law without second order, on a grid of the powers without a limit."""
        form = self.form
        laws = list[Array]()
        for powers in product(_STARTS, repeat=len(form.free)):
            law = self.prior.copy()
            law[form.powers][form.free] = np.log(powers)
            columns = self.whitening @ form.slopes(law[None], self.sizes)[0, :, : form.first.stop]
            solution = np.linalg.lstsq(columns, self.whitening @ self.means, rcond=None)
            law[: form.first.stop] = solution[0]
            laws.append(law)
        return min(laws, key=self.misfit)

    def _second_order(self) -> tuple[Array, float]:
        """Find how large second order may be, and by what the variance of the noise is multiplied.

        It may be as large as first order at the smallest size, by least squares that leave second
        order free, with the error added. A fit that holds it small finds too small a first order
        where the two cancel, and allows too little.
        """
        form = self.form
        K = len(self.means)
        slopes = form.slopes(self.law[None], self.sizes)[0]
        columns = self.whitening @ np.delete(slopes, form.powers, 1)
        inverse = np.linalg.pinv(columns)
        rank = int(np.linalg.matrix_rank(columns))
        numbers = inverse @ self.whitening @ self.means
        residuals = self.whitening @ self.means - columns @ numbers
        if self.noise.freedom:
            variance = 1.0
        elif rank < K:
            variance = float(residuals @ residuals) / (K - rank)
        else:
            variance = self.misfit(self.law) / (K - form.first.stop)
        variance = max(variance, self.least)
        errors = math.sqrt(variance) * np.linalg.norm(inverse, axis=1)
        first = np.hypot(numbers, errors)[form.first][form.limited]
        if len(first) < 2:
            return first, variance
        return np.append(first, first.mean()), variance

    def misfit(self, law: Array) -> float:
        """The sum of squares that a law leaves, in units of the noise."""
        return float(
            np.square(
                self.whitening @ (self.means - self.form.losses(law[None], self.sizes)[0])
            ).sum()
        )

    def _variance(self, law: Array, sure: Array, variance: float) -> tuple[float, float]:
        """Estimate the variance of the noise over what the seeds say, and its degrees of freedom.

        Without seeds only the misfit shows it; with seeds misfit widens it. A number counts
        as used as far as the losses, and not the prior, decide it.
        """
        slopes = self.whitening @ self.form.slopes(law[None], self.sizes)[0]
        prior = variance * sure
        used = len(law) - float(np.diag(np.linalg.pinv(slopes.T @ slopes + np.diag(prior))) @ prior)
        misfit = self.misfit(law)
        unused = max(len(self.means) - used, 1.0)
        seeds = self.noise.freedom
        if seeds and misfit <= unused:
            return 1.0, seeds
        return max((misfit + seeds) / (unused + seeds), self.least), unused + seeds

    def _drawn(self, modes: Sequence[_Mode], chances: Array) -> tuple[Array, Array]:
        """Fit laws ``[B, numbers]`` to drawn losses and priors; also draw the noise of a run.

        The noise is as in ``Law.noise``.
        """
        noise = self.noise
        stream = np.random.default_rng(0)
        (K, V) = self.sizes.shape
        numbers = len(self.prior)
        normal = stream.standard_normal((_DRAWS // 2, K + numbers + V))
        scatter, aims, tilts = np.split(np.vstack([normal, -normal]), [K, K + numbers], axis=1)
        # Both draws of a pair are of one mode.
        quantiles = (np.arange(_DRAWS // 2) + 0.5) / (_DRAWS // 2)
        places = np.tile(np.searchsorted(chances.cumsum()[:-1], quantiles), 2)
        starts = np.array([mode.law for mode in modes])[places]
        middle = np.array([mode.middle for mode in modes])[places]
        sure = np.array([mode.sure for mode in modes])[places]
        variance = np.array([mode.variance for mode in modes])[places]
        freedom = np.array([mode.freedom for mode in modes])[places]
        shape = np.searchsorted(noise.chances.cumsum()[:-1], stream.random(_DRAWS))
        # Squares of the seeds in units of each shape, enlarged by the misfit where it counts.
        squares = noise.squares[shape] * variance * freedom / (noise.freedom or 1.0)
        level = squares / (2 * gammaincinv(freedom / 2, stream.random(_DRAWS)))
        slopes = tilts @ np.linalg.cholesky(noise.doubt).T
        logs = np.log(self.sizes) - noise.centre
        errors = np.sqrt(level)[:, None] * np.exp(slopes @ logs.T / 2) * noise.errors
        drawn = errors * np.einsum("bij,bj->bi", np.linalg.cholesky(noise.shapes)[shape], scatter)
        doubts = np.where(sure > 0, 1 / np.sqrt(np.where(sure > 0, sure, 1.0)), 0.0)
        aims = middle + aims * doubts
        draws = self._settled(starts, self.means + drawn, aims, sure, variance)
        slopes = slopes + noise.slopes
        constants = np.log(level) + noise.level - slopes @ noise.centre
        return draws, np.hstack([constants[:, None], slopes])

    def _settled(
        self, laws: Array, means: Array, prior: Array, sure: Array, variance: Array
    ) -> Array:
        """Move laws ``[B, numbers]`` to the least squares of their losses and priors.

        Losses are ``means [B, K]`` with ``variance [B]``, priors are ``prior [B, numbers]`` with
        the precision ``sure [B, numbers]``; the steps are by Levenberg and Marquardt. Laws that
        have settled are not moved again: some draws take ten times as many steps.
        """
        sizes = self.sizes
        scales = 1 / np.sqrt(variance)[:, None]
        unit = np.eye(laws.shape[1])

        def residuals_of(laws: Array, moving: Places) -> Array:
            misses = means[moving] - self.form.losses(laws, sizes)
            return np.asarray(scales[moving] * (misses @ self.whitening.T))

        def cost(laws: Array, moving: Places) -> Array:
            away = np.square(laws - prior[moving]) * sure[moving]
            return np.asarray(np.square(residuals_of(laws, moving)).sum(-1) + away.sum(-1))

        laws = laws.copy()
        costs = cost(laws, np.arange(len(laws)))
        damping = np.full(len(laws), 1e-4)
        # The places of laws that still move.
        moving = np.arange(len(laws))
        for _ in range(_ROUNDS):
            now = laws[moving]
            slopes = scales[moving, :, None] * (self.whitening @ self.form.slopes(now, sizes))
            square = slopes.transpose(0, 2, 1) @ slopes + sure[moving, :, None] * unit
            residuals = residuals_of(now, moving)
            downhill = (residuals[:, None] @ slopes)[:, 0] + (prior[moving] - now) * sure[moving]
            ridge = np.einsum("btt->bt", square) * damping[moving, None] + 1e-12
            square += ridge[:, :, None] * unit
            moved = now + np.linalg.solve(square, downhill[..., None])[..., 0]
            moved[:, self.form.powers] = moved[:, self.form.powers].clip(*_LOG_POWERS)
            gain = costs[moving] - cost(moved, moving)
            is_better = gain >= 0
            laws[moving] = np.where(is_better[:, None], moved, now)
            costs[moving] -= np.where(is_better, gain, 0.0)
            damping[moving] *= np.where(is_better, 0.2, 5.0)
            still_gains = gain > _SETTLED * (1e-1 + costs[moving])
            moving = moving[np.where(is_better, still_gains, damping[moving] < 1e3)]
            if not len(moving):
                break
        return laws


def _terms(form: Form, law: Array, draws: Array) -> dict[str, Interval]:
    """Write the floor and the numbers of the law in the units of the sizes, by their letters."""
    both = np.vstack([law, draws])
    terms = {"floor": both[:, 0]}
    for k, variable in enumerate(form.variables):
        letter, letter_of_power = _LETTERS[variable]
        if k in form.free:
            power = np.exp(both[:, form.powers.start + k])
            terms[letter] = both[:, 1 + k] * form.smallest[k] ** power
            terms[letter_of_power] = power
        else:
            terms[letter] = both[:, 1 + k] * form.smallest[k]
    return {name: interval_of(float(numbers[0]), numbers[1:]) for name, numbers in terms.items()}


# ---- The noise of the seeds.
#
# A few seeds give poor variances, so they are smoothed over sizes, ``log var = level + slopes . log
# x``. Runs of one seed may share random weights or batches, and so their losses be correlated
# (ResNets on digits: 0.7 at equal width, 0.4 otherwise). With two or three seeds nobody can see
# whether they are: a test that chose between independent sizes and one fit for each seed left
# intervals that held the floor 74 to 90 times in 100. So every correlation is kept with its chance:
# of a part that all sizes of a seed share, and of parts that sizes of one width, or depth, share.


# The share of their degrees of freedom with which smoothed variances count in a test, by simulation
# with 2 to 10 seeds.
_WORTH = 0.7


@dataclass(frozen=True)
class _Noise:
    """The noise of runs at the fitted sizes, as far as their seeds show it.

    Attributes:
        level, slopes, centre: ``log var = level + slopes . (log x - centre)`` of a run.
        doubt: the covariance of the slopes.
        errors: of the mean loss of every size by these, ``[K]``.
        shapes: correlations that the sizes may have, ``[G, K, K]``.
        chances: of each shape, ``[G]``.
        squares: of the noise in units of ``errors`` and of each shape, ``[G]``.
        freedom: their degrees of freedom; 0 where no size has two seeds, and the noise is known up
            to a factor.
        worth: degrees of freedom that tests may count with.
    """

    level: float
    slopes: Array
    centre: Array
    doubt: Array
    errors: Array
    shapes: Array
    chances: Array
    squares: Array
    freedom: float
    worth: float

    @property
    def covariance(self) -> Array:
        """The mean covariance of the mean losses, ``[K, K]``."""
        weights = self.chances * self.squares / max(self.freedom, 1.0)
        return np.asarray(
            np.einsum("g,gij->ij", weights, self.shapes) * np.outer(self.errors, self.errors)
        )


def _noise(variables: Sequence[str], sizes: Array, runs: Sequence[Array], paired: bool) -> _Noise:
    """Estimate the noise of training runs, ``K`` arrays of seeds, at sizes ``[K, variables]``."""
    (K, V) = sizes.shape
    counts = np.array([len(of_seeds) for of_seeds in runs])
    centre = np.log(sizes).mean(0)
    independent = np.eye(K)[None]
    freedom = float((counts - 1).sum())
    if not freedom:
        return _Noise(
            level=0.0,
            slopes=np.zeros(V),
            centre=centre,
            doubt=np.eye(V) * 1e-9,
            errors=np.ones(K),
            shapes=independent,
            chances=np.ones(1),
            squares=np.ones(1),
            freedom=0.0,
            worth=0.0,
        )
    logs = np.log(sizes) - centre
    variances = np.array([of_seeds.var(ddof=min(1, len(of_seeds) - 1)) for of_seeds in runs])
    (level, *slopes), doubt = _smoothed(variables, logs, counts - 1, variances)
    deviations = np.exp((level + logs @ slopes) / 2)
    noise = _Noise(
        level=level,
        slopes=np.array(slopes),
        centre=centre,
        doubt=doubt,
        errors=deviations / np.sqrt(counts),
        shapes=independent,
        chances=np.ones(1),
        squares=np.array([((counts - 1) * variances / deviations**2).sum()]),
        freedom=freedom,
        worth=_WORTH * freedom,
    )
    if not paired or len({*counts.tolist()}) > 1:
        return noise
    residuals = np.stack([of_seeds - of_seeds.mean() for of_seeds in runs])
    return _correlated(noise, sizes, residuals / deviations[:, None])


def _correlated(noise: _Noise, sizes: Array, residuals: Array) -> _Noise:
    """Let the sizes of a seed share parts of their noise, by scaled residuals ``[K, seeds]``."""
    (K, seeds) = residuals.shape
    # Whether two sizes are alike: all sizes are, sizes of one width, and sizes of one depth.
    alike = [np.ones((K, K))]
    for values in sizes.T:
        if len({*values.tolist()}) < K:
            alike.append(np.equal.outer(values, values).astype(float))
    shares = np.array([*product(_SHARED, repeat=len(alike))])
    covariances = np.eye(K) + np.einsum("gr,rij->gij", shares, np.array(alike))
    shapes = covariances / (1 + shares.sum(1))[:, None, None]
    repeated = np.broadcast_to(residuals, (len(shapes), K, seeds))
    squares = np.einsum("is,gis->g", residuals, np.linalg.solve(shapes, repeated))
    # The likelihood of normal noise, integrated over its variance, which may have any size.
    volumes = np.linalg.slogdet(shapes)[1]
    likely = -(seeds - 1) / 2 * volumes - noise.freedom / 2 * np.log(squares)
    chances = np.exp(likely - likely.max())
    unshared = max(1, K - int(np.linalg.matrix_rank(sum(alike))))
    return replace(
        noise,
        shapes=shapes,
        chances=chances / chances.sum(),
        squares=squares,
        worth=_WORTH * (seeds - 1) * unshared,
    )


def _smoothed(
    variables: Sequence[str], logs: Array, freedoms: Array, variances: Array
) -> tuple[list[float], Array]:
    """Find the level and slopes of the likeliest variances, and the covariance of the slopes.

    By Fisher scoring: a sample variance over the true one is ``chi2_f / f`` with f = seeds - 1.
    """
    Z = np.hstack([np.ones((len(logs), 1)), logs])
    half = freedoms / 2
    sure = np.diag([0.0, *(_SLOPE_SURE for _ in variables)])
    level = math.log(half @ variances / half.sum())
    prior = np.array([level, *(_SLOPES.get(name, 0.0) for name in variables)])
    c = prior
    information = Z.T @ (Z * half[:, None]) + sure
    for _ in range(50):
        score = Z.T @ (half * (variances * np.exp(-Z @ c) - 1)) - sure @ (c - prior)
        step = np.clip(np.linalg.solve(information, score), -1, 1)
        c = c + step
        if np.abs(step).max() < 1e-8:
            break
    return c.tolist(), np.asarray(np.linalg.inv(information)[1:, 1:])


# ---- Whether the law holds: F tests against the noise of the seeds.
#
# One is of the misfit beyond second order. One is of the part of it that ``sqrt(s)`` makes, the
# likeliest other power. One is of the terms of second order: how far their estimates lie from the
# nearest terms that are no larger than the fit allows. Powers of width and depth are 1 here. The
# smallest chance times their number is the p-value (Bonferroni). Another power that second order
# imitates within the noise is not seen: the intervals allow for it.
#
# The noise is known with 0.7 of its degrees of freedom, as smoothing variances costs some, and
# where sizes share seeds with 0.7 of those that remain beside the shared parts. Without seeds,
# other powers are tested against the rest of the misfit.


@dataclass(frozen=True)
class _Misfit:
    """What the law without second order does not explain, and the directions to test it in.

    All are in units of the errors; directions are orthonormal, ``[K, directions]``.

    Attributes:
        residuals: ``[K]``.
        second: the terms of second order, as large as the fit allows, ``[K, terms]``.
        curved: directions that only these terms have.
        rest: directions that no term of the law has.
        other: the part of the rest that ``sqrt(s)`` has.
    """

    residuals: Array
    second: Array
    curved: Array
    rest: Array
    other: Array


def _tested(fit: _Fit) -> tuple[float, bool]:
    """Test the law: its p-value, and whether the terms of second order are what fails.

    The p-value is not-a-number if nothing can be tested.
    """
    misfit = _misfit(fit)
    if not fit.noise.freedom:
        return _p_value_without_seeds(misfit, fit.least), False
    with_powers = _chance_with_powers(fit)
    chances = [
        _chance(fit.noise, misfit.rest, misfit.rest.T @ misfit.residuals),
        _chance(fit.noise, misfit.other, misfit.other.T @ misfit.residuals),
        _chance(fit.noise, misfit.curved, _beyond_second_order(misfit)),
    ]
    least = min(chances)
    p_value = math.nan
    if math.isfinite(least):
        tests = sum(map(math.isfinite, chances))
        p_value = min(1.0, least * tests)
        if math.isfinite(with_powers):
            p_value = max(p_value, with_powers)
    return p_value, chances[2] == least


def _chance_with_powers(fit: _Fit) -> float:
    """The chance of a larger misfit of the law with powers that its losses show.

    Infinite where it has as many numbers as there are sizes, or too few sizes show a power.
    """
    form = fit.form
    shown = [len({*of_variable.tolist()}) >= FEWEST_FREE for of_variable in fit.sizes.T]
    numbers = [0, *range(1, form.powers.start)]
    numbers += [form.powers.start + k for k, is_shown in enumerate(shown) if is_shown]
    if not any(shown[k] for k in form.limited):
        return math.inf
    scale = 1 / fit.noise.errors[:, None]
    slopes = scale * form.slopes(fit.likeliest[None], fit.sizes)[0]
    explained = _basis(slopes[:, numbers])
    rest = _basis(np.eye(len(scale)) - explained @ explained.T)
    residuals = scale[:, 0] * (fit.means - form.losses(fit.likeliest[None], fit.sizes)[0])
    return _chance(fit.noise, rest, rest.T @ residuals)


def _misfit(fit: _Fit) -> _Misfit:
    """Split what the fitted law without second order does not explain into directions."""
    form = fit.form
    scale = 1 / fit.noise.errors[:, None]
    law = fit.law.copy()
    law[form.powers][form.limited] = 0.0
    law[form.second] = 0.0
    slopes = scale * form.slopes(law[None], fit.sizes)[0]
    numbers = [0, *range(1, form.powers.start), *(form.powers.start + k for k in form.free)]
    straight = _basis(slopes[:, numbers])
    second = slopes[:, form.second]
    curved = _basis(second - straight @ (straight.T @ second))
    rest = _basis(np.eye(len(scale)) - straight @ straight.T - curved @ curved.T)
    roots = scale * np.sqrt(form.shrunk(law[None], fit.sizes)[0][:, form.limited])
    return _Misfit(
        residuals=scale[:, 0] * (fit.means - form.losses(law[None], fit.sizes)[0]),
        second=second * fit.allowed,
        curved=curved,
        rest=rest,
        other=_basis(rest @ (rest.T @ roots)),
    )


def _p_value_without_seeds(misfit: _Misfit, least: float) -> float:
    """Test another power against the rest of the misfit, which must exceed rounding."""
    count = misfit.other.shape[1]
    freedom = misfit.rest.shape[1] - count
    gain = float(np.square(misfit.other.T @ misfit.residuals).sum())
    unexplained = float(np.square(misfit.rest.T @ misfit.residuals).sum()) - gain
    if freedom < 1 or not count or unexplained <= freedom * least:
        return math.nan
    return f_tail(gain / count / (unexplained / freedom), count, freedom)


def _beyond_second_order(misfit: _Misfit) -> Array:
    """The residuals along ``curved`` that no allowed term of second order explains."""
    values = misfit.curved.T @ misfit.residuals
    if not len(values):
        return values
    terms = misfit.curved.T @ misfit.second
    return np.asarray(values - terms @ lsq_linear(terms, values, (-1, 1)).x)


def _chance(noise: _Noise, directions: Array, values: Array) -> float:
    """The chance that noise is larger than values along directions; infinite where none is."""
    count = len(values)
    if not count:
        return math.inf
    square = float(values @ values) / count
    traces = np.einsum("ic,gij,jc->g", directions, noise.shapes, directions) / count
    ratios = square / (traces * noise.squares / noise.freedom)
    return float(noise.chances @ fdtrc(count, noise.worth, ratios))


def _basis(columns: Array) -> Array:
    """Find an orthonormal basis of what columns span."""
    directions, lengths, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(directions[:, lengths > 1e-9 * max(1.0, float(lengths.max(initial=0.0)))])


def _reason(form: Form, sizes: Array, p_value: float, bent: bool, furthest: Array) -> str | None:
    """Say why the law may not be extrapolated, and what would settle it; None where it may."""
    larger = [
        f"{name} {2 * most:g}" for name, most in zip(form.variables, sizes.max(0), strict=True)
    ]
    if p_value < GOOD:
        place = " and ".join(
            f"{name} {x:g}" for name, x in zip(form.variables, furthest, strict=True)
        )
        fails = f"its misfit exceeds the noise, most at {place}"
        if bent:
            fails = "terms of second order are too large"
        return (
            f"The law does not hold on these sizes: {fails} (p = {p_value:.1g}). Train "
            f"{' or '.join(larger)} too, so that the smallest can be left out."
        )
    few = []
    for k, (name, more) in enumerate(zip(form.variables, larger, strict=True)):
        count = len({*sizes[:, k].tolist()})
        least = FEWEST_FREE if k in form.free else FEWEST
        if count < least:
            few.append(
                f"{count} sizes of {name} are too few to fit its law ({least} or more are needed): "
                f"train {more} too"
            )
    return f"{'; '.join(few)}." if few else None
