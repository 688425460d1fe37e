"""``nfd.compare``: what a framework's own set-up does, beside a plan of the same model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from nfd.core.checks import check_flag, check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.core.modes import gradients
from nfd.core.words import quoted
from nfd.scaling.compared import Beside, Tuned, compare_settings
from nfd.scaling.find_law import law_of
from nfd.scaling.forward_beside import ForwardBeside, forward_beside
from nfd.scaling.held import held_as_planned, planned_part
from nfd.scaling.neutral import numbers_of
from nfd.scaling.optimizers import BETAS, WEIGHT_DECAY
from nfd.scaling.plan import Plan
from nfd.scaling.plan_comparison import PlanComparison
from nfd.scaling.rules import MAX_RATE
from nfd.scaling.samples import check_sample
from nfd.scaling.start_beside import check_base, starts_beside
from nfd.scaling.stepped import Step, stepping_of


@gradients()
def compare(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    plan: Plan,
    *,
    lr: float | None = None,
    weight_decay: float | None = None,
    eps: float | None = None,
    betas: Sequence[float] | None = None,
    adamw_lr: float | None = None,
    initial: bool = False,
    base: nn.Module | None = None,
    sample: Any = None,
    forward: Mapping[str, float] | None = None,
) -> PlanComparison:
    """Compare a model and its optimizer, as a framework's own muP made them, with a plan.

    It says which factors differ, in which tensors and by how much: learning rates, weight decay,
    epsilon, and if asked initial weights and factors of the forward pass. A factor of the forward
    pass can stand for a rate: a head that is divided by the width, as microsoft/mup's
    ``MuReadout``, needs the larger rate, and agrees. Nothing is changed and nothing trains.

    Example::

        # As a framework makes it, such as mup.MuAdamW(model.parameters(), lr=3e-3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        plan = nfd.plan(model, (64, 2), make_model=make_model, sample=x)
        print(nfd.compare(model, optimizer, plan, lr=3e-3))

    Args:
        model: the planned one, as the framework made it; DDP and others may wrap it.
        optimizer: of the framework, or a list of several.
        plan: of this model, ``nfd.plan(model, (64, 2), make_model=make_model)``.
        lr, weight_decay, eps, adamw_lr: as tuned at the base. Without one, settings are compared
            over the value that most tensors agree on, which a scheduler may have changed.
        betas: Adam's, as tuned at the base; without them running means are not compared.
        initial: whether to compare initial weights, which the model must hold: training changes
            them.
        base: the framework's model at the size of the base. With ``sample``, factors of the forward
            pass are compared, and initial weights are compared with its own.
        sample: an input of both; models of Hugging Face need none.
        forward: factors of the forward pass over the base's that the framework has in its code, by
            pattern of the module whose weight has it: ``{"output_layer": 0.25}``.

    Returns:
        A ``PlanComparison``: ``print`` shows what differs, ``agrees`` says whether nothing does.

    Raises:
        ValueError, TypeError: naming the argument; if the model is not the planned one, or the
            optimizer steps another model or has another law than the plan.
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    if not isinstance(plan, Plan):
        raise InputTypeError(f"plan must be an nfd.Plan; got {type(plan).__name__}.")
    if not isinstance(base, nn.Module | None):
        raise InputTypeError(
            "base must be the framework's model at the size of the base, or None; got "
            f"{type(base).__name__}."
        )
    if sample is not None:
        check_sample("sample", sample)
        if base is None:
            raise InputError("sample is an input of model and base: pass base=, too.")
    tuned = _tuned(plan, lr, adamw_lr, weight_decay, eps, betas)
    part = planned_part(model, plan.entries)
    held = held_as_planned(part, plan.entries)
    stepping = stepping_of(plan, held, optimizer)
    if base is not None:
        check_base(base, plan, part)
    passes = forward_beside(plan, part, held, base, sample, forward)
    tensors = _tensors(plan, stepping.steps, passes)
    rows, references = compare_settings(tensors, tuned, law_of(plan.optimizer))
    rows += passes.rows
    notes = _notes(plan, stepping.steps, tuned)
    unjudged: list[str] = []
    if check_flag("initial", initial):
        starts, unjudged = starts_beside(plan, part, held, passes.factors, base)
        rows += starts
    left_out = []
    if unjudged:
        left_out.append(f"initial weights of {quoted(unjudged)} (too few entries)")
    if not initial:
        left_out.append("initial weights (initial=True)")
    if base is None:
        left_out.append("the forward pass (base= and sample=)")
    return PlanComparison(
        plan=plan,
        rows=tuple(rows),
        references=tuple(references),
        faults=stepping.faults,
        unseen=tuple(passes.unseen),
        left_out=tuple(left_out),
        notes=tuple(notes),
        count=len(tensors),
    )


def _tuned(
    plan: Plan,
    lr: float | None,
    adamw_lr: float | None,
    weight_decay: float | None,
    eps: float | None,
    betas: Sequence[float] | None,
) -> Tuned:
    """Check the settings of the base."""

    def checked(argument: str, value: float | None, *, least: float = 0.0) -> float | None:
        return None if value is None else check_real(argument, value, least=least, below=MAX_RATE)

    law_of(plan.optimizer).check_rest_rate(adamw_lr)
    if betas is not None and (not isinstance(betas, tuple | list) or len(betas) < 2):
        raise InputTypeError(f"betas must be two numbers from 0 to below 1; got {betas!r}.")
    return Tuned(
        lr=None if lr is None else check_real("lr", lr, above=0.0, below=MAX_RATE),
        adamw_lr=checked("adamw_lr", adamw_lr),
        weight_decay=checked("weight_decay", weight_decay),
        eps=checked("eps", eps),
        betas=None if betas is None else tuple(betas),
    )


def _tensors(plan: Plan, steps: Mapping[str, Step], passes: ForwardBeside) -> list[Beside]:
    """Put every stepped tensor beside what the plan says of it."""
    tensors = []
    for name, step in steps.items():
        factor = passes.factors.get(name, 1.0)
        law = plan.law_for(name)
        tensors.append(Beside(name, step, numbers_of(plan, name), law, factor))
    return tensors


def _notes(plan: Plan, steps: Mapping[str, Step], tuned: Tuned) -> list[str]:
    """Say which settings could not be compared."""
    notes = []
    laws = [plan.law_for(name) for name, step in steps.items() if step.weight_decay]
    if any(not law.decoupled and not law.is_linear for law in laws):
        notes.append(
            f"{WEIGHT_DECAY.name} goes through {plan.optimizer}'s normalised update, where nothing "
            "keeps its strength: it was not compared."
        )
    if plan.run is not None and tuned.betas is None:
        notes.append(f"The plan is for another batch: pass {BETAS.name}= to compare running means.")
    return notes
