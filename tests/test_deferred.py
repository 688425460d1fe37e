"""DeferredLinear: exactness against completed dense weights, law, numerics, state and errors."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import nfd
from nfd.families.network import Network
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

    assert gap(build, awkward_training, 0.3, "depth-mup", **options) < 1e-12


def ask(layer: nfd.DeferredLinear, x: Tensor) -> Tensor:
    """One recorded forward and backward query."""
    y = layer(x)
    y.backward(torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(layer.rank[0])))
    return y.detach()


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


@pytest.mark.parametrize(
    ("samples", "scale"),
    [(400, 1.0), *(pytest.param(n, 1.0, marks=pytest.mark.slow) for n in (1000, 2000)), (200, 1e-12), (200, 1e12)],
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
        assert float((Q @ Q.T - torch.eye(len(Q))).abs().max()) <= 4e-6  # 1e-6 is usual, and 6e-6 without the overlap


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


def test_training_after_loading_leaves_what_was_loaded_as_it_is() -> None:
    """One state begins several runs."""
    layer, other = (nfd.DeferredLinear(40, 30) for _ in range(2))

    def train(layer: nfd.DeferredLinear) -> None:
        optimizer = nfd.SGD(layer.parameters(), lr=0.1)
        for x in batches(3, d=40):
            optimizer.zero_grad()
            layer(x.float()).square().mean().backward()
            optimizer.step()

    train(layer)
    state = layer.state_dict()
    kept = copy.deepcopy(state)
    other.load_state_dict(state)
    train(other)
    train(layer)
    assert all(torch.equal(state[name], kept[name]) for name in kept if isinstance(kept[name], Tensor))


def test_a_momentum_of_before_loading_is_refused_and_double_precision_continues() -> None:
    layer, x = nfd.DeferredLinear(40, 30), batches(1, d=40)[0].float()
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


def test_loading_into_another_layer_is_refused() -> None:
    state = nfd.DeferredLinear(4, 4).state_dict()
    with pytest.raises(RuntimeError, match="independent"):
        nfd.DeferredLinear(4, 4, feedback="independent").load_state_dict(state, strict=False)
    with pytest.raises(RuntimeError, match="4 x 4"):
        nfd.DeferredLinear(5, 4).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing"):
        nfd.DeferredLinear(4, 4).load_state_dict({})


def test_what_cannot_be_differentiated_is_refused_with_a_reason() -> None:
    layer = nfd.DeferredLinear(6, 6)
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
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
    layer = nfd.DeferredLinear(3, 3)
    with pytest.raises(ValueError, match="3 features"):
        layer(torch.zeros(2, 4))
    with pytest.raises(TypeError, match="float32"):
        layer(torch.zeros(2, 3, dtype=F64))


def test_biases_begin_as_those_of_pytorch() -> None:
    bias = nfd.DeferredLinear(16, 4000, bias=True).bias
    assert bias is not None
    assert float(bias.detach().abs().max()) <= 1 / 4
    assert float(bias.detach().std()) == pytest.approx(1 / 4 / math.sqrt(3), rel=0.05)


def test_rows_that_are_not_finite_answer_nan_and_reveal_nothing() -> None:
    layer = nfd.DeferredLinear(10, 10)
    x = torch.randn(3, 10, generator=torch.Generator().manual_seed(0))
    x[1, 4] = torch.inf
    y = layer(x)
    assert torch.isnan(y[1]).all()
    assert torch.isfinite(y[[0, 2]]).all()
    assert layer.rank == (0, 2)
    assert torch.isfinite(layer(x[[0, 2]])).all()


def test_half_precision_and_autocast_are_refused_and_nothing_is_lost() -> None:
    layer = nfd.DeferredLinear(6, 6)
    x = batches(1, d=6)[0].float()
    y = ask(layer, x)
    with pytest.raises(TypeError, match="bfloat16"):
        layer.to(torch.bfloat16)
    with pytest.raises(RuntimeError, match="autocast"), torch.autocast("cpu", dtype=torch.bfloat16):
        layer(x)
    torch.testing.assert_close(layer(x).detach(), y, rtol=1e-5, atol=1e-5)


def test_layers_without_a_seed_are_independent_and_repeat_under_manual_seed() -> None:
    """With one seed for all, W x and V relu(W x) had the correlation 1."""

    def two() -> tuple[Tensor, Tensor, Tensor]:
        first, second = nfd.DeferredLinear(600, 600), nfd.DeferredLinear(600, 600)
        y = first(x).detach()
        return y, second(torch.relu(y)).detach(), second(x).detach()

    x = torch.randn(4, 600, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    y, z, w = two()
    for other in (z, w):
        assert abs(float(torch.corrcoef(torch.stack([y.flatten(), other.flatten()]))[0, 1])) < 5 / math.sqrt(2400)
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip((y, z, w), two(), strict=True))


# ---- gradients and weights that others edit ---------------------------------------------------------------------


def with_gradient(n_in: int = 90, n_out: int = 80, dtype: torch.dtype = F64) -> nfd.DeferredLinear:
    layer = nfd.DeferredLinear(n_in, n_out, seed=1, dtype=dtype)
    for x in batches(2, d=n_in):
        torch.tanh(layer(x.to(dtype))).square().mean().backward()
    return layer


def replaced(layer: nfd.DeferredLinear) -> None:
    assert layer.update.grad is not None
    layer.update.grad = torch.ones_like(layer.update.grad)


EDITS = {
    "clip_grad_value_": lambda layer: nn.utils.clip_grad_value_(layer.parameters(), 0.01),
    "sign": lambda layer: layer.update.grad.sign_(),
    "noise": lambda layer: layer.update.grad.add_(1e-3 * torch.ones_like(layer.update.grad)),
    "one entry": lambda layer: layer.update.grad[0, 0].mul_(2),
    "replaced": replaced,
    "scale": lambda layer: layer.scale.grad.add_(1.0),
    "an average with another process": lambda layer: layer.update.grad.lerp_(layer.update.grad.flip(0), 0.5),
}
SCALINGS = {
    "nothing": lambda p: None,
    "clip_grad_norm_": lambda p: nn.utils.clip_grad_norm_(p, 1e-3, error_if_nonfinite=True),
    "clip_grad_norm_ of infinite order": lambda p: nn.utils.clip_grad_norm_(p, 1e-3, norm_type=math.inf),
    "mul": lambda p: [q.grad.mul_(0.3) for q in p],
    "div": lambda p: [q.grad.div_(1024.0) for q in p],
    "negative": lambda p: [q.grad.neg_() for q in p],
    "a scaled copy": lambda p: [setattr(q, "grad", q.grad * 0.5) for q in p],
    "foreach": lambda p: torch._foreach_mul_([q.grad for q in p], 0.25),
    "zero": lambda p: [q.grad.zero_() for q in p],
    "None": lambda p: [setattr(q, "grad", None) for q in p],
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("again", [False, True])
def test_an_edit_of_a_gradient_by_entries_is_refused_and_nothing_moves(edit: str, again: bool) -> None:
    layer = with_gradient()
    before = layer.update.detach().clone()
    EDITS[edit](layer)

    def go_on() -> None:
        if again and edit != "scale":
            layer(batches(1, d=90)[0]).sum().backward()
        nfd.SGD(layer.parameters(), lr=0.1).step()

    with pytest.raises(RuntimeError, match=r"was changed: it is not .*clip_grad_norm_"):
        go_on()
    assert torch.equal(layer.update.detach()[: len(before), : before.shape[1]], before)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_scaling_a_gradient_as_a_whole_is_that_of_the_dense_network(scaling: str, dtype: torch.dtype) -> None:
    """Between two backward passes and before a step, over several layers; the first step keeps its gradient."""

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

    assert gap(build, program, 0.3, "depth-mup", momentum=0.5) < (1e-12 if dtype == F64 else 1e-4)


# ---- the optimizer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [False, True])
def test_an_optimizer_of_pytorch_is_refused(make: type[torch.optim.Optimizer], foreach: bool) -> None:
    layer = with_gradient()
    make(layer.parameters(), lr=0.1, foreach=foreach).step()
    with pytest.raises(RuntimeError, match=r"changed by something other than nfd\.SGD"):
        layer(batches(1, d=90)[0])


SETTINGS = [
    {"maximize": True},
    {"foreach": True, "momentum": 0.9, "weight_decay": 1e-2},
    {"fused": True, "momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-2},
]


@pytest.mark.parametrize("options", SETTINGS)
def test_every_option_is_that_of_the_dense_network(options: dict[str, object]) -> None:
    """Under a schedule, a closure, and a group that is added on the way."""

    def program(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 0.8**k)
        outputs: list[Tensor] = []
        for x in batches(6):

            def closure(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                y = net(x)
                outputs.append(y.detach())
                loss = 0.1 * y.square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            schedule.step()
        return outputs

    def build(weights: str) -> Network:
        return nfd.ResNet(5, 2, 30, 2, activation="tanh", weights=weights, seed=5, dtype=F64)

    assert gap(build, program, 0.2, "depth-mup", **options) < 1e-12


def test_the_two_parts_of_a_matrix_are_stepped_alike_or_not_at_all() -> None:
    """The usual split, no decay for tensors without two dimensions, would decay D and leave s."""
    layer = with_gradient()
    split = [{"params": [layer.update], "weight_decay": 0.1}, {"params": [layer.scale]}]
    for groups in (split, [{"params": [layer.update], "weight_decay": 0.1}]):
        with pytest.raises(RuntimeError, match="two parts of one matrix"):
            nfd.SGD(groups, lr=0.1).step()
    layer.update.grad = None
    with pytest.raises(RuntimeError, match="two parts of one matrix"):
        nfd.SGD(layer.parameters(), lr=0.1, weight_decay=0.1).step()


# ---- programs that PyTorch records instead of running -----------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # PyTorch's, of what it reads itself
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


def test_programs_that_are_transformed_are_refused() -> None:
    layer, x = nfd.DeferredLinear(40, 30), torch.ones(2, 40)
    for transformed in (
        lambda: torch.vmap(layer)(x),
        lambda: torch.func.grad(lambda x: layer(x).sum())(x),
        lambda: torch.func.jvp(layer, (x,), (x,)),
    ):
        with pytest.raises(RuntimeError, match="transforms"):
            transformed()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward"):
        nfd.DeferredLinear(40, 30)(torch.autograd.forward_ad.make_dual(x, x))
    with pytest.raises(TypeError, match="meta"):
        layer.to("meta")
    assert layer.rank == (0, 0)
