# %% [markdown]
# # What will the large run reach?
#
# You have a table of small runs: parameters, tokens, rate, loss. Two laws forecast one larger run from it: its loss, and
# the rate to train it at. The table here is the project's own ladder of small GPTs on bytes (`docs/own-ladder.csv`). The
# largest run is held back, so the forecast can be compared with what happened.

# %% tags=["parameters"]
TABLE = "docs/own-ladder.csv"
DEPTH = 2

# %%
from pathlib import Path

import altair as alt
import pandas as pd

import nfd

here = next(folder for folder in (Path.cwd(), *Path.cwd().parents) if (folder / TABLE).exists())
runs = pd.read_csv(here / TABLE).query("depth == @DEPTH and batch == 512")
largest = runs.parameters * runs.tokens == (runs.parameters * runs.tokens).max()
past, held_back = runs[~largest], runs[largest]
print(f"{len(past)} runs, up to {past.parameters.max():,} parameters and {past.tokens.max():,} tokens")

# %% [markdown]
# ## The loss
#
# Of each size the run at its best rate is used. The law says how far its runs lie off it, and whether to trust a forecast.

# %%
law = nfd.fit_scaling_law(past, rate="best")
size = {"parameters": float(held_back.parameters.max()), "tokens": float(held_back.tokens.max())}
forecast, happened = law.at(**size), held_back.loss.min()
print(law)
print(f"forecast {forecast}, happened {happened:.3f}, {100 * (forecast.value / happened - 1):+.1f} % off")
print(law.refused(**size) or law.warning or "The runs carry this forecast.")

# %% [markdown]
# ## The rate

# %%
rates = nfd.fit_transfer(past)
rate = rates.at(**size, batch=512)
print(rate)
print("the best rate that was tried:", held_back.lr[held_back.loss.idxmin()])

# %% [markdown]
# The forecast beside the runs: a dot is a run at its best rate, the bar the 95 % interval of the forecast.

# %%
best = past.loc[past.groupby(["parameters", "tokens"]).loss.idxmin()]
dots = best.assign(operations=6 * best.parameters * best.tokens, tokens=best.tokens.map("{:,} tokens".format))
x = alt.X("operations:Q", scale=alt.Scale(type="log"), axis=alt.Axis(format=".0e"), title="6 x parameters x tokens")
y = alt.Y("loss:Q", scale=alt.Scale(zero=False), title="loss (nats per byte)")
told = {"operations": 6 * size["parameters"] * size["tokens"], "low": forecast.low, "high": forecast.high, "loss": happened}
target = alt.Chart(alt.InlineData([told])).encode(x=x)
chart = (
    alt.Chart(dots).mark_point(filled=True).encode(x=x, y=y, color="tokens:N", shape="tokens:N")
    + target.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    + target.mark_point(shape="diamond", size=80, color="#D55E00").encode(y=y)
)
chart.properties(width=480, height=260, title="The forecast (bar) and what happened (diamond)")
