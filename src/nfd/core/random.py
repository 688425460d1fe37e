"""Named random streams from one seed.

Every random number in the project comes from ``generator(seed, name, ...)``: the same seed and
names give the same numbers, different names give independent ones, and no stream moves another. The
seed is the caller's; only ``ambient_seed`` draws one from PyTorch's own generator.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.core.names import MAX_SEED


def derive(seed: int, *names: str | int) -> int:
    """A 63-bit seed for the stream ``names`` of ``seed``; distinct names give unrelated seeds."""
    text = "\x1f".join([str(seed), *(f"{type(name).__name__}:{name}" for name in names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") & MAX_SEED


@dataclass(frozen=True)
class Increment:
    """Increment ``index`` of a Brownian path of matrices cut into ``count`` equal steps.

    It is scaled to N(0, 1) entries.

    A step is halved as Levy does: its halves are ``(z + y) / sqrt(2)`` and ``(z - y) / sqrt(2)``, y
    fresh. So for every ``count`` the increments are i.i.d. N(0, 1), and those of ``2 count`` add up
    to those of ``count``: layers of networks with L and 2L blocks that are seeded by the same path
    converge, sample by sample, as L grows.

    A path begins with ``whole`` steps, each of one draw; coarser steps are sums of these, finer
    ones are halved from them. So an increment has few terms where ``count`` is near ``whole``.
    Paths of one seed that begin with different numbers of steps are not one path, and neither are
    counts that differ by more than a power of two.
    """

    seed: int
    index: int = 0
    count: int = 1
    whole: int = 1

    def normal_(self, out: Tensor, *names: str | int) -> Tensor:
        """Fill ``out`` with the normal numbers that this increment has in the stream ``names``."""
        (weight, seed), *halvings = self.terms
        out.normal_(generator=generator(seed, *names, device=out.device)).mul_(weight)
        for weight, seed in halvings:
            fresh = torch.empty_like(out).normal_(
                generator=generator(seed, *names, device=out.device)
            )
            out.add_(fresh, alpha=weight)
        return out

    @property
    def terms(self) -> list[tuple[float, int]]:
        """Return weights and seeds of the independent normals that this increment adds up.

        Squares of the weights add up to 1.
        """
        odd, halvings = _halved(self.count)
        drawn_odd, drawn = _halved(self.whole)
        if drawn_odd != odd:
            drawn = 0
        finer = max(halvings - drawn, 0)
        coarser = max(drawn - halvings, 0)
        first = self.index << coarser >> finer
        pieces = 1 << coarser
        terms = [
            (math.pow(2, -(finer + coarser) / 2), self._draw(odd << drawn, piece))
            for piece in range(first, first + pieces)
        ]
        for level in range(drawn + 1, halvings + 1):
            later = halvings - level
            sign = -1 if (self.index >> later) & 1 else 1
            halved = derive(self.seed, "halving", odd << (level - 1), self.index >> (later + 1))
            terms.append((sign * math.pow(2, -(later + 1) / 2), halved))
        return terms

    def _draw(self, count: int, index: int) -> int:
        """The seed of an increment that is one draw."""
        return self.seed if count == 1 else derive(self.seed, "step", count, index)


def _halved(count: int) -> tuple[int, int]:
    """``(odd, k)`` with ``count = odd 2^k``."""
    k = (count & -count).bit_length() - 1
    return count >> k, k


def generator(seed: int, *names: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """The PyTorch generator of the stream ``names`` of ``seed`` on ``device``."""
    return torch.Generator(device=device).manual_seed(derive(seed, *names))


def ambient_seed() -> int:
    """Draw a seed from PyTorch's own generator, which moves.

    It is for objects that a user creates without a seed.

    It comes from the generator of the CPU on every device, so that ``torch.manual_seed`` repeats it
    everywhere.
    """
    return int(
        torch.randint(
            MAX_SEED, (), dtype=torch.int64, device="cpu", generator=torch.default_generator
        )
    )


@contextmanager
def global_streams(seed: int | None = None, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """A context in which the global streams of PyTorch, NumPy and Python begin at ``seed``.

    Afterwards they stand where they did.

    For code of the user's, which draws from them. PyTorch's streams of these ``devices`` beside the
    CPU's are kept too. With ``seed`` None the streams continue from their present state. They are
    shared by all threads.
    """
    with torch.random.fork_rng(devices=devices):
        numpys = np.random.get_state()
        pythons = random.getstate()
        try:
            if seed is not None:
                _seed_pytorch(seed)
                np.random.seed(seed % 2**32)
                random.seed(seed)
            yield
        finally:
            np.random.set_state(numpys)
            random.setstate(pythons)


class RepeatedDraws(TorchFunctionMode):
    """A context in which few numbers of a large tensor are drawn, and the others repeat them.

    For models whose initial numbers nobody measures. Whole rows are drawn, of a stack of experts
    the first expert, so that bounds that follow the number of inputs stay. Rows of a matrix still
    differ, as the count of the numbers that are repeated is a prime.
    """

    _DRAWS = (
        Tensor.normal_,
        Tensor.uniform_,
        nn.init.normal_,
        nn.init.uniform_,
        nn.init.kaiming_uniform_,
    )
    _REPEATED = 65537

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func not in self._DRAWS:
            return func(*args, **options)
        out, *law = args or (options.pop("tensor"),)
        is_large = out.numel() > 4 * self._REPEATED and not out.is_meta
        if not is_large or not out.is_contiguous():
            return func(out, *law, **options)
        rows = math.ceil(self._REPEATED * len(out) / out.numel())
        func(out.detach()[:rows], *law, **options)
        numbers = out.detach().view(-1)
        repeated = numbers[: self._REPEATED]
        for part in numbers[self._REPEATED :].split(self._REPEATED):
            part.copy_(repeated[: len(part)])
        return out


def _seed_pytorch(seed: int) -> None:
    """Seed PyTorch as ``torch.manual_seed`` does, without keeping a stack for every call.

    That function keeps the calling stack where there is no accelerator.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def global_state() -> bytes:
    """Return where the global streams of the CPU stand.

    It is equal before and after what drew nothing from them.
    """
    state: Any = np.random.get_state()
    name, keys, *rest = state
    others = repr((name, rest, random.getstate())).encode()
    return hashlib.blake2b(
        torch.get_rng_state().numpy().tobytes() + keys.tobytes() + others
    ).digest()
