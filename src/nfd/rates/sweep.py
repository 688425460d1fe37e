"""Transfer measured by training: the best rates of a family's networks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

import numpy as np
import torch

from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    RuleName,
    check_ascending,
    check_choice,
    check_count,
    check_real,
    check_several,
)
from nfd.core.machine import undisturbed
from nfd.families.family import Family, as_family
from nfd.rates.optimum import LEARNT, Regret, Scores, Size, rounded
from nfd.rates.transfer import TOLERANCE, RuleTransfer, Transfer, compared
from nfd.runs.losses import classes_last
from nfd.runs.sweep import Sweep, upset_in
from nfd.runs.task import Batch, Task, as_task
from nfd.runs.trial import Trial
from nfd.scaling.base import MakeModel, instance
from nfd.scaling.optimizers import OptimizerLaw, check_optimizer
from nfd.scaling.planning import told_by
from nfd.scaling.rules import MAX_RATE, RULES
from nfd.scaling.samples import evaluating
from nfd.store import Record

# ---- ``nfd.transfer``: whether the best learning rate of a small network is that of a large one


_OCTAVES = 3  # doublings that the first grid reaches to either side of the optimizer's usual rate
_CLOSEST = 1.05  # factor between two rates of a grid
_FAR = 3.0  # times fan-in scaling, or one over it; PyTorch's layers begin at 0.58, those for relu at 1.4


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
    sweep: Sweep | None = None,
) -> Transfer:
    """Find the best learning rate at every width and depth, and what tuning on a small network costs.

    Every network is trained at every rate from every seed. If the best rate lies at an end of the grid, rates are
    added. Then the largest network is trained from ``2 seeds`` new seeds, at the smallest network's best rate and at
    its own. The difference is the regret. ``Transfer.notes`` say where another rule is better at the largest size,
    where growing does not help, and where initial weights are far from fan-in scaling.

    Example::

        answer = nfd.transfer(make_model, batches, [16, 32], [2], lr=(1e-3, 3e-3, 9e-3), rules=("complete-p",))
        print(answer)
        print(answer.best("complete-p", 16, 2), answer.regret("complete-p"))

    Progress, of which the regret is a share, is the fall of the loss from log C, that of a uniform guess; for other
    losses than cross-entropy, which must not be negative, from that of untrained networks. A network that diverges has
    made none.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an ``nfd.Family``.
        task: batches, one update for each, or an ``nfd.Task``.
        widths, depths: every pair is trained. One size has a best rate, two have a drift and a regret.
        lr: three rates of the base or more. By default an eighth to eight times that of ``nfd.check``.
        rules: to compare; by default that of the family and ``"standard"``, your model as it is.
        optimizer: in place of that of the family.
        seeds: of every network, at least 2; a verdict needs 3.
        sweep: where networks are trained and kept.

    Returns:
        A ``Transfer``: ``best(rule, width, depth)``, ``loss(rule, width, depth)``, ``drift(rule, axis)``,
        ``regret(rule)``, ``verdict(rule)`` and ``notes``.

    Raises:
        ValueError, TypeError, RuntimeError: naming the argument, or the line of your code that fails.

    Source: Yang et al., Tensor Programs V; Dey et al., CompleteP.
    """
    task = as_task(task)
    widths, depths = check_ascending("widths", widths, WIDEST), check_ascending("depths", depths, MOST)
    given = as_family(family, (widths[0], depths[0]), None, optimizer, task.sample)
    families = {own.rule: own for own in (given.under(rule) for rule in _rules(rules, given))}
    given.check_sizes(widths, depths)
    for own in families.values():
        check_optimizer(own.optimizer, rule=own.rule, weight_decay=task.weight_decay)
    sizes = [(n, L) for n in widths for L in depths]
    count = check_count("seeds", seeds, minimum=2, maximum=MOST)
    rates = _grid(lr, given.law)
    with sweep or Sweep() as opened:
        asked = _Question(families, task, sizes, count, rates, opened)
        answers, score = asked.answers(), _SCORES[task.score]
    about = (
        f"{given.name}, {given.optimizer}, {task.about}, {count} seeds; best by {score}; a network that diverged "
        f"counts as {'log C' if asked.classes else 'an untrained one'}. A regret under {TOLERANCE:.0%} of the progress "
        "counts as none."
    )
    return Transfer(tuple(answers), about, score, (*task.notes, *_scale_note(given), *compared(answers)))


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
    if len(rates) < 3 or any(b < _CLOSEST * a for a, b in pairwise(rates)):
        raise InputError(f"lr must be three or more rates, at least 5 % apart; got {list(given)}.")
    return rates


def _scale_note(family: Family) -> list[str]:
    """A warning of inner matrices that begin far from fan_in^-1/2, by the geometric mean of their standard deviations.
    Networks with scales in their forward pass have none."""
    member = family.member(*family.base)
    entries = [] if told_by(member.module) is not None else member.plan.entries.values()
    drawn = [e for e in entries if e.role in ("inner", "hidden") and not e.is_vector and e.fan_in and e.start.std]
    scale = math.exp(math.fsum(math.log(e.start.std * math.sqrt(e.fan_in or 1)) for e in drawn) / max(1, len(drawn)))
    if max(scale, 1 / scale) <= _FAR:
        return []
    word, others = ("small", "larger") if scale < 1 else ("large", "smaller")
    return [
        f"Initial weights are {word}: inner matrices of the smallest network begin at {scale:.2g} times fan_in^-1/2, "
        f"and a rule keeps this at every size. Try {others} ones in make_model."
    ]


# ---- The question: which networks it needs, and what they answer ----------------------------------------------------

_SCORES = {"train_loss": "training loss, mean of the last tenth of the steps", "test_loss": "test loss"}
_ROUNDS = 12  # of extending a grid by two rates: from a rate that is off by 2^12, a grid of octaves is there in time


class Place(NamedTuple):
    """Where a best rate is asked for."""

    rule: RuleName
    size: Size


@dataclass(frozen=True)
class _Question:
    """Best rates under rules and at sizes. Every stage trains all places together, so that every core has
    work to the end."""

    families: Mapping[RuleName, Family]
    task: Task
    sizes: Sequence[Size]
    seeds: int
    rates: Sequence[float]
    sweep: Sweep

    @cached_property
    def classes(self) -> int | None:
        """C: how many outputs the networks have; None for other losses than cross-entropy."""
        if self.task.loss != "cross-entropy":
            return None
        (x, y), family = self.task.batches[0], next(iter(self.families.values()))
        with self.task.blaming(*family.base):
            member = family.member(*family.base, device=self.task.device)
            with torch.no_grad(), evaluating(member.module):
                return classes_last(member(x), y).shape[-1]

    def answers(self) -> list[RuleTransfer]:
        """Of every rule."""
        cells = self.cells()
        regrets = self.regrets(cells) if len(self.sizes) > 1 else {}
        return [
            RuleTransfer(rule, {size: cells[Place(rule, size)] for size in self.sizes}, regrets.get(rule))
            for rule in self.families
        ]

    def cells(self) -> dict[Place, Scores]:
        """Scores at every place, on grids that grow until no best rate lies at an end."""
        rates = {Place(rule, size): self.rates for rule in self.families for size in self.sizes}
        cells = self.scored(rates)
        for _ in range(_ROUNDS):
            more = {place: self.wider(rates[place], cell.edge) for place, cell in cells.items() if cell.edge}
            if not more:
                break
            rates |= more
            cells |= self.scored(more)
        return cells

    def wider(self, rates: Sequence[float], edge: int) -> list[float]:
        """Rates with two more beyond one end, by the mean factor of the grid that was asked for."""
        factor = (self.rates[-1] / self.rates[0]) ** (1 / (len(self.rates) - 1))
        more = [rates[0 if edge < 0 else -1] * factor ** (edge * k) for k in (1, 2)]
        return sorted([*rates, *(float(f"{rate:.4g}") for rate in more)])

    def regrets(self, cells: Mapping[Place, Scores]) -> dict[RuleName, Regret]:
        """The regret of each rule."""
        small, large = self.sizes[0], self.sizes[-1]
        rates = {rule: [rounded(cells[Place(rule, size)].best()) for size in (small, large)] for rule in self.families}
        # other seeds than those that chose the rates: the best of a grid is too low by chance
        new = {Place(rule, large): pair for rule, pair in rates.items()}
        found = self.scored(new, range(self.seeds, 3 * self.seeds), "regrets")
        return {place.rule: Regret(scores, cells[place]) for place, scores in found.items()}

    def scored(
        self, rates: Mapping[Place, Sequence[float]], seeds: range | None = None, label: str = "learning rates"
    ) -> dict[Place, Scores]:
        """Train the seeds at these rates, of which one may be given twice."""
        plans = {place: self.trials(place, own, seeds or range(self.seeds)) for place, own in rates.items()}
        cells = {}
        for place, records in self.sweep.run_all(plans, label).items():
            losses = np.array([record.metrics[self.task.score] for record in records])
            if losses.min() < 0:
                raise InputError(
                    f"loss must not be negative, as its logarithm is taken; it fell to {losses.min():.4g}. Add a "
                    "constant."
                )
            _check_seeds(records)
            upset = np.array([upset_in(record) for record in records])
            first = math.fsum(record.metrics["first_loss"] for record in records) / len(records)
            guess, least = (first, LEARNT * first) if self.classes is None else (math.log(self.classes), LEARNT)
            shape = (-1, len(rates[place]))
            log2_eta = np.log2(rates[place])
            cells[place] = Scores(log2_eta, losses.reshape(shape), upset.reshape(shape), guess, least=least)
        return cells

    def trials(self, place: Place, rates: Sequence[float], seeds: range) -> list[Trial]:
        """Seeds times rates, the rates varying fastest."""
        family = self.families[place.rule]
        return [Trial(family, self.task, *place.size, seed, lr) for seed in seeds for lr in rates]


def _check_seeds(records: Sequence[Record]) -> None:
    """Refuse networks that are the same for every seed."""
    losses: dict[int, list[float]] = {}
    for record in records:
        losses.setdefault(record.config["seed"], []).extend(record.metrics.values())
    for one, other in combinations(losses, 2):
        if losses[one] == losses[other] and any(record.status == "done" for record in records):
            width, depth = (records[0].config[name] for name in ("width", "depth"))
            raise InputError(
                f"make_model({width}, {depth}) gives the same losses for seeds {one} and {other}, but intervals come "
                "from differences between seeds. Draw from the global streams of PyTorch, NumPy or Python, which are "
                "seeded here."
            )
