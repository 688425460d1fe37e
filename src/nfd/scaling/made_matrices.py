"""Matrices that a forward pass makes of parameters, so that no factor of these scales them.

A parameter may be kept flat and viewed as a matrix, a layer may give the entries of a matrix, and a
matrix may be divided by the norms of its rows and multiplied by gains. What the rules say of the
matrix then holds for none of the parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, cast

from torch import Tensor

from nfd.scaling.graph import (
    ENTRYWISE,
    KEPT_FACTORS,
    Operation,
    parameters_of,
    saved_value,
    shape_of,
)

Making = Literal["flat", "generated", "gain"]

# Measures of the size of a row.
_SIZES = re.compile(r"(LinalgVector|Linalg)?Norm|Sqrt|Rsqrt")


class Made(NamedTuple):
    """How a matrix is made of a parameter.

    Attributes:
        how: viewed from a flat one, generated as the outputs of a layer or the row of a table, or
            multiplied by gains.
        sides: of the matrix.
        other: the parameter that gains multiply.
    """

    how: Making
    sides: tuple[int, int]
    other: str = ""


def made_matrices(ran: Sequence[Operation]) -> dict[str, Made]:
    """Find the parameters of which matrices are made that are applied to data."""
    made: dict[str, Made] = {}
    for operation in ran:
        for place, operand, sides in _factors(operation):
            if operand.of_parameters:
                made |= _made_of_parameters(operand, sides)
            elif place not in operation.acted_on:
                made |= _generated(operand, sides)
    return made


def _factors(operation: Operation) -> Iterator[tuple[int, Operation, tuple[int, int]]]:
    """Yield the factors of a product that have two sides: place, operation and sides."""
    if operation.of_parameters:
        return
    for place, kept in enumerate(KEPT_FACTORS.get(operation.name, ())):
        operand = operation.inputs[place] if place < len(operation.inputs) else None
        if kept is None or operand is None:
            continue
        name, summed, counted = kept
        values = saved_value(operation.node, name)
        if not isinstance(values, Tensor) or counted is None:
            continue
        sides = values.shape[summed], values.shape[counted]
        is_repeated = 0 in (values.stride(summed), values.stride(counted))
        if min(sides) > 1 and not is_repeated:
            yield place, operand, sides


def _made_of_parameters(operand: Operation, sides: tuple[int, int]) -> dict[str, Made]:
    """Find flat parameters in what is applied as a matrix, and gains of normalised ones."""
    made: dict[str, Made] = {}
    leaves = parameters_of(operand)
    if len(leaves) == 1:
        (leaf,) = leaves
        parameter = leaf.node.variable
        count = sides[0] * sides[1]
        if parameter.dim() == 1 and parameter.numel() % count == 0:
            made[cast(str, leaf.tensor)] = Made("flat", sides)
        elif parameter.dim() > 1 and parameter.shape[-1] == count:
            made[cast(str, leaf.tensor)] = Made("generated", sides)
    for size in _sizes(operand):
        measured = parameters_of(size)
        for gain in leaves - measured:
            # What is only added to the matrix is not a gain.
            if measured and _multiplies(gain, operand):
                other = min(cast(str, leaf.tensor) for leaf in measured)
                made[cast(str, gain.tensor)] = Made("gain", sides, other)
    return made


def _before(operation: Operation) -> list[Operation]:
    """List an operation and all that computes it."""
    seen = {operation: None}
    ahead = [operation]
    while ahead:
        for operand in ahead.pop().operands:
            if operand not in seen:
                seen[operand] = None
                ahead.append(operand)
    return [*seen]


def _sizes(operand: Operation) -> list[Operation]:
    """Find the norms of parameters by which a matrix is divided."""
    sizes = []
    for operation in _before(operand):
        if operation.tensor is None and _SIZES.fullmatch(operation.name):
            count = math.prod(shape_of(operation))
            # A norm has fewer entries than what it measures; a root of a parameter has as many.
            if all(leaf.node.variable.numel() > count for leaf in parameters_of(operation)):
                sizes.append(operation)
    return sizes


def _multiplies(gain: Operation, operand: Operation) -> bool:
    """Whether a parameter is a factor of entries in what computes an operand."""
    for operation in _before(operand):
        if operation.name not in ENTRYWISE:
            continue
        if any(gain in parameters_of(factor) for factor in operation.operands):
            return True
    return False


def _generated(operand: Operation, sides: tuple[int, int]) -> dict[str, Made]:
    """Find the layer whose outputs are, as a matrix, a factor of a product."""
    source = operand
    while not (source.weights and (source.is_product or source.is_lookup)):
        if len(source.data) != 1 or source.is_product:
            return {}
        if math.prod(shape_of(source.data[0])) < math.prod(shape_of(source)):
            # It is repeated: a number that is added to a matrix, and not the matrix.
            return {}
        (source,) = source.data
    shape = shape_of(source)
    if not shape or shape[-1] != sides[0] * sides[1]:
        return {}
    names: Collection[str] = _names(source.weights)
    return dict.fromkeys(names, Made("generated", sides))


def _names(weights: Iterable[Operation]) -> list[str]:
    """Name the parameters of which weights are made."""
    leaves = {leaf for weight in weights for leaf in parameters_of(weight)}
    return sorted(cast(str, leaf.tensor) for leaf in leaves)
