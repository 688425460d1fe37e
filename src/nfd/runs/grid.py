"""A grid of runs."""

from __future__ import annotations

import itertools
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nfd.core.errors import InputError
from nfd.runs.config import read_toml
from nfd.runs.settings import RunConfig

_MOST_RUNS = 1_000_000


def grid(**settings: Any) -> list[RunConfig]:
    """Every combination of these settings of ``RunConfig``: a list is an axis, the last one varying fastest.

    Args:
        **settings: of ``nfd.runs.settings.RunConfig``, each one value or a list of values.

    Returns:
        The runs, for ``nfd.Sweep.run``.

    Raises:
        ValueError: naming the setting, if ``RunConfig`` does not accept it or a list is empty.

    Example::

        runs = nfd.grid(width=[16, 32], depth=2, seed=[0, 1], eta_c=0.3, steps=2)
        len(runs)  # 4
    """
    axes = {name: list(value) for name, value in settings.items() if isinstance(value, list | tuple)}
    for name, values in axes.items():
        counts = Counter(v if isinstance(v, int | float) else repr(v) for v in values)  # 1 and 1.0 are one value
        if len(counts) != len(values) or not values:
            got = f"{counts.most_common(1)[0][0]} more than once" if values else "none"
            raise InputError(f"{name} must be a value or a list of different ones; got {got}.")
    total = 1
    for values in axes.values():
        total *= len(values)
    if total > _MOST_RUNS:
        raise InputError(f"a grid has at most {_MOST_RUNS:,} runs; got {total:,}. Split it into several sweeps.")
    rest = {name: value for name, value in settings.items() if name not in axes}
    return [RunConfig(**rest, **dict(zip(axes, point, strict=True))) for point in itertools.product(*axes.values())]


def grid_like(base: RunConfig, **settings: Any) -> list[RunConfig]:
    """The grid of these settings, the rest as in ``base``."""
    return grid(**(base.model_dump() | settings))


def grid_of_settings(texts: Sequence[str]) -> list[RunConfig]:
    """The grid of settings as the shell has them, such as ``width=64,128 rule=mup``: commas make an axis."""
    settings = dict[str, Any]()
    for text in texts:
        name, sign, values = text.partition("=")
        if not sign or name in settings:
            raise InputError(
                f"a grid is one TOML file, or settings such as width=64,128 rule=mup, each once; got {text!r}."
            )
        parts = [_value(value) for value in values.split(",")]
        settings[name] = parts if len(parts) > 1 else parts[0]
    return grid(**settings)


def _value(text: str) -> Any:
    """A number, true or false as TOML writes them; any other text stands for itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def grid_of(path: str | Path) -> list[RunConfig]:
    """The grid of a TOML file: settings of ``RunConfig``, where a list is an axis."""
    settings = read_toml(path, "grid")
    if not settings:
        raise InputError(f"grid {str(path)!r} sets nothing. Write settings of a run, such as width = [64, 128].")
    try:
        return grid(**settings)
    except InputError as error:
        raise InputError(f"grid {str(path)!r}: {error}") from None
