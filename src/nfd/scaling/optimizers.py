"""What scaling knows of optimizers: the law of each, its hyperparameters, and whether it keeps a
plan's rates.

An update at rate 1 is ``unit |gradient|^degree`` in its entries, where ``unit`` follows the size of
the tensor:

==================================  ======  =====================
optimizer                           degree  unit
==================================  ======  =====================
SGD                                 1       1
Adam, Lion, the sign of a momentum  0       1, entry by entry
Muon, SGD over a norm               0       (in out)^-1/2
==================================  ======  =====================

The rates of a rule are those of updates with entries of order one (Adam's column in
``nfd.scaling.rules``), so every other rate is that one over ``unit |gradient|^degree``. The law
also names the settings of an optimizer's groups, and how each follows width, depth, batch and
length. ``register_optimizer`` adds another law; ``nfd.scaling.measured`` finds that of an unknown
optimizer.
"""

from __future__ import annotations

import importlib
import inspect
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Literal, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn

from nfd.core.checks import check_choice, check_real
from nfd.core.errors import InputError, InputTypeError, StateError
from nfd.core.words import nearest
from nfd.scaling.rules import MAX_RATE, Power, rule_named

EACH_ENTRY = Power()  # entries of an update of order one
# entries of an update whose largest singular value is 1
WHOLE_MATRIX = Power(fan_in=-0.5, fan_out=-0.5)


def any_shape(rows: float, columns: float) -> float:
    """The spectral norm of updates that do not follow the shape of a matrix beyond ``unit``."""
    return 1.0


# ---- the settings of an optimizer, and how they follow size and run


Follows = Literal["epsilon", "weight decay", "beta1", "beta2"]


@dataclass(frozen=True)
class Hyperparameter:
    """A setting of an optimizer's groups, and how it follows width, depth, batch and length.

    The user's value is that of the base. A plan sets it in every group, scaled.

    Args:
        name: its key in the groups, such as ``"eps"``.
        follows: which factors of a plan it takes. ``"epsilon"``, added to the root of a mean of
            squares, follows the entries of the gradient. ``"weight decay"`` follows one over the
            rate, so that a step removes the same share of the weights. ``"beta1"`` and ``"beta2"``
            are shares of the past in running means of gradients and of their squares, whose
            half-lives follow the batch. A setting of several numbers has a tuple with one for each;
            further numbers take the first. None keeps it.
        default: the base's value where neither the user nor the optimizer sets one.
        size: a power of fan-in, fan-out and depth that it follows beside.
        batch, tokens: powers of the batch and of the tokens of a run that it follows beside.

    Example::

        beta3 = nfd.Hyperparameter("beta3", follows="beta1")  # a second mean of gradients
        warmup = nfd.Hyperparameter("beta3_warmup", batch=-1.0, tokens=1.0)  # a share of the steps
    """

    name: str
    follows: Follows | tuple[Follows | None, ...] | None = None
    default: Any = None
    size: Power = EACH_ENTRY
    batch: float = 0.0
    tokens: float = 0.0

    @property
    def is_kept(self) -> bool:
        """Whether it has one value at every size and in every run."""
        return self.follows is None and self.size == Power() and not self.batch and not self.tokens

    @property
    def quantity(self) -> str:
        """What the factors of a run call its powers of batch and tokens."""
        return f"setting {self.name}"


WEIGHT_DECAY = Hyperparameter("weight_decay", "weight decay", 0.0)
EPS = Hyperparameter("eps", "epsilon", 1e-8)
BETAS = Hyperparameter("betas", ("beta1", "beta2"), (0.9, 0.999))


@dataclass(frozen=True)
class Scale:
    """How a setting of one group follows from that of the base.

    Args:
        factor: multiplies a number.
        half_lives: multiply the half-lives of running means, of which the setting holds the share
            of the past: one factor for each, the first one for all further ones.
    """

    factor: float = 1.0
    half_lives: tuple[float, ...] = ()

    def __call__(self, name: str, value: Any) -> Any:
        """The setting of the group; ValueError naming the setting if it cannot be scaled."""
        if value is None:
            return None
        if self.half_lives:
            if isinstance(value, tuple | list):
                return tuple(self._past(beta, place) for place, beta in enumerate(value))
            return self._past(value, 0)
        if self.factor == 1:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
            raise InputError(
                f"{name}={value!r} follows the size of the model, and must be a number to be "
                "scaled. Register a law of the optimizer that names its settings: "
                "nfd.OptimizerLaw(..., hyperparameters=...)."
            )
        return value * self.factor

    def _past(self, beta: Any, place: int) -> Any:
        half_life = self.half_lives[place if place < len(self.half_lives) else 0]
        return beta if half_life == 1 or beta is None else beta ** (1 / half_life)


@dataclass(frozen=True)
class OptimizerLaw:
    """A description of an optimizer: how its rates scale with size, its settings, its state, its
    constructor.

    Register one with ``nfd.register_optimizer``; ``nfd.testing.check_law`` steps the optimizer to
    see whether it is true. The defaults describe an optimizer like Adam: its updates have entries
    of order one at any size of the gradient.

    Args:
        name: the value of ``optimizer=`` that selects it.
        make: a function of parameter groups and options that returns the optimizer, or where it is,
            as ``"torch.optim:AdamW"``; None if there is none.
        degree: a gradient c times as large gives an update ``c**degree`` times as large: 1 for SGD,
            0 for normalised updates.
        unit: how the entries of a normalised update scale with the fans of a tensor;
            ``WHOLE_MATRIX`` if the matrix is normalised as a whole, as by Muon.
        shape_norm: a function of (rows, columns) of a stored matrix: the largest singular value of
            its updates, as a multiple of that in ``unit``, up to one constant. Rates compensate for
            it.
        classes: names of the optimizer's classes, to recognise an optimizer object.
        epsilon: whether groups have an ``eps``, which must scale with the entries of the gradient.
        decoupled: whether weight decay acts on the weights directly, as in AdamW.
        states: numbers stored per parameter.
        rest: if the optimizer trains only the matrices in blocks, the name of the law for all other
            tensors.
        equivariant: whether ``U(P G Q') = P U(G) Q'`` for orthonormal P and Q; then it is exact for
            deferred layers.
        options: names of options of ``make`` beside the hyperparameters; others go to that of
            ``rest``.
        default_lr: the rate of questions that are given none.
        hyperparameters: the settings of groups, and how each follows size and run. None:
            ``weight_decay``, with ``epsilon`` also ``eps`` and ``betas``.
        vector_unit: ``unit`` of tensors with at most one dimension; None if it is the same.
        notes: what a plan says of it.

    Example::

        law = nfd.OptimizerLaw(
            "my-adamw", lambda groups: torch.optim.AdamW(groups), epsilon=True, states=2
        )
        law.is_linear  # False: its updates are normalised
    """

    name: str
    make: Callable[..., torch.optim.Optimizer] | str | None = None
    degree: float = 0.0
    unit: Power = EACH_ENTRY
    shape_norm: Callable[[float, float], float] = any_shape
    classes: tuple[str, ...] = ()
    epsilon: bool = False
    decoupled: bool = True
    states: int = 0
    rest: str | None = None
    equivariant: bool = False
    options: frozenset[str] = frozenset()
    default_lr: float = 1e-3
    hyperparameters: tuple[Hyperparameter, ...] | None = None
    vector_unit: Power | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_linear(self) -> bool:
        """Whether updates are proportional to gradients."""
        return self.degree == 1

    @property
    def settings(self) -> tuple[Hyperparameter, ...]:
        """The hyperparameters, also where the law leaves them to its other fields."""
        if self.hyperparameters is not None:
            return self.hyperparameters
        return (WEIGHT_DECAY, EPS, BETAS) if self.epsilon else (WEIGHT_DECAY,)

    def setting(self, name: str) -> Hyperparameter | None:
        """The hyperparameter of a name; None if the law names none."""
        return next((setting for setting in self.settings if setting.name == name), None)

    @property
    def is_ours(self) -> bool:
        """Whether ``make`` is a name, so that nobody has set anything in it."""
        return isinstance(self.make, str)

    def for_vectors(self) -> OptimizerLaw:
        """The law of its updates of tensors with at most one dimension."""
        return (
            self
            if self.vector_unit is None
            else replace(self, unit=self.vector_unit, vector_unit=None)
        )

    def constructor(self) -> Callable[..., torch.optim.Optimizer]:
        """What makes it; ValueError if there is none, with what to pass instead."""
        if self.make is None:
            raise InputError(
                f"optimizer={self.name!r} is not built here. Pass what makes it from parameter "
                "groups: make_optimizer= of nfd.Task, or make= of plan.make_optimizer."
            )
        if not isinstance(self.make, str):
            return self.make
        # imported only now, as layers and their optimizers stand above the laws
        module, _, name = self.make.partition(":")
        return cast(
            "Callable[..., torch.optim.Optimizer]", getattr(importlib.import_module(module), name)
        )

    def accepts(self, option: str) -> bool:
        """Whether ``make`` has an option, as far as the law or the signature tells."""
        if option in self.options or self.setting(option) is not None:
            return True
        return callable(self.make) and takes(self.make, option)

    def check_decay(self, weight_decay: float, kind: str | None = None) -> None:
        """ValueError if the decay goes through a normalised update, since no rate keeps its
        strength at every size.

        Args:
            kind: the class of an optimizer that a user makes.
        """
        if weight_decay and not self.decoupled and not self.is_linear:
            whose = f"optimizer={self.name!r}" if kind is None else kind
            raise InputError(
                f"weight_decay of {whose} is normalised with the gradient: no setting keeps its "
                f"strength at other sizes; got {weight_decay:g}. Use 'adamw'."
            )

    def check_rest_rate(self, rate: float | None, *, above: float | None = None) -> float | None:
        """``adamw_lr`` as a checked number, or None; ValueError if AdamW trains no tensor beside
        this optimizer.
        """
        if rate is not None and self.rest is None:
            raise InputError(
                f"adamw_lr is for what Muon leaves to AdamW; got optimizer={self.name!r}. Drop it."
            )
        return (
            None
            if rate is None
            else check_real("adamw_lr", rate, least=0.0, above=above, below=MAX_RATE)
        )

    def check_unstored(self, what: str) -> None:
        """ValueError if this optimizer acts on single entries, which a matrix without stored
        weights does not have.
        """
        if not self.equivariant:
            raise InputError(
                f"{what} has no stored weights, and optimizer={self.name!r} acts on every entry of "
                f"a matrix by itself. Use {names_where(lambda other: other.equivariant)}, or dense "
                "weights."
            )


def has_argument(make: Callable[..., Any] | None, option: str) -> bool:
    """Whether a function has an argument of this name."""
    return make is not None and option in (_parameters(make) or {})


def takes(make: Callable[..., Any], option: str) -> bool:
    """Whether a function has an argument of this name, or takes any; True where its signature is
    not known.
    """
    parameters = _parameters(make)
    if parameters is None or option in parameters:
        return True
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _parameters(function: Any) -> Mapping[str, inspect.Parameter] | None:
    """The arguments of a function; None where its signature is not known."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


# ---- the laws, by name

_FLAGS = frozenset({"maximize", "foreach", "capturable", "differentiable", "fused"})
_OF_ADAM = _FLAGS | {"amsgrad"}
_WHOLE = (
    "Each matrix is orthogonalised as a whole, also one of several heads or maps, such as fused "
    "queries."
)
_ADAMW = OptimizerLaw(
    "adamw",
    "torch.optim:AdamW",
    classes=("AdamW",),
    epsilon=True,
    states=2,
    options=_OF_ADAM,
)
_MUON = OptimizerLaw(
    "muon",
    "nfd.wide.optimizers:make_muon",
    unit=WHOLE_MATRIX,
    # PyTorch's "original", and Keller Jordan's
    shape_norm=lambda rows, columns: math.sqrt(max(1.0, rows / columns)),
    classes=("Muon", "SingleDeviceMuon", "MuonWithAuxAdam", "SingleDeviceMuonWithAuxAdam"),
    states=1,
    rest="adamw",
    equivariant=True,
    options=frozenset({"nesterov", "ns_coefficients", "ns_steps"}),
    hyperparameters=(WEIGHT_DECAY, Hyperparameter("momentum")),
    notes=(_WHOLE,),
)
OF_THE_LIBRARY = (
    OptimizerLaw(
        "sgd",
        "nfd.wide.optimizers:SGD",
        degree=1.0,
        classes=("SGD",),
        decoupled=False,
        equivariant=True,
        options=frozenset({"nesterov", "maximize", "foreach", "differentiable", "fused"}),
        default_lr=0.1,
        hyperparameters=(WEIGHT_DECAY, Hyperparameter("momentum"), Hyperparameter("dampening")),
    ),
    replace(
        _ADAMW,
        name="adam",
        make="torch.optim:Adam",
        classes=("Adam",),
        decoupled=False,
        options=_OF_ADAM | {"decoupled_weight_decay"},
    ),
    _ADAMW,
    # The first beta of a schedule-free optimizer weighs two points, and is not a running mean.
    replace(
        _ADAMW,
        name="schedule-free-adamw",
        make=None,
        classes=("AdamWScheduleFree", "AdamWScheduleFreeClosure", "AdamWScheduleFreeReference"),
        options=frozenset(),
        hyperparameters=(
            WEIGHT_DECAY,
            EPS,
            Hyperparameter("betas", (None, "beta2")),
            Hyperparameter("warmup_steps", batch=-1.0),
        ),
    ),
    OptimizerLaw(
        "lion",
        classes=("Lion",),
        states=1,
        hyperparameters=(WEIGHT_DECAY, Hyperparameter("betas")),
    ),
    _MUON,
    replace(
        _MUON,
        name="muon-match-rms-adamw",
        make="nfd.wide.optimizers:make_muon_of_adamws_size",
        # PyTorch's, and Moonlight's
        shape_norm=lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),
    ),
    replace(
        _MUON,
        name="muon-spectral",
        make=None,
        shape_norm=lambda rows, columns: math.sqrt(rows / columns),
    ),
    replace(_MUON, name="muon-unit", make=None, shape_norm=any_shape),
)
LAWS: dict[str, OptimizerLaw] = {law.name: law for law in OF_THE_LIBRARY}


def register_optimizer(law: OptimizerLaw, *, replace: bool = False) -> OptimizerLaw:
    """Register an optimizer, so that every function of the library accepts its name; returns the
    law.

    Args:
        law: the description; its name must be new.
        replace: whether to replace a law of the same name.

    Raises:
        ValueError: if the name is taken, or a number is not finite.

    Example::

        law = nfd.OptimizerLaw("my-adamw", lambda groups: torch.optim.AdamW(groups), epsilon=True)
        nfd.register_optimizer(law)
        plan = nfd.plan(
            model, (64, 2), rule="mup", make_model=make_model, sample=x, optimizer="my-adamw"
        )
    """
    if not isinstance(law, OptimizerLaw):
        raise InputTypeError(f"law must be an nfd.OptimizerLaw; got {type(law).__name__}.")
    check_real("degree", law.degree)
    check_real("default_lr", law.default_lr, above=0.0)
    if law.rest is not None:
        check_choice("rest", law.rest, LAWS)
    if not replace and LAWS.get(law.name, law) != law:
        raise InputError(
            f"An optimizer called {law.name!r} is registered already. Pass replace=True or rename "
            "yours."
        )
    LAWS[law.name] = law
    return law


def law_of(optimizer: object) -> OptimizerLaw:
    """The law of a name, a law, an optimizer object, its class or a function that makes it.

    A law is registered. An optimizer of an unknown class is stepped on matrices of its own, and its
    law is registered under the name of the class (``nfd.scaling.measured``).

    Raises:
        ValueError: if there is no such name, or the optimizer has no law that stepping shows.
    """
    if isinstance(optimizer, OptimizerLaw):
        return register_optimizer(optimizer)
    is_object = hasattr(optimizer, "param_groups")
    if not is_object and not callable(optimizer):
        return LAWS[str(check_choice("optimizer", optimizer, LAWS))]
    law = law_by_class(optimizer) if is_object else None
    if law is not None:
        return law
    from nfd.scaling.measured import measured_law  # it is needed for few optimizers

    return measured_law(optimizer)


def notes_on(optimizer: object, law: OptimizerLaw) -> tuple[str, ...]:
    """What a plan says of an optimizer object: that its law was measured, and which of its settings
    are not taken.
    """
    if not hasattr(optimizer, "param_groups") or isinstance(optimizer, type):
        return ()
    kind = type(optimizer).__name__
    notes = list[str]()
    if law_by_class(optimizer) is None:
        notes.append(
            f"The {kind} was not known, and stepped on matrices of its own: its updates are as "
            f"large as those of {law.name!r}. Pass make=, what makes your {kind} from groups, to "
            "plan.make_optimizer."
        )
    chosen = _chosen_settings(optimizer)
    if chosen:
        settings = ", ".join(f"{name}={value!r}" for name, value in chosen.items())
        notes.append(
            f"The {kind} that was given has {settings}. A plan takes its law only: pass these to "
            "plan.make_optimizer, which scales them."
        )
    return tuple(notes)


# The rate, which the user passes with the plan's; what decides the law; and how PyTorch loops over
# tensors, which changes no number.
_NOT_CHOSEN = {
    "lr",
    "params",
    "adjust_lr_fn",
    "decoupled_weight_decay",
    "foreach",
    "fused",
    "capturable",
}


def _chosen_settings(optimizer: Any) -> dict[str, Any]:
    """The settings of an optimizer object, but for its rate, that are not the defaults of its
    class.
    """
    chosen = dict[str, Any]()
    for part in _with_held(optimizer):
        for name, value in (getattr(part, "defaults", None) or {}).items():
            is_own = _owner_of(type(part), name) is not None and not _is_default(
                type(part), name, value
            )
            if is_own and name not in _NOT_CHOSEN:
                chosen[name] = value
    return chosen


def law_by_class(optimizer: object) -> OptimizerLaw | None:
    """The law that the class of an optimizer has; None if it has none, several, or a ``step`` of
    its own.
    """
    if isinstance(optimizer, CombinedOptimizer):
        return law_by_class(optimizer.parts[0])
    kind = type(optimizer)
    for ancestor in kind.__mro__:
        laws = [law for law in LAWS.values() if ancestor.__name__ in law.classes]
        if not laws:
            continue
        if not _has_step_of(kind, {name for law in laws for name in law.classes}):
            return None
        # others may call a setting alike
        is_read = ancestor.__module__.startswith(("torch.", "nfd."))
        name = _name_by_settings(optimizer) if is_read else None
        if len(laws) > 1:
            return next((law for law in laws if law.name == name), None)
        return LAWS.get(name or "", laws[0])
    return None


def _has_step_of(kind: type, names: set[str]) -> bool:
    """Whether a class steps as the first class of these names does; PyTorch wraps ``step`` of every
    class.
    """
    ancestors = [ancestor for ancestor in kind.__mro__ if ancestor.__name__ in names]
    # ours repeat PyTorch's on layers without stored weights
    if ancestors[0].__module__.startswith("nfd."):
        return True
    return inspect.unwrap(cast(Any, kind).step) is inspect.unwrap(cast(Any, ancestors[-1]).step)


def _name_by_settings(optimizer: Any) -> str | None:
    """The name of a law that the settings of an optimizer of PyTorch, or of ours, decide."""
    settings = [{**optimizer.defaults, **group} for group in optimizer.param_groups]
    names = set[str | None]()
    for group in settings:
        if "adjust_lr_fn" in group:
            matches = group["adjust_lr_fn"] == "match_rms_adamw"
            names.add("muon-match-rms-adamw" if matches else "muon")
        elif group.get("decoupled_weight_decay") and isinstance(optimizer, torch.optim.Adam):
            names.add("adamw")
        else:
            names.add(None)
    if len(names) > 1:
        raise InputError(
            f"optimizer is a {type(optimizer).__name__} whose groups differ in adjust_lr_fn or "
            "decoupled_weight_decay, so that no one law fits. Give all groups the same."
        )
    return next(iter(names), None)


def names_where(fits: Callable[[OptimizerLaw], bool]) -> str:
    """The names of the laws that fit, for a message."""
    return " or ".join(repr(law.name) for law in LAWS.values() if fits(law))


def check_optimizer(
    optimizer: str, *, rule: str, weight_decay: float = 0.0, weights: str = "dense"
) -> None:
    """ValueError for what has no form free of width and depth: a rule, a decay or unstored weights
    that do not go with an optimizer."""
    law = law_of(optimizer)
    if rule_named(rule).regime == "kernel" and not law.is_linear:
        raise InputError(
            f"rule={rule!r} has rates for SGD alone; got optimizer={law.name!r}. Use another rule."
        )
    if weights != "dense":
        law.check_unstored(f"weights={weights!r}")
    law.check_decay(weight_decay)


# ---- the optimizer of a plan's groups, and one made of several: Muon for matrices, AdamW for the
# rest


SCALE = "lr_scale"  # of a group of a plan: its rate over the tuned one
OF_MATRICES = "use_muon"  # of a group: whether it is of the optimizer that takes matrices alone


@dataclass(frozen=True)
class BaseGroup:
    """Parameters of a plan that are stepped alike, with settings of the base.

    Attributes:
        parameters, roles: the parameters, and their roles in the network.
        lr, lr_scale: the rate of the base, and the group's rate as a multiple of it.
        law: of the optimizer that steps them.
        scale: how a hyperparameter of theirs follows from that of the base.
        chosen: the hyperparameters that the caller chose, at the base.
        mark: what else the optimizer reads from its groups, to know its own.
    """

    parameters: list[nn.Parameter]
    roles: list[str]
    lr: float
    lr_scale: float
    law: OptimizerLaw
    scale: Callable[[Hyperparameter], Scale]
    chosen: Mapping[str, Any]
    mark: Mapping[str, Any]

    def scaled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """These settings of the base, at the size of the group."""
        settings = (
            (setting, values[setting.name])
            for setting in self.law.settings
            if setting.name in values
        )
        return {
            setting.name: self.scale(setting)(setting.name, value) for setting, value in settings
        }

    def with_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """A group for an optimizer, with these settings."""
        ends = {SCALE: self.lr_scale, **self.mark, "roles": self.roles}
        return {"params": self.parameters, "lr": self.lr * self.lr_scale, **settings, **ends}

    def shown(self) -> dict[str, Any]:
        """The chosen settings, and the law's defaults of others; of running means only if these are
        scaled.
        """
        shown = dict(self.chosen)
        for setting in self.law.settings:
            is_needed = setting.name != BETAS.name or self.scale(setting) != Scale()
            if is_needed and setting.default is not None:
                shown.setdefault(setting.name, setting.default)
        return shown

    def ready(self) -> dict[str, Any]:
        """A group for an optimizer of ours."""
        return self.with_settings(self.scaled(self.shown()))

    def public(self) -> dict[str, Any]:
        """A group for an optimizer that a user makes."""
        group = self.ready()
        names = [setting.name for setting in self.law.settings if setting.name not in self.chosen]
        return {**group, "params": self.open_parameters(names, group)}

    def open_parameters(self, names: Iterable[str], group: Mapping[str, Any]) -> OpenParameters:
        """The parameters of a group in which nobody chose the settings of these names."""
        parameters = OpenParameters(self.parameters)
        settings = [setting for setting in self.law.settings if setting.name in names]
        parameters.scales = {setting.name: self.scale(setting) for setting in settings}
        parameters.shown = {name: group.get(name) for name in parameters.scales}
        return parameters


class OpenParameters(list[nn.Parameter]):
    """The parameters of a group of a plan, which see the settings of the optimizer that takes them.

    What an optimizer is given for a setting that nobody chose is the base's value: it is scaled, in
    place of being ignored or taken as it is. PyTorch lists the parameters of a group before it
    fills in its settings; then they are put into the group. The optimizer keeps plain lists and
    dicts, which compilers need.

    Attributes:
        shown: the settings that nobody chose, as the group shows them.
        scales: how these follow from the base.
    """

    shown: Mapping[str, Any] = {}
    scales: Mapping[str, Scale] = {}

    def __iter__(self) -> Iterator[nn.Parameter]:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        if caller is not None and caller.f_code.co_name == "add_param_group":
            group = caller.f_locals.get("param_group")
            optimizer = caller.f_locals.get("self")
            if isinstance(group, dict) and group.get("params") is self:
                self._fill(group, optimizer)
        return super().__iter__()

    def _fill(self, group: dict[str, Any], optimizer: Any) -> None:
        """Put the scaled settings of an optimizer into a group, where it does not have others by
        itself.
        """
        for name, value in getattr(optimizer, "defaults", {}).items():
            is_open = name in self.scales and (
                name not in group or _is_same(group[name], self.shown.get(name))
            )
            if not is_open:
                continue
            is_unset = name == WEIGHT_DECAY.name and _is_default(type(optimizer), name, value)
            group[name] = 0.0 if is_unset else self.scales[name](name, value)


class _GroupOfBase(dict[str, Any]):
    """A group for a function of the user's: settings that nobody chose are left out, so that the
    function's own are seen; read, they are the law's defaults at the base."""

    defaults: Mapping[str, Any] = {}
    filled: frozenset[str] = frozenset()  # by the optimizer, from what it has for all groups

    def __missing__(self, key: str) -> Any:
        if key not in self.defaults:
            raise KeyError(key)
        return self.defaults[key]

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As of a dict."""
        if key not in self:
            self.filled = self.filled | {key}
        return super().setdefault(key, default)


def optimizer_of(
    law: OptimizerLaw,
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
    make: Callable[..., torch.optim.Optimizer] | None = None,
    *,
    takes_all: bool = False,
    argument: str = "make",
) -> torch.optim.Optimizer:
    """What steps these groups: the optimizer of the law, or what ``make`` makes, and as one with it
    that of its rest, which takes the options that the first does not have.

    What the caller has not chosen is what the made optimizer has: the base's value, which is
    scaled.

    Args:
        takes_all: whether ``make`` takes the groups of the rest, too.
        argument: what messages call ``make``.

    Raises:
        ValueError: naming a setting that is chosen twice, or that the optimizer does not have.
    """
    if make is not None and takes_all:
        return _made_by(make, groups, options, argument)
    rest = None if law.rest is None else law_of(law.rest)
    given = law if make is None else replace(law, make=make)
    of_rest = {
        name for name in options if rest is not None and make is None and not law.accepts(name)
    }
    optimizers = list[torch.optim.Optimizer]()
    for part, theirs in by_law(law, groups):
        is_first = part is law
        source = given if is_first else part
        for_it = {name: value for name, value in options.items() if (name in of_rest) != is_first}
        check_options(source, for_it, law, argument)
        if source.is_ours:
            optimizers.append(source.constructor()([group.ready() for group in theirs], **for_it))
        else:
            optimizers.append(_made_by(source.constructor(), theirs, for_it, argument))
            # A task, or a law of the user's, may train at other rates: a check says what these do.
            if make is not None:
                check_rates_are_kept(optimizers[-1], theirs, argument)
    return optimizers[0] if len(optimizers) == 1 else CombinedOptimizer(optimizers)


def check_options(
    source: OptimizerLaw, options: Iterable[str], planned: OptimizerLaw, argument: str = "make"
) -> None:
    """ValueError naming an option that the optimizer does not have."""
    unknown = [option for option in options if not source.accepts(option)]
    if not unknown:
        return
    if not source.is_ours and source.make is not None:
        raise InputError(
            f"{argument} takes no option {unknown[0]!r}. Set it where {argument} makes the "
            f"optimizer, or give {argument} an argument of this name."
        )
    laws = [planned] if planned.rest is None else [planned, law_of(planned.rest)]
    names = {name for law in laws for name in (*law.options, *(s.name for s in law.settings))}
    fits = [law.name for law in LAWS.values() if law.is_ours and law.accepts(unknown[0])]
    having = f" It is an option of {' or '.join(map(repr, fits))}." if fits else ""
    raise InputError(
        f"optimizer={planned.name!r} has no option "
        f"{unknown[0]!r}.{nearest(unknown[0], names)}{having} Its options are "
        f"{', '.join(sorted(names))}."
    )


def _made_by(
    make: Callable[..., torch.optim.Optimizer],
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
    argument: str,
) -> torch.optim.Optimizer:
    """What a function of the user's makes, with its settings scaled from those of the base."""
    optimizer = make([_for_user(group) for group in groups], **options)
    if not hasattr(optimizer, "param_groups"):
        return optimizer
    check_chosen_once(optimizer, groups, argument)
    check_known(optimizer, groups, argument)
    if not any(WEIGHT_DECAY.name in group.chosen for group in groups):
        _leave_out_decay(optimizer, make, groups, options)
    scale_settings(optimizer, groups, argument)
    _make_plain(optimizer)
    return optimizer


def _with_held(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """An optimizer, and those that it holds, as wrappers do."""
    optimizers = [optimizer]
    for holder in optimizers:  # grows
        for value in getattr(holder, "__dict__", {}).values():
            for part in value if isinstance(value, tuple | list) else [value]:
                if isinstance(part, torch.optim.Optimizer) and not any(
                    part is other for other in optimizers
                ):
                    optimizers.append(part)
    return optimizers


def _make_plain(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer, and those that it holds, have dicts as groups, which compilers need."""
    plain = dict[int, dict[str, Any]]()
    for part in _with_held(optimizer):
        for place, group in enumerate(part.param_groups):
            if isinstance(group, _GroupOfBase):
                part.param_groups[place] = plain.setdefault(id(group), dict(group))


def _for_user(group: BaseGroup) -> _GroupOfBase:
    """A group for a function of the user's."""
    settings = group.law.settings
    base = _GroupOfBase(group.with_settings(group.chosen))
    base.defaults = {
        setting.name: setting.default for setting in settings if setting.default is not None
    }
    return base


def _leave_out_decay(
    optimizer: torch.optim.Optimizer,
    make: Callable[..., torch.optim.Optimizer],
    groups: Sequence[BaseGroup],
    options: Mapping[str, Any],
) -> None:
    """Set the weight decay to 0 if nobody chose it: PyTorch's AdamW has 0.01 then, its Muon 0.1.

    Whether ``make`` passes a decay that equals the default shows when it makes the optimizer again.
    """
    name = WEIGHT_DECAY.name
    for part in _with_held(optimizer):
        value = getattr(part, "defaults", {}).get(name)
        owner = _owner_of(type(part), name)
        if not value or owner is None or not _is_default(type(part), name, value):
            continue
        with _passed(owner, name) as passed:
            make([_for_user(group) for group in groups], **options)
        if any(passed):
            continue
        for group in part.param_groups:
            is_filled = not isinstance(group, _GroupOfBase) or name in group.filled
            # ``make`` may have set another value after it made the optimizer.
            if is_filled and _is_same(group.get(name), value):
                group[name] = 0.0


@contextmanager
def _passed(owner: type, name: str) -> Iterator[list[bool]]:
    """Whether the calls of a constructor pass an argument, in order."""
    constructor: Any = vars(owner)["__init__"]
    signature = inspect.signature(constructor)
    passed = list[bool]()

    @wraps(constructor)
    def recording(*args: Any, **options: Any) -> None:
        passed.append(name in signature.bind(*args, **options).arguments)
        constructor(*args, **options)

    owner.__init__ = recording  # type: ignore[misc]
    try:
        yield passed
    finally:
        owner.__init__ = constructor  # type: ignore[misc]


def _owner_of(kind: type, name: str) -> type | None:
    """The class whose constructor has an argument, which those of its subclasses may pass on."""
    for ancestor in kind.__mro__:
        if name in (_parameters(vars(ancestor).get("__init__")) or {}):
            return ancestor
    return None


def _is_default(kind: type, name: str, value: Any) -> bool:
    """Whether a setting has the value that the constructor has as its default."""
    owner = _owner_of(kind, name)
    if owner is None:
        return False
    return _is_same((_parameters(vars(owner)["__init__"]) or {})[name].default, value)


def check_chosen_once(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """ValueError naming a setting that the caller chose and ``make`` sets to another value."""
    chosen = dict[str, list[Any]]()
    for group in groups:
        for name, value in {"lr": group.lr, **group.chosen}.items():
            chosen.setdefault(name, []).append(value)
    defaults = getattr(optimizer, "defaults", {})
    for name, values in chosen.items():
        if name not in defaults or any(_is_same(defaults[name], value) for value in values):
            continue
        if not any(_is_chosen(type(part), name, defaults[name]) for part in _with_held(optimizer)):
            continue
        advice = (
            "Leave it out there: it is the rate that the plan scales."
            if name == "lr"
            else "Give it once."
        )
        raise InputError(
            f"{name} is chosen twice: {values[0]!r} beside {argument}, and {defaults[name]!r} by "
            f"the {type(optimizer).__name__} that {argument} makes. {advice}"
        )


def check_known(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """ValueError naming a setting that the caller chose and the optimizer does not have, so that it
    does nothing.
    """
    defaults = getattr(optimizer, "defaults", None)
    if not defaults:  # some read their groups alone
        return
    chosen = {name: value for group in groups for name, value in group.chosen.items()}
    unknown = next((name for name, value in chosen.items() if value and name not in defaults), None)
    if unknown is not None:
        raise InputError(
            f"{unknown}={chosen[unknown]!r} is given beside {argument}, but the "
            f"{type(optimizer).__name__} that {argument} makes has no such setting. Leave it out, "
            f"or set it where {argument} makes the optimizer."
        )


def _is_same(a: Any, b: Any) -> bool:
    """Whether two values of a setting are one, tuples and lists alike."""
    try:
        return bool(tuple(a) == tuple(b)) if isinstance(a, tuple | list) else bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


def _is_chosen(kind: type, name: str, value: Any) -> bool:
    """Whether a setting that all groups share was passed to the constructor, and is not the class's
    own.
    """
    if _owner_of(kind, name) is not None:
        return not _is_default(kind, name, value)
    constructors = [
        _parameters(vars(ancestor)["__init__"])
        for ancestor in kind.__mro__
        if "__init__" in vars(ancestor)
    ]
    own = constructors[0] or {}
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in own.values())


def check_rates_are_kept(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """ValueError where a function of the user's has lost the learning rates of the groups of the
    plan.
    """
    group_of = {id(p): group for group in groups for p in group.parameters}
    for group in optimizer.param_groups:
        for source in (group_of[id(p)] for p in group["params"] if id(p) in group_of):
            planned = source.lr * source.lr_scale
            # A scheduler that was made with the optimizer keeps the rate that it multiplies.
            rate = float(group.get("initial_lr", group.get("lr", planned)))
            if not math.isclose(rate, planned, rel_tol=1e-6):
                raise InputError(
                    f"{argument} makes an optimizer that trains {' and '.join(source.roles)} "
                    f"tensors at a learning rate of {rate:g}; the plan has {planned:g}. Keep the "
                    "lr of every group: lambda groups: torch.optim.AdamW(groups)."
                )


def scale_settings(
    optimizer: torch.optim.Optimizer, groups: Sequence[BaseGroup], argument: str
) -> None:
    """Scale the hyperparameters of an optimizer that was made from groups with those of the base.

    The optimizer's own law names them, if its class has one; else that of the groups.
    """
    group_of = {id(p): group for group in groups for p in group.parameters}
    by_class = law_by_class(optimizer)
    for group in optimizer.param_groups:
        sources = list(
            {
                id(group_of[id(p)]): group_of[id(p)] for p in group["params"] if id(p) in group_of
            }.values()
        )
        if not sources:
            continue
        law = (
            sources[0].law
            if by_class is None or len({s.law.name for s in groups}) > 1
            else by_class
        )
        decay = group.get(WEIGHT_DECAY.name)
        if decay and not is_decoupled(optimizer, group, law):
            replace(law, decoupled=False).check_decay(float(decay), type(optimizer).__name__)
        for setting in law.settings:
            value = group.get(setting.name)
            if value is None or (setting.name == WEIGHT_DECAY.name and not value):
                continue
            scales = [source.scale(setting) for source in sources]
            if any(scale != scales[0] for scale in scales):
                raise InputError(
                    f"{argument} puts parameters of several groups of the plan into one group, "
                    f"whose lr and {setting.name} can follow the size of only one of them. Keep "
                    "the groups apart, or split them further."
                )
            group[setting.name] = scales[0](setting.name, value)


def check_kind(optimizer: torch.optim.Optimizer, planned: OptimizerLaw) -> None:
    """ValueError if the class of an optimizer has a law whose rates are not those of the plan's."""
    law = law_by_class(optimizer)
    if law is None:
        return
    parts = [planned] if planned.rest is None else [planned, law_of(planned.rest)]
    if any(
        (law.degree, law.unit, law.shape_norm) == (own.degree, own.unit, own.shape_norm)
        for own in parts
    ):
        return
    raise InputError(
        f"make makes a {type(optimizer).__name__}, whose law is {law.name!r}; the plan is for "
        f"{planned.name!r}, with other rates. Plan with optimizer={law.name!r}, or let make return "
        "the optimizer of the plan."
    )


def is_decoupled(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], planned: OptimizerLaw
) -> bool:
    """Whether weight decay acts on the weights directly: as the optimizer's settings or its class
    say, as it steps, or as the plan's law has it."""
    if "decoupled_weight_decay" in group:
        return bool(group["decoupled_weight_decay"])
    by_class = law_by_class(optimizer)
    if by_class is not None:
        return by_class.decoupled
    from nfd.scaling.measured import decouples

    measured = decouples(optimizer)
    return planned.decoupled if measured is None else measured


def by_law(
    law: OptimizerLaw, groups: Sequence[BaseGroup]
) -> list[tuple[OptimizerLaw, list[BaseGroup]]]:
    """The laws that step these groups, each with its own: the first is ``law``, unless it has none
    of them.
    """
    parts = [law] if law.rest is None else [law, law_of(law.rest)]
    apart = [(part, [group for group in groups if group.law.name == part.name]) for part in parts]
    return [(part, theirs) for part, theirs in apart if theirs]


def mark_of(planned: OptimizerLaw, is_first: bool) -> dict[str, Any]:
    """What the groups of an optimizer that leaves tensors to another say of whose they are."""
    return {} if planned.rest is None else {OF_MATRICES: is_first}


def gradient_sizes(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], p: Tensor
) -> Tensor | None:
    """The root of the running mean of squared gradients that an optimizer like Adam adds its
    epsilon to, made up for its start at zero; None where the optimizer keeps none, or does not say
    of how many steps it is."""
    state = optimizer.state.get(p, {})
    squares = state.get("exp_avg_sq")
    # Adam counts steps for every tensor, schedule-free optimizers for every group.
    steps = float(state.get("step", group.get("k", 0)))
    betas = group.get("betas")
    is_known = (
        isinstance(betas, tuple | list) and len(betas) > 1 and isinstance(group.get("eps"), float)
    )
    if squares is None or not steps or not is_known:
        return None
    seen = 1 - float(cast(Any, betas)[1]) ** steps
    sizes: Tensor = squares.double().sqrt() / math.sqrt(seen)
    return sizes


class CombinedOptimizer(torch.optim.Optimizer):
    """Steps optimizers of different parameters as one: one ``step``, one state, and the groups of
    all, which schedulers can change."""

    parts: tuple[torch.optim.Optimizer, ...] = ()

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = tuple(parts)
        self._share()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of every part; ``closure`` is called once, before them."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for part in self.parts:
            part.step()
        return loss

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` of an optimizer of the same parts returned; ValueError
        for other groups.
        """
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise InputError(
                f"state_dict has {len(groups)} groups of parameters; expected "
                f"{len(self.param_groups)}."
            )
        # each by its own method: that of deferred layers reads more than numbers
        for part in self.parts:
            own = groups[: len(part.param_groups)]
            groups = groups[len(part.param_groups) :]
            keys = {key for group in own for key in group["params"]}
            state = {key: value for key, value in state_dict["state"].items() if key in keys}
            part.load_state_dict({"state": state, "param_groups": own})
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the parts are made: a group would belong to none of them."""
        if self.parts:
            raise StateError(
                "Parameters cannot join a combined optimizer later. Plan the whole model, make it "
                "again."
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def _share(self) -> None:
        """Let the parts and the whole have the same groups and the same state."""
        self.state = defaultdict(
            dict, {p: state for part in self.parts for p, state in part.state.items()}
        )
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        for part in self.parts:
            part.state = self.state


# ---- whether an optimizer still has the ratios of rates that a plan gave it
#
# Schedulers that multiply rates keep the ratios; what sets one rate for all groups
# (``OneCycleLR(max_lr=0.1)``, a loop with ``group["lr"] = lr``) or adds to them (``eta_min``) does
# not.

ALIKE = 1e-4  # relative; schedulers multiply rates anew at every step
REMEDY = (
    'Set group["lr"] = lr * group["lr_scale"] in your own loop, pass '
    'max_lr=[group["lr"] for group in optimizer.param_groups] to OneCycleLR, and leave eta_min at '
    "0."
)


def check_rates(optimizer: torch.optim.Optimizer) -> None:
    """Raise unless an optimizer has the groups of a plan, with rates in the plan's ratios.

    Call it after the first step of a scheduler, or before the training in another library's
    trainer.

    Raises:
        ValueError: naming two groups and their rates, or if the groups are not from a plan.
    """
    groups = optimizer.param_groups
    if any(SCALE not in group for group in groups):
        raise InputError(
            f"The {type(optimizer).__name__} does not have the groups of a plan, so that every "
            "tensor has one rate. Make it by plan.make_optimizer(model, lr=...), or of "
            "plan.param_groups(model, lr=...)."
        )
    # each has a tuned rate of its own; rates of zero, before a warm-up, tell nothing
    for of_matrices in (True, False):
        alike = [k for k, group in enumerate(groups) if group.get(OF_MATRICES, True) == of_matrices]
        own = [k for k in alike if float(groups[k]["lr"])]
        for a, b in ((own[0], k) for k in own[1:]):
            rate, planned = (float(groups[b][key]) / float(groups[a][key]) for key in ("lr", SCALE))
            if not math.isclose(rate, planned, rel_tol=ALIKE):
                raise InputError(
                    f"The rates are no longer the plan's: groups {a} and {b} of the optimizer have "
                    f"rates in a ratio of {rate:.4g}; the plan's is {planned:.4g}. {REMEDY}"
                )


def warn_of_lost_ratios(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer warn, once, at the first step at which its rates are no longer in the plan's
    ratios.
    """
    # as wrappers that are none
    if optimizer in _warning or not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        return
    _warning.add(optimizer)

    def look(stepped: torch.optim.Optimizer, _args: Any, _options: Any) -> None:
        try:
            check_rates(stepped)
        except InputError as lost:
            hook.remove()
            warnings.warn(str(lost), RuntimeWarning, stacklevel=3)

    hook = optimizer.register_step_pre_hook(look)


_warning: WeakSet[torch.optim.Optimizer] = WeakSet()
