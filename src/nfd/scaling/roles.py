"""The role of every tensor of a model: from the user, from a traced forward pass, or from its shape."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.scaling.graph import (
    Factors,
    Fans,
    Operation,
    branches_of,
    factors_of,
    fans_of,
    norms_before,
    operations,
    parameters_of,
    writers_of,
)
from nfd.scaling.model import (
    Blocks,
    Scaled,
    TensorInfo,
    Where,
    block_of,
    blocks_of,
    container_of,
    counterpart,
    matches,
    modules,
    numberless,
    places_of,
    tensors,
)
from nfd.scaling.rules import ROLES, Role, Rule
from nfd.scaling.samples import followed_outputs, on_device

Scaling = Mapping[str, tuple[bool, ...]]  # which dimensions of a tensor grow with width


class Decision(NamedTuple):
    """A role and why; where nothing decides, what is missing and what would decide."""

    role: Role | None
    why: str
    remedy: str = ""


_NO_SAMPLE = Decision(None, "no sample= to trace", "sample=, an input to trace, such as the inputs of a batch")
_NO_SKIP = Decision(
    None,
    "its block does not pass its input on: no skip, or a matrix on it",
    "blocks=, the names of the modules that add to their input, and of no others",
)
# ---- What one forward pass shows.

_ATTENTION = re.compile("Attention|(?<!Log)Softmax")


@dataclass(frozen=True)
class Trace:
    """What was seen, by the names of tensors.

    Attributes:
        seen: every tensor that had a part in the outputs; none where nothing could be run.
        acts: what it does, of tensors in branches.
        streams: on which stream its branch stands, by where the stream starts.
        fans: dimensions of tensors that count inputs and outputs.
        norms: gain and bias of the norm that alone feeds the products with a tensor.
        factors: constant factors of the tensors of the model that ran.
        unscaled: modules whose outputs are branches that no tensor scales.
        attends: whether something looks like attention: a softmax, alone or fused with its products.
    """

    seen: frozenset[str] = frozenset()
    acts: dict[str, Decision] = field(default_factory=dict)
    streams: dict[str, Operation] = field(default_factory=dict)
    fans: dict[str, Fans] = field(default_factory=dict)
    norms: dict[str, frozenset[str]] = field(default_factory=dict)
    factors: dict[str, Factors] = field(default_factory=dict)
    unscaled: frozenset[str] = frozenset()
    attends: bool = False

    def alike(self, name: str) -> str | None:
        """The tensor itself where it was seen, or one of the same name but for numbers, such as another expert's."""
        same = (other for other in sorted(self.seen) if numberless(other) == numberless(name))
        return name if name in self.seen else next(same, None)

    def of(self, names: Mapping[str, str]) -> Trace:
        """The same for every tensor of a model, from the names that its tensors have in the model that ran."""
        shown = {name: other for name, there in names.items() if (other := self.alike(there)) is not None}
        back = {there: name for name, there in names.items()}
        return replace(
            self,
            seen=frozenset(shown),
            acts={name: self.acts[other] for name, other in shown.items() if other in self.acts},
            streams={name: self.streams[there] for name, there in names.items() if there in self.streams},
            fans={name: self.fans[other] for name, other in shown.items() if other in self.fans},
            norms={
                back[head]: frozenset(back[n] for n in norm)
                for head, norm in self.norms.items()
                if {head, *norm} <= back.keys()
            },
        )


def trace(model: nn.Module, sample: Any) -> Trace:
    """Run a model once, in eval mode, on a sample, or on the ids that a model of Hugging Face brings with it.

    Raises:
        TypeError: when the sample is no input of the model.
    """
    if sample is None and getattr(model, "main_input_name", None) == "input_ids":
        place = next((p.device for p in model.parameters()), None)
        sample = on_device(getattr(model, "dummy_inputs", None), place)
    if sample is None:
        return Trace()
    if any(p.is_inference() for p in model.parameters()):
        model = deepcopy(model)  # which may be differentiated
    places = {id(module): name for name, module in reversed(modules(model).items())}
    ends: dict[Any, str] = {}  # the innermost module whose output an operation is
    scaled: set[Any] = set()  # operations that apply the factor of an nfd.Scaled

    def see(module: nn.Module, _inputs: Any, out: Any) -> None:
        node = out.grad_fn if isinstance(out, Tensor) else None
        if isinstance(module, Scaled):
            scaled.add(node)
        elif id(module) in places:
            ends.setdefault(node, places[id(module)])

    hooks = [module.register_forward_hook(see) for module in model.modules()]
    try:
        outputs = followed_outputs(model, sample)
    finally:
        for hook in hooks:
            hook.remove()
    ran, returned = operations(outputs, model.parameters()), {output.grad_fn for output in outputs}
    names = {id(t.parameter): name for name, t in tensors(model).items()}
    branches = [(branch, writers_of(branch)) for branch in branches_of(ran)]
    unscaled = {
        branch.end: module
        for branch, writers in branches
        if isinstance(writers, Operation) and (module := _module_of(branch.end, branch.inside, ends)) is not None
    }
    acts, streams = dict[str, Decision](), dict[str, Operation]()
    reading = [{p for o in b.reading for weight in o.weights for p in parameters_of(weight)} for b, _ in branches]
    inside = [{o for o in b.inside if o.parameter is not None} for b, _ in branches]  # keys and values from elsewhere
    for (branch, writers), parameters in zip(branches * 2, reading + inside, strict=True):
        for operation in parameters:
            name = names[id(operation.parameter)]
            if name in acts and acts[name].role is not None:
                continue
            streams[name] = branch.start
            if not isinstance(writers, Operation) and operation in writers:
                acts[name] = Decision("outer", "writes the residual stream")
            elif isinstance(writers, Operation) and branch.end not in unscaled:
                acts[name] = Decision(None, f"no tensor scales its branch, which ends in {writers.name}")
            else:
                is_vector = cast(Tensor, operation.parameter).dim() < 2
                acts[name] = Decision("inner", "vector in a block" if is_vector else "acts inside of a branch")
    factors = factors_of(ran, returned | {branch.end.node for branch, _ in branches}, scaled)
    norms = norms_before(ran, [o for o in ran if o.node in returned])
    traced = Trace(
        frozenset(names[id(o.parameter)] for o in ran if o.parameter is not None),
        acts,
        streams,
        {names[key]: fans for key, fans in fans_of(ran).items()},
        {names[id(p.parameter)]: frozenset(names[id(o.parameter)] for o in norm) for p, norm in norms.items()},
        {names[key]: own for key, own in factors.items()},
        frozenset(unscaled.values()),
        any(_ATTENTION.search(o.name) for o in ran),
    )
    alike = {name: traced.alike(name) for name in names.values()}
    return replace(traced, factors={name: traced.factors[other] for name, other in alike.items() if other is not None})


def _module_of(end: Operation, inside: tuple[Operation, ...], ends: Mapping[Any, str]) -> str | None:
    """The module whose output a branch is, but for rearrangements."""
    while end.node not in ends:
        if not (end.is_linear and len(end.data) == 1):
            return None
        end = end.data[0]
    return ends[end.node] if end in inside else None


# ---- The parts of a model.


@dataclass(frozen=True)
class Anatomy:
    """What the parts of a model are.

    Attributes:
        interrupted: what stands on the stream between blocks, by the pattern of the blocks: an operation as autograd
            calls it.
        traced: what a forward pass showed, without its streams; unscaled branches are those in blocks.
    """

    tensors: dict[str, TensorInfo]
    decisions: dict[str, Decision]
    blocks: Blocks
    interrupted: dict[str, str]
    traced: Trace


def is_unbuilt(model: nn.Module) -> bool:
    """Whether tensors of a model are on the meta device."""
    return any(p.is_meta for p in model.parameters())


def anatomy(
    model: nn.Module,
    base: nn.Module | None,
    *,
    blocks: Where,
    roles: Mapping[str, str],
    sample: Any,
    scaling: Scaling,
) -> Anatomy:
    """Decide the role of every tensor; of a model on the meta device, by what its base shows.

    Args:
        blocks, roles: the user's own word; patterns as in ``nfd.plan``.
        sample: an input of the model to trace, or None.
        scaling: which dimensions grow with width; none where no second size is known.

    Raises:
        ValueError: for a pattern that fits nothing, and for a model on the meta device without a base.
    """
    names, own = blocks_of(model, blocks), tensors(model)
    if not is_unbuilt(model):
        traced = trace(model, sample).of({name: name for name in own})
    elif base is None:
        raise InputError(
            "The model is on the meta device, so nothing can be traced in it. Pass make_model= and base=(width, "
            "depth), or the tuned model as base=: roles and starts are then found there."
        )
    else:
        there = tensors(base)
        places = places_of(there, blocks_of(base, blocks))
        traced = trace(base, sample).of({name: counterpart(t, names, there, places).name for name, t in own.items()})
        alike = set(map(numberless, traced.unscaled))
        traced = replace(traced, unscaled=frozenset(n for n in modules(model) if numberless(n) in alike))
    own |= {n: replace(own[n], ins=ins, outs=outs) for n, (ins, outs) in traced.fans.items() if own[n].ins is None}
    interrupted = _interrupted(traced, names)
    said = _by_user(own, roles)
    decisions = _in_blocks(own, traced, names, interrupted) | said
    decisions |= {n: _outside(t, scaling.get(n, ())) for n, t in own.items() if n not in decisions}
    for name, t in own.items():
        if len(t.names) > 1 and t.readers and not t.is_vector and name not in said:
            is_tied = len(t.readers) < len(t.names)
            why = f"an embedding shared with {', '.join(t.readers)}" if is_tied else f"shared by {', '.join(t.names)}"
            decisions[name] = Decision("tied" if is_tied else None, why)
    decisions |= {name: _like_its_matrix(t, own, decisions) for name, t in own.items() if name not in said}
    told = {block_of(name, names) for name, decision in said.items() if decision.role == "outer"}  # what writes there
    unscaled = frozenset(name for name in traced.unscaled if block_of(name, names) not in {None, *told})
    # streams hold the operations, and these the activations of the whole pass: they are let go
    ordered = {name: decisions[name] for name in own}
    return Anatomy(own, ordered, names, interrupted, replace(traced, unscaled=unscaled, streams={}))


def _interrupted(traced: Trace, blocks: Blocks) -> dict[str, str]:
    """What starts a new stream in containers whose blocks do not all stand on the same streams."""
    starts: dict[str, dict[str, set[Operation]]] = {}
    for name, start in traced.streams.items():
        if (block := block_of(name, blocks)) is not None:
            starts.setdefault(_pattern(block), {}).setdefault(block, set()).add(start)
    everywhere = {pattern: set[Operation]().union(*own.values()) for pattern, own in starts.items()}
    return {
        pattern: max(found, key=lambda start: start.order).name
        for pattern, found in everywhere.items()
        if len(found) > max(map(len, starts[pattern].values()))
    }


def _pattern(block: str) -> str:
    """The pattern of the blocks beside one."""
    return f"{container_of(block)}.*".lstrip(".")


def _by_user(own: Mapping[str, TensorInfo], roles: Mapping[str, str]) -> dict[str, Decision]:
    decided: dict[str, Decision] = {}
    for pattern, role in roles.items():
        fitting = [name for name, t in own.items() if any(matches(n, pattern) for n in t.names)]
        if not fitting:
            raise InputError(
                f"roles must name tensors of the model; no match for {pattern!r}. Names look like "
                f"{', '.join(map(repr, list(own)[:3]))}; '*' stands for one part, a last '**' for the rest."
            )
        decided = dict.fromkeys(fitting, Decision(cast(Role, role), f"roles[{pattern!r}]")) | decided
    return decided


def _in_blocks(
    own: Mapping[str, TensorInfo], traced: Trace, blocks: Blocks, interrupted: Mapping[str, str]
) -> dict[str, Decision]:
    """Of the tensors in blocks, without those of a block that is no residual one among others that are."""
    places = {name: block for name in own if (block := block_of(name, blocks)) is not None}
    if not traced.seen:
        return dict.fromkeys(places, _NO_SAMPLE)
    residual = {places[name] for name in traced.streams if name in places}
    others = Counter(container_of(block) for block in blocks if block not in residual)
    containers = {container_of(block) for block in residual}
    decisions = {}
    for name, block in places.items():
        if _pattern(block) in interrupted:
            decisions[name] = Decision("hidden", "in a block whose stream is not passed on unchanged")
        elif name not in traced.seen:
            decisions[name] = Decision(None, "the sample never reached it")
        elif block in residual:
            beside = Decision("inner", "vector in a block") if own[name].is_vector else _NO_SKIP
            decisions[name] = traced.acts.get(name, beside)
        elif container_of(block) not in containers or others[container_of(block)] > 1:
            decisions[name] = _NO_SKIP
    return decisions


def _outside(t: TensorInfo, grows: tuple[bool, ...]) -> Decision:
    """A tensor outside every block, from which of its dimensions grow with width."""
    if t.is_vector:
        return Decision("vector", "vector outside blocks")
    if t.ins == ():
        return Decision("embedding", "looked up or added")
    if not any(grows):
        return Decision("vector", "no dimension grows with width")
    if t.ins is None or t.outs is None:
        if grows == (True, True):
            return Decision("hidden", "both dimensions grow with width")
        return Decision(None, "a bare parameter: input, embedding or readout?")
    into, out_of = any(grows[k] for k in t.ins), any(grows[k] for k in t.outs)
    if into and out_of:
        return Decision("hidden", "fan-in and fan-out grow with width")
    if into:
        return Decision("readout", "only its fan-in grows with width")
    return Decision("input", "only fan-out grows with width")


def _like_its_matrix(t: TensorInfo, own: Mapping[str, TensorInfo], decisions: Mapping[str, Decision]) -> Decision:
    """A bias has the role of the matrix beside it, its width factors those of a vector."""
    beside = own.get(f"{container_of(t.name)}.weight".lstrip("."))
    role = None if beside is None or beside.is_vector or not t.is_vector else decisions[beside.name].role
    return decisions[t.name] if role in (None, "tied") else Decision(role, f"bias of a matrix that is {role}")


# ---- Roles under a rule, settled, or one error that lists what is open and what would decide it.


def settled_roles(structure: Anatomy, chosen: Rule, rule: str) -> dict[str, tuple[Role, str]]:
    """Every tensor's role and why it has it; a ValueError that lists what is open."""
    settled, undecided = dict[str, tuple[Role, str]](), dict[str, Decision]()
    for name, decision in structure.decisions.items():
        in_block = block_of(name, structure.blocks) is not None and len(structure.tensors[name].names) == 1
        if decision.role is not None:
            settled[name] = decision.role, decision.why
        elif not chosen.scales_width:  # every factor is 1, whatever the role
            settled[name] = "vector", decision.why
        elif not chosen.scales_depth and in_block:
            settled[name] = "hidden", "in a block; this rule treats inner and outer alike"
        else:
            undecided[name] = decision
    if chosen.scales_depth and structure.interrupted:
        where, operation = next(iter(structure.interrupted.items()))
        raise InputError(
            f"Rule {rule!r} needs a residual stream that passes from block to block unchanged; between those of "
            f"{where!r} it goes through {operation}, as in a model that normalises after adding. Use rule='mup', or "
            "build the model with norms inside of its branches (norm_first=True)."
        )
    if undecided:
        lines = [*dict.fromkeys(f"  {numberless(n)}: {d.why}" for n, d in undecided.items())]
        lines = [*lines[:12], f"  and {len(lines) - 12} more"] if len(lines) > 12 else lines
        ways = [*dict.fromkeys(d.remedy for d in undecided.values() if d.remedy)]
        ways.append(f"the roles yourself: roles={{pattern: role}}, each one of {', '.join(ROLES)}")
        count = "1 tensor" if len(undecided) == 1 else f"{len(undecided)} tensors"
        raise InputError("\n".join([f"The plan cannot decide {count}:", *lines, f"Pass {', or '.join(ways)}."]))
    if chosen.scales_depth and not structure.blocks:
        raise InputError(
            f"Rule {rule!r} needs residual blocks; none were found. Pass blocks='path.to.blocks.*' (one module alone "
            "is not known to be a block), or rule='mup' where the model has none."
        )
    return settled
