"""Replace the wide matrices of any model by layers without stored weights, and back."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, get_args

import torch
from rich.table import Column
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nfd.core.checks import check_choice, check_patterns, check_seed
from nfd.core.errors import InputError, InputTypeError
from nfd.core.modes import gradients
from nfd.core.names import BasisName
from nfd.core.random import derive
from nfd.core.tables import as_text, table_of
from nfd.scaling.base import start_of
from nfd.scaling.find_law import law_of
from nfd.scaling.held import held_by
from nfd.scaling.model import block_of, blocks_of, matches, modules, numberless
from nfd.scaling.plan import Plan
from nfd.scaling.rules import SPECTRAL
from nfd.wide.layers import DeferredLinear, FactoredLinear, StructuredLinear
from nfd.wide.stand_ins import DeferredAttention, DeferredConv, LinearMap, linear_maps, placed

UnstoredWeights = Literal["structured", "deferred"]
# Characters across the printed table, at most.
_WIDTH = 150


@gradients()
def defer(
    model: nn.Module,
    plan: Plan | None = None,
    *,
    weights: UnstoredWeights = "structured",
    where: str | Sequence[str] = "**",
    resolution: float | None = None,
    seed: int = 0,
) -> nn.Module:
    """Replace the wide matrices of a model by layers that do not store their weights.

    It replaces ``nn.Linear``, the ``Conv1D`` of Hugging Face, ``nn.Conv1d`` and ``nn.Conv2d``
    without groups, and the projections of ``nn.MultiheadAttention``. With a plan these are the
    matrices that it calls hidden, inner or outer; otherwise the matrices in residual blocks. A new
    layer is initialised with the standard deviation of the plan, or else of the weights that it
    replaces.
    Biases and all other tensors stay; with a plan they are initialised as by ``plan.apply_``. Train
    the model with ``plan.make_optimizer``, or with ``nfd.SGD`` or ``nfd.Muon``.

    Args:
        model: any module, changed in place. On the meta device, where a model of any width takes no
            memory, it needs a plan; tensors that stay are then made on the CPU.
            ``nfd.meta_matrices`` makes one with its buffers.
        plan: of this model, for an optimizer that acts on matrices as a whole: ``"sgd"`` or a kind
            of ``"muon"``.
        weights: ``"structured"`` for the limit of large width at O(n log n) a product, or
            ``"deferred"`` for the exact law of Gaussian weights.
        where: pattern or patterns of names of modules; others stay dense. In patterns ``*`` is one
            part of a name, a first or last ``**`` any number.
        resolution: of structured layers, below which they leave out directions; None for none.
        seed: of all random numbers.

    Returns:
        the model, or the layer if the model is itself a linear map. Its attribute ``deferral`` is
        the table of all matrices, with the reasons why some stay, as ``nfd.deferral`` returns it.

    Raises:
        TypeError, ValueError: naming the argument; matrices whose weights are tied, read by another
            module, or hooked into, so that no layer can stand in for them; and buffers on the meta
            device, which no plan restores.

    Source: docs/mathematics/structured.md.

    Example::

        with nfd.meta_matrices():
            wide = make_model(4096, 2)
        plan = nfd.plan(
            wide, (16, 2), make_model=make_model, rule="complete-p", optimizer="sgd", sample=x
        )
        wide = nfd.defer(wide, plan)
        optimizer = plan.make_optimizer(wide, lr=0.1)
    """
    if resolution is not None and weights == "deferred":
        raise InputError(
            f"resolution is for weights='structured'; got {resolution!r} for 'deferred'. Drop it."
        )
    check_choice("weights", weights, get_args(UnstoredWeights))
    seed = check_seed(seed)
    result, maps = _examined(model, plan, where)
    _check_replaceable(model, plan, where, result, maps)
    # named_modules has the names of wrappers, by which a module can be set; maps has none of them.
    places = {id(module): name for name, module in model.named_modules()}
    for replacement in result.replaced:
        name = replacement.name
        linear = maps[name]
        options: dict[str, Any] = {
            "std": _std(linear) if plan is None else plan.std(name),
            "seed": derive(
                seed, "defer", name.rpartition(".")[0] if linear.key == "weight" else name
            ),
            "dtype": linear.weight.dtype,
            "device": "cpu" if linear.weight.is_meta else linear.weight.device,
        }
        layer: FactoredLinear
        if weights == "deferred":
            layer = DeferredLinear(*linear.features, **options)
        else:
            # What reads the residual stream sees fewer directions than what is inside of a branch.
            inner = plan is not None and plan.entries[name].role == "inner"
            basis: BasisName = "inputs" if inner else "auto"
            layer = StructuredLinear(
                *linear.features, basis=basis, resolution=resolution, **options
            )
        layer.place = name
        model = placed(model, places[id(linear.module)], linear.stand_in(layer))
    if plan is not None:
        plan.apply_(model, seed)
    model.__dict__["deferral"] = result
    return model


def _std(linear: LinearMap) -> float:
    """The root mean square of the weights that a linear map has."""
    return float(linear.weight.detach().double().square().mean().sqrt())


def _check_replaceable(
    model: nn.Module,
    plan: Plan | None,
    where: str | Sequence[str],
    result: Deferral,
    maps: Mapping[str, LinearMap],
) -> None:
    """Raise InputError where a model cannot be deferred, or where nothing would be replaced."""
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise InputError(
            "model has buffers on the meta device, whose numbers no plan restores: "
            f"{', '.join(lost[:3])}. Make the model under nfd.meta_matrices() instead, which "
            "leaves buffers their numbers."
        )
    # Only the first of each group of matrices whose names differ by numbers.
    obstacles: dict[str, str] = {}
    for row in result.replacements:
        if row.reason is not None and row.reason.is_obstacle:
            obstacles.setdefault(numberless(row.name), f"{row.name!r}: {row.reason}")
    if obstacles:
        raise InputError(
            "No layer can stand in for these matrices; name others by where=. "
            f"{'; '.join(obstacles.values())}."
        )
    if not result.replaced:
        hint = "" if plan is not None else " Without plan= only residual blocks are looked at."
        raise InputError(
            f"where={where!r} names no matrix that is wide on both sides and trains.{hint}"
        )
    if plan is None and any(maps[row.name].weight.is_meta for row in result.replaced):
        raise InputError(
            "model is on the meta device, so it has no initial weights whose scale could be "
            "copied. Pass plan=."
        )


def store_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """Replace all layers without stored weights by dense modules that have the same weights.

    It is the way back from ``nfd.defer``: a layer becomes a module of the kind that it replaced,
    and ``nn.Linear`` where it replaced none. It takes the memory of the dense model.

    Args:
        model: changed in place. Optimizers must be made again.
        seed: of the parts of deferred matrices that were not drawn yet.

    Returns:
        the model, or the dense module where the model is itself such a layer.

    Raises:
        TypeError, ValueError: naming the argument, layers whose backward pass goes through another
            matrix, and hooks on layers, which would be lost.

    Example::

        dense = nfd.store_weights(nfd.defer(make_model(64, 2)))
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    seed = check_seed(seed)
    for name, module in model.named_modules():
        if isinstance(module, FactoredLinear | DeferredConv) and _is_hooked(module):
            raise InputError(
                f"{name or 'model'!r} has hooks that would be lost with it. Remove them, and "
                "register them on the stored module."
            )
    for name, module in model.named_modules():
        if isinstance(module, DeferredAttention):
            for key, layer in module.layers.items():
                module.store(key, _weights(layer, f"{name}.{key}", seed))
    layers = {
        name: module for name, module in model.named_modules() if isinstance(module, FactoredLinear)
    }
    for name, layer in layers.items():
        with torch.device("meta"):
            original = layer.original or nn.Linear(
                layer.in_features, layer.out_features, layer.bias is not None
            )
        (linear,) = linear_maps(original)
        stored = linear.store(_weights(layer, name, seed), layer.bias).train(layer.training)
        # In a convolution the layer is a part, and the whole is replaced.
        around = name.rpartition(".")[0]
        is_part = isinstance(model.get_submodule(around), DeferredConv)
        model = placed(model, around if is_part else name, stored)
    for module in model.modules():
        if isinstance(module, DeferredAttention):
            # From now on it reads its weights again.
            module.__class__ = nn.MultiheadAttention  # type: ignore[assignment]
    model.__dict__.pop("deferral", None)
    return model


def _weights(layer: FactoredLinear, name: str, seed: int) -> Tensor:
    """Return the weights that a layer has now; raise InputError where it has two matrices."""
    W = layer.dense_weights(seed)
    if isinstance(W, Tensor):
        return W
    raise InputError(
        f"model has {name!r} with feedback={layer.feedback!r}: its backward pass goes through "
        "another matrix, which no dense module has."
    )


# ---- what is replaced, and what stays and why


@dataclass(frozen=True)
class Replacement:
    """One matrix of a model, and what ``nfd.defer`` does with it.

    Attributes:
        name: of the tensor. kind: of its module. shape: as it is stored.
        reason: why it stays; None if it is replaced.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    reason: Reason | None


@dataclass(frozen=True, repr=False)
class Deferral:
    """The result of ``nfd.deferral``: what ``nfd.defer`` does with each matrix of a model.

    Print it to see the table.

    Attributes:
        replacements: one for every tensor of two or more dimensions.

    Example::

        deferral = nfd.deferral(make_model(64, 2))
        [row for row in deferral.table if row["reason"]]  # the matrices that stay, and why
    """

    replacements: tuple[Replacement, ...]

    @property
    def replaced(self) -> tuple[Replacement, ...]:
        """The matrices that layers without stored weights replace."""
        return tuple(row for row in self.replacements if row.reason is None)

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per matrix.

        ``reason`` is the name of the ``Reason`` why it stays, or None if it is replaced.
        """
        rows = []
        for row in self.replacements:
            reason = None if row.reason is None else row.reason.name
            rows.append(vars(row) | {"shape": list(row.shape), "reason": reason})
        return rows

    def __str__(self) -> str:
        table = table_of(
            Column("matrix", no_wrap=True, overflow="fold"), "module", "shape", "replaced"
        )
        alike = Counter(
            dataclasses.replace(row, name=numberless(row.name)) for row in self.replacements
        )
        for row, count in alike.items():
            times = f"{count} x " if count > 1 else ""
            size = " x ".join(map(str, row.shape))
            replaced = "yes" if row.reason is None else row.reason.value
            table.add_row(f"{times}{row.name}", row.kind, size, replaced)
        return (
            f"{as_text(table, _WIDTH)}\n{len(self.replaced)} of {len(self.replacements)} matrices "
            "replaced."
        )

    __repr__ = __str__


@gradients()
def deferral(
    model: nn.Module, plan: Plan | None = None, *, where: str | Sequence[str] = "**"
) -> Deferral:
    """List the matrices that ``nfd.defer`` would replace in a model, and why not the others.

    The model does not change.

    Args:
        model, plan, where: as in ``nfd.defer``; the model may be on the meta device.

    Raises:
        TypeError, ValueError: naming the argument.

    Source: docs/howto/wide.md.

    Example::

        print(nfd.deferral(make_model(64, 2)))
    """
    result, _ = _examined(model, plan, where)
    return result


# ---- the matrices of a model that layers can replace, and why the others stay


class Reason(StrEnum):
    """Why a matrix is left as it is."""

    NARROW = "not wide on both sides, or no linear map in a block"
    UNNAMED = "where= does not name it"
    FROZEN = "does not train"
    UNSTORED = "has no stored weights already"
    TIED = "its weight is tied to that of another module"
    OTHER = (
        "it is not one linear map, as in a stack of experts, a convolution with groups or an "
        "attention that adds keys"
    )
    KEPT = "it begins in a way of its own"
    HOOKED = (
        "code hooks into it, or replaced its forward, and would not be called by a layer in its "
        "place"
    )
    ELEMENTWISE = (
        "its optimizer acts on every entry of a matrix; plan with optimizer='sgd' or a kind of "
        "'muon'"
    )

    @property
    def is_obstacle(self) -> bool:
        """Whether the matrix is wide and was selected, but has to be stored all the same."""
        return self not in (Reason.NARROW, Reason.UNNAMED, Reason.FROZEN, Reason.UNSTORED)


def _examined(
    model: nn.Module, plan: Plan | None, where: str | Sequence[str]
) -> tuple[Deferral, dict[str, LinearMap]]:
    """Decide what becomes of every tensor of two or more dimensions.

    Also returns the linear maps by their canonical names. Wide are tensors that are hidden, inner
    or outer by the plan, and linear maps in residual blocks where there is none. Those that
    ``where`` names and that train are replaced, unless there is an obstacle.
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if plan is not None and not isinstance(plan, Plan):
        raise InputTypeError(f"plan must be an nfd.Plan; got {type(plan).__name__}.")
    checked = check_patterns("where", where)
    patterns = [checked] if isinstance(checked, str) else checked or []
    parts = modules(model)
    maps: dict[str, LinearMap] = {}
    for name, part in parts.items():
        for linear in linear_maps(part):
            maps[f"{name}.{linear.key}".lstrip(".")] = linear
    wide = _wide_in_blocks(model, maps) if plan is None else _wide_by_plan(plan, maps)
    rows = []
    for name, tensor in held_by(model).items():
        if len(tensor.shape) < 2:
            continue
        place = name.rpartition(".")[0]
        owner = parts.get(place)
        reason: Reason | None
        if tensor.std is not None:
            reason = Reason.UNSTORED
        elif name not in wide:
            reason = Reason.NARROW
        elif not any(matches(place, pattern) for pattern in patterns):
            reason = Reason.UNNAMED
        elif not tensor.is_trained:
            reason = Reason.FROZEN
        else:
            reason = _obstacle(parts, owner, maps.get(name))
            if reason is None and plan is not None:
                reason = _obstacle_by_plan(plan, name)
            elif reason is None and _has_start_of_its_own(maps[name].weight):
                reason = Reason.KEPT
        kind = "" if owner is None else type(owner).__name__
        rows.append(Replacement(name, kind, tensor.shape, reason))
    return Deferral(tuple(rows)), maps


def _wide_in_blocks(model: nn.Module, maps: Mapping[str, LinearMap]) -> set[str]:
    """Weights of linear maps in residual blocks.

    In a model without blocks, the model's weights if it is itself a linear map or an attention.
    """
    blocks = blocks_of(model, None)
    if blocks:
        return {name for name in maps if block_of(name, blocks) is not None}
    if isinstance(model, nn.MultiheadAttention):
        return set(maps)
    return {name for name in maps if "." not in name}


def _wide_by_plan(plan: Plan, maps: Mapping[str, LinearMap]) -> set[str]:
    """Weights that a plan calls hidden, inner or outer, and whose sides both grow with width."""
    wide = set()
    for name, entry in plan.entries.items():
        grows = entry.ratios.fan_in != 1 and entry.ratios.fan_out != 1
        both = entry.matrix is not None if len(entry.shape) == 2 else name in maps or grows
        if entry.role in SPECTRAL and both:
            wide.add(name)
    return wide


def _obstacle(
    parts: Mapping[str, nn.Module], owner: nn.Module | None, linear: LinearMap | None
) -> Reason | None:
    """Say why a matrix must keep its weights by what the model is; None where it need not."""
    if linear is None:
        return Reason.OTHER
    attentions = [part for part in parts.values() if isinstance(part, nn.MultiheadAttention)]
    for attention in attentions:
        # An attention that reads its weights itself also reads its output projection's.
        if owner is attention.out_proj and not linear_maps(attention):
            return Reason.OTHER
    weight = linear.weight
    module = linear.module
    holders = 0
    for part in parts.values():
        holders += any(parameter is weight for parameter in part._parameters.values())
    if holders > 1:
        return Reason.TIED
    # An attention stays, with its hooks, but gets another forward.
    is_hooked = "forward" in vars(module) if module in attentions else _is_hooked(module)
    return Reason.HOOKED if is_hooked or _is_hooked(weight) else None


def _obstacle_by_plan(plan: Plan, name: str) -> Reason | None:
    """Say why a matrix must keep its weights by its plan; None where it need not."""
    if not plan.law_for(name).equivariant:
        has_rest = law_of(plan.optimizer).rest is not None
        is_outside = has_rest and block_of(name, plan.blocks) is None
        return Reason.NARROW if is_outside else Reason.ELEMENTWISE
    return Reason.KEPT if plan.entries[name].start.kept else None


def _has_start_of_its_own(weight: Tensor) -> bool:
    """Whether initial weights are no draw about zero: another constant, or about another mean."""
    if weight.is_meta:
        return False
    start = start_of(weight)
    return start.kept or bool(start.constant)


def _is_hooked(holder: nn.Module | Tensor) -> bool:
    """Whether code hooks into a module or a weight, or replaced its ``forward``."""
    kinds = (
        "forward_pre",
        "forward",
        "backward_pre",
        "backward",
        "post_accumulate_grad",
        "state_dict_pre",
        "state_dict",
        "load_state_dict_pre",
        "load_state_dict_post",
    )
    return "forward" in vars(holder) or any(
        getattr(holder, f"_{kind}_hooks", None) for kind in kinds
    )


# ---- models of any size, made without the numbers of their matrices


class meta_matrices(TorchFunctionMode):  # noqa: N801 - a context manager, named as torch.no_grad is
    """A context in which models of any width are built without memory for their matrices.

    Matrices are made on the meta device: they have shapes and no numbers. This applies to tensors
    of two or more dimensions that are made by ``torch.empty``, as in all layers of PyTorch and
    Hugging Face. Vectors and buffers keep their numbers: rotary tables, masks, running statistics.
    Under ``torch.device("meta")`` these would be lost. Pass the model to ``nfd.plan`` and
    ``nfd.defer``.

    Example::

        with nfd.meta_matrices():
            model = make_model(2**16, 4)
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if function is torch.empty and options.get("device") is None:
            tensor = function(*args, **{**options, "device": "meta"})
            if tensor.dim() > 1:
                return tensor
        return function(*args, **options)
