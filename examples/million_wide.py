# %% [markdown]
# # A million-wide network on a laptop
#
# Trains residual networks of growing width with deferred weights, the widest 1,048,576 wide, and draws their loss.
# The widest needs about 7 GiB and a minute or two on two cores; its dense weights would need 17.6 TB.

# %% tags=["parameters"]
WIDTHS = [256, 4096, 1048576]
STEPS = 12
OUT = "out/million"

# %%
import time

import nfd
from nfd.core.files import Axes, prepare_directory, write_csv
from nfd.data import digits
from nfd.report.charts import drawn, still
from nfd.runs.losses import cross_entropy
from nfd.runs.trial import train

DEPTH, BATCH, ETA_C = 4, 8, 0.5

# %% [markdown]
# One network, trained by the library's own loop. `reserve` says how many samples are to come, so that the factors that
# stand for the weights are allocated once.


# %%
def losses_of(width: int) -> list[float]:
    """Training losses before every step, of a network with deferred weights."""
    x, y = digits().batches(BATCH, STEPS, seed=0)
    net = nfd.ResNet(64, 10, width, DEPTH, weights="deferred")
    net.reserve(STEPS * BATCH)
    optimizer = nfd.SGD(net.param_groups(ETA_C))
    return [row.loss for row in train(net, optimizer, zip(x, y, strict=True), cross_entropy)]


rows = []
for width in WIDTHS:
    start = time.perf_counter()
    losses = losses_of(width)
    seconds, dense = time.perf_counter() - start, 4 * DEPTH * width**2 / 1e9
    print(f"width {width:>9,}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {seconds:.1f} s, dense {dense:,.1f} GB")
    name = f"width {width:,}"
    rows = [{"series": name, "step": k, "loss": x} for k, x in enumerate(losses)] + rows  # the widest is drawn below

# %% [markdown]
# The loss as a chart and as a table. Networks of different width have different random weights, so their curves differ
# by the noise of one draw, which falls as one over the square root of the width.

# %%
axes = Axes("step", "loss", "step", "training loss before the step (nats), one network each", "curves")
chart = drawn(rows, axes)
out = prepare_directory(OUT)
write_csv(out / "million.csv", rows)
(out / "million.png").write_bytes(still(chart)[1])
chart
