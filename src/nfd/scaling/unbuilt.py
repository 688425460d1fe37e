"""Roles of a model on the meta device, which has shapes and no numbers: they are those of its base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.blocks import Where, blocks_of
from nfd.scaling.names import numberless
from nfd.scaling.roles import Anatomy, Scaling, anatomy
from nfd.scaling.sizes import Base
from nfd.scaling.tensors import modules, tensors


def is_unbuilt(model: nn.Module) -> bool:
    """Whether tensors of a model are on the meta device."""
    return any(p.is_meta for p in model.parameters())


def anatomy_by_base(
    model: nn.Module,
    base: nn.Module | None,
    *,
    blocks: Where,
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
            "The model is on the meta device, so nothing can be traced in it. Pass make_model= and base=(width, "
            "depth), or the tuned model as base=: roles and starts are then found there."
        )
    names, ours, theirs = blocks_of(model, blocks), tensors(model), tensors(base)
    at_base = Base(theirs, blocks_of(base, blocks))
    others = {name: at_base.of(t, names).name for name, t in ours.items()}
    grows = {name: (False,) * len(t.shape) for name, t in theirs.items()}
    grows |= {other: scaling[name] for name, other in others.items() if scaling is not None}
    small = anatomy(base, blocks=blocks, roles=roles, sample=sample, scaling=grows)
    decisions = {name: small.decisions[other] for name, other in others.items()}
    fans = {name: small.tensors[other] for name, other in others.items()}
    with_fans = {name: replace(t, ins=fans[name].ins, outs=fans[name].outs) for name, t in ours.items()}
    alike = set(map(numberless, small.unscaled))
    unscaled = tuple(name for name in modules(model) if numberless(name) in alike)
    back = {other: name for name, other in others.items()}
    outside = {head: norm for head, norm in small.norms.items() if back.keys() >= {head, *norm}}
    norms = {back[head]: frozenset(back[n] for n in norm) for head, norm in outside.items()}
    return Anatomy(
        with_fans, decisions, names, small.interrupted, unscaled, norms, small.attends, small.followed, small.factors
    )
