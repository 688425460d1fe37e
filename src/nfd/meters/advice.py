"""What a verdict means for a meter: what was seen, what cures it, and which rules have that cure built in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nfd.core.names import Axis, RuleName
from nfd.meters.updates import ALIGNMENT, UPDATES
from nfd.meters.verdict import Reason, Verdict
from nfd.scaling.rules import RULES

_WIDTH: frozenset[RuleName] = frozenset(name for name, rule in RULES.items() if rule.scales_width)
_DEPTH: frozenset[RuleName] = frozenset(name for name in _WIDTH if RULES[name].scales_depth)
_COMPLETE: frozenset[RuleName] = frozenset({"complete-p"})


@dataclass(frozen=True)
class Advice:
    """What was seen, the remedy, the rules that already contain it, and why a rule that does not shows it."""

    seen: str
    remedy: str = ""
    rules: frozenset[RuleName] = frozenset()
    because: str = ""


_LAZY = Advice(
    "features stop moving as the network widens (lazy training)", "Use a rule of mup's kind, and its readout.", _WIDTH
)
_WIDE = Advice(
    "updates grow with width",
    "Use rule 'mup' or 'complete-p' instead of 'standard'.",
    _WIDTH,
    "rates do not follow it",
)
_AT_FIRST = (
    "before the first block: by how the embedding begins, by its rate, or by a factor of width in the forward pass"
)
_BY_PLAN = "Train by the plan of 'mup' or 'complete-p', which makes up for such factors."
_UPDATES = tuple(meter for meter in UPDATES if meter != "activation")
ADVICE: dict[tuple[str, Axis, Verdict], Advice] = {
    **{(meter, "width", "COLLAPSES"): _LAZY for meter in _UPDATES},
    **{(meter, "width", "GROWS"): _WIDE for meter in _UPDATES},
    ("activation", "depth", "GROWS"): Advice(
        "the residual stream grows with depth", "Use 'complete-p'.", _DEPTH, "branches carry no 1/sqrt(L)"
    ),
    ("activation", "depth", "COLLAPSES"): Advice(
        "activations vanish with depth", "Check the initialisation and the norms."
    ),
    ("activation", "width", "GROWS"): Advice(
        "the stream grows with width", "Use rule 'mup' or 'complete-p' instead of 'standard'.", _WIDTH
    ),
    ("activation", "width", "COLLAPSES"): Advice(
        "the stream shrinks with width",
        "Check after one step: where it shrinks there, the initialisation is not the rule's; else training shrinks it.",
    ),
    ("first_activation", "width", "GROWS"): Advice(f"the stream grows with width {_AT_FIRST}", _BY_PLAN, _WIDTH),
    ("first_activation", "width", "COLLAPSES"): Advice(f"the stream shrinks with width {_AT_FIRST}", _BY_PLAN, _WIDTH),
    ("activation_update", "depth", "GROWS"): Advice(
        "the stream moves further the deeper the network",
        "Use 'complete-p', or a lower rate.",
        _COMPLETE,
        "blocks add up coherently",
    ),
    ("activation_update", "depth", "COLLAPSES"): Advice(
        "deep streams hardly move: the rate of the blocks falls too fast"
    ),
    ("inner_update", "depth", "COLLAPSES"): Advice(
        "inner layers stop learning",
        "Use 'complete-p', whose multiplier 1/L keeps the function's step too, or 'depth-mup-inner' (Eq. 8), at the "
        "price that function_update_inner shows.",
        frozenset({"complete-p", "depth-mup-inner"}),
        "their gradient carries the residual multiplier",
    ),
    ("inner_update", "depth", "GROWS"): Advice("inner rates grow too fast with depth", "Use 'complete-p'.", _COMPLETE),
    ("stream_update", "depth", "COLLAPSES"): Advice(
        "outer layers learn less than 1/L of the stream each", "Raise their rate."
    ),
    ("stream_update", "depth", "GROWS"): Advice(
        "outer layers add more than 1/L of the stream each",
        "Use 'complete-p'.",
        _DEPTH,
        "their rates do not fall with depth",
    ),
    ("function_update", "depth", "GROWS"): Advice(
        "a step moves the function further the deeper the network",
        "Lower the rate as depth grows, or use 'complete-p'.",
        _COMPLETE,
    ),
    ("function_update", "depth", "COLLAPSES"): Advice("a step moves the function less the deeper the network"),
    ("function_update_inner", "depth", "GROWS"): Advice(
        "inner updates add up coherently over the blocks (under Eq. 8 as sqrt(L), its price)",
        "Use 'complete-p', or lower the rate as depth grows.",
        _COMPLETE,
    ),
    ("function_update_inner", "depth", "COLLAPSES"): Advice(
        "the effect of inner layers on the function vanishes with depth"
    ),
    ("update_to_weight", "depth", "COLLAPSES"): Advice(
        "inner weights hardly move relative to their initial size in deep networks"
    ),
    ("update_to_weight", "depth", "GROWS"): Advice(
        "inner weights move further relative to their initial size the deeper the network",
        "Lower their rate as depth grows.",
    ),
    ("gradient", "depth", "COLLAPSES"): Advice(
        "gradients vanish on their way down", "Check norms and residual multipliers."
    ),
    ("gradient", "depth", "GROWS"): Advice(
        "gradients explode on their way down", "Use 'complete-p'.", _DEPTH, "branches carry no 1/sqrt(L)"
    ),
    (ALIGNMENT, "width", "STABLE"): Advice(
        "updates stay aligned with their inputs, as mup and similar rules assume: sums over n coordinates grow as n"
    ),
    (ALIGNMENT, "width", "COLLAPSES"): Advice(
        "updates and their inputs lose their alignment with width: sums over n coordinates no longer grow as n, as mup "
        "and similar rules assume",
        "The best rate need not transfer to training of this length: find it at several widths, by nfd transfer.",
    ),
    (ALIGNMENT, "width", "GROWS"): Advice("updates are better aligned with their inputs in wide networks"),
    ("loss", "depth", "COLLAPSES"): Advice("the loss falls with depth: more blocks pay"),
    ("loss", "depth", "GROWS"): Advice("the same rate does worse the deeper the network: it does not transfer"),
    ("loss", "width", "COLLAPSES"): Advice("the loss falls with width: more width pays"),
    ("loss", "width", "GROWS"): Advice("the same rate does worse the wider the network: it does not transfer"),
}
_BY_TRAINING: dict[tuple[str, Axis, Verdict], Advice] = {
    ("activation", "depth", "GROWS"): Advice(
        "the residual stream grows with depth by training, and not at the start",
        "Use 'complete-p'.",
        _DEPTH,
        "rates do not fall with depth",
    ),
}


def advice_of(meter: str, axis: Axis, word: Verdict, reason: Reason = "trend") -> Advice | None:
    """The advice for a verdict; None where there is none."""
    known = ADVICE.get((meter, axis, word))
    return _BY_TRAINING.get((meter, axis, word), known) if reason == "training" else known


def cure_of_all(faults: Iterable[Mapping[str, Any]], rule: str) -> RuleName | None:
    """The rule that has the remedy of every one of these rows built in; None where there is none."""
    remedies = [ADVICE.get((row["meter"], row["axis"], row["verdict"])) for row in faults]
    shared = [name for name in RULES if all(advice and name in advice.rules for advice in remedies)]
    return shared[-1] if shared and rule not in shared else None


def cause(meter: str, axis: Axis, word: Verdict, rule: RuleName | None = None, reason: Reason = "trend") -> str:
    """What a verdict means, for those in ``ADVICE``: one or two sentences on what was seen and on its remedy.

    Where the rule in use has the remedy built in, it is not named as the cure: something else is wrong.
    """
    known = advice_of(meter, axis, word, reason)
    if known is None:
        return ""
    if rule in known.rules:
        return (
            f"{known.seen}; {rule!r} should keep it: check roles, base and rate, and take more steps or larger sizes."
        )
    because = f": {known.because}" if known.because else ""
    return f"{known.seen}{because}. {known.remedy}".rstrip()
