"""Experiments: networks trained here, and what they say of larger ones.

They show whether a learning rate transfers, and how the loss falls.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
