"""Initial weights by a plan, also of models without numbers (meta device) and in parts (shards).

A stream of PyTorch's generator can only be drawn from its beginning. So every process draws the
whole of one tensor on the CPU and keeps its part: the numbers are those of the unsharded model, bit
for bit, no process waits for another, and what is needed at a time beside the parts is the memory
of one tensor.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.random import generator
from nfd.core.words import quoted
from nfd.scaling.held import Held, held_as_planned, held_by, is_sharded
from nfd.scaling.model import Scaled, TensorInfo, tensors, whole

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan


def initialise_(plan: Plan, model: nn.Module, seed: int, device: torch.device) -> None:
    """Initialise a model in place, and insert the multipliers: ``Plan.apply_``."""
    held_as_planned(model, plan.entries)
    _materialise(plan, model, device)
    infos = tensors(model)
    for name, held in held_by(model).items():
        if held.std is not None:
            _check_std(plan, name, held.std)
        elif held.is_trained:
            _initialise_tensor(plan, infos[name], held, seed)
    for name, factor in plan.multipliers.items():
        module = model.get_submodule(name)
        if isinstance(module, Scaled):
            module.factor = factor
        else:
            model.set_submodule(name, Scaled(module, factor))


def _check_std(plan: Plan, name: str, std: float) -> None:
    """Raise unless a tensor that is not stored has the standard deviation of the plan."""
    planned = plan.std(name)
    if not math.isclose(std, planned, rel_tol=1e-6):
        raise InputError(
            f"{name!r} is not stored and began with standard deviation {std:.4g}; the plan begins "
            f"it with {planned:.4g}. Let nfd.defer(model, plan) make its layer."
        )


def _initialise_tensor(plan: Plan, info: TensorInfo, held: Held, seed: int) -> None:
    """Draw a tensor, or scale what its constructor made of it."""
    name = info.name
    start = drawn(plan, info, seed)
    if start is not None:
        fill_(held.parameters[0], start)
    elif plan.std(name) and plan.start_factor(name) != 1:
        (p,) = held.parameters
        # It is scaled to an RMS, and not by a factor: a second call changes nothing.
        rms = whole(p).double().square().mean().sqrt()
        with torch.no_grad():
            p.mul_(plan.std(name) / rms)


def drawn(plan: Plan, t: TensorInfo, seed: int) -> Tensor | None:
    """Draw the initial weights of a tensor on the CPU, equal at every call.

    None of a tensor that stays as its constructor made it.
    """
    if plan.entries[t.name].start.kept:
        return None
    constant = plan.constant(t.name)
    if constant is not None:
        return torch.full(t.shape, constant, dtype=t.parameter.dtype, device="cpu")
    stream = generator(seed, "init", t.name)
    start = torch.randn(t.shape, generator=stream, dtype=torch.float32, device="cpu")
    start.mul_(plan.std(t.name))
    if t.padding is not None:
        start[t.padding] = 0
    return start


def fill_(p: Tensor, whole: Tensor) -> None:
    """Write a whole tensor into a parameter, or its part into a shard; nothing is sent."""
    if is_sharded(p):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = p
        whole = distribute_tensor(
            whole.to(p.dtype), sharded.device_mesh, sharded.placements, src_data_rank=None
        )
    with torch.no_grad():
        p.copy_(whole)


def warn_of_meta(model: nn.Module) -> None:
    """Warn of an optimizer whose parameters another call replaces, at the caller of its maker."""
    if torch.__future__.get_swap_module_params_on_conversion():
        # to_empty keeps them.
        return
    empty = [
        name
        for name, t in tensors(model).items()
        if t.parameter.is_meta and t.parameter.requires_grad
    ]
    if empty:
        warnings.warn(
            f"The optimizer holds {quoted(empty, 3)} on the meta device. plan.apply_(model) and "
            "model.to_empty(device=...) replace these parameters, and this optimizer would then "
            "train nothing: call make_optimizer after them.",
            UserWarning,
            stacklevel=3,
        )


def _materialise(plan: Plan, model: nn.Module, device: torch.device) -> None:
    """Give memory to every parameter that is on the meta device; tied ones stay tied.

    Of a sharded parameter only the part of this process gets memory.

    Raises:
        ValueError: naming buffers, kept parameters and parameters with hooks, whose numbers or
            hooks no plan knows.
    """
    empty = {name: t.parameter for name, t in tensors(model).items() if t.parameter.is_meta}
    unknown = []
    for name, p in empty.items():
        if not p.requires_grad or p._backward_hooks or plan.entries[name].start.kept:
            unknown.append(name)
    unknown += [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if unknown:
        raise InputError(
            f"{quoted(unknown)} are on the meta device, and the plan does not know their numbers, "
            "or hooks. Build the model under nfd.meta_matrices(), where buffers and vectors have "
            "numbers, or under no such context."
        )
    if not empty:
        return

    replacements: dict[int, nn.Parameter] = {}
    for p in empty.values():
        sharded: Any = p
        place = str(sharded.device_mesh.device_type) if is_sharded(p) else device
        replacements[id(p)] = nn.Parameter(torch.empty_like(p, device=place))
    for module in model.modules():
        for key, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(p) in replacements:
                setattr(module, key, replacements[id(p)])
