"""Resolution: short remainders are answered by a draw given all that is recorded, and recorded nowhere."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import nfd
from nfd.core.names import Feedback, NetworkWeights
from nfd.nets.orthogonal import TOLERANCE
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


def test_a_gradient_is_measured_against_the_longest_so_far_and_answered_whole() -> None:
    layer = nfd.DeferredLinear(30, 20, resolution=0.1, seed=0, dtype=F64)
    x = torch.eye(30, dtype=F64)[:1].requires_grad_()
    gradients = torch.eye(20, dtype=F64)[:3] * torch.tensor([[1.0], [0.05], [1e-11]], dtype=F64)
    lengths = [
        float(torch.autograd.grad(layer(x), x, g[None])[0].norm() / g.norm()) for g in gradients
    ]  # of W'g for unit g: chi with 30 degrees of freedom
    assert layer.rank == (1, 1)
    assert all(stats.chi(30).cdf(length) > 1e-4 for length in lengths)
    torch.autograd.grad(layer(x), x, gradients[1:2] * 10)
    assert layer.rank == (2, 1)


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


def ranks(net: nfd.ResNet) -> list[tuple[int, int]]:
    return [layer.rank for layer in net.modules() if isinstance(layer, nfd.DeferredLinear)]


def test_a_training_goes_on_bit_for_bit_from_a_saved_state_and_from_a_copy() -> None:
    net = network(0.2)
    optimizer = nfd.SGD(net.param_groups(0.2), momentum=0.9, weight_decay=0.01)
    trained(net, optimizer)
    other = network(0.2, seed=99)
    other.load_state_dict(net.state_dict())
    resumed = nfd.SGD(other.param_groups(0.2), momentum=0.9, weight_decay=0.01)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    twin = copy.deepcopy(net)
    copied = nfd.SGD(twin.param_groups(0.2), momentum=0.9, weight_decay=0.01)
    copied.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = trained(net, optimizer)
    for net_again, optimizer_again in ((other, resumed), (twin, copied)):
        assert all(torch.equal(*pair) for pair in zip(expected, trained(net_again, optimizer_again), strict=True))


def test_ten_more_passes_over_the_same_samples_add_less_than_the_first_one() -> None:
    added = {}
    for resolution in (None, 0.3):
        net = network(resolution)
        optimizer = nfd.SGD(net.param_groups(0.1))
        totals = [(trained(net, optimizer, steps), sum(map(sum, ranks(net))))[1] for steps in (3, 27, 30)]
        added[resolution] = totals[0], totals[2] - totals[1]
    first, later = added[0.3]
    assert later < first < added[None][1] / 5


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_at_rounding_it_is_the_exact_layer_bit_for_bit(dtype: torch.dtype) -> None:
    exact, fine = (network(resolution).to(dtype) for resolution in (None, TOLERANCE[dtype]))
    outputs = [
        [net(x.to(dtype)).detach() for x in batches(3)] + [p.detach() for p in net.parameters()]
        for net in (exact, fine)
    ]
    assert all(torch.equal(*pair) for pair in zip(*outputs, strict=True))


def test_a_fine_resolution_repeats_the_completed_dense_network_as_finely() -> None:
    def build(weights: str) -> nfd.ResNet:
        return network(FINE) if weights == "deferred" else network(None, weights=weights)

    assert TOLERANCE[F64] < gap(build, trained, 0.01, "depth-mup") < FINE


def test_evaluation_changes_nothing_and_answers_by_what_is_recorded() -> None:
    layer, columns, _ = recorded("shared")
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    layer.eval()
    torch.testing.assert_close(layer(torch.eye(N_IN, dtype=F64)[:2]), columns, rtol=0, atol=1e-12)
    assert torch.equal(layer(torch.eye(N_IN, dtype=F64)), layer(torch.eye(N_IN, dtype=F64)))
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


def test_the_completion_gives_what_is_recorded_and_states_travel_between_resolutions() -> None:
    layer, columns, _ = recorded("shared")
    layer(torch.full((1, N_IN), 0.1, dtype=F64) + 2 * torch.eye(N_IN, dtype=F64)[:1])
    assert layer.rank == (1, 2)
    W = layer.complete()
    assert isinstance(W, Tensor)
    torch.testing.assert_close(W[:, :2], columns.T, rtol=0, atol=1e-12)
    exact = nfd.DeferredLinear(N_IN, N_OUT, dtype=F64)
    exact.load_state_dict(layer.state_dict())
    torch.testing.assert_close(exact(torch.eye(N_IN, dtype=F64)[:2]).detach(), columns, rtol=0, atol=1e-12)
    old = {name: value for name, value in exact.state_dict().items() if name not in ("passing", "longest")}
    recorded("shared")[0].load_state_dict(old)  # of version 0.1


def test_bases_stay_orthonormal_in_single_precision() -> None:
    layer = nfd.DeferredLinear(1500, 1300, resolution=0.05)
    stream = torch.Generator().manual_seed(0)
    drift = torch.randn(1500, generator=stream)
    for _ in range(20):
        x = drift + 0.1 * torch.randn(20, 1500, generator=stream) * torch.rand(20, 1, generator=stream)
        layer(x).backward(torch.randn(20, 1300, generator=stream))
    for frame in (layer.matrix.forward.directions, layer.matrix.backward.directions):
        Q = frame.rows.double()
        assert len(Q) > 20
        assert float((Q @ Q.T - torch.eye(len(Q))).abs().max()) <= 1e-5
    assert layer.rank[1] < layer.rank[0] == 400


def test_wrong_resolutions_are_named() -> None:
    for resolution in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="resolution must be"):
            nfd.DeferredLinear(3, 3, resolution=resolution)
