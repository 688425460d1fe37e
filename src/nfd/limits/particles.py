"""Definition 1 of the paper by interacting particles: training with independent feedback.

M particles carry ``h_t`` and ``g_t``, forward and backward, of every sample seen; expectations are
means over particles. ``^(k)`` marks sample k, on which step k trains. With tau = T / L, Lp_i the
derivative of the loss in the output f^(i) (``f^(i) - y_i`` for a squared one), ``s_j =
E[phi(h^(j)) phi(h^(k))]``, ``t_j = E[g^(j) g^(k)]``, sigma and theta the Cholesky factors of their
covariances Sigma and Theta, and independent standard Gaussians Z, B, u (input weights) and v
(output weights),

    h_l = h_{l-1} - tau eta_c sum_{i<k} Lp_i s_i g_l^(i) + sqrt(tau) sum_j sigma_kj Z_l^(j)
    g_{l-1} = g_l + phi'(h_{l-1}) [- tau eta_c sum_{i<k} Lp_i t_i phi(h_{l-1}^(i)) + sqrt(tau) sum_j
    theta_kj B_l^(j)]

from ``h_0 = u.x / sqrt(d) - eta_c sum_i Lp_i (x_i.x_k / d) g_0^(i)`` and ``g_T = v - eta_c sum_i
Lp_i h_T^(i)``; the output is ``f = E[g_T h_T]``.

**C outputs** have C backward streams of every sample, ``g^(k,c)`` from ``g_T = v_c - eta_c sum_i
Lp_i^c h_T^(i)``, all through one matrix, so that theta and B are of pairs (k, c). A sample enters
the forward pass with ``sum_c Lp_i^c g_l^(i,c)`` for ``Lp_i g_l^(i)``, and the backward pass with
``sum_c Lp_i^c t_ic`` for ``Lp_i t_i``.

Eq. 5 (forward) and Eq. 15 (backward), as printed, add terms of order tau^2, with ``eq5``. They take
products of the layer before, and are left out where there is none: forward at l = 1, backward at l
= L. At a finite tau this is the decoupled network of depth L and infinite width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    check_choice,
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
from nfd.runs.losses import LOSSES, loss_of
from nfd.scaling.rules import MAX_ETA_C

# ---- ``nfd.solve_nfd``


@dataclass(frozen=True)
class Solution:
    """The result of ``nfd.solve_nfd``, a mean over replicates.

    Attributes:
        outputs, outputs_stderr: f^(k) before the update of step k, [K]; [K, C] under cross-entropy
            and for targets ``[K, C]``.
        Sigma: ``E[phi(h_t) phi(h_t)']`` at every grid time, [L+1, K, K].
        Theta: ``E[g_t g_t']``, [L+1, K, K], or [L+1, K, C, K, C] where outputs are [K, C].
        diverged_at: the first step at which an output of a replicate diverged, or None. Numbers are
            not-a-number from there on.
        probe_outputs, probe_outputs_stderr: outputs for ``probes`` after the last update, [N] or
            [N, C]; None without them. Sigma and Theta then hold the probes after the samples: K + N
            for K.

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
    loss: str = "mse",
    classes: int | None = None,
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
    """Solve Neural Feature Dynamics (Definition 1) for online SGD, of one sample a step.

    Several outputs share the forward pass, and each has a backward pass of its own.

    Args:
        inputs: ``[K, d]``.
        targets: under ``"mse"`` ``[K]``, or ``[K, C]`` for C outputs; under ``"cross-entropy"``
            class ids ``[K]``, from 0 to C - 1.
        loss: of a sample, as in ``nfd.Task``: ``"mse"``, the mean of ``(f - y)**2 / 2`` over
            outputs, or ``"cross-entropy"``, in nats.
        classes: C, for cross-entropy.
        probes: ``[N, d]``, other inputs, whose outputs after the last update are given too.
        grid: L, steps of size tau = T / L.
        horizon: T > 0.
        activation: as in ``nfd.ResNet``.
        eta_c: learning rate.
        particles: M, more than (K + N) C.
        replicates: independent solutions, for the standard errors.
        seed: of everything random.
        eq5_term: add the terms of order tau^2 that Eq. 5 and Eq. 15 print.
        device: where particles move, and where the solution is. Their Gaussians are drawn on the
            CPU, so that the device changes numbers only by rounding.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Definition 1; Appendix F for Eq. 15. The paper has one output; the equations of several
    are in ``nfd.limits.particles``.

    Example::

        s = nfd.solve_nfd(x[:4], [1.0, -1.0, 1.0, -1.0], grid=4, eta_c=0.3, particles=64)
        print(s.outputs, s.outputs_stderr)
        s = nfd.solve_nfd(
            x[:4], [0, 2, 1, 0], loss="cross-entropy", classes=3, grid=4, particles=64
        )
        s.outputs  # [4, 3], the logits
    """
    check_detached("inputs", inputs)
    check_detached("targets", targets)
    check_detached("probes", probes)
    with undisturbed():
        samples = _checked_samples(
            inputs, targets, probes, loss=loss, classes=classes, place=check_device(device)
        )
        scheme = _Scheme(
            check_count("grid", grid),
            check_real("horizon", horizon, above=0.0),
            activations.activation(activation),
            check_real("eta_c", eta_c, least=0.0, below=MAX_ETA_C),
            check_count("particles", particles),
            check_flag("eq5_term", eq5_term),
        )
        _check_particles(samples, scheme)
        count = check_count("replicates", replicates, minimum=2, maximum=MOST)
        return _solved(samples, scheme, count, check_seed(seed))


def _solved(samples: _Samples, scheme: _Scheme, replicates: int, seed: int) -> Solution:
    """Run the replicates, and take their means."""
    summaries = []
    for index in range(replicates):
        replicate = Particles(samples, scheme, derive(seed, "particles", index))
        replicate.run()
        summaries.append(replicate.summary())
    outputs, Sigma, Theta = (torch.stack(column) for column in zip(*summaries, strict=True))
    diverged_steps = outputs.isnan().any(0).any(1).nonzero()
    if samples.has_one_number:
        outputs = outputs[..., 0]
        Theta = Theta[:, :, :, 0, :, 0]
    trained = samples.trained
    of_probes = outputs[:, trained:] if len(samples.x) > trained else None
    return Solution(
        outputs[:, :trained].mean(0),
        stderr(outputs[:, :trained]),
        Sigma.mean(0),
        Theta.mean(0),
        min(trained, int(diverged_steps[0])) if len(diverged_steps) else None,
        None if of_probes is None else of_probes.mean(0),
        None if of_probes is None else stderr(of_probes),
    )


# ---- Samples with the loss of each, and the scheme


@dataclass(frozen=True)
class _Samples:
    """What is trained on, and the probes after it.

    Attributes:
        x: inputs, [K + N, d].
        targets: [K], or [K, C] under a squared loss.
        outputs: C.
        has_one_number: whether the result has one number for a sample, and no axis of outputs.
        loss: the mean loss over a batch, of outputs and targets.
    """

    x: Tensor
    targets: Tensor
    outputs: int
    has_one_number: bool
    loss: Callable[[Tensor, Tensor], Tensor]

    @property
    def trained(self) -> int:
        """K: these samples make an update, and those after them are only looked at."""
        return len(self.targets)

    def slopes(self, k: int, outputs: Tensor) -> Tensor:
        """Return the derivatives of the loss of sample k in its outputs [C]."""
        at = outputs.detach().requires_grad_()
        value = self.loss(at[None], self.targets[k : k + 1])
        (slopes,) = torch.autograd.grad(value, at)
        return slopes


def _checked_samples(
    inputs: Any,
    targets: Any,
    probes: Any,
    *,
    loss: str,
    classes: int | None,
    place: torch.device,
) -> _Samples:
    """Return samples and probes, checked, in float64 on a device."""
    check_choice("loss", loss, LOSSES)
    x = check_finite("inputs", check_numbers("inputs", inputs).double()).to(place)
    y = check_finite("targets", check_numbers("targets", targets).double()).to(place)
    is_of_classes = loss == "cross-entropy"
    if x.dim() == 2 and not len(x):
        raise InputError(
            f"inputs must have at least one sample, [K, d] with K above 0; got {list(x.shape)}."
        )
    has_targets = y.shape[:1] == x.shape[:1] and y.dim() in ((1,) if is_of_classes else (1, 2))
    if x.dim() != 2 or 0 in x.shape or 0 in y.shape or not has_targets:
        wanted = "[K]" if is_of_classes else "[K] or [K, C]"
        raise InputError(
            f"inputs must be [K, d] and targets {wanted} under loss={loss!r}; got {list(x.shape)} "
            f"and {list(y.shape)}."
        )
    outputs = 1 if y.dim() == 1 else y.shape[1]
    if is_of_classes:
        outputs = _checked_classes(classes)
        y = _class_ids(y, outputs)
    elif classes is not None:
        raise InputError(
            f"classes={classes!r} is for loss='cross-entropy': under 'mse' targets [K, C] say how "
            "many outputs there are. Leave it out, or pass loss='cross-entropy'."
        )
    if x.shape[1] + outputs > qmc.Sobol.MAXDIM:
        raise InputError(
            f"inputs may have up to {qmc.Sobol.MAXDIM - outputs} features; got {x.shape[1]}. "
            "Project them."
        )
    if probes is not None:
        x = torch.cat([x, _probes(probes, x)])
    return _Samples(x, y, outputs, not is_of_classes and y.dim() == 1, loss_of(loss))


def _checked_classes(classes: int | None) -> int:
    """Return the number of classes, of at least two."""
    if classes is None:
        raise InputError(
            "loss='cross-entropy' needs the number of classes, which targets do not say. Pass "
            "classes=10 for class ids from 0 to 9."
        )
    return check_count("classes", classes, minimum=2)


def _class_ids(y: Tensor, classes: int) -> Tensor:
    """Return class ids as whole numbers, of which none is out of range."""
    bad = (y != y.round()) | (y < 0) | (y >= classes)
    if bool(bad.any()):
        raise InputError(
            f"targets must be class ids, whole numbers from 0 to {classes - 1}, under "
            f"loss='cross-entropy' with classes={classes}; got {float(y[bad][0]):g} for sample "
            f"{int(bad.nonzero()[0])}. Raise classes, or pass loss='mse' for real targets."
        )
    return y.long()


def _probes(probes: Any, x: Tensor) -> Tensor:
    """Return probes [N, d], checked, like inputs x [K, d]."""
    others = check_finite("probes", check_numbers("probes", probes).to(x))
    if others.dim() != 2 or not len(others) or others.shape[1] != x.shape[1]:
        raise InputError(f"probes must be [N, {x.shape[1]}], as inputs; got {list(others.shape)}.")
    return others


@dataclass(frozen=True)
class _Scheme:
    """The grid, the network, the learning rate and the number of particles."""

    L: int
    T: float
    act: Activation
    eta_c: float
    M: int
    eq5: bool

    def __post_init__(self) -> None:
        if self.eq5 and self.L < 2:
            raise InputError(
                "eq5_term adds terms between steps, of which grid=1 has none. Raise grid, or leave "
                "it out."
            )

    @property
    def tau(self) -> float:
        """The size of a step in depth."""
        return self.T / self.L


def _check_particles(samples: _Samples, scheme: _Scheme) -> None:
    """Raise InputError unless particles are more than streams, and fit into memory."""
    K = len(samples.x)
    streams = K * samples.outputs
    particles = scheme.M
    grid = scheme.L
    if particles <= streams:
        count = f"{K} samples" if samples.outputs == 1 else f"{streams} outputs of {K} samples"
        raise InputError(
            f"particles must be more than the {count}, whose covariances they estimate; got "
            f"{particles}. Raise it, or predict nfd.resnets(feedback='independent'), whose "
            "deferred networks have no such bound."
        )
    # By particle: phi, Z and, with the term, slopes of every sample, and g and B of every stream;
    # Z and B at grid, the others at grid + 1 times.
    times = grid + 1
    numbers = K * ((2 if scheme.eq5 else 1) * times + grid) + streams * (times + grid)
    # The Cholesky factors of both, Sigma, Theta, and a temporary copy of it.
    matrices = (grid + times) * K**2 + (grid + 2 * times) * streams**2
    # In bytes of float64.
    needed = 8 * (numbers * particles + matrices)
    if needed > memory_of(samples.x.device):
        raise InputError(
            f"{K} samples, {grid} grid steps and {particles} particles need {needed / 2**30:.2g} "
            "GiB. Lower one, or predict nfd.resnets(feedback='independent'), whose deferred "
            "networks need far less."
        )


# ---- The scheme of Definition 1: one replicate of the coupled forward-backward SDE


# An output beyond this ends a solution.
_DIVERGED = 1e12


class Particles:
    """One replicate of the coupled forward-backward SDE, by interacting particles.

    A stream is the backward pass of one output of one sample. Streams of sample k, one for each of
    the C outputs, are rows ``k C`` to ``k C + C - 1``.
    """

    def __init__(self, samples: _Samples, scheme: _Scheme, seed: int) -> None:
        self.samples = samples
        self.scheme = scheme
        self.seed = seed
        self.tau = scheme.tau
        x = samples.x
        K = len(x)
        L = scheme.L
        M = scheme.M
        self.C = samples.outputs
        self.gram = x @ x.T / x.shape[1]
        # h of the present sample, at every time; h of all samples, only at T.
        self.h = x.new_zeros(L + 1, M)
        self.h_T = x.new_zeros(K, M)
        # Numbers of every sample, and of every stream.
        self.phi = x.new_zeros(L + 1, K, M)
        self.slopes = x.new_zeros(L + 1, K, M) if scheme.eq5 else None
        self.g = x.new_zeros(L + 1, K * self.C, M)
        self.Z = x.new_zeros(L, K, M)
        self.B = x.new_zeros(L, K * self.C, M)
        self.forward = [GrowingCholesky(K) for _ in range(L)]
        self.backward = [GrowingCholesky(K * self.C) for _ in range(L)]
        self.diverged_at: int | None = None
        # The derivatives of the loss in the outputs.
        self.Lp = x.new_zeros(K, self.C)
        self.outputs = x.new_zeros(K, self.C)
        self.u, self.v = self._ends(x.shape[1])

    def summary(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs [K, C], Sigma [L+1, K, K] and Theta [L+1, K, C, K, C].

        They are not-a-number from a divergence on.
        """
        K = len(self.outputs)
        Sigma = self.phi @ self.phi.transpose(1, 2) / self.scheme.M
        Theta = self.g @ self.g.transpose(1, 2) / self.scheme.M
        Theta = Theta.view(-1, K, self.C, K, self.C)
        if self.diverged_at is not None:
            Sigma[:, self.diverged_at :] = torch.nan
            Sigma[:, :, self.diverged_at :] = torch.nan
            Theta[:, self.diverged_at :] = torch.nan
            Theta[:, :, :, self.diverged_at :] = torch.nan
        return self.outputs, Sigma, Theta

    def run(self) -> None:
        """Train on one sample after the other, until an output diverges."""
        L = self.scheme.L
        for k in range(len(self.samples.x)):
            self._forward(k)
            for c in range(self.C):
                row = k * self.C + c
                self.g[L, row] = self.v[c] - self._steps(k)[:, c] @ self.h_T[:k]
                self.outputs[k, c] = (self.g[L, row] * self.h[L]).mean()
            # Written so that not-a-number diverges too.
            if not bool((self.outputs[k].abs() < _DIVERGED).all()):
                self.outputs[k:] = torch.nan
                self.diverged_at = k
                return
            self.h_T[k] = self.h[L]
            if k < self.samples.trained:
                self.Lp[k] = self.samples.slopes(k, self.outputs[k])
            for c in range(self.C):
                self._backward(k, c)

    def _forward(self, k: int) -> None:
        """Compute h of sample k at every time, from the start to T."""
        x = self.samples.x
        initial = x[k] @ self.u / math.sqrt(x.shape[1])
        self.h[0] = initial - self._of_streams(k, self.gram[:k, k], 0)
        self._record(0, k)
        products = x.new_zeros(0)
        for l in range(1, self.scheme.L + 1):  # noqa: E741
            products_before = products
            products = self._products(self.phi[l - 1], k)
            noise = self._noise(self.forward[l - 1], self.Z[l - 1], "Z", l, products, k)
            weights = products[:k]
            if self.slopes is not None and l > 1:
                # The term of order tau^2 in Eq. 5
                slopes = self._products(self.slopes[l - 1], k)[:k]
                weights = weights + self.tau * products_before[:k] * slopes
            drift = self._of_streams(k, weights, l)
            self.h[l] = self.h[l - 1] - self.tau * drift + math.sqrt(self.tau) * noise
            self._record(l, k)

    def _backward(self, k: int, c: int) -> None:
        """Compute g of output c of sample k at every time, from T back to the start."""
        L = self.scheme.L
        row = k * self.C + c
        earlier = k * self.C
        products = self.h.new_zeros(0)
        for l in range(L, 0, -1):  # noqa: E741
            products_before = products
            products = self._products(self.g[l], row)
            noise = self._noise(self.backward[l - 1], self.B[l - 1], "B", l, products, row)
            weights = products[:earlier]
            if self.slopes is not None and l < L:
                # The term of order tau^2 in Eq. 15
                slopes = self._products(self.slopes[l], k)[:k].repeat_interleave(self.C)
                weights = weights + self.tau * products_before[:earlier] * slopes
            of_samples = (self._steps(k) * weights.view(k, self.C)).sum(1)
            drift = of_samples @ self.phi[l - 1, :k]
            change = math.sqrt(self.tau) * noise - self.tau * drift
            slope = self.scheme.act.slope(self.h[l - 1])
            self.g[l - 1, row] = self.g[l, row] + slope * change

    def _record(self, l: int, k: int) -> None:  # noqa: E741
        """Keep phi(h), and phi'(h) where Eq. 5 needs it, of sample k after layer l."""
        self.phi[l, k] = self.scheme.act.phi(self.h[l])
        if self.slopes is not None:
            self.slopes[l, k] = self.scheme.act.slope(self.h[l])

    def _products(self, values: Tensor, row: int) -> Tensor:
        """Return the means over particles of ``values[j] * values[row]``, for every j <= row."""
        return values[: row + 1] @ values[row] / self.scheme.M

    def _steps(self, k: int) -> Tensor:
        """Return ``eta_c Lp_i^c`` of the samples before sample k, [k, C]."""
        return self.scheme.eta_c * self.Lp[:k]

    def _of_streams(self, k: int, weights: Tensor, l: int) -> Tensor:  # noqa: E741
        """Return ``eta_c sum_{i<k} weight_i sum_c Lp_i^c g_l^(i,c)``, [M]."""
        return (self._steps(k) * weights[:, None]).flatten() @ self.g[l, : k * self.C]

    def _noise(
        self, factor: GrowingCholesky, normals: Tensor, name: str, layer: int, row: Tensor, k: int
    ) -> Tensor:
        """Draw the noise of sample or stream k: Gaussians of covariances ``row`` to those up to k.

        It is a combination of independent ``normals``. Where it is not a combination of those of
        earlier ones, new ones are drawn.
        """
        rank_before = len(factor.independent)
        coefficients = factor.extend(row.cpu().numpy()).to(row)
        if len(factor.independent) > rank_before:
            stream = generator(self.seed, "particle", name, layer, k)
            draws = torch.randn(1, self.scheme.M, generator=stream, dtype=torch.float64)
            normals[rank_before] = draws[0].to(row)
        return coefficients @ normals[: len(coefficients)]

    def _ends(self, d: int) -> tuple[Tensor, Tensor]:
        """Draw the Gaussians of input and output weights, u [d, M] and v [C, M].

        They come from a scrambled Sobol' sequence: about half the variance of plain draws.
        """
        engine = qmc.Sobol(d + self.C, seed=derive(self.seed, "sobol"))
        M = self.scheme.M
        # The sequence is balanced at lengths that are powers of two, and scipy warns of others:
        # draw the next such length, and take the first M.
        balanced = 1 << (M - 1).bit_length()
        uniform = torch.from_numpy(engine.random(balanced)[:M]).clamp(1e-12, 1 - 1e-12)
        normals = torch.special.ndtri(uniform).T.contiguous().to(self.samples.x)
        return normals[:d], normals[d:]


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
