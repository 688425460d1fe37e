"""The loop: rows before updates, rates, divergence; the losses and their targets."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import nfd
from nfd.data.digits import digits
from nfd.training.loop import train
from nfd.training.losses import cross_entropy, loss_of, mse


def test_rows_hold_the_loss_before_the_update() -> None:
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 2.0)
    batch = (torch.ones(1, 1), torch.zeros(1))
    rows = list(train(net, torch.optim.SGD(net.parameters(), lr=0.5), [batch] * 3, mse))
    assert [row.loss for row in rows] == [2.0, 0.5, 0.125]
    assert [row.step for row in rows] == [0, 1, 2]
    assert float(rows[1].outputs) == 1.0


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
