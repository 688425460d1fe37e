"""A kernel of two inputs as a table of three numbers: their norms and their cosine.

The covariance equations see nothing else of two inputs. The kernel is smooth in the logarithms of the norms and in
the angle (in the cosine it is not, at -1 and 1, for relu, and changes fast near 1 for all at large T), so Chebyshev
interpolation reaches rounding with few nodes; where phi is positively homogeneous the norms only scale. Each axis is
refined until its last coefficients are below tolerance, and the error is then measured between the nodes: the error
that is stated is four times the largest one seen there.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from scipy.fft import dct
from torch import Tensor

from nfd.core.activations import Activation, activation
from nfd.core.errors import check_real
from nfd.core.machine import threads
from nfd.limits.flow import Pairs, kernel_of_pairs

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
        """With as many nodes as resolve the kernel."""
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
        """The same between the nodes of several norms."""
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
    """Without the last coefficients, as long as what these hold together is below rounding of a kernel."""
    size = coefficients.abs().amax(dim=(0, 1))
    held = size.flip(0).cumsum(0).flip(0)
    return coefficients[..., : max(1, int((held > _LEFT_OUT * held[0]).sum()))]


def _is_small(act: Activation, coefficients: Tensor) -> bool:
    tolerance = _WIDER.get(act.name, _TOLERANCE) * float(coefficients.abs().max())
    return float(coefficients[..., -_TAIL:].abs().max()) <= tolerance
