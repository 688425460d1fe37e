"""What an earlier command of the paper left in a directory: its setting, and its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nfd.paper.claims.page import are_claims
from nfd.paper.settings import FigureConfig


def clash(config: FigureConfig, directory: Path, kept: Sequence[str]) -> str | None:
    """A sentence where files that stay are of other data, another size or another seed; None where nothing is mixed.

    Args:
        kept: patterns of the files that stay in the directory.
    """
    if not any(path for pattern in kept for path in directory.glob(pattern)):
        return None
    earlier, now = _result(directory).get("config"), config.plain()
    if not isinstance(earlier, dict) or earlier == now:
        return None
    return f"{str(directory)!r} holds results of {_said(earlier)}, and this is {_said(now)}."


def judged_before(directory: Path) -> list[dict[str, Any]]:
    """The rows that ``write_claims`` left in a directory; none where it holds no result."""
    rows = _result(directory).get("rows")
    return rows if are_claims(rows) else []


def _result(directory: Path) -> dict[str, Any]:
    path = directory / "result.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _said(config: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in config.items() if value is not None)
