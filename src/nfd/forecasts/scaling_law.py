"""``nfd.scaling_law`` and ``nfd.fit_scaling_law``: the loss of larger networks, and the best size for a budget."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nfd.core.checks import check_ascending, check_choice, check_count, check_real
from nfd.core.errors import InputError
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.modes import undisturbed
from nfd.core.names import MOST, WIDEST
from nfd.core.tables import rows_as_text
from nfd.forecasts.law import GOOD, HeldOut, Law, Losses, Sizes, check_sizes, fit_law
from nfd.logs import Field, Log, LoggedRun, at_rate, read_log

if TYPE_CHECKING:
    from nfd.families.family import Family
    from nfd.forecasts.ladder import LadderLaw
    from nfd.runs.sweep import Sweep
    from nfd.runs.task import Batch, Task
    from nfd.scaling.base import MakeModel


@dataclass(frozen=True)
class ScalingLaw:
    """A law of the loss, fitted to runs, and the best size for a budget. Print it to see the table.

    Attributes:
        law: the fitted law, with its test.
        losses: of the fitted runs, by size, in the order of ``law.variables``.
        about: a description of the runs. score: the kind of their loss, in words.
        costs: parameters and operations (``flops``) of networks of any size, as far as they are known.
        held_out: the largest size, predicted by a fit without it.
        notes: which runs were left out, and why.

    Example::

        from random import Random

        noise = Random(1)
        sizes = [(n, L) for n in (64, 128, 256) for L in (4, 8, 16)]
        rows = [{"width": n, "depth": L, "loss": 1 + 4 / n + 1 / L + noise.gauss(0, 0.01)} for n, L in sizes]
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

    @property
    def trusted(self) -> dict[str, float]:
        """The smallest value of each variable that was fitted; smaller ones bend the law or were not trained."""
        return dict(zip(self.law.variables, self.law.smallest, strict=True))

    @property
    def floor(self) -> Interval:
        """The loss of the infinitely large network, with its 95 % interval: every variable of the law is infinite.

        Not-a-number where the law may not be extrapolated (``law.good``); ``law.note`` says what would settle it.
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
            width, depth, tokens: the variables of the law; each may be ``math.inf``. ``tokens`` is by
                default the largest number that was fitted.

        Raises:
            ValueError: for other variables than those of the law, and outside of the fitted sizes if the law may not be
                extrapolated.
        """
        named = {"width": width, "depth": depth, "tokens": tokens}
        given = {name: size for name, size in named.items() if size is not None}
        if others := [name for name in given if name not in self.law.variables]:
            raise InputError(f"the law is in {' and '.join(self.law.variables)}; got {', '.join(others)}. Drop it.")
        sizes = {k: x for k, x in zip(self.law.variables, self.law.largest, strict=True) if k == "tokens"} | given
        if missing := [name for name in self.law.variables if name not in sizes]:
            raise InputError(f"the law is in {' and '.join(self.law.variables)}; give {' and '.join(missing)} as well.")
        return self.law.loss(*(sizes[name] for name in self.law.variables))

    def best(
        self,
        *,
        parameters: float | str | None = None,
        flops: float | str | None = None,
    ) -> BestSize:
        """The size of the lowest loss within one budget, such as ``parameters="2M"`` or ``flops=1e18``.

        Args:
            parameters: numbers that the network stores. flops: operations of one whole training.

        Returns:
            The best width and depth, with cost and predicted loss; ``inside`` says whether that was fitted.

        Raises:
            ValueError: without exactly one budget, for one that cannot be read or buys no size, if the costs are not
                known, and if the losses do not tell which size is best.
        """
        if (budget := flops if parameters is None else parameters) is None or None not in (flops, parameters):
            raise InputError(f"best needs one budget; got parameters={parameters}, flops={flops}.")
        resource = "flops" if parameters is None else "parameters"
        variables, most = self.law.variables, amount(resource, budget)
        if variables[:2] != ("width", "depth"):
            raise InputError(f"best needs a law in width and depth; this law is in {' and '.join(variables)}.")
        if resource not in self.costs:
            known = f"only {' and '.join(self.costs)} are" if self.costs else "nothing is"
            raise InputError(f"what these networks cost in {resource} is not known: {known}. Give another budget.")
        return best_size(self.law, self.costs[resource], most)

    def named(self, size: Sizes) -> str:
        """A size in words: ``width 64 and depth 4``."""
        return " and ".join(f"{name} {x:,.10g}" for name, x in zip(self.law.variables, size, strict=True))

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per quantity: the numbers of the law, and the mean loss of each size.

        ``value``, ``stderr``, ``low`` and ``high`` are a number, its standard error and its 95 % interval.
        """
        terms = self.law.terms | {"floor": self.floor}
        about: dict[str, Any] = dict.fromkeys(self.law.variables)
        rows = [{"quantity": name, **about, **term.limits} for name, term in terms.items()]
        for size, losses in sorted(self.losses.items()):
            sizes = dict(zip(self.law.variables, size, strict=True))
            rows.append({"quantity": self.score, **sizes, **mean(losses).limits})
        return rows

    def __str__(self) -> str:
        return "\n".join([str(self.law), rows_as_text(self.table), *self.notes])


# ---- A law of your logs.


_SIZES: tuple[Field, ...] = ("width", "depth", "parameters", "tokens")


def fit_scaling_law(
    rows: Any,
    *,
    columns: Mapping[str, str | None] | None = None,
    rate: float | str | None = None,
    prior: str | os.PathLike[str] | None = "ladders",
) -> ScalingLaw | LadderLaw:
    """Fit a law of size to the final losses of your logged runs, from any framework.

    Over parameters N, tokens D, or both (then shapes may vary, too): ``floor + ((A / N^a)^p + (B / D^b)^p)^(1/p)``,
    with priors from other people's ladders and calibrated intervals. Over width n and depth L: ``floor + a / n + b /
    L`` with terms of second order, and ``c / D^beta`` where tokens vary; small sizes are left out until it holds.
    ``held_out`` is the largest size, predicted by a fit without it.

    Example::

        from random import Random

        noise = Random(0)
        sizes = [(n, L) for n in (64, 128, 256) for L in (4, 8, 16)]
        rows = [{"width": n, "depth": L, "loss": 1 + 4 / n + 1 / L + noise.gauss(0, 0.01)} for n, L in sizes]
        print(nfd.fit_scaling_law(rows).floor)

    Args:
        rows: dicts, a DataFrame, or the path of a CSV; one row for each run, or for each step of one, of which the
            last counts. A loss that is not a number diverged.
        columns: the names of your columns, if they are not recognised: ``{"loss": "eval/loss"}``. Keys: loss, width,
            depth, parameters, tokens (or steps and batch in tokens, or sequences of a batch and their length), seed,
            lr, rule, run, step and state. None ignores a column.
        rate: if runs of one size differ in their learning rate, the rate whose runs count; or ``"best"``, at each size
            the rate with the lowest mean loss over seeds. That choice makes losses too low, by less than their noise.
        prior: of a law over parameters and tokens: ``"ladders"``, that of the package; the path of a file
            of that form; None for wide priors, whose intervals are wider.

    Returns:
        A ``LadderLaw`` over parameters and tokens: ``.at(...)``, ``.best(flops=...)``, ``.next_run(budget=...)``,
        ``.refusal``. Else a ``ScalingLaw``: ``.floor``, ``.law``, ``.at(...)``, ``.best(...)``. Both have ``.table``
        and ``.held_out``; print them to see the table. ``about`` lists the recognised columns.

    Raises:
        ValueError, TypeError, OSError: naming the columns, if rows cannot be read; with too few sizes for a law.
    """
    log = read_log(rows, columns, ("loss",), (*_SIZES, "lr", "rule", "seed"))
    variables = _variables(log)
    runs = [run for run in log.runs if all(getattr(run, name) is not None for name in variables)]
    lacking = len(log.runs) - len(runs)
    runs, of_rates = at_rate(runs, variables, rate)
    rungs = _rungs(runs, variables)
    losses = {size: [run.loss for run in rung if run.loss is not None] for size, rung in rungs.items()}
    notes = (*log.notes, *of_rates, *([f"{lacking} rows that lack a size were left out."] if lacking else []))
    if {*variables} <= {"parameters", "tokens"}:
        from nfd.forecasts.ladder import fit_ladder  # loaded where it is asked for

        return fit_ladder(variables, losses, f"A log of {log.recognised}", log.columns["loss"], notes, prior)
    seeds = {tuple(run.seed for run in rung) for rung in rungs.values()}
    shared = len(seeds) == 1 and None not in next(iter(seeds))  # by all sizes
    counts = {(run.width, run.depth): run.parameters for run in runs if run.width and run.depth and run.parameters}
    cost = counted({size: round(count) for size, count in counts.items()}) if counts else None
    law, held_out = judged(variables, losses, paired=shared)
    return ScalingLaw(
        law,
        losses,
        about=f"A log of {log.recognised}",
        score=log.columns["loss"],
        costs={} if cost is None else {"parameters": cost},
        held_out=held_out,
        notes=notes,
    )


def _variables(log: Log) -> tuple[str, ...]:
    """The sizes that vary, of which parameters stand for width and depth where tokens vary, too, or where both grow
    together."""
    values = {name: {size for run in log.runs if (size := getattr(run, name)) is not None} for name in _SIZES}
    varying = [name for name in _SIZES if len(values[name]) > 1]
    shape: list[str] = [name for name in ("width", "depth") if name in varying]
    inverse = np.array([[1.0, 1 / run.width, 1 / run.depth] for run in log.runs if run.width and run.depth])
    together = len(shape) == 2 and np.linalg.matrix_rank(inverse, tol=1e-6) < 3
    if "parameters" in varying and (not shape or together or ("tokens" in varying and not log.in_steps)):
        shape = ["parameters"]
    if not varying:
        raise InputError(
            f"runs must differ in width, depth, parameters or tokens; none of them varies in {log.recognised} Name "
            "their columns by columns=."
        )
    return (*shape, "tokens") if "tokens" in varying else tuple(shape)


def _rungs(runs: list[LoggedRun], variables: tuple[str, ...]) -> dict[Sizes, list[LoggedRun]]:
    """The runs by size, in the order of their seeds; ValueError where they differ in their rate or rule."""
    rungs = dict[Sizes, list[LoggedRun]]()
    for run in sorted(runs, key=lambda run: (run.seed or "", run.loss or 0.0)):
        rungs.setdefault(tuple(getattr(run, name) for name in variables), []).append(run)
    for name in ("lr", "rule"):
        for size, rung in rungs.items():
            if len(values := {getattr(run, name) for run in rung}) > 1:
                raise InputError(
                    f"the runs of {' x '.join(variables)} = {' x '.join(f'{x:g}' for x in size)} differ in {name}: "
                    f"{', '.join(sorted(map(str, values)))}. Give the rows of one {name} at "
                    "each size, or rate='best', in the shell --rate best, for those of the best rate."
                )
    return dict(sorted(rungs.items()))


# ---- A law of networks that are trained here.


@undisturbed()
def scaling_law(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    widths: Sequence[int],
    depths: Sequence[int],
    lr: float | None = None,
    *,
    seeds: int = 4,
    lengths: Sequence[int] | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    sweep: Sweep | None = None,
) -> ScalingLaw:
    """Train networks of every width and depth, and fit ``loss(n, L) = floor + a/n + b/L`` to their losses.

    The law answers how low the loss of a larger network would be (``.at``), and which size is best for a budget
    (``.best``). The floor is the loss of the infinitely large network after the same training. As a test, the largest
    size is predicted from a fit without it. With several ``lengths``, every size is trained over each number of steps,
    and the law has the term ``c/D^beta``, where D (``tokens``) is the number of targets seen.

    Example::

        law = nfd.scaling_law(make_model, batches, [8, 16, 32], [1, 2, 4], lr=3e-3)
        print(law)
        print(law.floor)  # the loss of the infinitely large network

    Args:
        family: ``make_model(width, depth)``, or an ``nfd.Family``, under whose rule the best rate must not depend on
            size. The base of a plain function is the smallest network.
        task: batches, one update for each, or an ``nfd.Task``.
        widths, depths: of the networks; every pair is trained. Three or more of each let the law be extrapolated.
        lr: learning rate of the base; by default that of ``nfd.check``.
        seeds: of each size, at least 2.
        lengths: numbers of steps, on the first batches; by default one, on all. With several, a ``schedule`` must take
            ``steps``.
        blocks, roles: in place of those of the family; as in ``nfd.plan``.
        sweep: where networks are trained and kept.

    Returns:
        A ``ScalingLaw``: ``.floor``, ``.law``, ``.at(width, depth)``, ``.best(parameters=...)`` or
        ``.best(flops=...)``, and ``.table``. Parameters and floating-point operations of every size are counted.

    Raises:
        ValueError, TypeError: naming the argument; with too few sizes for a law.
    """
    from nfd.families.family import as_family
    from nfd.runs.sweep import as_sweep
    from nfd.runs.task import as_task, knows_steps
    from nfd.runs.trial import Trial
    from nfd.scaling.optimizers import check_optimizer
    from nfd.scaling.rules import MAX_RATE
    from nfd.scaling.samples import batch_size

    task = as_task(task)
    widths, depths = check_ascending("widths", widths, WIDEST), check_ascending("depths", depths, MOST)
    family = as_family(family, (widths[0], depths[0]), sample=task.sample, blocks=blocks, roles=roles)
    family.check_sizes(widths, depths)
    count = check_count("seeds", seeds, minimum=2, maximum=MOST)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=task.weight_decay or 0.0)
    rate = check_real("lr", family.law.default_lr if lr is None else lr, above=0.0, below=MAX_RATE)
    several = [task.steps] if lengths is None else check_ascending("lengths", lengths, task.steps)
    if several != [task.steps] and task.schedule is not None and not knows_steps(task.schedule):
        raise InputError(
            "schedule must take steps, how many there are, where they vary: such as lambda step, steps: 1 - step / "
            "steps."
        )
    tasks = [task.first(length) for length in several]
    sizes = [(n, L, own.targets) for own in tasks for n in widths for L in depths]
    varying = [k for k in range(3) if len({size[k] for size in sizes}) > 1]
    variables = tuple(("width", "depth", "tokens")[k] for k in varying)
    check_sizes(variables, [[size[k] for k in varying] for size in sizes])  # before hours of training
    trials = {
        (n, L, own.targets): [Trial(family, own, n, L, seed, rate) for seed in range(count)]
        for own in tasks
        for n in widths
        for L in depths
    }
    with as_sweep(sweep) as opened:
        trained = opened.run_all(trials, "sizes")
    losses = {
        tuple(size[k] for k in varying): [record.metrics.get(task.score, math.inf) for record in records]
        for size, records in trained.items()
    }
    # what the longest training costs at every size
    sample, samples = task.batches[0][0], sum(batch_size(inputs) for inputs, _ in tasks[-1].batches)
    models = {(n, L): family.member(n, L, device=task.device) for n in widths for L in depths}
    counts = {
        "parameters": {size: model.parameters for size, model in models.items()},
        "flops": {size: round(model.operations(sample) * samples) for size, model in models.items()},
    }
    law, held_out = judged(variables, losses, paired=True)
    return ScalingLaw(
        law,
        losses,
        about=f"{family.name}, rule {family.rule}, {family.optimizer}, lr = {rate:g}, "
        f"{''.join(f'{own.steps} or ' for own in tasks[:-1])}{tasks[-1].about}, {count} seeds of each size.",
        score={"train_loss": "training loss", "test_loss": "test loss"}[task.score],
        costs={resource: cost for resource, of in counts.items() if (cost := counted(of, math.gcd(*widths)))},
        held_out=held_out,
        notes=(*opened.notes(family), *task.notes),
    )


# ---- The law of some runs, and what holds it to account.


_FEWEST_LEFT = 4  # sizes of a variable, where a longer ladder failed: three lie on some law of second order
# The p-value below which the smallest sizes are left out. Between this and ``GOOD`` the law is refused: of true laws
# some fail by chance, and where that chose the sizes, the floor lay in none of 12 intervals (of 600 fits).
_BREAKS = 0.01
_FAILS = "From the others the law does not predict the largest size: train it from other seeds, or a larger one."
_LEFT_OUT = "Smaller sizes were left out until the law held."


def judged(variables: tuple[str, ...], losses: Losses, *, paired: bool) -> tuple[Law, HeldOut | None]:
    """The law of the sizes from which it holds, else that of all, and the largest size by a law without it.

    With one seed of each size little else can tell that it holds, so it must predict the largest from the others, too.

    Args:
        variables: what the sizes are. losses: of the runs. paired: whether the i-th of all sizes are of one seed.
    """
    kept, law = losses, fit_law(variables, losses, paired=paired)
    whole = law
    while law.p_value < _BREAKS and (left := _without_smallest(variables, kept)):
        kept, law = left, fit_law(variables, left, paired=paired)
    if law.p_value < GOOD:
        kept, law = losses, whole
    elif kept is not losses:
        law = replace(law, note=f"{_LEFT_OUT} {law.note}".strip())
    trained, held = {size: own for size, own in kept.items() if all(map(math.isfinite, own))}, None
    largest = max(trained, key=math.prod)
    own = trained.pop(largest)
    with suppress(InputError):  # too few others, or a law that may not be extrapolated
        said = fit_law(variables, trained, paired=paired).network(*largest, networks=len(own))
        held = HeldOut(largest, len(own), said, mean(own))
    if law.seeds < 2 and law.good and held is not None and not held.inside:
        law = replace(law, good=False, note=f"{_FAILS} {law.note}".strip())
    return law, held


def _without_smallest(variables: tuple[str, ...], losses: Losses) -> Losses | None:
    """The runs without the smallest size of the variable that has most sizes; None where too few are left."""
    axes = [sorted({*sizes}) for sizes in zip(*losses, strict=True)]
    k = max(range(len(axes)), key=lambda axis: len(axes[axis]))
    left = {size: own for size, own in losses.items() if size[k] > axes[k][0]}
    with suppress(InputError):
        check_sizes(variables, left)
        return left if len(axes[k]) > _FEWEST_LEFT else None
    return None


# ---- What a network costs at a size, counted at several sizes.


_PREFIXES = {"": 0, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15, "E": 18, "Z": 21}
_UNITS = {"parameters": r"(?:PARAM(?:ETER)?S?)?", "flops": r"(?:FLOPS?)?"}
_EXAMPLES = {"parameters": "'2M' or 2_000_000", "flops": "'3 TFLOP' or 3e12"}


@dataclass(frozen=True)
class Cost:
    """``constant + per_width n + per_square n^2 + (per_block + per_layer n + per_matrix n^2) L``, whole numbers, of one
    resource; widths n are multiples of ``multiple``."""

    constant: int
    per_width: int
    per_layer: int
    per_matrix: int
    per_square: int = 0
    per_block: int = 0
    multiple: int = 1

    def at(self, width: int, depth: int) -> int:
        """The cost of a size."""
        n, L = width, depth
        of_block = self.per_block + self.per_layer * n + self.per_matrix * n * n
        return self.constant + self.per_width * n + self.per_square * n * n + of_block * L

    def widest(self, depth: int, budget: int) -> int:
        """The largest width within the budget, exactly; 0 if there is none."""
        A, B = self.per_square + self.per_matrix * depth, self.per_width + self.per_layer * depth
        room = max(0, budget - self.constant - self.per_block * depth)
        n = (math.isqrt(B * B + 4 * A * room) - B) // (2 * A) if A else room // B if B else 0
        return n - n % self.multiple

    def deepest(self, width: int, budget: int) -> int:
        """The largest depth within the budget, exactly; 0 if there is none."""
        return max(0, (budget - self.at(width, 0)) // (self.at(width, 1) - self.at(width, 0)))


def counted(counts: Mapping[tuple[int, int], int], multiple: int = 1) -> Cost | None:
    """The cost that has these values at these sizes (width, depth), exactly; None where no such cost has them, and
    where there are too few sizes to know."""
    n0, L0 = min(n for n, _ in counts), min(L for _, L in counts)
    units = [1, n0, n0 * L0, n0 * n0 * L0, n0 * n0, L0]
    rows = [[1, n, n * L, n * n * L, n * n, L] for n, L in counts]
    scaled = np.array(rows, dtype=float) / units
    if np.linalg.matrix_rank(scaled) < len(units):
        return None
    values = np.linalg.lstsq(scaled, np.array([*counts.values()], dtype=float), rcond=None)[0] / units
    cost = replace(Cost(*map(round, values.tolist())), multiple=multiple)
    return cost if all(cost.at(*size) == count for size, count in counts.items()) else None


def amount(resource: str, budget: str | float) -> int:
    """A budget as a whole number: ``"2M"`` parameters, ``"3 TFLOP"`` or a number."""
    check_choice("resource", resource, _UNITS)
    if not isinstance(budget, str):
        return int(check_real("budget", budget, least=1.0))
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:E[+-]?\d+)?)\s*([KMGBTPEZ]?)\s*" + _UNITS[resource] + r"\s*", budget.upper())
    value = float(match[1]) * 10.0 ** _PREFIXES[match[2]] if match else 0.0
    if not 1 <= value < math.inf:
        raise InputError(f"budget in {resource} must be like {_EXAMPLES[resource]}, at least 1; got {budget!r}.")
    return round(value)


# ---- The best size for a budget.
#
# The best size is where ``a / n + b / L`` is least within the budget. Where all is spent on matrices, ``n^2 L``, and
# were sizes real numbers, ``a / n = 2 b / L`` there.


_CANDIDATES = 1000  # widths, and depths: all whole numbers up to some hundreds, beyond that 2 % apart at most


@dataclass(frozen=True)
class BestSize:
    """The best size for a budget, what it costs, the loss the law predicts there, whether it lies inside of what was
    fitted, and what else to know."""

    width: int
    depth: int
    cost: int
    predicted: Interval
    inside: bool
    note: str

    def __str__(self) -> str:
        return f"width {self.width:,} and depth {self.depth:,}: loss {self.predicted.unsigned}. {self.note}".strip()


def best_size(law: Law, cost: Cost, most: int) -> BestSize:
    """The width and depth of least ``a / n + b / L`` that cost no more than ``most``; widths are multiples of
    ``cost.multiple``.

    By the values of a and b, which decide where networks are large: other powers and second order are left out of the
    choice. An axis whose term is not positive, or lost in its noise, stays at the smallest size fitted; a note says so.
    A law that may not be extrapolated is searched only where it was fitted. Tokens are the most of the fit.

    Raises:
        ValueError: for a budget that buys no size, and where the losses tell of neither axis whether it pays.
    """
    (n0, L0), (n1, L1) = map(int, law.smallest[:2]), map(int, law.largest[:2])
    a, b = law.terms["a"], law.terms["b"]
    wide, deep = pays(a), pays(b)
    if not wide and not deep and max(a.high, b.high) > 0:
        raise InputError(
            f"the losses do not tell which size is best: neither more width (a = {a}) nor more depth (b = {b}) lowers "
            f"them significantly. Train more seeds, or width {2 * n1} and depth {2 * L1}."
        )
    n0, L0 = cost.multiple if law.good and wide else n0, 1 if law.good and deep else L0
    if cost.at(n0, L0) > most:
        raise InputError(
            f"budget must pay for width {n0} and depth {L0}, which cost {cost.at(n0, L0):,}; got {most:,}. Raise it."
        )

    def widest(L: int) -> int:
        n = cost.widest(L, most) if wide else n0
        return n if law.good else min(n, n1)

    def deepest(n: int) -> int:
        L = cost.deepest(n, most) if deep else L0
        return L if law.good else min(L, L1)

    k = cost.multiple
    widths = {k * round(n / k) for n in np.geomspace(n0, widest(L0), _CANDIDATES).tolist()}
    depths = {round(L) for L in np.geomspace(L0, deepest(n0), _CANDIDATES).tolist()}
    pairs = [*((n, deepest(n)) for n in widths), *((widest(L), L) for L in depths)]
    n, L = min(
        (size for size in pairs if size[0] >= n0 and size[1] >= L0),
        key=lambda size: max(a.value, 0.0) / size[0] + max(b.value, 0.0) / size[1],
    )
    beyond = _beyond(law, n, L)
    note = " ".join([*_about(law), *beyond])
    return BestSize(n, L, cost.at(n, L), law.loss(n, L, *law.largest[2:]), not beyond, note)


def pays(term: Interval) -> bool:
    """Whether growing along the axis of this term lowers the loss: by its value, beyond half a standard error."""
    return term.value > 0.5 * term.stderr


def _about(law: Law) -> list[str]:
    notes = [law.note] if not law.good else []
    for name, symbol, start in zip(("width", "depth"), "ab", law.smallest, strict=False):
        term = law.terms[symbol]
        if not pays(term):
            says = "raises the loss" if term.high < 0 else "does not pay significantly"
            notes.append(f"More {name} {says} ({symbol} = {term}): the smallest fitted, {start:g}, was kept.")
        elif not term.low > 0:
            notes.append(f"The gain from {name} is not significant ({symbol} = {term}): take more seeds to be sure.")
    return notes


def _beyond(law: Law, *sizes: float) -> list[str]:
    """Which of these sizes lie outside of what was fitted."""
    fitted = zip(law.variables, sizes, law.smallest, law.largest, strict=False)
    return [
        f"{name.capitalize()} {size:.6g} lies outside of what was fitted, {least:.6g}..{most:.6g}: train it to be sure."
        for name, size, least, most in fitted
        if not least <= size <= most
    ]
