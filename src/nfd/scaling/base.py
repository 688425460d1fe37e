"""The small model that was tuned: its constructor, its initial weights, and growth over it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from nfd.core.checks import check_count, check_takes
from nfd.core.errors import InputError, InputTypeError, blaming
from nfd.core.modes import default_type, users_type
from nfd.core.names import MOST, WIDEST
from nfd.core.random import RepeatedDraws, global_streams
from nfd.core.words import quoted
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


def instance(
    make_model: MakeModel,
    width: int,
    depth: int,
    seed: int | None = None,
    *,
    repeats_draws: bool = False,
) -> nn.Module:
    """Build a model of the user's constructor, from this seed if one is given.

    It has the user's default type. Random streams are left as they were.

    Args:
        repeats_draws: whether only names, shapes and the order of operations matter, so that few
            numbers of a large tensor need to be drawn. Most of the time that a large model takes to
            build goes into drawing them.
    """
    width = check_count("width", width)
    depth = check_count("depth", depth)
    check_takes("make_model", make_model, "width", "depth")
    could_not = f"make_model({width}, {depth}) could not be built"
    draws = RepeatedDraws() if repeats_draws else nullcontext()
    with global_streams(seed), default_type(users_type()), blaming(could_not), draws:
        model: Any = make_model(width, depth)
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"make_model(width, depth) must return a torch.nn.Module; got {type(model).__name__}."
        )
    return model


def shapes_of(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a model, by name."""
    return {name: t.shape for name, t in tensors(model).items()}


def check_constructor(make_model: MakeModel, widths: Sequence[int], depths: Sequence[int]) -> None:
    """Raise ValueError unless width changes shapes, and depth adds parameters without changing any.

    The first two of each are compared.
    """
    width = widths[0]
    depth = depths[0]
    build = partial(instance, make_model, repeats_draws=True)
    small = tensors(build(width, depth))
    _check_separate(small, tensors(build(width, depth)))
    for wider in widths[1:2]:
        large = tensors(build(wider, depth))
        if not any(_changed_shapes(small, large)):
            raise _unlike((wider, depth), (width, depth), "other shapes")
    for deeper in depths[1:2]:
        large = tensors(build(width, deeper))
        changed = _changed_shapes(small, large)
        # Depth changes the shape of few at most: the last block of a stage often leads to another
        # width.
        if len(small) == len(large) and not any(changed):
            raise InputError(
                f"make_model({width}, {deeper}) must have more blocks than make_model({width}, "
                f"{depth}), and has the same tensors: does it use its second argument, depth? "
                "Blocks that the forward pass applies again and again are planned by nfd.plan, "
                "and have one depth in every other question."
            )
        if 2 * sum(changed) > len(changed) or len(small) == len(large):
            wanted = "more blocks, and the same shapes in those they share"
            raise _unlike((width, deeper), (width, depth), wanted)


def _check_separate(one: Mapping[str, TensorInfo], other: Mapping[str, TensorInfo]) -> None:
    """Raise ValueError where two models of a constructor train the same tensors."""
    trained = {id(t.parameter) for t in one.values() if t.parameter.requires_grad}
    shared = [name for name, t in other.items() if id(t.parameter) in trained]
    if shared:
        raise InputError(
            f"make_model(width, depth) must build all that it trains: two of its models share "
            f"{quoted(shared, 3)}, so that training one would change the other. Build it inside "
            "of make_model, or take a copy.deepcopy of it there; or freeze it."
        )


def _changed_shapes(small: Mapping[str, TensorInfo], large: Mapping[str, TensorInfo]) -> list[bool]:
    """Say for every tensor that two models share whether its shape differs."""
    return [large[name].shape != t.shape for name, t in small.items() if name in large]


def _unlike(large: tuple[int, int], small: tuple[int, int], wanted: str) -> InputError:
    """Return the error of a constructor whose models do not have what is wanted of them."""
    width, depth = large
    small_width, small_depth = small
    return InputError(
        f"make_model({width}, {depth}) must have {wanted}, compared with "
        f"make_model({small_width}, {small_depth}): does it use its first argument, width, and its "
        "second, depth, or are they (depth, width)?"
    )


# ---- initial weights

# Standard errors from 0 beyond which the mean of at least _MANY numbers is not chance.
_MEANT = 6.0
_MANY = 30
# The first numbers of a tensor, and numbers that fit into a cache.
_FIRST = 1024
_PART = 2**16
# The ratio of standard deviations that still are one law, measured in small tensors.
_ALIKE = 1.5


def start_of(values: Tensor) -> Start:
    """Find whether initial numbers are one constant, or random."""
    values = values.detach()
    count = values.numel()
    if values.is_meta:
        raise InputError("The model must have initial weights to read; it is on the meta device.")
    value = float(values.flatten()[0]) if count else 0.0
    # The first numbers of most tensors differ already.
    if bool((values.flatten()[:_FIRST] == value).all()) and bool((values == value).all()):
        return Start(0.0, value)
    square = float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2 / count
    mean = float(values.sum(dtype=torch.float64)) / count
    error = math.sqrt(max(square - mean**2, 0.0) / count)
    return Start(math.sqrt(square), None, kept=count >= _MANY and abs(mean) > _MEANT * error)


def start_by(t: TensorInfo, again: Tensor | None) -> Start:
    """Find how a tensor is initialised, by its numbers and by those of another seed.

    Kept is what both seeds share, equal or correlated beyond chance, and every vector but the
    biases that layers of PyTorch draw, whose law is known.
    """
    values = t.drawn()
    start = start_of(values)
    if start.constant is not None and again is not None and not torch.equal(values, again):
        # One number looks constant.
        start = start_of(torch.cat([values.flatten(), again.flatten()]))
    if start.constant is not None:
        return start
    is_shared = again is not None and _are_alike(values, again)
    is_structured = t.is_vector and not t.is_bias_of_pytorch
    return replace(start, kept=start.kept or is_shared or is_structured)


def _are_alike(values: Tensor, again: Tensor) -> bool:
    """Whether the numbers of two seeds are equal, or correlated beyond chance."""
    product = 0.0
    square = 0.0
    square_again = 0.0
    numbers = values.flatten()
    numbers_again = again.flatten()
    # Parts that fit into a cache, and no copies of all numbers in double precision.
    for first in range(0, len(numbers), _PART):
        a = numbers[first : first + _PART].double()
        b = numbers_again[first : first + _PART].double()
        product += float(a @ b)
        square += float(a @ a)
        square_again += float(b @ b)
    bound = _MEANT / math.sqrt(max(values.numel(), 1)) * math.sqrt(square * square_again)
    return abs(product) > bound or torch.equal(values, again)


# ---- the base


@dataclass(frozen=True)
class Constructor:
    """The user's function that builds models, and its arguments for the base."""

    make: MakeModel
    width: int
    depth: int

    def at(self, wider: int = 1, deeper: float = 1.0, seed: int = 0) -> nn.Module:
        """Build the base, or a model so many times as wide and as deep."""
        return instance(self.make, wider * self.width, round(deeper * self.depth), seed)

    def built_as(self, wider: int = 1, deeper: float = 1.0) -> nn.Module:
        """Build a model to see how it is written: its initial numbers are not to be measured."""
        size = wider * self.width, round(deeper * self.depth)
        return instance(self.make, *size, seed=0, repeats_draws=True)

    def base(self, where: Where) -> nn.Module:
        """Build the base.

        Raises:
            ValueError: where the arguments of the function seem to be (depth, width).
        """
        base = self.at()
        # As many blocks as were asked for show that depth is depth, unless width is equal to it.
        if len(blocks_of(base, where)) != self.depth or self.depth == self.width:
            check_constructor(self.make, [self.width, 2 * self.width], [self.depth])
        return base


def checked_size(base: Any, make_model: MakeModel | None) -> tuple[int | None, int | None]:
    """Return width and depth of the base as the user gave them, as far as they did.

    Raises:
        TypeError: where ``base`` is neither a pair nor a model.
        ValueError: where it stands beside a constructor that does not fit it.
    """
    if isinstance(base, nn.Module):
        if make_model is not None:
            raise InputError("base is the tuned model itself: pass it alone, without make_model.")
        check_plannable(base)
        return None, None
    if base is not None and (not isinstance(base, tuple) or len(base) != 2):
        raise InputTypeError(
            f"base must be the tuned model, or its size as a pair (width, depth); got {base!r}."
        )
    width, depth = base or (None, None)
    if width is not None:
        width = check_count("the width of base", width, maximum=WIDEST)
    if depth is not None:
        depth = check_count("the depth of base", depth, maximum=MOST)
    if make_model is not None and width is None:
        raise InputError("make_model needs base=(width, depth), the size at which you tuned.")
    return width, depth


def depth_of(model: nn.Module, make_model: MakeModel, width: int, where: Where) -> int:
    """Find the depth at which the constructor builds as many tensors as the model has.

    Raises:
        ValueError: where there is none.
    """
    # A unit of depth may be two blocks, or none that is seen.
    depth = max(len(blocks_of(model, where)), 1)
    count = len(tensors(instance(make_model, width, depth, repeats_draws=True)))
    deeper_count = len(tensors(instance(make_model, width, depth + 1, repeats_draws=True)))
    if count == deeper_count:
        # The second argument is not a depth, which ``Constructor.base`` refuses.
        return depth
    more, rest = divmod(len(tensors(model)) - count, deeper_count - count)
    if rest or depth + more < 1:
        raise InputError(
            f"make_model({width}, depth) has as many tensors as the model at no depth. Pass both."
        )
    return depth + more


@dataclass(frozen=True)
class Base:
    """The model that was tuned: its tensors and blocks, and its numbers by another seed."""

    tensors: dict[str, TensorInfo]
    blocks: Blocks
    again: Mapping[str, Tensor] = field(default_factory=dict)
    _starts: dict[str, Start] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, where: Where) -> Self:
        """Read a model whose blocks are at these places."""
        return cls(tensors(model), blocks_of(model, where))

    def beside(self, other: nn.Module) -> Self:
        """Add the numbers of another seed, unless they are all the same.

        Then the constructor sets a seed itself, which says nothing of a structure.
        """
        again = {name: t.drawn() for name, t in tensors(other).items()}
        is_seeded = all(
            t.drawn().equal(again[name]) for name, t in self.tensors.items() if name in again
        )
        return self if is_seeded else replace(self, again=again)

    @cached_property
    def places(self) -> dict[Place, list[str]]:
        """The names of the tensors that stand alike in blocks, by their place."""
        return places_of(self.tensors, self.blocks)

    @cached_property
    def places_of_any_kind(self) -> dict[Place, list[str]]:
        """The same where blocks of one container count as one kind, as a plan names them."""
        return places_of(self.tensors, Blocks(dict.fromkeys(self.blocks, "")))

    def counterpart(self, t: TensorInfo, blocks: Blocks) -> TensorInfo:
        """Return the tensor of the base that corresponds to one of the model.

        Raises:
            ValueError: when there is none.
        """
        return counterpart(t, blocks, self.tensors, self.places)

    def differing(self, model: Base) -> dict[str, tuple[bool, ...]]:
        """Find which dimensions of another model's tensors have another size here.

        A tensor that is not here, or has another number of dimensions, has none.
        """
        differs = {}
        for name, t in model.tensors.items():
            other = self.tensors.get(alike(name, model.blocks, self.places) or "")
            if other is None or len(other.shape) != len(t.shape):
                differs[name] = (False,) * len(t.shape)
            else:
                differs[name] = tuple(a != b for a, b in zip(t.shape, other.shape, strict=True))
        return differs

    def start(self, t: TensorInfo, blocks: Blocks) -> Start:
        """Find how the counterpart of a tensor is initialised.

        Tensors of one name in several blocks are taken together where they agree.
        """
        name = self.counterpart(t, blocks).name
        start = self._start_of_one(name, t.ins)
        is_one_number = self.tensors[name].parameter.numel() == 1 < t.parameter.numel()
        if start.constant is not None and is_one_number and not t.is_bias_of_pytorch:
            # One number shows no law, unless many are the same.
            is_constant = not t.parameter.is_meta and start_of(t.drawn()).constant == start.constant
            return start if is_constant else replace(start, constant=None, kept=True)
        if start.constant is not None or start.kept:
            return start
        starts = {}
        for namesake in self.places[place_of(name, self.blocks)]:
            of_namesake = self._start_of_one(namesake, t.ins)
            if not of_namesake.kept:
                starts[namesake] = of_namesake
        low = min(s.std for s in starts.values())
        high = max(s.std for s in starts.values())
        if not 0 < high <= _ALIKE * low:
            return start
        sizes = {namesake: self.tensors[namesake].parameter.numel() for namesake in starts}
        squares = sum(size * starts[namesake].std ** 2 for namesake, size in sizes.items())
        return replace(start, std=math.sqrt(squares / sum(sizes.values())))

    def _start_of_one(self, name: str, ins: tuple[int, ...] | None) -> Start:
        """Find how one tensor is initialised.

        ``ins``: its dimensions of inputs, as a forward pass of the model shows them.
        """
        if name not in self._starts:
            tensor = replace(self.tensors[name], ins=ins)
            self._starts[name] = start_by(tensor, self.again.get(name))
        return self._starts[name]


# ---- growth over the base


def grown_fans(t: TensorInfo, other: TensorInfo, role: Role) -> tuple[float, float]:
    """Divide fan-in and fan-out of a tensor by those of its counterpart."""
    ratios = [a / b for a, b in zip(t.shape, other.shape, strict=True)]
    fan_out = math.prod(ratios if t.outs is None else (ratios[k] for k in t.outs))
    if role in INPUT_LIKE:
        return 1.0, fan_out
    if t.ins is not None and t.outs is not None:
        group_ratio = 1.0
        # The weight of a transposed convolution is [in, out / groups, ...].
        if isinstance(t.owner, _ConvTransposeNd) and not t.is_vector:
            group_ratio = int(t.owner.groups) / int(cast(_ConvTransposeNd, other.owner).groups)
        return math.prod(ratios[k] for k in t.ins) / group_ratio, fan_out * group_ratio
    if role == "readout":
        return math.prod(ratios), 1.0
    if len(ratios) == 2:
        # A bare matrix is taken to be [out, in], as everywhere in PyTorch.
        return ratios[1], ratios[0]
    if ratios[-2] != ratios[-1] or math.prod(ratios) != ratios[-2] * ratios[-1]:
        raise InputError(
            f"{t.name!r} grew from {list(other.shape)} to {list(t.shape)}: which of its dimensions "
            f"are inputs? Pass roles={{{numberless(t.name)!r}: 'vector'}} if it adds up none of "
            "them, or make it an nn.Linear."
        )
    return ratios[-2], ratios[-1]


def depths_of(blocks: Blocks, base: Blocks) -> dict[str, float]:
    """Divide the depth of every block's stack by its depth in the base.

    Under the name ``""``: the number of all blocks over that of the base.
    """
    base_stacks = stacks_of(base)
    depths = {"": len(blocks) / len(base) if base else 1.0}
    for stack, members in stacks_of(blocks).items():
        base_members = base_stacks.get(stack)
        ratio = len(members) / len(base_members) if base_members else 1.0
        depths |= dict.fromkeys(members, ratio)
    return depths
