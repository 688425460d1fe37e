"""One forward pass as autograd keeps it: operations, what they are linear in, what normalises."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from torch import Tensor
from torch.autograd.graph import Node

from nfd.scaling.summands import RunningSums

_PRODUCT = re.compile(
    r"(Add|Badd)?(mm|bmm|mv)|Dot|Cdist|EuclideanDist|.*grouped_?mm.*|.*convolution.*", re.IGNORECASE
)
# Norms of data. The size of a vector normalises nothing.
_NORM = re.compile(r"(?!.*(Vector|Matrix|Weight)Norm).+Norm.*")
_LOOKUPS = ("Embedding", "EmbeddingBag", "Index", "IndexSelect", "Gather")
# They are linear, though autograd keeps what they add.
_LINEAR = ("IndexAdd", "ScatterAdd")
ENTRYWISE = ("Mul", "Div")
# The names under which autograd keeps the two factors of a product of entries.
FACTORS = (("self", "tensor1"), ("other", "tensor2"))
# They pass their own output on unchanged, so that an empty branch changes nothing.
CLIPS = ("Relu", "Threshold")


@dataclass(frozen=True, eq=False, slots=True)
class Operation:
    """One operation, or a tensor that nothing computed.

    Attributes:
        name: autograd's name of it: ``"Add"``, ``"Addmm"``, ``"NativeLayerNorm"``.
        inputs: what computed its operands, None where an operand is a constant.
        tensor: the name of the parameter that this is.
        is_product: whether it multiplies matrices or convolves.
        is_norm: whether it normalises.
        is_lookup: whether it takes rows of a table.
        is_linear: whether it is linear in all operands together, so that autograd keeps no values
            to differentiate it.
        of_parameters: whether only parameters, and no data, decide its result.
        order: when it ran, beside others; tensors that nothing computed stand before all
            operations.
        node: autograd's node.
        scales: for each input the size of the number by which the operation multiplies it, where it
            does nothing else but rearrange and add; 0 where the input has no part in the result;
            None where the operation does something else.
        acted_on: the places of parameters that weights act on, as on data: of a learned query.
        norm_size: of a norm, also one that is written out, the RMS of its result before gains; else
            None.
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
        """The inputs that are not constants."""
        return tuple(i for i in self.inputs if i is not None)

    @property
    def data(self) -> tuple[Operation, ...]:
        """The operands that data decide, or that weights act on as on data."""
        return tuple(
            i
            for k, i in enumerate(self.inputs)
            if i is not None and (not i.of_parameters or k in self.acted_on)
        )

    @property
    def weights(self) -> tuple[Operation, ...]:
        """The operands that are parameters, or made of them; of a table, its rows."""
        return tuple(
            i
            for k, i in enumerate(self.inputs)
            if i is not None and i.is_made and k not in self.acted_on
        )

    @property
    def is_made(self) -> bool:
        """Whether it is a parameter, or made of parameters only; of a table, its rows."""
        return self.of_parameters or (self.is_lookup and not self.data)

    def scale(self, operand: Operation) -> float | None:
        """Return what an operand is multiplied by, as in ``scales``; summed over its places."""
        scales = [scale for i, scale in zip(self.inputs, self.scales, strict=True) if i is operand]
        if None in scales:
            return None
        return sum(cast(list[float], scales))

    @property
    def gains(self) -> tuple[Operation, ...]:
        """Its weights but the bias.

        The bias is the first operand of a product with a sum, and the third of others.
        """
        bias = 0 if self.name.startswith(("Add", "Badd")) else 2
        inputs = self.inputs[:bias] + self.inputs[bias + 1 :]
        return tuple(weight for weight in self.weights if weight in inputs)

    @property
    def applies_weights(self) -> bool:
        """Whether it multiplies data by weights, by itself or where it normalises.

        A bias by itself, after a matrix that is computed as data are, scales nothing.
        """
        return (self.is_product or self.is_norm) and bool(self.data) and bool(self.gains)


def operations(
    outputs: Iterable[Tensor], names: Mapping[int, str], matrices: Collection[str] = ()
) -> list[Operation]:
    """List all operations that computed these outputs, as they ran.

    Args:
        outputs: tensors that autograd followed.
        names: the names of the parameters, by id; other leaves are data.
        matrices: the names of those that their modules apply as matrices.
    """
    outputs = [*outputs]
    of_node: dict[Node, Operation] = {}
    ran: list[Operation] = []
    sums = RunningSums()
    # Autograd numbers operations as they run, so that inputs come first; parameters have the
    # largest number of all.
    for node in sorted(
        _nodes_before(outputs), key=lambda n: n._sequence_nr() if n.next_functions else -1
    ):
        name = re.sub(r"Backward\w*$", "", node.name().rpartition("::")[2])
        inputs = tuple(
            None if source is None else of_node[source] for source, _ in node.next_functions
        )
        last_part: Operation | None = None
        for part, part_inputs, scales in _parts(name, node, inputs):
            operands = tuple(
                last_part if i is _PART else cast("Operation | None", i) for i in part_inputs
            )
            operation = _operation(part, node, operands, scales, len(ran), names, matrices)
            part_operations = sums.rewritten(operation, len(ran))
            ran += [o for o in part_operations if o.order >= len(ran)]
            last_part = part_operations[-1]
        of_node[node] = cast(Operation, last_part)
    ends = [of_node[output.grad_fn] for output in outputs if output.grad_fn is not None]
    return _reached(ran, ends)


def _nodes_before(outputs: Iterable[Tensor]) -> dict[Node, None]:
    """Find autograd's nodes that computed these outputs."""
    nodes: dict[Node, None] = {}
    stack = [output.grad_fn for output in outputs]
    while stack:
        node = stack.pop()
        if node is not None and node not in nodes:
            nodes[node] = None
            stack.extend(source for source, _ in node.next_functions)
    return nodes


def _reached(ran: Sequence[Operation], ends: Iterable[Operation]) -> list[Operation]:
    """Keep the operations that have a part in these ends, in order.

    Left out are those in place of which others are read.
    """
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
    """Describe one operation from its inputs, with ``scales`` where they are known already."""
    is_product = bool(_PRODUCT.fullmatch(name))
    is_norm = bool(_NORM.fullmatch(name))
    is_lookup = name in _LOOKUPS
    leaf = getattr(node, "variable", None) if name == "AccumulateGrad" else None
    tensor = names.get(id(leaf))
    operands = [i for i in inputs if i is not None]
    of_parameters = tensor is not None
    if operands:
        acts_on_data = is_product or is_norm or is_lookup
        of_parameters = all(i.of_parameters for i in operands) and not acts_on_data
    is_linear = leaf is None and (scales is not None or name in _LINEAR or not _keeps_values(node))
    if scales is None:
        scales = _scales(name, node, inputs, is_linear)
    return Operation(
        name=name,
        inputs=inputs,
        tensor=tensor,
        is_product=is_product,
        is_norm=is_norm,
        is_lookup=is_lookup,
        is_linear=is_linear,
        of_parameters=of_parameters,
        order=order,
        node=node,
        scales=scales,
        acted_on=_acted_on(name, inputs, matrices) if is_product else frozenset(),
        norm_size=1.0 if is_norm else _size_of_norm(name, node, inputs),
    )


# What autograd keeps of the operands of a product, in their order; None for what is added. Beside
# it the dimension that the product sums over, and the one that counts results, None where it has
# none.
KEPT_FACTORS: dict[str, tuple[tuple[str, int, int | None] | None, ...]] = {
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

# It stands in place of an input for the part of the same operation that comes before.
_PART = object()
# Operations that add a product to their first operand, ``beta a + alpha b c``, and the name of the
# product.
_ADDED_PRODUCTS = {
    "Addmm": "Mm",
    "Baddbmm": "Bmm",
    "Addbmm": "Bmm",
    "Addmv": "Mv",
    "Addcmul": "Mul",
    "Addcdiv": "Div",
}
# Name, inputs and scales.
_Part = tuple[str, tuple[Any, ...], tuple[float | None, ...] | None]


def _parts(name: str, node: Node, inputs: tuple[Operation | None, ...]) -> list[_Part]:
    """Take one operation of autograd apart: names, inputs and, where they are known, scales.

    One that adds a product to its first operand is a product and a sum: the sum may be a residual
    one, and what is written ``alpha=`` or ``value=`` scales the product only.
    """
    if name in _ADDED_PRODUCTS:
        return _parts_of_added_product(name, node, inputs)
    if name in ("Add", "Sub") and len(inputs) == 2:
        return [(name, inputs, (1.0, saved_size(node, "alpha")))]
    if name == "Rsub" and len(inputs) == 2:
        return [("Sub", inputs, (saved_size(node, "alpha"), 1.0))]
    if name == "Lerp" and (len(inputs) < 3 or inputs[2] is None):
        weight = saved_size(node, "weight")
        return [("Add", inputs[:2], None if weight is None else (abs(1 - weight), weight))]
    if name == "IndexAdd":
        return [(name, inputs, (1.0, saved_size(node, "alpha")))]
    if name == "IndexPut" and saved_value(node, "accumulate"):
        return [("IndexPutSum", inputs, (1.0, 1.0))]
    if name in ("Sum", "Mean") and inputs[0] is not None and inputs[0].name == "Stack":
        return _summed_stack(name, node, inputs[0]) or [(name, inputs, None)]
    return [(name, inputs, None)]


def _parts_of_added_product(
    name: str, node: Node, inputs: tuple[Operation | None, ...]
) -> list[_Part]:
    """Take a sum with a product apart; one part where the sum only adds a bias."""
    added = inputs[0]
    sum_scales: tuple[float | None, float | None]
    if name in ("Addcmul", "Addcdiv"):
        sum_scales = (1.0, saved_size(node, "value"))
        product = (_ADDED_PRODUCTS[name], inputs[1:], None)
        return [product, ("Add", (added, _PART), sum_scales)]
    added_scale = 1.0 if added is None else saved_size(node, "beta")
    sum_scales = (added_scale, saved_size(node, "alpha"))
    adds_data = added is not None and not added.of_parameters
    if sum_scales == (1.0, 1.0) and not adds_data:
        return [(name, inputs, None)]
    return [(name, (None, *inputs[1:]), None), ("Add", (added, _PART), sum_scales)]


def _summed_stack(name: str, node: Node, stack: Operation) -> list[_Part]:
    """Write the sum or mean over what was stacked as the sums of two that it is.

    Empty where it goes over other entries.
    """
    shape = saved_value(node, "self_sym_sizes")
    dims = {dimension_from_front(d, len(shape)) for d in saved_value(node, "dim") or ()}
    if dims != {dimension_from_front(stack.node._saved_dim, len(shape))}:
        return []
    first, *others = stack.inputs
    parts: list[_Part] = []
    so_far: Any = first
    for other in others:
        parts.append(("Add", (so_far, other), (1.0, 1.0)))
        so_far = _PART
    if name == "Mean":
        parts.append(("Mul", (so_far, None), (1 / len(stack.inputs), None)))
    elif not parts:
        parts.append(("Mul", (so_far, None), (1.0, None)))
    return parts


def dimension_from_front(dim: int, count: int) -> int:
    """Count a dimension from the front.

    PyTorch keeps negative ones as unsigned numbers of 64 bits.
    """
    signed = dim - 2**64 if dim >= 2**63 else dim
    return signed % count if count else 0


def _acted_on(
    name: str, inputs: tuple[Operation | None, ...], matrices: Collection[str]
) -> frozenset[int]:
    """Find the place of a learned query or the like in a product of parameters only.

    Rows of a table count as parameters. It is what is not known to be a matrix beside one that is,
    or a single row before a matrix.
    """
    places = [k for k, kept in enumerate(KEPT_FACTORS.get(name, ("input", "weight"))) if kept]
    factors = [inputs[k] for k in places]
    if any(factor is None or not factor.is_made for factor in factors):
        return frozenset()
    leaves = [parameters_of(cast(Operation, factor)) for factor in factors]
    are_matrices = [any(leaf.tensor in matrices for leaf in of_place) for of_place in leaves]
    if sum(are_matrices) == 1:
        return frozenset({places[are_matrices.index(False)]})
    are_rows = [all(_is_row(leaf.node.variable) for leaf in of_place) for of_place in leaves]
    if are_rows == [True, False] and not any(are_matrices):
        return frozenset(places[:1])
    return frozenset()


def _is_row(p: Tensor) -> bool:
    """Whether at most one of the dimensions of a parameter has more than one entry."""
    return sum(size > 1 for size in p.shape) <= 1


# ---- What an operation multiplies its operands by.


def _scales(
    name: str, node: Node, inputs: tuple[Operation | None, ...], is_linear: bool
) -> tuple[float | None, ...]:
    """Find the scales of an operation, see ``Operation``."""
    if name in ENTRYWISE and len(inputs) == 2:
        return _entrywise_scales(name, node, inputs, is_linear)
    if name in ENTRYWISE and len(inputs) == 1:
        # PyTorch's own functions multiply by numbers like this.
        number = saved_size(node, "other")
        if number is None or name == "Mul":
            return (number,)
        return (1 / number,)
    if not is_linear:
        return (None,) * len(inputs)
    if name == "Where" and len(inputs) == 2:
        chosen = saved_value(node, "condition")
        if isinstance(chosen, Tensor):
            return float(bool(chosen.any())), float(not bool(chosen.all()))
    return (1.0,) * len(inputs)


def _entrywise_scales(
    name: str, node: Node, inputs: tuple[Operation | None, ...], is_linear: bool
) -> tuple[float | None, ...]:
    """Find the scales of a product or quotient of entries: where one is a constant, the other's."""
    scales: list[float | None] = [None, None]
    for k, other in ((0, 1), (1, 0)):
        if inputs[k] is None or not _is_constant(inputs[other]) or (name == "Div" and k == 1):
            continue
        number = saved_size(node, *FACTORS[other])
        if number is not None:
            scales[k] = 1 / number if name == "Div" else number
            continue
        kept = saved_value(node, "self" if other == 0 else "other")
        if is_linear and not isinstance(kept, Tensor):
            scales[k] = 1.0
    return tuple(scales)


def _is_constant(operand: Operation | None) -> bool:
    """Whether an operand is a constant, or a parameter that does not train and has one value."""
    if operand is None:
        return True
    while operand.tensor is None:
        is_rearranged = operand.is_linear and len(operand.inputs) == 1 and operand.operands
        if not is_rearranged:
            return False
        (operand,) = operand.operands
    parameter = operand.node.variable
    return not parameter.requires_grad and _single_size(parameter) is not None


def saved_value(node: Node, name: str) -> Any:
    """Read what autograd kept under a name.

    None where it kept nothing, or what was changed in place since.
    """
    try:
        return getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None


def saved_size(node: Node, *names: str) -> float | None:
    """Read the size of the number that autograd kept under the first of these names.

    Of a tensor, the size of its entries but zeros, which mask; None where they differ.
    """
    for name in names:
        value = saved_value(node, name)
        if isinstance(value, Tensor):
            return _single_size(value)
        if value is not None:
            return abs(value) or None
    return None


def _single_size(value: Tensor) -> float | None:
    """Return the size of the entries of a tensor, but zeros, which mask.

    None where they differ or all are zero.
    """
    if value.is_meta or value.is_complex():
        return None
    entries = value.detach().double().abs().flatten()
    entries = entries[entries > 0]
    if not len(entries) or not bool((entries == entries[0]).all()):
        return None
    return float(entries[0])


# ---- Norms that are written out: data over a measure of their own size.

_MEASURES = re.compile(r"(LinalgVector|Linalg)?Norm|(Std|Var)(Mean)?|A?max", re.IGNORECASE)
# Operations between data and their size; RMSNorm has five.
_FAR = 32
# The ratio of the largest to the smallest RMS of rows that are called normalised.
_EVEN = 1.05
# The difference of logarithms between an RMS with its epsilon and 1 or n^-1/2.
_NEAR = 0.2


def _size_of_norm(name: str, node: Node, inputs: tuple[Operation | None, ...]) -> float | None:
    """Measure the RMS of what a product or quotient normalises, such as n^-1/2 of ``x / x.norm()``.

    None where it normalises nothing.
    """
    if name not in ENTRYWISE or len(inputs) != 2:
        return None
    first, second = inputs
    if first is None or second is None:
        return None
    if not _measures(second, first) and (name == "Div" or not _measures(first, second)):
        return None
    values = saved_value(node, "self")
    sizes = saved_value(node, "other")
    if not isinstance(values, Tensor) or not isinstance(sizes, Tensor) or values.is_meta:
        return None
    if values.numel() < sizes.numel():
        values, sizes = sizes, values
    sizes = sizes.detach().expand_as(values)
    # Dimensions that the size was expanded over.
    row = [k for k, step in enumerate(sizes.stride()) if step == 0]
    count = math.prod(values.shape[k] for k in row)
    if count < 2:
        return None
    values = values.detach().double()
    sizes = sizes.double()
    normalised = values / sizes if name == "Div" else values * sizes
    of_rows = normalised.square().mean(row).sqrt().flatten()
    of_rows = of_rows[of_rows > 0]
    if not len(of_rows) or bool(of_rows.max() > _EVEN * of_rows.min()):
        return None
    size = float(of_rows.mean())
    for exact in (1.0, count**-0.5):
        if abs(math.log(size / exact)) < _NEAR:
            return exact
    return size


def _measures(size: Operation, data: Operation) -> bool:
    """Whether an operation is computed from even powers, the variance or a norm of data only."""
    sources = _rearranged(data)
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
        is_measure |= _is_even(operation, sources)
        new = [i for i in operation.operands if i not in seen]
        seen.update(new)
        ahead.extend(new)
    return is_measure


def _rearranged(data: Operation) -> set[Operation]:
    """Find what data were rearranged from, with the data."""
    sources = {data}
    ahead = [data]
    while ahead and len(sources) < _FAR:
        operation = ahead.pop()
        if operation.is_linear:
            ahead.extend(operation.operands)
            sources.update(operation.operands)
    return sources


def _is_even(operation: Operation, sources: Collection[Operation]) -> bool:
    """Whether an operation does not depend on the sign of its operand: a square, a norm, a size."""
    if operation.is_product or operation.name == "Abs" or _MEASURES.fullmatch(operation.name):
        return True
    if operation.name == "Pow":
        return operation.operands[0] in sources
    is_of_one = len(operation.inputs) == 2 and len({*operation.operands}) == 1
    return operation.name == "Mul" and is_of_one


def _keeps_values(node: Node) -> bool:
    """Whether autograd kept numbers of the forward pass to differentiate an operation."""
    names = _saved_names(type(node))
    if not names:
        # It is a torch.autograd.Function.
        return bool(getattr(node, "saved_tensors", ()))
    try:
        kept = [getattr(node, name) for name in names]
    except RuntimeError:
        # Values were changed in place since.
        return True
    return any(isinstance(value, Tensor) and value.is_floating_point() for value in kept)


@cache
def _saved_names(kind: type[Node]) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_saved_"))


def shape_of(operation: Operation) -> tuple[int, ...]:
    """Return the shape of an operation's result."""
    if operation.name == "AccumulateGrad":
        return tuple(operation.node.variable.shape)
    return tuple(operation.node._input_metadata[0].shape)


def parameters_of(operation: Operation) -> set[Operation]:
    """Find the parameters that an operation is computed from, as operations."""
    seen = set[Operation]()
    stack = [operation]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack.extend(current.operands)
    return {o for o in seen if o.tensor is not None}


def scaled_parameter(operation: Operation) -> Operation | None:
    """Find the one parameter that an operand is, but for rearrangements and constant factors.

    None where it is anything else.
    """
    while operation.tensor is None:
        is_factor = operation.name in ENTRYWISE and len(operation.operands) == 1
        if not (is_factor or (operation.is_linear and len(operation.inputs) == 1)):
            return None
        operation = operation.operands[0]
    return operation


Users = Mapping[Operation, Sequence[Operation]]


def users_of(ran: Sequence[Operation]) -> dict[Operation, list[Operation]]:
    """List the operations that each one has a part in, in order.

    Left out are those that have no part in the outputs, as what ``torch.where`` does not choose.
    """
    users: dict[Operation, list[Operation]] = {o: [] for o in ran}
    is_dropped: dict[Operation, bool] = {}
    for operation in reversed(ran):
        for operand in operation.operands:
            has_part = not is_dropped.get(operation, False) and operation.scale(operand) != 0
            is_dropped[operand] = is_dropped.get(operand, True) and not has_part
            if has_part:
                users[operand].append(operation)
    for of_operand in users.values():
        of_operand.reverse()
    return users
