"""Roles of a model on the meta device, which has shapes and no numbers: they are those of its base."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.blocks import blocks_of, in_base
from nfd.scaling.names import numberless
from nfd.scaling.roles import Anatomy, Decision, Scaling, anatomy
from nfd.scaling.tensors import TensorInfo, modules, tensors

_UNKNOWN = Decision(None, "the base has no such tensor")


def is_unbuilt(model: nn.Module) -> bool:
    """Whether tensors of a model are on the meta device."""
    return any(p.is_meta for p in model.parameters())


def anatomy_by_base(
    model: nn.Module,
    base: nn.Module | None,
    *,
    blocks: str | Sequence[str] | None,
    roles: Mapping[str, str],
    sample: Any,
    scaling: Scaling | None,
) -> Anatomy:
    """What ``anatomy`` finds, traced on the base where the model is on the meta device.

    Raises:
        ValueError: as by ``anatomy``, and for a model on the meta device without a base.
    """
    if not is_unbuilt(model):
        return anatomy(model, blocks=blocks, roles=roles, sample=sample, scaling=scaling)
    if base is None:
        raise InputError(
            "The model is on the meta device, so nothing can be traced in it. Pass make_model= and base_width=, or "
            "base=: roles and starts are then found there."
        )
    grows = {name: (scaling or {}).get(name, (False,) * len(t.shape)) for name, t in tensors(base).items()}
    small = anatomy(base, blocks=blocks, roles=roles, sample=sample, scaling=grows)
    names = blocks_of(model, blocks)
    own = {name: (t, in_base(name, names, small.blocks, small.tensors)) for name, t in tensors(model).items()}
    decisions = {name: small.decisions.get(other, _UNKNOWN) for name, (_, other) in own.items()}
    with_fans = {name: _with_fans_of(t, small.tensors.get(other)) for name, (t, other) in own.items()}
    alike = set(map(numberless, small.unscaled))
    unscaled = tuple(name for name in modules(model) if numberless(name) in alike)
    norms = {head: norm for head, norm in small.norms.items() if own.keys() >= {head, *norm}}  # outside of blocks
    return Anatomy(with_fans, decisions, names, small.interrupted, unscaled, norms, small.attends, small.followed)


def _with_fans_of(t: TensorInfo, other: TensorInfo | None) -> TensorInfo:
    return t if other is None else replace(t, ins=other.ins, outs=other.outs)
