"""What one forward pass shows, as autograd keeps it: residual streams and what writes them, fans, constant factors, and
how attention scales its logits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.graph import Node

_PRODUCT = re.compile(r"(Add|Badd)?(mm|bmm|mv)|.*grouped_?mm.*|.*convolution.*", re.IGNORECASE)
_NORM = re.compile(r"(?!.*(Vector|Matrix|Weight)Norm).+Norm.*")  # of data: the size of a vector normalises nothing
_LOOKUPS = ("Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather")
_LINEAR = ("IndexAdd", "ScatterAdd")  # though autograd keeps what they add
_ENTRYWISE = ("Mul", "Div")
_CLIPS = ("Relu", "Threshold")  # they pass their own output on unchanged, so that an empty branch changes nothing


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One operation, or a tensor that nothing computed.

    Attributes:
        name: as autograd calls it: ``"Add"``, ``"Addmm"``, ``"NativeLayerNorm"``.
        inputs: what computed its operands, None where an operand is a constant.
        tensor: the name of the parameter that this is.
        is_product, is_norm, is_lookup: whether it multiplies matrices or convolves, normalises, takes rows of a table.
        is_linear: whether it is linear in all operands together, so that autograd keeps no values to differentiate it.
        of_parameters: whether parameters alone, and no data, decide its result.
        order: when it ran, beside others; tensors that nothing computed stand before all operations.
    """

    name: str
    inputs: tuple[Operation | None, ...]
    tensor: str | None
    is_product: bool
    is_norm: bool
    is_lookup: bool
    is_linear: bool
    of_parameters: bool
    order: int
    node: Any = field(repr=False)

    @property
    def operands(self) -> tuple[Operation, ...]:
        """The inputs that are no constants."""
        return tuple(i for i in self.inputs if i is not None)

    @property
    def data(self) -> tuple[Operation, ...]:
        """The operands that data decide."""
        return tuple(i for i in self.operands if not i.of_parameters)

    @property
    def weights(self) -> tuple[Operation, ...]:
        """The operands that are parameters, or computed from parameters alone; of a table, its rows."""
        return tuple(i for i in self.operands if i.of_parameters or (i.is_lookup and not i.data))

    @property
    def gains(self) -> tuple[Operation, ...]:
        """Its weights but the bias, which is the first operand of a product with a sum, the third of others."""
        bias = 0 if self.name.startswith(("Add", "Badd")) else 2
        return tuple(weight for weight in self.weights if weight in self.inputs[:bias] + self.inputs[bias + 1 :])

    @property
    def applies_weights(self) -> bool:
        """Whether it multiplies data by weights, alone or where it normalises; a bias alone, behind a matrix that is
        computed as data are, scales nothing."""
        return (self.is_product or self.is_norm) and bool(self.data) and bool(self.gains)


def operations(outputs: Iterable[Tensor], names: Mapping[int, str]) -> list[Operation]:
    """All that computed these outputs, as it ran.

    Args:
        outputs: tensors that autograd followed.
        names: of the parameters, by id; other leaves are data.
    """
    nodes, stack = dict[Node, None](), [output.grad_fn for output in outputs]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes[node] = None
            stack.extend(source for source, _ in node.next_functions)
    made: dict[Node, Operation] = {}
    # Autograd numbers operations as they run, so that inputs come first; parameters have the largest number of all.
    for node in sorted(nodes, key=lambda n: n._sequence_nr() if n.next_functions else -1):
        name = re.sub(r"Backward\w*$", "", node.name().rpartition("::")[2])
        inputs = tuple(None if source is None else made[source] for source, _ in node.next_functions)
        kinds = bool(_PRODUCT.fullmatch(name)), bool(_NORM.fullmatch(name)), name in _LOOKUPS
        leaf = getattr(node, "variable", None) if name == "AccumulateGrad" else None
        tensor = names.get(id(leaf))
        operands = [i for i in inputs if i is not None]
        of_parameters = all(i.of_parameters for i in operands) and not any(kinds) if operands else tensor is not None
        linear = leaf is None and (name in _LINEAR or not _keeps_values(node))
        made[node] = Operation(name, inputs, tensor, *kinds, linear, of_parameters, len(made), node)
    return list(made.values())


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


def parameters_of(operation: Operation) -> set[Operation]:
    """The parameters that an operation is computed from, as operations."""
    seen, stack = set[Operation](), [operation]
    while stack:
        if (current := stack.pop()) not in seen:
            seen.add(current)
            stack.extend(current.operands)
    return {o for o in seen if o.tensor is not None}


def scaled_parameter(operation: Operation) -> Operation | None:
    """The one parameter that an operand is, but for rearrangements and constant factors; else None."""
    while operation.tensor is None:
        is_factor = operation.name in _ENTRYWISE and len(operation.operands) == 1
        if not (is_factor or (operation.is_linear and len(operation.inputs) == 1)):
            return None
        operation = operation.operands[0]
    return operation


# ---- Residual streams.
#
# A sum ``x + f(x)`` is residual where one summand, the branch, is computed from the other, or from where the other's
# stream starts: wherever the skip stands, in a block, in its parent or in a loop. A stream is what such sums and
# rearrangements pass on unchanged; a norm, a matrix or a factor on it ends it and starts another.


@dataclass(frozen=True)
class Branch:
    """What a residual sum adds to its stream: ``end``, computed by ``inside`` from ``start``, the operation at which
    the stream starts; ``reading`` are those inside that are computed from the stream, and so no keys or values of
    another. ``inside`` is in order and has the parameters."""

    start: Operation
    end: Operation
    inside: tuple[Operation, ...]
    reading: frozenset[Operation]


def branches_of(operations: Sequence[Operation]) -> list[Branch]:
    """The branches of all residual sums, in order, without those inside of other branches."""
    starts: dict[Operation, Operation] = {}
    branches: dict[Operation, Branch] = {}
    for operation in operations:
        starts[operation] = operation
        data = operation.data
        if operation.name in ("Add", "Sub") and len(data) == 2:
            for skip, end in (data, data[::-1]):
                branch = _branch(starts, starts[skip], end)
                # a stream inside of a branch starts there; else it goes past it, and the sum is no step of a stream
                if branch and all(branches[o].start in branch.reading for o in branch.reading if o in branches):
                    branches[operation] = branch
                    starts[operation] = branch.start
                    break
        elif len(data) == 1 and (_constant(operation) == 1 or operation.name in _CLIPS):
            starts[operation] = starts[data[0]]
    nested = {o for branch in branches.values() for o in branch.reading if o in branches}
    return [branch for sum_, branch in branches.items() if sum_ not in nested]


def _branch(starts: Mapping[Operation, Operation], start: Operation, end: Operation) -> Branch | None:
    """What lies between a stream and ``end``; None where that is not computed from the stream by parameters."""
    found, stack = set[Operation](), [end]
    while stack:
        operation = stack.pop()
        is_earlier = operation.order < start.order and not operation.of_parameters
        if operation not in found and not is_earlier and starts[operation] is not start:
            found.add(operation)
            stack.extend(operation.operands)
    inside, reading = sorted(found, key=lambda o: o.order), set[Operation]()
    for operation in inside:
        if any(i in reading or starts[i] is start for i in operation.operands):
            reading.add(operation)
    # without parameters it is a sum of rearranged data, such as a pair of shifted streams
    is_branch = end in reading and any(o.tensor is not None for o in inside)
    return Branch(start, end, tuple(inside), frozenset(reading)) if is_branch else None


# ---- What writes a stream: the last parameters that the end of a branch is linear in, such that the branch scales with
# them: a matrix that nothing follows but gains, sums and factors, or the gain of a norm that stands behind the matrix.

_NOTHING: frozenset[Operation] = frozenset()


def writers_of(branch: Branch) -> frozenset[Operation]:
    """The parameters that write the stream at the end of a branch; none where the branch does not scale with any."""
    uses = Counter(i for operation in branch.inside for i in operation.operands)
    return _writers(branch.end, branch.inside, uses)


def norm_before(name: str, ran: Sequence[Operation], outputs: Collection[Any]) -> frozenset[str]:
    """Gain and bias of the norm that feeds the one product with a parameter and nothing else, such as ``outputs``.

    With logits ``W (g z + b)`` of a normalised stream z, the factor 1/m of a head that is tied to the embedding, and so
    cannot begin smaller, is that of ``W (g/m z + b/m)``: nothing needs to be wrapped. A gain that is stored as
    ``1 + g`` cannot take it.
    """
    products = [o for o in ran if o.is_product and any(p.tensor == name for w in o.weights for p in parameters_of(w))]
    if len(products) != 1 or len(products[0].data) != 1:
        return frozenset()
    uses = Counter(operand for operation in ran for operand in operation.operands)
    uses.update(o for o in ran if o.node in outputs)
    (end,) = products[0].data
    uses[end] -= 1  # by the product; whatever else reads what the norm makes would see its factor
    writers = _writers(end, ran, uses)
    is_shared = any(uses[writer] > 1 for writer in writers)
    return frozenset(cast(str, writer.tensor) for writer in writers if not is_shared)


def _writers(end: Operation, operations: Sequence[Operation], uses: Counter[Operation]) -> frozenset[Operation]:
    """The parameters that scale ``end``, in which it is linear by all ways from one to the other."""
    linear_uses: Counter[Operation] = Counter()
    reached = []
    for operation in operations[::-1]:
        if linear_uses[operation] == uses[operation] and (linear_uses[operation] or operation is end):
            reached.append(operation)
            linear_uses.update(_passed_on(operation))
    written: dict[Operation, frozenset[Operation]] = {}
    for operation in reached[::-1]:
        written[operation] = _written_by(operation, [written.get(i, _NOTHING) for i in _passed_on(operation)])
    return written.get(end, _NOTHING)


def _passed_on(operation: Operation) -> tuple[Operation, ...]:
    """The data that an operation is linear in, each for itself; none where it applies weights, which end a branch."""
    is_bilinear = operation.is_product or operation.name in _ENTRYWISE
    if operation.applies_weights or not (is_bilinear or operation.is_linear):
        return ()
    return operation.data if operation.name != "Div" else tuple(i for i in operation.inputs[:1] if i in operation.data)


def _written_by(operation: Operation, parts: Sequence[frozenset[Operation]]) -> frozenset[Operation]:
    """The writers of an operation's result, from those of the data that it passes on."""
    can_scale = all(scaled_parameter(weight) for weight in operation.weights)  # a gain of 1 + g does not with g
    own = frozenset(o for weight in operation.weights for o in parameters_of(weight)) if can_scale else _NOTHING
    scaled = [part for part in parts if part]
    if operation.applies_weights:
        return own
    if operation.is_product or operation.name in _ENTRYWISE:
        if scaled and (len(scaled) == 1 or not frozenset.intersection(*scaled)):
            return scaled[-1]  # which a factor, LayerScale or a gate multiplies; one of several is enough
        is_gain = operation.name != "Div" and bool(operation.gains)  # behind a norm
        return own if not scaled and is_gain else _NOTHING
    is_sum = operation.is_linear and can_scale and len(scaled) == len(parts)
    return own.union(*scaled) if is_sum else _NOTHING


# ---- Over which dimensions of a parameter a product sums.

_FACTORS = {  # the operands that autograd keeps of a product of matrices, in their order; None for what is added
    "Mm": ("self", "mat2"),
    "Bmm": ("self", "mat2"),
    "GroupedMm": ("self", "mat2"),
    "Addmm": (None, "mat1", "mat2"),
    "Baddbmm": (None, "batch1", "batch2"),
}

Fans = tuple[tuple[int, ...], tuple[int, ...]]  # dimensions that count the inputs and the outputs of a parameter


def fans_of(operations: Sequence[Operation]) -> dict[str, Fans]:
    """Of every parameter that products of matrices sum over, or that acts entry by entry alone."""
    summed: dict[str, Fans | None] = {}
    entrywise: dict[str, Fans] = {}
    for operation in operations:
        for weight in () if operation.of_parameters else operation.weights:
            for leaf in parameters_of(weight):
                name, p = cast(str, leaf.tensor), leaf.node.variable
                if operation.is_product:
                    summed[name] = _summed_over(p, operation, operation.inputs.index(weight))
                elif not weight.is_lookup:
                    entrywise[name] = (), tuple(range(p.dim()))
    return {name: fans for name, fans in (entrywise | summed).items() if fans is not None}


def _summed_over(p: Tensor, product: Operation, place: int) -> Fans | None:
    """Of a factor of a product, the strides of the parameter's dimensions in it tell."""
    names = _FACTORS.get(product.name, ())
    name = names[place] if place < len(names) else None
    factor = None if name is None else getattr(product.node, f"_saved_{name}")
    if factor is None:
        return None

    strides = _strides_in(factor, p.detach())

    def through(side: int) -> tuple[int, ...]:
        step, end = factor.stride(side), factor.stride(side) * factor.shape[side]
        return tuple(k for k in range(p.dim()) if p.shape[k] > 1 and step <= strides[k] < end)

    is_last = place == len(names) - 2
    ins, outs = (through(-1), through(-2)) if is_last else (through(-2), through(-1))
    if ins and not outs:  # every row is applied by itself, as the readout of a state space is to each channel
        outs = tuple(k for k in range(p.dim()) if k not in ins)
    return (ins, outs) if ins and outs and not set(ins) & set(outs) else None


def _strides_in(factor: Tensor, p: Tensor) -> Sequence[int]:
    """The strides of a parameter's dimensions in a view of it, or in a copy, such as einsum makes of a stack: there its
    numbers tell the order of dimensions in memory."""
    extent = 1 + sum((size - 1) * step for size, step in zip(factor.shape, factor.stride(), strict=True))
    is_whole = factor.numel() == p.numel() == extent and not factor.is_complex()
    if not is_whole or factor.untyped_storage().data_ptr() == p.untyped_storage().data_ptr():
        return p.stride()
    numbers = factor.as_strided((factor.numel(),), (1,)).to(p.dtype)
    for order in permutations(range(p.dim())):
        moved = p.permute(order).contiguous()
        if torch.allclose(moved.flatten(), numbers, rtol=1e-2):  # under autocast they are rounded
            return [moved.stride(order.index(k)) for k in range(p.dim())]
    return p.stride()


# ---- Constant factors: what one forward pass multiplies tensors by.


class Factors(NamedTuple):
    """The constant factors of a tensor in one forward pass: where its rows are looked up, and where it is applied.

    A set holds several where uses differ.
    """

    looked_up: frozenset[float] = frozenset()
    applied: frozenset[float] = frozenset()


class Own(NamedTuple):
    """The factors of a tensor over those of the same tensor in the base."""

    looked_up: float = 1.0
    applied: float = 1.0


def factors_of(ran: Sequence[Operation], ends: Collection[Any], scaled: Collection[Any]) -> dict[str, Factors]:
    """The factors of every parameter.

    A constant is a parameter's if it stands behind the operation that applies it, before anything else acts. One that
    stands right before a product with weights is that of those weights. Of what attention multiplies, see ``Logits``.

    Args:
        ran: operations in order.
        ends: of branches and of the pass, as autograd keeps them: no constant behind them counts.
        scaled: operations that apply the factor of an ``nfd.Scaled``, which is the plan's and not the model's.
    """
    users: dict[Operation, list[Operation]] = {o: [] for o in ran}
    for operation in ran:
        for operand in operation.operands:
            users[operand].append(operation)
    constants = {o: 1.0 if o.node in scaled else _constant(o) for o in ran}
    found = {}
    for parameter in (o for o in ran if o.tensor is not None):
        kinds: dict[bool, set[float]] = {True: set(), False: set()}
        stack = [(1.0, parameter)]
        while stack:
            factor, operation = stack.pop()
            for user in users[operation]:
                constant = constants[user]
                if not user.of_parameters:  # it applies what was made of the parameter to data
                    before = _before(user, operation, constants) * _behind(user, users, constants, ends)
                    kinds[user.is_lookup].add(factor * before)
                elif constant is not None:
                    stack.append((factor * constant, user))
        found[cast(str, parameter.tensor)] = Factors(frozenset(kinds[True]), frozenset(kinds[False]))
    return found


def _before(product: Operation, weight: Operation, constants: Mapping[Operation, float | None]) -> float:
    """What the data of a product of matrices were multiplied by last."""
    factor = 1.0
    if product.is_product and product.data and weight in product.gains:
        (operation, *_) = product.data
        while len(operation.operands) == 1 and (constant := constants[operation]) is not None:
            factor, operation = factor * constant, operation.operands[0]
    return factor


def _behind(
    operation: Operation,
    users: Mapping[Operation, Sequence[Operation]],
    constants: Mapping[Operation, float | None],
    ends: Collection[Any],
) -> float:
    """What the result of an operation is multiplied by, before anything else acts."""
    settled, pending = 1.0, 1.0  # pending: what stands there alone, which a product that follows would have
    while operation.node not in ends and len(users[operation]) == 1:
        (operation,) = users[operation]
        constant = constants[operation]
        if operation.is_product or "Attention" in operation.name:
            return settled if operation.weights else settled * pending
        if constant is None:
            break
        if len(operation.operands) > 1:
            settled, pending = settled * pending, 1.0
        else:
            pending *= constant
    return settled * pending


def _constant(operation: Operation) -> float | None:
    """The size of the number that an operation multiplies by, 1 for a linear one; None where it does something else."""
    divides, comes_first = operation.name == "Div", operation.inputs[:1] == (None,)
    if operation.name not in _ENTRYWISE or len(operation.operands) != 1 or (divides and comes_first):
        return 1.0 if operation.is_linear else None
    try:
        number = getattr(operation.node, "_saved_self" if comes_first else "_saved_other")
    except RuntimeError:  # changed in place since
        return None
    if not isinstance(number, Tensor):
        return 1.0 if operation.is_linear else None
    entries = number.detach().double().abs().flatten()
    entries = entries[entries > 0]  # the others mask
    if not len(entries) or not bool((entries == entries[0]).all()):
        return None
    return 1 / float(entries[0]) if divides else float(entries[0])


# ---- Attention: what its logits are multiplied by, over the sizes of heads.


class Logits(NamedTuple):
    """Attention logits ``c q k`` as the matrix of their queries, or of their keys, shows them.

    Attributes:
        size: d, of a head. is_query: whether the matrix makes queries.
        inside: the constant between the matrix and the product. Where heads keep their size it is a factor of the
            matrix, else a part of c. both: that of queries times that of keys.
        outside: the constant of the product.
    """

    size: int
    is_query: bool
    inside: float
    both: float
    outside: float


def logits_of(ran: Sequence[Operation]) -> dict[str, Logits]:
    """Of every matrix that makes queries or keys.

    Queries and keys whose d entries are of order one fit each other after some training, so that ``q k`` is of order d.
    """
    users: dict[Operation, list[Operation]] = {o: [] for o in ran}
    for operation in ran:
        for operand in operation.operands:
            users[operand].append(operation)
    found = dict[str, Logits]()
    for operation in ran:
        seen = _fused(operation) if "Attention" in operation.name else _before_softmax(operation, users)
        if seen is None or len(operation.data) < 2:
            continue
        queries, keys = (_made_by(data) for data in operation.data[:2])
        for names, inside, is_query in ((*keys, False), (*queries, True)):
            logits = Logits(seen[0], is_query, inside, queries[1] * keys[1], seen[1])
            found |= dict.fromkeys(names, logits)
    return found


def _made_by(operation: Operation) -> tuple[list[str], float]:
    """The matrix that makes queries or keys, before heads, rotations and norms of them; and the constants behind it."""
    factor = 1.0
    while not operation.applies_weights and operation.data:
        if len(operation.operands) == 1 and (constant := _constant(operation)) is not None:
            factor *= constant
        operation = operation.data[0]
    return [cast(str, p.tensor) for weight in operation.gains for p in parameters_of(weight)], factor


def _fused(attention: Operation) -> tuple[int, float] | None:
    """The size of heads and the constant of a fused attention."""
    query, scale = getattr(attention.node, "_saved_query", None), getattr(attention.node, "_saved_scale", None)
    if query is None:
        return None
    size = int(query.shape[-1])
    return size, size**-0.5 if scale is None else float(scale)


def _before_softmax(product: Operation, users: Mapping[Operation, Sequence[Operation]]) -> tuple[int, float] | None:
    """The same of a product of data that a softmax follows; None where something else does."""
    if product.name not in ("Bmm", "Baddbmm") or len(product.data) < 2 or product.weights:
        return None
    size, scale, operation = int(getattr(product.node, _QUERIES[product.name]).shape[-1]), 1.0, product
    while len(users[operation]) == 1:
        (operation,) = users[operation]
        if "Softmax" in operation.name:
            return size, scale
        if (constant := _constant(operation)) is None:
            return None
        scale *= constant
    return None


_QUERIES = {"Bmm": "_saved_self", "Baddbmm": "_saved_batch1"}
