"""Groups of parameters of a plan, with settings of the base.

What the caller chose is scaled to the size of the group at once, everything else once an optimizer
takes the group, and its settings are known.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from nfd.scaling.constructors import is_default, is_same
from nfd.scaling.optimizers import BETAS, WEIGHT_DECAY, Hyperparameter, OptimizerLaw, Scale

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
        scale: how a hyperparameter of theirs follows from its value at the base.
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
    """The parameters of a group, some of whose settings the optimizer decides.

    ``AdamW(plan.param_groups(model, lr), weight_decay=0.1)`` sets 0.1 at the base, so that each
    group needs it scaled. PyTorch calls nothing of ours then. It makes groups in this order::

        optimizer.defaults = {"weight_decay": 0.1, ...}       # what the user passes
        optimizer.add_param_group(param_group):               # for every group
            param_group["params"] = list(param_group["params"])
            param_group.setdefault(name, default)             # for every name in defaults

    The one moment at which the settings are there and the group's are not is that ``list(...)``,
    which iterates over this object. So ``__iter__`` looks who iterates, and where it is
    ``add_param_group`` writes the scaled settings into the group, before ``setdefault``. The list
    carries the scales, as it stays the same object where a user copies or rewrites the group. The
    optimizer keeps plain lists and dicts, which compilers need.

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
            self._fill_group_of(caller.f_locals)
        return super().__iter__()

    def _fill_group_of(self, variables: Mapping[str, Any]) -> None:
        """Fill the group that ``add_param_group`` adds, by the local variables of the call."""
        group = variables.get("param_group")
        if not isinstance(group, dict) or group.get("params") is not self:
            return
        optimizer: Any = variables.get("self")
        for name, value in getattr(optimizer, "defaults", {}).items():
            if self._is_open(name, group):
                group[name] = self._scaled(name, value, type(optimizer))

    def _is_open(self, name: str, group: Mapping[str, Any]) -> bool:
        """Say whether neither the plan's caller nor whoever copied the group chose a setting."""
        if name not in self.scales:
            return False
        return name not in group or is_same(group[name], self.shown.get(name))

    def _scaled(self, name: str, value: Any, kind: type) -> Any:
        """Scale a setting of an optimizer; a decay that is only its class's default becomes 0."""
        if name == WEIGHT_DECAY.name and is_default(kind, name, value):
            return 0.0
        return self.scales[name](name, value)


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
