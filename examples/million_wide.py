# %% [markdown]
# # A million-wide network on a laptop
#
# Trains residual networks of growing width with deferred weights, the widest 1,048,576 wide, and
# draws their loss. The widest needs about 7 GiB and a minute or two on two cores; its dense weights
# would need 17.6 TB.

# %% tags=["parameters"]
WIDTHS = [256, 4096, 1048576]
STEPS = 12
OUT = "out/million"

# %%
import csv
import time
from pathlib import Path

import altair as alt
from torch import nn

import nfd
from nfd.data import digits

alt.renderers.enable("png")

DEPTH = 4
BATCH = 8
LR = 0.5

# %% [markdown]
# The loop is an ordinary one. `reserve` says how many samples are to come, so that the factors that
# stand for the weights are allocated once.


# %%
def losses_of(width):
    """Training losses before every step, of a network with deferred weights."""
    x, y = digits().batches(BATCH, STEPS, seed=0)
    net = nfd.ResNet(64, 10, width, DEPTH, weights="deferred")
    net.reserve(STEPS * BATCH)
    optimizer = nfd.SGD(net.param_groups(LR))
    losses = []
    for inputs, targets in zip(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


rows = []
for width in WIDTHS:
    start = time.perf_counter()
    losses = losses_of(width)
    seconds = time.perf_counter() - start
    dense = 4 * DEPTH * width**2 / 1e9
    print(
        f"width {width:>9,}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {seconds:.1f} s, dense "
        f"{dense:,.1f} GB"
    )
    rows += [
        {"width": f"width {width:,}", "step": k, "loss": loss} for k, loss in enumerate(losses)
    ]

# %% [markdown]
# The loss as a chart and as a table. Networks of different width have different random weights, so
# their curves differ by the noise of one draw, which falls as one over the square root of the
# width.

# %%
out = Path(OUT)
out.mkdir(parents=True, exist_ok=True)
with open(out / "million.csv", "w", newline="") as file:
    table = csv.DictWriter(file, rows[0])
    table.writeheader()
    table.writerows(rows)
colour = alt.Color("width:N", sort=None, title=None)
base = alt.Chart(alt.InlineData(rows)).encode(
    color=colour, strokeDash=alt.StrokeDash("width:N", sort=None)
)
loss = alt.Y("loss:Q", scale=alt.Scale(zero=False), title="training loss before the step (nats)")
chart = (
    base.mark_line()
    .encode(x="step:Q", y=loss)
    .properties(width=480, height=260, title="From width 4,096 on, wider networks train alike")
)
chart.save(out / "million.png", scale_factor=2)
chart
