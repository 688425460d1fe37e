# %% [markdown]
# # Which learning rate does the large model need?
#
# A GPT that reads bytes is tuned at width 64. Does its best rate fit width 256, with PyTorch's
# defaults and with the rule `complete-p`? `nfd.transfer` trains both sizes at several rates and
# measures, on new seeds, what the small one's best rate costs the large one. This takes some
# minutes; every network is kept in `OUT`, so that the same cell continues after a stop.

# %% tags=["parameters"]
WIDTHS = [64, 256]
DEPTH = 2
RATES = [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]
STEPS = 60
SEEDS = 3
OUT = "out/transfer-gpt"

# %%
import sysconfig
from pathlib import Path

import altair as alt
import torch
from torch import nn

import nfd

alt.renderers.enable("png")


class Block(nn.Module):
    """Pre-norm attention, with heads of 64, and an MLP."""

    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, h):
        x = self.norm1(h)
        maps = self.query, self.key, self.value
        q, k, v = (m(x).unflatten(-1, (-1, 64)).transpose(1, 2) for m in maps)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(attended.transpose(1, 2).flatten(2))
        return h + self.down(nn.functional.gelu(self.up(self.norm2(h))))


class GPT(nn.Module):
    """Bytes to the logits of the next byte."""

    def __init__(self, width, depth):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(32, width)
        self.blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, ids):
        return self.head(self.norm(self.blocks(self.tokens(ids) + self.positions.weight)))


def text(steps, *names, seed):
    """Batches of 8 windows of 32 bytes of Python's own library, and the bytes that follow."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    data = torch.tensor(list(b"".join((folder / name).read_bytes() for name in names)))
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = data[torch.randint(len(data) - 32, (8, 1), generator=draw) + torch.arange(33)]
        yield rows[:, :-1], rows[:, 1:]


# %%
train = list(text(STEPS, "typing.py", "inspect.py", seed=0))
task = nfd.Task(train, eval_batches=list(text(8, "argparse.py", seed=1)))
with nfd.Sweep(OUT) as sweep:
    rules = ("standard", "complete-p")
    answer = nfd.transfer(GPT, task, WIDTHS, [DEPTH], RATES, rules=rules, seeds=SEEDS, sweep=sweep)
print(answer)

# %% [markdown]
# Losses against the rate: a dot is a seed, a line the mean. The arrow is what the large network
# loses at the small one's best rate.


# %%
def panel(rule):
    """Both sizes under one rule."""
    of_rule = answer.of(rule)
    dots = []
    for (width, _), cell in of_rule.cells.items():
        for log2_rate, losses in zip(cell.log2_eta.tolist(), cell.scores.T):
            point = {"width": f"width {width}", "learning rate": 2.0**log2_rate}
            dots += [point | {"loss": float(loss)} for loss in losses]
    log = alt.Scale(type="log", nice=False)
    x = alt.X("learning rate:Q", scale=log, title="learning rate of the small network")
    y = alt.Y("loss:Q", scale=alt.Scale(zero=False), title="loss on unseen text (nats per byte)")
    color = alt.Color("width:N", title=None)
    base = alt.Chart(alt.InlineData(dots)).encode(x=x, color=color, strokeDash="width:N")
    rate, best = answer.best(rule, WIDTHS[0], DEPTH).value, float(of_rule.regret.own.mean())
    lost = {"learning rate": rate, "loss": best, "at": best + of_rule.regret.loss.value}
    mark = alt.Chart(alt.InlineData([lost])).mark_rule(strokeWidth=6, opacity=0.5, color="#D55E00")
    lines = base.mark_line().encode(y=alt.Y("mean(loss):Q"))
    layers = mark.encode(x=x, y=y, y2="at:Q") + base.mark_point(size=18).encode(y=y) + lines
    title = f"{rule}: the small network's rate costs {of_rule.regret.loss.value:+.2f} nats"
    return layers.properties(width=300, height=260, title=title)


chart = (panel("standard") | panel("complete-p")).resolve_scale(x="shared", y="shared")
Path(OUT).mkdir(parents=True, exist_ok=True)
chart.save(f"{OUT}/transfer.svg")
chart

# %% [markdown]
# Under the defaults the best rate falls as the network grows, so the small network's rate costs the
# large one much. Under the rule both sizes have the same best rate. At its *own* best rate the
# default network can be as good: what a rule saves is the search for that rate at full size.
