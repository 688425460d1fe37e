"""StructuredLinear: the transform, the law of its matrices, and the limit of Gaussian weights in training."""

from __future__ import annotations

import copy
import math
import statistics
from typing import Any

import pytest
import torch
from scipy.linalg import hadamard as sylvester
from torch import Tensor, nn

import nfd
from nfd.core.random import Increment
from nfd.data import digits
from nfd.wide.rotated import RotatedMatrix
from nfd.wide.rotated import hadamard as in_place

F64 = torch.float64
CPU = torch.device("cpu")


def matrix(n_in: int, n_out: int, seed: int = 0) -> RotatedMatrix:
    return RotatedMatrix(n_in, n_out, source=Increment(seed), name="forward", dtype=F64, device=CPU)


def hadamard(x: Tensor) -> Tensor:
    return in_place(x.clone(), torch.empty_like(x))[0]


def dense(W: RotatedMatrix, n_in: int) -> Tensor:
    return W.product(torch.eye(n_in, dtype=F64)).T


# ---- the transform ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [0, 1, 3, 6, 7, 9])
def test_the_transform_is_that_of_sylvesters_matrix(bits: int) -> None:
    n = 2**bits
    expected = torch.from_numpy(sylvester(n) / math.sqrt(n)).to(F64)
    torch.testing.assert_close(hadamard(torch.eye(n, dtype=F64)), expected, rtol=0, atol=1e-14)


# ---- the matrix -------------------------------------------------------------------------------------------------

SIZES = [(512, 512), (512, 2048), (2048, 512), (700, 300), (300, 700), (700, 700), (1, 5)]


@pytest.mark.parametrize(("n_in", "n_out"), SIZES)
def test_the_transposed_product_is_that_of_the_same_matrix(n_in: int, n_out: int) -> None:
    W = matrix(n_in, n_out)
    torch.testing.assert_close(W.transposed_product(torch.eye(n_out, dtype=F64)), dense(W, n_in))


@pytest.mark.parametrize(("n_in", "n_out"), SIZES[:-1])
def test_singular_values_have_the_moments_of_marchenko_and_pastur(n_in: int, n_out: int) -> None:
    """``tr (W'W / n)^k`` of Gaussian matrices in the limit; at finite n they are 1/n away, times a few."""
    W = dense(matrix(n_in, n_out), n_in)
    large, small = max(n_in, n_out), min(n_in, n_out)
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
    """Answers have the kurtosis of normal numbers, forward and backward; without signs they are constant or a spike."""
    answers = [
        y / 32
        for W in (matrix(1024, 1024, seed) for seed in range(12))
        for y in (W.product(x), W.transposed_product(x))
    ]
    kurtosis = [float(y.pow(4).mean() / y.square().mean() ** 2) for y in answers]
    assert abs(statistics.mean(kurtosis) - 3) < 4 * statistics.stdev(kurtosis) / math.sqrt(len(kurtosis)) + 6 / 1024
    assert abs(statistics.mean(float(y.square().mean()) for y in answers) - 1) < 0.05


def increment(index: int, count: int, n: int = 256) -> Tensor:
    """The matrix of an increment of one path."""
    W = nfd.StructuredLinear(n, n, seed=Increment(5, index, count), dtype=F64).complete()
    assert isinstance(W, Tensor)
    return W


@pytest.mark.parametrize("count", [2, 8, 12])
def test_the_halves_of_an_increment_add_up_to_it(count: int) -> None:
    for index in (0, count // 2 - 1):
        halves = increment(2 * index, count, 40) + increment(2 * index + 1, count, 40)
        torch.testing.assert_close(halves / math.sqrt(2), increment(index, count // 2, 40))


def test_an_increment_has_the_limit_of_one_matrix_and_is_free_of_the_others() -> None:
    """Moments of circular elements that are free of each other, though increments of a path share matrices."""
    n = 256
    W, V = increment(3, 8), increment(4, 8)

    def moment(*factors: Tensor) -> float:
        return float(torch.linalg.multi_dot(factors).trace()) / n ** (1 + len(factors) / 2)

    for power, limit in ((1, 1.0), (2, 2.0), (3, 5.0)):
        assert abs(moment(*[W.T, W] * power) - limit) < 10 * power**2 / n
    for A, of_others in ((V, (0.0, 1.0, 0.0)), (W, (1.0, 2.0, 2.0))):  # of free ones, and of one and the same
        words = (W.T, A), (W.T, W, A.T, A), (W.T, A, W.T, A)
        for word, limit in zip(words, of_others, strict=True):
            assert abs(moment(*word) - limit) < 40 / n


# ---- training ---------------------------------------------------------------------------------------------------


def first_step(weights: str, feedback: str, seed: int, coupled: bool, width: int = 1024, depth: int = 16) -> float:
    """How far a small step moves the output of a repeated input, over the rate."""
    net = nfd.ResNet(8, 1, width, depth, weights=weights, feedback=feedback, seed=seed, coupled=coupled)
    rate, x = 1e-3, torch.ones(1, 8)
    y = net(x)
    y.sum().backward()
    nfd.SGD(net.param_groups(rate), maximize=True).step()
    return float((net(x) - y).detach()) / rate


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize(
    ("feedback", "kind", "other"),
    [("shared", "ntk", "independent-feedback"), ("independent", "independent-feedback", "ntk")],
)
def test_the_first_step_is_that_of_gaussian_weights(feedback: str, kind: str, other: str, coupled: bool) -> None:
    """The response term is there with shared feedback, and gone with independent feedback."""
    steps = [first_step("structured", feedback, seed, coupled) for seed in range(8)]
    mean, error = statistics.mean(steps), statistics.stdev(steps) / math.sqrt(len(steps))
    limit, wrong = (float(nfd.kernel(torch.ones(1, 8), kind=name, depth=16)) for name in (kind, other))
    assert abs(mean - limit) < 4 * error
    assert abs(mean - wrong) > 6 * error


@pytest.mark.parametrize("basis", ["inputs", "gradients"])
@pytest.mark.parametrize("resolution", [1e-10, 0.05])
def test_directions_that_a_pass_adds_are_seen_by_another_that_began_before_it(basis: str, resolution: float) -> None:
    """Two forward passes, then their two backward passes: the first of these adds directions."""
    layer = nfd.StructuredLinear(30, 20, std=0.2, seed=0, basis=basis, resolution=resolution, dtype=F64)
    stream = torch.Generator().manual_seed(0)
    x, g = torch.randn(9, 30, generator=stream, dtype=F64), torch.randn(9, 20, generator=stream, dtype=F64)
    layer(x[:3]).backward(g[:3])
    answers = [layer(x[3:6]), layer(x[6:])]
    for y, gradient in zip(answers, (g[3:6], g[6:]), strict=True):
        y.backward(gradient)
    start = layer.complete()
    assert isinstance(start, Tensor)
    nfd.SGD(layer.parameters(), lr=0.1).step()
    torch.testing.assert_close(layer.dense_weights(), start - 0.1 * g.T @ x)


def test_an_elementwise_optimizer_and_edited_gradients_are_refused() -> None:
    layer, x = nfd.StructuredLinear(40, 30, seed=0), torch.ones(2, 40)
    layer(x).square().sum().backward()
    assert layer.update.grad is not None
    layer.update.grad.sign_()
    with pytest.raises(RuntimeError, match="grad of a StructuredLinear was changed"):
        nfd.SGD(layer.parameters(), lr=0.1).step()
    torch.optim.Adam(layer.parameters()).step()
    with pytest.raises(RuntimeError, match="weights of a StructuredLinear were changed"):
        layer(x)
    with pytest.raises(RuntimeError, match="transforms"):
        torch.vmap(nfd.StructuredLinear(40, 30))(x)


@pytest.mark.parametrize("basis", ["inputs", "gradients"])
@pytest.mark.parametrize("options", [{}, {"maximize": True}, {"momentum": 0.5}, {"weight_decay": 0.1}])
def test_a_step_is_the_same_whether_or_not_the_gradient_is_read(basis: Any, options: dict[str, Any]) -> None:
    """Unread, a gradient stays in factors; what was read is a tensor, which may be scaled."""
    x, weights = torch.randn(2, 4, 3, 50, dtype=F64, generator=torch.Generator().manual_seed(0)).unbind()
    answers = []
    for read in (False, True):
        layer = nfd.StructuredLinear(50, 50, basis=basis, seed=0, dtype=F64)
        optimizer = nfd.SGD(layer.parameters(), lr=0.1, **options)
        for k in (0, 2):
            optimizer.zero_grad()
            for batch, cotangent in zip(x[k : k + 2].clone(), weights[k : k + 2], strict=True):
                (layer(batch) * cotangent).sum().backward()
                if read:
                    assert layer.update.grad is not None
                    layer.update.grad.mul_(2).mul_(0.5)
                batch.zero_()  # as where batches are read into the same memory
            optimizer.step()
        answers.append(layer(x[0]))
    assert torch.allclose(*answers, rtol=1e-12)


def test_arguments_are_checked() -> None:
    for resolution in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match="resolution must be"):
            nfd.StructuredLinear(3, 3, resolution=resolution)
    with pytest.raises(ValueError, match="optimizer"):
        nfd.ResNet(3, 2, 8, 2, weights="structured").param_groups(0.1, optimizer="adam")
    with pytest.raises(ValueError, match="basis must be"):
        nfd.StructuredLinear(3, 3, basis="outputs")


# ---- samples that are recorded, and compressed ------------------------------------------------------------------


def stored(net: Any) -> Any:
    """A dense network with the same matrices."""
    net = copy.deepcopy(net)
    dense = nfd.ResNet(64, 10, net.width, net.depth, feedback=net.feedback).double()
    with torch.no_grad():
        for name in ("U", "V"):
            dense.get_parameter(name).copy_(net.get_parameter(name))
        for own, twin in zip(net.outer, dense.outer, strict=True):
            matrices = own.matrix.complete(0)
            twin.weight.copy_(matrices[0])
            if net.feedback != "shared":
                twin.feedback_weight.copy_(matrices[1])
    return dense


def trained(net: Any, optimizer: Any, steps: range) -> Tensor:
    """Outputs of a training that accumulates, clips, follows a schedule, and steps twice by one gradient."""
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
    return torch.stack(outputs)


@pytest.mark.parametrize("feedback", ["shared", "independent", "static"])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.5, "weight_decay": 1e-3}, {"momentum": 0.9, "nesterov": True}])
def test_samples_that_were_compressed_repeat_the_dense_network(feedback: Any, options: dict[str, Any]) -> None:
    net = nfd.ResNet(64, 10, 50, 2, weights="structured", feedback=feedback, seed=1).double()
    dense = stored(net)
    found, expected = (trained(n, nfd.SGD(n.param_groups(0.2), **options), range(40)) for n in (net, dense))
    assert all(layer.basis is not None and layer.rank < 170 for layer in net.outer)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert float((found[-1] - found[0]).abs().max()) > 0.01


def test_a_training_that_goes_on_after_a_compression_is_the_training() -> None:
    def made() -> tuple[Any, Any]:
        net = nfd.ResNet(64, 10, 40, 2, weights="structured", seed=1).double()
        return net, nfd.SGD(net.param_groups(0.5), momentum=0.9, weight_decay=1e-3)

    (net, optimizer), (other, again) = made(), made()
    trained(net, optimizer, range(21))
    other.load_state_dict(copy.deepcopy(net.state_dict()))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    copied = copy.deepcopy(net)
    assert torch.equal(copied(torch.ones(2, 64).double()), net(torch.ones(2, 64).double()))
    torch.testing.assert_close(trained(net, optimizer, range(21, 40)), trained(other, again, range(21, 40)))


def test_training_after_loading_leaves_what_was_loaded_as_it_is() -> None:
    """One state begins several runs, also where the directions are complete, so that no step needs more memory."""
    x = torch.randn(3, 60, 30, generator=torch.Generator().manual_seed(0))
    first, other = (nfd.StructuredLinear(30, 20, seed=0) for _ in range(2))

    def train(layer: nfd.StructuredLinear) -> None:
        optimizer = nfd.SGD(layer.parameters(), lr=1e-3, weight_decay=0.1)
        for rows in x:
            optimizer.zero_grad()
            layer(rows).square().mean().backward()
            optimizer.step()

    train(first)
    state = first.state_dict()
    kept = copy.deepcopy(state)
    other.load_state_dict(state)
    train(other)
    train(first)
    assert all(torch.equal(state[name], kept[name]) for name in kept if isinstance(kept[name], Tensor))


def test_a_gradient_is_shown_with_the_norm_of_that_of_the_dense_weights() -> None:
    layer, x = nfd.StructuredLinear(30, 20, seed=0), torch.randn(5, 30, generator=torch.Generator().manual_seed(0))
    g = torch.randn(5, 20, generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        layer(x).backward(g)
    assert layer.update.grad is not None
    assert float(layer.update.grad.norm()) == pytest.approx(2 * float((g.T @ x).norm()), rel=1e-6)
    layer.zero_grad()
    assert layer.rank == 0  # what no step has seen is forgotten


@pytest.mark.parametrize("basis", ["inputs", "gradients"])
def test_a_gradient_that_outlives_a_step_has_its_norm_too(basis: Any) -> None:
    """The step compresses its first samples, and those that come later are held as they are."""
    layer, stream = nfd.StructuredLinear(30, 20, seed=0, basis=basis, dtype=F64), torch.Generator().manual_seed(0)
    x, g = torch.randn(60, 30, generator=stream, dtype=F64), torch.randn(60, 20, generator=stream, dtype=F64)
    optimizer = nfd.SGD(layer.parameters(), lr=0.1)
    layer(x).backward(g)
    optimizer.step()
    assert layer.update.grad is not None
    assert float(layer.update.grad.norm()) == pytest.approx(float((g.T @ x).norm()))
    layer(x[:9]).backward(3 * g[:9])
    twice = g.T @ x + 3 * g[:9].T @ x[:9]
    assert float(layer.update.grad.norm()) == pytest.approx(float(twice.norm()))
    start = layer.dense_weights()
    optimizer.step()
    torch.testing.assert_close(layer.dense_weights(), start - 0.1 * twice)


@pytest.mark.parametrize("feedback", ["independent", "static"])
def test_dense_weights_begin_as_those_that_are_completed(feedback: Any) -> None:
    layer = nfd.StructuredLinear(30, 20, std=0.2, seed=0, feedback=feedback)
    for now, start in zip(layer.dense_weights(), layer.complete(), strict=True):
        torch.testing.assert_close(now, start)
