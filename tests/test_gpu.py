"""The engine on a CUDA device."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nfd
from nfd.experiment.runs import train_group
from nfd.experiment.settings import RunConfig
from nfd.nets.network import Network
from replay import gap

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; none is present"),
]


@pytest.mark.parametrize("feedback", ["shared", "independent"])
def test_completed_dense_network_repeats_every_output(feedback: str) -> None:
    x = torch.randn(6, 3, 5, dtype=torch.float64).cuda()

    def build(weights: str) -> Network:
        return nfd.ResNet(5, 2, 40, 3, weights=weights, feedback=feedback, dtype=torch.float64, device="cuda")

    def program(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        outputs = []
        for inputs in x:
            optimizer.zero_grad()
            y = net(inputs)
            outputs.append(y.detach())
            y.square().mean().backward()
            optimizer.step()
        return outputs

    assert gap(build, program, 0.3, "depth-mup", momentum=0.9) < 1e-10


def test_stacks_train_there_as_they_do_here() -> None:
    runs = [RunConfig(width=16, depth=3, steps=5, seed=seed).model_dump() for seed in range(3)]
    for here, there in zip(train_group(runs), train_group(runs, "cuda"), strict=True):
        assert there.metrics["test_loss"] == pytest.approx(here.metrics["test_loss"], rel=1e-3)


def test_predict_runs_there() -> None:
    x = torch.randn(4, 2, 5)
    p = nfd.predict(x, torch.ones(4, 2), depth=3, loss="mse", width=256, replicates=4, device="cuda")
    assert torch.isfinite(p.loss).all()
