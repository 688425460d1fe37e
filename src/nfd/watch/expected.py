"""``expected=`` of a watch: a check, where it was stored, or anything that judges rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from nfd.core.errors import InputError, check_callable
from nfd.core.files import expanded
from nfd.meters.outcome import Check
from nfd.scaling.model import listed, numberless, stacks_of
from nfd.scaling.plan import Plan
from nfd.scaling.rules import rule_named
from nfd.watch.alerts import Alarm
from nfd.watch.bands import Bands
from nfd.watch.ladder import Ladder
from nfd.watch.rows import Expected

_FILE = "result.json"  # of nfd check, in its folder


def expectation(expected: Check | Expected | str | Path, plan: Plan, layers: Mapping[str, str]) -> Expected:
    """What judges the rows of a model with this plan.

    Args:
        plan: of the model.
        layers: the names of its layers by those of their matrices.
        expected: a check; a file of ``Check.save``, or the folder of ``nfd check`` or its ``result.json``; or what has
            ``alerts(rows)``.

    Raises:
        ValueError: for a file that holds no check, a check under another rule or optimizer than the plan's, from
            another base, of other layers, or one that cannot tell of this size (``nfd.watch.bands.Bands``).
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
    base = plan.base or ladder.base
    _check_base(ladder, plan, base)
    bands = Bands(ladder, plan.width * base[0], plan.depth * base[1], [*map(len, stacks_of(plan.blocks).values())])
    _check_layers(ladder, plan, layers)
    return Alarm(bands)


def _check_base(ladder: Ladder, plan: Plan, base: tuple[float, float]) -> None:
    """ValueError where the ladder's networks have another base than the plan, in a size that the rule scales with."""
    rule, (width, depth) = rule_named(plan.rule), ladder.base
    if (rule.scales_width and width != base[0]) or (rule.scales_depth and depth != base[1]):
        raise InputError(
            f"expected counts from {width:g} x {depth:g}, the plan from {base[0]:g} x {base[1]:g} (width x depth of "
            "the base), so that one lr means other rates. Check with the base of the plan as the smallest width and "
            "depth, or plan with that of the check."
        )


def _check_layers(ladder: Ladder, plan: Plan, layers: Mapping[str, str]) -> None:
    """ValueError where the ladder's networks and the model have different layers, as with a tied and an untied head.
    Names that have nothing in common, as those of a wrapped model, tell nothing."""
    own = {numberless(layer) for layer in layers.values()}
    drawn = {numberless(layer) for matrix, layer in layers.items() if plan.std(matrix) > 0}
    kinds = [run.layers for run in ladder.runs]
    known = set[str]().union(*kinds)
    lacking, more = known.intersection(*kinds) - own, drawn - known
    if (lacking or more) and own & known:
        parts = (("its networks alone have", lacking), ("the model alone has", more))
        texts = [f"{owner} {listed(sorted(names))}" for owner, names in parts if names]
        raise InputError(
            f"expected is a check of networks with other layers: {', and '.join(texts)}. Check networks of the "
            "model's own kind, with the same options."
        )


def _stored(path: Path) -> object:
    file = path / _FILE if path.is_dir() else path
    try:
        return json.loads(file.read_text(encoding="utf-8"))["ladder"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(
            f"expected={str(path)!r} holds no check ({type(error).__name__}: {error}). Give a Check, a file of "
            "Check.save, or the folder of nfd check."
        ) from None
