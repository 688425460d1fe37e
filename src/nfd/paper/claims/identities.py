"""Identities of Section 4 and Appendices E and G that hold to rounding or not at all."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd import SGD, ResNet
from nfd.core import Activation
from nfd.families import Streams
from nfd.paper.claims.claim import Claim, ClaimVerdict, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import rows, seeds, signed, span
from nfd.paper.claims.rules import rescued, together
from nfd.paper.settings import Preset
from nfd.paper.untrained import flows
from nfd.runs import train

EXACT = 1e-10
HORIZON, ETA_C = 1.5, 0.3


@dataclass(frozen=True)
class Counts:
    """Networks, their width and their steps."""

    networks: int
    width: int
    steps: int


SIZES: dict[Preset, Counts] = {"smoke": Counts(2, 16, 3), "cpu": Counts(8, 64, 6), "paper": Counts(32, 96, 8)}
DEPTHS = (4, 16)


@dataclass(frozen=True)
class Residuals:
    """What training added to the stream at depth L minus a formula, relative to it, per network [R].

    ``printed``: Eq. 4 with ``g_{l-1}``; ``derived``: with ``g_l``; ``factor``: what was added over the drift ``b`` of
    Appendix G integrated over a layer.
    """

    depth: int
    printed: Tensor
    derived: Tensor
    factor: Tensor


def recursion(x: Tensor, width: int, seed: int, name: Activation) -> float:
    """Largest deviation of the recursion of Eq. 3 from automatic differentiation, over the RMS of g."""
    net = ResNet(x.shape[1], 1, width, 4, horizon=HORIZON, activation=name, seed=seed, dtype=torch.float64)
    streams = flows(net, x)
    g = net.V.detach().expand(len(x), -1)
    layers, scale = [g], math.sqrt(HORIZON / (4 * width))
    for h, layer in zip(streams.h[:-1].flip(0), reversed(list(net.outer)), strict=True):
        g = g + scale * net.activation.slope(h) * (g @ layer.weight.detach())  # type: ignore[operator]
        layers.insert(0, g)
    deviation = torch.stack(layers) - streams.delta
    return float(deviation.abs().max() / streams.delta.square().mean().sqrt())


def judge_recursion(deviations: dict[str, Tensor]) -> Judged:
    """Whether the recursion is the gradient, for every activation."""
    largest = {name: float(deviation.max()) for name, deviation in deviations.items()}
    verdict = together(ClaimVerdict.of(deviation < EXACT) for deviation in largest.values())
    parts = ", ".join(f"{name} {deviation:.1e}" for name, deviation in largest.items())
    return Judged(span(torch.cat(list(deviations.values()))), verdict, f"Largest deviations: {parts}.", tuple(largest))


def _recursion(evidence: Evidence) -> Judged:
    counts = SIZES[evidence.size]
    names: tuple[Activation, ...] = ("relu", "tanh", "gelu", "erf")
    x, own_seeds = rows(evidence, 3), seeds(evidence, "recursion", counts.networks)
    return judge_recursion(
        {name: torch.tensor([recursion(x, counts.width, seed, name) for seed in own_seeds]) for name in names}
    )


def _squared_error(streams: Streams, y: Tensor) -> Tensor:
    return (streams.outputs.flatten() - y).square().div(2).sum()


def learned(x: Tensor, y: Tensor, width: int, depth: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """What training added to each layer's increment of the stream [L, n], and Eq. 4's sums of ``g_{l-1}``, ``g_l``."""
    net = ResNet(x.shape[1], 1, width, depth, horizon=HORIZON, activation="tanh", seed=seed, dtype=torch.float64)
    start = torch.stack([layer.weight.detach().clone() for layer in net.outer])  # type: ignore[operator]
    batches, phis, deltas = zip(x[:-1, None], y[:-1], strict=True), [], []
    for step in train(net.streams, SGD(net.param_groups(ETA_C)), batches, _squared_error):
        phis.append(net.activation.phi(step.outputs.h[:-1, 0]))
        deltas.append(step.outputs.delta[:, 0])
    h = net.streams(x[-1:]).h[:, 0]
    phi, tau = net.activation.phi(h[:-1]), HORIZON / depth
    added = h[1:] - h[:-1] - math.sqrt(tau / width) * torch.einsum("lij,lj->li", start, phi)
    products = torch.einsum("kln,ln->kl", torch.stack(phis), phi) / width
    both = torch.stack(deltas)
    printed, derived = (-tau * ETA_C * torch.einsum("kl,kln->ln", products, g) for g in (both[:, :-1], both[:, 1:]))
    return added, printed, derived


def residuals(evidence: Evidence, depth: int) -> Residuals:
    """Residuals of several networks of one depth."""
    counts = SIZES[evidence.size]
    x, y = signed(evidence, counts.steps + 1)
    by_network = []
    for seed in seeds(evidence, "learned", counts.networks):
        added, printed, derived = learned(x, y, counts.width, depth, seed)
        integrated = derived * HORIZON / depth  # b carries T / L itself, and stands before dt
        factor = (added * integrated).sum() / integrated.square().sum()
        by_network.append(
            torch.stack([(added - printed).norm() / added.norm(), (added - derived).norm() / added.norm(), factor])
        )
    printed, derived, factor = torch.stack(by_network, 1)
    return Residuals(depth, printed, derived, factor)


def judge_learned(cases: list[Residuals]) -> Judged:
    """Whether the sum of Eq. 4 is exact as printed, or with ``g_l``."""
    printed, derived = (max(float(getattr(r, name).max()) for r in cases) for name in ("printed", "derived"))
    by_depth = ", ".join(f"{float(r.printed.mean()):.2g} at L = {r.depth}" for r in cases)
    reading = f"With g_(l-1) the residual is {by_depth}; with g_l, as Appendix E derives, {derived:.1e}."
    value = span(torch.cat([r.printed for r in cases]))
    if printed < EXACT:
        return Judged(value, ClaimVerdict.HOLDS, reading)
    verdict, condition = rescued(ClaimVerdict.FAILS, {"to read g_l": ClaimVerdict.of(derived < EXACT)})
    return Judged(value, verdict, reading + condition, ("g_l in place of g_(l-1)", *_depths(cases)))


def judge_factor(cases: list[Residuals]) -> Judged:
    """Whether the drift b integrates to what training adds, as printed or with one factor T / L less."""
    value = span(torch.cat([r.factor for r in cases]))
    by_depth = ", ".join(f"{float(r.factor.mean()):.3g} at L = {r.depth}" for r in cases)
    reading = f"The stream learns as much as b says times {by_depth}, T = {HORIZON:g}"
    if all(float((r.factor - 1).abs().max()) < EXACT for r in cases):
        return Judged(value, ClaimVerdict.HOLDS, f"{reading}.")
    tried = ("one factor T/L less", *_depths(cases))
    if all(float((r.factor * HORIZON / r.depth - 1).abs().max()) < EXACT for r in cases):
        return Judged(value, ClaimVerdict.CONDITIONAL, f"{reading}: exactly L/T. One factor T/L has to go.", tried)
    return Judged(value, ClaimVerdict.FAILS, f"{reading}.", tried)


def _depths(cases: list[Residuals]) -> list[str]:
    return [f"L = {r.depth}" for r in cases]


CLAIMS = (
    Claim(
        "backward-recursion",
        "Eq. 3, Section 4.1",
        "Scaled gradients of the output in the residual stream follow a backward recursion in the transposed weights.",
        "Largest deviation of the recursion from automatic differentiation over the RMS of g, float64, four "
        f"activations; brackets: smallest and largest over networks. Holds if all are below {EXACT:g}.",
        _recursion,
    ),
    Claim(
        "learned-features",
        "Eq. 4, Section 4.2; Appendix E",
        "After k steps of SGD a layer adds two parts to the stream: that of its initial weights, and a sum over past "
        "gradients of layer l-1.",
        "The change of the stream's increments by training, minus the sum, relative, float64, tanh; brackets: smallest "
        f"and largest over networks and depths. Holds if all are below {EXACT:g}; with a condition if "
        "those with g_l are.",
        lambda evidence: judge_learned([residuals(evidence, depth) for depth in DEPTHS]),
    ),
    Claim(
        "drift-factor",
        "The drift b before Eq. 22, Appendix G",
        "The drift b of the stream at finite depth, to be integrated over dt, is T/L times a sum over past gradients.",
        "The change of the stream by training, over the drift's change in a layer, dt = T/L (its first sum, with g_l), "
        f"float64; brackets: smallest and largest over networks and depths. Holds if all are within {EXACT:g} of 1; "
        "with a condition if all are L/T.",
        lambda evidence: judge_factor([residuals(evidence, depth) for depth in DEPTHS]),
    ),
)
