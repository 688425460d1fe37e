"""The page and the files of a capacity sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nfd.experiment.config import Config
from nfd.experiment.findings.finding import Finding
from nfd.report.report import Report, made_by
from nfd.report.section import Section


def write_capacity(
    config: Config,
    store: str,
    result: Mapping[str, Any],
    findings: Sequence[Finding],
    directory: Path,
    command: str,
) -> Path:
    """Write the report of a sweep whose runs are in the directory ``store``; returns the page's path."""
    report = Report(
        "How big should it be?",
        command,
        config,
        findings,
        opening=[Section("In short", [], points=result["answers"])],
        closing=[made_by(command, f"Every run of the fit: nfd runs {store}")],
        content={"store": store, **result},
        charts=("ceiling", "map", "horizon", "stability"),
    )
    return report.write(directory)
