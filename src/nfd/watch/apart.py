"""Passes over a sample that leave the training around them as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from nfd.core.machine import gradients
from nfd.core.random import global_streams
from nfd.scaling.model import as_written, attention_by_parts


@contextmanager
def apart(model: nn.Module) -> Iterator[None]:
    """Within it a model runs outside of a trainer's autocast, as it was written where it is compiled, attention by its
    parts, from random streams of its own; afterwards its buffers and the global streams are what they were."""
    places = {p.device for p in model.parameters() if p.device.type != "cpu"}
    with ExitStack() as stack:
        stack.enter_context(gradients())
        stack.enter_context(global_streams(0, sorted(places, key=str)))
        stack.enter_context(as_written())
        stack.enter_context(attention_by_parts())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_same_buffers(model))
        stack.enter_context(_own_forward(model))
        yield


@contextmanager
def _same_buffers(model: nn.Module) -> Iterator[None]:
    """Buffers that a pass writes or replaces are put back."""
    before = [
        (module._buffers, name, buffer, buffer.clone(), buffer._version)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        for held, name, buffer, values, version in before:
            if buffer._version != version:
                buffer.copy_(values)
            held[name] = buffer


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """The model's own ``forward``, where Accelerate put one of 16 bits over it and left it beside. The start of a
    training was read before that, and differences of numbers of 16 bits are noise where the updates are small."""
    wrapped = model.__dict__.get("forward")
    if wrapped is None or "_original_forward" not in model.__dict__:
        yield
        return
    model.forward = model.__dict__["_original_forward"]
    try:
        yield
    finally:
        model.forward = wrapped
