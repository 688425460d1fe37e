"""``Ladder``: the user's networks of every width and depth, trained alike; transfer and capacity ask it for trials."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import MOST, WIDEST, check_ascending, check_count, check_device, check_real
from nfd.core.names import RuleName
from nfd.families.constructed import family_of
from nfd.families.family import Family
from nfd.runs.trials import Trial
from nfd.scaling.laws import OptimizerLaw, check_optimizer, law_of
from nfd.scaling.rules import MAX_RATE
from nfd.scaling.sizes import MakeModel
from nfd.training.recipe import MakeOptimizer, Recipe
from nfd.training.schedule import Schedule
from nfd.training.task import Batch, Task


@dataclass(frozen=True)
class Ladder:
    """Networks of every width and depth, from several seeds, under one rule or several.

    Attributes:
        recipes: how they are trained, by rule.
        sizes: every width with every depth, ascending; the first is the base of each rule.
        seeds: how many starts each size has. weight_decay: of the base.
        device: where they are trained.
        adamw_lr: of the base, for what Muon leaves to AdamW; the rate itself where None.
    """

    recipes: Mapping[RuleName, Recipe]
    sizes: Sequence[tuple[int, int]]
    seeds: int
    weight_decay: float
    device: str
    adamw_lr: float | None = None

    @property
    def recipe(self) -> Recipe:
        """That of the first rule; those of others differ in the rule alone."""
        return next(iter(self.recipes.values()))

    @property
    def score(self) -> str:
        """The metric of a trial by which networks are compared."""
        return "test_loss" if self.recipe.task.eval_batches else "train_loss"

    @property
    def notes(self) -> tuple[str, ...]:
        """What is likely to be a mistake in the batches, and why small networks were trained one after another, where
        their code is the reason."""
        decided = [together for recipe in self.recipes.values() for together in recipe.together.values()]
        of_code = [together for together in decided if together.reason is not None and not together.reason.by_size]
        return (*self.recipe.task.notes, *dict.fromkeys(f"Small {together}." for together in of_code))

    def trials(
        self,
        rule: RuleName,
        size: tuple[int, int],
        rates: Sequence[float],
        seeds: Iterable[int],
        stop: int | None = None,
    ) -> list[Trial]:
        """Seeds times rates, the rates varying fastest; ``stop``: after how many steps, None for all."""
        recipe, decay = self.recipes[rule], self.weight_decay
        return [Trial(recipe, *size, seed, lr, decay, self.adamw_lr, stop) for seed in seeds for lr in rates]


def ladder_of(
    make_model: MakeModel | Family,
    widths: Sequence[int],
    depths: Sequence[int],
    batches: Iterable[Batch],
    rules: Sequence[str | None] | None,
    *,
    optimizer: str | OptimizerLaw | None,
    seeds: int,
    eval_batches: Iterable[Batch] | None,
    loss: str | Callable[[Any, Any], Tensor],
    weight_decay: float,
    blocks: str | Sequence[str] | None,
    roles: Mapping[str, str] | None,
    schedule: Schedule | None,
    make_optimizer: MakeOptimizer | None,
    version: str | None,
    device: torch.device | str | None,
) -> Ladder:
    """The networks that the arguments of ``nfd.transfer`` and ``nfd.capacity`` describe; nothing is trained.

    A rule that is None is that of the family. Rules that are None are this one, and ``"standard"`` for comparison.

    Raises:
        ValueError, TypeError: naming the argument.
    """
    task = Task.of(batches, loss, eval_batches)
    widths, depths = check_ascending("widths", widths, WIDEST), check_ascending("depths", depths, MOST)
    base, sample = (widths[0], depths[0]), task.batches[0][0]
    law = None if optimizer is None else law_of(optimizer).name
    several = rules or [None]
    families = [family_of(make_model, base, rule, law, blocks, roles, sample, version) for rule in several]
    if rules is None and families[0].rate_name == "lr":
        families.insert(0, families[0].under("standard"))
    families[0].check_sizes(widths, depths)
    seeds = check_count("seeds", seeds, minimum=2, maximum=MOST)
    decay = check_real("weight_decay", weight_decay, least=0.0, below=MAX_RATE)
    for family in families:
        check_optimizer(family.optimizer, rule=family.rule, weight_decay=decay)
    return Ladder(
        {family.rule: Recipe(family, task, make_optimizer, schedule, version) for family in families},
        [(n, L) for n in widths for L in depths],
        seeds,
        decay,
        str(check_device(task.device if device is None else device)),
    )
