"""Do the inner layers of a GPT stop learning as it gets deeper, what cures it, and what is it worth?

python examples/inner_layers_gpt.py                         # under an hour on one core; resumes where it stopped
python examples/inner_layers_gpt.py --page docs             # trains nothing: writes the page again from its numbers
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import inner_layers_gpt_page
import torch
import wide_gpt
from torch import Tensor, nn

import nfd
from nfd.core.estimates import mean
from nfd.core.files import prepare_directory, write_json

OUT = "out/inner-layers"
NUMBERS = "inner-layers-gpt.json"
RULES = ("depth-mup", "depth-mup-inner", "complete-p")
RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3), "sgd": (0.05, 0.1, 0.2, 0.4, 0.8)}
METERS = ("inner_update", "function_update_inner", "stream_update", "function_update")
FIRST = 1  # the step whose exponents theory gives

Pair = tuple[Tensor, Tensor]


def make_model(width: int, depth: int) -> nn.Module:
    """A GPT over bytes."""
    return wide_gpt.GPT(width, depth)


@dataclass(frozen=True)
class Setting:
    """Networks of one width: ``depths`` to tune, ``deeper`` to measure at the best rate of the shallowest."""

    width: int = 64
    depths: tuple[int, ...] = (2, 4, 8, 16)
    deeper: tuple[int, ...] = (2, 4, 8, 16, 32)
    steps: int = 60
    seeds: int = 4

    @property
    def batches(self) -> list[Pair]:
        """Bytes of ``typing.py`` and ``inspect.py``, and the bytes that follow."""
        return list(wide_gpt.batches(self.steps))

    @property
    def held_out(self) -> list[Pair]:
        """Bytes of a file that no network is trained on."""
        return wide_gpt.held_out(8)


def measured(setting: Setting, optimizer: str, rule: str, out: Path) -> dict[str, Any]:
    """Losses at every depth, rate and seed, and the exponents of the meters at the best rate of the shallowest."""
    widths = (setting.width,)
    family = nfd.Family(make_model, (setting.width, setting.depths[0]), rule, optimizer)
    task = nfd.Task(setting.batches, eval_batches=setting.held_out)
    with nfd.Sweep(out / f"{optimizer}-{rule}") as sweep:
        transfer = nfd.transfer(
            family, task, widths, setting.depths, RATES[optimizer], seeds=setting.seeds, sweep=sweep
        )
    cells = {depth: cell for (_, depth), cell in transfer.of(rule).cells.items()}
    lr = math.pow(2, cells[setting.depths[0]].best())
    check = nfd.check(family, task, widths, setting.deeper, lr, at=(FIRST, setting.steps), seeds=setting.seeds)
    return {
        "optimizer": optimizer,
        "rule": rule,
        "lr": lr,
        "drift": transfer.drift(rule, "depth").limits,
        "losses": {depth: chosen_by_others(torch.as_tensor(cell.scores)).tolist() for depth, cell in cells.items()},
        "exponents": [row for row in check.table if row["axis"] == "depth" and row["meter"] in METERS],
        "inner": inner_updates(check),
    }


def chosen_by_others(losses: Tensor) -> Tensor:
    """``[S, E]`` to ``[S]``: of every seed the loss at the rate that is best for the other seeds, so that no seed
    chooses its own rate and the mean does not lean low."""
    every = torch.arange(len(losses))
    return torch.stack([losses[seed, losses[every != seed].mean(0).argmin()] for seed in every])


def inner_updates(check: nfd.Check) -> list[dict[str, float]]:
    """What inner layers moved in the first step, by depth: mean over seeds with its interval."""
    first = [row for row in check.rows if row["step"] == FIRST and not row["matrix"]]
    depths = sorted({row["depth"] for row in first})
    values = {L: torch.tensor([row["inner_update"] for row in first if row["depth"] == L]) for L in depths}
    return [{"depth": depth} | mean(of_depth.double()).limits for depth, of_depth in values.items()]


def main(setting: Setting, out: Path, optimizers: Sequence[str] = tuple(RATES)) -> None:
    """Measure what is missing, and write the page and its numbers into ``out``."""
    prepare_directory(out)
    answers = []
    for optimizer in optimizers:
        for rule in RULES:
            path = out / f"{optimizer}-{rule}.json"
            about = json.loads(json.dumps(asdict(setting)))
            if not path.exists() or json.loads(path.read_text())["setting"] != about:
                write_json(path, {"setting": about} | measured(setting, optimizer, rule, out))
            answers.append(json.loads(path.read_text()))
            print(f"{optimizer}, {rule}: done", flush=True)
    write_json(out / NUMBERS, {"setting": asdict(setting), "answers": answers})
    inner_layers_gpt_page.write(out, NUMBERS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(OUT))
    parser.add_argument("--page", type=Path, help=f"a folder with {NUMBERS}: write its page again")
    parser.add_argument("--small", action="store_true", help="fewer depths, steps and seeds: a minute")
    a = parser.parse_args()
    if a.page:
        inner_layers_gpt_page.write(a.page, NUMBERS)
    else:
        main(Setting(depths=(2, 4), deeper=(2, 4), steps=4, seeds=2) if a.small else Setting(), a.out)
