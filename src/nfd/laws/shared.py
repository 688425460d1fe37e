"""What runs that miss a law share and other runs do not: a value in a column of their table.

Conditions such as "depth 3" or "batch 512 or more" part the runs in two. The one counts whose runs
lie furthest from the others, for their number, unless chance parts runs as well: misses that are
shuffled among the runs do so for some condition in a share of cases, which is the p-value. So many
columns find no more by chance than few do.

Source: Westfall & Young 1993, "Resampling-based multiple testing".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nfd.core.words import in_letters, number
from nfd.laws.ladder_outlook import FEWEST_RUNS
from nfd.laws.run_table import Size

Array = NDArray[np.float64]
# Misses are shuffled so often, and chance may part as well in this share.
_SHUFFLES = 2000
_BY_CHANCE = 0.01
# One run shares nothing.
_FEWEST = 2


@dataclass(frozen=True)
class Shared:
    """What some runs share, and no other run does.

    Attributes:
        what: in words, such as ``depth 3``.
        misses: by which share each of these sizes lies above the law, the largest miss first.
    """

    what: str
    misses: Mapping[Size, float]


def shared(
    misses: Mapping[Size, float],
    variables: Sequence[str],
    columns: Mapping[str, Mapping[Size, float | str]],
    least: float,
) -> Shared | None:
    """Find what the sizes that miss a law share; None for nothing that chance does not do as well.

    Args:
        misses: by which share each size lies above the law.
        variables: of the law, which sizes begin with.
        columns: what the table says of the sizes.
        least: how far the medians of these sizes and of the others are apart, at least.
    """
    sizes = [*misses]
    conditions = dict[bytes, tuple[str, NDArray[np.bool_]]]()
    for what, is_in in _conditions(sizes, variables, columns):
        is_small = _FEWEST <= is_in.sum() <= len(sizes) // 2
        if is_small and (~is_in).sum() >= FEWEST_RUNS:
            # Of columns that part alike the first one counts.
            conditions.setdefault(is_in.tobytes(), (what, is_in))
    if not conditions:
        return None
    off = np.log1p([misses[size] for size in sizes])
    members = np.array([is_in for _, is_in in conditions.values()], dtype=float)
    apart = _apart(members, off[:, None])[:, 0]
    furthest = int(apart.argmax())
    stream = np.random.default_rng(0)
    shuffled = stream.permuted(np.tile(off, (_SHUFFLES, 1)), axis=1).T
    by_chance = _apart(members, shuffled).max(0)
    if (1 + (by_chance >= apart[furthest]).sum()) / (1 + _SHUFFLES) > _BY_CHANCE:
        return None
    what, is_in = [*conditions.values()][furthest]
    if abs(np.median(off[is_in]) - np.median(off[~is_in])) < least:
        return None
    of_group = {size: misses[size] for size, is_one in zip(sizes, is_in, strict=True) if is_one}
    return Shared(what, dict(sorted(of_group.items(), key=lambda item: -abs(item[1]))))


def _apart(members: Array, off: Array) -> Array:
    """How far runs of each condition ``[C, K]`` lie from all, for their number: ``[C, B]``.

    Args:
        members: 1 for a run that meets a condition, else 0.
        off: what is compared, ``[K, B]``.
    """
    count = members.sum(1, keepdims=True)
    # The deviation of a sum of so many, drawn from all without replacement, in units of one.
    deviation = np.sqrt(count * (1 - count / members.shape[1]))
    return np.asarray(np.abs(members @ (off - off.mean(0))) / deviation)


def _conditions(
    sizes: Sequence[Size],
    variables: Sequence[str],
    columns: Mapping[str, Mapping[Size, float | str]],
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """All conditions in words, and which of the sizes meet each ``[K]``."""
    for name, by_size in columns.items():
        values = [by_size.get(size) for size in sizes]
        for value in sorted({*values} - {None}, key=str):
            yield f"{name} {_text(value)}", np.array([one == value for one in values])
        numbers = [value for value in values if isinstance(value, float)]
        if len(numbers) == len(sizes):
            yield from _ends(np.array(numbers), f"{name} {{}}", _text)
    axes = np.array(sizes)[:, : len(variables)]
    for k, name in enumerate(variables):
        yield from _ends(axes[:, k], f"{{}} {name}", in_letters, "fewer")
    if len(variables) == 2:
        ratios = axes[:, 1] / axes[:, 0]
        yield from _ends(ratios, "{} tokens per parameter", number, "fewer")


def _ends(
    values: Array, form: str, write: Callable[[float], str], less: str = "less"
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """The conditions that a number is at most, or at least, one of the values."""
    for value in np.unique(values).tolist():
        yield f"{form.format(write(value))} or {less}", values <= value
        yield f"{form.format(write(value))} or more", values >= value


def _text(value: float | str | None) -> str:
    """Write a cell: ``3``, ``0.1`` or ``adamw``."""
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
