"""What a data set is, in words and numbers."""

from __future__ import annotations

from typing import Any

from nfd.data.dataset import Dataset

_MOST_NAMES = 20


def description(dataset: Dataset) -> dict[str, Any]:
    """Name, source, shape, classes and their counts, statistics per channel, and a fingerprint of its content."""
    channels, height, width = dataset.shape
    mean, std = (", ".join(f"{v:.4f}" for v in values.tolist()) for values in dataset.statistics)
    counts = dataset.labels.bincount(minlength=len(dataset.classes)).tolist()
    named = [f"{name} {count:,}" for name, count in zip(dataset.classes, counts, strict=True)]
    more = f", and {len(named) - _MOST_NAMES} more" if len(named) > _MOST_NAMES else ""
    official = {True: "yes", False: "no", None: "not known: nothing to compare with"}[dataset.official]
    plural, d = "s" if channels > 1 else "", channels * height * width
    return {
        "name": dataset.name,
        "source": dataset.source,
        "official": official,
        "images": f"{len(dataset.train):,} training, {len(dataset.test):,} test",
        "split": "given by the data" if dataset.split_by is None else f"one in five, drawn by seed {dataset.split_by}",
        "shape": f"{channels} channel{plural} of {height} x {width}: d = {d:,}",
        "classes": f"{len(named)}: {', '.join(named[:_MOST_NAMES])}{more} (training images)",
        "channel_mean": mean,
        "channel_deviation": std,
        "fingerprint": dataset.fingerprint,
        "notes": " ".join(dataset.notes) or "none",
    }
