"""A check from the command line: a constructor and batches by name."""

from __future__ import annotations

from nfd.core.errors import check_device
from nfd.meters.check import check
from nfd.meters.outcome import Check
from nfd.questions.named import batches_of, named, training_of
from nfd.runs.model_settings import CheckConfig


def checked(config: CheckConfig, model: str, device: str | None = None) -> tuple[Check, str]:
    """Run the check that the settings describe, on a device (by default where
    ``make_model`` puts its networks); and what the data were."""
    place = None if device is None else check_device(device)  # before the data are read
    batches, data = batches_of(config, config.steps if config.at is None else config.at[-1])
    result = check(
        named(model, "model"),
        config.widths,
        config.depths,
        batches,
        rule=config.rule,
        lr=config.lr,
        eta_c=config.eta_c,
        at=config.at,
        gia=config.gia,
        device=place,
        progress=True,
        **training_of(config),
    )
    return result, data
