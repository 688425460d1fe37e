"""``Task``: the batches that a network is trained on, and its losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self

import torch
from torch import Tensor

from nfd.core.errors import InputTypeError, check_callable
from nfd.scaling.calls import batch_size, device_of
from nfd.training.batches import cut, pairs_of, placed
from nfd.training.losses import loss_named, loss_of

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Task:
    """Batches, one update for each in this order, a loss, and batches that a trained network is judged by.

    Attributes:
        batches, eval_batches: pairs (inputs, targets), the latter empty where there are none. Inputs: a tensor, a tuple
            of arguments or a dict of keyword arguments.
        loss: ``"cross-entropy"``, ``"mse"``, or a function of what a network returns and the targets, to a batch mean.
    """

    batches: Sequence[Pair] = field(repr=False)
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy"
    eval_batches: Sequence[Pair] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        batches: Iterable[Pair],
        loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
        eval_batches: Iterable[Pair] | None = None,
    ) -> Self:
        """The task of batches as users give them: lists or loaders, of tensors or arrays of NumPy.

        Raises:
            ValueError, TypeError: naming the argument.
        """
        if isinstance(loss, str):
            loss_named(loss)
        else:
            check_callable("loss", loss, "a name or a function of what the model returns and the targets")
        judged = [] if eval_batches is None else pairs_of(eval_batches, None, "eval_batches")
        return cls(pairs_of(batches, None), loss, judged)

    @property
    def steps(self) -> int:
        """How many updates there are."""
        return len(self.batches)

    @cached_property
    def targets(self) -> int:
        """How many class ids a training is shown, or samples where targets are no class ids."""
        return _targets(self.batches)

    @cached_property
    def eval_targets(self) -> int:
        """The same of the batches that a trained network is judged by."""
        return _targets(self.eval_batches)

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
            ValueError: where the size does not divide the samples, or a tensor has no row for every sample.
        """
        return replace(self, batches=cut(self.batches, size))

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


def _targets(pairs: Sequence[Pair]) -> int:
    return sum(y.numel() if isinstance(y, Tensor) and not y.is_floating_point() else batch_size(x) for x, y in pairs)


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
