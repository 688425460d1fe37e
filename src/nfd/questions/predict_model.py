"""``nfd.predict`` of the user's networks: the losses of an infinitely wide, and if asked infinitely deep, one.

Width: networks of a width n and others, narrower, R of each. The mean losses of both are ``loss + a / n``, which gives
the loss at infinite width and its error (``nfd.limits.loss``). Depth: see ``nfd.limits.depth``; networks of different
widths and depths share nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from nfd.core.ambient import undisturbed
from nfd.core.defaults import BASE_WIDTH, LOSS_RTOL, MEMORY, MODEL_DEPTH, RESOLUTION
from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    check_choice,
    check_count,
    check_depth,
    check_device,
    check_real,
    check_seed,
)
from nfd.core.machine import bytes_of
from nfd.core.names import ModelWeights, NetworkWeights
from nfd.families.constructed import ConstructedFamily, family_of
from nfd.families.family import Family
from nfd.limits.model_cost import ModelCosts
from nfd.limits.prediction import LossPrediction
from nfd.questions.sampled import limit_at, losses_of, resolved, sampling
from nfd.runs.executors.executor import Executor, Inline
from nfd.runs.model_networks import ModelNetworks
from nfd.runs.model_settings import tuned_depth
from nfd.runs.sweep import Sweep
from nfd.scaling.laws import OptimizerLaw, check_optimizer, law_of, names_where
from nfd.scaling.rules import MAX_RATE, check_finite_depth, check_wide_limit
from nfd.scaling.sizes import MakeModel
from nfd.training.recipe import Recipe
from nfd.training.schedule import Schedule
from nfd.training.task import Batch, Task


@undisturbed()
def predict_model(
    *,
    batches: Iterable[Batch],
    make_model: MakeModel | Family,
    depth: float = MODEL_DEPTH,
    rule: str | None = None,
    optimizer: str | OptimizerLaw | None = None,
    lr: float | None = None,
    adamw_lr: float | None = None,
    weight_decay: float = 0.0,
    base_width: int = BASE_WIDTH,
    base_depth: int | None = None,
    width: int | str = "auto",
    weights: str = "auto",
    resolution: float | str | None = None,
    rank: int | None = None,
    replicates: int | None = None,
    rtol: float = LOSS_RTOL,
    memory: str | int = MEMORY,
    seed: int = 0,
    eval_batches: Iterable[Batch] | None = None,
    loss: str | Callable[[Any, Any], Tensor] = "cross-entropy",
    schedule: Schedule | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    version: str | None = None,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    executor: Executor | None = None,
    progress: bool | None = None,
) -> LossPrediction:
    """As ``nfd.predict`` says."""
    start = time.perf_counter()
    depth = check_depth(depth)
    base = (
        check_count("base_width", base_width, maximum=WIDEST),
        check_count("base_depth", tuned_depth(base_depth, depth), maximum=MOST),
    )
    task = Task.of(batches, loss, eval_batches)
    sample = task.batches[0][0]
    chosen = None if optimizer is None else law_of(optimizer).name
    family = _constructed(family_of(make_model, base, rule, chosen, blocks, roles, sample, version))
    law = law_of(family.optimizer)
    if not check_wide_limit(family.rule).has_depth_limit:
        check_finite_depth(family.rule, depth)
    decay = check_real("weight_decay", weight_decay, least=0.0, below=MAX_RATE)
    check_optimizer(law.name, rule=family.rule, weight_decay=decay)
    rate = check_real("lr", law.check_rate if lr is None else lr, least=0.0, below=MAX_RATE)
    rest_rate = law.check_rest_rate(adamw_lr)
    known = None if rank is None else check_count("rank", rank, maximum=WIDEST)
    place = str(check_device(task.device if device is None else device))
    recipe = Recipe(family, task, None, schedule, version)
    costs = ModelCosts(family, task, known)
    wanted = "structured" if weights == "auto" and resolution not in (None, "auto") else weights
    kinds = resolved(_kinds(wanted, costs), wanted, resolution)
    if not law.is_linear:
        _check_whole(resolution, law)
        resolution = None
    if known is not None and kinds == ["dense"]:
        raise InputError(f"rank is of structured matrices, and these are stored; got rank={known}. Drop it.")
    family.check_sizes([base[0], 2 * base[0]], [base[1], 2 * base[1]])
    sampled, seed = sampling(width, replicates, rtol, memory, resolution), check_seed(seed)
    executor = Inline(torch.get_num_threads()) if executor is None else executor
    with Sweep(out, executor, device=place, progress=progress) as sweep:
        default = RESOLUTION if law.is_linear else 0.0
        dropped = default if resolution is None or isinstance(resolution, str) else resolution
        networks = ModelNetworks(recipe, rate, decay, rest_rate, seed, kinds, costs, dropped, bytes_of(memory), sweep)
        sampler = sampled(networks)
        if sampler.width and sampler.narrow_width >= sampler.width:
            raise InputError(
                f"width must be above base_width={family.base[0]}, whose networks show the bias of width; got {width}."
            )
        limit, narrow = limit_at(sampler, depth)
        judged = _same if task.eval_batches else None
        about = f"rule {family.rule!r}, {law.name}, lr = {rate:g}, {task.about}"
        losses = losses_of(about, sampler, limit, narrow, _same, judged, time.perf_counter() - start)
        stored = "" if weights == "dense" or costs.obstacle is None else f"Matrices are stored: {costs.obstacle}"
        return LossPrediction(**losses | {"note": " ".join(filter(None, (*task.notes, losses["note"], stored)))})


def _same(losses: Tensor) -> Tensor:
    return losses


def _check_whole(resolution: float | str | None, law: OptimizerLaw) -> None:
    """ValueError for a resolution under a rule that steps short directions as far as long ones."""
    if resolution not in (None, "auto", 0):
        raise InputError(
            f"resolution is for optimizer={names_where(lambda other: other.is_linear)}; got {resolution!r} for "
            f"{law.name!r}, which steps short directions as far as long ones, so that none may be left out. Drop it."
        )


def _constructed(family: Family) -> ConstructedFamily:
    if not isinstance(family, ConstructedFamily) or family.rate_name != "lr":
        raise InputError(
            f"make_model builds networks of nfd.nets, {family.name}; their limit is that of "
            "nfd.predict(inputs, targets). For several real outputs, write the network as a module of your own "
            "(docs/howto/limit.md)."
        )
    return family


def _kinds(weights: str, costs: ModelCosts) -> list[NetworkWeights]:
    """The ways to hold weights that the caller and the model allow."""
    choice = check_choice("weights", weights, get_args(ModelWeights))
    if choice != "dense" and costs.obstacle is not None:
        if choice == "structured":
            raise InputError(f"weights='structured', which resolution= stands for too, are refused: {costs.obstacle}")
        return ["dense"]
    kinds: list[NetworkWeights] = ["structured", "dense"]
    return [kind for kind in kinds if choice in ("auto", kind)]
