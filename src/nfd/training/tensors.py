"""``TensorTask``: a task of vectors and their targets, all of one shape, as limits need it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from nfd.core.ambient import plain
from nfd.core.errors import InputError, InputTypeError, UsageError, check_count, check_finite
from nfd.training.batches import batches_in_words
from nfd.training.losses import Loss, loss_named, outputs_needed

_SEVERAL = {  # what to do with several numbers for a sample, by loss
    "cross-entropy": " Of one-hot targets, pass targets.argmax(-1), the class ids.",
    "mse": " Here loss='mse' has one output: pass one of them, such as targets[..., 0], or predict all outputs with a "
    "module and a loss of your own, make_model= and loss= (docs/howto/limit.md).",
}
_TENSORS = ("inputs", "targets", "eval_inputs", "eval_targets")


@dataclass(frozen=True)
class TensorTask:
    """Batches, one update for each in this order, a loss, and what a trained network is evaluated on.

    Attributes:
        inputs: ``[steps, batch, d]``. targets: ``[steps, batch]``.
        loss: its name (``nfd.training.losses``).
        outputs: C, how many outputs a network has.
        eval_inputs: ``[n_eval, d]`` or None. eval_targets: ``[n_eval]`` or None.
    """

    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    loss: str
    outputs: int
    eval_inputs: Tensor | None = field(default=None, repr=False)
    eval_targets: Tensor | None = field(default=None, repr=False)

    @classmethod
    def of_tensors(
        cls,
        inputs: Any,
        targets: Any,
        *,
        loss: str,
        classes: int | None,
        eval_inputs: Any = None,
        eval_targets: Any = None,
        device: torch.device | str = "cpu",
    ) -> Self:
        """The task of your own tensors or arrays.

        Args:
            inputs: ``[steps, batch, d]`` or ``[steps, d]``. targets: ``[steps, batch]`` or ``[steps]``.
            classes: C; None for as many as ``targets`` show.
            eval_inputs, eval_targets: ``[n_eval, d]`` and ``[n_eval]``, or None.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        place = torch.device(device)
        x, y = _with_batches(_tensor("inputs", inputs), _tensor("targets", targets), loss)
        outputs = outputs_needed(loss, y, None if classes is None else check_count("classes", classes))
        evaluated = _eval_inputs(eval_inputs, x.shape[2], place)
        return cls(
            check_finite("inputs", x.float()).to(place),
            _of_loss("targets", y, loss).to(place),
            loss,
            outputs,
            evaluated,
            _eval_targets(eval_targets, evaluated, loss, outputs),
        )

    @property
    def steps(self) -> int:
        """How many updates there are."""
        return self.inputs.shape[0]

    @property
    def batch(self) -> int:
        """Samples per step."""
        return self.inputs.shape[1]

    @property
    def features(self) -> int:
        """d."""
        return self.inputs.shape[2]

    @property
    def samples(self) -> int:
        """Samples seen in training."""
        return self.steps * self.batch

    @property
    def about(self) -> str:
        """How its batches are read, in words."""
        return batches_in_words(self.steps, self.inputs.shape[1:])

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The pairs (inputs, targets)."""
        return list(zip(self.inputs, self.targets, strict=True))

    @property
    def value(self) -> Loss:
        """The loss, from (outputs, targets) to a batch mean."""
        return loss_named(self.loss)

    def mean_loss(self, outputs: Tensor) -> Tensor:
        """The batch-mean loss ``[..., steps]`` of outputs ``[..., steps, batch, C]``."""
        return self.value(outputs, self.targets)

    def eval_loss(self, outputs: Tensor) -> Tensor:
        """The mean loss ``[...]`` of evaluation outputs ``[..., n_eval, C]``, where there are evaluation targets."""
        if self.eval_targets is None:
            raise InputError("eval_loss needs eval_targets; got None. Pass eval_inputs and eval_targets.")
        return self.value(outputs, self.eval_targets)

    def first(self, steps: int) -> TensorTask:
        """The same, of its first batches alone."""
        return replace(self, inputs=self.inputs[:steps], targets=self.targets[:steps])

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every number in it, the same wherever the tensors lie."""
        digest = blake2b(json.dumps([self.loss, self.outputs]).encode(), digest_size=10)
        for name in _TENSORS:
            tensor = getattr(self, name)
            array = None if tensor is None else tensor.cpu().numpy()
            digest.update(repr(None if array is None else (name, array.dtype.str, array.shape)).encode())
            digest.update(b"" if array is None else np.ascontiguousarray(array).data)
        return digest.hexdigest()


def _tensor(argument: str, value: Any) -> Tensor:
    try:
        tensor = plain(value.detach()) if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value).copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(
            f"{argument} must be a tensor or a rectangular array of numbers; got {type(value).__name__} ({error})."
        ) from None
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise InputTypeError(f"{argument} must be a dense array of real numbers; got {tensor.dtype}, {tensor.layout}.")
    return tensor


def _with_batches(x: Tensor, y: Tensor, loss: str) -> tuple[Tensor, Tensor]:
    if x.dim() == 2:
        x, y = x[:, None], y[:, None] if y.dim() == 1 else y
    if x.dim() != 3 or 0 in x.shape:
        raise InputError(f"inputs must be [steps, batch, d] or [steps, d], none of them 0; got {list(x.shape)}.")
    if y.shape != x.shape[:2]:
        several = y.shape[:2] == x.shape[:2]
        raise InputError(
            f"targets must be {list(x.shape[:2])}, one for every sample of inputs; got shape {list(y.shape)}."
            + (_SEVERAL[loss] if several and loss in _SEVERAL else "")
        )
    return x, y


def _eval_inputs(value: Any, d: int, place: torch.device) -> Tensor | None:
    if value is None:
        return None
    x = _tensor("eval_inputs", value).float()
    if x.dim() != 2 or x.shape[1] != d or not len(x):
        raise InputError(f"eval_inputs must be [n_eval, {d}], n_eval of at least 1; got shape {list(x.shape)}.")
    return check_finite("eval_inputs", x).to(place)


def _of_loss(argument: str, y: Tensor, loss: str) -> Tensor:
    return check_finite(argument, y.float()) if loss == "mse" else y.long()


def _eval_targets(value: Any, inputs: Tensor | None, loss: str, classes: int) -> Tensor | None:
    if value is None:
        return None
    if inputs is None:
        raise InputError("eval_targets are the targets of eval_inputs; got eval_inputs=None. Pass both.")
    y, expected = _tensor("eval_targets", value), list(inputs.shape[:1])
    if list(y.shape) != expected or 0 in expected:
        raise InputError(
            f"eval_targets must be {expected}, one for every row of eval_inputs and at least one; got {list(y.shape)}."
        )
    try:
        outputs_needed(loss, y, classes)
    except UsageError as error:
        raise type(error)(str(error).replace("targets", "eval_targets")) from None
    return _of_loss("eval_targets", y, loss).to(inputs.device)
