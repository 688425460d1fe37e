"""The law of an optimizer object: by its class, and by measurement where classes of one name scale shapes differently.

Muon's updates have one spectral norm for matrices of every shape, times a factor of the shape that each implementation
chooses. One step on four small matrices with gradients of rank one tells which.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, first_line
from nfd.scaling.laws import OptimizerLaw

SHAPES = ((8, 8), (32, 8), (8, 32), (32, 32))
_ALIKE = 0.1  # of a norm; bfloat16 leaves 1 %, and conventions differ by factors of 2


def law_of_object(optimizer: torch.optim.Optimizer, laws: Sequence[OptimizerLaw]) -> OptimizerLaw:
    """The law that names the class of an optimizer, or the nearest class that it derives from.

    Raises:
        ValueError: where no law does, or its updates follow none of those that do.
    """
    kind = type(optimizer).__name__
    for name in (parent.__name__ for parent in type(optimizer).__mro__):
        fitting = [law for law in laws if name in law.classes]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            norms = update_norms(optimizer)
            return _nearest(fitting, norms, kind)
    raise InputError(
        f"optimizer is a {kind}, of which no law is registered. Pass a name, or nfd.OptimizerLaw(..., "
        f"classes=({kind!r},)) to nfd.register_optimizer."
    )


def update_norms(optimizer: torch.optim.Optimizer) -> list[float]:
    """Largest singular values of the updates of matrices of ``SHAPES``, over that of the first, without decay.

    The optimizer itself, its parameters and its state stay as they are.

    Raises:
        ValueError: where it cannot step a single matrix.
    """
    try:
        norms = [_update_norm(optimizer, rows, columns) for rows, columns in SHAPES]
    except Exception as error:  # whatever the user's optimizer raises: one that needs processes, or other groups
        raise InputError(
            f"optimizer is a {type(optimizer).__name__} that could not step a small matrix, to see how its updates "
            f"follow the shape: {type(error).__name__}: {first_line(error)}. Pass the name of its law instead."
        ) from error
    return [norm / norms[0] for norm in norms]


def step_others(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    params: Sequence[Tensor],
    state: Mapping[Tensor, Mapping[str, Any]],
) -> None:
    """One step of other parameters with the settings of a group; the optimizer, its parameters and states stay.

    Args:
        optimizer: whose rule is applied, without its hooks.
        group: settings; what it has as ``params`` does not count.
        params: with gradients, to be stepped.
        state: of these parameters, to be moved.
    """
    twin = object.__new__(type(optimizer))
    twin.__dict__ = optimizer.__dict__ | {
        "param_groups": [{**group, "params": list(params)}],
        "state": state,
        "_optimizer_step_pre_hooks": OrderedDict(),
        "_optimizer_step_post_hooks": OrderedDict(),
    }
    type(optimizer).step(twin)  # not what a scheduler put in its place


def _update_norm(optimizer: torch.optim.Optimizer, rows: int, columns: int) -> float:
    group = next(g for g in optimizer.param_groups if g.get("use_muon", True))
    matrix = nn.Parameter(torch.zeros(rows, columns))  # zero, so that decay does nothing
    matrix.grad = torch.ones(rows, columns)
    flags = {k: v for k, v in optimizer.state.get(group["params"][0], {}).items() if isinstance(v, bool)}
    step_others(optimizer, {**group, "lr": 1.0}, [matrix], defaultdict(dict, {matrix: flags}))
    update: Tensor = torch.linalg.matrix_norm(matrix.detach(), 2)
    return float(update)


def _nearest(laws: Sequence[OptimizerLaw], norms: Sequence[float], kind: str) -> OptimizerLaw:
    def distance(law: OptimizerLaw) -> float:
        first = law.shape_norm(*SHAPES[0])
        expected = [law.shape_norm(rows, columns) / first for rows, columns in SHAPES]
        return max(abs(math.log(norm / e)) if norm > 0 else math.inf for norm, e in zip(norms, expected, strict=True))

    law = min(laws, key=distance)
    if not distance(law) < _ALIKE:
        shapes = ", ".join(f"{r}x{c}: {norm:.3g}" for (r, c), norm in zip(SHAPES, norms, strict=True))
        raise InputError(
            f"optimizer is a {kind} whose updates follow none of {', '.join(law.name for law in laws)}; their norms "
            f"over the first are {shapes}. Register an nfd.OptimizerLaw with its shape_norm."
        )
    return law
