"""``Task``: the batches that a network is trained on, and its losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import torch
from torch import Tensor

from nfd.core.errors import InputError, InputTypeError, check_callable, check_takes
from nfd.scaling.calls import batch_size, device_of, tensors_in
from nfd.training.batches import batches_in_words, cut, pairs_of, placed
from nfd.training.losses import IGNORED, MODELS_OWN, check_counts, loss_named, loss_of

Pair = tuple[Any, Any]
Batch = Pair | Mapping[str, Any]  # as users give them

_DEFAULT = "cross-entropy"
COPIES = (
    "Note: targets equal inputs: the model is trained to copy its input. Shift them, or pass the batch as a dict so "
    "that the model shifts."
)


@dataclass(frozen=True)
class Task:
    """Batches, one update for each in this order, a loss, and batches that a trained network is judged by.

    Attributes:
        batches, eval_batches: pairs (inputs, targets), the latter empty where there are none. Inputs: a tensor, a tuple
            of arguments or a dict of keyword arguments. Targets are None where the model computes its own loss.
        loss: ``"cross-entropy"``, ``"mse"`` (the mean of ``(f - y)**2 / 2`` over batch and outputs), ``MODELS_OWN``, or
            a function of what a network returns and the targets, to a batch mean.
    """

    batches: Sequence[Pair] = field(repr=False)
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy"
    eval_batches: Sequence[Pair] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        batches: Iterable[Batch],
        loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
        eval_batches: Iterable[Batch] | None = None,
    ) -> Self:
        """The task of batches as users give them: lists or loaders, of tensors or arrays of NumPy.

        Where no batch has targets, the default loss is the one that the model returns.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        if isinstance(loss, str):
            loss_named(loss)
        else:
            check_callable("loss", loss, "a name or a function of what the model returns and the targets")
            check_takes("loss", loss, "outputs", "targets")
        judged = [] if eval_batches is None else pairs_of(eval_batches, "eval_batches")
        pairs = pairs_of(batches)
        chosen = _with_targets(loss, [*pairs, *judged]) if isinstance(loss, str) else loss
        if chosen in (_DEFAULT, MODELS_OWN):
            check_labels("batches", pairs)
            check_labels("eval_batches", judged)
        return cls(pairs, chosen, judged)

    @property
    def steps(self) -> int:
        """How many updates there are."""
        return len(self.batches)

    @cached_property
    def targets(self) -> int:
        """How many class ids that count a training is shown, or samples where targets are no class ids."""
        return _targets(self.batches)

    @cached_property
    def eval_targets(self) -> int:
        """The same of the batches that a trained network is judged by."""
        return _targets(self.eval_batches)

    @property
    def about(self) -> str:
        """How its batches are read, in words: the first stands for all."""
        return batches_in_words(self.steps, tensors_in(self.batches[0][0])[0].shape)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is likely to be a mistake in the batches, in words."""
        return (COPIES,) if self.copies else ()

    @cached_property
    def copies(self) -> bool:
        """Whether the targets of the library's cross-entropy are the inputs themselves."""
        return self.loss == _DEFAULT and all(
            any(isinstance(y, Tensor) and torch.equal(x, y) for x in tensors_in(inputs)) for inputs, y in self.batches
        )

    @property
    def device(self) -> torch.device:
        """Where its first tensor lies."""
        return device_of(self.batches[0])

    @property
    def value(self) -> Callable[[Any, Any], Tensor]:
        """The loss, from what a network returns and the targets to a batch mean."""
        return loss_of(self.loss)

    def first(self, steps: int) -> Task:
        """The same with its first batches alone."""
        return replace(self, batches=self.batches[:steps])

    def in_batches(self, size: int) -> Task:
        """The same samples in the same order, in batches of another size.

        Raises:
            ValueError: where the size does not divide the samples, a tensor has no row for every sample, or no label of
                a batch counts.
        """
        batches = cut(self.batches, size)
        if self.loss in (_DEFAULT, MODELS_OWN):
            check_labels(f"batches of {size} samples ", batches)
        return replace(self, batches=batches)

    def on(self, device: torch.device) -> Task:
        """The same with its tensors on a device."""
        return Task(placed(self.batches, device), self.loss, placed(self.eval_batches, device))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every number in it, the same wherever the tensors lie; a loss that is a function is not in it."""
        digest = blake2b(repr(self.loss if isinstance(self.loss, str) else None).encode(), digest_size=10)
        for pairs in (self.batches, self.eval_batches):
            digest.update(f"{len(pairs)} batches".encode())
            for pair in pairs:
                _add(digest, pair)
        return digest.hexdigest()


def check_labels(argument: str, pairs: Sequence[Pair]) -> None:
    """ValueError for a batch of which no class id counts; ``argument`` is what messages call the batches."""
    for step, (inputs, targets) in enumerate(pairs):
        if (ids := _ids(inputs, targets)) is not None:
            check_counts(f"{'labels' if targets is None else 'targets'} of {argument}[{step}]", ids)


def _with_targets(loss: str, pairs: Sequence[Pair]) -> str:
    """The name of the loss, that of the model itself where no batch has targets."""
    without = sum(y is None for _, y in pairs)
    if without and (without < len(pairs) or loss != _DEFAULT):
        raise InputError(
            f"loss={loss!r} needs the targets of every batch; got {without} of {len(pairs)} batches without targets. "
            "Give all batches as (inputs, targets); or none, and leave loss out to train by the loss that the model "
            "returns; or pass a function, loss=lambda output, targets: ..."
        )
    return MODELS_OWN if without else loss


def _targets(pairs: Sequence[Pair]) -> int:
    return sum(_shown(*pair) for pair in pairs)


def _shown(inputs: Any, targets: Any) -> int:
    """Class ids of a batch that count, or its samples where targets are none."""
    ids = _ids(inputs, targets)
    return batch_size(inputs) if ids is None else int((ids != IGNORED).sum())


def _ids(inputs: Any, targets: Any) -> Tensor | None:
    """The class ids of a batch, without targets those of ``labels``; None where there are none."""
    if targets is None and isinstance(inputs, Mapping):
        targets = inputs.get("labels")
    return targets if isinstance(targets, Tensor) and not targets.is_floating_point() else None


def _add(digest: blake2b, value: Any) -> None:
    if isinstance(value, Tensor):
        entries = value.detach().cpu().contiguous().flatten()
        digest.update(f"{value.dtype} {list(value.shape)}".encode())
        digest.update(entries.view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        digest.update(repr(list(value)).encode())
        for part in value.values():
            _add(digest, part)
    elif isinstance(value, tuple | list):
        digest.update(f"{len(value)} parts".encode())
        for part in value:
            _add(digest, part)
    elif value is None or isinstance(value, bool | int | float | str):
        digest.update(repr(value).encode())
    else:
        raise InputTypeError(
            f"batches must hold tensors, numbers and texts, in tuples, lists and dicts; got {type(value).__name__}."
        )
