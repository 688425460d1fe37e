"""The numbers of ``muon_limit.py``: the rows that it keeps, and how its charts and its page ask for them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import nfd
from nfd.core.files import write_text
from nfd.core.statistics import UNKNOWN, Interval, mean
from nfd.meters.verdict import Axis
from nfd.questions.rule_transfer import RuleTransfer

Row = Mapping[str, Any]

NAMES = {"muon": "Muon", "sgd": "SGD", "adamw": "AdamW"}
STARTS = ("complete-p", "depth-mup")
POWERS = (-0.5, 0.0, 0.5)
ROLES = ("inner", "outer")
METERS = ("function_update", "function_update_inner", "inner_update", "stream_update")
COLUMNS = ("case", "quantity", "size", "at", "value", "low", "high", "verdict")
"""Of a row: case; what was measured; width or depth; rate or step; the number with its 95 % interval; a verdict."""


def case_name(
    optimizer: str, rule: str, axis: str, power: float = 0.0, trains: Sequence[str] = ROLES, model: str = ""
) -> str:
    """The name of a case, by which its rows are found."""
    factor = [f"power{power:+g}"] if power else []
    alone = [] if tuple(trains) == ROLES else ["only", *trains]
    return "-".join([*([model] if model else []), optimizer, axis, rule, *factor, *alone])


# ---- what is kept ---------------------------------------------------------------------------------------------


def row(quantity: str, number: Interval, size: int | None = None, at: float | None = None, word: str = "") -> Row:
    """A row without its case, its numbers to four digits."""
    limits = {name: _short(value) for name, value in number.limits.items()}
    return {"quantity": quantity, "size": size, "at": None if at is None else _short(at), **limits, "verdict": word}


def _short(number: float) -> float | None:
    return float(f"{number:.4g}") if math.isfinite(number) else None


def rows_of_transfer(answer: RuleTransfer, best: Mapping[tuple[int, int], Interval], axis: Axis) -> list[Row]:
    """Best rates and losses by size, drift and regret."""
    assert answer.regret is not None
    place = ("width", "depth").index(axis)
    losses = [
        row("loss", mean(scores), size[place], math.pow(2, log2_rate))
        for size, cell in answer.cells.items()
        for log2_rate, scores in zip(cell.log2_eta.tolist(), cell.scores.unbind(1), strict=True)
    ]
    rates = [row("best rate", number, size[place]) for size, number in best.items()]
    drift = row("drift", answer.drifts.get(axis, UNKNOWN))
    return [*rates, drift, row("regret over progress", answer.regret.share, word=answer.verdict), *losses]


def rows_of_check(check: nfd.Check, axis: Axis) -> list[Row]:
    """Exponents of the meters after every step, and the mean over starts of what they are at every size."""
    values: dict[tuple[str, int, int], list[float]] = {}
    for seen in check.rows:
        for meter in () if seen["matrix"] else METERS:
            values.setdefault((meter, seen[axis], seen["step"]), []).append(seen.get(meter, math.nan))
    exponents = [
        row(f"{seen['meter']} exponent", slope_of(seen), at=seen["step"], word=seen["verdict"])
        for seen in check.table
        if seen["axis"] == axis and seen["meter"] in METERS
    ]
    sizes = [
        row(meter, mean(torch.tensor(own, dtype=torch.float64)), size, step)
        for (meter, size, step), own in values.items()
    ]
    return [*exponents, *sizes]


def slope_of(seen: Row) -> Interval:
    """The exponent of a row of a check."""
    return Interval(seen["slope"], math.nan, seen["low"], seen["high"])


def write_numbers(path: Path, setting: Mapping[str, Any], cases: Mapping[str, Iterable[Row]]) -> None:
    """The setting, and the rows of every case, one on a line."""
    lines = [json.dumps([case, *(own[name] for name in COLUMNS[1:])]) for case, rows in cases.items() for own in rows]
    head = f'"setting": {json.dumps(setting)},\n"columns": {json.dumps(COLUMNS)}'
    rows = ",\n".join(lines)
    write_text(path, f'{{\n{head},\n"rows": [\n{rows}\n]\n}}\n')


# ---- what is asked --------------------------------------------------------------------------------------------


class Case:
    """The rows of a case."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def every(self, quantity: str, at: float | None = None) -> Iterator[Row]:
        """The rows of a quantity; after one step, or at one rate."""
        return (r for r in self.rows if r["quantity"] == quantity and at in (None, r["at"]))

    def one(self, quantity: str, at: float | None = None) -> Row | None:
        """The first of them, if there is one."""
        return next(self.every(quantity, at), None)

    @property
    def drift(self) -> Row:
        """Doublings of the best rate per doubling of the size."""
        (drift,) = self.every("drift")
        return drift


class Results:
    """What is known so far.

    Args:
        path: of the numbers.
    """

    def __init__(self, path: Path) -> None:
        content = json.loads(path.read_text())
        self.setting: dict[str, Any] = content["setting"]
        self.cases: dict[str, list[Row]] = {}
        for values in content["rows"]:
            named = dict(zip(content["columns"], values, strict=True))
            self.cases.setdefault(named["case"], []).append(named)

    def of(self, *about: Any, **more: Any) -> Case | None:
        """A case by what ``case_name`` takes, if it is known."""
        rows = self.cases.get(case_name(*about, **more))
        return None if rows is None else Case(rows)


def interval(number: Row) -> Interval:
    """A row as an interval; unknown limits are not-a-number."""
    value, low, high = (math.nan if number[name] is None else number[name] for name in ("value", "low", "high"))
    return Interval(value, math.nan, low, high)


def plus(number: Row, more: float) -> Row:
    """A row moved by a number."""
    return {name: None if number[name] is None else number[name] + more for name in ("value", "low", "high")}
