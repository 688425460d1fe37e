"""``nfd.InfiniteDepthKernel``: infinite-depth kernels for scikit-learn's estimators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from nfd.core.checks import check_detached
from nfd.core.errors import InputError
from nfd.core.modes import undisturbed
from nfd.limits.kernels import checked_inputs, diagonal, gram_matrix

Array = NDArray[np.float64]


class InfiniteDepthKernel(Kernel):  # type: ignore[misc]
    """Kernel of the infinitely wide and deep residual network; T is its hyperparameter.

    It is for Gaussian processes, ridge and SVC. ``theta`` is ``log T``, and ``dK/dlog T = T dK/dT``
    comes from the equations of ``nfd.limits.kernels``. It combines with scikit-learn's
    kernels (``ConstantKernel() * InfiniteDepthKernel() + WhiteKernel()``).

    Args:
        kind: ``"nngp"``, ``"ntk"`` or ``"independent-feedback"``, as in ``nfd.kernel``.
        activation: ``"relu"``, ``"tanh"``, ``"erf"``, ``"gelu"`` or ``"identity"``.
        horizon: T > 0.
        horizon_bounds: range that fitting may search, or ``"fixed"``.
        device: where Gram matrices are computed; inputs and results are NumPy arrays.

    Raises:
        ValueError: at the first call, naming the argument.

    Source: Props. 3 and 5.

    Example::

        from sklearn.gaussian_process import GaussianProcessRegressor

        GaussianProcessRegressor(nfd.InfiniteDepthKernel(), alpha=0.1).fit(x.numpy(), range(8))
    """

    def __init__(
        self,
        kind: str = "nngp",
        activation: str = "relu",
        horizon: float = 1.0,
        horizon_bounds: tuple[float, float] | str = (0.05, 16.0),
        device: str = "cpu",
    ) -> None:
        self.kind = kind
        self.activation = activation
        self.horizon = horizon
        self.horizon_bounds = horizon_bounds
        self.device = device

    @property
    def hyperparameter_horizon(self) -> Hyperparameter:
        """The horizon, searched in its logarithm."""
        return Hyperparameter("horizon", "numeric", self.horizon_bounds)

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """Return the Gram matrix ``[N, M]`` and, if asked for, its gradient in ``theta``.

        The gradient is ``[N, N, 1]``, or ``[N, N, 0]`` where the horizon is fixed.
        """
        check_detached("X", X)
        check_detached("Y", Y)
        with undisturbed():
            return self._gram(X, Y, eval_gradient)

    def _gram(self, X: Any, Y: Any, eval_gradient: bool) -> Any:
        if eval_gradient and Y is not None:
            raise InputError(
                "eval_gradient is for Y=None: the gradient is that of the Gram matrix of X."
            )
        second = None if Y is None else checked_inputs("Y", Y, self.device)
        first = checked_inputs("X", X, self.device)
        K, dK_dT, _ = gram_matrix(first, second, slopes=eval_gradient, **self._choice())
        if not eval_gradient:
            return K.cpu().numpy()
        if dK_dT is None or self.hyperparameter_horizon.fixed:
            return K.cpu().numpy(), np.empty((len(K), len(K), 0))
        return K.cpu().numpy(), (self.horizon * dK_dT)[:, :, None].cpu().numpy()

    def diag(self, X: Any) -> Array:
        """Return ``K(x, x)`` of every row, [N]."""
        check_detached("X", X)
        with undisturbed():
            return diagonal(checked_inputs("X", X, self.device), **self._choice()).cpu().numpy()

    def is_stationary(self) -> bool:
        """Return False: it sees norms and angles, not differences."""
        return False

    def __repr__(self) -> str:
        return (
            f"InfiniteDepthKernel(kind={self.kind!r}, activation={self.activation!r}, "
            f"horizon={self.horizon:.3g})"
        )

    def _choice(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "activation": self.activation,
            "horizon": self.horizon,
            "depth": math.inf,
        }
