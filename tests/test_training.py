"""Losses: their values, and the shapes that are refused."""

from __future__ import annotations

import math

import pytest
import torch

from nfd.runs.losses import cross_entropy, loss_of


def test_losses_are_the_stated_ones() -> None:
    assert float(loss_of("mse")(torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 0.0]))) == 1.0
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
