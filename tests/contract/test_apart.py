"""What networks share with the user's code and with each other: nothing that one changes."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract.common import ResidualMLP, batches
from torch import Tensor, nn

import nfd

BATCHES = batches(3, 8)
SETTINGS: dict[str, Any] = {"lr": 0.3, "depth": 1, "width": 32, "replicates": 2}


def predicted(task: Any) -> Tensor:
    """The losses of an infinitely wide network."""
    return nfd.predict(nfd.resnets(64, 10), task, **SETTINGS).loss


# ---- batches


def refilled() -> Iterator[tuple[Tensor, Tensor]]:
    """Batches in one pair of tensors, as loaders hand them out that save memory."""
    x, y = (part.clone() for part in BATCHES[0])
    for inputs, targets in BATCHES:
        x.copy_(inputs)
        y.copy_(targets)
        yield x, y


def refilled_arrays() -> Iterator[tuple[Any, Any]]:
    """The same in arrays."""
    x, y = (part.numpy().copy() for part in BATCHES[0])
    for inputs, targets in BATCHES:
        x[:] = inputs.numpy()
        y[:] = targets.numpy()
        yield x, y


@pytest.mark.parametrize("loader", [refilled, refilled_arrays])
def test_a_loader_may_refill_its_tensors(loader: Any) -> None:
    assert torch.equal(predicted(loader()), predicted(BATCHES))


def test_batches_in_a_list_are_not_copied() -> None:
    assert nfd.Task(BATCHES).batches[0][0].data_ptr() == BATCHES[0][0].data_ptr()


class InPlace(ResidualMLP):
    """Scales its inputs where they lie."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2.0))


class Pure(ResidualMLP):
    """Does the same with a copy."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 2.0)


def test_a_model_may_change_its_inputs_in_place() -> None:
    given = [(x.clone(), y) for x, y in BATCHES]
    checks = []
    for model, task in ((InPlace, given), (Pure, BATCHES)):
        checks.append(nfd.check(model, task, [8, 16], [1, 2], lr=3e-3, seeds=2, remedy=False))
    assert str(checks[0].rows) == str(checks[1].rows)
    assert all(torch.equal(x, y) for (x, _), (y, _) in zip(given, BATCHES, strict=True))


def test_batches_that_were_computed_are_trained_on_as_numbers() -> None:
    factor = torch.ones(64, requires_grad=True)
    assert torch.equal(predicted([(x * factor, y) for x, y in BATCHES]), predicted(BATCHES))
    assert factor.grad is None


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_class_ids_may_have_any_whole_type(kind: torch.dtype) -> None:
    assert torch.equal(predicted([(x, y.to(kind)) for x, y in BATCHES]), predicted(BATCHES))


def test_targets_in_a_list_are_named() -> None:
    with pytest.raises(TypeError, match=r"targets that are a tensor; got list"):
        predicted([(x, y.tolist()) for x, y in BATCHES])


class Square(nn.Module):
    """Three logits at three places, so that both axes could be the classes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = ResidualMLP(width, depth)
        self.net.head = nn.Linear(width, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).unflatten(-1, (3, 3))


def test_logits_that_can_be_read_in_two_ways_are_refused() -> None:
    places = [(x, torch.stack([y % 3] * 3, 1)) for x, y in BATCHES]
    family = nfd.Family(Square, base=(8, 1), rule="mup", optimizer="sgd")
    with pytest.raises(ValueError, match=r"cannot tell which axis.*loss=torch"):
        nfd.predict(family, places, **SETTINGS)
    said = nfd.Task(places, loss=nn.functional.cross_entropy)
    assert nfd.predict(family, said, **SETTINGS).loss.isfinite().all()


@pytest.mark.parametrize("number", [np.float32(0.5), torch.tensor(0.5)])
def test_a_schedule_may_return_any_one_number(number: Any) -> None:
    half = predicted(nfd.Task(BATCHES, schedule=lambda step: 0.5))
    assert torch.equal(predicted(nfd.Task(BATCHES, schedule=lambda step: number)), half)


# ---- modules


class WithEncoder(ResidualMLP):
    """Reads what an encoder makes that all models share."""

    encoder: nn.Linear

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.shared = self.encoder

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.shared(x))


def test_a_frozen_module_of_the_user_stays_as_it_is() -> None:
    WithEncoder.encoder = nn.Linear(64, 64).requires_grad_(False)
    before = WithEncoder.encoder.weight.clone()
    nfd.check(WithEncoder, BATCHES, [8, 16], [1, 2], lr=3e-3, seeds=2)
    after = WithEncoder.encoder.weight
    assert after.dtype == torch.float32
    assert torch.equal(after, before)


def test_a_module_that_several_models_train_is_refused() -> None:
    WithEncoder.encoder = nn.Linear(64, 64)
    before = WithEncoder.encoder.weight.clone()
    with pytest.raises(ValueError, match=r"share 'shared\.weight'.*deepcopy"):
        nfd.check(WithEncoder, BATCHES, [8, 16], [1, 2], lr=3e-3, seeds=2)
    assert torch.equal(WithEncoder.encoder.weight, before)


# ---- random streams


def test_the_package_draws_nothing_from_pythons_stream_where_it_is_imported() -> None:
    code = "import random; random.seed(0); import nfd; nfd.check, nfd.Watch; print(random.random())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    random.seed(0)
    assert float(done.stdout) == random.random()
