"""What optimizers of layers without stored weights share: settings, states that grow, checks, and saved states."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import torch

from nfd.core.errors import InputError, InputTypeError, StateError, check_real, check_several
from nfd.nets.frame import padded
from nfd.nets.guarded import Guarded
from nfd.nets.in_factors import InFactors
from nfd.scaling.rules import MAX_ETA_C

P = TypeVar("P", bound=InFactors)
MOMENTUM = "momentum_buffer"  # as PyTorch calls it in its states
_SCHEDULES = {  # what the schedulers of PyTorch keep in a group
    "initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "max_momentum", "base_momentum",
}  # fmt: skip
_NAMES = {"params", "param_names", "name", "role", "roles", "lr_scale"}


class FactoredOptimizer(torch.optim.Optimizer):
    """An optimizer that steps ordinary parameters and those of layers without stored weights alike."""

    kind: ClassVar[str]  # its public name
    numbers: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")  # settings that are numbers from 0 on
    of_one_matrix: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")  # what both parameters of a layer must share

    @property
    def options(self) -> frozenset[str]:
        """The settings that a parameter group may have."""
        raise NotImplementedError

    def moves_scale(self, group: Mapping[str, Any]) -> bool:
        """Whether a layer's ``scale``, whose gradient is zero, changes under these settings, as by weight decay."""
        return bool(group["weight_decay"])

    def apply_rule(self) -> None:
        """Update all parameters that have a gradient; ``step`` calls it."""
        raise NotImplementedError

    def check_settings(self, settings: Mapping[str, Any], where: str) -> None:
        """ValueError or TypeError unless the settings are in their ranges; ``where`` names them in the message."""
        for name in self.numbers:
            if name in settings:
                check_real(f"{name} of {where}", settings[name], least=0.0, below=MAX_ETA_C)

    def check_params(self, params: Any) -> Any:
        """Return parameters or groups of them; TypeError for anything else."""
        if isinstance(params, torch.Tensor | dict):  # of which PyTorch has its own words
            return params
        return check_several("params", params, "parameters or of groups of them")

    def check_group(self, group: Mapping[str, Any], where: str) -> None:
        """ValueError unless a group has only settings of this optimizer, in their ranges."""
        foreign = sorted(map(str, group.keys() - self.options - _SCHEDULES - _NAMES))
        if foreign:
            raise InputError(
                f"{self.kind} has no {', '.join(map(repr, foreign))}, which {where} holds: its options are "
                f"{', '.join(sorted(self.options))}. Groups of another optimizer need that optimizer; those of "
                "nfd.SGD come from net.param_groups(lr) or nfd.plan(..., optimizer='sgd')."
            )
        self.check_settings(group, where)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters; settings that it does not have are the defaults."""
        if isinstance(param_group, dict):  # otherwise PyTorch has words of its own
            where = f"group {len(self.param_groups)}"
            self.check_group(param_group, where)
            settings = self.defaults | param_group
            self.check_group(settings, where)
            given = {name: settings[name] for name in self.numbers if name in settings}
            param_group |= {name: float(n) for name, n in given.items() if not isinstance(n, torch.Tensor)}
        _uncompiled(torch.optim.Optimizer.add_param_group)(self, param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients: None by default, zeros with ``set_to_none=False``."""
        for p in self._all(InFactors) if set_to_none else ():
            p.grad = None  # without making one of its factors
        _uncompiled(torch.optim.Optimizer.zero_grad)(self, set_to_none)

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters once; the momentum of a layer that has grown is first padded with zeros.

        Args:
            closure: computes the loss again and its gradients, as in PyTorch; None in most loops.

        Returns:
            The loss of the closure, or None.

        Raises:
            RuntimeError: before anything changes, if the gradient of a layer was edited in another way than scaling, or
                if its two parameters would be updated differently.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        guarded = self._all(Guarded)
        for p in guarded:
            p.check()
            p.check_gradient()
        self._check_layers(guarded)
        for p in guarded:
            self._pad_states(p)
        with torch.no_grad():
            for p in guarded:
                p.enter_step()
            try:
                self.apply_rule()
            finally:
                for p in guarded:
                    p.leave_step(self.state[p].get(MOMENTUM))
        for p in guarded:
            if p.has_gradient:
                p.accept()
            self.state[p]["generation"] = p.generation
        return loss

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the result of ``state_dict()``. Load the state of the model first: both must be of the same step.

        Raises:
            ValueError, TypeError: if it is not the state of such an optimizer and of these layers.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
            raise InputTypeError(
                f"state_dict must be what state_dict() of {self.kind} returned; got {type(state_dict).__name__}."
            )
        for index, group in enumerate(state_dict["param_groups"]):
            self.check_group(group, f"group {index} of the saved state")
        self._check_states(state_dict)
        super().load_state_dict(dict(state_dict))
        for p, state in self.state.items():
            if isinstance(p, Guarded):
                state["generation"] = p.generation

    def _all(self, kind: type[P]) -> dict[P, dict[str, Any]]:
        """The parameters of this kind, and the group of each."""
        return {p: group for group in self.param_groups for p in group["params"] if isinstance(p, kind)}

    def _check_states(self, state_dict: Mapping[str, Any]) -> None:
        """ValueError when a saved momentum cannot be that of the layer in its place."""
        ours = [p for group in self.param_groups for p in group["params"]]
        theirs = [k for group in state_dict["param_groups"] for k in group["params"]]
        for p, key in zip(ours, theirs, strict=False):  # of other lengths PyTorch has words of its own
            saved = state_dict["state"].get(key, {}).get(MOMENTUM)
            if not isinstance(p, Guarded) or saved is None:
                continue
            if saved.dim() != p.dim() or any(a > b for a, b in zip(saved.shape, p.shape, strict=True)):
                raise InputError(
                    f"The saved momentum is {list(saved.shape)}, that of the deferred layer in its place at most "
                    f"{list(p.shape)}. Load the state of the layers first, or save it by {self.kind} of the same "
                    "network."
                )

    def _pad_states(self, p: Guarded) -> None:
        state = self.state.get(p, {})
        if state.get(MOMENTUM) is None:
            return
        if state["generation"] != p.generation:
            raise StateError(
                f"A {p.owner} was loaded or converted after this optimizer gathered momentum, which refers to the "
                f"directions it had before. Load the optimizer's state too, or build a new {self.kind}."
            )
        state[MOMENTUM] = padded(state[MOMENTUM], *p.shape)

    def _check_layers(self, guarded: Mapping[Guarded, Mapping[str, Any]]) -> None:
        """Raise unless the update and the scale of every layer, two parts of one matrix, are stepped alike."""
        alone = {p for p in guarded if p.dim() == 0 and p.has_gradient}
        for update, group in guarded.items():
            if update.dim() == 0 or not update.has_gradient:
                continue
            scale = update.scale
            if scale is not None and scale in guarded and scale.has_gradient:
                alone.discard(scale)
                settings = [[g[name] for name in self.of_one_matrix] for g in (group, guarded[scale])]
                if settings[0] != settings[1] and any(map(self.moves_scale, (group, guarded[scale]))):
                    raise StateError(_DIFFERENT)
            elif group["weight_decay"]:
                raise StateError(_DIFFERENT)
        if any(guarded[scale]["weight_decay"] for scale in alone):
            raise StateError(_DIFFERENT)


def is_factored(groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether groups hold parameters of layers without stored weights."""
    return any(isinstance(p, Guarded) for group in groups for p in group["params"])


def _uncompiled(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that PyTorch keeps out of its compiler; without that where there is no compiler yet.

    PyTorch would import it for this, which takes longer than many runs do.
    """
    return method if "torch._dynamo" in sys.modules else inspect.unwrap(method)


_DIFFERENT = (
    "update and scale of a layer without stored weights are two parts of one matrix, and this step would give them "
    "different rates, momentum or weight decay, or a gradient to one of them alone. Put both parameters of a layer in "
    "one group, scale beside update though it has no dimensions, and clear their gradients together."
)
