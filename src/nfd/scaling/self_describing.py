"""What modules of PyTorch and Hugging Face tell of themselves: an input to try them with, and the size of heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from nfd.scaling.model import modules

_HEAD_SIZES = ("head_dim", "attention_head_size", "head_size")
_QUERIES = ("q_proj", "query", "q")
_PIXELS = 64  # of images, where a model takes any size


def own_samples(model: nn.Module) -> dict[str, Any]:
    """An input of every outermost module that says what it takes, by name."""
    samples: dict[str, Any] = {}
    for name, module in modules(model).items():
        inside = any(name.startswith(f"{outer}.") or not outer for outer in samples)
        sample = None if inside else _sample_of(module)
        if sample is not None:
            samples[name] = sample
    return samples


def _sample_of(module: nn.Module) -> Any:
    place = next((p.device for p in module.parameters()), None)
    if isinstance(module, nn.TransformerEncoder):
        weight = next(module.parameters())
        return torch.ones(1, 2, weight.shape[-1], dtype=weight.dtype, device=place)
    if not hasattr(module, "dummy_inputs") or not hasattr(module, "main_input_name"):  # Hugging Face's
        return None
    if module.main_input_name == "pixel_values":
        config: Any = module.config
        size = getattr(config, "image_size", None) or _PIXELS
        height, width = (size, size) if isinstance(size, int) else size
        return {"pixel_values": torch.ones(1, config.num_channels, height, width, device=place)}
    if module.main_input_name != "input_ids":
        return None
    given: dict[str, Any] = module.dummy_inputs  # type: ignore[assignment]
    return {name: v.to(place) if isinstance(v, Tensor) else v for name, v in given.items()}


def _divides_logits(module: nn.Module, size: int) -> bool:
    """Whether an attention with heads of this size divides logits by its root: PyTorch's do, others keep the factor."""
    factors = [value for value in vars(module).values() if isinstance(value, float)]
    by_root = any(math.isclose(factor, root) for factor in factors for root in (size**-0.5, size**0.5))
    return isinstance(module, nn.MultiheadAttention) or by_root


def head_sizes(model: nn.Module) -> dict[str, int]:
    """The size of heads whose logits are divided by its root, by the module that makes the queries.

    Where queries, keys and values are made together, the name is that of the attention.
    """
    sizes = {}
    for name, module in modules(model).items():
        size = next((s for key in _HEAD_SIZES if isinstance(s := getattr(module, key, None), int)), None)
        if size is not None and _divides_logits(module, size):
            query = next((key for key in _QUERIES if isinstance(getattr(module, key, None), nn.Module)), None)
            sizes[f"{name}.{query}" if query else name] = size
    return sizes
