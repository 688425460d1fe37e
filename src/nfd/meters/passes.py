"""One pass of a network over a sample, in eval mode: what it shows, while nothing of the network changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nfd.core.statistics import rms
from nfd.families.member import Member
from nfd.scaling.model import evaluating, give_back, modules, outputs_of, tensors


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
    entering: dict[str, Tensor] = field(default_factory=dict)


@torch.no_grad()
def pass_of(member: Member, sample: Any, matrices: Iterable[str], readers: Iterable[str]) -> Pass:
    """One pass that keeps the inputs of these matrices; ``readers`` are those that read the stream at its end."""
    module, readers = member.module, list(readers)
    with _inputs(module, (*matrices, *readers)) as inputs, quiet(module), member.stream() as stream:
        outputs = outputs_of(member(sample)).detach()
    read = [inputs[n] for n in readers if n in inputs]
    features = (read or [outputs])[-1].detach()
    ends = {block: (stream.before.get(block), h) for block, h in stream.behind.items()}
    added = {block: rms(h - z) for block, (z, h) in ends.items() if z is not None and z.shape == h.shape}
    entering = {stack: taken[-1].detach() for stack, taken in stream.first.items() if taken}
    return Pass(outputs, features, added, stream.behind, inputs, entering)


@contextmanager
def _inputs(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, Tensor]]:
    """Collects, over a pass, what the owners of these matrices are applied to, by the matrix's name."""
    infos, parts = tensors(model), modules(model)
    inputs: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for name in infos.keys() & set(names):
            for full in infos[name].names:
                owner = parts[full.rpartition(".")[0]]
                if owner is not model and not isinstance(owner, nn.Embedding):
                    hooks.enter_context(owner.register_forward_pre_hook(_keep(inputs, name)))
        yield inputs


def _keep(inputs: dict[str, Tensor], name: str) -> Any:
    def hook(_: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            inputs.setdefault(name, args[0].detach())

    return hook


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Eval mode, but for batch normalisation, which takes the batch's statistics and forgets them again."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm)]
    before = [(m.momentum, m.num_batches_tracked) for m in norms]
    with evaluating(model):
        for m in norms:
            m.training, m.momentum = True, 0.0
            m.num_batches_tracked = None if m.num_batches_tracked is None else m.num_batches_tracked.clone()
        try:
            yield
        finally:
            for m, (momentum, tracked) in zip(norms, before, strict=True):
                m.momentum, m.num_batches_tracked = momentum, tracked
            give_back(model)
