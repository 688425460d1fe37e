"""Networks of the paper before training, and the covariances of their steps, against the definitions."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

import nfd
from nfd.families.network import ResNet
from nfd.paper.runs import PROBES, RunConfig, dataset_of, run_all, trial_of
from nfd.paper.streams import at_start

# ---- networks before training (nfd.paper.streams) --------------------------------------------------------------------


def inputs(rows: int = 3, size: int = 5) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("form", [{}, {"order": "post"}, {"block": "two-layer"}, {"regime": "kernel"}], ids=str)
def test_streams_before_training_are_features_and_gradients_of_the_first_output(form: dict[str, Any]) -> None:
    n, L, x = 6, 3, inputs()
    net = ResNet(5, 2, n, L, horizon=2.0, activation="tanh", dtype=torch.float64, **form)
    _, vectors = at_start(net, x)
    layers, _ = net.run(x)
    gradients = []
    for layer in layers:
        rows = [torch.autograd.grad(net.read(layers[-1])[p, 0], layer, retain_graph=True)[0][p] for p in range(3)]
        gradients.append(torch.stack(rows) * (math.sqrt(n) / net.alpha))
    h, g = torch.stack(layers).detach(), torch.stack(gradients)
    torch.testing.assert_close(vectors["h_end"], h[-1].flatten())
    torch.testing.assert_close(vectors["g_start"], g[0].flatten())
    torch.testing.assert_close(vectors["h_rms"], h.square().mean((1, 2)).sqrt())
    torch.testing.assert_close(vectors["h_mean"], h.mean((1, 2)))
    torch.testing.assert_close(vectors["g_rms"], g.square().mean((1, 2)).sqrt())
    torch.testing.assert_close(g[-1], net.V[0].detach().expand(3, n))  # g_L = v, Eq. 3
    assert vectors["h_rms"].shape == (L + 1,)


def particles(seeds: int, *size: int, **form: Any) -> dict[str, torch.Tensor]:
    """``h_particles`` and ``g_particles`` over seeds, ``[seeds]``."""
    found = [at_start(ResNet(*size, seed=s, dtype=torch.float64, **form), inputs())[0] for s in range(seeds)]
    return {name: torch.tensor([one[name] for one in found]) for name in ("h_particles", "g_particles")}


@pytest.mark.parametrize("n", [2, 8])
def test_particles_of_one_linear_block_are_known(n: int) -> None:
    """Both mean squares are T E(s - 1)^2 = 2 T (1 - E s) with s = chi_n / sqrt(n), that of h times the inputs'."""
    T = 2.0
    mean = math.sqrt(2 / n) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))
    wanted = {"h_particles": 2 * T * (1 - mean) * float(inputs().square().mean()), "g_particles": 2 * T * (1 - mean)}
    for name, values in particles(400, 5, 2, n, 1, horizon=T, activation="identity").items():
        assert abs(float(values.mean()) - wanted[name]) < 4 * float(values.std()) / math.sqrt(400)
        assert float(values.std()) / math.sqrt(400) < 0.1 * wanted[name]


@pytest.mark.parametrize(
    "form",
    [
        {"activation": "erf", "horizon": 0.5},
        {"activation": "erf", "branch_exponent": 0.0},
        {"activation": "erf", "branch_exponent": 0.0, "feedback": "independent"},
        {"activation": "erf", "feedback": "static"},
    ],
    ids=str,
)
def test_neurons_come_to_their_particles_as_one_over_n(form: dict[str, Any]) -> None:
    few, many = (particles(60, 5, 2, n, 3, **form) for n in (8, 64))
    for name in few:
        assert float((many[name].mean() / few[name].mean()).log()) / math.log(8) == pytest.approx(-1, abs=0.3)


# ---- covariances of the steps (nfd.paper.streams) ------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"network": "mlp", "rule": "mup"}, {"block": "two-layer"}], ids=str)
def test_spectra_are_those_of_the_streams_of_every_step(form: dict[str, Any]) -> None:
    """Against the definitions, entry by entry, along the plain loop."""
    n, L = 16, 2
    config = RunConfig(width=n, depth=L, steps=6, batch=1, every=3, meter="spectra", activation="tanh", **form)
    with nfd.Sweep(progress=False) as sweep:
        (record,) = run_all(sweep, {n: [config]}, "spectra")[n]
    assert record.status == "done"
    assert record.curves["measured_after"].tolist() == [3, 6]
    dataset = dataset_of(config)
    net = trial_of(config).build().module
    optimizer = nfd.SGD(net.param_groups(config.eta_c, config.rule))
    phis, firsts, deltas = [], [], []
    for step, (x, y) in enumerate(zip(*dataset.batches(1, 6, 0), strict=True), start=1):
        layers, _ = net.run(x)
        loss = torch.nn.functional.cross_entropy(net.read(layers[-1]), y)
        gradients = torch.autograd.grad(loss, layers, retain_graph=True)
        first = torch.autograd.grad(net.read(layers[-1])[0, 0], layers, retain_graph=True)
        firsts.append([n * g[0].double() for g in first[1:]])
        phis.append([torch.tanh(h[0]).detach().double() for h in layers[:-1]])
        deltas.append([n * g[0].double() for g in gradients[1:]])  # sqrt(n) / alpha = n
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step not in (3, 6):
            continue
        for name, vectors in (("sigma", phis), ("theta", firsts), ("delta", deltas)):
            for layer in range(L):
                matrix = torch.tensor(
                    [[float(a[layer] @ b[layer]) / n for b in vectors] for a in vectors], dtype=torch.float64
                )
                relative = torch.tensor(
                    [[float(c) / math.sqrt(matrix[i, i] * matrix[j, j]) for j, c in enumerate(row)]
                     for i, row in enumerate(matrix)], dtype=torch.float64,
                )  # fmt: skip
                assert torch.diagonal(relative).tolist() == pytest.approx([1] * step)
                look = (step // 3 - 1) * L + layer
                for curve, wanted in ((name, matrix), (f"{name}_relative", relative)):
                    lowest = float(torch.linalg.eigvalsh(wanted)[0])
                    assert float(record.curves[curve][look]) == pytest.approx(lowest, rel=1e-3, abs=1e-9)
    for name in ("sigma_relative", "theta_relative", "delta_relative"):
        assert all(-1e-12 <= float(value) <= 1 for value in record.curves[name])


def test_the_meter_of_updates_compares_with_the_start() -> None:
    config = RunConfig(block="two-layer", width=12, depth=2, steps=4, batch=8, every=2, meter="updates")
    with nfd.Sweep(progress=False) as sweep:
        (record,) = run_all(sweep, {0: [config]}, "updates")[0]
    dataset, member = dataset_of(config), trial_of(config).build()
    net, start = member.module, copy.deepcopy(member.module)
    probes, n = dataset.test_inputs[:PROBES], config.width
    optimizer, moved = nfd.SGD(net.param_groups(config.eta_c, config.rule)), []
    for step, (x, y) in enumerate(zip(*dataset.batches(8, 4, config.data_seed), strict=True), start=1):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step % 2 == 0:
            with torch.no_grad():
                streams = net.streams(probes).h
                inner = [h @ (a.weight - b.weight).T for h, a, b in zip(streams, net.inner, start.inner, strict=False)]
                moved.append((torch.stack(inner) / math.sqrt(n), net(probes) - start(probes)))
    for name, values in zip(("inner_update", "function_update"), zip(*moved, strict=True), strict=True):
        wanted = [float(value.square().mean().sqrt()) for value in values]
        assert record.curves[name].tolist() == pytest.approx(wanted, rel=1e-4)
        assert min(wanted) > 0
