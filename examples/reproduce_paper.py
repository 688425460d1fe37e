# %% [markdown]
# # Reproduce the paper
#
# One statement by exact kernels, the same by real networks, and one figure from nothing. The paper says that at
# infinite depth it makes no difference whether the backward pass uses the network's own weights (*standard*) or an
# independent copy (*decoupled*).

# %% tags=["parameters"]
DEPTHS = [4, 16]
NETWORKS = 24
WIDTH = 256
FIGURE = "1"
SIZE = "smoke"
OUT = "out/reproduce"

# %%
import math
from pathlib import Path

import torch

import nfd
from nfd.cli import main
from nfd.core.estimates import interval
from nfd.data import digits
from nfd.paper.two_limits import first_step

# %% [markdown]
# ## The first step, exactly
#
# A first small step of gradient descent changes the output in proportion to a kernel: the NTK for the standard network,
# twice the NNGP for the decoupled one. For ReLU, T = 1 and an input of unit norm per coordinate both are known.

# %%
x = digits().inputs[:1].double()
x = x / x.norm() * math.sqrt(x.shape[1])
standard, decoupled = (float(nfd.kernel(x, kind=kind)[0, 0]) for kind in ("ntk", "independent-feedback"))
print(f"infinite depth: {standard:.6f} and {decoupled:.6f}, ratio {standard / decoupled:.4f}; the paper says 1")

# %% [markdown]
# ## The first step, measured
#
# Real networks of finite depth: the ratio of the two changes with a 95 % interval over networks, beside
# `1 + (T/4) / (1 + T/(2L))`, which tends to 1.25.

# %%
for depth in DEPTHS:
    changes = [
        torch.stack([first_step(x, WIDTH, depth, feedback, seed) for seed in range(NETWORKS)])
        for feedback in ("shared", "independent")
    ]
    ratio = interval(lambda a, b: a.mean(0) / b.mean(0), *changes)
    print(f"depth {depth:>3}: {ratio}, exact {1 + 0.25 / (1 + 0.5 / depth):.3f}")

# %% [markdown]
# ## A figure
#
# `nfd paper figure` trains what a figure needs, keeps it, and draws every panel. At size `smoke` it shows only that
# everything works; `cpu` takes minutes and is what the documentation shows; `paper` has the captions'
# sizes and wants a GPU.

# %%
main(["paper", "figure", FIGURE, "--size", SIZE, "--out", OUT, "--executor", "inline"])
for panel in sorted(Path(OUT).glob("**/*.png")):
    print(panel)
