"""Optimizers that a function of the user's makes from groups of a plan.

Its settings are those of the base where the caller has chosen none: they are read from the made
optimizer, and scaled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nfd.core.errors import InputError, InputTypeError
from nfd.core.notices import tell
from nfd.scaling.base_group import BaseGroup
from nfd.scaling.constructors import (
    is_chosen,
    is_default,
    is_same,
    owner_of,
    recorded_calls,
    with_held,
)
from nfd.scaling.measured import decouples
from nfd.scaling.optimizers import WEIGHT_DECAY, OptimizerLaw, law_by_class


def make_by_user(
    make: Callable[..., torch.optim.Optimizer],
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
    argument: str,
) -> torch.optim.Optimizer:
    """Call a function of the user's, and scale the settings of what it makes from the base's."""
    if not callable(make):
        raise InputTypeError(
            f"{argument} must be a function of groups that makes an optimizer, or its class; got "
            f"an object, {type(make).__name__}. Pass lambda groups: torch.optim.AdamW(groups)."
        )
    optimizer = make([_for_user(group) for group in groups], **options)
    if isinstance(optimizer, type) or not hasattr(optimizer, "param_groups"):
        kind = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise InputTypeError(
            f"{argument} must return an optimizer; got {kind}. It is a function from the parameter "
            "groups of a plan to an optimizer alone, such as lambda groups: "
            "torch.optim.AdamW(groups): make schedulers of it later."
        )
    _warn_of_left_out(optimizer, groups, argument)
    check_chosen_once(optimizer, groups, argument)
    check_known(optimizer, groups, argument)
    if not any(WEIGHT_DECAY.name in group.chosen for group in groups):
        _unset_decays(optimizer, make, groups, options)
    scale_settings(optimizer, groups, argument)
    _make_plain(optimizer)
    return optimizer


def _warn_of_left_out(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """Warn of parameters of the plan's groups that an optimizer does not have."""
    taken = set[int]()
    for part in with_held(optimizer):
        for group in part.param_groups:
            taken.update(map(id, group["params"]))
    given = [p for group in groups for p in group.parameters]
    count = sum(id(p) not in taken for p in given)
    if count:
        tell(
            f"{argument} makes an optimizer without {count} of the {len(given)} parameters that "
            "it is given: these do not train. Give it all groups, or freeze what is not to train."
        )


class _GroupOfBase(dict[str, Any]):
    """A group for a function of the user's.

    Settings that nobody chose are left out, so that those of the function are seen. Read, they are
    the law's defaults at the base.

    Attributes:
        defaults: of the law, at the base.
        filled: settings that the optimizer wrote, from what it has for all groups.
    """

    defaults: Mapping[str, Any] = {}
    filled: frozenset[str] = frozenset()

    def __missing__(self, key: str) -> Any:
        if key not in self.defaults:
            raise KeyError(key)
        return self.defaults[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Set a missing key, as of a dict, and remember it as filled."""
        if key not in self:
            self.filled = self.filled | {key}
        return super().setdefault(key, default)


def _for_user(group: BaseGroup) -> _GroupOfBase:
    """Make a group for a function of the user's, without the settings that nobody chose."""
    base = _GroupOfBase(group.with_settings(group.chosen))
    defaults = {setting.name: setting.default for setting in group.law.settings}
    base.defaults = {name: value for name, value in defaults.items() if value is not None}
    return base


def _make_plain(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer, and those that it holds, plain dicts as groups: compilers need them."""
    plain = dict[int, dict[str, Any]]()
    for part in with_held(optimizer):
        for place, group in enumerate(part.param_groups):
            if isinstance(group, _GroupOfBase):
                part.param_groups[place] = plain.setdefault(id(group), dict(group))


def _unset_decays(
    optimizer: torch.optim.Optimizer,
    make: Callable[..., torch.optim.Optimizer],
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
) -> None:
    """Set the weight decay to 0 where nobody chose it.

    PyTorch's AdamW has 0.01 then and its Muon 0.1, which a plan would scale as if the user had
    chosen it. ``optimizer.defaults`` shows 0.01 both for ``lambda groups: AdamW(groups)`` and for
    ``lambda groups: AdamW(groups, weight_decay=0.01)``, and the second is to be kept. Only the
    call of the constructor shows which it was. So ``make`` is called once more, and the call
    recorded; this is rare, as a decay must be its class's default, and not 0.
    """
    for part in with_held(optimizer):
        decay = getattr(part, "defaults", {}).get(WEIGHT_DECAY.name)
        if not decay or not is_default(type(part), WEIGHT_DECAY.name, decay):
            continue
        if not _passes_decay(make, groups, options, type(part)):
            _unset_decay(part, decay)


def _passes_decay(
    make: Callable[..., torch.optim.Optimizer],
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
    kind: type,
) -> bool:
    """Say whether a function of the user's passes a weight decay to a class of optimizers."""
    owner = owner_of(kind, WEIGHT_DECAY.name)
    if owner is None:
        return False
    with recorded_calls(owner) as calls:
        make([_for_user(group) for group in groups], **options)
    return any(WEIGHT_DECAY.name in call.arguments for call in calls)


def _unset_decay(optimizer: torch.optim.Optimizer, decay: float) -> None:
    """Set the decay of groups to 0 where they have it from the optimizer's default."""
    name = WEIGHT_DECAY.name
    for group in optimizer.param_groups:
        is_filled = not isinstance(group, _GroupOfBase) or name in group.filled
        # ``make`` may have set another value after it made the optimizer.
        if is_filled and is_same(group.get(name), decay):
            group[name] = 0.0


def check_chosen_once(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """Raise ValueError naming a setting that the caller and ``make`` set to different values."""
    chosen = dict[str, list[Any]]()
    for group in groups:
        for name, value in {"lr": group.lr, **group.chosen}.items():
            chosen.setdefault(name, []).append(value)
    defaults = getattr(optimizer, "defaults", {})
    for name, values in chosen.items():
        if name not in defaults or any(is_same(defaults[name], value) for value in values):
            continue
        if not any(is_chosen(type(part), name, defaults[name]) for part in with_held(optimizer)):
            continue
        advice = "Give it once."
        if name == "lr":
            advice = "Leave it out there: it is the rate that the plan scales."
        raise InputError(
            f"{name} is chosen twice: {values[0]!r} beside {argument}, and {defaults[name]!r} by "
            f"the {type(optimizer).__name__} that {argument} makes. {advice}"
        )


def check_known(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """Raise ValueError naming a setting that the caller chose and the optimizer does not have."""
    defaults = getattr(optimizer, "defaults", None)
    # Some optimizers have no defaults, and read their groups only.
    if not defaults:
        return
    chosen = dict[str, Any]()
    for group in groups:
        chosen |= group.chosen
    unknown = next((name for name, value in chosen.items() if value and name not in defaults), None)
    if unknown is not None:
        raise InputError(
            f"{unknown}={chosen[unknown]!r} is given beside {argument}, but the "
            f"{type(optimizer).__name__} that {argument} makes has no such setting. Leave it out, "
            f"or set it where {argument} makes the optimizer."
        )


def check_rates_are_kept(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """Raise ValueError where a function of the user's has lost the rates of the plan's groups."""
    group_of = {id(p): group for group in groups for p in group.parameters}
    for group in optimizer.param_groups:
        for p in group["params"]:
            source = group_of.get(id(p))
            if source is None:
                continue
            planned = source.lr * source.lr_scale
            # A scheduler that was made with the optimizer keeps the rate that it multiplies.
            rate = float(group.get("initial_lr", group.get("lr", planned)))
            if not math.isclose(rate, planned, rel_tol=1e-6):
                raise InputError(
                    f"{argument} makes an optimizer that trains {' and '.join(source.roles)} "
                    f"tensors at a learning rate of {rate:g}; the plan has {planned:g}. Keep the "
                    "lr of every group: lambda groups: torch.optim.AdamW(groups)."
                )


def scale_settings(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """Scale the hyperparameters of an optimizer that was made from groups with the base's.

    The law of the optimizer's class names them; where the class has none, or groups have several
    laws, the law of the group.
    """
    group_of = {id(p): group for group in groups for p in group.parameters}
    by_class = law_by_class(optimizer)
    has_several_laws = len({group.law.name for group in groups}) > 1
    for group in optimizer.param_groups:
        planned = {id(p): group_of[id(p)] for p in group["params"] if id(p) in group_of}
        # Groups are compared by identity: their functions cannot be compared.
        sources = list({id(source): source for source in planned.values()}.values())
        if not sources:
            continue
        law = sources[0].law if by_class is None or has_several_laws else by_class
        decay = group.get(WEIGHT_DECAY.name)
        if decay and not is_decoupled(optimizer, group, law):
            replace(law, decoupled=False).check_decay(float(decay), type(optimizer).__name__)
        _scale_group(group, law, sources, argument)


def _scale_group(
    group: dict[str, Any], law: OptimizerLaw, sources: Sequence[BaseGroup], argument: str
) -> None:
    """Scale the settings of one group of an optimizer, which must follow one size.

    Args:
        sources: the groups of the plan whose parameters it has.
    """
    for setting in law.settings:
        value = group.get(setting.name)
        if value is None or (setting.name == WEIGHT_DECAY.name and not value):
            continue
        scales = [source.scale(setting) for source in sources]
        if any(scale != scales[0] for scale in scales):
            raise InputError(
                f"{argument} puts parameters of several groups of the plan into one group, "
                f"whose lr and {setting.name} can follow the size of only one of them. Keep "
                "the groups apart, or split them further."
            )
        group[setting.name] = scales[0](setting.name, value)


def is_decoupled(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], planned: OptimizerLaw
) -> bool:
    """Say whether weight decay acts on the weights directly.

    Tried in this order: the optimizer's settings, its class, its steps, the plan's law.
    """
    if "decoupled_weight_decay" in group:
        return bool(group["decoupled_weight_decay"])
    by_class = law_by_class(optimizer)
    if by_class is not None:
        return by_class.decoupled
    measured = decouples(optimizer)
    return planned.decoupled if measured is None else measured
