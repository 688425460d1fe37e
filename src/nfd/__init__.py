"""Tune on a small model, train the large one: checks, learning-rate transfer, scaling laws and
limits of networks.
"""

from __future__ import annotations

import lazy_loader

__version__ = "0.4.0"

# the names of __init__.pyi, each loaded when it is first used: PyTorch takes seconds
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ += ["__version__"]
