"""Variances of the streams of infinitely wide networks of finite depth, before training (Props. 2 and 6)."""

from __future__ import annotations

import torch
from torch import Tensor

from nfd.core.activations import Activation, activation


def stream_variances(
    act: Activation | str, start: Tensor | float, L: int, horizon: float = 1.0
) -> tuple[Tensor, Tensor]:
    """``q_l = E h_l^2`` and ``P_l = E g_l^2``, ``[L + 1, ...]`` each, for inputs with ``E h_0^2 = start``.

    With ``tau = T / L``: ``q_l = q_{l-1} + tau E phi^2(h_{l-1})`` and ``P_{l-1} = P_l (1 + tau E phi'^2(h_{l-1}))``
    from ``P_L = 1``. ``act``: an activation or its name, such as ``"relu"``.
    """
    act = activation(act) if isinstance(act, str) else act
    tau, q, rates = horizon / L, [torch.as_tensor(start, dtype=torch.float64)], list[Tensor]()
    for _ in range(L):
        rates.append(1 + tau * act.slope_moment(q[-1], q[-1], q[-1]))
        q.append(q[-1] + tau * act.moment(q[-1], q[-1], q[-1]))
    backward = torch.stack([*rates, torch.ones_like(q[0])]).flip(0).cumprod(0).flip(0)
    return torch.stack(q), backward
