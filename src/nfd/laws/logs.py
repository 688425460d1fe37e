"""Runs from a log: which column holds what, and which rows are runs.

Columns are known by their usual names (``NAMES``), below a prefix such as ``config.`` or
``summary/`` too, in words ("Number of parameters"), and with a unit ("Tokens (B)"); where two
columns may be meant, the caller says which. Tokens that no column holds are steps times the batch.
Of histories, many rows of one run, the last step counts. A loss that is not a number diverged, or
is a gap of a DataFrame (``_last_steps``).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.core.words import nearest
from nfd.laws.rows import Line, is_none, is_number, listed, number_of, table_of, without_unit

Field = Literal[
    "width",
    "depth",
    "parameters",
    "tokens",
    "batch",
    "steps",
    "sequences",
    "length",
    "decay",
    "lr",
    "rule",
    "seed",
    "loss",
    "step",
    "run",
    "state",
]

NAMES: dict[Field, tuple[str, ...]] = {  # in the words of ``_key``
    "width": (
        "width",
        "d_model",
        "embd",
        "embed_dim",
        "hidden_size",
        "hidden_dim",
        "model_dim",
        "model_width",
    ),
    "depth": ("depth", "layer", "layers", "hidden_layers", "blocks"),
    "parameters": (
        "parameters",
        "N",
        "model_parameters",
        "trainable_parameters",
        "active_parameters",
    ),
    "tokens": ("tokens", "D", "train_tokens", "tokens_seen", "samples"),
    "batch": ("batch", "batch_tokens", "batch_size_tokens", "tokens_per_batch", "tokens_per_step"),
    "steps": ("steps", "max_steps", "train_steps"),
    "sequences": ("batch_size", "batch_size_sequences", "sequences_per_batch"),
    "length": (
        "seq_len",
        "max_seq_len",
        "context_len",
        "context_size",
        "context",
        "ctx",
        "block_size",
    ),
    "decay": ("decay", "weight_decay", "wd"),
    "lr": (
        "lr",
        "learning_rate",
        "max_lr",
        "max_learning_rate",
        "peak_lr",
        "peak_learning_rate",
        "base_lr",
        "eta_c",
    ),
    "rule": ("rule", "parametrization", "parameterization"),
    "seed": ("seed", "random_seed"),
    "loss": ("loss", "train_loss", "val_loss", "eval_loss", "test_loss"),
    "step": ("step",),
    "run": ("run_id", "id", "key", "run", "run_name", "name"),
    "state": ("state", "status"),
}
_SILENT = {
    "",
    "n",
    "num",
    "number",
    "of",
    "the",
    "total",
    "final",
    "global",
    "in",
    "nats",
}  # words that names are known without
_SAME = {
    "params": "parameters",
    "param": "parameters",
    "validation": "val",
    "valid": "val",
    "training": "train",
}
_SAME |= {
    "iters": "steps",
    "iterations": "steps",
    "updates": "steps",
    "sequence": "seq",
    "length": "len",
}
_EMBEDDINGS = re.compile(
    "_?(?:(non|no|without|excl|excluding)|(?:with|incl|including))_?emb(?:[a-z]*)", re.IGNORECASE
)
_NATS = re.compile(r"[(\[]\s*nats?\b[^)\]]*[)\]]", re.IGNORECASE)
_SIZES: tuple[Field, ...] = (
    "width",
    "depth",
    "parameters",
    "tokens",
    "batch",
    "steps",
    "sequences",
    "length",
)
# of tokens and batch, where no column has them
_PARTS: tuple[Field, ...] = ("steps", "sequences", "length")
# a batch size may be that of one
_DEVICES = re.compile("grad(ient)?_acc\\w*|accumulat\\w*|world_size|gpus|devices")
_ONE = {"1", "1.0", "", "nan", "None"}  # of devices
# tokens of a batch: above those of any training, so that one factor was not what it seemed
_LARGEST = 2.0**27
_ABOUT_RUNS: tuple[Field, ...] = ("step", "run", "state")  # which rows are runs that ended
# What a law of the rate is fitted over, beside the rate and the loss.
RATE_FIELDS: tuple[Field, ...] = (
    "parameters",
    "tokens",
    "batch",
    "decay",
    "width",
    "depth",
    "seed",
)
# states of runs whose last loss is their result
_ENDED = ("", "finished", "done", "completed", "success", "diverged")


# usual names of what a best rate depends on and no field holds
_SETTINGS = re.compile(
    "weight_decay|batch_size|warmup(_steps)?|optimizer|momentum|beta[12]|adamw_lr|dropout"
)


@dataclass(frozen=True)
class LoggedRun:
    """A row of a log; None for what it does not hold. A loss that is infinite diverged."""

    width: int | None = None
    depth: int | None = None
    parameters: float | None = None
    tokens: float | None = None
    batch: float | None = None
    steps: float | None = None
    sequences: float | None = None
    length: float | None = None
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
    """The runs of a log that ended, the column of each of their fields, what was left out and why,
    how parameters are counted, and whether their tokens are steps."""

    runs: tuple[LoggedRun, ...]
    columns: dict[Field, str]
    notes: tuple[str, ...]
    count: str = ""
    in_steps: bool = False

    @property
    def recognised(self) -> str:
        """Which column was taken for what."""
        silent = (*_ABOUT_RUNS, *_PARTS)
        pairs = [
            f"{field} from {name!r}" for field, name in self.columns.items() if field not in silent
        ]
        return f"{len(self.runs)} runs: {', '.join(pairs)}. {self.count}".rstrip()


def read_log(
    rows: Any,
    columns: Mapping[str, str | None] | None,
    needed: Sequence[Field],
    others: Sequence[Field] = (),
) -> Log:
    """The runs of a log.

    Args:
        rows, columns: as of ``nfd.fit_transfer``.
        needed: fields that every run must have, of which no two columns may be meant.
        others: fields that are read where they are there; of sizes no two columns may be meant
            either.

    Raises:
        ValueError, TypeError, OSError: naming the columns, where one is missing or two may be
            meant, and the row of a value that is not a number.
    """
    given = {} if columns is None else columns
    for field in given:
        check_choice("columns", field, NAMES)
    table = table_of(rows)
    every = dict.fromkeys(name for line in table for name in line)
    names = [
        name
        for name in every
        if any(not is_none(line.get(name)) for line in table) or _key(name) in NAMES["loss"]
    ]
    chosen = {field: _chosen(field, table, names, given, needed=True) for field in needed}
    chosen |= {field: _chosen(field, table, names, given) for field in (*others, *_ABOUT_RUNS)}
    notes = list[str]()
    if "tokens" in others and not chosen["tokens"] and given.get("tokens", "") is not None:
        chosen |= {field: _chosen(field, table, names, given) for field in ("steps", "batch")}
    if not chosen.get("batch", "batch"):
        chosen |= _of_a_batch(table, names, given, notes)
    chosen = {field: name for field, name in chosen.items() if name}
    unread = [] if "tokens" in chosen or "steps" in chosen else [*NAMES["tokens"], *NAMES["steps"]]
    notes += [
        f"Column {name!r} varies but is not read: runs that differ in it count as equal. Give the "
        "rows of one setting."
        for name in names
        if (_SETTINGS.fullmatch(_key(name)) or ("tokens" not in given and _key(name) in unread))
        and name not in chosen.values()
        and len({repr(line.get(name)) for line in table}) > 1
    ]
    logged = [_run(line, number, chosen) for number, line in enumerate(table, 1)]
    notes += _mixed(table, logged, [name for name in names if name not in chosen.values()])
    in_steps = "steps" in chosen and not {"batch", "sequences"} & {*chosen}
    if "sequences" in chosen:
        chosen["batch"] = f"{chosen['sequences']} x {chosen['length']}"
    if "steps" in chosen:
        chosen["tokens"] = chosen["steps"] if in_steps else f"{chosen['steps']} x {chosen['batch']}"
        if in_steps and "parameters" in chosen:
            notes.append(
                "Steps stand for tokens, as the log does not say the tokens of a batch: ask about "
                "steps, too."
            )
    runs = _last_steps(_ended(logged, notes), notes)
    whole = [run for run in runs if all(getattr(run, field) is not None for field in needed)]
    if len(whole) < len(runs):
        notes.append(
            f"{len(runs) - len(whole)} rows that lack one of {', '.join(needed)} were left out."
        )
    if not whole:
        raise InputError(
            f"no row of the log has all of {', '.join(needed)}. {' '.join(notes)}".rstrip()
        )
    return Log(
        tuple(whole), chosen, tuple(notes), _count(chosen.get("parameters"), names), in_steps
    )


def needs_rate_law(log: Log) -> bool:
    """Whether best rates of these runs follow tokens or batch, or parameters in place of width and
    depth.
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


# ---- columns


def _chosen(
    field: Field,
    table: Sequence[Line],
    names: Sequence[str],
    given: Mapping[str, str | None],
    *,
    needed: bool = False,
) -> str:
    """The column of a field, empty for none; ValueError where one is needed, or where several hold
    different values.
    """
    candidates = _column(field, table, names, given)
    name = candidates[0] if candidates else ""
    if needed and not candidates:
        raise InputError(
            f"no column of the log is known to be the {field}. {_name_it(field, '...', names)}"
        )
    if (needed or field in _SIZES) and any(
        len({repr(line.get(name)) for name in candidates}) > 1 for line in table
    ):
        several = f"{listed(candidates)} may all be the {field}, and differ."
        raise InputError(f"{several} {_name_it(field, name, names)}")
    return name


def _name_it(field: str, name: str, names: Sequence[str]) -> str:
    shell = shlex.quote(f"{field}={name}")
    return (
        f"Name it: columns={{{field!r}: {name!r}}}, in the shell --columns {shell}. The columns "
        f"are {listed(names)}."
    )


def _column(
    field: Field, table: Sequence[Line], names: Sequence[str], given: Mapping[str, str | None]
) -> list[str]:
    """The columns that may hold a field, the likeliest first; that which was named, where one was:
    ``config/lr`` is ``config.lr`` too.

    Of parameters those with embeddings are meant, and of settings those of the configuration, where
    it has any.
    """
    if field not in given:
        usual = {
            name: NAMES[field].index(_key(name)) for name in names if _key(name) in NAMES[field]
        }
        if field == "step":  # in a summary, the length of a run that ended
            usual = {name: place for name, place in usual.items() if not re.search(r"[./]", name)}
        found = [name for name in usual if name not in given.values()]
        ranks = {
            name: (_lacks_embeddings(name), field != "loss" and not re.match(r"config[./]", name))
            for name in found
        }
        best = [name for name in found if ranks[name] == min(ranks.values())]
        return sorted(best, key=lambda name: (usual[name], name))
    if (wanted := given[field]) is None:
        return []
    for column in names:
        if column.replace("/", ".") == wanted.replace("/", "."):
            return [column]
    raise InputError(
        f"columns names {wanted!r} for the {field}, but the log has no such column with values."
        f"{nearest(wanted, names)} The columns are {listed(names)}."
    )


def _of_a_batch(
    table: Sequence[Line], names: Sequence[str], given: Mapping[str, str | None], notes: list[str]
) -> dict[Field, str]:
    """The columns of the sequences of a batch and of their length; empty where they do not say its
    tokens.
    """
    found = {field: _chosen(field, table, names, given) for field in _PARTS[1:]}
    if not all(found.values()):
        return {}
    devices = [
        name
        for name in names
        if _DEVICES.fullmatch(_key(name)) and {str(row.get(name)) for row in table} - _ONE
    ]
    if devices and "sequences" not in given and "global" not in found["sequences"].lower():
        notes.append(
            f"{found['sequences']!r} may be the batch of one device, as there is "
            f"{listed(devices)}, and was not read. Name the column of the tokens of a batch, or of "
            "its sequences: columns={'sequences': ...}."
        )
        return {}
    return found


def _count(name: str | None, names: Sequence[str]) -> str:
    """How the column of parameters counts, where the log says it."""
    others = [
        other for other in names if _key(other) in NAMES["parameters"] and _lacks_embeddings(other)
    ]
    if name is None or not (others or _EMBEDDINGS.search(name)):
        return ""
    how = f"counted without embeddings ({name!r})" if name in others else f"those of {name!r}"
    not_read = "" if name in others or not others else f", not {listed(others)}"
    return f"Parameters are {how}{not_read}: ask for forecasts in the same count."


def _lacks_embeddings(name: str) -> bool:
    return bool((said := _EMBEDDINGS.search(name)) and said[1])


@cache
def _key(name: str) -> str:
    """The name of a column below its prefix, as ``NAMES`` are written."""
    last = re.split(r"[./]", without_unit(_NATS.sub("", name)))[-1]
    text = _EMBEDDINGS.sub("", "_".join(re.findall(r"[^\W_]+", last)))
    if text in ("N", "D"):  # n is a width, or a number of runs
        return text
    return "_".join(
        _SAME.get(word, word) for word in text.lower().split("_") if word not in _SILENT
    )


# ---- rows


def _ended(runs: Sequence[LoggedRun], notes: list[str]) -> list[LoggedRun]:
    """The rows of runs that ended; a run that diverged has an infinite loss."""
    kept = [run for run in runs if (run.state or "").lower() in _ENDED]
    if len(kept) < len(runs):
        others = sorted({run.state.lower() for run in runs if run.state} - {*_ENDED})
        notes.append(
            f"{len(runs) - len(kept)} rows of runs that are {' or '.join(others)} were left out."
        )
    return [
        replace(run, loss=math.inf) if (run.state or "").lower() == "diverged" else run
        for run in kept
    ]


def _mixed(table: Sequence[Line], runs: Sequence[LoggedRun], names: Sequence[str]) -> list[str]:
    """A note on columns of words in which rows differ that are alike in all that is read, as seeds
    are.
    """
    alike = dict[LoggedRun, list[Line]]()
    for line, run in zip(table, runs, strict=True):
        alike.setdefault(replace(run, loss=None, seed=None, run=None), []).append(line)
    mixed = []
    for name in names:
        values = {str(line.get(name)) for line in table if not is_none(line.get(name))}
        if len(values) > len(table) / 2 or any(map(is_number, values)):
            continue  # names and times of runs, and numbers
        if any(len({str(line.get(name)) for line in own}) > 1 for own in alike.values()):
            mixed.append(name)
    said = "they count as equal, as seeds do. Give the rows of one kind."
    return [f"Rows alike in all that is read differ in {listed(mixed)}: {said}"] if mixed else []


def _last_steps(runs: Sequence[LoggedRun], notes: list[str]) -> list[LoggedRun]:
    """Of every run the row of its last step with a loss, where rows are steps.

    Raises:
        ValueError: where rows without a name of their run have several losses at one step.
    """
    if all(run.step is None for run in runs):
        lengths = dict[tuple[str | None, float | None], set[float | None]]()
        for run in runs:
            lengths.setdefault((run.run, run.lr), set()).add(run.tokens)
        if several := [
            name for (name, _), own in lengths.items() if name is not None and len(own) > 1
        ]:
            notes.append(
                f"Rows of {listed(several[:1])} differ in tokens, and each counts as a finished "
                "run. If they are a history, whose rate had not fallen yet, give the last row of "
                "every run."
            )
        return list(runs)
    logged = {run.step for run in runs if run.loss is not None and math.isfinite(run.loss)}
    histories = dict[LoggedRun, list[LoggedRun]]()
    for run in sorted(
        (run for run in runs if run.step is not None), key=lambda run: run.step or 0.0
    ):
        tokens = run.tokens if run.run is None else None  # they grow with the steps of a run
        histories.setdefault(replace(run, loss=None, step=None, tokens=tokens), []).append(run)
    last = []
    for history in histories.values():
        known = [run for run in history if run.loss is not None]
        if known and known[0].run is None and len({*known}) > len({run.step for run in known}):
            raise InputError(
                "rows alike in all that is read have several losses at one step, so that they are "
                "of several runs. Name the column that tells runs apart: columns={'run': ...}, in "
                "the shell --columns run=..."
            )
        finite = [math.isfinite(run.loss or 0.0) for run in known]
        # not-a-number between losses is a gap, and so it is after them at steps at which no run has
        # a loss
        if not all(
            finite[
                : max((place for place, is_finite in enumerate(finite) if is_finite), default=-1)
                + 1
            ]
        ):
            known = [
                run
                for run, is_finite in zip(known, finite, strict=True)
                if is_finite or run.step in logged
            ]
        last += known[-1:]
    if len(last) < len(runs):
        notes.append("Rows are steps: of every run the last step with a loss counts.")
    return last


def _run(line: Line, number: int, chosen: Mapping[Field, str]) -> LoggedRun:
    """The fields of a row: width and depth whole, the loss infinite where it is no number; its
    batch and tokens also where they are products of others."""
    fields: dict[str, Any] = {}
    for field, name in chosen.items():
        value: Any = line.get(name)
        # pandas has not-a-number for none; as a loss it is divergence, or a gap
        if is_none(value) and (
            field != "loss" or value is None or str(value).strip().lower() != "nan"
        ):
            continue
        if field in ("rule", "seed", "run", "state", "decay"):
            # pandas makes numbers real in a column with gaps
            whole = isinstance(value, float) and value.is_integer()
            fields[field] = str(int(value) if whole else value).strip()
            continue
        size = number_of(value, name, number, field in _SIZES)
        if field == "loss":
            size = size if math.isfinite(size) else math.inf
        elif field != "step" and not 0 < size < math.inf:
            raise InputError(
                f"column {name!r} must hold numbers above 0; row {number} has {value!r}."
            )
        elif field in ("width", "depth"):
            if size != int(size):
                raise InputError(
                    f"column {name!r} must hold whole numbers; row {number} has {value!r}."
                )
            size = int(size)
        # 0.1 in single precision is no other rate than 0.1
        fields[field] = float(f"{size:.6g}") if field == "lr" else size
    if {"sequences", "length"} <= {*fields}:
        fields["batch"] = fields["sequences"] * fields["length"]
        if fields["batch"] > _LARGEST:
            raise InputError(
                f"row {number} would have {fields['batch']:.3g} tokens in a batch, "
                f"{chosen['sequences']!r} times {chosen['length']!r}. If the first counts tokens, "
                f"name it: columns={{'batch': {chosen['sequences']!r}}}, in the shell --columns "
                f"{shlex.quote('batch=' + chosen['sequences'])}."
            )
    if "steps" in fields and ("batch" in fields or not {"batch", "sequences"} & {*chosen}):
        fields["tokens"] = fields["steps"] * fields.get("batch", 1)
    return LoggedRun(**fields)
