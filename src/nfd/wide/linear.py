"""A linear layer whose matrix is not stored: its parameters, how it is called, differentiated, saved and moved."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, cast, get_args

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
    check_device,
    check_dtype,
    check_flag,
    check_real,
    check_seed,
)
from nfd.core.names import Feedback
from nfd.core.random import Increment, ambient_seed, generator
from nfd.wide.parameters import Guarded

if TYPE_CHECKING:
    from nfd.wide.lazy_gaussian import LazyGaussian
    from nfd.wide.learned import RandomPlusLowRank

FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)
_MOST_STD = 1e12  # beyond it, products of layers leave the range of float32


def source_of(seed: int | Increment | None) -> Increment:
    """The source of what a layer draws; without a seed one from PyTorch's own generator."""
    if isinstance(seed, Increment):
        return seed
    return Increment(ambient_seed() if seed is None else check_seed(seed))


class FactoredLinear(nn.Module):
    """``y = x W' + b`` with ``W = s W_0`` and an update in factors: the parameters, and two queries by a subclass.

    ``scale`` is s, which begins at ``std``; ``update`` is the small factor, which begins empty and grows; both are
    ``Guarded``. The other factors belong to ``matrix``.
    """

    is_deferred: ClassVar[bool] = True  # by which plans know it
    original: nn.Module | None = None  # the module that it replaced, without its numbers
    suffix = ".weight"  # of the name of the tensor that it stands for
    bias: nn.Parameter | None
    matrix: LazyGaussian | RandomPlusLowRank
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
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        super().__init__()
        self.in_features = check_count("in_features", in_features, maximum=WIDEST)
        self.out_features = check_count("out_features", out_features, maximum=WIDEST)
        self.feedback = cast(Feedback, check_choice("feedback", feedback, FEEDBACKS))
        self.std = check_real("std", std, least=0.0, below=_MOST_STD)
        drawn = self._drawn_bias(source) if check_flag("bias", bias) else None
        zero = torch.zeros((), dtype=check_dtype(dtype), device=check_device(device))
        self.update, self.scale = self._begun(zero), Guarded(zero + self.std)
        self.register_parameter("bias", None if drawn is None else nn.Parameter(drawn.to(zero)))
        for parameter in (self.update, self.scale):
            parameter.owner, parameter.stands_for = self.kind, (self.out_features, self.in_features)
            parameter.accept()

    @abstractmethod
    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'`` and what the backward pass of the same rows is to be given."""

    @abstractmethod
    def ask_backward(self, g: Tensor, kept: Tensor, record: bool) -> tuple[Tensor, Tensor, Tensor]:
        """``g W`` and the factors of the gradient of the update, [b, rows] and [b, columns]."""

    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once, where that saves copies."""

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``; Theta(std sqrt(in_features)) for inputs of Theta(1)."""
        return _outside_of_graphs(self, x) if torch.compiler.is_compiling() else self.answer(x)

    def answer(self, x: Tensor) -> Tensor:
        """``forward``, run as it stands."""
        if x.shape[-1:] != (self.in_features,):
            raise InputError(f"x must have {self.in_features} features in its last axis; got shape {list(x.shape)}.")
        if x.dtype != self.update.dtype:
            raise InputTypeError(f"x must be {self.update.dtype}, the dtype of the layer; got {x.dtype}.")
        if torch.is_autocast_enabled(x.device.type):
            raise StateError(
                f"{self.kind} does not support autocast: its directions must be orthonormal to full precision. "
                "Run it under torch.autocast(..., enabled=False)."
            )
        rows = x.reshape(-1, self.in_features)
        self._check()
        if torch.is_inference_mode_enabled():  # what is measured on the way is kept, and trained with later
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
        """The dense weights ``std W_0`` [out_features, in_features] of the start, which give every answer so far.

        Training a dense layer from it repeats this layer's outputs, to rounding where nothing was dropped. What a
        deferred layer did not record is drawn from ``seed`` and the layer's own stream, so that independent layers have
        independent completions. With independent or static feedback a pair: the forward matrix and the backward one.
        Memory is O(out_features in_features).
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
    def kind(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Of the weights that it stands for, as the module that it replaced would store them."""
        weight = getattr(self.original, "weight", None)
        return (self.out_features, self.in_features) if weight is None else tuple(weight.shape)

    def extra_repr(self) -> str:
        resolution = f", resolution={self.update.resolution:g}" if self.update.resolution else ""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"std={self.std:g}, feedback={self.feedback!r}{resolution}"
        )

    def _begun(self, like: Tensor) -> Guarded:
        """The update of a layer that has learned nothing."""
        return Guarded(like.new_zeros(0, 0))

    def _drawn_bias(self, source: Increment) -> Tensor:
        """``[out_features]``, uniform as ``nn.Linear`` draws it, on the CPU so that it is the same on every device."""
        bound = 1 / math.sqrt(self.in_features)
        stream = generator(source.seed, "bias", source.index, source.count)
        empty = torch.empty(self.out_features, dtype=torch.float64, device="cpu")
        return empty.uniform_(-bound, bound, generator=stream)

    # ---- how it moves to a device or a dtype, is saved and is loaded

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
        if example.is_meta or example.dtype not in (torch.float32, torch.float64):
            raise InputTypeError(
                f"A {self.kind} holds answers in torch.float32 or torch.float64, which a shorter type or the meta "
                f"device would lose; got {example.dtype} on {example.device}. Build a new one."
            )
        with self._without_factors():
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.update.convert(fn)
            self.scale.convert(fn)
        self.matrix.map(fn)
        return self

    def _check(self) -> None:
        self.update.check()
        self.scale.check()

    def _identity(self) -> list[int]:
        """What a saved state must agree with, sizes and feedback, and the source of what is still to be drawn."""
        source = self.matrix.source
        drawn = [source.seed, source.index, source.count, source.whole]
        return [self.out_features, self.in_features, FEEDBACKS.index(self.feedback), *drawn]

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
        rows, columns, feedback, *drawn = state["identity"].tolist()
        if [rows, columns, feedback] != self._identity()[:3]:
            error_msgs.append(
                f"{prefix}identity: the saved layer is {rows} x {columns} with {FEEDBACKS[feedback]} feedback; this "
                f"one is {self.out_features} x {self.in_features} with {self.feedback} feedback."
            )
            return
        self.std = float(state["std"])
        self.matrix.restore(state, Increment(*drawn))
        self.scale.replace(state["scale"])
        self.update.replace(state["update"])
        with self._without_factors():
            super()._load_from_state_dict(state_dict, prefix, local_metadata, False, [], [], error_msgs)


@_disable_dynamo
def _outside_of_graphs(layer: FactoredLinear, x: Tensor) -> Tensor:
    """The answer of a layer inside a function that is compiled: it grows with its inputs, so no graph can hold it."""
    return layer.answer(x)


class Query(torch.autograd.Function):
    """``W x`` for the rows of ``x``, and its transpose backward; the gradient of D is accumulated by hand.

    D grows between the two passes, so autograd could not check the shape of a returned gradient; adding to ``D.grad``
    directly survives any number of passes before a step. D is an argument only so that the output requires grad.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, update: Guarded, layer: FactoredLinear, record: bool) -> Tensor:
        value, kept = layer.ask_forward(x, record)
        ctx.layer, ctx.record, ctx.state = layer, record, update.state
        ctx.save_for_backward(kept)
        return value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        layer: FactoredLinear = ctx.layer
        update, (kept,) = layer.update, ctx.saved_tensors
        if update.state != ctx.state:
            raise StateError(
                f"The weights of a {layer.kind} were stepped, loaded or converted between a forward pass and its "
                "backward pass. Call backward() before optimizer.step(), or run the forward pass again."
            )
        value, left, right = layer.ask_backward(grads[0].contiguous(), kept, ctx.record)
        accumulator = ctx.next_functions[1][0]  # of D: torch.autograd.grad of inputs alone adds nothing to it
        if accumulator is not None and torch._C._will_engine_execute_node(accumulator):
            layer.scale.begin_gradient()  # of zero: the loss moves the update alone; weight decay moves both
            update.partner, layer.scale.partner = layer.scale, update
            update.add_gradient(left, right)
        return value if ctx.needs_input_grad[0] else None, None, None, None


# ---- what a module shows in place of a weight that it does not store


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

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise WeightError(getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> Any:
        if name in ("dtype", "device", "requires_grad"):
            return getattr(self._layer.update, name)
        raise WeightError(name)


def _refused(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Unstored, *args: Any) -> NoReturn:
        raise WeightError(name)

    return refuse


_OPERATORS = (  # which Python looks up on the class
    "add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv", "pow",
    "rpow", "matmul", "rmatmul", "neg", "abs", "lt", "le", "gt", "ge", "getitem", "setitem", "len", "iter",
)  # fmt: skip
for _name in _OPERATORS:
    setattr(Unstored, f"__{_name}__", _refused(_name))
