"""What scaling knows of optimizers: the law of each, one made of several, and whether it keeps a plan's rates.

An update at rate 1 is ``unit |gradient|^degree`` in its entries, where ``unit`` follows the size of the tensor:

==================================  ======  =====================
optimizer                           degree  unit
==================================  ======  =====================
SGD                                 1       1
Adam, Lion, the sign of a momentum  0       1, entry by entry
Muon, SGD over a norm               0       (in out)^-1/2
==================================  ======  =====================

The rates of a rule are those of updates with entries of order one (Adam's column in ``nfd.scaling.rules``), so every
other rate is that one over ``unit |gradient|^degree``. ``register_optimizer`` adds another law.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from weakref import WeakSet

import torch

from nfd.core.errors import InputError, InputTypeError, StateError, check_choice, check_real
from nfd.scaling.rules import MAX_RATE, Power, rule_named

EACH_ENTRY = Power()  # entries of an update of order one
WHOLE_MATRIX = Power(fan_in=-0.5, fan_out=-0.5)  # entries of an update whose largest singular value is 1


def any_shape(rows: float, columns: float) -> float:
    """The spectral norm of updates that do not follow the shape of a matrix beyond ``unit``."""
    return 1.0


@dataclass(frozen=True)
class OptimizerLaw:
    """A description of an optimizer: how its rates scale with size, its state, its options and its constructor.

    Register one with ``nfd.register_optimizer``. The defaults describe an optimizer like Adam: its updates have entries
    of order one at any size of the gradient.

    Args:
        name: the value of ``optimizer=`` that selects it.
        make: a function of parameter groups and options that returns the optimizer, or where it is, as
            ``"torch.optim:AdamW"``; None if there is none.
        degree: a gradient c times as large gives an update ``c**degree`` times as large: 1 for SGD, 0 for normalised
            updates.
        unit: how the entries of a normalised update scale with the fans of a tensor; ``WHOLE_MATRIX`` if the matrix is
            normalised as a whole, as by Muon.
        shape_norm: a function of (rows, columns) of a stored matrix: the largest singular value of its updates, as a
            multiple of that in ``unit``, up to one constant. Rates compensate for it.
        classes: names of the optimizer's classes, to recognise an optimizer object.
        epsilon: whether groups have an ``eps``, which must scale with the entries of the gradient.
        decoupled: whether weight decay acts on the weights directly, as in AdamW.
        states: numbers stored per parameter.
        rest: if the optimizer trains only the matrices in blocks, the name of the law for all other tensors.
        equivariant: whether ``U(P G Q') = P U(G) Q'`` for orthonormal P and Q; then it is exact for deferred layers.
        options: names of options of ``make`` beside the settings of groups; others go to that of ``rest``.
        default_lr: the rate of questions that are given none.

    Example::

        law = nfd.OptimizerLaw("my-adamw", lambda groups: torch.optim.AdamW(groups), epsilon=True, states=2)
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

    @property
    def is_linear(self) -> bool:
        """Whether updates are proportional to gradients."""
        return self.degree == 1

    def made(self, groups: Sequence[dict[str, Any]], options: Mapping[str, Any]) -> torch.optim.Optimizer:
        """What ``make`` returns; ValueError if there is none, with what to pass instead."""
        if self.make is None:
            raise InputError(
                f"optimizer={self.name!r} is not built here. Pass what makes it from parameter groups: make_optimizer= "
                "of nfd.Task, or make= of plan.make_optimizer."
            )
        make: Any = self.make
        if isinstance(make, str):  # imported only now, as layers and their optimizers stand above the laws
            module, _, name = make.partition(":")
            make = getattr(importlib.import_module(module), name)
        return cast("torch.optim.Optimizer", make(groups, **options))

    def check_decay(self, weight_decay: float) -> None:
        """ValueError if the decay goes through a normalised update, since no rate keeps its strength at every size."""
        if weight_decay and not self.decoupled and not self.is_linear:
            raise InputError(
                f"weight_decay of optimizer={self.name!r} is normalised with the gradient: no setting keeps its "
                f"strength at other sizes; got {weight_decay:g}. Use 'adamw'."
            )

    def check_rest_rate(self, rate: float | None, *, above: float | None = None) -> float | None:
        """``adamw_lr`` as a checked number, or None; ValueError if AdamW trains no tensor beside this optimizer."""
        if rate is not None and self.rest is None:
            raise InputError(f"adamw_lr is for what Muon leaves to AdamW; got optimizer={self.name!r}. Drop it.")
        return None if rate is None else check_real("adamw_lr", rate, least=0.0, above=above, below=MAX_RATE)

    def check_unstored(self, what: str) -> None:
        """ValueError if this optimizer acts on single entries, which a matrix without stored weights does not have."""
        if not self.equivariant:
            raise InputError(
                f"{what} has no stored weights, and optimizer={self.name!r} acts on every entry of a matrix by itself. "
                f"Use {names_where(lambda other: other.equivariant)}, or dense weights."
            )


# ---- the laws, by name --------------------------------------------------------------------------------------------

_OF_ADAM = frozenset({"betas", "amsgrad", "maximize", "foreach", "capturable", "fused"})
_ADAMW = OptimizerLaw("adamw", "torch.optim:AdamW", classes=("AdamW",), epsilon=True, states=2, options=_OF_ADAM)
_MUON = OptimizerLaw(
    "muon",
    "nfd.wide.optimizers:make_muon",
    unit=WHOLE_MATRIX,
    shape_norm=lambda rows, columns: math.sqrt(max(1.0, rows / columns)),  # PyTorch's "original", and Keller Jordan's
    classes=("Muon", "SingleDeviceMuon", "MuonWithAuxAdam", "SingleDeviceMuonWithAuxAdam"),
    states=1,
    rest="adamw",
    equivariant=True,
    options=frozenset({"momentum", "nesterov", "ns_coefficients", "ns_steps"}),
)
_LAWS = (
    OptimizerLaw(
        "sgd", "nfd.wide.optimizers:SGD", degree=1.0, classes=("SGD",), decoupled=False, equivariant=True,
        default_lr=0.1,
    ),
    replace(_ADAMW, name="adam", make="torch.optim:Adam", classes=("Adam",), decoupled=False),
    _ADAMW,
    OptimizerLaw("lion", classes=("Lion",), states=1, options=frozenset({"betas"})),
    _MUON,
    replace(
        _MUON, name="muon-match-rms-adamw", make="nfd.wide.optimizers:make_muon_of_adamws_size",
        shape_norm=lambda rows, columns: 0.2 * math.sqrt(max(rows, columns)),  # PyTorch's, and Moonlight's
    ),
    replace(_MUON, name="muon-spectral", make=None, shape_norm=lambda rows, columns: math.sqrt(rows / columns)),
    replace(_MUON, name="muon-unit", make=None, shape_norm=any_shape),
)  # fmt: skip
LAWS: dict[str, OptimizerLaw] = {law.name: law for law in _LAWS}


def register_optimizer(law: OptimizerLaw, *, replace: bool = False) -> OptimizerLaw:
    """Register an optimizer, so that every function of the library accepts its name; returns the law.

    Args:
        law: the description; its name must be new.
        replace: whether to replace a law of the same name.

    Raises:
        ValueError: if the name is taken, or a number is not finite.

    Example::

        nfd.register_optimizer(nfd.OptimizerLaw("my-adamw", lambda groups: torch.optim.AdamW(groups), epsilon=True))
        plan = nfd.plan(model, rule="mup", make_model=make_model, base=(64, 2), sample=x, optimizer="my-adamw")
    """
    if not isinstance(law, OptimizerLaw):
        raise InputTypeError(f"law must be an nfd.OptimizerLaw; got {type(law).__name__}.")
    check_real("degree", law.degree)
    check_real("default_lr", law.default_lr, above=0.0)
    if law.rest is not None:
        check_choice("rest", law.rest, LAWS)
    if not replace and LAWS.get(law.name, law) != law:
        raise InputError(f"An optimizer called {law.name!r} is registered already. Pass replace=True or rename yours.")
    LAWS[law.name] = law
    return law


def law_of(optimizer: object) -> OptimizerLaw:
    """The law for a name or an optimizer object, by its class; a law itself is registered. ValueError where there is
    none, or several, as of Muon, whose implementations scale shapes differently."""
    if isinstance(optimizer, OptimizerLaw):
        return register_optimizer(optimizer)
    if not hasattr(optimizer, "param_groups"):
        return LAWS[str(check_choice("optimizer", optimizer, LAWS))]
    named = ([law for law in LAWS.values() if kind.__name__ in law.classes] for kind in type(optimizer).__mro__)
    fitting = next(filter(None, named), [])
    if len(fitting) != 1:
        names = ", ".join(law.name for law in fitting) or "none; register one with nfd.register_optimizer"
        raise InputError(f"optimizer is a {type(optimizer).__name__}, of no one law ({names}). Pass a name.")
    return fitting[0]


def names_where(fits: Callable[[OptimizerLaw], bool]) -> str:
    """The names of the laws that fit, for a message."""
    return " or ".join(repr(law.name) for law in LAWS.values() if fits(law))


def check_optimizer(optimizer: str, *, rule: str, weight_decay: float = 0.0, weights: str = "dense") -> None:
    """ValueError for what has no form free of width and depth: a rule, a decay or unstored weights that do not go with
    an optimizer."""
    law = law_of(optimizer)
    if rule_named(rule).regime == "kernel" and not law.is_linear:
        raise InputError(f"rule={rule!r} has rates for SGD alone; got optimizer={law.name!r}. Use another rule.")
    if weights != "dense":
        law.check_unstored(f"weights={weights!r}")
    law.check_decay(weight_decay)


# ---- one optimizer made of several, each with parameters of its own: Muon for matrices, AdamW for the rest --------


def optimizer_of(
    law: OptimizerLaw,
    groups: Sequence[dict[str, Any]],
    options: Mapping[str, Any],
    make: Callable[..., torch.optim.Optimizer] | None = None,
) -> torch.optim.Optimizer:
    """What steps these groups: the optimizer of the law, or ``make``, and as one with it that of its rest, which takes
    the options that the first does not have."""
    is_own = {name: law.rest is None or make is not None or name in law.options for name in options}
    first = law if make is None else replace(law, make=make)
    parts = [
        (first if part is law else part).made(theirs, {k: v for k, v in options.items() if is_own[k] == (part is law)})
        for part, theirs in by_law(law, groups)
    ]
    return parts[0] if len(parts) == 1 else CombinedOptimizer(parts)


def by_law(law: OptimizerLaw, groups: Sequence[dict[str, Any]]) -> list[tuple[OptimizerLaw, list[dict[str, Any]]]]:
    """The laws that step these groups, each with its own: the first is ``law``, unless it has none of them."""
    parts = {True: law, False: law if law.rest is None else law_of(law.rest)}
    found = [(part, [g for g in groups if g.get("use_muon", True) == own]) for own, part in parts.items()]
    return [(part, theirs) for part, theirs in found if theirs]


class CombinedOptimizer(torch.optim.Optimizer):
    """Steps optimizers of different parameters as one: one ``step``, one state, and the groups of all, which schedulers
    can change."""

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
        """Continue from what ``state_dict`` of an optimizer of the same parts returned; ValueError for other groups."""
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise InputError(f"state_dict has {len(groups)} groups of parameters; expected {len(self.param_groups)}.")
        for part in self.parts:  # each by its own method: that of deferred layers reads more than numbers
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            keys = {key for group in own for key in group["params"]}
            state = {key: value for key, value in state_dict["state"].items() if key in keys}
            part.load_state_dict({"state": state, "param_groups": own})
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the parts are made: a group would belong to none of them."""
        if self.parts:
            raise StateError("Parameters cannot join a combined optimizer later. Plan the whole model, make it again.")
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "parts": self.parts}

    def _share(self) -> None:
        """Let the parts and the whole have the same groups and the same state."""
        self.state = defaultdict(dict, {p: state for part in self.parts for p, state in part.state.items()})
        self.param_groups = [group for part in self.parts for group in part.param_groups]
        for part in self.parts:
            part.state = self.state


# ---- whether an optimizer still has the ratios of rates that a plan gave it ---------------------------------------
#
# A group of a plan has ``lr_scale``, its rate over the tuned one. Schedulers that multiply rates keep the ratios; what
# sets one rate for all groups (``OneCycleLR(max_lr=0.1)``, a loop with ``group["lr"] = lr``) or adds to them
# (``eta_min``) does not.

SCALE = "lr_scale"
ALIKE = 1e-4  # relative; schedulers multiply rates anew at every step
REMEDY = (
    'Set group["lr"] = lr * group["lr_scale"] in your own loop, pass '
    'max_lr=[group["lr"] for group in optimizer.param_groups] to OneCycleLR, and leave eta_min at 0.'
)


def check_rates(optimizer: torch.optim.Optimizer) -> None:
    """Raise unless an optimizer has the groups of a plan, with rates in the plan's ratios.

    Call it after the first step of a scheduler, or before the training in another library's trainer.

    Raises:
        ValueError: naming two groups and their rates, or if the groups are not from a plan.
    """
    groups = optimizer.param_groups
    if any(SCALE not in group for group in groups):
        raise InputError(
            f"The {type(optimizer).__name__} does not have the groups of a plan, so that every tensor has one rate. "
            "Make it by plan.make_optimizer(model, lr=...), or of plan.param_groups(model, lr=...)."
        )
    for of_muon in (True, False):  # each has a tuned rate of its own; rates of zero, before a warm-up, tell nothing
        own = [k for k, group in enumerate(groups) if group.get("use_muon", True) == of_muon and float(group["lr"])]
        for a, b in ((own[0], k) for k in own[1:]):
            rate, planned = (float(groups[b][key]) / float(groups[a][key]) for key in ("lr", SCALE))
            if not math.isclose(rate, planned, rel_tol=ALIKE):
                raise InputError(
                    f"The rates are no longer the plan's: groups {a} and {b} of the optimizer have rates in a ratio of "
                    f"{rate:.4g}; the plan's is {planned:.4g}. {REMEDY}"
                )


def warn_of_lost_ratios(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer warn, once, at the first step at which its rates are no longer in the plan's ratios."""
    if optimizer in _warning:
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
