"""How the library speaks up on its own.

It warns as Python does at the user's line, and writes a line into the log ``"nfd"``.
"""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

LOG = logging.getLogger("nfd")
# Without a handler Python would print every line of the log to stderr, where the warning already
# stands.
LOG.addHandler(logging.NullHandler())
# Whose frames are not the user's: this library, its decorators, and what calls it in a training
_NOT_USERS = {
    "nfd",
    "contextlib",
    "torch",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
}


def tell(text: str, category: type[Warning] = RuntimeWarning) -> None:
    """Log a text, and warn of it at the user's line that called, such as ``trainer.train()``."""
    LOG.warning(text)
    frame = _outer_frame()
    # The registry is new: a module's registry would swallow the same words of a second training in
    # one process.
    warnings.warn_explicit(
        text,
        category,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        # Python drops the warning of a module None
        module=_module_of(frame) or frame.f_code.co_filename,
        registry={},
    )


def _outer_frame() -> FrameType:
    """Find the innermost frame that is not of this library or of a trainer."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _module_of(frame).partition(".")[0] in _NOT_USERS:
        frame = frame.f_back
    return frame


def _module_of(frame: FrameType) -> str:
    """Return the name of the module of a frame; empty for code that was executed in a bare dict."""
    return str(frame.f_globals.get("__name__") or "")


class OldName:
    """An attribute under a name that goes: it warns, and answers by what replaces it."""

    def __init__(self, instead: str, read: Callable[[Any], Any]) -> None:
        """Take what the warning says to write, and a function of the object that answers."""
        self._instead = instead
        self._read = read
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"{owner.__name__}.{name}"

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        text = f"{self._name} goes in 0.5: {self._instead}."
        warnings.warn(text, FutureWarning, stacklevel=2)
        return self._read(instance)


def moved(module: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module whose names live elsewhere now.

    Args:
        module: the module that the names were in.
        places: the module of each name.
    """

    def attribute(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        text = f"{module}.{name} is called {places[name]}.{name} now; the old name goes in 0.5."
        warnings.warn(text, FutureWarning, stacklevel=2)
        return getattr(importlib.import_module(places[name]), name)

    return attribute
