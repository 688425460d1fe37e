"""Initial weights of a model beside those of a plan, measured with the error of their number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.scaling.compared import Compared, is_close
from nfd.scaling.held import Held
from nfd.scaling.initial_entries import CHANCE, LEAST
from nfd.scaling.model import alike, blocks_of, places_of, repeated, tensors, whole
from nfd.scaling.plans_itself import told_by

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

# Tensors whose standard deviation chance may change by more than this are not called alike.
_MOST = math.log(1.5)


def starts_beside(
    plan: Plan,
    model: nn.Module,
    held: Mapping[str, Held],
    factors: Mapping[str, float],
    base: nn.Module | None,
) -> tuple[list[Compared], list[str]]:
    """Compare initial weights with the plan's, at the factors of the model's forward pass.

    Args:
        plan: of the model.
        model: with its initial weights.
        held: what it holds of the plan's tensors.
        factors: as in ``ForwardBeside``.
        base: the same model at the size of the base, whose initial weights count then in place of
            those that the plan was made with.

    Returns:
        the rows, and the tensors that have too few entries to judge them.
    """
    of_base = _in_base(model, base)
    # Networks of the paper know their initial weights; others were measured in a base.
    is_exact = base is None and told_by(model) is not None
    rows = []
    unjudged: list[str] = []
    for name, tensor in held.items():
        entry = plan.entries[name]
        if not tensor.is_trained or (entry.start.kept and plan.start_factor(name) == 1):
            continue
        parameter = tensor.parameters[0]
        if parameter.is_meta:
            raise InputError(
                f"initial=True measures initial weights, and {name!r} is on the meta device. Leave "
                "it out, or build the model."
            )
        planned = _planned(plan, name, of_base.get(name)) / factors.get(name, 1.0)
        value = tensor.std if tensor.std is not None else _rms(whole(parameter))
        is_constant = plan.constant(name) is not None or tensor.std is not None
        error = 0.0
        if not is_constant:
            count = parameter.numel()
            in_base = count / (entry.ratios.fan_in * entry.ratios.fan_out)
            # The standard error of the logarithm of a standard deviation over the base's.
            error = math.sqrt(0.5 / count + (0.0 if is_exact else 0.5 / in_base))
        differs = _differs(value, planned, error)
        if not differs and CHANCE * error > _MOST:
            unjudged.append(name)
            continue
        rows.append(Compared(name, "std", value, planned, differs))
    return rows, unjudged


def check_base(base: nn.Module, plan: Plan, model: nn.Module) -> None:
    """Check that a base has the sizes of the base that the plan was made with."""
    of_base = _in_base(model, base)
    for name, parameter in tensors(model).items():
        # Stacks of matrices may also grow in number, as experts do, which no fan shows.
        if name not in of_base or parameter.parameter.dim() > 2:
            continue
        ratios = plan.entries[name].ratios
        expected = round(parameter.parameter.numel() / (ratios.fan_in * ratios.fan_out))
        entries = of_base[name].numel()
        if entries != expected:
            raise InputError(
                f"base must have the size of the plan's base: {name!r} has {expected} entries "
                f"there, and {entries} in the base that was given. Build base at that size, or "
                "plan the model with this base."
            )


def _rms(entries: Tensor) -> float:
    return float(entries.detach().double().square().mean().sqrt())


def _planned(plan: Plan, name: str, in_base: Tensor | None) -> float:
    """The size of initial entries that a plan has, from the base's where it is given."""
    if in_base is not None:
        return _rms(whole(in_base)) * plan.start_factor(name)
    constant = plan.constant(name)
    return plan.std(name) if constant is None else abs(constant)


def _in_base(model: nn.Module, base: nn.Module | None) -> dict[str, Tensor]:
    """Find the tensor of the base for every tensor that has one."""
    if base is None:
        return {}
    where = repeated(model, base) or None
    of_base = tensors(base)
    blocks = blocks_of(model, where)
    places = places_of(of_base, blocks_of(base, where))
    counterparts = {name: alike(name, blocks, places) for name in tensors(model)}
    return {name: of_base[other].parameter for name, other in counterparts.items() if other}


def _differs(value: float, planned: float, error: float) -> bool:
    """Whether two standard deviations differ by more than chance."""
    if not value or not planned or not error:
        return not is_close(value, planned)
    return abs(math.log(value / planned)) > max(CHANCE * error, LEAST)
