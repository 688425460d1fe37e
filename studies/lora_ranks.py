"""Measure how the best learning rate of LoRA moves with rank and with width.

Question: adapters ``W x + c B A x`` of a frozen Transformer are tuned at one rank, or one width.
Which factor ``c`` keeps the best rate at another: alpha / r (LoRA, arXiv 2106.09685), alpha /
sqrt(r) (rsLoRA, arXiv 2312.03732), or none?

Setting: a GPT of one pre-norm block on bytes of Python's own library, ``PRETRAINING`` steps of
AdamW, one for every seed and width, then frozen. Fine-tuning: the same bytes with upper and lower
case exchanged, ``STEPS`` steps of ``ROWS`` windows of 32 bytes, rates that fall linearly to 0, no
decay. Every matrix of the block has an adapter: A begins with deviation in^-1/2, B at 0. Alpha is
such that all factors are 1 at rank 16. A and B have one rate, but for ``plan``: there A's is
multiplied by 64 / width under AdamW, and by the root of it under Muon. Muon is PyTorch's, with its
usual factor of shape, max(1, rows / columns)^1/2. Losses are of held-out bytes. Ranks 4 to 256 are
at width 256, widths 64 to 256 at rank 16. Seeds: 3.

Drifts and intervals are those of ``nfd.fit_transfer``. The rates of a cell are octaves. It begins
with three, and one is added where the best mean lies at an end, until it lies inside, or 12 are
trained.

Written down before the main runs, after a pilot of one seed at ranks 16 and 64 that only chose
where the grids begin and how many steps there are:

- A factor keeps its rate where the drift's 95 % interval lies within 0.25 doublings per doubling,
  the margin of ``nfd.check``. It moves its rate where the interval lies outside of that on one
  side. Else it is undecided.
- AdamW, expected: an update of B is aligned with A x, so that the sum over r entries is as r.
  alpha / r keeps the rate, alpha / sqrt(r) moves it by -1/2, none by -1. rsLoRA's argument, of
  gradients that are not normalised, says that alpha / sqrt(r) keeps it.
- Muon, expected: an update of B has norm (out / r)^1/2, and A x has norm r^1/2. No factor keeps the
  rate, alpha / sqrt(r) moves it by +1/2, alpha / r by +1.
- Width, expected: one rate for A and B moves by between -1 (A's power) and 0 (B's) under AdamW, and
  between -1/2 and 0 under Muon; the rates of the plan keep it.
- The start of A: in^-1 with the rates of the plan is trained too, under AdamW. The start that is
  published stays unless its drift lies outside of the margin, and that of in^-1 within.

A later look was decided after these results were seen, as three seeds left axes undecided; it is
stored apart. Widths 32 to 256 under AdamW have 12 seeds there, the first three among them. ``plan
in rank`` gives A and B the plan's rates in rank, with 3 seeds: A's is 1, and B's 16 / (c r). Under
alpha / r that is one rate, which the main runs have.

Run: ``python -m studies.lora_ranks`` writes ``studies/lora_ranks.json``; after a stop it goes on.
``python -m studies.lora_ranks page`` makes the tables of docs/lora.md from it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import nfd
from makers.pages.words import LEVEL, paragraph, sentence
from makers.tables import fill_page, markdown
from nfd.core.tables import Row
from studies.byte_gpt import BYTES, corpus

LENGTH = 32
HEAD = 16
ROWS = 4
STEPS = 40
PRETRAINING = 200
SEEDS = 3
RANKS = [4, 16, 64, 256]
WIDTHS = [64, 128, 256]
RANK = 16
MOST_RATES = 12
NUMBERS = Path(__file__).with_suffix(".json")
PAGE = Path(__file__).parents[1] / "docs/lora.md"
MARGIN = 0.25
FACTORS: dict[str, Callable[[int], float]] = {
    "alpha/r": lambda rank: RANK / rank,
    "alpha/sqrt(r)": lambda rank: math.sqrt(RANK / rank),
    "none": lambda rank: 1.0,
}
# The exponents of 2 of the middle rate of a grid at rank 16, from the pilot.
FIRST = {"adamw": -7, "muon": -5}
EXPECTED = {
    ("adamw", "alpha/r"): 0.0,
    ("adamw", "alpha/sqrt(r)"): -0.5,
    ("adamw", "none"): -1.0,
    ("muon", "alpha/r"): 1.0,
    ("muon", "alpha/sqrt(r)"): 0.5,
    ("muon", "none"): 0.0,
}
LATER_SEEDS = 12
# The rule that `nfd.fit_transfer` gives to rows that name none.
RULE = "logged"
MUON = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Cell:
    """Fine-tuning runs that differ in the learning rate and the seed.

    ``rates`` says how those of A and B follow width: "one", or "plan". "plan in rank" says how
    they follow rank. ``start`` is the power of the fan-in with which A begins.
    """

    optimizer: str
    factor: str
    rank: int
    width: int
    rates: str = "one"
    start: float = -0.5

    @property
    def rate_of_a(self) -> float:
        """The learning rate of A over the one of B."""
        power = {"adamw": 1.0, "muon": 0.5}[self.optimizer]
        return (WIDTHS[0] / self.width) ** power if self.rates == "plan" else 1.0

    @property
    def rate_of_b(self) -> float:
        """The learning rate of B over the grid's one."""
        undone = self.rank * FACTORS[self.factor](self.rank)
        return RANK / undone if self.rates == "plan in rank" else 1.0

    @property
    def first_exponent(self) -> int:
        """Where the grid begins: the exponent of the middle rate."""
        if self.rates == "plan in rank":
            return FIRST[self.optimizer]
        drift = EXPECTED[self.optimizer, self.factor] * math.log2(self.rank / RANK)
        return FIRST[self.optimizer] + round(drift)


def shapes(width: int) -> list[tuple[int, int]]:
    """The matrices of the block, as (inputs, outputs)."""
    return [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]


def exchanged(text: Tensor) -> Tensor:
    """Bytes with upper and lower case exchanged."""
    lower = (text >= 97) & (text <= 122)
    upper = (text >= 65) & (text <= 90)
    return text - 32 * lower.long() + 32 * upper.long()


def windows(seed: int, steps: int, rows: int) -> list[Tensor]:
    """Random windows ``[rows, length + 1]`` of the bytes to train on, for every step."""
    text = corpus()[0]
    stream = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(steps):
        starts = torch.randint(len(text) - LENGTH, (rows, 1), generator=stream)
        batches.append(text[starts + torch.arange(LENGTH + 1)].long())
    return batches


@cache
def held_out() -> Tensor:
    """Windows ``[64, length + 1]`` of bytes that no run is trained on, with cases exchanged."""
    text = corpus()[1]
    starts = torch.linspace(0, len(text) - LENGTH - 1, 64).long()[:, None]
    return exchanged(text[starts + torch.arange(LENGTH + 1)].long())


def logits(base: list[Tensor], adapters: list[Tensor], factor: float, ids: Tensor) -> Tensor:
    """Logits ``[runs, batch, length, 256]`` of runs that share a frozen base.

    Args:
        base: embeddings of bytes and of places, the matrices of the block, and the head.
        adapters: A ``[runs, inputs, r]`` and B ``[runs, r, outputs]`` of every matrix; or none.
    """
    width = base[0].shape[1]
    runs = len(adapters[0]) if adapters else 1

    def apply(k: int, h: Tensor) -> Tensor:
        out = h @ base[2 + k]
        if adapters:
            out = out + factor * ((h @ adapters[2 * k]) @ adapters[2 * k + 1])
        return out

    embedded = functional.embedding(ids, base[0]) + base[1]
    h = embedded.flatten(0, 1).expand(runs, -1, -1)
    mixed = apply(0, functional.layer_norm(h, (width,)))
    q, k, v = mixed.view(runs * len(ids), LENGTH, 3, -1, HEAD).permute(2, 0, 3, 1, 4)
    attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    h = h + apply(1, attended.transpose(1, 2).reshape(h.shape))
    raised = apply(2, functional.layer_norm(h, (width,)))
    h = h + apply(3, functional.gelu(raised, approximate="tanh"))
    return functional.layer_norm(h, (width,)) @ base[-1]


def losses(base: list[Tensor], adapters: list[Tensor], factor: float, rows: Tensor) -> Tensor:
    """Mean losses, by run."""
    each = logits(base, adapters, factor, rows[:, :-1])
    targets = rows[:, 1:].flatten().repeat(len(each))
    return (
        functional.cross_entropy(each.flatten(0, 1), targets, reduction="none")
        .view(len(each), -1)
        .mean(1)
    )


@cache
def base_of(width: int, seed: int) -> list[Tensor]:
    """Train a base with AdamW, in the widths' own parametrization, and return its weights."""
    stream = torch.Generator().manual_seed(seed)
    weights = [torch.randn(size, width, generator=stream) * 0.3 for size in (BYTES, LENGTH)]
    for into, out in shapes(width):
        weights.append(torch.randn(into, out, generator=stream) * into**-0.5)
    weights.append(torch.randn(width, BYTES, generator=stream) * 8 / width)
    rates = [0.01, 0.01] + [0.01 * WIDTHS[0] / into for into, _ in shapes(width)]
    rates.append(0.01 * WIDTHS[0] / width)
    for weight in weights:
        weight.requires_grad_()
    groups = [{"params": [w], "lr": rate} for w, rate in zip(weights, rates, strict=True)]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.95))
    fall = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / PRETRAINING)
    for rows in windows(100 + seed, PRETRAINING, 8):
        optimizer.zero_grad()
        torch.autograd.backward(losses(weights, [], 0.0, rows).sum())
        optimizer.step()
        fall.step()
    return [weight.detach() for weight in weights]


def orthogonal(gradient: Tensor) -> Tensor:
    """Return Muon's update, by five Newton-Schulz iterations, for a stack of matrices."""
    is_tall = gradient.shape[-2] > gradient.shape[-1]
    x: Tensor = gradient.mT if is_tall else gradient
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = MUON
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    turned: Tensor = x.mT if is_tall else x
    return turned


def updates(optimizer: str, step: int, gradient: Tensor, state: list[Tensor]) -> Tensor:
    """Return what an optimizer subtracts at rate 1, and keep its moments."""
    mean, square = state
    if optimizer == "muon":
        mean.lerp_(gradient, 0.05)
        # Here matrices are (inputs, outputs): rows and columns are the other way round.
        scale = math.sqrt(max(1.0, gradient.shape[-1] / gradient.shape[-2]))
        return orthogonal(gradient.lerp(mean, 0.95)) * scale
    mean.lerp_(gradient, 0.1)
    square.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
    corrected: Tensor = square.div(1 - 0.95 ** (step + 1)).sqrt_().add_(1e-8)
    unbiased: Tensor = mean / (1 - 0.9 ** (step + 1))
    return unbiased / corrected


def tuned(cell: Cell, exponents: list[float], seed: int) -> list[float]:
    """Fine-tune one run for every rate, and return their losses on held-out bytes."""
    base = base_of(cell.width, seed)
    factor = FACTORS[cell.factor](cell.rank)
    stream = torch.Generator().manual_seed(1000 + seed)
    adapters = list[Tensor]()
    for into, out in shapes(cell.width):
        usual = into**-0.5 * (cell.width / WIDTHS[0]) ** (cell.start + 0.5)
        a = torch.randn(into, cell.rank, generator=stream) * usual
        adapters.append(a.repeat(len(exponents), 1, 1).requires_grad_())
        adapters.append(torch.zeros(len(exponents), cell.rank, out).requires_grad_())
    moments = [[torch.zeros_like(p), torch.zeros_like(p)] for p in adapters]
    rates = torch.tensor([2.0**k for k in exponents])[:, None, None]
    for step, rows in enumerate(windows(10_000 + seed, STEPS, ROWS)):
        loss = losses(base, adapters, factor, exchanged(rows)).sum()
        gradients = torch.autograd.grad(loss, adapters)
        with torch.no_grad():
            for k, (p, gradient) in enumerate(zip(adapters, gradients, strict=True)):
                update = updates(cell.optimizer, step, gradient, moments[k])
                relative = cell.rate_of_b if k % 2 else cell.rate_of_a
                p.sub_(update * (rates * relative * (1 - step / STEPS)))
    with torch.no_grad():
        final = losses(base, adapters, factor, held_out())
    return [loss if math.isfinite(loss) else math.inf for loss in final.tolist()]


def rows_of(cell: Cell, seeds: range, most: int = MOST_RATES) -> dict[float, list[float]]:
    """Losses by rate and seed, where the best mean does not lie at an end of the rates."""
    middle = cell.first_exponent
    measured = dict[float, list[float]]()
    wanted = [middle - 1.0, middle + 0.0, middle + 1.0]
    while wanted:
        of_seeds = [tuned(cell, wanted, seed) for seed in seeds]
        for exponent, of_rate in zip(wanted, zip(*of_seeds, strict=True), strict=True):
            measured[exponent] = list(of_rate)
        best = min(measured, key=lambda exponent: sum(measured[exponent]))
        wanted = []
        # The bowl needs a rate on each side that is worse.
        for beside in (best - 1, best + 1):
            if beside not in measured and len(measured) < most:
                wanted.append(beside)
    return measured


def cells() -> list[Cell]:
    """All cells: cheap ones first."""
    listed = list[Cell]()
    for rank in RANKS:
        # At rank 16 all factors are 1.
        factors = ["none"] if rank == RANK else [*FACTORS]
        for optimizer in FIRST:
            listed += [Cell(optimizer, factor, rank, WIDTHS[-1]) for factor in factors]
    for optimizer in FIRST:
        for width in WIDTHS:
            listed.append(Cell(optimizer, "none", RANK, width, "one"))
            listed.append(Cell(optimizer, "none", RANK, width, "plan"))
    listed += [Cell("adamw", "none", RANK, width, "plan", -1.0) for width in WIDTHS[1:]]
    return sorted(dict.fromkeys(listed), key=lambda cell: cell.rank)


def later_cells() -> dict[Cell, int]:
    """Say how many seeds the cells of the later look have."""
    seeds = dict[Cell, int]()
    for width in [*WIDTHS, WIDTHS[0] // 2]:
        for rates, start in (("one", -0.5), ("plan", -0.5), ("plan", -1.0)):
            seeds[Cell("adamw", "none", RANK, width, rates, start)] = LATER_SEEDS
    for factor in ("none", "alpha/sqrt(r)"):
        for rank in (4, 64, 256):
            seeds[Cell("adamw", factor, rank, WIDTHS[-1], "plan in rank")] = SEEDS
    return seeds


def answers(numbers: Any, look: str = "first") -> dict[str, nfd.Transfer]:
    """Fit the drift of the best rate of every question, by its name; sizes stand as widths.

    A question has the seeds that all of its cells have.

    Args:
        numbers: what is stored.
        look: "first", or "later".
    """
    losses_of = dict[str, dict[int, dict[str, list[float]]]]()
    for stored in numbers[look]:
        for question, size in _questions(Cell(**stored["cell"]), look):
            losses_of.setdefault(question, {})[size] = stored["losses"]
    return {
        question: nfd.fit_transfer(_table(sizes)) for question, sizes in sorted(losses_of.items())
    }


def _table(sizes: dict[int, dict[str, list[float]]]) -> list[dict[str, float]]:
    """The rows of one question, of the seeds that all cells have."""
    seeds = min(len(losses_of) for rates in sizes.values() for losses_of in rates.values())
    rows = []
    for size, rates in sizes.items():
        for exponent, losses_of in rates.items():
            for seed, loss in enumerate(losses_of[:seeds]):
                row = {"width": size, "lr": 2.0 ** float(exponent), "seed": seed, "loss": loss}
                rows.append(row)
    return rows


def _questions(cell: Cell, look: str) -> list[tuple[str, int]]:
    """Name the questions that a cell is a part of, and its size in each."""
    questions = []
    is_usual = cell.rates == "one" and cell.start == -0.5
    if is_usual and cell.width == WIDTHS[-1]:
        factors = [*FACTORS] if cell.rank == RANK else [cell.factor]
        endings = {"first": "", "later": ", plan"}
        for factor in factors:
            questions.append((f"{cell.optimizer}, rank, {factor}{endings[look]}", cell.rank))
    if cell.rates == "plan in rank":
        questions.append((f"{cell.optimizer}, rank, {cell.factor}, plan", cell.rank))
    if cell.rank != RANK:
        return questions
    if cell.start == -0.5:
        questions.append((f"{cell.optimizer}, width, {cell.rates}", cell.width))
    # At 64, where all relations are 1, both starts are one.
    is_smallest = cell.width == WIDTHS[0] and cell.rates == "plan" and cell.optimizer == "adamw"
    if cell.start == -1.0 or is_smallest:
        questions.append(("adamw, width, plan, start in^-1", cell.width))
    return questions


def main() -> None:
    """Measure the cells that are not stored."""
    torch.set_num_threads(1)
    stored = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {"first": [], "later": []}
    wanted = {"first": dict.fromkeys(cells(), SEEDS), "later": later_cells()}
    for look, seeds_of in wanted.items():
        done = [row["cell"] for row in stored[look]]
        for cell, seeds in seeds_of.items():
            if asdict(cell) in done:
                continue
            measured = rows_of(cell, range(seeds))
            stored[look].append({"cell": asdict(cell), "losses": measured})
            NUMBERS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
            means = {k: round(sum(v) / seeds, 3) for k, v in sorted(measured.items())}
            print(look, cell, means, flush=True)


def judged(answer: nfd.Transfer) -> Row:
    """The drift of a best rate, and what the criterion says of it."""
    drift = answer.drift(RULE, "width")
    word = "undecided"
    if drift.low > MARGIN or drift.high < -MARGIN:
        word = "moves"
    elif drift.low > -MARGIN and drift.high < MARGIN:
        word = "keeps"
    text = f"{drift.value:.2f} [{drift.low:.2f}, {drift.high:.2f}]"
    return {"drift": text, "by the criterion": word}


def read() -> dict[str, Any]:
    """The stored losses."""
    numbers: dict[str, Any] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return numbers


def texts(numbers: Any) -> dict[str, str]:
    """The texts of the page, by name."""
    first = answers(numbers)
    later = answers(numbers, "later")
    ranks = list[Row]()
    for (optimizer, factor), expected in EXPECTED.items():
        name = f"{optimizer}, rank, {factor}"
        ranks.append({"optimizer, factor": _label(name), "expected": f"{expected:g}"})
        ranks[-1].update(judged(first[name]))
    return {
        "answer": _answer(first, later),
        "rank": markdown(ranks),
        "width": markdown(_in_width(first, later)),
    }


def _answer(first: dict[str, nfd.Transfer], later: dict[str, nfd.Transfer]) -> str:
    adamw = first["adamw, rank, alpha/r"].drift(RULE, "width")
    muon = first["muon, rank, none"].drift(RULE, "width")
    one = later["adamw, width, one"].drift(RULE, "width")
    plan = later["adamw, width, plan"].drift(RULE, "width")
    return paragraph(
        "**Under AdamW alpha / r moves the best learning rate least: by "
        f"{sentence(adamw.limits, level=LEVEL)} doublings per doubling of rank, from 4 to 256. "
        f"Its interval leaves the criterion of {MARGIN:g} by {adamw.high - MARGIN:.2f}, so it is "
        f"undecided. Under Muon no factor keeps it: {sentence(muon.limits)}.** In width, on a "
        f"later look, one rate for A and B moves by {sentence(one.limits)}, which excludes 0, and "
        f"the plan's rates by {sentence(plan.limits)}; by the criterion both are undecided."
    )


def _in_width(first: dict[str, nfd.Transfer], later: dict[str, nfd.Transfer]) -> list[Row]:
    """A row of the page for every case in width: the first look and the later one."""
    rows = list[Row]()
    for name, answer in first.items():
        if ", width, " not in name:
            continue
        row: Row = {"case": _label(name)}
        for look in (answer, later.get(name)):
            if look is not None:
                cells = look.of(RULE).cells
                seeds = min(len(scores.seeds) for scores in cells.values())
                sizes = f"{min(cells)[0]} to {max(cells)[0]}"
                row[f"{sizes}, {seeds} seeds"] = judged(look)["drift"]
        rows.append(row)
    return rows


def _label(question: str) -> str:
    """Name a question as the page does."""
    optimizer, _, case = question.split(", ", 2)
    names = {"one": "one rate", "plan": "rates as in the plan", "none": "no factor"}
    words = names.get(case, case)
    if case.endswith(", plan"):
        factor = case.removesuffix(", plan")
        words = f"{names.get(factor, factor)}, B's rate of the plan"
    if "start" in case:
        words = "rates as in the plan, A begins with in^-1"
    shown = {"adamw": "AdamW", "muon": "Muon"}[optimizer]
    return f"{shown}, {words}"


def pilot() -> None:
    """Say where the best rates lie, for one seed."""
    torch.set_num_threads(1)
    print("frozen", float(losses(base_of(256, 0), [], 0.0, held_out())))
    for rank in (16, 64):
        for optimizer in FIRST:
            for factor in ("alpha/r", "none"):
                cell = Cell(optimizer, factor, rank, 256)
                exponents = [cell.first_exponent + k for k in (-3.0, -1.0, 1.0, 3.0)]
                values = [round(value, 3) for value in tuned(cell, exponents, 0)]
                print(cell, dict(zip(exponents, values, strict=True)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["pilot"]:
        pilot()
    elif sys.argv[1:] == ["page"]:
        fill_page(PAGE, texts(read()))
    else:
        main()
