"""Calls of a model with a sample: its inputs, its modes and its outputs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.checks import check_finite
from nfd.core.errors import InputError, InputTypeError, blaming
from nfd.core.modes import default_type, plain


def followed_outputs(model: nn.Module, sample: Any) -> list[Tensor]:
    """Run a model on ``sample`` in eval mode, and return outputs that autograd followed.

    Autograd keeps all that it can of parameters and inputs.
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
            # Autograd keeps nothing of a branch whose parameters are all frozen.
            p.requires_grad_(True)
        with (
            evaluating(model),
            torch.random.fork_rng(devices=[]),
            as_written(),
            blaming_the_sample(sample),
        ):
            result = call_with(model, mapped(sample, _followed))
    finally:
        for p in frozen:
            p.requires_grad_(False)
    changed = [
        name for name, p in model.named_parameters() if versions.get(name, p._version) != p._version
    ]
    if changed:
        raise InputError(
            "A forward pass in eval mode changes weights of the model in place: "
            f"{', '.join(changed[:3])}. Switch this off, as by rescale_every=0 of RWKV, and build "
            "the model again."
        )
    # All of them: a loss may come first, and streams that end in other outputs are streams too.
    outputs = tensors_in(result) or [outputs_of(result)]
    followed = [output for output in outputs if output.requires_grad]
    if not followed and next(model.parameters(), None) is not None:
        raise InputError(
            "sample= shows nothing of the model: autograd sees no weight behind its outputs. It "
            "runs under torch.no_grad or torch.inference_mode, detaches what it returns, or "
            "returns whole numbers, as of argmax. Let it return what a loss is computed of."
        )
    return followed


def blaming_the_sample(sample: Any) -> AbstractContextManager[None]:
    """Raise InputTypeError where a model raises an error on a sample, with the error and sample."""
    what = (
        f"the model must take the sample, {shape_of(sample)}; give it an input that it takes. It "
        "raised"
    )
    return blaming(what, InputTypeError)


def as_written() -> AbstractContextManager[Any]:
    """Run compiled modules as they were written.

    Where nothing is compiled, the compiler of PyTorch is not even loaded.
    """
    stance: AbstractContextManager[Any] = nullcontext()
    if "torch._dynamo" in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into eval mode, and every module back into its own mode afterwards.

    Models of Hugging Face do not keep a cache inside, as in training: that of RWKV is written in
    place, which no gradient passes.
    """
    before = {module: module.training for module in model.modules()}
    configs: list[Any] = [getattr(module, "config", None) for module in before]
    cached = [config for config in configs if getattr(config, "use_cache", None) is True]
    model.eval()
    for config in cached:
        with suppress(AttributeError):  # a frozen one, which is not of Hugging Face
            config.use_cache = False
    try:
        yield
    finally:
        for config in cached:
            with suppress(AttributeError):
                config.use_cache = True
        for module, training in before.items():
            module.training = training


def type_of(model: nn.Module) -> torch.dtype | None:
    """Return the type of a model's real parameters; None where it has none, or they differ."""
    types = {p.dtype for p in model.parameters() if p.is_floating_point()}
    return types.pop() if len(types) == 1 else None


def typed(sample: Any, dtype: torch.dtype | None) -> Any:
    """Return a sample in the type of a model.

    Numbers of double precision become the model's type, and in a model of double precision single
    ones become double. Others stay: a model of 16 bits may want times or positions in single
    precision.
    """
    from_types = {torch.float64} if dtype != torch.float64 else {torch.float32}
    if dtype is None or not any(part.dtype in from_types for part in tensors_in(sample)):
        return sample

    def cast(part: Any) -> Any:
        return part.to(dtype) if isinstance(part, Tensor) and part.dtype in from_types else part

    return mapped(sample, cast)


def call_with(model: nn.Module, sample: Any) -> Any:
    """Call a model with a tensor, a tuple of arguments or keyword arguments, in its own type."""
    parts = tensors_in(sample)
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    is_single = first is None or first.dtype != torch.float64
    # Only double precision is ever converted. To look at all parameters takes long in deep models.
    if is_single and all(part.dtype != torch.float64 for part in parts):
        return _call(model, sample)
    is_real = any(part.is_floating_point() for part in parts)
    dtype = type_of(model) if is_real else None
    if dtype == torch.float64 != torch.get_default_dtype():
        # What the forward pass makes has the default type.
        with default_type(dtype):
            return _call(model, typed(sample, dtype))
    return _call(model, typed(sample, dtype))


def _call(model: nn.Module, sample: Any) -> Any:
    # A model may change its inputs in place, and the next one is given the same.
    sample = mapped(sample, _copied)
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
    """Raise ValueError, naming the place, for an empty sample or numbers that are not finite.

    The first tensor must hold numbers, as means over none are not-a-number. Within a tuple, list or
    mapping minus infinity may stand, as in masks.
    """
    for k, (place, leaf) in enumerate(_leaves(argument, value)):
        if k == 0 and not leaf.numel():
            raise InputError(
                f"{place} must hold samples; got an empty tensor, {list(leaf.shape)}. Leave it out."
            )
        if not leaf.is_floating_point():
            continue
        if place != argument:
            leaf = leaf.masked_fill(leaf == -torch.inf, 0.0)
        check_finite(place, leaf)


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in dicts, tuples and lists, however deep, and where they stand."""
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, tuple | list):
        parts = enumerate(value)
    for name, part in parts:
        yield from _leaves(f"{place}[{name!r}]", part)


def outputs_of(result: Any) -> Tensor:
    """Return the tensor in a model's result: itself, its ``logits``, or the first of several."""
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
    """Count the inputs that a sample holds: the first dimension of its first tensor.

    Messages call it ``argument``.
    """
    first = next(iter(tensors_in(sample)), None)
    if first is None or first.dim() == 0:
        arrived = type(sample).__name__ if first is None else "a single number"
        raise InputTypeError(
            f"{argument} must hold a tensor with a batch dimension; got {arrived}."
        )
    return len(first)


def mapped(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply ``leaf`` to everything in dicts, tuples and lists, however deep."""
    if isinstance(value, Mapping):
        return {name: mapped(part, leaf) for name, part in value.items()}
    if type(value) in (tuple, list):
        return type(value)(mapped(part, leaf) for part in value)
    return leaf(value)


def tensors_in(value: Any) -> list[Tensor]:
    """List the tensors in dicts, tuples and lists, however deep."""
    return [leaf for _, leaf in _leaves("", value)]


def on_device(value: Any, place: torch.device | None) -> Any:
    """Return a sample with its tensors on a device; where they are if the device is None."""

    def moved(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return part
        return plain(part.to(part.device if place is None else place))

    return mapped(value, moved)


def _copied(part: Any) -> Any:
    """Return a copy of a tensor; anything else as it is."""
    return part.clone() if isinstance(part, Tensor) else part


def _followed(part: Any) -> Any:
    """Return a copy of a real tensor that autograd follows; anything else as it is."""
    if isinstance(part, Tensor) and part.is_floating_point():
        return part.detach().clone().requires_grad_()
    return part


def shape_of(value: Any) -> str:
    """Describe a sample for a message, by shapes, types and names, or the kind of anything else."""
    if isinstance(value, Mapping):
        parts = ", ".join(f"{name} {shape_of(part)}" for name, part in value.items())
        return f"{type(value).__name__} of {parts}" if parts else f"an empty {type(value).__name__}"
    if isinstance(value, Tensor):
        return f"{list(value.shape)} {value.dtype}"
    return type(value).__name__
