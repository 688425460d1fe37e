"""The names that networks and training runs are chosen by, their defaults and bounds.

Python and the shell share them.
"""

from __future__ import annotations

from typing import Literal, get_args

# ---- Names


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
# of rates that scale with width
WideRuleName = Literal["mup", "depth-mup", "depth-mup-inner", "complete-p"]
RuleName = Literal["standard", "ntk", WideRuleName]
# of plans of any model: "ntk" is for a network of the paper
PLANNED_RULES: tuple[RuleName, ...] = ("standard", *get_args(WideRuleName))
KernelKind = Literal["nngp", "ntk", "independent-feedback"]
Data = Literal["digits", "cifar10"]
ExecutorName = Literal["processes", "inline", "ray", "slurm"]
FrameworkName = Literal["json", "megatron", "torchtitan", "transformers"]


# ---- Defaults that Python's functions and the command line share


BASE = 64, 4  # width and depth at which rates are tuned
RULE: RuleName = "complete-p"  # of your own models, in plans and in every question about them
OPTIMIZER = "adamw"  # the same; networks of the paper have theirs
RESOLUTION = 0.1  # of structured layers
SEEDS = 3  # of each network of a check


# ---- Bounds


MAX_SEED = 2**63 - 1
# of anything that is done or made one by one: blocks, seeds, replicates, steps, classes
MOST = 10**6
WIDEST = 2**26  # a network of this width with one hidden matrix of numbers would hold 16 PiB
