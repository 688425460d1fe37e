"""``nfd.solve_nfd``: Definition 1 literally, by the particles of ``nfd.limits.scheme``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.stats import qmc
from torch import Tensor

from nfd.core import activations
from nfd.core.errors import (
    MOST,
    InputError,
    check_choice,
    check_count,
    check_device,
    check_finite,
    check_flag,
    check_numbers,
    check_real,
    check_seed,
)
from nfd.core.machine import bytes_of, undisturbed
from nfd.core.random import derive
from nfd.core.statistics import stderr
from nfd.limits.scheme import Particles, Slope
from nfd.scaling.rules import MAX_ETA_C

_SAMPLINGS = ("sobol", "antithetic", "plain")
_LOSSES: dict[str, Slope] = {
    "mse": lambda f, y: f - y,
    "logistic": lambda f, y: -y / (1 + math.exp(min(y * f, 700.0))),
}


@dataclass(frozen=True)
class Solution:
    """The result of ``nfd.solve_nfd``, a mean over replicates.

    Attributes:
        outputs, outputs_stderr: f^(k) before the update of step k, [K].
        Sigma, Theta: ``E[phi(h_t) phi(h_t)']`` and ``E[g_t g_t']`` at every grid time, [L+1, K, K].
        min_eigenvalues: the smallest eigenvalues of Sigma and Theta, [2, L+1] (Assumption 1), mean over replicates;
            not-a-number if a replicate diverged.
        dropped: how many directions the growing factors dropped, [2, L], summed over replicates: forward, backward.
        diverged_at: the first step at which an output of a replicate diverged, or None. Numbers are not-a-number from
            there on.

    Example::

        s = nfd.solve_nfd(x[:4], [1.0, -1.0, 1.0, -1.0], grid=4, eta_c=0.3, particles=64)
        s.outputs, s.outputs_stderr  # before each of the four steps
    """

    outputs: Tensor
    outputs_stderr: Tensor
    Sigma: Tensor = field(repr=False)
    Theta: Tensor = field(repr=False)
    min_eigenvalues: Tensor = field(repr=False)
    dropped: Tensor = field(repr=False)
    diverged_at: int | None


@undisturbed()
def solve_nfd(
    inputs: Any,
    targets: Any,
    *,
    grid: int = 64,
    horizon: float = 1.0,
    activation: str = "tanh",
    eta_c: float = 0.1,
    loss: str = "mse",
    particles: int = 4096,
    replicates: int = 4,
    seed: int = 0,
    eq5_term: bool = False,
    sampling: str = "sobol",
    memory: str | int = "8 GiB",
    device: torch.device | str = "cpu",
) -> Solution:
    """Solve Neural Feature Dynamics (Definition 1) for online SGD, one sample per step, one output.

    Args:
        inputs: ``[K, d]``; targets: ``[K]``, real for ``loss="mse"``, +1 or -1 for ``"logistic"``.
        grid: L, steps of size tau = T / L.
        horizon: T > 0.
        activation: as in ``nfd.ResNet``.
        eta_c: learning rate.
        loss: ``"mse"``, (f - y)^2 / 2, or ``"logistic"``, log(1 + exp(-y f)).
        particles: M, more than K.
        replicates: independent solutions, for the standard errors.
        seed: of everything random.
        eq5_term: add the terms of order tau^2 that Eq. 5 and Eq. 15 print.
        sampling: how particles draw their Gaussians: ``"sobol"``, u and v from a scrambled low-discrepancy sequence;
            ``"antithetic"``, in pairs that share u and Z and have opposite v and B; ``"plain"``. All are exact in the
            limit of many particles; docs/benchmarks.md has their errors.
        memory: bound on the memory of one replicate.
        device: where particles move, and where the solution is. Their Gaussians are drawn on the CPU, so that the
            device changes numbers by rounding alone.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Definition 1; Appendix F for Eq. 15.

    Example::

        s = nfd.solve_nfd(x[:4], [1.0, -1.0, 1.0, -1.0], grid=4, eta_c=0.3, particles=64)
        print(s.outputs, s.outputs_stderr)
    """
    place = check_device(device)
    x, y = (v.to(place) for v in _samples(inputs, targets, check_choice("loss", loss, _LOSSES)))
    eq5_term, sampling = check_flag("eq5_term", eq5_term), check_choice("sampling", sampling, _SAMPLINGS)
    if sampling == "sobol" and x.shape[1] >= qmc.Sobol.MAXDIM:
        raise InputError(
            f"sampling='sobol' takes up to {qmc.Sobol.MAXDIM - 1} features; got {x.shape[1]}. Use 'plain'."
        )
    particles, grid = check_count("particles", particles), check_count("grid", grid)
    count, seed = check_count("replicates", replicates, minimum=2, maximum=MOST), check_seed(seed)
    if eq5_term and grid < 2:
        raise InputError("eq5_term adds terms between steps, of which grid=1 has none. Raise grid, or leave it out.")
    _check_particles(len(x), grid, particles, eq5_term, memory)
    finished = []
    for index in range(count):
        replicate = Particles(
            x,
            y,
            L=grid,
            T=check_real("horizon", horizon, above=0.0),
            act=activations.activation(activation),
            eta_c=check_real("eta_c", eta_c, least=0.0, below=MAX_ETA_C),
            slope=_LOSSES[loss],
            M=particles,
            seed=derive(seed, "particles", index),
            eq5=eq5_term,
            sampling=sampling,
        )
        replicate.run()
        finished.append(replicate.summary())
    return _mean(finished)


def _mean(finished: Sequence[tuple[Tensor, ...]]) -> Solution:
    """The solution from the summaries of its replicates."""
    outputs, Sigma, Theta, smallest, dropped = (torch.stack(column) for column in zip(*finished, strict=True))
    ends = outputs.isnan().any(0).nonzero()
    return Solution(
        outputs.mean(0),
        stderr(outputs),
        Sigma.mean(0),
        Theta.mean(0),
        smallest.mean(0),
        dropped.sum(0),
        int(ends[0]) if len(ends) else None,
    )


def _samples(inputs: Any, targets: Any, loss: str) -> tuple[Tensor, Tensor]:
    x, y = _numbers("inputs", inputs), _numbers("targets", targets)
    if x.dim() != 2 or 0 in x.shape or y.shape != x.shape[:1]:
        raise InputError(f"inputs must be [K, d] and targets [K]; got {list(x.shape)} and {list(y.shape)}.")
    if loss == "logistic" and not bool((y.abs() == 1).all()):
        raise InputError("targets for loss='logistic' must be +1 or -1.")
    return x, y


def _check_particles(K: int, L: int, M: int, eq5: bool, memory: str | int) -> None:
    """Enough for the covariances of the samples, and not more than memory holds."""
    if K >= M:
        raise InputError(
            f"particles must be more than the {K} samples, whose covariances they estimate; got {M}. Raise "
            "particles, or use nfd.predict(feedback='independent'), whose deferred networks have no such bound."
        )
    needed = _bytes(K, L, M, eq5)
    if needed > bytes_of(memory):
        raise InputError(
            f"{K} samples, {L} grid steps and {M} particles need {needed / 2**30:.2g} GiB, more than "
            f"memory={memory!r}. Raise it, lower particles or grid, or use nfd.predict(feedback='independent'), whose "
            "deferred networks need far less."
        )


def _numbers(argument: str, value: Any) -> Tensor:
    return check_finite(argument, check_numbers(argument, value).double())


def _bytes(K: int, L: int, M: int, eq5: bool) -> int:
    """What one replicate holds."""
    arrays = (3 if eq5 else 2) * (L + 1) + 2 * L
    return 8 * K * (arrays * M + 2 * L * K + 3 * (L + 1) * K)
