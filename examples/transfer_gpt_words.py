"""The words of the page of ``transfer_gpt.py``; its numbers come from ``transfer_gpt_page``."""

PAGE = """# A GPT: which rule keeps its best learning rate, and does a check predict it?

Choose a rule for your Transformer: this page compares four of them on a GPT, under AdamW and Muon.
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

## What this page does not show

{limits}

## Try it

```bash
python examples/transfer_gpt.py
```

trains a small version in minutes, and writes a page like this one to `out/transformers`. A stopped run goes on by the
same command. For a model of yours, call `nfd.transfer` and `nfd.check` in the same way. In the shell, from the folder
of the examples, `nfd transfer transfer_gpt:make_model --batches transfer_gpt:batches --optimizer adamw` asks the same.
"""

SETTING = """The GPT of `examples/wide_gpt.py`: pre-norm blocks, heads of {head} whatever the width, an MLP of four
times the width, embedding and readout of their own; {least:,} to {most:,} parameters. It reads the source of
Python's `typing` and `inspect` as bytes, {batch} windows of {length} per step, {steps} steps ({bytes:,} bytes) at a
constant rate, without warm-up or weight decay. It is judged by its loss on bytes of `argparse`, which it never
reads. {seeds} seeds. Rates begin with {rates}; they go on where the best one lies at an end. Under Muon its own rate
and AdamW's, of embedding, readout and gains, are one. The base of every plan is the smallest network of its ladder,
so that a rate is the base's.

Rules that set the same start, rate, decay and epsilon for every tensor of the largest network are one rule along
that axis, and it is trained once: {merged}. (`standard` keeps PyTorch's uniform draws; plans draw normal numbers of
the same variance.)"""

LADDER = """{pictures}

*At {held}. Lines: means over seeds with 95 % intervals; a network that diverged counts as equal guesses. Diamonds
below: best rates with 95 % intervals.*

{table}

The regret is what the largest network loses at the smallest one's best rate, on new starts. Its interval counts the
chance that a start diverges where few have, which makes its upper end wide. TRANSFERS: the interval lies below a
tenth of the largest network's progress; COSTS: above; UNCERTAIN: around it. Progress counts from equal guesses, and
most of it is how often each byte occurs, so a tenth is much: to compare, the last columns have the loss of the
largest network at the best rate of its grid, and what it gains over the smallest at the best rate of that one's."""

LARGER = """Networks of width {width} and depth {depth}, {seeds} seeds, at the best rate of width {small} and at the
rates beside it; one of their trainings takes {ratio:.0f} times the operations of one of width {small}. Bold: the least
of the three. The last column is what the small network's rate costs against the rate in bold, seed by seed, which
leans upward, since the same losses chose it; where that rate is the lowest or the highest of the three, the best one
may lie beyond.

{table}"""

SAVED = """The trainings that found the best rate of the smallest and of the largest network of a ladder (rates
times seeds), in floating-point operations of forward and backward passes as PyTorch counts them; those of the
optimizers are not among them. What tuning the small network loses in return is the regret above.

{table}"""

CHECKS = """`nfd.check` at the best rate of the smallest network, {seeds} seeds, after several steps. A fault is a
meter that collapses or grows with size; meters are defined in `nfd.meters.updates`. Growth says that one rate moves
larger networks more, so that their best rate should be lower, or their best loss worse. A collapse of inner layers
says that they learn less and less; the best rate may stay where the other layers set it.

{table}

Every exponent against size, with its verdict where that is not STABLE:

{details}"""

LIMITS_OF_IT = """- {missing}
- Networks of {steps} steps say where the best rate lies after {steps} steps. Longer training often prefers lower
  rates, and a drift may grow or vanish with it.
- One model, one kind of text, one batch size, a constant rate: warm-up and decay move best rates.
- Widths at one depth and depths at one width: nothing here is about both at once."""
