"""Priors that were learned from other people's runs, a file for each law, and their reader.

| file | law | its word |
|---|---|---|
| ``rates.json`` | rate law (``nfd.laws.rate_law``) | ``"sweeps"`` |
| ``losses.json`` | loss law (``nfd.laws.ladder_posterior``) | ``"ladders"`` |
| ``curves.json`` | law of the loss curve (``nfd.laws.curve``) | ``"curves"`` |
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from nfd.core.errors import InputError, InputTypeError

Kind = Literal["rates", "losses", "curves"]
P = TypeVar("P")

_WORDS: dict[Kind, str] = {"rates": "sweeps", "losses": "ladders", "curves": "curves"}
_MAKERS: dict[Kind, str] = {"rates": "rate_law", "losses": "ladders", "curves": "curves"}


def file_of(kind: Kind) -> Path:
    """Find the file of the package."""
    return Path(__file__).with_name(f"{kind}.json")


def read_prior(kind: Kind, prior: str | os.PathLike[str], parse: Callable[[Any], P]) -> P:
    """Read the package's prior, by its word, or another file of that form.

    Args:
        kind: the law that it is for.
        prior: the word, or the path of a file.
        parse: makes the prior of the content of a file.

    Raises:
        OSError: where there is no such file.
        ValueError: where a file holds something else.
    """
    word = _WORDS[kind]
    if not isinstance(prior, str | os.PathLike):
        raise InputTypeError(f'prior must be "{word}", a path or None; got {type(prior).__name__}.')
    path = file_of(kind) if prior == word else Path(prior).expanduser()
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise OSError(
            f'prior must be "{word}", a file or None; {str(path)!r}: {error.strerror}.'
        ) from None
    try:
        return parse(json.loads(text))
    except (KeyError, IndexError, TypeError, ValueError) as error:
        maker = f"python -m benchmarks.{_MAKERS[kind]} --prior"
        raise InputError(
            f"prior must be a file that {maker} wrote; got {str(path)!r}: {error!r}."
        ) from None
