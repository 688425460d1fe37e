"""The settings of the paper's studies, figures and claims: frozen, validated, and kept as TOML."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Self

import tomli_w
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from nfd.core import Activation, Data, InputError, nearest

Count = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Several = Annotated[int, Field(strict=True, ge=2, le=10**6)]  # of which a standard error can be taken
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(strict=True, ge=0, lt=1e30, allow_inf_nan=False)]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**63 - 1)]


_PARTIAL = ContextVar("partial", default=False)  # whether settings are read that others will complete


class Config(BaseModel):
    """Base of every configuration: frozen, closed to unknown settings, with all its errors in one message."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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


Check = Callable[[Any], Any]

_WIDEST_DENSE = 16384


def must_be(expected: str, holds: Callable[[Any], bool]) -> Check:
    """A check that returns the value it is given; InputError that says what was expected where ``holds`` is False."""

    def check(value: Any) -> Any:
        if not holds(value):
            got = list(value) if isinstance(value, tuple) else value
            raise InputError(f"must be {expected}; got {got!r}.")
        return value

    return check


def _ascend(values: Sequence[float]) -> bool:
    return len(values) > 0 and list(values) == sorted(set(values))


ascending = must_be("two or more ascending numbers", lambda values: len(values) > 1 and _ascend(values))
doubling = must_be(
    "numbers that end in L and 2L, from which infinite depth is extrapolated",
    lambda depths: depths[-1] == 2 * depths[-2],
)
holdable = must_be(
    f"at most {_WIDEST_DENSE}, as these networks hold dense weights", lambda widths: widths[-1] <= _WIDEST_DENSE
)
utf8 = must_be("a name in UTF-8", lambda name: name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name))


Ascending = Annotated[tuple[Count, ...], AfterValidator(ascending)]


class DataConfig(Config):
    """Which data set."""

    data: Data = "digits"
    """digits (scikit-learn's, nothing to download) or cifar10 (official binary version)"""
    data_dir: Annotated[str, AfterValidator(utf8)] | None = None
    """where cifar10 (directory or tar.gz) is"""
    seed: Seed = 0
    """seed of everything random"""

    def check(self) -> None:
        super().check()
        kind = self.data or "digits"  # a configuration may leave it open
        if kind == "digits" and self.data_dir is not None:
            raise InputError(
                f"data_dir is for data='cifar10'; got data='digits' and data_dir={self.data_dir!r}. "
                "Drop it or name the data set with --data."
            )
        if kind != "digits" and not (self.data_dir or "").strip():
            raise InputError(
                f"data={self.data!r} needs data_dir, the directory that holds it. "
                "Give data_dir=DIR, or --data-dir DIR where the command has this option."
            )


class TrainingConfig(DataConfig):
    """A residual network and its training."""

    activation: Activation = "relu"
    """relu, tanh, erf, gelu or identity"""
    horizon: Positive = 1.0
    """time horizon T"""
    eta_c: Rate = 0.3
    """learning rate that depends on neither width nor depth"""
    steps: Count = 30
    """steps of SGD"""
    batch: Count = 16
    """samples per step"""


class StudyConfig(TrainingConfig):
    """A study: predictions, real networks and two-layer blocks on the same batches."""

    depths: Annotated[Ascending, AfterValidator(doubling)] = (2, 4, 8, 16)
    """numbers of residual blocks L, ascending; infinite depth is extrapolated from the last two, L and 2L"""
    limit_width: Count = 2048
    """width of the networks that stand for the infinitely wide one"""
    replicates: Annotated[int, Field(strict=True, ge=3)] = 6
    """how many of those are averaged; 3 at least"""
    widths: Annotated[Ascending, AfterValidator(holdable)] = (64, 256, 1024)
    """widths of the real networks, ascending"""
    seeds: Several = 5
    """real networks of each width and depth"""
    block_depths: Ascending = (4, 8, 16, 32, 64)
    """depths of the two-layer networks whose updates are measured, ascending"""
    block_width: Count = 128
    """their width"""
    block_seeds: Several = 4
    """how many of each"""

    def check(self) -> None:
        super().check()
        if self.limit_width < 2 * self.widths[-1]:
            raise InputError(
                f"limit_width must be at least twice the largest of widths, {self.widths[-1]}, to stand for infinity; "
                f"got {self.limit_width}."
            )
