"""``nfd.defer`` and back: any model with layers without stored weights for its wide matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor, nn

from nfd.core.errors import InputError, check_choice, check_seed
from nfd.core.machine import bytes_of, gradients, memory_of
from nfd.core.names import BasisName
from nfd.core.random import derive
from nfd.core.tables import in_bytes
from nfd.nets.attention import DeferredAttention, reading
from nfd.nets.convolution import DeferredConv
from nfd.nets.deferral import Deferral, UnstoredWeights, check_model_and_plan, forecast, patterns_of
from nfd.nets.deferred import DeferredLinear
from nfd.nets.factored import FactoredLinear
from nfd.nets.linear_map import LinearMap, linear_maps, placed, replaced
from nfd.nets.structured import StructuredLinear
from nfd.nets.wide import candidates, hooks_on, replaceable
from nfd.scaling.plan import Plan

_LAYERS: dict[str, Callable[..., FactoredLinear]] = {"structured": StructuredLinear, "deferred": DeferredLinear}


@gradients()
def defer(
    model: nn.Module,
    plan: Plan | None = None,
    *,
    weights: UnstoredWeights = "structured",
    where: str | Sequence[str] = "**",
    samples: int | None = None,
    resolution: float | None = None,
    memory: str | int | None = None,
    seed: int = 0,
) -> nn.Module:
    """Replace the wide matrices of a model by layers that do not store their weights.

    It replaces ``nn.Linear``, the ``Conv1D`` of Hugging Face, ``nn.Conv1d`` and ``nn.Conv2d`` without groups, and the
    projections of ``nn.MultiheadAttention``. With a plan these are the matrices that it calls hidden, inner or outer;
    otherwise those in residual blocks. A new layer starts with the standard deviation of the plan, or with that of the
    weights that it replaces. Biases and all other tensors stay; with a plan they are initialised as by ``plan.apply_``.
    Train the model with ``plan.make_optimizer``, or with ``nfd.SGD`` or ``nfd.Muon``.

    Args:
        model: any module, changed in place. On the meta device, where a model of any width takes no memory, it needs a
            plan; tensors that stay are then made on the CPU. ``nfd.meta_matrices`` makes one with its buffers.
        plan: of this model, for an optimizer that acts on matrices as a whole: ``"sgd"`` or a kind of ``"muon"``.
        weights: ``"structured"`` for the limit of large width at O(n log n) a product, or ``"deferred"`` for the exact
            law of Gaussian weights.
        where: pattern or patterns of names of modules; others stay dense. In patterns ``*`` is one part of a name, a
            first or last ``**`` any number.
        samples: number of rows that pass through a layer in training (inputs times positions), to reserve memory at
            once.
        resolution: of the layers, below which they leave out directions; None for none.
        memory: bound on the memory of the layers after so many samples, such as ``"4 GiB"``; None for that of the
            machine.
        seed: of all random numbers.

    Returns:
        the model, or the layer if the model is itself a linear map. Its attribute ``deferral`` is the table of all
        matrices, with the reasons why some stay, as ``nfd.deferral`` returns it.

    Raises:
        TypeError, ValueError: naming the argument; matrices whose weights are tied, read by another module, or hooked
            into, so that no layer can stand in for them; and buffers on the meta device, which no plan restores.

    Source: docs/mathematics/structured.md.

    Example::

        with nfd.meta_matrices():
            wide = make_model(4096, 2)
        plan = nfd.plan(
            wide, rule="complete-p", make_model=make_model, base=(16, 2), optimizer="sgd", sample=x
        )
        wide = nfd.defer(wide, plan)
        optimizer = plan.make_optimizer(wide, lr=0.1)
    """
    layer_of = _LAYERS[check_choice("weights", weights, get_args(UnstoredWeights))]
    check_model_and_plan(model, plan)
    shared: dict[str, Any] = {} if resolution is None else {"resolution": resolution}
    patterns, seed = patterns_of(where), check_seed(seed)
    _check_buffers(model)
    chosen = candidates(model, plan, patterns)
    told = forecast(chosen, plan, weights, {}, samples=samples)
    maps = replaceable(chosen, plan, patterns)
    if samples is not None:
        _check_memory(told, samples, memory, next(iter(maps.values())).weight.device)

    def layer_for(name: str, linear: LinearMap) -> FactoredLinear:
        n_in, n_out = linear.features
        options = shared | ({"basis": _basis(plan, name)} if weights == "structured" else {})
        layer = layer_of(
            n_in,
            n_out,
            std=_std(linear) if plan is None else plan.std(name),
            seed=derive(seed, "defer", name.rpartition(".")[0] if linear.key == "weight" else name),
            dtype=linear.weight.dtype,
            device="cpu" if linear.weight.is_meta else linear.weight.device,
            **options,
        )
        if samples is not None:
            layer.reserve(samples)
        return layer

    model = replaced(model, maps, layer_for)
    if plan is not None:
        _make_the_rest(model, plan)
        plan.apply_(model, seed)
    model.__dict__["deferral"] = told
    return model


def store_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    """Replace all layers without stored weights by dense modules that have the same weights.

    It is the way back from ``nfd.defer``: a layer becomes a module of the kind that it replaced, and ``nn.Linear``
    where it replaced none. Memory is that of the dense model.

    Args:
        model: changed in place. Optimizers must be made again.
        seed: of the parts of deferred matrices that were not drawn yet.

    Returns:
        the model, or the dense module where the model is itself such a layer.

    Raises:
        TypeError, ValueError: naming the argument, layers whose backward pass goes through another matrix, and hooks on
            layers, which would be lost.

    Example::

        dense = nfd.store_weights(nfd.defer(make_model(64, 2)))
    """
    check_model_and_plan(model, None)
    seed = check_seed(seed)
    _check_hooks(model)
    behind: set[int] = set()  # layers that the module around them has put back
    for name, module in list(model.named_modules()):
        if isinstance(module, DeferredAttention):
            for key, layer in module.layers.items():
                behind.add(id(layer))
                module.store(key, _weights(layer, f"{name}.{key}", seed))
        layer = module.linear if isinstance(module, DeferredConv) else module
        if isinstance(layer, FactoredLinear) and id(layer) not in behind:
            behind.add(id(layer))
            model = placed(model, name, _stored(layer, name, seed))
    for module in model.modules():
        if isinstance(module, DeferredAttention):
            reading(module)
    model.__dict__.pop("deferral", None)
    return model


def _check_hooks(model: nn.Module) -> None:
    """ValueError where hooks would be lost with the layers."""
    lost = {name: hooks_on(m) for name, m in model.named_modules() if isinstance(m, FactoredLinear | DeferredConv)}
    for name, hooks in lost.items():
        if hooks:
            raise InputError(
                f"{name or 'model'!r} has hooks that would be lost with it: {', '.join(hooks)}. Remove them, and "
                "register them on the stored module."
            )


def _check_memory(told: Deferral, samples: int, memory: str | int | None, device: torch.device) -> None:
    """ValueError where the layers of a deferral could come to hold more than there is."""
    place = torch.device("cpu") if device.type == "meta" else device
    most, needed = memory_of(place) if memory is None else bytes_of(memory), sum(own.bytes for own in told.replaced)
    if needed > most:
        bound = "Structured layers mostly need far fewer directions than samples. " * (told.weights == "structured")
        raise InputError(
            f"After samples={samples} the layers could need {in_bytes(needed)}, with gradients and states of the "
            f"optimizer; {in_bytes(most)} are available. {bound}Lower samples, leave layers out by where=, or raise "
            "memory=."
        )


def _basis(plan: Plan | None, name: str) -> BasisName:
    """Inputs, for a matrix that reads the residual stream: its vectors have fewer directions than those of a branch."""
    return "inputs" if plan is not None and plan.entries[name].role == "inner" else "auto"


def _check_buffers(model: nn.Module) -> None:
    lost = [name for name, buffer in model.named_buffers() if buffer.is_meta]
    if lost:
        raise InputError(
            f"model has buffers on the meta device, whose numbers no plan restores: {', '.join(lost[:3])}. Make the "
            "model under nfd.meta_matrices() instead, which leaves buffers their numbers."
        )


def _std(linear: LinearMap) -> float:
    """The standard deviation of weights as they stand."""
    if linear.weight.is_meta:
        raise InputError(
            "model is on the meta device, so it has no initial weights whose scale could be copied. Pass plan=."
        )
    return float(linear.weight.detach().double().square().mean().sqrt())


def _make_the_rest(model: nn.Module, plan: Plan) -> None:
    """Give tensors on the meta device memory on the CPU, where a plan can begin them."""
    made: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for key, p in module._parameters.items():
            if p is None or not p.is_meta:
                continue
            name = f"{prefix}.{key}".lstrip(".")
            if not p.requires_grad or (name in plan.entries and plan.entries[name].start.kept):
                raise InputError(f"model has {name!r}, whose initial values no plan restores. Make it on the CPU.")
            if hooks := hooks_on(p):
                raise InputError(f"model has {name!r} on the meta device with a {hooks[0]}. Make it on the CPU.")
            own = nn.Parameter(torch.empty_like(p, device="cpu"), p.requires_grad)
            module._parameters[key] = made.setdefault(id(p), own)


def _stored(layer: FactoredLinear, name: str, seed: int) -> nn.Module:
    """The dense module with the weights that a layer has now."""
    with torch.device("meta"):
        original = layer.original or nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    (linear,) = linear_maps(original)
    return linear.store(_weights(layer, name, seed), layer.bias).train(layer.training)


def _weights(layer: FactoredLinear, name: str, seed: int) -> Tensor:
    """The weights that a layer has now; ValueError where it has two matrices."""
    W = layer.dense_weights(seed)
    if isinstance(W, Tensor):
        return W
    raise InputError(
        f"model has {name!r} with feedback={layer.feedback!r}: its backward pass goes through another matrix, "
        "which no dense module has."
    )
