"""How costs grow and what larger machines would take: planted powers are found, counts are those of PyTorch."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import forecast, growth, growth_page, stages
from benchmarks.accounting import count
from benchmarks.counted import Training, Work
from benchmarks.forecast import GPU, MACHINES, Device, Forecast, Job, Task, figure, on_many, on_one
from benchmarks.growth import Case, Growth, axes, cases, kinds, measured, studies
from benchmarks.jobs import unstored_run

from nfd import grid
from nfd.runs.sweep import Sweep

MACHINE = {"processor": "made up", "cores": 4, "nfd": "0", "date": "2026-01-01", "torch": "2", "load": 0.1}
LIMITS = {"read, GB/s": 1.0, "float32 products, GFLOP/s": 10.0}
POWERS = {"deferred": 1.0, "structured": 1.1, "dense": 2.0}


def planted(path: Path) -> Growth:
    """Costs that are powers of the width, linear in all else, and shared by the cores but for a second."""

    def row(case: Case) -> dict[str, Any]:
        size = case.width ** POWERS[case.weights] * case.depth * case.samples
        seconds = 1e-6 * size * case.replicates / case.cores + (case.work == "prediction")
        return asdict(case) | {"seconds": [seconds, 1.01 * seconds, 0.99 * seconds], "bytes": 4.0 * size * case.cores}

    wanted = {case for axis in axes() for kind in kinds() for case in cases(axis, kind, 4)}
    calls = {"deferred": 100.0, "structured": 70.0, "dense": 10.0}
    return Growth(path, MACHINE | LIMITS, calls, [row(case) for case in wanted])


@pytest.mark.parametrize("kind", kinds())
def test_a_planted_power_is_found(kind: str, tmp_path: Path) -> None:
    rows = growth_page.points(planted(tmp_path / "g.json"), "width")
    power = growth_page.exponent([row for row in rows if row["weights"] == kind], "seconds")
    assert power.low < POWERS[kind] < power.high
    assert power.high - power.low < 0.05


def test_what_is_no_power_widens_the_interval() -> None:
    straight, bent = (
        [{"size": n, "seconds": [n * (1 + bend * n / 64)] * 3} for n in (4, 8, 16, 32, 64)] for bend in (0.0, 4.0)
    )
    assert growth_page.exponent(straight, "seconds").stderr < 1e-9
    power = growth_page.exponent(bent, "seconds")
    assert power.high - power.low > 0.1


def test_two_sizes_that_were_measured_once_have_a_power_and_no_interval() -> None:
    power = growth_page.exponent([{"size": 2, "bytes": [4.0]}, {"size": 4, "bytes": [16.0]}], "bytes")
    assert power.value == pytest.approx(2.0)
    assert math.isnan(power.low)


def test_what_more_cores_would_give_follows_from_two_numbers_of_them() -> None:
    one, two = (3 + 10 / count + torch.tensor([-0.01, 0.0, 0.01]).double() for count in (1, 2))
    predicted_seconds = growth_page.amdahl(one, two, 2, 16)
    assert predicted_seconds.value == pytest.approx(3 + 10 / 16)
    assert predicted_seconds.low < 3 + 10 / 16 < predicted_seconds.high


def test_every_figure_shows_seconds_and_memory_of_every_kind(tmp_path: Path) -> None:
    grown = planted(tmp_path / "g.json")
    for axis in axes():
        panels = growth_page.panels(growth_page.points(grown, axis), axis)
        assert [title.split()[0] for title in panels] == ["Seconds", "Memory"]
        for panel in panels.values():
            for dots in panel.to_dict()["datasets"].values():
                assert {dot["series"] for dot in dots} == set(kinds())
                assert all(0 < dot["y"] < math.inf for dot in dots)


def test_a_busy_machine_is_told(tmp_path: Path) -> None:
    idle = planted(tmp_path / "g.json")
    busy = replace(idle, machine=dict(idle.machine) | {"load": 3.0})
    assert ["busy" in growth_page.made(of)["machine"] for of in (idle, busy)] == [False, True]


def test_the_study_on_more_cores_follows_from_its_networks(tmp_path: Path) -> None:
    """Ten seconds alone, then networks of 4, 2, 2, 2 and 2."""
    grown, networks = planted(tmp_path / "g.json"), [4.0, 2.0, 2.0, 2.0, 2.0]
    assert growth_page.made(grown)["study"] == "Not measured."
    rows = [asdict(case) | {"seconds": [22.0 / case.cores] * 2, "networks": networks} for case in studies(2)]
    told = [*growth_page.study_by_cores(replace(grown, machine=MACHINE | {"cores": 2}, rows=rows))]
    assert [(row["cores"], row.get("measured, s"), row["predicted, s"]) for row in told] == [
        (1, 22.0, 22.0), (2, 11.0, 16.0), (16, None, 14.0), ("any number", None, 14.0)
    ]  # fmt: skip


def test_stages_that_are_predicted_within_the_factor_are_counted() -> None:
    pairs = [(10.0, 10.0), (4.5, 3.0), (3.0, 6.0), (0.1, 1.0)]
    rows = [{"predicted, s": predicted, "measured, s": took} for predicted, took in pairs]
    assert [row["factor"] for row in stages.long_stages(rows)] == [1.0, 1.5, 2.0]  # a moment is none
    assert stages.summary(rows).startswith("2 of 3 stages of more than 2 s were predicted within a factor of 1.5;")
    assert growth_page.stages({})["stages"] == "Not measured."


def test_the_first_time_left_of_a_stage_is_noted() -> None:
    rows: list[dict[str, Any]] = []
    with stages.noted(rows), Sweep(None, progress=True) as sweep:
        sweep.run(grid(width=8, depth=2, steps=40, batch=4, seed=[0, 1]), "networks")
        sweep.run(grid(width=8, depth=2, steps=40, batch=4, seed=[0, 1]), "networks that are there")
    (row,) = rows
    assert row["stage"] == "networks"
    assert min(row["predicted, s"], row["measured, s"], row["rehearsal, s"]) > 0


# ---- measuring ------------------------------------------------------------------------------------------------


def test_a_measurement_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Case] = []

    def stopped(case: Case) -> dict[str, Any]:
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(case)
        return asdict(case) | {"seconds": [1.0], "bytes": 1.0}

    path = tmp_path / "growth.json"
    monkeypatch.setattr(growth, "machine", lambda clock: MACHINE)
    monkeypatch.setattr(growth, "forked", lambda function, *arguments: 1.0)
    monkeypatch.setattr(growth, "measured", stopped)
    monkeypatch.setattr("sys.argv", ["growth", "--out", str(path)])
    with pytest.raises(KeyboardInterrupt):
        growth.main()
    first = trained.copy()
    trained.clear()
    with pytest.raises(KeyboardInterrupt):
        growth.main()
    assert not set(first) & set(trained)
    assert len(Growth.read(path).rows) == 6
    with pytest.raises(ValueError, match="another cores"):
        Growth.opened(path, MACHINE | {"cores": 64})
    assert Growth.opened(path, MACHINE | {"cores": 64}, again=True).rows == []


def test_cores_double_up_to_all() -> None:
    assert [growth.doublings(most) for most in (1, 2, 6, 16)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16]]
    assert [case.cores for case in studies(6)] == [1, 2, 4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("work", ["training", "prediction"])
def test_a_case_is_measured_in_processes_of_its_own(work: Any) -> None:
    row = measured(Case(work, "deferred", 4096, 4, 24, 3, 1), repeats=2)
    assert len(row["seconds"]) == 2
    assert row["bytes"] > 16 * 4096 * 4 * 24


# ---- counts and forecasts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "most"), [("deferred", 1.35), ("structured", 1.35), ("dense", 1.0)])
def test_the_operations_that_are_counted_are_those_of_pytorch(kind: Any, most: float) -> None:
    """Of two layers more; beyond the count are small products of directions with each other."""
    done, least = (
        [of(depth) for depth in (2, 4)]
        for of in (
            lambda depth: sum(count(lambda: unstored_run(1024, depth, 6, 16, kind)).values()),
            lambda depth: Training(kind, 1024, depth, 6, 16).work.operations,
        )
    )
    assert 1.0 <= (done[1] - done[0]) / (least[1] - least[0]) <= most


def test_a_rank_bounds_the_directions() -> None:
    assert Training("structured", 64, 1, 4, 8).directions == [0, 8, 16, 24]
    assert Training("structured", 64, 1, 4, 8, rank=12).directions == [0, 8, 12, 12]


def test_the_bound_is_the_larger_of_bytes_and_operations() -> None:
    device = Device("made up", read=2.0, peak=10.0, memory=1.0, source="")
    assert device.bound(Work(8.0, 20.0)) == 4.0
    assert device.bound(Work(2.0, 20.0)) == 2.0


def test_a_forecast_is_the_bound_over_the_share_and_the_calls(tmp_path: Path) -> None:
    grown = planted(tmp_path / "g.json")
    forecast = Forecast.of(grown)
    widest = cases("width", "dense", 1)[-1]
    task = Task(Training("dense", widest.width, widest.depth, widest.samples // growth.BATCH, growth.BATCH))
    here = Device("here", 1e9, 1e10, math.inf, "")
    measured_seconds = min(grown.row(widest)["seconds"])
    assert forecast.shares["dense"] == pytest.approx(here.bound(task.work) / measured_seconds)
    calls = 10 * widest.depth * (widest.samples // growth.BATCH) * 1e-5
    assert forecast.seconds(task, here) == pytest.approx(measured_seconds + calls)


@pytest.mark.parametrize(("networks", "expected"), [(4 * MACHINES, "4 s"), (2, "1 s")])
def test_a_cluster_shares_networks_and_splits_none(
    networks: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forecast, "seconds", lambda self, task, device: 1.0)
    job = Job("made up", [(Task(Training("dense", 64, 2, 1, 8)), networks)])
    assert on_many(job, GPU, Forecast({}, {})) == expected
    small = replace(GPU, memory=1.0)
    assert on_many(job, small, Forecast({}, {})) == on_one(job, small, Forecast({}, {})) == "does not fit"


def test_the_networks_of_a_figure_are_all_counted() -> None:
    shapes = figure("5").tasks
    assert sum(task.together * times for task, times in shapes) == 60 + 900 + 50
    assert {task.training.depth for task, _ in shapes} >= {2 * 128}  # two matrices a block


@pytest.mark.parametrize(
    ("page", "made"), [(growth_page.PAGE, growth_page.made), (forecast.PAGE, forecast.made)], ids=["growth", "larger"]
)
def test_the_pages_are_made_from_what_was_measured(page: Path, made: Any) -> None:
    text = page.read_text()
    for name, content in made(Growth.read()).items():
        assert f"<!-- made: {name} -->\n\n{content}\n\n<!-- end -->" in text
