"""``DeferredLinear``: a linear layer of any width whose Gaussian weights are revealed only where they are asked."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, cast, get_args

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo

from nfd.core.ambient import gradients
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
from nfd.core.random import Increment, ambient_seed
from nfd.nets.guarded import STORED, Guarded
from nfd.nets.orthogonal import TOLERANCE
from nfd.nets.query import Query, inside_backward, refuse_tracing
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
    gradient clipping then sees. One thread at a time may use the layer.

    ``copy.deepcopy`` copies the matrix, its history and its stream, as it copies the weights of an ``nn.Linear``: asked
    the same, the copy answers the same. Asked differently, the two are neither one matrix nor independent, so let a
    copy stand in for its original and not beside it; make layers one by one where they are to differ.

    Args:
        in_features, out_features: size of ``W``; each at least 1.
        feedback: ``"shared"``: ``W`` answers the backward pass too (the standard network);
            ``"independent"``: an independent initial copy does, receiving the same updates (Corollary 1);
            ``"static"``: an independent copy that is never updated (feedback alignment).
        seed: of the reveal stream; the same seed and the same queries give the same numbers. None draws one from
            PyTorch's generator of the CPU, whatever the device, and moves it: layers made without a seed are
            independent of each other, and ``torch.manual_seed`` repeats them. Layers with an
            ``nfd.core.random.Increment`` each, of one path, are independent, too, and add up to the layers of a coarser
            cut of it.
        tolerance: a direction shorter than this, relative to its query, is dropped; below 1, default 1e-5 in
            float32 and 1e-10 in float64.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: where the factors live.

    Raises:
        RuntimeError: on double backward, activation checkpointing, transforms of ``torch.func``, tracing and export,
            and when ``update`` was changed by anything but ``nfd.SGD``. ``torch.compile`` leaves the layer out of its
            graphs, and refuses it with ``fullgraph=True``.

    Source: docs/mathematics/deferred-decisions.md; the layer is no object of the paper.
    """

    is_deferred: ClassVar[bool] = True  # by which plans know it
    update: Guarded
    scale: Guarded

    @gradients()  # tensors of inference mode could not be trained
    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        feedback: Feedback = "shared",
        seed: int | Increment | None = None,
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
            source=_source(seed),
            tolerance=TOLERANCE[dtype]
            if tolerance is None
            else check_real("tolerance", tolerance, above=0.0, below=1.0),
            dtype=dtype,
            device=place,
        )
        self.update = Guarded(torch.zeros(0, 0, dtype=dtype, device=place))
        self.scale = Guarded(torch.ones((), dtype=dtype, device=place))
        self._accept()
        self._warned = False

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``; Theta(sqrt(in_features)) for inputs of Theta(1)."""
        if not isinstance(x, Tensor):
            raise InputTypeError(f"x must be a tensor; got {type(x).__name__}.")
        refuse_tracing()
        if torch.compiler.is_compiling():
            return _outside_of_graphs(self, x)
        return self.answer(x)

    def answer(self, x: Tensor) -> Tensor:
        """``forward``, run as it stands."""
        if torch.compiler.is_compiling():
            raise StateError(
                "A DeferredLinear cannot be exported: it grows with what it is asked. Export the network of its "
                f"complete() weights, or use {STORED}."
            )
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

        What was never asked is drawn from ``seed`` and the layer's own stream, so that independent layers have
        independent completions. With independent or static feedback a pair: the forward matrix and the backward one.
        Training a dense layer from it repeats this layer's outputs to rounding; a test of the engine, and a way out of
        it. Memory is O(out_features in_features).
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
        answer = self.matrix.ask(
            self.matrix.forward, x, scale=self.scale.numbers, update=self.update.numbers, record=record
        )
        self._grow()
        return answer.value, answer.products

    def ask_backward(self, g: Tensor, record: bool) -> tuple[Tensor, Tensor]:
        """``g W`` and the products ``P'g``."""
        static = self.feedback == "static"
        answer = self.matrix.ask(
            self.matrix.backward,
            g,
            scale=1.0 if static else self.scale.numbers,
            update=None if static else self.update.numbers.T,
            record=record,
        )
        self._grow()
        return answer.value, answer.products

    def _grow(self) -> None:
        """Give D, and its gradient, room for the directions just revealed."""
        self.update.make_room(*self.rank)
        if not self._warned and max(self.rank) >= min(self.in_features, self.out_features):
            self._warned = True
            warnings.warn(
                f"A DeferredLinear of size {self.out_features} x {self.in_features} has been asked in as many "
                f"directions as it has; it stays exact, but {STORED} are cheaper from here.",
                stacklevel=4,
            )

    def accumulate(self, left: Tensor, right: Tensor) -> None:
        """Add ``left' right`` to the gradient of D; dL/dD = (P'g)'(Q'x) summed over samples."""
        self.scale.begin_gradient()  # of zero: the loss moves D alone; weight decay moves both
        self.update.scale = self.scale
        self.update.add_gradient(left, right)

    # ---- moving, saving and loading --------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DeferredLinear:
        self._check()
        before = self.update.dtype
        example = fn(self.update.new_empty(0))
        if example.is_meta:
            raise InputTypeError(
                "A DeferredLinear holds what it was asked and cannot go to the meta device. Make it anew."
            )
        after = example.dtype
        if after not in TOLERANCE:
            raise InputTypeError(f"DeferredLinear needs torch.float32 or torch.float64; got {after}.")
        ours = {name: self._parameters.pop(name) for name in ("update", "scale")}
        try:  # PyTorch would write through .data, or put other parameters in their place
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        finally:
            self._parameters = ours | self._parameters
        with torch.no_grad():
            self.update.convert(fn)
            self.scale.convert(fn)
        self.matrix.map(fn)
        if self.update.dtype != before and self.matrix.tolerance == TOLERANCE.get(before):
            self.matrix.tolerance = TOLERANCE[self.update.dtype]
        return self

    def _accept(self) -> None:
        self.update.accept()
        self.scale.accept()

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

    def _identity(self) -> Tensor:
        """What a saved state must agree with, sizes and feedback, and the source of what is still to be drawn."""
        feedback, source = FEEDBACKS.index(self.feedback), self.matrix.source
        numbers = [self.out_features, self.in_features, feedback, source.seed, source.index, source.count]
        return torch.tensor(numbers, device="cpu")

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._check()
        destination[prefix + "identity"] = self._identity()
        destination[prefix + "scale"] = self.scale.numbers.clone()
        destination[prefix + "update"] = self.update.numbers.clone()
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
            self.update.hold(state["update"].to(self.update, copy=True))
            self.update.generation += 1
        self._accept()


@_disable_dynamo
def _outside_of_graphs(layer: DeferredLinear, x: Tensor) -> Tensor:
    """The answer of a layer inside a function that is compiled: the graph is broken here."""
    return layer.answer(x)


def _source(seed: int | Increment | None) -> Increment:
    if isinstance(seed, Increment):
        return seed
    return Increment(ambient_seed() if seed is None else check_seed(seed))
