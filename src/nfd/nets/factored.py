"""``FactoredLinear``: a linear layer whose matrix is not stored, as a module of PyTorch: call, move, save and load."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast, get_args

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
from nfd.core.names import Feedback
from nfd.core.random import Increment, generator
from nfd.nets.guarded import Guarded
from nfd.nets.query import Query
from nfd.nets.refusals import STORED, WHOLE_GRAPH, check_query, refuse_checkpointing, refuse_export, refuse_tracing
from nfd.nets.revealed import RevealedMatrix

FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)
_MOST_STD = 1e12  # beyond it, products of layers leave the range of float32


class FactoredLinear(nn.Module):
    """``y = x W' + b`` with ``W = s W_0 + P D Q'``: the parameters s, D and b, and two queries by a subclass.

    ``scale`` is s, which begins at ``std``; ``update`` is D, which begins empty and grows; both are ``Guarded``.
    """

    matrix: RevealedMatrix
    update: Guarded
    scale: Guarded
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
        self.update = Guarded(torch.zeros(0, 0, dtype=dtype, device=place))
        self.scale = Guarded(torch.full((), self.std, dtype=dtype, device=place))
        self.register_parameter("bias", None if drawn is None else nn.Parameter(drawn.to(place, dtype)))
        self.update.accept()
        self.scale.accept()

    @abstractmethod
    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'`` and the coordinates ``Q'x``, [b, rank]."""

    @abstractmethod
    def ask_backward(self, g: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``g W`` and the coordinates ``P'g``, [b, rank]."""

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``; Theta(std sqrt(in_features)) for inputs of Theta(1)."""
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x must be a tensor; got {type(x).__name__}.")
        refuse_tracing()
        if torch.compiler.is_compiling():
            torch._dynamo.graph_break(msg=WHOLE_GRAPH)
            return _outside_of_graphs(self, x)
        return self.answer(x)

    def answer(self, x: Tensor) -> Tensor:
        """``forward``, run as it stands."""
        refuse_export()
        rows = check_query(self, x).reshape(-1, self.in_features)
        self._check()
        record = self.training and torch.is_grad_enabled()
        if record:
            refuse_checkpointing()
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                y, _ = self.ask_forward(rows, False)
        else:
            y = cast(Tensor, Query.apply(rows, self.update, self, record))  # type: ignore[no-untyped-call]
        if self.bias is not None:
            y = y + self.bias
        return y.view(*x.shape[:-1], self.out_features)

    def accumulate(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right`` to the gradient of D; dL/dD = (P'g)'(Q'x) summed over samples."""
        self.scale.begin_gradient()  # of zero: the loss moves D alone; weight decay moves both
        self.update.scale = self.scale
        self.update.add_gradient(left, right)

    # ---- moving, saving and loading --------------------------------------------------------------------------

    @contextmanager
    def _without_factors(self) -> Iterator[None]:
        """Within it PyTorch sees the bias alone: it would write through .data, or put others in place of s and D."""
        factors = {name: self._parameters.pop(name) for name in ("update", "scale")}
        try:
            yield
        finally:
            self._parameters = factors | self._parameters

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FactoredLinear:
        self._check()
        example = fn(self.update.new_empty(0))
        if example.is_meta:
            raise InputTypeError(
                "A DeferredLinear holds what it was asked and cannot go to the meta device. Make it anew."
            )
        if example.dtype not in (torch.float32, torch.float64):
            raise InputTypeError(f"DeferredLinear needs torch.float32 or torch.float64; got {example.dtype}.")
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
                    f"{name} of this DeferredLinear was replaced by a {type(parameter).__name__}. It is a coordinate "
                    "of a matrix that is not stored: it cannot be pruned, parametrised, swapped or moved to the meta "
                    f"device. Leave it to nfd.SGD and load_state_dict, or use {STORED}."
                )
            parameter.check()

    def _identity(self) -> list[int]:
        """What a saved state must agree with, sizes and feedback, and the source of what is still to be drawn."""
        source = self.matrix.source
        sizes = [self.out_features, self.in_features]
        return [*sizes, FEEDBACKS.index(self.feedback), source.seed, source.index, source.count]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._check()
        state = {
            "identity": torch.tensor(self._identity(), device="cpu"),
            "std": torch.tensor(self.std, dtype=torch.float64, device="cpu"),
            "scale": self.scale.numbers.clone(),
            "update": self.update.numbers.clone(),
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
        state_dict.setdefault(prefix + "std", torch.ones((), dtype=torch.float64))  # of version 0.1
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
        self.matrix.source = Increment(*state["identity"].tolist()[3:])
        self.matrix.restore(state)
        self.scale.replace(state["scale"])
        self.update.replace(state["update"])

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
