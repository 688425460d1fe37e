"""The law of some runs that may be trusted: the smallest can bend it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from nfd.questions.capacity import HeldOut, largest_held_out, shorter
from nfd.questions.law import Law, Losses
from nfd.questions.law_fit import fit_law
from nfd.questions.power_fit import fit_power_law, without_smallest
from nfd.questions.power_law import PowerLaw

_FAILS = "From the others the law does not predict the largest size: train it from other seeds, or a larger one."
_LEFT_OUT = "Smaller sizes were left out until the law held and predicted the largest size from the others."


def judged_law(variables: tuple[str, ...], losses: Losses, *, paired: bool) -> dict[str, Any]:
    """The law, and what holds it to account: fields of a ``Capacity``, the same for runs that were trained here and for
    those of a log.

    Args:
        variables: what the sizes are. losses: of the runs. paired: whether the i-th of all sizes are of one seed.
    """
    law: Law | PowerLaw
    if variables == ("width", "depth") and min(map(len, losses.values())) > 1:
        fit: Callable[[Any], Any] = partial(fit_law, paired=paired, trim=True)
        law, held_out = fit(losses), largest_held_out(fit, losses)
    else:
        fit = partial(fit_power_law, variables)
        law, held_out = trusted_law(variables, losses)
    return {"law": law, "losses": losses, "held_out": held_out, "shorter": shorter(fit, losses)}


def trusted_law(variables: tuple[str, ...], losses: Losses) -> tuple[PowerLaw, HeldOut | None]:
    """The law of the rungs from which it holds and predicts the largest, and how; where no rungs are, that of all."""
    fit, kept = partial(fit_power_law, variables), losses
    whole = law, held_out = fit(losses), largest_held_out(fit, losses)
    while not law.good or (held_out is not None and not held_out.inside):
        left = without_smallest(variables, kept)
        if left is None:
            fails = whole[0].note if not whole[0].good else f"{_FAILS} {whole[0].note}".strip()
            return replace(whole[0], good=False, note=fails), whole[1]
        kept, law, held_out = left, fit(left), largest_held_out(fit, left)
    return law if kept is losses else replace(law, note=f"{_LEFT_OUT} {law.note}".strip()), held_out
