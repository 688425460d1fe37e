"""Training runs from a log: the columns of its fields, and the rows that are runs that ended.

``log_columns`` says which column holds which field, ``logged_runs`` what a row says of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.words import plural
from nfd.laws.copies import note_on_copies
from nfd.laws.log_columns import ERROR_RATE, NAMES, Field, LogColumns, is_perplexity, kind_of_loss
from nfd.laws.logged_runs import LoggedRun, ended, last_steps, note_on_mixed, run_of
from nfd.laws.nested_rows import TABLE, lines_of
from nfd.laws.rows import flat_table
from nfd.laws.unread import note_on_unread

# Fields that give tokens and batch, where no column has them.
_PARTS: tuple[Field, ...] = ("steps", "samples", "sequences", "length", "epochs")
# Fields that say which rows are runs that ended.
_ABOUT_RUNS: tuple[Field, ...] = ("step", "run", "state")
# What a law of the learning rate is fitted over, beside the rate and the loss.
RATE_FIELDS: tuple[Field, ...] = (
    "parameters",
    "tokens",
    "batch",
    "decay",
    "width",
    "depth",
    "seed",
    "rule",
)

_NOT_READ = (
    "Column {!r} varies but is not read: runs that differ in it count as equal. Give the rows of "
    "one setting."
)


@dataclass(frozen=True)
class Log:
    """The runs of a log that ended.

    Attributes:
        runs: the runs.
        columns: the column of each of their fields.
        notes: what was left out, and why.
        count: how parameters are counted, where the log shows it.
        in_steps: whether their tokens are steps.
        left_out: sentences on the rows that do not count, which the notes have too.
        names: all columns that have values.
    """

    runs: tuple[LoggedRun, ...]
    columns: dict[Field, str]
    notes: tuple[str, ...]
    count: str = ""
    in_steps: bool = False
    left_out: str = ""
    names: tuple[str, ...] = ()

    @property
    def recognised(self) -> str:
        """Which column was taken for what."""
        pairs = list[str]()
        for field, name in self.columns.items():
            if field not in _ABOUT_RUNS and field not in _PARTS and not self._is_part(field):
                pairs.append(f"{field} from {name!r}")
        return f"{len(self.runs)} runs: {', '.join(pairs)}. {self.count}".rstrip()

    def _is_part(self, field: Field) -> bool:
        """Whether a field is compute from which another one follows."""
        return field == "flops" and ("parameters" in self.columns or "tokens" in self.columns)


def read_log(
    rows: Any,
    columns: Mapping[str, str | None] | None,
    needed: Sequence[Field],
    optional: Sequence[Field] = (),
) -> Log:
    """Read the runs of a log.

    Args:
        rows, columns: as of ``nfd.fit_transfer``.
        needed: fields that every run must have, of which no two columns may be meant.
        optional: fields that are read where they are there; of sizes no two columns may be meant
            either.

    Raises:
        ValueError, TypeError, OSError: naming the columns, where one is missing or two may be
            meant, and the row of a value that is not a number.
    """
    given = {} if columns is None else columns
    for field in given:
        check_choice("columns", field, (*NAMES, TABLE))
    table = flat_table(lines_of(rows, given))
    fields = {field: name for field, name in given.items() if field != TABLE}
    log_columns = LogColumns.of(table, fields)
    notes = list[str]()
    chosen = _choose(log_columns, needed, optional, notes)
    settings = log_columns.unread_settings(chosen)
    notes += [_NOT_READ.format(name) for name in settings]
    logged = [run_of(line, number, chosen) for number, line in enumerate(table, 1)]
    unread = [name for name in log_columns.names if name not in (*chosen.values(), *settings)]
    notes += note_on_mixed(table, logged, unread)
    notes += note_on_unread(table, logged, unread)
    notes += note_on_copies(table, logged, chosen["loss"])
    in_steps = "steps" in chosen and "batch" not in chosen and "sequences" not in chosen
    is_counted = "steps" not in chosen and "samples" not in chosen
    if is_counted and "unique_tokens" not in optional:
        notes += log_columns.note_on_repeats(chosen.get("tokens"))
    chosen |= _products(chosen, in_steps)
    chosen |= _from_compute(chosen, notes)
    chosen |= _from_epochs(chosen)
    notes += _note_on_unit(chosen)
    if in_steps and "parameters" in chosen:
        notes.append(
            "Steps stand for tokens, as the log does not say the tokens of a batch: ask about "
            "steps, too."
        )
    of_ended, left_out = ended(logged)
    if left_out:
        notes.append(left_out)
    runs = last_steps(of_ended, notes)
    complete = [run for run in runs if run.has(needed)]
    if len(complete) < len(runs):
        rows_without = plural(len(runs) - len(complete), "row")
        lacking = f"Left out: {rows_without} without {' or '.join(needed)}."
        notes.append(lacking)
        left_out = f"{left_out} {lacking}".lstrip()
    if not complete:
        raise InputError(
            f"no row of the log has {' and '.join(needed)}. {' '.join(notes)}".rstrip()
        )
    count = log_columns.count_of_parameters(chosen.get("parameters"))
    return Log(
        tuple(complete),
        chosen,
        tuple(notes),
        count,
        in_steps,
        left_out,
        tuple(log_columns.names),
    )


def needs_rate_law(log: Log) -> bool:
    """Say whether best learning rates of these runs follow more than width and depth.

    That is tokens or batch, or parameters in place of width and depth.
    """
    tokens = set() if log.in_steps else {run.tokens for run in log.runs}
    batches = {run.batch for run in log.runs}
    if len(tokens) > 1 or len(batches) > 1:
        return True
    if "parameters" not in log.columns:
        return False
    if "width" not in log.columns and "depth" not in log.columns:
        return True
    parameters = {run.parameters for run in log.runs}
    shapes = {(run.width, run.depth) for run in log.runs}
    return len(parameters) > 1 and len(shapes) == 1


def _choose(
    columns: LogColumns, needed: Sequence[Field], optional: Sequence[Field], notes: list[str]
) -> dict[Field, str]:
    """Choose the column of each field that the log has, with those that give tokens and batch."""
    chosen = {field: columns.column_of(field, needed=True) for field in needed}
    for field in (*optional, *_ABOUT_RUNS):
        chosen[field] = columns.column_of(field)
    # None says that tokens are not to be read: then steps do not stand for them.
    may_have_tokens = columns.given.get("tokens", "") is not None
    wants_tokens = "tokens" in optional and not chosen["tokens"] and may_have_tokens
    if wants_tokens:
        chosen["steps"] = columns.column_of("steps")
        chosen["batch"] = columns.column_of("batch")
    if "batch" in chosen and not chosen["batch"]:
        chosen |= columns.batch_columns(notes)
    if wants_tokens:
        chosen |= _samples_column(columns, chosen, notes)
    if "parameters" in optional and "tokens" in optional:
        chosen |= _compute_column(columns, chosen)
    for field in _idle(chosen, optional):
        chosen[field] = ""
    return {field: name for field, name in chosen.items() if name}


def _idle(chosen: Mapping[Field, str], optional: Sequence[Field]) -> list[Field]:
    """List the fields that say something only beside others, which the log does not have."""
    idle = list[Field]()
    if "batch" not in optional and not chosen.get("steps"):
        idle += ["batch", "sequences"]
        if not chosen.get("samples"):
            idle.append("length")
    counts = [chosen.get(field) for field in ("tokens", "steps", "samples", "flops")]
    has_tokens = any(counts)
    if not has_tokens and not (chosen.get("epochs") and chosen.get("unique_tokens")):
        idle += ["epochs", "unique_tokens"]
    return idle


def _samples_column(
    columns: LogColumns, chosen: Mapping[Field, str], notes: list[str]
) -> dict[Field, str]:
    """Choose the column of samples in place of steps: with their length, or else as tokens.

    Steps of a known batch need no samples.
    """
    name = columns.column_of("samples")
    knows_batch = any(chosen.get(field) for field in ("batch", "sequences"))
    if not name or (chosen["steps"] and knows_batch):
        return {}
    length = columns.column_of("length")
    if length:
        return {"samples": name, "length": length, "steps": ""}
    notes.append(
        f"{name!r} is taken for tokens, one for each sample. If a sample is a sequence of several, "
        "name the column of their number: columns={'length': ...}."
    )
    return {"tokens": name, "steps": ""}


def _compute_column(columns: LogColumns, chosen: Mapping[Field, str]) -> dict[Field, str]:
    """Choose the column of compute where it says what no other column does, in place of steps."""
    has_parameters = bool(chosen["parameters"])
    has_shape = any(chosen.get(field) for field in ("width", "depth"))
    knows_batch = any(chosen.get(field) for field in ("batch", "sequences"))
    has_tokens = bool(chosen["tokens"] or chosen.get("samples"))
    has_tokens = has_tokens or (bool(chosen.get("steps")) and knows_batch)
    ignored = None in (columns.given.get("tokens", ""), columns.given.get("parameters", ""))
    if (has_parameters and has_tokens) or (has_shape and not has_parameters) or ignored:
        return {}
    name = columns.column_of("flops")
    return {"flops": name, "steps": ""} if name else {}


def _from_compute(chosen: Mapping[Field, str], notes: list[str]) -> dict[Field, str]:
    """Name the tokens or parameters that follow from compute, with a note."""
    compute = chosen.get("flops")
    if compute is None:
        return {}
    for known, wanted in (("parameters", "tokens"), ("tokens", "parameters")):
        if known in chosen:
            formula = f"{compute} / (6 {chosen[known]})"  # type: ignore[index]
            notes.append(f"The log has no {wanted}: they are compute over 6 {known}, {formula!r}.")
            return {wanted: formula}  # type: ignore[dict-item]
    return {}


def _from_epochs(chosen: Mapping[Field, str]) -> dict[Field, str]:
    """Name the distinct tokens, or the tokens, that follow from epochs."""
    epochs = chosen.get("epochs")
    if epochs is None:
        return {}
    if "tokens" in chosen and "unique_tokens" not in chosen:
        return {"unique_tokens": f"{chosen['tokens']} / {epochs}"}
    if "unique_tokens" in chosen and "tokens" not in chosen:
        return {"tokens": f"{chosen['unique_tokens']} x {epochs}"}
    return {}


def _note_on_unit(chosen: Mapping[Field, str]) -> list[str]:
    """Say what the losses are where they are not in nats."""
    name = chosen["loss"]
    kind = kind_of_loss(name)
    if is_perplexity(name):
        return [f"{name!r} is a perplexity: the loss is its logarithm. Give a column of it."]
    if kind == "loss":
        return []
    unit = "an error rate" if kind == ERROR_RATE else f"in {kind}"
    return [f"{name!r} is {unit}: so are forecasts."]


def _products(chosen: Mapping[Field, str], in_steps: bool) -> dict[Field, str]:
    """Name the batch and tokens that are products of columns."""
    products = dict[Field, str]()
    if "samples" in chosen:
        products["tokens"] = f"{chosen['samples']} x {chosen['length']}"
    if "sequences" in chosen:
        products["batch"] = f"{chosen['sequences']} x {chosen['length']}"
    if "steps" in chosen:
        batch = products.get("batch", chosen.get("batch"))
        products["tokens"] = chosen["steps"] if in_steps else f"{chosen['steps']} x {batch}"
    return products
