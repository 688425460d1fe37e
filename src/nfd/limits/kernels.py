"""Covariance and NTK of infinitely wide networks, at infinite or finite depth.

**Flow.** With ``a, b`` the variances of ``h_t`` for two inputs, ``C`` their covariance, ``m =
E[phi(h) phi(hbar)]`` and ``s = E[phi'(h) phi'(hbar)]`` (Gaussian moments at ``a, b, C``), the
infinite-depth kernels solve

    a' = m(a, a, a),   C' = m(a, b, C)           NNGP, Props. 2 and 3, from |x|^2/d and x.xbar/d
    D' = m + s D,      D_0 = x.xbar / d                   NTK = C + D

and a network of depth L takes L Euler steps of size T / L of the same equations. The first step of
the decoupled network has ``D' = m`` instead, so its kernel is ``2 C``.

**Table.** The covariance equations see nothing else of two inputs. The kernel is smooth in the
logarithms of the norms and in the angle (in the cosine it is not, at -1 and 1, for relu, and
changes fast near 1 for all at large T), so Chebyshev interpolation reaches rounding with few nodes;
where phi is positively homogeneous the norms only scale. Each axis is refined until its last
coefficients are below tolerance, and the error is then measured between the nodes: the error that
is stated is four times the largest one seen there. Slices of the table show first how many nodes it
needs: where a table would not do, the equations are solved for the pairs of inputs themselves, as
they are at once where these are few.

**Variances and a bias** need no other equations. With ``h_0 = sigma_u U x / sqrt(d) + sigma_b b``,
blocks of ``sigma_w W`` and the readout ``sigma_v v``, time runs ``sigma_w^2`` times as fast,
``sigma_v^2`` multiplies, and the bias is a constant feature:

    K = sigma_v^2 kernel([sqrt((d + 1) / d) sigma_u x, sqrt(d + 1) sigma_b], sigma_w^2 T).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.integrate import solve_ivp
from torch import Tensor

from nfd.core.activations import Activation, hermite_functions
from nfd.core.activations import activation as network_activation
from nfd.core.checks import (
    check_choice,
    check_depth,
    check_detached,
    check_device,
    check_finite,
    check_numbers,
    check_real,
)
from nfd.core.errors import InputError
from nfd.core.machine import threads
from nfd.core.modes import undisturbed
from nfd.core.names import KernelKind
from nfd.limits.functions import (
    KERNEL_ACTIVATIONS,
    FunctionActivation,
    function_moments,
    kernel_activation,
    resolved_degree,
)

# ---- Infinite-width kernels as Gram matrices: ``nfd.kernel``


# Entries of a matrix that are worked on at a time.
_BLOCK = 2**16
# The rounding of a cosine: in few dimensions, and what the root of the dimension adds.
_ROUNDING = 2e-15
_ROUNDING_GROWS = 2e-16
# The equations that give each kind of kernel, and the factor of their solution.
_TABLED: dict[str, tuple[str, float]] = {
    "nngp": ("nngp", 1.0),
    "ntk": ("ntk", 1.0),
    "independent-feedback": ("nngp", 2.0),
}
# A norm whose square is still a number.
_LARGEST = 1e150
# Norms that differ by less, relatively, are one norm.
_SAME = 1e-12
# Of functions that are not 0 at 0, smaller norms count as this one: kernels change by 1e-11.
_SMALL_NORM = 3e-6

Array = NDArray[np.float64]


def kernel(
    X: Any,
    X2: Any = None,
    *,
    kind: str = "nngp",
    activation: str | Callable[[Tensor], Tensor] = "relu",
    horizon: float = 1.0,
    depth: float = math.inf,
    input_variance: float = 1.0,
    bias_variance: float = 0.0,
    hidden_variance: float = 1.0,
    output_variance: float = 1.0,
    return_error: bool = False,
    device: torch.device | str | None = None,
) -> Any:
    """Compute the Gram matrix of a kernel of the infinitely wide residual network.

    ``"nngp"``: the covariance C_T of outputs (Prop. 3). ``"ntk"``: the kernel of gradient descent
    on the standard network, ``-df(xbar) / (eta_c dLoss/df)`` of a first small step on x.
    ``"independent-feedback"``: the same for the decoupled network of Corollary 1, which is ``2
    C_T``.

    Args:
        X: ``[N, d]`` inputs; X2: ``[M, d]`` others, or None for X itself.
        kind: one of the three above.
        activation: ``"relu"``, ``"tanh"``, ``"erf"``, ``"gelu"``, ``"identity"``, ``"abs"``,
            ``"leaky-relu"`` (0.01), ``"sin"``, ``"cos"``, or a function of PyTorch.
        horizon: T, above 0 and below 1,000.
        depth: infinite, or the number L of residual blocks.
        input_variance, hidden_variance, output_variance: of the weights of the first layer, of
            blocks and of the readout. bias_variance: of a bias of the first layer. Without one,
            1-D inputs give relu a kernel of rank 2.
        return_error: also return the error of an entry, relative to ``sqrt(K(x, x) K(xbar,
            xbar))``: four times the largest seen between the nodes of the table, 1e-9 where there
            is none. For a function it includes the error of its quadrature, about 1e-3 with kinks.
            Rounding of cosines adds up to 1e-8 to the NTK of relu for inputs nearly parallel.
        device: where the matrix is computed; None for where X is, the CPU for arrays.

    Returns:
        ``[N, M]`` float64, as a NumPy array or tensor like the inputs, and the error with
        ``return_error``. Tensors that require gradients get first derivatives. A warning shows
        that the error is above 1e-9 (tanh, gelu: 1e-7).

        Few entries are computed one by one, as are up to 262,144 where a table would need too many
        nodes; others come from a table.

    Raises:
        ValueError, TypeError: naming the argument; for gradients at inputs of zero norm; where
            neither a table nor single entries would do, with the time that it would take.

    Source: Props. 2, 3 and 6; see ``nfd.limits.kernels``.

    Example::

        K = nfd.kernel(x, kind="ntk", horizon=1.0)  # [8, 8]
    """
    wanted = [_wants_gradient("X", X), _wants_gradient("X2", X2)]
    with undisturbed():
        first = checked_inputs("X", X, device)
        second = None if X2 is None else checked_inputs("X2", X2, first.device)
        if wanted[0]:
            first = X.to(first.device, torch.float64)
        if wanted[1]:
            second = X2.to(first.device, torch.float64)
        network = WideNetwork(
            activation,
            horizon,
            depth,
            input_variance,
            bias_variance,
            hidden_variance,
            output_variance,
        )
        gram, error = network.gram(kind, first, second)
        is_tensor = isinstance(X, Tensor) or any(wanted)
        result: Tensor | Array = gram if is_tensor else gram.cpu().numpy()
    if return_error:
        return result, error
    return result


def _wants_gradient(name: str, value: Any) -> bool:
    """Return whether the result shall carry the gradient of a tensor; forward mode is refused."""
    with torch.no_grad():
        check_detached(name, value)
    return isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled()


class WideNetwork:
    """An infinitely wide network, by the arguments of ``nfd.kernel`` that say which."""

    def __init__(
        self,
        activation: str | Callable[[Tensor], Tensor],
        horizon: float,
        depth: float,
        input_variance: float,
        bias_variance: float,
        hidden_variance: float,
        output_variance: float,
    ) -> None:
        self.activation = activation
        self.input_variance = check_real("input_variance", input_variance, least=0.0)
        self.bias_variance = check_real("bias_variance", bias_variance, least=0.0)
        self.hidden_variance = check_real("hidden_variance", hidden_variance, above=0.0)
        self.output_variance = check_real("output_variance", output_variance, above=0.0)
        self.horizon = check_horizon(horizon)
        self.depth = depth

    def gram(self, kind: str, X: Tensor, X2: Tensor | None) -> tuple[Tensor, float]:
        """Compute the Gram matrix, with a gradient if the inputs want one, and its error."""
        time = self.horizon * self.hidden_variance
        if not time < _LONGEST:
            raise InputError(
                f"horizon times hidden_variance must be below {_LONGEST:g}; got {time:g}."
            )
        if X2 is not None and X2.shape[1] != X.shape[1]:
            raise InputError(f"X2 must have {X.shape[1]} features, as X has; got {X2.shape[1]}.")
        rows = self._widened(X)
        columns = None if X2 is None else self._widened(X2)
        choice = Choice(kind, kernel_activation(self.activation), time, self.depth)
        wants_gradient = rows.requires_grad or (columns is not None and columns.requires_grad)
        if wants_gradient:
            # It imports this module.
            from nfd.limits.kernel_gradients import differentiable_gram

            gram, error = differentiable_gram(choice, rows, columns)
        else:
            gram, _, error = choice.gram(rows, columns)
        if self.output_variance != 1:
            gram = self.output_variance * gram
        return gram, error

    def _widened(self, X: Tensor) -> Tensor:
        """Return inputs over which the kernel of unit variances is that of these."""
        features = X.shape[1]
        if not self.bias_variance:
            return X if self.input_variance == 1 else math.sqrt(self.input_variance) * X
        scaled = math.sqrt(self.input_variance * (features + 1) / features) * X
        constant = math.sqrt((features + 1) * self.bias_variance)
        return torch.cat([scaled, torch.full_like(X[:, :1], constant)], 1)


@dataclass(frozen=True)
class Choice:
    """Which kernel of which network: its kind, activation, horizon and depth."""

    kind: str
    act: Activation
    horizon: float
    depth: float

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, KINDS)
        check_depth(self.depth)
        if _MOST_EVALUATIONS < self.depth < math.inf:
            raise InputError(
                f"depth must be at most {_MOST_EVALUATIONS:,}, as a kernel takes a step for each "
                "block, or infinite, from which so deep a network differs by 1 / depth; got "
                f"{self.depth:,}. Take depth=math.inf."
            )

    @property
    def factor(self) -> float:
        """The kernel over the solution of its equations."""
        return _TABLED[self.kind][1]

    @property
    def least_norm(self) -> float:
        """The norm that stands for smaller ones: above 0 where the function is not 0 at 0."""
        at_zero = float(self.act.phi(torch.zeros(1, dtype=torch.float64)))
        return _SMALL_NORM * min(1.0, math.sqrt(self.horizon)) * abs(at_zero)

    def norms(self, X: Tensor) -> Tensor:
        """``|x| / sqrt(d)`` of every input, [N], of at least the least norm."""
        return _norms(X).clamp_min(self.least_norm)

    def equations(self, low: float, high: float) -> Equations:
        """Return the equations for norms of this range."""
        tabled_kind, _ = _TABLED[self.kind]
        return Equations(
            self.act.name,
            tabled_kind,
            self.horizon,
            self.depth,
            low,
            high,
            self.act if self.act.name not in KERNEL_ACTIVATIONS else None,
        )

    def gram(
        self, X: Tensor, X2: Tensor | None, *, slopes: bool = False
    ) -> tuple[Tensor, Tensor | None, float]:
        """Compute the Gram matrix, its derivative in T if ``slopes``, and the relative error."""
        if not isinstance(self.act, FunctionActivation):
            return _gram_of(self, X, X2, slopes)
        coarse, fine = self.series(X, X2)
        before, _, _ = _gram_of(coarse, X, X2, False)
        K, dK_dT, error = _gram_of(fine, X, X2, slopes)
        rows = fine.sizes(X)
        columns = rows if X2 is None else fine.sizes(X2)
        scale = (rows[:, None] * columns).clamp_min(1e-300)
        change = ((K - before).abs() / scale).max() if K.numel() else torch.zeros(())
        return K, dK_dT, error + _SAFETY * float(change)

    def series(self, X: Tensor, X2: Tensor | None) -> tuple[Choice, Choice]:
        """Return the same with a function's series of two degrees, of which one is twice the other.

        The smaller one is complete, or the last that is tried.
        """
        assert isinstance(self.act, FunctionActivation)
        if self.kind == "ntk" and self.act.jump is not None:
            raise InputError(
                f"activation {self.act.name} jumps near {self.act.jump:.2g}, where its slope is "
                "infinite: it has no NTK. Take kind='nngp', or a function that is continuous."
            )
        norms = self.norms(X if X2 is None else torch.cat([X, X2]))
        degree = resolved_degree(self.act, range_of(norms), self.horizon)
        coarse = self.act.of_degree(degree)
        return replace(self, act=coarse), replace(self, act=coarse.finer())

    def sizes(self, X: Tensor) -> Tensor:
        """Compute ``sqrt(K(x, x))`` row by row."""
        norms = self.norms(X)
        equations = self.equations(*range_of(norms))
        if equations.tabled(len(X)):
            return math.sqrt(self.factor) * table(equations).to(X.device).sizes(norms)
        values = equations.pairs(norms, norms, torch.ones_like(norms), slopes=False)
        return (self.factor * values).sqrt()


def gram_matrix(
    X: Tensor,
    X2: Tensor | None,
    *,
    kind: str,
    activation: str,
    horizon: float,
    depth: float,
    slopes: bool,
) -> tuple[Tensor, Tensor | None, float]:
    """Compute the Gram matrix, its derivative in T if ``slopes``, and the relative error bound."""
    choice = Choice(kind, kernel_activation(activation), check_horizon(horizon), depth)
    if X2 is not None and X2.shape[1] != X.shape[1]:
        raise InputError(f"X2 must have {X.shape[1]} features, as X has; got {X2.shape[1]}.")
    return choice.gram(X, X2, slopes=slopes)


def _gram_of(
    choice: Choice, X: Tensor, X2: Tensor | None, slopes: bool
) -> tuple[Tensor, Tensor | None, float]:
    """Compute the Gram matrix of a choice whose function has a degree."""
    rows = (X, choice.norms(X))
    columns = rows if X2 is None else (X2, choice.norms(X2))
    pairs = len(X) * (len(X) + 1) // 2 if X2 is None else len(X) * len(columns[0])
    equations = choice.equations(*range_of(torch.cat([rows[1], columns[1]])))
    if equations.tabled(pairs):
        kernel_table = table(equations).to(X.device)
        error = kernel_table.error
        values = partial(kernel_table.block, kernel_table.values)
        derivatives = partial(kernel_table.block, kernel_table.slopes)
    else:
        error = _ONE_BY_ONE
        values = partial(equations.block, slopes=False)
        derivatives = partial(equations.block, slopes=True)
    K = _assembled(values, rows, columns).mul_(choice.factor)
    _check_range(K, choice.horizon)
    if not slopes:
        return K, None, error
    dK_dT = _assembled(derivatives, rows, columns).mul_(choice.factor)
    _check_range(dK_dT, choice.horizon)
    return K, dK_dT, error


def _check_range(K: Tensor, horizon: float) -> None:
    """Raise InputError unless all entries are finite."""
    if K.numel() and not bool(torch.stack(K.aminmax()).isfinite().all()):
        raise InputError(
            f"The kernel's entries leave the range of numbers at horizon={horizon:g}. Lower it."
        )


def diagonal(X: Tensor, *, kind: str, activation: str, horizon: float, depth: float) -> Tensor:
    """Compute ``K(x, x)`` row by row."""
    choice = Choice(kind, kernel_activation(activation), check_horizon(horizon), depth)
    if isinstance(choice.act, FunctionActivation):
        _, choice = choice.series(X, None)
    return choice.sizes(X).square()


def _assembled(
    block: Callable[[Tensor, Tensor, Tensor], Tensor],
    rows: tuple[Tensor, Tensor],
    columns: tuple[Tensor, Tensor],
) -> Tensor:
    """Assemble the matrix from blocks of rows; rows and columns are inputs and their norms.

    Below the diagonal of a symmetric matrix entries are copied.
    """
    X, norms = rows
    X2, norms2 = columns
    gram = X.new_empty(len(X), len(X2))
    symmetric = X is X2
    unit = input_directions(X, norms)
    unit2 = input_directions(X2, norms2)
    parallel = 1 - _ROUNDING - _ROUNDING_GROWS * math.sqrt(X.shape[1])
    height = max(1, _BLOCK // max(len(X2), 1))
    for top in range(0, len(X), height):
        here = slice(top, top + height)
        first_column = top if symmetric else 0
        there = slice(first_column, None)
        cosine = unit[here] @ unit2[there].T
        if symmetric:
            cosine.diagonal().fill_(1.0)
        # A repeated input has the angle zero.
        cosine.masked_fill_(cosine >= parallel, 1.0).clamp_min_(-1)
        gram[here, there] = block(norms[here], norms2[there], cosine)
        if symmetric:
            gram[top + height :, here] = gram[here, top + height :].T
            corner = gram[here, here]
            corner.copy_(torch.triu(corner) + torch.triu(corner, 1).T)
    return gram


def input_directions(X: Tensor, norms: Tensor) -> Tensor:
    """Inputs over their length; zero where it is zero."""
    return X / (torch.where(norms > 0, norms, 1.0)[:, None] * math.sqrt(X.shape[1]))


def checked_inputs(name: str, value: Any, device: torch.device | str | None = None) -> Tensor:
    """Return ``[N, d]`` inputs of any kind as finite float64.

    They are on ``device``; None leaves them where they are.
    """
    place = None if device is None else check_device(device)
    x = check_numbers(name, value)
    if x.dim() != 2 or not x.shape[1]:
        raise InputError(f"{name} must be [N, d] with d of at least 1; got shape {list(x.shape)}.")
    return check_finite(name, x).to(place, torch.float64)


def _norms(X: Tensor) -> Tensor:
    """``|x| / sqrt(d)`` of every input, [N]."""
    length: Tensor = torch.linalg.vector_norm(X, dim=1)
    if len(X) and not float(length.max()) < _LARGEST:
        raise InputError(
            f"inputs must have norms below {_LARGEST:g}; got {float(length.max()):g}. Scale them "
            "down."
        )
    return length / math.sqrt(X.shape[1])


def range_of(norms: Tensor) -> tuple[float, float]:
    """Return the range of the positive norms; both ends are one number where all agree.

    It is rounded outward, so that similar data share a table.
    """
    positive = norms[norms > 0]
    if not len(positive):
        return 1.0, 1.0
    low = float(positive.min())
    high = float(positive.max())
    if high - low <= _SAME * high:
        middle = 0.5 * (low + high)
        return middle, middle
    low_unit = 10.0 ** (math.floor(math.log10(low)) - 1)
    high_unit = 10.0 ** (math.floor(math.log10(high)) - 1)
    return math.floor(low / low_unit) * low_unit, math.ceil(high / high_unit) * high_unit


# ---- A kernel of two inputs as a table of three numbers: their norms and their cosine


# The tail at which an axis is resolved, relative to the largest coefficient, which is 1 for kernels
# over their diagonal. It is wider where more digits cost many more nodes.
_TOLERANCE = 2e-11
_WIDER = {"tanh": 3e-9, "gelu": 3e-9}
_ACCURACY = 1e-9
ACCURACY = {"tanh": 1e-7, "gelu": 1e-7}
# How many nodes are tried.
_COSINES = (33, 65, 129, 257)
_NORMS = (5, 9, 17, 33, 65, 129)
# Cosines at which the norms are resolved: parallel inputs of unequal norm need the most nodes.
_FEW_COSINES = 9
# So many of the last coefficients must be small for an axis to be resolved.
_TAIL = 2
# Norms between the nodes at which the error is measured, the smallest and the largest among them.
_TESTED = 6
# The error of the integration itself, at its tolerance.
_INTEGRATION = 1e-10
# The longest horizon.
_LONGEST = 1000.0
# A table with more nodes is made only for at least as many pairs of inputs.
_LARGE = 2**17
# The error of pairs solved one by one: 3e-10 was the largest difference between pairs solved by
# themselves and among others (erf, T = 900).
_ONE_BY_ONE = 1e-9
# So many pairs of inputs are solved one by one without a look at a table, times the horizon where
# that is above 1, up to a factor of 10. Slices of a table take as many or more.
_FEW = 2**11
_LONG = 10.0
# Slices take fewer variances, and a function's series costs most for each of them.
_WEIGHT_OF_FUNCTION = 4.0
# So many pairs of inputs are solved one by one where no table is of use.
_SOLVED = 2**18
# The tail of a table of use; errors were 0.4 to 400 times the tail.
_ROUGH = 1e-7
# With fewer norms coefficients do not show how they will decay.
_DECAYS_FROM = 33
# One evaluation costs as much as 5,000 entries. From so many on one fine slice is cheaper than two.
_MANY = 1000
# Entries times evaluations that one slice may take, which is 1 to 2 s.
_SEARCH = 2e7
# The same of a whole table, or of all pairs: one to three minutes.
_WORK = 2e9
# What one entry of one evaluation takes: 0.04 (erf) to 0.1 (gelu) microseconds of a core.
_SECONDS = 7e-8
# The stated error over the largest one seen between the nodes.
_SAFETY = 4.0
# What the last terms of an expansion may hold together, relative to the kernel.
_LEFT_OUT = 1e-12


@dataclass(frozen=True)
class Table:
    """A kernel of two inputs by their norms and their cosine.

    Attributes:
        values, slopes: Chebyshev coefficients ``[R, A, A]`` of the kernel and of its derivative in
            T, over ``sqrt(K(x, x) K(xbar, xbar))``: expanded in the coordinate of the cosine, nodal
            in the two norms.
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
        """Copy the table to another device; tables are made on the CPU."""
        return replace(
            self,
            values=self.values.to(device),
            slopes=self.slopes.to(device),
            log_sizes=self.log_sizes.to(device),
            norms=self.norms.to(device),
        )

    def sizes(self, norms: Tensor) -> Tensor:
        """Return ``sqrt(K(x, x))`` of inputs with these norms."""
        size = torch.exp(self._weights(norms) @ self.log_sizes)
        if self.scales:
            return size * norms
        return size * (norms > 0)

    def block(self, sheet: Tensor, norms: Tensor, norms2: Tensor, cosine: Tensor) -> Tensor:
        """Evaluate the kernel ``[..., N, M]``, or its derivative, by its ``sheet`` of coefficients.

        Overwrites ``cosine``.
        """
        x = cosine
        if self.angular:
            x = cosine.acos_().mul_(-2 / math.pi).add_(1)
        coefficients = sheet
        if len(self.norms) > 1:
            coefficients = self._weights(norms) @ sheet @ self._weights(norms2).T
        scaled = chebyshev_value(coefficients, x)
        return scaled.mul_(self.sizes(norms)[:, None]).mul_(self.sizes(norms2))

    def _weights(self, norms: Tensor) -> Tensor:
        """Return weights ``[N, A]`` of barycentric interpolation at these norms.

        A norm of zero gets the weights of the smallest node.
        """
        if len(self.norms) == 1:
            return torch.ones_like(norms)[:, None]
        return barycentric_weights(norms.clamp_min(float(self.norms.min())).log(), self.norms.log())


def check_horizon(horizon: float) -> float:
    """Return ``horizon`` if it is in (0, 1000).

    Under most activations kernels of longer horizons leave the range of numbers, after minutes.
    """
    return check_real("horizon", horizon, above=0.0, below=_LONGEST)


@dataclass(frozen=True)
class Nodes:
    """How many nodes a table needs, from two slices of it.

    Attributes:
        cosines, norms: the nodes, at most ``_COSINES[-1]`` and ``_NORMS[-1]``.
        ends: the slice of all cosines at the ends of the norms; the other one has all norms at a
            few cosines.
        tail: the last coefficients over the largest, of the slice that decays less.
        resolved: whether they are small.
        effort: evaluations that the equations take, as in ``Flowed``.
    """

    cosines: int
    norms: int
    tail: float
    resolved: bool
    ends: Flowed
    effort: float

    @property
    def pairs(self) -> int:
        """The number of pairs of inputs for which the equations are solved."""
        return self.cosines * self.norms * (self.norms + 1) // 2


@dataclass(frozen=True)
class Equations:
    """The equations of an activation and a kind of kernel, for norms from ``low`` to ``high``."""

    name: str
    kind: str
    horizon: float
    depth: float
    low: float
    high: float
    # None for the activation of this name.
    function: Activation | None = None

    @property
    def act(self) -> Activation:
        """The activation."""
        return self.function or kernel_activation(self.name)

    @property
    def scales(self) -> bool:
        """Whether the norms only scale."""
        return self.act.scales

    @property
    def kernels(self) -> int:
        """The numbers of a pair that the equations follow: the NTK needs the covariance too."""
        return 2 if self.kind == "ntk" else 1

    @property
    def angular(self) -> bool:
        """Whether kernels are expanded in the angle."""
        return self.name != "identity"

    def cosine(self, coordinate: Tensor) -> Tensor:
        """Return the cosine at a coordinate between -1 and 1."""
        if not self.angular:
            return coordinate
        return torch.cos(math.pi * (1 - coordinate) / 2)

    def solved(self, norms: Tensor, cosines: Tensor) -> Flowed:
        """Solve for the kernel at all pairs of norms and cosines."""
        return flowed(self.act, self.kind, norms, cosines, self.horizon, self.depth)

    def nodes_of_norms(self, count: int) -> Tensor:
        """Chebyshev's extrema in the logarithm of the norm, [count]; one norm where all agree."""
        if count == 1:
            norm = 1.0 if self.scales else self.low
            return torch.tensor([norm], dtype=torch.float64)
        middle = 0.5 * math.log(self.low * self.high)
        return torch.exp(middle + 0.5 * math.log(self.high / self.low) * _extrema(count))

    def tabled(self, pairs: int) -> bool:
        """Whether a table gives the kernel of so many pairs of inputs.

        Otherwise they are solved one by one.

        Raises:
            InputError: where a table would be of no use, and they are too many to be solved.
        """
        if pairs <= min(self._few(), _SOLVED):
            return False
        nodes = needed_nodes(self)
        most = int(_WORK / (nodes.effort * self.kernels))
        is_affordable = nodes.pairs <= most
        if is_affordable and nodes.resolved and (nodes.pairs <= _LARGE or nodes.pairs <= pairs):
            return True
        most = min(_SOLVED, most)
        if pairs <= most:
            return False
        entry = nodes.effort * self.kernels
        is_of_use = nodes.tail <= _ROUGH
        if is_affordable and is_of_use:
            return True
        if is_of_use:
            reason = (
                f"is too much work for a table: its {nodes.pairs:,} nodes would take "
                f"{nodes.effort:,.0f} evaluations each, {_duration(nodes.pairs * entry)}"
            )
        else:
            reason = (
                f"varies too fast for a table: with {_COSINES[-1]} angles and {_NORMS[-1]} norms "
                f"it would be known to about {nodes.tail:.0e} (the last coefficient)"
            )
        raise InputError(
            f"The {self.kind} kernel of {self.name} at horizon {self.horizon:g} for norms from "
            f"{self.low:.2g} to {self.high:.2g} {reason}. Of {pairs:,} pairs of inputs up to "
            f"{most:,} are computed one by one; all would take "
            f"{_duration(pairs * entry)}. Take blocks of at most {math.isqrt(most)} rows of X and "
            "X2, similar norms, or a shorter horizon."
        )

    def _few(self) -> int:
        """Return how many pairs are solved at once, as slices of a table would cost more.

        Long horizons need large tables, if any.
        """
        if self.scales or self.low == self.high:
            return 0
        weight = 1.0
        if isinstance(self.act, FunctionActivation):
            weight = _WEIGHT_OF_FUNCTION
        elif self.name == "tanh":
            one = torch.ones(1, dtype=torch.float64)
            pair = torch.zeros(1, dtype=torch.long)
            rates = Rates(self.act, self.kind == "ntk", pair, pair, self.high * one, self.horizon)
            weight = rates.weight(one)
        return int(_FEW * min(max(self.horizon, 1.0), _LONG) / weight)

    def block(self, norms: Tensor, norms2: Tensor, cosine: Tensor, slopes: bool) -> Tensor:
        """Solve the equations for every entry of the kernel [N, M], or of its derivative in T."""
        rows, columns = cosine.shape
        first = norms[:, None].expand(rows, columns).flatten()
        second = norms2.expand(rows, columns).flatten()
        return self.pairs(first, second, cosine.flatten(), slopes).view(rows, columns)

    def pairs(self, first: Tensor, second: Tensor, cosines: Tensor, slopes: bool) -> Tensor:
        """Solve for the kernel of pairs of norms at their cosines, [P] each.

        It is zero where a norm is zero. With ``slopes`` it is the derivative in T.
        """
        if self.scales and not bool((first == second).all()):
            # Among equal norms parallel inputs stay parallel to the last digit, which the slope of
            # relu sees.
            ones = torch.ones_like(first)
            return first * second * self.pairs(ones, ones, cosines, slopes)
        result = torch.zeros_like(cosines)
        is_positive = (first > 0) & (second > 0)
        if not bool(is_positive.any()):
            return result
        both = torch.cat([first[is_positive], second[is_positive]]).cpu()
        norms, places = both.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        first_place, second_place = places.view(2, -1)
        with threads(1):
            values, derivatives, _ = solve_pairs(
                self.act,
                self.kind,
                norms,
                first_place,
                second_place,
                cosines[is_positive].cpu(),
                self.horizon,
                self.depth,
            )
        result[is_positive] = (derivatives if slopes else values).to(result)
        return result


def _duration(work: float) -> str:
    """Say about how long so many entries times evaluations take on one core."""
    seconds = work * _SECONDS
    if seconds < 90:
        return f"about {max(seconds, 1):.0f} seconds"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} minutes"
    return f"about {seconds / 3600:,.0f} hours"


@lru_cache(maxsize=128)
def needed_nodes(equations: Equations) -> Nodes:
    """Find how many nodes a table needs, from slices of it.

    Where more nodes are much work, the coefficients of fewer show what they would give.
    """
    tolerance = _WIDER.get(equations.name, _TOLERANCE)
    ends = [1.0] if equations.scales else sorted({equations.low, equations.high})
    with threads(1):
        cosines, tail, at_ends = _needed_cosines(equations, ends, tolerance)
        effort = at_ends.effort
        if len(ends) == 1:
            return Nodes(cosines, 1, tail, tail <= tolerance, at_ends, effort)
        if tail > max(tolerance, _ROUGH):
            return Nodes(cosines, _NORMS[-1], tail, False, at_ends, effort)
        norms, tail_of_norms = _needed_norms(equations, effort, tolerance)
    worst = max(tail, tail_of_norms)
    return Nodes(cosines, norms, worst, worst <= tolerance, at_ends, effort)


def _needed_cosines(
    equations: Equations, norms: list[float], tolerance: float
) -> tuple[int, float, Flowed]:
    """Find how many cosines a table needs at these norms, up to ``_COSINES[-1]``.

    Returns:
        Their number, the tail that they leave, and the kernels.
    """
    finest = _COSINES[0]
    while True:
        at = equations.solved(
            torch.tensor(norms, dtype=torch.float64), equations.cosine(_extrema(finest))
        )
        for cosines in _COSINES[: _COSINES.index(finest) + 1]:
            # Chebyshev's extrema are nested.
            every = (finest - 1) // (cosines - 1)
            coarser = Flowed(at.values[::every], at.slopes[::every], at.sizes, at.effort)
            tail = _tail(coarser.values.diagonal(dim1=1, dim2=2))
            if tail <= tolerance or cosines == _COSINES[-1]:
                return cosines, tail, coarser
        following = _COSINES[_COSINES.index(finest) + 1]
        finest = _COSINES[-1] if at.effort > _MANY else following


def _needed_norms(equations: Equations, effort: float, tolerance: float) -> tuple[int, float]:
    """Find how many norms a table needs, up to ``_NORMS[-1]``, and the tail that they leave.

    The search ends where coefficients show that the most norms would not do, or where more are much
    work: then the tail is the projected one.
    """
    tails = dict[int, float]()
    for finest in _NORMS:
        if finest < _DECAYS_FROM and effort > _MANY:
            continue
        entries = _FEW_COSINES * finest * (finest + 1) // 2 * equations.kernels
        if finest > _DECAYS_FROM and effort * entries > _SEARCH:
            return _NORMS[-1], _projected(tails)
        few = equations.solved(
            equations.nodes_of_norms(finest), equations.cosine(_extrema(_FEW_COSINES))
        )
        for norms in _NORMS:
            if norms > finest or norms in tails:
                continue
            every = (finest - 1) // (norms - 1)
            values = few.values[:, ::every, ::every].transpose(0, 1)
            tails[norms] = max(_tail(values), _tail(few.sizes[::every].log()))
            if tails[norms] <= tolerance:
                return norms, tails[norms]
        if finest >= _DECAYS_FROM and _projected(tails) > tolerance:
            return _NORMS[-1], tails[finest]
    return _NORMS[-1], tails[_NORMS[-1]]


def _projected(tails: dict[int, float]) -> float:
    """Project the tail that the most norms would leave, from tails of fewer norms.

    Their numbers double. Coefficients fall as a power of a constant to their number: with twice as
    many by the square of the last factor.
    """
    before, tail = list(tails.values())[-2:]
    count = max(tails)
    factor = min(tail / before, 1.0)
    while count < _NORMS[-1]:
        count = 2 * count - 1
        factor = factor**2
        tail = tail * factor
    return tail


@lru_cache(maxsize=32)
def table(equations: Equations) -> Table:
    """Compute the table of an activation and a kind of kernel.

    Warns when its error is above what ``ACCURACY`` has for the activation.
    """
    nodes = needed_nodes(equations)
    # Many small operations, which threads only slow.
    with threads(1):
        norms = equations.nodes_of_norms(nodes.norms)
        if len(norms) == 1:
            at = nodes.ends
        else:
            at = equations.solved(norms, equations.cosine(_extrema(nodes.cosines)))
        values = _shortened(at.values)
        slopes = _shortened(at.slopes)
        untested = Table(values, slopes, at.sizes.log(), norms, equations.scales, equations.angular)
        error = _SAFETY * _error_between(untested, equations, nodes.cosines) + _INTEGRATION
    accuracy = ACCURACY.get(equations.name, _ACCURACY)
    if error > accuracy:
        warnings.warn(
            f"The {equations.kind} kernel of {equations.name} at horizon {equations.horizon:g} for "
            f"norms from {equations.low:.2g} to {equations.high:.2g} is known to "
            f"{error:.0e} of sqrt(K(x, x) K(xbar, xbar)), not to {accuracy:.0e}: its table would "
            "need more nodes. Scale the inputs to similar norms, or take a shorter horizon.",
            RuntimeWarning,
            stacklevel=4,
        )
    return replace(untested, error=error)


def _error_between(untested: Table, equations: Equations, cosines: int) -> float:
    """Measure the largest error of a table with so many cosines between its nodes.

    It is relative to ``sqrt(K(x, x) K(xbar, xbar))``.
    """
    norms = untested.norms
    if len(norms) > 1:
        some = torch.linspace(0, len(norms) - 2, min(len(norms) - 1, _TESTED)).long()
        norms = (norms[1:] * norms[:-1]).sqrt()[some]
    between = equations.cosine(torch.cat([torch.ones(1, dtype=torch.float64), _halfway(cosines)]))
    exact = equations.solved(norms, between)
    every = between[:, None, None].repeat(1, len(norms), len(norms))
    interpolated = untested.block(untested.values, norms, norms, every)
    error = interpolated / (exact.sizes[:, None] * exact.sizes) - exact.values
    return float(error.abs().max())


def chebyshev_value(coefficients: Tensor, x: Tensor) -> Tensor:
    """Evaluate ``sum_r coefficients[r] T_r(x)`` by Clenshaw's recurrence.

    ``coefficients`` [R, ...] broadcast against ``x``.

    ``b_r = c_r + 2 x b_{r+1} - b_{r+2}`` in place: with signs ``s_r = -s_{r+2}`` every ``s_r b_r``
    adds to the last but one.
    """
    twice = 2 * x
    older = torch.zeros_like(x)
    newer = torch.zeros_like(x)
    signs = [(1.0, 1.0, -1.0, -1.0)[r % 4] for r in range(len(coefficients) + 1)]
    for r in range(len(coefficients) - 1, 0, -1):
        older.addcmul_(twice, newer, value=signs[r] * signs[r + 1]).add_(
            coefficients[r], alpha=signs[r]
        )
        older, newer = newer, older
    return older.addcmul_(x, newer).add_(coefficients[0])


def barycentric_weights(points: Tensor, nodes: Tensor) -> Tensor:
    """Return weights ``[N, A]`` that interpolate between Chebyshev extrema, sorted either way."""
    w = torch.ones_like(nodes)
    w[1::2] = -1
    w[0] *= 0.5
    w[-1] *= 0.5
    apart = points[:, None] - nodes
    exact = apart == 0
    terms = w / torch.where(exact, 1.0, apart)
    terms = torch.where(exact.any(1, keepdim=True), exact.double(), terms)
    return terms / terms.sum(1, keepdim=True)


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


def _tail(values: Tensor) -> float:
    """The last coefficients along the first axis over the largest."""
    size = _coefficients(values).abs()
    return float(size[-_TAIL:].max() / size.max())


def _shortened(values: Tensor) -> Tensor:
    """Drop the last coefficients that together hold less than ``_LEFT_OUT`` of the kernel."""
    coefficients = _coefficients(values)
    held = coefficients.abs().amax(dim=(1, 2)).flip(0).cumsum(0).flip(0)
    return coefficients[: max(1, int((held > _LEFT_OUT * held[0]).sum()))]


# ---- How the covariance of two inputs, and the kernel of gradient descent, flow with depth


KINDS: tuple[KernelKind, ...] = get_args(KernelKind)
# Kernels moved by 1e-12 at most from tolerances ten times smaller (relu, gelu, erf, tanh; T from 1
# to 100). 1 - rho is rounded to 1e-16, and has its own tolerance.
_RTOL = 1e-11
_ATOL = 1e-12
_ATOL_APART = 1e-15
# Evaluations of the equations.
_MOST_EVALUATIONS = 20_000
# After so many evaluations it is estimated how many there will be.
_LOOKED = 1000
# The variance from which gelu counts as kinked: for norms to 1e3 it took 437 evaluations, 185 with
# u^2; for unit norms 65 and 173.
_KINKED_FROM = 30.0
_MOST_DEGREES = 2048
# Here 2,048 degrees leave 2e-11; more would take gigabytes, as nodes grow with the variance's root.
_MOST_VARIANCE = 50.0
# So many terms of a polynomial cost an entry as much as closed moments do.
_TERMS = 32
# What the last of the Hermite coefficients may hold, relative to the variance.
_SERIES_TAIL = 1e-11
# The square of this variance is a number; moments of smaller ones are proportional to it.
_LEAST_VARIANCE = 1e-150
# At this variance tanh is linear: its moments differ from the identity's by twice this.
_LINEAR = 1e-13
# Nodes of the variance: the range from 1e-13 to 50 needs the last but one.
_VARIANCES = (17, 25, 33, 49, 65, 97, 129)
# Nodes of the angle.
_SERIES_COSINES = (17, 33, 65)


class Flowed(NamedTuple):
    """Solutions of the equations.

    Attributes:
        values, slopes: kernels [R, A, A] and their derivatives in T, over ``sqrt(K(x, x) K(xbar,
            xbar))``.
        sizes: ``sqrt(K(x, x))``, [A].
        effort: evaluations of the equations, weighted by what one costs an entry.
    """

    values: Tensor
    slopes: Tensor
    sizes: Tensor
    effort: float


def flowed(
    act: Activation, kind: str, norms: Tensor, cosines: Tensor, horizon: float, depth: float
) -> Flowed:
    """Solve the equations for all pairs of the A norms at R cosines, of which the first is 1."""
    count = len(norms)
    # The equations are symmetric in the two inputs.
    first, second = torch.triu_indices(count, count)
    kernels, derivatives, effort = solve_pairs(
        act, kind, norms, first, second, cosines[:, None], horizon, depth
    )

    def full(sheet: Tensor) -> Tensor:
        square = norms.new_empty(len(cosines), count, count)
        square[:, first, second] = square[:, second, first] = sheet
        return square

    values = full(kernels)
    size = values[0].diagonal().sqrt()
    scale = size[:, None] * size
    return Flowed(values / scale, full(derivatives) / scale, size, effort)


def solve_pairs(
    act: Activation,
    kind: str,
    norms: Tensor,
    first: Tensor,
    second: Tensor,
    cosines: Tensor,
    horizon: float,
    depth: float,
) -> tuple[Tensor, Tensor, float]:
    """Solve the equations for P pairs of the A norms, given by their indices.

    The derivative in T is not-a-number for a finite depth.

    Args:
        cosines: ``[P]``, or ``[R, 1]`` for all pairs at each of them.

    Returns:
        The kernel and its derivative in T, in the shape of ``cosines`` times the pairs, and the
        effort.
    """
    rates = Rates(act, kind == "ntk", first, second, norms, horizon)
    cosines = torch.broadcast_to(cosines, (cosines * norms[first]).shape)
    if depth == math.inf:
        return rates.flow(cosines)
    values = rates.steps(cosines, int(depth))
    return values, torch.full_like(values, torch.nan), int(depth) * rates.weight(cosines)


class Rates:
    """The rates of the equations of P pairs of inputs, and their solutions.

    Over depth a variance may grow as ``e^(T/2)`` (relu), but its logarithm and the cosine ``rho = C
    / sqrt(a b)`` change slowly. They and ``e = D / sqrt(a b)`` are what is integrated: with ``mu =
    m / sqrt(a b)`` and g the mean of the rates of ``log a`` and ``log b``,

        (log a)' = m(a, a, a) / a,    (1 - rho)' = g rho - mu,    e' = mu + (s - g) e.

    The root of ``1 - rho`` is what relu sees of nearly parallel inputs, so that this is followed to
    its own relative tolerance. Where T is 100 gelu takes 520 evaluations so, and 3,700 in the
    coordinates ``a, C``.
    """

    def __init__(
        self,
        act: Activation,
        tangent: bool,
        first: Tensor,
        second: Tensor,
        norms: Tensor,
        horizon: float,
    ) -> None:
        self.tangent = tangent
        self.first = first
        self.second = second
        self.norms = norms
        self.horizon = horizon
        largest = float(norms.max()) ** 2 + horizon
        self.kinked = act.kinked or (act.name == "gelu" and largest > _KINKED_FROM)
        self.moments: Moments = ClosedMoments(act, tangent)
        if act.name == "tanh":
            # |phi| < 1, so that ``largest`` is the largest variance.
            self.moments = series_moments(act.name, tangent, float(norms.min()) ** 2, largest)
        elif isinstance(act, FunctionActivation):
            ends = float(norms.min()), float(norms.max())
            self.moments = function_moments(act, tangent, *ends, horizon)

    def weight(self, cosines: Tensor) -> float:
        """Return what an evaluation costs an entry, in evaluations of closed moments."""
        return self.moments.weight(cosines.numel() / len(self.first))

    def _same(self, cosines: Tensor) -> Tensor:
        """Mark the pairs that are an input and itself.

        Their cosine stays 1. It would not by rounding, which differs between lanes of a processor,
        and from one ulp the NTK of gelu was off by 1e-9.
        """
        return (self.first == self.second) & (cosines == 1)

    def flow(self, cosines: Tensor) -> tuple[Tensor, Tensor, float]:
        """Compute the kernel at infinite depth, its derivative in T, and the effort."""
        shape = cosines.shape
        same = self._same(cosines)
        lengths = [len(self.norms)] + [cosines.numel()] * (1 + self.tangent)

        def parts(state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            log_variances, apart, *tangents = torch.split(state, lengths)
            e = torch.zeros(())
            if tangents:
                e = tangents[0].view(shape)
            return log_variances.exp(), (1 - apart.view(shape)).clamp(-1, 1), e

        def rate(state: Tensor) -> Tensor:
            variances, rho, e = parts(state)
            growth, mu, s = self.moments(variances, self.first, self.second, rho)
            mean_growth = 0.5 * (growth[self.first] + growth[self.second])
            rates = [growth, (mean_growth * rho - mu).masked_fill_(same, 0.0).flatten()]
            if self.tangent:
                rates.append((mu + (s - mean_growth) * e).flatten())
            return torch.cat(rates)

        start = [2 * self.norms.log(), 1 - cosines.flatten()]
        tolerances = [torch.full_like(start[0], _ATOL), torch.full_like(start[1], _ATOL_APART)]
        if self.tangent:
            start.append(cosines.flatten())
            tolerances.append(torch.full_like(start[1], _ATOL))
        weight = self.weight(cosines)
        # Twice the work, as what a slice needed is an estimate for others.
        affordable = min(_MOST_EVALUATIONS, int(2 * _WORK / (sum(lengths) * weight)))
        end, evaluations = _integrated(
            rate,
            torch.cat(start),
            torch.cat(tolerances),
            self.horizon,
            kinked=self.kinked,
            most=affordable,
        )
        variances, rho, e = parts(end)
        _, mu, s = self.moments(variances, self.first, self.second, rho)
        roots = variances.sqrt()
        scale = roots[self.first] * roots[self.second]
        if self.tangent:
            return scale * (rho + e), scale * (2 * mu + s * e), evaluations * weight
        return scale * rho, scale * mu, evaluations * weight

    def steps(self, cosines: Tensor, depth: int) -> Tensor:
        """Compute the kernel after so many Euler steps, which are residual blocks."""
        tau = self.horizon / depth
        same = self._same(cosines)
        variances = self.norms.square().clamp_min(_LEAST_VARIANCE)
        C = cosines * (variances[self.first] * variances[self.second]).sqrt()
        D = C
        for _ in range(depth):
            scale = (variances[self.first] * variances[self.second]).sqrt()
            # Rounding must not leave the cone of covariances.
            rho = (C / scale).clamp(-1, 1).masked_fill(same, 1.0)
            growth, mu, s = self.moments(variances, self.first, self.second, rho)
            D = D + tau * (scale * mu + s * D)
            C = C + tau * scale * mu
            variances = variances + tau * growth * variances
        if self.tangent:
            return C + D
        return C


def _integrated(
    rate: Callable[[Tensor], Tensor],
    start: Tensor,
    atol: Tensor,
    horizon: float,
    *,
    kinked: bool,
    most: int,
) -> tuple[Tensor, int]:
    """Integrate to T; return the state there, and how often the rate was evaluated.

    Equations that would take more than ``most`` evaluations are refused. Where phi has a kink the
    kernel of opposite inputs begins as ``t^(3/2)``: time is ``u^2``.
    """
    end = math.sqrt(horizon) if kinked else horizon
    evaluations = 0
    looked_at = 0.0

    def f(u: float, y: Array) -> Array:
        nonlocal evaluations, looked_at
        evaluations += 1
        if evaluations % _LOOKED == 0:
            needed = evaluations + _LOOKED * (end - u) / max(u - looked_at, 1e-300)
            looked_at = u
            # The first steps may be short, as at the kink.
            if evaluations > _LOOKED and needed > most:
                raise _too_fast(horizon, needed, most)
        if evaluations > most:
            raise _too_fast(horizon, evaluations, most)
        dt_du = 2 * u if kinked else 1
        change: Array = dt_du * rate(torch.from_numpy(y)).numpy()
        return change

    with np.errstate(over="ignore", invalid="ignore"):
        orbit = solve_ivp(
            f,
            (0.0, end),
            start.numpy(),
            method="DOP853",
            rtol=_RTOL,
            atol=atol.numpy(),
            t_eval=[end],
        )
    if not orbit.success or not np.isfinite(orbit.y).all():
        raise InputError(
            f"The kernel equations leave the range of numbers before T={horizon:g}, or change too "
            "fast to follow. Lower the horizon, or scale the inputs to norms near sqrt(d)."
        )
    return torch.from_numpy(np.ascontiguousarray(orbit.y[:, -1])), evaluations


def _too_fast(horizon: float, needed: float, most: int) -> InputError:
    return InputError(
        f"The kernel equations change too fast to be followed to T={horizon:g}: {most:,} "
        f"evaluations do not suffice, about {needed:,.0f} would. Lower the horizon, scale the "
        "inputs to norms near sqrt(d), or take fewer at once."
    )


# ---- Gaussian moments over the variances: in closed form, or by a table of them


class Moments(Protocol):
    """Gaussian moments of P pairs of A variances, given by their indices, at cosines [..., P]."""

    def __call__(
        self, variances: Tensor, first: Tensor, second: Tensor, cosines: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``m(a, a, a) / a``, [A], and ``m / sqrt(a b)`` and s, in the shape of the cosines.

        s is zero where it is not needed.
        """
        ...

    def weight(self, cosines: float) -> float:
        """Return what they cost an entry, over what closed moments cost.

        Args:
            cosines: how many of them every pair of variances has.
        """
        ...


@dataclass(frozen=True)
class ClosedMoments:
    """Moments in closed form."""

    act: Activation
    tangent: bool

    def __call__(
        self, variances: Tensor, first: Tensor, second: Tensor, cosines: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        variances = variances.clamp_min(_LEAST_VARIANCE)
        a = variances[first]
        b = variances[second]
        # Exactly a where both are a, so that a cosine of 1 stays.
        scale = (a * b).sqrt()
        covariance = cosines * scale
        mu = self.act.moment(a, b, covariance) / scale
        s = torch.zeros(())
        if self.tangent:
            s = self.act.slope_moment(a, b, covariance)
        growth = self.act.moment(variances, variances, variances) / variances
        return growth, mu, s

    def weight(self, cosines: float) -> float:
        return 1.0


@dataclass(frozen=True)
class SeriesMoments:
    """Moments of an odd function, interpolated from Mehler's series.

    With Hermite coefficients h_k, ``m / C = sum_k h_k(a) h_k(b) rho^(k-1) / sqrt(a b)`` and s the
    sum of k times these terms. Both are even in rho, and smooth in the logarithms of the variances
    and in the angle: for variances from 0.1 to 17 they need 33 nodes in each, but the series 350
    terms.

    Attributes:
        log_variances: nodes, [B].
        ratios, slopes: Chebyshev coefficients of ``m / C`` and of s in ``2 x^2 - 1`` with ``x = 1 -
            2 angle / pi``, nodal in both variances, [Y, B, B].
    """

    log_variances: Tensor
    ratios: Tensor
    slopes: Tensor
    tangent: bool

    def __call__(
        self, variances: Tensor, first: Tensor, second: Tensor, cosines: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = barycentric_weights(variances.clamp_min(_LINEAR).log(), self.log_variances)
        # At the cosine 1 all polynomials are 1.
        parallel = weights @ self.ratios.sum(0)
        growth = (parallel * weights).sum(1)
        x = cosines.acos().mul_(-2 / math.pi).add_(1)
        y = x.square().mul_(2).sub_(1)
        mu = cosines * self._at(self.ratios, weights, first, second, y)
        s = torch.zeros(())
        if self.tangent:
            s = self._at(self.slopes, weights, first, second, y)
        return growth, mu, s

    @staticmethod
    def _at(sheet: Tensor, weights: Tensor, first: Tensor, second: Tensor, y: Tensor) -> Tensor:
        """Evaluate the moments that have these coefficients, at ``y [..., P]``."""
        # These are all pairs of a few variances, or pairs of many, of which a matrix of all pairs
        # would not fit into memory.
        if len(first) > len(weights):
            coefficients = (weights @ sheet @ weights.T)[:, first, second]
        else:
            coefficients = sheet.new_empty(len(sheet), len(first))
            for row, term in zip(coefficients, sheet, strict=True):
                row.copy_(((weights @ term)[first] * weights[second]).sum(1))
        return chebyshev_value(coefficients.view(len(sheet), *[1] * (y.dim() - 1), -1), y)

    def weight(self, cosines: float) -> float:
        terms = len(self.ratios) * (2 if self.tangent else 1)
        return 1 + terms * (1 + len(self.log_variances) / cosines) / _TERMS


@lru_cache(maxsize=16)
def series_moments(name: str, tangent: bool, low: float, high: float) -> SeriesMoments:
    """Tabulate the moments of tanh for variances from ``low`` to ``high``."""
    low = max(low, _LINEAR)
    coefficients = hermite_coefficients(network_activation(name), high)
    for count in _VARIANCES:
        spread = 0.5 * math.log(high / low)
        nodes = 0.5 * math.log(low * high) + spread * _extrema(count)
        odd = coefficients(nodes.exp())[:, 1::2] / (0.5 * nodes).exp()[:, None]
        if _tail(odd) <= _LEFT_OUT:
            break
    orders = 2 * torch.arange(odd.shape[1], dtype=torch.float64)
    for count in _SERIES_COSINES:
        x = (0.5 + 0.5 * _extrema(count)).clamp_min(0).sqrt()
        powers = torch.sin(0.5 * math.pi * x)[:, None] ** orders
        ratios = (odd * powers[:, None]) @ odd.T
        slopes = (odd * ((1 + orders) * powers)[:, None]) @ odd.T
        if max(_tail(ratios), _tail(slopes)) <= _LEFT_OUT:
            break
    return SeriesMoments(nodes, _shortened(ratios), _shortened(slopes), tangent)


def hermite_coefficients(act: Activation, most: float) -> Callable[[Tensor], Tensor]:
    """Return the function that gives Hermite coefficients of ``phi(sqrt(a) z)``.

    It takes variances ``a`` [A] of at most ``most``, and returns [A, degree + 1]: so many that the
    others hold less than ``_SERIES_TAIL`` of the variance.
    """
    degree = 32
    while degree <= _MOST_DEGREES and most <= _MOST_VARIANCE:
        z, weights = hermite_functions(degree, most)
        share = (act.phi(math.sqrt(most) * z) @ weights).square()
        if float(share[-8:].sum()) <= _SERIES_TAIL * float(share.sum()):
            return partial(_expanded, act, z, weights)
        degree *= 2
    raise InputError(
        f"The tanh kernel meets hidden variances of {most:.3g}, where its Hermite series needs "
        f"more than {_MOST_DEGREES} terms. Scale the inputs to norms near sqrt(d), lower the "
        "horizon, or use 'erf'."
    )


def _expanded(act: Activation, z: Tensor, weights: Tensor, variances: Tensor) -> Tensor:
    """Return Hermite coefficients [A, degree + 1] at these variances, by quadrature at nodes z."""
    return act.phi(variances.sqrt()[:, None] * z) @ weights
