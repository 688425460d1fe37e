"""Kernels: exact values, a slow adaptive solver, structure, scikit-learn's own checks, bad
input.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC
from torch import Tensor
from torch.autograd import forward_ad

import nfd
from nfd.core.activations import ACTIVATIONS, activation
from nfd.limits import kernels
from nfd.limits.kernels import KINDS

every_activation = pytest.mark.parametrize(
    "name",
    [
        name if name in ("relu", "tanh") else pytest.param(name, marks=pytest.mark.slow)
        for name in ACTIVATIONS
    ],
)
COSINES = np.linspace(-1, 1, 9)
EXACT = {  # 1.5 of the mathematics: ReLU, T = 1, unit variance
    "nngp": (
        -0.97532098,
        -0.69097349,
        -0.3941477,
        -0.08609351,
        0.23304292,
        0.56375146,
        0.90725405,
        1.26615527,
        1.64872127,
    ),
    "ntk": (
        -2.057021,
        -1.501043,
        -0.884184,
        -0.218152,
        0.495863,
        1.261054,
        2.085873,
        2.990933,
        4.121803,
    ),
    "independent-feedback": (
        -1.950642,
        -1.381947,
        -0.788295,
        -0.172187,
        0.466086,
        1.127503,
        1.814508,
        2.532311,
        3.297443,
    ),
}


def circle() -> tuple[np.ndarray, np.ndarray]:
    """One input and nine others at the cosines, all with |x|^2 / d = 1."""
    root = math.sqrt(2)
    return np.array([[root, 0.0]]), root * np.stack([COSINES, np.sqrt(1 - COSINES**2)], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_relu_has_the_exact_values(kind: str) -> None:
    one, others = circle()
    np.testing.assert_allclose(
        nfd.kernel(one, others, kind=kind)[0], EXACT[kind], rtol=0, atol=1e-6
    )


def adaptive(name: str, kind: str, a: float, b: float, c: float, T: float) -> float:
    """One pair by an adaptive integrator on the Gaussian moments themselves."""
    act = activation(name)

    def rate(_: float, y: np.ndarray) -> list[float]:
        p, q, r, D = (torch.tensor(v, dtype=torch.float64) for v in y)
        r = torch.clamp(r, -(p * q).sqrt(), (p * q).sqrt())
        m = act.moment(p, q, r)
        s = act.slope_moment(p, q, r)
        return [float(act.moment(p, p, p)), float(act.moment(q, q, q)), float(m), float(m + s * D)]

    found = solve_ivp(rate, (0, T), [a, b, c, c], method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    return float(
        {"nngp": found[2], "ntk": found[2] + found[3], "independent-feedback": 2 * found[2]}[kind]
    )


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", ["relu", "erf", pytest.param("gelu", marks=pytest.mark.slow)])
def test_long_horizons_are_as_accurate(name: str, kind: str) -> None:
    """T = 16, the end of the range that fitting searches, for one norm and nearly parallel
    inputs.
    """
    angles = np.array([0.0, 0.03, 1.0, 2.5])
    X = math.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], 1)
    K, bound = nfd.kernel(X, kind=kind, activation=name, horizon=16.0, return_error=True)
    for j in (1, 2):
        expected = adaptive(name, kind, 1.0, 1.0, math.cos(angles[j]), 16.0)
        assert abs(K[0, j] - expected) <= min(bound, 1e-7 if name == "gelu" else 1e-9) * K[0, 0]


def test_what_the_table_cannot_resolve_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfd.limits.kernels._NORMS", (5, 9))
    monkeypatch.setattr("nfd.limits.kernels._MOST_DEGREES", 128)
    monkeypatch.setattr("nfd.limits.kernels._SOLVED", 0)
    monkeypatch.setattr("nfd.limits.kernels._ROUGH", 1.0)
    with pytest.warns(
        RuntimeWarning, match=r"is known to .* not to 1e-09: its table would need more"
    ):
        _, bound = nfd.kernel([[1e-3], [3.0]], activation="erf", horizon=2.345, return_error=True)
    assert bound > 1e-9
    with pytest.raises(ValueError, match=r"hidden variances of .* Scale the inputs"):
        nfd.kernel([[50.0]], activation="tanh")


def norms_apart() -> np.ndarray:
    """Inputs with norms from 1e-6 to 1e3."""
    X = np.random.default_rng(2).normal(size=(5, 4))
    return X / np.linalg.norm(X, axis=1, keepdims=True) * 2 * np.geomspace(1e-6, 1e3, 5)[:, None]


@pytest.fixture
def solved_pairs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For how many pairs the equations are solved, call by call."""
    counts: list[int] = []
    solve = kernels.solve_pairs

    def counted(
        act: Any,
        kind: str,
        norms: Tensor,
        first: Tensor,
        second: Tensor,
        cosines: Tensor,
        *more: Any,
    ) -> Any:
        counts.append((cosines * norms[first]).numel())
        return solve(act, kind, norms, first, second, cosines, *more)

    monkeypatch.setattr(kernels, "solve_pairs", counted)
    kernels.needed_nodes.cache_clear()
    kernels.table.cache_clear()
    return counts


@pytest.mark.parametrize(
    ("name", "kind", "horizon", "X"),
    [
        ("erf", "ntk", 100.0, np.array([[1.0, 1.0], [1.3, 1.31], [0.5, -1.0]])),
        pytest.param("gelu", "ntk", 1.0, norms_apart(), marks=pytest.mark.slow),
    ],
    ids=["erf, T = 100", "gelu, norms from 1e-6 to 1e3"],
)
def test_pairs_are_solved_where_a_table_would_not_do(
    solved_pairs: list[int], name: str, kind: str, horizon: float, X: np.ndarray
) -> None:
    K, error = nfd.kernel(X, kind=kind, activation=name, horizon=horizon, return_error=True)
    assert error <= 1e-9
    # The table would have two million. Slices of 65 norms have 19,000 and show that it would not
    # do.
    assert sum(solved_pairs) < (30_000 if name == "gelu" else 2000)
    C = X @ X.T / X.shape[1]
    for i, j in ((0, 1), (1, 2), (2, 2)):
        expected = adaptive(name, kind, C[i, i], C[j, j], C[i, j], horizon)
        # the solver's tolerance, 1e-11, grows
        assert abs(K[i, j] - expected) <= 2e-9 * math.sqrt(K[i, i] * K[j, j])
    k = nfd.InfiniteDepthKernel(kind=kind, activation=name, horizon=horizon)
    np.testing.assert_allclose(k.diag(X), np.diag(K), rtol=1e-9)
    np.testing.assert_allclose(
        nfd.kernel(X[:1], X, kind=kind, activation=name, horizon=horizon)[0], K[0], rtol=2e-9
    )
    _, gradient = k(X, eval_gradient=True)
    up, down = (k.clone_with_theta(k.theta + step)(X) for step in (1e-4, -1e-4))
    np.testing.assert_allclose(gradient[:, :, 0], (up - down) / 2e-4, rtol=1e-5)


def test_parallel_inputs_of_relu_are_parallel_at_any_norm(solved_pairs: list[int]) -> None:
    """No table resolves T = 600; at 400 rounding decides. Between unequal norms rounding, which the
    slope of relu sees, makes steps short.
    """
    X = np.array([[0.37, 0.0], [1.7, 0.0], [0.0, 0.9]])
    K = nfd.kernel(X, kind="ntk", horizon=600.0)
    assert min(solved_pairs) < 10
    size = np.sqrt(np.diag(K))
    assert K[0, 1] == pytest.approx(size[0] * size[1], rel=1e-9)
    assert K[0, 2] < 0.9 * size[0] * size[2]


def test_more_pairs_than_can_be_solved_are_refused_before_they_are(
    solved_pairs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_SOLVED", 16)
    X = np.random.default_rng(0).normal(size=(6, 3))
    message = (
        r"ntk kernel of erf at horizon 100 for norms from .* varies too fast"
        r".*Of 21 pairs.*blocks of at most 4 rows"
    )
    with pytest.raises(ValueError, match=message):
        nfd.kernel(X, kind="ntk", activation="erf", horizon=100.0)
    assert sum(solved_pairs) < 2000
    assert nfd.kernel(X[:4], X[:4], kind="ntk", activation="erf", horizon=100.0).shape == (4, 4)
    assert nfd.kernel(X, kind="ntk", activation="erf", horizon=1.0).shape == (6, 6)  # by a table


def test_equations_that_change_too_fast_are_given_up_after_so_many_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_MOST_EVALUATIONS", 60)
    with pytest.raises(
        ValueError, match=r"change too fast to be followed to T=7\.5: 60 evaluations do not suffice"
    ):
        nfd.kernel([[1.0]], activation="gelu", horizon=7.5)
    with pytest.raises(
        ValueError, match=r"depth must be at most 60, .* got 61\. Take depth=math\.inf"
    ):
        nfd.kernel([[1.0]], depth=61)
    assert nfd.kernel([[1.0]], depth=60).shape == (1, 1)


def test_it_is_estimated_early_how_many_evaluations_there_will_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "_LOOKED", 90)  # the first steps are shorter
    equations = kernels.Equations("gelu", "nngp", 20.0, math.inf, 1.0, 1.0)
    one = torch.ones(1, dtype=torch.float64)
    taken = equations.solved(one, one).effort
    monkeypatch.setattr(kernels, "_MOST_EVALUATIONS", 200)
    with pytest.raises(
        ValueError, match=r"200 evaluations do not suffice, about [\d,]+ would"
    ) as refusal:
        equations.solved(one, one)
    numbers = re.findall(r"about ([\d,]+) would", str(refusal.value))
    # steps vary by less than that
    assert int(numbers[0].replace(",", "")) == pytest.approx(taken, rel=0.3)
    monkeypatch.setattr(kernels, "_MOST_EVALUATIONS", 2 * int(taken))
    assert equations.solved(one, one).effort == taken


def test_too_much_work_is_refused_before_it_is_done(
    solved_pairs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.array([[0.5, 0.3], [0.6, -2.0], [0.1, 0.2], [1.0, 1.1]])
    monkeypatch.setattr(kernels, "_FEW", 0)
    expected = nfd.kernel(X, activation="erf", horizon=1.1)
    by_table = sum(solved_pairs)
    kernels.needed_nodes.cache_clear()
    solved_pairs.clear()
    monkeypatch.setattr(kernels, "_WORK", 5e5)
    # ten pairs, one by one
    assert np.allclose(nfd.kernel(X, activation="erf", horizon=1.1), expected, rtol=1e-8)
    kernels.needed_nodes.cache_clear()
    solved_pairs.clear()
    monkeypatch.setattr(kernels, "_SOLVED", 9)
    message = (
        r"too much work for a table: .* evaluations each, about .* seconds\."
        r" Of 10 pairs of inputs up to 9 are .*; all would take about"
    )
    with pytest.raises(ValueError, match=message):
        nfd.kernel(X, activation="erf", horizon=1.1)
    assert sum(solved_pairs) < by_table / 2


def test_gelu_of_long_horizons_takes_as_few_evaluations_as_relu() -> None:
    """Rounding of nearly parallel inputs of large variance once made steps short: 12,000
    evaluations and more.
    """
    norms = torch.tensor([0.55, 1.7], dtype=torch.float64)
    cosines = torch.cos(torch.linspace(0, math.pi, 5, dtype=torch.float64))
    long, relu = (
        kernels.Equations(name, "nngp", 60.0, math.inf, 0.55, 1.7).solved(norms, cosines)
        for name in ("gelu", "relu")
    )
    assert long.effort < 1.2 * relu.effort


@pytest.mark.parametrize("angle", [1e-9, 1e-6, 1e-3, 1.0])
def test_gelu_is_relu_where_variances_are_large(angle: float) -> None:
    a = torch.tensor(1e24, dtype=torch.float64)
    c = a * math.cos(angle)
    ratio = float(activation("gelu").moment(a, a, c) / activation("relu").moment(a, a, c))
    assert ratio == pytest.approx(1, abs=1e-14)  # rounding; they differ by 1e-24


def test_gelu_with_norms_apart_takes_few_evaluations() -> None:
    """Opposite inputs of large norm see a kink, as with relu: 430 evaluations in place of 190."""
    norms = torch.tensor([1e-6, 1e3], dtype=torch.float64)
    cosines = torch.tensor([1.0, 0.3, -1.0], dtype=torch.float64)
    wide = kernels.Equations("gelu", "ntk", 1.0, math.inf, 1e-6, 1e3).solved(norms, cosines)
    assert wide.effort < 250
    exact = adaptive("gelu", "ntk", 1e6, 1e6, 0.3e6, 1.0)
    assert (
        abs(float(wide.values[1, 1, 1] * wide.sizes[1] ** 2) - exact)
        <= 1e-9 * float(wide.sizes[1]) ** 2
    )


def test_tanh_of_large_norms_is_refused_before_its_series_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    series = []
    functions = kernels.hermite_functions
    monkeypatch.setattr(
        kernels, "hermite_functions", lambda *of: series.append(of) or functions(*of)
    )
    for X, horizon in ((norms_apart(), 1.0), (np.eye(2), 100.0)):
        with pytest.raises(
            ValueError,
            match=r"hidden variances of .*, where its Hermite series needs more than 2048",
        ):
            nfd.kernel(X, activation="tanh", horizon=horizon)
    assert not series
    nfd.kernel([[1.0]], activation="tanh", horizon=1.3)
    assert series


# ---- what inputs may be

KERNEL_FUNCTIONS = {
    "ensemble": lambda X: nfd.kernel_ensemble(X, [1.0, -1.0], np.ones((1, 3)), time=1.0).mean,
    "scikit-learn": lambda X: nfd.InfiniteDepthKernel()(X),
    "scikit-learn, two": lambda X: nfd.InfiniteDepthKernel()(np.ones((2, 3)), X),
    "diagonal": lambda X: nfd.InfiniteDepthKernel().diag(X),
    "particles": lambda X: nfd.solve_nfd(X, [1.0, -1.0], grid=2, particles=8, replicates=2).outputs,
    "targets": lambda X: (
        nfd.solve_nfd(np.eye(2), X[:, 0], grid=2, particles=8, replicates=2).outputs
    ),
}


@pytest.mark.parametrize("of", KERNEL_FUNCTIONS.values(), ids=KERNEL_FUNCTIONS)
def test_inputs_with_a_gradient_are_refused_unless_nobody_wants_it(of: Any) -> None:
    X = torch.tensor([[1.0, 2.0, 0.5], [0.3, -1.0, 2.0]])
    expected = torch.as_tensor(of(X))
    wanted = X.clone().requires_grad_()
    for carries in (wanted, 2 * wanted / 2):
        with pytest.raises(
            ValueError, match=r"carries a gradient, .*\.detach\(\), or call it under torch\.no_grad"
        ):
            of(carries)
        with torch.no_grad():
            assert torch.equal(torch.as_tensor(of(carries)), expected)
    assert torch.equal(torch.as_tensor(of(wanted.detach())), expected)
    with torch.inference_mode():
        assert torch.equal(torch.as_tensor(of(X.clone())), expected)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="carries a gradient"):
        of(forward_ad.make_dual(X, torch.ones_like(X)))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool]
)
def test_inputs_of_any_real_type_have_the_kernel_in_double_precision(dtype: torch.dtype) -> None:
    X = torch.tensor([[1, 0, 1], [0, 1, 1]])
    K = nfd.kernel(X.to(dtype))
    assert K.dtype == torch.float64
    assert torch.equal(K, nfd.kernel(X.double()))


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@every_activation
def test_tables_agree_with_an_adaptive_solver(name: str, kind: str) -> None:
    g = np.random.default_rng(3)
    X = g.normal(size=(7, 5)) * g.uniform(0.3, 1.5, (7, 1))
    T = 0.4 if name == "tanh" else 1.7
    K, bound = nfd.kernel(X, kind=kind, activation=name, horizon=T, return_error=True)
    C = X @ X.T / 5
    accuracy = 1e-7 if name in ("tanh", "gelu") else 1e-9
    for i, j in ((0, 1),) if name == "tanh" else ((0, 1), (2, 2), (3, 6)):
        expected = adaptive(name, kind, C[i, i], C[j, j], C[i, j], T)
        scale = math.sqrt(K[i, i] * K[j, j])
        assert abs(K[i, j] - expected) <= bound * scale
        assert abs(K[i, j] - expected) <= accuracy * scale


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_finite_depths_converge_to_infinite_depth_like_1_over_L(name: str) -> None:  # noqa: N802
    one, others = circle()
    for kind in KINDS:
        limit = nfd.kernel(one, others, kind=kind, activation=name)
        errors = [
            np.abs(nfd.kernel(one, others, kind=kind, activation=name, depth=L) - limit).max()
            for L in (32, 64)
        ]
        assert 1.8 < errors[0] / errors[1] < 2.2


@every_activation
def test_degenerate_inputs(name: str) -> None:
    """Zero rows have kernel zero; repeated rows repeat; correlations with oneself are exactly one;
    PSD.
    """
    g = np.random.default_rng(1)
    X = g.normal(size=(6, 4))
    X[2] = 0
    X[4] = X[1]
    for kind in KINDS:
        K = nfd.kernel(X, kind=kind, activation=name)
        assert (K[2] == 0).all()
        assert (K[:, 2] == 0).all()
        np.testing.assert_array_equal(K, K.T)
        np.testing.assert_allclose(K[4], K[1], rtol=1e-9, atol=1e-9)
        assert np.linalg.eigvalsh(K).min() > -1e-8
        np.testing.assert_allclose(
            np.diag(K), np.diag(nfd.kernel(X, X, kind=kind, activation=name)), rtol=1e-9, atol=1e-12
        )


@every_activation
def test_the_derivative_in_the_horizon_is_that_of_the_kernel(name: str) -> None:
    X = np.random.default_rng(4).normal(size=(5, 3))
    step = 1e-4
    for kind in KINDS:
        k = nfd.InfiniteDepthKernel(kind=kind, activation=name, horizon=0.8)
        _, gradient = k(X, eval_gradient=True)
        up, down = (k.clone_with_theta(k.theta + s)(X) for s in (step, -step))
        np.testing.assert_allclose(
            gradient[:, :, 0], (up - down) / (2 * step), rtol=1e-5, atol=1e-6
        )


def test_it_is_a_kernel_of_scikit_learn() -> None:
    k = nfd.InfiniteDepthKernel(
        kind="ntk", activation="erf", horizon=2.0, horizon_bounds=(0.1, 4.0)
    )
    assert clone(k).get_params() == k.get_params()
    np.testing.assert_allclose(k.theta, [math.log(2.0)])
    np.testing.assert_allclose(np.exp(k.bounds), [[0.1, 4.0]])
    assert not k.is_stationary()
    X = np.random.default_rng(5).normal(size=(9, 4))
    np.testing.assert_allclose(k.diag(X), np.diag(k(X)), rtol=1e-9)
    fixed = nfd.InfiniteDepthKernel(horizon_bounds="fixed")
    assert fixed(X, eval_gradient=True)[1].shape == (9, 9, 0)
    assert "horizon=2" in repr(k)
    assert (k + WhiteKernel())(X).shape == (9, 9)


def test_it_fits_in_gaussian_processes_ridge_and_svc() -> None:
    digits = load_digits()
    X = digits.data[:200] / 8 - 1
    y = digits.target[:200]
    noise = WhiteKernel(0.1, noise_level_bounds="fixed")
    kernel = (
        ConstantKernel(1.0) * nfd.InfiniteDepthKernel(horizon=0.5, horizon_bounds=(0.01, 50))
        + noise
    )
    process = GaussianProcessRegressor(kernel, normalize_y=True).fit(
        X[:100], (y[:100] % 2).astype(float)
    )
    assert process.kernel_.get_params()["k1__k2__horizon"] != 0.5
    assert process.log_marginal_likelihood_value_ > process.log_marginal_likelihood(kernel.theta)
    assert SVC(kernel=nfd.InfiniteDepthKernel()).fit(X[:150], y[:150]).score(X[150:], y[150:]) > 0.8
    ridge = KernelRidge(kernel=nfd.InfiniteDepthKernel(kind="ntk"), alpha=0.1).fit(
        X[:150], np.eye(10)[y[:150]]
    )
    assert (ridge.predict(X[150:]).argmax(1) == y[150:]).mean() > 0.8


BAD: list[tuple[dict[str, Any], str]] = [
    ({"horizon": 0.0}, "horizon must be greater than 0"),
    ({"kind": "nngpp"}, "kind must be one of .* Did you mean 'nngp'"),
    ({"activation": "rellu"}, "Did you mean 'relu'"),
    ({"depth": 0}, "depth must be at least 1"),
    ({"X2": np.ones((2, 4))}, "X2 must have 3 features, as X has; got 4"),
    ({"X": np.ones(3)}, "X must be .N, d. with d of at least 1"),
    ({"X": [[1e160]]}, "norms below 1e\\+150"),
    ({"X": torch.ones(2, 2, dtype=torch.complex64)}, "X must be real"),
    (
        {"X": [torch.ones(2, requires_grad=True)]},
        r"X must be an array of numbers; .*Use tensor\.detach",
    ),
    (
        {"X": torch.ones(2, 3), "X2": torch.ones(2, 3, device="meta")},
        "X2 must be a dense tensor with numbers in it",
    ),
    ({"X": np.array([[1.0, np.nan, 0.0]])}, "X must be finite; entry .0, 1. is nan"),
    ({"X": np.ma.masked_less(np.array([[1.0, 2.0, 0.0]]), 1)}, "X has masked entries.*fill them"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"X": np.ones((2, 3))} | change
    with pytest.raises((ValueError, TypeError), match=message):
        nfd.kernel(arguments.pop("X"), **arguments)
