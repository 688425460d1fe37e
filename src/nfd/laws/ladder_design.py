"""The designed ladder: a plan of training runs that make the forecast of a larger one usable.

``LadderLaw.next_runs`` plans after four sizes or more, and ``design_ladder`` from none on. Both say
what to expect of every run; which runs are chosen is in ``nfd.laws.ladder_outlook``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nfd.core.answer import NOT_DECIDED, Answer, Next
from nfd.core.checks import check_real
from nfd.core.errors import InputError
from nfd.core.tables import Row
from nfd.core.words import number, plural, power_of_ten
from nfd.laws.compute_law import FLOPS_ONLY
from nfd.laws.ladder import (
    NextRun,
    check_losses,
    finite_losses,
    ladder_of,
    percent,
    posterior_of,
    prior_near,
)
from nfd.laws.ladder_answer import TIMES, USABLE, LadderForecast
from nfd.laws.ladder_outlook import FEWEST_RUNS, REFUSED, Outlook, candidates, cost_of, plan_of
from nfd.laws.ladder_posterior import VARIABLES, Posterior, read_prior
from nfd.laws.loss_runs import FEWEST_SIZES, loss_runs, read_sizes
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.laws.rate_law import RateLaw
    from nfd.report.page import Section

Array = NDArray[np.float64]
# Before the first runs, sizes are tried from so many times fewer parameters and tokens than the
# target's: 10,000 times less compute.
_SPAN = 100.0


# ---- the plan


@dataclass(frozen=True)
class PlannedRun:
    """A training run of a plan, and what is expected once it and those before it are trained.

    Attributes:
        size: parameters and tokens by their names, as far as the law has them.
        cost: operations of the run; for a law in one variable, that variable.
        total: the cost of this run and of those before it.
        width: of the forecast after it, over its value.
        lr: the learning rate that a rate law advises; None without one.
    """

    size: dict[str, float]
    cost: float
    total: float
    width: float
    lr: float | None = None

    @property
    def row(self) -> Row:
        """The run as a row of a table."""
        lr = {} if self.lr is None else {"lr": self.lr}
        costs = {"cost": self.cost, "total": self.total}
        return self.size | lr | costs | {"width": self.width}


@dataclass(frozen=True, repr=False)
class LadderPlan(Shown):
    """The training runs that are expected to make the forecast of a target usable. Print it.

    Train the first run, add its row to your table, and ask again: the next plan knows its loss.

    Attributes:
        target: the size that is forecast, by variable.
        limit: the width of a forecast that is accepted, over its value.
        before: the width today; None before the first run.
        runs: the plan, the cheapest run first.
        fewest: how many sizes are lacking before a forecast is accepted at all.
        forecast: of the target, which says where no run is needed whether it can be used; None
            where runs are planned.
        choices: where no run is needed, what one more would do within each of several budgets.

    ``table`` and ``to_pandas()`` have a row for each run: ``parameters``, ``tokens``, ``lr`` where
    a rate law was given, ``cost`` and ``total`` in operations, and the ``width`` that is expected
    after it.
    """

    target: dict[str, float]
    limit: float
    before: float | None
    runs: tuple[PlannedRun, ...] = field(repr=False)
    fewest: int = 0
    forecast: LadderForecast | None = field(default=None, repr=False, compare=False)
    choices: tuple[NextRun, ...] = field(default=(), repr=False)

    @property
    def cost(self) -> float:
        """Operations of all runs; for a law in one variable, the sum of that variable."""
        return self.runs[-1].total if self.runs else 0.0

    @property
    def after(self) -> float | None:
        """The width that is expected after all runs; None without any."""
        return self.runs[-1].width if self.runs else self.before

    @property
    def decides(self) -> bool:
        """Whether the forecast is expected to be accepted after the plan."""
        if self.forecast is not None:
            return self.forecast.answer.tone == "good"
        return self.after is not None and self.after <= self.limit and len(self.runs) >= self.fewest

    @property
    def table(self) -> list[Row]:
        """One dict for each run."""
        return [run.row for run in self.runs]

    @property
    def texts(self) -> list[dict[str, str]]:
        """The runs in words, for a terminal; without any, the choices of one more."""
        if not self.runs:
            return self._texts_of_choices()
        unit = "FLOPs" if len(self.target) == 2 else ""
        texts = []
        for run in self.runs:
            text = {name: number(value) for name, value in run.size.items()}
            if run.lr is not None:
                text["lr"] = number(run.lr)
            if unit:
                text |= {unit: power_of_ten(run.cost), "together": power_of_ten(run.total)}
            texts.append(text | {"width after it": f"{number(100 * run.width)} %"})
        return texts

    def _texts_of_choices(self) -> list[dict[str, str]]:
        """The best run within each of several budgets in words."""
        assert self.forecast is not None
        law = self.forecast.law
        texts = []
        for choice in self.choices:
            text = dict[str, str]()
            if len(self.target) == 2:
                text[f"FLOPs, {TIMES} dearest run"] = (
                    f"{power_of_ten(choice.cost, 3)} {TIMES} "
                    f"{number(choice.cost / law.largest_cost)}"
                )
            text |= {name: number(value) for name, value in choice.size.items()}
            text["width after it"] = percent(choice.after)
            text["worth it"] = "yes" if choice.is_worth_it else "no"
            texts.append(text)
        return texts

    def _without_runs(self, forecast: LadderForecast) -> Answer:
        """The verdict on the forecast, and what one more run would do."""
        answer = forecast.answer
        if answer.tone != "good":
            return answer
        good = [choice for choice in self.choices if choice.is_worth_it]
        title = f"{forecast.run} need no further run"
        because = f"The forecast's interval is {percent(forecast.width)} wide, of its value."
        if not good and self.choices:
            because += " No run of these budgets narrows it by a twentieth: it is not worth it."
        elif good:
            title = f"{forecast.run} can be forecast now; one more run would narrow it"
            because += f" The cheapest run that is worth it leaves about {percent(good[0].after)}."
        return Answer(
            "good",
            USABLE,
            title,
            because,
            but=answer.but,
            about=answer.about,
            table=self.texts,
            details=answer.details,
        )

    @property
    def answer(self) -> Answer:
        """What to train, and how wide the forecast will be."""
        if self.forecast is not None:
            return self._without_runs(self.forecast)
        subject = " on ".join(f"{number(value)} {name}" for name, value in self.target.items())
        count = plural(len(self.runs), "training", "trainings")
        cost = number(self.cost)
        if len(self.target) == 2:
            cost = f"{power_of_ten(self.cost)} FLOPs"
        title = f"{count} of together {cost} should decide what {subject} reach"
        if not self.decides:
            title = f"No plan within the budget decides what {subject} reach"
        now = "unknown" if self.before is None else f"{number(100 * self.before)} %"
        because = (
            f"The forecast's interval is {now} wide, of its value; after these runs about "
            f"{number(100 * self.runs[-1].width)} %. {number(100 * self.limit)} % is the limit."
        )
        return Answer(
            tone="open",
            state=NOT_DECIDED,
            title=title,
            because=because.replace("is unknown wide, of its value", "is not known yet"),
            next=Next(
                "Run next: the first; add its row to the table, and ask again",
                ", ".join(f"{number(value)} {name}" for name, value in self.runs[0].size.items()),
            ),
            table=self.texts,
        )

    def first_sections(self) -> list[Section]:
        """The runs as a table."""
        from nfd.report.page import Section

        if not self.texts:
            return []
        title = "Runs that decide" if self.runs else "What one more run would do"
        return [Section(title, [], table=self.texts)]


@dataclass(frozen=True)
class Wish:
    """What is asked of a plan.

    Attributes:
        target: the size that is forecast, by variable.
        limit: the width of the forecast that is accepted, over its value.
        budget: of all runs together; None for the cost of the target.
        sizes: those that may be trained; None for a grid of them.
        rates, batch: the law of the learning rate, and the batch in tokens of the runs.
    """

    target: Mapping[str, float]
    limit: float = REFUSED
    budget: float | None = None
    sizes: Iterable[Mapping[str, float]] | None = None
    rates: RateLaw | None = None
    batch: float | None = None

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables of the target, in the order of a law's.

        Raises:
            ValueError: for other names.
        """
        variables = tuple(name for name in (*VARIABLES, *FLOPS_ONLY) if name in self.target)
        if len(variables) != len(self.target) or not variables:
            raise InputError(
                "target must name parameters, tokens or both, such as "
                f"{{'parameters': 7e9, 'tokens': 2e11}}; got {dict(self.target)!r}."
            )
        return variables

    def place(self, size: Mapping[str, float], argument: str) -> list[float]:
        """A size in the order of the variables.

        Raises:
            ValueError: for other variables, and for numbers that are not above 0.
        """
        if {*size} != {*self.variables}:
            raise InputError(
                f"{argument} must have {' and '.join(self.variables)}, as the target; got "
                f"{', '.join(size) or 'nothing'}."
            )
        return [check_real(f"{argument}: {name}", size[name], above=0.0) for name in self.variables]

    def plan(self, posterior: Posterior, low: Array, *, is_off: bool = False) -> LadderPlan:
        """Plan runs by a posterior, of sizes from ``low`` on where none are given.

        Where the target is off the line of the runs so far, those of the plan are so, too.
        """
        limit = check_real("limit", self.limit, above=0.0)
        goal = np.array(self.place(self.target, "target"))
        sizes = self._sizes(goal, low, posterior.sizes)
        if is_off:
            sizes = _off_line(posterior, goal, sizes)
        budget = float(cost_of(goal[None])[0])
        if self.budget is not None:
            budget = check_real("budget", self.budget, above=0.0)
        least = float(cost_of(sizes).min())
        if least > budget * (1 + 1e-9):
            raise InputError(
                f"budget must pay for the smallest run, {least:.3g}; got {budget:.3g}. Raise it."
            )
        trained = len(np.unique(posterior.sizes, axis=0))
        fewest = max(0, FEWEST_RUNS - trained)
        before = Outlook(posterior, goal, sizes).width() if trained else None
        runs = plan_of(posterior, goal, sizes, limit=limit, budget=budget, fewest=max(1, fewest))
        return LadderPlan(
            dict(zip(self.variables, goal.tolist(), strict=True)),
            limit,
            before,
            self._runs(sizes, runs),
            fewest,
        )

    def _sizes(self, goal: Array, low: Array, trained: Array) -> Array:
        """The sizes that may be trained ``[K, variables]``."""
        if self.sizes is None:
            return candidates(low, np.vstack([trained, goal]).max(0))
        sizes = [self.place(size, "sizes") for size in self.sizes]
        if not sizes:
            raise InputError("sizes must have at least one size that may be trained; got none.")
        return np.array(sizes)

    def _runs(self, sizes: Array, runs: Sequence[tuple[int, float]]) -> tuple[PlannedRun, ...]:
        """The runs of a plan with their names, rates and costs."""
        costs = cost_of(sizes)
        total = 0.0
        planned = list[PlannedRun]()
        for k, width in runs:
            total += float(costs[k])
            size = dict(zip(self.variables, sizes[k].tolist(), strict=True))
            lr = None
            if self.rates is not None:
                lr = self.rates.at(**size, batch=self.batch).advised
            planned.append(PlannedRun(size, float(costs[k]), total, width, lr))
        return tuple(planned)


def _off_line(posterior: Posterior, goal: Array, sizes: Array) -> Array:
    """The sizes that are off the line of the runs by a third of the target's distance, or more.

    All sizes, where none is.
    """
    distances = np.array([posterior.off_line(size) for size in sizes])
    is_off = distances >= posterior.off_line(goal) / 3
    return sizes[is_off] if is_off.any() else sizes


def design_ladder(
    rows: Any = None,
    *,
    target: Mapping[str, float],
    limit: float = REFUSED,
    budget: float | None = None,
    sizes: Iterable[Mapping[str, float]] | None = None,
    rates: RateLaw | None = None,
    batch: float | None = None,
    columns: Mapping[str, str | None] | None = None,
    rate: float | str | None = None,
    prior: str | os.PathLike[str] | None = "ladders",
) -> LadderPlan:
    """Plan the training runs that make the forecast of a larger one usable, with few operations.

    Train the first run of the plan, add its row, and call again; it begins without any rows. Runs
    are chosen by how much each is expected to narrow the forecast for its operations.

    Example::

        plan = nfd.design_ladder(target={"parameters": 7e9, "tokens": 1.4e11})
        print(plan)
        rows = [plan.runs[0].size | {"loss": 3.1}]
        print(nfd.design_ladder(rows, target={"parameters": 7e9, "tokens": 1.4e11}))

    Args:
        rows, columns, rate, prior: as for ``nfd.fit_ladder``, of the runs so far; None for none.
        target: the parameters and tokens that are to be forecast, or one of them.
        limit: the width of the forecast's interval, over its value, that is narrow enough.
        budget: operations of all runs together; by default those of the target.
        sizes: those that you can train, each as ``target``; by default a grid of them.
        rates: what ``nfd.fit_rate_law`` returned, for the learning rate of every run.
        batch: of the runs in tokens, where the law of the rate follows the batch.

    Returns:
        A ``LadderPlan``: ``.runs``, ``.cost``, ``.decides``, ``.table``. A forecast that is
        accepted already has no runs.

    Raises:
        ValueError, TypeError, OSError: naming what cannot be read, and for a budget that does not
            pay for the smallest run.
    """
    wish = Wish(target, limit, budget, sizes, rates, batch)
    variables = wish.variables
    goal = np.array(wish.place(target, "target"))
    chosen = read_prior(prior)
    low = goal / _SPAN
    if rows is None or (isinstance(rows, Sequence) and not len(rows)):
        if chosen.reference is None:
            middle = np.exp(np.log([low, goal]).mean(0)).tolist()
            reference = dict.fromkeys(VARIABLES, 1.0) | dict(zip(variables, middle, strict=True))
            chosen = replace(chosen, reference=tuple(reference.values()))
        return wish.plan(Posterior(variables, [], [], chosen), low)
    runs = loss_runs(read_sizes(rows, columns), variables, rate)
    losses, _ = finite_losses(runs)
    if len(losses) >= FEWEST_SIZES:
        return ladder_of(runs, prior).planned(wish)
    check_losses(variables, losses, runs.score, fewest=1)
    chosen, _ = prior_near(chosen, variables, list(losses))
    posterior = posterior_of(variables, runs.supplies, losses, chosen)
    return wish.plan(posterior, np.minimum(low, posterior.sizes.min(0)))
