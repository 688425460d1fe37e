"""DeferredLinear: exactness against completed dense weights, law, numerics, state and errors."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load, save
from scipy import stats
from torch import Tensor, nn

import nfd
from nfd.nets.deferred import predicted_bytes
from nfd.nets.network import Network
from replay import gap

F64 = torch.float64


def batches(count: int, size: int = 3, d: int = 5) -> list[Tensor]:
    stream = torch.Generator().manual_seed(1)
    return [torch.randn(size, d, generator=stream, dtype=F64) for _ in range(count)]


def awkward_training(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Duplicates, near-duplicates, accumulation, forward without backward, zero inputs, evaluation."""
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
OPTIMIZERS = [{}, {"momentum": 0.9, "weight_decay": 1e-3}, {"momentum": 0.8, "nesterov": True}]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("options", OPTIMIZERS)
def test_completed_dense_network_repeats_every_output(variant: dict[str, object], options: dict[str, object]) -> None:
    def build(weights: str) -> Network:
        return nfd.ResNet(5, 2, 40, 3, weights=weights, seed=5, dtype=F64, **variant)

    assert gap(build, awkward_training, 0.3, "depth-mup", **options) < 1e-10


@pytest.mark.filterwarnings("ignore:A DeferredLinear")
def test_a_full_basis_stays_exact() -> None:
    def build(weights: str) -> Network:
        return nfd.MLP(5, 2, 8, 2, activation="tanh", weights=weights, dtype=F64)

    assert gap(build, awkward_training, 0.3, "mup", momentum=0.5) < 1e-10


@pytest.mark.parametrize("feedback", ["shared", "independent"])
def test_depth_aware_rates_are_exact_too(feedback: str) -> None:
    def build(weights: str) -> Network:
        return nfd.ResNet(5, 2, 30, 4, block="two-layer", weights=weights, feedback=feedback, dtype=F64)

    assert gap(build, awkward_training, 0.1, "depth-mup-inner") < 1e-10


def ask(layer: nfd.DeferredLinear, x: Tensor) -> Tensor:
    """One recorded forward and backward query."""
    y = layer(x)
    y.backward(torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(layer.rank[0])))
    return y.detach()


@pytest.mark.parametrize(("n_in", "n_out"), [(50, 20), (20, 50), (1, 30), (30, 1)])
def test_rectangular_layers_agree_with_their_completion(n_in: int, n_out: int) -> None:
    layer = nfd.DeferredLinear(n_in, n_out, dtype=F64)
    stream = torch.Generator().manual_seed(0)
    x = [torch.randn(2, n_in, dtype=F64, generator=stream) for _ in range(4)]
    with pytest.warns(UserWarning, match="dense") if 1 in (n_in, n_out) else nullcontext():
        y = [ask(layer, v) for v in x]
    W = layer.complete()
    assert isinstance(W, Tensor)
    for a, b in zip(x, y, strict=True):
        torch.testing.assert_close(a @ W.T, b, rtol=0, atol=1e-10)


@pytest.mark.parametrize("feedback", ["shared", "independent"])
def test_completed_weights_are_iid_standard_normal(feedback: str) -> None:
    """Power iteration asks towards the top singular vectors: the entries and the spectrum must not notice."""
    entries, norms, reference = [], [], []
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
            fresh = torch.randn(16, 24, dtype=F64, generator=torch.Generator().manual_seed(seed))
            reference.append(float(torch.linalg.matrix_norm(fresh, 2)))
    assert stats.kstest(torch.cat(entries).numpy(), "norm").pvalue > 1e-3
    assert stats.ks_2samp(norms, reference).pvalue > 1e-3


@pytest.mark.parametrize("feedback", ["shared", "independent"])
def test_law_of_a_training_run_is_that_of_dense_networks(feedback: str) -> None:
    """A check on the check: the output after three large steps, over many seeds, in distribution."""

    def final(weights: str, seed: int) -> float:
        net = nfd.ResNet(2, 1, 12, 2, activation="tanh", weights=weights, feedback=feedback, seed=seed, dtype=F64)
        optimizer = nfd.SGD(net.param_groups(0.5))
        x = torch.tensor([[1.0, 0.5]], dtype=F64)
        for _ in range(3):
            optimizer.zero_grad()
            (0.5 * (net(x) - 1).square().sum()).backward()
            optimizer.step()
        return float(net(x).detach())

    dense = [final("dense", seed) for seed in range(150)]
    deferred = [final("deferred", 1000 + seed) for seed in range(150)]
    assert stats.ks_2samp(dense, deferred).pvalue > 1e-3


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
def test_float32_bases_stay_orthonormal_over_2000_samples(scale: float) -> None:
    layer = nfd.DeferredLinear(2500, 2300)
    stream = torch.Generator().manual_seed(0)
    drift = torch.randn(2500, generator=stream)
    for k in range(50 if scale == 1.0 else 5):
        x = drift + 0.3 * torch.randn(40, 2500, generator=stream)  # correlated, as features are
        x[5] = x[4]
        x[7] = x[6] + 1e-6 * x[8]
        x[9] = 0
        x[10:20] = x[0] if k % 7 == 6 else x[10:20]
        ask(layer, scale * x)
    for frame in (layer.matrix.forward.directions, layer.matrix.backward.directions):
        Q = frame.rows.double()
        assert len(Q) > (1500 if scale == 1.0 else 150)
        assert float((Q @ Q.T - torch.eye(len(Q))).abs().max()) <= 1e-5


def test_rank_reveals_repetition() -> None:
    layer = nfd.DeferredLinear(300, 300)
    x = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    first = layer(x).detach()
    for _ in range(50):
        torch.testing.assert_close(layer(x).detach(), first, rtol=1e-4, atol=1e-3)
    assert layer.rank == (0, 8)
    layer(torch.cat([x, x]))
    layer(x + 1e-7 * torch.roll(x, 1, 0))
    assert layer.rank == (0, 8)


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
    x = batches(1, d=40)[0].requires_grad_()
    y = layer(x)
    g = torch.randn(3, 40, dtype=F64, generator=torch.Generator().manual_seed(3))
    (pulled,) = torch.autograd.grad(y, x, g)
    new = batches(2, d=40)[1]
    with torch.no_grad():
        torch.testing.assert_close(layer(new) @ g.T, new @ pulled.T, rtol=0, atol=1e-10)


def test_state_survives_safetensors_and_continues_bitwise() -> None:
    def build() -> Network:
        return nfd.ResNet(5, 2, 40, 3, activation="tanh", weights="deferred", seed=5)

    inputs = [x.float() for x in batches(8)]

    def train(net: Network, optimizer: nfd.SGD, some: list[Tensor]) -> list[Tensor]:
        outputs = []
        for x in some:
            y = net(x)
            outputs.append(y.detach())
            optimizer.zero_grad()
            y.square().mean().backward()
            optimizer.step()
        return outputs

    net = build()
    optimizer = nfd.SGD(net.param_groups(0.2), momentum=0.9, weight_decay=0.01)
    train(net, optimizer, inputs[:4])
    other = nfd.ResNet(5, 2, 40, 3, activation="tanh", weights="deferred", seed=99)
    other.load_state_dict(load(save(net.state_dict())))
    resumed = nfd.SGD(other.param_groups(0.2), momentum=0.9, weight_decay=0.01)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = train(net, optimizer, inputs[4:])
    assert all(torch.equal(a, b) for a, b in zip(expected, train(other, resumed, inputs[4:]), strict=True))


def test_loading_into_another_layer_is_refused() -> None:
    state = nfd.DeferredLinear(4, 4).state_dict()
    with pytest.raises(RuntimeError, match="independent"):
        nfd.DeferredLinear(4, 4, feedback="independent").load_state_dict(state, strict=False)
    with pytest.raises(RuntimeError, match="4 x 4"):
        nfd.DeferredLinear(5, 4).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing"):
        nfd.DeferredLinear(4, 4).load_state_dict({})


def test_copy_and_conversion_keep_the_layer_usable() -> None:
    layer = nfd.DeferredLinear(30, 30)
    optimizer = nfd.SGD(layer.parameters(), lr=0.01)
    x = batches(1, d=30)[0].float()
    layer(x).square().sum().backward()
    optimizer.step()
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), layer(x))
    wide = copy.deepcopy(layer).double()
    torch.testing.assert_close(wide(x.double()).float(), layer(x), rtol=1e-4, atol=1e-4)


def test_bitwise_repeatable_from_the_seed() -> None:
    def run(seed: int) -> Tensor:
        net = nfd.ResNet(5, 2, 64, 3, weights="deferred", seed=seed)
        return torch.cat(awkward_training(net.double(), nfd.SGD(net.param_groups(0.2))))

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


def test_clipping_the_small_update_clips_the_matrix() -> None:
    layer = nfd.DeferredLinear(30, 20, dtype=F64)
    x = batches(1, d=30)[0]
    g = torch.ones(3, 20, dtype=F64)
    layer(x).backward(g)
    assert layer.update.grad is not None
    torch.testing.assert_close(layer.update.grad.norm(), (g.T @ x).norm())


def test_other_optimizers_are_refused_at_the_next_forward() -> None:
    layer = nfd.DeferredLinear(6, 6)
    optimizer = torch.optim.Adam(layer.parameters())
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    layer(x).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"nfd\.SGD"):
        layer(x)


def test_what_cannot_be_differentiated_is_refused_with_a_reason() -> None:
    layer = nfd.DeferredLinear(6, 6)
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(layer(x).sum(), x, create_graph=True)
    for reentrant in (True, False):
        out = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=reentrant)
        with pytest.raises(RuntimeError, match="checkpoint"):
            out.sum().backward()
    optimizer = nfd.SGD(layer.parameters(), lr=0.1)
    first, second = layer(x).sum(), layer(x).sum()
    first.backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="between a forward pass and its backward"):
        second.backward()


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="in_features must be at least 1; got 0"):
        nfd.DeferredLinear(0, 3)
    with pytest.raises(TypeError, match="out_features must be a whole number"):
        nfd.DeferredLinear(3, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Did you mean 'shared'"):
        nfd.DeferredLinear(3, 3, feedback="share")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="float32 or"):
        nfd.DeferredLinear(3, 3, dtype=torch.float16)
    with pytest.raises(ValueError, match="tolerance must be greater"):
        nfd.DeferredLinear(3, 3, tolerance=0)
    layer = nfd.DeferredLinear(3, 3)
    with pytest.raises(ValueError, match="3 features"):
        layer(torch.zeros(2, 4))
    with pytest.raises(TypeError, match="float32"):
        layer(torch.zeros(2, 3, dtype=F64))


def test_rows_that_are_not_finite_answer_nan_and_reveal_nothing() -> None:
    layer = nfd.DeferredLinear(10, 10)
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    x[1, 4] = torch.inf
    y = layer(x)
    assert torch.isnan(y[1]).all()
    assert torch.isfinite(y[[0, 2]]).all()
    assert layer.rank == (0, 2)
    assert torch.isfinite(layer(x[[0, 2]])).all()


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_bad_first_query_answers_nan_too(dtype: torch.dtype) -> None:
    layer = nfd.DeferredLinear(6, 6, dtype=dtype)
    assert torch.isnan(layer(torch.full((2, 6), torch.nan, dtype=dtype))).all()
    assert layer.rank == (0, 0)


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e-30), (torch.float32, 1e30), (F64, 1e-200), (F64, 1e200)]
)
def test_extreme_scales_neither_overflow_nor_reveal_rounding(dtype: torch.dtype, scale: float) -> None:
    layer = nfd.DeferredLinear(200, 180, dtype=dtype)
    stream = torch.Generator().manual_seed(0)
    x = torch.randn(10, 200, dtype=dtype, generator=stream)
    y = ask(layer, x)
    for _ in range(4):
        torch.testing.assert_close(ask(layer, scale * x) / scale, y, rtol=1e-4, atol=1e-4)
        layer(x).backward(scale * torch.randn(10, 180, dtype=dtype, generator=stream))
    assert layer.rank[1] == 10
    Q = layer.matrix.backward.directions.rows.double()
    assert float((Q @ Q.T - torch.eye(len(Q))).abs().max()) <= 1e-5


def test_gradients_asked_for_the_input_alone_leave_the_weights_alone() -> None:
    layer = nfd.DeferredLinear(6, 6, dtype=F64)
    x = batches(1, d=6)[0].requires_grad_()
    torch.autograd.grad(layer(x).sum(), x)
    assert layer.update.grad is None
    layer(x).sum().backward()
    assert layer.update.grad is not None


def test_inference_mode_evaluates_and_training_goes_on() -> None:
    layer = nfd.DeferredLinear(16, 16, dtype=F64)
    x = batches(1, d=16)[0]
    y = ask(layer, x)
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), y, rtol=0, atol=1e-10)
    ask(layer, x + 1)


def test_a_state_loaded_between_forward_and_backward_or_under_momentum_is_refused() -> None:
    layer, other = nfd.DeferredLinear(20, 20, dtype=F64), nfd.DeferredLinear(20, 20, seed=4, dtype=F64)
    ask(other, batches(1, d=20)[0])
    optimizer = nfd.SGD(layer.parameters(), lr=0.1, momentum=0.9)
    ask(layer, batches(1, d=20)[0])
    optimizer.step()
    y = layer(batches(1, d=20)[0])
    layer.load_state_dict(other.state_dict())
    with pytest.raises(RuntimeError, match="loaded or converted between"):
        y.sum().backward()
    ask(layer, batches(1, d=20)[0])
    with pytest.raises(RuntimeError, match="Load the optimizer's state too"):
        optimizer.step()


def test_a_state_that_contradicts_itself_is_refused_and_nothing_is_lost() -> None:
    layer = nfd.DeferredLinear(8, 8)
    x = batches(1, d=8)[0].float()
    y = ask(layer, x)
    state = layer.state_dict()
    state["forward.drawn"] = torch.zeros(2, 3)
    with pytest.raises(RuntimeError, match=r"forward\.drawn: its shape does not fit"):
        layer.load_state_dict(state)
    torch.testing.assert_close(layer(x).detach(), y, rtol=1e-5, atol=1e-5)


def test_networks_survive_pickling() -> None:
    net = nfd.ResNet(5, 2, 16, 2, weights="deferred")
    x = batches(1)[0].float()
    net(x).sum().backward()
    twin = pickle.loads(pickle.dumps(net))
    assert torch.equal(twin(x), net(x))


def test_half_precision_and_autocast_are_refused_and_nothing_is_lost() -> None:
    layer = nfd.DeferredLinear(6, 6)
    x = batches(1, d=6)[0].float()
    y = ask(layer, x)
    with pytest.raises(TypeError, match="bfloat16"):
        layer.to(torch.bfloat16)
    with pytest.raises(RuntimeError, match="autocast"), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)
    torch.testing.assert_close(layer(x).detach(), y, rtol=1e-5, atol=1e-5)


def test_autograd_grad_of_the_update_is_refused_in_words() -> None:
    layer, x = nfd.DeferredLinear(6, 5), torch.ones(2, 6, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"no gradient of its update to torch\.autograd\.grad"):
        torch.autograd.grad(layer(x).sum(), list(layer.parameters()), allow_unused=True)
    torch.autograd.grad(layer(x).sum(), x)
    assert layer.update.grad is None


@pytest.mark.parametrize("sizes", [(5, 5), (1025, 1537), (1537, 40)])
def test_predicted_bytes_bound_sizes_that_are_not_whole_tiles(sizes: tuple[int, int]) -> None:
    layer = nfd.DeferredLinear(*sizes)
    layer.reserve(4)
    layer(torch.ones(4, sizes[0]).cumsum(0).sin().requires_grad_()).square().sum().backward()
    layer(torch.eye(4, sizes[0], requires_grad=True)[:3]).square().sum().backward()
    momentum = layer.update.nbytes + layer.scale.nbytes
    assert layer.nbytes + momentum <= predicted_bytes(*sizes, 4, itemsize=4)
