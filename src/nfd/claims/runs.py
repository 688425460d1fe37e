"""The runs that claims need beside those of the figures."""

from __future__ import annotations

from nfd.figures.figure import Figure, everywhere

_RATES = [0.1768, 0.25, 0.3536, 0.5, 0.7071, 1.0, 1.414, 2.0, 2.828, 4.0, 5.657]

PARTS = everywhere(
    {},
    {
        "smoke": {
            "one-layer": {
                "rule": ["mup", "depth-mup"], "depth": [2, 4], "width": 12, "eta_c": [0.25, 0.5, 1.0], "steps": 6,
                "seeds": 3,
            },
            "width": {"depth": 2, "width": [12, 24], "eta_c": [0.25, 0.5, 1.0], "steps": 6, "seeds": 3},
            "rates": {
                "feedback": ["shared", "independent"], "depth": [2, 4], "width": 12, "eta_c": [0.02, 0.5], "steps": 6,
                "seeds": 3,
            },
        },
        "cpu": {
            "one-layer": {
                "rule": ["mup", "depth-mup"], "depth": [3, 6, 9], "width": 128, "batch": 128,
                "eta_c": [0.0625, 0.0884, 0.125, *_RATES], "steps": 390, "seeds": 4,
            },
            "width": {
                "depth": 3, "width": [32, 64, 128, 256], "batch": 128, "eta_c": _RATES, "steps": 390, "seeds": 4,
            },
            "rates": {
                "feedback": ["shared", "independent"], "depth": [4, 8, 16, 32], "width": 128, "batch": 128,
                "eta_c": [0.02, 0.5], "steps": 390, "seeds": 3,
            },
        },
        "paper": {
            "one-layer": {
                "rule": ["mup", "depth-mup"], "depth": [3, 6, 9], "width": 128, "batch": 128,
                "eta_c": [0.0625, 0.0884, 0.125, *_RATES], "epochs": 30, "seeds": 5,
            },
            "width": {
                "depth": 3, "width": [32, 64, 128, 256], "batch": 128, "eta_c": _RATES, "epochs": 30, "seeds": 5,
            },
            "rates": {
                "feedback": ["shared", "independent"], "depth": [4, 8, 16, 32], "width": 128, "batch": 128,
                "eta_c": [0.02, 0.5], "epochs": 30, "seeds": 5,
            },
        },
    },
)  # fmt: skip

RUNS = Figure("claims", "What claims need beside the figures", PARTS, lambda runs, data: [])
