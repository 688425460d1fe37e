"""The wide limit of a GPT under Muon: late loss against width, dense and structured, with its law a + b / width.

python examples/wide_gpt.py --width 256 --layers 4 --tokens 15000 --dense --seed 1 --out out/wide   # and others
python examples/wide_gpt_figure.py --runs out/wide                                # their table, then the figure
python examples/wide_gpt_figure.py                                                # the figure of the table there is

Writes wide-gpt.png and wide-gpt.csv to --out.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import torch

import nfd
from nfd.core.files import prepare_directory, write_csv
from nfd.core.statistics import stderr
from nfd.questions.power_law import PowerLaw
from nfd.report.series import COLOURS

Row = dict[str, Any]

TABLE = Path(__file__).parents[1] / "docs" / "images" / "wide-gpt.csv"
LAYERS, TOKENS = 4, 15000
LAST = 20  # steps whose mean loss is drawn
OUT = "out/wide-gpt"
KINDS = {"dense": COLOURS[0], "structured": COLOURS[1]}


def rows_of(folder: Path) -> list[Row]:
    """A row for every complete run in a folder."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    columns = ("weights", "width", "seed", "rank", "seconds", "gib")
    return [
        {column: run[column] for column in columns} | {"loss": float(np.mean(run["losses"][-LAST:]))}
        for run in runs
        if (run["layers"], run["tokens"]) == (LAYERS, TOKENS) and run["steps"] == TOKENS // 256
    ]


def read(table: Path) -> list[Row]:
    """The rows of a table."""
    with table.open(newline="") as lines:
        return [
            {key: text if key == "weights" else float(text) for key, text in row.items()}
            for row in csv.DictReader(lines)
        ]


def law_of(rows: Sequence[Row]) -> PowerLaw:
    """``loss = floor + a / width``, fitted to the runs of one kind."""
    runs = [{"width": row["width"], "seed": row["seed"], "loss": row["loss"]} for row in rows]
    return nfd.fit_capacity(runs).law


def means(rows: Sequence[Row]) -> list[Row]:
    """The mean of every width with a standard error to both sides; of one run alone without."""
    widths: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in rows:
        widths[row["weights"], row["width"]].append(row["loss"])
    made: list[Row] = []
    for (kind, width), losses in sorted(widths.items()):
        value, several = float(np.mean(losses)), len(losses) > 1
        error = float(stderr(torch.tensor(losses, dtype=torch.float64))) if several else 0.0
        ends = {"low": value - error, "high": value + error} if several else {}
        made.append({"weights": kind, "width": width, "loss": value, "runs": len(losses), "error": error, **ends})
    return made


def chart(rows: Sequence[Row]) -> alt.LayerChart:
    """Means of all widths, and the law of the dense ones with its band, drawn on to the widest."""
    dense, widest = [row for row in rows if row["weights"] == "dense"], max(row["width"] for row in rows)
    law, narrowest = law_of(dense), min(row["width"] for row in dense)
    reach = widest if law.good else max(row["width"] for row in dense)
    line = []
    for width in np.geomspace(narrowest, reach, 60):
        value = law.loss(float(width))
        line.append({"width": float(width), "loss": value.value, "low": value.low, "high": value.high})
    across = alt.X(
        "width:Q", title="width", scale=alt.Scale(type="log", base=2, domain=[narrowest / 1.2, widest * 1.2]),
        axis=alt.Axis(values=sorted({row["width"] for row in rows}), format=",d", grid=False),
    )  # fmt: skip
    title = [
        f"training loss, mean of the last {LAST} steps",
        "(nats per byte; bars: standard error, band: 95 % interval)",
    ]
    up = alt.Y("loss:Q", title=title, scale=alt.Scale(zero=False))
    kinds = alt.Scale(domain=list(KINDS), range=list(KINDS.values()))
    colour = alt.Color("weights:N", scale=kinds, legend=None)
    fitted = alt.Chart(alt.Data(values=line)).encode(x=across)
    averages = means(rows)
    points = alt.Chart(alt.Data(values=averages)).encode(x=across, color=colour)
    names = alt.Chart(alt.Data(values=named(averages, line))).encode(x=across, y=up, text="name:N")
    return alt.layer(
        fitted.mark_area(opacity=0.15, color=KINDS["dense"]).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
        fitted.mark_line(color=KINDS["dense"], strokeDash=[6, 4]).encode(y=up),
        points.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5).encode(y="low:Q", y2="high:Q"),
        points.mark_point(filled=True, size=70, opacity=1).encode(y=up, shape=alt.Shape("weights:N", legend=None)),
        names.mark_text(align="right", dy=-14, fontSize=12),
    ).properties(width=560, height=300)


def named(averages: Sequence[Row], line: Sequence[Row]) -> list[Row]:
    """What stands above the last structured point, beside the first dense one, and above the beginning of the law."""
    structured = [row for row in averages if row["weights"] == "structured"]
    dense = next(row for row in averages if row["weights"] == "dense")
    law = line[len(line) // 8]
    return [
        {**dense, "width": 1.8 * dense["width"], "name": "dense"},
        *({**row, "name": "structured"} for row in structured[-1:]),
        {**law, "width": 10 * law["width"], "name": "law of the dense: floor + a / width"},
    ]


def report(rows: Sequence[Row]) -> list[str]:
    """What the table says: losses, the limits of both kinds, and what the widest runs took."""
    told = [
        f"{row['weights']:>10} {row['width']:>6,.0f}: {row['loss']:.4f}"
        + (f" +- {row['error']:.4f} of {row['runs']} runs" if row["runs"] > 1 else "")
        for row in means(rows)
    ]
    for kind in KINDS:
        own = [row for row in rows if row["weights"] == kind]
        if len({row["width"] for row in own}) < 3:
            continue
        law, widest = law_of(own), max(own, key=lambda row: row["width"])
        told.append(f"{kind}: {law}")
        bias = law.excess(widest["width"])
        told.append(
            f"{kind}, width {widest['width']:,.0f}: limit {law.floor.unsigned}, bias of width {bias}, "
            f"{widest['seconds'] / 60:.1f} minutes, {widest['gib']:.2f} GiB, rank {widest['rank']:.0f}"
        )
    return told


def main(runs: Path | None, out: str) -> None:
    """Make the table of runs, or take the one there is, and draw it."""
    folder = prepare_directory(out)
    table = folder / "wide-gpt.csv"
    if runs is None:
        shutil.copyfile(TABLE, table)
    else:
        write_csv(table, rows_of(runs))
    rows = read(table)
    chart(rows).save(folder / "wide-gpt.png", scale_factor=2)
    print("\n".join(report(rows)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="the folder that wide_gpt.py --out wrote to")
    parser.add_argument("--out", default=OUT)
    main(**vars(parser.parse_args()))
