"""Runs: names made of settings and data, groups that train together, records of what happened."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

import nfd
from nfd.runs import records as runs
from nfd.runs import trained
from nfd.runs.records import dataset_of, run_key, train_group
from nfd.runs.settings import RunConfig
from nfd.runs.trained import member
from nfd.training.loop import train
from nfd.training.losses import cross_entropy

SMALL: dict[str, Any] = {"width": 12, "depth": 3, "steps": 8, "batch": 8}


def group(**settings: Any) -> list[dict[str, Any]]:
    """Three runs of different seeds."""
    return [RunConfig(**SMALL, **settings, seed=seed).model_dump() for seed in range(3)]


@pytest.mark.filterwarnings("ignore:A (Deferred|Structured)Linear of size")  # small on purpose
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"momentum": 0.9},
        {"network": "mlp", "rule": "mup"},
        {"block": "two-layer", "rule": "depth-mup-inner"},
        {"weights": "deferred"},
        {"weights": "structured", "resolution": 0.3},
        {"train": 40, "validation": 30},
    ],
    ids=str,
)
def test_a_group_is_its_runs(settings: dict[str, Any]) -> None:
    """Against the plain loop of one network at a time, in float32."""
    for record in train_group(group(**settings)):
        config = RunConfig(**record.config)
        dataset = dataset_of(config)
        net = member(config, dataset).network()
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
        "network": "mlp", "coupled": True, "every": 2, "meter": "updates", "resolution": 0.2, "train": 9,
        "validation": 9,
    }  # fmt: skip
    names = {run_key(config, "digits")}
    for name, value in other.items():
        names.add(run_key(config.model_copy(update={name: value}), "digits"))
    names.add(run_key(config, "other data"))
    assert len(names) == len(other) + 2
    moved = config.model_copy(update={"data_dir": "/elsewhere"})
    assert run_key(moved, "digits") == run_key(config, "digits")
    assert set(other) | {"data", "data_dir", "order"} == set(RunConfig.model_fields)
    assert run_key(RunConfig(), "x") == "b6461189572d77040a97"  # as before there were settings that it leaves open


def test_what_a_run_computes_has_not_changed() -> None:
    """When this fails on purpose, add one to NUMERICS: stored runs are then no longer taken for new ones."""
    (record,) = train_group([RunConfig(width=8, depth=2, steps=4, batch=8, eta_c=1.0).model_dump()])
    assert runs.NUMERICS == 3
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
    built = trained.member

    def network_or_error(config: RunConfig, dataset: Any, device: str) -> Any:
        if config.seed == 1:
            raise RuntimeError("no memory for this one")
        return built(config, dataset, device)

    monkeypatch.setattr(trained, "member", network_or_error)
    records = train_group(group())
    assert [record.status for record in records] == ["done", "failed", "done"]
    assert records[1].error == "RuntimeError: no memory for this one"
    assert "in network_or_error" in (records[1].trace or "")  # a mistake of ours is kept with its traceback
    assert len({record.group for record in records}) == 1


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="needs block='two-layer'"):
        RunConfig(rule="depth-mup-inner")
    with pytest.raises(ValueError, match="momentum is for optimizer='sgd'"):
        RunConfig(optimizer="adam", momentum=0.5)
    with pytest.raises(ValueError, match="order='post'"):
        RunConfig(order="post", block="two-layer")
    with pytest.raises(ValueError, match=r"network='mlp' has no residual branch.*got rule='depth-mup'"):
        RunConfig(network="mlp")
    for settings in ({"order": "post"}, {"horizon": 2.0}, {"coupled": True}, {"block": "two-layer"}):
        with pytest.raises(ValueError, match="network='mlp' has no residual branch"):
            RunConfig(network="mlp", rule="mup", **settings)
    with pytest.raises(ValueError, match="coupled is for block='one-layer'"):
        RunConfig(coupled=True, block="two-layer")
    with pytest.raises(ValueError, match="resolution is for weights='deferred' or 'structured'"):
        RunConfig(resolution=0.1)
    with pytest.raises(ValueError, match="needs batch=1; got batch=16"):
        RunConfig(meter="spectra")
    for meter in ("start", "updates", "spectra"):
        with pytest.raises(ValueError, match=f"meter='{meter}' needs weights='dense' and optimizer='sgd'"):
            RunConfig(meter=meter, weights="deferred", batch=1)
        with pytest.raises(ValueError, match="got 'dense' and 'adam'"):
            RunConfig(meter=meter, optimizer="adam", batch=1)
    with pytest.raises(ValueError, match="got rule='ntk', the kernel regime"):
        RunConfig(meter="updates", rule="ntk")
    RunConfig(meter="outputs", weights="deferred")  # reads nothing of the weights


ALONE: dict[str, Any] = {"meter": "outputs"}  # what is not trained in a stack


@pytest.mark.parametrize("how", [{}, ALONE, {"block": "two-layer"}, {"network": "mlp", "rule": "mup"}], ids=str)
def test_a_look_is_what_a_run_that_stops_there_gives(how: dict[str, Any]) -> None:
    settings = SMALL | {"every": 3} | how
    records = train_group([RunConfig(**settings, seed=seed).model_dump() for seed in range(2)])
    for record in records:
        assert record.curves["tested_after"].tolist() == [0, 3, 6, 8]
        for look, steps in enumerate([0, 3, 6, 8]):
            config = RunConfig(**record.config)
            if steps:
                (stopped,) = train_group([config.model_copy(update={"steps": steps, "every": None}).model_dump()])
                assert "test_loss" not in stopped.curves
                loss, right = stopped.metrics["test_loss"], stopped.metrics["test_accuracy"]
            else:
                dataset = dataset_of(config)
                count = len(dataset.test_labels) if config.meter == "none" else trained.TESTED
                labels = dataset.test_labels[:count]
                outputs = member(config, dataset).network()(dataset.test_inputs[:count])
                loss = float(cross_entropy(outputs, labels).detach())
                right = float((outputs.argmax(-1) == labels).float().mean())
            assert float(record.curves["test_loss"][look]) == pytest.approx(loss, rel=1e-5)
            assert float(record.curves["test_accuracy"][look]) == pytest.approx(right, abs=0.005)
        assert float(record.curves["test_loss"][-1]) == pytest.approx(record.metrics["test_loss"])


@pytest.mark.parametrize("how", [{}, ALONE], ids=str)
def test_looking_changes_nothing_and_rarer_looks_are_one_at_each_end(how: dict[str, Any]) -> None:
    (plain,), (often,), (rare,) = (
        train_group([RunConfig(**SMALL, **how, every=every).model_dump()]) for every in (None, 1, 100)
    )
    assert plain.curves["loss"].tolist() == often.curves["loss"].tolist() == rare.curves["loss"].tolist()
    assert plain.metrics == often.metrics == rare.metrics
    assert rare.curves["tested_after"].tolist() == [0, 8]
    assert often.curves["tested_after"].tolist() == list(range(9))
    assert rare.curves["test_loss"][1] == often.curves["test_loss"][8]
    assert "tested_after" not in plain.curves


def test_the_group_of_a_run_and_its_meter_change_no_losses() -> None:
    stacked, alone, updates = (
        train_group([RunConfig(**SMALL, every=3, meter=meter).model_dump()])[0]
        for meter in ("none", "outputs", "updates")
    )
    for other in (alone, updates):
        assert other.curves["loss"] == pytest.approx(stacked.curves["loss"], rel=1e-5)
    assert alone.curves["test_loss"] == pytest.approx(updates.curves["test_loss"], rel=1e-5)
    config = RunConfig(**alone.config)
    assert alone.curves["outputs"].shape == (trained.TESTED * 10,)
    assert updates.curves["measured_after"].tolist() == [3, 6, 8]
    final = torch.as_tensor(alone.curves["outputs"]).view(trained.TESTED, 10)
    right = (final.argmax(1) == dataset_of(config).test_labels[: trained.TESTED]).float().mean()
    assert float(right) == pytest.approx(alone.metrics["test_accuracy"])


@pytest.mark.parametrize("rule", ["mup", "ntk"])
@pytest.mark.parametrize("how", [{}, ALONE], ids=str)
def test_a_vanilla_run_is_an_mlp_trained_by_the_plain_loop(rule: Any, how: dict[str, Any]) -> None:
    (record,) = train_group([RunConfig(**SMALL, **how, network="mlp", rule=rule, seed=5).model_dump()])
    dataset = dataset_of(RunConfig(**record.config))
    net = nfd.MLP(64, 10, 12, 3, regime="kernel" if rule == "ntk" else "feature", seed=5)
    x, y = dataset.batches(8, 8, 0)
    losses = [
        row.loss for row in train(net, nfd.SGD(net.param_groups(0.3, rule)), zip(x, y, strict=True), cross_entropy)
    ]
    assert record.curves["loss"] == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("how", [{}, ALONE, {"meter": "updates"}, {"meter": "spectra", "batch": 1}], ids=str)
@pytest.mark.parametrize("eta", [300.0, 1e12])
def test_a_run_that_diverges_has_nothing_after_it(how: dict[str, Any], eta: float) -> None:
    """Not-a-number at the looks it did not reach, whose number is that of other runs."""
    settings = SMALL | {"every": 2} | how
    (record,) = train_group([RunConfig(**settings, eta_c=eta).model_dump()])
    assert record.status == "diverged"
    at = int(record.metrics["diverged_at"])
    assert record.curves["tested_after"].tolist() == [0, 2, 4, 6, 8]
    for name in ("test_loss", "test_accuracy"):
        values = torch.as_tensor(record.curves[name])
        assert not values[[step > at for step in (0, 2, 4, 6, 8)]].isfinite().any()
        assert values[0].isfinite()
    if how.get("meter") in ("updates", "spectra"):
        assert record.curves["measured_after"].tolist() == [2, 4, 6, 8]
        for name in set(record.curves) - {"loss", "test_loss", "test_accuracy", "tested_after", "measured_after"}:
            values = torch.as_tensor(record.curves[name]).view(4, -1)
            assert not values[[step > at for step in (2, 4, 6, 8)]].isfinite().any()
            assert len(values.flatten()) == 4 * (3 if how["meter"] == "spectra" else 1)


def test_coupled_runs_of_a_seed_share_a_path() -> None:
    """Deep networks of a seed come together, sample by sample; those that are not coupled do not."""

    def apart(coupled: bool) -> list[float]:
        ends = []
        for depth in (8, 16, 32):
            config = RunConfig(width=24, depth=depth, steps=1, meter="start", coupled=coupled)
            ends.append(torch.as_tensor(train_group([config.model_dump()])[0].curves["h_end"]))
        return [float((a - b).square().mean()) for a, b in itertools.pairwise(ends)]

    together, free = apart(True), apart(False)
    assert together[0] < free[0] / 5
    assert together[1] < 0.8 * together[0]
    assert free[1] > 0.5 * free[0]
    (one,), (two,) = (train_group([RunConfig(**SMALL, coupled=c).model_dump()]) for c in (False, True))
    assert one.curves["loss"][0] != two.curves["loss"][0]
