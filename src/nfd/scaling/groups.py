"""Groups of parameters of a plan, and the optimizers that are made from them.

A plan has groups with settings of the base (``BaseGroup``). An optimizer gets them at the size of
the model: from the library's own constructors at once, from a user's once its own settings are
known, which are those of the base where the caller has chosen none.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from nfd.core.errors import InputError
from nfd.core.words import nearest
from nfd.scaling.combined import CombinedOptimizer
from nfd.scaling.constructors import (
    calls_that_pass,
    is_chosen,
    is_default,
    is_same,
    owner_of,
    with_held,
)
from nfd.scaling.optimizers import (
    BETAS,
    LAWS,
    WEIGHT_DECAY,
    Hyperparameter,
    OptimizerLaw,
    Scale,
    law_by_class,
)

# Keys of a group of a plan: its rate over the tuned one, and whether it belongs to the optimizer
# that takes matrices only.
SCALE = "lr_scale"
OF_MATRICES = "use_muon"


@dataclass(frozen=True)
class BaseGroup:
    """Parameters of a plan that are stepped alike, with settings of the base.

    Attributes:
        parameters, roles: the parameters, and their roles in the network.
        lr, lr_scale: the rate of the base, and the group's rate as a multiple of it.
        law: of the optimizer that steps them.
        scale: how a hyperparameter of theirs follows from that of the base.
        chosen: the hyperparameters that the caller chose, at the base.
        mark: what else the optimizer reads from its groups, to know its own.
    """

    parameters: list[nn.Parameter]
    roles: list[str]
    lr: float
    lr_scale: float
    law: OptimizerLaw
    scale: Callable[[Hyperparameter], Scale]
    chosen: Mapping[str, Any]
    mark: Mapping[str, Any]

    def scaled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Bring settings of the base to the size of the group."""
        scaled = {}
        for setting in self.law.settings:
            if setting.name in values:
                scale = self.scale(setting)
                scaled[setting.name] = scale(setting.name, values[setting.name])
        return scaled

    def with_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Make a group for an optimizer, with these settings."""
        ends = {SCALE: self.lr_scale, **self.mark, "roles": self.roles}
        return {"params": self.parameters, "lr": self.lr * self.lr_scale, **settings, **ends}

    def shown(self) -> dict[str, Any]:
        """List the chosen settings, and the law's defaults of others.

        Running means have a default only where they are scaled: else the optimizer's own is right.
        """
        shown = dict(self.chosen)
        for setting in self.law.settings:
            is_needed = setting.name != BETAS.name or self.scale(setting) != Scale()
            if is_needed and setting.default is not None:
                shown.setdefault(setting.name, setting.default)
        return shown

    def ready(self) -> dict[str, Any]:
        """Make a group for an optimizer of the library."""
        return self.with_settings(self.scaled(self.shown()))

    def public(self) -> dict[str, Any]:
        """Make a group for an optimizer that a user makes."""
        group = self.ready()
        names = [setting.name for setting in self.law.settings if setting.name not in self.chosen]
        return {**group, "params": self.open_parameters(names, group)}

    def open_parameters(self, names: Iterable[str], group: Mapping[str, Any]) -> OpenParameters:
        """Mark the parameters of a group in which nobody chose the settings of these names."""
        parameters = OpenParameters(self.parameters)
        settings = [setting for setting in self.law.settings if setting.name in names]
        parameters.scales = {setting.name: self.scale(setting) for setting in settings}
        parameters.shown = {name: group.get(name) for name in parameters.scales}
        return parameters


class OpenParameters(list[nn.Parameter]):
    """The parameters of a group of a plan, which see the settings of the optimizer that takes them.

    What an optimizer is given for a setting that nobody chose is the base's value: it is scaled, in
    place of being ignored or taken as it is. PyTorch lists the parameters of a group before it
    fills in its settings; then they are put into the group. The optimizer keeps plain lists and
    dicts, which compilers need.

    Attributes:
        shown: the settings that nobody chose, as the group shows them.
        scales: how these follow from the base.
    """

    shown: Mapping[str, Any] = {}
    scales: Mapping[str, Scale] = {}

    def __iter__(self) -> Iterator[nn.Parameter]:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        if caller is not None and caller.f_code.co_name == "add_param_group":
            group = caller.f_locals.get("param_group")
            optimizer = caller.f_locals.get("self")
            if isinstance(group, dict) and group.get("params") is self:
                self._fill(group, optimizer)
        return super().__iter__()

    def _fill(self, group: dict[str, Any], optimizer: Any) -> None:
        """Put the scaled settings of an optimizer into a group that has none of its own."""
        for name, value in getattr(optimizer, "defaults", {}).items():
            is_open = name in self.scales and (
                name not in group or is_same(group[name], self.shown.get(name))
            )
            if not is_open:
                continue
            is_unset = name == WEIGHT_DECAY.name and is_default(type(optimizer), name, value)
            group[name] = 0.0 if is_unset else self.scales[name](name, value)


def mark_of(planned: OptimizerLaw, is_first: bool) -> dict[str, Any]:
    """Mark groups of two optimizers, one of which takes matrices only; no mark for a single one."""
    return {} if planned.rest is None else {OF_MATRICES: is_first}


def by_law(
    law: OptimizerLaw, groups: Sequence[BaseGroup]
) -> list[tuple[OptimizerLaw, list[BaseGroup]]]:
    """Pair each law that steps some of these groups with its groups, ``law`` first."""
    pairs = []
    for part in law.parts:
        groups_of_part = [group for group in groups if group.law.name == part.name]
        if groups_of_part:
            pairs.append((part, groups_of_part))
    return pairs


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


def optimizer_of(
    law: OptimizerLaw,
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
    make: Callable[..., torch.optim.Optimizer] | None = None,
    *,
    takes_all: bool = False,
    argument: str = "make",
) -> torch.optim.Optimizer:
    """Make what steps these groups: the optimizer of the law, or what ``make`` makes.

    Where the law leaves tensors to another one, both are combined, and options that the first does
    not have go to the second. Settings that the caller has not chosen are those of the made
    optimizer: they are taken for the base's, and scaled.

    Args:
        takes_all: whether ``make`` takes the groups of the rest, too.
        argument: what messages call ``make``.

    Raises:
        ValueError: naming a setting that is chosen twice, or that the optimizer does not have.
    """
    if make is not None and takes_all:
        return _make_by_user(make, groups, options, argument)
    has_rest = law.rest is not None and make is None
    names_of_rest = {name for name in options if has_rest and not law.accepts(name)}
    optimizers = list[torch.optim.Optimizer]()
    for part, groups_of_part in by_law(law, groups):
        is_first = part is law
        source = replace(law, make=make) if is_first and make is not None else part
        options_of_part = {
            name: value for name, value in options.items() if (name in names_of_rest) != is_first
        }
        check_options(source, options_of_part, law, argument)
        if source.is_ours:
            ready = [group.ready() for group in groups_of_part]
            optimizers.append(source.constructor()(ready, **options_of_part))
            continue
        optimizer = _make_by_user(source.constructor(), groups_of_part, options_of_part, argument)
        # A task, or a law of the user's, may train at other rates: a check says what these do.
        if make is not None:
            check_rates_are_kept(optimizer, groups_of_part, argument)
        optimizers.append(optimizer)
    return optimizers[0] if len(optimizers) == 1 else CombinedOptimizer(optimizers)


def check_options(
    source: OptimizerLaw, options: Iterable[str], planned: OptimizerLaw, argument: str = "make"
) -> None:
    """Raise ValueError naming an option that the optimizer does not have."""
    unknown = [option for option in options if not source.accepts(option)]
    if not unknown:
        return
    if not source.is_ours and source.make is not None:
        raise InputError(
            f"{argument} takes no option {unknown[0]!r}. Set it where {argument} makes the "
            f"optimizer, or give {argument} an argument of this name."
        )
    names = set[str]()
    for law in planned.parts:
        names |= law.options
        names.update(setting.name for setting in law.settings)
    others = [law.name for law in LAWS.values() if law.is_ours and law.accepts(unknown[0])]
    hint = f" It is an option of {' or '.join(map(repr, others))}." if others else ""
    raise InputError(
        f"optimizer={planned.name!r} has no option {unknown[0]!r}."
        f"{nearest(unknown[0], names)}{hint} Its options are {', '.join(sorted(names))}."
    )


def _make_by_user(
    make: Callable[..., torch.optim.Optimizer],
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
    argument: str,
) -> torch.optim.Optimizer:
    """Call a function of the user's, and scale the settings of what it makes from the base's."""
    optimizer = make([_for_user(group) for group in groups], **options)
    if not hasattr(optimizer, "param_groups"):
        return optimizer
    check_chosen_once(optimizer, groups, argument)
    check_known(optimizer, groups, argument)
    if not any(WEIGHT_DECAY.name in group.chosen for group in groups):
        _leave_out_decay(optimizer, make, groups, options)
    scale_settings(optimizer, groups, argument)
    _make_plain(optimizer)
    return optimizer


def _make_plain(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer, and those that it holds, plain dicts as groups: compilers need them."""
    plain = dict[int, dict[str, Any]]()
    for part in with_held(optimizer):
        for place, group in enumerate(part.param_groups):
            if isinstance(group, _GroupOfBase):
                part.param_groups[place] = plain.setdefault(id(group), dict(group))


def _for_user(group: BaseGroup) -> _GroupOfBase:
    """Make a group for a function of the user's, without the settings that nobody chose."""
    base = _GroupOfBase(group.with_settings(group.chosen))
    defaults = {setting.name: setting.default for setting in group.law.settings}
    base.defaults = {name: value for name, value in defaults.items() if value is not None}
    return base


def _leave_out_decay(
    optimizer: torch.optim.Optimizer,
    make: Callable[..., torch.optim.Optimizer],
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
) -> None:
    """Set the weight decay to 0 if nobody chose it: PyTorch's AdamW has 0.01 then, its Muon 0.1.

    Whether ``make`` passes a decay that equals the default shows when it makes the optimizer again.
    """
    name = WEIGHT_DECAY.name
    for part in with_held(optimizer):
        value = getattr(part, "defaults", {}).get(name)
        owner = owner_of(type(part), name)
        if not value or owner is None or not is_default(type(part), name, value):
            continue
        with calls_that_pass(owner, name) as passes:
            make([_for_user(group) for group in groups], **options)
        if any(passes):
            continue
        for group in part.param_groups:
            is_filled = not isinstance(group, _GroupOfBase) or name in group.filled
            # ``make`` may have set another value after it made the optimizer.
            if is_filled and is_same(group.get(name), value):
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


def check_kind(optimizer: torch.optim.Optimizer, planned: OptimizerLaw) -> None:
    """Raise ValueError if the class of an optimizer has another law than the plan, by its rates."""
    law = law_by_class(optimizer)
    if law is None or any(law.has_rates_of(part) for part in planned.parts):
        return
    raise InputError(
        f"make makes a {type(optimizer).__name__}, whose law is {law.name!r}; the plan is for "
        f"{planned.name!r}, with other rates. Plan with optimizer={law.name!r}, or let make return "
        "the optimizer of the plan."
    )


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
    from nfd.scaling.measured import decouples

    measured = decouples(optimizer)
    return planned.decoupled if measured is None else measured
