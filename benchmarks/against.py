"""``python -m benchmarks.run --against COMMIT``: what a job costs now over what it cost at an earlier commit.

The commit is checked out beside this one. Every job of ``benchmarks.jobs`` runs on both sides in turn, each time in a
process of its own, and again in every round: old, new, old, new. So a ratio compares two measurements of one machine
and one hour. Goals are ratios too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.jobs import Cost
from benchmarks.measure import Row, UnavailableError, machine
from benchmarks.ratio import Ratio
from benchmarks.result import Result, merged

ROOT = Path(__file__).parents[1]
PART = "against"
SECONDS, MEMORY = "seconds", "peak memory, GiB"


@dataclass(frozen=True)
class Comparison:
    """A job on both sides.

    Args:
        job: its name in ``benchmarks.jobs``. about: its name in the table.
        goals: by measure, the most that the new side should cost over the old one.
        opponent: a job that no commit changes, run once a round. multiple: how often the new side should fit into it.
    """

    job: str
    about: str
    goals: Mapping[str, float] = field(default_factory=dict)
    opponent: str | None = None
    multiple: float | None = None


COMPARISONS = (
    Comparison("deferred-4096", "deferred, width 4,096", opponent="dense-4096", multiple=10),
    Comparison("deferred-8192", "deferred, width 8,192", opponent="dense-8192", multiple=30),
    Comparison("structured-4096", "structured, width 4,096", opponent="dense-4096", multiple=25),
    Comparison("structured-8192", "structured, width 8,192", opponent="dense-8192", multiple=60),
    Comparison("query", "a query: width 4,096, 104 directions, 8 rows", {SECONDS: 0.47}),
    Comparison("large", "deferred, width 1,048,576, depth 4, 96 samples", {SECONDS: 0.75, MEMORY: 1.0}),
    Comparison("ntk-1000", "NTK Gram matrix of 1,000 inputs, ReLU", {SECONDS: 0.27}),
    Comparison("ntk-4000", "the same of 4,000 inputs"),
)


class Standing(StrEnum):
    """Where a ratio stands to its goal, by its whole interval."""

    MET = "met"
    MISSED = "missed"
    OPEN = "open"


def standing(ratio: Ratio, goal: float) -> Standing:
    """Met or missed where the 95 % interval lies on one side of the goal; open otherwise, and for one repeat alone."""
    interval, sign = ratio.interval, 1.0 if ratio.less_is_better else -1.0
    beyond = sorted(sign * (limit - goal) for limit in (interval.low, interval.high))
    if not ratio.freedom or beyond[0] <= 0 < beyond[1]:
        return Standing.OPEN
    return Standing.MET if beyond[1] <= 0 else Standing.MISSED


Measure = Callable[[str, str], Cost]  # of a side, "old" or "new", and a job


def compared(
    comparisons: Sequence[Comparison], rounds: int, measure: Measure, report: Callable[[str], None]
) -> tuple[list[Row], dict[str, str]]:
    """A row for every measure of every job, and why the old side lacks a job."""
    by_round: list[list[Row]] = []
    missing: dict[str, str] = {}
    for number in range(rounds):
        rows: list[Row] = []
        opponents: dict[str, Cost] = {}
        for comparison in comparisons:
            report(f"round {number + 1}: {comparison.job}")
            if comparison.opponent and comparison.opponent not in opponents:
                opponents[comparison.opponent] = measure("new", comparison.opponent)
            old = _old_cost(comparison, measure, missing)
            rows += _rows(comparison, old, measure("new", comparison.job), opponents)
        by_round.append(rows)
    return [row | _standing_of(row) for row in merged(by_round)], missing


def _old_cost(comparison: Comparison, measure: Measure, missing: dict[str, str]) -> Cost | None:
    if comparison.job in missing:
        return None
    try:
        return measure("old", comparison.job)
    except UnavailableError as reason:
        missing[comparison.job] = str(reason)
        return None


def _rows(comparison: Comparison, old: Cost | None, new: Cost, opponents: Mapping[str, Cost]) -> Iterator[Row]:
    """Those of one round."""
    for measure, cost in new.items():
        row: Row = {"job": comparison.about, "measure": measure, "old": old[measure] if old else "not there"}
        row["new"] = cost
        if old:
            row["new / old"] = Ratio.of(cost / old[measure], less_is_better=True)
        yield row | ({"goal": comparison.goals[measure]} if measure in comparison.goals else {})
    if comparison.opponent and comparison.multiple:
        dense = opponents[comparison.opponent][SECONDS]
        yield {
            "job": comparison.about,
            "measure": "dense / ours",
            "old": Ratio.of(dense / old[SECONDS]) if old else "not there",
            "new": Ratio.of(dense / new[SECONDS]),
            "goal": float(comparison.multiple),
        }


def _standing_of(row: Row) -> Row:
    """The new side's multiple of an opponent, or its share of the old side, against the goal."""
    ratio = row["new"] if isinstance(row["new"], Ratio) else row.get("new / old")
    return {"the goal is": str(standing(ratio, row["goal"]))} if ratio and "goal" in row else {}


# ---- two sides on one machine ---------------------------------------------------------------------------------


@contextmanager
def checkout(commit: str, repository: Path) -> Iterator[Path]:
    """A folder with the files of a commit, which is gone afterwards."""
    try:
        full = _git(repository, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    except ValueError:
        raise ValueError(f"--against must name a commit of {repository}; got {commit!r}. git log lists them.") from None
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve() / "old"
        _git(repository, "worktree", "add", "--quiet", "--detach", str(place), full)
        try:
            yield place
        finally:
            _git(repository, "worktree", "remove", "--force", str(place))


def _git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"git {words[0]} failed in {repository}: {done.stderr.strip()}")
    return done.stdout.strip()


def cost_at(root: Path, job: str) -> Cost:
    """What a job costs with the library of a checkout, in a new process with an empty cache.

    Raises:
        UnavailableError: the job failed there. RuntimeError: the process took the library from elsewhere.
    """
    source = root / "src"
    with tempfile.TemporaryDirectory() as folder:
        places = {"PYTHONPATH": os.pathsep.join([str(source), str(ROOT)]), "NFD_CACHE": folder}
        call = [sys.executable, "-m", "benchmarks.jobs", job]
        done = subprocess.run(call, capture_output=True, text=True, env=os.environ | places, cwd=folder, check=False)
    if done.returncode:
        raise UnavailableError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"{job} failed")
    told = json.loads(done.stdout.splitlines()[-1])
    if not Path(told["source"]).is_relative_to(source):
        raise RuntimeError(f"{job} should have run on {source}; it ran on {told['source']}.")
    cost: Cost = told["cost"]
    return cost


def against(commit: str, names: Sequence[str], rounds: int, report: Callable[[str], None]) -> Result:
    """The result of comparing this working tree with a commit; all jobs where no names are given."""
    if unknown := set(names) - {comparison.job for comparison in COMPARISONS}:
        known = ", ".join(comparison.job for comparison in COMPARISONS)
        raise ValueError(f"--only must name jobs; got {', '.join(sorted(unknown))}. There are {known}.")
    start = time.perf_counter()
    with checkout(commit, ROOT) as old:
        roots = {"old": old, "new": ROOT}
        chosen = [comparison for comparison in COMPARISONS if not names or comparison.job in names]
        rows, missing = compared(chosen, rounds, lambda side, job: cost_at(roots[side], job), report)
    about = machine() | {"old": commit, "new": _git(ROOT, "describe", "--always", "--dirty")}
    marked = [{"against": commit, **row} for row in rows]
    return Result(about, False, {PART: marked}, {PART: time.perf_counter() - start}, missing)
