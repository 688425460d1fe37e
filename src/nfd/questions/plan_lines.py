"""Lines of Python that plan a model for training by a rate of the base, with the names of who asked in the shell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nfd.core.defaults import OPTIMIZER, RULE
from nfd.questions.named import named, roles_of
from nfd.runs.fields import is_path
from nfd.runs.model_settings import RecipeConfig

_INPUTS = "inputs,  # one of your batches"  # of a data set: a name that is left to fill in


def plan_lines(
    model: str,
    config: RecipeConfig,
    rule: str | None,
    lr: float | None,
    base: tuple[int, int],
    size: tuple[object, object] = ("width", "depth"),
    make_optimizer: str | None = None,
    adamw_lr: float | None = None,
) -> str:
    """The plan of the constructor ``model`` at a size, as these settings train it.

    Args:
        model: package.module:name. lr: of the base; None for one that is not known yet. base: width and depth that the
            rate was tuned at. size: width and depth: numbers, or names to fill in.
        make_optimizer: package.module:name; None for PyTorch's. adamw_lr: of what Muon leaves to AdamW; ``lr`` where
            None.
    """
    make_model, law = name_at(model), config.optimizer or OPTIMIZER
    settings = {
        "rule": repr(rule or RULE),
        "make_model": make_model,
        "base_width": base[0],
        "base_depth": base[1],
        "optimizer": name_at(law) if is_path(law) else repr(law),
        "blocks": None if config.blocks is None else repr(config.blocks),
        "roles": roles_of(config),
    }
    rates = ("lr=lr" if lr is None else f"lr={lr:g}") + (
        f", weight_decay={config.weight_decay:g}" if config.weight_decay else ""
    )
    rates += "" if adamw_lr is None else f", adamw_lr={adamw_lr:g}"
    lines = [
        *import_lines([path for path in (model, config.batches, law, make_optimizer) if path]),
        "",
        f"model = {make_model}({size[0]}, {size[1]})",
        "plan = nfd.plan(",
        "    model,",
        *(f"    {name}={value}," for name, value in settings.items() if value is not None),
        f"    sample={_INPUTS if config.batches is None else _first_inputs(config.batches)}",
        ")",
        "plan.apply_(model)",
    ]
    if make_optimizer is None:
        return "\n".join([*lines, f"optimizer = plan.make_optimizer(model, {rates})"])
    return "\n".join([*lines, f"optimizer = {name_at(make_optimizer)}(plan.param_groups(model, {rates}))"])


def import_lines(paths: Sequence[str], libraries: Sequence[str] = ()) -> list[str]:
    """The lines that import the library, others, and what stands at these paths."""
    modules: dict[str, list[str]] = {}
    for path in filter(is_path, paths):
        modules.setdefault(path.partition(":")[0], []).append(name_at(path))
    names = (f"from {module} import {', '.join(names)}" for module, names in modules.items())
    return [*(f"import {library}" for library in sorted({"nfd", *libraries})), *names]


def name_at(path: str) -> str:
    """What stands behind the colon."""
    return path.partition(":")[2]


def _first_inputs(batches: str) -> str:
    """The inputs of the first of the batches, of a list or of a loader."""
    value, text = named(batches, "batches"), name_at(batches)
    if callable(value):
        value, text = value(), f"{text}()"
    first = f"{text}[0]" if isinstance(value, Sequence) else f"next(iter({text}))"
    return f"{first}," if isinstance(next(iter(value), None), Mapping) else f"{first}[0],"
