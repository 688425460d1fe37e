"""The kernels of the untrained residual network of infinite width, at depths along it.

With the variance b that a block adds and the moments m and s of ``nfd.core.activations``,

    C_l = C_{l-1} + b m_{l-1},   C_0 = x.x'/d,    P_{l-1} = P_l (1 + b s_{l-1}),   P_L = 1,
    D_l = D_{l-1} (1 + b s_{l-1}) + r b m_{l-1} + r_1 b s_{l-1} C_{l-1},   D_0 = r_0 C_0,

C are streams, m features, P gradients, and ``r_L C_L + D_L`` is the tangent kernel; r are learning
rates of the hidden matrices, r_1 of the inner ones of two-layer blocks (the term is absent from
one-layer blocks), r_0 of the input and r_L of the readout, over the paper's. Infinite depth is the
flow of these equations. Inside of a two-layer block the pre-activation has the covariance of the
stream before it, so that both kinds of blocks have the same C, m and P.

Source: Props. 2, 3 and 6; docs/mathematics/infinite-depth.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nfd.core.activations import Activation

# Steps of Runge and Kutta per unit of the horizon, at least. At T = 1 the kernels differ from
# ``nfd.kernel`` by 1e-6 of their size, where noise is 1e-3.
_STEPS = 8


@dataclass(frozen=True)
class Blocks:
    """What decides the untrained network.

    Attributes:
        variance: b of one block times the number of blocks; at infinite depth its limit.
        learned: r b of one block times the number of blocks; at infinite depth its limit.
        learned_inside: the same with r_1, of two-layer blocks; None for one-layer blocks.
        input_rate, readout_rate: r_0 and r_L.
        depth: L, or infinite.
    """

    activation: Activation
    variance: float
    learned: float
    input_rate: float
    readout_rate: float
    depth: float
    learned_inside: float | None = None


@dataclass(frozen=True)
class Untrained:
    """Exact kernels of N inputs: three of shape [A, N, N] at A depths, and ``tangent`` [N, N].

    Features at a depth are those of the block that starts there. No block starts at the output:
    there they are ``phi(h)`` of one-layer blocks, and those of the last two-layer block.
    """

    streams: Tensor
    features: Tensor
    gradients: Tensor
    tangent: Tensor


@dataclass(frozen=True)
class _Pairs:
    """All pairs of N inputs, P = N (N + 1) / 2 of them, each as its place in a list."""

    rows: Tensor
    columns: Tensor

    @property
    def count(self) -> int:
        """N."""
        return int(self.rows.max()) + 1

    def variances(self, C: Tensor) -> tuple[Tensor, Tensor]:
        """Return the variances of the first and of the second inputs of pairs, [P] each."""
        of_inputs = C[self.rows == self.columns]
        return of_inputs[self.rows], of_inputs[self.columns]

    def filled(self, values: Tensor) -> Tensor:
        """Make symmetric matrices [..., N, N] of values [..., P]."""
        matrices = values.new_empty(*values.shape[:-1], self.count, self.count)
        matrices[..., self.rows, self.columns] = values
        matrices[..., self.columns, self.rows] = values
        return matrices


@dataclass(frozen=True)
class _State:
    """C and D of pairs up to a depth, and the logarithm of ``P_0 / P_l``, [P] each."""

    C: Tensor
    D: Tensor
    log_growth: Tensor

    def plus(self, factor: float, change: _State) -> _State:
        """Add a multiple of a change."""
        return _State(
            self.C + factor * change.C,
            self.D + factor * change.D,
            self.log_growth + factor * change.log_growth,
        )


def untrained(x: Tensor, blocks: Blocks, times: int) -> Untrained:
    """Return the kernels of inputs x [N, d] at ``times`` depths, from the input to the output."""
    x = x.double()
    pairs = _Pairs(*torch.triu_indices(len(x), len(x)))
    C = (x @ x.T / x.shape[1])[pairs.rows, pairs.columns]
    state = _State(C, blocks.input_rate * C, torch.zeros_like(C))
    states = [state]
    before = state
    if math.isinf(blocks.depth):
        steps = math.ceil(_STEPS * max(1.0, blocks.variance) / (times - 1))
        advance = partial(_flow, blocks, pairs, 1 / (steps * (times - 1)))
    else:
        steps = int(blocks.depth) // (times - 1)
        advance = partial(_block, blocks, pairs)
    for _ in range(times - 1):
        for _ in range(steps):
            before = state
            state = advance(state)
        states.append(state)
    sources = list(states)
    if blocks.learned_inside is not None and math.isfinite(blocks.depth):
        sources[-1] = before
    features = [blocks.activation.moment(*pairs.variances(at.C), at.C) for at in sources]
    gradients = [torch.exp(state.log_growth - at.log_growth) for at in states]
    return Untrained(
        pairs.filled(torch.stack([at.C for at in states])),
        pairs.filled(torch.stack(features)),
        pairs.filled(torch.stack(gradients)),
        pairs.filled(blocks.readout_rate * state.C + state.D),
    )


def _block(blocks: Blocks, pairs: _Pairs, state: _State) -> _State:
    """Pass one block of a network of finite depth."""
    change = _change(blocks, pairs, state)
    passed = state.plus(1 / blocks.depth, change)
    growth = torch.log1p(change.log_growth / blocks.depth)
    return _State(passed.C, passed.D, state.log_growth + growth)


def _flow(blocks: Blocks, pairs: _Pairs, step: float, state: _State) -> _State:
    """Follow the flow of infinite depth for a step, by the classical method of Runge and Kutta."""
    first = _change(blocks, pairs, state)
    second = _change(blocks, pairs, state.plus(step / 2, first))
    third = _change(blocks, pairs, state.plus(step / 2, second))
    fourth = _change(blocks, pairs, state.plus(step, third))
    for weight, change in ((1, first), (2, second), (2, third), (1, fourth)):
        state = state.plus(step * weight / 6, change)
    return state


def _change(blocks: Blocks, pairs: _Pairs, state: _State) -> _State:
    """Return the change per unit of relative depth."""
    variances = pairs.variances(state.C)
    moment = blocks.activation.moment(*variances, state.C)
    slope_moment = blocks.activation.slope_moment(*variances, state.C)
    slope = blocks.variance * slope_moment
    learned = blocks.learned * moment
    if blocks.learned_inside is not None:
        learned += blocks.learned_inside * slope_moment * state.C
    return _State(blocks.variance * moment, learned + slope * state.D, slope)
