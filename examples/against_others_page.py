"""The page of ``against_others.py``: a table for every source, with theirs, ours and whether they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from page_parts import bracketed, table

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

{mup_verdict} The rows of the unplanned network that overlap are those of the first step and of layers that hardly
move in {steps} steps; its largest power is {worst}.

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

`nfd.fit_scaling_law` fits `floor + B / tokens^b` to all but the longest run of ArchScale's 1B models, and predicts
it. [Real ladders](real-ladders.md) are the larger test.

{laws}

## The pi-limit's table of CIFAR-10

The pi-limit paper trains perceptrons and their limits on CIFAR-10 for 50 epochs. It has no row for the infinitely wide
network of muP, which is hard to compute by its account. Our network's limit is of that kind, [trained for
epochs](epochs.md).

{pi}

Theirs and ours differ in network (theirs a perceptron, ours residual of depth 4), data (theirs the whole official
CIFAR-10, ours 2,000 images of a recompressed copy), epochs (50 and 10) and tuning. So no row of theirs tests a row of
ours. Theirs puts trained networks above their kernels; ours are too short of data to show that.

## Where their numbers come from

{sources}
"""

SOURCES = (
    (
        "CompleteP",
        "[EleutherAI/nanoGPT-mup](https://github.com/EleutherAI/nanoGPT-mup/tree/completep), branch `completep`, "
        "commit 6f8bc3bd, `completep_examples`",
        "their arrays, read by our command",
    ),
    ("mup", "[microsoft/mup](https://github.com/microsoft/mup)", "their package, run by our command"),
    (
        "neural-tangents",
        "[google/neural-tangents](https://github.com/google/neural-tangents)",
        "their package, run by our command",
    ),
    ("GQA and MLA curves", "[marin #7381](https://github.com/marin-community/marin/issues/7381)", "read in the thread"),
    (
        "drift with width",
        "[Megatron-LM #3058](https://github.com/NVIDIA/Megatron-LM/pull/3058)",
        "read in the thread",
    ),
    (
        "ArchScale's losses",
        "[microsoft/ArchScale](https://github.com/microsoft/ArchScale), commit c2ec1d69, `plot_data_scaling.py`",
        "read in the script",
    ),
    (
        "pi-limit",
        "[Yang, Santacroce and Hu, 2022](https://openreview.net/forum?id=tUMr0Iox8XW)",
        "accuracies quoted at second hand; we read the abstract and the [code](https://github.com/santacml/pilim), not "
        "the table",
    ),
)


def inside(value: float, row: Row) -> str:
    """Whether an interval holds a number."""
    return "yes" if row["low"] <= value <= row["high"] else "no"


def completep(known: Row) -> str:
    """Exponents of theirs and ours."""
    rows = [
        [who, NAMES[row["rule"]], f"{row['depths'][0]} to {row['depths'][-1]:,}", str(row["seeds"]),
         f"{row['epsilon']:.0e}", bracketed(row, '+.3f'), f"{THEORY[row['rule']]:+.1f}"]
        for who, part in (("theirs", "completep"), ("ours", "toy"))
        for row in known[part]
    ]  # fmt: skip
    return table(["", "multiplier of branches", "depths", "seeds", "epsilon", "power of depth", "theory"], rows)


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
        [row["optimizer"], row["layer"], str(row["step"]), bracketed(row["theirs"]),
         bracketed(row["ours"]), bracketed(row["standard"]),
         "yes" if overlap(row["theirs"], row["ours"]) else "no"]
        for row in rows
    ]  # fmt: skip
    return table(["optimizer", "layer", "step", "mup", "our plan", "neither", "mup and our plan overlap"], cells)


def mup_verdict(rows: Sequence[Row]) -> str:
    """How many rows agree."""
    ours, standard = (sum(overlap(row["theirs"], row[who]) for row in rows) for who in ("ours", "standard"))
    return (
        f"Of {len(rows)} rows, {ours} of our plan have intervals that overlap with those of mup, and {standard} of the "
        "unplanned network."
    )


def kernels(rows: Sequence[Row]) -> str:
    """Differences by kind and depth."""
    cells = [[row["kind"], str(row["depth"]), f"{row['difference']:.1e}"] for row in rows]
    return table(["kernel", "depth", "largest difference"], cells)


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
    return table(["source", "curve", "theirs", "ours", "difference"], cells)


def drifts(rows: Sequence[Row]) -> str:
    """Doublings per doubling of the width."""
    cells = [[row["rule"], ", ".join(f"{rate:.3g}" for rate in row["rates"]), f"{row['slope']:+.2f}"] for row in rows]
    widths = ", ".join(f"{width:,}" for width in rows[0]["widths"])
    return table(["rule", f"best rate at width {widths}", "doublings per doubling"], cells)


def laws(rows: Sequence[Row]) -> str:
    """Predicted and measured."""
    cells = [
        [row["source"], row["name"], f"{row['tokens']:.0e}", bracketed(row, ".4f"), f"{row['theirs']:.4f}",
         inside(row["theirs"], row)]
        for row in rows
    ]  # fmt: skip
    return table(["source", "model", "tokens", "predicted", "theirs", "inside the interval"], cells)


def pi(published: Row, epochs: Sequence[Row]) -> str:
    """Accuracies, theirs and ours."""
    theirs = [[f"theirs: {name}", f"{value:.2f}"] for name, value in published["accuracy"].items()]
    ours = [
        [f"ours: {row['name']}", f"{100 - row['value']:.1f} [{100 - row['high']:.1f}, {100 - row['low']:.1f}]"]
        for row in epochs
    ]
    return table(["network", "test accuracy, %"], theirs + ours)


def write(out: Path, known: Mapping[str, Any], published: Mapping[str, Any]) -> None:
    """The page, of everything that was measured."""
    rows = known["mup"]
    text = PAGE.format(
        completep=completep(known), gap=gap(known, "depth-mup"), other_gap=gap(known, "complete-p"),
        mup=mup(rows), mup_verdict=mup_verdict(rows), steps=max(row["step"] for row in rows),
        worst=bracketed(max((row["standard"] for row in rows), key=lambda power: abs(power["value"]))),
        kernels=kernels(known["kernels"]), optima=optima(known["optima"]), drifts=drifts(known["drifts"]),
        laws=laws(known["laws"]), pi=pi(published["pi_limit"], known["epochs"]),
        sources=table(["numbers", "source", "how we have them"], SOURCES),
    )  # fmt: skip
    write_text(out / "against-others.md", text)
