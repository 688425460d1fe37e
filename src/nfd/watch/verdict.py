"""Whether a training run is on course: the answer that its page, terminal and notebook begin with.

``✗`` where there are alerts, grouped by cause; ``✓`` where the latest look was compared with small
networks and raised none; ``?`` otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nfd.core.answer import Answer, Next
from nfd.core.words import alike, number, plural
from nfd.meters.meter import quantity_in_words
from nfd.meters.reading import WatchRow, at_steps, steps_of
from nfd.scaling.model import numberless
from nfd.watch.alerts import (
    Alert,
    Cause,
    Deviation,
    Fault,
    expected,
    faults_of,
    times_off,
    value_in_words,
)
from nfd.watch.bands import ALERTS, Band
from nfd.watch.remedies import next_of
from nfd.watch.watch import outside, remarks_of

if TYPE_CHECKING:
    from nfd.watch.watch import Watch

# Causes that the title names
_NAMED = 2
# The column of bands
EXPECTED = "expected (95 %)"
# Causes that the loss itself shows
_OF_LOSS = {Cause.SPIKE, Cause.LOSS}
_UNCOMPARED = (
    "Numbers that are not finite, exploding, dead and frozen layers, rounding, and losses are "
    "judged: none is wrong."
)


def answer_of(watch: Watch) -> Answer:
    """Say whether a training run is on course."""
    faults = faults_now(watch)
    worst = table_of_faults(watch, faults)
    remarks = remarks_of(watch)
    but = " ".join(remarks)
    but = but[:1].lower() + but[1:]
    left_out = [f"{meter} is left out: {reason}" for meter, reason in watch.left_out.items()]
    details = [*left_out, *map(str, watch.alerts)]
    about = _about(watch)
    if faults:
        count = plural(len(faults), "fault")
        since = min(fault.since for fault in faults)
        return Answer(
            "bad",
            f"{count} since step {since:,}",
            title_of(faults),
            f"{_found(watch, faults)} {_first_of(worst)}".rstrip(),
            but,
            next_of(watch, faults),
            about,
            worst,
            details,
        )
    table = _table_of_network(watch)
    steps = steps_of(watch.rows)
    if not steps and watch.failed is None:
        return Answer(
            "open",
            "Not judged yet",
            f"The first look follows step {watch.every:,}",
            next=Next("In the loop", "watch.step(loss)  # after every optimizer.step()"),
            about=about,
            details=details,
        )
    if watch.expected is None:
        title = "Nothing is broken, but how layers should train is not known"
        part = "Judged in part"
        return Answer("open", part, title, _UNCOMPARED, but, _compare(watch), about, table, details)
    if watch.unjudged_since is not None:
        return _not_judged(watch, about, table, details)
    return Answer(
        "good",
        "No alert",
        "Every layer trains as in the small networks",
        _all_within(watch, steps[-1]),
        but,
        _train_on(watch),
        about,
        table,
        details,
    )


def title_of(faults: Sequence[Fault]) -> str:
    """Name the first causes with their layers counted, and count the others."""
    if len(faults) == 1:
        title = faults[0].named
        # The name of a layer keeps its letters.
        return title if title.startswith(tuple(faults[0].layers)) else title[:1].upper() + title[1:]
    named = [fault.short for fault in faults[:_NAMED]]
    # A number within a sentence is a word where it is one.
    parts = [named[0], *(_in_sentence(text) for text in named[1:])]
    others = len(faults) - len(named)
    if others:
        parts.append(plural(others, "more cause"))
    title = parts[0]
    if len(parts) > 1:
        title = f"{', '.join(parts[:-1])}, and {parts[-1]}"
    return title[:1].upper() + title[1:]


def _in_sentence(text: str) -> str:
    return f"one {text[2:]}" if text.startswith("1 ") else text


# ---- The loss, which may show a fault as well


@dataclass(frozen=True)
class LossSeen:
    """The loss at the latest step at which the small networks have one, too."""

    step: int
    value: float
    low: float
    high: float
    is_latest: bool

    @property
    def is_high(self) -> bool:
        """Whether it is above those of all small networks."""
        return not self.value <= self.high

    @property
    def side(self) -> str:
        """Where it lies beside those of all small networks."""
        if self.is_high:
            return "above"
        return "below" if self.value < self.low else "among"

    def __str__(self) -> str:
        value, low, high = alike(self.value, self.low, self.high)
        return f"{value} at step {self.step:,}, the small networks {low} to {high}"


def loss_seen(watch: Watch) -> LossSeen | None:
    """Compare the loss with the small networks'; None where one of them is not known.

    Means over steps are not compared: the small networks' losses are of single steps.
    """
    ladder = None if watch.expected is None else watch.expected.ladder
    if ladder is None or watch.has_mean_losses:
        return None
    shared = [step for step in ladder.losses if step in watch.losses]
    if not shared:
        return None
    step = max(shared)
    low, high = ladder.losses[step]
    return LossSeen(step, watch.losses[step], low, high, step == max(watch.losses))


def loss_says(watch: Watch) -> str:
    """Whether the loss would have told what the alerts say, in a sentence."""
    seen = loss_seen(watch)
    faults = faults_of(watch.alerts)
    if any(fault.cause in _OF_LOSS for fault in faults):
        uncompared = "" if seen is not None else f" {_why_uncompared(watch)}"
        return f"The loss shows a fault itself.{uncompared}"
    if seen is None:
        return _why_uncompared(watch)
    later = "" if seen.is_latest else " Later losses are not compared."
    if not faults:
        return f"The loss is {seen.side} the small networks': {seen}.{later}"
    if seen.is_high:
        return f"The loss shows it, too: {seen}.{later}"
    if seen.side == "below":
        return f"The loss does not show it, and is below the small networks' so far: {seen}.{later}"
    return f"The loss would not have told: {seen}.{later}"


def _why_uncompared(watch: Watch) -> str:
    """Why the loss is not compared with the small networks', in a sentence."""
    ladder = None if watch.expected is None else watch.expected.ladder
    if ladder is None or not ladder.losses:
        return "There are no losses of small networks to compare it with."
    if watch.has_mean_losses:
        return (
            "Not compared: the logged losses are means over several steps, the small networks' are "
            "of single steps. Log every step to compare them (logging_steps=1 in "
            "TrainingArguments)."
        )
    steps = ", ".join(str(step) for step in ladder.losses)
    return f"Not compared: the small networks' losses are of other steps ({steps})."


def _loss_in_words(seen: LossSeen) -> str:
    if not seen.is_latest:
        return (
            f"the loss at step {seen.step:,}, the last compared, is {seen.side} the small networks'"
        )
    return (
        "the loss is too high" if seen.is_high else f"the loss is {seen.side} the small networks'"
    )


# ---- Sentences


def _about(watch: Watch) -> str:
    plan = f"plan {watch.plan.rule}" if watch.is_planned else "no plan"
    if not math.isnan(watch.rate):
        plan += f", learning rate {number(watch.rate, 3)}"
    return f"step {watch.steps:,} · {plan} · looked every {plural(watch.every, 'step')}"


def _found(watch: Watch, faults: Sequence[Fault]) -> str:
    """When a fault was found, and what is not the reason for it."""
    step = min(fault.step for fault in faults)
    since = min(fault.since for fault in faults)
    first = f"Found at step {step:,} of {watch.steps:,}."
    if since < step:
        first = f"Off since step {since:,}, found at step {step:,} of {watch.steps:,}."
    if step == 0:
        first = "Found before the first step."
    parts = _rates(watch, faults)
    seen = loss_seen(watch)
    if seen is not None:
        parts.append(_loss_in_words(seen))
    if not parts:
        return first
    second = "; ".join(parts)
    return f"{first} {second[0].upper()}{second[1:]}."


def _first_of(rows: Sequence[Mapping[str, str]]) -> str:
    """The first number of the table with its interval, which a page shows further down."""
    if not rows or not rows[0].get(EXPECTED):
        return ""
    row = rows[0]
    value, _, limits = row[EXPECTED].partition(" (")
    place = "" if row["of"] == "the network" else f"In {row['of']} the "
    found = f"{place}{row['quantity']} is {row['now']}"
    return f"{found[0].upper()}{found[1:]}, expected {value} (95 %: {limits}."


def _rates(watch: Watch, faults: Sequence[Fault]) -> list[str]:
    """What is known of the learning rates, and of other numbers that the plan says."""
    tensors = list[Deviation]()
    for fault in faults:
        tensors += fault.alerts[0].tensors
    ratios = [one.value / one.planned for one in tensors if one.planned > 0 and one.value > 0]
    if ratios:
        furthest = max(ratios, key=lambda ratio: abs(math.log(ratio)))
        side = "large" if furthest > 1 else "small"
        times = number(max(furthest, 1 / furthest), 2)
        meters = {fault.alerts[0].meter for fault in faults if fault.alerts[0].tensors}
        what = "initial weights" if meters == {"std"} else "learning rates"
        counted = plural(len(tensors), "tensor")
        return [f"{what} of {counted} are not the plan's, up to {times} times too {side}"]
    ladder = None if watch.expected is None else watch.expected.ladder
    is_of_all = any(fault.cause is Cause.ALL_RATES for fault in faults)
    small = None if ladder is None else ladder.rate_at(watch.rate_step)
    if is_of_all and small is not None and watch.rate > 0:
        at = "" if watch.rate_step == 1 else f" at step {watch.rate_step}"
        rate = number(watch.rate, 3)
        return [f"the learning rate is {rate}{at}, the small networks' was {number(small, 3)}"]
    has_risen = any(fault.cause is Cause.RISE for fault in faults)
    if watch.has_plans_rates and not is_of_all and not has_risen:
        return ["the learning rates are those of the plan"]
    return []


def _all_within(watch: Watch, step: int) -> str:
    rows = [row for row in at_steps(watch.rows, [step]) if watch.band(row) is not None]
    layers = {row.layer for row in rows if row.layer is not None}
    beyond = sum(outside(watch, row) for row in rows)
    lie = "quantity lies in its band" if len(rows) == 1 else "quantities lie in their 95 % bands"
    of = f"{len(rows) - beyond} of {len(rows)}" if beyond else f"{len(rows)}"
    text = f"{of} {lie} at step {step:,}, in {plural(len(layers), 'layer')}"
    seen = loss_seen(watch)
    if seen is not None:
        at = "" if seen.is_latest else f" at step {seen.step:,}"
        text += f"; the loss{at} is {seen.side} the small networks'"
    return f"{text}."


def _train_on(watch: Watch) -> Next | None:
    if watch.on_alert != "warn":
        return None
    plan = "plan" if watch.is_planned else "None"
    code = f'nfd.Watch(model, {plan}, sample, expected=small, on_alert="stop")'
    return Next("Train on. To end a training at its first alert", code)


def _compare(watch: Watch) -> Next:
    plan = "plan" if watch.is_planned else "None"
    rate = "..." if math.isnan(watch.rate) else f"{watch.rate:.3g}"
    rule = "" if watch.is_planned else 'rule="standard", '
    code = (
        f"small = nfd.check(make_model, batches, widths, depths, lr={rate},\n"
        f"                  {rule}at=(1, 3, 10))  # up to the last step to watch\n"
        f"watch = nfd.Watch(model, {plan}, sample, expected=small)"
    )
    return Next("Compare with small networks", code)


def _not_judged(
    watch: Watch, about: str, table: Sequence[dict[str, str]], details: Sequence[str]
) -> Answer:
    """The answer where the latest look was not compared with the small networks."""
    since = watch.unjudged_since
    state = f"Not judged since step {since:,}" if since else "Not judged yet"
    because = " ".join(remarks_of(watch))
    assert watch.expected is not None
    if watch.off_schedule is not None:
        title = "The learning rate left the small networks' schedule"
        code = (
            "task = nfd.Task(batches, schedule=lambda step: ...)  # this run's rate over its peak\n"
            "small = nfd.check(make_model, task, ...)"
        )
        step = Next("Check at the schedule of this run", code)
    elif watch.steps > watch.expected.last_step:
        title = f"The small networks were looked at up to step {watch.expected.last_step:,}"
        at = f"at=(1, 3, 10, {watch.steps})"
        step = Next("Check for more steps", f"small = nfd.check(..., {at})")
    elif watch.failed is not None:
        title = "The latest look failed"
        step = Next("Read the error", "print(watch.failed)")
    else:
        title = "No look was compared with the small networks yet"
        step = Next("In the loop", "watch.step(loss)  # after every optimizer.step()")
    return Answer("open", state, title, because, "", step, about, table, details)


# ---- Tables for a terminal


def table_of_faults(watch: Watch, faults: Sequence[Fault]) -> list[dict[str, str]]:
    """One row for every layer or kind of tensors with an alert, as it is now.

    Within a fault the layer that is furthest off comes first.
    """
    latest = _latest(watch)
    table = []
    for fault in faults:
        for alert in fault.alerts:
            if alert.tensors:
                table += deviations_of(alert.tensors, alert.meter)
                continue
            value, band = _now(watch, latest, alert)
            cells = {
                "of": alert.layer or "the network",
                "quantity": quantity_in_words(alert.meter),
                "now": value_in_words(value),
            }
            if band is not None:
                cells[EXPECTED] = expected(band, level="")
            table.append(cells)
    return table


# The latest row of every meter and layer
_Latest = Mapping[tuple[str, str | None], WatchRow]


def faults_now(watch: Watch) -> list[Fault]:
    """The alerts of a watch by their cause, in each the layer first that is furthest off now."""
    latest = _latest(watch)
    return faults_of(watch.alerts, lambda alert: times_off(*_now(watch, latest, alert)))


def _latest(watch: Watch) -> _Latest:
    return {(row.meter, row.layer): row for row in watch.rows}


def _now(watch: Watch, latest: _Latest, alert: Alert) -> tuple[float, Band | None]:
    """The value of an alert and its band: as they are now, where both are known."""
    row = latest.get((alert.meter, alert.layer))
    if row is None:
        return alert.value, alert.band
    if alert.cause is Cause.STOPPED:
        # What shows it is that the value stays, wherever its band lies.
        return row.value, None
    band = watch.band(row)
    if band is None and alert.band is not None:
        # A later value is not compared with the band of an earlier step.
        return alert.value, alert.band
    return row.value, band


def deviations_of(tensors: Sequence[Deviation], meter: str) -> list[dict[str, str]]:
    """Tensors that deviate from the plan, one row for each kind of tensors."""
    kinds: dict[tuple[str, str, str], list[Deviation]] = {}
    for deviation in tensors:
        key = (numberless(deviation.tensor), f"{deviation.value:.2g}", f"{deviation.planned:.2g}")
        kinds.setdefault(key, []).append(deviation)
    table = []
    for (name, _, _), alike_ones in kinds.items():
        first = alike_ones[0]
        cells = {
            "of": first.tensor if len(alike_ones) == 1 else f"{name} ({len(alike_ones)})",
            "quantity": {"rate": "learning rate", "std": "initial std"}.get(meter, meter),
            "now": number(first.value, 3),
            # Of an optimizer of another kind the plan has no learning rate.
            "should be": number(first.planned, 3) if first.planned else "",
        }
        table.append(cells)
    return table


def _table_of_network(watch: Watch) -> list[dict[str, str]]:
    """The quantities of the whole network at the first look and at the latest one."""
    steps = steps_of(watch.rows)
    if not steps:
        return []
    first = {row.meter: row for row in at_steps(watch.rows, steps[:1]) if row.layer is None}
    table = []
    for row in at_steps(watch.rows, steps[-1:]):
        if row.layer is not None or row.meter == ALERTS:
            continue
        cells = {"quantity": quantity_in_words(row.meter)}
        if len(steps) > 1 and row.meter in first:
            cells[f"step {steps[0]:,}"] = value_in_words(first[row.meter].value)
        cells[f"step {steps[-1]:,}"] = value_in_words(row.value)
        band = watch.band(row)
        if band is not None:
            cells[EXPECTED] = expected(band, level="")
        table.append(cells)
    return table
