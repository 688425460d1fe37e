"""The answers of a law of the loss about a network and about budgets, for a report: sentences, numbers and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from nfd.core.errors import InputError
from nfd.core.estimates import mean
from nfd.core.findings import Axes, Finding, SeriesRole, columns
from nfd.core.tables import Row
from nfd.forecasts.budget import BestSize, BestSplit, Cost, Costs, Resource, check_resource
from nfd.forecasts.law import Law
from nfd.forecasts.scaling_law import ScalingLaw


@dataclass(frozen=True)
class Answers:
    """The answers about a network of a size (width, depth), and about the best size for each budget."""

    fitted: ScalingLaw
    size: tuple[int, int] | None
    budgets: dict[Resource, str | int]

    @cached_property
    def best(self) -> dict[Resource, BestSize | BestSplit | InputError]:
        """The best size for every budget, or why a budget has none."""
        found = dict[Resource, BestSize | BestSplit | InputError]()
        for resource, budget in self.budgets.items():
            try:
                found[resource] = self.fitted.best(**{str(resource): budget})
            except InputError as error:
                found[resource] = error
        return found

    @property
    def sizes(self) -> dict[Resource, BestSize | BestSplit]:
        """The best sizes that there are."""
        return {resource: size for resource, size in self.best.items() if not isinstance(size, InputError)}

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the most important first."""
        law, held = self.fitted.law, self.fitted.held_out
        if not law.good:
            return [f"The law {law.equation} may not be used beyond the sizes trained, and gives no floor. {law.note}"]
        sentences = [f"The law: {law.formula}; it holds ({law.test}). {law.note}".strip()]
        if self.size is not None:
            n, L = self.size
            left = law.excess(n, L)
            better = ": it is better than the infinite network" if left.high < 0 else ""
            sentences.append(
                f"A network of {self.fitted.named(self.size)} loses {left.unsigned} nats to its size{better}. Doubling "
                f"its width buys {law.bought(n, L, 2 * n, L)}, doubling its depth {law.bought(n, L, n, 2 * L)}."
            )
        sentences += map(self.of_budget, self.best)
        if held is not None:
            outcome = "holds" if held.inside else "fails, as their mean lies outside of its interval"
            sentences.append(
                f"Held out: for the mean of {held.networks} networks of {self.fitted.named(held.size)} the law "
                f"predicted {held.predicted.unsigned}; trained, they reach {held.measured.unsigned}: the prediction "
                f"{outcome}."
            )
        return sentences

    def of_budget(self, resource: Resource) -> str:
        """The best size for a budget, or why there is none."""
        budget, size = self.budgets[resource], self.best[resource]
        if isinstance(size, InputError):
            return f"For {budget} of {resource} there is no best size: {size}"
        shown = f"{budget:,} {resource}" if isinstance(budget, int) else f"{budget} of {resource}"
        return f"For {shown} the best size is {size}"

    @property
    def result(self) -> dict[str, Any]:
        """The answers as ``result.json`` holds them."""
        law, held = self.fitted.law, self.fitted.held_out
        content: dict[str, Any] = {"fit": law.content}
        if held is not None:
            size = dict(zip(law.variables, held.size, strict=True)) | {"networks": held.networks, "inside": held.inside}
            content["held_out"] = size | {"predicted": held.predicted.limits, "measured": held.measured.limits}
        if law.good:
            content["best"] = {resource: size.content for resource, size in self.sizes.items()}
        if law.good and self.size is not None:
            n, L = self.size
            wider, deeper = law.bought(n, L, 2 * n, L).limits, law.bought(n, L, n, 2 * L).limits
            content["network"] = {"width": n, "depth": L, "excess": law.excess(n, L).limits}
            content["network"] |= {"doubling_width": wider, "doubling_depth": deeper}
        return content


def answers_of(fitted: ScalingLaw, size: Mapping[str, int], budgets: Mapping[str, str]) -> Answers:
    """The answers about a network, by default the largest of the fit, and about budgets, by default its parameters.

    A law that is not in width and depth says nothing of a network of theirs.
    """
    asked: dict[Resource, str | int] = {check_resource(name): budget for name, budget in budgets.items()}
    if fitted.law.variables != ("width", "depth"):
        return Answers(fitted, None, asked)
    width, depth = map(int, fitted.law.largest)
    if not asked and fitted.costs is not None and "parameters" in fitted.costs.by_resource:
        asked["parameters"] = fitted.costs.cost("parameters").at(width, depth)
    return Answers(fitted, (size.get("width", width), size.get("depth", depth)), asked)


# ---- The charts: the floor under the measured losses, and the map of sizes.


_LEVELS = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # of excess loss, as shares of the floor
_POINTS = 60  # of a line of the map
_UNITS = {"parameters": "parameters", "flops": "floating-point operations"}


def charts(answers: Answers) -> list[Finding]:
    """Every chart that the runs have numbers for."""
    costs = answers.fitted.costs
    return [_ceiling(answers), *([_map(answers, costs)] if answers.fitted.law.good and costs is not None else [])]


def _ceiling(answers: Answers) -> Finding:
    """Measured losses against the last variable of the law, a line per size of the others, over the floors."""
    fitted, rows = answers.fitted, list[Row]()
    *others, last = fitted.law.variables
    for size, losses in sorted(fitted.losses.items()):
        if all(math.isfinite(loss) for loss in losses):
            sizes = dict(zip(fitted.law.variables, size, strict=True))
            series = ", ".join(f"{name} {sizes[name]:g}" for name in others) or "runs"
            rows.append({"series": series} | sizes | columns("loss", mean(losses)))
    floor = {"series": "floor of the law"} | dict.fromkeys(others, math.inf) | columns("loss", fitted.floor)
    places = sorted({size[-1] for size in fitted.losses}) if fitted.law.good else []
    rows += [floor | {last: place} for place in places]
    colour = others[0] if others else "series"
    return Finding(
        "ceiling",
        "How far is a network from its ceiling?",
        answers.sentences[0],
        rows,
        Axes(last, "loss", last, f"{fitted.score} after training", "semilogarithmic", zero=False, colour=colour),
        f"Bars: 95 % intervals over seeds. {fitted.about}",
    )


def _map(answers: Answers, costs: Costs) -> Finding:
    """Lines of equal excess loss over width and depth, the budgets, and the sizes to choose."""
    law, asked = answers.fitted.law, [] if answers.size is None else [answers.size]
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
        f"{answers.fitted.about}",
    )


def _line(
    name: str, spans: tuple[tuple[float, float], tuple[float, float]], depth: Callable[[float], float | None]
) -> list[Row]:
    """``depth(n)`` at widths of the map, where it lies inside."""
    (left, right), (bottom, top) = spans
    widths = [left * (right / left) ** (k / (_POINTS - 1)) for k in range(_POINTS)]
    places = [(n, L) for n in widths if (L := depth(n)) is not None and bottom <= L <= top]
    return [{"series": name, "width": n, "depth": L} for n, L in places] if len(places) > 1 else []


def _depth_for(law: Law, excess: float, n: float) -> float | None:
    """The depth at which a network of width n has this excess loss."""
    a, b = law.terms["a"].value, law.terms["b"].value
    left = excess - a / n
    return b / left if left > 0 and b > 0 else None


def _depth_within(cost: Cost, budget: int, n: float) -> float | None:
    """The depth that the budget pays for at width n."""
    room = budget - cost.constant - cost.per_width * n - cost.per_square * n * n
    return room / (cost.per_block + cost.per_layer * n + cost.per_matrix * n * n) if room > 0 else None
