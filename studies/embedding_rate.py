"""Measure whether muP is the embedding's learning rate, or decay and warm-up.

A GPT on bytes is trained at widths 64 to 1,024 with AdamW. Two papers explain what muP gives with
AdamW by one part of it. Kalra and Barkeshli (arXiv 2605.21486): by the learning rate of the
embedding, which the standard scaling with a rate that falls as 1/width makes too small; so only
that rate is to be multiplied by the width. Kosson et al. (arXiv 2510.19093): except at the start it
is decay that keeps updates alike across widths, where rate times decay does not depend on width;
muP's lower rates act as a warm-up, which a longer warm-up can largely replace, at a rate that is
kept.

Setting: pre-norm GPT of depth 2, heads of 32, an MLP of twice the width, on bytes of Python's own
library; 80 steps of 256 bytes, widths 64 (the base) to 1,024 in doublings, three seeds, rates in
octaves, the loss on 4,096 held-out bytes. Matrices are initialised with variance 1/in,
embeddings with a deviation of 0.1. Recipes, m = width/64:

- standard: one rate for all tensors, at every width. by-width: the same starts, lr/m for all
  tensors.
- embedding: the same starts, lr/m for all tensors, and lr for the embeddings of bytes and positions
  (times m).
- mup: nfd's rule. mup-without: the same, and lr/m for the embeddings.
- standard-decay, mup-decay: every matrix shrinks by 0.03 per step, at every rate and width, times
  the schedule.

The schedule is a warm-up over a tenth of the steps, over half of them with decay, and a linear fall
to zero.

Written down before the main runs. A pilot of one seed at width 64 found the rates, and that 0.03
costs nothing there. Each recipe is tuned at width 64 by ``nfd.transfer`` and carried to 1,024 as it
says, on six new seeds. Its cost is its loss there minus that of muP (mup-decay for standard-decay),
paired over seeds, with a 95 % interval. Negligible is a cost under 2 % of muP's progress from log
256. A recipe "equals" muP where the interval lies below that, it "lacks" where it lies above,
else it is "undecided". Then:

- muP is the embedding's rate: "yes" where embedding equals and by-width lacks; "no" where embedding
  lacks or by-width equals; else "undecided".
- muP is decay and warm-up: "yes" where standard-decay equals and standard lacks; "no" where
  standard-decay lacks or standard equals; else "undecided".

Drifts of best rates, regrets and best losses are those of ``nfd.transfer``.

Added when muP's loss was seen to be the larger one: small-head, which is embedding with muP's start
of the head; and differences between other pairs of recipes. Widths ended at 512 at first; 1,024 was
added with the same criteria, after the answers "no" and "undecided" of width 512 were known.

Run: ``python -m studies.embedding_rate`` writes ``studies/embedding_rate.json``; with names of
recipes (those with decay, or those without) it renews only these.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

import nfd
from nfd.core.estimates import Interval, mean
from nfd.core.names import RuleName
from nfd.laws.regret import Regret
from studies.byte_gpt import BYTES, LENGTH, held_out, windows

HEAD = 32
BASE = 64
DEPTH = 2
WIDTHS = (64, 128, 256, 512, 1024)
STEPS = 80
ROWS = 4
SEEDS = 3
DECAY = 0.03
NEGLIGIBLE = 0.02
LOW = [2.0**k for k in range(-11, -5)]
HIGH = [2.0**k for k in range(-9, -4)]


@dataclass(frozen=True)
class Recipe:
    """A way to set learning rates at a width.

    Attributes:
        rule: of the plan.
        falls, embeddings_fall: powers of 1/m on learning rates, beside the rule's, of tensors that
            are no embeddings, and of embeddings.
        decay: the share by which a full step shrinks matrices.
        warmup: the share of steps in which the learning rate rises.
        head: power of 1/m on the variance of the head's initial weights.
    """

    rule: RuleName
    falls: int = 0
    embeddings_fall: int = 0
    decay: float = 0.0
    warmup: float = 0.1
    head: int = 0


RECIPES = {
    "standard": Recipe("standard"),
    "embedding": Recipe("standard", falls=1),
    "mup": Recipe("mup"),
    "by-width": Recipe("standard", falls=1, embeddings_fall=1),
    "mup-without": Recipe("mup", embeddings_fall=1),
    "small-head": Recipe("standard", falls=1, head=1),
    "standard-decay": Recipe("standard", decay=DECAY, warmup=0.5),
    "mup-decay": Recipe("mup", decay=DECAY, warmup=0.5),
}
# Differences beyond those to muP.
ADDED = [
    ("by-width", "embedding"),
    ("mup-without", "mup"),
    ("small-head", "mup"),
    ("mup", "embedding"),
]
# Recipes that are not tuned, and the recipe whose learning rate they take.
CARRIED = {"by-width": "standard", "mup-without": "mup", "small-head": "embedding"}


class Block(nn.Module):
    """Pre-norm attention, with heads of one size, and an MLP of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(h)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + cast(Tensor, self.out(attended.transpose(1, 2).flatten(2)))
        bent = functional.gelu(self.up(self.norm2(h)), approximate="tanh")
        return h + cast(Tensor, self.down(bent))


class GPT(nn.Module):
    """A GPT from bytes to logits of the next byte.

    Every parameter has ``factor``: what multiplies its learning rate, beside the rule.
    """

    def __init__(
        self, width: int, depth: int, falls: int = 0, embeddings_fall: int = 0, head: int = 0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)
        for module in self.modules():
            embeds = isinstance(module, nn.Embedding)
            for p in module.parameters(recurse=False):
                p.factor = (BASE / width) ** (embeddings_fall if embeds else falls)  # type: ignore[attr-defined]
                if p.dim() > 1:
                    nn.init.normal_(p, std=0.1 if embeds else p.shape[1] ** -0.5)
        self.head.weight.data *= (BASE / width) ** (head / 2)

    def forward(self, ids: Tensor) -> Tensor:
        return cast(
            Tensor, self.head(self.norm(self.blocks(self.tokens(ids) + self.places.weight)))
        )


def adamw(groups: list[dict[str, Any]], decay: float) -> torch.optim.Optimizer:
    """Make AdamW at a plan's rates times the factors, with a decay that no rate changes.

    A full step shrinks matrices by ``decay``.
    """
    parts = list[dict[str, Any]]()
    for group in groups:
        # The plan scales epsilon and decay group by group: tensors of two groups stay apart, though
        # their rates are equal.
        by_setting = dict[tuple[float, float], list[nn.Parameter]]()
        for p in group["params"]:
            lr = group["lr"] * p.factor
            weight_decay = decay * group["lr_scale"] / lr if p.dim() > 1 else 0.0
            by_setting.setdefault((lr, weight_decay), []).append(p)
        for (lr, weight_decay), tensors in by_setting.items():
            parts.append({"params": tensors, "lr": lr, "weight_decay": weight_decay})
    return torch.optim.AdamW(parts, betas=(0.9, 0.95), fused=True)


def warmed(step: int, steps: int, share: float) -> float:
    """Raise the learning rate over a share of the steps, then lower it linearly to zero."""
    return min((step + 1) / (share * steps), (1 - step / steps) / (1 - share))


def compared(ours: Any, mups: Any, progress: float) -> tuple[str, Interval]:
    """Say whether losses of paired seeds equal muP's or lack something, and the cost."""
    cost = mean(torch.as_tensor(ours) - torch.as_tensor(mups))
    limit = NEGLIGIBLE * progress
    if cost.high < limit:
        return "equals", cost
    if cost.low > limit:
        return "lacks", cost
    return "undecided", cost


def explains(with_it: str, without: str) -> str:
    """Say whether a part of muP gives what muP gives.

    Args:
        with_it, without: how the standard scaling compares with muP, with that part and without.
    """
    if with_it == "lacks" or without == "equals":
        return "no"
    return "yes" if (with_it, without) == ("equals", "lacks") else "undecided"


def task_and_family(name: str) -> tuple[nfd.Task, nfd.Family]:
    """Make the task and the networks of a recipe."""
    recipe = RECIPES[name]
    pairs = [(rows[:, :-1], rows[:, 1:]) for rows in [*windows(STEPS, ROWS), held_out()[0]]]
    task = nfd.Task(
        pairs[:-1],
        eval_batches=pairs[-1:],
        schedule=partial(warmed, share=recipe.warmup),
        make_optimizer=partial(adamw, decay=recipe.decay),
    )
    # The head is named only where it differs: the name of stored runs has what is named here.
    more = {"head": recipe.head} if recipe.head else {}
    make = partial(GPT, falls=recipe.falls, embeddings_fall=recipe.embeddings_fall, **more)
    family = nfd.Family(
        make, (BASE, DEPTH), recipe.rule, "adamw", name=name, version="1", sample=pairs[0][0]
    )
    return task, family


def carried(name: str, lr: float, sweep: nfd.Sweep) -> tuple[Tensor, dict[str, Any]]:
    """Train a recipe at the largest width, at a learning rate of another: losses and numbers."""
    task, family = task_and_family(name)
    seeds = range(SEEDS, 3 * SEEDS)
    trials = [nfd.Trial(family, task, WIDTHS[-1], DEPTH, seed, lr) for seed in seeds]
    raw = [record.metrics["test_loss"] for record in sweep.run(trials)]
    losses = torch.tensor([min(loss, math.log(BYTES)) for loss in raw])
    return losses, {"width": WIDTHS[-1], "carried": mean(losses).limits}


def tuned(name: str, sweep: nfd.Sweep) -> tuple[Tensor, dict[str, Any]]:
    """Tune a recipe at the base and carry its learning rate: losses and numbers."""
    task, family = task_and_family(name)
    rule = RECIPES[name].rule
    rates = LOW if name.startswith("standard") else HIGH
    answer = nfd.transfer(
        family, task, WIDTHS, [DEPTH], rates, rules=[rule], seeds=SEEDS, sweep=sweep
    )
    print(f"{name}\n{answer}", flush=True)
    of_rule = answer.of(rule)
    regret = cast("Regret", of_rule.regret)
    losses = torch.as_tensor(regret.new.scores[:, 0])
    grid = {
        width: [cell.log2_eta.tolist(), cell.scores.mean(0).tolist()]
        for (width, _), cell in of_rule.cells.items()
    }
    return losses, {
        "width": WIDTHS[-1],
        "carried lr": float(f"{answer.best(rule, BASE, DEPTH).value:.3g}"),
        "verdict": of_rule.verdict,
        "carried": mean(losses).limits,
        "table": of_rule.table,
        "grid": grid,
        "progress": math.log(BYTES) - float(regret.at_best.mean()),
    }


def main(names: list[str]) -> None:
    """Train the recipes, and write their numbers; with names, renew only these recipes."""
    path = Path(__file__).with_suffix(".json")
    numbers = json.loads(path.read_text()) if names else dict[str, Any]()
    losses = dict[str, Tensor]()
    for name in names or RECIPES:
        with nfd.Sweep(f"build/embedding-rate/{name}") as sweep:
            if name in CARRIED:
                lr = numbers[CARRIED[name]]["carried lr"]
                losses[name], numbers[name] = carried(name, lr, sweep)
            else:
                losses[name], numbers[name] = tuned(name, sweep)
    for name in losses:
        mup = "mup-decay" if name.endswith("decay") else "mup"
        numbers[name]["word"], cost = compared(losses[name], losses[mup], numbers[mup]["progress"])
        numbers[name]["cost over muP"] = cost.limits
    numbers.setdefault("added", {})
    for one, other in ADDED:
        if one in losses and other in losses:
            difference = mean(losses[one] - losses[other])
            numbers["added"][f"{one} over {other}"] = difference.limits
    word = {name: numbers[name]["word"] for name in RECIPES}
    numbers["muP is the embedding's rate"] = explains(word["embedding"], word["by-width"])
    numbers["muP is decay and warm-up"] = explains(word["standard-decay"], word["standard"])
    print({name: value for name, value in numbers.items() if isinstance(value, str)})
    path.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
