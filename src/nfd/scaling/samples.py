"""How a model is called with a sample: its inputs, its modes and its outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.checks import check_finite
from nfd.core.errors import InputError, InputTypeError, blaming
from nfd.core.modes import default_type, plain


def followed_outputs(model: nn.Module, sample: Any) -> list[Tensor]:
    """What a model returns for ``sample``, in eval mode, with all that autograd keeps of parameters
    and inputs.

    Parameters that do not train are followed too. Compiled modules run as they were written.

    Raises:
        TypeError: when the model raises an error on this sample.
        ValueError: when it changes its own weights, as RWKV of Hugging Face rescales them for
            inference.
    """
    versions = {name: p._version for name, p in model.named_parameters() if not p.is_inference()}
    frozen = [p for p in model.parameters() if not p.requires_grad and p.is_floating_point()]
    try:
        for p in frozen:
            # autograd keeps nothing of a branch whose parameters are all frozen
            p.requires_grad_(True)
        with (
            evaluating(model),
            torch.random.fork_rng(devices=[]),
            as_written(),
            blaming_the_sample(sample),
        ):
            made = call_with(model, mapped(sample, _followed))
    finally:
        for p in frozen:
            p.requires_grad_(False)
    if changed := [
        name for name, p in model.named_parameters() if versions.get(name, p._version) != p._version
    ]:
        raise InputError(
            "A forward pass in eval mode changes weights of the model in place: "
            f"{', '.join(changed[:3])}. Switch this off, as by rescale_every=0 of RWKV, and build "
            "the model again."
        )
    # all of them: a loss may come first, and streams that end in other outputs are streams too
    return [output for output in tensors_in(made) or [outputs_of(made)] if output.requires_grad]


def blaming_the_sample(sample: Any) -> AbstractContextManager[None]:
    """InputTypeError with the model's own error, and the input, where a model raises an error on
    it.
    """
    what = (
        f"the model must take the sample, {shape_of(sample)}; give it an input that it takes. It "
        "raised"
    )
    return blaming(what, InputTypeError)


def as_written() -> AbstractContextManager[Any]:
    """Compiled modules run as they were written; where nothing is compiled, its compiler is not
    even loaded.
    """
    return (
        torch.compiler.set_stance("force_eager")
        if "torch._dynamo" in sys.modules
        else nullcontext()
    )


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


def type_of(model: nn.Module) -> torch.dtype | None:
    """The type of the real parameters of a model; None where it has none, or they differ."""
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return types.pop() if len(types) == 1 else None


def typed(sample: Any, dtype: torch.dtype | None) -> Any:
    """A sample in the type of a model: numbers of double precision in its own, and single ones of a
    model of double precision in that. Others stay: a model of 16 bits may want times or positions
    in single precision."""
    from_types = {torch.float64} if dtype != torch.float64 else {torch.float32}
    if dtype is None or not any(part.dtype in from_types for part in tensors_in(sample)):
        return sample

    def cast(part: Any) -> Any:
        return part.to(dtype) if isinstance(part, Tensor) and part.dtype in from_types else part

    return mapped(sample, cast)


def call_with(model: nn.Module, sample: Any) -> Any:
    """The model's output for a tensor, a tuple of arguments, or a mapping of keyword arguments, in
    its own type.
    """
    dtype = type_of(model) if any(part.is_floating_point() for part in tensors_in(sample)) else None
    if dtype == torch.float64 != torch.get_default_dtype():
        with default_type(dtype):  # for what its forward pass makes
            return _call(model, typed(sample, dtype))
    return _call(model, typed(sample, dtype))


def _call(model: nn.Module, sample: Any) -> Any:
    if isinstance(sample, Tensor):
        return model(sample)
    if isinstance(sample, tuple | list):
        return model(*sample)
    if not isinstance(sample, Mapping):
        raise InputTypeError(
            "sample must be a tensor, a tuple of arguments or a dict of them; got "
            f"{type(sample).__name__}."
        )
    return model(**sample)


def check_sample(argument: str, value: Any) -> None:
    """Raise ValueError, naming the place, where the first tensor holds no numbers, over which means
    are not-a-number, and for numbers that are not finite; within a tuple, list or mapping minus
    infinity may stand, as in masks."""
    for k, (place, leaf) in enumerate(_leaves(argument, value)):
        if k == 0 and not leaf.numel():
            raise InputError(
                f"{place} must hold samples; got an empty tensor, {list(leaf.shape)}. Leave it out."
            )
        if leaf.is_floating_point():
            check_finite(
                place, leaf if place == argument else leaf.masked_fill(leaf == -torch.inf, 0.0)
            )


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors in dicts, tuples and lists, however deep, and where they stand."""
    if isinstance(value, Tensor):
        yield place, value
    parts = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value if isinstance(value, tuple | list) else ())
    )
    for name, part in parts:
        yield from _leaves(f"{place}[{name!r}]", part)


def outputs_of(result: Any) -> Tensor:
    """The tensor a model returned: itself, its ``logits``, or the first of several."""
    while not isinstance(result, Tensor):
        if hasattr(result, "logits"):
            result = result.logits
        elif isinstance(result, Mapping) and result:
            parts = [part for name, part in result.items() if name != "loss"] or [*result.values()]
            result = result["logits"] if "logits" in result else parts[0]
        elif isinstance(result, tuple | list) and result:
            result = result[0]
        else:
            raise InputTypeError(
                "The model must return a tensor, or hold one in .logits; got "
                f"{type(result).__name__}."
            )
    return result


def all_outputs_of(result: Any) -> list[Tensor]:
    """Collect the tensors that a model returned and that training may change, such as its heads.

    Of a result with ``logits`` these only: caches and hidden states may stand beside them.
    """
    if isinstance(result, Tensor):
        return [result] if result.requires_grad else []
    if hasattr(result, "logits"):
        return all_outputs_of(result.logits)
    if isinstance(result, Mapping):
        if "logits" in result:
            return all_outputs_of(result["logits"])
        parts = [part for name, part in result.items() if name != "loss"]
    elif isinstance(result, tuple | list):
        parts = list(result)
    else:
        return []
    outputs = []
    for part in parts:
        outputs += all_outputs_of(part)
    return outputs


def batch_size(sample: Any, argument: str = "sample") -> int:
    """How many inputs a sample holds: the first dimension of its first tensor. Messages call it
    ``argument``.
    """
    first = next(iter(tensors_in(sample)), None)
    if first is None or first.dim() == 0:
        arrived = type(sample).__name__ if first is None else "a single number"
        raise InputTypeError(
            f"{argument} must hold a tensor with a batch dimension; got {arrived}."
        )
    return len(first)


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """``leaf`` of everything in dicts, tuples and lists, however deep."""
    if isinstance(value, Mapping):
        return {name: mapped(part, leaf) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(mapped(part, leaf) for part in value)
    return leaf(value)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in dicts, tuples and lists, however deep."""
    return [leaf for _, leaf in _leaves("", value)]


def on_device(value: Any, place: torch.device | None) -> Any:
    """The same with its tensors on a device, or where they are."""
    return mapped(
        value,
        lambda part: plain(part.to(place or part.device)) if isinstance(part, Tensor) else part,
    )


def _followed(part: Any) -> Any:
    is_real = isinstance(part, Tensor) and part.is_floating_point()
    return part.detach().clone().requires_grad_() if is_real else part


def shape_of(value: Any) -> str:
    """The shape and type of a tensor, the names and shapes in a mapping, or the kind of anything
    else, in a message.
    """
    if isinstance(value, Mapping):
        parts = ", ".join(f"{name} {shape_of(part)}" for name, part in value.items())
        return f"{type(value).__name__} of {parts}" if parts else f"an empty {type(value).__name__}"
    return (
        f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
    )
