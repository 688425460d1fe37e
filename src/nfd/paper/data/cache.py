"""Decoded pixels kept between runs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from nfd.core import cached_path, replace_file


class Cache:
    """One tensor under a key that is a hash of everything it was made from."""

    def __init__(self, made_from: Iterable[str]) -> None:
        self.path = cached_path("images", made_from, ".safetensors")

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
            replace_file(self.path, save({"pixels": pixels}))
        except OSError as error:
            return (
                f"Decoded images could not be kept in {self.path.parent} ({error.strerror}): decoded again next time.",
            )
        return ()
