"""The matrices of a model that layers without stored weights can replace, and why the others stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from nfd.core.errors import InputError
from nfd.nets.linear_map import LinearMap, linear_maps
from nfd.scaling.held import Held, held_by
from nfd.scaling.model import block_of, blocks_of, matches, modules
from nfd.scaling.plan import Plan
from nfd.scaling.rules import is_spectral

_HOOKS = (  # of modules and of tensors, as PyTorch keeps them
    "forward_pre_hook",
    "forward_hook",
    "backward_pre_hook",
    "backward_hook",
    "post_accumulate_grad_hook",
    "state_dict_pre_hook",
    "state_dict_hook",
    "load_state_dict_pre_hook",
    "load_state_dict_post_hook",
)
_FORWARD = "a forward of its own"


class Reason(StrEnum):
    """Why a matrix is left as it is."""

    NARROW = "not wide on both sides"
    OUTSIDE = "no linear map in a block"
    UNNAMED = "where= does not name it"
    FROZEN = "does not train"
    UNSTORED = "has no stored weights already"
    TIED = "its weight is tied to that of another module"
    COMPUTED = "its weight is computed from other tensors"
    GROUPED = "it is a convolution with groups, which are matrices of their own; write it as several convolutions"
    ATTENTION = "its attention adds keys of its own, or reads weights in a way of its own"
    OTHER = "it is no linear map of its own"
    KEPT = "it begins in a way of its own"
    HOOKED = "code hooks into it, which no layer in its place would call"
    ELEMENTWISE = "its optimizer acts on every entry of a matrix"

    @property
    def is_obstacle(self) -> bool:
        """Whether the matrix is wide and was selected, but has to be stored all the same."""
        return self not in (Reason.NARROW, Reason.OUTSIDE, Reason.UNNAMED, Reason.FROZEN, Reason.UNSTORED)


@dataclass(frozen=True)
class Candidate:
    """A tensor of two or more dimensions, and why no layer stands in for it; ``reason`` is None where one does.

    ``owner`` is the module that holds it; ``linear`` is the tensor as a linear map, None where it is none; ``hooks``
    are named where they are the reason.
    """

    name: str
    shape: tuple[int, ...]
    owner: nn.Module | None
    linear: LinearMap | None
    reason: Reason | None
    hooks: tuple[str, ...] = ()


def candidates(model: nn.Module, plan: Plan | None, patterns: Sequence[str]) -> list[Candidate]:
    """Every tensor of two or more dimensions, by canonical name, with the decision of what a layer stands in for.

    Wide are tensors that are hidden, inner or outer by the plan, and linear maps in residual blocks where there is
    none. Those that ``patterns`` name and that train are replaced, unless there is an obstacle.
    """
    parts, held = modules(model), held_by(model)
    maps = {f"{name}.{own.key}".lstrip("."): own for name, part in parts.items() for own in linear_maps(part)}
    held |= {name: Held(tuple(own.weight.shape), (own.weight,)) for name, own in maps.items() if name not in held}
    wide = _wide_in_blocks(model, parts, maps) if plan is None else _wide_by_plan(plan, maps)
    chosen = []
    for name, own in held.items():
        if len(own.shape) < 2:
            continue
        place = name.rpartition(".")[0]
        owner, linear = parts.get(place), maps.get(name)
        if not own.is_stored:
            reason: Reason | None = Reason.UNSTORED
        elif name not in wide:
            reason = Reason.OUTSIDE if plan is None else Reason.NARROW
        elif not any(matches(place, pattern) for pattern in patterns):
            reason = Reason.UNNAMED
        elif not own.is_trained:
            reason = Reason.FROZEN
        else:
            reason = _obstacle(parts, owner, linear) or (None if plan is None else _obstacle_by_plan(plan, name))
        hooks = () if reason is not None or linear is None else _hooks_of(linear)
        chosen.append(Candidate(name, own.shape, owner, linear, Reason.HOOKED if hooks else reason, hooks))
    return chosen


def wide_maps(model: nn.Module, plan: Plan | None, patterns: Sequence[str]) -> dict[str, LinearMap]:
    """The linear maps to replace, by the canonical name of their weights.

    Raises:
        ValueError: naming matrices that are wide and that no layer can stand in for; also where there are none.
    """
    return replaceable(candidates(model, plan, patterns), plan, patterns)


def replaceable(chosen: Sequence[Candidate], plan: Plan | None, patterns: Sequence[str]) -> dict[str, LinearMap]:
    """Those of the candidates that are replaced; ValueError as by ``wide_maps``."""
    obstacles = {own.name: own for own in chosen if own.reason is not None and own.reason.is_obstacle}
    for name, own in obstacles.items():
        if plan is not None and own.reason is Reason.ELEMENTWISE:
            plan.law_for(name).check_deferred(name)
    if obstacles:
        several = "; ".join(": ".join([repr(name), str(own.reason), *own.hooks]) for name, own in obstacles.items())
        raise InputError(f"No layer can stand in for these matrices; name others by where=. {several}.")
    wide = {own.name: own.linear for own in chosen if own.reason is None and own.linear is not None}
    if not wide:
        hint = "" if plan is not None else " Without plan= only residual blocks are looked at."
        raise InputError(f"where={list(patterns)!r} names no matrix that is wide on both sides and trains.{hint}")
    return wide


def _wide_in_blocks(model: nn.Module, parts: Mapping[str, nn.Module], maps: Mapping[str, LinearMap]) -> set[str]:
    """Weights of linear maps in residual blocks, or of a model that is itself a linear map or an attention."""
    blocks = blocks_of(model, None)
    grouped = {f"{name}.weight".lstrip(".") for name, part in parts.items() if _is_grouped(part)}
    names = {*maps, *grouped}
    if blocks:
        return {name for name in names if block_of(name, blocks) is not None}
    return names if isinstance(model, nn.MultiheadAttention) else {name for name in names if "." not in name}


def _wide_by_plan(plan: Plan, maps: Mapping[str, LinearMap]) -> set[str]:
    """Weights that a plan calls hidden, inner or outer, and whose sides both grow with width."""
    wide = set()
    for name, entry in plan.entries.items():
        grows = entry.ratios.fan_in != 1 and entry.ratios.fan_out != 1
        both = entry.matrix is not None if len(entry.shape) == 2 else name in maps or grows
        if is_spectral(entry.role) and both:
            wide.add(name)
    return wide


def _obstacle(parts: Mapping[str, nn.Module], owner: nn.Module | None, linear: LinearMap | None) -> Reason | None:
    """Why a matrix must keep its weights; None where it need not."""
    if linear is None and isinstance(owner, nn.MultiheadAttention):
        return Reason.ATTENTION
    if linear is None:
        return Reason.GROUPED if _is_grouped(owner) else Reason.OTHER
    weight = linear.module._parameters.get(linear.key)
    if weight is None:
        return Reason.COMPUTED
    if sum(any(p is weight for p in part._parameters.values()) for part in parts.values()) > 1:
        return Reason.TIED
    around = [part for part in parts.values() if any(child is owner for child in part._modules.values())]
    if any(isinstance(part, nn.MultiheadAttention) and not linear_maps(part) for part in around):
        return Reason.ATTENTION
    return None


def _obstacle_by_plan(plan: Plan, name: str) -> Reason | None:
    if not plan.law_for(name).equivariant:
        return Reason.ELEMENTWISE
    return Reason.KEPT if plan.entries[name].start.kept else None


def hooks_on(holder: nn.Module | Tensor) -> tuple[str, ...]:
    """What would be lost with a module or a weight: its hooks, and a ``forward`` that stands in place of its own."""
    named = [(kind, hook) for kind in _HOOKS for hook in (getattr(holder, f"_{kind}s", None) or {}).values()]
    hooks = [f"{kind.replace('_', ' ')} {getattr(hook, '__qualname__', type(hook).__name__)}" for kind, hook in named]
    return (*hooks, _FORWARD) if "forward" in vars(holder) else tuple(hooks)


def _hooks_of(linear: LinearMap) -> tuple[str, ...]:
    """Of a map and its weight. An attention stays the same module, so that its own hooks stay too."""
    is_kept = isinstance(linear.module, nn.MultiheadAttention)
    return hooks_on(linear.weight) + tuple(h for h in hooks_on(linear.module) if not is_kept or h == _FORWARD)


def _is_grouped(module: nn.Module | None) -> bool:
    """Whether a module is a convolution with groups of several channels."""
    return isinstance(module, _ConvNd) and module.groups > 1 and module.weight.shape[1] > 1
