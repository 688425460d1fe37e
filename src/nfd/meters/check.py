"""``nfd.check``: train a family's networks for a few steps over widths and depths, and say what scales wrongly."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nfd.core.ambient import gradients
from nfd.core.defaults import SEEDS
from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    check_ascending,
    check_count,
    check_device,
    check_flag,
    check_real,
    check_several,
)
from nfd.core.progress import bar
from nfd.core.tables import Row
from nfd.families.constructed import family_of
from nfd.families.family import Family
from nfd.meters.batch_noise import samples_of_a_part
from nfd.meters.job import Job
from nfd.meters.looks import after, growth
from nfd.meters.outcome import Check, failures_of
from nfd.meters.running import all_runs
from nfd.meters.table import METERS, rows
from nfd.meters.verdict import AXES, Axis
from nfd.scaling.laws import check_optimizer, law_of, rate_for
from nfd.scaling.rules import MAX_RATE
from nfd.scaling.sizes import MakeModel
from nfd.training.recipe import MakeOptimizer, Recipe
from nfd.training.schedule import Schedule
from nfd.training.task import Task


@gradients()
def check(
    make_model: MakeModel | Family,
    widths: Sequence[int],
    depths: Sequence[int],
    batches: Sequence[tuple[Any, Any]],
    rule: str | None = None,
    optimizer: str | None = None,
    eta_c: float | None = None,
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
    seeds: int = SEEDS,
    *,
    lr: float | None = None,
    at: Sequence[int] | None = None,
    schedule: Schedule | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    weight_decay: float = 0.0,
    adamw_lr: float | None = None,
    make_optimizer: MakeOptimizer | None = None,
    gia: bool = False,
    noise: bool = False,
    device: torch.device | str | None = None,
    progress: bool = False,
) -> Check:
    """Check how the training of a model depends on its width and depth, by small networks and log-log slopes.

    The base of every plan is the smallest width and depth; networks of ``nfd.nets`` have their own, width 1 and depth
    1, so that ``eta_c`` is the paper's. Meters, after the last step and on the inputs of the first batch: those of
    ``nfd.meters.updates``; ``gradient``, rms of dLoss/dh entering the first block over that leaving the last, at the
    start; ``loss``, of the last batch before its update; ``gia_gap`` if ``gia``, the absolute
    difference of the losses of the standard and the decoupled network, over the progress of the standard one since the
    start, all on the first batch.

    With ``at`` every meter is read after each of these steps, ``gradient`` and ``loss`` before its update, and
    ``alignment`` is among them. Training ends with the last of these steps.

    An ambient ``torch.autocast`` does not reach the networks, which would be trained inside of one context and so be
    evaluated with the casts of their first weights; put yours into the model's ``forward``.

    Args:
        make_model: ``make_model(width, depth)``, or a family (``nfd.families``).
        widths, depths: of the networks, every pair; one value where that axis is not of interest.
        batches: (inputs, targets), one per step. Inputs: a tensor, a tuple of arguments or a dict of keyword arguments.
        rule, optimizer: as in ``nfd.plan``; by default the family's, for a constructor ``"depth-mup"`` and ``"sgd"``.
            ``"sgd"``, ``"adam"`` and ``"adamw"`` are built here.
        blocks, roles: as in ``nfd.plan``, for a constructor.
        lr: the base's learning rate; by default 0.1 for sgd, 0.001 for others.
        eta_c: the same, as the paper calls it where the base is the network of width 1 and depth 1.
        loss: ``"cross-entropy"`` (class ids; any leading dimensions), ``"mse"``, or a function of what the model
            returns and the targets.
        seeds: initialisations of each network, at least 2.
        at: steps to look after, ascending, such as (1, 10, 100); by default the last one.
        schedule: a function from the step, 0 for the first, to a factor on every rate, or from an optimizer to a
            scheduler of PyTorch.
        weight_decay: the base's.
        adamw_lr: the base's rate of what Muon leaves to AdamW; ``lr`` where None.
        make_optimizer: from parameter groups to an optimizer, for ones that PyTorch does not have.
        gia: train the decoupled twin too (networks of ``nfd.nets`` with feedback="shared").
        noise: estimate the noise scale of gradients after the last step, on the batches, which must be of one size:
            ``Check.noise``.
        device: where models and batches are moved to; None leaves them where ``make_model`` and you put them.
        progress: show a bar on a terminal.

    Returns:
        verdicts: ``STABLE``, ``COLLAPSES``, ``GROWS``, ``UNCERTAIN`` or ``NOT MEASURED`` per meter and axis
        (``nfd.meters.verdict``), from slopes pooled over seeds and sizes of the other axis, with 95 % intervals.

    Raises:
        ValueError, TypeError: naming the argument; also where two seeds give the same network, as intervals come from
            how seeds differ.

    Source: Eqs. 7, 8, 27, 33, 34; Yang et al., Tensor Programs V (coordinate checks).

    Example::

        check = nfd.check(make_model, [32, 64], [2, 4], batches, rule="complete-p", optimizer="adamw", lr=3e-3)
        print(check)  # per meter: exponent, verdict, cause and remedy
        if not check.ok:
            print(check.failures)
    """
    sizes = {"width": check_ascending("widths", widths, WIDEST), "depth": check_ascending("depths", depths, MOST)}
    if all(len(s) < 2 for s in sizes.values()):
        raise InputError(f"widths or depths must hold two sizes or more; got {list(widths)} and {list(depths)}.")
    place = None if device is None else check_device(device)
    task = Task.of(batches, loss)
    task = task if place is None else task.on(place)
    base = min(sizes["width"]), min(sizes["depth"])
    family = family_of(make_model, base, rule, optimizer, blocks, roles, task.batches[0][0])
    weight_decay = check_real("weight_decay", weight_decay, least=0.0, below=MAX_RATE)
    check_optimizer(family.optimizer, rule=family.rule, weight_decay=weight_decay)
    lr = _rate(family.optimizer, lr, eta_c)
    if at is not None:
        at = _looks(at, task.steps)
        task = replace(task, batches=task.batches[: at[-1]])
    recipe = Recipe(family, task, make_optimizer, schedule)
    if check_flag("noise", noise):
        samples_of_a_part(task.batches)
    rest_rate = law_of(family.optimizer).check_rest_rate(adamw_lr)
    job = Job(
        recipe,
        lr,
        weight_decay,
        check_flag("gia", gia),
        place,
        recipe.factors(lr),
        at,
        rest_rate,
        noise,
    )
    seeds = check_count("seeds", seeds, minimum=2, maximum=MOST)
    family.check_sizes(sizes["width"], sizes["depth"])
    wanted = [(w, d, s) for w in sizes["width"] for d in sizes["depth"] for s in range(seeds)]
    with bar("checking", enabled=progress) as shown:
        runs, draws = all_runs(job, wanted, shown)
    table = [row for axis in AXES for row in _table(runs, sizes, axis, seeds, job)]
    names = (family.rule, family.optimizer, family.rate_name)
    return Check(table, runs, failures_of(runs), *names, lr, job.looks, seeds, growth(runs, job.looks), draws)


def _table(runs: list[Row], sizes: dict[str, list[int]], axis: Axis, seeds: int, job: Job) -> list[Row]:
    """The rows of one axis, the steps of every meter below each other."""
    rule, seen = job.recipe.family.rule, {step: runs if job.at is None else after(runs, step) for step in job.looks}
    table = [row | {"step": step} for step in seen for row in rows(seen[step], sizes, axis, seeds, rule)]
    return sorted(table, key=lambda row: METERS.index(row["meter"]))


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


def _rate(optimizer: str, lr: float | None, eta_c: float | None) -> float:
    if lr is not None and eta_c is not None:
        raise InputError(f"lr and eta_c name one rate; got lr={lr!r} and eta_c={eta_c!r}. Drop one.")
    name, rate = ("eta_c", eta_c) if lr is None and eta_c is not None else ("lr", lr)
    return check_real(name, rate_for(optimizer, rate), above=0.0, below=MAX_RATE)
