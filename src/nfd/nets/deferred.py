"""``DeferredLinear``: a linear layer of any width whose Gaussian weights are revealed only where they are asked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, cast, get_args

import torch
from torch import Tensor, nn

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
    check_real,
    check_seed,
)
from nfd.core.names import Feedback
from nfd.core.random import Increment
from nfd.nets.frame import LEAST_ROOM, tile_shape, with_room
from nfd.nets.guarded import Guarded
from nfd.nets.orthogonal import TOLERANCE
from nfd.nets.query import Query, inside_backward
from nfd.nets.revealed import RevealedMatrix
from nfd.nets.saved import factors, misfit, restore

FEEDBACKS: tuple[Feedback, ...] = get_args(Feedback)


class DeferredLinear(nn.Module):
    """``y = x W'`` with ``W`` [out_features, in_features], i.i.d. N(0, 1) at the start, never stored.

    After training ``W = scale W_0 + P D Q'`` (see ``nfd.nets.revealed``): ``scale`` is 1 until weight decay acts,
    ``D`` is the parameter ``update``, small and padded with zeros. The law of everything computed is that of the
    dense layer of the same width. A step costs O(n r b) and the state O(n r), r being the samples seen so far.

    Queries are recorded in training mode with gradients enabled. Otherwise (``eval()``, ``no_grad``) the state
    stays untouched: every call is an exact conditional draw, but different calls are not mutually consistent. That
    includes an unrecorded forward pass and its own backward pass: measure gradients of new inputs in training mode.
    Their ``update.grad`` holds only the part that lies in directions already recorded.

    With independent feedback a dense layer holds two parameters and this one a single update, which is what global
    gradient clipping then sees. The layer is not safe to use from several threads at once.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        feedback: ``"shared"``: ``W`` answers the backward pass too (the standard network);
            ``"independent"``: an independent initial copy does, receiving the same updates (Corollary 1);
            ``"static"``: an independent copy that is never updated (feedback alignment).
        seed: of the reveal stream; the same seed and the same queries give the same numbers, so layers that are
            to be independent need different seeds. Layers with an ``nfd.core.random.Increment`` each, of one path,
            are independent, too, and add up to the layers of a coarser cut of it.
        tolerance: a direction shorter than this, relative to its query, is dropped; below 1, default 1e-5 in
            float32 and 1e-10 in float64.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: where the factors live.

    Raises:
        RuntimeError: on double backward, on activation checkpointing, and when ``update`` was changed by anything
            but ``nfd.SGD``.

    Source: docs/mathematics/deferred-decisions.md; the layer is no object of the paper.
    """

    update: Guarded
    scale: Guarded

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        feedback: Feedback = "shared",
        seed: int | Increment = 0,
        tolerance: float | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        check_dtype(dtype)
        self.in_features = check_count("in_features", in_features, maximum=WIDEST)
        self.out_features = check_count("out_features", out_features, maximum=WIDEST)
        self.feedback = cast(Feedback, check_choice("feedback", feedback, FEEDBACKS))
        place = check_device(device)
        self.matrix = RevealedMatrix(
            self.in_features,
            self.out_features,
            shared=self.feedback == "shared",
            source=seed if isinstance(seed, Increment) else Increment(check_seed(seed)),
            tolerance=TOLERANCE[dtype]
            if tolerance is None
            else check_real("tolerance", tolerance, above=0.0, below=1.0),
            dtype=dtype,
            device=place,
        )
        self.update = Guarded(torch.zeros(0, 0, dtype=dtype, device=place))
        self.scale = Guarded(torch.ones((), dtype=dtype, device=place))
        self._warned = False

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``; Theta(sqrt(in_features)) for inputs of Theta(1)."""
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x must be a tensor; got {type(x).__name__}.")
        if check_dense("x", x).dim() == 0 or x.shape[-1] != self.in_features:
            raise InputError(f"x must have {self.in_features} features in its last axis; got shape {list(x.shape)}.")
        if x.dtype != self.update.dtype:
            raise InputTypeError(f"x must be {self.update.dtype}, the dtype of the layer; got {x.dtype}.")
        self._check()
        if torch.is_autocast_enabled(x.device.type):
            raise StateError(
                "DeferredLinear does not support autocast: its directions must be orthonormal to full precision. "
                "Leave it outside, under torch.autocast(..., enabled=False)."
            )
        record = self.training and torch.is_grad_enabled()
        if record and inside_backward():
            raise StateError(
                "DeferredLinear does not support activation checkpointing: recomputing a forward pass would ask the "
                "matrix a second time. It stores no activations of its own to save; remove the checkpoint."
            )
        rows = x.reshape(-1, self.in_features)
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                return self.ask_forward(rows, False)[0].view(*x.shape[:-1], self.out_features)
        y = cast(Tensor, Query.apply(rows, self.update, self, record))  # type: ignore[no-untyped-call]
        return y.view(*x.shape[:-1], self.out_features)

    @torch.no_grad()
    def complete(self, seed: int = 0) -> Tensor | tuple[Tensor, Tensor]:
        """A dense ``W_0`` [out_features, in_features] drawn given every answer so far.

        With independent or static feedback a pair: the forward matrix and the backward one. Training a dense layer
        from it repeats this layer's outputs to rounding; a test of the engine, and a way out of it. Memory is
        O(out_features in_features).
        """
        forward, backward = self.matrix.complete(seed)
        return forward if self.feedback == "shared" else (forward, backward)

    @property
    def rank(self) -> tuple[int, int]:
        """How many directions were revealed so far, (backward, forward)."""
        return self.matrix.ranks

    @property
    def nbytes(self) -> int:
        """Bytes held now: four vectors per direction, the small matrices between them, D and its gradient."""
        small = [self.update] if self.update.grad is None else [self.update, self.update.grad]
        return self.matrix.nbytes + sum(t.nbytes for t in small)

    def reserve(self, samples: int) -> None:
        """Make room for this many samples at once, so that growing never copies the factors."""
        self.matrix.reserve(check_count("samples", samples, minimum=0))

    def extra_repr(self) -> str:
        backward, forward = self.rank
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, feedback={self.feedback!r}, "
            f"revealed forward={forward}, backward={backward}"
        )

    # ---- the two queries, for autograd ----------------------------------------------------------------------

    def ask_forward(self, x: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``x W'`` and the products ``Q'x`` of the recorded directions."""
        answer = self.matrix.ask(self.matrix.forward, x, scale=self.scale.data, update=self.update.data, record=record)
        self._grow()
        return answer.value, answer.products

    def ask_backward(self, g: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``g W`` and the products ``P'g``."""
        static = self.feedback == "static"
        answer = self.matrix.ask(
            self.matrix.backward,
            g,
            scale=1.0 if static else self.scale.data,
            update=None if static else self.update.data.T,
            record=record,
        )
        self._grow()
        return answer.value, answer.products

    def _grow(self) -> None:
        """Give D, and its gradient, room for the directions just revealed."""
        grad, self.update.grad = self.update.grad, None
        self.update.data = with_room(self.update.data, *self.rank)
        if grad is not None:
            self.update.grad = with_room(grad, *self.update.shape)
        if not self._warned and max(self.rank) >= min(self.in_features, self.out_features):
            self._warned = True
            warnings.warn(
                f"A DeferredLinear of size {self.out_features} x {self.in_features} has been asked in as many "
                "directions as it has; it stays exact, but weights='dense' is cheaper from here.",
                stacklevel=4,
            )

    def accumulate(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right`` to the gradient of D; dL/dD = (P'g)'(Q'x) summed over samples."""
        if self.update.grad is None:
            self.update.grad = torch.zeros_like(self.update)
        if self.scale.grad is None:
            self.scale.grad = torch.zeros_like(self.scale)  # the loss moves D alone; weight decay moves both
        self.update.grad[: left.shape[1], : right.shape[1]].addmm_(left.T, right)

    # ---- moving, saving and loading --------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DeferredLinear:
        self._check()
        before = self.update.dtype
        after = fn(self.update.new_empty(0)).dtype
        if after not in TOLERANCE:
            raise InputTypeError(f"DeferredLinear needs torch.float32 or torch.float64; got {after}.")
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.matrix.map(fn)
        if self.update.dtype != before and self.matrix.tolerance == TOLERANCE.get(before):
            self.matrix.tolerance = TOLERANCE[self.update.dtype]
        self._accept()
        return self

    def _accept(self) -> None:
        self.update.accept()
        self.scale.accept()

    def _check(self) -> None:
        self.update.check()
        self.scale.check()

    def _identity(self) -> Tensor:
        """What a saved state must agree with, sizes and feedback, and the source of what is still to be drawn."""
        feedback, source = FEEDBACKS.index(self.feedback), self.matrix.source
        return torch.tensor([self.out_features, self.in_features, feedback, source.seed, source.index, source.count])

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._check()
        destination[prefix + "identity"] = self._identity()
        destination[prefix + "scale"] = self.scale.detach().clone()
        destination[prefix + "update"] = self.update.detach().clone()
        destination.update({prefix + key: tensor for key, tensor in factors(self.matrix).items()})

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
        identity = state_dict[prefix + "identity"].tolist()
        if identity[:3] != self._identity().tolist()[:3]:
            error_msgs.append(
                f"{prefix}identity: the saved layer is {identity[0]} x {identity[1]} with "
                f"{FEEDBACKS[identity[2]]} feedback; this one is {self.out_features} x {self.in_features} "
                f"with {self.feedback} feedback."
            )
            return
        state = {k.removeprefix(prefix): v for k, v in state_dict.items() if k in expected}
        wrong = misfit(self.matrix, state)
        if wrong:
            error_msgs.append(f"{prefix}{wrong}: its shape does not fit the other tensors of the saved layer.")
            return
        self._restore(state, Increment(*identity[3:]))

    def _restore(self, state: dict[str, Tensor], source: Increment) -> None:
        self.matrix.source = source
        restore(self.matrix, state)
        with torch.no_grad():
            self.scale.copy_(state["scale"])
            self.update.grad = None
            self.update.data = state["update"].to(self.update, copy=True)
            self.update.generation += 1
        self._accept()


def predicted_bytes(n_in: int, n_out: int, samples: int, itemsize: int) -> int:
    """What a layer holds, with momentum, when it has seen ``samples`` and room was reserved for them; at most.

    ``(r + s)(n_in + n_out)`` numbers in vectors, r and s being the directions of the two sides and sizes those of whole
    tiles; seven small matrices (D, its gradient and momentum, two responses, two Gram matrices), whose sides double as
    they grow; and the scale with its gradient and momentum.
    """
    r, s = min(samples, n_in), min(samples, n_out)
    wide, high = max(2 * r, LEAST_ROOM), max(2 * s, LEAST_ROOM)
    tiles = math.prod(tile_shape(n_in)) + math.prod(tile_shape(n_out))
    return itemsize * ((r + s) * tiles + 5 * wide * high + wide**2 + high**2 + 3)
