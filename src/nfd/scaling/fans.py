"""Fans: the dimensions of a parameter over which products sum, and those that count results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import NamedTuple, cast

import torch
from torch import Tensor

from nfd.scaling.graph import (
    KEPT_FACTORS,
    Operation,
    Users,
    dimension_from_front,
    parameters_of,
    saved_value,
    scaled_parameter,
    shape_of,
    users_of,
)

# ---- Parameters in products of matrices, and entry by entry.

# What autograd keeps of a fused attention, as in ``KEPT_FACTORS``.
_LOGITS = (("query", -1, None), ("key", -1, None))

# The dimensions that count the inputs and the outputs of a parameter.
Fans = tuple[tuple[int, ...], tuple[int, ...]]


def fans_of(operations: Sequence[Operation]) -> dict[str, tuple[Fans, ...]]:
    """Find the fans of every parameter that meets data in a product, or entry by entry.

    They stand in the order of uses, several where uses differ. A parameter that any product sums
    over has the fans of its products only.
    """
    users = users_of(operations)
    first = applied_first(operations)
    summed: dict[str, dict[Fans, None]] = {}
    entrywise: dict[str, dict[Fans, None]] = {}
    undecided = set[str]()
    for operation in operations:
        if operation.of_parameters:
            continue
        entry_sum = sum_of_weights(operation, users)
        for place, weight in enumerate(operation.inputs):
            if weight is None or not _meets_data(operation, place, weight):
                continue
            for leaf in parameters_of(weight):
                name = cast(str, leaf.tensor)
                parameter = leaf.node.variable
                fans: Fans | None = ((), _dimensions_in(parameter, weight))
                is_bias = operation.is_product and weight not in operation.gains
                is_factor = _is_applied(operation, place) and not is_bias
                if is_factor or makes_logits(operation, weight):
                    is_turned = first.get(operation) == place
                    fans = _summed_over(parameter, operation, place, is_turned=is_turned)
                elif entry_sum is not None:
                    fans = _summed_entries(parameter, weight, entry_sum) or fans
                if fans is None:
                    undecided.add(name)
                elif fans[0]:
                    summed.setdefault(name, {})[fans] = None
                else:
                    entrywise.setdefault(name, {})[fans] = None
    decided = {name: fans for name, fans in entrywise.items() if name not in undecided} | summed
    return {name: tuple(fans) for name, fans in decided.items()}


def _is_applied(operation: Operation, place: int) -> bool:
    """Whether the input at a place is a factor that acts on another."""
    return operation.is_product and place not in operation.acted_on


def _meets_data(operation: Operation, place: int, weight: Operation) -> bool:
    """Whether an input is made of parameters; rows of a table only where they are applied."""
    if not weight.is_made and place not in operation.acted_on:
        return False
    return not weight.is_lookup or _is_applied(operation, place)


def _dimensions_in(p: Tensor, weight: Operation) -> tuple[int, ...]:
    """Find the dimensions of a parameter that are left in what is made of it.

    Of a row that is taken from a table, that is the last one.
    """
    every = tuple(range(p.dim()))
    if weight.tensor is not None:
        return every
    count = math.prod(shape_of(weight))
    if count >= p.numel():
        return every
    for first in range(p.dim() + 1):
        if math.prod(p.shape[first:]) == count:
            return every[first:]
    return every


def makes_logits(operation: Operation, operand: Operation) -> bool:
    """Whether an operand is the query or the key of a fused attention."""
    return "Attention" in operation.name and operand in operation.inputs[:2]


def _summed_over(
    p: Tensor, product: Operation, place: int, *, is_turned: bool = False
) -> Fans | None:
    """Find the fans of a factor of a product by the strides of the parameter's dimensions in it.

    Args:
        p: the parameter that the factor is made of.
        product: the product.
        place: of the factor, among the inputs of the product.
        is_turned: whether what the factor counts is summed over later, and the factor acts on what
            else sums.
    """
    kept = _LOGITS if "Attention" in product.name else KEPT_FACTORS.get(product.name, ())
    of_place = kept[place] if place < len(kept) else None
    factor = None if of_place is None else saved_value(product.node, of_place[0])
    if of_place is None or not isinstance(factor, Tensor):
        return None
    strides = _strides_in(factor, p.detach())

    def through(side: int) -> tuple[int, ...]:
        step = factor.stride(side)
        end = step * factor.shape[side]
        return tuple(k for k in range(p.dim()) if p.shape[k] > 1 and step <= strides[k] < end)

    _, summed, counted = of_place
    if is_turned:
        later_summed = -1 if counted is None else counted
        counted = summed
        summed = later_summed
    ins = through(summed)
    outs = () if counted is None else through(counted)
    if not ins or set(ins) & set(outs):
        return None
    if outs:
        return ins, outs
    # Every row is applied by itself, as the readout of a state space is to each channel.
    if math.prod(p.shape[k] for k in ins) > factor.shape[summed]:
        # Each of several heads sums over its part, which keeps its size.
        return (), tuple(range(p.dim()))
    return ins, tuple(k for k in range(p.dim()) if k not in ins)


def applied_first(operations: Iterable[Operation]) -> dict[Operation, int]:
    """Find the place of the factor that acts first in every product of parameters only.

    In ``h @ (A @ B)`` it is the place 0: A sums over the dimension of the product that data are
    summed over, and B over what they share. Products that are used both ways are left out.
    """
    first: dict[Operation, set[int]] = {}
    products = [o for o in operations if o.name in KEPT_FACTORS]
    for operation in products:
        kept = KEPT_FACTORS[operation.name]
        for place, operand in enumerate(operation.inputs[: len(kept)]):
            of_place = kept[place]
            if operand is None or of_place is None or not operation.data:
                continue
            composed = _composed(operand)
            if composed is None:
                continue
            saved_name, summed, _ = of_place
            values = saved_value(operation.node, saved_name)
            if not isinstance(values, Tensor):
                continue
            sums_columns = _sums_columns(composed, values, summed)
            factors = KEPT_FACTORS[composed.name]
            places = [k for k, of_factor in enumerate(factors) if of_factor is not None]
            first.setdefault(composed, set()).add(places[1 if sums_columns else 0])
    return {product: places.pop() for product, places in first.items() if len(places) == 1}


def _sums_columns(composed: Operation, values: Tensor, summed: int) -> bool:
    """Whether a dimension of values is the columns of the product of parameters that they are."""
    shape = shape_of(composed)
    if "v" in composed.name:
        # A product with a vector has one column.
        shape = (*shape, 1)
    rows, columns = shape[-2:]
    size = values.shape[summed]
    if size != columns:
        return False
    # Results lie in memory row by row.
    return size != rows or values.stride(summed) == 1


def _composed(operand: Operation) -> Operation | None:
    """Find the product of parameters only that an operand is, but for rearrangements and constants.

    None where it is anything else.
    """
    while not operand.is_product:
        if len(operand.operands) != 1 or operand.scale(operand.operands[0]) is None:
            return None
        (operand,) = operand.operands
    is_of_two = not operand.data and len(operand.weights) == 2
    return operand if is_of_two and operand.name in KEPT_FACTORS else None


# ---- Sums of products of entries.


class EntrySum(NamedTuple):
    """A sum of products of entries, or of differences.

    Attributes:
        dims: the dimensions that it sums.
        shape: the shape of what it sums.
        share: what each entry counts for.
        reduction: the operation that sums.
    """

    dims: frozenset[int]
    shape: tuple[int, ...]
    share: float
    reduction: Operation


DISTANCES = ("Cdist", "EuclideanDist")
ROOTS = ("LinalgVectorNorm", "Norm")
# Operations on entries that a sum may follow: then it is a product of vectors, or a distance.
_COMPARED = ("Mul", "Sub", "Add")


def _sum_after(operation: Operation, users: Users) -> EntrySum | None:
    """Find the sum or mean in which a product of entries, or the square of a difference, ends."""
    current = operation
    is_compared = operation.name == "Mul"
    while len({*users[current]}) == 1:
        user = users[current][0]
        if user.name in ("Sum", "Mean"):
            return _dims_of(user, current) if is_compared else None
        if user.name in ROOTS:
            return None if is_compared else _dims_of(user, current)
        is_own_square = user.name == "Mul" and {*user.operands} == {current}
        is_square = is_own_square or user.name in ("Pow", "Abs")
        if is_square and is_compared:
            return None
        is_scaled = user.scale(current) is not None and len(user.data) == 1
        if shape_of(user) != shape_of(current) or not (is_square or is_scaled):
            return None
        is_compared |= is_square
        current = user
    return None


def sum_of_weights(operation: Operation, users: Users) -> EntrySum | None:
    """Find the sum in which an operation on entries ends, where it goes over those of a weight."""
    if operation.name not in _COMPARED or not operation.data:
        return None
    entry_sum = _sum_after(operation, users)
    if entry_sum is None:
        return None
    for weight in operation.weights:
        for leaf in parameters_of(weight):
            if _summed_entries(leaf.node.variable, weight, entry_sum) is not None:
                return entry_sum
    return None


def _dims_of(reduction: Operation, summed: Operation) -> EntrySum | None:
    """Find the dimensions that a sum, a mean or a norm takes together."""
    shape = shape_of(summed)
    dims = saved_value(reduction.node, "dim") or range(len(shape))
    places = frozenset(dimension_from_front(d, len(shape)) for d in dims)
    count = math.prod(shape[k] for k in places)
    return EntrySum(places, shape, 1 / count if reduction.name == "Mean" else 1.0, reduction)


def _summed_entries(p: Tensor, weight: Operation, entry_sum: EntrySum) -> Fans | None:
    """Find over which dimensions of a parameter a sum of entries goes; None for over none."""
    shape = shape_of(weight)
    # PyTorch broadcasts to the right.
    shift = len(entry_sum.shape) - len(shape)
    places = [k for k, size in enumerate(shape) if size > 1]
    dims = [k for k, size in enumerate(p.shape) if size > 1]
    if [shape[k] for k in places] != [p.shape[k] for k in dims]:
        return None
    pairs = zip(dims, places, strict=True)
    ins = tuple(dim for dim, place in pairs if place + shift in entry_sum.dims)
    if not ins:
        return None
    return ins, tuple(k for k in range(p.dim()) if k not in ins)


# ---- Views and copies of a parameter, and matrices that are applied both ways.


def _strides_in(factor: Tensor, p: Tensor) -> Sequence[int]:
    """Find the strides of a parameter's dimensions in a view of it, or in a copy.

    Einsum makes copies of stacks: there the numbers show the order of dimensions in memory.
    """
    extents = zip(factor.shape, factor.stride(), strict=True)
    extent = 1 + sum((size - 1) * step for size, step in extents)
    is_whole = factor.numel() == p.numel() == extent and not factor.is_complex()
    if not is_whole or factor.untyped_storage().data_ptr() == p.untyped_storage().data_ptr():
        return p.stride()
    numbers = factor.as_strided((factor.numel(),), (1,)).to(p.dtype)
    for order in permutations(range(p.dim())):
        moved = p.permute(order).contiguous()
        # Under autocast numbers are rounded.
        if torch.allclose(moved.flatten(), numbers, rtol=1e-2):
            return [moved.stride(order.index(k)) for k in range(p.dim())]
    return p.stride()


def first_of_both_ways(ran: Sequence[Operation]) -> dict[str, list[Operation]]:
    """Find the products that apply a matrix as the first one does, where a later one turns it.

    Those of an autoencoder with tied weights read the input, as lookups of an embedding that is the
    head as well do. The others apply the matrix turned.
    """
    products: dict[Operation, list[tuple[Operation, int]]] = {}
    for operation in ran:
        if not operation.is_product or operation.of_parameters or not operation.data:
            continue
        for place, weight in enumerate(operation.inputs):
            if weight is None or place in operation.acted_on:
                continue
            leaf = scaled_parameter(weight)
            if leaf is not None:
                products.setdefault(leaf, []).append((operation, place))
    reading = {}
    for leaf, uses in products.items():
        if len(uses) < 2:
            continue
        fans = [_summed_over(leaf.node.variable, operation, place) for operation, place in uses]
        first = fans[0]
        if first is None:
            continue
        turned = first[::-1]
        if turned in fans and turned != first:
            reading[cast(str, leaf.tensor)] = [
                operation
                for (operation, _), of_use in zip(uses, fans, strict=True)
                if of_use == first
            ]
    return reading
