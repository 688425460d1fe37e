"""``nfd.Scaled``: a module behind a forward multiplier."""

from __future__ import annotations

from typing import Any

from torch import nn

from nfd.core.errors import InputTypeError, check_real


class Scaled(nn.Module):
    """Multiply the output of a module by a constant: ``factor * module(x)``. ``plan.apply_`` inserts it where needed.

    A plan still finds the parameters inside by their names. Attributes of the module can be read through it, so
    ``model.lm_head.weight`` is still the tied weight.

    Args:
        module: whose output, a tensor, is multiplied.
        factor: finite.

    Example::

        head = nfd.Scaled(torch.nn.Linear(64, 10), 0.25)
    """

    def __init__(self, module: nn.Module, factor: float) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise InputTypeError(f"module must be a torch.nn.Module; got {type(module).__name__}.")
        self.scaled_module = module
        self.factor = check_real("factor", factor)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output times the factor."""
        return self.factor * self.scaled_module(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("scaled_module"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        inner = self.__dict__.get("_modules", {}).get("scaled_module")
        if inner is not None and name not in ("factor", "training", "scaled_module") and hasattr(inner, name):
            setattr(inner, name, value)  # Hugging Face ties weights by assignment
        else:
            super().__setattr__(name, value)

    def extra_repr(self) -> str:
        """The factor."""
        return f"factor={self.factor:g}"
