"""A watch that expects what a check of small networks says: faults of a training are named, with
their layer.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import SHIFTED, Language, train
from torch import Tensor, nn

import nfd

Factor = Callable[[int], float]


def falls(step: int) -> float:
    """Hugging Face's Trainer's schedule."""
    return 1 - step / len(SHIFTED)


def warms_up(step: int) -> float:
    return min(1.0, (step + 1) / len(SHIFTED))


@cache
def ladder(schedule: Factor | None = None) -> nfd.Check:
    task = nfd.Task(SHIFTED, weight_decay=0.01, schedule=schedule)
    return nfd.check(
        Language, task, [8, 16], [2, 4], 5e-3, rule="complete-p", optimizer="adamw", at=(1, 2, 4, 8)
    )


Change = Callable[[Any, list[dict[str, Any]]], None]


def alerts(change: Change | None, expected: Any) -> list[Any]:
    """The alerts of a network under a watch, its model and groups changed before training."""
    return watched(change, expected).alerts


def watched(
    change: Change | None,
    expected: Any,
    schedule: Factor | None = None,
    *,
    steps_first: bool = False,
    stored: Any = None,
) -> nfd.Watch:
    """The watch of a network whose model and groups are changed before training.

    ``steps_first``: the loop steps the scheduler before the watch. ``stored``: the state of an
    earlier watch, which this one goes on from without training.
    """
    family = nfd.Family(Language, base=(8, 2), rule="complete-p", sample=SHIFTED[0][0])
    model = family.build(32, 8, seed=1)
    plan = family.plan(32, 8)
    groups = plan.param_groups(model, lr=5e-3, weight_decay=0.01)
    if change is not None:
        change(model, groups)
    optimizer = torch.optim.AdamW(groups)
    watch = nfd.Watch(model, plan, SHIFTED[0][0], 2, expected)
    if stored is not None:
        watch.load_state_dict(stored)
        return watch
    if schedule is None:
        train(model, optimizer, SHIFTED, watch)
        return watch
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)

    class Steps:
        def step(self) -> None:
            calls = [watch.step, scheduler.step]
            for call in reversed(calls) if steps_first else calls:
                call()

    train(model, optimizer, SHIFTED, Steps())
    return watch


def wrong_multiplier(model: Any, _: Any) -> None:
    model.blocks[6].down.register_forward_hook(lambda module, inputs, out: 8 * out)


def frozen(model: Any, _: Any) -> None:
    model.blocks[6].requires_grad_(requires_grad=False)


def forgotten_rate(model: Any, groups: list[dict[str, Any]]) -> None:
    """The embedding has the rate of the blocks."""
    (group,) = (g for g in groups if any(p is model.tokens.weight for p in g["params"]))
    group["params"] = [p for p in group["params"] if p is not model.tokens.weight]
    groups.append(group | {"params": [model.tokens.weight], "lr": group["lr"] / 4})


def strong_decay(_: Any, groups: list[dict[str, Any]]) -> None:
    for group in groups:
        group["weight_decay"] *= 3000


@pytest.mark.parametrize(
    ("change", "cause", "layer"),
    [
        (wrong_multiplier, "multiplier", "blocks.6"),
        (frozen, "frozen", "blocks.6"),
        (forgotten_rate, "rate", "tokens"),
        (strong_decay, "decay", ""),
        (None, "", ""),
    ],
)
def test_a_fault_of_a_training_is_named_with_its_layer(
    change: Any, cause: str, layer: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = alerts(change, ladder())
    told = [str(warning.message) for warning in warned]
    assert len(told) == len({alert.cause for alert in found})
    assert all(any(alert.layer in text for text in told) for alert in found if alert.layer)
    assert [
        (alert.cause, (getattr(alert, "layer", None) or "")[: len(layer)]) for alert in found[:1]
    ] == ([(cause, layer)] if cause else [])
    if change is frozen:
        ladder().save(tmp_path / "result.json")
        with pytest.warns(RuntimeWarning, match="2 layers do not train"):
            assert alerts(change, tmp_path) == found


def test_what_holds_no_check_of_this_plan_is_refused(tmp_path: Path) -> None:
    stored = ladder().ladder
    path = tmp_path / "other.json"
    older = [
        run | {"readings": [reading[:5] for reading in run["readings"]]}
        for run in stored["networks"]
    ]
    bad = (
        (stored | {"rule": "mup"}, "rule='mup'"),
        (stored | {"base": [4, 2]}, "counts from 4 x 2"),
        ({}, "not the ladder"),
        (stored | {"networks": older}, "not the ladder"),
    )
    for other, said in bad:
        path.write_text(json.dumps({"ladder": other}))
        with pytest.raises(ValueError, match=said):
            alerts(None, path)
    with pytest.raises(ValueError, match="holds no check"):
        alerts(None, tmp_path / "none.json")
    with pytest.raises(TypeError, match="path where one was stored"):
        alerts(None, 3)


def test_a_meter_that_an_earlier_version_defined_otherwise_is_not_compared(tmp_path: Path) -> None:
    stored = ladder().ladder
    path = tmp_path / "older.json"
    path.write_text(
        json.dumps(
            {"ladder": {name: value for name, value in stored.items() if name != "definition"}}
        )
    )
    with pytest.warns(RuntimeWarning, match="stream_update left out factors"):
        older = compared(path)
    assert compared(ladder()) - older == {"stream_update"}
    path.write_text(json.dumps({"ladder": stored}))
    assert compared(path) == compared(ladder())


def compared(expected: Any) -> set[str]:
    """The meters of a look that have a band."""
    family = nfd.Family(Language, base=(8, 2), rule="complete-p", sample=SHIFTED[0][0])
    model = family.build(32, 8, seed=1)
    plan = family.plan(32, 8)
    watch = nfd.Watch(model, plan, SHIFTED[0][0], 1, expected)
    train(model, plan.make_optimizer(model, lr=5e-3), SHIFTED[:1], watch)
    return {row.meter for row in watch.rows if watch.band(row) is not None}


class Wider(Language):
    """With one more matrix between the tokens and the blocks."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.more = nn.Linear(width, width)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.head(self.norm(self.blocks(self.more(self.tokens(input_ids)))))


def test_a_check_of_networks_with_other_layers_is_refused() -> None:
    family = nfd.Family(Wider, base=(8, 2), rule="complete-p", sample=SHIFTED[0][0])
    model = family.build(32, 8)
    plan = family.plan(32, 8)
    with pytest.raises(ValueError, match="other layers: the model alone has 'more'"):
        nfd.Watch(model, plan, SHIFTED[0][0], 2, ladder())


# ---- the schedule of the learning rate


def slow(_: Any, groups: list[dict[str, Any]]) -> None:
    for group in groups:
        group["lr"] /= 20


def absolute(_: Any, groups: list[dict[str, Any]]) -> None:
    """Noam's way: the scheduler multiplies 1 by the rate."""
    for group in groups:
        group["lr"] /= 5e-3


@pytest.mark.parametrize(
    ("of_small", "of_run", "told"),
    [
        (
            None,
            falls,
            "your learning rate has fallen to 0.12 of its peak at step 8, the small networks' "
            "stayed",
        ),
        (None, warms_up, "your learning rate was 0.25 of its peak at step 2, the small"),
        (
            falls,
            None,
            "your learning rate stayed at its peak at step 8, the small networks' was 0.12 of its",
        ),
    ],
)
def test_under_another_schedule_no_quantity_is_judged_by_bands(
    of_small: Factor | None, of_run: Factor | None, told: str
) -> None:
    watch = watched(None, ladder(of_small), of_run or (lambda step: 1.0))
    assert watch.alerts == []
    answer = watch.answer
    assert answer.tone == "open"
    assert answer.title == "The learning rate left the small networks' schedule"
    assert told in answer.because
    assert "Check with nfd.Task(batches, schedule=lambda step: ...)" in answer.because
    assert answer.because.count("Only frozen and broken layers are judged") == 1
    assert "not judged" in watch.line


@pytest.mark.parametrize("steps_first", [False, True])
@pytest.mark.parametrize("schedule", [None, falls, warms_up])
def test_under_the_same_schedule_every_quantity_is_judged(
    schedule: Factor | None, steps_first: bool
) -> None:
    watch = watched(None, ladder(schedule), schedule, steps_first=steps_first)
    assert (watch.alerts, watch.off_schedule) == ([], None)
    assert watch.answer.tone == "good"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("all_explode", [False, True])
def test_a_rate_that_explodes_alone_is_not_taken_for_a_schedule(all_explode: bool) -> None:
    """Every group has a schedule of its own; from the third step one is 30 times as high, or
    all.
    """
    factors = list[Factor]()

    def apart(model: Any, groups: list[dict[str, Any]]) -> None:
        (group,) = (g for g in groups if any(p is model.tokens.weight for p in g["params"]))
        group["params"] = [p for p in group["params"] if p is not model.tokens.weight]
        groups.append(group | {"params": [model.tokens.weight]})
        factors.extend([explodes if all_explode else lambda step: 1.0] * len(groups))
        factors[-1] = explodes

    watch = watched(apart, ladder(), factors)  # type: ignore[arg-type]
    assert (watch.off_schedule is not None) == all_explode
    named = [(alert.cause, alert.layer) for alert in watch.alerts]
    assert (("rate", "tokens") in named) == (not all_explode)


def explodes(step: int) -> float:
    return 30.0 if step >= 2 else 1.0


def test_a_scheduler_of_absolute_rates_is_no_other_schedule() -> None:
    watch = watched(absolute, ladder(falls), lambda step: 5e-3 * falls(step))
    assert (watch.off_schedule, watch.answer.tone) == (None, "good")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (None, "The learning rate is 0.00025, the small networks' was 0.005"),
        (falls, "The learning rate is 0.00025, the small networks' was 0.005"),
        # Both by the warm-up's first step
        (warms_up, "The learning rate is 3.13e-5, the small networks' was 0.000625"),
    ],
)
def test_a_lower_rate_at_the_same_schedule_is_told(schedule: Factor | None, told: str) -> None:
    watch = watched(slow, ladder(schedule), schedule)
    assert watch.off_schedule is None
    assert watch.alerts[0].cause == "all-rates"
    assert told in watch.answer.because


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("schedule", [falls, warms_up])
def test_a_frozen_layer_is_named_under_another_schedule(schedule: Factor) -> None:
    watch = watched(frozen, ladder(), schedule)
    assert {(alert.cause, (alert.layer or "")[:8]) for alert in watch.alerts} == {
        ("frozen", "blocks.6")
    }
    assert len(watch.alerts) == 2
    assert "Only frozen and broken" in watch.answer.but.capitalize()


def test_a_watch_that_goes_on_knows_the_schedule_so_far() -> None:
    watch = watched(None, ladder(), falls)
    state = json.loads(json.dumps(watch.state_dict(start=False)))
    later = watched(None, ladder(), stored=state)
    assert watch.off_schedule is not None
    assert later.off_schedule == watch.off_schedule
    assert (later.alerts, later.unjudged_since) == ([], watch.unjudged_since)
    follows = watched(None, ladder(falls), falls)
    state = json.loads(json.dumps(follows.state_dict(start=False)))
    assert watched(None, ladder(falls), stored=state).off_schedule is None


@pytest.mark.filterwarnings("ignore")
def test_a_check_that_was_stored_without_its_schedule_is_compared_as_before(
    tmp_path: Path,
) -> None:
    stored = dict(ladder().ladder)
    assert stored.pop("schedule") == [1.0] * len(SHIFTED)
    path = tmp_path / "old.json"
    path.write_text(json.dumps({"ladder": stored}))
    assert watched(None, path).answer.tone == "good"
    # The false alarm that a stored schedule prevents
    warmed_up = watched(None, path, warms_up)
    assert warmed_up.off_schedule is None
    assert [alert.cause for alert in warmed_up.alerts] == ["all-rates"]


# ---- the worst layer of a fault


def two_multipliers(worst: float, other: float) -> Change:
    def change(model: Any, _: Any) -> None:
        for block, factor in ((2, other), (5, worst)):

            def multiplied(_: Any, __: Any, out: Tensor, factor: float = factor) -> Tensor:
                return factor * out

            model.blocks[block].down.register_forward_hook(multiplied)

    return change


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("worst", "other", "is_named"), [(60.0, 4.0, True), (8.0, 8.0, False)])
def test_the_worst_block_is_named_where_it_stands_out(
    worst: float, other: float, is_named: bool
) -> None:
    answer = watched(two_multipliers(worst, other), ladder()).answer
    assert answer.title.startswith("The outputs of ")
    assert ("(worst: blocks.5, " in answer.title) == is_named
    places = [row["of"] for row in answer.table]
    assert places[0] == "blocks.5"
    assert "blocks.2" in places
    assert "In blocks.5 the RMS added to the stream" in answer.because


# ---- code that shows numbers is not called a fix


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_grown", [True, False])
def test_a_diagnosis_is_not_called_a_fix_and_runs_without_gradients(is_grown: bool) -> None:
    torch.manual_seed(0)
    model = Language(32, 8)
    layer: Any = model.blocks[6].up
    layer.bias.requires_grad_(False)
    layer.weight.requires_grad_(is_grown)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.01)
    watch = nfd.Watch(model, None, SHIFTED[0][0], 2, plain_ladder())

    class Grows:
        @torch.no_grad()
        def step(self) -> None:
            if is_grown:
                layer.weight.add_(0.05 * layer.weight.sign())
            watch.step()

    train(model, optimizer, SHIFTED, Grows())
    assert [alert.cause for alert in watch.alerts] == ["change" if is_grown else "frozen"]
    assert "plan's" not in watch.alerts[0].reason
    suggested = watch.answer.next
    assert suggested is not None
    assert ("fix it" in suggested.label) != is_grown
    assert suggested.code.startswith("print(") == is_grown
    exec(suggested.code, {"model": model})


@cache
def plain_ladder() -> nfd.Check:
    task = nfd.Task(SHIFTED, weight_decay=0.01)
    return nfd.check(
        Language,
        task,
        [8, 16],
        [2, 4],
        5e-3,
        rule="standard",
        optimizer="adamw",
        at=(1, 2, 4, 8),
        remedy=False,
    )
