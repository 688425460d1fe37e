"""The first backward pass and its limit (Props. 6, 12 and 13, Section 4.1, Appendix C.2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nfd import ResNet
from nfd.core import Activation, Feedback, Interval, activation, interval, mean, stream_variances
from nfd.limits import extrapolated
from nfd.paper.claims.claim import Claim, ClaimVerdict, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.forward import ACTIVATIONS, RATE, coordinate_errors, judge_rates, path_errors
from nfd.paper.claims.measuring import exponent, listed, rows, seeds, unit
from nfd.paper.claims.rules import FASTER, NEAR, near, together
from nfd.paper.distances import relative
from nfd.paper.settings import Preset
from nfd.paper.untrained import flows


@dataclass(frozen=True)
class Counts:
    """Networks, their width, and the smaller of two depths that are extrapolated."""

    networks: int
    width: int
    depth: int


SIZES: dict[Preset, Counts] = {
    "smoke": Counts(4, 64, 2),
    "cpu": Counts(24, 2048, 8),
    "paper": Counts(48, 4096, 16),
}


def _rates(evidence: Evidence) -> Judged:
    required: dict[str, Interval] = {}
    besides: dict[str, Interval] = {}
    cases: tuple[tuple[Activation, dict[str, Interval]], ...] = (("tanh", required), ("relu", besides))
    for name, where in cases:
        depths, _, g = path_errors(evidence, name)
        where[f"{name} in L"] = exponent(depths, g)
        widths, errors = coordinate_errors(evidence, name)
        where[f"{name} in n"] = exponent(widths, errors[..., 1])
    return judge_rates(required, besides)


@lru_cache(maxsize=32)
def backward_variances(evidence: Evidence, name: Activation, horizon: float) -> Tensor:
    """``2 E g_0^2`` of networks of depth 2L minus ``E g_0^2`` of depth L, along one path, [R]."""
    counts, x = SIZES[evidence.size], unit(evidence).float()

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

    own_seeds = seeds(evidence, f"variance-{name}-{horizon}", counts.networks)
    return torch.stack([extrapolated(at(counts.depth, seed), at(2 * counts.depth, seed)) for seed in own_seeds])


def predicted(name: Activation, horizon: float) -> float:
    """``P_0`` of Prop. 6 for ``|x|^2 = d``: ``-P' = E[phi'^2] P``, extrapolated from 48 and 96 steps."""
    return float(
        extrapolated(*(stream_variances(activation(name), torch.ones(()), L, horizon)[1][0] for L in (48, 96)))
    )


_ALIKE = 1 - 1e-12  # a correlation of one, to rounding
CASES: tuple[tuple[Activation, float], ...] = (("relu", 1.0), ("relu", 2.0), ("tanh", 1.0), ("gelu", 1.0))


def judge_variance(ratios: dict[str, Interval]) -> Judged:
    """Whether every measured variance is the predicted one within ``NEAR``; the value is the first."""
    verdict = together(near(value, 1.0) for value in ratios.values())
    reading = f"Measured over predicted: {listed(ratios)}."
    return Judged(next(iter(ratios.values())), verdict, reading, tuple(ratios))


def _variance(evidence: Evidence) -> Judged:
    return judge_variance(
        {f"{name}, T = {T:g}": mean(backward_variances(evidence, name, T) / predicted(name, T)) for name, T in CASES}
    )


def judge_printed(nonlinear: dict[str, Interval], linear: Interval) -> Judged:
    """Whether ``P_0 = e^T``, which the equation without phi' gives, is measured for nonlinear activations."""
    verdict = together(near(value, 1.0) for value in nonlinear.values())
    reading = f"E g_0^2 over e^T: {listed(nonlinear)}; identity {linear}."
    if near(linear, 1.0) == ClaimVerdict.HOLDS != verdict:
        reading += " Without phi' the equation is that of a linear network; Prop. 6 has phi'."
    first = next(iter(nonlinear.values()))
    return Judged(first, verdict, reading, (*nonlinear, "identity"))


def _printed(evidence: Evidence) -> Judged:
    def over(name: Activation, T: float) -> Interval:
        return mean(backward_variances(evidence, name, T) / math.exp(T))

    return judge_printed({f"{name}, T = {T:g}": over(name, T) for name, T in CASES}, over("identity", 1.0))


@dataclass(frozen=True)
class Moments:
    """Means over coordinates of functions of (h, g) [R, functions], and ``h_l.g_l / sqrt(n)`` at both ends [R, 2]."""

    functions: Tensor
    ends: Tensor


def moments_at_start(evidence: Evidence, feedback: Feedback, name: Activation) -> Moments:
    """Untrained networks with one kind of feedback."""
    counts, x = SIZES[evidence.size], rows(evidence, 3).float()
    functions, ends = [], []
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
        h, g = streams.h.double(), streams.delta.double()
        middle = counts.depth // 2
        values = [(g[0] ** 2), (h[0] * g[0]) ** 2, (h[middle] * g[middle]) ** 2, (h[-1] * g[0]) ** 2, g[0] * g[-1]]
        functions.append(torch.stack([value.mean(-1) for value in values]).flatten())
        both = (h[[0, -1], 0] * g[[0, -1], 0]).sum(-1) / math.sqrt(counts.width)
        ends.append(both)
    return Moments(torch.stack(functions), torch.stack(ends))


def correlation(ends: Tensor) -> Tensor:
    """Correlation of two columns [R, 2] whose means are zero."""
    return (ends[:, 0] * ends[:, 1]).mean() / ends.square().mean(0).prod().sqrt()


def correlated(ends: Tensor) -> Interval:
    """The correlation of two columns [R, 2] with its interval, by Fisher's ``z = atanh r``: r itself is skewed."""
    z_interval = interval(lambda e: correlation(e).clamp(-_ALIKE, _ALIKE).atanh(), ends)
    value, low, high = (math.tanh(z) for z in (z_interval.value, z_interval.low, z_interval.high))
    return Interval(value, (1 - value * value) * z_interval.stderr, low, high)


def judge_independence(apart: dict[str, Interval], shared: Interval, decoupled: Interval) -> Judged:
    """Whether the laws of (h, g) with shared and with independent weights agree within ``NEAR``."""
    differ = shared.low > decoupled.high or shared.high < decoupled.low
    reading = (
        f"Means of five functions of (h, g) differ by {listed(apart)}. Sums of order sqrt(n) "
        f"{'do differ' if differ else 'do not differ significantly'}: h_0.g_0 and h_L.g_L correlate "
        f"with {_hundredths(shared)} for shared weights, {_hundredths(decoupled)} for a copy."
    )
    verdict = together(near(value) for value in apart.values())
    farthest = max(apart.values(), key=lambda value: value.high)
    return Judged(farthest, verdict, reading, tuple(apart))


def _hundredths(r: Interval) -> str:
    """A correlation, which may be known to rounding."""
    return f"{r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"


def _independence(evidence: Evidence) -> Judged:
    shared, decoupled = (
        {name: moments_at_start(evidence, feedback, name) for name in ACTIVATIONS}
        for feedback in ("shared", "independent")
    )
    apart: dict[str, Interval] = {
        name: relative(shared[name].functions - decoupled[name].functions, decoupled[name].functions)
        for name in ACTIVATIONS
    }
    return judge_independence(apart, *(correlated(moments["relu"].ends) for moments in (shared, decoupled)))


_P_0 = "E g_0^2 of wide networks, extrapolated in depth along one path"

CLAIMS = (
    Claim(
        "backward-rate",
        "Prop. 6, Section 4.1; Props. 12, 14; Fig. 3",
        "If phi' is Lipschitz, untrained gradients converge to a McKean-Vlasov SDE in mean square at 1/L and 1/n.",
        "Exponents of the mean square of g_0 minus that of a network twice as deep on one Brownian path of matrices, "
        f"and minus particles driven by the same noise in width, tanh; the slowest. Holds if all are at most "
        f"{RATE + FASTER}.",
        _rates,
    ),
    Claim(
        "backward-variance",
        "Prop. 6, Section 4.1",
        "The variance P of untrained gradients grows backward as -P' = E[phi'(h)^2] P from P_T = 1; e^(T/2) for relu.",
        f"{_P_0}, over the solution; the value is for relu, T = 1. Holds if all are within {NEAR} of 1.",
        _variance,
    ),
    Claim(
        "backward-variance-printed",
        "Before Prop. 13, Appendix C.2",
        "Untrained gradients solve an SDE whose diffusion is the root of E g_t^2 alone, without phi'.",
        f"{_P_0}, over e^T, the solution of that SDE; the value is for relu, T = 1. Holds if all are within {NEAR} of "
        "1.",
        _printed,
    ),
    Claim(
        "independence-at-start",
        "Prop. 6, Section 4.1; Appendix C.2",
        "In untrained wide networks the backward weights may be taken to be independent of the forward ones.",
        "Means over coordinates of five functions of (h, g) on three inputs, networks against ones with a copy of the "
        f"weights backward: RMS difference beyond noise, relative; the larger of relu and tanh. Holds if both "
        f"are below {NEAR}.",
        _independence,
    ),
)
