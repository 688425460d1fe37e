"""``nfd.compare``: what other people's muP does beside a plan; sound set-ups agree, faults are named.

Megatron-LM is not installed here: a small stand-in makes the groups that its code makes, as read in
Megatron-LM core 0.20.0 (commit d98e8a6): ``get_mup_config_overrides``, the attributes that
``LanguageModule`` gives its parameters, and the muP part of ``TransformerConfig``. Another one does
what the proposal for transformers does (pull request 45848, read at commit 6fde9cb). microsoft/mup
is the real one, where it is installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches
from tests.contract.test_exports import (
    GrowingHeads,
    Tied,
    Wrapper,
    frameworks,
    gpt2,
    language,
    loaded,
    megatron_config,
    megatron_groups,
    planned,
    torchtitan_groups,
    trainer_of,
)
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import nfd

__all__ = ["frameworks"]  # a fixture

LR = 0.004
DECAY = 0.1
EPS = 1e-6
WIDER = 2
DEEPER = 2

Groups = list[dict[str, Any]]
# A model with its plan and optimizer, and options of nfd.compare.
Case = tuple[nn.Module, Any, nfd.Plan, dict[str, Any]]


def off(comparison: nfd.PlanComparison, setting: str) -> dict[str, float]:
    """By how much a setting is off, by tensor."""
    return {row.tensor: row.ratio for row in comparison.differing if row.setting == setting}


def settings_off(comparison: nfd.PlanComparison) -> set[str]:
    return {row.setting for row in comparison.differing}


# ---- get_param_groups by hand, in the style of nanoGPT


def groups_by_hand(
    model: nn.Module,
    *,
    depth: float = DEEPER,
    readout: float = 1 / WIDER,
    embedding: float = 1.0,
    scales_eps: bool = True,
    scales_decay: bool = True,
) -> Groups:
    """CompleteP's multipliers for a ``ResidualMLP``, written out; arguments make mistakes."""
    groups = []
    for name, parameter in model.named_parameters():
        is_matrix = parameter.dim() == 2
        rate = 1.0
        eps = 1 / WIDER
        if name.startswith("blocks."):
            is_first = name.split(".")[2] in ("0", "1")
            rate *= 1 / WIDER if is_matrix else 1.0
            rate *= 1.0 if is_first else 1 / depth
            eps *= 1 / depth if is_first else 1.0
        elif name == "head.weight":
            rate *= readout
            eps = 1.0
        elif name == "head.bias":
            eps = 1.0
        elif name == "embed.weight":
            rate *= embedding
        decay = DECAY / rate if scales_decay else DECAY
        groups.append(
            {
                "params": [parameter],
                "lr": LR * rate,
                "weight_decay": decay if is_matrix else 0.0,
                "eps": EPS * eps if scales_eps else EPS,
            }
        )
    return groups


def by_hand(**mistakes: Any) -> Case:
    model, plan = planned()
    return model, AdamW(groups_by_hand(model, **mistakes)), plan, {}


# ---- sound set-ups


def of_make_optimizer() -> Case:
    model, plan = planned()
    return model, plan.make_optimizer(model, LR, DECAY, eps=EPS), plan, {"initial": True}


def of_tuned_values() -> Case:
    model, plan = planned(rule="mup")
    tuned = {"lr": LR, "weight_decay": DECAY, "eps": EPS}
    return model, plan.make_optimizer(model, **tuned), plan, tuned


def of_param_groups() -> Case:
    model, plan = planned()
    groups = plan.param_groups(model, LR, no_decay="vectors")
    return model, AdamW(groups, weight_decay=DECAY), plan, {"lr": LR, "weight_decay": DECAY}


def of_megatrons_file() -> Case:
    model, plan = planned()
    file = loaded(plan.to("megatron"))
    config = megatron_config()
    chunk = Wrapper(Wrapper(model))
    optimizer = AdamW(megatron_groups(chunk, config, file.config_overrides(config)))
    return chunk, SimpleNamespace(optimizer=optimizer), plan, {"lr": LR, "weight_decay": DECAY}


def of_torchtitans_file() -> Case:
    model, plan = planned()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = checkpoint_wrapper(block)
    config = loaded(plan.to("torchtitan")).optimizer_config(LR, DECAY, EPS, (0.9, 0.95))
    return model, AdamW(torchtitan_groups(model, config)), plan, {}


def after_a_schedule() -> Case:
    model, plan = planned()
    optimizer = plan.make_optimizer(model, LR, DECAY)
    schedule = CosineAnnealingLR(optimizer, T_max=10)
    for x, y in batches(4):
        nn.functional.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
    return model, optimizer, plan, {"lr": LR, "weight_decay": DECAY}


def before_a_warmup() -> Case:
    model, plan = planned()
    optimizer = plan.make_optimizer(model, LR, DECAY)
    LambdaLR(optimizer, lambda step: step / 10)
    assert not any(group["lr"] for group in optimizer.param_groups)
    return model, optimizer, plan, {"lr": LR, "weight_decay": DECAY}


def of_sgd() -> Case:
    model, plan = planned(optimizer="sgd")
    return model, plan.make_optimizer(model, LR, DECAY), plan, {"initial": True}


def of_muon() -> Case:
    model, plan = planned(optimizer="muon")
    optimizer = plan.make_optimizer(model, 0.02, DECAY, adamw_lr=LR)
    return model, optimizer, plan, {"lr": 0.02, "adamw_lr": LR, "weight_decay": DECAY}


def of_two_optimizers() -> Case:
    model, plan = planned(optimizer="muon")
    groups = plan.param_groups(model, 0.02, DECAY)
    for group in groups:
        group.pop("roles")
    matrices = [group for group in groups if group.pop("use_muon")]
    rest = [group for group in groups if not any(group is one for one in matrices)]
    return model, [torch.optim.Muon(matrices), AdamW(rest)], plan, {}


def of_a_longer_run() -> Case:
    model, plan = planned()
    longer = plan.for_run((32, 256), (1e6, 1e8))
    tuned = {"lr": LR, "weight_decay": DECAY, "eps": EPS, "betas": (0.9, 0.95)}
    return model, longer.make_optimizer(model, **tuned), longer, tuned


def of_a_scaled_head() -> Case:
    model, plan = planned(Tied, rule="mup", sample=torch.zeros(2, 4, dtype=torch.long))
    assert plan.multipliers
    return model, plan.make_optimizer(model, LR), plan, {"initial": True}


def of_a_compiled_model() -> Case:
    model, plan = planned()
    return torch.compile(model), plan.make_optimizer(model, LR), plan, {}


def of_frozen_tensors() -> Case:
    model, plan = planned()
    model.embed.requires_grad_(False)
    return model, plan.make_optimizer(model, LR), plan, {}


def with_the_base() -> Case:
    model, plan = planned()
    beside = {"base": ResidualMLP(16, 2), "sample": batches(1)[0][0], "initial": True}
    return model, plan.make_optimizer(model, LR), plan, beside


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize(
    "make",
    [
        by_hand,
        of_make_optimizer,
        of_tuned_values,
        of_param_groups,
        of_megatrons_file,
        of_torchtitans_file,
        after_a_schedule,
        before_a_warmup,
        of_sgd,
        of_muon,
        of_two_optimizers,
        of_a_longer_run,
        of_a_scaled_head,
        of_a_compiled_model,
        of_frozen_tensors,
        with_the_base,
    ],
)
def test_a_sound_setup_agrees(make: Callable[[], Case]) -> None:
    model, optimizer, plan, options = make()
    comparison = nfd.compare(model, optimizer, plan, **options)
    assert comparison.agrees, str(comparison)
    assert "AGREES" in str(comparison)
    # It has compared something.
    assert {row.setting for row in comparison.rows} >= {"lr"}


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's own
def test_the_exported_trainer_agrees_and_hugging_faces_does_not(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, plan = planned(gpt2, sample=language()[0]["input_ids"][None])
    trainer = trainer_of(loaded(plan.to("transformers")).PlannedTrainer, model, tmp_path)
    trainer.create_optimizer_and_scheduler(8)
    comparison = nfd.compare(model, trainer.optimizer, plan, lr=LR, weight_decay=DECAY)
    assert comparison.agrees, str(comparison)
    plain = trainer_of(transformers.Trainer, model, tmp_path)
    plain.create_optimizer()
    rates = off(nfd.compare(model, plain.optimizer, plan, lr=LR), "lr")
    assert rates["transformer.h.0.attn.c_attn.weight"] == pytest.approx(2)
    assert rates["transformer.h.0.attn.c_proj.weight"] == pytest.approx(4)
    assert "transformer.wte.weight" not in rates


# ---- faults


@dataclass(frozen=True)
class Fault:
    """A mistake, and what the answer has to name.

    Attributes:
        make: makes it.
        setting: what is off; empty where numbers cannot say it.
        expected: by how much, by tensor: of these no more, where ``is_all``.
        words: what the answer says.
    """

    make: Callable[[], Case]
    setting: str
    expected: dict[str, float]
    words: str = ""
    is_all: bool = True


def plain_adamw() -> Case:
    model, plan = planned(rule="mup")
    return model, AdamW(model.parameters(), lr=LR, weight_decay=DECAY), plan, {}


def one_rate_by_a_loop() -> Case:
    model, optimizer, plan, options = of_make_optimizer()
    for group in optimizer.param_groups:
        group["lr"] = LR
    return model, optimizer, plan, options


def with_a_least_rate() -> Case:
    model, plan = planned()
    optimizer = plan.make_optimizer(model, LR)
    schedule = CosineAnnealingLR(optimizer, T_max=4, eta_min=LR / 2)
    optimizer.step()
    for _ in range(3):
        schedule.step()
    return model, optimizer, plan, {}


def without_the_head() -> Case:
    model, plan = planned()
    groups = [group for group in groups_by_hand(model) if group["params"][0] is not model.head.bias]
    return model, AdamW(groups), plan, {}


def with_another_model() -> Case:
    model, plan = planned()
    groups = [*groups_by_hand(model), {"params": [nn.Parameter(torch.ones(3))]}]
    return model, AdamW(groups, lr=LR), plan, {}


def twice() -> Case:
    model, plan = planned()
    optimizers = [AdamW(groups_by_hand(model)), AdamW(model.head.parameters(), lr=LR)]
    return model, optimizers, plan, {}


def with_coupled_decay() -> Case:
    model, plan = planned()
    return model, torch.optim.Adam(groups_by_hand(model)), plan, {}


def by_adamw_only() -> Case:
    model, plan = planned(optimizer="muon")
    groups = plan.param_groups(model, LR)
    for group in groups:
        group.pop("use_muon")
    return model, AdamW(groups), plan, {}


def with_a_frozen_head() -> Case:
    model, plan = planned()
    groups = groups_by_hand(model)
    for group in groups:
        if group["params"][0] is model.head.weight:
            group["lr"] = 0.0
    return model, AdamW(groups), plan, {}


def with_another_start() -> Case:
    model, optimizer, plan, options = of_make_optimizer()
    with torch.no_grad():
        model.head.weight.mul_(4)
    return model, optimizer, plan, options


def at_another_rate() -> Case:
    model, optimizer, plan, _ = of_make_optimizer()
    return model, optimizer, plan, {"lr": LR / 2}


def with_the_smalls_means() -> Case:
    model, optimizer, plan, tuned = of_a_longer_run()
    for group in optimizer.param_groups:
        group["betas"] = tuned["betas"]
    return model, optimizer, plan, tuned


def without_the_tied_heads_factor() -> Case:
    tokens = torch.zeros(2, 4, dtype=torch.long)
    model, plan = planned(Tied, rule="mup", sample=tokens)
    optimizer = plan.make_optimizer(model, LR)
    # It holds the same parameters as the planned one, but nothing scales its head.
    model.output_layer = model.output_layer.scaled_module
    return model, optimizer, plan, {"base": Tied(16, 2), "sample": tokens}


def over_the_root_of_a_head() -> Case:
    model, plan = planned(GrowingHeads, rule="mup")
    sample = batches(1)[0][0]
    beside = {"base": GrowingHeads(16, 2), "sample": sample}
    return model, plan.make_optimizer(model, LR), plan, beside


INNER = {f"blocks.{block}.1.weight": 2.0 for block in range(4)}
OUTER = {f"blocks.{block}.3.weight": 2.0 for block in range(4)}
OUTER_BIASES = {f"blocks.{block}.3.bias": 2.0 for block in range(4)}

FAULTS = {
    "readout": Fault(lambda: by_hand(readout=1.0), "lr", {"head.weight": WIDER}),
    "embedding": Fault(
        lambda: by_hand(embedding=1 / WIDER), "lr", {"embed.weight": 1 / WIDER}, "÷ 2"
    ),
    "eps": Fault(
        lambda: by_hand(scales_eps=False),
        "eps",
        {"embed.weight": WIDER, "blocks.0.1.weight": WIDER * DEEPER},
        "Epsilon acts only",
        is_all=False,
    ),
    "depth": Fault(lambda: by_hand(depth=1), "lr", OUTER | OUTER_BIASES, "blocks.*.3.weight"),
    "decay": Fault(
        lambda: by_hand(scales_decay=False),
        "weight_decay",
        {"embed.weight": WIDER, **{name: 1 / DEEPER for name in OUTER}},
        "weight decay",
    ),
    "plain": Fault(plain_adamw, "lr", {"head.weight": 2.0, **INNER, **OUTER}, "of all tensors"),
    "loop": Fault(
        one_rate_by_a_loop, "lr", {"head.weight": 2.0, "blocks.0.3.weight": 4.0}, "", False
    ),
    "least rate": Fault(with_a_least_rate, "lr", {}, "learning rate", False),
    "left out": Fault(without_the_head, "", {}, "does not have 'head.bias'"),
    "another model": Fault(with_another_model, "", {}, "1 parameter that the model does not hold"),
    "twice": Fault(twice, "", {}, "Several groups step 'head.weight'"),
    "coupled": Fault(with_coupled_decay, "", {}, "acts on the weights directly"),
    "adamw": Fault(by_adamw_only, "", {}, "adamw steps 'blocks.0.1.weight'"),
    "frozen": Fault(with_a_frozen_head, "lr", {"head.weight": 0.0}),
    "start": Fault(with_another_start, "std", {"head.weight": 4.0}, "initial std"),
    "level": Fault(at_another_rate, "lr", {"embed.weight": 2.0, "norm.bias": 2.0}, "", False),
    "means": Fault(with_the_smalls_means, "beta", {}, "running means", False),
    "tied": Fault(
        without_the_tied_heads_factor, "forward", {"output_layer": WIDER}, "forward factor"
    ),
    "attention": Fault(
        over_the_root_of_a_head, "attention", {"q.weight": math.sqrt(WIDER)}, "attention logits"
    ),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(fault: Fault) -> None:
    model, optimizer, plan, options = fault.make()
    comparison = nfd.compare(model, optimizer, plan, **options)
    assert not comparison.agrees
    text = str(comparison)
    assert "DIFFERS" in text
    assert len(text.splitlines()) <= 15
    assert fault.words in " ".join(text.split())
    assert comparison.differing or comparison.faults
    if not fault.setting:
        return
    assert fault.setting in settings_off(comparison)
    # The standard deviation of 320 numbers has an error of 4 %; ratios of others are exact.
    tolerance = 0.16 if fault.setting == "std" else 1e-4
    ratios = off(comparison, fault.setting)
    for name, expected in fault.expected.items():
        assert ratios[name] == pytest.approx(expected, rel=tolerance)
    if fault.is_all:
        assert ratios.keys() == fault.expected.keys()
        assert settings_off(comparison) == {fault.setting} | ({"eps"} & settings_off(comparison))
