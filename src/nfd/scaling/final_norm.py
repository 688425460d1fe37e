"""The affine norm that alone feeds a head: a factor of the head's inputs can stand in its gain and its bias.

With logits ``W (g z + b)`` of a normalised stream z, the factor 1/m of a head that is tied to the embedding, and so
cannot begin smaller, is that of ``W (g/m z + b/m)``: nothing needs to be wrapped. A gain stored as ``1 + g`` cannot
take it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from nfd.scaling.graph import Operation
from nfd.scaling.streams import is_scaled_parameter


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
