"""Definition 1 by particles: it is the decoupled network, and not the standard one."""

from __future__ import annotations

import json
import math
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


def rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())


def of_samples(kernel: Tensor) -> Tensor:
    """Sample k before step k on both sides of a kernel [A, S, N, C, S, N, C]: [A, K, C, K, C]."""
    steps = torch.arange(4)
    return kernel[:, steps, steps][:, :, :, steps, steps]


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_three_outputs_are_those_of_the_decoupled_network_and_not_of_the_standard_one(
    loss: str,
) -> None:
    """Outputs before every step, outputs of probes after the last, and Theta of all outputs."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 5, generator=generator)
    probes = torch.randn(2, 5, generator=generator)
    ids = torch.tensor([0, 2, 1, 0])
    y = ids if loss == "cross-entropy" else 1.5 * torch.randn(4, 3, generator=generator)
    settings: dict[str, Any] = {"horizon": 2.0, "activation": "tanh"}
    first, second = (
        nfd.solve_nfd(
            x,
            y,
            loss=loss,
            classes=3 if loss == "cross-entropy" else None,
            probes=probes,
            grid=4,
            eta_c=1.0,
            particles=4096,
            seed=seed,
            **settings,
        )
        for seed in (0, 1)
    )
    assert (first.outputs.shape, first.Sigma.shape) == ((4, 3), (5, 6, 6))
    assert (first.probe_outputs.shape, first.Theta.shape) == ((2, 3), (5, 6, 3, 6, 3))
    task = nfd.Task([(x[k : k + 1], y[k : k + 1]) for k in range(4)], loss=loss)

    def prediction(feedback: str, kernels: nfd.Kernels | None) -> nfd.Prediction:
        return nfd.predict(
            nfd.resnets(5, 3, feedback=feedback, **settings),
            task,
            1.0,
            depth=4,
            width=512,
            replicates=8,
            probes=torch.cat([x, probes]),
            kernels=kernels,
        )

    def largest(p: nfd.Prediction) -> tuple[float, float]:
        """Distances of samples and of probes, in standard errors."""
        f = p.probe_outputs
        k = torch.arange(1, 4)
        sample_errors = f.stderr[k, k].hypot(first.outputs_stderr[1:])
        probe_errors = f.stderr[-1, 4:].hypot(first.probe_outputs_stderr)
        samples = (f.value[k, k] - first.outputs[1:]) / sample_errors
        others = (f.value[-1, 4:] - first.probe_outputs) / probe_errors
        return float(samples.abs().max()), float(others.abs().max())

    def gap(p: nfd.Prediction) -> tuple[float, float]:
        """The RMS distance of Theta, and its noise."""
        solved = (first.Theta + second.Theta)[::2, :4, :, :4] / 2
        noise = (first.Theta - second.Theta)[::2, :4, :, :4] / 2
        errors = of_samples(p.kernels.gradients.stderr)
        distance = of_samples(p.kernels.gradients.value) - solved
        return rms(distance), math.hypot(rms(noise), rms(errors))

    decoupled = prediction("independent", nfd.Kernels(times=3, steps=range(4)))
    assert max(largest(decoupled)) < 4.5
    distance, noise = gap(decoupled)
    assert 0.5 * noise < distance < 1.5 * noise
    # The standard network is 8.8 and 11.3 standard errors away.
    assert max(largest(prediction("shared", None))) > 6


def test_one_output_is_one_column() -> None:
    x = SIXTY[:3]
    y = torch.tensor([1.0, -1.0, 0.5])
    settings: dict[str, Any] = {"grid": 4, "eta_c": 0.5, "particles": 64, "replicates": 2}
    plain = nfd.solve_nfd(x, y, eq5_term=True, **settings)
    column = nfd.solve_nfd(x, y[:, None], eq5_term=True, **settings)
    assert torch.equal(plain.outputs, column.outputs[:, 0])
    assert torch.equal(plain.Theta, column.Theta[:, :, 0, :, 0])
    assert (plain.Theta.shape, column.Theta.shape) == ((5, 3, 3), (5, 3, 1, 3, 1))


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
    (
        SIXTY[:4],
        torch.zeros(4, 0),
        {},
        r"targets \[K\] or \[K, C\] under loss='mse'; got .*\[4, 0\]",
    ),
    (SIXTY[:4], torch.zeros(4, 3), {"particles": 12}, "more than the 12 outputs of 4 samples"),
    (SIXTY[:4], [0, 1, 2, 0], {"loss": "cross-entropy"}, "needs the number of classes"),
    (SIXTY[:4], [0, 1, 2, 0], {"classes": 3}, "classes=3 is for loss='cross-entropy'"),
    (SIXTY[:4], torch.zeros(4), {"loss": "hinge"}, "loss must be one of"),
    (
        SIXTY[:4],
        [0, 1, 3, 0],
        {"loss": "cross-entropy", "classes": 3},
        "whole numbers from 0 to 2, .* got 3 for sample 2",
    ),
    (
        SIXTY[:4],
        [0, -100, 1, 0],
        {"loss": "cross-entropy", "classes": 3},
        "got -100 for sample 1",
    ),
    (
        SIXTY[:0],
        [],
        {},
        r"inputs must have at least one sample.*got \[0, ",
    ),
    (
        SIXTY[:4],
        [0.5, 1, 1, 0],
        {"loss": "cross-entropy", "classes": 2},
        "got 0.5 for sample 0",
    ),
    (
        SIXTY[:4],
        torch.zeros(4, 3),
        {"loss": "cross-entropy", "classes": 3},
        r"targets \[K\] under loss='cross-entropy'",
    ),
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
