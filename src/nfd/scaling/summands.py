"""Sums that a forward pass adds up anew, read as the running sum that they are.

A residual stream may be kept as a list of what was added to it, ``attn(norm(sum(parts)))``, or as
the input and the sum of all branches, ``h + changes``. Each such sum is an earlier one and what was
computed since. It is rewritten as that, so that all of these are one stream, as where the stream
itself is kept.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from nfd.scaling.graph import Operation

# They pass on what they are given.
_COPIES = ("Clone", "Alias")
_BITS = 128


class _Summand(NamedTuple):
    """What is added to a sum.

    Attributes:
        operation: that computes it.
        number: that stands for it, negative where it is subtracted.
        scale: what the sum multiplies it by, but for the sign.
        time: when it was computed; of a parameter, when it was first added.
    """

    operation: Operation
    number: int
    scale: float
    time: int


class _Summands(NamedTuple):
    """The summands of a sum, the latest first.

    Attributes:
        latest: the latest.
        total: the sum of their numbers, which two sums share where their summands are the same.
        earlier: the others; None where there are none.
    """

    latest: _Summand
    total: int
    earlier: _Summands | None = None


class RunningSums:
    """The sums of one forward pass, to which its operations are added as they ran."""

    def __init__(self) -> None:
        self._summands: dict[Operation, _Summands] = {}
        # The first sum of the same summands.
        self._sums: dict[int, Operation] = {}
        self._numbers: dict[tuple[Operation, float], int] = {}
        self._random = random.Random(0)

    def rewritten(self, operation: Operation, order: int) -> list[Operation]:
        """Return what stands for an operation, the last of these for its result.

        Args:
            operation: one whose operands were added before.
            order: when the next operation runs.
        """
        data = operation.data
        if operation.name in _COPIES or (operation.name == "Add" and len(operation.operands) == 1):
            # What it adds, if anything, is a constant.
            if data and operation.scale(data[0]) == 1:
                self._summands[operation] = self._summands_of(data[0], 1.0, operation)
            return [operation]
        if not data or operation.name not in ("Add", "Sub") or len(operation.operands) != 2:
            return [operation]
        first_scale, scale = operation.scales
        # Autograd keeps the sign of alpha, and ``scales`` do not.
        if first_scale != 1 or scale is None or getattr(operation.node, "_saved_alpha", 1) < 0:
            return [operation]
        return self._with_earlier_sum(operation, scale, order)

    def _with_earlier_sum(self, operation: Operation, scale: float, order: int) -> list[Operation]:
        """Rewrite a sum of two as an earlier sum and what was computed since, where there is one.

        Left as it is where the earlier sum is one of the two.
        """
        first, second = operation.operands
        sign = -1 if operation.name == "Sub" else 1
        added_to = self._summands_of(first, 1.0, operation)
        added = self._summands_of(second, scale, operation)
        total = added_to.total + sign * added.total
        if total in self._sums:
            return [self._sums[total]]
        earlier_total = total
        new: list[_Summand] = []
        for summand in merge(
            _latest_first(added_to), _latest_first(added, sign), key=lambda s: -s.time
        ):
            new.append(summand)
            earlier_total -= summand.number
            if earlier_total in self._sums:
                break
        earlier = self._sums.get(earlier_total)
        if earlier is not None and any(_passes_on(s.operation, earlier) for s in new):
            earlier = None
        if earlier is None or earlier in (first, second):
            start = None if earlier is None else self._summands[earlier]
            self._note(operation, start, new[::-1])
            return [operation]
        sums: list[Operation] = []
        before = earlier
        for summand in reversed(new):
            current = replace(
                operation,
                name="Add" if summand.number > 0 else "Sub",
                inputs=(before, summand.operation),
                scales=(1.0, summand.scale),
                order=order + len(sums),
            )
            self._note(current, self._summands[before], [summand])
            sums.append(current)
            before = current
        return sums

    def _summands_of(self, operand: Operation, scale: float, operation: Operation) -> _Summands:
        """List the summands of an operand of a sum."""
        if scale == 1 and operand in self._summands:
            return self._summands[operand]
        key = operand, scale
        number = self._numbers.setdefault(key, self._random.getrandbits(_BITS) + 1)
        time = operation.order if operand.of_parameters else operand.order
        return _Summands(_Summand(operand, number, scale, time), number)

    def _note(self, operation: Operation, start: _Summands | None, new: list[_Summand]) -> None:
        """Note the summands of a sum: those of an earlier one, and new ones, the earliest first."""
        summands = start
        for summand in new:
            total = summand.number + (0 if summands is None else summands.total)
            summands = _Summands(summand, total, summands)
        self._summands[operation] = cast(_Summands, summands)
        self._sums.setdefault(self._summands[operation].total, operation)


def _passes_on(operation: Operation, earlier: Operation) -> bool:
    """Whether an operation only multiplies an earlier one, or rearranges it."""
    while operation is not earlier:
        if len(operation.data) != 1 or operation.scale(operation.data[0]) is None:
            return False
        (operation,) = operation.data
    return True


def _latest_first(summands: _Summands | None, sign: int = 1) -> Iterator[_Summand]:
    """Yield summands, the latest first; with ``sign`` -1, as they are subtracted."""
    while summands is not None:
        summand = summands.latest
        yield summand if sign == 1 else summand._replace(number=-summand.number)
        summands = summands.earlier
