"""Model families whose tensors are known by name: blocks, roles and the order of their norms.

A family matches a module anywhere inside the user's model, by its class; patterns are relative to that module, one
``*`` per part of a name. Tests hold every recipe against the rank-one probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.rules import Power, Role
from nfd.scaling.self_scaled import SelfScaled
from nfd.scaling.tensors import modules, tensors


@dataclass(frozen=True)
class Family:
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
    """What families say of one model, by canonical name."""

    roles: dict[str, Role] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    blocks: list[str] = field(default_factory=list)
    post_norm: list[PostNorm] = field(default_factory=list)
    attention: dict[str, int] = field(default_factory=dict)  # module, of the queries where there is one -> head size
    multipliers: dict[str, Power] = field(default_factory=dict)  # in the forward pass already
    network: SelfScaled | None = None  # the model itself, where it has its scales in its forward pass


_LLAMA: dict[str, Role] = {
    "embed_tokens.weight": "embedding",
    "layers.*.self_attn.o_proj.*": "outer",
    "layers.*.mlp.down_proj.*": "outer",
    "layers.**": "inner",
    "norm.*": "vector",
}

FAMILIES = (
    Family(
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
    Family(
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
    Family(
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
    Family(
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
    Family(  # the same model in older versions of transformers
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
    Family(
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
    """Everything that families know of the model and of the modules in it."""
    found = Known()
    for prefix, module, family in _families(model):
        _read(found, prefix, module, family)
    for prefix, module in modules(model).items():
        if isinstance(module, SelfScaled):
            if prefix:
                raise InputError(f"A network of nfd.nets must be the whole model; got one inside, as {prefix!r}.")
            return _own(module)
    return found


def _families(model: nn.Module) -> Iterator[tuple[str, nn.Module, Family]]:
    for name, module in modules(model).items():
        for family in FAMILIES:
            if _class_name(module) in family.classes and _modules(module, family.blocks):
                yield name, module, family


def _read(found: Known, prefix: str, module: nn.Module, family: Family) -> None:
    start = f"{prefix}." if prefix else ""
    post_norm = family.post_norm or not all(
        getattr(m, "norm_first", True) for m in _modules(module, family.blocks).values()
    )
    for name in tensors(module):
        role = next((r for pattern, r in family.roles.items() if matches(name, pattern)), None)
        if role is not None:
            in_block = matches(name, f"{family.blocks}.**")
            found.roles[start + name] = "hidden" if post_norm and in_block else role
            found.sources[start + name] = f"recipe for {family.name}"
    found.blocks.extend(start + name for name in _modules(module, family.blocks))
    if post_norm:
        found.post_norm.append(PostNorm(f"{family.name}{f' at {prefix!r}' if prefix else ''}", not family.post_norm))
    if family.attention is not None:
        for name, attention in _modules(module, family.attention).items():
            size = _head_size(attention)
            if size is not None:
                found.attention[start + name + (f".{family.query}" if family.query else "")] = size


def _own(net: SelfScaled) -> Known:
    """A network of ``nfd.nets``: entries are N(0, 1) and every scale is in its forward pass."""
    roles, kind = net.settled_roles(), type(net)
    source = f"nfd.{kind.__name__}" if kind.__module__.startswith("nfd.") else kind.__name__
    return Known(
        roles=roles,
        sources=dict.fromkeys(roles, source),
        blocks=net.block_names(),
        multipliers={name: net.multiplier(role) for name, role in roles.items() if net.is_standard_normal(name)},
        network=net,
    )


def _modules(module: nn.Module, pattern: str) -> dict[str, nn.Module]:
    return {name: m for name, m in modules(module).items() if name and matches(name, pattern)}


def _head_size(attention: nn.Module) -> int | None:
    for name in ("head_dim", "attention_head_size"):
        size = getattr(attention, name, None)
        if isinstance(size, int):
            return size
    return None


def _class_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
