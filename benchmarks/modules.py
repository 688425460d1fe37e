"""Users' networks trained together against a loop over them, by the processor's time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice, product

import torch
from torch import Tensor, nn

import nfd
from benchmarks.measure import Round, Row
from benchmarks.ratio import Ratio
from nfd.core.machine import threads
from nfd.families.member import StackedMembers
from nfd.training import driver
from nfd.training.loop import Step
from nfd.training.together import work

COUNTS, USUAL = (4, 8, 16, 32), (16,)
DEPTH, HEAD, STEPS, RATE = 4, 16, 4, 1e-4


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        """The stream with the branch added."""
        out: Tensor = h + self.down(torch.relu(self.up(self.norm(h))))
        return out


def mlp(width: int, depth: int) -> nn.Module:
    """Residual blocks of two layers on vectors."""
    blocks = nn.Sequential(*[_Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(16, width), blocks, nn.Linear(width, 10))


class _Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        """The stream with the branch added."""
        x = self.norm(h)
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = h + self.out(attended.transpose(1, 2).flatten(2))
        return out


def transformer(width: int, depth: int) -> nn.Module:
    """Attention with heads of one size, and the blocks of the MLP."""
    blocks = [nn.Sequential(_Attention(width), _Block(width)) for _ in range(depth)]
    return nn.Sequential(nn.Linear(16, width), nn.Sequential(*blocks), nn.Linear(width, 10))


NETWORKS = {"MLP, 32 inputs": (mlp, (32,)), "Transformer, 32 tokens": (transformer, (1, 32))}


def together(turn: Round) -> list[Row]:
    """One step of several networks as a sweep takes it, the optimizer's part included."""
    cases = product(NETWORKS, ("adamw", "sgd", "muon"), (32, 64) if turn.quick else (32, 64, 128))
    with threads(1):  # as the workers of a sweep compute
        rows = [_compared(*case, COUNTS if case[1] == "adamw" and not turn.quick else USUAL) for case in cases]
        return rows if turn.quick else [*rows, *(_compared(network, "adamw", 256, COUNTS[:2]) for network in NETWORKS)]


def _compared(network: str, optimizer: str, width: int, counts: tuple[int, ...]) -> Row:
    make_model, shape = NETWORKS[network]
    x, y = torch.randn(*shape, 16), torch.randint(0, 10, shape)
    family = nfd.Family(make_model, (16, 2), "complete-p", optimizer, sample=x)
    task = nfd.Task([(x, y)] * (2 * STEPS + 2))
    row: Row = {"network": network, "optimizer": optimizer, "width": width}
    row["operations of a product"] = work(family.member(width, DEPTH), task)
    for count in counts:
        alone, stacked = _alone(family, task, width), _stacked(family, task, width, count)
        row[f"loop over {count} / ours"] = Ratio.of(count * alone / stacked)
    return row


def _alone(family: nfd.Family, task: nfd.Task, width: int) -> float:
    return _time(driver.rows(family.member(width, DEPTH), task, RATE))


def _stacked(family: nfd.Family, task: nfd.Task, width: int, count: int) -> float:
    members = [family.member(width, DEPTH, seed) for seed in range(count)]
    stack = StackedMembers(members)
    return _time(driver.rows_together(stack, family.optimizer, task, [member.groups(RATE) for member in members], None))


def _time(steps: Iterator[Step]) -> float:
    """Seconds of the processor that some steps take, the least of two timings after the first steps."""
    list(islice(steps, 2))
    return min(_seconds(steps), _seconds(steps))


def _seconds(steps: Iterator[Step]) -> float:
    start = time.process_time()
    list(islice(steps, STEPS))
    return time.process_time() - start
