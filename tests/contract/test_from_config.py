"""``nfd.from_config``: models of Hugging Face's transformers at every size, from the config of
one.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

import nfd

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

IDS = {"input_ids": torch.arange(10).view(2, 5)}
PIXELS = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 8 * 8).view(2, 3, 8, 8)}
TOKENS = {"vocab_size": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4}  # of 8 numbers each, at width 64
SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6}
ENCODER = {**SIZES, "num_attention_heads": 8}
IMAGES = {"image_size": 8, "patch_size": 4}
TOWERS: dict[str, Any] = {
    "width": ["text_config.hidden_size", "vision_config.hidden_size"],
    "depth": ["text_config.num_hidden_layers", "vision_config.num_hidden_layers"],
}

# per model: its config at width 64 and depth 6, options, its class, an input, and what the model of
# width 32 and depth 2 has: the numbers of blocks in its stacks, the shapes of some tensors
CASES: dict[
    str, tuple[str, dict[str, Any], dict[str, Any], str, dict[str, Any], dict[str, Any]]
] = {
    "GPT-2": (
        "GPT2Config",
        {**TOKENS, "n_embd": 64, "n_layer": 6, "n_head": 8, "n_positions": 64},
        {},
        "GPT2LMHeadModel",
        IDS,
        {
            "transformer.h": 2,
            "transformer.wpe.weight": (64, 32),
            "transformer.h.0.mlp.c_fc.weight": (32, 128),
        },
    ),
    "Llama": (
        "LlamaConfig",
        {**TOKENS, **SIZES, **HEADS},
        {},
        "LlamaForCausalLM",
        IDS,
        {
            "model.layers": 2,
            "lm_head.weight": (16, 32),
            "model.layers.1.mlp.up_proj.weight": (80, 32),
            "model.layers.1.self_attn.q_proj.weight": (32, 32),
            "model.layers.1.self_attn.k_proj.weight": (16, 32),
        },
    ),
    "Qwen 3: heads wider than the stream": (
        "Qwen3Config",
        {**TOKENS, **SIZES, **HEADS, "head_dim": 16},
        {},
        "Qwen3ForCausalLM",
        IDS,
        {
            "model.layers": 2,
            "model.layers.0.self_attn.q_proj.weight": (64, 32),
            "model.layers.0.self_attn.k_proj.weight": (32, 32),
            "model.layers.0.self_attn.q_norm.weight": (16,),
        },
    ),
    "Mixtral": (
        "MixtralConfig",
        {**TOKENS, **SIZES, **HEADS, "num_local_experts": 3},
        {},
        "MixtralForCausalLM",
        IDS,
        {
            "model.layers": 2,
            "model.layers.0.mlp.experts.gate_up_proj": (3, 160, 32),
            "model.layers.0.mlp.gate.weight": (3, 32),
            "model.layers.0.self_attn.k_proj.weight": (16, 32),
        },
    ),
    "Gemma 2, one key-value head kept": (
        "Gemma2Config",
        {**TOKENS, **SIZES, **HEADS, "head_dim": 8, "num_key_value_heads": 1},
        {},
        "Gemma2ForCausalLM",
        IDS,
        {"model.layers": 2, "model.layers.0.self_attn.k_proj.weight": (8, 32)},
    ),
    "BERT": (
        "BertConfig",
        {**TOKENS, **ENCODER},
        {"keep": ["intermediate_size"]},
        "BertForMaskedLM",
        IDS,
        {"bert.encoder.layer": 2, "bert.encoder.layer.0.intermediate.dense.weight": (160, 32)},
    ),
    "T5: both depths": (
        "T5Config",
        {
            **TOKENS,
            "d_model": 64,
            "d_ff": 128,
            "d_kv": 8,
            "num_layers": 6,
            "num_decoder_layers": 12,
            "num_heads": 8,
        }
        | {"decoder_start_token_id": 0},
        {},
        "T5ForConditionalGeneration",
        {**IDS, "labels": IDS["input_ids"]},
        {
            "encoder.block": 2,
            "decoder.block": 4,
            "encoder.block.0.layer.1.DenseReluDense.wi.weight": (64, 32),
            "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, 4),
        },
    ),
    "Whisper": (
        "WhisperConfig",
        {
            **TOKENS,
            "d_model": 64,
            "encoder_layers": 6,
            "encoder_ffn_dim": 128,
            "encoder_attention_heads": 8,
            "decoder_layers": 3,
            "decoder_ffn_dim": 256,
            "decoder_attention_heads": 4,
            "decoder_start_token_id": 0,
            "num_mel_bins": 4,
            "max_source_positions": 8,
        },
        {},
        "WhisperForConditionalGeneration",
        {"input_features": torch.ones(2, 4, 16), "labels": IDS["input_ids"]},
        {
            "model.encoder.layers": 2,
            "model.decoder.layers": 1,
            "model.encoder.layers.0.fc1.weight": (64, 32),
            "model.decoder.layers.0.fc1.weight": (128, 32),
        },
    ),
    "ViT": (
        "ViTConfig",
        {**ENCODER, **IMAGES},
        {},
        "ViTForImageClassification",
        PIXELS,
        {
            "vit.layers": 2,
            "vit.embeddings.position_embeddings": (1, 5, 32),
            "classifier.weight": (2, 32),
        },
    ),
    "CLIP: towers of two widths": (
        "CLIPConfig",
        {
            "text_config": {**TOKENS, **ENCODER},
            "vision_config": {**ENCODER, **IMAGES, "hidden_size": 96, "num_hidden_layers": 12},
            "projection_dim": 24,
        },
        TOWERS,
        "CLIPModel",
        IDS | PIXELS,
        {
            "text_model.encoder.layers": 2,
            "vision_model.encoder.layers": 4,
            "visual_projection.weight": (24, 48),
        },
    ),
    "CLIP: what is scaled by name": (
        "CLIPConfig",
        {
            "text_config": {**TOKENS, **ENCODER},
            "vision_config": {**ENCODER, **IMAGES},
            "projection_dim": 24,
        },
        {
            "width": "text_config.hidden_size",
            "depth": "text_config.num_hidden_layers",
            "scale": ["projection_dim"],
        },
        "CLIPModel",
        IDS | PIXELS,
        {
            "text_model.encoder.layers": 2,
            "vision_model.encoder.layers": 6,
            "visual_projection.weight": (12, 64),
        },
    ),
    "Mamba": (
        "MambaConfig",
        {**TOKENS, "hidden_size": 64, "num_hidden_layers": 6, "state_size": 4},
        {},
        "MambaForCausalLM",
        IDS,
        {
            "backbone.layers": 2,
            "backbone.layers.0.mixer.A_log": (64, 4),
            "backbone.layers.0.mixer.dt_proj.weight": (64, 2),
        },
    ),
    "ConvNeXt: a number per stage": (
        "ConvNextConfig",
        {"hidden_sizes": [64, 128], "depths": [6, 9], "num_stages": 2},
        {"width": "hidden_sizes", "depth": "depths"},
        "ConvNextForImageClassification",
        {"pixel_values": torch.ones(2, 3, 32, 32)},
        {
            "convnext.encoder.stages.1.layers": 3,
            "convnext.encoder.stages.1.layers.0.pwconv1.weight": (256, 64),
        },
    ),
}


def config_of(name: str) -> Any:
    kind, fields, *_ = CASES[name]
    return getattr(transformers, kind)(**copy.deepcopy(fields))


def llama(**more: Any) -> Callable[..., nn.Module]:
    return nfd.from_config(config_of("Llama"), **more)


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_sizes_change_together(name: str) -> None:
    *_, options, kind, inputs, wanted = CASES[name]
    config = config_of(name)
    before = copy.deepcopy(config.to_dict())
    make_model = nfd.from_config(config, **options)
    model = make_model(32, 2)
    assert type(model).__name__ == kind
    own = dict(model.named_parameters())
    for path, size in wanted.items():
        assert (
            len(model.get_submodule(path)) if isinstance(size, int) else own[path].shape
        ) == size, path  # type: ignore[arg-type]
    assert all(
        output.isfinite().all()
        for output in model(**inputs).values()
        if isinstance(output, torch.Tensor)
    )
    # its own size is itself
    assert shapes(make_model(64, 6)) == shapes(getattr(transformers, kind)(config))
    assert config.to_dict() == before


def test_kinds_of_layers_repeat_their_pattern() -> None:
    config = config_of("Gemma 2, one key-value head kept")
    assert config.layer_types == ["sliding_attention", "full_attention"] * 3
    for depth in (1, 3, 4, 9):
        kinds = nfd.from_config(config)(32, depth).config.layer_types
        assert kinds == (["sliding_attention", "full_attention"] * 5)[:depth]
    # no pattern: as it begins
    config.layer_types = ["full_attention"] * 2 + ["sliding_attention"] * 4
    assert nfd.from_config(config)(32, 3).config.layer_types == config.layer_types[:3]


def test_further_keywords_are_fields() -> None:
    make_model = nfd.from_config(config_of("Mixtral"))
    # the second by another name of the config's
    model = make_model(32, 2, num_experts=5, num_key_value_heads=1)
    assert model.model.layers[0].mlp.gate.weight.shape == (5, 32)
    assert model.model.layers[0].self_attn.k_proj.weight.shape == (8, 32)
    towers = nfd.from_config(config_of("CLIP: towers of two widths"), **TOWERS)
    assert (
        len(towers(32, 2, **{"vision_config.num_hidden_layers": 1}).vision_model.encoder.layers)
        == 1
    )


def test_a_class_can_be_chosen() -> None:
    config = config_of("Llama")
    config.architectures = ["LlamaForSequenceClassification"]
    assert type(nfd.from_config(config)(32, 2)).__name__ == "LlamaForSequenceClassification"
    for chosen in (transformers.LlamaModel, transformers.AutoModel):
        assert type(nfd.from_config(config, model_class=chosen)(32, 2)) is transformers.LlamaModel
    config.architectures = ["SomebodysModel"]
    with pytest.raises(
        ValueError, match=r"no class 'SomebodysModel' for a LlamaConfig: pass model_class"
    ):
        nfd.from_config(config)


@pytest.mark.parametrize("through", [pickle, cloudpickle])
def test_the_function_can_be_pickled(through: Any) -> None:
    make_model = llama()
    again = pickle.loads(through.dumps(make_model))
    assert shapes(again(32, 3)) == shapes(make_model(32, 3))


def test_stores_know_families_by_their_configs() -> None:
    def name(make_model: Any) -> str:
        return nfd.Family(make_model, base=(32, 2), rule="mup", optimizer="adamw").name

    other = config_of("Llama")
    other.rms_norm_eps = 1e-3
    own = name(llama())
    assert "LlamaForCausalLM" in own
    assert name(pickle.loads(pickle.dumps(llama()))) == own
    others = [
        llama(keep=["intermediate_size"]),
        llama(model_class=transformers.LlamaModel),
        nfd.from_config(other),
    ]
    assert len({own, *map(name, others)}) == 4


def llama_by_hand(width: int, depth: int) -> nn.Module:
    heads = {"num_attention_heads": width // 8, "num_key_value_heads": width // 16}
    sizes = {"hidden_size": width, "intermediate_size": width * 5 // 2, "num_hidden_layers": depth}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**TOKENS, **sizes, **heads))


def t5_by_hand(width: int, depth: int) -> nn.Module:
    sizes = {
        "d_model": width,
        "d_ff": 2 * width,
        "num_heads": width // 8,
        "d_kv": 8,
        "decoder_start_token_id": 0,
    }
    config = transformers.T5Config(
        **TOKENS, **sizes, num_layers=depth, num_decoder_layers=2 * depth
    )
    return transformers.T5ForConditionalGeneration(config)


@pytest.mark.filterwarnings("ignore")  # of transformers' own
@pytest.mark.parametrize(
    ("name", "by_hand", "rule"),
    [("Llama", llama_by_hand, "complete-p"), ("T5: both depths", t5_by_hand, "mup")],
)
def test_plans_are_those_of_a_function_by_hand(name: str, by_hand: Any, rule: Any) -> None:
    def factors(make_model: Any) -> dict[tuple[str, str], float]:
        torch.manual_seed(0)
        sample = CASES[name][4]
        plan = nfd.plan(
            make_model(64, 4), rule=rule, make_model=make_model, base=(32, 2), sample=sample
        )
        return {
            (name, what): getattr(plan, what)(name)
            for name in plan.entries
            for what in ("rate", "std")
        }

    assert factors(nfd.from_config(config_of(name))) == pytest.approx(factors(by_hand))


@pytest.mark.parametrize(
    ("kind", "message", "call"),
    [
        (
            TypeError,
            r"config must be a config of transformers.*model.config; got a dict",
            partial(nfd.from_config, {}),
        ),
        (
            ValueError,
            r"LlamaConfig has no field 'hiden_size'. Did you mean 'hidden_size'",
            partial(llama, width="hiden_size"),
        ),
        (
            ValueError,
            r"no field 'hidden_size'. Did you mean 'text_config.hidden_size'",
            lambda: nfd.from_config(transformers.CLIPConfig()),
        ),
        (ValueError, r"no field 'moe_size'", partial(llama, scale=["moe_size"])),
        (ValueError, r"no field 'moe_size'", partial(llama, keep=["moe_size"])),
        (
            TypeError,
            r"hidden_act must be a whole number to follow width; it is 'silu'",
            partial(llama, width="hidden_act"),
        ),
        (
            ValueError,
            r"width must be a multiple of 16.*got 40: num_key_value_heads is 4 at 64.*keep",
            lambda: llama()(40, 2),
        ),
        (
            ValueError,
            r"depth must be a multiple of 2.*got 3: decoder_layers is 3 at 6",
            lambda: nfd.from_config(config_of("Whisper"))(32, 3),
        ),
        (
            ValueError,
            r"num_hidden_layers is the depth: it is given twice",
            lambda: llama()(32, 2, num_hidden_layers=3),
        ),
        (
            ValueError,
            r"LlamaConfig has no field 'num_experts'",
            lambda: llama()(32, 2, num_experts=3),
        ),
        (TypeError, r"depth must be a whole number; got 2.0", lambda: llama()(32, 2.0)),
        (ValueError, r"width must be at least 1; got 0", lambda: llama()(0, 2)),
    ],
)
def test_errors_name_the_field(
    kind: type[Exception], message: str, call: Callable[[], Any]
) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.parametrize(
    ("step", "expected"), [(1, {2: [0, 1], 8: [*range(8)]}), (2, {2: [1], 8: [1, 3, 5, 7]})]
)
def test_the_places_of_experts_follow_depth(step: int, expected: dict[int, list[int]]) -> None:
    sizes = {**TOKENS, **SIZES, **HEADS, "num_hidden_layers": 4, "intermediate_size_mlp": 64}
    config = transformers.Llama4TextConfig(
        **sizes, num_local_experts=2, interleave_moe_layer_step=step
    )
    make = nfd.from_config(config)
    for depth, places in expected.items():
        model = make(64, depth)
        assert model.config.moe_layers == places
        assert [k for k, layer in enumerate(model.model.layers) if layer.is_moe_layer] == places


def test_a_first_dense_layer_stays_one() -> None:
    sizes = {
        **TOKENS,
        **SIZES,
        **HEADS,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    }
    make = nfd.from_config(transformers.Qwen2MoeConfig(**sizes, num_experts=2, mlp_only_layers=[0]))
    assert make(64, 12).config.mlp_only_layers == [0]
    assert make(64, 2, mlp_only_layers=[1]).config.mlp_only_layers == [1]
