"""Which matrices of a residual block write the stream, decided by measurement.

``W -> W + eps u v'`` moves the block's output along ``u`` and nothing else exactly when ``W`` writes the stream, or
along ``d u`` with fixed gains d when LayerScale stands behind it. A value projection does not pass: its change reaches
the output through another matrix. A writer whose output a later branch of the same block reads passes once the writers
found before it are set to zero. The probe runs in float64 on a copy of the block with every tensor drawn anew, so that
initialisations at zero hide nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from nfd.core.random import generator
from nfd.scaling.calls import Call, doubled
from nfd.scaling.tensors import TensorInfo, tensors

_STEP = 1e-4
_ALONG = 1e-3  # of the change: what may lie off u; rounding and curvature leave far less
_MOVED = 1e-9  # of the output: the least change that tells anything
_CACHES = ("past_key_values", "past_key_value", "layer_past", "use_cache")  # would be written to


@dataclass(frozen=True)
class Probed:
    """Names, relative to the block, of the matrices that write the stream, and of those that moved nothing.

    ``residual``: whether the block passes its input on, unchanged, once the writers are zero.
    """

    writers: frozenset[str]
    silent: frozenset[str]
    residual: bool


def probe(block: nn.Module, call: Call) -> Probed:
    """Sort the matrices of a block by what a rank-one change does to its output."""
    block = _redrawn(copy.deepcopy(block))
    args, kwargs = doubled(call.args), doubled({k: v for k, v in call.kwargs.items() if k not in _CACHES})

    def output() -> Tensor:
        with torch.no_grad():
            return _stream(block(*args, **kwargs))

    matrices = {name: t for name, t in tensors(block).items() if not t.is_vector}
    writers: set[str] = set()
    silent: set[str] = set()
    while True:
        before = output()
        answers = {name: _writes(t, before, output) for name, t in matrices.items() if name not in writers}
        if not writers:
            silent = {name for name, answer in answers.items() if answer is None}
        new = {name for name, answer in answers.items() if answer}
        if not new:
            return Probed(frozenset(writers), frozenset(silent), _passes_on(before, args, kwargs))
        writers |= new
        _silence(block, new)


def _passes_on(output: Tensor, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an output is one of the inputs."""
    given = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and v.shape == output.shape]
    return any(float((output - v).norm()) <= _ALONG * float(v.norm()) for v in given if v.is_floating_point())


def _writes(t: TensorInfo, before: Tensor, output: Callable[[], Tensor]) -> bool | None:
    """Whether changes along two ``u`` move the output along ``d u``, with one d for both; None where nothing moves."""
    moved = False
    for outs in [t.outs] if t.outs is not None else [(k,) for k in range(t.parameter.dim())]:
        if len(outs) != 1:
            continue
        us = [_normal(t.shape[outs[0]], name, t.name).to(t.parameter.device) for name in ("u", "w")]
        differences = [_moved(t, u, outs[0], before, output) for u in us]
        if any(d is None for d in differences):
            continue
        moved = True
        for axis in _channel_axes(before, len(us[0])):
            gains = [_gains(d, u, axis) for d, u in zip(differences, us, strict=True) if d is not None]
            if all(g is not None for g in gains) and _same(gains):
                return True
    return False if moved else None


def _moved(t: TensorInfo, u: Tensor, out: int, before: Tensor, output: Callable[[], Tensor]) -> Tensor | None:
    """How ``W + eps u v'`` moves the output; None where it does not."""
    v = _normal((*t.shape[:out], *t.shape[out + 1 :]), "v", t.name).to(u.device)
    change = torch.movedim(u.view(-1, *[1] * v.dim()) * v, 0, out)
    with torch.no_grad():
        t.parameter.add_(change, alpha=_STEP)
        difference = output() - before
        t.parameter.add_(change, alpha=-_STEP)
    return difference if float(difference.norm()) > _MOVED * float(before.norm()) else None


def _gains(difference: Tensor, u: Tensor, axis: int) -> Tensor | None:
    """The direction of all rows of a difference, over ``u``, entry by entry; None where they have several."""
    rows = difference.movedim(axis, -1).flatten(0, -2)
    longest = rows[rows.norm(dim=1).argmax()]
    unit = longest / longest.norm()
    off = rows - (rows @ unit)[:, None] * unit
    return unit / u if float(off.norm()) <= _ALONG * float(rows.norm()) else None


def _same(gains: Sequence[Tensor | None]) -> bool:
    """Whether per-channel gains agree up to a factor: all equal for a plain writer, LayerScale's for one behind it."""
    first, second = (g / g.norm() for g in gains if g is not None)
    return float(min((first - second).norm(), (first + second).norm())) <= _ALONG


def _channel_axes(output: Tensor, size: int) -> list[int]:
    return [axis for axis in range(1, output.dim()) if output.shape[axis] == size]


def _silence(block: nn.Module, writers: Iterable[str]) -> None:
    for name in writers:
        t = tensors(block)[name]
        with torch.no_grad():
            t.parameter.zero_()
            bias = getattr(t.owner, "bias", None)
            if isinstance(bias, Tensor) and bias.dim() == 1:
                bias.zero_()


def _redrawn(block: nn.Module) -> nn.Module:
    """Every tensor at a generic value of usual size: gains near one, matrices keeping the size of what they map."""
    block = block.double().eval()
    with torch.no_grad():
        for name, t in tensors(block).items():
            noise = _normal(t.shape, "block", name)
            if t.is_vector:
                gain = name.endswith("weight") or bool((t.parameter == 1).all())
                t.parameter.copy_(float(gain) + 0.1 * noise)
            else:
                fan_in = t.fan_in() or t.shape[-1]
                t.parameter.copy_(noise / max(fan_in, 1) ** 0.5)
    return block


def _normal(shape: int | tuple[int, ...], *names: str) -> Tensor:
    shape = (shape,) if isinstance(shape, int) else shape
    return torch.randn(shape, generator=generator(0, "probe", *names), dtype=torch.float64, device="cpu")


def _stream(output: Any) -> Tensor:
    while isinstance(output, tuple | list):
        output = output[0]
    if isinstance(output, dict):
        output = next(iter(output.values()))
    return cast(Tensor, output)
