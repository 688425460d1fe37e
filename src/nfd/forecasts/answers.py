"""The answers of a law of size for a report: sentences, numbers and charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from nfd.core.errors import InputError
from nfd.core.findings import Axes, Finding, SeriesRole, columns, numbers
from nfd.core.tables import Row
from nfd.forecasts.budget import BestSize, BestSplit, Cost, Costs, Resource, Returns, SizeLaw, check_resource, returns
from nfd.forecasts.scaling_law import Capacity, mean_of

# ---- What a capacity sweep answers about a network and about budgets: as numbers, and in sentences


@dataclass(frozen=True)
class Answers:
    """The answers of some runs about a network of a size (width, depth), and about the best size for each budget."""

    capacity: Capacity
    size: tuple[int, int] | None
    budgets: dict[Resource, str | int]

    @cached_property
    def best(self) -> dict[Resource, BestSize | BestSplit | InputError]:
        """The best size for every budget, or why a budget has none."""
        return {resource: self._best(resource, budget) for resource, budget in self.budgets.items()}

    @property
    def sizes(self) -> dict[Resource, BestSize | BestSplit]:
        """The best sizes that there are."""
        return {resource: size for resource, size in self.best.items() if not isinstance(size, InputError)}

    @cached_property
    def returns(self) -> Returns | None:
        """What growing the network asked about buys; None where the law does not say."""
        law = self.capacity.law
        return None if self.size is None or not law.good else returns(law, *self.size)

    def _best(self, resource: Resource, budget: str | int) -> BestSize | BestSplit | InputError:
        try:
            budgets: dict[str, Any] = {resource: budget}
            return self.capacity.best(**budgets)
        except InputError as error:
            return error

    # ---- sentences -------------------------------------------------------------------------------------------

    @property
    def sentences(self) -> list[str]:
        """The answers in a sentence each, the most important first."""
        law, shorter = self.capacity.law, self.capacity.shorter
        if not law.good:
            none = f"The law {law.equation} may not be used beyond the sizes trained, and gives no floor. {law.note}"
            return [none]
        sentences = [f"The law: {law.formula}; it holds ({law.test}). {law.note}".strip()]
        if shorter is not None:
            moved = shorter.floor.value - law.floor.value
            sentences.append(
                f"Without its smallest {' and '.join(law.variables)} the floor is {shorter.floor.unsigned}, "
                f"{moved:+.3f} away."
            )
        return [*sentences, *self._of_network(), *map(self.of_budget, self.best), *self._of_held_out()]

    def _of_network(self) -> list[str]:
        """What is left to gain at the size asked about, and what growing buys there."""
        gains = self.returns
        if gains is None or self.size is None:
            return []
        better = gains.left.high < 0
        beyond = ": it is better than the infinite network" if better else ""
        sentences = [
            f"A network of {self.capacity.named(self.size)} loses {gains.left.unsigned} nats to its size{beyond}. "
            f"Doubling its width buys {gains.width}, doubling its depth {gains.depth}."
        ]
        if gains.enough is not None and not better:
            sentences.append(
                f"Returns diminish beyond width {gains.enough[0]:,} and depth {gains.enough[1]:,}: from there on all "
                "growth together lowers the loss by less than a tenth of the floor."
            )
        return sentences

    def of_budget(self, resource: Resource) -> str:
        """The best size for a budget, or why there is none."""
        budget, size = self.budgets[resource], self.best[resource]
        if isinstance(size, InputError):
            return f"For {budget} of {resource} there is no best size: {size}"
        shown = f"{budget:,} {resource}" if isinstance(budget, int) else f"{budget} of {resource}"
        return f"For {shown} the best size is {size}"

    def _of_held_out(self) -> list[str]:
        h = self.capacity.held_out
        if h is None:
            return []
        outcome = "holds" if h.inside else "fails, as their mean lies outside of its interval"
        return [
            f"Held out: for the mean of {h.networks} networks of {self.capacity.named(h.size)} the law predicted "
            f"{h.predicted.unsigned}; trained, they reach {h.measured.unsigned}: the prediction {outcome}."
        ]

    # ---- numbers ---------------------------------------------------------------------------------------------

    @property
    def result(self) -> dict[str, Any]:
        """The answers as ``result.json`` holds them."""
        c = self.capacity
        shorter = {} if c.shorter is None else {"floor_without_smallest": numbers(c.shorter.floor)}
        content: dict[str, Any] = {"fit": c.law.content | shorter}
        if c.held_out is not None:
            h = c.held_out
            size = dict(zip(c.law.variables, h.size, strict=True)) | {"networks": h.networks, "inside": h.inside}
            content["held_out"] = size | {"predicted": numbers(h.predicted), "measured": numbers(h.measured)}
        if c.law.good:
            content["best"] = {resource: size.content for resource, size in self.sizes.items()}
        if (gains := self.returns) is not None and self.size is not None:
            content["network"] = {"width": self.size[0], "depth": self.size[1], "excess": numbers(gains.left)}
            content["network"] |= {"doubling_width": numbers(gains.width), "doubling_depth": numbers(gains.depth)}
        return content


def answers_of(capacity: Capacity, size: Mapping[str, int], budgets: Mapping[str, str]) -> Answers:
    """The answers about a network, by default the largest of the fit, and about budgets, by default its parameters.

    A law that is not in width and depth says nothing of a network of theirs.
    """
    asked: dict[Resource, str | int] = {check_resource(name): budget for name, budget in budgets.items()}
    if capacity.law.variables != ("width", "depth"):
        return Answers(capacity, None, asked)
    width, depth = map(int, capacity.law.largest)
    if not asked and capacity.costs is not None and "parameters" in capacity.costs.by_resource:
        asked["parameters"] = capacity.costs.cost("parameters").at(width, depth)
    return Answers(capacity, (size.get("width", width), size.get("depth", depth)), asked)


# ---- The charts of a law of size: the ceiling, and the map of sizes


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
