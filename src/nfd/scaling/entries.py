"""What a plan holds of every tensor: how it begins in the base, and how much larger than there it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from nfd.core.errors import InputError, InputTypeError, check_count, check_takes
from nfd.core.random import global_streams
from nfd.scaling.graph import Own
from nfd.scaling.model import (
    Blocks,
    Place,
    TensorInfo,
    alike,
    block_of,
    check_not_complex,
    container_of,
    counterpart,
    in_any_block,
    listed,
    place_of,
    places_of,
    stacks_of,
    tensors,
)
from nfd.scaling.roles import Anatomy, Scaling
from nfd.scaling.rules import INPUT_LIKE, SPECTRAL, Power, Role, Rule

MakeModel = Callable[[int, int], nn.Module]
Layout = Literal["out-in", "in-out"]
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


@dataclass(frozen=True)
class Entry:
    """The part of a plan that describes one tensor.

    Attributes:
        shape, role, why: its shape, its role, and the reason for this role.
        fan_in: number of inputs that one of its outputs sums; None if its module does not say.
        ratios: its fan-in and fan-out, as multiples of those in the base.
        start: initial weights of the same tensor in the base.
        multiplier: powers by which the model's own forward multiplier scales.
        matrix: memory layout of a matrix between two sizes that grow: ``"out-in"`` (as ``nn.Linear``) or ``"in-out"``;
            None for any other tensor.
        depth: blocks of its stack, as a multiple of those in the base, where stacks grow by different factors; None
            where the depth of the plan is its own.
        own_factor: the constant by which the forward pass of the user's model multiplies it, over that of the base.
    """

    shape: tuple[Whole, ...]
    role: Role
    why: str
    fan_in: Whole | None
    ratios: Ratios
    start: Start
    multiplier: Power = field(default=Power())
    matrix: Layout | None = None
    depth: Positive | None = None
    own_factor: Positive = 1.0

    @property
    def base_matrix(self) -> tuple[float, float]:
        """Rows and columns of the same matrix in the base."""
        rows, columns = self.shape
        grown = self.ratios.fan_out, self.ratios.fan_in
        grown = grown if self.matrix == "out-in" else grown[::-1]
        return rows / grown[0], columns / grown[1]

    @property
    def is_vector(self) -> bool:
        """Whether it has at most one dimension, as biases and gains."""
        return len(self.shape) < 2


@dataclass(frozen=True)
class Parts:
    """What a plan is made of beside its choices."""

    entries: dict[str, Entry]
    width: float
    depth: float
    blocks: list[str]
    multipliers: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


# ---- Instances of the user's constructor.


def instance(make_model: MakeModel, width: int, depth: int, seed: int | None = None) -> nn.Module:
    """A model of the user's constructor, from this seed if one is given; leaves the random streams as they were."""
    width, depth = check_count("width", width), check_count("depth", depth)
    check_takes("make_model", make_model, "width", "depth")
    with global_streams(seed):
        made: Any = make_model(width, depth)
    if not isinstance(made, nn.Module):
        raise InputTypeError(f"make_model(width, depth) must return a torch.nn.Module; got {type(made).__name__}.")
    check_not_complex(made)
    return made


def check_constructor(make_model: MakeModel, widths: Sequence[int], depths: Sequence[int]) -> None:
    """Raise ValueError unless width changes shapes, and depth adds parameters without changing any; by the first two
    of each."""
    first = widths[0]
    small = tensors(instance(make_model, first, depths[0]))
    for width, depth in [(width, depths[0]) for width in widths[1:2]] + [(first, depth) for depth in depths[1:2]]:
        other = tensors(instance(make_model, width, depth))
        grows = any(name in other and other[name].shape != t.shape for name, t in small.items())
        if not grows if width != first else grows or len(small) == len(other):
            wanted = "other shapes" if width != first else "more blocks, and the same shapes in those they share"
            raise InputError(
                f"make_model({width}, {depth}) must have {wanted}, compared with make_model({first}, {depths[0]}): "
                "does it use its first argument, width, and its second, depth, or are they (depth, width)?"
            )


# ---- How tensors begin.

_MEANT, _MANY = 6.0, 30  # standard errors beyond which the mean of so many numbers is not chance
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

    Kept is what both seeds share, equal or correlated beyond chance, and every vector but the biases that layers of
    PyTorch draw, whose law is known.
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


@dataclass(frozen=True)
class Base:
    """A small instance that was tuned: its tensors and blocks, and the numbers that another seed gives its tensors."""

    tensors: dict[str, TensorInfo]
    blocks: Blocks
    again: Mapping[str, Tensor] = field(default_factory=dict)
    _starts: dict[str, Start] = field(default_factory=dict)

    @cached_property
    def places(self) -> dict[Place, list[str]]:
        """The names of the tensors that stand alike in blocks, by their place."""
        return places_of(self.tensors, self.blocks)

    def of(self, t: TensorInfo, blocks: Blocks) -> TensorInfo:
        """The tensor of the base that corresponds to one of the model; ValueError when there is none."""
        return counterpart(t, blocks, self.tensors, self.places)

    def differing(self, of: Mapping[str, TensorInfo], blocks: Blocks) -> dict[str, tuple[bool, ...]]:
        """Which dimensions of a model's tensors are others here; none of a tensor that is not here."""
        differs = {}
        for name, t in of.items():
            other = self.tensors.get(alike(name, blocks, self.places) or "")
            shape = other.shape if other is not None and len(other.shape) == len(t.shape) else t.shape
            differs[name] = tuple(a != b for a, b in zip(t.shape, shape, strict=True))
        return differs

    def start(self, t: TensorInfo, blocks: Blocks) -> Start:
        """How the counterpart begins; tensors of one name in several blocks are taken together where they agree."""
        name = self.of(t, blocks).name
        own = self._own(name)
        if own.constant is not None and self.tensors[name].parameter.numel() == 1 < t.parameter.numel():
            return own if t.is_bias_of_pytorch else replace(own, constant=None, kept=True)  # one number shows no law
        if own.constant is not None or own.kept:
            return own
        same = self.places[place_of(name, self.blocks)]
        starts = {n: self._own(n) for n in same if not self._own(n).kept}
        low, high = min(s.std for s in starts.values()), max(s.std for s in starts.values())
        if not 0 < high <= _ALIKE * low:
            return own
        sizes = {n: self.tensors[n].parameter.numel() for n in starts}
        square = sum(size * starts[n].std ** 2 for n, size in sizes.items()) / sum(sizes.values())
        return replace(own, std=math.sqrt(square))

    def _own(self, name: str) -> Start:
        if name not in self._starts:
            self._starts[name] = start_by(self.tensors[name], self.again.get(name))
        return self._starts[name]


# ---- How much larger tensors are.


def ratios(t: TensorInfo, other: TensorInfo, role: Role) -> Ratios:
    """From the shapes of a tensor and of its counterpart."""
    grown = [a / b for a, b in zip(t.shape, other.shape, strict=True)]
    outs = math.prod(grown if t.outs is None else (grown[k] for k in t.outs))
    if role in INPUT_LIKE:
        return Ratios(1.0, outs)
    if t.ins is not None and t.outs is not None:
        split = 1.0
        if isinstance(t.owner, _ConvTransposeNd) and not t.is_vector:  # its weight is [in, out / groups, ...]
            split = int(t.owner.groups) / int(cast(_ConvTransposeNd, other.owner).groups)
        return Ratios(math.prod(grown[k] for k in t.ins) / split, outs * split)
    if role == "readout":
        return Ratios(math.prod(grown), 1.0)
    if len(grown) == 2:  # a bare matrix is taken to be [out, in], as everywhere in PyTorch
        return Ratios(grown[1], grown[0])
    if grown[-2] != grown[-1] or math.prod(grown) != grown[-2] * grown[-1]:
        raise InputError(
            f"{t.name!r} grew from {list(other.shape)} to {list(t.shape)}: which of its dimensions are inputs? Pass "
            f"roles={{{t.name!r}: 'vector'}} if it adds up none of them, or make it an nn.Linear."
        )
    return Ratios(grown[-2], grown[-1])


Settled = Mapping[str, tuple[Role, str]]  # every tensor's role, and why


def entries_of(
    structure: Anatomy,
    settled: Settled,
    scaling: Scaling,
    base: Base | None = None,
    depths: Mapping[str, float] | None = None,
) -> dict[str, Entry]:
    """How every tensor begins, and its ratios to its counterpart in the base.

    Args:
        scaling: which dimensions grow with width; a matrix with a side that does not, such as a router, has no layout.
        depths: as ``depths_of`` finds them.
    """
    entries, blocks = {}, structure.blocks
    begun, deeper = base or Base(structure.tensors, blocks), depths or {}
    one_sided = {in_any_block(n, blocks) for n, grows in scaling.items() if any(grows) and not all(grows)}
    for name, t in structure.tensors.items():
        role, why = settled[name]
        grown = Ratios(1.0, 1.0) if base is None else ratios(t, base.of(t, blocks), role)
        start, depth = begun.start(t, blocks), deeper.get(block_of(name, blocks) or "")
        matrix = None if in_any_block(name, blocks) in one_sided else layout_of(t)
        entries[name] = Entry(t.shape, role, why, t.fan_in(), grown, start, matrix=matrix, depth=depth)
    return entries


def layout_of(t: TensorInfo) -> Layout | None:
    """How the weight of a linear map lies in memory; None for every other tensor, stacks of matrices included."""
    if len(t.shape) != 2 or not t.ins or not t.outs:
        return None
    return "out-in" if t.outs == (0,) else "in-out"


def depths_of(blocks: Iterable[str], base: Iterable[str]) -> dict[str, float]:
    """How much deeper than in the base the stack of every block is, where stacks grow by different factors; else
    none."""
    tuned, depths = stacks_of(base), dict[str, float]()
    for stack, own in stacks_of(blocks).items():
        depths |= dict.fromkeys(own, len(own) / len(tuned[stack]) if tuned.get(stack) else 1.0)
    return depths if len(set(depths.values())) > 1 else {}


# ---- What the model does itself: factors in its forward pass, heads that are embeddings, constants of its own.


def with_own_factors(
    entries: Mapping[str, Entry], own: Mapping[str, Own | None], blocks: Collection[str]
) -> tuple[dict[str, Entry], list[str]]:
    """Entries that know the model's own factors; and what to say of them."""
    made, met, left = dict(entries), dict[str, None](), dict[str, None]()
    for name, factors in own.items():
        if factors is None:
            left[in_any_block(name, blocks)] = None
            continue
        first = factors.looked_up != 1 or entries[name].role == "tied"  # with_multipliers sees the other of a tied head
        made[name] = replace(entries[name], own_factor=factors.looked_up if first else factors.applied)
        met[in_any_block(name, blocks)] = None
    notes = []
    if met:
        notes.append(
            f"The model's own forward pass multiplies {listed([*met], 8)} by factors that change with size: starts and "
            "rates make up for that."
        )
    if left:
        notes.append(
            f"The forward pass multiplies {listed([*left])} by factors that change with size in more than one way; "
            "the plan does not make up for them. Give each one factor, and pass make_model=."
        )
    return made, notes


def with_multipliers(
    structure: Anatomy, entries: Mapping[str, Entry], own: Mapping[str, Own | None]
) -> tuple[dict[str, Entry], dict[str, float], list[str]]:
    """The factor 1/m of an embedding that is the head as well, for which no start can stand: as a forward factor by
    module name, or in gain and bias of the norm that alone feeds the head; and what to say of it."""
    made, factors, notes = dict(entries), dict[str, float](), list[str]()
    for name, head in entries.items():
        applied = (own.get(name) or Own()).applied  # what the model multiplies the head by is in it already
        factor = head.own_factor / (head.ratios.fan_out * applied)
        if head.role != "tied" or math.isclose(factor, 1, rel_tol=1e-4):
            continue
        norm = structure.traced.norms.get(name, frozenset())
        if norm and all(
            entries[n].ratios == head.ratios
            and entries[n].start.constant is not None
            and structure.tensors[n].parameter.requires_grad
            for n in norm
        ):
            more = applied / head.own_factor
            made |= {n: replace(entries[n], multiplier=Power(fan_out=1.0), own_factor=more) for n in norm}
            notes.append(f"{name} is the head as well: {' and '.join(sorted(norm))} take its factor {factor:.4g}.")
            continue
        heads = [container_of(n) for n in structure.tensors[name].readers]
        factors |= dict.fromkeys(heads, factor)
        notes.append(
            f"{name} is the head as well, and no affine norm is seen to feed it alone (sample= may show one): "
            f"plan.apply_ wraps {', '.join(heads)} in nfd.Scaled, which renames its entries of the state_dict; the "
            "factor is in plan.multipliers."
        )
    return made, factors, notes


def with_own_constants(structure: Anatomy, entries: Mapping[str, Entry], chosen: Rule) -> dict[str, Entry]:
    """Constants as the model has them where the rule does not scale them: its constructor may let them depend on width,
    depth or place."""
    made = dict(entries)
    for name, t in structure.tensors.items():
        entry, power = entries[name], chosen.std(entries[name].role) * entries[name].multiplier ** -1
        scales = (power.of_vector() if t.is_vector else power) != Power() or entry.own_factor != 1
        if entry.start.constant is not None and not scales and not t.parameter.is_meta and t.parameter.requires_grad:
            begins = start_of(t.drawn())
            made[name] = entry if begins.constant is None else replace(entry, start=begins)
    return made


# ---- Matrices that a spectral optimizer may take.


def acts_inside(name: str, entry: Entry, blocks: Sequence[str]) -> bool:
    """Whether a tensor acts in the blocks of a model: not at its ends, nor on what conditions the blocks from outside,
    such as the time of a diffusion model. A model without blocks is one."""
    return entry.role in SPECTRAL and (entry.role != "hidden" or not blocks or block_of(name, blocks) is not None)


def notes_on_matrices(entries: Mapping[str, Entry], blocks: Sequence[str], rest: str) -> list[str]:
    """What the reader should know of an optimizer that normalises matrices in blocks and leaves others to ``rest``."""
    notes = ["Each matrix is orthogonalised as a whole, also one of several heads or maps, such as fused queries."]
    left = [
        in_any_block(name, blocks)
        for name, entry in entries.items()
        if len(entry.shape) > 1
        and entry.role in SPECTRAL
        and (entry.matrix is None or not acts_inside(name, entry, blocks))
    ]
    if left:
        kinds = "Convolutions, stacks, and matrices with a fixed side or outside of blocks"
        notes.append(f"{kinds} go to {rest}: {', '.join(dict.fromkeys(left))}.")
    return notes
