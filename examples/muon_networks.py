"""The networks of ``muon_limit.py``: residual blocks of two layers on digits, dense or with structured weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import nfd
from nfd.core.names import NetworkWeights

CLASSES = 10
ROLES = ("inner", "outer")


class Block(nn.Module):
    """``h + W_2 relu(W_1 h)``; a matrix that does not train gets no gradient.

    Args:
        width: of the stream. trains: which of ``"inner"``, W_1, and ``"outer"``, W_2, train.
    """

    def __init__(self, width: int, trains: Sequence[str]) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.trains = tuple(trains)

    def forward(self, h: Tensor) -> Tensor:
        """The stream with this block's branch added."""
        return h + self._product("outer", torch.relu(self._product("inner", h)))

    def _product(self, role: str, x: Tensor) -> Tensor:
        layer: nn.Linear = getattr(self, role)
        return layer(x) if role in self.trains else nn.functional.linear(x, layer.weight.detach())


@dataclass(frozen=True)
class MakeModel:
    """Digits to logits through residual blocks of two layers."""

    trains: tuple[str, ...] = ROLES

    def __call__(self, width: int, depth: int) -> nn.Module:
        """The network of a size."""
        blocks = nn.Sequential(*[Block(width, self.trains) for _ in range(depth)])
        return nn.Sequential(nn.Linear(64, width), blocks, nn.Linear(width, CLASSES))


@dataclass(frozen=True)
class Networks(nfd.ConstructedFamily):
    """Networks with structured weights from some width on, and dense ones below."""

    structured_from: int = 512

    @property
    def identity(self) -> Mapping[str, Any]:
        """What names them in a store."""
        return {**super().identity, "structured_from": self.structured_from}

    def build(
        self,
        width: int,
        depth: int,
        seed: int,
        weights: NetworkWeights = "dense",
        device: torch.device | str | None = None,
        resolution: float | None = None,
    ) -> nfd.Member:
        """As every family does; wide networks always have structured weights."""
        chosen = "structured" if width >= self.structured_from else weights
        return super().build(width, depth, seed, chosen, device, resolution)
