"""``nfd.capacity``: the law of size of your networks, and the best size for a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.errors import check_ascending, check_real
from nfd.families.family import Family
from nfd.questions.against import Variation
from nfd.questions.capacity import Capacity
from nfd.questions.costs import Cost, Costs, Resource, counted
from nfd.questions.ladder import Ladder, ladder_of
from nfd.questions.law import Losses
from nfd.questions.law_fit import check_sizes
from nfd.questions.trusted import judged_law
from nfd.questions.variations import varied
from nfd.runs.executors.executor import Executor
from nfd.runs.sweep import Sweep
from nfd.runs.trials import Trial
from nfd.scaling.calls import batch_size
from nfd.scaling.laws import OptimizerLaw, law_of
from nfd.scaling.rules import MAX_RATE
from nfd.scaling.sizes import MakeModel
from nfd.store.rows import Record
from nfd.training.recipe import MakeOptimizer
from nfd.training.schedule import Schedule
from nfd.training.task import Batch, Task

_SCORES = {"train_loss": "training loss", "test_loss": "test loss"}


@undisturbed()
def capacity(
    make_model: MakeModel | Family,
    widths: Sequence[int],
    depths: Sequence[int],
    batches: Iterable[Batch],
    *,
    rule: str | None = None,
    optimizer: str | OptimizerLaw | None = None,
    lr: float | None = None,
    seeds: int = 3,
    eval_batches: Iterable[Batch] | None = None,
    out: str | Path | None = None,
    executor: Executor | None = None,
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
    weight_decay: float = 0.0,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    schedule: Schedule | None = None,
    make_optimizer: MakeOptimizer | None = None,
    version: str | None = None,
    lengths: Sequence[int] | None = None,
    progress: bool | None = None,
    device: torch.device | str | None = None,
) -> Capacity:
    """Train networks of every width and depth, and fit ``loss(n, L) = floor + a/n + b/L`` to their losses.

    The law answers how low the loss of a larger network would be (``.at``), and which size is best for a budget
    (``.best``). The floor is the loss of the infinitely large network after the same training. As a test, the largest
    size is predicted from a fit without it.

    With several ``lengths``, every size is trained over each number of steps. The law is then
    ``floor + a/n + b/L + c/D^beta``, where D (``tokens``) is the number of targets seen. It is fitted to the sizes from
    which it holds and predicts the largest one.

    Args:
        make_model: ``make_model(width, depth)``, or a family (``nfd.families``).
        widths, depths: of the networks, ascending; every pair is trained. The smallest of each is the base of the plan.
            A law that may be extrapolated needs three or more of each.
        batches: (inputs, targets), one update for each: a list, or a loader; or dicts, as in ``nfd.check``, where
            the targets are ``labels``.
        rule, optimizer, blocks, roles: as in ``nfd.plan``, with its defaults; a family has its own. Under the rule the
            best rate must not depend on size.
        lr: learning rate of the base; by default that of ``nfd.check``.
        seeds: of each size, at least 2.
        eval_batches: batches whose mean loss is fitted; by default the mean training loss over the last tenth of the
            steps.
        lengths: numbers of steps, ascending, on the first batches; by default one, on all. With several, a ``schedule``
            must take ``steps``.
        out, executor, loss, weight_decay, schedule, make_optimizer, version, progress, device: as in ``nfd.transfer``.

    Returns:
        A ``Capacity``: ``.floor``, ``.law``, ``.at(width, depth)``, ``.best(parameters=...)``, ``.best(flops=...)``
        or ``.best(seconds=...)``, and ``.table``. Parameters and floating-point operations of every size are counted.

    Raises:
        ValueError, TypeError: naming the argument; with too few sizes for a law.
        RuntimeError: naming the line of your code at which a network cannot be trained.

    Example::

        capacity = nfd.capacity(make_model, [8, 16, 32], [1, 2, 4], batches, rule="complete-p", lr=3e-3)
        print(capacity)
        print(capacity.floor)  # the loss of the infinitely large network
    """
    ladder = ladder_of(
        make_model,
        widths,
        depths,
        batches,
        [rule],
        optimizer=optimizer,
        seeds=seeds,
        eval_batches=eval_batches,
        loss=loss,
        weight_decay=weight_decay,
        blocks=blocks,
        roles=roles,
        schedule=schedule,
        make_optimizer=make_optimizer,
        version=version,
        device=device,
    )
    family = ladder.recipe.family
    rate = law_of(family.optimizer).check_rate if lr is None else check_real("lr", lr, above=0.0, below=MAX_RATE)
    ladders = _of_lengths(ladder, lengths)
    if len(ladders) == 1:
        check_sizes(ladder.sizes)  # before hours of training
    trials = _trials(ladders, rate)
    with Sweep(out, executor, device=ladder.device, progress=progress) as sweep:
        trained = sweep.run_all(trials, "sizes")
    losses = {size: [r.metrics.get(ladder.score, math.inf) for r in records] for size, records in trained.items()}
    *earlier, longest = (of_length.recipe.task for of_length in ladders.values())
    costs = _costs(family, ladder.sizes, longest)
    also = "".join(f"{task.steps} or " for task in earlier)
    return Capacity(
        **_fitted(losses),
        about=f"{family.name}, rule {family.rule}, {family.optimizer}, {family.rate_name} = {rate:g}, "
        f"{also}{longest.about}, {seeds} seeds of each size.",
        score=_SCORES[ladder.score],
        costs=costs,
        lr=rate,
        rate_name=family.rate_name,
        speed=_speed(costs, trained),
        notes=tuple(dict.fromkeys(note for of_length in ladders.values() for note in of_length.notes)),
    )


def _of_lengths(ladder: Ladder, lengths: Sequence[int] | None) -> dict[int, Ladder]:
    """The networks over each length of training, by the targets that they see."""
    steps = ladder.recipe.task.steps
    several = [steps] if lengths is None else check_ascending("lengths", lengths, steps)
    ladders = [ladder if several == [steps] else varied(ladder, Variation("steps", length)) for length in several]
    return {of_length.recipe.task.targets: of_length for of_length in ladders}


def _trials(ladders: Mapping[int, Ladder], rate: float) -> dict[tuple[int, ...], list[Trial]]:
    """The networks of every width and depth, and of every length where there are several."""
    return {
        (*size, tokens) if len(ladders) > 1 else size: ladder.trials(rule, size, [rate], range(ladder.seeds))
        for tokens, ladder in ladders.items()
        for rule in ladder.recipes
        for size in ladder.sizes
    }


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
    members = {size: family.build(*size, 0, device=task.device) for size in sizes}
    counts: dict[Resource, dict[tuple[int, int], int]] = {
        "parameters": {size: member.parameters for size, member in members.items()},
        "flops": {size: round(member.operations(sample) * samples) for size, member in members.items()},
    }
    costs: dict[Resource, Cost] = {resource: cost for resource, of in counts.items() if (cost := counted(of))}
    return Costs(costs, math.gcd(*(n for n, _ in sizes)))
