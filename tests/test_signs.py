"""What a watch says of a training without a plan: each sign on a training that has it, and on sound
ones.
"""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import SHIFTED, ConvNet, Language, Residual, Transformer, gpt2
from tests.test_integrations import Recorder
from torch import Tensor, nn

import nfd
from nfd.integrations import to_wandb
from nfd.watch.bands import Ladder
from nfd.watch.signs import LossSigns

GENERATOR = torch.Generator().manual_seed(0)
POINTS = [
    (torch.randn(32, 5, generator=GENERATOR), torch.randint(0, 3, (32,), generator=GENERATOR))
    for _ in range(4)
] * 5
IMAGES = [
    (torch.randn(8, 3, 6, 6, generator=GENERATOR), torch.randint(0, 10, (8,), generator=GENERATOR))
] * 16
TOKENS = SHIFTED * 2
Spoil = Callable[[nn.Module, int], None]
Alerts = list[tuple[str, str | None]]


def mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3)
    )


def train(
    model: Any,
    batches: Sequence[Any],
    optimizer: torch.optim.Optimizer,
    watch: nfd.Watch,
    spoil: Spoil | None = None,
) -> None:
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        outputs = model(x)
        logits = getattr(outputs, "logits", outputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, -2).float(), y.flatten())
        loss.backward()
        optimizer.step()
        if spoil is not None:
            spoil(model, step)
        watch.step(loss)


def watched(
    model: Any,
    batches: Sequence[Any],
    make: Callable[[Any], torch.optim.Optimizer] | None = None,
    *,
    spoil: Spoil | None = None,
    **options: Any,
) -> tuple[nfd.Watch, Alerts]:
    """A watch without a plan, and its alerts, of whose causes it warned once."""
    watch = nfd.Watch(model, None, batches[0][0], every=2, **options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, batches, (make or adamw(1e-3))(model), watch, spoil)
    causes = {alert.cause for alert in watch.alerts}
    assert len(caught) == len(causes)
    for alert in watch.alerts:
        assert any(alert.remedy in str(warning.message) for warning in caught)
    assert watch.failed is None
    return watch, [(alert.cause.value, alert.layer) for alert in watch.alerts]


def adamw(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr)


def sgd(lr: float) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr)


# ---- sound trainings


def with_rest(model: nn.Module) -> nn.Module:
    """The same with a layer that no output depends on, which requires gradients."""
    model.unused = nn.Linear(5, 5)
    return model


def frozen_on_purpose(model: nn.Module) -> nn.Module:
    model.get_submodule("blocks.1").requires_grad_(False)
    return model


def starting_at_zero(model: nn.Module) -> nn.Module:
    """Branches that begin as the identity, so that their first matrices get no gradient at
    first.
    """
    for k in range(3):
        nn.init.zeros_(model.get_parameter(f"blocks.{k}.down.weight"))
    return model


def two_rates(model: Any) -> torch.optim.Optimizer:
    """The first layer trains at a rate of its own."""
    first = {"params": model[0].parameters(), "lr": 1e-4}
    return torch.optim.AdamW([first, {"params": model[2:].parameters()}], lr=1e-2)


SOUND: dict[str, Callable[[], tuple[nfd.Watch, Alerts]]] = {
    "an MLP by SGD": lambda: watched(mlp(), POINTS, sgd(0.1)),
    "an MLP at a high rate": lambda: watched(mlp(), POINTS, adamw(0.03)),
    "residual blocks": lambda: watched(Residual(16, 3), POINTS),
    "frozen on purpose": lambda: watched(frozen_on_purpose(Residual(16, 3)), POINTS),
    "a layer that is not in use": lambda: watched(with_rest(Residual(16, 3)), POINTS),
    "zeros at the start": lambda: watched(starting_at_zero(Residual(16, 3)), POINTS),
    "several rates": lambda: watched(mlp(), POINTS, two_rates),
    "a convolution with batch statistics": lambda: watched(ConvNet(8, 2), IMAGES),
    "attention, biases of keys, rows that are not seen": lambda: watched(
        Transformer(16, 2), TOKENS
    ),
    "GPT-2": lambda: watched(gpt2(16, 2), TOKENS),
    "16 bits at a rate that is not lost": lambda: watched(
        Language(16, 2).bfloat16(), TOKENS, adamw(1e-2)
    ),
    "32 bits at a low rate": lambda: watched(Language(16, 2), TOKENS, adamw(1e-6)),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_without_a_plan_raises_no_alert(name: str) -> None:
    torch.manual_seed(0)
    watch, alerts = SOUND[name]()
    assert alerts == []
    assert watch.rows


# ---- trainings that have a sign


def dying(model: nn.Module, step: int) -> None:
    if step == 5:
        nn.init.constant_(model.get_parameter("blocks.1.up.bias"), -50.0)


def dead(model: nn.Sequential) -> nn.Sequential:
    nn.init.constant_(model.get_parameter("2.bias"), -50.0)
    return model


def two_of_three(model: Any) -> torch.optim.Optimizer:
    """The second layer was forgotten."""
    return torch.optim.AdamW([*model[0].parameters(), *model[4].parameters()])


class Detached(Residual):
    """The outputs of its second block do not pass gradients to it."""

    def streams(self, x: Tensor) -> list[Tensor]:
        h = [self.embed(x)]
        for k, block in enumerate(self.blocks):
            h.append(h[-1] + (block(h[-1]) - h[-1]).detach() if k == 1 else block(h[-1]))
        return h


BROKEN: dict[str, tuple[Callable[[], tuple[nfd.Watch, Alerts]], Alerts]] = {
    "dies in training": (
        lambda: watched(Residual(16, 3), POINTS, spoil=dying),
        [("dead", "blocks.1.down")],
    ),
    "dead from the start": (lambda: watched(dead(mlp()), POINTS), [("dead", "4")]),
    "not in the optimizer": (lambda: watched(mlp(), POINTS, two_of_three), [("frozen", "2")]),
    "detached": (
        lambda: watched(
            Detached(16, 3), POINTS, lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.0)
        ),
        [("frozen", "blocks.1.up"), ("frozen", "blocks.1.down")],
    ),
    "the optimizer of another model": (
        lambda: watched(mlp(), POINTS, lambda _: adamw(1e-3)(mlp())),
        [("frozen", None)],
    ),
    "explodes": (
        lambda: watched(mlp(), POINTS[:4], sgd(300.0)),
        [("exploding", "2"), ("broken", None)],
    ),
    "steps that 16 bits lose": (
        lambda: watched(Language(16, 2).bfloat16(), TOKENS, adamw(1e-6)),
        [("rounding", None)],
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_training_without_a_plan_that_goes_wrong_raises_the_alert_of_its_sign(name: str) -> None:
    torch.manual_seed(0)
    run, expected = BROKEN[name]
    assert run()[1] == expected


def test_a_resumed_watch_without_a_plan_goes_on_and_repeats_nothing() -> None:
    torch.manual_seed(0)
    model = dead(mlp())
    later = copy.deepcopy(model)
    optimizer = adamw(1e-3)(model)
    watch = nfd.Watch(model, None, POINTS[0][0], every=2)
    with pytest.warns(
        RuntimeWarning, match=r"4: 1 layer gets inputs .* vary \(4\); varying features is 0"
    ):
        train(model, POINTS[:6], optimizer, watch)
    resumed = nfd.Watch(later, None, POINTS[0][0], every=2)
    resumed.load_state_dict(json.loads(json.dumps(watch.state_dict(start=False))))
    later.load_state_dict(model.state_dict())
    optimizer = adamw(1e-3)(later)
    train(later, POINTS[:4], optimizer, resumed)  # warnings are errors
    assert resumed.alerts == watch.alerts
    assert resumed.steps == 10


# ---- losses


def losses(noise: float, steps: int = 400) -> list[float]:
    """A curve that falls, with lognormal noise."""
    draws = torch.randn(steps, generator=torch.Generator().manual_seed(1))
    return [
        (1 + 4 * (step + 1) ** -0.5) * math.exp(noise * float(draws[step])) for step in range(steps)
    ]


def causes_of(curve: Sequence[float]) -> list[tuple[str, int]]:
    signs = LossSigns()
    alerts = [signs.add(step, loss) for step, loss in enumerate(curve)]
    return [(alert.cause.value, alert.step) for alert in alerts if alert is not None]


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3, 1.0])
def test_noise_one_odd_batch_and_a_new_level_below_are_no_spike(noise: float) -> None:
    curve = losses(noise)
    curve[200] *= 20
    assert causes_of(curve) == []
    assert causes_of(curve[:300] + [0.5 * loss for loss in curve[300:]]) == []


def test_a_loss_that_jumps_and_stays_high_is_a_spike_once_and_a_second_one_again() -> None:
    curve = losses(0.05)
    for start in (150, 300):
        for step in range(start, start + 12):
            curve[step] += 2.0
    assert causes_of(curve) == [("spike", 152), ("spike", 302)]
    assert causes_of([*curve[:50], math.nan, math.inf, *curve[50:]])[0] == ("broken", 50)


def test_a_watch_judges_the_losses_that_it_is_given() -> None:
    torch.manual_seed(0)
    model = mlp()
    watch = nfd.Watch(model, None, POINTS[0][0], every=10)
    optimizer = adamw(1e-3)(model)
    curve = losses(0.05, 100)

    def run_to_the_end() -> None:
        for step, loss in enumerate(curve, 1):
            model(POINTS[0][0]).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            watch.step(loss + 3 * (61 <= step < 70))

    with pytest.warns(
        RuntimeWarning,
        match="step 63: the loss has jumped, and stays high; loss is .* since step 61",
    ):
        run_to_the_end()
    run = Recorder()
    to_wandb([row for row in watch.rows if row.layer is None], run)
    assert [values["nfd/alerts"] for values, _ in run.records] == [0.0] * 6 + [1.0] * 4


# ---- bands without a plan


@cache
def ladder() -> nfd.Check:
    options: Any = {"lr": 3e-3, "rule": "standard", "seeds": 3, "at": (1, 2, 4, 6)}
    return nfd.check(Residual, POINTS[:6], [16, 32], [2, 4], **options, remedy=False)


def shapes_of(width: int, depth: int) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in Residual(width, depth).named_parameters()}


def test_the_bands_of_a_model_without_a_plan_are_those_of_its_own_size() -> None:
    torch.manual_seed(0)
    check = ladder()
    assert not check.ok
    for size in ((64, 4), (16, 2), (32, 6)):
        assert Ladder.of(check.ladder).size_of(shapes_of(*size)) == pytest.approx(size)
    watch, alerts = watched(Residual(64, 4), POINTS[:6], adamw(3e-3), expected=check)
    assert alerts == []
    assert "2.25 times as wide" in " ".join(str(watch).split())
    plan = nfd.plan(
        Residual(64, 4), rule="standard", make_model=Residual, base=(16, 2), sample=POINTS[0][0]
    )
    of_plan = nfd.Watch(Residual(64, 4), plan, POINTS[0][0], every=2, expected=check)
    bands = [watch.band(row) for row in watch.rows]
    assert any(band is not None for band in bands)
    assert bands == [of_plan.band(row) for row in watch.rows]


def test_a_layer_that_stands_still_is_told_by_the_bands_of_a_model_without_a_plan() -> None:
    torch.manual_seed(0)
    model = Residual(64, 4)
    model.get_submodule("blocks.1").requires_grad_(False)
    _, alerts = watched(model, POINTS[:6], adamw(3e-3), expected=ladder())
    assert ("frozen", "blocks.1.up") in alerts
    assert {cause for cause, _ in alerts} == {"frozen"}


def test_rates_that_were_verified_are_not_blamed() -> None:
    """Gradients that are all of one sign move a layer further, at the rate of the plan."""
    torch.manual_seed(0)
    model = Residual(64, 4)
    weight = model.get_parameter("blocks.1.up.weight")
    weight.register_hook(lambda gradient: gradient.abs())
    with torch.no_grad():
        weight.mul_(0.02)  # so that its change is large beside it
    _, alerts = watched(model, POINTS[:6], adamw(3e-3), expected=ladder())
    assert ("change", "blocks.1.up") in alerts
    assert "rate" not in {cause for cause, _ in alerts}


def test_a_check_that_cannot_tell_of_the_model_is_refused(tmp_path: Path) -> None:
    stored = ladder().ladder
    older = stored | {
        "networks": [{k: v for k, v in run.items() if k != "shapes"} for run in stored["networks"]]
    }
    one_width = stored | {"networks": [run for run in stored["networks"] if run["width"] == 16]}
    with pytest.raises(ValueError, match=r"without the shapes of its networks.* Check again"):
        Ladder.of(older).size_of(shapes_of(64, 4))
    with pytest.raises(ValueError, match="does not show how wide and deep the model is"):
        Ladder.of(one_width).size_of(shapes_of(64, 4))
    plan = nfd.plan(
        Residual(64, 4), rule="complete-p", make_model=Residual, base=(16, 2), sample=POINTS[0][0]
    )
    with pytest.raises(ValueError, match="rule='standard'; the plan has 'complete-p'"):
        nfd.Watch(Residual(64, 4), plan, POINTS[0][0], expected=ladder())
    path = tmp_path / "scaled.json"
    path.write_text(json.dumps({"ladder": stored | {"rule": "mup"}}))
    with pytest.raises(ValueError, match="expected has rule='mup', and the model has no plan"):
        nfd.Watch(Residual(64, 4), None, POINTS[0][0], expected=path)
