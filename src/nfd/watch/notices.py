"""How a watch speaks up: a warning of Python and a line in the log ``"nfd"``, once for each alert."""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType
from typing import Literal, get_args

from torch import distributed

from nfd.core.errors import check_choice

OnAlert = Literal["warn", "stop", "raise"]

LOG = logging.getLogger("nfd")
# Without a handler Python would print every line of the log to stderr, where the warning already stands.
LOG.addHandler(logging.NullHandler())


class AlertError(RuntimeError):
    """What ``watch.step()`` raises at a new alert with ``on_alert="raise"``; its text is that of the alerts."""


def check_on_alert(on_alert: OnAlert) -> OnAlert:
    """Return what is to happen at an alert; ValueError for a word that is none of the choices."""
    return check_choice("on_alert", on_alert, get_args(OnAlert))


def notify(text: str) -> None:
    """Log a text and warn of it at the line of the user's code, or of another library's, that called.

    Only the first process of a distributed training speaks.
    """
    if distributed.is_available() and distributed.is_initialized() and distributed.get_rank() > 0:
        return
    LOG.warning(text)
    frame = _outer_frame()
    # A registry of its own: that of a module would swallow the same words of a second training in one process.
    warnings.warn_explicit(
        text,
        RuntimeWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=_module_of(frame) or frame.f_code.co_filename,  # Python drops the warning of a module None
        registry={},
    )


def _outer_frame() -> FrameType:
    """Find the innermost frame of the stack that is not of this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _module_of(frame).partition(".")[0] == "nfd":
        frame = frame.f_back
    return frame


def _module_of(frame: FrameType) -> str:
    """Return the name of the module of a frame; empty for code that was executed in a bare dict."""
    return str(frame.f_globals.get("__name__") or "")
