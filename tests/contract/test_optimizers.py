"""Optimizers of one's own: what they set is of the base, and a plan scales it or refuses it by
name.
"""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, NAdam, RMSprop

import nfd

X = torch.linspace(-1, 1, 20).view(4, 5)
WIDER = 4


class Net(nn.Module):
    """Linear maps on a stream."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.head = nn.Linear(width, 3)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = h + torch.relu(block(h))
        return self.head(h)


def planned(optimizer: Any = "adamw", **run: Any) -> tuple[nn.Module, nfd.Plan]:
    torch.manual_seed(0)
    model = Net(8 * WIDER, 2)
    plan = nfd.plan(model, (8, 2), make_model=Net, sample=X, rule="mup", optimizer=optimizer)
    return model, plan.for_run(**run) if run else plan


def group_of(optimizer: torch.optim.Optimizer, model: nn.Module, name: str) -> dict[str, Any]:
    wanted = dict(model.named_parameters())[name]
    return next(
        group for group in optimizer.param_groups if any(p is wanted for p in group["params"])
    )


def hidden_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Any]:
    """The group of a hidden matrix: rate 1/4 and epsilon 1/4 of the base's, decay 4 times the
    base's.
    """
    return group_of(optimizer, model, "blocks.0.weight")


SET = {"betas": (0.9, 0.95), "weight_decay": 0.1, "eps": 1e-6}


def by_update(groups: Any) -> torch.optim.Optimizer:
    return AdamW(
        [group | {"weight_decay": 0.1, "eps": 1e-6} for group in groups], betas=(0.9, 0.95)
    )


def in_place(groups: Any) -> torch.optim.Optimizer:
    for group in groups:
        group["weight_decay"] = 0.1
        group.update(eps=1e-6, betas=(0.9, 0.95))
    return AdamW(groups)


class Wrapper(torch.optim.Optimizer):
    """Steps another optimizer, whose groups and settings it shows as its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.defaults = inner.defaults
        self.param_groups = inner.param_groups
        self.state = inner.state

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def wrapped(groups: Any) -> torch.optim.Optimizer:
    return Wrapper(AdamW(groups))


class Passing(AdamW):
    """Passes what it gets."""

    def __init__(self, groups: Any, **options: Any) -> None:
        super().__init__(groups, **options)


FACTORIES: dict[str, Any] = {
    "a function": lambda groups: AdamW(groups, **SET),
    "a partial class": functools.partial(AdamW, **SET),
    "copies of groups": lambda groups: AdamW([dict(group) for group in groups], **SET),
    "values in copies of groups": by_update,
    "values in groups": in_place,
    "a wrapper": lambda groups: Wrapper(AdamW(groups, **SET)),
    "a subclass": lambda groups: Passing(groups, **SET),
    "Adam with decoupled decay": lambda groups: Adam(groups, decoupled_weight_decay=True, **SET),
    "NAdam with decoupled decay": lambda groups: NAdam(groups, decoupled_weight_decay=True, **SET),
    "a group for each parameter": lambda groups: AdamW(
        [group | {"params": [p]} for group in groups for p in group["params"]], **SET
    ),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_what_a_function_sets_is_of_the_base(name: str) -> None:
    model, plan = planned()
    optimizer = plan.make_optimizer(model, 1e-3, make=FACTORIES[name])
    hidden = hidden_of(optimizer, model)
    readout = group_of(optimizer, model, "head.weight")
    assert hidden["weight_decay"] == pytest.approx(0.1 * WIDER)
    assert hidden["eps"] == pytest.approx(1e-6 / WIDER)
    assert readout["eps"] == 1e-6
    assert hidden["betas"] == (0.9, 0.95)
    assert hidden["lr"] == 1e-3 / WIDER
    plan.check_rates(optimizer)


@pytest.mark.parametrize("name", FACTORIES)
def test_at_the_base_a_plan_changes_nothing_that_is_set(name: str) -> None:
    model = Net(8, 2)
    plan = nfd.plan(model, (8, 2), make_model=Net, sample=X, rule="mup")
    for group in plan.make_optimizer(model, 1e-3, make=FACTORIES[name]).param_groups:
        assert (group["lr"], group["weight_decay"], group["eps"], group["betas"]) == (
            1e-3,
            0.1,
            1e-6,
            (0.9, 0.95),
        )


def test_a_run_scales_what_is_set() -> None:
    model, plan = planned(batch=(1, 4), tokens=(1e6, 8e6))
    optimizer = plan.make_optimizer(model, 1e-3, make=FACTORIES["a function"])
    hidden = hidden_of(optimizer, model)
    assert plan.run is not None
    assert hidden["betas"] == pytest.approx((0.9**4, 0.95**4))
    assert hidden["eps"] == pytest.approx(1e-6 / WIDER / 2)
    assert hidden["lr"] * hidden["weight_decay"] == pytest.approx(1e-3 * 0.1 / 2)  # b/d = 4/8
    three = plan.make_optimizer(model, 1e-3, betas=(0.9, 0.95, 0.9999), make=Three)
    assert hidden_of(three, model)["betas"] == pytest.approx((0.9**4, 0.95**4, 0.9999**4))


class Three(torch.optim.Optimizer):
    """AdEMAMix: a third beta, of a slow mean of gradients."""

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999, 0.9999), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "alpha": 5.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            fast, squares, slow = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(
                        k=0, m=torch.zeros_like(p), v=torch.zeros_like(p), slow=torch.zeros_like(p)
                    )
                state["k"] += 1
                state["m"].lerp_(p.grad, 1 - fast)
                state["v"].lerp_(p.grad**2, 1 - squares)
                state["slow"].lerp_(p.grad, 1 - slow)
                mean = state["m"] / (1 - fast ** state["k"]) + group["alpha"] * state["slow"]
                p.sub_(
                    group["lr"]
                    * mean
                    / ((state["v"] / (1 - squares ** state["k"])).sqrt() + group["eps"])
                )


def test_groups_take_what_an_optimizer_is_given() -> None:
    model, plan = planned()
    given = hidden_of(AdamW(plan.param_groups(model, 1e-3), weight_decay=0.1, eps=1e-6), model)
    assert (given["weight_decay"], given["eps"]) == pytest.approx((0.1 * WIDER, 1e-6 / WIDER))
    bare = hidden_of(AdamW(plan.param_groups(model, 1e-3)), model)
    assert (bare["weight_decay"], bare["eps"]) == pytest.approx((0.0, 1e-8 / WIDER))
    chosen = hidden_of(AdamW(plan.param_groups(model, 1e-3, 0.2, eps=1e-4)), model)
    assert (chosen["weight_decay"], chosen["eps"]) == pytest.approx((0.2 * WIDER, 1e-4 / WIDER))
    net = nfd.ResNet(8, 3, width=64, depth=4)
    (first, *_) = AdamW(net.param_groups(0.1, optimizer="adam"), eps=1e-3).param_groups
    (bare_first, *_) = net.param_groups(0.1, optimizer="adam")
    assert first["eps"] == pytest.approx(1e5 * bare_first["eps"])


def test_copies_of_groups_take_it_too_and_what_they_set_stays() -> None:
    model, plan = planned()
    groups = plan.param_groups(model, 1e-3)
    apart = [{"params": group["params"], "lr": group["lr"]} for group in groups]
    for copies in (
        [dict(group) for group in groups],
        [group | {"name": "a"} for group in groups],
        apart,
    ):
        given = hidden_of(AdamW(copies, weight_decay=0.1, eps=1e-6), model)
        assert (given["weight_decay"], given["eps"]) == pytest.approx((0.1 * WIDER, 1e-6 / WIDER))
    for_good = hidden_of(
        AdamW([group | {"weight_decay": 0.3} for group in groups], weight_decay=0.1), model
    )
    assert for_good["weight_decay"] == 0.3


@pytest.mark.parametrize("by_groups", [True, False])
def test_compilers_see_plain_groups(by_groups: bool) -> None:
    model, plan = planned()
    made = (
        AdamW(plan.param_groups(model, 1e-3))
        if by_groups
        else plan.make_optimizer(model, 1e-3, make=AdamW)
    )
    assert {type(group) for group in made.param_groups} == {dict}
    assert {type(group["params"]) for group in made.param_groups} == {list}


def test_a_decay_that_nobody_sets_is_zero_and_one_that_equals_a_default_is_kept() -> None:
    model, plan = planned()
    for make in (
        AdamW,
        lambda groups: AdamW(groups),
        functools.partial(AdamW, eps=1e-6),
        Passing,
        wrapped,
    ):
        assert {
            group["weight_decay"]
            for group in plan.make_optimizer(model, 1e-3, make=make).param_groups
        } == {0.0}
    default = 0.01  # of PyTorch's AdamW
    for make in (
        lambda groups: AdamW(groups, weight_decay=default),
        functools.partial(AdamW, weight_decay=default),
        lambda groups: Passing(groups, weight_decay=default),
        lambda groups: Wrapper(AdamW(groups, weight_decay=default)),
    ):
        assert (
            hidden_of(plan.make_optimizer(model, 1e-3, make=make), model)["weight_decay"]
            == default * WIDER
        )


def test_a_decay_that_is_set_on_the_made_optimizer_is_kept() -> None:
    def later(groups: Any) -> torch.optim.Optimizer:
        optimizer = AdamW(groups)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.1
        return optimizer

    model, plan = planned()
    assert (
        hidden_of(plan.make_optimizer(model, 1e-3, make=later), model)["weight_decay"]
        == 0.1 * WIDER
    )


def test_a_plan_names_the_settings_of_an_object_that_it_does_not_take() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    about: dict[str, Any] = {"rule": "mup", "base": (4, 1), "sample": torch.ones(2, 4)}

    def make_model(width: int, depth: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 2))

    def notes(**settings: Any) -> str:
        optimizer = AdamW(model.parameters(), lr=0.5, **settings)
        return " ".join(nfd.plan(model, make_model=make_model, optimizer=optimizer, **about).notes)

    said = notes(**SET)
    assert "betas=(0.9, 0.95), eps=1e-06, weight_decay=0.1" in said
    assert "pass these to plan.make_optimizer" in said
    assert "make_optimizer" not in notes()
    assert "make_optimizer" not in notes(fused=True)


def test_values_of_single_groups_are_scaled_each() -> None:
    def without_biases(groups: Any) -> torch.optim.Optimizer:
        parts = []
        for group in groups:
            vectors = [p for p in group["params"] if p.dim() < 2]
            matrices = [p for p in group["params"] if p.dim() > 1]
            parts += [group | {"params": vectors, "weight_decay": 0.0}] if vectors else []
            parts += [group | {"params": matrices}] if matrices else []
        return AdamW(parts, weight_decay=0.1)

    model, plan = planned()
    optimizer = plan.make_optimizer(model, 1e-3, make=without_biases)
    assert group_of(optimizer, model, "blocks.0.bias")["weight_decay"] == 0
    assert hidden_of(optimizer, model)["weight_decay"] == pytest.approx(0.1 * WIDER)
    spared = plan.make_optimizer(
        model, 1e-3, no_decay="vectors", make=lambda groups: AdamW(groups, weight_decay=0.1)
    )
    assert group_of(spared, model, "blocks.0.bias")["weight_decay"] == 0
    assert hidden_of(spared, model)["weight_decay"] == pytest.approx(0.1 * WIDER)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weight_decay": 0.2, "make": lambda groups: AdamW(groups, weight_decay=0.1)},
            "weight_decay is chosen twice",
        ),
        (
            {"weight_decay": 0.0, "make": lambda groups: AdamW(groups, weight_decay=0.1)},
            "weight_decay is chosen twice",
        ),
        (
            {"eps": 1e-4, "make": functools.partial(AdamW, eps=1e-6)},
            "eps is chosen twice: 0.0001 beside make, and 1e-06",
        ),
        (
            {"betas": (0.9, 0.9), "make": lambda groups: Passing(groups, betas=(0.8, 0.9))},
            "option 'betas'|chosen twice",
        ),
        (
            {"make": lambda groups: AdamW(groups, lr=0.1)},
            "lr is chosen twice: 0.001 beside make, and 0.1",
        ),
        (
            {"make": lambda groups: Adam(groups, weight_decay=0.1)},
            "weight_decay of Adam is normalised",
        ),
        (
            {"make": lambda groups: NAdam(groups, weight_decay=0.1)},
            "weight_decay of NAdam is normalised",
        ),
        (
            {"make": lambda groups: RMSprop(groups, weight_decay=0.1)},
            "weight_decay of RMSprop is normalised",
        ),
        (
            {"make": torch.optim.SGD},
            "make makes a SGD, whose law is 'sgd'; the plan is for 'adamw'",
        ),
        (
            {"weight_decay": 0.1, "make": torch.optim.Rprop},
            "weight_decay=0.1 is given .* Rprop .* has no such setting",
        ),
        (
            {"make": lambda groups: torch.optim.Adafactor(groups)},
            r"eps=\(None, 0.001\) follows the size",
        ),
        (
            {
                "make": lambda groups: AdamW(
                    [{"params": group["params"]} for group in groups], lr=1e-3
                )
            },
            "at a learning rate of 0.001; the plan has 0.00025. Keep the lr of every group",
        ),
        (
            {"make": lambda groups: AdamW([p for group in groups for p in group["params"]])},
            "puts parameters of several groups of the plan into one",
        ),
    ],
)
def test_what_cannot_be_scaled_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    model, plan = planned()
    with pytest.raises(ValueError, match=message):
        plan.make_optimizer(model, 1e-3, **options)


def test_an_optimizer_of_groups_of_a_plan_is_copied_stored_and_loaded() -> None:
    model, plan = planned()
    for optimizer in (
        plan.make_optimizer(model, 1e-3, make=FACTORIES["a function"]),
        AdamW(plan.param_groups(model, 1e-3), weight_decay=0.1, eps=1e-6),
    ):
        model(X).sum().backward()
        optimizer.step()
        stored = copy.deepcopy(optimizer.state_dict())
        again = plan.make_optimizer(model, 1e-3, make=AdamW)
        again.load_state_dict(stored)
        assert [g["weight_decay"] for g in again.param_groups] == [
            g["weight_decay"] for g in optimizer.param_groups
        ]
        twin = copy.deepcopy(optimizer)
        assert twin.state_dict()["param_groups"] == stored["param_groups"]
        plan.check_rates(again)


def test_a_value_that_is_chosen_twice_alike_is_one() -> None:
    model, plan = planned()
    make = functools.partial(AdamW, weight_decay=0.1, lr=1e-3)
    assert hidden_of(plan.make_optimizer(model, 1e-3, 0.1, make=make), model)[
        "weight_decay"
    ] == pytest.approx(0.4)
    by_name = plan.make_optimizer(model, 1e-3, weight_decay=0.1, make=AdamW)
    assert hidden_of(by_name, model)["weight_decay"] == pytest.approx(0.4)
    sgd = planned("sgd")[1].make_optimizer(
        model, 0.1, make=functools.partial(torch.optim.SGD, momentum=0.9)
    )
    assert {group["momentum"] for group in sgd.param_groups} == {0.9}


def test_muon_takes_its_decay_and_the_rest_that_of_the_plan() -> None:
    model, plan = planned("muon")
    optimizer = plan.make_optimizer(
        model, 0.02, make=lambda groups: torch.optim.Muon(groups, weight_decay=0.1)
    )
    hidden = hidden_of(optimizer, model)
    assert hidden["lr"] * hidden["weight_decay"] == pytest.approx(0.02 * 0.1)
    assert group_of(optimizer, model, "head.weight")["weight_decay"] == 0
    whole = plan.make_optimizer(model, 0.02, 0.1, betas=(0.8, 0.9), momentum=0.9)
    assert hidden_of(whole, model)["momentum"] == 0.9
    assert group_of(whole, model, "head.weight")["betas"] == (0.8, 0.9)


# ---- laws that name their settings


def test_a_law_says_how_each_setting_follows() -> None:
    law = nfd.OptimizerLaw(
        "three-means",
        Three,
        epsilon=True,
        hyperparameters=(
            nfd.Hyperparameter("eps", "epsilon"),
            nfd.Hyperparameter("betas", ("beta1", "beta2", None)),
            nfd.Hyperparameter(
                "alpha", size=nfd.scaling.rules.Power(fan_in=-1.0), batch=-1.0, tokens=1.0
            ),
        ),
    )
    model, plan = planned(law, batch=(1, 4), tokens=(1e6, 8e6))
    hidden = hidden_of(plan.make_optimizer(model, 1e-3), model)
    assert hidden["betas"] == pytest.approx((0.9**4, 0.999**4, 0.9999))
    assert hidden["eps"] == pytest.approx(1e-8 / WIDER / 2)
    assert hidden["alpha"] == pytest.approx(5.0 / WIDER * 8 / 4)
    assert "setting alpha" in plan.explain()
    stored = nfd.Plan.from_dict(plan.to_dict())
    assert stored == plan
    kept = nfd.OptimizerLaw("three-means-kept", Three, epsilon=True, hyperparameters=())
    model, plan = planned(kept, batch=(1, 4), tokens=(1e6, 8e6))
    hidden = hidden_of(plan.make_optimizer(model, 1e-3), model)
    assert (hidden["betas"], hidden["eps"], hidden["alpha"]) == ((0.9, 0.999, 0.9999), 1e-8, 5.0)


def test_laws_without_named_settings_work_as_before() -> None:
    law = nfd.OptimizerLaw(
        "plain-adamw", lambda groups: AdamW(groups, eps=1e-6), epsilon=True, states=2
    )
    model, plan = planned(law)
    hidden = hidden_of(plan.make_optimizer(model, 1e-3, weight_decay=0.1), model)
    assert (hidden["weight_decay"], hidden["eps"]) == pytest.approx((0.1 * WIDER, 1e-6 / WIDER))


# ---- in a task


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free AdamW: steps counted by the group, another point for gradients than for
    judging.
    """

    def __init__(
        self, params: Any, lr: float = 1e-3, betas: Any = (0.9, 0.999), eps: float = 1e-8
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "k": 0, "train_mode": False, "sum": 0.0}
        )

    def train(self) -> None:
        self._move(to_training=True)

    def eval(self) -> None:
        self._move(to_training=False)

    @torch.no_grad()
    def _move(self, *, to_training: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != to_training:
                past = group["betas"][0]
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], 1 - past if to_training else 1 - 1 / past)
                group["train_mode"] = to_training

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            assert group["train_mode"], "call train() first"
            past, squares = group["betas"]
            group["k"] += 1
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(z=p.clone(), exp_avg_sq=torch.zeros_like(p))
                state["exp_avg_sq"].lerp_(p.grad**2, 1 - squares)
                size = (state["exp_avg_sq"] / (1 - squares ** group["k"])).sqrt() + group["eps"]
                p.lerp_(state["z"], 1 / group["k"])
                p.sub_(group["lr"] * (past * (1 - 1 / group["k"])) * p.grad / size)
                state["z"].sub_(group["lr"] * p.grad / size)


ScheduleFree.__name__ = "AdamWScheduleFree"
BATCHES = [
    (torch.randn(8, 5, generator=g), torch.randint(3, (8,), generator=g))
    for g in [torch.Generator()]
    for _ in range(4)
]


def trained(width: int = 32, **task: Any) -> Any:
    family = nfd.Family(Net, (8, 2), rule="mup", optimizer=task.pop("optimizer", "adamw"))
    return nfd.Trial(family, nfd.Task(BATCHES, **task), width, 2, 0, 1e-3).train()


def test_a_task_scales_what_its_function_sets() -> None:
    settings = {"weight_decay": 0.5, "eps": 1e-3}
    by_plan = []

    def seen(groups: Any) -> torch.optim.Optimizer:
        optimizer = AdamW(groups, **settings)
        by_plan.append(optimizer)
        return optimizer

    record = trained(make_optimizer=seen)
    assert record.status == "done"
    model, plan = planned()
    wanted = plan.make_optimizer(
        model, 1e-3, make=lambda groups: AdamW(groups, **settings)
    ).param_groups
    trained_by = by_plan[-1].param_groups
    assert [g["weight_decay"] for g in trained_by] == [g["weight_decay"] for g in wanted]
    assert [g["eps"] for g in trained_by] == [g["eps"] for g in wanted]
    plain = trained(make_optimizer=lambda groups: AdamW(groups, fused=True))
    assert plain.metrics == trained().metrics
    assert plain.metrics != record.metrics


def test_schedule_free_optimizers_train_in_tasks_and_are_judged_where_they_should_be() -> None:
    record = trained(make_optimizer=ScheduleFree, eval_batches=BATCHES[:1])
    assert record.status == "done"
    assert record.metrics["test_loss"] < record.metrics["first_loss"]
    check = nfd.check(
        Net,
        nfd.Task(BATCHES, make_optimizer=ScheduleFree),
        [8, 16],
        [2],
        lr=1e-3,
        rule="mup",
        seeds=2,
    )
    assert "AdamWScheduleFree" in " ".join(check.answer.details)
    model, plan = planned(batch=(1, 4))
    assert hidden_of(plan.make_optimizer(model, 1e-3, make=ScheduleFree), model)[
        "betas"
    ] == pytest.approx((0.9, 0.999**4))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"make_optimizer": lambda groups: AdamW(groups, lr=0.1)},
            "lr is chosen twice: 0.001 beside make_optimizer",
        ),
        (
            {"weight_decay": 0.0, "make_optimizer": lambda groups: AdamW(groups, weight_decay=0.1)},
            "weight_decay is chosen twice: 0.0 beside make_optimizer, and 0.1",
        ),
        (
            {"make_optimizer": lambda groups: Adam(groups, weight_decay=0.1)},
            "weight_decay of Adam is normalised",
        ),
    ],
)
def test_a_task_refuses_by_name(task: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nfd.check(Net, nfd.Task(BATCHES, **task), [8, 16], [2], lr=1e-3, rule="mup", seeds=2)


def test_a_class_of_pytorch_has_its_name_in_the_library_and_a_class_of_ones_own_has_not() -> None:
    class Tuned(AdamW):
        """AdamW with other averages."""

        def __init__(self, params: Any, lr: float = 1e-3) -> None:
            super().__init__(params, lr, betas=(0.8, 0.9))

    names = [planned(kind)[1].optimizer for kind in (Adam, AdamW, torch.optim.SGD, Tuned)]
    assert names == ["adam", "adamw", "sgd", "tuned"]


class Descent(AdamW):
    """AdamW by its class, and gradient descent by its steps."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad, alpha=group["lr"])


class Logged(AdamW):
    """AdamW with a step of its own, which does the same."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        return super().step(closure)


def test_steps_of_another_law_are_refused_whatever_the_class_is_called() -> None:
    model, plan = planned()
    for make in (Descent, lambda groups: Descent(groups)):
        with pytest.raises(ValueError, match=r"make makes a Descent.*the plan is for 'adamw'"):
            plan.make_optimizer(model, 1e-3, make=make)
    own, own_plan = planned(Descent)
    assert hidden_of(own_plan.make_optimizer(own, 1e-3), own)["lr"] == 1e-3
    logged = plan.make_optimizer(model, 1e-3, make=Logged)
    assert hidden_of(logged, model)["lr"] == 1e-3 / WIDER


class Trusted(AdamW):
    """Steps in proportion to the weights, as of LARS."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (p.norm() / p.grad.norm()), alpha=group["lr"])


def test_steps_without_a_law_are_told_where_a_plan_makes_them() -> None:
    model, plan = planned()
    with pytest.warns(RuntimeWarning, match="plan for 'adamw' may not fit.*a trust ratio"):
        plan.make_optimizer(model, 1e-3, make=Trusted)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan.make_optimizer(model, 1e-3, make=Logged)


def test_a_law_that_the_user_names_is_not_overruled_by_steps() -> None:
    law = nfd.OptimizerLaw("named-by-hand", Descent, degree=0.0)
    model, plan = planned(law)
    assert hidden_of(plan.make_optimizer(model, 1e-3), model)["lr"] == 1e-3 / WIDER


@pytest.mark.parametrize("way", ["class", "function"])
def test_muon_of_pytorch_is_planned_and_made_from_its_class_or_a_function(way: str) -> None:
    kind: Any = torch.optim.Muon if way == "class" else lambda groups: torch.optim.Muon(groups)
    model, plan = planned(kind)
    by_name = planned("muon")[1]
    assert (plan.optimizer == "muon") == (way == "class")
    made = plan.make_optimizer(model, 0.02, adamw_lr=1e-3)
    expected = by_name.make_optimizer(model, 0.02, adamw_lr=1e-3)
    for name, _ in model.named_parameters():
        rate = group_of(expected, model, name)["lr"]
        assert group_of(made, model, name)["lr"] == pytest.approx(rate), name
    spectral = lambda groups: nfd.Muon(groups, adjust_lr_fn="match_rms_adamw")  # noqa: E731
    with pytest.raises(ValueError, match="'muon-match-rms-adamw'; the plan is for 'muon"):
        plan.make_optimizer(model, 0.02, adamw_lr=1e-3, make=spectral)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda groups: None, "must return an optimizer.*got NoneType"),
        (lambda groups: AdamW, "must return an optimizer.*got AdamW"),
        (lambda groups: (AdamW(groups), None), "must return an optimizer.*got tuple"),
        (AdamW([nn.Parameter(torch.ones(2))]), "make must be a function of groups.*got an object"),
    ],
)
def test_what_makes_no_optimizer_is_refused_by_name(made: Any, words: str) -> None:
    model, plan = planned()
    with pytest.raises(TypeError, match=words):
        plan.make_optimizer(model, 1e-3, make=made)


def test_parameters_that_a_function_leaves_out_are_counted() -> None:
    model, plan = planned()
    with pytest.warns(RuntimeWarning, match=r"without 7 of the 8 parameters.*do not train"):
        plan.make_optimizer(model, 1e-3, make=lambda groups: AdamW(groups[:1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan.make_optimizer(model, 1e-3, make=AdamW)
        model.embed.requires_grad_(False)
        plan.make_optimizer(model, 1e-3, make=AdamW)
