"""Tensors without numbers and tensors in parts: made and filled one after the other, each process its own part.

A stream of PyTorch's generator can only be drawn from its beginning. So every process draws the whole of one tensor on
the CPU and keeps its part: the numbers are those of the unsharded model, bit for bit, no process waits for another, and
what is needed at a time beside the parts is the memory of one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.scaling.names import listed
from nfd.scaling.tensors import TensorInfo

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan


def is_sharded(p: Tensor) -> bool:
    """Whether a parameter is a DTensor, of which a process holds a part."""
    return hasattr(p, "placements")


def fill_(p: Tensor, whole: Tensor) -> None:
    """Write a whole tensor, of which a sharded parameter takes the part of this process; nothing is sent."""
    if is_sharded(p):
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = p
        whole = distribute_tensor(whole.to(p.dtype), sharded.device_mesh, sharded.placements, src_data_rank=None)
    with torch.no_grad():
        p.copy_(whole)


def materialise(plan: Plan, model: nn.Module, infos: Mapping[str, TensorInfo], device: torch.device) -> None:
    """Give every parameter that is on the meta device memory, of a sharded one its part alone; tied ones stay tied.

    Args:
        device: of parameters that are not sharded. Parts go where the mesh of the sharding is.

    Raises:
        ValueError: naming tensors whose numbers no plan knows: buffers, and parameters that it leaves as they are.
    """
    empty = {id(t.parameter): name for name, t in infos.items() if t.parameter.is_meta}
    unknown = [name for name in empty.values() if not _begins(plan, infos[name])]
    unknown += [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if unknown:
        raise InputError(
            f"{listed(unknown)} are on the meta device, and the plan does not know their numbers. Build the model "
            "under nfd.meta_matrices(), where buffers and vectors have numbers, or under no such context."
        )
    made: dict[int, nn.Parameter] = {}
    for module in model.modules() if empty else ():
        for key, p in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(p) in empty:
                if id(p) not in made:
                    made[id(p)] = nn.Parameter(torch.empty_like(p, device=_place(p, device)))
                setattr(module, key, made[id(p)])


def _place(p: Any, device: torch.device) -> torch.device | str:
    return str(p.device_mesh.device_type) if is_sharded(p) else device


def _begins(plan: Plan, t: TensorInfo) -> bool:
    return t.parameter.requires_grad and not plan.entries[t.name].start.kept
