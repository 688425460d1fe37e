"""Old names of ``nfd.laws``, which warn until 0.5."""

from __future__ import annotations

from nfd.core.notices import moved

__getattr__ = moved(
    __name__,
    {
        "Law": "nfd.laws",
    },
)
