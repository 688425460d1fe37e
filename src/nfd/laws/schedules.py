"""The schedule of a training run: warm-up and decay of the learning rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from nfd.core.checks import check_choice, check_count, check_real
from nfd.core.errors import InputError

Fall = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True)
class RateSchedule:
    """A schedule of warm-up and decay of the learning rate.

    ``schedule(step, steps)`` is the share of the full rate at a step, counted from 0. It multiplies
    rates, so that the ratios of a plan stay. It is a schedule wherever the library takes one.

    Args:
        warmup: steps before the full rate: step t of them has the share ``(t + 1) / (warmup + 1)``.
        fall: how the rate falls at the end: ``"constant"`` (it does not), ``"linear"`` or
            ``"cosine"``.
        share: of the steps, the last ones, over which it falls, above 0 and at most 1.
        final: the share that would be reached after the last step, from 0 to 1.

    Raises:
        ValueError: naming the argument.

    Example::

        schedule = nfd.RateSchedule(warmup=10, fall="cosine", share=0.5)
        schedule(0, 100), schedule(50, 100)  # 1/11, 1
    """

    warmup: int = 0
    fall: Fall = "constant"
    share: float = 1.0
    final: float = 0.0

    def __post_init__(self) -> None:
        check_choice("fall", self.fall, get_args(Fall))
        check_count("warmup", self.warmup, minimum=0)
        check_real("share", self.share, above=0.0)
        check_real("final", self.final, least=0.0)
        if max(self.share, self.final) > 1:
            raise InputError(
                f"share and final must be at most 1; got {self.share:g} and {self.final:g}."
            )

    def __call__(self, step: int, steps: int) -> float:
        """The share of the full rate at a step."""
        warmed = ramp(step, self.warmup)
        if self.fall == "constant":
            return warmed
        falling = self.share * steps
        progress = min(max((step - (steps - falling)) / falling, 0.0), 1.0)
        height = 1 - progress
        if self.fall == "cosine":
            height = (1 + math.cos(math.pi * progress)) / 2
        return warmed * (self.final + (1 - self.final) * height)


def ramp(step: int, warmup: int) -> float:
    """The share of the full rate at a step of a linear warm-up, 1 after it."""
    return min(1.0, (step + 1) / (warmup + 1))
