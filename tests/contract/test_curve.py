"""The forecast of a run: intervals hold final losses of curves with a known law, and a watch alerts
to what leaves.
"""

from __future__ import annotations

import json
import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from tests.models import Residual
from torch.optim.lr_scheduler import LambdaLR

import nfd

TOTAL = 8000
SEEN = 2000
COOLED = nfd.RateSchedule(warmup=200, fall="linear", share=0.2)
COSINE = nfd.RateSchedule(warmup=200, fall="cosine")
CONSTANT = nfd.RateSchedule(warmup=200)


def curve(
    schedule: nfd.RateSchedule,
    power: float = 0.5,
    fall: float = 0.068,
    *,
    seed: int = 0,
    total: int = TOTAL,
) -> dict[int, float]:
    """Losses at 160 steps of a run whose law is that of the forecast, from its sums over all
    steps.
    """
    random = np.random.default_rng(seed)
    rates = np.array([schedule(step, total) for step in range(total)])
    S = np.cumsum(rates)
    falls = -np.diff(rates, prepend=rates[0])
    falls[: schedule.warmup + 1] = 0.0
    losses = dict[int, float]()
    for step in range(total // 160, total + 1, total // 160):
        h = falls[:step] @ (1 - (1 + (step - np.arange(step)) / 100) ** -0.5)
        form = 0.87 + 0.13 * (S[step - 1] / S[total // 4]) ** -power - fall * h
        losses[step] = 3.3 * form * math.exp(0.0003 * random.normal())
    return losses


def until(losses: dict[int, float], step: int = SEEN) -> dict[int, float]:
    return {at: loss for at, loss in losses.items() if at <= step}


def test_intervals_hold_final_losses_of_runs_with_several_schedules() -> None:
    random = np.random.default_rng(0)
    held = list[bool]()
    errors = list[float]()
    for seed in range(24):
        schedule = (COOLED, COSINE, CONSTANT)[seed % 3]
        power = 0.5 * math.exp(0.2 * random.normal())
        fall = 0.068 * math.exp(0.15 * random.normal())
        losses = curve(schedule, power, fall, seed=seed)
        said = nfd.forecast_run(until(losses), schedule, TOTAL, rate=1e-3)
        assert said.seen == SEEN
        assert said.loss.low < said.loss.value < said.loss.high
        held.append(said.loss.low <= losses[TOTAL] <= said.loss.high)
        errors.append(abs(said.loss.value / losses[TOTAL] - 1))
    assert sum(held) >= 22
    assert np.median(errors) < 0.01


def test_the_drop_of_the_cool_down_is_forecast_before_it_begins() -> None:
    losses = curve(COOLED)
    cooled, constant = (
        nfd.forecast_run(until(losses), s, TOTAL, rate=1e-3).loss for s in (COOLED, CONSTANT)
    )
    assert cooled.value < 0.97 * constant.value
    # what was not seen yet is not known
    assert cooled.high - cooled.low > constant.high - constant.low


@pytest.mark.parametrize("claimed", [CONSTANT, COSINE, COOLED])
@pytest.mark.parametrize("actual", [CONSTANT, COSINE])
def test_a_schedule_that_the_losses_contradict_is_refused_and_a_true_one_is_not(
    actual: nfd.RateSchedule, claimed: nfd.RateSchedule
) -> None:
    """At 70 % of the run a cosine has fallen to a quarter, and the cool-down has not begun."""
    done = until(curve(actual), 5600)
    said = nfd.forecast_run(done, claimed, TOTAL, rate=1e-3)
    if (actual == COSINE) == (claimed == COSINE):
        assert said.contradicted_by == ""
        assert said.refusal is None
        return
    assert "a cosine" in said.contradicted_by or "a constant rate" in said.contradicted_by
    assert "do not follow this schedule" in (said.refusal or "")
    assert said.answer.tone == "bad"


def test_what_is_wrong_only_in_steps_to_come_is_not_contradicted() -> None:
    done = until(curve(COOLED), 5600)
    assert nfd.forecast_run(done, CONSTANT, TOTAL, rate=1e-3).contradicted_by == ""


def test_intervals_hold_from_an_eighth_of_the_run_on() -> None:
    held = list[bool]()
    for seed in range(12):
        schedule = (COOLED, COSINE, CONSTANT)[seed % 3]
        losses = curve(schedule, seed=seed)
        said = nfd.forecast_run(until(losses, TOTAL // 8), schedule, TOTAL, rate=1e-3)
        held.append(said.loss.low <= losses[TOTAL] <= said.loss.high)
    assert sum(held) >= 11


def test_more_of_the_run_narrows_the_forecast() -> None:
    losses = curve(COOLED)
    early, late = (
        nfd.forecast_run(until(losses, step), COOLED, TOTAL).loss for step in (SEEN, 7600)
    )
    assert late.high - late.low < 0.5 * (early.high - early.low)
    assert late.low < losses[TOTAL] < late.high


def test_a_wide_forecast_is_refused_with_a_remedy_and_a_narrow_one_is_not() -> None:
    losses = curve(COOLED)
    unknown = nfd.forecast_run(until(losses, 800), COOLED, TOTAL)
    assert unknown.refusal is not None
    assert "ask again" in unknown.refusal
    assert unknown.answer.tone == "open"
    assert "do not tell where the run ends" in str(unknown)
    narrow = nfd.forecast_run(until(curve(CONSTANT)), CONSTANT, TOTAL)
    assert narrow.refusal is None
    assert narrow.answer.tone == "good"
    assert narrow.table[-1]["step"] == TOTAL
    assert narrow.table[-1]["loss"] == narrow.loss.value
    assert "<svg" in narrow._repr_html_()


@pytest.mark.parametrize(("total", "is_said"), [(400, True), (TOTAL, False)])
def test_an_answer_says_that_short_runs_are_not_covered(total: int, is_said: bool) -> None:
    schedule = nfd.RateSchedule(warmup=total // 40, fall="cosine")
    losses = {step: 2.5 + 4 * step**-0.5 for step in range(total // 20, total // 2, total // 40)}
    answer = nfd.forecast_run(losses, schedule, total).answer
    assert ("hold too few final losses" in str(answer).replace("\n  ", " ")) == is_said
    assert len(str(answer).splitlines()) <= 15


def test_a_rate_that_is_known_narrows_and_moves_the_drop() -> None:
    losses = until(curve(COOLED))
    unknown, low, high = (
        nfd.forecast_run(losses, COOLED, TOTAL, rate=rate).loss for rate in (None, 1e-4, 2e-3)
    )
    assert high.value < low.value
    assert low.high - low.low < unknown.high - unknown.low


def test_schedules_come_as_people_have_them() -> None:
    losses = until(curve(COOLED))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = LambdaLR(optimizer, partial(COOLED, steps=TOTAL))
    rates = [6e-4 * COOLED(step, TOTAL) for step in range(TOTAL)]
    wanted = nfd.forecast_run(losses, COOLED, TOTAL).loss.value
    for schedule in (scheduler.lr_lambdas[0], rates, np.array(rates)):
        assert nfd.forecast_run(losses, schedule, TOTAL).loss.value == pytest.approx(
            wanted, rel=1e-9
        )
    # one loss for each step
    every = np.interp(range(1, SEEN + 1), list(losses), list(losses.values())).tolist()
    assert nfd.forecast_run(every, COOLED, TOTAL).loss.value == pytest.approx(wanted, rel=0.01)


def test_what_cannot_be_answered_says_why() -> None:
    losses = until(curve(COOLED))
    with pytest.raises(ValueError, match="at least 5 losses"):
        nfd.forecast_run(until(losses, 400), COOLED, TOTAL)
    with pytest.raises(ValueError, match="total_steps must be at least the 2000 steps"):
        nfd.forecast_run(losses, COOLED, 1000)
    with pytest.raises(ValueError, match="finite and above 0"):
        nfd.forecast_run(losses | {SEEN: math.nan}, COOLED, TOTAL)
    with pytest.raises(ValueError, match="a rate for each of the 8000 steps"):
        nfd.forecast_run(losses, [1.0] * 10, TOTAL)
    with pytest.raises(ValueError, match="finite rates"):
        nfd.forecast_run(losses, lambda step: -1.0, TOTAL)
    with pytest.raises(TypeError, match="schedule must be"):
        nfd.forecast_run(losses, "cosine", TOTAL)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step must be"):
        nfd.forecast_run(losses, COOLED, TOTAL).at(100)


SHORT = 480
FAST = nfd.RateSchedule(warmup=10, fall="linear", share=0.4)


def watched(losses: dict[int, float]) -> nfd.Watch:
    """A watch that was given the losses of a run, and made a forecast after its first quarter."""
    model = Residual(8, 2)
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    plan = nfd.plan(model, rule="complete-p", make_model=Residual, base=(8, 2), sample=x)
    watch = nfd.Watch(plan.apply_(model, 0), plan, x, every=12)
    with warnings.catch_warnings():
        # the model does not train, which is told where it is tested
        warnings.simplefilter("ignore", RuntimeWarning)
        for step in range(1, SHORT + 1):
            watch.step(
                torch.tensor(losses[step]) if step in losses and step % 2 else losses.get(step)
            )
            if step == SHORT // 4:
                watch.forecast(SHORT, FAST, rate=1e-3)
    return watch


def test_a_watch_alerts_to_losses_that_leave_the_forecast_and_not_to_those_that_follow_it() -> None:
    losses = curve(FAST, total=SHORT)
    assert [alert for alert in watched(losses).alerts if alert.cause.name == "LOSS"] == []
    broken = {
        step: loss * (1.05 if step > SHORT // 2 else 1.0) for step, loss in losses.items()
    } | {60: math.nan}
    (alert,) = [alert for alert in watched(broken).alerts if alert.cause.name == "LOSS"]
    assert alert.meter == "loss"
    assert alert.layer is None
    assert SHORT // 2 < alert.since <= alert.step <= SHORT // 2 + 24
    assert alert.band is not None
    assert alert.value > alert.band.high
    assert "left the band of its forecast" in str(alert)


def test_losses_of_a_watch_are_stored_with_it() -> None:
    watch = watched(curve(FAST, total=SHORT))
    state = json.loads(json.dumps(watch.state_dict(start=False)))
    again = watched({1: 1.0} | curve(FAST, total=SHORT))
    again.load_state_dict(state)
    assert again.losses == watch.losses
    assert again.forecast(SHORT, FAST).seen == SHORT


STEPS = np.arange(50, 2001, 50)
LONG = 5 / np.sqrt(STEPS)
RISING = {
    "steadily": 3 + 0.3 * STEPS / 2000,
    "by a hundredth": 3 + 0.03 * STEPS / 2000,
    "as it overfits": 2.5 + LONG + np.clip(STEPS - 1500, 0, None) * 3e-4,
    "as it diverges": 2.5 + LONG + np.exp((STEPS - 2000) / 100),
}
NOT_RISING = {
    "noise on a plateau": np.full(len(STEPS), 3.0),
    "a rise after the warm-up": 2.5 + LONG + 0.8 * np.exp(-(((STEPS - 250) / 80) ** 2)),
    "a spike that it leaves": 2.5
    + LONG
    + np.where(STEPS > 1600, 0.5 * np.exp(-(STEPS - 1600) / 60), 0),
}


@pytest.mark.parametrize("schedule", [CONSTANT, COSINE])
@pytest.mark.parametrize("how", [*RISING, *NOT_RISING])
def test_losses_that_rise_are_refused_and_noise_and_spikes_are_not(
    how: str, schedule: nfd.RateSchedule
) -> None:
    random = np.random.default_rng(0)
    means = (RISING | NOT_RISING)[how]
    losses = dict(zip(STEPS.tolist(), means + 0.002 * random.normal(size=len(STEPS)), strict=True))
    said = nfd.forecast_run(losses, schedule, TOTAL)
    assert said.rises == (how in RISING)
    assert ("The losses rise: from" in (said.refusal or "")) == said.rises
    if said.rises:
        assert said.answer.tone == "bad"
        assert len(str(said).splitlines()) <= 15


def test_no_plateau_of_a_hundred_is_taken_for_a_rise() -> None:
    random = np.random.default_rng(0)
    for _ in range(100):
        noise = 0.09 * random.normal(size=len(STEPS))
        losses = dict(zip(STEPS.tolist(), 3 + noise, strict=True))
        assert not nfd.forecast_run(losses, CONSTANT, TOTAL).rises


def test_steps_that_are_texts_are_refused() -> None:
    with pytest.raises(TypeError, match=r"keys are numbers.*got the keys 50"):
        nfd.forecast_run({"50": 3.0}, CONSTANT, TOTAL)  # type: ignore[dict-item]


def test_losses_after_the_rate_has_ended_stay_where_they_are() -> None:
    rates = [1.0] * (TOTAL // 8) + [0.0] * (TOTAL - TOTAL // 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        said = nfd.forecast_run(dict.fromkeys(range(6000, 7000, 100), 3.0), rates, TOTAL)
    assert said.loss.low < 3.0 < said.loss.high
    assert not said.rises
