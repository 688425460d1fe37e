# %% [markdown]
# # Transfer a learning rate
#
# Tune the rate of a small network, train a large one at it: is anything lost? The same residual network is tuned at
# two sizes twice, with PyTorch's own initialisation and one rate for all, and with a plan of `nfd.plan`.

# %% tags=["parameters"]
SMALL = (32, 4)
LARGE = (128, 16)
RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
STEPS = 40
SEEDS = 3
OUT = "out/transfer-own"

# %%
import math

import torch
from torch import Tensor, nn

import nfd
from nfd.core.estimates import interval, mean
from nfd.core.files import Axes, prepare_directory, write_csv
from nfd.data import digits
from nfd.report.charts import beside, drawn


class Block(nn.Module):
    """``h + W_2 gelu(W_1 norm(h))``."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The stream with this block's branch added."""
        return h + self.down(nn.functional.gelu(self.up(self.norm(h))))


def make_model(width: int, depth: int) -> nn.Sequential:
    """Digits to logits through ``depth`` residual blocks."""
    blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(64, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


# %% [markdown]
# Training is an ordinary loop. The plan touches two lines of it: the initialisation and the parameter groups.

# %%
data = digits()


def final_loss(size: tuple[int, int], rate: float, rule: str | None, seed: int) -> float:
    """Training loss over the last ten steps of one network; ``rule`` None for PyTorch's own ways."""
    torch.manual_seed(seed)
    model, groups = make_model(*size), None
    if rule is not None:
        plan = nfd.plan(model, rule=rule, make_model=make_model, base=(SMALL[0], SMALL[1]), sample=torch.zeros(2, 64))
        plan.apply_(model, seed=seed)
        groups = plan.param_groups(model, lr=rate)
    optimizer = torch.optim.AdamW(groups or model.parameters(), lr=rate, weight_decay=0.0)
    losses = []
    for x, y in zip(*data.batches(32, STEPS, seed), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return sum(losses[-10:]) / len(losses[-10:])


# %% [markdown]
# Every rate at both sizes. The *regret* is what the large network loses at the small one's best rate against its own
# best rate, seed by seed, with a 95 % interval over seeds; exactly 0 where both prefer the same rate of the grid.


# %%
def best_rate(losses: dict[float, Tensor]) -> float:
    """The rate of the least mean loss; a run that diverged counts as the worst."""
    return min(losses, key=lambda rate: float(losses[rate].nan_to_num(math.inf).mean()))


NAMES = {None: "PyTorch's own scaling", "complete-p": "A plan, rule complete-p"}
rows = []
for rule, name in NAMES.items():
    losses = {
        (size, rate): torch.tensor([final_loss(size, rate, rule, seed) for seed in range(SEEDS)])
        for size in (SMALL, LARGE)
        for rate in RATES
    }
    for (size, rate), sample in losses.items():
        label = f"width {size[0]}, depth {size[1]}"
        rows.append({"scaling": name, "series": label, "rate": rate, **mean(sample.double()).limits})
    small, large = (best_rate({r: losses[size, r] for r in RATES}) for size in (SMALL, LARGE))
    regret = interval(lambda lost: lost.mean(0), losses[LARGE, small] - losses[LARGE, large])
    print(f"{name}: best rate {small:g} small, {large:g} large; regret {regret} nats")

# %%
axes = Axes("rate", "value", "learning rate", "training loss, last 10 steps (nats)", "semilogarithmic", top=2.5)
panels = {name: [row for row in rows if row["scaling"] == name] for name in NAMES.values()}
charts = {name: drawn(own, axes) for name, own in panels.items()}
out = prepare_directory(OUT)
write_csv(out / "transfer.csv", rows)
(out / "transfer.png").write_bytes(beside(charts)[1])
charts[NAMES["complete-p"]]
