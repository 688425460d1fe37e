"""Corollary 1 by the first step of gradient descent, where the limits are known exactly."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nfd import kernel
from nfd.core import Activation, Interval
from nfd.paper.claims.claim import Claim, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import listed, ratio, seeds, unit
from nfd.paper.claims.rules import NEAR, near, rescued
from nfd.paper.settings import Preset
from nfd.paper.two_limits import first_step


@dataclass(frozen=True)
class Counts:
    """Networks of each kind, their width, and depths; the largest is that of the variants."""

    networks: int
    width: int
    depths: tuple[int, ...]


SIZES: dict[Preset, Counts] = {
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
        own_seeds = seeds(evidence, f"step-{feedback}-{L}-{name}-{horizon}-{more}", counts.networks)
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
            for seed in own_seeds
        ]
        both.append(torch.stack(changes))
    return ratio(*both)


def formula(x: Tensor, L: int, name: Activation, horizon: float) -> float:
    """The same ratio at infinite width: the NTK over twice the NNGP kernel."""
    tangent, twice = (
        kernel(x, kind=kind, activation=name, horizon=horizon, depth=L) for kind in ("ntk", "independent-feedback")
    )
    return float(tangent / twice)


def judge_ratio(depths: dict[int, Interval], variants: dict[str, Interval], kernels: dict[int, float]) -> Judged:
    """Whether the ratio is 1 at the largest depth, or in some variant; ``kernels``: what it is at infinite width."""
    last = depths[max(depths)]
    by_depth = {f"L = {L}": value for L, value in depths.items()}
    exact = ", ".join(f"{value:.3f}" for value in kernels.values())
    verdict, condition = rescued(near(last, 1.0), {name: near(value, 1.0) for name, value in variants.items()})
    reading = (
        f"Standard over decoupled: {listed(by_depth)}; by the kernels at infinite width: {exact}. "
        f"At L = {max(depths)}: {listed(variants)}.{condition}"
    )
    return Judged(last, verdict, reading, (*by_depth, *variants))


def _corollary(evidence: Evidence) -> Judged:
    depths, x = SIZES[evidence.size].depths, unit(evidence)
    by_depth = {L: change_ratio(evidence, L) for L in depths}
    variants = {
        f"{name}, T = {T:g} ({formula(x, depths[-1], name, T):.3f} by the kernels)": change_ratio(
            evidence, depths[-1], name, T
        )
        for name, T in VARIANTS
    }
    variants["twice the width"] = change_ratio(evidence, depths[-1], more=2)
    return judge_ratio(by_depth, variants, {L: formula(x, L, "relu", 1.0) for L in depths})


CLAIMS = (
    Claim(
        "corollary1-first-step",
        "Corollary 1, Section 4.2",
        "At infinite depth it makes no difference whether the backward pass uses an independent copy of the weights.",
        "Change of an output by a small step on its input, |x|^2 = d: wide standard networks over decoupled, relu, "
        f"at the largest depth. Holds within {NEAR} of 1; with a condition if it is with other settings.",
        _corollary,
    ),
)
