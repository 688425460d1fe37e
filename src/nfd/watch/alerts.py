"""Alerts of a training run in words: what each cause is called, and alerts of one cause together.

``WORDS`` is the only place that words a cause; what shows it stands in ``nfd.watch.causes`` and
``nfd.watch.signs``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from nfd.core.words import alike, number, plural
from nfd.meters.meter import in_words, quantity_in_words
from nfd.watch.bands import Band

# Names of layers in a sentence
_NAMED = 5
# A layer is named as the worst of several where it is so many times as far off as the next.
_STANDS_OUT = 3.0
# Letters of a layer's name in a title
_SHORT_NAME = 24


class Cause(StrEnum):
    """Why a training run deviates."""

    BROKEN = "broken"
    OPTIMIZER = "optimizer"
    DECAY = "decay"
    ALL_RATES = "all-rates"
    FROZEN = "frozen"
    STOPPED = "stopped"
    JUMP = "jump"
    RISE = "rise"
    START = "start"
    RATE = "rate"
    CHANGE = "change"
    MULTIPLIER = "multiplier"
    EXPLODING = "exploding"
    DEAD = "dead"
    ROUNDING = "rounding"
    SPIKE = "spike"
    LOSS = "loss"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Deviation:
    """A tensor whose initial standard deviation or learning rate is not the plan's.

    ``planned`` is 0 for the learning rate of a tensor that another kind of optimizer steps: the
    plan has no learning rate for it.
    """

    tensor: str
    value: float
    planned: float


@dataclass(frozen=True)
class Alert:
    """A training that is not what it should be. Print it for the sentence with its remedy.

    Attributes:
        step: the step of this alert.
        since: the first look at which the meter was outside of its band.
        meter, layer: names of the meter, ``"std"`` of initial weights or ``"rate"``, and of the
            layer; layer is None for the whole network.
        value, band: the value and the band at ``step``; None where it was compared with the plan.
        cause: the likely cause.
        reason, remedy: the cause in words, and what to do.
        tensors: all that deviate from the plan; the first has ``layer`` and ``value``.
    """

    step: int
    since: int
    meter: str
    layer: str | None
    value: float
    band: Band | None
    cause: Cause
    reason: str
    remedy: str
    tensors: tuple[Deviation, ...] = ()

    def __str__(self) -> str:
        return str(faults_of([self])[0])

    @property
    def side(self) -> str:
        """``large`` above the band, ``small`` below it; empty where there is none."""
        if self.band is None or not math.isfinite(self.value):
            return ""
        return "large" if self.value > self.band.value else "small"


# ---- The words of a cause


@dataclass(frozen=True)
class Words:
    """How a cause is worded.

    Attributes:
        reason: of one alert, which does not say the layer.
        remedy: what to do, in sentences.
        one, several: as a title, for one layer and for several; ``{count}`` is their number,
            ``{large}`` and ``{much}`` say on which side of their bands they are. Empty where a
            cause is of the whole network. ``{reason}`` is that of the alert.
        of_all: as a title, for the whole network, if the reason does not say it; ``{meter}`` is
            the meter.
        short, shorts: the same in a list of causes, if that is shorter.
        named: as a title, for ``{layer}`` alone.
        seen: what the watch saw, since step ``{since}``.
    """

    reason: str
    remedy: str
    one: str = ""
    several: str = ""
    of_all: str = ""
    short: str = ""
    shorts: str = ""
    named: str = ""
    seen: str = ""


WORDS: dict[Cause, Words] = {
    Cause.BROKEN: Words(
        "the network is no longer finite",
        "Lower the learning rate, or go back to a checkpoint before this step.",
        seen="A number is infinite, or not a number, since step {since}.",
    ),
    Cause.OPTIMIZER: Words(
        "the optimizer was not made from the plan",
        "Use plan.make_optimizer(model, lr=...), or an optimizer of plan.param_groups(model, "
        "lr=...).",
        seen="Compared with the plan at step {step}.",
    ),
    Cause.DECAY: Words(
        "weight decay shrinks the weights faster than training renews them",
        "Lower weight_decay: learning rate times decay times steps should stay below 1 where the "
        "small networks had it so.",
        seen="Most weights are smaller than in the small networks since step {since}.",
    ),
    Cause.ALL_RATES: Words(
        "all learning rates differ from those of the small networks",
        "Give the optimizer the small networks' learning rate (with a plan, as lr of "
        "plan.make_optimizer), and compare warm-up, schedule, loss and data with the check's.",
        seen="Most layers change too {much} since step {since}.",
    ),
    Cause.FROZEN: Words(
        "the layer does not train",
        "Put these parameters into the optimizer, with a learning rate above 0 and "
        "requires_grad=True.",
        one="{count} layer does not train",
        several="{count} layers do not train",
        named="{layer} does not train",
        seen="Weights have hardly changed since step {since}.",
    ),
    Cause.STOPPED: Words(
        "the layer has not changed since an earlier look",
        "Look whether it gets gradients, and whether the optimizer steps it.",
        one="{count} layer has not changed since step {since}",
        several="{count} layers have not changed since step {since}",
        named="{layer} has not changed since step {since}",
        seen="The weights are the same, bit by bit, since step {since}; before, they trained.",
    ),
    Cause.JUMP: Words(
        "jumped within one look",
        "Go back to a checkpoint before the jump, and look at what wrote the weights then, such as "
        "a callback or loaded weights. No learning rate moves one layer so far at once.",
        one="{count} layer {reason}",
        several="{count} layers {reason}",
        named="{layer} {reason}",
        seen="The weights changed more than threefold between two looks, and not before or after.",
    ),
    Cause.RISE: Words(
        "the learning rate rose",
        "Look at the schedule, and at what sets the rates of the optimizer; go back to a "
        "checkpoint before this step. If you raised it on purpose, train on.",
        seen="In one step it rose above all earlier rates and the peak of its schedule.",
    ),
    Cause.START: Words(
        "the initial weights of the layer are not the plan's",
        "Call plan.apply_(model) after everything that initialises the model, and before training. "
        "If the model is meant to start from other weights, as from a checkpoint, pass "
        "own_start=True to nfd.Watch.",
        seen="Compared with the plan before the first step.",
    ),
    Cause.RATE: Words(
        "the layer changes as at another learning rate than in the small networks",
        "Give it the learning rate that it had there (with a plan, its group of "
        "plan.param_groups).",
        one="{count} layer changes too {much}, as at a wrong learning rate",
        several="{count} layers change too {much}, as at wrong learning rates",
        short="{count} layer changes too {much}",
        shorts="{count} layers change too {much}",
        named="{layer} changes too {much}",
        seen="Weights change too {much} since step {since}, which shows another learning rate than "
        "the small networks had.",
    ),
    Cause.CHANGE: Words(
        "the layer changes otherwise than in the small networks, though the ratios of the learning "
        "rates are right",
        "Compare its gradients, its inputs and its multipliers with theirs, and the batches and "
        "the loss. If the rule lets updates grow with size, lower the learning rate.",
        one="{count} layer changes too {much}",
        several="{count} layers change too {much}",
        named="{layer} changes too {much}",
        of_all="most layers change too {much}, at the same learning rate",
        seen="Weights change too {much} since step {since}, though the ratios of the learning "
        "rates are right.",
    ),
    Cause.MULTIPLIER: Words(
        "the output of the block has the wrong scale",
        "Compare the forward pass, the multipliers and the norm's gain of this block with the "
        "other blocks.",
        one="{count} block has an output of the wrong scale",
        several="{count} blocks have outputs of the wrong scale",
        short="{count} block's output is too {large}",
        shorts="the outputs of {count} blocks are too {large}",
        named="the output of {layer} is too {large}",
        seen="The output is too {large} since step {since}, while the weights change as expected.",
    ),
    Cause.EXPLODING: Words(
        "the network explodes",
        "Lower the learning rate, or warm it up; go back to a checkpoint before this step.",
        seen="The activations are 100 times what they were before training, and still grow at step "
        "{since}.",
    ),
    Cause.DEAD: Words(
        "hardly a feature of its input still varies over the sample",
        "Units before it are dead or saturated. Lower the learning rate, and look at the biases "
        "and the norm there; initialise the layer before it again.",
        one="{count} layer gets inputs that hardly vary",
        several="{count} layers get inputs that hardly vary",
        seen="Less than 5 % of the input features that varied over the sample still vary.",
    ),
    Cause.ROUNDING: Words(
        "steps of the optimizer are lost in weights of 16 bits",
        "Keep the weights in 32 bits and compute in 16 (torch.autocast), or take an optimizer that "
        "keeps what rounding takes.",
        seen="At two looks most entries with a gradient kept their value in a step.",
    ),
    Cause.SPIKE: Words(
        "the loss has jumped, and stays high",
        "Look at the batches of these steps and at the learning rate; go back to a checkpoint "
        "before them, or skip them.",
        seen="Three losses in a row lie far above those before, since step {since}.",
    ),
    Cause.LOSS: Words(
        "the loss left the band of its forecast",
        "Compare learning rate, schedule, data and gradients with those before. Forecast again if "
        "you changed one on purpose.",
        seen="Its mean since step {since} lies outside of the forecast.",
    ),
    Cause.UNKNOWN: Words(
        "no cause is known for this pattern",
        "Compare model, data, batch and schedule with those of the check.",
        one="{count} layer stays outside of its band",
        several="{count} layers stay outside of their bands",
        of_all="the {meter} of the network stays outside of its band",
        seen="Outside since step {since}; no cause is known for this pattern.",
    ),
}
# Words for the sides of a band
_MUCH = {"large": "much", "small": "little"}


# ---- Alerts of one cause together


@dataclass(frozen=True)
class Fault:
    """The alerts of one cause, the furthest off first.

    Attributes:
        alerts: at least one. times: by which factor each is off (``times_off``).
    """

    alerts: tuple[Alert, ...]
    times: tuple[float, ...]

    @property
    def cause(self) -> Cause:
        """The cause that they share."""
        return self.alerts[0].cause

    @property
    def layers(self) -> list[str]:
        """The layers that have it; none where it is of the whole network."""
        if self.alerts[0].tensors:
            return []
        return list(dict.fromkeys(one.layer for one in self.alerts if one.layer is not None))

    @property
    def step(self) -> int:
        """The step of the first alert."""
        return min(one.step for one in self.alerts)

    @property
    def since(self) -> int:
        """The first step at which it showed."""
        return min(one.since for one in self.alerts)

    @property
    def title(self) -> str:
        """What is wrong, with the layers counted: ``4 layers do not train``."""
        return f"{self._counted}{self._worst}"

    @property
    def short(self) -> str:
        """The title, as short as it can be."""
        words = WORDS[self.cause]
        text = self._worded(words.short or words.one, words.shorts or words.several)
        return f"{text}{self._worst}"

    @property
    def named(self) -> str:
        """The title with the name of its only layer; the short one where that names no layer."""
        words = WORDS[self.cause]
        is_nameable = len(self.layers) == 1 and len(self.layers[0]) <= _SHORT_NAME
        if not is_nameable or self.alerts[0].tensors or not words.named:
            return self.short
        return self._filled(words.named)

    @property
    def seen(self) -> str:
        """What the watch saw, in a sentence."""
        return self._filled(WORDS[self.cause].seen)

    @property
    def remedy(self) -> str:
        """What to do, in sentences."""
        return self.alerts[0].remedy

    @property
    def _counted(self) -> str:
        words = WORDS[self.cause]
        return self._worded(words.one, words.several)

    @property
    def _worst(self) -> str:
        """Name the first layer where it stands out: others may follow from it."""
        if len(self.layers) < 2 or not math.isfinite(self.times[0]):
            return ""
        if self.times[0] < _STANDS_OUT * self.times[1]:
            return ""
        first = self.alerts[0]
        return f" (worst: {first.layer}, {number(self.times[0], 2)} times too {first.side})"

    def _worded(self, one: str, several: str) -> str:
        first = self.alerts[0]
        if first.tensors:
            # What follows the colon counts the tensors.
            return first.reason.partition(": ")[0]
        if not self.layers or not one:
            return self._filled(WORDS[self.cause].of_all) or first.reason
        return self._filled(one if len(self.layers) == 1 else several)

    def _filled(self, text: str) -> str:
        sides = [side for side in dict.fromkeys(one.side for one in self.alerts) if side]
        large = " or too ".join(sides)
        much = " or too ".join(_MUCH[side] for side in sides)
        return text.format(
            count=len(self.layers),
            layer=self.layers[0] if self.layers else "",
            large=large,
            much=much,
            meter=in_words(self.alerts[0].meter),
            reason=self.alerts[0].reason,
            since=self.since,
            step=self.step,
        )

    def __str__(self) -> str:
        """Write one line: what is wrong, where, which number shows it, and what to do."""
        first = self.alerts[0]
        if first.tensors:
            return f"step {self.step}: {first.reason}. {self.remedy}".rstrip()
        place = ""
        if self.layers:
            place = f" ({_named(self.layers)})"
        of = ""
        if len(self.layers) > 1:
            of = f"{first.layer}: "
        since = ""
        if self.since < self.step:
            since = f" since step {self.since}"
        numbers = (
            f"{of}{quantity_in_words(first.meter)} is {measured(first.value, first.band)}{since}"
        )
        return f"step {self.step}: {self._counted}{place}; {numbers}. {self.remedy}".rstrip()


def times_off(value: float, band: Band | None) -> float:
    """By which factor a value is off; infinity for 0, and 1 where nothing was expected."""
    if band is None:
        return 1.0
    if not math.isfinite(value) or value <= 0 or band.value <= 0:
        return math.inf
    ratio = value / band.value
    return max(ratio, 1 / ratio)


def _times_when_raised(alert: Alert) -> float:
    return times_off(alert.value, alert.band)


def faults_of(
    alerts: Iterable[Alert], times_of: Callable[[Alert], float] = _times_when_raised
) -> list[Fault]:
    """Group alerts by what is wrong: what was raised first at the top, in it the furthest off."""
    groups: dict[tuple[Cause, bool, str], list[Alert]] = {}
    for alert in alerts:
        is_of_all = alert.layer is None or bool(alert.tensors)
        # Causes of the whole network are one fault for each reason.
        reason = alert.reason if is_of_all else ""
        groups.setdefault((alert.cause, is_of_all, reason), []).append(alert)
    return [_fault(group, times_of) for group in groups.values()]


def _fault(alerts: Iterable[Alert], times_of: Callable[[Alert], float]) -> Fault:
    ordered = sorted(alerts, key=times_of, reverse=True)
    return Fault(tuple(ordered), tuple(map(times_of, ordered)))


def measured(value: float, band: Band | None) -> str:
    """Write a value and what was expected: ``0, expected 0.18 (95 %: 0.13 to 0.26)``."""
    shown = value_in_words(value)
    if band is None:
        return shown
    return f"{shown}, expected {expected(band)}"


def value_in_words(value: float) -> str:
    """Write a value that was read: ``0.18``, or ``NaN``, which is read as well."""
    return "NaN" if math.isnan(value) else number(value, 3)


def expected(band: Band, *, level: str = "95 %: ") -> str:
    """Write a band: ``0.18 (95 %: 0.13 to 0.26)``; without a level where the column says it."""
    middle, low, high = alike(band.value, band.low, band.high)
    return f"{middle} ({level}{low} to {high})"


def _named(layers: Sequence[str]) -> str:
    others = len(layers) - _NAMED
    if others <= 0:
        return ", ".join(layers)
    return f"{', '.join(layers[:_NAMED])} and {plural(others, 'more', 'more')}"
