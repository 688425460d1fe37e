"""``FactoredState``: how a layer whose matrix is not stored moves to a device or a dtype, is saved and is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from nfd.core.errors import InputTypeError, StateError
from nfd.core.names import Feedback
from nfd.core.random import Increment
from nfd.nets.guarded import Guarded
from nfd.nets.matrix import Matrix
from nfd.nets.refusals import STORED

FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)


class FactoredState(nn.Module):
    """A matrix and its update in factors: ``update`` and ``scale`` are parameters, the rest belongs to ``matrix``."""

    in_features: int
    out_features: int
    feedback: Feedback
    std: float
    matrix: Matrix
    update: Guarded
    scale: Guarded

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
