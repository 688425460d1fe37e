"""``nfd.scaling_law``: the loss law over width and depth, from networks that are trained here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from nfd.core.checks import check_ascending, check_count, check_real
from nfd.core.errors import InputError
from nfd.core.modes import undisturbed
from nfd.core.names import MOST, WIDEST
from nfd.families.family import Family, as_family
from nfd.laws.best_size import Cost, counted
from nfd.laws.loss_law import check_sizes
from nfd.laws.scaling_law import ScalingLaw, judged
from nfd.runs.sweep import Sweep, as_sweep
from nfd.runs.task import Batch, Task, as_task, knows_steps
from nfd.runs.trial import Trial
from nfd.scaling.base import MakeModel
from nfd.scaling.find_law import check_optimizer
from nfd.scaling.rules import MAX_RATE
from nfd.scaling.samples import batch_size

_VARIABLES = ("width", "depth", "tokens")
_SCORES = {"train_loss": "training loss", "test_loss": "test loss"}


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
    """Train networks of every width and depth, and fit a law to their losses.

    It is ``loss(n, L) = floor + a/n + b/L``. The law answers how low the loss of a larger network
    would be (``.at``), and which size is best for a budget (``.best``). The floor is the loss of
    the infinitely large network after the same training. As a test, the largest size is predicted
    from a fit without it. With several ``lengths``, every size is trained over each number of
    steps, and the law has the term ``c/D^beta``, where D (``tokens``) is the number of targets
    seen.

    Example::

        law = nfd.scaling_law(make_model, batches, [8, 16, 32], [1, 2, 4], lr=3e-3)
        print(law)
        print(law.floor)  # the loss of the infinitely large network

    Args:
        family: ``make_model(width, depth)``, or an ``nfd.Family``, under whose rule the best
            learning rate must not depend on size. The base of a plain function is the smallest
            network.
        task: batches, one update for each, or an ``nfd.Task``.
        widths, depths: of the networks; every pair is trained. Three or more of each let the law be
            extrapolated.
        lr: learning rate of the base; by default the rate of ``nfd.check``.
        seeds: of each size, at least 2.
        lengths: numbers of steps, on the first batches; by default one, on all. With several, a
            ``schedule`` must take ``steps``.
        blocks, roles: in place of the family's; as in ``nfd.plan``.
        sweep: where networks are trained and kept.

    Returns:
        A ``ScalingLaw``: ``.floor``, ``.law``, ``.at(width, depth)``, ``.best(parameters=...)`` or
        ``.best(flops=...)``, and ``.table``. Parameters and floating-point operations of every size
        are counted.

    Raises:
        ValueError, TypeError: naming the argument; with too few sizes for a law.
    """
    task = as_task(task)
    widths = check_ascending("widths", widths, WIDEST)
    depths = check_ascending("depths", depths, MOST)
    family = as_family(
        family, (widths[0], depths[0]), sample=task.sample, blocks=blocks, roles=roles
    )
    family.check_sizes(widths, depths)
    count = check_count("seeds", seeds, minimum=2, maximum=MOST)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=task.weight_decay or 0.0)
    if lr is None:
        lr = family.law.default_lr
    rate = check_real("lr", lr, above=0.0, below=MAX_RATE)
    tasks = _tasks(task, lengths)
    trials = dict[tuple[int, int, int], list[Trial]]()
    for part, width, depth in product(tasks, widths, depths):
        trials[width, depth, part.targets] = [
            Trial(family, part, width, depth, seed, rate) for seed in range(count)
        ]
    varying = _varying(trials)
    variables = tuple(_VARIABLES[k] for k in varying)
    # Sizes that make no law are refused before hours of training.
    check_sizes(variables, [_picked(size, varying) for size in trials])
    with as_sweep(sweep) as opened:
        trained = opened.run_all(trials, "sizes")
    losses = dict[tuple[int, ...], list[float]]()
    for size, records in trained.items():
        varied_size = _picked(size, varying)
        losses[varied_size] = [record.metrics.get(task.score, math.inf) for record in records]
    law, held_out = judged(variables, losses, paired=True)
    shorter = "".join(f"{part.steps} or " for part in tasks[:-1])
    about = (
        f"{family.name}, rule {family.rule}, {family.optimizer}, lr = {rate:g}, "
        f"{shorter}{tasks[-1].about}, {count} seeds of each size."
    )
    costs = _costs(family, tasks[-1], widths, depths)
    notes = (*opened.notes(family), *task.notes)
    return ScalingLaw(
        law,
        losses,
        about=about,
        score=_SCORES[task.score],
        costs=costs,
        held_out=held_out,
        notes=notes,
        # Every network trains on the batches of the task, one after another.
        one_order=True,
    )


def _tasks(task: Task, lengths: Sequence[int] | None) -> list[Task]:
    """Return the task on its first batches, for each number of steps; by default on all."""
    if lengths is None:
        return [task.first(task.steps)]
    steps = check_ascending("lengths", lengths, task.steps)
    if steps != [task.steps] and task.schedule is not None and not knows_steps(task.schedule):
        raise InputError(
            "schedule must take steps, how many there are, where they vary: such as lambda step, "
            "steps: 1 - step / steps."
        )
    return [task.first(length) for length in steps]


def _varying(sizes: Iterable[tuple[int, int, int]]) -> list[int]:
    """Return the places of the variables that take more than one value."""
    varying = list[int]()
    for place, values in enumerate(zip(*sizes, strict=True)):
        if len(set(values)) > 1:
            varying.append(place)
    return varying


def _picked(size: tuple[int, int, int], places: Iterable[int]) -> tuple[int, ...]:
    """Return the parts of a size at these places."""
    return tuple(size[place] for place in places)


def _costs(
    family: Family, task: Task, widths: Sequence[int], depths: Sequence[int]
) -> dict[str, Cost]:
    """Count the parameters, and the operations of a training run, of every size."""
    sample = task.batches[0][0]
    samples = sum(batch_size(inputs) for inputs, _ in task.batches)
    parameters = dict[tuple[int, int], int]()
    operations = dict[tuple[int, int], int]()
    for size in product(widths, depths):
        member = family.member(*size, device=task.device)
        parameters[size] = member.parameters
        operations[size] = round(member.operations(sample) * samples)
    costs = {}
    for resource, counts in (("parameters", parameters), ("flops", operations)):
        cost = counted(counts, math.gcd(*widths))
        if cost is not None:
            costs[resource] = cost
    return costs
