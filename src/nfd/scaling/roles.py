"""The role of every tensor of a model: from the user, from a traced forward pass, or from its shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, cast

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.blocks import Blocks, Where, block_of, blocks_of, container_of
from nfd.scaling.names import matches
from nfd.scaling.own_factors import Factors
from nfd.scaling.rules import Role
from nfd.scaling.tensors import TensorInfo, tensors
from nfd.scaling.trace import Trace, trace

Scaling = Mapping[str, tuple[bool, ...]]  # which dimensions of a tensor grow with width


class RoleReason(Enum):
    """What decided a role, or what would decide it."""

    USER = auto()
    OTHER = auto()
    NEEDS_SAMPLE = auto()
    NEEDS_SECOND_SIZE = auto()
    NEEDS_BLOCKS = auto()


@dataclass(frozen=True)
class Decision:
    """A role and why; ``role`` is None where nothing decides, and ``why`` then says what is missing."""

    role: Role | None
    why: str
    reason: RoleReason = RoleReason.OTHER


_NO_SAMPLE = Decision(None, "no sample= to trace", RoleReason.NEEDS_SAMPLE)
_NO_SKIP = Decision(None, "its block does not pass its input on: no skip, or a matrix on it", RoleReason.NEEDS_BLOCKS)


@dataclass(frozen=True)
class Anatomy:
    """What the parts of a model are.

    Attributes:
        interrupted: what stands on the stream between blocks, by the pattern of the blocks: an operation as autograd
            calls it.
        unscaled: modules in blocks whose outputs are branches that no tensor scales.
        norms: gain and bias of the norm that alone feeds the products with a tensor.
        attends: whether something in it looks like attention.
        followed: whether an input was followed through the whole model.
        factors: constant factors of tensors in the forward pass; None where nothing was traced.
    """

    tensors: dict[str, TensorInfo]
    decisions: dict[str, Decision]
    blocks: Blocks
    interrupted: dict[str, str]
    unscaled: tuple[str, ...] = ()
    norms: Mapping[str, frozenset[str]] = field(default_factory=dict)
    attends: bool = False
    followed: bool = True
    factors: Mapping[str, Factors] | None = None


def anatomy(
    model: nn.Module,
    *,
    blocks: Where,
    roles: Mapping[str, str] | None,
    sample: Any,
    scaling: Scaling | None,
) -> Anatomy:
    """Decide the role of every tensor.

    Args:
        blocks, roles: the user's own word; patterns as in ``nfd.plan``.
        sample: an input of the model to trace, or None.
        scaling: which dimensions grow with width, or None where no second size is known.
    """
    traced = trace(model, sample)
    all_tensors = _with_fans(tensors(model), traced)
    names = blocks_of(model, blocks)
    interrupted = {} if traced is None else _interrupted(traced, names)
    decisions = _by_user(all_tensors, roles or {})
    for name, decision in _in_blocks(all_tensors, traced, names, interrupted).items():
        decisions.setdefault(name, decision)
    stream = _stream_width(all_tensors, decisions)
    for name, t in all_tensors.items():
        if name not in decisions:
            decisions[name] = _outside(t, scaling, stream)
    for name, t in all_tensors.items():
        if len(t.names) > 1 and decisions[name].reason is not RoleReason.USER:
            decisions[name] = _shared(t, decisions[name])
    ordered = {name: _like_its_matrix(t, all_tensors, decisions) for name, t in all_tensors.items()}
    if traced is None:
        return Anatomy(all_tensors, ordered, names, interrupted, followed=False)
    unscaled, followed = _unscaled(traced, names, decisions), sample is not None
    return Anatomy(
        all_tensors, ordered, names, interrupted, unscaled, traced.norms, traced.attends, followed, traced.factors
    )


def _with_fans(all_tensors: dict[str, TensorInfo], traced: Trace | None) -> dict[str, TensorInfo]:
    """Tensors whose module does not tell which dimensions are inputs, as the trace shows them."""
    if traced is None:
        return all_tensors
    fans = {name: traced.fans.get(traced.alike(name) or name) for name, t in all_tensors.items() if t.ins is None}
    return {
        name: t if (known := fans.get(name)) is None else replace(t, ins=known.ins, outs=known.outs)
        for name, t in all_tensors.items()
    }


def _interrupted(traced: Trace, blocks: Blocks) -> dict[str, str]:
    """What starts a new stream in containers whose blocks do not all stand on the same streams."""
    starts: dict[str, dict[str, set[Any]]] = {}
    for name, start in traced.streams.items():
        if (block := block_of(name, blocks)) is not None:
            starts.setdefault(container_of(block), {}).setdefault(block, set()).add(start)
    interrupted = {}
    for container, own in starts.items():
        everywhere = set.union(*own.values())
        if len(everywhere) > max(map(len, own.values())):
            interrupted[f"{container}.*".lstrip(".")] = max(everywhere, key=lambda start: start.order).name
    return interrupted


def _in_blocks(
    all_tensors: Mapping[str, TensorInfo], traced: Trace | None, blocks: Blocks, interrupted: Mapping[str, str]
) -> dict[str, Decision]:
    """Of the tensors in blocks, without those of a block that is no residual one among others that are."""
    places = {name: block for name in all_tensors if (block := block_of(name, blocks)) is not None}
    if traced is None:
        return dict.fromkeys(places, _NO_SAMPLE)
    residual = {places[name] for name in traced.streams if name in places}
    others = Counter(container_of(block) for block in blocks if block not in residual)
    containers = {container_of(block) for block in residual}
    decisions = {}
    for name, block in places.items():
        container = container_of(block)
        if f"{container}.*".lstrip(".") in interrupted:
            decisions[name] = Decision("hidden", "in a block whose stream is not passed on unchanged")
        elif block in residual or traced.alike(name) is None:
            decisions[name] = _traced(all_tensors[name], traced)
        elif container not in containers or others[container] > 1:
            decisions[name] = _NO_SKIP
    return decisions


def _traced(t: TensorInfo, traced: Trace) -> Decision:
    """Inner or outer, as the trace shows the tensor or its like."""
    name = traced.alike(t.name)
    if name is None:
        return Decision(None, "the sample never reached it")
    if name in traced.writers:
        return Decision("outer", "writes the residual stream")
    if name in traced.inside:
        obstacle = traced.inside[name]
        if obstacle is not None:
            return Decision(None, f"no tensor scales its branch, which ends in {obstacle}")
        return Decision("inner", "vector in a block" if t.is_vector else "acts inside of a branch")
    return Decision("inner", "vector in a block") if t.is_vector else _NO_SKIP


def _unscaled(traced: Trace, blocks: Blocks, decisions: Mapping[str, Decision]) -> tuple[str, ...]:
    """Without those in blocks of which the user said what writes the stream."""
    writers = [name for name, d in decisions.items() if d.reason is RoleReason.USER and d.role == "outer"]
    decided = {block_of(name, blocks) for name in writers}
    return tuple(name for name in sorted(traced.unscaled) if block_of(name, blocks) not in {None, *decided})


def _by_user(all_tensors: Mapping[str, TensorInfo], roles: Mapping[str, str]) -> dict[str, Decision]:
    decided: dict[str, Decision] = {}
    for pattern, role in roles.items():
        fitting = [name for name, t in all_tensors.items() if any(matches(n, pattern) for n in t.names)]
        if not fitting:
            raise InputError(
                f"roles must name tensors of the model; no match for {pattern!r}. Names look like "
                f"{', '.join(map(repr, list(all_tensors)[:3]))}; '*' stands for one part, a last '**' for the rest."
            )
        for name in fitting:
            decided.setdefault(name, Decision(cast(Role, role), f"roles[{pattern!r}]", RoleReason.USER))
    return decided


def _outside(t: TensorInfo, scaling: Scaling | None, width: int | None) -> Decision:
    """A tensor outside every block, from which of its dimensions grow, or match the stream."""
    if t.ins == () and t.parameter.dim() >= 2:
        return Decision("embedding", "looked up or added")
    if t.is_vector:
        return Decision("vector", "vector outside blocks")
    if scaling is not None:
        grows = scaling[t.name]
        if not any(grows):
            return Decision("vector", "no dimension grows with width")
        if t.ins is None or t.outs is None:
            if all(grows[-2:]) and t.parameter.dim() == 2:
                return Decision("hidden", "both dimensions grow with width")
            return Decision(None, "a bare parameter: input, embedding or readout?")
        into, out_of = any(grows[k] for k in t.ins), any(grows[k] for k in t.outs)
        role: Role = "hidden" if into and out_of else ("readout" if into else "input")
        grown = {"hidden": "fan-in and fan-out grow", "readout": "only its fan-in grows", "input": "only fan-out grows"}
        return Decision(role, f"{grown[role]} with width")
    if width is None or t.ins is None or t.outs is None:
        return Decision(
            None, "outside blocks, and no second size tells which of its dimensions grow", RoleReason.NEEDS_SECOND_SIZE
        )
    into, out_of = (t.shape[axes[0]] == width for axes in (t.ins, t.outs))
    if into == out_of:
        sides = "both sides are" if into else "no side is"
        return Decision(None, f"outside blocks, {sides} the stream's {width}", RoleReason.NEEDS_SECOND_SIZE)
    return Decision("readout", f"reads the stream of {width}") if into else Decision("input", f"writes into {width}")


def _shared(t: TensorInfo, own: Decision) -> Decision:
    """A tensor with several names: a vector, an embedding that is the head as well, or a question."""
    if t.is_vector or not t.readers:
        return own
    if len(t.readers) < len(t.names):
        return Decision("tied", f"an embedding shared with {', '.join(t.readers)}")
    return Decision(None, f"shared by {', '.join(t.names)}")


def _like_its_matrix(
    t: TensorInfo, all_tensors: Mapping[str, TensorInfo], decisions: Mapping[str, Decision]
) -> Decision:
    """A bias has the role of the matrix beside it, its width factors those of a vector."""
    own = decisions[t.name]
    beside = f"{t.owner_name}.weight".lstrip(".")
    if not t.is_vector or t.name == beside or own.reason is RoleReason.USER:
        return own
    matrix = all_tensors.get(beside)
    if matrix is None or matrix.is_vector or decisions[beside].role is None or decisions[beside].role == "tied":
        return own
    return Decision(decisions[beside].role, f"bias of a matrix that is {decisions[beside].role}")


def _stream_width(all_tensors: Mapping[str, TensorInfo], decisions: Mapping[str, Decision]) -> int | None:
    """The fan-out of what writes the stream, where all agree."""
    matrices = [t for t in all_tensors.values() if t.outs and not t.is_vector]
    writers = [t for t in matrices if t.name in decisions and decisions[t.name].role == "outer"]
    tables = [t for t in matrices if t.ins == ()]
    outs = {t.shape[axis] for t in writers or tables for axis in (t.outs or ())}
    return outs.pop() if len(outs) == 1 else None
