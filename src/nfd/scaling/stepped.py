"""How optimizers step the tensors of a plan, read from their groups, whoever made them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nfd.core.errors import InputError, InputTypeError
from nfd.core.words import plural, quoted
from nfd.scaling.base_group import OF_MATRICES
from nfd.scaling.combined import CombinedOptimizer
from nfd.scaling.find_law import law_of
from nfd.scaling.groups import check_kind
from nfd.scaling.held import Held
from nfd.scaling.kept_rates import FIRST, PEAK
from nfd.scaling.made_by_user import is_decoupled
from nfd.scaling.optimizers import BETAS, EPS, LAWS, WEIGHT_DECAY, OptimizerLaw, law_by_class

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan


@dataclass(frozen=True)
class Step:
    """How an optimizer steps one tensor.

    Attributes:
        lr, weight_decay: of its group; 0 where it has no such setting.
        eps, betas: None where the group has none.
        level: what a scheduler has made of the first rate; 1 where it keeps none.
        is_decoupled: whether the decay acts on the weights directly.
        law: of the optimizer's class; None of an unknown one.
    """

    lr: float
    weight_decay: float
    eps: float | None
    betas: tuple[float, ...] | None
    level: float
    is_decoupled: bool
    law: OptimizerLaw | None


@dataclass(frozen=True)
class Stepping:
    """How the tensors of a plan are stepped.

    Attributes:
        steps: by tensor; without those that are not trained, or not by these optimizers.
        faults: in sentences, what numbers cannot say.
    """

    steps: Mapping[str, Step]
    faults: tuple[str, ...]


def stepping_of(plan: Plan, held: Mapping[str, Held], optimizer: Any) -> Stepping:
    """Read how an optimizer, or several, step the tensors that a model holds of a plan.

    Raises:
        TypeError: for what has no groups.
        ValueError: if an optimizer has another law than the plan, or steps another model.
    """
    parts = list(_parts_of(optimizer))
    for part in parts:
        check_kind(part, law_of(plan.optimizer), "optimizer is", "make the plan's optimizer")
    places = dict[int, list[tuple[torch.optim.Optimizer, Mapping[str, Any]]]]()
    for part in parts:
        for group in part.param_groups:
            for parameter in group["params"]:
                places.setdefault(id(parameter), []).append((part, group))
    trained = {name: tensor for name, tensor in held.items() if tensor.is_trained}
    placed = {name: places.get(id(tensor.parameters[0]), []) for name, tensor in trained.items()}
    if trained and not any(placed.values()):
        raise InputError(
            "optimizer steps no tensor of the model. Pass the model that it was made for, and the "
            "optimizer before a wrapper gives it copies of the parameters, as in mixed precision."
        )
    all_groups = [group for of_tensor in placed.values() for _, group in of_tensor]
    is_at_zero = not any(float(group["lr"]) for group in all_groups)
    steps = {}
    for name, of_tensor in placed.items():
        if of_tensor:
            first = of_tensor[0]
            steps[name] = _step(*first, plan.law_for(name), is_at_zero=is_at_zero)
    faults = [*_misplaced(placed), *_foreign(places, held), *_other_laws(plan, steps)]
    return Stepping(steps, tuple(faults))


def _parts_of(optimizer: Any) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers of PyTorch in what a framework calls one."""
    several = optimizer if isinstance(optimizer, tuple | list) else [optimizer]
    for one in several:
        part = one
        # accelerate and Megatron wrap it.
        while not isinstance(part, torch.optim.Optimizer) and hasattr(part, "optimizer"):
            part = part.optimizer
        if not hasattr(part, "param_groups"):
            raise InputTypeError(
                "optimizer must be a torch.optim.Optimizer, or a list of them; got "
                f"{type(one).__name__}."
            )
        yield from part.parts if isinstance(part, CombinedOptimizer) else (part,)


def _step(
    optimizer: torch.optim.Optimizer,
    group: Mapping[str, Any],
    planned: OptimizerLaw,
    *,
    is_at_zero: bool,
) -> Step:
    """Read the settings of a group.

    Args:
        is_at_zero: whether all rates are 0, as before a warm-up: those that follow count then.
    """
    lr = float(group["lr"])
    # OneCycleLR begins below its peak, which is the rate that was chosen.
    first = float(group.get(PEAK) or group.get(FIRST) or 0.0)
    if is_at_zero:
        lr = first
    weight_decay = float(group.get(WEIGHT_DECAY.name) or 0.0)
    eps = group.get(EPS.name)
    betas = group.get(BETAS.name)
    law = law_by_class(optimizer)
    if law is not None and law.rest is not None and not group.get(OF_MATRICES, True):
        law = LAWS[law.rest]
    return Step(
        lr=lr,
        weight_decay=weight_decay,
        eps=None if eps is None else float(eps),
        betas=None if betas is None else tuple(map(float, betas)),
        level=lr / first if first else 1.0,
        # An optimizer of an unknown class is stepped to see it, which takes time.
        is_decoupled=not weight_decay or is_decoupled(optimizer, group, planned),
        law=law,
    )


# ---- what numbers cannot say


def _misplaced(placed: Mapping[str, Sequence[Any]]) -> list[str]:
    """Say which tensors train but are in no group, or in several."""
    faults = []
    missing = [name for name, places in placed.items() if not places]
    if missing:
        faults.append(f"The optimizer does not have {quoted(missing)}, which take gradients.")
    several = [name for name, places in placed.items() if len(places) > 1]
    if several:
        faults.append(f"Several groups step {quoted(several)}.")
    return faults


def _foreign(places: Iterable[int], held: Mapping[str, Held]) -> list[str]:
    """Say how many parameters of the optimizer the model does not hold."""
    of_model = {id(parameter) for tensor in held.values() for parameter in tensor.parameters}
    count = len(set(places) - of_model)
    if not count:
        return []
    return [f"The optimizer has {plural(count, 'parameter')} that the model does not hold."]


def _other_laws(plan: Plan, steps: Mapping[str, Step]) -> list[str]:
    """Say which tensors an optimizer of another law steps, and whose decay is not decoupled."""
    by_other = dict[tuple[str, str], list[str]]()
    coupled = []
    for name, step in steps.items():
        planned = plan.law_for(name)
        if planned.decoupled and not step.is_decoupled:
            coupled.append(name)
        if step.law is None:
            continue
        law = step.law.for_vectors() if plan.entries[name].is_vector else step.law
        if not law.has_rates_of(planned):
            by_other.setdefault((law.name, planned.name), []).append(name)
    faults = [
        f"{law} steps {quoted(names)}; the plan has {planned} there."
        for (law, planned), names in by_other.items()
    ]
    if coupled:
        faults.append(
            f"Weight decay of {quoted(coupled)} goes through the gradient; the plan's acts on the "
            "weights directly."
        )
    return faults
