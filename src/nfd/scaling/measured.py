"""The law of an optimizer that nobody described, from the size and shape of its steps.

Stepping small matrices shows how an update answers the size of a gradient, whether entries are
normalised one by one or a matrix as a whole or in parts, how the largest singular value of the
update follows the shape, and what epsilon and weight decay act on. It does not show what only long
training does: how a distance or a preconditioner that is estimated on the way ends up, or what
other methods than ``step`` change.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError, in_brief
from nfd.scaling.measurement import (
    AT_ANY_RATE,
    DEGREE,
    OF_GRADIENT,
    OF_WEIGHTS,
    MeasuredShape,
    Measurement,
    are_proportional,
    unit_norm,
)
from nfd.scaling.optimizers import (
    EACH_ENTRY,
    EPS,
    LAWS,
    OF_THE_LIBRARY,
    WEIGHT_DECAY,
    WHOLE_MATRIX,
    OptimizerLaw,
    any_shape,
    register_optimizer,
)
from nfd.scaling.probe import (
    ALIKE,
    DECAYS,
    LATE,
    NARROW,
    PANEL,
    RATE,
    START,
    STEPS,
    WIDE,
    MeasurementError,
    Probe,
    UnscalableError,
    deviation,
    norm,
    parameter_like,
    rms,
    signs,
)
from nfd.scaling.remake import probes_of
from nfd.scaling.rules import Power

# decades over which rows grow: rounding of the largest must not be seen beside the smallest
_SPAN = 1.5


def measure(optimizer: Any) -> Measurement:
    """Measure what the steps of an optimizer show.

    Optimizers like it step matrices and vectors of our own, of two widths; the user's is not
    stepped.

    Args:
        optimizer: an object, its class, or a function from groups that makes it.

    Raises:
        ValueError: if it cannot be made or stepped, or if its updates have no size that a plan can
            scale: they follow the weights, other tensors, or no power of the gradient.
    """
    probe, vectors = probes_of(optimizer)
    try:
        return _measured(probe, vectors)
    except InputError:
        raise
    except Exception as error:
        raise MeasurementError(
            f"optimizer is a {probe.name}, which could not be stepped on a matrix: "
            f"{type(error).__name__}: {in_brief(error)}. Pass its law, nfd.OptimizerLaw."
        ) from error


def _measured(probe: Probe, vectors: Probe | None) -> Measurement:
    gradient = signs(*PANEL[0])
    probe = probe.in_its_precision()
    update = probe.update(gradient)
    if not bool(update.isfinite().all()) or rms(update) == 0:
        raise MeasurementError(
            f"{probe.name} does not move a matrix whose gradient is not zero. Pass its law."
        )
    degree = _degree(probe, gradient)
    _check_scalable(probe, gradient, update)
    norms = {shape: norm(probe.update(signs(*shape))) for shape in PANEL}
    growth = math.log(norms[WIDE, WIDE] / norms[NARROW, NARROW]) / math.log(WIDE / NARROW)
    is_local = _is_local(probe)
    unit = EACH_ENTRY if is_local or abs(growth - 1) < ALIKE else WHOLE_MATRIX
    shape_norm: Callable[[float, float], float] = MeasuredShape(probe, unit, growth, dict(norms))
    sizes = [value / unit_norm(unit, *shape) for shape, value in norms.items()]
    if unit == EACH_ENTRY and are_proportional(sizes, [1.0] * len(sizes)):
        shape_norm = any_shape
    return Measurement(
        name=probe.name,
        degree=degree,
        unit=unit,
        vector_unit=None if vectors is None else _vector_unit(replace(vectors, dtype=probe.dtype)),
        norms=norms,
        parts={} if is_local else {shape: _parts(probe, shape) for shape in PANEL},
        epsilon=_has_epsilon(probe),
        decay=_decay(probe, gradient),
        states=_states(probe),
        equivariant=_is_equivariant(probe),
        decay_name=_decay_name(probe),
        shape_norm=shape_norm,
    )


def _degree(probe: Probe, gradient: Tensor) -> float:
    """Find the power with which updates follow the gradient, rounded to a near quarter.

    It must be one power at an early and a late step, for larger and smaller gradients.
    """
    degrees = dict[tuple[int, float], float]()
    for steps in (STEPS, LATE):
        at_one = rms(probe.update(gradient, steps=steps))
        for times in (2.0**6, 2.0**-6):
            scaled = rms(probe.update(times * gradient, steps=steps))
            if min(scaled, at_one) == 0:
                raise MeasurementError(
                    f"{probe.name} does not move a matrix at every size of the gradient. Pass its "
                    "law."
                )
            degrees[steps, times] = math.log(scaled / at_one) / math.log(times)
    values = list(degrees.values())
    if max(values) - min(values) > 2 * DEGREE:
        degrees_in_words = ", ".join(
            f"{value:.2g} at step {k} for gradients {times:g} times as large"
            for (k, times), value in degrees.items()
        )
        raise UnscalableError(
            f"optimizer is a {probe.name}, whose updates are no one power of the gradient, as "
            "under clipping or a warm-up of its own: for gradients so many times as large, "
            f"{degrees_in_words}. Switch that off, or pass its law, nfd.OptimizerLaw."
        )
    middle = sum(values) / len(values)
    quarters = round(middle * 4)
    return quarters / 4 if abs(middle * 4 - quarters) < 4 * DEGREE else middle


def _check_scalable(probe: Probe, gradient: Tensor, update: Tensor) -> None:
    """Raise ValueError where no learning rate of a plan scales the updates.

    They follow the weights, other tensors or not the rate, or a state is never filled.
    """
    what = f"optimizer is a {probe.name}, whose updates"
    larger = rms(probe.update(gradient, start=8 * START)) / rms(update)
    if abs(larger - 1) > ALIKE:
        raise UnscalableError(
            f"{what} follow the size of the weights (a trust ratio, as of LAMB and LARS, or "
            f"relative steps, as of Adafactor): weights 8 times as large give updates {larger:.3g} "
            "times as large. Weights grow in training, and may start at zero, so no rate of a plan "
            "keeps such updates in proportion. Switch it off, or use the optimizer without it."
        )
    _, beside = probe.updates([1000 * signs(*PANEL[0]).flip(0), gradient])
    if deviation(beside, update) > ALIKE:
        raise UnscalableError(
            f"{what} of one tensor follow the gradient of another, as under a norm over all "
            "tensors: a plan has a rate for every tensor by itself. Switch that off, or pass its "
            "law, nfd.OptimizerLaw."
        )
    if deviation(probe.update(gradient, rate=RATE / 4), update) > ALIKE:
        raise UnscalableError(
            f"{what} are not proportional to lr of the groups, by which a plan scales them. Pass "
            "its law, nfd.OptimizerLaw, if a scale of lr is enough."
        )
    optimizer, states = probe.states(gradient)
    for name, state in states.items():
        if state.shape == gradient.shape and not bool(state.any()):
            raise MeasurementError(
                f"optimizer is a {type(optimizer).__name__}, whose state {name!r} is not filled "
                "by step (as a Hessian is by another method): stepping does not show its updates, "
                "nor whether a law of it is true. Unless it has a law, pass one, nfd.OptimizerLaw."
            )


def _is_local(probe: Probe) -> bool:
    """Whether an entry of the update follows only this entry of the gradient."""
    gradient = signs(*PANEL[0])
    with_one_larger = gradient.clone()
    with_one_larger[0, 0] *= 64
    before = probe.update(gradient)
    after = probe.update(with_one_larger)
    before[0, 0] = 0
    after[0, 0] = 0
    return deviation(after, before) < ALIKE


def _parts(probe: Probe, shape: tuple[int, int]) -> int:
    """Count the parts, each normalised by itself, into which a matrix falls.

    In a gradient of rank one with rows of growing size, every part of the update is the gradient's
    times a constant, one over the size of the part.
    """
    count = 1
    for axis, size in enumerate(shape):
        growing = torch.logspace(0, _SPAN, size, dtype=torch.float64)
        gradient = signs(*shape) * (growing[:, None] if axis == 0 else growing)
        ratios = (probe.update(gradient) / gradient).abs().mean(1 - axis)
        if not bool((ratios > 0).all()):
            return 1
        logs = ratios.log().sort().values
        # neighbours of an interleaved part differ by the growth of one row
        apart = 0.5 * _SPAN * math.log(10) / size
        gaps = logs.diff() > max(apart, math.log1p(ALIKE) / 2)
        count *= 1 + int(gaps.sum())
    return count


def _vector_unit(probe: Probe) -> Power | None:
    """Find the unit of updates of vectors; None if they are not stepped."""
    try:
        narrow = rms(probe.update(signs(NARROW)))
        wide = rms(probe.update(signs(WIDE)))
    # whatever an optimizer of matrices raises
    except Exception:
        return None
    if min(narrow, wide) == 0:
        return None
    power = math.log(wide / narrow) / math.log(WIDE / NARROW)
    if abs(power) < ALIKE:
        return EACH_ENTRY
    if abs(power + 0.5) < ALIKE:
        return WHOLE_MATRIX
    raise MeasurementError(
        f"optimizer is a {probe.name}, whose updates of vectors have entries that grow as the "
        f"power {power:.2g} of their length; known are 0 and -1/2. Pass its law, nfd.OptimizerLaw."
    )


def _has_epsilon(probe: Probe) -> bool:
    """Whether ``eps`` acts beside the entries of the gradient, at every width alike."""
    shrinks = list[float]()
    for size in (NARROW, WIDE):
        gradient = signs(size, size)
        if any(not isinstance(group.get(EPS.name), float) for group in probe.groups(gradient)):
            return False
        without = rms(probe.update(gradient, settings={EPS.name: 1e-12}))
        with_one = rms(probe.update(gradient, settings={EPS.name: 1.0}))
        shrinks.append(with_one / without)
    narrow, wide = shrinks
    return narrow < 1 - 2 * ALIKE and abs(wide / narrow - 1) < ALIKE


def _decay_name(probe: Probe) -> str:
    """Return what groups call weight decay."""
    groups = probe.groups(signs(*PANEL[0]))
    for name in DECAYS:
        if all(name in group for group in groups):
            return name
    return WEIGHT_DECAY.name


def _decay(probe: Probe, gradient: Tensor) -> str | None:
    """Find what weight decay acts on; None where groups have none or it does nothing."""
    name = _decay_name(probe)
    if any(group.get(name) is None for group in probe.groups(gradient)):
        return None
    strength = 0.5
    # a sign shows a decay that is larger than the gradient
    gradient = 2.0**-10 * gradient
    # Some decay the weights after their update, which must be small beside them then.
    rate = RATE / 16
    # some leave the first step out
    for steps in (1, STEPS):
        settings = {name: 0.0}
        without = probe.update(gradient, settings=settings, steps=steps, rate=rate)
        settings = {name: strength}
        change = probe.update(gradient, settings=settings, steps=steps, rate=rate) - without
        if bool(change.any()):
            break
    else:
        return None
    expected = strength * parameter_like(gradient, START).detach()
    if deviation(change, expected) < ALIKE:
        return OF_WEIGHTS
    if deviation(change * rate, expected) < ALIKE:
        return AT_ANY_RATE
    return OF_GRADIENT


def _states(probe: Probe) -> int:
    """Count the numbers that are stored per parameter of a square matrix."""
    gradient = signs(WIDE, WIDE)
    _, states = probe.states(gradient)
    sizes = [state.numel() for state in states.values() if state.numel() > 1]
    return round(sum(sizes) / gradient.numel())


def _is_equivariant(probe: Probe) -> bool:
    """Whether ``U(P G Q') = P U(G) Q'`` for orthonormal P and Q and a gradient of full rank."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(3, NARROW, NARROW, generator=generator, dtype=torch.float64)
    left, right, gradient = drawn
    P = torch.linalg.qr(left).Q
    Q = torch.linalg.qr(right).Q
    turned = probe.update(P @ gradient @ Q.T)
    return deviation(turned, P @ probe.update(gradient) @ Q.T) < 2 * ALIKE


def decouples(optimizer: torch.optim.Optimizer) -> bool | None:
    """Whether weight decay acts on the weights directly; None where stepping does not show it."""
    try:
        probe, _ = probes_of(optimizer)
        decay = _decay(probe.in_its_precision(), signs(*PANEL[0]))
    # whatever an optimizer that cannot be made anew raises
    except Exception:
        return None
    return None if decay is None else decay != OF_GRADIENT


def law_by_steps(optimizer: torch.optim.Optimizer) -> OptimizerLaw | None:
    """Return the law that the steps of an optimizer show, unregistered; None if not steppable.

    Raises:
        UnscalableError: where its steps show that no rates of a plan scale them.
    """
    try:
        measurement = measure(optimizer)
    except UnscalableError:
        raise
    # Whatever an optimizer that cannot be made anew raises.
    except Exception:
        return None
    return measurement.law(_name_of(measurement))


def measured_law(optimizer: Any) -> OptimizerLaw:
    """Measure the law of an optimizer, and register it under the optimizer's name.

    An object that steps as a law of the library says has that law, and so has the class that the
    law makes.

    Args:
        optimizer: an object, its class, or a function from groups that makes it.
    """
    measurement = measure(optimizer)
    is_object = hasattr(optimizer, "param_groups") and not isinstance(optimizer, type)
    for law in OF_THE_LIBRARY:
        if (is_object or _is_pytorchs_class(optimizer, law)) and measurement.fits(law):
            return law
    make = None if is_object else optimizer
    return _registered(measurement.law(_name_of(measurement), make))


def _name_of(measurement: Measurement) -> str:
    """Write the name of a class as names of laws are written, such as ``my-adam``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", measurement.name).lower()


def _is_pytorchs_class(optimizer: Any, law: OptimizerLaw) -> bool:
    """Whether it is the class of PyTorch that a law of the library describes."""
    return (
        isinstance(optimizer, type)
        # Muon says "torch.optim" of itself, other classes "torch.optim.adamw" and the like.
        and f"{optimizer.__module__}.".startswith("torch.optim.")
        and optimizer.__name__ in law.classes
    )


def _registered(law: OptimizerLaw) -> OptimizerLaw:
    """Register the law under its name, or with a number where another law has the name."""
    name = law.name
    number = 1
    while name in LAWS and replace(LAWS[name], make=law.make, name=law.name) != law:
        number += 1
        name = f"{law.name}-{number}"
    return register_optimizer(replace(law, name=name), replace=True)
