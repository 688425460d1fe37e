# %% [markdown]
# # What will an answer cost?
#
# A question about learning rates costs trainings. This notebook times one step of the largest
# network and says what a question takes, asks it with a small budget, and lets it go on from what
# is stored. Last, it says what more seeds would buy. `docs/howto/cost.md` has the formula.

# %% tags=["parameters"]
WIDTHS = [32, 128]
STEPS = 100
BUDGETS = [20, 80]
OUT = "out/what-it-costs"

# %%
import time

import altair as alt
import torch
from torch import nn

import nfd
from nfd.data import digits

alt.renderers.enable("png")


class Block(nn.Module):
    """A residual block behind a norm."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.down(nn.functional.gelu(self.up(self.norm(h))))


class MLP(nn.Module):
    """Images of 8 x 8 pixels to ten classes."""

    def __init__(self, width, depth):
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


x, y = digits().batches(size=32, steps=STEPS, seed=0)
batches = list(zip(x, y))

# %% [markdown]
# ## Before the first training
#
# One training of the largest network, and how much less one of the smallest costs.

# %%
model = MLP(WIDTHS[-1], 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
begun = time.perf_counter()
for inputs, targets in batches:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
seconds = time.perf_counter() - begun


def parameters(width):
    return sum(p.numel() for p in MLP(width, 2).parameters())


share = parameters(WIDTHS[0]) / parameters(WIDTHS[-1])
print(f"A training of width {WIDTHS[-1]} takes {seconds:.2g} s here.")
print(f"By operations, one of width {WIDTHS[0]} costs {share:.2g} of it.")
print(f"{BUDGETS[-1]} trainings take {BUDGETS[-1] * seconds:.2g} s at most.")

# %% [markdown]
# ## A small budget
#
# Without rates, trainings go where they decide: the small network's best rate comes first. So few
# trainings say what is known by then, and what to run next.

# %%
with nfd.Sweep(OUT) as sweep:
    first = nfd.transfer(
        MLP, batches, WIDTHS, [2], rules=("complete-p",), budget=BUDGETS[0], sweep=sweep
    )
first

# %% [markdown]
# ## More of it
#
# The same call with a larger budget uses what is stored, and trains only what is new.

# %%
with nfd.Sweep(OUT) as sweep:
    answer = nfd.transfer(
        MLP, batches, WIDTHS, [2], rules=("complete-p",), budget=BUDGETS[1], sweep=sweep
    )
print(f"{first.spent.trainings} trainings, then {answer.spent.trainings} in all")
answer

# %% [markdown]
# ## One more seed, or one more size?
#
# More seeds narrow what is known of the cost; a larger size narrows how the best rate drifts.

# %%
for gain in answer.gains:
    print(gain.sentence)
