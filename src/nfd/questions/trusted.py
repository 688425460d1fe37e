"""The law of the rungs of a ladder that may be trusted: the smallest can bend it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from nfd.questions.capacity import HeldOut, largest_held_out
from nfd.questions.law import Losses
from nfd.questions.power_fit import fit_power_law, without_smallest
from nfd.questions.power_law import PowerLaw

_FAILS = "From the others the law does not predict the largest size."
_LEFT_OUT = "Smaller sizes were left out until the law held and predicted the largest size from the others."


def trusted_law(variables: tuple[str, ...], losses: Losses) -> tuple[PowerLaw, HeldOut | None]:
    """The law of the rungs from which it holds and predicts the largest, and how; where no rungs are, that of all."""
    fit, kept = partial(fit_power_law, variables), losses
    whole = law, held_out = fit(losses), largest_held_out(fit, losses)
    while not law.good or (held_out is not None and not held_out.inside):
        left = without_smallest(variables, kept)
        if left is None:
            return replace(whole[0], good=False, note=whole[0].note or _FAILS), whole[1]
        kept, law, held_out = left, fit(left), largest_held_out(fit, left)
    return law if kept is losses else replace(law, note=f"{_LEFT_OUT} {law.note}".strip()), held_out
