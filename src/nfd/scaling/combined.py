"""An optimizer made of several: under Muon, Muon for matrices and AdamW for all other tensors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nfd.core.errors import InputError, StateError


class CombinedOptimizer(torch.optim.Optimizer):
    """Step optimizers of different parameters as one.

    It has one ``step``, one state, and the groups of all parts, which schedulers can change.
    """

    parts: tuple[torch.optim.Optimizer, ...] = ()

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        groups = []
        for part in parts:
            groups += part.param_groups
        super().__init__(groups, {})
        self.parts = tuple(parts)
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step every part once; ``closure`` is called once, before them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` of an optimizer of the same parts returned.

        Raises:
            ValueError: if the number of groups differs.
        """
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise InputError(
                f"state_dict has {len(groups)} groups of parameters; expected "
                f"{len(self.param_groups)}."
            )
        # Each part loads by its own method: the method of deferred layers reads more than numbers.
        for part in self.parts:
            count = len(part.param_groups)
            groups_of_part = groups[:count]
            groups = groups[count:]
            keys = set()
            for group in groups_of_part:
                keys.update(group["params"])
            state = {key: value for key, value in state_dict["state"].items() if key in keys}
            part.load_state_dict({"state": state, "param_groups": groups_of_part})
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse groups once the parts are made: a group would belong to none of them."""
        if self.parts:
            raise StateError(
                "Parameters cannot join a combined optimizer later. Plan the whole model, make it "
                "again."
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def _share(self) -> None:
        """Let the parts and the whole have the same groups and the same state."""
        self.state = defaultdict(dict)
        self.param_groups = []
        for part in self.parts:
            self.state.update(part.state)
            self.param_groups += part.param_groups
        for part in self.parts:
            part.state = self.state
