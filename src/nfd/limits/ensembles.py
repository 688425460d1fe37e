"""Infinite ensembles of infinitely wide networks, trained by gradient flow for a time.

In the kernel regime (``nfd.ResNet(regime="kernel")``) the tangent kernel ``Theta`` stays what it is
before training, so that outputs of a network on inputs X with targets y follow

    df(x)/dt = -(1/N) Theta(x, X) (f(X) - y).

f is linear in the outputs ``f_0`` before training, which are Gaussian with the NNGP kernel K. With
``A_t(x) = Theta(x, X) Theta^(-1) (1 - e^(-Theta t / N))`` the ensemble is Gaussian, too:

    mean        A_t y
    covariance  K(x, xbar) - A_t(x) K(X, xbar) - K(x, X) A_t(xbar)' + A_t(x) K(X, X) A_t(xbar)'.

``A_t`` comes from the eigenvalues of ``Theta(X, X)``, and needs no inverse where t is finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nfd.core.checks import check_detached, check_finite, check_numbers, check_real
from nfd.core.errors import InputError
from nfd.core.modes import undisturbed
from nfd.limits.kernels import WideNetwork, checked_inputs

Times = float | Sequence[float] | NDArray[Any] | Tensor
# An eigenvalue of a matrix, relative to its largest, that rounding and the errors of kernels cannot
# tell from zero.
_SINGULAR = 1e-11


@dataclass(frozen=True)
class KernelEnsemble:
    """The outputs of infinitely many trained networks, which are Gaussian.

    Attributes:
        mean: ``[M, C]`` of every output at every test input; ``[M]`` for targets ``[N]``.
        covariance: ``[M, M]`` between test inputs, the same for each of the C outputs, which are
            independent. With several times both have an axis of times before these.
        time: as it was given.
    """

    mean: Any
    covariance: Any
    time: Times


def kernel_ensemble(
    X: Any,
    y: Any,
    X_test: Any,
    *,
    time: Times = math.inf,
    kind: str = "ntk",
    activation: str | Callable[[Tensor], Tensor] = "relu",
    horizon: float = 1.0,
    depth: float = math.inf,
    input_variance: float = 1.0,
    bias_variance: float = 0.0,
    hidden_variance: float = 1.0,
    output_variance: float = 1.0,
) -> KernelEnsemble:
    """Compute what infinitely wide networks put out after gradient descent for a time.

    Networks in the kernel regime minimise the mean over samples of ``(f - y)^2 / 2`` by gradient
    descent with small steps, each from its own random weights.

    Args:
        X: ``[N, d]`` training inputs; y: ``[N]`` or ``[N, C]`` targets.
        X_test: ``[M, d]`` inputs at which outputs are wanted.
        time: ``eta_c`` times the number of steps; infinite for the end of training; or several.
        kind: what is trained: all weights (``"ntk"``), all with independent feedback
            (``"independent-feedback"``), or the readout (``"nngp"``): then the end of training is
            the posterior of a Gaussian process without noise.
        activation, horizon, depth: the network, as in ``nfd.kernel``, and so are
            input_variance, bias_variance, hidden_variance, output_variance.

    Returns:
        Mean and covariance, as NumPy arrays, or tensors for ``X_test`` that is one.

    Raises:
        ValueError, TypeError: naming the argument; where training does not end, as the kernel of X
            is singular (repeated inputs; relu without bias on 1-D inputs).

    Example::

        ensemble = nfd.kernel_ensemble(x[:6], x[:6, 0], x[6:], time=10.0)
        ensemble.mean, ensemble.covariance  # [2], [2, 2]
    """
    for name, value in (("X", X), ("y", y), ("X_test", X_test)):
        check_detached(name, value)
    with undisturbed():
        test = checked_inputs("X_test", X_test)
        inputs = checked_inputs("X", X, test.device)
        if test.shape[1] != inputs.shape[1]:
            raise InputError(
                f"X_test must have {inputs.shape[1]} features, as X has; got {test.shape[1]}."
            )
        targets = _checked_targets(y, inputs)
        network = WideNetwork(
            activation,
            horizon,
            depth,
            input_variance,
            bias_variance,
            hidden_variance,
            output_variance,
        )
        training = _Training.of(network, kind, inputs, test, targets)
        several = _several_times(time)
        mean, spread = training.at([time] if several is None else several)
    if several is None:
        mean, spread = mean[0], spread[0]
    if isinstance(X_test, Tensor):
        return KernelEnsemble(mean, spread, time)
    return KernelEnsemble(mean.cpu().numpy(), spread.cpu().numpy(), time)


def _checked_targets(y: Any, inputs: Tensor) -> Tensor:
    """Return targets [N] or [N, C] of inputs [N, d], of which there is one at least."""
    targets = check_finite("y", check_numbers("y", y)).to(inputs.device, torch.float64)
    if targets.dim() not in (1, 2) or len(targets) != len(inputs) or not len(inputs):
        raise InputError(
            f"y must be [N] or [N, C] with N = {len(inputs)} rows, at least one, as X has; got "
            f"shape {list(targets.shape)}."
        )
    return targets


def _several_times(time: Any) -> list[Any] | None:
    """Return several times as a list; None for one."""
    if isinstance(time, np.ndarray | Tensor):
        time = time.tolist()
    if not isinstance(time, Sequence) or isinstance(time, str):
        return None
    if not time:
        raise InputError("time must be a number of at least 0, or several; got none.")
    return list(time)


def _checked_time(time: Any) -> float:
    """Return a time, which may be infinite."""
    if time == math.inf:
        return math.inf
    return check_real("time", time, least=0.0)


class _Training:
    """The flow of the outputs of N training and M test inputs, by the kernels of all of them.

    Args:
        tangent: ``[N + M, N]``; covariance: ``[N + M, N + M]``; targets: ``[N, ...]``.
    """

    def __init__(self, tangent: Tensor, covariance: Tensor, targets: Tensor) -> None:
        self.count = len(targets)
        self.targets = targets
        self.covariance = covariance
        self.of_test = tangent[self.count :]
        inside = tangent[: self.count]
        self.inside = 0.5 * (inside + inside.T)
        self.values, self.vectors = torch.linalg.eigh(self.inside)

    @classmethod
    def of(
        cls, network: WideNetwork, kind: str, inputs: Tensor, test: Tensor, targets: Tensor
    ) -> _Training:
        """Compute the kernels of a network."""
        both = torch.cat([inputs, test])
        covariance, _ = network.gram("nngp", both, None)
        if kind == "nngp":
            tangent = covariance[:, : len(inputs)]
        else:
            tangent, _ = network.gram(kind, both, inputs)
        return cls(tangent, covariance, targets)

    def at(self, times: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return mean and covariance of test outputs at each of these times."""
        results = [self.after(_checked_time(time)) for time in times]
        means, spreads = zip(*results, strict=True)
        return torch.stack(means), torch.stack(spreads)

    def after(self, time: float) -> tuple[Tensor, Tensor]:
        """Return mean and covariance of test outputs after this time."""
        count = self.count
        share = self.of_test @ (self.vectors * self._learned(time)) @ self.vectors.T
        inside = self.covariance[:count, :count]
        across = self.covariance[:count, count:]
        moved = share @ across
        spread = self.covariance[count:, count:] - moved - moved.T + share @ inside @ share.T
        return share @ self.targets, 0.5 * (spread + spread.T)

    def _learned(self, time: float) -> Tensor:
        """Return ``(1 - e^(-lambda t / N)) / lambda`` of every eigenvalue, [N]."""
        largest = float(self.values.max())
        # Eigenvalues of kernels are not negative, but by rounding.
        values = self.values.clamp_min(0.0)
        if math.isinf(time):
            if not float(values.min()) > _SINGULAR * largest:
                raise InputError(
                    "The kernel of X is singular, so that training does not end: "
                    f"{_why_singular(self.inside)}, or take a finite time."
                )
            inverse: Tensor = values.reciprocal()
            return inverse
        is_small = values * time / self.count < 1e-12
        learned = -torch.expm1(-values * time / self.count) / values.clamp_min(1e-300)
        result: Tensor = torch.where(is_small, time / self.count, learned)
        return result


def _why_singular(kernel: Tensor) -> str:
    """Say which inputs make a kernel [N, N] singular, and what would help."""
    sizes = kernel.diagonal().clamp_min(0.0).sqrt()
    zeros = (sizes == 0).nonzero().flatten()
    if len(zeros):
        return (
            f"networks answer zero to input {int(zeros[0])} of X, whatever their weights. Drop it, "
            "give bias_variance=0.1"
        )
    correlation = (kernel / (sizes[:, None] * sizes)).triu(1)
    pairs = (correlation.abs() >= 1 - _SINGULAR).nonzero().tolist()
    if not pairs:
        return (
            "its inputs have too few directions for the kernel (as relu without a bias in one "
            "dimension, or identity), or are too close together. Drop some, give bias_variance=0.1"
        )
    first, second = pairs[0]
    factor = float(sizes[second] / sizes[first] * correlation[first, second].sign())
    if math.isclose(factor, 1.0, rel_tol=1e-9):
        return f"inputs {first} and {second} of X are the same. Drop one of them"
    return (
        f"every network answers {factor:.3g} times as much to input {second} of X as to input "
        f"{first}. Drop one of them, give bias_variance=0.1"
    )
