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
from typing import Any, get_args

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
    check_dense,
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
    kernels = [_assembled(made, sheet, X, X2, norms, norms2) for sheet in sheets]
    if not all(K.numel() == 0 or bool(torch.stack(K.aminmax()).isfinite().all()) for K in kernels):
        raise InputError(f"The kernel's entries leave the range of numbers at horizon={horizon:g}. Lower it.")
    return kernels[0], kernels[1] if slopes else None, made.error


def diagonal(X: Tensor, *, kind: str, activation: str, horizon: float, depth: float) -> Tensor:
    """``K(x, x)`` row by row."""
    norms, (tabled, factor) = _norms(X), _TABLED[check_choice("kind", kind, KINDS)]
    made = table(activation, tabled, check_horizon(horizon), depth, *_range(norms)).to(X.device)
    return factor * made.sizes(norms).square()


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
    coefficients = sheet[0, 0]
    if len(made.norms) > 1:
        coefficients = torch.einsum("ia,abr->rib", made.weights(norms), sheet) @ made.weights(norms2).T
    return evaluated(coefficients, made.coordinate(cosine)).mul_(made.sizes(norms)[:, None]).mul_(made.sizes(norms2))


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
    units = [10.0 ** (math.floor(math.log10(norm)) - 1) for norm in (low, high)]
    return math.floor(low / units[0]) * units[0], math.ceil(high / units[1]) * units[1]


# ---- A kernel of two inputs as a table of three numbers: their norms and their cosine


_TOLERANCE = 2e-11  # relative to the largest coefficient, 1 for kernels over their diagonal
_WIDER = {"tanh": 3e-9, "gelu": 3e-9}  # where more digits cost many more nodes
ACCURACY = {"relu": 1e-9, "erf": 1e-9, "identity": 1e-9, "tanh": 1e-7, "gelu": 1e-7}
_COSINES = (17, 33, 65, 129, 257)
_SOLVED = (65, 257, 513)  # at once, for the same price as fewer: the nodes of fewer are among those of more
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
    """Chebyshev coefficients ``[A, A, R]``: nodal in the two norms, expanded in the coordinate of the cosine.

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
    error: float

    def to(self, device: torch.device) -> Table:
        """The same table on another device; tables are made on the CPU."""
        values, slopes, sizes, norms = (x.to(device) for x in (self.values, self.slopes, self.log_sizes, self.norms))
        return replace(self, values=values, slopes=slopes, log_sizes=sizes, norms=norms)

    def weights(self, norms: Tensor) -> Tensor:
        """Interpolation weights ``[N, A]`` of inputs with these norms; those of norm zero get the smallest node's."""
        return _interpolation(self.norms.log(), norms.clamp_min(float(self.norms.min())).log())

    def sizes(self, norms: Tensor) -> Tensor:
        """``sqrt(K(x, x))`` of inputs with these norms."""
        grown = torch.exp(self.weights(norms) @ self.log_sizes)
        return grown * norms if self.scales else grown * (norms > 0)

    def coordinate(self, cosine: Tensor) -> Tensor:
        """The cosine, or an affine function of the angle, in [-1, 1]; ``cosine`` is overwritten."""
        return cosine.acos_().mul_(-2 / math.pi).add_(1) if self.angular else cosine


def check_horizon(horizon: float) -> float:
    """Return ``horizon`` in (0, 1000): longer ones leave the range of numbers for most activations, after minutes."""
    return check_real("horizon", horizon, above=0.0, below=_LONGEST)


@lru_cache(maxsize=32)
def table(name: str, kind: str, horizon: float, depth: float, low: float, high: float) -> Table:
    """The table of an activation and a kind of kernel for norms between ``low`` and ``high``.

    Warns when its error is above what ``ACCURACY`` has for the activation.
    """
    with threads(1):  # many small operations, which threads only slow
        scales = name in ("relu", "identity")
        ends = (1.0, 1.0) if scales else (low, high)
        made = _Tabulated(activation(name), kind, horizon, depth, *ends).table(scales)
    _at_nodes.cache_clear()  # solutions are held while a table is made of them
    if made.error > ACCURACY[name]:
        warnings.warn(
            f"The {kind} kernel of {name} at horizon {horizon:g} for norms from {low:.2g} to {high:.2g} is known to "
            f"{made.error:.0e} of sqrt(K(x, x) K(xbar, xbar)), not to {ACCURACY[name]:.0e}: its table would need more "
            "nodes. Scale the inputs to similar norms, or take a shorter horizon.",
            RuntimeWarning,
            stacklevel=4,
        )
    return made


@dataclass(frozen=True)
class _Tabulated:
    """The kernel that a table is made of, for norms from ``low`` to ``high``."""

    act: Activation
    kind: str
    horizon: float
    depth: float
    low: float
    high: float

    @property
    def angular(self) -> bool:
        return self.act.name != "identity"

    def table(self, scales: bool) -> Table:
        """The table with as many nodes as resolve the kernel."""
        ends = {norm: replace(self, low=norm, high=norm) for norm in (self.low, self.high)}
        cosines = max(end._resolved_cosines() for end in ends.values())
        count = 1 if self.low == self.high else self._resolved_norms()
        values, slopes, sizes = _of_one_norm(self, cosines) if count == 1 else _at_nodes(self, count, cosines)
        norms = _between(self.low, self.high, _chebyshev_nodes(count))
        parts = _shortened(_coefficients(values)), _shortened(_coefficients(slopes))
        made = Table(*parts, sizes.log(), norms, scales, self.angular, 0.0)
        error = self._error_of_one_norm(made, cosines) if count == 1 else self._measured_error(made, cosines)
        return replace(made, error=_SAFETY * error + _INTEGRATION)

    def pairs(self, norms: Tensor, cosines: Tensor) -> tuple[Pairs, tuple[Tensor, Tensor]]:
        """Every pair of these norms at these cosines, with the kernel and its derivative there."""
        first, second = torch.triu_indices(len(norms), len(norms))
        pairs = Pairs(norms, first, second, cosines.expand(len(first), -1))
        return pairs, kernel_of_pairs(self.act, self.kind, pairs, self.horizon, self.depth)

    def _resolved_cosines(self) -> int:
        for count in _COSINES:
            values, _, _ = _of_one_norm(self, count)
            if _is_small(self.act, _coefficients(values)):
                break
        return count

    def _resolved_norms(self) -> int:
        for count in _NORMS:
            values, _, sizes = _at_nodes(self, count, _FEW_COSINES)
            parts = values.permute(1, 2, 0), sizes.log()
            if all(_is_small(self.act, _coefficients(part)) for part in parts):
                break
        return count

    def _error_of_one_norm(self, made: Table, cosines: int) -> float:
        """Largest error at the nodes and between them, relative to the kernel's diagonal."""
        exact, _, _ = _of_one_norm(self, 2 * cosines - 1)
        return float((evaluated(made.values[0, 0], _chebyshev_nodes(2 * cosines - 1)) - exact).abs().max())

    def _measured_error(self, made: Table, cosines: int) -> float:
        """Largest error between the nodes of several norms, relative to the kernel's diagonal."""
        nodes = len(made.norms)
        between = torch.cat([torch.tensor([1.0], dtype=torch.float64), _cosine(_halfway(cosines), self.angular)])
        norms = _between(
            self.low, self.high, _halfway(nodes)[torch.linspace(0, nodes - 2, min(nodes - 1, _TESTED)).long()]
        )
        pairs, (exact, _) = self.pairs(norms, between)
        first, second = pairs.first, pairs.second
        weights, sizes = made.weights(norms), made.sizes(norms)
        coefficients = torch.einsum("pa,pb,abr->pr", weights[first], weights[second], made.values)
        seen = evaluated(coefficients.T[:, :, None], made.coordinate(between.clone()).expand(len(first), -1))
        seen = seen * (sizes[first] * sizes[second])[:, None]
        own = exact[first == second, 0]
        scale = (own[first] * own[second]).sqrt()[:, None].clamp_min(1e-300)
        return float(((seen - exact).abs() / scale).max())


def _of_one_norm(kernel: _Tabulated, cosines: int) -> tuple[Tensor, Tensor, Tensor]:
    """Kernel and derivative ``[1, 1, R]`` at the nodes of the cosine, and ``sqrt(K(x, x))``, as below."""
    solved = next(count for count in _SOLVED if count >= cosines)
    values, slopes, sizes = _at_nodes(kernel, 1, solved)
    step = (solved - 1) // (cosines - 1)
    return values[..., ::step], slopes[..., ::step], sizes


@lru_cache(maxsize=4)  # what resolves the cosines is the table of one norm, and its error
def _at_nodes(kernel: _Tabulated, count: int, cosines: int) -> tuple[Tensor, Tensor, Tensor]:
    """Kernel and derivative ``[A, A, R]`` at all nodes over ``sqrt(K(x, x) K(xbar, xbar))``, and ``sqrt(K(x, x))``.

    The equations are symmetric in the two inputs; the first cosine is 1.
    """
    norms = _between(kernel.low, kernel.high, _chebyshev_nodes(count))
    pairs, solved = kernel.pairs(norms, _cosine(_chebyshev_nodes(cosines), kernel.angular))
    full = []
    for values in solved:
        square = values.new_empty(count, count, cosines)
        square[pairs.first, pairs.second] = values
        square[pairs.second, pairs.first] = values
        full.append(square)
    sizes = full[0].diagonal(dim1=0, dim2=1)[0].sqrt()
    scale = (sizes[:, None] * sizes)[:, :, None]
    return full[0] / scale, full[1] / scale, sizes


def evaluated(coefficients: Tensor, x: Tensor) -> Tensor:
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


def _interpolation(nodes: Tensor, points: Tensor) -> Tensor:
    """Barycentric weights ``[points, nodes]`` of interpolation at Chebyshev nodes."""
    if len(nodes) == 1:
        return torch.ones(len(points), 1, dtype=torch.float64, device=points.device)
    w = torch.ones_like(nodes)
    w[1::2] = -1
    w[0], w[-1] = 0.5 * w[0], 0.5 * w[-1]
    apart = points[:, None] - nodes
    exact = apart == 0
    terms = w / torch.where(exact, 1.0, apart)
    terms = torch.where(exact.any(1, keepdim=True), exact.double(), terms)
    return terms / terms.sum(1, keepdim=True)


def _between(low: float, high: float, nodes: Tensor) -> Tensor:
    """Norms from ``low`` to ``high`` whose logarithms lie as the nodes do in [-1, 1]."""
    if len(nodes) == 1:
        return torch.tensor([low], dtype=torch.float64)
    return torch.exp(0.5 * math.log(low * high) + 0.5 * math.log(high / low) * nodes)


def _chebyshev_nodes(count: int) -> Tensor:
    """Extrema of a Chebyshev polynomial, from 1 down to -1."""
    if count == 1:
        return torch.zeros(1, dtype=torch.float64)
    return torch.cos(math.pi * torch.arange(count, dtype=torch.float64) / (count - 1))


def _halfway(count: int) -> Tensor:
    """Points between the Chebyshev nodes."""
    return torch.cos(math.pi * (torch.arange(count - 1, dtype=torch.float64) + 0.5) / (count - 1))


def _cosine(coordinate: Tensor, angular: bool) -> Tensor:
    return torch.cos(math.pi * (1 - coordinate) / 2) if angular else coordinate


def _coefficients(values: Tensor) -> Tensor:
    """Chebyshev coefficients along the last axis, from values at the extrema."""
    count = values.shape[-1]
    coefficients = torch.from_numpy(dct(values.numpy(), type=1, axis=-1)) / (count - 1)
    coefficients[..., 0] /= 2
    coefficients[..., -1] /= 2
    return coefficients


def _shortened(coefficients: Tensor) -> Tensor:
    """The coefficients without the last ones, as long as what these hold together is below rounding of a kernel."""
    size = coefficients.abs().amax(dim=(0, 1))
    held = size.flip(0).cumsum(0).flip(0)
    return coefficients[..., : max(1, int((held > _LEFT_OUT * held[0]).sum()))]


def _is_small(act: Activation, coefficients: Tensor) -> bool:
    tolerance = _WIDER.get(act.name, _TOLERANCE) * float(coefficients.abs().max())
    return float(coefficients[..., -_TAIL:].abs().max()) <= tolerance


# ---- How the covariance of two inputs, and the kernel of gradient descent, flow with depth


KINDS: tuple[KernelKind, ...] = get_args(KernelKind)
_RTOL, _ATOL = 1e-12, 1e-15
_MOST_DEGREES = 2048
_SERIES_TAIL = 1e-11  # of the variance: what the last of the Hermite coefficients may hold

Moments = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Pairs:
    """Pairs of inputs: the standard deviation at t = 0 of ``norms`` [A], and for each pair the indices of its two
    norms, [P], and their cosine, [P, R] (several cosines per pair of norms)."""

    norms: Tensor
    first: Tensor
    second: Tensor
    cosine: Tensor


def kernel_of_pairs(act: Activation, kind: str, pairs: Pairs, horizon: float, depth: float) -> tuple[Tensor, Tensor]:
    """The kernel of the pairs, [P, R], and its derivative in T (not-a-number for a finite depth)."""
    system = _System(act, pairs, backward=kind == "ntk")
    if depth == math.inf:
        state = torch.from_numpy(_solved(system, horizon))
        change = system.rate(state)
    else:
        state = system.start()
        for _ in range(int(depth)):
            state = state + (horizon / depth) * system.rate(state)
        change = torch.full_like(state, torch.nan)
    return system.value(state, kind), system.value(change, kind)


def _solved(system: _System, horizon: float) -> Array:
    """The state at T. Where phi has a kink the kernel of opposite inputs begins as ``t^(3/2)``: time is ``u^2``."""
    kinked = system.act.name == "relu"
    end = math.sqrt(horizon) if kinked else horizon

    def f(u: float, y: Array) -> Array:
        rate = system.rate(torch.from_numpy(y)).numpy()
        return 2 * u * rate if kinked else rate

    start, tolerance = system.start().numpy(), _ATOL * system.scale().numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        orbit = solve_ivp(f, (0.0, end), start, method="DOP853", rtol=_RTOL, atol=tolerance, t_eval=[end])
    if not orbit.success or not np.isfinite(orbit.y).all():
        raise InputError(
            f"The kernel equations leave the range of numbers before T={horizon:g}, or change too fast to follow. "
            "Lower the horizon, or scale the inputs to norms near sqrt(d)."
        )
    return np.asarray(orbit.y[:, -1])


class _System:
    """The equations of all pairs at once; a state is ``[a of every norm, C of every pair, D of every pair]``.

    The variance of an input is its covariance with itself: the first pairs, ``left`` and ``right``, are those.
    """

    def __init__(self, act: Activation, pairs: Pairs, *, backward: bool) -> None:
        self.act, self.pairs, self.backward = act, pairs, backward
        self.count, self.own = len(pairs.norms) + pairs.cosine.numel(), len(pairs.norms)
        of_pairs = (index[:, None].expand_as(pairs.cosine).flatten() for index in (pairs.first, pairs.second))
        self.left, self.right = (torch.cat([torch.arange(self.own), index]) for index in of_pairs)
        self.nodes = _HermiteNodes() if act.name == "tanh" else None

    def start(self) -> Tensor:
        own = torch.ones(self.own, dtype=torch.float64)
        return self._state(self._sizes() * torch.cat([own, self.pairs.cosine.flatten()]))

    def scale(self) -> Tensor:
        """The size of every entry of a state at the start, ``sqrt(a b)`` for a pair."""
        return self._state(self._sizes())

    def value(self, state: Tensor, kind: str) -> Tensor:
        C, D = state[self.own : self.count], state[self.count :]
        return (C + D if kind == "ntk" else C).view(self.pairs.cosine.shape)

    def rate(self, state: Tensor) -> Tensor:
        a, C, D = state[: self.own], state[: self.count], state[self.count :]
        left, right = a[self.left], a[self.right]
        bound = (left * right).sqrt()
        C = torch.minimum(torch.maximum(C, -bound), bound)  # rounding must not leave the cone of covariances
        if self.nodes is not None:
            m, s = self._series(self.nodes.coefficients(self.act, a), a, C / bound.clamp_min(1e-300))
        else:
            m = self.act.moment(left, right, C)
            s = self.act.slope_moment(*(x[self.own :] for x in (left, right, C))) if self.backward else D
        return torch.cat([m, m[self.own :] + s * D]) if self.backward else m

    def _sizes(self) -> Tensor:
        return self.pairs.norms[self.left] * self.pairs.norms[self.right]

    def _state(self, covariance: Tensor) -> Tensor:
        return torch.cat([covariance, covariance[self.own :]]) if self.backward else covariance

    def _series(self, h: Tensor, a: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
        """Mehler: m = sum_k h_k(a) h_k(b) rho^k, s = sum_k k h_k(a) h_k(b) rho^(k-1) / sqrt(a b)."""
        rho = rho[self.own :].view(self.pairs.cosine.shape)
        products = (h[self.pairs.first] * h[self.pairs.second]).T.contiguous()[:, :, None]
        m, s = torch.zeros_like(rho), torch.zeros_like(rho)
        for k in range(len(products) - 1, -1, -1):  # Horner, and its derivative
            if self.backward:
                s = s.mul_(rho).add_(m)
            m = m.mul_(rho).add_(products[k])
        scale = (a[self.pairs.first] * a[self.pairs.second]).sqrt().clamp_min(1e-300)[:, None]
        return torch.cat([h.square().sum(1), m.flatten()]), (s / scale).flatten()


class _HermiteNodes:
    """Hermite coefficients of ``phi(sqrt(a) z)`` for many variances, by one quadrature that grows as they do."""

    def __init__(self) -> None:
        self.degree, self.variance = 0, 0.0
        self.z, self.weights = torch.zeros(0), torch.zeros(0, 0)

    def coefficients(self, act: Activation, a: Tensor) -> Tensor:
        """``[A, degree + 1]``: enough that the last eight hold less than ``_SERIES_TAIL`` of the variance."""
        while True:
            if float(a.max()) > self.variance or not self.degree:
                self._grow(max(32, self.degree), 1.5 * max(float(a.max()), 0.1))
            h = act.phi(a.clamp_min(0).sqrt()[:, None] * self.z) @ self.weights
            tail = h[:, -8:].square().sum(1)
            if bool((tail <= _SERIES_TAIL * h.square().sum(1)).all()):
                return h
            if self.degree >= _MOST_DEGREES:
                raise InputError(
                    f"The tanh kernel meets hidden variances of {float(a.max()):.3g}, where its Hermite series "
                    f"needs more than {_MOST_DEGREES} terms. Scale the inputs to norms near sqrt(d), lower the "
                    "horizon, or use 'erf'."
                )
            self._grow(2 * self.degree, self.variance)

    def _grow(self, degree: int, variance: float) -> None:
        self.degree, self.variance = degree, variance
        self.z, self.weights = hermite_functions(degree, variance)
