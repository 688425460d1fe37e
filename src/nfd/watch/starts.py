"""Tensors as they were before training: drawn again from the streams of their plan, or kept where that fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from nfd.scaling.model import TensorInfo, whole
from nfd.scaling.plan import Plan, start_of


class Starts(Mapping[str, Tensor]):
    """The starts of tensors by name, on their device and in their type.

    A tensor that ``plan.apply_(model, seed)`` drew is not stored: its stream gives it again, bit for bit. Others, such
    as those that a rule leaves as the model begins them or that were loaded, are copied to the CPU.

    Args:
        plan: of the model.
        seed: that of ``plan.apply_``.
        infos: the tensors, before training.
    """

    def __init__(self, plan: Plan, seed: int, infos: Mapping[str, TensorInfo]) -> None:
        self.plan, self.seed, self.infos = plan, seed, infos
        self.kept = {
            name: whole(t.parameter.detach()).to("cpu", copy=True) for name, t in infos.items() if not self._is_drawn(t)
        }

    def __getitem__(self, name: str) -> Tensor:
        parameter = self.infos[name].parameter
        start = self.kept.get(name)
        if start is None:
            start = start_of(self.plan, self.infos[name], self.seed)
        assert start is not None
        return start.to(parameter.device, parameter.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.infos)

    def __len__(self) -> int:
        return len(self.infos)

    def _is_drawn(self, t: TensorInfo) -> bool:
        start = start_of(self.plan, t, self.seed)
        now = whole(t.parameter.detach())
        return start is not None and torch.equal(start.to(now), now)
