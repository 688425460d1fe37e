"""Residual streams in the operations of a forward pass, and which parameters write them.

A sum ``x + f(x)`` is residual where one summand, the branch, is computed from the other, or from where the other's
stream starts: wherever the skip stands, in a block, in its parent or in a loop. A stream is what such sums and
rearrangements pass on unchanged; a norm, a matrix or a factor on it ends it and starts another.

The writers of a branch are the last parameters that its end is linear in, such that the branch scales with them: a
matrix that nothing follows but gains, sums and factors, or the gain of a norm that stands behind the matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nfd.scaling.graph import Operation, parameters_of

_SUMS = ("Add", "Sub")
_ENTRYWISE = ("Mul", "Div")
_CLIPS = ("Relu", "Threshold")  # they pass their own output on unchanged, so that an empty branch changes nothing

Parameters = frozenset[Operation]


@dataclass(frozen=True)
class Branch:
    """What a residual sum adds to its stream.

    Attributes:
        start: where the stream starts, the same operation for all branches of a stream.
        end: what is added.
        inside: operations between the stream and the end, parameters included.
        reading: those of them that are computed from the stream.
    """

    start: Operation
    end: Operation
    inside: frozenset[Operation]
    reading: frozenset[Operation]

    @property
    def parameters(self) -> Parameters:
        """Everything that the branch alone is computed from, beside the stream."""
        return frozenset(o for o in self.inside if o.parameter is not None)


def branches_of(operations: Sequence[Operation]) -> list[Branch]:
    """The branches of all residual sums, in order, without those inside of other branches.

    Args:
        operations: inputs first.
    """
    starts: dict[Operation, Operation] = {}
    branches: dict[Operation, Branch] = {}
    for operation in operations:
        starts[operation] = operation
        data = operation.data
        if operation.name in _SUMS and len(data) == 2:
            for skip, end in (data, data[::-1]):
                branch = _branch(starts, starts[skip], end)
                if branch is not None and _holds_its_streams(branch, branches):
                    branches[operation] = branch
                    starts[operation] = branch.start
                    break
        elif len(data) == 1 and (operation.is_linear or operation.name in _CLIPS):
            starts[operation] = starts[data[0]]
    nested = {o for branch in branches.values() for o in branch.reading if o in branches}
    return [branch for sum_, branch in branches.items() if sum_ not in nested]


def _branch(starts: Mapping[Operation, Operation], start: Operation, end: Operation) -> Branch | None:
    """What lies between a stream and ``end``; None where that is not computed from the stream by parameters."""
    inside: set[Operation] = set()
    stack = [end]
    while stack:
        operation = stack.pop()
        is_earlier = operation.time < start.time and not operation.of_parameters
        if operation not in inside and not is_earlier and starts[operation] is not start:
            inside.add(operation)
            stack.extend(operation.operands)
    reading: set[Operation] = set()
    for operation in sorted(inside, key=lambda o: o.order):
        if any(i in reading or starts[i] is start for i in operation.operands):
            reading.add(operation)
    if end not in reading or not any(o.parameter is not None for o in inside):
        return None
    return Branch(start, end, frozenset(inside), frozenset(reading))


def _holds_its_streams(branch: Branch, branches: Mapping[Operation, Branch]) -> bool:
    """Whether the streams inside of a branch start there; else one goes past it, and the sum is no step of a stream."""
    return all(branches[o].start in branch.reading for o in branch.reading if o in branches)


def writers_of(branch: Branch) -> Parameters | Operation:
    """The parameters that write the stream at the end of a branch, or the operation because of which none do."""
    linear = _linear_in(branch)
    written: dict[Operation, Parameters | Operation] = {}
    for operation in sorted(linear, key=lambda o: o.order):
        written[operation] = _written_by(operation, written)
    return written.get(branch.end, branch.end)


def _linear_in(branch: Branch) -> set[Operation]:
    """The operations in which the end is linear, by all ways from one to the other."""
    uses = Counter(i for operation in branch.inside for i in operation.operands)
    linear_uses: Counter[Operation] = Counter()
    linear: set[Operation] = set()
    for operation in sorted(branch.inside, key=lambda o: -o.order):
        if linear_uses[operation] == uses[operation]:
            linear.add(operation)
            linear_uses.update(_passed_on(operation))
    return linear


def _passed_on(operation: Operation) -> tuple[Operation, ...]:
    """The data that an operation is linear in, each for itself; none where it applies weights, which end a branch."""
    if _applies_weights(operation) or not (_is_bilinear(operation) or operation.is_linear):
        return ()
    numerator = tuple(i for i in operation.inputs[:1] if i in operation.data)
    return numerator if operation.name == "Div" else operation.data


def _applies_weights(operation: Operation) -> bool:
    """Whether it multiplies data by weights; a bias alone scales nothing, as behind a matrix that is normalised."""
    acts = operation.is_product or operation.is_norm
    return acts and bool(operation.data) and _has_gain(operation)


def _has_gain(operation: Operation) -> bool:
    return any(weight in operation.factors for weight in operation.weights)


def _is_bilinear(operation: Operation) -> bool:
    return operation.is_product or operation.name in _ENTRYWISE


def _written_by(operation: Operation, written: Mapping[Operation, Parameters | Operation]) -> Parameters | Operation:
    """The writers of an operation's result, from those of its operands."""
    weights = operation.weights
    own = frozenset(o for weight in weights for o in parameters_of(weight))
    can_scale = all(map(is_scaled_parameter, weights))
    if _applies_weights(operation):
        return own if can_scale else operation
    parts = [written.get(i, i) for i in _passed_on(operation)]
    scaled = [part for part in parts if not isinstance(part, Operation)]
    if _is_bilinear(operation):
        if len(scaled) == 1:  # a factor, or LayerScale, of what is scaled
            return scaled[0]
        is_gain = operation.name != "Div" and _has_gain(operation) and can_scale  # behind a norm
        return own if not scaled and is_gain else operation
    if not operation.is_linear or len(scaled) < len(parts) or not (parts or weights):
        return next((part for part in parts if isinstance(part, Operation)), operation)
    return own.union(*scaled)


def is_scaled_parameter(operation: Operation) -> bool:
    """Whether a constant factor of one parameter is the same factor of this."""
    while operation.parameter is None:
        is_factor = operation.name in _ENTRYWISE and len(operation.operands) == 1
        if not (is_factor or (operation.is_linear and len(operation.inputs) == 1)):
            return False
        operation = operation.operands[0]
    return True
