"""The table of claims, and what they are judged by.

That is runs of the figures, runs of more networks, and new computations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from nfd import Sweep
from nfd.paper.claims import blocks, independence, limit, shape, theory, untrained
from nfd.paper.claims.claim import Claim, Evidence, PartsAtNeed, figure_of, only_of
from nfd.paper.figures import FIGURES
from nfd.paper.figures.figure import Figure, Parts, Settings, dataset_for, trained
from nfd.paper.settings import FigureConfig, Preset

# The runs that claims need beside the runs of the figures. A part named 4-gains has more seeds or
# steps than the part of Figure 4 that it stands for (Evidence.part), which leaves the claim
# undecided.


_RATES = [0.1768, 0.25, 0.3536, 0.5, 0.7071, 1.0, 1.414, 2.0, 2.828, 4.0, 5.657]
_LOW_RATES = [0.0884, 0.125, 0.1768, 0.25, 0.3536, 0.5, 0.7071, 1.0]

_FEEDBACKS = ["shared", "independent"]
_ONE_LAYER = {
    "rule": ["mup", "depth-mup"],
    "depth": [3, 6, 9],
    "width": 128,
    "batch": 128,
    "eta_c": [0.0625, 0.0884, 0.125, *_RATES],
}
_WIDTH = {"depth": 3, "width": [32, 64, 128, 256], "batch": 128, "eta_c": _RATES}
_GAP = {
    "feedback": _FEEDBACKS,
    "depth": [4, 8, 16, 32],
    "width": 128,
    "batch": 128,
    "eta_c": [0.02, 0.5],
}
_GAINS = {"depth": 32, "batch": 128, "eta_c": 0.1, "steps": 390, "every": 30, "seeds": 8}
_ALIGNED = {
    "rule": "depth-mup",
    "feedback": _FEEDBACKS,
    "depth": [4, 8, 16, 32, 64],
    "batch": 128,
    "eta_c": 0.1,
    "steps": 390,
    "every": 30,
}
_UNSTEADY = {"rule": "mup", "depth": 16, "batch": 128, "eta_c": 0.1, "steps": 390, "seeds": 8}
_LONG = {"epochs": 30, "seeds": 5}
_TOY = {"steps": 6, "seeds": 3}

_MORE: dict[str, Settings] = {
    "1-training": {
        "order": ["pre", "post"],
        "depth": 64,
        "width": 128,
        "batch": 128,
        "eta_c": 0.01,
        "steps": 390,
        "seeds": 40,
    },
    "2-depth": {
        "depth": [5, 10],
        "width": 128,
        "batch": 128,
        "eta_c": 0.1,
        "steps": 390,
        "seeds": 12,
    },
    "2-large": {
        "horizon": [2.0, 16.0, 32.0],
        "depth": 5,
        "width": 128,
        "batch": 128,
        "eta_c": 0.1,
        "steps": 780,
        "seeds": 8,
    },
    "3-width": {
        "depth": 3,
        "width": [32, 64, 128, 256],
        "batch": 128,
        "eta_c": [1.414, 2.0],
        "steps": 390,
        "seeds": 12,
    },
    "3-depth": {
        "depth": [4, 8, 16, 32, 64],
        "width": 512,
        "batch": 16,
        "eta_c": 0.3,
        "meter": "outputs",
        "coupled": True,
        "steps": 32,
        "seeds": 8,
    },
    "4-depth-mup": {**_ALIGNED, "width": 128, "seeds": 8},
    "4-gains": {**_GAINS, "width": 128},
    "4-unsteady": {**_UNSTEADY, "width": 128},
    "5-stream": {
        "block": "two-layer",
        "rule": "depth-mup-inner",
        "depth": [4, 8, 16, 32, 64, 128],
        "width": 128,
        "batch": 128,
        "eta_c": 0.1,
        "meter": "updates",
        "steps": 300,
        "every": 100,
        "seeds": 10,
    },
    "5-longer": {
        "block": "two-layer",
        "rule": "depth-mup",
        "depth": [3, 9],
        "width": 128,
        "batch": 128,
        "eta_c": [0.5, 0.7071, 1.0, 1.414, 2.0, 2.828],
        "steps": 1170,
        "seeds": 8,
    },
    "5-transfer": {
        "block": "two-layer",
        "rule": "depth-mup-inner",
        "depth": [3, 6, 9],
        "width": 128,
        "batch": 128,
        "eta_c": [0.1768, 0.25, 0.3536, 0.5, 0.7071, 1.0, 1.414, 2.0, 2.828, 4.0],
        "steps": 390,
        "seeds": 8,
    },
    # What docs/sweeps.md has at depths to 256.
    "5-deeper": {
        "block": "two-layer",
        "rule": ["depth-mup", "depth-mup-inner"],
        "depth": [8, 32, 128],
        "width": 128,
        "batch": 128,
        "eta_c": [0.25, 0.3536, 0.5, 0.7071, 1.0, 1.414, 2.0, 2.828],
        "steps": 60,
        "seeds": 3,
    },
    "5-tuned": {
        "block": "two-layer",
        "rule": ["depth-mup", "depth-mup-inner"],
        "depth": 3,
        "width": 64,
        "batch": 128,
        "eta_c": [0.7071, 1.0, 1.414, 2.0, 2.828],
        "steps": 390,
        "seeds": 40,
    },
    "7-depth-mup": {**_ALIGNED, "width": 256, "seeds": 8},
    "7-gains": {**_GAINS, "width": 256},
    "7-unsteady": {**_UNSTEADY, "width": 256},
}

PARTS: dict[Preset, Parts] = {
    "smoke": {
        "one-layer": {
            "rule": ["mup", "depth-mup"],
            "depth": [2, 4],
            "width": 12,
            "eta_c": [0.25, 0.5, 1.0],
            **_TOY,
        },
        "width": {"depth": 2, "width": [12, 24], "eta_c": [0.25, 0.5, 1.0], **_TOY},
        "rates": {
            "feedback": _FEEDBACKS,
            "depth": [2, 4],
            "width": 12,
            "eta_c": [0.02, 0.5],
            **_TOY,
        },
    },
    "cpu": {
        "one-layer": {**_ONE_LAYER, "steps": 390, "seeds": 4},
        "mup-deep": {
            "rule": "mup",
            "depth": 12,
            "width": 128,
            "batch": 128,
            "eta_c": _LOW_RATES,
            "steps": 390,
            "seeds": 4,
        },
        "width": {**_WIDTH, "steps": 390, "seeds": 4},
        "rates": {**_GAP, "steps": 390, "seeds": 3},
        **_MORE,
    },
    "paper": {
        "one-layer": {**_ONE_LAYER, **_LONG},
        "width": {**_WIDTH, **_LONG},
        "rates": {**_GAP, **_LONG},
    },
}

RUNS = Figure("claims", "What claims need beside the figures", PARTS, lambda runs, data: [])


# ---- The table of claims: every statement judged, from the runs of the figures and new
# computations

# In the order of the text.
CLAIMS: tuple[Claim, ...] = (
    *theory.REGIMES,
    *untrained.POST_ACTIVATION,
    *untrained.FORWARD,
    *theory.KERNELS,
    *shape.SHAPE,
    *untrained.BACKWARD,
    *shape.CONVERGENCE,
    *theory.IDENTITIES,
    *limit.LIMIT,
    *limit.FIRST_STEP,
    *independence.INDEPENDENCE,
    *untrained.TWO_LAYER,
    *blocks.BLOCKS,
    *blocks.SPECTRA,
)


def evidence_for(config: FigureConfig, sweep: Sweep, say: Callable[..., object]) -> Evidence:
    """Return the runs of every figure, trained where a claim first reads them.

    ``say`` gets how many there are to train.
    """
    runs: dict[str, PartsAtNeed] = {}
    for number, figure in {**FIGURES, "claims": RUNS}.items():
        train = partial(trained, figure, config, sweep, say)
        runs[number] = PartsAtNeed(figure.parts[config.size], train)
    return Evidence(config.size, dataset_for(config), config.seed, runs)


def chosen(names: Sequence[str]) -> list[Claim]:
    """Return the claims with these names, in the order of the text; without names, all.

    A name is an id, its beginning, or a figure such as ``fig5``.
    """
    if not names:
        return list(CLAIMS)
    chosen = []
    for claim in CLAIMS:
        if any(_is_named(claim, name) for name in names):
            chosen.append(claim)
    return chosen


def ids_of(figure: str) -> list[str]:
    """Return the ids of the claims about a figure, such as "figure-5"."""
    return [claim.id for claim in CLAIMS if figure_of(claim.id, claim.source) == figure]


def _is_named(claim: Claim, name: str) -> bool:
    if f"{claim.id}-".startswith(f"{name}-"):
        return True
    figure = figure_of(claim.id, claim.source)
    return figure is not None and only_of(figure) == name
