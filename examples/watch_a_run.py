# %% [markdown]
# # Is the run on course?
#
# `nfd.Watch` compares a large training with small ones, tensor by tensor, while it runs. Here the
# same network trains twice: as planned, and with one rate for all tensors, the usual mistake. The
# watch names it at the first step.

# %% tags=["parameters"]
WIDTH = 128
DEPTH = 8
STEPS = 6
EVERY = 2

# %%
import torch
from torch import nn

import nfd
from nfd.data import digits


class Block(nn.Module):
    """``h + W_2 gelu(W_1 norm(h))``."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h):
        return h + self.down(nn.functional.gelu(self.up(self.norm(h))))


def make_model(width, depth):
    """Digits to logits through residual blocks."""
    blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(64, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


batches = list(zip(*digits().batches(32, STEPS, seed=0)))

# %% [markdown]
# Small networks say what to expect: `at` are the steps at which they are looked at, those of the
# watch.

# %%
looks = sorted({1, *range(EVERY, STEPS + 1, EVERY)})
small = nfd.check(make_model, batches, [32, 64], [2, 4], lr=4e-3, at=looks)
small


# %%
def train(planned):
    """Train the large network under a watch, with the plan's rates or with one for all tensors."""
    model = make_model(WIDTH, DEPTH)
    plan = nfd.plan(model, (32, 2), make_model=make_model, sample=batches[0][0])
    plan.apply_(model, seed=0)
    optimizer = (
        plan.make_optimizer(model, lr=4e-3)
        if planned
        else torch.optim.AdamW(model.parameters(), lr=4e-3)
    )
    watch = nfd.Watch(model, plan, batches[0][0], every=EVERY, expected=small)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        watch.step(loss=float(loss.detach()))
    return watch


# %% [markdown]
# As planned, it is on course.

# %%
train(planned=True)

# %% [markdown]
# With one rate for all tensors, the watch names the tensors and what to do.

# %%
train(planned=False)
