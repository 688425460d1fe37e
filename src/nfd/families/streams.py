"""The residual streams of one forward pass, from the inputs and outputs of modules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nfd.core.errors import InputTypeError
from nfd.core.estimates import rms
from nfd.scaling.samples import outputs_of

# So many inputs of modules are kept: one of them may be the stream that a branch was added to.
_GIVEN = 4
# The last digits by which what was added may differ from a multiple of the block's output.
_ROUNDED = 4
# So many vectors two numbers of a channel must explain: chance does not fit them.
_ROWS = 8
# So many channels, and by so many times beyond rounding, show that numbers do not explain a tensor.
_FEW = 4
_CLEARLY = 100.0
# The least share of the stream before: a model that only rescales the stream adds nothing to it.
_KEPT = 0.01


class EndGradients(NamedTuple):
    """RMS of dLoss/dh where a stream enters its first block and where it leaves the last.

    ``first`` and ``last`` are over positions at which the stream is not zero, ``at_zero`` is over
    the others at the first end: there the gradient of a norm is 1 over the root of its epsilon.
    """

    first: float
    last: float
    at_zero: float


@dataclass(frozen=True)
class _Call:
    """The latest call of a block: its input and output.

    The first of ``given`` is the input; then come the inputs of modules called before, such as its
    norm.
    """

    stack: str
    block: str
    given: tuple[Tensor, ...]
    output: Tensor
    is_first: bool
    is_last: bool


@dataclass
class StreamEnds:
    """The residual streams of one forward pass.

    They are noted where each enters the first block of its stack, where it leaves the last, and
    around every block.

    Some blocks return the stream. Others return a branch that the model adds, ``h = h + a *
    block(h)``: the stream after such a block is what a module takes next that differs from the
    stream before by a multiple of the branch. Where no module takes it, as with a mean over
    positions after the last block, a block is as the one before it in its stack; a first block
    then counts as one that returns the stream. A model may also mix the two by channel, ``h = b * h
    + a * block(h)``, as ``torch.lerp`` or a learned gain do.

    ``first`` and ``last`` hold, by the name of the stack, a tensor per call of that block; blocks
    that are not called as modules have none. ``before`` and ``behind`` have the stream before and
    after a block's last call, by the block's name, and ``gains`` what the model multiplies the
    block's output by, a number or one of every channel.
    """

    first: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    last: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))
    before: dict[str, Tensor] = field(default_factory=dict)
    behind: dict[str, Tensor] = field(default_factory=dict)
    gains: dict[str, float | Tensor] = field(default_factory=dict)
    # Inputs of the latest modules outside of blocks, and of blocks.
    _given: tuple[Tensor, ...] = ()
    _call: _Call | None = None
    # By stack: the place in ``given`` of the stream that the branch was added to, and the factor.
    _added: dict[str, tuple[int, float]] = field(default_factory=dict)
    # By stack: the share of the last block's output in the stream.
    _shares: dict[str, float] = field(default_factory=dict)

    def keep(self, end: list[Tensor], h: Tensor) -> None:
        """Note the stream at one end; PyTorch keeps its gradient."""
        if h.requires_grad:
            h.retain_grad()
        end.append(h)

    def show(self, layers: list[Tensor], blocks: Sequence[str]) -> None:
        """Note the one stream of a network that returns it: before its first block, after each."""
        self.first[""] = layers[:1]
        self.last[""] = layers[-1:]
        hidden = [h.detach() for h in layers]
        self.before |= dict(zip(blocks, hidden, strict=False))
        self.behind |= dict(zip(blocks, hidden[1:], strict=False))

    def meet(self, value: Any) -> None:
        """Note the input of a block, or of a module outside of blocks.

        It may be the stream after the latest block.
        """
        with suppress(InputTypeError):
            h = outputs_of(value)
            call = self._call
            self._given = (h, *self._given[: _GIVEN - 1])
            if call is None or h.shape != call.output.shape:
                return
            if any(h is earlier for earlier in call.given):
                return
            if torch.equal(h, call.output):
                self._put(call, call.given[0], h, 1.0)
                self.gains[call.block] = 1.0
                return
            self._meet_sum(call, h)

    def _meet_sum(self, call: _Call, h: Tensor) -> None:
        """Note the stream after a block, if the block's output was added to an earlier stream."""
        for index, z in enumerate(call.given):
            factor = _factor(z, call.output, h)
            gain: float | Tensor | None = factor
            if factor is None:
                gain = _gain_of_channels(z, call.output, h)
            if gain is None:
                continue
            if factor is not None:
                self._added[call.stack] = (index, factor)
            self._put(call, z, h, 1.0)
            self.gains[call.block] = gain
            # The block's input and output were noted in place of the stream.
            if call.is_first:
                self.first[call.stack].pop()
                self.keep(self.first[call.stack], z)
            if call.is_last:
                self.last[call.stack].pop()
                self.keep(self.last[call.stack], h)
            return

    def leave(
        self, stack: str, block: str, given: Any, output: Any, *, is_first: bool, is_last: bool
    ) -> None:
        """Note the input of a block, and its output."""
        with suppress(InputTypeError):
            entering = outputs_of(given)
            earlier = [h for h in self._given if h is not entering]
            call = _Call(stack, block, (entering, *earlier), outputs_of(output), is_first, is_last)
            if is_first:
                self.keep(self.first[stack], entering)
            if is_last:
                self.keep(self.last[stack], call.output)
            index, factor = self._added.get(stack, (0, 0.0))
            z = call.given[min(index, len(earlier))]
            if stack in self._added and z.shape == call.output.shape:
                self._put(call, z, z + factor * call.output, factor)
                self.gains[call.block] = factor
            else:
                self._put(call, z, call.output, 1.0)
                self.gains[call.block] = 1.0
            self._call = call

    def _put(self, call: _Call, before: Tensor, behind: Tensor, share: float) -> None:
        """Note the stream before and after a block, and the share of its output there."""
        self.before[call.block] = before.detach()
        self.behind[call.block] = behind.detach()
        if call.is_last:
            self._shares[call.stack] = share

    def gradients(self, stack: str = "") -> EndGradients | None:
        """Return gradients at the ends of a stack; None unless each was seen once.

        They exist after ``backward()``.
        """
        first = [h for h in self.first[stack] if h.grad is not None]
        last = [h for h in self.last[stack] if h.grad is not None]
        if len(first) != 1 or len(last) != 1:
            return None
        h, above = _vectors_of(first[0])
        _, below = _vectors_of(last[0])
        below = below / (self._shares.get(stack, 1.0) or 1.0)
        empty = ~h.any(-1)
        if not empty.any() or empty.all():
            return EndGradients(rms(above), rms(below), 0.0)
        if below.shape[:-1] == empty.shape:
            below = below[~empty]
        return EndGradients(rms(above[~empty]), rms(below), rms(above[empty]))


def _factor(before: Tensor, output: Tensor, after: Tensor) -> float | None:
    """Find the factor by which a block's output was added to a stream.

    None where this is not how the stream after it came about.
    """
    if not _are_comparable(before, output, after):
        return None
    wide = torch.promote_types(after.dtype, torch.float32)
    z, branch, h = (part.detach().to(wide) for part in (before, output, after))
    added = h - z
    size = branch.square().sum()
    # Any factor fits a branch of zeros: take 1. Where the size is nan, nothing fits.
    factor = (added * branch).sum() / size if size > 0 else size + 1
    rounded = torch.finfo(after.dtype).eps * (z.norm() + h.norm())
    rounded = rounded + torch.finfo(output.dtype).eps * added.norm()
    if (added - factor * branch).norm() <= _ROUNDED * rounded:
        return float(factor)
    return None


def _are_comparable(before: Tensor, output: Tensor, after: Tensor) -> bool:
    """Whether a block's output can have been added to a stream."""
    are_floats = all(h.is_floating_point() for h in (before, output, after))
    return before.shape == output.shape and are_floats


def _gain_of_channels(before: Tensor, output: Tensor, after: Tensor) -> Tensor | None:
    """Find a of ``after = b * before + a * output``, with an a and a b for every channel.

    Returns:
        A tensor that multiplies ``output``; None where this fails.
    """
    if not _are_comparable(before, output, after):
        return None
    channels = 1 if output.dim() > 3 else output.dim() - 1
    z, branch, h = (
        part.detach().double().movedim(channels, 0).flatten(1) for part in (before, output, after)
    )
    if z.shape[1] < _ROWS:
        return None
    eps = torch.finfo(after.dtype).eps
    # A fit of all channels takes long, and most tensors are no such sum: a few channels show it.
    few = _Fit.of(z[:_FEW], branch[:_FEW], h[:_FEW])
    if few.residual > _CLEARLY * _ROUNDED * eps * (z.norm() + h.norm() + few.written):
        return None
    fit = _Fit.of(z, branch, h)
    rounded = eps * (z.norm() + h.norm() + fit.written)
    if fit.residual > _ROUNDED * rounded or float(fit.keep.min()) < _KEPT:
        return None
    shape = (-1, *[1] * (output.dim() - 1 - channels))
    of_channels: Tensor = fit.gain.to(output.dtype).view(shape)
    return of_channels


class _Fit(NamedTuple):
    """The least squares of ``keep * z + gain * branch`` to h, one of each for every channel.

    ``written`` and ``residual`` are the norms of ``gain * branch`` and of what is left.
    """

    keep: Tensor
    gain: Tensor
    written: Tensor
    residual: Tensor

    @classmethod
    def of(cls, z: Tensor, branch: Tensor, h: Tensor) -> _Fit:
        """Fit the rows of tensors [channels, vectors]."""
        parts = torch.stack([z, branch], -1)
        inverse = torch.linalg.pinv(parts.mT @ parts, hermitian=True)
        keep, gain = (inverse @ (parts.mT @ h[..., None])).squeeze(-1).T
        written = gain[:, None] * branch
        residual = h - keep[:, None] * z - written
        return cls(keep, gain, written.norm(), residual.norm())


def _vectors_of(h: Tensor) -> tuple[Tensor, Tensor]:
    """Return a stream and its gradient with features last: the channels of images are second."""
    assert h.grad is not None
    channels = 1 if h.dim() > 3 else -1
    return h.detach().movedim(channels, -1), h.grad.movedim(channels, -1)
