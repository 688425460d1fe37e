# %% [markdown]
# # The paper's theorem, by hand
#
# Theorem 1 and Corollary 1 against the standard network, in PyTorch only: what one small step
# changes in the output.
#
# `h_0 = U x / sqrt(d), h_l = h_(l-1) + sqrt(T / (L n)) W_l relu(h_(l-1)), f = v.h_L / n`, all
# weights N(0, 1), |x|^2 = d. The standard network sends gradients back through its own `W_l`, the
# decoupled one through independent copies of them. By Theorem 1 both change f alike in the limit.
# Measured and derived, the standard one moves `1 + (T/4) / (1 + T/(2L))` times as far
# (docs/two-limits.md). This takes a minute.

# %% tags=["parameters"]
WIDTH = 256
SEEDS = 16
HORIZONS = (0.5, 1.0, 2.0)
DEPTHS = (4, 16, 64)

# %%
import altair as alt
import torch

alt.renderers.enable("png")


def change(n, L, T, own_weights, seed, step=1e-3):
    """What a step changes in the output of one network."""
    draw = {"generator": torch.Generator().manual_seed(seed), "dtype": torch.float64}
    # U x / sqrt(d) is N(0, 1) a coordinate
    U = torch.randn(n, **draw)
    v = torch.randn(n, **draw)
    W, copies = (torch.randn(L, n, n, **draw) for _ in range(2))
    scale = (T / (L * n)) ** 0.5

    def forward():
        h = [U]
        for matrix in W:
            h.append(h[-1] + scale * matrix @ h[-1].relu())
        return h

    h = forward()
    # g_l is n times the derivative of f in h_l
    before = v @ h[-1] / n
    g = [v]
    for matrix, stream in zip((W if own_weights else copies).flip(0), h[-2::-1], strict=True):
        g.append(g[-1] + scale * (stream > 0) * (matrix.T @ g[-1]))
    g.reverse()
    for k in range(L):
        W[k] -= step * scale * torch.outer(g[k + 1], h[k].relu())
    U = U - step * g[0]
    v = v - step * h[-1]
    return float(v @ forward()[-1] / n - before)


# %%
rows = []
print("  T   L   standard / decoupled   formula")
for T in HORIZONS:
    for L in DEPTHS:
        own, other = (
            torch.tensor([change(WIDTH, L, T, is_own, s) for s in range(SEEDS)])
            for is_own in (True, False)
        )
        ratio = own.mean() / other.mean()
        error = (own - ratio * other).std() / SEEDS**0.5 / other.mean().abs()
        formula = 1 + (T / 4) / (1 + T / (2 * L))
        print(f"{T:3} {L:3}     {ratio:.3f} +- {error:.3f}          {formula:.3f}")
        low, high = float(ratio - 2 * error), float(ratio + 2 * error)
        row = {"L": L, "T": f"T = {T}", "ratio": float(ratio), "low": low, "high": high}
        rows.append(row | {"formula": formula})

# %% [markdown]
# The measured ratios (dots, with two standard errors) lie on the formula (lines), and not at the 1
# of Theorem 1 (dashed).

# %%
x = alt.X("L:Q", scale=alt.Scale(type="log", base=2, padding=20), title="depth L")
blues = alt.Scale(scheme=alt.SchemeParams("blues", extent=[0.4, 1]))
colour = alt.Color("T:N", sort=None, title=None, scale=blues)
ratios = alt.Chart(alt.InlineData(rows)).encode(x=x, color=colour)
y = alt.Y("ratio:Q", scale=alt.Scale(zero=False), title="change of the standard / of the decoupled")
theorem = alt.Chart(alt.InlineData([{"ratio": 1}])).mark_rule(strokeDash=[6, 4])
chart = (
    theorem.encode(y=y)
    + ratios.mark_line().encode(y="formula:Q")
    + ratios.mark_rule(strokeWidth=2).encode(y="low:Q", y2="high:Q")
    + ratios.mark_point(filled=True, opacity=1, size=60).encode(y=y)
)
title = "The standard network moves further than the theorem says"
chart.properties(width=480, height=260, title=title)
