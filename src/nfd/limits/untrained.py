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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nfd.core.activations import Activation
from nfd.core.errors import InputError

# The tolerance of the flow, relative to the largest kernel. Kernels differ from ``nfd.kernel`` by
# 4e-12 to 1e-9 of it at T = 1 and 4; with 8 steps of fourth order they differed by 1e-7 to 1e-5.
_FLOW_RTOL = 1e-9


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

    @property
    def flat(self) -> Tensor:
        """All of them in one vector, [3 P]."""
        return torch.cat([self.C, self.D, self.log_growth])

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
    for _ in range(times - 1):
        if math.isinf(blocks.depth):
            state = _flow(blocks, pairs, 1 / (times - 1), state)
        else:
            for _ in range(int(blocks.depth) // (times - 1)):
                before = state
                state = _block(blocks, pairs, state)
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


def _flow(blocks: Blocks, pairs: _Pairs, span: float, state: _State) -> _State:
    """Follow the flow of infinite depth for a share of the depth, to ``_FLOW_RTOL``."""
    # It is slow to load.
    from scipy.integrate import solve_ivp

    def change(_: float, flat: NDArray[np.float64]) -> NDArray[np.float64]:
        at = _State(*torch.from_numpy(flat).view(3, -1))
        rates: NDArray[np.float64] = _change(blocks, pairs, at).flat.numpy()
        return rates

    count = len(state.C)
    # Kernels of zero inputs are zero.
    size = state.C.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    atol = torch.cat([size.expand(2 * count), torch.ones(count, dtype=torch.float64)])
    # The first step that the solver would choose is far smaller than needed.
    first_step = span / max(1, math.ceil(blocks.variance * span))
    with np.errstate(over="ignore", invalid="ignore"):
        orbit = solve_ivp(
            change,
            (0.0, span),
            state.flat.numpy(),
            method="DOP853",
            rtol=_FLOW_RTOL,
            atol=_FLOW_RTOL * atol.numpy(),
            first_step=first_step,
        )
    if not orbit.success:
        raise InputError(
            "kernels before training leave the range of numbers: at infinite depth they grow as "
            "the exponential of the horizon. Lower the horizon, or the size of the probes."
        )
    return _State(*torch.from_numpy(orbit.y[:, -1].copy()).view(3, -1))


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
