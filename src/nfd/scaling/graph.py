"""The operations of one forward pass, as autograd keeps them, from the parameters to the outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node

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
