"""nfd.EquivariantOptimizer: rules that are declared, those that are refused, and Shampoo, which is one of them."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from scipy.linalg import fractional_matrix_power
from tests import rules
from tests.models import Residual
from tests.test_muon import F64, model, train
from tests.test_stand_in import stored
from torch import Tensor, nn
from torch.linalg import matrix_norm

import nfd
from nfd.scaling.laws import LAWS, WHOLE_MATRIX

DECLARED: list[Any] = [
    partial(rules.Polynomial, lr=0.2, coefficients=(1.0, 0.0, 0.7)),
    partial(rules.Averaged, weight_decay=0.1),
    partial(rules.Averaged, powers=(-0.5, 0.0)),  # of one side alone
    partial(nfd.Shampoo, lr=0.1, weight_decay=0.2),
    partial(nfd.Shampoo, lr=0.1, momentum=0.7, eps=1e-3),
    rules.Sided,
]


@pytest.mark.parametrize("make", DECLARED)
def test_declared_rules_step_a_deferred_layer_as_its_dense_twin(make: Any) -> None:
    net = model(nfd.DeferredLinear)
    start = copy.deepcopy(net)
    outputs = train(net, make)
    again = train(stored(net, start), make)
    for y, z in zip(outputs, again, strict=True):
        torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-10)
    assert float((outputs[-1] - outputs[0]).abs().max()) > 0.1


REFUSED = [
    rules.Sign,
    rules.Clipped,
    rules.Adam,
    rules.Adafactor,
    rules.OfUnitEntries,
    rules.Noisy,
    partial(rules.Soap, refreshed=False),
    partial(rules.Soap, refreshed=True),
]


def with_gradient(layer: Any) -> Any:
    layer(torch.randn(2, layer.in_features, dtype=layer.update.dtype)).square().sum().backward()
    return layer


@pytest.mark.parametrize("make", REFUSED)
def test_rules_that_are_not_equivariant_are_refused_before_anything_moves(make: Any) -> None:
    layer = with_gradient(nfd.DeferredLinear(12, 12, seed=0))
    optimizer, before = make(layer.parameters(), weight_decay=0.1), layer.dense_weights()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"not equivariant: .* differ by \d.* of a step"):
            optimizer.step()
    assert torch.equal(layer.dense_weights(), before)
    dense = nn.Linear(4, 4, bias=False)
    dense(torch.ones(1, 4)).sum().backward()
    make(dense.parameters()).step()  # stored weights take any rule


class Hasty(nfd.Muon):
    """A rule that says nothing of itself is measured, whatever it derives from."""

    def direction(self, gradient: Tensor, state: dict[str, Tensor], group: Any) -> Tensor:
        return super().direction(gradient, state, group).sign()


def test_a_subclass_of_a_proved_rule_is_measured() -> None:
    assert nfd.Muon.is_proved
    with pytest.raises(ValueError, match="Hasty is not equivariant"):
        Hasty(with_gradient(nfd.DeferredLinear(12, 12)).parameters()).step()


def test_structured_layers_refuse_rules_that_tell_sides_apart() -> None:
    layer = with_gradient(nfd.StructuredLinear(16, 16, seed=0))
    for make in (nfd.Shampoo, rules.Averaged):
        with pytest.raises(ValueError, match=r"square matrix for each side of W.*16 x 16.*DeferredLinear"):
            make(layer.parameters())
    with pytest.raises(ValueError, match="treats rows and columns of a matrix differently"):
        rules.Sided(layer.parameters()).step()
    rules.Polynomial(layer.parameters()).step()
    copied = copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))
    for other in copied:
        with pytest.raises(ValueError, match="square matrix"):
            nfd.Shampoo(other.parameters())


# ---- Shampoo -----------------------------------------------------------------------------------------------------


def test_shampoo_is_its_formula() -> None:
    """Against roots by Schur decompositions, as scipy takes them."""
    stream = torch.Generator().manual_seed(0)
    matrix = nn.Parameter(torch.randn(7, 5, generator=stream, dtype=F64))
    expected, left, right = matrix.detach().clone(), torch.zeros(7, 7, dtype=F64), torch.zeros(5, 5, dtype=F64)
    optimizer = nfd.Shampoo([matrix], lr=0.1, weight_decay=0.5, eps=1e-4)
    for _ in range(4):
        G = torch.randn(7, 2, generator=stream, dtype=F64) @ torch.randn(2, 5, generator=stream, dtype=F64)
        matrix.grad = G.clone()
        optimizer.step()
        left, right = left + G @ G.T, right + G.T @ G
        ridged = [A + 1e-4 * matrix_norm(A, 2) * torch.eye(len(A)) for A in (left, right)]
        roots = [torch.from_numpy(fractional_matrix_power(A.numpy(), -0.25).real) for A in ridged]
        expected = (1 - 0.1 * 0.5) * expected - 0.1 * roots[0] @ G @ roots[1]
    torch.testing.assert_close(matrix.detach(), expected, rtol=1e-9, atol=1e-9)


X, LABELS = torch.linspace(-1, 1, 20).view(4, 5), torch.arange(4) % 3


def residual(width: int, depth: int) -> nn.Module:
    return Residual(width, depth)


def planned(optimizer: Any) -> nfd.Plan:
    options = {"make_model": residual, "base": (8, 2), "sample": X}
    return nfd.plan(residual(48, 2), optimizer=optimizer, **options)


def losses(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    values = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), LABELS)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        values.append(float(loss.detach()))
    return values


def test_a_plan_for_shampoo_steps_deferred_models_and_refuses_structured_weights() -> None:
    plan = planned("shampoo")
    for call in (nfd.defer, nfd.deferral):
        with pytest.raises(ValueError, match=r"optimizer='shampoo' keeps a square matrix .* weights='deferred'"):
            call(residual(48, 2), plan)
    model = nfd.defer(residual(48, 2), plan, weights="deferred", seed=1)
    values = losses(model, plan.make_optimizer(model, lr=0.1, momentum=0.5))
    assert values[-1] < 0.8 * values[0]
    family = nfd.Family(residual, base=(8, 2), optimizer="shampoo")
    with pytest.raises(ValueError, match="shampoo"):
        nfd.predict(family, [(X, LABELS)] * 2, 0.1, depth=2, weights="structured")


def test_plans_of_a_declared_rule_step_structured_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a law of one's own; a law does not make a rule equivariant."""
    monkeypatch.setattr("nfd.scaling.laws._TABLE", dict(LAWS))
    for rule, is_exact in ((rules.Polynomial, True), (rules.Adam, False)):
        law = nfd.OptimizerLaw(rule.__name__, rule, unit=WHOLE_MATRIX, rest="adamw", equivariant=True)
        plan = planned(law)
        model = nfd.defer(residual(48, 2), plan, seed=1)
        optimizer = plan.make_optimizer(model, lr=0.1)
        if is_exact:
            values = losses(model, optimizer)
            assert values[-1] < 0.8 * values[0]
        else:
            with pytest.raises(ValueError, match="Adam is not equivariant"):
                losses(model, optimizer)
