"""Stochastic gradient descent for networks with deferred layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nfd.core.errors import StateError, check_flag, check_real, check_several
from nfd.nets.frame import with_room
from nfd.nets.guarded import Guarded
from nfd.scaling.rules import MAX_ETA_C


class SGD(torch.optim.SGD):
    """``torch.optim.SGD`` that also steps ``DeferredLinear`` layers, whose parameters grow.

    SGD is linear in the weights, so on ``W = s W_0 + P D Q'`` it acts on ``s`` and ``D`` separately and exactly as
    it would on ``W``: weight decay, momentum, dampening and Nesterov included. All options are those of
    ``torch.optim.SGD``.

    Args:
        params: usually ``net.param_groups(eta_c=..., rule=...)``, each group with its own rate.
        **options: ``momentum``, ``weight_decay``, ``nesterov``, ...

    Source: docs/mathematics/deferred-decisions.md.
    """

    def __init__(self, params: Any, **options: Any) -> None:
        options.setdefault("lr", 1e-3)
        for name in {"lr", "momentum", "weight_decay", "dampening"} & options.keys():
            options[name] = check_real(name, options[name], least=0.0, below=MAX_ETA_C)
        if "nesterov" in options:
            check_flag("nesterov", options["nesterov"])
        if not isinstance(params, torch.Tensor | dict):  # of which PyTorch has its own words
            params = check_several("params", params, "parameters or of groups of them")
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
            self._pad_momentum(p)
        super().step()
        for p in guarded:
            p.accept()
            self.state[p]["generation"] = p.generation
        return loss

    def load_state_dict(self, state_dict: Any) -> None:
        """Load a saved state; it belongs to the layers as they are now, so load theirs first."""
        super().load_state_dict(state_dict)
        for p, state in self.state.items():
            if isinstance(p, Guarded):
                state["generation"] = p.generation

    def _pad_momentum(self, p: Guarded) -> None:
        state = self.state.get(p, {})
        momentum = state.get("momentum_buffer")
        if momentum is None:
            return
        if state["generation"] != p.generation:
            raise StateError(
                "A DeferredLinear was loaded or converted after this optimizer gathered momentum, which refers to the "
                "directions it had before. Load the optimizer's state too, or build a new nfd.SGD."
            )
        if momentum.shape != p.shape:
            state["momentum_buffer"] = with_room(momentum, *p.shape)
