"""Settings that the paper leaves open: is the gap to decoupled training the same under every plausible one?

python examples/open_settings.py --data-dir DIR --store out/figures   # trains what is not stored; resumes
python examples/open_settings.py --page docs                          # trains nothing: the page again, from its numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import open_settings_page
import torch
from figure_options import parser
from torch import Tensor

import nfd
from nfd.core import interval, log_slope
from nfd.core.files import write_json
from nfd.paper.config import FigureConfig
from nfd.paper.figures import figure4
from nfd.paper.figures.making import dataset_for
from nfd.paper.figures.panels import difference, mean_of
from nfd.paper.figures.selection import Runs
from nfd.paper.runs import RunConfig, data_settings, grid, initial_seed, run_all

NUMBERS = "open-settings.json"
DEPTHS = (4, 32)
SEEDS = 3
BASE = {
    "rule": "depth-mup", "width": 128, "batch": 128, "eta_c": 0.1, "steps": 390, "every": 30,
    "feedback": list(figure4.MEMBERS),
}  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """A setting, the value that is taken in place of ours, and what that changes in a run."""

    setting: str
    value: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, data: Mapping[str, Any], seed: int = 0) -> list[RunConfig]:
        """Standard and decoupled networks at every depth."""
        settings = {**data, **BASE, "depth": list(DEPTHS), **self.changes}
        return grid(**settings, seed=[initial_seed(seed, k) for k in range(SEEDS)])


CHOICES = (
    Choice("as we take them", "T = 1, relu, one pass, eta_c = 0.1"),
    Choice("epochs", "3 epochs", {"steps": 1170, "every": 90}),
    Choice("T", "T = 0.5", {"horizon": 0.5}),
    Choice("T", "T = 2", {"horizon": 2.0}),
    Choice("activation", "tanh", {"activation": "tanh"}),
    Choice("order of the batches", "a second order", {"data_seed": 1}),
    Choice("backward copy", "a copy that is never updated", {"feedback": ["shared", "static"]}),
    Choice("what LR is", "eta = 0.1, so eta_c = 0.1/128", {"eta_c": 0.1 / 128}),
    Choice("what LR is", "eta_c = 0.02", {"eta_c": 0.02}),
    Choice("what LR is", "eta_c = 0.5", {"eta_c": 0.5}),
    Choice("momentum", "momentum 0.9, eta_c = 0.01", {"momentum": 0.9, "eta_c": 0.01}),
)


def compared(runs: Runs) -> Runs:
    """The same, where backward weights that are never updated count as decoupled ones."""
    name = {"static": "independent"}
    feedbacks = [name.get(record.config["feedback"], record.config["feedback"]) for record in runs]
    return Runs(
        [replace(record, config=record.config | {"feedback": f}) for record, f in zip(runs, feedbacks, strict=True)]
    )


def fall(losses: Tensor, depths: Sequence[int], classes: int) -> Tensor:
    """The exponent in depth of the gap over the progress, of ``figure4.late`` at every depth ``[seeds, 2, depths]``."""
    gaps = [figure4.gap_over_progress(pair, classes).abs() for pair in losses.unbind(2)]
    return log_slope(depths, torch.stack(gaps))


def measured(choice: Choice, runs: Runs, classes: int) -> dict[str, Any]:
    """What one choice gives: progress, gap over progress at every depth, its exponent, and what depth gains."""
    depths = sorted(runs.values("depth"))
    losses = torch.stack([figure4.late(runs, L) for L in depths], 2)
    shallow, deep = (runs.where(feedback="shared", depth=L).metric("train_loss") for L in (depths[0], depths[-1]))
    return {
        "setting": choice.setting, "value": choice.value,
        "progress": mean_of(figure4.made(runs, depths[-1], classes)).limits,
        "gaps": [figure4.relative_gap(runs, L, classes).limits for L in depths],
        "exponent": interval(lambda both: fall(both, depths, classes), losses).limits,
        "gain": difference(shallow, deep).limits,
    }  # fmt: skip


def main(data_dir: str | None, exact_dir: str | None, store: Path, out: Path) -> None:
    """Train what is missing, and write the numbers and the page into ``out``."""
    config = FigureConfig(data_dir=data_dir)
    dataset, data = dataset_for(config), data_settings(config)
    choices = list(CHOICES)
    if exact_dir is not None:
        exact = data_settings(FigureConfig(data_dir=exact_dir))
        choices += [Choice("images", "exact pixels", exact)]
    with nfd.Sweep(store) as sweep:
        rows = []
        for choice in choices:
            runs = compared(Runs(run_all(sweep, {"": choice.runs(data)}, f"{choice.setting}, {choice.value}")[""]))
            rows.append(measured(choice, runs, len(dataset.classes)))
    about = {"data": dataset.title, "width": BASE["width"], "depths": DEPTHS, "seeds": SEEDS, "steps": BASE["steps"]}
    write_json(out / NUMBERS, about | {"rows": rows})
    open_settings_page.write(out, NUMBERS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    options = parser(__doc__, NUMBERS)
    options.add_argument("--exact-dir", help="CIFAR-10's binary files, where --data-dir is not of exact pixels")
    a = options.parse_args()
    if a.page:
        open_settings_page.write(a.page, NUMBERS)
    else:
        main(a.data_dir, a.exact_dir, a.store, a.out)
