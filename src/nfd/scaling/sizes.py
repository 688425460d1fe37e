"""How much larger than its base a model is, tensor by tensor, and what the base looks like at the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from nfd.core.errors import InputError, InputTypeError, check_count, check_takes
from nfd.core.random import global_streams
from nfd.scaling.blocks import Blocks, Kind, block_of, container_of, in_base
from nfd.scaling.rules import INPUT_LIKE, Role
from nfd.scaling.tensors import TensorInfo, check_not_complex, groups, ratio, tensors

_MEANT, _MANY = 6.0, 30  # standard errors beyond which the mean of so many numbers is not chance
_ALIKE = 1.5  # ratio of standard deviations that still are one law, measured in small tensors

MakeModel = Callable[[int, int], nn.Module]


Positive = Annotated[float, Field(gt=0)]  # checked where a plan is read from a file
Whole = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Start:
    """How a tensor begins in the base model: at a constant, at random with a standard deviation, or as its constructor
    makes it, which is kept and scaled at most. ``std`` is the RMS; 0 of what is never scaled."""

    std: Annotated[float, Field(ge=0)]
    constant: float | None
    kept: bool = False


@dataclass(frozen=True)
class Ratios:
    """Of fan-in and fan-out to those of the base."""

    fan_in: Positive
    fan_out: Positive


def start_of(values: Sequence[Tensor]) -> Start:
    """Of tensors that begin alike, taken together."""
    first = values[0].detach()
    if first.is_meta:
        raise InputError("The model must have initial weights to read; it is on the meta device.")
    value = float(first.flatten()[0]) if first.numel() else 0.0
    if all(bool((v == value).all()) for v in values):
        return Start(0.0, value)
    total = sum(v.numel() for v in values)
    square = sum(float(torch.linalg.vector_norm(v, dtype=torch.float64)) ** 2 for v in values)
    mean = sum(float(v.sum(dtype=torch.float64)) for v in values) / total
    error = math.sqrt(max(square / total - mean**2, 0.0) / total)
    return Start(math.sqrt(square / total), None, kept=total >= _MANY and abs(mean) > _MEANT * error)


def start_by(t: TensorInfo, again: Tensor | None) -> Start:
    """How a tensor begins: by its numbers, and by those that the constructor makes of another seed.

    Kept is what both seeds share, and every vector but the biases that layers of PyTorch draw, whose law is known.
    """
    values = t.drawn()
    own = start_of([values])
    if own.constant is not None and again is not None and not torch.equal(values, again):
        own = start_of([values, again])  # one number looks constant
    if own.constant is not None:
        return own
    structured = again is not None and _share(values, again)
    return replace(own, kept=own.kept or structured or (t.is_vector and not t.is_bias_of_pytorch))


def _share(a: Tensor, b: Tensor) -> bool:
    """Whether two draws are equal, or correlated beyond chance."""
    a, b = (x.flatten().double() for x in (a, b))
    bound = _MEANT / math.sqrt(max(len(a), 1)) * a.norm() * b.norm()
    return torch.equal(a, b) or bool((a @ b).abs() > bound)


def made_again(first: Mapping[str, TensorInfo], second: Mapping[str, TensorInfo]) -> dict[str, Tensor]:
    """The numbers of the second of two instances by one constructor; none where it sets a seed itself, so that all
    are equal."""
    again = {name: t.drawn() for name, t in second.items()}
    return again if any(not torch.equal(t.drawn(), again[name]) for name, t in first.items() if name in again) else {}


@dataclass(frozen=True)
class Base:
    """A small instance that was tuned: its tensors and blocks, and the numbers that another seed gives its tensors."""

    tensors: dict[str, TensorInfo]
    blocks: Blocks
    again: Mapping[str, Tensor] = field(default_factory=dict)
    _starts: dict[str, Start] = field(default_factory=dict)
    _alike: dict[tuple[str, Kind, str], Start | None] = field(default_factory=dict)

    def of(self, t: TensorInfo, blocks: Blocks) -> TensorInfo:
        """The tensor of the base that corresponds to one of the model; ValueError when there is none."""
        name = in_base(t.name, blocks, self.blocks, self.tensors)
        if name is None:
            raise InputError(
                f"The base model has no block of the kind that {t.name!r} is in. Give it a depth, by "
                "base=(width, depth), at which it has blocks of every kind."
            )
        if name not in self.tensors:
            raise InputError(
                f"The base model has no {name!r}, the counterpart of {t.name!r}. Build both alike but for width and "
                "depth; blocks, where given, must name those of which the deeper model has more."
            )
        other = self.tensors[name]
        if len(other.shape) != len(t.shape):
            raise InputError(f"{t.name!r} is {list(t.shape)} in the model and {list(other.shape)} in the base.")
        return other

    def differing(self, of: Mapping[str, TensorInfo], blocks: Blocks) -> dict[str, tuple[bool, ...]]:
        """Which dimensions of a model's tensors are others here; none of a tensor that is not here."""
        differs = {}
        for name, t in of.items():
            other = self.tensors.get(in_base(name, blocks, self.blocks, self.tensors) or "")
            shape = other.shape if other is not None and len(other.shape) == len(t.shape) else t.shape
            differs[name] = tuple(a != b for a, b in zip(t.shape, shape, strict=True))
        return differs

    def start(self, t: TensorInfo, blocks: Blocks) -> Start:
        """How the counterpart begins; tensors of one name in several blocks are taken together where they agree."""
        name = self.of(t, blocks).name
        block, own = block_of(name, self.blocks), self._own(name)
        if own.constant is not None and self.tensors[name].parameter.numel() == 1 < t.parameter.numel():
            return own if t.is_bias_of_pytorch else replace(own, constant=None, kept=True)  # one number shows no law
        if block is None or own.constant is not None or own.kept:
            return own
        container, rest = container_of(block), name[len(block) :]
        kind = self.blocks[block]
        if (container, kind, rest) not in self._alike:
            alike = [b for b in self.blocks if container_of(b) == container and self.blocks[b] == kind]
            names = [b + rest for b in alike if b + rest in self.tensors]
            names = [n for n in names if not self._own(n).kept]
            starts = [self._own(n) for n in names]
            low, high = min(s.std for s in starts), max(s.std for s in starts)
            same = low > 0 and high <= _ALIKE * low
            pooled = start_of([self.tensors[n].drawn() for n in names]) if same else None
            self._alike[container, kind, rest] = pooled
        return self._alike[container, kind, rest] or own

    def _own(self, name: str) -> Start:
        if name not in self._starts:
            self._starts[name] = start_by(self.tensors[name], self.again.get(name))
        return self._starts[name]


def ratios(t: TensorInfo, other: TensorInfo, role: Role) -> Ratios:
    """From the shapes of a tensor and of its counterpart."""
    if t.ins is not None and t.outs is not None and role not in INPUT_LIKE:
        split = groups(t) / groups(other)
        return Ratios(ratio(t.shape, other.shape, t.ins) / split, ratio(t.shape, other.shape, t.outs) * split)
    whole = ratio(t.shape, other.shape, range(len(t.shape)))
    if role in INPUT_LIKE:
        grown = whole if t.outs is None else ratio(t.shape, other.shape, t.outs)
        return Ratios(1.0, grown)
    if role == "readout":
        return Ratios(whole, 1.0)
    if len(t.shape) == 2:  # a bare matrix is taken to be [out, in], as everywhere in PyTorch
        return Ratios(ratio(t.shape, other.shape, (1,)), ratio(t.shape, other.shape, (0,)))
    last = [t.shape[k] / other.shape[k] for k in (-2, -1)]
    if last[0] != last[1] or whole != last[0] * last[1]:
        raise InputError(
            f"{t.name!r} grew from {list(other.shape)} to {list(t.shape)}: which of its dimensions are inputs? Pass "
            f"roles={{{t.name!r}: 'vector'}} if it adds up none of them, or make it an nn.Linear."
        )
    return Ratios(*last)


def ratios_by_role(t: TensorInfo, role: Role, m: float) -> Ratios:
    """Where only the ratio ``m`` of widths is known: what the role says grows."""
    if t.is_vector or role in INPUT_LIKE:
        return Ratios(1.0, 1.0 if role == "readout" or t.parameter.numel() == 1 else m)
    if t.ins is not None and t.parameter.dim() > 2 and t.shape[1] == 1:  # a depthwise convolution adds up no channels
        return Ratios(1.0, m)
    return Ratios(m, 1.0) if role == "readout" else Ratios(m, m)


def instance(make_model: MakeModel, width: int, depth: int, seed: int | None = None) -> nn.Module:
    """A model of the user's constructor, from this seed if one is given; leaves the random streams as they were."""
    width, depth = check_count("width", width), check_count("depth", depth)
    if isinstance(make_model, nn.Module):
        raise InputTypeError(
            f"make_model must be the function that builds the model, of width and depth, not a model; got a "
            f"{type(make_model).__name__}."
        )
    check_takes("make_model", make_model, "width", "depth")
    with global_streams(seed):
        made: Any = make_model(width, depth)
    if not isinstance(made, nn.Module):
        raise InputTypeError(f"make_model(width, depth) must return a torch.nn.Module; got {type(made).__name__}.")
    check_not_complex(made)
    return made


def growing(small: nn.Module, large: nn.Module) -> dict[str, tuple[bool, ...]]:
    """Which dimensions of the tensors that two instances share differ."""
    first, second = tensors(small), tensors(large)
    return {
        name: tuple(a != b for a, b in zip(t.shape, second[name].shape, strict=True))
        for name, t in first.items()
        if name in second and len(t.shape) == len(second[name].shape)
    }


def check_constructor(make_model: MakeModel, widths: Sequence[int], depths: Sequence[int]) -> None:
    """Raise ValueError unless width changes shapes, and depth adds parameters without changing any; by the first two
    of each."""
    small = instance(make_model, widths[0], depths[0])
    if len(widths) > 1:
        wide = instance(make_model, widths[1], depths[0])
        if not any(any(grown) for grown in growing(small, wide).values()):
            raise InputError(
                f"make_model({widths[0]}, {depths[0]}) and make_model({widths[1]}, {depths[0]}) have the same shapes: "
                "does it use its first argument, width, or are they (depth, width)?"
            )
    if len(depths) > 1:
        deep = instance(make_model, widths[0], depths[1])
        same = len(list(small.parameters())) == len(list(deep.parameters()))
        if same or any(any(grown) for grown in growing(small, deep).values()):
            raise InputError(
                f"make_model({widths[0]}, {depths[1]}) must have more blocks than make_model({widths[0]}, {depths[0]}) "
                "and the same shapes in those they share: are its arguments (width, depth), in this order?"
            )
