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

# inputs of modules that are kept: one of them may be the stream that a branch was added to
_GIVEN = 4
# last digits by which what was added may differ from a multiple of what the block made
_ROUNDED = 4
# vectors that two numbers of a channel must explain; so many chance does not fit
_ROWS = 8
# of the stream before, at least: a model that only rescales the stream adds nothing to it
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

    ``given`` begins with the input; then come the inputs of modules called before, such as its
    norm.
    """

    stack: str
    block: str
    given: tuple[Tensor, ...]
    made: Tensor
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
    # inputs of the latest modules outside of blocks, and of blocks
    _given: tuple[Tensor, ...] = ()
    _call: _Call | None = None
    # by stack: to which of given, by what factor
    _added: dict[str, tuple[int, float]] = field(default_factory=dict)
    # of what the last block made in the stream, by stack
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
            if call is None or h.shape != call.made.shape:
                return
            if any(h is earlier for earlier in call.given):
                return
            if torch.equal(h, call.made):
                self._put(call, call.given[0], h, 1.0)
                self.gains[call.block] = 1.0
                return
            for index, z in enumerate(call.given):
                factor = _factor(z, call.made, h)
                gain = _gain_of_channels(z, call.made, h) if factor is None else factor
                if gain is not None:
                    if factor is not None:
                        self._added[call.stack] = index, factor
                    self._put(call, z, h, 1.0)
                    self.gains[call.block] = gain
                    for end, is_there, stream in (
                        (self.first, call.is_first, z),
                        (self.last, call.is_last, h),
                    ):
                        if is_there:
                            end[call.stack].pop()
                            self.keep(end[call.stack], stream)
                    return

    def leave(
        self, stack: str, block: str, given: Any, made: Any, *, is_first: bool, is_last: bool
    ) -> None:
        """Note the input of a block, and its output."""
        with suppress(InputTypeError):
            own = outputs_of(given)
            others = [h for h in self._given if h is not own]
            call = _Call(stack, block, (own, *others), outputs_of(made), is_first, is_last)
            if is_first:
                self.keep(self.first[stack], own)
            if is_last:
                self.keep(self.last[stack], call.made)
            index, factor = self._added.get(stack, (0, 0.0))
            z = call.given[min(index, len(others))]
            is_branch = stack in self._added and z.shape == call.made.shape
            self._put(
                call,
                z,
                z + factor * call.made if is_branch else call.made,
                factor if is_branch else 1.0,
            )
            self.gains[call.block] = factor if is_branch else 1.0
            self._call = call

    def _put(self, call: _Call, before: Tensor, behind: Tensor, share: float) -> None:
        self.before[call.block] = before.detach()
        self.behind[call.block] = behind.detach()
        if call.is_last:
            self._shares[call.stack] = share

    def gradients(self, stack: str = "") -> EndGradients | None:
        """Return gradients at the ends of a stack; None unless each was seen once.

        They exist after ``backward()``.
        """
        first, last = (
            [h for h in end[stack] if h.grad is not None] for end in (self.first, self.last)
        )
        if len(first) != 1 or len(last) != 1:
            return None
        (h, above), (_, below) = (_vectors_of(end) for end in (*first, *last))
        below = below / (self._shares.get(stack, 1.0) or 1.0)
        empty = ~h.any(-1)
        if not empty.any() or empty.all():
            return EndGradients(rms(above), rms(below), 0.0)
        there = below[~empty] if below.shape[:-1] == empty.shape else below
        return EndGradients(rms(above[~empty]), rms(there), rms(above[empty]))


def _factor(before: Tensor, made: Tensor, behind: Tensor) -> float | None:
    """Find the factor by which a branch was added to a stream.

    None where this is not how the stream after it came about.
    """
    if before.shape != made.shape or not all(h.is_floating_point() for h in (before, made, behind)):
        return None
    wide = torch.promote_types(behind.dtype, torch.float32)
    z, branch, h = (part.detach().to(wide) for part in (before, made, behind))
    added = h - z
    size = branch.square().sum()
    factor = (added * branch).sum() / size if size > 0 else size + 1
    rounded = (
        torch.finfo(behind.dtype).eps * (z.norm() + h.norm())
        + torch.finfo(made.dtype).eps * added.norm()
    )
    return float(factor) if (added - factor * branch).norm() <= _ROUNDED * rounded else None


def _gain_of_channels(before: Tensor, made: Tensor, behind: Tensor) -> Tensor | None:
    """Find a of ``behind = b * before + a * made``, with an a and a b for every channel.

    Returns:
        A tensor that multiplies ``made``; None where this fails.
    """
    if before.shape != made.shape or not all(h.is_floating_point() for h in (before, made, behind)):
        return None
    channels = 1 if made.dim() > 3 else made.dim() - 1
    z, branch, h = (
        part.detach().double().movedim(channels, 0).flatten(1) for part in (before, made, behind)
    )
    if z.shape[1] < _ROWS:
        return None
    parts = torch.stack([z, branch], -1)
    keep, gain = (
        (torch.linalg.pinv(parts.mT @ parts, hermitian=True) @ (parts.mT @ h[..., None]))
        .squeeze(-1)
        .T
    )
    written = gain[:, None] * branch
    residual = h - keep[:, None] * z - written
    rounded = torch.finfo(behind.dtype).eps * (z.norm() + h.norm() + written.norm())
    if residual.norm() > _ROUNDED * rounded or float(keep.min()) < _KEPT:
        return None
    shape = (-1, *[1] * (made.dim() - 1 - channels))
    of_channels: Tensor = gain.to(made.dtype).view(shape)
    return of_channels


def _vectors_of(h: Tensor) -> tuple[Tensor, Tensor]:
    """Return a stream and its gradient with features last: the channels of images are second."""
    assert h.grad is not None
    channels = 1 if h.dim() > 3 else -1
    return h.detach().movedim(channels, -1), h.grad.movedim(channels, -1)
