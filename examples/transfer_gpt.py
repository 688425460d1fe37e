"""Does the best learning rate of a small GPT fit a large one, under which rule, and does a check predict it?

python examples/transfer_gpt.py                        # a small version, in minutes
python examples/transfer_gpt.py --full                 # docs/transformers.md: hours on two cores
nfd transfer examples/transfer_gpt.py --optimizer adamw   # by the shell

Writes transformers.md, its charts and their numbers to --out. Stop it at any time: the page says what is missing, and
the same command continues from there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import transfer_gpt_page
import wide_gpt
from kept_jobs import Found, done, results
from torch import Tensor, nn

import nfd
from nfd.core.estimates import mean
from nfd.core.files import prepare_directory

OUT = "out/transformers"
ADAMW = (1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
MUON = (4e-3, 8e-3, 16e-3, 32e-3, 64e-3)
EVALUATED = 8  # batches

Pair = tuple[Tensor, Tensor]


def make_model(width: int, depth: int) -> nn.Module:
    """A GPT over bytes, its heads of one size at every width."""
    return wide_gpt.GPT(width, depth)


def batches(steps: int = 40) -> list[Pair]:
    """Bytes of ``typing.py`` and ``inspect.py``, and the bytes that follow: a batch for every step."""
    return list(wide_gpt.batches(steps))


def eval_batches() -> list[Pair]:
    """Bytes of a file that no network is trained on."""
    return wide_gpt.held_out(EVALUATED)


@dataclass(frozen=True)
class Ladder:
    """Networks that grow along one axis, trained by one optimizer at every rate under one rule."""

    optimizer: str
    rule: str
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    lr: tuple[float, ...]
    steps: int
    seeds: int = 3

    @property
    def axis(self) -> str:
        """What grows."""
        return "width" if len(self.widths) > 1 else "depth"

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.optimizer}-{self.axis}-{self.rule}"

    @property
    def base(self) -> tuple[int, int]:
        """The smallest network, by which the rates of all are scaled."""
        return self.widths[0], self.depths[0]

    @property
    def family(self) -> nfd.Family:
        """Its networks at every size, those beyond the ladder too."""
        return nfd.Family(make_model, self.base, self.rule, self.optimizer, sample=batches(1)[0][0])

    @property
    def task(self) -> nfd.Task:
        """What they train on, and are judged by."""
        return nfd.Task(batches(self.steps), eval_batches=eval_batches())

    def flops(self, width: int, depth: int) -> float:
        """Of one training: products of forward and backward passes, as PyTorch counts them."""
        sample = batches(1)[0][0]
        return self.steps * len(sample) * self.family.member(width, depth).operations(sample)

    def measured(self, known: Mapping[str, Found], out: Path, workers: int | None) -> Found:
        """Best rates, their drift and their regret."""
        with nfd.Sweep(out, workers) as sweep:
            transfer = nfd.transfer(
                self.family, self.task, self.widths, self.depths, self.lr, seeds=self.seeds, sweep=sweep
            )
        answer = transfer.of(self.rule)
        curves = [
            {"width": n, "depth": L, "lr": math.pow(2, log2_rate), "seeds": losses.tolist()} | mean(losses).limits
            for (n, L), cell in answer.cells.items()
            for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T, strict=True)
        ]
        best = [
            {"width": n, "depth": L, "near": math.pow(2, cell.best())} | transfer.best(self.rule, n, L).limits
            for (n, L), cell in answer.cells.items()
        ]
        return {
            "curves": curves,
            "best": best,
            "drift": transfer.drift(self.rule, self.axis).limits,
            "regret": transfer.regret(self.rule).limits,
            "share": answer.regret.share.limits,
            "rates": [math.pow(2, rate) for rate in answer.regret.new.log2_eta],
            "verdict": transfer.verdict(self.rule),
            "doubt": answer.doubt,
            "flops": {f"{n}x{L}": self.flops(n, L) for n, L in answer.cells},
        }


@dataclass(frozen=True)
class Check:
    """``nfd.check`` of the networks of a ladder at the best rate of the smallest, after several steps."""

    ladder: Ladder
    at: tuple[int, ...]
    seeds: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.ladder.name}-check"

    def measured(self, known: Mapping[str, Found], out: Path, workers: int | None) -> Found:
        """Every exponent after every one of the steps."""
        ladder, lr = self.ladder, tuned(known, self.ladder)
        check = nfd.check(
            ladder.family, batches(self.at[-1]), ladder.widths, ladder.depths, lr, at=self.at, seeds=self.seeds
        )
        return {"lr": lr, "table": check.table, "events": [str(failure) for failure in check.failures]}


@dataclass(frozen=True)
class Larger:
    """A network beyond a ladder of widths, at the best rate of the smallest and at the rates beside it."""

    ladder: Ladder
    width: int
    factors: tuple[float, ...] = (0.5, 1.0, 2.0)

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.ladder.name}-{self.width}"

    def measured(self, known: Mapping[str, Found], out: Path, workers: int | None) -> Found:
        """Losses at every rate, by seed; a network that diverged counts as a uniform guess."""
        ladder, depth = self.ladder, self.ladder.depths[0]
        rates = [float(f"{tuned(known, ladder) * factor:.3g}") for factor in self.factors]
        family, task = ladder.family, ladder.task
        runs = [nfd.Trial(family, task, self.width, depth, s, rate) for s in range(ladder.seeds) for rate in rates]
        with nfd.Sweep(out, workers) as sweep:
            records = sweep.run_all({self.name: runs}, self.name)[self.name]
        losses = torch.tensor([record.metrics["test_loss"] for record in records], dtype=torch.float64)
        losses = losses.clamp(max=math.log(wide_gpt.BYTES)).view(-1, len(rates))
        about = {"width": self.width, "depth": depth, "flops": ladder.flops(self.width, depth)}
        return about | {"rates": rates, "losses": losses.tolist()}


Job = Ladder | Check | Larger


def tuned(known: Mapping[str, Found], ladder: Ladder) -> float:
    """The best rate of the smallest network of a ladder."""
    return float(f"{known[ladder.name]['best'][0]['near']:.3g}")


# ---- what is asked --------------------------------------------------------------------------------------------


def small() -> list[Job]:
    """What two cores do in minutes."""
    widths = Ladder("adamw", "mup", (64, 128), (2,), ADAMW, 40)
    depths = replace(widths, widths=(64,), depths=(2, 4, 8))
    ladders = [*under(("mup", "standard"), widths), *under(("mup", "complete-p"), depths)]
    return [*ladders, *checks(ladders)]


def full() -> list[Job]:
    """What the page needs, the most important first."""
    widths = Ladder("adamw", "mup", (64, 128, 256), (4,), ADAMW, 60)
    depths = replace(widths, widths=(128,), depths=(2, 4, 8, 16))
    adamw = [*under(("mup", "standard", "complete-p", "depth-mup"), widths)]
    adamw += under(("mup", "standard", "complete-p"), depths)
    last = under(("depth-mup",), depths)
    wide, deep = (replace(axis, optimizer="muon", lr=MUON) for axis in (widths, depths))
    muon = [*under(("mup", "complete-p"), wide), *under(("mup", "complete-p"), deep)]
    mup, standard = (Larger(ladder, 512) for ladder in under(("mup", "standard"), widths))
    adamw_first = [*adamw, *checks(adamw), *last, *checks(last), mup]
    muon_too = (job for ladder in muon for job in (ladder, *checks([ladder])))
    return [*adamw_first, *muon_too, standard, Larger(muon[0], 512)]


def checks(ladders: Sequence[Ladder]) -> list[Check]:
    """After the first step, the tenth and the last."""
    return [Check(ladder, (1, 10, ladder.steps), 2) for ladder in ladders]


def under(rules: Sequence[str], ladder: Ladder) -> list[Ladder]:
    """The same ladder under each rule."""
    return [replace(ladder, rule=rule) for rule in rules]


# ---- rules that are one ---------------------------------------------------------------------------------------


def scales(ladder: Ladder) -> Tensor:
    """What the rule sets in the largest network of a ladder: start, rate, decay and epsilon of every tensor."""
    model, settings = (
        make_model(ladder.widths[-1], ladder.depths[-1]),
        {"rule": ladder.rule, "optimizer": ladder.optimizer},
    )
    plan = nfd.plan(model, ladder.base, make_model=make_model, sample=batches(1)[0][0], **settings)
    starts = [plan.constant(name) or plan.std(name) for name in plan.entries]
    others = [number(name) for number in (plan.rate, plan.weight_decay, plan.epsilon) for name in plan.entries]
    return torch.tensor([*starts, *others, *plan.multipliers.values()])


def alike(first: Ladder, second: Ladder) -> bool:
    """Whether the rules of two ladders set the same; a start is measured on draws, and known to a few percent."""
    if replace(first, rule=second.rule) != second:
        return False
    one, other = scales(first), scales(second)
    return one.shape == other.shape and torch.allclose(one, other, rtol=0.05)


def distinct(jobs: Sequence[Job]) -> tuple[list[Job], dict[str, list[str]]]:
    """The jobs, with one ladder for rules that set the same along it; and by its name the rules that it stands for.

    Rules that differ in depth alone are one along width, and the other way round.
    """
    kept: list[Ladder] = []
    same: dict[str, list[str]] = {}
    for ladder in (job for job in jobs if isinstance(job, Ladder)):
        twin = next((other for other in kept if alike(other, ladder)), None)
        if twin is None:
            kept.append(ladder)
        same.setdefault((twin or ladder).name, []).append(ladder.rule)
    chosen = [job for job in jobs if (job if isinstance(job, Ladder) else job.ladder) in kept]
    return chosen, same


# ---- the whole ------------------------------------------------------------------------------------------------


def main(
    jobs: Sequence[Job], out: Path, page: Path, workers: int | None = None, option: str = "", train: bool = True
) -> None:
    """Do what is missing, and write the page anew after each job; without ``train`` write it of what is done."""
    prepare_directory(out)
    chosen, same = distinct(jobs)
    for known in results(chosen, out, workers) if train else [done(chosen, out)]:
        missing = [job.name for job in chosen if job.name not in known]
        transfer_gpt_page.write(page, out, transfer_gpt_page.Results(known, same, missing), option)
        print(f"{list(known)[-1]} is on {page}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every size of the page: hours on two cores")
    parser.add_argument("--out", type=Path, default=Path(OUT), help="for runs, numbers and charts")
    parser.add_argument("--page", type=Path, help="the page; transformers.md in --out by default")
    parser.add_argument("--workers", type=int, help="processes; as many as there are cores by default")
    parser.add_argument("--redraw", action="store_true", help="train nothing: the page of what is done")
    given = parser.parse_args()
    main(
        full() if given.full else small(),
        given.out,
        given.page or given.out / "transformers.md",
        given.workers,
        " --full" if given.full else "",
        not given.redraw,
    )
