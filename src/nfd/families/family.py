"""``Family``: a network at every width and depth, with the rule that scales its training.

``resnets`` and ``networks`` make families of the paper's networks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, cast

import torch
from torch import nn

from nfd.core.checks import check_choice, check_count, check_patterns, check_seed, check_takes
from nfd.core.errors import InputError, InputTypeError
from nfd.core.fingerprint import fingerprint, fingerprint_of_others
from nfd.core.modes import told_type, users_type
from nfd.core.names import BASE, MOST, RESOLUTION, WIDEST, NetworkWeights, RuleName
from nfd.core.random import derive, global_streams
from nfd.families.member import Member
from nfd.families.network import Network, ResNet
from nfd.scaling.base import MakeModel, check_constructor, instance
from nfd.scaling.find_law import law_of
from nfd.scaling.model import blocks_of, tensors
from nfd.scaling.optimizers import LAWS, OF_THE_LIBRARY, OptimizerLaw, register_optimizer
from nfd.scaling.plan import Plan
from nfd.scaling.planning import checked_roles, plan
from nfd.scaling.plans_itself import defaults_of, told_by
from nfd.scaling.rules import RULES, rule_named
from nfd.scaling.samples import on_device

# a rule or an optimizer that nobody chose: the default of the model takes its place
_UNSAID: Any = None


@dataclass(frozen=True)
class Family:
    """A model at every width and depth, and the rule that scales its training from a base.

    ``nfd.check``, ``nfd.transfer``, ``nfd.scaling_law`` and ``nfd.predict`` take a family, or a
    plain function ``make_model(width, depth)``. For a function they make a family whose base is the
    smallest network they train. Networks of the paper have the base of width 1 and depth 1, so that
    the learning rate is the paper's.

    Args:
        make_model: ``make_model(width, depth)``; it returns a new module.
        base: the width and depth at which rates are tuned.
        rule, optimizer, blocks, roles: as in ``nfd.plan``, with its defaults.
        name: what stores and charts call it; by default the name of the function.
        version: of what a hash of your code does not show, such as a file that the constructor
            reads. Stored training runs of another version, or of other code, are not used.
        sample: an input, to trace the model with; the verbs take it from the task.

    Raises:
        ValueError, TypeError: naming the argument.

    Example::

        family = nfd.Family(make_model, base=(16, 2), sample=x)
        model = family.build(width=64, depth=4, seed=0)  # with the initial weights of its plan
        optimizer = family.plan(64, 4).make_optimizer(model, lr=3e-3)
    """

    make_model: MakeModel
    base: tuple[int, int] = BASE
    rule: RuleName = _UNSAID
    optimizer: str = _UNSAID
    blocks: str | Sequence[str] | None = None
    roles: Mapping[str, str] | None = None
    name: str = ""
    version: str | None = None
    sample: Any = field(default=None, repr=False)
    _plans: dict[tuple[int, int, int], Plan] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # The hashes of its code, once they were asked for: they must not change while a verb trains.
    _hashes: dict[str, str | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    # The type of the models: PyTorch's default when the family was made, which workers do not have.
    _dtype: torch.dtype = field(default_factory=users_type, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        check_takes("make_model", self.make_model, "width", "depth")
        if not isinstance(self.base, tuple) or len(self.base) != 2:
            raise InputTypeError(f"base must be a pair (width, depth); got {self.base!r}.")
        for size, most in zip(self.base, (WIDEST, MOST), strict=True):
            check_count("base", size, maximum=most)
        check_patterns("blocks", self.blocks)
        checked_roles(self.roles)
        if not isinstance(self.name, str) or not isinstance(self.version, str | None):
            raise InputTypeError(
                f"name and version must be texts; got {self.name!r} and {self.version!r}."
            )
        if not self.name:
            kind = type(self.make_model).__qualname__
            object.__setattr__(self, "name", getattr(self.make_model, "__qualname__", kind))
        if self.rule is None or self.optimizer is None:
            rule, optimizer = defaults_of(instance(self.make_model, *self.base))
            if self.rule is None:
                object.__setattr__(self, "rule", rule)
            if self.optimizer is None:
                object.__setattr__(self, "optimizer", optimizer)
        check_choice("rule", self.rule, RULES)
        object.__setattr__(self, "optimizer", law_of(self.optimizer).name)

    def __getstate__(self) -> dict[str, Any]:
        """Take along the law of the optimizer, which other processes may not have registered."""
        return {**self.__dict__, "_law": self.law}

    def __setstate__(self, state: dict[str, Any]) -> None:
        law = state.pop("_law")
        if law.name not in LAWS:
            register_optimizer(law)
        self.__dict__.update({"_dtype": torch.float32} | state)

    @property
    def law(self) -> OptimizerLaw:
        """The law by which learning rates under its optimizer follow the sizes of tensors."""
        return law_of(self.optimizer)

    @property
    def identity(self) -> Mapping[str, Any]:
        """Plain data that names it in a store.

        It has the numbers and texts that a ``functools.partial`` has bound.
        """
        settings = dict[str, Any]()
        if isinstance(self.make_model, partial):
            for name, value in sorted(self.make_model.keywords.items()):
                if isinstance(value, int | float | str):
                    settings[name] = value
        blocks = self.blocks
        if blocks is not None and not isinstance(blocks, str):
            blocks = list(blocks)
        # What most families lack is left out: so their trials keep the keys they have in stores.
        identity = dict[str, Any]()
        if settings:
            identity["settings"] = settings
        identity |= {
            "family": self.name,
            "version": self.version,
            "base": list(self.base),
            "rule": self.rule,
            "optimizer": self.optimizer,
            "blocks": blocks,
            "roles": None if self.roles is None else dict(self.roles),
        }
        if self._dtype != torch.float32:
            identity["dtype"] = str(self._dtype)
        return identity

    @property
    def code(self) -> Mapping[str, str]:
        """Hashes of the code that decides its networks and their updates, by what the code is.

        Code of ``nfd`` and of the libraries that it computes with is left out.
        """
        if not self._hashes:
            self._hash_code()
        return {name: digest for name, digest in self._hashes.items() if digest is not None}

    def _read_code(self) -> None:
        """Hash the code anew, and forget the plans of another constructor."""
        before = self._hashes.get("make_model")
        was_hashed = bool(self._hashes)
        self._hash_code()
        if was_hashed and self._hashes["make_model"] != before:
            self._plans.clear()

    def _hash_code(self) -> None:
        self._hashes["make_model"] = self._hash_of_constructor()
        self._hashes["optimizer"] = _hash_of_law(self.law)

    def _hash_of_constructor(self) -> str | None:
        return fingerprint(self.make_model)

    @property
    def resolution(self) -> float | None:
        """The resolution of its structured layers; None where these drop nothing."""
        return RESOLUTION if self.law.is_linear else None

    def along_one_path(self, depth: int) -> Self:
        """Return the family with networks of every depth on one Brownian path, where it has such.

        Results then differ with depth by less noise.
        """
        return self

    def under(
        self,
        rule: str | None = None,
        optimizer: str | OptimizerLaw | None = None,
        sample: Any = None,
        *,
        blocks: str | Sequence[str] | None = None,
        roles: Mapping[str, str] | None = None,
    ) -> Self:
        """Return the family with another rule, optimizer, blocks or roles.

        ``sample`` is for a family that has none.
        """
        changes: dict[str, Any] = {
            "rule": rule,
            "optimizer": None if optimizer is None else law_of(optimizer).name,
            "sample": sample if self.sample is None else None,
            "blocks": blocks,
            "roles": roles,
        }
        changes = {
            name: value
            for name, value in changes.items()
            if value is not None and (name == "sample" or value != getattr(self, name))
        }
        # The family itself keeps the plans that it has made.
        if not changes:
            return self
        changed = replace(self, **changes)
        changed._hashes.update(self._hashes)
        if self._hashes and changed.optimizer != self.optimizer:
            changed._hashes["optimizer"] = _hash_of_law(changed.law)
        return changed

    def plan(self, width: int, depth: int) -> Plan:
        """Return the plan of a size: initial scale, learning rate, decay, epsilon of every tensor.

        Raises:
            ValueError: as ``nfd.plan`` does.
        """
        width = check_count("width", width, maximum=WIDEST)
        depth = check_count("depth", depth, maximum=MOST)
        # A plan depends on the size alone, not on the initial weights.
        made = self._plans.get((width, depth, 0))
        return self.member(width, depth).plan if made is None else made

    def build(
        self, width: int, depth: int, seed: int = 0, weights: NetworkWeights = "dense"
    ) -> nn.Module:
        """Build the untrained network of a size, with the initial weights of its plan.

        PyTorch's global random streams do not move.

        Args:
            width, depth: its size, as ``make_model`` counts it.
            seed: of the initial weights. Networks of two sizes with equal seeds are independent.
            weights: ``"dense"``, ``"deferred"`` or ``"structured"``.

        Raises:
            ValueError: if the family has no network of this size or with these weights.
        """
        return self.member(width, depth, seed, weights).module

    def member(
        self,
        width: int,
        depth: int,
        seed: int = 0,
        weights: NetworkWeights = "dense",
        device: torch.device | str | None = None,
        resolution: float | None = None,
    ) -> Member:
        """Build the network of a size under its plan, on a device.

        Args:
            width, depth, seed, weights: as of ``build``.
            device: where it is built; the CPU by default.
            resolution: of layers without stored weights.
        """
        width = check_count("width", width, maximum=WIDEST)
        depth = check_count("depth", depth, maximum=MOST)
        # Initial weights of two sizes are independent.
        seed = derive(check_seed(seed), "check", width, depth)
        if weights != "dense":
            # Stored weights do without this room.
            from nfd.wide.defer import defer

            module, planned = self.outline(width, depth, seed)
            deferred = defer(module, planned, weights=weights, resolution=resolution, seed=seed)
            return Member(deferred.to(device or "cpu"), planned)
        module = self._instance(width, depth, seed)
        if device is not None:
            module.to(device)
        member = Member(module, self._planned(module, width, depth, device))
        # Other rules leave a module's initial weights.
        if member.net is not None or rule_named(self.rule).scales_width:
            member.plan.apply_(module, seed)
        return member

    def outline(self, width: int, depth: int, seed: int = 0) -> tuple[nn.Module, Plan]:
        """Build a module of a size and its plan, for layers without stored weights.

        Its matrices have no numbers, unless that loses a frozen tensor or what a plan could not
        restore.
        """
        from nfd.wide.defer import meta_matrices

        try:
            with meta_matrices():
                module = self._instance(width, depth, seed)
        # What is wrong with numbers too is raised here.
        except Exception:
            module = self._instance(width, depth, seed)
        planned = self._planned(module, width, depth, "cpu")
        if _loses_numbers(module, planned):
            module = self._instance(width, depth, seed)
            planned = self._planned(module, width, depth, "cpu")
        return module, planned

    def _instance(self, width: int, depth: int, seed: int) -> nn.Module:
        """Build a module of a size, in the type of the family."""
        with told_type(self._dtype):
            return instance(self.make_model, width, depth, seed)

    def check_sizes(self, widths: Sequence[int], depths: Sequence[int]) -> None:
        """Raise ValueError if these sizes differ in more than width and depth, as in head size."""
        check_constructor(self.make_model, widths, depths)
        if self.blocks is not None:
            blocks_of(instance(self.make_model, *self.base), self.blocks)

    def _planned(
        self, module: nn.Module, width: int, depth: int, device: torch.device | str | None
    ) -> Plan:
        """Plan a size, once: a plan holds no numbers of the module, and takes a while to make."""
        size = (width, depth, sum(p.is_meta for p in module.parameters()))
        place = torch.device(device or "cpu")
        devices = [] if place.type == "cpu" else [place]
        if size not in self._plans:
            with global_streams(0, devices), told_type(self._dtype):
                self._plans[size] = plan(
                    module,
                    rule=self.rule,
                    make_model=self.make_model,
                    base=(self.base[0], self.base[1]),
                    optimizer=self.optimizer,
                    blocks=self.blocks,
                    roles=self.roles,
                    sample=on_device(self.sample, None if device is None else place),
                )
        return self._plans[size]


def _loses_numbers(module: nn.Module, planned: Plan) -> bool:
    """Whether tensors without numbers are frozen, or keep their initial values under a plan."""
    needed = [p for p in module.parameters() if not p.requires_grad]
    for name, t in tensors(module).items():
        if planned.entries[name].start.kept:
            needed.append(t.parameter)
    return any(p.is_meta for p in needed)


def _hash_of_law(law: OptimizerLaw) -> str | None:
    """Hash a law with the law of what it leaves; None where both are the library's by their names.

    Trials under these keep the keys that they have in older stores.
    """
    if all(part in OF_THE_LIBRARY for part in law.parts):
        return None
    return fingerprint(law.parts)


def as_family(
    family: Family | MakeModel,
    base: tuple[int, int],
    rule: str | None = None,
    optimizer: str | OptimizerLaw | None = None,
    sample: Any = None,
    *,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    **more: Any,
) -> Family:
    """Return the family that a verb was given, or make one of a plain function.

    Args:
        family: the family or function.
        base: of a function, the smallest network.
        rule, optimizer, blocks, roles: replace the family's where they are given.
        sample: for a family that has none.
        **more: further fields of the family of a function.
    """
    if not isinstance(family, Family):
        if isinstance(family, nn.Module) or not callable(family):
            raise InputTypeError(
                "family must be an nfd.Family or a function make_model(width, depth), not a model; "
                f"got {type(family).__name__}."
            )
        family = Family(family, base, **more)
        if told_by(instance(family.make_model, *base)) is not None:
            # The learning rate of such networks is the rate at width and depth 1.
            family = replace(family, base=(1, 1))
    family = family.under(rule, optimizer, sample, blocks=blocks, roles=roles)
    # Code can change under a name: what a closure holds, or what a notebook defines again.
    family._read_code()
    return family


# ---- ``nfd.resnets``: the paper's networks as a family


class NetworkFamily(Family):
    """A family of networks of the paper.

    The rule decides their residual multiplier and regime too.
    """

    # A class with the sizes of inputs and outputs, and settings, bound.
    make_model: partial[Network]

    def _hash_of_constructor(self) -> str | None:
        # Its identity has all that it binds.
        return fingerprint_of_others(self.make_model)

    @property
    def identity(self) -> Mapping[str, Any]:
        sizes = dict(zip(("in_features", "out_features"), self.make_model.args, strict=True))
        return {
            **super().identity,
            **sizes,
            "settings": dict(sorted(self.make_model.keywords.items())),
        }

    @property
    def resolution(self) -> float | None:
        # The paper's limits are of networks that drop nothing.
        return None

    def under(
        self,
        rule: str | None = None,
        optimizer: str | OptimizerLaw | None = None,
        sample: Any = None,
        *,
        blocks: str | Sequence[str] | None = None,
        roles: Mapping[str, str] | None = None,
    ) -> Self:
        if blocks is not None or roles is not None:
            raise InputError(
                "blocks and roles are for other models than the paper's, whose plan knows them; "
                f"got {blocks=}, {roles=}. Leave them out."
            )
        return super().under(rule, optimizer, sample)

    def along_one_path(self, depth: int) -> Self:
        constructor = self.make_model
        if constructor.keywords.get("block") == "two-layer" or constructor.func is not ResNet:
            return self
        return replace(self, make_model=partial(constructor, coupled=depth))

    def plan(self, width: int, depth: int) -> Plan:
        return plan(self.build(width, depth), rule=self.rule, optimizer=self.optimizer)

    def member(
        self,
        width: int,
        depth: int,
        seed: int = 0,
        weights: NetworkWeights = "dense",
        device: torch.device | str | None = None,
        resolution: float | None = None,
    ) -> Member:
        kind = cast(type[Network], self.make_model.func)
        settings = kind.settings_of(self.rule) | self.make_model.keywords
        settings |= {"weights": weights, "seed": seed, "device": device or "cpu"}
        if resolution is not None:
            settings["resolution"] = resolution
        net = self.make_model(width, depth, **settings)
        # In the kernel regime learning rates are the base's at every width.
        base_width = 1 if net.regime == "feature" else None
        return Member(net, net.own_plan(self.rule, self.optimizer, base_width, 1))

    def outline(self, width: int, depth: int, seed: int = 0) -> tuple[nn.Module, Plan]:
        member = self.member(width, depth, seed)
        return member.module, member.plan

    def check_sizes(self, *sizes: Any) -> None:
        """Accept all sizes: they differ only in width and depth."""


def networks(
    kind: type[Network],
    inputs: int,
    outputs: int,
    *,
    rule: RuleName = "depth-mup",
    optimizer: str = "sgd",
    version: str | None = None,
    **settings: Any,
) -> NetworkFamily:
    """Make the family of a class of the paper's networks.

    ``settings`` are further arguments of the class.
    """
    return NetworkFamily(
        partial(kind, inputs, outputs, **settings),
        (1, 1),
        rule,
        optimizer,
        name=kind.__qualname__,
        version=version,
        # The type does not depend on PyTorch's default.
        _dtype=torch.float32,
    )


def resnets(
    inputs: int,
    outputs: int,
    *,
    horizon: float = 1.0,
    activation: str = "relu",
    block: str = "one-layer",
    feedback: str = "shared",
    rule: RuleName = "depth-mup",
    optimizer: str = "sgd",
) -> NetworkFamily:
    """Make a family of the paper's residual networks, ``nfd.ResNet``.

    Their base has width 1 and depth 1, so that the learning rate is the paper's ``eta_c``: under
    SGD every step subtracts ``eta_c n dloss/dW`` times the depth factor of the rule from a weight
    matrix W that is initialised as N(0, 1).

    Args:
        inputs, outputs: d and C, the sizes of an input and of the output.
        horizon, activation, block, feedback: as in ``nfd.ResNet``.
        rule: decides the rates and the residual multiplier ``sqrt(T) L**-a``.
        optimizer: ``"sgd"``, ``"adam"``, ``"adamw"`` or ``"muon"``.

    Raises:
        ValueError, TypeError: naming the argument.

    Source: Eqs. 1, 6 and 8.

    Example::

        family = nfd.resnets(64, 10, activation="tanh")
        net = family.build(width=64, depth=4, seed=0)
    """
    settings: dict[str, Any] = {
        "horizon": horizon,
        "activation": activation,
        "block": block,
        "feedback": feedback,
    }
    return networks(ResNet, inputs, outputs, rule=rule, optimizer=optimizer, **settings)
