"""Alerts: what deviates in a training run, since when, the likely cause and the remedy.

Two comparisons need only the plan: ``init_check`` of the initial weights and ``RateCheck`` of the
learning rates. ``Alarm`` reads a cause from which meters left their bands, where, and since when;
``EVIDENCE`` has what shows each. It names no cause that a comparison excludes (``Verified``).

The meter ``change`` of a layer is the size of W - W(0) over the size of W(0). Where the optimizer
gives steps a fixed size, it depends on little but the learning rate and the initial weights of this
layer, and so shows which layer is wrong. Meters of the stream do not, as a wrong layer changes the
input of the layers after it. Muon fixes only the largest singular value of a step: under Muon
``update_to_weight`` takes the place of ``change`` in inner layers.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from statistics import median_low
from types import FrameType
from typing import Any
from weakref import finalize, ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from nfd.core.errors import InputError, InputTypeError
from nfd.core.estimates import Interval, rms
from nfd.core.files import expanded
from nfd.core.words import plural, quoted
from nfd.meters.check import Check
from nfd.meters.reading import WatchRow
from nfd.meters.suspects import decayed_gains
from nfd.scaling.base_group import SCALE
from nfd.scaling.find_law import law_of
from nfd.scaling.held import held_as_planned
from nfd.scaling.kept_rates import ALIKE, remedy_of, warn_of_lost_ratios
from nfd.scaling.model import TensorInfo, numberless
from nfd.scaling.optimizers import OptimizerLaw, law_by_class
from nfd.scaling.plan import Plan
from nfd.scaling.rules import rule_named
from nfd.watch.alerts import WORDS, Alert, Cause, Deviation
from nfd.watch.bands import CHANGE, Band, Bands, Ladder
from nfd.watch.schedules import LatestRate, Rate, rate_of

# A layer that changes by less than this share of what was expected does not train.
_FROZEN_SHARE = 0.01
# A row must be outside of its band for this many looks in succession before the cause is called
# unknown: until then another row may show the cause.
_PATIENCE = 4
# Meters by which causes are told apart.
_ADDED = "added"
_WEIGHT = "weight"
_SPECTRAL = "update_to_weight"
# Initial weights differ from the plan where the logarithm of the ratio exceeds both: this, below
# which it matters little, and
_LEAST_DISTANCE = 0.25
# this many standard errors, which chance does not reach.
_STANDARD_ERRORS = 4.0
# How many kinds of tensors a message names
_SHOWN = 4
# What nfd check writes into its folder
_FILE = "result.json"


# ---- Meters that left their bands


@dataclass(frozen=True)
class _Judged:
    """A row with its band, and how long it has been outside.

    Attributes:
        since: the step at which the row left the band on the side where it is now, and after which
            it stayed there; within the band, the step of the row.
        looks: the number of looks since then; 0 within the band.
    """

    row: WatchRow
    band: Band
    since: int
    looks: int = 0


class _Snapshot:
    """The judged rows of one look, the furthest from its band first, and what they show.

    ``limit`` is the largest deviation within a band.
    """

    # The share of the expected change below which a layer stands still
    frozen_share = _FROZEN_SHARE

    def __init__(self, judged: Iterable[_Judged], limit: float) -> None:
        self.all = sorted(judged, key=lambda j: -abs(j.band.deviation))
        self.limit = limit
        changed = {None, *(j.row.layer for j in self.all if j.row.meter == CHANGE)}
        self.rows: dict[str, list[_Judged]] = {CHANGE: [], _ADDED: [], _WEIGHT: []}
        for j in self.all:
            meter = j.row.meter
            # Where a layer has no row of ``change``, as under Muon, this meter takes its place.
            if meter == _SPECTRAL and j.row.layer not in changed:
                meter = CHANGE
            self.rows.setdefault(meter, []).append(j)

    def beside_each_other(self) -> None:
        """Compare layers with the one that changes most, where all may change too little."""
        layers = [j for j in self.rows[CHANGE] if j.row.layer is not None and j.band.value > 0]
        most = max((j.row.value / j.band.value for j in layers), default=0.0)
        self.frozen_share = _FROZEN_SHARE * min(most, 1.0)

    def outside(self, meter: str) -> list[_Judged]:
        """The layers that have been outside of their bands for two looks or more."""
        layers = [j for j in self.rows[meter] if j.row.layer is not None]
        return [j for j in layers if j.looks > 1]

    def leans(self, meter: str, sign: int) -> bool:
        """Whether most layers, of three or more, lean to one side, beyond half of the limit."""
        layers = [j for j in self.rows[meter] if j.row.layer is not None]
        leaning = 0
        for j in layers:
            is_frozen = meter == CHANGE and _stands_still(j)
            leaning += sign * j.band.deviation > self.limit / 2 and not is_frozen
        return len(layers) >= 3 and 2 * leaning > len(layers)

    def shrunk(self) -> list[_Judged]:
        """The weight furthest from its band, where most weights are too small."""
        moved = self.outside(_WEIGHT) or self.outside(CHANGE)
        if not moved or not self.leans(_WEIGHT, -1):
            return []
        return self.rows[_WEIGHT][:1]

    def together(self) -> list[_Judged]:
        """The layer furthest from its band, where most change too much, or most too little.

        Layers that do not train at all have another cause.
        """
        most_lean = self.leans(CHANGE, 1) or self.leans(CHANGE, -1)
        if not most_lean:
            return []
        return [j for j in self.outside(CHANGE) if not _stands_still(j)][:1]

    def multiplied(self) -> list[_Judged]:
        """The blocks that add too much or too little though their matrices change as expected."""
        places = {j.row.depth for j in self.outside(CHANGE)}
        return [j for j in self.outside(_ADDED) if j.row.depth not in places]


def _by_no_band(look: _Snapshot) -> list[_Judged]:
    """No evidence: rows that left their bands do not show this cause."""
    return []


def _stands_still(j: _Judged) -> bool:
    return j.row.value < _FROZEN_SHARE * j.band.value


def _frozen(look: _Snapshot) -> list[_Judged]:
    """The layers that do not train."""
    return [j for j in look.outside(CHANGE) if j.row.value < look.frozen_share * j.band.value]


def _changed(look: _Snapshot) -> list[_Judged]:
    return look.outside(CHANGE)


def _lasting(look: _Snapshot) -> list[_Judged]:
    """The row furthest from its band that has been outside for long."""
    return [j for j in look.all if j.looks >= _PATIENCE][:1]


# In the order in which they are tried: a layer has the first cause that its rows show. Causes with
# ``_by_no_band`` have another evidence: numbers that are not finite (BROKEN), RateCheck and
# init_check (OPTIMIZER, START), a verified learning rate (CHANGE), a forecast (LOSS), and
# ``nfd.watch.signs`` (STOPPED, JUMP, RISE, EXPLODING, DEAD, ROUNDING, SPIKE).
EVIDENCE: dict[Cause, Callable[[_Snapshot], list[_Judged]]] = {
    Cause.BROKEN: _by_no_band,
    Cause.OPTIMIZER: _by_no_band,
    Cause.DECAY: _Snapshot.shrunk,
    Cause.ALL_RATES: _Snapshot.together,
    Cause.FROZEN: _frozen,
    Cause.STOPPED: _by_no_band,
    Cause.JUMP: _by_no_band,
    Cause.RISE: _by_no_band,
    Cause.START: _by_no_band,
    Cause.RATE: _changed,
    Cause.CHANGE: _by_no_band,
    Cause.MULTIPLIER: _Snapshot.multiplied,
    Cause.EXPLODING: _by_no_band,
    Cause.DEAD: _by_no_band,
    Cause.ROUNDING: _by_no_band,
    Cause.SPIKE: _by_no_band,
    Cause.LOSS: _by_no_band,
    Cause.UNKNOWN: _lasting,
}
# Causes that show in all layers
_OF_ALL = {Cause.DECAY, Cause.ALL_RATES}
# The words that replace those of ALL_RATES where the learning rates were verified.
_SAME_RATES_REASON = (
    "most layers change otherwise than in the small networks, at the same learning rate"
)
_SAME_RATES_REMEDY = (
    "Compare warm-up, schedule, loss and data with the check's. If the rule lets updates grow with "
    "size, lower the rate."
)


@dataclass(frozen=True)
class Verified:
    """What a watch compared itself, so that no alert may blame it.

    Attributes:
        rates: whether every tensor was seen to train at its learning rate of the plan.
        lr: the tuned learning rate that the first step showed, its schedule included; not-a-number
            where it is not known.
        decay: whether a tensor is known to decay, or may do so.
        step: the step of ``lr``.
    """

    rates: bool = False
    lr: float = math.nan
    decay: bool = True
    step: int = 1


class Alarm:
    """Judges the rows of a training run, look by look.

    Attributes:
        last_step: the last step after which the ladder was looked at; later steps have no bands.
        ladder: the small networks.
        is_of_sound: whether the check of the ladder found no fault.
        verified: what is known not to be the cause.
        only_frozen: whether sizes of changes show nothing, as under another schedule, so that only
            layers that do not train beside others are judged, and numbers that are not finite.
        explained: layers that stopped or jumped: what they and others do later may follow from it.
    """

    verified = Verified()
    only_frozen = False
    explained: frozenset[str] = frozenset()
    ladder: Ladder | None = None

    def __init__(self, bands: Bands) -> None:
        self.bands = bands
        self.ladder = bands.ladder
        self.last_step = bands.ladder.steps[-1]
        self.is_of_sound = bands.ladder.ok
        self._before: dict[tuple[str, str | None], _Judged] = {}
        self._raised: set[tuple[Cause, str | None]] = set()

    def alerts(self, rows: Sequence[WatchRow]) -> list[Alert]:
        """Judge the rows of one look; a cause is raised once for a layer."""
        judged = []
        for row in rows:
            judged_row = self._judged(row)
            if judged_row is not None:
                judged.append(judged_row)
        for j in judged:
            self._before[j.row.meter, j.row.layer] = j
        named = self._named(_Snapshot(judged, self.bands.limit))
        broken = [row for row in rows if not math.isfinite(row.value)]
        if broken:
            first = broken[0]
            named = [_alert(first, Cause.BROKEN, None, first.step, first.layer)]
        new = [alert for alert in named if self._is_new(alert)]
        self._raised |= {(alert.cause, alert.layer) for alert in new}
        return new

    def _is_new(self, alert: Alert) -> bool:
        """Whether an alert is news.

        It is not if its cause was raised for its layer before, or if an alert of the whole network
        may explain it.
        """
        if (alert.cause, alert.layer) in self._raised:
            return False
        if alert.layer is not None and self._is_explained(alert.layer):
            return False
        was_raised_of_all = any(layer is None for _, layer in self._raised)
        # No cause of the whole network explains that a layer does not train.
        may_follow = alert.layer is not None and alert.cause is not Cause.FROZEN
        return not (was_raised_of_all and may_follow)

    def _is_explained(self, layer: str) -> bool:
        """Whether it is a layer that stopped or jumped, or a block with such a layer."""
        return any(f"{other}.".startswith(f"{layer}.") for other in self.explained)

    def band(self, row: WatchRow) -> Band | None:
        """The band of a row; None where the ladder lacks the meter, the layer or the step."""
        return self.bands.at(row.series, row.step, row.depth, row.value)

    def _judged(self, row: WatchRow) -> _Judged | None:
        """Compare a row with its band; None where it is not finite or has no band."""
        if not math.isfinite(row.value):
            return None
        band = self.band(row)
        if band is None:
            return None
        before = self._before.get((row.meter, row.layer))
        if abs(band.deviation) <= self.bands.limit:
            return _Judged(row, band, row.step)
        # It left the band just now, or went from one side of it to the other.
        if before is None or not before.looks or before.band.deviation * band.deviation < 0:
            return _Judged(row, band, row.step, 1)
        return _Judged(row, band, before.since, before.looks + 1)

    def _named(self, look: _Snapshot) -> list[Alert]:
        """The alerts of the causes that a look shows: one for the network, or one per layer."""
        named: dict[str | None, tuple[_Judged, Cause]] = {}
        if self.only_frozen:
            look.beside_each_other()
        for cause, evidence_of in EVIDENCE.items():
            if self.only_frozen and cause is not Cause.FROZEN:
                continue
            if cause is Cause.DECAY and not self.verified.decay:
                continue
            evidence = evidence_of(look)
            if evidence and cause in _OF_ALL:
                # Once a cause was raised, it explains what all layers do later. Weight decay is the
                # exception: it is raised whatever was raised before.
                if (self._raised or self.explained) and cause is not Cause.DECAY:
                    return []
                first = evidence[0]
                alert = _alert(first.row, cause, first.band, first.since, None)
                return [self._without_verified_rates(alert)]
            is_explained = bool(named or self._raised or self.explained)
            if cause is Cause.UNKNOWN and is_explained:
                continue
            of_cause = {j.row.layer: (j, cause) for j in evidence}
            # A layer keeps the first cause that was found for it.
            named = of_cause | named
        alerts = []
        for j, cause in sorted(named.values(), key=_order):
            alert = _alert(j.row, cause, j.band, j.since, j.row.layer)
            alerts.append(self._without_verified_rates(alert))
        return alerts

    def _without_verified_rates(self, alert: Alert) -> Alert:
        """Return the alert, with the cause CHANGE where it blames a verified learning rate."""
        if alert.cause is Cause.RATE and self.verified.rates:
            texts = WORDS[Cause.CHANGE]
            return replace(alert, cause=Cause.CHANGE, reason=texts.reason, remedy=texts.remedy)
        lr = self.bands.ladder.rate_at(self.verified.step)
        has_their_rate = lr is not None and math.isclose(self.verified.lr, lr, rel_tol=ALIKE)
        if alert.cause is Cause.ALL_RATES and self.verified.rates and has_their_rate:
            return replace(
                alert, cause=Cause.CHANGE, reason=_SAME_RATES_REASON, remedy=_SAME_RATES_REMEDY
            )
        return alert


def _order(named: tuple[_Judged, Cause]) -> tuple[bool, float]:
    """Sort key: furthest from the band first, but blocks after layers that may explain them."""
    j, cause = named
    return cause is Cause.MULTIPLIER, -abs(j.band.deviation)


def _alert(row: WatchRow, cause: Cause, band: Band | None, since: int, layer: str | None) -> Alert:
    texts = WORDS[cause]
    return Alert(
        row.step, since, row.meter, layer, row.value, band, cause, texts.reason, texts.remedy
    )


def loss_alert(losses: Mapping[int, float], expected: Interval) -> Alert:
    """The alert of losses whose mean lies outside of the interval that was forecast."""
    value = sum(losses.values()) / len(losses)
    texts = WORDS[Cause.LOSS]
    band = Band(
        expected.value, expected.low, expected.high, (value - expected.value) / expected.stderr
    )
    return Alert(
        max(losses), min(losses), "loss", None, value, band, Cause.LOSS, texts.reason, texts.remedy
    )


# ---- Comparisons with the plan: one alert for all tensors that differ from it


def _off_plan(
    cause: Cause, meter: str, tensors: Sequence[Deviation], reason: str, step: int
) -> Alert:
    """Make the alert of these tensors; the first gives its layer and value."""
    layer = tensors[0].tensor.rpartition(".")[0] or tensors[0].tensor
    remedy = WORDS[cause].remedy
    return Alert(
        step, step, meter, layer, tensors[0].value, None, cause, reason, remedy, tuple(tensors)
    )


def _counted(deviations: Sequence[Deviation], one: str, several: str) -> str:
    """Write ``1 tensor trains`` or ``4 tensors train``, with these verbs."""
    verb = one if len(deviations) == 1 else several
    return f"{plural(len(deviations), 'tensor')} {verb}"


def _in_words(deviations: Sequence[Deviation], what: str) -> str:
    """Say what tensors have and what is planned, in one part per kind, of ``_SHOWN`` kinds.

    Tensors with the same name in several blocks and the same plan are one kind.
    """
    kinds: dict[tuple[str, str], list[Deviation]] = {}
    for deviation in deviations:
        kind = (numberless(deviation.tensor), f"{deviation.planned:.1g}")
        kinds.setdefault(kind, []).append(deviation)
    texts = []
    for (name, _), alike in kinds.items():
        first = alike[0]
        subject = first.tensor
        if len(alike) > 1:
            subject = f"{name} ({len(alike)} tensors)"
        texts.append(f"{subject} has {what} {first.value:.4g} instead of {first.planned:.4g}")
    shown = "; ".join(texts[:_SHOWN])
    if len(texts) > _SHOWN:
        shown += f" and {len(texts) - _SHOWN} more"
    return shown


def init_check(
    plan: Plan, starts: Mapping[str, Tensor], infos: Mapping[str, TensorInfo]
) -> list[Alert]:
    """Compare initial weights with the plan: one alert of all tensors that differ, or none.

    The RMS of a tensor of N random numbers has a relative error of ``1 / sqrt(2 N)``. The planned
    standard deviation has such an error too, as it comes from the RMS of the N' numbers of this
    tensor in the base. A tensor differs where

        |log(std / planned)| > max(1/4, 4 sqrt(1/(2 N) + 1/(2 N')))

    ``starts`` lacks the matrices that the plan drew with a known seed, which need no comparison.
    """
    if not rule_named(plan.rule).scales_width:
        return []
    distances = dict[Deviation, float]()
    for name, start in starts.items():
        info = infos[name]
        entry = plan.entries[name]
        planned = plan.std(name)
        if entry.start.kept or planned == 0 or not info.parameter.requires_grad:
            continue
        values = info.drawn(start)
        # N / N', so that the bound below is that of the docstring.
        size_ratio = max(entry.ratios.fan_in * entry.ratios.fan_out, 1 / values.numel())
        std = rms(values.double())
        distance = math.inf
        if std > 0:
            distance = abs(math.log(std / planned))
        chance = _STANDARD_ERRORS * math.sqrt((1 + size_ratio) / (2 * values.numel()))
        if distance > max(_LEAST_DISTANCE, chance):
            distances[Deviation(name, std, planned)] = distance
    if not distances:
        return []
    tensors = sorted(distances, key=lambda other: (-distances[other], other.tensor))
    reason = (
        f"{_counted(tensors, 'was', 'were')} not initialised as planned: "
        f"{_in_words(tensors, 'standard deviation')}"
    )
    return [_off_plan(Cause.START, "std", tensors, reason, 0)]


# The file of PyTorch whose functions go through hooks.
_OPTIMIZERS = register_optimizer_step_post_hook.__code__.co_filename
# Hooks of watches that are gone, which an optimizer was calling then.
_left_hooks = list[RemovableHandle]()


def _remove_hook(handle: RemovableHandle) -> None:
    """Remove a hook of an optimizer.

    A watch may be collected at any moment. Where that is while an optimizer goes through its hooks,
    these must stay: the next call removes them.
    """
    _left_hooks.append(handle)
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == _OPTIMIZERS:
            return
        frame = frame.f_back
    while _left_hooks:
        _left_hooks.pop().remove()


class RateCheck:
    """Compares the learning rates of a model with its plan, at the first step that has any.

    PyTorch calls a hook after every step of every optimizer, so that the optimizers of a model show
    themselves at their first step, wrapped or not. With ``scale`` the learning rate of a tensor by
    the plan, as a multiple of the tuned one, every ``rate / scale`` is the tuned rate times the
    factor of the schedule, the same for all tensors. A tensor with another ``rate / scale`` than
    the median tensor has another rate than planned. Where all tensors have one rate, it is taken
    for the tuned one. Where rates are planned, weight decay times rate is to be the same for all
    tensors that decay.
    """

    def __init__(self, plan: Plan, model: nn.Module, *, is_planned: bool = True) -> None:
        self.plan = plan
        # Where the user has no plan, optimizers are found, but learning rates are not judged.
        self.is_planned = is_planned
        self.model = model
        self.tuned = math.nan
        # The step at which that was read
        self.step = 1
        # Whether some tensor decays; taken to be so until the optimizer is seen
        self.decays = True
        # Optimizers that step the model, once they are known
        self._optimizers: list[ref[torch.optim.Optimizer]] = []
        self._seen = seen = list[torch.optim.Optimizer]()
        # The rate at the latest look, of the first of them
        self.latest = latest = LatestRate()
        self._noted = noted = dict[int, Rate]()

        # The hook must not keep the watch alive.
        def note(optimizer: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
            if all(optimizer is not earlier for earlier in seen):
                seen.append(optimizer)
            if latest.is_due:
                noted[id(optimizer)] = rate_of(optimizer)

        self._remove = finalize(self, _remove_hook, register_optimizer_step_post_hook(note))

    def _follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimizer note its rate at every look, from the step it was first seen at."""
        latest = self.latest
        latest.rate = self._noted.get(id(optimizer))
        self._noted.clear()

        # This hook must not keep the watch alive, either.
        def note(stepped: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
            latest.note(stepped)

        finalize(self, _remove_hook, optimizer.register_step_post_hook(note))

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that were seen to step the model."""
        optimizers = [reference() for reference in self._optimizers]
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def verified(self) -> Verified:
        """Compare the present learning rates with the plan's once more.

        Optimizers that were not seen are not verified.
        """
        stepped = self._stepped(self.optimizers)
        scales = self._scales()
        rates = {name: rate for name, (rate, _, _) in stepped.items()}
        laws = {name: self.plan.law_for(name) for name in rates}
        is_planned = (
            bool(rates)
            and rates.keys() == scales.keys()
            and not _deviations_by_law(rates, laws, scales)
        )
        return Verified(is_planned, self.tuned, self.decays, self.step)

    def _scales(self) -> dict[str, float]:
        """The learning rate of every tensor by the plan, as a multiple of the tuned one."""
        names = self._names()
        scales = {}
        for group in self.plan.param_groups(self.model, lr=1.0):
            for p in group["params"]:
                if id(p) in names:
                    scales[names[id(p)]] = float(group[SCALE])
        return scales

    def _names(self) -> dict[int, str]:
        """The names of the plan's tensors, by the identity of their parameters."""
        held = held_as_planned(self.model, self.plan.entries)
        return {id(of_tensor.parameters[0]): name for name, of_tensor in held.items()}

    def _stepped(
        self, optimizers: Sequence[torch.optim.Optimizer]
    ) -> dict[str, tuple[float, float, torch.optim.Optimizer]]:
        """The learning rate, the weight decay and the optimizer of every tensor that trains."""
        names = self._names()
        stepped: dict[str, tuple[float, float, torch.optim.Optimizer]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                rate = float(group.get("lr") or 0.0)
                decay = float(group.get("weight_decay") or 0.0)
                for p in group["params"]:
                    name = names.get(id(p))
                    if rate and p.requires_grad and name is not None and name not in stepped:
                        stepped[name] = rate, decay, optimizer
        return stepped

    def alerts(self, step: int) -> list[Alert]:
        """Judge the optimizer and the learning rates of the first step with a rate above 0."""
        if not self._remove.alive:
            return []
        plan = self.plan
        scales = self._scales()
        rates = dict[str, float]()
        decays = dict[str, float]()
        steppers = dict[str, torch.optim.Optimizer]()
        for name, (rate, decay, optimizer) in self._stepped(self._seen).items():
            if name in scales:
                rates[name] = rate
                decays[name] = decay
                steppers[name] = optimizer
        if not rates:
            return []
        self._remove()
        self._seen.clear()
        self._optimizers = [ref(optimizer) for optimizer in dict.fromkeys(steppers.values())]
        self._follow(next(iter(steppers.values())))
        self.decays = any(decays.values())
        # In the order of the plan, in which messages name tensors.
        rates = {name: rates[name] for name in plan.entries if name in rates}
        laws = {name: plan.law_for(name) for name in rates}
        self.tuned = median_low(rates[name] / scales[name] for name in rates)
        self.step = step
        if not self.is_planned:
            return []
        if rule_named(plan.rule).scales_width:
            names = [name for name in rates if not _is_stepped_by(laws[name], steppers[name])]
            if names:
                return [_wrong_optimizer(names, rates, laws, steppers, step)]
        wrong = _deviations_by_law(rates, laws, scales)
        if wrong:
            return [_wrong_rates(wrong, steppers, step)]
        # Later steps may lose the ratios, as by a scheduler. The alert above is about ratios that
        # are lost already.
        for stepping in steppers.values():
            if _is_made_from_plan(stepping):
                warn_of_lost_ratios(stepping)
        return self._decays(decays, laws, scales, step)

    def _decays(
        self,
        decays: Mapping[str, float],
        laws: Mapping[str, OptimizerLaw],
        scales: Mapping[str, float],
        step: int,
    ) -> list[Alert]:
        """Alert to decays that do not rise as learning rates fall, or that pull gains to zero."""
        decaying = {name: decay for name, decay in decays.items() if decay}
        inverse_scales = {name: 1 / scales[name] for name in decaying}
        wrong = _deviations_by_law(decaying, laws, inverse_scales)
        if wrong:
            reason = (
                f"{_counted(wrong, 'decays', 'decay')} otherwise than planned: "
                f"{_in_words(wrong, 'weight decay')}"
            )
            return [_off_plan(Cause.OPTIMIZER, "weight decay", wrong, reason, step)]
        gains = decayed_gains(self.plan, decays)
        if not gains:
            return []
        reason = f"weight decay pulls gains to 0 while other vectors are spared: {quoted(gains)}"
        tensors = [Deviation(name, decays[name], 0.0) for name in gains]
        return [_off_plan(Cause.OPTIMIZER, "weight decay", tensors, reason, step)]


def _wrong_optimizer(
    names: Sequence[str],
    rates: Mapping[str, float],
    laws: Mapping[str, OptimizerLaw],
    steppers: Mapping[str, torch.optim.Optimizer],
    step: int,
) -> Alert:
    """Alert to tensors that an optimizer of another law steps."""
    actual = type(steppers[names[0]]).__name__
    planned = laws[names[0]].name
    reason = f"the plan is for {planned}, the optimizer is {actual}: it steps {quoted(names)}"
    tensors = [Deviation(name, rates[name], 0.0) for name in names]
    return _off_plan(Cause.OPTIMIZER, "rate", tensors, reason, step)


def _wrong_rates(
    wrong: Sequence[Deviation], steppers: Mapping[str, torch.optim.Optimizer], step: int
) -> Alert:
    """Alert to tensors with the wrong learning rate, the furthest from the plan first."""

    def order(tensor: Deviation) -> tuple[float, str]:
        return (-abs(math.log(tensor.value / tensor.planned)), tensor.tensor)

    tensors = sorted(wrong, key=order)
    counted = _counted(tensors, "trains", "train")
    reason = f"{counted} at the wrong learning rate: {_in_words(tensors, 'rate')}"
    optimizer = steppers[tensors[0].tensor]
    if _is_made_from_plan(optimizer):
        alert = _off_plan(Cause.RATE, "rate", tensors, reason, step)
        return replace(alert, remedy=f"{alert.remedy} {remedy_of(optimizer.param_groups)}")
    reason = f"{type(optimizer).__name__} was not made from the plan: {reason}"
    return _off_plan(Cause.OPTIMIZER, "rate", tensors, reason, step)


def _is_made_from_plan(optimizer: torch.optim.Optimizer) -> bool:
    return all(SCALE in group for group in optimizer.param_groups)


def _deviations_by_law(
    values: Mapping[str, float], laws: Mapping[str, OptimizerLaw], scales: Mapping[str, float]
) -> list[Deviation]:
    """Find tensors whose number is not the tuned number times the plan's factor in ``scales``.

    The tuned number is the median over the tensors of one optimizer law: under Muon, the tensors
    that AdamW steps have another one.
    """
    deviations = list[Deviation]()
    for law in dict.fromkeys(laws[name] for name in values):
        of_law = {name: value for name, value in values.items() if laws[name] == law}
        tuned = median_low([value / scales[name] for name, value in of_law.items()])
        deviating = _deviations(of_law, scales, tuned)
        different = set(of_law.values())
        if deviating and len(different) == 1:
            # Where all tensors have one rate, it is taken for the tuned one.
            deviating = _deviations(of_law, scales, different.pop())
        deviations += deviating
    return deviations


def _is_stepped_by(planned: OptimizerLaw, optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer has the planned law, as far as its class shows."""
    law = law_by_class(optimizer)
    if law is None:
        return True
    # An optimizer such as Muon steps some tensors by its own law, and others by that of ``rest``.
    possible = (law, law_of(law.rest or law))
    # Laws that agree in these give the same learning rates.
    decisive = attrgetter("degree", "unit", "shape_norm")
    return decisive(planned) in [decisive(law) for law in possible]


def _deviations(
    rates: Mapping[str, float], scales: Mapping[str, float], tuned: float
) -> list[Deviation]:
    """Find tensors whose learning rate is not ``tuned`` times their scale."""
    deviations = []
    for name, rate in rates.items():
        planned = tuned * scales[name]
        if not math.isclose(rate, planned, rel_tol=ALIKE):
            deviations.append(Deviation(name, rate, planned))
    return deviations


# ---- The argument ``expected=`` of a watch: the check whose networks give the bands


def ladder_of(expected: Check | str | Path) -> Ladder:
    """Read the ladder of a check, or of the file or folder where one was stored.

    Raises:
        ValueError: for a file that holds no ladder.
    """
    if not isinstance(expected, Check | str | Path):
        kinds = "an nfd.Check, or the path where one was stored"
        raise InputTypeError(f"expected must be {kinds}; got {type(expected).__name__}.")
    if isinstance(expected, Check):
        return Ladder.of(expected.ladder)
    path = expanded(expected)
    try:
        if path.is_dir():
            path = path / _FILE
        stored = json.loads(path.read_text(encoding="utf-8"))["ladder"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"expected={str(expected)!r} holds no check ({type(error).__name__}: {error}). Give a "
            "Check, a file of Check.save, or the folder of nfd check."
        ) from None
    return Ladder.of(stored)


def expectation(
    expected: Check | str | Path | Alarm, plan: Plan, layers: Mapping[str, str]
) -> Alarm:
    """Find what judges the rows of a model with this plan.

    Args:
        layers: the names of its layers, by the names of their matrices.

    Raises:
        ValueError: for a file that holds no check, a check under another rule or optimizer than the
            plan's, from another base, of other layers, or one that cannot predict this size
            (``nfd.watch.bands.Bands``).
    """
    if isinstance(expected, Alarm):
        return expected
    ladder = ladder_of(expected)
    rule = rule_named(plan.rule)
    _check_same_settings(ladder, plan)
    width, depth = ladder.base
    base = plan.base or ladder.base
    if (rule.scales_width and width != base[0]) or (rule.scales_depth and depth != base[1]):
        raise InputError(
            f"expected counts from {width:g} x {depth:g}, the plan from {base[0]:g} x {base[1]:g} "
            "(width x depth of the base), so that one lr means other rates. Check with the base of "
            "the plan as the smallest size."
        )
    size = plan.width * base[0], plan.depth * base[1]
    # A plan whose rule does not scale width does not say how much larger the model is: the shapes
    # of its tensors do.
    if not rule.scales_width:
        size = ladder.size_of({name: entry.shape for name, entry in plan.entries.items()})
    bands = Bands(ladder, *size, [*map(len, plan.stacks.values())])
    _check_same_layers(ladder, plan, layers)
    return Alarm(bands)


def _check_same_settings(ladder: Ladder, plan: Plan) -> None:
    """Raise ValueError where a check has another rule or optimizer than the plan."""
    settings = (
        ("rule", ladder.rule, plan.rule),
        ("optimizer", ladder.optimizer, plan.optimizer),
    )
    for setting, checked, planned in settings:
        if checked != planned:
            raise InputError(
                f"expected has {setting}={checked!r}; the plan has {planned!r}. Check with the "
                "plan's."
            )


def _check_same_layers(ladder: Ladder, plan: Plan, layers: Mapping[str, str]) -> None:
    """Raise ValueError where the networks of a check have other layers than the model.

    Where no name is in both, as where the model is wrapped, names are not comparable.
    """
    of_model = {numberless(layer) for layer in layers.values()}
    # Layers whose initial weights are constant may be absent from the check.
    drawn = {numberless(layer) for matrix, layer in layers.items() if plan.std(matrix) > 0}
    layers_of_runs = [run.layers for run in ladder.runs]
    of_any_run = set.union(*layers_of_runs)
    of_all_runs = set.intersection(*layers_of_runs)
    if not of_model & of_any_run:
        return
    parts = (
        ("its networks alone have", of_all_runs - of_model),
        ("the model alone has", drawn - of_any_run),
    )
    texts = [f"{owner} {quoted(sorted(names))}" for owner, names in parts if names]
    if texts:
        raise InputError(
            f"expected is a check of networks with other layers: {', and '.join(texts)}. Check "
            "networks of the model's own kind, with the same options."
        )
