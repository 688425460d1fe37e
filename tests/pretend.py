"""A pretended CUDA device, for machines that have none: what would mix devices there raises here.

Tensors "on" it lie in the memory of the CPU, and their storages are marked. The function mode sees
names of devices: it turns ``device="cuda"`` into a mark and lets ``x.device`` tell it. The dispatch
mode sees every operation, those of autograd and of optimizers too: it hands the marks on, and
raises where PyTorch would because two devices meet. Random generators of the pretended device give
numbers of their own, as those of a real one do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CPU = torch.device("cpu")
_CUDA = torch.device("cuda", 0)
_HostGenerator = torch.Generator
_DEVICE, _IS_CUDA = (name.__get__ for name in (Tensor.device, Tensor.is_cuda))
_aten = torch.ops.aten
_ACROSS = {_aten.copy_.default, _aten._to_copy.default}  # may join two devices
# indices may lie on the CPU
_BY_INDEX = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default}
_READ = {Tensor.numpy, Tensor.__array__}
# storages; a weak reference keeps the address from being used again
_THERE: dict[int, StorageWeakRef] = {}


class PretendedGenerator(torch.Generator):
    """The random numbers of the pretended device."""

    def manual_seed(self, seed: int) -> PretendedGenerator:
        super().manual_seed(seed ^ 0x5EED)
        return self


class Pretended:
    """What lies on the pretended device."""

    # where the tensors lie of the function that is running: what it makes inside is made there
    within = _CPU

    def place(self, x: Any) -> torch.device:
        """Where a tensor or a generator lies."""
        if isinstance(x, _HostGenerator):
            return _CUDA if isinstance(x, PretendedGenerator) else _CPU
        if x.layout != torch.strided or x.is_meta:
            return torch.device(x.device)
        return _CUDA if Tensor.untyped_storage(x)._cdata in _THERE else _CPU

    def put(self, x: Any, place: torch.device) -> Any:
        """Say where the tensors in ``x`` lie."""
        for t in tree_leaves(x):
            if isinstance(t, Tensor) and not t.is_meta:
                ref = StorageWeakRef(Tensor.untyped_storage(t))
                if place == _CUDA:
                    _THERE[ref.cdata] = ref
                else:
                    _THERE.pop(ref.cdata, None)
        return x


class _Names(TorchFunctionMode):
    """Reads and answers the names of devices."""

    def __init__(self, pretended: Pretended) -> None:
        super().__init__()
        self.at = pretended

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func == _DEVICE:
            return self.at.place(args[0])
        if func == _IS_CUDA:
            return self.at.place(args[0]) == _CUDA
        if func in _READ and self.at.place(args[0]) == _CUDA:
            raise TypeError("can't convert cuda:0 device type tensor to numpy.")
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            return self._moved(func, args, kwargs)
        return self._made(func, args, kwargs)

    def _moved(self, func: Any, args: Any, kwargs: Any) -> Any:
        """``x.to(...)``, ``x.cpu()``, ``x.cuda()``."""
        x = args[0]
        rest = list(args[1:])
        target = {Tensor.cpu: _CPU, Tensor.cuda: _CUDA}.get(func)
        for k, value in enumerate(rest):
            if isinstance(value, Tensor):
                target = self.at.place(value)
            elif _is_place(value):
                target = torch.device(value)
                rest[k] = "cpu"
        if kwargs.get("device") is not None:
            target = torch.device(kwargs["device"])
            kwargs["device"] = "cpu"
        if target is not None and target.type == "meta":
            return x.to("meta")
        if func is not Tensor.to:
            rest = []
            kwargs = {}
        here = self.at.place(x)
        if target is None or target.type == here.type:
            return x.to(*rest, **kwargs)
        return self.at.put(
            x.to(*rest, **kwargs | {"copy": True}), _CUDA if target.type == "cuda" else _CPU
        )

    def _made(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Any other function; a factory with ``device=`` makes its tensor there."""
        wanted = kwargs.get("device")
        target = torch.device(wanted) if wanted is not None and _is_place(wanted) else None
        stream = kwargs.get("generator")
        if stream is not None:
            needed = target or (
                self.at.place(args[0]) if args and isinstance(args[0], Tensor) else _CPU
            )
            if self.at.place(stream).type != needed.type:
                raise RuntimeError(
                    f"Expected a {needed.type!r} generator; got one of "
                    f"{self.at.place(stream).type!r}"
                )
        if target is None or target.type not in ("cpu", "cuda"):
            return self._called(func, args, kwargs)
        if func is torch.as_tensor and isinstance(args[0], Tensor):
            return args[0].to(device=target)
        return self.at.put(
            func(*args, **kwargs | {"device": "cpu"}), _CUDA if target.type == "cuda" else _CPU
        )

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        before = self.at.within
        tensors = (t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))
        self.at.within = next((_CUDA for t in tensors if self.at.place(t) == _CUDA), _CPU)
        try:
            return func(*args, **kwargs)
        finally:
            self.at.within = before


class _Operations(TorchDispatchMode):
    """Follows tensors through operations, and raises where the two devices meet."""

    def __init__(self, pretended: Pretended) -> None:
        super().__init__()
        self.at = pretended

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        indexed = func in _BY_INDEX and self.at.place(args[0]) == _CUDA
        looked = (args[0], args[2:]) if indexed else (args, kwargs)
        tensors = [t for t in tree_leaves(looked) if isinstance(t, Tensor) and not t.is_meta]
        places = {self.at.place(t) for t in tensors if t.dim()} or {
            self.at.place(t) for t in tensors
        }
        scalars = {self.at.place(t) for t in tensors if not t.dim()}
        if func not in _ACROSS and (len(places) > 1 or (_CUDA in scalars and places == {_CPU})):
            raise RuntimeError(
                f"Expected all tensors to be on the same device; {func} got cuda:0 and cpu."
            )
        out = func(*args, **(kwargs or {}))
        first = self.at.place(tensors[0]) if tensors else self.at.within
        if _CUDA in (places if tensors and func not in _ACROSS else {first}):
            self.at.put(out, _CUDA)
        return out


def _is_place(value: Any) -> bool:
    if isinstance(value, torch.device):
        return True
    return isinstance(value, str) and value.split(":")[0] in ("cpu", "cuda", "meta")


class _Generator(torch.Generator):
    """Stands for ``torch.Generator``: makes one of either device."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        return PretendedGenerator() if torch.device(device).type == "cuda" else _HostGenerator()


@contextmanager
def pretended_cuda() -> Iterator[Pretended]:
    """In this context there is a CUDA device, in name."""
    pretended = Pretended()
    names = _Names(pretended)
    run_backward = torch.autograd._engine_run_backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        """The engine runs Python of ours inside ``Tensor.backward``, where PyTorch has put the
        function mode away.
        """
        with nullcontext() if torch._C._len_torch_function_stack() else names:
            return run_backward(*args, **kwargs)

    with (
        patch.object(torch, "Generator", _Generator),
        patch.object(torch.autograd, "_engine_run_backward", backward),
        patch.multiple(
            torch.cuda,
            get_rng_state=lambda place: None,
            set_rng_state=lambda state, place: None,
            mem_get_info=lambda place: (2**33, 2**33),
        ),
        names,
        _Operations(pretended),
    ):
        yield pretended
