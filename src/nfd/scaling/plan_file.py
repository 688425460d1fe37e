"""Stored plans: JSON that is read strictly, and numbers that a plan can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from pydantic_core import from_json

from nfd.core.checks import check_real
from nfd.core.errors import InputError
from nfd.core.words import nearest
from nfd.scaling.neutral import VERSION
from nfd.scaling.optimizers import LAWS

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

# The numbers of a plan (sizes, ratios, factors, learning rates) are above 0, but for three groups
# of fields: these may be 0,
_FROM_ZERO = frozenset({"std", "shape", "warmup", "final"})
# these may have either sign,
_OF_ANY_SIGN = frozenset({"constant", "multiplier"})
# and these, the uncertainty of a rate law, may be unknown (not-a-number) or infinite. They are only
# reported: no learning rate is computed from them.
_STATISTICS = frozenset({"interval", "excess"})


def read_plan(kind: type[Plan], text: str | bytes, place: str = "The stored plan") -> Plan:
    """Read a plan from JSON.

    Args:
        kind: the class ``Plan``, an argument because ``nfd.scaling.plan`` imports this module.
        place: what messages call the text, such as the path of its file.

    Raises:
        ValueError: naming the field and ``place``, if it is not a plan, or is damaged.
    """
    # pydantic looks up the type of ``Plan.run`` by this name, in this function. The import is here
    # because it brings in the laws of the learning rate, which planning does not need.
    from nfd.scaling.run import RunScaling  # noqa: F401

    _check_version(text, place)
    try:
        plan = TypeAdapter(kind).validate_json(text, strict=True)
        _check_numbers(plan.to_dict())
    except ValueError as error:
        # pydantic counts the errors in a first line, then gives the field and the message of each,
        # with details in brackets: keep field and message of the first. Errors of
        # ``_check_numbers`` have one line.
        first_error = str(error).partition(" [type=")[0].splitlines()
        reason = " ".join(first_error[1:]) or str(error)
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


def _check_version(text: str | bytes, place: str) -> None:
    """Raise ValueError if a stored plan is of a later version than is known here.

    What is not JSON, or not a plan, has no version, and is left to who reads it.
    """
    try:
        stored = from_json(text)
    except ValueError:
        return
    version = stored.get("version", VERSION) if isinstance(stored, dict) else VERSION
    if version != VERSION:
        raise InputError(
            f"{place} is a plan of version {version!r}; this nfd reads version {VERSION}. Upgrade "
            "nfd, or plan the model again."
        )


def _check_numbers(stored: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the field, for a number that no plan holds."""
    remaining: list[tuple[str, str, Any]] = [(key, key, value) for key, value in stored.items()]
    while remaining:
        place, field_name, value = remaining.pop()
        if isinstance(value, Mapping):
            # Keys are names of fields, except inside of these fields: there a key names a dimension
            # or a quantity, and the rule of the whole field holds for its parts.
            keys_are_fields = field_name not in _OF_ANY_SIGN | _STATISTICS
            for key, part in value.items():
                part_name = str(key) if keys_are_fields else field_name
                remaining.append((f"{place}[{key!r}]", part_name, part))
        elif isinstance(value, tuple | list):
            for position, part in enumerate(value):
                remaining.append((f"{place}[{position}]", field_name, part))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(place, field_name, float(value))


def _check_number(place: str, field_name: str, value: float) -> None:
    """Raise ValueError unless a number can stand in a field of a plan."""
    # ``fan_in`` is a number of inputs in an entry, and a ratio, above 0, in its ``ratios``.
    is_number_of_inputs = field_name == "fan_in" and "['ratios']" not in place
    if field_name in _STATISTICS:
        # Not-a-number passes this comparison, as it should.
        if value < 0:
            raise InputError(f"{place} must be at least 0; got {value:g}.")
    elif field_name in _OF_ANY_SIGN:
        check_real(place, value)
    elif field_name in _FROM_ZERO or is_number_of_inputs:
        check_real(place, value, least=0.0)
    else:
        check_real(place, value, above=0.0)
