"""Linear maps in a model, and the modules with layers that stand in for them."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from nfd.core.errors import InputError
from nfd.scaling.model import is_conv1d
from nfd.wide.layers import FactoredLinear, Unstored

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
_FORWARDS = [kind.forward for kind in _CONVOLUTIONS]
# The end of the names of an attention's parameters that hold projections.
_SUFFIX = "_weight"


@dataclass(frozen=True)
class LinearMap:
    """A module that maps its inputs, or their patches, by its parameter ``key``.

    The parameter holds ``W`` [out_features, in_features].
    """

    module: nn.Module
    key: str = "weight"

    @property
    def weight(self) -> nn.Parameter:
        """W as the module stores it."""
        return cast(nn.Parameter, getattr(self.module, self.key))

    @property
    def features(self) -> tuple[int, int]:
        """``in_features, out_features``."""
        rows, columns, *_ = self.weight.shape
        if is_conv1d(self.module):
            return rows, columns
        return self.weight[0].numel(), rows

    def stand_in(self, layer: FactoredLinear) -> nn.Module:
        """Return what takes the place of the module: the layer, with the module's bias.

        In place of a convolution the layer is asked patch by patch. An attention takes the layer in
        place of its parameter and stays what it is otherwise.
        """
        module = self.module
        layer.train(module.training)
        if isinstance(module, nn.MultiheadAttention):
            module.__class__ = DeferredAttention
            module._parameters[self.key] = None
            layer.suffix = _SUFFIX
            module.add_module(self.key.removesuffix(_SUFFIX), layer)
            return module
        layer.bias = cast("nn.Parameter | None", module.bias)
        # In __dict__, the original module is not part of the model.
        layer.__dict__["original"] = _without_numbers(module)
        if is_conv1d(module):
            # Rules that look at the shape of a matrix see it as it was stored.
            layer.update.stands_for = self.features
            layer.scale.stands_for = self.features
        return DeferredConv(layer) if isinstance(module, _CONVOLUTIONS) else layer

    def store(self, weight: Tensor, bias: nn.Parameter | None) -> nn.Module:
        """Return the module with these weights [out_features, in_features], and this bias."""
        stored = copy.copy(self.module)
        as_stored = weight.T if is_conv1d(stored) else weight
        stored._parameters = {
            "weight": nn.Parameter(as_stored.reshape(self.weight.shape).contiguous()),
            "bias": bias,
        }
        return stored


def _without_numbers(module: nn.Module) -> nn.Module:
    """A copy of a module whose parameters are on the meta device."""
    copied = copy.copy(module)
    copied._parameters = {
        name: None if p is None else nn.Parameter(torch.empty_like(p, device="meta"))
        for name, p in module._parameters.items()
    }
    return copied


def linear_maps(module: nn.Module | None) -> list[LinearMap]:
    """List the linear maps whose weights a module holds itself.

    None where layers cannot stand in for them: in an attention that adds keys of its own, in
    convolutions with groups, where the weight is computed from other tensors, and in subclasses,
    which may read weights in their own way.
    """
    if module is None:
        return []
    forward = getattr(type(module), "forward", None)
    keys = list[str]()
    if isinstance(module, nn.MultiheadAttention):
        is_known_class = type(module) in (nn.MultiheadAttention, DeferredAttention)
        if is_known_class and module.bias_k is None and not module.add_zero_attn:
            keys = [f"{name}{_SUFFIX}" for name in ("in_proj", "q_proj", "k_proj", "v_proj")]
    elif isinstance(module, _CONVOLUTIONS):
        keys = ["weight"] if module.groups == 1 and forward in _FORWARDS else []
    elif forward is nn.Linear.forward or is_conv1d(module):
        keys = ["weight"]
    return [LinearMap(module, key) for key in keys if module._parameters.get(key) is not None]


def placed(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module in a place of the model, and return the model.

    An attention around it reads no weights from then on.
    """
    if not name:
        return module
    model.set_submodule(name, module)
    around = model.get_submodule(name.rpartition(".")[0])
    if isinstance(around, nn.MultiheadAttention):
        around.__class__ = DeferredAttention
    return model


class DeferredConv(nn.Module):
    """A convolution of one or two dimensions, which asks the layer ``linear`` of every patch.

    So ranks count patches.
    """

    def __init__(self, linear: FactoredLinear) -> None:
        super().__init__()
        self.linear = linear

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            # Models read settings of the convolution, such as its stride.
            linear: Any = super().__getattr__("linear")
            return getattr(linear.original, name)

    @property
    def weight(self) -> Unstored:
        """Shape, type and device of the weight that is not stored."""
        return self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        """``[..., channels, *size]``, as the ``nn.Conv1d`` or ``nn.Conv2d`` that it replaced."""
        conv: Any = self.linear.original
        kernel = conv.kernel_size
        dilation = conv.dilation
        stride = conv.stride
        mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
        x = functional.pad(x, conv._reversed_padding_repeated_twice, mode)
        sizes = zip(x.shape[-len(kernel) :], kernel, dilation, stride, strict=True)
        places = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in sizes]
        if len(kernel) == 1:
            # unfold takes images only: here of height 1.
            x = x.unsqueeze(-2)
            kernel = (1, *kernel)
            dilation = (1, *dilation)
            stride = (1, *stride)
        patches = functional.unfold(x, kernel, dilation, 0, stride)
        y: Tensor = self.linear(patches.transpose(-1, -2))
        return y.transpose(-1, -2).reshape(*y.shape[:-2], -1, *places)


class DeferredAttention(nn.MultiheadAttention):
    """An attention whose projections may be layers.

    PyTorch's attention reads the weights of its projections itself. Here ``in_proj``, or
    ``q_proj``, ``k_proj`` and ``v_proj``, are asked where they are layers, and the rest is
    ``softmax(Q K' / sqrt(d) + mask) V``. Queries, keys and values that are one tensor ask the
    common matrix once, others once each.
    """

    @property
    def layers(self) -> dict[str, FactoredLinear]:
        """Its layers without stored weights, by the parameters that they stand for."""
        layers = {}
        for name, module in self._modules.items():
            if name != "out_proj" and isinstance(module, FactoredLinear):
                layers[f"{name}{_SUFFIX}"] = module
        return layers

    def __getattr__(self, name: str) -> Any:
        """Return also weights that are not stored.

        By these ``nn.TransformerEncoder`` chooses its path.
        """
        if name.endswith(_SUFFIX):
            layer = self._modules.get(name.removesuffix(_SUFFIX))
            if isinstance(layer, FactoredLinear):
                return layer.weight
        return super().__getattr__(name)

    def store(self, key: str, weight: Tensor) -> None:
        """Hold this weight as the parameter ``key`` again, in place of the layer."""
        del self._modules[key.removesuffix(_SUFFIX)]
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
        """Answer as ``nn.MultiheadAttention``; with a mask, ``is_causal`` says nothing more."""
        if query.is_nested or key.is_nested or value.is_nested:
            raise InputError(
                "An attention without stored weights takes no nested tensors. Build "
                "nn.TransformerEncoder with enable_nested_tensor=False, or pad the inputs."
            )
        if is_causal and attn_mask is None:
            raise InputError(
                "is_causal=True says that attn_mask is causal; got no attn_mask. Pass one."
            )
        projected = map(self._laid, self._projected(query, key, value))
        q, k, v = (
            x.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for x in projected
        )
        mask = _mask_of_logits(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            logits = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
            if mask is not None:
                logits = logits + mask
            weights = functional.dropout(logits.softmax(-1), dropout)
            answer = weights @ v
        else:
            answer = functional.scaled_dot_product_attention(q, k, v, mask, dropout)
        merged = answer.transpose(1, 2).flatten(2)
        is_flat = query.dim() == 2
        out: Tensor = self.out_proj(merged.squeeze(0) if is_flat else self._laid(merged))
        if weights is None:
            return out, None
        if average_attn_weights:
            weights = weights.mean(1)
        return out, weights.squeeze(0) if is_flat else weights

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """Queries, keys and values of the heads, in the layout of the inputs."""
        inputs = (query, key, value)
        bias = self.in_proj_bias
        if not self._qkv_same_embed_dim:
            names = ("q_proj", "k_proj", "v_proj")
            answers = [self._asked(name, x) for name, x in zip(names, inputs, strict=True)]
        else:
            # One tensor in several places asks once.
            distinct: dict[int, Tensor] = {}
            for x in inputs:
                if id(x) not in distinct:
                    distinct[id(x)] = self._asked("in_proj", x)
            answers = [distinct[id(x)].chunk(3, -1)[part] for part, x in enumerate(inputs)]
        if bias is None:
            return answers
        return [answer + part for answer, part in zip(answers, bias.chunk(3), strict=True)]

    def _asked(self, name: str, x: Tensor) -> Tensor:
        """Project x by a layer or by a stored weight."""
        layer: Any = self._modules.get(name)
        if layer is None:
            return functional.linear(x, getattr(self, f"{name}{_SUFFIX}"))
        answer: Tensor = layer(x)
        return answer

    def _laid(self, x: Tensor) -> Tensor:
        """Turn the layout of the inputs into ``[batch, positions, features]``, and back."""
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)


def _mask_of_logits(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor
) -> Tensor | None:
    """What both masks add to logits of queries q [batch, heads, positions, d]; None without one."""
    mask = None
    if attn_mask is not None:
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.view(*q.shape[:2], *attn_mask.shape[1:])
        mask = _added(attn_mask, q)
    if key_padding_mask is not None:
        padding = _added(key_padding_mask.view(len(q), 1, 1, -1), q)
        mask = padding if mask is None else mask + padding
    return mask


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """What a mask adds to logits: minus infinity where a true-or-false one is true."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return like.new_zeros(mask.shape).masked_fill_(mask, -torch.inf)
