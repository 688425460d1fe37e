"""``nfd.meta_matrices``: a model of any size with its vectors and buffers, and without the numbers of its matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class meta_matrices(TorchFunctionMode):  # noqa: N801 - a context manager, named as torch.no_grad is
    """Within it, matrices are made on the meta device: they have shapes and no numbers, and take no memory.

    Matrices are what a constructor makes by ``torch.empty`` with two or more dimensions, as all layers of PyTorch and
    of Hugging Face do before they draw it. Vectors and buffers have numbers: rotary tables, masks, running statistics.
    Under ``torch.device("meta")`` these would be lost. Give the model to ``nfd.plan`` and ``nfd.defer``.

    Example::

        with nfd.meta_matrices():
            model = make_model(2**16, 4)
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if function is torch.empty and options.get("device") is None:
            made = function(*args, **{**options, "device": "meta"})
            if made.dim() > 1:
                return made
        return function(*args, **options)
