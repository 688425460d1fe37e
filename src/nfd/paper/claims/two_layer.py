"""Untrained networks with two-layer blocks (Section 5, Appendix H)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from nfd import ResNet
from nfd.core import Activation, Interval
from nfd.paper.claims.claim import Claim, ClaimVerdict, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import exponent, listed, over, unit
from nfd.paper.claims.rules import FLAT, flat, rescued, together
from nfd.paper.settings import Preset
from nfd.paper.untrained import flows


@dataclass(frozen=True)
class Counts:
    """Networks, sizes in each direction, and the size of the other one."""

    networks: int
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    width: int
    depth: int


SIZES: dict[Preset, Counts] = {
    "smoke": Counts(3, (2, 4), (16, 32), 16, 2),
    "cpu": Counts(12, (8, 16, 32, 64, 128), (64, 128, 256, 512), 128, 4),
    "paper": Counts(48, (8, 16, 32, 64, 128), (64, 128, 256, 512, 1024), 256, 4),
}
ACTIVATIONS: tuple[Activation, ...] = ("relu", "tanh")
NAMES = ("h_L", "g_0", "W_1 h / sqrt(n)", "W_2' g / sqrt(n)", "gradient of W_1", "gradient of W_2")


def sizes_of(x: Tensor, n: int, L: int, seed: int, name: Activation) -> Tensor:
    """The RMS of what ``NAMES`` says, scaled gradients ``sqrt(n) / alpha df/dW`` in the Frobenius norm over sqrt(n)."""
    net = ResNet(x.shape[1], 1, n, L, block="two-layer", activation=name, seed=seed)
    streams = flows(net, x)
    h, g = streams.h[:, 0], streams.delta[:, 0]
    assert net.inner is not None
    back = torch.stack([layer.weight.detach().T @ g[k + 1] for k, layer in enumerate(net.outer)])  # type: ignore[operator]
    gradients = [
        torch.stack([layer.weight.grad.norm() for layer in layers])  # type: ignore[operator,union-attr]
        for layers in (net.inner, net.outer)
    ]
    scale = streams.gradient_scale / math.sqrt(n)
    vectors = (h[-1], g[0], torch.stack(streams.inner).detach(), back / math.sqrt(n), *(scale * v for v in gradients))
    return torch.stack([v.double().square().mean().sqrt() for v in vectors])


@lru_cache(maxsize=8)
def exponents(evidence: Evidence, axis: str, name: Activation) -> dict[str, Interval]:
    """Exponents of everything in ``NAMES`` in the depth or in the width."""
    counts, x = SIZES[evidence.size], unit(evidence).float()
    along = counts.depths if axis == "depth" else counts.widths

    def measured(size: int, seed: int) -> Tensor:
        n, L = (counts.width, size) if axis == "depth" else (size, counts.depth)
        return sizes_of(x, n, L, seed, name)

    samples = over(evidence, f"two-layer-{axis}-{name}", along, counts.networks, measured)
    return {moment: exponent(along, samples[..., index]) for index, moment in enumerate(NAMES)}


def judge_exponents(measured: dict[str, Interval], expected: float, variants: dict[str, dict[str, Interval]]) -> Judged:
    """Whether every exponent is the expected one within ``FLAT``, or is in a variant; the value is the farthest."""

    def as_expected(powers: dict[str, Interval]) -> ClaimVerdict:
        return together(flat(value, expected) for value in powers.values())

    farthest = max(measured.values(), key=lambda value: abs(value.value - expected))
    numbers = "".join(f" With {name}: {listed(other)}." for name, other in variants.items())
    verdict, condition = rescued(as_expected(measured), {name: as_expected(other) for name, other in variants.items()})
    reading = f"Exponents: {listed(measured)}; said: {expected:g}.{numbers}{condition}"
    return Judged(farthest, verdict, reading, tuple(variants))


def _of(evidence: Evidence, axis: str, names: tuple[str, ...], expected: float) -> Judged:
    relu, tanh = ({moment: exponents(evidence, axis, name)[moment] for moment in names} for name in ACTIVATIONS)
    return judge_exponents(relu, expected, {"tanh": tanh})


_NETWORKS = "Untrained relu networks with two-layer blocks on one input"
_CONDITION = "with a condition if only those of tanh networks are"

CLAIMS = (
    Claim(
        "two-layer-stable",
        "Eqs. 23, 24, Appendix H",
        "With two-layer blocks and 1/sqrt(L), untrained features and gradients keep their size at any depth.",
        f"{_NETWORKS}: exponents in L of the RMS of h_L and g_0. Holds if both are within {FLAT} of 0; {_CONDITION}.",
        lambda evidence: _of(evidence, "depth", NAMES[:2], 0.0),
    ),
    Claim(
        "two-layer-factors",
        "Eq. 25, Appendix H",
        "The inner matrix times features, and the outer matrix times gradients, are of order one in width.",
        f"{_NETWORKS}: exponents in n of the RMS of W_1 h/sqrt(n) and W_2' g/sqrt(n). Holds if both are within "
        f"{FLAT} of 0; {_CONDITION}.",
        lambda evidence: _of(evidence, "width", NAMES[2:4], 0.0),
    ),
    Claim(
        "two-layer-gradients",
        "Eqs. 26, 28, Appendix H",
        "Gradients of the inner and of the outer matrices both fall with depth as 1/sqrt(L).",
        f"{_NETWORKS}: exponents in L of the Frobenius norms of sqrt(n)/alpha df/dW. Holds if both are within "
        f"{FLAT} of -1/2; {_CONDITION}.",
        lambda evidence: _of(evidence, "depth", NAMES[4:], -0.5),
    ),
)
