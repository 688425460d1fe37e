"""The answers of a law of the loss about a network and about budgets, for a report: sentences, numbers and charts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nfd.core.errors import InputError
from nfd.core.estimates import mean
from nfd.core.files import Axes, Finding, columns
from nfd.core.tables import Row
from nfd.forecasts.budget import BestSize, BestSplit, Resource, check_resource
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


def ceiling(answers: Answers) -> Finding:
    """The chart of measured losses against the last variable, a line per size of the others, over the floor."""
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
