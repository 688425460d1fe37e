"""How a watch speaks up: each cause once, by a warning and in the log, from one process."""

from __future__ import annotations

from typing import Literal, get_args

from torch import distributed

from nfd.core.checks import check_choice
from nfd.core.notices import LOG, tell

OnAlert = Literal["warn", "stop", "raise"]


class AlertError(RuntimeError):
    """What ``watch.step()`` raises at a new alert with ``on_alert="raise"``.

    Its text is the text of the alerts.
    """


def check_on_alert(on_alert: OnAlert) -> OnAlert:
    """Return what is to happen at an alert.

    Raises:
        ValueError: for a word that is not one of the choices.
    """
    return check_choice("on_alert", on_alert, get_args(OnAlert))


def notify(text: str, *, only_log: bool = False) -> None:
    """Warn the user, or only write a line into the log.

    In distributed training only the first process speaks.
    """
    if distributed.is_available() and distributed.is_initialized() and distributed.get_rank() > 0:
        return
    if only_log:
        LOG.warning(text)
    else:
        tell(text)
