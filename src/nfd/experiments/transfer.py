"""Transfer measured by training: the best learning rates of a family's networks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeVar

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
from nfd.core.names import MOST, OPTIMIZER, WIDEST, RuleName
from nfd.core.notices import tell
from nfd.core.tables import Remarks
from nfd.core.words import listed, plural
from nfd.experiments.setting_searches import SettingSearches
from nfd.experiments.transfer_search import (
    FIRST_TRAININGS,
    Outcomes,
    Together,
    looks_of,
    searched,
)
from nfd.families.family import Family, as_family
from nfd.laws.best_rate import LEARNT, Scores, Size, in_words, rounded
from nfd.laws.rate_against import RateAgainst
from nfd.laws.regret import Regret
from nfd.laws.rule_transfer import TOLERANCE, RuleTransfer, SearchSpent, rule_in_words
from nfd.laws.sequential import MOST_OF_SMALL
from nfd.laws.transfer import Transfer
from nfd.laws.transfer_answer import TrainedBy, growth_note
from nfd.runs.losses import classes_last
from nfd.runs.seeds import check_seeds_differ
from nfd.runs.sweep import Sweep, as_sweep, upset_in
from nfd.runs.task import Batch, Task, as_task, knows_steps
from nfd.runs.trial import Trial
from nfd.scaling.base import MakeModel, instance
from nfd.scaling.find_law import check_optimizer
from nfd.scaling.optimizers import OptimizerLaw
from nfd.scaling.plans_itself import told_by
from nfd.scaling.rules import MAX_RATE, RULES, rule_named
from nfd.scaling.samples import evaluating
from nfd.store import Record

K = TypeVar("K")

# ---- ``nfd.transfer``: whether a small and a large network have the same best learning rate


# Doublings that the first grid reaches to either side of the optimizer's usual learning rate.
_OCTAVES = 3
# The least factor between two rates of a grid.
_CLOSEST = 1.05
_GRID_SEEDS = 3
# Initial weights are far from fan-in scaling at this factor above or below it. PyTorch initialises
# its layers at 0.58, and layers for relu have 1.4.
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
    seeds: int | None = None,
    budget: int | None = None,
    drift: bool = False,
    axes: Mapping[str, Sequence[float]] | None = None,
    halving: bool = False,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    sweep: Sweep | None = None,
) -> Transfer:
    """Say whether a small network's best learning rate serves a large one.

    Without ``lr``, trainings go where they decide: first the smallest network's best rate, then,
    seed after seed, what that rate loses at the largest size: the regret. The search ends with a
    verdict, or says what may make one.

    Example::

        answer = nfd.transfer(make_model, batches, [16, 32], [2], rules=("complete-p",))
        print(answer)

    With ``lr``, every size is trained at every rate from every seed, with more rates where the best
    is at an end; then the largest at both best rates from ``2 seeds`` new seeds.

    With ``axes`` the best rate is found at every value of other settings, one at a time:
    ``axes={"batch_size": (16, 32)}``. A search compares the values at the largest size, too. One
    size, or steps, take a grid.

    The regret is a share of the progress: how far training lowers the loss below log C, that of a
    uniform guess among C classes, or, under a loss other than cross-entropy, which must not be
    negative, below that of untrained networks. A network that diverges makes none.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an
            ``nfd.Family``.
        task: batches, one update for each, or an ``nfd.Task``.
        widths, depths: of the networks. Two sizes or more, unless there are ``axes``.
        lr: a grid of three rates of the base or more.
        rules: to compare; by default the family's and ``"standard"``, your model as it is.
        optimizer, blocks, roles: in place of the family's; as in ``nfd.plan``.
        seeds: of the largest network at most, 12; of a grid every network's, 3.
        budget: trainings of a search at most, stored ones too.
        drift: whether a search trains the sizes between.
        axes: setting to ascending values: ``"weight_decay"``, ``"batch_size"``, ``"steps"``,
            ``"init_scale"``, ``"adamw_lr"``, or another keyword of ``make_model``.
        halving: goes in 0.5.
        sweep: where networks are trained and kept.

    Returns:
        A ``Transfer``: ``best(rule, width, depth)``, ``loss(rule, width, depth)``, ``drift(rule,
        axis)``, ``regret(rule)``, ``verdict(rule)`` and ``notes``.

    Raises:
        ValueError, TypeError, RuntimeError: naming the argument, or the line of your code.

    Source: Yang et al., Tensor Programs V; Dey et al., CompleteP.
    """
    data = "task" if isinstance(task, Task) else "batches"
    task = as_task(task)
    widths = check_ascending("widths", widths, WIDEST)
    depths = check_ascending("depths", depths, MOST)
    family = as_family(
        family, (widths[0], depths[0]), None, optimizer, task.sample, blocks=blocks, roles=roles
    )
    families = [family.under(rule) for rule in _rules(rules, family)]
    family.check_sizes(widths, depths)
    for under_rule in families:
        check_optimizer(
            under_rule.optimizer, rule=under_rule.rule, weight_decay=task.weight_decay or 0.0
        )
    varying = _axes(axes, family.make_model)
    sizes = list(product(widths, depths))
    if len(sizes) < 2 and not varying:
        raise InputError(
            f"widths and depths must make two sizes, or one with axes=; got {widths} and {depths}."
        )
    count = None if seeds is None else check_count("seeds", seeds, minimum=2, maximum=MOST)
    halve = check_flag("halving", halving)
    if halve:
        tell("halving goes in 0.5: without lr, trainings go where they decide.", FutureWarning)
    is_search = lr is None and not halve
    if varying:
        # Other steps are other trainings, of which none is the best; one size has nothing to serve.
        is_search = is_search and len(sizes) > 1 and "steps" not in varying
    most = _budget(budget, is_search, len(families))
    with_middle = check_flag("drift", drift)
    by_rule = {under_rule.rule: under_rule for under_rule in families}
    with as_sweep(sweep) as opened:
        rates = _grid(lr, family.law)
        grid_seeds = count or _GRID_SEEDS
        question = _Question(by_rule, task, sizes, grid_seeds, varying, rates, halve, opened)
        spent = None
        ahead = 0
        if is_search:
            together = Together(question, most, Remarks(opened.progress))
            looks = looks_of(count)
            values = len(families) * sum(map(len, varying.values()))
            together.later = values * (MOST_OF_SMALL + looks[-1])
            answers = searched(together, by_rule, sizes, looks, with_middle)
            if varying:
                along = SettingSearches(together, by_rule, sizes[0], sizes[-1], varying, looks)
                answers = along.added_to(answers)
            ahead = len(together.ahead - together.keys)
            spent = SearchSpent(len(together.keys), most, looks[-1], tuple(sizes))
        else:
            answers = question.answers()
        score = _SCORES[task.score]
    diverged = "log C" if question.classes else "an untrained one"
    of_seeds = f"{grid_seeds} seeds" if spent is None else f"up to {spent.seeds} seeds"
    about = (
        f"{family.name}, {family.optimizer}, {task.about}, {of_seeds}; best by {score}; a "
        f"network that diverged counts as {diverged}. A regret under {TOLERANCE:.0%} of the "
        "progress counts as none."
    )
    notes = [*opened.notes(family), *task.notes]
    if "init_scale" not in varying:
        # A rule that scales needs every role, and knows which matrices are inner ones.
        scaled = [f for f in families if rule_named(f.rule).scales_width]
        notes += _scale_note((scaled or families)[-1])
    notes += growth_note(answers)
    if is_search and not with_middle:
        notes += _middle_note(sizes)
    notes += _ahead_note(ahead)
    if is_search:
        notes += _settings_note(answers, varying)
    is_default = family.optimizer == OPTIMIZER
    trained_by = TrainedBy(
        data, "" if is_default else f', optimizer="{family.optimizer}"', task.optimizer_code
    )
    return Transfer(
        tuple(answers),
        about,
        score,
        tuple(notes),
        question.seconds,
        spent=spent,
        trained_by=trained_by,
    )


def _rules(rules: Sequence[str] | None, family: Family) -> list[str]:
    """Return the rules to compare: those asked for, or the family's and the standard one."""
    if rules is None:
        # Such a network has the scales of its rule in its own forward pass. There is no model
        # without them to compare with.
        plans_itself = told_by(instance(family.make_model, *family.base)) is not None
        if plans_itself or family.rule == "standard":
            return [family.rule]
        return ["standard", family.rule]
    names = check_several("rules", rules, "names")
    checked = [check_choice("rules", rule, RULES) for rule in names]
    if len({*checked}) < max(1, len(checked)):
        raise InputError(f"rules must be one or more different names; got {list(rules)}.")
    return checked


def _grid(lr: Sequence[float] | None, law: OptimizerLaw) -> list[float]:
    """Return the first grid, ascending: the rates asked for, or octaves around the usual rate."""
    if lr is None:
        lr = [law.default_lr * 2.0**k for k in range(-_OCTAVES, _OCTAVES + 1)]
    several = check_several("lr", lr, "rates")
    rates = sorted(check_real("lr", rate, above=0.0, below=MAX_RATE) for rate in several)
    if len(rates) < 3 or any(high < _CLOSEST * low for low, high in pairwise(rates)):
        raise InputError(f"lr must be three or more rates, at least 5 % apart; got {list(lr)}.")
    return rates


def _budget(budget: int | None, is_search: bool, rules: int) -> float:
    """Return how many trainings a search may take."""
    if budget is None:
        return math.inf
    if not is_search:
        raise InputError(
            "budget bounds a search: it needs lr=None, two sizes, no axis of steps and no halving. "
            "Leave budget out, or them."
        )
    return check_count("budget", budget, minimum=FIRST_TRAININGS * rules)


def _middle_note(sizes: Sequence[Size]) -> list[str]:
    """Note that sizes between the smallest and the largest were not trained."""
    middle = [in_words(size) for size in sizes[1:-1]]
    if not middle:
        return []
    return [
        f"Not trained, as they decide nothing: {', '.join(middle)}. drift=True finds their best "
        "rates, too."
    ]


def _settings_note(answers: Sequence[RuleTransfer], axes: Mapping[str, Any]) -> list[str]:
    """Note the settings that were not searched, under which rules."""
    notes = list[str]()
    for answer in answers:
        left_out = [setting for setting in axes if setting not in answer.against]
        if left_out:
            name, _ = rule_in_words(answer.rule)
            why = "the budget is spent"
            if answer.verdict != "TRANSFERS":
                why = "its learning rate is not known to transfer"
            notes.append(f"{listed(left_out)} with {name} was not searched, as {why}.")
    return notes


def _ahead_note(ahead: int) -> list[str]:
    """Note trainings of idle workers that no search asked for."""
    if not ahead:
        return []
    return [
        f"Idle workers trained {plural(ahead, 'network')} more, of seeds that another look would "
        "have read: a longer search finds them in the store."
    ]


def _scale_note(family: Family) -> list[str]:
    """Warn of inner matrices whose initial weights are far from fan_in^-1/2.

    The scale is the geometric mean of their standard deviations over fan_in^-1/2.
    """
    member = family.member(*family.base)
    # Networks that plan themselves are initialised as N(0, 1), and scale in the forward pass.
    if told_by(member.module) is not None:
        return []
    logs = list[float]()
    for entry in member.plan.entries.values():
        is_inner_matrix = entry.role in ("inner", "hidden") and not entry.is_vector
        if is_inner_matrix and entry.fan_in and entry.start.std:
            logs.append(math.log(entry.start.std * math.sqrt(entry.fan_in)))
    scale = math.exp(math.fsum(logs) / max(1, len(logs)))
    if max(scale, 1 / scale) <= _FAR:
        return []
    if scale < 1:
        word = "small"
        remedies = "1, 2, 4, 8"
    else:
        word = "large"
        remedies = "0.125, 0.25, 0.5, 1"
    return [
        f"Initial weights are {word}: inner matrices of the smallest network are initialised at "
        f"{scale:.2g} times fan_in^-1/2, and a rule keeps this at every size. Try "
        f"axes={{'init_scale': ({remedies})}}, then multiply your model's initial weights by the "
        "best."
    ]


# ---- further settings


# Axes that are settings of the task; all others are keywords of ``make_model``.
_TASK_SETTINGS = ("weight_decay", "batch_size", "steps", "init_scale", "adamw_lr")


def _axes(
    axes: Mapping[str, Sequence[float]] | None, make_model: MakeModel
) -> dict[str, list[float]]:
    """Return the axes asked for, with their values.

    They are settings of the task, and keywords of the constructor beside width and depth.
    """
    if not isinstance(axes, Mapping | None):
        raise InputTypeError(
            f"axes must be a dict such as {{'batch_size': (16, 32, 64)}}; got {axes!r}."
        )
    # The first two are width and depth.
    parameters = list(inspect.signature(make_model).parameters.values())[2:]
    keywords = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    # The constructors of nfd.from_config take any keyword, and refuse unknown fields themselves.
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    checked = {}
    for name, asked in (axes or {}).items():
        if not takes_any:
            check_choice("axes", name, (*_TASK_SETTINGS, *keywords))
        values = check_several(f"axes[{name!r}]", asked, "values of the setting")
        numbers = [check_real(f"axes[{name!r}]", value, least=0.0) for value in values]
        if len(numbers) < 2 or numbers != sorted(set(numbers)):
            raise InputError(f"axes[{name!r}] must be two or more ascending numbers; got {values}.")
        checked[name] = values
    return checked


def _varied(task: Task, setting: str, value: Any, family: Family) -> Task:
    """Return the task with another value of one setting.

    Raises:
        ValueError, TypeError: where the value would be ignored.
    """
    is_length = setting in ("batch_size", "steps")
    if is_length and task.schedule is not None and not knows_steps(task.schedule):
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
            decay = check_real(setting, value, below=MAX_RATE)
            check_optimizer(family.optimizer, rule=family.rule, weight_decay=decay)
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
# How many rounds may each add two rates to a grid. Where rates are octaves apart, 12 rounds reach a
# best rate 2^24 beyond the end of the grid.
_ROUNDS = 12
# Halving trains all rates for this share of the steps, before it drops half of them.
_FIRST_SHARE = 1 / 8
# So many rates or fewer are not halved.
_FEWEST = 4

# A setting and a value that it has in place of the task's or the constructor's.
Variation = tuple[str, float]


class Place(NamedTuple):
    """Where a best rate is asked for; ``variation`` is None for the task and model as they are."""

    rule: RuleName
    size: Size
    variation: Variation | None = None


@dataclass(frozen=True)
class _Question:
    """The question for best rates under rules, at sizes and along axes.

    Every stage trains all places together, so that every core has work to the end.
    """

    families: Mapping[RuleName, Family]
    task: Task
    sizes: Sequence[Size]
    seeds: int
    axes: Mapping[str, Sequence[float]]
    rates: Sequence[float]
    halving: bool
    sweep: Sweep
    # Seconds of every training, by its key.
    times: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The seconds of one training on average; not-a-number where none was timed."""
        times = [time for time in self.times.values() if time > 0]
        return math.fsum(times) / len(times) if times else math.nan

    @cached_property
    def tasks(self) -> dict[Variation | None, Task]:
        """The task as it is, under None, and the task of every variation."""
        family = next(iter(self.families.values()))
        tasks: dict[Variation | None, Task] = {None: self.task}
        for setting, values in self.axes.items():
            for value in values:
                tasks[setting, value] = self.task
                if setting in _TASK_SETTINGS:
                    tasks[setting, value] = _varied(self.task, setting, value, family)
        return tasks

    @cached_property
    def varied(self) -> dict[tuple[RuleName, Variation | None], Family]:
        """The family to train under every rule and variation.

        A variation that is a keyword of ``make_model`` is bound to it; settings of the task are in
        ``tasks``.
        """
        varied = dict[tuple[RuleName, Variation | None], Family]()
        for (rule, family), variation in product(self.families.items(), self.tasks):
            varied[rule, variation] = family
            if variation is None:
                continue
            setting, value = variation
            if setting not in _TASK_SETTINGS:
                bound = partial(family.make_model, **{setting: value})
                varied[rule, variation] = replace(family, make_model=bound)
        return varied

    @cached_property
    def classes(self) -> int | None:
        """The number of outputs, C; None for other losses than cross-entropy."""
        if self.task.loss != "cross-entropy":
            return None
        x, y = self.task.batches[0]
        family = next(iter(self.families.values()))
        with self.task.blaming(*family.base):
            member = family.member(*family.base, device=self.task.device)
            with torch.no_grad(), evaluating(member.module):
                return classes_last(member(x), y).shape[-1]

    def answers(self) -> list[RuleTransfer]:
        """Train what is needed, and answer the question for every rule."""
        cells = self.cells()
        regrets = self.regrets(cells) if len(self.sizes) > 1 else {}
        return [self.answer(rule, cells, regrets.get(rule)) for rule in self.families]

    def answer(
        self, rule: RuleName, cells: Mapping[Place, Scores], regret: Regret | None
    ) -> RuleTransfer:
        """Gather the scores of one rule, by size and along every axis."""
        against = dict[str, RateAgainst]()
        for setting, values in self.axes.items():
            along = dict[tuple[Size, float], Scores]()
            for size, value in product(self.sizes, values):
                along[size, value] = cells[Place(rule, size, (setting, value))]
            against[setting] = RateAgainst(rule, setting, along)
        of_sizes = {size: cells[Place(rule, size)] for size in self.sizes}
        return RuleTransfer(rule, of_sizes, regret, against)

    def cells(self) -> dict[Place, Scores]:
        """Score every place, on grids that grow until no best rate lies at an end."""
        places = product(self.tasks, self.families, self.sizes)
        rates = {Place(rule, size, variation): list(self.rates) for variation, rule, size in places}
        rounds = _ROUNDS
        if self.halving:
            rates = self.halved(rates)
            # Rates that halving left out may come back one by one.
            rounds += len(self.rates)
        cells = self.scored(rates)
        for _ in range(rounds):
            more = dict[Place, list[float]]()
            for place, cell in cells.items():
                grid = wider(rates[place], self.rates, cell)
                if grid != rates[place]:
                    more[place] = grid
            if not more:
                break
            rates |= more
            cells |= self.scored(more)
        return cells

    def halved(self, rates: Mapping[Place, list[float]]) -> dict[Place, list[float]]:
        """Leave out rates at every place by short trainings of one seed.

        Every round trains half of the rates of the round before, for twice as many steps.
        """
        remaining = dict(rates)
        share = _FIRST_SHARE
        while share < 1:
            plans = dict[Place, list[Trial]]()
            for place, grid in remaining.items():
                if len(grid) > _FEWEST:
                    steps = max(1, round(share * self.tasks[place.variation].steps))
                    plans[place] = self.trials(place, grid, range(1), steps)
            if not plans:
                break
            for place, records in self.sweep.run_all(plans, "short trainings").items():
                losses = [record.metrics["train_loss"] for record in records]
                remaining[place] = _better_half(remaining[place], losses)
            share *= 2
        return remaining

    def regrets(self, cells: Mapping[Place, Scores]) -> dict[RuleName, Regret]:
        """Train the largest network at the smallest one's best rate and its own, under each rule.

        Its seeds are new: at the seeds that chose a rate, the loss is too low, because chance
        helped that rate to be chosen.
        """
        ends = (self.sizes[0], self.sizes[-1])
        pairs = dict[Place, list[float]]()
        for rule in self.families:
            best_rates = [rounded(cells[Place(rule, size)].best()) for size in ends]
            pairs[Place(rule, ends[-1])] = best_rates
        scored = self.scored(pairs, range(self.seeds, 3 * self.seeds), "regrets")
        return {place.rule: Regret(scores, cells[place]) for place, scores in scored.items()}

    def scored(
        self,
        rates: Mapping[Place, Sequence[float]],
        seeds: range | None = None,
        label: str = "learning rates",
    ) -> dict[Place, Scores]:
        """Train every place at its learning rates from every seed.

        A rate may stand twice, as where the best rates of two sizes are equal.
        """
        if seeds is None:
            seeds = range(self.seeds)
        plans = {place: self.trials(place, grid, seeds) for place, grid in rates.items()}
        records = self.trained(plans, label)
        return {place: self.scores(rates[place], records[place]) for place in rates}

    @property
    def workers(self) -> int:
        """How many trainings are done at once."""
        return self.sweep.executor.slots

    def missing(self, trials: Iterable[Trial]) -> int:
        """Count the trainings that are not stored yet."""
        return self.sweep.missing(trials)

    def trained(self, plans: Mapping[K, Sequence[Trial]], label: str) -> dict[K, list[Record]]:
        """Train all that is missing, and note how long it takes."""
        records = self.sweep.run_all(plans, label)
        for of_plan in records.values():
            self.times.update({record.key: record.seconds for record in of_plan})
        return records

    def scores(self, rates: Sequence[float], records: Sequence[Record]) -> Scores:
        """Arrange the records of one place as seeds times rates."""
        losses, guess, least = self.outcomes(records, records)
        upset = np.array([upset_in(record) for record in records])
        shape = (-1, len(rates))
        log2_eta = np.log2(rates)
        of_runs = np.array(losses).reshape(shape)
        return Scores(log2_eta, of_runs, upset.reshape(shape), guess, least=least)

    def outcomes(self, records: Sequence[Record], seeds: Sequence[Record]) -> Outcomes:
        """Read the losses of one place, and what they are measured from.

        ``seeds`` are trainings that have every seed equally often.
        """
        losses = [record.metrics[self.task.score] for record in records]
        if min(losses) < 0:
            raise InputError(
                "loss must not be negative, as its logarithm is taken; it fell to "
                f"{min(losses):.4g}. Add a constant."
            )
        _check_seeds(records)
        # ``least`` is how far a loss must be below a guess for something to be learnt: so many nats
        # of cross-entropy, or this share of any other loss.
        if self.classes is not None:
            return Outcomes(losses, math.log(self.classes), LEARNT)
        guess = math.fsum(record.metrics["first_loss"] for record in seeds) / len(seeds)
        return Outcomes(losses, guess, LEARNT * guess)

    def trial(
        self,
        rule: RuleName,
        size: Size,
        seed: int,
        lr: float,
        variation: Variation | None = None,
    ) -> Trial:
        """The training of a network, of the task and model as they are without a variation."""
        return Trial(self.varied[rule, variation], self.tasks[variation], *size, seed, lr)

    def trials(
        self, place: Place, rates: Sequence[float], seeds: range, stop: int | None = None
    ) -> list[Trial]:
        """List the trials of seeds times rates, the rates varying fastest."""
        family = self.varied[place.rule, place.variation]
        task = self.tasks[place.variation]
        return [
            Trial(family, task, *place.size, seed, lr, stop) for seed, lr in product(seeds, rates)
        ]


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
    """Return the rates of a cell and those that it still needs; the same rates if it needs none.

    Args:
        rates: the rates at which the cell was trained, ascending.
        whole: the grid asked for, of which halving may have left out rates at the ends.
        cell: the scores at ``rates``.
    """
    below = [rate for rate in whole if rate < rates[0]]
    above = [rate for rate in whole if rate > rates[-1]]
    # Where nothing is learnt, the scores do not say which side is better: take back all rates.
    if not cell.learns and (below or above):
        return sorted({*rates, *whole})
    # Where an end is about as good as the best rate, take back the rate next to it.
    nearest = list[float]()
    if cell.near[0]:
        nearest += below[-1:]
    if cell.near[-1]:
        nearest += above[:1]
    if nearest or not cell.edge:
        return sorted([*rates, *nearest])
    # The best rate lies at an end: add two rates beyond it, at the mean spacing of ``whole``.
    factor = (whole[-1] / whole[0]) ** (1 / (len(whole) - 1))
    end = rates[0] if cell.edge < 0 else rates[-1]
    beyond = [float(f"{end * factor ** (cell.edge * k):.4g}") for k in (1, 2)]
    return sorted([*rates, *beyond])


def _better_half(rates: Sequence[float], losses: Sequence[float]) -> list[float]:
    """Return half of the rates, at least ``_FEWEST``, that are neighbours in the grid.

    It starts with the best one, and adds the better of the two neighbours until it is enough.
    """
    keep = max(_FEWEST, (len(rates) + 1) // 2)
    best = min(range(len(rates)), key=lambda k: losses[k])
    first = best
    last = best
    while last - first + 1 < keep:
        is_at_end = last == len(rates) - 1
        if is_at_end or (first > 0 and losses[first - 1] < losses[last + 1]):
            first -= 1
        else:
            last += 1
    return list(rates[first : last + 1])
