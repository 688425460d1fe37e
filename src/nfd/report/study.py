"""The page and the files of a study."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from nfd.core.files import staged, write_bytes, write_csv, write_json, write_text
from nfd.experiment.findings import METERS, RULE_NAMES, Finding
from nfd.experiment.study import Study
from nfd.report.charts import COLOURS, SHADES, Chart, Series, curves, points, still
from nfd.report.page import Section, page

_TITLE = (
    "How does this residual network train when it is infinitely wide and deep, do its inner features learn, and how "
    "far is a real network from that?"
)
_CHARTS = (
    "loss-shared",
    "loss-independent",
    "gap",
    "distance-width",
    "distance-depth",
    "updates-first",
    "updates-last",
)


def write_study(study: Study, found: Sequence[Finding], directory: Path, command: str) -> Path:
    """Write the page, ``result.json``, ``config.toml`` and every chart as PDF, PNG and CSV; returns the page's path.

    All or nothing: charts that an earlier study left in ``directory`` and this one lacks are removed.
    """
    repeat = f"nfd study --config {directory / 'config.toml'} --out {directory}"
    charts = {finding.name: _chart(finding) for finding in found}
    with staged(directory, replaced=[f"{name}.{kind}" for name in _CHARTS for kind in ("csv", "pdf", "png")]) as folder:
        write_text(folder / "config.toml", study.config.toml())
        for finding in found:
            pdf, png = still(charts[finding.name])
            write_csv(folder / f"{finding.name}.csv", finding.rows)
            write_bytes(folder / f"{finding.name}.pdf", pdf)
            write_bytes(folder / f"{finding.name}.png", png)
        sections = [_section(finding, charts[finding.name], study) for finding in found]
        write_text(folder / "report.html", page(_TITLE, [*_warning(study), *sections, _run(study, command, repeat)]))
        write_json(folder / "result.json", _result(study, found, command, repeat))
    return directory / "report.html"


def _result(study: Study, found: Sequence[Finding], command: str, repeat: str) -> dict[str, Any]:
    return {
        "config": study.config.model_dump(),
        "complete": study.measured.complete,
        "findings": {
            f.name: {"title": f.title, "reading": f.reading, "slopes": f.slopes, "rows": f.rows} for f in found
        },
        "run": study.facts(),
        "command": command,
        "repeat": repeat,
    }


# ---- the page ------------------------------------------------------------------------------------------------


def _warning(study: Study) -> list[Section]:
    if study.measured.complete:
        return []
    return [
        Section(
            "This report is partial",
            ["The study was interrupted. What had been measured by then is below; the rest is missing."],
        )
    ]


def _section(finding: Finding, chart: Chart, study: Study) -> Section:
    return Section(finding.title, [finding.reading], chart, _table(finding), _caption(finding, study))


def _caption(finding: Finding, study: Study) -> str:
    c = study.config
    shared = (
        f"{study.dataset.title}, {c.steps} steps of {c.batch}, the same batches for all; {c.activation}, "
        f"T = {c.horizon:g}, eta_c = {c.eta_c:g}, cross-entropy in nats, inputs normalised per channel."
    )
    wide = f"{c.replicates} networks of width {c.limit_width:,} with deferred weights stand for the infinitely wide one"
    own = {
        "loss": f"Solid: predictions ± 2 standard errors; {wide}. Dashed: mean ± standard deviation of {c.seeds} real "
        f"networks of depth {c.depths[-1]}.",
        "gap": f"Bars: 95 % intervals; {wide}, on the same Brownian paths at every depth and for both kinds of "
        "feedback.",
        "distance": f"Bars: 95 % intervals over {c.seeds} real networks of each size; {wide}. RMS over steps, samples "
        "and outputs.",
        "updates": f"Bars: 95 % intervals over {c.block_seeds} networks of width {c.block_width}. RMS, on held-out "
        "samples, of what training changed: inner update x - x~ (Eq. 27), stream update dh/dt - dh~/dt (Eqs. 33, 34), "
        "function update f - f(0), and f minus f with the inner weights reset.",
    }
    return f"{own[finding.name.split('-')[0]]} {shared}"


def _table(finding: Finding) -> list[dict[str, str]]:
    """The numbers for people: gaps, first and last losses, or slopes where any could be fitted."""
    if not finding.name.startswith(("loss", "gap")):
        if not finding.slopes:
            return []
        keys = [key for key in ("series", "slope", "verdict") if key in finding.slopes[0]]
        named = {"series": "", "slope": "slope [95 % interval] ± standard error", "verdict": "verdict"}
        return [{named[k]: _slope(row) if k == "slope" else row[k] for k in keys} for row in finding.slopes]
    if finding.name == "gap":
        return [
            {
                "depth": str(row["depth"]),
                "gap [95 % interval] ± standard error": _number(row, "gap", 4),
                "share of progress": f"{row['share_of_progress']:.1%}",
            }
            for row in finding.rows
        ]
    steps = [row["step"] for row in finding.rows]
    ends = [[row for row in finding.rows if row["step"] == step] for step in (min(steps), max(steps))]
    return [
        {"": first["series"]}
        | {f"loss before step {row['step']}": f"{row['loss']:.4f} ± {row['stderr']:.4f}" for row in pair}
        for first, *pair in ((a, a, b) for a, b in zip(*ends, strict=True))
    ]


def _slope(row: dict[str, Any]) -> str:
    return _number(row, "slope", 2)


def _number(row: dict[str, Any], key: str, digits: int) -> str:
    low, high = (f"{row[k]:.{digits}f}" for k in ("low", "high"))
    return f"{row[key]:.{digits}f} [{low}, {high}] ± {row['stderr']:.{digits + 1}f}"


def _run(study: Study, command: str, repeat: str) -> Section:
    settings = {k: " ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in study.config.model_dump().items()}
    facts = study.facts()
    seconds = facts.pop("seconds")
    rows = [{"": k.replace("_", " "), "value": v} for k, v in (settings | facts).items() if v is not None]
    rows += [{"": f"seconds, {name}", "value": value} for name, value in seconds.items()]
    return Section("What was run", [f"Made by: {command}", f"Repeat it bit for bit with: {repeat}"], table=rows)


# ---- the charts ----------------------------------------------------------------------------------------------


def _chart(finding: Finding) -> Chart:
    names = list(dict.fromkeys(row.get("series", finding.name) for row in finding.rows))
    if finding.name.startswith("loss"):
        return curves(
            finding.rows, _families(names), x="step", y="loss", y_title="training loss before the step (nats)"
        )
    if finding.name == "gap":
        rows = [{**row, "series": "gap", "depth": str(row["depth"])} for row in finding.rows]
        title = "loss of independent minus shared feedback (nats)"
        return points(rows, [Series("gap", COLOURS[1])], x="depth", y="gap", x_title="depth", y_title=title, log=False)
    if finding.name.startswith("distance"):
        x = finding.name.removeprefix("distance-")
        title = "RMS distance of outputs to the limit"
        series = _families(names) if x == "depth" else _shades(names)
        return points(finding.rows, series, x=x, y="distance", x_title=x, y_title=title, log=True)
    series = [
        Series(f"{meter}, {rule}", COLOURS[k], (1, 0) if r == 0 else (6, 4))
        for k, meter in enumerate(METERS.values())
        for r, rule in enumerate(RULE_NAMES.values())
    ]
    present = [s for s in series if s.name in names]
    return points(finding.rows, present, x="depth", y="update", x_title="depth", y_title="RMS update", log=True)


def _families(names: Sequence[str]) -> list[Series]:
    """Predictions as solid lines in shades of grey to black, real networks dashed in colours."""
    real = [name for name in names if name.startswith("real")]
    coloured = [Series(name, colour, (6, 4)) for name, colour in zip(real, cycle(COLOURS), strict=False)]
    return _shades([name for name in names if name not in real]) + coloured


def _shades(names: Sequence[str]) -> list[Series]:
    last = len(names) - 1
    return [
        Series(name, "#000000" if k == last else SHADES[min(k * len(SHADES) // max(last, 1), len(SHADES) - 1)])
        for k, name in enumerate(names)
    ]
