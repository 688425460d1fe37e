"""The role of every tensor of a model: from the user, from a traced forward pass, or from its
shape.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.words import quoted
from nfd.scaling.constants import Factors, Logits, factors_of, logits_of
from nfd.scaling.fans import Fans, fans_of
from nfd.scaling.graph import Operation, operations, parameters_of
from nfd.scaling.model import (
    Blocks,
    Scaled,
    TensorInfo,
    Where,
    block_of,
    blocks_of,
    container_of,
    counterpart,
    in_any_block,
    matches,
    modules,
    numberless,
    places_of,
    tensors,
)
from nfd.scaling.rules import ROLES, Role, rule_named
from nfd.scaling.samples import followed_outputs, on_device
from nfd.scaling.streams import Branch, learned_number, norm_before, streams_of, writers_of

Scaling = Mapping[str, tuple[bool, ...]]  # which dimensions of a tensor grow with width
Decision = tuple[Role | None, str]  # a role and why; where nothing decides, what is missing

# ---- What one forward pass shows.

_ATTENTION = re.compile("Attention|(?<!Log)Softmax")


class Stream(NamedTuple):
    """A stream: when it starts, the level on which a branch is added, and what interrupts it, in
    words.
    """

    order: int
    level: float
    interrupted_by: str


@dataclass(frozen=True)
class Shown:
    """What a tensor that had a part in the outputs did.

    Attributes:
        act: its role in a branch, and why; None outside of branches.
        stream: on which stream its branch stands.
        fans: dimensions that count inputs and outputs, where a product or an operation on entries
            shows them; in the order of uses that differ.
        norm: of an embedding that is the head as well, gain and bias of the norm that feeds the
            head alone.
        factors: what the model multiplies it by.
        within: what writes the stream behind the sum on whose side way its branch stands.
        uses: in how many branches it acts: of blocks that are applied again and again.
    """

    act: Decision | None
    stream: Stream | None
    fans: tuple[Fans, ...]
    norm: frozenset[str]
    factors: Factors
    within: frozenset[str] = frozenset()
    uses: int = 1


@dataclass(frozen=True)
class Trace:
    """What was seen: by the names of tensors, none where nothing could be run; ``unscaled``,
    modules whose outputs are branches that no tensor scales; whether something looks like
    attention, a softmax alone or fused; and ``logits``, how attention multiplies what matrices of
    queries and keys make."""

    tensors: Mapping[str, Shown] = field(default_factory=dict)
    unscaled: frozenset[str] = frozenset()
    attends: bool = False
    logits: Mapping[str, Logits] = field(default_factory=dict)

    @property
    def factors(self) -> dict[str, Factors]:
        """What the model multiplies every tensor by."""
        return {name: shown.factors for name, shown in self.tensors.items()}

    def of(self, names: Mapping[str, str]) -> Trace:
        """The same for every tensor of a model, from the names that its tensors have in the model
        that ran. One that did not run shows what one of the same name but for numbers shows, such
        as another expert."""
        namesakes = {
            pattern: other for other in self.tensors for pattern in _but_for_numbers(other)
        }
        back = {there: name for name, there in names.items()}
        shown = dict[str, Shown]()
        for name, there in names.items():
            other = next(
                (namesakes[pattern] for pattern in _but_for_numbers(there) if pattern in namesakes),
                None,
            )
            if other is not None:
                norm = frozenset(back[n] for n in self.tensors[other].norm if n in back)
                within = frozenset(back[n] for n in self.tensors[other].within if n in back)
                shown[name] = replace(self.tensors[other], norm=norm, within=within)
        return replace(self, tensors=shown)


def _but_for_numbers(name: str) -> Iterator[str]:
    """A name; with ``*`` for one of its numbers, the outermost first, as the last one often counts
    layers of different roles; and with ``*`` for all of them."""
    yield name
    parts = name.split(".")
    for k, part in enumerate(parts):
        if part.isdecimal():
            yield ".".join((*parts[:k], "*", *parts[k + 1 :]))
    yield numberless(name)


def trace(model: nn.Module, sample: Any) -> Trace:
    """Run a model once, in eval mode, on a sample, or on the ids that a model of Hugging Face
    brings with it.

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
    own = tensors(model)
    matrices = [name for name, t in own.items() if t.ins]
    ran = operations(outputs, {id(t.parameter): name for name, t in own.items()}, matrices)
    by_node = {o.node: o for o in ran}
    returned = {output.grad_fn for output in outputs}
    streams_of_pass = streams_of(ran)
    by_sum = streams_of_pass.branches
    branches = [
        (branch, writers_of(branch), _module_of(branch, ends)) for branch in by_sum.values()
    ]
    # What reads the stream comes first: keys and values, inside of a branch too, may be read from
    # another stream.
    reading = [
        {p for o in b.reading for weight in o.weights for p in parameters_of(weight)}
        for b, _, _ in branches
    ]
    inside = [{o for o in b.inside if o.tensor is not None} for b, _, _ in branches]
    acts = dict[str, Decision]()
    streams = dict[str, Stream]()
    unscaled = set[str]()
    within = dict[str, frozenset[str]]()
    uses = _uses([branch for branch, _, _ in branches])
    for (branch, writers, module), parameters in zip(branches * 2, reading + inside, strict=True):
        if not writers and module is not None:  # its output can be multiplied
            unscaled.add(module)
        is_number = (
            branch.reading == {branch.end} and learned_number(branch.end, is_zero=True) is not None
        )
        for operation in parameters:
            name = cast(str, operation.tensor)
            if name in acts and acts[name][0] is not None:
                continue
            streams[name] = Stream(
                branch.start.order, float(f"{branch.level:.4g}"), _what_interrupts(branch)
            )
            if branch.within in by_sum:
                enclosing = writers_of(by_sum[branch.within])
                within[name] = frozenset(cast(str, p.tensor) for p in enclosing)
            if not writers and module is None:
                acts[name] = None, f"no tensor scales its branch, which ends in {branch.end.name}"
            elif operation in writers:
                acts[name] = _ADDS if is_number else ("outer", "writes the residual stream")
            else:
                acts[name] = (
                    "inner",
                    "vector in a block" if own[name].is_vector else "acts inside of a branch",
                )
    acts |= {name: _skip(name, by_sum.values()) for name in streams_of_pass.skips}
    ends_of_pass = {by_node[node] for node in returned if node in by_node}
    factors = factors_of(
        ran,
        {branch.end: branch.share for branch, _, _ in branches} | dict.fromkeys(ends_of_pass, 1.0),
        {by_node[node] for node in scaled if node in by_node},
    )
    fans = fans_of(ran)
    shown = dict[str, Shown]()
    for name, of_tensor in factors.items():
        norm = norm_before(name, ran, ends_of_pass) if all(of_tensor) else frozenset[str]()
        shown[name] = Shown(
            act=acts.get(name),
            stream=streams.get(name),
            fans=fans.get(name, ()),
            norm=norm,
            factors=of_tensor,
            within=within.get(name, frozenset()),
            uses=uses[name],
        )
    attends = any(_ATTENTION.search(o.name) for o in ran)
    return Trace(shown, frozenset(unscaled), attends, logits_of(ran)).of(
        {name: name for name in own}
    )


_ADDS: Decision = "outer", "adds an earlier part of the stream"
_BOTH: Decision = (
    None,
    "it multiplies the stream, and what is added to it by numbers other than 0; make it two "
    "tensors",
)


def _skip(name: str, branches: Iterable[Branch]) -> Decision:
    """What is decided of a parameter that multiplies the stream, and may have a part in branches
    too.
    """
    for branch in branches:
        numbers = (o for o in branch.inside if learned_number(o) is not None)
        if any(
            p.tensor == name for o in numbers for weight in o.weights for p in parameters_of(weight)
        ):
            return _BOTH
    return "skip", "multiplies the residual stream"


def _uses(branches: Iterable[Branch]) -> Counter[str]:
    """In how many branches each parameter acts.

    What a branch reads from another stream, as a decoder reads its encoder, has acted before, in
    branches of its own.
    """
    uses = Counter[str]()
    before = set[Operation]()
    for branch in branches:
        new = [operation for operation in branch.inside if operation not in before]
        before.update(new)
        acting = set[Operation]()
        for operation in new:
            for weight in operation.weights:
                acting |= parameters_of(weight)
        uses.update(cast(str, parameter.tensor) for parameter in acting)
    return uses


def _what_interrupts(branch: Branch) -> str:
    """What happens to a stream where another one, or another level, starts, and which way out there
    is, to be said of two blocks."""
    start = branch.start if branch.scaled is None else branch.scaled
    factors = [o for o in (start, *start.operands) if o.name in ("Mul", "Div") and o.data]
    parameters = [
        p
        for o in factors
        for weight in o.weights
        if weight.of_parameters
        for p in parameters_of(weight)
    ]
    if parameters:
        names = quoted([*dict.fromkeys(numberless(cast(str, p.tensor)) for p in parameters)])
        return (
            f"is multiplied by {names}, which are not all 1 at first, so that its size has no "
            "limit of depth. Let them be 1 at first, use rule='mup', which keeps depth out, or "
            "build the model without them"
        )
    if branch.scaled is not None:
        return (
            "is multiplied by numbers other than 1, so that its size has no limit of depth. "
            "Multiply the branches alone, or use rule='mup', which keeps depth out"
        )
    way = "Use rule='mup', or build the model with norms inside of its branches (norm_first=True)"
    if start.is_norm or start.norm_size is not None:
        return f"goes through {start.name}, as in a model that normalises after adding. {way}"
    return f"goes through {start.name}. {way}"


def _module_of(branch: Branch, ends: Mapping[Any, str]) -> str | None:
    """The module whose output a branch is, but for rearrangements."""
    end = branch.end
    while end.node not in ends:
        if not (end.is_linear and len(end.data) == 1):
            return None
        end = end.data[0]
    return ends[end.node] if end in branch.inside else None


# ---- The role of every tensor.


@dataclass(frozen=True)
class Anatomy:
    """What the parts of a model are: its tensors, the role of each and why it has it, its blocks,
    and what a forward pass showed, with the unscaled branches that are in blocks."""

    tensors: dict[str, TensorInfo]
    roles: dict[str, tuple[Role, str]]
    blocks: Blocks
    traced: Trace


def is_unbuilt(model: nn.Module) -> bool:
    """Whether tensors of a model are on the meta device."""
    return any(p.is_meta for p in model.parameters())


def anatomy(
    model: nn.Module,
    base: nn.Module | None,
    rule: str,
    *,
    blocks: Where,
    roles: Mapping[str, str],
    sample: Any,
    scaling: Scaling,
) -> Anatomy:
    """Decide the role of every tensor; of a model on the meta device, by what its base shows.

    Args:
        rule: the name of one, which may need less than every role.
        blocks, roles: the user's own word; patterns as in ``nfd.plan``.
        sample: an input of the model to trace, or None.
        scaling: which dimensions grow with width; none where no second size is known.

    Raises:
        ValueError: for a pattern that fits nothing; for a model on the meta device without a base;
            for a rule of depth without a residual stream; with a list of what is open and what
            would decide it.
    """
    names = blocks_of(model, blocks)
    own = tensors(model)
    chosen = rule_named(rule)
    if not is_unbuilt(model):
        traced = trace(model, sample)
    elif base is None:
        raise InputError(
            "The model is on the meta device, so nothing can be traced in it. Pass make_model= and "
            "base=(width, depth), or the tuned model as base=: roles and starts are then found "
            "there."
        )
    else:
        there = tensors(base)
        places = places_of(there, blocks_of(base, blocks))
        traced = trace(base, sample).of(
            {name: counterpart(t, names, there, places).name for name, t in own.items()}
        )
        same = set(map(numberless, traced.unscaled))
        traced = replace(
            traced, unscaled=frozenset(n for n in modules(model) if numberless(n) in same)
        )
    for name, shown in traced.tensors.items():
        # A vector that its module tells nothing of may be a readout, ``h @ w``, or numbers,
        # ``lam[i] * h``.
        is_other_vector = (
            own[name].is_vector
            and bool(shown.fans)
            and (shown.fans[-1][0] or not shown.fans[-1][1])
        )
        if shown.fans and (own[name].ins is None or is_other_vector):
            ins, outs = shown.fans[-1]
            own[name] = replace(own[name], ins=ins, outs=outs)
    interrupted = _interrupted(traced, names)
    if chosen.scales_depth:
        _check_stream(rule, names, interrupted, traced)
    said = _by_user(own, roles)
    decisions = _on_streams(own, traced, names) | _in_blocks(own, traced, names, interrupted) | said
    if chosen.scales_depth and chosen.exponent != 1:
        decisions = _without_sums(decisions, own) | said
    decisions |= {n: _outside(t, scaling.get(n, ())) for n, t in own.items() if n not in decisions}
    for name, t in own.items():
        if len(t.names) > 1 and t.readers and not t.is_vector and name not in said:
            is_tied = len(t.readers) < len(t.names)
            why = (
                f"an embedding shared with {', '.join(t.readers)}"
                if is_tied
                else f"shared by {', '.join(t.names)}"
            )
            decisions[name] = "tied" if is_tied else None, why
        elif (
            decisions[name][0] == "embedding"
            and name in traced.tensors
            and all(traced.tensors[name].factors)
        ):
            decisions[name] = "tied", "an embedding that the forward pass applies as the head, too"
        elif (
            name not in said
            and decisions[name][0] in ("input", "readout")
            and _is_both_ways(traced, name)
        ):
            decisions[name] = "tied", "a matrix that reads the input and, turned, writes the output"
            own[name] = _as_input(t, scaling.get(name, ()))
    # a bias has the role of the matrix beside it, its width factors those of a vector
    for name, t in own.items():
        beside = own.get(f"{container_of(name)}.weight".lstrip("."))
        if t.is_vector and beside is not None and not beside.is_vector and name not in said:
            role, _ = decisions[beside.name]
            if role not in (None, "tied"):
                decisions[name] = role, f"bias of a matrix that is {role}"
    settled = dict[str, tuple[Role, str]]()
    undecided = dict[str, None]()
    for name, t in own.items():
        role, why = decisions[name]
        if role is not None:
            settled[name] = role, why
        elif not chosen.scales_width:  # every factor is 1, whatever the role
            settled[name] = "vector", why
        elif not t.parameter.requires_grad:  # it keeps its start and has no rate
            settled[name] = "vector", f"does not train; {why}"
        elif not chosen.scales_depth and block_of(name, names) is not None and len(t.names) == 1:
            settled[name] = "hidden", "in a block; this rule treats inner and outer alike"
        else:
            undecided[f"  {numberless(in_any_block(name, names))}: {why}"] = None
    if undecided:
        first = "blocks=, the names of the modules that add to their input, and of no others"
        way = first if traced.tensors else "sample=, an input to trace"
        ways = (
            f"Pass {way}, or the roles yourself: roles={{pattern: role}}, each one of "
            f"{', '.join(ROLES)}."
        )
        ways += (
            " Or take rule='mup', which treats what lies in a block alike."
            if chosen.scales_depth
            else ""
        )
        raise InputError(
            "\n".join(["The plan cannot decide the roles of tensors:", *undecided, ways])
        )
    # what writes there
    told = {block_of(name, names) for name, (role, _) in said.items() if role == "outer"}
    unscaled = frozenset(
        name for name in traced.unscaled if block_of(name, names) not in {None, *told}
    )
    return Anatomy(own, settled, names, replace(traced, unscaled=unscaled))


def _is_both_ways(traced: Trace, name: str) -> bool:
    """Whether a matrix is applied turned as well, as in an autoencoder with tied weights."""
    fans = traced.tensors[name].fans if name in traced.tensors else ()
    return any((outs, ins) in fans for ins, outs in fans)


def _as_input(t: TensorInfo, grows: tuple[bool, ...]) -> TensorInfo:
    """A tensor by the fans of the input: with the dimension that grows as its outputs."""
    outs = tuple(k for k, does in enumerate(grows) if does)
    # No module is its head, and can take the head's factor.
    return replace(
        t, ins=tuple(k for k in range(len(t.shape)) if k not in outs), outs=outs, readers=()
    )


def _interrupted(traced: Trace, blocks: Blocks) -> dict[str, str]:
    """Containers whose blocks do not all stand on the same streams, and what starts the last of
    them.
    """
    streams: dict[str, dict[str, dict[tuple[int, float], str]]] = {}
    for name, shown in traced.tensors.items():
        if shown.stream is not None and (block := block_of(name, blocks)) is not None:
            of_block = streams.setdefault(container_of(block), {}).setdefault(block, {})
            of_block[shown.stream.order, shown.stream.level] = shown.stream.interrupted_by
    interrupted = {}
    for holder, of_blocks in streams.items():
        every: dict[tuple[int, float], str] = {}
        for of_block in of_blocks.values():
            every |= of_block
        if len(every) > max(map(len, of_blocks.values())):
            last = max(every, key=lambda place: (place[0], abs(math.log(place[1]))))
            interrupted[holder] = every[last]
    return interrupted


def _check_stream(rule: str, blocks: Blocks, interrupted: Mapping[str, str], traced: Trace) -> None:
    """ValueError for a model without a residual stream that passes from block to block."""
    again = [
        name for name, shown in traced.tensors.items() if shown.uses > 1 and container_of(name)
    ]
    if not blocks and again:
        block = again[0].partition(".")[0]
        raise InputError(
            f"Rule {rule!r} needs residual blocks; none were found that are repeated, but "
            f"{again[0]!r} acts in {traced.tensors[again[0]].uses} branches. If one block is "
            f"applied again and again, name it: blocks={block!r}. Or take rule='mup'."
        )
    if not blocks:
        raise InputError(
            f"Rule {rule!r} needs residual blocks; none were found. Pass blocks='path.to.blocks.*' "
            "(one module alone is not known to be a block), or rule='mup' where the model has none."
        )
    if interrupted:
        container, what = next(iter(interrupted.items()))
        raise InputError(
            f"Rule {rule!r} needs a residual stream that passes from block to block unchanged; "
            f"between those of {container or 'the model'!r} it {what}."
        )


def _by_user(own: Mapping[str, TensorInfo], roles: Mapping[str, str]) -> dict[str, Decision]:
    decided: dict[str, Decision] = {}
    for pattern, role in roles.items():
        fitting = [name for name, t in own.items() if any(matches(n, pattern) for n in t.names)]
        if not fitting:
            raise InputError(
                f"roles must name tensors of the model; no match for {pattern!r}. Names look like "
                f"{', '.join(map(repr, list(own)[:3]))}; '*' stands for one part, a last '**' for "
                "the rest."
            )
        decided = dict.fromkeys(fitting, (cast(Role, role), f"roles[{pattern!r}]")) | decided
    return decided


def _in_blocks(
    own: Mapping[str, TensorInfo], traced: Trace, blocks: Blocks, interrupted: Mapping[str, str]
) -> dict[str, Decision]:
    """Of the tensors in blocks, without those of a block that is no residual one among others that
    are.
    """
    residual = {block_of(name, blocks) for name, shown in traced.tensors.items() if shown.stream}
    containers = {container_of(block) for block in residual if block is not None}
    decisions: dict[str, Decision] = {}
    for name, t in own.items():
        if (block := block_of(name, blocks)) is None:
            continue
        if not traced.tensors:
            decisions[name] = None, "no sample= to trace"
        elif container_of(block) in interrupted:
            decisions[name] = "hidden", "in a block whose stream is not passed on unchanged"
        elif name in traced.tensors and (act := traced.tensors[name].act) is not None:
            decisions[name] = act
            around = {block_of(writer, blocks) for writer in traced.tensors[name].within}
            if act[0] == "outer" and around == {block}:
                # The branch of the block ends in a matrix that has 1/L already, so that what it
                # reads keeps its size.
                decisions[name] = "inner", "writes a stream inside of the branch of its block"
        elif block in residual and t.is_vector:
            # a bias that only chooses, as among experts, takes no gradient
            seen = name in traced.tensors
            decisions[name] = (
                "vector",
                "vector on the stream" if seen else "vector without a gradient",
            )
        elif name not in traced.tensors:
            decisions[name] = None, "the sample never reached it"
        elif block in residual or container_of(block) not in containers:
            decisions[name] = (
                None,
                "its block does not pass its input on: no skip, or a matrix on it",
            )
    return decisions


def _on_streams(
    own: Mapping[str, TensorInfo], traced: Trace, blocks: Blocks
) -> dict[str, Decision]:
    """Find tensors outside of blocks that act between these, such as ``lam[i]``, which multiplies
    the stream.
    """
    decisions: dict[str, Decision] = {}
    for name, shown in traced.tensors.items():
        if shown.act is None or block_of(name, blocks) is not None:
            continue
        adds_again = shown.act == _ADDS and shown.uses > 1
        if adds_again or shown.act[0] == "skip" or shown.act == _BOTH:
            decisions[name] = shown.act
    return decisions


def _without_sums(
    decisions: Mapping[str, Decision], own: Mapping[str, TensorInfo]
) -> dict[str, Decision]:
    """Leave open numbers by which every block adds an earlier part of the stream, under rules whose
    branches add up as the root of the depth: these add up as the depth, unless they are 0 at
    first."""
    why = (
        "adds an earlier part of the stream, of one direction at every block: take "
        "rule='complete-p', or begin at 0"
    )
    is_sum = {
        name: decision == _ADDS and bool(own[name].parameter.any())
        for name, decision in decisions.items()
    }
    return {name: (None, why) if is_sum[name] else decision for name, decision in decisions.items()}


def _outside(t: TensorInfo, grows: tuple[bool, ...]) -> Decision:
    """A tensor outside every block, from which of its dimensions grow with width."""
    if t.is_vector:
        return "vector", "vector outside blocks"
    if t.ins == ():
        return "embedding", "looked up or added"
    if not any(grows):
        return "vector", "no dimension grows with width"
    if t.ins is None or t.outs is None:
        if grows == (True, True):
            return "hidden", "both dimensions grow with width"
        return None, "a bare parameter: input, embedding or readout?"
    into = any(grows[k] for k in t.ins)
    out_of = any(grows[k] for k in t.outs)
    if into and out_of:
        return "hidden", "fan-in and fan-out grow with width"
    return (
        ("readout", "only its fan-in grows with width")
        if into
        else ("input", "only fan-out grows with width")
    )
