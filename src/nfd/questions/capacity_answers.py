"""What a capacity sweep answers about a network and about budgets: as numbers, and in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nfd.core.errors import InputError
from nfd.questions.budget import BestSize, BestSplit, Resource, Returns, check_resource, returns
from nfd.questions.finding import numbers
from nfd.questions.scaling_law import Capacity


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
