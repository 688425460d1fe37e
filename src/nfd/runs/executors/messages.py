"""What a driver and its workers tell each other: pickles, which reach nobody else and are never written to a disk.

cloudpickle sends functions and classes of a script or a notebook as they are, and those of a module by name. Tensors go
without the rest of the storage that they are a view of.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle

from nfd.core.errors import InputTypeError, described
from nfd.runs.executors.executor import Outcome, attempt


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")  # where nothing has loaded it there are no tensors
        stored = torch is not None and type(obj) is torch.Tensor and obj.layout is torch.strided
        if stored and obj.untyped_storage().nbytes() > obj.nbytes:
            return obj.detach().clone().__reduce_ex__(self.proto)
        return super().reducer_override(obj)


def packed_function(function: Callable[..., Any]) -> bytes:
    """A function for workers; TypeError if it cannot be sent."""
    try:
        return packed(function)
    except Exception as error:
        raise InputTypeError(
            f"function must be one that cloudpickle can send to workers; got {function!r} ({described(error)}). Let it "
            "hold no open files, locks or connections, or use the executor 'inline'."
        ) from None


def packed_task(task: Any, index: int) -> bytes | Outcome[Any]:
    """A task for a worker, or the outcome of one that cannot be sent."""
    try:
        return packed(task)
    except Exception as error:
        return Outcome(index, error=f"{described(error)} (this task cannot be sent to a worker)")


def answer(function: Callable[[Any], Any], task: bytes, index: int, threads: int) -> bytes:
    """The packed outcome of a packed task: what a worker sends back."""
    outcome = attempt(lambda message: function(unpacked(message)), task, index, threads)
    try:
        return packed(outcome)
    except Exception as error:
        kind = type(outcome.value).__name__
        return packed(Outcome(index, error=f"{described(error)} (the result, of type {kind}, cannot be sent back)"))


def outcome_of(message: bytes, index: int) -> Outcome[Any]:
    """The outcome that ``answer`` packed."""
    try:
        outcome: Outcome[Any] = unpacked(message)
    except Exception as error:
        return Outcome(index, error=f"{described(error)} (the result cannot be read here)")
    return outcome


def packed(content: Any) -> bytes:
    """Anything as bytes."""
    file = io.BytesIO()
    _Pickler(file).dump(content)
    return file.getvalue()


def unpacked(message: bytes) -> Any:
    """What was packed by the other end of a pipe between a driver and its worker, and by nobody else."""
    return cloudpickle.loads(message)
