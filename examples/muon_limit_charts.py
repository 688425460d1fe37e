"""The charts of ``muon_limit.py``, from the numbers that are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from muon_limit_numbers import NAMES, POWERS, STARTS, Case, Results, Row

from nfd.questions.findings.finding import Axes
from nfd.report.charts import points
from nfd.report.series import styled
from nfd.report.stills import still


def charts(results: Results) -> Iterator[tuple[str, bytes]]:
    """Every chart that there are numbers for: its file and its picture."""
    if case := results.of("muon", "complete-p", "width"):
        yield "muon-width.png", _picture(width_rows(case), Axes(
            "lr", "value", "Muon's rate at the base", "loss on unseen digits (nats)", "semilogarithmic", zero=False,
            top=1.5, colour="width",
        ))  # fmt: skip
    if rows := depth_rows(results):
        axes = Axes(
            "depth", "value", "depth (blocks)", "best rate of Muon at the base", "logarithmic", colour="power",
            dash="start",
        )  # fmt: skip
        yield "muon-depth.png", _picture(rows, axes)
    if rows := inner_rows(results):
        title = f"inner update (RMS), over that of depth {rows[0]['depth']}"
        axes = Axes("depth", "value", "depth (blocks)", title, "logarithmic", colour="optimizer", dash="start")
        yield "muon-inner.png", _picture(rows, axes)


def _picture(rows: Sequence[Row], axes: Axes) -> bytes:
    drawn = [dict(row) for row in rows]
    return still(points(drawn, styled(drawn, axes), axes))[1]


def width_rows(case: Case) -> list[dict[str, Any]]:
    """Losses against the rate, a series for every width."""
    return [
        {**row, "lr": float(f"{row['at']:.2g}"), "width": row["size"], "series": f"width {row['size']:,}"}
        for row in case.every("loss")
    ]


def depth_rows(results: Results) -> list[dict[str, Any]]:
    """Best rates against depth, a series for every start and power."""
    return [
        {**row, "depth": row["size"], "series": f"{start}, p = {power:g}", "power": power, "start": start}
        for start in STARTS
        for power in POWERS
        if (case := results.of("muon", start, "depth", power))
        for row in case.every("best rate")
    ]


def inner_rows(results: Results) -> list[dict[str, Any]]:
    """What training changed in the output of inner matrices, over what it is at the smallest depth."""
    rows = []
    for start in STARTS:
        for optimizer, name in NAMES.items():
            case = results.of(optimizer, start, "depth")
            seen = [*case.every("inner_update", results.setting["at"][-1])] if case else []
            for row in seen:
                share = {column: row[column] / seen[0]["value"] for column in ("value", "low", "high")}
                about = {"series": f"{name}, {start}", "optimizer": name, "start": start, "depth": row["size"]}
                rows.append(about | share)
    return rows
