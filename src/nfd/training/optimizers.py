"""The one place that makes optimizers: from a name and parameter groups to what steps a network, or a stack of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nfd.core.errors import InputError, check_choice
from nfd.nets.guarded import Guarded
from nfd.nets.sgd import SGD
from nfd.nets.stacked_optimizers import StackedAdam, StackedOptimizer, StackedSGD
from nfd.scaling.exactness import check_optimizer

Groups = Sequence[dict[str, Any]]

_SINGLE: Mapping[str, Callable[[Groups, float], torch.optim.Optimizer]] = {
    "sgd": lambda groups, momentum: SGD(groups, momentum=momentum),
    "adam": lambda groups, _: torch.optim.Adam(groups),
    "adamw": lambda groups, _: torch.optim.AdamW(groups),
}
_STACKED: Mapping[str, Callable[[Groups, float], StackedOptimizer]] = {
    "sgd": StackedSGD,
    "adam": lambda groups, _: StackedAdam(groups),
}


def check_made(name: str) -> None:
    """ValueError for the name of an optimizer that a plan knows and nothing here makes."""
    if name not in _SINGLE:
        raise InputError(f"optimizer={name!r} is not built here; pass make_optimizer=, a function of parameter groups.")


def optimizer_named(name: str, groups: Groups, *, momentum: float = 0.0) -> torch.optim.Optimizer:
    """The optimizer of one network, dense or deferred.

    Args:
        name: ``"sgd"``, ``"adam"`` or ``"adamw"``.
        groups: parameters with their ``lr`` and, where it applies, ``eps`` and ``weight_decay``.
        momentum: of SGD.

    Raises:
        ValueError: for another name, and for what the optimizer cannot do exactly.
    """
    groups = list(groups)
    deferred = any(isinstance(p, Guarded) for group in groups for p in group["params"])
    check_optimizer(check_choice("optimizer", name, _SINGLE), momentum=momentum, deferred=deferred)
    return _SINGLE[name](groups, momentum)


def stacked_optimizer_named(name: str, groups: Groups, *, momentum: float = 0.0) -> StackedOptimizer:
    """The optimizer of a ``Stack``, which steps during backward: ``"sgd"`` or ``"adam"``; otherwise as above."""
    check_optimizer(check_choice("optimizer", name, _STACKED), momentum=momentum)
    return _STACKED[name](groups, momentum)
