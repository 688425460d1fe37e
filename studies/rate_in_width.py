"""How fast the best learning rate converges in width: |lr*(n) - lr*(inf)| ~ n^-p.

Question: Hayou 2025 (arXiv 2511.01734) proves O(n^-1/2) for linear networks after one step of
gradient descent under muP, and sees less beyond n = 1,024. Two things can be meant, which may have
two powers: the best rate of the mean loss over initialisations, and the distance of one network's
best rate from it. Both are measured in log2 of the rate.

Setting: digits, tanh, depth 4, half the mean squared error to targets of 3 for the class and 0
elsewhere; batches of 8 that differ from step to step, the same for all networks; the loss after t =
1, 10 and 40 steps on 128 held-out digits. SGD trains ``nfd.resnets`` at a fixed rate. Muon trains
the blocks of the same network as a module, with a rate that falls linearly to zero; the ends have
AdamW's 0.003. ``linear`` is the paper's case: a linear network without skip connections, one step
of gradient descent on 32 digits, judged on these. Weights are dense up to 1,024 (Muon: up to 256)
and structured beyond. Every network is trained at five rates; a cubic in log2 of the rate, least
squares, has its minimum at the best rate: that of the mean loss over seeds, which is what a user
tunes, and that of each network.

Written down before the main runs; a pilot chose task, rates, widths and seeds. Two earlier tasks
were left because their losses have several minima over the rate: cross-entropy with relu, and Muon
at a fixed rate. For each case:

- *Mean*: least squares of ``log2 lr*(n) = log2 lr*(inf) + c n^-p``, weighted by the errors of the
  widths. "Faster than the bound" where the 95 % interval of p lies above 1/2; "as the bound" where
  it holds 1/2 and not 1; "slower" below 1/2; "undecided" where it holds both. The expectation is p
  = 1, as the bias of losses is of order 1/n.
- *One network*: the exponent of the standard deviation over seeds of their best rates. The same
  words. The expectation is 1/2. "It changes at 1,024" where the exponents of widths up to 1,024 and
  from 1,024 on differ by an interval without zero, "it does not" where that interval lies within
  +-0.25; otherwise "undecided".
- *Cost*: what the best rate of one network of width n loses in the widest networks, in percent of
  the progress there (from outputs of zero to the best rate), mean over seeds. A proxy is wide
  enough where that is below 1 %.

Intervals are jackknives over seeds (``nfd.core.estimates``). A network whose minimum lies outside
of its rates counts as at their end; a loss above 1, or none, counts as 1. A width where more than 5
% of the seeds lie at an end counts for the mean and the cost alone.

Added when ``sgd-1`` and ``sgd-10`` were seen: no p is given where the best one is an end of
``LIMITS``; and "every network alike", the slope of the logarithms of distances of single networks
from the mean of their width. A standard deviation of three networks, of the same weight as one of
300, has a logarithm that is too small.

Run: ``python -m studies.rate_in_width [CASE ...]`` writes ``rate_in_width.json``.
"""

from __future__ import annotations

import json
import math
import sys
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

import nfd
from nfd.core.estimates import Interval, interval, intervals, log_slope, pooled_slope
from nfd.data import digits
from nfd.families.family import networks

DEPTH = 4
BATCH = 8
JUDGED = 128
TARGET = 3.0
WORST = 1.0
LIMITS = (0.1, 4.0)
LOST = 0.05
TURN = 1024
# The loss of outputs that are zero.
NOTHING = TARGET**2 / 10 / 2
# Of the rates, in steps of the grid.
PLACES = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0], dtype=torch.float64)
_CUBIC = torch.linalg.pinv(torch.stack([PLACES**k for k in range(4)], 1))
_FINE = torch.linspace(-2, 2, 4001, dtype=torch.float64)

# By name the middle rate, the step in doublings, the number of steps, and seeds by width.
CASES: dict[str, tuple[float, float, int, dict[int, int]]] = {
    "linear-1": (
        4.5,
        1 / 2,
        1,
        {32: 400, 64: 400, 128: 300, 256: 160, 512: 80, 1024: 40, 4096: 24, 16384: 8, 65536: 4},
    ),
    "sgd-1": (
        5.5,
        1 / 2,
        1,
        {32: 400, 64: 400, 128: 300, 256: 160, 512: 80, 1024: 40, 4096: 24, 16384: 12, 65536: 6},
    ),
    "sgd-10": (
        4.2,
        1 / 4,
        10,
        {32: 300, 64: 300, 128: 200, 256: 100, 512: 60, 1024: 30, 4096: 12, 16384: 6, 65536: 3},
    ),
    "sgd-40": (
        2.8,
        1 / 4,
        40,
        {32: 200, 64: 200, 128: 100, 256: 60, 512: 32, 1024: 16, 4096: 6, 16384: 3},
    ),
    "muon-1": (
        0.45,
        1 / 2,
        1,
        {32: 300, 64: 300, 128: 200, 256: 100, 512: 60, 1024: 30, 4096: 16, 16384: 8, 65536: 4},
    ),
    "muon-10": (
        0.25,
        1 / 2,
        10,
        {32: 150, 64: 150, 128: 80, 256: 40, 512: 32, 1024: 16, 4096: 6, 16384: 3},
    ),
    "muon-40": (0.25, 1 / 2, 40, {32: 100, 64: 100, 128: 48, 256: 20, 512: 10, 1024: 6, 4096: 3}),
}


class Residual(nn.Module):
    """The residual network of depth-muP as a module, initialised as ``nfd.ResNet`` is."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width, bias=False)
        self.head = nn.Linear(width, 10, bias=False)
        self.blocks = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        starts = [1 / 8, 1 / width, *[(width * depth) ** -0.5] * depth]
        for weight, std in zip(self.parameters(), starts, strict=True):
            nn.init.normal_(weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(torch.tanh(h))
        return cast(Tensor, self.head(h))


def setup(name: str) -> tuple[nfd.Family, nfd.Task]:
    """What a case trains, and on what."""
    data = digits()
    steps = CASES[name][2]
    settings = dict[str, Any]()

    def batch(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return x, TARGET * nn.functional.one_hot(labels, 10).float()

    batches = [batch(*pair) for pair in zip(*data.batches(BATCH, 40, 0), strict=True)][:steps]
    test = batch(data.test_inputs[:JUDGED], data.test_labels[:JUDGED])
    family: nfd.Family = nfd.resnets(64, 10, activation="tanh")
    if name.startswith("linear"):
        family = networks(nfd.MLP, 64, 10, rule="mup", activation="identity")
        batches = [test := batch(data.inputs[:32], data.labels[:32])]
    if name.startswith("muon"):
        family = nfd.Family(
            Residual, (64, DEPTH), "depth-mup", "muon", sample=batches[0][0], name="residual"
        )
        settings = {"schedule": lambda step, steps: 1 - step / steps, "adamw_lr": 0.003}
    return family, nfd.Task(batches, "mse", eval_batches=[test], **settings)


def swept(name: str, sweep: nfd.Sweep) -> dict[int, Tensor]:
    """The losses ``[seeds, rates]`` of a case by width."""
    family, task = setup(name)
    middle, step, _, seeds = CASES[name]
    rates = [float(f"{middle * 2 ** (step * k):.4g}") for k in PLACES.tolist()]
    dense = 256 if name.startswith("muon") else 1024
    losses_of = dict[int, Tensor]()
    for n, count in seeds.items():
        kind: Any = "dense" if n <= dense else "structured"
        trials = [
            nfd.Trial(family, task, n, DEPTH, seed, lr, weights=kind)
            for seed, lr in product(range(count), rates)
        ]
        losses = [record.metrics["test_loss"] for record in sweep.run(trials, f"{name}, width {n}")]
        losses_of[n] = torch.tensor(losses, dtype=torch.float64).clamp_max(WORST).view(count, -1)
    return losses_of


def curve(losses: Tensor, places: Tensor) -> Tensor:
    """The cubic through losses ``[..., rates]`` at places ``[P]``, ``[..., P]``."""
    through: Tensor = losses @ _CUBIC.T @ torch.stack([places**k for k in range(4)])
    return through


def best(losses: Tensor) -> Tensor:
    """Where the cubic is lowest, in steps of the grid, at most its end.

    It is the vertex of a parabola through the lowest places of a fine grid.
    """
    curves = curve(losses, _FINE)
    k = curves.argmin(-1).clamp(1, len(_FINE) - 2)[..., None]
    low, mid, high = (curves.gather(-1, k + d)[..., 0] for d in (-1, 0, 1))
    off = (low - high) / (low - 2 * mid + high).clamp_min(1e-12) / 2
    return _FINE[k[..., 0]] + off.clamp(-1, 1) * (_FINE[1] - _FINE[0])


def power(widths: Tensor, places: Tensor, errors: Tensor) -> Tensor:
    """p of ``places = limit + c widths^-p``, weighted least squares."""

    def misfit(log_p: float) -> float:
        powers = (widths / widths[0]) ** -math.exp(log_p)
        design = torch.stack([torch.ones_like(widths), powers], 1) / errors[:, None]
        wanted = places / errors
        numbers = torch.linalg.lstsq(design, wanted[:, None]).solution[:, 0]
        return float((design @ numbers - wanted).square().sum())

    ends = [math.log(limit) for limit in LIMITS]
    log_p = minimize_scalar(misfit, bounds=ends, method="bounded").x
    return torch.tensor(math.exp(log_p), dtype=torch.float64)


def word(p: Interval) -> str:
    """What an exponent says of the bound, by the criteria above."""
    if p.low > 0.5:
        return "faster than the bound"
    if p.high < 0.5:
        return "slower than the bound"
    return "as the bound" if p.high < 1 else "undecided"


def judge(losses: dict[int, Tensor], step: float) -> dict[str, Any]:
    """What the losses ``[seeds, rates]`` by width say, with the grid's step in doublings."""
    best_rates = {n: step * best(x) for n, x in losses.items()}
    means = {n: interval(lambda x: step * best(x.mean(0)), x) for n, x in losses.items()}
    lost = {n: float((x.abs() >= 2 * step).double().mean()) for n, x in best_rates.items()}
    resolved = {n: x for n, x in best_rates.items() if lost[n] <= LOST}
    cost_of = partial(cost_in_widest, losses[max(losses)].mean(0))
    rows = []
    for n, x in losses.items():
        cost = interval(lambda rates: cost_of(rates / step), best_rates[n])
        tuned = cost_of(best(x.mean(0))[None])
        row = {
            "width": n,
            "seeds": len(x),
            "log2 rate": means[n].limits,
            "sd": float(best_rates[n].std()),
        }
        rows.append(
            row | {"lost": lost[n], "cost": cost.limits, "cost of the mean's": float(tuned)}
        )
    return {
        "mean": of_mean(losses, means, step),
        "widths": rows,
        "one network": of_networks(resolved),
    }


def of_mean(losses: dict[int, Tensor], means: dict[int, Interval], step: float) -> dict[str, Any]:
    """How fast the best rates of mean losses converge."""
    rows = [[n, mean.stderr] for n, mean in means.items()]
    widths, errors = torch.tensor(rows, dtype=torch.float64).T

    def fitted(*each: Tensor) -> Tensor:
        places = torch.stack([step * best(x.mean(0)) for x in each])
        return power(widths, places, errors)

    p = interval(fitted, *losses.values())
    if LIMITS[0] * 1.01 < p.value < LIMITS[1] / 1.01:
        return {"p": p.limits, "word": word(p)}
    return {"word": "no power"}


def of_networks(best_rates: dict[int, Tensor]) -> dict[str, Any]:
    """How fast the best rates of single networks, by width, come to that of the mean loss."""
    widths = list(best_rates)
    narrow = [n for n in widths if n <= TURN]
    wide = [n for n in widths if n >= TURN]

    def slopes(*places: Tensor) -> Tensor:
        spread = {n: x.std() for n, x in zip(widths, places, strict=True)}

        def power_of(part: list[int]) -> Tensor:
            return -log_slope(part, torch.stack([spread[n] for n in part]))

        below = power_of(narrow)
        above = power_of(wide)
        return torch.stack([power_of(widths), below, above, above - below])

    whole, below, above, turn = intervals(slopes, *best_rates.values())
    return {
        "p": whole.limits,
        "word": word(whole),
        "below": below.limits,
        "above": above.limits,
        "turn": turn.limits,
        "change": change_of(turn),
        "every network alike": every_network_alike(best_rates).limits,
    }


def change_of(turn: Interval) -> str:
    """Whether the power changes at 1,024, by the criteria above."""
    if turn.resolved:
        return "it changes at 1,024"
    return "it does not" if max(-turn.low, turn.high) <= 0.25 else "undecided"


def every_network_alike(best_rates: dict[int, Tensor]) -> Interval:
    """The power of the distances of single networks from the mean of their width.

    Every network counts alike.
    """
    distances = list[Tensor]()
    log_widths = list[Tensor]()
    for n, x in best_rates.items():
        distances.append((x - x.mean()).abs() * math.sqrt(len(x) / (len(x) - 1)))
        log_widths.append(torch.full_like(x, math.log(n)))
    sizes = torch.cat(log_widths)
    return pooled_slope(sizes, -torch.cat(distances).clamp_min(1e-6).log(), torch.zeros_like(sizes))


def cost_in_widest(widest: Tensor, places: Tensor) -> Tensor:
    """What rates lose in the widest networks, in percent of the progress there, in the mean.

    Args:
        widest: mean losses ``[rates]`` of these networks.
        places: of the rates, in steps of the grid.
    """
    lowest = curve(widest, best(widest)[None])
    progress = NOTHING - lowest
    return 100 * ((curve(widest, places) - lowest) / progress).mean()


def main() -> None:
    """Train what is missing of the cases that are named, or of all, and add their numbers."""
    path = Path(__file__).parent / "rate_in_width.json"
    for name in sys.argv[1:] or CASES:
        with nfd.Sweep(f"build/rate_in_width/{name}") as sweep:
            answer = {name: judge(swept(name, sweep), CASES[name][1])}
        stored = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(stored | answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
