# %% [markdown]
# # How big should it be?
#
# `nfd.scaling_law` trains small networks of several widths and depths, fits
# `floor + a / width + b / depth`, and says what a larger network would gain, and how to split a
# number of parameters between width and depth. The networks read scikit-learn's digits. This takes
# about a minute.

# %% tags=["parameters"]
WIDTHS = [16, 32, 64, 128]
DEPTHS = [2, 4, 8]
STEPS = 30
SEEDS = 4

# %%
import altair as alt
from torch import nn

import nfd
from nfd.data import digits

alt.renderers.enable("png")


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


# %% [markdown]
# The rate is that of the smallest network, tuned before; under `complete-p`, the default, it serves
# all sizes.

# %%
data = digits()
batches = list(zip(*data.batches(32, STEPS, seed=0)))
task = nfd.Task(batches, eval_batches=[(data.test_inputs[:512], data.test_labels[:512])])
law = nfd.scaling_law(make_model, task, WIDTHS, DEPTHS, lr=4e-3, seeds=SEEDS)
law

# %% [markdown]
# What would larger networks reach, and which shape of 200,000 parameters is best?

# %%
print("infinitely large:  ", law.floor.in_words())
print("width 256, depth 8:", law.at(256, 8).in_words())
law.best(parameters="200k")

# %% [markdown]
# The chart of the law as an object of Altair's, to change or to save.

# %%
law.plot()
