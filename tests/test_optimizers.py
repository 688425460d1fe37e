"""Optimizers are made in one place, and every run is trained by the one that its settings name."""

from __future__ import annotations

import ast
import gc
import itertools
import re
import subprocess
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual
from torch import nn

import nfd
from nfd.nets.stacked_optimizers import StackedAdam, StackedAdamW, StackedMuon, StackedOptimizer, StackedSGD
from nfd.questions.sweep_settings import TransferConfig
from nfd.runs.model_settings import CheckConfig
from nfd.runs.records import dataset_of, train_group
from nfd.runs.settings import RunConfig
from nfd.runs.trained import member
from nfd.scaling.laws import LAWS, WHOLE_MATRIX
from nfd.training.losses import cross_entropy
from nfd.training.optimizers import optimizer_named, stacked_optimizer_named

X, LABELS = torch.linspace(-1, 1, 40).view(8, 5), torch.arange(8) % 3
SOURCE = Path(nfd.__file__).parent
HOME = {
    "training/optimizers.py",
    "nets/sgd.py",
    "nets/muon.py",
    "nets/stacked_optimizers.py",
    "__init__.py",
}  # made, defined, exported
KINDS = {
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
} | {kind.__name__ for kind in (nfd.SGD, StackedSGD, StackedAdam, StackedOptimizer)}


def uses_of_optimizers(source: str) -> list[str]:
    """Every mention of a class of optimizers, called or handed on, and every look-up of one by its name."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            found += [f"{node.lineno}: {name}"] if name in KINDS else []
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = {alias.name.rpartition(".")[2] for alias in node.names}
            found += [f"{node.lineno}: {name}" for name in sorted(names & KINDS)]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            found += [f"{node.lineno}: getattr"] if "optim" in ast.unparse(node.args[0]) else []
    return found


def test_one_place_makes_optimizers() -> None:
    """``nfd.paper`` is a user: it steps its networks with ``nfd.SGD``."""
    elsewhere = {
        str(path.relative_to(SOURCE)): uses
        for path in SOURCE.rglob("*.py")
        if SOURCE / "paper" not in path.parents
        if str(path.relative_to(SOURCE)) not in HOME and (uses := uses_of_optimizers(path.read_text()))
    }
    assert elsewhere == {}
    assert {"SGD", "Adam", "AdamW", "StackedAdam"} <= KINDS
    for made in ("torch.optim.Adam(groups)", "kinds = {'adam': torch.optim.AdamW}", "getattr(torch.optim, name)(g)"):
        assert uses_of_optimizers(made)
    assert uses_of_optimizers("from nfd.nets.sgd import SGD\nSGD(groups)") == ["1: SGD", "2: SGD"]
    assert not uses_of_optimizers("def step(optimizer: torch.optim.Optimizer) -> None: optimizer.step()")


FORMS: list[dict[str, Any]] = [
    {},
    {"coupled": True},
    {"meter": "outputs"},
    {"meter": "start"},
    {"feedback": "independent", "meter": "outputs"},
    {"network": "mlp", "rule": "mup"},
]
STEPPED: list[dict[str, Any]] = [
    {},
    {"momentum": 0.9},
    {"optimizer": "adam", "eta_c": 0.1},
    {"optimizer": "adamw", "eta_c": 0.1},
]
MADE = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": partial(torch.optim.AdamW, weight_decay=0.0)}


def test_every_run_is_trained_by_the_optimizer_of_its_settings() -> None:
    """Against the plain loop with PyTorch's own, for every form of run: stacked, alone, and watched."""
    compared = 0
    for form, stepped in itertools.product(FORMS, STEPPED):
        settings = {"width": 8, "depth": 2, "steps": 4, "batch": 8} | form | stepped
        try:
            config = RunConfig(**settings)
        except ValueError as error:  # refused in words, not trained by another
            assert "optimizer='sgd'" in str(error)  # noqa: PT017
            continue
        (record,) = train_group([config.model_dump()])
        net, dataset = member(config, dataset_of(config)).network(), dataset_of(config)
        groups = net.param_groups(config.eta_c, config.rule, config.optimizer)
        options = {"momentum": config.momentum} if config.momentum else {}
        optimizer = MADE[config.optimizer](groups, **options)
        losses = []
        for x, y in zip(*dataset.batches(config.batch, config.steps, config.data_seed), strict=True):
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        assert record.curves["loss"] == pytest.approx(losses, rel=1e-4), settings
        compared += 1
    assert compared == len(FORMS) * len(STEPPED) - 2  # the meter of the start is SGD's


def test_names_become_their_optimizers() -> None:
    plain: list[dict[str, Any]] = [{"params": [torch.nn.Parameter(torch.ones(2, 2))], "lr": 0.1}]
    groups = [group | {"eps": 1e-8} for group in plain]
    assert isinstance(optimizer_named("sgd", plain, momentum=0.5), nfd.SGD)
    assert type(optimizer_named("adam", groups)) is torch.optim.Adam
    assert type(optimizer_named("adamw", groups)) is torch.optim.AdamW
    assert isinstance(stacked_optimizer_named("sgd", groups), StackedSGD)
    assert isinstance(stacked_optimizer_named("adam", groups), StackedAdam)
    assert isinstance(stacked_optimizer_named("adamw", groups), StackedAdamW)
    assert isinstance(stacked_optimizer_named("muon", plain), StackedMuon)
    with pytest.raises(ValueError, match="has no form for a stack"):
        stacked_optimizer_named("lion", groups)
    with pytest.raises(ValueError, match="Did you mean 'adam'"):
        stacked_optimizer_named("adan", groups)
    with pytest.raises(ValueError, match="is not built here"):
        optimizer_named("lion", plain)
    with pytest.raises(ValueError, match="momentum is for optimizer='sgd'"):
        optimizer_named("adamw", groups, momentum=0.5)
    with pytest.raises(ValueError, match="momentum is for optimizer='sgd'"):
        stacked_optimizer_named("adam", groups, momentum=0.5)
    deferred = nfd.DeferredLinear(64, 64)
    with pytest.raises(ValueError, match="weights='deferred' is for optimizer='sgd'"):
        optimizer_named("adam", [{"params": list(deferred.parameters()), "lr": 0.1}])


def test_what_no_optimizer_does_exactly_is_refused_where_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="weights='deferred' is for optimizer='sgd'"):
        RunConfig(optimizer="adam", weights="deferred")
    with pytest.raises(ValueError, match="rule='ntk' has no rates for optimizer='adam'"):
        RunConfig(optimizer="adam", rule="ntk")
    with pytest.raises(ValueError, match="rule='ntk' has no rates for optimizer='adam'"):
        TransferConfig(optimizer="adam", rules=("mup", "ntk"))
    with pytest.raises(ValueError, match="Use optimizer='adamw'"):
        CheckConfig(optimizer="adam", weight_decay=0.1)
    with pytest.raises(ValueError, match="weights='deferred' is for optimizer='sgd'"):
        nfd.ResNet(4, 2, 16, 2, weights="deferred").param_groups(0.1, optimizer="adam")
    with pytest.raises(ValueError, match="rule='ntk' has no rates for optimizer='adam'"):
        nfd.ResNet(4, 2, 8, 2, regime="kernel").param_groups(0.1, "ntk", optimizer="adam")
    calls: list[int] = []

    def make_model(width: int, depth: int) -> nfd.ResNet:
        calls.append(width)
        return nfd.ResNet(4, 2, width, depth)

    batch = [(torch.randn(4, 4), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(ValueError, match="Use optimizer='adamw'"):
        nfd.check(make_model, [4, 8], [1], batch, "depth-mup", "adam", weight_decay=0.1)
    with pytest.raises(ValueError, match="pass make_optimizer="):
        nfd.check(make_model, [4, 8], [1], batch, "depth-mup", "lion")
    assert not calls


# ---- an optimizer of the user's own ------------------------------------------------------------------------------


class SignMomentum(torch.optim.Optimizer):
    """``v <- m v + (1 - m) g``, ``w <- w - lr sign(v)``."""

    def __init__(self, params: Any, momentum: float = 0.5) -> None:
        super().__init__(params, {"lr": 1e-3, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                v.mul_(group["momentum"]).add_(p.grad, alpha=1 - group["momentum"])
                p.sub_(v.sign(), alpha=group["lr"])


class NormalisedSGD(torch.optim.Optimizer):
    """``w <- w - lr g / |g|``, with the norm of each tensor's gradient."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad / p.grad.norm().clamp(min=1e-30), alpha=group["lr"])


SIGN = nfd.OptimizerLaw("sign-momentum", SignMomentum, states=1, options=frozenset({"momentum"}), check_rate=0.003)
NORMALISED = nfd.OptimizerLaw("normalised-sgd", NormalisedSGD, unit=WHOLE_MATRIX, check_rate=0.05)
AS_IF_SGD = nfd.OptimizerLaw("sign-as-if-sgd", SignMomentum, degree=1.0, decoupled=False)  # a wrong law


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of its own for one test."""
    monkeypatch.setattr("nfd.scaling.laws._TABLE", dict(LAWS))
    for law in (SIGN, NORMALISED, AS_IF_SGD):
        nfd.register_optimizer(law)


def bare(width: int, depth: int) -> Residual:
    """Without biases."""
    return Residual(width, depth, bias=False)


def function_update(law: str, width: int, steps: int = 1, **rates: float) -> float:
    """How much the steps of a plan with the base at width 16 move the outputs of a residual network."""
    model = bare(width, 2)
    plan = nfd.plan(model, rule="mup", make_model=bare, base_width=16, base_depth=2, optimizer=law, sample=X)
    plan.initialize_(model, seed=1)
    optimizer = optimizer_named(law, plan.param_groups(model, lr=1e-3, **rates))
    before = model(X).detach()
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(X), LABELS).backward()
        optimizer.step()
    return float((model(X).detach() - before).norm())


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("law", "sound"), [("sign-momentum", True), ("normalised-sgd", True), ("sign-as-if-sgd", False)]
)
def test_a_registered_optimizer_has_the_rates_of_its_law(law: str, sound: bool) -> None:
    """Under muP the first update of the outputs does not depend on width; under a wrong law it does."""
    small, large = (function_update(law, width) for width in (64, 1024))
    assert (0.5 < large / small < 2) == sound


def test_shampoo_has_the_rates_of_its_law_after_several_steps_too() -> None:
    """Its matrices alone, whose gradients add up in its covariances."""
    small, large = (function_update("shampoo", width, steps=4, adamw_lr=0.0) for width in (32, 256))
    assert 0.5 < large / small < 2


@pytest.mark.usefixtures("registered")
def test_a_registered_optimizer_is_planned_and_checked() -> None:
    plan = nfd.plan(bare(32, 4), make_model=bare, base_width=8, base_depth=2, optimizer=SIGN, sample=X)
    assert plan.optimizer == "sign-momentum"
    assert nfd.Plan.from_dict(plan.to_dict()) == plan
    assert "eps" not in plan.param_groups(bare(32, 4), lr=0.1, weight_decay=0.1)[0]
    batches = [(X, LABELS)] * 3
    for name in ("sign-momentum", "normalised-sgd"):
        check = nfd.check(bare, [16, 32], [2], batches, rule="mup", optimizer=name, seeds=2)
        assert check.optimizer == name
        assert all(run["loss"] == run["loss"] for run in check.runs)
    (record,) = train_group([RunConfig(width=8, depth=2, steps=4, eta_c=1e-3, optimizer="sign-momentum").model_dump()])
    assert record.status == "done"
    assert TransferConfig(optimizer="sign-momentum").optimizer == "sign-momentum"
    with pytest.raises(ValueError, match=r"optimizer must be one of sgd, adam, adamw, .*sign-momentum.*got 'muon'"):
        RunConfig(optimizer="muon")
    with pytest.raises(ValueError, match=r"momentum is for optimizer='sgd' or 'muon' .*or 'sign-momentum'; got"):
        optimizer_named("normalised-sgd", [{"params": [torch.nn.Parameter(torch.ones(2))]}], momentum=0.5)


@pytest.mark.usefixtures("registered")
def test_names_of_laws_are_taken_once() -> None:
    other = nfd.OptimizerLaw("sign-momentum", NormalisedSGD)
    for use in (nfd.register_optimizer, lambda law: nfd.plan(torch.nn.Linear(2, 2), base_width=2, optimizer=law)):
        with pytest.raises(ValueError, match="'sign-momentum' is registered already"):
            use(other)  # type: ignore[operator]
    assert nfd.register_optimizer(SIGN) is SIGN
    assert nfd.register_optimizer(other, replace=True) is other
    with pytest.raises(TypeError, match=r"law must be an nfd\.OptimizerLaw; got str"):
        nfd.register_optimizer("adam")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="make must be a function"):
        nfd.OptimizerLaw("x", 3)  # type: ignore[arg-type]


def test_laws_are_known_without_pytorch() -> None:
    code = "import nfd, sys; nfd.OptimizerLaw('mine'); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


NAMED = r"['\"](sgd|adam|adamw|lion|muon)['\"]"
COMPARED = rf"(==|!=|\bin\b|Literal)\s*[\[({{]?{NAMED}|{NAMED}\s*(==|!=)"


def test_no_name_of_an_optimizer_is_compared() -> None:
    compared = {
        str(path.relative_to(SOURCE)): lines
        for path in SOURCE.rglob("*.py")
        if (lines := [line for line in path.read_text().splitlines() if re.search(COMPARED, line)])
    }
    assert compared == {}
    assert re.search(COMPARED, 'if optimizer == "sgd":')
    assert re.search(COMPARED, 'x in ("adam", "adamw")')


def test_networks_that_were_trained_together_are_let_go() -> None:
    """A sweep trains thousands of them in one process."""
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizer = StackedSGD([{"params": [weight], "lr": torch.ones(2)}])
    weight.sum().backward()
    assert weight.tolist() == [[-1.0] * 3] * 2
    kept = weakref.ref(weight)
    del weight, optimizer
    gc.collect()
    assert kept() is None
