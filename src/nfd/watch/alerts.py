"""Alerts: which layer left its band, since when, the likely cause and the remedy.

A cause is read from which meters left their bands, where, and since when:

- ``change`` of one layer, the size of W - W(0) over that of W(0), follows its own rate and start and, where steps have
  a fixed size, little else: it names the layer. What that layer does to the stream shows in other layers too. Under
  Muon, which fixes the largest singular value of a step alone, ``update_to_weight`` of inner layers takes its place.
- Where ``change`` is off by a factor and ``update``, the size of (W - W(0)) z, is not, the start is wrong; else the
  rate.
- ``added``, what a block adds to the stream, out of its band while ``change`` is within: what multiplies the branch.
- Half of all layers leaning to one side: one cause for all of them; with smaller weights it is decay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from nfd.watch.bands import Band, Bands
from nfd.watch.ladder import CHANGE, kinds_of, series_of
from nfd.watch.rows import WatchRow

STANDS = 0.01  # of what was expected: a layer that changes less does not train
_PATIENCE = 4  # looks: so long a pattern without a known cause waits for one
_UPDATE, _ADDED, _WEIGHT, _SPECTRAL = "update", "added", "weight", "update_to_weight"
_TELLING = CHANGE, _UPDATE, _ADDED, _WEIGHT


class Cause(StrEnum):
    """Why a meter left its band."""

    BROKEN = "broken"
    FROZEN = "frozen"
    OPTIMIZER = "optimizer"
    RATE = "rate"
    START = "start"
    MULTIPLIER = "multiplier"
    LATE_RATE = "late-rate"
    ALL_RATES = "all-rates"
    SCHEDULE = "schedule"
    DECAY = "decay"
    UNKNOWN = "unknown"


_TEXTS = {
    Cause.BROKEN: ("the network is no longer finite", "Lower the rate, or go back to a checkpoint before this step."),
    Cause.FROZEN: (
        "the layer does not train",
        "Check that the optimizer has its parameters, that their rate is above 0, and that they require gradients.",
    ),
    Cause.OPTIMIZER: (
        "the optimizer does not have the groups of the plan",
        "Make it by plan.make_optimizer(model, lr=...), or of plan.param_groups(model, lr=...).",
    ),
    Cause.RATE: (
        "the rate of the layer is not the plan's",
        "Give it the group that plan.param_groups makes, and keep group['lr_scale'] when a schedule sets rates.",
    ),
    Cause.START: (
        "the initial weights of the layer are not the plan's",
        "Call plan.apply_(model) after everything that initialises the model, and before training.",
    ),
    Cause.MULTIPLIER: (
        "the output of the block has another scale than in the small networks",
        "Compare the forward pass of the block, its multipliers, and the gain of its norm with the other blocks.",
    ),
    Cause.LATE_RATE: (
        "the rate of the layer changed on the way",
        "Check what changed at this step, such as a layer that was frozen, or a group that a schedule left out.",
    ),
    Cause.ALL_RATES: (
        "all rates differ from those of the small networks",
        "Pass plan.make_optimizer the lr of the base, and compare the warm-up with that of the check.",
    ),
    Cause.SCHEDULE: (
        "all layers left their bands on the way",
        "Compare the schedule of the rates, the loss and the data with those of the check.",
    ),
    Cause.DECAY: (
        "weight decay shrinks the weights faster than training renews them",
        "Lower weight_decay: rate times decay times steps should stay below 1 where the small networks had it so.",
    ),
    Cause.UNKNOWN: (
        "no cause is known for this pattern",
        "Compare model, data, batch and schedule with those of the check.",
    ),
}


@dataclass(frozen=True)
class Alert:
    """A deviation from the expectation: a meter that left its band. Print it for the sentence with its remedy.

    Attributes:
        step: the step of this alert.
        since: the first look at which the meter was outside of its band.
        meter, layer: names of the meter and of the layer; layer is None for the whole network.
        value, band: the value and the band at ``step``.
        cause: the likely cause.
    """

    step: int
    since: int
    meter: str
    layer: str | None
    value: float
    band: Band | None
    cause: Cause

    @property
    def remedy(self) -> str:
        """What to do."""
        return _TEXTS[self.cause][1]

    def __str__(self) -> str:
        where = self.layer or "the network"
        expected = f", expected {self.band.value:.3g} [{self.band.low:.3g}, {self.band.high:.3g}]" if self.band else ""
        since = f" since step {self.since}" if self.since < self.step else ""
        reason, remedy = _TEXTS[self.cause]
        return f"step {self.step}: {where}: {self.meter} is {self.value:.3g}{expected}{since}: {reason}. {remedy}"


_Where = tuple[str, str | None]  # meter and layer


@dataclass(frozen=True)
class _Judged:
    """A row with its band.

    Attributes:
        since: the first look, without a break, at which it was outside on this side.
        looks: how many looks that are; 0 within the band.
        at_once: whether it was outside when it was first judged.
    """

    row: WatchRow
    band: Band
    since: int
    looks: int
    at_once: bool

    @property
    def lasts(self) -> bool:
        """Whether it was outside at the look before, too."""
        return self.looks > 1

    @property
    def factor(self) -> float:
        """The logarithm of the value over what was expected; infinite for zero."""
        return math.log(self.row.value / self.band.value) if self.row.value > 0 else -math.inf

    def alert(self, cause: Cause, *, of_all: bool = False) -> Alert:
        """This row as an alert, of its layer or of the whole network."""
        row = self.row
        return Alert(row.step, self.since, row.meter, None if of_all else row.layer, row.value, self.band, cause)


class Alarm:
    """Judges the rows of a training look by look.

    Args:
        bands: of this network.
    """

    def __init__(self, bands: Bands) -> None:
        self.bands = bands
        self._kinds: dict[str, str] = {}
        self._before: dict[_Where, _Judged] = {}
        self._raised: set[tuple[Cause, str | None]] = set()

    def alerts(self, rows: Sequence[WatchRow]) -> list[Alert]:
        """What the rows of one look say against the training; a cause is raised once for a layer."""
        self._kinds |= kinds_of(rows)
        broken = [row for row in rows if not math.isfinite(row.value)]
        self._before |= {(j.row.meter, j.row.layer): j for row in rows if (j := self._judged(row))}
        judged = [self._before[where] for row in rows if (where := (row.meter, row.layer)) in self._before]
        raised = [Alert(r.step, r.step, r.meter, r.layer, r.value, None, Cause.BROKEN) for r in broken[:1]]
        raised = raised or _named(_Look(judged, self.bands.limit), known=bool(self._raised)) or self._unknown(judged)
        return [alert for alert in raised if self._is_new(alert)]

    @property
    def last_step(self) -> int:
        """The last one that the ladder was looked at after: there are no bands beyond it."""
        return self.bands.ladder.steps[-1]

    @property
    def is_of_sound(self) -> bool:
        """Whether the check of the ladder found no fault."""
        return self.bands.ladder.ok

    def band(self, row: WatchRow) -> Band | None:
        """The band of a row; None where the ladder does not know the meter, the layer or the step."""
        return self.bands.at(series_of(row, self._kinds), row.step, row.depth, row.value)

    def _judged(self, row: WatchRow) -> _Judged | None:
        band = self.band(row) if math.isfinite(row.value) else None
        if band is None:
            return None
        before = self._before.get((row.meter, row.layer))
        if abs(band.deviation) <= self.bands.limit:
            return _Judged(row, band, row.step, 0, False)
        if before is None or not before.looks or before.band.deviation * band.deviation < 0:
            return _Judged(row, band, row.step, 1, before is None)
        return _Judged(row, band, before.since, before.looks + 1, before.at_once)

    def _unknown(self, judged: Sequence[_Judged]) -> list[Alert]:
        """The row furthest from its band, where no cause was ever named and none shows for several looks."""
        lasting = [] if self._raised else [j for j in judged if j.looks >= _PATIENCE]
        return [_furthest(lasting)[0].alert(Cause.UNKNOWN)] if lasting else []

    def _is_new(self, alert: Alert) -> bool:
        """Whether it was not raised before, and is no part of what was raised of all layers."""
        told = (alert.cause, alert.layer)
        part = alert.layer is not None and any(layer is None for _, layer in self._raised)
        if told in self._raised or (part and alert.cause is not Cause.FROZEN):
            return False
        self._raised.add(told)
        return True


class _Look:
    """The judged rows of one look, by meter, the furthest from its band first."""

    def __init__(self, judged: Sequence[_Judged], limit: float) -> None:
        self.limit = limit
        changed = {j.row.layer for j in judged if j.row.meter == CHANGE}
        rows = {meter: [j for j in judged if j.row.meter == meter] for meter in _TELLING}
        rows[CHANGE] += [j for j in judged if j.row.meter == _SPECTRAL and j.row.layer not in {None, *changed}]
        self.rows = {meter: _furthest(own) for meter, own in rows.items()}

    def outside(self, meter: str) -> list[_Judged]:
        """The layers that stay outside of their bands."""
        return [j for j in self.rows[meter] if j.lasts and j.row.layer is not None]

    def together(self, meter: str, sign: int) -> bool:
        """Whether more than half of several layers lean to one side."""
        layers = [j for j in self.rows[meter] if j.row.layer is not None]
        return 2 * sum(sign * j.band.deviation > self.limit / 2 for j in layers) > len(layers) > 2

    def beside(self, judged: _Judged, meter: str) -> _Judged | None:
        """Another meter of the same layer."""
        return next((j for j in self.rows[meter] if j.row.layer == judged.row.layer), None)


def _furthest(judged: Sequence[_Judged]) -> list[_Judged]:
    return sorted(judged, key=lambda j: -abs(j.band.deviation))


def _named(look: _Look, *, known: bool) -> list[Alert]:
    """The alerts whose cause the pattern tells. What all layers do after a cause is ``known`` follows from it."""
    shrunk, changed = look.outside(_WEIGHT), look.outside(CHANGE)
    if (shrunk or changed) and look.together(_WEIGHT, -1):
        return [look.rows[_WEIGHT][0].alert(Cause.DECAY, of_all=True)]
    if changed and any(look.together(CHANGE, sign) for sign in (-1, 1)):
        cause = Cause.ALL_RATES if changed[0].at_once else Cause.SCHEDULE
        return [] if known else [changed[0].alert(cause, of_all=True)]
    places = {j.row.depth for j in changed}
    added = [j for j in look.outside(_ADDED) if j.row.depth not in places]
    return [*(j.alert(_of_layer(j, look)) for j in changed), *(j.alert(Cause.MULTIPLIER) for j in added)]


def _of_layer(changed: _Judged, look: _Look) -> Cause:
    """The cause of a layer that has not changed as it should have."""
    if changed.row.value < STANDS * changed.band.value:
        return Cause.FROZEN
    if not changed.at_once:
        return Cause.LATE_RATE
    update = look.beside(changed, _UPDATE)
    if update is not None and abs(update.factor) < abs(changed.factor) / 2:
        return Cause.START
    return Cause.RATE
