"""Neural Feature Dynamics: deep networks at any width and depth, their limits, and the rules that scale them."""

from __future__ import annotations

import lazy_loader

from nfd.training import optimizers as _optimizers  # noqa: F401  # registers the laws of the library

__version__ = "0.2.0"

# the names of __init__.pyi, each loaded when it is first used: PyTorch takes seconds
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
