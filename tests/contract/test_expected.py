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


@cache
def ladder() -> nfd.Check:
    task = nfd.Task(SHIFTED, weight_decay=0.01)
    return nfd.check(
        Language, task, [8, 16], [2, 4], 5e-3, rule="complete-p", optimizer="adamw", at=(1, 2, 4, 8)
    )


def alerts(change: Callable[[Any, list[dict[str, Any]]], None] | None, expected: Any) -> list[Any]:
    """The alerts of a network under a watch, its model and groups changed before training."""
    family = nfd.Family(Language, base=(8, 2), rule="complete-p", sample=SHIFTED[0][0])
    model = family.build(32, 8, seed=1)
    plan = family.plan(32, 8)
    groups = plan.param_groups(model, lr=5e-3, weight_decay=0.01)
    if change is not None:
        change(model, groups)
    optimizer = torch.optim.AdamW(groups)
    watch = nfd.Watch(model, plan, SHIFTED[0][0], 2, expected)
    train(model, optimizer, SHIFTED, watch)
    return watch.alerts


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
