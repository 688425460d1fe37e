"""Covariance and NTK of infinitely wide networks, at infinite or finite depth.

**Flow.** With ``a, b`` the variances of ``h_t`` for two inputs, ``C`` their covariance, ``m = E[phi(h) phi(hbar)]`` and
``s = E[phi'(h) phi'(hbar)]`` (Gaussian moments at ``a, b, C``), the infinite-depth kernels solve

    a' = m(a, a, a),   C' = m(a, b, C)                    NNGP, Props. 2 and 3, from |x|^2/d and x.xbar/d
    D' = m + s D,      D_0 = x.xbar / d                   NTK = C + D

and a network of depth L takes L Euler steps of size T / L of the same equations. The first step of the decoupled
network has ``D' = m`` instead, so its kernel is ``2 C``.

**Table.** The covariance equations see nothing else of two inputs. The kernel is smooth in the logarithms of the norms
and in the angle (in the cosine it is not, at -1 and 1, for relu, and changes fast near 1 for all at large T), so
Chebyshev interpolation reaches rounding with few nodes; where phi is positively homogeneous the norms only scale. Each
axis is refined until its last coefficients are below tolerance, and the error is then measured between the nodes: the
error that is stated is four times the largest one seen there."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.integrate import solve_ivp
from torch import Tensor

from nfd.core.activations import ACTIVATIONS, Activation, activation, hermite_functions
from nfd.core.errors import (
    InputError,
    KernelKind,
    check_choice,
    check_depth,
    check_device,
    check_finite,
    check_numbers,
    check_real,
)
from nfd.core.machine import threads, undisturbed

# ---- Infinite-width kernels as Gram matrices: ``nfd.kernel``


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

    Source: Props. 2, 3 and 6; see ``nfd.limits.kernels``.

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
    others = (X, norms) if X2 is None or norms2 is None else (X2, norms2)
    kernels = [_assembled(made, sheet, (X, norms), others) for sheet in sheets]
    if not all(K.numel() == 0 or bool(torch.stack(K.aminmax()).isfinite().all()) for K in kernels):
        raise InputError(f"The kernel's entries leave the range of numbers at horizon={horizon:g}. Lower it.")
    return kernels[0], kernels[1] if slopes else None, made.error


def diagonal(X: Tensor, *, kind: str, activation: str, horizon: float, depth: float) -> Tensor:
    """``K(x, x)`` row by row."""
    norms, (tabled, factor) = _norms(X), _TABLED[check_choice("kind", kind, KINDS)]
    made = table(activation, tabled, check_horizon(horizon), depth, *_range(norms)).to(X.device)
    return factor * made.sizes(norms).square()


def _assembled(made: Table, sheet: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]) -> Tensor:
    """Block rows of the matrix of inputs and their norms; below the diagonal of a symmetric one they are copied."""
    (X, norms), (X2, norms2) = rows, columns
    gram, symmetric = X.new_empty(len(X), len(X2)), X is X2
    root = math.sqrt(X.shape[1])
    unit, unit2 = (x / (torch.where(own > 0, own, 1.0)[:, None] * root) for x, own in (rows, columns))
    parallel = 1 - _ROUNDING - _ROUNDING_GROWS * root
    height = max(1, _BLOCK // max(len(X2), 1))
    for top in range(0, len(X), height):
        here, there = slice(top, top + height), slice(top if symmetric else 0, None)
        cosine = unit[here] @ unit2[there].T
        if symmetric:
            cosine.diagonal().fill_(1.0)
        cosine.masked_fill_(cosine >= parallel, 1.0).clamp_min_(-1)  # a repeated input has the angle zero
        gram[here, there] = made.block(sheet, norms[here], norms2[there], cosine)
        if symmetric:
            gram[top + height :, here] = gram[here, top + height :].T
            corner = gram[here, here]
            corner.copy_(torch.triu(corner) + torch.triu(corner, 1).T)
    return gram


def checked_inputs(name: str, value: Any, device: torch.device | str | None = None) -> Tensor:
    """``[N, d]`` inputs of any kind as float64, finite, on ``device``; None leaves them where they are."""
    place = None if device is None else check_device(device)
    x = check_numbers(name, value)
    if x.dim() != 2 or not x.shape[1]:
        raise InputError(f"{name} must be [N, d] with d of at least 1; got shape {list(x.shape)}.")
    return check_finite(name, x).to(place, torch.float64)


def _norms(X: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(X, dim=1)
    if len(X) and not float(length.max()) < _LARGEST:
        raise InputError(f"inputs must have norms below {_LARGEST:g}; got {float(length.max()):g}. Scale them down.")
    return length / math.sqrt(X.shape[1])


def _range(norms: Tensor) -> tuple[float, float]:
    """The positive norms' range, rounded outward so that similar data share a table; one number where all agree."""
    positive = norms[norms > 0]
    if not len(positive):
        return 1.0, 1.0
    low, high = float(positive.min()), float(positive.max())
    if high - low <= _SAME * high:
        middle = 0.5 * (low + high)
        return middle, middle
    units = [10.0 ** (math.floor(math.log10(norm)) - 1) for norm in (low, high)]
    return math.floor(low / units[0]) * units[0], math.ceil(high / units[1]) * units[1]


# ---- A kernel of two inputs as a table of three numbers: their norms and their cosine


_TOLERANCE = 2e-11  # relative to the largest coefficient, 1 for kernels over their diagonal
_WIDER = {"tanh": 3e-9, "gelu": 3e-9}  # where more digits cost many more nodes
ACCURACY = {"relu": 1e-9, "erf": 1e-9, "identity": 1e-9, "tanh": 1e-7, "gelu": 1e-7}
_COSINES = (33, 65, 129, 257)
_NORMS = (5, 9, 17, 33, 65, 129)
_FEW_COSINES = 9  # at which the norms are resolved: parallel inputs of unequal norm need the most nodes
_TAIL = 2  # coefficients that must be small for an axis to be resolved
_TESTED = 6  # norms between the nodes at which the error is measured, the smallest and the largest among them
_INTEGRATION = 1e-10  # of the integration itself, at its tolerance
_LONGEST = 1000.0  # horizon
_SAFETY = 4.0  # of the stated error over the largest one seen between the nodes
_LEFT_OUT = 1e-12  # of the kernel: what the last terms of an expansion may hold together


@dataclass(frozen=True)
class Table:
    """Chebyshev coefficients ``[R, A, A]``: expanded in the coordinate of the cosine, nodal in the two norms.

    Attributes:
        values, slopes: of the kernel and of its derivative in T, over ``sqrt(K(x, x) K(xbar, xbar))``.
        log_sizes: logarithm of ``sqrt(K(x, x))`` at the nodes of the norm, [A].
        norms: nodes in the norm ``|x| / sqrt(d)``, [A]; of unit scale where the norms only scale.
        scales: whether they do. angular: whether the coordinate is the angle.
        error: four times the largest error seen, relative to ``sqrt(K(x, x) K(xbar, xbar))``.
    """

    values: Tensor
    slopes: Tensor
    log_sizes: Tensor
    norms: Tensor
    scales: bool
    angular: bool
    error: float = 0.0

    def to(self, device: torch.device) -> Table:
        """The same table on another device; tables are made on the CPU."""
        values, slopes, sizes, norms = (x.to(device) for x in (self.values, self.slopes, self.log_sizes, self.norms))
        return replace(self, values=values, slopes=slopes, log_sizes=sizes, norms=norms)

    def sizes(self, norms: Tensor) -> Tensor:
        """``sqrt(K(x, x))`` of inputs with these norms."""
        grown = torch.exp(self._weights(norms) @ self.log_sizes)
        return grown * norms if self.scales else grown * (norms > 0)

    def block(self, sheet: Tensor, norms: Tensor, norms2: Tensor, cosine: Tensor) -> Tensor:
        """The kernel ``[..., N, M]``, or its derivative, by its ``sheet`` of coefficients; overwrites ``cosine``."""
        x = cosine.acos_().mul_(-2 / math.pi).add_(1) if self.angular else cosine
        nodal = sheet if len(self.norms) == 1 else self._weights(norms) @ sheet @ self._weights(norms2).T
        return _evaluated(nodal, x).mul_(self.sizes(norms)[:, None]).mul_(self.sizes(norms2))

    def _weights(self, norms: Tensor) -> Tensor:
        """Weights ``[N, A]`` of barycentric interpolation at these norms; those of zero get the smallest node's."""
        if len(self.norms) == 1:
            return torch.ones_like(norms)[:, None]
        w = torch.ones_like(self.norms)
        w[1::2] = -1
        w[0], w[-1] = 0.5 * w[0], 0.5 * w[-1]
        apart = norms.clamp_min(float(self.norms.min())).log()[:, None] - self.norms.log()
        exact = apart == 0
        terms = w / torch.where(exact, 1.0, apart)
        terms = torch.where(exact.any(1, keepdim=True), exact.double(), terms)
        return terms / terms.sum(1, keepdim=True)


def check_horizon(horizon: float) -> float:
    """Return ``horizon`` in (0, 1000): longer ones leave the range of numbers for most activations, after minutes."""
    return check_real("horizon", horizon, above=0.0, below=_LONGEST)


@lru_cache(maxsize=32)
def table(name: str, kind: str, horizon: float, depth: float, low: float, high: float) -> Table:
    """The table of an activation and a kind of kernel for norms between ``low`` and ``high``.

    Warns when its error is above what ``ACCURACY`` has for the activation.
    """
    scales, angular, tolerance = name in ("relu", "identity"), name != "identity", _WIDER.get(name, _TOLERANCE)
    low, high = (1.0, 1.0) if scales else (low, high)

    def cosine(coordinate: Tensor) -> Tensor:
        return torch.cos(math.pi * (1 - coordinate) / 2) if angular else coordinate

    def solved(norms: Tensor, cosines: Tensor) -> Flowed:
        return flowed(activation(name), kind, norms, cosines, horizon, depth)

    with threads(1):  # many small operations, which threads only slow
        for count in _COSINES:
            ends = [solved(torch.tensor([norm], dtype=torch.float64), cosine(_extrema(count))) for norm in {low, high}]
            if all(_resolved(end.values, tolerance) for end in ends):
                break
        norms, at = torch.tensor([low], dtype=torch.float64), ends[0]
        if low < high:
            for nodes in _NORMS:
                norms = torch.exp(0.5 * math.log(low * high) + 0.5 * math.log(high / low) * _extrema(nodes))
                few = solved(norms, cosine(_extrema(_FEW_COSINES)))
                if all(_resolved(values, tolerance) for values in (few.values.transpose(0, 1), few.sizes.log())):
                    break
            at = solved(norms, cosine(_extrema(count)))
        made = Table(_shortened(at.values), _shortened(at.slopes), at.sizes.log(), norms, scales, angular)
        if len(norms) > 1:
            some = torch.linspace(0, len(norms) - 2, min(len(norms) - 1, _TESTED)).long()
            norms = (norms[1:] * norms[:-1]).sqrt()[some]
        between = cosine(torch.cat([torch.ones(1, dtype=torch.float64), _halfway(count)]))
        exact = solved(norms, between)
        seen = made.block(made.values, norms, norms, between[:, None, None].repeat(1, len(norms), len(norms)))
        error = (seen / (exact.sizes[:, None] * exact.sizes) - exact.values).abs().max()
    made = replace(made, error=_SAFETY * float(error) + _INTEGRATION)
    if made.error > ACCURACY[name]:
        warnings.warn(
            f"The {kind} kernel of {name} at horizon {horizon:g} for norms from {low:.2g} to {high:.2g} is known to "
            f"{made.error:.0e} of sqrt(K(x, x) K(xbar, xbar)), not to {ACCURACY[name]:.0e}: its table would need more "
            "nodes. Scale the inputs to similar norms, or take a shorter horizon.",
            RuntimeWarning,
            stacklevel=4,
        )
    return made


def _evaluated(coefficients: Tensor, x: Tensor) -> Tensor:
    """``sum_r coefficients[r] T_r(x)`` by Clenshaw's recurrence; ``coefficients`` [R, ...] broadcast against ``x``.

    ``b_r = c_r + 2 x b_{r+1} - b_{r+2}`` in place: with signs ``s_r = -s_{r+2}`` every ``s_r b_r`` adds to the last but
    one.
    """
    twice = 2 * x
    older, newer = torch.zeros_like(x), torch.zeros_like(x)
    signs = [(1.0, 1.0, -1.0, -1.0)[r % 4] for r in range(len(coefficients) + 1)]
    for r in range(len(coefficients) - 1, 0, -1):
        older.addcmul_(twice, newer, value=signs[r] * signs[r + 1]).add_(coefficients[r], alpha=signs[r])
        older, newer = newer, older
    return older.addcmul_(x, newer).add_(coefficients[0])


def _extrema(count: int) -> Tensor:
    """Extrema of a Chebyshev polynomial, from 1 down to -1."""
    return torch.cos(math.pi * torch.arange(count, dtype=torch.float64) / (count - 1))


def _halfway(count: int) -> Tensor:
    """Points between the Chebyshev nodes."""
    return torch.cos(math.pi * (torch.arange(count - 1, dtype=torch.float64) + 0.5) / (count - 1))


def _coefficients(values: Tensor) -> Tensor:
    """Chebyshev coefficients along the first axis, from values at the extrema."""
    coefficients = torch.from_numpy(dct(values.numpy(), type=1, axis=0)) / (len(values) - 1)
    coefficients[0] /= 2
    coefficients[-1] /= 2
    return coefficients


def _resolved(values: Tensor, tolerance: float) -> bool:
    """Whether the last coefficients along the first axis are below ``tolerance`` of the largest."""
    size = _coefficients(values).abs()
    return bool(size[-_TAIL:].max() <= tolerance * size.max())


def _shortened(values: Tensor) -> Tensor:
    """Coefficients without the last ones, as long as what these hold together is below rounding of a kernel."""
    coefficients = _coefficients(values)
    held = coefficients.abs().amax(dim=(1, 2)).flip(0).cumsum(0).flip(0)
    return coefficients[: max(1, int((held > _LEFT_OUT * held[0]).sum()))]


# ---- How the covariance of two inputs, and the kernel of gradient descent, flow with depth


KINDS: tuple[KernelKind, ...] = get_args(KernelKind)
_RTOL, _ATOL = 1e-12, 1e-15
_MOST_DEGREES = 2048
_SERIES_TAIL = 1e-11  # of the variance: what the last of the Hermite coefficients may hold


class Flowed(NamedTuple):
    """Kernels [R, A, A] over ``sqrt(K(x, x) K(xbar, xbar))``, their derivatives in T, and ``sqrt(K(x, x))``, [A]."""

    values: Tensor
    slopes: Tensor
    sizes: Tensor


def flowed(act: Activation, kind: str, norms: Tensor, cosines: Tensor, horizon: float, depth: float) -> Flowed:
    """Solve the equations for all pairs of the A norms at R cosines, of which the first is 1.

    A state is ``[a of every norm, C of every pair at every cosine, and D for the NTK]``. The derivative in T is
    not-a-number for a finite depth.
    """
    count, tangent = len(norms), kind == "ntk"
    first, second = torch.triu_indices(count, count)  # the equations are symmetric in the two inputs
    pairs = (len(cosines), len(first))
    lengths = [count] + [math.prod(pairs)] * (1 + tangent)
    most = float(norms.max()) ** 2 + horizon  # of a variance, where |phi| < 1
    coefficients = _hermite_coefficients(act, most) if act.name == "tanh" else None

    def state_of(covariance: Tensor) -> Tensor:
        return torch.cat([norms.square(), *[covariance.expand(pairs).flatten()] * (1 + tangent)])

    def rate(state: Tensor) -> Tensor:
        a, C, *D = torch.split(state, lengths)
        left, right = a[first], a[second]
        bound = (left * right).sqrt()
        C = C.view(pairs).clamp(-bound, bound)  # rounding must not leave the cone of covariances
        s = torch.zeros_like(C)
        if coefficients is None:
            own, m = act.moment(a, a, a), act.moment(left, right, C)
            if tangent:
                s = act.slope_moment(left, right, C)
        else:  # Mehler: m = sum_k h_k(a) h_k(b) rho^k, s = sum_k k h_k(a) h_k(b) rho^(k-1) / sqrt(a b)
            h, bound = coefficients(a), bound.clamp_min(1e-300)
            rho, own, m = C / bound, h.square().sum(1), torch.zeros_like(C)
            for product in (h[first] * h[second]).T.contiguous().flip(0):  # Horner, and its derivative
                if tangent:
                    s.mul_(rho).add_(m)
                m.mul_(rho).add_(product)
            s /= bound
        return torch.cat([own, m.flatten(), *((m + s * d.view(pairs)).flatten() for d in D)])

    def kernels(state: Tensor) -> Tensor:
        _, *parts = torch.split(state, lengths)  # C, or C and D
        full = state.new_empty(len(cosines), count, count)
        full[:, first, second] = full[:, second, first] = torch.stack(parts).sum(0).view(pairs)
        return full

    sizes = norms[first] * norms[second]
    state, change = state_of(cosines[:, None] * sizes), torch.tensor(torch.nan)
    if depth == math.inf:
        state = _integrated(rate, state, state_of(sizes), horizon, kinked=act.name == "relu")
        change = rate(state)
    else:
        for _ in range(int(depth)):
            state = state + (horizon / depth) * rate(state)
        change = torch.full_like(state, torch.nan)
    values, slopes = kernels(state), kernels(change)
    size = values[0].diagonal().sqrt()
    scale = size[:, None] * size
    return Flowed(values / scale, slopes / scale, size)


def _integrated(
    rate: Callable[[Tensor], Tensor], start: Tensor, scale: Tensor, horizon: float, *, kinked: bool
) -> Tensor:
    """The state at T. Where phi has a kink the kernel of opposite inputs begins as ``t^(3/2)``: time is ``u^2``."""
    end = math.sqrt(horizon) if kinked else horizon

    def f(u: float, y: Array) -> Array:
        return (2 * u if kinked else 1) * rate(torch.from_numpy(y)).numpy()

    with np.errstate(over="ignore", invalid="ignore"):
        atol = _ATOL * scale.numpy()
        orbit = solve_ivp(f, (0.0, end), start.numpy(), method="DOP853", rtol=_RTOL, atol=atol, t_eval=[end])
    if not orbit.success or not np.isfinite(orbit.y).all():
        raise InputError(
            f"The kernel equations leave the range of numbers before T={horizon:g}, or change too fast to follow. "
            "Lower the horizon, or scale the inputs to norms near sqrt(d)."
        )
    return torch.from_numpy(np.ascontiguousarray(orbit.y[:, -1]))


def _hermite_coefficients(act: Activation, most: float) -> Callable[[Tensor], Tensor]:
    """Hermite coefficients ``[A, degree + 1]`` of ``phi(sqrt(a) z)`` for variances ``a`` of at most ``most``.

    So many that the last eight hold less than ``_SERIES_TAIL`` of the variance.
    """
    degree = 32
    while degree <= _MOST_DEGREES:
        z, weights = hermite_functions(degree, most)
        share = (act.phi(math.sqrt(most) * z) @ weights).square()
        if float(share[-8:].sum()) <= _SERIES_TAIL * float(share.sum()):
            return lambda a: act.phi(a.clamp_min(0).sqrt()[:, None] * z) @ weights
        degree *= 2
    raise InputError(
        f"The tanh kernel meets hidden variances of {most:.3g}, where its Hermite series needs more than "
        f"{_MOST_DEGREES} terms. Scale the inputs to norms near sqrt(d), lower the horizon, or use 'erf'."
    )
