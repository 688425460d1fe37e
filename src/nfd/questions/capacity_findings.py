"""The charts of a law of size: the ceiling, and the map of sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from nfd.core.tables import Row
from nfd.questions.budget import BestSize, Cost, Costs, SizeLaw
from nfd.questions.capacity_answers import Answers
from nfd.questions.finding import Axes, Finding, SeriesRole, columns
from nfd.questions.scaling_law import mean_of

_LEVELS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # of excess loss, as shares of the floor
_POINTS = 60  # of a line of the map
Span = tuple[float, float]
_UNITS = {"parameters": "parameters", "memory": "bytes of memory", "flops": "floating-point operations"}


def capacity_findings(answers: Answers) -> list[Finding]:
    """Every chart that the runs have numbers for."""
    capacity = answers.capacity
    findings = [_ceiling(answers)]
    if capacity.law.good and capacity.costs is not None:
        findings.append(_map(answers, capacity.costs))
    return findings


def _ceiling(answers: Answers) -> Finding:
    """Measured losses against the last variable of the law, a line per size of the others, over the floors."""
    capacity, rows = answers.capacity, list[Row]()
    *others, last = capacity.law.variables
    for size, losses in sorted(capacity.losses.items()):
        if all(math.isfinite(loss) for loss in losses):
            sizes = dict(zip(capacity.law.variables, size, strict=True))
            series = ", ".join(f"{name} {sizes[name]:g}" for name in others) or "runs"
            rows.append({"series": series} | sizes | columns("loss", mean_of(losses)))
    floors = {"floor of the law": capacity.law.floor} if capacity.law.good else {}
    places = sorted({size[-1] for size in capacity.losses})
    rows += [
        {"series": name} | dict.fromkeys(others, math.inf) | {last: place} | columns("loss", floor)
        for name, floor in floors.items()
        for place in places
    ]
    colour = others[0] if others else "series"
    return Finding(
        "ceiling",
        "How far is a network from its ceiling?",
        answers.sentences[0],
        rows,
        Axes(last, "loss", last, f"{capacity.score} after training", "semilogarithmic", zero=False, colour=colour),
        f"Bars: 95 % intervals over seeds. {capacity.about}",
    )


def _map(answers: Answers, costs: Costs) -> Finding:
    """Lines of equal excess loss over width and depth, the budgets, and the sizes to choose."""
    law, asked = answers.capacity.law, [] if answers.size is None else [answers.size]
    sizes = {resource: size for resource, size in answers.sizes.items() if isinstance(size, BestSize)}
    places = [law.smallest, law.largest, *asked, *((size.width, size.depth) for size in sizes.values())]
    widths, depths = zip(*places, strict=True)
    spans = (min(widths) / 1.2, 4 * max(widths)), (min(depths) / 1.2, 4 * max(depths))
    rows = list[Row]()
    for share in _LEVELS:
        excess = share * law.floor.value
        level = _line(f"{excess:.2g} nats above the floor", spans, partial(_depth_for, law, excess))
        rows += [row | {"role": SeriesRole.LEVEL} for row in level]
    for resource, size in sizes.items():
        name = f"budget of {size.cost:.2g} {_UNITS[resource]}"
        rows += _line(name, spans, partial(_depth_within, costs.cost(resource), size.cost))
        best = f"best for it: width {size.width} and depth {size.depth} ({resource})"
        rows.append({"series": best, "width": size.width, "depth": size.depth})
    rows += [{"series": "your network", "width": n, "depth": L} for n, L in asked]
    (narrow, shallow), (wide, deep) = law.smallest, law.largest
    fitted = f"widths {narrow:g}..{wide:g} and depths {shallow:g}..{deep:g}"
    return Finding(
        "map",
        "How big should it be?",
        " ".join(map(answers.of_budget, sizes)),
        rows,
        Axes("width", "depth", "width n", "depth L", "map"),
        f"Lines of equal excess a/n + b/L, the first order of the law, which was fitted to {fitted}. "
        f"{answers.capacity.about}",
    )


def _line(name: str, spans: tuple[Span, Span], depth: Callable[[float], float | None]) -> list[Row]:
    """``depth(n)`` at widths of the map, where it lies inside."""
    (left, right), (bottom, top) = spans
    widths = [left * (right / left) ** (k / (_POINTS - 1)) for k in range(_POINTS)]
    places = [(n, L) for n in widths if (L := depth(n)) is not None and bottom <= L <= top]
    return [{"series": name, "width": n, "depth": L} for n, L in places] if len(places) > 1 else []


def _depth_for(law: SizeLaw, excess: float, n: float) -> float | None:
    """The depth at which a network of width n has this excess loss."""
    a, b = law.terms["a"].value, law.terms["b"].value
    left = excess - a / n
    return b / left if left > 0 and b > 0 else None


def _depth_within(cost: Cost, budget: int, n: float) -> float | None:
    """The depth that the budget pays for at width n."""
    room = budget - cost.constant - cost.per_width * n - cost.per_square * n * n
    return room / (cost.per_block + cost.per_layer * n + cost.per_matrix * n * n) if room > 0 else None
