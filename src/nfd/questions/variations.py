"""The settings that a transfer can vary beside width, depth and rate, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nfd.core.errors import InputError, InputTypeError, check_choice, check_count, check_real, check_several
from nfd.questions.against import SettingAxis, Variation
from nfd.questions.assumed import assumed_of
from nfd.questions.ladder import Ladder
from nfd.scaling.laws import check_optimizer, law_of
from nfd.scaling.rules import MAX_RATE
from nfd.training.recipe import Recipe
from nfd.training.schedule import knows_steps, warmed


def axes_of(axes: Mapping[str, Sequence[float]] | None, ladder: Ladder) -> list[SettingAxis]:
    """The axes that were asked for, with what is usually assumed along them.

    Raises:
        ValueError, TypeError: naming the setting that there is none of, or whose values are not ascending.
    """
    if axes is None:
        return []
    if not isinstance(axes, Mapping):
        raise InputTypeError(f"axes must be a dict such as {{'batch_size': (16, 32, 64)}}; got {axes!r}.")
    law = law_of(ladder.recipe.family.optimizer)
    checked = []
    for name, given in axes.items():
        check_choice("axes", name, _VARIED)
        values = check_several(f"axes[{name!r}]", given, "values of the setting")
        numbers = [check_real(f"axes[{name!r}]", value, least=0.0) for value in values]
        if not numbers or numbers != sorted(set(numbers)):
            raise InputError(f"axes[{name!r}] must be one or more ascending numbers; got {values}.")
        checked.append(SettingAxis(name, tuple(values), assumed_of(name, law)))
    return checked


def ladders_of(axes: Sequence[SettingAxis], ladder: Ladder) -> dict[Variation | None, Ladder]:
    """The networks with every value of every axis, and under None as they are.

    Raises:
        ValueError, TypeError: as ``varied``.
    """
    ladders: dict[Variation | None, Ladder] = {None: ladder}
    for variation in (variation for axis in axes for variation in axis.variations):
        try:
            ladders[variation] = varied(ladder, variation)
        except (InputError, InputTypeError) as error:
            raise type(error)(f"axes: {error}") from None
    return ladders


def varied(ladder: Ladder, variation: Variation) -> Ladder:
    """The same networks trained with another value of one setting.

    Raises:
        ValueError, TypeError: where the networks cannot be trained so, or the value would be ignored.
    """
    return _VARIED[variation.setting](ladder, variation.value)


def _with_weight_decay(ladder: Ladder, value: Any) -> Ladder:
    decay = check_real("weight_decay", value, least=0.0, below=MAX_RATE)
    for recipe in ladder.recipes.values():
        check_optimizer(recipe.family.optimizer, rule=recipe.family.rule, weight_decay=decay)
    return replace(ladder, weight_decay=decay)


def _with_batch_size(ladder: Ladder, value: Any) -> Ladder:
    """The same samples, so that their number stays and that of the steps follows."""
    task = ladder.recipe.task.in_batches(check_count("batch_size", value))
    return _each_recipe(ladder, lambda recipe: replace(_of_any_length(recipe), task=task))


def _with_steps(ladder: Ladder, value: Any) -> Ladder:
    task = ladder.recipe.task.first(check_count("steps", value, maximum=ladder.recipe.task.steps))
    return _each_recipe(ladder, lambda recipe: replace(_of_any_length(recipe), task=task))


def _with_warmup(ladder: Ladder, value: Any) -> Ladder:
    share = check_real("warmup", value, least=0.0, below=1.0)
    warmed(None, ladder.recipe.task.steps, share)
    return _each_recipe(ladder, lambda recipe: replace(recipe, warmup=share))


def _with_init_scale(ladder: Ladder, value: Any) -> Ladder:
    factor = check_real("init_scale", value, above=0.0, below=MAX_RATE)
    return _each_recipe(ladder, lambda recipe: replace(recipe, init_scale=factor))


def _with_adamw_lr(ladder: Ladder, value: Any) -> Ladder:
    law = law_of(ladder.recipe.family.optimizer)
    return replace(ladder, adamw_lr=law.check_rest_rate(value, above=0.0))


_VARIED: Mapping[str, Callable[[Ladder, Any], Ladder]] = {
    "weight_decay": _with_weight_decay,
    "batch_size": _with_batch_size,
    "steps": _with_steps,
    "warmup": _with_warmup,
    "init_scale": _with_init_scale,
    "adamw_lr": _with_adamw_lr,
}


def _each_recipe(ladder: Ladder, change: Callable[[Recipe], Recipe]) -> Ladder:
    return replace(ladder, recipes={rule: change(recipe) for rule, recipe in ladder.recipes.items()})


def _of_any_length(recipe: Recipe) -> Recipe:
    """ValueError where the schedule is of one number of steps, so that it would end elsewhere in runs of others."""
    if recipe.schedule is not None and not knows_steps(recipe.schedule):
        raise InputError(
            "schedule must take steps, how many there are, where they vary: such as lambda step, steps: 1 - step / "
            "steps, or lambda optimizer, steps: CosineAnnealingLR(optimizer, T_max=steps)."
        )
    return recipe
