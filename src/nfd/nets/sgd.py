"""Stochastic gradient descent for networks with deferred layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nfd.nets.deferred import Guarded
from nfd.nets.frame import with_room


class SGD(torch.optim.SGD):
    """``torch.optim.SGD`` that also steps ``DeferredLinear`` layers, whose parameters grow.

    SGD is linear in the weights, so on ``W = s W_0 + P D Q'`` it acts on ``s`` and ``D`` separately and exactly as
    it would on ``W``: weight decay, momentum, dampening and Nesterov included. All options are those of
    ``torch.optim.SGD``.

    Args:
        params: usually ``net.param_groups(eta_c=..., rule=...)``, each group with its own rate.
        **options: ``momentum``, ``weight_decay``, ``nesterov``, ...
    """

    def __init__(self, params: Any, **options: Any) -> None:
        options.setdefault("lr", 1e-3)
        super().__init__(params, **options)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step; momentum of a grown parameter is padded with zeros first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        guarded = [p for group in self.param_groups for p in group["params"] if isinstance(p, Guarded)]
        for p in guarded:
            p.check()
            momentum = self.state[p].get("momentum_buffer") if p in self.state else None
            if momentum is not None and momentum.shape != p.shape:
                self.state[p]["momentum_buffer"] = with_room(momentum, *p.shape)
        super().step()
        for p in guarded:
            p.accept()
        return loss
