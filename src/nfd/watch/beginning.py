"""How a training began: tensors whose initial weights are not those of the plan, and the alerts that follow from that.

The RMS of a tensor of N random numbers has a relative error of ``1 / sqrt(2 N)``. The plan took its own number from
the tensor of the base, of N' numbers. A start is another one where

    |log(std / planned)| > max(1/4, 4 sqrt(1/(2 N) + 1/(2 N')))

Tensors that the plan drew with the watch's seed are known to the last bit and need no comparison.

A wrong start shows later in other meters. ``change``, ``|W - W(0)| / |W(0)|``, is off by the same factor, and blocks
behind the layer add another amount to the stream. Such alerts name consequences as causes, so they are left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nfd.core.statistics import rms
from nfd.scaling.blocks import block_of
from nfd.scaling.laws import law_of
from nfd.scaling.names import numberless
from nfd.scaling.plan import Plan
from nfd.scaling.rules import INPUT_LIKE, rule_named
from nfd.watch.alerts import STANDS, Alert, Cause
from nfd.watch.starts import Starts

_LEAST, _ERRORS = 0.25, 4.0  # of a logarithm: what matters little, and standard errors that chance does not reach
_SHOWN = 4  # kinds of tensors, by name
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
    def factor(self) -> float:
        """The standard deviation over the planned one."""
        return self.std / self.planned

    def is_of(self, layer: str) -> bool:
        """Whether ``layer`` is the name of this tensor or of the module that has it."""
        return layer in (self.tensor, self.tensor.rpartition(".")[0])


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
        kinds: dict[str, list[OtherStart]] = defaultdict(list)
        for start in self.tensors:
            kinds[numberless(start.tensor)].append(start)
        texts = [_text(name, own) for name, own in kinds.items()]
        more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        count = f"{len(self.tensors)} tensors" if len(self.tensors) > 1 else "a tensor"
        return f"step 0: {count} did not start as planned: {'; '.join(texts[:_SHOWN])}{more}. {self.remedy}"


class Beginning:
    """The tensors of a training that began otherwise than planned.

    Args:
        plan: of the model.
        others: those tensors.
        of: how many tensors were compared.
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
        """Whether an alert follows from these starts; False for those of somebody else's ``expected``."""
        if not self.others or not isinstance(alert, Alert):
            return False
        own = [start for start in self.others if alert.layer is not None and start.is_of(alert.layer)]
        match alert.cause:
            case Cause.UNKNOWN:
                return True
            case Cause.MULTIPLIER:
                return any(self._is_before(start.tensor, alert.layer) for start in self.others)
            case Cause.FROZEN:
                return any(alert.band and alert.value * start.factor >= STANDS * alert.band.value for start in own)
            case Cause.RATE | Cause.START | Cause.LATE_RATE:
                return bool(own) or self._changes_all_updates
            case Cause.ALL_RATES | Cause.SCHEDULE:
                return self._is_of_most or self._changes_all_updates
            case Cause.DECAY:
                return self._is_of_most
            case Cause.BROKEN:
                return False

    def state(self) -> list[list[Any]]:
        """For a checkpoint, as plain data."""
        return [[start.tensor, start.std, start.planned] for start in self.others]

    def restored(self, state: Sequence[Sequence[Any]]) -> Beginning:
        """That of the training that a checkpoint is of."""
        return Beginning(self.plan, [OtherStart(*start) for start in state], self.of)

    @property
    def _is_of_most(self) -> bool:
        return 2 * len(self.others) > self.of

    @property
    def _changes_all_updates(self) -> bool:
        """Whether updates follow the size of gradients, which every weight enters."""
        return law_of(self.plan.optimizer).degree > 0

    def _is_before(self, tensor: str, block: str | None) -> bool:
        """Whether the stream has passed a tensor when it leaves a block."""
        blocks, own = self.plan.blocks, block_of(tensor, self.plan.blocks)
        if block not in blocks:
            return False
        return self.plan.roles[tensor] in INPUT_LIKE if own is None else blocks.index(own) <= blocks.index(block)


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


def _text(name: str, alike: Sequence[OtherStart]) -> str:
    first = alike[0]
    count = f" ({len(alike)} tensors)" if len(alike) > 1 else ""
    shown = name if len(alike) > 1 else first.tensor
    return f"{shown}{count} has standard deviation {first.std:.3g}, planned {first.planned:.3g}"
