"""What deviates in a training, as alerts that name layer, cause and remedy.

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

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from statistics import median_low
from typing import Any, NamedTuple, Protocol
from weakref import WeakMethod, finalize

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from nfd.core.errors import InputError, check_callable
from nfd.core.files import expanded
from nfd.core.statistics import rms
from nfd.meters.check import Check
from nfd.scaling.model import TensorInfo, block_of, listed, numberless, stacks_of, whole
from nfd.scaling.optimizers import ALIKE, REMEDY, SCALE, OptimizerLaw, by_law, law_of, warn_of_lost_ratios
from nfd.scaling.plan import Plan, held_as_planned, start_of
from nfd.scaling.rules import INPUT_LIKE, rule_named
from nfd.watch.bands import CHANGE, Band, Bands, Expected, Ladder, WatchRow, kinds_of, series_of

# ---- Alerts: which layer left its band, since when, the likely cause and the remedy


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


# ---- ``expected=`` of a watch: a check, where it was stored, or anything that judges rows


_FILE = "result.json"  # of nfd check, in its folder


def expectation(expected: Check | Expected | str | Path, plan: Plan, layers: Mapping[str, str]) -> Expected:
    """What judges the rows of a model with this plan.

    Args:
        plan: of the model.
        layers: the names of its layers by those of their matrices.
        expected: a check; a file of ``Check.save``, or the folder of ``nfd check`` or its ``result.json``; or what has
            ``alerts(rows)``.

    Raises:
        ValueError: for a file that holds no check, a check under another rule or optimizer than the plan's, from
            another base, of other layers, or one that cannot tell of this size (``nfd.watch.bands.Bands``).
    """
    if not isinstance(expected, Check | str | Path):
        check_callable("expected.alerts", getattr(expected, "alerts", None), "a function of rows")
        return expected
    ladder = Ladder.of(expected.ladder if isinstance(expected, Check) else _stored(expanded(expected)))
    for setting, own, planned in (
        ("rule", ladder.rule, plan.rule),
        ("optimizer", ladder.optimizer, plan.optimizer),
    ):
        if own != planned:
            raise InputError(
                f"expected was checked with {setting}={own!r}; the plan has {setting}={planned!r}. Check with the "
                "plan's."
            )
    base = plan.base or ladder.base
    _check_base(ladder, plan, base)
    bands = Bands(ladder, plan.width * base[0], plan.depth * base[1], [*map(len, stacks_of(plan.blocks).values())])
    _check_layers(ladder, plan, layers)
    return Alarm(bands)


def _check_base(ladder: Ladder, plan: Plan, base: tuple[float, float]) -> None:
    """ValueError where the ladder's networks have another base than the plan, in a size that the rule scales with."""
    rule, (width, depth) = rule_named(plan.rule), ladder.base
    if (rule.scales_width and width != base[0]) or (rule.scales_depth and depth != base[1]):
        raise InputError(
            f"expected counts from {width:g} x {depth:g}, the plan from {base[0]:g} x {base[1]:g} (width x depth of "
            "the base), so that one lr means other rates. Check with the base of the plan as the smallest width and "
            "depth, or plan with that of the check."
        )


def _check_layers(ladder: Ladder, plan: Plan, layers: Mapping[str, str]) -> None:
    """ValueError where the ladder's networks and the model have different layers, as with a tied and an untied head.
    Names that have nothing in common, as those of a wrapped model, tell nothing."""
    own = {numberless(layer) for layer in layers.values()}
    drawn = {numberless(layer) for matrix, layer in layers.items() if plan.std(matrix) > 0}
    kinds = [run.layers for run in ladder.runs]
    known = set[str]().union(*kinds)
    lacking, more = known.intersection(*kinds) - own, drawn - known
    if (lacking or more) and own & known:
        parts = (("its networks alone have", lacking), ("the model alone has", more))
        texts = [f"{owner} {listed(sorted(names))}" for owner, names in parts if names]
        raise InputError(
            f"expected is a check of networks with other layers: {', and '.join(texts)}. Check networks of the "
            "model's own kind, with the same options."
        )


def _stored(path: Path) -> object:
    file = path / _FILE if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))["ladder"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"expected={str(path)!r} holds no check ({type(error).__name__}: {error}). Give a Check, a file of "
            "Check.save, or the folder of nfd check."
        ) from None


# ---- Tensors that deviate from their plan, in words, and what follows from them


_SHOWN = 4  # kinds of tensors, by name
_LITTLE = 0.25  # of a planned number: tensors of several blocks differ by less


class Deviation(Protocol):
    """A tensor that deviates from its plan. As text: what it has and what was planned."""

    @property
    def tensor(self) -> str:
        """Its name."""

    @property
    def planned(self) -> float:
        """The number that the plan has for it."""

    @property
    def change(self) -> float:
        """By which factor its ``change`` is off; 0 where it is off by any."""


def counted(deviations: Sequence[Deviation]) -> str:
    """How many tensors these are."""
    return f"{len(deviations)} tensors" if len(deviations) > 1 else "a tensor"


def in_words(deviations: Sequence[Deviation]) -> str:
    """The first tensors with what they have; those that correspond in several blocks together."""
    kinds: list[list[Deviation]] = []
    for deviation in deviations:
        alike = next((kind for kind in kinds if _are_alike(kind[0], deviation)), None)
        if alike is None:
            kinds.append([deviation])
        else:
            alike.append(deviation)
    texts = [_text(kind) for kind in kinds]
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{'; '.join(texts[:_SHOWN])}{more}"


def _are_alike(one: Deviation, other: Deviation) -> bool:
    """Whether two tensors correspond in two blocks, and the plan has about the same number for them."""
    same_name = numberless(one.tensor) == numberless(other.tensor)
    return same_name and math.isclose(one.planned, other.planned, rel_tol=_LITTLE)


def _text(alike: Sequence[Deviation]) -> str:
    first = alike[0]
    several = f"{numberless(first.tensor)} ({len(alike)} tensors)"
    return f"{several if len(alike) > 1 else first.tensor} {first}"


@dataclass(frozen=True)
class Consequences:
    """What follows from tensors that deviate.

    Attributes:
        plan: of the model.
        deviations: those tensors.
        of: how many matrices were compared.
    """

    plan: Plan
    deviations: Sequence[Deviation]
    of: int

    def explain(self, alert: Any) -> bool:
        """Whether an alert follows from these tensors; False for those of somebody else's ``expected``."""
        if not self.deviations or not isinstance(alert, Alert):
            return False
        own = [deviation for deviation in self.deviations if alert.layer and _is_of(deviation.tensor, alert.layer)]
        match alert.cause:
            case Cause.UNKNOWN:
                return True
            case Cause.MULTIPLIER:
                return any(self._is_before(deviation.tensor, alert.layer) for deviation in self.deviations)
            case Cause.FROZEN:
                return any(alert.band and alert.value > STANDS * alert.band.value * of.change for of in own)
            case Cause.RATE | Cause.START | Cause.LATE_RATE:
                return bool(own) or self._changes_all_updates
            case Cause.ALL_RATES | Cause.SCHEDULE:
                return self._is_of_most or self._changes_all_updates
            case Cause.DECAY:
                return self._is_of_most
            case Cause.BROKEN | Cause.OPTIMIZER:
                return False

    @property
    def _is_of_most(self) -> bool:
        matrices = [of.tensor for of in self.deviations if not self.plan.entries[of.tensor].is_vector]
        return 2 * len(matrices) > self.of

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


def _is_of(tensor: str, layer: str) -> bool:
    """Whether ``layer`` is the name of a tensor or of the module that has it."""
    return layer in (tensor, tensor.rpartition(".")[0])


# ---- Tensors as they were before training: drawn again from the streams of their plan, or kept where that fails


class Starts(Mapping[str, Tensor]):
    """The starts of tensors by name, on their device and in their type.

    A tensor that ``plan.apply_(model, seed)`` drew is not stored: its stream gives it again, bit for bit. Others, such
    as those that a rule leaves as the model begins them or that were loaded, are copied to the CPU.

    Args:
        plan: of the model.
        seed: that of ``plan.apply_``.
        infos: the tensors, before training.
    """

    def __init__(self, plan: Plan, seed: int, infos: Mapping[str, TensorInfo]) -> None:
        self.plan, self.seed, self.infos = plan, seed, infos
        self.kept = {
            name: whole(t.parameter.detach()).to("cpu", copy=True) for name, t in infos.items() if not self._is_drawn(t)
        }

    def __getitem__(self, name: str) -> Tensor:
        parameter = self.infos[name].parameter
        start = self.kept.get(name)
        if start is None:
            start = start_of(self.plan, self.infos[name], self.seed)
        assert start is not None
        return start.to(parameter.device, parameter.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def _is_drawn(self, t: TensorInfo) -> bool:
        start = start_of(self.plan, t, self.seed)
        now = whole(t.parameter.detach())
        return start is not None and torch.equal(start.to(now), now)


# ---- How a training began: initial weights against those of the plan


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


# ---- The rates by which a model is stepped, compared with those of its plan


@dataclass(frozen=True)
class OtherRate:
    """A tensor whose rate differs from the plan: the rate, and the planned one.

    ``planned`` is 0 where another kind of optimizer steps it, at whose rates no number of the plan can be compared.
    """

    tensor: str
    rate: float
    planned: float

    @property
    def change(self) -> float:
        """The rate over the planned one; 0 where nothing is known."""
        return self.rate / self.planned if self.planned else 0.0

    def __str__(self) -> str:
        return f"has rate {self.rate:.4g}, planned {self.planned:.4g}"


@dataclass(frozen=True)
class RateAlert(Alert):
    """Tensors whose rates differ from the plan, or which another kind of optimizer steps, all in one alert.

    Attributes:
        tensors: the one with the largest deviation first; ``layer`` and ``value`` are those of the first.
        of: how many matrices were compared.
        optimizer: the class of the optimizer.
        kind, planned_kind: its law and that of the plan, by their names.
    """

    tensors: tuple[OtherRate, ...] = ()
    of: int = 0
    optimizer: str = ""
    kind: str = ""
    planned_kind: str = ""

    @property
    def names(self) -> list[str]:
        """Those of the tensors."""
        return [other.tensor for other in self.tensors]

    @property
    def remedy(self) -> str:
        """What to do."""
        if self.cause is not Cause.OPTIMIZER:
            return REMEDY
        return super().remedy if self.kind == self.planned_kind else f"{super().remedy} Or plan for {self.kind!r}."

    def __str__(self) -> str:
        if self.kind != self.planned_kind:
            reason = f"the plan is for {self.planned_kind}; the optimizer of {listed(self.names)} is {self.optimizer}"
        else:
            lacks = "does not have the groups of the plan and " if self.cause is Cause.OPTIMIZER else ""
            others = f"steps {counted(self.tensors)} at another rate than planned: {in_words(self.tensors)}"
            reason = f"the {self.optimizer} {lacks}{others}"
        return f"step {self.step}: {reason}. {self.remedy}"


class Stepping:
    """How a training is stepped, against its plan.

    Args:
        plan: of the model.
        model: before its first step.

    Attributes:
        alerts: those of optimizers of another kind than the plan's; where there are none, one for all other rates.
    """

    def __init__(self, plan: Plan, model: nn.Module) -> None:
        self.plan, self.model = plan, model
        self.alerts: list[RateAlert] = []
        self._seen = _Optimizers(model)

    def judged(self, step: int) -> list[RateAlert]:
        """The alerts of the first step whose rates are above 0; none at other steps."""
        optimizers = self._seen.optimizers
        tensors = _stepped(self.plan, self.model, optimizers) if optimizers else {}
        if not tensors:
            return []
        self._seen.close()
        for optimizer in optimizers:
            if _has_groups(optimizer):
                warn_of_lost_ratios(optimizer)
        alerts = _of_other_kinds(self.plan, tensors, step) or _of_other_rates(self.plan, tensors, step)
        raised = [alert for alert in alerts if alert.names not in [earlier.names for earlier in self.alerts]]
        self.alerts += raised
        return raised

    def explains(self, alert: Any) -> bool:
        """Whether an alert follows from these rates."""
        return any(Consequences(self.plan, own.tensors, own.of).explain(alert) for own in self.alerts)

    def state(self) -> list[dict[str, Any]]:
        """For a checkpoint, as plain data."""
        return [asdict(alert) | {"cause": alert.cause.value} for alert in self.alerts]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Know the alerts of the training that a checkpoint is of. Its next step is judged again."""
        self.alerts = [
            RateAlert(
                **dict(stored)
                | {"cause": Cause(stored["cause"]), "tensors": tuple(OtherRate(**other) for other in stored["tensors"])}
            )
            for stored in state
        ]


class _Optimizers:
    """The optimizers that step parameters of a model, from now on until this is closed or gone."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizers: list[torch.optim.Optimizer] = []
        note = WeakMethod(self._note)  # the hook keeps nothing alive

        def hook(optimizer: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
            if (alive := note()) is not None:
                alive(optimizer)

        self._remove = finalize(self, register_optimizer_step_post_hook(hook).remove)

    def close(self) -> None:
        """See no further steps."""
        self._remove()
        self.optimizers = []

    def _note(self, optimizer: torch.optim.Optimizer) -> None:
        own = {id(p) for p in self.model.parameters()}
        is_new = all(optimizer is not known for known in self.optimizers)
        if is_new and any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
            self.optimizers.append(optimizer)


class _Stepped(NamedTuple):
    """A tensor with its rate, the rate that the plan gives it as a multiple of the tuned one, and its optimizer.

    ``law`` is that of the optimizer, None where it is unknown; ``planned`` that of the plan.
    """

    name: str
    rate: float
    scale: float
    optimizer: torch.optim.Optimizer
    law: OptimizerLaw | None
    planned: OptimizerLaw

    def alert(self, step: int, cause: Cause, others: Sequence[OtherRate], of: int) -> RateAlert:
        """One of several tensors, at the first of them."""
        first, kind = others[0], (self.law or self.planned).name
        layer = first.tensor.rpartition(".")[0] or first.tensor
        made = type(self.optimizer).__name__, kind, self.planned.name
        return RateAlert(step, step, "rate", layer, first.rate, None, cause, tuple(others), of, *made)


def _stepped(plan: Plan, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, _Stepped]:
    """The tensors whose rates are above 0, by name."""
    names = {id(held.parameters[0]): name for name, held in held_as_planned(model, plan.entries).items()}
    scales = {id(p): float(group[SCALE]) for group in plan.param_groups(model, lr=1.0) for p in group["params"]}
    tensors: dict[str, _Stepped] = {}
    for optimizer in optimizers:
        for law, groups in _laws(optimizer):
            for group in groups:
                rate = float(group.get("lr") or 0.0)
                for key in [id(p) for p in group["params"] if rate and id(p) in scales]:
                    name = names[key]
                    tensors.setdefault(name, _Stepped(name, rate, scales[key], optimizer, law, plan.law_for(name)))
    return tensors


def _laws(optimizer: torch.optim.Optimizer) -> Sequence[tuple[OptimizerLaw | None, list[dict[str, Any]]]]:
    """The groups of an optimizer by what steps them."""
    try:
        return by_law(law_of(optimizer), optimizer.param_groups)
    except InputError:
        return [(None, optimizer.param_groups)]


def _has_groups(optimizer: torch.optim.Optimizer) -> bool:
    return all(SCALE in group for group in optimizer.param_groups)


def _of_other_kinds(plan: Plan, tensors: Mapping[str, _Stepped], step: int) -> list[RateAlert]:
    """An alert for every kind of optimizer that the plan has other rates for."""
    kinds: dict[tuple[str, str], list[_Stepped]] = {}
    for tensor in tensors.values() if rule_named(plan.rule).scales_width else ():
        if tensor.law is not None and _rates_of(tensor.law) != _rates_of(tensor.planned):
            kinds.setdefault((tensor.law.name, tensor.planned.name), []).append(tensor)
    matrices = _matrices(plan, tensors)
    return [
        own[0].alert(step, Cause.OPTIMIZER, [OtherRate(tensor.name, tensor.rate, 0.0) for tensor in own], matrices)
        for own in kinds.values()
    ]


def _matrices(plan: Plan, names: Iterable[str]) -> int:
    """How many of these tensors are matrices."""
    return sum(not plan.entries[name].is_vector for name in names)


def _rates_of(law: OptimizerLaw) -> tuple[Any, ...]:
    """What rates follow from: laws with the same have the same rates."""
    return law.degree, law.unit, law.shape_norm


def _of_other_rates(plan: Plan, tensors: Mapping[str, _Stepped], step: int) -> list[RateAlert]:
    """One alert for all tensors that have another rate than planned."""
    others = [other for law in {t.planned.name for t in tensors.values()} for other in _other_rates(tensors, law)]
    if not others:
        return []
    others.sort(key=lambda other: (-abs(math.log(other.change)), other.tensor))
    first = tensors[others[0].tensor]
    cause = Cause.RATE if _has_groups(first.optimizer) else Cause.OPTIMIZER
    return [first._replace(law=None).alert(step, cause, others, _matrices(plan, tensors))]


def _other_rates(tensors: Mapping[str, _Stepped], law: str) -> list[OtherRate]:
    """Of the tensors that the plan steps by one law, which have one tuned rate."""
    own = [tensor for tensor in tensors.values() if tensor.planned.name == law]
    tuned = median_low([tensor.rate / tensor.scale for tensor in own])
    if all(_alike(tensor.rate, tuned * tensor.scale) for tensor in own):
        return []
    if all(_alike(tensor.rate, own[0].rate) for tensor in own):
        tuned = own[0].rate
    planned = {tensor.name: tuned * tensor.scale for tensor in own}
    return [OtherRate(t.name, t.rate, planned[t.name]) for t in own if not _alike(t.rate, planned[t.name])]


def _alike(rate: float, planned: float) -> bool:
    return math.isclose(rate, planned, rel_tol=ALIKE)
