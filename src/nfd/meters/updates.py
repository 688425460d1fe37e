"""How much training changed a network: its features, its stream and its function, measured by hooks.

With ``z`` what a matrix is applied to in the trained network, ``W`` its effective weights (forward multiplier included)
and (0) marking the start:

    inner_update           rms over inner matrices of (W - W(0)) z                     Eq. 27
    stream_update          rms over outer matrices of (L / T) (W - W(0)) z             Eqs. 33, 34 (T = 1 elsewhere)
    function_update        rms(f - f(0))
    function_update_inner  rms(f - f with the inner matrices at their start)
    activation             rms of what the last block, or without blocks what the readout reads, holds
    activation_update      rms of the change of that
    update_to_weight       rms over inner (without blocks: hidden) matrices of |W - W(0)|_2 / |W(0)|_2

Matrices count whose module does nothing but apply them (linear layers, convolutions, fused attention inputs). Batch
normalisation uses the batch's statistics. All meters are Theta(1) in width where features learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from nfd.core.statistics import rms
from nfd.families.member import Member
from nfd.nets.dense import DenseLinear
from nfd.scaling.calls import evaluating, outputs_of
from nfd.scaling.tensors import TensorInfo, is_conv1d, modules, tensors

UPDATES = (
    "activation",
    "activation_update",
    "inner_update",
    "stream_update",
    "function_update",
    "function_update_inner",
    "update_to_weight",
)
_POWER_ITERATIONS = 16
_ALIKE = 1e-3  # of the RMS of a vector: what the epsilon of a norm leaves between inputs; without a norm, n^-1/2
HIDDEN = "the blocks are not called as modules, so that the stream between them cannot be seen."


@dataclass(frozen=True)
class _Pass:
    """What one pass saw: outputs, the vector ``activation`` speaks of, whether it is that of a stream, and the inputs
    of matrices by name."""

    outputs: Tensor
    features: Tensor
    of_stream: bool
    inputs: dict[str, Tensor]


class Baseline:
    """A network as it was at the start, to compare its trained self with.

    Args:
        member: before training.
        sample: an input of the model; what is measured is measured on it, in eval mode.

    Attributes:
        unread: why meters of the stream or of matrices cannot be read from this model, by meter.
    """

    def __init__(self, member: Member, sample: Any) -> None:
        self.member, self.sample = member, sample
        plan = member.plan
        self.start = {name: t.parameter.detach().clone() for name, t in tensors(member.module).items()}
        matrices = [n for n, e in plan.entries.items() if not e.is_vector and member.multiplier(n)]
        self.inner = [n for n in matrices if plan.roles[n] == "inner"]
        self.outer = [n for n in matrices if plan.roles[n] == "outer"]
        self.hidden = self.inner or [n for n in matrices if plan.roles[n] == "hidden"]
        self.readers = [n for n, e in plan.entries.items() if e.role in ("readout", "tied")]
        self.before = self._seen()
        self.unread = self._unread()

    @torch.no_grad()
    def updates(self) -> dict[str, float]:
        """Every meter of this module that the network has; see there for what they are."""
        now, infos = self._seen(), tensors(self.member.module)
        meters = {
            "activation": rms(now.features),
            "activation_update": rms(now.features - self.before.features),
            "function_update": rms(now.outputs - self.before.outputs),
        }
        meters = {meter: value for meter, value in meters.items() if meter not in self.unread}
        inner, outer = (self._responses(infos, names, now) for names in (self.inner, self.outer))
        if inner:
            meters["inner_update"] = _pooled(inner)
        if self.inner:
            meters["function_update_inner"] = rms(now.outputs - self._reset(infos))
        if outer:
            meters["stream_update"] = _pooled(outer) / self.member.time_step
        if self.hidden:
            moved = _norm_ratios([infos[n].parameter - self.start[n] for n in self.hidden])
            meters["update_to_weight"] = rms(moved / _norm_ratios([self.start[n] for n in self.hidden]))
        return meters

    def _unread(self) -> dict[str, str]:
        infos, unread = tensors(self.member.module), dict[str, str]()
        if self.member.blocks and not self.before.of_stream:
            unread = dict.fromkeys(("activation", "activation_update"), HIDDEN)
        elif _normalised(self.before.features):
            unread["activation"] = "it is read behind a norm, which gives every input the same RMS."
        for meter, names in (("inner_update", self.inner), ("stream_update", self.outer)):
            if names and not any(
                n in self.before.inputs and _is_linear(infos[n], self.before.inputs[n]) for n in names
            ):
                unread[meter] = "none of these matrices stands in a module that does nothing but apply it."
        return unread

    def _responses(self, infos: Mapping[str, TensorInfo], names: list[str], seen: _Pass) -> list[Tensor]:
        """``(W - W(0)) z`` of the matrices whose input was seen."""
        return [
            self.member.multiplier(name) * _applied(infos[name], infos[name].parameter - self.start[name], z)
            for name in names
            if (z := seen.inputs.get(name)) is not None and _is_linear(infos[name], z)
        ]

    def _reset(self, infos: Mapping[str, TensorInfo]) -> Tensor:
        """The outputs with the inner matrices at their start."""
        trained = {name: infos[name].parameter.detach().clone() for name in self.inner}
        try:
            for name in self.inner:
                infos[name].parameter.copy_(self.start[name])
            with _quiet(self.member.module):
                return outputs_of(self.member(self.sample))
        finally:
            for name, weight in trained.items():
                infos[name].parameter.copy_(weight)

    @torch.no_grad()
    def _seen(self) -> _Pass:
        names = (*self.inner, *self.outer, *self.readers)
        with _inputs(self.member.module, names) as inputs, _quiet(self.member.module), self.member.stream() as ends:
            outputs = outputs_of(self.member(self.sample)).detach()
        read = [inputs[n] for n in self.readers if n in inputs]
        return _Pass(outputs, (ends.last or read or [outputs])[-1].detach(), bool(ends.last), inputs)


@contextmanager
def _inputs(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Collects, over a pass, what the owners of these matrices are applied to, by the matrix's name."""
    infos, parts = tensors(model), modules(model)
    inputs: dict[str, Tensor] = {}
    handles = []
    for name in infos.keys() & set(names):
        for full in infos[name].names:
            owner = parts[full.rpartition(".")[0]]
            if owner is not model and not isinstance(owner, nn.Embedding):
                handles.append(owner.register_forward_pre_hook(_keep(inputs, name)))
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _normalised(features: Tensor) -> bool:
    """Whether vectors, the last dimension, of inputs that differ have the same RMS."""
    if features.dim() < 2:
        return False
    vectors = features.flatten(0, -2).double()
    sizes, apart = vectors.square().mean(1).sqrt(), (vectors - vectors[0]).square().mean(1).sqrt()
    alike = bool(sizes.max() - sizes.min() < _ALIKE * sizes.max())
    return alike and bool(apart.max() > _ALIKE * sizes.max())


def _is_linear(t: TensorInfo, z: Tensor) -> bool:
    """Whether the owner of a matrix does nothing but apply it: only then can its own part be told."""
    if isinstance(t.owner, nn.MultiheadAttention):
        return t.name.endswith("in_proj_weight") and z.shape[-1] == t.shape[1]
    plain = isinstance(t.owner, nn.Linear | _ConvNd | DenseLinear) or is_conv1d(t.owner)
    return plain and t.name.endswith("weight")


def _applied(t: TensorInfo, weight: Tensor, z: Tensor) -> Tensor:
    """What a module would add to its output if its weights were larger by ``weight``."""
    attribute = t.name.rpartition(".")[2]
    if isinstance(t.owner, nn.MultiheadAttention):
        return nn.functional.linear(z, weight)
    swapped = {attribute: weight}
    bias = getattr(t.owner, "bias", None)
    if isinstance(bias, Tensor):
        swapped["bias"] = torch.zeros_like(bias)
    return cast(Tensor, torch.func.functional_call(t.owner, swapped, (z,)))


def _keep(inputs: dict[str, Tensor], name: str) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            inputs.setdefault(name, args[0].detach())

    return hook


@contextmanager
def _quiet(model: nn.Module) -> Iterator[None]:
    """Eval mode, but for batch normalisation, which takes the batch's statistics and forgets them again."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    before = [(m.momentum, m.num_batches_tracked) for m in norms]
    with evaluating(model):
        for m in norms:
            m.training, m.momentum = True, 0.0
            m.num_batches_tracked = None if m.num_batches_tracked is None else m.num_batches_tracked.clone()
        try:
            yield
        finally:
            for m, (momentum, tracked) in zip(norms, before, strict=True):
                m.momentum, m.num_batches_tracked = momentum, tracked


def _pooled(parts: list[Tensor]) -> float:
    """RMS over the entries of all parts."""
    total = sum(float(p.double().square().sum()) for p in parts)
    return math.sqrt(total / sum(p.numel() for p in parts))


def _norm_ratios(matrices: list[Tensor]) -> Tensor:
    """Spectral norms, by power iteration, of matrices flattened to two dimensions."""
    norms = torch.zeros(len(matrices), dtype=torch.float64, device="cpu")
    shapes: dict[tuple[int, ...], list[int]] = {}
    for k, w in enumerate(matrices):
        shapes.setdefault(tuple(w.flatten(1).shape), []).append(k)
    for shape, own in shapes.items():
        w = torch.stack([matrices[k].flatten(1) for k in own])
        v = torch.ones(len(own), shape[1], 1, dtype=w.dtype, device=w.device)
        v[:, ::2] -= 0.5
        for _ in range(_POWER_ITERATIONS):
            v = w.mT @ (w @ v)
            v = v / v.norm(dim=1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
        norms[own] = (w @ v).norm(dim=1).flatten().double().cpu()
    return norms
