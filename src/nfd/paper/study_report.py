"""The report of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nfd.paper.findings import Finding
from nfd.paper.study import WEIGHTS, Study
from nfd.report import Report, Section, made_by

_TITLE = (
    "How does this residual network train when it is infinitely wide and deep, do its inner features learn, and how "
    "far is a real network from that?"
)


def study_report(study: Study, findings: Sequence[Finding], command: str) -> Report:
    """The report of a study ."""
    data = _data(study)
    return Report(
        _TITLE,
        command,
        study.config.plain(),
        [replace(finding, caption=f"{finding.caption} {data}") for finding in findings],
        [f"{finding.title} {finding.headline}" for finding in findings],
        opening=_warning(study),
        closing=_run(study, command),
        content={"complete": study.measured.complete, "run": study.facts()},
    )


def _warning(study: Study) -> list[Section]:
    if study.measured.complete:
        return []
    partial = "The study was interrupted. What had been measured by then is below; the rest is missing."
    return [Section("This report is partial", [partial])]


def _data(study: Study) -> str:
    """What the captions of all findings share."""
    c = study.config
    return (
        f"Data: {study.dataset.title}, {c.steps} steps of {c.batch}, the same batches for all; {c.activation}, "
        f"T = {c.horizon:g}, eta_c = {c.eta_c:g}, cross-entropy in nats, inputs normalised per channel. "
        f"Infinitely wide: {c.replicates} networks of width {c.limit_width:,} with {WEIGHTS} weights."
    )


def _run(study: Study, command: str) -> list[Section]:
    settings = {k: " ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in study.config.plain().items()}
    facts = study.facts()
    times = [{"": name, "seconds": value} for name, value in facts.pop("seconds").items()]
    rows = [{"": k.replace("_", " "), "value": v} for k, v in (settings | facts).items() if v is not None]
    made = replace(made_by(command, "The same command repeats it bit for bit."), table=rows)
    return [made, Section("Where the time went", [], table=times, folded=True)]
