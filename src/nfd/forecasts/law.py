"""The law of size: what a trained network of width n and depth L loses against the infinite one, and its fit.

``loss(n, L) = floor + a / n + b / L`` for large n and L: the floor is the loss of the infinite network trained the
same way, ``a / n`` and ``b / L`` the first corrections of the limits in width and depth. Networks that can be trained
are of moderate size, where terms of second order, ``c / n^2 + d / L^2 + e / (n L)``, still bend the loss; the fit
reckons with them (``nfd.forecasts.law``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from nfd.core.errors import InputError, check_count
from nfd.core.estimates import Interval, combined, f_tail, satterthwaite

Losses = Mapping[Any, Sequence[float]]  # of runs, by their sizes
Vector = tuple[float, ...]  # of the law's coefficients: floor, a, b, c, d, e


def direction(floor: float, width: float, depth: float) -> Vector:
    """What multiplies the coefficients in the loss at a size; ``floor`` is 1, or 0 for the excess over the floor."""
    return floor, 1 / width, 1 / depth, 1 / width**2, 1 / depth**2, 1 / (width * depth)


@dataclass(frozen=True)
class Cell:
    """One size of the grid.

    Attributes:
        losses: of its seeds.
        deviation: standard deviation of one network there, smoothed over the grid.
        pull: change of every coefficient per change of the mean loss here.
    """

    width: int
    depth: int
    losses: tuple[float, ...]
    deviation: float
    pull: Vector

    @cached_property
    def mean(self) -> float:
        """Mean loss over the seeds."""
        return sum(self.losses) / len(self.losses)

    @cached_property
    def variance(self) -> float:
        """Variance of the loss of one network, from these seeds alone."""
        return sum((loss - self.mean) ** 2 for loss in self.losses) / (len(self.losses) - 1)


@dataclass(frozen=True)
class Noise:
    """The variance of one network's loss, ``log var = c . (1, log n, log L)``, and the covariance of c."""

    coefficients: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def at(self, width: float, depth: float) -> tuple[float, float]:
        """The variance at a size and the degrees of freedom that it is known with."""
        z = np.array([1.0, math.log(width), math.log(depth)])
        return math.exp(float(z @ self.coefficients)), 2 / float(z @ np.array(self.covariance) @ z)


@dataclass(frozen=True)
class Law:
    """A fitted law of size, ``loss(n, L) = floor + a / n + b / L``, with terms of second order and 95 % intervals.

    The intervals include the noise of the seeds and the uncertainty of second order: each term of second order is taken
    to be 0, with a standard error of the terms of first order at the smallest size. If the true terms are larger, and
    the noise hides them, the floor is biased. To test this, fit without the smallest sizes, or compare with
    ``nfd.predict(..., eval_targets=...)``.

    Attributes:
        floor, a, b: the numbers of the law.
        second: c, d and e of ``c / n^2 + d / L^2 + e / (n L)``, each 0 unless it differs significantly from 0.
        chi2, freedom: misfit beyond second order, and its expectation from the noise of the seeds alone.
        bend: the largest term of second order, over what it is allowed.
        p_value: the probability of a larger misfit or of larger terms of second order if the law holds: three times the
            smallest p-value of three tests.
        widths, depths: the fitted ones, ascending.
        seeds: the smallest number of seeds of a size.
        correlation: of the losses of two sizes with the same place in the list of seeds, mean over pairs of sizes;
            not-a-number if sizes have different numbers of seeds.
        paired: whether the fit accounts for that correlation.
        good: whether the law may be extrapolated: p_value at least 0.05, and at least three widths and three depths.
        note: the reason if not, and what would settle it; the runs that were left out; otherwise empty.
        cells, doubts, noise: the parts of the intervals; ``doubts`` is the change of every coefficient per standard
            error of each term of second order.
    """

    floor: Interval
    a: Interval
    b: Interval
    second: tuple[Interval, Interval, Interval]
    chi2: float
    freedom: int
    bend: float
    p_value: float
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    seeds: int
    correlation: float
    paired: bool
    good: bool
    note: str
    cells: tuple[Cell, ...] = field(repr=False)
    doubts: tuple[Vector, ...] = field(repr=False)
    noise: Noise = field(repr=False)

    equation: ClassVar[str] = "loss = floor + a / width + b / depth"
    variables: ClassVar[tuple[str, ...]] = ("width", "depth")

    @property
    def terms(self) -> dict[str, Interval]:
        """The numbers of the law by their letters in ``equation``."""
        return {"floor": self.floor, "a": self.a, "b": self.b}

    @property
    def formula(self) -> str:
        """The law with its numbers."""
        return f"loss = {self.floor.unsigned} + ({self.a}) / n + ({self.b}) / L"

    @property
    def content(self) -> dict[str, Any]:
        """The law and its test as ``result.json`` holds them."""
        second = {name: term.limits for name, term in zip("cde", self.second, strict=True)}
        terms: dict[str, Any] = {name: term.limits for name, term in self.terms.items()}
        terms["second_order"] = second | {"bend": self.bend}
        return terms | {name: getattr(self, name) for name in ("chi2", "freedom", "p_value", "good", "note")}

    @property
    def smallest(self) -> tuple[int, int]:
        """The smallest width and depth that were fitted."""
        return self.widths[0], self.depths[0]

    @property
    def largest(self) -> tuple[int, int]:
        """The largest width and depth that were fitted."""
        return self.widths[-1], self.depths[-1]

    def loss(self, width: float, depth: float) -> Interval:
        """The mean loss of networks of a size; either may be ``math.inf``.

        Raises:
            ValueError: outside the sizes that were fitted, when the law is not good.
        """
        self._allow(width, depth)
        return self._along(direction(1.0, width, depth))

    def excess(self, width: float, depth: float) -> Interval:
        """The loss above the floor: the most that larger networks can gain. Raises as ``loss`` does."""
        self._allow(width, depth)
        return self._along(direction(0.0, width, depth))

    def bought(self, width: int, depth: int, wider: int, deeper: int) -> Interval:
        """The fall of the loss from one size to another. Raises as ``loss`` does, at either size."""
        self._allow(width, depth)
        self._allow(wider, deeper)
        sizes = zip(direction(1.0, width, depth), direction(1.0, wider, deeper), strict=True)
        return self._along(tuple(small - large for small, large in sizes))

    def network(self, width: int, depth: int, networks: int = 1) -> Interval:
        """The mean loss of this many new networks of a size, with a 95 % prediction interval.

        The interval includes the error of the law and the noise of the networks, extrapolated like the law. Raises as
        ``loss`` does.
        """
        width, depth = check_count("width", width), check_count("depth", depth)
        self._allow(width, depth)
        value, parts = self._parts(direction(1.0, width, depth))
        variance, known = self.noise.at(width, depth)
        return combined(value, [*parts, (variance / check_count("networks", networks), known)])

    def __str__(self) -> str:
        return f"floor {self.floor}, a {self.a}, b {self.b}; {self.test}. {self.note}".strip()

    @property
    def test(self) -> str:
        """The test of the law in words: its misfit, and the size of the terms of second order."""
        return (
            f"chi2 {self.chi2:.1f} of {self.freedom} degrees of freedom beyond second order, terms of second order up "
            f"to {self.bend:.1f} times what is allowed for, p = {self.p_value:.2g}"
        )

    def _along(self, along: Vector) -> Interval:
        return combined(*self._parts(along))

    def _parts(self, along: Vector) -> tuple[float, list[tuple[float, float]]]:
        """``along . coefficients`` and its variances: of the seeds and of the doubt of second order."""
        value = sum(float(np.dot(along, cell.pull)) * cell.mean for cell in self.cells)
        return value, [spread(self.cells, along, self.paired), (doubt(self.doubts, along), math.inf)]

    def _allow(self, width: float, depth: float) -> None:
        for name, size, fitted in (("width", width, self.widths), ("depth", depth, self.depths)):
            if not size >= 1:
                raise InputError(f"{name} must be at least 1; got {size}.")
            if not self.good and not fitted[0] <= size <= fitted[-1]:
                raise InputError(
                    f"{name} must be within {fitted[0]}..{fitted[-1]}, what was fitted; got {size}. This law may not "
                    f"be extrapolated: {self.note}"
                )


# ---- intervals -----------------------------------------------------------------------------------------------


def spread(cells: Sequence[Cell], along: Any, paired: bool) -> tuple[float, float]:
    """Variance of ``along . coefficients`` from the noise of the seeds, and its degrees of freedom."""
    pull: list[float] = (np.array([cell.pull for cell in cells]) @ np.array(along)).tolist()
    if paired:
        combined = np.array(pull) @ np.array([cell.losses for cell in cells])
        return float(combined.var(ddof=1)) / len(combined), float(len(combined) - 1)
    seen = sum(p**2 * c.variance / len(c.losses) for p, c in zip(pull, cells, strict=True))
    parts = [(p**2 * c.deviation**2 / len(c.losses), len(c.losses) - 1) for p, c in zip(pull, cells, strict=True)]
    smoothed, freedom = satterthwaite(parts)
    return max(seen, smoothed), freedom


def doubt(doubts: Sequence[Vector], along: Any) -> float:
    """Variance of ``along . coefficients`` from what the losses leave open of second order."""
    return sum(float(np.dot(along, change)) ** 2 for change in doubts)


# ---- Whether the law of size holds: three F tests against the noise of the seeds.
#
# One is of the misfit beyond second order. One is of the part of it that ``1 / sqrt(n)`` and ``1 / sqrt(L)`` make,
# the likeliest other powers. One is of the terms of second order: how far their estimates lie from the nearest terms
# that are no larger than the fit allows. Three times the smallest chance is the p-value (Bonferroni). Another power
# that second order imitates within the noise is not seen.
#
# Independent sizes count with 0.7 of the denominator's degrees of freedom, for what smoothing their variances costs;
# seeds that sizes share with Box's, ``tr(C)^2 / tr(C^2)``. A law that holds is rejected at p = 0.05 in no more than 5
# of 100 sweeps (``benchmarks/lack_of_fit.py``).


Array = NDArray[np.float64]

_WORTH = 0.7  # of the degrees of freedom of a smoothed variance, by simulation with 2 to 10 seeds
_RANK = 1e-9  # of the largest singular value


@dataclass(frozen=True)
class Tested:
    """The tests of a law.

    Attributes:
        misfit, freedom: mean square beyond second order over its mean under noise alone, and of how many combinations.
        p_value: the chance of more of any.
        bent: whether it is the terms of second order that are least likely.
    """

    misfit: float
    freedom: int
    p_value: float
    bent: bool


class Means(Protocol):
    """Mean losses in units of their standard errors."""

    def test(self, basis: Array, allowed: Array) -> tuple[float, float]:
        """Some combinations of the means: their mean square over that of noise, and the chance of more.

        Args:
            basis: ``[sizes, combinations]``, orthonormal.
            allowed: ``[combinations, terms]``: what terms beside the noise may add, each from -1 to 1 times.
        """


def tested(first: Array, second: Array, others: Array, allowed: Array, means: Means) -> Tested:
    """Test a law.

    Args:
        first, second: terms of first and second order ``[sizes, 3]``, over the standard errors of the mean losses.
        others: the same of other powers ``[sizes, 2]``.
        allowed: how large [3] the terms of second order may be.
        means: the losses.
    """
    straight = _basis(first)
    curved = _basis(second - straight @ (straight.T @ second))
    rest = _basis(np.eye(len(first)) - straight @ straight.T - curved @ curved.T)
    other = _basis(rest @ (rest.T @ others))
    (misfit, more), (_, powers) = (means.test(basis, np.zeros((basis.shape[1], 1))) for basis in (rest, other))
    _, larger = means.test(curved, curved.T @ (second * allowed))
    chances = [p for p, basis in ((more, rest), (powers, other), (larger, curved)) if basis.shape[1]]
    p_value = min(1.0, len(chances) * min(chances, default=1.0))
    return Tested(misfit, rest.shape[1], p_value, larger < min(more, powers))


class Independent:
    """Of networks with a seed of their own; ``counts`` of each size."""

    def __init__(self, means: Array, counts: Array) -> None:
        self.means, self.worth = means, _WORTH * float((counts - 1).sum())

    def test(self, basis: Array, allowed: Array) -> tuple[float, float]:
        return _ratio(basis.T @ self.means, 1.0, allowed, basis.shape[1], self.worth)


class Paired:
    """Of networks that share seeds over the sizes, ``[sizes, seeds]``: every seed is a sample of the noise."""

    def __init__(self, losses: Array) -> None:
        self.losses = losses

    def test(self, basis: Array, allowed: Array) -> tuple[float, float]:
        combinations, S = basis.T @ self.losses, self.losses.shape[1]
        if not len(combinations):
            return 0.0, 1.0
        centred = combinations - combinations.mean(1, keepdims=True)
        variance = float(np.square(centred).sum()) / len(centred) / (S - 1) / S
        freedom = _box(centred, len(centred))
        return _ratio(combinations.mean(1), variance, allowed, freedom, (S - 1) * freedom)


def _ratio(values: Array, variance: float, allowed: Array, freedom: float, worth: float) -> tuple[float, float]:
    if not len(values):
        return 0.0, 1.0
    beyond = values - allowed @ lsq_linear(allowed, values, (-1, 1)).x
    ratio = float(beyond @ beyond) / variance / len(values)
    return ratio, f_tail(ratio, freedom, worth)


def _basis(columns: Array) -> Array:
    """An orthonormal basis of what they span."""
    left, sizes, _ = np.linalg.svd(columns, full_matrices=False)
    return np.asarray(left[:, sizes > _RANK * max(1.0, float(sizes.max(initial=0.0)))])


def _box(centred: Array, most: int) -> float:
    """``tr(C)^2 / tr(C^2)`` of the covariance C behind centred samples ``[K, S]``, both without bias."""
    f = centred.shape[1] - 1
    if f < 2:
        return max(1.0, most / 2)
    gram = centred.T @ centred / f
    square, trace = float(np.square(gram).sum()), float(np.trace(gram))
    above, below = (f + 1) / f * (trace**2 - 2 * square / (f + 1)), square - trace**2 / f
    return float(np.clip(above / below, 1.0, most)) if below > 0 else float(most)


# ---- The fit of the law of size to a sweep.
#
# Each size of the grid was trained from several seeds on the same batches. Weights: the variance of one network is
# smoothed over the grid as ``s^2 n^p L^q``, the raw variances of a few seeds being too uncertain to weigh by; a prior
# of 1/2 around -1/2 and 0 holds p and q where seeds are few. Networks of one seed number may share random weights,
# and so their losses be correlated over the sizes (``nfd.ResNet`` on digits: 0.7 at equal width, 0.4 otherwise).
# Where they are, significantly, each seed is a fit of its own, and the errors come from the spread of these fits,
# with ``seeds - 1`` degrees of freedom (``paired``). Elsewhere sizes are independent: the errors come from the spread
# of the seeds or from the smoothed variances, whichever is larger, with the degrees of freedom of all sizes together
# (Satterthwaite). So the losses decide, whether they were trained here or read from a log: a fit by seed where sizes
# are independent covers 89 to 96 times in 100 (2 to 6 seeds), one that ignores correlation 87 to 93.
#
# Terms of second order, ``c / n^2 + d / L^2 + e / (n L)``, are fitted too, each with one measurement more: at the
# smallest size of the grid it is 0, with a standard error of the term of first order there (for e, of the mean of
# both). So a fit learns them where it can, and what it cannot learn widens the intervals. A fit of first order alone
# covers the floor 0 to 65 times in 100 when such terms have a tenth to a half of the first order's size
# (``benchmarks/coverage_laws.py`` has the numbers with them).
#
# Whether the law holds is tested by ``nfd.forecasts.law``.


Grid = dict[tuple[int, int], Array]

GOOD = 0.05  # the p-value below which the law does not hold
_FEWEST = 3  # widths, and depths, that can tell 1/n from another power
_FEWEST_LEFT = 4  # where a longer grid failed: three lie on some law of second order, whatever they are
_CORRELATED = 2.0  # standard errors
_EXPONENTS = np.array([-0.5, 0.0])  # of the variance in n and L, and how sure we are before any data
_SURE = np.diag([0.0, 4.0, 4.0])
_MOST_STEPS, _SETTLED = 50, 1e-8  # of Fisher scoring


def fit_law(losses: Losses, *, paired: bool = True, trim: bool = False) -> Law:
    """Fit the law to the final losses of a grid of sizes.

    Args:
        losses: (width, depth) -> losses of the seeds. At least 2 widths, 2 depths, 4 sizes and 2 seeds each.
        paired: whether the i-th losses of all sizes come from one seed number, and so perhaps from common random
            weights or batches. The fit accounts for that where they are correlated. False, where every network had a
            seed number of its own.
        trim: whether to leave out the smallest widths or depths, down to four, until the law holds.

    Returns:
        A ``Law``, good or not. Sizes at which any run diverged are left out, and its note says so.

    Raises:
        ValueError, TypeError: on too few sizes or seeds, and on seeds that do not differ.
    """
    sizes, note = _checked(losses)
    paired = paired and _correlation(sizes)[1]
    law = _law(sizes, paired, note)
    shorter = None if law.p_value >= GOOD else _trimmed(sizes, paired)
    if shorter is None:
        return law
    kept = f"widths {_range(shorter.widths)}, depths {_range(shorter.depths)}"
    if not trim:
        return replace(law, note=_join(law.note, f"It holds for {kept} (p = {shorter.p_value:.2g}): pass trim=True."))
    dropped = f"Smaller sizes were left out until the law held: {kept}; on the whole grid p = {law.p_value:.1g}."
    return replace(shorter, note=_join(note, dropped))


# ---- what was given ------------------------------------------------------------------------------------------


def _checked(losses: Losses) -> tuple[Grid, str]:
    sizes, lost = {}, []
    for (n, L), values in sorted(losses.items()):
        key = check_count("width", n), check_count("depth", L)
        sample = np.asarray(values, dtype=np.float64)
        if sample.ndim != 1 or len(sample) < 2:
            raise InputError(
                f"losses must hold 2 seeds or more for every size; got {sample.size} at width {n}, depth {L}."
            )
        if np.isfinite(sample).all():
            sizes[key] = sample
        else:
            lost.append(f"{n} x {L}")
    note = f"Left out, as runs diverged there: width x depth {', '.join(lost)}." if lost else ""
    check_sizes(sizes, note)
    if all(np.ptp(sample) == 0 for sample in sizes.values()):
        raise InputError("losses of different seeds must differ; they are equal at every size. Train from other seeds.")
    return sizes, note


def check_sizes(sizes: Collection[tuple[int, int]], note: str = "") -> None:
    """ValueError where these sizes, each a width and a depth, are too few or too alike for a law; ``note`` says why."""
    widths, depths = _axes(sizes)
    if len(widths) < 2 or len(depths) < 2 or len(sizes) < 4:
        raise InputError(
            f"losses must cover at least 2 widths, 2 depths and 4 sizes; got widths {list(widths)}, depths "
            f"{list(depths)}, {len(sizes)} sizes. {note}".rstrip()
        )
    if np.linalg.matrix_rank(_design(sizes), tol=1e-6) < 3:
        raise InputError(
            f"losses must vary width and depth independently of each other; got sizes {list(sizes)}. Add sizes."
        )


def _axes(sizes: Collection[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(sorted({n for n, _ in sizes})), tuple(sorted({L for _, L in sizes}))


def _design(sizes: Collection[tuple[int, int]]) -> Array:
    """First order in units of the smallest size ``n0 x L0``: rows ``(1, n0/n, L0/L)``."""
    (n0, *_), (L0, *_) = _axes(sizes)
    return np.array([[1.0, n0 / n, L0 / L] for n, L in sizes])


def _second(sizes: Grid) -> Array:
    """Second order in the same units: rows ``((n0/n)^2, (L0/L)^2, n0 L0 / (n L))``."""
    _, wide, deep = _design(sizes).T
    return np.stack([wide**2, deep**2, wide * deep], axis=1)


# ---- the fit -------------------------------------------------------------------------------------------------


def _law(sizes: Grid, paired: bool, note: str) -> Law:
    correlation, _ = _correlation(sizes)
    noise = _noise(sizes, correlation if paired else 0.0)
    variance = np.array([noise.at(n, L)[0] for n, L in sizes])
    mean, count = np.array([s.mean() for s in sizes.values()]), np.array([len(s) for s in sizes.values()])
    root = np.sqrt(count / variance)
    pull, doubts, allowed = _pulls(sizes, root, mean)
    (n0, *_), (L0, *_) = _axes(sizes)
    units = np.array([1, n0, L0, n0**2, L0**2, n0 * L0])
    changes = tuple(tuple(change.tolist()) for change in (doubts * units[:, None]).T)
    cells = tuple(
        Cell(n, L, tuple(s.tolist()), math.sqrt(v), tuple((p * units).tolist()))
        for ((n, L), s), v, p in zip(sizes.items(), variance, pull.T, strict=True)
    )
    seen = Paired(root[:, None] * np.stack(list(sizes.values()))) if paired else Independent(root * mean, count)
    X, Z = root[:, None] * _design(sizes), root[:, None] * _second(sizes)
    others = root[:, None] * np.sqrt(_design(sizes)[:, 1:])
    test = tested(X, Z, others, allowed, seen)
    values, directions = units * (pull @ mean), np.eye(len(units))
    floor, a, b, *second = (
        combined(float(v), [spread(cells, e, paired), (doubt(changes, e), math.inf)])
        for v, e in zip(values, directions, strict=True)
    )
    widths, depths = _axes(sizes)
    bends = np.abs(values[3:] / (units[3:] * allowed))
    residuals = root * (mean - np.hstack([_design(sizes), _second(sizes)]) @ (pull @ mean))
    reason = _reason(test, sizes, bends, residuals)
    return Law(
        floor,
        a,
        b,
        (second[0], second[1], second[2]),
        chi2=test.misfit * test.freedom,
        freedom=test.freedom,
        bend=float(bends.max()),
        p_value=test.p_value,
        widths=widths,
        depths=depths,
        seeds=int(count.min()),
        correlation=correlation,
        paired=paired,
        good=reason is None,
        note=_join(reason, note),
        cells=cells,
        doubts=changes,
        noise=noise,
    )


def _pulls(sizes: Grid, root: Array, mean: Array) -> tuple[Array, Array, Array]:
    """Weighted least squares of second order, in units of the smallest size.

    Three rows stand below the sizes: each term of second order is 0, with the standard error ``allowed``. That is the
    first order by a fit that leaves second order free, with its error added. A fit that holds second order small finds
    too small a first order where the two cancel, and would allow too little.

    Returns:
        Change of the coefficients per mean loss ``[6, sizes]`` and per standard error of these rows ``[6, 3]``, and
        ``allowed`` [3].
    """
    K, orders = len(root), root[:, None] * np.hstack([_design(sizes), _second(sizes)])
    free = np.linalg.pinv(orders)[1:3]
    first = np.hypot(free @ (root * mean), np.linalg.norm(free, axis=1))
    allowed = np.array([*first, first.mean()])
    inverse = np.linalg.pinv(np.vstack([orders, np.hstack([np.zeros((3, 3)), np.diag(1 / allowed)])]))
    return inverse[:, :K] * root, inverse[:, K:], allowed


def _correlation(sizes: Grid) -> tuple[float, bool]:
    """Mean correlation over pairs of sizes of losses with the same place, and whether it is significant."""
    if len({len(s) for s in sizes.values()}) > 1:
        return math.nan, False
    Y = np.stack([s - s.mean() for s in sizes.values() if np.ptp(s) > 0])
    unit, K, freedom = Y / np.linalg.norm(Y, axis=1, keepdims=True), len(Y), Y.shape[1] - 1
    if K < 2:
        return 0.0, False
    mean = float((unit.sum(0) ** 2).sum() - K) / (K * (K - 1))
    return mean, mean * math.sqrt(freedom * K * (K - 1) / 2) > _CORRELATED


def _noise(sizes: Grid, correlation: float) -> Noise:
    """Most likely variances ``exp(Z c)``: each sample variance is ``var chi2_f / f``, with f = seeds - 1.

    Fisher scoring. The covariance counts correlated sizes for as many as they are worth, ``K / (1 + (K - 1) r^2)``.
    """
    Z = np.array([[1.0, math.log(n), math.log(L)] for n, L in sizes])
    centre = np.concatenate([[0.0], Z[:, 1:].mean(0)])
    Z = Z - centre
    seen = np.array([s.var(ddof=1) for s in sizes.values()])
    half = np.array([(len(s) - 1) / 2 for s in sizes.values()])
    c = np.array([math.log(half @ seen / half.sum()), *_EXPONENTS])
    prior, information = c.copy(), Z.T @ (Z * half[:, None]) + _SURE
    for _ in range(_MOST_STEPS):
        score = Z.T @ (half * (seen * np.exp(-Z @ c) - 1)) - _SURE @ (c - prior)
        step = np.clip(np.linalg.solve(information, score), -1, 1)
        c = c + step
        if np.abs(step).max() < _SETTLED:
            break
    worth = 1 + (len(sizes) - 1) * correlation**2
    back = np.eye(3)
    back[0, 1:] = -centre[1:]  # c . (z - centre), written for z itself
    covariance = back @ np.linalg.inv(information / worth) @ back.T
    return Noise(tuple((back @ c).tolist()), tuple(map(tuple, covariance.tolist())))


def _reason(test: Tested, sizes: Grid, bends: Array, residuals: Array) -> str | None:
    """Why the law may not be extrapolated, and what would settle it; None where it may.

    Args:
        bends: terms of second order over what they are allowed. residuals: of the sizes, in standard errors.
    """
    axes = dict(zip(("width", "depth"), _axes(sizes), strict=True))
    if not test.p_value >= GOOD and test.bent:
        of_axis = {"width": max(bends[0], bends[2]), "depth": max(bends[1], bends[2])}
        larger = [_larger(name, axes[name], _FEWEST_LEFT + 1) for name, bend in of_axis.items() if bend > 1]
        return (
            f"The law does not hold on this grid: terms of second order are too large (p = {test.p_value:.1g}). Train "
            f"{' or '.join(larger or [_larger('width', axes['width'], _FEWEST_LEFT + 1)])} too, so that the smallest "
            "can be left out."
        )
    if not test.p_value >= GOOD:
        (n, L), off = [*sizes][int(np.abs(residuals).argmax())], float(np.abs(residuals).max())
        return (
            "The law does not hold on this grid: the misfit is beyond the noise of the seeds "
            f"(p = {test.p_value:.1g}). "
            f"Furthest from it lies width {n} and depth {L}, by {off:.1f} errors: train it from other seeds, or larger "
            "sizes."
        )
    few = {name: values for name, values in axes.items() if len(values) < _FEWEST}
    if not few:
        return None
    return (
        f"{' and '.join(f'{len(values)} {name}s' for name, values in few.items())} are too few to distinguish 1/n or "
        f"1/L from other powers; take {_FEWEST} or more: train "
        f"{' and '.join(_larger(name, values, _FEWEST) for name, values in few.items())} too."
    )


def _larger(name: str, values: tuple[int, ...], fewest: int) -> str:
    """The sizes to train beside these to have so many, and one at least: ``width 256 and 512``."""
    more = [values[-1] * 2**k for k in range(1, max(1, fewest - len(values)) + 1)]
    return f"{name} {' and '.join(map(str, more))}"


def _trimmed(sizes: Grid, paired: bool) -> Law | None:
    """The law without the smallest widths or depths, one at a time, whichever helps more, until it holds."""
    while True:
        tried = []
        for axis, values in enumerate(_axes(sizes)):
            rest = {key: s for key, s in sizes.items() if key[axis] != values[0]}
            if len(_axes(rest)[axis]) >= _FEWEST_LEFT:
                tried.append((_law(rest, paired, ""), rest))
        if not tried:
            return None
        law, sizes = max(tried, key=lambda pair: pair[0].p_value)
        if law.p_value >= GOOD:
            return law


def _range(values: tuple[int, ...]) -> str:
    return f"{values[0]}..{values[-1]}"


def _join(*sentences: str | None) -> str:
    return " ".join(filter(None, sentences))
