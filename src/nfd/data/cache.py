"""Decoded pixels kept between runs, in ``$NFD_CACHE`` or the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from nfd.core.files import staged, write_bytes


class Cache:
    """One tensor under a key that is a hash of everything it was made from."""

    def __init__(self, kind: str, made_from: Iterable[str]) -> None:
        digest = hashlib.blake2b(digest_size=12)
        for text in made_from:
            digest.update(text.encode(errors="surrogateescape") + b"\0")
        self.path = cache_directory() / f"{kind}-{digest.hexdigest()}.safetensors"

    def load(self, count: int) -> torch.Tensor | None:
        """The tensor if it is there, whole, and has ``count`` rows."""
        try:
            pixels = load_file(self.path)["pixels"]
        except (OSError, SafetensorError, KeyError):
            return None
        return pixels if pixels.dim() == 4 and len(pixels) == count and pixels.dtype == torch.uint8 else None

    def save(self, pixels: torch.Tensor) -> tuple[str, ...]:
        """Keep the tensor; what to say when that is not possible."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with staged(self.path.parent, marked=False) as folder:
                write_bytes(folder / self.path.name, save({"pixels": pixels}))
        except OSError as error:
            return (
                f"Decoded images could not be kept in {self.path.parent} ({error.strerror}): decoded again next time.",
            )
        return ()


def cache_directory() -> Path:
    """``$NFD_CACHE``, or ``nfd`` in ``$XDG_CACHE_HOME``, or ``~/.cache/nfd``."""
    if os.environ.get("NFD_CACHE"):
        return Path(os.environ["NFD_CACHE"])
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nfd"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / "nfd"
