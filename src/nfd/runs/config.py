"""Frozen, validated configurations that travel as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from nfd.core.errors import MAX_SEED, MOST, WIDEST, InputError, nearest
from nfd.scaling.rules import MAX_ETA_C

Count = Annotated[int, Field(strict=True, ge=1, le=MOST)]
Width = Annotated[int, Field(strict=True, ge=1, le=WIDEST)]
Several = Annotated[int, Field(strict=True, ge=2, le=MOST)]  # of which a standard error can be taken
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(strict=True, ge=0, lt=MAX_ETA_C, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, gt=0, lt=1)]
Momentum = Annotated[float, Field(strict=True, ge=0, lt=1)]
Seed = Annotated[int, Field(strict=True, ge=0, le=MAX_SEED)]


_PARTIAL = ContextVar("partial", default=False)  # whether settings are read that others will complete


class Config(BaseModel):
    """Base of every configuration: frozen, closed to unknown settings, with all its errors in one message."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise InputError(_message(error, list(type(self).model_fields))) from None

    def check(self) -> None:
        """Raise InputError where settings contradict each other; called once all of them are there."""

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        if not _PARTIAL.get():
            self.check()
        return self

    @classmethod
    def load(cls, path: str | Path, *, partial: bool = False) -> Self:
        """Read a TOML file; ValueError with every wrong setting in it.

        ``partial``: what settings say of each other is not checked yet, as more of them are to come.
        """
        settings = read_toml(path, "config")
        before = _PARTIAL.set(partial)
        try:
            return cls(**settings)
        except InputError as error:
            raise InputError(f"config {str(path)!r}: {error}") from None
        finally:
            _PARTIAL.reset(before)

    def changed(self, *names: str) -> list[str]:
        """Those of these settings that differ from their defaults, as ``name=value``."""
        fields = type(self).model_fields
        return [f"{name}={getattr(self, name)!r}" for name in names if getattr(self, name) != fields[name].default]

    def toml(self) -> str:
        """The settings as TOML; ``load`` brings them back."""
        return tomli_w.dumps(self.model_dump(exclude_none=True))


def read_toml(path: str | Path, kind: str) -> dict[str, Any]:
    """The settings in a TOML file; ValueError that names it as this kind."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{kind} {str(path)!r} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{kind} {str(path)!r} is not TOML: {str(error).rstrip('.')}.") from None


def _message(error: ValidationError, names: list[str]) -> str:
    """One line per wrong setting, in the words of the project's other errors."""
    lines = [_line(e, names) for e in error.errors(include_url=False)]
    return lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} settings are wrong:", *lines])


def _line(error: Mapping[str, Any], names: list[str]) -> str:
    kind, got, bounds = error["type"], error["input"], error.get("ctx", {})
    first, *rest = error["loc"] or ("",)
    where = str(first) + "".join(f"[{part}]" for part in rest if isinstance(part, int))
    if kind == "value_error":  # from a validator of ours
        return f"{where} {bounds['error']}".lstrip()
    if kind == "extra_forbidden" and isinstance(got, dict):
        return f"{where} is a table; settings stand at the top level, without [{where}]."
    if kind == "extra_forbidden":
        return f"{where} is not a setting.{nearest(where, names)}"
    expected = {
        "greater_than_equal": "at least {ge}",
        "greater_than": "greater than {gt}",
        "less_than_equal": "at most {le}",
        "less_than": "less than {lt}",
        "int_type": "a whole number",
        "int_parsing_size": "a smaller number",
        "int_from_float": "a whole number",
        "float_type": "a number",
        "finite_number": "finite",
        "string_type": "text",
        "tuple_type": "a list",
    }.get(kind)
    if kind == "literal_error":
        return f"{where} must be one of {_spelled(bounds['expected'])}; got {got!r}.{nearest(got, _options(bounds))}"
    if expected is None:
        return f"{where}: {error['msg']}; got {got!r}."
    numbers = {name: f"{v:g}" if isinstance(v, float) else v for name, v in bounds.items()}
    return f"{where} must be {expected.format(**numbers)}; got {got!r}."


def _options(bounds: Mapping[str, Any]) -> list[str]:
    return _spelled(bounds["expected"]).replace("'", "").split(", ")


def _spelled(expected: str) -> str:
    return expected.replace(" or ", ", ")
