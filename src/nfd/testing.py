"""Tests of what users describe to the library.

``check_law`` steps an optimizer to see whether its law is true.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.scaling.find_law import law_of
from nfd.scaling.measured import measure
from nfd.scaling.measurement import Measurement
from nfd.scaling.optimizers import Hyperparameter, OptimizerLaw, law_by_class
from nfd.scaling.probe import DECAYS, PANEL, Probe, signs
from nfd.scaling.remake import probes_of

__all__ = ["LawError", "Measurement", "check_law"]

# Running means agree within this share: rounding of float32 in a few steps is 1e-6.
_ALIKE = 1e-3


class LawError(InputError, AssertionError):
    """A law of an optimizer says what its steps do not show; the message names the claims."""


def check_law(
    law: str | OptimizerLaw | torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
    make: Callable[..., torch.optim.Optimizer] | None = None,
) -> Measurement:
    """Step an optimizer on small matrices, and raise unless its law is true.

    Returns what was measured. Steps show the ``degree`` of an update in the gradient; whether its
    entries are normalised one by one or a matrix as a whole (``unit``, ``vector_unit``), or in
    parts; how its largest singular value follows the shape (``shape_norm``); whether ``epsilon``
    acts beside the entries of the gradient; whether weight decay is ``decoupled``; ``states``;
    whether vectors are stepped (``rest``); ``equivariant``; whether the ``hyperparameters`` are in
    the groups, and running means have the shares of the past that they name.

    They do not show what only long training does, such as estimates of a distance or of curvature,
    nor what methods beside ``step`` change. Gradients are of rank one, as a batch's are of low rank
    in a wide network: an optimizer that acts otherwise at full rank is judged by what it does at
    low rank.

    Args:
        law: the law, or its name. An optimizer object, its class or a function that makes it is
            only measured, as there is nothing to compare, unless an object's class has a law. The
            object itself is never stepped.
        make: what makes the optimizer from groups, if the law does not say.

    Raises:
        nfd.testing.LawError: an ``AssertionError`` that names every claim that is false, and what
            was measured.
        ValueError: if the optimizer cannot be made or stepped, or no law fits it (updates that
            follow the weights, other tensors, or no power of the gradient).

    Example::

        law = nfd.OptimizerLaw(
            "my-adamw", lambda groups: torch.optim.AdamW(groups), epsilon=True, states=2
        )
        print(nfd.testing.check_law(law))
    """
    if isinstance(law, str):
        law = law_of(law)
    if isinstance(law, OptimizerLaw):
        stepped_law = law
        if make is not None:
            stepped_law = replace(law, make=make)
        constructor = stepped_law.constructor()
        measurement = measure(constructor)
        _check(law, measurement, probes_of(constructor)[0])
        return measurement
    measurement = measure(law)
    # An object may be of a class that has a law.
    law_of_class = law_by_class(law) if hasattr(law, "param_groups") else None
    if law_of_class is not None:
        _check(law_of_class, measurement, probes_of(law)[0])
    return measurement


def _check(law: OptimizerLaw, measurement: Measurement, probe: Probe) -> None:
    """Raise unless a measurement agrees with a law."""
    false = measurement.false_claims(law)
    if law.states != measurement.states:
        false.append(
            f"states is {law.states}; measured {measurement.states} numbers per parameter."
        )
    if law.classes and measurement.name not in law.classes:
        false.append(f"classes are {', '.join(law.classes)}; measured was {measurement.name}.")
    false += _false_hyperparameters(law, probe)
    if false:
        raise LawError(
            f"The law {law.name!r} is not the law of the {measurement.name}: {' '.join(false)}"
        )


def _false_hyperparameters(law: OptimizerLaw, probe: Probe) -> list[str]:
    """List what a law says of settings that groups lack, or that are not running means."""
    probe = probe.in_its_precision()
    gradient = signs(*PANEL[0])
    # The first idle step still has a difference to the last gradient.
    optimizer, before = probe.states(gradient, idle=1)
    _, after = probe.states(gradient, idle=2)
    pasts = _pasts(before, after)
    false = list[str]()
    for setting in law.settings:
        values = [group[setting.name] for group in optimizer.param_groups if setting.name in group]
        if values:
            false += _false_averages(setting, values[0], pasts)
        elif law.hyperparameters is not None:
            false.append(f"hyperparameters: groups have no {setting.name!r}.")
    if law.hyperparameters is None:
        return false
    named = {setting.name for setting in law.settings}
    unnamed = [name for name in DECAYS if name in optimizer.param_groups[0] and name not in named]
    if unnamed:
        false.append(f"hyperparameters: groups have {unnamed[0]!r}, which the law does not name.")
    return false


def _false_averages(setting: Hyperparameter, value: Any, pasts: list[float]) -> list[str]:
    """List the running means that a setting is said to follow and the optimizer does not keep."""
    false = list[str]()
    averages = _averages(setting)
    numbers = [value]
    if isinstance(value, tuple | list):
        numbers = list(value)
    if len(averages) > len(numbers):
        false.append(
            f"hyperparameters: {setting.name} has {len(numbers)} numbers; the law says what "
            f"{len(averages)} follow."
        )
    for number, follows in zip(numbers, averages, strict=False):
        if follows is None:
            continue
        if not any(abs(past - number) < _ALIKE * max(number, _ALIKE) for past in pasts):
            false.append(
                f"hyperparameters: {setting.name} has {number!r}, which follows {follows!r}; "
                "measured: the optimizer keeps no running mean with this share of the past."
            )
    return false


def _averages(setting: Hyperparameter) -> list[str | None]:
    """Name the running means that the numbers of a setting follow; None for other numbers."""
    follows = setting.follows
    if not isinstance(follows, tuple):
        follows = (follows,)
    return [mean if mean in ("beta1", "beta2") else None for mean in follows]


def _pasts(before: dict[str, Tensor], after: dict[str, Tensor]) -> list[float]:
    """Measure by how much a step without a gradient shrinks each state."""
    pasts = list[float]()
    for name, state in before.items():
        size = float(state.double().norm())
        if name in after and state.numel() > 1 and size:
            pasts.append(float(after[name].double().norm()) / size)
    return pasts
