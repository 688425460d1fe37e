"""``nfd.check``: train a family's networks for a few steps over widths and depths, and say what scales wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
from nfd.meters.looks import after, growth, of_stack, stacks_of
from nfd.meters.outcome import Check, failures_of
from nfd.meters.running import all_runs
from nfd.meters.table import METERS, rows
from nfd.meters.verdict import AXES, Axis
from nfd.scaling.laws import check_optimizer, law_of, rate_for
from nfd.scaling.rules import MAX_RATE
from nfd.scaling.sizes import MakeModel
from nfd.training.blame import blaming_the_model
from nfd.training.recipe import MakeOptimizer, Recipe
from nfd.training.schedule import Schedule
from nfd.training.task import Batch, Task


@gradients()
def check(
    make_model: MakeModel | Family,
    widths: Sequence[int],
    depths: Sequence[int],
    batches: Iterable[Batch],
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
    progress: bool | None = None,
) -> Check:
    """Check whether the training of a model depends on its width and depth.

    Small networks of every width and depth are trained for a few steps. Meters of their updates are then fitted by a
    power of the width and of the depth. A meter is ``STABLE`` if its exponent is near 0. It ``GROWS`` if larger
    networks need a lower rate, and ``COLLAPSES`` if a part of them stops learning. Every verdict comes with a 95 %
    interval, the size of the change, a cause and a remedy. Over sizes that span a factor of 8 and with three seeds, few
    checks of sound models find a fault, and few of broken ones find none (docs/verdicts.md).

    Meters are read on the inputs of the first batch, after the last step:

    - the updates of ``nfd.meters.updates``, such as ``inner_update`` and ``function_update``;
    - ``gradient``: the RMS of dLoss/dh before the first block over that behind the last, before training, at positions
      where the stream is not zero, as it is at a padding id;
    - ``loss``: of the last batch, before its update;
    - ``gia_gap``, with ``gia``: the absolute difference between the losses of the standard and the decoupled network,
      over the progress of the standard one.

    Of several stacks of blocks, such as an encoder and a decoder, each is measured and judged by itself. Only
    ``function_update``, ``function_update_inner``, ``loss`` and ``alignment`` are of the whole network.

    With ``at``, meters are read after each of these steps, and ``alignment`` is added; training ends with the last of
    them. ``gradient`` and ``loss`` are read before the update of the step.

    The smallest width and depth are the base of every plan. Networks of ``nfd.nets`` have the base of width 1 and depth
    1, so that their rate is the paper's ``eta_c``. A ``torch.autocast`` around this call has no effect: put yours into
    the model's ``forward``.

    Args:
        make_model: ``make_model(width, depth)``, or a family (``nfd.families``).
        widths, depths: of the networks; every pair is trained. Give one value for an axis that you do not check.
        batches: (inputs, targets), one per step: a list, or a loader. Inputs: a tensor, a tuple of arguments or a dict
            of keyword arguments. A batch that is a dict alone, as those of Hugging Face with ``input_ids`` and
            ``labels``, is passed to the model by keyword, and the default loss is the one that the model returns
            (``output.loss``, ``output["loss"]``). The same holds for ``(inputs, None)``.
        rule, optimizer: as in ``nfd.plan``, with its defaults; those of a family are its own.
        blocks, roles: as in ``nfd.plan``, for a constructor.
        lr: learning rate of the base; by default 0.1 for SGD, 0.001 for others.
        eta_c: the same for the paper's networks, whose base has width 1 and depth 1.
        loss: ``"cross-entropy"`` (class ids, -100 for those that do not count; any leading dimensions); ``"mse"``, the
            mean of ``(f - y)**2 / 2`` over the batch and all outputs, half of ``F.mse_loss``; or a function of
            the model's output and the targets, which are None for a dict.
        seeds: initialisations of each network, at least 2.
        at: steps after which to read the meters, ascending, such as (1, 10, 100); by default the last step.
        schedule: a function from the step (0 for the first) to a factor on every rate, or from an optimizer to a
            PyTorch scheduler.
        weight_decay: of the base.
        adamw_lr: under Muon, the base's rate of the tensors that AdamW trains; ``lr`` if None.
        make_optimizer: a function from parameter groups to an optimizer, for optimizers that PyTorch does not have.
        gia: also train the decoupled twin (networks of ``nfd.nets`` with feedback="shared").
        noise: also estimate the noise scale of gradients after the last step (``Check.noise``). All batches must have
            the same size.
        device: where models and batches are moved; None leaves them where they are.
        progress: a bar when stderr is a terminal, by default. True also prints a line every half minute where it is
            none; False shows nothing.

    Returns:
        A ``Check``: print it for the table. Verdicts per meter and axis are ``STABLE``, ``COLLAPSES``, ``GROWS``,
        ``LIMIT`` (the function's update falls with width no faster than in sound networks), ``UNCERTAIN`` or
        ``NOT MEASURED`` (``nfd.meters.verdict``). Slopes are pooled over seeds and the sizes of the other axis.

    Raises:
        ValueError, TypeError: naming the argument; also if two seeds give the same network, since intervals come from
            differences between seeds.

    Source: Eqs. 7, 8, 27, 33, 34; Yang et al., Tensor Programs V (coordinate checks).

    Of a language model of Hugging Face::

        loader = DataLoader(dataset, batch_size=16)  # of dicts with input_ids and labels
        batches = list(itertools.islice(loader, 5))
        check = nfd.check(make_gpt, [32, 64], [2, 4], batches, rule="complete-p", optimizer="adamw", lr=3e-3)

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
    made = "" if make_optimizer is None else _class_of_optimizer(job, *base)
    wanted = [(w, d, s) for w in sizes["width"] for d in sizes["depth"] for s in range(seeds)]
    with bar("checking", enabled=progress) as shown:
        runs, draws = all_runs(job, wanted, shown)
    table = [row for axis in AXES for row in _table(runs, sizes, axis, seeds, job)]
    names = (family.rule, family.optimizer, family.rate_name)
    grown = growth(runs, job.looks)
    failures = failures_of(runs)
    return Check(table, runs, failures, *names, lr, job.looks, seeds, task.about, grown, draws, task.copies, made)


def _class_of_optimizer(job: Job, width: int, depth: int) -> str:
    with blaming_the_model(width, depth, job.batches[0]):
        groups = job.built(width, depth, seed=0).member.groups(job.lr, job.weight_decay, job.adamw_lr)
    return type(job.recipe.optimizer(groups)).__name__


def _table(runs: list[Row], sizes: dict[str, list[int]], axis: Axis, seeds: int, job: Job) -> list[Row]:
    """The rows of one axis, the steps of every meter below each other, and those of every stack of blocks."""
    rule, table, stacks = job.recipe.family.rule, list[Row](), stacks_of(runs)
    for step in job.looks:
        for stack in stacks:
            own = of_stack(runs, stack)
            found = rows(own if job.at is None else after(own, step), sizes, axis, seeds, rule)
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


def _rate(optimizer: str, lr: float | None, eta_c: float | None) -> float:
    if lr is not None and eta_c is not None:
        raise InputError(f"lr and eta_c name one rate; got lr={lr!r} and eta_c={eta_c!r}. Drop one.")
    name, rate = ("eta_c", eta_c) if lr is None and eta_c is not None else ("lr", lr)
    return check_real(name, rate_for(optimizer, rate), above=0.0, below=MAX_RATE)
