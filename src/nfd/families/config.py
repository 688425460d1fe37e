"""``from_config``: models of Hugging Face's transformers at every size, from one config."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from nfd.core.checks import check_count
from nfd.core.errors import InputError, InputTypeError
from nfd.core.random import derive
from nfd.core.words import nearest

# Names of fields that follow width, the numbers of heads first, or depth.
_LIKE = {
    "width": re.compile(
        r"(.+_)?(n|num)_(.+_)?heads?|(.+_)?attention_heads|(mamba_)?n_groups"
        r"|(.+_)?((hidden|intermediate|embedding|bottleneck|pooler_output)_sizes?|ffn(_hidden)?_size|word_embed_proj_dim"
        r"|(hidden|intermediate|embed|embedding|emb|ffn|mlp|expert)_dim|dim_ff|d_?ff|d_(model|inner|ssm)|n_(inner|embd)"
        r"|lru_width|(lora|time_step|dt)_rank)|intermediate_size_mlp|dim"
    ),
    "depth": re.compile(r"((en|de)coder_)?((n|num)_)?((hidden|encoder|decoder)_)?layers?"),
}
# Tasks of the auto classes, and of the bare models; the first that knows a config decides.
_TASKS = (
    *("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM", "MODEL_FOR_SPEECH_SEQ_2_SEQ", "MODEL_FOR_MULTIMODAL_LM"),
    *("MODEL_FOR_MASKED_LM", "MODEL_FOR_CAUSAL_LM", "MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION"),
    *("MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL"),
)


def from_config(
    config: Any,
    *,
    width: str | Sequence[str] = "hidden_size",
    depth: str | Sequence[str] = "num_hidden_layers",
    scale: Sequence[str] = (),
    keep: Sequence[str] = (),
    model_class: Callable[[Any], nn.Module] | None = None,
) -> Callable[..., nn.Module]:
    """Make ``make_model(width, depth)`` from a config of Hugging Face's transformers.

    Its models have new random weights. What is tied to the width keeps its ratio to it, in the
    configs that hold a field of ``width``: feed-forward, expert and embedding sizes, ranks, and the
    numbers of heads and of key-value heads, unless they are 1. So heads keep their size. Other
    sizes stay: vocabularies, states, projections out of the model. Both depths of an
    encoder-decoder keep their ratio. Lists with an entry per layer, as ``layer_types``, and of
    places of layers, as ``moe_layers``, repeat their pattern or are cut: take depths that hold it
    whole. Fields are recognised by their names in transformers 5.

    Dropout stays as it is, and adds noise to all that is measured: set it to 0 in the config.
    Weights are in float32.

    Args:
        config: as ``AutoConfig.from_pretrained`` returns it. It is copied.
        width, depth: the field that each is, or several: the first is the size, the others keep
            their ratio to it. Dots lead into sub-configs: ``width=("text_config.hidden_size",
            "vision_config.hidden_size")``. Of a list with a number per stage, as ConvNeXt's
            ``hidden_sizes`` and ``depths``, the first is the size.
        scale: further fields that keep their ratio to the width.
        keep: fields that stay as they are.
        model_class: takes a config. By default the first of ``config.architectures``; where none is
            set, the class of the first task that fits: sequence to sequence, images with text,
            masked or causal language, images.

    Returns:
        A function that can be pickled. Further keywords set fields: ``make_model(256, 4,
        num_local_experts=8)``.

    Raises:
        ValueError, TypeError: naming the field; of a size, with the smallest at which everything
            divides.

    Example::

        from transformers import LlamaConfig

        # or of AutoConfig.from_pretrained(...)
        make_model = nfd.from_config(LlamaConfig(vocab_size=256))
        plan = nfd.plan(make_model(256, 4), make_model=make_model, base=(128, 2))
    """
    from transformers import PretrainedConfig

    if not isinstance(config, PretrainedConfig):
        raise InputTypeError(
            "config must be a config of transformers, as AutoConfig.from_pretrained returns it, or "
            f"model.config; got a {type(config).__name__}."
        )
    for argument, names in (("scale", scale), ("keep", keep)):
        if isinstance(names, str):
            raise InputTypeError(f"{argument} must be a list of names of fields; got {names!r}.")
    _check_names_fields("width", width)
    _check_names_fields("depth", depth)
    is_instance = isinstance(model_class, nn.Module)
    if model_class is not None and (is_instance or not callable(model_class)):
        raise InputTypeError(
            f"model_class must be a class that takes a config; got {model_class!r}."
        )
    config = copy.deepcopy(config)
    kept = {_own_name(config, name) for name in keep}
    widths = _tied(config, "width", width, kept, scale)
    depths = _tied(config, "depth", depth, kept, ())
    return _FromConfig(config, widths, depths, model_class or _class_of(config))


def _check_names_fields(argument: str, names: Any) -> None:
    """Raise TypeError unless an argument is the name of a field, or several."""
    several = names
    if isinstance(names, str | int):
        several = [names]
    if not all(isinstance(name, str) for name in several):
        raise InputTypeError(
            f"{argument} must name a field, such as 'hidden_size'; got {names!r}. make_model "
            "takes the size itself."
        )


def _fields(config: Any, path: str = "") -> dict[str, Any]:
    """List the fields of a config and its sub-configs, under dotted names."""
    fields = dict[str, Any]()
    for name, value in vars(config).items():
        if not name.startswith("_"):
            fields[path + name] = value
    for name, value in vars(config).items():
        if hasattr(value, "attribute_map"):
            fields |= _fields(value, f"{path}{name}.")
    return fields


def _place(config: Any, name: str) -> tuple[Any, str]:
    """Return the config or sub-config in which a field lies, and its name there."""
    *path, last = name.split(".")
    for part in path:
        config = getattr(config, part, None)
    return config, getattr(config, "attribute_map", {}).get(last, last)


def _own_name(config: Any, name: str) -> str:
    """Return the config's name for a field; raise ValueError where it has none."""
    place, last = _place(config, name)
    if not hasattr(place, last):
        raise InputError(
            f"{type(config).__name__} has no field {name!r}.{nearest(name, _fields(config))}"
        )
    return ".".join([*name.split(".")[:-1], last])


def _numbers(value: Any) -> list[int]:
    """List a whole number, or the whole numbers of several stages; nothing for anything else."""
    numbers = [value]
    if isinstance(value, list | tuple):
        numbers = list(value)
    are_whole = all(type(number) is int for number in numbers)
    return numbers if are_whole else []


def _tied(
    config: Any, axis: str, named: str | Sequence[str], kept: set[str], more: Sequence[str]
) -> dict[str, Any]:
    """List the fields that keep their ratio to the first.

    First those that are named, then others like them beside these.
    """
    if isinstance(named, str):
        named = [named]
    names = [_own_name(config, name) for name in named]
    places = {name.rpartition(".")[0] for name in names}
    names += [_own_name(config, name) for name in more]
    fields = _fields(config)
    for name in names:
        if not _numbers(fields.get(name)):
            raise InputTypeError(
                f"{name} must be a whole number to follow {axis}; it is {fields.get(name)!r}."
            )
    for name, value in fields.items():
        place, _, last = name.rpartition(".")
        is_beside = place in places and name not in kept
        is_above_one = max(_numbers(value), default=0) > 1
        if is_beside and is_above_one and _LIKE[axis].fullmatch(last):
            names.append(name)
    return {name: fields[name] for name in names}


def _class_of(config: Any) -> Callable[[Any], nn.Module]:
    """Return the class of a config's architectures; without them, of the first task that fits."""
    import transformers
    from transformers.models.auto import modeling_auto

    names = list[str]()
    if config.architectures:
        names += config.architectures
    else:
        for task in _TASKS:
            name = getattr(modeling_auto, f"{task}_MAPPING_NAMES", {}).get(config.model_type)
            if name:
                names.append(name)
    first = names[0] if names else None
    model_class: Callable[[Any], nn.Module] | None = getattr(transformers, str(first), None)
    if model_class is None:
        raise InputError(
            f"transformers has no class {first!r} for a {type(config).__name__}: pass model_class."
        )
    return model_class


@dataclass
class _FromConfig:
    """A function ``make_model``, as an object, so that it can be pickled."""

    config: Any
    widths: Mapping[str, Any]
    depths: Mapping[str, Any]
    model_class: Callable[[Any], nn.Module]

    # Stores know families by this name: two configs must not share it.
    def __post_init__(self) -> None:
        content = f"{self.config.to_dict()} {[*self.widths]} {[*self.depths]}"
        kind = getattr(self.model_class, "__qualname__", type(self.config).__qualname__)
        self.__qualname__ = f"{kind}-{derive(0, content):x}"

    def __call__(self, width: int, depth: int, **more: Any) -> nn.Module:
        config = copy.deepcopy(self.config)
        chosen = {_own_name(config, name): value for name, value in more.items()}
        fields = _scaled("width", width, self.widths, chosen)
        fields |= _scaled("depth", depth, self.depths, chosen)
        fields |= chosen
        fields |= self._lists_of_layers(config, fields, chosen)
        for name, value in fields.items():
            setattr(*_place(config, name), value)
        heads = getattr(config, "num_attention_heads", None)
        groups = getattr(config, "num_key_value_heads", None)
        if isinstance(heads, int) and isinstance(groups, int) and heads % groups:
            raise InputError(
                f"{groups} num_key_value_heads must divide {heads} num_attention_heads at "
                f"{next(iter(self.widths))} {width}. Take another width, or do not keep them."
            )
        # An auto class makes models by a method.
        make = getattr(self.model_class, "from_config", self.model_class)
        model: nn.Module = make(config)
        return model

    def _lists_of_layers(
        self, config: Any, fields: Mapping[str, Any], chosen: Collection[str]
    ) -> dict[str, Any]:
        """Fit lists with an entry per layer, and lists of places of layers, to the new depth."""
        lists = dict[str, Any]()
        for name, value in _fields(config).items():
            place, _, last = name.rpartition(".")
            is_of_layers = "layer" in last or "_types" in last
            if not is_of_layers or not isinstance(value, list | tuple) or name in chosen:
                continue
            for depth_field, layers in self.depths.items():
                if depth_field.rpartition(".")[0] != place:
                    continue
                if _counts_layers(value, layers):
                    lists[name] = type(value)(_periodic(value, layers, fields[depth_field]))
                elif len(value) == layers:
                    lists[name] = _repeated(value, fields[depth_field])
        return lists


def _scaled(
    axis: str, size: int, sizes: Mapping[str, Any], chosen: Collection[str]
) -> dict[str, Any]:
    """Return the fields of a size, without those that the caller chose.

    Raises:
        ValueError: where one would not be a whole number.
    """
    size = check_count(axis, size)
    first = next(iter(sizes))
    if first in chosen:
        raise InputError(f"{first} is the {axis}: it is given twice.")
    whole = _numbers(sizes[first])[0]
    scaled = dict[str, Any]()
    numbers = {name: _numbers(value) for name, value in sizes.items() if name not in chosen}
    step = 1
    for several in numbers.values():
        step = math.lcm(step, *(whole // math.gcd(whole, number) for number in several))
    for name, several in numbers.items():
        if any(number * size % whole for number in several):
            raise InputError(
                f"{axis} must be a multiple of {step}, so that all that follows it stays whole; "
                f"got {size}: {name} is {sizes[name]} at {whole}. To change that, set {name} in "
                "the config, or name it in keep."
            )
        new = [number * size // whole for number in several]
        scaled[name] = new[0] if isinstance(sizes[name], int) else type(sizes[name])(new)
    return scaled


def _counts_layers(entries: Sequence[Any], layers: Any) -> bool:
    """Whether a list holds places of layers, as Llama 4's ``moe_layers`` does.

    These are whole numbers that rise, all below the depth. A list that starts at 0 and holds all
    layers, as in a model with experts in every layer, is read so too.
    """
    if type(layers) is not int or not entries or not all(type(entry) is int for entry in entries):
        return False
    return list(entries) == sorted(set(entries)) and entries[0] >= 0 and entries[-1] < layers


def _periodic(places: Sequence[int], layers: int, depth: int) -> list[int]:
    """Return the places of layers at another depth.

    Places of a pattern that repeats go on; others, as of a first dense layer, stay.
    """
    chosen = [layer in places for layer in range(layers)]
    period = next(p for p in range(1, layers + 1) if chosen[p:] == chosen[:-p])
    if 2 * period > layers and layers > 1:
        return [place for place in places if place < depth]
    return [layer for layer in range(depth) if chosen[layer % period]]


def _repeated(entries: Sequence[Any], length: int) -> Sequence[Any]:
    """Repeat the shortest pattern of the entries, to this length."""
    period = next(p for p in range(1, len(entries) + 1) if entries[p:] == entries[:-p])
    return [entries[index % period] for index in range(length)]
