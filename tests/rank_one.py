"""The slow way to see which matrices of a block write its stream: change each and look where the output goes.

``W -> W + eps u v'`` moves the block's output along ``d u``, with one gain d for every u, exactly when W writes the
stream. A writer that a later branch of the same block reads passes once the writers seen before it are zero.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.random import generator
from nfd.scaling.model import TensorInfo, call_with, evaluating, mapped, outputs_of, tensors

_STEP, _ALONG, _MOVED = 1e-4, 1e-3, 1e-9
_CACHES = ("past_key_values", "past_key_value", "layer_past", "use_cache")  # would be written to


def measured_writers(model: nn.Module, block: str, sample: Any) -> set[str]:
    """Names of the matrices that write the stream, relative to the block."""
    calls: list[tuple[Any, Any]] = []
    place = model.get_submodule(block)
    handle = place.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    with torch.no_grad(), evaluating(model):
        call_with(model, sample)
    handle.remove()
    args, kwargs = calls[0]
    given = args, {k: v for k, v in kwargs.items() if k not in _CACHES}
    args, kwargs = mapped(given, lambda p: p.double() if isinstance(p, Tensor) and p.is_floating_point() else p)
    own = _redrawn(copy.deepcopy(place))

    def output() -> Tensor:
        with torch.no_grad():
            return outputs_of(own(*args, **kwargs))

    matrices = {name: t for name, t in tensors(own).items() if not t.is_vector}
    writers: set[str] = set()
    while True:
        before = output()
        new = {name for name, t in matrices.items() if name not in writers and _writes(t, before, output)}
        if not new:
            return writers
        writers |= new
        for name in new:
            _silence(matrices[name])


def _writes(t: TensorInfo, before: Tensor, output: Any) -> bool:
    (out,) = t.outs or (0,)
    gains = []
    for name in ("u", "w"):
        u = _normal((t.shape[out],), name, t.name)
        v = _normal((*t.shape[:out], *t.shape[out + 1 :]), "v", t.name)
        change = torch.movedim(u.view(-1, *[1] * v.dim()) * v, 0, out)
        with torch.no_grad():
            t.parameter.add_(change, alpha=_STEP)
            difference = output() - before
            t.parameter.add_(change, alpha=-_STEP)
        axes = [axis for axis in range(1, before.dim()) if before.shape[axis] == len(u)]
        if float(difference.norm()) <= _MOVED * float(before.norm()) or not axes:
            return False
        rows = difference.movedim(axes[0 if before.dim() == 4 else -1], -1).flatten(0, -2)
        longest = rows[rows.norm(dim=1).argmax()]
        unit = longest / longest.norm()
        if float((rows - (rows @ unit)[:, None] * unit).norm()) > _ALONG * float(rows.norm()):
            return False
        gains.append(unit / u / (unit / u).norm())
    return float(min((gains[0] - gains[1]).norm(), (gains[0] + gains[1]).norm())) <= _ALONG


def _silence(t: TensorInfo) -> None:
    with torch.no_grad():
        t.parameter.zero_()
        if isinstance(bias := getattr(t.owner, "bias", None), Tensor):
            bias.zero_()


def _redrawn(block: nn.Module) -> nn.Module:
    """Every tensor at a generic value, so that a start at zero hides nothing."""
    block = block.double().eval()
    with torch.no_grad():
        for name, t in tensors(block).items():
            noise = _normal(t.shape, "block", name)
            gain = float(name.endswith("weight") or bool((t.parameter == 1).all()))
            t.parameter.copy_(gain + 0.1 * noise if t.is_vector else noise / (t.fan_in() or t.shape[-1]) ** 0.5)
    return block


def _normal(shape: tuple[int, ...], *names: str) -> Tensor:
    return torch.randn(shape, generator=generator(0, "rank one", *names), dtype=torch.float64)
