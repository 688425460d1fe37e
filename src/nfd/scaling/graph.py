"""What one forward pass shows, as autograd keeps it: residual streams and what writes them, fans, constant factors, and
how attention scales its logits."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.graph import Node

from nfd.scaling.model import numberless

_PRODUCT = re.compile(r"(Add|Badd)?(mm|bmm|mv)|Dot|Cdist|EuclideanDist|.*grouped_?mm.*|.*convolution.*", re.IGNORECASE)
_NORM = re.compile(r"(?!.*(Vector|Matrix|Weight)Norm).+Norm.*")  # of data: the size of a vector normalises nothing
_LOOKUPS = ("Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather")
_LINEAR = ("IndexAdd", "ScatterAdd")  # though autograd keeps what they add
_ENTRYWISE = ("Mul", "Div")
_FACTORS = (("self", "tensor1"), ("other", "tensor2"))  # under which names autograd keeps those of a product of entries
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
        scales: for each input the size of the number that it is multiplied by, and nothing else but rearranged and
            added to; 0 where it has no part in the result; None where the operation does something else.
        acted_on: the places of parameters that weights act on, as on data: of a learned query.
        norm_size: of a norm, also one that is written out, the RMS of its result before gains; else None.
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
    scales: tuple[float | None, ...]
    acted_on: frozenset[int] = frozenset()
    norm_size: float | None = None

    @property
    def operands(self) -> tuple[Operation, ...]:
        """The inputs that are no constants."""
        return tuple(i for i in self.inputs if i is not None)

    @property
    def data(self) -> tuple[Operation, ...]:
        """The operands that data decide, or that weights act on as on data."""
        return tuple(
            i for k, i in enumerate(self.inputs) if i is not None and (not i.of_parameters or k in self.acted_on)
        )

    @property
    def weights(self) -> tuple[Operation, ...]:
        """The operands that are parameters, or computed from parameters alone; of a table, its rows."""
        return tuple(i for k, i in enumerate(self.inputs) if i is not None and i.is_made and k not in self.acted_on)

    @property
    def is_made(self) -> bool:
        """Whether it is a parameter, or made of parameters alone; of a table, its rows."""
        return self.of_parameters or (self.is_lookup and not self.data)

    def scale(self, operand: Operation) -> float | None:
        """What an operand is multiplied by, as in ``scales``; the sum where it stands in several places."""
        scales = [scale for i, scale in zip(self.inputs, self.scales, strict=True) if i is operand]
        return None if None in scales else sum(cast(list[float], scales))

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


def operations(outputs: Iterable[Tensor], names: Mapping[int, str], matrices: Collection[str] = ()) -> list[Operation]:
    """All that computed these outputs, as it ran.

    Args:
        outputs: tensors that autograd followed.
        names: of the parameters, by id; other leaves are data.
        matrices: the names of those that their modules apply as matrices.
    """
    outputs = [*outputs]
    nodes, stack = dict[Node, None](), [output.grad_fn for output in outputs]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes[node] = None
            stack.extend(source for source, _ in node.next_functions)
    made: dict[Node, Operation] = {}
    ran: list[Operation] = []
    # Autograd numbers operations as they run, so that inputs come first; parameters have the largest number of all.
    for node in sorted(nodes, key=lambda n: n._sequence_nr() if n.next_functions else -1):
        name = re.sub(r"Backward\w*$", "", node.name().rpartition("::")[2])
        inputs = tuple(None if source is None else made[source] for source, _ in node.next_functions)
        for part, of_part, scales in _parts(name, node, inputs):
            given = tuple(ran[-1] if i is _PART else cast("Operation | None", i) for i in of_part)
            ran.append(_operation(part, node, given, scales, len(ran), names, matrices))
        made[node] = ran[-1]
    return _reached(ran, [made[output.grad_fn] for output in outputs if output.grad_fn is not None])


def _reached(ran: Sequence[Operation], ends: Iterable[Operation]) -> list[Operation]:
    """The operations that have a part in these, in order; without those that others are read in place of."""
    seen = set(ends)
    ahead = [*seen]
    while ahead:
        new = {i for i in ahead.pop().operands if i not in seen}
        seen |= new
        ahead.extend(new)
    return [operation for operation in ran if operation in seen]


def _operation(
    name: str,
    node: Node,
    inputs: tuple[Operation | None, ...],
    scales: tuple[float | None, ...] | None,
    order: int,
    names: Mapping[int, str],
    matrices: Collection[str],
) -> Operation:
    """One operation from its inputs, with ``scales`` where they are known already."""
    kinds = bool(_PRODUCT.fullmatch(name)), bool(_NORM.fullmatch(name)), name in _LOOKUPS
    leaf = getattr(node, "variable", None) if name == "AccumulateGrad" else None
    tensor = names.get(id(leaf))
    operands = [i for i in inputs if i is not None]
    of_parameters = tensor is not None
    if operands:
        of_parameters = all(i.of_parameters for i in operands) and not any(kinds)
    is_linear = leaf is None and (scales is not None or name in _LINEAR or not _keeps_values(node))
    if scales is None:
        scales = _scales(name, node, inputs, is_linear)
    acted_on = _acted_on(name, inputs, matrices) if kinds[0] else frozenset()
    size = 1.0 if kinds[1] else _size_of_norm(name, node, inputs)
    return Operation(name, inputs, tensor, *kinds, is_linear, of_parameters, order, node, scales, acted_on, size)


_PART = object()  # in place of an input: the part of the same operation that stands before
# Operations that add a product to their first operand, ``beta a + alpha b c``, and the product by its own name.
_ADDED_PRODUCTS = {"Addmm": "Mm", "Baddbmm": "Bmm", "Addbmm": "Bmm", "Addmv": "Mv", "Addcmul": "Mul", "Addcdiv": "Div"}
_Part = tuple[str, tuple[Any, ...], tuple[float | None, ...] | None]


def _parts(name: str, node: Node, inputs: tuple[Operation | None, ...]) -> list[_Part]:
    """The names, inputs and, where they are known, scales of what one operation of autograd does, in order.

    One that adds a product to its first operand is a product and a sum: the sum may be a residual one, and what is
    written ``alpha=`` or ``value=`` scales it alone.
    """
    if name in _ADDED_PRODUCTS:
        added = inputs[0]
        is_entrywise = name in ("Addcmul", "Addcdiv")
        before, behind = (None, "value") if is_entrywise else ("beta", "alpha")
        scales = (1.0 if before is None or added is None else _size(node, before), _size(node, behind))
        if is_entrywise or scales != (1.0, 1.0) or (added is not None and not added.of_parameters):
            product = _ADDED_PRODUCTS[name] if is_entrywise else name
            factors = inputs[1:] if is_entrywise else (None, *inputs[1:])
            return [(product, factors, None), ("Add", (added, _PART), scales)]
    if name in ("Add", "Sub") and len(inputs) == 2:
        return [(name, inputs, (1.0, _size(node, "alpha")))]
    if name == "Rsub" and len(inputs) == 2:
        return [("Sub", inputs, (_size(node, "alpha"), 1.0))]
    if name == "Lerp" and (len(inputs) < 3 or inputs[2] is None):
        weight = _size(node, "weight")
        return [("Add", inputs[:2], None if weight is None else (abs(1 - weight), weight))]
    if name == "IndexAdd":
        return [(name, inputs, (1.0, _size(node, "alpha")))]
    if name == "IndexPut" and _saved(node, "accumulate"):
        return [("IndexPutSum", inputs, (1.0, 1.0))]
    if name in ("Sum", "Mean") and inputs[0] is not None and inputs[0].name == "Stack":
        return _summed_stack(name, node, inputs[0]) or [(name, inputs, None)]
    return [(name, inputs, None)]


def _summed_stack(name: str, node: Node, stack: Operation) -> list[_Part]:
    """The sum or mean over what was stacked, as the sums of two that it is; none where it goes over other entries."""
    shape = _saved(node, "self_sym_sizes")
    dims = {_dimension(d, len(shape)) for d in _saved(node, "dim") or ()}
    if dims != {_dimension(stack.node._saved_dim, len(shape))}:
        return []
    first, *others = stack.inputs
    parts: list[_Part] = []
    summed: Any = first
    for other in others:
        parts.append(("Add", (summed, other), (1.0, 1.0)))
        summed = _PART
    if name == "Mean" or not parts:
        parts.append(("Mul", (summed, None), (1 / len(stack.inputs) if name == "Mean" else 1.0, None)))
    return parts


def _dimension(dim: int, count: int) -> int:
    """A dimension from the front. PyTorch keeps negative ones as unsigned numbers of 64 bits."""
    signed = dim - 2**64 if dim >= 2**63 else dim
    return signed % count if count else 0


def _acted_on(name: str, inputs: tuple[Operation | None, ...], matrices: Collection[str]) -> frozenset[int]:
    """The place of a learned query or the like in a product of parameters alone, or of rows of a table.

    It is what is not known to be a matrix beside one that is, or a single row before a matrix.
    """
    places = [k for k, kept in enumerate(_KEPT.get(name, ("input", "weight"))) if kept]
    factors = [inputs[k] for k in places]
    if any(factor is None or not factor.is_made for factor in factors):
        return frozenset()
    leaves = [parameters_of(cast(Operation, factor)) for factor in factors]
    known = [any(leaf.tensor in matrices for leaf in of_place) for of_place in leaves]
    if sum(known) == 1:
        return frozenset({places[known.index(False)]})
    is_row = [all(_is_row(leaf.node.variable) for leaf in of_place) for of_place in leaves]
    return frozenset(places[:1]) if is_row == [True, False] and not any(known) else frozenset()


def _is_row(p: Tensor) -> bool:
    """Whether at most one of the dimensions of a parameter has more than one entry."""
    return sum(size > 1 for size in p.shape) <= 1


# ---- What an operation multiplies its operands by.


def _scales(name: str, node: Node, inputs: tuple[Operation | None, ...], is_linear: bool) -> tuple[float | None, ...]:
    """The scales of an operation, see ``Operation``."""
    if name in _ENTRYWISE and len(inputs) == 2:
        return _entrywise_scales(name, node, inputs, is_linear)
    if name in _ENTRYWISE and len(inputs) == 1:  # by a number, as PyTorch's own functions do
        number = _size(node, "other")
        return (number if number is None or name == "Mul" else 1 / number,)
    if not is_linear:
        return (None,) * len(inputs)
    if name == "Where" and len(inputs) == 2:
        chosen = _saved(node, "condition")
        if isinstance(chosen, Tensor):
            return float(bool(chosen.any())), float(not bool(chosen.all()))
    return (1.0,) * len(inputs)


def _entrywise_scales(
    name: str, node: Node, inputs: tuple[Operation | None, ...], is_linear: bool
) -> tuple[float | None, ...]:
    """The scales of a product or quotient of entries: where one operand is a constant, that of the other."""
    scales: list[float | None] = [None, None]
    for k, other in ((0, 1), (1, 0)):
        if inputs[k] is None or not _is_constant(inputs[other]) or (name == "Div" and k == 1):
            continue
        number = _size(node, *_FACTORS[other])
        if number is None:
            kept = _saved(node, "self" if other == 0 else "other")
            scales[k] = 1.0 if is_linear and not isinstance(kept, Tensor) else None
        else:
            scales[k] = 1 / number if name == "Div" else number
    return tuple(scales)


def _is_constant(operand: Operation | None) -> bool:
    """Whether an operand is a constant, or a parameter that does not train and has one value."""
    if operand is None:
        return True
    while operand.tensor is None and operand.is_linear and len(operand.inputs) == 1 and operand.operands:
        (operand,) = operand.operands
    leaf = operand.node.variable if operand.tensor is not None else None
    return leaf is not None and not leaf.requires_grad and _single_size(leaf) is not None


def _saved(node: Node, name: str) -> Any:
    """What autograd kept under a name, None where it kept nothing, or what was changed in place since."""
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None


def _size(node: Node, *names: str) -> float | None:
    """The size of the number that autograd kept under the first of these names, of a tensor that of its entries but
    zeros, which mask; None where they differ."""
    for name in names:
        value = _saved(node, name)
        if isinstance(value, Tensor):
            return _single_size(value)
        if value is not None:
            return abs(value) or None
    return None


def _single_size(value: Tensor) -> float | None:
    """The size of the entries of a tensor, without zeros, which mask; None where they differ or all are zero."""
    if value.is_meta or value.is_complex():
        return None
    entries = value.detach().double().abs().flatten()
    entries = entries[entries > 0]
    if not len(entries) or not bool((entries == entries[0]).all()):
        return None
    return float(entries[0])


# ---- Norms that are written out: data over a measure of their own size.

_MEASURES = re.compile(r"(LinalgVector|Linalg)?Norm|(Std|Var)(Mean)?|A?max", re.IGNORECASE)
_FAR = 32  # operations between data and their size; RMSNorm has five
_EVEN = 1.05  # the ratio of the largest to the smallest RMS of rows that are called normalised
_NEAR = 0.2  # of a logarithm, between an RMS with its epsilon and 1 or n^-1/2


def _size_of_norm(name: str, node: Node, inputs: tuple[Operation | None, ...]) -> float | None:
    """The RMS of what a product or quotient normalises, such as ``x / x.norm()``: n^-1/2; None for all others."""
    if name not in _ENTRYWISE or len(inputs) != 2:
        return None
    first, second = inputs
    if first is None or second is None:
        return None
    if not _measures(second, first) and (name == "Div" or not _measures(first, second)):
        return None
    values, sizes = _saved(node, "self"), _saved(node, "other")
    if not isinstance(values, Tensor) or not isinstance(sizes, Tensor) or values.is_meta:
        return None
    if values.numel() < sizes.numel():
        values, sizes = sizes, values
    sizes = sizes.detach().expand_as(values)
    row = [k for k, step in enumerate(sizes.stride()) if step == 0]
    count = math.prod(values.shape[k] for k in row)
    if count < 2:
        return None
    values, sizes = values.detach().double(), sizes.double()
    normalised = values / sizes if name == "Div" else values * sizes
    of_rows = normalised.square().mean(row).sqrt().flatten()
    of_rows = of_rows[of_rows > 0]
    if not len(of_rows) or bool(of_rows.max() > _EVEN * of_rows.min()):
        return None
    size = float(of_rows.mean())
    near = (exact for exact in (1.0, count**-0.5) if abs(math.log(size / exact)) < _NEAR)
    return next(near, size)


def _measures(size: Operation, data: Operation) -> bool:
    """Whether an operation is computed from the even powers, the variance or a norm of data, and of nothing else."""
    sources = {data}
    ahead = [data]
    while ahead and len(sources) < _FAR:
        operation = ahead.pop()
        if operation.is_linear:
            ahead.extend(operation.operands)
            sources.update(operation.operands)
    if size in sources:
        return False
    is_measure = False
    seen = {size}
    ahead = [size]
    while ahead:
        operation = ahead.pop()
        if operation in sources:
            continue
        if operation.tensor is not None or not operation.operands or len(seen) > _FAR:
            return False
        first = operation.operands[0]
        is_square = operation.name == "Mul" and len({*operation.operands}) == 1 and len(operation.inputs) == 2
        is_measure |= bool(_MEASURES.fullmatch(operation.name)) or operation.is_product
        is_measure |= is_square or (operation.name == "Pow" and first in sources) or operation.name == "Abs"
        new = [i for i in operation.operands if i not in seen]
        seen.update(new)
        ahead.extend(new)
    return is_measure


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
# stream starts: wherever the skip stands, in a block, in its parent or in a loop. A stream is what such sums,
# rearrangements and numbers pass on; a norm or a matrix on it ends it and starts another. Numbers that multiply it
# change its level. Where all blocks stand on one level they add to one stream, as in ``(2 h + 2 y) / 2``.

_SUMS = ("Add", "Sub", "IndexAdd", "ScatterAdd", "IndexPutSum")


@dataclass(frozen=True)
class Branch:
    """What a residual sum adds to its stream.

    Attributes:
        start: the operation at which the stream starts.
        end: the summand, computed by ``inside`` from the stream.
        inside: all that computes the end, in order, with the parameters.
        reading: those inside that are computed from the stream, and so are no keys or values of another.
        share: what the sum itself multiplies the end by, as ``torch.add(x, y, alpha=share)`` does, over what the
            stream is multiplied by between where the branch reads it and the sum.
        within: another sum, whose branch reads the side way of the stream on which this sum stands, as y in
            ``y = x + f(x)``, ``x + W y``.
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
    """The branches of all residual sums, by the sum, in order, without those that start inside of other branches; and
    the parameters that multiply a stream between its sums, again and again."""

    branches: dict[Operation, Branch]
    skips: frozenset[str]


class _Place(NamedTuple):
    """Where on a stream an operation stands: the start of the stream, what the stream is multiplied by since, the last
    operation that changed that, and the operations before on the stream."""

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
    """The place of an operation whose data all stand on one stream: on it, or at the start of another."""
    start, level, scaled, _ = places[data[0]]
    scale = 1.0 if operation.name in _CLIPS else operation.scale(data[0])
    if scale is None and len(data) == 1:
        scale = learned_number(operation)
    for other in data[1:]:
        if operation.scale(other) != scale or not math.isclose(places[other].level, level):
            return _Place(operation)
    if not scale:
        return _Place(operation)
    return _Place(start, level * scale, scaled if scale == 1 else operation, data)


def learned_number(operation: Operation, *, is_zero: bool = False) -> float | None:
    """The size of the parameter that an operation multiplies data by, where all its entries have this size; else
    None, as where all are 0, unless that is allowed."""
    if operation.name != "Mul" or operation.norm_size is not None or not operation.weights or not operation.data:
        return None
    names = _FACTORS[0 if operation.inputs[0] in operation.weights else 1]
    if is_zero:
        values = next((v for v in (_saved(operation.node, name) for name in names) if isinstance(v, Tensor)), None)
        if values is not None and not values.is_meta and not values.any():
            return 0.0
    return _size(operation.node, *names)


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
        scale, share = operation.scale(skip), operation.scale(end)
        if not scale:
            continue
        start, level, scaled, _ = places[skip]
        branch = _branch(places, start, end)
        # A stream inside of a branch starts there; else it goes past it, and the sum is no step of a stream.
        if branch and all(branches[o].start in branch.reading for o in branch.reading if o in branches):
            level *= scale
            scaled = scaled if scale == 1 else operation
            share = (share or 1.0) * branch.level / level
            branches[operation] = replace(branch, share=share, level=level, scaled=scaled)
            places[operation] = _Place(start, level, scaled, (skip,))
            return


def _learned_skip(first: Operation, second: Operation, places: Places) -> Operation | None:
    """The one of two summands that is an earlier part of their stream times a learned number, which so is a branch."""
    for end, other in ((second, first), (first, second)):
        if learned_number(end) is None:
            continue
        (earlier,) = end.data
        current = other.data[0] if learned_number(other) is not None else other
        if earlier in _way_back(current, places):
            return end
    return None


def _join(operation: Operation, places: Places, branches: dict[Operation, Branch]) -> None:
    """Find the place of a sum of two parts of one stream, such as ``torch.lerp(h, h + y, t)``; what only one of them
    has is added with its share."""
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
    """The parameters that multiply a stream again and again, of which one at least stands between two residual sums."""
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
    """What lies between a stream and ``end``, with the level that it reads; None where that is not computed from the
    stream by parameters."""
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


# ---- What writes a stream: the last parameters that the end of a branch is linear in, such that the branch scales with
# them: a matrix that nothing follows but gains, sums and factors, or the gain of a norm that stands behind the matrix.

_NOTHING: frozenset[Operation] = frozenset()


def writers_of(branch: Branch) -> frozenset[Operation]:
    """The parameters that write the stream at the end of a branch; none where the branch does not scale with any."""
    uses = Counter(i for operation in branch.inside for i in operation.operands)
    return _writers(branch.end, branch.inside, uses)


def norm_before(name: str, ran: Sequence[Operation], outputs: Collection[Operation]) -> frozenset[str]:
    """Gain and bias of the norm that feeds the one product with a parameter and nothing else, such as ``outputs``.

    With logits ``W (g z + b)`` of a normalised stream z, the factor 1/m of a head that is tied to the embedding, and so
    cannot begin smaller, is that of ``W (g/m z + b/m)``: nothing needs to be wrapped. A gain that is stored as
    ``1 + g`` cannot take it.
    """
    products = [o for o in ran if o.is_product and any(p.tensor == name for w in o.weights for p in parameters_of(w))]
    if len(products) > 1:
        reading = _first_of_both_ways(products).get(name, ())
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


def _writers(end: Operation, operations: Sequence[Operation], uses: Counter[Operation]) -> frozenset[Operation]:
    """The parameters that scale ``end``, in which it is linear by all ways from one to the other."""
    linear_uses: Counter[Operation] = Counter()
    reached = []
    for operation in operations[::-1]:
        if linear_uses[operation] == uses[operation] and (linear_uses[operation] or operation is end):
            reached.append(operation)
            linear_uses.update(_passed_on(operation))
    written: dict[Operation, frozenset[Operation]] = {}
    first = applied_first(operations)
    for operation in reached[::-1]:
        if operation in first:
            (last,) = (i for k, i in enumerate(operation.inputs) if k != first[operation] and i in operation.weights)
            leaf = scaled_parameter(last)
            written[operation] = _NOTHING if leaf is None else frozenset({leaf})
            continue
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

# What autograd keeps of the operands of a product, in their order; None for what is added. Beside it the dimension
# that the product sums over, and the one that counts results, None where it has none.
_KEPT: dict[str, tuple[tuple[str, int, int | None] | None, ...]] = {
    "Mm": (("self", -1, -2), ("mat2", -2, -1)),
    "Bmm": (("self", -1, -2), ("mat2", -2, -1)),
    "GroupedMm": (("self", -1, -2), ("mat2", -2, -1)),
    "Addmm": (None, ("mat1", -1, -2), ("mat2", -2, -1)),
    "Baddbmm": (None, ("batch1", -1, -2), ("batch2", -2, -1)),
    "Mv": (("self", -1, -2), ("vec", -1, None)),
    "Addmv": (None, ("mat", -1, -2), ("vec", -1, None)),
    "Dot": (("self", -1, None), ("tensor", -1, None)),
    "Cdist": (("x1", -1, -2), ("x2", -1, -2)),
    "EuclideanDist": (("x1", -1, -2), ("x2", -1, -2)),
}
_LOGITS = (("query", -1, None), ("key", -1, None))  # of a fused attention

Fans = tuple[tuple[int, ...], tuple[int, ...]]  # dimensions that count the inputs and the outputs of a parameter


def fans_of(operations: Sequence[Operation]) -> dict[str, tuple[Fans, ...]]:
    """Of every parameter that products of matrices sum over, or that acts entry by entry alone: as it is used, in
    order, several where uses differ."""
    users = users_of(operations)
    first = applied_first(operations)
    summed: dict[str, dict[Fans, None]] = {}
    entrywise: dict[str, dict[Fans, None]] = {}
    unknown = set[str]()
    for operation in operations:
        if operation.of_parameters:
            continue
        sum_ = _sum_of_weights(operation, users)
        for place, weight in enumerate(operation.inputs):
            is_acted_on = place in operation.acted_on
            if weight is None or not (weight.is_made or is_acted_on):
                continue
            is_applied = operation.is_product and not is_acted_on
            if weight.is_lookup and not is_applied:
                continue
            for leaf in parameters_of(weight):
                name, p = cast(str, leaf.tensor), leaf.node.variable
                fans: Fans | None = ((), _dimensions_in(p, weight))
                if is_applied or _makes_logits(operation, weight):
                    fans = _summed_over(p, operation, place, is_turned=first.get(operation) == place)
                elif sum_ is not None:
                    fans = _summed_entries(p, weight, sum_) or fans
                if fans is None:
                    unknown.add(name)
                else:
                    (summed if fans[0] else entrywise).setdefault(name, {})[fans] = None
    known = {name: fans for name, fans in entrywise.items() if name not in unknown} | summed
    return {name: tuple(fans) for name, fans in known.items()}


def _dimensions_in(p: Tensor, weight: Operation) -> tuple[int, ...]:
    """The dimensions of a parameter that what is made of it has: of a row that is taken from a table, the last."""
    every = tuple(range(p.dim()))
    if weight.tensor is not None:
        return every
    count = math.prod(_shape_of(weight))
    if count >= p.numel():
        return every
    parts = (every[first:] for first in range(p.dim() + 1))
    trailing = (dims for dims in parts if math.prod(p.shape[k] for k in dims) == count)
    return next(trailing, every)


def _makes_logits(operation: Operation, operand: Operation) -> bool:
    """Whether an operand is the query or the key of a fused attention."""
    return "Attention" in operation.name and operand in operation.inputs[:2]


def _summed_over(p: Tensor, product: Operation, place: int, *, is_turned: bool = False) -> Fans | None:
    """Find the fans of a factor of a product by the strides of the parameter's dimensions in it; ``is_turned``: whether
    what it counts is summed over later, and it acts on what else sums."""
    kept = _LOGITS if "Attention" in product.name else _KEPT.get(product.name, ())
    of_place = kept[place] if place < len(kept) else None
    factor = None if of_place is None else _saved(product.node, of_place[0])
    if of_place is None or not isinstance(factor, Tensor):
        return None
    strides = _strides_in(factor, p.detach())

    def through(side: int) -> tuple[int, ...]:
        step, end = factor.stride(side), factor.stride(side) * factor.shape[side]
        return tuple(k for k in range(p.dim()) if p.shape[k] > 1 and step <= strides[k] < end)

    _, summed, counted = of_place
    if is_turned:
        summed, counted = -1 if counted is None else counted, summed
    ins = through(summed)
    outs = () if counted is None else through(counted)
    if set(ins) & set(outs):
        return None
    if ins and not outs:  # every row is applied by itself, as the readout of a state space is to each channel
        outs = tuple(k for k in range(p.dim()) if k not in ins)
        if math.prod(p.shape[k] for k in ins) > factor.shape[summed]:
            return (), tuple(range(p.dim()))  # of heads: each sums over its part, which keeps its size
        return ins, outs
    return (ins, outs) if ins and outs else None


def applied_first(operations: Iterable[Operation]) -> dict[Operation, int]:
    """The place of the factor that acts first in every product of parameters alone, such as 0 in ``h @ (A @ B)``: it
    sums over the dimension of the product that data are summed over, and the other one over what they share."""
    first: dict[Operation, set[int]] = {}
    products = [o for o in operations if o.name in _KEPT]
    if not any(_composed(o) for o in products):
        return {}
    for operation in products:
        kept = _KEPT[operation.name]
        for place, operand in enumerate(operation.inputs[: len(kept)]):
            product = None if operand is None or not operation.data else _composed(operand)
            of_place = kept[place]
            values = None if of_place is None else _saved(operation.node, of_place[0])
            if product is None or of_place is None or not isinstance(values, Tensor):
                continue
            shape = (*_shape_of(product), 1)[-2:] if "v" in product.name else _shape_of(product)[-2:]
            summed = values.shape[of_place[1]], values.stride(of_place[1])
            # Results lie in memory row by row.
            sums_columns = summed[0] == shape[1] and (summed[0] != shape[0] or summed[1] == 1)
            places = [k for k, of_factor in enumerate(_KEPT[product.name]) if of_factor is not None]
            first.setdefault(product, set()).add(places[1 if sums_columns else 0])
    return {product: places.pop() for product, places in first.items() if len(places) == 1}


def _composed(operand: Operation) -> Operation | None:
    """The product of parameters alone that an operand is, but for rearrangements and constants; else None."""
    while not operand.is_product:
        if len(operand.operands) != 1 or operand.scale(operand.operands[0]) is None:
            return None
        (operand,) = operand.operands
    return operand if not operand.data and len(operand.weights) == 2 and operand.name in _KEPT else None


class _Sum(NamedTuple):
    """A sum of products of entries: the dimensions that it sums, of so many, what each counts for, and the operation
    that sums."""

    dims: frozenset[int]
    shape: tuple[int, ...]
    share: float
    reduction: Operation


_DISTANCES = ("Cdist", "EuclideanDist")
_ROOTS = ("LinalgVectorNorm", "Norm")
_COMPARED = ("Mul", "Sub", "Add")  # of entries, which a sum may follow: a product of vectors, or a distance


def _sum_behind(operation: Operation, users: Users) -> _Sum | None:
    """The sum or mean over entries that a product of entries, or the square of a difference, ends in."""
    if operation.name not in _COMPARED:
        return None
    current = operation
    is_compared = operation.name == "Mul"
    while len({*users[current]}) == 1:
        user = users[current][0]
        if user.name in ("Sum", "Mean"):
            return _dims_of(user, current) if is_compared else None
        if user.name in _ROOTS:
            return None if is_compared else _dims_of(user, current)
        is_square = user.name in ("Pow", "Abs") or (user.name == "Mul" and {*user.operands} == {current})
        if is_square and is_compared:
            return None
        is_alone = user.scale(current) is not None and len(user.data) == 1
        if _shape_of(user) != _shape_of(current) or not (is_square or is_alone):
            return None
        is_compared |= is_square
        current = user
    return None


def _sum_of_weights(operation: Operation, users: Users) -> _Sum | None:
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


def _dims_of(reduction: Operation, summed: Operation) -> _Sum | None:
    """The dimensions that a sum, a mean or a norm takes together."""
    shape = _shape_of(summed)
    dims = _saved(reduction.node, "dim") or range(len(shape))
    places = frozenset(_dimension(d, len(shape)) for d in dims)
    count = math.prod(shape[k] for k in places)
    return _Sum(places, shape, 1 / count if reduction.name == "Mean" else 1.0, reduction)


def _shape_of(operation: Operation) -> tuple[int, ...]:
    """The shape of an operation's result."""
    if operation.name == "AccumulateGrad":
        return tuple(operation.node.variable.shape)
    return tuple(operation.node._input_metadata[0].shape)


def _summed_entries(p: Tensor, weight: Operation, sum_: _Sum) -> Fans | None:
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


Users = Mapping[Operation, Sequence[Operation]]


def users_of(ran: Sequence[Operation]) -> dict[Operation, list[Operation]]:
    """The operations that each one has a part in, in order; without those that have no part in the outputs, as what
    ``torch.where`` does not choose."""
    users: dict[Operation, list[Operation]] = {o: [] for o in ran}
    is_dropped: dict[Operation, bool] = {}
    for operation in reversed(ran):
        for operand in operation.operands:
            has_part = not is_dropped.get(operation, False) and operation.scale(operand) != 0
            is_dropped[operand] = is_dropped.get(operand, True) and not has_part
            if has_part:
                users[operand].insert(0, operation)
    return users


@dataclass(frozen=True)
class _Pass:
    """One forward pass, to read constants in.

    Attributes:
        users: as ``users_of`` finds them.
        ends: the last operations of the pass, and of branches with what the sum multiplies them by: no constant behind
            them counts.
        scaled: operations that apply the factor of an ``nfd.Scaled``, which is the plan's and not the model's.
        sums: of products of entries, and of differences: the sums over weights that follow.
        first: of products of parameters, the place of the factor that acts first.
    """

    users: Users
    ends: Mapping[Operation, float]
    scaled: Collection[Operation]
    sums: Mapping[Operation, _Sum]
    first: Mapping[Operation, int]

    def constant(self, operation: Operation, operand: Operation) -> float | None:
        """What an operation multiplies an operand by; None where it does something else with it."""
        return 1.0 if operation in self.scaled else operation.scale(operand)


def factors_of(
    ran: Sequence[Operation], ends: Mapping[Operation, float], scaled: Collection[Operation]
) -> dict[str, Factors]:
    """The factors of every parameter.

    A constant is a parameter's if it stands behind the operation that applies it, before anything else acts. One that
    stands right before a product with weights is that of those weights. So is the size that a norm before it gives
    the data, where that is not 1. Of what attention multiplies, see ``Logits``.

    Args:
        ran: operations in order.
        ends, scaled: as in ``_Pass``.
    """
    users = users_of(ran)
    sums = {o: _sum_of_weights(o, users) for o in ran}
    of_pass = _Pass(users, ends, scaled, {o: sum_ for o, sum_ in sums.items() if sum_ is not None}, applied_first(ran))
    factors = {}
    turned = _first_of_both_ways(ran)
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
        factors[cast(str, parameter.tensor)] = Factors(frozenset(kinds[True]), frozenset(kinds[False]))
    return factors


def _first_of_both_ways(ran: Sequence[Operation]) -> dict[str, list[Operation]]:
    """The products that apply a matrix as the first one does, where a later one applies it turned: of an autoencoder
    with tied weights these read the input, as lookups of an embedding that is the head as well do."""
    products: dict[Operation, list[tuple[Operation, int]]] = {}
    for operation in ran:
        if not operation.is_product or operation.of_parameters or not operation.data:
            continue
        for place, weight in enumerate(operation.inputs):
            leaf = None if weight is None or place in operation.acted_on else scaled_parameter(weight)
            if leaf is not None:
                products.setdefault(leaf, []).append((operation, place))
    turned = {}
    for leaf, uses in products.items():
        if len(uses) < 2:
            continue
        fans = [_summed_over(leaf.node.variable, operation, place) for operation, place in uses]
        if fans[0] is not None and fans[0][::-1] in fans and fans[0][::-1] != fans[0]:
            turned[cast(str, leaf.tensor)] = [uses[k][0] for k, of_use in enumerate(fans) if of_use == fans[0]]
    return turned


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
    if _makes_logits(operation, weight):
        fused = _fused(operation)
        is_whole = fused is not None and all(
            fused[0] == math.prod(p.node.variable.shape[-1:]) for p in parameters_of(weight)
        )
        return [factor * fused[1]] if fused is not None and is_whole else [factor]
    behind, is_taken = _behind(operation, of_pass)
    if operation.name in _DISTANCES or (operation in of_pass.sums and operation.name != "Mul"):
        behind = [_behind_distance(operation, of_pass)]
    if operation.is_product or operation in of_pass.sums:
        before = _before(operation, of_pass).last if weight in operation.gains else 1.0
        return [factor * before * after for after in behind]
    if operation.name not in _ENTRYWISE or not operation.data:
        return [factor * after for after in behind]
    since_norm = _before(operation, of_pass).since_norm
    if since_norm is None:
        return [factor * after for after in behind]
    # Constants beside the gain of a norm belong to the matrix that follows, if one does.
    return behind if is_taken else [factor * since_norm * after for after in behind]


class _Before(NamedTuple):
    """What the data of a weight were multiplied by: ``last``, right before it or since a norm; ``since_norm``, the
    size of the norm included, None where there is none."""

    last: float
    since_norm: float | None


def _before(operation: Operation, of_pass: _Pass) -> _Before:
    """What the data of an operation were multiplied by, back to a norm, past its gain and bias, where one is there."""
    last = 1.0
    every = 1.0
    is_last = operation.is_product or operation in of_pass.sums
    data = operation.data[0] if operation.data else None
    while data is not None and data.norm_size is None:
        if len(data.data) != 1:
            return _Before(every * _products(data, of_pass) if is_last else last, None)
        before = data.data[0]
        constant = of_pass.constant(data, before)
        is_gain = data.name in _ENTRYWISE and bool(data.gains)
        if constant is None and not is_gain and data.name not in _CLIPS:
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
    """The size of the products of data with data that an operation sums, once these fit each other: their number, times
    the sizes that norms give them. 1 for other operations, and for means such as those of attention."""
    kept = _KEPT.get(operation.name, ())
    places = [place for place in kept if place is not None]
    if len(operation.data) != 2 or operation.weights or len(places) != 2:
        return 1.0
    name, summed, _ = places[0]
    values = _saved(operation.node, name)
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
        if constant is None and not (data.name in _ENTRYWISE and data.gains):
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
    """What the result of an operation is multiplied by, before anything else acts, one number for each way that it
    goes; and whether weights follow, whose constants are those that stand right before them."""
    settled = of_pass.sums[operation].share if operation in of_pass.sums else 1.0
    pending = 1.0  # what stands there alone, which a product that follows would have
    is_composed = operation in of_pass.first
    while operation not in of_pass.ends:
        chosen = _chosen_from(operation, of_pass)
        if chosen is not None:
            choice, shares = chosen
            rest, is_taken = _behind(choice, of_pass)
            return [settled * pending * share * after for share in shares for after in rest], is_taken
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
            settled, pending = settled * pending, 1.0
    return [settled * pending * of_pass.ends.get(operation, 1.0)], False


def _behind_distance(operation: Operation, of_pass: _Pass) -> float:
    """What the product ``h p`` is multiplied by in a function of the distance of h and p: constants, and n^-1/2 where
    the distance is not squared, as the root of a sum of n squares moves by so much less than the sum."""
    if operation in of_pass.sums:
        sum_ = of_pass.sums[operation]
        count = math.prod(sum_.shape[k] for k in sum_.dims)
        factor, current = sum_.share, sum_.reduction
    else:
        points = _saved(operation.node, "x2")
        count = points.shape[-1] if isinstance(points, Tensor) else 1
        factor, current = 1.0, operation
    is_root = current.name in (*_DISTANCES, *_ROOTS)
    while current not in of_pass.ends and len(of_pass.users[current]) == 1:
        (user,) = of_pass.users[current]
        constant = of_pass.constant(user, current)
        if user.name == "Pow" and is_root and _size(user.node, "exponent") == 2:
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
            return _size(user.node, "exponent") == 2
        if of_pass.constant(user, operation) is None:
            return False
        operation = user
    return False


def _chosen_from(operation: Operation, of_pass: _Pass) -> tuple[Operation, list[float]] | None:
    """The ``torch.where`` that chooses between multiples of a result, and the multiples; None where none does."""
    users = of_pass.users[operation]
    if len(users) < 2:
        return None
    shares = []
    choices = set()
    for user in users:
        share = 1.0
        before, current = operation, user
        while current.name != "Where":
            constant = of_pass.constant(current, before)
            if constant is None or len(current.operands) != 1 or len(of_pass.users[current]) != 1:
                return None
            share *= constant
            before, current = current, of_pass.users[current][0]
        choices.add(current)
        shares.append(share)
    return (choices.pop(), shares) if len(choices) == 1 else None


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
    users = users_of(ran)
    found = dict[str, Logits]()
    for operation in ran:
        seen = _fused(operation) if "Attention" in operation.name else _before_softmax(operation, users)
        compared = [i for i in operation.inputs if i is not None][:2]
        if seen is None or any(i not in operation.data for i in compared):
            continue
        queries, keys = (_made_by(data, users) for data in compared)
        for maker, is_query in ((keys, False), (queries, True)):
            logits = Logits(seen[0], is_query, maker.inside, queries.factor * keys.factor, seen[1])
            found |= dict.fromkeys(maker.matrices, logits)
            found |= {name: logits._replace(is_query=False, inside=inside) for name, inside in maker.gains.items()}
    return found


class _Maker(NamedTuple):
    """What makes queries or keys.

    Attributes:
        matrices: the names of their matrix and bias.
        factor: the constants after it, with the size that a norm gives.
        inside: the constants that are a factor of the matrix, which those behind a norm are not. One of fused queries,
            keys and values has those alone that all three have.
        gains: the gains behind a norm, and all that the model multiplies since the norm, which is their factor.
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
        elif operation.name in _ENTRYWISE:
            since_norm += [cast(str, p.tensor) for weight in operation.gains for p in parameters_of(weight)]
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
    query, scale = getattr(attention.node, "_saved_query", None), getattr(attention.node, "_saved_scale", None)
    if query is None:
        return None
    size = int(query.shape[-1])
    return size, size**-0.5 if scale is None else float(scale)


def _before_softmax(product: Operation, users: Mapping[Operation, Sequence[Operation]]) -> tuple[int, float] | None:
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
