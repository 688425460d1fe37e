"""The small model that was tuned: instances of its constructor, how its tensors begin, and how much
they have grown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from nfd.core.checks import check_count, check_takes
from nfd.core.errors import InputError, InputTypeError, blaming
from nfd.core.modes import default_type, users_type
from nfd.core.names import MOST, WIDEST
from nfd.core.random import global_streams
from nfd.scaling.entries import Start
from nfd.scaling.model import (
    Blocks,
    Place,
    TensorInfo,
    Where,
    alike,
    blocks_of,
    check_plannable,
    counterpart,
    numberless,
    place_of,
    places_of,
    stacks_of,
    tensors,
)
from nfd.scaling.rules import INPUT_LIKE, Role

MakeModel = Callable[[int, int], nn.Module]

# ---- the constructor of the user


def instance(make_model: MakeModel, width: int, depth: int, seed: int | None = None) -> nn.Module:
    """A model of the user's constructor, from this seed if one is given, in the default type of the
    user; leaves the random streams as they were."""
    width = check_count("width", width)
    depth = check_count("depth", depth)
    check_takes("make_model", make_model, "width", "depth")
    could_not = f"make_model({width}, {depth}) could not be built"
    with global_streams(seed), default_type(users_type()), blaming(could_not):
        made: Any = make_model(width, depth)
    if not isinstance(made, nn.Module):
        raise InputTypeError(
            f"make_model(width, depth) must return a torch.nn.Module; got {type(made).__name__}."
        )
    return made


def check_constructor(make_model: MakeModel, widths: Sequence[int], depths: Sequence[int]) -> None:
    """Raise ValueError unless width changes shapes, and depth adds parameters without changing any;
    by the first two of each."""
    first = widths[0]
    small = tensors(instance(make_model, first, depths[0]))
    for width, depth in [(width, depths[0]) for width in widths[1:2]] + [
        (first, depth) for depth in depths[1:2]
    ]:
        other = tensors(instance(make_model, width, depth))
        changed = [other[name].shape != t.shape for name, t in small.items() if name in other]
        # depth changes the shape of few at most: the last block of a stage often leads to another
        # width
        grows = any(changed) if width != first else 2 * sum(changed) > len(changed)
        if not grows if width != first else grows or len(small) == len(other):
            wanted = (
                "other shapes"
                if width != first
                else "more blocks, and the same shapes in those they share"
            )
            raise InputError(
                f"make_model({width}, {depth}) must have {wanted}, compared with "
                f"make_model({first}, {depths[0]}): does it use its first argument, width, and its "
                "second, depth, or are they (depth, width)?"
            )


# ---- how tensors begin

# standard errors beyond which the mean of so many numbers is not chance
_MEANT = 6.0
_MANY = 30
_ALIKE = 1.5  # ratio of standard deviations that still are one law, measured in small tensors


def start_of(values: Tensor) -> Start:
    """How numbers begin: at one constant, or at random."""
    values, count = values.detach(), values.numel()
    if values.is_meta:
        raise InputError("The model must have initial weights to read; it is on the meta device.")
    value = float(values.flatten()[0]) if count else 0.0
    if bool((values == value).all()):
        return Start(0.0, value)
    square = float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2 / count
    mean = float(values.sum(dtype=torch.float64)) / count
    error = math.sqrt(max(square - mean**2, 0.0) / count)
    return Start(math.sqrt(square), None, kept=count >= _MANY and abs(mean) > _MEANT * error)


def start_by(t: TensorInfo, again: Tensor | None) -> Start:
    """How a tensor begins: by its numbers, and by those that the constructor makes of another seed.

    Kept is what both seeds share, equal or correlated beyond chance, and every vector but the
    biases that layers of PyTorch draw, whose law is known.
    """
    values = t.drawn()
    own = start_of(values)
    if own.constant is not None and again is not None and not torch.equal(values, again):
        own = start_of(torch.cat([values.flatten(), again.flatten()]))  # one number looks constant
    if own.constant is not None:
        return own
    is_shared = False
    if again is not None:
        a, b = (x.flatten().double() for x in (values, again))
        bound = _MEANT / math.sqrt(max(len(a), 1)) * a.norm() * b.norm()
        is_shared = torch.equal(a, b) or bool((a @ b).abs() > bound)
    return replace(own, kept=own.kept or is_shared or (t.is_vector and not t.is_bias_of_pytorch))


# ---- the base


@dataclass(frozen=True)
class Constructor:
    """The function of the user that builds models, and the arguments by which it builds the
    base.
    """

    make: MakeModel
    width: int
    depth: int

    def at(self, wider: int = 1, deeper: float = 1.0, seed: int = 0) -> nn.Module:
        """The base, or a model so many times as wide and as deep."""
        return instance(self.make, wider * self.width, round(deeper * self.depth), seed)

    def base(self, where: Where) -> nn.Module:
        """The base; ValueError where the arguments of the function seem to be (depth, width)."""
        base = self.at()
        # else it is as deep as was asked for
        if len(blocks_of(base, where)) != self.depth or self.depth == self.width:
            check_constructor(self.make, [self.width, 2 * self.width], [self.depth])
        return base


def checked_size(base: Any, make_model: MakeModel | None) -> tuple[int | None, int | None]:
    """Width and depth of the base as the user gave them, as far as they did; ValueError or
    TypeError where ``base`` is neither a pair nor a model, or stands beside a constructor that does
    not fit it."""
    if isinstance(base, nn.Module):
        if make_model is not None:
            raise InputError("base is the tuned model itself: pass it alone, without make_model.")
        check_plannable(base)
        return None, None
    if base is not None and (not isinstance(base, tuple) or len(base) != 2):
        raise InputTypeError(
            f"base must be the tuned model, or its size as a pair (width, depth); got {base!r}."
        )
    width, depth = (
        None if size is None else check_count(f"the {axis} of base", size, maximum=most)
        for size, axis, most in zip(
            base or (None, None), ("width", "depth"), (WIDEST, MOST), strict=True
        )
    )
    if make_model is not None and width is None:
        raise InputError("make_model needs base=(width, depth), the size at which you tuned.")
    return width, depth


def depth_of(model: nn.Module, make_model: MakeModel, width: int, where: Where) -> int:
    """The depth at which the constructor builds as many tensors as the model has; ValueError where
    there is none.
    """
    # a unit of depth may be two blocks, or none that is found
    depth = max(len(blocks_of(model, where)), 1)
    at, above = (len(tensors(instance(make_model, width, depth + k))) for k in (0, 1))
    # no depth: see ``base``
    more, rest = divmod(len(tensors(model)) - at, above - at) if above != at else (0, 0)
    if rest or depth + more < 1:
        raise InputError(
            f"make_model({width}, depth) has as many tensors as the model at no depth. Pass both."
        )
    return depth + more


@dataclass(frozen=True)
class Base:
    """The model that was tuned: its tensors and blocks, and the numbers that another seed gives its
    tensors.
    """

    tensors: dict[str, TensorInfo]
    blocks: Blocks
    again: Mapping[str, Tensor] = field(default_factory=dict)
    _starts: dict[str, Start] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, where: Where) -> Self:
        """From a model whose blocks are at these places."""
        return cls(tensors(model), blocks_of(model, where))

    def beside(self, other: nn.Module) -> Self:
        """With the numbers of another seed, unless they are all the same: then the constructor sets
        a seed itself, which says nothing of a structure."""
        again = {name: t.drawn() for name, t in tensors(other).items()}
        is_seeded = all(
            t.drawn().equal(again[name]) for name, t in self.tensors.items() if name in again
        )
        return self if is_seeded else replace(self, again=again)

    @cached_property
    def places(self) -> dict[Place, list[str]]:
        """The names of the tensors that stand alike in blocks, by their place."""
        return places_of(self.tensors, self.blocks)

    def counterpart(self, t: TensorInfo, blocks: Blocks) -> TensorInfo:
        """The tensor of the base that corresponds to one of the model; ValueError when there is
        none.
        """
        return counterpart(t, blocks, self.tensors, self.places)

    def differing(self, model: Base) -> dict[str, tuple[bool, ...]]:
        """Which dimensions of another model's tensors are others here; none of a tensor that is not
        here.
        """
        differs = {}
        for name, t in model.tensors.items():
            other = self.tensors.get(alike(name, model.blocks, self.places) or "")
            shape = (
                other.shape if other is not None and len(other.shape) == len(t.shape) else t.shape
            )
            differs[name] = tuple(a != b for a, b in zip(t.shape, shape, strict=True))
        return differs

    def start(self, t: TensorInfo, blocks: Blocks) -> Start:
        """How the counterpart begins; tensors of one name in several blocks are taken together
        where they agree.
        """
        name = self.counterpart(t, blocks).name
        own = self._own(name, t.ins)
        if (
            own.constant is not None
            and self.tensors[name].parameter.numel() == 1 < t.parameter.numel()
        ):
            # One number shows no law, but where many are the same.
            is_constant = not t.parameter.is_meta and start_of(t.drawn()).constant == own.constant
            return (
                own
                if t.is_bias_of_pytorch or is_constant
                else replace(own, constant=None, kept=True)
            )
        if own.constant is not None or own.kept:
            return own
        same = self.places[place_of(name, self.blocks)]
        starts = {n: self._own(n, t.ins) for n in same if not self._own(n, t.ins).kept}
        low = min(s.std for s in starts.values())
        high = max(s.std for s in starts.values())
        if not 0 < high <= _ALIKE * low:
            return own
        sizes = {n: self.tensors[n].parameter.numel() for n in starts}
        square = sum(size * starts[n].std ** 2 for n, size in sizes.items()) / sum(sizes.values())
        return replace(own, std=math.sqrt(square))

    def _own(self, name: str, ins: tuple[int, ...] | None) -> Start:
        """How one tensor begins; ``ins``: its dimensions of inputs, as a forward pass of the model
        shows them.
        """
        if name not in self._starts:
            self._starts[name] = start_by(
                replace(self.tensors[name], ins=ins), self.again.get(name)
            )
        return self._starts[name]


# ---- how much larger than in the base tensors are


def grown_fans(t: TensorInfo, other: TensorInfo, role: Role) -> tuple[float, float]:
    """Fan-in and fan-out of a tensor over those of its counterpart."""
    grown = [a / b for a, b in zip(t.shape, other.shape, strict=True)]
    outs = math.prod(grown if t.outs is None else (grown[k] for k in t.outs))
    if role in INPUT_LIKE:
        return 1.0, outs
    if t.ins is not None and t.outs is not None:
        split = 1.0
        # its weight is [in, out / groups, ...]
        if isinstance(t.owner, _ConvTransposeNd) and not t.is_vector:
            split = int(t.owner.groups) / int(cast(_ConvTransposeNd, other.owner).groups)
        return math.prod(grown[k] for k in t.ins) / split, outs * split
    if role == "readout":
        return math.prod(grown), 1.0
    if len(grown) == 2:  # a bare matrix is taken to be [out, in], as everywhere in PyTorch
        return grown[1], grown[0]
    if grown[-2] != grown[-1] or math.prod(grown) != grown[-2] * grown[-1]:
        raise InputError(
            f"{t.name!r} grew from {list(other.shape)} to {list(t.shape)}: which of its dimensions "
            f"are inputs? Pass roles={{{numberless(t.name)!r}: 'vector'}} if it adds up none of "
            "them, or make it an nn.Linear."
        )
    return grown[-2], grown[-1]


def depths_of(blocks: Blocks, base: Blocks) -> dict[str, float]:
    """How much deeper than in the base the stack of every block is; under no name, all blocks
    together.
    """
    tuned = stacks_of(base)
    depths = {"": len(blocks) / len(base) if base else 1.0}
    for stack, own in stacks_of(blocks).items():
        depths |= dict.fromkeys(own, len(own) / len(tuned[stack]) if tuned.get(stack) else 1.0)
    return depths
