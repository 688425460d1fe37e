"""Language models of ``transformers``, as their classes make them, and what each of their tensors
is by hand.

What grows with width: the stream, the number of heads of size 8, and what lies inside a block,
experts and latent dimensions included. What does not: vocabulary, number of experts, size of a head
and of a state, length of a kernel.

Decided by reading the classes:

- A router maps the stream to a fixed number of experts, ``"inner n->1"``.
- Depthwise kernels ``[n, 1, 4]`` and ``A_log`` ``[n, 8]`` of Mamba act channel by channel, ``"inner
  1->n"``.
- ``x_proj`` and ``dt_proj`` of Mamba go through ceil(n/16) numbers, which grow; ``q_lora_rank`` and
  ``kv_lora_rank`` of DeepSeek-V3 are made to grow, as they are a constant part of the stream in its
  two published sizes.
- Where a norm follows the last matrix of a branch, the gain of the norm writes the stream and the
  matrix is inner, as the norm undoes its scale (OLMo 2). A gain stored as ``1 + g`` scales nothing,
  so that a factor stands behind the norm (Gemma 2).
- A head that is the embedding takes its 1/m in the norm before it. T5 has n^-1/2 of it already,
  between norm and head. Gemma's embeddings are multiplied by n^1/2, so that they begin, and the
  head with them, smaller by m^-1/2; m^-1/2 is left, which its norm of ``1 + g`` cannot take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from tests.zoo.published import Exhibit
from torch import nn

VOCABULARY = 48
COMMON = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}


def batch(seed: int) -> dict[str, torch.Tensor]:
    """Random tokens, which are their own labels: all models but BERT and T5 shift them."""
    ids = torch.randint(1, VOCABULARY, (4, 12), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}


def decoder(name: str, **options: Any) -> Callable[[int, int], nn.Module]:
    """A constructor of the decoders that share Llama's names of options; those that grow are per
    unit of width.
    """

    def make(width: int, depth: int) -> nn.Module:
        sizes = {
            "hidden_size": width,
            "num_hidden_layers": depth,
            "num_attention_heads": width // 8,
            **COMMON,
        }
        sizes |= {
            "num_key_value_heads": width // 16,
            "intermediate_size": 2 * width,
            "max_position_embeddings": 64,
        }
        sizes |= {
            key: int(width * size) if isinstance(size, float) else size
            for key, size in options.items()
        }
        return getattr(transformers, f"{name}ForCausalLM")(
            getattr(transformers, f"{name}Config")(**sizes)
        )

    return make


def gpt2(width: int, depth: int) -> nn.Module:
    sizes = {"n_embd": width, "n_layer": depth, "n_head": width // 8, "n_positions": 64, **COMMON}
    config = transformers.GPT2Config(**sizes, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
    return transformers.GPT2LMHeadModel(config)


def bert(width: int, depth: int) -> nn.Module:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "num_attention_heads": width // 8}
    sizes |= {
        "intermediate_size": 2 * width,
        "max_position_embeddings": 64,
        "vocab_size": VOCABULARY,
    }
    config = transformers.BertConfig(
        **sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return transformers.BertForMaskedLM(config)


def t5(width: int, depth: int) -> nn.Module:
    sizes = {
        "d_model": width,
        "num_layers": depth,
        "num_heads": width // 8,
        "d_kv": 8,
        "d_ff": 2 * width,
    }
    config = transformers.T5Config(
        **sizes, vocab_size=VOCABULARY, dropout_rate=0.0, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def mamba(width: int, depth: int) -> nn.Module:
    config = transformers.MambaConfig(
        **COMMON, hidden_size=width, num_hidden_layers=depth, state_size=8
    )
    return transformers.MambaForCausalLM(config)


def mamba2(width: int, depth: int) -> nn.Module:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_heads": width // 4,
        "head_dim": 8,
    }
    config = transformers.Mamba2Config(**COMMON, **sizes, state_size=8, n_groups=1, chunk_size=4)
    return transformers.Mamba2ForCausalLM(config)


def rwkv(width: int, depth: int) -> nn.Module:
    sizes = {"hidden_size": width, "num_hidden_layers": depth, "context_length": 64}
    # else eval mode divides weights
    config = transformers.RwkvConfig(**sizes, vocab_size=VOCABULARY, rescale_every=0)
    return transformers.RwkvForCausalLM(config)


def xlstm(width: int, depth: int) -> nn.Module:
    sizes = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_heads": width // 8,
        "ffn_proj_factor": 2.0,
    }
    sizes |= {"ffn_round_up_to_multiple_of": 8}
    # it writes its cache in place
    config = transformers.xLSTMConfig(**COMMON, **sizes, use_cache=False)
    return transformers.xLSTMForCausalLM(config)


ENDS = {
    "*.embed_tokens.weight": "input 1->n",
    "*.norm.weight": "input 1->n",
    "lm_head.weight": "readout n->1",
}
ATTENTION = {"**.o_proj.weight": "outer n->n", "**.self_attn.*_proj.weight": "inner n->n"}
MLP = {
    "**.down_proj.weight": "outer n->n",
    "**.up_proj.weight": "inner n->n",
    "**.gate_proj.weight": "inner n->n",
}
EXPERTS = {
    "**.down_proj": "outer n->n",
    "**.gate_up_proj": "inner n->n",
    "**.mlp.gate.weight": "inner n->1",
}
NORMS = {"**.*_layernorm.weight": "inner 1->n"}
# the same gain for every head
NORMS_OF_HEADS = {"**.q_norm.weight": "inner 1->1", "**.k_norm.weight": "inner 1->1"}
NORMS_OF_ALL_HEADS = {"**.q_norm.weight": "inner 1->n", "**.k_norm.weight": "inner 1->n"}
GATED = ENDS | ATTENTION | MLP | NORMS
SPARSE = ENDS | ATTENTION | EXPERTS | NORMS

GPT2 = (
    {"*.wte.weight": "input 1->n", "*.wpe.weight": "input 1->n", "*.ln_f.*": "input 1->n"}
    | {"**.c_proj.weight": "outer n->n", "**.c_proj.bias": "outer 1->n"}
    | {"**.c_attn.weight": "inner n->n", "**.c_fc.weight": "inner n->n"}
    | {"**.c_attn.bias": "inner 1->n", "**.c_fc.bias": "inner 1->n", "*.h.*.ln_?.*": "inner 1->n"}
)
GPT_NEOX = (
    {
        "*.embed_in.weight": "input 1->n",
        "*.final_layer_norm.*": "input 1->n",
        "lm_head.weight": "readout n->1",
    }
    | {"**.attention.dense.weight": "outer n->n", "**.attention.dense.bias": "outer 1->n"}
    | {"**.dense_4h_to_h.weight": "outer n->n", "**.dense_4h_to_h.bias": "outer 1->n"}
    | {"**.query_key_value.weight": "inner n->n", "**.query_key_value.bias": "inner 1->n"}
    | {"**.dense_h_to_4h.weight": "inner n->n", "**.dense_h_to_4h.bias": "inner 1->n"}
    | {"*.layers.*.*_layernorm.*": "inner 1->n"}
)
BEFORE_A_NORM = {"**.o_proj.weight": "inner n->n", "**.down_proj.weight": "inner n->n"}
OLMO2 = (
    {
        "**.post_attention_layernorm.weight": "outer 1->n",
        "**.post_feedforward_layernorm.weight": "outer 1->n",
    }
    | GATED
    | NORMS_OF_ALL_HEADS
    | BEFORE_A_NORM
)
GEMMA2 = GATED | BEFORE_A_NORM
BERT = (
    {"*.embeddings.*.*": "input 1->n", "cls.predictions.bias": "input 1->1"}
    | {"*.*.transform.dense.weight": "hidden n->n", "*.*.transform.dense.bias": "input 1->n"}
    | {"**.LayerNorm.*": "inner 1->n", "**.bias": "inner 1->n", "**.dense.weight": "inner n->n"}
    | {f"**.{name}.weight": "inner n->n" for name in ("query", "key", "value")}
)
T5 = (
    {
        "shared.weight": "input 1->n",
        "*.final_layer_norm.weight": "input 1->n",
        "**.layer_norm.weight": "inner 1->n",
    }
    | {"**.relative_attention_bias.weight": "inner 1->n"}  # a number for every head and distance
    | {"**.o.weight": "outer n->n", "**.wo.weight": "outer n->n"}
    | {f"**.{name}.weight": "inner n->n" for name in ("q", "k", "v", "wi")}
)
MAMBA = (
    {
        "*.embeddings.weight": "input 1->n",
        "*.norm_f.weight": "input 1->n",
        "**.out_proj.weight": "outer n->n",
    }
    | {f"**.{name}_proj.weight": "inner n->n" for name in ("in", "x", "dt")}
    | {"**.conv1d.*": "inner 1->n", "**.norm.weight": "inner 1->n", "**.dt_proj.bias": "inner 1->n"}
    | {f"**.{name}": "inner 1->n" for name in ("A_log", "D", "dt_bias")}
    | {"lm_head.weight": "readout n->1"}
)
RWKV = (
    {"*.embeddings.weight": "input 1->n", "*.ln_out.*": "input 1->n", "head.weight": "readout n->1"}
    | {
        "**.pre_ln.*": "input 1->n",
        "**.ln1.*": "inner 1->n",
        "**.ln2.*": "inner 1->n",
        "**.time_*": "inner 1->n",
    }
    | {"**.output.weight": "outer n->n", "**.feed_forward.value.weight": "outer n->n"}
    | {f"**.{name}.weight": "inner n->n" for name in ("key", "value", "receptance")}
)
XLSTM = (
    {
        "*.embeddings.weight": "input 1->n",
        "*.out_norm.weight": "input 1->n",
        "lm_head.weight": "readout n->1",
    }
    | {"**.out_proj.weight": "outer n->n", "**.proj_down.weight": "outer n->n"}
    | {f"**.{name}.weight": "inner 1->n" for name in ("norm_mlstm", "norm_ffn", "multihead_norm")}
    | {"**.?gate_preact.bias": "inner 1->n", "**.weight": "inner n->n"}
)


LATENT = {"num_key_value_heads": None, "q_lora_rank": 0.5, "kv_lora_rank": 0.5}
LATENT |= {"qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
ROUTED = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 1.0,
}


def exhibit(
    name: str, make: Callable[[int, int], nn.Module], kinds: dict[str, str], **more: Any
) -> Exhibit:
    return Exhibit(name, "language", "transformers", make, batch, kinds, **more)


EXHIBITS: list[Exhibit] = [
    exhibit(
        "GPT-2",
        gpt2,
        GPT2,
        tied=("transformer.ln_f.*",),
        note="tied; begins by depth, as 1/sqrt(2L)",
    ),
    exhibit("Llama", decoder("Llama"), GATED, note="grouped queries"),
    exhibit(
        "Qwen3", decoder("Qwen3", head_dim=8), GATED | NORMS_OF_HEADS, note="a norm of every head"
    ),
    exhibit(
        "GPT-NeoX",
        decoder("GPTNeoX", num_key_value_heads=None),
        GPT_NEOX,
        note="attention and MLP beside each other",
    ),
    exhibit(
        "Gemma 2",
        decoder("Gemma2", head_dim=8, query_pre_attn_scalar=8),
        GEMMA2,
        own={"*.embed_tokens.weight": 0.5},
        multipliers={
            "lm_head": "m^-1/2",
            "*.layers.*.post_attention_layernorm": "1/l",
            "*.layers.*.post_feedforward_layernorm": "1/l",
        },
        note="tied; root of the width on embeddings; gains of 1 + g before and behind a branch",
    ),
    exhibit(
        "OLMo 2",
        decoder("Olmo2"),
        OLMO2,
        note="norms behind branches only, whose epsilon starts of 0.02 do not reach at these "
        "widths",
    ),
    exhibit(
        "BERT",
        bert,
        BERT,
        tied=("*.*.transform.LayerNorm.*",),
        rules=("mup",),
        note="normalises after adding; tied",
    ),
    exhibit(
        "T5",
        t5,
        T5,
        tied=("decoder.final_layer_norm.weight",),
        own={"decoder.final_layer_norm.weight": -0.5},
        note="encoder and decoder; the tied head reads n^-1/2 times its features",
    ),
    exhibit("Mixtral", decoder("Mixtral", num_local_experts=4), SPARSE, note="two of four experts"),
    exhibit(
        "Qwen3-MoE",
        decoder(
            "Qwen3Moe", head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=1.0
        ),
        SPARSE | NORMS_OF_HEADS,
        note="small experts, a norm of every head",
    ),
    exhibit(
        "OLMoE",
        decoder("Olmoe", num_experts=4, num_experts_per_tok=2),
        SPARSE | NORMS_OF_ALL_HEADS,
        note="norms of queries and keys over all heads",
    ),
    exhibit(
        "DeepSeek-V3",
        decoder("DeepseekV3", **LATENT, **ROUTED, first_k_dense_replace=1),
        {"**.kv_a_proj_with_mqa.weight": "inner n->n"} | SPARSE | MLP,
        note="latent attention; a dense first layer, then shared and routed experts",
    ),
    exhibit(
        "Mamba",
        mamba,
        MAMBA,
        tied=("backbone.norm_f.weight",),
        read=("**.dt_proj.weight",),
        note="state space; tied",
    ),
    exhibit(
        "Mamba-2",
        mamba2,
        MAMBA,
        note="state space with heads; embeddings begin small beside what blocks write",
    ),
    exhibit(
        "RWKV",
        rwkv,
        RWKV,
        note="recurrent; embeddings of 1e-4 before a norm, which makes their gradients large",
    ),
    exhibit("xLSTM", xlstm, XLSTM, note="matrix memory with gates of every head"),
]
