"""The names that networks and runs are chosen by, and defaults, each stated once."""

from __future__ import annotations

from typing import Literal

Axis = Literal["width", "depth"]
AXES: tuple[Axis, ...] = ("width", "depth")
Activation = Literal["relu", "tanh", "erf", "gelu", "identity"]
Block = Literal["one-layer", "two-layer"]
Order = Literal["pre", "post"]
Regime = Literal["feature", "kernel"]
Weights = Literal["dense", "deferred"]
NetworkWeights = Literal["dense", "deferred", "structured"]
Feedback = Literal["shared", "independent", "static"]
Space = Literal["inputs", "gradients"]
BasisName = Literal["auto", "inputs", "gradients"]
WideRuleName = Literal["mup", "depth-mup", "depth-mup-inner", "complete-p"]  # of rates that scale with width
RuleName = Literal["standard", "ntk", WideRuleName]
KernelKind = Literal["nngp", "ntk", "independent-feedback"]
Data = Literal["digits", "cifar10"]
Decay = Literal["constant-product", "independent", "raw"]
ExecutorName = Literal["processes", "inline", "ray"]


# ---- Defaults that Python's functions and the command line share, each stated once


BASE = 64, 4  # width and depth at which rates are tuned
RULE: RuleName = "complete-p"  # of your own models, in plans and in every question about them
OPTIMIZER = "adamw"  # the same; networks of the paper have theirs
RESOLUTION = 0.1  # of structured layers
SEEDS = 3  # of each network of a check
