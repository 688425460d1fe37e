"""The numbers that a plan has of one tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nfd.scaling.model import TensorInfo
from nfd.scaling.rules import Power, Role

Layout = Literal["out-in", "in-out"]


@dataclass(frozen=True)
class Start:
    """The initial weights of a tensor in the base model.

    Attributes:
        std: their RMS; 0 of what is never scaled.
        constant: the value of every entry; None of entries that are drawn at random.
        kept: whether they stay as the constructor makes them, but for a factor.
    """

    std: float
    constant: float | None
    kept: bool = False


@dataclass(frozen=True)
class Ratios:
    """How much larger a tensor is than in the base.

    Attributes:
        fan_in, fan_out: its fans over those in the base.
        depth: of its stack over that in the base; outside of blocks, of all stacks.
    """

    fan_in: float
    fan_out: float
    depth: float


@dataclass(frozen=True)
class Entry:
    """The part of a plan that describes one tensor.

    Attributes:
        shape, role, why: its shape, its role, and the reason for this role.
        fan_in: number of inputs that one of its outputs sums; None if its module does not say.
        ratios: its fan-in, fan-out and depth, as multiples of those in the base.
        start: initial weights of the same tensor in the base.
        multiplier: powers by which the model's own forward multiplier scales.
        matrix: memory layout of a matrix between two sizes that grow: ``"out-in"`` (as
            ``nn.Linear``) or ``"in-out"``; None for any other tensor.
        own_factor: the constant by which the forward pass of the user's model multiplies it, over
            that of the base.
        uses: how many times as often as in the base the forward pass applies it.
        is_adapter: whether it is the matrix A of an adapter ``B A`` beside a frozen matrix.
        is_frozen: whether it does not train, and so keeps the numbers that it has.
    """

    shape: tuple[int, ...]
    role: Role
    why: str
    fan_in: int | None
    ratios: Ratios
    start: Start
    multiplier: Power = field(default=Power())
    matrix: Layout | None = None
    own_factor: float = 1.0
    uses: float = 1.0
    is_adapter: bool = False
    is_frozen: bool = False

    @property
    def base_matrix(self) -> tuple[float, float]:
        """Rows and columns of the same matrix in the base."""
        rows, columns = self.shape
        if self.matrix == "out-in":
            return rows / self.ratios.fan_out, columns / self.ratios.fan_in
        return rows / self.ratios.fan_in, columns / self.ratios.fan_out

    @property
    def is_vector(self) -> bool:
        """Whether it is a bias, a gain, or the like; a vector of a sum ``h @ w`` is not."""
        return len(self.shape) < 2 and self.fan_in in (None, 1)


def layout_of(t: TensorInfo) -> Layout | None:
    """Say how the weight of a linear map lies in memory.

    None for every other tensor, also for a stack of matrices.
    """
    if len(t.shape) != 2 or not t.ins or not t.outs:
        return None
    return "out-in" if t.outs == (0,) else "in-out"
