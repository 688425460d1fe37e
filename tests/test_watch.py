"""``nfd.Watch``: what its rows say, and that training does not notice it."""

from __future__ import annotations

import copy
import gc
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import models
from tests.models import Residual, Transformer
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.optimizer import _global_optimizer_post_hooks

import nfd
from nfd.core.estimates import rms
from nfd.core.random import global_state
from nfd.meters.updates import spectral_norm
from nfd.watch import Alert, Cause
from nfd.watch.causes import Alarm

WIDTH = 16
DEPTH = 4
X = torch.randn(32, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (32,), generator=torch.Generator().manual_seed(1))


def planned(
    model: nn.Module, x: Any = X, seed: int = 0, optimizer: str = "adamw"
) -> tuple[nn.Module, nfd.Plan]:
    base: dict[str, Any] = {"make_model": type(model), "base": (8, 2), "sample": x}
    plan = nfd.plan(model, rule="complete-p", optimizer=optimizer, **base)
    return plan.apply_(model, seed), plan


def train(
    model: nn.Module, plan: nfd.Plan, steps: int, watch: Any = None, x: Any = X, y: Any = Y
) -> None:
    step(model, plan.make_optimizer(model, lr=0.01), watch, steps, x, y)


def step(model: nn.Module, optimizer: Any, watch: Any, steps: int, x: Any = X, y: Any = Y) -> None:
    models.train(model, optimizer, [(x, y)] * steps, watch)


def value(watch: nfd.Watch, meter: str, layer: str | None = None, step: int | None = None) -> float:
    (row,) = [
        r
        for r in watch.rows
        if (r.meter, r.layer) == (meter, layer) and r.step == (step or watch.steps)
    ]
    return row.value


def test_rows_are_what_training_changed_on_the_sample() -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    start = copy.deepcopy(model)
    watch = nfd.Watch(model, plan, X, every=3)
    train(model, plan, 3, watch)
    assert {row.step for row in watch.rows} == {3}

    with torch.no_grad():
        now = model.streams(X)
        before = start.streams(X)
        up: Any = model.get_submodule("blocks.1.up")
        delta = up.weight - start.get_parameter("blocks.1.up.weight")
        reset = copy.deepcopy(model)
        for of_reset, of_start in zip(reset.blocks, start.blocks, strict=True):
            of_reset.up.weight.copy_(of_start.up.weight)
        expected = {
            ("activation", "blocks.1"): rms(now[2]),
            ("activation_update", "blocks.1"): rms(now[2] - before[2]),
            ("activation_update", None): rms(now[4] - before[4]),
            ("function_update", None): rms(model(X) - start(X)),
            ("function_update_inner", None): rms(model(X) - reset(X)),
            ("update", "blocks.1.up"): rms(now[1] @ delta.T),
            ("change", "blocks.1.up"): float(
                delta.norm() / start.get_parameter("blocks.1.up.weight").norm()
            ),
            ("weight", "embed"): float(model.embed.weight.norm() / start.embed.weight.norm()),
            ("added", "blocks.1"): 4 * rms(now[2] - now[1]),  # times the number of blocks
            ("update_to_weight", "blocks.1.up"): spectral_norm(delta)
            / spectral_norm(up.weight - delta),
        }
    for (meter, layer), number in expected.items():
        assert value(watch, meter, layer) == pytest.approx(number, rel=1e-5), meter
    depths = {row.layer: row.depth for row in watch.rows}
    places = [depths[layer] for layer in ("blocks.1", "blocks.1.up", "blocks.3", "head", None)]
    assert places == [0.5, 0.5, 1.0, None, None]
    kinds = {row.layer: row.kind for row in watch.rows}
    assert [kinds[layer] for layer in ("blocks.1", "blocks.1.up", "blocks.3.up", "head")] == [
        "",
        "up",
        "up",
        "head",
    ]


def test_the_alignment_is_that_of_the_last_update() -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    watch = nfd.Watch(model, plan, X, every=2)
    train(model, plan, 1, watch)
    before: Any = copy.deepcopy(model.get_submodule("head"))
    train(model, plan, 1, watch)
    head: Any = model.get_submodule("head")
    read: list[torch.Tensor] = []
    with torch.no_grad(), head.register_forward_pre_hook(lambda _, args: read.append(args[0])):
        model(X)
    delta = (head.weight - before.weight).detach()
    aligned = float((read[0] @ delta.T).norm() / (delta.norm() * read[0].norm()))
    assert value(watch, "alignment", "head") == pytest.approx(aligned, rel=1e-5)


class Restless(nn.Module):
    """Dropout, batch statistics, noise that is drawn in eval mode too, and a buffer that counts
    passes.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.net = Residual(width, depth)
        self.norm = nn.BatchNorm1d(5)
        self.drop = nn.Dropout(0.3)
        self.passes: torch.Tensor
        self.register_buffer("passes", torch.zeros(()))
        self.cached: torch.Tensor
        self.register_buffer("cached", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        self.cached = self.passes * 2
        return self.net(self.drop(self.norm(x)) + 0.1 * torch.randn(x.shape))


def test_training_goes_on_as_if_there_were_no_watch() -> None:
    ends = []
    for watched in (False, True):
        torch.manual_seed(3)
        model, plan = planned(Restless(WIDTH, DEPTH))
        model.get_submodule("net.blocks.1").eval()
        train(model, plan, 6, nfd.Watch(model, plan, X, every=2) if watched else None)
        modes = [module.training for module in model.modules()]
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
        grads = [p.grad for p in model.parameters()]
        ends.append((model.state_dict(), grads, modes, hooks, global_state()))
    (state, grads, *rest), (watched_state, watched_grads, *watched_rest) = ends
    torch.testing.assert_close(watched_state, state, rtol=0, atol=0)
    torch.testing.assert_close(watched_grads, grads, rtol=0, atol=0)
    assert watched_rest == rest


def test_starts_are_drawn_again_where_the_plan_drew_them() -> None:
    ids = torch.randint(1, 11, (4, 6), generator=torch.Generator().manual_seed(2))
    numbers = {}
    for seed in (7, 8):  # the seed of apply_, and another: then starts are kept
        torch.manual_seed(0)  # for what the plan leaves as it is
        model, plan = planned(Transformer(WIDTH, 2), ids, seed=7)
        watch = nfd.Watch(model, plan, ids, every=2, seed=seed)
        assert bool(watch.state_dict()["start"]["kept"]) == (seed != 7)
        train(model, plan, 2, watch, ids, ids)
        numbers[seed] = watch.table
    assert numbers[7] == numbers[8]


IDS = torch.randint(0, 7, (8, 6), generator=torch.Generator().manual_seed(2))


def test_a_model_that_did_not_begin_as_planned_is_told_before_the_first_step() -> None:
    torch.manual_seed(0)
    model = Residual(WIDTH, DEPTH)
    plan = nfd.plan(model, rule="complete-p", make_model=Residual, base=(4, 2), sample=X)
    watch = nfd.Watch(model, plan, X, every=2)
    (alert,) = watch.alerts
    assert (alert.step, alert.cause) == (0, Cause.START)
    starts = {start.tensor: start for start in alert.tensors}
    assert starts.keys() == {f"blocks.{k}.down.weight" for k in range(DEPTH)} | {"head.weight"}
    down = starts["blocks.1.down.weight"]
    assert down.value == pytest.approx(rms(model.get_parameter("blocks.1.down.weight").detach()))
    assert down.planned == plan.std("blocks.1.down.weight")
    text = str(alert)
    assert f"blocks.*.down.weight (4 tensors) has standard deviation {down.value:.1g}" in text
    assert "plan.apply_(model)" in text
    assert "own_start=True" in text
    assert watch.answer.title == "5 tensors were not initialised as planned"
    assert watch.answer.next is not None
    assert watch.answer.next.code.startswith("plan.apply_(model, seed=0)")
    resumed = nfd.Watch(model, plan, X, every=2)
    resumed.load_state_dict(watch.state_dict())
    assert resumed.alerts == watch.alerts
    with pytest.warns(RuntimeWarning, match="5 tensors were not initialised as planned"):
        watch.step()
    watch.step()  # it warns once
    for seed in (0, 1):  # drawn with the seed of the watch, and with another
        assert nfd.Watch(plan.apply_(model, seed), plan, X).alerts == []
    model.embed.weight.data.mul_(3)
    assert nfd.Watch(model, plan, X, own_start=True).alerts == []


@pytest.mark.parametrize("rule", ["standard", "mup", "depth-mup", "depth-mup-inner", "complete-p"])
def test_a_start_of_the_same_size_is_no_wrong_start(rule: Any) -> None:
    """Tied embeddings with a row of padding, orthogonal matrices, and zeros of the base."""
    options: Any = {"base": (8, 2), "optimizer": "muon"} if rule != "standard" else {}
    torch.manual_seed(0)

    def make(width: int, depth: int) -> Transformer:
        model = Transformer(width, depth, tied=True)
        for layer in model.layers:
            nn.init.zeros_(layer.get_parameter("b.weight"))
        return model

    model = make(WIDTH, 4)
    plan = nfd.plan(
        model, rule=rule, make_model=None if rule == "standard" else make, sample=IDS, **options
    )
    plan.apply_(model, seed=3)
    for name in ("layers.0.a.weight", "layers.1.d.weight"):
        weight = model.get_parameter(name)
        fan = max(weight.shape)
        nn.init.orthogonal_(weight, gain=plan.std(name) * fan**0.5)
    assert nfd.Watch(model, plan, IDS).alerts == []


class Several(Alarm):
    """Expects nothing, and raises an alert at every look."""

    last_step = 99
    is_of_sound = True

    def __init__(self) -> None: ...

    def alerts(self, rows: Any) -> list[Alert]:
        row = rows[0]
        return [
            Alert(row.step, row.step, row.meter, None, len(rows), None, Cause.UNKNOWN, "seen", "")
        ]

    def band(self, row: Any) -> None:
        return None


def test_a_resumed_watch_goes_on_with_the_same_rows(tmp_path: Path) -> None:
    def begun(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, nfd.Watch]:
        torch.manual_seed(0)
        model, plan = planned(Residual(WIDTH, DEPTH), seed=seed)
        return (
            model,
            plan.make_optimizer(model, lr=0.01),
            nfd.Watch(model, plan, X, 2, Several(), seed=watched),
        )

    for watched in (4, 5):  # starts are drawn again; starts are kept
        model, optimizer, watch = begun(4)
        with pytest.warns(RuntimeWarning, match=r"step 2: .* of the network stays outside"):
            step(model, optimizer, watch, 3)
        path = tmp_path / f"{watched}.pt"
        torch.save([model.state_dict(), optimizer.state_dict(), watch.state_dict()], path)
        with pytest.warns(RuntimeWarning) as warned:
            step(model, optimizer, watch, 3)
        resumed, own, again = begun(9)  # its own start does not matter
        for part, state in zip(
            (resumed, own, again), torch.load(path, weights_only=True), strict=True
        ):
            part.load_state_dict(state)
        # of the two alerts that the first part did not raise
        with pytest.warns(RuntimeWarning) as warned_again:
            step(resumed, own, again, 3)
        assert len(warned_again) == 2
        assert [str(warning.message) for warning in warned_again] == [
            str(warning.message) for warning in warned
        ]
        assert again.table == watch.table
        assert again.alerts == watch.alerts
        assert len(again.alerts) == 3
    with pytest.raises(ValueError, match="state must be"):
        watch.load_state_dict({"rows": []})


@pytest.mark.slow
def test_compiled_models_are_watched_and_not_compiled_again() -> None:
    graphs: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(1)
        return graph.forward

    tables = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, plan = planned(Residual(WIDTH, DEPTH))
        run = torch.compile(model, backend=backend) if compiled else model
        watch = nfd.Watch(run, plan, X, every=1)
        for _ in range(3):
            train(run, plan, 1, watch)
        tables.append(watch.table)
    assert len(graphs) == 1
    assert tables[0] == tables[1]


def test_bad_input_is_refused() -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    other = Residual(WIDTH, 2)
    for wrong, message in [
        (lambda: nfd.Watch("model", plan, X), "model must be"),
        (lambda: nfd.Watch(model, "plan", X), "plan must be"),
        (lambda: nfd.Watch(model, plan, "x"), "sample must be"),
        (lambda: nfd.Watch(model, plan, X, every=0), "every must be"),
        (lambda: nfd.Watch(other, plan, X), "not the one planned"),
        (lambda: nfd.Watch(model, plan, X[:, :4]), "must take the sample"),
        (lambda: nfd.Watch(model, plan, torch.tensor(2)), "must take the sample"),
        (lambda: nfd.Watch(model, plan, X, expected=X), "expected must be"),
        (
            lambda: nfd.Watch(nfd.defer(Residual(WIDTH, DEPTH)), plan, X),
            "these layers are deferred",
        ),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            wrong()


# ---- rates that are not those of the plan: told at the first step, whatever steps it

LR = 0.01
Make = Callable[[nn.Module, nfd.Plan], Any]


class Wrapped(Optimizer):
    """Another library's wrapper, which is not set up as an optimizer of PyTorch."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups

    def step(self, closure: Any = None) -> None:
        """That of the optimizer."""
        self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """That of the optimizer."""
        self.optimizer.zero_grad(set_to_none)


def warned_of(
    model: nn.Module,
    optimizers: Any,
    watch: nfd.Watch,
    steps: int = 2,
    schedule: Callable[[int], float] | None = None,
) -> list[str]:
    """Returns what is warned of."""
    own = optimizers if isinstance(optimizers, list) else [optimizers]
    schedulers = [] if schedule is None else [LambdaLR(optimizer, schedule) for optimizer in own]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            model(X).square().mean().backward()
            for part in (*own, *schedulers):
                part.step()
            watch.step()
            model.zero_grad()
    return [str(warning.message) for warning in caught]


def plain(model: nn.Module, plan: nfd.Plan) -> Optimizer:
    return AdamW(model.parameters(), lr=LR)


SOUND: dict[str, Make] = {
    "the optimizer of the plan": lambda model, plan: plan.make_optimizer(model, lr=LR),
    "Adam with its groups": lambda model, plan: Adam(plan.param_groups(model, lr=LR)),
    "the same rates by hand": lambda model, plan: AdamW(
        [{"params": group["params"], "lr": group["lr"]} for group in plan.param_groups(model, LR)],
        weight_decay=0.0,
    ),
    "an optimizer for each group": lambda model, plan: [
        AdamW([group]) for group in plan.param_groups(model, LR)
    ],
    "wrapped": lambda model, plan: Wrapped(plan.make_optimizer(model, lr=LR)),
    "one that does not step the model": lambda model, plan: [
        plan.make_optimizer(model, lr=LR),
        AdamW([nn.Parameter(torch.ones(2))], lr=1.0),
    ],
}


@pytest.mark.parametrize("name", SOUND)
def test_rates_of_the_plan_are_no_alert(name: str) -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    optimizers = SOUND[name](model, plan)
    watch = nfd.Watch(model, plan, X)
    # the first step has no rate
    assert warned_of(model, optimizers, watch, schedule=lambda step: step / 2) == []
    assert watch.alerts == []


def test_what_muon_leaves_to_adamw_may_have_a_rate_of_its_own() -> None:
    model, plan = planned(Residual(WIDTH, DEPTH), optimizer="muon")
    watch = nfd.Watch(model, plan, X)
    assert (
        warned_of(model, plan.make_optimizer(model, lr=LR, adamw_lr=LR / 7), watch)
        == watch.alerts
        == []
    )


WRONG: dict[str, Make] = {
    "no groups": plain,
    "groups without rates": lambda model, plan: AdamW(
        [{"params": group["params"]} for group in plan.param_groups(model, 1.0)], lr=LR
    ),
    "wrapped": lambda model, plan: Wrapped(plain(model, plan)),
}


@pytest.mark.parametrize("name", WRONG)
def test_one_rate_for_all_tensors_is_told_at_the_first_step_that_has_a_rate(name: str) -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    optimizer = WRONG[name](model, plan)
    watch = nfd.Watch(model, plan, X, every=9)
    warned = warned_of(model, optimizer, watch, 3, schedule=lambda step: max(step - 1, 0))
    (alert,) = watch.alerts
    assert (alert.step, alert.cause) == (2, Cause.OPTIMIZER)
    assert {other.tensor: other.planned for other in alert.tensors} == pytest.approx(
        {name: LR * plan.rate(name) for name in plan.entries if plan.rate(name) != 1}
    )
    assert warned == [str(alert)]
    assert "AdamW was not made from the plan" in str(alert)
    assert f"blocks.*.down.weight (4 tensors) has rate 0.01 instead of {LR / 4:g}" in str(alert)
    assert "plan.make_optimizer" in alert.remedy
    resumed = nfd.Watch(model, plan, X, every=9, own_start=True)
    resumed.load_state_dict(json.loads(json.dumps(watch.state_dict(start=False))))
    assert resumed.alerts == []
    assert warned_of(model, optimizer, resumed) == []  # the earlier watch warned of it
    assert [other.tensor for other in resumed.alerts[0].tensors] == [
        other.tensor for other in alert.tensors
    ]


def test_an_optimizer_of_another_kind_is_named() -> None:
    for optimizer, make, names in (
        ("adamw", SGD, "'embed.weight', 'embed.bias', 'blocks.0.up.weight' and 17 more"),
        (
            "muon",
            AdamW,
            "'blocks.0.up.weight', 'blocks.0.down.weight', 'blocks.1.up.weight' and 5 more",
        ),
    ):
        model, plan = planned(Residual(WIDTH, DEPTH), optimizer=optimizer)
        watch = nfd.Watch(model, plan, X)
        (warned,) = warned_of(model, make(plan.param_groups(model, LR)), watch)
        assert (
            f"step 1: the plan is for {optimizer}, the optimizer is {make.__name__}: it steps "
            f"{names}." in warned
        )


def test_no_hook_stays() -> None:
    before = len(_global_optimizer_post_hooks)
    for steps in (2, 0):  # once it knows the optimizer, and with the watch
        model, plan = planned(Residual(WIDTH, DEPTH))
        watch = nfd.Watch(model, plan, X)
        assert len(_global_optimizer_post_hooks) == before + 1
        warned_of(model, plan.make_optimizer(model, lr=LR), watch, steps)
        assert len(_global_optimizer_post_hooks) == before + (not steps)
    del watch
    gc.collect()
    assert len(_global_optimizer_post_hooks) == before


# ---- how alerts are told


def test_every_alert_is_warned_of_and_logged_once_also_in_a_second_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under Python's usual filter, which shows the same words at one line of code once."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            model, plan = planned(Residual(WIDTH, DEPTH))
            watch = nfd.Watch(model, plan, X, every=2, expected=Several())
            train(model, plan, 6, watch)
            assert len(watch.alerts) == 3
    told = [str(alert) for alert in watch.alerts] * 2
    assert [str(warning.message) for warning in caught] == told
    # whose loop calls step()
    assert {Path(warning.filename).name for warning in caught} == {"models.py"}
    assert [record.getMessage() for record in caplog.records if record.name == "nfd"] == told
    assert [row.value for row in watch.rows if row.meter == "alerts"] == [1.0, 2.0, 3.0]


class Spreading(Several):
    """Finds one more layer at every look that does not train."""

    def alerts(self, rows: Any) -> list[Alert]:
        step = rows[0].step
        layers = [f"blocks.{step // 2}.{part}" for part in ("up", "down")]
        said = Cause.FROZEN, "the layer does not train", "Let it train."
        return [Alert(step, step, "change", layer, 0.0, None, *said) for layer in layers]


def test_a_cause_is_warned_of_once_and_not_for_every_layer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Under Python's usual filter; the log has every look's layers."""
    model, plan = planned(Residual(WIDTH, DEPTH))
    watch = nfd.Watch(model, plan, X, every=2, expected=Spreading())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        train(model, plan, 6, watch)
    (warning,) = caught
    first = (
        "step 2: 2 layers do not train (blocks.1.up, blocks.1.down); blocks.1.up: relative weight "
        "change is 0."
    )
    assert str(warning.message) == f"{first} Let it train."
    logged = [record.getMessage() for record in caplog.records if record.name == "nfd"]
    assert logged[0] == str(warning.message)
    assert [text.partition(":")[0] for text in logged] == ["step 2", "step 4", "step 6"]
    assert len(watch.alerts) == 6
    assert watch.answer.title == "6 layers do not train"
    assert watch.answer.state == "1 fault since step 2"


def test_code_without_a_module_is_warned_too() -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    watch = nfd.Watch(model, plan, X, every=1, expected=Several())
    with pytest.warns(RuntimeWarning, match=r"step 1: .* of the network stays outside"):
        exec("watch.step()", {"watch": watch})


def test_a_loop_can_end_at_an_alert() -> None:
    def begun(on_alert: Any, expected: Any = None) -> tuple[nn.Module, nfd.Plan, nfd.Watch]:
        model, plan = planned(Residual(WIDTH, DEPTH))
        return model, plan, nfd.Watch(model, plan, X, 2, expected, on_alert=on_alert)

    for on_alert, stops in (("warn", False), ("stop", True)):
        model, plan, watch = begun(on_alert, Several())
        with pytest.warns(RuntimeWarning, match="stays outside"):
            train(model, plan, 2, watch)
        assert watch.should_stop == stops
    model, plan, watch = begun("raise", Several())
    with (
        pytest.warns(RuntimeWarning, match="stays outside"),
        pytest.raises(nfd.watch.AlertError, match=r"step 2: .* of the network stays outside"),
    ):
        train(model, plan, 6, watch)
    assert watch.steps == 2
    for on_alert in ("stop", "raise"):  # a sound training goes on
        model, plan, watch = begun(on_alert)
        train(model, plan, 4, watch)
        assert (watch.steps, watch.should_stop) == (4, False)
    with pytest.raises(ValueError, match="on_alert must be"):
        begun("halt")


def test_a_second_kind_of_error_of_a_look_is_warned_of_too() -> None:
    model, plan = planned(Residual(WIDTH, DEPTH))
    watch = nfd.Watch(model, plan, X, every=1)

    def listener(seen: nfd.Watch) -> None:
        raise OSError("no space" if seen.steps < 3 else "no rights")

    watch.listeners.append(listener)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, plan, 4, watch)
    assert [str(warning.message).partition(" (")[2] for warning in caught] == [
        "OSError: no space). The training goes on.",
        "OSError: no rights). The training goes on.",
    ]
