"""The table of claims: every statement judged, from the runs of the figures and new computations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nfd import Sweep
from nfd.core import bar
from nfd.paper.claims import (
    backward,
    blocks,
    convergence,
    first_step,
    forward,
    identities,
    independence,
    kernels,
    limit,
    post_activation,
    regimes,
    shape,
    spectra,
    two_layer,
)
from nfd.paper.claims.claim import Claim, figure_of, only_of
from nfd.paper.claims.evidence import Evidence, PartsAtNeed
from nfd.paper.claims.extra_runs import RUNS
from nfd.paper.figures import FIGURES
from nfd.paper.figures.figure import Figure
from nfd.paper.figures.making import dataset_for, trained
from nfd.paper.figures.selection import Runs
from nfd.paper.settings import FigureConfig

CLAIMS: tuple[Claim, ...] = (  # in the order of the text
    *regimes.CLAIMS,
    *post_activation.CLAIMS,
    *forward.CLAIMS,
    *kernels.CLAIMS,
    *shape.CLAIMS,
    *backward.CLAIMS,
    *convergence.CLAIMS,
    *identities.CLAIMS,
    *limit.CLAIMS,
    *first_step.CLAIMS,
    *independence.CLAIMS,
    *two_layer.CLAIMS,
    *blocks.CLAIMS,
    *spectra.CLAIMS,
)

_FIGURES: Mapping[str, Figure] = {**FIGURES, "claims": RUNS}


def evidence_for(
    config: FigureConfig, sweep: Sweep, say: Callable[[str], object] = lambda text: None, *, at_need: bool = False
) -> Evidence:
    """The runs of every figure, trained where they are not stored; ``say`` gets how many there are to train.

    Args:
        at_need: train a part when a claim first reads it, in place of all parts now.
    """
    dataset = dataset_for(config)
    runs: dict[str, Mapping[str, Runs]] = {}
    for number, figure in _FIGURES.items():
        train = partial(trained, figure, config, sweep, say)
        runs[number] = PartsAtNeed(figure.parts[config.size], train) if at_need else train()
    return Evidence(config.size, dataset, config.seed, runs)


def chosen(names: Sequence[str]) -> list[Claim]:
    """The claims with these ids, ids that begin so, or figures (``fig5``), in the order of the text; all for none."""
    return [claim for claim in CLAIMS if not names or any(_is_named(claim, name) for name in names)]


def ids_of(figure: str) -> list[str]:
    """The ids of the claims about a figure, such as "figure-5"."""
    return [claim.id for claim in CLAIMS if figure_of(claim.id, claim.source) == figure]


def _is_named(claim: Claim, name: str) -> bool:
    figure = figure_of(claim.id, claim.source)
    return f"{claim.id}-".startswith(f"{name}-") or (figure is not None and only_of(figure) == name)


def updated(rows: Sequence[Mapping[str, Any]], judged: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows with those that were judged again in their places, in the order of the text."""
    by_id = {row["id"]: dict(row) for row in (*rows, *judged)}
    return [by_id[claim.id] for claim in CLAIMS if claim.id in by_id]


def table(evidence: Evidence, claims: Sequence[Claim] = CLAIMS, *, progress: bool = False) -> list[dict[str, Any]]:
    """One line for every claim."""
    with bar("claims", enabled=progress) as shown:
        shown.plan(float(len(claims)))
        rows = []
        for claim in claims:
            shown.plan(0.0, claim.id)
            rows.append(claim.row(evidence))
            shown.advance(1.0)
    return rows
