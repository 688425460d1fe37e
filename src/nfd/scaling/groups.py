"""The optimizer of a plan, made from its groups.

An optimizer gets settings at the size of the model: from the library's own constructors at once,
from a user's (``nfd.scaling.made_by_user``) once its own settings are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nfd.core.errors import InputError
from nfd.core.notices import tell
from nfd.core.words import nearest
from nfd.scaling.base_group import BaseGroup, by_law
from nfd.scaling.combined import CombinedOptimizer
from nfd.scaling.made_by_user import check_rates_are_kept, make_by_user
from nfd.scaling.measured import law_by_steps
from nfd.scaling.optimizers import LAWS, OptimizerLaw, law_by_class
from nfd.scaling.probe import UnscalableError


def optimizer_of(
    law: OptimizerLaw,
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
    make: Callable[..., torch.optim.Optimizer] | None = None,
    *,
    takes_all: bool = False,
    argument: str = "make",
) -> torch.optim.Optimizer:
    """Make what steps these groups: the optimizer of the law, or what ``make`` makes.

    Where the law leaves tensors to another one, both are combined, and options that the first does
    not have go to the second. Settings that the caller has not chosen are those of the made
    optimizer: they are taken for the base's, and scaled.

    Args:
        takes_all: whether ``make`` takes the groups of the rest, too.
        argument: what messages call ``make``.

    Raises:
        ValueError: naming a setting that is chosen twice, or that the optimizer does not have.
    """
    if make is not None and takes_all:
        return make_by_user(make, groups, options, argument)
    has_rest = law.rest is not None and make is None
    names_of_rest = {name for name in options if has_rest and not law.accepts(name)}
    optimizers = list[torch.optim.Optimizer]()
    for part, groups_of_part in by_law(law, groups):
        is_first = part is law
        source = replace(law, make=make) if is_first and make is not None else part
        options_of_part = {
            name: value for name, value in options.items() if (name in names_of_rest) != is_first
        }
        check_options(source, options_of_part, law, argument)
        if source.is_ours:
            ready = [group.ready() for group in groups_of_part]
            optimizers.append(source.constructor()(ready, **options_of_part))
            continue
        optimizer = make_by_user(source.constructor(), groups_of_part, options_of_part, argument)
        # A task, or a law of the user's, may train at other rates: a check says what these do.
        if make is not None:
            check_rates_are_kept(optimizer, groups_of_part, argument)
        optimizers.append(optimizer)
    return optimizers[0] if len(optimizers) == 1 else CombinedOptimizer(optimizers)


def check_options(
    source: OptimizerLaw, options: Iterable[str], planned: OptimizerLaw, argument: str = "make"
) -> None:
    """Raise ValueError naming an option that the optimizer does not have."""
    unknown = [option for option in options if not source.accepts(option)]
    if not unknown:
        return
    if not source.is_ours and source.make is not None:
        raise InputError(
            f"{argument} takes no option {unknown[0]!r}. Set it where {argument} makes the "
            f"optimizer, or give {argument} an argument of this name."
        )
    names = set[str]()
    for law in planned.parts:
        names |= law.options
        names.update(setting.name for setting in law.settings)
    others = [law.name for law in LAWS.values() if law.is_ours and law.accepts(unknown[0])]
    hint = f" It is an option of {' or '.join(map(repr, others))}." if others else ""
    raise InputError(
        f"optimizer={planned.name!r} has no option {unknown[0]!r}."
        f"{nearest(unknown[0], names)}{hint} Its options are {', '.join(sorted(names))}."
    )


def check_kind(
    optimizer: torch.optim.Optimizer,
    planned: OptimizerLaw,
    origin: str = "make makes",
    remedy: str = "let make return the optimizer of the plan",
) -> None:
    """Raise ValueError if an optimizer has another law than the plan, by its rates.

    Its class says the law, or else its steps, where the plan's law is not the user's own. Steps
    without a law are told in a warning.

    Args:
        origin, remedy: where the optimizer comes from, and what to do beside planning anew.
    """
    law = law_by_class(optimizer)
    if law is None and planned.is_ours:
        try:
            law = law_by_steps(optimizer)
        except UnscalableError as error:
            tell(f"Rates of a plan for {planned.name!r} may not fit: {error}")
    if law is None or any(law.has_rates_of(part) for part in planned.parts):
        return
    raise InputError(
        f"{origin} a {type(optimizer).__name__}, whose law is {law.name!r}; the plan is for "
        f"{planned.name!r}, with other rates. Plan with {_how_to_plan(law)}, or {remedy}."
    )


def _how_to_plan(law: OptimizerLaw) -> str:
    """Write the argument that plans for a law; one that was measured has no name yet."""
    return f"optimizer={law.name!r}" if law.name in LAWS else "optimizer=, its class or object"
