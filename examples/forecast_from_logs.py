# %% [markdown]
# # What will the large run reach?
#
# You have a table of small runs: parameters, tokens, rate, loss. Two laws forecast one larger run
# from it: its loss, and the rate to train it at. The table here is the project's own ladder of
# small GPTs on bytes (`studies/own_ladder.csv`). The largest run is held back, so the forecast can
# be compared with what happened.

# %% tags=["parameters"]
TABLE = "studies/own_ladder.csv"
DEPTH = 2

# %%
import csv

import altair as alt

import nfd

alt.renderers.enable("png")

with open(TABLE) as file:
    rows = [
        {key: float(value) for key, value in row.items() if key != "part"}
        for row in csv.DictReader(file)
    ]
runs = [row for row in rows if row["depth"] == DEPTH and row["batch"] == 512]


def cost(row):
    """Operations of a training, of 6 for each parameter and token."""
    return 6 * row["parameters"] * row["tokens"]


most = max(map(cost, runs))
past, held_back = ([row for row in runs if (cost(row) == most) == last] for last in (False, True))
happened = min(held_back, key=lambda row: row["loss"])
print(
    f"{len(past)} runs of at most {max(map(cost, past)):.1e} operations; held back: {most:.1e} "
    "operations"
)

# %% [markdown]
# ## The loss
#
# Of each size the run at its best rate is used. The law says how far its runs lie off it, and
# whether to trust a forecast.

# %%
law = nfd.fit_ladder(past, rate="best")
law

# %%
size = {"parameters": happened["parameters"], "tokens": happened["tokens"]}
forecast = law.at(**size)
print(
    f"forecast {forecast.in_words()}, happened {happened['loss']:.3f}, "
    f"{100 * (forecast.value / happened['loss'] - 1):+.1f} % off"
)
print(law.refused(**size) or law.warning or "The runs carry this forecast.")

# %% [markdown]
# ## The rate

# %%
rates = nfd.fit_rate_law(past)
rate = rates.at(**size, batch=512)
print("the best rate that was tried:", happened["lr"])
rate

# %% [markdown]
# The forecast beside the runs: a dot is a run at its best rate, the bar the 95 % interval of the
# forecast.

# %%
best = dict[tuple[float, float], dict[str, float]]()
for row in sorted(past, key=lambda row: -row["loss"]):
    best[row["parameters"], row["tokens"]] = row | {"operations": cost(row)}
x = alt.X(
    "operations:Q",
    scale=alt.Scale(type="log"),
    axis=alt.Axis(format=".0e"),
    title="6 x parameters x tokens",
)
y = alt.Y("loss:Q", scale=alt.Scale(zero=False), title="loss (nats per byte)")
legend = alt.Legend(format=",")
blues = alt.Scale(scheme=alt.SchemeParams("blues", extent=[0.4, 1]))
colour = alt.Color("tokens:O", scale=blues, legend=legend)
reached = {"operations": most, "low": forecast.low, "high": forecast.high, "loss": happened["loss"]}
target = alt.Chart(alt.InlineData([reached])).encode(x=x)
chart = (
    alt.Chart(alt.InlineData([*best.values()]))
    .mark_point(filled=True)
    .encode(x=x, y=y, color=colour, shape=alt.Shape("tokens:O", legend=legend))
    + target.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    + target.mark_point(shape="diamond", filled=True, size=110, color="black").encode(y=y)
)
chart.properties(width=480, height=260, title="The forecast (bar) and what happened (diamond)")
