"""Facts about the function spaces of infinite-depth kernels (Props. 4 and 5), measured per activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

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
        universal: whether C_1 is universal on the sphere, and why. counterexample: two points on which C_1 is
            singular, with their kernel values, or None.
        smallest_random, smallest_antipodal: smallest eigenvalue of C_1 on 48 random points of the sphere in R^6, and on
            24 of them with their antipodes, relative to the largest. smallest_antipodal_0: the same for
            ``k_0 = E phi phibar`` of Prop. 4.
        nesting: smallest eigenvalue of ``C_t' - C_t`` over all t < t' in 0.25 .. 4 and both sets of points, and
        nesting_rounding: what rounding leaves in it, 1e-15 of the largest eigenvalue (Prop. 5: not negative beyond it).
    """

    name: str
    hermite: list[float]
    parity: str
    universal: str
    counterexample: str | None
    smallest_random: float
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
    polynomial = all(abs(h) < _ZERO for h in hermite[2:])
    points = torch.randn(_POINTS, _DIMENSION, generator=generator(seed, "sphere"), dtype=torch.float64)
    points = points / points.norm(dim=1, keepdim=True) * math.sqrt(_DIMENSION)
    antipodal = torch.cat([points[: _POINTS // 2], -points[: _POINTS // 2]])
    pair = _covariance(name, 1.0, torch.stack([points[0], -points[0]]))
    opposite = abs(float(pair[0, 1] + pair[0, 0])) < 1e-8 * float(pair[0, 0])
    cosine = antipodal @ antipodal.T / _DIMENSION
    k_0 = act.moment(torch.ones_like(cosine), torch.ones_like(cosine), cosine.clamp(-1, 1))
    return KernelFacts(
        name=name,
        hermite=hermite,
        parity="odd" if odd else "even" if even else "neither",
        universal=_universal(opposite, polynomial),
        counterexample=_shown(pair) if opposite else None,
        smallest_random=_smallest(_covariance(name, 1.0, points)),
        smallest_antipodal=_smallest(_covariance(name, 1.0, antipodal)),
        smallest_antipodal_0=_smallest(k_0),
        **_nesting(name, (points, antipodal)),
    )


def rows(facts: KernelFacts) -> dict[str, Any]:
    """What a person reads."""
    shown = asdict(facts)
    shown["hermite"] = " ".join(f"{h:.4f}" if abs(h) >= _ZERO else "0" for h in facts.hermite)
    return {key: f"{value:.2e}" if isinstance(value, float) else value for key, value in shown.items()}


def _universal(opposite: bool, polynomial: bool) -> str:
    if polynomial:
        return "no: phi is linear, and so is every function of the space"
    if opposite:
        return "no: phi is odd, so every function of the space has f(-x) = -f(x), though phi is not polynomial"
    return "not ruled out: phi is not polynomial, and its functions separate x from -x"


def _shown(pair: Tensor) -> str:
    return f"x and -x: C_1(x, x) = {float(pair[0, 0]):.6f}, C_1(x, -x) = {float(pair[0, 1]):.6f}"


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
