"""Facts about the function spaces of infinite-depth kernels (Props. 4 and 5), measured per activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from nfd.core.activations import activation
from nfd.core.machine import undisturbed
from nfd.core.names import Activation
from nfd.core.random import generator
from nfd.limits.kernels import gram_matrix

_DEGREE = 12
_POINTS, _DIMENSION = 48, 6
_HORIZONS = (0.25, 0.5, 1.0, 2.0, 4.0)
_ZERO = 1e-9


@dataclass(frozen=True)
class KernelFacts:
    """Measured properties of the kernels of one activation.

    Attributes:
        hermite: normalised coefficients of phi(Z), degrees 0 to 12. parity: "odd", "even" or "neither".
        smallest_antipodal: smallest eigenvalue of C_1, relative to the largest, on 24 random points of the sphere in
            R^6 with their antipodes. smallest_antipodal_0: the same for ``k_0 = E phi phibar`` of Prop. 4.
        nesting: smallest eigenvalue of ``C_t' - C_t`` over all t < t' in 0.25 .. 4 and both sets of points, and
        nesting_rounding: what rounding leaves in it, 1e-15 of the largest eigenvalue (Prop. 5: not negative beyond it).
    """

    name: str
    hermite: list[float]
    parity: str
    smallest_antipodal: float
    smallest_antipodal_0: float
    nesting: float
    nesting_rounding: float


@undisturbed()
def kernel_facts(name: Activation, seed: int = 0) -> KernelFacts:
    """Measure the facts of one activation."""
    act = activation(name)
    hermite = act.hermite(_DEGREE).tolist()
    odd = all(abs(h) < _ZERO for h in hermite[::2])
    even = all(abs(h) < _ZERO for h in hermite[1::2])
    points = torch.randn(_POINTS, _DIMENSION, generator=generator(seed, "sphere"), dtype=torch.float64)
    points = points / points.norm(dim=1, keepdim=True) * math.sqrt(_DIMENSION)
    antipodal = torch.cat([points[: _POINTS // 2], -points[: _POINTS // 2]])
    cosine = antipodal @ antipodal.T / _DIMENSION
    k_0 = act.moment(torch.ones_like(cosine), torch.ones_like(cosine), cosine.clamp(-1, 1))
    return KernelFacts(
        name=name,
        hermite=hermite,
        parity="odd" if odd else "even" if even else "neither",
        smallest_antipodal=_smallest(_covariance(name, 1.0, antipodal)),
        smallest_antipodal_0=_smallest(k_0),
        **_nesting(name, (points, antipodal)),
    )


def _covariance(name: str, horizon: float, points: Tensor) -> Tensor:
    K, _, _ = gram_matrix(points, None, kind="nngp", activation=name, horizon=horizon, depth=math.inf, slopes=False)
    return K


def _smallest(K: Tensor) -> float:
    values = torch.linalg.eigvalsh(K)
    return float(values[0] / values[-1])


def _nesting(name: str, sets: Sequence[Tensor]) -> dict[str, float]:
    smallest, largest = math.inf, 0.0
    for points in sets:
        kernels = [_covariance(name, T, points) for T in _HORIZONS]
        for before, after in combinations(kernels, 2):
            values = torch.linalg.eigvalsh(after - before)
            smallest, largest = min(smallest, float(values[0])), max(largest, float(values[-1]))
    return {"nesting": smallest, "nesting_rounding": 1e-15 * largest}
