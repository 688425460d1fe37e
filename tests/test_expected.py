"""A watch that expects what a check of small networks says: faults of a Transformer are named, with their layer."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks import alarms
from tests.models import Transformer
from torch import Tensor, nn

import nfd
from nfd.core.errors import InputError
from nfd.meters.outcome import Check
from nfd.watch import Alert, Band, Cause, RateAlert, StartAlert, WatchRow
from nfd.watch.beginning import Beginning, OtherStart

STEPS, WIDE, DEEP = 8, 32, 8
SEVENTH = "layers.6"
ROOT = Path(__file__).resolve().parent.parent
Change = Callable[[Any, list[dict[str, Any]]], None]


def batches() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(3)
    ids = torch.randint(1, 11, (STEPS, 4, 7), generator=g)
    return [(part[:, :-1], part[:, 1:]) for part in ids]


@cache
def ladder() -> Check:
    options = {"rule": "complete-p", "optimizer": "adamw", "lr": 5e-3, "weight_decay": 0.01}
    return nfd.check(Transformer, [8, 16], [2, 4], batches(), seeds=3, at=(1, 2, 4, 8), **options)  # type: ignore[arg-type]


@cache
def watched(change: Change | None = None, expected: Any = None, seed: int = 1) -> list[Alert]:
    """The alerts of a network under a watch, its model and groups changed before training."""
    torch.manual_seed(seed)
    model = Transformer(WIDE, DEEP)
    sample = batches()[0][0]
    plan = nfd.plan(model, rule="complete-p", make_model=Transformer, base_width=8, base_depth=2, sample=sample)
    plan.apply_(model, seed)
    groups = plan.param_groups(model, lr=5e-3, weight_decay=0.01)
    if change is not None:
        change(model, groups)
    optimizer = torch.optim.AdamW(groups)
    watch = nfd.Watch(model, plan, sample, 2, expected or ladder(), seed=seed)
    for x, y in batches():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        watch.step()
    return watch.alerts


def wrong_multiplier(model: Any, groups: list[dict[str, Any]]) -> None:
    for branch in (model.layers[6].b, model.layers[6].d):
        branch.register_forward_hook(lambda module, inputs, out: 4 * out)


def frozen(model: Any, groups: list[dict[str, Any]]) -> None:
    model.layers[6].requires_grad_(requires_grad=False)


def forgotten_rate(model: Any, groups: list[dict[str, Any]]) -> None:
    """The embedding has the rate of the blocks."""
    (group,) = (g for g in groups if any(p is model.tokens.weight for p in g["params"]))
    group["params"] = [p for p in group["params"] if p is not model.tokens.weight]
    groups.append(group | {"params": [model.tokens.weight], "lr": group["lr"] / 4})


def strong_decay(model: Any, groups: list[dict[str, Any]]) -> None:
    for group in groups:
        group["weight_decay"] *= 3000


@pytest.mark.parametrize(
    ("change", "cause", "layer"),
    [
        (wrong_multiplier, Cause.MULTIPLIER, SEVENTH),
        (frozen, Cause.FROZEN, SEVENTH),
        (forgotten_rate, Cause.RATE, "tokens"),
        (strong_decay, Cause.DECAY, ""),
    ],
)
def test_a_fault_of_a_training_is_named_with_its_layer(change: Change, cause: Cause, layer: str) -> None:
    warns = pytest.warns(RuntimeWarning, match="no longer the plan's: groups")
    with warns if change is forgotten_rate else nullcontext():
        first, *others = watched(change)
    assert first.cause is cause
    assert change is not forgotten_rate or (first.step, first.value, others) == (1, 5e-3 / 4, [])
    assert (first.layer or "").startswith(layer)
    assert first.since <= 4


def test_a_sound_training_raises_no_alert() -> None:
    assert watched() == []


def plain_optimizer(model: Any, groups: list[dict[str, Any]]) -> None:
    for group in groups:
        group["lr"] = 5e-3
        del group["lr_scale"]


def test_an_optimizer_without_the_groups_of_the_plan_is_named_once_and_none_of_what_follows_from_it() -> None:
    with pytest.warns(RuntimeWarning, match="the AdamW does not have the groups of the plan"):
        (alert,) = watched(plain_optimizer)
    assert isinstance(alert, RateAlert)
    assert (alert.step, alert.cause) == (1, Cause.OPTIMIZER)


def not_applied(model: Any, groups: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    for name, own in Transformer(WIDE, DEEP).named_parameters():
        model.get_parameter(name).data.copy_(own)


def large_embedding(model: Any, groups: list[dict[str, Any]]) -> None:
    model.tokens.weight.data.mul_(10)


def large_branch(model: Any, groups: list[dict[str, Any]]) -> None:
    model.layers[6].d.weight.data.mul_(10)


@pytest.mark.parametrize(
    ("change", "tensors"),
    [
        (not_applied, {f"layers.{k}.{of}.weight" for k in range(DEEP) for of in "bd"}),
        (large_embedding, {"tokens.weight"}),
        (large_branch, {"layers.6.d.weight"}),
    ],
)
def test_a_wrong_start_is_named_once_and_none_of_what_follows_from_it(change: Change, tensors: set[str]) -> None:
    with pytest.warns(RuntimeWarning, match="did not start as planned"):
        (alert,) = watched(change)
    assert isinstance(alert, StartAlert)
    assert (alert.step, alert.cause) == (0, Cause.START)
    assert tensors <= {start.tensor for start in alert.tensors}
    assert change is not_applied or len(alert.tensors) == 1


def test_a_start_explains_what_follows_from_it_and_nothing_else() -> None:
    torch.manual_seed(1)
    model = Transformer(WIDE, DEEP)
    plan = nfd.plan(
        model, rule="complete-p", make_model=Transformer, base_width=8, base_depth=2, sample=batches()[0][0]
    )
    begun = Beginning(plan, [OtherStart("layers.3.d.weight", 0.1, 0.01)], of=20)
    band = Band(1.0, 0.5, 2.0, 0.5, 2.0, 9.0)

    def explained(cause: Cause, layer: str | None, value: float = 3.0) -> bool:
        return begun.explains(Alert(4, 2, "change", layer, value, band, cause))

    assert all(explained(cause, "layers.3.d") for cause in (Cause.RATE, Cause.START, Cause.LATE_RATE))
    assert not explained(Cause.RATE, "layers.4.d")
    assert explained(Cause.MULTIPLIER, "layers.3")
    assert explained(Cause.MULTIPLIER, "layers.5")
    assert not explained(Cause.MULTIPLIER, "layers.2")
    assert explained(Cause.FROZEN, "layers.3.d", 0.005)
    assert not explained(Cause.FROZEN, "layers.3.d", 0.0)
    assert not any(explained(cause, None) for cause in (Cause.ALL_RATES, Cause.DECAY, Cause.BROKEN))
    begun = Beginning(plan, begun.others, of=1)
    assert all(explained(cause, None) for cause in (Cause.ALL_RATES, Cause.DECAY, Cause.UNKNOWN))


def test_a_check_is_expected_from_its_file_or_folder_as_from_memory(tmp_path: Path) -> None:
    ladder().save(tmp_path / "result.json")
    assert watched(frozen, str(tmp_path)) == watched(frozen)


def test_what_holds_no_check_of_this_plan_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"ladder": ladder().ladder | {"rule": "mup"}}))
    with pytest.raises(InputError, match="rule='mup'; the plan has rule='complete-p'"):
        watched(expected=other)
    other.write_text(json.dumps({"ladder": {"networks": [{"width": 3}]}}))
    with pytest.raises(InputError, match="not the ladder of a check"):
        watched(expected=other)
    with pytest.raises(InputError, match="holds no check"):
        watched(expected=tmp_path / "none.json")
    with pytest.raises(TypeError, match=r"expected\.alerts must be a function of rows"):
        watched(expected=3)


def begun(folder: Path, change: Callable[[list[Any]], list[Any]] = list, **settings: Any) -> nfd.Watch:
    """A watch that expects the ladder with other readings, (step, meter, layer, depth, value), and settings."""
    stored = ladder().ladder
    networks = [network | {"readings": change(list(network["readings"]))} for network in stored["networks"]]
    path = folder / "ladder.json"
    path.write_text(json.dumps({"ladder": stored | {"networks": networks} | settings}))
    model, (sample, _) = Transformer(WIDE, DEEP), batches()[0]
    base: Any = {"make_model": Transformer, "base_width": 8, "base_depth": 2}
    plan = nfd.plan(model, rule=settings.get("rule", "complete-p"), sample=sample, **base)
    return nfd.Watch(plan.apply_(model), plan, sample, expected=path)


def test_a_ladder_of_another_base_is_refused_where_the_rule_scales_with_it(tmp_path: Path) -> None:
    for rule, base in (("complete-p", [4, 2]), ("complete-p", [8, 4]), ("mup", [4, 2])):
        with pytest.raises(InputError, match=f"expected counts from {base[0]} x {base[1]}, the plan from 8 x 2"):
            begun(tmp_path, rule=rule, base=base)
    row = WatchRow(4, "function_update", None, None, 1.0)
    bands = [
        begun(tmp_path, rule="mup", base=[8, depth]).band(row) for depth in (2, 4)
    ]  # mup does not scale with depth
    assert bands[0] is not None
    assert bands[0] == bands[1]


def test_a_ladder_of_other_layers_is_refused_with_their_names(tmp_path: Path) -> None:
    def more(readings: list[Any]) -> list[Any]:
        return [*readings, *([step, "change", "lm_head", None, 1.0] for step in (1, 2, 4, 8))]

    def headless(readings: list[Any]) -> list[Any]:
        return [row for row in readings if row[2] != "head"]

    def wrapped(readings: list[Any]) -> list[Any]:
        return [(step, meter, layer and f"net.{layer}", *others) for step, meter, layer, *others in readings]

    with pytest.raises(InputError, match=r"other layers: its networks alone have 'lm_head'\. Check"):
        begun(tmp_path, more)
    with pytest.raises(InputError, match=r"other layers: the model alone has 'head'\. Check"):
        begun(tmp_path, headless)
    assert begun(tmp_path, wrapped).alerts == []  # names of another module tell nothing


def test_a_watch_knows_whether_its_check_found_faults(tmp_path: Path) -> None:
    assert begun(tmp_path, ok=False).expects_faults
    assert not begun(tmp_path, ok=True).expects_faults
    assert ladder().ladder["ok"] == ladder().ok


def test_the_page_quotes_what_was_measured() -> None:
    measured = [json.loads(line) for line in (ROOT / "benchmarks/alarms.jsonl").read_text().splitlines()]
    page = (ROOT / "docs/howto/watch.md").read_text()
    for setting in alarms.SETTINGS:
        rows = [row for row in measured if row["setting"] == str(setting)]
        assert alarms.page_row(setting, rows) in page
        table = {row["what"]: row for row in alarms.summary(rows)}
        sound, fault = table["sound, alert raised"], table["block 7 frozen, named"]
        assert f"{100 * sound['low']:.0f} to {100 * sound['high']:.2g} %" in page
        assert f"{100 * fault['low']:.0f} to {100 * fault['high']:.0f} %" in page


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The rates are no longer")  # of the fault that forgets one
def test_few_sound_trainings_raise_an_alert_and_faults_are_named(tmp_path: Path) -> None:
    rows = alarms.measured(tmp_path / "rows", alarms.SETTINGS[0], 6, 3)
    assert sum(bool(row["alerts"]) for row in rows if row["case"].startswith("sound")) <= 2
    assert sum(not alarms.named(row["case"], row) for row in rows if row["case"] in alarms.FAULTS) <= 1
