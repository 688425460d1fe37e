"""What a check saves by ending at the first look that decides, and what that does to its errors.

Ladders are the cases of ``calibration.verdicts`` over a factor of 8 along their axis, and twelve
along both axes. They are trained once from six or nine seeds, and every three seeds are a check: of
all networks, and of the looks of ``nfd.meters.designs``.

    python -m calibration.check_looks BANK

Ladders that the file BANK lacks are trained, ten minutes of one core for all; docs/verdicts.md
takes five more, for checks that are made whole to time them and for simulated ones.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from calibration.verdicts import CASES, DOCS, PAGE, Case, bank, looks_of
from makers.pages.words import paragraph
from makers.tables import fill_page, markdown
from nfd.core.estimates import LEVEL, Interval, pooled_slope
from nfd.core.files import write_json
from nfd.core.names import AXES, SEEDS
from nfd.core.tables import Row
from nfd.meters.designs import Asked, Design, designs_of, undecided
from nfd.meters.verdict import is_fault, matters, rows

AT = (3, 10)
NUMBERS = DOCS / "check-looks.json"


@dataclass(frozen=True)
class Ladder:
    """The networks of a case: of four sizes along its axis, or of three widths and three depths."""

    case: Case
    is_of_both: bool = False

    def __str__(self) -> str:
        return f"{self.case}, both axes" if self.is_of_both else str(self.case)

    @property
    def sizes(self) -> dict[str, list[int]]:
        """The widths and depths that are trained."""
        if self.is_of_both:
            return {"width": [32, 64, 128], "depth": [2, 4, 8]}
        sizes: dict[str, list[int]] = {"width": [64], "depth": [3]}
        return sizes | {self.case.axis: self.case.sizes[:4]}

    @property
    def groups(self) -> int:
        """How many checks its seeds make."""
        return 2 if self.is_of_both else 3

    def train(self) -> list[Row]:
        """Train its networks: a row of each with its meters after every step of ``AT``."""
        seeds = self.groups * SEEDS
        return looks_of(self.case.check_of(self.sizes, seeds=seeds, at=AT, remedy=False))


BOTH = (
    Case("mlp", "complete-p", "adamw", 3e-3, "width"),
    Case("mlp", "complete-p", "sgd", 0.1, "width"),
    Case("mlp", "complete-p", "muon", 0.02, "width"),
    Case("gpt", "complete-p", "adamw", 3e-3, "width"),
    Case("gpt", "complete-p", "sgd", 0.3, "width"),
    Case("resnet2c", "complete-p", "adam", 0.02, "width"),
    Case("mlp", "standard", "adamw", 3e-3, "width", "width"),
    Case("mlp", "standard", "sgd", 0.1, "width", "width"),
    Case("mlp", "mup", "adamw", 3e-3, "width", "branch"),
    Case("mlp", "depth-mup", "adamw", 3e-3, "width", "collapse"),
    Case("gpt", "standard", "adamw", 3e-3, "width", "width"),
    Case("gpt", "mup", "adamw", 3e-3, "width", "branch"),
)
LADDERS = (*(Ladder(case) for case in CASES), *(Ladder(case, is_of_both=True) for case in BOTH))


@dataclass(frozen=True)
class Outcome:
    """What a check came to: whether it is wrong or undecided, and its share of the trainings."""

    is_wrong: bool
    is_open: bool
    share: float


def outcome(ladder: Ladder, looks: Sequence[Row], designs: Sequence[Design], group: int) -> Outcome:
    """Judge the networks of one design after another until they decide, as a check does."""
    for design in designs:
        places = {(width, depth, seed + group * SEEDS) for width, depth, seed in design.networks}
        seen = [run for run in looks if (run["width"], run["depth"], run["seed"]) in places]
        table = list[Row]()
        for axis in AXES:
            table += rows(seen, design.sizes, axis, ladder.case.rule, level=design.level)
        if not undecided(table):
            break
    has_fault = any(map(is_fault, table))
    is_open = not has_fault and any(map(matters, table))
    most = len(designs[-1].networks)
    return Outcome(has_fault != bool(ladder.case.fault), is_open, len(seen) / most)


def percent(shares: Iterable[float]) -> str:
    """The mean of shares in percent."""
    return f"{100 * fmean(shares):.0f}"


def by_kind(networks: dict[Ladder, list[Row]]) -> list[Row]:
    """A row for each kind of ladder and number of steps: errors and trainings of both checks."""
    table = []
    for is_of_both in (False, True):
        for fault in (False, True):
            of_kind = [
                ladder
                for ladder in networks
                if ladder.is_of_both == is_of_both and bool(ladder.case.fault) == fault
            ]
            for step in AT:
                table.append(_row(networks, of_kind, step))
    return table


def _row(networks: dict[Ladder, list[Row]], of_kind: Sequence[Ladder], step: int) -> Row:
    """Compare the checks of ladders of one kind after a step."""
    outcomes: dict[str, list[Outcome]] = {"all": [], "looks": []}
    for ladder in of_kind:
        looks = [run for run in networks[ladder] if run["step"] == step]
        for group in range(ladder.groups):
            for name, seeds in (("all", SEEDS), ("looks", None)):
                designs = designs_of(Asked(ladder.sizes, seeds))
                outcomes[name].append(outcome(ladder, looks, designs, group))
    first = of_kind[0]
    kind = "broken" if first.case.fault else "sound"
    row: Row = {
        "models": f"{kind}, {'both axes' if first.is_of_both else 'one axis'}",
        "steps": step,
        "checks": len(outcomes["all"]),
    }
    for word, attribute in (("wrong", "is_wrong"), ("undecided", "is_open")):
        counts = [sum(getattr(one, attribute) for one in outcomes[name]) for name in outcomes]
        row[f"{word}: all networks"], row[f"{word}: as few as decide"] = counts
    row["trainings, %"] = percent(one.share for one in outcomes["looks"])
    return row


def times(cases: Iterable[Case]) -> list[Row]:
    """A row for each case: trainings and processor time of its checks, with those of the remedy."""
    table = []
    for case in cases:
        row: Row = {"model": f"`{case.model}`, {case.rule}, {case.optimizer}"}
        for name, options in (("all", {"seeds": SEEDS}), ("as few as decide", {})):
            ladder = Ladder(case, is_of_both=True)
            begun = time.process_time()
            check = case.check_of(ladder.sizes, at=AT[-1:], **options)
            seconds = time.process_time() - begun
            remedy = check.remedy.runs if check.remedy else []
            row[f"answer: {name}"] = check.answer.state.lower()
            row[f"trainings: {name}"] = len(check.runs) + len(remedy)
            row[f"seconds: {name}"] = f"{seconds:.1f}"
        table.append(row)
    return table


# Numbers of widths and of depths, and how many times as large the noise of the widest is
WORLDS = ((2, 1, 1), (4, 1, 1), (2, 2, 1), (3, 3, 1), (2, 1, 4), (4, 1, 4), (2, 2, 4), (3, 3, 4))


def simulated(widths: int, depths: int, ratio: float, draws: int = 4000) -> Row:
    """Count the draws in which a look contradicts the truth, an exponent of 0 in normal noise.

    ``ratio`` is the noise of the widest networks over that of the narrowest.
    """
    g = torch.Generator().manual_seed(0)
    sizes = {"width": [2**k for k in range(widths)], "depth": [2**k for k in range(depths)]}
    designs = designs_of(Asked(sizes, None))
    plain = [replace(design, level=LEVEL) for design in designs]
    counts = {"all networks": 0, "the looks": 0, "every look at 95 %": 0}
    for _ in range(draws):
        values = {}
        for width, depth, seed in designs[-1].networks:
            noise = math.pow(ratio, math.log(width) / math.log(sizes["width"][-1]))
            values[width, depth, seed] = noise * float(torch.randn((), generator=g))
        for name, looks in zip(counts, (plain[-1:], designs, plain), strict=True):
            counts[name] += any(_slope(design, values).resolved for design in looks)
    row: Row = {"widths x depths": f"{widths} x {depths}", "noise": f"x {ratio:g}"}
    return row | {name: percent([count / draws]) for name, count in counts.items()}


def _slope(design: Design, values: Mapping[tuple[int, int, int], float]) -> Interval:
    """Fit the exponent of width to the networks of a look."""
    points = [(math.log(place[0]), place[1], values[place]) for place in design.networks]
    x, group, y = torch.tensor(points, dtype=torch.float64).T
    return pooled_slope(x, y, group, design.level)


def read() -> dict[str, list[Row]]:
    """The stored tables."""
    tables: dict[str, list[Row]] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    return tables


def texts(tables: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """The texts of the page about checks of as few networks as decide."""
    looks = tables["looks"]
    of_one = [row for row in looks if row["models"].endswith("one axis")]
    of_both = [row for row in looks if row["models"].endswith("both axes")]
    seconds = {}
    for name in ("all", "as few as decide"):
        seconds[name] = sum(float(row[f"seconds: {name}"]) for row in tables["times"])
    saved = (
        f"Checks along one axis take {_trainings(of_one):.0f} % of the trainings, along both "
        f"{_trainings(of_both):.0f} %; {len(tables['times'])} whole checks of both axes, with the "
        "networks of the remedy, took "
        f"{100 * seconds['as few as decide'] / seconds['all']:.0f} % of the processor time."
    )
    ends = {}
    for name in ("all networks", "the looks"):
        shares = [int(row[name]) for row in tables["simulated"]]
        ends[name] = f"{min(shares)} to {max(shares)} %"
    noise = (
        "Of simulated checks of an exponent of 0, all networks contradict it in "
        f"{ends['all networks']}, the looks in {ends['the looks']}."
    )
    table = [_shown(row) for row in looks if row["steps"] == AT[-1]]
    return {"looks": markdown(table), "saved": paragraph(saved), "simulated": paragraph(noise)}


def _shown(row: Row) -> Row:
    """A row of the page: counts of all networks, and of as few as decide."""
    cells: Row = {"models": row["models"], "checks": row["checks"]}
    for word in ("wrong", "undecided"):
        counts = [row[f"{word}: {name}"] for name in ("all networks", "as few as decide")]
        cells[f"{word}: all, few"] = f"{counts[0]}, {counts[1]}"
    return cells | {"trainings, %": row["trainings, %"]}


def _trainings(rows: Sequence[Row]) -> float:
    """The mean share of the trainings over all checks of rows, in percent."""
    checks = sum(int(row["checks"]) for row in rows)
    total = sum(int(row["checks"]) * float(row["trainings, %"]) for row in rows)
    return total / checks


if __name__ == "__main__":
    torch.set_num_threads(1)
    networks = bank(Path(sys.argv[1]), LADDERS)
    measured = {
        "looks": by_kind(networks),
        "times": times(BOTH[::2]),
        "simulated": [simulated(*world) for world in WORLDS],
    }
    write_json(NUMBERS, measured)
    fill_page(PAGE, texts(measured))
