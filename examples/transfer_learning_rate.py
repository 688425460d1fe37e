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
answer

# %% [markdown]
# The chart is an object of Altair's, to change or to save.

# %%
chart = answer.plot()
Path(OUT).mkdir(parents=True, exist_ok=True)
chart.save(f"{OUT}/transfer.svg")
chart

# %% [markdown]
# Under the defaults the best rate falls as the network grows, so the small network's rate costs the
# large one much. Under the rule both sizes have the same best rate. At its *own* best rate the
# default network can be as good: what a rule saves is the search for that rate at full size.
