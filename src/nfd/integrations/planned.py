"""What the callbacks share: whether a trainer steps with the optimizer of a plan, and rows of a watch for loggers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.model import listed
from nfd.scaling.optimizers import SCALE, check_rates, warn_of_lost_ratios
from nfd.scaling.plan import Plan, held_as_planned
from nfd.watch.bands import WatchRow

# ---- Whether what a trainer steps with is the optimizer of a plan


def check_optimizers(plan: Plan, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], remedy: str) -> None:
    """Raise unless the optimizers step the tensors of a model at the rates of its plan; let them warn of lost ratios.

    Args:
        remedy: how the trainer is given the optimizer of a plan.

    Raises:
        ValueError: naming the tensors, or that the groups are not a plan's.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    if not any(SCALE in group for group in groups):
        kinds = " and ".join(type(optimizer).__name__ for optimizer in optimizers) or "trainer"
        raise InputError(f"The {kinds} steps every tensor at one rate: it has no groups of the plan. {remedy}")
    own = {id(p): group.get(SCALE) for group in groups for p in group["params"]}
    planned = {id(p): group[SCALE] for group in plan.param_groups(model, lr=1.0) for p in group["params"]}
    names = {id(held.parameters[0]): name for name, held in held_as_planned(model, plan.entries).items()}
    left_out = [name for key, name in names.items() if key in planned and key not in own]
    if left_out:
        raise InputError(
            f"The optimizer does not step {listed(left_out)}: it was made for another model, or before these were to "
            f"train. {remedy}"
        )
    others = [name for key, name in names.items() if key in planned and not _alike(own[key], planned[key])]
    if others:
        raise InputError(f"The optimizer has the rates of another plan for {listed(others)}. {remedy}")
    for optimizer in optimizers:
        check_rates(optimizer)
        warn_of_lost_ratios(optimizer)


def _alike(scale: float | None, planned: float) -> bool:
    return scale is not None and math.isclose(scale, planned, rel_tol=1e-6)


# ---- Rows of a watch for loggers: names, and writers for TensorBoard and Weights & Biases


def tag(row: WatchRow) -> str:
    """``nfd/meter``, and of one layer ``nfd/meter/layer``."""
    return "/".join(["nfd", row.meter, *([] if row.layer is None else [row.layer])])


def of_network(rows: Iterable[WatchRow]) -> dict[str, float]:
    """The meters of the whole network, by name."""
    return {tag(row): row.value for row in rows if row.layer is None}


def to_tensorboard(rows: Iterable[WatchRow], writer: Any) -> None:
    """Write the rows of a watch to TensorBoard: one scalar per meter and layer, at its step.

    Args:
        rows: of ``watch.step()`` or ``watch.rows``. writer: a ``torch.utils.tensorboard.SummaryWriter``.
    """
    for row in rows:
        writer.add_scalar(tag(row), row.value, row.step)


def to_wandb(rows: Sequence[WatchRow], run: Any) -> None:
    """Log the rows of a watch to Weights & Biases, at their steps. These must not precede steps logged before.

    Args:
        rows: of ``watch.step()`` or ``watch.rows``. run: of ``wandb.init``.
    """
    for step, of_step in itertools.groupby(rows, attrgetter("step")):
        run.log({tag(row): row.value for row in of_step}, step=step)
