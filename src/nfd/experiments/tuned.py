"""What a stored transfer tuned, for the plan of a larger network.

This is a rule, an optimizer, a base and a learning rate.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nfd.core.errors import InputError
from nfd.core.estimates import Interval
from nfd.core.files import expanded
from nfd.core.names import AXES, RULE
from nfd.core.tables import Row
from nfd.core.words import listed
from nfd.laws.best_rate import in_words

_RESULT = "result.json"
_COMMAND = "nfd transfer"
# The rule of runs whose log names none
_LOGGED = "logged"


@dataclass(frozen=True)
class Tuned:
    """The smallest network of a transfer under one rule, and its best learning rate.

    ``lr`` has the 95 % interval, and is a rate of the base, which is the smallest network unless a
    family had another. ``verdict`` says whether it transfers to the ``largest`` network under this
    rule. ``model`` is ``setup.py:ViT``, empty where nobody says.
    """

    place: str
    rule: str
    size: tuple[int, int]
    base: tuple[int, int]
    lr: Interval
    optimizer: str | None = None
    verdict: str = ""
    largest: tuple[int, int] = (0, 0)
    model: str = ""

    def __str__(self) -> str:
        return f"From {self.place}, under {self.rule}: {self.evidence}."

    @property
    def evidence(self) -> str:
        """The best rate with its interval, in a sentence without a full stop."""
        width, depth = self.size
        sentence = f"the best learning rate at width {width}, depth {depth}"
        if self.base != self.size:
            sentence += f", in rates of the base {in_words(self.base)},"
        return f"{sentence} is {self.lr.in_words()}"

    def doubts(self, model: str) -> list[str]:
        """What speaks against the rate for a model, in parts of a sentence.

        Args:
            model: as ``model`` here.
        """
        doubts = []
        if self.model and model and Path(self.model).name != Path(model).name:
            doubts.append(
                f"the rate was tuned on {self.model}, not on {model}, which may need another"
            )
        if self.verdict == "UNCERTAIN":
            width, depth = self.largest
            doubts.append(
                f"the transfer was not decided: tested to width {width}, depth {depth} only"
            )
        if self.verdict == "COSTS":
            doubts.append("this rate is known to cost too much in larger networks")
        return doubts

    @staticmethod
    def read(path: str, rule: str | None = None, base: tuple[int, int] | None = None) -> Tuned:
        """Read the answer of ``nfd transfer`` from its directory or its ``result.json``.

        Args:
            path: of the directory or the file.
            rule: one of those that were compared; by default the rule that a plan has. Of a log
                that names no rule it is the one under which its runs were trained.
            base: of a log without widths or depths, width and depth of its smallest network.

        Raises:
            InputError: where no transfer is stored, or none of the rule, or the best rate lies
                outside of the grid; where a log lacks the rule, the widths or the depths, and
                nobody says them.
        """
        file = expanded(path)
        if file.is_dir():
            file /= _RESULT
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            command = " ".join(str(stored.get("command", _COMMAND)).split()[:2])
            if command != _COMMAND:
                raise ValueError(f"it is the answer of {command}")
            rows = list[Row]()
            for row in stored["table"]:
                if row["quantity"] == "best lr" and row["width"] is not None:
                    rows.append(row)
            rules = list(dict.fromkeys(str(row["rule"]) for row in rows))
            if not rules:
                raise ValueError("it has no best rates by width and depth")
            verdicts = {one["rule"]: one["verdict"] for one in stored.get("rules", ())}
            if rules == [_LOGGED]:
                said = _said(rows, rule, base, path)
                rows = [row | said for row in rows]
                rules = [said["rule"]]
                verdicts = {said["rule"]: verdicts.get(_LOGGED, "")}
            chosen = _chosen(rules, rule, path)
            size, lr = _smallest([row for row in rows if row["rule"] == chosen], path)
            width, depth = stored.get("base", size)
            return Tuned(
                path,
                chosen,
                size,
                (int(width), int(depth)),
                lr,
                stored.get("optimizer"),
                verdicts.get(chosen, ""),
                max((int(row["width"]), int(row["depth"])) for row in rows),
                str(stored.get("model", "")),
            )
        except InputError:
            raise
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = str(error)
            if not isinstance(error, OSError | ValueError):
                why = "its result.json is of another form"
            raise InputError(
                f"--from {path} holds no answer of {_COMMAND} ({why}). "
                "Give the directory that it wrote, such as out/transfer, or --base and --lr."
            ) from None


def _said(rows: list[Row], rule: str | None, base: tuple[int, int] | None, path: str) -> Row:
    """What the caller says of the rows of a log: their rule, and a width or depth that they lack.

    Raises:
        InputError: naming what neither the log nor the caller says.
    """
    if rule is None:
        raise InputError(
            f"--from {path} is of a log that names no rule. Say under which one its runs were "
            f"trained, such as --rule {RULE}, or --rule standard for PyTorch's defaults."
        )
    # A log without depths has 1 in their place.
    unsaid = [axis for axis in AXES if all(row[axis] == 1 for row in rows)]
    if unsaid and base is None:
        raise InputError(
            f"--from {path} is of a log that names no {listed(unsaid)}. Say which its smallest "
            "network has: --base WIDTH DEPTH."
        )
    sizes = dict(zip(AXES, base or (), strict=False))
    return {"rule": rule} | {axis: sizes[axis] for axis in unsaid}


def _chosen(rules: list[str], rule: str | None, path: str) -> str:
    """Return the rule asked for, else the one that plans have by default, else the only one."""
    if rule in rules:
        return rule
    if rule is None and RULE in rules:
        return RULE
    if rule is None and len(rules) == 1:
        return rules[0]
    asked = "Choose one with --rule" if rule is None else f"got --rule {rule}"
    raise InputError(f"--from {path} has rates under {listed(rules)}; {asked}.")


def _smallest(rows: list[Row], path: str) -> tuple[tuple[int, int], Interval]:
    """Return the smallest size and its best rate.

    Raises:
        InputError: where the rate is not known.
    """
    row = min(rows, key=lambda row: (row["width"], row["depth"]))
    size = (int(row["width"]), int(row["depth"]))
    rate = Interval(_number(row["value"]), math.nan, _number(row["low"]), _number(row["high"]))
    if not math.isfinite(rate.value):
        raise InputError(
            f"--from {path} does not know the best rate at {in_words(size)}: it lies at an end of "
            "the grid. Run nfd transfer with other rates (--lr), or give --base and --lr."
        )
    return size, rate


def _number(value: Any) -> float:
    """Read a number; JSON has null for one that is unknown."""
    return math.nan if value is None else float(value)
