"""How often the intervals of ``nfd.predict`` hold the loss of the infinitely wide network.

Ten steps of 16 digits at a rate of 1, depth 2: width n adds about 3.1 / n to the evaluation loss, up to two standard
errors of the ensembles below. The truth is that of 640 networks of width 512 and 1,600 of width 128, the bias of order
1 / n subtracted; ``truth`` computes it again.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Any

import nfd
from nfd.core.random import derive
from nfd.data import digits
from nfd.families.family import NetworkFamily
from nfd.families.member import Member

Row = dict[str, Any]

WIDTHS = (32, 64, 128, 512)
REPLICATES = 4
TRUTH = {"evaluation loss": (1.3179, 0.0014), "loss before the last step": (1.5498, 0.0021)}  # and standard errors

_STEPS, _BATCH, _EVALUATED = 10, 16, 32
_NOMINAL = 0.95


def predict_covers(repetitions: int, seed: int) -> list[Row]:
    """Rows by width: the share of repetitions whose 95 % interval contains the truth, and its standard error."""
    held = {(width, what): 0 for width in WIDTHS for what in TRUTH}
    for index in range(repetitions):
        for width in WIDTHS:
            found = predicted(width, REPLICATES, derive(seed, "coverage of predict", index))
            for what, (low, high) in intervals(found).items():
                held[width, what] += low <= TRUTH[what][0] <= high
    return [_row(width, what, count, repetitions) for (width, what), count in held.items()]


def truth() -> dict[str, tuple[float, float]]:
    """``TRUTH`` from 640 networks of width 512 and as many of width 128, of other seeds; takes a minute."""
    found = predicted(512, 640, seed=1)
    assert found.eval_interval is not None
    last = float(found.loss[-1]), float(found.loss_stderr[-1])
    return dict(zip(TRUTH, ((found.eval_interval.value, found.eval_interval.stderr), last), strict=True))


def predicted(width: int, replicates: int, seed: int) -> nfd.Prediction:
    """The problem at a width."""
    family = _Drawn(partial(nfd.ResNet, 64, 10), (1, 1), "depth-mup", "sgd", version=str(seed))
    return nfd.predict(family, _task(), 1.0, depth=2, width=width, weights="dense", replicates=replicates)


class _Drawn(NetworkFamily):
    """The paper's networks, of draws that its version names."""

    def member(self, width: int, depth: int, seed: int = 0, *more: Any, **named: Any) -> Member:
        return super().member(width, depth, derive(seed, str(self.version)), *more, **named)


@lru_cache
def _task() -> nfd.Task:
    data = digits()
    x, y = data.batches(_BATCH, _STEPS, 0)
    tests = data.test_inputs[:_EVALUATED], data.test_labels[:_EVALUATED]
    return nfd.Task(list(zip(x, y, strict=True)), eval_batches=[tests])


def intervals(found: nfd.Prediction) -> dict[str, tuple[float, float]]:
    """The intervals of a prediction by what they are of."""
    assert found.eval_interval is not None
    pairs = (found.eval_interval.low, found.eval_interval.high), (float(found.loss_low[-1]), float(found.loss_high[-1]))
    return dict(zip(TRUTH, pairs, strict=True))


def _row(width: int, what: str, held: int, count: int) -> Row:
    share = held / count
    error = (share * (1 - share) / count) ** 0.5
    case = f"width {width}, {REPLICATES} replicates, {what}"
    return {"kind": "nfd.predict", "case": case, "nominal": _NOMINAL, "measured": share, "error": error, "count": count}
