"""Meters: their definitions spelled out, and verdicts at their thresholds."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from nfd.families.constructed import member_of
from scipy import stats

import nfd
from nfd.core.estimates import Interval
from nfd.core.statistics import interval, log_slope, squared_size, stderr
from nfd.meters.updates import Baseline
from nfd.meters.verdict import verdict
from nfd.nets.resnet import ResNet
from nfd.paper.runs import RunConfig, dataset_of, member, train_group
from nfd.paper.spectra import Spectra, WatchedNetwork
from nfd.paper.start import at_start


def updates(net: ResNet, start: ResNet, x: torch.Tensor) -> dict[str, float]:
    model = copy.deepcopy(start)
    baseline = Baseline(member_of(model, nfd.plan(model, rule="depth-mup-inner", optimizer="sgd")), x)
    model.load_state_dict(net.state_dict())
    return baseline.updates()


def trained(horizon: float = 2.0) -> tuple[ResNet, ResNet, torch.Tensor]:
    net = nfd.ResNet(5, 3, 16, 4, block="two-layer", horizon=horizon, dtype=torch.float64)
    start = copy.deepcopy(net)
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    optimizer = nfd.SGD(net.param_groups(0.5, "depth-mup-inner"))
    torch.nn.functional.cross_entropy(net(x), torch.tensor([0, 1, 2, 0, 1, 2])).backward()
    optimizer.step()
    return net, start, x


def test_updates_are_equations_27_33_and_34() -> None:
    net, start, x = trained()
    L, n, T = 4, 16, 2.0
    found = updates(net, start, x)
    for p in (*net.parameters(), *start.parameters()):
        p.requires_grad_(False)
    s = net.streams(x)
    inner, stream = [], []
    assert net.inner is not None
    assert start.inner is not None
    for k in range(L):
        W1, V1 = start.inner[k].weight, net.inner[k].weight
        W2, V2 = start.outer[k].weight, net.outer[k].weight
        h = s.h[k]
        x_l = h @ V1.T / math.sqrt(n)
        torch.testing.assert_close(x_l, s.x_inner[k])  # type: ignore[index]
        inner.append(x_l - h @ W1.T / math.sqrt(n))
        grown = (s.h[k + 1] - s.h[k]) / (T / L)  # dh/dt, Eq. 33
        frozen = math.sqrt(T / (L * n)) * torch.relu(x_l) @ W2.T / (T / L)  # Eq. 34
        torch.testing.assert_close(grown - frozen, math.sqrt(L / (T * n)) * torch.relu(x_l) @ (V2 - W2).T)
        stream.append(grown - frozen)
    assert found["inner_update"] == pytest.approx(float(torch.stack(inner).square().mean().sqrt()))
    assert found["stream_update"] == pytest.approx(float(torch.stack(stream).square().mean().sqrt()))
    assert found["function_update"] == pytest.approx(float((net(x) - start(x)).square().mean().sqrt()))


def test_the_share_of_inner_layers_is_what_resetting_them_undoes() -> None:
    net, start, x = trained()
    assert updates(net, start, x)["function_update_inner"] > 1e-3
    net.inner = copy.deepcopy(start.inner)
    found = updates(net, start, x)
    assert found["inner_update"] == 0
    assert found["function_update_inner"] == 0
    assert found["function_update"] > 1e-3
    assert updates(start, start, x)["function_update"] == 0


@pytest.mark.parametrize(
    ("value", "low", "high", "span", "word"),
    [
        (0.0, -0.2, 0.25, 8, "STABLE"),
        (-0.24, -0.25, -0.2, 8, "STABLE"),
        (-0.5, -0.6, -0.4, 8, "COLLAPSES"),
        (-0.5, -0.6, -0.4, 2, "COLLAPSES"),
        (-0.5, -0.76, -0.24, 4, "COLLAPSES"),
        (-0.5, -0.76, -0.24, 2, "UNCERTAIN"),  # sure to fall by 15 % alone
        (-0.3, -0.5, -0.1, 8, "UNCERTAIN"),
        (0.5, 0.4, 0.6, 8, "GROWS"),
        (0.24, 0.16, 0.32, 8, "UNCERTAIN"),
        (math.nan, math.nan, math.nan, 8, "UNCERTAIN"),
    ],
)
def test_verdicts(value: float, low: float, high: float, span: float, word: str) -> None:
    assert verdict(Interval(value, 0.0, low, high), span) == word


def test_intervals_are_those_of_students_t_for_a_mean() -> None:
    samples = torch.tensor([1.0, 2.0, 4.0, 7.0], dtype=torch.float64)
    found = interval(lambda r: r.mean(0), samples)
    assert found.value == 3.5
    assert found.stderr == pytest.approx(float(samples.std()) / 2)
    assert found.high - found.value == pytest.approx(3.182446 * found.stderr, rel=1e-5)
    assert str(Interval(-0.4567, 0.0212, -0.52, -0.39)) == "-0.457 [-0.520, -0.390]"
    assert "nan" in str(Interval(math.nan, math.nan, math.nan, math.nan))
    assert "inf" in str(Interval(1.0, math.inf, -math.inf, math.inf))


def test_the_limits_of_a_difference_are_recovered_from_those_of_its_parts() -> None:
    """For means of normal samples they are nearly Welch's, and cover the truth as often as they say."""
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(600):
        first = 1.0 + torch.randn(7, generator=generator, dtype=torch.float64)
        second = 0.4 + 2 * torch.randn(9, generator=generator, dtype=torch.float64)
        parts = [interval(lambda r: r.mean(), group) for group in (first, second)]
        found = parts[0].minus(parts[1])
        covered += found.low <= 0.6 <= found.high
        welch = interval(lambda a, b: a.mean() - b.mean(), first, second)
        assert found.stderr == pytest.approx(welch.stderr)
        assert found.high - found.low == pytest.approx(welch.high - welch.low, rel=0.2)
    assert 0.93 <= covered / 600 <= 0.985


def test_intervals_of_two_groups_are_welchs() -> None:
    g = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, generator=g, dtype=torch.float64), 3 * torch.randn(9, generator=g, dtype=torch.float64)
    found = interval(lambda x, y: x.mean() - y.mean(), a, b)
    welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((welch.low, welch.high))


def test_intervals_cover_what_they_say() -> None:
    """Of squared sizes, noise subtracted, over many draws of six replicates."""
    g = torch.Generator().manual_seed(1)
    truth, held = 0.09, 0
    for _ in range(300):
        samples = 0.3 + torch.randn(6, 40, generator=g, dtype=torch.float64)
        found = interval(lambda r: squared_size(r.mean(0), stderr(r)), samples)
        held += found.low <= truth <= found.high
    assert 0.91 <= held / 300 <= 0.99


def test_slopes_and_roots() -> None:
    x = [2.0, 4.0, 8.0]
    torch.testing.assert_close(log_slope(x, 3 * torch.tensor(x).pow(-0.5)), torch.tensor(-0.5, dtype=torch.float64))
    root = Interval(0.04, 0.01, -0.01, 0.09).root()
    assert (root.value, root.low, root.high) == pytest.approx((0.2, 0.0, 0.3))
    assert root.stderr == pytest.approx(0.025)


# ---- networks before training (nfd.paper.start) --------------------------------------------------------------------


def inputs(rows: int = 3, size: int = 5) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("form", [{}, {"order": "post"}, {"block": "two-layer"}, {"regime": "kernel"}], ids=str)
def test_streams_before_training_are_features_and_gradients_of_the_first_output(form: dict[str, Any]) -> None:
    n, L, x = 6, 3, inputs()
    net = ResNet(5, 2, n, L, horizon=2.0, activation="tanh", dtype=torch.float64, **form)
    _, vectors = at_start(net, x)
    layers, _ = net.run(net, x)
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


def test_gradients_before_training_are_equation_3() -> None:
    n, L, T = 6, 3, 2.0
    net = ResNet(5, 2, n, L, horizon=T, activation="tanh", dtype=torch.float64)
    layers, _ = net.run(net, inputs())
    g = net.V[0].expand(3, n)
    for index in reversed(range(L)):
        slope = 1 - torch.tanh(layers[index]) ** 2
        g = g + math.sqrt(T / (L * n)) * slope * (g @ net.outer[index].weight)
    torch.testing.assert_close(at_start(net, inputs())[1]["g_start"], g.detach().flatten())


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


@pytest.mark.parametrize(("activation", "rate"), [("identity", 1.0), ("relu", 0.5)])
def test_wide_networks_are_near_their_particles_at_a_long_horizon(activation: str, rate: float) -> None:
    """Whose variances grow by ``1 + rate T / L`` a layer: a wrong horizon would show."""
    n, L, T = 512, 3, 8.0
    found = particles(2, 5, 2, n, L, horizon=T, activation=activation)
    grown = (1 + rate * T / L) ** L
    assert float(found["h_particles"].mean()) < 0.02 * grown * float(inputs().square().mean())
    assert float(found["g_particles"].mean()) < 0.06 * grown


def test_gradients_of_relu_come_to_their_particles_more_slowly() -> None:
    """Its slope jumps: Prop. 6 asks for one that is Lipschitz."""
    few, many = (particles(60, 5, 2, n, 3) for n in (16, 128))
    rates = {name: float((many[name].mean() / few[name].mean()).log()) / math.log(8) for name in few}
    assert rates["h_particles"] == pytest.approx(-1, abs=0.3)
    assert -0.8 < rates["g_particles"] < -0.4


def test_other_networks_have_streams_but_no_particles() -> None:
    others = [
        ResNet(5, 2, 4, 3, block="two-layer", dtype=torch.float64),
        ResNet(5, 2, 4, 3, order="post", dtype=torch.float64),
        nfd.MLP(5, 2, 4, 3, dtype=torch.float64),
    ]
    for net in others:
        numbers, vectors = at_start(net, inputs())
        assert numbers == {}
        assert vectors["h_end"].shape == vectors["g_start"].shape == (3 * 4,)


def test_a_stream_without_features_has_particles() -> None:
    net = ResNet(5, 2, 4, 3, dtype=torch.float64)
    with torch.no_grad():
        net.U.copy_(-net.U.abs())  # relu is zero everywhere, in every layer
    numbers, vectors = at_start(net, inputs().abs())
    assert float(vectors["g_rms"][0]) == float(vectors["g_rms"][-1])
    assert 0 < numbers["h_particles"] < 10


# ---- covariances of the steps (nfd.paper.spectra) ------------------------------------------------------------------


@pytest.mark.parametrize("form", [{}, {"network": "mlp", "rule": "mup"}, {"block": "two-layer"}], ids=str)
def test_spectra_are_those_of_the_streams_of_every_step(form: dict[str, Any]) -> None:
    """Against the definitions, entry by entry, along the plain loop."""
    n, L = 16, 2
    config = RunConfig(width=n, depth=L, steps=6, batch=1, every=3, meter="spectra", activation="tanh", **form)
    (record,) = train_group([config.model_dump()])
    assert record.status == "done"
    assert record.curves["measured_after"].tolist() == [3, 6]
    dataset = dataset_of(config)
    net = member(config, dataset).network()
    optimizer = nfd.SGD(net.param_groups(config.eta_c, config.rule))
    phis, firsts, deltas = [], [], []
    for step, (x, y) in enumerate(zip(*dataset.batches(1, 6, 0), strict=True), start=1):
        layers, _ = net.run(net, x)
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


def test_spectra_of_vectors_out_of_range_are_not_a_number() -> None:
    net = ResNet(5, 2, 4, 3, activation="identity", dtype=torch.float64)
    spectra = Spectra(net)
    assert not spectra.smallest()["sigma"].isfinite().any()
    watched = WatchedNetwork(net)
    for size in (1.0, 1e200):  # squares of the latter overflow
        watched(size * inputs(1)).square().sum().sqrt().backward()
        assert watched.seen is not None
        spectra.gather(watched.seen)
        found = spectra.smallest()
        assert found["theta"].isfinite().all()
        assert bool(found["sigma"].isfinite().all()) == (size == 1.0)
