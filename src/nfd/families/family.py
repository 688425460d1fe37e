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

    You rarely need it: a function ``make_model(width, depth)`` is made a family automatically. Subclass it to describe
    networks that know more about themselves. A family is a frozen dataclass; its members share a rule and an optimizer.
    """

    rule: RuleName
    optimizer: str
    base: tuple[int, int]
    """Width and depth of the network that rates are tuned at."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in messages and charts."""

    @property
    def rate_name(self) -> str:
        """What the rate of its base is called: ``eta_c`` where the base is the network of width 1 and depth 1."""
        return "eta_c"

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, Any]:
        """Plain data that names the family in a store: families that compute otherwise differ in it.

        Raises:
            ValueError: where changes of the user's code cannot be detected and it has no ``version``.
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
        """The untrained member of a size, from this seed. No global random stream moves.

        Args:
            width, depth: in the units of the family.
            seed: of its start. Equal seeds of two sizes are independent, except where layers are coupled.
            weights: ``"dense"``, ``"deferred"`` or ``"structured"``.
            device: where its parameters go; by default where the family puts them.
            resolution: of layers without stored weights; None for their own default.

        Raises:
            ValueError: when the family has no such member.
        """

    def check_sizes(self, widths: Sequence[int], depths: Sequence[int]) -> None:  # noqa: B027
        """ValueError where the members of these sizes differ otherwise than width and depth do."""

    def under(self, rule: str | None = None, optimizer: str | None = None) -> Self:
        """The same networks under another rule, or for another optimizer."""
        changes = {"rule": rule, "optimizer": optimizer}
        return replace(self, **{k: v for k, v in changes.items() if v is not None})  # type: ignore[type-var]

    def __post_init__(self) -> None:
        """Check what every family has; a law stands for its name.

        Raises:
            ValueError: naming the rule or the optimizer that is none.
        """
        check_choice("rule", self.rule, RULES)
        object.__setattr__(self, "optimizer", law_of(self.optimizer).name)
