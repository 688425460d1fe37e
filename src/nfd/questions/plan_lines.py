"""Lines of Python that plan a model for training by a rate of the base, with the names of who asked in the shell."""

from __future__ import annotations

from nfd.questions.named import named
from nfd.runs.fields import is_path
from nfd.runs.model_settings import ModelConfig

_INPUTS = "inputs"  # of a data set: a name that is left to fill in


def plan_lines(
    model: str, config: ModelConfig, rule: str, lr: float, size: tuple[object, object] = ("width", "depth")
) -> str:
    """The plan of the constructor ``model`` at a size, as these settings train it.

    Args:
        model: package.module:name. size: width and depth: numbers, or names to fill in.
    """
    lines, (make_model, loaded) = ["import nfd"], _imported(model)
    optimizer, of_optimizer = _imported(config.optimizer) if is_path(config.optimizer) else (repr(config.optimizer), "")
    inputs, of_inputs = (_INPUTS, "") if config.batches is None else _sample(config.batches)
    make, of_make = ("", "") if config.make_optimizer is None else _imported(config.make_optimizer)
    lines += dict.fromkeys(line for line in (loaded, of_inputs, of_optimizer, of_make) if line)
    settings = [f"rule={rule!r}", f"make_model={make_model}", f"base_width={config.widths[0]}"]
    settings += [f"base_depth={config.depths[0]}", f"optimizer={optimizer}"]
    settings += [] if config.blocks is None else [f"blocks={config.blocks!r}"]
    settings += [] if config.roles is None else [f"roles={dict(role.split('=', 1) for role in config.roles)!r}"]
    rates = f"lr={lr:g}" + (f", weight_decay={config.weight_decay:g}" if config.weight_decay else "")
    stepped = f"{make}(plan.param_groups(model, {rates}))" if make else f"plan.make_optimizer(model, {rates})"
    comment = "  # inputs: a batch of yours" if inputs == _INPUTS else ""
    return "\n".join(
        [
            *lines,
            f"model = {make_model}({size[0]}, {size[1]})",
            f"plan = nfd.plan(model, {', '.join(settings)}, sample={inputs}){comment}",
            "plan.apply_(model)",
            f"optimizer = {stepped}",
        ]
    )


def _imported(path: str) -> tuple[str, str]:
    """The name of an object in Python, and the line that imports it."""
    module, _, name = path.partition(":")
    return name, f"from {module} import {name}"


def _sample(batches: str) -> tuple[str, str]:
    """The inputs of the first of the batches, and the line that imports these."""
    name, line = _imported(batches)
    return f"{name}{'()' if callable(named(batches, 'batches')) else ''}[0][0]", line
