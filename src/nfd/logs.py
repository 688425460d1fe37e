"""Runs from a log: which column holds what, and which rows are runs.

A log is a list of dicts, a DataFrame (of pandas or polars; neither is needed here) or the path of a CSV. Columns are
known by their usual names (``NAMES``), also below a prefix such as ``config.`` or ``summary/``, as Weights & Biases and
TensorBoard export them; where two columns may be meant, the caller says which. Histories, many rows of one run, count
with their last step.

A loss that is not a number diverged. A DataFrame has the same for a step without a loss: where a run has such rows
between its losses they are gaps, but for steps at which another run has a loss.
"""

from __future__ import annotations

import csv
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal, get_args

from nfd.core.errors import InputError, InputTypeError, check_choice, check_real, check_several, nearest

Field = Literal["width", "depth", "parameters", "tokens", "lr", "rule", "seed", "loss", "step", "run", "state"]
FIELDS: tuple[Field, ...] = get_args(Field)

NAMES: dict[Field, tuple[str, ...]] = {
    "width": ("width", "d_model", "n_embd", "embed_dim", "hidden_size", "hidden_dim", "model_dim"),
    "depth": ("depth", "n_layer", "n_layers", "num_layers", "num_hidden_layers", "num_blocks"),
    "parameters": ("parameters", "params", "n_params", "num_params", "n_parameters", "num_parameters"),
    "tokens": ("tokens", "n_tokens", "num_tokens", "train_tokens", "samples", "steps", "num_steps", "max_steps"),
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


_SETTINGS = {
    "weight_decay",
    "batch_size",
    "warmup",
    "warmup_steps",
    "optimizer",
    "momentum",
    "beta1",
    "beta2",
    "adamw_lr",
    "dropout",
}
"""Usual names of what a best rate depends on and no field holds."""


@dataclass(frozen=True)
class LoggedRun:
    """A row of a log; None for what it does not hold. A loss that is infinite diverged."""

    width: int | None = None
    depth: int | None = None
    parameters: float | None = None
    tokens: float | None = None
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
        rows: dicts, one for a run or for a step of a run; a DataFrame; or the path of a CSV.
        columns: the column of a field (``{"lr": "config/learning_rate"}``); None for a field to leave aside. Other
            fields are recognised by name.
        needed: fields that every run must have, of which no two columns may be meant.
        others: fields that are read where they are there, from the first column of ``NAMES``.

    Raises:
        ValueError, TypeError, OSError: naming the columns, where one is missing or two may be meant, and the row of
            a value that is not a number.
    """
    given = _checked(columns)
    table = table_of_log(rows)
    names = list(dict.fromkeys(name for line in table for name in line))
    chosen = {field: _needed(field, table, names, given) for field in needed}
    more = {field: _column(field, names, given) for field in (*others, *_ABOUT_RUNS)}
    chosen |= {field: candidates[0] for field, candidates in more.items() if candidates}
    notes = [
        f"Column {name!r} varies but is not read: runs that differ in it count as equal. Give the rows of one setting."
        for name in _unread(table, names, chosen)
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


def _checked(columns: Any) -> Mapping[str, str | None]:
    """The columns that were named."""
    given = {} if columns is None else columns
    if not isinstance(given, Mapping) or not all(isinstance(name, str | None) for name in given.values()):
        raise InputTypeError(f"columns must be a dict from fields to names of columns, or None; got {columns!r}.")
    for field in given:
        check_choice("columns", field, FIELDS)
    return given


def _needed(field: Field, table: Sequence[Line], names: Sequence[str], given: Mapping[str, str | None]) -> str:
    """The column of a field; ValueError where there is none, or where several hold different values."""
    candidates = _column(field, names, given)
    name = candidates[0] if candidates else "..."
    example = f"columns={{{field!r}: {name!r}}}, in the shell --columns {shlex.quote(f'{field}={name}')}"
    if not candidates:
        raise InputError(f"no column of the log is known to be the {field}. Name it: {example}. {_among(names)}")
    if any(len({repr(line.get(name)) for name in candidates}) > 1 for line in table):
        raise InputError(f"{_listed(candidates)} may all be the {field}. Choose one: {example}. {_among(names)}")
    return candidates[0]


def _column(field: Field, names: Sequence[str], given: Mapping[str, str | None]) -> list[str]:
    """The columns that may hold a field, the likeliest first; that which was named, where one was."""
    if field in given:
        name = given[field]
        return [] if name is None else [_named(field, name, names)]
    meant = sorted((place, name) for name in names if (place := _place(name, field)) is not None)
    return [name for _, name in meant if name not in given.values()]


def _unread(table: Sequence[Line], names: Sequence[str], chosen: Mapping[Field, str]) -> list[str]:
    """The columns of settings that differ between rows and are no field."""
    settings = [name for name in names if _last(name) in _SETTINGS and name not in chosen.values()]
    return [name for name in settings if len({repr(line.get(name)) for line in table}) > 1]


def _last(name: str) -> str:
    """The name of a column below its prefix, as ``NAMES`` are written."""
    return re.split(r"[./]", name.strip().lower())[-1].replace("-", "_").replace(" ", "_")


def _place(name: str, field: Field) -> int | None:
    """Which of the usual names of a field a column has, perhaps below a prefix; None for another name."""
    if field == "step" and re.search(r"[./]", name):  # in a summary, the length of a run that ended
        return None
    last = _last(name)
    return NAMES[field].index(last) if last in NAMES[field] else None


def _named(field: str, name: str, names: Sequence[str]) -> str:
    """The column of this name; ``config/lr`` is ``config.lr`` too."""
    for column in names:
        if column.replace("/", ".") == name.replace("/", "."):
            return column
    raise InputError(
        f"columns names {name!r} for the {field}, but the log has no such column.{nearest(name, names)} {_among(names)}"
    )


def _among(names: Sequence[str]) -> str:
    return f"The columns are {_listed(names)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


# ---- rows ----------------------------------------------------------------------------------------------------


def _ended(runs: Sequence[LoggedRun], notes: list[str]) -> list[LoggedRun]:
    """The rows of runs that ended; a run that diverged has an infinite loss."""
    states = [(run.state or "").lower() for run in runs]
    if others := sorted({state for state in states if state not in _ENDED}):
        count = sum(state in others for state in states)
        notes.append(f"{count} rows of runs that are {' or '.join(others)} were left out.")
    return [
        replace(run, loss=math.inf) if state == "diverged" else run
        for run, state in zip(runs, states, strict=True)
        if state in _ENDED
    ]


def _last_steps(runs: Sequence[LoggedRun], notes: list[str]) -> list[LoggedRun]:
    """Of every run the row of its last step, where rows are steps."""
    if all(run.step is None for run in runs):
        return list(runs)
    histories = dict[LoggedRun, list[LoggedRun]]()
    for run in sorted((run for run in runs if run.step is not None), key=lambda run: run.step or 0.0):
        histories.setdefault(replace(run, loss=None, step=None), []).append(run)
    logged = {run.step for run in runs if run.loss is not None and math.isfinite(run.loss)}
    ended = [_without_gaps(history, logged) for history in histories.values()]
    last = [history[-1] for history in ended if history]
    if len(last) < len(runs):
        notes.append("Rows are steps: of every run the last step with a loss counts.")
    return last


def _without_gaps(history: Sequence[LoggedRun], logged: Set[float | None]) -> list[LoggedRun]:
    """The rows of a run that hold a loss, an infinite one where it diverged.

    Args:
        history: its rows by step. logged: the steps at which any run has a loss.
    """
    losses = [run for run in history if run.loss is not None]
    finite = [math.isfinite(run.loss or 0.0) for run in losses]
    last = max((place for place, known in enumerate(finite) if known), default=-1)
    if all(finite[: last + 1]):
        return losses
    return [run for run, known in zip(losses, finite, strict=True) if known or run.step in logged]


def _run(line: Line, number: int, chosen: Mapping[Field, str]) -> LoggedRun:
    def read(field: Field) -> Any:
        name = chosen.get(field)
        value = None if name is None else line.get(name)
        if is_missing(value) or (field != "loss" and value != value):  # pandas has nan for none
            return None
        reader: Callable[[Any, str, int], Any] = _READERS.get(field, _text)
        return reader(value, name or "", number)

    return LoggedRun(**{field: read(field) for field in FIELDS})


def _loss(value: Any, name: str, number: int) -> float:
    loss = number_of(value, name, number)
    return loss if math.isfinite(loss) else math.inf


def _positive(value: Any, name: str, number: int) -> float:
    size = number_of(value, name, number)
    if not 0 < size < math.inf:
        raise InputError(f"column {name!r} must hold numbers above 0; row {number} has {value!r}.")
    return size


def _rate(value: Any, name: str, number: int) -> float:
    """To six digits: 0.1 in single precision is no other rate than 0.1."""
    return float(f"{_positive(value, name, number):.6g}")


def _count(value: Any, name: str, number: int) -> int:
    size = _positive(value, name, number)
    if size != int(size):
        raise InputError(f"column {name!r} must hold whole numbers; row {number} has {value!r}.")
    return int(size)


def _text(value: Any, name: str, number: int) -> str:
    whole = isinstance(value, float) and value.is_integer()  # pandas makes whole numbers real in a column with gaps
    return str(int(value) if whole else value).strip()


# ---- A log as a table: one flat dict for each row, from any of its forms.


Line = dict[str, Any]

_NONE = ("", "<NA>", "NaT")  # as texts: nothing, and what pandas has for it beside not-a-number
_SCALARS = ("run", "tag", "step", "value")  # columns of TensorBoard's scalars, beside the wall time
_SETTING = re.compile(r"([A-Za-z_][\w.]*)=([^,;/\s]+)")  # in the name of a run


def table_of_log(rows: Any) -> list[Line]:
    """The rows of a list of dicts, of a DataFrame or of the CSV at a path, as flat dicts.

    Raises:
        ValueError, TypeError, OSError: for anything else, and for no rows.
    """
    table = [_flat(line) for line in _lines(rows)]
    if not table:
        raise InputError("the log has no rows. Give one row for each run.")
    scalars = set(_SCALARS) <= {name.lower() for name in table[0]}
    return _pivoted(table) if scalars else table


def is_missing(value: Any) -> bool:
    """Whether a cell holds nothing."""
    return value is None or str(value).strip() in _NONE


def number_of(value: Any, name: str, number: int) -> float:
    """The number in a column of this name, in the row of this number."""
    try:
        if isinstance(value, bool):
            raise TypeError
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
            reader = csv.DictReader(file, strict=True)
            lines = list(reader)
    except FileNotFoundError:
        raise FileNotFoundError(f"the log must be a CSV file; there is none at {path!r}.") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"the log {path!r} must be a CSV file in UTF-8; it cannot be read: {error}.") from None
    except ValueError as error:  # of a name that no file can have
        raise InputError(f"the log must be a CSV file; {path!r} is not the name of one ({error}).") from None
    except OSError as error:
        raise OSError(f"the log {path!r} cannot be read: {error.strerror}.") from None
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
        place, at = (str(run), str(tag)), number_of(step, "step", number)
        if at >= reached.get(place, -math.inf):
            reached[place], row[str(tag)] = at, value
    return list(runs.values())


# ---- Of a log with several learning rates at each size, the runs of one: a given rate, or the best of the size.


BEST = "best"


def at_rate(
    runs: Sequence[LoggedRun], variables: Sequence[str], rate: float | str | None
) -> tuple[list[LoggedRun], list[str]]:
    """The runs of a rate, or of the best one of each size, and notes on the choice; all of them where it is None.

    Raises:
        ValueError, TypeError: for another rate, for one that no run has, and for runs without a rate.
    """
    if rate is None:
        return list(runs), []
    tried = sorted({run.lr for run in runs if run.lr is not None})
    if not tried:
        raise InputError(f"rate={rate!r} chooses runs by their learning rate, which no column of the log holds.")
    if rate == BEST:
        best = {size: _best(of_size) for size, of_size in _by_size(runs, variables).items()}
        return [run for run in runs if run.lr == best[_size(run, variables)]], _notes(best, tried)
    wanted = check_real("rate", _number(rate), above=0.0)
    chosen = [run for run in runs if run.lr is not None and math.isclose(run.lr, wanted, rel_tol=1e-5)]
    if not chosen:
        raise InputError(f"rate={wanted:g} is of no run of the log. The rates are {_rates_listed(tried)}.")
    return chosen, []


def _best(runs: Sequence[LoggedRun]) -> float | None:
    """The rate with the lowest mean loss over seeds."""
    losses: dict[float | None, list[float]] = {}
    for run in runs:
        losses.setdefault(run.lr, []).append(math.inf if run.loss is None else run.loss)
    return min(losses, key=lambda rate: fmean(losses[rate]))


def _notes(best: Mapping[tuple[float, ...], float | None], tried: Sequence[float]) -> list[str]:
    chosen = [rate for rate in best.values() if rate is not None]
    notes = [
        f"Of each size the runs at its best rate count: {_rates_listed(sorted(set(chosen)))} of {_rates_listed(tried)}."
    ]
    ends = sum(rate in (tried[0], tried[-1]) for rate in chosen)
    if ends and len(tried) > 1:
        notes.append(f"At {ends} of {len(best)} sizes that is the lowest or highest rate tried: a better one may lie "
                     "beyond.")  # fmt: skip
    return notes


def _by_size(runs: Sequence[LoggedRun], variables: Sequence[str]) -> dict[tuple[float, ...], list[LoggedRun]]:
    sizes: dict[tuple[float, ...], list[LoggedRun]] = {}
    for run in runs:
        sizes.setdefault(_size(run, variables), []).append(run)
    return sizes


def _size(run: LoggedRun, variables: Sequence[str]) -> tuple[float, ...]:
    return tuple(getattr(run, name) for name in variables)


def _number(rate: float | str) -> float | str:
    """A number that the shell gave as a text; anything else as it is."""
    try:
        return float(rate)
    except (TypeError, ValueError):
        raise InputError(f"rate must be a learning rate or {BEST!r}; got {rate!r}.") from None


def _rates_listed(rates: Sequence[float]) -> str:
    return ", ".join(f"{rate:g}" for rate in rates)


# ---- how each field is read -------------------------------------------------------------------------------------

_READERS: dict[Field, Callable[[Any, str, int], Any]] = {
    "width": _count,
    "depth": _count,
    "parameters": _positive,
    "tokens": _positive,
    "lr": _rate,
    "loss": _loss,
    "step": number_of,
}
