"""Whether the law of size holds: three F tests against the noise of the seeds.

One is of the misfit beyond second order. One is of the part of it that ``1 / sqrt(n)`` and ``1 / sqrt(L)`` make, the
likeliest other powers. One is of the terms of second order: how far their estimates lie from the nearest terms that
are no larger than the fit allows. Three times the smallest chance is the p-value (Bonferroni). Another power that
second order imitates within the noise is not seen.

Independent sizes count with 0.7 of the denominator's degrees of freedom, for what smoothing their variances costs;
seeds that sizes share with Box's, ``tr(C)^2 / tr(C^2)``. A law that holds is rejected at p = 0.05 in no more than 5 of
100 sweeps (``benchmarks/lack_of_fit.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from nfd.core.intervals import f_tail

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
