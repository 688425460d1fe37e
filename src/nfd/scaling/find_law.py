"""The law of any optimizer: by its name, by its class, or else measured."""

from __future__ import annotations

from dataclasses import replace

from nfd.core.checks import check_choice
from nfd.core.errors import InputError
from nfd.scaling.measured import measured_law
from nfd.scaling.optimizers import (
    LAWS,
    OF_THE_LIBRARY,
    OptimizerLaw,
    law_by_class,
    register_optimizer,
)
from nfd.scaling.probe import PANEL, START, parameter_like, signs
from nfd.scaling.remake import probes_of
from nfd.scaling.rules import rule_named


def law_of(optimizer: object) -> OptimizerLaw:
    """Find the law of a name, an optimizer object, its class or a function that makes it.

    An ``OptimizerLaw`` is registered and returned. An optimizer of an unknown class steps small
    test matrices, which shows its law; this is registered under the name of the class
    (``nfd.scaling.measured``).

    Raises:
        ValueError: if no law has this name, or the steps of the optimizer show no law.
    """
    if isinstance(optimizer, OptimizerLaw):
        return register_optimizer(optimizer)
    is_object = hasattr(optimizer, "param_groups")
    if not is_object and not callable(optimizer):
        return LAWS[str(check_choice("optimizer", optimizer, LAWS))]
    law = None
    if is_object:
        law = law_by_class(optimizer)
    elif isinstance(optimizer, type):
        law = _registered_law(optimizer)
    if law is not None:
        return law
    return measured_law(optimizer)


def _registered_law(kind: type) -> OptimizerLaw | None:
    """Find the law that somebody registered for a class, which makes its optimizers without one.

    Laws of the library are not meant: a class of such a name is measured, as it may step otherwise.
    """
    try:
        law = law_by_class(probes_of(kind)[0].optimizer([parameter_like(signs(*PANEL[0]), START)]))
    # Its measurement says why no optimizer can be made.
    except InputError:
        return None
    if law is None or law in OF_THE_LIBRARY:
        return None
    if law.make is None:
        law = register_optimizer(replace(law, make=kind), replace=True)
    return law


def check_optimizer(
    optimizer: str, *, rule: str, weight_decay: float = 0.0, weights: str = "dense"
) -> None:
    """Raise ValueError for a rule, a weight decay or weights that an optimizer does not allow."""
    law = law_of(optimizer)
    if rule_named(rule).regime == "kernel" and not law.is_linear:
        raise InputError(
            f"rule={rule!r} has rates for SGD alone; got optimizer={law.name!r}. Use another rule."
        )
    # Weights that are not dense are not stored.
    if weights != "dense":
        law.check_unstored(f"weights={weights!r}")
    law.check_decay(weight_decay)
