"""Resolution: short remainders are answered by a draw given all that is recorded, and recorded nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import nfd
from nfd.core.names import Feedback, NetworkWeights
from nfd.wide.basis import TOLERANCE
from replay import gap

F64 = torch.float64
N_IN, N_OUT, SHORT, CALLS = 7, 6, 0.1, 2000


def recorded(feedback: Feedback, resolution: float = 0.3) -> tuple[nfd.DeferredLinear, Tensor, Tensor]:
    """A layer that knows the first two columns of W_0 and, backward, the first row; and what it knows of them."""
    layer = nfd.DeferredLinear(N_IN, N_OUT, feedback=feedback, resolution=resolution, seed=3, dtype=F64)
    x = torch.eye(N_IN, dtype=F64)[:2].requires_grad_()
    y = layer(x)
    (row,) = torch.autograd.grad(y, x, torch.eye(N_OUT, dtype=F64)[[0, 0]])
    assert layer.rank == (1, 2)
    return layer, y.detach(), row[0]


def asked_again(layer: nfd.DeferredLinear, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Answers to the same recorded queries, call after call, forward and backward."""
    forward, backward = [], []
    for _ in range(CALLS):
        rows = x.clone().requires_grad_()
        y = layer(rows)
        forward.append(y.detach())
        backward += torch.autograd.grad(y, rows, g)
    return torch.stack(forward), torch.stack(backward)


def of_covariance(draws: Tensor, expected: Tensor) -> None:
    """Draws ``[calls, rows, entries]``, independent over calls and entries: is this the covariance of the rows?"""
    calls, rows, entries = draws.shape
    flat = draws.transpose(0, 1).reshape(rows, -1)
    errors = ((expected.diagonal() * expected.diagonal()[:, None] + expected**2) / (calls * entries)).sqrt()
    assert bool(((flat @ flat.T / (calls * entries) - expected).abs() < 5 * errors).all())
    for row, variance in zip(flat, expected.diagonal(), strict=True):
        assert stats.kstest(row.numpy() / math.sqrt(variance), "norm").pvalue > 1e-3
    later = (draws[1:] * draws[:-1]).mean((0, 2)) / expected.diagonal()
    assert bool((later.abs() < 5 / math.sqrt((calls - 1) * entries)).all()), "two calls share their draw"


@pytest.mark.parametrize("feedback", ["shared", pytest.param("independent", marks=pytest.mark.slow)])
def test_short_remainders_are_answered_by_their_law_given_all_that_is_recorded(feedback: Feedback) -> None:
    """In coordinates: of a matrix with known entries, those that nobody asked for are new normal numbers every time."""
    layer, columns, row = recorded(feedback)
    x = torch.zeros(2, N_IN, dtype=F64)
    x[0, [0, 2]] = torch.tensor([1, SHORT], dtype=F64)
    x[1, [1, 2, 3]] = torch.tensor([1, SHORT, -SHORT], dtype=F64)
    g = torch.zeros(2, N_OUT, dtype=F64)
    g[0, [0, 1]] = torch.tensor([1, SHORT], dtype=F64)
    g[1, [0, 1, 2]] = torch.tensor([-1, SHORT, SHORT], dtype=F64)
    forward, backward = asked_again(layer, x, g)
    assert layer.rank == (1, 2)

    new = SHORT**2 * torch.tensor([[1.0, 1.0], [1.0, 2.0]], dtype=F64)  # Gram matrix of the remainders
    known_rows, known_columns = (1, 2) if feedback == "shared" else (0, 0)
    of_covariance((forward - columns)[:, :, known_rows:], new)
    of_covariance((backward - torch.stack([row, -row]))[:, :, known_columns:], new)
    if feedback == "shared":  # one matrix: what was answered backward is known forward, and the other way about
        torch.testing.assert_close(forward[:, :, 0], (x @ row).expand(CALLS, -1), rtol=0, atol=1e-12)
        torch.testing.assert_close(backward[:, :, :2], (g @ columns.T).expand(CALLS, -1, -1), rtol=0, atol=1e-12)


def batches(count: int) -> Iterator[Tensor]:
    """The same twelve samples in three batches, again and again."""
    samples = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=F64)
    return (samples[k % 3] for k in range(count))


WIDTH = 250  # more than the samples of all passes
FINE = 1e-2


def network(resolution: float | None, seed: int = 5, weights: NetworkWeights = "deferred") -> nfd.ResNet:
    net = nfd.ResNet(5, 2, WIDTH, 2, activation="tanh", weights=weights, resolution=resolution, seed=seed)
    return net.double()


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 12) -> list[Tensor]:
    outputs = []
    for x in batches(steps):
        y = net(x)
        outputs.append(y.detach())
        optimizer.zero_grad()
        (y - 1).square().mean().backward()
        optimizer.step()
    return outputs


def test_a_fine_resolution_repeats_the_completed_dense_network_as_finely() -> None:
    def build(weights: str) -> nfd.ResNet:
        return network(FINE) if weights == "deferred" else network(None, weights=weights)

    assert TOLERANCE[F64] < gap(build, trained, 0.01, "depth-mup") < FINE


def test_wrong_resolutions_are_named() -> None:
    for resolution in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="resolution must be"):
            nfd.DeferredLinear(3, 3, resolution=resolution)
