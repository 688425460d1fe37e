"""Layers without stored weights: exactness beside dense twins, laws of their matrices, state, and
what they refuse.
"""

from __future__ import annotations

import copy
import gc
import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scipy import stats
from scipy.linalg import hadamard as sylvester
from torch import Tensor, nn

import nfd
from nfd.core.random import Increment
from nfd.data import digits
from nfd.families.network import Network
from nfd.wide.rotated import RotatedMatrix
from nfd.wide.rotated import hadamard as in_place
from replay import gap

F64 = torch.float64
CPU = torch.device("cpu")
LAYERS = {
    "deferred": nfd.DeferredLinear,
    "structured": partial(nfd.StructuredLinear, resolution=1e-10, basis="inputs"),
    "structured-gradients": partial(nfd.StructuredLinear, resolution=1e-10, basis="gradients"),
}
Layer = Callable[..., Any]  # a DeferredLinear or a StructuredLinear, which is alike
every_layer = pytest.mark.parametrize("layer_of", LAYERS.values(), ids=LAYERS.keys())
both_kinds = pytest.mark.parametrize("kind", [nfd.DeferredLinear, nfd.StructuredLinear])
both_weights = pytest.mark.parametrize("weights", ["deferred", "structured"])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def batches(count: int, size: int = 3, d: int = 5) -> list[Tensor]:
    stream = torch.Generator().manual_seed(1)
    return [torch.randn(size, d, generator=stream, dtype=F64) for _ in range(count)]


def stored(trained: nn.Sequential, start: nn.Sequential) -> nn.Sequential:
    """The start of a model with the completed weights of its trained copy in layers of PyTorch."""
    twin = copy.deepcopy(start)
    for index, layer in enumerate(trained):
        if isinstance(layer, nfd.DeferredLinear | nfd.StructuredLinear):
            W = layer.complete()
            dense = nn.Linear(
                layer.in_features, layer.out_features, bias=layer.bias is not None, dtype=F64
            )
            dense.weight = nn.Parameter(W)
            if layer.bias is not None:
                dense.bias = nn.Parameter(start[index].bias.detach().clone())
            twin[index] = dense
    return twin


# ---- beside a dense network


def awkward_training(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Duplicates, near-duplicates, accumulation, forward without backward, zero inputs,
    evaluation.
    """
    inputs = batches(9)
    inputs[2] = inputs[1]
    inputs[3][1] = inputs[3][0]
    inputs[4][2] = inputs[4][0] + 1e-6 * inputs[4][1]
    inputs[5][0] = 0
    outputs = []
    for k, x in enumerate(inputs):
        y = net(x)
        outputs.append(y.detach())
        if k == 6:
            continue  # recorded, never differentiated
        (torch.tanh(y) * (k + 1)).square().mean().backward()
        if k % 3 != 1:  # otherwise accumulate
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            net(-x)
    return outputs


VARIANTS = [
    {"activation": "tanh"},
    {"activation": "relu", "feedback": "independent"},
    {"activation": "gelu", "feedback": "static"},
    {"activation": "tanh", "block": "two-layer"},
    {"activation": "erf", "block": "two-layer", "feedback": "independent"},
    {"activation": "tanh", "order": "post"},
]
OPTIMIZERS = [
    {},
    {"momentum": 0.9, "weight_decay": 1e-3, "foreach": True},
    {"momentum": 0.8, "nesterov": True, "fused": True},
    {"momentum": 0.5, "dampening": 0.3, "maximize": True},
]


@both_weights
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", OPTIMIZERS)
def test_completed_dense_network_repeats_every_output(
    variant: dict[str, object], options: dict[str, object], weights: str
) -> None:
    def build(weights: str) -> Network:
        return nfd.ResNet(5, 2, 40, 3, weights=weights, seed=5, dtype=F64, **variant)

    assert gap(build, awkward_training, 0.3, "depth-mup", weights, **options) < 1e-12


SCALINGS = {
    "nothing": lambda p: None,
    "clip_grad_norm_": lambda p: nn.utils.clip_grad_norm_(p, 1e-3, error_if_nonfinite=True),
    "clip_grad_norm_ of infinite order": lambda p: nn.utils.clip_grad_norm_(
        p, 1e-3, norm_type=math.inf
    ),
    "mul": lambda p: [q.grad.mul_(0.3) for q in p],
    "div": lambda p: [q.grad.div_(1024.0) for q in p],
    "negative": lambda p: [q.grad.neg_() for q in p],
    "a scaled copy": lambda p: [setattr(q, "grad", q.grad * 0.5) for q in p],
    "foreach": lambda p: torch._foreach_mul_([q.grad for q in p], 0.25),
    "zero": lambda p: [q.grad.zero_() for q in p],
    "None": lambda p: [setattr(q, "grad", None) for q in p],
}


@both_weights
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_scaling_a_gradient_as_a_whole_is_that_of_the_dense_network(
    scaling: str, dtype: torch.dtype, weights: str
) -> None:
    """Between two backward passes and before a step, over several layers; the first step keeps its
    gradient.
    """

    def build(weights: str) -> Network:
        return nfd.ResNet(5, 2, 30, 2, activation="tanh", weights=weights, seed=5, dtype=dtype)

    def program(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        outputs = []
        for k, x in enumerate(batches(6)):
            y = net(x.to(dtype))
            outputs.append(y.detach())
            (3 * y + 1).square().mean().backward()
            SCALINGS[scaling](list(net.parameters()))
            if k % 2:
                optimizer.step()
                optimizer.zero_grad(set_to_none=k % 4 == 1)
        return outputs

    assert gap(build, program, 0.3, "depth-mup", weights, momentum=0.5) < (
        1e-12 if dtype == F64 else 1e-4
    )


# ---- in place of nn.Linear


@every_layer
def test_a_standard_deviation_is_a_factor_and_nothing_else(layer_of: Layer) -> None:
    """Bit for bit where the factor is a power of two; so one alone, the default, changes
    nothing.
    """
    one, four = (layer_of(40, 30, std=std, seed=5) for std in (1.0, 4.0))
    x = normal(3, 40, dtype=torch.float32).requires_grad_()
    y = one(x)
    z = four(x)
    assert torch.equal(4 * y, z)
    assert torch.equal(*(torch.autograd.grad(out.sum(), x)[0] * f for out, f in ((y, 4), (z, 1))))
    assert torch.equal(layer_of(40, 30, seed=5)(x), y)


@pytest.mark.parametrize("feedback", ["independent", "static"])
@every_layer
def test_the_feedback_matrix_has_the_same_standard_deviation(
    layer_of: Layer, feedback: str
) -> None:
    layer = layer_of(30, 20, bias=True, std=0.1, feedback=feedback, seed=0, dtype=F64)
    x = normal(3, 30).requires_grad_()
    y = layer(x)
    y.sum().backward()
    W, B = layer.complete()
    torch.testing.assert_close(y, x @ W.T + layer.bias)
    torch.testing.assert_close(x.grad, torch.ones(3, 20, dtype=F64) @ B)
    if isinstance(layer, nfd.StructuredLinear):  # of others, what was not drawn yet is another draw
        for now, start in zip(layer.dense_weights(), (W, B), strict=True):
            torch.testing.assert_close(now, start)


@every_layer
def test_a_matrix_that_starts_at_zero_learns(layer_of: Layer) -> None:
    layer = layer_of(30, 20, std=0.0, seed=0, dtype=F64)
    x = normal(3, 30)

    def closure() -> Tensor:
        loss = (layer(x) - 1).square().mean()
        loss.backward()
        return loss

    assert nfd.SGD(layer.parameters(), lr=0.1).step(closure).item() == 1.0
    assert layer(x).all()


def test_biases_begin_as_those_of_pytorch() -> None:
    bias = nfd.DeferredLinear(16, 4000, bias=True).bias
    assert float(bias.detach().abs().max()) <= 1 / 4
    assert float(bias.detach().std()) == pytest.approx(1 / 4 / math.sqrt(3), rel=0.05)


@both_kinds
def test_training_after_loading_leaves_what_was_loaded_as_it_is(kind: Layer) -> None:
    """One state begins several runs, also where the directions are complete, so that no step needs
    more memory.
    """
    first, other = (kind(30, 20, seed=0) for _ in range(2))

    def train(layer: Any) -> None:
        optimizer = nfd.SGD(layer.parameters(), lr=1e-3, weight_decay=0.1)
        for rows in normal(3, 60, 30, dtype=torch.float32):
            optimizer.zero_grad()
            layer(rows).square().mean().backward()
            optimizer.step()

    train(first)
    state = first.state_dict()
    kept = copy.deepcopy(state)
    other.load_state_dict(state)
    train(other)
    train(first)
    assert all(
        torch.equal(state[name], kept[name]) for name in kept if isinstance(kept[name], Tensor)
    )


def test_a_momentum_of_before_loading_is_refused_and_double_precision_continues() -> None:
    layer = nfd.DeferredLinear(40, 30)
    x = batches(1, d=40)[0].float()
    optimizer = nfd.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    layer(x).square().mean().backward()
    optimizer.step()
    y = layer(x).detach()
    optimizer.zero_grad()
    layer.double()
    torch.testing.assert_close(layer(x.double()).detach(), y.double(), rtol=1e-5, atol=1e-5)
    layer.load_state_dict(layer.state_dict())
    layer(x.double()).square().mean().backward()
    with pytest.raises(RuntimeError, match="which was loaded or converted since"):
        optimizer.step()


# ---- deferred: the law of its matrix, and queries that are not recorded


def ask(layer: nfd.DeferredLinear, x: Tensor) -> Tensor:
    """One recorded forward and backward query."""
    y = layer(x)
    y.backward(normal(*y.shape, seed=layer.rank[0], dtype=y.dtype))
    return y.detach()


@pytest.mark.parametrize("feedback", ["shared", "independent"])
def test_completed_weights_are_iid_standard_normal(feedback: str) -> None:
    """Power iteration asks towards the top singular vectors: the entries and the spectrum must not
    notice.
    """
    entries = []
    norms = []
    reference = []
    for seed in range(80):
        layer = nfd.DeferredLinear(24, 16, feedback=feedback, seed=seed, dtype=F64)
        x = torch.eye(24, dtype=F64)[:3] + 0.1
        for _ in range(3):
            y = layer(x.requires_grad_())
            (x,) = torch.autograd.grad(y, x, y)
        W = layer.complete(seed=seed)
        for M in (W,) if isinstance(W, Tensor) else W:
            entries.append(M.flatten())
            norms.append(float(torch.linalg.matrix_norm(M, 2)))
            reference.append(float(torch.linalg.matrix_norm(normal(16, 24, seed=seed), 2)))
    assert stats.kstest(torch.cat(entries).numpy(), "norm").pvalue > 1e-3
    assert stats.ks_2samp(norms, reference).pvalue > 1e-3


@pytest.mark.parametrize(
    ("samples", "scale"),
    [
        (400, 1.0),
        *(pytest.param(n, 1.0, marks=pytest.mark.slow) for n in (1000, 2000)),
        (200, 1e-12),
        (200, 1e12),
    ],
)
def test_float32_bases_stay_orthonormal_over_many_samples(samples: int, scale: float) -> None:
    n = max(1250, samples + samples // 4)
    layer = nfd.DeferredLinear(n, n - 200)
    stream = torch.Generator().manual_seed(0)
    drift = torch.randn(n, generator=stream)
    for k in range(samples // 40):
        x = drift + 0.3 * torch.randn(40, n, generator=stream)  # correlated, as features are
        x[5] = x[4]
        x[7] = x[6] + 1e-6 * x[8]
        x[9] = 0
        x[10:20] = x[0] if k % 7 == 6 else x[10:20]
        ask(layer, scale * x)
    for frame in (layer.matrix.forward.directions, layer.matrix.backward.directions):
        Q = frame.rows.double()
        assert len(Q) > 0.7 * samples
        # 1e-6 is usual, and 6e-6 without the overlap
        assert float((Q @ Q.T - torch.eye(len(Q))).abs().max()) <= 4e-6


@pytest.mark.parametrize("mode", ["eval", "no_grad"])
def test_unrecorded_queries_change_nothing_and_are_conditional_draws(mode: str) -> None:
    layer = nfd.DeferredLinear(60, 50, dtype=F64)
    twin = copy.deepcopy(layer)
    x, new = batches(2, d=60)
    y = ask(layer, x)
    ask(twin, x)
    before = {k: v.clone() for k, v in layer.state_dict().items()}
    layer.train(mode != "eval")
    with torch.set_grad_enabled(mode != "no_grad"):
        both = layer(torch.cat([x, new]))
        repeated = layer(torch.cat([x, new]))
    layer.train()
    torch.testing.assert_close(both[:3], y, rtol=0, atol=1e-10)
    assert torch.equal(both, repeated)
    assert all(torch.equal(before[k], v) for k, v in layer.state_dict().items())
    assert torch.equal(ask(layer, new), ask(twin, new))
    assert not torch.equal(both[3:].detach(), layer(new).detach())


def test_an_unrecorded_draw_honours_what_the_backward_pass_learned() -> None:
    layer = nfd.DeferredLinear(40, 40, dtype=F64)
    x, new = batches(2, d=40)
    g = normal(3, 40, seed=3)
    (pulled,) = torch.autograd.grad(layer(x.requires_grad_()), x, g)
    with torch.no_grad():
        torch.testing.assert_close(layer(new) @ g.T, new @ pulled.T, rtol=0, atol=1e-10)


def test_rows_that_are_not_finite_answer_nan_and_reveal_nothing() -> None:
    layer = nfd.DeferredLinear(10, 10)
    x = normal(3, 10, dtype=torch.float32)
    x[1, 4] = torch.inf
    y = layer(x)
    assert torch.isnan(y[1]).all()
    assert torch.isfinite(y[[0, 2]]).all()
    assert layer.rank == (0, 2)
    assert torch.isfinite(layer(x[[0, 2]])).all()


def test_layers_without_a_seed_are_independent_and_repeat_under_manual_seed() -> None:
    """With one seed for all, W x and V relu(W x) had the correlation 1."""

    def two() -> tuple[Tensor, Tensor, Tensor]:
        first = nfd.DeferredLinear(600, 600)
        second = nfd.DeferredLinear(600, 600)
        y = first(x).detach()
        return y, second(torch.relu(y)).detach(), second(x).detach()

    x = normal(4, 600, dtype=torch.float32)
    torch.manual_seed(3)
    y, z, w = two()
    for other in (z, w):
        assert abs(
            float(torch.corrcoef(torch.stack([y.flatten(), other.flatten()]))[0, 1])
        ) < 5 / math.sqrt(2400)
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip((y, z, w), two(), strict=True))


# ---- structured: the transform and the law of its matrix


def matrix(n_in: int, n_out: int, seed: int = 0) -> RotatedMatrix:
    return RotatedMatrix(n_in, n_out, source=Increment(seed), name="forward", dtype=F64, device=CPU)


def hadamard(x: Tensor) -> Tensor:
    return in_place(x.clone(), torch.empty_like(x))[0]


def dense(W: RotatedMatrix, n_in: int) -> Tensor:
    return W.product(torch.eye(n_in, dtype=F64)).T


@pytest.mark.parametrize("bits", [0, 1, 3, 6, 7, 9])
def test_the_transform_is_that_of_sylvesters_matrix(bits: int) -> None:
    n = 2**bits
    expected = torch.from_numpy(sylvester(n) / math.sqrt(n)).to(F64)
    torch.testing.assert_close(hadamard(torch.eye(n, dtype=F64)), expected, rtol=0, atol=1e-14)


SIZES = [(512, 512), (512, 2048), (2048, 512), (700, 300), (300, 700), (700, 700), (1, 5)]


@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
def test_the_transposed_product_is_that_of_the_same_matrix(n_in: int, n_out: int) -> None:
    W = matrix(n_in, n_out)
    torch.testing.assert_close(W.transposed_product(torch.eye(n_out, dtype=F64)), dense(W, n_in))


@pytest.mark.parametrize(("n_in", "n_out"), SIZES[:-1])
def test_singular_values_have_the_moments_of_marchenko_and_pastur(n_in: int, n_out: int) -> None:
    """``tr (W'W / n)^k`` of Gaussian matrices in the limit; at finite n they are 1/n away, times a
    few.
    """
    W = dense(matrix(n_in, n_out), n_in)
    large = max(n_in, n_out)
    small = min(n_in, n_out)
    c = small / large
    eigenvalues = torch.linalg.svdvals(W).square() / large
    for power, limit in ((1, 1.0), (2, 1 + c), (3, 1 + 3 * c + c**2)):
        assert abs(float(eigenvalues.pow(power).mean()) - limit) < 10 * power**2 / small
    assert abs(float(eigenvalues.max()) - (1 + math.sqrt(c)) ** 2) < 0.15
    assert abs(float(W.mean())) < 5 / math.sqrt(n_in * n_out)
    assert abs(float(W.pow(4).mean()) - 3) < 0.1


ALIGNED = {
    "constant": torch.ones(1, 1024, dtype=F64),
    "unit vector": 32 * torch.eye(1024, dtype=F64)[7:8],
    "row of the transform": 32 * hadamard(torch.eye(1024, dtype=F64))[5:6],
}


@pytest.mark.parametrize("x", ALIGNED.values(), ids=ALIGNED.keys())
def test_vectors_that_are_aligned_with_the_transform_are_nothing_special(x: Tensor) -> None:
    """Answers have the kurtosis of normal numbers, forward and backward; without signs they are
    constant or a spike.
    """
    answers = [
        y / 32
        for W in (matrix(1024, 1024, seed) for seed in range(12))
        for y in (W.product(x), W.transposed_product(x))
    ]
    kurtosis = [float(y.pow(4).mean() / y.square().mean() ** 2) for y in answers]
    assert (
        abs(statistics.mean(kurtosis) - 3)
        < 4 * statistics.stdev(kurtosis) / math.sqrt(len(kurtosis)) + 6 / 1024
    )
    assert abs(statistics.mean(float(y.square().mean()) for y in answers) - 1) < 0.05


def increment(index: int, count: int, n: int = 256) -> Tensor:
    """The matrix of an increment of one path."""
    return nfd.StructuredLinear(n, n, seed=Increment(5, index, count), dtype=F64).complete()


@pytest.mark.parametrize("count", [2, 8, 12])
def test_the_halves_of_an_increment_add_up_to_it(count: int) -> None:
    for index in (0, count // 2 - 1):
        halves = increment(2 * index, count, 40) + increment(2 * index + 1, count, 40)
        torch.testing.assert_close(halves / math.sqrt(2), increment(index, count // 2, 40))


def test_an_increment_has_the_limit_of_one_matrix_and_is_free_of_the_others() -> None:
    """Moments of circular elements that are free of each other, though increments of a path share
    matrices.
    """
    n = 256
    W = increment(3, 8)
    V = increment(4, 8)

    def moment(*factors: Tensor) -> float:
        return float(torch.linalg.multi_dot(factors).trace()) / n ** (1 + len(factors) / 2)

    for power, limit in ((1, 1.0), (2, 2.0), (3, 5.0)):
        assert abs(moment(*[W.T, W] * power) - limit) < 10 * power**2 / n
    # of free ones, and of one and the same
    for A, of_others in ((V, (0.0, 1.0, 0.0)), (W, (1.0, 2.0, 2.0))):
        words = (W.T, A), (W.T, W, A.T, A), (W.T, A, W.T, A)
        for word, limit in zip(words, of_others, strict=True):
            assert abs(moment(*word) - limit) < 40 / n


def first_step(
    weights: str, feedback: str, seed: int, coupled: bool, width: int = 1024, depth: int = 16
) -> float:
    """How far a small step moves the output of a repeated input, over the rate."""
    net = nfd.ResNet(
        8, 1, width, depth, weights=weights, feedback=feedback, seed=seed, coupled=coupled
    )
    rate = 1e-3
    x = torch.ones(1, 8)
    y = net(x)
    y.sum().backward()
    nfd.SGD(net.param_groups(rate), maximize=True).step()
    return float((net(x) - y).detach()) / rate


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize(
    ("feedback", "kind", "other"),
    [("shared", "ntk", "independent-feedback"), ("independent", "independent-feedback", "ntk")],
)
def test_the_first_step_is_that_of_gaussian_weights(
    feedback: str, kind: str, other: str, coupled: bool
) -> None:
    """The response term is there with shared feedback, and gone with independent feedback."""
    steps = [first_step("structured", feedback, seed, coupled) for seed in range(8)]
    mean = statistics.mean(steps)
    error = statistics.stdev(steps) / math.sqrt(len(steps))
    limit, wrong = (
        float(nfd.kernel(torch.ones(1, 8), kind=name, depth=16)) for name in (kind, other)
    )
    assert abs(mean - limit) < 4 * error
    assert abs(mean - wrong) > 6 * error


# ---- structured: samples that are recorded, and compressed

every_basis = pytest.mark.parametrize("basis", ["inputs", "gradients"])


def trained(net: Any, optimizer: Any, steps: range) -> list[Tensor]:
    """Outputs of a training that accumulates, clips, follows a schedule, and steps twice by one
    gradient.
    """
    x, y = digits().batches(6, 40, 0)
    outputs = []
    for k in steps:
        out = net(x[k].double())
        outputs.append(out.detach())
        nn.functional.cross_entropy(out, y[k]).backward()
        if k % 5 == 4:
            continue
        if net.feedback != "independent":  # there the dense network has every gradient twice
            nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        optimizer.param_groups[1]["lr"] *= 0.98
        for _ in range(2 if k % 7 == 3 else 1):
            optimizer.step()
        optimizer.zero_grad(set_to_none=k % 2 == 0)
    return outputs


@pytest.mark.parametrize("feedback", ["shared", "independent", "static"])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.5, "weight_decay": 1e-3}, {"momentum": 0.9, "nesterov": True}]
)
def test_samples_that_were_compressed_repeat_the_dense_network(
    feedback: Any, options: dict[str, Any]
) -> None:
    def build(weights: str) -> Network:
        return nfd.ResNet(64, 10, 50, 2, weights=weights, feedback=feedback, seed=1, dtype=F64)

    def program(net: Any, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        outputs = trained(net, optimizer, range(40))
        assert net.weights == "dense" or all(
            layer.basis is not None and layer.rank < 170 for layer in net.outer
        )
        assert float((outputs[-1] - outputs[0]).abs().max()) > 0.01
        return outputs

    assert gap(build, program, 0.2, "depth-mup", "structured", **options) < 1e-12


def test_a_training_that_goes_on_after_a_compression_is_the_training() -> None:
    def made() -> tuple[Any, Any]:
        net = nfd.ResNet(64, 10, 40, 2, weights="structured", seed=1).double()
        return net, nfd.SGD(net.param_groups(0.5), momentum=0.9, weight_decay=1e-3)

    (net, optimizer) = made()
    (other, again) = made()
    trained(net, optimizer, range(21))
    other.load_state_dict(copy.deepcopy(net.state_dict()))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    copied = copy.deepcopy(net)
    assert torch.equal(copied(torch.ones(2, 64).double()), net(torch.ones(2, 64).double()))
    torch.testing.assert_close(
        trained(net, optimizer, range(21, 40)), trained(other, again, range(21, 40))
    )


@every_basis
@pytest.mark.parametrize("resolution", [1e-10, 0.05])
def test_directions_that_a_pass_adds_are_seen_by_another_that_began_before_it(
    basis: str, resolution: float
) -> None:
    """Two forward passes, then their two backward passes: the first of these adds directions."""
    layer = nfd.StructuredLinear(
        30, 20, std=0.2, seed=0, basis=basis, resolution=resolution, dtype=F64
    )
    x = normal(9, 30)
    g = normal(9, 20, seed=1)
    rows = x.clone()
    layer(rows[:3]).backward(g[:3])
    answers = [layer(rows[3:6]), layer(rows[6:])]
    for y, gradient in zip(answers, (g[3:6], g[6:]), strict=True):
        y.backward(gradient)
    rows.zero_()  # as where batches are read into the same memory
    start = layer.complete()
    nfd.SGD(layer.parameters(), lr=0.1).step()
    torch.testing.assert_close(layer.dense_weights(), start - 0.1 * g.T @ x)


@every_basis
def test_a_gradient_is_shown_with_the_norm_of_that_of_the_dense_weights(basis: Any) -> None:
    """Also where it outlives a step, which compresses its first samples; those that come later are
    held as they are.
    """
    layer = nfd.StructuredLinear(30, 20, seed=0, basis=basis, dtype=F64)
    x = normal(60, 30)
    g = normal(60, 20, seed=1)
    for _ in range(2):
        layer(x[:5]).backward(g[:5])
    assert float(layer.update.grad.norm()) == pytest.approx(2 * float((g[:5].T @ x[:5]).norm()))
    layer.zero_grad()
    assert layer.rank == 0  # what no step has seen is forgotten
    optimizer = nfd.SGD(layer.parameters(), lr=0.1)
    layer(x).backward(g)
    optimizer.step()
    assert float(layer.update.grad.norm()) == pytest.approx(float((g.T @ x).norm()))
    layer(x[:9]).backward(3 * g[:9])
    twice = g.T @ x + 3 * g[:9].T @ x[:9]
    assert float(layer.update.grad.norm()) == pytest.approx(float(twice.norm()))
    start = layer.dense_weights()
    optimizer.step()
    torch.testing.assert_close(layer.dense_weights(), start - 0.1 * twice)


# ---- what is refused


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"in_features": 0}, ValueError, "in_features must be at least 1; got 0"),
    ({"out_features": 2.5}, TypeError, "out_features must be a whole number"),
    ({"feedback": "share"}, ValueError, "Did you mean 'shared'"),
    ({"dtype": torch.float16}, ValueError, "float32 or"),
    *(({"std": std}, ValueError, "std must be") for std in (-1.0, math.nan, math.inf, 1e13)),
    *(({"resolution": own}, ValueError, "resolution must be") for own in (-0.1, 1.0, math.nan)),
    ({"basis": "outputs"}, ValueError, "basis must be"),
]


@both_kinds
@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_named(
    kind: Layer, arguments: Any, error: type[Exception], message: str
) -> None:
    unknown = kind is nfd.DeferredLinear and arguments.keys() & {"resolution", "basis"}
    with pytest.raises(
        TypeError if unknown else error, match="unexpected keyword" if unknown else message
    ):
        kind(**({"in_features": 3, "out_features": 3} | arguments))


@both_kinds
def test_what_does_not_fit_a_layer_is_refused(kind: Layer) -> None:
    layer = kind(6, 6)
    state = kind(6, 6).state_dict()
    with pytest.raises(ValueError, match="6 features"):
        layer(torch.zeros(2, 4))
    with pytest.raises(TypeError, match="float32"):
        layer(torch.zeros(2, 6, dtype=F64))
    with pytest.raises(RuntimeError, match="independent"):
        kind(6, 6, feedback="independent").load_state_dict(state, strict=False)
    with pytest.raises(RuntimeError, match="6 x 6"):
        kind(5, 6).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing"):
        layer.load_state_dict({})
    for place in (torch.bfloat16, "meta"):
        with pytest.raises(TypeError, match=str(place)):
            layer.to(place)
    with pytest.raises(RuntimeError, match="autocast"), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.ones(2, 6))
    assert torch.isfinite(layer(torch.ones(2, 6))).all()
    with pytest.raises(ValueError, match="optimizer"):
        nfd.ResNet(3, 2, 8, 2, weights="structured").param_groups(0.1, optimizer="adam")


def test_what_cannot_be_differentiated_is_refused_with_a_reason() -> None:
    layer = nfd.DeferredLinear(6, 6)
    x = normal(2, 6, dtype=torch.float32).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
    for reentrant in (True, False):
        out = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
        with pytest.raises(RuntimeError, match="checkpoint"):
            out.sum().backward()
    optimizer = nfd.SGD(layer.parameters(), lr=0.1)
    first = layer(x).sum()
    second = layer(x).sum()
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="between a forward pass and its backward"):
        second.backward()


def with_gradient(layer_of: Layer = nfd.DeferredLinear) -> Any:
    layer = layer_of(90, 80, seed=1, dtype=F64)
    for x in batches(2, d=90):
        torch.tanh(layer(x)).square().mean().backward()
    return layer


EDITS = {
    "clip_grad_value_": lambda layer: nn.utils.clip_grad_value_(layer.parameters(), 1e-6),
    "sign": lambda layer: layer.update.grad.sign_(),
    "noise": lambda layer: layer.update.grad.add_(1e-3 * torch.ones_like(layer.update.grad)),
    "one entry": lambda layer: layer.update.grad.view(-1)[:1].mul_(2),
    "replaced": lambda layer: setattr(layer.update, "grad", torch.ones_like(layer.update.grad)),
    "scale": lambda layer: layer.scale.grad.add_(1.0),
    "an average with another process": lambda layer: layer.update.grad.lerp_(
        layer.update.grad.flip(0), 0.5
    ),
}


@every_layer
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("again", [False, True])
def test_an_edit_of_a_gradient_by_entries_is_refused_and_nothing_moves(
    layer_of: Layer, edit: str, again: bool
) -> None:
    layer = with_gradient(layer_of)
    before = layer.dense_weights(seed=0)
    EDITS[edit](layer)

    def go_on() -> None:
        if again and edit != "scale":
            layer(batches(1, d=90)[0]).sum().backward()
        nfd.SGD(layer.parameters(), lr=0.1).step()

    with pytest.raises(RuntimeError, match=r"was changed: it is not .*clip_grad_norm_"):
        go_on()
    if not again:
        assert torch.equal(layer.dense_weights(seed=0), before)


@every_layer
@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_of_pytorch_is_refused(layer_of: Layer, make: Any, foreach: bool) -> None:
    layer = with_gradient(layer_of)
    make(layer.parameters(), lr=0.1, foreach=foreach).step()
    with pytest.raises(RuntimeError, match=r"changed by something other than nfd\.SGD"):
        layer(batches(1, d=90)[0])


@pytest.mark.parametrize("rule", [nfd.SGD, nfd.Muon])
def test_the_two_parts_of_a_matrix_are_stepped_alike_or_not_at_all(rule: Any) -> None:
    """The usual split, no decay for tensors without two dimensions, would decay D and leave s."""
    layer = with_gradient()
    split = [
        {"params": [layer.update], "weight_decay": 0.1},
        {"params": [layer.scale], "weight_decay": 0.0},
    ]
    for groups in (split, split[:1]):
        with pytest.raises(RuntimeError, match="two parts of one matrix"):
            rule(groups, lr=0.1).step()
    rule([layer.update], lr=0.1, weight_decay=0.0).step()
    layer.update.grad = None
    with pytest.raises(RuntimeError, match="two parts of one matrix"):
        rule(layer.parameters(), lr=0.1, weight_decay=0.1).step()


# ---- programs that PyTorch records instead of running


# PyTorch's, of what it reads itself
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_compiled_network_leaves_the_layer_out_of_its_graphs_and_is_the_same() -> None:
    def outputs(compiled: bool) -> Tensor:
        torch.manual_seed(0)
        net: nn.Module = nn.Sequential(nn.Linear(5, 40), nfd.DeferredLinear(40, 30), nn.Tanh())
        run = torch.compile(net, backend="eager") if compiled else net
        optimizer = nfd.SGD(net.parameters(), lr=0.01)
        found = []
        for x in batches(3):
            optimizer.zero_grad()
            found.append(run(x.float()))
            found[-1].square().mean().backward()
            optimizer.step()
        return torch.cat(found).detach()

    torch._dynamo.reset()
    assert torch.equal(outputs(compiled=True), outputs(compiled=False))
    torch._dynamo.reset()
    whole = torch.compile(nfd.DeferredLinear(40, 30), backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        whole(torch.ones(2, 40))


@both_kinds
def test_programs_that_are_transformed_are_refused(kind: Layer) -> None:
    layer = kind(40, 30)
    x = torch.ones(2, 40)
    for transformed in (
        lambda: torch.vmap(layer)(x),
        lambda: torch.func.grad(lambda x: layer(x).sum())(x),
        lambda: torch.func.jvp(layer, (x,), (x,)),
    ):
        with pytest.raises(RuntimeError, match="transforms"):
            transformed()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward"):
        kind(40, 30)(torch.autograd.forward_ad.make_dual(x, x))


@pytest.mark.parametrize("weights", ["dense", "deferred", "structured"])
def test_a_trained_network_is_freed_at_once(weights: Any) -> None:
    """Not when Python next looks for cycles: a sweep would hold the networks of many trials."""
    batches = list(zip(*digits().batches(4, 3, seed=0), strict=True))
    trial = nfd.Trial(
        nfd.resnets(64, 10), nfd.Task(batches), 16, 2, seed=0, lr=0.1, weights=weights
    )
    trial.train()  # what is made once
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(one, nn.Parameter) for one in gc.get_objects())
        assert trial.train().status == "done"
        assert sum(isinstance(one, nn.Parameter) for one in gc.get_objects()) == before
    finally:
        gc.enable()
