"""Checks of single settings, and the types that carry them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from nfd.core.errors import InputError, nearest
from nfd.runs.config import Count
from nfd.scaling.laws import laws_where

Check = Callable[[Any], Any]

_WIDEST_DENSE = 16384
_CLOSEST = 1.05  # between two rates: the noise of seeds decides which of closer ones is better


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


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def values_by_name(texts: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """``["steps=10,20"]`` as ``{"steps": (10, 20)}``; ValueError where a text is not a name with numbers."""
    named = (text.partition("=") for text in texts)
    return {name: tuple(_number(value) for value in values.split(",")) for name, _, values in named}


def _number(text: str) -> float:
    return int(text) if text.strip().isdecimal() else float(text)


def _are_axes(texts: Sequence[str]) -> bool:
    try:
        return len(values_by_name(texts)) == len(texts) > 0
    except ValueError:
        return False


ascending = must_be("two or more ascending numbers", lambda values: len(values) > 1 and _ascend(values))
distinct = must_be("ascending numbers", _ascend)
different = must_be("one or more different names", lambda names: 0 < len(names) == len(set(names)))
values_of_settings = must_be("like batch_size=16,32,64, each setting once", lambda texts: _are_axes(texts))
pairs = must_be("like layers.*.up.weight=inner", lambda texts: all(all(text.partition("=")) for text in texts))
settings = must_be("like warmup=200", lambda texts: all(all(text.partition("=")) for text in texts))
switches = must_be("like tokens-rate=off", lambda texts: all(text.partition("=")[2] in ("on", "off") for text in texts))
doubling = must_be(
    "numbers that end in L and 2L, from which infinite depth is extrapolated",
    lambda depths: depths[-1] == 2 * depths[-2],
)
holdable = must_be(
    f"at most {_WIDEST_DENSE}, as these networks hold dense weights", lambda widths: widths[-1] <= _WIDEST_DENSE
)
whole_or_infinite = must_be(
    "a whole number of at least 1, or inf", lambda value: value == math.inf or (value >= 1 and value.is_integer())
)
share_or_auto = must_be(
    "a number between 0 and 1, or 'auto'", lambda value: value == "auto" or (isinstance(value, float) and 0 < value < 1)
)
count_or_auto = must_be("a whole number of at least 1, or 'auto'", lambda value: value == "auto" or _is_count(value))
utf8 = must_be("a name in UTF-8", lambda name: name.isascii() or not any("\ud800" <= c <= "\udfff" for c in name))


def rates(values: Sequence[float]) -> tuple[float, ...]:
    """Three rates or more, each once, in any order, as they ascend."""
    ordered = tuple(sorted(values))
    if len(ordered) < 3:
        raise InputError(
            f"must be three or more rates, as the best one is sought between them; got {list(values)}. Give rates "
            "below and above the one that you expect, such as 0.001 0.003 0.01."
        )
    for lower, higher in itertools.pairwise(ordered):
        if higher < _CLOSEST * lower:
            got = f"{lower:g} twice" if lower == higher else f"{lower:g} and {higher:g}, which nothing tells apart"
            raise InputError(f"must be different rates, at least 5 % apart; got {got}. Drop one of them.")
    return ordered


def is_path(name: str) -> bool:
    """Whether a setting is the package.module:name of an object rather than the name of one of ours."""
    return ":" in name


def known(name: str) -> str:
    return name if is_path(name) else _registered(name, laws_where(lambda law: True))


def whole(name: str) -> str:
    return _registered(name, laws_where(lambda law: law.make is not None and law.rest is None))


def _registered(name: str, names: list[str]) -> str:
    if name not in names:
        raise InputError(f"must be one of {', '.join(names)}; got {name!r}.{nearest(name, names)}")
    return name


Optimizer = Annotated[str, AfterValidator(known)]  # or the path of one
WholeOptimizer = Annotated[str, AfterValidator(whole)]  # of every tensor of a network
AnyDepth = Annotated[float, Field(strict=True), AfterValidator(whole_or_infinite)]
WidthOrAuto = Annotated[int | str, AfterValidator(count_or_auto)]
ShareOrAuto = Annotated[float | str, AfterValidator(share_or_auto)]
Ascending = Annotated[tuple[Count, ...], AfterValidator(ascending)]
