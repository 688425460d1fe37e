"""Bands of meters at a larger size, and what left them: on ladders whose law is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from nfd.core.errors import InputError
from nfd.meters.reading import Series, WatchRow
from nfd.watch.bands import Bands, Ladder, LadderRun
from nfd.watch.causes import Alarm, Alert, Cause

STEPS = (1, 2, 4, 8, 16, 32)
WIDE = 128
DEEP = 8
LAYERS = {
    "change": ("up", "down"),
    "update": ("up", "down"),
    "weight": ("up", "down"),
    "added": ("",),
}
LATER = {"weight": 0.0}  # powers of the step; 0.5 for the others


def law(meter: str, width: float, depth: float, step: int, place: float) -> float:
    """What a meter is without noise: a power of the step, with corrections that fall with size,
    sloped along blocks.
    """
    return step ** LATER.get(meter, 0.5) * (1 + 4 / width + 0.3 / depth) * (1 + 0.3 * place)


def network(
    width: int, depth: int, seed: int, noise: float = 0.04, steps: tuple[int, ...] = STEPS
) -> list[WatchRow]:
    """The rows of a network: what it differs by stays, and so does what its layers differ by."""
    g = np.random.default_rng([width, depth, seed])
    own = noise * g.normal()

    def rows(meter: str, layer: str | None, block: int | None) -> Iterator[WatchRow]:
        place = 0.0 if block is None else block / max(depth - 1, 1)
        factor = math.exp(own + noise * g.normal())
        share = None if block is None else (block + 1) / depth
        for step in steps:
            value = (
                law(meter, width, depth, step, place) * factor * math.exp(noise / 2 * g.normal())
            )
            yield WatchRow(
                step,
                meter,
                layer,
                share,
                value,
                layer if block is None else str(layer).split(".", 2)[2],
            )

    found = [*rows("function_update", None, None), *rows("change", "embed", None)]
    for meter, layers in LAYERS.items():
        for block in range(depth):
            for layer in layers:
                found += rows(meter, f"blocks.{block}.{layer}", block)
    return found


def ladder(draw: int = 0, noise: float = 0.04, seeds: int = 3) -> Ladder:
    return Ladder(
        [
            LadderRun(n, L, network(n, L, 100 * draw + s, noise))
            for n in (32, 64)
            for L in (2, 4)
            for s in range(seeds)
        ],
        (32, 2),
    )


def alerts_of(rows: list[WatchRow], bands: Bands) -> list[Alert]:
    alarm = Alarm(bands)
    return [
        alert for step in STEPS for alert in alarm.alerts([row for row in rows if row.step == step])
    ]


@cache
def bands_of(draw: int = 0, noise: float = 0.04, blocks: int = DEEP) -> Bands:
    return Bands(ladder(draw, noise), WIDE, DEEP, [blocks])


# ---- the bands


def test_a_law_between_a_power_and_a_limit_lies_within_its_narrow_band() -> None:
    bands = bands_of(noise=1e-4)
    for step in (1, 3, 32):
        for block in (0, 3, 7):
            truth = law("change", WIDE, DEEP, step, block / 7)
            band = bands.at(Series("change", "up", 0), step, (block + 1) / 8, truth)
            assert band.low < truth < band.high
            assert abs(band.deviation) < bands.alone <= bands.limit
            assert band.value == pytest.approx(truth, rel=0.03)
            assert band.high / band.low < 1.3


def test_there_is_a_band_for_what_the_ladder_saw_alone() -> None:
    bands = bands_of()
    assert bands.at(Series("change", "up", 0), 33, 0.5, 1.0) is None
    assert bands.at(Series("dead", "up", 0), 8, 0.5, 1.0) is None
    zero = bands.at(Series("change", "up", 0), 8, 0.5, 0.0)
    assert -1e3 < zero.deviation < -10


def test_intervals_of_single_numbers_hold_95_percent_of_new_networks() -> None:
    inside = []
    for draw in range(8):
        bands = bands_of(draw)
        for row in network(WIDE, DEEP, 100 * draw + 50, steps=(4, 16)):
            if row.layer is None or row.layer == "embed":
                band = bands.at(Series(row.meter, row.layer, None), row.step, None, row.value)
                inside.append(abs(band.deviation) <= bands.alone)
    assert np.mean(inside) > 0.83  # 0.95, less two standard errors of 16 independent numbers


def test_few_of_many_sound_networks_raise_an_alert() -> None:
    raised = 0
    for draw in range(4):
        bands = bands_of(draw)
        raised += sum(
            bool(alerts_of(network(WIDE, DEEP, 100 * draw + 50 + s), bands)) for s in range(5)
        )
    assert raised <= 3  # one is expected of 20, and more than three have a chance of 1.6 %


def test_a_ladder_that_cannot_tell_is_refused() -> None:
    with pytest.raises(
        InputError,
        match=r"at least 6 networks that trained to the end; got 4\. Check with more seeds",
    ):
        Bands(ladder(seeds=1), WIDE, DEEP, [DEEP])
    runs = ladder().networks
    with pytest.raises(InputError, match="networks of width 32 alone, and the model has width 128"):
        Bands(Ladder([run for run in runs if run.width == 32], (32, 2)), WIDE, DEEP, [DEEP])
    once = [replace(run, rows=[row for row in run.rows if row.step == 4]) for run in runs]
    with pytest.raises(InputError, match=r"looked at two steps or more; got \[4\]"):
        Bands(Ladder(once, (32, 2)), WIDE, DEEP, [DEEP])


def test_under_muon_the_largest_singular_value_shows_a_layer_not_the_rank_of_its_change() -> None:
    """Changes by all entries grow with the rank of gradients, here as no law of size does."""

    def rows(network: list[WatchRow], width: float, frozen: str = "") -> list[WatchRow]:
        changes = [row for row in network if row.meter == "change"]
        spectral = [
            replace(row, meter="update_to_weight", value=row.value * (row.layer != frozen))
            for row in changes
        ]
        others = [row for row in network if row.meter not in ("change", "weight")]
        return [
            *others,
            *spectral,
            *(replace(row, value=row.value * (1 + (width > 64))) for row in changes),
        ]

    runs = [replace(run, rows=rows(list(run.rows), run.width)) for run in ladder().networks]
    by = {
        kind: Bands(Ladder(runs, (32, 2), optimizer=kind), WIDE, DEEP, [DEEP])
        for kind in ("muon", "adamw")
    }
    large = network(WIDE, DEEP, 50)
    frozen = "blocks.6.up"
    assert Series("change", "up", 0) not in by["muon"].ladder.curves
    assert Series("change", "embed", None) in by["muon"].ladder.curves  # AdamW's
    found = {
        kind: alerts_of([r for r in rows(large, WIDE) if r.layer != "embed"], bands)
        for kind, bands in by.items()
    }
    assert not found["muon"]
    assert found["adamw"]
    (alert,) = alerts_of([r for r in rows(large, WIDE, frozen) if r.layer != "embed"], by["muon"])
    assert (alert.meter, alert.layer, alert.cause) == ("update_to_weight", frozen, Cause.FROZEN)


# ---- what left them

Fault = Callable[[WatchRow], float]


def of_layer(layer: str, *meters: str, factor: float, since: int = 0) -> Fault:
    def faulty(row: WatchRow) -> float:
        return factor if row.layer == layer and row.meter in meters and row.step >= since else 1.0

    return faulty


def of_all(meter: str, factor: float, since: int = 0) -> Fault:
    return lambda row: factor if row.meter == meter and row.step >= since else 1.0


SEVENTH = "blocks.6.up"
FAULTS: dict[str, tuple[Fault, Cause, str | None, int]] = {
    "frozen": (of_layer(SEVENTH, "change", "update", factor=0.0), Cause.FROZEN, SEVENTH, 1),
    "rate": (of_layer("embed", "change", "update", factor=0.25), Cause.RATE, "embed", 1),
    "rate of a block": (of_layer(SEVENTH, "change", "update", factor=3.0), Cause.RATE, SEVENTH, 1),
    "multiplier": (of_layer("blocks.6.", "added", factor=3.0), Cause.MULTIPLIER, "blocks.6.", 1),
    "stopped": (of_layer(SEVENTH, "change", factor=0.4, since=8), Cause.RATE, SEVENTH, 8),
    "all rates": (of_all("change", 2.5), Cause.ALL_RATES, None, 1),
    "schedule": (of_all("change", 0.4, since=8), Cause.ALL_RATES, None, 8),
    "decay": (of_all("weight", 0.3, since=4), Cause.DECAY, None, 4),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_layer_and_the_look_since_when(name: str) -> None:
    fault, cause, layer, since = FAULTS[name]
    rows = [
        replace(row, value=row.value * fault(row)) for row in network(WIDE, DEEP, 7, noise=0.02)
    ]
    found = alerts_of(rows, bands_of(noise=0.02))
    assert [(alert.cause, alert.layer, alert.since) for alert in found] == [(cause, layer, since)]
    (alert,) = found
    assert alert.step > since
    assert alert.band is not None
    assert not alert.band.low <= alert.value <= alert.band.high
    assert alert.remedy in str(alert)
    assert f"since step {since}" in str(alert)


def test_what_leaves_its_band_for_one_look_is_no_alert() -> None:
    spike = [
        replace(row, value=row.value * (9 if row.step == 8 else 1))
        for row in network(WIDE, DEEP, 7)
    ]
    assert alerts_of(spike, bands_of()) == []


def test_a_pattern_without_a_known_cause_waits_for_one_and_is_told() -> None:
    rows = [
        replace(row, value=row.value * (4 if row.meter == "function_update" else 1))
        for row in network(WIDE, DEEP, 7)
    ]
    (alert,) = alerts_of(rows, bands_of())
    assert (alert.cause, alert.meter, alert.layer, alert.since, alert.step) == (
        Cause.UNKNOWN,
        "function_update",
        None,
        1,
        8,
    )


def test_numbers_that_are_not_finite_are_told_at_once() -> None:
    rows = [
        replace(row, value=math.nan if row.step >= 16 else row.value)
        for row in network(WIDE, DEEP, 7)
    ]
    (alert,) = alerts_of(rows, bands_of())
    assert (alert.cause, alert.step, alert.band) == (Cause.BROKEN, 16, None)
