"""Losses by name, with the checks of their targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor

from nfd.core.checks import check_choice
from nfd.core.errors import InputError, InputTypeError, in_brief
from nfd.scaling.samples import outputs_of, shape_of, tensors_in, typed

# the target of positions that no loss counts, such as padding; PyTorch's ignore_index
IGNORED = -100


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy over the batch, in nats.

    Logits are ``[..., b, C]`` and class ids ``[b]``. Targets of ``IGNORED`` do not count. Without
    any other the mean is not-a-number.
    """
    counts = targets != IGNORED
    ids = targets.where(counts, 0).long().expand(outputs.shape[:-1]).unsqueeze(-1)
    losses = outputs.logsumexp(-1) - outputs.gather(-1, ids).squeeze(-1)
    return losses.where(counts, 0.0).sum(-1) / counts.sum(-1)


LOSSES = ("cross-entropy", "mse")
MODELS_OWN = "the model's own"
"""The name of the loss that a model returns with its outputs, for batches without targets."""


def loss_of(loss: str | Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """Return the batch-mean loss of what a model returns, by name or as given.

    Targets may have any dimensions. ``"mse"`` is the mean of ``(f - y)**2 / 2`` over all of them,
    half of ``F.mse_loss``: dLoss/df is f - y over their number.
    """
    if callable(loss):
        return partial(_given, loss)
    if loss == MODELS_OWN:
        return lambda out, y: own_loss(out)
    check_choice("loss", loss, LOSSES)

    def value(out: Any, y: Tensor) -> Tensor:
        outputs = _only_output(out)
        if not isinstance(y, Tensor):
            raise InputTypeError(
                f"loss={loss!r} needs targets that are a tensor; got {type(y).__name__}. Pass "
                "torch.tensor(targets)."
            )
        y = typed(y, outputs.dtype)
        try:
            if loss == "mse":
                return 0.5 * (_real(outputs, y).flatten() - y.flatten()).square().mean()
            return cross_entropy(classes_last(outputs, y).flatten(0, -2), y.flatten())
        # Outputs and targets are the user's: what PyTorch cannot compute is an error of input.
        except (RuntimeError, IndexError) as error:
            shapes = f"outputs {shape_of(outputs)} and targets {shape_of(y)}"
            why = ""
            if loss == "cross-entropy":
                why = _out_of_range(outputs, y)
            raise InputTypeError(
                f"loss={loss!r} cannot be computed of {shapes}: {why or in_brief(error)}"
            ) from error

    return value


def _given(loss: Callable[[Any, Any], Tensor], out: Any, y: Any) -> Tensor:
    """Compute a loss of the user's, and check that it is one number."""
    real = (part.dtype for part in tensors_in(out) if part.is_floating_point())
    value = loss(out, typed(y, next(real, None)))
    if not isinstance(value, Tensor) or value.dim():
        raise InputTypeError(
            f"loss must return the mean over the batch, one number; got {shape_of(value)}."
        )
    return value


def _out_of_range(outputs: Tensor, y: Tensor) -> str:
    """Say which class ids the outputs have, if targets are others; else return an empty text."""
    if y.is_floating_point():
        return (
            f"class ids must be whole numbers; got {y.dtype}. Pass targets.long(), or loss='mse' "
            "for real targets."
        )
    if not bool((y != IGNORED).any()):
        return ""
    counted = y[y != IGNORED]
    classes = classes_last(outputs, y).shape[-1]
    low = int(counted.min())
    high = int(counted.max())
    if low >= 0 and high < classes:
        return ""
    return (
        f"class ids must lie in 0..{classes - 1}, or be {IGNORED} where none counts; got {low} to "
        f"{high}."
    )


def own_loss(output: Any) -> Tensor:
    """Return the loss that a model returned.

    It is ``output.loss``, ``output["loss"]``, or the one scalar in a tuple.

    Raises:
        TypeError: where there is none.
    """
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(output, tuple):
        scalars = [part for part in output if isinstance(part, Tensor) and part.dim() == 0]
        if len(scalars) == 1:
            loss = scalars[0]
    if not isinstance(loss, Tensor):
        raise InputTypeError(
            "batches without targets need a model that returns its loss, as output.loss or "
            f"output['loss']; it returned {shape_of(output)}. Give it what it computes the loss "
            "from, such as labels; or give batches of (inputs, targets); or pass loss=lambda "
            "output, targets: ..., where targets is None."
        )
    return loss


def _only_output(out: Any) -> Tensor:
    """Return the outputs of a model.

    Raise TypeError where a tuple, list or dict without ``logits`` holds two tensors that could be
    them.
    """
    first = outputs_of(out)
    if hasattr(out, "logits") or (isinstance(out, Mapping) and "logits" in out):
        return first
    if isinstance(out, Mapping):
        parts = [*out.values()]
    elif isinstance(out, tuple | list):
        parts = [*out]
    else:
        return first
    leading = first.shape[:-1]
    candidates = list[Tensor]()
    for part in parts:
        if isinstance(part, Tensor) and part.shape[:-1] == leading != ():
            candidates.append(part)
    if len(candidates) > 1:
        shapes = " and ".join(str(list(part.shape)) for part in candidates)
        raise InputTypeError(
            f"the model returns {shapes}, and either could be its outputs. "
            "Say which by nfd.Task(batches, loss=...), a function of what it returns and the "
            "targets, such as lambda output, y: torch.nn.functional.cross_entropy(output[1], y)."
        )
    return first


def _real(out: Tensor, y: Tensor) -> Tensor:
    """Return outputs [...] for targets [...]. Raise ValueError where they would broadcast."""
    if out.shape not in (y.shape, (*y.shape, 1)):
        raise InputError(
            f"loss='mse' needs outputs [...] or [..., 1] for targets [...]; got {list(out.shape)} "
            f"for {list(y.shape)}. Give every output its target, or train on nfd.Task(batches, "
            "loss=...), a function of what the model returns and the targets."
        )
    return out


def classes_last(output: Any, y: Tensor) -> Tensor:
    """Return logits as [..., C], for targets [...].

    Models may put the classes second, as images have them. ``output`` is what a model returns.
    """
    out = outputs_of(output)
    has_classes_last = out.shape[:-1] == y.shape
    has_classes_second = out.dim() == y.dim() + 1 and out[:, 0].shape == y.shape
    could_be_both = has_classes_last and has_classes_second and out.dim() > 2
    # Language models of Hugging Face have them last.
    if could_be_both and 1 not in out.shape[1:] and not hasattr(output, "logits"):
        raise InputError(
            f"loss='cross-entropy' cannot tell which axis of the logits {list(out.shape)} holds "
            f"the classes, for targets {list(y.shape)}. Say it by nfd.Task(batches, loss=...): "
            "loss=torch.nn.functional.cross_entropy where the classes are second, and loss=lambda "
            "out, y: torch.nn.functional.cross_entropy(out.flatten(0, -2), y.flatten()) where they "
            "are last."
        )
    if has_classes_last:
        return out
    if has_classes_second:
        return out.movedim(1, -1)
    raise InputError(
        f"loss='cross-entropy' needs logits [..., C] for targets [...]; got {list(out.shape)} for "
        f"{list(y.shape)}. For real targets train on nfd.Task(batches, loss='mse'); nfd.Task also "
        "takes loss=, a function of what the model returns and the targets."
    )
