"""A table of runs as flat rows, from dicts or a chart's export.

Also the numbers in it, as people write them: ``1.3B``, ``2^-8``, ``3,25``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nfd.core.errors import InputError

Line = dict[str, Any]  # one row: values by the names of their columns

# Texts that stand for nothing, also those that pandas writes for it.
_NONE = ("", "<NA>", "NaT", "NA", "N/A", "None", "null", "-")
_SCALARS = ("run", "tag", "step", "value")  # columns of TensorBoard's scalars, beside the wall time
# in the name of a run
_SETTING = re.compile(r"([A-Za-z][\w.]*)=([^,;/\s]+?)(?=$|[,;/\s]|_[A-Za-z_.]+=)")
# The unit of a size, at the end of the name of its column.
_UNIT = re.compile(
    r"[(\[_ ](?:in[_ ])?"
    r"((?i:thousand|million|billion|trillion)|(?<=[(\[])[kmbt]|[KMBT])s?[)\]]?\s*$"
)
_SCALES = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
# A number with the unit of a size after it, such as 1.3B.
_WITH_UNIT = re.compile(r"([+-]?\d*[.,]?\d+(?:e[+-]?\d+)?)\s*([kmbt])", re.IGNORECASE)
# Units of compute in the name of a column: PF-days, petaflop/s-days; GFLOPs, EFLOPs.
_DAYS = re.compile(
    r"(?:PF|pf|[Pp]eta-?[Ff][Ll][Oo][Pp]|PFLOP|pflop)s?(?:/s)?[-_ ]?[Dd]ays?(?![A-Za-z])"
)
_FLOPS = re.compile(
    r"(?<![A-Za-z])(?:([kKmMgGtTpPeEzZ])|(kilo|mega|giga|tera|peta|exa|zetta)[- ]?)flops?"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_OPERATIONS_A_DAY = 1e15 * 24 * 60 * 60
_PREFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18, "z": 1e21}
_SHOWN = 30  # columns in a message


def flat_table(lines: Sequence[Mapping[Any, Any]]) -> list[Line]:
    """Flatten rows; a chart's export becomes a row for each run."""
    table = [_flat(line) for line in lines]
    if not table:
        raise InputError("the log has no rows. Give one row for each run.")
    _check_points(table)
    scalars = _scalars(table) or table
    names = {name.lower() for name in scalars[0]}
    return _pivoted(scalars) if set(_SCALARS) <= names else table


def listed(names: Sequence[str]) -> str:
    """Quote the names of columns for a message; of very many the first."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


# ---- numbers as people write them


def is_none(value: Any) -> bool:
    """Whether a cell holds nothing, or not-a-number, as pandas writes it."""
    is_nan = value != value
    return value is None or is_nan or str(value).strip() in (*_NONE, "nan", "NaN")


def is_number(value: str) -> bool:
    """Whether a text is a number."""
    try:
        as_number(value)
    except ValueError:
        return False
    return True


def without_unit(name: str) -> str:
    """The name of a column without its unit; one of compute leaves the word ``flops``."""
    for pattern in (_DAYS, _FLOPS):
        name = pattern.sub("flops", name)
    return _UNIT.sub("", name)


def may_be_speed(name: str) -> bool:
    """Whether a column such as TFLOPs may be the speed of a device, not the compute of a run."""
    operations = _FLOPS.search(name)
    if operations is None or _DAYS.search(name):
        return False
    prefix = (operations[1] or operations[2])[0].lower()
    is_compute = re.search("compute|train|total|budget|^C[^A-Za-z]", name)
    return prefix in "kmtp" and is_compute is None


def _unit_of(name: str) -> float | None:
    """The unit that the name of a column says; None for none."""
    if _DAYS.search(name):
        return _OPERATIONS_A_DAY
    operations = _FLOPS.search(name)
    if operations:
        return _PREFIXES[(operations[1] or operations[2])[0].lower()]
    size = _UNIT.search(name)
    return _SCALES[size[1][0].lower()] if size else None


def number_of(value: Any, name: str, number: int, whole: bool = False) -> float:
    """Read a number in the unit that the name of its column says.

    Args:
        value: what the cell holds.
        name: of its column.
        number: of its row, for a message.
        whole: whether it is a size, which has units and marks of thousands.
    """
    unit = _unit_of(name) if whole else None
    try:
        _check_unit(value, whole, unit)
        return (unit or 1.0) * as_number(value, whole and unit is None)
    except (TypeError, ValueError) as error:
        hint = f" {error}" if isinstance(error, InputError) else ""
        raise InputError(
            f"column {name!r} must hold numbers; row {number} has {value!r}.{hint}"
        ) from None


def _check_points(table: Sequence[Line]) -> None:
    """Refuse 2.000 under a unit, such as tokens (M), where other numbers have decimal commas.

    Elsewhere it is 2, to three decimals.
    """
    with_unit = [name for name in table[0] if _unit_of(name) is not None]
    if not with_unit:
        return
    texts = (value for line in table for value in line.values() if isinstance(value, str))
    if not any(re.fullmatch(r"[+-]?\d+,\d+", text.strip()) for text in texts):
        return
    for line in table:
        for name in with_unit:
            value = line.get(name)
            if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", value.strip()):
                raise InputError(
                    f"column {name!r} has {value!r}, and other numbers have decimal commas, "
                    "so that its point may mark thousands. Write it without one."
                )


def _check_unit(value: Any, whole: bool, unit: float | None) -> None:
    """Raise ValueError where the unit after a number may mean two things."""
    match = _WITH_UNIT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return
    if not whole:
        raise InputError(
            f"{match[2]!r} after a number that is not a size may mean two things, as m is milli "
            "or million. Write the number without a unit, such as 1.95e-3."
        )
    if unit is not None:
        raise InputError("The name of the column has a unit, too. Write it in one of the two.")
    if "e" in match[1].lower():
        raise InputError("It has a power of ten and a unit. Write one of the two.")


def as_number(value: Any, whole: bool = False) -> float:
    """Read a number as people write it: 1.3B, 4e12, 2^-8, 3 x 10^-4, 3,25; 1,000,000.

    Raises:
        ValueError, TypeError: for anything else, and for a whole number of which a mark may be a
            decimal.
    """
    text = value.strip() if isinstance(value, str) else ""
    if whole and re.fullmatch(r"[1-9]\d{0,2}(\.\d{3}|,\d{3}\s*[kmbt])", text, re.IGNORECASE):
        raise InputError("It may be read in two ways. Write it without a mark of thousands.")
    if whole and re.fullmatch(r"[1-9]\d{0,2}((,\d{3})+|(\.\d{3})+|([ ']\d{3})+)", text):
        return float(re.sub(r"\D", "", text))

    power = re.fullmatch(r"(?:([\d.]+)\s*[x*]\s*)?(\d+)\s*(?:\^|\*\*)\s*([+-]?\d+)", text)
    if power:
        return float(power[1] or 1) * float(power[2]) ** int(power[3])

    with_unit = _WITH_UNIT.fullmatch(text)
    if with_unit:
        return float(with_unit[1].replace(",", ".")) * _SCALES[with_unit[2].lower()]
    if re.fullmatch(r"[+-]?\d*,\d+(e[+-]?\d+)?", text, re.IGNORECASE):
        return float(text.replace(",", "."))
    return float(value)


# ---- forms of a table


def _flat(line: Mapping[Any, Any], prefix: str = "") -> Line:
    """Dicts within a row become columns ``config.lr``."""
    flat = Line()
    for name, value in line.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def _scalars(table: Sequence[Line]) -> list[Line]:
    """The rows of W&B's chart as TensorBoard's scalars; empty for other tables.

    Such a chart has a column for each run and metric, such as "width=64 - loss", beside its least
    and most.
    """
    axis, *names = table[0]
    scalars = list[Line]()
    for name in names:
        if f"{name}__MIN" not in names:
            continue
        run, _, tag = name.rpartition(" - ")
        for line in table:
            if str(line[name]).strip() not in _NONE:
                scalars.append({"run": run, "tag": tag, "step": line[axis], "value": line[name]})
    return scalars


def _pivoted(table: Sequence[Line]) -> list[Line]:
    """TensorBoard's scalars as a row for each run: the last value of every tag.

    Settings are as in ``width=64,lr=0.01``.
    """
    runs = dict[str, Line]()
    last_steps = dict[tuple[str, str], float]()
    for number, line in enumerate(table, 1):
        cells = {name.lower(): value for name, value in line.items()}
        run, tag, step, value = (cells[name] for name in _SCALARS)
        row = runs.setdefault(str(run), {"run": run} | dict(_SETTING.findall(str(run))))
        place = (str(run), str(tag))
        at = number_of(step, "step", number, whole=True)
        if at >= last_steps.get(place, -math.inf):
            last_steps[place] = at
            row[str(tag)] = value
    return list(runs.values())
