"""A ladder: small networks of several sizes that were looked at after the same steps, as curves along their blocks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nfd.core.errors import InputError
from nfd.scaling.laws import WHOLE_MATRIX, law_of
from nfd.scaling.model import numberless
from nfd.watch.rows import WatchRow

CHANGE = "change"  # of a matrix, by all of its entries

Array = NDArray[np.float64]


class Series(NamedTuple):
    """A meter of layers of one kind.

    Attributes:
        meter: its name.
        kind: the name of the layer, for one in a block the part behind the block's name, or where there are several
            stacks of blocks its name with ``*`` for the block's number; None for the whole network.
        stack: the stack of blocks of which every one has such a layer, counted from 0; None outside of blocks.
    """

    meter: str
    kind: str | None
    stack: int | None

    @property
    def along(self) -> bool:
        """Whether it runs along the blocks of a stack."""
        return self.stack is not None


@dataclass(frozen=True)
class LadderRun:
    """One network of a ladder: its size, and what was read of it."""

    width: float
    depth: float
    rows: Sequence[WatchRow]

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps after which it was looked at."""
        return tuple(sorted({row.step for row in self.rows}))

    @property
    def layers(self) -> set[str]:
        """The layers that have matrices, with ``*`` for numbers."""
        return {numberless(row.layer) for row in self.rows if row.layer is not None and row.meter == CHANGE}

    @cached_property
    def curves(self) -> dict[Series, Array]:
        """Every series as ``[looks, layers along the blocks]``; not-a-number where nothing was read."""
        kinds = kinds_of(self.rows)
        places: dict[int | None, list[float | None]] = defaultdict(list)  # of every stack, along it
        for depth in sorted({row.depth for row in self.rows if row.depth is not None}):
            places[stack_at(depth)].append(depth)
        places[None] = [None]
        look = {step: k for k, step in enumerate(self.steps)}
        curves: dict[Series, Array] = {}
        for row in self.rows:
            series = series_of(row, kinds)
            own = places[series.stack]
            curve = curves.setdefault(series, np.full((len(look), len(own)), np.nan))
            curve[look[row.step], own.index(row.depth)] = row.value
        return curves


@dataclass(frozen=True)
class Ladder:
    """Networks that were looked at after the same steps.

    Args:
        networks: of several sizes; those that broke off are left out.
        base: the width and depth by which plans of this ladder count.
        rule, optimizer: their names.
        ok: whether the check found no fault in them.
    """

    networks: Sequence[LadderRun]
    base: tuple[float, float]
    rule: str = ""
    optimizer: str = ""
    ok: bool = True

    @classmethod
    def of(cls, stored: Any) -> Self:
        """The ladder of ``Check.ladder``, of a check or from a file.

        Raises:
            ValueError: for what is none.
        """
        try:
            networks = [_run(network) for network in stored["networks"]]
            width, depth = (float(size) for size in stored["base"])
            ok = bool(stored.get("ok", True))  # a ladder of an earlier version does not say
            return cls(networks, (width, depth), str(stored["rule"]), str(stored["optimizer"]), ok)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"expected is not the ladder of a check ({type(error).__name__}: {error}). Check again, with at=(...)."
            ) from None

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps after which every network was looked at."""
        return max((run.steps for run in self.networks), key=len, default=())

    @cached_property
    def runs(self) -> list[LadderRun]:
        """The networks that trained to the end."""
        return [run for run in self.networks if run.steps == self.steps]

    @cached_property
    def curves(self) -> dict[Series, list[Array]]:
        """Every series that all runs have and that follows their size, one curve for each of them."""
        if not self.runs:
            return {}
        shared = set.intersection(*(set(run.curves) for run in self.runs))
        kept = [series for series in self.runs[0].curves if series in shared and not self._follows_rank(series)]
        return {series: [run.curves[series] for run in self.runs] for series in kept}

    def _follows_rank(self, series: Series) -> bool:
        """Whether a meter adds up all singular values where the optimizer fixes the largest alone: it then grows with
        the rank of the gradients, which follows no law of size."""
        if series.meter != CHANGE or not self.optimizer:
            return False
        law = law_of(self.optimizer)
        return law.unit == WHOLE_MATRIX and (series.along or law.rest is None)


def _run(network: Mapping[str, Any]) -> LadderRun:
    rows = [
        WatchRow(int(step), meter, layer, depth, math.nan if value is None else float(value))
        for step, meter, layer, depth, value in network["readings"]
    ]
    return LadderRun(float(network["width"]), float(network["depth"]), rows)


def stack_at(depth: float | None) -> int | None:
    """Which stack of blocks, from 0, a layer at this depth stands in."""
    return None if depth is None else math.ceil(depth) - 1


def series_of(row: WatchRow, kinds: Mapping[str, str]) -> Series:
    """The series of a row; of a layer whose kind is not known a series that no ladder has."""
    return Series(row.meter, None if row.layer is None else kinds.get(row.layer, row.layer), stack_at(row.depth))


def kinds_of(rows: Iterable[WatchRow]) -> Mapping[str, str]:
    """The kind of every layer: its name, for one in a block without the name of the block.

    A block's name is what the layers at its depth have in common; where that holds no number, as in ``inner.3`` and
    ``outer.3``, the numbers are left out instead. Of several stacks the kind keeps the name of the stack.
    """
    blocks: dict[float | None, set[str]] = defaultdict(set)
    for row in rows:
        if row.layer is not None:
            blocks[row.depth].add(row.layer)
    kinds = {layer: layer for layer in blocks.pop(None, set())}
    several = any(stack_at(depth) for depth in blocks)
    for layers in blocks.values():
        parts = {layer: layer.split(".") for layer in layers}
        shared = _shared(list(parts.values()))
        numbered = any(part.isdigit() for part in shared)
        for layer, names in parts.items():
            own = names[len(shared) :] if numbered else ["*" if name.isdigit() else name for name in names]
            own = [numberless(".".join(shared)), *own] if several and numbered else own
            kinds[layer] = ".".join(own)
    return kinds


def _shared(names: Sequence[Sequence[str]]) -> list[str]:
    """The parts that all names begin with."""
    shared = []
    for parts in zip(*names, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return shared
