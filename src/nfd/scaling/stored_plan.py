"""A plan as plain numbers and strings, and as a file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from nfd.core.errors import FileError, InputError, InputTypeError
from nfd.core.files import expanded
from nfd.scaling.laws import law_of

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

FORMAT = 2


def plain(plan: Plan) -> dict[str, Any]:
    """Numbers and strings, for JSON or a checkpoint."""
    return {"format": FORMAT, **asdict(plan)}


def restored(stored: Any) -> Plan:
    """The plan that ``plain`` made; ValueError when it is not one."""
    if not isinstance(stored, Mapping) or stored.get("format") != FORMAT:
        got = stored.get("format") if isinstance(stored, Mapping) else type(stored).__name__
        raise InputError(f"This is not a plan of format {FORMAT}; got {got!r}. Plan the model again.")
    try:
        plan = _adapter().validate_json(json.dumps(dict(stored), allow_nan=False), strict=True)
        json.dumps(plain(plan), allow_nan=False)  # a whole number of 400 digits was read as infinity
        law_of(plan.optimizer)
        for name in plan.entries:
            _check_numbers(plan, name)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"The stored plan is damaged ({_reason(error)}). Plan the model again.") from None
    return plan


def save(plan: Plan, path: str | Path) -> None:
    """Write the plan as JSON, over an earlier plan if there is one; FileError where another file lies there."""
    there = expanded(path)
    if there.is_file() and there.stat().st_size and not _is_plan(there):
        raise FileError(f"{path} is not a plan and would be replaced. Nothing was changed. Choose another path.")
    there.write_text(json.dumps(plain(plan), indent=1), encoding="utf-8")


def load(path: str | Path) -> Plan:
    """Read what ``save`` wrote; ValueError when it is not a plan."""
    if not isinstance(path, str | Path):
        raise InputTypeError(f"path must be a text or a Path; got {path!r}.")
    try:
        stored = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} is not a plan: {error}.") from None
    return restored(stored)


@cache
def _adapter() -> TypeAdapter[Plan]:
    from nfd.scaling.plan import Plan

    return TypeAdapter(Plan)


def _check_numbers(plan: Plan, name: str) -> None:
    """ValueError unless the numbers of a tensor can be used: ratios may be so far from 1 that powers are not."""
    try:
        numbers = [of(name) for of in (plan.std, plan.rate, plan.epsilon, plan.weight_decay)]
    except ArithmeticError:
        numbers = [math.inf]
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"{name!r} has ratios or powers beyond all numbers: {plan.entries[name]}")


def _reason(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _is_plan(path: Path) -> bool:
    """Whether a file holds a plan, of any version."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(stored, dict) and {"format", "rule", "entries"} <= stored.keys()
