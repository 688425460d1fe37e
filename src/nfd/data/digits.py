"""scikit-learn's digits: 1,797 images of 8 x 8 pixels, shipped with the library, nothing to download."""

from __future__ import annotations

import torch

from nfd.core.ambient import undisturbed
from nfd.data.dataset import Dataset, Images


@undisturbed()
def digits(seed: int = 0) -> Dataset:
    """The digits, split 1437/360 by ``seed``."""
    from sklearn.datasets import load_digits  # a second of imports that other data do without

    raw = load_digits()
    pixels = torch.from_numpy(raw.images).unsqueeze(1).to(torch.uint8)
    train, test = Images(pixels, torch.from_numpy(raw.target).long()).split(seed)
    names = tuple(str(name) for name in raw.target_names)
    return Dataset(
        "digits", names, train, test, "scikit-learn's copy of the UCI handwritten digits", True, split_by=seed
    )
