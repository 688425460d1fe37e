"""Plans of models on the meta device and in parts: the numbers of the model that is made whole, bit for bit.

The process group is PyTorch's fake one, which sends nothing; tests/sharded.py trains on a real one.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.models import Residual
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import nfd
from nfd.core.errors import InputError
from nfd.scaling.plan import fill_


class Tied(nn.Module):
    """An embedding with a row of padding that is the head as well; no norm stands before the head."""

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
RANK = 1  # one alone: PyTorch keeps meshes that are equal, with their place, while a Python process lives
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
def test_a_model_of_the_meta_device_begins_as_one_that_is_made_with_numbers(make: type[nn.Module]) -> None:
    whole, plan = begun(make)
    model = plan.apply_(on_meta(make), seed=3)
    own, expected = model.state_dict(), whole.state_dict()
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
        own, expected = dict(model.named_parameters()), dict(whole.named_parameters())
        assert own.keys() == expected.keys()
        for name, p in own.items():
            assert isinstance(p, DTensor)
            part = expected[name].chunk(2)[RANK]
            assert torch.equal(p.to_local(), part)
            assert p.to_local().untyped_storage().nbytes() <= -(-p.shape[0] // 2) * part[:1].nbytes  # and no more
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
    with pytest.raises(InputError, match="'table' are on the meta device, and the plan does not know their numbers"):
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


@pytest.mark.slow
def test_two_processes_train_what_one_trains() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.sharded", str(port)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert "agree" in done.stdout, done.stderr[-2000:]
