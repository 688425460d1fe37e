"""The tables of docs/mathematics/resolution.md from trainings of ``benchmarks.resolution``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.show import fill_page, markdown
from nfd.core.statistics import Interval, log_slope, mean, pooled_slope

PAGE = Path(__file__).parents[1] / "docs" / "mathematics" / "resolution.md"
Row = dict[str, Any]
_KINDS = (("deferred", None), ("structured", 0.001))  # and the resolution that stands for none
_BATCH = 16


class Trainings:
    """What was measured, by settings."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def of(self, **settings: Any) -> list[Row]:
        """Those with these settings, by seed; of one pass unless ``passes`` says otherwise."""
        wanted = {"passes": 1} | settings
        return sorted((row for row in self.rows if wanted.items() <= row.items()), key=lambda row: int(row["seed"]))

    def resolutions(self, **settings: Any) -> list[float]:
        """That were measured under these settings, from the finest."""
        return sorted({row["resolution"] for row in self.of(**settings) if row["resolution"] is not None})

    def biases(self, weights: str, width: int, resolution: float, steps: slice = slice(None)) -> Tensor:
        """What the resolution adds to the mean loss of these steps, ``[seeds]``, in pairs of one seed."""
        reference = dict(_KINDS)[weights]
        exact = {row["seed"]: row for row in self.of(weights=weights, width=width, resolution=reference)}
        pairs = [
            (row, exact[row["seed"]])
            for row in self.of(weights=weights, width=width, resolution=resolution)
            if row["seed"] in exact
        ]
        return torch.stack([losses(row)[steps].mean() - losses(other)[steps].mean() for row, other in pairs])

    def width_bias(self, steps: slice = slice(None)) -> Interval:
        """a of ``loss + a / n`` in the mean loss of these steps, over networks that are exact."""
        exact = [*self.of(weights="dense"), *self.of(weights="deferred", resolution=None)]
        x = torch.tensor([1 / row["width"] for row in exact], dtype=torch.float64)
        y = torch.stack([losses(row)[steps].mean() for row in exact])
        return pooled_slope(x, y, torch.zeros(len(exact)))

    def dense_operations(self, width: float, steps: int) -> float:
        """Of a dense network: quadratic in the width, counted at two widths."""
        (m, at_m), (n, at_n) = [(n, self.of(weights="dense", width=n)[0]["operations"]) for n in (256, 1024)]
        square = (at_n / n - at_m / m) / (n - m)
        per_step = (square * width + at_n / n - square * n) * width / self.of(weights="dense", width=1024)[0]["steps"]
        return float(per_step * steps)


def losses(row: Row) -> Tensor:
    """Of every step."""
    return torch.tensor(row["losses"], dtype=torch.float64)


def shown(samples: Tensor, signed: bool = True) -> str:
    """The mean over seeds, with its interval where there are two."""
    over = mean(samples)
    if len(samples) == 1:
        return f"{over.value:{'+' if signed else ''}.4f}"
    return str(over) if signed else over.unsigned


def rank(rows: Sequence[Row], when: int = -1) -> str:
    """Directions that a layer has, mean over layers and networks: backward and forward, or of the one basis."""
    ranks = torch.tensor([row["ranks"][when] for row in rows], dtype=torch.float64)
    counts = ranks.flatten(0, 1).mean(0)
    return " / ".join(f"{count:,.0f}" for count in counts.reshape(-1).tolist())


def _operations(rows: Sequence[Row]) -> float:
    return float(torch.tensor([row["operations"] for row in rows], dtype=torch.float64).mean())


def bias_table(t: Trainings) -> str:
    """Bias, scatter and operations against the resolution."""
    rows = list[Row]()
    for weights, reference in _KINDS:
        exact = _operations(t.of(weights=weights, width=2048, resolution=reference))
        for epsilon in t.resolutions(weights=weights, width=2048):
            if epsilon == reference:
                continue
            here, differences = t.of(weights=weights, width=2048, resolution=epsilon), t.biases(weights, 2048, epsilon)
            rows.append(
                {
                    "weights": weights,
                    "resolution": epsilon,
                    "directions": rank(here),
                    "bias of the mean loss": shown(differences),
                    "scatter of pairs": float(differences.std()),
                    "operations, of exact": _operations(here) / exact,
                }
            )
    return markdown(rows)


def power_table(t: Trainings) -> str:
    """The power of the bias over all resolutions, and over the finer and the coarser ones."""
    rows = list[Row]()
    for weights, reference in _KINDS:
        every = [e for e in t.resolutions(weights=weights, width=2048) if e != reference]
        for name, chosen in (("all", every), ("three finest", every[:3]), ("three coarsest", every[-3:])):
            y = torch.stack([t.biases(weights, 2048, epsilon) for epsilon in chosen], 1)
            one = y.mean(0)  # of seeds: single ones may be negative where the bias is small
            per_seed = log_slope(chosen, y.clamp_min(0)) if bool((y > 0).all()) else None
            rows.append(
                {
                    "weights": weights,
                    "resolutions": f"{name}: {', '.join(map(str, chosen))}",
                    "power of the mean": float(log_slope(chosen, one)) if bool((one > 0).all()) else None,
                    "mean of powers, over seeds": None if per_seed is None else shown(per_seed, signed=False),
                }
            )
    return markdown(rows)


def steps_table(t: Trainings) -> str:
    """The bias of the loss in quarters of the training."""
    rows = list[Row]()
    for weights, reference in _KINDS:
        for epsilon in t.resolutions(weights=weights, width=2048):
            if epsilon != reference:
                quarters = {
                    f"steps {k} to {k + 25}": shown(t.biases(weights, 2048, epsilon, slice(k, k + 25)))
                    for k in range(0, 100, 25)
                }
                rows.append({"weights": weights, "resolution": epsilon} | quarters)
    return markdown(rows)


def width_table(t: Trainings) -> str:
    """Ranks and bias over widths."""
    rows = list[Row]()
    for weights, reference in _KINDS:
        for width in (512, 2048, 8192):
            for epsilon in t.resolutions(weights=weights, width=width):
                here = t.of(weights=weights, width=width, resolution=epsilon)
                paired = bool(t.of(weights=weights, width=width, resolution=reference)) and epsilon != reference
                bias = shown(t.biases(weights, width, epsilon)) if paired else None
                if epsilon in (0.1, 0.3):
                    row = {"weights": weights, "width": width, "resolution": epsilon}
                    rows.append(row | {"directions": rank(here), "bias of the mean loss": bias})
    return markdown(rows)


def _passes(t: Trainings, width: int, steps: int, passes: int, numbers: Sequence[int]) -> list[Row]:
    rows = list[Row]()
    sizes = {"width": width, "steps": steps, "passes": passes}
    dense = t.dense_operations(width, steps * passes)
    for weights in ("dense", "deferred", "structured"):
        for epsilon in [None] if weights == "dense" else t.resolutions(weights=weights, **sizes):
            here = t.of(weights=weights, resolution=epsilon, **sizes)
            if here:
                by_pass = torch.stack([losses(row).view(passes, steps).mean(1) for row in here])
                means = {f"pass {k}": shown(by_pass[:, k - 1], signed=False) for k in numbers}
                known = "" if weights == "dense" else f"{rank(here, 0)}; {rank(here)}"
                row = {"weights": weights, "resolution": epsilon} | means
                rows.append(row | {"directions": known, "operations, of dense": _operations(here) / dense})
    return rows


def ten_table(t: Trainings) -> str:
    """Ten passes at width 2,048."""
    return markdown(_passes(t, 2048, 20, 10, (1, 4, 10)))


def late_table(t: Trainings) -> str:
    """Sixty passes over few samples."""
    return markdown(_passes(t, 512, 5, 60, (1, 10, 30, 60)))


def cost_table(t: Trainings) -> str:
    """Operations against those of the dense network with the same bias."""
    rows, a = list[Row](), t.width_bias()
    for weights, reference in _KINDS:
        for width in (2048, 8192):
            for epsilon in dict.fromkeys([reference, *t.resolutions(weights=weights, width=width)]):
                here = t.of(weights=weights, width=width, resolution=epsilon)
                bias = 0.0 if epsilon == reference else _bias(t, weights, epsilon)
                if here and bias is not None:
                    steps, ours = here[0]["steps"], _operations(here)
                    same = [slope / (slope / width + bias) for slope in (a.value, a.low, a.high)]
                    gain, low, high = (t.dense_operations(n, steps) / ours for n in same)
                    rows.append(
                        {
                            "weights": weights,
                            "width": width,
                            "resolution": epsilon,
                            "bias, of width and resolution": f"{a.value / width:.4f} + {bias:.4f}",
                            "dense width of the same bias": round(same[0]),
                            "its operations / ours": f"{gain:.2g} [{low:.2g}, {high:.2g}]",
                            "at the same width": t.dense_operations(width, steps) / ours,
                        }
                    )
    return markdown(rows)


def samples_table(t: Trainings) -> str:
    """The same against the samples of the training, at width 2,048; 1 stands for the same cost."""
    rows = list[Row]()
    for weights, reference in _KINDS:
        for epsilon in (reference, 0.1, 0.3):
            (counted,) = [row for row in t.of(weights=weights, width=2048, resolution=epsilon) if "growth" in row]
            tenths = len(counted["growth"])
            shown_row: Row = {"weights": weights, "resolution": epsilon}
            for tenth in (1, 3, 5, 10):
                steps = counted["steps"] * tenth // tenths
                trained = slice(0, steps)
                bias = 0.0 if epsilon == reference else _bias(t, weights, epsilon, trained)
                a = t.width_bias(trained)
                same = [slope / (slope / 2048 + (bias or 0.0)) for slope in (a.value, a.low, a.high)]
                gain, low, high = (t.dense_operations(n, steps) / counted["growth"][tenth - 1] for n in same)
                shown_row[f"{_BATCH * steps:,} samples"] = f"{gain:.2g} [{low:.2g}, {high:.2g}]"
            rows.append(shown_row)
    return markdown(rows)


def _bias(t: Trainings, weights: str, epsilon: float | None, steps: slice = slice(None)) -> float | None:
    """The bias of a resolution as measured at width 2,048, where most pairs are; none below zero."""
    if epsilon is None or epsilon not in t.resolutions(weights=weights, width=2048):
        return None
    return max(0.0, float(t.biases(weights, 2048, epsilon, steps).mean()))


def width_line(t: Trainings) -> str:
    """The bias of width."""
    return f"Here $a$ = {t.width_bias().unsigned}."


TABLES: dict[str, Callable[[Trainings], str]] = {
    "bias": bias_table,
    "power": power_table,
    "steps": steps_table,
    "widths": width_table,
    "ten passes": ten_table,
    "late": late_table,
    "width bias": width_line,
    "cost": cost_table,
    "samples": samples_table,
}


def filled(rows: Sequence[Row], page: Path = PAGE) -> None:
    """Write every table between its marks on the page."""
    trainings = Trainings(rows)
    fill_page(page, {name: table(trainings) for name, table in TABLES.items()})
