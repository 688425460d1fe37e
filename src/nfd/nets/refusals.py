"""What a layer without stored weights refuses: the queries and the programs for which its answer would be wrong."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from nfd.core.errors import InputError, InputTypeError, StateError, check_dense


class Layer(Protocol):
    """What these need of a layer."""

    in_features: int
    update: Any

    @property
    def kind(self) -> str: ...


STORED = "stored weights (weights='dense' in a network of nfd, torch.nn.Linear elsewhere)"
WHOLE_GRAPH = (  # what PyTorch's compiler says of fullgraph=True
    "A layer without stored weights grows with its inputs, so no graph can hold it: torch.compile leaves it out. "
    f"Compile with fullgraph=False, or use {STORED}."
)


def check_query(layer: Layer, x: Tensor) -> Tensor:
    """Return ``x`` if it is ``[..., in_features]`` in the precision of the layer; otherwise raise."""
    if check_dense("x", x).dim() == 0 or x.shape[-1] != layer.in_features:
        raise InputError(f"x must have {layer.in_features} features in its last axis; got shape {list(x.shape)}.")
    if x.dtype != layer.update.dtype:
        raise InputTypeError(f"x must be {layer.update.dtype}, the dtype of the layer; got {x.dtype}.")
    if torch.is_autocast_enabled(x.device.type):
        raise StateError(
            f"{layer.kind} does not support autocast: its directions must be orthonormal to full precision. "
            "Leave it outside, under torch.autocast(..., enabled=False)."
        )
    return x


def refuse_tracing(layer: Layer) -> None:
    """Raise where PyTorch transforms or records a program instead of running it once."""
    if torch._C._are_functorch_transforms_active():
        raise StateError(
            f"{layer.kind} does not support the transforms of torch.func (vmap, grad, jvp, vectorised Jacobians): "
            f"its answers depend on earlier products. Use backward(), batches for vmap, or {STORED}."
        )
    if torch._C._get_tracing_state() is not None:
        raise StateError(
            f"{layer.kind} cannot be traced: it grows with what it is asked, and a trace would repeat one answer. "
            f"Trace the network of its complete() weights, or use {STORED}."
        )


def refuse_export(layer: Layer) -> None:
    """Raise where the layer is inside of a graph that torch.export makes."""
    if torch.compiler.is_compiling():
        raise StateError(
            f"A {layer.kind} cannot be exported: it grows with what it is asked. Export the network of its "
            f"complete() weights, or use {STORED}."
        )


def refuse_checkpointing(layer: Layer) -> None:
    """Raise where a forward pass is repeated inside of a backward pass."""
    if torch._C._current_graph_task_id() != -1:
        raise StateError(
            f"{layer.kind} does not support activation checkpointing: recomputing a forward pass would query the "
            "matrix a second time. It stores no activations of its own to save; remove the checkpoint."
        )


def refuse_second_derivatives(layer: Layer) -> None:
    """Raise inside of a backward pass that is to be differentiated itself."""
    if torch.is_grad_enabled():
        raise StateError(
            f"{layer.kind} does not support double backward (create_graph=True): its gradient is itself a "
            f"query of the matrix and is not differentiable. For second derivatives use {STORED}."
        )
