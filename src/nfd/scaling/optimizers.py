"""What scaling knows of optimizers: the law of each, and its hyperparameters.

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
length. ``register_optimizer`` adds another law; ``nfd.scaling.find_law`` finds the one of any
optimizer.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from torch import Tensor

from nfd.core.checks import check_choice, check_real
from nfd.core.errors import InputError, InputTypeError
from nfd.scaling.combined import CombinedOptimizer
from nfd.scaling.constructors import is_default, owner_of, takes, with_held
from nfd.scaling.rules import MAX_RATE, Power

# How the entries of an update scale: of order one, or so that its largest singular value is 1.
EACH_ENTRY = Power()
WHOLE_MATRIX = Power(fan_in=-0.5, fan_out=-0.5)


def any_shape(rows: float, columns: float) -> float:
    """Return 1, the norm of updates that follow the shape of a matrix by ``unit`` only."""
    return 1.0


# ---- the settings of an optimizer, and how they follow size and run


Follows = Literal["epsilon", "weight decay", "beta1", "beta2"]


@dataclass(frozen=True)
class Hyperparameter:
    """A setting of an optimizer's groups, and how it follows width, depth, batch and length.

    The user's value is the base's. A plan sets it in every group, scaled.

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

        # A second mean of gradients, and a warm-up that is a share of the steps.
        beta3 = nfd.Hyperparameter("beta3", follows="beta1")
        warmup = nfd.Hyperparameter("beta3_warmup", batch=-1.0, tokens=1.0)
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
    """How a setting of one group follows from its value at the base.

    Args:
        factor: multiplies a number.
        half_lives: multiply the half-lives of running means, of which the setting holds the share
            of the past: one factor for each, the first one for all further ones.
    """

    factor: float = 1.0
    half_lives: tuple[float, ...] = ()

    def __call__(self, name: str, value: Any) -> Any:
        """Scale a setting; ValueError naming it if it is not a number."""
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
    """A description of an optimizer: how its learning rates scale, its settings, its constructor.

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
        classes: names of the optimizer's classes, to recognise an optimizer object or class.
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
    def parts(self) -> tuple[OptimizerLaw, ...]:
        """This law, and the law that trains the tensors that it leaves."""
        return (self,) if self.rest is None else (self, LAWS[self.rest])

    def has_rates_of(self, other: OptimizerLaw) -> bool:
        """Whether learning rates scale as under another law."""
        if (self.degree, self.unit) != (other.degree, other.unit):
            return False
        if self.shape_norm == other.shape_norm:
            return True
        # A norm that was measured is another function, of the same values but for a constant.
        ratios = [self.shape_norm(*shape) / other.shape_norm(*shape) for shape in _SHAPES]
        return max(ratios) <= min(ratios) * _ALIKE

    @property
    def is_ours(self) -> bool:
        """Whether ``make`` is a name, so that nobody has set anything in it."""
        return isinstance(self.make, str)

    def for_vectors(self) -> OptimizerLaw:
        """The law of its updates of tensors with at most one dimension."""
        if self.vector_unit is None:
            return self
        return replace(self, unit=self.vector_unit, vector_unit=None)

    def constructor(self) -> Callable[..., torch.optim.Optimizer]:
        """The function that makes it; ValueError if there is none, with what to pass instead."""
        if self.make is None:
            raise InputError(
                f"optimizer={self.name!r} is not built here. Pass what makes it from parameter "
                "groups: make_optimizer= of nfd.Task, or make= of plan.make_optimizer."
            )
        if not isinstance(self.make, str):
            return self.make
        # Imported only now, as layers and their optimizers stand above the laws.
        module, _, name = self.make.partition(":")
        make = getattr(importlib.import_module(module), name)
        return cast("Callable[..., torch.optim.Optimizer]", make)

    def accepts(self, option: str) -> bool:
        """Whether ``make`` has an option, as far as the law or the signature shows."""
        if option in self.options or self.setting(option) is not None:
            return True
        return callable(self.make) and takes(self.make, option)

    def check_decay(self, weight_decay: float, kind: str | None = None) -> None:
        """Raise ValueError if the decay goes through a normalised update.

        No learning rate keeps its strength at every size.

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
        """Check ``adamw_lr``; ValueError if AdamW trains no tensor beside this optimizer."""
        if rate is not None and self.rest is None:
            raise InputError(
                f"adamw_lr is for what Muon leaves to AdamW; got optimizer={self.name!r}. Drop it."
            )
        if rate is None:
            return None
        return check_real("adamw_lr", rate, least=0.0, above=above, below=MAX_RATE)

    def check_unstored(self, what: str) -> None:
        """Raise ValueError if this optimizer acts on single entries, and they are not stored."""
        if not self.equivariant:
            raise InputError(
                f"{what} has no stored weights, and optimizer={self.name!r} acts on every entry of "
                f"a matrix by itself. Use {names_where(lambda other: other.equivariant)}, or dense "
                "weights."
            )


# ---- the laws, by name

# Shapes on which norms are compared; what is told apart differs by a factor of 2^1/2 at least.
_SHAPES = ((16, 16), (64, 64), (64, 16), (16, 64))
_ALIKE = 1.06
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
    # PyTorch's "original", and Keller Jordan's.
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
        # PyTorch's, and Moonlight's.
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
    """Register an optimizer, so that every function of the library accepts its name.

    Args:
        law: the description; its name must be new.
        replace: whether to replace a law of the same name.

    Returns:
        the law.

    Raises:
        ValueError: if the name is taken, or a number is not finite.

    Example::

        make = lambda groups: torch.optim.AdamW(groups)
        law = nfd.OptimizerLaw("my-adamw", make, epsilon=True)
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


def notes_on(optimizer: object, law: OptimizerLaw) -> tuple[str, ...]:
    """Remark on an optimizer object: that its law was measured, which settings are not taken."""
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


# Settings that no remark is needed for. The user passes the rate with the plan's; others decide the
# law, or how PyTorch loops over tensors, which changes no number.
_PASSED_ANYWAY = {"lr", "params"}
_DECIDES_LAW = {"adjust_lr_fn", "decoupled_weight_decay"}
_LOOPS = {"foreach", "fused", "capturable"}
_NOT_CHOSEN = _PASSED_ANYWAY | _DECIDES_LAW | _LOOPS


def _chosen_settings(optimizer: Any) -> dict[str, Any]:
    """List the settings of an optimizer object that are not the defaults of its class."""
    chosen = dict[str, Any]()
    for part in with_held(optimizer):
        kind = type(part)
        for name, value in (getattr(part, "defaults", None) or {}).items():
            is_of_class = owner_of(kind, name) is None or is_default(kind, name, value)
            if not is_of_class and name not in _NOT_CHOSEN:
                chosen[name] = value
    return chosen


def law_by_class(optimizer: object) -> OptimizerLaw | None:
    """Find the law of an optimizer's class; None without one, or with a ``step`` of its own."""
    if isinstance(optimizer, CombinedOptimizer):
        return law_by_class(optimizer.parts[0])
    kind = type(optimizer)
    for ancestor in kind.__mro__:
        laws = [law for law in LAWS.values() if ancestor.__name__ in law.classes]
        if not laws:
            continue
        names = set[str]()
        for law in laws:
            names.update(law.classes)
        if not _has_step_of(kind, names):
            return None
        # Settings are read of PyTorch's classes and ours only: others may mean something else.
        is_read = ancestor.__module__.startswith(("torch.", "nfd."))
        name = _name_by_settings(optimizer) if is_read else None
        if len(laws) > 1:
            return next((law for law in laws if law.name == name), None)
        return laws[0] if name is None else LAWS[name]
    return None


def _has_step_of(kind: type, names: set[str]) -> bool:
    """Say whether a class steps as the first of its ancestors that has one of these names."""
    ancestors = [ancestor for ancestor in kind.__mro__ if ancestor.__name__ in names]
    # Ours do what PyTorch's do, also for layers without stored weights.
    if ancestors[0].__module__.startswith("nfd."):
        return True
    # PyTorch wraps ``step`` of every class.
    step = inspect.unwrap(cast(Any, kind).step)
    return step is inspect.unwrap(cast(Any, ancestors[-1]).step)


def _name_by_settings(optimizer: Any) -> str | None:
    """Name the law that settings of an optimizer decide; None where they decide nothing."""
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
    """List the names of the laws that fit, for a message."""
    return " or ".join(repr(law.name) for law in LAWS.values() if fits(law))


def gradient_sizes(
    optimizer: torch.optim.Optimizer, group: Mapping[str, Any], p: Tensor
) -> Tensor | None:
    """Read the size of gradients from the state of an optimizer like Adam.

    It is the root of the running mean of squares, to which epsilon is added, divided by what the
    mean lacks as it starts at zero. None where the optimizer keeps none, or does not say how many
    steps it has made.
    """
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
    weight_of_steps = 1 - float(cast(Any, betas)[1]) ** steps
    sizes: Tensor = squares.double().sqrt() / math.sqrt(weight_of_steps)
    return sizes
