"""Capacity: what the law, the floor and the held-out network say of losses that are known, and the command."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import nfd
from nfd.cli.main import main
from nfd.core.statistics import Interval
from nfd.questions.capacity_answers import answers_of
from nfd.questions.capacity_findings import capacity_findings
from nfd.questions.capacity_sweep import capacity_of_records, capacity_of_sweep, from_records
from nfd.questions.floor import Floor, floor_in, floor_of, no_limit, settings_of
from nfd.questions.sweep_settings import CapacityConfig
from nfd.runs.executors.executor import Inline, attempt
from nfd.runs.grid import grid
from nfd.runs.records import dataset_of, run_key, train_group
from nfd.runs.settings import RunConfig
from nfd.runs.sweep import Sweep
from nfd.runs.trained import TESTED
from nfd.store.rows import Record
from nfd.store.store import Store


class Known:
    """A sweep whose test losses follow ``floor(T) + a/n + b/L`` (where bent, 1/sqrt(L)); it diverges at T eta > 2."""

    progress = False
    run_all = Sweep.run_all

    def __init__(self, bent: bool = False) -> None:
        self.bent = bent

    def run(self, configs: Iterable[RunConfig], label: str = "") -> list[Record]:
        return [self.record(config) for config in configs]

    def record(self, c: RunConfig) -> Record:
        noise = torch.randn((), generator=torch.Generator().manual_seed(c.seed)).item()
        depth = 2.0 / math.sqrt(c.depth) if self.bent else 0.5 / c.depth
        loss = 0.7 - 0.1 * math.log2(c.horizon) + 8.0 / c.width + depth + 0.02 * noise / math.sqrt(c.width / 64)
        stable = c.horizon * c.eta_c <= 2.0
        metrics = {"first_loss": 2.4, "highest_loss": 2.4 if stable else math.inf}
        metrics |= {"train_loss": 1.0 if stable else math.inf, "test_loss": loss if stable else math.inf}
        return Record(run_key(c, ""), "g", "done" if stable else "diverged", c.model_dump(), metrics)


def found(bent: bool = False, **settings: Any) -> tuple[Any, Any]:
    config = CapacityConfig(**{"replicates": 0} | settings)
    done = capacity_of_sweep(config, cast(Sweep, Known(bent)))
    return done, answers_of(config, done)


def test_the_law_the_horizon_and_the_edge_of_stability_are_found() -> None:
    done, answers = found()
    assert done.law.good
    for got, true in ((done.law.floor, 0.7), (done.law.a, 8.0), (done.law.b, 0.5)):
        assert got.low < true < got.high
    assert {T: round(law.floor.value, 1) for T, law in done.horizons.laws.items()} == {
        0.25: 0.9,
        0.5: 0.8,
        1: 0.7,
        2: 0.6,
        4: 0.5,
    }
    for one in done.horizons.stability:
        assert one.stable <= 2 / one.horizon < one.unstable
        assert one.unstable / one.stable == pytest.approx(math.sqrt(2), rel=0.01)
    assert done.held_out is not None
    assert done.held_out.inside
    numbers = answers.result
    assert set(numbers["fit"]["floor"]) == {"value", "low", "high"}
    assert numbers["network"]["excess"]["value"] == pytest.approx(8 / 128 + 0.5 / 8, rel=0.2)
    assert numbers["best"]["parameters"]["cost"] <= done.costs.cost("parameters").at(512, 64)
    assert len(capacity_findings(answers)) == 4


def test_it_prints_as_a_table_whose_rows_are_plain() -> None:
    done, _ = found()
    rows = {row["quantity"]: row for row in done.table if row["quantity"] != "test loss"}
    assert rows["floor"].items() >= {"value": done.law.floor.value, "low": done.law.floor.low}.items()
    sizes = [row for row in done.table if row["quantity"] == "test loss"]
    assert [(row["width"], row["depth"]) for row in sizes] == sorted(done.losses)
    assert all(set(row) == {"quantity", "width", "depth", "value", "low", "high"} for row in done.table)
    assert all(row["low"] < row["value"] < row["high"] for row in done.table)
    assert "test loss" in str(done)


def test_a_law_that_does_not_hold_is_not_extrapolated() -> None:
    done, answers = found(bent=True)
    assert not done.law.good
    assert done.held_out is None
    (said,) = answers.sentences
    assert "may not be used beyond the sizes trained, and gives no floor" in said
    assert "best" not in answers.result
    assert {f.name for f in capacity_findings(answers)} == {"ceiling", "stability"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"parameters": "lots"}, "budget in parameters must be like"),
        ({"memory": "10 B"}, "is too small for any network;"),
        ({"held_out": (128, 16)}, "held_out must be wider than 512 or deeper than 64"),
        ({"replicates": 1}, "replicates must be two or more"),
    ],
)
def test_what_cannot_be_answered_is_refused_before_anything_is_trained(settings: dict[str, Any], said: str) -> None:
    class Untouched(Known):
        def run(self, configs: Iterable[RunConfig], label: str = "") -> list[Record]:
            raise AssertionError("trained")

    with pytest.raises(ValueError, match=said):
        capacity_of_sweep(CapacityConfig(**{"replicates": 0} | settings), cast(Sweep, Untouched()))


def test_the_horizon_is_bought_for_the_network_asked_about() -> None:
    _, answers = found(width=100, depth=10)
    said = next(line for line in answers.sentences if "width 100 and depth 10" in line)
    bought = re.search(r"Doubling the horizon to T = 2 buys \+(\S+) \[\+(\S+), \+(\S+)\]", said)
    assert bought is not None
    value, low, high = map(float, bought.groups())
    assert low < 0.1 < high
    assert value == pytest.approx(0.1, abs=0.02)
    only = capacity_of_sweep(CapacityConfig(replicates=0, horizons=(1.0, 4.0)), cast(Sweep, Known()))
    assert "What T = 2 would gain is not known" in "".join(answers_of(CapacityConfig(), only).sentences)


class Backwards(Inline):
    """Does the last tasks first, and stops after some of them."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def run(self, work: Any, tasks: Any, started: Any = None) -> Any:
        for index in list(reversed(range(len(tasks))))[: self.most]:
            yield attempt(work, tasks[index], index, 1)
        if self.most < len(tasks):
            raise KeyboardInterrupt


def test_a_resumed_sweep_says_what_an_uninterrupted_one_says_bit_for_bit(tmp_path: Path) -> None:
    configs = grid(width=[4, 8, 16], depth=[1, 2, 4], seed=[3, 1, 2], steps=2, batch=4)
    with Sweep(tmp_path / "whole") as sweep:
        sweep.run(configs)
    with Sweep(tmp_path / "resumed", Backwards(4)) as sweep, pytest.raises(KeyboardInterrupt):
        sweep.run(configs)
    with Sweep(tmp_path / "resumed") as sweep:
        sweep.run(configs)
    answered, stored = [], []
    for name in ("whole", "resumed"):
        with Store.read(tmp_path / name) as store:
            records = store.records()
        stored.append([record.key for record in records])
        done = capacity_of_records(records, CapacityConfig(replicates=0, hold_out=False), cast(Sweep, Known()))
        answered.append((repr(done.law), list(done.losses.items()), done.horizons.base))
    assert stored[0] != stored[1]
    assert answered[0] == answered[1]


def test_what_pytorch_was_told_does_not_reach_the_answer() -> None:
    config = CapacityConfig(replicates=0, hold_out=False, widths=(64, 128, 256), depths=(4, 8, 16), horizons=(0.5, 1.0))
    known = cast(Sweep, Known())
    records = Known().run(grid(width=[64, 128, 256], depth=[4, 8, 16], seed=[0, 1, 2]))

    def laws() -> list[str]:
        return [
            repr(done.law) for done in (capacity_of_sweep(config, known), capacity_of_records(records, config, known))
        ]

    expected = laws()
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert laws() == expected


def test_what_is_held_out_is_not_fitted() -> None:
    config = CapacityConfig(replicates=0, held_out=(1024, 64))
    configs = grid(width=[64, 128, 256], depth=[4, 8, 64], seed=list(range(4)), eta_c=0.3)
    runs = Known().run([*configs, *grid(width=1024, depth=64, seed=[0, 1, 2], eta_c=0.3)])
    done = capacity_of_records(runs, config, cast(Sweep, Known()))
    assert (1024, 64) not in done.losses
    assert done.held_out is None or done.held_out.size[0] == 1024
    with pytest.raises(ValueError, match="held_out must be wider"):
        capacity_of_records(runs[: len(configs)], CapacityConfig(replicates=0, held_out=(64, 16)), cast(Sweep, Known()))


def test_budgets_are_asked_in_any_unit() -> None:
    _, answers = found(memory="64 MiB", flops="1T")
    assert set(answers.budgets) == {"memory", "flops"}
    best = answers.result["best"]
    assert best["memory"]["cost"] <= 64 * 2**20
    assert best["flops"]["cost"] <= 1e12


def test_runs_that_differ_in_more_than_size_are_refused_by_name() -> None:
    configs = grid(width=[8, 16], depth=[2, 4], eta_c=[0.1, 0.3], seed=[0, 1])
    with pytest.raises(ValueError, match=r"eta_c in 0\.1, 0\.3"):
        from_records(Known().run(configs))
    with pytest.raises(ValueError, match="no runs"):
        from_records([])
    base, losses, paired = from_records(Known().run(configs[:2] + configs[4:6]))
    assert (base.eta_c, paired, len(losses)) == (0.1, True, 2)


SMALL = [
    *("--widths", "8,16,32", "--depths", "2,4,8", "--steps", "6", "--seeds", "3", "--horizons", "0.5,1"),
    *("--held-out", "64", "8", "--limit-width", "32", "--replicates", "3", "--executor", "inline"),
]


@pytest.mark.filterwarnings("ignore:A DeferredLinear of size")  # small on purpose
def test_the_command_and_the_fit_of_a_stored_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "own"
    assert main(["capacity", *SMALL, "--out", str(out)]) in (0, 1)
    assert "The law: loss =" in capsys.readouterr().out
    numbers = json.loads((out / "result.json").read_text())
    for name in ("floor", "a", "b"):
        assert {"value", "low", "high"} == set(numbers["fit"][name])
    assert set(numbers["floor_predicted"]) == {"value", "low", "high"}
    for name in ("report.html", "ceiling.png", "horizon.pdf", "config.toml"):
        assert (out / name).stat().st_size > 100
    again = ["capacity", str(out), "--where", "horizon=1.0", "eta_c=0.3", "--replicates", "0"]
    assert main([*again, "--no-hold-out", "--out", str(tmp_path / "fit")]) in (0, 1)
    assert (
        json.loads((tmp_path / "fit/result.json").read_text())["config"]["steps"] == 6
    )  # of the runs, not of a default
    assert main(["capacity", str(tmp_path / "nothing"), "--out", str(tmp_path / "fit")]) == 2
    assert "No sweep in" in capsys.readouterr().err


SAME_LIMIT = {
    "width",
    "depth",
    "seed",
    "weights",
    "resolution",
    "coupled",
    "every",
}  # settings that the infinite network has not
OTHER_DATA = {"data", "data_dir", "image_size"}
NO_LIMIT = [
    ({"network": "mlp", "rule": "mup"}, "vanilla network"),
    ({"rule": "ntk"}, "kernel regime"),
    ({"network": "mlp", "rule": "ntk"}, "vanilla network"),
    ({"order": "post"}, "order='post'"),
    ({"optimizer": "adam"}, "trained by adam"),
]
OTHER_LIMIT: dict[str, Any] = {
    "activation": "tanh", "horizon": 2.0, "eta_c": 0.1, "steps": 7, "batch": 4, "block": "two-layer", "momentum": 0.5,
    "feedback": "independent", "rule": "complete-p", "data_seed": 1, "meter": "outputs",
    "train": 100, "validation": 50,
}  # fmt: skip


def test_every_setting_of_a_run_counts_for_its_floor_or_excludes_one() -> None:
    refused = {name for settings, _ in NO_LIMIT for name in settings}
    assert SAME_LIMIT | OTHER_DATA | refused | set(OTHER_LIMIT) == set(RunConfig.model_fields)
    plain = settings_of(RunConfig())
    for name, value in OTHER_LIMIT.items():
        assert no_limit(RunConfig(**{name: value})) is None
        other = settings_of(RunConfig(**{name: value}))
        assert any(not _equal(plain[key], other[key]) for key in plain), name
    for settings in ({"width": 8}, {"seed": 3}, {"weights": "deferred"}, {"coupled": True}, {"every": 2}):
        other = settings_of(RunConfig(**settings))
        assert all(_equal(plain[key], other[key]) for key in plain), settings


def _equal(first: Any, second: Any) -> bool:
    return torch.equal(first, second) if isinstance(first, torch.Tensor) else first == second


@pytest.mark.parametrize(("settings", "said"), NO_LIMIT, ids=str)
def test_runs_without_a_limit_in_predict_have_no_floor_and_the_page_says_why(
    settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nfd.questions.floor.predict", lambda **_: pytest.fail("predicted another network's floor"))
    configs = grid(width=[64, 128, 256], depth=[4, 8, 16], seed=list(range(4)), eta_c=0.3, **settings)
    config = CapacityConfig(hold_out=False)
    done = capacity_of_records(Known().run(configs), config, cast(Sweep, Known()))
    assert done.predicted is not None
    assert done.predicted.reason is not None
    answers = answers_of(config, done)
    (line,) = (line for line in answers.sentences if "nfd.predict" in line)
    assert line.startswith("No floor by nfd.predict: ")
    assert said in line
    assert answers.result["floor_predicted"] is None
    assert said in answers.result["floor_predicted_note"]
    ceiling = capacity_findings(answers)[0]
    assert "floor by nfd.predict" not in {row["series"] for row in ceiling.rows}
    assert ("vanilla networks" in ceiling.caption) == (settings.get("network") == "mlp")


def test_the_floor_is_of_the_samples_that_the_runs_were_tested_on() -> None:
    losses = {}
    for meter in ("none", "outputs"):
        config = RunConfig(width=8, depth=2, steps=1, batch=2, eta_c=0.0, meter=meter)
        (record,) = train_group([config.model_dump()])
        asked = settings_of(config)
        assert record.metrics["test_samples"] == len(asked["eval_targets"]) == len(asked["eval_inputs"])
        losses[meter] = record.metrics["test_loss"]
    assert len(asked["eval_targets"]) == TESTED < len(dataset_of(config).test_labels)
    assert losses["none"] != losses["outputs"]


@pytest.mark.filterwarnings("ignore:A DeferredLinear of size")  # small on purpose
@pytest.mark.parametrize(("rule", "has"), [("depth-mup", True), ("mup", False)])
def test_a_floor_needs_a_limit_in_depth(rule: Any, has: bool) -> None:
    """Residual multipliers of 1, under mup, let the stream grow with depth without end."""
    with Sweep(None) as sweep:
        floor = floor_of(RunConfig(rule=rule, steps=2, batch=2, eta_c=0.1), 16, 3, sweep)
    assert floor is not None
    assert (floor.loss is not None) == has
    assert floor.sentence().startswith("nfd.predict (3 networks" if has else "No floor by nfd.predict: ")
    assert has or floor.note


@pytest.mark.filterwarnings("ignore:A DeferredLinear of size")  # small on purpose
def test_a_floor_is_kept_beside_the_sweep_and_is_that_of_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = RunConfig(steps=2, batch=2, eta_c=0.1)
    with Sweep(tmp_path) as sweep:
        first = floor_of(base, 16, 3, sweep)
        assert not len(sweep.store)
    monkeypatch.setattr("nfd.runs.replicates.trained", lambda _: pytest.fail("trained what is kept"))
    with Sweep(tmp_path) as sweep:
        assert floor_of(base, 16, 3, sweep) == first
    monkeypatch.undo()
    assert floor_in(nfd.predict(**settings_of(base), width=16, replicates=3, rtol=0.1)) == first


def test_the_floors_are_told_apart_by_their_intervals() -> None:
    def interval(value: float) -> Interval:
        return Interval(value, 0.01, value - 0.02, value + 0.02)

    law = interval(0.7)
    near, far = (Floor(interval(value), 512, 16, 0.01, "").beside(law) for value in (0.69, 0.6))
    assert "within the 0.028" in near
    assert "+0.100 from it, more than the 0.028" in far


def test_what_was_not_extrapolated_in_depth_is_no_floor() -> None:
    base = RunConfig(steps=2, batch=2, eta_c=0.1)
    shallow = nfd.predict(**settings_of(base), depth=2, width=16, replicates=3)
    assert shallow.eval_interval is not None
    assert math.isfinite(shallow.eval_interval.low)
    assert floor_in(shallow).loss is None
    assert floor_in(replace(shallow, extrapolated=True)).loss == shallow.eval_interval
