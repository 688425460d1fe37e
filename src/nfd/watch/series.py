"""The rows of a watch in series: a meter of the whole network, or of its layers of one kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from nfd.watch.ladder import Series, kinds_of
from nfd.watch.rows import WatchRow


def in_series(rows: Sequence[WatchRow]) -> dict[Series, list[WatchRow]]:
    """The rows of every series, in their order."""
    kinds, series = kinds_of(rows), defaultdict[Series, list[WatchRow]](list)
    for row in rows:
        kind = None if row.layer is None else kinds[row.layer]
        series[Series(row.meter, kind, row.depth is not None)].append(row)
    return dict(series)
