"""Defaults that Python's functions and the command line share, each stated once."""

from __future__ import annotations

import math

DEPTH = math.inf  # of a prediction
ETA_C = 0.3  # of the paper's networks, trained by SGD: in studies, runs and predictions
RTOL = 0.05  # of a prediction; at infinite depth a minute on two cores
MEMORY = "4 GiB"  # of one network of a prediction
SEEDS = 3  # of each network of a check

_CHECKED = {"sgd": 0.1}  # rates of a check
_ADAPTIVE = 1e-3  # and of Adam, AdamW and whatever else divides by the size of gradients


def rate_for(optimizer: str, eta_c: float | None) -> float:
    """``eta_c`` if it is given, else the rate that a check of this optimizer begins with."""
    if eta_c is not None:
        return eta_c
    return _CHECKED.get(optimizer, _ADAPTIVE)
