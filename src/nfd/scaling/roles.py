"""The role of every tensor of a model: from the user, from a traced forward pass, or from its shape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, cast

from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.scaling.forward import Factors, Scaled, factors_of, own_samples
from nfd.scaling.graph import (
    Branch,
    Fans,
    Operation,
    branches_of,
    fans_of,
    norms_before,
    operations,
    parameters_of,
    writers_of,
)
from nfd.scaling.model import (
    Blocks,
    TensorInfo,
    Where,
    block_of,
    blocks_of,
    container_of,
    followed_outputs,
    matches,
    modules,
    numberless,
    single_blocks,
    tensors,
)
from nfd.scaling.rules import ROLES, Role, Rule

# ---- What one forward pass shows of a model: which tensors write residual streams, and which act inside of branches


_ATTENTION = re.compile("Attention|(?<!Log)Softmax")


@dataclass
class Trace:
    """What was seen, by the names of tensors.

    Attributes:
        writers: tensors that write a stream.
        inside: other tensors of branches, None where the branch has writers, else the operation that prevents it.
        streams: on which streams the branches of a tensor stand.
        seen: every tensor that had a part in the outputs.
        fans: dimensions of tensors that count inputs and outputs.
        unscaled: modules whose outputs are branches that no tensor scales.
        norms: gain and bias of the norm that alone feeds the products with a tensor.
        factors: constant factors of tensors.
        attends: whether something looks like attention: a softmax, alone or fused with its products.
    """

    writers: set[str] = field(default_factory=set)
    inside: dict[str, str | None] = field(default_factory=dict)
    streams: dict[str, Operation] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    fans: dict[str, Fans] = field(default_factory=dict)
    unscaled: set[str] = field(default_factory=set)
    norms: dict[str, frozenset[str]] = field(default_factory=dict)
    factors: dict[str, Factors] = field(default_factory=dict)
    attends: bool = False

    def alike(self, name: str) -> str | None:
        """The tensor itself where it was seen, or one of the same name but for numbers, such as another expert's."""
        if name in self.seen:
            return name
        return next((other for other in sorted(self.seen) if numberless(other) == numberless(name)), None)


def trace(model: nn.Module, sample: Any) -> Trace | None:
    """Run a model once, in eval mode; without a sample, the parts of it that say what they take.

    Returns:
        None where nothing could be run, because no part says it.

    Raises:
        TypeError: when the sample is no input of the model.
    """
    samples = own_samples(model) if sample is None else {"": sample}
    if not samples:
        return None
    if any(p.is_inference() for p in model.parameters()):
        model = deepcopy(model)  # which may be differentiated
    names = {id(t.parameter): name for name, t in tensors(model).items()}
    parts, traced = modules(model), Trace()
    for part, own in samples.items():
        parameters = [t.parameter for t in tensors(parts[part]).values()]
        with _ends_of(parts) as ends, _scaled_in(parts[part]) as scaled:
            outputs = followed_outputs(parts[part], own)
        ran = operations(outputs, parameters)
        branches = branches_of(ran)
        _read(traced, ran, branches, names, ends)
        traced.attends |= any(_ATTENTION.search(o.name) for o in ran)
        returned = {output.grad_fn for output in outputs}
        last = returned | {branch.end.node for branch in branches}
        traced.factors.update({names[key]: own for key, own in factors_of(ran, last, scaled).items()})
        for parameter, norm in norms_before(ran, [o for o in ran if o.node in returned]).items():
            traced.norms[names[id(parameter.parameter)]] = frozenset(names[id(o.parameter)] for o in norm)
    alike = {name: traced.alike(name) for name in names.values()}
    traced.factors = {name: traced.factors[other] for name, other in alike.items() if other is not None}
    return traced


@contextmanager
def _ends_of(parts: Mapping[str, nn.Module]) -> Iterator[dict[Any, str]]:
    """Within it, the innermost module whose output an operation is, by the operation as autograd keeps it."""
    ends: dict[Any, str] = {}

    def keep(name: str, out: Any) -> None:
        if isinstance(out, Tensor) and out.grad_fn is not None:
            ends.setdefault(out.grad_fn, name)

    hooks = [m.register_forward_hook(lambda _m, _in, out, name=name: keep(name, out)) for name, m in parts.items()]
    try:
        yield ends
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _scaled_in(model: nn.Module) -> Iterator[set[Any]]:
    """Within it, the operations that apply the factor of an ``nfd.Scaled``, as autograd keeps them."""
    scaled: set[Any] = set()
    hooks = [
        m.register_forward_hook(lambda _m, _in, out: scaled.add(out.grad_fn))
        for m in model.modules()
        if isinstance(m, Scaled)
    ]
    try:
        yield scaled
    finally:
        for hook in hooks:
            hook.remove()


def _read(
    traced: Trace, ran: list[Operation], branches: list[Branch], names: Mapping[int, str], ends: Mapping[Any, str]
) -> None:
    traced.seen.update(names[id(o.parameter)] for o in ran if o.parameter is not None)
    traced.fans.update({names[key]: fans for key, fans in fans_of(ran).items()})
    for branch in branches:
        _add(traced, branch, _read_in(branch), names, ends)
    for branch in branches:  # keys and values of what is read from elsewhere
        _add(traced, branch, {o for o in branch.inside if o.parameter is not None}, names, ends)


def _read_in(branch: Branch) -> set[Operation]:
    """The parameters that act on what the branch computes from its stream."""
    return {leaf for o in branch.reading for weight in o.weights for leaf in parameters_of(weight)}


def _module_of(branch: Branch, ends: Mapping[Any, str]) -> str | None:
    """The module whose output a branch is, but for rearrangements."""
    operation = branch.end
    while operation.node not in ends:
        if not (operation.is_linear and len(operation.data) == 1):
            return None
        operation = operation.data[0]
    return ends[operation.node] if operation in branch.inside else None


def _add(
    traced: Trace, branch: Branch, parameters: set[Operation], names: Mapping[int, str], ends: Mapping[Any, str]
) -> None:
    writers = writers_of(branch)
    written = frozenset() if isinstance(writers, Operation) else writers
    module = _module_of(branch, ends) if isinstance(writers, Operation) else None
    if module is not None:
        traced.unscaled.add(module)
    for operation in parameters:
        name = names[id(operation.parameter)]
        if name in traced.writers or (name in traced.inside and traced.inside[name] is None):
            continue
        traced.streams[name] = branch.start
        if operation in written:
            traced.writers.add(name)
            traced.inside.pop(name, None)
        else:
            traced.inside[name] = writers.name if isinstance(writers, Operation) and module is None else None


# ---- The role of every tensor of a model: from the user, from a traced forward pass, or from its shape


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


# ---- The role of every tensor under a rule, settled, or one error that lists what is open and what would decide it


_WAYS = {
    RoleReason.NEEDS_SAMPLE: "sample=, an input to trace, such as the inputs of a batch",
    RoleReason.NEEDS_SECOND_SIZE: "make_model= or base= of another width",
    RoleReason.NEEDS_BLOCKS: "blocks=, the names of the modules that add to their input, and of no others",
}


def settled_roles(structure: Anatomy, chosen: Rule, rule: str, model: nn.Module) -> dict[str, tuple[Role, str]]:
    """Every tensor's role and why it has it; a ValueError that lists what is open."""
    decisions = dict(structure.decisions)
    if not chosen.scales_width:  # every factor is 1, whatever the role
        decisions = {n: d if d.role else Decision("vector", d.why) for n, d in decisions.items()}
    elif not chosen.scales_depth:
        inside = tuple(f"{block}." for block in structure.blocks)
        decisions = {
            n: Decision("hidden", "in a block; this rule treats inner and outer alike")
            if d.role is None and n.startswith(inside) and len(structure.tensors[n].names) == 1
            else d
            for n, d in decisions.items()
        }
    if chosen.scales_depth and structure.interrupted:
        raise InputError(f"Rule {rule!r} {_needs(structure.interrupted, model)}")
    undecided = {n: d for n, d in decisions.items() if d.role is None}
    if undecided:
        raise InputError(_question(undecided))
    if chosen.scales_depth and not structure.blocks:
        raise InputError(f"Rule {rule!r} needs residual blocks; none were found. {_where_blocks_are(model)}")
    return {name: (d.role, d.why) for name, d in decisions.items() if d.role is not None}


def _needs(interrupted: Mapping[str, str], model: nn.Module) -> str:
    """What a depth rule needs of the stream, and what stands on it."""
    where, operation = next(iter(interrupted.items()))
    instead = ", or build the model with norm_first=True" if _is_post_norm(model) else ""
    return (
        f"needs a residual stream that passes from block to block unchanged; between those of {where!r} it goes "
        f"through {operation}, as in a model that normalises after adding. Use rule='mup'{instead}."
    )


def _is_post_norm(model: nn.Module) -> bool:
    return any(getattr(module, "norm_first", None) is False for module in model.modules())


def _where_blocks_are(model: nn.Module) -> str:
    """What to do in a model whose blocks are unknown."""
    single = single_blocks(model)
    if not single:
        return "Pass blocks='path.to.blocks.*', or rule='mup' where the model has none."
    return f"One module alone is not known to be a block: pass blocks={single[0]!r}, or take a depth of at least 2."


def _question(undecided: Mapping[str, Decision]) -> str:
    """Which tensors are open, those of several blocks as one line, and what would decide them."""
    lines = list(dict.fromkeys(f"  {numberless(n)}: {d.why}" for n, d in undecided.items()))
    if len(lines) > 12:
        lines = [*lines[:12], f"  and {len(lines) - 12} more"]
    reasons = {decision.reason for decision in undecided.values()}
    ways = [way for reason, way in _WAYS.items() if reason in reasons]
    ways.append(f"the roles yourself: roles={{pattern: role}}, each one of {', '.join(ROLES)}")
    count = "1 tensor" if len(undecided) == 1 else f"{len(undecided)} tensors"
    return "\n".join([f"The plan cannot decide {count}:", *lines, f"Pass {', or '.join(ways)}."])
