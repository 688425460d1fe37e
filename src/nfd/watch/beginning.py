"""How a training began: tensors whose initial weights are not those of the plan, and the alerts that follow from that.

The RMS of a tensor of N random numbers has a relative error of ``1 / sqrt(2 N)``. The plan took its own number from
the tensor of the base, of N' numbers. A start is another one where

    |log(std / planned)| > max(1/4, 4 sqrt(1/(2 N) + 1/(2 N')))

Tensors that the plan drew with the watch's seed are known to the last bit and need no comparison.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nfd.core.statistics import rms
from nfd.scaling.plan import Plan
from nfd.scaling.rules import rule_named
from nfd.watch.alerts import Alert, Cause
from nfd.watch.deviations import Consequences, counted, in_words
from nfd.watch.starts import Starts

_LEAST, _ERRORS = 0.25, 4.0  # of a logarithm: what matters little, and standard errors that chance does not reach
_OTHERWISE = (
    " If the model is meant to start from other weights, as from a checkpoint, pass own_start=True to nfd.Watch."
)


@dataclass(frozen=True)
class OtherStart:
    """A tensor whose initial weights differ from the plan: its standard deviation, and the planned one."""

    tensor: str
    std: float
    planned: float

    @property
    def change(self) -> float:
        """The planned standard deviation over this one."""
        return self.planned / self.std if self.std else 0.0

    def __str__(self) -> str:
        return f"has standard deviation {self.std:.3g}, planned {self.planned:.3g}"


@dataclass(frozen=True)
class StartAlert(Alert):
    """Tensors whose initial weights differ from the plan, all in one alert at step 0.

    Attributes:
        tensors: the one with the largest deviation first; ``layer`` and ``value`` are those of the first.
    """

    tensors: tuple[OtherStart, ...] = ()

    @property
    def remedy(self) -> str:
        """What to do."""
        return super().remedy + _OTHERWISE

    def __str__(self) -> str:
        others = f"{counted(self.tensors)} did not start as planned: {in_words(self.tensors)}"
        return f"step 0: {others}. {self.remedy}"


class Beginning:
    """The tensors of a training that began otherwise than planned.

    Args:
        plan: of the model.
        others: those tensors.
        of: how many matrices were compared.
    """

    def __init__(self, plan: Plan, others: Sequence[OtherStart], of: int) -> None:
        self.plan, self.of = plan, of
        self.others = sorted(others, key=lambda start: (-_distance(start.std, start.planned), start.tensor))

    @classmethod
    def seen(cls, plan: Plan, starts: Starts) -> Beginning:
        """By the tensors as they are now, before training."""
        return cls(plan, _other_starts(plan, starts) if rule_named(plan.rule).scales_width else [], len(starts))

    @property
    def alerts(self) -> list[StartAlert]:
        """One alert for all of them; none where all began as planned."""
        if not self.others:
            return []
        first = self.others[0]
        layer = first.tensor.rpartition(".")[0] or first.tensor
        return [StartAlert(0, 0, "std", layer, first.std, None, Cause.START, tuple(self.others))]

    def explains(self, alert: Any) -> bool:
        """Whether an alert follows from these starts."""
        return Consequences(self.plan, self.others, self.of).explain(alert)

    def state(self) -> list[list[Any]]:
        """For a checkpoint, as plain data."""
        return [[start.tensor, start.std, start.planned] for start in self.others]

    def restored(self, state: Sequence[Sequence[Any]]) -> Beginning:
        """That of the training that a checkpoint is of."""
        return Beginning(self.plan, [OtherStart(*start) for start in state], self.of)


def _other_starts(plan: Plan, starts: Starts) -> list[OtherStart]:
    """Of the matrices that the plan draws and did not draw by the seed of the watch."""
    others = []
    for name, start in starts.kept.items():
        info, entry = starts.infos[name], plan.entries[name]
        if entry.start.kept or plan.std(name) == 0 or not info.parameter.requires_grad:
            continue
        values = info.drawn(start)
        grown = max(entry.ratios.fan_in * entry.ratios.fan_out, 1 / values.numel())
        error = math.sqrt((1 + grown) / (2 * values.numel()))
        std = rms(values.double())
        if _distance(std, plan.std(name)) > max(_LEAST, _ERRORS * error):
            others.append(OtherStart(name, std, plan.std(name)))
    return others


def _distance(std: float, planned: float) -> float:
    """Of the logarithms; infinite for zero."""
    return abs(math.log(std / planned)) if std > 0 else math.inf if std == 0 else math.nan
