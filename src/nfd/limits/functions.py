"""Activations of kernels only: abs, leaky relu, sin, cos, and any function by quadrature.

**Two lines.** ``phi(x) = l x`` for negative and ``r x`` for positive x is ``l x + (r - l)
relu(x)``, so that with ``m`` and ``s`` of relu

    E[phi(h) phi(hbar)] = l r c + (r - l)^2 m,    E[phi'(h) phi'(hbar)] = l r + (r - l)^2 s.

**Waves.** ``E[sin h sin hbar] = e^(-(a+b)/2) sinh c``, and that of cosines has ``cosh c``.

**Any function** has normalised Hermite coefficients ``c_k(a)`` of ``phi(sqrt(a) z)``, and (Mehler)

    m = sum_k c_k(a) c_k(b) rho^k,    s = sum_k k c_k(a) c_k(b) rho^(k-1) / sqrt(a b).

What the coefficients up to a degree leave of ``E phi^2`` and of ``E phi'^2`` (Parseval) is known,
for the even and the odd part of the function each, and stands at the next degree: moments are exact
at ``rho = 1`` and stay covariances. A kernel is computed with two degrees, one twice the other.
Where phi has kinks, errors of s fall as ``degree^(-1/2)`` and those of m faster: four times the
change at the last doubling is more than what is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from nfd.core.activations import ACTIVATIONS, Activation, hermite_functions
from nfd.core.checks import check_choice
from nfd.core.errors import InputError, InputTypeError

# What a function's coefficients may leave of its mean square, to count as all of them.
_LEFT = 1e-12
# The degrees that are tried. Where the last one leaves more, the change at its doubling is stated.
_DEGREES = (16, 32, 64, 128)
# The step of the finer nodes, in standard deviations: kinks lie between nodes.
_FINE_STEP = 0.01
# Nodes are at most 0.27 apart in the stream itself, as for tanh. At a variance of 1e4 they are
# 20,000.
_STEP_OF_STREAM = 0.27
_MOST_VARIANCE = 1e4
# Steps of the variance's equation, and what their rounding is allowed.
_STEPS = 64
_MARGIN = 1.05
# Nodes of the variance, where its range is narrow or wide; twice as many for the finer series.
_FEW_VARIANCES = 33
_MANY_VARIANCES = 65
_WIDE = 1e3
# The square of this variance is a number.
_LEAST_VARIANCE = 1e-150
# A function is looked at so finely for jumps, which change it by more than its slopes do.
_JUMP_STEP = 1e-3
# Fewer powers are all computed at once.
_SMALL = 2**16
# So many terms of a polynomial cost an entry as much as closed moments do.
_TERMS = 32


def two_lines(name: str, left: float, right: float) -> Activation:
    """Return the function that is ``left x`` for negative x and ``right x`` for positive ones."""
    relu = ACTIVATIONS["relu"]
    product = left * right
    square = (right - left) ** 2

    def moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return product * c + square * relu.moment(a, b, c)

    def slope_moment(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return product + square * relu.slope_moment(a, b, c)

    return Activation(
        name,
        lambda x: torch.where(x > 0, right * x, left * x),
        lambda x: torch.where(x > 0, right, left).to(x.dtype),
        moment,
        slope_moment,
        scales=True,
        kinked=left != right,
    )


def _damped_sinh(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``e^(-(a+b)/2) sinh c``, of full relative accuracy, and within range at any variance."""
    size = c.abs()
    return -0.5 * c.sign() * torch.exp(size - 0.5 * (a + b)) * torch.expm1(-2 * size)


def _damped_cosh(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """``e^(-(a+b)/2) cosh c``, within range at any variance."""
    size = c.abs()
    return 0.5 * torch.exp(size - 0.5 * (a + b)) * (1 + torch.exp(-2 * size))


KERNEL_ACTIVATIONS: dict[str, Activation] = ACTIVATIONS | {
    "abs": two_lines("abs", -1.0, 1.0),
    "leaky-relu": two_lines("leaky-relu", 0.01, 1.0),
    "sin": Activation("sin", torch.sin, torch.cos, _damped_sinh, _damped_cosh),
    "cos": Activation("cos", torch.cos, lambda x: -torch.sin(x), _damped_cosh, _damped_sinh),
}


@dataclass(frozen=True)
class FunctionActivation(Activation):
    """A function of the user, whose moments are computed by quadrature.

    Attributes:
        degree: of its Hermite series.
        is_fine: whether it is the finer of two series.
        jump: a place where the function jumps, None for none that is seen.
    """

    degree: int = 0
    is_fine: bool = False
    jump: float | None = None

    def of_degree(self, degree: int) -> FunctionActivation:
        """Return the function with so many Hermite coefficients."""
        return replace(self, degree=degree)

    def finer(self) -> FunctionActivation:
        """Return the function with twice as many coefficients, from finer nodes."""
        return replace(self, degree=2 * self.degree, is_fine=True)


def kernel_activation(value: str | Callable[[Tensor], Tensor] | Activation) -> Activation:
    """Return the activation of a name, or of a function, which gets no degree yet."""
    if isinstance(value, Activation):
        return value
    if isinstance(value, str) or not callable(value):
        return KERNEL_ACTIVATIONS[check_choice("activation", value, KERNEL_ACTIVATIONS)]
    return _of_function(value)


def _of_function(function: Callable[[Tensor], Tensor]) -> Activation:
    """Return the activation of a function: in closed form for two lines."""
    # Not the name of an activation of ours, which might compute something else.
    name = f"function {getattr(function, '__name__', type(function).__name__)}"

    def phi(x: Tensor) -> Tensor:
        with torch.no_grad():
            return _checked(name, _called(name, function, x), x)

    def slope(x: Tensor) -> Tensor:
        with torch.enable_grad():
            at = x.detach().clone().requires_grad_()
            y = _called(name, function, at)
            if not y.requires_grad:
                return torch.zeros_like(x)
            (slopes,) = torch.autograd.grad(y.sum(), at)
        return _checked(f"{name}'s slope", slopes, x)

    sizes = torch.logspace(-3, 1, 41, dtype=torch.float64)
    grid = torch.cat([-sizes, torch.zeros(1, dtype=torch.float64), sizes])
    values = phi(grid)
    # Each entry beside fewer others: a softmax or a dropout is no activation. The grid has mean 0
    # and so has every third of it, which a subtracted mean does not change; its upper part has not.
    some = (slice(None, None, 3), slice(30, None))
    if not all(torch.allclose(phi(grid[at]), values[at], rtol=1e-12, atol=1e-14) for at in some):
        raise InputError(
            f"activation, {name}, must map every entry by itself, and to the same number each "
            "time; it does not."
        )
    left = -values[:41] / sizes
    right = values[42:] / sizes
    is_two_lines = (
        float(values[41]) == 0
        and float((left - left[0]).abs().max()) <= 1e-14 * float(left[0].abs())
        and float((right - right[0]).abs().max()) <= 1e-14 * float(right[0].abs())
    )
    if is_two_lines:
        return two_lines(name, float(left[0]), float(right[0]))
    return FunctionActivation(name, phi, slope, jump=_jump(phi, slope))


def _called(name: str, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Call a function of the user, and say what fails."""
    try:
        y: Any = function(x)
    except Exception as error:
        raise InputError(
            f"activation, {name}, must take a float64 tensor of PyTorch and return one; it raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(y, Tensor):
        raise InputTypeError(
            f"activation, {name}, must return a tensor of PyTorch; it returned {type(y).__name__}."
        )
    return y


def _checked(name: str, y: Tensor, x: Tensor) -> Tensor:
    """Return a function's values as float64 of the shape of ``x``, all finite."""
    if y.shape != x.shape or y.is_complex():
        raise InputError(
            f"activation, {name}, must map every entry to a real number; it made "
            f"{list(y.shape)} of {list(x.shape)}."
        )
    finite = y.isfinite()
    if not bool(finite.all()):
        raise InputError(
            f"activation, {name}, must be finite; it is {float(y[~finite][0]):g} at "
            f"{float(x[~finite][0]):g}."
        )
    return y.to(torch.float64)


def _jump(phi: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> float | None:
    """Find a place within 10 of zero where a function changes by more than its slopes say."""
    x = torch.arange(-10, 10, _JUMP_STEP, dtype=torch.float64) + 0.37 * _JUMP_STEP
    slopes = slope(x)
    mean = 0.5 * (slopes[1:] + slopes[:-1])
    surplus = (phi(x).diff() - _JUMP_STEP * mean).abs()
    # A kink moves it by half the change of the slope.
    expected = _JUMP_STEP * (2 * slopes.diff().abs() + 1e-3 * (1 + mean.abs()))
    jumps = surplus > expected
    if not bool(jumps.any()):
        return None
    return float(x[1:][jumps][0])


# ---- Moments of a function by its Hermite series


class FunctionMoments:
    """Moments of a function by its Hermite series, for a range of variances.

    Coefficients are interpolated in the logarithm of the variance: as they come from a quadrature,
    kinks would cross its nodes as variances grow, and an integrator would follow each crossing.
    """

    def __init__(self, act: FunctionActivation, tangent: bool, low: float, high: float) -> None:
        self.tangent = tangent
        self.degree = act.degree
        low = max(low, _LEAST_VARIANCE)
        high = max(high, low * (1 + 1e-6))
        count = _FEW_VARIANCES if high < _WIDE * low else _MANY_VARIANCES
        if act.is_fine:
            count = 2 * count - 1
        extrema = torch.cos(math.pi * torch.arange(count, dtype=torch.float64) / (count - 1))
        half_span = 0.5 * math.log(high / low)
        self.log_variances = 0.5 * math.log(high * low) + half_span * extrema
        self.signs = torch.ones(count, dtype=torch.float64)
        self.signs[1::2] = -1
        self.signs[0] = 0.5
        self.signs[-1] *= 0.5
        series = _Series(act, high)
        roots = (0.5 * self.log_variances).exp()
        coefficients, values = series.coefficients(roots)
        terms = coefficients / roots[:, None]
        left = series.left(values / roots[:, None], terms)
        self.terms = torch.cat([terms, left], 1)
        # By parts: the coefficients of the slope are those of the function.
        of_slope = (terms * torch.arange(act.degree + 1, dtype=torch.float64).sqrt())[:, 1:]
        left = series.left(act.slope(roots[:, None] * series.z), of_slope)
        self.slope_terms = torch.cat([of_slope, left], 1)

    def __call__(
        self, variances: Tensor, first: Tensor, second: Tensor, cosines: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        weights = self._weights(variances)
        terms = weights @ self.terms
        growth = terms.square().sum(1)
        mu = _powers(terms, first, second, cosines)
        s = torch.zeros(())
        if self.tangent:
            s = _powers(weights @ self.slope_terms, first, second, cosines)
        return growth, mu, s

    def _weights(self, variances: Tensor) -> Tensor:
        """Return weights [A, B] of barycentric interpolation between the nodes."""
        places = variances.clamp_min(_LEAST_VARIANCE).log()
        places = places.clamp(self.log_variances[-1], self.log_variances[0])
        apart = places[:, None] - self.log_variances
        exact = apart == 0
        shares = self.signs / torch.where(exact, 1.0, apart)
        shares = torch.where(exact.any(1, keepdim=True), exact.double(), shares)
        return shares / shares.sum(1, keepdim=True)

    def weight(self, cosines: float) -> float:
        """Return what they cost an entry, over what closed moments cost."""
        terms = (self.degree + 3) * (2 if self.tangent else 1)
        return 1 + terms * (1 + len(self.log_variances) / (16 * cosines)) / _TERMS


class _Series:
    """The quadrature that gives Hermite coefficients of a function."""

    def __init__(self, act: FunctionActivation, most: float) -> None:
        self.act = act
        step = _STEP_OF_STREAM / math.sqrt(most)
        if act.degree >= _DEGREES[-1]:
            step = min(step, _FINE_STEP if act.is_fine else 2 * _FINE_STEP)
        # ``hermite_functions`` takes the variance that gives this step.
        self.z, self.weights = hermite_functions(act.degree, (_STEP_OF_STREAM / step) ** 2)
        spacing = float(self.z[1] - self.z[0])
        self.density = spacing * torch.exp(-0.5 * self.z.square()) / math.sqrt(2 * math.pi)

    def coefficients(self, roots: Tensor) -> tuple[Tensor, Tensor]:
        """Return coefficients [B, degree + 1] at these standard deviations, and values [B, m]."""
        values = self.act.phi(roots[:, None] * self.z)
        return values @ self.weights, values

    def left(self, values: Tensor, coefficients: Tensor) -> Tensor:
        """Return the next two coefficients, which hold all that is left of a mean square, [B, 2].

        The even and the odd part of a function keep their powers.
        """
        even = 0.5 * (values + values.flip(1))
        odd = values - even
        count = coefficients.shape[1]
        left = torch.zeros(len(values), 2, dtype=torch.float64)
        for offset in range(2):
            parity = (count + offset) % 2
            part = odd if parity else even
            square = part.square() @ self.density
            rest = square - coefficients[:, parity::2].square().sum(1)
            # Below, there is only the rounding of the difference.
            left[:, offset] = torch.where(rest > 1e-13 * square, rest, 0.0)
        return left.sqrt()

    def is_complete(self, variances: Tensor) -> bool:
        """Return whether the coefficients hold all of ``E phi^2`` and of ``E phi'^2``."""
        roots = variances.sqrt()
        coefficients, values = self.coefficients(roots)
        of_slope = (coefficients * torch.arange(self.act.degree + 1, dtype=torch.float64).sqrt())[
            :, 1:
        ] / roots[:, None]
        slopes = self.act.slope(roots[:, None] * self.z)
        for at, terms in ((values, coefficients), (slopes, of_slope)):
            whole = at.square() @ self.density
            rest = (whole - terms.square().sum(1)).abs()
            last = terms[:, -4:].square().sum(1)
            if bool((torch.maximum(rest, last) > _LEFT * whole).any()):
                return False
        return True


def _powers(terms: Tensor, first: Tensor, second: Tensor, cosines: Tensor) -> Tensor:
    """Evaluate ``sum_k terms_k(a) terms_k(b) rho^k``, by Horner's rule if they are many."""
    if cosines.numel() * len(terms.T) < _SMALL:
        orders = torch.arange(len(terms.T), dtype=torch.float64)
        return (terms[first] * terms[second] * cosines[..., None] ** orders).sum(-1)
    total = torch.zeros_like(cosines)
    for term in terms.flip(1).T:
        total.mul_(cosines).add_(term[first] * term[second])
    return total


@lru_cache(maxsize=16)
def function_moments(
    act: FunctionActivation, tangent: bool, low: float, high: float, horizon: float
) -> FunctionMoments:
    """Tabulate the moments of a function for inputs with norms from ``low`` to ``high``."""
    most = largest_variance(act, low**2, high**2, horizon)
    return FunctionMoments(act, tangent, low**2, most)


def resolved_degree(act: FunctionActivation, norms: tuple[float, float], horizon: float) -> int:
    """Return the degree at which a function's coefficients are all, or the last that is tried."""
    low = max(norms[0] ** 2, _LEAST_VARIANCE)
    high = largest_variance(act, low, norms[1] ** 2, horizon)
    some = torch.linspace(math.log(low), math.log(high), 9, dtype=torch.float64).exp()
    for degree in _DEGREES:
        if _Series(act.of_degree(degree), high).is_complete(some):
            return degree
    return _DEGREES[-1]


def largest_variance(act: Activation, low: float, high: float, horizon: float) -> float:
    """Return a variance that none exceeds before T, from starts between ``low`` and ``high``.

    At infinite depth it is that of the largest start, by Heun's rule. One Euler step may reach
    further, from any start.
    """
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    density = torch.exp(-0.5 * z.square()) * (18 / 2000 / math.sqrt(2 * math.pi))

    def rate(at: float) -> float:
        if not at <= _MOST_VARIANCE:
            raise InputError(
                f"activation {act.name} makes variances above {_MOST_VARIANCE:g} before "
                f"T={horizon:g}, where quadrature needs too many nodes. Lower the horizon, or "
                "scale the inputs to norms near sqrt(d)."
            )
        return float(act.phi(math.sqrt(at) * z).square() @ density)

    step = horizon / _STEPS
    variance = high
    for _ in range(_STEPS):
        before = rate(variance)
        variance += 0.5 * step * (before + rate(variance + step * before))
    starts = torch.linspace(math.log(max(low, 1e-12)), math.log(max(high, 1e-12)), 9).exp()
    one_step = max(float(start) + horizon * rate(float(start)) for start in starts)
    largest = _MARGIN * max(variance, one_step)
    rate(largest)
    return largest
