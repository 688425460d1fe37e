"""What Muon does in the limit: the best rate and the updates over width and depth, beside those of SGD and AdamW.

python examples/muon_limit.py                       # a small version, in a minute or two
python examples/muon_limit.py --full                # the numbers of docs/muon.md: about half an hour on one core

Writes muon.json, the page muon.md and its charts to --out. Stop it at any time: the page says what is missing, and the
same command goes on from there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import muon_limit_page
import wide_gpt
from kept_jobs import Found, results
from muon_limit_numbers import Row, case_name, row, rows_of_check, rows_of_transfer, write_numbers
from muon_networks import ROLES, MakeModel, Networks
from torch import Tensor

import nfd
from nfd.core.files import prepare_directory
from nfd.core.names import RuleName
from nfd.core.statistics import Interval
from nfd.data.digits import digits
from nfd.meters.verdict import Axis
from nfd.runs.executors.executor import Executor
from nfd.scaling.laws import law_of
from nfd.scaling.rules import Power

OUT = "out/muon"
MOST = 2**60  # a width that no network has
Pair = tuple[Tensor, Tensor]


# ---- what is asked --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Sizes and training that all cases share.

    Attributes:
        widths, depths: the smallest of both are the base. checked: widths of the check, dense.
        at: steps after which the check looks; the last is the number of steps.
        lr: the middle of the first rates, by optimizer; those of one kind of matrix alone are twice as large.
        adamw_lr: of what Muon leaves to AdamW.
        structured_from: the least width with structured weights.
        seeds: of networks along width, and of networks along depth. limit: the width of the prediction.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    checked: tuple[int, ...]
    at: tuple[int, ...]
    batch: int
    seeds: tuple[int, int]
    structured_from: int
    limit: int
    adamw_lr: float
    lr: tuple[tuple[str, float], ...] = (("muon", 0.03), ("sgd", 0.2), ("adamw", 0.008))

    @property
    def base(self) -> tuple[int, int]:
        """The network that rates are tuned at."""
        return self.widths[0], self.depths[0]


@dataclass(frozen=True)
class Case:
    """The best rates along one axis, and what a check sees of the updates along it.

    Attributes:
        power: p of a factor ``l^p`` on Muon's rates, with l the depth over the base's; 0 is the rule itself.
        trains: which matrices of the blocks train.
    """

    setting: Setting
    optimizer: str
    rule: RuleName
    axis: Axis
    power: float = 0.0
    trains: tuple[str, ...] = ROLES

    model: ClassVar[str] = ""

    @property
    def name(self) -> str:
        """Of its file, and of its rows."""
        return case_name(self.optimizer, self.rule, self.axis, self.power, self.trains, self.model)

    @property
    def law(self) -> str:
        """The name of the optimizer's law: with the power of depth in it, and AdamW's with a rate of its own for what
        Muon would leave to it."""
        own = law_of(self.optimizer)
        if self.optimizer == "adamw":
            own = replace(own, name="adamw in blocks", rest="adamw")
        if self.power:
            own = replace(own, name=f"{own.name} l^{self.power:g}", unit=own.unit * Power(depth=-self.power))
        return nfd.register_optimizer(own).name

    @property
    def batches(self) -> list[Pair]:
        """A batch of digits for every step."""
        return list(zip(*digits().batches(self.setting.batch, self.setting.at[-1], 0), strict=True))

    @property
    def eval_batches(self) -> list[Pair]:
        """The digits that no network is trained on."""
        return [(digits().test_inputs, digits().test_labels)]

    @property
    def sizes(self) -> tuple[Sequence[int], Sequence[int]]:
        """Widths and depths; an optimizer of single entries needs stored weights, and has the widths of the check."""
        n, L = self.setting.base
        widths = self.setting.widths if law_of(self.optimizer).equivariant else self.setting.checked
        return (widths, [L]) if self.axis == "width" else ([n], self.setting.depths)

    @property
    def family(self) -> nfd.ConstructedFamily:
        """Its networks at every size."""
        roles = {f"1.*.{role}.weight": role for role in ROLES}
        return Networks(
            MakeModel(self.trains), self.setting.base, self.rule, self.law, "1.*", roles, self.batches[0][0],
            structured_from=self.setting.structured_from if law_of(self.optimizer).equivariant else MOST,
        )  # fmt: skip

    @property
    def rates(self) -> list[float]:
        """Five rates, half a doubling apart."""
        middle = dict(self.setting.lr)[self.optimizer] * (1 if self.trains == ROLES else 2)
        return [middle * 2 ** (k / 2) for k in range(-2, 3)]

    @property
    def seeds(self) -> int:
        """How many starts: three times as many under AdamW, whose losses are flat around the best rate."""
        return self.setting.seeds[self.axis == "depth"] * (3 if self.optimizer == "adamw" else 1)

    @property
    def rest(self) -> float | None:
        """The rate of input and readout, which SGD steps as it does the rest."""
        return None if self.optimizer == "sgd" else self.setting.adamw_lr

    def measured(self, known: Mapping[str, Found], out: Path, executor: Executor | None) -> Found:
        """Best rates, their drift and their regret; at the best rate of the smallest network, what a check sees."""
        transfer = nfd.transfer(
            self.family, *self.sizes, self.batches, rules=(self.rule,), optimizer=self.law, lr=self.rates,
            seeds=self.seeds, eval_batches=self.eval_batches, out=out, executor=executor,
            adamw_lr=self.rest,
        )  # fmt: skip
        answer = transfer.of(self.rule)
        best = {size: transfer.best(self.rule, *size) for size in answer.cells}
        rows = rows_of_transfer(answer, best, self.axis)
        if self.trains != ROLES:
            return {"rows": rows}
        small = next(iter(best.values())).value
        lr = float(f"{small:.2g}") if math.isfinite(small) else self.rates[2]
        return {"lr": lr, "rows": [*rows, *rows_of_check(self.checked(lr), self.axis)]}

    def checked(self, lr: float) -> nfd.Check:
        """What a check sees of networks with stored weights."""
        own, (widths, depths) = self.setting, self.sizes
        dense = replace(self, setting=replace(own, structured_from=MOST)).family
        return nfd.check(
            dense, own.checked if len(widths) > 1 else widths, depths, self.batches, self.rule, self.law, lr=lr,
            at=own.at, seeds=3, adamw_lr=self.rest,
        )  # fmt: skip


@dataclass(frozen=True)
class OfGpt(Case):
    """The same of the GPT of ``wide_gpt.py``, along depth."""

    model: ClassVar[str] = "gpt"

    @property
    def batches(self) -> list[Pair]:
        """Bytes of Python's own library, and the bytes that follow."""
        return list(wide_gpt.batches(self.setting.at[-1]))

    @property
    def eval_batches(self) -> list[Pair]:
        """Bytes of a file that no network is trained on."""
        return wide_gpt.held_out(8)

    @property
    def sizes(self) -> tuple[Sequence[int], Sequence[int]]:
        """Half the depths of the others, as its blocks write the stream twice, and not the largest."""
        return self.setting.widths[:1], [L // 2 for L in self.setting.depths[:3]]

    @property
    def family(self) -> nfd.ConstructedFamily:
        """GPTs under the rule."""
        base = self.setting.base[0], self.setting.base[1] // 2
        return nfd.ConstructedFamily(wide_gpt.GPT, base, self.rule, self.law, sample=self.batches[0][0])


@dataclass(frozen=True)
class Limit:
    """The loss of the infinitely wide network at the best rate of the smallest, and of finite ones at that rate."""

    case: Case

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.case.name}-limit"

    def measured(self, known: Mapping[str, Found], out: Path, executor: Executor | None) -> Found:
        """The prediction, from structured networks of two widths."""
        setting, lr = self.case.setting, known[self.case.name]["lr"]
        p = nfd.predict(
            batches=self.case.batches, make_model=MakeModel(), depth=setting.base[1], rule=self.case.rule,
            optimizer=self.case.law, lr=lr, adamw_lr=self.case.rest, base_width=setting.base[0],
            base_depth=setting.base[1], width=setting.limit, replicates=setting.seeds[0], weights="structured",
            eval_batches=self.case.eval_batches, out=out, executor=executor,
        )  # fmt: skip
        assert p.eval_interval is not None
        bias = Interval(p.eval_loss_bias or math.nan, math.nan, math.nan, math.nan)
        return {"rows": [row("limit of the loss", p.eval_interval, at=lr), row("bias of the loss", bias, p.width)]}


Job = Case | Limit


def small() -> Setting:
    """What one core does in a minute or two."""
    return Setting((64, 128), (4, 8), (64, 128), (1, 10), 32, (3, 3), 512, 1024, 1e-3)


def full() -> Setting:
    """What the page needs."""
    widths, checked = (64, 128, 256, 1024, 4096), (64, 128, 256, 512)
    return Setting(widths, (4, 8, 16, 32), checked, (1, 5, 20), 32, (3, 4), 512, 4096, 1e-3)


def jobs(setting: Setting) -> list[Job]:
    """Everything, the most important first."""
    starts: tuple[RuleName, ...] = ("complete-p", "depth-mup")
    raised: tuple[RuleName, ...] = ("depth-mup-inner", "mup")
    deep = [Case(setting, "muon", rule, "depth") for rule in starts]
    alone = [replace(case, trains=(role,)) for case in deep for role in ROLES]
    powers = [replace(case, power=power) for case in deep for power in (0.5, -0.5)]
    wide = [Case(setting, optimizer, "complete-p", "width") for optimizer in ("muon", "sgd", "adamw")]
    others = [Case(setting, name, rule, "depth") for name in ("muon", "sgd") for rule in (*starts, *raised)]
    others += [Case(setting, "adamw", rule, "depth") for rule in starts]
    gpts = [OfGpt(setting, "muon", rule, "depth") for rule in starts]
    first: list[Job] = [*deep, *alone, wide[0], *powers, Limit(wide[0])]
    return [*dict.fromkeys([*first, *others, *wide, Limit(wide[1]), *gpts, replace(gpts[0], power=0.5)])]


# ---- the whole ------------------------------------------------------------------------------------------------


def main(setting: Setting, asked: Sequence[Job], out: Path) -> None:
    """Do what is missing, and write the page anew after each job."""
    for known in results(asked, prepare_directory(out), None):
        rows: dict[str, list[Row]] = {}
        for job in (job for job in asked if job.name in known):
            rows.setdefault(job.case.name if isinstance(job, Limit) else job.name, []).extend(known[job.name]["rows"])
        write_numbers(out / "muon.json", asdict(setting), rows)
        muon_limit_page.write(out / "muon.json", out / "muon.md", out)
        print(f"{list(known)[-1]} is on {out / 'muon.md'}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every size of the page")
    parser.add_argument("--out", type=Path, default=Path(OUT), help="for runs, numbers, the page and its charts")
    given = parser.parse_args()
    chosen = full() if given.full else small()
    main(chosen, jobs(chosen), given.out)
