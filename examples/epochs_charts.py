"""The charts of ``epochs.py``, from what its page says: test error against width, training loss by pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from nfd.core.statistics import Interval, mean
from nfd.questions.findings.finding import Axes, Finding, SeriesRole, columns, depth_name

Row = Mapping[str, Any]

HELD = {"dense": "stored weights", "structured": "structured weights"}


def error_chart(networks: Sequence[Row], limit: Interval, kernels: Sequence[Row]) -> Finding:
    """Test error against width: networks with dense or structured weights, their limit, and kernels."""
    rows = [
        {"series": HELD[row["weights"]], "width": row["width"], **columns("error", row["test_error"])}
        for row in networks
    ]
    ends = [pick(row["width"] for row in networks) for pick in (min, max)]
    infinite = {"series": "infinite width", "role": SeriesRole.PREDICTION, **columns("error", limit)}
    constant = [
        {"series": f"{row['kernel'].upper()}, {depth_name(row['depth'])}", "error": row["value"]} for row in kernels
    ]
    axes = Axes("width", "error", "width n", "test error (%)", "semilogarithmic", zero=False)
    title = "Test error of networks, their limit and kernels"
    drawn = [*rows, *({**infinite, "width": n} for n in ends)]
    references = [{**row, "width": n} for row in constant for n in ends]
    return Finding("epochs-error", title, "", drawn, axes, "", references=references)


def loss_chart(curves: Mapping[tuple[str, int], Tensor], steps: int) -> Finding:
    """Training loss by pass of ``steps`` steps, from losses ``[networks, all steps]`` by weights and width: of every
    third width and of the widest."""
    rows = []
    for weights, width in dict.fromkeys([*list(curves)[::3], list(curves)[-1]]):
        about = {"series": f"width {width:,}, {HELD[weights]}", "width": width, "weights": weights}
        for k, losses in enumerate(curves[weights, width].unflatten(1, (-1, steps)).mean(2).unbind(1)):
            rows.append({**about, "pass": k + 1, **columns("loss", mean(losses))})
    title = "training loss, mean over the pass (nats)"
    axes = Axes("pass", "loss", "pass over the training images", title, "curves", colour="width", dash="weights")
    return Finding("epochs-loss", "Training loss by pass", "", rows, axes, "")
