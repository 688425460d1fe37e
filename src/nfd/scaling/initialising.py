"""How a plan begins a model: every tensor drawn or set, and forward multipliers inserted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.random import generator
from nfd.core.statistics import rms
from nfd.scaling.scaled import Scaled
from nfd.scaling.self_describing import head_sizes
from nfd.scaling.shards import fill_
from nfd.scaling.tensors import TensorInfo, whole

if TYPE_CHECKING:
    from nfd.scaling.held import Held
    from nfd.scaling.plan import Plan


def initialise(plan: Plan, named: Mapping[str, Held], infos: Mapping[str, TensorInfo], seed: int) -> None:
    """Draw every random tensor N(0, std^2), from a stream of its name, and set every constant one, in place.

    What is kept has its numbers, but for a factor where the rule scales it.

    Raises:
        ValueError: where a layer that is not stored began otherwise.
    """
    for name, held in named.items():
        if held.std is not None:
            _check_begun(name, held.std, plan.std(name))
            continue
        (p,) = held.parameters
        if not p.requires_grad:
            continue
        if (start := start_of(plan, infos[name], seed)) is not None:
            fill_(p, start)
        elif plan.std(name) and plan.start_factor(name) != 1:
            with torch.no_grad():
                p.mul_(plan.std(name) / rms(whole(p).double()))  # a second call changes nothing


def start_of(plan: Plan, t: TensorInfo, seed: int) -> Tensor | None:
    """What a plan begins a tensor with, on the CPU, the same at every call; None where it leaves it as it is."""
    if plan.entries[t.name].start.kept:
        return None
    if (constant := plan.constant(t.name)) is not None:
        return torch.full(t.shape, constant, dtype=t.parameter.dtype, device="cpu")
    stream = generator(seed, "init", t.name)
    start = torch.randn(t.shape, generator=stream, dtype=torch.float32, device="cpu").mul_(plan.std(t.name))
    if t.padding is not None:
        start[t.padding] = 0
    return start


def _check_begun(name: str, std: float, planned: float) -> None:
    """ValueError unless a layer without stored weights began as the plan says."""
    if not math.isclose(std, planned, rel_tol=1e-6):
        raise InputError(
            f"{name!r} is not stored and began with standard deviation {std:.4g}; the plan begins it with "
            f"{planned:.4g}. Let nfd.defer(model, plan) make its layer."
        )


def insert_multiplier(model: nn.Module, name: str, factor: float) -> None:
    """Put ``nfd.Scaled`` around a module; one that stands there gets the factor.

    Raises:
        ValueError: when the name is that of a whole attention, whose queries have no module of their own.
    """
    module = model.get_submodule(name)
    if isinstance(module, Scaled):
        module.factor = factor
        return
    if "" in head_sizes(module):  # it is a whole attention
        raise InputError(
            f"The size of a head grows with width, and {name!r} makes queries, keys and values together, so that the "
            "factor of the logits cannot be inserted. Let make_model keep the size of a head and grow their number: "
            "heads = width // 16."
        )
    model.set_submodule(name, Scaled(module, factor))
