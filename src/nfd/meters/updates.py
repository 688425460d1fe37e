"""How much training changed a network: its features, its stream and its function, measured by hooks.

With ``z`` what a matrix is applied to in the trained network, ``W`` its effective weights (forward multiplier included)
and (0) marking the start:

    inner_update           rms over inner matrices of (W - W(0)) z                     Eq. 27
    stream_update          rms over outer matrices of (L / T) (W - W(0)) z             Eqs. 33, 34 (T = 1 elsewhere)
    function_update        rms(f - f(0))
    function_update_inner  rms(f - f with the inner matrices at their start)
    first_activation       rms of the stream that enters the first block
    activation             rms of what the last block, or without blocks what the readout reads, holds
    activation_update      rms of the change of that
    update_to_weight       rms over inner (without blocks: hidden) matrices of |W - W(0)|_2 / |W(0)|_2
    alignment              rms over matrices of the alignment of their last update with their inputs
                           (``nfd.meters.matrices``)

Matrices count whose module does nothing but apply them (linear layers, convolutions, fused attention inputs). Batch
normalisation uses the batch's statistics. All meters are Theta(1) in width where features learn.

A network of several stacks of blocks, such as an encoder and a decoder, has all but the ``function`` meters once for
every stack, with its own depth as L: one number for both would hide what happens in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfd.core.statistics import rms
from nfd.families.member import Member
from nfd.meters.matrices import alignment, applied, is_linear, norm, spectral_norms
from nfd.meters.passes import Pass, pass_of, quiet
from nfd.scaling.model import TensorInfo, block_of, outputs_of, tensors, whole
from nfd.scaling.plan import fill_
from nfd.scaling.rules import INPUT_LIKE

UPDATES = (
    "activation",
    "activation_update",
    "inner_update",
    "stream_update",
    "function_update",
    "function_update_inner",
    "update_to_weight",
)
FIRST, ALIGNMENT = "first_activation", "alignment"
_Squares = tuple[float, int]
Keep = Callable[[Mapping[str, TensorInfo]], Mapping[str, Tensor]]
_ALIKE = 1e-3  # of the RMS of a vector: what the epsilon of a norm leaves between inputs; without a norm, n^-1/2
NO_BLOCKS = (
    "no residual blocks were found: where the model has some, pass blocks='path.to.blocks.*', or take a depth of at "
    "least 2."
)
HIDDEN = "the blocks are not called as modules, so that the stream between them cannot be seen."


class _Size(NamedTuple):
    """Of a matrix: the norm of its entries, and its largest singular value where a meter asks for it."""

    entries: float
    spectral: Tensor | None


@dataclass(frozen=True)
class Look:
    """The meters of a network after a step, those of its matrices and those of its blocks, by name.

    ``stacks`` has those of every stack of blocks by the name of the stack, where there are several.
    """

    network: dict[str, float]
    stacks: dict[str, dict[str, float]]
    matrices: dict[str, dict[str, float]]
    blocks: dict[str, dict[str, float]]


class Baseline:
    """A record of a network before training, and the meters that compare the trained network with it.

    Args:
        member: the network, before training.
        sample: an input of the model. All meters are measured on it, in eval mode.
        keep: a function from the matrices of the network, by name, to their initial numbers, which stay available
            during training; by default it copies them.

    Attributes:
        unread: the reasons why meters of the stream or of matrices cannot be read from this model, by stack (``""`` for
            the network, and where there is one stack) and meter.
    """

    def __init__(self, member: Member, sample: Any, keep: Keep | None = None) -> None:
        self.member, self.sample = member, sample
        plan = member.plan
        self.matrices = [n for n, e in plan.entries.items() if not e.is_vector and member.multiplier(n)]
        self.inner = [n for n in self.matrices if plan.roles[n] == "inner"]
        self.outer = [n for n in self.matrices if plan.roles[n] == "outer"]
        self.summing = [n for n in self.matrices if plan.roles[n] not in INPUT_LIKE]
        self.hidden = self.inner or [n for n in self.matrices if plan.roles[n] == "hidden"]
        self.stack_of = {n: _stack_of(n, member.stacks) for n in self.matrices}
        self.readers = [n for n, e in plan.entries.items() if e.role in ("readout", "tied")]
        infos = tensors(member.module)
        self.start = (keep or copies)({name: infos[name] for name in self.matrices})
        self._start_sizes: dict[str, _Size] = {}
        before = self.seen()
        self.unread = self._unread(before)
        self.begin_at(before)

    def updates(self) -> dict[str, float]:
        """All meters of this module that the network has, by name, except ``alignment``."""
        return self.by_stack()[""]

    @torch.no_grad()
    def by_stack(self) -> dict[str, dict[str, float]]:
        """The same, and those of every stack of several, by its name; those of the network have none."""
        now, infos = self.seen(), tensors(self.member.module)
        responses = {name: _squares(self._response(infos[name], now)) for name in (*self.inner, *self.outer)}
        moved = spectral_norms([whole(infos[n].parameter) - self.start[n] for n in self.hidden])
        ratios = moved / spectral_norms([self.start[n] for n in self.hidden])
        with _resetting(infos) as reset:
            for name in self.inner:
                reset(name, self.start[name])
            return self._of_stacks(now, responses, ratios)

    def stream(self) -> dict[str, dict[str, float]]:
        """``first_activation`` and ``activation`` of every stack before training, if they can be read."""
        stacks = {stack: _entering(self.before, stack) for stack in self.unread}
        for stack, unread in self.unread.items():
            end = self._end(self.before, stack)
            if "activation" not in unread and end is not None:
                stacks[stack]["activation"] = rms(end)
        return stacks

    def begin_at(self, before: Pass) -> None:
        """Use this pass, of ``seen()``, as the start."""
        self.before = replace(before, inputs={})
        self._start_sizes.clear()

    def seen(self) -> Pass:
        """A forward pass over the sample, for ``look`` and ``begin_at``."""
        return pass_of(self.member, self.sample, self.summing, self.readers)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the matrices that read the stream, to compute the next update by difference."""
        infos = tensors(self.member.module)
        return copies({name: infos[name] for name in self.summing})

    @torch.no_grad()
    def look(self, previous: Mapping[str, Tensor] | None = None, seen: Pass | None = None) -> Look:
        """The meters of the network, of every matrix and of every block.

        Every matrix has ``change``, ``|W - W(0)| / |W(0)|``, and ``weight``, ``|W| / |W(0)|``. A matrix that reads the
        stream also has ``update``, the RMS of the change of its output by training, and ``alignment``. Inner matrices,
        or hidden ones in a network without inner ones, have ``update_to_weight``. A block has ``activation`` and
        ``activation_update`` of the stream after it, and ``added``, the RMS of its output over ``T / L``.

        Args:
            previous: ``weights()`` before the last update, for ``alignment``.
            seen: a pass of ``seen()``; by default a new one.
        """
        now, infos, before = seen or self.seen(), tensors(self.member.module), previous or {}
        matrices, responses = dict[str, dict[str, float]](), dict[str, _Squares | None]()
        with _resetting(infos) as reset:
            for name in self.matrices:
                start = self.start[name]
                matrices[name], responses[name] = self._of_matrix(infos[name], start, now, before.get(name))
                if name in self.inner:
                    reset(name, start)
            of_hidden = [matrices[name]["update_to_weight"] for name in self.hidden]
            ratios = torch.tensor(of_hidden, dtype=torch.float64, device="cpu")
            stacks = self._of_stacks(now, responses, ratios)
        network = stacks.pop("")
        aligned = [meters[ALIGNMENT] for meters in matrices.values() if ALIGNMENT in meters]
        if aligned:
            network[ALIGNMENT] = rms(torch.tensor(aligned, dtype=torch.float64))
        starts = self.before.behind
        blocks = {name: _of_stream(h, starts[name]) for name, h in now.behind.items() if name in starts}
        for name, added in now.added.items():
            stack = _stack_of(f"{name}.", self.member.stacks)
            blocks.setdefault(name, {})["added"] = added / self.member.time_step(stack)
        return Look(network, stacks, matrices, blocks)

    def _of_matrix(
        self, t: TensorInfo, start: Tensor, now: Pass, before: Tensor | None
    ) -> tuple[dict[str, float], _Squares | None]:
        """The meters of a matrix, and the squares of what its training changed in its output."""
        weight = whole(t.parameter)
        changed, size, meters = weight - start, self._start_size(t.name, start), dict[str, float]()
        if size.entries != 0:
            meters |= {"change": norm(changed) / size.entries, "weight": norm(weight) / size.entries}
        if size.spectral is not None:
            meters["update_to_weight"] = float(spectral_norms([changed]) / size.spectral)
        response = self._response(t, now, changed)
        if response is None:
            return meters, None
        meters["update"] = rms(response)
        if before is not None:
            aligned = alignment(t, weight - whole(before), now.inputs[t.name], self.member.plan.law_for(t.name))
            meters |= {} if aligned is None else {ALIGNMENT: aligned}
        return meters, _squares(response)

    def _start_size(self, name: str, start: Tensor) -> _Size:
        """How large a matrix was at the start, computed once."""
        if name not in self._start_sizes:
            self._start_sizes[name] = _Size(norm(start), spectral_norms([start]) if name in self.hidden else None)
        return self._start_sizes[name]

    def _of_stacks(
        self, now: Pass, responses: Mapping[str, _Squares | None], ratios: Tensor
    ) -> dict[str, dict[str, float]]:
        """The meters of every stack and of the network, from the responses of the matrices and what
        ``update_to_weight`` is of each, while the inner matrices are at their start."""
        stacks = {}
        for stack, unread in self.unread.items():
            ends = self._end(now, stack), self._end(self.before, stack)
            meters = {} if ends[0] is None or ends[1] is None else _of_stream(ends[0], ends[1])
            meters = _entering(now, stack) | meters
            meters = {meter: value for meter, value in meters.items() if meter not in unread}
            if not stack:
                meters["function_update"] = rms(now.outputs - self.before.outputs)
            inner, outer = (self._own(names, responses, stack) for names in (self.inner, self.outer))
            if inner:
                meters["inner_update"] = _pooled(inner)
            if self.inner and not stack:
                meters["function_update_inner"] = rms(now.outputs - self._outputs())
            if outer:
                meters["stream_update"] = _pooled(outer) / self.member.time_step(stack)
            of_hidden = [ratio for name, ratio in zip(self.hidden, ratios, strict=True) if self.stack_of[name] == stack]
            if of_hidden:
                meters["update_to_weight"] = rms(torch.stack(of_hidden))
            stacks[stack] = meters
        return stacks

    def _own(self, names: list[str], responses: Mapping[str, _Squares | None], stack: str) -> list[_Squares]:
        """The responses, of those that have one, of a stack."""
        return [own for name in names if self.stack_of[name] == stack and (own := responses[name])]

    def _end(self, seen: Pass, stack: str) -> Tensor | None:
        """The stream behind the last block of a stack; without blocks, and so without stacks, what is read."""
        blocks = self.member.stacks.get(stack)
        if blocks is None:
            return None
        return seen.behind.get(blocks[-1]) if blocks else seen.features

    def _unread(self, before: Pass) -> dict[str, dict[str, str]]:
        infos, stacks = tensors(self.member.module), dict[str, dict[str, str]]()
        for stack in dict.fromkeys(("", *self.member.stacks)):
            unread = stacks.setdefault(stack, {})
            end = self._end(before, stack)
            if end is None and stack in self.member.stacks:
                unread |= dict.fromkeys(("activation", "activation_update"), HIDDEN)
            elif end is not None and _normalised(end):
                unread["activation"] = "it is read behind a norm, which gives every input the same RMS."
            for meter, names in (("inner_update", self.inner), ("stream_update", self.outer)):
                own = [n for n in names if self.stack_of[n] == stack]
                if own and not any(n in before.inputs and is_linear(infos[n], before.inputs[n]) for n in own):
                    unread[meter] = "none of these matrices stands in a module that does nothing but apply it."
        if not self.member.blocks:
            inside = {"inner_update": self.inner, "stream_update": self.outer, "function_update_inner": self.inner}
            stacks[""] |= {meter: NO_BLOCKS for meter, names in inside.items() if not names}
        return stacks

    def _response(self, t: TensorInfo, seen: Pass, changed: Tensor | None = None) -> Tensor | None:
        """``(W - W(0)) z`` of a matrix; None where its input was not seen."""
        z = seen.inputs.get(t.name)
        if z is None or not is_linear(t, z):
            return None
        changed = whole(t.parameter) - self.start[t.name] if changed is None else changed
        return self.member.multiplier(t.name) * applied(t, changed, z)

    def _outputs(self) -> Tensor:
        """The outputs of the network as it is."""
        with quiet(self.member.module):
            return outputs_of(self.member(self.sample))


@contextmanager
def _resetting(infos: Mapping[str, TensorInfo]) -> Iterator[Callable[[str, Tensor], None]]:
    """Within it the function that it yields puts a tensor to its start; behind it tensors are as they were."""
    trained: dict[str, Tensor] = {}

    def reset(name: str, start: Tensor) -> None:
        trained[name] = infos[name].parameter.detach().clone()
        fill_(infos[name].parameter, start)

    try:
        yield reset
    finally:
        for name, weight in trained.items():
            infos[name].parameter.copy_(weight)


def copies(infos: Mapping[str, TensorInfo]) -> dict[str, Tensor]:
    """A copy of tensors as they are now, by name."""
    return {name: t.parameter.detach().clone() for name, t in infos.items()}


def _entering(seen: Pass, stack: str) -> dict[str, float]:
    return {FIRST: rms(seen.entering[stack])} if stack in seen.entering else {}


def _stack_of(name: str, stacks: Mapping[str, tuple[str, ...]]) -> str:
    """The stack of a matrix; that without a name where it stands in none."""
    return next((stack for stack, blocks in stacks.items() if block_of(name, blocks) is not None), "")


def _of_stream(now: Tensor, start: Tensor) -> dict[str, float]:
    return {"activation": rms(now), "activation_update": rms(now - start)}


def _normalised(features: Tensor) -> bool:
    """Whether vectors, the last dimension, of inputs that differ have the same RMS."""
    if features.dim() < 2:
        return False
    vectors = features.flatten(0, -2).double()
    sizes, apart = vectors.square().mean(1).sqrt(), (vectors - vectors[0]).square().mean(1).sqrt()
    alike = bool(sizes.max() - sizes.min() < _ALIKE * sizes.max())
    return alike and bool(apart.max() > _ALIKE * sizes.max())


def _squares(values: Tensor | None) -> _Squares | None:
    """The sum of squares over all entries, and how many they are."""
    return None if values is None else (float(values.double().square().sum()), values.numel())


def _pooled(parts: list[_Squares]) -> float:
    """RMS over the entries of all parts."""
    return math.sqrt(sum(squares for squares, _ in parts) / sum(entries for _, entries in parts))
