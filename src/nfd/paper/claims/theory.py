"""Regimes, the function spaces of kernels, and identities that hold to rounding or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import torch
from torch import Tensor

from nfd import SGD, ResNet
from nfd.core import Activation, Regime, activation, generator
from nfd.families import Streams
from nfd.limits import kernel
from nfd.paper.claims.claim import (
    FLAT,
    Claim,
    ClaimVerdict,
    Evidence,
    Judged,
    exponent,
    flat,
    over,
    rescued,
    rows,
    seeds,
    signed,
    some_of,
    span,
    together,
    within,
)
from nfd.paper.settings import Preset
from nfd.paper.two_limits import flows
from nfd.runs import train

# ---- The kernel regime and the feature-learning regime (Section 2)

# The base learning rate eta_c of this section.
SMALL_RATE = 0.1


@dataclass(frozen=True)
class RegimeCounts:
    """Networks, widths, steps and the rows of a batch."""

    networks: int
    widths: tuple[int, ...]
    steps: int
    batch: int


REGIME_SIZES: dict[Preset, RegimeCounts] = {
    "smoke": RegimeCounts(2, (16, 32), 2, 8),
    "cpu": RegimeCounts(64, (64, 128, 256, 512), 12, 32),
    "paper": RegimeCounts(256, (64, 128, 256, 512, 1024), 12, 32),
}


def feature_change(evidence: Evidence, regime: Regime, n: int, seed: int) -> Tensor:
    """Return the RMS of what training changes in ``h_L``, over its RMS before training.

    Networks are trained on the classes of the data set.
    """
    counts = REGIME_SIZES[evidence.size]
    data = evidence.dataset
    x = rows(evidence, counts.batch * counts.steps).float()
    y = data.labels[: counts.batch * counts.steps]
    net = ResNet(x.shape[1], len(data.classes), n, 4, regime=regime, seed=seed)
    optimizer = SGD(net.param_groups(SMALL_RATE))
    probe = x[:16]
    before = net.streams(probe).h[-1]
    batches = zip(x.view(-1, counts.batch, x.shape[1]), y.view(-1, counts.batch), strict=True)
    for _ in train(net, optimizer, batches, torch.nn.functional.cross_entropy):
        pass
    after = net.streams(probe).h[-1]
    return ((after - before).square().mean() / before.square().mean()).sqrt().double()


def _regime(evidence: Evidence, regime: Regime, expected: float) -> Judged:
    counts = REGIME_SIZES[evidence.size]

    def measured(n: int, seed: int) -> Tensor:
        return feature_change(evidence, regime, n, seed)

    samples = over(evidence, f"regime-{regime}", counts.widths, counts.networks, measured)
    power = exponent(counts.widths, samples)
    widest = exponent(counts.widths[-2:], samples[:, -2:])
    means = zip(counts.widths, samples.mean(0).tolist(), strict=True)
    numbers = ", ".join(f"{change:.3g} at n = {n}" for n, change in means)
    variant = "the two largest widths alone"
    verdict, condition = rescued(flat(power, expected), {variant: flat(widest, expected)})
    reading = (
        f"The relative change of h_L goes as n^{power}: {numbers}; by {variant}, as "
        f"n^{widest}.{condition}"
    )
    return Judged(power, verdict, reading, (*(f"n = {n}" for n in counts.widths), variant))


_TRAINED = "Exponent in n of the relative change of h_L after steps of SGD at depth 4"
_CONDITION = "with a condition if it is between the two largest widths only"

REGIMES = (
    Claim(
        "kernel-regime",
        "Section 2; Yang & Hu 2021",
        "With alpha = 1 and eta = eta_c training does not move features in the limit of width.",
        f"{_TRAINED}. Holds within {FLAT} of -1/2; {_CONDITION}.",
        lambda evidence: _regime(evidence, "kernel", -0.5),
    ),
    Claim(
        "feature-regime",
        "Sections 2 and 4.2; Yang & Hu 2021",
        "With alpha = 1/sqrt(n) and eta = eta_c n training moves features by order one at any "
        "width.",
        f"{_TRAINED}. Holds within {FLAT} of 0; {_CONDITION}.",
        lambda evidence: _regime(evidence, "feature", 0.0),
    ),
)


# ---- Statements on the function space of the infinite-depth kernel (Props. 4 and 5, Appendix D):
# no randomness

ZERO = 1e-9
# The numerical error of a relative eigenvalue, from kernel tables and rounding.
NUMERICAL = 1e-8

ACTIVATIONS: dict[Preset, tuple[Activation, ...]] = {
    "smoke": ("relu", "erf"),
    "cpu": ("relu", "gelu", "tanh", "erf"),
    "paper": ("relu", "gelu", "tanh", "erf"),
}


HORIZONS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class KernelFacts:
    """What was measured of the kernels of one activation.

    Attributes:
        hermite: normalised coefficients of phi(Z), degrees 0 to 12.
        odd: whether phi(-x) = -phi(x).
        smallest_antipodal: smallest eigenvalue of C_1, relative to the largest, on 24 random points
            of the sphere in R^6 with their antipodes.
        smallest_antipodal_0: smallest relative eigenvalue of ``k_0 = E phi phibar`` of Prop. 4 on
            these points.
        nesting: smallest eigenvalue of ``C_t' - C_t`` over all t < t' and points with and without
            antipodes.
        nesting_rounding: what rounding leaves in it, 1e-15 of the largest.
    """

    name: str
    hermite: list[float]
    odd: bool
    smallest_antipodal: float
    smallest_antipodal_0: float
    nesting: float
    nesting_rounding: float


@cache
def kernel_facts(name: Activation, seed: int = 0) -> KernelFacts:
    """Measure the kernels of one activation."""
    act = activation(name)
    hermite = act.hermite(12).tolist()
    odd = all(abs(h) < ZERO for h in hermite[::2])
    points = torch.randn(48, 6, generator=generator(seed, "sphere"), dtype=torch.float64)
    points = points / points.norm(dim=1, keepdim=True) * math.sqrt(6)
    antipodal = torch.cat([points[:24], -points[:24]])
    cosine = (antipodal @ antipodal.T / 6).clamp(-1, 1)
    k_0 = act.moment(torch.ones_like(cosine), torch.ones_like(cosine), cosine)
    c_1 = kernel(antipodal, activation=name, horizon=1.0)
    eigenvalues_1 = torch.linalg.eigvalsh(c_1)
    eigenvalues_0 = torch.linalg.eigvalsh(k_0)
    smallest: list[float] = []
    largest: list[float] = []
    for x in (points, antipodal):
        kernels = [kernel(x, activation=name, horizon=T) for T in HORIZONS]
        for before, after in combinations(kernels, 2):
            eigenvalues = torch.linalg.eigvalsh(after - before)
            smallest.append(float(eigenvalues[0]))
            largest.append(float(eigenvalues[-1]))
    return KernelFacts(
        name=name,
        hermite=hermite,
        odd=odd,
        smallest_antipodal=float(eigenvalues_1[0] / eigenvalues_1[-1]),
        smallest_antipodal_0=float(eigenvalues_0[0] / eigenvalues_0[-1]),
        nesting=min(smallest),
        nesting_rounding=1e-15 * max(largest),
    )


def facts(evidence: Evidence) -> list[KernelFacts]:
    """Measure the kernels of every activation; none is linear or polynomial."""
    return [kernel_facts(name, evidence.seed) for name in ACTIVATIONS[evidence.size]]


def _definite(evidence: Evidence) -> Judged:
    kernels = facts(evidence)
    singular = [f.name for f in kernels if f.smallest_antipodal <= NUMERICAL]
    odd = [f.name for f in kernels if f.odd]
    numbers = ", ".join(f"{f.name} {f.smallest_antipodal:.1e}" for f in kernels)
    reading = f"Smallest eigenvalue of C_1 over the largest, points and antipodes: {numbers}."
    why = {
        "of odd phi, where C(x, -x) = -C(x, x)": [name for name in singular if name in odd],
        "though phi is not odd": [name for name in singular if name not in odd],
    }
    for reason, names in why.items():
        if names:
            reading += f" Singular {reason}: {', '.join(names)}."
    verdict = some_of(ClaimVerdict.of(f.name not in singular) for f in kernels)
    if verdict == ClaimVerdict.CONDITIONAL:
        reading += f" Condition: phi is {'not odd' if singular == odd else 'none of these'}."
    singular_0 = [f.name for f in kernels if f.smallest_antipodal_0 <= NUMERICAL]
    if singular_0:
        reading += f" k_0 of Lemma 6 is singular for {', '.join(singular_0)}."
    smallest = within(min(f.smallest_antipodal for f in kernels), NUMERICAL)
    return Judged(smallest, verdict, reading, (*(f.name for f in kernels), "k_0 in place of C_1"))


def _hermite(evidence: Evidence) -> Judged:
    zeros: dict[str, list[int]] = {}
    sizes: list[float] = []
    for f in facts(evidence):
        zeros[f.name] = [k for k, c in enumerate(f.hermite) if abs(c) < ZERO]
        sizes += [abs(c) for c in f.hermite]
    vanish = [f"{name} at {', '.join(map(str, zero))}" for name, zero in zeros.items() if zero]
    reading = f"The smallest is {min(sizes):.1e}."
    if vanish:
        reading = f"Coefficients vanish for {'; '.join(vanish)}."
    verdict = some_of(ClaimVerdict.of(not zero) for zero in zeros.values())
    return Judged(within(min(sizes), ZERO), verdict, reading, tuple(zeros))


def series_error(name: Activation) -> float:
    """Return the largest difference of ``sum c_k^2 rho^k`` from ``E phi phibar``.

    Correlations rho are up to 1/2, where 40 terms are enough.
    """
    act = activation(name)
    rho = torch.linspace(-0.5, 0.5, 11, dtype=torch.float64)
    powers = rho[:, None] ** torch.arange(41)
    series = powers @ act.hermite(40).square()
    unit = torch.ones_like(rho)
    return float((series - act.moment(unit, unit, rho)).abs().max())


def _series(evidence: Evidence) -> Judged:
    errors = {name: series_error(name) for name in ACTIVATIONS[evidence.size]}
    verdict = some_of(ClaimVerdict.of(error < ZERO) for error in errors.values())
    numbers = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    largest = within(max(errors.values()), ZERO)
    return Judged(largest, verdict, f"Largest difference: {numbers}.", tuple(errors))


def _nesting(evidence: Evidence) -> Judged:
    kernels = facts(evidence)
    worst = min(kernels, key=lambda f: f.nesting)
    numbers = f"{worst.nesting:.1e} ({worst.name}), rounding {worst.nesting_rounding:.1e}"
    verdict = some_of(ClaimVerdict.of(f.nesting >= -f.nesting_rounding) for f in kernels)
    reading = f"Smallest eigenvalue of all differences: {numbers}."
    smallest = within(worst.nesting, worst.nesting_rounding)
    return Judged(smallest, verdict, reading, tuple(f.name for f in kernels))


KERNELS = (
    Claim(
        "universal-kernel",
        "Prop. 4, Section 3.3",
        "If phi is Lipschitz and neither linear nor polynomial, C_t is strictly positive definite "
        "and its functions are dense on the sphere.",
        "Smallest eigenvalue of C_1 over the largest, on 24 points of a sphere and their "
        "antipodes; the smallest over activations, with numerical error. Holds if all are above "
        f"{NUMERICAL:g}; with a condition if some are.",
        _definite,
    ),
    Claim(
        "hermite-coefficients",
        "Proof of Lemma 6, Appendix D",
        "No Hermite coefficient of a nonlinear, non-polynomial activation is zero.",
        "Smallest coefficient of degree 0 to 12 over the activations. Holds if no activation has "
        f"one below {ZERO:g}; with a condition if some have none.",
        _hermite,
    ),
    Claim(
        "dual-series",
        "Appendix D",
        "The kernel E phi(u) phi(v) of a correlation rho is the power series whose coefficients "
        "are squared Hermite coefficients.",
        "Largest difference for |rho| up to 1/2 over activations, 40 terms. Holds if all are "
        f"below {ZERO:g}; with a condition if some are.",
        _series,
    ),
    Claim(
        "nested-spaces",
        "Prop. 5, Section 3.3",
        "Function spaces grow with the horizon: that of C_t is contractively contained in that of "
        "C_t' for t < t'.",
        "Smallest eigenvalue of C_t' - C_t over t < t' in 0.25 .. 4 and points with and without "
        "antipodes, with rounding. Holds if for all activations it is not negative beyond "
        "rounding; with a condition if for some.",
        _nesting,
    ),
)


# ---- Identities of Section 4 and Appendices E and G that hold to rounding or not at all

EXACT = 1e-10
HORIZON = 1.5
ETA_C = 0.3


@dataclass(frozen=True)
class IdentityCounts:
    """Networks, their width and their steps."""

    networks: int
    width: int
    steps: int


IDENTITY_SIZES: dict[Preset, IdentityCounts] = {
    "smoke": IdentityCounts(2, 16, 3),
    "cpu": IdentityCounts(8, 64, 6),
    "paper": IdentityCounts(32, 96, 8),
}
DEPTHS = (4, 16)


@dataclass(frozen=True)
class Residuals:
    """What training added to the stream minus a formula, relative to it, per network [R].

    Attributes:
        depth: the depth L of the networks.
        printed: the residual of Eq. 4 with ``g_{l-1}``.
        derived: its residual with ``g_l``.
        factor: what was added over the drift ``b`` of Appendix G integrated over a layer.
    """

    depth: int
    printed: Tensor
    derived: Tensor
    factor: Tensor


def recursion(x: Tensor, width: int, seed: int, name: Activation) -> float:
    """Return how far Eq. 3 deviates from automatic differentiation, over the RMS of g.

    It is the largest deviation over layers and units.
    """
    net = ResNet(
        x.shape[1], 1, width, 4, horizon=HORIZON, activation=name, seed=seed, dtype=torch.float64
    )
    streams = flows(net, x)
    g = net.V.detach().expand(len(x), -1)
    layers = [g]
    scale = math.sqrt(HORIZON / (4 * width))
    for h, layer in zip(streams.h[:-1].flip(0), reversed(list(net.outer)), strict=True):
        g = g + scale * net.activation.slope(h) * (g @ layer.weight.detach())  # type: ignore[operator]
        layers.insert(0, g)
    deviation = torch.stack(layers) - streams.delta
    return float(deviation.abs().max() / streams.delta.square().mean().sqrt())


def _recursion(evidence: Evidence) -> Judged:
    counts = IDENTITY_SIZES[evidence.size]
    names: tuple[Activation, ...] = ("relu", "tanh", "gelu", "erf")
    x = rows(evidence, 3)
    deviations: list[Tensor] = []
    for name in names:
        networks = seeds(evidence, "recursion", counts.networks)
        of_name = [recursion(x, counts.width, seed, name) for seed in networks]
        deviations.append(torch.tensor(of_name))
    largest = {n: float(of_name.max()) for n, of_name in zip(names, deviations, strict=True)}
    verdict = together(ClaimVerdict.of(deviation < EXACT) for deviation in largest.values())
    parts = ", ".join(f"{name} {deviation:.1e}" for name, deviation in largest.items())
    return Judged(span(torch.cat(deviations)), verdict, f"Largest deviations: {parts}.", names)


def _squared_error(streams: Streams, y: Tensor) -> Tensor:
    return (streams.outputs.flatten() - y).square().div(2).sum()


def learned(
    x: Tensor, y: Tensor, width: int, depth: int, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what training added to the increments of the stream, and two sums of Eq. 4.

    The sums are with ``g_{l-1}`` and with ``g_l``; each of the three is [L, n].
    """
    net = ResNet(
        x.shape[1],
        1,
        width,
        depth,
        horizon=HORIZON,
        activation="tanh",
        seed=seed,
        dtype=torch.float64,
    )
    start = torch.stack([layer.weight.detach().clone() for layer in net.outer])  # type: ignore[operator]
    batches = zip(x[:-1, None], y[:-1], strict=True)
    phis = []
    deltas = []
    for step in train(net.streams, SGD(net.param_groups(ETA_C)), batches, _squared_error):
        phis.append(net.activation.phi(step.outputs.h[:-1, 0]))
        deltas.append(step.outputs.delta[:, 0])
    h = net.streams(x[-1:]).h[:, 0]
    phi = net.activation.phi(h[:-1])
    tau = HORIZON / depth
    added = h[1:] - h[:-1] - math.sqrt(tau / width) * torch.einsum("lij,lj->li", start, phi)
    products = torch.einsum("kln,ln->kl", torch.stack(phis), phi) / width
    g = torch.stack(deltas)

    def sum_over_steps(gradients: Tensor) -> Tensor:
        return -tau * ETA_C * torch.einsum("kl,kln->ln", products, gradients)

    return added, sum_over_steps(g[:, :-1]), sum_over_steps(g[:, 1:])


def residuals(evidence: Evidence, depth: int) -> Residuals:
    """Return the residuals of several networks of one depth."""
    counts = IDENTITY_SIZES[evidence.size]
    x, y = signed(evidence, counts.steps + 1)
    printed: list[Tensor] = []
    derived: list[Tensor] = []
    factors: list[Tensor] = []
    for seed in seeds(evidence, "learned", counts.networks):
        added, with_previous, with_same = learned(x, y, counts.width, depth, seed)
        printed.append((added - with_previous).norm() / added.norm())
        derived.append((added - with_same).norm() / added.norm())
        # The drift b carries one T / L itself; to integrate it over a layer gives another.
        integrated = with_same * HORIZON / depth
        factors.append((added * integrated).sum() / integrated.square().sum())
    return Residuals(depth, torch.stack(printed), torch.stack(derived), torch.stack(factors))


def _learned(evidence: Evidence) -> Judged:
    """Judge whether the sum of Eq. 4 is exact as printed, or with ``g_l``."""
    cases = [residuals(evidence, depth) for depth in DEPTHS]
    printed = torch.cat([r.printed for r in cases])
    derived = float(torch.cat([r.derived for r in cases]).max())
    by_depth = ", ".join(f"{float(r.printed.mean()):.2g} at L = {r.depth}" for r in cases)
    reading = (
        f"With g_(l-1) the residual is {by_depth}; with g_l, as Appendix E derives, {derived:.1e}."
    )
    verdict = ClaimVerdict.of(float(printed.max()) < EXACT)
    verdict, condition = rescued(verdict, {"to read g_l": ClaimVerdict.of(derived < EXACT)})
    tried: tuple[str, ...] = ("g_l in place of g_(l-1)", *(f"L = {L}" for L in DEPTHS))
    if verdict == ClaimVerdict.HOLDS:
        tried = ()
    return Judged(span(printed), verdict, reading + condition, tried)


def _factor(evidence: Evidence) -> Judged:
    """Judge whether the drift b integrates to what training adds.

    It may do so as printed, or with one factor T / L less.
    """
    cases = [residuals(evidence, depth) for depth in DEPTHS]
    by_depth = ", ".join(f"{float(r.factor.mean()):.3g} at L = {r.depth}" for r in cases)
    reading = f"The stream learns as much as b says times {by_depth}, T = {HORIZON:g}"

    def exactly(scale: Callable[[int], float]) -> bool:
        return all(float((r.factor * scale(r.depth) - 1).abs().max()) < EXACT for r in cases)

    value = span(torch.cat([r.factor for r in cases]))
    tried = ("one factor T/L less", *(f"L = {L}" for L in DEPTHS))
    if exactly(lambda L: 1.0):
        return Judged(value, ClaimVerdict.HOLDS, f"{reading}.")
    if exactly(lambda L: HORIZON / L):
        reading += ": exactly L/T. One factor T/L has to go."
        return Judged(value, ClaimVerdict.CONDITIONAL, reading, tried)
    return Judged(value, ClaimVerdict.FAILS, f"{reading}.", tried)


IDENTITIES = (
    Claim(
        "backward-recursion",
        "Eq. 3, Section 4.1",
        "Scaled gradients of the output in the residual stream follow a backward recursion in the "
        "transposed weights.",
        "Largest deviation of the recursion from automatic differentiation over the RMS of g, "
        "float64, four activations; brackets: smallest and largest over networks. Holds if all "
        f"are below {EXACT:g}.",
        _recursion,
    ),
    Claim(
        "learned-features",
        "Eq. 4, Section 4.2; Appendix E",
        "After k steps of SGD a layer adds two parts to the stream: that of its initial weights, "
        "and a sum over past gradients of layer l-1.",
        "The change of the stream's increments by training, minus the sum, relative, float64, "
        "tanh; brackets: smallest and largest over networks and depths. Holds if all are below "
        f"{EXACT:g}; with a condition if those with g_l are.",
        _learned,
    ),
    Claim(
        "drift-factor",
        "The drift b before Eq. 22, Appendix G",
        "The drift b of the stream at finite depth, to be integrated over dt, is T/L times a sum "
        "over past gradients.",
        "The change of the stream by training, over the drift's change in a layer, dt = T/L (its "
        "first sum, with g_l), float64; brackets: smallest and largest over networks and depths. "
        f"Holds if all are within {EXACT:g} of 1; with a condition if all are L/T.",
        _factor,
    ),
)
