# %% [markdown]
# # How big should it be?
#
# Trains a grid of small networks, fits the law `loss = floor + a / n + b / L`, asks `nfd.predict` whether it is right,
# and spends a budget of parameters. A sweep is kept on disk: run this again and nothing is trained twice.

# %% tags=["parameters"]
WIDTHS = [32, 64, 128, 256]
DEPTHS = [4, 8, 16]
SEEDS = 6
STEPS = 40
LIMIT_WIDTH = 1024
PARAMETERS = 1_000_000
OUT = "out/how-big"

# %%
import math

import nfd
from nfd.data.digits import digits
from nfd.questions.law import fit_law

# %% [markdown]
# Every network has a seed of its own, so that their errors are independent and the fit is sharp.

# %%
sizes = [(width, depth) for width in WIDTHS for depth in DEPTHS]
runs = [
    run
    for k, (width, depth) in enumerate(sizes)
    for run in nfd.grid(
        width=width, depth=depth, seed=list(range(k * SEEDS, (k + 1) * SEEDS)), eta_c=0.3, steps=STEPS, batch=16
    )
]
losses: dict[tuple[int, int], list[float]] = {}
with nfd.Sweep(OUT, progress=True) as sweep:
    for record in sweep.run(runs):
        size = record.config["width"], record.config["depth"]
        losses.setdefault(size, []).append(record.metrics.get("test_loss", math.inf))

# %% [markdown]
# The law, with 95 % intervals and a test of its misfit against the noise of the seeds. `trim` leaves out the smallest
# sizes until it holds; where it does not hold, it is not extrapolated.

# %%
law = fit_law(losses, paired=False, trim=True)
print(law)

# %% [markdown]
# What the law says of infinite width, `nfd.predict` finds without a fit, on the same batches: networks of width
# `LIMIT_WIDTH` stand for the infinitely wide one; narrower ones show the bias of that width, which is subtracted.

# %%
data = digits()
p = nfd.predict(
    *data.batches(16, STEPS, seed=0),
    depth=DEPTHS[-1],
    eta_c=0.3,
    width=LIMIT_WIDTH,
    replicates=4,
    eval_inputs=data.test_inputs,
    eval_targets=data.test_labels,
)
if law.good:
    print(f"infinite width, depth {DEPTHS[-1]}, by the law: {law.loss(math.inf, DEPTHS[-1])}")
print(f"by nfd.predict: {p.eval_interval}")

# %% [markdown]
# The best size for a budget: the matrices of one-layer blocks hold `L n^2` numbers, all else little. The depths tried
# stay near those of the fit.

# %%
if law.good:
    afforded = [(math.isqrt(PARAMETERS // depth), depth) for depth in range(DEPTHS[0], 4 * DEPTHS[-1] + 1)]
    width, depth = min(afforded, key=lambda size: law.a.value / size[0] + law.b.value / size[1])
    print(f"{PARAMETERS:,} parameters: width {width}, depth {depth}, loss {law.loss(width, depth)}")
    print(f"an infinite network would gain {law.excess(width, depth)} nats more")
else:
    print("the law does not hold on this grid, so no size is advised: train larger networks or more seeds")
