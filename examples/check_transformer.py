# %% [markdown]
# # Check a Transformer
#
# Does a pre-norm Transformer keep learning, and stay stable, as it gets wider and deeper?
# `nfd.check` trains small copies for a few steps under two scalings and answers with exponents;
# `nfd.plan` gives the large one its initialisation and rates. The Transformer reads scikit-learn's
# digits row by row.

# %% tags=["parameters"]
WIDTHS = [32, 64, 128]
DEPTHS = [2, 4, 8]
STEPS = 5
SEEDS = 3
LARGE = (256, 12)
LARGE_STEPS = 20

# %%
import torch
from torch import Tensor, nn

import nfd
from nfd.data import digits


class RowTransformer(nn.Module):
    """Eight rows of eight pixels as tokens; heads of 16 at every width."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width,
            width // 16,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.embed = nn.Linear(8, width)
        self.encoder = nn.TransformerEncoder(
            layer, depth, norm=nn.LayerNorm(width), enable_nested_tensor=False
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, 8, 8]`` pixels to ``[batch, 10]`` logits."""
        return self.head(self.encoder(self.embed(x)).mean(1))


# %% [markdown]
# A check needs a constructor of width and depth, and one batch per step. Under `standard`, every
# matrix keeps PyTorch's initialisation and one rate; `complete-p` scales initialisation, rates and
# residual branches with width and depth.

# %%
x, y = digits().batches(32, STEPS, seed=0)
batches = list(zip(x.unflatten(2, (8, 8)), y, strict=True))

found = {
    rule: nfd.check(
        RowTransformer, batches, WIDTHS, DEPTHS, lr=3e-3, rule=rule, optimizer="adamw", seeds=SEEDS
    )
    for rule in ("standard", "complete-p")
}
found["standard"]

# %% [markdown]
# By its plan the same network keeps learning, and stays stable.

# %%
found["complete-p"]

# %% [markdown]
# A plan for the large model: tuned at the smallest size, trained at `LARGE`, with the same `lr`.

# %%
torch.manual_seed(0)
model = RowTransformer(*LARGE)
sample = batches[0][0]
plan = nfd.plan(
    model, (WIDTHS[0], DEPTHS[0]), rule="complete-p", make_model=RowTransformer, sample=sample
)
plan.apply_(model, seed=0)
optimizer = plan.make_optimizer(model, lr=3e-3, weight_decay=0.1)
plan

# %%
x, y = digits().batches(64, LARGE_STEPS, seed=1)
for step, (inputs, targets) in enumerate(zip(x.unflatten(2, (8, 8)), y, strict=True)):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == LARGE_STEPS - 1:
        print(f"step {step}: loss {float(loss.detach()):.3f}")
