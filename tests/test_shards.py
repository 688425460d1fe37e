"""Plans of models on the meta device and in parts: the numbers of the model that is made whole, bit
for bit.

The process group is PyTorch's fake one, which sends nothing; two processes at the end train on a
real one.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tests.models import Residual
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import nfd
from nfd.core.errors import InputError
from nfd.scaling.initialise import fill_


class Tied(nn.Module):
    """An embedding with a row of padding that is the head as well; no norm stands before the
    head.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, width, padding_idx=0)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(torch.tanh(h))
        return self.head(h)


ROOT = Path(__file__).parents[1]
# one alone: PyTorch keeps meshes that are equal, with their place, while a Python process lives
RANK = 1
SAMPLES = {Residual: torch.zeros(2, 5), Tied: torch.zeros(2, 3, dtype=torch.long)}
MODELS = pytest.mark.parametrize("make", list(SAMPLES))


def begun(make: type[nn.Module]) -> tuple[nn.Module, nfd.Plan]:
    """A model that is made whole, and its plan."""
    torch.manual_seed(0)
    model = make(10, 2)
    plan = nfd.plan(model, make_model=make, base=(5, 1), rule="complete-p", sample=SAMPLES[make])
    return plan.apply_(model, seed=3), plan


def on_meta(make: Callable[[int, int], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make(10, 2)


@contextmanager
def process(rank: int, of: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=of)
    try:
        yield
    finally:
        dist.destroy_process_group()


@MODELS
def test_a_model_of_the_meta_device_begins_as_one_that_is_made_with_numbers(
    make: type[nn.Module],
) -> None:
    whole, plan = begun(make)
    model = plan.apply_(on_meta(make), seed=3)
    own = model.state_dict()
    expected = whole.state_dict()
    assert own.keys() == expected.keys()
    assert all(torch.equal(own[name], expected[name]) for name in expected)
    assert len(list(model.parameters())) == len(list(whole.parameters()))  # what was tied is tied
    torch.testing.assert_close(model(SAMPLES[make]), whole(SAMPLES[make]), rtol=0, atol=0)


@MODELS
@pytest.mark.parametrize("meta", [True, False])
def test_a_process_draws_its_part_of_a_sharded_model(make: type[nn.Module], meta: bool) -> None:
    whole, plan = begun(make)
    model = on_meta(make) if meta else make(10, 2)
    with process(RANK, of=2):
        for block in model.get_submodule("blocks").children():
            fully_shard(block)
        fully_shard(model)
        plan.apply_(model, seed=3)
        own = dict(model.named_parameters())
        expected = dict(whole.named_parameters())
        assert own.keys() == expected.keys()
        for name, p in own.items():
            assert isinstance(p, DTensor)
            part = expected[name].chunk(2)[RANK]
            assert torch.equal(p.to_local(), part)
            # and no more
            assert p.to_local().untyped_storage().nbytes() <= -(-p.shape[0] // 2) * part[:1].nbytes
        stepped = {id(p) for group in plan.param_groups(model, lr=0.1) for p in group["params"]}
        assert stepped == {id(p) for p in own.values()}


def test_a_process_of_a_mesh_of_two_dimensions_takes_its_rows_and_columns() -> None:
    whole = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with process(2 * RANK, of=4):
        mesh = init_device_mesh("cpu", (2, 2))
        p = distribute_tensor(torch.zeros(6, 4), mesh, [Shard(0), Shard(1)], src_data_rank=None)
        fill_(p, whole)
        assert torch.equal(p.to_local(), whole.chunk(2)[RANK].chunk(2, dim=1)[0])


class Buffered(Residual):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.register_buffer("table", torch.arange(5.0))


def test_numbers_of_the_meta_device_that_no_plan_knows_are_named() -> None:
    _, plan = begun(Residual)
    with pytest.raises(
        InputError, match="'table' are on the meta device, and the plan does not know their numbers"
    ):
        plan.apply_(on_meta(Buffered))
    frozen = on_meta(Residual)
    frozen.get_parameter("embed.weight").requires_grad_(False)
    with pytest.raises(InputError, match=r"'embed\.weight' are on the meta device"):
        plan.apply_(frozen)
    assert all(p.is_meta for p in frozen.parameters())  # nothing was begun
    with nfd.meta_matrices():
        model = Buffered(10, 2)
    plan.apply_(model)
    assert torch.equal(model.get_buffer("table"), torch.arange(5.0))


# ---- two real processes: DDP and FSDP2, watched

STEPS = 3
SIZE = 8


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(step)
    return torch.randn(SIZE, 5, generator=g, dtype=torch.float64), torch.randint(
        0, 3, (SIZE,), generator=g
    )


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
        x = x.chunk(world)[rank]
        y = y.chunk(world)[rank]
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


def check_exported_start() -> None:
    """The file for a framework brings shards to the size of the whole tensor in the plan."""
    model = Residual(16, 4)
    plan = nfd.plan(model, base=Residual(8, 2), sample=torch.zeros(SIZE, 5))
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    names: dict[str, Any] = {"__name__": "exported"}
    exec(plan.to("transformers"), names)
    names["initialise_"](model)
    for name, parameter in model.named_parameters():
        whole = parameter.full_tensor().detach()
        if plan.constant(name) is None:
            assert whole.square().mean().sqrt().item() == pytest.approx(plan.std(name), rel=1e-5)
        else:
            assert bool((whole == plan.constant(name)).all())


def worker(rank: int, world: int, port: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world
    )
    alone = trained("alone", 0, 1)
    for kind in ("ddp", "fsdp2", "meta, fsdp2"):
        together = trained(kind, rank, world)
        for part, expected in zip(together, alone, strict=True):
            assert part == pytest.approx(expected, rel=1e-6)
    check_exported_start()
    if rank == 0:
        print("agree")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_train_what_one_trains() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.test_shards", str(port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert "agree" in done.stdout, done.stderr[-2000:]


if __name__ == "__main__":
    mp.spawn(worker, args=(2, int(sys.argv[1])), nprocs=2)
