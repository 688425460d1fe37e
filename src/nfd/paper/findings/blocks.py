"""Two-layer blocks: do their inner layers learn, under uniform rates and under Eq. 8?"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nfd.core import Axes, Finding, Row, RuleName, columns, listed, log_slope, mean
from nfd.meters import THRESHOLDS
from nfd.paper.slopes import fitted, power, slope_table
from nfd.paper.study import BLOCK_RULES, Study

_RULES: dict[RuleName, str] = {"depth-mup": "uniform rates", "depth-mup-inner": "Eq. 8"}
_METERS = {
    "inner_update": "inner update",
    "stream_update": "stream update",
    "function_update": "function update",
    "function_update_inner": "function update by inner layers",
}
_MEANINGS = {
    ("inner_update", "COLLAPSES"): "inner features learn less and less as depth grows",
    ("inner_update", "STABLE"): "inner features learn at every depth",
    ("inner_update", "GROWS"): "inner features move more the deeper the network",
    ("function_update_inner", "COLLAPSES"): "the effect of inner layers on the function vanishes with depth",
    ("function_update_inner", "STABLE"): "the effect of inner layers on the function depends little on depth",
    ("function_update_inner", "GROWS"): "the effect of inner layers on the function grows with depth",
}
_CAPTION = (
    "Bars: 95 % intervals over {seeds} networks of width {width}. RMS, on held-out samples, of what training changed: "
    "inner update x - x~ (Eq. 27, x~ from the initial inner weights on the present stream), stream update dh/dt "
    "- dh~/dt (Eqs. 33 and 34, the same for the outer weights), function update f - f(0), and f minus f with the inner "
    "weights reset. Uniform rates: eta_c n for both matrices of a block; Eq. 8: eta_c n sqrt(L) for the inner one. "
    "{thresholds}"
)

Samples = dict[int, dict[str, Tensor]]


def blocks(study: Study, steps: int) -> Finding | None:
    """Updates of two-layer blocks after ``steps`` against depth, with slopes and verdicts."""
    rows: list[Row] = []
    slopes: list[Row] = []
    for rule in BLOCK_RULES:
        samples = _samples(study, rule, steps)
        if len(samples) > 1:
            for meter in _METERS:
                more, slope = _line(rule, meter, samples)
                rows, slopes = rows + more, [*slopes, slope]
    if not slopes:
        return None
    c = study.config
    return Finding(
        f"updates-{'first' if steps == 1 else 'last'}",
        f"Do the inner layers of two-layer blocks learn? After {'the first step' if steps == 1 else f'{steps} steps'}:",
        _headline(slopes),
        rows,
        Axes("depth", "update", "depth", "RMS update", "logarithmic", colour="meter", dash="rule"),
        _CAPTION.format(seeds=c.block_seeds, width=c.block_width, thresholds=THRESHOLDS),
        _divergence(study, steps),
        slopes,
        slope_table(slopes, verdicts=True),
    )


def _line(rule: RuleName, meter: str, samples: Samples) -> tuple[list[Row], Row]:
    depths, values = list(samples), torch.stack([s[meter] for s in samples.values()], 1)
    series = f"{_METERS[meter]}, {_RULES[rule]}"
    about = {"rule": rule, "meter": meter}
    rows = [
        {"series": series, **about, "depth": depth} | columns("update", mean(values[:, k]))
        for k, depth in enumerate(depths)
    ]
    return rows, fitted(series, lambda r: log_slope(depths, r.mean(0)), values) | about


def _samples(study: Study, rule: RuleName, steps: int) -> Samples:
    """Depth to meter to values [seeds], of depths where every network finished."""
    samples: Samples = {}
    for depth in study.config.block_depths:
        own = [r for r in study.measured.blocks if (r["rule"], r["depth"], r["steps"]) == (rule, depth, steps)]
        if len(own) == study.config.block_seeds and not any("diverged_at" in r for r in own):
            samples[depth] = {m: torch.tensor([row[m] for row in own], dtype=torch.float64) for m in _METERS}
    return samples


def _headline(slopes: Sequence[Row]) -> str:
    sentences = []
    for rule, name in _RULES.items():
        own = {row["meter"]: row for row in slopes if row["rule"] == rule}
        parts = [
            f"{_MEANINGS.get((meter, own[meter]['verdict']), f'the trend of the {_METERS[meter]} is uncertain')} "
            f"({power('L', own[meter])})"
            for meter in ("inner_update", "function_update_inner")
            if meter in own
        ]
        if parts:
            sentences.append(f"With {name}, " + " and ".join(parts) + ".")
    return " ".join(sentences)


def _divergence(study: Study, steps: int) -> list[str]:
    diverged = []
    for rule, name in _RULES.items():
        ended = [r for r in study.measured.blocks if r["rule"] == rule and r["steps"] == steps and "diverged_at" in r]
        if ended:
            depths = sorted({row["depth"] for row in ended})
            diverged.append(f"{len(ended)} networks with {name}, of depth {listed(depths)}")
    return [f"Training diverged: {'; '.join(diverged)}. These depths are left out; lower eta_c."] if diverged else []
