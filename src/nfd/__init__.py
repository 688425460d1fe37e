"""Tune on a small model, train the large one: checks, learning-rate transfer, scaling laws and
limits of networks.
"""

from __future__ import annotations

import warnings
from typing import Any

import lazy_loader

__version__ = "0.3.0"

# the names of __init__.pyi, each loaded when it is first used: PyTorch takes seconds
_attribute, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]

# in 0.3; the old names go in 0.4
_RENAMED = {"capacity": "scaling_law", "fit_capacity": "fit_scaling_law"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(
            f"nfd.{name} is called nfd.{_RENAMED[name]} now.", FutureWarning, stacklevel=2
        )
    return _attribute(_RENAMED.get(name, name))
