"""The gradient of a Gram matrix in its inputs.

``K(x, xbar)`` is a function of the norms and of the angle of two inputs. With ``r = |x| /
sqrt(d)``, unit vectors ``u, ubar`` of the inputs, ``c = u . ubar`` and the angle ``theta``,

    dK/dx = (dK/dlog r) u / |x| - (dK/dtheta) (ubar - c u) / (|x| sin theta).

The vector after ``dK/dtheta`` has length 1 / |x|, so that nothing is lost where inputs are nearly
parallel. The NTK of relu has a kink there: parallel inputs get the mean of both sides.

**By a table** both derivatives are those of the interpolant: of Chebyshev's polynomials in the
angle, and of the polynomial through the nodes in the logarithm of the norm. **Pairs** that are
solved one by one take differences of seven points in each coordinate, of the step whose differences
of six and of seven points agree best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.modes import undisturbed
from nfd.limits.functions import FunctionActivation
from nfd.limits.kernels import (
    Choice,
    Equations,
    Table,
    barycentric_weights,
    chebyshev_value,
    input_directions,
    range_of,
    table,
)

# Entries of a matrix that are worked on at a time: its sheets of coefficients have up to 257 times
# as many.
_BLOCK = 2**14
# Below this angle the sine is not divided by: rounding turns an input by 1e-8.
_NEAR = 1e-6
# Steps of differences, in radians or in the logarithm of a norm.
_STEPS = (0.05, 0.01, 0.002)
_POINTS = 7
# So many solutions of a pair the differences take.
_SOLUTIONS = len(_STEPS) * (2 * _POINTS)
# A table of one norm has no slope in it: it is widened by this.
_WIDENED = 0.02


def differentiable_gram(choice: Choice, X: Tensor, X2: Tensor | None) -> tuple[Tensor, float]:
    """Compute the Gram matrix with its gradient in the inputs that want one, and its error."""
    for name, inputs in (("X", X), ("X2", X2)):
        if inputs is None or not inputs.requires_grad:
            continue
        zeros = (choice.norms(inputs.detach()) <= choice.least_norm).nonzero().flatten()
        if len(zeros):
            raise InputError(
                f"{name} has an input of zero norm, row {int(zeros[0])}, where the kernel has no "
                "gradient in general. Drop such rows, or give a bias: bias_variance=0.1."
            )
    with torch.no_grad():
        gram, _, error = choice.gram(X.detach(), None if X2 is None else X2.detach())
        slopes = _Slopes.of(choice, X.detach(), None if X2 is None else X2.detach())
    result: Tensor = _Gram.apply(X, X2, gram, slopes)  # type: ignore[no-untyped-call]
    return result, error


class _Gram(torch.autograd.Function):
    """A Gram matrix that is known, with its gradient in the inputs."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, X2: Tensor | None, gram: Tensor, slopes: _Slopes) -> Tensor:
        ctx.save_for_backward(X, X2)
        ctx.slopes = slopes
        return gram.clone()

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        X, X2 = ctx.saved_tensors
        with undisturbed(), torch.no_grad():
            first = second = None
            if X2 is None:
                first = ctx.slopes.gradient(X, X, G + G.T)
            elif ctx.needs_input_grad[0]:
                first = ctx.slopes.gradient(X, X2, G)
            if X2 is not None and ctx.needs_input_grad[1]:
                second = ctx.slopes.gradient(X2, X, G.T)
        return _last(first, X, X2, G), _last(second, X, X2, G), None, None


def _last(gradient: Tensor | None, *sources: Tensor | None) -> Tensor | None:
    """Return a gradient that refuses to be differentiated again."""
    if gradient is None:
        return None
    result: Tensor = _Last.apply(gradient, *sources)  # type: ignore[no-untyped-call]
    return result


class _Last(torch.autograd.Function):
    """A gradient that depends on its sources by a derivative that is not computed.

    PyTorch's own ``once_differentiable`` takes it for a constant where the sum of a kernel is
    differentiated.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor | None) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise InputError(
            "nfd.kernel has first derivatives only, and a second one is asked for. Leave out "
            "create_graph=True, or take differences of the first."
        )


@dataclass(frozen=True)
class _Slopes:
    """Derivatives of the kernel of two inputs, by a table or, where that is None, by pairs."""

    choice: Choice
    equations: Equations
    kernel_table: Table | None

    @classmethod
    def of(cls, choice: Choice, X: Tensor, X2: Tensor | None) -> _Slopes:
        """Choose between a table and pairs, of inputs that are not zero."""
        if isinstance(choice.act, FunctionActivation):
            _, choice = choice.series(X, X2)
        norms = choice.norms(X if X2 is None else torch.cat([X, X2]))
        low, high = range_of(norms)
        if low == high:
            low, high = (1 - _WIDENED) * low, (1 + _WIDENED) * high
        equations = choice.equations(low, high)
        pairs = len(X) * len(X if X2 is None else X2)
        if equations.tabled(pairs * _SOLUTIONS):
            return cls(choice, equations, table(equations).to(X.device))
        return cls(choice, equations, None)

    def gradient(self, X: Tensor, X2: Tensor, G: Tensor) -> Tensor:
        """Return ``sum_j G_ij dK(x_i, x2_j) / dx_i``, [N, d]."""
        norms, norms2 = self.choice.norms(X), self.choice.norms(X2)
        unit = input_directions(X, norms)
        unit2 = input_directions(X2, norms2)
        rows = []
        height = max(1, _BLOCK // max(len(X2), 1))
        for top in range(0, len(X), height):
            here = slice(top, top + height)
            cosine = (unit[here] @ unit2.T).clamp(-1, 1)
            if X is X2:
                cosine[:, here].fill_diagonal_(1.0)
            angle = cosine.acos()
            in_norm, in_angle = self._derivatives(norms[here], norms2, angle)
            in_norm *= G[here]
            in_angle *= G[here] / angle.clamp(_NEAR, math.pi - _NEAR).sin()
            along = (in_norm + in_angle * cosine).sum(1, keepdim=True) * unit[here]
            rows.append(along - in_angle @ unit2)
        length = norms * math.sqrt(X.shape[1])
        gradient: Tensor = self.choice.factor * torch.cat(rows) / length[:, None]
        return gradient

    def _derivatives(self, norms: Tensor, norms2: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        """Return derivatives ``[N, M]`` in the logarithm of the first norm, and in the angle."""
        if self.kernel_table is not None:
            return _of_table(self.kernel_table, norms, norms2, angle)
        shape = angle.shape
        first = norms[:, None].expand(shape).flatten()
        second = norms2.expand(shape).flatten()
        in_norm, in_angle = _of_pairs(self.equations, first, second, angle.flatten())
        return in_norm.view(shape), in_angle.view(shape)


# ---- Derivatives of a table


def _of_table(
    kernel_table: Table, norms: Tensor, norms2: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """Differentiate the interpolant."""
    x = 1 - 2 * angle / math.pi if kernel_table.angular else angle.cos()
    dx = -2 / math.pi if kernel_table.angular else -angle.sin()
    sheet = kernel_table.values
    sheet_of_slopes = _differentiated(sheet)
    sizes = kernel_table.sizes(norms)[:, None] * kernel_table.sizes(norms2)
    if len(kernel_table.norms) == 1:
        values = chebyshev_value(sheet, x)
        in_angle = chebyshev_value(sheet_of_slopes, x)
        return values.mul_(sizes), in_angle.mul_(sizes) * dx
    nodes = kernel_table.norms.log()
    weights = barycentric_weights(norms.log(), nodes)
    weights2 = barycentric_weights(norms2.log(), nodes)
    by_node = _differentiation(nodes)
    sheet = sheet @ weights2.T
    values = chebyshev_value(weights @ sheet, x)
    in_angle = chebyshev_value(weights @ (sheet_of_slopes @ weights2.T), x)
    in_norm = chebyshev_value((weights @ by_node) @ sheet, x)
    growth = weights @ (by_node @ kernel_table.log_sizes)
    return (in_norm + values * growth[:, None]) * sizes, in_angle * sizes * dx


def _differentiated(coefficients: Tensor) -> Tensor:
    """Return Chebyshev coefficients of the derivative: ``d_(r-1) = d_(r+1) + 2 r c_r``."""
    count = len(coefficients)
    slopes = torch.zeros_like(coefficients)
    for r in range(count - 1, 0, -1):
        slopes[r - 1] = 2 * r * coefficients[r]
        if r + 1 < count:
            slopes[r - 1] += slopes[r + 1]
    slopes[0] *= 0.5
    return slopes


def _differentiation(nodes: Tensor) -> Tensor:
    """Return the matrix that takes values at Chebyshev extrema to derivatives there."""
    signs = torch.ones_like(nodes)
    signs[1::2] = -1
    signs[0] *= 0.5
    signs[-1] *= 0.5
    apart = nodes[:, None] - nodes + torch.eye(len(nodes)).to(nodes)
    matrix = signs / signs[:, None] / apart
    matrix.fill_diagonal_(0)
    return matrix - torch.diag(matrix.sum(1))


# ---- Derivatives of pairs, by differences


def _of_pairs(
    equations: Equations, first: Tensor, second: Tensor, angle: Tensor
) -> tuple[Tensor, Tensor]:
    """Take differences of the kernel of pairs, [P] each."""
    in_norm = _Differences.none(angle)
    in_angle = _Differences.none(angle)
    values = equations.pairs(first, second, angle.cos(), slopes=False)
    offsets = torch.arange(_POINTS, dtype=angle.dtype, device=angle.device) - _POINTS // 2
    for step in _STEPS:
        # Points stay between parallel and opposite, where the kernel has kinks.
        reach = step * (_POINTS // 2)
        middle = angle.clamp(reach, math.pi - reach)
        angles = middle[:, None] + step * offsets
        at_angles = _solved(equations, first[:, None], second[:, None], angles.cos())
        in_angle = in_angle.better(at_angles, (angle - middle) / step, step)
        if equations.scales:
            continue
        lengths = first[:, None] * (step * offsets).exp()
        at_lengths = _solved(equations, lengths, second[:, None], angle.cos()[:, None])
        in_norm = in_norm.better(at_lengths, torch.zeros_like(angle), step)
    return values if equations.scales else in_norm.slope, in_angle.slope


def _solved(equations: Equations, first: Tensor, second: Tensor, cosines: Tensor) -> Tensor:
    """Solve for the kernel of pairs, which broadcast to ``[P, points]``."""
    first, second, cosines = torch.broadcast_tensors(first, second, cosines)  # type: ignore[no-untyped-call]
    flat = equations.pairs(first.reshape(-1), second.reshape(-1), cosines.reshape(-1), slopes=False)
    return flat.view(cosines.shape)


@dataclass(frozen=True)
class _Differences:
    """The best derivatives so far, and by how much those of fewer points differ, [P] each."""

    slope: Tensor
    change: Tensor

    @classmethod
    def none(cls, like: Tensor) -> _Differences:
        """Return derivatives that any others are better than."""
        return cls(torch.zeros_like(like), torch.full_like(like, torch.inf))

    def better(self, values: Tensor, place: Tensor, step: float) -> _Differences:
        """Return derivatives of values ``[P, points]`` at a place, where they are better.

        Args:
            place: relative to the point in the middle, in steps.
        """
        seven = (values * _slope_weights(place, 0, _POINTS)).sum(1) / step
        left = (values[:, :-1] * _slope_weights(place, 0, _POINTS - 1)).sum(1) / step
        right = (values[:, 1:] * _slope_weights(place, 1, _POINTS)).sum(1) / step
        six = torch.where(place <= 0, left, right)
        change = (seven - six).abs()
        is_better = change < self.change
        return _Differences(
            torch.where(is_better, seven, self.slope), torch.where(is_better, change, self.change)
        )


def _slope_weights(place: Tensor, start: int, end: int) -> Tensor:
    """Return weights ``[P, points]`` of the derivative at a place between some of the points."""
    points = torch.arange(start, end).to(place) - _POINTS // 2
    powers = torch.arange(len(points)).to(place)
    # Row by row the coefficients of polynomials that are 1 at one point and 0 at the others.
    polynomials = torch.linalg.inv(points[:, None] ** powers).T
    slopes = powers * place[:, None] ** (powers - 1).clamp_min(0)
    weights: Tensor = slopes @ polynomials.T
    return weights
