"""``nfd.transfer``: whether the best learning rate of a small network is that of a large one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    InputTypeError,
    check_ascending,
    check_choice,
    check_count,
    check_flag,
    check_real,
    check_several,
)
from nfd.core.machine import undisturbed
from nfd.core.names import RuleName
from nfd.families.family import Family, as_family
from nfd.questions.against import SettingAxis, Variation
from nfd.questions.assumed import assumed_of
from nfd.questions.best_rates import SCORES, Asked, Networks, Place, best_rates
from nfd.questions.optimum import LEARNT
from nfd.questions.transfer import Transfer
from nfd.runs.sweep import Sweep
from nfd.runs.trial import Trial
from nfd.scaling.base import told_by
from nfd.scaling.entries import MakeModel, instance
from nfd.scaling.model import evaluating
from nfd.scaling.optimizers import OptimizerLaw, check_optimizer
from nfd.scaling.rules import MAX_RATE, RULES
from nfd.store import Record
from nfd.training.losses import classes_last
from nfd.training.schedule import knows_steps, warmed
from nfd.training.task import Batch, Task, as_task

_OCTAVES = 3  # doublings that the first grid reaches to either side of the optimizer's usual rate
_CLOSEST = 1.05  # factor between two rates of a grid


@undisturbed()
def transfer(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    widths: Sequence[int],
    depths: Sequence[int],
    lr: Sequence[float] | None = None,
    *,
    rules: Sequence[str] | None = None,
    optimizer: str | OptimizerLaw | None = None,
    seeds: int = 3,
    axes: Mapping[str, Sequence[float]] | None = None,
    halving: bool = False,
    sweep: Sweep | None = None,
) -> Transfer:
    """Find the best learning rate at every width and depth, and what tuning on a small network costs.

    Every network is trained at every rate from every seed. If the best rate lies at an end of the grid, rates are
    added. Then the largest network is trained from ``2 seeds`` new seeds, at the smallest network's best
    rate and at its own. The difference is the regret. ``Transfer.warnings`` says where another rule
    is better at the largest size, where growing does not help, and where initial weights are far from fan-in scaling.

    Example::

        answer = nfd.transfer(make_model, batches, [16, 32], [2], lr=(1e-3, 3e-3, 9e-3), rules=("complete-p",))
        print(answer)
        print(answer.best("complete-p", 16, 2), answer.regret("complete-p"))

    With ``axes`` the best rate is also found at every value of other settings, one setting at a time:
    ``axes={"batch_size": (16, 32, 64), "weight_decay": (0.0, 0.01, 0.1)}``. One size is then enough.

    Progress, of which the regret is a share, is the fall of the loss from log C, that of a uniform guess; for other
    losses than cross-entropy, which must not be negative, from that of untrained networks. A network that diverges has
    made none.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an ``nfd.Family``.
        task: batches, one update for each, or an ``nfd.Task``.
        widths, depths: every pair is trained. Two sizes or more, unless there are ``axes``.
        lr: three rates of the base or more. By default an eighth to eight times that of ``nfd.check``.
        rules: to compare; by default that of the family and ``"standard"``, your model as it is.
        optimizer: in place of that of the family.
        seeds: of every network, at least 2; a verdict needs 3.
        axes: setting to ascending values: ``"weight_decay"``, ``"batch_size"``, ``"steps"``, ``"warmup"``,
            ``"init_scale"``, and under Muon ``"adamw_lr"``.
        halving: choose rates by short trainings first.
        sweep: where networks are trained and kept.

    Returns:
        A ``Transfer``: ``best(rule, width, depth)``, ``loss(rule, width, depth)``, ``drift(rule, axis)``,
        ``regret(rule)``, ``verdict(rule)`` and ``warnings``.

    Raises:
        ValueError, TypeError: naming the argument.
        RuntimeError: naming the line of your code at which a network cannot be trained.

    Source: Yang et al., Tensor Programs V; Dey et al., CompleteP.
    """
    task = as_task(task)
    widths, depths = check_ascending("widths", widths, WIDEST), check_ascending("depths", depths, MOST)
    given = as_family(family, (widths[0], depths[0]), None, optimizer, task.sample)
    families = {own.rule: own for own in (given.under(rule) for rule in _rules(rules, given))}
    given.check_sizes(widths, depths)
    for own in families.values():
        check_optimizer(own.optimizer, rule=own.rule, weight_decay=task.weight_decay)
    varying = _axes(axes, given, task)
    sizes = [(n, L) for n in widths for L in depths]
    if len(sizes) < 2 and not varying:
        raise InputError(
            f"widths and depths must make two sizes or more, or one with axes, such as batch_size; got {list(widths)} "
            f"and {list(depths)}."
        )
    count = check_count("seeds", seeds, minimum=2, maximum=MOST)
    asked = _Trials(families, task, sizes, count, _grid(lr, given.law), varying, check_flag("halving", halving))
    with sweep or Sweep() as opened:
        answer = best_rates(asked, opened)
    return replace(answer, notes=task.notes, initial_scale=_initial_scale(given))


def _rules(rules: Sequence[str] | None, family: Family) -> list[str]:
    if rules is None:
        papers = told_by(instance(family.make_model, *family.base)) is not None
        return [family.rule] if papers or family.rule == "standard" else ["standard", family.rule]
    checked = [check_choice("rules", rule, RULES) for rule in check_several("rules", rules, "names")]
    if len({*checked}) < max(1, len(checked)):
        raise InputError(f"rules must be one or more different names; got {list(rules)}.")
    return checked


def _grid(lr: Sequence[float] | None, law: OptimizerLaw) -> list[float]:
    given = [law.default_lr * 2.0**k for k in range(-_OCTAVES, _OCTAVES + 1)] if lr is None else lr
    rates = sorted(check_real("lr", rate, above=0.0, below=MAX_RATE) for rate in check_several("lr", given, "rates"))
    if len(rates) < 3:
        raise InputError(f"lr must be three or more rates; got {list(given)}.")
    if doubled := [b for a, b in pairwise(rates) if a == b]:
        raise InputError(f"lr must hold every rate once; got {doubled[0]:g} twice in {list(given)}.")
    if close := [(a, b) for a, b in pairwise(rates) if b < _CLOSEST * a]:
        raise InputError(
            f"lr must hold rates at least 5 % apart; got {close[0][0]:g} and {close[0][1]:g}. Drop one of them."
        )
    return rates


def _initial_scale(family: Family) -> float:
    """Standard deviation of the initial inner matrices of the base over fan_in^-1/2, as a geometric mean.

    Not-a-number for networks that have their scales in their forward pass, and where no such matrix begins at random.
    """
    member = family.member(*family.base)
    if told_by(member.module) is not None:
        return math.nan
    entries = member.plan.entries.values()
    drawn = [e for e in entries if e.role in ("inner", "hidden") and not e.is_vector and e.fan_in and e.start.std]
    ratios = [e.start.std * math.sqrt(e.fan_in or 1) for e in drawn]
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


class _Trials(Networks):
    def __init__(
        self,
        families: Mapping[RuleName, Family],
        task: Task,
        sizes: Sequence[tuple[int, int]],
        seeds: int,
        rates: Sequence[float],
        axes: Sequence[SettingAxis],
        halving: bool,
    ) -> None:
        self.families, self.seeds, family = families, seeds, next(iter(families.values()))
        self.tasks = {None: task} | {at: _varied(task, at, family) for axis in axes for at in axis.variations}
        self.classes = _classes(family, task) if task.loss == "cross-entropy" else None
        lost = "log C" if self.classes else "an untrained one"
        about = (
            f"{family.name}, {family.optimizer}, {task.about}, {seeds} seeds; best by {SCORES[task.score]}; a network "
            f"that diverged counts as {lost}."
        )
        self.asked = Asked(list(families), sizes, rates, "lr", task.score, about, axes, halving)

    def runs(self, place: Place, rates: Sequence[float], *, new: bool = False) -> list[Trial]:
        S = self.seeds
        return self._trials(place, rates, range(S, 3 * S) if new else range(S))

    def short_runs(self, place: Place, rates: Sequence[float], share: float) -> list[Trial]:
        stop = max(1, round(share * self.tasks[place.variation].steps))
        return self._trials(place, rates, range(1), stop)

    def _trials(self, place: Place, rates: Sequence[float], seeds: range, stop: int | None = None) -> list[Trial]:
        """Seeds times rates, the rates varying fastest."""
        family, task = self.families[place.rule], self.tasks[place.variation]
        return [Trial(family, task, *place.size, seed, lr, stop) for seed in seeds for lr in rates]

    def reference(self, records: Sequence[Record]) -> tuple[float, float]:
        """log C, or the mean loss of the untrained networks; refuses losses that cannot be compared."""
        losses = [record.metrics[self.asked.score] for record in records]
        if min(losses) < 0:
            raise InputError(
                f"loss must not be negative, as its logarithm is taken; it fell to {min(losses):.4g}. Add a constant."
            )
        _check_seeds(records)
        if self.classes is not None:
            return math.log(self.classes), LEARNT
        first = [record.metrics["first_loss"] for record in records]
        guess = math.fsum(first) / len(first)
        return guess, LEARNT * guess


def _check_seeds(records: Sequence[Record]) -> None:
    """Refuse networks that are the same for every seed."""
    losses: dict[int, list[float]] = {}
    for record in records:
        losses.setdefault(record.config["seed"], []).extend(record.metrics.values())
    seeds: dict[tuple[float, ...], int] = {}
    for seed, own in losses.items():
        other = seeds.setdefault(tuple(own), seed)
        if other != seed and any(record.status == "done" for record in records):
            width, depth = (records[0].config[name] for name in ("width", "depth"))
            raise InputError(
                f"make_model({width}, {depth}) gives the same losses for seeds {other} and {seed}, but intervals come "
                "from differences between seeds. Draw from the global streams of PyTorch, NumPy or Python, which are "
                "seeded here."
            )


def _classes(family: Family, task: Task) -> int:
    """C: how many outputs the networks have."""
    x, y = task.batches[0]
    with task.blaming(*family.base):
        member = family.member(*family.base, device=task.device)
        with torch.no_grad(), evaluating(member.module):
            return classes_last(member(x), y).shape[-1]


# ---- further settings ------------------------------------------------------------------------------------------------


def _axes(axes: Mapping[str, Sequence[float]] | None, family: Family, task: Task) -> list[SettingAxis]:
    """The axes that were asked for, with what is usually assumed along them.

    Raises:
        ValueError, TypeError: naming the setting that there is none of, or whose values are not ascending.
    """
    if axes is None:
        return []
    if not isinstance(axes, Mapping):
        raise InputTypeError(f"axes must be a dict such as {{'batch_size': (16, 32, 64)}}; got {axes!r}.")
    checked = []
    for name, given in axes.items():
        check_choice("axes", name, ("weight_decay", "batch_size", "steps", "warmup", "init_scale", "adamw_lr"))
        values = check_several(f"axes[{name!r}]", given, "values of the setting")
        numbers = [check_real(f"axes[{name!r}]", value, least=0.0) for value in values]
        if not numbers or numbers != sorted(set(numbers)):
            raise InputError(f"axes[{name!r}] must be one or more ascending numbers; got {values}.")
        checked.append(SettingAxis(name, tuple(values), assumed_of(name, family.law)))
    return checked


def _varied(task: Task, variation: Variation, family: Family) -> Task:
    """The task with another value of one setting.

    Raises:
        ValueError, TypeError: where networks cannot be trained so, or the value would be ignored.
    """
    value: Any = variation.value
    try:
        if variation.setting == "weight_decay":
            decay = check_real("weight_decay", value, least=0.0, below=MAX_RATE)
            check_optimizer(family.optimizer, rule=family.rule, weight_decay=decay)
            return task.having(weight_decay=decay)
        if variation.setting == "batch_size":
            return _of_any_length(task).in_batches(check_count("batch_size", value))
        if variation.setting == "steps":
            return _of_any_length(task).first(check_count("steps", value, maximum=task.steps))
        if variation.setting == "warmup":
            share = check_real("warmup", value, least=0.0, below=1.0)
            warmed(None, task.steps, share)
            return task.having(warmup=share)
        if variation.setting == "init_scale":
            return task.having(init_scale=check_real("init_scale", value, above=0.0, below=MAX_RATE))
        return task.having(adamw_lr=family.law.check_rest_rate(value, above=0.0))
    except (InputError, InputTypeError) as error:
        raise type(error)(f"axes: {error}") from None


def _of_any_length(task: Task) -> Task:
    """ValueError where the schedule is of one number of steps, so that it would end elsewhere in runs of others."""
    if task.schedule is not None and not knows_steps(task.schedule):
        raise InputError(
            "schedule must take steps, how many there are, where they vary: such as lambda step, steps: 1 - step / "
            "steps, or lambda optimizer, steps: CosineAnnealingLR(optimizer, T_max=steps)."
        )
    return task
