"""Numbers of an optimizer and a model beside those of a plan, tensor by tensor.

A model whose forward pass multiplies a tensor by another factor than the planned model, c times as
large, trains alike where initial weights are c times smaller, learning rates c^(1 + degree) times,
and epsilon is c times larger (``degree`` of the optimizer's law: 0 of Adam, 1 of SGD). That is how
microsoft/mup's ``MuReadout`` and Megatron's ``mup_output_mult`` stand for the rates of a plan, so
numbers are compared at the factor that the model has.

Decay removes the share ``lr * weight_decay`` of the weights in a step, and this is compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nfd.scaling.kept_rates import ALIKE
from nfd.scaling.neutral import Numbers
from nfd.scaling.optimizers import BETAS, EPS, WEIGHT_DECAY, OptimizerLaw, Scale
from nfd.scaling.stepped import Step

Origin = Literal["given", "one", "most"]
Setting = Literal["lr", "weight_decay", "eps", "beta", "std", "forward", "attention"]


@dataclass(frozen=True)
class Compared:
    """One number of a tensor, beside the plan's.

    Attributes:
        tensor: its name; of a factor of the forward pass the module's.
        setting: ``"lr"``, ``"weight_decay"``, ``"eps"``, ``"beta"``, ``"std"`` (of the initial
            weights), ``"forward"`` (a factor of the forward pass) or ``"attention"`` (of its
            logits, over the base's).
        value: what optimizer or model have.
        planned: what the plan has, at the reference and at the factors of the model's forward pass.
        differs: whether that is more than rounding, and of initial weights more than chance.
    """

    tensor: str
    setting: Setting
    value: float
    planned: float
    differs: bool

    @property
    def ratio(self) -> float:
        """The value over the plan's."""
        if self.planned:
            return self.value / self.planned
        return math.inf if self.value else 1.0


@dataclass(frozen=True)
class Beside:
    """A tensor as it is stepped, and as the plan has it.

    Attributes:
        name: of the tensor.
        step: how it is stepped.
        numbers: what the plan says of it.
        law: of the optimizer that the plan has for it.
        factor: what the model's forward pass multiplies it by, over the planned model's.
    """

    name: str
    step: Step
    numbers: Numbers
    law: OptimizerLaw
    factor: float

    @property
    def rate_factor(self) -> float:
        """The rate that the plan has for it, over the tuned one."""
        return self.numbers.factors["lr"] / math.pow(self.factor, 1 + self.law.degree)

    @property
    def epsilon_factor(self) -> float | None:
        """The epsilon that the plan has for it, over the tuned one; None of other optimizers."""
        factor = self.numbers.factors.get(EPS.name)
        return None if factor is None else factor * self.factor


@dataclass(frozen=True)
class Reference:
    """The value of the base, over which a setting is compared.

    Attributes:
        setting: whose.
        value: at the base.
        origin: ``"given"`` by the user, ``"one"`` for all tensors, or what ``"most"`` agree on.
        agreeing, count: how many tensors have it, of how many.
    """

    setting: Setting
    value: float
    origin: Origin
    agreeing: int
    count: int


@dataclass(frozen=True)
class Tuned:
    """What the user says of the base: settings that were tuned there, None where nothing."""

    lr: float | None = None
    adamw_lr: float | None = None
    weight_decay: float | None = None
    eps: float | None = None
    betas: tuple[float, ...] | None = None

    def rate(self, law: OptimizerLaw, planned: OptimizerLaw) -> float | None:
        """The tuned rate of the tensors of a law."""
        is_rest = planned.rest is not None and law.name != planned.name
        return self.adamw_lr if is_rest and self.adamw_lr is not None else self.lr


def is_close(value: float, planned: float) -> bool:
    """Whether two numbers are the same but for rounding."""
    return math.isclose(value, planned, rel_tol=ALIKE)


def compare_settings(
    tensors: Sequence[Beside], tuned: Tuned, planned: OptimizerLaw
) -> tuple[list[Compared], list[Reference]]:
    """Compare rate, decay, epsilon and running means of tensors with the plan's."""
    rows: list[Compared] = []
    references: list[Reference] = []
    for law in dict.fromkeys(tensor.law.name for tensor in tensors):
        of_law = [tensor for tensor in tensors if tensor.law.name == law]
        rate = tuned.rate(of_law[0].law, planned)
        rates, reference = _rates(of_law, rate)
        planned_rates = {row.tensor: row.planned for row in rates}
        share = None
        if rate is not None and tuned.weight_decay is not None:
            share = _with_level(rate, of_law) * tuned.weight_decay
        decays, of_decays = _decays(of_law, planned_rates, share)
        epsilons, of_epsilons = _epsilons(of_law, tuned.eps)
        rows += [*rates, *decays, *epsilons]
        references += [one for one in (reference, of_decays, of_epsilons) if one is not None]
    return [*rows, *_betas(tensors, tuned.betas)], references


def _with_level(rate: float, tensors: Sequence[Beside]) -> float:
    """Multiply a tuned rate by what a scheduler has made of the first ones, which is no error."""
    return rate * most_common([(tensor.step.level, 1.0) for tensor in tensors])


def _rates(tensors: Sequence[Beside], given: float | None) -> tuple[list[Compared], Reference]:
    """Compare the learning rates of the tensors of one optimizer."""
    factors = [tensor.rate_factor for tensor in tensors]
    value, origin = _over([tensor.step.lr for tensor in tensors], factors)
    if given is not None:
        value = _with_level(given, tensors)
        origin = "given"
    rows = []
    for tensor in tensors:
        rate = value * tensor.rate_factor
        differs = not is_close(tensor.step.lr, rate)
        rows.append(Compared(tensor.name, "lr", tensor.step.lr, rate, differs))
    return rows, _reference("lr", value, origin, rows)


def _decays(
    tensors: Iterable[Beside], rates: Mapping[str, float], given: float | None
) -> tuple[list[Compared], Reference | None]:
    """Compare the shares of the weights that decay removes in a step.

    A decay that is the plan's beside a rate that is not is wrong by its rate only. Tensors without
    decay are the user's choice.

    Args:
        rates: that the plan has.
        given: the share at the base, if the user gave rate and decay.
    """
    decaying = [
        tensor
        for tensor in tensors
        if tensor.step.weight_decay and WEIGHT_DECAY.name in tensor.numbers.factors
    ]
    if not decaying:
        return [], None
    shares = []
    candidates = []
    for tensor in decaying:
        # A plan of another batch or length changes the share of all tensors alike.
        of_run = tensor.numbers.factors["lr"] * tensor.numbers.factors[WEIGHT_DECAY.name]
        decay = tensor.step.weight_decay / of_run
        pair = (decay * tensor.step.lr, decay * rates[tensor.name])
        shares.append(pair)
        candidates += [(share, 1.0) for share in set(pair)]
    value = most_common(candidates) if given is None else given
    rows = []
    for tensor, (share, share_at_plans_rate) in zip(decaying, shares, strict=True):
        decay = tensor.step.weight_decay
        planned = decay * value / share_at_plans_rate if share_at_plans_rate else decay
        differs = not is_close(share, value) and not is_close(share_at_plans_rate, value)
        rows.append(Compared(tensor.name, "weight_decay", decay, planned, differs))
    origin: Origin = "most" if given is None else "given"
    return rows, _reference("weight_decay", value, origin, rows)


def _epsilons(
    tensors: Iterable[Beside], given: float | None
) -> tuple[list[Compared], Reference | None]:
    """Compare Adam's epsilons."""
    names = []
    values = []
    factors = []
    for tensor in tensors:
        if tensor.step.eps is not None and tensor.epsilon_factor is not None:
            names.append(tensor.name)
            values.append(tensor.step.eps)
            factors.append(tensor.epsilon_factor)
    if not values:
        return [], None
    value, origin = _over(values, factors)
    if given is not None:
        value = given
        origin = "given"
    rows = []
    for name, eps, factor in zip(names, values, factors, strict=True):
        planned = value * factor
        rows.append(Compared(name, "eps", eps, planned, not is_close(eps, planned)))
    return rows, _reference("eps", value, origin, rows)


def _over(values: Sequence[float], factors: Sequence[float]) -> tuple[float, Origin]:
    """Find the value of the base that most tensors agree on.

    One value for all tensors is the base's: nobody has scaled it.
    """
    at_base = [(value / factor, factor) for value, factor in zip(values, factors, strict=True)]
    is_one = all(is_close(value, values[0]) for value in values)
    is_scaled = not all(is_close(value, at_base[0][0]) for value, _ in at_base)
    if is_one and is_scaled:
        return values[0], "one"
    return most_common(at_base), "most"


def _betas(tensors: Iterable[Beside], given: tuple[float, ...] | None) -> list[Compared]:
    """Compare running means with those of the plan, where it has a run and the base's are given."""
    rows = []
    for tensor in tensors:
        half_lives = tensor.numbers.half_lives.get(BETAS.name)
        if given is None or tensor.step.betas is None:
            continue
        scale = Scale(1.0, tuple(half_lives or ()))
        planned: Any = scale(BETAS.name, given)
        for beta, of_plan in zip(tensor.step.betas, planned, strict=False):
            differs = not is_close(1 - beta, 1 - of_plan)
            rows.append(Compared(tensor.name, "beta", beta, of_plan, differs))
    return rows


def most_common(values: Sequence[tuple[float, float]]) -> float:
    """Return what most of these numbers agree on.

    Args:
        values: pairs of a number and the plan's factor that it is divided by. Of equally common
            ones the first counts that a tensor with the factor 1 has.
    """
    best = (0, False)
    common = 0.0
    for value in dict.fromkeys(number for number, _ in values):
        factors = [factor for number, factor in values if is_close(number, value)]
        support = (len(factors), any(is_close(factor, 1.0) for factor in factors))
        if support > best:
            best = support
            common = value
    return common


def _reference(
    setting: Setting, value: float, origin: Origin, rows: Sequence[Compared]
) -> Reference:
    agreeing = len([row for row in rows if not row.differs])
    return Reference(setting, value, origin, agreeing, len(rows))
