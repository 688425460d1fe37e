"""Compare branches of 1/L and of 1/sqrt(L) under Muon, at depths 4 to 64.

They are in blocks of two layers and in a GPT. Question: CompleteP and the spectral condition (arXiv
2603.00541) multiply branches by 1/L. HyperP (arXiv 2603.28743) multiplies them, and its rates, by
1/sqrt(L). Which power keeps Muon's best rate, and which trains better?

Setting: base depth 4, where the two rules are one network, and width 32. ``mlp``: pre-norm blocks
of two layers on digits. ``gpt``: pre-norm attention and MLP on bytes of Python's own library. 60
steps, rates that fall linearly to 0, 3 seeds, PyTorch's Muon for all matrices of blocks. Only its
rate is swept: AdamW has ``ADAMW_LR`` for the rest, near the best of one seed at depth 4. Losses are
of held-out data. Updates are read at the best rate of depth 4.

Written down before the main runs, after a pilot of about 50 networks of one seed, for sizes and
rates:

- A rule keeps its rate where the drift's 95 % interval lies within 0.25 doublings per doubling of
  depth, the margin of ``nfd.check``. It loses its rate where the interval lies beyond that on one
  side.
- Equal tuning: both rules at their own best rates, seed by seed. A rule trains worse where the 95 %
  interval of its loss minus that of the other lies above 0 at depth 64, on six seeds that chose no
  rate.
- The answer for a model is a rule's power where the rule keeps its rate and does not train worse,
  while the other loses its rate or trains worse; "either" where both keep it and neither trains
  worse; else "undecided".
- The question has an answer where both models have the same one.

Inner updates, what inner layers do to the function, and regrets are told beside it and decide
nothing.

This left the GPT undecided: the drift under 1/L was -0.07 [-0.29, 0.15]. So the rates ``BETWEEN``
were ``added`` to it, at all depths and under both rules, with the same criteria.

Run: ``python -m studies.muon_depth`` writes ``studies/muon_depth.json``; after a stop it goes on.
"""

from __future__ import annotations

import json
import math
import sys
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import nfd
from nfd.core.estimates import Interval, mean
from nfd.data import digits
from studies.byte_gpt import BYTES, LENGTH, held_out, windows

WIDTH = 32
DEPTHS = [4, 8, 16, 32, 64]
STEPS = 60
SEEDS = 3
ADAMW_LR = 3e-2
HEAD = 16
RATES = {"mlp": [2.0**k for k in range(-6, -1)], "gpt": [2.0**k for k in range(-5, -1)]}
BETWEEN = [2.0**-4.5, 2.0**-3.5]
MARGIN = 0.25
PAGE = Path(__file__).with_suffix(".json")
POWERS = {"complete-p": "1/L", "depth-mup": "1/sqrt(L)"}


class TwoLayers(nn.Module):
    """A norm and two layers, added to the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, h: Tensor) -> Any:
        return h + self.down(nn.functional.gelu(self.up(self.norm(h))))


class Attention(nn.Module):
    """A norm and causal attention, added to the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Any:
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, -1, HEAD)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return h + self.out(attended.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Pixels to logits of digits."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.read = nn.Linear(64, width)
        self.blocks = nn.Sequential(*(TwoLayers(width) for _ in range(depth)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, 10, bias=False)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.norm(self.blocks(self.read(x))))


class GPT(nn.Module):
    """Bytes to logits of the next byte."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(
            *(nn.Sequential(Attention(width), TwoLayers(width)) for _ in range(depth))
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, BYTES, bias=False)

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.places.weight)))


def task(name: str) -> nfd.Task:
    """The task of a model: batches of digits or bytes, and held-out ones."""
    data = digits()
    test = held_out()[0]
    if name == "mlp":
        batches = list(zip(*data.batches(32, STEPS, 0), strict=True))
        last = (data.test_inputs, data.test_labels)
    else:
        batches = [(rows[:, :-1], rows[:, 1:]) for rows in windows(STEPS, 4)]
        last = (test[:, :-1], test[:, 1:])
    return nfd.Task(
        batches,
        eval_batches=[last],
        schedule=lambda step, steps: 1 - step / steps,
        adamw_lr=ADAMW_LR,
    )


def worse(answer: nfd.Transfer, size: tuple[int, int]) -> Interval:
    """The loss of 1/sqrt(L) minus that of 1/L, both at their best rates, seed by seed."""
    return mean(answer.of("depth-mup").reached(size) - answer.of("complete-p").reached(size))


def power_of_depth(answer: nfd.Transfer) -> str:
    """The power of L, by the criteria above."""
    apart = worse(answer, [*answer.of("complete-p").cells][-1])
    behind = {"complete-p": apart.high < 0, "depth-mup": apart.low > 0}
    keeps = dict[str, bool]()
    fails = dict[str, bool]()
    for rule in POWERS:
        drift = answer.drift(rule, "depth")
        keeps[rule] = drift.low > -MARGIN and drift.high < MARGIN
        fails[rule] = drift.low > MARGIN or drift.high < -MARGIN or behind[rule]
    for rule, other in (("complete-p", "depth-mup"), ("depth-mup", "complete-p")):
        if keeps[rule] and not behind[rule] and fails[other]:
            return POWERS[rule]
    if all(keeps.values()) and not any(behind.values()):
        return "either"
    return "undecided"


def finer(family: nfd.Family, given: nfd.Task, sweep: nfd.Sweep) -> nfd.Transfer:
    """The answer of all rates that are stored and those between, at every depth."""
    places = product(POWERS, DEPTHS, range(SEEDS), BETWEEN)
    sweep.run([nfd.Trial(family.under(rule), given, WIDTH, *place) for rule, *place in places])
    rows = list[dict[str, Any]]()
    for run in sweep.store.records():
        if run.config["observe"] or run.config["seed"] >= SEEDS:
            continue
        row = {key: run.config[key] for key in ("rule", "width", "depth", "seed", "lr")}
        rows.append(row | {"loss": run.metrics["test_loss"]})
    return nfd.fit_transfer(rows, guess=math.log(BYTES))


def measured(name: str) -> dict[str, Any]:
    """Train one model, and return what the page says of it."""
    family = nfd.Family(
        {"mlp": MLP, "gpt": GPT}[name], (WIDTH, DEPTHS[0]), "complete-p", "muon", name=name
    )
    given = task(name)
    with nfd.Sweep(f"build/muon-depth/{name}") as sweep:
        answer = nfd.transfer(
            family, given, [WIDTH], DEPTHS, RATES[name], rules=[*POWERS], seeds=SEEDS, sweep=sweep
        )
        lr = float(f"{answer.best('complete-p', WIDTH, DEPTHS[0]).value:.3g}")
        print(answer, power_of_depth(answer), sep="\n", flush=True)
        numbers: dict[str, Any] = {"answer": power_of_depth(answer), "lr": lr, "rules": {}}
        for rule in POWERS:
            looked = nfd.check(
                family.under(rule),
                given,
                [WIDTH],
                DEPTHS,
                lr,
                seeds=SEEDS,
                at=[10, STEPS],
                remedy=False,
                sweep=sweep,
            )
            inner = [row for row in looked.table if "inner" in row["meter"]]
            numbers["rules"][rule] = {"transfer": answer.of(rule).table, "check": inner}
        if name == "gpt":
            fine = finer(family, given, sweep)
            numbers["added"] = {"answer": power_of_depth(fine)} | {
                rule: fine.of(rule).table for rule in POWERS
            }
    numbers["1/sqrt(L) over 1/L"] = {L: worse(answer, (WIDTH, L)).limits for L in DEPTHS}
    return numbers


def main(names: list[str]) -> None:
    """Measure the models, and write what was found."""
    for name in names or [*RATES]:
        measurement = {name: measured(name)}
        stored = json.loads(PAGE.read_text()) if PAGE.exists() else {}
        PAGE.write_text(json.dumps(stored | measurement, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
