"""Statements of the paper that are measured anew: verdicts follow the numbers both ways."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from nfd.core.activations import activation, stream_variances
from nfd.core.estimates import Interval
from nfd.data import digits
from nfd.paper import distances
from nfd.paper.claims import (
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
from nfd.paper.claims.claim import Judged
from nfd.paper.claims.evidence import Evidence
from nfd.paper.claims.rules import rescued, some_of, together
from nfd.paper.claims.table import CLAIMS
from nfd.paper.untrained import covariances, endpoints, errors_in_depth


@pytest.fixture(scope="module")
def smoke() -> Evidence:
    return Evidence("smoke", digits())


def about(value: float, half: float = 0.01) -> Interval:
    return Interval(value, half / 2, value - half, value + half)


def test_identities_are_judged_by_their_residuals() -> None:
    tiny, large, one = torch.tensor([1e-14, 1e-13]), torch.tensor([0.2, 0.3]), torch.ones(2, dtype=torch.float64)
    assert identities.judge_recursion({"relu": tiny}).verdict == "holds"
    assert identities.judge_recursion({"relu": tiny, "tanh": large}).verdict == "does not hold"

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
    assert kernels.judge_definite({"a": 1e-3}, {"a": 1e-3}, {"a": "neither"}).verdict == "holds"
    assert kernels.judge_definite({"b": 0.0}, {}, {"b": "odd"}).verdict == "does not hold"
    assert kernels.judge_hermite({"a": [0.1, 0.2]}).verdict == "holds"
    assert kernels.judge_hermite({"a": [0.1, 0.0]}).verdict == "does not hold"
    assert kernels.judge_nesting({"a": -1e-15}, {"a": 1e-14}).verdict == "holds"
    assert kernels.judge_nesting({"a": -1e-3}, {"a": 1e-14}).verdict == "does not hold"
    assert kernels.judge_series({"a": 1e-13}).verdict == "holds"
    assert kernels.judge_series({"a": 0.1}).verdict == "does not hold"


def test_only_odd_activations_are_called_odd() -> None:
    def judged(parity: str) -> Judged:
        return kernels.judge_definite({"a": 1e-3, "b": 0.0}, {}, {"a": "neither", "b": parity})

    assert judged("odd").verdict == judged("neither").verdict == "holds with a condition"
    assert judged("odd").reading.endswith("C(x, -x) = -C(x, x): b. Condition: phi is not odd.")
    assert judged("neither").reading.endswith("though phi is not odd: b. Condition: phi is none of these.")


def test_sums_are_said_to_differ_where_their_intervals_do() -> None:
    def said(shared: float, copy: float) -> str:
        return backward.judge_independence({"a": about(0.0)}, about(shared), about(copy)).reading

    assert "do differ" in said(1.0, 0.5)
    assert "do differ" in said(0.5, 1.0)
    assert "do not differ significantly" in said(0.5, 0.505)


def test_the_bound_and_the_debate_are_judged_both_ways() -> None:
    assert post_activation.judge_bound({"L = 4": about(2.0), "L = 8": about(1.1)}, 64).verdict == "holds"
    assert post_activation.judge_bound({"L = 4": about(2.0), "L = 8": about(0.9)}, 64).verdict == "does not hold"
    assert post_activation.judge_bound({"L = 4": about(1.0)}, 64).verdict == "undecided"
    yes, no = {"T = 4": (about(1.0), about(0.0))}, {"T = 4": (about(1.0), about(1.0))}
    assert post_activation.judge_debate(about(1.0), about(0.0), no).verdict == "holds"
    assert post_activation.judge_debate(about(0.0), about(0.0), no).verdict == "does not hold"
    assert post_activation.judge_debate(about(1.0), about(1.0), yes).verdict == "holds with a condition"
    grow = {"a": about(1), "b": about(0)}
    assert post_activation.judge_common(grow, ["a"]).verdict == "holds"
    assert "of these grow: none." in post_activation.judge_common(grow, ["a"]).reading
    assert post_activation.judge_common(grow, ["a", "b"]).verdict == "does not hold"
    assert post_activation.judge_common(grow, []).verdict == "undecided"
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
    assert backward.judge_independence({"a": about(0.0)}, about(1.0), about(0.5)).verdict == "holds"
    near, far = {"a": about(-0.5)}, {"a": about(0.0)}
    assert two_layer.judge_exponents(near, -0.5, {"tanh": far}).verdict == "holds"
    assert two_layer.judge_exponents(far, -0.5, {"tanh": near}).verdict == "holds with a condition"
    assert two_layer.judge_exponents(far, -0.5, {"tanh": far}).verdict == "does not hold"
    assert regimes.judge_regime(about(-0.5), -0.5, {64: 0.1}, about(0.0)).verdict == "holds"
    assert regimes.judge_regime(about(0.0), -0.5, {64: 0.1}, about(-0.5)).verdict == "holds with a condition"
    assert regimes.judge_regime(about(0.0), -0.5, {64: 0.1}, about(0.0)).verdict == "does not hold"


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
    judge = first_step.judge_ratio
    assert judge({4: about(1.2), 64: about(1.0)}, {}, {64: 1.0}).verdict == "holds"
    assert judge({4: about(1.2), 64: about(1.25)}, {"T = 4": about(2.0)}, {64: 1.25}).verdict == "does not hold"
    assert judge({64: about(1.25)}, {"tanh": about(1.0)}, {64: 1.25}).verdict == "holds with a condition"
    assert judge({64: about(1.05, 0.1)}, {}, {64: 1.0}).verdict == "undecided"


def test_verdicts_combine() -> None:
    assert together(["holds", "undecided"]) == "undecided"
    assert together([]) == "undecided"
    assert some_of(["holds", "does not hold"]) == "holds with a condition"
    assert some_of(["does not hold"]) == "does not hold"
    assert rescued("does not hold", {"a": "holds", "b": "undecided"}) == (
        "holds with a condition",
        " The condition: a.",
    )
    assert rescued("undecided", {"a": "holds"}) == ("undecided", "")


FAR, ONE = about(9.0), {"a": about(9.0)}
SLOW = identities.Residuals(4, *(torch.tensor([0.3]) for _ in range(3)))
FAILING: dict[Callable[..., Judged], tuple[object, ...]] = {
    identities.judge_recursion: ({"relu": torch.tensor([0.1])},),
    identities.judge_learned: ([SLOW],),
    identities.judge_factor: ([SLOW],),
    kernels.judge_definite: ({"a": 0.0}, {}, {"a": "odd"}),
    kernels.judge_hermite: ({"a": [0.0]},),
    kernels.judge_series: ({"a": 1.0},),
    kernels.judge_nesting: ({"a": -1.0}, {"a": 1e-14}),
    post_activation.judge_bound: ({"L = 4": about(0.5)}, 64),
    post_activation.judge_debate: (FAR, FAR, {"T = 4": (FAR, FAR)}),
    post_activation.judge_common: ({"a": about(0.0)}, ["a"]),
    forward.judge_rates: (ONE,),
    forward.judge_covariance: (FAR, FAR, 32),
    forward.judge_gaussian: (ONE, ONE, 64),
    forward.judge_order: (ONE,),
    backward.judge_variance: (ONE,),
    backward.judge_printed: (ONE, FAR),
    backward.judge_independence: (ONE, FAR, FAR),
    two_layer.judge_exponents: (ONE, 0.0, {"tanh": ONE}),
    limit.judge_at_depth: (ONE, {"tanh": FAR}),
    limit.judge_vanishing: (FAR, {2: FAR}),
    limit.judge_convergence: ({2: FAR}, FAR, FAR, {"tanh": FAR}),
    first_step.judge_ratio: ({4: FAR}, {"tanh": FAR}, {4: 1.0}),
    regimes.judge_regime: (FAR, 0.0, {64: 1.0}, FAR),
}
MODULES: tuple[ModuleType, ...] = (
    backward, first_step, forward, identities, kernels, limit, post_activation, regimes, two_layer,
)  # fmt: skip


@pytest.mark.parametrize("judge", FAILING, ids=lambda judge: judge.__name__)
def test_what_does_not_hold_was_tried_otherwise(judge: Callable[..., Judged]) -> None:
    judged = judge(*FAILING[judge])
    assert judged.verdict == "does not hold"
    assert judged.tried
    assert all(judged.tried)


def test_every_judge_is_made_to_fail() -> None:
    judges = {value for module in MODULES for name, value in vars(module).items() if name.startswith("judge_")}
    assert judges == set(FAILING)


def test_claims_that_texts_name_exist() -> None:
    """``claim`` or ``claims`` and ids, and words made like the ids of theorems, equations and figures."""
    ids, named = {claim.id for claim in CLAIMS}, set()
    word = r"[a-z]+\d*-[a-z0-9-]+"
    for path in Path(limit.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for listed in re.findall(rf"\bclaims? ({word}(?:(?:, | and |, and ){word})*)", node.value):
                    named |= set(re.findall(word, listed))
                named |= set(
                    re.findall(
                        r"\b(?:(?:theorem|equation|definition)-\d+|(?:corollary|fig)-?\d+-[a-z-]+)\b", node.value
                    )
                )
    assert {"corollary1-first-step", "equation-5", "theorem-1"} <= named <= ids


def test_distances_are_those_of_the_means() -> None:
    noise = torch.randn(400, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, second = 1 + 0.1 * noise[:200], 1 + 0.1 * noise[200:]
    assert distances.distance(first, second).high < 0.02
    apart = distances.distance(first + 0.3, second)
    assert apart.low < 0.3 < apart.high
    assert distances.relative(first - second + 0.3, second).value == pytest.approx(0.3, abs=0.02)


def test_the_formula_of_the_first_step_is_that_of_the_kernels(smoke: Evidence) -> None:
    x = measuring.unit(smoke)
    for L in (4, 64):
        assert first_step.formula(x, L, "relu", 1.0) == pytest.approx(1 + 0.25 / (1 + 0.5 / L), rel=1e-6)


def test_variances_are_those_of_relu() -> None:
    q, P = stream_variances(activation("relu"), torch.ones(()), 8)
    torch.testing.assert_close(q, (1 + 1 / 16) ** torch.arange(9, dtype=torch.float64))
    torch.testing.assert_close(P, q.flip(0))


def test_errors_in_depth_are_against_twice_the_depth(smoke: Evidence) -> None:
    x, depths = measuring.rows(smoke, 2), (2, 8)
    found = errors_in_depth(x, "tanh", 8, 3, depths)
    for index, L in enumerate(depths):
        for end, errors in enumerate(found):
            one, twice = (endpoints(x, "tanh", 8, depth, 3)[end] for depth in (L, 2 * L))
            assert float(errors[index]) == pytest.approx(float((one - twice).square().mean()))


def test_the_law_of_the_forward_pass_has_the_exact_mean(smoke: Evidence) -> None:
    q = covariances(measuring.rows(smoke, 2), "relu", 32, 4, 2000, 0).mean(0)
    start = measuring.rows(smoke, 2).square().mean(1)
    assert q.diagonal().tolist() == pytest.approx((start * (1 + 1 / 8) ** 4).tolist(), rel=0.04)
