"""Transfer measured by training: the best rates of a family's networks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
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
from nfd.rates.optimum import LEARNT, Array, Scores, Size, rounded
from nfd.rates.transfer import (
    TOLERANCE,
    Assumed,
    RateAgainst,
    Regret,
    RuleTransfer,
    SettingAxis,
    Transfer,
    Variation,
)
from nfd.runs.sweep import Sweep, upset_in
from nfd.runs.trial import Trial
from nfd.scaling.entries import MakeModel, instance
from nfd.scaling.model import evaluating
from nfd.scaling.optimizers import OptimizerLaw, check_optimizer
from nfd.scaling.planning import told_by
from nfd.scaling.rules import MAX_RATE, RULES
from nfd.store import Record
from nfd.training.losses import classes_last
from nfd.training.schedule import knows_steps, warmed
from nfd.training.task import Batch, Task, as_task

# ---- ``nfd.transfer``: whether the best learning rate of a small network is that of a large one


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


_LINEAR = Assumed(1.0, "linear scaling", "empirical law", "Goyal et al. 2017, arXiv 1706.02677, up to a critical batch")
_ROOT = Assumed(0.5, "square-root scaling", "theorem", "Malladi et al. 2022, arXiv 2205.10287, where noise dominates")
_ROOT_TOO = Assumed(0.5, "square-root scaling", "assumption", "as for Adam, whose updates are normalised too")
_HORIZON = Assumed(
    -0.32,
    "token horizon",
    "empirical law",
    "Bjorck et al. 2025, arXiv 2409.19913, language models of up to 2.7 billion parameters under AdamW",
)
_PRODUCT = Assumed(
    -1.0,
    "constant product",
    "assumption",
    "weights remember 1/(rate x decay) steps, Wang & Aitchison 2025, arXiv 2405.13698",
)


def assumed_of(setting: str, law: OptimizerLaw) -> Assumed | None:
    """What is usually assumed of the best rate along a setting under an optimizer; None where nothing is.

    The rules of the batch are those of a fixed number of samples.
    """
    if setting == "weight_decay":
        return _PRODUCT
    if setting == "steps":
        return None if law.degree else _HORIZON
    if setting == "batch_size":
        return _LINEAR if law.is_linear else None if law.degree else _ROOT if law.epsilon else _ROOT_TOO
    return None


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


# ---- Best rates and their regret, of any networks: which runs they need, and what these give


SCORES = {"train_loss": "training loss, mean of the last tenth of the steps", "test_loss": "test loss"}
_ROUNDS = 12  # of extending a grid by two rates


NewScores = dict[Size, Array]


class Place(NamedTuple):
    """Where a best rate is asked for."""

    rule: RuleName
    size: Size
    variation: Variation | None = None


@dataclass(frozen=True)
class Asked:
    """What is asked of networks: their best rates under these rules, at these sizes.

    Attributes:
        rules, sizes: every pair; sizes from the smallest to the largest.
        rates: to begin with, ascending. rate_name: what they are called.
        score: the metric that the best rate minimises, of ``SCORES``.
        about: what is trained, in words.
        axes: settings that vary too, one at a time, at every size.
        halving: whether short trainings tell which rates to begin with.
    """

    rules: Sequence[RuleName]
    sizes: Sequence[Size]
    rates: Sequence[float]
    rate_name: str
    score: str
    about: str
    axes: Sequence[SettingAxis] = ()
    halving: bool = False

    @property
    def places(self) -> list[Place]:
        """Every place, those of the sizes themselves first."""
        variations = [None, *(variation for axis in self.axes for variation in axis.variations)]
        return [Place(rule, size, at) for at in variations for rule in self.rules for size in self.sizes]


class Networks(ABC):
    """Networks whose best rates are asked for."""

    asked: Asked

    @abstractmethod
    def runs(self, place: Place, rates: Sequence[float], *, new: bool = False) -> list[Trial]:
        """Seeds times rates, the rates varying fastest; a rate may be given twice.

        ``new``: twice as many seeds, other than those that best rates are chosen by.
        """

    def short_runs(self, place: Place, rates: Sequence[float], share: float) -> list[Trial]:
        """One run at each rate that stops after a share of the steps, where rates are halved."""
        raise NotImplementedError

    @abstractmethod
    def reference(self, records: Sequence[Record]) -> tuple[float, float]:
        """The loss that divergence counts as and progress is measured from, and how much below it is learning."""


def best_rates(networks: Networks, sweep: Sweep) -> Transfer:
    """Train what the question needs: every rule and size together, so that every core has work to the end."""
    return _Question(networks, sweep).answered()


class _Question:
    def __init__(self, networks: Networks, sweep: Sweep) -> None:
        self.networks, self.asked, self.sweep = networks, networks.asked, sweep

    def answered(self) -> Transfer:
        asked, cells = self.asked, self._cells()
        regrets, new = self._regrets(cells) if len(asked.sizes) > 1 else ({}, {})
        rules = [
            RuleTransfer(
                rule,
                {size: cells[Place(rule, size)] for size in asked.sizes},
                regrets.get(rule),
                asked.rate_name,
                {axis.name: self._against(rule, axis, cells) for axis in asked.axes},
                new.get(rule, {}),
            )
            for rule in asked.rules
        ]
        tolerance = f"A regret under {100 * TOLERANCE:.0f} % of the progress counts as none."
        return Transfer(tuple(rules), f"{asked.about} {tolerance}", SCORES[asked.score])

    def _against(self, rule: RuleName, axis: SettingAxis, cells: Mapping[Place, Scores]) -> RateAgainst:
        places = [(size, value) for size in self.asked.sizes for value in axis.values]
        own = {place: cells[Place(rule, place[0], Variation(axis.name, place[1]))] for place in places}
        return RateAgainst(rule, axis, own, self.asked.rate_name)

    def _cells(self) -> dict[Place, Scores]:
        """Scores at every place, on grids that grow until no best rate lies at an end."""
        whole, rates = list(self.asked.rates), self._first_rates()
        cells = self._scored(rates)
        for _ in range(_ROUNDS + (len(whole) if self.asked.halving else 0)):
            more = {place: wider(rates[place], whole, cell) for place, cell in cells.items()}
            if not (more := {place: grid for place, grid in more.items() if grid != rates[place]}):
                break
            rates |= more
            cells |= self._scored(more)
        return cells

    def _first_rates(self) -> dict[Place, list[float]]:
        """All rates, or those that short trainings leave."""
        rates = {place: list(self.asked.rates) for place in self.asked.places}
        if not self.asked.halving:
            return rates
        return halved(rates, self._short_losses)

    def _short_losses(self, rates: Mapping[Place, Sequence[float]], share: float) -> dict[Place, list[float]]:
        plans = {place: self.networks.short_runs(place, of_place, share) for place, of_place in rates.items()}
        trained = self.sweep.run_all(plans, "short trainings")
        return {place: [record.metrics["train_loss"] for record in records] for place, records in trained.items()}

    def _regrets(self, cells: Mapping[Place, Scores]) -> tuple[dict[RuleName, Regret], dict[RuleName, NewScores]]:
        """The regret of each rule, and scores of new starts of the smallest and largest size at their best rates."""
        small, large = self.asked.sizes[0], self.asked.sizes[-1]
        rates = {
            rule: [rounded(cells[Place(rule, size)].best()) for size in (small, large)] for rule in self.asked.rules
        }
        plans = {
            Place(rule, size): self.networks.runs(Place(rule, size), asked, new=True)
            for rule, pair in rates.items()
            for size, asked in ((large, pair), (small, pair[:1]))
        }
        trained = self.sweep.run_all(plans, "regrets")
        regrets, new = dict[RuleName, Regret](), dict[RuleName, NewScores]()
        for rule, pair in rates.items():
            at_large = self._scores(pair, trained[Place(rule, large)])
            at_small = self._scores(pair[:1], trained[Place(rule, small)])
            regrets[rule] = Regret(pair[0], pair[1], at_large, cells[Place(rule, large)])
            new[rule] = {small: at_small.scores[:, 0], large: regrets[rule].own}
        return regrets, new

    def _scored(self, rates: Mapping[Place, Sequence[float]]) -> dict[Place, Scores]:
        plans = {place: self.networks.runs(place, etas) for place, etas in rates.items()}
        trained = self.sweep.run_all(plans, "learning rates")
        return {place: self._scores(rates[place], records) for place, records in trained.items()}

    def _scores(self, rates: Sequence[float], records: Sequence[Record]) -> Scores:
        shape = (-1, len(rates))
        losses = np.array([record.metrics[self.asked.score] for record in records]).reshape(shape)
        upset = np.array([upset_in(record) for record in records]).reshape(shape)
        guess, least = self.networks.reference(records)
        return Scores(np.log2(rates), losses, upset, guess, least=least)


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


# ---- Grids of rates: successive halving of those to begin with, and growth where the best rate needs more


P = TypeVar("P")
ShortLosses = Callable[[Mapping[P, Sequence[float]], float], Mapping[P, Sequence[float]]]

_FIRST = 1 / 8  # share of the steps after which the first half of the rates is left out
_FEWEST = 4  # rates that are not halved


def halved(rates: Mapping[P, Sequence[float]], short_losses: ShortLosses[P]) -> dict[P, list[float]]:
    """The rates to begin with at every place.

    Args:
        rates: by place, ascending. short_losses: from rates by place and a share of the steps to a loss at each rate.
    """
    left, share = {place: list(grid) for place, grid in rates.items()}, _FIRST
    while share < 1 and (many := {place: grid for place, grid in left.items() if len(grid) > _FEWEST}):
        for place, losses in short_losses(many, share).items():
            left[place] = _better_half(left[place], losses)
        share *= 2
    return left


def wider(rates: Sequence[float], whole: Sequence[float], cell: Scores) -> list[float]:
    """The rates to train next beside those of a cell; the same where its best rate needs no more.

    Args:
        rates: of the cell, ascending. whole: the grid that was asked for, of which some may be left out.
    """
    below, above = [r for r in whole if r < rates[0]], [r for r in whole if r > rates[-1]]
    if not cell.learns and (below or above):
        return sorted({*rates, *whole})
    low, high = cell.near_ends
    nearest = [*(below[-1:] if low else []), *(above[:1] if high else [])]
    if nearest:
        return sorted([*rates, *nearest])
    return _extended(rates, whole, cell.edge) if cell.edge else list(rates)


def _better_half(rates: Sequence[float], losses: Sequence[float]) -> list[float]:
    """Half of the rates in a row, no fewer than are not halved: the best one, and the better ones beside it."""
    keep = max(_FEWEST, (len(rates) + 1) // 2)
    first = last = min(range(len(rates)), key=lambda k: losses[k])
    while last - first + 1 < keep:
        down = last == len(rates) - 1 or (first > 0 and losses[first - 1] < losses[last + 1])
        first, last = (first - 1, last) if down else (first, last + 1)
    return list(rates[first : last + 1])


def _extended(rates: Sequence[float], whole: Sequence[float], edge: int) -> list[float]:
    """Two more rates beyond the end where the best one lies, by the mean factor of the grid that was asked for."""
    factor = (whole[-1] / whole[0]) ** (1 / (len(whole) - 1))
    more = [rates[0 if edge < 0 else -1] * factor ** (edge * k) for k in (1, 2)]
    return sorted([*rates, *(float(f"{rate:.4g}") for rate in more)])
