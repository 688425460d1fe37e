"""What an earlier command of the paper left in a directory: its setting, and its rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nfd.paper.claims.page import are_claims
from nfd.paper.config import FigureConfig
from nfd.paper.runs import data_settings


def clash(config: FigureConfig, directory: Path, kept: Sequence[str]) -> str | None:
    """A sentence where files that stay are of other data, another size or another seed; None where nothing is mixed.

    Args:
        kept: patterns of the files that stay in the directory.
    """
    place = directory / "config.toml"
    if not place.exists() or not any(path for pattern in kept for path in directory.glob(pattern)):
        return None
    try:
        earlier = FigureConfig.load(place)
    except ValueError:
        held = "another setting"
    else:
        if _numbers(earlier) == _numbers(config):
            return None
        held = _said(earlier)
    return f"{str(directory)!r} holds results of {held}, and this is {_said(config)}."


def judged_before(directory: Path) -> list[dict[str, Any]]:
    """The rows that ``write_claims`` left in a directory; none where it holds no result."""
    path = directory / "result.json"
    rows = json.loads(path.read_text(encoding="utf-8")).get("rows") if path.exists() else None
    return rows if are_claims(rows) else []


def _numbers(config: FigureConfig) -> dict[str, Any]:
    """What decides the numbers."""
    return data_settings(config) | {"size": config.size}


def _said(config: FigureConfig) -> str:
    place = f" in {config.data_dir}" if config.data_dir else ""
    return f"{config.data or 'digits'}{place} at size {config.size}, seed {config.seed}"
