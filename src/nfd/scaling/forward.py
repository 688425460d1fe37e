"""What a model's own forward pass multiplies its tensors with, and what modules tell of themselves."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nfd.core.errors import InputTypeError, check_real
from nfd.scaling.graph import Operation
from nfd.scaling.model import modules

# ---- ``nfd.Scaled``: a module behind a forward multiplier


class Scaled(nn.Module):
    """Multiply the output of a module by a constant: ``factor * module(x)``. ``plan.apply_`` inserts it where needed.

    A plan still finds the parameters inside by their names. Attributes of the module can be read through it, so
    ``model.lm_head.weight`` is still the tied weight.

    Args:
        module: whose output, a tensor, is multiplied.
        factor: finite.

    Example::

        head = nfd.Scaled(torch.nn.Linear(64, 10), 0.25)
    """

    def __init__(self, module: nn.Module, factor: float) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InputTypeError(f"module must be a torch.nn.Module; got {type(module).__name__}.")
        self.scaled_module = module
        self.factor = check_real("factor", factor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output times the factor."""
        return self.factor * self.scaled_module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("scaled_module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_modules", {}).get("scaled_module")
        if inner is not None and name not in ("factor", "training", "scaled_module") and hasattr(inner, name):
            setattr(inner, name, value)  # Hugging Face ties weights by assignment
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """The factor."""
        return f"factor={self.factor:g}"


# ---- What modules of PyTorch and Hugging Face tell of themselves: an input to try them with, and the size of heads


_HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")
_QUERIES = ("q_proj", "query", "q")
_PIXELS = 64  # of images, where a model takes any size


def own_samples(model: nn.Module) -> dict[str, Any]:
    """An input of every outermost module that says what it takes, by name."""
    samples: dict[str, Any] = {}
    for name, module in modules(model).items():
        inside = any(name.startswith(f"{outer}.") or not outer for outer in samples)
        sample = None if inside else _sample_of(module)
        if sample is not None:
            samples[name] = sample
    return samples


def _sample_of(module: nn.Module) -> Any:
    place = next((p.device for p in module.parameters()), None)
    if isinstance(module, nn.TransformerEncoder):
        weight = next(module.parameters())
        return torch.ones(1, 2, weight.shape[-1], dtype=weight.dtype, device=place)
    if not hasattr(module, "dummy_inputs") or not hasattr(module, "main_input_name"):  # Hugging Face's
        return None
    if module.main_input_name == "pixel_values":
        config: Any = module.config
        size = getattr(config, "image_size", None) or _PIXELS
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.ones(1, config.num_channels, height, width, device=place)}
    if module.main_input_name != "input_ids":
        return None
    given: dict[str, Any] = module.dummy_inputs  # type: ignore[assignment]
    return {name: v.to(place) if isinstance(v, Tensor) else v for name, v in given.items()}


def _divides_logits(module: nn.Module, size: int) -> bool:
    """Whether an attention with heads of this size divides logits by its root: PyTorch's do, others keep the factor."""
    factors = [value for value in vars(module).values() if isinstance(value, float)]
    by_root = any(math.isclose(factor, root) for factor in factors for root in (size**-0.5, size**0.5))
    return isinstance(module, nn.MultiheadAttention) or by_root


def head_sizes(model: nn.Module) -> dict[str, int]:
    """The size of heads whose logits are divided by its root, by the module that makes the queries.

    Where queries, keys and values are made together, the name is that of the attention.
    """
    sizes = {}
    for name, module in modules(model).items():
        size = next((s for key in _HEAD_SIZES if isinstance(s := getattr(module, key, None), int)), None)
        if size is not None and _divides_logits(module, size):
            query = next((key for key in _QUERIES if isinstance(getattr(module, key, None), nn.Module)), None)
            sizes[f"{name}.{query}" if query else name] = size
    return sizes


# ---- Constant factors in a model's own forward pass, and plans that make up for those that change with size


_SAME = 1e-4  # of the logarithm of a ratio: the same factor, rounded


class Factors(NamedTuple):
    """The constant factors of a tensor in one forward pass: where its rows are looked up, and where it is applied.

    A set holds several where uses differ.
    """

    looked_up: frozenset[float]
    applied: frozenset[float]


class Own(NamedTuple):
    """The factors of a tensor over those of the same tensor in the base."""

    looked_up: float = 1.0
    applied: float = 1.0


# ---- in a forward pass --------------------------------------------------------------------------------------------


def factors_of(operations: Sequence[Operation], ends: Collection[Any], scaled: Collection[Any]) -> dict[int, Factors]:
    """The factors of every parameter, by id.

    A constant is a parameter's if it stands behind the operation that applies it, before anything else acts. One that
    stands right before a product of matrices is that of the product's weights; before a product of data, as in
    attention, it is no one's.

    Args:
        operations: inputs first.
        ends: of branches and of the pass, as autograd keeps them: no constant behind them counts.
        scaled: operations that apply the factor of an ``nfd.Scaled``, which is the plan's and not the model's.
    """
    users = defaultdict[Operation, list[Operation]](list)
    for operation in operations:
        for operand in operation.operands:
            users[operand].append(operation)
    found = {}
    for operation in operations:
        if operation.parameter is not None:
            kinds: dict[bool, set[float]] = {True: set(), False: set()}
            for factor, operand, applied in _applications(operation, users):
                if applied.is_product and applied.data and not _is_added(operand, applied):
                    factor *= _before(applied.data[0], scaled)
                kinds[applied.is_lookup].add(factor * _behind(applied, users, ends, scaled))
            found[id(operation.parameter)] = Factors(frozenset(kinds[True]), frozenset(kinds[False]))
    return found


def _applications(
    parameter: Operation, users: Mapping[Operation, Sequence[Operation]]
) -> list[tuple[float, Operation, Operation]]:
    """The constant that a parameter is multiplied by, what is made of it, and the operation that applies this to data,
    for every use."""
    found, stack = [], [(1.0, parameter)]
    while stack:
        factor, operation = stack.pop()
        for user in users[operation]:
            constant = _constant(user)
            if not user.of_parameters:
                found.append((factor, operation, user))
            elif constant is not None or user.is_linear:
                stack.append((factor * (constant or 1.0), user))
    return found


def _is_added(operand: Operation, product: Operation) -> bool:
    """Whether an operand of a product is its bias."""
    place = product.inputs.index(operand)
    return place == (2 if "onvolution" in product.name else 0 if "dd" in product.name else None)


def _behind(
    operation: Operation,
    users: Mapping[Operation, Sequence[Operation]],
    ends: Collection[Any],
    scaled: Collection[Any],
) -> float:
    settled, pending = 1.0, 1.0  # pending: what stands there alone, which a product that follows would have
    while operation.node not in ends and len(users[operation]) == 1:
        (user,) = users[operation]
        constant = _constant(user)
        if user.is_product or "Attention" in user.name:
            return settled
        if constant is None and not user.is_linear:
            break
        if len(user.operands) > 1:
            settled, pending = settled * pending, 1.0
        elif user.node not in scaled:
            pending *= constant or 1.0
        operation = user
    return settled * pending


def _before(operation: Operation, scaled: Collection[Any]) -> float:
    factor = 1.0
    while len(operation.operands) == 1:
        constant = _constant(operation)
        if constant is None and not operation.is_linear:
            break
        factor *= 1.0 if constant is None or operation.node in scaled else constant
        operation = operation.operands[0]
    return factor


def _constant(operation: Operation) -> float | None:
    """The size of the number that an operation multiplies by; None where it does something else."""
    divides, comes_first = operation.name == "Div", operation.inputs[0] is None
    if operation.name not in ("Mul", "Div") or len(operation.operands) != 1 or (divides and comes_first):
        return None
    kept = "_saved_self" if comes_first else "_saved_other"
    try:
        number = getattr(operation.node, kept)
    except RuntimeError:  # changed in place since
        return None
    entries = number.detach().double().abs().flatten() if isinstance(number, Tensor) else None
    if entries is None or entries.is_meta:
        return None
    entries = entries[entries > 0]  # the others mask
    if not len(entries) or not bool((entries == entries[0]).all()):
        return None
    return 1 / float(entries[0]) if divides else float(entries[0])
