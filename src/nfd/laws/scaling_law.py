"""The answer of ``nfd.scaling_law`` and ``nfd.fit_scaling_law``.

It is the loss of larger networks, and the best size for a budget.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from nfd.core.answer import Answer
from nfd.core.checks import check_real
from nfd.core.errors import InputError
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.laws.loss_law import GOOD, HeldOut, Law, Losses, Sizes, check_sizes, fit_law
from nfd.laws.loss_runs import LossRuns, loss_runs, read_sizes, variables_of
from nfd.report.shown import Shown

if TYPE_CHECKING:
    from nfd.laws.best_size import BestSize, Cost
    from nfd.laws.ladder import LadderLaw
    from nfd.laws.scaling_law_answer import Growth
    from nfd.report.page import Section


@dataclass(frozen=True, repr=False)
class ScalingLaw(Shown):
    """A loss law, fitted to training runs, and the best size for a budget.

    Print it to see whether growing pays; a notebook shows the chart, which ``plot()`` returns.

    Attributes:
        law: the fitted law, with its test.
        losses: of the fitted runs, by size, in the order of ``law.variables``.
        about: a description of the runs.
        score: the kind of their loss, in words.
        costs: parameters and operations (``flops``) of networks of any size, as far as they are
            known.
        held_out: the largest size, predicted by a fit without it.
        notes: which runs were left out, and why.
        left_out: sentences on the rows of a log that do not count, which the notes have too.
        one_order: whether all runs saw the data in one order, whose noise is in no interval; None
            where that is not known, as of logs.

    ``table`` and ``to_pandas()`` have a row for each number of the law and each size, with the
    columns ``quantity``, the variables, ``value``, ``low`` and ``high``.

    Example::

        from random import Random

        noise = Random(1)
        sizes = [(n, L) for n in (64, 128, 256) for L in (4, 8, 16)]
        rows = [
            {"width": n, "depth": L, "loss": 1 + 4 / n + 1 / L + noise.gauss(0, 0.01)}
            for n, L in sizes
        ]
        law = nfd.fit_scaling_law(rows)
        law.floor.value, law.floor.low, law.floor.high
        law.at(width=512, depth=32)  # the loss of a larger network, with its interval
    """

    law: Law
    losses: Losses = field(repr=False)
    about: str
    score: str = "test loss"
    costs: Mapping[str, Cost] = field(default_factory=dict)
    held_out: HeldOut | None = None
    notes: tuple[str, ...] = ()
    one_order: bool | None = None
    left_out: str = ""

    @property
    def trusted(self) -> dict[str, float]:
        """The smallest value of each variable that was fitted.

        Smaller ones bend the law, or were not trained.
        """
        return dict(zip(self.law.variables, self.law.smallest, strict=True))

    @property
    def floor(self) -> Interval:
        """The loss of the infinitely large network, with its 95 % interval.

        Every variable of the law is infinite there. Not-a-number where the law may not be
        extrapolated (``law.good``); ``law.note`` says what would settle it.
        """
        return self.law.floor if self.law.good else UNKNOWN

    def at(
        self,
        width: float | None = None,
        depth: float | None = None,
        *,
        tokens: float | None = None,
    ) -> Interval:
        """The mean loss of runs of a size by the law, with its 95 % interval.

        Args:
            width, depth, tokens: the variables of the law; each may be ``math.inf``. ``tokens`` is
                by default the largest number that was fitted.

        Raises:
            ValueError: for other variables than those of the law, and outside of the fitted sizes
                if the law may not be extrapolated.
        """
        named = {"width": width, "depth": depth, "tokens": tokens}
        given = {name: size for name, size in named.items() if size is not None}
        variables = " and ".join(self.law.variables)
        foreign = [name for name in given if name not in self.law.variables]
        if foreign:
            raise InputError(f"the law is in {variables}; got {', '.join(foreign)}. Drop it.")
        if "tokens" in self.law.variables and "tokens" not in given:
            given["tokens"] = self.law.largest[self.law.variables.index("tokens")]
        missing = [name for name in self.law.variables if name not in given]
        if missing:
            raise InputError(f"the law is in {variables}; give {' and '.join(missing)} as well.")
        return self.law.loss(*(given[name] for name in self.law.variables))

    def best(
        self,
        *,
        parameters: float | str | None = None,
        flops: float | str | None = None,
        times: float | None = None,
    ) -> BestSize:
        """The size of the lowest loss within one budget.

        The budget is such as ``parameters="2M"`` or ``flops=1e18``.

        Args:
            parameters: numbers that the network stores.
            flops: operations of one whole training.
            times: how many times the parameters of the largest network, or its operations where
                only these are known.

        Returns:
            The best width and depth, with cost and predicted loss; ``inside`` says whether that was
            fitted.

        Raises:
            ValueError: without exactly one budget, for one that cannot be read or buys no size, if
                the costs are not known, and if the losses do not show which size is best.
        """
        from nfd.laws.best_size import amount, best_size

        budgets = {"parameters": parameters, "flops": flops, "times": times}
        given = {resource: budget for resource, budget in budgets.items() if budget is not None}
        if len(given) != 1:
            raise InputError(f"best needs one budget; got parameters={parameters}, flops={flops}.")
        if times is not None:
            given = dict(self.budget_of(times))
        resource, budget = next(iter(given.items()))
        amount(resource, budget)
        variables = self.law.variables
        if variables[:2] != ("width", "depth"):
            raise InputError(
                f"best needs a law in width and depth; this law is in {' and '.join(variables)}."
            )
        if resource not in self.costs:
            counted = f"only {' and '.join(self.costs)} are" if self.costs else "nothing is"
            raise InputError(
                f"what these networks cost in {resource} is not known: {counted}. Give another "
                "budget."
            )
        return best_size(self, resource, budget)

    def budget_of(self, times: float) -> dict[str, float]:
        """So many times what the largest network costs, in the first resource that is known.

        Raises:
            ValueError: for a law that is not in width and depth, and without known costs.
        """
        factor = check_real("times", times, above=0.0)
        if self.law.variables[:2] != ("width", "depth") or not self.costs:
            raise InputError(
                "times needs a law in width and depth, and parameters of every size. Give the "
                "size that is asked about."
            )
        width, depth = map(int, self.law.largest[:2])
        resource, cost = next(iter(self.costs.items()))
        return {resource: factor * cost.at(width, depth)}

    def named(self, size: Sizes) -> str:
        """Write a size in words: ``width 64 and depth 4``."""
        return " and ".join(
            f"{name} {x:,.10g}" for name, x in zip(self.law.variables, size, strict=True)
        )

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per quantity: the numbers of the law, and the mean loss of each size.

        ``value``, ``stderr``, ``low`` and ``high`` are a number, its standard error and its 95 %
        interval.
        """
        terms = self.law.terms | {"floor": self.floor}
        about: dict[str, Any] = dict.fromkeys(self.law.variables)
        rows = [{"quantity": name, **about, **term.limits} for name, term in terms.items()]
        for size, losses in sorted(self.losses.items()):
            sizes = dict(zip(self.law.variables, size, strict=True))
            rows.append({"quantity": self.score, **sizes, **mean(losses).limits})
        return rows

    @property
    def growth(self) -> Growth:
        """Whether a larger network than the largest pays, and in which direction."""
        from nfd.laws.scaling_law_answer import growth

        return growth(self, {}, {})

    @property
    def answer(self) -> Answer:
        """State, decision, evidence and what to run next."""
        return self.growth.answer

    def first_sections(self) -> list[Section]:
        """The losses with the law and its forecast, and what growing buys."""
        return self.growth.first_sections()


# ---- A law of your logs.


def fit_scaling_law(
    rows: Any,
    *,
    columns: Mapping[str, str | None] | None = None,
    rate: float | str | None = None,
    prior: str | os.PathLike[str] | None = "ladders",
) -> ScalingLaw:
    """Fit a law of size to the final losses of your logged training runs, of any framework.

    Over width n and depth L: ``floor + a / n + b / L`` with terms of second order, and ``c /
    D^beta`` where tokens vary; small sizes are left out until it holds. ``held_out`` is the largest
    size, predicted by a fit without it. A table of parameters and tokens is for ``nfd.fit_ladder``.

    Example::

        from random import Random

        noise = Random(0)
        sizes = [(n, L) for n in (64, 128, 256) for L in (4, 8, 16)]
        rows = [
            {"width": n, "depth": L, "loss": 1 + 4 / n + 1 / L + noise.gauss(0, 0.01)}
            for n, L in sizes
        ]
        print(nfd.fit_scaling_law(rows).floor)

    Args:
        rows: dicts, a DataFrame, or the path of a CSV, JSON or parquet file; one row for each run,
            or for each step of one, of which the last counts. A loss that is not a number diverged.
        columns: the names of your columns, if they are not recognised: ``{"loss": "eval/loss"}``.
            Keys: loss, width, depth, parameters, tokens (or steps and batch in tokens, or sequences
            of a batch and their length), flops, seed, lr, rule, run, step and state; table, of
            several in a file. None ignores a column.
        rate: if runs of one size differ in their learning rate, the rate whose runs count; or
            ``"best"``, at each size the rate with the lowest mean loss over seeds. That choice
            makes losses too low, by less than their noise.
        prior: as for ``nfd.fit_ladder``; goes in 0.5.

    Returns:
        A ``ScalingLaw``: ``.floor``, ``.law``, ``.at(...)``, ``.best(...)``, ``.table`` and
        ``.held_out``; print it to see the table. ``about`` lists the recognised columns.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if rows cannot be read; with too few
            sizes for a law.
    """
    answer = losses_of(rows, columns, rate, prior)
    if not isinstance(answer, ScalingLaw):
        warnings.warn(
            "This table has parameters or tokens: fit it by nfd.fit_ladder. nfd.fit_scaling_law "
            "refuses it from 0.5.",
            FutureWarning,
            stacklevel=2,
        )
    elif prior != "ladders":
        text = "prior goes in 0.5: only nfd.fit_ladder reads it."
        warnings.warn(text, FutureWarning, stacklevel=2)
    return cast(ScalingLaw, answer)


def losses_of(
    rows: Any,
    columns: Mapping[str, str | None] | None,
    rate: float | str | None,
    prior: str | os.PathLike[str] | None = "ladders",
) -> ScalingLaw | LadderLaw:
    """Fit the loss law over width and depth, or over parameters and tokens, by the columns."""
    log = read_sizes(rows, columns)
    variables = variables_of(log)
    runs = loss_runs(log, variables, rate)
    if {*variables} <= {"parameters", "tokens", "flops"}:
        # Loaded only where a table is for it.
        from nfd.laws.ladder import ladder_of

        return ladder_of(runs, prior)
    return _scaling_law_of(runs)


def _scaling_law_of(runs: LossRuns) -> ScalingLaw:
    """Fit the loss law over width and depth; costs are known where the log counts parameters."""
    from nfd.laws.best_size import counted

    costs: dict[str, Cost] = {}
    if runs.counts:
        cost = counted(runs.counts)
        if cost is not None:
            costs["parameters"] = cost
    law, held_out = judged(runs.variables, runs.losses, paired=runs.share_seeds)
    return ScalingLaw(
        law,
        runs.losses,
        about=runs.about,
        score=runs.score,
        costs=costs,
        held_out=held_out,
        notes=runs.notes,
        left_out=runs.left_out,
    )


# ---- The law of some runs, and what holds it to account.


# Sizes of a variable that remain where a longer ladder failed: three lie on some law of second
# order.
_FEWEST_LEFT = 4
# The p-value below which the smallest sizes are left out. Between this and ``GOOD`` the law is
# refused: of true laws some fail by chance, and where that chose the sizes, the floor lay in none
# of 12 intervals (of 600 fits).
_BREAKS = 0.01
_FAILS = (
    "From the others the law does not predict the largest size: train it from other seeds, or a "
    "larger one."
)
_LEFT_OUT = "Smaller sizes were left out until the law held."


def judged(
    variables: tuple[str, ...], losses: Losses, *, paired: bool
) -> tuple[Law, HeldOut | None]:
    """Fit the loss law to the sizes from which it holds, and hold the largest size out.

    The law is of all sizes where it holds from none. With one seed of each size little else can
    show that it holds, so it must predict the largest size from the others, too.

    Args:
        variables: what the sizes are.
        losses: of the training runs.
        paired: whether the i-th losses of all sizes are of one seed.

    Returns:
        The law, and the largest size by a law without it; None where there is no such law.
    """
    law, kept = _holding(variables, losses, paired)
    trained = dict[Sizes, Sequence[float]]()
    for size, of_seeds in kept.items():
        if all(map(math.isfinite, of_seeds)):
            trained[size] = of_seeds
    largest = max(trained, key=math.prod)
    measured = trained.pop(largest)
    held_out = None
    # There may be too few others, or their law may not be extrapolated.
    with suppress(InputError):
        without = fit_law(variables, trained, paired=paired)
        predicted = without.network(*largest, networks=len(measured))
        held_out = HeldOut(largest, len(measured), predicted, mean(measured))
    if law.seeds < 2 and law.good and held_out is not None and not held_out.inside:
        law = replace(law, good=False, note=f"{_FAILS} {law.note}".strip())
    return law, held_out


def _holding(variables: tuple[str, ...], losses: Losses, paired: bool) -> tuple[Law, Losses]:
    """Fit the law to the sizes from which it holds, or to all where there are none.

    Returns:
        The law, and the losses of these sizes.
    """
    whole = fit_law(variables, losses, paired=paired)
    kept = losses
    law = whole
    while law.p_value < _BREAKS:
        larger = _without_smallest(variables, kept)
        if larger is None:
            break
        kept = larger
        law = fit_law(variables, kept, paired=paired)
    if law.p_value < GOOD:
        return whole, losses
    if kept is not losses:
        law = replace(law, note=f"{_LEFT_OUT} {law.note}".strip())
    return law, kept


def _without_smallest(variables: tuple[str, ...], losses: Losses) -> Losses | None:
    """Leave out the smallest size of the variable that has most sizes.

    None where too few sizes remain.
    """
    axes = [sorted({*sizes}) for sizes in zip(*losses, strict=True)]
    counts = [len(axis) for axis in axes]
    k = counts.index(max(counts))
    if counts[k] <= _FEWEST_LEFT:
        return None
    smallest = axes[k][0]
    larger = {size: of_seeds for size, of_seeds in losses.items() if size[k] > smallest}
    try:
        check_sizes(variables, larger)
    except InputError:
        return None
    return larger
