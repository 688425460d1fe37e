"""The operations of one forward pass, as autograd keeps them: residual streams, what writes them, and fans."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.autograd.graph import Node

# ---- The operations of one forward pass, as autograd keeps them, from the parameters to the outputs


_PRODUCT = re.compile(r"(Add|Badd)?(mm|bmm|mv)|.*grouped_?mm.*|.*convolution.*", re.IGNORECASE)
_NORM = re.compile(r"(?!.*(Vector|Matrix|Weight)Norm).+Norm.*")  # of data: the size of a vector normalises nothing
_LOOKUPS = ("Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather")
_LINEAR = ("IndexAdd", "ScatterAdd")  # though autograd keeps what they add


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One operation, or a tensor that nothing computed.

    Attributes:
        name: as autograd calls it: ``"Add"``, ``"Addmm"``, ``"NativeLayerNorm"``.
        inputs: what computed its operands, None where an operand is a constant.
        parameter: the parameter that this is.
        is_linear: whether it is linear in all operands together, so that autograd keeps no values to differentiate it.
        of_parameters: whether parameters alone, and no data, decide its result.
        order: inputs come before what is computed from them.
        time: when it ran, beside others; before all of them for a tensor that nothing computed.
    """

    name: str
    inputs: tuple[Operation | None, ...]
    parameter: Tensor | None
    is_linear: bool
    of_parameters: bool
    order: int
    time: int
    node: Any = field(repr=False)

    @property
    def is_product(self) -> bool:
        """Whether it multiplies matrices, or convolves."""
        return _PRODUCT.fullmatch(self.name) is not None

    @property
    def is_norm(self) -> bool:
        """Whether it normalises."""
        return _NORM.fullmatch(self.name) is not None

    @property
    def is_lookup(self) -> bool:
        """Whether it takes rows of a table."""
        return self.name in _LOOKUPS

    @property
    def operands(self) -> tuple[Operation, ...]:
        """The inputs that are no constants."""
        return tuple(i for i in self.inputs if i is not None)

    @property
    def data(self) -> tuple[Operation, ...]:
        """The operands that data decide."""
        return tuple(i for i in self.operands if not i.of_parameters)

    @property
    def factors(self) -> tuple[Operation, ...]:
        """The operands of a product, a norm or a factor that its result is proportional to: all but the bias."""
        bias = 0 if self.name.startswith(("Add", "Badd")) else 2
        return tuple(i for k, i in enumerate(self.inputs) if i is not None and k != bias)

    @property
    def weights(self) -> tuple[Operation, ...]:
        """The operands that are parameters, or computed from parameters alone; of a table, its rows."""
        return tuple(i for i in self.operands if i.of_parameters or (i.is_lookup and not i.data))


def operations(outputs: Iterable[Tensor], parameters: Iterable[nn.Parameter]) -> list[Operation]:
    """All that computed these outputs, inputs first.

    Args:
        outputs: tensors that autograd followed.
        parameters: which leaves are parameters; others are data.
    """
    own = {id(p) for p in parameters}
    made: dict[Node, Operation] = {}
    for node in _ordered(output.grad_fn for output in outputs):
        inputs = tuple(None if source is None else made[source] for source, _ in node.next_functions)
        made[node] = _operation(node, inputs, own, len(made))
    return list(made.values())


def parameters_of(operation: Operation) -> set[Operation]:
    """The parameters that an operation is computed from, as operations."""
    seen: set[Operation] = set()
    stack = [operation]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack.extend(current.operands)
    return {o for o in seen if o.parameter is not None}


def _operation(node: Node, inputs: tuple[Operation | None, ...], own: set[int], order: int) -> Operation:
    name = re.sub(r"Backward\w*$", "", node.name().rpartition("::")[2])
    if name == "AccumulateGrad":
        tensor: Tensor = node.variable  # type: ignore[attr-defined]
        parameter = tensor if id(tensor) in own else None
        return Operation(name, inputs, parameter, False, parameter is not None, order, -1, node)
    sources = [i for i in inputs if i is not None]
    acts_on_data = any(kind.fullmatch(name) for kind in (_PRODUCT, _NORM)) or name in _LOOKUPS
    of_parameters = bool(sources) and all(i.of_parameters for i in sources) and not acts_on_data
    linear = name in _LINEAR or not _keeps_values(node)
    return Operation(name, inputs, None, linear, of_parameters, order, node._sequence_nr(), node)


def _ordered(roots: Iterable[Node | None]) -> Iterator[Node]:
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in roots if root is not None]
    while stack:
        node, is_ready = stack.pop()
        if is_ready:
            yield node
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((source, False) for source, _ in node.next_functions if source is not None)


def _keeps_values(node: Node) -> bool:
    """Whether autograd kept numbers of the forward pass to differentiate an operation."""
    names = _saved_names(type(node))
    if not names:
        return bool(getattr(node, "saved_tensors", ()))  # a torch.autograd.Function
    try:
        kept = [getattr(node, name) for name in names]
    except RuntimeError:  # values that were changed in place since
        return True
    return any(isinstance(value, Tensor) and value.is_floating_point() for value in kept)


@cache
def _saved_names(kind: type[Node]) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


# ---- Residual streams in the operations of a forward pass, and which parameters write them


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


# ---- Over which dimensions of a parameter a product sums, read from the operations that use it


_FACTORS = {  # the operands that autograd keeps of a product of matrices, in their order; None for what is added
    "Mm": ("self", "mat2"),
    "Bmm": ("self", "mat2"),
    "GroupedMm": ("self", "mat2"),
    "Addmm": (None, "mat1", "mat2"),
    "Baddbmm": (None, "batch1", "batch2"),
}


class Fans(NamedTuple):
    """Dimensions that count the inputs and the outputs of a parameter."""

    ins: tuple[int, ...]
    outs: tuple[int, ...]


def fans_of(operations: Sequence[Operation]) -> dict[int, Fans]:
    """Of every parameter that products of matrices sum over, or that acts entry by entry alone, by id."""
    fans: dict[int, Fans | None] = {}
    entrywise: dict[int, Fans] = {}
    for operation in operations:
        if operation.of_parameters:
            continue
        for place, operand in enumerate(operation.inputs):
            if operand is None or operand not in operation.weights:
                continue
            for leaf in parameters_of(operand):
                p = leaf.parameter
                if p is None:
                    continue
                if operation.is_product:
                    fans[id(p)] = _summed_over(p, operation, place)
                elif not operand.is_lookup:
                    entrywise[id(p)] = Fans((), tuple(range(p.dim())))
    return {key: f for key, f in (entrywise | fans).items() if f is not None}


def _summed_over(p: Tensor, product: Operation, place: int) -> Fans | None:
    """A factor of a product is a view of the parameter, or a copy that lies in memory alike: its strides tell."""
    names = _FACTORS.get(product.name, ())
    name = names[place] if place < len(names) else None
    factor = None if name is None else getattr(product.node, f"_saved_{name}")
    if factor is None:
        return None
    first = place == len(names) - 2
    outs, ins = (factor.dim() - 2, factor.dim() - 1) if first else (factor.dim() - 1, factor.dim() - 2)
    fans = Fans(_dimensions(p, factor, ins), _dimensions(p, factor, outs))
    return fans if fans.ins and fans.outs and not set(fans.ins) & set(fans.outs) else None


def _dimensions(p: Tensor, factor: Tensor, dimension: int) -> tuple[int, ...]:
    """The dimensions of a parameter that one dimension of a factor runs through."""
    step, size = factor.stride(dimension), factor.shape[dimension]
    return tuple(k for k in range(p.dim()) if p.shape[k] > 1 and step <= p.stride(k) < step * size)


# ---- The affine norm that alone feeds a head: a factor of the head's inputs can stand in its gain and its bias


def norms_before(operations: Sequence[Operation], outputs: Collection[Operation]) -> dict[Operation, set[Operation]]:
    """Gains and biases of the norms that feed products alone, by the parameter that the products multiply.

    Left out are parameters of which some product has no such norm, and norms that anything else reads.

    Args:
        operations: inputs first.
        outputs: those of them that the model returns.
    """
    uses = Counter(operand for operation in operations for operand in operation.operands) + Counter(outputs)
    before: dict[Operation, set[Operation]] = {}
    without: set[Operation] = set()
    for product in operations:
        if not product.is_product or len(product.data) != 1:
            continue
        norm = _norm(product.data[0], uses)
        for parameter in map(_parameter, product.weights):
            if parameter is None or norm is None:
                without.update({parameter} if parameter else set())
            else:
                before.setdefault(parameter, set()).update(norm)
    return {parameter: norm for parameter, norm in before.items() if parameter not in without}


def _norm(operation: Operation, uses: Counter[Operation]) -> set[Operation] | None:
    """The gain, and the bias if there is one, that act last on what reaches a product; None where there is no gain."""
    own: set[Operation] = set()
    while uses[operation] == 1 and len(operation.data) == 1:
        weights = [_parameter(weight) for weight in operation.weights]
        acting = {weight for weight in weights if weight is not None and uses[weight] == 1}
        if weights and len(acting) < len(weights):
            return None
        own |= acting
        if weights and (operation.is_norm or operation.name == "Mul"):
            return own
        if not (operation.is_linear and (not weights or operation.name == "Add")):
            return None
        operation = operation.data[0]
    return None


def _parameter(operation: Operation) -> Operation | None:
    """The one parameter that an operand is, rearranged or converted at most."""
    if not is_scaled_parameter(operation):
        return None
    while operation.parameter is None:
        operation = operation.operands[0]
    return operation
