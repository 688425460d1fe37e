"""Signs of training that goes wrong, which need no plan and no other network.

With ``z`` the input of a layer on the sample, of features in which every row is a position:

- **broken**: a number, or a loss, is not finite.
- **exploding**: the RMS of ``z``, of the stream after a block or of the outputs is ``_EXPLODED``
  times what it was before training, or 1 if that is larger, and ``_RISE`` times what it was two
  looks before. Streams of sound networks become large slowly.
- **dead**: of the features of ``z`` that varied over the sample before training less than
  ``_LIVING`` still vary, at two looks; or ``z`` was and is zero. A share of dead ReLUs is normal,
  and so is what never varied.
- **frozen**: a matrix that requires gradients, and on which the outputs depend, was the same at two
  looks while other matrices changed; or none has changed since the start.
- **stopped**: a matrix that trained is the same, bit for bit, as at the look before, while others
  changed. At once where it no longer requires gradients; at two looks where it has a gradient and
  its learning rate has not fallen; at ``_WITHOUT_GRADIENT`` looks where it has none, as an expert
  without tokens.
- **jump**: between two looks, the norm of a matrix changed ``_JUMPED`` times, and its logarithm
  ``_BEYOND_USUAL`` times as much as in any of three intervals before, in which the matrix trained;
  and a look later it does not go on in this direction. No optimizer does this to one matrix.
- **rise**: see ``nfd.watch.schedules.Rises``.
- **rounding**: the weights have 16 bits, and a step left more than ``_LOST`` of the entries that
  had a gradient as they were, at two looks, at a learning rate that is not the end of a schedule.
  Steps of PyTorch's optimizers below half of the distance of two numbers are lost; other optimizers
  may keep what rounding takes.
- **spike**: ``_LASTS`` losses in a row lie above the median of the last ``_WINDOW`` by ``_NOISES``
  robust standard deviations, by half again as much as the largest of these, and by a tenth of the
  progress so far.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from nfd.core.estimates import rms
from nfd.core.words import number
from nfd.families.member import Member
from nfd.meters.meter import quantity_in_words
from nfd.meters.reading import WatchRow
from nfd.meters.updates import Baseline, Calls, Pass, copies, layers_of, quiet
from nfd.scaling.model import TensorInfo, modules, tensors, whole
from nfd.scaling.samples import outputs_of
from nfd.watch.alerts import WORDS, Alert, Cause
from nfd.watch.bands import CHANGE
from nfd.watch.schedules import Rate, Rises

_EXPLODED = 100.0
_RISE = 4.0
_LIVING = 0.05
# Features that differ by less than this share of the RMS of the input are rounding.
_LEAST_SPREAD = 1e-6
# AdamW at a learning rate of 0.01 loses 54 % in an embedding whose entries are about 1, which
# trains; at 1e-5 and entries of 0.02 it loses 99 %.
_LOST = 0.8
# The share of the largest learning rate so far, above which a schedule has not ended
_FULL_RATE = 0.1
# How many looks
_TWICE = 2
# The meter of the norm of a matrix over its initial norm
WEIGHT = "weight"
# How many bytes a number of 16 bits has
_BYTES = 2
# What is initialised to zero gets no gradient at the first step, and schedules may begin there.
_LEAST_STEPS = 4
_WINDOW = 50
_LEAST_LOSSES = 20
_LASTS = 3
_NOISES = 8.0
_BEYOND_LARGEST = 1.5
_OF_PROGRESS = 0.1
_WITHOUT_GRADIENT = 4
_JUMPED = 3.0
_BEYOND_USUAL = 4.0
# How many intervals between looks show what is usual
_USUAL = 3
# What may go on after a jump, as a share of it
_GOES_ON = 0.25
# The least norm over the initial one, whose logarithm is taken
_NEAR_ZERO = 1e-6
# At such a share of its size before, a matrix is said to be near zero.
_SAID_TO_BE_ZERO = 0.2
_LOOK_AT_EACH = "From there, a watch with every=1 names the tensor in which it begins."
# Losses that show whether a training was steady, and how many it takes
_STEADY_WINDOW = 10
_STEADY_LEAST = 5
STEADY_REMEDY = (
    "The loss was steady before, which it is not where the learning rate is too high. Go back to a "
    "checkpoint before this step; look at the batches since then, and at divisions and roots."
)
READING_REMEDY = (
    "Look at what this meter computes. If it is right, what it reads overflows before the weights "
    "do: lower the learning rate."
)
# The least noise of losses, as a share of the loss
_LEAST_NOISE = 0.01
_OUTPUTS = "the outputs"


@dataclass(frozen=True)
class Input:
    """The size of what a layer is applied to, and how many of its features vary over the sample."""

    size: float
    varying: int


@dataclass
class _Sizes:
    """The norm of a matrix over its initial norm, look by look.

    Attributes:
        step, size: of the latest look.
        usual: by how much the logarithm of the size changed in the intervals before.
        jump: of the latest interval, where it may be a jump; 0 otherwise.
        before: the step and the size before that interval.
    """

    step: int = 0
    size: float = 1.0
    usual: list[float] = field(default_factory=list)
    jump: float = 0.0
    before: tuple[int, float] = (0, 1.0)

    def note(self, step: int, size: float) -> str:
        """Note the size at a look; say the jump of the interval before it, or nothing."""
        size = max(size, _NEAR_ZERO)
        change = math.log(size / self.size)
        says = ""
        if self.jump and change * math.copysign(1.0, self.jump) <= _GOES_ON * abs(self.jump):
            says = self._in_words()
        usual = self.usual[-_USUAL:]
        is_usual = len(usual) < _USUAL or not min(usual)
        if is_usual or abs(change) < max(math.log(_JUMPED), _BEYOND_USUAL * max(usual)):
            self.jump = 0.0
        else:
            self.jump = change
            self.before = self.step, self.size
        self.usual = [*usual, abs(change)][-_USUAL:]
        self.step = step
        self.size = size
        return says

    def _in_words(self) -> str:
        """``jumped between steps 70 and 75 (weights near zero)``."""
        step, size = self.before
        ratio = self.size / size
        now = f"weights {number(ratio, 2)} times as large"
        if ratio < _SAID_TO_BE_ZERO:
            now = "weights near zero"
        return f"jumped between steps {step:,} and {self.step:,} ({now})"


class Signs:
    """Judges a training by itself, look by look; a cause is raised once for a layer.

    Args:
        member: the network before training.
        baseline: of it.
    """

    def __init__(self, member: Member, baseline: Baseline) -> None:
        self.member = member
        self.baseline = baseline
        self.layers = layers_of(baseline.matrices)
        self.alerts: list[Alert] = []
        seen, _, self._start = self.read()
        # Before training, and at the two latest looks
        self._sizes: list[dict[str, float]] = [self._sizes_of(seen, self._start)]
        # Matrices of 16 bits before the step that a look follows
        self._before: dict[str, Tensor] = {}
        self._changes: dict[str, float] = {}
        # The same of layers that require no gradients, too
        self._last: dict[str, float] = {}
        # How many looks in a row show a sign
        self._counts: dict[tuple[Cause, str], int] = {}
        self._largest_rate = 0.0
        # By layer: the step of the first look with its present weights, and whether it required
        # gradients when it changed
        self._same_since: dict[str, int] = {}
        self._trained = set[str]()
        # The largest learning rate so far, by layer
        self._rates: dict[str, float] = {}
        self._norms: dict[str, _Sizes] = {}
        self._rises = Rises()

    def rate(self, step: int, rate: Rate) -> list[Alert]:
        """Judge the learning rate of a step, which may be no look."""
        times = self._rises.times(rate)
        if times is None or any(alert.cause is Cause.RISE for alert in self.alerts):
            return []
        alert = _alert(Cause.RISE, step, "rate", None, rate.now)
        reason = f"the learning rate rose {number(times, 2)} times at step {step:,}"
        new = [replace(alert, reason=reason)]
        self.alerts += new
        return new

    # ---- a look

    def prepare(self, *, is_due: bool) -> None:
        """Copy the matrices of 16 bits before a step that a look follows."""
        # The earlier copies are freed before new ones are made.
        self._before = {}
        if is_due:
            infos = tensors(self.member.module)
            small = {
                name: infos[name]
                for name in self.layers
                if infos[name].parameter.dtype.itemsize == _BYTES
            }
            self._before = copies(small)

    def read(self) -> tuple[Pass, Calls, dict[str, Input]]:
        """Pass the sample forward.

        Returns:
            The pass, the calls of its blocks, and what every matrix is applied to in it.
        """
        infos = tensors(self.member.module)
        inputs: dict[str, Input] = {}

        def keep(name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
            if name in inputs or not args:
                return
            z = args[0]
            if isinstance(z, Tensor) and z.is_floating_point():
                inputs[name] = _input_of(infos[name], z.detach())

        parts = modules(self.member.module)
        with ExitStack() as hooks:
            for name in self.layers:
                for owner in self._owners(infos[name], parts):
                    hooks.enter_context(owner.register_forward_pre_hook(partial(keep, name)))
            calls = Calls()
            seen = self.baseline.seen(calls)
        return seen, calls, inputs

    def _owners(self, t: TensorInfo, parts: Mapping[str, nn.Module]) -> set[nn.Module]:
        """The modules that apply a tensor to numbers, of all by name."""
        owners = {parts[full.rpartition(".")[0]] for full in t.names}
        owners.discard(self.member.module)
        embeddings = (nn.Embedding, nn.EmbeddingBag)
        return {owner for owner in owners if not isinstance(owner, embeddings)}

    def look(
        self,
        rows: Sequence[WatchRow],
        seen: Pass,
        inputs: Mapping[str, Input],
        optimizers: Sequence[torch.optim.Optimizer],
        losses: Mapping[int, float],
    ) -> list[Alert]:
        """Judge one look.

        Args:
            losses: of the training so far, by step.
            rows: the rows of the look.
            seen, inputs: what they were read from, as ``read`` returned it.
            optimizers: those that step the model, as far as they are known.

        Returns:
            The alerts of causes that were not raised before.
        """
        step = rows[0].step
        infos = tensors(self.member.module)
        sizes = self._sizes_of(seen, inputs)
        rounded = self._rounded(step, infos, optimizers)
        is_rounded = bool(rounded) or any(alert.cause is Cause.ROUNDING for alert in self.alerts)
        # First what compares this look with the one before, which ``_frozen`` forgets.
        stopped = self._stopped(step, rows, infos, seen, optimizers)
        frozen = self._frozen(step, rows, infos, seen)
        shown = [
            *self._broken(rows, infos, losses),
            *self._jumps(rows),
            *self._exploding(step, sizes),
            *self._dead(step, inputs),
            *rounded,
        ]
        if not is_rounded:
            shown += [*stopped, *frozen]
        start, *earlier = self._sizes
        self._sizes = [start, *[*earlier, sizes][-_TWICE:]]
        raised = {(alert.cause, alert.layer) for alert in self.alerts}
        new = [alert for alert in shown if (alert.cause, alert.layer) not in raised]
        self.alerts += new
        return new

    def _broken(
        self,
        rows: Sequence[WatchRow],
        infos: Mapping[str, TensorInfo],
        losses: Mapping[int, float],
    ) -> list[Alert]:
        """One alert of the first number that is not finite; it names the first such tensor."""
        row = next((row for row in rows if not math.isfinite(row.value)), None)
        if row is None:
            return []
        alert = _alert(Cause.BROKEN, row.step, row.meter, None, row.value)
        broken = [name for name, t in infos.items() if not _is_finite(t.parameter)]
        if len(broken) == 1:
            alert = replace(alert, reason=f"{alert.reason}, first the tensor {broken[0]}")
        elif len(broken) == len(infos):
            # In which it began is not seen any more.
            alert = replace(alert, reason=f"{alert.reason}: all {len(infos)} tensors by then")
        elif broken:
            counted = f"{len(broken)} of {len(infos)} tensors, first {broken[0]}"
            alert = replace(alert, reason=f"{alert.reason}: {counted}")
        elif all(map(math.isfinite, losses.values())):
            # What is read may overflow where no weight does; a new meter may also be wrong.
            quantity = quantity_in_words(row.meter)
            reason = f"{alert.reason}: no tensor and no loss, but {quantity}"
            return [replace(alert, reason=reason, remedy=READING_REMEDY)]
        if was_steady([loss for _, loss in sorted(losses.items())]):
            alert = replace(alert, remedy=STEADY_REMEDY)
        if len(broken) > 1:
            alert = replace(alert, remedy=f"{alert.remedy} {_LOOK_AT_EACH}")
        return [alert]

    def _jumps(self, rows: Sequence[WatchRow]) -> list[Alert]:
        """The matrices whose norm jumped between the two looks before, and stays."""
        alerts = []
        for row in rows:
            if row.meter != WEIGHT or not row.layer or not math.isfinite(row.value):
                continue
            sizes = self._norms.setdefault(row.layer, _Sizes())
            said = sizes.note(row.step, row.value)
            if said:
                alert = _alert(Cause.JUMP, row.step, WEIGHT, row.layer, row.value)
                alerts.append(replace(alert, reason=said, since=sizes.before[0]))
        return alerts

    def _exploding(self, step: int, sizes: Mapping[str, float]) -> list[Alert]:
        """Name the first place along the network that explodes, once: what comes after follows."""
        if any(alert.cause is Cause.EXPLODING for alert in self.alerts):
            return []
        before = self._sizes[0]
        if len(self._sizes) > _TWICE:
            before = self._sizes[-_TWICE]
        for name, size in sizes.items():
            start = max(self._sizes[0].get(name, math.inf), 1.0)
            rises = size >= _RISE * before.get(name, math.inf)
            if math.isfinite(size) and size >= _EXPLODED * start and rises:
                layer = None if name == _OUTPUTS else name
                return [_alert(Cause.EXPLODING, step, "activation", layer, size)]
        return []

    def _dead(self, step: int, inputs: Mapping[str, Input]) -> list[Alert]:
        alerts = []
        for name, now in inputs.items():
            start = self._start.get(name)
            if start is None or not math.isfinite(now.size):
                continue
            has_died = start.varying > 0 and now.varying <= _LIVING * start.varying
            is_zero = start.size == 0 and now.size == 0
            if self._lasts(Cause.DEAD, name, shows=has_died or is_zero):
                alerts.append(
                    _alert(Cause.DEAD, step, "varying_features", self.layers[name], now.varying)
                )
        return alerts

    def _rounded(
        self,
        step: int,
        infos: Mapping[str, TensorInfo],
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> list[Alert]:
        """One alert for all matrices whose steps are rounded away."""
        rates = dict[int, float]()
        for optimizer in optimizers:
            if type(optimizer).__module__.partition(".")[0] in ("torch", "nfd"):
                for group in optimizer.param_groups:
                    rates |= {id(p): float(group.get("lr") or 0.0) for p in group["params"]}
        self._largest_rate = max(self._largest_rate, *rates.values(), 0.0)
        shares = dict[str, float]()
        before = self._before
        self._before = {}
        for name, weight in before.items():
            parameter = infos[name].parameter
            rate = rates.get(id(parameter), 0.0)
            if not parameter.requires_grad or rate <= _FULL_RATE * self._largest_rate:
                continue
            share = _share_lost(parameter, weight)
            if self._lasts(Cause.ROUNDING, name, shows=share > _LOST):
                shares[name] = share
        if not shares:
            return []
        worst = max(shares, key=lambda name: shares[name])
        layer = None
        if len(shares) == 1:
            layer = self.layers[worst]
        return [_alert(Cause.ROUNDING, step, "unchanged_share", layer, shares[worst])]

    def _frozen(
        self, step: int, rows: Sequence[WatchRow], infos: Mapping[str, TensorInfo], seen: Pass
    ) -> list[Alert]:
        trained = {
            layer: name
            for name, layer in self.layers.items()
            if infos[name].parameter.requires_grad
        }
        changes = dict[str, float]()
        for row in rows:
            if row.meter == CHANGE and row.layer and row.layer in trained:
                changes[row.layer] = row.value
        still = {layer for layer in changes if changes[layer] == self._changes.get(layer, 0.0)}
        self._changes = changes
        if not changes:
            return []
        if len(still) == len(changes):
            # A schedule that has ended leaves all layers as they are. If none has moved since the
            # start, nothing trains.
            has_never_moved = not any(changes.values())
            lasts = self._lasts(Cause.FROZEN, "", shows=has_never_moved)
            if not lasts or step < _LEAST_STEPS:
                return []
            alert = _alert(Cause.FROZEN, step, CHANGE, None, 0.0)
            return [replace(alert, reason="no layer trains")]
        alerts = []
        for layer in self._changes:
            never_trained = layer in still and layer not in self._trained
            lasts = self._lasts(Cause.FROZEN, layer, shows=never_trained)
            if lasts and step >= _LEAST_STEPS and self._matters(infos[trained[layer]], seen):
                alerts.append(_alert(Cause.FROZEN, step, CHANGE, layer, changes[layer]))
        return alerts

    def _stopped(
        self,
        step: int,
        rows: Sequence[WatchRow],
        infos: Mapping[str, TensorInfo],
        seen: Pass,
        optimizers: Sequence[torch.optim.Optimizer],
    ) -> list[Alert]:
        """The matrices that trained, and are the same since a look before."""
        rates = _rates_of(optimizers)
        names = {layer: name for name, layer in self.layers.items()}
        changes = {row.layer: row.value for row in rows if row.meter == CHANGE and row.layer}
        moved = {layer for layer in changes if changes[layer] != self._last.get(layer, 0.0)}
        earlier = self._same_since
        self._same_since = dict.fromkeys(moved, step)
        self._last = changes
        alerts = []
        for layer in changes:
            parameter = infos[names[layer]].parameter
            rate = rates.get(id(parameter))
            has_fallen = rate is not None and rate <= _FULL_RATE * self._rates.get(layer, 0.0)
            self._rates[layer] = max(self._rates.get(layer, 0.0), rate or 0.0)
            if layer in moved:
                if parameter.requires_grad:
                    self._trained.add(layer)
                self._counts[Cause.STOPPED, layer] = 0
                continue
            if layer not in self._trained:
                continue
            since = earlier.get(layer, step)
            self._same_since[layer] = since
            # Where all rest, none was stepped, as between the steps of accumulated gradients.
            if not moved or has_fallen:
                continue
            count = self._counts.get((Cause.STOPPED, layer), 0) + 1
            self._counts[Cause.STOPPED, layer] = count
            if count >= _patience(parameter) and self._matters(infos[names[layer]], seen):
                alert = _alert(Cause.STOPPED, step, CHANGE, layer, changes[layer])
                alerts.append(replace(alert, since=since, remedy=_why_stopped(parameter, rates)))
        return alerts

    @torch.no_grad()
    def _matters(self, t: TensorInfo, seen: Pass) -> bool:
        """Whether the outputs on the sample depend on a tensor: unused heads may rest."""
        kept = t.parameter.detach().clone()
        try:
            t.parameter.mul_(1.5)
            with quiet(self.member.module):
                outputs = outputs_of(self.member(self.baseline.sample)).detach()
        finally:
            t.parameter.copy_(kept)
        return not torch.equal(outputs, seen.outputs)

    def _lasts(self, cause: Cause, name: str, *, shows: bool) -> bool:
        """Whether a sign was there at two looks in a row."""
        count = 0
        if shows:
            count = self._counts.get((cause, name), 0) + 1
        self._counts[cause, name] = count
        return count >= _TWICE

    def _sizes_of(self, seen: Pass, inputs: Mapping[str, Input]) -> dict[str, float]:
        """The RMS of what layers are applied to, of the stream after blocks, and of the outputs."""
        layers = {self.layers[name]: read.size for name, read in inputs.items()}
        blocks = {block: rms(h) for block, h in seen.behind.items()}
        return {**layers, **blocks, _OUTPUTS: rms(seen.outputs)}

    # ---- the state

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers and strings, for JSON or a checkpoint."""
        return {
            "start": {name: [read.size, read.varying] for name, read in self._start.items()},
            "sizes": self._sizes,
            "changes": self._changes,
            "counts": [[cause.value, name, count] for (cause, name), count in self._counts.items()],
            "largest_rate": self._largest_rate,
            "last": self._last,
            "same_since": self._same_since,
            "trained": sorted(self._trained),
            "rates": self._rates,
            "norms": {layer: asdict(sizes) for layer, sizes in self._norms.items()},
            "rises": [self._rises.latest, self._rises.largest],
            "alerts": [
                asdict(alert) | {"cause": alert.cause.value, "tensors": []} for alert in self.alerts
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the result of ``state_dict``."""
        self._start = {
            name: Input(float(size), int(varying))
            for name, (size, varying) in state["start"].items()
        }
        self._sizes = [dict(sizes) for sizes in state["sizes"]]
        self._changes = dict(state["changes"])
        self._counts = {(Cause(cause), name): int(count) for cause, name, count in state["counts"]}
        self._largest_rate = float(state["largest_rate"])
        # States of earlier versions lack these.
        self._last = dict(state.get("last", {}))
        self._same_since = dict(state.get("same_since", {}))
        self._trained = set(state.get("trained", ()))
        self._rates = dict(state.get("rates", {}))
        self._norms = {
            layer: _Sizes(**{**sizes, "before": tuple(sizes["before"])})
            for layer, sizes in state.get("norms", {}).items()
        }
        self._rises = Rises()
        latest, largest = state.get("rises", ([], 0.0))
        self._rises.latest = list(latest)
        self._rises.largest = float(largest)
        self.alerts = [
            Alert(**{**alert, "cause": Cause(alert["cause"]), "tensors": ()})
            for alert in state["alerts"]
        ]


def _input_of(t: TensorInfo, z: Tensor) -> Input:
    """Read what a layer is applied to; a convolution has its channels second."""
    is_batch_of_channels = isinstance(t.owner, _ConvNd) and z.dim() == t.parameter.dim()
    features = z.movedim(1, -1) if is_batch_of_channels else z
    features = features.reshape(-1, features.shape[-1])
    size = rms(features)
    spread = features.float().amax(0) - features.float().amin(0)
    return Input(size, int((spread > _LEAST_SPREAD * size).sum()))


def _is_finite(parameter: Tensor) -> bool:
    return bool(whole(parameter.detach()).isfinite().all())


def was_steady(losses: Sequence[float]) -> bool:
    """Whether losses end as those of a training that does not diverge: not at their largest."""
    finite = [loss for loss in losses if math.isfinite(loss)][-_STEADY_WINDOW:]
    return len(finite) >= _STEADY_LEAST and finite[-1] < max(finite)


def _rates_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[int, float]:
    """The learning rate of every parameter, by its identity."""
    rates = dict[int, float]()
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rates |= {id(p): float(group.get("lr") or 0.0) for p in group["params"]}
    return rates


def _has_gradient(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and bool((whole(parameter.grad) != 0).any())


def _patience(parameter: nn.Parameter) -> int:
    """At how many looks in a row weights must be the same."""
    if not parameter.requires_grad:
        return 1
    return _TWICE if _has_gradient(parameter) else _WITHOUT_GRADIENT


def _why_stopped(parameter: nn.Parameter, rates: Mapping[int, float]) -> str:
    """What keeps a tensor from training, and what to do."""
    if not parameter.requires_grad:
        return (
            "It requires no gradients any more: set requires_grad=True again, unless you froze it "
            "on purpose."
        )
    if rates and id(parameter) not in rates:
        return "The optimizer lacks it: put it back, unless you took it out on purpose."
    if not _has_gradient(parameter):
        return "It gets no gradients: look for a detach, a branch not taken, or dead inputs."
    return "It has gradients: look for what keeps the optimizer from stepping it."


def _share_lost(parameter: Tensor, before: Tensor) -> float:
    """The share of the entries with a gradient that a step left as they were.

    It is 0 if no entry has a gradient. Without any gradient tensor it is the share of all entries.
    """
    unchanged = whole(parameter.detach()) == whole(before)
    if parameter.grad is None:
        return float(unchanged.double().mean())
    has_gradient = whole(parameter.grad) != 0
    count = int(has_gradient.sum())
    if count == 0:
        return 0.0
    return float((unchanged & has_gradient).sum()) / count


def _alert(cause: Cause, step: int, meter: str, layer: str | None, value: float) -> Alert:
    texts = WORDS[cause]
    return Alert(step, step, meter, layer, value, None, cause, texts.reason, texts.remedy)


# ---- the loss


class LossSigns:
    """Judges losses one by one: the first that is not finite, and spikes."""

    def __init__(self) -> None:
        self._window: deque[float] = deque(maxlen=_WINDOW)
        # The level at which judging began
        self._first: float | None = None
        # Losses in a row above the limit
        self._high: list[tuple[int, float]] = []
        self._is_broken = False

    def add(self, step: int, loss: float) -> Alert | None:
        """Judge a loss by those before it."""
        if not math.isfinite(loss):
            was_broken = self._is_broken
            self._is_broken = True
            alert = _alert(Cause.BROKEN, step, "loss", None, loss)
            if was_steady([*self._window]) and not self._high:
                alert = replace(alert, remedy=STEADY_REMEDY)
            return None if was_broken else alert
        if len(self._window) < _LEAST_LOSSES or loss <= self._limit():
            self._high = []
            self._window.append(loss)
            return None
        self._high.append((step, loss))
        # After so many, this is the level now.
        if len(self._high) == _WINDOW:
            self._window = deque((high for _, high in self._high), maxlen=_WINDOW)
            self._high = []
            return None
        if len(self._high) != _LASTS:
            return None
        since = self._high[0][0]
        return replace(_alert(Cause.SPIKE, step, "loss", None, loss), since=since)

    def _limit(self) -> float:
        level = median(self._window)
        if self._first is None:
            self._first = level
        # The standard deviation, where noise is normal
        deviation = 1.4826 * median(abs(loss - level) for loss in self._window)
        noise = max(deviation, _LEAST_NOISE * abs(level))
        rises = (
            _NOISES * noise,
            _BEYOND_LARGEST * (max(self._window) - level),
            _OF_PROGRESS * (self._first - level),
        )
        return level + max(rises)
