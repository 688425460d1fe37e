"""Definition 1 of the paper by interacting particles: training with independent feedback.

M particles carry ``h_t`` and ``g_t``, forward and backward, of every sample seen; expectations are
means over particles. ``^(k)`` marks sample k, on which step k trains. With tau = T / L, Lp_i =
f^(i) - y_i the derivative of the loss, ``s_j = E[phi(h^(j)) phi(h^(k))]``, ``t_j = E[g^(j)
g^(k)]``, sigma and theta the Cholesky factors of their covariances Sigma and Theta, and independent
standard Gaussians Z, B, u (input weights) and v (output weights),

    h_l = h_{l-1} - tau eta_c sum_{i<k} Lp_i s_i g_l^(i) + sqrt(tau) sum_j sigma_kj Z_l^(j)
    g_{l-1} = g_l + phi'(h_{l-1}) [- tau eta_c sum_{i<k} Lp_i t_i phi(h_{l-1}^(i)) + sqrt(tau) sum_j
    theta_kj B_l^(j)]

from ``h_0 = u.x / sqrt(d) - eta_c sum_i Lp_i (x_i.x_k / d) g_0^(i)`` and ``g_T = v - eta_c sum_i
Lp_i h_T^(i)``; the output is ``f = E[g_T h_T]``. Eq. 5 (forward) and Eq. 15 (backward), as printed,
add terms of order tau^2, with ``eq5``. They take products of the layer before, and are left out
where there is none: forward at l = 1, backward at l = L. At a finite tau this is the decoupled
network of depth L and infinite width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.lapack import dtrtrs
from scipy.stats import qmc
from torch import Tensor

from nfd.core import activations
from nfd.core.activations import Activation
from nfd.core.checks import (
    check_count,
    check_detached,
    check_device,
    check_finite,
    check_flag,
    check_numbers,
    check_real,
    check_seed,
)
from nfd.core.errors import InputError
from nfd.core.estimates import stderr
from nfd.core.machine import memory_of
from nfd.core.modes import undisturbed
from nfd.core.names import MOST
from nfd.core.random import derive, generator
from nfd.scaling.rules import MAX_ETA_C

# ---- ``nfd.solve_nfd``


@dataclass(frozen=True)
class Solution:
    """The result of ``nfd.solve_nfd``, a mean over replicates.

    Attributes:
        outputs, outputs_stderr: f^(k) before the update of step k, [K].
        Sigma, Theta: ``E[phi(h_t) phi(h_t)']`` and ``E[g_t g_t']`` at every grid time, [L+1, K, K].
        diverged_at: the first step at which an output of a replicate diverged, or None. Numbers are
            not-a-number from there on.
        probe_outputs, probe_outputs_stderr: outputs for ``probes`` after the last update, [N]; None
            without them. Sigma and Theta then hold the probes after the samples, [L+1, K+N, K+N].

    Example::

        s = nfd.solve_nfd(x[:4], [1.0, -1.0, 1.0, -1.0], grid=4, eta_c=0.3, particles=64)
        s.outputs, s.outputs_stderr  # before each of the four steps
    """

    outputs: Tensor
    outputs_stderr: Tensor
    Sigma: Tensor = field(repr=False)
    Theta: Tensor = field(repr=False)
    diverged_at: int | None
    probe_outputs: Tensor | None = None
    probe_outputs_stderr: Tensor | None = None


def solve_nfd(
    inputs: Any,
    targets: Any,
    *,
    probes: Any = None,
    grid: int = 64,
    horizon: float = 1.0,
    activation: str = "tanh",
    eta_c: float = 0.1,
    particles: int = 4096,
    replicates: int = 4,
    seed: int = 0,
    eq5_term: bool = False,
    device: torch.device | str = "cpu",
) -> Solution:
    """Solve Neural Feature Dynamics (Definition 1) for online SGD on ``(f - y)^2 / 2``.

    Every step takes one sample.

    Args:
        inputs: ``[K, d]``; targets: ``[K]``.
        probes: ``[N, d]``, other inputs, whose outputs after the last update are given too.
        grid: L, steps of size tau = T / L.
        horizon: T > 0.
        activation: as in ``nfd.ResNet``.
        eta_c: learning rate.
        particles: M, more than K + N.
        replicates: independent solutions, for the standard errors.
        seed: of everything random.
        eq5_term: add the terms of order tau^2 that Eq. 5 and Eq. 15 print.
        device: where particles move, and where the solution is. Their Gaussians are drawn on the
            CPU, so that the device changes numbers only by rounding.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Definition 1; Appendix F for Eq. 15.

    Example::

        s = nfd.solve_nfd(x[:4], [1.0, -1.0, 1.0, -1.0], grid=4, eta_c=0.3, particles=64)
        print(s.outputs, s.outputs_stderr)
    """
    check_detached("inputs", inputs)
    check_detached("targets", targets)
    check_detached("probes", probes)
    with undisturbed():
        return _solved(
            inputs,
            targets,
            probes,
            grid=grid,
            horizon=horizon,
            activation=activation,
            eta_c=eta_c,
            particles=particles,
            replicates=replicates,
            seed=seed,
            eq5_term=eq5_term,
            device=device,
        )


def _solved(
    inputs: Any,
    targets: Any,
    probes: Any,
    *,
    grid: int,
    horizon: float,
    activation: str,
    eta_c: float,
    particles: int,
    replicates: int,
    seed: int,
    eq5_term: bool,
    device: torch.device | str,
) -> Solution:
    """Do the work of ``solve_nfd``, inside of ``undisturbed()``."""
    place = check_device(device)
    x, y = _samples(inputs, targets, place)
    trained = len(x)
    if probes is not None:
        x = torch.cat([x, _probes(probes, x)])
        y = torch.cat([y, y.new_zeros(len(x) - trained)])
    eq5_term = check_flag("eq5_term", eq5_term)
    particles = check_count("particles", particles)
    grid = check_count("grid", grid)
    count = check_count("replicates", replicates, minimum=2, maximum=MOST)
    seed = check_seed(seed)
    if eq5_term and grid < 2:
        raise InputError(
            "eq5_term adds terms between steps, of which grid=1 has none. Raise grid, or leave it "
            "out."
        )
    _check_particles(x, particles, grid, eq5_term)
    summaries = []
    for index in range(count):
        replicate = Particles(
            x,
            y,
            trained=trained,
            L=grid,
            T=check_real("horizon", horizon, above=0.0),
            act=activations.activation(activation),
            eta_c=check_real("eta_c", eta_c, least=0.0, below=MAX_ETA_C),
            M=particles,
            seed=derive(seed, "particles", index),
            eq5=eq5_term,
        )
        replicate.run()
        summaries.append(replicate.summary())
    outputs, Sigma, Theta = (torch.stack(column) for column in zip(*summaries, strict=True))
    diverged_steps = outputs.isnan().any(0).nonzero()
    of_probes = outputs[:, trained:]
    return Solution(
        outputs[:, :trained].mean(0),
        stderr(outputs[:, :trained]),
        Sigma.mean(0),
        Theta.mean(0),
        min(trained, int(diverged_steps[0])) if len(diverged_steps) else None,
        None if probes is None else of_probes.mean(0),
        None if probes is None else stderr(of_probes),
    )


def _samples(inputs: Any, targets: Any, place: torch.device) -> tuple[Tensor, Tensor]:
    """Return inputs [K, d] and targets [K], checked, in float64 on a device."""
    x = check_finite("inputs", check_numbers("inputs", inputs).double()).to(place)
    y = check_finite("targets", check_numbers("targets", targets).double()).to(place)
    if x.dim() != 2 or 0 in x.shape or y.shape != x.shape[:1]:
        raise InputError(
            f"inputs must be [K, d] and targets [K]; got {list(x.shape)} and {list(y.shape)}."
        )
    if x.shape[1] >= qmc.Sobol.MAXDIM:
        raise InputError(
            f"inputs may have up to {qmc.Sobol.MAXDIM - 1} features; got {x.shape[1]}. Project "
            "them."
        )
    return x, y


def _probes(probes: Any, x: Tensor) -> Tensor:
    """Return probes [N, d], checked, like inputs x [K, d]."""
    others = check_finite("probes", check_numbers("probes", probes).to(x))
    if others.dim() != 2 or not len(others) or others.shape[1] != x.shape[1]:
        raise InputError(f"probes must be [N, {x.shape[1]}], as inputs; got {list(others.shape)}.")
    return others


def _check_particles(x: Tensor, particles: int, grid: int, eq5_term: bool) -> None:
    """Raise InputError unless particles are more than samples, and fit into memory."""
    K = len(x)
    if particles <= K:
        raise InputError(
            f"particles must be more than the {K} samples, whose covariances they estimate; got "
            f"{particles}. Raise it, or predict nfd.resnets(feedback='independent'), whose "
            "deferred networks have no such bound."
        )
    # By sample and particle: phi, g and, with the term, slopes at grid + 1 times; Z and B at grid.
    arrays = (3 if eq5_term else 2) * (grid + 1) + 2 * grid
    # In bytes of float64, with the two Cholesky factors, and Sigma, Theta and a temporary copy.
    needed = 8 * K * (arrays * particles + 2 * grid * K + 3 * (grid + 1) * K)
    if needed > memory_of(x.device):
        raise InputError(
            f"{K} samples, {grid} grid steps and {particles} particles need {needed / 2**30:.2g} "
            "GiB. Lower one, or predict nfd.resnets(feedback='independent'), whose deferred "
            "networks need far less."
        )


# ---- The scheme of Definition 1: one replicate of the coupled forward-backward SDE


# An output beyond this ends a solution.
_DIVERGED = 1e12


class Particles:
    """One replicate of the coupled forward-backward SDE, by interacting particles."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        *,
        trained: int,
        L: int,
        T: float,
        act: Activation,
        eta_c: float,
        M: int,
        seed: int,
        eq5: bool,
    ) -> None:
        self.x = x
        self.y = y
        # So many samples make an update; those after them are only looked at.
        self.trained = trained
        self.L = L
        self.tau = T / L
        self.act = act
        self.eta_c = eta_c
        self.M = M
        self.seed = seed
        self.eq5 = eq5
        K = len(x)
        self.gram = x @ x.T / x.shape[1]
        # h of the present sample, at every time; h of all samples, only at T.
        self.h = x.new_zeros(L + 1, M)
        self.h_T = x.new_zeros(K, M)
        # Numbers of every sample.
        self.phi = x.new_zeros(L + 1, K, M)
        self.slopes = x.new_zeros(L + 1, K, M) if eq5 else None
        self.g = x.new_zeros(L + 1, K, M)
        self.Z = x.new_zeros(L, K, M)
        self.B = x.new_zeros(L, K, M)
        self.forward = [GrowingCholesky(K) for _ in range(L)]
        self.backward = [GrowingCholesky(K) for _ in range(L)]
        self.diverged_at: int | None = None
        # The derivative of the loss in the output, ``f - y``.
        self.Lp = x.new_zeros(K)
        self.outputs = x.new_zeros(K)
        self.u, self.v = self._ends(x.shape[1])

    def summary(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs, Sigma and Theta; not-a-number from a divergence on."""
        Sigma = self.phi @ self.phi.transpose(1, 2) / self.M
        Theta = self.g @ self.g.transpose(1, 2) / self.M
        if self.diverged_at is not None:
            for C in (Sigma, Theta):
                C[:, self.diverged_at :] = torch.nan
                C[:, :, self.diverged_at :] = torch.nan
        return self.outputs, Sigma, Theta

    def run(self) -> None:
        """Train on one sample after the other, until an output diverges."""
        for k in range(len(self.x)):
            self._forward(k)
            self.g[self.L, k] = self.v - self._drift(k, self.x.new_ones(k), self.h_T)
            self.outputs[k] = (self.g[self.L, k] * self.h[self.L]).mean()
            # Written so that not-a-number diverges too.
            if not abs(float(self.outputs[k])) < _DIVERGED:
                self.outputs[k:] = torch.nan
                self.diverged_at = k
                return
            self.h_T[k] = self.h[self.L]
            if k < self.trained:
                self.Lp[k] = self.outputs[k] - self.y[k]
            self._backward(k)

    def _forward(self, k: int) -> None:
        """Compute h of sample k at every time, from the start to T."""
        initial = self.x[k] @ self.u / math.sqrt(self.x.shape[1])
        self.h[0] = initial - self._drift(k, self.gram[:k, k], self.g[0])
        self._record(0, k)
        products = self.x.new_zeros(0)
        for l in range(1, self.L + 1):  # noqa: E741
            products_before = products
            products = self._products(self.phi[l - 1], k)
            noise = self._noise(self.forward[l - 1], self.Z[l - 1], "Z", l, products, k)
            weights = products[:k]
            if self.slopes is not None and l > 1:
                # The term of order tau^2 in Eq. 5
                slopes = self._products(self.slopes[l - 1], k)[:k]
                weights = weights + self.tau * products_before[:k] * slopes
            drift = self._drift(k, weights, self.g[l])
            self.h[l] = self.h[l - 1] - self.tau * drift + math.sqrt(self.tau) * noise
            self._record(l, k)

    def _backward(self, k: int) -> None:
        """Compute g of sample k at every time, from T back to the start."""
        products = self.x.new_zeros(0)
        for l in range(self.L, 0, -1):  # noqa: E741
            products_before = products
            products = self._products(self.g[l], k)
            noise = self._noise(self.backward[l - 1], self.B[l - 1], "B", l, products, k)
            weights = products[:k]
            if self.slopes is not None and l < self.L:
                # The term of order tau^2 in Eq. 15
                slopes = self._products(self.slopes[l], k)[:k]
                weights = weights + self.tau * products_before[:k] * slopes
            drift = self._drift(k, weights, self.phi[l - 1])
            change = math.sqrt(self.tau) * noise - self.tau * drift
            self.g[l - 1, k] = self.g[l, k] + self.act.slope(self.h[l - 1]) * change

    def _record(self, l: int, k: int) -> None:  # noqa: E741
        """Keep phi(h), and phi'(h) where Eq. 5 needs it, of sample k after layer l."""
        self.phi[l, k] = self.act.phi(self.h[l])
        if self.slopes is not None:
            self.slopes[l, k] = self.act.slope(self.h[l])

    def _products(self, values: Tensor, k: int) -> Tensor:
        """Return the means over particles of ``values[j] * values[k]``, for every j <= k."""
        return values[: k + 1] @ values[k] / self.M

    def _drift(self, k: int, weights: Tensor, vectors: Tensor) -> Tensor:
        """Return ``eta_c sum_{i<k} Lp_i weight_i vector_i``."""
        return (self.eta_c * self.Lp[:k] * weights) @ vectors[:k]

    def _noise(
        self, factor: GrowingCholesky, normals: Tensor, name: str, layer: int, row: Tensor, k: int
    ) -> Tensor:
        """Draw the noise of sample k: Gaussians with covariances ``row`` to the samples up to k.

        It is a combination of independent ``normals``. Where it is not a combination of those of
        earlier samples, new ones are drawn.
        """
        rank_before = len(factor.independent)
        coefficients = factor.extend(row.cpu().numpy()).to(row)
        if len(factor.independent) > rank_before:
            stream = generator(self.seed, "particle", name, layer, k)
            draws = torch.randn(1, self.M, generator=stream, dtype=torch.float64)
            normals[rank_before] = draws[0].to(self.x)
        return coefficients @ normals[: len(coefficients)]

    def _ends(self, d: int) -> tuple[Tensor, Tensor]:
        """Draw the Gaussians of input and output weights, u [d, M] and v [M].

        They come from a scrambled Sobol' sequence: about half the variance of plain draws.
        """
        engine = qmc.Sobol(d + 1, seed=derive(self.seed, "sobol"))
        # The sequence is balanced at lengths that are powers of two, and scipy warns of others:
        # draw the next such length, and take the first M.
        balanced = 1 << (self.M - 1).bit_length()
        uniform = torch.from_numpy(engine.random(balanced)[: self.M]).clamp(1e-12, 1 - 1e-12)
        normals = torch.special.ndtri(uniform).T.contiguous().to(self.x)
        return normals[:d], normals[d]


# ---- The Cholesky factor of a covariance that grows by one variable at a time


# A variable is taken for a combination of earlier ones where they leave less than this share of its
# variance unexplained.
_DROPPED = 1e-8


class GrowingCholesky:
    """Cholesky factor of a growing covariance.

    It has a column for each variable that is not a combination of earlier ones.

    Attributes:
        rows: a row of coefficients for each variable.
        independent: the variables that have a column, in its order.
    """

    def __init__(self, K: int) -> None:
        self.rows = np.zeros((K, K))
        self.independent: list[int] = []

    def extend(self, row: NDArray[np.float64]) -> Tensor:
        """Add a variable, and return its coefficients in all columns.

        ``row`` holds its covariances with the earlier variables, then its variance.
        """
        k = len(row) - 1
        rank = len(self.independent)
        earlier = np.zeros(0)
        if rank:
            # Solve ``triangle @ earlier = covariances``. LAPACK reads arrays by column: it gets the
            # transpose, an upper triangle, and is told to transpose it back.
            triangle = self.rows[self.independent, :rank]
            covariances = row[self.independent]
            earlier = dtrtrs(triangle.T, covariances, lower=0, trans=1)[0]
        unexplained = row[k] - earlier @ earlier
        self.rows[k, :rank] = earlier
        if unexplained > _DROPPED * row[k]:
            self.rows[k, rank] = math.sqrt(unexplained)
            self.independent.append(k)
        return torch.from_numpy(self.rows[k, : len(self.independent)].copy())
