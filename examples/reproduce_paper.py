# %% [markdown]
# # Reproduce the paper
#
# One statement by exact kernels, the same by real networks, and one figure from nothing. The paper
# says that at infinite depth it makes no difference whether the backward pass uses the network's
# own weights (*standard*) or an independent copy (*decoupled*).

# %% tags=["parameters"]
DEPTHS = [4, 16]
NETWORKS = 24
WIDTH = 256
FIGURE = "1"
SIZE = "smoke"
OUT = "out/reproduce"

# %%
import math
import subprocess
import sys
from pathlib import Path

import torch
from IPython.display import Image

import nfd
from nfd.data import digits

# %% [markdown]
# ## The first step, exactly
#
# A first small step of gradient descent changes the output in proportion to a kernel: the NTK for
# the standard network, twice the NNGP for the decoupled one. For ReLU, T = 1 and an input of unit
# norm per coordinate both are known.

# %%
x = digits().inputs[:1].double()
x = x / x.norm() * math.sqrt(x.shape[1])
standard, decoupled = (
    float(nfd.kernel(x, kind=kind)[0, 0]) for kind in ("ntk", "independent-feedback")
)
print(
    f"infinite depth: {standard:.6f} and {decoupled:.6f}, ratio {standard / decoupled:.4f}; the "
    "paper says 1"
)

# %% [markdown]
# ## The first step, measured
#
# Real networks of finite depth: the ratio of both changes, plus or minus two standard errors,
# beside `1 + (T/4) / (1 + T/(2L))`, which tends to 1.25.


# %%
def change(depth, feedback, seed):
    """What a small step changes in the output of one network."""
    net = nfd.ResNet(64, 1, WIDTH, depth, feedback=feedback, seed=seed, dtype=torch.float64)
    optimizer = nfd.SGD(net.param_groups(1e-3))
    before = net(x)
    before.sum().backward()
    optimizer.step()
    with torch.no_grad():
        return float(before - net(x))


for depth in DEPTHS:
    own, other = (
        torch.tensor([change(depth, feedback, seed) for seed in range(NETWORKS)])
        for feedback in ("shared", "independent")
    )
    ratio = own.mean() / other.mean()
    error = 2 * (own - ratio * other).std() / math.sqrt(NETWORKS) / other.mean()
    print(f"depth {depth:>3}: {ratio:.3f} +- {error:.3f}, exact {1 + 0.25 / (1 + 0.5 / depth):.3f}")

# %% [markdown]
# ## A figure
#
# `nfd paper figure` trains what a figure needs, keeps it, and draws every panel. At size `smoke` it
# shows only that everything works; `cpu` takes minutes and is what the documentation shows; `paper`
# has the captions' sizes and wants a GPU.

# %%
command = ["nfd", "paper", "figure", FIGURE, "--size", SIZE, "--out", OUT, "--workers", "1"]
subprocess.run([sys.executable, "-m", *command], check=True, capture_output=True)
panels = sorted(Path(OUT).glob("**/*.png"))
for panel in panels:
    print(panel)

# %%
Image(panels[0], width=640)
