"""The runs that claims need beside those of the figures."""

from __future__ import annotations

from nfd.paper.config import Preset
from nfd.paper.figures.figure import Figure, Parts

_RATES = [0.1768, 0.25, 0.3536, 0.5, 0.7071, 1.0, 1.414, 2.0, 2.828, 4.0, 5.657]

_BOTH = ["shared", "independent"]
_ONE_LAYER = {
    "rule": ["mup", "depth-mup"], "depth": [3, 6, 9], "width": 128, "batch": 128,
    "eta_c": [0.0625, 0.0884, 0.125, *_RATES],
}  # fmt: skip
_WIDTH = {"depth": 3, "width": [32, 64, 128, 256], "batch": 128, "eta_c": _RATES}
_GAP = {"feedback": _BOTH, "depth": [4, 8, 16, 32], "width": 128, "batch": 128, "eta_c": [0.02, 0.5]}
_LONG = {"epochs": 30, "seeds": 5}
_TOY = {"steps": 6, "seeds": 3}

PARTS: dict[Preset, Parts] = {
    "smoke": {
        "one-layer": {"rule": ["mup", "depth-mup"], "depth": [2, 4], "width": 12, "eta_c": [0.25, 0.5, 1.0], **_TOY},
        "width": {"depth": 2, "width": [12, 24], "eta_c": [0.25, 0.5, 1.0], **_TOY},
        "rates": {"feedback": _BOTH, "depth": [2, 4], "width": 12, "eta_c": [0.02, 0.5], **_TOY},
    },
    "cpu": {
        "one-layer": {**_ONE_LAYER, "steps": 390, "seeds": 4},
        "width": {**_WIDTH, "steps": 390, "seeds": 4},
        "rates": {**_GAP, "steps": 390, "seeds": 3},
    },
    "paper": {"one-layer": {**_ONE_LAYER, **_LONG}, "width": {**_WIDTH, **_LONG}, "rates": {**_GAP, **_LONG}},
}

RUNS = Figure("claims", "What claims need beside the figures", PARTS, lambda runs, data: [])
