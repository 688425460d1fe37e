"""Statements on the function space of the infinite-depth kernel (Props. 4 and 5, Appendix D): no randomness."""

from __future__ import annotations

from functools import cache

import torch

from nfd.core import Activation, activation
from nfd.limits import KernelFacts, kernel_facts
from nfd.paper.claims.claim import Claim, ClaimVerdict, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import within
from nfd.paper.claims.rules import some_of
from nfd.paper.settings import Preset

ZERO = 1e-9
NUMERICAL = 1e-8  # of a relative eigenvalue: errors of kernel tables and rounding

SIZES: dict[Preset, tuple[Activation, ...]] = {
    "smoke": ("relu", "erf"),
    "cpu": ("relu", "gelu", "tanh", "erf"),
    "paper": ("relu", "gelu", "tanh", "erf"),
}


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
