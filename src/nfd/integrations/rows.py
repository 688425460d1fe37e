"""Rows of a watch for loggers: names, and writers for TensorBoard and Weights & Biases."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from nfd.watch.bands import WatchRow


def tag(row: WatchRow) -> str:
    """``nfd/meter``, and of one layer ``nfd/meter/layer``."""
    return "/".join(["nfd", row.meter, *([] if row.layer is None else [row.layer])])


def of_network(rows: Iterable[WatchRow]) -> dict[str, float]:
    """The meters of the whole network, by name."""
    return {tag(row): row.value for row in rows if row.layer is None}


def to_tensorboard(rows: Iterable[WatchRow], writer: Any) -> None:
    """Write the rows of a watch to TensorBoard: one scalar per meter and layer, at its step.

    Args:
        rows: of ``watch.step()`` or ``watch.rows``. writer: a ``torch.utils.tensorboard.SummaryWriter``.
    """
    for row in rows:
        writer.add_scalar(tag(row), row.value, row.step)


def to_wandb(rows: Sequence[WatchRow], run: Any) -> None:
    """Log the rows of a watch to Weights & Biases, at their steps. These must not precede steps logged before.

    Args:
        rows: of ``watch.step()`` or ``watch.rows``. run: of ``wandb.init``.
    """
    for step, of_step in itertools.groupby(rows, attrgetter("step")):
        run.log({tag(row): row.value for row in of_step}, step=step)
