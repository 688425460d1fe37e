"""Architectures as people build them: literal factors of every tensor, derived by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import pytest
import torch
from tests.architectures import (
    CLASSES,
    ExpertsBlock,
    Listed,
    ParallelBlock,
    PreactivationResNet,
    RecurrentBlock,
    SandwichBlock,
    StateSpaceBlock,
    Tokens,
    VisionTransformer,
)
from tests.models import encoder, gemma2, gpt2
from torch import nn

import nfd
from nfd.scaling.model import matches

# Four times as wide and three times as deep as the base. By hand, for branches of l^-a (a = 0 and l
# = 1; 1/2; 1): a branch adds l^-a f, and l of them must move the stream by 1, so that each may move
# it by 1/l. What writes the stream (out): effective weights n^-1/2 l^-a, moved by AdamW by rate x n
# x 1 = 1/l: rate 1/(4 l). What lies inside (in): moved by r, it moves the stream by l^-a r = 1/l: r
# = l^(a - 1), rate 1/4 of that for a matrix. SGD moves by its rate times the gradient: 1/4 of the
# base's for tensors inside the network, times l^-a inside of a branch. So its rates are AdamW's
# over these: 4, and l^a. The head's gradient does not scale, and it begins at 1/4, as do matrices
# in blocks that lead to outputs of fixed number. Muon's updates of a matrix have norm 1, those of
# AdamW sqrt(in out) = 4 times as much per rate: 4 times AdamW's rate.
M = 4.0
L = 3.0


class Factors(NamedTuple):
    """Over the base's, under mup, depth-mup and complete-p: of the start, of the rates of AdamW and
    of SGD.
    """

    start: tuple[float, float, float]
    adamw: tuple[float, float, float]
    sgd: tuple[float, float, float]


ONE = (1.0, 1.0, 1.0)
QUARTER = (1 / 4, 1 / 4, 1 / 4)
FOUR = (4.0, 4.0, 4.0)
R3 = 3**0.5
KINDS = {
    "writing matrix": Factors(
        (1 / 2, 1 / (2 * R3), 1 / 6), (1 / 4, 1 / 12, 1 / 12), (1, 1 / 3, 1 / 3)
    ),
    "writing vector": Factors((1, 1 / R3, 1 / 3), (1, 1 / 3, 1 / 3), (4, 4 / 3, 4 / 3)),
    "writing, of fixed fan-in": Factors((1, 1 / R3, 1 / 3), (1, 1 / 3, 1 / 3), (4, 4 / 3, 4 / 3)),
    "inner matrix": Factors((1 / 2, 1 / 2, 1 / 2), (1 / 4, 1 / (4 * R3), 1 / 4), (1, 1, 3)),
    "inner vector": Factors(ONE, (1, 1 / R3, 1), (4, 4, 12)),
    "inner, of fixed fan-out": Factors(
        QUARTER, (1 / 4, 1 / (4 * R3), 1 / 4), (1 / 4, 1 / 4, 3 / 4)
    ),
    "inner vector of a head": Factors(ONE, (1, 1 / R3, 1), (1, 1, 3)),  # of fixed size
    "hidden": Factors((1 / 2, 1 / 2, 1 / 2), QUARTER, ONE),
    "input": Factors(ONE, ONE, FOUR),
    "readout": Factors(QUARTER, QUARTER, QUARTER),
    "bias of the readout": Factors(ONE, ONE, ONE),
    "norm before a tied head": Factors(QUARTER, QUARTER, QUARTER),  # SGD: 4 / 16
}
BIASES = {"**.bias": "inner vector"}  # that are left
ATTENTION = {"*.*.attn.proj.weight": "writing matrix", "*.*.attn.proj.bias": "writing vector"}
MLP = {"*.*.mlp.2.weight": "writing matrix", "*.*.mlp.2.bias": "writing vector"}
INSIDE = {"*.*.attn.qkv.weight": "inner matrix", "*.*.mlp.0.weight": "inner matrix"}
ENDS = {"norm.*": "input", "head.weight": "readout", "head.bias": "bias of the readout"}
EMBEDDED = {"tokens.weight": "input", **ENDS}


class Case(NamedTuple):
    """A constructor, an input for it, and the kind of every tensor by pattern, the first match
    winning.
    """

    make: Callable[[int, int], nn.Module]
    sample: Any
    kinds: dict[str, str]


IDS = torch.arange(12).view(2, 6) % CLASSES
IMAGES = torch.linspace(-1, 1, 2 * 3 * 64).view(2, 3, 8, 8)
PIXELS = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)
_TRANSFORMER = ATTENTION | MLP | INSIDE

CASES: dict[str, Case] = {
    "ViT: QK-norm, LayerScale, skips in the model": Case(
        VisionTransformer,
        IMAGES,
        {
            "patch.*": "input",
            "cls": "input",
            "pos": "input",
            "*.*.attn.[qk]_norm.*": "inner vector of a head",
        }
        | _TRANSFORMER
        | {"blocks.*.norm?.*": "inner vector", "blocks.*.ls?.gamma": "inner vector"}
        | ENDS,
    ),
    "x-transformers: lists of norm, branch and residual": Case(
        Listed,
        IDS,
        {"*.*.1.proj.weight": "writing matrix", "*.*.1.proj.bias": "writing vector"}
        | {"*.*.1.2.weight": "writing matrix", "*.*.1.2.bias": "writing vector"}
        | {
            "*.*.1.qkv.weight": "inner matrix",
            "*.*.1.0.weight": "inner matrix",
            "*.*.0.0.*": "inner vector",
        }
        | EMBEDDED,
    ),
    "parallel attention and MLP": Case(
        partial(Tokens, ParallelBlock),
        IDS,
        _TRANSFORMER | {"blocks.*.norm.*": "inner vector"} | EMBEDDED,
    ),
    "tied embeddings": Case(
        partial(Tokens, ParallelBlock, tied=True),
        IDS,
        _TRANSFORMER
        | {"blocks.*.norm.*": "inner vector"}
        | EMBEDDED
        | {"norm.*": "norm before a tied head"},
    ),
    "experts of fixed width, and a router": Case(
        partial(Tokens, ExpertsBlock),
        IDS,
        {
            "*.*.experts.router.weight": "inner, of fixed fan-out",
            "*.*.experts.up": "inner, of fixed fan-out",
        }
        | {"*.*.experts.down": "writing, of fixed fan-in", "blocks.*.norm.*": "inner vector"}
        | EMBEDDED,
    ),
    "a norm between branch and stream": Case(
        partial(Tokens, SandwichBlock),
        IDS,
        {"*.*.norm.*": "writing vector", "*.*.mlp.?.weight": "inner matrix"} | EMBEDDED,
    ),
    "GRU": Case(
        partial(Tokens, RecurrentBlock),
        IDS,
        {
            "*.*.gru.weight_*": "inner matrix",
            "*.*.gru.bias_*": "inner vector",
            "*.*.proj.weight": "writing matrix",
        }
        | {"*.*.proj.bias": "writing vector", "blocks.*.norm.*": "inner vector"}
        | EMBEDDED,
    ),
    "state space": Case(
        partial(Tokens, StateSpaceBlock),
        IDS,
        {
            "*.*.into.weight": "inner matrix",
            "*.*.out.weight": "writing matrix",
            "*.*.out.bias": "writing vector",
        }
        | {
            "*.*.log_decay": "inner vector",
            "*.*.read": "inner vector",
            "blocks.*.norm.*": "inner vector",
        }
        | EMBEDDED,
    ),
    "pre-activation ResNet": Case(
        PreactivationResNet,
        IMAGES,
        {"stem.weight": "input", "stages.1.0.norm?.*": "input", "stages.1.0.*.weight": "hidden"}
        | {
            "*.*.*.norm?.*": "inner vector",
            "*.*.*.conv1.weight": "inner matrix",
            "*.*.*.conv2.weight": "writing matrix",
        }
        | ENDS,
    ),
}


ENCODER = {
    "*.*.self_attn.out_proj.weight": "writing matrix",
    "*.*.self_attn.out_proj.bias": "writing vector",
}
ENCODER |= {"*.*.linear2.weight": "writing matrix", "*.*.linear2.bias": "writing vector"}
ENCODER |= {"*.*.self_attn.in_proj_weight": "inner matrix", "*.*.linear1.weight": "inner matrix"}
ENCODER |= {
    "*.*.self_attn.in_proj_bias": "inner vector",
    "layers.*.norm?.*": "inner vector",
    "norm.*": "input",
}


# kinds of the tensors of Hugging Face's models
GATED: dict[str, str] = {
    "*.layers.*.self_attn.o_proj.weight": "writing matrix",
    "*.layers.*.mlp.down_proj.weight": "writing matrix",
    "*.layers.*.self_attn.?_proj.bias": "inner vector",
    "*.layers.*.self_attn.?_norm.weight": "inner vector of a head",
    "*.layers.*.mlp.gate.weight": "inner, of fixed fan-out",
    "*.layers.*.mlp.experts.gate_up_proj": "inner matrix",
    "*.layers.*.mlp.experts.down_proj": "writing matrix",
    "*.layers.*.*.*_proj.weight": "inner matrix",
    "*.layers.*.*_layernorm.weight": "inner vector",
    "*.norm.weight": "input",
    "*.embed_tokens.weight": "input",
    "lm_head.weight": "readout",
}
BLOCKS = "transformer.h.*"
GPT2 = (
    {
        "transformer.wte.weight": "input",
        "transformer.wpe.weight": "input",
        "transformer.ln_f.*": "input",
    }
    | {f"{BLOCKS}.*.c_proj.weight": "writing matrix", f"{BLOCKS}.*.c_proj.bias": "writing vector"}
    | {f"{BLOCKS}.*.c_*.weight": "inner matrix", f"{BLOCKS}.*.c_*.bias": "inner vector"}
    | {f"{BLOCKS}.ln_?.*": "inner vector"}
)
CONVNEXT = (
    {"convnext.embeddings.*.*": "input", "convnext.layernorm.*": "input"}
    | {
        "*.*.stages.1.downsampling_layer.0.*": "input",
        "*.*.stages.1.downsampling_layer.1.weight": "hidden",
    }
    | {
        "*.*.stages.1.downsampling_layer.1.bias": "input",
        "*.*.*.*.*.*.dwconv.weight": "inner vector",
    }
    | {"*.*.*.*.*.*.pwconv1.weight": "inner matrix", "*.*.*.*.*.*.pwconv2.weight": "writing matrix"}
    | {"*.*.*.*.*.*.pwconv2.bias": "writing vector", "*.*.*.*.*.*.layernorm.weight": "inner vector"}
    | {"*.*.*.*.*.*.layer_scale_parameter": "inner vector"}
    | {"classifier.weight": "readout", "classifier.bias": "bias of the readout"}
)
RESNET = (  # batch norm undoes the scale of every convolution
    {"*.embedder.*.convolution.weight": "input", "*.embedder.*.normalization.*": "input"}
    | {"*.*.stages.1.layers.0.shortcut.convolution.weight": "hidden"}
    | {"*.*.stages.1.layers.0.shortcut.normalization.*": "input"}
    | {"*.*.stages.1.layers.0.layer.*.convolution.weight": "hidden"}
    | {"*.*.stages.1.layers.0.layer.*.normalization.*": "input"}
    | {"*.*.*.*.*.*.layer.2.normalization.*": "writing vector"}
    | {"*.*.*.*.*.*.layer.*.normalization.*": "inner vector"}
    | {"*.*.*.*.*.*.layer.*.convolution.weight": "inner matrix"}
    | {"classifier.1.weight": "readout", "classifier.1.bias": "bias of the readout"}
)


@cache
def hugging_face() -> dict[str, Case]:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    common = {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 0}

    def text(name: str, **options: Any) -> Callable[[int, int], nn.Module]:
        def make(width: int, depth: int) -> nn.Module:
            sizes = {
                "hidden_size": width,
                "num_hidden_layers": depth,
                "num_attention_heads": width // 8,
                **common,
            }
            sizes |= {"num_key_value_heads": width // 16, "intermediate_size": 2 * width}
            config = getattr(transformers, f"{name}Config")(**sizes, **options)
            return getattr(transformers, f"{name}ForCausalLM")(config)

        return make

    def images(name: str, **options: Any) -> Callable[[int, int], nn.Module]:
        def make(width: int, depth: int) -> nn.Module:
            config = getattr(transformers, f"{name}Config")(
                hidden_sizes=[width, 2 * width],
                depths=[depth, depth],
                num_stages=2,
                image_size=32,
                **options,
            )
            if name != "ConvNext":
                config.embedding_size = width
            return getattr(transformers, f"{name}ForImageClassification")(config)

        return make

    return {
        "nn.TransformerEncoder": Case(encoder, torch.randn(2, 5, 64), ENCODER),
        "GPT-2": Case(gpt2, None, GPT2 | {"transformer.ln_f.*": "norm before a tied head"}),
        "Llama": Case(text("Llama"), None, GATED),
        "Qwen 2, tied": Case(
            text("Qwen2", tie_word_embeddings=True),
            None,
            {"model.norm.weight": "norm before a tied head"} | GATED,
        ),
        "Qwen 3": Case(text("Qwen3", head_dim=8), None, GATED),
        "Mixtral": Case(text("Mixtral", num_local_experts=4), None, GATED),
        "ConvNeXt": Case(images("ConvNext"), PIXELS, CONVNEXT),
        "ResNet": Case(images("ResNet", embedding_size=16), PIXELS, RESNET),
    }


NAMES = [
    *CASES,
    "nn.TransformerEncoder",
    "GPT-2",
    "Llama",
    "Qwen 2, tied",
    "Qwen 3",
    "Mixtral",
    "ConvNeXt",
    "ResNet",
]


def case_of(name: str) -> Case:
    return CASES[name] if name in CASES else hugging_face()[name]


def planned(case: Case, model: nn.Module, rule: str) -> nfd.Plan:
    sizes: dict[str, Any] = {"make_model": case.make, "base": (16, 2)}
    return nfd.plan(model, rule=rule, optimizer="adamw", sample=case.sample, **sizes)


@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_has_the_factors_of_its_kind(name: str) -> None:
    case = case_of(name)
    model = case.make(64, 6)
    kinds = case.kinds | BIASES
    for k, rule in enumerate(("mup", "depth-mup", "complete-p")):
        adamw = planned(case, model, rule)
        sgd, muon = (replace(adamw, optimizer=optimizer) for optimizer in ("sgd", "muon"))
        assert (adamw.width, adamw.depth) == (M, L)
        assert not adamw.multipliers
        for tensor, entry in adamw.entries.items():
            kind = next((kind for pattern, kind in kinds.items() if matches(tensor, pattern)), None)
            assert kind is not None, tensor
            expected = KINDS[kind]
            start = entry.start
            if start.constant:
                assert adamw.constant(tensor) == pytest.approx(
                    start.constant * expected.start[k]
                ), tensor
            elif start.std and not start.kept:
                assert adamw.std(tensor) == pytest.approx(start.std * expected.start[k]), tensor
            assert adamw.rate(tensor) == pytest.approx(expected.adamw[k]), tensor
            assert sgd.rate(tensor) == pytest.approx(expected.sgd[k]), tensor
            if muon.is_muon(tensor):
                assert kind in ("writing matrix", "inner matrix", "hidden")
                assert muon.rate(tensor) == pytest.approx(4 * expected.adamw[k]), tensor
            else:
                assert muon.rate(tensor) == pytest.approx(expected.adamw[k]), tensor


def test_branches_that_no_tensor_scales_get_a_factor() -> None:
    """Gemma stores gains as ``1 + g``; BiT standardises its weights."""
    transformers = pytest.importorskip("transformers")

    def bit(width: int, depth: int) -> nn.Module:
        config = transformers.BitConfig(
            embedding_size=width,
            num_groups=4,
            hidden_sizes=[width, 2 * width],
            depths=[depth, depth],
        )
        return transformers.BitForImageClassification(config)

    gemmas = [
        f"layers.{k}.post_{part}_layernorm"
        for k in range(6)
        for part in ("attention", "feedforward")
    ]
    bits = [f"bit.encoder.stages.{s}.layers.{k}.conv3" for s in (0, 1) for k in range(1, 6)]
    for make, sample, ends in (
        (lambda *size: gemma2(*size).model, None, gemmas),
        (bit, PIXELS, bits),
    ):
        sizes: dict[str, Any] = {"make_model": make, "base": (16, 2)}
        model = make(64, 6)
        for rule, factor in (("mup", 1.0), ("depth-mup", 1 / R3), ("complete-p", 1 / 3)):
            plan = nfd.plan(model, rule=rule, sample=sample, **sizes)
            assert plan.multipliers == (
                {} if factor == 1 else dict.fromkeys(ends, pytest.approx(factor))
            )
            assert "outer" not in plan.roles.values()
        plan.apply_(model)
        assert isinstance(model.get_submodule(ends[0]), nfd.Scaled)
        assert plan.param_groups(model, lr=0.1)
