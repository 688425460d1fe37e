"""``Entry``: what a plan holds of one tensor."""

from __future__ import annotations

from dataclasses import dataclass, field

from nfd.scaling.matrices import Layout
from nfd.scaling.rules import Power, Role
from nfd.scaling.sizes import Ratios, Start, Whole


@dataclass(frozen=True)
class Entry:
    """What the plan holds of one tensor.

    Attributes:
        shape, role, why: its sizes, its role, and what decided it.
        fan_in: how many inputs an output of it adds up; None where its module does not tell.
        ratios: of fan-in and fan-out to the base.
        start: how its counterpart in the base begins.
        multiplier: how a forward multiplier that the model has already scales.
        matrix: how the weight of a linear map between sizes that grow lies in memory, ``"out-in"`` or ``"in-out"``;
            None for every other tensor.
    """

    shape: tuple[Whole, ...]
    role: Role
    why: str
    fan_in: Whole | None
    ratios: Ratios
    start: Start
    multiplier: Power = field(default=Power())
    matrix: Layout | None = None

    @property
    def base_matrix(self) -> tuple[float, float]:
        """Rows and columns of its counterpart in the base, of a matrix."""
        rows, columns = self.shape
        grown = self.ratios.fan_out, self.ratios.fan_in
        grown = grown if self.matrix == "out-in" else grown[::-1]
        return rows / grown[0], columns / grown[1]

    @property
    def is_vector(self) -> bool:
        """Whether it has one dimension or none."""
        return len(self.shape) < 2
