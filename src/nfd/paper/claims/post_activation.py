"""Post-activation against pre-activation networks at initialisation (Prop. 1, Section 3.1, Appendix B)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nfd import ResNet
from nfd.core import Activation, Interval, Order, activation, gaussian_mean, mean
from nfd.paper.claims.claim import Claim, ClaimVerdict, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import exponent, listed, over, unit
from nfd.paper.claims.rules import FLAT, flat, inside, rescued, together, undecided
from nfd.paper.settings import Preset

C_1 = 1 / math.sqrt(2 * math.pi)


@dataclass(frozen=True)
class Counts:
    """Networks, their width and depths."""

    networks: int
    width: int
    depths: tuple[int, ...]


SIZES: dict[Preset, Counts] = {
    "smoke": Counts(4, 16, (4, 16)),
    "cpu": Counts(12, 64, (4, 16, 64, 256)),
    "paper": Counts(48, 64, (4, 16, 64, 256)),
}


@lru_cache(maxsize=16)
def _features(evidence: Evidence, order: Order, name: Activation, horizon: float = 1.0) -> Tensor:
    """``h_L`` [R, depths, n] of independent networks of every depth."""
    counts, x = SIZES[evidence.size], unit(evidence).float()

    def measured(L: int, seed: int) -> Tensor:
        net = ResNet(x.shape[1], 1, counts.width, L, horizon=horizon, activation=name, order=order, seed=seed)
        with torch.no_grad():
            return net.streams(x).h[-1, 0].double()

    return over(evidence, f"{order}-{name}-{horizon}", counts.depths, counts.networks, measured)


def bound(T: float, L: int, n: int) -> float:
    """The bound of Prop. 1 for relu and ``|x|^2 = d``."""
    return C_1 * (1 + C_1 * math.sqrt(T / (L * n))) ** L


def judge_bound(ratios: dict[str, Interval], width: int) -> Judged:
    """Whether means exceed the bound wherever measured; the value is the smallest ratio."""
    worst = min(ratios, key=lambda name: ratios[name].low)
    verdict = together(inside(ratio, 1.0, math.inf) for ratio in ratios.values())
    reading = (
        f"E h_L over the bound: {listed(ratios)}. The bound tends to c_1 = {C_1:.2f} at infinite width (here {width})."
    )
    return Judged(ratios[worst], verdict, reading, tuple(ratios))


def _bound(evidence: Evidence) -> Judged:
    counts, ratios = SIZES[evidence.size], {}
    for T in (1.0, 4.0):
        h = _features(evidence, "post", "relu", T).mean(-1)
        for index, L in enumerate(counts.depths):
            ratios[f"T = {T:g}, L = {L}"] = mean(h[:, index] / bound(T, L, counts.width))
    return judge_bound(ratios, counts.width)


def judge_debate(post: Interval, pre: Interval, variants: dict[str, tuple[Interval, Interval]]) -> Judged:
    """Whether post-activation features grow with depth and pre-activation ones do not, or do in a variant."""

    def differ(post: Interval, pre: Interval) -> ClaimVerdict:
        return together((grows(post), flat(pre)))

    numbers = "".join(f"; {name}: {first} and {second}" for name, (first, second) in variants.items())
    reading = f"RMS of h_L grows as L^p: post-activation p = {post}, pre-activation p = {pre}{numbers}."
    verdict, condition = rescued(differ(post, pre), {name: differ(*exponents) for name, exponents in variants.items()})
    return Judged(post, verdict, reading + condition, tuple(variants))


def judge_common(exponents: dict[str, Interval], covered: list[str]) -> Judged:
    """Whether the activations that Prop. 1 covers make post-activation networks grow; the others are reported."""
    within = {name: exponents[name] for name in covered}
    others = {name: value for name, value in exponents.items() if name not in covered}
    if not within:
        return undecided(f"None of these meets the condition of Prop. 1: {listed(exponents)}.")
    reading = f"Exponents of the RMS of h_L where Prop. 1 covers phi: {listed(within)}."
    if others:
        growing = [name for name, value in others.items() if grows(value) == ClaimVerdict.HOLDS]
        reading += f" Beyond it: {listed(others)}; of these grow: {', '.join(growing) or 'none'}."
    lowest = min(within.values(), key=lambda value: value.low)
    verdict = together(grows(value) for value in within.values())
    return Judged(lowest, verdict, reading, tuple(exponents))


def grows(power: Interval) -> ClaimVerdict:
    """Whether an exponent is above ``FLAT``."""
    return inside(power, FLAT, math.inf)


def dominant(name: Activation) -> bool:
    """Whether ``E phi(w x) >= c |x|`` with c > 0, or ``>= c > 0``, for x from 1e-3 to 1e3."""
    means = []
    for x in (1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1e3):
        value = gaussian_mean(lambda z, x=x: activation(name).phi(x * z), x * x)  # type: ignore[misc]
        means.append((x, float(value)))
    return all(value > 0.01 * x for x, value in means) or all(value > 0.01 for _, value in means)


def _debate(evidence: Evidence) -> Judged:
    def both(horizon: float) -> tuple[Interval, Interval]:
        return _growth(evidence, "post", "relu", horizon), _growth(evidence, "pre", "relu", horizon)

    return judge_debate(*both(1.0), {"T = 4": both(4.0)})


def _common(evidence: Evidence) -> Judged:
    names: tuple[Activation, ...] = ("relu", "gelu", "tanh", "erf")
    exponents: dict[str, Interval] = {name: _growth(evidence, "post", name) for name in names}
    return judge_common(exponents, [name for name in names if dominant(name)])


def _growth(evidence: Evidence, order: Order, name: Activation, horizon: float = 1.0) -> Interval:
    sizes = _features(evidence, order, name, horizon).square().mean(-1).sqrt()
    return exponent(SIZES[evidence.size].depths, sizes)


_NETWORKS = "Untrained networks of several depths on one input, |x|^2 = d"

CLAIMS = (
    Claim(
        "post-activation-bound",
        "Prop. 1, Section 3.1",
        "In post-activation relu networks the mean feature is at least c_1 (1 + c_1 sqrt(T/(L n)))^L |x|/sqrt(d), "
        "c_1 = 1/sqrt(2 pi).",
        f"{_NETWORKS}, T = 1 and 4: mean of h_L over the bound, the smallest over depths. Holds if all are 1 or more.",
        _bound,
    ),
    Claim(
        "pre-against-post",
        "Section 3.1; Fig. 1a",
        "With 1/sqrt(L) on the branch, post-activation features diverge with depth and pre-activation ones do not.",
        f"{_NETWORKS}, relu: exponent in L of the RMS of h_L. Holds if it is above {FLAT} for post- and within "
        f"{FLAT} of 0 for pre-activation; with a condition if so at T = 4 only.",
        _debate,
    ),
    Claim(
        "post-activation-common",
        "Sections 1 and 3.1; Appendix B",
        "Post-activation features can diverge with depth for common activations, those of positive dominance, as relu.",
        f"{_NETWORKS}: exponent in L of the RMS of h_L for four activations; the smallest of those with "
        f"E phi(w x) >= c_1 |x| + c_2, c_1 or c_2 positive. Holds if all of these are above {FLAT}.",
        _common,
    ),
)
