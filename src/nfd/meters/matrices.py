"""What the matrices of a network do by themselves: to their inputs, and in size.

**Alignment** of an update ``dW`` of a matrix [m, n] with its inputs ``z``:

    alignment = |dW z| / (|dW| |z|)

where ``|dW z|^2`` and ``|z|^2`` are sums over all inputs. It is the share of their greatest effect that updates have: 1
if all inputs lie along the direction that the update answers, ``n^-1/2`` if they are independent of it. Rules of mup's
kind take the first: of n coordinates with signs that agree, sums grow as n. Where alignment falls as ``n^-1/2`` with
width, sums grow as sqrt(n), and rates that fall as 1/n make updates too small. ``|dW|`` is the norm that the optimizer
fixes: that of the entries (Frobenius) for SGD and Adam, the largest singular value for Muon.

Source: Everett et al., Scaling Exponents Across Parameterizations and Optimizers (arXiv 2407.05872); Kosson et al.
(arXiv 2510.19093), whose update alignment this is; for Muon, Yang, Simon and Bernstein, A Spectral Condition for
Feature Learning (arXiv 2310.17813).
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from nfd.nets.dense import DenseLinear
from nfd.scaling.model import TensorInfo, is_conv1d
from nfd.scaling.optimizers import WHOLE_MATRIX, OptimizerLaw

_POWER_ITERATIONS = 16


def is_linear(t: TensorInfo, z: Tensor) -> bool:
    """Whether the owner of a matrix does nothing but apply it: only then can its own part be measured."""
    if isinstance(t.owner, nn.MultiheadAttention):
        return t.name.endswith("in_proj_weight") and z.shape[-1] == t.shape[1]
    plain = isinstance(t.owner, nn.Linear | _ConvNd | DenseLinear) or is_conv1d(t.owner)
    return plain and t.name.endswith("weight")


def applied(t: TensorInfo, weight: Tensor, z: Tensor) -> Tensor:
    """What a module would add to its output if its weights were larger by ``weight``, in the precision of the weights:
    autocast inside of a model gives inputs of 16 bits."""
    attribute, z = t.name.rpartition(".")[2], z.to(weight.dtype)
    if isinstance(t.owner, nn.MultiheadAttention) or type(t.owner) is nn.Linear:
        return nn.functional.linear(z, weight)
    swapped = {attribute: weight}
    bias = getattr(t.owner, "bias", None)
    if isinstance(bias, Tensor):
        swapped["bias"] = weight.new_zeros(bias.shape)
    return cast(Tensor, torch.func.functional_call(t.owner, swapped, (z,)))


def alignment(t: TensorInfo, update: Tensor, z: Tensor, law: OptimizerLaw) -> float | None:
    """The alignment ``|dW z| / (|dW| |z|)`` of an update dW of a matrix with its inputs z; None if one of them is zero.

    It is at most 1. ``|dW|`` is the Frobenius norm, and the spectral one for optimizers such as Muon.
    """
    size = float(spectral_norms([update])) if law.unit == WHOLE_MATRIX else norm(update)
    product = size * _norm_of_inputs(t, z)
    return None if product == 0 else norm(applied(t, update, z)) / product


def spectral_norms(matrices: list[Tensor]) -> Tensor:
    """Spectral norms, by power iteration, of matrices flattened to two dimensions."""
    norms = torch.zeros(len(matrices), dtype=torch.float64, device="cpu")
    shapes: dict[tuple[int, ...], list[int]] = {}
    for k, w in enumerate(matrices):
        shapes.setdefault(tuple(w.flatten(1).shape), []).append(k)
    for shape, own in shapes.items():
        w = torch.stack([matrices[k].flatten(1) for k in own])
        w = w.to(torch.promote_types(w.dtype, torch.float32))  # squares of small updates are zero in 16 bits
        v = torch.ones(len(own), 1, shape[1], dtype=w.dtype, device=w.device)  # rows: ten times as fast as columns
        v[..., ::2] -= 0.5
        least = torch.finfo(w.dtype).tiny
        for _ in range(_POWER_ITERATIONS):
            v = torch.bmm(torch.bmm(v, w.mT), w)
            v /= torch.linalg.vector_norm(v, dim=2, keepdim=True).clamp_min_(least)
        norms[own] = torch.linalg.vector_norm(torch.bmm(v, w.mT), dim=2).flatten().double().cpu()
    return norms


def norm(values: Tensor) -> float:
    """The root of the sum of squares."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _norm_of_inputs(t: TensorInfo, z: Tensor) -> float:
    """The root of the sum of squares of all inputs, of a convolution of all patches."""
    if not isinstance(t.owner, _ConvNd):
        return norm(z)
    squares = applied(t, z.new_ones(t.shape), z.square()).sum(dtype=torch.float64)
    return math.sqrt(max(0.0, float(squares) * t.owner.groups / t.owner.out_channels))
