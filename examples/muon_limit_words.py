"""The words of the page of ``muon_limit.py``; its numbers come from ``muon_limit_page``."""

PAGE = """# Muon in the limit: does the best rate stay, and do inner layers learn?

This page helps you choose a rule for a model under Muon. It measures whether the best rate stays as width and depth
grow.
Words and symbols are in the [glossary](glossary.md).

*Numbers by `python examples/muon_limit.py --full`, kept in `docs/muon.json`; the page and its charts by
`python examples/muon_limit_page.py`. Brackets hold 95 % intervals over seeds. Exponents and drifts are doublings per
doubling of width or depth; their verdicts are those of [a check](checks.md).*

A network of width {width} and depth {depth} learns digits best at Muon's rate {small}. Under `complete-p` the best
rate of width {widest:,} is {at_wide}, and that of depth {deepest} is {at_deep}. So the small network's rate also
suits the large ones. The table shows exponents in width and depth, after {steps} steps:

{summary}

"Stays" is the verdict STABLE: the interval of the exponent lies within 0.25 of zero. Which power of L keeps Muon's
best rate? Measured for one kind of matrix at a time, with rates in effective weights:

{powers}

## What was trained

- **Network:** residual blocks $h + W_2 \\, \\mathrm{{relu}}(W_1 h)$ without norms.
- **Training:** {steps} steps of {batch} digits; losses are on other digits.
- **Optimizers:** PyTorch's Muon with momentum 0.95 steps the matrices of the blocks. Only their rate is varied: AdamW
  steps input and readout at a fixed rate of {adamw_lr:g}. The same holds for the comparison with AdamW. SGD steps all
  tensors at one rate.
- **Sizes:** widths {widths} at depth {depth}, and depths {depths} at width {width}. The smallest network is the base
  of every plan. Weights are stored below width {structured} and [structured](mathematics/structured.md) above. AdamW
  acts on single entries, which structured weights do not have; its widths are {checked}.
- **Best rates** are fitted on a grid of rates half a doubling apart, with {wide_seeds} seeds along width and
  {deep_seeds} along depth, three times as many under AdamW.
- **Checks** train at the best rate of the smallest network, with three seeds and the widths {checked}, and read the
  meters after steps {at}.
- **The regret** is the extra loss of the largest network at the best rate of the smallest, on new seeds. TRANSFERS:
  its interval lies below a tenth of the progress. COSTS: it lies above. UNCERTAIN: it contains a tenth, or the best
  rate lies at an end of its grid.

## Wider networks

![Loss against the rate of Muon, a line for every width]({images}muon-width.png)

*Depth {depth}, {steps} steps. Points: means over {wide_seeds} seeds; bars: 95 % intervals. A network that diverged
counts with the loss of a uniform guess.*

{along_width}

{limit}

## Deeper networks

{along_depth}

## Which power of L?

**One kind of matrix alone.** The plan multiplies Muon's rate by a power of L that depends on the kind of matrix (in
effective weights). Here only one kind trains; the other keeps its initial weights. So the drift of the best rate is
the error of that power:

{alone}

**Both kinds, at wrong powers.** Both rates are multiplied by L^p in addition to the plan. If the plan is right, the
best rate drifts by -p, so p + drift is 0. The function update is measured at the best rate of the smallest network.
It includes the updates of input and readout, whose rates have no factor of L:

{both}

![Best rate of Muon against depth, for two starts and three powers of L]({images}muon-depth.png)

*Width {width}, {steps} steps, {deep_seeds} seeds; bars: 95 % intervals. Rates are those of the base, so the line of a
rule with the right power is horizontal. An additional factor of L^p makes it fall by p.*

## Do inner layers learn?

![What training changed in the output of inner matrices, against depth]({images}muon-inner.png)

*Width {width}, after {steps} steps at the best rate of the smallest network. Means over three seeds with 95 %
intervals, divided by the mean at the smallest depth.*

Exponents in depth; meters are defined in `nfd.meters.updates`. `function_update_inner` is the change of the function
by the inner matrices of all blocks together. `inner_update` is the change of each inner matrix's own output.

{meters}

The rates of Eq. 8 (`depth-mup-inner`) keep the inner updates constant from the start of `depth-mup`. But their common
effect on the function grows, so the best rate falls. Without factors of depth (`mup`), all updates grow.

## A GPT

The GPT of `examples/wide_gpt.py` at width {width} and several depths: {steps} steps of 256 bytes, {deep_seeds} seeds.
Its blocks have norms, attention, and an MLP of four times the width. As above, p is an additional power of L.

{gpt}

As in the network above, the inner layers of the GPT learn from the start of `complete-p`. From the start of
`depth-mup` they learn less and less with depth. The drift of the best rate over depth:

- from the start of `complete-p`: {gpt_compl}
- from the start of `depth-mup`: {gpt_depth}

If the best rate rises, the plan's power of L is too low for such a short training, or for blocks with norms. The
regret says what that costs. [The GPT's own page](transformers.md) has three times the steps, with the same rate for
Muon and AdamW.

## Why these powers

Take a block $h + B \\, \\phi(A h)$ whose initial $B$ has size $L^{{-a}}$: $a = 1/2$ for `depth-mup`, $a = 1$ for
`complete-p`. A step of Muon adds its rate times a matrix with singular values near 1. The size of the gradient does
not matter.

- **Outer matrices.** A step of $B$ moves the stream by its rate $\\eta_B$. The steps of all blocks point in the same
  direction, down the gradient, and add up to $L \\eta_B$. So the update of the function is constant in depth if
  $\\eta_B \\sim L^{{-1}}$, from either start.
- **Inner matrices, the function.** A step of $A$ passes through $B$. It moves the stream by $L^{{-a}} \\eta_A$, and
  all blocks together move it by $L^{{1 - a}} \\eta_A$. So the update of the function is constant if $\\eta_A \\sim
  L^{{a - 1}}$.
- **Inner matrices, their own features.** A step of $A$ changes the features of the block by $\\eta_A$, which is
  constant if $\\eta_A \\sim L^0$.

From the start of `complete-p`, both conditions on $A$ ask for $L^0$. From the start of `depth-mup` they contradict
each other. At $L^{{-1/2}}$ the inner features change less and less; at $L^0$ the inner layers together move the
function as $L^{{1/2}}$.

These are the powers of the plan (`nfd.scaling.rules`). SGD needs other rates for the same updates, since its steps
follow the size of the gradient. The contradiction at the start of `depth-mup` is the same.

## What this cannot decide

- **Longer training.** The best rates are those of {steps} steps. Longer training often prefers lower rates, and a
  small drift may grow. A thousand steps would cost fifty times as much as this page.
- **Larger depths.** Depths beyond {deepest}, and widths and depths that grow together, are not measured. Depth 256
  costs eight times all of depth 32.
- **Why the GPT's best rate moves.** Does it rise with depth in longer training too, and are its norms the reason? To
  answer, train ten times the steps at depths 2 to 32, with norms and without. That is about a hundred times the
  training of that section.
- **AdamW.** Its losses are flat around the best rate, so its best rates are uncertain; rely on the regret. To know
  the drift to 0.1 takes about ten times the seeds.
- **Updates of structured weights.** A check compares matrices with their start, so updates over width are those of
  stored weights. The best rates and the prediction use structured weights from width {structured} on.
- **Other settings of Muon.** Its Newton-Schulz iteration brings singular values near 1, not to 1. Other coefficients,
  decay, warm-up, or an AdamW rate tuned together with Muon's may move the best rates.

## Try it

```bash
python examples/muon_limit.py
```

trains a small version in a minute or two. The same command continues a stopped run.
"""

LIMIT = """At rate {lr:.2g} the infinitely wide network under {name} ends at a loss of {loss}. `nfd.predict` computes it
from structured networks of width {width:,} and narrower ones; width {width:,} adds {bias:+.3f}."""
