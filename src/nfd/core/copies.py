"""``copied``: a function with its own state, so that two trainings do not share what it counts."""

from __future__ import annotations

import copy
import functools
from types import CellType, FunctionType
from typing import Any

from nfd.core.fingerprint import logs_of


def copied(function: Any) -> Any:
    """Copy a function with its state, which may be in attributes, bound arguments or a closure.

    What cannot be copied, such as an open file, is shared; so are global variables, and logs in a
    closure, which the function never reads.
    """
    return _copied(function, {})


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """Copy a value; ``memo`` is that of ``copy.deepcopy``: copies by the id of what they are of."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, functools.partial):
        arguments = [_copied(argument, memo) for argument in value.args]
        keywords = {name: _copied(bound, memo) for name, bound in value.keywords.items()}
        return functools.partial(_copied(value.func, memo), *arguments, **keywords)
    if isinstance(value, FunctionType) and value.__closure__:
        return _with_own_closure(value, memo)
    try:
        return copy.deepcopy(value, memo)
    # whatever an object raises that is not data
    except Exception:
        return value


def _with_own_closure(function: FunctionType, memo: dict[int, Any]) -> FunctionType:
    """Copy a function whose closure may hold a function of the same closure, or the function."""
    logs = logs_of(function)
    cells = list[CellType]()
    to_fill = list[tuple[CellType, CellType]]()
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name not in logs and id(cell) not in memo:
            memo[id(cell)] = CellType()
            to_fill.append((memo[id(cell)], cell))
        cells.append(cell if name in logs else memo[id(cell)])
    separate = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells),
    )
    memo[id(function)] = separate
    functools.update_wrapper(separate, function)
    separate.__dict__.pop("__wrapped__")
    separate.__dict__.update(vars(function))
    separate.__kwdefaults__ = function.__kwdefaults__
    for empty, cell in to_fill:
        try:
            content = cell.cell_contents
        # a function that closes over a name that is not set yet
        except ValueError:
            continue
        empty.cell_contents = _copied(content, memo)
    return separate
