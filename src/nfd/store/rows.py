"""A run as a record, and the record as a row: JSON texts with a checksum."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nfd.core.errors import InputError, check_choice, check_real, nearest

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

STATUSES = ("done", "diverged", "failed")
COLUMNS = "key, group_key, status, config, metrics, error, seconds"  # in this order in a row


@dataclass(frozen=True)
class Record:
    """One run.

    ``config`` is plain JSON data, ``metrics`` are any floats (a diverged run has inf and nan), ``curves`` are vectors
    of float32 or float64 by name. A record that was listed has no curves; two records are compared without them.
    """

    key: str
    group: str
    status: str
    config: dict[str, Any]
    metrics: dict[str, float]
    curves: dict[str, NDArray[Any] | torch.Tensor] = field(default_factory=dict, compare=False, repr=False)
    error: str | None = None
    seconds: float = 0.0


def check_name(argument: str, name: object) -> str:
    """Return ``name`` if it is text that can be printed, and not blank."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable():
        raise ValueError(f"{argument} must be a name that can be printed; got {name!r}.")
    return name


def encode(record: Record) -> tuple[Any, ...]:
    """The values of ``COLUMNS``; ValueError that names the run and the field if one cannot be kept exactly."""
    key, group = check_name("key", record.key), check_name(f"group of run {record.key!r}", record.group)
    if not (record.error is None or isinstance(record.error, str)):
        raise ValueError(f"error of run {key!r} must be a text or None; got {record.error!r}. Pass str(error).")
    for what, named in (("metrics", record.metrics), ("curves", record.curves)):
        if not isinstance(named, dict):
            raise ValueError(f"{what} of run {key!r} must be a dict by name; got {named!r}.")
    return (
        key,
        group,
        check_choice(f"status of run {key!r}", record.status, STATUSES),
        _config_text(key, record.config),
        json.dumps({check_name("metric", name): _number(key, name, x) for name, x in record.metrics.items()}),
        json.dumps(record.error),  # escaped, so that bytes of odd file names survive
        check_real(f"seconds of run {key!r}", record.seconds, least=0),
    )


def checksum(row: Sequence[Any]) -> int:
    """Of the values of ``COLUMNS``: SQLite itself notices a broken page only where its structure suffers."""
    return zlib.crc32(repr(tuple(row)).encode())


def decode(row: Sequence[Any], file: Path) -> Record:
    """The record of a row whose last column is its checksum; ValueError if they do not match."""
    if checksum(row[:-1]) != row[-1]:
        raise InputError(
            f"Run {row[0]!r} in {file} is damaged: its row does not match its checksum. Restore the file from a copy, "
            "or choose another directory and train again."
        )
    key, group, status, config, metrics, error, seconds, _ = row
    numbers = {name: float(x) for name, x in json.loads(metrics).items()}
    return Record(key, group, status, json.loads(config), numbers, {}, json.loads(error), seconds)


def matching(records: list[Record], where: Mapping[str, Any]) -> list[Record]:
    """The records whose config has, for each field of ``where``, its value or one of its list of values."""
    known = {name for record in records for name in record.config}
    for name in where if records else ():
        if name not in known:
            raise InputError(f"where must name fields of config; got {name!r}.{nearest(name, known)}")
    wanted = {name: value if isinstance(value, list | tuple) else [value] for name, value in where.items()}
    return [r for r in records if all(n in r.config and _one_of(r.config[n], v) for n, v in wanted.items())]


def _one_of(value: Any, options: Sequence[Any]) -> bool:
    return any(value == o and isinstance(value, bool) == isinstance(o, bool) for o in options)  # True is not 1 here


def _config_text(key: str, config: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(config, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config of run {key!r} must be plain JSON data; got {config!r} ({error}).") from None
    if not isinstance(config, dict) or json.loads(text) != config:
        raise ValueError(
            f"config of run {key!r} must read back from JSON as it was; got {config!r}. "
            "Pass a dict with text keys, and lists instead of tuples."
        )
    return text


def _number(key: str, name: str, value: Any) -> float | str:
    """The shortest text that reads back as the same float: JSON's own where there is one, else 'inf' or 'nan'."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"metric {name!r} of run {key!r} must be a float; got {value!r} of {type(value).__name__}.")
    number = float(value)
    return number if math.isfinite(number) else repr(number)
