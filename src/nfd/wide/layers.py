"""Linear layers of any width whose matrices are not stored: Gaussian and structured ones."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, Self, cast, get_args

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from nfd.core.checks import (
    check_choice,
    check_count,
    check_device,
    check_dtype,
    check_flag,
    check_real,
    check_seed,
)
from nfd.core.errors import InputError, InputTypeError, StateError
from nfd.core.machine import threads_for
from nfd.core.modes import gradients
from nfd.core.names import WIDEST, BasisName, Feedback, Space
from nfd.core.random import Increment, ambient_seed, generator
from nfd.wide.lazy_gaussian import LazyGaussian
from nfd.wide.learned import RandomPlusLowRank
from nfd.wide.parameters import Coefficients, Guarded

FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)
# Beyond it, products of layers leave the range of float32.
_MOST_STD = 1e12


class FactoredLinear(nn.Module):
    """A layer ``y = x W' + b``, with ``W = s W_0`` and an update in factors.

    A subclass answers the two queries, forward and backward.

    Attributes:
        is_deferred: marks such layers for plans.
        original: the module that it replaced, without its numbers.
        suffix: the end of the name of the tensor that it stands for.
        place: that whole name, in a model of ``nfd.defer``.
        matrix: W_0 and all factors but the next two.
        update: the small factor, empty at first, which grows.
        scale: s, at first ``std``.
    """

    is_deferred: ClassVar[bool] = True
    original: nn.Module | None = None
    suffix = ".weight"
    place = ""
    bias: nn.Parameter | None
    matrix: LazyGaussian | RandomPlusLowRank
    update: Guarded
    scale: Guarded

    # Tensors of inference mode could not be trained.
    @gradients()
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
        super().__init__()
        if not isinstance(seed, Increment):
            seed = Increment(ambient_seed() if seed is None else check_seed(seed))
        self.in_features = check_count("in_features", in_features, maximum=WIDEST)
        self.out_features = check_count("out_features", out_features, maximum=WIDEST)
        self.feedback = check_choice("feedback", feedback, FEEDBACKS)
        self.std = check_real("std", std, least=0.0, below=_MOST_STD)
        zero = torch.zeros((), dtype=check_dtype(dtype), device=check_device(device))
        self.update, self.matrix = self._initial(seed, zero)
        self.scale = Guarded(zero + self.std)
        self.register_parameter("bias", None)
        if check_flag("bias", bias):
            # Uniform as nn.Linear draws it, on the CPU so that it is the same on every device.
            bound = 1 / math.sqrt(self.in_features)
            stream = generator(seed.seed, "bias", seed.index, seed.count)
            numbers = torch.empty(self.out_features, dtype=torch.float64, device="cpu")
            numbers.uniform_(-bound, bound, generator=stream)
            self.bias = nn.Parameter(numbers.to(zero))
        for parameter in (self.update, self.scale):
            parameter.owner = self.kind
            parameter.stands_for = (self.out_features, self.in_features)
            parameter.accept()

    @abstractmethod
    def _initial(
        self, source: Increment, like: Tensor
    ) -> tuple[Guarded, LazyGaussian | RandomPlusLowRank]:
        """Make the update of a layer that has learned nothing, and its matrix.

        Both have the dtype and the device of ``like``.
        """

    @abstractmethod
    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'`` and what to keep for the backward pass of the same rows."""

    @abstractmethod
    def ask_backward(self, g: Tensor, kept: Tensor, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W`` and the factors of the gradient of the update, [b, rows] and [b, columns]."""

    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once, where that saves copies."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., in_features]`` to ``[..., out_features]``.

        Outputs are Theta(std sqrt(in_features)) for inputs of Theta(1).
        """
        return _outside_of_graphs(self, x) if torch.compiler.is_compiling() else self.answer(x)

    def answer(self, x: Tensor) -> Tensor:
        """Run ``forward``, outside of any compiled graph."""
        if x.shape[-1:] != (self.in_features,):
            raise InputError(
                f"x must have {self.in_features} features in its last axis; got shape "
                f"{list(x.shape)}."
            )
        if x.dtype != self.update.dtype:
            raise InputTypeError(
                f"x must be {self.update.dtype}, the dtype of the layer; got {x.dtype}."
            )
        if torch.is_autocast_enabled(x.device.type):
            raise StateError(
                f"{self.kind} does not support autocast: its directions must be orthonormal to "
                "full precision. Run it under torch.autocast(..., enabled=False)."
            )
        rows = x.reshape(-1, self.in_features)
        self._check()
        if torch.is_inference_mode_enabled():
            # The layer keeps tensors of this pass that are trained with later.
            with torch.inference_mode(False), torch.no_grad():
                y, _ = self.ask_forward(rows, False)
        else:
            record = self.training and torch.is_grad_enabled()
            y = cast(Tensor, Query.apply(rows, self.update, self, record))  # type: ignore[no-untyped-call]
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], self.out_features)

    @torch.no_grad()
    def complete(self, seed: int = 0) -> Tensor | tuple[Tensor, Tensor]:
        """Return dense initial weights ``std W_0`` that give every answer so far.

        They are [out_features, in_features]. Training a dense layer from them repeats this layer's
        outputs, to rounding where nothing was dropped. What a deferred layer did not record is
        drawn from ``seed`` and the layer's own stream, so that independent layers have independent
        completions. With independent or static feedback a pair: the forward matrix and the backward
        one. Memory is O(out_features in_features).
        """
        forward, backward = self.matrix.complete(seed)
        if self.feedback == "shared":
            return forward * self.std
        return forward * self.std, backward * self.std

    @torch.no_grad()
    def dense_weights(self, seed: int = 0) -> Tensor | tuple[Tensor, Tensor]:
        """Return the dense weights W [out_features, in_features] that the layer has now.

        Otherwise as ``complete``.
        """
        forward, backward = self.matrix.complete(seed)
        update = self.matrix.dense_update(self.update.data)
        scale = self.scale.data
        W = forward * scale + update
        if self.feedback == "shared":
            return W
        if self.feedback == "static":
            return W, backward * self.std
        return W, backward * scale + update

    def scale_initial_(self, factor: float) -> None:
        """Multiply the initial weights of a layer that has not trained by a factor."""
        self.std *= factor
        self.scale.replace(self.scale.data * factor)

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @property
    def weight(self) -> Unstored:
        """The weights that it stands for, without numbers.

        Their shape is that in the module that it replaced.
        """
        replaced = getattr(self.original, "weight", None)
        like = self.update
        shape = (self.out_features, self.in_features) if replaced is None else tuple(replaced.shape)
        weight = Tensor._make_wrapper_subclass(
            Unstored, shape, dtype=like.dtype, device=like.device, requires_grad=like.requires_grad
        )
        weight.place = self.place
        return weight

    def extra_repr(self) -> str:
        resolution = f", resolution={self.update.resolution:g}" if self.update.resolution else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, std={self.std:g}, "
            f"feedback={self.feedback!r}{resolution}"
        )

    # ---- how it moves to a device or a dtype, is saved and is loaded

    @contextmanager
    def _without_factors(self) -> Iterator[None]:
        """Hide all parameters but the bias from PyTorch.

        PyTorch would write through .data, or put others in place of s and D.
        """
        factors = {name: self._parameters.pop(name) for name in ("update", "scale")}
        try:
            yield
        finally:
            self._parameters = factors | self._parameters

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._check()
        example = fn(self.update.new_empty(0))
        if example.is_meta or example.dtype not in (torch.float32, torch.float64):
            raise InputTypeError(
                f"A {self.kind} holds answers in torch.float32 or torch.float64, which a shorter "
                f"type or the meta device would lose; got {example.dtype} on {example.device}. "
                "Build a new one."
            )
        with self._without_factors():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.update.convert(fn)
            self.scale.convert(fn)
        self.matrix.map(fn)
        return self

    def _check(self) -> None:
        for parameter in (self.update, self.scale):
            if not isinstance(parameter, Guarded):
                raise StateError(
                    f"The parameters of a {self.kind} were replaced by other tensors, as "
                    "torch.func.functional_call does. Its matrix is not stored and does not follow "
                    "from these. Call the module itself."
                )
            parameter.check()

    def _identity(self) -> list[int]:
        """What a saved state must agree with, and the source of what is still to be drawn.

        It must agree with the first three: sizes and feedback.
        """
        source = self.matrix.source
        increment = [source.seed, source.index, source.count, source.whole]
        return [self.out_features, self.in_features, FEEDBACKS.index(self.feedback), *increment]

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        self._check()
        state = {
            "identity": torch.tensor(self._identity(), device="cpu"),
            "std": torch.tensor(self.std, dtype=torch.float64, device="cpu"),
            "scale": self.scale.data.clone(),
            "update": self.update.data.clone(),
            **self.matrix.state(),
        }
        destination.update({prefix + key: tensor for key, tensor in state.items()})
        with self._without_factors():
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        expected: dict[str, Any] = {}
        self._save_to_state_dict(expected, prefix, keep_vars=False)
        lacking = [key for key in expected if key not in state_dict]
        missing_keys.extend(lacking)
        unexpected_keys.extend(k for k in state_dict if k.startswith(prefix) and k not in expected)
        if lacking:
            return
        state = {key.removeprefix(prefix): state_dict[key] for key in expected}
        rows, columns, feedback, *increment = state["identity"].tolist()
        if [rows, columns, feedback] != self._identity()[:3]:
            error_msgs.append(
                f"{prefix}identity: the saved layer is {rows} x {columns} with "
                f"{FEEDBACKS[feedback]} feedback; this one is {self.out_features} x "
                f"{self.in_features} with {self.feedback} feedback."
            )
            return
        self.std = float(state["std"])
        self.matrix.restore(state, Increment(*increment))
        self.scale.replace(state["scale"])
        self.update.replace(state["update"])
        with self._without_factors():
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, False, [], [], error_msgs
            )


@_disable_dynamo
def _outside_of_graphs(layer: FactoredLinear, x: Tensor) -> Tensor:
    """Answer for a layer inside a compiled function.

    A layer grows with its inputs, so that no graph can hold it.
    """
    return layer.answer(x)


class Query(torch.autograd.Function):
    """``W x`` for the rows of ``x``, and its transpose backward.

    The gradient of D is accumulated by hand. D grows between the two passes, so autograd could not
    check the shape of a returned gradient; adding to ``D.grad`` directly survives any number of
    passes before a step. D is an argument only so that the output requires grad.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, update: Guarded, layer: FactoredLinear, record: bool
    ) -> Tensor:
        value, kept = layer.ask_forward(x, record)
        ctx.layer = layer
        ctx.record = record
        ctx.state = update.state
        ctx.save_for_backward(kept)
        # A view could not be changed in place, as by nn.ReLU(inplace=True).
        return value.clone() if value._is_view() else value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        layer: FactoredLinear = ctx.layer
        update = layer.update
        (kept,) = ctx.saved_tensors
        if update.state != ctx.state:
            raise StateError(
                f"The weights of a {layer.kind} were stepped, loaded or converted between a "
                "forward pass and its backward pass. Call backward() before optimizer.step(), or "
                "run the forward pass again."
            )
        value, left, right = layer.ask_backward(grads[0].contiguous(), kept, ctx.record)
        # The node that would accumulate the gradient of D. It does not run, and nothing is added,
        # where torch.autograd.grad asks for gradients of the inputs only.
        accumulator = ctx.next_functions[1][0]
        if accumulator is not None and torch._C._will_engine_execute_node(accumulator):
            # A gradient of zero: the loss moves only the update, weight decay moves both.
            layer.scale.begin_gradient()
            # A number, since parameters that held each other would outlive the network.
            update.pair = id(update)
            layer.scale.pair = id(update)
            update.add_gradient(left, right)
        return value if ctx.needs_input_grad[0] else None, None, None, None


# ---- what a module shows in place of a weight that it does not store


class Unstored(Tensor):
    """The shape, type and device of a weight without numbers.

    Code that computes with it gets a StateError. PyTorch's fast paths, such as the one of
    ``nn.TransformerEncoder``, see from its class that they must not be taken. ``place`` is the name
    of its layer in a model.
    """

    place = ""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # It does what Tensor does, but must stand here: PyTorch takes its slow paths only where a
        # class defines it.
        return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        place = next((part.place for part in args if isinstance(part, cls)), "")
        raise StateError(
            f"{function} was asked of a weight that is not stored: some code reads the weight of "
            f"{place or 'a layer'} instead of calling it, as of one that nfd.defer replaced. Call "
            "it, or name other layers by where=."
        )


# ---- Gaussian weights that are revealed where they are asked, and structured ones


class DeferredLinear(FactoredLinear):
    """A linear layer with i.i.d. Gaussian initial weights that are never stored.

    So it can be millions wide. It computes ``y = x W' + b`` with ``W`` [out_features, in_features],
    initially N(0, std^2). The trained matrix is

        W = s W_0 + P D Q'

    (``nfd.wide.lazy_gaussian``) with W_0 i.i.d. N(0, 1). The parameter ``scale`` is s, initially
    ``std``, which only weight decay moves; ``update`` is D, a small matrix in units of W. The layer
    replaces an ``nn.Linear`` with this ``std``, at the same learning rate, weight decay and
    momentum, with exactly its distribution. After r samples the state takes O(n r), and a step of b
    samples O(n r b).

    Products are recorded in training mode with gradients enabled. Otherwise (``eval()``,
    ``no_grad``) every call is an exact conditional draw, which the next call does not remember, its
    own backward pass included: measure gradients of new inputs in training mode.
    ``copy.deepcopy`` copies the random stream: use the copy in place of its original. One thread at
    a time may use the layer.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        bias: whether there is a ``b`` [out_features], initialised as in ``nn.Linear``.
        std: standard deviation of the initial entries of ``W``, at least 0. ``nn.Linear`` has ``1 /
            sqrt(3 in_features)``.
        feedback: the matrix that carries gradients backward. ``"shared"``: ``W``.
            ``"independent"``: another initial matrix with the same updates (Corollary 1).
            ``"static"``: another matrix, never updated (feedback alignment).
        seed: of the weights and the bias. None draws one from PyTorch's generator of the CPU, on
            any device. Layers with increments (``nfd.core.random``) of one path add up.
        dtype: ``torch.float32`` or ``torch.float64``. A direction shorter than 1e-5, or 1e-10, of
            its vector is dropped.
        device: of the factors.

    Raises:
        ValueError, TypeError: naming the argument, for anything outside these ranges.
        RuntimeError: on second derivatives, activation checkpoints, transforms of ``torch.func``
            and autocast, and when ``update`` was changed by anything but ``nfd.SGD`` or
            ``nfd.Muon``. ``torch.compile`` leaves the layer out of its graphs.

    Source: docs/mathematics/deferred-decisions.md; the paper has no such layer.

    Example::

        # Its matrix would fill four terabytes.
        layer = nfd.DeferredLinear(2**20, 2**20, std=2**-10)
        layer(torch.randn(2, 2**20))
    """

    matrix: LazyGaussian

    def _initial(self, source: Increment, like: Tensor) -> tuple[Guarded, LazyGaussian]:
        sizes = (self.in_features, self.out_features)
        shared = self.feedback == "shared"
        matrix = LazyGaussian(
            *sizes, shared=shared, source=source, dtype=like.dtype, device=like.device
        )
        return Guarded(like.new_zeros(0, 0)), matrix

    @property
    def rank(self) -> tuple[int, int]:
        """How many directions were revealed so far, (backward, forward)."""
        return self.matrix.ranks

    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once, so that growing never copies the factors."""
        self.matrix.reserve(check_count("samples", samples, minimum=0))

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'`` and the products ``Q'x`` of the recorded directions."""
        # A forward pass during a backward pass is a recomputation. The first one, without
        # gradients, drew other answers.
        if record and torch._C._current_graph_task_id() != -1:
            raise StateError(
                f"{self.kind} does not support activation checkpointing: recomputing a forward "
                "pass would query the matrix a second time. It stores no activations of its own to "
                "save; remove the checkpoint."
            )
        answer = self.matrix.ask(
            self.matrix.forward, x, scale=self.scale.data, update=self.update.data, record=record
        )
        self.update.pad(*self.rank)
        return answer

    def ask_backward(self, g: Tensor, kept: Tensor, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``g W``, the products ``P'g`` and the products of the forward pass."""
        scale: Tensor | float = self.scale.data
        update: Tensor | None = self.update.data.T
        if self.feedback == "static":
            scale = self.std
            update = None
        value, products = self.matrix.ask(
            self.matrix.backward, g, scale=scale, update=update, record=record
        )
        self.update.pad(*self.rank)
        return value, products, kept


class StructuredLinear(FactoredLinear):
    """A linear layer with fast products, with the infinite-width limit of Gaussian weights.

    It computes ``y = x W' + b`` with ``W`` [out_features, in_features]. The trained matrix is

        W = s W_0 + G' C X + U'B    or    W = s W_0 + G' C X + B'U

    where W_0 is made of random signs and fast transforms (``nfd.wide.rotated``): entries have mean
    0 and variance 1, a product takes O(n log n). ``scale`` is s, initially ``std``, which only
    weight decay moves. X and G are the layer's inputs and its outputs' gradients, by sample.
    Many samples are compressed: B is an orthonormal basis of the inputs seen in training, or of the
    gradients. ``update`` has a coefficient for every sample. The layer replaces an ``nn.Linear``
    with this ``std``, at the same learning rate, weight decay, momentum and norm clipping.

    With r samples, or directions of B, the state takes O(n r), and a step of b samples
    O(n r b + n log n b). As the width grows, training has the limit of Gaussian weights, by
    universality of first-order methods; at finite width only ``DeferredLinear`` has it exactly.

    Args:
        in_features, out_features, bias, std, device: as in ``DeferredLinear``.
        feedback: ``"shared"``, ``"independent"`` or ``"static"``, as in ``DeferredLinear``; the
            latter two draw a second matrix.
        basis: of ``"inputs"``, ``"gradients"``, or ``"auto"`` for the one of smaller rank at first.
        resolution: at least 0, below 1. A vector whose remainder outside of B is shorter adds no
            direction; relative to the vector, or to the root mean square of the samples where that
            is longer. What is left out is not learned; ``nfd.Muon`` warns, as it would have given
            it full strength. None, or 0, leaves out only what rounding would.
        seed: of W_0 and the bias, as in ``DeferredLinear``. With an ``nfd.core.random.Increment``
            W_0 is a sum of independent matrices.
        dtype: ``torch.float32`` or ``torch.float64``.

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

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        basis: BasisName = "auto",
        resolution: float | None = None,
        **settings: Any,
    ) -> None:
        check_choice("basis", basis, get_args(BasisName))
        self._space: Space | None = None if basis == "auto" else basis
        self._resolution = (
            0.0 if resolution is None else check_real("resolution", resolution, least=0, below=1)
        )
        super().__init__(in_features, out_features, **settings)

    def _initial(self, source: Increment, like: Tensor) -> tuple[Coefficients, RandomPlusLowRank]:
        update = Coefficients(like.new_zeros(0))
        update.resolution = self._resolution
        update.matrix = RandomPlusLowRank(
            self.in_features,
            self.out_features,
            shared=self.feedback == "shared",
            space=self._space,
            source=source,
            resolution=self._resolution,
            dtype=like.dtype,
            device=like.device,
        )
        return update, update.matrix

    @property
    def basis(self) -> Space | None:
        """The space of which the update has a basis; None before it has one."""
        return self.matrix.space if self.matrix.settled else None

    @property
    def rank(self) -> int:
        """How many vectors of each side the update has.

        They are directions of its basis, and samples that are not in it yet.
        """
        return self.matrix.basis.rank + self.matrix.count

    def reserve(self, samples: int) -> None:
        """Make room for the samples of a training run; few of them are never compressed."""
        self.matrix.reserve(check_count("samples", samples, minimum=0))

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'``, and x itself."""
        with threads_for(self._multiplications(x)):
            value = self.matrix.forward.product(x, self.scale.data)
            self.matrix.add_update(value, x, "inputs", self.update.data)
        return value, x

    def ask_backward(self, g: Tensor, kept: Tensor, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W`` and the factors of the gradient of W."""
        is_static = self.feedback == "static"
        scale = self.std if is_static else self.scale.data
        with threads_for(self._multiplications(g)):
            value = self.matrix.backward.transposed_product(g, scale)
            if not is_static:
                self.matrix.add_update(value, g, "gradients", self.update.data)
        return value, g, kept

    def _multiplications(self, x: Tensor) -> float:
        """About how many multiplications a query takes, to choose the number of threads.

        A deferred layer does not choose: it draws numbers too, where a second thread is worth its
        wait.
        """
        size = max(self.in_features, self.out_features)
        return x.shape[0] * size * (self.rank + math.log2(size + 1))
