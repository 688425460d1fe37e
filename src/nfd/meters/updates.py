"""How much training changed a network: its features, its stream and its function, measured by
hooks.

With ``z`` what a matrix is applied to in the trained network, ``W`` its effective weights (forward
multiplier included) and (0) marking the start:

    inner_update           rms over inner matrices of (W - W(0)) z                     Eq. 27
    stream_update          rms over blocks of (L / T) (b(h) - b(h; outer matrices at their start))
                                                                                       Eqs. 33, 34
                                                                                (T = 1 elsewhere)
    first_update           stream_update after the first update that changes it
    function_update        rms(f - f(0))
    function_update_inner  rms(f - f with the inner matrices at their start)
    first_activation       rms of the stream that enters the first block
    activation             rms of what the last block, or without blocks what the readout reads,
                           holds
    activation_update      rms of the change of that
    update_to_weight       rms over inner (without blocks: hidden) matrices of
                           |W - W(0)|_2 / |W(0)|_2
    alignment              rms over matrices of the alignment of their last update with their
                           inputs, below

where ``b`` is what a block adds to the stream h of the trained network, with every factor that the
forward pass has, wherever it is written. Where blocks are not called as modules, and in the paper's
networks, whose blocks are linear in their outer matrix, ``stream_update`` is the rms over outer
matrices of (L / T) (W - W(0)) z.

Later updates cancel earlier ones where a network learns too fast, the more the deeper it is: with
branches of 2/sqrt(L) and rates kept, ``stream_update`` of a GPT goes as L^0.47 after one step of
AdamW, and as L^0.33 after four. ``first_update`` has the exponent of the rates.

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
they are independent of it. Rules of mup's kind take the first: of n coordinates with signs that
agree, sums grow as n. Where alignment falls as ``n^-1/2`` with width, sums grow as sqrt(n), and
rates that fall as 1/n make updates too small. ``|dW|`` is the norm that the optimizer fixes: that
of the entries (Frobenius) for SGD and Adam, the largest singular value for Muon.

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
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from nfd.core.errors import InputTypeError
from nfd.core.estimates import rms
from nfd.families.member import Member
from nfd.families.network import DenseLinear
from nfd.scaling.initialise import fill_
from nfd.scaling.model import TensorInfo, block_of, give_back, is_conv1d, modules, tensors, whole
from nfd.scaling.optimizers import WHOLE_MATRIX, OptimizerLaw
from nfd.scaling.rules import INPUT_LIKE
from nfd.scaling.samples import evaluating, mapped, outputs_of

# of what training changed in an output, of its bound, and the number of entries
_Squares = tuple[float, float, int]
Keep = Callable[[Mapping[str, TensorInfo]], Mapping[str, Tensor]]
NO_BLOCKS = (
    "no residual blocks were found: where the model has some, pass blocks='path.to.blocks.*', or "
    "take a depth of at least 2."
)
DEFINITION = 2  # of the meters, stored with their numbers; since 2 stream_update is what blocks add
HIDDEN = "the blocks are not called as modules, so that the stream between them cannot be seen."


@dataclass(frozen=True)
class Look:
    """The meters of a network after a step, those of its matrices and those of its blocks, by name.

    ``stacks`` has those of every stack of blocks by the name of the stack, where there are several.
    ``bounds`` has by stack what ``inner_update`` and ``stream_update`` would be at perfect
    alignment, and ``activation_update`` if what training changes in every block had one direction.
    """

    network: dict[str, float]
    stacks: dict[str, dict[str, float]]
    matrices: dict[str, dict[str, float]]
    blocks: dict[str, dict[str, float]]
    bounds: dict[str, dict[str, float]]


class Baseline:
    """A record of a network before training, and the meters that compare the trained network with
    it.

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
        self.matrices = [
            n for n, e in plan.entries.items() if not e.is_vector and member.multiplier(n)
        ]
        self.inner = [n for n in self.matrices if plan.roles[n] == "inner"]
        self.outer = [n for n in self.matrices if plan.roles[n] == "outer"]
        self.summing = [n for n in self.matrices if plan.roles[n] not in INPUT_LIKE]
        self.hidden = self.inner or [n for n in self.matrices if plan.roles[n] == "hidden"]
        self.stack_of = {n: _stack_of(n, member.stacks) for n in self.matrices}
        self._blocks = [block for blocks in member.stacks.values() for block in blocks]
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
        """A forward pass over the sample; ``calls`` notes what its blocks are given and make."""
        module = self.member.module
        inputs = dict[str, Tensor]()
        infos = tensors(module)
        parts = modules(module)

        def keep(name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                inputs.setdefault(name, args[0].detach())

        with ExitStack() as hooks:
            for name in {*self.summing, *self.readers}:
                for owner in (parts[full.rpartition(".")[0]] for full in infos[name].names):
                    if owner is not module and not isinstance(owner, nn.Embedding):
                        hooks.enter_context(owner.register_forward_pre_hook(partial(keep, name)))
            hooks.enter_context(quiet(module))
            stream = hooks.enter_context(self.member.stream())
            if calls is not None and self.member.net is None:
                hooks.enter_context(calls.noted(parts, self._blocks))
            outputs = outputs_of(self.member(self.sample)).detach()
            if calls is not None:
                calls.gains = stream.gains
        features = [inputs[n] for n in self.readers if n in inputs] or [outputs]
        ends = {block: (stream.before.get(block), h) for block, h in stream.behind.items()}
        added = {
            block: rms(h - z)
            for block, (z, h) in ends.items()
            if z is not None and z.shape == h.shape
        }
        entering = {stack: taken[-1].detach() for stack, taken in stream.first.items() if taken}
        return Pass(outputs, features[-1], added, stream.behind, inputs, entering)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the matrices that read the stream, to compute the next update by difference."""
        infos = tensors(self.member.module)
        return copies({name: infos[name] for name in self.summing})

    @torch.no_grad()
    def look(
        self, previous: Mapping[str, Tensor] | None = None, seen: tuple[Pass, Calls] | None = None
    ) -> Look:
        """The meters of the network, of every matrix and of every block.

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
        written = self._written(calls)
        matrices = dict[str, dict[str, float]]()
        responses = dict[str, _Squares | None]()
        with ExitStack() as trained:  # inner matrices go to their start, and back behind it
            for name in self.matrices:
                start = self.start[name]
                weight = infos[name].parameter
                matrices[name], responses[name] = self._of_matrix(
                    infos[name], start, now, before.get(name)
                )
                if name in self.inner:
                    trained.callback(weight.copy_, weight.detach().clone())
                    fill_(weight, start)
            stacks = self._of_stacks(now, matrices, responses, written)
        bounds = {
            stack: self._bounds(stack, responses, meters, now) for stack, meters in stacks.items()
        }
        network = stacks.pop("")
        aligned = [meters["alignment"] for meters in matrices.values() if "alignment" in meters]
        if aligned:
            network["alignment"] = rms(torch.tensor(aligned, dtype=torch.float64))
        starts = self.before.behind
        blocks = {
            name: _of_stream(h, starts[name]) for name, h in now.behind.items() if name in starts
        }
        for name, added in now.added.items():
            stack = _stack_of(f"{name}.", self.member.stacks)
            blocks.setdefault(name, {})["added"] = added / self.member.time_step(stack)
        return Look(network, stacks, matrices, blocks, bounds)

    def _of_matrix(
        self, t: TensorInfo, start: Tensor, now: Pass, before: Tensor | None
    ) -> tuple[dict[str, float], _Squares | None]:
        """The meters of a matrix, and sums over what training changed in its output, ``(W - W(0))
        z``, where its input is seen."""
        weight = whole(t.parameter)
        z = now.inputs.get(t.name)
        law = self.member.plan.law_for(t.name)
        changed = weight - start
        if t.name not in self._start_sizes:
            spectral = spectral_norm(start, is_stack=is_stack(t)) if t.name in self.hidden else 0.0
            self._start_sizes[t.name] = norm(start), spectral
        size, spectral = self._start_sizes[t.name]
        meters = {"change": norm(changed) / size, "weight": norm(weight) / size} if size else {}
        if spectral:  # of hidden matrices; one that begins at zero has no ratio
            meters["update_to_weight"] = spectral_norm(changed, is_stack=is_stack(t)) / spectral
        if z is None or not is_linear(t, z):
            return meters, None
        multiplier = self.member.multiplier(t.name)
        response = multiplier * applied(t, changed, z)
        bound = multiplier * reach(t, changed, z, law)
        meters["update"] = rms(response)
        if before is not None:
            last = weight - whole(before)
            if most := reach(t, last, z, law):
                meters["alignment"] = norm(applied(t, last, z)) / most
        return meters, (norm(response) ** 2, bound**2, response.numel())

    def _of_stack(
        self, stack: str, names: Iterable[str], responses: Mapping[str, _Squares | None]
    ) -> list[_Squares]:
        return [own for name in names if self.stack_of[name] == stack and (own := responses[name])]

    def _bounds(
        self,
        stack: str,
        responses: Mapping[str, _Squares | None],
        meters: Mapping[str, float],
        now: Pass,
    ) -> dict[str, float]:
        """What meters of a stack would be at perfect alignment, where that is seen."""
        bounds = {}
        parts = [self._parts_of_stream(seen, stack) for seen in (now, self.before)]
        if parts[0] and len(parts[0]) == len(parts[1]):
            bounds["activation_bound"] = math.fsum(rms(a - b) for a, b in zip(*parts, strict=True))
        inner, outer = (
            self._of_stack(stack, names, responses) for names in (self.inner, self.outer)
        )
        if inner:
            bounds["inner_bound"] = _pooled(inner, 1)
        response = _pooled(outer) if outer else 0.0
        if response:  # factors of the forward pass are those of the meter
            bounds["stream_bound"] = meters["stream_update"] * _pooled(outer, 1) / response
        return bounds

    def _parts_of_stream(self, seen: Pass, stack: str) -> list[Tensor]:
        """What the stream of a stack is the sum of: what enters its first block, and what every
        block adds to it.
        """
        blocks = self.member.stacks.get(stack, ())
        streams = [seen.entering.get(stack), *(seen.behind.get(block) for block in blocks)]
        shown = [h for h in streams if h is not None]
        if not blocks or len(shown) < len(streams) or len({h.shape for h in shown}) > 1:
            return []
        return [shown[0], *(after - before for before, after in pairwise(shown))]

    def _written(self, calls: Calls) -> dict[str, Tensor]:
        """What training of the outer matrices adds to the stream in every block that is called as a
        module.

        One more forward pass, in which outer matrices are at their start and every block is given
        what it is given in the trained network: the stream, and all that is made outside of blocks.
        """
        module = self.member.module
        infos = tensors(module)
        parts = modules(module)
        writers = {name: block_of(name, self._blocks) for name in self.outer}
        blocks = {block for block in writers.values() if block in calls.made}
        if not blocks:
            return {}
        again = Calls()
        with ExitStack() as trained:
            for name in (name for name, block in writers.items() if block in blocks):
                weight = infos[name].parameter
                trained.callback(weight.copy_, weight.detach().clone())
                fill_(weight, self.start[name])
            trained.enter_context(quiet(module))
            trained.enter_context(calls.repeated(parts))
            trained.enter_context(again.noted(parts, self._blocks))
            self.member(self.sample)
        return {
            block: calls.gains.get(block, 1.0) * (calls.made[block] - again.made[block])
            for block in blocks
            if block in again.made and again.made[block].shape == calls.made[block].shape
        }

    def _stream_update(
        self, stack: str, written: Mapping[str, Tensor], responses: Sequence[_Squares]
    ) -> float | None:
        """``stream_update`` of a stack, by what its blocks write or else by how its outer matrices
        respond.
        """
        blocks = self.member.stacks.get(stack, ())
        added = [written[block].flatten() for block in blocks if block in written]
        if added:
            return rms(torch.cat(added)) / self.member.time_step(stack)
        return _pooled(responses) / self.member.time_step(stack) if responses else None

    @torch.no_grad()
    def stream_updates(self) -> dict[str, float]:
        """``stream_update`` of every stack that has one, by the name of the stack, without the
        other meters.
        """
        calls = Calls()
        now = self.seen(calls)
        written = self._written(calls)
        infos = tensors(self.member.module)
        responses = {
            name: self._of_matrix(infos[name], self.start[name], now, None)[1]
            for name in self.outer
        }
        moved = {
            stack: self._stream_update(stack, written, self._of_stack(stack, self.outer, responses))
            for stack in self.unread
        }
        return {stack: update for stack, update in moved.items() if update is not None}

    def _of_stacks(
        self,
        now: Pass,
        matrices: Mapping[str, Mapping[str, float]],
        responses: Mapping[str, _Squares | None],
        written: Mapping[str, Tensor],
    ) -> dict[str, dict[str, float]]:
        """The meters of every stack and of the network, from those of the matrices, while the inner
        matrices are at their start."""
        stacks = {}
        for stack, unread in self.unread.items():
            ends = self._end(now, stack), self._end(self.before, stack)
            meters = {"first_activation": rms(now.entering[stack])} if stack in now.entering else {}
            meters |= {} if ends[0] is None or ends[1] is None else _of_stream(ends[0], ends[1])
            meters = {meter: value for meter, value in meters.items() if meter not in unread}
            if not stack:
                meters["function_update"] = rms(now.outputs - self.before.outputs)
            inner, outer = (
                self._of_stack(stack, names, responses) for names in (self.inner, self.outer)
            )
            if inner:
                meters["inner_update"] = _pooled(inner)
            if self.inner and not stack:
                with quiet(self.member.module):
                    reset = outputs_of(self.member(self.sample))
                meters["function_update_inner"] = rms(now.outputs - reset)
            moved = self._stream_update(stack, written, outer)
            if moved is not None:
                meters["stream_update"] = moved
            own = [matrices[name] for name in self.hidden if self.stack_of[name] == stack]
            ratios = [meters["update_to_weight"] for meters in own if "update_to_weight" in meters]
            if ratios:
                meters["update_to_weight"] = rms(torch.tensor(ratios, dtype=torch.float64))
            stacks[stack] = meters
        return stacks

    def _end(self, seen: Pass, stack: str) -> Tensor | None:
        """The stream behind the last block of a stack; without blocks, and so without stacks, what
        is read.
        """
        blocks = self.member.stacks.get(stack)
        if blocks is None:
            return None
        return seen.behind.get(blocks[-1]) if blocks else seen.features

    def _unread(self, before: Pass) -> dict[str, dict[str, str]]:
        infos = tensors(self.member.module)
        stacks = dict[str, dict[str, str]]()
        for stack in dict.fromkeys(("", *self.member.stacks)):
            unread = stacks.setdefault(stack, {})
            end = self._end(before, stack)
            if end is None and stack in self.member.stacks:
                unread |= dict.fromkeys(("activation", "activation_update"), HIDDEN)
            for meter, names in (("inner_update", self.inner), ("stream_update", self.outer)):
                own = [n for n in names if self.stack_of[n] == stack]
                is_seen = any(
                    n in before.inputs and is_linear(infos[n], before.inputs[n]) for n in own
                )
                if meter == "stream_update" and any(
                    block_of(n, before.behind) is not None for n in own
                ):
                    is_seen = True
                if own and not is_seen:
                    unread[meter] = (
                        "none of these matrices stands in a module that does nothing but apply it."
                    )
        if not self.member.plan.blocks:
            inside = {
                "inner_update": self.inner,
                "stream_update": self.outer,
                "function_update_inner": self.inner,
            }
            stacks[""] |= {meter: NO_BLOCKS for meter, names in inside.items() if not names}
        return stacks


def copies(infos: Mapping[str, TensorInfo]) -> dict[str, Tensor]:
    """A copy of tensors as they are now, by name."""
    return {name: t.parameter.detach().clone() for name, t in infos.items()}


def _stack_of(name: str, stacks: Mapping[str, tuple[str, ...]]) -> str:
    """The stack of a matrix; that without a name where it stands in none."""
    return next(
        (stack for stack, blocks in stacks.items() if block_of(name, blocks) is not None), ""
    )


def _of_stream(now: Tensor, start: Tensor) -> dict[str, float]:
    return {"activation": rms(now), "activation_update": rms(now - start)}


def _pooled(parts: Sequence[_Squares], which: int = 0) -> float:
    """RMS over the entries of all parts, of the responses or of their bounds."""
    return math.sqrt(sum(part[which] for part in parts) / sum(entries for *_, entries in parts))


# ---- a look as single numbers


# the fields of ``nfd.watch.WatchRow`` after its step
Reading = tuple[str, str | None, float | None, float, str | None]


def readings(member: Member, look: Look) -> Iterator[Reading]:
    """The numbers of a look: those of the network, of its stacks, blocks and matrices."""
    for stack, meters in {"": look.network, **look.stacks}.items():
        yield from (
            (meter_of(meter, stack), None, None, value, None) for meter, value in meters.items()
        )
    for name, layer in ({block: block for block in look.blocks} | layers_of(look.matrices)).items():
        depth = None
        kind = layer
        for before, (stack, blocks) in enumerate(member.stacks.items()):
            block = name if name in blocks else block_of(name, blocks)
            if block is not None:
                depth = before + (blocks.index(block) + 1) / len(blocks)
                own = layer[len(block) :].lstrip(".")
                kind = f"{stack}.*.{own}".rstrip(".") if stack else own
        for meter, value in (look.blocks.get(name) or look.matrices[name]).items():
            yield meter, layer, depth, value, kind


def meter_of(meter: str, stack: str) -> str:
    """The name of a meter of one of several stacks: ``activation of decoder.layers``."""
    return f"{meter} of {stack}" if stack else meter


def means_the_same(meter: str, definition: int) -> bool:
    """Whether numbers of a meter that were stored under a definition may stand beside those of
    today.
    """
    return definition >= DEFINITION or meter.partition(" of ")[0] != "stream_update"


def layers_of(matrices: Collection[str]) -> dict[str, str]:
    """The name of the layer of each matrix: that of its module, and its own where the module holds
    several.
    """
    modules = {matrix: matrix.rpartition(".")[0] for matrix in matrices}
    held = Counter(modules.values())
    return {
        matrix: module if module and held[module] == 1 else matrix
        for matrix, module in modules.items()
    }


# ---- one pass over a sample


@dataclass(frozen=True)
class Pass:
    """What one pass showed.

    Attributes:
        outputs: of the network.
        features: what ``activation`` measures where there are no blocks: what the readout reads.
        added: RMS of what every block adds to the stream, by the block's name.
        behind: the stream behind every block.
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
    """What every block was given in one forward pass, a list of tensors for every call, and what it
    last made of it.

    ``gains``: what the model multiplies that by before it adds it to the stream.
    """

    given: dict[str, list[list[Tensor]]] = field(default_factory=lambda: defaultdict(list))
    made: dict[str, Tensor] = field(default_factory=dict)
    gains: Mapping[str, float | Tensor] = field(default_factory=dict)

    @contextmanager
    def noted(self, parts: Mapping[str, nn.Module], blocks: Iterable[str]) -> Iterator[None]:
        """A context of one forward pass that is noted; copies, as blocks may write in place."""

        def given(block: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            taken = list[Tensor]()
            mapped(
                (args, kwargs),
                lambda leaf: taken.append(leaf.clone()) if isinstance(leaf, Tensor) else None,
            )
            self.given[block].append(taken)

        def made(block: str, _: nn.Module, __: Any, out: Any) -> None:
            with suppress(InputTypeError):  # a block that returns no tensor is none
                self.made[block] = outputs_of(out).detach().clone()

        with ExitStack() as hooks:
            for block in (block for block in blocks if block in parts):
                hooks.enter_context(
                    parts[block].register_forward_pre_hook(partial(given, block), with_kwargs=True)
                )
                hooks.enter_context(parts[block].register_forward_hook(partial(made, block)))
            yield

    @contextmanager
    def repeated(self, parts: Mapping[str, nn.Module]) -> Iterator[None]:
        """A context of one forward pass in which blocks are given the same tensors, call by
        call.
        """
        left = {block: iter(calls) for block, calls in self.given.items()}

        def give(
            block: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[Any, Any]:
            taken = iter(next(left[block], []))

            def same(leaf: Any) -> Any:
                before = next(taken, leaf) if isinstance(leaf, Tensor) else leaf
                is_alike = isinstance(leaf, Tensor) and before.shape == leaf.shape
                return before if is_alike else leaf

            given: tuple[Any, Any] = mapped((args, kwargs), same)
            return given

        with ExitStack() as hooks:
            for block in left:
                hooks.enter_context(
                    parts[block].register_forward_pre_hook(partial(give, block), with_kwargs=True)
                )
            yield


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Eval mode, but for batch normalisation, which takes the batch's statistics and forgets them
    again.
    """
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    before = [(m.momentum, m.num_batches_tracked) for m in norms]
    with evaluating(model):
        for m in norms:
            m.training = True
            m.momentum = 0.0
            m.num_batches_tracked = (
                None if m.num_batches_tracked is None else m.num_batches_tracked.clone()
            )
        try:
            yield
        finally:
            for m, (momentum, tracked) in zip(norms, before, strict=True):
                m.momentum = momentum
                m.num_batches_tracked = tracked
            give_back(model)


# ---- matrices

_POWER_ITERATIONS = 16


def is_stack(t: TensorInfo) -> bool:
    """Whether a tensor is a stack of matrices, as of experts: of three dimensions, in a module that
    tells no fans.
    """
    return len(t.shape) == 3 and t.ins is None


def is_linear(t: TensorInfo, z: Tensor) -> bool:
    """Whether the owner of a matrix does nothing but apply it: only then can its own part be
    measured.
    """
    if isinstance(t.owner, nn.MultiheadAttention):
        return t.name.endswith("in_proj_weight") and z.shape[-1] == t.shape[1]
    plain = isinstance(t.owner, nn.Linear | _ConvNd | DenseLinear) or is_conv1d(t.owner)
    return plain and t.name.endswith("weight")


def applied(t: TensorInfo, weight: Tensor, z: Tensor) -> Tensor:
    """What a module would add to its output if its weights were larger by ``weight``, in the
    precision of the weights: autocast inside of a model gives inputs of 16 bits."""
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
    """``|dW| |z|``: the most that a change of this size does to the outputs, if all inputs lie
    along its direction.
    """
    size = spectral_norm(change) if law.unit == WHOLE_MATRIX else norm(change)
    return size * _norm_of_inputs(t, z)


def spectral_norm(matrix: Tensor, *, is_stack: bool = False) -> float:
    """The largest singular value of a matrix, flattened to two dimensions, by power iteration; RMS
    over a stack.
    """
    w = matrix if is_stack else matrix.flatten(1)
    # squares of small updates are zero in 16 bits
    w = w.to(torch.promote_types(w.dtype, torch.float32))
    v = torch.ones(
        *w.shape[:-2], 1, w.shape[-1], dtype=w.dtype, device=w.device
    )  # a row: ten times as fast as a column
    v[..., ::2] -= 0.5
    for _ in range(_POWER_ITERATIONS):
        v = v @ w.mT @ w
        v /= torch.linalg.vector_norm(v, dim=(-2, -1), keepdim=True).clamp_min_(
            torch.finfo(w.dtype).tiny
        )
    return norm(v @ w.mT) / math.sqrt(math.prod(w.shape[:-2]))


def norm(values: Tensor) -> float:
    """The root of the sum of squares."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def _norm_of_inputs(t: TensorInfo, z: Tensor) -> float:
    """The root of the sum of squares of all inputs, of a convolution of all patches."""
    if not isinstance(t.owner, _ConvNd):
        return norm(z)
    squares = applied(t, z.new_ones(t.shape), z.square()).sum(dtype=torch.float64)
    return math.sqrt(max(0.0, float(squares) * t.owner.groups / t.owner.out_channels))
