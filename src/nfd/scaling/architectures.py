"""Architectures whose tensors are known by name: blocks, roles and the order of their norms.

An architecture matches a module anywhere inside the user's model, by its class. Patterns are relative to that module,
one ``*`` per part of a name. Tests hold every recipe against the rank-one probe.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import nn

from nfd.scaling.rules import Role
from nfd.scaling.tensors import modules, tensors


@dataclass(frozen=True)
class Architecture:
    """A recipe: class names that it fits, the pattern of its blocks, and roles by pattern, the first match winning."""

    name: str
    classes: tuple[str, ...]
    blocks: str
    roles: Mapping[str, Role]
    attention: str | None = None  # modules whose logits carry 1 / sqrt(head size)
    query: str | None = None  # what makes the queries alone, under each of them
    post_norm: bool = False


@dataclass(frozen=True)
class PostNorm:
    """A part of a model that normalises after adding, and whether ``norm_first=True`` would build it otherwise."""

    name: str
    has_norm_first: bool


@dataclass(frozen=True)
class Known:
    """What architectures say of one model, by canonical name."""

    roles: dict[str, Role] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    post_norm: list[PostNorm] = field(default_factory=list)
    attention: dict[str, int] = field(default_factory=dict)  # module, of the queries where there is one -> head size


_LLAMA: dict[str, Role] = {
    "embed_tokens.weight": "embedding",
    "layers.*.self_attn.o_proj.*": "outer",
    "layers.*.mlp.down_proj.*": "outer",
    "layers.**": "inner",
    "norm.*": "vector",
}

ARCHITECTURES = (
    Architecture(
        "nn.TransformerEncoder",
        ("torch.nn.modules.transformer.TransformerEncoder",),
        "layers.*",
        {
            "layers.*.self_attn.out_proj.*": "outer",
            "layers.*.linear2.*": "outer",
            "layers.**": "inner",
            "norm.*": "vector",
        },
        attention="layers.*.self_attn",
    ),
    Architecture(
        "GPT-2",
        ("transformers.models.gpt2.modeling_gpt2.GPT2Model",),
        "h.*",
        {
            "wte.weight": "embedding",
            "wpe.weight": "embedding",
            "h.*.attn.c_proj.*": "outer",
            "h.*.mlp.c_proj.*": "outer",
            "h.*.crossattention.c_proj.*": "outer",
            "h.**": "inner",
            "ln_f.*": "vector",
        },
        attention="h.*.attn",
    ),
    Architecture(
        "Llama",
        (
            "transformers.models.llama.modeling_llama.LlamaModel",
            "transformers.models.mistral.modeling_mistral.MistralModel",
            "transformers.models.qwen2.modeling_qwen2.Qwen2Model",
            "transformers.models.qwen3.modeling_qwen3.Qwen3Model",
        ),
        "layers.*",
        _LLAMA,
        attention="layers.*.self_attn",
        query="q_proj",
    ),
    Architecture(
        "ViT",
        ("transformers.models.vit.modeling_vit.ViTModel",),
        "layers.*",
        {
            "embeddings.patch_embeddings.projection.*": "input",
            "embeddings.*": "embedding",
            "layers.*.attention.o_proj.*": "outer",
            "layers.*.mlp.fc2.*": "outer",
            "layers.**": "inner",
            "layernorm.*": "vector",
            "pooler.dense.*": "hidden",
        },
        attention="layers.*.attention",
        query="q_proj",
    ),
    Architecture(  # the same model in older versions of transformers
        "ViT",
        ("transformers.models.vit.modeling_vit.ViTModel",),
        "encoder.layer.*",
        {
            "embeddings.patch_embeddings.projection.*": "input",
            "embeddings.*": "embedding",
            "encoder.layer.*.attention.output.dense.*": "outer",
            "encoder.layer.*.output.dense.*": "outer",
            "encoder.layer.**": "inner",
            "layernorm.*": "vector",
            "pooler.dense.*": "hidden",
        },
        attention="encoder.layer.*.attention.attention",
        query="query",
    ),
    Architecture(
        "BERT",
        ("transformers.models.bert.modeling_bert.BertModel",),
        "encoder.layer.*",
        {
            "embeddings.LayerNorm.*": "vector",
            "embeddings.*.weight": "embedding",
            "encoder.layer.**": "hidden",
            "pooler.dense.*": "hidden",
        },
        attention="encoder.layer.*.attention.self",
        query="query",
        post_norm=True,
    ),
)


def matches(name: str, pattern: str) -> bool:
    """Whether a dotted name fits a pattern: ``*`` for any one part, a first or last ``**`` for one or more."""
    parts, wanted = name.split("."), pattern.split(".")
    if "**" in (wanted[0], wanted[-1]) and len(parts) < len(wanted):
        return False
    if wanted[-1] == "**":
        parts, wanted = parts[: len(wanted) - 1], wanted[:-1]
    elif wanted[0] == "**":
        parts, wanted = parts[len(parts) - len(wanted) + 1 :], wanted[1:]
    return len(parts) == len(wanted) and all(fnmatchcase(p, w) for p, w in zip(parts, wanted, strict=True))


def known(model: nn.Module) -> Known:
    """Everything that architectures know of the model and of the modules in it."""
    parts = Known()
    for prefix, module, architecture in _architectures(model):
        _read(parts, prefix, module, architecture)
    return parts


def _architectures(model: nn.Module) -> Iterator[tuple[str, nn.Module, Architecture]]:
    for name, module in modules(model).items():
        for architecture in ARCHITECTURES:
            if _is_one_of(module, architecture.classes) and _modules(module, architecture.blocks):
                yield name, module, architecture


def _read(parts: Known, prefix: str, module: nn.Module, architecture: Architecture) -> None:
    start = f"{prefix}." if prefix else ""
    post_norm = architecture.post_norm or not all(
        getattr(m, "norm_first", True) for m in _modules(module, architecture.blocks).values()
    )
    for name in tensors(module):
        role = next((r for pattern, r in architecture.roles.items() if matches(name, pattern)), None)
        if role is not None:
            in_block = matches(name, f"{architecture.blocks}.**")
            parts.roles[start + name] = "hidden" if post_norm and in_block else role
            parts.sources[start + name] = f"recipe for {architecture.name}"
    parts.blocks.extend(start + name for name in _modules(module, architecture.blocks))
    if post_norm:
        where = f" at {prefix!r}" if prefix else ""
        parts.post_norm.append(PostNorm(f"{architecture.name}{where}", not architecture.post_norm))
    if architecture.attention is not None:
        for name, attention in _modules(module, architecture.attention).items():
            size = _head_size(attention)
            if size is not None:
                parts.attention[start + name + (f".{architecture.query}" if architecture.query else "")] = size


def _modules(module: nn.Module, pattern: str) -> dict[str, nn.Module]:
    return {name: m for name, m in modules(module).items() if name and matches(name, pattern)}


def _head_size(attention: nn.Module) -> int | None:
    for name in ("head_dim", "attention_head_size"):
        size = getattr(attention, name, None)
        if isinstance(size, int):
            return size
    return None


def _is_one_of(module: nn.Module, classes: Container[str]) -> bool:
    """Whether a module is of one of these classes, or of a subclass; they are imported only where they are in use."""
    return any(f"{kind.__module__}.{kind.__qualname__}" in classes for kind in type(module).mro())
