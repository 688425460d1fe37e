"""The figures and the page of how costs grow, from what ``benchmarks.growth`` measured.

python -m benchmarks.growth_page       # docs/growth.md; the figures to out/growth, `make charts` copies them
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import altair as alt
import torch

from benchmarks.growth import Axis, Growth, axes, cases, kinds, studies
from benchmarks.measure import Row
from benchmarks.show import cell, fill_page, markdown
from benchmarks.stages import long_stages, summary
from benchmarks.stages import read as read_stages
from nfd.core.files import prepare_directory, write_bytes
from nfd.core.statistics import Interval, combined, log_slope, pooled_slope
from nfd.questions.findings.finding import Axes
from nfd.report.charts import points as lines
from nfd.report.series import styled
from nfd.report.stills import beside
from nfd.runs.forecast import makespan

PAGE = Path(__file__).parents[1] / "docs" / "growth.md"
OUT = "out/growth"
_PREDICTED = 16  # cores
_LEAST = 2.0**23  # bytes: what one more process or page makes of a peak
_IDLE = 0.5  # processes that ran before the first measurement


def points(growth: Growth, axis: Axis) -> list[Row]:
    """A row for every size and kind of weights: its seconds in all repeats, and its bytes."""
    most = int(growth.machine["cores"])
    measured = [(kind, case, growth.row(case)) for kind in kinds() for case in cases(axis, kind, most)]
    return [
        {"weights": kind, "size": getattr(case, axis), "seconds": row["seconds"], "bytes": [max(row["bytes"], _LEAST)]}
        for kind, case, row in measured
        if row
    ]


def exponent(rows: Sequence[Row], measure: str) -> Interval:
    """The power p of ``cost ~ size^p`` with its 95 % interval, in which what is no power counts as noise."""
    pairs = [(row["size"], value) for row in rows for value in row[measure] if value > 0]
    across, up = torch.tensor(pairs, dtype=torch.float64).log().unbind(1)
    slope = pooled_slope(across, up, torch.zeros(len(pairs)))
    if math.isfinite(slope.value):
        return slope
    return replace(slope, value=float(log_slope([size for size, _ in pairs], up.exp())))  # two sizes, measured once


def exponents(rows: Sequence[Row], axis: Axis) -> Iterator[Row]:
    """A row of the table for every kind of weights: all sizes, and the largest two alone."""
    for kind in kinds():
        own = [row for row in rows if row["weights"] == kind]
        if len(own) < 2:
            continue
        yield {
            "against": axis,
            "weights": kind,
            "from": own[0]["size"],
            "to": own[-1]["size"],
            "time": _text(exponent(own, "seconds")),
            "time, largest two": _text(exponent(own[-2:], "seconds")),
            "memory": _text(exponent(own, "bytes")),
            "seconds at most": min(own[-1]["seconds"]),
            "GiB at most": own[-1]["bytes"][0] / 2**30,
        }


def _text(power: Interval) -> str:
    limits = f" [{power.low:.2f}, {power.high:.2f}]" if math.isfinite(power.low) else ""
    return f"{power.value:.2f}{limits}"


def by_cores(growth: Growth) -> Iterator[Row]:
    """Predictions by replicates on one core and on all, and what more cores would give."""
    most = int(growth.machine["cores"])
    for name, own in {f"replicates, {kind}": cases("cores", kind, most) for kind in kinds()}.items():
        rows = [row for case in (own[0], own[-1]) if (row := growth.row(case))]
        if len(own) < 2 or len(rows) < 2:
            continue
        one, several = (torch.tensor(row["seconds"]).double() for row in rows)
        yield {
            "work": name,
            "1 core, s": float(one.mean()),
            f"{most} cores, s": float(several.mean()),
            f"{_PREDICTED} cores, s, predicted": amdahl(one, several, most, _PREDICTED).unsigned,
        }


def study_by_cores(growth: Growth) -> Iterator[Row]:
    """The study at its defaults by cores: measured, and predicted from what its networks took on one core."""
    measured = {case.cores: row for case in studies(int(growth.machine["cores"])) if (row := growth.row(case))}
    if 1 not in measured:
        return
    networks, took = measured[1]["networks"], measured[1]["seconds"]
    alone = took[0] - sum(networks)
    for count in sorted({*measured, _PREDICTED}):
        seconds = measured[count]["seconds"] if count in measured else []
        mean = {"measured, s": sum(seconds) / len(seconds) if seconds else None}
        yield {"cores": count, **mean, "predicted, s": alone + makespan(networks, count)}
    yield {"cores": "any number", "predicted, s": alone + max(networks)}


def study_line(growth: Growth) -> str:
    """What the study consists of, as its table."""
    rows = [*study_by_cores(growth)]
    if not rows:
        return "Not measured."
    networks = cast(Row, growth.row(studies(int(growth.machine["cores"]))[0]))["networks"]
    total, longest = f"{sum(networks):.1f} s together", f"the longest takes {max(networks):.2f} s"
    return f"On one core its {len(networks)} networks take {total}; {longest}.\n\n{markdown(rows)}"


def amdahl(one: torch.Tensor, several: torch.Tensor, count: int, wanted: int) -> Interval:
    """``t(k) = s + p / k`` through the means of two numbers of cores, at a third, and its error from the repeats'.

    With ``a = (1 / wanted - 1) / (1 / count - 1)`` it is ``(1 - a) t(1) + a t(count)``.
    """
    a = (1 / wanted - 1) / (1 / count - 1)
    value = (1 - a) * one.mean() + a * several.mean()
    parts = [
        (float(weight**2 * times.var() / len(times)), len(times) - 1) for weight, times in ((1 - a, one), (a, several))
    ]
    return combined(float(value), parts)


# ---- figures --------------------------------------------------------------------------------------------------


def panels(rows: Sequence[Row], axis: Axis) -> dict[str, alt.LayerChart]:
    """Seconds and memory on logarithmic axes: geometric means over repeats, seconds with the range of the repeats."""
    drawn = {"seconds": list[Row](), "memory": list[Row]()}
    for row in rows:
        about = {"series": row["weights"], "size": row["size"]}
        seconds = row["seconds"]
        cost = math.exp(sum(map(math.log, seconds)) / len(seconds))
        drawn["seconds"].append(about | {"cost": cost, "low": min(seconds), "high": max(seconds)})
        drawn["memory"].append(about | {"cost": max(row["bytes"]) / 2**30})
    titles = {"seconds": "time (seconds)", "memory": "memory (GiB)"}
    charts = {}
    for name, own in drawn.items():
        seen = Axes("size", "cost", axis, titles[name], "logarithmic", interval="range of the repeats")
        charts[f"{name.capitalize()} against {axis}"] = lines(own, styled(own, seen), seen)
    return charts


# ---- the page -------------------------------------------------------------------------------------------------


def made(growth: Growth) -> dict[str, str]:
    """What stands between the marks of the page."""
    powers = [row for axis in axes() for row in exponents(points(growth, axis), axis)]
    shared = [*by_cores(growth)]
    return {
        "machine": machine_line(growth),
        "exponents": markdown(powers),
        "cores": markdown(shared) if shared else "Not measured.",
        "study": study_line(growth),
        **stages(read_stages()),
    }


def stages(measured: Mapping[str, Any]) -> dict[str, str]:
    """How well the time of a stage was predicted before it started."""
    rows = measured.get("rows", [])
    return {"stages": "\n\n".join([summary(rows), *([markdown(long_stages(rows))] if long_stages(rows) else [])])}


def machine_line(growth: Growth) -> str:
    """Where and when it was measured, and a warning where other work ran there."""
    about = {name: cell(name, value) for name, value in growth.machine.items()}
    line = f"Measured on {about['date'][:10]}: {about['processor']}, {about['cores']} cores, PyTorch {about['torch']}."
    if growth.machine["load"] <= _IDLE:
        return line
    return (
        f"{line} **The machine was busy (load {about['load']}): times are rough, and wall-clock times far too long.**"
    )


def main() -> None:
    """Write the page, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=OUT, help="folder of the figures")
    folder, growth = prepare_directory(parser.parse_args().out), Growth.read()
    fill_page(PAGE, made(growth))
    for axis in axes():
        write_bytes(folder / f"growth-{axis}.png", beside(panels(points(growth, axis), axis))[1])


if __name__ == "__main__":
    main()
