"""A labelled data set in memory, split, normalised, and served in a deterministic order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nfd.core.errors import check_count
from nfd.core.random import generator


@dataclass(frozen=True)
class Dataset:
    """Inputs ``[N, d]`` float32, normalised per channel on the training part; labels ``[N]`` int64."""

    name: str
    classes: tuple[str, ...]
    inputs: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    test_inputs: Tensor = field(repr=False)
    test_labels: Tensor = field(repr=False)

    def batches(self, size: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
        """``inputs [steps, size, d]`` and ``targets [steps, size]``: shuffled epochs, the same for the same seed.

        Every sample is seen once before any is seen twice; a remainder that does not fill a batch is dropped.
        """
        size, steps = check_count("batch size", size), check_count("steps", steps)
        if size > len(self.inputs):
            raise ValueError(f"batch size must be at most the {len(self.inputs)} training samples; got {size}.")
        order = torch.stack([b for b, _ in zip(self._shuffled(size, seed), range(steps), strict=False)])
        return self.inputs[order], self.labels[order]

    def _shuffled(self, size: int, seed: int) -> Iterator[Tensor]:
        stream = generator(seed, "data")
        while True:
            epoch = torch.randperm(len(self.inputs), generator=stream)
            yield from torch.split(epoch[: len(epoch) // size * size], size)


def normalised(train: Tensor, test: Tensor) -> tuple[Tensor, Tensor]:
    """``[N, channels, pixels]`` arrays flattened to ``[N, d]``: per channel, zero mean and unit variance on train."""
    mean = train.mean((0, 2), keepdim=True)
    std = train.std((0, 2), keepdim=True)
    return tuple(((x - mean) / std).flatten(1).float() for x in (train, test))  # type: ignore[return-value]
