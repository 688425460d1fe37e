"""What units and attention do over a pass: dead units, entropies and logits.

    dead_units          share of the units of a ReLU that give 0 for the whole sample
    attention_entropy   mean over queries and heads of -sum_k p_k log p_k, in nats
    attention_logits    RMS of the logits of the keys that a query attends to (p > 0)

Attention is a softmax over the last dimension of four or more, or one in ``nn.MultiheadAttention``; PyTorch's fused
attention is run by its parts, for its softmax to be seen. Kernels of others, and compiled ones such as flex attention,
are not seen.

Source: Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse (arXiv 2303.06296).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nfd.meters.health import ModulePath, Relus

DEAD, ENTROPY, LOGITS = "dead_units", "attention_entropy", "attention_logits"
_SOFTMAXES = {torch.ops.aten._softmax.default, torch.ops.aten._safe_softmax.default}


@dataclass
class Activity:
    """The meters of a pass: a value for every time that a module's ReLU or attention ran."""

    seen: dict[str, dict[str, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))

    def add(self, meter: str, layer: str, value: float) -> None:
        """Note a value of a layer."""
        self.seen[meter][layer].append(value)

    @property
    def network(self) -> dict[str, float]:
        """The mean of each meter over all layers."""
        return {meter: _mean([_mean(own) for own in layers.values()]) for meter, layers in self.seen.items()}

    @property
    def layers(self) -> dict[str, dict[str, float]]:
        """The meters of each layer."""
        layers: dict[str, dict[str, float]] = {}
        for meter, of in self.seen.items():
            for layer, values in of.items():
                layers.setdefault(layer, {})[meter] = _mean(values)
        return layers


@contextmanager
def activity(model: nn.Module) -> Iterator[Activity]:
    """Within it a pass of the model shows what its units and its attention do."""
    path, seen = ModulePath(), Activity()
    relus = Relus(path)
    with path.followed(model), relus, _Softmaxes(path, seen):
        yield seen
    for layer, share in relus.seen:
        seen.add(DEAD, layer, share)


class _Watching:
    """What ``_Softmaxes`` does at every operation. In the class of the mode itself PyTorch would wrap this method for
    its compiler, which takes as long as a small operation."""

    path: ModulePath
    seen: Activity

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in _SOFTMAXES and self._attends(args[0], args[1]):
            logits, shares = args[0].double(), out.double()
            visible = shares != 0
            squares = torch.where(visible, logits, 0.0).square().sum() / visible.sum()
            self.seen.add(ENTROPY, self.path.name, float(torch.special.entr(shares).sum(-1).mean()))
            self.seen.add(LOGITS, self.path.name, float(squares.sqrt()))
        return out

    def _attends(self, logits: Tensor, dim: int) -> bool:
        several = logits.dim() > 3 or isinstance(self.path.module, nn.MultiheadAttention)
        return several and dim % logits.dim() == logits.dim() - 1


class _Softmaxes(_Watching, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every softmax that is attention's."""

    def __init__(self, path: ModulePath, seen: Activity) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.path, self.seen = path, seen


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
