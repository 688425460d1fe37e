# %% [markdown]
# # How kernels move while an infinitely wide network learns
#
# Before training, kernels of infinitely wide networks are known in closed form. A lazy network
# keeps them. A network that learns features moves them: this notebook computes by how much, at
# infinite width, for networks that are trained the usual way and for the decoupled ones of
# Definition 1 (docs/kernels-in-training.md). It takes a minute.

# %% tags=["parameters"]
WIDTH = 256
REPLICATES = 8
STEPS = 16

# %%
import altair as alt

import nfd
from nfd.data import digits

alt.renderers.enable("png")

# Odd against even digits, one output
data = digits()
inputs, labels = data.batches(8, STEPS, seed=0)
targets = 1.0 - 2.0 * (labels % 2).float()
task = nfd.Task(list(zip(inputs, targets[..., None])), loss="mse")

# %% [markdown]
# `probes` are test digits, which no network is trained on. Every prediction trains a few networks
# of two widths, reads them on the way, and removes the bias of width and most of the noise.


# %%
def predicted(feedback):
    return nfd.predict(
        nfd.resnets(64, 1, feedback=feedback),
        task,
        lr=0.3,
        depth=8,
        width=WIDTH,
        replicates=REPLICATES,
        probes=data.test_inputs[:8],
        kernels=True,
    )


predictions = {"standard": predicted("shared"), "decoupled": predicted("independent")}
p = predictions["standard"]
outputs = p.probe_outputs
last = [part[-1, :, 0] for part in (outputs.value, outputs.low, outputs.high)]
for digit, value, low, high in zip(data.test_labels.tolist(), *last):
    print(f"digit {digit}: output {value:+.2f} [{low:+.2f}, {high:+.2f}]")

# %% [markdown]
# How far the kernel of features at the output is from the one before training, over its size.

# %%
rows = []
for network, prediction in predictions.items():
    for step, moved in prediction.kernels.moved("features").items():
        rows.append({"network": network, "step": step, **moved.limits})
    print(f"{network}: after {step} steps features moved by {moved.unsigned} of their size")

# %%
x = alt.X("step:Q", scale=alt.Scale(type="log", base=2, padding=20), title="updates")
base = alt.Chart(alt.InlineData(rows)).encode(x=x, color=alt.Color("network:N", title=None))
y = alt.Y("value:Q", title="change of the feature kernel, relative")
chart = (
    base.mark_line().encode(y=y)
    + base.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    + base.mark_point(filled=True, opacity=1, size=60).encode(y=y)
)
chart.properties(width=480, height=260, title="Features move while the network learns")
