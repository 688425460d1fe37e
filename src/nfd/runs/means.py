"""Means over seeds: what runs that differ in nothing else gave, with intervals."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import torch

from nfd.core.statistics import Interval, mean
from nfd.core.tables import Row
from nfd.core.text import short
from nfd.runs.export import METERS, with_updates
from nfd.store.rows import Record
from nfd.store.store import Store

LOSSES = ("train_loss", "test_loss")
UPDATES = ("inner_update", "function_update")  # of which the page of sliders shows both


def means(records: Sequence[Record], store: Store) -> dict[str, Interval]:
    """Losses and, where they were measured, updates after the last step: means over these runs, 95 % intervals.

    Nothing where a run diverged or failed. One-layer blocks have no inner update.
    """
    if any(record.status != "done" for record in records):
        return {}
    metrics = [with_updates(record, store).metrics for record in records]
    names = [*LOSSES, *(name for name in METERS if name in metrics[0])]
    values = {name: [own[name] for own in metrics] for name in names}
    return {name: mean(torch.tensor(sample, dtype=torch.float64)) for name, sample in values.items()}


def table_of_means(records: Sequence[Record], store: Store) -> list[Row]:
    """A row for each combination of settings but the seed: those that differ, how many runs, and ``means`` as text."""
    alike: dict[str, list[Record]] = {}
    for record in records:
        alike.setdefault(json.dumps(record.config | {"seed": None}, sort_keys=True), []).append(record)
    configs = [group[0].config for group in alike.values()]
    differ = [name for name in configs[0] if name != "seed" and len({repr(c.get(name)) for c in configs}) > 1]
    return [
        {name: group[0].config[name] for name in differ}
        | {"runs": len(group), "diverged": sum(record.status == "diverged" for record in group)}
        | {name: _text(interval) for name, interval in means(group, store).items()}
        for group in alike.values()
    ]


def _text(interval: Interval) -> str:
    """A mean of several runs with its interval; of one run, the number."""
    return interval.unsigned if math.isfinite(interval.stderr) else short(interval.value)
