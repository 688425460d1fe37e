"""Plain data and functions by name as bytes, for other processes: JSON, which holds nothing that could run.

Numbers, texts, None, lists and dictionaries are JSON's own (infinities and nan as Python writes them; tuples come back
as lists); bytes and NumPy arrays are marked.
"""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

_BYTES, _ARRAY = "__bytes__", "__array__"


def packed(value: Any) -> bytes:
    """``value`` as bytes; TypeError when it is not plain data."""
    return json.dumps(value, default=_marked).encode()


def unpacked(data: bytes) -> Any:
    """What ``packed`` was given."""
    return json.loads(data, object_hook=_meant)


def name_of(work: Callable[..., Any]) -> str:
    """``module:function``; TypeError when it cannot be found by this name."""
    name = f"{getattr(work, '__module__', None)}:{getattr(work, '__qualname__', None)}"
    try:
        found = named(name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if found is not work:
        raise TypeError(f"{name} is not it")
    return name


def named(name: str) -> Any:
    """The function called ``module:function``."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _marked(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        raw = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_ARRAY: [value.dtype.str, list(value.shape), raw]}
    raise TypeError(f"{type(value).__name__} is not plain data")


def _meant(value: dict[str, Any]) -> Any:
    if _BYTES in value:
        return base64.b64decode(value[_BYTES])
    if _ARRAY in value:
        kind, shape, raw = value[_ARRAY]
        return np.frombuffer(base64.b64decode(raw), dtype=np.dtype(kind)).reshape(shape).copy()
    return value
