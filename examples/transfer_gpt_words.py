"""The words of the page of ``transfer_gpt.py``; its numbers come from ``transfer_gpt_page``."""

PAGE = """# A GPT: which rule keeps its best learning rate, and does a check predict it?

This page helps you choose a rule for your Transformer. It compares four rules on a GPT, under AdamW and Muon.
Words and symbols are in the [glossary](glossary.md).

*Made by `python examples/transfer_gpt.py{option}`. Brackets hold 95 % intervals over seeds.*

{summary}

## What was trained

{setting}

## Wider networks

{width}

## Deeper networks

{depth}

## A larger network at the small one's rate

{larger}

## What tuning the small network saves

{saved}

## What the check saw

{checks}

## Do inner layers of a deep GPT learn?

Not with uniform rates, and it costs less than it looks. At width 64, depths 2 to 32, four seeds, the update of inner
layers in the first step falls as depth to the power -0.50 [-0.52, -0.49] under AdamW (`depth-mup`). With Eq. 8
(`depth-mup-inner`) and with `complete-p` it stays: -0.03 [-0.05, -0.01] and -0.01 [-0.03, +0.01]. What inner layers
do to the function grows under Eq. 8, +0.33 [+0.31, +0.36], and not under `complete-p`. SGD gives the same powers. At
depth 16, each rule at its best rate, no cure has a significantly lower loss after 60 steps.

![What the inner layers move in the first step, against depth, by rule and optimizer](images/inner-layers-gpt.png)

*Width 64, 4 seeds, made by version 0.2.0; lines join means, bars hold 95 % intervals. Grey: the power -1/2 of depth.*

## What this page does not show

{limits}

## Try it

```bash
python examples/transfer_gpt.py
```

trains a small version in minutes, and writes a page like this one to `out/transformers`. The same command continues a
stopped run. For your own model, call `nfd.transfer` and `nfd.check` in the same way. In the shell:
`nfd transfer examples/transfer_gpt.py --optimizer adamw`.
"""

SETTING = """\
The GPT of `examples/wide_gpt.py`: pre-norm blocks, heads of size {head} at every width, an MLP of four times the
width, and a readout that is separate from the embedding. It has {least:,} to {most:,} parameters. It reads the
source of Python's `typing` and `inspect` as bytes: {batch} windows of {length} per step, {steps} steps ({bytes:,}
bytes). The rate is constant, without warm-up or weight decay. The loss is measured on the bytes of `argparse`,
which it never trains on. There are {seeds} seeds.

Rates begin with {rates}. If the best one lies at an end of the grid, more are added. Under Muon, AdamW trains
embedding, readout and gains at the same rate. The base of every plan is the smallest network of its ladder, so
rates are those of the base.

Two rules are the same along an axis if they set the same start, rate, decay and epsilon for every tensor of the
largest network. These are trained once: {merged}. (`standard` keeps PyTorch's uniform draws; plans draw normal
numbers of the same variance.)"""

LADDER = """{pictures}

*At {held}. Lines: means over seeds with 95 % intervals; a network that diverged counts with the loss of a uniform
guess. Diamonds below: best rates with 95 % intervals.*

{table}

The regret is the extra loss of the largest network at the smallest one's best rate, on new seeds. Its interval
includes the probability that a seed diverges, even if few did, so its upper end is high. TRANSFERS: the interval lies
below a tenth of the largest network's progress. COSTS: it lies above. UNCERTAIN: it contains a tenth.

Progress is measured from a uniform guess, and most of it is learning how often each byte occurs. So a tenth of it is
much. The last two columns help to compare: the loss of the largest network at the best rate of its grid, and how far
it lies below that of the smallest network at the best rate of its own grid."""

LARGER = """\
Networks of width {width} and depth {depth}, {seeds} seeds, trained at the best rate of width {small}, at half and at
twice that rate. One such training takes {ratio:.0f} times the operations of one of width {small}. Bold: the lowest
loss of the three. The last column is the loss at the small network's rate minus the loss in bold, seed by seed. It is
biased upward, since the same losses chose the rate in bold. If that rate is the lowest or highest of the three, the
best rate may lie beyond.

{table}"""

SAVED = """\
This table compares the cost of tuning the smallest and the largest network of a ladder: all trainings that found the
best rate (rates times seeds). Costs are floating-point operations of forward and backward passes, as PyTorch counts
them, without those of the optimizer. The price of tuning small is the regret above.

{table}"""

CHECKS = """\
`nfd.check` ran at the best rate of the smallest network, with {seeds} seeds, and read its meters after several steps.
A fault is a meter that collapses or grows with size; meters are defined in `nfd.meters.updates`. Growth means that
the same rate changes larger networks more, so their best rate should be lower, or their best loss higher. A collapse
of inner layers means that they learn less in larger networks. The best rate can still stay if the other layers
determine it.

{table}

All exponents in size, with the verdict if it is not STABLE:

{details}"""

LIMITS_OF_IT = """- {missing}
- **Longer training.** The best rates are those of {steps} steps. Longer training often prefers lower rates, and a
  drift may grow or vanish.
- **Other settings.** There is one model, one kind of text, one batch size and a constant rate. Warm-up and decay move
  best rates.
- **Width and depth together.** Widths are compared at one depth, and depths at one width."""
