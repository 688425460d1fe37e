"""What every layer above rests on: errors, random streams, statistics, activations.

Activations come with their Gaussian moments.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
