"""What a network costs at a size: parameters, operations and memory.

``nfd.ResNet`` with m matrices per block: ``d n + C n + m L n^2`` parameters. A training step multiplies every matrix
forward, for its gradient and, but for the first, for the gradient of its input, 2 flops per multiply-add. The costs
of the user's networks are counted at several sizes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np

from nfd.core.errors import InputError, check_choice, check_real
from nfd.core.machine import bytes_of
from nfd.scaling.laws import law_of

Resource = Literal["parameters", "flops", "memory"]

RESOURCES: tuple[Resource, ...] = get_args(Resource)
_FLOAT = 4
_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15, "E": 18, "Z": 21}
_UNITS = {"parameters": r"(?:PARAM(?:ETER)?S?)?", "flops": r"(?:FLOPS?)?"}
_EXAMPLES = {"parameters": "'2M' or 2_000_000", "flops": "'3 TFLOP' or 3e12"}


@dataclass(frozen=True)
class Cost:
    """``constant + per_width n + per_square n^2 + (per_block + per_layer n + per_matrix n^2) L``, whole numbers, of one
    resource."""

    constant: int
    per_width: int
    per_layer: int
    per_matrix: int
    per_square: int = 0
    per_block: int = 0

    def at(self, width: int, depth: int) -> int:
        """The cost of a size."""
        n, L = width, depth
        of_block = self.per_block + self.per_layer * n + self.per_matrix * n * n
        return self.constant + self.per_width * n + self.per_square * n * n + of_block * L

    def by(self, multiple: int) -> Cost:
        """The same cost of widths counted in multiples."""
        k = multiple
        return Cost(
            self.constant, k * self.per_width, k * self.per_layer, k * k * self.per_matrix, k * k * self.per_square,
            self.per_block,
        )  # fmt: skip

    def widest(self, depth: int, budget: int) -> int:
        """The largest width within the budget, exactly; 0 if there is none."""
        A, B = self.per_square + self.per_matrix * depth, self.per_width + self.per_layer * depth
        room = budget - self.constant - self.per_block * depth
        if room <= 0 or not A:
            return max(0, room // B) if B else 0
        return (math.isqrt(B * B + 4 * A * room) - B) // (2 * A)

    def deepest(self, width: int, budget: int) -> int:
        """The largest depth within the budget, exactly; 0 if there is none."""
        return max(0, (budget - self.at(width, 0)) // (self.at(width, 1) - self.at(width, 0)))


def counted(counts: Mapping[tuple[int, int], int]) -> Cost | None:
    """The cost that has these values at these sizes (width, depth), exactly; None where no such cost has them, and
    where there are too few sizes to know."""
    n0, L0 = min(n for n, _ in counts), min(L for _, L in counts)
    units = [1, n0, n0 * L0, n0 * n0 * L0, n0 * n0, L0]
    rows = [[1, n, n * L, n * n * L, n * n, L] for n, L in counts]
    scaled = np.array(rows, dtype=float) / units
    if np.linalg.matrix_rank(scaled) < len(units):
        return None
    values = np.linalg.lstsq(scaled, np.array([*counts.values()], dtype=float), rcond=None)[0] / units
    cost = Cost(*(round(value) for value in values.tolist()))
    return cost if all(cost.at(*size) == count for size, count in counts.items()) else None


@dataclass(frozen=True)
class Costs:
    """What networks of any size cost, by resource; their widths are multiples of ``multiple``."""

    by_resource: Mapping[Resource, Cost]
    multiple: int = 1

    def cost(self, resource: Resource) -> Cost:
        """The cost in one resource at every size; ValueError where it is not known."""
        if check_choice("resource", resource, RESOURCES) not in self.by_resource:
            known = f"only {' and '.join(self.by_resource)} are" if self.by_resource else "nothing is"
            raise InputError(f"what these networks cost in {resource} is not known: {known}.")
        return self.by_resource[resource]


def residual_costs(
    in_features: int,
    out_features: int,
    layers_per_block: int = 1,
    *,
    samples: int = 1,
    batch: int = 1,
    optimizer: str = "sgd",
    momentum: float = 0.0,
) -> Costs:
    """What ``nfd.ResNet`` costs at every size, and its training in float32.

    Memory holds parameters, gradients, what the optimizer keeps, and of a batch the stream and the input of each
    matrix: an estimate of the peak, for ReLU to about a fifth. The rest is exact.

    Args:
        in_features, out_features, layers_per_block: d, C and m.
        samples: seen in training, every epoch counted. batch: of one step.
        optimizer, momentum: that train, for what they keep per parameter.
    """
    d, C, m = in_features, out_features, layers_per_block
    copies, row = _FLOAT * (2 + law_of(optimizer).states_with(momentum)), _FLOAT * batch
    return Costs(
        {
            "parameters": Cost(0, d + C, 0, m),
            "flops": Cost(0, samples * (4 * d + 6 * C), 0, samples * 6 * m),
            "memory": Cost(row * (d + C), copies * (d + C) + row, row * (m + 1), copies * m),
        }
    )


def check_resource(name: str) -> Resource:
    """The resource of this name; ValueError where there is none."""
    return cast("Resource", check_choice("resource", name, RESOURCES))


def amount(resource: Resource, budget: str | float) -> int:
    """A budget as a whole number: ``"2M"`` parameters, ``"3 TFLOP"``, ``"1 GiB"`` or a number."""
    if check_choice("resource", resource, RESOURCES) == "memory":
        return bytes_of(budget)
    if not isinstance(budget, str):
        return int(check_real("budget", budget, least=1.0))
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:E[+-]?\d+)?)\s*([KMGBTPEZ]?)\s*" + _UNITS[resource] + r"\s*", budget.upper())
    value = float(match[1]) * 10.0 ** _PREFIXES[match[2]] if match else 0.0
    if not 1 <= value < math.inf:
        raise InputError(f"budget in {resource} must be like {_EXAMPLES[resource]}, at least 1; got {budget!r}.")
    return round(value)
