"""``nfd.meta_matrices``: a model of any size with its vectors and buffers, and without the numbers of its matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class meta_matrices(TorchFunctionMode):  # noqa: N801 - a context manager, named as torch.no_grad is
    """A context in which models are built without memory for their matrices, so that they can have any width.

    Matrices are made on the meta device: they have shapes and no numbers. This applies to tensors of two or more
    dimensions that are made by ``torch.empty``, as in all layers of PyTorch and Hugging Face. Vectors and buffers keep
    their numbers: rotary tables, masks, running statistics. Under ``torch.device("meta")`` these would be lost. Pass
    the model to ``nfd.plan`` and ``nfd.defer``.

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
