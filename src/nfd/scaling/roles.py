"""The role of every tensor: from the user, from a traced forward pass, or from its shape."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from torch import Tensor, nn

from nfd.core.errors import InputError
from nfd.core.words import quoted
from nfd.scaling.adapters import first_of_adapters
from nfd.scaling.constants import Factors, Logits, factors_of, logits_of
from nfd.scaling.fans import Fans, fans_of
from nfd.scaling.graph import Operation, operations, parameters_of, saved_value
from nfd.scaling.made_matrices import Made, made_matrices
from nfd.scaling.model import (
    PARAMETER_LISTS,
    PATTERNS,
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
    wider_pattern,
)
from nfd.scaling.rules import ROLES, Role, Rule, rule_named
from nfd.scaling.samples import followed_outputs, on_device
from nfd.scaling.streams import Branch, learned_number, norm_before, streams_of, writers_of

# Which dimensions of a tensor grow with width.
Scaling = Mapping[str, tuple[bool, ...]]
# A role and why; where nothing decides, None and what is missing.
Decision = tuple[Role | None, str]

# ---- What one forward pass shows.

_ATTENTION = re.compile("Attention|(?<!Log)Softmax")


class Stream(NamedTuple):
    """A stream on which a branch stands.

    Attributes:
        order: when it starts.
        level: the level on which the branch is added.
        interrupted_by: what interrupts it, in words.
    """

    order: int
    level: float
    interrupted_by: str


@dataclass(frozen=True)
class Shown:
    """What a tensor did that had a part in the outputs.

    Attributes:
        act: its role in a branch, and why; None outside of branches.
        stream: on which stream its branch stands.
        fans: dimensions that count inputs and outputs, where a product or an operation on entries
            shows them; in the order of uses that differ.
        norm: of an embedding that is the head as well, gain and bias of the norm that only feeds
            the head.
        factors: what the model multiplies it by.
        within: what writes the stream after the sum on whose side way its branch stands.
        uses: in how many branches it acts, which are several in blocks that are applied again and
            again.
        is_stack: whether it holds the parameters of several layers: branches apply other slices of
            it.
        made: how a matrix is made of it that no factor of it scales; None where none is.
    """

    act: Decision | None
    stream: Stream | None
    fans: tuple[Fans, ...]
    norm: frozenset[str]
    factors: Factors
    within: frozenset[str] = frozenset()
    uses: int = 1
    is_stack: bool = False
    made: Made | None = None


@dataclass(frozen=True)
class Trace:
    """What one forward pass showed.

    Attributes:
        tensors: by name; empty where nothing could be run.
        unscaled: modules whose outputs are branches that no tensor scales.
        attends: whether something looks like attention, a softmax by itself or fused.
        logits: how attention multiplies what matrices of queries and keys make.
    """

    tensors: Mapping[str, Shown] = field(default_factory=dict)
    unscaled: frozenset[str] = frozenset()
    attends: bool = False
    logits: Mapping[str, Logits] = field(default_factory=dict)

    @property
    def factors(self) -> dict[str, Factors]:
        """What the model multiplies every tensor by."""
        return {name: shown.factors for name, shown in self.tensors.items()}

    def of(self, names: Mapping[str, str]) -> Trace:
        """Say what the tensors of a model show, from their names in the model that ran.

        A tensor that did not run shows what one with its name but for numbers shows, such as
        another expert.
        """
        namesakes: dict[str, str] = {}
        for name in self.tensors:
            namesakes |= dict.fromkeys(_but_for_numbers(name), name)
        names_here = {there: name for name, there in names.items()}
        shown: dict[str, Shown] = {}
        for name, there in names.items():
            matching = [
                namesakes[pattern] for pattern in _but_for_numbers(there) if pattern in namesakes
            ]
            if not matching:
                continue
            other = self.tensors[matching[0]]
            norm = frozenset(names_here[n] for n in other.norm if n in names_here)
            within = frozenset(names_here[n] for n in other.within if n in names_here)
            shown[name] = replace(other, norm=norm, within=within)
        return replace(self, tensors=shown)


def _but_for_numbers(name: str) -> Iterator[str]:
    """Yield a name, then with ``*`` for one of its numbers, then for all.

    The outermost number is the first, as the last one often counts layers of different roles.
    """
    yield name
    parts = name.split(".")
    for k, part in enumerate(parts):
        if part.isdecimal():
            yield ".".join((*parts[:k], "*", *parts[k + 1 :]))
    yield numberless(name)


def trace(model: nn.Module, sample: Any) -> Trace:
    """Run a model once, in eval mode, on a sample, or on the ids that Hugging Face brings with it.

    Raises:
        TypeError: when the sample is not an input of the model.
    """
    if sample is None and getattr(model, "main_input_name", None) == "input_ids":
        device = next((p.device for p in model.parameters()), None)
        sample = on_device(getattr(model, "dummy_inputs", None), device)
    if sample is None:
        return Trace()
    if any(p.is_inference() for p in model.parameters()):
        # A copy may be differentiated.
        model = deepcopy(model)
    outputs, outputs_of_modules, scaled_nodes = _followed(model, sample)
    infos = tensors(model)
    matrices = [name for name, info in infos.items() if info.ins]
    ran = operations(outputs, {id(info.parameter): name for name, info in infos.items()}, matrices)
    of_node = {operation.node: operation for operation in ran}
    ends_of_pass = {of_node[out.grad_fn] for out in outputs if out.grad_fn in of_node}
    streams = streams_of(ran)
    parts = _branch_parts(streams.branches, outputs_of_modules, infos)
    acts = parts.acts | {name: _skip(name, streams.branches.values()) for name in streams.skips}
    shares = {branch.end: branch.share for branch in streams.branches.values()}
    factors = factors_of(
        ran,
        shares | dict.fromkeys(ends_of_pass, 1.0),
        {of_node[node] for node in scaled_nodes if node in of_node},
    )
    fans = fans_of(ran)
    uses = _uses(streams.branches.values())
    stacks = _stacks(streams.branches.values())
    made = made_matrices(ran)
    shown = {}
    for name, of_tensor in factors.items():
        is_both = bool(of_tensor.looked_up and of_tensor.applied)
        shown[name] = Shown(
            act=acts.get(name),
            stream=parts.streams.get(name),
            fans=fans.get(name, ()),
            norm=norm_before(name, ran, ends_of_pass) if is_both else frozenset(),
            factors=of_tensor,
            within=parts.within.get(name, frozenset()),
            uses=uses[name],
            is_stack=name in stacks,
            made=made.get(name),
        )
    attends = any(_ATTENTION.search(operation.name) for operation in ran)
    trace_of_pass = Trace(shown, frozenset(parts.unscaled), attends, logits_of(ran))
    return trace_of_pass.of({name: name for name in infos})


def _followed(model: nn.Module, sample: Any) -> tuple[list[Tensor], dict[Any, str], set[Any]]:
    """Run a model, and note which of autograd's nodes are the outputs of modules.

    Returned are the outputs; the innermost module, by node; and the nodes that apply the factor of
    an ``nfd.Scaled``.
    """
    names = {id(module): name for name, module in reversed(modules(model).items())}
    outputs_of_modules: dict[Any, str] = {}
    scaled_nodes: set[Any] = set()

    def see(module: nn.Module, _inputs: Any, out: Any) -> None:
        node = out.grad_fn if isinstance(out, Tensor) else None
        if isinstance(module, Scaled):
            scaled_nodes.add(node)
        elif id(module) in names:
            outputs_of_modules.setdefault(node, names[id(module)])

    hooks = [module.register_forward_hook(see) for module in model.modules()]
    try:
        outputs = followed_outputs(model, sample)
    finally:
        for hook in hooks:
            hook.remove()
    return outputs, outputs_of_modules, scaled_nodes


@dataclass(frozen=True)
class _BranchParts:
    """What tensors do in branches.

    Attributes:
        acts: by tensor, as in ``Shown``.
        streams: by tensor, as in ``Shown``.
        within: by tensor, as in ``Shown``.
        unscaled: as in ``Trace``.
    """

    acts: dict[str, Decision] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    within: dict[str, frozenset[str]] = field(default_factory=dict)
    unscaled: set[str] = field(default_factory=set)


def _branch_parts(
    branches: Mapping[Operation, Branch],
    outputs_of_modules: Mapping[Any, str],
    infos: Mapping[str, TensorInfo],
) -> _BranchParts:
    """Find what every tensor does in the branches of a forward pass.

    Args:
        branches: by the sums that add them.
        outputs_of_modules: names of modules, by autograd's nodes of their outputs.
        infos: the tensors of the model.
    """
    parts = _BranchParts()
    writers_by_sum = {residual_sum: writers_of(branch) for residual_sum, branch in branches.items()}
    # What reads the stream comes first: keys and values, inside of a branch too, may be read from
    # another stream.
    rounds = [
        (residual_sum, _parameters_reading(branch)) for residual_sum, branch in branches.items()
    ]
    for residual_sum, branch in branches.items():
        inside = {operation for operation in branch.inside if operation.tensor is not None}
        rounds.append((residual_sum, inside))
    for residual_sum, parameters in rounds:
        branch = branches[residual_sum]
        writers = writers_by_sum[residual_sum]
        module = _module_of(branch, outputs_of_modules)
        if not writers and module is not None:
            # The output of the module can be multiplied.
            parts.unscaled.add(module)
        stream = Stream(branch.start.order, float(f"{branch.level:.4g}"), _what_interrupts(branch))
        for parameter in parameters:
            name = cast(str, parameter.tensor)
            if name in parts.acts and parts.acts[name][0] is not None:
                continue
            parts.streams[name] = stream
            if branch.within is not None and branch.within in branches:
                enclosing = writers_by_sum[branch.within]
                parts.within[name] = frozenset(cast(str, p.tensor) for p in enclosing)
            if not writers and module is None:
                why = f"no tensor scales its branch, which ends in {branch.end.name}"
                parts.acts[name] = None, why
            elif parameter in writers:
                parts.acts[name] = _ADDS if _is_learned_sum(branch) else _WRITES
            elif infos[name].is_vector:
                parts.acts[name] = "inner", "vector in a block"
            else:
                parts.acts[name] = "inner", "acts inside of a branch"
    return parts


def _parameters_reading(branch: Branch) -> set[Operation]:
    """Find the parameters that act on what a branch reads from its stream."""
    parameters = set[Operation]()
    for operation in branch.reading:
        for weight in operation.weights:
            parameters |= parameters_of(weight)
    return parameters


def _is_learned_sum(branch: Branch) -> bool:
    """Whether a branch is the stream itself, times a learned number."""
    is_one_operation = branch.reading == {branch.end}
    return is_one_operation and learned_number(branch.end, is_zero=True) is not None


_WRITES: Decision = "outer", "writes the residual stream"
_ADDS: Decision = "outer", "adds an earlier part of the stream"
_BOTH: Decision = (
    None,
    "it multiplies the stream, and what is added to it by numbers other than 0; make it two "
    "tensors",
)


def _skip(name: str, branches: Iterable[Branch]) -> Decision:
    """Decide the role of a parameter that multiplies the stream.

    It may have a part in branches too.
    """
    for branch in branches:
        for operation in branch.inside:
            if learned_number(operation) is None:
                continue
            for weight in operation.weights:
                if any(parameter.tensor == name for parameter in parameters_of(weight)):
                    return _BOTH
    return "skip", "multiplies the residual stream"


def _each_once(branches: Iterable[Branch]) -> Iterator[list[Operation]]:
    """Yield what runs in every branch and in none before.

    What a branch reads from another stream, as a decoder reads its encoder, has acted before, in
    branches of its own.
    """
    before = set[Operation]()
    for branch in branches:
        new = [operation for operation in branch.inside if operation not in before]
        before.update(new)
        yield new


def _uses(branches: Iterable[Branch]) -> Counter[str]:
    """Count in how many branches each parameter acts."""
    uses = Counter[str]()
    for new in _each_once(branches):
        acting = set[Operation]()
        for operation in new:
            for weight in operation.weights:
                acting |= parameters_of(weight)
        uses.update(cast(str, parameter.tensor) for parameter in acting)
    return uses


# Operations that take one slice of a tensor, and what autograd keeps of its place; others give all
# slices at once.
_SLICES = {"Select": ("dim", "index"), "Slice": ("dim", "start", "end")}
_CUTS = ("Unbind", "Split", "SplitWithSizes", "UnsafeSplit")


def _stacks(branches: Iterable[Branch]) -> set[str]:
    """Find the parameters of which branches apply different slices."""
    stacks = set[str]()
    slices_before: dict[str, set[Any]] = {}
    for new in _each_once(branches):
        slices: dict[str, set[Any]] = {}
        for operation in new:
            for taken in operation.operands:
                source = taken.operands[0] if taken.operands else None
                if source is not None and source.tensor is not None:
                    slices.setdefault(source.tensor, set()).update(_slices(operation, taken))
        for name, of_branch in slices.items():
            if of_branch and slices_before.setdefault(name, of_branch) != of_branch:
                stacks.add(name)
    return stacks


def _slices(operation: Operation, taken: Operation) -> list[tuple[Any, ...]]:
    """Say which slices of a parameter an operation takes; none where ``taken`` is not a slice."""
    if taken.name in _SLICES:
        place = [saved_value(taken.node, part) for part in _SLICES[taken.name]]
        return [(taken.name, *place)]
    if taken.name in _CUTS:
        outputs = operation.node.next_functions
        return [(taken.name, number) for node, number in outputs if node is taken.node]
    return []


def _what_interrupts(branch: Branch) -> str:
    """Say what happens to a stream where another one, or another level, starts.

    The words follow the names of two blocks, and say which way out there is.
    """
    start = branch.start if branch.scaled is None else branch.scaled
    parameters: list[Operation] = []
    for operation in (start, *start.operands):
        if operation.name not in ("Mul", "Div") or not operation.data:
            continue
        for weight in operation.weights:
            if weight.of_parameters:
                parameters += parameters_of(weight)
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
    """Name the module whose output a branch is, but for rearrangements."""
    end = branch.end
    while end.node not in ends:
        if not (end.is_linear and len(end.data) == 1):
            return None
        end = end.data[0]
    return ends[end.node] if end in branch.inside else None


# ---- The role of every tensor.


@dataclass(frozen=True)
class Anatomy:
    """What the parts of a model are.

    Attributes:
        tensors: by name.
        roles: by name, the role and why a tensor has it.
        blocks: the residual blocks.
        traced: what a forward pass showed, with the unscaled branches that are in blocks.
        adapters: the matrices A of adapters ``B A`` beside frozen matrices.
    """

    tensors: dict[str, TensorInfo]
    roles: dict[str, tuple[Role, str]]
    blocks: Blocks
    traced: Trace
    adapters: frozenset[str] = frozenset()


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
    block_names = blocks_of(model, blocks)
    infos = tensors(model)
    chosen = rule_named(rule)
    traced = _trace_of(model, base, infos, blocks, sample)
    infos |= _fans_by_trace(infos, traced)
    interrupted = _interrupted(traced, block_names)
    by_user = _by_user(infos, roles)
    decisions = _on_streams(traced, block_names)
    if chosen.scales_depth:
        _check_stream(rule, infos, block_names, interrupted, traced)
        _check_stacks(rule, infos, traced, block_names, decisions | by_user)
    decisions |= _in_blocks(infos, traced, block_names, interrupted)
    decisions |= by_user
    if chosen.scales_depth and chosen.exponent != 1:
        decisions = _without_sums(decisions, infos) | by_user
    adapters = first_of_adapters(infos)
    for name, info in infos.items():
        if name not in decisions:
            decisions[name] = _outside(info, scaling.get(name, ()))
            if name in adapters and decisions[name][0] == "readout":
                decisions[name] = "hidden", f"reads what {adapters[name]} reads"
    for name, info in infos.items():
        tied = _as_tied(info, decisions[name], traced, is_by_user=name in by_user)
        if tied is not None:
            decisions[name] = tied
        if tied == _BOTH_WAYS:
            infos[name] = _as_input(info, scaling.get(name, ()))
    decisions |= _of_biases(infos, decisions, by_user)
    settled = _settled(infos, decisions, block_names, chosen, is_traced=bool(traced.tensors))
    # The user says what writes the stream in these blocks.
    scaled_blocks = {
        block_of(name, block_names) for name, (role, _) in by_user.items() if role == "outer"
    }
    scaled_blocks.add(None)
    unscaled = frozenset(
        module for module in traced.unscaled if block_of(module, block_names) not in scaled_blocks
    )
    traced = replace(traced, unscaled=unscaled)
    return Anatomy(infos, settled, block_names, traced, frozenset(adapters))


def _trace_of(
    model: nn.Module,
    base: nn.Module | None,
    infos: Mapping[str, TensorInfo],
    blocks: Where,
    sample: Any,
) -> Trace:
    """Trace a model; for a model on the meta device, its base."""
    if not is_unbuilt(model):
        return trace(model, sample)
    if base is None:
        raise InputError(
            "The model is on the meta device, so nothing can be traced in it. Pass make_model= and "
            "base=(width, depth), or the tuned model as base=: roles and starts are then found "
            "there."
        )
    if is_unbuilt(base) and sample is not None:
        raise InputError(
            "The model and its base are on the meta device, so nothing can be traced in either. "
            "Let make_model=, or base=, build the base with numbers: leave out "
            'torch.device("meta") there. It is small.'
        )
    block_names = blocks_of(model, blocks)
    base_infos = tensors(base)
    places = places_of(base_infos, blocks_of(base, blocks))
    base_names = {
        name: counterpart(info, block_names, base_infos, places).name
        for name, info in infos.items()
    }
    traced = trace(base, sample).of(base_names)
    unscaled = {numberless(module) for module in traced.unscaled}
    return replace(
        traced,
        unscaled=frozenset(module for module in modules(model) if numberless(module) in unscaled),
    )


def _fans_by_trace(infos: Mapping[str, TensorInfo], traced: Trace) -> dict[str, TensorInfo]:
    """Complete the fans of tensors whose modules do not say them."""
    completed = {}
    for name, shown in traced.tensors.items():
        if not shown.fans:
            continue
        info = infos[name]
        ins, outs = shown.fans[-1]
        # A vector of which its module says nothing may be a readout, ``h @ w``, or numbers,
        # ``lam[i] * h``.
        is_other_vector = info.is_vector and (bool(ins) or not outs)
        if info.ins is None or is_other_vector:
            completed[name] = replace(info, ins=ins, outs=outs)
    return completed


_BOTH_WAYS: Decision = "tied", "a matrix that reads the input and, turned, writes the output"


def _as_tied(
    info: TensorInfo, decision: Decision, traced: Trace, *, is_by_user: bool
) -> Decision | None:
    """Decide a tensor that is shared by modules, or used in two ways; None where it is neither.

    A forward pass also shows that an embedding is tied where the user calls it an embedding.
    """
    role = decision[0]
    # A list may hold one block several times, as ALBERT's: it is applied again and again.
    is_held_again = len({numberless(name) for name in info.names}) == 1
    is_shared = len(info.names) > 1 and bool(info.readers) and not info.is_vector
    is_shared = is_shared and not is_held_again
    if is_shared and not is_by_user:
        if len(info.readers) < len(info.names):
            return "tied", f"an embedding shared with {', '.join(info.readers)}"
        return None, f"shared by {', '.join(info.names)}"
    shown = traced.tensors.get(info.name)
    if shown is None:
        return None
    if role == "embedding" and all(shown.factors):
        return "tied", "an embedding that the forward pass applies as the head, too"
    if role in ("input", "readout") and not is_by_user and _is_both_ways(shown):
        return _BOTH_WAYS
    return None


def _of_biases(
    infos: Mapping[str, TensorInfo],
    decisions: Mapping[str, Decision],
    by_user: Mapping[str, Decision],
) -> dict[str, Decision]:
    """Give a bias the role of the matrix beside it; its width factors are a vector's."""
    of_biases: dict[str, Decision] = {}
    for name, info in infos.items():
        matrix = infos.get(f"{container_of(name)}.weight".lstrip("."))
        if not info.is_vector or matrix is None or matrix.is_vector or name in by_user:
            continue
        role, _ = decisions[matrix.name]
        if role not in (None, "tied"):
            of_biases[name] = role, f"bias of a matrix that is {role}"
    return of_biases


def _settled(
    infos: Mapping[str, TensorInfo],
    decisions: Mapping[str, Decision],
    block_names: Blocks,
    rule: Rule,
    *,
    is_traced: bool,
) -> dict[str, tuple[Role, str]]:
    """Return a role for every tensor, where the rule allows one for those that are open.

    Raises:
        ValueError: with a list of what is open and what would decide it.
    """
    settled: dict[str, tuple[Role, str]] = {}
    undecided: dict[str, None] = {}
    for name, info in infos.items():
        role, why = decisions[name]
        if role is not None:
            settled[name] = role, why
        elif not rule.scales_width:
            # Every factor is 1, whatever the role.
            settled[name] = "vector", why
        elif not info.parameter.requires_grad:
            # It keeps its initial values and has no learning rate.
            settled[name] = "vector", f"does not train; {why}"
        elif (
            not rule.scales_depth
            and block_of(name, block_names) is not None
            and len(info.names) == 1
        ):
            settled[name] = "hidden", "in a block; this rule treats inner and outer alike"
        else:
            undecided[f"  {numberless(in_any_block(name, block_names))}: {why}"] = None
    if not undecided:
        return settled
    way = "sample=, an input to trace"
    if is_traced:
        way = "blocks=, the names of the modules that add to their input, and of no others"
    ways = (
        f"Pass {way}, or the roles yourself: roles={{pattern: role}}, each one of "
        f"{', '.join(ROLES)}."
    )
    if rule.scales_depth:
        ways += " Or take rule='mup', which treats what lies in a block alike."
    raise InputError("\n".join(["The plan cannot decide the roles of tensors:", *undecided, ways]))


def _is_both_ways(shown: Shown) -> bool:
    """Whether a matrix is applied turned as well, as in an autoencoder with tied weights."""
    return any((outs, ins) in shown.fans for ins, outs in shown.fans)


def _as_input(t: TensorInfo, grows: tuple[bool, ...]) -> TensorInfo:
    """Give a tensor the fans of the input: the dimensions that grow are its outputs."""
    outs = tuple(k for k, is_growing in enumerate(grows) if is_growing)
    ins = tuple(k for k in range(len(t.shape)) if k not in outs)
    # No module is its head, and can take the head's factor.
    return replace(t, ins=ins, outs=outs, readers=())


def _interrupted(traced: Trace, blocks: Blocks) -> dict[str, str]:
    """Find containers whose blocks do not all stand on one stream, and what starts the last one."""
    # By container, block, and order and level of the stream: what interrupts it.
    streams: dict[str, dict[str, dict[tuple[int, float], str]]] = {}
    for name, shown in traced.tensors.items():
        block = block_of(name, blocks)
        if shown.stream is None or block is None:
            continue
        of_block = streams.setdefault(container_of(block), {}).setdefault(block, {})
        of_block[shown.stream.order, shown.stream.level] = shown.stream.interrupted_by
    interrupted = {}
    for container, of_blocks in streams.items():
        every: dict[tuple[int, float], str] = {}
        for of_block in of_blocks.values():
            every |= of_block
        if len(every) > max(map(len, of_blocks.values())):
            last = max(every, key=lambda place: (place[0], abs(math.log(place[1]))))
            interrupted[container] = every[last]
    return interrupted


def _check_stream(
    rule: str,
    infos: Mapping[str, TensorInfo],
    blocks: Blocks,
    interrupted: Mapping[str, str],
    traced: Trace,
) -> None:
    """Raise ValueError for a model without a residual stream that passes from block to block."""
    repeated = [
        name for name, shown in traced.tensors.items() if shown.uses > 1 and container_of(name)
    ]
    if not blocks and repeated:
        first = repeated[0]
        block = first.partition(".")[0]
        raise InputError(
            f"Rule {rule!r} needs residual blocks; none were found that are repeated, but "
            f"{first!r} acts in {traced.tensors[first].uses} branches. If one block is "
            f"applied again and again, name it: blocks={block!r}. Or take rule='mup'."
        )
    lists = []
    for name, shown in traced.tensors.items():
        is_listed = isinstance(infos[name].owner, nn.ParameterList | nn.ParameterDict)
        if is_listed and shown.act is not None:
            lists.append(name)
    if not blocks and lists:
        raise InputError(
            f"Rule {rule!r} needs residual blocks; none were found, and {quoted(lists, 3)} are in "
            f"lists of parameters. {PARAMETER_LISTS} Or take rule='mup' with a base of the same "
            "depth."
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


def _check_stacks(
    rule: str,
    infos: Mapping[str, TensorInfo],
    traced: Trace,
    blocks: Blocks,
    decided: Collection[str],
) -> None:
    """Raise ValueError for matrices and biases of several blocks that one tensor holds.

    Left out are those whose role is decided already, such as numbers that multiply the stream.
    """
    stacks = []
    for name, shown in traced.tensors.items():
        info = infos[name]
        is_outside = block_of(name, blocks) is None and name not in decided
        if shown.is_stack and is_outside and len(info.shape) > 1 and info.parameter.requires_grad:
            stacks.append(name)
    if stacks:
        raise InputError(
            f"Rule {rule!r} scales the tensors of every block by its place in the branch; "
            f"{quoted(stacks)} hold a slice for each of several blocks. Let every block hold its "
            "slice as a parameter of its own, such as an nn.Linear in the modules of one "
            "nn.ModuleList. Or take rule='mup', which keeps depth out."
        )


def _by_user(infos: Mapping[str, TensorInfo], roles: Mapping[str, str]) -> dict[str, Decision]:
    """Decide tensors by the user's roles; where several patterns fit, by the first."""
    decided: dict[str, Decision] = {}
    for pattern, role in roles.items():
        fitting = [
            name for name, info in infos.items() if any(matches(n, pattern) for n in info.names)
        ]
        if not fitting:
            raise InputError(
                f"roles must name tensors of the model; no match for {pattern!r}."
                f"{wider_pattern(pattern, infos)} Names look like "
                f"{', '.join(map(repr, list(infos)[:3]))}. {PATTERNS}"
            )
        decided = dict.fromkeys(fitting, (cast(Role, role), f"roles[{pattern!r}]")) | decided
    return decided


def _in_blocks(
    infos: Mapping[str, TensorInfo],
    traced: Trace,
    blocks: Blocks,
    interrupted: Mapping[str, str],
) -> dict[str, Decision]:
    """Decide tensors in blocks.

    Left out are those of a block that is not residual, among others that are.
    """
    residual = {block_of(name, blocks) for name, shown in traced.tensors.items() if shown.stream}
    containers = {container_of(block) for block in residual if block is not None}
    decisions: dict[str, Decision] = {}
    for name, info in infos.items():
        block = block_of(name, blocks)
        if block is None:
            continue
        shown = traced.tensors.get(name)
        if not traced.tensors:
            decisions[name] = None, "no sample= to trace"
        elif container_of(block) in interrupted:
            decisions[name] = "hidden", "in a block whose stream is not passed on unchanged"
        elif shown is not None and shown.act is not None:
            decisions[name] = _in_branch(shown, shown.act, block, blocks)
        elif block in residual and info.is_vector:
            # A bias that only chooses, as among experts, takes no gradient.
            is_seen = shown is not None
            why = "vector on the stream" if is_seen else "vector without a gradient"
            decisions[name] = "vector", why
        elif shown is None:
            decisions[name] = None, "the sample never reached it"
        elif block in residual or container_of(block) not in containers:
            why = "its block does not pass its input on: no skip, or a matrix on it"
            decisions[name] = None, why
    return decisions


def _in_branch(shown: Shown, act: Decision, block: str, blocks: Blocks) -> Decision:
    """Decide a tensor that acts in a branch of its block."""
    enclosing = {block_of(writer, blocks) for writer in shown.within}
    if act[0] == "outer" and enclosing == {block}:
        # The branch of the block ends in a matrix that has 1/L already, so that what it reads keeps
        # its size.
        return "inner", "writes a stream inside of the branch of its block"
    return act


def _on_streams(traced: Trace, blocks: Blocks) -> dict[str, Decision]:
    """Decide tensors outside of blocks that act between these.

    Such is ``lam[i]``, which multiplies the stream.
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
    decisions: Mapping[str, Decision], infos: Mapping[str, TensorInfo]
) -> dict[str, Decision]:
    """Leave open numbers by which every block adds an earlier part of the stream.

    Branches add up as the root of the depth under these rules. The numbers add up as the depth,
    unless they are 0 at first.
    """
    why = (
        "adds an earlier part of the stream, of one direction at every block: take "
        "rule='complete-p', or begin at 0"
    )
    without_sums = dict(decisions)
    for name, decision in decisions.items():
        if decision == _ADDS and bool(infos[name].parameter.any()):
            without_sums[name] = None, why
    return without_sums


def _outside(t: TensorInfo, grows: tuple[bool, ...]) -> Decision:
    """Decide a tensor outside every block, from which of its dimensions grow with width."""
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
    if into:
        return "readout", "only its fan-in grows with width"
    return "input", "only fan-out grows with width"
