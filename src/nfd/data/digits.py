"""scikit-learn's digits: 1,797 images of 8 x 8 pixels, shipped with the library, nothing to download."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from nfd.core.random import generator
from nfd.data.dataset import Dataset, normalised

_TEST = 360  # a fifth


def digits(seed: int = 0) -> Dataset:
    """The digits, split 1437/360 by ``seed`` and normalised with the training part's mean and deviation."""
    raw = load_digits()
    pixels = torch.from_numpy(raw.data).unsqueeze(1)
    labels = torch.from_numpy(raw.target).long()
    order = torch.randperm(len(labels), generator=generator(seed, "split"))
    test, train = order[:_TEST], order[_TEST:]
    inputs, test_inputs = normalised(pixels[train], pixels[test])
    names = tuple(str(name) for name in raw.target_names)
    return Dataset("digits", names, inputs, labels[train], test_inputs, labels[test])
