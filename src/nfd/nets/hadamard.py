"""The Walsh-Hadamard transform, orthonormal: ``H x`` of vectors of 2^m entries in O(n log n).

The Hadamard matrix of 2^m is a Kronecker product of smaller ones, ``H = H_a (x) H_b (x) ...``, so a transform is a
product of small matrices with every axis of ``x`` in the shape ``[a, b, ...]``: with the last axis, which then becomes
the first, until all have been the last. H is symmetric and its own inverse.

Source: Fino and Algazi 1976, Unified matrix treatment of the fast Walsh-Hadamard transform.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_MOST_BITS = 4  # of a factor: products with 16 x 16 are large enough for a BLAS, and the cheapest


def padded_size(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def hadamard(x: Tensor, spare: Tensor) -> tuple[Tensor, Tensor]:
    """``x H`` of rows ``[b, 2^m]`` in the memory of one of the two, both contiguous, and what is spare then.

    Fresh memory for every factor would take longer than the arithmetic where rows are long.
    """
    b, n = x.shape
    for bits in _split(n.bit_length() - 1):
        size = 1 << bits
        H = _factor(bits, x.dtype, x.device).expand(b, -1, -1)
        torch.bmm(H, x.view(b, n // size, size).mT, out=spare.view(b, size, n // size))
        x, spare = spare, x
    return x, spare


def _split(bits: int) -> list[int]:
    """Bits of the factors, as equal as they can be."""
    count = max(1, math.ceil(bits / _MOST_BITS))
    return [(bits + k) // count for k in range(count)]


@lru_cache(maxsize=64)
def _factor(bits: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal Hadamard matrix of ``2^bits``."""
    H = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    for _ in range(bits):
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return (H * 2 ** (-bits / 2)).to(device, dtype)
