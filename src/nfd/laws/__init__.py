"""What logged runs say of the next one: best rates, laws of the rate and of the loss, curves. Needs
no PyTorch.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
