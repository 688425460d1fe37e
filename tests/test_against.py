"""Two versions side by side: ratios and goals of planted costs, and which library a job was timed on."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks import against, jobs
from benchmarks.against import MEMORY, SECONDS, Comparison, Standing, compared, standing
from benchmarks.ratio import Ratio

JOB = """
import json, sys
import nfd
if sys.argv[1] == "new-only" and not hasattr(nfd, "extra"):
    raise SystemExit("nfd has no extra")
print("on the way")
print(json.dumps({"source": nfd.__file__, "cost": {"seconds": nfd.SECONDS}}))
"""
FAST = Comparison("fast", "a fast job", {SECONDS: 0.5})
NEW_ONLY = Comparison("new-only", "a new job")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One whose first commit takes four seconds, and whose working tree one."""

    def git(*words: str) -> None:
        author = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *author, *words], check=True, capture_output=True)

    library = tmp_path / "src" / "nfd" / "__init__.py"
    for path, text in {library: "SECONDS = 4.0\n", tmp_path / "benchmarks" / "jobs.py": JOB}.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "old")
    library.write_text("SECONDS = 1.0\nextra = True\n")
    monkeypatch.setattr(against, "ROOT", tmp_path)
    monkeypatch.setattr(against, "machine", dict[str, Any])
    monkeypatch.setattr(against, "COMPARISONS", (FAST, NEW_ONLY))
    return tmp_path


def test_a_commit_is_timed_beside_the_working_tree_and_leaves_nothing(repository: Path) -> None:
    result = against.against("HEAD", [], 2, lambda text: None)
    fast, new = result.parts["against"]
    assert fast["new / old"] == Ratio((0.25, 0.25), less_is_better=True)
    assert (fast["old"], fast["new"], fast["the goal is"]) == (4.0, 1.0, "met")
    assert new["old"] == "not there"
    assert "new / old" not in new
    assert "nfd has no extra" in result.missing["new-only"]
    listed = subprocess.run(["git", "-C", repository, "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(listed.stdout.splitlines()) == 1


def test_sides_alternate_and_an_opponent_runs_once_a_round() -> None:
    order: list[tuple[str, str]] = []

    def measure(side: str, job: str) -> jobs.Cost:
        order.append((side, job))
        seconds = {"dense": 60.0, "a": 4.0, "b": 2.0}[job] / (1 if side == "old" or job == "dense" else 2)
        return {SECONDS: seconds, MEMORY: 3.0}

    pair = [Comparison(job, job, opponent="dense", multiple=20) for job in ("a", "b")]
    rows, missing = compared(pair, 2, measure, lambda text: None)
    one_round = [("new", "dense"), ("old", "a"), ("new", "a"), ("old", "b"), ("new", "b")]
    assert order == 2 * one_round
    assert missing == {}
    multiples = {row["job"]: row for row in rows if row["measure"] == "dense / ours"}
    assert multiples["a"]["old"] == Ratio((15.0, 15.0))
    assert multiples["a"]["new"] == Ratio((30.0, 30.0))
    assert {row["the goal is"] for row in multiples.values()} == {"met"}
    assert [row["new / old"].ratios for row in rows if row["measure"] == MEMORY] == 2 * [(1.0, 1.0)]


@pytest.mark.parametrize(
    ("ratios", "less_is_better", "expected"),
    [
        ((0.40, 0.41, 0.42), True, Standing.MET),
        ((0.60, 0.61, 0.62), True, Standing.MISSED),
        ((0.40, 0.50, 0.62), True, Standing.OPEN),
        ((0.60, 0.61, 0.62), False, Standing.MET),
        ((0.40,), True, Standing.OPEN),
    ],
)
def test_a_goal_is_judged_by_the_whole_interval(
    ratios: tuple[float, ...], less_is_better: bool, expected: Standing
) -> None:
    assert standing(Ratio(ratios, less_is_better), 0.5) is expected
