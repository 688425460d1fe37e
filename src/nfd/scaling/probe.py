"""Steps of optimizers on small tensors of our own, never on the user's parameters.

A gradient of rank one, with entries of 1 and -1, stands for the gradients of training: with growing
width their rank stays the rank of a batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.random import global_streams
from nfd.scaling.optimizers import WEIGHT_DECAY

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]

# names of weight decay in groups
DECAYS = (WEIGHT_DECAY.name, "wd")
# learning rate of the steps; an update is what a step subtracts over the rate
RATE = 2.0**-7
# size of the weights: above the floor of 1e-3 below which some optimizers see no weights
START = 2.0**-4
# some skip the first step, and some are linear in the gradient until the sixth
STEPS = 3
LATE = 12
# the two widths
NARROW = 16
WIDE = 64
# Fused queries, keys and values are three times as tall as wide; no other shape has that ratio.
PANEL: tuple[tuple[int, int], ...] = (
    (NARROW, NARROW),
    (WIDE, WIDE),
    (WIDE, NARROW),
    (NARROW, WIDE),
    (3 * NARROW, NARROW),
    (NARROW, 3 * NARROW),
    (3 * WIDE, WIDE),
)
# Newton-Schulz runs in bfloat16, with a unit of 2^-8, for five steps: 2 %, as a test measures.
# What is told apart differs by a factor of 2^1/2 at least.
ALIKE = 0.06


class MeasurementError(InputError):
    """An optimizer has no law that its steps show."""


class UnscalableError(MeasurementError):
    """The steps of an optimizer show that no rates of a plan scale them."""


@dataclass(frozen=True)
class Probe:
    """An optimizer to be made anew for every measurement, never the user's own.

    Attributes:
        make: from parameter groups to an optimizer.
        name: what messages call it.
        dtype: of the parameters; some optimizers keep states only in float32.
    """

    make: Make
    name: str
    dtype: torch.dtype = torch.float64

    def optimizer(
        self, parameters: Sequence[nn.Parameter], rate: float = RATE
    ) -> torch.optim.Optimizer:
        """Make a fresh optimizer of these parameters, without weight decay."""
        optimizer = self.make([{"params": list(parameters), "lr": rate}])
        for group in optimizer.param_groups:
            group["lr"] = rate
            for name in DECAYS:
                if group.get(name):
                    group[name] = 0.0
        # schedule-free optimizers refuse to step before
        to_training = getattr(optimizer, "train", None)
        if callable(to_training):
            to_training()
        return optimizer

    def in_its_precision(self) -> Probe:
        """Return the probe in float64, or in float32 where the optimizer takes nothing else."""
        try:
            self.update(signs(*PANEL[0]))
        # whatever states of another precision raise
        except Exception:
            return replace(self, dtype=torch.float32)
        return self

    def updates(
        self,
        gradients: Sequence[Tensor],
        *,
        rate: float = RATE,
        start: float = START,
        steps: int = STEPS,
        settings: Mapping[str, Any] | None = None,
    ) -> list[Tensor]:
        """Return what the last of some steps subtracts from every tensor, over the rate.

        Args:
            gradients: of the tensors, the same at every step.
            rate, start: the learning rate, and the size of the initial weights.
            settings: of all groups.
        """
        with _quiet_streams(), torch.enable_grad():
            gradients = [gradient.to(self.dtype) for gradient in gradients]
            parameters = [parameter_like(gradient, start) for gradient in gradients]
            optimizer = self.optimizer(parameters, rate)
            for group in optimizer.param_groups:
                group.update(settings or {})
            for _ in range(steps):
                before = [p.detach().clone() for p in parameters]
                _step(optimizer, parameters, gradients)
        return [
            (old - p.detach()).double() / rate for old, p in zip(before, parameters, strict=True)
        ]

    def update(self, gradient: Tensor, **more: Any) -> Tensor:
        """Return what the last of some steps subtracts from one tensor, over the rate."""
        return self.updates([gradient], **more)[0]

    def states(
        self, gradient: Tensor, *, idle: int = 0
    ) -> tuple[torch.optim.Optimizer, dict[str, Tensor]]:
        """Return the optimizer after some steps, and its tensors for one parameter.

        Args:
            gradient: halved from step to step, as some states are of differences of gradients.
            idle: further steps, with a gradient of zero.
        """
        with _quiet_streams(), torch.enable_grad():
            gradient = gradient.to(self.dtype)
            parameter = parameter_like(gradient, START)
            optimizer = self.optimizer([parameter])
            for made in range(STEPS):
                _step(optimizer, [parameter], [gradient * 2.0**-made])
            for _ in range(idle):
                _step(optimizer, [parameter], [torch.zeros_like(gradient)])
        return optimizer, _tensors(optimizer.state[parameter])

    def groups(self, gradient: Tensor) -> list[dict[str, Any]]:
        """Return the groups of a fresh optimizer of one tensor."""
        return self.optimizer([parameter_like(gradient, START)]).param_groups


@contextmanager
def _quiet_streams() -> Iterator[None]:
    """Seed the global random streams, and silence warnings, until the end of the block."""
    with global_streams(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parameter_like(gradient: Tensor, start: float) -> nn.Parameter:
    """Draw normal weights of a size, with the shape and precision of a gradient."""
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
    return nn.Parameter((start * drawn).to(gradient.dtype))


def _step(
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[nn.Parameter],
    gradients: Sequence[Tensor],
) -> None:
    for p, gradient in zip(parameters, gradients, strict=True):
        p.grad = gradient.clone()
    optimizer.step()


def _tensors(state: Any, name: str = "") -> dict[str, Tensor]:
    """List the tensors of a state, also in lists and dicts, by a name."""
    if isinstance(state, Tensor):
        return {name: state.detach().clone()}
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(state, Mapping):
        parts = state.items()
    elif isinstance(state, tuple | list):
        parts = enumerate(state)
    named = dict[str, Tensor]()
    for key, part in parts:
        named |= _tensors(part, f"{name}.{key}".strip("."))
    return named


def signs(*shape: int) -> Tensor:
    """Draw a gradient of rank one with entries of 1 and -1."""
    generator = torch.Generator().manual_seed(len(shape) + sum(shape))
    factors = list[Tensor]()
    for size in shape:
        bits = torch.randint(2, (size,), generator=generator, dtype=torch.float64)
        factors.append(2.0 * bits - 1)
    return torch.outer(*factors) if len(shape) == 2 else factors[0]


def norm(update: Tensor) -> float:
    """Return the largest singular value of a matrix, the length of a vector."""
    return float(torch.linalg.norm(update.double(), 2))


def rms(update: Tensor) -> float:
    """Return the root of the mean square of the entries."""
    return float(update.double().square().mean().sqrt())


def deviation(a: Tensor, b: Tensor) -> float:
    """Return how far two tensors differ, over the size of the second."""
    return rms(a - b) / max(rms(b), 1e-300)
