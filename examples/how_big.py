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
from nfd.data import digits

# %% [markdown]
# The law, with 95 % intervals and a test of its misfit against the noise of the seeds. Where it does not hold, it is
# not extrapolated.

# %%
data = digits()
x, y = data.batches(16, STEPS, seed=0)
task = nfd.Task(list(zip(x, y, strict=True)), eval_batches=[(data.test_inputs, data.test_labels)])
family = nfd.resnets(64, 10)
with nfd.Sweep(OUT) as sweep:
    answer = nfd.scaling_law(family, task, WIDTHS, DEPTHS, lr=0.3, seeds=SEEDS, sweep=sweep)
    law = answer.law
    print(law)

# %% [markdown]
# What the law says of infinite width, `nfd.predict` finds without a fit, on the same batches: networks of width
# `LIMIT_WIDTH` stand for the infinitely wide one; narrower ones show the bias of that width, which is subtracted.

# %%
p = nfd.predict(family, task, 0.3, depth=DEPTHS[-1], width=LIMIT_WIDTH, replicates=4)
if law.good:
    print(f"infinite width, depth {DEPTHS[-1]}, by the law: {law.loss(math.inf, DEPTHS[-1])}")
print(f"by nfd.predict: {p.eval_interval}")

# %% [markdown]
# The best size for a budget of parameters, and what an infinite network would gain over it.

# %%
if law.good:
    best = answer.best(parameters=PARAMETERS)
    print(f"{PARAMETERS:,} parameters: width {best.width}, depth {best.depth}, loss {best.predicted}")
    print(f"an infinite network would gain {law.excess(best.width, best.depth)} nats more")
else:
    print("the law does not hold on this grid, so no size is advised: train larger networks or more seeds")
