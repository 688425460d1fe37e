"""A file of training runs: JSON, JSON lines, CSV or parquet, also compressed by gzip.

What a file is, its content says, not its name.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from nfd.core.errors import InputError
from nfd.laws.rows import listed

_GZIP = b"\x1f\x8b"
_PARQUET = b"PAR1"
# Excel's texts.
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def read_file(path: str) -> Any:
    """Read a file: a list of rows, or what a JSON file holds.

    Raises:
        OSError, ValueError: where there is none, and where it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise OSError(
            "the log must be a file of CSV, JSON, JSON lines or parquet; there is none at "
            f"{path!r}: {error.strerror or error}."
        ) from None
    if content.startswith(_GZIP):
        content = _unzipped(content, path)
    if content.startswith(_PARQUET):
        return _parquet(content, path)
    try:
        text = content.decode("utf-16" if content.startswith(_UTF_16) else "utf-8-sig")
    except ValueError as error:
        raise InputError(
            f"the log {path!r} must be a CSV file in UTF-8, JSON or parquet; it cannot be read: "
            f"{error}."
        ) from None
    if text.lstrip()[:1] in ("{", "["):
        return _json(text, path)
    return _csv(text, path)


def _unzipped(content: bytes, path: str) -> bytes:
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            f"the log {path!r} is compressed by gzip, and damaged or cut off: {error}. Copy it "
            "again."
        ) from None


def _parquet(content: bytes, path: str) -> list[dict[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError:
        raise InputError(
            f"the log {path!r} is a parquet file, which pyarrow reads. Install it: pip install "
            "pyarrow."
        ) from None
    try:
        rows: list[dict[str, Any]] = parquet.read_table(io.BytesIO(content)).to_pylist()
    # Errors of pyarrow are no errors of this package's users.
    except Exception as error:
        raise InputError(
            f"the log {path!r} must be a parquet file; it cannot be read: {error}."
        ) from None
    return rows


def _json(text: str, path: str) -> Any:
    """The content of a JSON file, or the objects on its lines."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        of_whole = error
    lines = list[Any]()
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError as error:
            # Where the first line is no object of its own, this is one JSON text.
            if not lines:
                raise InputError(
                    f"the log {path!r} must be JSON; it cannot be read: {of_whole}."
                ) from None
            raise InputError(
                f"line {number} of {path!r} must be a JSON object as the others; it cannot be "
                f"read: {error}. Fix or delete it."
            ) from None
    return lines


def _csv(text: str, path: str) -> list[Mapping[str, Any]]:
    """The rows of a text; tabs, semicolons or commas end its fields, as its header shows."""
    first, _, _ = text.partition("\n")
    header = re.sub('"[^"]*"', "", first)
    try:
        file = io.StringIO(text, newline="")
        reader = csv.DictReader(file, strict=True, delimiter=max(",;\t", key=header.count))
        lines = list(reader)
        counts = Counter(reader.fieldnames or ())
    except csv.Error as error:
        raise InputError(
            f"the log {path!r} must be a CSV file in UTF-8; it cannot be read: {error}."
        ) from None

    repeated = [name for name, count in counts.items() if name and count > 1]
    if repeated:
        raise InputError(
            f"the log {path!r} has several columns {listed(repeated)}. Give each a name of its own."
        )
    for number, line in enumerate(lines, 2):
        if None in line or None in line.values():
            raise InputError(
                f"line {number} of {path!r} has another number of fields than the header. Fix the "
                "file."
            )
    return lines  # type: ignore[return-value]
