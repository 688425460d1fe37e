"""Linear layers of any width: Gaussian weights that are revealed where they are asked, and structured ones."""

from __future__ import annotations

import math
from typing import get_args

import torch
from torch import Tensor

from nfd.core.errors import StateError, check_choice, check_count, check_real
from nfd.core.machine import gradients, threads_for
from nfd.core.names import BasisName, Feedback, Space
from nfd.core.random import Increment
from nfd.wide.lazy_gaussian import LazyGaussian
from nfd.wide.learned import RandomPlusLowRank
from nfd.wide.linear import FactoredLinear, source_of
from nfd.wide.parameters import Coefficients, Guarded


class DeferredLinear(FactoredLinear):
    """A linear layer with i.i.d. Gaussian initial weights that are never stored, so that it can be millions wide.

    It computes ``y = x W' + b`` with ``W`` [out_features, in_features], N(0, std^2) at the start. The trained matrix is

        W = s W_0 + P D Q'

    (see ``nfd.wide.lazy_gaussian``) with W_0 i.i.d. N(0, 1). The parameter ``scale`` is s, which begins at ``std`` and
    moves only by weight decay. The parameter ``update`` is D, a small matrix in units of W, padded with zeros. So it
    replaces an ``nn.Linear`` that starts with this ``std``, at the same rate, weight decay and momentum. All results
    have exactly the distribution of the dense layer of the same width. After r samples the state takes O(n r), and a
    step of b samples costs O(n r b), so that ``StructuredLinear`` is cheaper for long trainings.

    **Evaluation.** Products are recorded in training mode with gradients enabled. Otherwise (``eval()``, ``no_grad``)
    the state does not change: every call is an exact conditional draw, but different calls are not consistent with
    each other. An unrecorded forward pass and its own backward pass are not either, so measure gradients of new inputs
    in training mode. In evaluation, ``update.grad`` holds only the part in directions already recorded.

    **Copies.** ``copy.deepcopy`` copies the matrix, its record and its random stream: use a copy in place of its
    original, not beside it. With different inputs they are neither the same matrix nor independent. One thread at a
    time may use the layer.

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
            one from PyTorch's generator of the CPU, on any device, so that ``torch.manual_seed`` repeats it. Layers
            with an ``nfd.core.random.Increment`` each, of one path, add up to the layers of a coarser cut of it.
        dtype: ``torch.float32`` or ``torch.float64``. A direction shorter than 1e-5, or 1e-10, of its vector is
            dropped.
        device: where the factors live.

    Raises:
        ValueError, TypeError: naming the argument, for anything outside these ranges.
        RuntimeError: on second derivatives, activation checkpoints, transforms of ``torch.func`` and autocast, and when
            ``update`` was changed by anything but ``nfd.SGD`` or ``nfd.Muon``. ``torch.compile`` leaves the layer out
            of its graphs.

    Source: docs/mathematics/deferred-decisions.md; the paper has no such layer.

    Example::

        layer = nfd.DeferredLinear(2**20, 2**20, std=2**-10)  # its matrix would fill four terabytes
        layer(torch.randn(2, 2**20))
    """

    matrix: LazyGaussian

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
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        source = source_of(seed)
        super().__init__(
            in_features, out_features, bias=bias, std=std, feedback=feedback, source=source, dtype=dtype, device=device
        )
        shared, place = self.feedback == "shared", self.update.device
        self.matrix = LazyGaussian(
            self.in_features, self.out_features, shared=shared, source=source, dtype=dtype, device=place
        )

    @property
    def rank(self) -> tuple[int, int]:
        """How many directions were revealed so far, (backward, forward)."""
        return self.matrix.ranks

    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once, so that growing never copies the factors."""
        self.matrix.reserve(check_count("samples", samples, minimum=0))

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'`` and the products ``Q'x`` of the recorded directions."""
        if record and torch._C._current_graph_task_id() != -1:  # a first pass without gradients drew other answers
            raise StateError(
                f"{self.kind} does not support activation checkpointing: recomputing a forward pass would query the "
                "matrix a second time. It stores no activations of its own to save; remove the checkpoint."
            )
        answer = self.matrix.ask(self.matrix.forward, x, scale=self.scale.data, update=self.update.data, record=record)
        self.update.pad(*self.rank)
        return answer

    def ask_backward(self, g: Tensor, kept: Tensor, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W``, the products ``P'g`` and those of the forward pass."""
        static = self.feedback == "static"
        scale, update = (self.std, None) if static else (self.scale.data, self.update.data.T)
        value, products = self.matrix.ask(self.matrix.backward, g, scale=scale, update=update, record=record)
        self.update.pad(*self.rank)
        return value, products, kept


class StructuredLinear(FactoredLinear):
    """A linear layer with fast products, whose training has the same limit of width as that of Gaussian weights.

    It computes ``y = x W' + b`` with ``W`` [out_features, in_features]. The trained matrix is

        W = s W_0 + G' C X + U'B    or    W = s W_0 + G' C X + B'U

    where W_0 is made of random signs and fast transforms (``nfd.wide.rotated``): its entries have mean 0 and variance
    1, and a product takes O(n log n). ``scale`` is s, which begins at ``std`` and moves only by weight decay. X and G
    are the inputs of the layer and the gradients of its outputs, sample by sample. When samples are many, they are
    compressed: B is an orthonormal basis of the inputs seen in training, or of the gradients. ``update`` holds a
    coefficient of every sample, and its gradient has the norm of that of W. So the layer replaces an ``nn.Linear`` that
    starts with this ``std``, at the same rate, weight decay, momentum and norm clipping.

    Given W_0, the layer is a dense one, unless a ``resolution`` leaves out short directions. With r samples, or
    directions of B, a step of b samples costs O(n r b + n log n b), and the state takes O(n r).

    As the width grows, training has the limit of Gaussian weights, by universality of first-order methods. At finite
    width its distribution is another; ``DeferredLinear`` has exactly that of a Gaussian matrix.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        bias: whether there is a ``b`` [out_features], an ordinary parameter that starts as in ``nn.Linear``.
        std: standard deviation of the entries of ``W`` at the start, at least 0.
        feedback: ``"shared"``, ``"independent"`` or ``"static"``, as in ``DeferredLinear``; the latter two draw a
            second matrix.
        basis: of ``"inputs"``, of ``"gradients"``, or ``"auto"`` for the one of smaller rank in the first samples. In a
            Transformer, vectors of the residual stream have fewer directions than vectors inside of a branch.
        resolution: when samples are compressed, a vector whose remainder outside of B is shorter than this adds no
            direction; at least 0, below 1. Relative to the vector, or to the root mean square of the samples where that
            is longer. None, or 0, leaves out what rounding would: the layer is then a dense one. What is left out is
            not learned; rules that normalise, such as ``nfd.Muon``, would have given it full strength, and warn.
        seed: of W_0 and the bias. None draws one from PyTorch's generator of the CPU, as in ``DeferredLinear``. With an
            ``nfd.core.random.Increment`` W_0 is a sum of independent matrices, as many as the path was halved to it.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: where everything lives.

    Raises:
        ValueError, TypeError: naming the argument, for anything outside these ranges.
        RuntimeError: as ``DeferredLinear`` does, except on activation checkpoints.

    Source: docs/mathematics/structured.md; the paper has no such layer.

    Example::

        layer = nfd.StructuredLinear(2**16, 2**16, std=2**-8)
        layer(torch.randn(2, 2**16))
    """

    matrix: RandomPlusLowRank
    update: Coefficients

    @gradients()
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        std: float = 1.0,
        feedback: Feedback = "shared",
        basis: BasisName = "auto",
        resolution: float | None = None,
        seed: int | Increment | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        source = source_of(seed)
        check_choice("basis", basis, get_args(BasisName))
        super().__init__(
            in_features, out_features, bias=bias, std=std, feedback=feedback, source=source, dtype=dtype, device=device
        )
        self.update.resolution = 0.0 if resolution is None else check_real("resolution", resolution, least=0, below=1)
        self.matrix = self.update.matrix = RandomPlusLowRank(
            self.in_features,
            self.out_features,
            shared=self.feedback == "shared",
            space=None if basis == "auto" else basis,
            source=source,
            resolution=self.update.resolution,
            dtype=dtype,
            device=self.update.device,
        )

    @property
    def basis(self) -> Space | None:
        """Of which vectors the update has a basis; None before it has one."""
        return self.matrix.space if self.matrix.settled else None

    @property
    def rank(self) -> int:
        """How many vectors of each side the update has: directions of its basis, and samples beside."""
        return self.matrix.basis.rank + self.matrix.count

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'``, and x itself."""
        with threads_for(self._multiplications(x)):
            value = self.matrix.forward.product(x, self.scale.data)
            self.matrix.add_update(value, x, "inputs", self.update.data)
        return value, x

    def ask_backward(self, g: Tensor, kept: Tensor, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W`` and the factors of the gradient of W."""
        static = self.feedback == "static"
        with threads_for(self._multiplications(g)):
            value = self.matrix.backward.transposed_product(g, self.std if static else self.scale.data)
            if not static:
                self.matrix.add_update(value, g, "gradients", self.update.data)
        return value, g, kept

    def _begun(self, like: Tensor) -> Guarded:
        return Coefficients(like.new_zeros(0))

    def _multiplications(self, x: Tensor) -> float:
        """Of a query, about; a deferred layer draws numbers too, where a second thread earns its wait."""
        size = max(self.in_features, self.out_features)
        return x.shape[0] * size * (self.rank + math.log2(size + 1))
