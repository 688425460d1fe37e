"""Models in other types than single precision, and models that PyTorch compiles or that have no
truth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches, digits
from torch import Tensor, nn

import nfd

X = digits()[0][:8]
BATCHES = batches(2)
Make = Callable[[int, int], nn.Module]


def planned(make: Make, sample: Any = X, width: int = 32, **options: Any) -> nfd.Plan:
    torch.manual_seed(0)
    return nfd.plan(make(width, 4), make_model=make, base=(16, 2), sample=sample, **options)


def factors(plan: nfd.Plan) -> dict[str, tuple[float, float]]:
    return {name: (plan.start_factor(name), plan.rate(name)) for name in plan.entries}


# ---- constructors


def compiled(width: int, depth: int) -> Any:
    return torch.compile(ResidualMLP(width, depth))


def compiled_blocks(width: int, depth: int) -> nn.Module:
    model = ResidualMLP(width, depth)
    for k, block in enumerate(model.blocks):
        model.blocks[k] = torch.compile(block)  # type: ignore[assignment]
    return model


class Empty(ResidualMLP):
    """A model that counts something else than its layers, of which there is nothing yet."""

    def __len__(self) -> int:
        return 0


class Undecided(ResidualMLP):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


@pytest.mark.parametrize("make", [compiled, compiled_blocks, Empty, Undecided])
def test_models_that_are_compiled_or_have_no_truth_have_the_same_plan(make: Make) -> None:
    expected = factors(planned(ResidualMLP))
    assert factors(planned(make)) == expected
    assert factors(nfd.plan(make(32, 4), base=make(16, 2), sample=X)) == expected


@pytest.mark.parametrize("make", [pytest.param(compiled, marks=pytest.mark.slow), Empty])
def test_models_that_are_compiled_or_empty_are_checked(make: Make) -> None:
    settings: dict[str, Any] = {"lr": 1e-3, "seeds": 2}
    found, usual = (
        nfd.check(kind, BATCHES[:1], [16, 32], [2], **settings) for kind in (make, ResidualMLP)
    )
    assert [row["meter"] for row in found.table] == [row["meter"] for row in usual.table]
    assert not found.failures


# ---- double precision


@pytest.fixture
def double_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Dtyped(ResidualMLP):
    """Makes numbers in its forward pass, and keeps the types that it has seen."""

    seen: set[torch.dtype]

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        Dtyped.seen = {p.dtype for p in self.parameters()}

    def forward(self, x: Tensor) -> Tensor:
        x = x @ torch.eye(x.shape[-1])
        Dtyped.seen.add(x.dtype)
        return super().forward(x)


def double(width: int, depth: int) -> nn.Module:
    return Dtyped(width, depth).double()


@pytest.mark.usefixtures("double_default")
def test_verbs_build_models_in_the_default_type_of_the_user() -> None:
    family = nfd.Family(Dtyped, (16, 2), sample=X.double())
    torch.set_default_dtype(torch.float32)  # the family keeps the type that it was made with
    assert {p.dtype for p in family.build(16, 2).parameters()} == {torch.float64}
    torch.set_default_dtype(torch.float64)
    nfd.check(Dtyped, [(x.double(), y) for x, y in BATCHES[:1]], [16, 32], [2], lr=1e-3, seeds=2)
    assert Dtyped.seen == {torch.float64}
    assert torch.get_default_dtype() == torch.float64


def test_a_store_tells_trials_of_two_default_types_apart() -> None:
    single = nfd.Family(Dtyped, (16, 2)).identity
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_default_dtype", lambda: torch.float64)
        other = nfd.Family(Dtyped, (16, 2), rule="mup", optimizer="sgd").identity
    assert "dtype" not in single
    assert other["dtype"] == "torch.float64"


@pytest.mark.parametrize(("make", "dtype"), [(Dtyped, torch.float64), (double, torch.float32)])
def test_batches_of_either_precision_work_in_the_type_of_the_model(
    make: Make, dtype: torch.dtype
) -> None:
    expected = torch.float32 if make is Dtyped else torch.float64
    assert factors(planned(make, X.to(dtype))) == factors(planned(ResidualMLP))
    assert Dtyped.seen >= {expected}
    targets = [(x.to(dtype), x[:, :10].double()) for x, _ in BATCHES[:1]]
    found = nfd.check(make, nfd.Task(targets, loss="mse"), [16, 32], [2], lr=1e-3, seeds=2)
    assert not found.failures
    own = nfd.Task(targets, loss=nn.functional.mse_loss)
    assert not nfd.check(make, own, [16, 32], [2], lr=1e-3, seeds=2).failures


def test_a_model_of_two_types_gets_what_it_is_given() -> None:
    class Mixed(ResidualMLP):
        def __init__(self, width: int, depth: int) -> None:
            super().__init__(width, depth)
            self.first = nn.Linear(64, 64).double()

        def forward(self, x: Tensor) -> Tensor:
            assert x.dtype == torch.float64
            return super().forward(self.first(x).float())

    assert planned(Mixed, X.double()).roles["first.weight"] == "vector"


# ---- 16 bits


def short(width: int, depth: int) -> nn.Module:
    return ResidualMLP(width, depth).bfloat16()


def changed(plan: nfd.Plan, model: nn.Module, lr: float, dtype: torch.dtype) -> float:
    """The smallest share of entries of a matrix in blocks that one step changes."""
    plan.apply_(model, seed=0)
    optimizer = plan.make_optimizer(model, lr=lr)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    x, y = BATCHES[0]
    nn.functional.cross_entropy(model(x.to(dtype)).float(), y).backward()
    optimizer.step()
    matrices = [name for name in before if name.startswith("blocks") and before[name].dim() == 2]
    return min(
        float((dict(model.named_parameters())[name] != before[name]).float().mean())
        for name in matrices
    )


@pytest.mark.parametrize("rule", ["mup", "complete-p"])
def test_a_plan_in_16_bits_says_from_which_width_steps_are_rounded_away(rule: str) -> None:
    plan = planned(short, X.bfloat16(), width=64, rule=rule)
    (note,) = [note for note in plan.notes if "rounded away" in note]
    assert "bfloat16" in note
    (width,) = map(float, re.findall(r"from width (\d+) on", note))
    rate = 1e-3 * (64 / width) ** 0.5  # at which width 64 is that width
    # Half of them, but for the 6 % of the switched-off units, and for the law of their sizes within
    # a binade.
    assert changed(plan, short(64, 4), rate, torch.bfloat16) == pytest.approx(0.5, abs=0.12)
    assert changed(plan, short(64, 4), 8 * rate, torch.bfloat16) > 0.85
    single = planned(ResidualMLP, width=64, rule=rule)
    # ReLU switches 4 of 64 units off
    assert changed(single, ResidualMLP(64, 4), rate, torch.float32) > 0.9
    assert not any("rounded away" in note for note in single.notes)


def test_a_width_in_16_bits_goes_with_the_digits_and_is_relative_without_a_constructor() -> None:
    half = planned(lambda width, depth: ResidualMLP(width, depth).half(), X.half(), rule="mup")
    brain = planned(short, X.bfloat16(), rule="mup")
    widths = [
        float(re.findall(r"from width (\d+) on", " ".join(plan.notes))[0]) for plan in (half, brain)
    ]
    # three bits more, squared; both are drawn
    assert widths[0] / widths[1] == pytest.approx(64, rel=0.3)
    by_base = nfd.plan(short(32, 4), base=short(16, 4), sample=X.bfloat16(), rule="mup")
    assert any("times the width of the base" in note for note in by_base.notes)
    descent = planned(short, X.bfloat16(), rule="mup", optimizer="sgd")
    assert any("rounded away" in note and "from width" not in note for note in descent.notes)
