"""Factors of batch and length in a plan: their values, the trainings that they make alike, switches
and storage.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from tests.models import Transformer

import nfd
from nfd.core import Interval
from nfd.laws.rate_runs import law_for_plan
from nfd.scaling.run import NAMES, RUN_LAWS, Quantity, RunScaling

IDS = torch.arange(24).view(4, 6) % 11
LARGER: dict[str, Any] = {"batch": (256, 1024), "tokens": (2**16, 2**19)}  # b = 4, d = 8


def planned(optimizer: str = "adamw", **run: Any) -> tuple[torch.nn.Module, nfd.Plan]:
    model = Transformer(32, 2)
    sizes: dict[str, Any] = {"make_model": Transformer, "base": (16, 2), "sample": IDS}
    plan = nfd.plan(model, rule="mup", optimizer=optimizer, **sizes)
    return model, plan.for_run(**run) if run else plan


def scaling(optimizer: str = "adamw", **run: Any) -> RunScaling:
    return planned(optimizer, **run)[1].run


def group_of(optimizer: torch.optim.Optimizer, model: torch.nn.Module, name: str) -> dict[str, Any]:
    wanted = dict(model.named_parameters())[name]
    return next(
        group for group in optimizer.param_groups if any(p is wanted for p in group["params"])
    )


def test_factors_are_those_of_the_sources() -> None:
    assert scaling("sgd", **LARGER).factor("rate", "sgd") == pytest.approx(4 * 8**-0.32)
    for optimizer in ("sgd", "adamw", "muon"):
        run = scaling(optimizer, **LARGER)
        decayed = run.factor("weight decay", optimizer) * run.factor("rate", optimizer)
        assert decayed == pytest.approx(4 / 8)  # 1/(rate decay) is a share of the steps
        assert run.steps == 2**19 / 1024


def test_groups_have_the_factors_beside_those_of_the_sizes() -> None:
    settings: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-6, "betas": (0.9, 0.99)}
    model, plan = planned(**LARGER)
    small_model, small = planned()
    rate = plan.run.factor("rate", "adamw")
    assert rate != 1
    for name in ("tokens.weight", "layers.0.a.weight"):
        large = group_of(plan.make_optimizer(model, **settings), model, name)
        base = group_of(small.make_optimizer(small_model, **settings), small_model, name)
        assert large["lr"] == pytest.approx(base["lr"] * rate)
        assert large["lr_scale"] == pytest.approx(base["lr_scale"] * rate)
        assert large["lr"] * large["weight_decay"] == pytest.approx(
            base["lr"] * base["weight_decay"] / 2
        )
        assert large["eps"] == pytest.approx(base["eps"] / 2)
        assert large["betas"] == pytest.approx((0.9**4, 0.99**4))
    assert plan.param_groups(model, lr=0.01)[0]["betas"] == pytest.approx((0.9**4, 0.999**4))
    assert "betas" not in small.param_groups(small_model, lr=0.01)[0]
    with pytest.raises(TypeError, match="betas must be two numbers"):
        plan.param_groups(model, lr=0.01, betas=(0.9,))  # type: ignore[arg-type]


def ends(run: RunScaling, optimizer: str, batch: int, steps: int, adapted: bool) -> float:
    """The mean square of 4,000 coordinates after training on quadratic losses with noise, at one
    number of samples.
    """
    torch.manual_seed(0)
    x = torch.nn.Parameter(torch.full((4000,), 0.3, dtype=torch.float64))
    rate = 2e-3
    decay = 0.0
    betas = (0.9, 0.98)
    eps = 1e-2
    if optimizer == "sgd":
        rate = 0.02
    if adapted:
        by_theorem = batch**0.5 if optimizer == "adamw" else run.factor("rate", optimizer)
        rate = rate * by_theorem
        betas = run.betas(betas, optimizer)
        eps *= run.factor("epsilon", optimizer)
    stepped: torch.optim.Optimizer = torch.optim.SGD([x], lr=rate)
    if optimizer == "adamw":
        stepped = torch.optim.AdamW([x], lr=rate, betas=betas, eps=eps, weight_decay=decay)
    for _ in range(steps // batch):
        x.grad = x.detach() + torch.randn_like(x) * (8 / batch) ** 0.5
        stepped.step()
    return float(x.detach().square().mean())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_runs_of_two_batches_end_alike_by_the_theorems_and_not_without_them(optimizer: str) -> None:
    run = scaling(optimizer, batch=(1, 4))
    base = ends(run, optimizer, 1, 400, adapted=False)
    assert ends(run, optimizer, 4, 400, adapted=True) == pytest.approx(base, rel=0.12)
    assert ends(run, optimizer, 4, 400, adapted=False) != pytest.approx(base, rel=0.3)


def test_rates_stop_growing_at_the_critical_batch() -> None:
    run = scaling("sgd", batch=(100, 10**9), critical_batch=300)
    assert run.factor("rate", "sgd") == pytest.approx(1 + 300 / 100, rel=1e-5)
    low, high = (
        scaling(batch=(2e5, 4e6), critical_batch=limit).factor("rate", "adamw")
        for limit in (1e4, 1e8)
    )
    assert low < 2 < 4 < high


def test_a_measured_limit_may_be_an_interval_and_is_said_where_it_is_exceeded() -> None:
    _, plan = planned(**LARGER, critical_batch=Interval(100.0, 20.0, 70.0, 150.0))
    assert 100 < plan.run.critical_batch < 100 * 8
    assert f"critical batch about {plan.run.critical_batch:.3g} (exceeded" in plan.explain()
    unknown = scaling(**LARGER, critical_batch=Interval(300.0, math.inf, 0.0, math.inf))
    # it says nothing
    assert unknown.factor("rate", "adamw") == scaling(**LARGER).factor("rate", "adamw")


def test_a_measured_critical_batch_narrows_that_of_the_law() -> None:
    law = nfd.RateLaw.of_sweeps()
    here = 4e5
    told = [
        law.with_critical_batch(Interval(here, 0.0, here / by, here * by), 4e9) for by in (1, 4)
    ]
    plain, four, one = (own.critical_batch(4e9) for own in (law, told[1], told[0]))
    assert one.low < here < one.high
    assert one.high / one.low < four.high / four.low < 0.5 * plain.high / plain.low


@pytest.mark.parametrize("name", NAMES)
def test_every_law_can_be_switched_off(name: str) -> None:
    given = {**LARGER, "schedule": nfd.RateSchedule(8)}
    optimizer = "sgd" if name in ("batch-rate", "tokens-rate") else "adamw"
    on, off = (scaling(optimizer, **given, laws=laws) for laws in (None, {name: False}))
    more = {"fixed powers"} if name == "best-rate" else set()
    assert {row.law for row in on.factors} - {row.law for row in off.factors} == {name} | more
    changed = {q for q in get_args(Quantity) if on.factor(q, optimizer) != off.factor(q, optimizer)}
    assert changed or on.schedule != off.schedule


def test_the_table_names_law_label_and_source() -> None:
    plan = planned(**LARGER, laws={"decay-time-scale": False})[1]
    text = plan.explain()
    assert all(
        word in text
        for word in ("best-rate", "theorem", "Malladi", "empirical law", "fixed powers")
    )
    assert "decay-time-scale" not in text
    assert all(law.source for law in RUN_LAWS)
    assert {row.label for row in scaling("lion", **LARGER).factors} == {"assumption"}


def test_the_schedule_warms_up_for_as_many_tokens_and_keeps_the_ratios() -> None:
    model, plan = planned(**LARGER, schedule=nfd.RateSchedule(warmup=100, fall="linear", share=0.5))
    assert plan.run.schedule == nfd.RateSchedule(25, "linear", 0.5)
    optimizer = plan.make_optimizer(model, lr=0.1)
    scheduler = plan.make_schedule(optimizer)
    seen = []
    for _ in range(512):
        seen.append(optimizer.param_groups[0]["lr"] / optimizer.param_groups[0]["lr_scale"])
        plan.check_rates(optimizer)
        optimizer.step()
        scheduler.step()
    assert [seen[step] for step in (0, 25, 256, 384)] == pytest.approx([0.1 / 26, 0.1, 0.1, 0.05])
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.0, abs=1e-12)


def test_plans_of_runs_are_stored_and_older_files_are_read(tmp_path: Path) -> None:
    _, plan = planned("muon", **LARGER, schedule=nfd.RateSchedule(8, "cosine"), critical_batch=300)
    plan.save(tmp_path / "plan.json")
    assert nfd.Plan.load(tmp_path / "plan.json") == plan
    stored = json.loads((tmp_path / "plan.json").read_text())
    stored.pop("run")  # as before runs were planned
    (tmp_path / "old.json").write_text(json.dumps(stored))
    assert nfd.Plan.load(tmp_path / "old.json").run is None
    bare = {
        "law": "tokens-rate",
        "quantity": "rate",
        "optimizer": "adamw",
        "value": 0.5,
        "label": "empirical law",
    }
    run = {"batch": None, "tokens": [1.0, 9.0], "factors": [bare | {"formula": "", "source": ""}]}
    older = nfd.Plan.from_dict(stored | {"run": run | {"critical_batch": None, "schedule": None}})
    assert older.run is not None
    assert older.run.factor("rate", "adamw") == 0.5  # as it was planned
    for wrong in ({"run": {"batch": [0, 1]}}, {"width": "8"}):
        with pytest.raises(ValueError, match="damaged"):
            nfd.Plan.from_dict(stored | wrong)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ({"batch": 4}, "batch must be"),
        ({"batch": (4, 0)}, "batch must be greater than 0"),
        ({"laws": {"batch-rate": False}}, "Pass batch= or tokens="),
        ({"batch": (1, 2), "laws": {"rate-batch": False}}, "batch-rate"),
        ({"batch": (1, 2), "laws": ["batch-rate"]}, "laws must be a dict"),
        ({"batch": (1, 2), "schedule": nfd.RateSchedule()}, "needs the steps"),
        ({**LARGER, "schedule": "cosine"}, "nfd.RateSchedule"),
        ({"tokens": (1, 2), "critical_batch": 3}, "limits the batch"),
        ({"batch": (1, 2), "critical_batch": "large"}, "critical_batch must be"),
    ],
)
def test_what_cannot_be_planned_is_refused(run: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        planned(**run)


def test_a_plan_without_a_schedule_makes_none() -> None:
    model, plan = planned(**LARGER)
    with pytest.raises(ValueError, match="no schedule"):
        plan.make_schedule(plan.make_optimizer(model, lr=0.1))
    for wrong in ({"warmup": -1}, {"fall": "steep"}, {"share": 0.0}, {"final": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            nfd.RateSchedule(**wrong)


def test_a_plan_reads_the_rule_of_a_table_that_is_most_like_its_own() -> None:
    rows = [
        {"rule": rule, "tokens": tokens, "batch": 5e5, "lr": 2.0**k, "parameters": 1e8}
        | {"loss": 3 * (1 + 0.004 * (k + best) ** 2)}
        for rule, best in (("standard", 10), ("mup", 8), ("CompleteP", 9))
        for tokens in (1e9, 1e10)
        for k in range(-13, -5)
    ]
    assert law_for_plan(rows, "complete-p").rule == "CompleteP"
    assert law_for_plan(rows, "depth-mup").rule == "mup"
    assert law_for_plan(rows, "standard").rule == "standard"
    one = [row for row in rows if row["rule"] == "standard"]
    assert law_for_plan(one, "complete-p").rule == "standard"
    with pytest.raises(ValueError, match="rule="):
        law_for_plan([row for row in rows if row["rule"] != "standard"], "standard")
