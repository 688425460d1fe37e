"""Old names of ``nfd.laws``, which warn until 0.5."""

from __future__ import annotations

from nfd.core.notices import moved

__getattr__ = moved(
    __name__,
    {
        "BestSplit": "nfd.laws",
        "LadderLaw": "nfd",
        "NextRun": "nfd.laws",
        "BestSize": "nfd.laws",
        "ScalingLaw": "nfd",
        "fit_scaling_law": "nfd",
    },
)
