"""Kernels: exact values, a slow adaptive solver, structure, scikit-learn's own checks, bad input."""

from __future__ import annotations

import math
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

import nfd
from nfd.core.activations import ACTIVATIONS, activation
from nfd.limits.kernels import KINDS

every_activation = pytest.mark.parametrize(
    "name", [name if name in ("relu", "tanh") else pytest.param(name, marks=pytest.mark.slow) for name in ACTIVATIONS]
)
COSINES = np.linspace(-1, 1, 9)
EXACT = {  # 1.5 of the mathematics: ReLU, T = 1, unit variance
    "nngp": (
        -0.97532098, -0.69097349, -0.3941477, -0.08609351, 0.23304292, 0.56375146, 0.90725405, 1.26615527, 1.64872127,
    ),
    "ntk": (-2.057021, -1.501043, -0.884184, -0.218152, 0.495863, 1.261054, 2.085873, 2.990933, 4.121803),
    "independent-feedback": (
        -1.950642, -1.381947, -0.788295, -0.172187, 0.466086, 1.127503, 1.814508, 2.532311, 3.297443,
    ),
}  # fmt: skip


def circle() -> tuple[np.ndarray, np.ndarray]:
    """One input and nine others at the cosines, all with |x|^2 / d = 1."""
    root = math.sqrt(2)
    return np.array([[root, 0.0]]), root * np.stack([COSINES, np.sqrt(1 - COSINES**2)], 1)


@pytest.mark.parametrize("kind", KINDS)
def test_relu_has_the_exact_values(kind: str) -> None:
    one, others = circle()
    np.testing.assert_allclose(nfd.kernel(one, others, kind=kind)[0], EXACT[kind], rtol=0, atol=1e-6)


def adaptive(name: str, kind: str, a: float, b: float, c: float, T: float) -> float:
    """One pair by an adaptive integrator on the Gaussian moments themselves."""
    act = activation(name)

    def rate(_: float, y: np.ndarray) -> list[float]:
        p, q, r, D = (torch.tensor(v, dtype=torch.float64) for v in y)
        r = torch.clamp(r, -(p * q).sqrt(), (p * q).sqrt())
        m, s = act.moment(p, q, r), act.slope_moment(p, q, r)
        return [float(act.moment(p, p, p)), float(act.moment(q, q, q)), float(m), float(m + s * D)]

    found = solve_ivp(rate, (0, T), [a, b, c, c], method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    return float({"nngp": found[2], "ntk": found[2] + found[3], "independent-feedback": 2 * found[2]}[kind])


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", ["relu", "erf", pytest.param("gelu", marks=pytest.mark.slow)])
def test_long_horizons_are_as_accurate(name: str, kind: str) -> None:
    """T = 16, the end of the range that fitting searches, for one norm and nearly parallel inputs."""
    angles = np.array([0.0, 0.03, 1.0, 2.5])
    X = math.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], 1)
    K, bound = nfd.kernel(X, kind=kind, activation=name, horizon=16.0, return_error=True)
    for j in (1, 2):
        expected = adaptive(name, kind, 1.0, 1.0, math.cos(angles[j]), 16.0)
        assert abs(K[0, j] - expected) <= min(bound, 1e-7 if name == "gelu" else 1e-9) * K[0, 0]


def test_what_the_table_cannot_resolve_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfd.limits.kernels._NORMS", (5, 9))
    monkeypatch.setattr("nfd.limits.kernels._MOST_DEGREES", 128)
    with pytest.warns(RuntimeWarning, match=r"is known to .* not to 1e-09: its table would need more"):
        _, bound = nfd.kernel([[1e-3], [3.0]], activation="erf", horizon=2.345, return_error=True)
    assert bound > 1e-9
    with pytest.raises(ValueError, match=r"hidden variances of .* Scale the inputs"):
        nfd.kernel([[50.0]], activation="tanh")


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
        errors = [np.abs(nfd.kernel(one, others, kind=kind, activation=name, depth=L) - limit).max() for L in (32, 64)]
        assert 1.8 < errors[0] / errors[1] < 2.2


@every_activation
def test_degenerate_inputs(name: str) -> None:
    """Zero rows have kernel zero; repeated rows repeat; correlations with oneself are exactly one; PSD."""
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
    X, step = np.random.default_rng(4).normal(size=(5, 3)), 1e-4
    for kind in KINDS:
        k = nfd.InfiniteDepthKernel(kind=kind, activation=name, horizon=0.8)
        _, gradient = k(X, eval_gradient=True)
        up, down = (k.clone_with_theta(k.theta + s)(X) for s in (step, -step))
        np.testing.assert_allclose(gradient[:, :, 0], (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


def test_it_is_a_kernel_of_scikit_learn() -> None:
    k = nfd.InfiniteDepthKernel(kind="ntk", activation="erf", horizon=2.0, horizon_bounds=(0.1, 4.0))
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
    X, y = digits.data[:200] / 8 - 1, digits.target[:200]
    noise = WhiteKernel(0.1, noise_level_bounds="fixed")
    kernel = ConstantKernel(1.0) * nfd.InfiniteDepthKernel(horizon=0.5, horizon_bounds=(0.01, 50)) + noise
    process = GaussianProcessRegressor(kernel, normalize_y=True).fit(X[:100], (y[:100] % 2).astype(float))
    assert process.kernel_.get_params()["k1__k2__horizon"] != 0.5
    assert process.log_marginal_likelihood_value_ > process.log_marginal_likelihood(kernel.theta)
    assert SVC(kernel=nfd.InfiniteDepthKernel()).fit(X[:150], y[:150]).score(X[150:], y[150:]) > 0.8
    ridge = KernelRidge(kernel=nfd.InfiniteDepthKernel(kind="ntk"), alpha=0.1).fit(X[:150], np.eye(10)[y[:150]])
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
    ({"X": [torch.ones(2, requires_grad=True)]}, r"X must be an array of numbers; .*Use tensor\.detach"),
    ({"X": torch.ones(2, 3), "X2": torch.ones(2, 3, device="meta")}, "X2 must be a dense tensor with numbers in it"),
    ({"X": np.array([[1.0, np.nan, 0.0]])}, "X must be finite; entry .0, 1. is nan"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"X": np.ones((2, 3))} | change
    with pytest.raises((ValueError, TypeError), match=message):
        nfd.kernel(arguments.pop("X"), **arguments)
