"""Named random streams from one seed.

Every random number in the project comes from ``generator(seed, name, ...)``: the same seed and names give the
same numbers, different names give independent ones, and no stream moves another. The names in use are listed
in ``docs/equations.md``.
"""

from __future__ import annotations

import hashlib

import torch

from nfd.core.errors import check_count

MAX_SEED = 2**63 - 1


def check_seed(seed: int) -> int:
    """Return ``seed`` as an int in [0, 2**63 - 1], or raise."""
    value = check_count("seed", seed, minimum=0)
    if value > MAX_SEED:
        raise ValueError(f"seed must be at most 2**63 - 1; got {value}.")
    return value


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream ``names`` of ``seed``; distinct names give unrelated seeds."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") & MAX_SEED


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The PyTorch generator of the stream ``names`` of ``seed`` on ``device``."""
    return torch.Generator(device=device).manual_seed(derive(seed, *names))
