"""Neural Feature Dynamics: deep networks at any width and depth, their limits, and the rules that scale them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from nfd.limits.kernel import kernel as kernel
    from nfd.limits.particles import Solution as Solution
    from nfd.limits.particles import solve_nfd as solve_nfd
    from nfd.limits.predict import predict as predict
    from nfd.limits.prediction import Prediction as Prediction
    from nfd.limits.sklearn_kernel import InfiniteDepthKernel as InfiniteDepthKernel
    from nfd.meters.check import Check as Check
    from nfd.meters.check import check as check
    from nfd.nets.deferred import DeferredLinear as DeferredLinear
    from nfd.nets.mlp import MLP as MLP
    from nfd.nets.resnet import ResNet as ResNet
    from nfd.nets.sgd import SGD as SGD
    from nfd.scaling.plan import Plan as Plan
    from nfd.scaling.planning import plan as plan
    from nfd.scaling.scaled import Scaled as Scaled
    from nfd.sweep.grid import grid as grid
    from nfd.sweep.sweep import Sweep as Sweep

_PUBLIC = {
    "MLP": "nfd.nets.mlp",
    "SGD": "nfd.nets.sgd",
    "DeferredLinear": "nfd.nets.deferred",
    "InfiniteDepthKernel": "nfd.limits.sklearn_kernel",
    "Plan": "nfd.scaling.plan",
    "Prediction": "nfd.limits.prediction",
    "Scaled": "nfd.scaling.scaled",
    "Solution": "nfd.limits.particles",
    "ResNet": "nfd.nets.resnet",
    "Sweep": "nfd.sweep.sweep",
    "Check": "nfd.meters.check",
    "check": "nfd.meters.check",
    "grid": "nfd.sweep.grid",
    "kernel": "nfd.limits.kernel",
    "plan": "nfd.scaling.planning",
    "predict": "nfd.limits.predict",
    "solve_nfd": "nfd.limits.particles",
}

__all__ = [
    "MLP",
    "SGD",
    "Check",
    "DeferredLinear",
    "InfiniteDepthKernel",
    "Plan",
    "Prediction",
    "ResNet",
    "Scaled",
    "Solution",
    "Sweep",
    "__version__",
    "check",
    "grid",
    "kernel",
    "plan",
    "predict",
    "solve_nfd",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'nfd' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
