"""Claims on the limit of training: Corollary 1, Props. 7 and 8, Eq. 5, Definition 1, Theorem 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nfd import kernel
from nfd.core import UNKNOWN, Activation, Feedback, Interval, derive, interval, log_slope
from nfd.paper.claims.claim import (
    FASTER,
    NEAR,
    Claim,
    ClaimVerdict,
    Evidence,
    Judged,
    as_fast_as,
    itemised,
    near,
    ratio,
    rescued,
    seeds,
    signed,
    together,
    unit,
)
from nfd.paper.settings import Preset
from nfd.paper.two_limits import (
    ETA_C,
    distance,
    first_step,
    networks,
    relative,
    solutions,
    squared_apart,
    systematic,
)

# ---- Corollary 1 by the first step of gradient descent, where the limits are known exactly


@dataclass(frozen=True)
class StepCounts:
    """Networks of each kind, their width, and depths; variants have the largest depth."""

    networks: int
    width: int
    depths: tuple[int, ...]


STEP_SIZES: dict[Preset, StepCounts] = {
    "smoke": StepCounts(3, 64, (1, 2)),
    "cpu": StepCounts(16, 2048, (4, 16, 64)),
    "paper": StepCounts(32, 4096, (4, 16, 64)),
}
VARIANTS: tuple[tuple[Activation, float], ...] = (("tanh", 1.0), ("relu", 0.5), ("relu", 4.0))


def change_ratio(
    evidence: Evidence, L: int, name: Activation = "relu", horizon: float = 1.0, more: int = 1
) -> Interval:
    """Return what one small step does to the output, standard networks over decoupled ones.

    Networks are ``more`` times as wide as usual.
    """
    counts = STEP_SIZES[evidence.size]
    x = unit(evidence)

    def changes(feedback: Feedback) -> Tensor:
        label = f"step-{feedback}-{L}-{name}-{horizon}-{more}"
        by_network = []
        for seed in seeds(evidence, label, counts.networks):
            change = first_step(
                x,
                more * counts.width,
                L,
                feedback,
                seed,
                weights="deferred",
                horizon=horizon,
                activation=name,
            )
            by_network.append(change)
        return torch.stack(by_network)

    return ratio(changes("shared"), changes("independent"))


def formula(x: Tensor, L: int, name: Activation, horizon: float) -> float:
    """Return ``change_ratio`` at infinite width: the NTK over twice the NNGP kernel."""
    tangent = kernel(x, kind="ntk", activation=name, horizon=horizon, depth=L)
    twice_nngp = kernel(x, kind="independent-feedback", activation=name, horizon=horizon, depth=L)
    return float(tangent / twice_nngp)


def _corollary(evidence: Evidence) -> Judged:
    """Judge whether the ratio is 1 at the largest depth, or in some variant."""
    depths = STEP_SIZES[evidence.size].depths
    deep = depths[-1]
    x = unit(evidence)
    by_depth = {f"L = {L}": change_ratio(evidence, L) for L in depths}
    exact = ", ".join(f"{formula(x, L, 'relu', 1.0):.3f}" for L in depths)
    *_, (at, last) = by_depth.items()
    variants: dict[str, Interval] = {}
    for name, T in VARIANTS:
        variant = f"{name}, T = {T:g} ({formula(x, deep, name, T):.3f} by the kernels)"
        variants[variant] = change_ratio(evidence, deep, name, T)
    variants["twice the width"] = change_ratio(evidence, deep, more=2)
    verdict, condition = rescued(
        near(last, 1.0), {name: near(value, 1.0) for name, value in variants.items()}
    )
    reading = (
        f"Standard over decoupled: {itemised(by_depth)}; by the kernels at infinite width: "
        f"{exact}. At {at}: "
    )
    return Judged(
        last, verdict, f"{reading}{itemised(variants)}.{condition}", (*by_depth, *variants)
    )


FIRST_STEP = (
    Claim(
        "corollary1-first-step",
        "Corollary 1, Section 4.2",
        "At infinite depth it makes no difference whether the backward pass uses an independent "
        "copy of the weights.",
        "Change of an output by a small step on its input, |x|^2 = d: wide standard networks over "
        f"decoupled, relu, at the largest depth. Holds within {NEAR} of 1; with a condition if it "
        "is with other settings.",
        _corollary,
    ),
)


# ---- The limit of training: Props. 7 and 8, Eq. 5, Definition 1 and Theorem 1 (Section 4.2,
# Appendices F and G)

# The exponent of outputs: what is claimed is 1/L for mean squares.
RATE = -0.5


@dataclass(frozen=True)
class Counts:
    """How many networks and solutions are compared, and how large they are.

    Attributes:
        networks: trained networks. width: their width.
        solutions: solutions of Definition 1 or Eq. 5. particles: the particles of each.
        samples: online steps.
        depths: depths of networks and solutions.
        same: networks, and solutions, where the two are to agree: to show that takes more of them
            than to show a difference.
    """

    networks: int
    width: int
    solutions: int
    particles: int
    samples: int
    depths: tuple[int, ...]
    same: int


SIZES: dict[Preset, Counts] = {
    "smoke": Counts(3, 32, 6, 32, 2, (2, 4), 6),
    "cpu": Counts(12, 4096, 12, 4096, 8, (2, 8, 32), 36),
    "paper": Counts(24, 4096, 24, 8192, 12, (2, 8, 32), 48),
}


@lru_cache(maxsize=64)
def solved(
    evidence: Evidence,
    L: int,
    *,
    eq5: bool,
    eta_c: float = ETA_C,
    name: Activation = "relu",
    more: int = 1,
    same: bool = False,
) -> Tensor:
    """Return outputs [solutions / 2, K] of Definition 1 or of Eq. 5."""
    counts = SIZES[evidence.size]
    x, y = signed(evidence, counts.samples)
    seed = derive(evidence.seed, "claim", "solutions", L) >> 1
    count = counts.same if same else counts.solutions
    return solutions(
        x, y, L, more * counts.particles, count, eq5=eq5, eta_c=eta_c, activation=name, seed=seed
    )


@lru_cache(maxsize=64)
def trained(
    evidence: Evidence,
    L: int,
    feedback: Feedback,
    *,
    eta_c: float = ETA_C,
    name: Activation = "relu",
    more: int = 1,
    same: bool = False,
) -> Tensor:
    """Return outputs [networks, K] of wide networks."""
    counts = SIZES[evidence.size]
    x, y = signed(evidence, counts.samples)
    seed = derive(evidence.seed, "claim", feedback, L)
    width = more * counts.width
    count = counts.same if same else counts.networks
    return networks(
        x, y, L, width, count, feedback, "deferred", seed=seed, eta_c=eta_c, activation=name
    )


def judge_at_depth(base: dict[str, Interval], variants: dict[str, Interval]) -> Judged:
    """Judge whether a prediction agrees with networks at every finite depth.

    Where it does not, agreement in one of the ``variants`` is the condition.
    """
    worst = max(base.values(), key=lambda apart: apart.value)
    verdict = together(near(apart) for apart in base.values())
    verdict, condition = rescued(verdict, {name: near(apart) for name, apart in variants.items()})
    reading = f"Relative distance: {itemised(base)}; with {itemised(variants)}.{condition}"
    return Judged(worst, verdict, reading, tuple(variants))


def _equation_5(evidence: Evidence) -> Judged:
    depths = SIZES[evidence.size].depths
    middle = depths[-2]

    def apart(L: int, eta_c: float = ETA_C, name: Activation = "relu", more: int = 1) -> Interval:
        prediction = solved(evidence, L, eq5=True, eta_c=eta_c, name=name, more=more)
        networks = trained(evidence, L, "shared", eta_c=eta_c, name=name, more=more)
        return distance(prediction, networks)

    of_identity = apart(middle, name="identity", eta_c=ETA_C / 4)
    variants = {
        f"twice the particles and the width, L = {middle}": apart(middle, more=2),
        f"a quarter of eta_c, L = {middle}": apart(middle, eta_c=ETA_C / 4),
        f"tanh, L = {middle}": apart(middle, name="tanh"),
        f"identity (the case of Appendix F) at a quarter of eta_c, L = {middle}": of_identity,
    }
    return judge_at_depth({f"L = {L}": apart(L) for L in depths}, variants)


def _vanishing(evidence: Evidence) -> Judged:
    depths = SIZES[evidence.size].depths
    differences: list[Tensor] = []
    sizes: dict[str, Interval] = {}
    for L in depths:
        without = solved(evidence, L, eq5=False)
        difference = solved(evidence, L, eq5=True) - without
        differences.append(difference)
        sizes[f"L = {L}"] = relative(difference, without)
    fall = interval(lambda r: log_slope(depths, systematic(r)), torch.stack(differences, 1))
    reading = (
        f"It moves outputs by {itemised(sizes)}, relative, which goes as L^{fall}. What it leaves "
        "out: "
    )
    return as_fast_as(fall, RATE, f"{reading}claims equation-5 and theorem-1.", *sizes)


def _decoupled(evidence: Evidence) -> Judged:
    def apart(L: int, name: Activation = "relu") -> Interval:
        prediction = solved(evidence, L, eq5=False, name=name, same=True)
        return distance(prediction, trained(evidence, L, "independent", name=name, same=True))

    depths = SIZES[evidence.size].depths
    return judge_at_depth(
        {f"L = {L}": apart(L) for L in depths}, {"tanh at the largest": apart(depths[-1], "tanh")}
    )


def falling(depths: tuple[int, ...], first: list[Tensor], second: list[Tensor]) -> Interval:
    """Return the exponent in depth of the distance between two groups at each depth."""
    count = len(depths)

    def slope(*groups: Tensor) -> Tensor:
        gaps = []
        for a, b in zip(groups[:count], groups[count:], strict=True):
            apart = squared_apart(a, b).clamp_min(1e-12).sqrt()
            gaps.append(apart / b.mean(0).square().mean().sqrt())
        return log_slope(depths, torch.stack(gaps))

    return interval(slope, *first, *second)


def _theorem(evidence: Evidence) -> Judged:
    """Judge whether the distance vanishes with depth.

    It holds where the distance is near zero at the largest depth, and fails where it is far there
    and does not fall.
    """
    depths = SIZES[evidence.size].depths
    deep = depths[-1]
    predictions = [solved(evidence, L, eq5=False) for L in depths]
    networks = [trained(evidence, L, "shared") for L in depths]
    distances: dict[str, Interval] = {}
    for L, predicted, measured in zip(depths, predictions, networks, strict=True):
        distances[f"L = {L}"] = distance(predicted, measured)
    last = distances[f"L = {deep}"]
    fall = falling(depths, predictions, networks)

    def at_deep(feedback: Feedback, name: Activation = "relu", eta_c: float = ETA_C) -> Interval:
        prediction = solved(evidence, deep, eq5=False, name=name, eta_c=eta_c)
        return distance(prediction, trained(evidence, deep, feedback, name=name, eta_c=eta_c))

    variants = {
        "tanh": at_deep("shared", "tanh"),
        "a quarter of eta_c": at_deep("shared", eta_c=ETA_C / 4),
    }
    reading = (
        f"Relative distance: {itemised(distances)}; it goes as L^{fall}. At the largest depth: "
        f"{itemised(variants)}; decoupled networks {at_deep('independent')}."
    )
    verdict = near(last)
    # Far at the largest depth, but falling: it may vanish beyond.
    if verdict == ClaimVerdict.FAILS and fall.low < RATE + FASTER:
        verdict = ClaimVerdict.UNDECIDED
    verdict, condition = rescued(verdict, {name: near(apart) for name, apart in variants.items()})
    return Judged(
        last, verdict, reading + condition, (*variants, "larger networks: docs/two-limits.md")
    )


def _program(evidence: Evidence) -> Judged:
    reading = (
        "A statement on how expressions are formed, proved by induction over Eq. 4; no number "
        "could contradict it. Deferred layers carry out such a program exactly "
        "(docs/mathematics/deferred-decisions.md) and are tested against dense networks."
    )
    return Judged(UNKNOWN, ClaimVerdict.UNTESTABLE, reading)


_DISTANCE = (
    "RMS difference of mean outputs over online steps on +1/-1 classes, noise subtracted, over the "
    "RMS of outputs"
)

LIMIT = (
    Claim(
        "valid-program",
        "Prop. 7, Section 4.2",
        "Every vector that training with SGD produces is made by the operations of a tensor "
        "program.",
        "None: there is nothing to measure.",
        _program,
    ),
    Claim(
        "equation-5",
        "Prop. 8, Eq. 5, Section 4.2",
        "At any finite depth, training at infinite width follows Definition 1's scheme and a term "
        "of order tau^2 for reused weights.",
        f"{_DISTANCE}: Eq. 5 by particles against wide networks, the largest over depths. Holds if "
        f"all are below {NEAR}; with a condition if one is with other settings.",
        _equation_5,
    ),
    Claim(
        "tau-squared-term",
        "After Prop. 8, Section 4.2; Remark 1",
        "The term of order tau^2 that Eq. 5 adds for reused weights vanishes as depth grows.",
        "Exponent in L of the paired difference of outputs with and without it. Holds if it is at "
        f"most {RATE + FASTER}.",
        _vanishing,
    ),
    Claim(
        "definition-1",
        "Corollary 1, Section 4.2; Definition 1",
        "Definition 1 is the limit of networks whose backward pass uses an independent copy of the "
        "weights.",
        f"{_DISTANCE}: Definition 1 by particles against wide decoupled networks of the same "
        f"depth, the largest. Holds if those of all depths are below {NEAR}; with a condition if "
        "one is with tanh.",
        _decoupled,
    ),
    Claim(
        "theorem-1",
        "Theorem 1, Section 4.2",
        "As width and then depth go to infinity, training of the standard network follows "
        "Definition 1.",
        f"{_DISTANCE}: Definition 1 against wide standard networks at the largest depth. Holds "
        f"below {NEAR}; with a condition if it is with other settings; does not if above and not "
        f"falling faster than L^{RATE + FASTER}.",
        _theorem,
    ),
)
