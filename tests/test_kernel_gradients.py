"""Kernels with gradients, variances, any activation, and ensembles, against independent recursions
and integrations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch import Tensor

import nfd
from calibration.kernels import (
    NUMBERS,
    PAGE,
    VARIANCES,
    Networks,
    Shape,
    ensemble_rows,
    integrated,
    integrated_gradient,
    tables,
)
from nfd.core.estimates import stderr
from nfd.limits import kernels
from nfd.limits.functions import KERNEL_ACTIVATIONS

NEW = ("abs", "leaky-relu", "sin", "cos")


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def recursion(x: Tensor, y: Tensor, name: str, kind: str, depth: int, T: float) -> Tensor:
    """The kernel of two inputs by the layers of a finite network."""
    act = KERNEL_ACTIVATIONS[name]
    a, b, C = (u @ v / len(x) for u, v in ((x, x), (y, y), (x, y)))
    D = C
    tau = T / depth
    for _ in range(depth):
        m = act.moment(a, b, C)
        D = D + tau * (m + act.slope_moment(a, b, C) * D)
        C = C + tau * m
        a, b = a + tau * act.moment(a, a, a), b + tau * act.moment(b, b, b)
    return C + D if kind == "ntk" else C


@pytest.mark.parametrize("inputs", [3, 30], ids=["pairs", "table"])
@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", KERNEL_ACTIVATIONS)
def test_gradients_are_those_of_an_independent_recursion(name: str, kind: str, inputs: int) -> None:
    X, Y = normal(inputs, 4).requires_grad_(), normal(inputs, 4, seed=1).requires_grad_()
    K = nfd.kernel(X, Y, kind=kind, activation=name, depth=5, horizon=0.7)
    assert float(K[0, 1].detach()) == pytest.approx(
        float(recursion(X[0].detach(), Y[1].detach(), name, kind, 5, 0.7)), rel=1e-8
    )
    in_x, in_y = torch.autograd.grad(K[0, 1], (X, Y))
    x, y = X.detach()[0], Y.detach()[1]
    step = 1e-4 * torch.eye(4, dtype=torch.float64)[2]

    def slope(move: Callable[[float], Tensor]) -> float:
        # Fourth order: 1e-16 of its own, and 1e-12 of rounding.
        return float(8 * (move(1) - move(-1)) - (move(2) - move(-2))) / 12e-4

    of_x = slope(lambda k: recursion(x + k * step, y, name, kind, 5, 0.7))
    of_y = slope(lambda k: recursion(x, y + k * step, name, kind, 5, 0.7))
    assert float(in_x[0, 2]) == pytest.approx(of_x, abs=1e-7)
    assert float(in_y[1, 2]) == pytest.approx(of_y, abs=1e-7)
    assert abs(of_x) > 1e-4  # a gradient of zero would not pass


@pytest.mark.parametrize("inputs", [3, 30], ids=["pairs", "table"])
@pytest.mark.parametrize("kind", ["nngp", "ntk"])
@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_gradients_at_infinite_depth_are_those_of_an_integration(
    name: str, kind: str, inputs: int
) -> None:
    X, Y = normal(inputs, 3).requires_grad_(), normal(inputs, 3, seed=1)
    K = nfd.kernel(X, Y, kind=kind, activation=name, horizon=1.5)
    (gradient,) = torch.autograd.grad(K[0, 1], X)
    x, y = X.detach()[0].numpy(), Y[1].numpy()
    assert float(K[0, 1].detach()) == pytest.approx(integrated(x, y, name, kind, 1.5), abs=1e-8)
    exact = integrated_gradient(x, y, name, kind, 1.5)
    np.testing.assert_allclose(gradient[0].numpy(), exact, atol=1e-7)
    assert np.abs(exact).max() > 0.1


def test_gradients_at_repeated_and_opposite_inputs_and_none_at_zero() -> None:
    x = normal(1, 3)
    X = torch.cat([x, x, -x]).requires_grad_()
    K = nfd.kernel(X, kind="nngp")
    (gradient,) = torch.autograd.grad(K[0, 1], X)
    # K(x, x) = e^(T/2) |x|^2 / d, of which each argument has half of the gradient.
    torch.testing.assert_close(gradient[:1], math.exp(0.5) * x / 3, rtol=1e-8, atol=1e-9)
    (total,) = torch.autograd.grad(nfd.kernel(X, kind="ntk").sum(), X)
    assert bool(total.isfinite().all())
    zero = torch.tensor([[1.0], [0.0]])
    with pytest.raises(ValueError, match=r"X has an input of zero norm, row 1, .*bias_variance"):
        nfd.kernel(zero.clone().requires_grad_())
    # A bias makes it an input like any other, and so it may be where no gradient is wanted.
    for X, Y, bias in ((zero, zero, 0.1), (zero[:1], zero, 0.0)):
        at = X.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(nfd.kernel(at, Y, bias_variance=bias).sum(), at)
        assert bool(gradient.isfinite().all())


def test_a_bias_gives_inputs_of_one_feature_more_than_rank_2() -> None:
    X = np.linspace(-2, 2, 12)[:, None]
    assert np.linalg.matrix_rank(nfd.kernel(X), tol=1e-7) == 2
    K = nfd.kernel(
        X,
        kind="ntk",
        input_variance=0.5,
        bias_variance=0.3,
        hidden_variance=2.0,
        output_variance=1.7,
    )
    assert np.linalg.matrix_rank(K, tol=1e-7) > 6
    widened = np.hstack([math.sqrt(2 * 0.5) * X, np.full_like(X, math.sqrt(2 * 0.3))])
    np.testing.assert_allclose(K, 1.7 * nfd.kernel(widened, kind="ntk", horizon=2.0), rtol=1e-9)


@pytest.mark.parametrize("name", NEW)
def test_new_activations_have_the_moments_of_samples_of_their_function(name: str) -> None:
    """Mean over a fine grid of two independent normal numbers."""
    act = KERNEL_ACTIVATIONS[name]
    a, b, c = (torch.tensor(v, dtype=torch.float64) for v in (0.8, 1.7, 0.5))
    z = torch.linspace(-8, 8, 2000, dtype=torch.float64)
    weights = torch.exp(-z * z / 2)
    weights /= weights.sum()
    h = a.sqrt() * z[:, None]
    other = c / a.sqrt() * z[:, None] + (b - c * c / a).sqrt() * z
    for moment, f in ((act.moment, act.phi), (act.slope_moment, act.slope)):
        exact = float(weights @ (f(h) * f(other)) @ weights)
        # Jumps of a slope at zero lie in the middle between nodes, 0.008 apart.
        assert float(moment(a, b, c)) == pytest.approx(exact, abs=3e-5)


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_the_error_of_a_function_holds_with_and_without_kinks(kind: str) -> None:
    angles = torch.tensor([0.0, 0.01, 0.1, 1.0, 3.0], dtype=torch.float64)
    X = math.sqrt(2) * torch.stack([angles.cos(), angles.sin()], 1)
    smooth, error = nfd.kernel(X, kind=kind, activation=torch.erf, return_error=True)
    assert error < 2e-9
    assert float((smooth - nfd.kernel(X, kind=kind, activation="erf")).abs().max()) <= 6 * error

    def nearly_relu(x: Tensor) -> Tensor:
        # Not two lines, so that it has no closed form.
        return torch.relu(x) + 1e-9 * x.sin()

    kinked, error = nfd.kernel(X, kind=kind, activation=nearly_relu, return_error=True)
    exact = nfd.kernel(X, kind=kind)
    assert float((kinked - exact).abs().max()) <= (error + 1e-8) * float(exact[0, 0])
    assert 1e-8 < error < 0.05
    assert torch.equal(nfd.kernel(X, activation=lambda x: x.clamp_min(0)), nfd.kernel(X))


def test_functions_that_are_no_activations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"jumps near .* has no NTK"):
        nfd.kernel([[1.0]], kind="ntk", activation=torch.sign)
    for function in (lambda x: torch.softmax(x, 0), lambda x: x - x.mean()):
        with pytest.raises(ValueError, match="must map every entry by itself"):
            nfd.kernel([[1.0]], activation=function)


@pytest.mark.parametrize("kind", ["nngp", "ntk", "independent-feedback"])
@pytest.mark.parametrize("name", ["erf", "gelu", "tanh"])
def test_pairs_are_those_of_the_table(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = normal(6, 4)
    by_pairs = nfd.kernel(X, kind=kind, activation=name)
    monkeypatch.setattr(kernels, "_FEW", 0)
    by_table = nfd.kernel(X, kind=kind, activation=name)
    assert not torch.equal(by_pairs, by_table)
    torch.testing.assert_close(by_pairs, by_table, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_a_bias_and_variances_are_those_of_dense_networks(kind: str) -> None:
    """Both kernels of networks in plain PyTorch, with gradients in all parameters."""
    x = normal(3, 3)
    networks = Networks(Shape("relu", 3, width=128, depth=4), count=128, seed=0)
    samples = networks.ntk(x.float()) if kind == "ntk" else networks.nngp(x.float())
    K = nfd.kernel(x, kind=kind, activation="relu", depth=4, **VARIANCES)
    plain = nfd.kernel(x, kind=kind, activation="relu", depth=4)
    error = stderr(samples.double())
    assert float(((samples.mean(0) - K) / error).abs().max()) < 4
    assert float(((samples.mean(0) - plain) / error).abs().max()) > 20


@pytest.mark.parametrize("kind", ["nngp", "ntk", "independent-feedback"])
def test_an_ensemble_is_that_of_trained_dense_networks(kind: str) -> None:
    rows = ensemble_rows(64, 128, times=(1.0,), rate=0.1, kinds=(kind,))
    assert rows[0]["rms z of mean"] < 2.5
    assert rows[0]["rms z of covariance"] < 2.5
    assert rows[0]["rms z of mean, another"] > 3


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_an_ensemble_is_that_of_its_linear_equations(kind: str) -> None:
    X, test, y = normal(4, 3), normal(2, 3, seed=1), normal(4, seed=2)
    time = 1.5
    both = torch.cat([X, test])
    tangent = nfd.kernel(both, X, kind=kind).numpy() / 4
    # f = B_t y + A_t f_0, column by column from what is known at 0.
    start = np.hstack([np.zeros((6, 1)), np.eye(6)])

    def rate(_: float, flat: np.ndarray) -> np.ndarray:
        f = flat.reshape(6, 7)
        target = np.hstack([y.numpy()[:, None], np.zeros((4, 6))])
        return (-tangent @ (f[:4] - target)).ravel()

    end = solve_ivp(rate, (0, time), start.ravel(), rtol=1e-10, atol=1e-12).y[:, -1].reshape(6, 7)
    of_start = end[4:, 1:]
    ensemble = nfd.kernel_ensemble(X, y, test, time=time, kind=kind)
    np.testing.assert_allclose(ensemble.mean, end[4:, 0], atol=1e-7)
    spread = of_start @ nfd.kernel(both).numpy() @ of_start.T
    np.testing.assert_allclose(ensemble.covariance, spread, atol=1e-7)
    ends = nfd.kernel_ensemble(X, y, X, time=[0.0, math.inf], kind=kind)
    torch.testing.assert_close(ends.mean, torch.stack([0 * y, y]), atol=1e-7, rtol=0)
    torch.testing.assert_close(ends.covariance[0], nfd.kernel(X), atol=1e-7, rtol=0)
    assert float(ends.covariance[1].abs().max()) < 1e-7
    with pytest.raises(ValueError, match="singular, so that training does not end"):
        nfd.kernel_ensemble(torch.cat([X, X[:1]]), [1.0] * 5, test, kind=kind)


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        (lambda X: X.index_fill(0, torch.tensor([2]), 0.0), {}, "answer zero to input 2 of X"),
        (lambda X: torch.cat([X[:3], X[:1]]), {}, "inputs 0 and 3 of X are the same"),
        (lambda X: torch.cat([X[:3], 2 * X[:1]]), {}, "2 times as much to input 3 of X as to"),
        (
            lambda X: torch.cat([X[:3], -X[:1]]),
            {"activation": "tanh"},
            "-1 times as much to input 3 of X as to input 0",
        ),
        (lambda X: X, {"activation": "identity"}, "too few directions for the kernel"),
    ],
)
def test_an_ensemble_says_which_inputs_make_its_kernel_singular(
    change: Callable[[Tensor], Tensor], settings: dict[str, str], message: str
) -> None:
    X, test, y = normal(4, 3), normal(2, 3, seed=1), normal(4, seed=2)
    with pytest.raises(ValueError, match=message):
        nfd.kernel_ensemble(change(X), y, test, **settings)
    # A finite time is known of every one of them.
    assert nfd.kernel_ensemble(change(X), y, test, time=1.0, **settings).mean.isfinite().all()


def test_an_ensemble_takes_times_in_arrays_and_names_other_features() -> None:
    X, test, y = normal(4, 3), normal(2, 3, seed=1), normal(4, seed=2)
    wanted = nfd.kernel_ensemble(X, y, test, time=[1.0, 2.0]).mean
    for times in (np.array([1.0, 2.0]), torch.tensor([1.0, 2.0])):
        assert torch.equal(nfd.kernel_ensemble(X, y, test, time=times).mean, wanted)
    one = nfd.kernel_ensemble(X, y, test, time=np.array(2.0)).mean
    assert torch.equal(one, wanted[1])
    for nonsense in ([], np.array([[1.0, 2.0]]), [-1.0], "soon"):
        with pytest.raises((ValueError, TypeError), match="time must be"):
            nfd.kernel_ensemble(X, y, test, time=nonsense)
    with pytest.raises(ValueError, match="X_test must have 3 features, as X has; got 2"):
        nfd.kernel_ensemble(X, y, test[:, :2])


@pytest.mark.parametrize("has_other", [False, True])
def test_second_derivatives_are_refused(has_other: bool) -> None:
    """Also of a sum, whose gradient is a constant to ``once_differentiable``."""
    X = normal(3, 3).requires_grad_()
    other = normal(2, 3, seed=1) if has_other else None
    gram = nfd.kernel(X, other)
    (gradient,) = torch.autograd.grad(gram.sum(), X, create_graph=True)
    (plain,) = torch.autograd.grad(nfd.kernel(X, other).sum(), X)
    torch.testing.assert_close(gradient, plain)
    with pytest.raises(ValueError, match=r"nfd.kernel has first derivatives only"):
        torch.autograd.grad(gradient.square().sum(), X)


def test_the_page_has_the_stored_numbers() -> None:
    page = PAGE.read_text()
    for text in tables(json.loads(NUMBERS.read_text())).values():
        assert text.strip() in page
