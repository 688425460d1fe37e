"""Step 3 of ``nfd.plan``: how the base initialises every tensor, and how much each has grown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import nn

from nfd.core.errors import InputError
from nfd.core.words import quoted
from nfd.scaling.base import Base, depths_of, grown_fans
from nfd.scaling.comparison import Comparison, Pair, Request
from nfd.scaling.entries import Entry, Ratios, Start, layout_of
from nfd.scaling.model import alike, block_of, blocks_of, in_any_block, places_of, tensors
from nfd.scaling.roles import Anatomy, Scaling, trace
from nfd.scaling.rules import rule_named
from nfd.scaling.samples import on_device

_OWN_DEPTH = (
    "This rule does not scale with depth, and tensors begin as in the base. If your constructor "
    "lets a start depend on depth, as GPT-2 does by 1/sqrt(2L), pass make_model=, and that is kept."
)


@dataclass(frozen=True)
class Initial:
    """The entries before anything is folded into them.

    Attributes:
        entries: by tensor.
        width: how much wider than the base the model is: the ratio of fan-outs that differs most
            from 1.
        depths: how much deeper the stack of each block is; under ``""``, all blocks together.
        reference: the model whose forward pass has the factors to compare with: the base, under a
            rule that does not scale depth at the depth of the model; None where nothing builds
            such a model.
        notes: what the user should know of it.
    """

    entries: dict[str, Entry]
    width: float
    depths: Mapping[str, float]
    reference: nn.Module | None
    notes: tuple[str, ...] = ()


def initial_entries(pair: Pair, comparison: Comparison, base: Base) -> Initial:
    """Find how the base initialises every tensor, and how much each has grown."""
    structure = comparison.structure
    if pair.constructor is not None:
        # A second seed shows what is random and what is kept.
        base = base.beside(pair.constructor.at(seed=1))
    notes = []
    depths = depths_of(structure.blocks, base.blocks)
    shared = _Shared()
    if pair.rule.scales_depth:
        _check_numbers(pair.request, structure)
        shared = _shared_blocks(pair, comparison)
        if shared.uses:
            _check_shared(pair.request, next(iter(shared.again)))
            most = max(shared.again.values())
            depths = {block: d * shared.again.get(block, most) for block, d in depths.items()}
            notes.append(
                "Blocks that the forward pass applies again and again count as often as it does: "
                f"the model is {depths['']:.4g} times as deep as the base."
            )
    entries = entries_of(structure, comparison.growing, base, depths)
    for name, ratio in shared.uses.items():
        entries[name] = replace(entries[name], uses=ratio)
    fan_outs = [entry.ratios.fan_out for entry in entries.values() if entry.role != "readout"]
    width = max(fan_outs, default=1.0, key=lambda ratio: abs(ratio - 1))

    if depths[""] == 1 or pair.rule.scales_depth:
        return Initial(entries, width, depths, pair.base, tuple(notes))
    if pair.constructor is None:
        return Initial(entries, width, depths, None, (*notes, _OWN_DEPTH))

    # The rule does not scale depth, and neither does the plan: what the constructor makes depend on
    # depth stays as it is in a model of this depth.
    as_deep = pair.constructor.at(deeper=depths[""])
    by_depth = _starts_by_depth(structure, base, Base.of(as_deep, comparison.blocks))
    for name, start in by_depth.items():
        entries[name] = replace(entries[name], start=start)
    if by_depth:
        notes.append(
            f"The constructor begins {quoted([*by_depth])} by depth; they begin as in a model of "
            "this depth."
        )
    return Initial(entries, width, depths, as_deep, tuple(notes))


def entries_of(
    structure: Anatomy, scaling: Scaling, base: Base | None, depths: Mapping[str, float]
) -> dict[str, Entry]:
    """Say how every tensor is initialised, and its ratios to its counterpart in the base.

    Args:
        structure: the parts of the model.
        scaling: which dimensions grow with width; a matrix with a side that does not, such as a
            router, has no layout.
        base: the tuned model; None where the model is its own base.
        depths: as ``depths_of`` finds them.
    """
    blocks = structure.blocks
    initial = Base(structure.tensors, blocks) if base is None else base
    one_sided = {
        in_any_block(name, blocks)
        for name, grows in scaling.items()
        if any(grows) and not all(grows)
    }
    entries = {}
    for name, tensor in structure.tensors.items():
        role, why = structure.roles[name]
        fans = (1.0, 1.0)
        if base is not None:
            fans = grown_fans(tensor, base.counterpart(tensor, blocks), role)
        depth = depths.get(block_of(name, blocks) or "", depths[""])
        start = initial.start(tensor, blocks)
        if role == "skip" and start.constant is None:
            # Pairs of numbers, such as 1 for the stream and 0 for what is added to it, are not
            # drawn.
            start = replace(start, kept=True)
        is_frozen = not tensor.parameter.requires_grad
        if is_frozen:
            start = replace(start, kept=True)
        is_one_sided = in_any_block(name, blocks) in one_sided
        entries[name] = Entry(
            shape=tensor.shape,
            role=role,
            why=why,
            fan_in=tensor.fan_in(),
            ratios=Ratios(*fans, depth),
            start=start,
            matrix=None if is_one_sided else layout_of(tensor),
            is_adapter=name in structure.adapters,
            is_frozen=is_frozen,
        )
    return entries


# ---- initial weights that depend on depth

CHANCE = 6.0  # standard errors
LEAST = math.log(1.05)


def _starts_by_depth(structure: Anatomy, base: Base, as_deep: Base) -> dict[str, Start]:
    """Find tensors whose initialisation depends on depth, by more than chance.

    Returned are their initial weights in ``as_deep``, as wide as the base and as deep as the model.
    """
    starts = {}
    for name, tensor in structure.tensors.items():
        shallow = base.start(tensor, structure.blocks)
        deep = as_deep.start(tensor, structure.blocks)
        if shallow.kept or deep.kept:
            continue
        differs = shallow.constant != deep.constant
        if shallow.constant is None and deep.constant is None:
            count = base.counterpart(tensor, structure.blocks).parameter.numel()
            # The standard error of the logarithm of the ratio of two standard deviations.
            error = count**-0.5
            differs = abs(math.log(deep.std / shallow.std)) > max(CHANCE * error, LEAST)
        if differs:
            starts[name] = deep
    return starts


# ---- blocks that the forward pass applies again and again


@dataclass(frozen=True)
class _Shared:
    """Weights of blocks that act more often than in the base; empty where none do.

    Attributes:
        uses: how many times as often a tensor acts, by its name.
        again: the same of a block, but for how many more places of a list hold it, by its name:
            these are counted as blocks already.
    """

    uses: dict[str, float] = field(default_factory=dict)
    again: dict[str, float] = field(default_factory=dict)


def _shared_blocks(pair: Pair, comparison: Comparison) -> _Shared:
    """Count how many times as often as in the base the weights of every block act."""
    blocks = comparison.structure.blocks
    in_model = comparison.structure.traced.tensors
    is_repeated = any(
        shown.uses > 1 for name, shown in in_model.items() if block_of(name, blocks) is not None
    )
    if pair.base is None or not is_repeated:
        return _Shared()
    device = next((p.device for p in pair.base.parameters()), None)
    in_base = trace(pair.base, on_device(pair.request.sample, device)).tensors
    of_base = tensors(pair.base)
    places = places_of(in_base, blocks_of(pair.base, comparison.blocks))
    uses: dict[str, float] = {}
    again: dict[str, float] = {}
    for name, shown in in_model.items():
        block = block_of(name, blocks)
        counterpart = alike(name, blocks, places)
        if block is None or counterpart is None:
            continue
        if shown.uses > 0 and in_base[counterpart].uses > 0:
            ratio = shown.uses / in_base[counterpart].uses
            held = len(comparison.structure.tensors[name].names) / len(of_base[counterpart].names)
            uses[name] = ratio
            again[block] = max(again.get(block, 0.0), ratio / held)
    if all(ratio == 1 for ratio in uses.values()):
        return _Shared()
    return _Shared(uses, again)


def _check_shared(request: Request, block: str) -> None:
    """Raise ValueError where a block that is applied again and again has no limit of depth.

    One matrix at every step of depth adds up coherently, as L and not as its root; and its gradient
    is a sum over its uses, which Adam's updates do not depend on, and those of SGD do.
    """
    if rule_named(request.rule_name).exponent != 1:
        raise InputError(
            f"Rule {request.rule_name!r} is for blocks with weights of their own; {block!r} is "
            "applied again and again, so that its branches add up. Use rule='complete-p', or "
            "'mup', which keeps depth out."
        )
    if request.optimizer.degree != 0:
        raise InputError(
            f"{block!r} is applied again and again, and its gradient adds up over its uses, which "
            f"rates of {request.optimizer.name!r} do not make up for. Use optimizer='adamw', or "
            "rule='mup', which keeps depth out."
        )


def _check_numbers(request: Request, structure: Anatomy) -> None:
    """Raise ValueError where one learned number acts on the stream at every block.

    Its gradient is a sum over all blocks, which the updates of some optimizers follow.
    """
    if request.optimizer.degree == 0:
        return
    for name, shown in structure.traced.tensors.items():
        role = structure.roles[name][0]
        acts_on_stream = role == "skip" or (role == "outer" and shown.uses > 1)
        is_number = structure.tensors[name].parameter.numel() == 1
        if acts_on_stream and is_number and block_of(name, structure.blocks) is None:
            raise InputError(
                f"{name!r} multiplies the stream at every block, and its gradient adds up over "
                f"these, which rates of {request.optimizer.name!r} do not make up for. Use "
                "optimizer='adamw', or a number for each block."
            )
