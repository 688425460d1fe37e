"""Train a residual network 1,048,576 wide on a laptop, beside narrower ones, and draw their loss.

Run: python examples/million_wide.py [--widths 256 4096 1048576] [--steps 12] [--out out/million]
The widest needs about 7 GiB and a minute or two on two cores; its dense weights would need 17.6 TB.
"""

from __future__ import annotations

import argparse
import time

import nfd
from nfd.core.files import prepare_directory, write_bytes, write_csv
from nfd.data.digits import digits
from nfd.experiment.findings.finding import Axes
from nfd.report.charts import curves, still
from nfd.report.series import COLOURS, Series
from nfd.training.loop import train
from nfd.training.losses import cross_entropy

DEPTH, BATCH, ETA_C = 4, 8, 0.5
TITLE = "training loss before the step (nats)"


def curve(width: int, steps: int) -> tuple[list[float], float]:
    """Losses of one network with deferred weights, and the seconds it took."""
    x, y = digits().batches(BATCH, steps, 0)
    start = time.perf_counter()
    net = nfd.ResNet(64, 10, width, DEPTH, weights="deferred")
    net.reserve(steps * BATCH)
    optimizer = nfd.SGD(net.param_groups(ETA_C))
    losses = [row.loss for row in train(net, optimizer, zip(x, y, strict=True), cross_entropy)]
    return losses, time.perf_counter() - start


def main() -> None:
    """Train, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 4096, 1048576])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", default="out/million")
    arguments = parser.parse_args()
    out = prepare_directory(arguments.out)
    rows = []
    for width in arguments.widths:
        losses, seconds = curve(width, arguments.steps)
        dense = 4 * DEPTH * width**2 / 1e9
        print(f"width {width:>9,}: loss {losses[0]:.3f} -> {losses[-1]:.3f}, {seconds:.1f} s, dense {dense:,.1f} GB")
        rows += [
            {"series": f"width {width:,}", "step": k, "loss": loss, "low": loss, "high": loss}
            for k, loss in enumerate(losses)
        ]
    *narrower, widest = (f"width {width:,}" for width in arguments.widths)
    series = [Series(name, colour, (6, 4)) for name, colour in zip(narrower, COLOURS, strict=False)]
    axes = Axes("step", "loss", "step", TITLE, "curves")
    chart = curves(rows, [*series, Series(widest, "#000000")], axes)
    _, png = still(chart)
    write_csv(out / "million.csv", rows)
    print(write_bytes(out / "million.png", png))


if __name__ == "__main__":
    main()
