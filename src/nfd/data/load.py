"""Data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from nfd.core.errors import InputError, check_choice
from nfd.core.names import Data
from nfd.data.cifar10 import cifar10
from nfd.data.dataset import Dataset
from nfd.data.digits import digits
from nfd.data.images import image_folders

NAMES: tuple[Data, ...] = get_args(Data)


def load(
    name: str,
    directory: str | Path | None = None,
    *,
    image_size: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Dataset:
    """The data set called ``name``; ``directory`` is where it is, for all but the digits."""
    check_choice("data", name, NAMES)
    if name == "digits":
        return digits(seed)
    if directory is None:
        raise InputError(f"data={name!r} needs data_dir, the directory that holds it. Pass --data-dir DIR.")
    if name == "cifar10":
        return cifar10(directory)
    return image_folders(directory, size=image_size, seed=seed, progress=progress)
