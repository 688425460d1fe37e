"""What 0.3.0 stored is read, or refused by a sentence that says what to do.

The files in ``stored_by_0_3`` were written by nfd 0.3.0 for the network and the batches below:
``nfd.Plan.save``, ``nfd.Check.save``, ``nfd.Watch.state_dict``, an ``nfd.Sweep`` and
``nfd transfer``.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.common import run
from torch import Tensor, nn

import nfd

STORED = Path(__file__).parent / "stored_by_0_3"


class Block(nn.Module):
    """Adds a hidden layer to the stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(torch.relu(self.up(h)))
        return out


class Net(nn.Module):
    """Four numbers to three classes."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        out: Tensor = self.head(h)
        return out


def inputs(k: int) -> Tensor:
    """Inputs without rounding, which have one hash on every machine."""
    return ((torch.arange(32.0) * 7 + 5 * k) % 17 - 8).view(8, 4) / 8


BATCHES = [(inputs(k), inputs(k)[:, :3].argmax(1)) for k in range(4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the stored files, which commands may write beside."""
    return Path(shutil.copytree(STORED, tmp_path / "stored"))


def cut(path: Path) -> Path:
    """Damage a file: half of it is lost."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


# ---- plans


def test_a_stored_plan_says_what_a_new_one_says() -> None:
    stored = nfd.Plan.load(STORED / "plan.json")
    new = nfd.plan(Net(16, 1), (4, 1), make_model=Net, sample=inputs(0))
    for name in new.entries:
        assert stored.rate(name) == new.rate(name)
        assert stored.std(name) == pytest.approx(new.std(name))
        assert stored.epsilon(name) == pytest.approx(new.epsilon(name))
    assert nfd.Plan.from_dict(stored.to_dict()).to_dict() == stored.to_dict()


def test_a_damaged_plan_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"plan\.json is damaged.*Plan the model again"):
        nfd.Plan.load(cut(folder / "plan.json"))


# ---- checks and watches


def watched(**options: Any) -> nfd.Watch:
    """A watch of a new network under the stored plan."""
    plan = nfd.Plan.load(STORED / "plan.json")
    model = plan.apply_(Net(16, 1), seed=0)
    return nfd.Watch(model, plan, inputs(0), every=1, **options)


def test_a_stored_check_has_bands_but_of_one_meter() -> None:
    said = "stream_update left out factors of the forward pass: this meter is not compared"
    with pytest.warns(RuntimeWarning, match=said):
        watch = watched(expected=STORED / "ladder.json")
    watch.load_state_dict(torch.load(STORED / "watch.pt", weights_only=True))
    watch.step(1.0)
    banded = {row.meter for row in watch.rows if watch.band(row) is not None}
    assert {"activation", "function_update", "change"} <= banded
    assert "stream_update" in {row.meter for row in watch.rows} - banded


def test_a_damaged_check_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no check .* Give a Check, a file of Check\.save"):
        watched(expected=cut(folder / "ladder.json"))


def test_a_stored_watch_continues() -> None:
    state = torch.load(STORED / "watch.pt", weights_only=True)
    watch = watched()
    watch.load_state_dict(state)
    known = [row for row in state["rows"] if row["meter"] != "stream_update"]
    assert [dataclasses.asdict(row) for row in watch.rows] == known
    watch.step(1.0)
    assert {row.step for row in watch.rows} == {1, 2, 3}


def test_a_damaged_state_is_refused() -> None:
    state = torch.load(STORED / "watch.pt", weights_only=True)
    del state["rows"]
    with pytest.raises(ValueError, match="state_dict"):
        watched().load_state_dict(state)


# ---- stored runs


def trial(width: int, make_model: Any = None) -> nfd.Trial:
    """One of the trials that were stored: of the paper's networks, or of ``Net``."""
    if make_model is None:
        family = nfd.resnets(4, 3)
        return nfd.Trial(family, nfd.Task(BATCHES), width, 1, lr=0.3, seed=0)
    family = nfd.Family(make_model, (4, 1), sample=inputs(0), name="Net")
    return nfd.Trial(family, nfd.Task(BATCHES), width, 1, lr=0.01, seed=0)


def test_stored_runs_of_the_papers_networks_are_used(folder: Path) -> None:
    with nfd.Sweep(folder, executor="inline", progress=False) as sweep:
        used = sweep.run([trial(4), trial(8)])
        assert len(sweep.reused) == 2
    with nfd.Sweep(executor="inline", progress=False) as sweep:
        trained = sweep.run([trial(4), trial(8)])
    for stored, new in zip(used, trained, strict=True):
        assert stored.key == new.key
        assert stored.metrics == pytest.approx(new.metrics)


def test_stored_runs_of_a_users_networks_are_trained_anew_and_a_note_says_so(
    folder: Path,
) -> None:
    with nfd.Sweep(folder, executor="inline", progress=False) as sweep:
        with pytest.warns(UserWarning, match="1 run of Net stored in .* did not record code"):
            (new,) = sweep.run([trial(4, Net)])
        assert not sweep.reused
    assert new.metrics["train_loss"] > 0


def test_damaged_runs_are_refused(folder: Path) -> None:
    cut(folder / "runs.sqlite")
    with pytest.raises(ValueError, match=r"is damaged .* Put a copy in its place"):  # noqa: SIM117
        with nfd.Sweep(folder, executor="inline", progress=False) as sweep:
            sweep.run([trial(4)])


# ---- results of commands


def test_a_stored_result_is_reported_and_planned_from(folder: Path) -> None:
    told = run("report", ".", "--out", "page", folder=folder)
    assert told.returncode == 0
    lead = json.loads((folder / "result.json").read_text())["lead"]["verdict"]
    assert lead[:30] in told.stdout
    (folder / "setup.py").write_text("import nfd\nfamily = nfd.resnets(4, 3)\n")
    planned = run("plan", "setup.py", "--from", ".", "--out", "plan", folder=folder)
    assert planned.returncode == 0
    assert "the transfer was not decided" in planned.stdout.replace("\n  ", " ")


def test_a_stored_result_is_no_table_of_runs(folder: Path) -> None:
    said = r"the answer of 'nfd transfer .*, not a table of runs"
    for fit in (nfd.fit_transfer, nfd.fit_rate_law, nfd.fit_scaling_law, nfd.fit_ladder):
        with pytest.raises(ValueError, match=said):
            fit(folder / "result.json")


def test_a_damaged_result_is_named(folder: Path) -> None:
    cut(folder / "result.json")
    told = run("report", ".", "--out", "page", folder=folder)
    assert told.returncode == 2
    assert "is damaged: not JSON" in told.stderr
    assert "Run its command again" in told.stderr
