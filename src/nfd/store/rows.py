"""A run as a record, and the record as a row of the store."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, JsonValue, TypeAdapter, ValidationError

from nfd.core.errors import InputError, nearest

Status = Literal["done", "diverged", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)
COLUMNS = "key, group_key, status, config, metrics, observed, error, seconds, checksum"  # in this order in a row
_JSON = TypeAdapter(dict[str, JsonValue])


def _printable(name: str) -> str:
    if not name.strip() or not name.isprintable():
        raise ValueError("must be a name that can be printed")
    return name


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    json.dumps(_JSON.validate_python(config), allow_nan=False)
    return config


Name = Annotated[str, Field(strict=True), AfterValidator(_printable)]


@dataclass(frozen=True)
class Record:
    """One run; its fields are checked when it is stored.

    ``config`` is plain JSON data, ``metrics`` are any floats (a diverged run has inf and nan), ``curves`` are vectors
    of float32 or float64 by name. A record that was listed has no curves; two records are compared without them.
    ``observed`` is what observers returned beside numbers, as plain data.
    ``error`` says why a run failed, and ``trace`` where, if that was a mistake of ours.
    """

    key: Name
    group: Name
    status: Status
    config: Annotated[dict[str, Any], AfterValidator(_plain)]
    metrics: dict[Name, Annotated[float, Field(strict=True)]]
    curves: dict[Name, Any] = field(default_factory=dict, compare=False, repr=False)
    error: str | None = None
    seconds: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    trace: str | None = None
    observed: list[Any] = field(default_factory=list, compare=False, repr=False)


_RECORD = TypeAdapter(Record)


def encode(record: Record) -> tuple[Any, ...]:
    """The values of ``COLUMNS``; ValueError that names the run and the field if one cannot be stored as it is."""
    try:
        _RECORD.validate_python(vars(record))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise ValueError(
            f"{place} of run {record.key!r} cannot be stored: {problem['msg']}; got {problem['input']!r}."
        ) from None
    # JSON has no infinities: they are texts
    metrics = {name: float(x) if math.isfinite(x) else repr(float(x)) for name, x in record.metrics.items()}
    failure = record.error if record.trace is None else [record.error, record.trace]
    texts = (json.dumps(record.config), json.dumps(metrics), json.dumps(record.observed), json.dumps(failure))
    row = (record.key, record.group, record.status, *texts, record.seconds)
    return (*row, _checksum(row))


def decode(row: Sequence[Any], file: Path) -> Record:
    """The record of a row; ValueError if a bit of it has changed."""
    if _checksum(row[:-1]) != row[-1]:
        raise InputError(
            f"Run {row[0]!r} in {file} is damaged: its row does not match its checksum. Restore the file from a copy, "
            "or choose another directory and train again."
        )
    key, group, status, config, metrics, observed, error, seconds, _ = row
    numbers = {name: float(x) for name, x in json.loads(metrics).items()}
    failure = json.loads(error)
    reason, trace = failure if isinstance(failure, list) else (failure, None)
    return Record(key, group, status, json.loads(config), numbers, {}, reason, seconds, trace, json.loads(observed))


def _checksum(row: Sequence[Any]) -> int:
    """SQLite itself notices a changed byte where its structure suffers, and not in a text."""
    return zlib.crc32(repr(tuple(row)).encode())


def matching(records: list[Record], where: Mapping[str, Any]) -> list[Record]:
    """The records whose config has, for each field of ``where``, its value or one of its list of values."""
    known = {name for record in records for name in record.config}
    for name in where if records else ():
        if name not in known:
            raise InputError(f"where must name fields of config; got {name!r}.{nearest(name, known)}")
    choices = {name: value if isinstance(value, list | tuple) else [value] for name, value in where.items()}
    return [r for r in records if all(n in r.config and _is_among(r.config[n], v) for n, v in choices.items())]


def _is_among(value: Any, options: Sequence[Any]) -> bool:
    return any(value == o and isinstance(value, bool) == isinstance(o, bool) for o in options)  # True is not 1 here
