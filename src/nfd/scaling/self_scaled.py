"""``SelfScaled``: a network that has its scales in its forward pass, and knows the role of every parameter."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

from torch import nn

from nfd.core.errors import InputError, check_choice
from nfd.scaling.rules import ROLES, Power, Role


class SelfScaled(nn.Module):
    """What plans and rates need of such a network: its size, its blocks, its roles and its forward multipliers."""

    width: int
    depth: int
    weights: str
    branch_exponent: float

    @abstractmethod
    def named_roles(self) -> dict[str, Role]:
        """The role of every trainable parameter, by its name; a subclass adds those of its own parameters."""

    @abstractmethod
    def block_names(self) -> list[str]:
        """The names of the modules that write the residual stream, one per block; none without one."""

    @abstractmethod
    def multiplier(self, role: Role) -> Power:
        """How the forward multiplier of N(0, 1) weights with this role scales with width and depth."""

    @abstractmethod
    def is_standard_normal(self, name: str) -> bool:
        """Whether a parameter starts N(0, 1) and stands behind the forward multiplier of its role.

        Any other parameter is a plain one: a subclass begins it, and nothing multiplies it.
        """

    @abstractmethod
    def check_rule(self, rule: str) -> None:
        """ValueError when a rule is made for another network."""

    def settled_roles(self) -> dict[str, Role]:
        """``named_roles``, complete: a feedback matrix has the role of the matrix that it stands for.

        Raises:
            ValueError: naming the trainable parameters without a role, and what has a role and is no parameter.
        """
        names = dict(self.named_parameters(remove_duplicate=False))
        given = {name: check_choice(f"named_roles()[{name!r}]", r, ROLES) for name, r in self.named_roles().items()}
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InputError(
                f"named_roles() must name parameters of the network; {type(self).__name__} has no "
                f"{', '.join(map(repr, unknown))}."
            )
        of = {id(names[name]): role for name, role in given.items()}
        found: dict[str, Role] = {}
        for name, p in self.named_parameters():
            role = of.get(id(p)) or (given.get(name.replace("feedback_weight", "weight")) if p.requires_grad else None)
            if role is not None:
                found[name] = cast(Role, role)
        missing = [name for name, p in self.named_parameters() if p.requires_grad and name not in found]
        if missing:
            raise InputError(_no_role(type(self).__name__, missing))
        return found


def _no_role(kind: str, names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:6])) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return (
        f"{kind} has trainable parameters without a role, so that nothing decides their rate: {shown}. Override "
        f"named_roles() to return {{**super().named_roles(), {names[0]!r}: ROLE, ...}} with roles among "
        f"{', '.join(map(repr, ROLES))}, or freeze them with requires_grad_(False)."
    )
