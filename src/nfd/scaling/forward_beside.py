"""Factors of a model's forward pass beside those that a plan counts on.

They are seen in one forward pass of the model and one of its base. Without these, a model is taken
to multiply as the planned one, but for layers that say what they do, such as ``MuReadout``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from nfd.core.checks import check_real
from nfd.core.errors import InputError
from nfd.core.words import number, quoted
from nfd.scaling.compared import Compared, is_close
from nfd.scaling.constants import FactorRatios
from nfd.scaling.entries import Entry
from nfd.scaling.forward_factors import factors_over_base, logits_over_base, seen_in
from nfd.scaling.held import Held
from nfd.scaling.model import Scaled, matches, modules, repeated, unwrapped
from nfd.scaling.rules import Power

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

# Layers of microsoft/mup, and of others after it, that divide their input by ``width_mult``.
_READOUTS = ("MuReadout", "MuSharedReadout")
# The forward multiplier of a norm that has the factor of a tied head (``folding``).
_OF_HEAD = Power(fan_out=1.0)


@dataclass(frozen=True)
class ForwardBeside:
    """The forward pass of a model beside what its plan counts on.

    Attributes:
        factors: by tensor, what the model multiplies it by over the planned model; 1 elsewhere.
        rows: factors that no initial weights and rates stand for.
        unseen: in sentences, what is not known.
    """

    factors: dict[str, float] = field(default_factory=dict)
    rows: list[Compared] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Seen:
    """What is known of the factors of a forward pass, over those of its base.

    Attributes:
        ratios: by tensor; None where its uses have several.
        is_traced: whether tensors that ``ratios`` lacks have the base's.
        logits: of attention over the base's, by query, where they differ; None where not seen.
        scaled: factors of ``nfd.Scaled``, by module.
    """

    ratios: Mapping[str, FactorRatios | None]
    is_traced: bool
    logits: Mapping[str, float] | None
    scaled: Mapping[str, float]

    def of(self, name: str) -> FactorRatios | None:
        """The factors of a tensor; None where they are not known."""
        return self.ratios.get(name, FactorRatios() if self.is_traced else None)


def forward_beside(
    plan: Plan,
    model: nn.Module,
    held: Mapping[str, Held],
    base: nn.Module | None,
    sample: Any,
    declared: Mapping[str, float] | None,
) -> ForwardBeside:
    """Compare the forward pass of a model with what its plan counts on.

    Args:
        plan: of the model.
        model: whose pass is compared.
        held: what it holds of the plan's tensors.
        base: the same model at the size of the base; None where it is not at hand.
        sample: an input of both.
        declared: factors over the base's that the user knows of, by pattern of modules.

    Raises:
        ValueError: if the sample shows nothing, or a pattern fits no module.
    """
    seen = _seen_of(model, held, base, sample, declared or {})
    beside = ForwardBeside()
    unclear = [name for name, ratios in seen.ratios.items() if ratios is None]
    if unclear:
        beside.unseen.append(f"The forward pass multiplies {quoted(unclear)} in several ways.")
    heads = _add_tied(plan, seen, model, beside)
    for name, entry in plan.entries.items():
        ratios = seen.of(name)
        if name in beside.factors or entry.role == "tied" or ratios is None:
            continue
        factor = ratios.applied if ratios.looked_up == 1 else ratios.looked_up
        beside.factors[name] = factor / entry.own_factor
    for module, planned in plan.multipliers.items():
        place = unwrapped(module)
        if place not in heads:
            _add_multiplier(beside, place, seen.scaled.get(place), planned)
    _add_attention(plan, seen.logits, beside)
    return beside


# ---- what is seen


def _seen_of(
    model: nn.Module,
    held: Mapping[str, Held],
    base: nn.Module | None,
    sample: Any,
    declared: Mapping[str, float],
) -> _Seen:
    """Look at the forward pass, and add what is declared."""
    ratios: dict[str, FactorRatios | None] = {}
    logits = None
    if base is None:
        ratios |= _of_readouts(model, held)
    else:
        blocks = repeated(model, base) or None
        here = seen_in(model, sample, blocks)
        there = seen_in(base, sample, blocks)
        if here is None or there is None:
            raise InputError(
                "base is given, but no forward pass of it and of model can be followed. Pass "
                "sample=, an input of both."
            )
        ratios |= factors_over_base(here, there)
        logits = logits_over_base(here, there)
    ratios |= _of_user(model, held, declared)
    scaled = {
        unwrapped(name): module.factor
        for name, module in model.named_modules()
        if isinstance(module, Scaled)
    }
    return _Seen(ratios, base is not None, logits, scaled)


def _of_readouts(model: nn.Module, held: Mapping[str, Held]) -> dict[str, FactorRatios]:
    """Read the factors of layers that say by how much they divide."""
    ratios: dict[str, FactorRatios] = {}
    for module in modules(model).values():
        if not any(kind.__name__ in _READOUTS for kind in type(module).__mro__):
            continue
        readout: Any = module
        width = readout.width_mult() if callable(readout.width_mult) else readout.width_mult
        for name in _weights_of([module], held):
            ratios[name] = FactorRatios(1.0, 1 / float(width))
    return ratios


def _of_user(
    model: nn.Module, held: Mapping[str, Held], declared: Mapping[str, float]
) -> dict[str, FactorRatios]:
    """Give the factors that the user declares to the weights of modules that fit."""
    ratios: dict[str, FactorRatios] = {}
    for pattern, factor in declared.items():
        fitting = [module for name, module in modules(model).items() if matches(name, pattern)]
        names = _weights_of(fitting, held)
        if not names:
            raise InputError(
                f"forward names {pattern!r}, which fits no module of the model that has a weight."
            )
        applied = check_real(f"forward[{pattern!r}]", factor, above=0.0)
        ratios |= dict.fromkeys(names, FactorRatios(1.0, applied))
    return ratios


def _weights_of(parts: Iterable[nn.Module], held: Mapping[str, Held]) -> list[str]:
    """Name the tensors that are the weights of modules, by their names in the plan."""
    weights = {id(getattr(part, "weight", None)) for part in parts}
    return [name for name, tensor in held.items() if id(tensor.parameters[0]) in weights]


# ---- beside the plan


def _add_tied(plan: Plan, seen: _Seen, model: nn.Module, beside: ForwardBeside) -> set[str]:
    """Compare the factors of embeddings that are the head as well; name the modules of heads.

    The plan has the head's factor in a norm before it, or in a multiplier.
    """
    heads = set[str]()
    norms = {name: entry for name, entry in plan.entries.items() if entry.multiplier == _OF_HEAD}
    parts = modules(model)
    for name, entry in plan.entries.items():
        if entry.role != "tied":
            continue
        weight = _weight_at(parts, name)
        of_name = {
            unwrapped(module): factor
            for module, factor in plan.multipliers.items()
            if getattr(parts.get(unwrapped(module)), "weight", None) is weight
        }
        heads |= of_name.keys()
        ratios = seen.of(name)
        if ratios is None:
            for module, planned in of_name.items():
                _add_multiplier(beside, module, seen.scaled.get(module), planned)
            continue
        beside.factors[name] = ratios.looked_up / entry.own_factor
        of_head = ratios.applied / ratios.looked_up
        if norms:
            beside.factors.update(_in_norms(norms, of_head))
            continue
        for module in of_name:
            of_head *= seen.scaled.get(module, 1.0)
        planned = 1 / entry.ratios.fan_out
        place = next(iter(of_name), name)
        beside.rows.append(
            Compared(place, "forward", of_head, planned, not is_close(of_head, planned))
        )
    return heads


def _weight_at(parts: Mapping[str, nn.Module], name: str) -> Any:
    """The parameter of a name in a model."""
    holder, _, last = unwrapped(name).rpartition(".")
    return getattr(parts.get(holder), last, None)


def _in_norms(norms: Mapping[str, Entry], of_head: float) -> dict[str, float]:
    """What multiplies the norms before a head, whose factor the plan gives to them."""
    return {name: of_head / entry.own_factor for name, entry in norms.items()}


def _add_multiplier(
    beside: ForwardBeside, module: str, factor: float | None, planned: float
) -> None:
    """Compare an ``nfd.Scaled`` with the plan's; without one, say what cannot be seen."""
    if factor is None:
        beside.unseen.append(
            f"The plan multiplies the output of {module} by {number(planned, 4)}: whether the "
            "model does is not seen."
        )
        return
    beside.rows.append(Compared(module, "forward", factor, planned, not is_close(factor, planned)))


def _add_attention(plan: Plan, logits: Mapping[str, float] | None, beside: ForwardBeside) -> None:
    """Compare the logits of attention, which are to be the base's."""
    if logits is None:
        if plan.logits:
            beside.unseen.append(
                "Heads of attention grow, and need logits over their size: whether the model has "
                "them is not seen."
            )
        return
    ratios = dict.fromkeys(plan.logits, 1.0) | dict(logits)
    for name, ratio in ratios.items():
        beside.rows.append(Compared(name, "attention", ratio, 1.0, not is_close(ratio, 1.0)))
