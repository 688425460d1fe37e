"""``Family``: a network at every width and depth, and how its tensors are scaled on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from nfd.core.errors import check_choice
from nfd.core.names import NetworkWeights, RuleName
from nfd.families.member import Member
from nfd.scaling.laws import law_of
from nfd.scaling.rules import RULES


class Family(ABC):
    """A model at every width and depth; ``nfd.check``, ``nfd.transfer`` and others accept one.

    You rarely need it: wherever a family is accepted, a function ``make_model(width, depth)`` is too. Subclass it for
    networks with a scaling, a decoupled twin or a stack of their own. A family is a frozen dataclass; all its networks
    share a rule and an optimizer.
    """

    rule: RuleName
    optimizer: str
    base: tuple[int, int]
    """Width and depth of the network whose rates are tuned."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in messages and charts."""

    @property
    def rate_name(self) -> str:
        """The name of its learning rate: ``"eta_c"`` if the base has width 1 and depth 1, otherwise ``"lr"``."""
        return "eta_c"

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Plain data that identifies the family in a store: families with different results must differ in it.

        Raises:
            ValueError: if changes of the user's code cannot be detected and the family has no ``version``.
        """

    @abstractmethod
    def build(
        self,
        width: int,
        depth: int,
        seed: int,
        weights: NetworkWeights = "dense",
        device: torch.device | str | None = None,
        resolution: float | None = None,
    ) -> Member:
        """Build the untrained network of a size. PyTorch's global random streams do not move.

        Args:
            width, depth: its size, as ``make_model`` or the network's class counts it.
            seed: of the initial weights. Networks of two sizes with equal seeds are independent, unless their layers
                are coupled.
            weights: ``"dense"``, ``"deferred"`` or ``"structured"``.
            device: of the parameters; by default that on which the family builds them.
            resolution: of layers without stored weights, below which they leave out directions; None for none.

        Raises:
            ValueError: if the family has no network of this size or with these weights.
        """

    def check_sizes(self, widths: Sequence[int], depths: Sequence[int]) -> None:  # noqa: B027
        """ValueError if networks of these sizes differ in more than width and depth, such as the size of a head."""

    def under(self, rule: str | None = None, optimizer: str | None = None) -> Self:
        """The same family with another rule, another optimizer, or both; None keeps the present one."""
        changes = {"rule": rule, "optimizer": optimizer}
        return replace(self, **{k: v for k, v in changes.items() if v is not None})  # type: ignore[type-var]

    def __post_init__(self) -> None:
        """Check the rule and the optimizer, and replace a law by its name.

        Raises:
            ValueError: naming an unknown rule or optimizer.
        """
        check_choice("rule", self.rule, RULES)
        object.__setattr__(self, "optimizer", law_of(self.optimizer).name)
