"""Infinite-width kernels as Gram matrices: ``nfd.kernel``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nfd.core.activations import ACTIVATIONS
from nfd.core.errors import (
    InputError,
    check_choice,
    check_dense,
    check_depth,
    check_device,
    check_finite,
    check_numbers,
)
from nfd.core.machine import undisturbed
from nfd.limits.flow import KINDS
from nfd.limits.table import Table, check_horizon, evaluated, table

_BLOCK = 2**16  # entries worked on at a time
_ROUNDING = 2e-15  # of a cosine, in few dimensions
_ROUNDING_GROWS = 2e-16  # with the root of the dimension
_TABLED: dict[str, tuple[str, float]] = {
    "nngp": ("nngp", 1.0),
    "ntk": ("ntk", 1.0),
    "independent-feedback": ("nngp", 2.0),
}
_LARGEST = 1e150  # a norm whose square is a number
_SAME = 1e-12  # norms that differ by less, relatively, are one norm

Array = NDArray[np.float64]


@undisturbed()
def kernel(
    X: Any,
    X2: Any = None,
    *,
    kind: str = "nngp",
    activation: str = "relu",
    horizon: float = 1.0,
    depth: float = math.inf,
    return_error: bool = False,
    device: torch.device | str | None = None,
) -> Any:
    """Gram matrix of a kernel of the infinitely wide residual network, infinitely deep or of a given depth.

    ``"nngp"``: the covariance C_T of outputs (Prop. 3). ``"ntk"``: the kernel of gradient descent on the standard
    network, ``-df(xbar) / (eta_c dLoss/df)`` of a first small step on x. ``"independent-feedback"``: the same for the
    decoupled network of Corollary 1, which is ``2 C_T``.

    Args:
        X: ``[N, d]`` inputs; X2: ``[M, d]`` others, or None for X itself.
        kind: one of the three above.
        activation: ``"relu"``, ``"tanh"``, ``"erf"``, ``"gelu"`` or ``"identity"``.
        horizon: T, above 0 and below 1,000.
        depth: infinite, or the number L of residual blocks.
        return_error: also return the error of an entry, relative to ``sqrt(K(x, x) K(xbar, xbar))``: four times the
            largest seen between the nodes of the table. The rounding of cosines adds up to 1e-8 to the NTK of relu for
            inputs nearly parallel.
        device: where the matrix is computed; None for where X is, the CPU for arrays.

    Returns:
        ``[N, M]`` float64, as a NumPy array or tensor like the inputs, and the error with ``return_error``. Inputs of
        zero norm have kernel 0 with all others. Memory beyond the matrix is a few MiB. A warning tells if the error is
        above 1e-9 (tanh, gelu: 1e-7).

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Props. 2, 3 and 6; see ``nfd.limits.flow``.

    Example::

        K = nfd.kernel(x, kind="ntk", horizon=1.0)  # [8, 8]
    """
    first = checked_inputs("X", X, device)
    second = None if X2 is None else checked_inputs("X2", X2, first.device)
    gram, _, error = gram_matrix(
        first, second, kind=kind, activation=activation, horizon=horizon, depth=depth, slopes=False
    )
    result: Tensor | Array = gram if isinstance(X, Tensor) else gram.cpu().numpy()
    return (result, error) if return_error else result


def gram_matrix(
    X: Tensor, X2: Tensor | None, *, kind: str, activation: str, horizon: float, depth: float, slopes: bool
) -> tuple[Tensor, Tensor | None, float]:
    """The Gram matrix, its derivative in T if ``slopes``, and the relative error bound."""
    kind = check_choice("kind", kind, KINDS)
    activation = check_choice("activation", activation, ACTIVATIONS)
    horizon = check_horizon(horizon)
    depth = check_depth(depth)
    if X2 is not None and X2.shape[1] != X.shape[1]:
        raise InputError(f"X2 must have {X.shape[1]} features, as X has; got {X2.shape[1]}.")
    norms, norms2 = _norms(X), None if X2 is None else _norms(X2)
    low, high = _range(norms if norms2 is None else torch.cat([norms, norms2]))
    tabled, factor = _TABLED[kind]
    made = table(activation, tabled, horizon, depth, low, high).to(X.device)
    sheets = [factor * made.values, factor * made.slopes] if slopes else [factor * made.values]
    kernels = [_assembled(made, sheet, X, X2, norms, norms2) for sheet in sheets]
    if not all(K.numel() == 0 or bool(torch.stack(K.aminmax()).isfinite().all()) for K in kernels):
        raise InputError(f"The kernel's entries leave the range of numbers at horizon={horizon:g}. Lower it.")
    return kernels[0], kernels[1] if slopes else None, made.error


def diagonal(
    X: Tensor,
    X2: Tensor | None = None,
    *,
    kind: str,
    activation: str,
    horizon: float,
    depth: float,
    slopes: bool = False,
) -> Tensor:
    """``K(x, x)``, or ``K(x, x2)``, row by row, or its derivative in T."""
    horizon, norms = check_horizon(horizon), _norms(X)
    norms2 = norms if X2 is None else _norms(X2)
    tabled, factor = _TABLED[check_choice("kind", kind, KINDS)]
    made = table(activation, tabled, horizon, depth, *_range(torch.cat([norms, norms2]))).to(X.device)
    cosine = torch.ones_like(norms) if X2 is None else (_unit(X, norms) * _unit(X2, norms2)).sum(1)
    cosine = cosine.masked_fill_(cosine >= _parallel(X), 1.0).clamp_min_(-1)
    normalised = _along(made, made.slopes if slopes else made.values, norms, norms2, cosine)
    return factor * made.sizes(norms) * made.sizes(norms2) * normalised


def _parallel(X: Tensor) -> float:
    """The least cosine of inputs that are parallel but for rounding."""
    return 1 - _ROUNDING - _ROUNDING_GROWS * math.sqrt(X.shape[1])


def _assembled(
    made: Table, sheet: Tensor, X: Tensor, X2: Tensor | None, norms: Tensor, norms2: Tensor | None
) -> Tensor:
    """Block rows of the matrix; below the diagonal of a symmetric one they are copied."""
    others, other_norms = (X, norms) if X2 is None or norms2 is None else (X2, norms2)
    gram = X.new_empty(len(X), len(others))
    rows = max(1, _BLOCK // max(len(others), 1))
    unit, other_unit = _unit(X, norms), _unit(others, other_norms)
    same = _parallel(X)
    for top in range(0, len(X), rows):
        end = min(top + rows, len(X))
        left = 0 if X2 is not None else top
        cosine = unit[top:end] @ other_unit[left:].T
        if X2 is None:
            cosine.diagonal().fill_(1.0)
        cosine.masked_fill_(cosine >= same, 1.0).clamp_min_(-1)  # a repeated input has the angle zero
        gram[top:end, left:] = _block(made, sheet, norms[top:end], other_norms[left:], cosine)
        if X2 is None:
            gram[end:, top:end] = gram[top:end, end:].T
            corner = gram[top:end, top:end]
            corner.copy_(torch.triu(corner) + torch.triu(corner, 1).T)
    return gram


def _block(made: Table, sheet: Tensor, norms: Tensor, norms2: Tensor, cosine: Tensor) -> Tensor:
    x = made.coordinate(cosine)
    if len(made.norms) == 1:
        block = evaluated(sheet[0, 0], x)
    else:
        weights, weights2 = made.weights(norms), made.weights(norms2)
        mixed = torch.einsum("ia,abr->rib", weights, sheet)
        block = evaluated(mixed @ weights2.T, x)
    return block.mul_(made.sizes(norms)[:, None]).mul_(made.sizes(norms2))


def _along(made: Table, sheet: Tensor, norms: Tensor, norms2: Tensor, cosine: Tensor) -> Tensor:
    """The sheet at given triples, over the sizes."""
    x = made.coordinate(cosine)
    if len(made.norms) == 1:
        return evaluated(sheet[0, 0], x)
    weights, weights2 = made.weights(norms), made.weights(norms2)
    return evaluated(torch.einsum("ia,ib,abr->ri", weights, weights2, sheet), x)


def checked_inputs(name: str, value: Any, device: torch.device | str | None = None) -> Tensor:
    """``[N, d]`` inputs of any kind as float64, finite, on ``device``; None leaves them where they are."""
    place = None if device is None else check_device(device)
    x = check_numbers(name, value)
    if x.dim() != 2 or not x.shape[1]:
        raise InputError(f"{name} must be [N, d] with d of at least 1; got shape {list(x.shape)}.")
    return check_finite(name, check_dense(name, x).to(place, torch.float64))


def _norms(X: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(X, dim=1)
    if len(X) and not float(length.max()) < _LARGEST:
        raise InputError(f"inputs must have norms below {_LARGEST:g}; got {float(length.max()):g}. Scale them down.")
    return length / math.sqrt(X.shape[1])


def _unit(X: Tensor, norms: Tensor) -> Tensor:
    return X / (torch.where(norms > 0, norms, 1.0)[:, None] * math.sqrt(X.shape[1]))


def _range(norms: Tensor) -> tuple[float, float]:
    """The positive norms' range, rounded outward so that similar data share a table; one number where all agree."""
    positive = norms[norms > 0]
    if not len(positive):
        return 1.0, 1.0
    low, high = float(positive.min()), float(positive.max())
    if high - low <= _SAME * high:
        middle = 0.5 * (low + high)
        return middle, middle
    return _rounded(low, math.floor), _rounded(high, math.ceil)


def _rounded(value: float, towards: Any) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(towards(value / unit) * unit)
