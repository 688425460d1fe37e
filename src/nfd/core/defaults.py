"""Defaults that Python's functions and the command line share, each stated once."""

from __future__ import annotations

from nfd.core.names import RuleName

BASE = 64, 4  # width and depth at which rates are tuned
RULE: RuleName = "complete-p"  # of your own models, in plans and in every question about them
OPTIMIZER = "adamw"  # the same; networks of nfd.nets have theirs
RESOLUTION = 0.1  # of structured layers
SEEDS = 3  # of each network of a check
