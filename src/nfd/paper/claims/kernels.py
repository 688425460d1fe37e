"""Statements on the function space of the infinite-depth kernel (Props. 4 and 5, Appendix D): no randomness."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

from nfd.core import Activation, activation, generator
from nfd.limits import kernel
from nfd.paper.claims.claim import Claim, ClaimVerdict, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import within
from nfd.paper.claims.rules import some_of
from nfd.paper.settings import Preset

ZERO = 1e-9
NUMERICAL = 1e-8  # of a relative eigenvalue: errors of kernel tables and rounding

HORIZONS = (0.25, 0.5, 1.0, 2.0, 4.0)

SIZES: dict[Preset, tuple[Activation, ...]] = {
    "smoke": ("relu", "erf"),
    "cpu": ("relu", "gelu", "tanh", "erf"),
    "paper": ("relu", "gelu", "tanh", "erf"),
}


@dataclass(frozen=True)
class KernelFacts:
    """What was measured of the kernels of one activation.

    Attributes:
        hermite: normalised coefficients of phi(Z), degrees 0 to 12. parity: "odd", "even" or "neither".
        smallest_antipodal: smallest eigenvalue of C_1, relative to the largest, on 24 random points of the sphere in
            R^6 with their antipodes. smallest_antipodal_0: the same for ``k_0 = E phi phibar`` of Prop. 4.
        nesting: smallest eigenvalue of ``C_t' - C_t`` over all t < t' and points with and without antipodes;
            ``nesting_rounding``: what rounding leaves in it, 1e-15 of the largest.
    """

    name: str
    hermite: list[float]
    parity: str
    smallest_antipodal: float
    smallest_antipodal_0: float
    nesting: float
    nesting_rounding: float


def kernel_facts(name: Activation, seed: int = 0) -> KernelFacts:
    """The facts of one activation."""
    act = activation(name)
    hermite = act.hermite(12).tolist()
    odd, even = (all(abs(h) < ZERO for h in hermite[first::2]) for first in (0, 1))
    points = torch.randn(48, 6, generator=generator(seed, "sphere"), dtype=torch.float64)
    points = points / points.norm(dim=1, keepdim=True) * math.sqrt(6)
    antipodal = torch.cat([points[:24], -points[:24]])
    cosine = (antipodal @ antipodal.T / 6).clamp(-1, 1)
    k_0 = act.moment(torch.ones_like(cosine), torch.ones_like(cosine), cosine)
    c_1 = kernel(antipodal, activation=name, horizon=1.0)
    kernels = [[kernel(own, activation=name, horizon=T) for T in HORIZONS] for own in (points, antipodal)]
    grown = [after - before for own in kernels for before, after in combinations(own, 2)]
    ends = torch.stack([torch.linalg.eigvalsh(growth)[[0, -1]] for growth in grown])
    parity = "odd" if odd else "even" if even else "neither"
    nesting, rounding = float(ends[:, 0].min()), 1e-15 * float(ends[:, 1].max())
    return KernelFacts(name, hermite, parity, _smallest(c_1), _smallest(k_0), nesting, rounding)


def _smallest(K: Tensor) -> float:
    values = torch.linalg.eigvalsh(K)
    return float(values[0] / values[-1])


@cache
def _known(name: Activation, seed: int) -> KernelFacts:
    return kernel_facts(name, seed)


def facts(evidence: Evidence) -> list[KernelFacts]:
    """What is known of every activation; all are neither linear nor polynomial."""
    return [_known(name, evidence.seed) for name in SIZES[evidence.size]]


def judge_definite(smallest: dict[str, float], start: dict[str, float], parity: dict[str, str]) -> Judged:
    """Whether Gram matrices of the activations are strictly positive definite; k_0 and the parity are reported too."""
    verdicts = [ClaimVerdict.of(value > NUMERICAL) for value in smallest.values()]
    numbers = ", ".join(f"{name} {value:.1e}" for name, value in smallest.items())
    singular = [name for name, value in smallest.items() if value <= NUMERICAL]
    at_start = [name for name, value in start.items() if value <= NUMERICAL]
    reading = f"Smallest eigenvalue of C_1 over the largest, points and antipodes: {numbers}."
    odd = [name for name in smallest if parity[name] == "odd"]
    why = {
        "of odd phi, where C(x, -x) = -C(x, x)": [name for name in singular if name in odd],
        "though phi is not odd": [name for name in singular if name not in odd],
    }
    reading += "".join(f" Singular {reason}: {', '.join(names)}." for reason, names in why.items() if names)
    verdict = some_of(verdicts)
    if verdict == ClaimVerdict.CONDITIONAL:
        reading += f" Condition: phi is {'not odd' if singular == odd else 'none of these'}."
    if at_start:
        reading += f" k_0 of Lemma 6 is singular for {', '.join(at_start)}."
    return Judged(within(min(smallest.values()), NUMERICAL), verdict, reading, (*smallest, "k_0 in place of C_1"))


def judge_hermite(coefficients: dict[str, list[float]]) -> Judged:
    """Whether no Hermite coefficient vanishes."""
    zero = {name: [k for k, c in enumerate(cs) if abs(c) < ZERO] for name, cs in coefficients.items()}
    verdicts = [ClaimVerdict.of(not degrees) for degrees in zero.values()]
    vanish = "; ".join(f"{name} at {', '.join(map(str, degrees))}" for name, degrees in zero.items() if degrees)
    smallest = min(abs(c) for cs in coefficients.values() for c in cs)
    reading = f"Coefficients vanish for {vanish}." if vanish else f"The smallest is {smallest:.1e}."
    return Judged(within(smallest, ZERO), some_of(verdicts), reading, tuple(coefficients))


def series_error(name: Activation) -> float:
    """Largest difference of ``sum c_k^2 rho^k`` from ``E phi phibar`` at correlations up to 1/2, where 40 terms do."""
    act, rho = activation(name), torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)
    powers = rho[:, None] ** torch.arange(41)
    unit = torch.ones_like(rho)
    return float((powers @ act.hermite(40).square() - act.moment(unit, unit, rho)).abs().max())


def judge_series(errors: dict[str, float]) -> Judged:
    """Whether the series is the dual activation to rounding."""
    verdicts = [ClaimVerdict.of(error < ZERO) for error in errors.values()]
    reading = "Largest difference: " + ", ".join(f"{name} {error:.1e}" for name, error in errors.items()) + "."
    return Judged(within(max(errors.values()), ZERO), some_of(verdicts), reading, tuple(errors))


def judge_nesting(smallest: dict[str, float], rounding: dict[str, float]) -> Judged:
    """Whether ``C_t' - C_t`` has no negative eigenvalue beyond rounding."""
    worst = min(smallest, key=lambda name: smallest[name])
    reading = (
        f"Smallest eigenvalue of all differences: {smallest[worst]:.1e} ({worst}), rounding {rounding[worst]:.1e}."
    )
    verdicts = [ClaimVerdict.of(value >= -rounding[name]) for name, value in smallest.items()]
    return Judged(within(smallest[worst], rounding[worst]), some_of(verdicts), reading, tuple(smallest))


def _definite(evidence: Evidence) -> Judged:
    every = facts(evidence)
    return judge_definite(
        {f.name: f.smallest_antipodal for f in every},
        {f.name: f.smallest_antipodal_0 for f in every},
        {f.name: f.parity for f in every},
    )


def _hermite(evidence: Evidence) -> Judged:
    return judge_hermite({f.name: f.hermite for f in facts(evidence)})


def _nesting(evidence: Evidence) -> Judged:
    every = facts(evidence)
    return judge_nesting({f.name: f.nesting for f in every}, {f.name: f.nesting_rounding for f in every})


CLAIMS = (
    Claim(
        "universal-kernel",
        "Prop. 4, Section 3.3",
        "If phi is Lipschitz and neither linear nor polynomial, C_t is strictly positive definite and its functions "
        "are dense on the sphere.",
        "Smallest eigenvalue of C_1 over the largest, on 24 points of a sphere and their antipodes; the "
        f"smallest over activations, with numerical error. Holds if all are above {NUMERICAL:g}; with a "
        "condition if some are.",
        _definite,
    ),
    Claim(
        "hermite-coefficients",
        "Proof of Lemma 6, Appendix D",
        "No Hermite coefficient of a nonlinear, non-polynomial activation is zero.",
        f"Smallest coefficient of degree 0 to 12 over the activations. Holds if no activation has one below {ZERO:g}; "
        "with a condition if some have none.",
        _hermite,
    ),
    Claim(
        "dual-series",
        "Appendix D",
        "The kernel E phi(u) phi(v) of a correlation rho is the power series whose coefficients are squared Hermite "
        "coefficients.",
        f"Largest difference for |rho| up to 1/2 over activations, 40 terms. Holds if all are below {ZERO:g}; with a "
        "condition if some are.",
        lambda evidence: judge_series({name: series_error(name) for name in SIZES[evidence.size]}),
    ),
    Claim(
        "nested-spaces",
        "Prop. 5, Section 3.3",
        "Function spaces grow with the horizon: that of C_t is contractively contained in that of C_t' for t < t'.",
        "Smallest eigenvalue of C_t' - C_t over t < t' in 0.25 .. 4 and points with and without antipodes, with "
        "rounding. Holds if for all activations it is not negative beyond rounding; with a condition if for some.",
        _nesting,
    ),
)
