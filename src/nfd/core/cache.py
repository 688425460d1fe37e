"""Where what takes long to make is kept between runs: ``$NFD_CACHE`` or the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path


def cached_path(kind: str, made_from: Iterable[str], suffix: str) -> Path:
    """The file for something under a key that is a hash of everything it was made from."""
    digest = hashlib.blake2b(digest_size=12)
    for text in made_from:
        digest.update(text.encode(errors="surrogateescape") + b"\0")
    return cache_directory() / f"{kind}-{digest.hexdigest()}{suffix}"


def cache_directory() -> Path:
    """``$NFD_CACHE``, or ``nfd`` in ``$XDG_CACHE_HOME``, or ``~/.cache/nfd``."""
    if os.environ.get("NFD_CACHE"):
        return Path(os.environ["NFD_CACHE"])
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nfd"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / "nfd"
