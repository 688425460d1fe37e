"""Layers without stored weights beside dense twins, and what they refuse of the models that they
are put into.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.models import Residual, train
from torch import Tensor, nn

import nfd


class Branches(Residual):
    """Without norms and biases, so that an offset of the inputs reaches every matrix."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth, bias=False)


def offset_batch(offset: float = 40.0) -> tuple[Tensor, Tensor]:
    """Twelve samples whose common mean is so many times as long as what tells them apart."""
    x = offset + torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    return x / offset, torch.arange(12) % 3


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 12) -> list[float]:
    """Losses of a model on the batch with an offset."""
    x, y = offset_batch()
    return train(model, optimizer, [(x.to(next(model.parameters()).dtype), y)] * steps)


RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Muon": lambda params: nfd.Muon(params, lr=0.05, weight_decay=0.0),
    "SGD with momentum": lambda params: nfd.SGD(params, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("rule", RULES)
def test_structured_weights_learn_what_dense_ones_do_beside_an_offset(rule: str) -> None:
    torch.manual_seed(0)
    model = nfd.defer(Branches(48, 2).double(), seed=1)
    twin = nfd.store_weights(copy.deepcopy(model))
    ours, theirs = (trained(m, RULES[rule](m.blocks.parameters())) for m in (model, twin))
    assert any(isinstance(m, nfd.StructuredLinear) for m in model.modules())
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert abs(theirs[-1] - theirs[0]) > 1e-3


def test_rules_that_normalise_warn_of_a_resolution_and_linear_ones_do_not() -> None:
    layer = nfd.StructuredLinear(20, 20, resolution=0.1)
    exact = nfd.StructuredLinear(20, 20)
    with pytest.warns(UserWarning, match=r"resolution=0\.1 .*narrower network"):
        nfd.Muon(layer.parameters(), lr=0.1)
    nfd.Muon(exact.parameters(), lr=0.1)
    nfd.SGD(layer.parameters(), lr=0.1)


def twice(module: nn.Module, given: Any, made: Tensor) -> Tensor:
    """A hook that changes what a network computes."""
    return 2 * made


def _patched(linear: nn.Module) -> None:
    linear.forward = lambda x: 2 * nn.Linear.forward(linear, x)


HOOKS: dict[str, Callable[[nn.Linear], object]] = {
    "forward hook": lambda m: m.register_forward_hook(twice),
    "pre-hook": lambda m: m.register_forward_pre_hook(lambda _, x: 2 * x[0]),
    "backward hook": lambda m: m.register_full_backward_hook(lambda *_: None),
    "hook of the weight": lambda m: m.weight.register_hook(lambda g: 2 * g),
    "hook behind the weight": lambda m: m.weight.register_post_accumulate_grad_hook(lambda p: None),
    "patched forward": _patched,
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_on_what_would_be_replaced_are_refused_by_name(kind: str) -> None:
    model = Branches(24, 2)
    HOOKS[kind](model.blocks[1].up)
    for weights in ("structured", "deferred"):
        with pytest.raises(ValueError, match=r"'blocks\.1\.up\.weight': code hooks into it"):
            nfd.defer(model, weights=weights)
    assert [row["name"] for row in nfd.deferral(model).table if row["reason"] == "HOOKED"] == [
        "blocks.1.up.weight"
    ]
    # it stays as it was
    assert not any(isinstance(m, nfd.StructuredLinear) for m in model.modules())
    deferred = nfd.defer(model, where="blocks.*.down")
    assert isinstance(deferred.get_submodule("blocks.1.down"), nfd.StructuredLinear)


def test_hooks_on_the_matrices_of_an_attention_are_refused_and_its_own_are_kept() -> None:
    attention = nn.MultiheadAttention(24, 2)
    h = torch.randn(3, 2, 24)
    seen = list[object]()
    handle = attention.in_proj_weight.register_hook(lambda g: 2 * g)
    attention.register_forward_hook(lambda *_: seen.append(1))
    with pytest.raises(ValueError, match="'in_proj_weight': code hooks into it"):
        nfd.defer(attention)
    handle.remove()
    nfd.defer(attention)(h, h, h)
    assert seen == [1]


def test_hooks_on_modules_that_stay_are_kept() -> None:
    model = Branches(24, 2)
    seen: list[object] = []
    model.blocks[0].register_forward_hook(lambda *_: seen.append(1))
    model.head.weight.register_hook(lambda g: seen.append(2))
    trained(nfd.defer(model), nfd.SGD(model.parameters(), lr=0.1), 1)
    assert seen == [1, 2]


def test_hooks_on_a_layer_are_not_lost_where_weights_are_stored_again() -> None:
    model = nfd.defer(Branches(24, 2))
    handle = model.get_submodule("blocks.0.up").register_forward_hook(twice)
    with pytest.raises(ValueError, match=r"'blocks\.0\.up' has hooks"):
        nfd.store_weights(model)
    handle.remove()
    assert isinstance(nfd.store_weights(model).get_submodule("blocks.0.up"), nn.Linear)


class Hooked(Branches):
    """Its constructor hooks into a matrix."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.blocks[0].up.register_forward_hook(twice)


class Reading(Branches):
    """Its penalty computes with the weight of a matrix."""

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.blocks[0].up.weight
        out = super().forward(x)
        return (
            out
            + 0.01 * (weight * 2.0).square().mean()
            + 0.0 * weight.norm()
            + 0.0 * (x[:, :1] @ weight[:1, :3]).T.T
        )


@pytest.mark.parametrize(
    ("model", "reason"), [(Hooked, "code hooks into it"), (Reading, "not stored")]
)
def test_models_that_need_their_weights_are_predicted_by_dense_ones_alone(
    model: type[nn.Module], reason: str
) -> None:
    family = nfd.Family(model, base=(16, 2), optimizer="sgd")
    settings: dict[str, Any] = {"depth": 2, "width": 32, "replicates": 2}
    assert (
        nfd.predict(family, [offset_batch()] * 2, 0.1, **settings, weights="dense").weights
        == "dense"
    )
    with pytest.raises((ValueError, RuntimeError), match=reason):
        nfd.predict(family, [offset_batch()] * 2, 0.1, **settings)


@pytest.mark.parametrize(
    "read",
    [
        lambda w, h: h @ w.T,
        lambda w, h: h @ w,
        lambda w, h: w @ h.T,
        lambda w, h: h * w.norm(),
        lambda w, h: h @ (2 * w),
        lambda w, h: h @ w[:],
        lambda w, h: h @ -w,
        lambda w, h: nn.functional.linear(h, w),
        lambda w, h: h @ w.data,
    ],
)
def test_code_that_reads_a_weight_that_is_not_stored_is_told_so(
    read: Callable[[Any, Tensor], Tensor],
) -> None:
    linear = nn.Linear(12, 12)
    h = torch.randn(12, 12)
    assert read(linear.weight, h).shape == (12, 12)
    layer: Any = nfd.defer(linear)
    with pytest.raises(RuntimeError, match=r"not stored.*where="):
        read(layer.weight, h)
    assert layer.weight.shape == (12, 12)
    assert layer.weight.dtype == torch.float32
    assert not hasattr(layer.weight, "quantised")


LAYERS = {"structured": nfd.StructuredLinear, "deferred": nfd.DeferredLinear}


def regression(kind: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A layer in double precision, its inputs and targets."""
    torch.manual_seed(0)
    layer = LAYERS[kind](12, 12, std=0.3, seed=1, dtype=torch.float64)
    return layer, torch.randn(4, 12).double(), torch.randn(4, 12).double()


@pytest.mark.parametrize("kind", LAYERS)
def test_a_gradient_that_a_scaler_divides_is_divided(kind: str) -> None:
    weights = []
    for scale in (1.0, 1024.0):
        layer, x, y = regression(kind)
        optimizer = nfd.SGD(layer.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, enabled=scale > 1)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(nn.functional.mse_loss(layer(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
        weights.append(layer.dense_weights())
    assert torch.allclose(*weights, rtol=1e-9)
    assert not torch.allclose(weights[0], regression(kind)[0].complete())


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_are_chosen_by_the_dimensions_of_the_weight(kind: str) -> None:
    """People give decay to matrices, and none to vectors."""
    layer, x, y = regression(kind)
    model = nn.Sequential(layer, nn.LayerNorm(12, dtype=torch.float64))
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.5},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = nfd.SGD(groups, lr=0.1)
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    twin = nn.Linear(12, 12, bias=False, dtype=torch.float64)
    with torch.no_grad():
        twin.weight.copy_(layer.complete())
    dense = nn.Sequential(twin, nn.LayerNorm(12, dtype=torch.float64))
    nn.functional.mse_loss(dense(x), y).backward()
    expected = twin.weight - 0.1 * (twin.weight.grad + 0.5 * twin.weight)
    assert torch.allclose(layer.dense_weights(), expected)
    assert len(groups[1]["params"]) == 2
    assert repr(layer.scale)
    assert repr(layer.update)


@pytest.mark.parametrize("kind", LAYERS)
def test_an_answer_may_be_changed_in_place(kind: str) -> None:
    grads = []
    for inplace in (True, False):
        layer, x, _ = regression(kind)
        x.requires_grad_()
        nn.Sequential(layer, nn.ReLU(inplace=inplace))(x).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("kind", LAYERS)
def test_parameters_cannot_be_put_in_place_of_those_of_a_layer(kind: str) -> None:
    layer, x, _ = regression(kind)
    others = {name: p.detach() * 2 for name, p in layer.named_parameters()}
    with pytest.raises(RuntimeError, match=r"replaced by other tensors, as torch\.func"):
        torch.func.functional_call(layer, others, (x,))
    assert layer(x).isfinite().all()


@pytest.mark.parametrize("fill", [torch.eye(64), torch.full((64, 64), 0.1)])
def test_weights_that_are_no_draw_stay_without_a_plan(fill: Tensor) -> None:
    linear = nn.Linear(64, 64)
    with torch.no_grad():
        linear.weight.copy_(fill)
    with pytest.raises(ValueError, match="begins in a way of its own"):
        nfd.defer(linear)
    with torch.no_grad():
        linear.weight.normal_()
    assert isinstance(nfd.defer(linear), nfd.StructuredLinear)
