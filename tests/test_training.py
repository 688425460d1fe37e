"""The loop: rows before updates, rates, divergence; the losses and their targets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import nfd
from nfd.data.digits import digits
from nfd.training.loop import train
from nfd.training.losses import cross_entropy, loss_of, mse, outputs_needed


def test_rows_hold_the_loss_before_the_update() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    batch = (torch.ones(1, 1), torch.zeros(1))
    rows = list(train(net, torch.optim.SGD(net.parameters(), lr=0.5), [batch] * 3, mse))
    assert [row.loss for row in rows] == [2.0, 0.5, 0.125]
    assert [row.step for row in rows] == [0, 1, 2]
    assert float(rows[1].outputs) == 1.0


def test_rates_multiply_every_group_step_by_step() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    batch = (torch.ones(1, 1), torch.zeros(1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    rows = list(train(net, optimizer, [batch] * 3, mse, rates=[0.0, 2.0, 1.0]))
    assert [row.loss for row in rows] == [2.0, 2.0, 0.0]


def test_a_function_of_the_step_is_a_schedule_and_rates_are_back_at_the_end() -> None:
    batch = (torch.ones(1, 1), torch.zeros(1))
    losses = []
    for rates in ([1.0, 0.5, 0.25], lambda step: 0.5**step):
        net = nn.Linear(1, 1, bias=False)
        nn.init.constant_(net.weight, 2.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        losses.append([row.loss for row in train(net, optimizer, [batch] * 3, mse, rates=rates)])
        assert optimizer.param_groups[0]["lr"] == 0.5
    assert losses[0] == losses[1]


def test_a_context_is_around_the_passes_of_a_step_and_ends_before_its_update() -> None:
    net = nn.Linear(1, 1, bias=False)
    seen = []

    @contextmanager
    def around(step: int) -> Iterator[None]:
        before = net.weight.detach().clone()
        yield
        assert net.weight.grad is not None
        seen.append((step, torch.equal(net.weight, before), float(net.weight.grad) != 0.0))

    batch = (torch.ones(1, 1), torch.zeros(1))
    start = net.weight.detach().clone()
    rows = train(net, torch.optim.SGD(net.parameters(), lr=0.5), [batch] * 2, mse, around=around)
    next(rows)
    assert not torch.equal(net.weight, start)  # a row comes after its update
    next(rows)
    assert seen == [(0, True, True), (1, True, True)]


@pytest.mark.parametrize("weights", ["dense", "deferred"])
def test_divergence_is_a_row_with_its_step_not_a_crash(weights: str) -> None:
    x, y = digits().batches(8, 30, 0)
    net = nfd.ResNet(64, 10, 64, 4, weights=weights)
    rows = list(train(net, nfd.SGD(net.param_groups(1e4)), zip(x, y, strict=True), cross_entropy))
    assert rows[-1].diverged
    assert rows[-1].step < 29
    assert not any(row.diverged for row in rows[:-1])


def test_losses_are_the_stated_ones() -> None:
    assert float(mse(torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 0.0]))) == 1.0
    assert float(cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))) == pytest.approx(math.log(4))


def test_targets_are_checked() -> None:
    assert outputs_needed("cross-entropy", torch.tensor([0, 2]), None) == 3
    assert outputs_needed("cross-entropy", torch.tensor([0, 2]), 10) == 10
    with pytest.raises(ValueError, match=r"class ids in 0\.\.2, or -100 .*; got values from 0 to 3"):
        outputs_needed("cross-entropy", torch.tensor([0, 3]), 3)
    with pytest.raises(ValueError, match="from -1 to 3"):
        outputs_needed("cross-entropy", torch.tensor([-1, 3]), None)
    with pytest.raises(TypeError, match=r"integer class ids; got torch\.float32"):
        outputs_needed("cross-entropy", torch.tensor([0.0]), None)
    with pytest.raises(TypeError, match=r"must be floats; got torch\.int64"):
        outputs_needed("mse", torch.tensor([1]), None)
    with pytest.raises(ValueError, match="Did you mean 'mse'"):
        outputs_needed("msee", torch.tensor([1.0]), None)


def test_digits_are_normalised_split_and_served_in_a_repeatable_order() -> None:
    d = digits(3)
    assert d.inputs.shape == (1437, 64)
    assert d.test_inputs.shape == (360, 64)
    assert float(d.inputs.mean()) == pytest.approx(0, abs=1e-6)
    assert float(d.inputs.std()) == pytest.approx(1, abs=1e-4)
    x, y = d.batches(100, 20, seed=1)
    again, _ = d.batches(100, 20, seed=1)
    other, _ = d.batches(100, 20, seed=2)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert x.shape == (20, 100, 64)
    assert y.shape == (20, 100)
    first_epoch = x[:14].reshape(-1, 64)
    assert len(torch.unique(first_epoch, dim=0)) >= 1390  # no sample twice; a few digits are identical images
    with pytest.raises(ValueError, match="at most the 1437 training samples"):
        d.batches(2000, 1, 0)


def test_the_squared_error_of_anyone_s_model_broadcasts_nothing() -> None:
    """Every output has its target; where PyTorch would give all outputs all targets, the shapes are refused."""
    value = loss_of("mse")
    outputs, targets = torch.randn(4, 1), torch.randn(4)
    expected = 0.5 * (outputs[:, 0] - targets).square().mean()
    for out, y in ((outputs, targets), (outputs[:, 0], targets), (outputs, targets[:, None])):
        torch.testing.assert_close(value(out, y), expected)
    whole = torch.randn(4, 3)
    torch.testing.assert_close(value(whole, whole + 2), torch.tensor(2.0))
    for out, y in ((outputs, targets[:1]), (outputs.mean(0), targets), (whole, targets), (outputs.mT, targets)):
        with pytest.raises(ValueError, match="needs outputs"):
            value(out, y)
