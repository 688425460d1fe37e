"""A linear layer whose matrix is not stored: parameters, calls, the operation of autograd, saved states, refusals."""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NoReturn, Protocol, Self, cast, get_args

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from nfd.core.errors import (
    WIDEST,
    InputError,
    InputTypeError,
    StateError,
    check_choice,
    check_count,
    check_dense,
    check_device,
    check_dtype,
    check_flag,
    check_real,
    check_seed,
)
from nfd.core.machine import threads_for
from nfd.core.names import Feedback
from nfd.core.random import Increment, ambient_seed, generator
from nfd.wide.parameters import STORED, Guarded

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


FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)


FULL = "A .* has been asked in as many directions as it has"  # what a layer warns of, once
_MOST_STD = 1e12  # beyond it, products of layers leave the range of float32


class FactoredLinear(nn.Module):
    """``y = x W' + b`` with ``W = s W_0`` and an update in factors: the parameters, and two queries by a subclass.

    ``scale`` is s, which begins at ``std``; ``update`` is the small factor, which begins empty and grows; both are
    ``Guarded``. The other factors belong to ``matrix``.
    """

    is_deferred: ClassVar[bool] = True  # by which plans know it
    original: nn.Module | None = None  # the module that it replaced, without its numbers
    suffix = ".weight"  # of the name of the tensor that it stands for
    bias: nn.Parameter | None
    matrix: Matrix
    update: Guarded
    scale: Guarded

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

    # ---- how it moves to a device or a dtype, is saved and is loaded

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @contextmanager
    def _without_factors(self) -> Iterator[None]:
        """Within it PyTorch sees the bias alone: it would write through .data, or put others in place of s and D."""
        factors = {name: self._parameters.pop(name) for name in ("update", "scale")}
        try:
            yield
        finally:
            self._parameters = factors | self._parameters

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._check()
        example = fn(self.update.new_empty(0))
        if example.is_meta:
            raise InputTypeError(
                f"A {self.kind} holds answered products and cannot go to the meta device. Build a new one."
            )
        if example.dtype not in (torch.float32, torch.float64):
            raise InputTypeError(f"{self.kind} needs torch.float32 or torch.float64; got {example.dtype}.")
        with self._without_factors():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.update.convert(fn)
            self.scale.convert(fn)
        self.matrix.map(fn)
        return self

    def _check(self) -> None:
        for name in ("update", "scale"):
            parameter: Any = getattr(self, name)
            if not isinstance(parameter, Guarded):
                raise StateError(
                    f"{name} of this {self.kind} was replaced by a {type(parameter).__name__}. It is a coordinate "
                    "of a matrix that is not stored: it cannot be pruned, parametrised, swapped or moved to the meta "
                    f"device. Leave it to nfd.SGD, nfd.Muon and load_state_dict, or use {STORED}."
                )
            parameter.check()

    def _identity(self) -> list[int]:
        """What a saved state must agree with, sizes and feedback, and the source of what is still to be drawn."""
        source = self.matrix.source
        sizes = [self.out_features, self.in_features]
        drawn = [source.seed, source.index, source.count, source.whole]
        return [*sizes, FEEDBACKS.index(self.feedback), *drawn]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
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
        contradiction = self._contradiction(state)
        if contradiction:
            error_msgs.append(prefix + contradiction)
            return
        self._restore(state)
        with self._without_factors():
            super()._load_from_state_dict(state_dict, prefix, local_metadata, False, [], [], error_msgs)

    def _contradiction(self, state: dict[str, Tensor]) -> str:
        """Why a saved state cannot be that of this layer; empty when it can."""
        rows, columns, feedback = state["identity"].tolist()[:3]
        if [rows, columns, feedback] != self._identity()[:3]:
            return (
                f"identity: the saved layer is {rows} x {columns} with {FEEDBACKS[feedback]} feedback; this one is "
                f"{self.out_features} x {self.in_features} with {self.feedback} feedback."
            )
        misfit = next((key for key in ("std", "scale") if state[key].dim()), None) or self.matrix.misfit(state)
        return f"{misfit}: its shape does not fit the other tensors of the saved layer." if misfit else ""

    def _restore(self, state: dict[str, Tensor]) -> None:
        self.std = float(state["std"])
        self.matrix.restore(state, Increment(*state["identity"].tolist()[3:]))
        self.scale.replace(state["scale"])
        self.update.replace(state["update"])


@_disable_dynamo
def _outside_of_graphs(layer: FactoredLinear, x: Tensor) -> Tensor:
    """The answer of a layer inside a function that is compiled: the graph is broken here."""
    return layer.answer(x)


class Matrix(Protocol):
    """W_0 and the bases of its update."""

    @property
    def source(self) -> Increment:
        """Of what is random in it."""

    @property
    def nbytes(self) -> int:
        """Bytes held now."""

    def complete(self, seed: int) -> tuple[Tensor, Tensor]:
        """Dense W_0 of the forward and of the backward pass, both ``[n_out, n_in]``; new tensors, which may be one."""

    def dense_update(self, update: Tensor) -> Tensor:
        """What the small factor of an update adds to W, ``[n_out, n_in]``."""

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device."""

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that does not follow from the source."""

    def misfit(self, state: dict[str, Tensor]) -> str | None:
        """The first tensor of a saved layer whose shape contradicts the others."""

    def restore(self, state: dict[str, Tensor], source: Increment) -> None:
        """Hold exactly what ``state`` returned, of this source."""


def source_of(seed: int | Increment | None) -> Increment:
    """The source of what a layer draws; without a seed one from PyTorch's own generator."""
    if isinstance(seed, Increment):
        return seed
    return Increment(ambient_seed() if seed is None else check_seed(seed))


_OPERATORS = (  # which Python looks up on the class
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "pow",
    "rpow", "matmul", "rmatmul", "neg", "abs", "lt", "le", "gt", "ge", "getitem", "setitem", "len", "iter",
)  # fmt: skip


class WeightError(StateError, AttributeError):
    """A weight was read that is not stored; to ``hasattr`` it has no such attribute."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} was asked of a weight that is not stored: some code reads the weight of a layer that nfd.defer "
            "replaced, instead of calling the layer. Call it, keep that layer dense, by where= of nfd.defer, or use "
            "weights='dense'."
        )


class Unstored:
    """The shape, type and device of a weight without numbers; code that computes with it is refused in words.

    PyTorch's own fast paths, such as that of ``nn.TransformerEncoder``, see from it that they must not be taken.
    """

    def __init__(self, layer: FactoredLinear) -> None:
        self._layer = layer

    @property
    def shape(self) -> torch.Size:
        """Of the weight, as the module that was replaced would store it."""
        return torch.Size(self._layer.weight_shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of what the layer computes with."""
        return self._layer.update.dtype

    @property
    def device(self) -> torch.device:
        """Where the layer lives."""
        return self._layer.update.device

    @property
    def requires_grad(self) -> bool:
        """Whether the layer trains."""
        return self._layer.update.requires_grad

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise WeightError(getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> NoReturn:
        raise WeightError(name)


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Unstored, *args: Any) -> NoReturn:
        raise WeightError(name)

    return refuse


for _name in _OPERATORS:
    setattr(Unstored, f"__{_name}__", _refused(_name))


class Layer(Protocol):
    """What these need of a layer."""

    in_features: int
    update: Any

    @property
    def kind(self) -> str: ...


WHOLE_GRAPH = (  # what PyTorch's compiler says of fullgraph=True
    "A layer without stored weights grows with its inputs, so no graph can hold it: torch.compile leaves it out. "
    f"Compile with fullgraph=False, or use {STORED}."
)


def check_query(layer: Layer, x: Tensor) -> Tensor:
    """Return ``x`` if it is ``[..., in_features]`` in the precision of the layer; otherwise raise."""
    if check_dense("x", x).dim() == 0 or x.shape[-1] != layer.in_features:
        raise InputError(f"x must have {layer.in_features} features in its last axis; got shape {list(x.shape)}.")
    if x.dtype != layer.update.dtype:
        raise InputTypeError(f"x must be {layer.update.dtype}, the dtype of the layer; got {x.dtype}.")
    if torch.is_autocast_enabled(x.device.type):
        raise StateError(
            f"{layer.kind} does not support autocast: its directions must be orthonormal to full precision. "
            "Leave it outside, under torch.autocast(..., enabled=False)."
        )
    return x


def refuse_tracing(layer: Layer) -> None:
    """Raise where PyTorch transforms or records a program instead of running it once."""
    if torch._C._are_functorch_transforms_active():
        raise StateError(
            f"{layer.kind} does not support the transforms of torch.func (vmap, grad, jvp, vectorised Jacobians): "
            f"its answers depend on earlier products. Use backward(), batches for vmap, or {STORED}."
        )
    if torch._C._get_tracing_state() is not None:
        raise StateError(
            f"{layer.kind} cannot be traced: it grows with what it is asked, and a trace would repeat one answer. "
            f"Trace the network of its complete() weights, or use {STORED}."
        )


def refuse_export(layer: Layer) -> None:
    """Raise where the layer is inside of a graph that torch.export makes."""
    if torch.compiler.is_compiling():
        raise StateError(
            f"A {layer.kind} cannot be exported: it grows with what it is asked. Export the network of its "
            f"complete() weights, or use {STORED}."
        )


def refuse_checkpointing(layer: Layer) -> None:
    """Raise where a forward pass is repeated inside of a backward pass."""
    if torch._C._current_graph_task_id() != -1:
        raise StateError(
            f"{layer.kind} does not support activation checkpointing: recomputing a forward pass would query the "
            "matrix a second time. It stores no activations of its own to save; remove the checkpoint."
        )


def refuse_second_derivatives(layer: Layer) -> None:
    """Raise inside of a backward pass that is to be differentiated itself."""
    if torch.is_grad_enabled():
        raise StateError(
            f"{layer.kind} does not support double backward (create_graph=True): its gradient is itself a "
            f"query of the matrix and is not differentiable. For second derivatives use {STORED}."
        )
