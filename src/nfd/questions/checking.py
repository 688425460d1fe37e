"""A check from the command line: a constructor and batches by name."""

from __future__ import annotations

from nfd.meters.check import check
from nfd.meters.outcome import Check
from nfd.questions.named import arguments_of, telling_of_pixels
from nfd.runs.model_settings import CheckConfig


def checked(config: CheckConfig, model: str, device: str | None = None) -> tuple[Check, str]:
    """The check that the settings describe, of the constructor ``model``; and what the data were."""
    arguments, data = arguments_of(config, model, config.steps if config.at is None else config.at[-1], device)
    own = {name: getattr(config, name) for name in ("rule", "lr", "eta_c", "at", "gia", "noise")}
    with telling_of_pixels(config):
        return check(**arguments, **own), data
