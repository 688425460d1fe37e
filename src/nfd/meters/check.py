"""``nfd.check``: train a family's networks for a few steps over widths and depths, and say what scales wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    check_ascending,
    check_count,
    check_flag,
    check_real,
    check_several,
)
from nfd.core.machine import gradients
from nfd.core.names import AXES, SEEDS, Axis
from nfd.core.tables import Row
from nfd.families.family import Family, as_family
from nfd.meters.batch_noise import samples_of_a_part
from nfd.meters.event import Event, EventKind
from nfd.meters.job import Meters
from nfd.meters.looks import after, growth, of_stack, stacks_of
from nfd.meters.outcome import Check, failures_of
from nfd.meters.table import METERS, rows
from nfd.runs.sweep import Sweep
from nfd.runs.trial import Trial
from nfd.scaling.entries import MakeModel
from nfd.scaling.optimizers import OptimizerLaw, check_optimizer
from nfd.scaling.rules import MAX_RATE
from nfd.store import Record
from nfd.training import driver
from nfd.training.task import Batch, Task, as_task


@gradients()
def check(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    widths: Sequence[int],
    depths: Sequence[int],
    lr: float | None = None,
    *,
    rule: str | None = None,
    optimizer: str | OptimizerLaw | None = None,
    seeds: int = SEEDS,
    at: Sequence[int] | None = None,
    noise: bool = False,
    sweep: Sweep | None = None,
) -> Check:
    """Check whether the training of a model depends on its width and depth.

    Small networks of every width and depth are trained for a few steps. Meters of their updates are then fitted by a
    power of the width and of the depth. A meter is ``STABLE`` if its exponent is near 0. It ``GROWS`` if larger
    networks need a lower rate, and ``COLLAPSES`` if a part of them stops learning. Every verdict comes with a 95 %
    interval, a cause and a remedy. Take sizes over a factor of 8 (docs/verdicts.md).

    Example::

        check = nfd.check(make_model, batches, [16, 32], [2, 4], lr=3e-3)
        print(check)  # per meter: exponent, verdict, cause and remedy
        if not check.ok:
            print(check.failures)

    Meters are read on the first batch, after the last step, or with ``at`` after each of these steps:

    - the updates of ``nfd.meters.updates``, such as ``inner_update`` and ``function_update``;
    - ``gradient``: the RMS of dLoss/dh before the first block over that behind the last, before training;
    - ``loss``: of the last batch, before its update.

    Each of several stacks of blocks, such as encoder and decoder, is judged by itself.

    Args:
        family: ``make_model(width, depth)``, whose base is the smallest network, or an ``nfd.Family``.
        task: batches, one per step, or an ``nfd.Task``.
        widths, depths: every pair is trained. One value leaves an axis out.
        lr: rate of the base; by default 0.1 for SGD, 0.001 for others.
        rule, optimizer: in place of those of the family; as in ``nfd.plan``.
        seeds: initialisations of each network, at least 2.
        at: steps after which to read the meters, ascending; training ends with the last of them.
        noise: also estimate the noise scale of gradients after the last step (``Check.noise``).
        sweep: where networks are trained and kept.

    Returns:
        A ``Check``. Slopes are pooled over seeds and the sizes of the other axis.

    Raises:
        ValueError, TypeError: naming the argument; also if two seeds give the same network.
        RuntimeError: naming the line of your code at which a network cannot be trained.

    Source: Eqs. 7, 8, 27, 33, 34; Yang et al., Tensor Programs V (coordinate checks).
    """
    sizes = {"width": check_ascending("widths", widths, WIDEST), "depth": check_ascending("depths", depths, MOST)}
    if all(len(s) < 2 for s in sizes.values()):
        raise InputError(f"widths or depths must hold two sizes or more; got {list(widths)} and {list(depths)}.")
    task = as_task(task)
    family = as_family(family, (sizes["width"][0], sizes["depth"][0]), rule, optimizer, task.sample)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=task.weight_decay)
    rate = check_real("lr", family.law.check_rate if lr is None else lr, above=0.0, below=MAX_RATE)
    if at is not None:
        at = _looks(at, task.steps)
        task = task.first(at[-1])
    if check_flag("noise", noise):
        samples_of_a_part(task.batches)
    seeds = check_count("seeds", seeds, minimum=2, maximum=MOST)
    family.check_sizes(sizes["width"], sizes["depth"])
    made = "" if task.make_optimizer is None else _class_of_optimizer(family, task, rate)
    meters = Meters(None if at is None else tuple(at), noise)
    trials = [
        Trial(family, task, width, depth, seed, rate, observe=(meters,))
        for width in sizes["width"]
        for depth in sizes["depth"]
        for seed in range(seeds)
    ]
    with sweep or Sweep() as opened:
        runs = [_row(record) for record in opened.run_all({"checking": trials}, "checking")["checking"]]
    _check_seeds(runs)
    looks = meters.at or (task.steps,)
    table = [row for axis in AXES for row in _table(runs, sizes, axis, seeds, meters, looks, family.rule)]
    names = (family.rule, family.optimizer)
    draws = any(run["draws"] for run in runs)
    grown, failures = growth(runs, looks), failures_of(runs)
    return Check(
        table, runs, failures, *names, rate, looks, seeds, task.about, family.base, grown, draws, task.copies, made
    )


def _row(record: Record) -> Row:
    """What the meters returned of one network, with its size."""
    size = {name: record.config[name] for name in ("width", "depth", "seed")}
    row: Row = size | record.observed[0]
    row["events"] = [Event(**event | {"kind": EventKind(event["kind"])}) for event in row["events"]]
    row["rows"] = [size | of_step for of_step in row["rows"]]
    row["noise"] = [size | of_kind for of_kind in row["noise"]]
    return row


def _check_seeds(runs: Sequence[Row]) -> None:
    """Refuse networks that begin alike from several seeds."""
    seeds: dict[tuple[int, int, int], int] = {}
    for run in runs:
        other = seeds.setdefault((run["width"], run["depth"], run["print"]), run["seed"])
        if other != run["seed"]:
            raise InputError(
                f"make_model({run['width']}, {run['depth']}) gives the same network for seeds {other} and "
                f"{run['seed']}, but intervals come from differences between seeds. Does it set a seed of its own, or "
                "load weights? Draw from the global streams of PyTorch, NumPy or Python, which are seeded here."
            )


def _class_of_optimizer(family: Family, task: Task, lr: float) -> str:
    member = family.member(*family.base, device=task.device)
    groups = member.groups(lr, task.weight_decay, task.adamw_lr)
    return type(driver.optimizer_of(task, family.optimizer, groups)).__name__


def _table(
    runs: list[Row],
    sizes: dict[str, list[int]],
    axis: Axis,
    seeds: int,
    meters: Meters,
    looks: Sequence[int],
    rule: Any,
) -> list[Row]:
    """The rows of one axis, the steps of every meter below each other, and those of every stack of blocks."""
    table, stacks = list[Row](), stacks_of(runs)
    for step in looks:
        for stack in stacks:
            own = of_stack(runs, stack)
            found = rows(own if meters.at is None else after(own, step), sizes, axis, seeds, rule)
            table += [row | ({"stack": stack} if stack else {}) | {"step": step} for row in found]
    return sorted(table, key=lambda row: (METERS.index(row["meter"]), stacks.index(row.get("stack", ""))))


def _looks(at: Sequence[int], steps: int) -> tuple[int, ...]:
    checked = [check_count("at", step) for step in check_several("at", at, "steps")]
    if not checked or checked != sorted(set(checked)):
        raise InputError(f"at must be ascending steps, such as (1, 10, 100); got {checked}.")
    if checked[-1] > steps:
        raise InputError(
            f"at must be within the steps of training, one per batch; got at={checked} and {steps} batches. Give a "
            "batch for every step; they may repeat."
        )
    return tuple(checked)
