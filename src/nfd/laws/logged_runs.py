"""The rows of a log as training runs: their values, which ended, and the last step of each.

Tokens that no column holds are steps times the batch. Of histories, many rows of one run, the last
step counts. A loss that is not a number diverged, or is a gap of a DataFrame (``last_steps``).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nfd.core.errors import InputError
from nfd.core.estimates import f_tail
from nfd.core.words import plural
from nfd.laws.log_columns import SIZES, Field
from nfd.laws.rows import Line, is_none, is_number, listed, number_of

Array = NDArray[np.float64]
# Operations of a training for each parameter and token: the usual count of dense Transformers.
FLOPS = 6.0
# More tokens than any training has in a batch: one factor was not what it seemed.
_LARGEST_BATCH = 2.0**27
# Fewer tokens than any training has.
_FEWEST_TOKENS = 100.0
# Sizes from which words of a column make a kind of runs.
_FEWEST_OF_A_KIND = 2
# Kinds follow different laws where chance makes their losses differ so much in a smaller share.
_ONE_LAW = 0.01
# States of runs whose last loss is their result.
_ENDED = ("", "finished", "done", "completed", "success", "diverged")
_TEXTS: tuple[Field, ...] = ("rule", "seed", "run", "state", "decay")


@dataclass(frozen=True)
class LoggedRun:
    """A row of a log; None for what it does not hold. A loss that is infinite diverged.

    ``line`` is the whole row, which does not count where runs are compared.
    """

    width: int | None = None
    depth: int | None = None
    parameters: float | None = None
    tokens: float | None = None
    samples: float | None = None
    batch: float | None = None
    steps: float | None = None
    sequences: float | None = None
    length: float | None = None
    decay: str | None = None
    lr: float | None = None
    rule: str | None = None
    seed: str | None = None
    loss: float | None = None
    flops: float | None = None
    unique_tokens: float | None = None
    epochs: float | None = None
    total_parameters: float | None = None
    step: float | None = None
    run: str | None = None
    state: str | None = None
    line: Line = dataclass_field(default_factory=dict, compare=False, repr=False)

    def has(self, fields: Iterable[str]) -> bool:
        """Whether the row holds all of these fields."""
        return all(getattr(self, field) is not None for field in fields)


def run_of(line: Line, number: int, chosen: Mapping[Field, str]) -> LoggedRun:
    """Read a row, its batch and tokens also where they are products of other fields.

    Args:
        line, number: the row, and its place in the log from 1.
        chosen: the column of each field.

    Raises:
        ValueError: naming the column and the row of a value that the field cannot have.
    """
    fields: dict[str, Any] = {}
    for field, name in chosen.items():
        value = line.get(name)
        if _is_empty(field, value):
            continue
        fields[field] = _text(value) if field in _TEXTS else _number(field, name, number, value)
    if "sequences" in fields and "length" in fields:
        fields["batch"] = fields["sequences"] * fields["length"]
        if fields["batch"] > _LARGEST_BATCH:
            raise InputError(
                f"row {number} would have {fields['batch']:.3g} tokens in a batch, "
                f"{chosen['sequences']!r} times {chosen['length']!r}. If the first counts tokens, "
                f"name it: columns={{'batch': {chosen['sequences']!r}}}, in the shell --columns "
                f"{shlex.quote('batch=' + chosen['sequences'])}."
            )
    if "steps" in fields:
        has_batch_column = "batch" in chosen or "sequences" in chosen
        if "batch" in fields or not has_batch_column:
            fields["tokens"] = fields["steps"] * fields.get("batch", 1)
    if "samples" in fields and "length" in fields:
        fields["tokens"] = fields["samples"] * fields["length"]
    _add_repeats(fields)
    if "flops" in fields and "parameters" in fields:
        fields["tokens"] = fields["flops"] / FLOPS / fields["parameters"]
        if fields["tokens"] < _FEWEST_TOKENS:
            raise InputError(
                f"row {number} would have {fields['tokens']:.3g} tokens, {chosen['flops']!r} over "
                f"6 {chosen['parameters']!r}: it seems the compute of one sample. Name a column of "
                "tokens, or ignore it: columns={'flops': None}."
            )
    elif "flops" in fields and "tokens" in fields:
        fields["parameters"] = fields["flops"] / FLOPS / fields["tokens"]
    return LoggedRun(**fields, line=line)


def _add_repeats(fields: dict[str, Any]) -> None:
    """Add the distinct tokens that follow from tokens and epochs, or tokens from both."""
    if "epochs" not in fields:
        return
    if "tokens" in fields:
        fields.setdefault("unique_tokens", fields["tokens"] / max(fields["epochs"], 1.0))
    elif "unique_tokens" in fields:
        fields["tokens"] = fields["unique_tokens"] * fields["epochs"]


def ended(runs: Sequence[LoggedRun]) -> tuple[list[LoggedRun], str]:
    """Keep the rows of runs that ended; a run that diverged has an infinite loss.

    Returns:
        The rows, and a sentence on those that were left out; empty where there are none.
    """
    kept = []
    for run in runs:
        state = (run.state or "").lower()
        if state == "diverged":
            kept.append(replace(run, loss=math.inf))
        elif state in _ENDED:
            kept.append(run)
    left_out = ""
    if len(kept) < len(runs):
        states = sorted({run.state.lower() for run in runs if run.state} - {*_ENDED})
        kind = f"{' or '.join(states)} run"
        left_out = f"Left out: {plural(len(runs) - len(kept), kind)}."
    return kept, left_out


def last_steps(runs: Sequence[LoggedRun], notes: list[str]) -> list[LoggedRun]:
    """Keep the row of the last step with a loss, of every run, where rows are steps.

    Raises:
        ValueError: where rows without a name of their run have several losses at one step.
    """
    if all(run.step is None for run in runs):
        notes += _note_on_lengths(runs)
        return list(runs)
    runs = _at_peak_rates(runs)
    with_loss = [run for run in runs if run.loss is not None]
    steps_with_losses = {run.step for run in with_loss if math.isfinite(run.loss or 0.0)}
    last = list[LoggedRun]()
    for history in _histories(runs):
        last += _without_gaps(history, steps_with_losses)[-1:]
    if len(last) < len(runs):
        notes.append("Rows are steps: of every run the last step with a loss counts.")
    return last


def _at_peak_rates(runs: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Give every step of a named run the highest rate of the run, where a schedule moves it.

    A name that has a step twice is of several runs, whose rates are their own.
    """
    steps = dict[str, list[float]]()
    rates = dict[str, list[float]]()
    for run in runs:
        if run.run is not None and run.step is not None and run.lr is not None:
            steps.setdefault(run.run, []).append(run.step)
            rates.setdefault(run.run, []).append(run.lr)
    peaks = {name: max(rates[name]) for name, at in steps.items() if len({*at}) == len(at)}
    return [replace(run, lr=peaks.get(run.run or "", run.lr)) for run in runs]


def alike_rows(table: Sequence[Line], runs: Sequence[LoggedRun]) -> list[list[Line]]:
    """Group the rows that are alike in all that is read, but for their loss, seed and name."""
    groups = dict[LoggedRun, list[Line]]()
    for line, run in zip(table, runs, strict=True):
        groups.setdefault(replace(run, loss=None, seed=None, run=None), []).append(line)
    return list(groups.values())


def note_on_mixed(
    table: Sequence[Line], runs: Sequence[LoggedRun], names: Sequence[str]
) -> list[str]:
    """Warn of columns of words in which rows differ that are alike in all that is read.

    Args:
        table, runs: the rows, and what was read from each.
        names: the columns that were not read.
    """
    groups = alike_rows(table, runs)
    mixed = []
    for name in names:
        values = {str(value) for value in _values(table, name)}
        # Names and times of runs, and numbers, do not make kinds of runs.
        if len(values) > len(table) / 2 or any(map(is_number, values)):
            continue
        if any(_differ(lines, name) for lines in groups):
            mixed.append(name)
    parted = [name for name in names if _makes_kinds(table, runs, name)]
    _check_one_law(table, runs, parted)
    if mixed:
        return [
            f"Rows alike in all that is read differ in {listed(mixed)}: they count as equal, as "
            "seeds do. Give the rows of one kind."
        ]
    if not parted:
        return []
    return [
        f"Rows of {listed(_kinds(table, parted[0]))} ({parted[0]!r}) are taken for one kind. Give "
        "the rows of one if they are not."
    ]


def _kinds(table: Sequence[Line], name: str) -> list[str]:
    """The words of a column."""
    return sorted({str(value) for value in _values(table, name)})


def _check_one_law(table: Sequence[Line], runs: Sequence[LoggedRun], parted: Sequence[str]) -> None:
    """Raise ValueError where a column of words parts the rows in kinds with laws of their own.

    A table of learning rates is left: losses differ by the rate there.
    """
    if len({run.lr for run in runs}) > 1:
        return
    for name in parted[:1]:
        labels = [str(line.get(name)) for line in table]
        if chance_of_one_law(runs, labels) < _ONE_LAW:
            raise InputError(
                f"rows of {listed(_kinds(table, name))} ({name!r}) follow different laws of size, "
                "so one law of all would be none of theirs. Give the rows of one of them."
            )


def _makes_kinds(table: Sequence[Line], runs: Sequence[LoggedRun], name: str) -> bool:
    """Say whether the words of a column part the rows in kinds, each of several sizes.

    Names of sizes do not.
    """
    sizes = dict[str, set[tuple[float | None, ...]]]()
    for line, run in zip(table, runs, strict=True):
        value = line.get(name)
        if not is_none(value):
            size = (run.width, run.depth, run.parameters)
            sizes.setdefault(str(value), set()).add(size)
    if len(sizes) < 2 or any(map(is_number, sizes)):
        return False
    return min(map(len, sizes.values())) >= _FEWEST_OF_A_KIND


def chance_of_one_law(runs: Sequence[LoggedRun], labels: Sequence[str]) -> float:
    """The chance that kinds of runs which follow one law differ as much as these; 1 if untested.

    A law is a line of the log loss over the logarithm of the first size that runs differ in and of
    their tokens; each kind may have a level and a slope of its own (an F test).
    """
    sizes = list[list[float]]()
    for name in ("parameters", "width", "depth", "tokens"):
        values = [getattr(run, name) for run in runs]
        if None not in values and len({*values}) > 2 and (not sizes or name == "tokens"):
            sizes.append([math.log(value) for value in values])
    losses = [run.loss or math.nan for run in runs]
    if not sizes or not all(0 < loss < math.inf for loss in losses):
        return 1.0
    logs = np.array(sizes).T - np.mean(sizes, 1)
    y = np.log(losses)
    common = np.hstack([np.ones((len(y), 1)), logs])
    kinds = sorted({*labels})
    is_kind = np.array([[label == kind for kind in kinds] for label in labels], dtype=float)
    by_kind = np.hstack([is_kind, is_kind * logs[:, :1], logs[:, 1:]])
    rank = int(np.linalg.matrix_rank(by_kind))
    freedom = len(y) - rank
    more = rank - common.shape[1]
    if freedom < 1 or more < 1:
        return 1.0
    together = _unexplained(common, y)
    apart = _unexplained(by_kind, y)
    return f_tail((together - apart) / more / max(apart / freedom, 1e-12), more, freedom)


def _unexplained(columns: Array, y: Array) -> float:
    """The sum of squares that columns leave."""
    return float(np.square(y - columns @ np.linalg.lstsq(columns, y)[0]).sum())


def _values(table: Sequence[Line], name: str) -> list[Any]:
    """Take the values of a column, without those that are none."""
    values = [line.get(name) for line in table]
    return [value for value in values if not is_none(value)]


def _is_empty(field: Field, value: Any) -> bool:
    """Say whether a field has no value; not-a-number as a loss is one.

    pandas has not-a-number for none; as a loss it is divergence, or a gap.
    """
    if not is_none(value):
        return False
    is_nan = value is not None and str(value).strip().lower() == "nan"
    return not (field == "loss" and is_nan)


def _text(value: Any) -> str:
    # pandas makes numbers real in a column with gaps.
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _number(field: Field, name: str, number: int, value: Any) -> float:
    """Read a number: width and depth whole, the loss infinite where it is not a number."""
    is_count = field in SIZES or field == "step"
    parsed = number_of(value, name, number, is_count)
    if field == "loss":
        return parsed if math.isfinite(parsed) else math.inf
    if field == "step":
        return parsed
    if not 0 < parsed < math.inf:
        raise InputError(f"column {name!r} must hold numbers above 0; row {number} has {value!r}.")
    if field in ("width", "depth"):
        if parsed != int(parsed):
            raise InputError(
                f"column {name!r} must hold whole numbers; row {number} has {value!r}."
            )
        return int(parsed)
    if field == "lr":
        # 0.1 in single precision is the learning rate 0.1.
        return float(f"{parsed:.6g}")
    return parsed


def _differ(lines: Sequence[Line], name: str) -> bool:
    return len({str(line.get(name)) for line in lines}) > 1


def _note_on_lengths(runs: Sequence[LoggedRun]) -> list[str]:
    """Warn of a named run whose rows differ in tokens, as those of a history do."""
    lengths = dict[tuple[str | None, float | None], set[float | None]]()
    for run in runs:
        lengths.setdefault((run.run, run.lr), set()).add(run.tokens)
    for (name, _), tokens in lengths.items():
        if name is not None and len(tokens) > 1:
            return [
                f"Rows of {listed([name])} differ in tokens, and each counts as a finished run. If "
                "they are a history, whose rate had not fallen yet, give the last row of every run."
            ]
    return []


def _histories(runs: Sequence[LoggedRun]) -> list[list[LoggedRun]]:
    """Gather the steps of every run, in their order."""
    steps = [run for run in runs if run.step is not None]
    steps.sort(key=lambda run: run.step or 0.0)
    histories = dict[LoggedRun, list[LoggedRun]]()
    for run in steps:
        history = replace(run, loss=None, step=None)
        # Tokens grow with the steps of a run that has a name.
        if run.run is not None:
            history = replace(history, tokens=None)
        histories.setdefault(history, []).append(run)
    return list(histories.values())


def _without_gaps(
    history: Sequence[LoggedRun], steps_with_losses: set[float | None]
) -> list[LoggedRun]:
    """Keep the steps of a run that have a loss, or at which it diverged.

    Not-a-number between losses is a gap, and so it is after them at steps at which no run has a
    loss.
    """
    logged = [run for run in history if run.loss is not None]
    if logged and logged[0].run is None and len({*logged}) > len({run.step for run in logged}):
        raise InputError(
            "rows alike in all that is read have several losses at one step, so that they are "
            "of several runs. Name the column that tells runs apart: columns={'run': ...}, in "
            "the shell --columns run=..."
        )
    is_finite = [math.isfinite(run.loss or 0.0) for run in logged]
    count = sum(is_finite)
    # All finite losses come first: the rest is divergence.
    if all(is_finite[:count]):
        return logged
    with_loss = list[LoggedRun]()
    for run, has_loss in zip(logged, is_finite, strict=True):
        if has_loss or run.step in steps_with_losses:
            with_loss.append(run)
    return with_loss
