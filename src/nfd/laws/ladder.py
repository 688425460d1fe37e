"""The loss law over parameters and tokens: what a ladder of runs says of one larger run."""

from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from nfd.core.answer import Answer
from nfd.core.checks import check_real
from nfd.core.errors import InputError
from nfd.core.estimates import Interval, mean
from nfd.core.tables import Row
from nfd.core.words import in_letters, in_words, number, plural
from nfd.laws.compute_law import COMPUTE_PRIOR, FLOPS_ONLY
from nfd.laws.ladder_outlook import (
    FEWEST_RUNS,
    REACH,
    REFUSED,
    Outlook,
    candidates,
    cost_of,
)
from nfd.laws.ladder_posterior import (
    UNTUNED,
    VARIABLES,
    WIDE,
    Additive,
    Posterior,
    Prior,
    fit_additive,
    read_prior,
)
from nfd.laws.logged_runs import FLOPS
from nfd.laws.loss_law import HeldOut, Losses, Sizes, interval_of
from nfd.laws.loss_runs import FEWEST_SIZES, LossRuns, loss_runs, read_sizes, varying_sizes
from nfd.laws.rising_losses import about_rising
from nfd.laws.run_table import RunTable
from nfd.laws.shared import Shared, shared
from nfd.laws.supplies import SUPPLIES, few_repeats
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.laws.ladder_answer import LadderForecast
    from nfd.laws.ladder_design import LadderPlan, Wish
    from nfd.laws.rate_law import RateLaw
    from nfd.report.page import Section

Array = NDArray[np.float64]
# The factor and the power of each variable.
_LETTERS = {"parameters": ("A", "a"), "tokens": ("B", "b"), "flops": ("A", "a")}
# However well the law is known, no wider interval can be used.
WIDEST = 0.2
# A size is off the line of the runs by more than so many of their deviations from it; targets of
# published ladders, also of one budget, stay below 25.
_OFF = 30.0
# Runs that are named.
_NAMED = 3
# A run is not advised that narrows an interval by a smaller share.
_HELPS = 0.05
# The logarithm of the parameters of a best split, over the reference, at most.
_FURTHEST_LOG = 200.0
# The default target of forecasts has so many times the compute of the largest run.
_FURTHER = 10.0
# Ratios of tokens to parameters within this factor are one ratio. Of six runs that differ by less,
# with wide priors, the best split for 10 times the compute had an interval of 17 to 300,000 fold,
# and at a factor of 4 of 5 to 13 fold (three simulated ladders at each factor).
_ONE_RATIO = 1.5
# The budgets of one more run, over the cost of the dearest one.
_MORE = (0.1, 0.3, 1.0, 3.0)
# Guessing has a lower loss than its logarithm, with a vocabulary of a million.
_PERPLEXITY = math.log(15.0)

# A forecast may repeat tokens a little more often than any run.
_AS_OFTEN = 1.1
# Why a forecast is refused: it lies off the line of the runs, no run repeats tokens as often, it
# reaches too far beyond them, they scatter too much, intervals are not calibrated for so few runs
# or so far a target, or their losses are perplexities.
Doubt = Literal["", "line", "repeats", "wide", "scatter", "uncalibrated", "perplexity"]


@dataclass(frozen=True, repr=False)
class BestSplit(Shown):
    """The best numbers of parameters and tokens for a budget of operations.

    Attributes:
        cost: the budget, in operations.
        predicted: the loss there, by the law.
        inside: whether parameters and tokens both lie inside of what was fitted.
        note: what else to know; empty where there is nothing.
        law: the law that says so.

    ``table`` and ``to_pandas()`` have a row for each of several budgets, with the columns of
    ``LadderForecast.table``.
    """

    parameters: Interval
    tokens: Interval
    cost: int
    predicted: Interval
    inside: bool
    note: str
    law: LadderLaw = field(compare=False)

    @property
    def size(self) -> dict[str, float]:
        """Parameters and tokens by their names."""
        return {"parameters": self.parameters.value, "tokens": self.tokens.value}

    @property
    def forecast(self) -> LadderForecast:
        """What the law says of this budget."""
        from nfd.laws.ladder_answer import LadderForecast

        size = self.size
        if self.law.ratio is not None:
            # Runs of one ratio show the loss at that ratio, and no split.
            size = self.law._named(self.law.size_for(self.cost))
        return LadderForecast(self.law, size, self)

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""
        return self.forecast.answer

    @property
    def table(self) -> list[Row]:
        """One dict for each of several budgets, as of ``LadderForecast``."""
        return self.forecast.table

    def first_sections(self) -> list[Section]:
        """The losses with the law and its forecast, and what more compute buys."""
        return self.forecast.first_sections()


@dataclass(frozen=True)
class NextRun:
    """The training run within a budget that would narrow a forecast most.

    Attributes:
        size, target: of the run and of the forecast, by variable.
        cost: of the run, in operations; for a law in one variable, that variable.
        before, after: widths of the forecast's interval over its value.
    """

    size: dict[str, float]
    target: dict[str, float]
    cost: float
    before: float
    after: float

    @property
    def is_worth_it(self) -> bool:
        """Whether it narrows the interval by a twentieth or more."""
        return is_narrower(self.after, self.before)

    def __str__(self) -> str:
        doubt = "" if self.is_worth_it else ": it is not worth it"
        return (
            f"A run of {in_words(self.size)} would narrow the forecast at {in_words(self.target)} "
            f"most, from {percent(self.before)} to about {percent(self.after)} of the loss{doubt}."
        )


def is_narrower(after: float, before: float) -> bool:
    """Whether an interval is narrower by a twentieth or more."""
    return after <= (1 - _HELPS) * before


def percent(share: float) -> str:
    """Write a share in percent, with two digits: ``0.047 %`` or ``31 %``."""
    return f"{number(100 * share)} %"


@dataclass(frozen=True, repr=False)
class LadderLaw(Shown):
    """The loss law over parameters N and tokens D, and its forecasts of one new run.

    Print it to see what 10 times the compute of the largest run reaches; a notebook shows the
    chart, which ``plot()`` returns.

    ``loss = floor + ((A / N^a)^p + (B / D^b)^p)^(1/p)`` with a discrepancy, or of one variable
    ``floor + A / N^a``. Where tokens repeat, or networks have idle experts, N and D are what they
    are worth, ``N (T / N)^g`` and ``U + U R (1 - exp(-(D/U - 1) / R))``, of T parameters in all and
    U distinct tokens. Intervals are meant to hold 95 of 100 new runs; their widths are calibrated
    on other people's ladders, whose numbers are the prior. Of those ladders, left out group by
    group, they held 95 of 100 targets, and forecasts that were not refused were off by 0.7 % in the
    median at 10 times the compute.

    Attributes:
        posterior: the draws of the law.
        losses: of the fitted runs, by size, in the order of ``variables``.
        about: a description of the runs.
        score: the kind of their loss.
        notes: what was left out, and why.
        has_rates: whether the runs were chosen among several learning rates.
        left_out: sentences on the rows that do not count, which the notes have too.
        runs: the names of the runs, and what else the table says of them.

    ``table`` and ``to_pandas()`` have a row for each number and each size, with the columns
    ``quantity``, ``value``, ``low`` and ``high``; for sizes also ``run`` (its name), the variables,
    ``law`` (the loss that ``at`` says) and ``above``, by which share the loss is higher.

    Example::

        sizes = [(N, D) for N in (1e8, 2e8, 4e8, 8e8) for D in (2e9, 8e9, 32e9)]
        rows = [
            {"params": N, "tokens": D, "loss": 1.7 + 400 / N**0.34 + 400 / D**0.28}
            for N, D in sizes
        ]
        law = nfd.fit_ladder(rows)
        print(law.at(parameters=7e9, tokens=2e11), law.best(flops=1e22), law.refusal)
        print(law.next_run(budget=1e20, target={"parameters": 7e9, "tokens": 2e11}))
    """

    posterior: Posterior = field(repr=False)
    losses: Losses = field(repr=False)
    about: str
    score: str = "loss"
    notes: tuple[str, ...] = ()
    has_rates: bool = False
    left_out: str = ""
    runs: RunTable = field(default_factory=RunTable, repr=False, compare=False)

    @property
    def variables(self) -> tuple[str, ...]:
        """Parameters, tokens, or both."""
        return self.posterior.variables

    @property
    def supplies(self) -> tuple[str, ...]:
        """What stands behind a size in these runs: ``unique_tokens``, ``total_parameters``."""
        return self.posterior.supplies

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the numbers of a size in ``losses``."""
        return (*self.variables, *self.supplies)

    @property
    def prior(self) -> str:
        """The prior that was used, in words."""
        return self.posterior.prior.name

    @cached_property
    def terms(self) -> dict[str, Interval]:
        """The numbers of the law with 95 % intervals of the posterior: floor, A, a, B, b and p.

        Where tokens repeat R, and where networks have idle experts g.
        """
        posterior = self.posterior
        draws = self.posterior.draws
        level, logs, powers, p = posterior.numbers(draws)
        # The logarithm of the loss at the reference, over the floor.
        whole = np.logaddexp.reduce(np.hstack([np.zeros((len(draws), 1)), logs]), axis=1)
        terms = {"floor": np.exp(level - whole)}
        for k, name in enumerate(self.variables):
            factor, power = _LETTERS[name]
            log_reference = math.log(posterior.reference[k])
            terms[factor] = np.exp(level - whole + logs[:, k] + powers[:, k] * log_reference)
            terms[power] = powers[:, k]
        if len(self.variables) == 2:
            terms["p"] = p
        for name in self.supplies:
            supply = SUPPLIES[name]
            terms[supply.letter] = supply.shown(posterior.of_supply(draws, name))
        return {
            name: interval_of(float(np.median(values)), values) for name, values in terms.items()
        }

    @property
    def floor(self) -> Interval:
        """The loss where parameters and tokens are infinite, E; above 0.

        Runs show it poorly: do not refuse by it.
        """
        return self.terms["floor"]

    @cached_property
    def additive(self) -> Additive:
        """The usual fit, with p = 1 and no prior, by Huber's loss of the log losses.

        It has no intervals.
        """
        return fit_additive(self.posterior.sizes, np.exp(self.posterior.log_losses))

    @property
    def residual(self) -> float:
        """The error of a run, relative to its loss.

        It is what neither the law nor a smooth discrepancy explains.
        """
        return math.exp(self.posterior.middle[-1])

    @property
    def warning(self) -> str | None:
        """A warning where runs do not follow one law, by the residual, or losses are no losses."""
        if self.posterior.log_losses.min() > _PERPLEXITY:
            return (
                f"The {self.score} is above 15 at every size: give the logarithm of a perplexity."
            )
        if self.residual <= UNTUNED:
            return None
        if self.shared is not None:
            return (
                f"The runs do not follow one law: {self.odd_ones}. Leave these out, unless the "
                "large run is to be like them."
            )
        return (
            f"The runs seem not tuned alike: they scatter by {percent(self.residual)} about the "
            f"law, where tuned ladders stay below {percent(UNTUNED)}. Tune rate and batch at every "
            "size."
        )

    @cached_property
    def ratio(self) -> float | None:
        """Tokens per parameter, where all runs have about one ratio of them; else None.

        Such runs do not show how to split a budget.
        """
        if len(self.variables) < 2:
            return None
        ratios = self.posterior.sizes[:, 1] / self.posterior.sizes[:, 0]
        if ratios.max() > _ONE_RATIO * ratios.min():
            return None
        return float(np.median(ratios))

    @property
    def largest_cost(self) -> float:
        """Operations of the dearest run; for a law in one variable, the most of that variable."""
        return float(cost_of(self.posterior.sizes).max())

    def at(
        self,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
        flops: float | None = None,
        unique_tokens: float | None = None,
        total_parameters: float | None = None,
    ) -> Interval:
        """The loss of one new run, with its calibrated 95 % interval.

        Args:
            parameters, tokens: its size, in the variables of the law.
            flops: in place of both, its operations, ``6 N D``: at the best split, or at the ratio
                of tokens to parameters that all runs have.
            unique_tokens: how many of its tokens are distinct; by default all.
            total_parameters: of a mixture of experts; by default as many times those in use as in
                the run of the lowest loss.

        Raises:
            ValueError: for other variables than those of the law.
        """
        behind = self.behind({"unique_tokens": unique_tokens, "total_parameters": total_parameters})
        if self.variables == FLOPS_ONLY:
            size = self._size({"parameters": parameters, "tokens": tokens, "flops": flops})
        elif flops is None:
            size = self._size({"parameters": parameters, "tokens": tokens})
        elif parameters is None and tokens is None:
            size = self.size_for(self._budget(flops))
        else:
            raise InputError("at needs parameters and tokens, or flops; got both. Leave one out.")
        return self.forecasts(np.array([size]), behind)[0]

    def behind(self, named: Mapping[str, float | None]) -> dict[str, float]:
        """Check what a forecast says of its distinct tokens and of all its parameters."""
        given = dict[str, float]()
        for name, value in named.items():
            if value is None:
                continue
            if name not in self.supplies:
                raise InputError(
                    f"these runs do not show what {name} are worth: no column of them varies "
                    f"beside {SUPPLIES[name].variable}. Leave {name} out, or add runs that differ "
                    "in them."
                )
            given[name] = check_real(name, value, above=0.0)
        return given

    def forecasts(
        self, sizes: Array, behind: Mapping[str, float] | Mapping[str, Array] | None = None
    ) -> list[Interval]:
        """The losses of new runs at sizes ``[K, variables]``, with calibrated intervals.

        Args:
            sizes: of the runs.
            behind: their distinct tokens, and all their parameters, of each or of all; by default
                as of ``at``.
        """
        forecasts = []
        ratios = self.posterior.ratios_of(sizes, behind or {})
        for middle, sd, gain in zip(*self.posterior.forecasts(sizes, ratios), strict=True):
            half = self._half_width(float(sd), float(gain))
            value = math.exp(middle)
            low = value * math.exp(-half)
            forecasts.append(Interval(value, value * half / 1.96, low, value * math.exp(half)))
        return forecasts

    def size_for(self, cost: float) -> Sizes:
        """The size that a budget is best spent on, in the order of ``variables``.

        Runs of one ratio of tokens to parameters do not show the best split, so it is kept. For a
        law in one variable the budget is that variable.
        """
        if len(self.variables) < 2:
            return (cost,)
        if self.ratio is not None:
            N = math.sqrt(cost / FLOPS / self.ratio)
        else:
            N = float(np.median(self.best_parameters(cost)))
        return (N, cost / FLOPS / N)

    def _budget(self, flops: float) -> float:
        """Check a budget in operations."""
        if len(self.variables) < 2 and self.variables != FLOPS_ONLY:
            raise InputError(
                f"a budget in flops needs a law in parameters and tokens; this one is in "
                f"{self.variables[0]}."
            )
        return check_real("flops", flops, above=0.0)

    def best_parameters(self, budget: float) -> Array:
        """The best numbers of parameters for a budget, by every draw ``[B]``.

        At the best split both terms fall alike: ``a (A / N^a)^p = b (B / D^b)^p``. The discrepancy
        moves that point by its slope over the second derivative of the log loss, ``p a b`` times
        the reducible share.
        """
        posterior = self.posterior
        _, terms, powers, p = posterior.numbers(posterior.draws)
        # The tokens for which the budget pays at the reference's parameters.
        log_tokens = math.log(budget / FLOPS) - np.log(posterior.reference).sum()
        a = powers[:, 0]
        b = powers[:, 1]
        terms = terms.copy()
        for k, name in enumerate(self.supplies):
            # All tokens are new. Idle experts make each parameter worth more, at any budget.
            ratio = posterior.ratios_of(posterior.sizes[:1], {})[:, k]
            worth = SUPPLIES[name].log_worth(ratio, posterior.of_supply(posterior.draws, name))
            place = self.variables.index(SUPPLIES[name].variable)
            terms[:, place] -= powers[:, place] * worth[:, 0]
        balance = terms[:, 0] - terms[:, 1] + np.log(a / b) / p + b * log_tokens
        log_parameters = balance / powers.sum(1)
        log_reducible = terms[:, 0] - a * log_parameters + np.log1p(a / b) / p
        log_parameters += posterior.slopes() / (p * powers.prod(1) / (1 + np.exp(-log_reducible)))
        # Of a few runs of nearly one size draws may reach beyond what a float holds.
        log_parameters = np.clip(log_parameters, -_FURTHEST_LOG, _FURTHEST_LOG)
        return np.asarray(posterior.reference[0] * np.exp(log_parameters))

    def best(self, *, flops: float | None = None, times: float | None = None) -> BestSplit:
        """The parameters and tokens of lowest loss for a budget of operations, with intervals.

        Args:
            flops: the budget, in operations, which are ``6 N D``.
            times: in its place, how many times the operations of the largest run.
        """
        if len(self.variables) < 2:
            raise InputError(
                f"best needs a law in parameters and tokens; this one is in {self.variables[0]}."
            )
        if (flops is None) == (times is None):
            raise InputError(f"best needs flops or times; got flops={flops}, times={times}.")
        if times is not None:
            flops = check_real("times", times, above=0.0) * self.largest_cost
        posterior = self.posterior
        budget = check_real("flops", flops, above=0.0)
        draws = self.best_parameters(budget)

        N = float(np.median(draws))
        D = budget / FLOPS / N
        nearest_fitted = np.clip([N, D], posterior.sizes.min(0), posterior.sizes.max(0))
        inside = bool((nearest_fitted == [N, D]).all())
        outside = None if inside else "The best size lies outside of the sizes that were run."
        split = None
        if self.ratio is not None:
            split = (
                f"All runs have about {number(self.ratio)} tokens per parameter, which does not "
                "show how to split a budget."
            )
        refused = self.refused(parameters=N, tokens=D)
        return BestSplit(
            parameters=interval_of(N, draws),
            tokens=interval_of(D, budget / FLOPS / draws),
            cost=round(budget),
            predicted=self.at(parameters=N, tokens=D),
            inside=inside,
            note=" ".join(filter(None, (outside, split, refused))),
            law=self,
        )

    def next_run(
        self, *, budget: float | None = None, target: Mapping[str, float] | None = None
    ) -> NextRun:
        """The run within a budget that would narrow the forecast of a target most.

        The draws of the target's loss are regressed on the draws of the run's, which has an error.
        The regression leaves the variance that is expected after the run. Print ``next_runs()`` for
        several budgets.

        Args:
            budget: operations of the run, ``6 N D``; for a law in one variable, the most of that
                variable. By default those of the dearest run so far.
            target: parameters and tokens of the forecast; by default those that are best for 10
                times the compute of the largest run.
        """
        most = self.largest_cost
        if budget is not None:
            most = check_real("budget", budget, above=0.0)
        goal = np.array(self._target() if target is None else self._size(target))
        runs = self._candidates(goal, most)
        outlook = Outlook(self.posterior, goal, runs)
        chosen = outlook.most_telling()
        # The outlook takes draws to be normal, so only by which share a run narrows them counts:
        # its own widths said "to about 9 %" of an interval that was 8.9 % wide.
        before = _width(self.forecasts(goal[None])[0])
        return NextRun(
            size=self._named(runs[chosen].tolist()),
            target=self._named(goal.tolist()),
            cost=float(outlook.costs[chosen]),
            before=before,
            after=before * outlook.width([chosen]) / outlook.width(),
        )

    def choices(
        self, target: Mapping[str, float], budgets: Sequence[float] = ()
    ) -> tuple[NextRun, ...]:
        """The best next run within each of several budgets.

        Args:
            target: as for ``next_run``.
            budgets: of one run; by default 0.1, 0.3, 1 and 3 times that of the dearest run, as far
                as they are below the target's.
        """
        if not budgets:
            least = float(cost_of(self.posterior.sizes.min(0)[None])[0])
            most = float(cost_of(np.array([self._size(target)]))[0])
            of_dearest = [times * self.largest_cost for times in _MORE]
            budgets = [budget for budget in of_dearest if least <= budget <= most]
        return tuple(self.next_run(budget=budget, target=target) for budget in budgets)

    def next_runs(
        self,
        *,
        target: Mapping[str, float] | None = None,
        limit: float = REFUSED,
        budget: float | None = None,
        sizes: Iterable[Mapping[str, float]] | None = None,
        rates: RateLaw | None = None,
        batch: float | None = None,
    ) -> LadderPlan:
        """The runs that are expected to make the forecast of a target usable, the cheapest plan.

        Train the first, fit the law with its row, and ask again. ``nfd.design_ladder`` plans from
        fewer runs than a law needs.

        Args:
            target: as for ``next_run``.
            limit, budget, sizes, rates, batch: as for ``nfd.design_ladder``.
        """
        from nfd.laws.ladder_design import Wish

        goal = self._named(self._target()) if target is None else target
        return self.planned(Wish(goal, limit, budget, sizes, rates, batch))

    def planned(self, wish: Wish) -> LadderPlan:
        """The plan of a wish; it has no runs where the forecast is accepted already.

        Intervals are calibrated for six runs or more, and not for targets of more than 300 times
        the compute: a plan goes on until both hold.
        """
        from nfd.laws.ladder_design import LadderPlan

        goal = self._named(self._size(wish.target))
        forecast = self.forecast_at(**goal)
        width = _width(forecast.loss)
        # What is asked for by default is a forecast that is not refused.
        is_narrow = width <= wish.limit or wish.limit == REFUSED
        needs_runs = forecast.doubt in ("line", "wide", "uncalibrated")
        if forecast.is_contradicted or (is_narrow and not needs_runs):
            choices = self.choices(goal)
            return LadderPlan(goal, wish.limit, width, (), forecast=forecast, choices=choices)
        is_off = forecast.doubt == "line"
        return wish.plan(self.posterior, self.posterior.sizes.min(0), is_off=is_off)

    def _candidates(self, goal: Array, most: float) -> Array:
        """Sizes ``[K, variables]`` that a next run within a budget may have, up to a goal."""
        trained = self.posterior.sizes
        runs = candidates(trained.min(0), np.maximum(trained.max(0), goal))
        runs = runs[cost_of(runs) <= most * (1 + 1e-9)]
        if not len(runs):
            least = float(cost_of(trained.min(0)[None])[0])
            raise InputError(
                f"budget must pay for the smallest run, {least:.3g}; got {most:g}. Raise it."
            )
        return runs

    @cached_property
    def refusal(self) -> str | None:
        """Why not to trust a forecast at 10 times the compute of the largest run.

        Its interval would be wider than 8 % even if the runs were tuned alike, and the run follows
        that would help most; or their scatter makes it wider than 20 %. ``refused`` is about any
        size.
        """
        return self.refused(**self._named(self._target()))

    def doubt(
        self,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
        flops: float | None = None,
        **behind: float | None,
    ) -> Doubt:
        """Say in a word why not to trust a forecast at a size; empty where it can be trusted.

        ``line`` where the size is far off the line that the runs lie on, ``repeats`` where no run
        repeats its tokens as often, ``wide`` where its interval would be wide even if the runs were
        tuned alike, ``scatter`` where only their scatter makes it too wide, ``uncalibrated`` of
        fewer than 6 sizes and at more than 300 times the compute, ``perplexity`` for no losses.
        ``behind`` is as of ``at``.
        """
        size = self._size({"parameters": parameters, "tokens": tokens, "flops": flops})
        if self.posterior.off_line(np.array(size)) > _OFF:
            return "line"
        supply = self.behind(behind)
        if self.repeats(size, supply) > _AS_OFTEN * self.most_repeats:
            return "repeats"
        if self.posterior.log_losses.min() > _PERPLEXITY:
            return "perplexity"
        if self.tuned_width(size, supply) > REFUSED:
            return "wide"
        width = _width(self.forecasts(np.array([size]), supply)[0])
        if width > WIDEST:
            return "scatter"
        return "uncalibrated" if self.beyond_calibration(size) else ""

    def beyond_calibration(self, size: Sizes) -> str:
        """Why intervals are not calibrated at a size, in a sentence; empty where they are."""
        # Those of a law of compute were tested on their own (``nfd.laws.compute_law``).
        if self.variables == FLOPS_ONLY:
            return ""
        cost = float(cost_of(np.array([size]))[0])
        times_less = float(cost_of(self.posterior.sizes).min()) / cost
        # Ladders were forecast upward only. So small a size is seldom meant: 7 for 7 billion.
        if times_less > REACH * (1 + 1e-9):
            return (
                "Intervals are calibrated for sizes beyond the runs, and this has "
                f"{number(times_less)} times less compute than the smallest run. Write sizes in "
                "full, such as 7e9."
            )
        if len(self.losses) < FEWEST_RUNS:
            return (
                f"Intervals are calibrated on {FEWEST_RUNS} sizes or more, and the runs have "
                f"{len(self.losses)}."
            )
        times = cost / self.largest_cost
        # The size of a budget has its cost but for a rounding.
        if times <= REACH * (1 + 1e-9):
            return ""
        return (
            f"Intervals are calibrated up to {number(REACH)} times the compute of the largest run, "
            f"and this is {number(times)} times."
        )

    def tuned_width(self, size: Sizes, behind: Mapping[str, float] | None = None) -> float:
        """The width of a forecast's interval, over its value, if the runs were tuned alike.

        By it a forecast is refused: it grows with how far the law is extrapolated, and the
        interval itself with the scatter of the runs, too. Twenty splits of published ladders
        scatter by more than 0.5 %, with targets of up to 60 times the compute. Their forecasts were
        off by 0.7 % in the median, but 17 intervals are wider than 8 %; four would still be if the
        runs were tuned. Of more than 60 times, where errors reached 10 %, all would. ``behind`` is
        as of ``forecasts``.
        """
        sizes = np.array([size])
        ratios = self.posterior.ratios_of(sizes, behind or {})
        _, sd, gain = self.posterior.forecasts(sizes, ratios)
        tuned = min(1.0, UNTUNED / self.residual)
        calibration = self.posterior.prior.calibration
        return 2 * math.sinh(calibration.q * float(calibration.spread(tuned * sd, gain)[0]))

    def refused(
        self,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
        flops: float | None = None,
        **behind: float | None,
    ) -> str | None:
        """Why not to trust a forecast at a size; None where it can be trusted.

        ``behind`` is as of ``at``.
        """
        size = self._size({"parameters": parameters, "tokens": tokens, "flops": flops})
        target = self._named(size)
        supply = self.behind(behind)
        doubt = self.doubt(**target, **supply)
        if doubt == "":
            return None
        if doubt == "repeats":
            return (
                f"Tokens would repeat {number(self.repeats(size, supply))} times, and the runs "
                f"show {number(self.most_repeats)} at most. Add runs that repeat as often."
            )
        if doubt == "line":
            return (
                f"The runs lie on one line of parameters and tokens, and {in_words(target)} far "
                "off it: which of the two helps cannot be told. Add runs with another ratio."
            )
        if doubt == "perplexity":
            return self.warning
        if doubt == "uncalibrated":
            return self.beyond_calibration(size)
        width = _width(self.forecasts(np.array([size]), supply)[0])
        tuned_width = percent(self.tuned_width(size, supply))
        if doubt == "scatter":
            return (
                f"The forecast at {in_words(target)} is {percent(width)} wide, more than "
                f"{percent(WIDEST)}, as the runs scatter; of runs that are tuned alike it would be "
                f"{tuned_width}. {self.warning}"
            )
        wide = f"The forecast at {in_words(target)} is {percent(width)} wide"
        if self.residual > UNTUNED:
            wide += f", and of runs that are tuned alike still {tuned_width}"
        wide += f": more than {percent(REFUSED)}."
        helps = self.next_run(budget=self.largest_cost, target=target)
        if not helps.is_worth_it:
            none = "No run that is no dearer than the dearest so far narrows it by a twentieth."
            return " ".join(filter(None, (wide, none, self.warning)))
        return (
            f"{wide} Of runs no dearer than the dearest so far, one of {in_words(helps.size)} "
            f"would narrow it most, to about {percent(helps.after)}."
        )

    @property
    def held_out(self) -> HeldOut | None:
        """The largest size, forecast by a law without it; None where too few others remain."""
        # ``help`` of a cached property shows that of functools.
        return self._held_out

    @cached_property
    def _held_out(self) -> HeldOut | None:
        """Fit the law without the largest size, once."""
        losses = dict(self.losses)
        largest = max(losses, key=lambda size: math.prod(size[: len(self.variables)]))
        of_largest = losses.pop(largest)
        if len(losses) < FEWEST_SIZES:
            return None
        predicted = self.without([largest]).at(**self._named(largest))
        return HeldOut(largest, len(of_largest), predicted, mean(of_largest))

    def without(self, sizes: Iterable[Sizes]) -> LadderLaw:
        """The law of the other sizes."""
        left_out = {*sizes}
        losses = {size: seeds for size, seeds in self.losses.items() if size not in left_out}
        prior = self.posterior.prior
        posterior = posterior_of(self.variables, self.supplies, losses, prior)
        return replace(self, posterior=posterior, losses=losses)

    @cached_property
    def of_runs(self) -> dict[Sizes, Interval]:
        """What the law says of a new run at each size that was run, as ``at`` does."""
        sizes = sorted(self.losses)
        places, behind = split(sizes, self.variables, self.supplies)
        return dict(zip(sizes, self.forecasts(places, behind), strict=True))

    @cached_property
    def outside(self) -> dict[Sizes, float]:
        """The misses of the sizes whose mean loss lies outside of its own 95 % interval."""
        outside = dict[Sizes, float]()
        for size, above in self.misses.items():
            expected = self.of_runs[size]
            if not expected.low <= expected.value * (1 + above) <= expected.high:
                outside[size] = above
        return outside

    @cached_property
    def shared(self) -> Shared | None:
        """What the sizes that miss the law share by the columns of the table, and others do not.

        None where no column tells them apart, and where all sizes follow the law.
        """
        if not self.outside and self.residual <= UNTUNED:
            return None
        return shared(self.misses, self.variables, self.runs.columns, UNTUNED)

    @property
    def odd_ones(self) -> str:
        """The sizes that share something and miss the law, in words; empty where none do."""
        if self.shared is None:
            return ""
        misses = [*self.shared.misses.values()]
        low, high = sorted((misses[0], misses[-1]), key=abs)
        return (
            f"{plural(len(misses), self._noun)} of {self.shared.what} lie {_off(low, high)} the "
            f"law ({self.listed([*self.shared.misses])})"
        )

    @property
    def _noun(self) -> str:
        return "run" if all(len(seeds) == 1 for seeds in self.losses.values()) else "size"

    def listed(self, sizes: Sequence[Sizes]) -> str:
        """The names of sizes, and how many more there are."""
        names = [self.label(size) for size in sizes[:_NAMED]]
        more = len(sizes) - len(names)
        # A size has a comma of its own.
        comma = ", " if self.runs.names else "; "
        return comma.join(names) + (f" and {more} more" if more else "")

    def label(self, size: Sizes) -> str:
        """The name of the run of a size; without one the size as it stands in the table."""
        if size in self.runs.names:
            return self.runs.names[size]
        pairs = zip(self.columns, size, strict=True)
        return ", ".join(f"{exact(value)} {name.replace('_', ' ')}" for name, value in pairs)

    @property
    def formula(self) -> str:
        """The law in letters."""
        if len(self.variables) == 2:
            N = "N'" if "total_parameters" in self.supplies else "N"
            D = "D'" if "unique_tokens" in self.supplies else "D"
            return f"loss = floor + ((A / {N}^a)^p + (B / {D}^b)^p)^(1/p)"
        factor, power = _LETTERS[self.variables[0]]
        return f"loss = floor + {factor} / {self.variables[0]}^{power}"

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per quantity: the numbers of the law and of the additive fit, and the losses.

        Each size has its mean loss, the loss by the law, and how far the first is above the second.
        """
        rows: list[dict[str, Any]] = [
            {"quantity": name} | term.limits for name, term in self.terms.items()
        ]
        for name, value in self.additive_terms.items():
            rows.append({"quantity": f"{name}, additive fit", "value": value})
        for size, expected in self.of_runs.items():
            of_seeds = self.losses[size]
            row: dict[str, Any] = {"quantity": self.score}
            if size in self.runs.names:
                row["run"] = self.runs.names[size]
            row |= self._named(size) | mean(of_seeds).limits
            above = float(np.mean(of_seeds)) / expected.value - 1
            rows.append(row | {"law": expected.value, "above": above})
        return rows

    def by_law(self, sizes: Array) -> Array:
        """The losses ``[K]`` that the law forecasts at sizes ``[K, variables]``."""
        return np.array([forecast.value for forecast in self.forecasts(sizes)])

    def repeats(self, size: Sizes, behind: Mapping[str, float]) -> float:
        """How often a run goes through its distinct tokens."""
        if "unique_tokens" not in behind:
            return 1.0
        return max(1.0, size[self.variables.index("tokens")] / behind["unique_tokens"])

    @property
    def most_repeats(self) -> float:
        """How often any run goes through its distinct tokens."""
        if "unique_tokens" not in self.supplies:
            return 1.0
        return float(self.posterior.ratios[:, self.supplies.index("unique_tokens")].max())

    @cached_property
    def misses(self) -> dict[Sizes, float]:
        """By which share the mean loss of each size lies above the law, the largest miss first."""
        misses = dict[Sizes, float]()
        for row in self.table:
            if "above" in row:
                misses[tuple(row[name] for name in self.columns)] = row["above"]
        return dict(sorted(misses.items(), key=lambda item: -abs(item[1])))

    @property
    def additive_terms(self) -> dict[str, float]:
        """The numbers of the additive fit, by their letters."""
        additive = self.additive
        terms = {"floor": additive.E}
        for k, name in enumerate(self.variables):
            factor, power = _LETTERS[name]
            terms[factor] = additive.factors[k]
            terms[power] = additive.powers[k]
        return terms

    @property
    def sentences(self) -> list[str]:
        """The law, its prior, and what speaks against its forecasts."""
        terms = [f"{name} {term.in_words()}" for name, term in self.terms.items()]
        law = (
            f"The law: {self.formula}, {', '.join(terms)}; most runs scatter by "
            f"{percent(self.residual)} about it, and those far off it count less. Prior: "
            f"{self.prior}."
        )
        sentences = [law]
        # A refusal may be the warning.
        for sentence in (self.warning, self.refusal):
            if sentence and sentence not in sentences:
                sentences.append(sentence)
        return sentences

    @property
    def forecast(self) -> LadderForecast:
        """What the law says of 10 times the compute of the largest run."""
        return self.forecast_at()

    def forecast_at(
        self, *, flops: float | None = None, times: float = _FURTHER, **size: float
    ) -> LadderForecast:
        """What the law says of a run of a size, or of one with so many operations.

        By default it has 10 times the compute of the largest run.
        """
        from nfd.laws.ladder_answer import LadderForecast

        if size and flops is not None:
            raise InputError("forecast_at needs a size or flops; got both. Leave one out.")
        behind = {name: value for name, value in size.items() if name in SUPPLIES}
        size = {name: value for name, value in size.items() if name not in SUPPLIES}
        if behind and not size:
            raise InputError(f"forecast_at needs a size beside {', '.join(behind)}.")
        if size:
            named = self._named(self._size(size))
            return LadderForecast(self, named, behind=self.behind(behind))
        cost = check_real("times", times, above=0.0) * self.largest_cost
        if flops is not None:
            cost = self._budget(flops)
        if len(self.variables) < 2:
            return LadderForecast(self, self._named(self.size_for(cost)))
        return self.best(flops=cost).forecast

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next, for 10 times the largest run."""
        return self.forecast.answer

    def first_sections(self) -> list[Section]:
        """The losses with the law and its forecast, and what more compute buys."""
        return self.forecast.first_sections()

    def _half_width(self, sd: float, gain: float) -> float:
        """Half the width of the interval of a log loss, by the calibration of the prior."""
        calibration = self.posterior.prior.calibration
        spread = calibration.spread(np.array(sd), np.array(gain), self.residual)
        return calibration.q * float(spread)

    def _named(self, size: Sequence[float]) -> dict[str, float]:
        """Name the numbers of a size by the variables, and what stands behind them."""
        names = self.variables if len(size) == len(self.variables) else self.columns
        return dict(zip(names, size, strict=True))

    def _size(self, named: Mapping[str, float | None]) -> Sizes:
        """Check a size, and put it into the order of the variables."""
        given = {name: value for name, value in named.items() if value is not None}
        if {*given} != {*self.variables}:
            raise InputError(
                f"the law is in {' and '.join(self.variables)}; got "
                f"{', '.join(given) or 'nothing'}."
            )
        return tuple(check_real(name, given[name], above=0.0) for name in self.variables)

    def _target(self) -> Sizes:
        """The default size of forecasts: the best for 10 times the compute of the largest run."""
        return self.size_for(_FURTHER * self.largest_cost)


def exact(value: float) -> str:
    """Write a number of parameters or tokens of a table: ``28,672`` or ``50M``."""
    return f"{value:,.10g}" if value < 999_500 else in_letters(value)


def _off(low: float, high: float) -> str:
    """Say how far misses are off: ``2.2 to 6.1 % above``, or on both sides."""
    sides = {low > 0, high > 0}
    if len(sides) > 1:
        return f"up to {percent(abs(high))} off"
    least = f"{number(100 * abs(low))} to "
    most = percent(abs(high))
    span = most if most == percent(abs(low)) else least + most
    return f"{span} {'above' if high > 0 else 'below'}"


def _width(forecast: Interval) -> float:
    """The width of a forecast's interval over its value."""
    return (forecast.high - forecast.low) / forecast.value


def fit_ladder(
    rows: Any,
    *,
    columns: Mapping[str, str | None] | None = None,
    rate: float | str | None = None,
    prior: str | os.PathLike[str] | None = "ladders",
) -> LadderLaw:
    """Fit the loss law over parameters and tokens to the final losses of logged training runs.

    ``loss = floor + ((A / N^a)^p + (B / D^b)^p)^(1/p)``, with priors from other people's ladders
    and calibrated intervals; where only one of them varies, ``floor + A / N^a``. Shapes may vary,
    too. For a law over width and depth use ``nfd.fit_scaling_law``.

    Example::

        sizes = [(N, D) for N in (1e8, 2e8, 4e8, 8e8) for D in (2e9, 8e9, 32e9)]
        rows = [
            {"params": N, "tokens": D, "loss": 1.7 + 400 / N**0.34 + 400 / D**0.28}
            for N, D in sizes
        ]
        law = nfd.fit_ladder(rows)
        print(law.at(parameters=7e9, tokens=2e11))

    Args:
        rows: dicts, a DataFrame, or the path of a CSV, JSON or parquet file; one row for each run,
            or for each step of one, of which the last counts. Tokens may be steps times the batch.
        columns: the names of your columns, if they are not recognised: ``{"loss": "eval/loss"}``.
            Keys: loss, parameters, tokens (or steps and batch in tokens, or sequences and
            their length), flops, seed, lr, run, step and state; table, of several in a file. None
            ignores a column.
        rate: if runs of one size differ in their learning rate, the rate whose runs count; or
            ``"best"``, at each size the rate with the lowest mean loss over seeds.
        prior: ``"ladders"``, the package's; a file of the form of the package's ``losses.json``;
            None for wide priors, whose intervals are wider.

    Returns:
        A ``LadderLaw``: ``.at(...)``, ``.best(flops=...)``, ``.next_run(budget=...)``, ``.refusal``
        and ``.table``.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if rows cannot be read; with too few
            sizes, for losses that are not above 0, and for a prior that cannot be read.
    """
    log = read_sizes(rows, columns)
    varying = varying_sizes(log)
    variables = tuple(name for name in (*VARIABLES, *FLOPS_ONLY) if name in varying)
    has_shapes = "parameters" not in varying and ("width" in varying or "depth" in varying)
    if not variables or has_shapes:
        raise InputError(
            "a ladder needs runs that differ in parameters or tokens, and parameters where their "
            "shapes differ. For a law over width and depth use nfd.fit_scaling_law. "
            f"{log.recognised}"
        )
    return ladder_of(loss_runs(log, variables, rate), prior)


def ladder_of(runs: LossRuns, prior: str | os.PathLike[str] | None) -> LadderLaw:
    """Fit the law to training runs by size; runs that diverged are left out."""
    variables = runs.variables
    kept, diverged = finite_losses(runs)
    notes = [*runs.notes, *diverged]
    kept = few_repeats(kept, variables, runs.supplies, notes)
    check_losses(variables, kept, runs.score)
    chosen, outside = prior_near(read_prior(prior), variables, list(kept))
    notes += outside
    return LadderLaw(
        posterior_of(variables, runs.supplies, kept, chosen),
        kept,
        runs.about,
        runs.score,
        tuple(notes),
        runs.has_rates,
        runs.left_out,
        runs.table,
    )


def finite_losses(runs: LossRuns) -> tuple[dict[Sizes, list[float]], list[str]]:
    """The losses of sizes where no run diverged, and a note on the others."""
    kept = dict[Sizes, list[float]]()
    diverged = list[str]()
    for size, of_seeds in runs.losses.items():
        if np.isfinite(of_seeds).all():
            kept[size] = of_seeds
        else:
            diverged.append(in_words(dict(zip(runs.variables, size, strict=False))))
    if not diverged:
        return kept, []
    return kept, [f"Left out, as runs diverged there: {'; '.join(diverged)}."]


def prior_near(
    prior: Prior, variables: Sequence[str], sizes: Sequence[Sizes]
) -> tuple[Prior, list[str]]:
    """The prior, or wide ones with a note where it was learned from other sizes than these."""
    notes = list[str]()
    if variables == FLOPS_ONLY:
        return COMPUTE_PRIOR, notes
    middle = np.exp(np.log(np.array(sizes)[:, : len(variables)]).mean(0)).tolist()
    for name, size in zip(variables, middle, strict=True):
        least, most = prior.reach[VARIABLES.index(name)]
        if not least <= size <= most:
            notes.append(
                f"Wide priors were used: {name} near {size:.3g} lie outside of the ladders of "
                f"{prior.name}."
            )
            prior = WIDE
    return prior, notes


def check_losses(
    variables: Sequence[str], losses: Losses, score: str, fewest: int = FEWEST_SIZES
) -> None:
    """Raise ValueError for too few sizes, and for numbers that are not losses."""
    if len(losses) < fewest:
        raise InputError(
            f"a law in {' and '.join(variables)} needs more sizes: at least {fewest}; got "
            f"{len(losses)}. Add sizes."
        )
    if any(min(of_seeds) <= 0 for of_seeds in losses.values()):
        raise InputError(
            "losses must be above 0 for a law in parameters and tokens; give those of log "
            "probabilities."
        )
    if len(losses) < 2:
        return
    sizes = np.array([*losses])[:, : len(variables)]
    means = np.array([np.mean(of_seeds) for of_seeds in losses.values()])
    rising = about_rising(variables, sizes, cost_of(sizes), means, score)
    if rising:
        raise InputError(rising)


def posterior_of(
    variables: tuple[str, ...], supplies: tuple[str, ...], losses: Losses, prior: Prior
) -> Posterior:
    """The posterior of the law, given mean losses by size."""
    means = [float(np.mean(of_seeds)) for of_seeds in losses.values()]
    sizes, behind = split([*losses], variables, supplies)
    return _posterior(pickle.dumps((variables, sizes, means, prior, behind)))


# A law and its answer, page and chart, and one fitted to the same runs again, draw alike.
@lru_cache(maxsize=32)
def _posterior(pickled: bytes) -> Posterior:
    """Make a posterior of its pickled arguments, once."""
    return Posterior(*pickle.loads(pickled))


def split(
    sizes: Sequence[Sizes], variables: Sequence[str], supplies: Sequence[str]
) -> tuple[Array, dict[str, Array]]:
    """Part sizes from what stands behind them: ``[K, variables]``, and ``[K]`` by name."""
    columns = np.array(sizes, dtype=float)
    count = len(variables)
    behind = {name: columns[:, count + k] for k, name in enumerate(supplies)}
    return columns[:, :count], behind
