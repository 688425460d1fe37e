"""Meters: their definitions spelled out, and verdicts at their thresholds."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy import stats

import nfd
from nfd.core.statistics import Interval, interval, log_slope, squared_size, stderr
from nfd.meters.updates import Baseline
from nfd.meters.verdict import verdict
from nfd.nets.resnet import ResNet


def updates(net: ResNet, start: ResNet, x: torch.Tensor) -> dict[str, float]:
    return Baseline(start, nfd.plan(start, rule="depth-mup-inner", optimizer="sgd"), x).updates(net)


def trained(horizon: float = 2.0) -> tuple[ResNet, ResNet, torch.Tensor]:
    net = nfd.ResNet(5, 3, 16, 4, block="two-layer", horizon=horizon, dtype=torch.float64)
    start = copy.deepcopy(net)
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    optimizer = nfd.SGD(net.param_groups(0.5, "depth-mup-inner"))
    torch.nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    optimizer.step()
    return net, start, x


def test_updates_are_equations_27_33_and_34() -> None:
    net, start, x = trained()
    L, n, T = 4, 16, 2.0
    found = updates(net, start, x)
    for p in (*net.parameters(), *start.parameters()):
        p.requires_grad_(False)
    s = net.streams(x)
    inner, stream = [], []
    assert net.inner is not None
    assert start.inner is not None
    for k in range(L):
        W1, V1 = start.inner[k].weight, net.inner[k].weight
        W2, V2 = start.outer[k].weight, net.outer[k].weight
        h = s.h[k]
        x_l = h @ V1.T / math.sqrt(n)
        torch.testing.assert_close(x_l, s.x_inner[k])  # type: ignore[index]
        inner.append(x_l - h @ W1.T / math.sqrt(n))
        grown = (s.h[k + 1] - s.h[k]) / (T / L)  # dh/dt, Eq. 33
        frozen = math.sqrt(T / (L * n)) * torch.relu(x_l) @ W2.T / (T / L)  # Eq. 34
        torch.testing.assert_close(grown - frozen, math.sqrt(L / (T * n)) * torch.relu(x_l) @ (V2 - W2).T)
        stream.append(grown - frozen)
    assert found["inner_update"] == pytest.approx(float(torch.stack(inner).square().mean().sqrt()))
    assert found["stream_update"] == pytest.approx(float(torch.stack(stream).square().mean().sqrt()))
    assert found["function_update"] == pytest.approx(float((net(x) - start(x)).square().mean().sqrt()))


def test_the_share_of_inner_layers_is_what_resetting_them_undoes() -> None:
    net, start, x = trained()
    assert updates(net, start, x)["function_update_inner"] > 1e-3
    net.inner = copy.deepcopy(start.inner)
    found = updates(net, start, x)
    assert found["inner_update"] == 0
    assert found["function_update_inner"] == 0
    assert found["function_update"] > 1e-3
    assert updates(start, start, x)["function_update"] == 0


@pytest.mark.parametrize(
    ("value", "low", "high", "word"),
    [
        (0.0, -0.2, 0.25, "STABLE"),
        (-0.24, -0.25, -0.2, "STABLE"),
        (-0.5, -0.6, -0.4, "COLLAPSES"),
        (-0.3, -0.5, -0.05, "UNCERTAIN"),
        (0.5, 0.4, 0.6, "GROWS"),
        (0.24, 0.11, 0.37, "UNCERTAIN"),
        (math.nan, math.nan, math.nan, "UNCERTAIN"),
    ],
)
def test_verdicts(value: float, low: float, high: float, word: str) -> None:
    assert verdict(Interval(value, 0.0, low, high)) == word


def test_intervals_are_those_of_students_t_for_a_mean() -> None:
    samples = torch.tensor([1.0, 2.0, 4.0, 7.0], dtype=torch.float64)
    found = interval(lambda r: r.mean(0), samples)
    assert found.value == 3.5
    assert found.stderr == pytest.approx(float(samples.std()) / 2)
    assert found.high - found.value == pytest.approx(3.182446 * found.stderr, rel=1e-5)
    assert str(Interval(-0.4567, 0.0212, -0.52, -0.39)) == "-0.457 [-0.520, -0.390]"
    assert "nan" in str(Interval(math.nan, math.nan, math.nan, math.nan))
    assert "inf" in str(Interval(1.0, math.inf, -math.inf, math.inf))


def test_intervals_of_two_groups_are_welchs() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, generator=g, dtype=torch.float64), 3 * torch.randn(9, generator=g, dtype=torch.float64)
    found = interval(lambda x, y: x.mean() - y.mean(), a, b)
    welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((welch.low, welch.high))


def test_intervals_cover_what_they_say() -> None:
    """Of squared sizes, noise taken away, over many draws of six replicates."""
    g = torch.Generator().manual_seed(1)
    truth, held = 0.09, 0
    for _ in range(300):
        samples = 0.3 + torch.randn(6, 40, generator=g, dtype=torch.float64)
        found = interval(lambda r: squared_size(r.mean(0), stderr(r)), samples)
        held += found.low <= truth <= found.high
    assert 0.91 <= held / 300 <= 0.99


def test_slopes_and_roots() -> None:
    x = [2.0, 4.0, 8.0]
    torch.testing.assert_close(log_slope(x, 3 * torch.tensor(x).pow(-0.5)), torch.tensor(-0.5, dtype=torch.float64))
    root = Interval(0.04, 0.01, -0.01, 0.09).root()
    assert (root.value, root.low, root.high) == pytest.approx((0.2, 0.0, 0.3))
    assert root.stderr == pytest.approx(0.025)
