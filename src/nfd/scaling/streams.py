"""Residual streams of one forward pass, the branches added to them, and what writes these."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

from torch import Tensor

from nfd.scaling.fans import applied_first, first_of_both_ways
from nfd.scaling.graph import (
    CLIPS,
    ENTRYWISE,
    FACTORS,
    Operation,
    parameters_of,
    saved_size,
    saved_value,
    scaled_parameter,
)
from nfd.scaling.model import numberless

# ---- Residual streams.
#
# A sum ``x + f(x)`` is residual where one summand, the branch, is computed from the other, or from
# where the other's stream starts: wherever the skip stands, in a block, in its parent or in a loop.
# A stream is what such sums, rearrangements and numbers pass on; a norm or a matrix on it ends it,
# and another starts after it. Numbers that multiply it change its level. Where all blocks stand on
# one level they add to one stream, as in ``(2 h + 2 y) / 2``.

_SUMS = ("Add", "Sub", "IndexAdd", "ScatterAdd", "IndexPutSum")


@dataclass(frozen=True)
class Branch:
    """What a residual sum adds to its stream.

    Attributes:
        start: the operation at which the stream starts.
        end: the summand, computed by ``inside`` from the stream.
        inside: all that computes the end, in order, with the parameters.
        reading: those inside that are computed from the stream, and so are not keys or values of
            another.
        share: what the sum itself multiplies the end by, as ``torch.add(x, y, alpha=share)`` does,
            over what the stream is multiplied by between where the branch reads it and the sum.
        within: another sum, whose branch reads the side way of the stream on which this sum stands,
            as y in ``y = x + f(x)``, ``x + W y``.
        level: what the stream is multiplied by from its start to the sum.
        scaled: the operation that last changed the level.
    """

    start: Operation
    end: Operation
    inside: tuple[Operation, ...]
    reading: frozenset[Operation]
    share: float = 1.0
    within: Operation | None = None
    level: float = 1.0
    scaled: Operation | None = None


class Streams(NamedTuple):
    """The residual streams of a forward pass.

    Attributes:
        branches: by the residual sum that adds them, in order, without those that start inside of
            other branches.
        skips: the parameters that multiply a stream between its sums, again and again.
    """

    branches: dict[Operation, Branch]
    skips: frozenset[str]


class _Place(NamedTuple):
    """Where on a stream an operation stands.

    Attributes:
        start: the operation at which the stream starts.
        level: what the stream is multiplied by since its start.
        scaled: the operation that last changed the level.
        before: the operations before it on the stream.
    """

    start: Operation
    level: float = 1.0
    scaled: Operation | None = None
    before: tuple[Operation, ...] = ()


Places = dict[Operation, _Place]


def streams_of(operations: Sequence[Operation]) -> Streams:
    """Find all residual streams of one forward pass."""
    places: Places = {}
    branches: dict[Operation, Branch] = {}
    for operation in operations:
        places[operation] = _Place(operation)
        data = operation.data
        if operation.name in _SUMS and len(data) == 2:
            _sum_up(operation, places, branches)
        elif data and all(places[i].start is places[data[0]].start for i in data[1:]):
            places[operation] = _passed(operation, data, places)
    nested = set[Operation]()
    for branch in branches.values():
        nested.update(operation for operation in branch.reading if operation in branches)
    enclosing = _enclosing_sums(branches, places)
    outermost = {
        residual_sum: replace(branch, within=enclosing.get(residual_sum))
        for residual_sum, branch in branches.items()
        if residual_sum not in nested
    }
    return Streams(outermost, _skips(branches, places))


def _passed(operation: Operation, data: tuple[Operation, ...], places: Places) -> _Place:
    """Find the place of an operation whose data all stand on one stream.

    It stands on this stream, or at the start of another.
    """
    start, level, scaled, _ = places[data[0]]
    scale = 1.0 if operation.name in CLIPS else operation.scale(data[0])
    if scale is None and len(data) == 1:
        scale = learned_number(operation)
    for other in data[1:]:
        if operation.scale(other) != scale or not math.isclose(places[other].level, level):
            return _Place(operation)
    if not scale:
        return _Place(operation)
    return _Place(start, level * scale, scaled if scale == 1 else operation, data)


def learned_number(operation: Operation, *, is_zero: bool = False) -> float | None:
    """Read the size of the parameter by which an operation multiplies data.

    None where its entries differ in size, where all are 0 unless ``is_zero``, and where the
    operation does anything else.
    """
    if operation.name != "Mul" or operation.norm_size is not None:
        return None
    if not operation.weights or not operation.data:
        return None
    names = FACTORS[0 if operation.inputs[0] in operation.weights else 1]
    if is_zero:
        saved = [saved_value(operation.node, name) for name in names]
        tensors = [value for value in saved if isinstance(value, Tensor)]
        if tensors and not tensors[0].is_meta and not tensors[0].any():
            return 0.0
    return saved_size(operation.node, *names)


def _sum_up(operation: Operation, places: Places, branches: dict[Operation, Branch]) -> None:
    """Find the place of a sum, and the branch that it adds where it is a residual one."""
    first, second = operation.data
    if places[first].start is places[second].start:
        added = _learned_skip(first, second, places)
        if added is None:
            _join(operation, places, branches)
            return
        places[added] = _Place(added)
    for skip, end in ((first, second), (second, first)):
        scale = operation.scale(skip)
        share = operation.scale(end)
        if not scale:
            continue
        start, level, scaled, _ = places[skip]
        branch = _branch(places, start, end)
        if branch is not None and _is_closed(branch, branches):
            level *= scale
            scaled = scaled if scale == 1 else operation
            share = (share or 1.0) * branch.level / level
            branches[operation] = replace(branch, share=share, level=level, scaled=scaled)
            places[operation] = _Place(start, level, scaled, (skip,))
            return


def _is_closed(branch: Branch, branches: Mapping[Operation, Branch]) -> bool:
    """Whether every stream inside of a branch starts there.

    Else one of them goes past the sum, which so is not a step of a stream.
    """
    sums = [operation for operation in branch.reading if operation in branches]
    return all(branches[inner_sum].start in branch.reading for inner_sum in sums)


def _learned_skip(first: Operation, second: Operation, places: Places) -> Operation | None:
    """Find the summand that is an earlier part of its stream times a learned number.

    It is a branch; None where neither summand is one.
    """
    for end, other in ((second, first), (first, second)):
        if learned_number(end) is None:
            continue
        (earlier,) = end.data
        current = other.data[0] if learned_number(other) is not None else other
        if earlier in _way_back(current, places):
            return end
    return None


def _join(operation: Operation, places: Places, branches: dict[Operation, Branch]) -> None:
    """Find the place of a sum of two parts of one stream, such as ``torch.lerp(h, h + y, t)``.

    What only one of the parts has is added with the share of this part.
    """
    levels = {i: places[i].level * (operation.scale(i) or 0.0) for i in operation.data}
    first, second = operation.data
    level = levels[first]
    if first is not second:
        level += -levels[second] if operation.name == "Sub" else levels[second]
    if level <= 0 or math.isclose(level, 0, abs_tol=1e-6):
        return
    ways = {i: set(_way_back(i, places)) for i in operation.data}
    for part, other in ((first, second), (second, first)):
        for operation_of_part in ways[part] - ways[other]:
            if operation_of_part in branches:
                branch = branches[operation_of_part]
                share = branch.share * levels[part] / level
                branches[operation_of_part] = replace(branch, share=share)
    is_same = math.isclose(level, places[first].level)
    scaled = places[first].scaled if is_same else operation
    places[operation] = _Place(places[first].start, level, scaled, operation.data)


def _way_back(operation: Operation, places: Places) -> Iterator[Operation]:
    """Yield an operation and those before it on its stream."""
    seen = {operation}
    ahead = [operation]
    while ahead:
        current = ahead.pop()
        yield current
        new = [before for before in places[current].before if before not in seen]
        seen.update(new)
        ahead.extend(new)


def _skips(branches: Mapping[Operation, Branch], places: Places) -> frozenset[str]:
    """Find the parameters that multiply a stream again and again.

    At least one of their operations stands between two residual sums.
    """
    counts = Counter[str]()
    names: dict[str, set[str]] = {}
    between = set[str]()
    on_streams = set[Operation]()
    # The way back from a sum leads through all earlier ones of its stream.
    for residual_sum in reversed([*branches]):
        if residual_sum not in on_streams:
            on_streams.update(_way_back(residual_sum, places))
    for operation in on_streams:
        # A stream is passed on by numbers that are known, or learned.
        is_known = operation.name != "Mul" or operation.scale(operation.data[0]) is not None
        if is_known or learned_number(operation) is None:
            continue
        follows_sum = any(o in branches for o in _way_back(operation, places))
        for parameter in _parameters_of_weights(operation):
            name = cast(str, parameter.tensor)
            kind = numberless(name)
            counts[kind] += 1
            names.setdefault(kind, set()).add(name)
            if follows_sum:
                between.add(kind)
    skips = set[str]()
    for kind in between:
        if counts[kind] > 1:
            skips |= names[kind]
    return frozenset(skips)


def _enclosing_sums(
    branches: Mapping[Operation, Branch], places: Places
) -> dict[Operation, Operation]:
    """Find the residual sums on side ways of a stream, and the sum whose branch reads each way."""
    enclosing: dict[Operation, Operation] = {}
    for residual_sum, branch in branches.items():
        passed = set(_way_back(residual_sum, places))
        for operation in branch.reading:
            for read in operation.operands:
                if not places[read].before or read in branch.reading or read in passed:
                    continue
                for current in _way_back(read, places):
                    if current in branches and current not in passed:
                        enclosing.setdefault(current, residual_sum)
    return enclosing


def _branch(places: Places, start: Operation, end: Operation) -> Branch | None:
    """Find what lies between a stream and ``end``, with the level that it reads.

    None where the end is not computed from the stream by parameters.
    """
    between = set[Operation]()
    stack = [end]
    while stack:
        operation = stack.pop()
        is_earlier = operation.order < start.order and not operation.of_parameters
        if operation not in between and not is_earlier and places[operation].start is not start:
            between.add(operation)
            stack.extend(operation.operands)
    inside = sorted(between, key=lambda operation: operation.order)
    reading = set[Operation]()
    level = 1.0
    for operation in inside:
        read = [i for i in operation.operands if places[i].start is start]
        if read:
            level = places[read[-1]].level
        if read or any(i in reading for i in operation.operands):
            reading.add(operation)
    # Without parameters it is a sum of rearranged data, such as a pair of shifted streams.
    has_parameters = any(operation.tensor is not None for operation in inside)
    if end not in reading or not has_parameters:
        return None
    return Branch(start, end, tuple(inside), frozenset(reading), level=level)


# ---- What writes a stream.
#
# The writers are the last parameters in which the end of a branch is linear, such that the branch
# scales with them: a matrix that only gains, sums and factors follow, or the gain of a norm that
# stands after the matrix.

_NOTHING: frozenset[Operation] = frozenset()


def writers_of(branch: Branch) -> frozenset[Operation]:
    """Find the parameters that write the stream at the end of a branch.

    Empty where the branch does not scale with any.
    """
    uses = Counter(i for operation in branch.inside for i in operation.operands)
    return _writers(branch.end, branch.inside, uses)


def norm_before(
    name: str, ran: Sequence[Operation], outputs: Collection[Operation]
) -> frozenset[str]:
    """Find gain and bias of the norm that feeds the one product with a parameter, and nothing else.

    Nothing else may read it, such as ``outputs``. With logits ``W (g z + b)`` of a normalised
    stream z, a head that is tied to the embedding cannot have the factor 1/m in its initial
    weights. The logits ``W (g/m z + b/m)`` have it: nothing needs to be wrapped. A gain that is
    stored as ``1 + g`` cannot take it.
    """
    products = []
    for operation in ran:
        if not operation.is_product:
            continue
        names = {parameter.tensor for parameter in _parameters_of_weights(operation)}
        if name in names:
            products.append(operation)
    if len(products) > 1:
        reading = first_of_both_ways(products).get(name, ())
        products = [product for product in products if product not in reading]
    if len(products) != 1 or len(products[0].data) != 1:
        return frozenset()
    uses = Counter(operand for operation in ran for operand in operation.operands)
    uses.update(outputs)
    (end,) = products[0].data
    # The product is one use. Whatever else reads what the norm makes would see its factor.
    uses[end] -= 1
    writers = _writers(end, ran, uses)
    is_shared = any(uses[writer] > 1 for writer in writers)
    return frozenset(cast(str, writer.tensor) for writer in writers if not is_shared)


def _parameters_of_weights(operation: Operation) -> set[Operation]:
    """Find the parameters of which the weights of an operation are made."""
    parameters = set[Operation]()
    for weight in operation.weights:
        parameters |= parameters_of(weight)
    return parameters


def _writers(
    end: Operation, operations: Sequence[Operation], uses: Counter[Operation]
) -> frozenset[Operation]:
    """Find the parameters that scale ``end``, linear in them by all ways from one to the other."""
    linear_uses: Counter[Operation] = Counter()
    reached = []
    for operation in operations[::-1]:
        is_linear_by_all_ways = linear_uses[operation] == uses[operation]
        if is_linear_by_all_ways and (linear_uses[operation] or operation is end):
            reached.append(operation)
            linear_uses.update(_passed_on(operation))
    written: dict[Operation, frozenset[Operation]] = {}
    first = applied_first(operations)
    for operation in reached[::-1]:
        if operation in first:
            # A product of parameters only: the factor that acts last writes.
            last = _other_factor(operation, first[operation])
            leaf = scaled_parameter(last)
            written[operation] = _NOTHING if leaf is None else frozenset({leaf})
        else:
            parts = [written.get(data, _NOTHING) for data in _passed_on(operation)]
            written[operation] = _written_by(operation, parts)
    return written.get(end, _NOTHING)


def _other_factor(product: Operation, place: int) -> Operation:
    """Return the factor of a product of parameters that stands at another place."""
    inputs = enumerate(product.inputs)
    (factor,) = [i for k, i in inputs if k != place and i in product.weights]
    return factor


def _passed_on(operation: Operation) -> tuple[Operation, ...]:
    """List the data that an operation is linear in, each by itself.

    Empty where the operation applies weights, which end a branch.
    """
    is_bilinear = operation.is_product or operation.name in ENTRYWISE
    if operation.applies_weights or not (is_bilinear or operation.is_linear):
        return ()
    if operation.name == "Div":
        return tuple(i for i in operation.inputs[:1] if i in operation.data)
    return operation.data


def _written_by(
    operation: Operation, parts: Sequence[frozenset[Operation]]
) -> frozenset[Operation]:
    """Find the writers of an operation's result, from those of the data that it passes on."""
    # A gain of 1 + g does not scale with g.
    can_scale = all(scaled_parameter(weight) for weight in operation.weights)
    parameters = frozenset(_parameters_of_weights(operation)) if can_scale else _NOTHING
    written = [part for part in parts if part]
    if operation.applies_weights:
        return parameters
    if operation.is_product or operation.name in ENTRYWISE:
        if written and (len(written) == 1 or not frozenset.intersection(*written)):
            # A factor, LayerScale or a gate multiplies it; one of several is enough.
            return written[-1]
        is_gain_of_norm = operation.name != "Div" and bool(operation.gains)
        return parameters if not written and is_gain_of_norm else _NOTHING
    is_sum = operation.is_linear and can_scale and len(written) == len(parts)
    return parameters.union(*written) if is_sum else _NOTHING
