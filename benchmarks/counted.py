"""Operations and bytes of a query of a deferred matrix, counted from its sizes.

They bound its time on any machine.
"""

from __future__ import annotations

from typing import NamedTuple

_FLOAT = 4
# Passes over the factors, and products with them, the first with twice the rows.
_PASSES = 6
_PRODUCTS = 7


class Work(NamedTuple):
    """Bytes that pass through memory, and operations of matrix products."""

    traffic: float
    operations: float


def query_work(width: int, rank: float, batch: int) -> Work:
    """One query of so many rows, of a float32 matrix of which so many directions are known."""
    numbers = width * rank
    return Work(_PASSES * _FLOAT * numbers, _PRODUCTS * 2 * numbers * batch)
