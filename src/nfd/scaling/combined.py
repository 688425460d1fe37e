"""One optimizer made of several, each with parameters of its own: Muon for matrices, AdamW for the rest."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from nfd.core.errors import InputError, StateError
from nfd.scaling.laws import OptimizerLaw, law_of


class CombinedOptimizer(torch.optim.Optimizer):
    """Steps several optimizers as one: one ``step``, one state, and the groups of all, which schedulers can change.

    Args:
        parts: optimizers of different parameters.
    """

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = tuple(parts)
        self._complete = False
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._complete = True
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every part; ``closure`` is called once, before them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` of an optimizer with the same parts returned.

        Raises:
            ValueError: when it has another number of groups.
        """
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise InputError(f"state_dict has {len(groups)} groups of parameters; expected {len(self.param_groups)}.")
        for part in self.parts:
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            keys = {key for group in own for key in group["params"]}
            state = {key: value for key, value in state_dict["state"].items() if key in keys}
            part.load_state_dict({"state": state, "param_groups": own})
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the parts are made: a group would belong to none of them."""
        if self._complete:
            self._refuse_group()
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts, "_complete": True}

    def _refuse_group(self) -> NoReturn:
        raise StateError("Parameters cannot join a combined optimizer later. Plan the whole model, and make it again.")

    def _share(self) -> None:
        """Let the parts and the whole have the same groups and the same state."""
        state: defaultdict[Tensor, Any] = defaultdict(dict)
        for part in self.parts:
            state.update(part.state)
        for part in self.parts:
            part.state = state
        self.state = state
        self.param_groups = [group for part in self.parts for group in part.param_groups]


def optimizer_of(
    law: OptimizerLaw,
    groups: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    make: Callable[..., torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """What steps these groups: the optimizer of the law, and as one with it that of its rest where groups say so.

    Args:
        law: of groups that have no ``use_muon``, or have it true; its rest steps the others.
        groups: of parameters.
        options: each goes to the optimizer that accepts it.
        make: in place of the law's; it takes all options.

    Raises:
        ValueError: naming the options that neither accepts.
    """
    rest = law if law.rest is None else law_of(law.rest)
    if make is None and (unknown := sorted(options.keys() - law.options - rest.options)):
        known = ", ".join(sorted(law.options | rest.options)) or "none"
        raise InputError(f"optimizer={law.name!r} has no {', '.join(map(repr, unknown))}; its options are {known}.")
    main_options = {name: value for name, value in options.items() if make is not None or name in law.options}
    rest_options = {name: value for name, value in options.items() if name not in main_options}
    parts = []
    for part, own in by_law(law, groups):
        if part is law:
            parts.append((make or law.check_made())(own, **main_options))
        else:
            parts.append(part.check_made()(own, **rest_options))
    return parts[0] if len(parts) == 1 else CombinedOptimizer(parts)


def by_law(law: OptimizerLaw, groups: Sequence[dict[str, Any]]) -> list[tuple[OptimizerLaw, list[dict[str, Any]]]]:
    """The laws that step these groups, each with its own: the first is ``law``, unless it has none of them."""
    own = [group for group in groups if group.get("use_muon", True)]
    others = [group for group in groups if not group.get("use_muon", True)]
    parts = [(law, own), (law if law.rest is None else law_of(law.rest), others)]
    return [(part, theirs) for part, theirs in parts if theirs]
