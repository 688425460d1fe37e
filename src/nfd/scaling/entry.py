"""``Entry``: what a plan holds of one tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from nfd.scaling.rules import Power, Role
from nfd.scaling.sizes import Positive, Ratios, Start, Whole

Layout = Literal["out-in", "in-out"]


@dataclass(frozen=True)
class Entry:
    """The part of a plan that describes one tensor.

    Attributes:
        shape, role, why: its shape, its role, and the reason for this role.
        fan_in: number of inputs that one of its outputs sums; None if its module does not say.
        ratios: its fan-in and fan-out, as multiples of those in the base.
        start: initial weights of the same tensor in the base.
        multiplier: powers by which the model's own forward multiplier scales.
        matrix: memory layout of a matrix between two sizes that grow: ``"out-in"`` (as ``nn.Linear``) or ``"in-out"``;
            None for any other tensor.
        depth: blocks of its stack, as a multiple of those in the base, where stacks grow by different factors; None
            where the depth of the plan is its own.
        own_factor: the constant by which the forward pass of the user's model multiplies it, over that of the base.
    """

    shape: tuple[Whole, ...]
    role: Role
    why: str
    fan_in: Whole | None
    ratios: Ratios
    start: Start
    multiplier: Power = field(default=Power())
    matrix: Layout | None = None
    depth: Positive | None = None
    own_factor: Positive = 1.0

    @property
    def base_matrix(self) -> tuple[float, float]:
        """Rows and columns of the same matrix in the base."""
        rows, columns = self.shape
        grown = self.ratios.fan_out, self.ratios.fan_in
        grown = grown if self.matrix == "out-in" else grown[::-1]
        return rows / grown[0], columns / grown[1]

    @property
    def is_vector(self) -> bool:
        """Whether it has at most one dimension, as biases and gains."""
        return len(self.shape) < 2
