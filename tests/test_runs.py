"""Runs: names made of settings and data, groups that train together, records of what happened."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import nfd
from nfd.experiment import runs, trained
from nfd.experiment.runs import dataset_of, run_key, train_group
from nfd.experiment.settings import RunConfig
from nfd.experiment.trained import network
from nfd.training.loop import train
from nfd.training.losses import cross_entropy

SMALL: dict[str, Any] = {"width": 12, "depth": 3, "steps": 8, "batch": 8}


def group(**settings: Any) -> list[dict[str, Any]]:
    """Three runs of different seeds."""
    return [RunConfig(**SMALL, **settings, seed=seed).model_dump() for seed in range(3)]


@pytest.mark.filterwarnings("ignore:A DeferredLinear of size")  # small on purpose
@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.9}, {"block": "two-layer", "rule": "depth-mup-inner"}, {"weights": "deferred"}],
    ids=str,
)
def test_a_group_is_its_runs(settings: dict[str, Any]) -> None:
    """Against the plain loop of one network at a time, in float32."""
    for record in train_group(group(**settings)):
        config = RunConfig(**record.config)
        dataset = dataset_of(config)
        net = network(config, dataset)
        optimizer = nfd.SGD(net.param_groups(config.eta_c, config.rule), momentum=config.momentum)
        x, y = dataset.batches(config.batch, config.steps, config.data_seed)
        losses = [row.loss for row in train(net, optimizer, zip(x, y, strict=True), cross_entropy)]
        assert record.status == "done"
        assert record.curves["loss"] == pytest.approx(losses, rel=1e-5)
        net.eval()
        test = float(cross_entropy(net(dataset.test_inputs), dataset.test_labels).detach())
        close = 0.1 if config.weights == "deferred" else 1e-5  # what was not asked in training is drawn anew
        assert record.metrics["test_loss"] == pytest.approx(test, rel=close)


def test_the_name_of_a_run_is_its_settings_and_its_data() -> None:
    config = RunConfig(**SMALL, block="two-layer")
    other: dict[str, Any] = {
        "image_size": 8, "activation": "tanh", "horizon": 2.0, "eta_c": 0.31, "steps": 9, "batch": 9, "width": 13,
        "depth": 4, "block": "one-layer", "feedback": "independent", "rule": "depth-mup-inner", "optimizer": "adam",
        "momentum": 0.5, "seed": 1, "data_seed": 1, "weights": "deferred",
        "network": "mlp", "coupled": True, "every": 2, "meter": "updates",
    }  # fmt: skip
    names = {run_key(config, "digits")}
    for name, value in other.items():
        names.add(run_key(config.model_copy(update={name: value}), "digits"))
    names.add(run_key(config, "other data"))
    assert len(names) == len(other) + 2
    moved = config.model_copy(update={"data_dir": "/elsewhere"})
    assert run_key(moved, "digits") == run_key(config, "digits")
    assert set(other) | {"data", "data_dir", "order"} == set(RunConfig.model_fields)


def test_what_a_run_computes_has_not_changed() -> None:
    """When this fails on purpose, add one to NUMERICS: stored runs are then no longer taken for new ones."""
    (record,) = train_group([RunConfig(width=8, depth=2, steps=4, batch=8, eta_c=1.0).model_dump()])
    assert runs.NUMERICS == 1
    assert record.curves["loss"].tolist() == pytest.approx(REFERENCE, rel=1e-5)


REFERENCE = [2.33806276, 2.38459301, 2.15466022, 2.05056000]


def test_a_run_that_diverges_says_when_and_the_rest_goes_on() -> None:
    rates = (0.3, 1e12, 0.1)
    records = train_group([RunConfig(**SMALL, eta_c=eta).model_dump() for eta in rates])
    assert [record.status for record in records] == ["done", "diverged", "done"]
    metrics = records[1].metrics
    assert metrics["test_loss"] == metrics["train_loss"] == math.inf
    assert metrics["diverged_at"] == float((~torch.as_tensor(records[1].curves["loss"]).isfinite()).nonzero()[0])
    assert all(math.isfinite(r.metrics["test_loss"]) and "diverged_at" not in r.metrics for r in records[::2])


def test_a_run_that_raises_is_recorded_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    built = trained.network

    def network_or_error(config: RunConfig, dataset: Any, device: str) -> Any:
        if config.seed == 1:
            raise RuntimeError("no memory for this one")
        return built(config, dataset, device)

    monkeypatch.setattr(trained, "network", network_or_error)
    records = train_group(group())
    assert [record.status for record in records] == ["done", "failed", "done"]
    assert records[1].error == "RuntimeError: no memory for this one"
    assert len({record.group for record in records}) == 1


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="needs block='two-layer'"):
        RunConfig(rule="depth-mup-inner")
    with pytest.raises(ValueError, match="momentum is for optimizer='sgd'"):
        RunConfig(optimizer="adam", momentum=0.5)
    with pytest.raises(ValueError, match="order='post'"):
        RunConfig(order="post", block="two-layer")
