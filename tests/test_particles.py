"""Definition 1 by particles: it is the decoupled network, and not the standard one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import nfd
from nfd.core.activations import activation
from nfd.core.estimates import stderr

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
    return pytest.param(
        case, id=name, marks=pytest.mark.slow if case["activation"] == "relu" else ()
    )


@pytest.mark.parametrize("case", [reference(case) for case in REFERENCE])
def test_definition_1_is_the_decoupled_network(case: dict[str, Any]) -> None:
    found = deviation(case)
    if case["feedback"] == "independent":
        assert float(found.max()) < 4
    else:
        assert float(found.max()) > 6


def test_moments_at_initialisation_are_those_of_propositions_2_and_6() -> None:
    """Sigma is E phi^2 along Prop. 2, Theta is P_t, which solves -P' = E[phi' phibar'] P:
    finite-depth forms.
    """
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    L = 16
    T = 1.0
    s = nfd.solve_nfd(
        x,
        torch.zeros(3),
        grid=L,
        horizon=T,
        activation="tanh",
        eta_c=0.0,
        particles=16384,
        replicates=4,
    )
    act = activation("tanh")
    C = x @ x.T / 5
    covariances = [C]
    for _ in range(L):
        a = covariances[-1].diagonal()
        covariances.append(
            covariances[-1] + T / L * act.moment(a[:, None], a[None, :], covariances[-1])
        )
    P = torch.ones(3, 3, dtype=torch.float64)
    for l in range(L, -1, -1):  # noqa: E741
        a = covariances[l].diagonal()
        torch.testing.assert_close(
            s.Sigma[l], act.moment(a[:, None], a[None, :], covariances[l]), rtol=0, atol=0.02
        )
        torch.testing.assert_close(s.Theta[l], P, rtol=0, atol=0.04)
        below = covariances[l - 1]
        b = below.diagonal()
        P = P * (1 + T / L * act.slope_moment(b[:, None], b[None, :], below))


def test_repeated_samples_add_no_direction() -> None:
    x = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    s = nfd.solve_nfd(x[[0, 1, 0]], torch.zeros(3), grid=4, eta_c=0.0, particles=256, replicates=2)
    torch.testing.assert_close(s.outputs[0], s.outputs[2], rtol=0, atol=1e-12)
    assert float(torch.linalg.eigvalsh(s.Sigma)[..., 0].abs().max()) < 1e-8
    assert s.Sigma.shape == s.Theta.shape == (5, 3, 3)


def test_probes_see_the_last_update_and_change_none() -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.tensor([1.0, -1.0, 0.0])
    settings: dict[str, Any] = {"grid": 4, "eta_c": 0.5, "particles": 256, "replicates": 2}
    probed = nfd.solve_nfd(x[:2], y[:2], probes=x[[2, 2, 0]], **settings)
    longer = nfd.solve_nfd(x, y, **settings)
    # A sample shows what a probe does until it makes an update.
    assert probed.probe_outputs is not None
    torch.testing.assert_close(probed.outputs, longer.outputs[:2], rtol=0, atol=1e-12)
    torch.testing.assert_close(probed.probe_outputs[0], longer.outputs[2], rtol=0, atol=1e-12)
    torch.testing.assert_close(probed.probe_outputs[1], longer.outputs[2], rtol=0, atol=1e-9)
    assert float((probed.probe_outputs[2] - probed.outputs[0]).abs()) > 0.05
    assert (probed.outputs.shape, probed.probe_outputs.shape) == ((2,), (3,))
    assert (longer.probe_outputs, longer.probe_outputs_stderr) == (None, None)


SIXTY = torch.randn(60, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BAD: list[tuple[Any, Any, dict[str, Any], str]] = [
    (
        SIXTY[:4],
        torch.zeros(4),
        {"particles": 4},
        r"particles must be more than the 4 samples.*deferred",
    ),
    (SIXTY[:4], torch.zeros(2), {}, r"inputs must be \[K, d\] and targets \[K\]"),
    (SIXTY[:4], torch.zeros(4), {"horizon": 0}, "horizon must be greater than 0"),
    (SIXTY[:4], torch.zeros(4), {"probes": SIXTY[0]}, r"probes must be \[N, 5\]"),
    (SIXTY[:4], torch.full((4,), torch.nan), {}, "targets must be finite"),
    (SIXTY, torch.zeros(60), {"particles": 2**30}, r"need .* GiB.*deferred"),
    (SIXTY, torch.zeros(60), {"eq5_term": "no"}, "eq5_term must be True or False"),
    (torch.zeros(2, 30_000), torch.zeros(2), {}, "up to 21200 features"),
]


@pytest.mark.parametrize(("x", "y", "settings", "message"), BAD)
def test_bad_input_is_named(x: Tensor, y: Tensor, settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        nfd.solve_nfd(x, y, **settings)


def first_step(x: Tensor, L: int, activation: str, *, eq5: bool) -> Tensor:
    """``-(f^(1) - f^(0)) / (eta_c L')`` on an input repeated, [replicates]."""
    eta_c = 1e-4
    y = torch.tensor([-1.0, 0.0])
    found = []
    for seed in range(6):
        f = [
            nfd.solve_nfd(
                x[[0, 0]],
                y,
                grid=L,
                activation=activation,
                eta_c=e,
                particles=8192,
                replicates=2,
                seed=seed,
                eq5_term=eq5,
            ).outputs
            for e in (0.0, eta_c)
        ]
        found.append(-(f[1][1] - f[0][1]) / (eta_c * (f[0][0] + 1.0)))
    return torch.stack(found)


def test_the_first_step_is_that_of_the_decoupled_kernel_and_eq_5_adds_what_it_prints() -> None:
    """2 C_L, and for the identity ``sum_{l >= 2} tau^2 q_{l-2}`` more, with ``q_l = q_0 (1 +
    tau)^l``.
    """
    x = torch.tensor([[2.0, 1.0, 0.5]], dtype=torch.float64)
    L = 4
    q = float(x.square().mean())
    tau = 0.25
    plain = first_step(x, L, "identity", eq5=False)
    printed = first_step(x, L, "identity", eq5=True)
    expected = 2 * q * (1 + tau) ** L
    assert abs(float(plain.mean()) - expected) < 4 * float(stderr(plain))
    assert float(stderr(plain)) < 0.02 * expected
    added = sum(tau**2 * q * (1 + tau) ** (l - 2) for l in range(2, L + 1))  # noqa: E741
    more = printed - plain
    assert abs(float(more.mean()) - added) < 4 * float(stderr(more))
    assert float(stderr(more)) < 0.05 * added
    relu = first_step(x, L, "relu", eq5=False)
    decoupled, standard = (
        float(nfd.kernel(x, kind=kind, depth=L)[0, 0]) for kind in ("independent-feedback", "ntk")
    )
    assert abs(float(relu.mean()) - decoupled) < 4 * float(stderr(relu)) < abs(standard - decoupled)


def test_what_diverges_is_a_result() -> None:
    s = nfd.solve_nfd(
        SIXTY[:8].flip(0).numpy()[::-1],
        torch.ones(8),
        grid=4,
        activation="relu",
        eta_c=50.0,
        particles=256,
    )
    assert s.diverged_at is not None
    assert bool(s.Sigma[:, s.diverged_at :].isnan().all())
    assert bool(s.outputs[s.diverged_at :].isnan().all())
