"""The kernel regime and the feature-learning regime (Section 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nfd import SGD, ResNet
from nfd.core import Interval, Regime
from nfd.paper.claims.claim import Claim, Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.measuring import exponent, over, rows
from nfd.paper.claims.rules import FLAT, flat, rescued
from nfd.paper.settings import Preset
from nfd.runs import train

ETA_C = 0.1


@dataclass(frozen=True)
class Counts:
    """Networks, widths, steps and the rows of a batch."""

    networks: int
    widths: tuple[int, ...]
    steps: int
    batch: int


SIZES: dict[Preset, Counts] = {
    "smoke": Counts(2, (16, 32), 2, 8),
    "cpu": Counts(64, (64, 128, 256, 512), 12, 32),
    "paper": Counts(256, (64, 128, 256, 512, 1024), 12, 32),
}


def feature_change(evidence: Evidence, regime: Regime, n: int, seed: int) -> Tensor:
    """RMS of the change of ``h_L`` by training on the data set's classes, over its RMS at the start."""
    counts, data = SIZES[evidence.size], evidence.dataset
    x, y = rows(evidence, counts.batch * counts.steps).float(), data.labels[: counts.batch * counts.steps]
    net = ResNet(x.shape[1], len(data.classes), n, 4, regime=regime, seed=seed)
    optimizer, probe = SGD(net.param_groups(ETA_C)), x[:16]
    before = net.streams(probe).h[-1]
    batches = zip(x.view(-1, counts.batch, x.shape[1]), y.view(-1, counts.batch), strict=True)
    for _ in train(net, optimizer, batches, torch.nn.functional.cross_entropy):
        pass
    after = net.streams(probe).h[-1]
    return ((after - before).square().mean() / before.square().mean()).sqrt().double()


def judge_regime(power: Interval, expected: float, sizes: dict[int, float], widest: Interval) -> Judged:
    """Whether the exponent is the expected one within ``FLAT``, or is between the two largest widths."""
    numbers = ", ".join(f"{size:.3g} at n = {n}" for n, size in sizes.items())
    variant = "the two largest widths alone"
    verdict, condition = rescued(flat(power, expected), {variant: flat(widest, expected)})
    reading = f"The relative change of h_L goes as n^{power}: {numbers}; by {variant}, as n^{widest}.{condition}"
    return Judged(power, verdict, reading, (*(f"n = {n}" for n in sizes), variant))


def _regime(evidence: Evidence, regime: Regime, expected: float) -> Judged:
    counts = SIZES[evidence.size]

    def measured(n: int, seed: int) -> Tensor:
        return feature_change(evidence, regime, n, seed)

    samples = over(evidence, f"regime-{regime}", counts.widths, counts.networks, measured)
    sizes = dict(zip(counts.widths, samples.mean(0).tolist(), strict=True))
    widest = exponent(counts.widths[-2:], samples[:, -2:])
    return judge_regime(exponent(counts.widths, samples), expected, sizes, widest)


_TRAINED = "Exponent in n of the relative change of h_L after steps of SGD at depth 4"
_CONDITION = "with a condition if it is between the two largest widths only"

CLAIMS = (
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
        "With alpha = 1/sqrt(n) and eta = eta_c n training moves features by order one at any width.",
        f"{_TRAINED}. Holds within {FLAT} of 0; {_CONDITION}.",
        lambda evidence: _regime(evidence, "feature", 0.0),
    ),
)
