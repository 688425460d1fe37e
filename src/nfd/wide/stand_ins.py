"""Linear maps in a model: which tensors are their weights, and the layers that replace them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nfd.core.errors import InputError
from nfd.scaling.model import is_conv1d
from nfd.wide.linear import FactoredLinear, Unstored

# ---- Linear maps in a model: which tensors are their weights, and the layers that replace them


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_FORWARDS = [kind.forward for kind in _CONVOLUTIONS]


@dataclass(frozen=True)
class LinearMap:
    """A module that maps its inputs, or their patches, by ``W`` [out_features, in_features], its parameter ``key``."""

    module: nn.Module
    key: str = "weight"

    @property
    def weight(self) -> nn.Parameter:
        """W as the module stores it."""
        return cast(nn.Parameter, getattr(self.module, self.key))

    @property
    def features(self) -> tuple[int, int]:
        """``in_features, out_features``."""
        sizes = tuple(self.weight.shape)
        return (sizes[0], sizes[1]) if is_conv1d(self.module) else (self.weight[0].numel(), sizes[0])

    @property
    def matrix(self) -> Tensor:
        """W as it is now, ``[out_features, in_features]``."""
        weight = self.weight.detach()
        return weight.T if is_conv1d(self.module) else weight.flatten(1)

    def stand_in(self, layer: FactoredLinear) -> nn.Module:
        """What takes the place of the module: the layer, with the module's own bias; on patches of a convolution.

        An attention takes the layer in place of its parameter and stays what it is otherwise.
        """
        layer.train(self.module.training)
        if isinstance(self.module, nn.MultiheadAttention):
            return DeferredAttention.with_layer(self.module, self.key, layer)
        layer.bias = cast("nn.Parameter | None", self.module.bias)
        layer.__dict__["original"] = self._without_numbers()  # beside the model, not in it
        layer.__dict__["weight"] = Unstored(layer)
        if is_conv1d(self.module):  # rules that look at the shape of a matrix see it as it was stored
            layer.update.stands_for = layer.scale.stands_for = self.features
        return DeferredConv(layer) if isinstance(self.module, _CONVOLUTIONS) else layer

    def store(self, weight: Tensor, bias: nn.Parameter | None) -> nn.Module:
        """The module with these weights [out_features, in_features], and this bias."""
        stored = copy.copy(self.module)
        laid = weight.T if is_conv1d(stored) else weight
        stored._parameters = {"weight": nn.Parameter(laid.reshape(self.weight.shape).contiguous()), "bias": bias}
        return stored

    def _without_numbers(self) -> nn.Module:
        twin = copy.copy(self.module)
        twin._parameters = {
            name: None if p is None else nn.Parameter(torch.empty_like(p, device="meta"))
            for name, p in self.module._parameters.items()
        }
        return twin


def linear_maps(module: nn.Module | None) -> list[LinearMap]:
    """The linear maps whose weights a module holds itself; none where layers cannot stand in for them."""
    forward = getattr(type(module), "forward", None)
    if isinstance(module, nn.MultiheadAttention):
        return [LinearMap(module, key) for key in projections(module)]
    if isinstance(module, _CONVOLUTIONS):
        return [LinearMap(module)] if module.groups == 1 and forward in _FORWARDS else []
    return [LinearMap(module)] if module is not None and (forward is nn.Linear.forward or is_conv1d(module)) else []


def replaced(
    model: nn.Module, maps: Mapping[str, LinearMap], layer_for: Callable[[str, LinearMap], FactoredLinear]
) -> nn.Module:
    """The model with a layer in place of each of these maps, made by ``layer_for`` of its name and the map."""
    places = {id(module): name for name, module in model.named_modules()}  # with the names of wrappers
    for name, linear in maps.items():
        model = placed(model, places[id(linear.module)], linear.stand_in(layer_for(name, linear)))
    return model


def placed(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """The model with this module in a place of it; an attention around it reads no weights from then on."""
    if not name:
        return module
    model.set_submodule(name, module)
    around = model.get_submodule(name.rpartition(".")[0])
    if isinstance(around, nn.MultiheadAttention):
        without_reading(around)
    return model


# ---- ``nn.MultiheadAttention`` whose projections store no weights


_SUFFIX = "_weight"  # of the parameters that hold projections


class DeferredAttention(nn.MultiheadAttention):
    """An attention that asks ``in_proj``, or ``q_proj``, ``k_proj`` and ``v_proj``, where these are layers.

    Queries, keys and values that are one tensor ask the common matrix once, others once each.
    """

    @staticmethod
    def with_layer(attention: nn.MultiheadAttention, key: str, layer: FactoredLinear) -> DeferredAttention:
        """The same module with a layer in place of the parameter ``key``; it becomes a ``DeferredAttention``."""
        taken = without_reading(attention)
        taken._parameters[key] = None
        taken.__dict__[key] = Unstored(layer)
        layer.suffix = _SUFFIX
        taken.add_module(key.removesuffix(_SUFFIX), layer)
        return taken

    @property
    def layers(self) -> dict[str, FactoredLinear]:
        """Its layers without stored weights, by the parameters that they stand for."""
        own = {f"{name}{_SUFFIX}": module for name, module in self._modules.items() if name != "out_proj"}
        return {key: layer for key, layer in own.items() if isinstance(layer, FactoredLinear)}

    def store(self, key: str, weight: Tensor) -> None:
        """Hold this weight as the parameter ``key`` again, in place of the layer."""
        del self._modules[key.removesuffix(_SUFFIX)]
        del self.__dict__[key]
        self._parameters[key] = nn.Parameter(weight)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``nn.MultiheadAttention``; with a mask, ``is_causal`` says nothing more."""
        if query.is_nested or key.is_nested or value.is_nested:
            raise InputError(
                "An attention without stored weights takes no nested tensors. Build nn.TransformerEncoder with "
                "enable_nested_tensor=False, or pad the inputs."
            )
        if is_causal and attn_mask is None:
            raise InputError("is_causal=True says that attn_mask is causal; got no attn_mask. Pass one.")
        q, k, v = (self._heads(x) for x in self._projected(query, key, value))
        mask = self._mask(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
            weights = functional.dropout((logits if mask is None else logits + mask).softmax(-1), dropout)
            answer = weights @ v
        else:
            answer = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        out: Tensor = self.out_proj(self._merged(answer, query))
        if weights is None:
            return out, None
        weights = weights.mean(1) if average_attn_weights else weights
        return out, weights if query.dim() == 3 else weights.squeeze(0)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values of the heads, in the layout of the inputs."""
        given, bias = (query, key, value), self.in_proj_bias
        if not self._qkv_same_embed_dim:
            answers = [self._asked(name, x) for name, x in zip(("q_proj", "k_proj", "v_proj"), given, strict=True)]
        else:
            distinct = {id(x): self._asked("in_proj", x) for x in {id(x): x for x in given}.values()}
            answers = [distinct[id(x)].chunk(3, -1)[part] for part, x in enumerate(given)]
        if bias is None:
            return answers
        return [answer + own for answer, own in zip(answers, bias.chunk(3), strict=True)]

    def _asked(self, name: str, x: Tensor) -> Tensor:
        """The projection of this name, from a layer or from a stored weight."""
        layer: Any = self._modules.get(name)
        return functional.linear(x, getattr(self, f"{name}{_SUFFIX}")) if layer is None else layer(x)

    def _heads(self, x: Tensor) -> Tensor:
        """``[batch, heads, positions, head_dim]``."""
        x = x.unsqueeze(0) if x.dim() == 2 else x if self.batch_first else x.transpose(0, 1)
        return x.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _merged(self, answer: Tensor, query: Tensor) -> Tensor:
        """The heads of every position together, in the layout of the queries."""
        x = answer.transpose(1, 2).flatten(2)
        return x.squeeze(0) if query.dim() == 2 else x if self.batch_first else x.transpose(0, 1)

    def _mask(self, attn_mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
        """What both masks add to the logits, ``[batch, heads, positions, keys]`` or what expands to it."""
        parts = []
        if attn_mask is not None:
            own = attn_mask.view(*q.shape[:2], *attn_mask.shape[1:]) if attn_mask.dim() == 3 else attn_mask
            parts.append(_added(own, q.dtype))
        if padding is not None:
            parts.append(_added(padding.view(len(q), 1, 1, -1), q.dtype))
        return sum(parts[1:], parts[0]) if parts else None


def without_reading(attention: nn.MultiheadAttention) -> DeferredAttention:
    """The same module as one that asks its projections instead of reading their weights."""
    attention.__class__ = DeferredAttention
    assert isinstance(attention, DeferredAttention)
    return attention


def reading(attention: DeferredAttention) -> None:
    """Make it PyTorch's own again, once all weights are stored."""
    attention.__class__ = nn.MultiheadAttention  # type: ignore[assignment]


def projections(attention: nn.MultiheadAttention) -> list[str]:
    """The parameters of an attention for which layers can stand in; none where it adds keys of its own, or is of
    another class, which may read them in its own way."""
    own = type(attention) in (nn.MultiheadAttention, DeferredAttention)
    if not own or attention.bias_k is not None or attention.add_zero_attn:
        return []
    names = [f"{name}{_SUFFIX}" for name in ("in_proj", "q_proj", "k_proj", "v_proj")]
    return [name for name in names if attention._parameters.get(name) is not None]


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask as what is added to logits: minus infinity where a true-or-false one is true."""
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(mask, -torch.inf)


# ---- Convolutions without stored weights: a linear layer on every patch


class DeferredConv(nn.Module):
    """A convolution of one or two dimensions: the layer ``linear`` on every patch, so that ranks count patches."""

    def __init__(self, linear: FactoredLinear) -> None:
        super().__init__()
        self.linear = linear

    @property
    def weight(self) -> Unstored:
        """Shape, type and device of the weight that is not stored."""
        return Unstored(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., channels, *size]``, as the ``nn.Conv1d`` or ``nn.Conv2d`` that it replaced."""
        conv: Any = self.linear.original
        kernel, dilation, stride = conv.kernel_size, conv.dilation, conv.stride
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = nn.functional.pad(x, conv._reversed_padding_repeated_twice, mode)
        size = x.shape[-len(kernel) :]
        places = [
            (size_ - dilation_ * (kernel_ - 1) - 1) // stride_ + 1
            for size_, kernel_, dilation_, stride_ in zip(size, kernel, dilation, stride, strict=True)
        ]
        if len(kernel) == 1:  # unfold takes images alone: one of height 1
            x, kernel, dilation, stride = x.unsqueeze(-2), (1, *kernel), (1, *dilation), (1, *stride)
        patches = nn.functional.unfold(x, kernel, dilation, 0, stride)
        y: Tensor = self.linear(patches.transpose(-1, -2))
        return y.transpose(-1, -2).reshape(*y.shape[:-2], -1, *places)
