"""Statements of the paper that are measured anew: verdicts follow the numbers both ways."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from nfd.claims import (
    backward,
    first_step,
    forward,
    identities,
    kernels,
    limit,
    measuring,
    post_activation,
    regimes,
    two_layer,
)
from nfd.claims.evidence import Evidence
from nfd.core.activations import activation
from nfd.core.statistics import Interval
from nfd.core.variances import variances
from nfd.data.digits import digits
from nfd.limits.start import covariances


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """At these sizes a second thread costs more than it does."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def smoke() -> Evidence:
    return Evidence("smoke", digits())


def about(value: float, half: float = 0.01) -> Interval:
    return Interval(value, half / 2, value - half, value + half)


def test_identities_are_judged_by_their_residuals() -> None:
    tiny, large, one = torch.tensor([1e-14, 1e-13]), torch.tensor([0.2, 0.3]), torch.ones(2, dtype=torch.float64)
    assert identities.judge_recursion(tiny).verdict == "holds"
    assert identities.judge_recursion(large).verdict == "does not hold"

    def learned(printed: torch.Tensor, derived: torch.Tensor) -> str:
        return identities.judge_learned([identities.Residuals(4, printed, derived, one)]).verdict

    assert learned(tiny, large) == "holds"
    assert learned(large, tiny) == "holds with a condition"
    assert learned(large, large) == "does not hold"

    def factor(value: float) -> str:
        return identities.judge_factor([identities.Residuals(4, tiny, tiny, value * one)]).verdict

    assert factor(1.0) == "holds"
    assert factor(4 / identities.HORIZON) == "holds with a condition"
    assert factor(2.0) == "does not hold"


def test_kernels_are_judged_by_eigenvalues_and_coefficients() -> None:
    assert kernels.judge_definite({"a": 1e-3}, {"a": 1e-3}).verdict == "holds"
    assert kernels.judge_definite({"a": 1e-3, "b": 0.0}, {}).verdict == "holds with a condition"
    assert kernels.judge_definite({"b": 0.0}, {}).verdict == "does not hold"
    assert kernels.judge_hermite({"a": [0.1, 0.2]}).verdict == "holds"
    assert kernels.judge_hermite({"a": [0.1, 0.0]}).verdict == "does not hold"
    assert kernels.judge_nesting({"a": -1e-15}, {"a": 1e-14}).verdict == "holds"
    assert kernels.judge_nesting({"a": -1e-3}, {"a": 1e-14}).verdict == "does not hold"
    assert kernels.judge_series({"a": 1e-13}).verdict == "holds"
    assert kernels.judge_series({"a": 0.1}).verdict == "does not hold"


def test_the_bound_and_the_debate_are_judged_both_ways() -> None:
    assert post_activation.judge_bound({"L = 4": about(2.0), "L = 8": about(1.1)}, 64).verdict == "holds"
    assert post_activation.judge_bound({"L = 4": about(2.0), "L = 8": about(0.9)}, 64).verdict == "does not hold"
    assert post_activation.judge_bound({"L = 4": about(1.0)}, 64).verdict == "undecided"
    assert post_activation.judge_debate(about(1.0), about(0.0)).verdict == "holds"
    assert post_activation.judge_debate(about(0.0), about(0.0)).verdict == "does not hold"
    assert post_activation.judge_debate(about(1.0), about(1.0)).verdict == "does not hold"
    assert post_activation.judge_common({"a": about(1), "b": about(0)}, ["a"]).verdict == "holds with a condition"
    assert post_activation.judge_common({"a": about(1), "b": about(1)}, ["a"]).verdict == "holds"
    assert post_activation.dominant("relu")
    assert not post_activation.dominant("gelu")
    assert not post_activation.dominant("tanh")


def test_rates_distances_and_ratios_are_judged_both_ways() -> None:
    assert forward.judge_rates({"a": about(-1.0)}).verdict == "holds"
    assert forward.judge_rates({"a": about(-1.0), "b": about(-0.5)}).verdict == "does not hold"
    assert forward.judge_rates({"a": about(-1.0, 0.5)}).verdict == "undecided"
    assert forward.judge_covariance(about(0.01), about(0.0), 8).verdict == "holds"
    assert forward.judge_covariance(about(0.2), about(0.0), 8).verdict == "does not hold"
    assert forward.judge_gaussian({"a": about(-1.0)}, {"a": about(0.1)}, 8).verdict == "holds"
    assert forward.judge_gaussian({"a": about(0.0)}, {"a": about(0.1)}, 8).verdict == "does not hold"
    assert forward.judge_order({"a": about(0.0), "b": about(0.2)}).verdict == "does not hold"
    assert backward.judge_variance({"a": about(1.0), "b": about(1.0)}).verdict == "holds"
    assert backward.judge_variance({"a": about(1.0), "b": about(0.6)}).verdict == "does not hold"
    assert backward.judge_printed({"a": about(1.0)}, about(1.0)).verdict == "holds"
    assert backward.judge_printed({"a": about(0.6)}, about(1.0)).verdict == "does not hold"
    assert backward.judge_independence(about(0.0), about(1.0), about(0.5)).verdict == "holds"
    assert backward.judge_independence(about(0.2), about(1.0), about(0.5)).verdict == "does not hold"
    assert two_layer.judge_exponents({"a": about(-0.5)}, -0.5).verdict == "holds"
    assert two_layer.judge_exponents({"a": about(0.0)}, -0.5).verdict == "does not hold"
    assert regimes.judge_regime(about(-0.5), -0.5, {64: 0.1}).verdict == "holds"
    assert regimes.judge_regime(about(0.0), -0.5, {64: 0.1}).verdict == "does not hold"


def test_the_limit_is_judged_both_ways() -> None:
    near, far = about(0.01), about(0.2)
    assert limit.judge_at_depth({"L = 2": near}, {"tanh": near}).verdict == "holds"
    assert limit.judge_at_depth({"L = 2": far}, {"tanh": far}).verdict == "does not hold"
    assert limit.judge_at_depth({"L = 2": far}, {"tanh": near}).verdict == "holds with a condition"
    assert limit.judge_vanishing(about(-0.7), {2: near}).verdict == "holds"
    assert limit.judge_vanishing(about(0.0), {2: near}).verdict == "does not hold"
    steady, falling = about(0.1), about(-0.5)
    assert limit.judge_convergence({2: far, 8: near}, falling, near, {"tanh": near}).verdict == "holds"
    assert limit.judge_convergence({2: far, 8: far}, steady, near, {"tanh": far}).verdict == "does not hold"
    assert limit.judge_convergence({2: far, 8: far}, falling, near, {"tanh": far}).verdict == "undecided"
    assert limit.judge_convergence({2: far, 8: far}, steady, near, {"tanh": near}).verdict == "holds with a condition"
    assert limit.judge_convergence({2: far, 8: far}, steady, near, {"tanh": far}).tried[0] == "tanh"


def test_a_fabricated_ratio_of_one_makes_corollary_1_hold() -> None:
    assert first_step.judge_ratio({4: about(1.2), 64: about(1.0)}, {}, "said").verdict == "holds"
    assert (
        first_step.judge_ratio({4: about(1.2), 64: about(1.25)}, {"T = 4": about(2.0)}, "").verdict == "does not hold"
    )
    assert first_step.judge_ratio({64: about(1.25)}, {"tanh": about(1.0)}, "").verdict == "holds with a condition"
    assert first_step.judge_ratio({64: about(1.05, 0.1)}, {}, "").verdict == "undecided"


def test_distances_are_those_of_the_means() -> None:
    noise = torch.randn(400, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = 1 + 0.1 * noise[:200], 1 + 0.1 * noise[200:]
    assert measuring.distance(first, second).high < 0.02
    apart = measuring.distance(first + 0.3, second)
    assert apart.low < 0.3 < apart.high
    assert measuring.relative(first - second + 0.3, second).value == pytest.approx(0.3, abs=0.02)


def test_the_formula_of_the_first_step_is_that_of_the_kernels(smoke: Evidence) -> None:
    x = measuring.unit(smoke)
    for L in (4, 64):
        assert first_step.formula(x, L, "relu", 1.0) == pytest.approx(1 + 0.25 / (1 + 0.5 / L), rel=1e-6)


def test_variances_are_those_of_relu() -> None:
    q, P = variances(activation("relu"), torch.ones(()), 8)
    torch.testing.assert_close(q, (1 + 1 / 16) ** torch.arange(9, dtype=torch.float64))
    torch.testing.assert_close(P, q.flip(0))


def test_the_law_of_the_forward_pass_has_the_exact_mean(smoke: Evidence) -> None:
    q = covariances(measuring.rows(smoke, 2), "relu", 32, 4, 2000, 0).mean(0)
    start = measuring.rows(smoke, 2).square().mean(1)
    assert q.diagonal().tolist() == pytest.approx((start * (1 + 1 / 8) ** 4).tolist(), rel=0.04)
