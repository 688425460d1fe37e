"""``nfd.scaling_law`` and ``nfd.fit_scaling_law``: the loss of larger networks, by the law of those that ran."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nfd.core.errors import MOST, WIDEST, InputError, check_ascending, check_count, check_real
from nfd.core.estimates import UNKNOWN, Interval, mean
from nfd.core.machine import undisturbed
from nfd.core.tables import rows_as_text
from nfd.forecasts.budget import BestSize, BestSplit, Costs, Resource, best_size, best_split, counted
from nfd.forecasts.law import GOOD, Law, Losses, Sizes, check_sizes, fit_law
from nfd.logs import Field, Log, LoggedRun, at_rate, read_log

if TYPE_CHECKING:  # a fit of a table loads neither PyTorch nor what trains networks
    from nfd.families.family import Family
    from nfd.runs.sweep import Sweep
    from nfd.runs.task import Batch, Task
    from nfd.scaling.entries import MakeModel


@dataclass(frozen=True)
class HeldOut:
    """A size outside the fit: what the law said of the mean of so many runs, and what they did."""

    size: Sizes
    networks: int
    predicted: Interval
    measured: Interval

    @property
    def inside(self) -> bool:
        """Whether the measured mean lies in the prediction's 95 % interval."""
        return self.predicted.low <= self.measured.value <= self.predicted.high


@dataclass(frozen=True)
class ScalingLaw:
    """A law of the loss, fitted to runs, and the best size for a budget. Print it to see the table.

    Attributes:
        law: the fitted law, with its test.
        losses: of the fitted runs, by size, in the order of ``law.variables``.
        about: a description of the runs. score: the kind of their loss, in words.
        costs: parameters and operations of networks of any size, if known.
        held_out: the largest size, predicted by a fit without it.
        lr: the rate of the runs, if they share one.
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
    costs: Costs | None = None
    held_out: HeldOut | None = None
    lr: float = math.nan
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
        parameters: float | None = None,
        tokens: float | None = None,
    ) -> Interval:
        """The mean loss of runs of a size by the law, with its 95 % interval.

        Args:
            width, depth, parameters, tokens: the variables of the law; each may be ``math.inf``. ``tokens`` is by
                default the largest number that was fitted.

        Raises:
            ValueError: for other variables than those of the law, and outside of the fitted sizes if the law may not be
                extrapolated.
        """
        named = {"width": width, "depth": depth, "parameters": parameters, "tokens": tokens}
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
    ) -> BestSize | BestSplit:
        """The size of the lowest loss within one budget, such as ``parameters="2M"`` or ``flops=1e18``.

        Args:
            parameters: numbers that the network stores. flops: operations of one whole training.

        Returns:
            The best width and depth, or numbers of parameters and tokens for a law in these, with cost and predicted
            loss; ``inside`` says whether that was fitted.

        Raises:
            ValueError: without exactly one budget, for one that cannot be read or buys no size, if the costs are not
                known, and if the losses do not tell which size is best.
        """
        if (budget := flops if parameters is None else parameters) is None or None not in (flops, parameters):
            raise InputError(f"best needs one budget; got parameters={parameters}, flops={flops}.")
        resource: Resource = "flops" if parameters is None else "parameters"
        if self.law.variables == ("parameters", "tokens"):
            return best_split(self.law, resource, budget)
        if self.law.variables[:2] != ("width", "depth") or self.costs is None:
            raise InputError(
                f"the best size for {resource} needs a law in width and depth, and what sizes cost; this law is in "
                f"{' and '.join(self.law.variables)}{'' if self.costs else ', and nothing is known of the costs'}."
            )
        return best_size(self.law, self.costs, resource, budget)

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
        notes = " ".join(filter(None, (self.law.note, *self.notes)))
        return f"{self.law.equation}: {self.law.test}\n{rows_as_text(self.table)}\n{notes}".strip()


# ---- A law of your logs.


_SIZES: tuple[Field, ...] = ("width", "depth", "parameters", "tokens")


def fit_scaling_law(
    rows: Any, *, columns: Mapping[str, str | None] | None = None, rate: float | str | None = None
) -> ScalingLaw:
    """Fit a law of size to the final losses of your logged runs, from any framework.

    The law has the variables that vary among width n, depth L, parameters N and tokens D: ``floor + a / n + b / L``
    with terms of second order, ``floor + a / N^alpha + c / D^beta``, or another mixture (``nfd.forecasts.law``). As a
    test, a second fit without the largest size predicts its loss. Small sizes are left out until the law holds.

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
            depth, parameters, tokens (or steps), seed, lr, rule, run, step and state. None ignores a column.
        rate: if runs of one size differ in their learning rate, the rate whose runs count; or ``"best"``, at each size
            the rate with the lowest mean loss over seeds. That choice makes losses too low, by less than their noise.

    Returns:
        A ``ScalingLaw``: ``.floor``, ``.law``, ``.at(...)``, ``.best(...)``, ``.table`` and ``.held_out``. Print it to
        see the table. ``about`` lists the recognised columns.

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
    seeds = {tuple(run.seed for run in rung) for rung in rungs.values()}
    shared = len(seeds) == 1 and None not in next(iter(seeds))  # by all sizes
    counts = {(run.width, run.depth): run.parameters for run in runs if run.width and run.depth and run.parameters}
    cost = counted({size: round(count) for size, count in counts.items()}) if counts else None
    return ScalingLaw(
        **judged(variables, losses, paired=shared),
        about=f"A log of {log.recognised}",
        score=log.columns["loss"],
        costs=None if cost is None else Costs({"parameters": cost}),
        notes=(*log.notes, *of_rates, *([f"{lacking} rows that lack a size were left out."] if lacking else [])),
    )


def _variables(log: Log) -> tuple[str, ...]:
    """The sizes that vary, of which parameters stand for a width and depth that grow together."""
    values = {name: {size for run in log.runs if (size := getattr(run, name)) is not None} for name in _SIZES}
    varying = [name for name in _SIZES if len(values[name]) > 1]
    shape: list[str] = [name for name in ("width", "depth") if name in varying]
    inverse = np.array([[1.0, 1 / run.width, 1 / run.depth] for run in log.runs if run.width and run.depth])
    together = len(shape) == 2 and np.linalg.matrix_rank(inverse, tol=1e-6) < 3
    if "parameters" in varying and (not shape or together):
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
        sweep: where networks are trained and kept.

    Returns:
        A ``ScalingLaw``: ``.floor``, ``.law``, ``.at(width, depth)``, ``.best(parameters=...)`` or
        ``.best(flops=...)``, and ``.table``. Parameters and floating-point operations of every size are counted.

    Raises:
        ValueError, TypeError: naming the argument; with too few sizes for a law.
    """
    from nfd.families.family import as_family
    from nfd.runs.sweep import Sweep
    from nfd.runs.task import as_task, knows_steps
    from nfd.runs.trial import Trial
    from nfd.scaling.optimizers import check_optimizer
    from nfd.scaling.rules import MAX_RATE
    from nfd.scaling.samples import batch_size

    task = as_task(task)
    widths, depths = check_ascending("widths", widths, WIDEST), check_ascending("depths", depths, MOST)
    family = as_family(family, (widths[0], depths[0]), sample=task.sample)
    family.check_sizes(widths, depths)
    count = check_count("seeds", seeds, minimum=2, maximum=MOST)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=task.weight_decay)
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
    with sweep or Sweep() as opened:
        trained = opened.run_all(trials, "sizes")
    losses = {
        tuple(size[k] for k in varying): [record.metrics.get(task.score, math.inf) for record in records]
        for size, records in trained.items()
    }
    # what the longest training costs at every size
    sample, samples = task.batches[0][0], sum(batch_size(inputs) for inputs, _ in tasks[-1].batches)
    models = {(n, L): family.member(n, L, device=task.device) for n in widths for L in depths}
    counts: dict[Resource, dict[tuple[int, int], int]] = {
        "parameters": {size: model.parameters for size, model in models.items()},
        "flops": {size: round(model.operations(sample) * samples) for size, model in models.items()},
    }
    costs = Costs({resource: cost for resource, of in counts.items() if (cost := counted(of))}, math.gcd(*widths))
    return ScalingLaw(
        **judged(variables, losses, paired=True),
        about=f"{family.name}, rule {family.rule}, {family.optimizer}, lr = {rate:g}, "
        f"{''.join(f'{own.steps} or ' for own in tasks[:-1])}{tasks[-1].about}, {count} seeds of each size.",
        score={"train_loss": "training loss", "test_loss": "test loss"}[task.score],
        costs=costs,
        lr=rate,
        notes=task.notes,
    )


# ---- The law of some runs, and what holds it to account.


_FEWEST_LEFT = 4  # sizes of a variable, where a longer ladder failed: three lie on some law of second order
_FAILS = "From the others the law does not predict the largest size: train it from other seeds, or a larger one."
_LEFT_OUT = "Smaller sizes were left out until the law held."


def judged(variables: tuple[str, ...], losses: Losses, *, paired: bool) -> dict[str, Any]:
    """The law of the sizes from which it holds, fields of a ``ScalingLaw``; where no sizes are, that of all.

    With one seed of each size little else can tell that it holds, so it must predict the largest from the others, too.

    Args:
        variables: what the sizes are. losses: of the runs. paired: whether the i-th of all sizes are of one seed.
    """
    kept, (law, held, fails) = losses, _accounted(variables, losses, paired)
    whole = law, held
    while not law.good or fails:
        left = _without_smallest(variables, kept) if law.p_value < GOOD or fails else None
        if left is None:
            law, held = whole
            law = replace(law, good=False, note=f"{_FAILS if law.good else ''} {law.note}".strip())
            return {"law": law, "losses": losses, "held_out": held}
        kept, (law, held, fails) = left, _accounted(variables, left, paired)
    note = law.note if kept is losses else f"{_LEFT_OUT} {law.note}".strip()
    return {"law": replace(law, note=note), "losses": losses, "held_out": held}


def _accounted(variables: tuple[str, ...], losses: Losses, paired: bool) -> tuple[Law, HeldOut | None, bool]:
    """The law, the largest size by a law without it, and whether that fails a law that has no seeds to test it."""
    law, held = fit_law(variables, losses, paired=paired), None
    trained = {size: own for size, own in losses.items() if all(map(math.isfinite, own))}
    largest = max(trained, key=math.prod)
    own = trained.pop(largest)
    with suppress(InputError):  # too few others, or a law that may not be extrapolated
        said = fit_law(variables, trained, paired=paired).network(*largest, networks=len(own))
        held = HeldOut(largest, len(own), said, mean(own))
    return law, held, law.seeds < 2 and held is not None and not held.inside


def _without_smallest(variables: tuple[str, ...], losses: Losses) -> Losses | None:
    """The runs without the smallest size of the variable that has most sizes; None where too few are left."""
    axes = [sorted({*sizes}) for sizes in zip(*losses, strict=True)]
    k = max(range(len(axes)), key=lambda axis: len(axes[axis]))
    left = {size: own for size, own in losses.items() if size[k] > axes[k][0]}
    with suppress(InputError):
        check_sizes(variables, left)
        return left if len(axes[k]) > _FEWEST_LEFT else None
    return None
