"""The words of the page of ``muon_limit.py``; its numbers come from ``muon_limit_page``."""

PAGE = """# Muon in the limit: does the best rate stay, and do inner layers learn?

Choose a rule for your model under Muon: this page measures whether the best rate stays as width and depth grow.
Words and symbols are in the [glossary](glossary.md).

*Numbers by `python examples/muon_limit.py --full`, kept in `docs/muon.json`; the page and its charts by
`python examples/muon_limit_page.py`. Brackets hold 95 % intervals over seeds. Exponents and drifts are doublings per
doubling of width or depth; their verdicts are those of [a check](checks.md).*

A network of width {width} and depth {depth} learns digits best at Muon's rate {small}. A network of
width {widest:,} wants {at_wide}, one of depth {deepest} wants {at_deep} under `complete-p`. So the small network's
rate serves the large ones too. Along width and depth, after {steps} steps:

{summary}

"Stays" is the verdict STABLE: the interval of the exponent lies within 0.25 of zero. The powers of L that keep the best
rate of Muon, measured for one kind of matrix at a time, in effective weights:

{powers}

## What was trained

Residual blocks $h + W_2 \\, \\mathrm{{relu}}(W_1 h)$ without norms, {steps} steps of {batch} digits, judged by the
loss on digits that are not trained on. Muon (PyTorch's, momentum 0.95) steps the matrices of the blocks. The rate
in question is theirs alone: AdamW steps input and readout, at rate {adamw_lr:g} always. The comparison with AdamW
is made in the same way; SGD steps everything at one rate.

Widths are {widths} at depth {depth}, depths are {depths} at width {width}; the smallest is the base of every plan.
Weights are stored below width {structured} and [structured](mathematics/structured.md) above. AdamW acts on single
entries, which structured weights do not have, so that its widths are {checked}. Best rates are fitted between rates
half a doubling apart, from {wide_seeds} starts along width and {deep_seeds} along depth, three times as many under
AdamW. The check trains at the best rate of the smallest network, from three starts, looks after steps {at}, and has
the widths {checked} too.

The regret is what the largest network loses at the best rate of the smallest, on new starts. TRANSFERS: its interval
lies below a tenth of the progress; COSTS: above; UNCERTAIN: around it, or the best rate lies at an end of its grid.

## Wider networks

![Loss against the rate of Muon, a line for every width]({images}muon-width.png)

*Depth {depth}, {steps} steps. Points: means over {wide_seeds} starts; bars: 95 % intervals; a network
that diverged counts as equal guesses.*

{along_width}

{limit}

## Deeper networks

{along_depth}

## Which power of L?

**One kind of matrix alone.** The plan gives Muon's rates a power of L for each kind of matrix, in
effective weights. Here one kind trains and the other stays at its start, so that the drift of the best rate is the
error of that power:

{alone}

**Both kinds, at wrong powers.** Both rates get a factor of L^p on top of the plan. If the plan is right the best
rate drifts by -p, and p + drift is 0. The function update is taken at the best rate of the smallest network;
part of it is that of input and readout, whose rates have no factor of L:

{both}

![Best rate of Muon against depth, for two starts and three powers of L]({images}muon-depth.png)

*Width {width}, {steps} steps, {deep_seeds} starts; bars: 95 % intervals. Rates are those of the base:
where the rule has the right power, the line is level. p is a power of L on top of the rule, which makes it fall by
p.*

## Do inner layers learn?

![What training changed in the output of inner matrices, against depth]({images}muon-inner.png)

*Width {width}, after {steps} steps at the best rate of the smallest network. Means over three
starts, 95 % intervals, over the mean at the smallest depth.*

Exponents over depth; meters are defined in `nfd.meters.updates`. `function_update_inner` is what the
inner matrices of all blocks together do to the function, `inner_update` what each of them does to its own output.

{meters}

The rates of Eq. 8 (`depth-mup-inner`) keep the inner updates from the start of `depth-mup`, and let what they do
together grow, so that the best rate falls. Without any factor of depth (`mup`) everything grows.

## A GPT

The GPT of `examples/wide_gpt.py` at width {width}, {steps} steps of 256 bytes, {deep_seeds} starts, along depth.
Its blocks have norms, attention, and an MLP of four times the width. p is a power of L on top of the plan, as
above.

{gpt}

So the inner layers of the GPT learn from the start of `complete-p`, and less and less from that of `depth-mup`, as
those of the network above. Its best rate over depth, from the start of `complete-p`: {gpt_compl}; from that of
`depth-mup`: {gpt_depth}. Where it rises, the plan's power of L is too low for so short a training, or for blocks
with norms; the regret says what that costs. [The GPT's own page](transformers.md) has three times the steps, at one
rate for Muon and AdamW.

## Why these powers

Take a block $h + B \\, \\phi(A h)$ whose $B$ begins at size $L^{{-a}}$: $a = 1/2$ is the start of `depth-mup`,
$a = 1$ that of `complete-p`. A step of Muon moves a matrix by its rate times a matrix with singular values near 1,
whatever the size of the gradient.

- The step of $B$ moves the stream by its rate $\\eta_B$. The steps of all blocks point the same way, down the
  gradient, and add up to $L \\eta_B$. So the function stays at $\\eta_B \\sim L^{{-1}}$, from either start.
- The step of $A$ passes through $B$. It moves the stream by $L^{{-a}} \\eta_A$, and those of all blocks together
  move it by $L^{{1 - a}} \\eta_A$. So the function stays at $\\eta_A \\sim L^{{a - 1}}$.
- In the block's own features the step of $A$ changes $\\eta_A$ itself. From the start of `depth-mup` the two wishes
  exclude each other: at $L^{{-1/2}}$ inner features change less and less, and at $L^0$ the inner layers together
  move the function as $L^{{1/2}}$. From the start of `complete-p` both ask for $L^0$.

These are the powers of the plan (`nfd.scaling.rules`). SGD reaches the same updates by other rates, since its steps
follow the size of the gradient, so that from the start of `depth-mup` the two wishes exclude each other there too.

## What this cannot decide

- Training of {steps} steps says where the best rate lies after {steps} steps. Longer training often prefers lower
  rates, and a small drift may grow with it. A thousand steps cost fifty times what this page did.
- Depths beyond {deepest}, and widths and depths that grow together, are not measured. Depth 256 costs eight times
  all of depth 32.
- The GPT's rates are those of {steps} steps. Whether its best rate rises with depth in longer training too, and
  whether its norms are the reason, takes ten times the steps at depths 2 to 32, with norms and without: about a
  hundred times the training of that section.
- AdamW's losses are flat around the best rate, and its best rates uncertain: the regret is the number to go by. A
  drift known to 0.1 takes some ten times the starts.
- Updates over width are those of stored weights, as a check compares matrices with their start. The best rates and
  the prediction are those of structured weights from their width on.
- Muon's Newton-Schulz steps bring singular values near 1, not to 1. Other coefficients, decay, warm-up and a rate
  of AdamW that is tuned together with Muon's may move best rates.

## Try it

```bash
python examples/muon_limit.py
```

trains a small version in a minute or two. A stopped run goes on by the same command.
"""

LIMIT = """At rate {lr:.2g} the infinitely wide network under {name} ends at a loss of {loss}, by `nfd.predict` from
structured networks of width {width:,} and narrower ones; width {width:,} adds {bias:+.3f}."""
