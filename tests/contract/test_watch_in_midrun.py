"""What a watch says of a training that was sound and is changed in mid-run: what stops, jumps,
rises or is no longer finite, and what only looks so.
"""

from __future__ import annotations

import html
import io
import math
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches
from torch import Tensor, nn
from torch.optim import lr_scheduler

import nfd

STEPS = 18
EVERY = 2
BATCHES = batches(STEPS)
SAMPLE = BATCHES[0][0]
LR = 3e-3
# The step after which a training is changed
AT = 6
LAYER = "blocks.1.1"
# What is done to the model and the optimizer at a step, counted from 1, after the gradients are
# there
Change = Callable[[Any, torch.optim.Optimizer, int], None]


@cache
def checked(rule: Any) -> nfd.Check:
    """Small networks, looked at at every look of a watch."""
    at = tuple(range(EVERY, STEPS + 1, EVERY))
    settings: dict[str, Any] = {"rule": rule, "optimizer": "adamw", "lr": LR, "seeds": 2, "at": at}
    return nfd.check(ResidualMLP, BATCHES, [16, 32], [2, 4], **settings, remedy=False)


def steady(step: int) -> float:
    """A loss that falls, and is not smooth."""
    return 2.0 - step / STEPS + 0.1 * (step % 2)


def trained(
    change: Change,
    *,
    rule: Any = None,
    model: nn.Module | None = None,
    schedule: Callable[[int], float] | None = None,
    loss_at: Callable[[int], float] = steady,
    steps_at: Callable[[int], bool] = bool,
    expected: nfd.Check | None = None,
) -> nfd.Watch:
    """The watch of a training to which ``change`` is done before every step of the optimizer."""
    torch.manual_seed(0)
    network = ResidualMLP(32, 3) if model is None else model
    plan = None
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(
        [{"params": [p], "lr": LR} for p in network.parameters()], weight_decay=0.0
    )
    if rule is not None:
        plan = nfd.plan(network, rule=rule, make_model=ResidualMLP, base=(16, 2), sample=SAMPLE)
        plan.apply_(network)
        optimizer = plan.make_optimizer(network, lr=LR)
        expected = checked(rule)
    watch = nfd.Watch(network, plan, SAMPLE, every=EVERY, expected=expected)
    scheduler = None if schedule is None else lr_scheduler.LambdaLR(optimizer, schedule)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step, (x, y) in enumerate(BATCHES, 1):
            nn.functional.cross_entropy(network(x), y).backward()
            change(network, optimizer, step)
            if steps_at(step):
                optimizer.step()
            watch.step(loss_at(step))
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    assert watch.failed is None
    return watch


def nothing(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Leave the training as it is."""


def told(watch: nfd.Watch) -> str:
    return " ".join(f"{watch} {' '.join(map(str, watch.alerts))}".split())


def of(watch: nfd.Watch, *causes: str) -> list[tuple[str, str | None]]:
    return [(alert.cause, alert.layer) for alert in watch.alerts if alert.cause in causes]


# ---- what stops


def freeze(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    # The gradients of this step are there already.
    if step >= AT:
        model.get_submodule(LAYER).requires_grad_(requires_grad=False)


def take_out(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Take the layer out of the optimizer."""
    if step > AT:
        weight = model.get_submodule(LAYER).weight
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p is not weight]


def cut_off(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Give the layer no gradients."""
    if step > AT:
        model.get_submodule(LAYER).weight.grad = None


@pytest.mark.parametrize("rule", [None, "standard", "complete-p"])
@pytest.mark.parametrize(
    ("change", "looks", "why"),
    [
        (freeze, 1, "They require no gradients"),
        (take_out, 2, "The optimizer lacks"),
        (cut_off, 4, "gets no gradients"),
    ],
)
def test_a_layer_that_stops_in_mid_run_is_told_with_its_reason(
    rule: Any, change: Change, looks: int, why: str
) -> None:
    watch = trained(change, rule=rule)
    (alert,) = watch.alerts
    assert (alert.cause, alert.layer) == ("stopped", LAYER)
    assert (alert.since, alert.step) == (AT, AT + looks * EVERY)
    assert f"{LAYER} has not changed since step {AT}" in html.unescape(watch.answer.title)
    assert why in told(watch)
    assert "lower the learning rate" not in told(watch).lower()


class WithExpert(ResidualMLP):
    """Has an expert that training uses at every third step; and an average of its weights."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.expert = nn.Linear(width, width)
        self.average = nn.Linear(width, width).requires_grad_(requires_grad=False)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + block(h)
        self.calls += self.training
        if not self.training or self.calls % 6 == 1:
            h = h + self.expert(h)
        out: Tensor = self.head(self.norm(h + self.average(h)))
        return out


def averaged(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Copy weights at a few steps, as into a network that gives targets."""
    if step in (3, 4, 11):
        model.average.weight.data.lerp_(model.expert.weight.data, 0.5)


class Looked(ResidualMLP):
    """Adds rows of a table, which few batches look up."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.table = nn.Embedding(4, 64, sparse=True)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        if not self.training or self.calls < 5 or self.calls % 6 == 0:
            x = x + self.table(torch.zeros(len(x), dtype=torch.long))
        return super().forward(x)


def no_rate(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """End the schedule of one layer before that of the others."""
    if step > AT:
        for group in optimizer.param_groups:
            if group["params"][0] is model.get_submodule(LAYER).weight:
                group["lr"] = 0.0


def frozen_first(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    model.blocks[0].requires_grad_(step > 12)


def sound(case: str) -> nfd.Watch:
    if case == "an expert, and an average":
        return trained(averaged, model=WithExpert(32, 3))
    if case == "frozen from the start":
        model = ResidualMLP(32, 3)
        model.blocks[0].requires_grad_(requires_grad=False)
        return trained(nothing, model=model)
    if case == "frozen at first":
        model = ResidualMLP(32, 3)
        model.blocks[0].requires_grad_(requires_grad=False)
        return trained(frozen_first, model=model)
    if case == "the rate is zero by a schedule":
        return trained(no_rate)
    if case == "all rates are zero by a schedule":
        return trained(nothing, schedule=lambda step: float(step < AT))
    if case == "gradients are accumulated":
        return trained(nothing, steps_at=lambda step: step % 6 == 1)
    assert case == "nothing"
    return trained(nothing, rule="standard")


@pytest.mark.parametrize(
    "case",
    [
        "an expert, and an average",
        "frozen from the start",
        "frozen at first",
        "the rate is zero by a schedule",
        "all rates are zero by a schedule",
        "gradients are accumulated",
        "nothing",
    ],
)
def test_layers_that_rest_for_a_reason_are_not_told(case: str) -> None:
    watch = sound(case)
    assert watch.alerts == []
    rows = [row.value for row in watch.rows if row.meter == "change"]
    assert len(set(rows)) > 10  # others train


def test_a_table_that_few_batches_look_up_is_not_told() -> None:
    torch.manual_seed(0)
    model = Looked(32, 3)
    watch = nfd.Watch(model, None, SAMPLE, every=EVERY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in BATCHES:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        watch.step()
    table = [row.value for row in watch.rows if (row.meter, row.layer) == ("change", "table")]
    assert len(set(table)) < len(table)  # It rests between looks.
    assert watch.alerts == []


def test_a_resumed_watch_knows_what_had_stopped_and_goes_on_to_find_it() -> None:
    whole = trained(freeze)
    torch.manual_seed(0)
    again = nfd.Watch(ResidualMLP(32, 3), None, SAMPLE, every=EVERY)
    again.load_state_dict(whole.state_dict())
    assert again.alerts == whole.alerts
    assert again.state_dict()["signs"] == whole.state_dict()["signs"]


# ---- what jumps


def multiplied(factor: float) -> Change:
    def change(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == 9:
            model.get_submodule(LAYER).weight.data.mul_(factor)

    return change


@pytest.mark.parametrize("rule", [None, "standard", "complete-p"])
@pytest.mark.parametrize(("factor", "size"), [(0.0, "weights near zero"), (30.0, "times as large")])
def test_a_jump_is_said_as_a_jump_and_the_rate_is_not_blamed(
    rule: Any, factor: float, size: str
) -> None:
    watch = trained(multiplied(factor), rule=rule)
    assert of(watch, "jump") == [("jump", LAYER)]
    assert of(watch, "change", "rate", "all-rates", "multiplier", "unknown") == []
    text = told(watch)
    assert "jumped between steps 8 and 10 (" in text
    assert size in text
    assert "checkpoint of step 8 or before" in text
    assert "lower the learning rate" not in text
    assert watch.answer.next is not None
    sizes = [row for row in watch.rows if (row.meter, row.layer) == ("weight", LAYER)]
    assert printed(watch).strip() == str([(row.step, row.value) for row in sizes[-8:]])


def printed(watch: nfd.Watch) -> str:
    """What the code of the answer prints."""
    assert watch.answer.next is not None
    with redirect_stdout(io.StringIO()) as said:
        exec(watch.answer.next.code, {"watch": watch, "model": watch.module, "torch": torch})
    return said.getvalue()


def faster(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Let one layer train at 100 times its rate from a step on."""
    if step == 9:
        for group in optimizer.param_groups:
            if group["params"][0] is model.get_submodule(LAYER).weight:
                group["lr"] *= 100


def swollen(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Let one layer grow at every step, which no rate does."""
    model.get_submodule(LAYER).weight.data.mul_(1.3)


def small_start() -> nn.Module:
    model = ResidualMLP(32, 3)
    nn.init.normal_(model.get_parameter(f"{LAYER}.weight"), std=1e-3)
    return model


def test_a_layer_that_trains_too_fast_or_grows_from_a_small_start_has_not_jumped() -> None:
    watch = trained(faster)
    sizes = [row.value for row in watch.rows if (row.meter, row.layer) == ("weight", LAYER)]
    assert max(sizes) > 3 * sizes[0]
    assert of(watch, "jump") == []
    watch = trained(nothing, model=small_start())
    sizes = [row.value for row in watch.rows if (row.meter, row.layer) == ("weight", LAYER)]
    assert sizes[0] > 3  # in one interval, and it is sound
    assert watch.alerts == []


# ---- rates that rise


def falls(step: int) -> float:
    return 1 - step / STEPS


def five_times(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    if step > AT:
        for group in optimizer.param_groups:
            group["lr"] *= 5


@cache
def checked_as_it_falls() -> nfd.Check:
    task = nfd.Task(BATCHES, schedule=falls)
    settings: dict[str, Any] = {"rule": "standard", "lr": LR, "seeds": 2, "at": (2, 6, 10, STEPS)}
    return nfd.check(ResidualMLP, task, [16, 32], [2, 4], **settings, remedy=False)


def test_rates_that_rise_above_their_schedule_are_told_at_their_step() -> None:
    watch = trained(five_times, schedule=falls, expected=checked_as_it_falls())
    assert of(watch, "rise") == [("rise", None)]
    (alert,) = [alert for alert in watch.alerts if alert.cause == "rise"]
    assert alert.step == AT + 1
    times = 5 * falls(AT) / falls(AT - 1)
    assert f"the learning rate rose {times:.2g} times at step {AT + 1}" in told(watch)
    assert "learning rates are those of the plan" not in told(watch)
    assert watch.answer.next is not None
    assert f"checkpoint before step {AT + 1}" in watch.answer.next.label
    assert watch.off_schedule is not None
    said = str(watch.off_schedule)
    assert "stayed at its peak" not in said
    share = watch.off_schedule.share
    assert share > 1
    assert f"was {share:.2g} times its peak at step {watch.off_schedule.step}" in said


def ten_times_by_hand(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Warm up at a tenth of the rate, without a scheduler."""
    for group in optimizer.param_groups:
        group["lr"] = LR if step > AT else LR / 10


SCHEDULES: dict[str, tuple[Change, Callable[[int], float] | None]] = {
    "falls": (nothing, falls),
    "warms up": (nothing, lambda step: min(1.0, step / 8)),
    "warms up at once": (nothing, lambda step: 0.1 if step < AT else 1.0),
    "restarts": (nothing, lambda step: 0.5 * (1 + math.cos(math.pi * (step % 6) / 6))),
    "warms up by hand": (ten_times_by_hand, None),
    "rises from 1 to absolute rates": (nothing, lambda step: min(step, 8.0)),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_that_rise_as_foreseen_are_not_told(name: str) -> None:
    change, schedule = SCHEDULES[name]
    assert of(trained(change, schedule=schedule), "rise") == []


# ---- numbers that are not finite


def not_a_number(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Spoil one gradient of the head in the step of a look."""
    if step == 10:
        model.head.weight.grad[3, 7] = math.nan


def rising(step: int) -> float:
    return math.exp(step / 4)


@pytest.mark.parametrize("rule", [None, "standard"])
def test_nan_is_called_nan_and_its_first_tensor_is_named(rule: Any) -> None:
    watch = trained(not_a_number, rule=rule)
    assert of(watch, "broken") == [("broken", None)]
    text = told(watch)
    assert "first the tensor head.weight" in text
    assert "NaN" in text
    assert "unknown" not in text
    assert "The loss was steady before" in watch.alerts[0].remedy
    assert watch.answer.next is not None
    assert "checkpoint of step 8 or before" in watch.answer.next.label
    assert "/= 2" not in watch.answer.next.code


def spread(model: Any, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Spoil a gradient two steps before a look, until which all tensors are spoilt."""
    if step == 9:
        model.head.weight.grad[3, 7] = math.nan


def test_where_all_tensors_are_spoilt_none_is_blamed() -> None:
    watch = trained(spread)
    text = told(watch)
    count = len(list(watch.module.parameters()))
    assert f"all {count} tensors by then" in text
    assert "head.weight" not in text
    assert "every=1 names the tensor" in text


def test_where_the_loss_rose_before_the_rate_is_to_be_lowered() -> None:
    watch = trained(not_a_number, loss_at=rising)
    (alert,) = [alert for alert in watch.alerts if alert.cause == "broken"]
    assert "Lower the learning rate" in alert.remedy
    assert "steady" not in alert.remedy
    assert watch.answer.next is not None
    assert "/= 2" in watch.answer.next.code


# ---- what it says to run, and its page


def test_code_that_looks_for_a_cause_prints_few_rows_also_of_frozen_layers() -> None:
    watch = trained(swollen, rule="complete-p")
    (first, *_) = watch.alerts
    assert (first.cause, first.layer) == ("change", LAYER)
    watch.module.get_submodule(LAYER).requires_grad_(requires_grad=False)
    watch.module.zero_grad()
    said = printed(watch)
    assert "False" in said
    assert len(said.splitlines()) == 1


def test_headings_of_the_page_are_words(tmp_path: Path) -> None:
    watch = trained(nothing)
    page = html.unescape(nfd.run_page(watch, tmp_path / "run.html").read_text())
    assert "Largest change of the weights" in page
    assert "update_to_weight of" not in page
    assert ">update_to_weight</h" not in page
    assert "update_to_weight" in {row.meter for row in watch.rows}
