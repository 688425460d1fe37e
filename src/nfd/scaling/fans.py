"""Over which dimensions of a parameter products and sums go: where parameters meet data, and which
way round.
"""

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
    users_of,
)

# ---- Over which dimensions of a parameter a product sums.

_LOGITS = (("query", -1, None), ("key", -1, None))  # of a fused attention

# dimensions that count the inputs and the outputs of a parameter
Fans = tuple[tuple[int, ...], tuple[int, ...]]


def fans_of(operations: Sequence[Operation]) -> dict[str, tuple[Fans, ...]]:
    """Of every parameter that products of matrices sum over, or that acts entry by entry alone: as
    it is used, in order, several where uses differ."""
    users = users_of(operations)
    first = applied_first(operations)
    summed: dict[str, dict[Fans, None]] = {}
    entrywise: dict[str, dict[Fans, None]] = {}
    unknown = set[str]()
    for operation in operations:
        if operation.of_parameters:
            continue
        sum_ = sum_of_weights(operation, users)
        for place, weight in enumerate(operation.inputs):
            is_acted_on = place in operation.acted_on
            if weight is None or not (weight.is_made or is_acted_on):
                continue
            is_applied = operation.is_product and not is_acted_on
            if weight.is_lookup and not is_applied:
                continue
            for leaf in parameters_of(weight):
                name = cast(str, leaf.tensor)
                p = leaf.node.variable
                fans: Fans | None = ((), _dimensions_in(p, weight))
                if is_applied or makes_logits(operation, weight):
                    fans = _summed_over(
                        p, operation, place, is_turned=first.get(operation) == place
                    )
                elif sum_ is not None:
                    fans = _summed_entries(p, weight, sum_) or fans
                if fans is None:
                    unknown.add(name)
                else:
                    (summed if fans[0] else entrywise).setdefault(name, {})[fans] = None
    known = {name: fans for name, fans in entrywise.items() if name not in unknown} | summed
    return {name: tuple(fans) for name, fans in known.items()}


def _dimensions_in(p: Tensor, weight: Operation) -> tuple[int, ...]:
    """The dimensions of a parameter that what is made of it has: of a row that is taken from a
    table, the last.
    """
    every = tuple(range(p.dim()))
    if weight.tensor is not None:
        return every
    count = math.prod(_shape_of(weight))
    if count >= p.numel():
        return every
    parts = (every[first:] for first in range(p.dim() + 1))
    trailing = (dims for dims in parts if math.prod(p.shape[k] for k in dims) == count)
    return next(trailing, every)


def makes_logits(operation: Operation, operand: Operation) -> bool:
    """Whether an operand is the query or the key of a fused attention."""
    return "Attention" in operation.name and operand in operation.inputs[:2]


def _summed_over(
    p: Tensor, product: Operation, place: int, *, is_turned: bool = False
) -> Fans | None:
    """Find the fans of a factor of a product by the strides of the parameter's dimensions in it;
    ``is_turned``: whether what it counts is summed over later, and it acts on what else sums."""
    kept = _LOGITS if "Attention" in product.name else KEPT_FACTORS.get(product.name, ())
    of_place = kept[place] if place < len(kept) else None
    factor = None if of_place is None else saved_value(product.node, of_place[0])
    if of_place is None or not isinstance(factor, Tensor):
        return None
    strides = _strides_in(factor, p.detach())

    def through(side: int) -> tuple[int, ...]:
        step = factor.stride(side)
        end = factor.stride(side) * factor.shape[side]
        return tuple(k for k in range(p.dim()) if p.shape[k] > 1 and step <= strides[k] < end)

    _, summed, counted = of_place
    if is_turned:
        summed, counted = -1 if counted is None else counted, summed
    ins = through(summed)
    outs = () if counted is None else through(counted)
    if set(ins) & set(outs):
        return None
    # every row is applied by itself, as the readout of a state space is to each channel
    if ins and not outs:
        outs = tuple(k for k in range(p.dim()) if k not in ins)
        if math.prod(p.shape[k] for k in ins) > factor.shape[summed]:
            # of heads: each sums over its part, which keeps its size
            return (), tuple(range(p.dim()))
        return ins, outs
    return (ins, outs) if ins and outs else None


def applied_first(operations: Iterable[Operation]) -> dict[Operation, int]:
    """The place of the factor that acts first in every product of parameters alone, such as 0 in
    ``h @ (A @ B)``: it sums over the dimension of the product that data are summed over, and the
    other one over what they share."""
    first: dict[Operation, set[int]] = {}
    products = [o for o in operations if o.name in KEPT_FACTORS]
    if not any(_composed(o) for o in products):
        return {}
    for operation in products:
        kept = KEPT_FACTORS[operation.name]
        for place, operand in enumerate(operation.inputs[: len(kept)]):
            product = None if operand is None or not operation.data else _composed(operand)
            of_place = kept[place]
            values = None if of_place is None else saved_value(operation.node, of_place[0])
            if product is None or of_place is None or not isinstance(values, Tensor):
                continue
            shape = (
                (*_shape_of(product), 1)[-2:] if "v" in product.name else _shape_of(product)[-2:]
            )
            summed = values.shape[of_place[1]], values.stride(of_place[1])
            # Results lie in memory row by row.
            sums_columns = summed[0] == shape[1] and (summed[0] != shape[0] or summed[1] == 1)
            places = [
                k for k, of_factor in enumerate(KEPT_FACTORS[product.name]) if of_factor is not None
            ]
            first.setdefault(product, set()).add(places[1 if sums_columns else 0])
    return {product: places.pop() for product, places in first.items() if len(places) == 1}


def _composed(operand: Operation) -> Operation | None:
    """The product of parameters alone that an operand is, but for rearrangements and constants;
    else None.
    """
    while not operand.is_product:
        if len(operand.operands) != 1 or operand.scale(operand.operands[0]) is None:
            return None
        (operand,) = operand.operands
    return (
        operand
        if not operand.data and len(operand.weights) == 2 and operand.name in KEPT_FACTORS
        else None
    )


class EntrySum(NamedTuple):
    """A sum of products of entries: the dimensions that it sums, of so many, what each counts for,
    and the operation that sums."""

    dims: frozenset[int]
    shape: tuple[int, ...]
    share: float
    reduction: Operation


DISTANCES = ("Cdist", "EuclideanDist")
ROOTS = ("LinalgVectorNorm", "Norm")
# of entries, which a sum may follow: a product of vectors, or a distance
_COMPARED = ("Mul", "Sub", "Add")


def _sum_behind(operation: Operation, users: Users) -> EntrySum | None:
    """The sum or mean over entries that a product of entries, or the square of a difference, ends
    in.
    """
    if operation.name not in _COMPARED:
        return None
    current = operation
    is_compared = operation.name == "Mul"
    while len({*users[current]}) == 1:
        user = users[current][0]
        if user.name in ("Sum", "Mean"):
            return _dims_of(user, current) if is_compared else None
        if user.name in ROOTS:
            return None if is_compared else _dims_of(user, current)
        is_square = user.name in ("Pow", "Abs") or (
            user.name == "Mul" and {*user.operands} == {current}
        )
        if is_square and is_compared:
            return None
        is_alone = user.scale(current) is not None and len(user.data) == 1
        if _shape_of(user) != _shape_of(current) or not (is_square or is_alone):
            return None
        is_compared |= is_square
        current = user
    return None


def sum_of_weights(operation: Operation, users: Users) -> EntrySum | None:
    """The same where it goes over dimensions of a weight."""
    if operation.name not in _COMPARED or not operation.data:
        return None
    sum_ = _sum_behind(operation, users)
    if sum_ is None:
        return None
    for weight in operation.weights:
        for leaf in parameters_of(weight):
            if _summed_entries(leaf.node.variable, weight, sum_) is not None:
                return sum_
    return None


def _dims_of(reduction: Operation, summed: Operation) -> EntrySum | None:
    """The dimensions that a sum, a mean or a norm takes together."""
    shape = _shape_of(summed)
    dims = saved_value(reduction.node, "dim") or range(len(shape))
    places = frozenset(dimension_from_front(d, len(shape)) for d in dims)
    count = math.prod(shape[k] for k in places)
    return EntrySum(places, shape, 1 / count if reduction.name == "Mean" else 1.0, reduction)


def _shape_of(operation: Operation) -> tuple[int, ...]:
    """The shape of an operation's result."""
    if operation.name == "AccumulateGrad":
        return tuple(operation.node.variable.shape)
    return tuple(operation.node._input_metadata[0].shape)


def _summed_entries(p: Tensor, weight: Operation, sum_: EntrySum) -> Fans | None:
    """Over which dimensions of a parameter a sum of entries goes; None where it goes over none."""
    shape = _shape_of(weight)
    first = len(sum_.shape) - len(shape)  # to the right, as PyTorch broadcasts
    sizes = [(k + first, size) for k, size in enumerate(shape) if size > 1]
    own = [k for k, size in enumerate(p.shape) if size > 1]
    if [size for _, size in sizes] != [p.shape[k] for k in own]:
        return None
    ins = tuple(k for k, (place, _) in zip(own, sizes, strict=True) if place in sum_.dims)
    return (ins, tuple(k for k in range(p.dim()) if k not in ins)) if ins else None


def _strides_in(factor: Tensor, p: Tensor) -> Sequence[int]:
    """The strides of a parameter's dimensions in a view of it, or in a copy, such as einsum makes
    of a stack: there its numbers tell the order of dimensions in memory."""
    extent = 1 + sum(
        (size - 1) * step for size, step in zip(factor.shape, factor.stride(), strict=True)
    )
    is_whole = factor.numel() == p.numel() == extent and not factor.is_complex()
    if not is_whole or factor.untyped_storage().data_ptr() == p.untyped_storage().data_ptr():
        return p.stride()
    numbers = factor.as_strided((factor.numel(),), (1,)).to(p.dtype)
    for order in permutations(range(p.dim())):
        moved = p.permute(order).contiguous()
        if torch.allclose(moved.flatten(), numbers, rtol=1e-2):  # under autocast they are rounded
            return [moved.stride(order.index(k)) for k in range(p.dim())]
    return p.stride()


def first_of_both_ways(ran: Sequence[Operation]) -> dict[str, list[Operation]]:
    """The products that apply a matrix as the first one does, where a later one applies it turned:
    of an autoencoder with tied weights these read the input, as lookups of an embedding that is the
    head as well do."""
    products: dict[Operation, list[tuple[Operation, int]]] = {}
    for operation in ran:
        if not operation.is_product or operation.of_parameters or not operation.data:
            continue
        for place, weight in enumerate(operation.inputs):
            leaf = (
                None if weight is None or place in operation.acted_on else scaled_parameter(weight)
            )
            if leaf is not None:
                products.setdefault(leaf, []).append((operation, place))
    turned = {}
    for leaf, uses in products.items():
        if len(uses) < 2:
            continue
        fans = [_summed_over(leaf.node.variable, operation, place) for operation, place in uses]
        if fans[0] is not None and fans[0][::-1] in fans and fans[0][::-1] != fans[0]:
            turned[cast(str, leaf.tensor)] = [
                uses[k][0] for k, of_use in enumerate(fans) if of_use == fans[0]
            ]
    return turned
