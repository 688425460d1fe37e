"""Defaults that Python's functions and the command line share, each stated once."""

from __future__ import annotations

import math

DEPTH = math.inf  # of a prediction
ETA_C = 0.3  # of the paper's networks, trained by SGD: in studies, runs and predictions
RTOL = 0.05  # of a prediction; at infinite depth a minute on two cores
MODEL_DEPTH = 4  # of a prediction of the user's networks
BASE_WIDTH = 64  # width that its rates were tuned at
LOSS_RTOL = 0.01  # of a prediction of the user's networks, relative to their losses
RESOLUTION = 0.1  # of structured weights in predictions under SGD
MEMORY = "4 GiB"  # of one network of a prediction
SEEDS = 3  # of each network of a check
RULE = "complete-p"  # of your own models, in plans and in every question about them
OPTIMIZER = "adamw"  # the same; networks of nfd.nets have theirs (``ScaledNetwork.default_rule``)
