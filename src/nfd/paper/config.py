"""The configuration of ``nfd paper figure`` and ``nfd paper claims``; nothing here needs PyTorch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from nfd.core import Data
from nfd.paper.settings import DataConfig

Preset = Literal["smoke", "cpu", "paper"]

_SMOKE = "At size smoke this shows that everything works, and nothing of what the paper says."


def warnings_of(size: Any) -> list[str]:
    """A sentence on the smallest size; none on another."""
    return [_SMOKE] if size == "smoke" else []


class FigureConfig(DataConfig):
    """The figures of the paper, and its claims: how large, and on what."""

    data: Data | None = None  # type: ignore[assignment]  # left open: data_dir alone may say
    """digits (scikit-learn's), cifar10 (official binary version) or images (class folders); by default what lies in
    data_dir, and the digits without one"""
    size: Preset = "cpu"
    """smoke (seconds), cpu (under an hour for all on two cores) or paper (as its captions say; for a GPU)"""

    @property
    def warnings(self) -> list[str]:
        """A sentence where nothing of what the paper says is shown."""
        return warnings_of(self.size)

    @model_validator(mode="before")
    @classmethod
    def _name_data(cls, given: Any) -> Any:
        """``data_dir`` alone says which data set: the binary files of CIFAR-10, or folders of images."""
        place = given.get("data_dir") if isinstance(given, dict) and given.get("data") is None else None
        if not isinstance(place, str) or not place.strip():
            return given
        return given | {"data": _kind_of(Path(os.path.expanduser(place)))}


def _kind_of(path: Path) -> str:
    """Folders without a name of CIFAR-10's are folders of images."""
    if not path.exists():
        raise ValueError(
            f"data_dir {str(path)!r} does not exist. Point it at CIFAR-10's binary files or at a folder of images per "
            "class."
        )
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else {"cifar-10"}
    return "cifar10" if any(name.startswith(("cifar-10", "data_batch")) for name in names) else "images"
