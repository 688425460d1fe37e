"""The findings of a study: measurements reduced to tidy rows, fitted slopes and sentences, one per chart."""

from __future__ import annotations

from nfd.core import Finding
from nfd.paper.findings.blocks import blocks
from nfd.paper.findings.distances import by_depth, by_width
from nfd.paper.findings.gap import gap
from nfd.paper.findings.losses import losses
from nfd.paper.study import Study

NAMES = ("loss-shared", "loss-independent", "gap", "distance-width", "distance-depth", "updates-first", "updates-last")

__all__ = ["NAMES", "Finding", "findings"]


def findings(study: Study) -> list[Finding]:
    """Everything that can be said from what has been measured, in the order of the report."""
    drawn = [losses(study, "shared"), losses(study, "independent"), gap(study), by_width(study), by_depth(study)]
    drawn += [blocks(study, steps) for steps in sorted({1, study.config.steps})]
    return [finding for finding in drawn if finding is not None]
