"""What one forward pass multiplies tensors by: constant factors, and how attention scales its
logits.
"""

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

# ---- Constant factors: what one forward pass multiplies tensors by.


class Factors(NamedTuple):
    """The constant factors of a tensor in one forward pass: where its rows are looked up, and where
    it is applied.

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
            no constant behind them counts.
        scaled: operations that apply the factor of an ``nfd.Scaled``, which is the plan's and not
            the model's.
        sums: of products of entries, and of differences: the sums over weights that follow.
        first: of products of parameters, the place of the factor that acts first.
    """

    users: Users
    ends: Mapping[Operation, float]
    scaled: Collection[Operation]
    sums: Mapping[Operation, EntrySum]
    first: Mapping[Operation, int]

    def constant(self, operation: Operation, operand: Operation) -> float | None:
        """What an operation multiplies an operand by; None where it does something else with it."""
        return 1.0 if operation in self.scaled else operation.scale(operand)


def factors_of(
    ran: Sequence[Operation], ends: Mapping[Operation, float], scaled: Collection[Operation]
) -> dict[str, Factors]:
    """The factors of every parameter.

    A constant is a parameter's if it stands behind the operation that applies it, before anything
    else acts. One that stands right before a product with weights is that of those weights. So is
    the size that a norm before it gives the data, where that is not 1. Of what attention
    multiplies, see ``Logits``.

    Args:
        ran: operations in order.
        ends, scaled: as in ``_Pass``.
    """
    users = users_of(ran)
    sums = {o: sum_of_weights(o, users) for o in ran}
    of_pass = _Pass(
        users,
        ends,
        scaled,
        {o: sum_ for o, sum_ in sums.items() if sum_ is not None},
        applied_first(ran),
    )
    factors = {}
    turned = first_of_both_ways(ran)
    for parameter in (o for o in ran if o.tensor is not None):
        kinds: dict[bool, set[float]] = {True: set(), False: set()}
        stack = [(1.0, parameter)]
        while stack:
            factor, operation = stack.pop()
            for user in users[operation]:
                constant = of_pass.constant(user, operation)
                if not user.of_parameters:  # it applies what was made of the parameter to data
                    is_input = user.is_lookup or user in turned.get(cast(str, parameter.tensor), ())
                    kinds[is_input].update(_around(factor, user, operation, of_pass))
                elif user.norm_size is not None and constant is None:
                    stack.append((user.norm_size, user))
                elif constant is not None:
                    stack.append((factor * constant, user))
        factors[cast(str, parameter.tensor)] = Factors(
            frozenset(kinds[True]), frozenset(kinds[False])
        )
    return factors


def _around(factor: float, operation: Operation, weight: Operation, of_pass: _Pass) -> list[float]:
    """The factors of a weight where it is applied, one for each way that its result goes.

    Args:
        factor: what the parameter was multiplied by before.
        operation, weight: what applies it, and the operand that it is.
        of_pass: the forward pass.
    """
    if operation.is_product and weight not in operation.weights:
        return [factor]  # it is acted on: the constants are those of the matrix
    if operation in of_pass.first and operation.inputs[of_pass.first[operation]] is weight:
        return [factor]  # the constants are those of the factor that acts last
    if makes_logits(operation, weight):
        fused = _fused(operation)
        is_whole = fused is not None and all(
            fused[0] == math.prod(p.node.variable.shape[-1:]) for p in parameters_of(weight)
        )
        return [factor * fused[1]] if fused is not None and is_whole else [factor]
    behind, is_taken = _behind(operation, of_pass)
    if operation.name in DISTANCES or (operation in of_pass.sums and operation.name != "Mul"):
        behind = [_behind_distance(operation, of_pass)]
    if operation.is_product or operation in of_pass.sums:
        before = _before(operation, of_pass).last if weight in operation.gains else 1.0
        return [factor * before * after for after in behind]
    if operation.name not in ENTRYWISE or not operation.data:
        return [factor * after for after in behind]
    since_norm = _before(operation, of_pass).since_norm
    if since_norm is None:
        return [factor * after for after in behind]
    # Constants beside the gain of a norm belong to the matrix that follows, if one does.
    return behind if is_taken else [factor * since_norm * after for after in behind]


class _Before(NamedTuple):
    """What the data of a weight were multiplied by: ``last``, right before it or since a norm;
    ``since_norm``, the size of the norm included, None where there is none."""

    last: float
    since_norm: float | None


def _before(operation: Operation, of_pass: _Pass) -> _Before:
    """What the data of an operation were multiplied by, back to a norm, past its gain and bias,
    where one is there.
    """
    last = 1.0
    every = 1.0
    is_last = operation.is_product or operation in of_pass.sums
    data = operation.data[0] if operation.data else None
    while data is not None and data.norm_size is None:
        if len(data.data) != 1:
            return _Before(every * _products(data, of_pass) if is_last else last, None)
        before = data.data[0]
        constant = of_pass.constant(data, before)
        is_gain = data.name in ENTRYWISE and bool(data.gains)
        if constant is None and not is_gain and data.name not in CLIPS:
            return _Before(last, None)
        is_last = is_last and constant is not None and len(data.operands) == 1
        every *= _constant_of(data.gains[0]) if constant is None and is_gain else constant or 1.0
        last = every if is_last else last
        data = before
    if data is None:
        return _Before(last, None)
    every *= cast(float, data.norm_size)
    return _Before(every, every)


def _products(operation: Operation, of_pass: _Pass) -> float:
    """The size of the products of data with data that an operation sums, once these fit each other:
    their number, times the sizes that norms give them. 1 for other operations, and for means such
    as those of attention."""
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
        size *= _since_norm(data, of_pass)
    return size


def _is_mean(operation: Operation) -> bool:
    """Whether entries of data are weights of a mean, as a softmax makes them."""
    while operation.is_linear and len(operation.data) == 1:
        (operation,) = operation.data
    return "Softmax" in operation.name


def _since_norm(data: Operation, of_pass: _Pass) -> float:
    """What data are multiplied by since a norm, with its size; 1 where there is none."""
    every = 1.0
    while data.norm_size is None:
        if len(data.data) != 1:
            return 1.0
        (before,) = data.data
        constant = of_pass.constant(data, before)
        if constant is None and not (data.name in ENTRYWISE and data.gains):
            return 1.0
        every *= 1.0 if constant is None else constant
        data = before
    return every * data.norm_size


def _constant_of(weight: Operation) -> float:
    """What a parameter is multiplied by before it is applied."""
    constant = 1.0
    while weight.tensor is None and len(weight.operands) == 1:
        (before,) = weight.operands
        constant *= weight.scale(before) or 1.0
        weight = before
    return constant


def _behind(operation: Operation, of_pass: _Pass) -> tuple[list[float], bool]:
    """What the result of an operation is multiplied by, before anything else acts, one number for
    each way that it goes; and whether weights follow, whose constants are those that stand right
    before them."""
    settled = of_pass.sums[operation].share if operation in of_pass.sums else 1.0
    pending = 1.0  # what stands there alone, which a product that follows would have
    is_composed = operation in of_pass.first
    while operation not in of_pass.ends:
        chosen = _chosen_from(operation, of_pass)
        if chosen is not None:
            choice, shares = chosen
            rest, is_taken = _behind(choice, of_pass)
            return [
                settled * pending * share * after for share in shares for after in rest
            ], is_taken
        if len(of_pass.users[operation]) != 1:
            break
        (user,) = of_pass.users[operation]
        constant = of_pass.constant(user, operation)
        if is_composed and user.is_product:  # which applies the product of parameters
            rest, is_taken = _behind(user, of_pass)
            return [settled * pending * after for after in rest], is_taken
        if user.is_product or "Attention" in user.name:
            return ([settled], True) if user.weights else ([settled * pending], False)
        if constant is None:
            break
        operation = user
        pending *= constant
        if len(operation.operands) > 1:
            settled = settled * pending
            pending = 1.0
    return [settled * pending * of_pass.ends.get(operation, 1.0)], False


def _behind_distance(operation: Operation, of_pass: _Pass) -> float:
    """What the product ``h p`` is multiplied by in a function of the distance of h and p:
    constants, and n^-1/2 where the distance is not squared, as the root of a sum of n squares moves
    by so much less than the sum."""
    if operation in of_pass.sums:
        sum_ = of_pass.sums[operation]
        count = math.prod(sum_.shape[k] for k in sum_.dims)
        factor = sum_.share
        current = sum_.reduction
    else:
        points = saved_value(operation.node, "x2")
        count = points.shape[-1] if isinstance(points, Tensor) else 1
        factor = 1.0
        current = operation
    is_root = current.name in (*DISTANCES, *ROOTS)
    while current not in of_pass.ends and len(of_pass.users[current]) == 1:
        (user,) = of_pass.users[current]
        constant = of_pass.constant(user, current)
        if user.name == "Pow" and is_root and saved_size(user.node, "exponent") == 2:
            is_root = False
        elif user.name == "Sqrt" and not is_root:
            is_root = True
        elif constant is not None:
            # The square of a multiple has the multiple squared.
            factor *= constant**2 if is_root and _is_squared(user, of_pass) else constant
        else:
            break
        current = user
    return factor * count**-0.5 if is_root else factor


def _is_squared(operation: Operation, of_pass: _Pass) -> bool:
    """Whether a square follows, past constants."""
    while len(of_pass.users[operation]) == 1:
        (user,) = of_pass.users[operation]
        if user.name == "Pow":
            return saved_size(user.node, "exponent") == 2
        if of_pass.constant(user, operation) is None:
            return False
        operation = user
    return False


def _chosen_from(operation: Operation, of_pass: _Pass) -> tuple[Operation, list[float]] | None:
    """The ``torch.where`` that chooses between multiples of a result, and the multiples; None where
    none does.
    """
    users = of_pass.users[operation]
    if len(users) < 2:
        return None
    shares = []
    choices = set()
    for user in users:
        share = 1.0
        before = operation
        current = user
        while current.name != "Where":
            constant = of_pass.constant(current, before)
            if constant is None or len(current.operands) != 1 or len(of_pass.users[current]) != 1:
                return None
            share *= constant
            before = current
            current = of_pass.users[current][0]
        choices.add(current)
        shares.append(share)
    return (choices.pop(), shares) if len(choices) == 1 else None


# ---- Attention: what its logits are multiplied by, over the sizes of heads.


class Logits(NamedTuple):
    """Attention logits ``c q k`` as the matrix of their queries, or of their keys, shows them.

    Attributes:
        size: d, of a head. is_query: whether the matrix makes queries.
        inside: the constant between the matrix and the product. Where heads keep their size it is a
            factor of the matrix, else a part of c. both: that of queries times that of keys.
        outside: the constant of the product.
    """

    size: int
    is_query: bool
    inside: float
    both: float
    outside: float


def logits_of(ran: Sequence[Operation]) -> dict[str, Logits]:
    """Of every matrix that makes queries or keys.

    Queries and keys whose d entries are of order one fit each other after some training, so that
    ``q k`` is of order d.
    """
    users = users_of(ran)
    found = dict[str, Logits]()
    for operation in ran:
        seen = (
            _fused(operation)
            if "Attention" in operation.name
            else _before_softmax(operation, users)
        )
        compared = [i for i in operation.inputs if i is not None][:2]
        if seen is None or any(i not in operation.data for i in compared):
            continue
        queries, keys = (_made_by(data, users) for data in compared)
        for maker, is_query in ((keys, False), (queries, True)):
            logits = Logits(seen[0], is_query, maker.inside, queries.factor * keys.factor, seen[1])
            found |= dict.fromkeys(maker.matrices, logits)
            found |= {
                name: logits._replace(is_query=False, inside=inside)
                for name, inside in maker.gains.items()
            }
    return found


class _Maker(NamedTuple):
    """What makes queries or keys.

    Attributes:
        matrices: the names of their matrix and bias.
        factor: the constants after it, with the size that a norm gives.
        inside: the constants that are a factor of the matrix, which those behind a norm are not.
            One of fused queries, keys and values has those alone that all three have.
        gains: the gains behind a norm, and all that the model multiplies since the norm, which is
            their factor.
    """

    matrices: list[str]
    factor: float
    inside: float
    gains: Mapping[str, float]


def _made_by(operation: Operation, users: Users) -> _Maker:
    """What makes queries or keys, before heads, rotations and norms of them."""
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
            since_norm += [
                cast(str, p.tensor) for weight in operation.gains for p in parameters_of(weight)
            ]
        if len(operation.operands) == 1:
            scale = operation.scale(before) or 1.0
            factor *= scale
            inside *= scale
        if len(users[before]) > 1:
            inside = 1.0
        operation = before
    matrices = [cast(str, p.tensor) for weight in operation.gains for p in parameters_of(weight)]
    return _Maker(matrices, factor, inside, gains)


def _fused(attention: Operation) -> tuple[int, float] | None:
    """The size of heads and the constant of a fused attention."""
    query = getattr(attention.node, "_saved_query", None)
    scale = getattr(attention.node, "_saved_scale", None)
    if query is None:
        return None
    size = int(query.shape[-1])
    return size, size**-0.5 if scale is None else float(scale)


def _before_softmax(
    product: Operation, users: Mapping[Operation, Sequence[Operation]]
) -> tuple[int, float] | None:
    """The same of a product of data that a softmax follows; None where something else does."""
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


_QUERIES = {"Bmm": "_saved_self", "Baddbmm": "_saved_batch1"}
