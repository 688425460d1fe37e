"""Claims on untrained networks (Sections 3 to 5).

They are about orders of activation, the first forward and backward pass, and two-layer blocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nfd import ResNet, kernel
from nfd.core import (
    Activation,
    Feedback,
    Interval,
    Order,
    activation,
    derive,
    gaussian_mean,
    interval,
    log_slope,
    mean,
    stream_variances,
)
from nfd.limits import extrapolated
from nfd.paper.claims.claim import (
    FASTER,
    FLAT,
    NEAR,
    Claim,
    ClaimVerdict,
    Evidence,
    Judged,
    exponent,
    fast,
    flat,
    inside,
    itemised,
    near,
    over,
    rescued,
    rows,
    seeds,
    together,
    unit,
)
from nfd.paper.settings import Preset
from nfd.paper.streams import at_start
from nfd.paper.two_limits import covariances, distance, errors_in_depth, flows, relative

# ---- Post-activation against pre-activation networks at initialisation (Prop. 1, Section 3.1,
# Appendix B)

C_1 = 1 / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class PostCounts:
    """Networks, their width and depths."""

    networks: int
    width: int
    depths: tuple[int, ...]


POST_SIZES: dict[Preset, PostCounts] = {
    "smoke": PostCounts(4, 16, (4, 16)),
    "cpu": PostCounts(12, 64, (4, 16, 64, 256)),
    "paper": PostCounts(48, 64, (4, 16, 64, 256)),
}


@lru_cache(maxsize=16)
def _features(evidence: Evidence, order: Order, name: Activation, horizon: float = 1.0) -> Tensor:
    """Return ``h_L`` [R, depths, n] of independent networks of every depth."""
    counts = POST_SIZES[evidence.size]
    x = unit(evidence).float()

    def measured(L: int, seed: int) -> Tensor:
        net = ResNet(
            x.shape[1], 1, counts.width, L, horizon=horizon, activation=name, order=order, seed=seed
        )
        with torch.no_grad():
            return net.streams(x).h[-1, 0].double()

    return over(evidence, f"{order}-{name}-{horizon}", counts.depths, counts.networks, measured)


def bound(T: float, L: int, n: int) -> float:
    """Return the bound of Prop. 1 for relu and ``|x|^2 = d``."""
    return C_1 * (1 + C_1 * math.sqrt(T / (L * n))) ** L


def _bound(evidence: Evidence) -> Judged:
    counts = POST_SIZES[evidence.size]
    ratios = {}
    for T in (1.0, 4.0):
        h = _features(evidence, "post", "relu", T).mean(-1)
        for index, L in enumerate(counts.depths):
            ratios[f"T = {T:g}, L = {L}"] = mean(h[:, index] / bound(T, L, counts.width))
    worst = min(ratios.values(), key=lambda ratio: ratio.low)
    verdict = together(inside(ratio, 1.0, math.inf) for ratio in ratios.values())
    limit = f"The bound tends to c_1 = {C_1:.2f} at infinite width (here {counts.width})."
    return Judged(
        worst, verdict, f"E h_L over the bound: {itemised(ratios)}. {limit}", tuple(ratios)
    )


def grows(power: Interval) -> ClaimVerdict:
    """Judge whether an exponent is above ``FLAT``."""
    return inside(power, FLAT, math.inf)


def dominant(name: Activation) -> bool:
    """Return whether ``E phi(w x)`` is at least ``c |x|``, or at least c, with c > 0.

    Both are tried at x from 1e-3 to 1e3, with c = 0.01.
    """
    phi = activation(name).phi

    def mean_of_phi(x: float) -> float:
        return float(gaussian_mean(lambda z: phi(x * z), x * x))

    means = {x: mean_of_phi(x) for x in (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3)}
    is_linear = all(value > 0.01 * x for x, value in means.items())
    return is_linear or all(value > 0.01 for value in means.values())


def _debate(evidence: Evidence) -> Judged:
    """Judge whether post-activation features grow with depth and pre-activation ones do not.

    The condition is that they do so at T = 4 only.
    """
    post = _growth(evidence, "post", "relu")
    pre = _growth(evidence, "pre", "relu")
    post_4 = _growth(evidence, "post", "relu", horizon=4.0)
    pre_4 = _growth(evidence, "pre", "relu", horizon=4.0)
    reading = (
        f"RMS of h_L grows as L^p: post-activation p = {post}, pre-activation p = {pre}; T = 4: "
        f"{post_4} and {pre_4}."
    )
    verdict, condition = rescued(
        together((grows(post), flat(pre))), {"T = 4": together((grows(post_4), flat(pre_4)))}
    )
    return Judged(post, verdict, reading + condition, ("T = 4",))


def _common(evidence: Evidence) -> Judged:
    """Judge whether post-activation networks grow with the activations that Prop. 1 covers.

    What networks with other activations do is reported.
    """
    names: tuple[Activation, ...] = ("relu", "gelu", "tanh", "erf")
    exponents: dict[str, Interval] = {name: _growth(evidence, "post", name) for name in names}
    covered: dict[str, Interval] = {name: exponents[name] for name in names if dominant(name)}
    beyond = {name: value for name, value in exponents.items() if name not in covered}
    growing = [name for name, value in beyond.items() if grows(value) == ClaimVerdict.HOLDS]
    reading = f"Exponents of the RMS of h_L where Prop. 1 covers phi: {itemised(covered)}."
    reading += f" Beyond it: {itemised(beyond)}; of these grow: {', '.join(growing) or 'none'}."
    lowest = min(covered.values(), key=lambda value: value.low)
    return Judged(
        lowest, together(grows(value) for value in covered.values()), reading, tuple(exponents)
    )


def _growth(evidence: Evidence, order: Order, name: Activation, horizon: float = 1.0) -> Interval:
    """Return the exponent in L of the RMS of ``h_L``."""
    sizes = _features(evidence, order, name, horizon).square().mean(-1).sqrt()
    return exponent(POST_SIZES[evidence.size].depths, sizes)


_UNTRAINED = "Untrained networks of several depths on one input, |x|^2 = d"

POST_ACTIVATION = (
    Claim(
        "post-activation-bound",
        "Prop. 1, Section 3.1",
        "In post-activation relu networks the mean feature is at least c_1 (1 + c_1 sqrt(T/(L "
        "n)))^L |x|/sqrt(d), c_1 = 1/sqrt(2 pi).",
        f"{_UNTRAINED}, T = 1 and 4: mean of h_L over the bound, the smallest over depths. Holds "
        "if all are 1 or more.",
        _bound,
    ),
    Claim(
        "pre-against-post",
        "Section 3.1; Fig. 1a",
        "With 1/sqrt(L) on the branch, post-activation features diverge with depth and "
        "pre-activation ones do not.",
        f"{_UNTRAINED}, relu: exponent in L of the RMS of h_L. Holds if it is above {FLAT} for "
        f"post- and within {FLAT} of 0 for pre-activation; with a condition if so at T = 4 only.",
        _debate,
    ),
    Claim(
        "post-activation-common",
        "Sections 1 and 3.1; Appendix B",
        "Post-activation features can diverge with depth for common activations, those of positive "
        "dominance, as relu.",
        f"{_UNTRAINED}: exponent in L of the RMS of h_L for four activations; the smallest of "
        "those with E phi(w x) >= c_1 |x| + c_2, c_1 or c_2 positive. Holds if all of these are "
        f"above {FLAT}.",
        _common,
    ),
)


# ---- The first forward pass and its limit (Props. 2, 3 and 9, Sections 3.2 and 3.3, Appendix C.1)

# The exponent of mean squares.
RATE = -1.0


@dataclass(frozen=True)
class ForwardCounts:
    """How many networks each measurement of the first forward pass takes.

    Attributes:
        path: networks on one Brownian path. depths: their depths.
        coordinates: networks that are compared with particles.
        covariance: networks whose second moments are measured. width: their width.
        draws: draws in law for the order of limits and for tails.
    """

    path: int
    depths: tuple[int, ...]
    coordinates: int
    covariance: int
    width: int
    draws: int


FORWARD_SIZES: dict[Preset, ForwardCounts] = {
    "smoke": ForwardCounts(3, (2, 4, 8), 3, 4, 32, 100),
    "cpu": ForwardCounts(12, (4, 8, 16, 32, 64), 192, 48, 256, 2000),
    "paper": ForwardCounts(48, (4, 8, 16, 32, 64), 768, 192, 256, 8000),
}
ACTIVATIONS: tuple[Activation, ...] = ("relu", "tanh")


@lru_cache(maxsize=8)
def path_errors(evidence: Evidence, name: Activation) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """Return depths, and mean squares [R, depths] of ``h_L`` and of ``g_0``.

    The squares are of the difference from networks twice as deep on the same Brownian path.
    """
    counts = FORWARD_SIZES[evidence.size]
    x = rows(evidence, 2).float()
    of_h = []
    of_g = []
    for seed in seeds(evidence, f"path-{name}", counts.path):
        h, g = errors_in_depth(x, name, 64, seed, counts.depths)
        of_h.append(h)
        of_g.append(g)
    return counts.depths, torch.stack(of_h), torch.stack(of_g)


@lru_cache(maxsize=8)
def coordinate_errors(evidence: Evidence, name: Activation) -> tuple[list[int], Tensor]:
    """Return widths, and mean squares [R, widths, 2] of ``h_L`` and ``g_0`` minus their particles.

    ``nfd.paper.streams.at_start`` says what the particles are.
    """
    widths = [16, 64, 256] if evidence.size != "smoke" else [16, 32]
    x = unit(evidence)
    count = FORWARD_SIZES[evidence.size].coordinates

    def measured(n: int, seed: int) -> Tensor:
        net = ResNet(x.shape[1], 1, n, 8, activation=name, seed=seed, dtype=torch.float64)
        errors, _ = at_start(net, x)
        return torch.tensor([errors["h_particles"], errors["g_particles"]])

    return widths, over(evidence, f"coordinates-{name}", widths, count, measured)


def judge_rates(
    required: dict[str, Interval], besides: dict[str, Interval] | None = None
) -> Judged:
    """Judge whether mean squares fall at least as 1 / size.

    Exponents in ``besides`` are outside of the assumptions: they are only reported.
    """
    verdict = together(fast(power, RATE) for power in required.values())
    slowest = max(required.values(), key=lambda power: power.high)
    reading = f"Exponents of the mean square: {itemised(required)}."
    tried = list(required)
    if besides:
        reading += f" Outside of the assumptions: {itemised(besides)}."
        tried += besides
    return Judged(slowest, verdict, reading, tuple(tried))


def _forward_rates(evidence: Evidence) -> Judged:
    powers = {}
    for name in ACTIVATIONS:
        depths, h, _ = path_errors(evidence, name)
        powers[f"{name} in L"] = exponent(depths, h)
        widths, errors = coordinate_errors(evidence, name)
        powers[f"{name} in n"] = exponent(widths, errors[..., 0])
    return judge_rates(powers)


def output_moments(evidence: Evidence, L: int) -> tuple[Tensor, Tensor]:
    """Return inputs [4, d], and second moments [R, 10] of outputs at alpha = 1.

    Each moment is a mean over as many outputs as units.
    """
    counts = FORWARD_SIZES[evidence.size]
    x = rows(evidence, 4)
    first, second = torch.triu_indices(4, 4)
    moments = []
    for seed in seeds(evidence, "outputs", counts.covariance):
        net = ResNet(
            x.shape[1], counts.width, counts.width, L, activation="relu", regime="kernel", seed=seed
        )
        with torch.no_grad():
            f = net(x.float()).double()
        moments.append((f @ f.T / counts.width)[first, second])
    return x, torch.stack(moments)


def off(moments: Tensor, expected: Tensor) -> Interval:
    """Return the RMS difference of mean moments from expected ones, over the RMS of those.

    Noise is subtracted from it.
    """
    return relative(moments - expected, expected.expand_as(moments))


def _covariance(evidence: Evidence) -> Judged:
    L = 32
    first, second = torch.triu_indices(4, 4)
    x, moments = output_moments(evidence, L)

    def off_at(depth: float) -> Interval:
        return off(moments, kernel(x, activation="relu", depth=depth)[first, second])

    infinite = off_at(math.inf)
    same = off_at(L)
    reading = (
        f"Relative difference from C_T {infinite} at L = {L}, and from the kernel of that depth "
        f"{same}."
    )
    return Judged(infinite, near(infinite), reading, (f"the kernel of depth {L} in place of C_T",))


def excess(samples: Tensor) -> Tensor:
    """Return the excess kurtosis of ``f`` from ``q = |h_L|^2 / n`` [R].

    Given h, f is Gaussian, so the excess is ``3 Var q / (E q)^2``.
    """
    return 3 * samples.var(0) / samples.mean(0).square()


def _gaussian(evidence: Evidence) -> Judged:
    counts = FORWARD_SIZES[evidence.size]
    widths = [16, 32, 64, 128]
    x = unit(evidence)
    fall: dict[str, Interval] = {}
    last: dict[str, Interval] = {}

    def exponent_of_excess(*groups: Tensor) -> Tensor:
        return log_slope(widths, torch.stack([excess(q) for q in groups]))

    for name in ACTIVATIONS:
        by_width = []
        for n in widths:
            seed = derive(evidence.seed, "claim", "tails", name, n)
            draws = covariances(x, name, n, 16, counts.draws // 2, seed)
            by_width.append(draws[:, 0, 0])
        fall[name] = interval(exponent_of_excess, *by_width)
        last[name] = interval(excess, by_width[-1])
    verdict = together(inside(power, -math.inf, -0.5) for power in fall.values())
    reading = (
        f"Excess kurtosis at width {widths[-1]}: {itemised(last)}; its exponents in n: "
        f"{itemised(fall)}."
    )
    return Judged(max(fall.values(), key=lambda power: power.high), verdict, reading, tuple(fall))


def _order(evidence: Evidence) -> Judged:
    counts = FORWARD_SIZES[evidence.size]
    x = rows(evidence, 3)
    first, second = torch.triu_indices(3, 3)

    def at(name: Activation, n: int, L: int, count: int) -> Tensor:
        seed = derive(evidence.seed, "claim", "order", name, n, L)
        return covariances(x, name, n, L, count, seed)[:, first, second]

    def apart(name: Activation) -> Interval:
        few = counts.draws // 8
        depth_first = extrapolated(at(name, 32, 64, counts.draws), at(name, 64, 64, counts.draws))
        width_first = extrapolated(at(name, 512, 8, few), at(name, 512, 16, few))
        return distance(depth_first, width_first)

    differences: dict[str, Interval] = {name: apart(name) for name in ACTIVATIONS}
    verdict = together(near(value) for value in differences.values())
    largest = max(differences.values(), key=lambda value: value.high)
    reading = (
        "Depth first against width first, relative difference of second moments: "
        f"{itemised(differences)}."
    )
    return Judged(largest, verdict, reading, tuple(differences))


FORWARD = (
    Claim(
        "forward-rate",
        "Prop. 2, Section 3.2; Props. 9, 11; Fig. 3",
        "Untrained features converge to a McKean-Vlasov SDE, coordinatewise in mean square at "
        "rates 1/L and 1/n.",
        "Exponents of the mean square of h_L minus that of a network twice as deep on one Brownian "
        "path of matrices, and minus particles driven by the same noise in width; the slowest. "
        f"Holds if all are at most {RATE + FASTER}.",
        _forward_rates,
    ),
    Claim(
        "output-covariance",
        "Prop. 3, Section 3.3",
        "At alpha = 1 outputs have the covariance C_T of the SDE in the limit.",
        "Second moments of outputs of untrained relu networks on four inputs against C_T: RMS "
        f"difference beyond noise, relative. Holds below {NEAR}.",
        _covariance,
    ),
    Claim(
        "output-gaussian",
        "Prop. 3, Section 3.3",
        "At alpha = 1 outputs become Gaussian in the limit.",
        "Exponent in n of the excess kurtosis of f, from |h_L|^2/n at L = 16 (exact law of the "
        "forward pass); the slowest over activations. Holds if all are below -1/2.",
        _gaussian,
    ),
    Claim(
        "limits-commute-at-start",
        "After Prop. 2, Section 3.2",
        "For untrained networks it makes no difference whether width or depth goes to infinity "
        "first.",
        "Second moments of h_L on three inputs, 2 K(2n) - K(n) at L = 64 and n = 32 against 2 "
        "K(2L) - K(L) at n = 512 and L = 8: RMS difference beyond noise, relative. Holds if it is "
        f"below {NEAR} for relu and tanh.",
        _order,
    ),
)


# ---- The first backward pass and its limit (Props. 6, 12 and 13, Section 4.1, Appendix C.2)


@dataclass(frozen=True)
class BackwardCounts:
    """Networks, their width, and the smaller of two depths that are extrapolated."""

    networks: int
    width: int
    depth: int


BACKWARD_SIZES: dict[Preset, BackwardCounts] = {
    "smoke": BackwardCounts(4, 64, 2),
    "cpu": BackwardCounts(24, 2048, 8),
    "paper": BackwardCounts(48, 4096, 16),
}


def _backward_rates(evidence: Evidence) -> Judged:
    """Judge the rates of convergence of tanh networks, and report the rates of relu networks.

    phi' of relu is not Lipschitz.
    """
    return judge_rates(_rates_of_g(evidence, "tanh"), _rates_of_g(evidence, "relu"))


def _rates_of_g(evidence: Evidence, name: Activation) -> dict[str, Interval]:
    """Return the exponents of the mean square of ``g_0`` in depth and in width."""
    depths, _, g = path_errors(evidence, name)
    widths, errors = coordinate_errors(evidence, name)
    return {
        f"{name} in L": exponent(depths, g),
        f"{name} in n": exponent(widths, errors[..., 1]),
    }


@lru_cache(maxsize=32)
def backward_variances(evidence: Evidence, name: Activation, horizon: float) -> Tensor:
    """Return ``2 E g_0^2`` of depth 2L minus ``E g_0^2`` of depth L, along one path, [R]."""
    counts = BACKWARD_SIZES[evidence.size]
    x = unit(evidence).float()

    def at(L: int, seed: int) -> Tensor:
        net = ResNet(
            x.shape[1],
            1,
            counts.width,
            L,
            horizon=horizon,
            activation=name,
            weights="deferred",
            seed=seed,
            coupled=True,
        )
        streams = flows(net, x)
        return streams.delta[0].double().square().mean()

    variances = []
    for seed in seeds(evidence, f"variance-{name}-{horizon}", counts.networks):
        variances.append(extrapolated(at(counts.depth, seed), at(2 * counts.depth, seed)))
    return torch.stack(variances)


def predicted(name: Activation, horizon: float) -> float:
    """Return ``P_0`` of Prop. 6 for ``|x|^2 = d``, which solves ``-P' = E[phi'^2] P``.

    It is extrapolated from 48 and 96 steps.
    """

    def variance(L: int) -> Tensor:
        _, P = stream_variances(activation(name), torch.ones(()), L, horizon)
        return P[0]

    return float(extrapolated(variance(48), variance(96)))


# A correlation of one, to rounding.
_ALIKE = 1 - 1e-12
CASES: tuple[tuple[Activation, float], ...] = (
    ("relu", 1.0),
    ("relu", 2.0),
    ("tanh", 1.0),
    ("gelu", 1.0),
)


def _variance(evidence: Evidence) -> Judged:
    ratios: dict[str, Interval] = {}
    for name, T in CASES:
        measured = backward_variances(evidence, name, T)
        ratios[f"{name}, T = {T:g}"] = mean(measured / predicted(name, T))
    verdict = together(near(value, 1.0) for value in ratios.values())
    reading = f"Measured over predicted: {itemised(ratios)}."
    first, *_ = ratios.values()
    return Judged(first, verdict, reading, tuple(ratios))


def _printed(evidence: Evidence) -> Judged:
    """Judge whether nonlinear activations give ``P_0 = e^T``, as the equation without phi' says."""

    def over_printed(name: Activation, T: float) -> Interval:
        return mean(backward_variances(evidence, name, T) / math.exp(T))

    nonlinear = {f"{name}, T = {T:g}": over_printed(name, T) for name, T in CASES}
    linear = over_printed("identity", 1.0)
    verdict = together(near(value, 1.0) for value in nonlinear.values())
    reading = f"E g_0^2 over e^T: {itemised(nonlinear)}; identity {linear}."
    if near(linear, 1.0) == ClaimVerdict.HOLDS and verdict != ClaimVerdict.HOLDS:
        reading += " Without phi' the equation is that of a linear network; Prop. 6 has phi'."
    first, *_ = nonlinear.values()
    return Judged(first, verdict, reading, (*nonlinear, "identity"))


@dataclass(frozen=True)
class Moments:
    """Moments of (h, g) of untrained networks.

    Attributes:
        functions: means over coordinates of functions of (h, g) [R, functions].
        ends: ``h_l.g_l / sqrt(n)`` at l = 0 and l = L [R, 2].
    """

    functions: Tensor
    ends: Tensor


def moments_at_start(evidence: Evidence, feedback: Feedback, name: Activation) -> Moments:
    """Return the moments of untrained networks with one kind of feedback."""
    counts = BACKWARD_SIZES[evidence.size]
    x = rows(evidence, 3).float()
    functions = []
    ends = []
    for seed in seeds(evidence, "independence", counts.networks):
        net = ResNet(
            x.shape[1],
            1,
            counts.width,
            counts.depth,
            activation=name,
            weights="deferred",
            feedback=feedback,
            seed=seed,
        )
        streams = flows(net, x)
        h = streams.h.double()
        g = streams.delta.double()
        middle = counts.depth // 2
        values = [
            (g[0] ** 2),
            (h[0] * g[0]) ** 2,
            (h[middle] * g[middle]) ** 2,
            (h[-1] * g[0]) ** 2,
            g[0] * g[-1],
        ]
        functions.append(torch.stack([value.mean(-1) for value in values]).flatten())
        both = (h[[0, -1], 0] * g[[0, -1], 0]).sum(-1) / math.sqrt(counts.width)
        ends.append(both)
    return Moments(torch.stack(functions), torch.stack(ends))


def correlation(ends: Tensor) -> Tensor:
    """Return the correlation of two columns [R, 2] whose means are zero."""
    return (ends[:, 0] * ends[:, 1]).mean() / ends.square().mean(0).prod().sqrt()


def correlated(ends: Tensor) -> Interval:
    """Return the correlation of two columns [R, 2] with its interval.

    The interval is by Fisher's ``z = atanh r``, as r itself is skewed.
    """
    z = interval(lambda e: correlation(e).clamp(-_ALIKE, _ALIKE).atanh(), ends)
    r = math.tanh(z.value)
    return Interval(r, (1 - r * r) * z.stderr, math.tanh(z.low), math.tanh(z.high))


def _independence(evidence: Evidence) -> Judged:
    """Judge whether shared and independent weights give the same law of (h, g) within ``NEAR``."""
    shared = {name: moments_at_start(evidence, "shared", name) for name in ACTIVATIONS}
    copied = {name: moments_at_start(evidence, "independent", name) for name in ACTIVATIONS}
    apart: dict[str, Interval] = {}
    for name in ACTIVATIONS:
        expected = copied[name].functions
        apart[name] = relative(shared[name].functions - expected, expected)
    of_shared = correlated(shared["relu"].ends)
    of_copied = correlated(copied["relu"].ends)
    is_apart = of_shared.low > of_copied.high or of_shared.high < of_copied.low
    differ = "do differ" if is_apart else "do not differ significantly"
    reading = (
        f"Means of five functions of (h, g) differ by {itemised(apart)}. Sums of order sqrt(n) "
        f"{differ}: h_0.g_0 and h_L.g_L correlate with {_two_digits(of_shared)} for shared "
        f"weights, {_two_digits(of_copied)} for a copy."
    )
    farthest = max(apart.values(), key=lambda value: value.high)
    verdict = together(near(value) for value in apart.values())
    return Judged(farthest, verdict, reading, tuple(apart))


def _two_digits(r: Interval) -> str:
    """Show a correlation with two digits, as its error may be zero to rounding."""
    return f"{r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"


_P_0 = "E g_0^2 of wide networks, extrapolated in depth along one path"

BACKWARD = (
    Claim(
        "backward-rate",
        "Prop. 6, Section 4.1; Props. 12, 14; Fig. 3",
        "If phi' is Lipschitz, untrained gradients converge to a McKean-Vlasov SDE in mean square "
        "at 1/L and 1/n.",
        "Exponents of the mean square of g_0 minus that of a network twice as deep on one Brownian "
        "path of matrices, and minus particles driven by the same noise in width, tanh; the "
        f"slowest. Holds if all are at most {RATE + FASTER}.",
        _backward_rates,
    ),
    Claim(
        "backward-variance",
        "Prop. 6, Section 4.1",
        "The variance P of untrained gradients grows backward as -P' = E[phi'(h)^2] P from P_T = "
        "1; e^(T/2) for relu.",
        f"{_P_0}, over the solution; the value is for relu, T = 1. Holds if all are within {NEAR} "
        "of 1.",
        _variance,
    ),
    Claim(
        "backward-variance-printed",
        "Before Prop. 13, Appendix C.2",
        "Untrained gradients solve an SDE whose diffusion is the root of E g_t^2 alone, without "
        "phi'.",
        f"{_P_0}, over e^T, the solution of that SDE; the value is for relu, T = 1. Holds if all "
        f"are within {NEAR} of 1.",
        _printed,
    ),
    Claim(
        "independence-at-start",
        "Prop. 6, Section 4.1; Appendix C.2",
        "In untrained wide networks the backward weights may be taken to be independent of the "
        "forward ones.",
        "Means over coordinates of five functions of (h, g) on three inputs, networks against ones "
        "with a copy of the weights backward: RMS difference beyond noise, relative; the larger of "
        f"relu and tanh. Holds if both are below {NEAR}.",
        _independence,
    ),
)


# ---- Untrained networks with two-layer blocks (Section 5, Appendix H)


@dataclass(frozen=True)
class BlockCounts:
    """Networks, the sizes along each axis, and the size at which the other axis stays."""

    networks: int
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    width: int
    depth: int


BLOCK_SIZES: dict[Preset, BlockCounts] = {
    "smoke": BlockCounts(3, (2, 4), (16, 32), 16, 2),
    "cpu": BlockCounts(12, (8, 16, 32, 64, 128), (64, 128, 256, 512), 128, 4),
    "paper": BlockCounts(48, (8, 16, 32, 64, 128), (64, 128, 256, 512, 1024), 256, 4),
}
NAMES = ("h_L", "g_0", "W_1 h / sqrt(n)", "W_2' g / sqrt(n)", "gradient of W_1", "gradient of W_2")


def sizes_of(x: Tensor, n: int, L: int, seed: int, name: Activation) -> Tensor:
    """Return the RMS of everything in ``NAMES``.

    Gradients are ``sqrt(n) / alpha df/dW``, in the Frobenius norm over sqrt(n).
    """
    net = ResNet(x.shape[1], 1, n, L, block="two-layer", activation=name, seed=seed)
    streams = flows(net, x)
    h = streams.h[:, 0]
    g = streams.delta[:, 0]
    assert net.inner is not None
    backward = []
    norms_of_inner = []
    norms_of_outer = []
    for k, (inner, outer) in enumerate(zip(net.inner, net.outer, strict=True)):
        backward.append(outer.weight.detach().T @ g[k + 1])  # type: ignore[operator]
        norms_of_inner.append(inner.weight.grad.norm())  # type: ignore[operator,union-attr]
        norms_of_outer.append(outer.weight.grad.norm())  # type: ignore[operator,union-attr]
    scale = streams.gradient_scale / math.sqrt(n)
    vectors = (
        h[-1],
        g[0],
        torch.stack(streams.inner).detach(),
        torch.stack(backward) / math.sqrt(n),
        scale * torch.stack(norms_of_inner),
        scale * torch.stack(norms_of_outer),
    )
    return torch.stack([v.double().square().mean().sqrt() for v in vectors])


@lru_cache(maxsize=8)
def exponents(evidence: Evidence, axis: str, name: Activation) -> dict[str, Interval]:
    """Return the exponents of everything in ``NAMES`` in the depth or in the width."""
    counts = BLOCK_SIZES[evidence.size]
    x = unit(evidence).float()
    along = counts.depths if axis == "depth" else counts.widths

    def measured(size: int, seed: int) -> Tensor:
        if axis == "depth":
            return sizes_of(x, counts.width, size, seed, name)
        return sizes_of(x, size, counts.depth, seed, name)

    samples = over(evidence, f"two-layer-{axis}-{name}", along, counts.networks, measured)
    return {moment: exponent(along, samples[..., index]) for index, moment in enumerate(NAMES)}


def _of(evidence: Evidence, axis: str, names: tuple[str, ...], expected: float) -> Judged:
    """Judge whether every exponent is the expected one within ``FLAT``.

    The value is the farthest; the condition is that they are so with tanh only.
    """
    relu = {moment: exponents(evidence, axis, "relu")[moment] for moment in names}
    tanh = {moment: exponents(evidence, axis, "tanh")[moment] for moment in names}

    def as_expected(powers: dict[str, Interval]) -> ClaimVerdict:
        return together(flat(value, expected) for value in powers.values())

    farthest = max(relu.values(), key=lambda value: abs(value.value - expected))
    verdict, condition = rescued(as_expected(relu), {"tanh": as_expected(tanh)})
    reading = (
        f"Exponents: {itemised(relu)}; said: {expected:g}. With tanh: {itemised(tanh)}.{condition}"
    )
    return Judged(farthest, verdict, reading, ("tanh",))


_NETWORKS = "Untrained relu networks with two-layer blocks on one input"
_CONDITION = "with a condition if only those of tanh networks are"

TWO_LAYER = (
    Claim(
        "two-layer-stable",
        "Eqs. 23, 24, Appendix H",
        "With two-layer blocks and 1/sqrt(L), untrained features and gradients keep their size at "
        "any depth.",
        f"{_NETWORKS}: exponents in L of the RMS of h_L and g_0. Holds if both are within {FLAT} "
        f"of 0; {_CONDITION}.",
        lambda evidence: _of(evidence, "depth", NAMES[:2], 0.0),
    ),
    Claim(
        "two-layer-factors",
        "Eq. 25, Appendix H",
        "The inner matrix times features, and the outer matrix times gradients, are of order one "
        "in width.",
        f"{_NETWORKS}: exponents in n of the RMS of W_1 h/sqrt(n) and W_2' g/sqrt(n). Holds if "
        f"both are within {FLAT} of 0; {_CONDITION}.",
        lambda evidence: _of(evidence, "width", NAMES[2:4], 0.0),
    ),
    Claim(
        "two-layer-gradients",
        "Eqs. 26, 28, Appendix H",
        "Gradients of the inner and of the outer matrices both fall with depth as 1/sqrt(L).",
        f"{_NETWORKS}: exponents in L of the Frobenius norms of sqrt(n)/alpha df/dW. Holds if both "
        f"are within {FLAT} of -1/2; {_CONDITION}.",
        lambda evidence: _of(evidence, "depth", NAMES[4:], -0.5),
    ),
)
