"""A query of a matrix that is not stored, as an operation of autograd: of W forward, of its transpose backward."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from nfd.core.errors import (
    WIDEST,
    InputTypeError,
    StateError,
    check_choice,
    check_count,
    check_device,
    check_dtype,
    check_flag,
    check_real,
)
from nfd.core.machine import threads_for
from nfd.core.names import Feedback
from nfd.core.random import Increment, generator
from nfd.nets.factored_state import FEEDBACKS, FactoredState
from nfd.nets.guarded import Guarded
from nfd.nets.refusals import (
    STORED,
    WHOLE_GRAPH,
    check_query,
    refuse_checkpointing,
    refuse_export,
    refuse_second_derivatives,
    refuse_tracing,
)

Kept = tuple[Tensor, Tensor | None]  # of a forward pass, for the backward pass of the same rows


class Query(torch.autograd.Function):
    """``W x`` for the rows of ``x``; the gradient of D is accumulated by hand.

    D grows between the two passes, so autograd could not check the shape of a returned gradient; adding to ``D.grad``
    directly survives any number of passes before a step. D is an argument only so that the output requires grad.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Guarded, layer: FactoredLinear, record: bool) -> Tensor:
        with threads_for(layer.multiplications(len(x))):
            value, kept = layer.ask_forward(x.detach(), record)
        ctx.layer, ctx.record, ctx.state = layer, record, _state(update)
        ctx.save_for_backward(*kept)
        return value

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise StateError(f"{ctx.layer.kind} has no derivatives in forward mode. Use backward(), or {STORED}.")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        (g,) = grads
        layer: FactoredLinear = ctx.layer
        refuse_tracing(layer)
        refuse_second_derivatives(layer)
        if _state(layer.update) != ctx.state:
            raise StateError(
                f"The weights of a {layer.kind} were stepped, loaded or converted between a forward pass and its "
                "backward pass. Call backward() before optimizer.step(), or run the forward pass again."
            )
        with threads_for(layer.multiplications(len(g))):
            value, left, right = layer.ask_backward(g.contiguous(), ctx.saved_tensors, ctx.record)
        if _asked(ctx.next_functions[1][0], layer.kind):
            layer.accumulate(left, right)
        return value if ctx.needs_input_grad[0] else None, None, None, None


def _asked(accumulator: Any, kind: str) -> bool:
    """Whether this backward pass is to add to the gradient of D."""
    if accumulator is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(accumulator))
    except RuntimeError:  # PyTorch's, of a leaf among what torch.autograd.grad is asked for
        raise StateError(
            f"{kind} gives no gradient of its update to torch.autograd.grad: D grows while it is computed. Call "
            "backward(), which adds it to .grad, or leave the update out of what you ask for."
        ) from None


def _state(update: Guarded) -> tuple[int, int, torch.dtype]:
    return update._version, update.generation, update.dtype


# ---- ``FactoredLinear``: a linear layer whose matrix is not stored, as a module of PyTorch, and how it is called.


FULL = "A .* has been asked in as many directions as it has"  # what a layer warns of, once
_MOST_STD = 1e12  # beyond it, products of layers leave the range of float32


class FactoredLinear(FactoredState):
    """``y = x W' + b`` with ``W = s W_0`` and an update in factors: the parameters, and two queries by a subclass.

    ``scale`` is s, which begins at ``std``; ``update`` is the small factor, which begins empty and grows; both are
    ``Guarded``. The other factors belong to ``matrix``.
    """

    is_deferred: ClassVar[bool] = True  # by which plans know it
    original: nn.Module | None = None  # the module that it replaced, without its numbers
    suffix = ".weight"  # of the name of the tensor that it stands for
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        std: float,
        feedback: Feedback,
        source: Increment,
        resolution: float | None,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.in_features = check_count("in_features", in_features, maximum=WIDEST)
        self.out_features = check_count("out_features", out_features, maximum=WIDEST)
        self.feedback = cast(Feedback, check_choice("feedback", feedback, FEEDBACKS))
        self.std = check_real("std", std, least=0.0, below=_MOST_STD)
        drawn = self._drawn_bias(source) if check_flag("bias", bias) else None
        check_dtype(dtype)
        place = check_device(device)
        self.update = self._begun(dtype, place)
        self.scale = Guarded(torch.full((), self.std, dtype=dtype, device=place))
        self.register_parameter("bias", None if drawn is None else nn.Parameter(drawn.to(place, dtype)))
        if resolution is not None:
            self.update.resolution = check_real("resolution", resolution, least=0.0, below=1.0)
        for parameter in (self.update, self.scale):
            parameter.owner, parameter.stands_for = self.kind, (self.out_features, self.in_features)
            parameter.accept()
        self._warned = False

    @abstractmethod
    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Kept]:
        """``x W'`` and what the backward pass of the same rows is to be given."""

    @abstractmethod
    def ask_backward(self, g: Tensor, kept: Kept, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W`` and the factors of the gradient of the update, [b, rows] and [b, columns]."""

    @torch.no_grad()
    def complete(self, seed: int = 0) -> Tensor | tuple[Tensor, Tensor]:
        """The dense weights ``std W_0`` [out_features, in_features] of the start, which give every answer so far.

        Training a dense layer from it repeats this layer's outputs, to rounding where nothing was dropped or answered
        afresh. What a deferred layer did not record is drawn from ``seed`` and the layer's own stream, so that
        independent layers have independent completions. With independent or static feedback a pair: the forward matrix
        and the backward one. Memory is O(out_features in_features).
        """
        forward, backward = self.matrix.complete(seed)
        return forward * self.std if self.feedback == "shared" else (forward * self.std, backward * self.std)

    @torch.no_grad()
    def dense_weights(self, seed: int = 0) -> Tensor | tuple[Tensor, Tensor]:
        """The dense weights W [out_features, in_features] that the layer has now; otherwise as ``complete``."""
        forward, backward = self.matrix.complete(seed)
        update, scale = self.matrix.dense_update(self.update.data), self.scale.data
        now = forward * scale + update
        if self.feedback == "shared":
            return now
        return now, backward * self.std if self.feedback == "static" else backward * scale + update

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the weights that it stands for, as the module that it replaced would store them."""
        weight = getattr(self.original, "weight", None)
        return (self.out_features, self.in_features) if weight is None else tuple(weight.shape)

    @abstractmethod
    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once."""

    @property
    @abstractmethod
    def directions(self) -> int:
        """How many directions a basis holds, the larger one where there are two."""

    def multiplications(self, rows: int) -> float:
        """Of a query of so many rows, about; infinite where a second thread earns its wait: where numbers are drawn."""
        return math.inf

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``; Theta(std sqrt(in_features)) for inputs of Theta(1)."""
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x must be a tensor; got {type(x).__name__}.")
        refuse_tracing(self)
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=WHOLE_GRAPH)
            return _outside_of_graphs(self, x)
        return self.answer(x)

    def answer(self, x: Tensor) -> Tensor:
        """``forward``, run as it stands."""
        refuse_export(self)
        rows = check_query(self, x).reshape(-1, self.in_features)
        self._check()
        record = self.training and torch.is_grad_enabled()
        if record:
            refuse_checkpointing(self)
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                y, _ = self.ask_forward(rows, False)
        else:
            y = cast(Tensor, Query.apply(rows, self.update, self, record))  # type: ignore[no-untyped-call]
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], self.out_features)

    def accumulate(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right`` to the gradient of the update, a sum over samples."""
        self.scale.begin_gradient()  # of zero: the loss moves the update alone; weight decay moves both
        self.update.scale = self.scale
        self.update.add_gradient(left, right)

    @property
    def nbytes(self) -> int:
        """Bytes held now, by vectors of the width and by the parameters and their gradients."""
        held = [*self.update.held, *self.scale.held]
        if self.bias is not None:
            held += [self.bias] if self.bias.grad is None else [self.bias, self.bias.grad]
        return self.matrix.nbytes + sum(tensor.nbytes for tensor in held)

    def extra_repr(self) -> str:
        resolution = f", resolution={self.update.resolution:g}" if self.update.resolution else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"std={self.std:g}, feedback={self.feedback!r}{resolution}"
        )

    def _begun(self, dtype: torch.dtype, device: torch.device) -> Guarded:
        """The update of a layer that has learned nothing."""
        return Guarded(torch.zeros(0, 0, dtype=dtype, device=device))

    def _warn_if_full(self) -> None:
        """Warn, once, where a dense layer is cheaper."""
        if not self._warned and self.directions >= min(self.in_features, self.out_features):
            self._warned = True
            warnings.warn(
                f"A {self.kind} of size {self.out_features} x {self.in_features} has been asked in as many directions "
                f"as it has; it stays exact, but {STORED} are cheaper from here.",
                stacklevel=4,
            )

    def _drawn_bias(self, source: Increment) -> Tensor:
        """``[out_features]``, uniform as ``nn.Linear`` draws it, on the CPU so that it is the same on every device."""
        bound = 1 / math.sqrt(self.in_features)
        stream = generator(source.seed, "bias", source.index, source.count)
        empty = torch.empty(self.out_features, dtype=torch.float64, device="cpu")
        return empty.uniform_(-bound, bound, generator=stream)


@_disable_dynamo
def _outside_of_graphs(layer: FactoredLinear, x: Tensor) -> Tensor:
    """The answer of a layer inside a function that is compiled: the graph is broken here."""
    return layer.answer(x)
