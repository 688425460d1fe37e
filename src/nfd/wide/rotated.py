"""A structured random matrix with the wide limits of a Gaussian one, at O(n log n) a product.

    W_0 = sqrt(N) S_out D_1 H D_2 diag(sigma) Pi H D_3 S_in'          [n_out, n_in]

with H the orthonormal Hadamard transform of size N, a power of two that is at least n_in and n_out;
D_1, D_2, D_3 random signs; Pi a random permutation; sigma, in random order, N quantiles of the
limiting singular values of a Gaussian matrix of this size, the quarter circle law ``sqrt(4 - s^2) /
pi`` on [0, 2]; and S_in, S_out choices of n_in and n_out coordinates, drawn at random where they
are not all. Its entries have mean 0 and variance 1. The singular values of a rectangular W_0 follow
the Marchenko-Pastur law, as for a Gaussian matrix: rows and columns chosen at random are a "free
compression" of the square matrix. (Choosing the first coordinates would not do: the first N/4
columns of H, for example, repeat themselves four times.)

By universality of first-order methods any fixed number of products, transposed products and
entrywise functions has the limit that it has for Gaussian matrices. At finite width W_0 does not
have the law of a Gaussian matrix; deferred layers do. A product multiplies its vector by the signs
D_3 before it applies H, and a transposed product by D_1, so that vectors that H maps to special
ones (constant vectors, unit vectors) do not stand out.

Source: Dudeja, Lu and Sen 2022; Wang, Zhong and Fan 2022; docs/mathematics/structured.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nfd.core.random import Increment, derive, generator

# Numbers that pass through a product at a time on a CPU, so that they stay in its cache.
_BLOCK = 1 << 18


@dataclass(frozen=True)
class _Choice:
    """The n coordinates of one side (input or output) among N, in each of T terms.

    Attributes:
        signs: the random signs of the coordinates, [T, 1, n].
        places: their indices among N, [T, n]; None where n is N, and each stands at its own place.
    """

    signs: Tensor
    places: Tensor | None


class RotatedMatrix:
    """W_0 ``[n_out, n_in]``, drawn as one increment of a Brownian path, in O(T n) memory.

    Networks of several depths may share such a path (``nfd.core.random.Increment``). An increment
    is ``sum_j w_j R_j`` of T independent matrices R_j as above, with squares of w that add up to 1.
    Other increments of the path are other such sums, with weights orthogonal to w. Sums of
    independent Gaussian matrices with orthogonal weights are again independent Gaussian matrices.
    In the limit of large width the same holds for the R_j, in the sense of free probability
    (docs/mathematics/structured.md). So every increment has the limit of one Gaussian matrix. The
    halves of an increment add up to it exactly.
    """

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        source: Increment,
        name: str,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        N = padded_size(max(n_in, n_out))
        weights, seeds = zip(*source.terms, strict=True)
        streams = [generator(derive(seed, "structured"), name) for seed in seeds]

        def signs(count: int) -> Tensor:
            bits = [
                torch.randint(0, 2, (1, count), generator=stream, device="cpu")
                for stream in streams
            ]
            return torch.stack(bits).to(device, dtype).mul_(2).sub_(1)

        def places(count: int) -> Tensor:
            """Draw ``count`` different indices below N, in random order, for every term."""
            orders = [torch.randperm(N, generator=stream, device="cpu") for stream in streams]
            return torch.stack([order[:count] for order in orders])

        self.size = N
        self.weights = torch.tensor(weights).to(device, dtype).view(-1, 1, 1)
        self.entry = signs(n_in)
        self.exit = signs(n_out)
        self.entry_at = None if n_in == N else places(n_in).to(device)
        self.exit_at = None if n_out == N else places(n_out).to(device)
        self.order = places(N).to(device).int()
        self.inverse = self.order.argsort().int()
        sigma = torch.from_numpy(_quarter_circle(N)).to(device, dtype)
        # D_2 diag(sigma). Quantiles come sorted, and next to H a regular order would show in the
        # limit: they are put in random order.
        self.spectrum = sigma[places(N).unsqueeze(1)] * signs(N)
        # The transpose multiplies by the spectrum, then permutes. To share ``_product`` it permutes
        # first, and multiplies by the permuted spectrum.
        self.inverse_spectrum = self.spectrum.gather(2, self.inverse.long().unsqueeze(1))

    def product(self, x: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """``scale x W_0'`` of rows ``[b, n_in]``."""
        into = _Choice(self.entry, self.entry_at)
        out = _Choice(self.exit, self.exit_at)
        return self._product(x, into, self.order, self.spectrum, out, scale)

    def transposed_product(self, g: Tensor, scale: Tensor | float = 1.0) -> Tensor:
        """``scale g W_0`` of rows ``[b, n_out]``."""
        into = _Choice(self.exit, self.exit_at)
        out = _Choice(self.entry, self.entry_at)
        return self._product(g, into, self.inverse, self.inverse_spectrum, out, scale)

    def _product(
        self,
        x: Tensor,
        into: _Choice,
        order: Tensor,
        spectrum: Tensor,
        out: _Choice,
        scale: Tensor | float,
    ) -> Tensor:
        """``sum_j w_j scale S D H diag(spectrum) Pi H D' S' x`` of every row x.

        ``into`` has D' and S', ``out`` has D and S. Rows are taken a block at a time, all terms at
        once, and all blocks use the same memory.
        """
        terms = len(order)
        b = x.shape[0]
        weighted = _Choice(out.signs * (self.weights * scale), out.places)
        has_all = into.places is None and out.places is None
        if terms == 1 and b * self.size <= _BLOCK and has_all:
            # For a small product the calls of the general way take longer than its arithmetic.
            inside, spare = hadamard(x * into.signs[0], torch.empty_like(x))
            torch.index_select(inside, 1, order[0], out=spare).mul_(spectrum[0])
            return hadamard(spare, inside)[0].mul_(weighted.signs[0])
        y = x.new_empty(b, out.signs.shape[-1])
        count = max(1, _BLOCK // (terms * self.size) if x.device.type == "cpu" else b)
        memory = x.new_empty(2, terms * min(count, b), self.size)
        for rows, answer in zip(torch.split(x, count), torch.split(y, count), strict=True):
            shape = terms, len(rows), self.size
            # ``inside`` has the numbers, ``spare`` is free; every transform may swap the two.
            inside, spare = memory[:, : terms * len(rows)]
            _enter(rows, into, inside.view(shape))
            inside, spare = hadamard(inside, spare)
            for j in range(terms):
                torch.index_select(inside.view(shape)[j], 1, order[j], out=spare.view(shape)[j])
            spare.view(shape).mul_(spectrum)
            inside, spare = hadamard(spare, inside)
            _leave(inside.view(shape), weighted, answer)
        return y

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, fn(value))


def _enter(rows: Tensor, into: _Choice, terms: Tensor) -> None:
    """Write rows [b, n], times their signs, to their places in every term [T, b, N]."""
    if into.places is None:
        torch.mul(rows, into.signs, out=terms)
        return
    terms.zero_()
    for j, term in enumerate(terms):
        term.index_copy_(1, into.places[j], rows * into.signs[j])


def _leave(terms: Tensor, out: _Choice, answer: Tensor) -> None:
    """Add up the chosen coordinates of all terms [T, b, N], with their signs, in ``answer``."""
    for j, term in enumerate(terms):
        part = term if out.places is None else term.index_select(1, out.places[j])
        if j == 0:
            torch.mul(part, out.signs[j], out=answer)
        else:
            answer += part * out.signs[j]


@lru_cache(maxsize=4)
def _quarter_circle(N: int) -> NDArray[np.float64]:
    """``sqrt(N)`` times N quantiles of the quarter circle law, whose mean square is 1."""
    # s = 2 sin(angle) has the distribution (2 angle + sin(2 angle)) / pi.
    angle = np.linspace(0, np.pi / 2, 20001)
    distribution = (2 * angle + np.sin(2 * angle)) / np.pi
    quantiles = (np.arange(N) + 0.5) / N
    s = 2 * np.sin(np.interp(quantiles, distribution, angle))
    return np.asarray(s * np.sqrt(N / np.mean(s**2)))


# ---- the Walsh-Hadamard transform, orthonormal


# H of size 2^m is a Kronecker product of factors of at most this many bits each (2^4 = 16 rows):
# products with 16 x 16 matrices are large enough for a BLAS, and the cheapest.
_MOST_BITS = 4


def padded_size(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def hadamard(x: Tensor, spare: Tensor) -> tuple[Tensor, Tensor]:
    """Transform rows x ``[b, 2^m]``: return ``x H`` and a tensor whose memory is free.

    The two are x and ``spare`` in one order or the other. Both are contiguous, and both are
    overwritten: fresh memory for every factor would take longer than the arithmetic where rows are
    long.

    H is a Kronecker product ``H_p (x) H_q (x) ...``. So with rows in the shape ``[p, q, ...]``,
    every axis is to be multiplied by its small matrix. One step multiplies the last axis, and
    writes it as the first. After as many steps as there are axes, each was last once, and all are
    in their old order.

    Source: Fino and Algazi 1976, Unified matrix treatment of the fast Walsh-Hadamard transform.
    """
    b, n = x.shape
    for bits, times in _factors(n.bit_length() - 1):
        size = 1 << bits
        H = _factor(bits, b, x.dtype, x.device)
        last_axis_first = [y.view(b, n // size, size).mT for y in (x, spare)]
        targets = [y.view(b, size, n // size) for y in (x, spare)]
        # From x to spare, from spare to x, and so on.
        for k in range(times):
            torch.bmm(H, last_axis_first[k % 2], out=targets[1 - k % 2])
        if times % 2:
            x, spare = spare, x
    return x, spare


@lru_cache(maxsize=64)
def _factors(bits: int) -> list[tuple[int, int]]:
    """Split bits into factors of nearly equal size: pairs of a size in bits and its number."""
    count = max(1, math.ceil(bits / _MOST_BITS))
    split = [(bits + k) // count for k in range(count)]
    return [(size, split.count(size)) for size in dict.fromkeys(split)]


@lru_cache(maxsize=64)
def _factor(bits: int, b: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The orthonormal Hadamard matrix of size ``2^bits``, expanded to a batch of b."""
    H = torch.ones(1, 1, dtype=torch.float64, device="cpu")
    for _ in range(bits):
        H = torch.cat([torch.cat([H, H], 1), torch.cat([H, -H], 1)])
    return (H * 2 ** (-bits / 2)).to(device, dtype).expand(b, -1, -1)
