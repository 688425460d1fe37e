"""``DeferredLinear``: a linear layer of any width whose Gaussian weights are revealed only where they are asked."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import check_count, check_real
from nfd.core.machine import gradients
from nfd.core.names import Feedback
from nfd.core.random import Increment
from nfd.nets.factored import FactoredLinear, Kept
from nfd.nets.frame import roomy
from nfd.nets.matrix import source_of
from nfd.nets.orthogonal import TOLERANCE
from nfd.nets.revealed import RevealedMatrix

_OLD = {  # what saved layers of version 0.1 lack, as it was in them
    "std": torch.ones((), dtype=torch.float64, device="cpu"),
    "passing": torch.tensor(0, device="cpu"),
    "longest": torch.zeros((), dtype=torch.float64, device="cpu"),
}


class DeferredLinear(FactoredLinear):
    """A linear layer with i.i.d. Gaussian initial weights that are never stored, so that it can be millions wide.

    It computes ``y = x W' + b`` with ``W`` [out_features, in_features], N(0, std^2) at the start. The trained matrix is

        W = s W_0 + P D Q'

    (see ``nfd.nets.revealed``) with W_0 i.i.d. N(0, 1). The parameter ``scale`` is s, which begins at ``std`` and moves
    only by weight decay. The parameter ``update`` is D, a small matrix in units of W, padded with zeros. So the layer
    replaces an ``nn.Linear`` that starts with this ``std``, at the same rate, weight decay and momentum. All results
    have exactly the distribution of the dense layer of the same width. After r samples the state takes O(n r), and a
    step of b samples costs O(n r b).

    **Long training.** A ``resolution`` keeps r from growing over many passes of the same data. Take the part of a
    vector that lies outside of all recorded directions. It is recorded only if it is longer than the resolution,
    relative to the vector in the forward pass and to the longest gradient so far in the backward pass. The product with
    a shorter part is drawn again at every call, given everything recorded, and the update ignores it. Each product then
    has the right distribution given the record, but several together do not, and no dense weights give all of them.
    ``complete()`` has those of the recorded directions.

    **Evaluation.** Products are recorded in training mode with gradients enabled. Otherwise (``eval()``, ``no_grad``)
    the state does not change: every call is an exact conditional draw, but different calls are not consistent with
    each other. An unrecorded forward pass and its own backward pass are not either, so measure gradients of new inputs
    in training mode. In evaluation, ``update.grad`` holds only the part in directions already recorded.

    **Copies.** ``copy.deepcopy`` copies the matrix, its record and its random stream, so equal inputs give equal
    outputs. With different inputs, copy and original are neither the same matrix nor independent. So use a copy in
    place of its original, not beside it; make separate layers if they should differ.

    With independent feedback, a dense layer has two parameters and this one a single update; global gradient clipping
    sees the difference. One thread at a time may use the layer.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        bias: whether there is a ``b`` [out_features], an ordinary parameter. As in ``nn.Linear`` it starts uniform
            between -1/sqrt(in_features) and 1/sqrt(in_features).
        std: standard deviation of the entries of ``W`` at the start, at least 0. That of ``nn.Linear`` is
            ``1 / sqrt(3 in_features)``.
        feedback: which matrix carries gradients backward. ``"shared"``: ``W`` (the standard network).
            ``"independent"``: an independent initial matrix that receives the same updates (Corollary 1).
            ``"static"``: an independent matrix that is never updated (feedback alignment).
        seed: of the reveal stream and the bias; the same seed and the same queries give the same numbers. None draws
            one from PyTorch's generator of the CPU, on any device, and moves it: layers made without a seed are
            independent of each other, and ``torch.manual_seed`` repeats them. Layers with an
            ``nfd.core.random.Increment`` each, of one path, are independent, too, and add up to the layers of a coarser
            cut of it.
        tolerance: a direction shorter than this, relative to its vector, is dropped; below 1, default 1e-5 in float32
            and 1e-10 in float64.
        resolution: a direction shorter than this is not recorded; at least 0, below 1. None, or at most ``tolerance``,
            records every direction: the exact law.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: where the factors live.

    Raises:
        ValueError, TypeError: naming the argument, for anything outside these ranges.
        RuntimeError: on double backward, activation checkpointing, transforms of ``torch.func``, tracing and export,
            and when ``update`` was changed by anything but ``nfd.SGD`` or ``nfd.Muon``. ``torch.compile`` leaves the
            layer out of its graphs, and refuses it with ``fullgraph=True``.

    Source: docs/mathematics/deferred-decisions.md, docs/mathematics/resolution.md; the paper has no such layer.

    Example::

        layer = nfd.DeferredLinear(2**20, 2**20, std=2**-10)  # its matrix would fill four terabytes
        layer(torch.randn(2, 2**20))
    """

    matrix: RevealedMatrix

    @gradients()  # tensors of inference mode could not be trained
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        std: float = 1.0,
        feedback: Feedback = "shared",
        seed: int | Increment | None = None,
        tolerance: float | None = None,
        resolution: float | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        source = source_of(seed)
        super().__init__(
            in_features,
            out_features,
            bias=bias,
            std=std,
            feedback=feedback,
            source=source,
            resolution=resolution,
            dtype=dtype,
            device=device,
        )
        self.matrix = RevealedMatrix(
            self.in_features,
            self.out_features,
            shared=self.feedback == "shared",
            source=source,
            tolerance=TOLERANCE[dtype]
            if tolerance is None
            else check_real("tolerance", tolerance, above=0.0, below=1.0),
            resolution=self.update.resolution,
            dtype=dtype,
            device=self.update.device,
        )

    @property
    def rank(self) -> tuple[int, int]:
        """How many directions were revealed so far, (backward, forward)."""
        return self.matrix.ranks

    @property
    def directions(self) -> int:
        """The larger of both ranks."""
        return max(self.rank)

    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once, so that growing never copies the factors."""
        self.matrix.reserve(check_count("samples", samples, minimum=0))

    def extra_repr(self) -> str:
        backward, forward = self.rank
        return f"{super().extra_repr()}, revealed forward={forward}, backward={backward}"

    # ---- the two queries, for autograd ----------------------------------------------------------------------

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Kept]:
        """``x W'`` and the products ``Q'x`` of the recorded directions."""
        answer = self.matrix.ask(self.matrix.forward, x, scale=self.scale.data, update=self.update.data, record=record)
        self._make_room()
        return answer.value, (answer.products, None)

    def ask_backward(self, g: Tensor, kept: Kept, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W``, the products ``P'g`` and those of the forward pass."""
        static = self.feedback == "static"
        answer = self.matrix.ask(
            self.matrix.backward,
            g,
            scale=self.std if static else self.scale.data,
            update=None if static else self.update.data.T,
            record=record,
        )
        self._make_room()
        return answer.value, answer.products, kept[0]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any, **named: Any) -> None:
        for key, value in _OLD.items():
            state_dict.setdefault(prefix + key, value)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)

    def _make_room(self) -> None:
        self.update.pad(*roomy(self.update.shape, self.rank))
        self._warn_if_full()
