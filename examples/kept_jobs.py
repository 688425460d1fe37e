"""Jobs of a page, whose results are kept: each is done once, and the page can be written after any of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from nfd.core.files import write_json

Found = dict[str, Any]


class Job(Protocol):
    """A dataclass of settings, and how its results are found from those of earlier jobs."""

    @property
    def name(self) -> str:
        """Of its file."""

    def measured(self, known: Mapping[str, Found], out: Path, workers: int | None) -> Found:
        """Its results, as JSON holds them."""


def results(jobs: Sequence[Job], out: Path, workers: int | None) -> Iterator[Mapping[str, Found]]:
    """What is known after each job, by its name; what was done before is not done again."""
    known: dict[str, Found] = {}
    for job in jobs:
        if not done([job], out):
            write_json(out / f"{job.name}.json", {"settings": settings(job)} | job.measured(known, out, workers))
        known |= done([job], out)
        yield known


def done(jobs: Sequence[Job], out: Path) -> dict[str, Found]:
    """What was found before with these settings, by name of the job."""
    known = {}
    for job in jobs:
        path = out / f"{job.name}.json"
        if path.exists() and (found := json.loads(path.read_text()))["settings"] == settings(job):
            known[job.name] = found
    return known


def settings(job: Any) -> Found:
    """As JSON holds them."""
    return json.loads(json.dumps(asdict(job)))
