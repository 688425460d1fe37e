"""The law of size of a ladder of any kind: ``loss = floor + sum_k A_k / x_k^p_k``.

Width and depth have the power 1 of their limits' first correction; parameters and tokens have powers that are fitted
(``nfd.forecasts.power_law``). This law stands in where ``nfd.forecasts.law`` cannot be fitted: with one seed a rung,
one axis, several lengths of training, or parameters alone.

Source: Hoffmann et al. 2022, "Training compute-optimal large language models" (the form in parameters and tokens).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from nfd.core.errors import InputError, check_count
from nfd.core.estimates import Interval, f_tail
from nfd.forecasts.law import Losses

Array = NDArray[np.float64]
Sizes = tuple[float, ...]

KNOWN = ("width", "depth")  # variables whose power is 1; that of others is fitted
_LETTERS = {"width": ("a", ""), "depth": ("b", ""), "parameters": ("a", "alpha"), "tokens": ("c", "beta")}


@dataclass(frozen=True)
class Form:
    """The variables of a law and the smallest size of each, ``x0``.

    A law is a row of numbers: the floor; the term of every variable at its smallest size, ``A / x0^p``; the powers that
    are fitted; and for every other variable a term of second order at the smallest size, of ``(x0 / x)^2``.
    """

    variables: tuple[str, ...]
    smallest: Sizes

    @property
    def free(self) -> list[int]:
        """Which variables have a power that is fitted."""
        return [k for k, name in enumerate(self.variables) if name not in KNOWN]

    @property
    def bent(self) -> list[int]:
        """Which variables have a term of second order."""
        return [k for k, name in enumerate(self.variables) if name in KNOWN]

    @property
    def first(self) -> slice:
        """Where the terms of first order stand in a law."""
        return slice(1, 1 + len(self.variables))

    @property
    def fitted_powers(self) -> slice:
        """Where the powers that are fitted stand."""
        return slice(self.first.stop, self.terms)

    @property
    def second(self) -> slice:
        """Where the terms of second order stand."""
        return slice(self.terms, self.terms + len(self.bent))

    @property
    def terms(self) -> int:
        """How many numbers a law has without its terms of second order."""
        return 1 + len(self.variables) + len(self.free)

    def powers(self, laws: Array) -> Array:
        """Of laws ``[B, numbers]`` the powers ``[B, variables]``."""
        powers = np.ones((len(laws), len(self.variables)))
        powers[:, self.free] = laws[:, self.fitted_powers]
        return powers

    def shrunk(self, laws: Array, sizes: Array) -> Array:
        """``(x0 / x)^p`` for sizes ``[K, variables]``: ``[B, K, variables]``."""
        return np.asarray((np.array(self.smallest) / sizes) ** self.powers(laws)[:, None])

    def losses(self, laws: Array, sizes: Array) -> Array:
        """What laws ``[B, numbers]`` say of sizes ``[K, variables]``: ``[B, K]``."""
        shrunk = self.shrunk(laws, sizes)
        straight = (laws[:, None, self.first] * shrunk).sum(-1)
        return np.asarray(laws[:, :1] + straight + (laws[:, None, self.second] * shrunk[..., self.bent] ** 2).sum(-1))

    def slopes(self, laws: Array, sizes: Array) -> Array:
        """Derivatives of ``losses`` by the numbers of each law, ``[B, K, numbers]``; sizes are finite."""
        shrunk = self.shrunk(laws, sizes)
        by_power = (laws[:, None, self.first] * shrunk * np.log(np.array(self.smallest) / sizes))[..., self.free]
        return np.concatenate([np.ones((*shrunk.shape[:2], 1)), shrunk, by_power, shrunk[..., self.bent] ** 2], -1)


@dataclass(frozen=True)
class PowerLaw:
    """A fitted law of size, ``loss = floor + sum_k A_k / x_k^p_k``, with 95 % intervals.

    Attributes:
        form: its variables (width, depth, parameters, tokens) and the smallest size of each.
        largest: the largest size of each that was fitted.
        floor: the loss where every variable is infinite.
        coefficients, powers: ``A`` and ``p`` of every variable; p is 1 for width and depth.
        scatter: standard deviation of a run about the law.
        p_value: the probability of a larger misfit if the law holds; not-a-number if it cannot be tested.
        seeds: the smallest number of seeds of a size.
        good: whether the law may be extrapolated.
        note: the reason if not, and the runs that were left out; otherwise empty.
        fit: the law, ``[numbers]``. draws: laws fitted to drawn losses, ``[B, numbers]``. noise: of a run, ``[B]``.
    """

    form: Form
    largest: Sizes
    floor: Interval
    coefficients: tuple[Interval, ...]
    powers: tuple[Interval, ...]
    scatter: float
    p_value: float
    seeds: int
    good: bool
    note: str
    fit: Array = field(repr=False)
    draws: Array = field(repr=False)
    noise: Array = field(repr=False)

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the law, in the order of the arguments of ``loss``."""
        return self.form.variables

    @property
    def smallest(self) -> Sizes:
        """The smallest size of each variable that was fitted."""
        return self.form.smallest

    @property
    def terms(self) -> dict[str, Interval]:
        """The numbers of the law by their letters in ``equation``."""
        named = {"floor": self.floor}
        for k, (variable, A, p) in enumerate(zip(self.variables, self.coefficients, self.powers, strict=True)):
            letter, power = _LETTERS[variable]
            named |= {letter: A, power: p} if k in self.form.free else {letter: A}
        return named

    @property
    def equation(self) -> str:
        """The law in letters, such as ``loss = floor + a / width + c / tokens^beta``."""
        letters = [(variable, *_LETTERS[variable]) for variable in self.variables]
        return " + ".join(["loss = floor", *(f"{A} / {v}{'^' + p if p else ''}" for v, A, p in letters)])

    @property
    def formula(self) -> str:
        """The law with its numbers."""
        formula = f"loss = {self.floor.unsigned}"
        for variable in self.variables:
            A, p = (self.terms.get(letter) for letter in _LETTERS[variable])
            formula += f" + ({A}) / {variable}{'' if p is None else f'^({p.unsigned})'}"
        return formula

    @property
    def content(self) -> dict[str, Any]:
        """The law and its test as ``result.json`` holds them."""
        terms: dict[str, Any] = {name: term.limits for name, term in self.terms.items()}
        return terms | {name: getattr(self, name) for name in ("scatter", "p_value", "good", "note")}

    @property
    def test(self) -> str:
        """The test of the law in words."""
        if math.isnan(self.p_value):
            return "its misfit cannot be tested: no rung has two seeds"
        return f"p = {self.p_value:.2g}"

    def loss(self, *sizes: float) -> Interval:
        """The mean loss of runs of a size, in the order of ``variables``; each may be ``math.inf``.

        Raises:
            ValueError: outside the sizes that were fitted, when the law is not good.
        """
        return interval_of(*self._losses(sizes))

    def network(self, *sizes: float, networks: int = 1) -> Interval:
        """The mean loss of this many new runs of a size, with a 95 % prediction interval."""
        value, draws = self._losses(sizes)
        return interval_of(value, draws + self.noise / math.sqrt(check_count("networks", networks)))

    def excess(self, *sizes: float) -> Interval:
        """The loss above the floor: the most that larger networks can gain. Raises as ``loss`` does."""
        return self.bought(*sizes, *(math.inf for _ in self.variables))

    def bought(self, *sizes: float) -> Interval:
        """The fall of the loss from one size to a second one, given after it. Raises as ``loss`` does."""
        small, large = sizes[: len(self.variables)], sizes[len(self.variables) :]
        value, draws = self._losses(small)
        later, others = self._losses(large)
        return interval_of(value - later, draws - others)

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {term}" for name, term in self.terms.items())
        return f"{self.equation}: {numbers}; {self.test}. {self.note}".strip()

    def _losses(self, sizes: Sizes) -> tuple[float, Array]:
        """The loss of a size, and that of every draw."""
        self._allow(sizes)
        place = np.array([sizes], dtype=float)
        return float(self.form.losses(self.fit[None], place)[0, 0]), self.form.losses(self.draws, place)[:, 0]

    def _allow(self, sizes: Sizes) -> None:
        if len(sizes) != len(self.variables):
            raise InputError(f"this law needs {', '.join(self.variables)}; got {len(sizes)} numbers.")
        for name, size, least, most in zip(self.variables, sizes, self.smallest, self.largest, strict=True):
            if not size > 0:
                raise InputError(f"{name} must be above 0; got {size}.")
            if not self.good and not least <= size <= most:
                raise InputError(
                    f"{name} must be within {least:g}..{most:g}, what was fitted; got {size:g}. This law may not be "
                    f"extrapolated: {self.note}"
                )


def interval_of(value: float, draws: Array) -> Interval:
    """A number with the interval that its draws make."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return Interval(value, float(draws.std(ddof=1)), float(low), float(high))


# ---- The fit of ``nfd.forecasts.power_law`` to the losses of a ladder.
#
# Least squares. Every run scatters alike about the law, by what is left over: the larger of the mean square of the
# runs and that of the rungs, so that misfit counts as noise. Width and depth have terms of second order, each with
# one measurement more, as in ``nfd.forecasts.law``: at the smallest size it is 0, with a standard error of the first
# order there. A power that is fitted bends the law enough.
#
# Whether the law holds is tested by its misfit against the noise of the seeds, where rungs have several, and by how
# much of the misfit other powers of width and depth explain.
#
# Intervals come from fits to losses and measurements that are drawn again about those there are. The scatter is drawn
# too, with its degrees of freedom, so that intervals are Student's t where the law is linear and lean as the law does
# where it is not.


GOOD = 0.05  # the p-value below which the law does not hold
_FEWEST, _FEWEST_FREE = 3, 4  # sizes of a variable that can tell its law, by whether its power is known
_FEWEST_LEFT = 4  # where a longer ladder failed: three lie on some law of second order, whatever they are
_STARTS = (0.1, 0.3, 0.6, 1.2)  # of powers
_POWERS = 0.02, 3.0  # the least and the largest
_DRAWS, _ROUNDS, _REFINED = 400, 60, 4
_SETTLED = 1e-10  # of the sum of squares: a step that gains less is the last
_ROUNDING = 1e-12  # of a loss: what is left is no scatter of runs
_NONE = 1e-6  # standard error of a term of second order where there shall be none


def fit_power_law(variables: tuple[str, ...], losses: Losses) -> PowerLaw:
    """Fit the law to final losses.

    Args:
        variables: what the sizes of a rung are. losses: sizes -> losses of the runs, one or more, in any order. A rung
            at which a run diverged is left out, and the note says so.

    Raises:
        ValueError: with no more rungs than the law has numbers, or with variables that grow together.
    """
    kept = {size: np.array(runs, dtype=float) for size, runs in sorted(losses.items()) if np.isfinite(runs).all()}
    lost = [" x ".join(f"{x:g}" for x in size) for size in sorted(losses) if size not in kept]
    note = f"Left out, as runs diverged there: {' x '.join(variables)} {', '.join(lost)}." if lost else ""
    sizes, counts = np.array(list(kept), dtype=float).reshape(-1, len(variables)), np.array([*map(len, kept.values())])
    form = Form(variables, tuple(sizes.min(0).tolist()) if kept else ())
    _require(form, sizes, note)
    problem = _Problem(form, sizes, counts, np.array([runs.mean() for runs in kept.values()]))
    within, N = sum(float(np.square(runs - runs.mean()).sum()) for runs in kept.values()), int(counts.sum())
    law, allowed, variance, freedom = problem.solved(within, N)
    left = len(kept) - problem.used(law, allowed, variance)
    tests = [_lack_of_fit(problem.misfit(law), max(left, 1.0), within, N - len(kept)), problem.other_powers(law)]
    known = [p for p in tests if not math.isnan(p)]
    p_value = min(1.0, len(known) * min(known)) if known else math.nan  # Bonferroni
    draws, noise = problem.drawn(law, allowed, variance, freedom)
    residuals = np.sqrt(counts) * (problem.means - form.losses(law[None], sizes)[0])
    reason = _reason(form, sizes, p_value, sizes[np.abs(residuals).argmax()])
    floor, *coefficients = (interval_of(*pair) for pair in _named(form, law, draws))
    powers = zip(form.powers(law[None])[0], form.powers(draws).T, strict=True)
    return PowerLaw(
        form,
        tuple(sizes.max(0).tolist()),
        floor,
        tuple(coefficients),
        tuple(interval_of(float(power), drawn) for power, drawn in powers),
        math.sqrt(variance),
        p_value,
        int(counts.min()),
        reason is None,
        " ".join(filter(None, (reason, note))),
        law,
        draws,
        noise,
    )


def without_smallest(variables: tuple[str, ...], losses: Losses) -> Losses | None:
    """The rungs without the smallest size of the variable that has most sizes; None where too few are left to tell
    another power by."""
    axes = [sorted({size[k] for size in losses}) for k in range(len(variables))]
    k = max(range(len(axes)), key=lambda axis: len(axes[axis]))
    left = {size: runs for size, runs in losses.items() if size[k] > axes[k][0]}
    return left if len(axes[k]) > _FEWEST_LEFT and len(left) > Form(variables, ()).terms else None


def _require(form: Form, sizes: Array, note: str) -> None:
    if len(sizes) <= form.terms:
        raise InputError(
            f"a law in {' and '.join(form.variables)} has {form.terms} numbers and needs more sizes than that; got "
            f"{len(sizes)}. Add sizes. {note}".rstrip()
        )
    columns = np.hstack([np.ones((len(sizes), 1)), np.array(form.smallest) / sizes])
    if np.linalg.matrix_rank(columns, tol=1e-6) < columns.shape[1]:
        raise InputError(
            f"{' and '.join(form.variables)} must vary independently of each other; in these sizes they do not. "
            "Add sizes."
        )


class _Problem:
    """Mean losses ``[K]`` of so many runs at sizes ``[K, variables]``, and the laws that are nearest to them."""

    def __init__(self, form: Form, sizes: Array, counts: Array, means: Array) -> None:
        self.form, self.sizes, self.counts, self.means = form, sizes, counts, means

    def solved(self, within: float, runs: int) -> tuple[Array, Array, float, float]:
        """The law, the standard errors that its terms of second order are allowed, the variance of a run and the
        degrees of freedom that it is known with."""
        law, allowed = self._straight(), np.full(len(self.form.bent), _NONE)
        variance, freedom = self._scatter(law, allowed, 1.0, within, runs)
        allowed, none = self._allowed(law, variance, within, runs), np.zeros((1, len(allowed)))
        for _ in range(_REFINED):
            law = self.settled(law[None], self.means[None], allowed, variance, none)[0]
            variance, freedom = self._scatter(law, allowed, variance, within, runs)
        return law, allowed, variance, freedom

    def _allowed(self, law: Array, variance: float, within: float, runs: int) -> Array:
        """First order at the smallest size by the nearest law whose terms of second order are free, and its error.

        ``law``, ``variance``: without second order. Its scatter is taken where no run is left to tell another by.
        """
        free = np.full(len(self.form.bent), math.inf)
        nearest = self.settled(law[None], self.means[None], free, 1.0, np.zeros((1, len(free))))[0]
        if len(self.means) > len(law):
            variance, _ = self._scatter(nearest, free, 1.0, within, runs)
        slopes = np.sqrt(self.counts)[:, None] * self.form.slopes(nearest[None], self.sizes)[0]
        errors = np.sqrt(variance * np.diag(np.linalg.pinv(slopes.T @ slopes)))
        return np.asarray(np.maximum(np.hypot(nearest, errors)[self.form.first][self.form.bent], _NONE))

    def drawn(self, law: Array, allowed: Array, variance: float, freedom: float) -> tuple[Array, Array]:
        """Laws fitted to drawn losses, ``[B, numbers]``, and the noise of a new run in each draw, ``[B]``."""
        stream, K = np.random.default_rng(0), len(self.sizes)
        normal = stream.standard_normal((_DRAWS, K + 1 + len(allowed)))
        uniform = stream.random(_DRAWS)
        chi_squared = 2 * gammaincinv(freedom / 2, uniform)
        deviation = np.sqrt(variance * freedom / chi_squared)[:, None]
        noise, own, bends = np.split(normal, [K, K + 1], axis=1)
        means = self.means + deviation * noise / np.sqrt(self.counts)
        start = np.broadcast_to(law, (_DRAWS, len(law))).copy()
        return self.settled(start, means, allowed, variance, bends * allowed), (deviation * own)[:, 0]

    def misfit(self, law: Array) -> float:
        """The sum of squares that the law leaves between the rungs."""
        return float((self.counts * np.square(self.means - self.form.losses(law[None], self.sizes)[0])).sum())

    def used(self, law: Array, allowed: Array, variance: float) -> float:
        """How many numbers the losses decide: a term of second order counts as far as they do."""
        slopes = np.sqrt(self.counts)[:, None] * self.form.slopes(law[None], self.sizes)[0]
        prior = self._prior(allowed, variance)
        return len(law) - float(np.diag(np.linalg.pinv(slopes.T @ slopes + np.diag(prior))) @ prior)

    def other_powers(self, law: Array) -> float:
        """The chance of more of what is left to lie along ``1 / sqrt(x)`` of variables whose power is taken as known,
        by an F test; not-a-number where there is none to try, or nothing to tell it by."""
        root = np.sqrt(self.counts)
        slopes = root[:, None] * self.form.slopes(law[None], self.sizes)[0]
        straight = np.eye(len(root)) - slopes @ np.linalg.pinv(slopes)
        others = straight @ (root[:, None] * np.sqrt(self.form.shrunk(law[None], self.sizes)[0][:, self.form.bent]))
        left = straight @ (root * (self.means - self.form.losses(law[None], self.sizes)[0]))
        tried, freedom = others.shape[1], len(root) - slopes.shape[1] - others.shape[1]
        if not tried or freedom < 1:
            return math.nan
        rest = float(np.square(left - others @ np.linalg.lstsq(others, left, rcond=None)[0]).sum())
        if rest <= float(np.square(_ROUNDING * root * self.means).sum()):
            return math.nan
        gain = float(np.square(left).sum()) - rest
        return f_tail(gain / tried / (rest / freedom), tried, freedom)

    def settled(self, laws: Array, means: Array, allowed: Array, variance: float, bends: Array) -> Array:
        """Laws ``[B, numbers]`` moved to the least squares of ``means [B, K]`` and of terms of second order ``bends``
        (Levenberg and Marquardt)."""
        prior, root, unit = self._prior(allowed, variance), np.sqrt(self.counts), np.eye(laws.shape[1])
        aims = np.zeros_like(laws)
        aims[:, self.form.second] = bends

        def left(laws: Array) -> Array:
            over = np.square(root * (means - self.form.losses(laws, self.sizes))).sum(-1)
            return np.asarray(over + np.square(laws - aims) @ prior)

        damping = np.full(len(laws), 1e-3)
        for _ in range(_ROUNDS):
            slopes = root[:, None] * self.form.slopes(laws, self.sizes)
            square = np.einsum("bkt,bku->btu", slopes, slopes) + np.diag(prior)
            scale = np.einsum("btt->bt", square)[:, :, None] * unit * damping[:, None, None] + 1e-12 * unit
            downhill = np.einsum("bkt,bk->bt", slopes, root * (means - self.form.losses(laws, self.sizes)))
            downhill += (aims - laws) * prior
            moved = laws + np.linalg.solve(square + scale, downhill[..., None])[..., 0]
            moved[:, self.form.fitted_powers] = moved[:, self.form.fitted_powers].clip(*_POWERS)
            before, after = left(laws), left(moved)
            laws = np.where((after < before)[:, None], moved, laws)
            damping = np.where(after < before, damping / 3, damping * 4).clip(1e-12, 1e12)
            if np.all(np.where(after < before, before - after < _SETTLED * before, damping > 1.0)):
                break
        return laws

    def _straight(self) -> Array:
        """The law of least squares without second order, of those that several powers lead to."""
        laws, root = list[Array](), np.sqrt(self.counts)
        for powers in product(_STARTS, repeat=len(self.form.free)):
            start = np.zeros(self.form.terms + len(self.form.bent))
            start[self.form.fitted_powers] = powers
            columns = self.form.slopes(start[None], self.sizes)[0, :, : self.form.first.stop]
            start[: self.form.first.stop] = np.linalg.lstsq(root[:, None] * columns, root * self.means, rcond=None)[0]
            laws.append(start)
        none = np.zeros((len(laws), len(self.form.bent)))
        means = np.broadcast_to(self.means, (len(laws), len(self.means)))
        settled = self.settled(np.stack(laws), means, np.full(none.shape[1], _NONE), 1.0, none)
        return np.asarray(settled[np.argmin([self.misfit(law) for law in settled])])

    def _prior(self, allowed: Array, variance: float) -> Array:
        """The weight of a term of second order, 0 of every other number."""
        return np.concatenate([np.zeros(self.form.terms), variance / np.square(allowed)])

    def _scatter(self, law: Array, allowed: Array, variance: float, within: float, runs: int) -> tuple[float, float]:
        """The variance of a run and its degrees of freedom: of all runs, or of the rungs where that is larger."""
        misfit, used = self.misfit(law), self.used(law, allowed, variance)
        of_runs, of_rungs = max(runs - used, 1.0), max(len(self.means) - used, 1.0)
        return max(((misfit + within) / of_runs, of_runs), (misfit / of_rungs, of_rungs))


def _named(form: Form, law: Array, draws: Array) -> list[tuple[float, Array]]:
    """The floor and the coefficients ``A`` in the units of the sizes, with their draws."""
    units = [np.array(form.smallest) ** form.powers(laws) for laws in (law[None], draws)]
    values, drawn = law[form.first] * units[0][0], draws[:, form.first] * units[1]
    return [(float(law[0]), draws[:, 0]), *((float(v), d) for v, d in zip(values, drawn.T, strict=True))]


def _lack_of_fit(misfit: float, freedom: float, within: float, seeds: int) -> float:
    """The chance of more misfit than the noise of seeds makes; not-a-number without seeds."""
    if not seeds or not within > 0:
        return math.nan
    return f_tail(misfit / freedom / (within / seeds), freedom, seeds)


def _reason(form: Form, sizes: Array, p_value: float, furthest: Array) -> str | None:
    """Why the law may not be extrapolated, and what would settle it; None where it may."""
    if p_value < GOOD:
        place = " and ".join(f"{name} {x:g}" for name, x in zip(form.variables, furthest, strict=True))
        return (
            f"The law does not hold on these sizes: its misfit exceeds the noise (p = {p_value:.1g}). Furthest from it "
            f"lies {place}: train it from other seeds, or larger sizes."
        )
    fewest = [_FEWEST_FREE if k in form.free else _FEWEST for k in range(len(form.variables))]
    counts = [len(set(column)) for column in sizes.T.tolist()]
    few = [
        f"{count} sizes of {name} are too few to fit its law ({least} or more are needed): train {name} "
        f"{2 * sizes[:, k].max():g} too"
        for k, (name, count, least) in enumerate(zip(form.variables, counts, fewest, strict=True))
        if count < least
    ]
    return f"{'; '.join(few)}." if few else None
