"""``nfd.transfer``: whether the best learning rate of a small network is that of a large one, for your model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.errors import InputError, check_choice, check_flag, check_real, check_several
from nfd.families.family import Family
from nfd.questions.against import SettingAxis, Variation
from nfd.questions.best_rates import SCORES, Asked, Networks, Place, best_rates
from nfd.questions.ladder import Ladder, ladder_of
from nfd.questions.levels import initial_scale
from nfd.questions.optimum import LEARNT
from nfd.questions.transfer import Transfer
from nfd.questions.variations import axes_of, ladders_of, varied
from nfd.runs.executors.executor import Executor
from nfd.runs.fields import rates
from nfd.runs.run import Run
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.scaling.calls import evaluating
from nfd.scaling.laws import OptimizerLaw, law_of
from nfd.scaling.rules import MAX_RATE, RULES
from nfd.scaling.sizes import MakeModel
from nfd.store.rows import Record
from nfd.training.blame import blaming_the_model
from nfd.training.losses import classes_last
from nfd.training.recipe import MakeOptimizer, Recipe
from nfd.training.schedule import Schedule
from nfd.training.task import Batch

_OCTAVES = 3  # doublings that the first grid reaches to either side of the optimizer's usual rate


@undisturbed()
def transfer(
    make_model: MakeModel | Family,
    widths: Sequence[int],
    depths: Sequence[int],
    batches: Iterable[Batch],
    *,
    rules: Sequence[str] | None = None,
    optimizer: str | OptimizerLaw | None = None,
    lr: Sequence[float] | None = None,
    seeds: int = 3,
    eval_batches: Iterable[Batch] | None = None,
    out: str | Path | None = None,
    executor: Executor | None = None,
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
    weight_decay: float = 0.0,
    adamw_lr: float | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    schedule: Schedule | None = None,
    make_optimizer: MakeOptimizer | None = None,
    version: str | None = None,
    axes: Mapping[str, Sequence[float]] | None = None,
    halving: bool = False,
    progress: bool | None = None,
    device: torch.device | str | None = None,
) -> Transfer:
    """Find the best learning rate at every width and depth, and what tuning on a small network costs.

    Every network is trained on the batches at every rate and from every seed. If the best rate lies at an end of the
    grid, more rates are added. Then the largest network is trained from ``2 seeds`` new seeds, at the smallest
    network's best rate and at its own. The difference of the two losses is the regret. The smallest network is trained
    from new seeds as well, so that losses can be compared: ``Transfer.warnings`` says where another rule is better at
    the largest size, where the largest network is no better than the smallest, and where initial weights are far from
    fan-in scaling.

    With ``axes`` the best rate is also found at every value of other settings, one setting at a time:
    ``axes={"batch_size": (16, 32, 64), "weight_decay": (0.0, 0.01, 0.1)}``. Each axis gets an exponent, which is
    compared with the one that is usually assumed. One size is then enough.

    Progress is the fall of the loss from log C, that of a uniform guess, for ``loss="cross-entropy"``. For other
    losses, which must not be negative, it is the fall from the mean loss of untrained networks. A network that diverges
    has made no progress.

    Args:
        make_model: ``make_model(width, depth)``, or a family (``nfd.families``).
        widths, depths: of the networks, ascending; every pair is trained. The smallest of each is the base of every
            plan. Two sizes or more, unless there are ``axes``.
        batches: (inputs, targets), one update for each: a list, or a loader. Inputs: a tensor, a tuple of arguments or
            a dict of keyword arguments. A batch that is a dict alone is passed to the model by keyword, and the model
            returns its loss (``nfd.check``).
        rules: to compare, as in ``nfd.plan``; by default ``"standard"``, which leaves your model as it is, beside the
            default of ``nfd.plan``. A family has its own rule; networks of ``nfd.nets`` are compared with no other.
        optimizer: as in ``nfd.plan``, with its default. ``"muon"`` trains matrices in blocks; AdamW trains the rest
            at the same rate, or at ``adamw_lr``.
        lr: rates of the base to begin with: three or more, in any order. By default from an eighth to eight times the
            default rate of ``nfd.check``. If the best one lies at an end, more are added.
        seeds: of every network, at least 2; a verdict needs 3.
        eval_batches: batches whose mean loss judges the rates; by default the mean training loss over the last tenth of
            the steps.
        out: directory that stores every run, so that the same call continues after a stop; None stores nothing.
        executor: where networks are trained, such as ``nfd.runs.executors.processes.Processes()``. By default one after
            the other in this process.
        loss: ``"cross-entropy"`` (class ids, -100 for those that do not count; any leading dimensions); ``"mse"``, the
            mean of ``(f - y)**2 / 2`` over the batch and all outputs, half of ``F.mse_loss``; or a function of
            the model's output and the targets.
        weight_decay, adamw_lr: of the base.
        blocks, roles: as in ``nfd.plan``, for a constructor.
        schedule: a function from the step to a factor on every rate, or from an optimizer to a PyTorch scheduler. If it
            has a second argument ``steps``, that is the number of steps.
        make_optimizer: a function from parameter groups to an optimizer, in place of PyTorch's.
        version: a text that you change whenever your code changes. Needed only if the code draws its own random numbers
            or does not run in double precision; otherwise changes are detected from what the code computes.
        axes: setting to ascending values. ``"weight_decay"``; ``"batch_size"``, the same samples in batches of another
            size; ``"steps"``, the first batches; ``"warmup"``, the share of the steps over which rates rise linearly;
            ``"init_scale"``, a factor on the initial weights of every matrix; ``"adamw_lr"``, under Muon. If the number
            of steps varies, a ``schedule`` must take ``steps``.
        halving: choose rates by short trainings first (``nfd.questions.halving``). It needs less training in all, but
            fewer trainings can run at the same time.
        progress: a bar when stderr is a terminal, by default. True also prints a line every half minute where it is
            none; False shows nothing.
        device: where networks are trained; by default the device of the batches.

    Returns:
        A ``Transfer``: ``best(rule, width, depth)``, ``loss(rule, width, depth)``, ``drift(rule, axis)``,
        ``regret(rule)``, ``verdict(rule)`` and ``warnings``. With axes also ``best(rule, width, depth, batch_size=32)``
        and the exponent ``drift(rule, "batch_size")``.

    Raises:
        ValueError, TypeError: naming the argument.
        RuntimeError: naming the line of your code at which a network cannot be trained.

    Source: Yang et al., Tensor Programs V; Dey et al., CompleteP.

    Example::

        answer = nfd.transfer(make_model, [16, 32], [2], batches, rules=("complete-p",), lr=(1e-3, 3e-3, 9e-3))
        print(answer)
        print(answer.best("complete-p", 16, 2), answer.regret("complete-p"))
    """
    if rules is not None:
        checked = [check_choice("rules", rule, RULES) for rule in check_several("rules", rules, "names")]
        if len({*checked}) < max(1, len(checked)):
            raise InputError(f"rules must be one or more different names; got {list(rules)}.")
    ladder = ladder_of(
        make_model,
        widths,
        depths,
        batches,
        rules,
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
    if adamw_lr is not None:
        ladder = varied(ladder, Variation("adamw_lr", adamw_lr))
    varying = axes_of(axes, ladder)
    if len(ladder.sizes) < 2 and not varying:
        raise InputError(
            f"widths and depths must make two sizes or more, or one with axes, such as batch_size; got {list(widths)} "
            f"and {list(depths)}."
        )
    grid = _grid(lr, ladder.recipe.family.optimizer)
    networks = _Trials(ladder, grid, varying, check_flag("halving", halving))
    with Sweep(out, executor, device=ladder.device, progress=progress) as sweep:
        found = best_rates(networks, sweep)
    return replace(found, notes=ladder.notes, initial_scale=initial_scale(ladder.recipe.family))


class _Trials(Networks):
    def __init__(self, ladder: Ladder, lr: Sequence[float], axes: Sequence[SettingAxis], halving: bool) -> None:
        recipe, self.ladders = ladder.recipe, ladders_of(axes, ladder)
        self.classes = _classes(recipe) if recipe.task.loss == "cross-entropy" else None
        lost = "log C" if self.classes else "an untrained one"
        about = (
            f"{recipe.family.name}, {recipe.family.optimizer}, {recipe.task.about}, {ladder.seeds} seeds; best by "
            f"{SCORES[ladder.score]}; a network that diverged counts as {lost}."
        )
        rate_name = recipe.family.rate_name
        self.asked = Asked(list(ladder.recipes), ladder.sizes, lr, rate_name, ladder.score, about, axes, halving)

    def runs(self, place: Place, rates: Sequence[float], *, new: bool = False) -> list[RunConfig | Run]:
        ladder = self.ladders[place.variation]
        S = ladder.seeds
        return [*ladder.trials(place.rule, place.size, rates, range(S, 3 * S) if new else range(S))]

    def short_runs(self, place: Place, rates: Sequence[float], share: float) -> list[RunConfig | Run]:
        ladder = self.ladders[place.variation]
        stop = max(1, round(share * ladder.recipe.task.steps))
        return [*ladder.trials(place.rule, place.size, rates, range(1), stop)]

    def reference(self, records: Sequence[Record]) -> tuple[float, float]:
        """log C, or the mean loss of the untrained networks; refuses losses that cannot be compared."""
        losses = [record.metrics[self.asked.score] for record in records]
        if min(losses) < 0:
            raise InputError(
                f"loss must not be negative, as its logarithm is taken; it fell to {min(losses):.4g}. Add a constant."
            )
        _check_seeds(records)
        if self.classes is not None:
            return math.log(self.classes), LEARNT
        first = [record.metrics["first_loss"] for record in records]
        guess = math.fsum(first) / len(first)
        return guess, LEARNT * guess


def _check_seeds(records: Sequence[Record]) -> None:
    """Refuse networks that are the same for every seed."""
    losses: dict[int, list[float]] = {}
    for record in records:
        losses.setdefault(record.config["seed"], []).extend(record.metrics.values())
    seeds: dict[tuple[float, ...], int] = {}
    for seed, own in losses.items():
        other = seeds.setdefault(tuple(own), seed)
        if other != seed and any(record.status == "done" for record in records):
            width, depth = (records[0].config[name] for name in ("width", "depth"))
            raise InputError(
                f"make_model({width}, {depth}) gives the same losses for seeds {other} and {seed}, but intervals come "
                "from differences between seeds. Draw from the global streams of PyTorch, NumPy or Python, which are "
                "seeded here."
            )


def _classes(recipe: Recipe) -> int:
    """C: how many outputs the networks have."""
    family, (x, y) = recipe.family, recipe.task.batches[0]
    with blaming_the_model(*family.base, (x, y)):
        member = family.build(*family.base, 0, device=recipe.task.device)
        with torch.no_grad(), evaluating(member.module):
            return classes_last(member(x), y).shape[-1]


def _grid(lr: Sequence[float] | None, optimizer: str) -> Sequence[float]:
    usual = law_of(optimizer).check_rate
    given = [usual * 2.0**k for k in range(-_OCTAVES, _OCTAVES + 1)] if lr is None else lr
    checked = [check_real("lr", rate, above=0.0, below=MAX_RATE) for rate in check_several("lr", given, "rates")]
    try:
        return rates(checked)
    except InputError as error:
        raise InputError(f"lr {error}") from None
