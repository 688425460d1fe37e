"""Residual streams of one forward pass, the branches that are added to them, and what writes
these.
"""

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
# A stream is what such sums, rearrangements and numbers pass on; a norm or a matrix on it ends it
# and starts another. Numbers that multiply it change its level. Where all blocks stand on one level
# they add to one stream, as in ``(2 h + 2 y) / 2``.

_SUMS = ("Add", "Sub", "IndexAdd", "ScatterAdd", "IndexPutSum")


@dataclass(frozen=True)
class Branch:
    """What a residual sum adds to its stream.

    Attributes:
        start: the operation at which the stream starts.
        end: the summand, computed by ``inside`` from the stream.
        inside: all that computes the end, in order, with the parameters.
        reading: those inside that are computed from the stream, and so are no keys or values of
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
    """The branches of all residual sums, by the sum, in order, without those that start inside of
    other branches; and the parameters that multiply a stream between its sums, again and again."""

    branches: dict[Operation, Branch]
    skips: frozenset[str]


class _Place(NamedTuple):
    """Where on a stream an operation stands: the start of the stream, what the stream is multiplied
    by since, the last operation that changed that, and the operations before on the stream."""

    start: Operation
    level: float = 1.0
    scaled: Operation | None = None
    before: tuple[Operation, ...] = ()


Places = dict[Operation, _Place]


def streams_of(operations: Sequence[Operation]) -> Streams:
    """All residual streams of one forward pass."""
    places: Places = {}
    branches: dict[Operation, Branch] = {}
    for operation in operations:
        places[operation] = _Place(operation)
        data = operation.data
        if operation.name in _SUMS and len(data) == 2:
            _sum_up(operation, places, branches)
        elif data and all(places[i].start is places[data[0]].start for i in data[1:]):
            places[operation] = _passed(operation, data, places)
    nested = {o for branch in branches.values() for o in branch.reading if o in branches}
    aside = _sums_aside(branches, places)
    outermost = {sum_: branch for sum_, branch in branches.items() if sum_ not in nested}
    of_model = {sum_: replace(branch, within=aside.get(sum_)) for sum_, branch in outermost.items()}
    return Streams(of_model, _skips(branches, places))


def _passed(operation: Operation, data: tuple[Operation, ...], places: Places) -> _Place:
    """The place of an operation whose data all stand on one stream: on it, or at the start of
    another.
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
    """The size of the parameter that an operation multiplies data by, where all its entries have
    this size; else None, as where all are 0, unless that is allowed."""
    if (
        operation.name != "Mul"
        or operation.norm_size is not None
        or not operation.weights
        or not operation.data
    ):
        return None
    names = FACTORS[0 if operation.inputs[0] in operation.weights else 1]
    if is_zero:
        values = next(
            (
                v
                for v in (saved_value(operation.node, name) for name in names)
                if isinstance(v, Tensor)
            ),
            None,
        )
        if values is not None and not values.is_meta and not values.any():
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
        # A stream inside of a branch starts there; else it goes past it, and the sum is no step of
        # a stream.
        if branch and all(
            branches[o].start in branch.reading for o in branch.reading if o in branches
        ):
            level *= scale
            scaled = scaled if scale == 1 else operation
            share = (share or 1.0) * branch.level / level
            branches[operation] = replace(branch, share=share, level=level, scaled=scaled)
            places[operation] = _Place(start, level, scaled, (skip,))
            return


def _learned_skip(first: Operation, second: Operation, places: Places) -> Operation | None:
    """The one of two summands that is an earlier part of their stream times a learned number, which
    so is a branch.
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
    """Find the place of a sum of two parts of one stream, such as ``torch.lerp(h, h + y, t)``; what
    only one of them has is added with its share."""
    levels = {i: places[i].level * (operation.scale(i) or 0.0) for i in operation.data}
    first, second = operation.data
    level = levels[first]
    if first is not second:
        level += -levels[second] if operation.name == "Sub" else levels[second]
    if level <= 0 or math.isclose(level, 0, abs_tol=1e-6):
        return
    ways = {i: set(_way_back(i, places)) for i in operation.data}
    for part, other in ((first, second), (second, first)):
        for sum_ in ways[part] - ways[other]:
            if sum_ in branches:
                branch = branches[sum_]
                branches[sum_] = replace(branch, share=branch.share * levels[part] / level)
    is_same = math.isclose(level, places[first].level)
    scaled = places[first].scaled if is_same else operation
    places[operation] = _Place(places[first].start, level, scaled, operation.data)


def _way_back(operation: Operation, places: Places) -> Iterator[Operation]:
    """An operation and those before it on its stream."""
    seen = {operation}
    ahead = [operation]
    while ahead:
        current = ahead.pop()
        yield current
        new = [before for before in places[current].before if before not in seen]
        seen.update(new)
        ahead.extend(new)


def _skips(branches: Mapping[Operation, Branch], places: Places) -> frozenset[str]:
    """The parameters that multiply a stream again and again, of which one at least stands between
    two residual sums.
    """
    counts = Counter[str]()
    names = dict[str, set[str]]()
    between = set[str]()
    on_streams = set[Operation]()
    for sum_ in branches:
        if sum_ not in on_streams:
            on_streams.update(_way_back(sum_, places))
    for operation in on_streams:
        # A stream is passed on by numbers that are known, or learned.
        is_known = operation.name != "Mul" or operation.scale(operation.data[0]) is not None
        if is_known or learned_number(operation) is None:
            continue
        follows_sum = any(o in branches for o in _way_back(operation, places))
        for parameter in (p for weight in operation.weights for p in parameters_of(weight)):
            name = cast(str, parameter.tensor)
            kind = numberless(name)
            counts[kind] += 1
            names.setdefault(kind, set()).add(name)
            between |= {kind} if follows_sum else set()
    return frozenset(name for kind in between if counts[kind] > 1 for name in names[kind])


def _sums_aside(branches: Mapping[Operation, Branch], places: Places) -> dict[Operation, Operation]:
    """The residual sums on side ways of a stream, and the sum whose branch reads the side way."""
    aside: dict[Operation, Operation] = {}
    for sum_, branch in branches.items():
        passed = set(_way_back(sum_, places))
        for operation in branch.reading:
            for read in operation.operands:
                if not places[read].before or read in branch.reading or read in passed:
                    continue
                for current in _way_back(read, places):
                    if current in branches and current not in passed:
                        aside.setdefault(current, sum_)
    return aside


def _branch(places: Places, start: Operation, end: Operation) -> Branch | None:
    """What lies between a stream and ``end``, with the level that it reads; None where that is not
    computed from the stream by parameters."""
    found = set[Operation]()
    stack = [end]
    while stack:
        operation = stack.pop()
        is_earlier = operation.order < start.order and not operation.of_parameters
        if operation not in found and not is_earlier and places[operation].start is not start:
            found.add(operation)
            stack.extend(operation.operands)
    inside = sorted(found, key=lambda o: o.order)
    reading = set[Operation]()
    level = 1.0
    for operation in inside:
        read = [i for i in operation.operands if places[i].start is start]
        if read:
            level = places[read[-1]].level
        if read or any(i in reading for i in operation.operands):
            reading.add(operation)
    # Without parameters it is a sum of rearranged data, such as a pair of shifted streams.
    is_branch = end in reading and any(o.tensor is not None for o in inside)
    return Branch(start, end, tuple(inside), frozenset(reading), level=level) if is_branch else None


# ---- What writes a stream: the last parameters that the end of a branch is linear in, such that
# the branch scales with them: a matrix that nothing follows but gains, sums and factors, or the
# gain of a norm that stands behind the matrix.

_NOTHING: frozenset[Operation] = frozenset()


def writers_of(branch: Branch) -> frozenset[Operation]:
    """The parameters that write the stream at the end of a branch; none where the branch does not
    scale with any.
    """
    uses = Counter(i for operation in branch.inside for i in operation.operands)
    return _writers(branch.end, branch.inside, uses)


def norm_before(
    name: str, ran: Sequence[Operation], outputs: Collection[Operation]
) -> frozenset[str]:
    """Gain and bias of the norm that feeds the one product with a parameter and nothing else, such
    as ``outputs``.

    With logits ``W (g z + b)`` of a normalised stream z, the factor 1/m of a head that is tied to
    the embedding, and so cannot begin smaller, is that of ``W (g/m z + b/m)``: nothing needs to be
    wrapped. A gain that is stored as ``1 + g`` cannot take it.
    """
    products = [
        o
        for o in ran
        if o.is_product and any(p.tensor == name for w in o.weights for p in parameters_of(w))
    ]
    if len(products) > 1:
        reading = first_of_both_ways(products).get(name, ())
        products = [product for product in products if product not in reading]
    if len(products) != 1 or len(products[0].data) != 1:
        return frozenset()
    uses = Counter(operand for operation in ran for operand in operation.operands)
    uses.update(outputs)
    (end,) = products[0].data
    uses[end] -= 1  # by the product; whatever else reads what the norm makes would see its factor
    writers = _writers(end, ran, uses)
    is_shared = any(uses[writer] > 1 for writer in writers)
    return frozenset(cast(str, writer.tensor) for writer in writers if not is_shared)


def _writers(
    end: Operation, operations: Sequence[Operation], uses: Counter[Operation]
) -> frozenset[Operation]:
    """The parameters that scale ``end``, in which it is linear by all ways from one to the
    other.
    """
    linear_uses: Counter[Operation] = Counter()
    reached = []
    for operation in operations[::-1]:
        if linear_uses[operation] == uses[operation] and (
            linear_uses[operation] or operation is end
        ):
            reached.append(operation)
            linear_uses.update(_passed_on(operation))
    written: dict[Operation, frozenset[Operation]] = {}
    first = applied_first(operations)
    for operation in reached[::-1]:
        if operation in first:
            (last,) = (
                i
                for k, i in enumerate(operation.inputs)
                if k != first[operation] and i in operation.weights
            )
            leaf = scaled_parameter(last)
            written[operation] = _NOTHING if leaf is None else frozenset({leaf})
            continue
        written[operation] = _written_by(
            operation, [written.get(i, _NOTHING) for i in _passed_on(operation)]
        )
    return written.get(end, _NOTHING)


def _passed_on(operation: Operation) -> tuple[Operation, ...]:
    """The data that an operation is linear in, each for itself; none where it applies weights,
    which end a branch.
    """
    is_bilinear = operation.is_product or operation.name in ENTRYWISE
    if operation.applies_weights or not (is_bilinear or operation.is_linear):
        return ()
    return (
        operation.data
        if operation.name != "Div"
        else tuple(i for i in operation.inputs[:1] if i in operation.data)
    )


def _written_by(
    operation: Operation, parts: Sequence[frozenset[Operation]]
) -> frozenset[Operation]:
    """The writers of an operation's result, from those of the data that it passes on."""
    # a gain of 1 + g does not with g
    can_scale = all(scaled_parameter(weight) for weight in operation.weights)
    own = (
        frozenset(o for weight in operation.weights for o in parameters_of(weight))
        if can_scale
        else _NOTHING
    )
    scaled = [part for part in parts if part]
    if operation.applies_weights:
        return own
    if operation.is_product or operation.name in ENTRYWISE:
        if scaled and (len(scaled) == 1 or not frozenset.intersection(*scaled)):
            # which a factor, LayerScale or a gate multiplies; one of several is enough
            return scaled[-1]
        is_gain = operation.name != "Div" and bool(operation.gains)  # behind a norm
        return own if not scaled and is_gain else _NOTHING
    is_sum = operation.is_linear and can_scale and len(scaled) == len(parts)
    return own.union(*scaled) if is_sum else _NOTHING
