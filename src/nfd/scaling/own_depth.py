"""Starts that a constructor itself lets depend on depth, as GPT-2 does by 1/sqrt(2L): kept where the rule has none."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from nfd.scaling.entries import Base, Entry, Start
from nfd.scaling.model import listed
from nfd.scaling.roles import Anatomy

_BEYOND_CHANCE = 6.0  # standard errors
_LEAST = math.log(1.05)


def with_own_depth(
    entries: Mapping[str, Entry], structure: Anatomy, base: Base, as_deep: Base
) -> tuple[dict[str, Entry], list[str]]:
    """Entries that begin as in ``as_deep``, an instance as wide as the base and as deep as the model; and a note."""
    kept = {}
    for name, t in structure.tensors.items():
        shallow, deep = (instance.start(t, structure.blocks) for instance in (base, as_deep))
        if _differ(shallow, deep, base.of(t, structure.blocks).parameter.numel()):
            kept[name] = replace(entries[name], start=deep)
    notes = [f"The constructor begins {listed([*kept], 3)} by depth; they begin as in a model of this depth."]
    return {**entries, **kept}, notes if kept else []


def _differ(shallow: Start, deep: Start, numbers: int) -> bool:
    """Whether two starts differ by more than chance, each measured in so many numbers or more."""
    if shallow.kept or deep.kept:
        return False
    if shallow.constant is not None or deep.constant is not None:
        return shallow.constant != deep.constant
    error = 1 / math.sqrt(numbers)  # of the logarithm of the ratio of two standard deviations
    return abs(math.log(deep.std / shallow.std)) > max(_BEYOND_CHANCE * error, _LEAST)
