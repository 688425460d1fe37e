"""What shows that a small matrix was changed by others: its products with two fixed random vectors.

``D``, the update of a deferred layer, and its gradient ``G`` stand for matrices ``P D Q'`` and ``P G Q'`` that nobody
stores. A layer notes ``D v`` whenever D changes by an allowed rule, and ``G v`` while it adds up G. PyTorch's counter of
versions does not move on a write through ``.data``; these products do. They cost one pass over a matrix that is small
beside the factors, and a vector of memory.

``G`` may be scaled by one number, which is exact for the dense matrix too. So its note is taken with two vectors, and
compared up to a factor: a matrix of a single row gives two numbers, and one of them is left to tell.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from nfd.core.random import generator

_BLOCK = 512  # entries of the fixed vectors that are drawn at a time
_SLACK = 16.0  # roundings of a sum of few terms; its root more for many
_LEAST = {torch.float32: 1e-36, torch.float64: 1e-150}  # below this, squares and ratios are no numbers


def probes(count: int, like: Tensor) -> Tensor:
    """Two fixed random vectors, ``[2, count]``; longer ones begin with the shorter ones."""
    blocks = max(1, math.ceil(count / _BLOCK))
    return _drawn(1 << (blocks - 1).bit_length(), like.dtype, like.device)[:, :count]


@lru_cache(maxsize=8)
def _drawn(blocks: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        drawn = [
            torch.randn(2, _BLOCK, generator=generator(0, "fingerprint", k), dtype=torch.float64, device="cpu")
            for k in range(blocks)
        ]
        return torch.cat(drawn, 1).to(device, dtype)


def _rounding(terms: int, dtype: torch.dtype) -> float:
    """What a sum of this many terms may be off by, over the root of the sum of their squares."""
    return (_SLACK + math.sqrt(terms)) * torch.finfo(dtype).eps


@dataclass(frozen=True)
class Note:
    """``D v`` and ``|D|`` of a matrix at the time of the note."""

    product: Tensor
    size: float

    @classmethod
    def of(cls, D: Tensor) -> Note:
        """The note of a matrix as it is."""
        return cls(D @ probes(D.shape[1], D)[0], float(torch.linalg.vector_norm(D)))

    def fits(self, D: Tensor) -> bool:
        """Whether D is still that matrix, padded by zeros or not, as far as rounding lets one tell."""
        off = D @ probes(D.shape[1], D)[0]
        off[: len(self.product)] -= self.product
        apart = float(torch.linalg.vector_norm(off))
        if math.isfinite(self.size):
            return apart <= _rounding(D.shape[1], D.dtype) * self.size + _LEAST[D.dtype]
        return not math.isfinite(apart) and not bool(D.isfinite().all())  # it diverged, and still has


class Ledger:
    """What a layer has added to the gradient of D since it was last empty: ``G v`` for two vectors, and a size."""

    def __init__(self, like: Tensor) -> None:
        self.product = torch.zeros(2, 0, dtype=like.dtype, device=like.device)
        self.size = 0.0
        self._moment: tuple[int, int] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the products."""
        return self.product.nbytes

    def add(self, left: Tensor, right: Tensor, G: Tensor) -> None:
        """Note that ``left' right``, of factors ``[b, s]`` and ``[b, r]``, was just added to G."""
        s = left.shape[1]
        if s > self.product.shape[1]:
            self.product = pad(self.product, (0, s - self.product.shape[1]))
        self.product[:, :s].addmm_(probes(right.shape[1], right) @ right.T, left)
        self.size += math.prod(float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in (left, right))
        self._moment = _moment(G)

    def is_current(self, G: Tensor) -> bool:
        """Whether G was last written here, in the backward pass that is running."""
        return self._moment == _moment(G)

    def scale(self, factor: float) -> None:
        """Note that everything so far was multiplied by a number."""
        if factor != 1.0:
            self.product = self.product * factor if factor else torch.zeros_like(self.product)
            self.size = self.size * abs(factor) if factor else 0.0

    def factor(self, G: Tensor) -> float | None:
        """The number c with ``G = c`` times what was added; None where there is none, beyond rounding."""
        rows, terms = G.shape
        seen = probes(terms, G) @ G.T
        noted = self.product if self.product.shape[1] == rows else pad(self.product, (0, rows - self.product.shape[1]))
        now, then = torch.cat([seen, noted]).double().cpu().numpy().reshape(2, -1)
        if not np.isfinite(then).all():  # training diverged; its gradient may be dropped, but not mended
            return math.nan if not np.isfinite(now).all() else 0.0 if not bool(G.any()) else None
        if not np.isfinite(now).all():
            return math.nan
        peak = float(max(np.abs(now).max(initial=0.0), np.abs(then).max(initial=0.0))) or 1.0
        now, then, least = now / peak, then / peak, _LEAST[G.dtype] / peak
        allowed = _rounding(terms, G.dtype) * self.size / peak
        if float(np.linalg.norm(now - then)) <= allowed + least:
            return 1.0
        factor = float(now @ then / (then @ then)) if then.any() else 0.0
        return factor if float(np.linalg.norm(now - factor * then)) <= allowed * abs(factor) + least else None


def _moment(G: Tensor) -> tuple[int, int]:
    """The version of G and the backward pass that is running."""
    return G._version, torch._C._current_graph_task_id()
