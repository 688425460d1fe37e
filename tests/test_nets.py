"""ResNet and MLP: the equations, literal rates, streams, what the paper measures before and during
training.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import nfd
from nfd.core.activations import activation
from nfd.families.network import ResNet
from nfd.paper.runs import PROBES, RunConfig, dataset_of, run_all, trial_of
from nfd.paper.streams import at_start

F64 = torch.float64
ROOT = math.sqrt(8)


def data(batch: int = 4, d: int = 5) -> Tensor:
    return torch.randn(batch, d, dtype=F64, generator=torch.Generator().manual_seed(0))


def test_forward_is_equation_1() -> None:
    net = nfd.ResNet(5, 3, 8, 4, horizon=2.0, activation="tanh", dtype=F64)
    x = data()
    h = x @ net.U.T / math.sqrt(5)
    for W in net.outer:
        h = h + math.sqrt(2 / (4 * 8)) * torch.tanh(h) @ W.weight.T
    torch.testing.assert_close(net(x), h @ net.V.T / 8)


def test_forward_is_equation_6_and_9_and_the_vanilla_network() -> None:
    x = data()
    two = nfd.ResNet(5, 3, 8, 4, block="two-layer", dtype=F64, regime="kernel")
    h = x @ two.U.T / math.sqrt(5)
    for W1, W2 in zip(two.inner, two.outer, strict=True):
        h = h + torch.relu(h @ W1.weight.T / ROOT) @ W2.weight.T / math.sqrt(4 * 8)
    torch.testing.assert_close(two(x), h @ two.V.T / ROOT)

    post = nfd.ResNet(5, 3, 8, 4, order="post", branch_exponent=1.0, horizon=3.0, dtype=F64)
    h = torch.relu(x @ post.U.T / math.sqrt(5))
    for W in post.outer:
        h = h + math.sqrt(3) / 4 * torch.relu(h @ W.weight.T / ROOT)
    torch.testing.assert_close(post(x), h @ post.V.T / 8)

    mlp = nfd.MLP(5, 3, 8, 4, activation="erf", dtype=F64)
    h = x @ mlp.U.T / math.sqrt(5)
    for W in mlp.hidden:
        h = torch.erf(h) @ W.weight.T / ROOT
    torch.testing.assert_close(mlp(x), h @ mlp.V.T / 8)


def backward_by_hand(net: Any, h: Tensor, x_inner: Tensor | None, weighted: Tensor) -> Tensor:
    """Eq. 3 (Eq. 24 for two-layer blocks) for delta = sum_c Lp_c g^(c); ``weighted`` [b, C] is
    dLoss/df.
    """
    slope = activation(net.activation.name).slope
    n = net.width
    m = net.branch
    g = [weighted @ net.V]
    for index in range(net.depth - 1, -1, -1):
        outer = net.outer[index]
        W = outer.weight if net.feedback == "shared" else outer.feedback_weight
        pulled = g[0] @ W
        if x_inner is None:
            step = slope(h[index]) * pulled * m / math.sqrt(n)
        else:
            inner = net.inner[index]
            W1 = inner.weight if net.feedback == "shared" else inner.feedback_weight
            step = m / n * (slope(x_inner[index]) * pulled) @ W1
        g.insert(0, g[0] + step)
    return torch.stack(g)


@pytest.mark.parametrize("block", ["one-layer", "two-layer"])
@pytest.mark.parametrize("feedback", ["shared", "independent", "static"])
@pytest.mark.parametrize("regime", ["feature", "kernel"])
def test_streams_are_equation_3(block: str, feedback: str, regime: str) -> None:
    net = nfd.ResNet(
        5, 3, 8, 4, activation="tanh", block=block, feedback=feedback, regime=regime, dtype=F64
    )
    target = torch.tensor([0, 1, 2, 0])
    s = net.streams(data())
    torch.nn.functional.cross_entropy(s.outputs, target).backward()
    weighted = (torch.softmax(s.outputs, 1) - torch.nn.functional.one_hot(target, 3)).detach() / 4
    assert s.h.shape == (5, 4, 8)
    assert (s.x_inner is None) == (block == "one-layer")
    expected = backward_by_hand(net, s.h, s.x_inner, weighted)
    torch.testing.assert_close(s.delta, expected.detach(), rtol=0, atol=1e-10)


RATES = {  # rule, network arguments -> literal factor of eta_c at n = 8, L = 16
    ("depth-mup", "one-layer", 0.5): {"input": 8, "outer": 8, "readout": 8},
    ("depth-mup", "two-layer", 0.5): {"input": 8, "outer": 8, "inner": 8, "readout": 8},
    ("depth-mup-inner", "two-layer", 0.5): {"input": 8, "outer": 8, "inner": 32, "readout": 8},
    ("complete-p", "one-layer", 1.0): {"input": 8, "outer": 128, "readout": 8},
    ("complete-p", "two-layer", 1.0): {"input": 8, "outer": 128, "inner": 128, "readout": 8},
    ("mup", "two-layer", 0.0): {"input": 8, "outer": 8, "inner": 8, "readout": 8},
    ("standard", "two-layer", 0.5): {"input": 1, "outer": 1, "inner": 1, "readout": 1},
}


@pytest.mark.parametrize(("rule", "block", "exponent"), list(RATES))
def test_rates_are_literally_these(rule: str, block: str, exponent: float) -> None:
    expected = RATES[rule, block, exponent]
    net = nfd.ResNet(2, 2, 8, 16, block=block, branch_exponent=exponent)
    rates = {group["role"]: group["lr"] for group in net.param_groups(0.5, rule)}
    assert rates == {role: 0.5 * factor for role, factor in expected.items()}
    kernel = nfd.ResNet(2, 2, 8, 16, block=block, branch_exponent=exponent, regime="kernel")
    rates = {group["role"]: group["lr"] for group in kernel.param_groups(0.5, rule)}
    assert rates == {
        role: 0.5 * (factor / 8 if rule != "standard" else 1) for role, factor in expected.items()
    }


def test_rules_that_do_not_fit_are_refused() -> None:
    net = nfd.ResNet(2, 2, 4, 2)
    with pytest.raises(ValueError, match="Did you mean 'depth-mup'"):
        net.param_groups(0.1, "depth-mupp")
    with pytest.raises(ValueError, match=r"branch_exponent=1; this network has 0\.5"):
        net.param_groups(0.1, "complete-p")
    with pytest.raises(
        ValueError, match=r"needs inner and outer roles; got \['input', 'outer', 'readout'\]"
    ):
        net.param_groups(0.1, "depth-mup-inner")
    with pytest.raises(ValueError, match="regime='kernel'"):
        net.param_groups(0.1, "ntk")
    with pytest.raises(ValueError, match="lr must be finite"):
        net.param_groups(math.inf)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"width": 0}, ValueError, "width must be at least 1"),
    ({"depth": -3}, ValueError, "depth must be at least 1"),
    ({"depth": 1.5}, TypeError, "depth must be a whole number"),
    ({"horizon": 0.0}, ValueError, "horizon must be greater than 0"),
    ({"activation": "Relu"}, ValueError, "activation must be one of"),
    ({"block": "three-layer"}, ValueError, "block must be one of"),
    ({"weights": "defered"}, ValueError, "Did you mean 'deferred'"),
    ({"order": "post", "block": "two-layer"}, ValueError, "order='post' is defined for"),
    ({"dtype": torch.float16}, ValueError, "dtype must be"),
    ({"seed": -1}, ValueError, "seed must be at least 0"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_named(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        nfd.ResNet(**({"in_features": 2, "out_features": 2, "width": 4, "depth": 2} | arguments))


class Subclass(nfd.ResNet):
    """Other arguments, another forward pass, and in the second test a parameter of its own."""

    def __init__(self, width: int, depth: int, gain: bool = False) -> None:
        super().__init__(5, 3, width, depth, dtype=F64)
        if gain:
            self.gain = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_streams_of_a_subclass_see_its_outputs() -> None:
    ours = Subclass(8, 4).streams(data())
    theirs = nfd.ResNet(5, 3, 8, 4, dtype=F64).streams(data())
    for s in (ours, theirs):
        s.outputs.sum().backward()
    torch.testing.assert_close(ours.outputs, 2 * theirs.outputs)
    torch.testing.assert_close(ours.delta, 2 * theirs.delta)


def test_parameters_that_a_subclass_adds_are_refused_by_name_until_they_are_frozen() -> None:
    net = Subclass(8, 4, gain=True)
    for make in (net.param_groups, lambda lr: nfd.plan(torch.nn.DataParallel(net))):
        with pytest.raises(
            ValueError, match=r"Subclass has trainable parameters without a role.*'gain'"
        ):
            make(0.1)
    net.gain.requires_grad_(False)
    assert sum(len(group["params"]) for group in net.param_groups(0.1)) == 2 + 4
    nfd.plan(net)


# ---- networks before training (nfd.paper.streams)


def inputs(rows: int = 3, size: int = 5) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize(
    "form", [{}, {"order": "post"}, {"block": "two-layer"}, {"regime": "kernel"}], ids=str
)
def test_streams_before_training_are_features_and_gradients_of_the_first_output(
    form: dict[str, Any],
) -> None:
    n = 6
    L = 3
    x = inputs()
    net = ResNet(5, 2, n, L, horizon=2.0, activation="tanh", dtype=torch.float64, **form)
    _, vectors = at_start(net, x)
    layers, _ = net.run(x)
    gradients = []
    for layer in layers:
        rows = [
            torch.autograd.grad(net.read(layers[-1])[p, 0], layer, retain_graph=True)[0][p]
            for p in range(3)
        ]
        gradients.append(torch.stack(rows) * (math.sqrt(n) / net.alpha))
    h = torch.stack(layers).detach()
    g = torch.stack(gradients)
    torch.testing.assert_close(vectors["h_end"], h[-1].flatten())
    torch.testing.assert_close(vectors["g_start"], g[0].flatten())
    torch.testing.assert_close(vectors["h_rms"], h.square().mean((1, 2)).sqrt())
    torch.testing.assert_close(vectors["h_mean"], h.mean((1, 2)))
    torch.testing.assert_close(vectors["g_rms"], g.square().mean((1, 2)).sqrt())
    torch.testing.assert_close(g[-1], net.V[0].detach().expand(3, n))  # g_L = v, Eq. 3
    assert vectors["h_rms"].shape == (L + 1,)


def particles(seeds: int, *size: int, **form: Any) -> dict[str, torch.Tensor]:
    """``h_particles`` and ``g_particles`` over seeds, ``[seeds]``."""
    found = [
        at_start(ResNet(*size, seed=s, dtype=torch.float64, **form), inputs())[0]
        for s in range(seeds)
    ]
    return {
        name: torch.tensor([one[name] for one in found]) for name in ("h_particles", "g_particles")
    }


@pytest.mark.parametrize("n", [2, 8])
def test_particles_of_one_linear_block_are_known(n: int) -> None:
    """Both mean squares are T E(s - 1)^2 = 2 T (1 - E s) with s = chi_n / sqrt(n), that of h times
    the inputs'.
    """
    T = 2.0
    mean = math.sqrt(2 / n) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))
    wanted = {
        "h_particles": 2 * T * (1 - mean) * float(inputs().square().mean()),
        "g_particles": 2 * T * (1 - mean),
    }
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
        assert float((many[name].mean() / few[name].mean()).log()) / math.log(8) == pytest.approx(
            -1, abs=0.3
        )


# ---- covariances of the steps (nfd.paper.streams)


@pytest.mark.parametrize(
    "form", [{}, {"network": "mlp", "rule": "mup"}, {"block": "two-layer"}], ids=str
)
def test_spectra_are_those_of_the_streams_of_every_step(form: dict[str, Any]) -> None:
    """Against the definitions, entry by entry, along the plain loop."""
    n = 16
    L = 2
    config = RunConfig(
        width=n, depth=L, steps=6, batch=1, every=3, meter="spectra", activation="tanh", **form
    )
    with nfd.Sweep(progress=False) as sweep:
        (record,) = run_all(sweep, {n: [config]}, "spectra")[n]
    assert record.status == "done"
    assert record.curves["measured_after"].tolist() == [3, 6]
    dataset = dataset_of(config)
    net = trial_of(config).build().module
    optimizer = nfd.SGD(net.param_groups(config.eta_c, config.rule))
    phis = []
    firsts = []
    deltas = []
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
                    [[float(a[layer] @ b[layer]) / n for b in vectors] for a in vectors],
                    dtype=torch.float64,
                )
                relative = torch.tensor(
                    [
                        [
                            float(c) / math.sqrt(matrix[i, i] * matrix[j, j])
                            for j, c in enumerate(row)
                        ]
                        for i, row in enumerate(matrix)
                    ],
                    dtype=torch.float64,
                )
                assert torch.diagonal(relative).tolist() == pytest.approx([1] * step)
                look = (step // 3 - 1) * L + layer
                for curve, wanted in ((name, matrix), (f"{name}_relative", relative)):
                    lowest = float(torch.linalg.eigvalsh(wanted)[0])
                    assert float(record.curves[curve][look]) == pytest.approx(
                        lowest, rel=1e-3, abs=1e-9
                    )
    for name in ("sigma_relative", "theta_relative", "delta_relative"):
        assert all(-1e-12 <= float(value) <= 1 for value in record.curves[name])


def test_the_meter_of_updates_compares_with_the_start() -> None:
    config = RunConfig(
        block="two-layer", width=12, depth=2, steps=4, batch=8, every=2, meter="updates"
    )
    with nfd.Sweep(progress=False) as sweep:
        (record,) = run_all(sweep, {0: [config]}, "updates")[0]
    dataset = dataset_of(config)
    member = trial_of(config).build()
    net = member.module
    start = copy.deepcopy(member.module)
    probes = dataset.test_inputs[:PROBES]
    n = config.width
    optimizer = nfd.SGD(net.param_groups(config.eta_c, config.rule))
    moved = []
    for step, (x, y) in enumerate(
        zip(*dataset.batches(8, 4, config.data_seed), strict=True), start=1
    ):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        if step % 2 == 0:
            with torch.no_grad():
                streams = net.streams(probes).h
                inner = [
                    h @ (a.weight - b.weight).T
                    for h, a, b in zip(streams, net.inner, start.inner, strict=False)
                ]
                moved.append((torch.stack(inner) / math.sqrt(n), net(probes) - start(probes)))
    for name, values in zip(
        ("inner_update", "function_update"), zip(*moved, strict=True), strict=True
    ):
        wanted = [float(value.square().mean().sqrt()) for value in values]
        assert record.curves[name].tolist() == pytest.approx(wanted, rel=1e-4)
        assert min(wanted) > 0
