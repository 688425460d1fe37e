"""What constructors of optimizers take, and which settings of an optimizer its user has chosen.

PyTorch writes the arguments of a constructor into ``optimizer.defaults``, whether they were passed
or not. What nobody passed shows by the signature of the constructor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """Read the arguments of a function; None where its signature is not known."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def has_argument(make: Callable[..., Any] | None, option: str) -> bool:
    """Say whether a function has an argument of this name."""
    return make is not None and option in (parameters_of(make) or {})


def takes(make: Callable[..., Any], option: str) -> bool:
    """Say whether a function accepts an argument of this name.

    True also where its signature is not known.
    """
    parameters = parameters_of(make)
    if parameters is None or option in parameters:
        return True
    return _takes_any(parameters)


def with_held(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """List an optimizer and the optimizers in its attributes, as wrappers have them."""
    optimizers = [optimizer]
    # The list grows while it is read.
    for holder in optimizers:
        for value in getattr(holder, "__dict__", {}).values():
            parts = value if isinstance(value, tuple | list) else [value]
            for part in parts:
                is_listed = any(part is other for other in optimizers)
                if isinstance(part, torch.optim.Optimizer) and not is_listed:
                    optimizers.append(part)
    return optimizers


def owner_of(kind: type, name: str) -> type | None:
    """Find the ancestor whose constructor names an argument; subclasses may pass it on."""
    for ancestor in kind.__mro__:
        if name in (parameters_of(vars(ancestor).get("__init__")) or {}):
            return ancestor
    return None


def is_default(kind: type, name: str, value: Any) -> bool:
    """Say whether a setting has the value that the constructor has as its default."""
    owner = owner_of(kind, name)
    if owner is None:
        return False
    parameters = parameters_of(vars(owner)["__init__"]) or {}
    return is_same(parameters[name].default, value)


def is_chosen(kind: type, name: str, value: Any) -> bool:
    """Say whether a setting of all groups was passed to the constructor.

    Where no constructor names it, it was passed if the class accepts any option; else the class
    sets it by itself.
    """
    if owner_of(kind, name) is not None:
        return not is_default(kind, name, value)
    for ancestor in kind.__mro__:
        if "__init__" in vars(ancestor):
            return _takes_any(parameters_of(vars(ancestor)["__init__"]) or {})
    return False


def is_same(a: Any, b: Any) -> bool:
    """Say whether two values of a setting are equal; tuples equal lists."""
    try:
        if isinstance(a, tuple | list):
            return bool(tuple(a) == tuple(b))
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


@contextmanager
def recorded_calls(owner: type) -> Iterator[list[inspect.BoundArguments]]:
    """Record the arguments that are passed to the constructor of a class within the context.

    Constructors write defaults and passed values to the same place, so that only the call shows
    which arguments were passed. The constructor of the class itself is replaced meanwhile, as a
    subclass, a partial or a function of the user's may be what calls it.
    """
    constructor: Any = vars(owner)["__init__"]
    signature = inspect.signature(constructor)
    calls = list[inspect.BoundArguments]()

    @wraps(constructor)
    def recording(*args: Any, **options: Any) -> None:
        calls.append(signature.bind(*args, **options))
        constructor(*args, **options)

    owner.__init__ = recording  # type: ignore[misc]
    try:
        yield calls
    finally:
        owner.__init__ = constructor  # type: ignore[misc]


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    """Say whether a function takes keywords of any name."""
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
