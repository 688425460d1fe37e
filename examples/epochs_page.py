"""The page of ``epochs.py``: its tables and sentences; nothing is trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from epochs_charts import HELD, error_chart, loss_chart
from page_parts import bracketed, table
from torch import Tensor

from nfd.core.files import prepare_directory, write_csv, write_text
from nfd.core.statistics import Interval
from nfd.limits.loss import LimitLosses
from nfd.questions.findings.finding import depth_name
from nfd.report.charts import write_charts

Row = dict[str, Any]

TITLES = {"test_error": "test error, %", "test_loss": "test loss", "train_loss": "training loss at the end"}
LIMIT = ("infinite width", "standard error", "width bias ± standard error", "resolution adds", "total error")


@dataclass(frozen=True)
class Answers:
    """What was measured. Lists of intervals are in the order of ``metrics``.

    Attributes:
        settings: of the runs. rates: validation error of every rate and momentum. networks: means by weights and width.
        apart: structured minus stored weights, by width and resolution.
        limit: of infinite width, extrapolated from ``wide``. halving: what the resolution adds, from halving it.
        kernels: errors of regression. curves: training losses [networks, steps] by weights and width.
    """

    settings: Mapping[str, Any]
    rates: Sequence[Row]
    networks: Sequence[Row]
    apart: Mapping[tuple[int, float], Sequence[Interval]]
    limit: LimitLosses
    wide: int
    halving: Sequence[Interval]
    kernels: Sequence[Row]
    curves: Mapping[tuple[str, int], Tensor]
    metrics: Sequence[str]

    def infinite(self, k: int) -> Interval:
        """A metric at infinite width; the interval leaves out the resolution."""
        values = (self.limit.value, self.limit.stderr, self.limit.low, self.limit.high)
        return Interval(*(float(value[k]) for value in values))

    def total(self, k: int) -> float:
        """How far the metric may be from its limit: half of the interval, and the most that the resolution adds."""
        limit, change = self.infinite(k), self.halving[k]
        return (limit.high - limit.low) / 2 + max(abs(change.low), abs(change.high))


PAGE = """# The limit, trained for epochs

Compare the limit of feature learning over many passes of the data with finite networks and with kernels, and repeat
it.
Words and symbols are in the [glossary](glossary.md).

*Made by `python examples/epochs.py --data-dir DIR`; no number is written by hand. Data: {data}; {train:,} training
and {tests:,} test images.*

The infinitely wide network of muP learns features, so no fixed kernel describes it. With exact deferred weights, a
repeated sample costs as much as a new one. This limit was therefore only followed for a few hundred samples. With
[structured weights](mathematics/structured.md) and a resolution, an image that was seen before adds almost nothing to
the cost. So here the limit is trained for **{passes} passes**. As far as we know, the limit of feature learning has
not been shown over epochs before.

## What was run

- The standard (not decoupled) network of the paper's Eq. 1: relu, {depth} blocks, horizon 1, rule `depth-mup`.
  Cross-entropy, batches of {batch}, {passes} passes over {train:,} images. Each pass has a new shuffle, the same for
  every network.
- SGD with momentum {momentum:g} and `eta_c` = {eta_c:g}. Of {choices} choices, this one had the lowest error on
  {validation:,} other training images, at width {tuned} with stored weights ([below](#how-the-rate-was-chosen)). All
  widths use this rate.
- Stored weights at the smaller widths, structured ones with resolution {resolution:g} at the larger ones. Networks of
  the same seed and width have the same input and output weights.
- For comparison, regression on the same images with the exact kernels of the infinitely wide network that learns no
  features. The NNGP is the kernel of its functions at initialisation, the NTK that of its linearised training; both
  at this depth and at infinite depth. Labels are one-hot and centred. The ridge is the best one on the same
  {validation:,} validation images.

## What came out

![Test error against width: networks, their limit and the kernels]({images}epochs-error.png)

*Data: {data}. Means over networks with 95 % intervals. Black: infinite width. Grey: the kernels, whose intervals are in
the second table.*

{networks}

{kernels}

![Training loss by pass, a line for every third width and for the widest]({images}epochs-loss.png)

*Data: {data}. Training loss before the update, the mean over a pass and over networks, with 95 % intervals.*

## The limit and its error

The law `a + b / n` through widths {quarter:,} and {wide:,} (`nfd.limits.loss`) gives infinite width:

{limit}

- The interval includes the noise of both widths.
- The width bias is what width {wide:,} adds to the limit. It is subtracted.
- The error of the resolution is estimated at width {halved:,}: twice the change when the resolution is halved, with
  the same seeds. This is exact for an error of first order in the resolution, and too large for one of higher order.
  It is not subtracted.
- The total error is half of the interval plus the larger end of the error of the resolution.

Structured weights have the same limit as Gaussian ones, but another distribution at finite width. Where both were
trained, this is structured minus stored, in pairs of networks of the same seed, which share input and output weights:

{apart}

## What it means

{meaning}

## What it costs

{costs}

## What is not shown

- **More images than {train:,}.** They need more directions, and so wider networks.
- **Another order of the batches, another choice of images, another depth.** Intervals of networks are over initial
  weights, those of kernels over test images.
- **A proof that structured and Gaussian weights have the same limit in training.** It is expected and measured.
- **The error of the resolution at width {wide:,}.** It was measured at width {halved:,}.
- **The best rate of each width.** The rate here is the best one tried at width {tuned}.
- **The value of features alone.** The kernels minimise the squared loss completely; the networks train on
  cross-entropy for {passes} passes. Neither uses augmentation or convolution.

## How the rate was chosen

{rates}
"""


def write(found: Answers, out: Path, page: Path) -> None:
    """The charts in ``out``; the page and its table in ``page``, which has images in a folder if it is ``docs``."""
    prepare_directory(out)
    prepare_directory(page)
    steps = found.settings["train"] // found.settings["batch"]
    drawn = [kernel for kernel in found.kernels if kernel["depth"] == found.settings["depth"]]
    limit = found.infinite(found.metrics.index("test_error"))
    write_charts([error_chart(found.networks, limit, drawn), loss_chart(found.curves, steps)], out)
    write_csv(page / "epochs.csv", [in_columns(row) for row in found.networks])
    write_text(page / "epochs.md", text(found, "images/" if page.name == "docs" else f"{out.resolve()}/"))


def in_columns(row: Row) -> Row:
    """A row with intervals as three columns."""
    columns: Row = {}
    for name, value in row.items():
        interval = isinstance(value, Interval)
        columns |= (
            {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high} if interval else {name: value}
        )
    return columns


def text(found: Answers, images: str) -> str:
    """The page."""
    names = [TITLES[name] for name in found.metrics]
    return PAGE.format(
        **found.settings,
        images=images,
        choices=len(found.rates),
        wide=found.wide,
        quarter=found.wide // 4,
        networks=table(["width", "weights", "networks", *names], [network_cells(found, row) for row in found.networks]),
        kernels=table(["kernel", "depth", "test error, %", "ridge"], [kernel_cells(row) for row in found.kernels]),
        limit=table(["", *LIMIT], [limit_cells(found, k) for k in range(len(names))]),
        apart=table(
            ["width", "resolution", *names],
            [[f"{n:,}", f"{r:g}", *map(str, values)] for (n, r), values in found.apart.items()],
        ),
        rates=table(
            ["momentum", "`eta_c`", "validation error, %"],
            [[f"{row['momentum']:g}", f"{row['eta_c']:g}", bracketed(row, ".1f")] for row in found.rates],
        ),
        meaning="\n".join(meaning(found)),
        costs=costs(found),
    )


def network_cells(found: Answers, row: Row) -> list[object]:
    """A width in the table of networks."""
    return [f"{row['width']:,}", HELD[row["weights"]], row["networks"], *(row[name].unsigned for name in found.metrics)]


def kernel_cells(row: Row) -> list[object]:
    """A kernel in its table."""
    return [row["kernel"].upper(), depth_name(row["depth"]), bracketed(row, ".1f"), f"{row['ridge']:g}"]


def limit_cells(found: Answers, k: int) -> list[object]:
    """A metric in the table of the limit."""
    limit = found.infinite(k)
    return [
        TITLES[found.metrics[k]],
        limit.unsigned,
        f"{limit.stderr:.2g}",
        bias_of(found, k),
        found.halving[k],
        f"{found.total(k):.2g}",
    ]


def bias_of(found: Answers, k: int) -> str:
    """What the wide networks add to a metric, with its standard error."""
    return f"{float(found.limit.bias[k]):+.2g} ± {float(found.limit.bias_stderr[k]):.1g}"


def meaning(found: Answers) -> list[str]:
    """What the numbers say, sentence by sentence."""
    k, loss = (found.metrics.index(name) for name in ("test_error", "train_loss"))
    limit, total, coarse = found.infinite(k), found.total(k), found.halving[loss]
    deep = [row for row in found.kernels if row["depth"] == found.settings["depth"]]
    beside = [beside_kernel(limit.value, total, row) for row in deep]
    narrow = min((row for row in found.networks if row["weights"] == "dense"), key=lambda row: row["width"])
    gain = narrow["test_error"].value - limit.value
    error = math.hypot(total, narrow["test_error"].high - narrow["test_error"].value)
    lines = [
        f"- After {found.settings['passes']} passes, the infinitely wide network that learns features has a test error "
        f"of {limit.value:.1f} ± {total:.1f} %. {' '.join(beside)}",
        f"- At this rate {'wider is better' if gain > error else 'the effect of width is not significant'}: the error "
        f"of width {narrow['width']:,} minus that of infinite width is {gain:+.1f} ± {error:.1f} points.",
    ]
    fits_less = f"- A coarse resolution fits the data less closely: it adds {coarse} to the training loss."
    return [*lines, fits_less] if coarse.low > 0 else lines


def beside_kernel(value: float, total: float, row: Row) -> str:
    """The limit against regression with a kernel."""
    apart = row["value"] - value
    significant = abs(apart) > math.hypot(total, (row["high"] - row["low"]) / 2)
    where = (
        f"{abs(apart):.1f} points {'above' if apart > 0 else 'below'} it"
        if significant
        else "not significantly different"
    )
    return f"Regression with the {row['kernel'].upper()} of the same depth has {row['value']:.1f} %, {where}."


def costs(found: Answers) -> str:
    """Directions, memory and operations of the widest networks."""
    s, widest = found.settings, max(found.networks, key=lambda row: row["width"])
    n, r = widest["width"], widest["directions"]
    stored, held = (s["depth"] * 3 * 4 * numbers / 2**30 for numbers in (n * n, 4 / 3 * n * r))
    return (
        f"After {s['passes']} passes over {s['train']:,} images, which are {s['passes'] * s['train']:,} samples, a "
        f"layer of width n = {n:,} has recorded r = {r:,.0f} directions (mean over layers). Basis, update, gradient "
        f"and momentum of the hidden layers take {held:.2g} GiB; stored weights with their gradient and momentum would "
        f"take {stored:.2g} GiB. A sample costs about 14 r n operations per layer, and 6 n^2 with stored weights: here "
        f"{14 * r / (6 * n):.2g} times as many. Below n = 2.3 r stored weights are cheaper. Structured ones are used "
        "there too where all widths must have the same kind of weights."
    )
