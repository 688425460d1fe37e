"""Optimizers like one of the user's, made anew for other parameters."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from nfd.core.errors import in_brief
from nfd.scaling.base_group import OF_MATRICES, SCALE
from nfd.scaling.optimizers import BETAS, EPS
from nfd.scaling.probe import (
    DECAYS,
    PANEL,
    START,
    MeasurementError,
    Probe,
    parameter_like,
    signs,
)

_NOT_SETTINGS = ("params", "lr", "initial_lr", "param_names", "name", SCALE, "roles", "role")
# settings that a plan scales: groups may differ in them and still have one law
_SCALED_SETTINGS = (*DECAYS, EPS.name, BETAS.name)


def probes_of(optimizer: Any) -> tuple[Probe, Probe | None]:
    """Find what makes optimizers like one of the user's: of matrices, and of vectors.

    The second is None where the optimizer trains only matrices its own way and leaves vectors to
    AdamW. Where no groups hold vectors, both are one.

    Args:
        optimizer: an object, its class, or a function from groups that makes it.

    Raises:
        ValueError: if groups step matrices of one shape with different settings, so that no one law
            fits.
    """
    if not hasattr(optimizer, "param_groups") or isinstance(optimizer, type):
        probe = Probe(optimizer, _name_of_product(optimizer))
        return probe, probe
    kind = type(optimizer).__name__
    matrices = list[GroupLike]()
    vectors = list[GroupLike]()
    for group in optimizer.param_groups:
        settings = {name: value for name, value in group.items() if name not in _NOT_SETTINGS}
        steps_matrices = group.get(OF_MATRICES, True)
        ratios = [_ratio(p) for p in group["params"] if steps_matrices and p.dim() > 1]
        if ratios:
            matrices.append(GroupLike(settings, frozenset(ratios)))
        if len(ratios) < len(group["params"]):
            vectors.append(GroupLike(settings))
    if not matrices:
        matrices = vectors[:1]
    matrices = _merged(matrices)
    _check_one_for_each_shape(matrices, kind)
    probe = Probe(_Remake(optimizer, matrices), kind)
    leaves_vectors_to_adamw = OF_MATRICES in matrices[0].settings
    if leaves_vectors_to_adamw:
        return probe, None
    if not vectors:
        return probe, probe
    return probe, Probe(_Remake(optimizer, vectors[:1]), kind)


@dataclass(frozen=True)
class GroupLike:
    """Settings of a group of the user's optimizer, and rows over columns of its matrices."""

    settings: Mapping[str, Any]
    ratios: frozenset[float] = frozenset()

    @property
    def decisive(self) -> dict[str, Any]:
        """The settings but those that a plan scales."""
        return {
            name: value for name, value in self.settings.items() if name not in _SCALED_SETTINGS
        }

    def distance(self, ratio: float) -> float:
        """Return how far the nearest of its ratios is, in logarithms; infinite without any."""
        distances = [abs(math.log(ratio / of_group)) for of_group in self.ratios]
        return min(distances, default=math.inf)


def _ratio(p: Tensor) -> float:
    """Divide rows by columns; dimensions after the first count as columns."""
    rows = p.shape[0]
    return rows * rows / max(p.numel(), 1)


def _merged(groups: Sequence[GroupLike]) -> list[GroupLike]:
    """Merge groups that step matrices alike into one with the ratios of all."""
    merged = list[GroupLike]()
    for group in groups:
        for place, earlier in enumerate(merged):
            if _are_equal(earlier.decisive, group.decisive):
                merged[place] = replace(earlier, ratios=earlier.ratios | group.ratios)
                break
        else:
            merged.append(group)
    return merged


def _check_one_for_each_shape(groups: Sequence[GroupLike], kind: str) -> None:
    """Raise ValueError where groups with different settings step matrices of one ratio."""
    for place, group in enumerate(groups):
        for earlier in groups[:place]:
            if not group.ratios & earlier.ratios:
                continue
            settings = group.decisive
            earlier_settings = earlier.decisive
            differing = [
                name
                for name, value in settings.items()
                if not _are_equal(value, earlier_settings.get(name))
            ]
            raise MeasurementError(
                f"optimizer is a {kind} whose groups step matrices of one shape with different "
                f"{', '.join(differing)}: a plan has one law for a shape. Give both groups the "
                "same."
            )


def _name_of_product(make: Any) -> str:
    """Name the class of what a function makes; raise ValueError if it takes no single matrix."""
    name = getattr(make, "__name__", type(make).__name__)
    try:
        optimizer = Probe(make, name).optimizer([parameter_like(signs(*PANEL[0]), START)])
    except Exception as error:
        raise MeasurementError(
            f"optimizer is {name}, which could not make an optimizer of one matrix: "
            f"{type(error).__name__}: {in_brief(error)}. Pass a function that does, "
            "optimizer=lambda groups: ..., or its law, nfd.OptimizerLaw."
        ) from error
    return type(optimizer).__name__


def _are_equal(a: Any, b: Any) -> bool:
    # tensors of several numbers have no truth value
    try:
        return bool(a == b)
    except RuntimeError:
        return False


class _Remake:
    """Makes optimizers with the class and settings of another, which it never steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, groups: Sequence[GroupLike]) -> None:
        self.kind = type(optimizer)
        self.groups = [
            replace(group, settings=copy.deepcopy(dict(group.settings))) for group in groups
        ]
        self.defaults = copy.deepcopy(dict(getattr(optimizer, "defaults", {})))
        self.attributes = {
            name: value for name, value in vars(optimizer).items() if _is_plain(value)
        }

    def __call__(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        parameters = list(inspect.signature(self.kind).parameters.values())
        takes = parameters[0].name
        for parameter in parameters:
            if "param" in parameter.name:
                takes = parameter.name
                break
        parameters = [p for p in parameters if p.name != takes]
        settings = {**self.defaults, **self.attributes}
        options = {p.name: settings[p.name] for p in parameters if p.name in settings}
        complete = list[dict[str, Any]]()
        for group in groups:
            complete += [{**self._settings(p), **group, "params": [p]} for p in group["params"]]
        bare = [group["params"][0] for group in complete]
        errors = list[Exception]()
        # some take parameters without groups
        for to_train in (complete, bare):
            try:
                optimizer = self.kind(**cast(dict[str, Any], {takes: to_train}), **options)
            except Exception as error:
                errors.append(error)
                continue
            for group in optimizer.param_groups:
                group.update(self._settings(group["params"][0]))
            return optimizer
        raise self._not_made(parameters, options, errors[0])

    def _settings(self, p: Tensor) -> Mapping[str, Any]:
        """Return the settings of the group whose matrices have a shape most like a parameter's."""
        ratio = _ratio(p)
        return min(self.groups, key=lambda group: group.distance(ratio)).settings

    def _not_made(
        self,
        parameters: Sequence[inspect.Parameter],
        options: Mapping[str, Any],
        error: Exception,
    ) -> MeasurementError:
        """Say which arguments of the constructor cannot be read off the user's optimizer."""
        unseen = list[str]()
        for p in parameters:
            is_needed = p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD
            if is_needed and p.name not in options:
                unseen.append(p.name)
        arguments = f" (its {', '.join(unseen)} are not seen)" if unseen else ""
        return MeasurementError(
            f"optimizer is a {self.kind.__name__}, and another like it cannot be made{arguments}: "
            f"{in_brief(error)}. Pass a function that makes it, optimizer=lambda groups: "
            f"{self.kind.__name__}(groups, ...), or its law, nfd.OptimizerLaw."
        )


def _is_plain(value: Any) -> bool:
    """Whether a value holds no tensors or optimizers of the user's."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return True
    return isinstance(value, tuple | list) and all(_is_plain(part) for part in value)
