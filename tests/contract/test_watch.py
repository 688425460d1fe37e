"""A watch in other people's trainings: in 16 bits, where a look fails, and where nothing is judged
any more.
"""

from __future__ import annotations

import gc
import html
import math
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import models
from tests.contract.common import ResidualMLP, batches
from tests.test_integrations import fitted, trainer_of
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    register_optimizer_step_post_hook,
)

import nfd

BATCHES = batches(12)
SAMPLE = BATCHES[0][0]


@pytest.fixture
def planned() -> tuple[ResidualMLP, nfd.Plan]:
    torch.manual_seed(0)
    model = ResidualMLP(32, 2)
    plan = nfd.plan(model, rule="complete-p", make_model=ResidualMLP, base=(16, 2), sample=SAMPLE)
    plan.apply_(model)
    return model, plan


def train(
    model: nn.Module, plan: nfd.Plan, watch: nfd.Watch | None, steps: int, lr: float = 3e-3
) -> None:
    models.train(model, plan.make_optimizer(model, lr=lr), BATCHES[:steps], watch)


# ---- a look that fails


class Fragile(ResidualMLP):
    """Fails in eval mode where it is told to, as a model that has no memory left."""

    broken = False

    def forward(self, x: Tensor) -> Tensor:
        if self.broken and not self.training:
            raise RuntimeError("out of luck")
        return super().forward(x)


@pytest.mark.parametrize("part", ["the model", "a listener"])
def test_what_fails_in_a_look_warns_once_and_the_training_goes_on(part: str) -> None:
    torch.manual_seed(0)
    model = Fragile(32, 2)
    plan = nfd.plan(model, rule="mup", make_model=Fragile, base=(16, 2), sample=SAMPLE)
    plan.apply_(model)
    alone = deepcopy(model)
    train(alone, plan, None, 6)
    watch = nfd.Watch(model, plan, SAMPLE, every=1)

    def listener(seen: nfd.Watch) -> None:
        model.broken = part == "the model" and seen.steps in (1, 2, 3)
        if part == "a listener" and seen.steps < 5:
            raise OSError("the disk is full")

    watch.listeners.append(listener)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        train(model, plan, watch, 6)
    said = [str(warning.message) for warning in warned]
    assert len(said) == 1, said
    reason = "RuntimeError: out of luck" if part == "the model" else "OSError: the disk is full"
    assert reason in said[0]
    assert reason in " ".join(str(watch).split())
    assert watch.failed is not None
    assert {row.step for row in watch.rows} == (
        {1, 5, 6} if part == "the model" else set(range(1, 7))
    )
    for (name, trained), other in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert torch.equal(trained, other), name


def test_a_watch_whose_looks_succeed_says_nothing_of_failure(planned: Any) -> None:
    model, plan = planned
    watch = nfd.Watch(model, plan, SAMPLE, every=1)
    train(model, plan, watch, 2)  # warnings are errors
    assert watch.failed is None
    assert "failed" not in str(watch)


# ---- 16 bits


class Halves(ResidualMLP):
    """Has an autocast of its own."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


def test_a_check_measures_a_model_with_an_autocast_of_its_own() -> None:
    settings: dict[str, Any] = {"rule": "complete-p", "optimizer": "adamw", "lr": 3e-3, "seeds": 2}
    full, half = (
        nfd.check(make, BATCHES[:4], [16, 32], [2], **settings) for make in (ResidualMLP, Halves)
    )
    assert len(half.table) == len(full.table)
    for seen, wanted in zip(half.runs, full.runs, strict=True):
        for meter in (
            "activation",
            "inner_update",
            "stream_update",
            "function_update",
            "update_to_weight",
        ):
            assert seen[meter] == pytest.approx(wanted[meter], rel=0.05), meter


def trained_by_transformers(folder: Path, lr: float, *, bf16: bool) -> nfd.Watch:
    trainer, watch = trainer_of(folder, steps=3, lr=lr, bf16=bf16)
    trainer.train()
    return watch


def trained_by_lightning(_: Path, lr: float, *, bf16: bool, kind: str = "bf16-mixed") -> nfd.Watch:
    return fitted(steps=3, lr=lr, precision=kind if bf16 else "32-true")[1]


@pytest.mark.filterwarnings("ignore")  # of the trainers' own
@pytest.mark.parametrize("trained", [trained_by_transformers, trained_by_lightning])
def test_trainers_in_16_bits_are_watched_in_32(trained: Any, tmp_path: Path) -> None:
    full, half = (trained(tmp_path, 1e-2, bf16=bf16) for bf16 in (False, True))
    assert half.failed is None
    assert [(row.step, row.meter, row.layer) for row in half.rows] == [
        (row.step, row.meter, row.layer) for row in full.rows
    ]
    of_network = [
        (a.value, b) for a, b in zip(full.rows, half.rows, strict=True) if b.layer is None
    ]
    for wanted, row in of_network:
        assert row.value == pytest.approx(wanted, rel=0.1), row
    # in 16 bits the outputs would differ from those of the start
    still = trained(tmp_path, 0.0, bf16=True)
    assert {
        row.value
        for row in still.rows
        if row.meter in ("function_update", "activation_update", "change")
    } == {0.0}


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_lightning_casts_to_16_bits_is_watched(tmp_path: Path) -> None:
    watch = trained_by_lightning(tmp_path, 1e-2, bf16=True, kind="bf16-true")
    assert watch.failed is None
    assert {row.step for row in watch.rows if row.meter == "alignment"} == {1, 2, 3}


# ---- what the page of a run says

GREEN = 'state good">✓&ensp;no alert'


@cache
def checked() -> nfd.Check:
    """Small networks, looked at up to step 6."""
    return nfd.check(
        ResidualMLP,
        BATCHES[:6],
        [16, 32],
        [2, 4],
        rule="complete-p",
        optimizer="adamw",
        lr=3e-3,
        seeds=3,
        at=(2, 4, 6),
    )


def page_of(watch: nfd.Watch, folder: Path) -> str:
    return nfd.run_page(watch, folder / "run.html").read_text().lower()


def test_a_page_is_green_while_looks_are_judged_and_grey_where_they_are_not(
    planned: Any, tmp_path: Path
) -> None:
    model, plan = planned
    watch = nfd.Watch(model, plan, SAMPLE, every=1, expected=checked())
    said = dict[int, tuple[str | None, str]]()
    assert GREEN not in page_of(watch, tmp_path)  # nothing was seen yet
    # The first look, the last one that is judged, and the end: a page takes a second.
    shown = (1, 6, 8)

    def listener(seen: nfd.Watch) -> None:
        page = page_of(seen, tmp_path) if seen.steps in shown else None
        said[seen.steps] = (page, seen.line)

    watch.listeners.append(listener)

    def spoil(seen: nfd.Watch) -> None:
        if seen.steps == 7:
            with torch.no_grad():
                model.blocks[1][1].weight.mul_(6)

    watch.listeners.append(spoil)
    train(model, plan, watch, 8)
    assert watch.alerts == []
    for step, (page, line) in said.items():
        is_judged = 2 <= step <= 6
        assert ("not judged" in line) != is_judged, step
        if page is not None:
            assert (GREEN in page) == is_judged, step
            assert ("not judged" in page) != is_judged, step
    assert "not judged since step 6" in said[7][1]
    assert all("not judged since step 6" in text for text in said[8])
    assert "check for more steps" in said[8][0]
    assert watch.unjudged_since == 6


@pytest.mark.parametrize(("more", "told"), [(0.0, "would not have told"), (9.0, "shows it, too")])
@pytest.mark.filterwarnings("ignore:.*layers do not train")
def test_faults_are_grouped_and_the_page_says_whether_the_loss_shows_them(
    planned: Any, tmp_path: Path, more: float, told: str
) -> None:
    model, plan = planned
    model.blocks[1].requires_grad_(requires_grad=False)
    watch = nfd.Watch(model, plan, SAMPLE, every=2, expected=checked())
    optimizer = plan.make_optimizer(model, lr=3e-3)
    for x, y in BATCHES[:6]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        watch.step(loss + more)
    layers = {alert.layer for alert in watch.alerts}
    answer = watch.answer
    assert (answer.tone, answer.state) == ("bad", "1 fault since step 2")
    assert answer.title == f"{len(layers)} layers do not train"
    assert answer.next is not None
    for line in answer.next.code.splitlines():
        exec(line, {"model": model})
    assert all(p.requires_grad for p in model.blocks[1].parameters() if p.dim() == 2)
    page = page_of(watch, tmp_path)
    assert f"<h1>{answer.title}</h1>" in page
    assert told in page
    assert f"worst layers at step {watch.steps}" in page
    assert "12 small networks" in page
    assert repr(watch) == f"<Watch: {answer.brief}>"
    assert answer.title in watch._repr_html_()
    assert watch.plot().to_dict()["layer"]


@pytest.mark.slow
def test_a_page_is_grey_where_looks_fail(planned: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Fragile(32, 2)
    (_, plan) = planned
    plan.apply_(model)
    watch = nfd.Watch(model, plan, SAMPLE, every=1, expected=checked())
    watch.listeners.append(partial(nfd.run_page, path=tmp_path / "run.html"))
    train(model, plan, watch, 3)
    assert GREEN in (tmp_path / "run.html").read_text().lower()
    model.broken = True
    with pytest.warns(RuntimeWarning, match="out of luck"):
        train(model, plan, watch, 1)
    page = (tmp_path / "run.html").read_text().lower()
    assert GREEN not in page
    assert "not judged since step 3" in page
    assert "runtimeerror: out of luck" in page


# ---- the remedy: of the cause, and not of what follows from it


def _one_group(optimizer: torch.optim.Optimizer) -> None:
    smallest = min(optimizer.param_groups, key=lambda group: len(group["params"]))
    smallest["lr"] *= 30


def _one_peak(optimizer: torch.optim.Optimizer) -> None:
    lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=20, cycle_momentum=False)


def _a_rate_more(optimizer: torch.optim.Optimizer) -> None:
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=4, eta_min=1e-3)
    optimizer.step()  # There are no gradients yet.
    scheduler.step()


def _nothing(optimizer: torch.optim.Optimizer) -> None:
    """Leave the rates as planned."""


OF_SCHEDULERS = ("OneCycleLR", "eta_min")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("spoil", "named"),
    [(_one_group, ""), (_one_peak, "OneCycleLR"), (_a_rate_more, "eta_min"), (_nothing, None)],
)
def test_the_next_code_mends_the_cause_and_names_only_schedulers_that_were_seen(
    planned: Any, spoil: Callable[[torch.optim.Optimizer], None], named: str | None
) -> None:
    model, plan = planned
    watch = nfd.Watch(model, plan, SAMPLE, every=1, expected=checked())
    optimizer = plan.make_optimizer(model, lr=3e-3)
    spoil(optimizer)
    for step, (x, y) in enumerate(BATCHES[:3]):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        # What follows from a wrong rate shows later.
        watch.step(loss if step < 2 else math.inf)
    answer = watch.answer
    causes = [alert.cause for alert in watch.alerts]
    assert answer.next is not None
    if named is None:
        assert causes == ["broken"]
        assert "/= 2" in answer.next.code
        return
    assert causes == ["rate", "broken"]
    texts = [watch.alerts[0].remedy, answer.next.code]
    for text in texts:
        assert [word for word in OF_SCHEDULERS if word in text] == ([named] if named else [])
        assert "clip" not in text
    assert "/= 2" not in answer.next.code
    names: dict[str, Any] = {"model": model, "plan": plan, "optimizer": optimizer}
    exec(answer.next.code, names)
    optimizer = names["optimizer"]
    mended = names.get("max_lr", [group["lr"] for group in optimizer.param_groups])
    rates = [group["lr_scale"] * 3e-3 for group in optimizer.param_groups]
    assert mended == pytest.approx(rates)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("given", "steps", "told"),
    [
        (range(1, 7), 1, "the loss is below the small networks'"),
        (range(1, 8), 1, "the loss at step 6, the last compared, is below"),
        ((1, 3, 5), 1, "the small networks' losses are of other steps (2, 4, 6)"),
        ((2, 4, 6), 2, "the logged losses are means over several steps"),
    ],
)
def test_a_loss_is_compared_only_at_steps_with_losses_of_small_networks(
    planned: Any, tmp_path: Path, given: Sequence[int], steps: int, told: str
) -> None:
    model, plan = planned
    model.blocks[1].requires_grad_(requires_grad=False)
    watch = nfd.Watch(model, plan, SAMPLE, every=1, expected=checked())
    optimizer = plan.make_optimizer(model, lr=3e-3)
    for step in range(1, 8):
        if step > max(given):
            break
        x, y = BATCHES[step - 1]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step in given:
            watch.step()
            watch.note_loss(0.1, steps=steps)
        else:
            watch.step()
    watch.state_dict()  # reads the latest loss
    page = html.unescape(nfd.run_page(watch, tmp_path / "run.html").read_text())
    assert told in watch.answer.because + page
    assert ("Log every step to compare them (logging_steps=1" in page) == (steps > 1)
    # No band where no loss is compared with it
    assert ("12 small networks, width" in page) == told.startswith("the loss")
    is_latest = told == "the loss is below the small networks'"
    assert ("the loss is below the small networks'" in page) == is_latest
    assert "no losses of small networks" not in page


def test_a_state_is_of_a_model_of_one_width() -> None:
    states = {}
    watches = {}
    for width in (16, 32):
        model = ResidualMLP(width, 2)
        watches[width] = nfd.Watch(model, None, SAMPLE, every=2)
        states[width] = watches[width].state_dict()
    watches[32].load_state_dict(states[32])
    for state in (states[16], {**states[16], "start": None}):
        with pytest.raises(ValueError, match=r"another model.*\[16.*here it is \[32"):
            watches[32].load_state_dict(state)
    # States of earlier versions do not say.
    earlier = {key: value for key, value in states[32].items() if key != "shapes"}
    watches[32].load_state_dict(earlier)


# ---- what a watch keeps is its own


def test_tensors_that_are_filled_again_change_nothing_in_a_watch(planned: Any) -> None:
    model, plan = planned
    sample = SAMPLE.clone()
    watches = [nfd.Watch(model, plan, given, every=1) for given in (sample, SAMPLE)]
    sample.zero_()
    loss = torch.zeros(())
    optimizer = plan.make_optimizer(model, lr=3e-3)
    for x, y in BATCHES[:3]:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(model(x), y)
        value.backward()
        optimizer.step()
        loss.copy_(value.detach())
        for watch in watches:
            watch.step(loss)
    assert watches[0].table == watches[1].table
    assert len({*watches[0].losses.values()}) == 3


def test_a_state_is_of_one_sample_and_depth_and_of_an_untrained_model(planned: Any) -> None:
    model, plan = planned
    watch = nfd.Watch(model, plan, SAMPLE, every=1)
    untrained = deepcopy(model)
    train(model, plan, watch, 4, lr=1e-2)
    whole = watch.state_dict()
    brief = watch.state_dict(start=False)
    nfd.Watch(untrained, plan, SAMPLE, every=1).load_state_dict(brief)
    nfd.Watch(model, plan, SAMPLE, every=1).load_state_dict(whole)
    with pytest.raises(ValueError, match="from the untrained model"):
        nfd.Watch(model, plan, SAMPLE, every=1).load_state_dict(brief)
    with pytest.raises(ValueError, match="another sample"):
        nfd.Watch(model, plan, 2 * SAMPLE, every=1).load_state_dict(whole)
    deeper = nfd.Watch(ResidualMLP(32, 3), None, SAMPLE)
    with pytest.raises(ValueError, match="has 2 blocks, and here there are 3"):
        deeper.load_state_dict(whole)


def test_a_watch_that_is_made_late_or_stepped_too_often_says_so(planned: Any) -> None:
    model, plan = planned
    optimizer = plan.make_optimizer(model, lr=3e-3)
    models.train(model, optimizer, BATCHES[:3], None)
    late = nfd.Watch(model, plan, SAMPLE, own_start=False)
    with pytest.warns(RuntimeWarning, match=r"made 4 steps, and the watch counted 1: .*load its"):
        models.train(model, optimizer, BATCHES[:1], late)
    assert "made 4 steps" in (late.miscounted or "")

    often = nfd.Watch(ResidualMLP(32, 2), None, SAMPLE)
    optimizer = torch.optim.AdamW(often.module.parameters(), lr=3e-3)
    for number in range(39):
        nn.functional.cross_entropy(often.module(SAMPLE), BATCHES[0][1]).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
        often.step()
    with pytest.warns(RuntimeWarning, match=r"made 20 steps, and the watch counted 40\. Call"):
        often.step()


def test_a_watch_of_every_step_says_nothing_of_counts(planned: Any) -> None:
    model, plan = planned
    optimizer = plan.make_optimizer(model, lr=3e-3)
    watch = nfd.Watch(model, plan, SAMPLE)
    models.train(model, optimizer, BATCHES[:3], watch)
    resumed = nfd.Watch(model, plan, SAMPLE)
    resumed.load_state_dict(watch.state_dict())
    models.train(model, optimizer, BATCHES[3:5], resumed)
    assert resumed.steps == 5
    assert resumed.miscounted is None


def collect(*_: Any) -> None:
    """Collect garbage, as a hook of an optimizer."""
    gc.collect()


def test_a_watch_may_be_collected_while_an_optimizer_calls_its_hooks(planned: Any) -> None:
    model, plan = planned
    optimizer = plan.make_optimizer(model, lr=3e-3)
    handle = register_optimizer_step_post_hook(collect)
    watch = nfd.Watch(model, plan, SAMPLE)
    watch.listeners.append(watch.step)
    # Watches of other tests may still wait to be collected.
    gc.collect()
    count = len(_global_optimizer_post_hooks)
    del watch
    models.train(model, optimizer, BATCHES[:2], None)
    assert len(_global_optimizer_post_hooks) == count
    nfd.Watch(model, plan, SAMPLE)
    gc.collect()
    assert len(_global_optimizer_post_hooks) == count - 1
    handle.remove()


@pytest.mark.parametrize(
    ("loss", "arrived"),
    [
        ("1.2", "'1.2' of type str"),
        ({"loss": 1.2}, "of type dict"),
        (torch.ones(2), r"a tensor of shape \[2\]"),
        (torch.tensor(1j), "complex64"),
    ],
)
def test_a_loss_that_is_not_one_number_is_refused_when_it_comes(loss: Any, arrived: str) -> None:
    watch = nfd.Watch(ResidualMLP(16, 2), None, sample=SAMPLE, every=10)
    with pytest.raises(TypeError, match=f"loss must be a number.*got.*{arrived}"):
        watch.step(loss)


def test_a_loss_may_be_any_one_number() -> None:
    watch = nfd.Watch(ResidualMLP(16, 2), None, sample=SAMPLE, every=4)
    for loss in (1.5, torch.tensor([1.5]), torch.tensor(1.5, dtype=torch.bfloat16)):
        watch.step(loss)
    watch.step()
    assert watch.losses == {1: 1.5, 2: 1.5, 3: 1.5}
