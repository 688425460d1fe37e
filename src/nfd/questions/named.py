"""What a command line names: objects as package.module:name, and the batches of the user's networks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nfd.core.errors import InputError, ModelError, check_device, check_several, check_takes, first_line, nearest
from nfd.core.origin import import_users, is_ours
from nfd.core.random import global_streams
from nfd.data.load import load
from nfd.runs.fields import is_path
from nfd.runs.model_settings import EvaluationConfig, ModelConfig, PlanConfig, RecipeConfig
from nfd.training.batches import BATCHES
from nfd.training.task import Batch

Batches = list[Batch]


def named(path: str, what: str) -> Any:
    """The object called ``package.module:name``; ValueError that says what is missing."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise InputError(f"{what} must be like package.module:name; got {path!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = import_users(module_name)
    except ModuleNotFoundError as error:
        here, plain = os.getcwd(), module_name.removesuffix(".py").replace(os.sep, ".")
        near = nearest(module_name, [path.stem for path in Path(here).glob("*.py")])
        hint = near if plain == module_name else f" Name the module, not its file: {plain}:{name}."
        raise InputError(
            f"{what}: there is no module {error.name!r} (looked for {path!r} from {here}).{hint}"
        ) from error
    except (Exception, SystemExit) as error:
        if isinstance(error, Exception) and not isinstance(error, SyntaxError) and is_ours(error):
            raise
        said = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{what}: module {module_name!r} cannot be imported ({said}).") from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise InputError(f"{what}: module {module_name!r} has no {name!r}.{nearest(name, dir(module))}") from None


def named_batches(path: str, what: str, seed: int, steps: int | None = None) -> Batches:
    """The list or loader of batches called ``package.module:name``, or what a function of that name returns.

    Only its first ``steps`` are read, where they are given. A loader that shuffles gives the same batches every time,
    as the global random streams begin at ``seed``.
    """
    with global_streams(seed):
        batches = named(path, what)
        if callable(batches):
            check_takes(what, batches)
            batches = batches()
        batches = check_several(what, batches, BATCHES, steps)
    if steps is not None and len(batches) < steps:
        raise InputError(
            f"{what}={path!r} gives {len(batches)} batches, too few for {steps} steps. Give a batch for every "
            "step; they may repeat."
        )
    return batches


def arguments_of(config: ModelConfig, model: str, steps: int | None, device: str | None) -> tuple[dict[str, Any], str]:
    """The arguments that ``nfd.check``, ``nfd.transfer`` and ``nfd.capacity`` share, and what the data are.

    Args: as of ``training_arguments``.
    """
    arguments, data = training_arguments(config, model, steps, device)
    sizes = {name: getattr(config, name) for name in ("widths", "depths", "seeds")}
    return arguments | sizes | {"make_optimizer": perhaps_named(config.make_optimizer, "make_optimizer")}, data


def evaluation_arguments(config: EvaluationConfig) -> dict[str, Any]:
    """The batches that trained networks are judged by, and the version of their code."""
    judged = None if config.eval_batches is None else named_batches(config.eval_batches, "eval_batches", config.seed)
    return {"eval_batches": judged, "version": config.version}


def training_arguments(
    config: RecipeConfig, model: str, steps: int | None, device: str | None
) -> tuple[dict[str, Any], str]:
    """The arguments that all questions about a constructor's networks share, and what the data are.

    Args:
        model: the constructor, as package.module:name. steps: of training; None: as many as there are batches, and on
            the data set the usual number.
        device: None leaves its choice to the question.
    """
    place = None if device is None else check_device(device)  # before the data are read
    with global_streams(config.seed):  # the module may draw its batches where it is imported
        make_model = named(model, "model")
    batches, data = _batches(config, steps)
    arguments = {
        "make_model": make_model,
        "batches": batches,
        "optimizer": perhaps_named(config.optimizer, "optimizer"),
        "schedule": perhaps_named(config.schedule, "schedule"),
        "loss": perhaps_named(config.loss, "loss"),
        "blocks": config.blocks,
        "roles": roles_of(config),
        "weight_decay": config.weight_decay,
        "device": place,
        "progress": True,
    }
    return arguments, data


def _batches(config: RecipeConfig, steps: int | None) -> tuple[Batches, str]:
    """The training batches and what they are: named ones, or flattened images of the data set."""
    if config.batches is not None:
        return named_batches(config.batches, "batches", config.seed, steps), f"batches of {config.batches}"
    dataset = load(config.data, config.data_dir, image_size=config.image_size, seed=config.seed, progress=True)
    x, y = dataset.batches(config.batch, steps or config.USUAL_STEPS, config.seed)
    return list(zip(x.flatten(2), y, strict=True)), f"{dataset.title}, batches of {config.batch}"


@contextmanager
def telling_of_pixels(config: RecipeConfig) -> Iterator[None]:
    """Where no batches were named and the model refuses the images, the error says what its inputs were."""
    try:
        yield
    except ModelError as error:
        if config.batches is not None:
            raise
        raise ModelError(
            f"{error} The inputs were rows of pixels of {config.data}, as no --batches was given: pass "
            "--batches package.module:name for a model of other inputs."
        ) from error


def roles_of(config: RecipeConfig | PlanConfig) -> dict[str, str] | None:
    """The roles by pattern; None where none are given."""
    return None if config.roles is None else dict(role.split("=", 1) for role in config.roles)


def perhaps_named(text: str | None, what: str) -> Any:
    """The object at a path; another text, or None, as it is."""
    return named(text, what) if text is not None and is_path(text) else text
