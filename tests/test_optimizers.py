"""Optimizers are made in one place, and every run is trained by the one that its settings name."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

import nfd
from nfd.experiment.runs import dataset_of, train_group
from nfd.experiment.settings import CheckConfig, RunConfig
from nfd.experiment.sweep_settings import TransferConfig
from nfd.experiment.trained import network
from nfd.nets.stacked_optimizers import StackedAdam, StackedOptimizer, StackedSGD
from nfd.training.losses import cross_entropy
from nfd.training.optimizers import optimizer_named, stacked_optimizer_named

pytestmark = pytest.mark.usefixtures("one_thread")

SOURCE = Path(nfd.__file__).parent
HOME = {"training/optimizers.py", "nets/sgd.py", "nets/stacked_optimizers.py", "__init__.py"}  # made, defined, exported
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
    elsewhere = {
        str(path.relative_to(SOURCE)): uses
        for path in SOURCE.rglob("*.py")
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
STEPPED: list[dict[str, Any]] = [{}, {"momentum": 0.9}, {"optimizer": "adam", "eta_c": 0.1}]


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
        net, dataset = network(config, dataset_of(config)), dataset_of(config)
        groups = net.param_groups(config.eta_c, config.rule, config.optimizer)
        optimizer: torch.optim.Optimizer = torch.optim.SGD(groups, momentum=config.momentum)
        if config.optimizer == "adam":
            optimizer = torch.optim.Adam(groups)
        losses = []
        for x, y in zip(*dataset.batches(config.batch, config.steps, config.data_seed), strict=True):
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
        assert record.curves["loss"] == pytest.approx(losses, rel=1e-4), settings
        compared += 1
    assert compared == len(FORMS) * len(STEPPED) - 1  # the meter of the start is SGD's


def test_names_become_their_optimizers() -> None:
    plain: list[dict[str, Any]] = [{"params": [torch.nn.Parameter(torch.ones(2, 2))], "lr": 0.1}]
    groups = [group | {"eps": 1e-8} for group in plain]
    assert isinstance(optimizer_named("sgd", plain, momentum=0.5), nfd.SGD)
    assert type(optimizer_named("adam", groups)) is torch.optim.Adam
    assert type(optimizer_named("adamw", groups)) is torch.optim.AdamW
    assert isinstance(stacked_optimizer_named("sgd", groups), StackedSGD)
    assert isinstance(stacked_optimizer_named("adam", groups), StackedAdam)
    for unknown in ("lion", "adamw"):
        with pytest.raises(ValueError, match="optimizer must be one of"):
            stacked_optimizer_named(unknown, groups)
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
        nfd.check(make_model, [4, 8], [1], batch, optimizer="adam", weight_decay=0.1)
    with pytest.raises(ValueError, match="pass make_optimizer="):
        nfd.check(make_model, [4, 8], [1], batch, optimizer="lion")
    assert not calls
