"""Networks that know their plan, such as those of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from torch import nn

from nfd.core.errors import InputError
from nfd.core.names import OPTIMIZER, RULE
from nfd.scaling.model import modules

if TYPE_CHECKING:
    from nfd.scaling.plan import Plan


@runtime_checkable
class PlansItself(Protocol):
    """A network that knows its roles and the constants of its forward pass.

    Nobody needs to find them, and its ``own_plan`` stands for the steps of ``nfd.plan``.
    """

    width: int
    depth: int
    default_rule: str
    default_optimizer: str

    def own_plan(self, rule: str, optimizer: str, width: int | None, depth: int | None) -> Plan:
        """Return its plan from a base of this width and depth, the network's where None."""


def told_by(model: nn.Module) -> PlansItself | None:
    """Return the network that plans itself where a model is one, also inside of wrappers.

    Raises:
        ValueError: where such a network is only a part of the model.
    """
    # To ask whether a module has all of the protocol takes 50 times as long as to ask for one name.
    networks = {
        name: module
        for name, module in modules(model).items()
        if hasattr(module, "own_plan") and isinstance(module, PlansItself)
    }
    if networks and "" not in networks:
        raise InputError(
            "A network of the paper must be the whole model; got one inside, as "
            f"{next(iter(networks))!r}."
        )
    return cast("PlansItself | None", networks.get(""))


def defaults_of(model: nn.Module) -> tuple[str, str]:
    """Return the rule and the optimizer of a model where nobody chose others."""
    network = told_by(model)
    if network is None:
        return RULE, OPTIMIZER
    return network.default_rule, network.default_optimizer
