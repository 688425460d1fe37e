"""Activations against independent quadrature, random streams and losses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from nfd.core.activations import ACTIVATIONS, activation, gaussian_mean
from nfd.core.checks import check_depth
from nfd.core.estimates import Interval, combined, mean, satterthwaite, squared_distances, student
from nfd.core.random import Increment, derive, generator
from nfd.core.tables import LogClock, as_text, bar, table_of
from nfd.runs.losses import cross_entropy, loss_of

COVARIANCES = [(1.3, 0.7, -0.4), (1.0, 1.0, 0.95), (4.0, 0.5, 0.1), (0.3, 2.0, -0.7)]


def reference(f, a: float, b: float, c: float) -> float:
    """E[f(h) f(hbar)] by adaptive integration, split where the integrand has a kink."""
    slope = c / math.sqrt(a)
    spread = math.sqrt(b - c * c / a)

    def value(x: float) -> float:
        return float(f(torch.tensor(x, dtype=torch.float64)))

    def density(z: float) -> float:
        return math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)

    nodes, weights = np.polynomial.legendre.leggauss(60)

    def inner(z: float) -> float:
        kink = min(max(-slope * z / spread, -9.0), 9.0)
        total = 0.0
        for low, high in ((-9.0, kink), (kink, 9.0)):
            t = 0.5 * (high - low) * nodes + 0.5 * (high + low)
            y = torch.from_numpy(slope * z + spread * t)
            total += float((f(y).numpy() * np.exp(-0.5 * t * t)) @ weights) * 0.5 * (high - low)
        return total / math.sqrt(2 * math.pi)

    def outer(z: float) -> float:
        return value(math.sqrt(a) * z) * inner(z) * density(z)

    return sum(
        integrate.quad(outer, *ends, epsabs=1e-12, epsrel=1e-11, limit=200)[0]
        for ends in ((-9, 0), (0, 9))
    )


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_moments_match_adaptive_integration(
    name: str, covariance: tuple[float, float, float]
) -> None:
    act = activation(name)
    a, b, c = (torch.tensor(v, dtype=torch.float64) for v in covariance)
    assert float(act.moment(a, b, c)) == pytest.approx(reference(act.phi, *covariance), abs=1e-10)
    assert float(act.slope_moment(a, b, c)) == pytest.approx(
        reference(act.slope, *covariance), abs=1e-10
    )


@pytest.mark.parametrize("variance", [0.01, 1.0, 4.0, 30.0])
def test_the_trapezoidal_rule_is_exact_to_rounding(variance: float) -> None:
    def f(z: torch.Tensor) -> torch.Tensor:
        return torch.tanh(math.sqrt(variance) * z) ** 2

    z = torch.linspace(-12, 12, 400001, dtype=torch.float64)
    fine = float((f(z) * torch.exp(-0.5 * z * z)).sum() * 24 / 400000 / math.sqrt(2 * math.pi))
    assert float(gaussian_mean(f, variance)) == pytest.approx(fine, abs=1e-12)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_slope_is_the_derivative(name: str) -> None:
    act = activation(name)
    x = torch.linspace(-3, 3, 50, dtype=torch.float64).requires_grad_()
    (grad,) = torch.autograd.grad(act.phi(x).sum(), x)
    torch.testing.assert_close(act.slope(x.detach()), grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_hermite_coefficients_give_the_moment_by_mehlers_formula(name: str) -> None:
    act = activation(name)
    variance = 1.7
    rho = 0.6
    squares = act.hermite(60, variance) ** 2 * rho ** torch.arange(61, dtype=torch.float64)
    v = torch.tensor(variance, dtype=torch.float64)
    assert float(squares.sum()) == pytest.approx(float(act.moment(v, v, rho * v)), abs=1e-9)


def test_streams_depend_on_seed_and_names_only() -> None:
    assert torch.equal(
        torch.randn(5, generator=generator(3, "a", 1)),
        torch.randn(5, generator=generator(3, "a", 1)),
    )
    seeds = {
        derive(seed, *names)
        for seed in range(20)
        for names in (("a",), ("b",), ("a", 1), ("a", "1"), ("a1",))
    }
    assert len(seeds) == 100


@pytest.mark.parametrize("whole", [1, 4])
@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6, 8, 12])
def test_increments_of_a_path_are_orthogonal_sums_of_fresh_normals(depth: int, whole: int) -> None:
    """The layers of one network are i.i.d. N(0, 1) exactly: their weights on fresh normals are
    orthonormal rows.
    """
    terms = [
        {seed: weight for weight, seed in Increment(7, i, depth, whole).terms} for i in range(depth)
    ]
    seeds = sorted({seed for term in terms for seed in term})
    M = torch.tensor(
        [[term.get(seed, 0.0) for seed in seeds] for term in terms], dtype=torch.float64
    )
    torch.testing.assert_close(M @ M.T, torch.eye(depth, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("whole", [1, 2, 4, 12])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_halved_increments_add_up(depth: int, whole: int) -> None:
    def z(index: int, count: int) -> torch.Tensor:
        return Increment(7, index, count, whole).normal_(
            torch.empty(50, dtype=torch.float64), "init"
        )

    for i in range(depth):
        halves = (z(2 * i, 2 * depth) + z(2 * i + 1, 2 * depth)) / math.sqrt(2)
        torch.testing.assert_close(halves, z(i, depth), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("whole", "most"), [(1, [2, 3, 4, 5]), (8, [4, 2, 1, 2]), (3, [2, 3, 4, 5])]
)
def test_an_increment_is_one_draw_where_its_path_begins(whole: int, most: list[int]) -> None:
    """Coarser ones are sums of draws, finer ones are halved; another odd factor is another path."""
    terms = [
        [len(Increment(7, i, depth, whole).terms) for i in range(depth)] for depth in (2, 4, 8, 16)
    ]
    assert [max(lengths) for lengths in terms] == [min(lengths) for lengths in terms] == most


def test_paths_that_begin_at_other_cuts_are_independent() -> None:
    draws = [
        {seed for _, seed in Increment(7, i, whole, whole).terms}
        for whole in (1, 2, 4, 3)
        for i in range(whole)
    ]
    assert len(set.union(*draws)) == len(draws)


@pytest.mark.parametrize("notebook", [True, False])
def test_tables_are_text_in_notebooks_too(monkeypatch: pytest.MonkeyPatch, notebook: bool) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: notebook)
    table = table_of("name", "[b]value")
    table.add_row("a", "[red]1")
    assert as_text(table, 40).split() == ["name", "[b]value", "─" * 15, "a", "[red]1"]


def test_the_exponential_of_an_interval_keeps_its_limits_and_carries_its_error() -> None:
    rng = np.random.default_rng(0)
    found = student(0.7, 0.01, 9).exp()
    drawn = np.exp(rng.normal(0.7, 0.01, 200_000))
    assert (found.value, found.low) == (math.exp(0.7), math.exp(student(0.7, 0.01, 9).low))
    # the error of 200,000 draws is 0.2 %
    assert found.stderr == pytest.approx(drawn.std(), rel=0.02)
    assert student(2.0, 0.5, 9).scaled(3.0) == Interval(
        6.0, 1.5, 3 * student(2.0, 0.5, 9).low, 3 * student(2.0, 0.5, 9).high
    )


def test_variances_add_with_the_degrees_of_freedom_of_satterthwaite() -> None:
    assert satterthwaite([(2.0, 5)]) == (2.0, 5.0)
    assert satterthwaite([(1.0, 4), (1.0, 4)]) == (2.0, 8.0)  # equal parts: all of them
    assert satterthwaite([(0.0, 3)]) == (0.0, math.inf)
    assert combined(1.0, [(0.0, 3)]) == Interval(1.0, 0.0, 1.0, 1.0)
    limit = torch.tensor([1.0, 3.0])[:, None, None]  # 2, and an error of 1
    assert squared_distances(torch.full((1, 1, 1), 5.0), limit).item() == 3**2 - 1
    samples = torch.tensor([1.0, 2.0, 4.0, 7.0], dtype=torch.float64)
    assert mean(samples).low == pytest.approx(
        stats.ttest_1samp(samples, 0).confidence_interval(0.95).low, rel=1e-12
    )


@pytest.mark.parametrize(
    "infinity",
    [math.inf, np.float64("inf"), np.float32("inf"), np.array(math.inf), torch.tensor(math.inf)],
)
def test_every_infinity_is_an_infinite_depth(infinity: object) -> None:
    assert check_depth(infinity) == math.inf


@pytest.mark.parametrize("wrong", [-math.inf, math.nan, 2.0, np.float32(2), "inf", None])
def test_what_is_no_number_of_blocks_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError, match="depth must be a whole number"):
        check_depth(wrong)


# ---- losses


def test_losses_are_the_stated_ones() -> None:
    assert float(loss_of("mse")(torch.tensor([[3.0], [0.0]]), torch.tensor([1.0, 0.0]))) == 1.0
    assert float(cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3]))) == pytest.approx(
        math.log(4)
    )


def test_the_squared_error_of_anyone_s_model_broadcasts_nothing() -> None:
    """Every output has its target; where PyTorch would give all outputs all targets, the shapes are
    refused.
    """
    value = loss_of("mse")
    outputs = torch.randn(4, 1)
    targets = torch.randn(4)
    expected = 0.5 * (outputs[:, 0] - targets).square().mean()
    for out, y in ((outputs, targets), (outputs[:, 0], targets), (outputs, targets[:, None])):
        torch.testing.assert_close(value(out, y), expected)
    whole = torch.randn(4, 3)
    torch.testing.assert_close(value(whole, whole + 2), torch.tensor(2.0))
    for out, y in (
        (outputs, targets[:1]),
        (outputs.mean(0), targets),
        (whole, targets),
        (outputs.mT, targets),
    ):
        with pytest.raises(ValueError, match="needs outputs"):
            value(out, y)


# ---- progress in a log


@pytest.mark.parametrize(
    ("seconds", "lines"),
    [
        (1.0, []),
        (25.0, ["3 of 10, about 3 min left", "6 of 10, about 2 min left"]),
        (70.0, ["1 of 10, about 10 min left", "2 of 10, about 9 min left"]),
    ],
)
def test_a_log_gets_a_line_a_minute(
    seconds: float,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ten steps of so many seconds each; the last ends the work and has no line."""
    now = [0.0]
    monkeypatch.setattr("nfd.core.tables.time.monotonic", lambda: now[0])
    for enabled in (True, False):
        with bar(10, "transfer", enabled, LogClock()) as advance:
            for step in range(1, 11):
                now[0] += seconds
                advance(1, f"{step} of 10")
        said = capsys.readouterr()
        assert said.out == ""
        printed = said.err.splitlines()
        assert printed[:2] == [f"nfd: {line}" for line in lines if enabled]
