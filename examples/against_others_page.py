"""The page of ``against_others.py``: a table for every source, with theirs, ours and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nfd.core.files import write_text

Row = Mapping[str, Any]

NAMES = {"depth-mup": "1/sqrt(L) (`depth-mup`)", "complete-p": "1/L (`complete-p`)"}
THEORY = {"depth-mup": -0.5, "complete-p": 0.0}

PAGE = """# Our numbers beside other people's

You can see here how far this library agrees with numbers that others have published, and measure each row again.

*Made by `python examples/against_others.py --out docs`; its options name what a part needs. Brackets hold 95 %
intervals.*

## CompleteP: how far an inner layer moves, by depth

Their notebook trains one inner weight of a residual toy (two-layer relu branches, width 256) for one step of Adam and
publishes how far it moves, 50 seeds at 12 depths. We fit their arrays, and measure the same weight of the same toy
under our plans.

{completep}

Both agree on what happens: the multiplier 1/sqrt(L) lets inner layers move less and less, 1/L does not. The exponents
of all depths differ by {gap} and {other_gap}. We do not know why: theirs has MNIST, which we lack, and stores weights
of size one. A larger epsilon moves ours the same way.

## mup: its own coordinate check, row by row

The check is mup's (`mup.coord_check`): the mean absolute output of every layer before each of {steps} steps. It runs on
the same perceptron three times: parametrised by mup, by our plan, and by neither. Powers of the width, 64
to 1,024.

{mup}

{mup_verdict} The unplanned network shows that the check can fail: its largest power is {worst}.

## neural-tangents: kernels entry by entry

The residual network of Eq. 1, relu, 200 digits. The largest difference of an entry, relative to the square root of
the product of its diagonal entries. Speed is on [benchmarks](benchmarks.md).

{kernels}

## Best rates of published curves

`nfd.fit_transfer` on the losses of others' rate sweeps. They fit a parabola in log rate to all points; we fit a cubic
to those near the best one. Rates are multiples of theirs.

{optima}

Drift of the best rate with width, from the best rates that Megatron-LM #3058 reports:

{drifts}

## The last of a series of losses, predicted

`nfd.fit_capacity` fits `floor + c / tokens^beta` to all but the longest run of ArchScale's 1B models, and predicts it.

{laws}

## The pi-limit's table of CIFAR-10

The pi-limit paper trains perceptrons and their limits on CIFAR-10 for 50 epochs. It leaves out the infinitely wide
network of muP, which it calls too costly. Ours is that limit for our network, [trained for epochs](epochs.md).

{pi}

Theirs and ours differ in network (theirs a perceptron, ours residual of depth 4), data (theirs the whole official
CIFAR-10, ours 2,000 images of a recompressed copy), epochs (50 and 10) and tuning. So no row of theirs tests a row of
ours. Theirs puts trained networks above their kernels; ours are too short of data to show that.
"""


def interval_of(row: Row, form: str = "+.3f") -> str:
    """As the page prints one."""
    return f"{row['value']:{form}} [{row['low']:{form}}, {row['high']:{form}}]"


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def inside(value: float, row: Row) -> str:
    """Whether an interval holds a number."""
    return "yes" if row["low"] <= value <= row["high"] else "no"


def completep(known: Row) -> str:
    """Exponents of theirs and ours."""
    rows = [
        [who, NAMES[row["rule"]], f"{row['depths'][0]} to {row['depths'][-1]:,}", str(row["seeds"]),
         f"{row['epsilon']:.0e}", interval_of(row), f"{THEORY[row['rule']]:+.1f}"]
        for who, part in (("theirs", "completep"), ("ours", "toy"))
        for row in known[part]
    ]  # fmt: skip
    return table_of(["", "multiplier of branches", "depths", "seeds", "epsilon", "power of depth", "theory"], rows)


def gap(known: Row, rule: str) -> str:
    """How far the exponents of all depths and of the published epsilon are apart."""
    theirs, ours = (next(row for row in known[part] if row["rule"] == rule) for part in ("completep", "toy"))
    return f"{abs(theirs['value'] - ours['value']):.3f}"


def overlap(one: Row, other: Row) -> bool:
    """Whether two intervals do."""
    return bool(one["low"] <= other["high"] and other["low"] <= one["high"])


def mup(rows: Sequence[Row]) -> str:
    """Powers of the width by optimizer, layer and step."""
    cells = [
        [row["optimizer"], row["layer"], str(row["step"]), interval_of(row["theirs"], "+.2f"),
         interval_of(row["ours"], "+.2f"), interval_of(row["standard"], "+.2f"),
         "yes" if overlap(row["theirs"], row["ours"]) else "no"]
        for row in rows
    ]  # fmt: skip
    return table_of(["optimizer", "layer", "step", "mup", "our plan", "neither", "intervals overlap"], cells)


def mup_verdict(rows: Sequence[Row]) -> str:
    """How many rows agree."""
    agreeing = sum(overlap(row["theirs"], row["ours"]) for row in rows)
    return f"In {agreeing} of {len(rows)} rows the intervals of mup and ours overlap."


def kernels(rows: Sequence[Row]) -> str:
    """Differences by kind and depth."""
    cells = [[row["kind"], str(row["depth"]), f"{row['difference']:.1e}"] for row in rows]
    return table_of(["kernel", "depth", "largest difference"], cells)


def optima(rows: Sequence[Row]) -> str:
    """Best rates, theirs and ours."""
    cells = [
        [
            row["source"],
            row["name"],
            f"{row['theirs']:.2f}",
            f"{row['ours']:.2f}",
            f"{row['ours'] / row['theirs'] - 1:+.0%}",
        ]
        for row in rows
    ]
    return table_of(["source", "curve", "theirs", "ours", "difference"], cells)


def drifts(rows: Sequence[Row]) -> str:
    """Doublings per doubling of the width."""
    cells = [[row["rule"], ", ".join(f"{rate:.3g}" for rate in row["rates"]), f"{row['slope']:+.2f}"] for row in rows]
    widths = ", ".join(f"{width:,}" for width in rows[0]["widths"])
    return table_of(["rule", f"best rate at width {widths}", "doublings per doubling"], cells)


def laws(rows: Sequence[Row]) -> str:
    """Predicted and measured."""
    cells = [
        [row["source"], row["name"], f"{row['tokens']:.0e}", interval_of(row, ".4f"), f"{row['theirs']:.4f}",
         inside(row["theirs"], row)]
        for row in rows
    ]  # fmt: skip
    return table_of(["source", "model", "tokens", "predicted", "theirs", "inside the interval"], cells)


def pi(published: Row, epochs: Sequence[Row]) -> str:
    """Accuracies, theirs and ours."""
    theirs = [[f"theirs: {name}", f"{value:.2f}"] for name, value in published["accuracy"].items()]
    ours = [
        [f"ours: {row['name']}", f"{100 - row['value']:.1f} [{100 - row['high']:.1f}, {100 - row['low']:.1f}]"]
        for row in epochs
    ]
    return table_of(["network", "test accuracy, %"], theirs + ours)


def write(out: Path, known: Mapping[str, Any], published: Mapping[str, Any]) -> None:
    """The page, of everything that was measured."""
    rows = known["mup"]
    text = PAGE.format(
        completep=completep(known), gap=gap(known, "depth-mup"), other_gap=gap(known, "complete-p"),
        mup=mup(rows), mup_verdict=mup_verdict(rows), steps=max(row["step"] for row in rows),
        worst=interval_of(max((row["standard"] for row in rows), key=lambda power: abs(power["value"])), "+.2f"),
        kernels=kernels(known["kernels"]), optima=optima(known["optima"]), drifts=drifts(known["drifts"]),
        laws=laws(known["laws"]), pi=pi(published["pi_limit"], known["epochs"]),
    )  # fmt: skip
    write_text(out / "against-others.md", text)
