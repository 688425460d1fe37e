"""The neutral table of a plan: what any framework needs to train by it, as plain data.

``plan.json`` holds it beside the plan, and every export is written from it
(docs/howto/other-frameworks.md lists the fields). A row stands for all tensors whose names differ
only in the numbers of blocks, where their factors agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from nfd.scaling.model import block_of, in_any_block, numberless, unwrapped
from nfd.scaling.plan_groups import run_factor, scale_of
from nfd.scaling.rules import Role

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan

# Of the table, and so of plan.json. It rises where a reader of the old one would be wrong.
VERSION = 1

Init = Literal["drawn", "constant", "kept"]
ForwardKind = Literal["attention", "output", "branch"]

# Parts that wrappers put before a name (DDP's ``module``, ``_orig_mod`` of a compiled model), or
# after the number of a block (``_checkpoint_wrapped_module``).
_BEFORE = r"(?:(?:module|_\w+)\.)*"
_AFTER_NUMBER = r"(?:_\w+\.)*"


@dataclass(frozen=True)
class Numbers:
    """What a plan says of one tensor; tensors of a row share it.

    Attributes:
        role, dimensions: of the tensor in the network, and how many dimensions it has.
        optimizer: the law of the optimizer that steps it.
        init: whether its initial weights are drawn, constant, or as the constructor makes them.
        init_value: their standard deviation, the constant, or the RMS to which they are scaled;
            None where they stay.
        init_factor: the size of initial entries over that in the base.
        factors: by setting of the optimizer, such as ``lr`` and ``eps``, what multiplies the value
            that was tuned at the base.
        half_lives: by setting, such as ``betas``, what multiplies the half-life of each of its
            running means: ``beta ** (1 / factor)``. Only plans of a run have it.
    """

    role: Role
    dimensions: int
    optimizer: str
    init: Init
    init_value: float | None
    init_factor: float
    factors: Mapping[str, float]
    half_lives: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Group:
    """A row of the table.

    Attributes:
        pattern: the name of its tensors, ``*`` for the number of a block.
        regex: fits the names of its tensors and no others of the plan, also behind wrappers.
        tensors: how many of the plan's it fits.
        numbers: what the plan says of each.
    """

    pattern: str
    regex: str
    tensors: int
    numbers: Numbers

    def plain(self) -> dict[str, Any]:
        """Return the row as JSON holds it."""
        names = {"pattern": self.pattern, "regex": self.regex, "tensors": self.tensors}
        return names | asdict(self.numbers)


@dataclass(frozen=True)
class ForwardFactor:
    """A factor of the forward pass that no initial weights and rates can stand for.

    Attributes:
        kind: on the logits of attention, on the output of the network, or of a residual branch.
        at: the module whose output it multiplies; of attention the matrix of its queries. ``*``
            stands for the number of a block.
        factor: what the model's output there has to be multiplied by.
        places: how many modules it is for.
    """

    kind: ForwardKind
    at: str
    factor: float
    places: int


@dataclass(frozen=True)
class NeutralTable:
    """The table of a plan."""

    groups: list[Group] = field(default_factory=list)
    forward: list[ForwardFactor] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """Return the table as ``plan.json`` holds it."""
        return {
            "version": VERSION,
            "groups": [group.plain() for group in self.groups],
            "forward": [asdict(factor) for factor in self.forward],
        }


def neutral_table(plan: Plan) -> NeutralTable:
    """Write a plan as patterns of names with factors."""
    return NeutralTable(_groups(plan), _forward_factors(plan))


# ---- tensors


def _groups(plan: Plan) -> list[Group]:
    """Join tensors whose names differ in numbers only, where their numbers in the plan agree."""
    numbers = {name: numbers_of(plan, name) for name in plan.entries}
    without_wrappers = {unwrapped(name): of_name for name, of_name in numbers.items()}
    # A module of the user's may itself be called "module": then the names stay.
    if len(without_wrappers) == len(numbers):
        numbers = without_wrappers
    blocks = {unwrapped(block) for block in plan.blocks}
    kinds = _by(numberless, numbers)
    groups: list[Group] = []
    for kind, names in kinds.items():
        rivals = _rivals(kind, kinds)
        if _is_one(rivals, numbers) and len(rivals) == len(names):
            groups.append(Group(kind, _regex_of(kind), len(names), numbers[names[0]]))
            continue
        # Layers of a block have numbers too, as those of an nn.Sequential, and differ.
        for pattern, members in _by(partial(in_any_block, blocks=blocks), names).items():
            groups += _groups_at(pattern, members, rivals, numbers)
    return groups


def _by(kind_of: Callable[[str], str], names: Iterable[str]) -> dict[str, list[str]]:
    """Sort names by their kind."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of(name), []).append(name)
    return kinds


def _rivals(kind: str, kinds: Mapping[str, list[str]]) -> list[str]:
    """Find the tensors that a pattern fits; one number stands for all, as models have many."""
    regex = _regex_of(kind)
    names = []
    for other, names_of_kind in kinds.items():
        if re.search(regex, other.replace("*", "0")):
            names += names_of_kind
    return names


def _is_one(names: Sequence[str], numbers: Mapping[str, Numbers]) -> bool:
    """Whether a plan says the same of all these tensors."""
    return all(numbers[name] == numbers[names[0]] for name in names)


def _groups_at(
    pattern: str, names: Sequence[str], rivals: Iterable[str], numbers: Mapping[str, Numbers]
) -> list[Group]:
    """Write a row for the tensors of a pattern, or for each where that would fit others."""
    regex = _regex_of(pattern)
    fitting = [name for name in rivals if re.search(regex, name)]
    if _is_one(fitting, numbers) and len(fitting) == len(names):
        return [Group(pattern, regex, len(names), numbers[names[0]])]
    groups = []
    for name in names:
        regex = _regex_of(name)
        fits = re.compile(regex).search
        if any(rival != name and fits(rival) for rival in rivals):
            # It is the end of another name behind ``module``.
            regex = f"^{re.escape(name)}$"
        groups.append(Group(name, regex, 1, numbers[name]))
    return groups


def _regex_of(pattern: str) -> str:
    """Write a pattern of a name as a regular expression that skips the parts of wrappers."""
    *parts, last = pattern.split(".")
    text = ""
    for part in parts:
        is_number = part == "*" or part.isdigit()
        text += _regex_of_part(part) + r"\." + (_AFTER_NUMBER if is_number else "")
    return f"^{_BEFORE}{text}{_regex_of_part(last)}$"


def _regex_of_part(part: str) -> str:
    return "[0-9]+" if part == "*" else re.escape(part)


def numbers_of(plan: Plan, name: str) -> Numbers:
    """Read what a plan says of a tensor."""
    entry = plan.entries[name]
    law = plan.law_for(name)
    factors = {"lr": plan.rate(name) * run_factor(plan, "rate", law)}
    half_lives = {}
    for setting in law.settings:
        # Decay that is normalised with the gradient has no factor: ``OptimizerLaw.check_decay``.
        if setting.follows == "weight decay" and not (law.decoupled or law.is_linear):
            continue
        scale = scale_of(plan, name, setting)
        if scale.half_lives:
            half_lives[setting.name] = scale.half_lives
        elif setting.follows in ("epsilon", "weight decay") or scale.factor != 1:
            factors[setting.name] = scale.factor
    init, value = _initial_weights(plan, name)
    return Numbers(
        role=entry.role,
        dimensions=len(entry.shape),
        optimizer=law.name,
        init=init,
        init_value=value,
        init_factor=plan.start_factor(name),
        factors=factors,
        half_lives=half_lives,
    )


def _initial_weights(plan: Plan, name: str) -> tuple[Init, float | None]:
    """Say how a tensor is initialised, and the number for it, as ``Plan.apply_`` does."""
    start = plan.entries[name].start
    if start.kept:
        is_scaled = bool(plan.std(name)) and plan.start_factor(name) != 1
        return "kept", plan.std(name) if is_scaled else None
    constant = plan.constant(name)
    if constant is not None:
        return "constant", constant
    return "drawn", plan.std(name)


# ---- the forward pass


def _forward_factors(plan: Plan) -> list[ForwardFactor]:
    """List the factors of the forward pass, a row for all blocks where they agree."""
    places = dict[tuple[ForwardKind, str, float], int]()
    place: tuple[ForwardKind, str, float]
    for module, factor in plan.multipliers.items():
        is_inside = block_of(f"{module}.", plan.blocks) is not None
        place = ("branch" if is_inside else "output", numberless(unwrapped(module)), factor)
        places[place] = places.get(place, 0) + 1
    for query, ratio in plan.logits.items():
        place = ("attention", numberless(unwrapped(query)), 1 / ratio)
        places[place] = places.get(place, 0) + 1
    return [ForwardFactor(*place, count) for place, count in places.items()]
