"""The opponent of the benchmarks computes the same training."""

from __future__ import annotations

import pytest
import torch
from benchmarks.dense import DenseBaseline

import nfd
from nfd.data.digits import digits
from nfd.training.loop import train
from nfd.training.losses import cross_entropy


def test_the_dense_baseline_trains_the_same_network() -> None:
    x, y = digits().batches(8, 6, 0)
    net = nfd.ResNet(64, 10, 48, 3)
    weights = [layer.weight.detach().clone() for layer in net.outer]
    baseline = DenseBaseline(net.U.detach().clone(), net.V.detach().clone(), weights, eta_c=0.3)
    rows = train(net, torch.optim.SGD(net.param_groups(0.3)), zip(x, y, strict=True), cross_entropy)
    for row, inputs, targets in zip(rows, x, y, strict=True):
        assert baseline.step(inputs, targets) == pytest.approx(row.loss, rel=1e-4)
