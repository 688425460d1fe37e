"""Corollary 1 by the first step of gradient descent, where the limits are known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.claims.claim import Claim, Judged, inside
from nfd.claims.evidence import Evidence
from nfd.claims.measuring import listed, ratio, seeds, unit
from nfd.core.names import Activation, Size
from nfd.core.statistics import Interval
from nfd.limits.kernel import kernel
from nfd.limits.two_limits import first_step

NEAR = 0.05


@dataclass(frozen=True)
class Counts:
    """Networks of each kind, their width, and depths; the largest is that of the variants."""

    networks: int
    width: int
    depths: tuple[int, ...]


SIZES: dict[Size, Counts] = {
    "smoke": Counts(3, 64, (1, 2)),
    "cpu": Counts(16, 2048, (4, 16, 64)),
    "paper": Counts(32, 4096, (4, 16, 64)),
}
VARIANTS: tuple[tuple[Activation, float], ...] = (("tanh", 1.0), ("relu", 0.5), ("relu", 4.0))


def change_ratio(
    evidence: Evidence, L: int, name: Activation = "relu", horizon: float = 1.0, more: int = 1
) -> Interval:
    """What one small step does to the output, standard networks over decoupled ones."""
    counts, x = SIZES[evidence.size], unit(evidence)
    both = []
    for feedback in ("shared", "independent"):
        each = seeds(evidence, f"step-{feedback}-{L}-{name}-{horizon}-{more}", counts.networks)
        changes = [
            first_step(
                x,
                more * counts.width,
                L,
                feedback,
                seed,
                weights="deferred",
                horizon=horizon,
                activation=name,
            )
            for seed in each
        ]
        both.append(torch.stack(changes))
    return ratio(*both)


def formula(x: Tensor, L: int, name: Activation, horizon: float) -> float:
    """The same ratio at infinite width: the NTK over twice the NNGP kernel."""
    tangent, twice = (
        kernel(x, kind=kind, activation=name, horizon=horizon, depth=L) for kind in ("ntk", "independent-feedback")
    )
    return float(tangent / twice)


def judge_ratio(depths: dict[int, Interval], variants: dict[str, Interval], said: str) -> Judged:
    """Whether the ratio is 1 at the largest depth, or is in some variant, or goes elsewhere."""
    last = depths[max(depths)]
    shown = listed({f"L = {L}": found for L, found in depths.items()})
    verdict = inside(last, 1 - NEAR, 1 + NEAR)
    same = [name for name, found in variants.items() if inside(found, 1 - NEAR, 1 + NEAR) == "holds"]
    reading = f"Standard over decoupled: {shown}; {said}. At L = {max(depths)}: {listed(variants)}."
    if verdict == "does not hold" and same:
        return Judged(last, "holds with a condition", f"{reading} It is 1 for {', '.join(same)}.", tuple(variants))
    return Judged(last, verdict, reading, tuple(variants) if verdict == "does not hold" else ())


def _corollary(evidence: Evidence) -> Judged:
    depths, x = SIZES[evidence.size].depths, unit(evidence)
    found = {L: change_ratio(evidence, L) for L in depths}
    variants = {
        f"{name}, T = {T:g} ({formula(x, depths[-1], name, T):.3f} by the kernels)": change_ratio(
            evidence, depths[-1], name, T
        )
        for name, T in VARIANTS
    }
    variants["twice the width"] = change_ratio(evidence, depths[-1], more=2)
    exact = ", ".join(f"{1 + 0.25 / (1 + 0.5 / L):.3f}" for L in depths)
    return judge_ratio(found, variants, f"1 + (T/4) / (1 + T/(2L)), by the NTK, is {exact}, not 1")


CLAIMS = (
    Claim(
        "corollary-1-first-step",
        "Corollary 1, Section 4.2",
        "At infinite depth it makes no difference whether the backward pass uses an independent copy of the weights.",
        "Change of an output by a small step on its input, |x|^2 = d: wide standard networks over decoupled, relu, "
        f"at the largest depth. Holds within {NEAR} of 1.",
        _corollary,
    ),
)
