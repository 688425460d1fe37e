"""Tune on a small model, train the large one: checks, learning-rate transfer, scaling laws and
limits of networks.
"""

from __future__ import annotations

import random
from typing import Any

import lazy_loader

__version__ = "0.4.0"

# the names of __init__.pyi, each loaded when it is first used: PyTorch takes seconds
_loaded, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    """Load a name; Python's random stream stays, from which Rich draws when it is imported."""
    state = random.getstate()
    try:
        return _loaded(name)
    finally:
        random.setstate(state)
