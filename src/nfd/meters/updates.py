"""How much training changed the features, the stream and the function of a network.

Hooks measure it. With ``z`` what a matrix is applied to in the trained network, ``W`` its effective
weights (forward multiplier included) and (0) marking the initial weights:

    inner_update           rms over inner matrices of (W - W(0)) z                     Eq. 27
    stream_update          rms over blocks of (L / T) (b(h) - b(h; outer matrices initial))
                                                                                       Eqs. 33, 34
                                                                                (T = 1 elsewhere)
    first_update           stream_update after the first update that changes it
    function_update        rms(f - f(0))
    function_update_inner  rms(f - f with the initial inner matrices)
    first_activation       rms of the stream that enters the first block
    activation             rms of what the last block, or without blocks what the readout reads,
                           holds
    activation_update      rms of the change of what ``activation`` measures
    update_to_weight       rms over inner (without blocks: hidden) matrices of
                           |W - W(0)|_2 / |W(0)|_2
    alignment              rms over matrices of the alignment of their last update with their
                           inputs, below

where ``b`` is what a block adds to the stream h of the trained network, with every factor that the
forward pass has, wherever it is written. Where blocks are not called as modules, and in the paper's
networks, whose blocks are linear in their outer matrix, ``stream_update`` is the rms over outer
matrices of (L / T) (W - W(0)) z.

Later updates cancel earlier ones where a network learns too fast, the more the deeper it is: with
branches of 2/sqrt(L) and learning rates kept, ``stream_update`` of a GPT goes as L^0.47 after one
step of AdamW, and as L^0.33 after four. ``first_update`` has the exponent of the rates.

Other meters count matrices whose module does nothing but apply them (linear layers, convolutions,
fused attention inputs). Batch normalisation uses the batch's statistics. All meters are Theta(1) in
width where features learn.

A network of several stacks of blocks, such as an encoder and a decoder, has all but the
``function`` meters once for every stack, with its own depth as L: one number for both would hide
what happens in one.

**Alignment** of an update ``dW`` of a matrix [m, n] with its inputs ``z``:

    alignment = |dW z| / (|dW| |z|)

where ``|dW z|^2`` and ``|z|^2`` are sums over all inputs. It is the share of their greatest effect
that updates have: 1 if all inputs lie along the direction that the update answers, ``n^-1/2`` if
they are independent of it. Rules of mup's kind assume 1: sums over n coordinates with signs that
agree grow as n. Where alignment falls as ``n^-1/2`` with width, sums grow as sqrt(n), and rates
that fall as 1/n make updates too small. ``|dW|`` is the norm that the optimizer fixes: the norm of
the entries (Frobenius) for SGD and Adam, the largest singular value for Muon.

Source: Everett et al., Scaling Exponents Across Parameterizations and Optimizers (arXiv
2407.05872); Kosson et al. (arXiv 2510.19093), whose update alignment this is; for Muon, Yang, Simon
and Bernstein, A Spectral Condition for Feature Learning (arXiv 2310.17813).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, pairwise
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from nfd.core.errors import InputTypeError
from nfd.core.estimates import rms
from nfd.families.member import Member
from nfd.families.network import DenseLinear
from nfd.meters.meter import METERS
from nfd.meters.reading import WatchRow
from nfd.scaling.initialise import fill_
from nfd.scaling.model import TensorInfo, block_of, give_back, is_conv1d, modules, tensors, whole
from nfd.scaling.optimizers import WHOLE_MATRIX, OptimizerLaw
from nfd.scaling.rules import INPUT_LIKE
from nfd.scaling.samples import evaluating, mapped, outputs_of

NO_BLOCKS = (
    "no residual blocks were found: where the model has some, pass blocks='path.to.blocks.*', or "
    "take a depth of at least 2."
)
HIDDEN = "the blocks are not called as modules, so that the stream between them cannot be seen."
_NOT_LINEAR = "none of these matrices stands in a module that does nothing but apply it."
# The definition of the meters, stored with their numbers. Since 2 stream_update is what blocks add.
DEFINITION = 2

Keep = Callable[[Mapping[str, TensorInfo]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Look:
    """The meters of a network after a step, and the numbers of its matrices and blocks, by name.

    ``stacks`` has the meters of every stack of blocks by the name of the stack, where there are
    several. ``bounds`` has by stack what ``inner_update`` and ``stream_update`` would be at perfect
    alignment, and ``activation_update`` if what training changes in every block had one direction.
    """

    network: dict[str, float]
    stacks: dict[str, dict[str, float]]
    matrices: dict[str, dict[str, float]]
    blocks: dict[str, dict[str, float]]
    bounds: dict[str, dict[str, float]]

    def with_bounds(self) -> Look:
        """The look with bounds among the meters, as a check stores them."""
        stacks = {stack: meters | self.bounds[stack] for stack, meters in self.stacks.items()}
        return replace(self, network=self.network | self.bounds[""], stacks=stacks)


@dataclass(frozen=True)
class _Response:
    """What training changed in the output of a matrix.

    Attributes:
        square: the sum of squares of ``(W - W(0)) z``.
        bound: the sum at perfect alignment.
        entries: the number of entries of the output.
    """

    square: float
    bound: float
    entries: int


class Baseline:
    """A record of a network before training, and the meters that compare the trained one with it.

    Args:
        member: the network, before training.
        sample: an input of the model. All meters are measured on it, in eval mode.
        keep: a function from the matrices of the network, by name, to their initial numbers, which
            stay available during training; by default it copies them.

    Attributes:
        unread: the reasons why meters of the stream or of matrices cannot be read from this model,
            by stack (``""`` for the network, and where there is one stack) and meter.
    """

    def __init__(self, member: Member, sample: Any, keep: Keep | None = None) -> None:
        self.member = member
        self.sample = sample
        plan = member.plan
        matrices = [name for name, entry in plan.entries.items() if not entry.is_vector]
        self.matrices = [name for name in matrices if member.multiplier(name)]
        roles = plan.roles
        self.inner = [name for name in self.matrices if roles[name] == "inner"]
        self.outer = [name for name in self.matrices if roles[name] == "outer"]
        self.summing = [name for name in self.matrices if roles[name] not in INPUT_LIKE]
        self.hidden = self.inner or [n for n in self.matrices if roles[n] == "hidden"]
        self.stack_of = {name: _stack_of(name, member.numbers) for name in self.matrices}
        self._blocks = [*chain.from_iterable(member.stacks.values())]
        self.readers = [n for n, e in plan.entries.items() if e.role in ("readout", "tied")]
        infos = tensors(member.module)
        self.start = (keep or copies)({name: infos[name] for name in self.matrices})
        self._start_sizes: dict[str, tuple[float, float]] = {}
        before = self.seen()
        self.unread = self._unread(before)
        self.begin_at(before)

    def begin_at(self, before: Pass) -> None:
        """Use this pass, of ``seen()``, as the start."""
        self.before = replace(before, inputs={})
        self._start_sizes.clear()

    @torch.no_grad()
    def seen(self, calls: Calls | None = None) -> Pass:
        """Pass the sample forward; ``calls`` notes what its blocks are given and make."""
        module = self.member.module
        inputs = dict[str, Tensor]()
        with ExitStack() as hooks:
            self._hook_inputs(hooks, inputs)
            hooks.enter_context(quiet(module))
            stream = hooks.enter_context(self.member.stream())
            if calls is not None and self.member.net is None:
                hooks.enter_context(calls.noted(modules(module), self._blocks))
            outputs = outputs_of(self.member(self.sample)).detach()
            if calls is not None:
                calls.gains = stream.gains
        features = [inputs[name] for name in self.readers if name in inputs] or [outputs]
        added = {}
        for block, after in stream.behind.items():
            before = stream.before.get(block)
            if before is not None and before.shape == after.shape:
                added[block] = rms(after - before)
        entering = {stack: taken[-1].detach() for stack, taken in stream.first.items() if taken}
        return Pass(outputs, features[-1], added, stream.behind, inputs, entering)

    def _hook_inputs(self, hooks: ExitStack, inputs: dict[str, Tensor]) -> None:
        """Note in ``inputs`` what matrices are applied to, at their first call."""
        module = self.member.module
        infos = tensors(module)
        parts = modules(module)

        def keep(name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                inputs.setdefault(name, args[0].detach())

        for name in {*self.summing, *self.readers}:
            for full in infos[name].names:
                owner = parts[full.rpartition(".")[0]]
                if owner is not module and not isinstance(owner, nn.Embedding):
                    hooks.enter_context(owner.register_forward_pre_hook(partial(keep, name)))

    def weights(self) -> dict[str, Tensor]:
        """Copy the matrices that read the stream, to compute the next update by difference."""
        infos = tensors(self.member.module)
        return copies({name: infos[name] for name in self.summing})

    @torch.no_grad()
    def look(
        self, previous: Mapping[str, Tensor] | None = None, seen: tuple[Pass, Calls] | None = None
    ) -> Look:
        """Read the meters of the network, of every matrix and of every block.

        Every matrix has ``change``, ``|W - W(0)| / |W(0)|``, and ``weight``, ``|W| / |W(0)|``. A
        matrix that reads the stream also has ``update``, the RMS of the change of its output by
        training, and ``alignment``. Inner matrices, or hidden ones in a network without inner ones,
        have ``update_to_weight``. A block has ``activation`` and ``activation_update`` of the
        stream after it, and ``added``, the RMS of its output over ``T / L``.

        Args:
            previous: ``weights()`` before the last update, for ``alignment``.
            seen: the present pass and the calls of its blocks, of ``seen()``, where it was made
                already.
        """
        if seen is None:
            calls = Calls()
            now = self.seen(calls)
        else:
            now, calls = seen
        infos = tensors(self.member.module)
        before = previous or {}
        written = self._written(calls, infos)
        matrices = dict[str, dict[str, float]]()
        responses = dict[str, _Response | None]()
        for name in self.matrices:
            matrices[name], responses[name] = self._of_matrix(infos[name], now, before.get(name))
        parts = {
            stack: StackLook(self, stack, now, matrices, responses, written)
            for stack in self.unread
        }
        with self._at_start(self.inner, infos):
            stacks = {stack: part.numbers() for stack, part in parts.items()}
        bounds = {stack: part.bounds(stacks[stack]) for stack, part in parts.items()}
        network = stacks.pop("")
        return Look(network, stacks, matrices, self._of_blocks(now), bounds)

    @contextmanager
    def _at_start(self, names: Iterable[str], infos: Mapping[str, TensorInfo]) -> Iterator[None]:
        """Set matrices to their initial weights, and back afterwards."""
        with ExitStack() as trained:
            for name in names:
                weight = infos[name].parameter
                trained.callback(weight.copy_, weight.detach().clone())
                fill_(weight, self.start[name])
            yield

    def _of_blocks(self, now: Pass) -> dict[str, dict[str, float]]:
        """The numbers of every block whose stream is seen."""
        blocks = dict[str, dict[str, float]]()
        for name, stream in now.behind.items():
            start = self.before.behind.get(name)
            if start is not None:
                blocks[name] = {"activation": rms(stream), "activation_update": rms(stream - start)}
        for name, added in now.added.items():
            stack = _stack_of(f"{name}.", self.member.numbers)
            blocks.setdefault(name, {})["added"] = added / self.member.time_step(stack)
        return blocks

    def _of_matrix(
        self, t: TensorInfo, now: Pass, before: Tensor | None
    ) -> tuple[dict[str, float], _Response | None]:
        """The numbers of a matrix, and what training changed in its output.

        The second is None where its input is not seen.
        """
        start = self.start[t.name]
        weight = whole(t.parameter)
        z = now.inputs.get(t.name)
        law = self.member.plan.law_for(t.name)
        changed = weight - start
        size, spectral = self._start_size(t, start)
        numbers = {}
        if size:
            numbers["change"] = norm(changed) / size
            numbers["weight"] = norm(weight) / size
        # Only hidden matrices have it, and one that is initialised to zero has no ratio.
        if spectral:
            numbers["update_to_weight"] = self._spectral_size(t, changed) / spectral
        if z is None or not is_linear(t, z):
            return numbers, None
        multiplier = self.member.multiplier(t.name)
        response = multiplier * applied(t, changed, z)
        bound = multiplier * reach(t, changed, z, law)
        numbers["update"] = rms(response)
        if before is not None:
            last = weight - whole(before)
            most = reach(t, last, z, law)
            if most:
                numbers["alignment"] = norm(applied(t, last, z)) / most
        return numbers, _Response(norm(response) ** 2, bound**2, response.numel())

    def _start_size(self, t: TensorInfo, start: Tensor) -> tuple[float, float]:
        """The initial norm of a matrix, and the largest singular value of a hidden matrix."""
        if t.name not in self._start_sizes:
            spectral = 0.0
            if t.name in self.hidden:
                spectral = self._spectral_size(t, start)
            self._start_sizes[t.name] = norm(start), spectral
        return self._start_sizes[t.name]

    def _spectral_size(self, t: TensorInfo, values: Tensor) -> float:
        """The largest singular value of a matrix, RMS over a stack of them."""
        fan_in = self.member.plan.entry(t.name).fan_in
        return spectral_norm(matrices_of(t, fan_in, values))

    def _written(self, calls: Calls, infos: Mapping[str, TensorInfo]) -> dict[str, Tensor]:
        """What training of the outer matrices adds to the stream in every block that is a module.

        It takes one more forward pass, in which outer matrices have their initial weights and every
        block is given what it is given in the trained network: the stream, and all that is made
        outside of blocks.
        """
        module = self.member.module
        parts = modules(module)
        all_blocks = frozenset(self._blocks)
        writers = {name: block_of(name, all_blocks) for name in self.outer}
        blocks = {block for block in writers.values() if block in calls.made}
        if not blocks:
            return {}
        again = Calls()
        with ExitStack() as contexts:
            called = [name for name, block in writers.items() if block in blocks]
            contexts.enter_context(self._at_start(called, infos))
            contexts.enter_context(quiet(module))
            contexts.enter_context(calls.repeated(parts))
            contexts.enter_context(again.noted(parts, self._blocks))
            self.member(self.sample)
        written = {}
        for block in blocks:
            trained = calls.made[block]
            untrained = again.made.get(block)
            if untrained is not None and untrained.shape == trained.shape:
                written[block] = calls.gains.get(block, 1.0) * (trained - untrained)
        return written

    @torch.no_grad()
    def stream_updates(self) -> dict[str, float]:
        """Read only ``stream_update``, of every stack that has one, by the name of the stack."""
        calls = Calls()
        now = self.seen(calls)
        infos = tensors(self.member.module)
        written = self._written(calls, infos)
        shown = {_stack_of(f"{block}.", self.member.numbers) for block in written}
        # What the blocks write says all; matrices are read where that is not seen.
        responses = {
            name: self._of_matrix(infos[name], now, None)[1]
            for name in self.outer
            if self.stack_of[name] not in shown
        }
        updates = {}
        for stack in self.unread:
            update = _stream_update(StackLook(self, stack, now, {}, responses, written))
            if update is not None:
                updates[stack] = update
        return updates

    def end(self, seen: Pass, stack: str) -> Tensor | None:
        """The stream after the last block of a stack; where there are no blocks, what is read."""
        blocks = self.member.stacks.get(stack)
        if blocks is None:
            return None
        return seen.behind.get(blocks[-1]) if blocks else seen.features

    def _unread(self, before: Pass) -> dict[str, dict[str, str]]:
        """Why meters cannot be read, by stack and meter."""
        stacks = dict[str, dict[str, str]]()
        for stack in dict.fromkeys(("", *self.member.stacks)):
            unread = stacks.setdefault(stack, {})
            if self.end(before, stack) is None and stack in self.member.stacks:
                unread |= dict.fromkeys(("activation", "activation_update"), HIDDEN)
            inner = [name for name in self.inner if self.stack_of[name] == stack]
            outer = [name for name in self.outer if self.stack_of[name] == stack]
            if inner and not self._sees_response(inner, before):
                unread["inner_update"] = _NOT_LINEAR
            is_in_block = any(block_of(name, before.behind) is not None for name in outer)
            if outer and not is_in_block and not self._sees_response(outer, before):
                unread["stream_update"] = _NOT_LINEAR
        if not self.member.plan.blocks:
            inside = {
                "inner_update": self.inner,
                "stream_update": self.outer,
                "function_update_inner": self.inner,
            }
            stacks[""] |= {meter: NO_BLOCKS for meter, names in inside.items() if not names}
        return stacks

    def _sees_response(self, names: Iterable[str], before: Pass) -> bool:
        """Whether what training changes in the output of some of these matrices can be seen."""
        infos = tensors(self.member.module)
        return any(
            name in before.inputs and is_linear(infos[name], before.inputs[name]) for name in names
        )


# ---- The number of every meter


@dataclass(frozen=True)
class StackLook:
    """What the meters of a stack of blocks are made from, while inner matrices are initial.

    Attributes:
        baseline: the network before training.
        stack: the name of the stack; ``""`` for the network, and where there is one stack.
        now: the pass through the trained network.
        matrices: the numbers of every matrix.
        responses: what training changed in the output of every matrix; None where it is not seen.
        written: what training of the outer matrices adds to the stream, by block.
    """

    baseline: Baseline
    stack: str
    now: Pass
    matrices: Mapping[str, Mapping[str, float]]
    responses: Mapping[str, _Response | None]
    written: Mapping[str, Tensor]

    def numbers(self) -> dict[str, float]:
        """The number of every meter that this stack has."""
        numbers = {}
        for meter, number_of in NUMBERS.items():
            number = None
            if meter not in self.baseline.unread[self.stack]:
                number = number_of(self)
            if number is not None:
                numbers[meter] = _checked(meter, number)
        return numbers

    def bounds(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """What meters of the stack would be at perfect alignment, where that is seen."""
        bounds = {}
        now = self.parts_of_stream(self.now)
        before = self.parts_of_stream(self.baseline.before)
        if now and len(now) == len(before):
            bounds["activation_bound"] = math.fsum(map(_distance, now, before))
        inner = self.responses_of(self.baseline.inner)
        outer = self.responses_of(self.baseline.outer)
        if inner:
            bounds["inner_bound"] = _pooled_bound(inner)
        if outer and _pooled(outer):
            # The meter has the factors of the forward pass, so scale it.
            updates = numbers["stream_update"]
            bounds["stream_bound"] = updates * _pooled_bound(outer) / _pooled(outer)
        return bounds

    def responses_of(self, names: Iterable[str]) -> list[_Response]:
        """The responses of the matrices of this list that stand in the stack."""
        responses = []
        for name in names:
            if self.baseline.stack_of[name] != self.stack:
                continue
            response = self.responses[name]
            if response is not None:
                responses.append(response)
        return responses

    def parts_of_stream(self, seen: Pass) -> list[Tensor]:
        """What the stream is the sum of: what enters the first block, and what each block adds.

        Empty where a part is not seen.
        """
        blocks = self.baseline.member.stacks.get(self.stack, ())
        streams = [seen.entering.get(self.stack), *(seen.behind.get(block) for block in blocks)]
        shown = [stream for stream in streams if stream is not None]
        if not blocks or len(shown) < len(streams) or len({h.shape for h in shown}) > 1:
            return []
        return [shown[0], *(after - before for before, after in pairwise(shown))]


def _distance(now: Tensor, before: Tensor) -> float:
    return rms(now - before)


def _pooled(responses: Sequence[_Response]) -> float:
    """RMS over the entries of all responses."""
    squares = sum(response.square for response in responses)
    return math.sqrt(squares / sum(response.entries for response in responses))


def _pooled_bound(responses: Sequence[_Response]) -> float:
    """RMS over the entries of all responses, at perfect alignment."""
    squares = sum(response.bound for response in responses)
    return math.sqrt(squares / sum(response.entries for response in responses))


def _rms_of(numbers: Sequence[float]) -> float | None:
    return rms(torch.tensor(numbers, dtype=torch.float64)) if numbers else None


def _first_activation(look: StackLook) -> float | None:
    entering = look.now.entering.get(look.stack)
    return None if entering is None else rms(entering)


def _activation(look: StackLook) -> float | None:
    now = look.baseline.end(look.now, look.stack)
    before = look.baseline.end(look.baseline.before, look.stack)
    if now is None or before is None:
        return None
    return rms(now)


def _activation_update(look: StackLook) -> float | None:
    now = look.baseline.end(look.now, look.stack)
    before = look.baseline.end(look.baseline.before, look.stack)
    if now is None or before is None:
        return None
    return rms(now - before)


def _function_update(look: StackLook) -> float | None:
    if look.stack:
        return None
    return rms(look.now.outputs - look.baseline.before.outputs)


def _inner_update(look: StackLook) -> float | None:
    responses = look.responses_of(look.baseline.inner)
    return _pooled(responses) if responses else None


def _function_update_inner(look: StackLook) -> float | None:
    baseline = look.baseline
    if look.stack or not baseline.inner:
        return None
    with quiet(baseline.member.module):
        reset = outputs_of(baseline.member(baseline.sample))
    return rms(look.now.outputs - reset)


def _stream_update(look: StackLook) -> float | None:
    """Read what the blocks write, or else how the outer matrices respond."""
    member = look.baseline.member
    blocks = member.stacks.get(look.stack, ())
    added = [look.written[block].flatten() for block in blocks if block in look.written]
    if added:
        return rms(torch.cat(added)) / member.time_step(look.stack)
    responses = look.responses_of(look.baseline.outer)
    if not responses:
        return None
    return _pooled(responses) / member.time_step(look.stack)


def _update_to_weight(look: StackLook) -> float | None:
    ratios = []
    for name in look.baseline.hidden:
        is_here = look.baseline.stack_of[name] == look.stack
        if is_here and "update_to_weight" in look.matrices[name]:
            ratios.append(look.matrices[name]["update_to_weight"])
    return _rms_of(ratios)


def _alignment(look: StackLook) -> float | None:
    if look.stack:
        return None
    numbers = look.matrices.values()
    return _rms_of([number["alignment"] for number in numbers if "alignment" in number])


# How a meter of ``METERS`` is computed, for one stack of blocks; None where the stack has none.
# The observer of ``nfd.meters.check`` adds those that need the training itself.
NUMBERS: dict[str, Callable[[StackLook], float | None]] = {
    "first_activation": _first_activation,
    "activation": _activation,
    "activation_update": _activation_update,
    "function_update": _function_update,
    "inner_update": _inner_update,
    "function_update_inner": _function_update_inner,
    "stream_update": _stream_update,
    "update_to_weight": _update_to_weight,
    "alignment": _alignment,
}


def _checked(meter: str, number: object) -> float:
    """Return the number of a meter; TypeError naming the meter for anything else."""
    if isinstance(number, bool) or not isinstance(number, Real):
        raise InputTypeError(
            f"The meter {meter!r} must be a float, or None where a stack has none; its function in "
            f"NUMBERS returned a {type(number).__name__}."
        )
    return float(number)


def copies(infos: Mapping[str, TensorInfo]) -> dict[str, Tensor]:
    """A copy of tensors as they are now, by name."""
    return {name: t.parameter.detach().clone() for name, t in infos.items()}


def _stack_of(name: str, numbers: Mapping[str, Mapping[str, int]]) -> str:
    """The stack of a matrix, by ``Member.numbers``; ``""`` where it stands in none."""
    for stack, blocks in numbers.items():
        if block_of(name, blocks) is not None:
            return stack
    return ""


# ---- A look as single numbers


def readings(member: Member, look: Look, step: int) -> Iterator[WatchRow]:
    """The numbers of a look after a step, of the network, of its stacks, blocks and matrices."""
    for stack, meters in {"": look.network, **look.stacks}.items():
        for meter, value in meters.items():
            yield WatchRow(step, meter_of(meter, stack), None, None, value, None)
    layers = {block: block for block in look.blocks} | layers_of(look.matrices)
    for name, layer in layers.items():
        depth, kind = _place(member, name, layer)
        numbers = look.blocks.get(name) or look.matrices[name]
        for meter, value in numbers.items():
            yield WatchRow(step, meter, layer, depth, value, kind)


def _place(member: Member, name: str, layer: str) -> tuple[float | None, str]:
    """The depth of a block or of the layer of a matrix, and its kind, as ``WatchRow`` has them."""
    depth = None
    kind = layer
    for stacks_before, (stack, blocks) in enumerate(member.numbers.items()):
        block = block_of(name, blocks)
        if name in blocks:
            block = name
        if block is None:
            continue
        depth = stacks_before + (blocks[block] + 1) / len(blocks)
        kind = layer[len(block) :].lstrip(".")
        if stack:
            kind = f"{stack}.*.{kind}".rstrip(".")
    return depth, kind


def meter_of(meter: str, stack: str) -> str:
    """The name of a meter of one of several stacks: ``activation of decoder.layers``."""
    return f"{meter} of {stack}" if stack else meter


def means_the_same(meter: str, definition: int) -> bool:
    """Whether stored numbers of a meter, under their definition, may stand beside new ones."""
    name = meter.partition(" of ")[0]
    return name not in METERS or definition >= METERS[name].definition


def layers_of(matrices: Collection[str]) -> dict[str, str]:
    """The name of the layer of each matrix: its module, or its own name in a module of several."""
    modules = {matrix: matrix.rpartition(".")[0] for matrix in matrices}
    matrices_in = Counter(modules.values())
    layers = {}
    for matrix, module in modules.items():
        is_only_one = module and matrices_in[module] == 1
        layers[matrix] = module if is_only_one else matrix
    return layers


# ---- one pass over a sample


@dataclass(frozen=True)
class Pass:
    """What one pass showed.

    Attributes:
        outputs: the outputs of the network.
        features: what ``activation`` measures where there are no blocks: what the readout reads.
        added: RMS of what every block adds to the stream, by the block's name.
        behind: the stream after every block, by the block's name.
        inputs: what matrices are applied to, by the matrix's name.
        entering: the stream that enters the first block of every stack.
    """

    outputs: Tensor
    features: Tensor
    added: dict[str, float]
    behind: dict[str, Tensor]
    inputs: dict[str, Tensor]
    entering: dict[str, Tensor]


@dataclass
class Calls:
    """What every block was given in one forward pass, and what it made of it.

    Attributes:
        given: a list of tensors for every call of a block.
        made: the output of its last call.
        gains: what the model multiplies that by before it adds it to the stream.
    """

    given: dict[str, list[list[Tensor]]] = field(default_factory=lambda: defaultdict(list))
    made: dict[str, Tensor] = field(default_factory=dict)
    gains: Mapping[str, float | Tensor] = field(default_factory=dict)

    @contextmanager
    def noted(self, parts: Mapping[str, nn.Module], blocks: Iterable[str]) -> Iterator[None]:
        """Note one forward pass in this context; tensors are copied."""

        def given(block: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            copied = list[Tensor]()

            def copy(leaf: Any) -> None:
                # Blocks may write in place.
                if isinstance(leaf, Tensor):
                    copied.append(leaf.clone())

            mapped((args, kwargs), copy)
            self.given[block].append(copied)

        def made(block: str, _: nn.Module, __: Any, out: Any) -> None:
            # What returns no tensor is not taken for a block.
            with suppress(InputTypeError):
                self.made[block] = outputs_of(out).detach().clone()

        with ExitStack() as hooks:
            for block in blocks:
                part = parts.get(block)
                if part is None:
                    continue
                note_inputs = partial(given, block)
                hooks.enter_context(part.register_forward_pre_hook(note_inputs, with_kwargs=True))
                hooks.enter_context(part.register_forward_hook(partial(made, block)))
            yield

    @contextmanager
    def repeated(self, parts: Mapping[str, nn.Module]) -> Iterator[None]:
        """Give blocks the same tensors in one forward pass, call by call."""
        calls_of = {block: iter(calls) for block, calls in self.given.items()}

        def give(
            block: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[Any, Any]:
            noted_tensors = iter(next(calls_of[block], []))

            def same(leaf: Any) -> Any:
                if not isinstance(leaf, Tensor):
                    return leaf
                noted = next(noted_tensors, leaf)
                return noted if noted.shape == leaf.shape else leaf

            given: tuple[Any, Any] = mapped((args, kwargs), same)
            return given

        with ExitStack() as hooks:
            for block in calls_of:
                hook = partial(give, block)
                hooks.enter_context(parts[block].register_forward_pre_hook(hook, with_kwargs=True))
            yield


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Use eval mode, but for batch normalisation, which takes the batch's statistics.

    It forgets them again afterwards.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    before = [(m.momentum, m.num_batches_tracked) for m in norms]
    with evaluating(model):
        for m in norms:
            m.training = True
            m.momentum = 0.0
            if m.num_batches_tracked is not None:
                m.num_batches_tracked = m.num_batches_tracked.clone()
        try:
            yield
        finally:
            for m, (momentum, tracked) in zip(norms, before, strict=True):
                m.momentum = momentum
                m.num_batches_tracked = tracked
            give_back(model)


# ---- matrices

_POWER_ITERATIONS = 16
# Numbers whose squares are added up at a time.
_PART = 1 << 15


def matrices_of(t: TensorInfo, fan_in: int | None, values: Tensor) -> Tensor:
    """The numbers of a tensor as a matrix [out, in], or as a stack of matrices, such as of experts.

    A tensor of three dimensions whose module shows no fans is a stack, unless an output sums over
    two of the dimensions, as by ``einsum("bik,oik->bo")``.
    """
    if len(t.shape) != 3 or t.ins is not None:
        return values.flatten(1)
    if fan_in is None or 1 in t.shape:
        return values
    for axis, size in enumerate(t.shape):
        if fan_in * size == values.numel():
            return values.movedim(axis, 0).flatten(1)
    return values


def is_linear(t: TensorInfo, z: Tensor) -> bool:
    """Whether the owner of a matrix does nothing but apply it.

    Only then can its part be measured.
    """
    if isinstance(t.owner, nn.MultiheadAttention):
        return t.name.endswith("in_proj_weight") and z.shape[-1] == t.shape[1]
    plain = isinstance(t.owner, nn.Linear | _ConvNd | DenseLinear) or is_conv1d(t.owner)
    return plain and t.name.endswith("weight")


def applied(t: TensorInfo, weight: Tensor, z: Tensor) -> Tensor:
    """What a module would add to its output if its weights were larger by ``weight``.

    It has the precision of the weights: autocast inside of a model gives inputs of 16 bits.
    """
    attribute = t.name.rpartition(".")[2]
    z = z.to(weight.dtype)
    if isinstance(t.owner, nn.MultiheadAttention) or type(t.owner) is nn.Linear:
        return nn.functional.linear(z, weight)
    swapped = {attribute: weight}
    bias = getattr(t.owner, "bias", None)
    if isinstance(bias, Tensor):
        swapped["bias"] = weight.new_zeros(bias.shape)
    return cast(Tensor, torch.func.functional_call(t.owner, swapped, (z,)))


def reach(t: TensorInfo, change: Tensor, z: Tensor, law: OptimizerLaw) -> float:
    """The most that a change of this size does to the outputs: ``|dW| |z|``.

    It does that if all inputs lie along its direction.
    """
    size = spectral_norm(change.flatten(1)) if law.unit == WHOLE_MATRIX else norm(change)
    return size * _norm_of_inputs(t, z)


def spectral_norm(matrix: Tensor) -> float:
    """The largest singular value of a matrix, by power iteration; RMS over a stack."""
    # Squares of small updates are zero in 16 bits.
    w = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    # A row is ten times as fast as a column.
    v = torch.ones(*w.shape[:-2], 1, w.shape[-1], dtype=w.dtype, device=w.device)
    v[..., ::2] -= 0.5
    for _ in range(_POWER_ITERATIONS):
        v = v @ w.mT @ w
        v /= torch.linalg.vector_norm(v, dim=(-2, -1), keepdim=True).clamp_min_(
            torch.finfo(w.dtype).tiny
        )
    return norm(v @ w.mT) / math.sqrt(math.prod(w.shape[:-2]))


def norm(values: Tensor) -> float:
    """The root of the sum of squares, in double precision."""
    if values.numel() <= _PART or values.device.type != "cpu":
        return float(torch.linalg.vector_norm(values, dtype=torch.float64))
    # Part by part in the cache: PyTorch converts a matrix number by number, five times as slowly.
    squares = 0.0
    for part in torch.split(values.reshape(-1), _PART):
        numbers = part.double()
        squares += float(torch.dot(numbers, numbers))
    return math.sqrt(squares)


def _norm_of_inputs(t: TensorInfo, z: Tensor) -> float:
    """The root of the sum of squares of all inputs, of a convolution of all patches."""
    if not isinstance(t.owner, _ConvNd):
        return norm(z)
    squares = applied(t, z.new_ones(t.shape), z.square()).sum(dtype=torch.float64)
    return math.sqrt(max(0.0, float(squares) * t.owner.groups / t.owner.out_channels))
