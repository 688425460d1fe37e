"""Do the laws of batch, length and decay hold on a small GPT? Best settings by measurement, beside the laws of a plan.

python examples/recipe.py --out out/recipe            # half an hour on one core; resumes where it stopped
python examples/recipe.py --out out/recipe --report   # train nothing: the numbers of what is done
python examples/recipe.py --noise                     # the noise scale of the gradients along one run, a minute
python examples/recipe.py --branch                    # the critical batch by branches of one run, five minutes
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from wide_gpt import BYTES, GPT, LENGTH

import nfd
from nfd.core.files import prepare_directory
from nfd.core.statistics import standard_errors
from nfd.meters.batch_noise import noise_of

WIDTH, DEPTH, EVALUATED = 64, 2, 64
ROWS, TOKENS, BETAS = 8, 2**16, (0.9, 0.99)  # of the small run: sequences of a step, tokens in all, AdamW's betas
RATES = tuple(2.0**k for k in range(-10, -3))
RATE = 2.0**-7  # a good one of the small run
BRANCH = 2**15  # bytes of a branch
SEEDS = 3


@dataclass(frozen=True)
class Run:
    """One training of the small GPT: linear warm-up over a sixteenth of its tokens, then linear decay to zero."""

    question: str
    rows: int
    tokens: int
    lr: float
    seed: int
    optimizer: str = "adamw"
    keeps_half_life: bool = True
    weight_decay: float = 0.0

    @property
    def steps(self) -> int:
        """How many updates."""
        return self.tokens // (self.rows * LENGTH)

    @property
    def betas(self) -> tuple[float, float]:
        """Of AdamW: with the half-life of the small run in tokens, or its betas."""
        power = self.rows / ROWS if self.keeps_half_life else 1.0
        return BETAS[0] ** power, BETAS[1] ** power

    def trained(self) -> float:
        """The loss on bytes that were not trained on; divergence counts as a uniform guess."""
        *_, (model, _) = self.states()
        return evaluated(model)

    def states(self) -> Iterator[tuple[GPT, torch.optim.Optimizer]]:
        """The network and its optimizer before training and after every update: one and the same."""
        torch.manual_seed(self.seed)
        model = GPT(WIDTH, DEPTH)
        optimizer = self.make_optimizer(model)
        yield model, optimizer
        warmup = self.steps / 16
        for step, (ids, targets) in enumerate(windows("typing.py", "inspect.py", rows=self.rows, seed=self.seed)):
            if step == self.steps:
                break
            share = min((step + 1) / (warmup + 1), (self.steps - step) / self.steps)
            for group in optimizer.param_groups:
                group["lr"] = self.lr * share
            optimizer.zero_grad()
            loss_of(model, ids, targets).backward()
            optimizer.step()
            yield model, optimizer

    def make_optimizer(self, model: GPT) -> torch.optim.Optimizer:
        """SGD or AdamW."""
        if self.optimizer == "sgd":
            return torch.optim.SGD(model.parameters(), lr=self.lr)
        return torch.optim.AdamW(model.parameters(), lr=self.lr, betas=self.betas, weight_decay=self.weight_decay)


def evaluated(model: GPT) -> float:
    """The loss on bytes that were not trained on; divergence counts as a uniform guess."""
    with torch.no_grad():
        value = float(loss_of(model, *next(windows("argparse.py", rows=EVALUATED, seed=0))))
    return min(value, math.log(BYTES)) if math.isfinite(value) else math.log(BYTES)


def loss_of(model: GPT, ids: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the next byte."""
    return cross_entropy(model(ids), targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of logits [rows, length, bytes]."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@cache
def text_of(*files: str) -> Tensor:
    """The bytes of modules of Python's own library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return torch.tensor(list(b"".join((folder / name).read_bytes() for name in files)))


def windows(*files: str, rows: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Bytes and the bytes that follow, [rows, length] each, in an endless stream."""
    text, stream = text_of(*files), torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(text) - LENGTH, (rows, 1), generator=stream)
        piece = text[starts + torch.arange(LENGTH + 1)]
        yield piece[:, :-1], piece[:, 1:]


# ---- what is asked --------------------------------------------------------------------------------------------


def questions() -> list[Run]:
    """Every run, the cheapest questions first."""
    small = Run("tokens", ROWS, TOKENS, 0.0, 0)
    lengths = [replace(small, tokens=2**k) for k in range(14, 18)]
    batches = [replace(small, question="batch", rows=rows) for rows in (32, 8, 2)]
    fixed = [replace(run, question="betas", keeps_half_life=False) for run in batches if run.rows != ROWS]
    sgd = [
        replace(run, question="sgd", optimizer="sgd", tokens=TOKENS // 2, lr=2.0**k)
        for run in batches
        for k in range(-4, 3)
    ]
    rates, others = ([replace(run, lr=lr) for run in some for lr in RATES] for some in ((*lengths, *batches), fixed))
    return [replace(run, seed=seed) for run in (*rates, *decays(small), *sgd, *others) for seed in range(SEEDS)]


def decays(small: Run) -> list[Run]:
    """Weight decays around the one whose time scale is the whole run, at the rate that the square root gives."""
    lengths = [replace(small, question="decay-tokens", tokens=2**k) for k in (15, 16, 17)]
    batches = [replace(small, question="decay-batch", rows=rows) for rows in (32, 16, 8, 4)]
    at_rate = [replace(run, lr=RATE * (run.rows / ROWS) ** 0.5) for run in (*lengths, *batches)]
    return [
        replace(run, weight_decay=1 / (run.lr * run.steps * scale)) for run in at_rate for scale in (4, 2, 1, 0.5, 0.25)
    ]


# ---- what is answered -----------------------------------------------------------------------------------------


def done(path: Path) -> dict[Run, float]:
    """Losses that are known."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {Run(**row["run"]): row["loss"] for row in map(json.loads, lines)}


def exponent(known: dict[Run, float], question: str, axis: str, setting: str) -> Any:
    """The power of the best setting against an axis, with its interval, and the best settings."""
    rows = [
        {"width": getattr(run, axis), "lr": getattr(run, setting), "seed": run.seed, "loss": loss}
        for run, loss in known.items()
        if run.question == question
    ]
    return nfd.fit_transfer(rows, guess=math.log(BYTES))


def report(known: dict[Run, float]) -> None:
    """The measured powers beside those of the laws."""
    asked: Sequence[tuple[str, str, str, str]] = (
        ("batch", "rows", "lr", "+0.5"), ("betas", "rows", "lr", "+0.5"), ("tokens", "tokens", "lr", "-0.32"),
        ("sgd", "rows", "lr", "+1"), ("decay-batch", "rows", "weight_decay", "+0.5"),
        ("decay-tokens", "tokens", "weight_decay", "-1"),
    )  # fmt: skip
    for question, axis, setting, law in asked:
        if any(run.question == question for run in known):
            print(f"== {question}: best {setting} against {axis}; the law says {law}")
            print(exponent(known, question, axis, setting))
            best: dict[int, float] = {}
            for run in known:
                if run.question == question:
                    same = replace(run, seed=0)
                    losses = [known.get(replace(same, seed=seed), math.nan) for seed in range(SEEDS)]
                    size = getattr(run, axis)
                    best[size] = min(best.get(size, math.inf), sum(losses) / SEEDS)
            print({size: round(loss, 4) for size, loss in sorted(best.items())})


def noise(at: Sequence[int] = (0, 64, 256), batches: int = 12) -> None:
    """Noise scales in sequences along one run at a good rate, on batches that it does not train on."""
    fresh = windows("typing.py", "inspect.py", rows=32, seed=1)
    for step, (model, _) in enumerate(Run("noise", ROWS, TOKENS, RATE, 0).states()):
        if step in at:
            scales = noise_of(model, model, cross_entropy, list(islice(fresh, batches)))
            print(f"after {step} steps:", {kind: str(scale.estimate()) for kind, scale in scales.items()}, flush=True)


def branch(model: GPT, optimizer: torch.optim.Optimizer, rows: int, seed: int) -> float:
    """The loss after as many bytes as a branch has, at the rate of the small run times the root of the batch."""
    model, optimizer = copy.deepcopy((model, optimizer))
    power = rows / ROWS
    for group in optimizer.param_groups:
        group.update(lr=RATE * power**0.5, betas=(BETAS[0] ** power, BETAS[1] ** power))
    for ids, targets in islice(windows("typing.py", "inspect.py", rows=rows, seed=seed), BRANCH // (rows * LENGTH)):
        optimizer.zero_grad()
        loss_of(model, ids, targets).backward()
        optimizer.step()
    return evaluated(model)


def branched(
    at: Sequence[int] = (8, 64, 192), sizes: Sequence[int] = (2, 4, 8, 16, 32, 64, 128), seeds: int = 5
) -> None:
    """Losses of branches that train on from one run, each with another batch over as many bytes."""
    for step in at:
        losses = []
        for seed in range(seeds):
            state = next(islice(Run("branch", ROWS, TOKENS, RATE, seed).states(), step, None))
            losses.append([branch(*state, rows, 100 + seed) for rows in sizes])
        for rows, own in zip(sizes, torch.tensor(losses).T, strict=True):
            difference = own - torch.tensor(losses)[:, sizes.index(ROWS)]
            reach = standard_errors(seeds - 1) * float(difference.std()) / seeds**0.5
            print(
                f"after {step} steps, {rows} sequences: {float(own.mean()):.4f}, "
                f"{float(difference.mean()):+.4f} +- {reach:.4f} over {ROWS}",
                flush=True,
            )


def main(out: Path, train: bool) -> None:
    """Do what is missing, and tell."""
    path = prepare_directory(out) / "runs.jsonl"
    known = done(path)
    for run in questions() if train else []:
        if run not in known:
            known[run] = run.trained()
            with path.open("a") as file:
                file.write(json.dumps({"run": asdict(run), "loss": known[run]}) + "\n")
    report(known)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/recipe"), help="a folder for the runs")
    parser.add_argument("--report", action="store_true", help="train nothing")
    parser.add_argument("--noise", action="store_true", help="the noise scale of the gradients")
    parser.add_argument("--branch", action="store_true", help="the critical batch by branches")
    given = parser.parse_args()
    if given.noise:
        noise()
    elif given.branch:
        branched()
    else:
        main(given.out, not given.report)
