"""Stored plans: JSON that is read strictly, and numbers that a plan can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from nfd.core.checks import check_real
from nfd.core.errors import InputError
from nfd.core.words import nearest
from nfd.scaling.optimizers import LAWS

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

# Sizes, ratios, factors and rates of a plan are above 0. These are not, or need not be:
_FROM_ZERO = frozenset({"std", "shape", "warmup", "final"})
_OF_ANY_SIGN = frozenset({"constant", "multiplier"})
# Statistics of a rate law, which may be unknown (not-a-number) or unbounded; no rate is made of
# them.
_STATISTICS = frozenset({"interval", "excess"})


def read_plan(kind: type[Plan], text: str | bytes, place: str = "The stored plan") -> Plan:
    """Read a plan from JSON.

    Args:
        kind: the class ``Plan``, which stands above this module.
        place: what messages call the text, such as the path of its file.

    Raises:
        ValueError: naming the field and ``place``, if it is not a plan, or is damaged.
    """
    # pydantic finds the type of the field ``run`` by its name here. Its laws of the learning rate
    # are imported only now, as planning does without them.
    from nfd.scaling.run import RunScaling  # noqa: F401

    try:
        plan = TypeAdapter(kind).validate_json(text, strict=True)
        _check_numbers(plan.to_dict())
    except ValueError as error:
        lines = str(error).partition(" [type=")[0].splitlines()
        reason = " ".join(lines[1:]) or str(error)
        raise InputError(
            f"{place} is damaged, or no plan ({reason.strip()}). Plan the model again."
        ) from None
    if plan.optimizer not in LAWS:
        raise InputError(
            f"{place} is damaged, or for an optimizer that is not known here: {plan.optimizer!r}."
            f"{nearest(plan.optimizer, LAWS)} Register its law before (nfd.register_optimizer), or "
            "plan the model again."
        )
    return plan


def _check_numbers(stored: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the field, for a number that no plan holds."""
    remaining: list[tuple[str, str, Any]] = [(key, key, value) for key, value in stored.items()]
    while remaining:
        place, field_name, value = remaining.pop()
        if isinstance(value, Mapping):
            # Below these fields a key names a dimension or a quantity, and not a field.
            has_fields = field_name not in _OF_ANY_SIGN | _STATISTICS
            for key, part in value.items():
                part_name = str(key) if has_fields else field_name
                remaining.append((f"{place}[{key!r}]", part_name, part))
        elif isinstance(value, tuple | list):
            for position, part in enumerate(value):
                remaining.append((f"{place}[{position}]", field_name, part))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(place, field_name, float(value))


def _check_number(place: str, field_name: str, value: float) -> None:
    """Raise ValueError unless a number can stand in a field of a plan."""
    is_fan_in = field_name == "fan_in" and "['ratios']" not in place
    if field_name in _STATISTICS:
        # Not-a-number passes.
        if value < 0:
            raise InputError(f"{place} must be at least 0; got {value:g}.")
    elif field_name in _OF_ANY_SIGN:
        check_real(place, value)
    elif field_name in _FROM_ZERO or is_fan_in:
        check_real(place, value, least=0.0)
    else:
        check_real(place, value, above=0.0)
