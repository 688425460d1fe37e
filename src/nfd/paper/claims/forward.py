"""The first forward pass and its limit (Props. 2, 3 and 9, Sections 3.2 and 3.3, Appendix C.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nfd import ResNet, kernel
from nfd.core import Activation, Interval, derive, interval, log_slope
from nfd.limits import extrapolated
from nfd.paper.claims.claim import Claim, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import exponent, listed, over, rows, seeds, unit
from nfd.paper.claims.rules import FASTER, NEAR, fast, inside, near, together
from nfd.paper.distances import distance, relative
from nfd.paper.settings import Preset
from nfd.paper.start import at_start
from nfd.paper.untrained import covariances, errors_in_depth

RATE = -1.0  # of mean squares


@dataclass(frozen=True)
class Counts:
    """Networks on one Brownian path and their depths; networks for coordinates; for covariances, and their width;
    draws in law for the order of limits and for tails."""

    path: int
    depths: tuple[int, ...]
    coordinates: int
    covariance: int
    width: int
    draws: int


SIZES: dict[Preset, Counts] = {
    "smoke": Counts(3, (2, 4, 8), 3, 4, 32, 100),
    "cpu": Counts(12, (4, 8, 16, 32, 64), 192, 48, 256, 2000),
    "paper": Counts(48, (4, 8, 16, 32, 64), 768, 192, 256, 8000),
}
ACTIVATIONS: tuple[Activation, ...] = ("relu", "tanh")


@lru_cache(maxsize=8)
def path_errors(evidence: Evidence, name: Activation) -> tuple[tuple[int, ...], Tensor, Tensor]:
    """Depths, and mean squares [R, depths] of ``h_L`` and ``g_0`` against networks twice as deep on the same path."""
    counts, x = SIZES[evidence.size], rows(evidence, 2).float()
    own_seeds = seeds(evidence, f"path-{name}", counts.path)
    errors = [errors_in_depth(x, name, 64, seed, counts.depths) for seed in own_seeds]
    h, g = (torch.stack(part) for part in zip(*errors, strict=True))
    return counts.depths, h, g


@lru_cache(maxsize=8)
def coordinate_errors(evidence: Evidence, name: Activation) -> tuple[list[int], Tensor]:
    """Widths, and mean squares [R, widths, 2] of ``h_L`` and ``g_0`` minus their particles (``nfd.meters.start``)."""
    widths = [16, 64, 256] if evidence.size != "smoke" else [16, 32]
    x, count = unit(evidence), SIZES[evidence.size].coordinates

    def measured(n: int, seed: int) -> Tensor:
        net = ResNet(x.shape[1], 1, n, 8, activation=name, seed=seed, dtype=torch.float64)
        errors, _ = at_start(net, x)
        return torch.tensor([errors["h_particles"], errors["g_particles"]])

    return widths, over(evidence, f"coordinates-{name}", widths, count, measured)


def judge_rates(required: dict[str, Interval], besides: dict[str, Interval] | None = None) -> Judged:
    """Whether mean squares fall at least as 1 / size; ``besides`` are reported, and outside of the assumptions."""
    verdict = together(fast(power, RATE) for power in required.values())
    slowest = max(required.values(), key=lambda power: power.high)
    reading = f"Exponents of the mean square: {listed(required)}."
    if besides:
        reading += f" Outside of the assumptions: {listed(besides)}."
    return Judged(slowest, verdict, reading, (*required, *(besides or {})))


def _rates(evidence: Evidence) -> Judged:
    powers = {}
    for name in ACTIVATIONS:
        depths, h, _ = path_errors(evidence, name)
        powers[f"{name} in L"] = exponent(depths, h)
        widths, errors = coordinate_errors(evidence, name)
        powers[f"{name} in n"] = exponent(widths, errors[..., 0])
    return judge_rates(powers)


def output_moments(evidence: Evidence, L: int) -> tuple[Tensor, Tensor]:
    """Inputs [4, d], and second moments [R, 10] of outputs at alpha = 1, each a mean over as many outputs as units."""
    counts, x = SIZES[evidence.size], rows(evidence, 4)
    upper, moments = torch.triu_indices(4, 4), []
    for seed in seeds(evidence, "outputs", counts.covariance):
        net = ResNet(x.shape[1], counts.width, counts.width, L, activation="relu", regime="kernel", seed=seed)
        with torch.no_grad():
            f = net(x.float()).double()
        moments.append((f @ f.T / counts.width)[upper[0], upper[1]])
    return x, torch.stack(moments)


def off(moments: Tensor, expected: Tensor) -> Interval:
    """RMS difference of mean moments from expected ones beyond noise, over the RMS of those."""
    return relative(moments - expected, expected.expand_as(moments))


def judge_covariance(infinite: Interval, same: Interval, L: int) -> Judged:
    """Whether second moments agree with the kernel of infinite depth."""
    reading = f"Relative difference from C_T {infinite} at L = {L}, and from the kernel of that depth {same}."
    return Judged(infinite, near(infinite), reading, (f"the kernel of depth {L} in place of C_T",))


def _covariance(evidence: Evidence) -> Judged:
    L, (first, second) = 32, torch.triu_indices(4, 4)
    x, moments = output_moments(evidence, L)
    infinite, same = (off(moments, kernel(x, activation="relu", depth=depth)[first, second]) for depth in (math.inf, L))
    return judge_covariance(infinite, same, L)


def excess(samples: Tensor) -> Tensor:
    """Excess kurtosis of ``f`` from ``q = |h_L|^2 / n`` [R]: given h, f is Gaussian, so it is ``3 Var q / (E q)^2``."""
    return 3 * samples.var(0) / samples.mean(0).square()


def judge_gaussian(fall: dict[str, Interval], last: dict[str, Interval], width: int) -> Judged:
    """Whether the excess kurtosis falls with width to nothing."""
    verdict = together(inside(power, -math.inf, -0.5) for power in fall.values())
    reading = f"Excess kurtosis at width {width}: {listed(last)}; its exponents in n: {listed(fall)}."
    slowest = max(fall.values(), key=lambda power: power.high)
    return Judged(slowest, verdict, reading, tuple(fall))


def _gaussian(evidence: Evidence) -> Judged:
    counts, widths, x = SIZES[evidence.size], [16, 32, 64, 128], unit(evidence)
    fall: dict[str, Interval] = {}
    last: dict[str, Interval] = {}
    for name in ACTIVATIONS:
        draws = [
            covariances(x, name, n, 16, counts.draws // 2, derive(evidence.seed, "claim", "tails", name, n))
            for n in widths
        ]
        q = [draw[:, 0, 0] for draw in draws]
        fall[name] = interval(lambda *groups: log_slope(widths, torch.stack([excess(g) for g in groups])), *q)
        last[name] = interval(excess, q[-1])
    return judge_gaussian(fall, last, widths[-1])


def judge_order(apart: dict[str, Interval]) -> Judged:
    """Whether the two orders of limits differ by less than ``NEAR``."""
    verdict = together(near(value) for value in apart.values())
    reading = f"Depth first against width first, relative difference of second moments: {listed(apart)}."
    farthest = max(apart.values(), key=lambda value: value.high)
    return Judged(farthest, verdict, reading, tuple(apart))


def _order(evidence: Evidence) -> Judged:
    counts, x = SIZES[evidence.size], rows(evidence, 3)
    first, second = torch.triu_indices(3, 3)

    def at(name: Activation, n: int, L: int, count: int) -> Tensor:
        seed = derive(evidence.seed, "claim", "order", name, n, L)
        return covariances(x, name, n, L, count, seed)[:, first, second]

    def apart(name: Activation) -> Interval:
        wide, few = 16 * 32, counts.draws // 8
        deep = extrapolated(*(at(name, n, 64, counts.draws) for n in (32, 64)))
        return distance(deep, extrapolated(*(at(name, wide, L, few) for L in (8, 16))))

    return judge_order({name: apart(name) for name in ACTIVATIONS})


CLAIMS = (
    Claim(
        "forward-rate",
        "Prop. 2, Section 3.2; Props. 9, 11; Fig. 3",
        "Untrained features converge to a McKean-Vlasov SDE, coordinatewise in mean square at rates 1/L and 1/n.",
        "Exponents of the mean square of h_L minus that of a network twice as deep on one Brownian path of matrices, "
        f"and minus particles driven by the same noise in width; the slowest. Holds if all are at most "
        f"{RATE + FASTER}.",
        _rates,
    ),
    Claim(
        "output-covariance",
        "Prop. 3, Section 3.3",
        "At alpha = 1 outputs have the covariance C_T of the SDE in the limit.",
        "Second moments of outputs of untrained relu networks on four inputs against C_T: RMS difference beyond noise, "
        f"relative. Holds below {NEAR}.",
        _covariance,
    ),
    Claim(
        "output-gaussian",
        "Prop. 3, Section 3.3",
        "At alpha = 1 outputs become Gaussian in the limit.",
        "Exponent in n of the excess kurtosis of f, from |h_L|^2/n at L = 16 (exact law of the forward pass); the "
        "slowest over activations. Holds if all are below -1/2.",
        _gaussian,
    ),
    Claim(
        "limits-commute-at-start",
        "After Prop. 2, Section 3.2",
        "For untrained networks it makes no difference whether width or depth goes to infinity first.",
        "Second moments of h_L on three inputs, 2 K(2n) - K(n) at L = 64 and n = 32 against 2 K(2L) - K(L) at n = 512 "
        f"and L = 8: RMS difference beyond noise, relative. Holds if it is below {NEAR} for relu and tanh.",
        _order,
    ),
)
