# %% [markdown]
# # A plan in Lightning
#
# The optimizer of `configure_optimizers` is made from the plan. What the plan gains is measured: a
# large network trains twice at the rate of a small one, with the plan and with PyTorch's defaults.
# Needs `pip install lightning`.

# %% tags=["parameters"]
BASE = (32, 2)
WIDTH = 256
DEPTH = 16
LR = 1e-2
STEPS = 40

# %%
import altair as alt
import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import nfd
from nfd.data import digits

alt.renderers.enable("png")


class Block(nn.Module):
    """``h + W_2 gelu(W_1 norm(h))``."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h):
        return h + self.down(nn.functional.gelu(self.up(self.norm(h))))


def make_model(width, depth):
    """Digits to logits through residual blocks."""
    blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(64, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


# %%
nfd.plan(make_model(WIDTH, DEPTH), BASE, make_model=make_model, sample=torch.zeros(2, 64))

# %% [markdown]
# The plan touches two places: the initial weights, and the optimizer. A schedule scales every group
# alike.


# %%
class Planned(lightning.LightningModule):
    """A network with the rates of its plan, or with one rate for all."""

    def __init__(self, width, depth, planned):
        super().__init__()
        self.net = make_model(width, depth)
        self.losses = []
        self.plan = None
        if planned:
            self.plan = nfd.plan(self.net, BASE, make_model=make_model, sample=torch.zeros(2, 64))
            self.plan.apply_(self.net, seed=0)

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=LR, weight_decay=0.01)
        if self.plan is not None:
            optimizer = self.plan.make_optimizer(self.net, lr=LR, weight_decay=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def trained(width, depth, planned):
    """Test loss, training losses; the callback refuses an optimizer without the plan's groups."""
    data = digits()
    lightning.seed_everything(0, verbose=False)
    model = Planned(width, depth, planned)
    callbacks = [nfd.integrations.LightningCallback(model.plan)] if planned else []
    switches = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet = dict.fromkeys(switches, False)
    trainer = lightning.Trainer(max_steps=STEPS, accelerator="cpu", callbacks=callbacks, **quiet)
    samples = TensorDataset(data.inputs, data.labels)
    trainer.fit(model, DataLoader(samples, batch_size=64, shuffle=True))
    with torch.no_grad():
        test = nn.functional.cross_entropy(model.net(data.test_inputs), data.test_labels)
    return float(test), model.losses


# %%
curves = {}
test, curves["small"] = trained(*BASE, planned=False)
print(f"small, lr {LR}: {test:.3f}")
for planned in (False, True):
    name = "the plan" if planned else "defaults"
    test, curves[f"large, {name}"] = trained(WIDTH, DEPTH, planned)
    print(f"large, lr {LR}, {name}: loss: {test:.3f}")

# %% [markdown]
# With the defaults, the large network does not learn at the small one's rate; by its plan it does.

# %%
rows = []
for name, losses in curves.items():
    rows += [{"network": name, "step": k, "loss": loss} for k, loss in enumerate(losses)]
colours = alt.Scale(domain=[*curves], range=["#5c6570", "#c4500c", "#0067a5"])
alt.Chart(alt.InlineData(rows)).mark_line(clip=True).encode(
    x="step:Q",
    y=alt.Y("loss:Q", scale=alt.Scale(domain=[0, 6]), title="training loss (nats)"),
    color=alt.Color("network:N", sort=None, title=None, scale=colours),
).properties(width=480, height=260, title="One rate, found at the small size")
