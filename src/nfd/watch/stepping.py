"""The rates by which a model is stepped, compared with those of its plan.

PyTorch calls a hook after every step of every optimizer, so that the optimizers of a model show themselves at their
first step, wrapped or not. With ``scale`` the rate of a tensor by the plan, as a multiple of the tuned one, every

    rate / scale

is the tuned rate times the factor of the schedule, the same for all tensors. A tensor where it is not that of the
median tensor has another rate than planned. Where all tensors have one rate, it is taken for the tuned one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median_low
from typing import Any, NamedTuple
from weakref import WeakMethod, finalize

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from nfd.core.errors import InputError
from nfd.scaling.combined import by_law
from nfd.scaling.held import held_as_planned
from nfd.scaling.kept_rates import ALIKE, REMEDY, SCALE, warn_of_lost_ratios
from nfd.scaling.laws import OptimizerLaw, law_of
from nfd.scaling.model import listed
from nfd.scaling.plan import Plan
from nfd.scaling.rules import rule_named
from nfd.watch.alerts import Alert, Cause
from nfd.watch.deviations import Consequences, counted, in_words


@dataclass(frozen=True)
class OtherRate:
    """A tensor whose rate differs from the plan: the rate, and the planned one.

    ``planned`` is 0 where another kind of optimizer steps it, at whose rates no number of the plan can be compared.
    """

    tensor: str
    rate: float
    planned: float

    @property
    def change(self) -> float:
        """The rate over the planned one; 0 where nothing is known."""
        return self.rate / self.planned if self.planned else 0.0

    def __str__(self) -> str:
        return f"has rate {self.rate:.4g}, planned {self.planned:.4g}"


@dataclass(frozen=True)
class RateAlert(Alert):
    """Tensors whose rates differ from the plan, or which another kind of optimizer steps, all in one alert.

    Attributes:
        tensors: the one with the largest deviation first; ``layer`` and ``value`` are those of the first.
        of: how many matrices were compared.
        optimizer: the class of the optimizer.
        kind, planned_kind: its law and that of the plan, by their names.
    """

    tensors: tuple[OtherRate, ...] = ()
    of: int = 0
    optimizer: str = ""
    kind: str = ""
    planned_kind: str = ""

    @property
    def names(self) -> list[str]:
        """Those of the tensors."""
        return [other.tensor for other in self.tensors]

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.cause is not Cause.OPTIMIZER:
            return REMEDY
        return super().remedy if self.kind == self.planned_kind else f"{super().remedy} Or plan for {self.kind!r}."

    def __str__(self) -> str:
        if self.kind != self.planned_kind:
            reason = f"the plan is for {self.planned_kind}; the optimizer of {listed(self.names)} is {self.optimizer}"
        else:
            lacks = "does not have the groups of the plan and " if self.cause is Cause.OPTIMIZER else ""
            others = f"steps {counted(self.tensors)} at another rate than planned: {in_words(self.tensors)}"
            reason = f"the {self.optimizer} {lacks}{others}"
        return f"step {self.step}: {reason}. {self.remedy}"


class Stepping:
    """How a training is stepped, against its plan.

    Args:
        plan: of the model.
        model: before its first step.

    Attributes:
        alerts: those of optimizers of another kind than the plan's; where there are none, one for all other rates.
    """

    def __init__(self, plan: Plan, model: nn.Module) -> None:
        self.plan, self.model = plan, model
        self.alerts: list[RateAlert] = []
        self._seen = _Optimizers(model)

    def judged(self, step: int) -> list[RateAlert]:
        """The alerts of the first step whose rates are above 0; none at other steps."""
        optimizers = self._seen.optimizers
        tensors = _stepped(self.plan, self.model, optimizers) if optimizers else {}
        if not tensors:
            return []
        self._seen.close()
        for optimizer in optimizers:
            if _has_groups(optimizer):
                warn_of_lost_ratios(optimizer)
        alerts = _of_other_kinds(self.plan, tensors, step) or _of_other_rates(self.plan, tensors, step)
        raised = [alert for alert in alerts if alert.names not in [earlier.names for earlier in self.alerts]]
        self.alerts += raised
        return raised

    def explains(self, alert: Any) -> bool:
        """Whether an alert follows from these rates."""
        return any(Consequences(self.plan, own.tensors, own.of).explain(alert) for own in self.alerts)

    def state(self) -> list[dict[str, Any]]:
        """For a checkpoint, as plain data."""
        return [asdict(alert) | {"cause": alert.cause.value} for alert in self.alerts]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Know the alerts of the training that a checkpoint is of. Its next step is judged again."""
        self.alerts = [
            RateAlert(
                **dict(stored)
                | {"cause": Cause(stored["cause"]), "tensors": tuple(OtherRate(**other) for other in stored["tensors"])}
            )
            for stored in state
        ]


class _Optimizers:
    """The optimizers that step parameters of a model, from now on until this is closed or gone."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizers: list[torch.optim.Optimizer] = []
        note = WeakMethod(self._note)  # the hook keeps nothing alive

        def hook(optimizer: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
            if (alive := note()) is not None:
                alive(optimizer)

        self._remove = finalize(self, register_optimizer_step_post_hook(hook).remove)

    def close(self) -> None:
        """See no further steps."""
        self._remove()
        self.optimizers = []

    def _note(self, optimizer: torch.optim.Optimizer) -> None:
        own = {id(p) for p in self.model.parameters()}
        is_new = all(optimizer is not known for known in self.optimizers)
        if is_new and any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            self.optimizers.append(optimizer)


class _Stepped(NamedTuple):
    """A tensor with its rate, the rate that the plan gives it as a multiple of the tuned one, and its optimizer.

    ``law`` is that of the optimizer, None where it is unknown; ``planned`` that of the plan.
    """

    name: str
    rate: float
    scale: float
    optimizer: torch.optim.Optimizer
    law: OptimizerLaw | None
    planned: OptimizerLaw

    def alert(self, step: int, cause: Cause, others: Sequence[OtherRate], of: int) -> RateAlert:
        """One of several tensors, at the first of them."""
        first, kind = others[0], (self.law or self.planned).name
        layer = first.tensor.rpartition(".")[0] or first.tensor
        made = type(self.optimizer).__name__, kind, self.planned.name
        return RateAlert(step, step, "rate", layer, first.rate, None, cause, tuple(others), of, *made)


def _stepped(plan: Plan, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, _Stepped]:
    """The tensors whose rates are above 0, by name."""
    names = {id(held.parameters[0]): name for name, held in held_as_planned(model, plan.entries).items()}
    scales = {id(p): float(group[SCALE]) for group in plan.param_groups(model, lr=1.0) for p in group["params"]}
    tensors: dict[str, _Stepped] = {}
    for optimizer in optimizers:
        for law, groups in _laws(optimizer):
            for group in groups:
                rate = float(group.get("lr") or 0.0)
                for key in [id(p) for p in group["params"] if rate and id(p) in scales]:
                    name = names[key]
                    tensors.setdefault(name, _Stepped(name, rate, scales[key], optimizer, law, plan.law_for(name)))
    return tensors


def _laws(optimizer: torch.optim.Optimizer) -> Sequence[tuple[OptimizerLaw | None, list[dict[str, Any]]]]:
    """The groups of an optimizer by what steps them."""
    try:
        return by_law(law_of(optimizer), optimizer.param_groups)
    except InputError:
        return [(None, optimizer.param_groups)]


def _has_groups(optimizer: torch.optim.Optimizer) -> bool:
    return all(SCALE in group for group in optimizer.param_groups)


def _of_other_kinds(plan: Plan, tensors: Mapping[str, _Stepped], step: int) -> list[RateAlert]:
    """An alert for every kind of optimizer that the plan has other rates for."""
    kinds: dict[tuple[str, str], list[_Stepped]] = {}
    for tensor in tensors.values() if rule_named(plan.rule).scales_width else ():
        if tensor.law is not None and _rates_of(tensor.law) != _rates_of(tensor.planned):
            kinds.setdefault((tensor.law.name, tensor.planned.name), []).append(tensor)
    matrices = _matrices(plan, tensors)
    return [
        own[0].alert(step, Cause.OPTIMIZER, [OtherRate(tensor.name, tensor.rate, 0.0) for tensor in own], matrices)
        for own in kinds.values()
    ]


def _matrices(plan: Plan, names: Iterable[str]) -> int:
    """How many of these tensors are matrices."""
    return sum(not plan.entries[name].is_vector for name in names)


def _rates_of(law: OptimizerLaw) -> tuple[Any, ...]:
    """What rates follow from: laws with the same have the same rates."""
    return law.degree, law.unit, law.shape_norm


def _of_other_rates(plan: Plan, tensors: Mapping[str, _Stepped], step: int) -> list[RateAlert]:
    """One alert for all tensors that have another rate than planned."""
    others = [other for law in {t.planned.name for t in tensors.values()} for other in _other_rates(tensors, law)]
    if not others:
        return []
    others.sort(key=lambda other: (-abs(math.log(other.change)), other.tensor))
    first = tensors[others[0].tensor]
    cause = Cause.RATE if _has_groups(first.optimizer) else Cause.OPTIMIZER
    return [first._replace(law=None).alert(step, cause, others, _matrices(plan, tensors))]


def _other_rates(tensors: Mapping[str, _Stepped], law: str) -> list[OtherRate]:
    """Of the tensors that the plan steps by one law, which have one tuned rate."""
    own = [tensor for tensor in tensors.values() if tensor.planned.name == law]
    tuned = median_low([tensor.rate / tensor.scale for tensor in own])
    if all(_alike(tensor.rate, tuned * tensor.scale) for tensor in own):
        return []
    if all(_alike(tensor.rate, own[0].rate) for tensor in own):
        tuned = own[0].rate
    planned = {tensor.name: tuned * tensor.scale for tensor in own}
    return [OtherRate(t.name, t.rate, planned[t.name]) for t in own if not _alike(t.rate, planned[t.name])]


def _alike(rate: float, planned: float) -> bool:
    return math.isclose(rate, planned, rel_tol=ALIKE)
