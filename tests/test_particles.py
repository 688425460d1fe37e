"""Definition 1 by particles: it is the decoupled network, and not the standard one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import simpson
from torch import Tensor

import nfd
from nfd.core.activations import activation
from nfd.core.statistics import stderr
from nfd.limits import particles
from nfd.limits.growing_cholesky import GrowingCholesky
from nfd.limits.kernel import gram_matrix

REFERENCE = json.loads((Path(__file__).parent / "reference.json").read_text())


def problem(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    raw = load_digits()
    rows = slice(*case["rows"])
    y = np.where(raw.target[rows] % 2 == 0, 1.0, -1.0)
    return torch.from_numpy(raw.data[rows] / 8 - 1), torch.from_numpy(y)


def deviation(case: dict[str, Any], **change: Any) -> Tensor:
    kwargs = {"particles": 4096, "replicates": 8, "seed": 1} | change
    settings = {key: case[key] for key in ("horizon", "activation", "eta_c")}
    s = nfd.solve_nfd(*problem(case), grid=case["depth"], **settings, **kwargs)
    error = (torch.tensor(case["stderr"]) ** 2 + s.outputs_stderr**2).sqrt()
    return ((s.outputs - torch.tensor(case["mean"])) / error).abs()


def reference(case: dict[str, Any]) -> Any:
    name = f"{case['name']}-{case['activation']}-{case['feedback']}"
    return pytest.param(case, id=name, marks=pytest.mark.slow if case["activation"] == "relu" else ())


@pytest.mark.parametrize("case", [reference(case) for case in REFERENCE])
def test_definition_1_is_the_decoupled_network(case: dict[str, Any]) -> None:
    found = deviation(case)
    if case["feedback"] == "independent":
        assert float(found.max()) < 4
    else:
        assert float(found.max()) > 6


def wide(x: Tensor, y: Tensor, depth: int, feedback: str) -> nfd.Prediction:
    return nfd.predict(
        x, y, depth=depth, activation="relu", eta_c=0.5, loss="mse", feedback=feedback, width=4096, replicates=12
    )


@pytest.mark.parametrize("depth", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_particles_agree_with_deferred_networks_at_every_depth(depth: int) -> None:
    x, y = problem({"rows": (0, 8)})
    s = nfd.solve_nfd(x, y, grid=depth, activation="relu", eta_c=0.5, particles=8192, replicates=12)
    p = wide(x, y, depth, "independent")
    error = (s.outputs_stderr**2 + p.outputs_stderr[:, 0, 0] ** 2).sqrt()
    assert float(((s.outputs - p.outputs[:, 0, 0]) / error).abs().max()) < 4


def test_the_printed_term_of_equation_5_is_neither() -> None:
    """Its tau^2 moves Definition 1 by a little, paired on the same particles, and not to the standard network."""
    x, y = problem({"rows": (0, 8)})
    kwargs: dict[str, Any] = {"grid": 2, "horizon": 2.0, "activation": "relu", "eta_c": 0.3}
    found = []
    for seed in range(5):
        solved = [
            nfd.solve_nfd(x, y, eq5_term=e, particles=2048, replicates=2, seed=seed, **kwargs) for e in (False, True)
        ]
        found.append(torch.stack([s.outputs for s in solved]))
    plain, printed = torch.stack(found).unbind(1)
    moved = (printed - plain)[:, 1:]  # before the first update nothing differs
    assert float((moved.mean(0) / (moved.std(0) / 5**0.5)).abs().max()) > 6
    kwargs["depth"] = kwargs.pop("grid")
    p = nfd.predict(x, y, loss="mse", width=4096, replicates=12, **kwargs)
    error = (printed.var(0) / 5 + p.outputs_stderr[:, 0, 0] ** 2).sqrt()
    assert float(((printed.mean(0) - p.outputs[:, 0, 0]) / error).abs().max()) > 4


def test_divergence_is_a_result() -> None:
    x, y = problem({"rows": (0, 8)})
    s = nfd.solve_nfd(x, y, grid=2, horizon=4.0, activation="relu", eta_c=2.0, particles=256, replicates=2)
    assert s.diverged_at is not None
    assert bool(torch.isnan(s.outputs[s.diverged_at :]).all())


def test_moments_at_initialisation_are_those_of_propositions_2_and_6() -> None:
    """Sigma is E phi^2 along Prop. 2, Theta is P_t, which solves -P' = E[phi' phibar'] P: finite-depth forms."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    L, T = 16, 1.0
    s = nfd.solve_nfd(x, torch.zeros(3), grid=L, horizon=T, activation="tanh", eta_c=0.0, particles=16384, replicates=4)
    act, C = activation("tanh"), x @ x.T / 5
    covariances = [C]
    for _ in range(L):
        a = covariances[-1].diagonal()
        covariances.append(covariances[-1] + T / L * act.moment(a[:, None], a[None, :], covariances[-1]))
    P = torch.ones(3, 3, dtype=torch.float64)
    for l in range(L, -1, -1):  # noqa: E741
        a = covariances[l].diagonal()
        torch.testing.assert_close(s.Sigma[l], act.moment(a[:, None], a[None, :], covariances[l]), rtol=0, atol=0.02)
        torch.testing.assert_close(s.Theta[l], P, rtol=0, atol=0.04)
        below = covariances[l - 1]
        b = below.diagonal()
        P = P * (1 + T / L * act.slope_moment(b[:, None], b[None, :], below))


def test_moments_at_initialisation_are_those_of_the_differential_equations() -> None:
    """Sigma_T is dC/dT of Prop. 3 and Theta_0 = exp of the integral of E[phi' phibar'] along it (Prop. 6)."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    L, T, act = 64, 1.0, activation("tanh")
    s = nfd.solve_nfd(x, torch.zeros(3), grid=L, horizon=T, activation="tanh", eta_c=0.0, particles=16384, replicates=4)
    _, rate, _ = gram_matrix(x, None, kind="nngp", activation="tanh", horizon=T, depth=math.inf, slopes=True)
    torch.testing.assert_close(s.Sigma[-1], rate, rtol=0, atol=0.02)
    times, integrand = [k / 4 for k in range(5)], []
    for t in times:
        C = nfd.kernel(x, activation="tanh", horizon=t) if t else x @ x.T / 5
        a = C.diagonal()
        integrand.append(act.slope_moment(a[:, None], a[None, :], C))
    P_0 = simpson(torch.stack(integrand).numpy(), x=times, axis=0)
    torch.testing.assert_close(s.Theta[0], torch.from_numpy(np.exp(P_0)), rtol=0, atol=0.05)


@pytest.mark.parametrize("sampling", ["sobol", "antithetic", pytest.param("plain", marks=pytest.mark.slow)])
def test_every_sampling_solves_the_same_equations(sampling: str) -> None:
    case = next(
        c for c in REFERENCE if c["name"] == "A" and c["activation"] == "relu" and c["feedback"] == "independent"
    )
    assert float(deviation(case, sampling=sampling)[1:].max()) < 4  # antithetic pairs start at exactly zero


def test_repeated_samples_are_dropped_and_counted() -> None:
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = nfd.solve_nfd(x[[0, 1, 0]], torch.zeros(3), grid=4, eta_c=0.0, particles=256, replicates=2)
    assert s.dropped.tolist() == [[2] * 4, [2] * 3 + [4]]  # sample 2 everywhere; backward, g_T is the same for all
    torch.testing.assert_close(s.outputs[0], s.outputs[2], rtol=0, atol=1e-12)
    assert float(s.min_eigenvalues.abs().max()) < 1e-8
    assert s.Sigma.shape == s.Theta.shape == (5, 3, 3)


def test_logistic_loss_and_bad_input() -> None:
    x, y = problem({"rows": (0, 4)})
    s = nfd.solve_nfd(x, y, grid=4, loss="logistic", particles=512, replicates=2)
    assert bool(torch.isfinite(s.outputs).all())
    with pytest.raises(ValueError, match=r"must be \+1 or -1"):
        nfd.solve_nfd(x, torch.zeros(4), loss="logistic")
    with pytest.raises(ValueError, match=r"particles must be more than the 4 samples.*deferred"):
        nfd.solve_nfd(x, y, particles=4)
    with pytest.raises(ValueError, match=r"inputs must be \[K, d\] and targets \[K\]"):
        nfd.solve_nfd(x, y[:2])
    with pytest.raises(ValueError, match="horizon must be greater than 0"):
        nfd.solve_nfd(x, y, horizon=0)
    with pytest.raises(ValueError, match="targets must be finite"):
        nfd.solve_nfd(x, torch.full((4,), torch.nan))


def first_step(x: Tensor, L: int, activation: str, *, eq5: bool) -> Tensor:
    """``-(f^(1) - f^(0)) / (eta_c L')`` on an input repeated, [replicates]."""
    eta_c, y, found = 1e-4, torch.tensor([-1.0, 0.0]), []
    for seed in range(6):
        f = [
            nfd.solve_nfd(x[[0, 0]], y, grid=L, activation=activation, eta_c=e, particles=8192, replicates=2, seed=seed,
                          eq5_term=eq5).outputs
            for e in (0.0, eta_c)
        ]  # fmt: skip
        found.append(-(f[1][1] - f[0][1]) / (eta_c * (f[0][0] + 1.0)))
    return torch.stack(found)


def test_the_first_step_is_that_of_the_decoupled_kernel_and_eq_5_adds_what_it_prints() -> None:
    """2 C_L, and for the identity ``sum_{l >= 2} tau^2 q_{l-2}`` more, with ``q_l = q_0 (1 + tau)^l``."""
    x = torch.tensor([[2.0, 1.0, 0.5]], dtype=torch.float64)
    L, q, tau = 4, float(x.square().mean()), 0.25
    plain, printed = first_step(x, L, "identity", eq5=False), first_step(x, L, "identity", eq5=True)
    expected = 2 * q * (1 + tau) ** L
    assert abs(float(plain.mean()) - expected) < 4 * float(stderr(plain))
    assert float(stderr(plain)) < 0.02 * expected
    added = sum(tau**2 * q * (1 + tau) ** (l - 2) for l in range(2, L + 1))  # noqa: E741
    more = printed - plain
    assert abs(float(more.mean()) - added) < 4 * float(stderr(more))
    assert float(stderr(more)) < 0.05 * added
    relu = first_step(x, L, "relu", eq5=False)
    decoupled, standard = (float(nfd.kernel(x, kind=kind, depth=L)[0, 0]) for kind in ("independent-feedback", "ntk"))
    assert abs(float(relu.mean()) - decoupled) < 4 * float(stderr(relu)) < abs(standard - decoupled)


def test_what_does_not_fit_or_diverges_is_said() -> None:
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(ValueError, match=r"GiB, more than memory='1 MiB'.*deferred"):
        nfd.solve_nfd(x, torch.zeros(60), memory="1 MiB")
    with pytest.raises(TypeError, match="eq5_term must be True or False"):
        nfd.solve_nfd(x, torch.zeros(60), eq5_term="no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="takes up to 21200 features"):
        nfd.solve_nfd(torch.zeros(2, 30_000), torch.zeros(2))
    s = nfd.solve_nfd(x[:8].flip(0).numpy()[::-1], torch.ones(8), grid=4, activation="relu", eta_c=50.0, particles=256)
    assert s.diverged_at is not None
    assert bool(s.min_eigenvalues.isnan().all())
    assert bool(s.Sigma[:, s.diverged_at :].isnan().all())
    assert bool(s.outputs[s.diverged_at :].isnan().all())


@pytest.mark.parametrize("y", [1.0, -1.0])
def test_slopes_of_losses_are_their_derivatives(y: float) -> None:
    for value in (-3.0, -0.2, 0.0, 2.5):
        f = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        losses = {"mse": (f - y) ** 2 / 2, "logistic": torch.log1p(torch.exp(-y * f))}
        for name, loss in losses.items():
            (slope,) = torch.autograd.grad(loss, f, retain_graph=True)
            assert particles._LOSSES[name](value, y) == pytest.approx(float(slope))


def test_the_growing_factor_is_that_of_the_whole_covariance() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = torch.cat([x, x[:1] + x[1:2]])  # the last adds nothing
    C, growing = x @ x.T, GrowingCholesky(5)
    rows = [growing.extend(C[k, : k + 1].numpy()) for k in range(5)]
    for k, row in enumerate(rows[:4]):
        torch.testing.assert_close(row, torch.linalg.cholesky(C[:4, :4])[k, : k + 1])
    for j in range(4):
        assert float(rows[4][: j + 1] @ rows[j]) == pytest.approx(float(C[4, j]))
    assert (growing.kept, growing.dropped) == ([0, 1, 2, 3], 1)
