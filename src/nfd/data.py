"""Data sets in memory: scikit-learn's digits, and any labelled images.

Images come as normalised tensors and batches.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import torch
from torch import Tensor

from nfd.core.checks import check_count
from nfd.core.errors import InputError
from nfd.core.modes import undisturbed
from nfd.core.random import generator

# ---- Labelled images in memory: bytes, split, statistics, and batches in a deterministic order


_LEVELS = 256
# One in so many images is for tests, where a data set brings no test part.
_TEST_SHARE = 5


@dataclass(frozen=True)
class Images:
    """Pixels ``[N, channels, height, width]`` uint8 and labels ``[N]`` int64."""

    pixels: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: Tensor) -> Images:
        return Images(self.pixels[index], self.labels[index])

    def split(self, seed: int) -> tuple[Images, Images]:
        """Training and test parts: a random fifth, decided by ``seed``, is the test part."""
        order = torch.randperm(len(self), generator=generator(seed, "split"))
        tests = math.ceil(len(self) / _TEST_SHARE)
        return self[order[tests:]], self[order[:tests]]


@dataclass(frozen=True)
class Dataset:
    """Images with a training and a test part.

    They are normalised per channel with the statistics of the training part.

    Attributes:
        name: its name in reports.
        classes: their names; a label is an index into them.
        train, test: bytes and labels.
        source: where it came from, and whether it is the official file.
        official: True when a checksum says so, False when it says otherwise, None when there is
            none to compare.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    source: str = ""
    official: bool | None = None

    @property
    def title(self) -> str:
        """The name, and that it is not the official data where that is known."""
        if self.official is False:
            return f"{self.name} (not the official files)"
        return self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return tuple(self.train.pixels.shape[1:])

    @cached_property
    def statistics(self) -> tuple[Tensor, Tensor]:
        """Return the exact mean and standard deviation of every channel of the training pixels.

        Each is ``[channels]`` in float64.
        """
        channels = self.train.pixels.flatten(2).unbind(1)
        counts = torch.stack(
            [torch.bincount(c.flatten(), minlength=_LEVELS) for c in channels]
        ).double()
        values = torch.arange(_LEVELS, dtype=torch.float64)
        total = counts.sum(1)
        mean = counts @ values / total
        std = ((counts * (values - mean[:, None]).square()).sum(1) / (total - 1)).sqrt()
        return mean, std

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every pixel and label, the same wherever they were read from."""
        digest = hashlib.blake2b(digest_size=8)
        for part in (self.train, self.test):
            digest.update(part.pixels.contiguous().numpy().data)
            digest.update(part.labels.contiguous().numpy().data)
        return digest.hexdigest()

    def normalised(self, pixels: Tensor) -> Tensor:
        """Normalise pixels to zero mean and unit variance per channel.

        ``[..., channels, height, width]`` become ``[..., d]`` in float32.
        """
        mean, std = self.statistics
        if not bool((std > 0).all()):
            constant = (~(std > 0)).nonzero().flatten().tolist()
            raise InputError(
                f"{self.name}: every training pixel of channel {constant[0]} is the same; nothing "
                "to learn."
            )
        scaled = (pixels.double() - mean[:, None, None]) / std[:, None, None]
        return scaled.flatten(-3).float()

    @cached_property
    def inputs(self) -> Tensor:
        """The training inputs, ``[N, d]`` float32, normalised."""
        return self.normalised(self.train.pixels)

    @cached_property
    def test_inputs(self) -> Tensor:
        """The test inputs, ``[N, d]`` float32, normalised."""
        return self.normalised(self.test.pixels)

    @property
    def labels(self) -> Tensor:
        """Training labels ``[N]``."""
        return self.train.labels

    @property
    def test_labels(self) -> Tensor:
        """Test labels ``[N]``."""
        return self.test.labels

    def batches(self, size: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return shuffled epochs, the same for the same seed.

        These are ``inputs [steps, size, d]`` and ``targets [steps, size]``.

        Every sample is seen once before any is seen twice; a remainder that does not fill a batch
        is dropped.
        """
        order = self.order(size, steps, seed)
        return self.normalised(self.train.pixels[order]), self.train.labels[order]

    def order(self, size: int, steps: int, seed: int) -> Tensor:
        """Which training samples ``batches`` returns, ``[steps, size]``."""
        size = check_count("batch size", size)
        steps = check_count("steps", steps)
        if size > len(self.train):
            raise InputError(
                f"batch size must be at most the {len(self.train)} training samples; got {size}."
            )
        return torch.stack(list(islice(self._shuffled(size, seed), steps)))

    def _shuffled(self, size: int, seed: int) -> Iterator[Tensor]:
        """Yield batches of samples without end, an epoch after another."""
        stream = generator(seed, "data")
        while True:
            epoch = torch.randperm(len(self.train), generator=stream)
            yield from torch.split(epoch[: len(epoch) // size * size], size)


# ---- scikit-learn's digits, which are shipped with the library: nothing to download


@undisturbed()
def digits(seed: int = 0) -> Dataset:
    """Load scikit-learn's 1,797 handwritten digits of 8 x 8 pixels.

    1,437 are to train on and 360 to test, split by ``seed``.

    Example::

        x, y = digits().batches(size=32, steps=20, seed=0)  # [20, 32, 64] and [20, 32]
    """
    # The import takes a second.
    from sklearn.datasets import load_digits

    raw = load_digits()
    pixels = torch.from_numpy(raw.images).to(torch.uint8)[:, None]
    train, test = Images(pixels, torch.from_numpy(raw.target).long()).split(seed)
    names = tuple(map(str, range(10)))
    return Dataset(
        "digits", names, train, test, "scikit-learn's copy of the UCI handwritten digits", True
    )
