"""What claims are judged by: the runs of the figures, and data to compute on."""

from __future__ import annotations

from dataclasses import dataclass

from nfd.core.names import Size
from nfd.data.dataset import Dataset


@dataclass(frozen=True)
class Evidence:
    """The data set, and at which size networks are taken where a claim trains its own."""

    size: Size
    dataset: Dataset
    seed: int = 0
