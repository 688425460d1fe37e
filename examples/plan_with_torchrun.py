"""One plan under DDP and FSDP2: large single models are torchrun's business, and a plan rides
along.

torchrun --nproc-per-node 2 examples/plan_with_torchrun.py --shard fsdp2
torchrun --nproc-per-node 2 examples/plan_with_torchrun.py --shard fsdp2 --defaults

Both end their 40 steps at lr = 0.01: with the plan at a loss of 0.19, with PyTorch's defaults at
1.86 (one run each).
"""

from __future__ import annotations

import argparse
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import nfd
from nfd.data import digits


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(torch.relu(self.up(self.norm(h))))


def make_model(width: int, depth: int) -> nn.Sequential:
    """A residual network for digits."""
    blocks = nn.Sequential(*[Block(width) for _ in range(depth)])
    return nn.Sequential(nn.Linear(64, width), blocks, nn.LayerNorm(width), nn.Linear(width, 10))


def sharded(model: nn.Sequential) -> nn.Module:
    """The model under FSDP2; the plan finds its tensors by name."""
    for block in model.get_submodule("1"):  # type: ignore[attr-defined]
        fully_shard(block)
    return fully_shard(model)


def main(shard: str, width: int, depth: int, steps: int, lr: float, *, defaults: bool) -> float:
    """Train on this process's part of every batch; returns the last loss, averaged over
    processes.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    world = dist.get_world_size()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = digits()
    inputs, targets = data.batches(size=32, steps=steps, seed=0)
    torch.manual_seed(0)
    # of a plan shapes alone: no process holds the whole model
    with torch.device(device if defaults else "meta"):
        model = make_model(width, depth)
    wrapped: nn.Module
    if defaults:
        wrapped = sharded(model) if shard == "fsdp2" else DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(wrapped.parameters(), lr=lr, weight_decay=0.1)
    else:
        plan = nfd.plan(
            model, rule="complete-p", make_model=make_model, base=(32, 2), sample=torch.zeros(2, 64)
        )
        if shard == "fsdp2":
            wrapped = plan.apply_(sharded(model), seed=0)  # every process draws its part
        else:
            wrapped = DistributedDataParallel(plan.apply_(model, seed=0, device=device))
        optimizer = torch.optim.AdamW(plan.param_groups(wrapped, lr=lr, weight_decay=0.1))
    loss = torch.zeros(())
    for x, y in zip(inputs.to(device), targets.to(device), strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(wrapped(x.chunk(world)[rank]), y.chunk(world)[rank])
        loss.backward()
        optimizer.step()
    mean = loss.detach() / world
    dist.all_reduce(mean)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        rates = "PyTorch's defaults" if defaults else "a plan"
        print(f"{shard}, {world} processes, {rates} at lr = {lr:g}: last loss {float(mean):.4f}")
    return float(mean)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shard", choices=("ddp", "fsdp2"), default="fsdp2")
    for option, value in (("width", 256), ("depth", 16), ("steps", 40), ("lr", 0.01)):
        parser.add_argument(f"--{option}", type=type(value), default=value)
    parser.add_argument("--defaults", action="store_true", help="train without the plan")
    main(**vars(parser.parse_args()))
    sys.stdout.flush()
    # PyTorch 2.13 now and then aborts in its own teardown after FSDP2 on gloo, one process in
    # twenty
    os._exit(0)
