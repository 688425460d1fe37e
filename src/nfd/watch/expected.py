"""``expected=`` of a watch: a check, where it was stored, or anything that judges rows."""

from __future__ import annotations

import json
from pathlib import Path

from nfd.core.errors import InputError, check_callable
from nfd.core.files import expanded
from nfd.meters.outcome import Check
from nfd.scaling.plan import Plan
from nfd.watch.alerts import Alarm
from nfd.watch.bands import Bands
from nfd.watch.ladder import Ladder
from nfd.watch.rows import Expected

_FILE = "result.json"  # of nfd check, in its folder


def expectation(expected: Check | Expected | str | Path, plan: Plan) -> Expected:
    """What judges the rows of a model with this plan.

    Args:
        expected: a check; a file of ``Check.save``, or the folder of ``nfd check`` or its ``result.json``; or what has
            ``alerts(rows)``.

    Raises:
        ValueError: for a file that holds no check, a check under another rule or optimizer than the plan's, or one that
            cannot tell of this size (``nfd.watch.bands.Bands``).
    """
    if not isinstance(expected, Check | str | Path):
        check_callable("expected.alerts", getattr(expected, "alerts", None), "a function of rows")
        return expected
    ladder = Ladder.of(expected.ladder if isinstance(expected, Check) else _stored(expanded(expected)))
    for setting, own, planned in (
        ("rule", ladder.rule, plan.rule),
        ("optimizer", ladder.optimizer, plan.optimizer),
    ):
        if own != planned:
            raise InputError(
                f"expected was checked with {setting}={own!r}; the plan has {setting}={planned!r}. Check with the "
                "plan's."
            )
    width, depth = (ratio * base for ratio, base in zip((plan.width, plan.depth), ladder.base, strict=True))
    return Alarm(Bands(ladder, width, depth, len(plan.blocks)))


def _stored(path: Path) -> object:
    file = path / _FILE if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))["ladder"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"expected={str(path)!r} holds no check ({type(error).__name__}: {error}). Give a Check, a file of "
            "Check.save, or the folder of nfd check."
        ) from None
