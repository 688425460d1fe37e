"""Notes on what a plan means for training: clipping, frozen tensors, optimizers, rounding."""

from __future__ import annotations

import torch
from torch import nn

from nfd.core.words import quoted
from nfd.scaling.model import TensorInfo, in_any_block, tensors
from nfd.scaling.optimizers import OptimizerLaw, notes_on
from nfd.scaling.plan import Plan
from nfd.scaling.rules import SPECTRAL, rule_named

_CLIP = (
    "Under the plan some tensors have larger gradients than in the base, and others smaller ones: "
    "clipping by the norm of all gradients together (Hugging Face's Trainer clips at 1.0) then "
    "acts on other tensors. Clip by tensor, or raise max_grad_norm."
)
# A sound model of this shape exists, so that it is said and not refused.
_SWAPPED = (
    "The base is {} wide and {} deep, so that the model is x{:.4g} as wide and x{:.4g} as deep. "
    "base is (width, depth): if they are swapped, pass base={}."
)


def training_notes(
    model: nn.Module, planned: Plan, optimizer: object, law: OptimizerLaw
) -> list[str]:
    """Remark on the training of a model by a plan.

    Args:
        model: the model of the plan.
        planned: the plan.
        optimizer: what the user passed.
        law: the law of the optimizer.
    """
    notes = []
    if rule_named(planned.rule).scales_width:
        notes.append(_CLIP)
    if planned.base is not None:
        width, depth = planned.base
        if depth > width:
            swapped = (depth, width)
            notes.append(
                _SWAPPED.format(width, depth, planned.width, planned.depth, swapped),
            )
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    if frozen:
        notes.append(
            "Tensors that do not train keep the start that they have, and have no rate: "
            f"{quoted(frozen)}."
        )
    notes += [*law.notes, *notes_on(optimizer, law)]
    notes += _rounding_notes(model, planned)
    if law.rest is not None:
        others = _matrices_of_rest(planned)
        if others:
            kinds = "Convolutions, stacks, and matrices with a fixed side or outside of blocks"
            notes.append(f"{kinds} go to {law.rest}: {', '.join(others)}.")
    return notes


def _matrices_of_rest(planned: Plan) -> list[str]:
    """Name the matrices that Muon does not take, once for all blocks."""
    names: dict[str, None] = {}
    blocks = frozenset(planned.blocks)
    for name, entry in planned.entries.items():
        is_matrix = entry.role in SPECTRAL and not entry.is_vector
        if is_matrix and not planned.is_muon(name):
            names[in_any_block(name, blocks)] = None
    return [*names]


# ---- weights in 16 bits

# Half of a last place, over a number between 1 and 2 of them.
_HALVES = {torch.bfloat16: 2**-8.5, torch.float16: 2**-11.5}
# The median size of a normal number, in standard deviations.
_MEDIAN = 0.6745
_SHOWN_RATE = 1e-3


def _rounding_notes(model: nn.Module, planned: Plan) -> list[str]:
    """Remark on weights in 16 bits, which small steps do not change.

    A step changes none of the weights that it moves by less than half a last place. Adam moves
    every entry by its learning rate, which falls as 1/n, where the entries of a matrix fall as
    n^-1/2: wide matrices stand still first. The note says from which width on half of the entries
    of the first matrix stand still.
    """
    trained = {
        name: tensor
        for name, tensor in tensors(model).items()
        if tensor.parameter.dtype in _HALVES and tensor.parameter.requires_grad
    }
    if not trained:
        return []
    first = next(iter(trained.values()))
    kind = str(first.parameter.dtype).removeprefix("torch.")
    finding = (
        f"Weights that train are in {kind}, and what a step moves by less than half a last place "
        "is rounded away"
    )
    advice = "Keep weights in float32, and compute in 16 bits under autocast."
    widths = _widths_of_rounding(planned, trained)
    if not widths:
        return [f"{finding}: small rates, which fall with width, change nothing. {advice}"]
    name = min(widths, key=lambda candidate: widths[candidate])
    width = f"{widths[name]:.3g} times the width of the base"
    if planned.base is not None:
        width = f"width {widths[name] * planned.base[0]:.0f}"
    where = in_any_block(name, planned.blocks)
    return [
        f"{finding}. At a learning rate of {_SHOWN_RATE:g} at the base these are more than half of "
        f"the entries of {where!r} from {width} on; that width goes with the square of the rate. "
        f"{advice}"
    ]


def _widths_of_rounding(planned: Plan, trained: dict[str, TensorInfo]) -> dict[str, float]:
    """Find from which width on half of the entries of each matrix stand still.

    Widths are multiples of the base's. Muon's matrices are left out, and optimizers whose updates
    follow the size of the gradient.
    """
    widths = {}
    for name, tensor in trained.items():
        entry = planned.entries[name]
        std = planned.std(name)
        is_matrix = entry.role in SPECTRAL and not entry.is_vector
        is_adam_like = planned.law_for(name).degree == 0 and not planned.is_muon(name)
        if is_matrix and is_adam_like and std > 0:
            smallest = _HALVES[tensor.parameter.dtype] * _MEDIAN * std
            widths[name] = planned.width * (_SHOWN_RATE * planned.rate(name) / smallest) ** 2
    return widths
