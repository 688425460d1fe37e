"""The page and the files of a study."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import vl_convert

from nfd.experiment.study import FEEDBACKS, Study
from nfd.report.charts import loss_curves
from nfd.report.page import Section, page
from nfd.store.files import write_bytes, write_csv, write_json, write_text

_TITLE = "How does this residual network train when it is infinitely wide, and how far are real ones from that?"


def write_study(done: Study, directory: Path, command: str) -> list[Path]:
    """Write report.html, result.json, curves.csv, gaps.csv and the chart as PDF and PNG; returns the paths."""
    chart = loss_curves(done.curves, list(FEEDBACKS.values()))
    still = chart.properties(width=640).to_json()
    pdf, png = vl_convert.vegalite_to_pdf(still), vl_convert.vegalite_to_png(still, scale=2)
    html = page(_TITLE, _sections(done, chart, command))
    return [
        write_json(directory / "result.json", done.result() | {"command": command}),
        write_csv(directory / "curves.csv", done.curves),
        write_csv(directory / "gaps.csv", done.gaps),
        write_bytes(directory / "curves.pdf", pdf),
        write_bytes(directory / "curves.png", png),
        write_text(directory / "report.html", html),
    ]


def _sections(done: Study, chart: object, command: str) -> list[Section]:
    settings = {key: " ".join(map(str, v)) if isinstance(v, tuple) else v for key, v in asdict(done.config).items()}
    bands = (
        "Solid lines: predictions, shaded by two standard errors. Dashed lines: means of real networks over "
        f"{done.config.seeds} seeds, shaded by one standard deviation. All saw the same batches of "
        f"{done.config.data}, normalised; cross-entropy, ten outputs, rates eta_c n with eta_c = {done.config.eta_c:g}."
    )
    return [
        Section("The loss while training", [*done.reading, bands], chart),  # type: ignore[arg-type]
        Section(
            "Distance to the infinitely wide network",
            ["Mean over the steps of the loss above the shared-feedback prediction, with 95 % intervals."],
            table=done.gaps,
        ),
        Section(
            "What was run",
            [f"Repeat it in the same environment with: {command}"],
            table=[{"setting": k, "value": v} for k, v in (settings | done.run).items()],
        ),
    ]
