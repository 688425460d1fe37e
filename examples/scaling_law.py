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
print(law)

# %% [markdown]
# What would larger networks reach, and which shape of 200,000 parameters is best?

# %%
print("infinitely large:  ", law.floor)
print("width 256, depth 8:", law.at(256, 8))
print(law.best(parameters="200k"))

# %% [markdown]
# What the law says over widths, with its 95 % interval, for each depth; the dashed line is the
# infinitely large network.

# %%
rows = [
    {"depth": str(L), "width": n, "loss": at.value, "low": at.low, "high": at.high}
    for L in DEPTHS
    for n in WIDTHS
    for at in [law.at(n, L)]
]
x = alt.X("width:Q", scale=alt.Scale(type="log", nice=False))
base = alt.Chart(alt.InlineData(rows)).encode(
    x=x, color=alt.Color("depth:N", sort=None), strokeDash=alt.StrokeDash("depth:N", sort=None)
)
lines = base.mark_line(point=True).encode(
    y=alt.Y("loss:Q", scale=alt.Scale(zero=False), title="test loss (nats)")
)
bars = base.mark_rule().encode(y="low:Q", y2="high:Q", strokeDash=alt.value([1, 0]))
floor = (
    alt.Chart(alt.InlineData([{"loss": law.law.floor.value}]))
    .mark_rule(strokeDash=[6, 4])
    .encode(y="loss:Q")
)
(lines + bars + floor).properties(
    width=480, height=260, title="What width and depth gain, by the fitted law"
)
