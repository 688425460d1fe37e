"""Errors of a user's model, while it is planned or trained, as errors of input that say which network it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nfd.core.errors import LESS_MEMORY, ModelError, UsageError, described, first_line, out_of_memory
from nfd.core.origin import is_a_models
from nfd.scaling.calls import shape_of


@contextmanager
def blaming_the_model(width: int, depth: int, batch: tuple[Any, Any]) -> Iterator[None]:
    """What a model of the user's raises within is an error of input; ours stays as it is.

    Args:
        width, depth: of the model. batch: the first one that it is trained on.
    """
    try:
        yield
    except Exception as error:
        marked = isinstance(error, UsageError)
        refused = marked and isinstance(error, TypeError | RuntimeError)  # by a layer or a plan that the model meets
        if out_of_memory(error):
            error.add_note(f"make_model({width}, {depth}) does not fit. {LESS_MEMORY}")
            raise
        if not (refused or (not marked and is_a_models(error))):
            raise
        x, y = batch
        raise ModelError(
            f"make_model({width}, {depth}) could not be trained on batches[0], inputs {shape_of(x)} and "
            f"targets {shape_of(y)}: {first_line(error) if marked else described(error).splitlines()[0]}"
        ) from error
