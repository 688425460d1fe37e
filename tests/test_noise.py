"""Noise of gradients: unbiased, with intervals that hold the truth, of known Gaussians and models."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.coverage_noise import scales
from tests.models import Residual
from torch import Tensor

import nfd
from nfd.core.estimates import Interval, ratio_of_means
from nfd.meters.noise import GradientNoise, noise_of

SIZE, SAMPLES = 60, 4


def law_of_gradients() -> tuple[Tensor, Tensor]:
    """The mean and the standard deviations of one sample's gradient: noise scale 16 in the plain metric."""
    scales = torch.linspace(0.5, 1.5, SIZE, dtype=torch.float64)
    mean = torch.ones(SIZE, dtype=torch.float64) * (scales.square().sum() / SIZE / 16).sqrt()
    return mean, scales


def measured(stream: torch.Generator, groups: int, group: int = 8) -> GradientNoise:
    mean, scales = law_of_gradients()
    noise = GradientNoise(SAMPLES, group)
    draws = torch.randn(groups * group, SIZE, dtype=torch.float64, generator=stream)
    for gradient in mean + scales * draws / SAMPLES**0.5:
        noise.add([gradient[: SIZE // 2], None, gradient[SIZE // 2 :]])
    return noise


def covers(interval: Interval, truth: float) -> bool:
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize(
    ("freedom", "size", "groups", "refuted"),
    [(math.inf, 60, 3, 16), (math.inf, 60, 20, 34), (math.inf, 1, 3, 0), (2.5, 60, 3, 0), (2.5, 60, 20, 30)],
)
def test_intervals_hold_the_noise_scale_of_known_gradients_and_not_another(
    freedom: float, size: int, groups: int, refuted: int
) -> None:
    """Of 40: at 95 % fewer than 34 hold the truth once in 100 times. Few and heavy-tailed ones hold others as well."""
    stream = torch.Generator().manual_seed(0)
    found = [one for _ in range(40) for one in scales(freedom, size, groups, 16.0, stream)]
    assert sum(one.low <= one.truth <= one.high for one in found) >= 34
    assert sum(not one.low <= 8 * one.truth <= one.high for one in found) >= refuted


def test_signal_and_variance_are_unbiased_at_every_size_of_group() -> None:
    mean, scales = law_of_gradients()
    for group in (2, 8):
        noise = measured(torch.Generator().manual_seed(1), 400, group)
        assert covers(noise.signal, float(mean.square().sum()))
        assert covers(noise.variance, float(scales.square().sum()))
    naive = noise.variance.value / (noise.signal.value + noise.variance.value / SAMPLES)  # |g|^2 holds noise too
    assert not covers(noise.estimate(), naive)


def test_gradients_without_signal_have_a_lower_limit_alone() -> None:
    noise, stream = GradientNoise(1), torch.Generator().manual_seed(3)
    for gradient in torch.randn(80, SIZE, generator=stream):
        noise.add([gradient])
    estimate = noise.estimate()
    assert estimate.high == math.inf
    assert estimate.low > 5


def test_few_or_unequal_gradients_are_no_estimate() -> None:
    noise = GradientNoise(1, group=2)
    assert math.isnan(noise.estimate().value)
    assert math.isnan(noise.signal.value)
    noise.add([torch.ones(3)])
    with pytest.raises(ValueError, match="one for each of 1"):
        noise.add([torch.ones(3), torch.ones(2)])
    with pytest.raises(ValueError, match="group must be"):
        GradientNoise(1, group=1)
    for above, below in (([-1.0, 1.0, 0.0], [1.0, -1.0, 0.1]), ([1.0, 1.1, 1.2], [-1.0, -1.1, -1.0])):
        assert math.isnan(ratio_of_means(torch.tensor(above), torch.tensor(below)).value)


class Quadratic(torch.nn.Module):
    """A weight for every input, and how far it is from it; with a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((SIZE,), 2.0, dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.w - x


def test_the_noise_of_a_model_is_that_of_its_loss_and_leaves_the_model_as_it_was() -> None:
    scales = torch.linspace(0.5, 2.0, SIZE, dtype=torch.float64)
    x = torch.randn(40, 16, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    model, curvature = Quadratic(), scales.square()

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (curvature * outputs.square()).sum(1).mean() / 2 + 0 * targets.sum()

    before = model.w.detach().clone()
    noise = noise_of(model, model, loss, [(batch, torch.zeros(16)) for batch in x])
    signal, variance = (curvature * 2).square().sum(), curvature.square().sum()  # of G = curvature w, and of one sample
    assert noise.samples == 2
    assert covers(noise.estimate(), float(variance / signal))
    assert torch.equal(model.w, before)
    assert model.w.grad is None


def test_a_check_estimates_noise_and_refuses_batches_that_it_cannot_cut() -> None:
    def batches(size: int, steps: int = 4) -> list[tuple[Tensor, Tensor]]:
        stream = torch.Generator().manual_seed(6)
        return [
            (torch.randn(size, 5, generator=stream), torch.randint(3, (size,), generator=stream)) for _ in range(steps)
        ]

    sizes = {"widths": [8, 16], "depths": [1], "seeds": 2, "rule": "mup", "noise": True}
    check = nfd.check(Residual, batches(16), **sizes)
    assert [(row["width"], row["seed"]) for row in check.noise] == [(8, 0), (8, 1), (16, 0), (16, 1)]
    assert all(row["low"] <= row["value"] <= row["high"] for row in check.noise)
    assert "noise scale [95 % interval]" in str(check)
    plain = nfd.check(Residual, batches(16), **(sizes | {"noise": False}))
    assert plain.noise == []
    assert plain.table == check.table
    for wrong in (batches(11), batches(16, 1), [*batches(16, 1), *batches(8, 1)]):
        with pytest.raises(ValueError, match="noise needs"):
            nfd.check(Residual, wrong, **sizes)
