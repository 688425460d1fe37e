"""How a model is called with a sample, and what of its answer are the outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputTypeError, UsageError, check_finite, out_of_memory
from nfd.core.origin import is_a_models


@dataclass(frozen=True)
class Call:
    """What a block was called with."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def recorded_calls(model: nn.Module, blocks: Iterable[nn.Module], sample: Any) -> dict[int, Call]:
    """The arguments of the blocks, by id, while the model sees ``sample``: a tensor, a tuple or a dict of arguments."""
    calls: dict[int, Call] = {}

    def keep(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.setdefault(id(module), Call(args, kwargs))

    handles = [block.register_forward_pre_hook(keep, with_kwargs=True) for block in blocks]
    try:
        with torch.no_grad(), evaluating(model), torch.random.fork_rng(devices=[]):
            call_with(model, sample)
    except Exception as error:
        if isinstance(error, UsageError) or out_of_memory(error) or not is_a_models(error):
            raise
        message = (str(error).splitlines() or [""])[0][:200]
        raise InputTypeError(
            f"sample must be an input that the model takes: a tensor, a tuple of arguments or a dict of keyword "
            f"arguments; got {type(sample).__name__}, and the model raised {type(error).__name__}: {message}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return calls


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode, and every module's own mode again afterwards."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in before.items():
            module.training = training


def call_with(model: nn.Module, sample: Any) -> Any:
    """The model's output for a tensor, a tuple of arguments, or a mapping of keyword arguments."""
    if isinstance(sample, Tensor):
        return model(sample)
    if isinstance(sample, tuple | list):
        return model(*sample)
    return model(**sample)


def check_sample(argument: str, value: Any) -> None:
    """Raise ValueError, naming the place, for a number that is not finite in a tensor, or in tensors of a tuple, list
    or mapping; there minus infinity may stand, as in masks of attention."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            check_finite(argument, value)
        return
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, tuple | list):
        parts = enumerate(value)
    for name, part in parts:
        masked = isinstance(part, Tensor) and part.is_floating_point()
        check_sample(f"{argument}[{name!r}]", part.masked_fill(part == -torch.inf, 0.0) if masked else part)


def outputs_of(result: Any) -> Tensor:
    """The tensor a model returned: itself, its ``logits``, or the first of several."""
    while not isinstance(result, Tensor):
        if hasattr(result, "logits"):
            result = result.logits
        elif isinstance(result, Mapping) and result:
            result = result["logits"] if "logits" in result else next(iter(result.values()))
        elif isinstance(result, tuple | list) and result:
            result = result[0]
        else:
            raise InputTypeError(
                f"The model must return a tensor, or hold one in .logits; got {type(result).__name__}."
            )
    return result


def batch_size(sample: Any) -> int:
    """How many inputs a sample holds: the first dimension of its first tensor."""
    if isinstance(sample, Mapping):
        sample = tuple(sample.values())
    if isinstance(sample, tuple | list):
        sample = next((part for part in sample if isinstance(part, Tensor)), None)
    if not isinstance(sample, Tensor) or sample.dim() == 0:
        raise InputTypeError(f"sample must hold a tensor with a batch dimension; got {type(sample).__name__}.")
    return len(sample)


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """``leaf`` of everything in dicts, tuples and lists, however deep."""
    if isinstance(value, Mapping):
        return {name: mapped(part, leaf) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(mapped(part, leaf) for part in value)
    return leaf(value)


def doubled(value: Any) -> Any:
    """Inputs with their floating-point tensors in double precision."""
    return mapped(value, lambda part: part.detach().double() if _is_floating(part) else part)


def _is_floating(part: Any) -> bool:
    return isinstance(part, Tensor) and part.is_floating_point()


def shape_of(value: Any) -> str:
    """The shape and type of a tensor, or the kind of anything else, for a message."""
    return f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
