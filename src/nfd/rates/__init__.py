"""The best learning rate: its interval, what it does as networks grow, and what tuning on a small one costs."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
