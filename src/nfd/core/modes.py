"""The modes of PyTorch around a call of ours, so that our computations stay as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line looks at its options before it loads PyTorch
    import torch


_AUTOCASTS = ("cpu", "cuda", "mps", "xpu")
# PyTorch's default type outside of our calls
_TOLD: ContextVar[torch.dtype | None] = ContextVar("told", default=None)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A context of our own computations, whatever modes the caller has set.

    It has no autocast and no inference mode, but gradients, and tensors on the CPU and in single
    precision unless said otherwise.

    Also a decorator: ``@undisturbed()``.
    """
    import torch  # the command line looks at its options before it loads PyTorch

    with ExitStack() as stack:
        _enter_gradients(stack)
        if torch.get_default_dtype() != torch.float32:
            stack.enter_context(told_type(torch.get_default_dtype()))
            stack.enter_context(default_type(torch.float32))
        if torch.get_default_device() != torch.device("cpu"):
            stack.enter_context(torch.device("cpu"))
        yield


def users_type() -> torch.dtype:
    """Return PyTorch's default type as the caller of our outermost call has set it.

    It is for models of others.
    """
    import torch

    return _TOLD.get() or torch.get_default_dtype()


@contextmanager
def told_type(dtype: torch.dtype) -> Iterator[None]:
    """What ``users_type`` says inside, also where our own computations have another default."""
    token = _TOLD.set(dtype)
    try:
        yield
    finally:
        _TOLD.reset(token)


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """Another default type of PyTorch."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def gradients() -> Iterator[None]:
    """A context for models of others: no autocast, no inference mode, gradients.

    These may want a default device or type.

    Also a decorator: ``@gradients()``.
    """
    with ExitStack() as stack:
        _enter_gradients(stack)
        yield


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or where it was made in inference mode a copy, which may be trained on."""
    return tensor.clone() if tensor.is_inference() else tensor


def _enter_gradients(stack: ExitStack) -> None:
    import torch

    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.enable_grad())
    for kind in _AUTOCASTS:
        with suppress(RuntimeError):  # a kind of device that this PyTorch does not know
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
