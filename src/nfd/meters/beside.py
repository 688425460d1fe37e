"""What keeps any rule from preventing a fault: norms whose epsilon decides, and rounded updates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nfd.core.tables import Row
from nfd.scaling.model import modules, numberless


@dataclass(frozen=True)
class Beside:
    """What is known of networks beside their meters, in words; empty where nothing is."""

    norms: str = ""
    rounding: str = ""


def beside_of(runs: Sequence[Row]) -> Beside:
    """Say what the networks of a check show beside their meters, for the words of faults."""
    return Beside(_weak_norms(runs), _rounding(runs))


# ---- Norms

# Epsilon over variance: sound models have 1.5 at most (Gemma 3 at width 32), OLMo 2 has 40 to 4e6.
_WEAK = 10.0
# Names of epsilon in norms of PyTorch and transformers
_EPSILONS = ("eps", "epsilon", "variance_epsilon")


@contextmanager
def norms_of(model: nn.Module) -> Iterator[dict[str, float]]:
    """Find norms in a forward pass whose epsilon is more than ten times their inputs' variance.

    Their names have ``*`` for numbers; the values are the largest of these ratios, by the median
    over vectors.
    """
    weak = dict[str, float]()

    def look(name: str, epsilon: float, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        ratio = _epsilon_over_variance(module, epsilon, args[0] if args else None, out)
        if ratio is not None and ratio > _WEAK:
            weak[name] = max(ratio, weak.get(name, 0.0))

    with ExitStack() as hooks:
        for name, module in modules(model).items():
            epsilon = _epsilon(module)
            if epsilon:
                see = partial(look, numberless(name), epsilon)
                hooks.enter_context(module.register_forward_hook(see))
        yield weak


def _epsilon(module: nn.Module) -> float:
    """The epsilon of a norm of vectors; 0 for other modules."""
    if isinstance(module, _BatchNorm | nn.GroupNorm):
        return 0.0
    for name in _EPSILONS:
        epsilon = getattr(module, name, None)
        if isinstance(epsilon, float):
            return epsilon
    return 0.0


def _epsilon_over_variance(module: nn.Module, epsilon: float, x: Any, out: Any) -> float | None:
    """The ratio by the median vector; None where the module does not map vectors to vectors."""
    if not isinstance(x, Tensor) or not isinstance(out, Tensor):
        return None
    if x.shape != out.shape or not x.numel():
        return None
    vectors = x.detach().double()
    if isinstance(module, nn.LayerNorm):
        vectors = vectors - vectors.mean(-1, keepdim=True)
    variance = float(vectors.square().mean(-1).median())
    # Zeros have a finite ratio too.
    return epsilon / max(variance, torch.finfo(torch.float32).tiny)


def _weak_norms(runs: Sequence[Row]) -> str:
    """Name the norm that most lets the scale of what it normalises through."""
    weak = []
    for run in runs:
        for name, ratio in run.get("weak_norms", {}).items():
            weak.append((ratio, name, run["width"]))
    if not weak:
        return ""
    ratio, name, width = max(weak)
    return (
        f"the epsilon of {name} is {ratio:.1e} times the variance of its inputs at width {width}, "
        "so that this norm lets the scale of its branch through. Begin weights larger, lower the "
        "epsilon, or take wider networks."
    )


# ---- Updates of 16 bits

# Fewer entries move if their share is below this multiple of the narrowest network's share.
_FEWER = 0.9


def rounded_kinds(runs: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Find kinds of 16-bit tensors of which training changes fewer entries as they widen.

    Returns:
        The shares of entries that move in the narrowest and in the widest network.
    """
    widths = sorted({run["width"] for run in runs})
    if len(widths) < 2:
        return {}
    narrowest = widths[0]
    widest = widths[-1]
    kinds = {}
    for kind, shares in _shares_that_move(runs).items():
        if narrowest not in shares or widest not in shares:
            continue
        small = math.fsum(shares[narrowest]) / len(shares[narrowest])
        large = math.fsum(shares[widest]) / len(shares[widest])
        if large < _FEWER * small:
            kinds[kind] = small, large
    return kinds


def _shares_that_move(runs: Sequence[Row]) -> Mapping[str, Mapping[int, list[float]]]:
    """The shares of entries that move, by kind of tensors and by width."""
    shares: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for row in run.get("tensors", ()):
            if "moved" in row:
                by_width = shares.setdefault(row["kind"], {})
                by_width.setdefault(run["width"], []).append(row["moved"])
    return shares


def rounded_text(small: float, large: float) -> str:
    """Say what is rounded away, by the shares of entries that move in both networks."""
    return (
        f"training changes {large:.0%} of its entries in the widest network and {small:.0%} in the "
        "narrowest: weights of 16 bits round updates away that are small beside them. Keep weights "
        "of 32 bits, and compute in 16 by torch.autocast"
    )


def _rounding(runs: Sequence[Row]) -> str:
    """Name the tensor that loses most to rounding, for meters that collapse with it."""
    kinds = rounded_kinds(runs)
    if not kinds:
        return ""
    kind = min(kinds, key=lambda kind: kinds[kind][1] / kinds[kind][0])
    return f"Of {kind} {rounded_text(*kinds[kind])}"
