"""Atomic files: JSON, CSV and text appear whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def prepare_directory(path: str | Path) -> Path:
    """Create ``path`` if needed and prove that a file can be written there; ValueError that says what to do."""
    if not str(path).strip():
        raise ValueError("out must name a directory; got an empty string.")
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(
            f"out must be a directory that can be written; got {str(directory)!r} ({error.strerror}). "
            "Choose another with --out DIR."
        ) from error
    return directory


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file beside ``path`` and rename it there."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_text(path: Path, content: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_bytes(path, content.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write JSON atomically; numbers that are not finite become null."""
    return write_text(path, json.dumps(_finite(content), indent=2, allow_nan=False) + "\n")


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write dictionaries with the same keys as CSV, atomically."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    return write_text(path, text.getvalue())


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value
