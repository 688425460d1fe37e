"""Measure the best learning rate of experts against their number E and the k that a token uses.

Question: a token of a mixture reaches k of E experts, so that each sees k/E of the tokens.
Published practice keeps the rate of experts, or multiplies it by (k/E)^1/2, as for a batch that is
so much smaller. Which is nearer to the best?

Setting: a residual language model of width 64 and two mixtures, AdamW, on a Markov chain of order
two over 64 tokens; 160 steps of 512 tokens, a rate that falls linearly to zero, three seeds.
Experts have 32 hidden units. Only the rate of the stacked experts is swept; all other tensors have
``REST``, which is near the best of one seed at E = 8, k = 2. Each of E = 2, 4, 8, 16, 32 at k = 2,
and of k = 1, 2, 4 at E = 16.

Written down before anything was run. With the exponent p of ``best rate ~ E^p`` and q of ``best
rate ~ k^q``, 95 % intervals:

- "sqrt(k/E)" is said where p's interval holds -1/2 and not 0, and q's does not exclude +1/2;
- "none" is said where p's interval holds 0 and not -1/2, and q's does not exclude 0;
- "larger" where p's interval lies above 0; "neither" where it excludes both; "undecided" where it
  holds both.
- The cost of a law is the loss at the rate that it gives, minus the least of the loss over rates,
  both on the mean over seeds, interpolated linearly in the logarithm of the rate; the rate is the
  best one of E = 8, k = 2, carried by the law. A cost is negligible under 2 % of the progress from
  log 64, as in ``nfd.transfer``.

Three seeds, as planned, on rates from 2^-10 to 2^-2 left it undecided: p = -0.10 [-1.32, 1.13], q =
0.17 [-0.21, 0.54]. So five more were run, on the inner seven of the nine rates, with the same
criteria; that is what is stored. After that were added the paired difference of both laws' losses,
and an exponent whose interval is over seeds alone.

Run: ``python -m studies.experts`` writes ``studies/experts.json``.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

import nfd
from nfd.core.estimates import mean

VOCABULARY = 64
KINDS = 16
STEPS = 160
TOKENS = 512
LENGTH = 32
REST = 3e-2
SEEDS = 8
RATES = [2.0**k for k in range(-9, -2)]
AXES = {"experts": (2, 4, 8, 16, 32), "top_k": (1, 2, 4)}
# Of the loss that spreads tokens over experts.
BALANCE = 0.01


class Mixture(nn.Module):
    """A norm, a router, and stacked experts.

    Each token adds up ``top_k`` of them, with weights that sum to one.
    """

    def __init__(self, width: int, experts: int, top_k: int, hidden: int = 32) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.router = nn.Linear(width, experts, bias=False)
        self.top_k = top_k
        self.up = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.balance = torch.zeros(())

    def forward(self, h: Tensor) -> Tensor:
        x = self.norm(h)
        shares = self.router(x).softmax(-1)
        values, chosen = shares.topk(self.top_k, -1)
        gates = torch.zeros_like(shares).scatter(-1, chosen, values / values.sum(-1, keepdim=True))
        used = (gates > 0).float().flatten(0, -2).mean(0)
        self.balance = len(used) / self.top_k * (used * shares.flatten(0, -2).mean(0)).sum()
        flat = x.flatten(0, -2)
        weights = gates.flatten(0, -2)
        out = torch.zeros_like(flat)
        for e in range(len(self.up)):
            rows = weights[:, e].nonzero().squeeze(-1)
            outputs = torch.relu(flat[rows] @ self.up[e]) @ self.down[e]
            out = out.index_add(0, rows, weights[rows, e, None] * outputs)
        return h + out.view_as(h)


class Model(nn.Module):
    """Two embeddings, of the last token and of the one before it, mixtures, and a head.

    It returns logits and the balance.
    """

    def __init__(self, width: int, depth: int, experts: int = 16, top_k: int = 2) -> None:
        super().__init__()
        self.last = nn.Embedding(VOCABULARY, width)
        self.before = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Mixture(width, experts, top_k) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        h = self.last(ids[:, 1:]) + self.before(ids[:, :-1])
        for block in self.blocks:
            h = block(h)
        balances = [cast("Mixture", block).balance for block in self.blocks]
        return self.head(self.norm(h)), torch.stack(balances).mean()


def loss(output: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy, with the gradient of the balance but not its value."""
    logits, balance = output
    cross_entropy = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return cross_entropy + BALANCE * (balance - balance.detach())


def batches(count: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Texts of a Markov chain of order two.

    What follows depends on the last token and on the kinds of the last two.
    """
    fixed = torch.Generator().manual_seed(0)
    draws = torch.Generator().manual_seed(seed)
    kinds = torch.randint(KINDS, (VOCABULARY,), generator=fixed)
    of_kinds = 2 * torch.randn(KINDS, KINDS, VOCABULARY, generator=fixed)
    of_last = torch.randn(VOCABULARY, VOCABULARY, generator=fixed)
    ids = torch.randint(VOCABULARY, (count * TOKENS // LENGTH, 2), generator=draws)
    for _ in range(LENGTH):
        before = ids[:, -2]
        last = ids[:, -1]
        chances = (of_kinds[kinds[before], kinds[last]] + of_last[last]).softmax(-1)
        ids = torch.cat([ids, torch.multinomial(chances, 1, generator=draws)], 1)
    return [(part[:, :-1], part[:, 2:]) for part in torch.split(ids, TOKENS // LENGTH)]


def of_experts(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """Make AdamW that takes the swept learning rate only for stacked tensors."""
    parts = []
    for group in groups:
        stacked = [p for p in group["params"] if p.dim() == 3]
        rest = [p for p in group["params"] if p.dim() != 3]
        if stacked:
            parts.append(group | {"params": stacked})
        if rest:
            parts.append(group | {"params": rest, "lr": REST})
    return torch.optim.AdamW(parts, betas=(0.9, 0.95))


def losses(cell: Any, rate: float) -> Any:
    """The losses of the seeds at a rate, linear in its logarithm between rates of the grid."""
    whole = np.where(np.isfinite(cell.scores), cell.scores, math.log(VOCABULARY))
    return np.array([np.interp(math.log2(rate), cell.log2_eta, of_seed) for of_seed in whole])


def by_parabola(against: Any) -> Any:
    """The exponent of the best learning rate, from the vertices of parabolas.

    Each seed has a parabola through the three rates about the lowest mean. The interval is only
    over seeds.
    """
    logs = np.log2(against.values)
    vertices = list[Any]()
    for cell in against.cells.values():
        k = min(max(int(cell.scores.mean(0).argmin()), 1), len(cell.log2_eta) - 2)
        a, b, _ = np.polyfit(cell.log2_eta[k - 1 : k + 2], cell.scores[:, k - 1 : k + 2].T, 2)
        vertices.append(-b / (2 * a))
    return mean(torch.tensor(np.polyfit(logs, np.array(vertices), 1)[0])).limits


def main() -> None:
    """Sweep, and write what was found."""
    task = nfd.Task(
        batches(STEPS, 1),
        loss,
        eval_batches=batches(8, 2),
        make_optimizer=of_experts,
        schedule=lambda step, steps: 1 - step / steps,
    )
    numbers: dict[str, Any] = {
        "rest": REST,
        "rates": RATES,
        "seeds": SEEDS,
        "steps": STEPS,
        "tokens": TOKENS,
    }
    family = nfd.Family(
        partial(Model, experts=16, top_k=2), (64, 2), "standard", "adamw", name="mixture"
    )
    with nfd.Sweep("build/experts") as sweep:
        answer = nfd.transfer(family, task, [64], [2], RATES, seeds=SEEDS, axes=AXES, sweep=sweep)
    print(answer)
    best: dict[tuple[int, int], Any] = {}
    for name, against in answer.of("standard").against.items():
        numbers[name] = {"exponent": answer.drift("standard", name).limits, "table": against.table}
        numbers[name]["exponent by parabola"] = by_parabola(against)
        for value in against.values:
            size = (int(value), 2) if name == "experts" else (16, int(value))
            best[size] = against.cells[(64, 2), value]
    tuned = best[8, 2].rate().value
    numbers["cost"] = []
    for (experts, k), cell in best.items():
        least = min(float(losses(cell, 2.0**log_rate).mean()) for log_rate in cell.log2_eta)
        none = losses(cell, tuned)
        root = losses(cell, tuned * (k / experts * 4) ** 0.5)
        row = {"experts": experts, "top_k": k, "progress": math.log(VOCABULARY) - least}
        row |= {"none": float(none.mean()) - least, "sqrt(k/E)": float(root.mean()) - least}
        numbers["cost"].append(
            row | {"sqrt(k/E) over none": mean(torch.tensor(root - none)).limits}
        )
        print(numbers["cost"][-1])
    (Path(__file__).parent / "experts.json").write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
