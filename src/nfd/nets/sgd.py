"""Stochastic gradient descent for networks with layers without stored weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from nfd.core.errors import InputError, check_flag
from nfd.nets.factored_optimizer import FactoredOptimizer
from nfd.nets.in_factors import InFactors

_NUMBERS = ("lr", "momentum", "dampening", "weight_decay")
_FLAGS = ("nesterov", "maximize")


class SGD(FactoredOptimizer, torch.optim.SGD):
    """``torch.optim.SGD`` for models with ``DeferredLinear`` or ``StructuredLinear``, whose parameters grow.

    SGD is linear in the weights, so on ``W = s W_0 + P D Q'`` it acts on ``s`` and ``D`` separately and exactly as
    it would on ``W``: weight decay, momentum, dampening, Nesterov and maximize included. ``foreach`` and ``fused``
    change the speed, not the result.

    Args:
        params: usually ``net.param_groups(lr=..., rule=...)``, each group with its own rate. Groups may have options
            of ``torch.optim.SGD``, entries of PyTorch's schedulers, and ``name``, ``role`` or ``roles``.
        **options: ``momentum``, ``weight_decay``, ``nesterov``, ...

    Raises:
        ValueError, TypeError: for options of other optimizers, in a group or a loaded state; negative rates; and
            ``differentiable``, since a deferred layer cannot be differentiated twice.
        RuntimeError: by ``step``, before any parameter moves, if the gradient of a deferred layer was edited in another
            way than scaling, or if D and s of one layer have different settings.

    Source: docs/mathematics/deferred-decisions.md.

    Example::

        net = nfd.ResNet(64, 10, width=4096, depth=2, weights="deferred")
        optimizer = nfd.SGD(net.param_groups(lr=0.3), momentum=0.9)
    """

    kind = "nfd.SGD"
    numbers = _NUMBERS
    of_one_matrix = (*_NUMBERS, *_FLAGS)

    def __init__(self, params: Any, **options: Any) -> None:
        options.setdefault("lr", 1e-3)
        self.check_group(options, "the options")
        super().__init__(self.check_params(params), **options)

    @property
    def options(self) -> frozenset[str]:
        return frozenset({*_NUMBERS, *_FLAGS, "foreach", "differentiable", "fused"})

    def check_settings(self, settings: Mapping[str, Any], where: str) -> None:
        super().check_settings(settings, where)
        for name in _FLAGS:
            if name in settings:
                check_flag(f"{name} of {where}", settings[name])
        if settings.get("differentiable"):
            raise InputError(
                "nfd.SGD takes no differentiable=True: a deferred layer cannot be differentiated twice. Use "
                "torch.optim.SGD with stored weights."
            )
        without = not settings.get("momentum", True) or settings.get("dampening")
        if settings.get("nesterov") and "momentum" in settings and without:
            raise InputError(f"nesterov of {where} needs a momentum and no dampening.")

    def moves_scale(self, group: Mapping[str, Any]) -> bool:
        return bool(group["weight_decay"] or group["momentum"])

    def apply_rule(self) -> None:
        """Update all parameters by PyTorch's rule; a plain step uses the gradient's factors without their product."""
        whole = [group["params"] for group in self.param_groups]
        try:
            for group in self.param_groups:
                if not any(group[name] for name in ("momentum", "weight_decay", "fused")):  # fused ones may skip a step
                    rate = -float(group["lr"]) if group["maximize"] else float(group["lr"])
                    group["params"] = [p for p in group["params"] if not (isinstance(p, InFactors) and p.descend(rate))]
            inspect.unwrap(torch.optim.SGD.step)(self)  # PyTorch runs hooks around step already
        finally:
            for group, params in zip(self.param_groups, whole, strict=True):
                group["params"] = params
