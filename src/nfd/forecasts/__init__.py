"""The law of the loss: fitted to runs, its forecasts, and the best size for a budget."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
