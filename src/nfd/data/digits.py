"""scikit-learn's digits: 1,797 images of 8 x 8 pixels, shipped with the library, nothing to download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from nfd.core.machine import undisturbed
from nfd.data.dataset import Dataset, Images


@undisturbed()
def digits(seed: int = 0) -> Dataset:
    """scikit-learn's 1,797 handwritten digits, 8 x 8 pixels: 1,437 to train on and 360 to test, split by ``seed``.

    Example::

        x, y = digits().batches(size=32, steps=20, seed=0)  # [20, 32, 64] and [20, 32]
    """
    pixels, labels = _shipped()
    train, test = Images(pixels.to(torch.uint8).view(-1, 1, 8, 8), labels.long()).split(seed)
    names = tuple(map(str, range(10)))
    return Dataset(
        "digits", names, train, test, "scikit-learn's copy of the UCI handwritten digits", True, split_by=seed
    )


def _shipped() -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and labels, from the file of scikit-learn's ``load_digits``, whose import takes a second."""
    package = find_spec("sklearn")
    try:
        table = np.loadtxt(
            Path(str(package and package.origin)).parent / "datasets" / "data" / "digits.csv.gz", delimiter=","
        )
    except OSError:  # another version of it keeps the file elsewhere
        from sklearn.datasets import load_digits

        raw = load_digits()
        table = np.column_stack([raw.data, raw.target])
    pixels, labels = torch.from_numpy(table).tensor_split([64], 1)
    return pixels, labels[:, 0]
