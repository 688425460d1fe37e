"""The configuration of ``nfd paper figure`` and ``nfd paper claims``; nothing here needs PyTorch."""

from __future__ import annotations

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
    """digits (scikit-learn's) or cifar10 (official binary version); by default cifar10 with data_dir, digits without"""
    size: Preset = "cpu"
    """smoke (seconds), cpu (under an hour for all on two cores) or paper (as its captions say; for a GPU)"""

    @property
    def warnings(self) -> list[str]:
        """A sentence where nothing of what the paper says is shown."""
        return warnings_of(self.size)

    @model_validator(mode="before")
    @classmethod
    def _name_data(cls, given: Any) -> Any:
        """``data_dir`` alone says which data set."""
        named = isinstance(given, dict) and given.get("data") is None and str(given.get("data_dir") or "").strip()
        return given | {"data": "cifar10"} if named else given
