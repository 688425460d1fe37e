"""Transfer measured by training: the best rates of a family's networks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from nfd.core.checks import (
    check_ascending,
    check_choice,
    check_count,
    check_flag,
    check_real,
    check_several,
)
from nfd.core.errors import InputError, InputTypeError
from nfd.core.modes import undisturbed
from nfd.core.names import MOST, WIDEST, RuleName
from nfd.families.family import Family, as_family
from nfd.laws.best_rate import LEARNT, Scores, Size, rounded
from nfd.laws.rate_against import RateAgainst
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import TOLERANCE, RuleTransfer, compared
from nfd.laws.transfer import Transfer
from nfd.runs.losses import classes_last
from nfd.runs.seeds import check_seeds_differ
from nfd.runs.sweep import Sweep, as_sweep, upset_in
from nfd.runs.task import Batch, Task, as_task, knows_steps
from nfd.runs.trial import Trial
from nfd.scaling.base import MakeModel, instance
from nfd.scaling.find_law import check_optimizer
from nfd.scaling.optimizers import OptimizerLaw
from nfd.scaling.plans_itself import told_by
from nfd.scaling.rules import MAX_RATE, RULES
from nfd.scaling.samples import evaluating
from nfd.store import Record

# ---- ``nfd.transfer``: whether the best learning rate of a small network is that of a large one


_OCTAVES = 3  # doublings that the first grid reaches to either side of the optimizer's usual rate
_CLOSEST = 1.05  # factor between two rates of a grid
# times fan-in scaling, or one over it; PyTorch's layers begin at 0.58, those for relu at 1.4
_FAR = 3.0


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
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    sweep: Sweep | None = None,
) -> Transfer:
    """Find the best learning rate of every size, and the cost of tuning on a small network.

    Every network is trained at every rate from every seed. Where the best rate is at an end of the
    grid, rates are added. Then the largest network is trained from ``2 seeds`` new seeds, at the
    smallest network's best rate and at its own. The difference is the regret. ``Transfer.notes``
    say where another rule is better at the largest size, where growing does not help, and where
    initial weights are far from fan-in scaling.

    Example::

        answer = nfd.transfer(
            make_model, batches, [16, 32], [2], lr=(1e-3, 3e-3, 9e-3), rules=("complete-p",)
        )
        print(answer)
        print(answer.best("complete-p", 16, 2), answer.regret("complete-p"))

    With ``axes`` the best rate is also found at every value of other settings, one setting at a
    time: ``axes={"batch_size": (16, 32, 64), "weight_decay": (0.0, 0.01, 0.1)}``. One size is then
    enough.

    Progress, of which the regret is a share, is the fall of the loss from log C, that of a uniform
    guess; for other losses than cross-entropy, which must not be negative, from that of untrained
    networks. A network that diverges has made none.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an
            ``nfd.Family``.
        task: batches, one update for each, or an ``nfd.Task``.
        widths, depths: every pair is trained. Two sizes or more, unless there are ``axes``.
        lr: three rates of the base or more. By default an eighth to eight times that of
            ``nfd.check``.
        rules: to compare; by default that of the family and ``"standard"``, your model as it is.
        optimizer, blocks, roles: in place of those of the family; as in ``nfd.plan``.
        seeds: of every network, at least 2; a verdict needs 3.
        axes: setting to ascending values: ``"weight_decay"``, ``"batch_size"``, ``"steps"``,
            ``"init_scale"``, ``"adamw_lr"``, or another keyword of ``make_model``.
        halving: choose rates by short trainings first.
        sweep: where networks are trained and kept.

    Returns:
        A ``Transfer``: ``best(rule, width, depth)``, ``loss(rule, width, depth)``, ``drift(rule,
        axis)``, ``regret(rule)``, ``verdict(rule)`` and ``notes``.

    Raises:
        ValueError, TypeError, RuntimeError: naming the argument, or the line of your code.

    Source: Yang et al., Tensor Programs V; Dey et al., CompleteP.
    """
    task = as_task(task)
    widths = check_ascending("widths", widths, WIDEST)
    depths = check_ascending("depths", depths, MOST)
    given = as_family(
        family, (widths[0], depths[0]), None, optimizer, task.sample, blocks=blocks, roles=roles
    )
    families = {own.rule: own for own in (given.under(rule) for rule in _rules(rules, given))}
    given.check_sizes(widths, depths)
    for own in families.values():
        check_optimizer(own.optimizer, rule=own.rule, weight_decay=task.weight_decay or 0.0)
    varying = _axes(axes, given.make_model)
    sizes = [(n, L) for n in widths for L in depths]
    if len(sizes) < 2 and not varying:
        raise InputError(
            f"widths and depths must make two sizes, or one with axes=; got {widths} and {depths}."
        )
    count = check_count("seeds", seeds, minimum=2, maximum=MOST)
    rates = _grid(lr, given.law)
    halve = check_flag("halving", halving)
    with as_sweep(sweep) as opened:
        asked = _Question(families, task, sizes, count, varying, rates, halve, opened)
        answers = asked.answers()
        score = _SCORES[task.score]
    about = (
        f"{given.name}, {given.optimizer}, {task.about}, {count} seeds; best by {score}; a network "
        f"that diverged counts as {'log C' if asked.classes else 'an untrained one'}. A regret "
        f"under {TOLERANCE:.0%} of the progress counts as none."
    )
    scale = [] if "init_scale" in varying else _scale_note(given)
    notes = (*opened.notes(given), *task.notes, *scale, *compared(answers))
    return Transfer(tuple(answers), about, score, notes)


def _rules(rules: Sequence[str] | None, family: Family) -> list[str]:
    if rules is None:
        papers = told_by(instance(family.make_model, *family.base)) is not None
        return [family.rule] if papers or family.rule == "standard" else ["standard", family.rule]
    checked = [
        check_choice("rules", rule, RULES) for rule in check_several("rules", rules, "names")
    ]
    if len({*checked}) < max(1, len(checked)):
        raise InputError(f"rules must be one or more different names; got {list(rules)}.")
    return checked


def _grid(lr: Sequence[float] | None, law: OptimizerLaw) -> list[float]:
    given = [law.default_lr * 2.0**k for k in range(-_OCTAVES, _OCTAVES + 1)] if lr is None else lr
    rates = sorted(
        check_real("lr", rate, above=0.0, below=MAX_RATE)
        for rate in check_several("lr", given, "rates")
    )
    if len(rates) < 3 or any(b < _CLOSEST * a for a, b in pairwise(rates)):
        raise InputError(f"lr must be three or more rates, at least 5 % apart; got {list(given)}.")
    return rates


def _scale_note(family: Family) -> list[str]:
    """A warning of inner matrices that begin far from fan_in^-1/2, by the geometric mean of their
    standard deviations. Networks with scales in their forward pass have none."""
    member = family.member(*family.base)
    entries = [] if told_by(member.module) is not None else member.plan.entries.values()
    drawn = [
        e
        for e in entries
        if e.role in ("inner", "hidden") and not e.is_vector and e.fan_in and e.start.std
    ]
    scale = math.exp(
        math.fsum(math.log(e.start.std * math.sqrt(e.fan_in or 1)) for e in drawn)
        / max(1, len(drawn))
    )
    if max(scale, 1 / scale) <= _FAR:
        return []
    word, tried = ("small", "1, 2, 4, 8") if scale < 1 else ("large", "0.125, 0.25, 0.5, 1")
    return [
        f"Initial weights are {word}: inner matrices of the smallest network begin at {scale:.2g} "
        "times fan_in^-1/2, and a rule keeps this at every size. Try axes={'init_scale': "
        f"({tried})}}, then multiply your model's initial weights by the best."
    ]


# ---- further settings


_OF_TASK = ("weight_decay", "batch_size", "steps", "init_scale", "adamw_lr")


def _axes(
    axes: Mapping[str, Sequence[float]] | None, make_model: MakeModel
) -> dict[str, list[float]]:
    """The axes that were asked for: settings of the task, and keywords of the constructor beside
    width and depth.
    """
    if not isinstance(axes, Mapping | None):
        raise InputTypeError(
            f"axes must be a dict such as {{'batch_size': (16, 32, 64)}}; got {axes!r}."
        )
    checked = {}
    more = [*inspect.signature(make_model).parameters.values()][2:]
    keywords = [p.name for p in more if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    # as what nfd.from_config makes, which knows its own
    takes_any = any(p.kind is p.VAR_KEYWORD for p in more)
    for name, given in (axes or {}).items():
        if not takes_any:
            check_choice("axes", name, (*_OF_TASK, *keywords))
        values = check_several(f"axes[{name!r}]", given, "values of the setting")
        numbers = [check_real(f"axes[{name!r}]", value, least=0.0) for value in values]
        if len(numbers) < 2 or numbers != sorted(set(numbers)):
            raise InputError(f"axes[{name!r}] must be two or more ascending numbers; got {values}.")
        checked[name] = values
    return checked


def _varied(task: Task, setting: str, value: Any, family: Family) -> Task:
    """The task with another value of one setting; ValueError or TypeError where the value would be
    ignored.
    """
    if (
        setting in ("batch_size", "steps")
        and task.schedule is not None
        and not knows_steps(task.schedule)
    ):
        raise InputError(
            f"schedule must take steps where axes vary {setting}, to end with runs of any length: "
            "lambda step, steps: 1 - step / steps, or lambda optimizer, steps: "
            "CosineAnnealingLR(optimizer, T_max=steps)."
        )
    try:
        if setting == "batch_size":
            return task.in_batches(check_count("batch_size", value))
        if setting == "steps":
            return task.first(check_count("steps", value, maximum=task.steps))
        if setting == "weight_decay":
            check_optimizer(
                family.optimizer,
                rule=family.rule,
                weight_decay=check_real(setting, value, below=MAX_RATE),
            )
        elif setting == "init_scale":
            check_real(setting, value, above=0.0, below=MAX_RATE)
        else:
            value = family.law.check_rest_rate(value, above=0.0)
        return task.having(**{setting: value})
    except (InputError, InputTypeError) as error:
        raise type(error)(f"axes: {error}") from None


# ---- The question: which networks it needs, and what they answer

_SCORES = {
    "train_loss": "training loss, mean of the last tenth of the steps",
    "test_loss": "test loss",
}
# of extending a grid by two rates: from a rate that is off by 2^12, a grid of octaves is there in
# time
_ROUNDS = 12
_FIRST = 1 / 8  # share of the steps after which halving leaves out the first half of the rates
_FEWEST = 4  # rates that are not halved


class Place(NamedTuple):
    """Where a best rate is asked for."""

    rule: RuleName
    size: Size
    # a setting and its value, in place of that of the task
    variation: tuple[str, float] | None = None


@dataclass(frozen=True)
class _Question:
    """Best rates under rules, at sizes and along axes. Every stage trains all places together, so
    that every core has work to the end."""

    families: Mapping[RuleName, Family]
    task: Task
    sizes: Sequence[Size]
    seeds: int
    axes: Mapping[str, Sequence[float]]
    rates: Sequence[float]
    halving: bool
    sweep: Sweep

    @cached_property
    def tasks(self) -> dict[tuple[str, float] | None, Task]:
        """The task, and that of every variation."""
        family = next(iter(self.families.values()))
        varied = [(name, value) for name, values in self.axes.items() for value in values]
        own = {
            at: _varied(self.task, *at, family) if at[0] in _OF_TASK else self.task for at in varied
        }
        return {None: self.task} | own

    @cached_property
    def varied(self) -> dict[tuple[RuleName, tuple[str, float] | None], Family]:
        """The family of every rule, its constructor with the keyword of every variation bound."""
        made = {(rule, at): own for rule, own in self.families.items() for at in self.tasks}
        for (rule, at), own in made.items():
            if at is not None and at[0] not in _OF_TASK:
                made[rule, at] = replace(own, make_model=partial(own.make_model, **dict([at])))
        return made

    @cached_property
    def classes(self) -> int | None:
        """C: how many outputs the networks have; None for other losses than cross-entropy."""
        if self.task.loss != "cross-entropy":
            return None
        (x, y) = self.task.batches[0]
        family = next(iter(self.families.values()))
        with self.task.blaming(*family.base):
            member = family.member(*family.base, device=self.task.device)
            with torch.no_grad(), evaluating(member.module):
                return classes_last(member(x), y).shape[-1]

    def answers(self) -> list[RuleTransfer]:
        """Of every rule."""
        cells = self.cells()
        regrets = self.regrets(cells) if len(self.sizes) > 1 else {}
        answers = []
        for rule in self.families:
            own = {(size, at): cell for (of, size, at), cell in cells.items() if of == rule}
            against = {}
            for name, values in self.axes.items():
                along = {
                    (size, value): own[size, (name, value)]
                    for size in self.sizes
                    for value in values
                }
                against[name] = RateAgainst(rule, name, along)
            answers.append(
                RuleTransfer(
                    rule, {s: own[s, None] for s in self.sizes}, regrets.get(rule), against
                )
            )
        return answers

    def cells(self) -> dict[Place, Scores]:
        """Scores at every place, on grids that grow until no best rate lies at an end."""
        places = [
            Place(rule, size, at)
            for at in self.tasks
            for rule in self.families
            for size in self.sizes
        ]
        asked = {place: list(self.rates) for place in places}
        rates = self.halved(asked) if self.halving else asked
        cells = self.scored(rates)
        for _ in range(_ROUNDS + (len(self.rates) if self.halving else 0)):
            more = {place: wider(rates[place], self.rates, cell) for place, cell in cells.items()}
            if not (more := {place: grid for place, grid in more.items() if grid != rates[place]}):
                break
            rates |= more
            cells |= self.scored(more)
        return cells

    def halved(self, left: dict[Place, list[float]]) -> dict[Place, list[float]]:
        """The rates that short trainings of one seed leave at every place: a half, then a quarter,
        at twice the steps."""
        share = _FIRST
        while share < 1 and (
            many := {place: grid for place, grid in left.items() if len(grid) > _FEWEST}
        ):
            plans = {
                place: self.trials(
                    place, grid, range(1), max(1, round(share * self.tasks[place.variation].steps))
                )
                for place, grid in many.items()
            }
            for place, records in self.sweep.run_all(plans, "short trainings").items():
                left[place] = _better_half(
                    left[place], [record.metrics["train_loss"] for record in records]
                )
            share *= 2
        return left

    def regrets(self, cells: Mapping[Place, Scores]) -> dict[RuleName, Regret]:
        """The regret of each rule."""
        small = self.sizes[0]
        large = self.sizes[-1]
        rates = {
            rule: [rounded(cells[Place(rule, size)].best()) for size in (small, large)]
            for rule in self.families
        }
        # other seeds than those that chose the rates: the best of a grid is too low by chance
        new = {Place(rule, large): pair for rule, pair in rates.items()}
        found = self.scored(new, range(self.seeds, 3 * self.seeds), "regrets")
        return {place.rule: Regret(scores, cells[place]) for place, scores in found.items()}

    def scored(
        self,
        rates: Mapping[Place, Sequence[float]],
        seeds: range | None = None,
        label: str = "learning rates",
    ) -> dict[Place, Scores]:
        """Train the seeds at these rates, of which one may be given twice."""
        plans = {
            place: self.trials(place, own, seeds or range(self.seeds))
            for place, own in rates.items()
        }
        cells = {}
        for place, records in self.sweep.run_all(plans, label).items():
            losses = np.array([record.metrics[self.task.score] for record in records])
            if losses.min() < 0:
                raise InputError(
                    "loss must not be negative, as its logarithm is taken; it fell to "
                    f"{losses.min():.4g}. Add a constant."
                )
            _check_seeds(records)
            upset = np.array([upset_in(record) for record in records])
            first = math.fsum(record.metrics["first_loss"] for record in records) / len(records)
            guess, least = (
                (first, LEARNT * first)
                if self.classes is None
                else (math.log(self.classes), LEARNT)
            )
            shape = (-1, len(rates[place]))
            log2_eta = np.log2(rates[place])
            cells[place] = Scores(
                log2_eta, losses.reshape(shape), upset.reshape(shape), guess, least=least
            )
        return cells

    def trials(
        self, place: Place, rates: Sequence[float], seeds: range, stop: int | None = None
    ) -> list[Trial]:
        """Seeds times rates, the rates varying fastest."""
        family = self.varied[place.rule, place.variation]
        task = self.tasks[place.variation]
        return [Trial(family, task, *place.size, seed, lr, stop) for seed in seeds for lr in rates]


def _check_seeds(records: Sequence[Record]) -> None:
    """Refuse networks that are the same for every seed."""
    losses: dict[int, tuple[float, ...]] = {}
    for record in records:
        seed = record.config["seed"]
        losses[seed] = (*losses.get(seed, ()), *record.metrics.values())
    if any(record.status == "done" for record in records):
        size = records[0].config["width"], records[0].config["depth"]
        check_seeds_differ(size, "losses", losses)


# ---- Grids of rates


def wider(rates: Sequence[float], whole: Sequence[float], cell: Scores) -> list[float]:
    """The rates to train next beside those of a cell; the same where its best rate needs no more.

    Args:
        rates: of the cell, ascending. whole: the grid that was asked for, of which some may be left
            out.
    """
    below = [r for r in whole if r < rates[0]]
    above = [r for r in whole if r > rates[-1]]
    if not cell.learns and (below or above):
        return sorted({*rates, *whole})
    low = cell.near[0]
    high = cell.near[-1]
    nearest = [*(below[-1:] if low else []), *(above[:1] if high else [])]
    if nearest or not cell.edge:
        return sorted([*rates, *nearest])
    # two more rates beyond the end where the best one lies, by the mean factor of the grid that was
    # asked for
    factor = (whole[-1] / whole[0]) ** (1 / (len(whole) - 1))
    more = [rates[0 if cell.edge < 0 else -1] * factor ** (cell.edge * k) for k in (1, 2)]
    return sorted([*rates, *(float(f"{rate:.4g}") for rate in more)])


def _better_half(rates: Sequence[float], losses: Sequence[float]) -> list[float]:
    """Half of the rates in a row, no fewer than are not halved: the best one, and the better ones
    beside it.
    """
    keep = max(_FEWEST, (len(rates) + 1) // 2)
    first = last = min(range(len(rates)), key=lambda k: losses[k])
    while last - first + 1 < keep:
        down = last == len(rates) - 1 or (first > 0 and losses[first - 1] < losses[last + 1])
        first, last = (first - 1, last) if down else (first, last + 1)
    return list(rates[first : last + 1])
