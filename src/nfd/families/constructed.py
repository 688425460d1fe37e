"""The user's networks as a family: what ``make_model(width, depth)`` builds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from nfd.core.errors import (
    MOST,
    WIDEST,
    InputError,
    InputTypeError,
    check_callable,
    check_count,
    check_patterns,
    check_seed,
)
from nfd.core.names import NetworkWeights, RuleName
from nfd.core.random import derive, global_streams
from nfd.families.family import Family
from nfd.families.fingerprint import check_version, fingerprint, name_of
from nfd.families.member import Member
from nfd.families.paper import PaperMember
from nfd.nets.defer import defer
from nfd.nets.meta import meta_matrices
from nfd.nets.network import Network
from nfd.scaling.blocks import blocks_named
from nfd.scaling.calls import on_device
from nfd.scaling.plan import Plan
from nfd.scaling.planning import checked_roles, plan
from nfd.scaling.self_scaled import defaults_of, self_scaled_of
from nfd.scaling.sizes import MakeModel, check_constructor, instance
from nfd.scaling.tensors import tensors


def member_of(module: nn.Module, planned: Plan, width: int | None = None, depth: int | None = None) -> Member:
    """The member that a planned module is: the one place that looks at which kind it is."""
    net = self_scaled_of(module)
    if isinstance(net, Network):
        return PaperMember(module, net, planned.rule, planned.optimizer, planned)
    return Member(module, planned, width, depth)


@dataclass(frozen=True)
class ConstructedFamily(Family):
    """A family from your function ``make_model(width, depth)``.

    Args:
        make_model: the function; it returns a new module.
        base: the width and depth at which the rates were tuned. For networks of ``nfd.nets`` it is width 1 and depth 1,
            so that their rate is the paper's ``eta_c``.
        rule, optimizer, blocks, roles: as in ``nfd.plan``; so are their defaults, where None.
        sample: an input, to trace the model and to compute the fingerprint of its code.
        version: of your code, in place of a fingerprint: a text that you change whenever the code changes.

    Example::

        family = nfd.ConstructedFamily(make_model, base=(32, 2), rule="complete-p", optimizer="adamw", sample=x)
        member = family.build(width=64, depth=4, seed=0)
        print(member.parameters)
    """

    make_model: MakeModel
    base: tuple[int, int]
    rule: RuleName = None  # type: ignore[assignment]  # the default of the model, from __post_init__ on
    optimizer: str = None  # type: ignore[assignment]
    blocks: str | Sequence[str] | None = None
    roles: Mapping[str, str] | None = None
    sample: Any = None
    version: str | None = None
    _plans: dict[tuple[int, int, int], Plan] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_callable("make_model", self.make_model, "a function of (width, depth)")
        if not isinstance(self.base, tuple) or len(self.base) != 2:
            raise InputTypeError(f"base must be a pair (width, depth); got {self.base!r}.")
        for size, most in zip(self.base, (WIDEST, MOST), strict=True):
            check_count("base", size, maximum=most)
        if self.rule is None or self.optimizer is None:
            rule, optimizer = defaults_of(instance(self.make_model, *self.base))
            object.__setattr__(self, "rule", rule if self.rule is None else self.rule)
            object.__setattr__(self, "optimizer", optimizer if self.optimizer is None else self.optimizer)
        super().__post_init__()
        check_patterns("blocks", self.blocks)
        checked_roles(self.roles)
        check_version(self.version)

    @property
    def name(self) -> str:
        made = self.make_model
        return getattr(made, "__qualname__", type(made).__qualname__)

    @cached_property
    def rate_name(self) -> str:
        return "lr" if self_scaled_of(instance(self.make_model, *self.base)) is None else "eta_c"

    @property
    def identity(self) -> Mapping[str, Any]:
        return {
            "family": name_of(self.make_model),
            "base": list(self.base),
            "rule": self.rule,
            "optimizer": self.optimizer,
            "blocks": self.blocks if isinstance(self.blocks, str) or self.blocks is None else list(self.blocks),
            "roles": None if self.roles is None else dict(self.roles),
            "code": self._code,
        }

    def build(
        self,
        width: int,
        depth: int,
        seed: int,
        weights: NetworkWeights = "dense",
        device: torch.device | str | None = None,
        resolution: float | None = None,
    ) -> Member:
        width, depth = check_count("width", width, maximum=WIDEST), check_count("depth", depth, maximum=MOST)
        seed = derive(check_seed(seed), "check", width, depth)  # every size begins on its own
        if weights != "dense":
            module, planned = self.outline(width, depth, seed)
            deferred = defer(module, planned, weights=weights, resolution=resolution, seed=seed)
            return Member(deferred.to(device or "cpu"), planned, width, depth)
        module = instance(self.make_model, width, depth, seed)
        if device is not None:
            module.to(device)
        member = member_of(module, self._planned(module, width, depth, device), width, depth)
        member.begin_(seed)
        return member

    def outline(self, width: int, depth: int, seed: int = 0) -> tuple[nn.Module, Plan]:
        """A module of a size and its plan. The module is on the meta device, where it takes no memory, unless a plan
        could not restore all of its tensors.

        Raises:
            ValueError: for networks of ``nfd.nets``, whose constructor has ``weights=``.
        """
        if self.rate_name != "lr":
            raise InputError(
                f"{self.name} builds a network of nfd.nets, which has an argument weights= of its own. Pass it there."
            )
        for module in shapes_of(self.make_model, width, depth, seed):
            planned = self._planned(module, width, depth, "cpu")
            if not any(t.parameter.is_meta and planned.entries[n].start.kept for n, t in tensors(module).items()):
                return module, planned
        module = instance(self.make_model, width, depth, seed)
        return module, self._planned(module, width, depth, "cpu")

    def check_sizes(self, widths: Sequence[int], depths: Sequence[int]) -> None:
        check_constructor(self.make_model, widths, depths)
        if self.blocks is not None and self.rate_name == "lr":
            blocks_named(instance(self.make_model, *self.base), self.blocks)

    def _planned(self, module: nn.Module, width: int, depth: int, device: torch.device | str | None) -> Plan:
        """The plan of a size, made once: it holds no numbers of the module, and takes a while to make."""
        size = width, depth, sum(p.is_meta for p in module.parameters())
        if size not in self._plans:
            self._plans[size] = self._plan(module, device)
        return self._plans[size]

    def _plan(self, module: nn.Module, device: torch.device | str | None) -> Plan:
        own = self_scaled_of(module) is not None
        place = None if device is None else torch.device(device)
        with global_streams(0, [place] if place is not None and place.type != "cpu" else []):
            return plan(
                module,
                rule=self.rule,
                make_model=None if own else self.make_model,
                base_width=None if own else self.base[0],
                base_depth=None if own else self.base[1],
                optimizer=self.optimizer,
                blocks=self.blocks,
                roles=self.roles,
                sample=on_device(self.sample, place),
            )

    @cached_property
    def _code(self) -> str:
        if self.version is None and self.sample is None:
            raise InputError(f"{self.name} needs sample=, an input to take its fingerprint with, or version=.")
        return self.version or fingerprint(
            self.name, lambda width, depth: instance(self.make_model, width, depth), self.base, self.sample
        )


def shapes_of(make_model: MakeModel, width: int, depth: int, seed: int = 0) -> Iterator[nn.Module]:
    """Modules on the meta device, the second with the numbers of its vectors; without those whose buffers or frozen
    tensors would be lost."""
    for place in (torch.device("meta"), meta_matrices()):
        try:
            with place:
                module = instance(make_model, width, depth, seed)
        except Exception:  # what is wrong with numbers too is raised where it is made with numbers
            continue
        frozen = [p for p in module.parameters() if not p.requires_grad]
        if not any(tensor.is_meta for tensor in (*module.buffers(), *frozen)):
            yield module


def family_of(
    make_model: MakeModel | Family,
    base: tuple[int, int],
    rule: str | None = None,
    optimizer: str | None = None,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    sample: Any = None,
    version: str | None = None,
) -> Family:
    """The family that was asked about: what a constructor builds, or a family itself.

    A rule and an optimizer replace those of a family; for a constructor None stands for the defaults of ``nfd.plan``.
    """
    if isinstance(make_model, Family):
        if blocks or roles or version:
            raise InputError(
                "blocks, roles and version are part of a family; give them to it, or pass its constructor instead."
            )
        return make_model.under(rule, optimizer)
    check_callable("make_model", make_model, "a function of (width, depth), or a family")
    chosen: dict[str, Any] = {"rule": rule, "optimizer": optimizer}
    return ConstructedFamily(make_model, base, **chosen, blocks=blocks, roles=roles, sample=sample, version=version)
