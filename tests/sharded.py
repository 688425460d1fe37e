"""Two processes train one plan under DDP and FSDP2, watched; run by tests/test_shards.py."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.models import Residual
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import nfd

STEPS, SIZE = 3, 8


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(SIZE, 5, generator=g, dtype=torch.float64), torch.randint(0, 3, (SIZE,), generator=g)


def trained(kind: str, rank: int, world: int) -> tuple[list[float], dict[str, float]]:
    """The losses, and the rows of a watch."""
    torch.manual_seed(0)
    model = Residual(16, 4).double()
    plan = nfd.plan(model, base=Residual(8, 2).double(), sample=batch(0)[0])
    if kind == "meta, fsdp2":
        with torch.device("meta"):
            model = Residual(16, 4).double()
    else:
        plan.apply_(model, seed=1)
    wrapped: nn.Module = model
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
    if "fsdp2" in kind:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    if kind == "meta, fsdp2":
        plan.apply_(model, seed=1)
        whole = Residual(16, 4).double()
        plan.apply_(whole, seed=1)
        for p, expected in zip(model.parameters(), whole.parameters(), strict=True):
            assert torch.equal(p.full_tensor(), expected)
    optimizer = torch.optim.AdamW(plan.param_groups(wrapped, lr=0.01, weight_decay=0.1))
    watch = nfd.Watch(wrapped, plan, batch(0)[0], every=STEPS, seed=1)
    assert not watch.state_dict()["start"]["kept"]
    losses = []
    for step in range(STEPS):
        x, y = batch(step)
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(wrapped(x), y)
        loss.backward()
        optimizer.step()
        watch.step()
        mean = loss.detach() / world
        if world > 1:
            dist.all_reduce(mean)
        losses.append(float(mean))
    return losses, {f"{row.meter} {row.layer}": row.value for row in watch.rows}


def worker(rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    alone = trained("alone", 0, 1)
    for kind in ("ddp", "fsdp2", "meta, fsdp2"):
        together = trained(kind, rank, world)
        for part, expected in zip(together, alone, strict=True):
            assert part == pytest.approx(expected, rel=1e-6)
    if rank == 0:
        print("agree")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(2, int(sys.argv[1])), nprocs=2)
