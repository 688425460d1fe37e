"""Runs from a log: which column holds what, and which rows are runs.

Columns are known by their usual names (``NAMES``), also below a prefix such as ``config.`` or ``summary/``, as Weights
& Biases and TensorBoard export them; where two columns may be meant, the caller says which. Of histories, many rows of
one run, the last step counts. A loss that is not a number diverged, or is a gap of a DataFrame (``_last_steps``).
"""

from __future__ import annotations

import csv
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from nfd.core.errors import InputError, InputTypeError, check_choice, check_several, nearest

Field = Literal[
    "width", "depth", "parameters", "tokens", "batch", "decay", "lr", "rule", "seed", "loss", "step", "run", "state"
]

NAMES: dict[Field, tuple[str, ...]] = {
    "width": ("width", "d_model", "n_embd", "embed_dim", "hidden_size", "hidden_dim", "model_dim"),
    "depth": ("depth", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "num_blocks"),
    "parameters": ("parameters", "params", "n_params", "num_params", "n_parameters", "num_parameters"),
    "tokens": ("tokens", "n_tokens", "num_tokens", "train_tokens", "samples", "steps", "num_steps", "max_steps"),
    "batch": ("batch", "batch_tokens", "tokens_per_batch", "batch_size_tokens", "global_batch_tokens"),
    "decay": ("decay", "weight_decay", "wd"),
    "lr": ("lr", "learning_rate", "max_lr", "peak_lr", "base_lr", "eta_c"),
    "rule": ("rule", "parametrization", "parameterization"),
    "seed": ("seed", "random_seed"),
    "loss": ("loss", "final_loss", "train_loss", "val_loss", "valid_loss", "validation_loss", "eval_loss", "test_loss"),
    "step": ("_step", "step", "global_step"),
    "run": ("run_id", "id", "key", "run", "run_name", "name"),
    "state": ("state", "status"),
}
_ABOUT_RUNS: tuple[Field, ...] = ("step", "run", "state")  # which rows are runs that ended
_ENDED = ("", "finished", "done", "completed", "success", "diverged")  # states of runs whose last loss is their result


# usual names of what a best rate depends on and no field holds
_SETTINGS = re.compile("weight_decay|batch_size|warmup(_steps)?|optimizer|momentum|beta[12]|adamw_lr|dropout")


@dataclass(frozen=True)
class LoggedRun:
    """A row of a log; None for what it does not hold. A loss that is infinite diverged."""

    width: int | None = None
    depth: int | None = None
    parameters: float | None = None
    tokens: float | None = None
    batch: float | None = None
    decay: str | None = None
    lr: float | None = None
    rule: str | None = None
    seed: str | None = None
    loss: float | None = None
    step: float | None = None
    run: str | None = None
    state: str | None = None


@dataclass(frozen=True)
class Log:
    """The runs of a log that ended, the column of each of their fields, and what was left out and why."""

    runs: tuple[LoggedRun, ...]
    columns: dict[Field, str]
    notes: tuple[str, ...]

    @property
    def recognised(self) -> str:
        """Which column was taken for what."""
        pairs = [f"{field} from {name!r}" for field, name in self.columns.items() if field not in _ABOUT_RUNS]
        return f"{len(self.runs)} runs: {', '.join(pairs)}."


def read_log(
    rows: Any, columns: Mapping[str, str | None] | None, needed: Sequence[Field], others: Sequence[Field] = ()
) -> Log:
    """The runs of a log.

    Args:
        rows, columns: as of ``nfd.fit_transfer``.
        needed: fields that every run must have, of which no two columns may be meant.
        others: fields that are read where they are there, from the first column of ``NAMES``.

    Raises:
        ValueError, TypeError, OSError: naming the columns, where one is missing or two may be meant, and the row of
            a value that is not a number.
    """
    given = {} if columns is None else columns
    for field in given:
        check_choice("columns", field, NAMES)
    table = _table(rows)
    names = list(dict.fromkeys(name for line in table for name in line))
    chosen = {field: _needed(field, table, names, given) for field in needed}
    more = {field: _column(field, names, given) for field in (*others, *_ABOUT_RUNS)}
    chosen |= {field: candidates[0] for field, candidates in more.items() if candidates}
    lengths = () if "tokens" in chosen or "tokens" in given else NAMES["tokens"]
    settings = [name for name in names if _SETTINGS.fullmatch(_last(name)) or _last(name) in lengths]
    notes = [
        f"Column {name!r} varies but is not read: runs that differ in it count as equal. Give the rows of one setting."
        for name in settings
        if name not in chosen.values() and len({repr(line.get(name)) for line in table}) > 1
    ]
    logged = [_run(line, number, chosen) for number, line in enumerate(table, 1)]
    runs = _last_steps(_ended(logged, notes), notes)
    whole = [run for run in runs if all(getattr(run, field) is not None for field in needed)]
    if len(whole) < len(runs):
        notes.append(f"{len(runs) - len(whole)} rows that lack one of {', '.join(needed)} were left out.")
    if not whole:
        raise InputError(f"no row of the log has all of {', '.join(needed)}. {' '.join(notes)}".rstrip())
    return Log(tuple(whole), chosen, tuple(notes))


# ---- columns -------------------------------------------------------------------------------------------------


def _needed(field: Field, table: Sequence[Line], names: Sequence[str], given: Mapping[str, str | None]) -> str:
    """The column of a field; ValueError where there is none, or where several hold different values."""
    candidates = _column(field, names, given)
    name = candidates[0] if candidates else "..."
    shell = shlex.quote(f"{field}={name}")
    name_it = f"columns={{{field!r}: {name!r}}}, in the shell --columns {shell}. The columns are {_listed(names)}."
    if not candidates:
        raise InputError(f"no column of the log is known to be the {field}. Name it: {name_it}")
    if any(len({repr(line.get(name)) for name in candidates}) > 1 for line in table):
        raise InputError(f"{_listed(candidates)} may all be the {field}. Choose one: {name_it}")
    return name


def _column(field: Field, names: Sequence[str], given: Mapping[str, str | None]) -> list[str]:
    """The columns that may hold a field, the likeliest first; that which was named, where one was: ``config/lr`` is
    ``config.lr`` too."""
    if field not in given:
        usual = {name: NAMES[field].index(_last(name)) for name in names if _last(name) in NAMES[field]}
        if field == "step":  # in a summary, the length of a run that ended
            usual = {name: place for name, place in usual.items() if not re.search(r"[./]", name)}
        return sorted((name for name in usual if name not in given.values()), key=lambda name: (usual[name], name))
    if (wanted := given[field]) is None:
        return []
    for column in names:
        if column.replace("/", ".") == wanted.replace("/", "."):
            return [column]
    raise InputError(
        f"columns names {wanted!r} for the {field}, but the log has no such column.{nearest(wanted, names)} "
        f"The columns are {_listed(names)}."
    )


def _last(name: str) -> str:
    """The name of a column below its prefix, as ``NAMES`` are written."""
    return re.split(r"[./]", name.strip().lower())[-1].replace("-", "_").replace(" ", "_")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


# ---- rows ----------------------------------------------------------------------------------------------------


def _ended(runs: Sequence[LoggedRun], notes: list[str]) -> list[LoggedRun]:
    """The rows of runs that ended; a run that diverged has an infinite loss."""
    kept = [run for run in runs if (run.state or "").lower() in _ENDED]
    if len(kept) < len(runs):
        others = sorted({run.state.lower() for run in runs if run.state} - {*_ENDED})
        notes.append(f"{len(runs) - len(kept)} rows of runs that are {' or '.join(others)} were left out.")
    return [replace(run, loss=math.inf) if (run.state or "").lower() == "diverged" else run for run in kept]


def _last_steps(runs: Sequence[LoggedRun], notes: list[str]) -> list[LoggedRun]:
    """Of every run the row of its last step with a loss, where rows are steps."""
    if all(run.step is None for run in runs):
        return list(runs)
    logged = {run.step for run in runs if run.loss is not None and math.isfinite(run.loss)}
    histories = dict[LoggedRun, list[LoggedRun]]()
    for run in sorted((run for run in runs if run.step is not None), key=lambda run: run.step or 0.0):
        histories.setdefault(replace(run, loss=None, step=None), []).append(run)
    last = []
    for history in histories.values():
        known = [run for run in history if run.loss is not None]
        finite = [math.isfinite(run.loss or 0.0) for run in known]
        # not-a-number between losses is a gap, and so it is after them at steps at which no run has a loss
        if not all(finite[: max((place for place, is_finite in enumerate(finite) if is_finite), default=-1) + 1]):
            known = [run for run, is_finite in zip(known, finite, strict=True) if is_finite or run.step in logged]
        last += known[-1:]
    if len(last) < len(runs):
        notes.append("Rows are steps: of every run the last step with a loss counts.")
    return last


def _run(line: Line, number: int, chosen: Mapping[Field, str]) -> LoggedRun:
    """The fields of a row: width and depth whole, the loss infinite where it is no number."""
    fields: dict[str, Any] = {}
    for field, name in chosen.items():
        value = line.get(name)
        # pandas has not-a-number for none; as a loss it is divergence, or a gap
        if value is None or str(value).strip() in _NONE or (field != "loss" and value != value):
            continue
        if field in ("rule", "seed", "run", "state", "decay"):
            whole = isinstance(value, float) and value.is_integer()  # pandas makes numbers real in a column with gaps
            fields[field] = str(int(value) if whole else value).strip()
            continue
        size = _number_of(value, name, number)
        if field == "loss":
            size = size if math.isfinite(size) else math.inf
        elif field != "step" and not 0 < size < math.inf:
            raise InputError(f"column {name!r} must hold numbers above 0; row {number} has {value!r}.")
        elif field in ("width", "depth"):
            if size != int(size):
                raise InputError(f"column {name!r} must hold whole numbers; row {number} has {value!r}.")
            size = int(size)
        # 0.1 in single precision is no other rate than 0.1
        fields[field] = float(f"{size:.6g}") if field == "lr" else size
    return LoggedRun(**fields)


# ---- A log as a table: one flat dict for each row, from any of its forms.


Line = dict[str, Any]

_NONE = ("", "<NA>", "NaT")  # as texts: nothing, and what pandas has for it beside not-a-number
_SCALARS = ("run", "tag", "step", "value")  # columns of TensorBoard's scalars, beside the wall time
_SETTING = re.compile(r"([A-Za-z_][\w.]*)=([^,;/\s]+)")  # in the name of a run


def _table(rows: Any) -> list[Line]:
    """The rows as flat dicts."""
    table = [_flat(line) for line in _lines(rows)]
    if not table:
        raise InputError("the log has no rows. Give one row for each run.")
    return _pivoted(table) if set(_SCALARS) <= {name.lower() for name in table[0]} else table


def _number_of(value: Any, name: str, number: int) -> float:
    """The number in a column of this name, in the row of this number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"column {name!r} must hold numbers; row {number} has {value!r}.") from None


def _lines(rows: Any) -> list[Mapping[str, Any]]:
    if isinstance(rows, str | os.PathLike):
        return _csv(os.fspath(rows))
    if hasattr(rows, "to_dicts"):  # polars
        rows = rows.to_dicts()
    elif hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas
        rows = rows.to_dict("records")
    lines = check_several("rows", rows, "dicts, or a DataFrame, or the path of a CSV")
    for line in lines:
        if not isinstance(line, Mapping):
            raise InputTypeError(f"rows must be dicts, one for each run; got {type(line).__name__} among them.")
    return lines


def _csv(path: str) -> list[Mapping[str, Any]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = list(csv.DictReader(file, strict=True))
    except OSError as error:
        raise OSError(f"the log must be a CSV file; there is none at {path!r}: {error.strerror}.") from None
    except (csv.Error, ValueError) as error:
        raise InputError(f"the log {path!r} must be a CSV file in UTF-8; it cannot be read: {error}.") from None
    for number, line in enumerate(lines, 2):
        if None in line or None in line.values():
            raise InputError(f"line {number} of {path!r} has another number of fields than the header. Fix the file.")
    return lines  # type: ignore[return-value]


def _flat(line: Mapping[Any, Any], prefix: str = "") -> Line:
    """Dicts within a row become columns ``config.lr``."""
    flat = Line()
    for name, value in line.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _pivoted(table: Sequence[Line]) -> list[Line]:
    """TensorBoard's scalars (run, tag, step, value) as a row for each run: the last value of every tag, and what the
    name of the run says, such as ``width=64,lr=0.01``."""
    runs, reached = dict[str, Line](), dict[tuple[str, str], float]()
    for number, line in enumerate(table, 1):
        values = {name.lower(): value for name, value in line.items()}
        run, tag, step, value = (values[name] for name in _SCALARS)
        row = runs.setdefault(str(run), {"run": run} | dict(_SETTING.findall(str(run))))
        place, at = (str(run), str(tag)), _number_of(step, "step", number)
        if at >= reached.get(place, -math.inf):
            reached[place], row[str(tag)] = at, value
    return list(runs.values())


# ---- Of a log with several learning rates at each size, the runs of one ----------------------------------------------

BEST = "best"


def at_rate(
    runs: Sequence[LoggedRun], variables: Sequence[str], rate: float | str | None
) -> tuple[list[LoggedRun], list[str]]:
    """The runs of a rate, or of the best one of each size, and a note on the choice; all of them where it is None.

    Raises:
        ValueError: for a rate that no run has.
    """
    if rate is None:
        return list(runs), []
    tried = sorted({run.lr for run in runs if run.lr is not None})
    shown = ", ".join(f"{known:g}" for known in tried) or "not in the log"
    if rate != BEST:
        try:
            wanted = float(rate)  # the shell gives a text
        except ValueError:
            wanted = math.nan
        kept = [run for run in runs if run.lr is not None and math.isclose(run.lr, wanted, rel_tol=1e-5)]
        if not kept:
            raise InputError(f"rate must be a rate of the log or {BEST!r}; got {rate!r}. The rates are {shown}.")
        return kept, []
    losses = dict[tuple[float, ...], dict[float | None, list[float]]]()
    sizes = [tuple(getattr(run, name) for name in variables) for run in runs]
    for size, run in zip(sizes, runs, strict=True):
        losses.setdefault(size, {}).setdefault(run.lr, []).append(math.inf if run.loss is None else run.loss)
    best = {size: min(own, key=lambda lr: fmean(own[lr])) for size, own in losses.items()}
    ends = sum(lr in (tried[0], tried[-1]) for lr in best.values())
    note = f"Of each size the runs at its best rate count, of {shown}; at {ends} of {len(best)} it is an end of them."
    return [run for size, run in zip(sizes, runs, strict=True) if run.lr == best[size]], [note]
