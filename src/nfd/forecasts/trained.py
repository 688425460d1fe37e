"""``nfd.scaling_law``: how the loss of a family falls with width and depth, and the best size for a budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from nfd.core.errors import MOST, WIDEST, InputError, check_ascending, check_count, check_real
from nfd.core.machine import undisturbed
from nfd.families.family import Family, as_family
from nfd.forecasts.budget import Cost, Costs, Resource, counted
from nfd.forecasts.law import Losses, check_sizes
from nfd.forecasts.scaling_law import Capacity, judged_law
from nfd.runs.sweep import Sweep
from nfd.runs.trial import Trial
from nfd.scaling.entries import MakeModel
from nfd.scaling.model import batch_size
from nfd.scaling.optimizers import check_optimizer
from nfd.scaling.rules import MAX_RATE
from nfd.store import Record
from nfd.training.schedule import knows_steps
from nfd.training.task import Batch, Task, as_task

_SCORES = {"train_loss": "training loss", "test_loss": "test loss"}
SEEDS = 4


@undisturbed()
def scaling_law(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    widths: Sequence[int],
    depths: Sequence[int],
    lr: float | None = None,
    *,
    seeds: int = SEEDS,
    lengths: Sequence[int] | None = None,
    sweep: Sweep | None = None,
) -> Capacity:
    """Train networks of every width and depth, and fit ``loss(n, L) = floor + a/n + b/L`` to their losses.

    The law answers how low the loss of a larger network would be (``.at``), and which size is best for a budget
    (``.best``). The floor is the loss of the infinitely large network after the same training. As a test, the largest
    size is predicted from a fit without it.

    With several ``lengths``, every size is trained over each number of steps. The law is then
    ``floor + a/n + b/L + c/D^beta``, where D (``tokens``) is the number of targets seen. It is fitted to the sizes from
    which it holds and predicts the largest one.

    Example::

        law = nfd.scaling_law(make_model, batches, [8, 16, 32], [1, 2, 4], lr=3e-3)
        print(law)
        print(law.floor)  # the loss of the infinitely large network

    Args:
        family: ``make_model(width, depth)``, or an ``nfd.Family``, under whose rule the best rate must not depend on
            size. The base of a plain function is the smallest network.
        task: batches, one update for each, or an ``nfd.Task``.
        widths, depths: of the networks; every pair is trained. A law that may be extrapolated needs three or more of
            each.
        lr: learning rate of the base; by default that of ``nfd.check``.
        seeds: of each size, at least 2.
        lengths: numbers of steps, on the first batches; by default one, on all. With several, a ``schedule`` must take
            ``steps``.
        sweep: where networks are trained and kept.

    Returns:
        A ``Capacity``: ``.floor``, ``.law``, ``.at(width, depth)``, ``.best(parameters=...)``, ``.best(flops=...)``
        or ``.best(seconds=...)``, and ``.table``. Parameters and floating-point operations of every size are counted.

    Raises:
        ValueError, TypeError: naming the argument; with too few sizes for a law.
        RuntimeError: naming the line of your code at which a network cannot be trained.
    """
    task = as_task(task)
    widths, depths = check_ascending("widths", widths, WIDEST), check_ascending("depths", depths, MOST)
    family = as_family(family, (widths[0], depths[0]), sample=task.sample)
    family.check_sizes(widths, depths)
    count = check_count("seeds", seeds, minimum=2, maximum=MOST)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=task.weight_decay)
    rate = check_real("lr", family.law.default_lr if lr is None else lr, above=0.0, below=MAX_RATE)
    tasks, sizes = _of_lengths(task, lengths), [(n, L) for n in widths for L in depths]
    if len(tasks) == 1:
        check_sizes(sizes)  # before hours of training
    trials = {
        (*size, tokens) if len(tasks) > 1 else size: [Trial(family, own, *size, seed, rate) for seed in range(count)]
        for tokens, own in tasks.items()
        for size in sizes
    }
    with sweep or Sweep() as opened:
        trained = opened.run_all(trials, "sizes")
    losses = {size: [r.metrics.get(task.score, math.inf) for r in records] for size, records in trained.items()}
    *earlier, longest = tasks.values()
    costs = _costs(family, sizes, longest)
    also = "".join(f"{own.steps} or " for own in earlier)
    return Capacity(
        **_fitted(losses),
        about=f"{family.name}, rule {family.rule}, {family.optimizer}, lr = {rate:g}, {also}{longest.about}, {count} "
        "seeds of each size.",
        score=_SCORES[task.score],
        costs=costs,
        lr=rate,
        speed=_speed(costs, trained),
        notes=task.notes,
    )


def _of_lengths(task: Task, lengths: Sequence[int] | None) -> dict[int, Task]:
    """The task over each length of training, by the targets that are seen."""
    several = [task.steps] if lengths is None else check_ascending("lengths", lengths, task.steps)
    if several != [task.steps] and task.schedule is not None and not knows_steps(task.schedule):
        raise InputError(
            "schedule must take steps, how many there are, where they vary: such as lambda step, steps: 1 - step / "
            "steps."
        )
    tasks = [task.first(length) for length in several]
    return {own.targets: own for own in tasks}


def _speed(costs: Costs, trained: Mapping[Any, Sequence[Record]]) -> float:
    """Operations per second of the median training of the largest network; not-a-number where either is not known."""
    largest = max(trained)
    seconds = median(record.seconds for record in trained[largest])
    known = "flops" in costs.by_resource and seconds > 0
    return costs.cost("flops").at(*largest[:2]) / seconds if known else math.nan


def _fitted(losses: Losses) -> dict[str, Any]:
    """The law of what varies, and what holds it to account."""
    varying = [place for place, sizes in enumerate(zip(*losses, strict=True)) if len({*sizes}) > 1]
    variables = tuple(("width", "depth", "tokens")[place] for place in varying)
    return judged_law(
        variables, {tuple(size[place] for place in varying): own for size, own in losses.items()}, paired=True
    )


def _costs(family: Family, sizes: Sequence[tuple[int, int]], task: Task) -> Costs:
    """The parameters of every size, and the operations of its training."""
    sample, samples = task.batches[0][0], sum(batch_size(inputs) for inputs, _ in task.batches)
    members = {size: family.member(*size, device=task.device) for size in sizes}
    counts: dict[Resource, dict[tuple[int, int], int]] = {
        "parameters": {size: member.parameters for size, member in members.items()},
        "flops": {size: round(member.operations(sample) * samples) for size, member in members.items()},
    }
    costs: dict[Resource, Cost] = {resource: cost for resource, of in counts.items() if (cost := counted(of))}
    return Costs(costs, math.gcd(*(n for n, _ in sizes)))
