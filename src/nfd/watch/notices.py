"""How a watch speaks up: each alert once, by a warning and in the log, from one process."""

from __future__ import annotations

from typing import Literal, get_args

from torch import distributed

from nfd.core.checks import check_choice
from nfd.core.notices import tell

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


def notify(text: str) -> None:
    """Tell the user a text; in distributed training only the first process speaks."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_rank() > 0:
        return
    tell(text)
