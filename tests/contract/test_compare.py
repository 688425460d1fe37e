"""``nfd.compare``: what other people's muP does beside a plan.

Sound set-ups agree, and faults are named.

Megatron-LM is not installed here: a small stand-in makes the groups that its code makes, as read in
Megatron-LM core 0.20.0 (commit d98e8a6): ``get_mup_config_overrides``, the attributes that
``LanguageModule`` gives its parameters, and the muP part of ``TransformerConfig``. Another one does
what the proposal for transformers does (pull request 45848, read at commit 6fde9cb). microsoft/mup
is the real one, where it is installed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
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
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

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


def alike(ratios: dict[str, float]) -> float:
    """The ratio that all tensors have, of which there are some."""
    (ratio,) = {round(ratio, 6) for ratio in ratios.values()}
    return ratio


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


def under_one_cycle() -> Case:
    model, plan = planned()
    optimizer = plan.make_optimizer(model, LR)
    peaks = [group["lr"] for group in optimizer.param_groups]
    OneCycleLR(optimizer, max_lr=peaks, total_steps=10)
    return model, optimizer, plan, {"lr": LR}


def of_a_network_of_the_paper() -> Case:
    family = nfd.ResNet(64, 10, 32, 4)
    plan = nfd.plan(family)
    model = plan.apply_(family, seed=0)
    return model, plan.make_optimizer(model, LR), plan, {"initial": True}


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
        under_one_cycle,
        of_a_network_of_the_paper,
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


def under_one_peak() -> Case:
    model, optimizer, plan, _ = of_make_optimizer()
    OneCycleLR(optimizer, max_lr=LR, total_steps=10)
    return model, optimizer, plan, {"lr": LR}


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
        {"embed.weight": WIDER, **dict.fromkeys(OUTER, 1 / DEEPER)},
        "weight decay",
    ),
    "plain": Fault(plain_adamw, "lr", {"head.weight": 2.0, **INNER, **OUTER}, "of all tensors"),
    "loop": Fault(
        one_rate_by_a_loop, "lr", {"head.weight": 2.0, "blocks.0.3.weight": 4.0}, "", False
    ),
    "one peak": Fault(
        under_one_peak, "lr", {"head.weight": 2.0, **INNER, "blocks.0.3.weight": 4.0}, "", False
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


# ---- Megatron's own muP


class Layer(nn.Module):
    """A layer of a GPTModel, by Megatron's names."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.input_layernorm = nn.LayerNorm(width)
        self.self_attention = nn.Module()
        self.self_attention.linear_qkv = nn.Linear(width, 3 * width)
        self.self_attention.linear_proj = nn.Linear(width, width)
        self.pre_mlp_layernorm = nn.LayerNorm(width)
        self.mlp = nn.Module()
        self.mlp.linear_fc1 = nn.Linear(width, 4 * width)
        self.mlp.linear_fc2 = nn.Linear(4 * width, width)

    def forward(self, h: Tensor) -> Tensor:
        packed = self.self_attention.linear_qkv(self.input_layernorm(h))
        heads = packed.unflatten(-1, (-1, 3, KV_CHANNELS)).movedim(-3, 1)
        q, k, v = heads.unbind(-2)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        h = h + self.self_attention.linear_proj(attended.movedim(1, -2).flatten(-2))
        inner = self.mlp.linear_fc1(self.pre_mlp_layernorm(h))
        out: Tensor = h + self.mlp.linear_fc2(nn.functional.gelu(inner))
        return out


KV_CHANNELS = 8
VOCABULARY = 16
STD = 0.02


class GPTModel(nn.Module):
    """Megatron's model and initial weights, of which ``base`` is ``--mup-base-hidden-size``.

    Without it ``--use-mup`` is off.
    """

    def __init__(self, width: int, depth: int, base: int | None = None) -> None:
        super().__init__()
        self.width_mult = 1.0 if base is None else width / base
        scale = KV_CHANNELS ** (-0.5 if base is None else -1.0)
        self.embedding = nn.Module()
        self.embedding.word_embeddings = nn.Embedding(VOCABULARY, width)
        self.embedding.position_embeddings = nn.Embedding(8, width)
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(Layer(width, scale) for _ in range(depth))
        self.decoder.final_layernorm = nn.LayerNorm(width)
        self.output_layer = nn.Linear(width, VOCABULARY, bias=False)
        self.initialise(depth)
        if base is not None:
            for parameter in (*self.embedding.parameters(), self.output_layer.weight):
                parameter.is_embedding_parameter = True

    def initialise(self, depth: int) -> None:
        """Draw weights, as ``init_method``, ``output_layer_init_method`` and that of embeddings."""
        root = math.sqrt(self.width_mult)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif parameter.dim() == 2:
                std = STD if "embedding" in name or "output_layer" in name else STD / root
                is_last = "linear_proj" in name or "linear_fc2" in name
                nn.init.normal_(parameter, std=std / math.sqrt(2 * depth) if is_last else std)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1])
        h = self.embedding.word_embeddings(tokens) + self.embedding.position_embeddings(places)
        for layer in self.decoder.layers:
            h = layer(h)
        logits: Tensor = self.output_layer(self.decoder.final_layernorm(h))
        return logits * (1 / self.width_mult)


def mup_overrides(model: nn.Module, config: SimpleNamespace, width_mult: float) -> Groups:
    """The groups under ``get_mup_config_overrides`` for Adam, beside the standard ones."""
    groups = []
    for name, parameter in model.named_parameters():
        is_vector_like = parameter.dim() <= 1 or getattr(parameter, "is_embedding_parameter", False)
        mult = 1.0 if is_vector_like else 1 / width_mult
        has_decay = parameter.dim() != 1 and not name.endswith(".bias")
        groups.append(
            {
                "params": [parameter],
                "lr": config.lr * mult,
                "max_lr": config.lr * mult,
                "eps": config.adam_eps * mult,
                "wd_mult": float(has_decay),
                "weight_decay": config.weight_decay * has_decay,
            }
        )
    return groups


TOKENS = torch.zeros(2, 8, dtype=torch.long)
TUNED = {"lr": LR, "weight_decay": DECAY, "eps": EPS}


def megatrons(
    width: int, depth: int, base: tuple[int, int], rule: str = "mup", device: str = "cpu"
) -> tuple[nn.Module, Any, nfd.Plan]:
    """A model of ``--use-mup`` with its optimizer, and a plan of a model without it."""
    torch.manual_seed(0)
    with torch.device(device):
        model = GPTModel(width, depth, base[0])
        plain = GPTModel(width, depth)
    plan = nfd.plan(plain, base, make_model=GPTModel, sample=TOKENS, rule=rule)
    config = megatron_config(lr=LR, adam_eps=EPS)
    groups = mup_overrides(model, config, model.width_mult)
    return model, AdamW(groups), plan


def kinds_off(comparison: nfd.PlanComparison, setting: str) -> dict[str, float]:
    """By how much a setting is off, by tensor of the first layer and outside of layers."""
    ratios = off(comparison, setting)
    return {
        name: ratio for name, ratio in ratios.items() if "layers" not in name or "layers.0" in name
    }


DECAYED = {
    f"decoder.layers.0.{part}.weight"
    for part in (
        "self_attention.linear_qkv",
        "self_attention.linear_proj",
        "mlp.linear_fc1",
        "mlp.linear_fc2",
    )
}


def test_megatrons_mup_has_the_rates_of_mup_and_other_epsilons_and_decays() -> None:
    model, optimizer, plan = megatrons(64, 2, (16, 2))
    beside = {"base": GPTModel(16, 2, 16), "sample": TOKENS, "initial": True}
    comparison = nfd.compare(model, optimizer, plan, **TUNED, **beside)
    # Rates, initial weights, the output's multiplier and attention are the rule's.
    assert settings_off(comparison) == {"eps", "weight_decay"}
    # Megatron scales epsilon in hidden matrices only. The gradients of embeddings, norms and
    # biases of width 64 are 4 times as small, too, and those of the output by its multiplier.
    epsilons = kinds_off(comparison, "eps")
    assert alike(epsilons) == pytest.approx(4)
    hidden = {name for name in plan.entries if name.replace("layers.1", "layers.0") in DECAYED}
    assert off(comparison, "eps").keys() == plan.entries.keys() - hidden
    # It divides their rates by 4 and keeps the decay: a step removes a fourth of the share.
    assert kinds_off(comparison, "weight_decay") == dict.fromkeys(DECAYED, pytest.approx(1 / 4))


def test_megatrons_mup_does_not_scale_depth() -> None:
    model, optimizer, plan = megatrons(32, 4, (16, 2), "complete-p")
    beside = {"base": GPTModel(16, 2, 16), "sample": TOKENS, "initial": True}
    comparison = nfd.compare(model, optimizer, plan, **TUNED, **beside)
    rates = kinds_off(comparison, "lr")
    outer = ("self_attention.linear_proj", "mlp.linear_fc2")
    written = {f"decoder.layers.0.{part}.{kind}" for part in outer for kind in ("weight", "bias")}
    assert {name for name in rates if "layers.0" in name} == written
    assert alike(rates) == pytest.approx(2)
    # Its initial weights fall as the root of the depth, those of the rule as the depth.
    starts = kinds_off(comparison, "std")
    assert starts == {
        f"decoder.layers.0.{part}.weight": pytest.approx(math.sqrt(2), rel=0.1) for part in outer
    }


def test_without_a_look_at_the_forward_pass_the_output_is_named_unless_it_is_declared() -> None:
    model, optimizer, plan = megatrons(64, 2, (16, 2))
    unseen = nfd.compare(model, optimizer, plan, lr=LR)
    assert off(unseen, "lr") == {"output_layer.weight": pytest.approx(4)}
    declared = nfd.compare(model, optimizer, plan, lr=LR, forward={"output_layer": 1 / 4})
    assert not off(declared, "lr")
    with pytest.raises(ValueError, match="forward names 'no_layer', which fits no module"):
        nfd.compare(model, optimizer, plan, forward={"no_layer": 1 / 4})


@pytest.mark.parametrize("width", [256, 512, 1024, 2048])
def test_megatrons_table_has_no_factor_that_makes_its_last_best_rate_another(width: int) -> None:
    """In the table of Megatron's pull request 3058 the best rate is 9.77e-4 at widths of 128 to
    1,024, and 1.95e-3 at 2,048. Rates are the rule's at each: what differs grows with the width
    alike, and nothing is new at the last one.
    """
    model, optimizer, plan = megatrons(width, 1, (128, 1), device="meta")
    over = width / 128
    declared = {"output_layer": 1 / over}
    comparison = nfd.compare(model, optimizer, plan, **TUNED, forward=declared)
    assert settings_off(comparison) == {"eps", "weight_decay"}
    assert alike(off(comparison, "eps")) == pytest.approx(over)
    assert alike(off(comparison, "weight_decay")) == pytest.approx(1 / over)
    # A rate that is twice too large would be named.
    for group in optimizer.param_groups:
        group["lr"] *= 2
        group["max_lr"] *= 2
    doubled = nfd.compare(model, optimizer, plan, **TUNED, forward=declared)
    assert off(doubled, "lr") == dict.fromkeys(plan.entries, pytest.approx(2))


# ---- muP in transformers, as proposed


class MuReadout(nn.Linear):
    """The proposal's, which divides its input."""

    width_mult: float

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / self.width_mult)


def llama(width: int, depth: int, *, tied: bool = True, intermediate: int | None = None) -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=width,
        intermediate_size=2 * width if intermediate is None else intermediate,
        num_hidden_layers=depth,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


BASE_WIDTH = 32


def mup_llama(width: int, depth: int, **options: Any) -> Any:
    """A Llama under ``config.mup``: readout, attention over d, hidden weights over the root."""
    model = llama(width, depth, **options)
    over = width / BASE_WIDTH
    head = MuReadout(width, 64, bias=False)
    head.width_mult = over
    head.weight = model.lm_head.weight
    model.lm_head = head
    for module in model.modules():
        if hasattr(module, "scaling") and hasattr(module, "head_dim"):
            module.scaling /= math.sqrt(module.head_dim)
        if isinstance(module, nn.Linear) and module is not head:
            with torch.no_grad():
                module.weight.div_(math.sqrt(over))
    return model


def build_mup_param_groups(model: Any, lr: float, weight_decay: float) -> Groups:
    """The proposal's groups: rate over the width, decay times the width, of every ``nn.Linear``."""
    over = model.lm_head.width_mult
    linear = [
        module.weight
        for module in model.modules()
        if isinstance(module, nn.Linear) and module is not model.lm_head
    ]
    ids = {id(weight) for weight in linear}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    return [
        {"params": linear, "lr": lr / over, "weight_decay": weight_decay * over},
        {"params": rest, "lr": lr, "weight_decay": weight_decay},
    ]


def proposed(**options: Any) -> Case:
    """The proposal's model of four times the base's width, and a plan of a Llama without it."""

    def make_model(width: int, depth: int) -> Any:
        return llama(width, depth, **options)

    model = mup_llama(128, 2, **options)
    optimizer = AdamW(build_mup_param_groups(model, LR, DECAY), eps=EPS)
    plan = nfd.plan(make_model(128, 2), (BASE_WIDTH, 2), make_model=make_model, rule="mup")
    return model, optimizer, plan, {"base": mup_llama(BASE_WIDTH, 2, **options), "initial": True}


@pytest.mark.parametrize("tied", [True, False])
def test_the_proposal_for_transformers_has_mups_factors_but_epsilon(tied: bool) -> None:
    model, optimizer, plan, beside = proposed(tied=tied)
    assert nfd.compare(model, optimizer, plan, **beside).agrees
    comparison = nfd.compare(model, optimizer, plan, **beside, **TUNED)
    assert settings_off(comparison) == {"eps"}
    assert off(comparison, "eps") == dict.fromkeys(plan.entries, pytest.approx(4))
    # Heads grow, and without a forward pass nobody sees what the model does about them.
    unseen = nfd.compare(model, optimizer, plan)
    assert not unseen.agrees
    assert not unseen.differing
    assert "NOT DECIDED" in str(unseen)
    assert "Heads of attention grow" in str(unseen)


def test_the_proposal_takes_every_linear_layer_for_one_between_widths() -> None:
    model, optimizer, plan, beside = proposed(tied=False, intermediate=64)
    comparison = nfd.compare(model, optimizer, plan, **beside, lr=LR)
    # Inputs of down_proj do not grow, so neither its rate nor its initial weights should fall.
    down = {f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(2)}
    assert off(comparison, "lr") == dict.fromkeys(down, pytest.approx(1 / 4))
    assert down <= off(comparison, "std").keys()


def test_a_llama_without_the_proposal_is_named() -> None:
    _, _, plan, _ = proposed(tied=False)
    model = llama(128, 2, tied=False)
    optimizer = AdamW(model.parameters(), lr=LR)
    comparison = nfd.compare(
        model, optimizer, plan, base=llama(BASE_WIDTH, 2, tied=False), initial=True
    )
    assert off(comparison, "attention").keys() == plan.logits.keys()
    rates = off(comparison, "lr")
    assert len(rates) == 2 * 7 + 1
    assert alike(rates) == pytest.approx(4)
    assert off(comparison, "std")["lm_head.weight"] == pytest.approx(4, rel=0.1)


# ---- microsoft/mup


class MLP(nn.Module):
    """A network of layers of one width, whose head is a class of the caller's."""

    def __init__(self, width: int, depth: int, readout: Any = nn.Linear) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = readout(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.embed(x))
        for layer in self.hidden:
            h = torch.relu(layer(h))
        out: Tensor = self.head(h)
        return out


@pytest.fixture
def mup() -> Any:
    return pytest.importorskip("mup")


def with_base_shapes(mup: Any, width: int) -> nn.Module:
    """A model of microsoft/mup, of a base of 64."""
    torch.manual_seed(0)
    base, delta, model = (MLP(size, 2, mup.MuReadout) for size in (64, 128, width))
    shaped: nn.Module = mup.set_base_shapes(model, base, delta=delta)
    return shaped


def plan_of_mlp(optimizer: str) -> nfd.Plan:
    x = batches(1)[0][0]
    return nfd.plan(MLP(256, 2), (64, 2), make_model=MLP, sample=x, rule="mup", optimizer=optimizer)


@pytest.mark.parametrize("is_traced", [True, False])
def test_microsofts_sgd_agrees(mup: Any, is_traced: bool) -> None:
    model = with_base_shapes(mup, 256)
    optimizer = mup.MuSGD(model.parameters(), lr=LR, weight_decay=DECAY)
    options: dict[str, Any] = {"initial": True}
    if is_traced:
        options |= {"base": with_base_shapes(mup, 64), "sample": batches(1)[0][0]}
    comparison = nfd.compare(model, optimizer, plan_of_mlp("sgd"), **options)
    assert comparison.agrees, str(comparison)


def test_microsofts_adamw_differs_in_epsilon_only(mup: Any) -> None:
    model = with_base_shapes(mup, 256)
    plan = plan_of_mlp("adamw")
    optimizer = mup.MuAdamW(model.parameters(), lr=LR, weight_decay=DECAY, eps=EPS)
    comparison = nfd.compare(model, optimizer, plan, initial=True, **TUNED)
    assert settings_off(comparison) == {"eps"}
    assert off(comparison, "eps") == dict.fromkeys(
        plan.entries.keys() - {"head.bias"}, pytest.approx(4)
    )
    assert "Epsilon acts only" in " ".join(str(comparison).split())


def test_a_plan_of_microsofts_own_model_agrees_too(mup: Any) -> None:
    def make_model(width: int, depth: int) -> nn.Module:
        return with_base_shapes(mup, width)

    x = batches(1)[0][0]
    plan = nfd.plan(make_model(256, 2), (64, 2), make_model=make_model, sample=x, rule="mup")
    model = with_base_shapes(mup, 256)
    optimizer = mup.MuAdamW(model.parameters(), lr=LR)
    assert settings_off(nfd.compare(model, optimizer, plan, initial=True)) == {"eps"}


def test_a_head_that_is_not_microsofts_is_named(mup: Any) -> None:
    torch.manual_seed(0)
    model = mup.set_base_shapes(MLP(256, 2), MLP(64, 2), delta=MLP(128, 2), do_assert=False)
    optimizer = mup.MuAdamW(model.parameters(), lr=LR, weight_decay=DECAY)
    comparison = nfd.compare(model, optimizer, plan_of_mlp("adamw"), initial=True)
    assert off(comparison, "lr") == {"head.weight": pytest.approx(4)}
    # The standard deviation of 2,560 numbers has an error of 1.4 %.
    assert off(comparison, "std") == {"head.weight": pytest.approx(2, rel=0.1)}


# ---- what cannot be compared, and the answer as data


def test_what_cannot_be_compared_is_refused() -> None:
    model, plan = planned()
    optimizer = AdamW(model.parameters(), lr=LR)
    larger = ResidualMLP(64, 4)
    with pytest.raises(ValueError, match="The model is not the one planned"):
        nfd.compare(larger, AdamW(larger.parameters()), plan)
    other = ResidualMLP(32, 4)
    with pytest.raises(ValueError, match="optimizer steps no tensor of the model"):
        nfd.compare(model, AdamW(other.parameters()), plan)
    with pytest.raises(ValueError, match="optimizer is a SGD, whose law is 'sgd'"):
        nfd.compare(model, torch.optim.SGD(model.parameters(), lr=LR), plan)
    with pytest.raises(TypeError, match=r"optimizer must be a torch\.optim\.Optimizer"):
        nfd.compare(model, model.parameters(), plan)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"plan must be an nfd\.Plan"):
        nfd.compare(model, optimizer, "mup")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="pass base=, too"):
        nfd.compare(model, optimizer, plan, sample=batches(1)[0][0])
    with pytest.raises(ValueError, match="no forward pass of it and of model"):
        nfd.compare(model, optimizer, plan, base=ResidualMLP(16, 2))
    with pytest.raises(ValueError, match=r"adamw_lr is for what Muon leaves"):
        nfd.compare(model, optimizer, plan, adamw_lr=LR)
    with torch.device("meta"):
        empty = ResidualMLP(32, 4)
    with pytest.raises(ValueError, match=r"initial=True measures .* meta device"):
        nfd.compare(empty, AdamW(empty.parameters()), plan, initial=True)


def test_the_rows_are_plain_data() -> None:
    model, optimizer, plan, options = by_hand(readout=1.0)
    comparison = nfd.compare(model, optimizer, plan, **options)
    stored = json.loads(json.dumps(comparison.to_dict()))
    assert stored["agrees"] is False
    (row,) = [row for row in stored["rows"] if row["differs"]]
    assert row == {
        "tensor": "head.weight",
        "setting": "lr",
        "value": pytest.approx(LR),
        "planned": pytest.approx(LR / WIDER),
        "differs": True,
        "ratio": pytest.approx(WIDER),
    }
    assert comparison.to_pandas()["ratio"].max() == pytest.approx(WIDER)
    assert "DIFFERS" in comparison.answer.chip.upper()
    assert "head.weight" in comparison._repr_html_()


def test_nothing_is_changed() -> None:
    model, optimizer, plan, options = with_the_base()
    weights = [parameter.clone() for parameter in model.parameters()]
    groups = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    nfd.compare(model, optimizer, plan, **options)
    pairs = zip(weights, model.parameters(), strict=True)
    assert all(torch.equal(before, parameter) for before, parameter in pairs)
    assert groups == [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    assert model.training


# ---- what is not judged, or cannot be


def test_a_base_of_another_size_is_refused() -> None:
    model, plan = planned(rule="mup")
    sample = batches(1)[0][0]
    optimizer = AdamW(plan.param_groups(model, lr=LR), lr=LR)
    of_base = nfd.compare(model, optimizer, plan, lr=LR, base=ResidualMLP(16, 2), sample=sample)
    assert of_base.agrees
    with pytest.raises(ValueError, match="base must have the size of the plan's base: 'embed"):
        nfd.compare(model, optimizer, plan, lr=LR, base=ResidualMLP(32, 2), sample=sample)


class GrowingExperts(nn.Module):
    """As many experts as an eighth of the width, in one stack."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.experts = nn.Parameter(torch.randn(width // 8, width, width) / width**0.5)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).relu()
        return self.head((h @ self.experts).relu().mean(0))


def test_a_base_with_fewer_experts_is_the_plans() -> None:
    model, plan = planned(GrowingExperts, rule="mup")
    optimizer = AdamW(plan.param_groups(model, lr=LR), lr=LR)
    sample = batches(1)[0][0]
    base = GrowingExperts(16, 4)
    nfd.compare(model, optimizer, plan, lr=LR, base=base, sample=sample)
    with pytest.raises(ValueError, match="base must have the size of the plan's base"):
        nfd.compare(model, optimizer, plan, lr=LR, base=GrowingExperts(32, 4), sample=sample)


def test_initial_weights_of_few_entries_are_not_said_to_agree() -> None:
    def small(width: int, depth: int) -> nn.Module:
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2))

    model, plan = planned(small, rule="mup", base=(16, 4))
    optimizer = AdamW(plan.param_groups(model, lr=LR), lr=LR)
    answer = str(nfd.compare(model, optimizer, plan, lr=LR, initial=True))
    assert "begin and train" not in answer
    assert "(too few entries)" in answer
    assert "'2.weight'" in answer
