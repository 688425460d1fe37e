"""The words of the page of ``two_limits.py``; its numbers come from there and from ``two_limits_settings.py``."""

PAGE = r"""# Two limits

See in ten minutes that the paper's limit is not the limit of the network that you train, and check it yourself.
Words and symbols are in the [glossary](glossary.md).

*Made by `python examples/two_limits.py`, the section on settings by `python examples/two_limits_settings.py`. Brackets
hold 95 % intervals.*

Train a ReLU network with $T = 1$ on one input with $\lvert x \rvert^2 = d$, by one small step of SGD. At infinite
width and depth its output moves 1.25 times as far as Theorem 1 of the paper says. The [closed form](#the-closed-form)
uses the network before training alone, where the paper's Props. 2 and 6 hold. [40 lines of
PyTorch](#check-it-yourself) measure the same ratio.

## What the paper says

The *standard* network sends gradients back through its own weights. The *decoupled* network sends them back through an
independent copy, which receives the same updates. Theorem 1 says that the standard network, as its width and then its
depth go to infinity, trains like the SDE of Definition 1. Corollary 1 says that the decoupled network has the same
limit. If this is true, the ratio above is 1, and all differences below shrink to zero with depth.

They do not. Definition 1 is the limit of the decoupled network. The standard network has another limit.

## The closed form

Write the network and its backward flow (Eqs. 1 and 3) with $\tau = T/L$:

$$
h_l = h_{{l-1}} + \sqrt{{\frac{{\tau}}{{n}}}} W_l \phi(h_{{l-1}}), \qquad f = \frac{{v \cdot h_L}}{{n}},
$$

$$
g_{{l-1}} = g_l + \sqrt{{\frac{{\tau}}{{n}}}} \phi'(h_{{l-1}}) \odot W_l^\top g_l, \qquad g_L = v .
$$

So $g_l / n$ is the derivative of $f$ in $h_l$: a push of the stream by $\Delta$ after block $l$ changes $f$ by
$g_l \cdot \Delta / n$. Take one step of SGD at rate $\eta_c n$ on an input $x$, with $\ell'$ the derivative of the
loss in $f$. By Eq. 4 the update of block $l$ pushes the stream of an input $\bar x$ by
$-\tau \eta_c \ell' m_{{l-1}} g_l$, where $m = E[\phi(h) \phi(\bar h)]$. Bars mark the quantities of $\bar x$. Add the
updates of the output and input weights. For $\eta_c \to 0$ and infinite width and depth,

$$
\Delta f = -\eta_c \ell' \left[ C_T + \int_0^T m_t P_t dt + \frac{{x \cdot \bar x}}{{d}} P_0 \right]
\quad \text{{(standard)}} .
$$

Here $C_T = E[h_T \bar{{h}}{{}}_T]$ and $P_t = E[g_t \bar{{g}}{{}}_t]$ belong to the network before training. Their
values are those of Props. 2, 3 and 6, and no independence during training is assumed.

In Definition 1 the same push along $g_t$ arrives at $h_T$ unchanged. It counts with $E[g_T g_t] = 1$ in
$f = E[g_T h_T]$, in place of $P_t$:

$$
\Delta f = -\eta_c \ell' \left[ C_T + \int_0^T m_t dt + \frac{{x \cdot \bar x}}{{d}} \right] = -2 \eta_c \ell' C_T
\quad \text{{(Definition 1)}} .
$$

For ReLU, $\bar x = x$ and $\lvert x \rvert^2 = d$: $C_t = e^{{t/2}}$, $m_t = e^{{t/2}} / 2$, $P_t = e^{{(T-t)/2}}$.
The two brackets are $(2 + T/2) e^{{T/2}}$ and $2 e^{{T/2}}$, 4.122 and 3.297 at $T = 1$. At depth $L$ their ratio is

$$
1 + \frac{{T/4}}{{1 + T/(2L)}} ,
$$

which grows with depth, to 1.25 at $T = 1$. ReLU does not meet Assumption 1 of the paper, as its $\phi'$ jumps. The
identity, tanh, erf and gelu do meet this part of it, and have the same gap: for the identity the ratio tends to
$1 + T/2$, the others are in a [table](#measurement-3-other-settings).

## Measurement 1: one small step

{steps}

### Check it yourself

`python examples/first_step_by_hand.py` needs PyTorch alone, not this library. Its 40 lines build the network, send
gradients back through the weights or through copies, and take one step. It takes half a minute on one core and prints

```text
  T   L   standard / decoupled   formula
0.5   4     1.115 +- 0.006          1.118
0.5  16     1.127 +- 0.009          1.123
0.5  64     1.119 +- 0.008          1.125
1.0   4     1.224 +- 0.010          1.222
1.0  16     1.257 +- 0.017          1.242
1.0  64     1.238 +- 0.016          1.248
2.0   4     1.392 +- 0.017          1.400
2.0  16     1.472 +- 0.030          1.471
2.0  64     1.482 +- 0.035          1.492
```

## Measurement 2: training

ReLU networks with $T$ = {horizon:g} and $\eta_c$ = {eta_c:g} learn {samples} digits, one per step. Targets $y$ are +1
for even and -1 for odd digits, inputs are normalised, the loss is $(f - y)^2 / 2$. Outputs have RMS {size:.2f}. The
mean outputs are computed in five ways:

- *standard*: {networks} dense networks of width {dense_width:,};
- *shared*: {networks} networks of width {width:,} with deferred weights, in place of infinite width;
- *independent*: the same, decoupled;
- *Definition 1*: {solutions} solutions with {particles:,} particles;
- *Eq. 5*: Definition 1 with the extra term of Eq. 5 as printed, and the same random numbers.

A cell holds the RMS difference of the outputs over all steps after the noise is subtracted; in brackets the noise;
then the RMS of the differences in standard errors. The last number is about 1 for two things that are the same.

{table}

{verdicts}

## Measurement 3: other settings

<!-- settings -->
<!-- end of settings -->

## Measure the gap on your own task

Predict both limits with the same seed, width and replicates. Replicate i of both predictions starts from the same
weights, so most noise cancels in the difference of `loss_replicates`, `[replicates, steps]`:

```python
import nfd
from nfd.core import margin
from nfd.data import digits

inputs, targets = digits().batches(size=8, steps=4, seed=0)
settings = {{"depth": 4, "eta_c": 0.3, "width": 128, "replicates": 8, "seed": 0, "weights": "dense"}}
standard = nfd.predict(inputs, targets, **settings)
decoupled = nfd.predict(inputs, targets, feedback="independent", **settings)
gap = standard.loss_replicates - decoupled.loss_replicates
for step, (value, error) in enumerate(zip(gap.mean(0), margin(gap), strict=True)):
    print(f"step {{step}}: {{value:+.4f}} [{{value - error:+.4f}}, {{value + error:+.4f}}]")
```
```text
step 0: +0.0000 [+0.0000, +0.0000]
step 1: -0.0001 [-0.0039, +0.0037]
step 2: -0.0036 [-0.0086, +0.0014]
step 3: -0.0194 [-0.0240, -0.0148]
```

The intervals are 95 % ones by Student's t over replicates. At infinite depth they do not include the error of the
extrapolation: see `loss_depth_error`.

## Where the proof loses the term

Appendix F ("Second Forward Pass") follows the second forward pass through block $l$, where the initial $W_l$
multiplies a stream that has been updated along $g_{{l-1}}$. As $g_{{l-1}}$ contains $W_l^\top g_l$, the matrix meets
its own transpose. With $\phi = \mathrm{{id}}$ for intuition, the paper writes the update as
$\bar{{h}}{{}}_{{l-1}} = \bar{{h}}{{}}_{{l-2}} + \tau a_{{l-2}} g_{{l-1}} + \ldots$, with $a = -\eta_c \ell' m$, and
gets a correction of order $\tau^2$.

That counts the last increment alone. $\bar{{h}}{{}}_{{l-2}}$ itself contains $\tau a_{{l-3}} g_{{l-2}}$, and so on
down to the update of the input weights, $(x \cdot \bar x / d) g_0$. And *every* $g_j$ with $j < l$ contains
$\sqrt{{\tau / n}} \phi'(h_{{l-1}}) \odot W_l^\top g_l$, since the skip connection carries it down. So sum the
coefficients of all $g_j$ in $\bar{{h}}{{}}_{{l-1}}$, call the sum $-\eta_c \ell' D_{{l-1}}$, and start with
$D_0 = x \cdot \bar x / d$. Block $l$ multiplies them by $\sqrt{{\tau / n}} W_l \mathrm{{diag}}(\bar\phi')$. There

$$
\frac{{1}}{{n}} W_l \mathrm{{diag}}(\phi' \bar\phi') W_l^\top g_l = s_{{l-1}} g_l + \text{{a fresh Gaussian vector}},
$$

with $s = E[\phi'(h) \phi'(\bar h)]$. Times $\tau$, the Gaussian vectors of the $L$ blocks are independent and add up
to order $\sqrt\tau$. The parts along $g_l$ add up to order one:

$$
D_l = D_{{l-1}} + \tau (m_{{l-1}} + s_{{l-1}} D_{{l-1}}),
$$

which is $D' = m + s D$ as $\tau \to 0$, and $\Delta f = -\eta_c \ell' (C_T + D_T)$.

Definition 1 drops $s D$. Eq. 5 keeps it with $\tau m_{{l-2}}$, the last increment, in place of $D_{{l-1}}$: hence its
$\tau^2$. $C + D$ is the tangent kernel that `nfd.kernel(kind="ntk")` integrates, and the bracket of the closed form
again: since $P_t = \exp \int_t^T s$, the equation of $D$ has this solution. The backward pass has its mirror image.
Physicists call $s D$ the Onsager or response term. [Response](mathematics/response.md) derives it in both passes from
the law of a Gaussian matrix, and [deferred layers](mathematics/deferred-decisions.md) carry it exactly.

## What remains true

- **Definition 1 is a limit**: of the decoupled network, at every depth tried (measurement 2).
- **The standard network has a limit too**, as far as it was measured. Its errors fall with width and depth at the
  rates of the decoupled network, and the orders of the limits agree within noise (below). `nfd.predict` computes it
  by default, and Definition 1 with `feedback="independent"`.
- **Before training the paper is right**: Props. 2, 3 and 6 hold, and so does its assumption of independent backward
  weights, for means over coordinates.
- **The extra term of Eq. 5 vanishes with depth**, as the paper says.

### Convergence before training

The mean squares of four errors are fitted as powers of depth or width. For $h_L$ and $g_0$ the error is the difference
between networks of width {start_width} and those of twice the depth. Both follow one Brownian path of weight matrices
(`nfd.ResNet(coupled=True)`). The paper couples the Gaussian noise of each coordinate instead; then the square falls as
$L^{{-2}}$. The other two errors, at depth {kernel_depth}, are $h_L \cdot h_L / n$ minus the kernel of Prop. 3 and
$g_0 \cdot g_0 / n$ minus $P_0$ of Prop. 6. Prop. 6 assumes a Lipschitz $\phi'$, which relu does not have.

{start}

### Convergence during training

The RMS error of the outputs against the limit of the same feedback is fitted as a power of the width (one network of
depth {depth} against the infinitely wide one) and of the depth. For the depth, infinitely wide networks follow one
Brownian path at all depths. Their limit is extrapolated from $L$ = {last} and {twice}, which are left out of the fit.

{slopes}

Do the limits commute? Mean outputs are extrapolated as $2 f - f'$ from {grid}. A cell holds
the difference after noise is subtracted (noise), and the difference in standard errors:

{orders}
"""
