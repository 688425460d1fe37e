"""The constants of one forward pass: factors of tensors, and how attention scales its logits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import Tensor

from nfd.scaling.fans import (
    DISTANCES,
    ROOTS,
    EntrySum,
    applied_first,
    first_of_both_ways,
    makes_logits,
    sum_of_weights,
)
from nfd.scaling.graph import (
    CLIPS,
    ENTRYWISE,
    KEPT_FACTORS,
    Operation,
    Users,
    parameters_of,
    saved_size,
    saved_value,
    users_of,
)

# ---- Constant factors of tensors.


class Factors(NamedTuple):
    """The constant factors of a tensor in one forward pass.

    Attributes:
        looked_up: where its rows are looked up, or it reads the input.
        applied: where it is applied.

    A set holds several where uses differ.
    """

    looked_up: frozenset[float] = frozenset()
    applied: frozenset[float] = frozenset()


class FactorRatios(NamedTuple):
    """The factors of a tensor over those of the same tensor in the base."""

    looked_up: float = 1.0
    applied: float = 1.0


@dataclass(frozen=True)
class _Pass:
    """One forward pass, to read constants in.

    Attributes:
        users: as ``users_of`` finds them.
        ends: the last operations of the pass, and of branches with what the sum multiplies them by:
            no constant after them counts.
        scaled: operations that apply the factor of an ``nfd.Scaled``, which is the plan's and not
            the model's.
        sums: of products of entries, and of differences: the sums over weights that follow.
        first: of products of parameters, the place of the factor that acts first.
        reading: the products that apply a matrix as the input does, by the name of a matrix that is
            applied both ways.
    """

    users: Users
    ends: Mapping[Operation, float]
    scaled: Collection[Operation]
    sums: Mapping[Operation, EntrySum]
    first: Mapping[Operation, int]
    reading: Mapping[str, Sequence[Operation]]

    def constant(self, operation: Operation, operand: Operation) -> float | None:
        """Return what an operation multiplies an operand by.

        None where it does something else with the operand.
        """
        if operation in self.scaled:
            return 1.0
        return operation.scale(operand)


def factors_of(
    ran: Sequence[Operation], ends: Mapping[Operation, float], scaled: Collection[Operation]
) -> dict[str, Factors]:
    """Find the factors of every parameter.

    A constant is a parameter's if it stands after the operation that applies it, before anything
    else acts. One that stands right before a product with weights belongs to those weights. So does
    the size that a norm before it gives the data, where that is not 1. For what attention
    multiplies, see ``Logits``.

    Args:
        ran: operations in order.
        ends, scaled: as in ``_Pass``.
    """
    users = users_of(ran)
    sums = {}
    for operation in ran:
        entry_sum = sum_of_weights(operation, users)
        if entry_sum is not None:
            sums[operation] = entry_sum
    forward_pass = _Pass(
        users=users,
        ends=ends,
        scaled=scaled,
        sums=sums,
        first=applied_first(ran),
        reading=first_of_both_ways(ran),
    )
    parameters = [operation for operation in ran if operation.tensor is not None]
    return {
        cast(str, parameter.tensor): _factors_of_parameter(parameter, forward_pass)
        for parameter in parameters
    }


def _factors_of_parameter(parameter: Operation, forward_pass: _Pass) -> Factors:
    """Find the factors of one parameter, by all ways from it to what applies it to data."""
    reading = forward_pass.reading.get(cast(str, parameter.tensor), ())
    looked_up = set[float]()
    applied = set[float]()
    stack = [(1.0, parameter)]
    while stack:
        factor, operation = stack.pop()
        for user in forward_pass.users[operation]:
            constant = forward_pass.constant(user, operation)
            if not user.of_parameters:
                # It applies what was made of the parameter to data.
                is_input = user.is_lookup or user in reading
                factors = looked_up if is_input else applied
                factors.update(_around(factor, user, operation, forward_pass))
            elif user.norm_size is not None and constant is None:
                stack.append((user.norm_size, user))
            elif constant is not None:
                stack.append((factor * constant, user))
    return Factors(frozenset(looked_up), frozenset(applied))


def _around(
    factor: float, operation: Operation, weight: Operation, forward_pass: _Pass
) -> list[float]:
    """Find the factors of a weight where it is applied, one for each way that its result goes.

    Args:
        factor: what the parameter was multiplied by before.
        operation: what applies the weight.
        weight: an operand of the operation.
        forward_pass: the forward pass.
    """
    sums = forward_pass.sums
    if operation.is_product and weight not in operation.weights:
        # It is acted on: the constants belong to the matrix.
        return [factor]
    if operation in forward_pass.first:
        first = operation.inputs[forward_pass.first[operation]]
        if first is weight:
            # The constants belong to the factor that acts last.
            return [factor]
    if makes_logits(operation, weight):
        return [factor * _constant_of_fused(operation, weight)]
    after, is_taken = _after(operation, forward_pass)
    if operation.name in DISTANCES or (operation in sums and operation.name != "Mul"):
        after = [_after_distance(operation, forward_pass)]
    if operation.is_product or operation in sums:
        is_gain = weight in operation.gains
        before = _before(operation, forward_pass).last if is_gain else 1.0
        return [factor * before * constant for constant in after]
    if operation.name not in ENTRYWISE or not operation.data:
        return [factor * constant for constant in after]
    since_norm = _before(operation, forward_pass).since_norm
    if since_norm is None:
        return [factor * constant for constant in after]
    if is_taken:
        # Constants beside the gain of a norm belong to the matrix that follows.
        return after
    return [factor * since_norm * constant for constant in after]


def _constant_of_fused(attention: Operation, weight: Operation) -> float:
    """Return by what a fused attention multiplies a learned query or key, if that is one head."""
    fused = _fused(attention)
    if fused is None:
        return 1.0
    size, scale = fused
    sizes = {math.prod(p.node.variable.shape[-1:]) for p in parameters_of(weight)}
    return scale if sizes <= {size} else 1.0


class _Before(NamedTuple):
    """What the data of a weight were multiplied by.

    Attributes:
        last: right before the weight, or since a norm.
        since_norm: since a norm, with the norm's size; None where there is none.
    """

    last: float
    since_norm: float | None


def _before(operation: Operation, forward_pass: _Pass) -> _Before:
    """Find what the data of an operation were multiplied by, back to a norm.

    Gain and bias of the norm are passed.
    """
    last = 1.0
    every = 1.0
    is_last = operation.is_product or operation in forward_pass.sums
    data = operation.data[0] if operation.data else None
    while data is not None and data.norm_size is None:
        if len(data.data) != 1:
            if is_last:
                last = every * _products(data, forward_pass)
            return _Before(last, None)
        before = data.data[0]
        constant = forward_pass.constant(data, before)
        is_gain = data.name in ENTRYWISE and bool(data.gains)
        if constant is None and not is_gain and data.name not in CLIPS:
            return _Before(last, None)
        is_last = is_last and constant is not None and len(data.operands) == 1
        if constant is not None:
            # A constant of 0 says nothing of a size.
            every *= constant or 1.0
        elif is_gain:
            every *= _constant_of(data.gains[0])
        if is_last:
            last = every
        data = before
    if data is None:
        return _Before(last, None)
    every *= cast(float, data.norm_size)
    return _Before(every, every)


def _products(operation: Operation, forward_pass: _Pass) -> float:
    """Find the size of the products of data with data that an operation sums.

    Once these fit each other, it is their number, times the sizes that norms give them. 1 for other
    operations, and for means such as those of attention.
    """
    kept = KEPT_FACTORS.get(operation.name, ())
    places = [place for place in kept if place is not None]
    if len(operation.data) != 2 or operation.weights or len(places) != 2:
        return 1.0
    name, summed, _ = places[0]
    values = saved_value(operation.node, name)
    if not isinstance(values, Tensor) or any(_is_mean(data) for data in operation.data):
        return 1.0
    size = float(values.shape[summed])
    for data in operation.data:
        size *= _since_norm(data, forward_pass)
    return size


def _is_mean(operation: Operation) -> bool:
    """Whether entries of data are weights of a mean, as a softmax makes them."""
    while operation.is_linear and len(operation.data) == 1:
        (operation,) = operation.data
    return "Softmax" in operation.name


def _since_norm(data: Operation, forward_pass: _Pass) -> float:
    """Find what data are multiplied by since a norm, with its size; 1 where there is none."""
    every = 1.0
    while data.norm_size is None:
        if len(data.data) != 1:
            return 1.0
        (before,) = data.data
        constant = forward_pass.constant(data, before)
        if constant is None and not (data.name in ENTRYWISE and data.gains):
            return 1.0
        every *= 1.0 if constant is None else constant
        data = before
    return every * data.norm_size


def _constant_of(weight: Operation) -> float:
    """Find what a parameter is multiplied by before it is applied."""
    constant = 1.0
    while weight.tensor is None and len(weight.operands) == 1:
        (before,) = weight.operands
        constant *= weight.scale(before) or 1.0
        weight = before
    return constant


def _after(operation: Operation, forward_pass: _Pass) -> tuple[list[float], bool]:
    """Find what the result of an operation is multiplied by, before anything else acts.

    One number for each way that it goes. Second, whether weights follow, whose constants are those
    that stand right before them.
    """
    settled = 1.0
    if operation in forward_pass.sums:
        settled = forward_pass.sums[operation].share
    # What stands there by itself, and a product that follows would have.
    pending = 1.0
    is_composed = operation in forward_pass.first
    while operation not in forward_pass.ends:
        chosen = _chosen_from(operation, forward_pass)
        if chosen is not None:
            choice, shares = chosen
            rest, is_taken = _after(choice, forward_pass)
            factors = []
            for share in shares:
                factors += [settled * pending * share * constant for constant in rest]
            return factors, is_taken
        if len(forward_pass.users[operation]) != 1:
            break
        (user,) = forward_pass.users[operation]
        constant = forward_pass.constant(user, operation)
        if is_composed and user.is_product:
            # It applies the product of parameters.
            rest, is_taken = _after(user, forward_pass)
            return [settled * pending * constant for constant in rest], is_taken
        if user.is_product or "Attention" in user.name:
            if user.weights:
                return [settled], True
            return [settled * pending], False
        if constant is None:
            break
        operation = user
        pending *= constant
        if len(operation.operands) > 1:
            settled = settled * pending
            pending = 1.0
    return [settled * pending * forward_pass.ends.get(operation, 1.0)], False


def _after_distance(operation: Operation, forward_pass: _Pass) -> float:
    """Find what the product ``h p`` is multiplied by in a function of the distance of h and p.

    It is the constants, times n^-1/2 where the distance is not squared, as the root of a sum of n
    squares moves by so much less than the sum.
    """
    if operation in forward_pass.sums:
        entry_sum = forward_pass.sums[operation]
        count = math.prod(entry_sum.shape[k] for k in entry_sum.dims)
        factor = entry_sum.share
        current = entry_sum.reduction
    else:
        points = saved_value(operation.node, "x2")
        count = points.shape[-1] if isinstance(points, Tensor) else 1
        factor = 1.0
        current = operation
    is_root = current.name in (*DISTANCES, *ROOTS)
    while current not in forward_pass.ends and len(forward_pass.users[current]) == 1:
        (user,) = forward_pass.users[current]
        constant = forward_pass.constant(user, current)
        if user.name == "Pow" and is_root and saved_size(user.node, "exponent") == 2:
            is_root = False
        elif user.name == "Sqrt" and not is_root:
            is_root = True
        elif constant is not None:
            # The square of a multiple has the multiple squared.
            factor *= constant**2 if is_root and _is_squared(user, forward_pass) else constant
        else:
            break
        current = user
    return factor * count**-0.5 if is_root else factor


def _is_squared(operation: Operation, forward_pass: _Pass) -> bool:
    """Whether a square follows, past constants."""
    while len(forward_pass.users[operation]) == 1:
        (user,) = forward_pass.users[operation]
        if user.name == "Pow":
            return saved_size(user.node, "exponent") == 2
        if forward_pass.constant(user, operation) is None:
            return False
        operation = user
    return False


def _chosen_from(operation: Operation, forward_pass: _Pass) -> tuple[Operation, list[float]] | None:
    """Find the ``torch.where`` that chooses between multiples of a result, and the multiples.

    None where nothing chooses.
    """
    users = forward_pass.users[operation]
    if len(users) < 2:
        return None
    shares = []
    choices = set[Operation]()
    for user in users:
        share = 1.0
        before = operation
        current = user
        while current.name != "Where":
            constant = forward_pass.constant(current, before)
            is_one_way = len(current.operands) == 1 and len(forward_pass.users[current]) == 1
            if constant is None or not is_one_way:
                return None
            share *= constant
            before = current
            current = forward_pass.users[current][0]
        choices.add(current)
        shares.append(share)
    return (choices.pop(), shares) if len(choices) == 1 else None


# ---- Attention logits, and the sizes of heads.


class Logits(NamedTuple):
    """Attention logits ``c q k`` as the matrix of their queries, or of their keys, shows them.

    Attributes:
        size: the size d of a head.
        is_query: whether the matrix makes queries.
        inside: the constant between the matrix and the product. Where heads keep their size it is a
            factor of the matrix, else a part of c.
        both: the constant of queries times that of keys.
        outside: the constant of the product.
    """

    size: int
    is_query: bool
    inside: float
    both: float
    outside: float


def logits_of(ran: Sequence[Operation]) -> dict[str, Logits]:
    """Find the logits of every matrix that makes queries or keys.

    Queries and keys whose d entries are of order one fit each other after some training, so that
    ``q k`` is of order d.
    """
    users = users_of(ran)
    logits_by_name: dict[str, Logits] = {}
    for operation in ran:
        if "Attention" in operation.name:
            size_and_scale = _fused(operation)
        else:
            size_and_scale = _before_softmax(operation, users)
        compared = [i for i in operation.inputs if i is not None][:2]
        if size_and_scale is None or any(i not in operation.data for i in compared):
            continue
        size, scale = size_and_scale
        queries, keys = (_made_by(data, users) for data in compared)
        for maker, is_query in ((keys, False), (queries, True)):
            logits = Logits(
                size=size,
                is_query=is_query,
                inside=maker.inside,
                both=queries.factor * keys.factor,
                outside=scale,
            )
            logits_by_name |= dict.fromkeys(maker.matrices, logits)
            for name, inside in maker.gains.items():
                logits_by_name[name] = logits._replace(is_query=False, inside=inside)
    return logits_by_name


class _Maker(NamedTuple):
    """What makes queries or keys.

    Attributes:
        matrices: the names of their matrix and bias.
        factor: the constants after it, with the size that a norm gives.
        inside: the constants that are a factor of the matrix, which those after a norm are not. A
            matrix of fused queries, keys and values has only those that all three have.
        gains: the gains after a norm, and all by which the model multiplies since the norm, which
            is their factor.
    """

    matrices: list[str]
    factor: float
    inside: float
    gains: Mapping[str, float]


def _made_by(operation: Operation, users: Users) -> _Maker:
    """Find what makes queries or keys, before heads, rotations and norms of them."""
    factor = 1.0
    inside = 1.0
    since_norm: list[str] = []
    gains: dict[str, float] = {}
    while not operation.applies_weights and operation.data:
        before = operation.data[0]
        if operation.norm_size is not None:
            factor *= operation.norm_size
            inside = 1.0
            gains |= dict.fromkeys(since_norm, factor)
            since_norm = []
        elif operation.name in ENTRYWISE:
            since_norm += _names_of_gains(operation)
        if len(operation.operands) == 1:
            scale = operation.scale(before) or 1.0
            factor *= scale
            inside *= scale
        if len(users[before]) > 1:
            inside = 1.0
        operation = before
    return _Maker(_names_of_gains(operation), factor, inside, gains)


def _names_of_gains(operation: Operation) -> list[str]:
    """Name the parameters of which the weights of an operation are made, but the bias."""
    names = []
    for weight in operation.gains:
        names += [cast(str, parameter.tensor) for parameter in parameters_of(weight)]
    return names


def _fused(attention: Operation) -> tuple[int, float] | None:
    """Read the size of heads and the constant of a fused attention."""
    query = getattr(attention.node, "_saved_query", None)
    scale = getattr(attention.node, "_saved_scale", None)
    if query is None:
        return None
    size = int(query.shape[-1])
    return size, size**-0.5 if scale is None else float(scale)


# What autograd keeps of the queries.
_QUERIES = {"Bmm": "_saved_self", "Baddbmm": "_saved_batch1"}


def _before_softmax(
    product: Operation, users: Mapping[Operation, Sequence[Operation]]
) -> tuple[int, float] | None:
    """Read the size of heads and the constant of a product of data that a softmax follows.

    None where something else follows.
    """
    if product.name not in ("Bmm", "Baddbmm") or len(product.data) < 2 or product.weights:
        return None
    size = int(getattr(product.node, _QUERIES[product.name]).shape[-1])
    scale = 1.0
    operation = product
    while len(users[operation]) == 1:
        (user,) = users[operation]
        if "Softmax" in user.name:
            return size, scale
        is_temperature = user.name == "Mul" and bool(user.gains) and len(user.data) == 1
        constant = 1.0 if is_temperature else user.scale(operation)
        if constant is None:
            return None
        scale *= constant
        operation = user
    return None
