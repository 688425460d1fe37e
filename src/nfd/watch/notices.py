"""How a watch speaks up: every alert once, by a warning and in the log ``"nfd"``, from one
process.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import distributed

from nfd.core.checks import check_choice
from nfd.core.notices import tell

OnAlert = Literal["warn", "stop", "raise"]


class AlertError(RuntimeError):
    """What ``watch.step()`` raises at a new alert with ``on_alert="raise"``; its text is that of
    the alerts.
    """


def check_on_alert(on_alert: OnAlert) -> OnAlert:
    """Return what is to happen at an alert; ValueError for a word that is none of the choices."""
    return check_choice("on_alert", on_alert, get_args(OnAlert))


def notify(text: str) -> None:
    """Tell the user a text; of a distributed training only the first process speaks."""
    if distributed.is_available() and distributed.is_initialized() and distributed.get_rank() > 0:
        return
    tell(text)
