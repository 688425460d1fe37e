"""Data sets by name."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from nfd.core import Data, InputError, check_choice, undisturbed
from nfd.data import Dataset, digits
from nfd.paper.data.cifar10 import cifar10
from nfd.paper.data.images import image_folders

NAMES: tuple[Data, ...] = get_args(Data)


@undisturbed()
def load(
    name: str,
    directory: str | Path | None = None,
    *,
    image_size: int | None = None,
    seed: int = 0,
    progress: bool | None = False,
) -> Dataset:
    """Load a data set by name.

    Args:
        name: ``"digits"``, ``"cifar10"`` or ``"images"`` (a folder of images for each class).
        directory: of the files; not needed for the digits.
        image_size: side in pixels, to which images in folders are cropped and scaled.
        seed: of the split into training and test images, if the data do not bring one.
        progress: show a bar on a terminal.

    Raises:
        ValueError: for an unknown name, and for files that are missing or cannot be read.
    """
    check_choice("data", name, NAMES)
    if name == "digits":
        return digits(seed)
    if directory is None:
        raise InputError(
            f"data={name!r} needs data_dir, the directory that holds it. "
            "Give data_dir=DIR, or --data-dir DIR where the command has this option."
        )
    if name == "cifar10":
        return cifar10(directory)
    return image_folders(directory, size=image_size, seed=seed, progress=progress)
