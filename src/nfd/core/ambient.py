"""The modes of PyTorch around a call of ours, and how our computations stay as they are.

Inside of ``torch.autocast`` products are taken in 16 bits, and the cast of a weight is kept until the context ends: a
network that is trained inside of one is evaluated with its first weights, after any step of its optimizer. Without
gradients nothing trains; a default device or type is where tensors of ours would be made. None of this is meant for an
answer of this library, so every public computation is wrapped by ``undisturbed``, which turns it off and back on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_AUTOCASTS = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def undisturbed() -> Iterator[None]:
    """No autocast, no inference mode, gradients, tensors on the CPU and in single precision unless said otherwise.

    Also a decorator: ``@undisturbed()``.
    """
    import torch  # the command line looks at its options before it loads PyTorch

    with ExitStack() as stack:
        _enter_gradients(stack)
        if torch.get_default_dtype() != torch.float32:
            stack.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(torch.float32)
        if torch.get_default_device() != torch.device("cpu"):
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def gradients() -> Iterator[None]:
    """No autocast, no inference mode, gradients: for models of others, which may want a default device or type.

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
