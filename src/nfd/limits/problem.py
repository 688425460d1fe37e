"""A training run whose limit is asked for: data, network and rates, checked once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from nfd.core.ambient import plain
from nfd.core.errors import (
    InputError,
    InputTypeError,
    UsageError,
    check_choice,
    check_count,
    check_device,
    check_finite,
    check_real,
)
from nfd.core.names import Block
from nfd.nets.network import Network
from nfd.nets.resnet import ResNet
from nfd.scaling.rules import MAX_ETA_C, exponent_of
from nfd.training.losses import loss_named, outputs_needed


@dataclass(frozen=True)
class Problem:
    """Inputs ``[steps, batch, d]``, targets ``[steps, batch]`` and everything that fixes the run but n, L, seed.

    ``coupled``: whether networks of one seed at depths L and 2L are one Brownian path (see ``nfd.ResNet``).
    """

    inputs: Tensor
    targets: Tensor
    eval_inputs: Tensor | None
    eval_targets: Tensor | None
    loss: str
    classes: int
    horizon: float
    activation: str
    block: str
    eta_c: tuple[float, ...]
    momentum: float
    feedback: str
    rule: str
    device: torch.device
    coupled: bool

    @property
    def samples(self) -> int:
        """Samples seen in training."""
        return self.inputs.shape[0] * self.inputs.shape[1]

    @property
    def layers_per_block(self) -> int:
        """Hidden matrices in a block."""
        return 2 if self.block == "two-layer" else 1

    def network(self, width: int, depth: int, weights: str, seed: int) -> Network:
        """The network of this problem at a size."""
        return ResNet(
            self.inputs.shape[2],
            self.classes,
            width,
            depth,
            horizon=self.horizon,
            activation=self.activation,
            block=self.block,  # type: ignore[arg-type]
            branch_exponent=exponent_of(self.rule),
            weights=weights,  # type: ignore[arg-type]
            feedback=self.feedback,  # type: ignore[arg-type]
            seed=seed,
            coupled=self.coupled,
            device=self.device,
        )

    def mean_loss(self, outputs: Tensor) -> Tensor:
        """The batch-mean loss ``[..., steps]`` of outputs ``[..., steps, batch, C]``."""
        return loss_named(self.loss)(outputs, self.targets)

    def eval_loss(self, outputs: Tensor) -> Tensor:
        """The mean loss ``[...]`` of evaluation outputs ``[..., n_eval, C]``, where there are evaluation targets."""
        if self.eval_targets is None:
            raise InputError("eval_loss needs eval_targets; got None. Pass eval_inputs and eval_targets.")
        return loss_named(self.loss)(outputs, self.eval_targets)


def problem(
    inputs: Any,
    targets: Any,
    *,
    eval_inputs: Any = None,
    eval_targets: Any = None,
    loss: str,
    classes: int | None,
    horizon: float,
    activation: str,
    block: str,
    eta_c: float | Sequence[float],
    momentum: float,
    feedback: str,
    rule: str,
    device: torch.device | str,
    coupled: bool,
) -> Problem:
    """Check what ``nfd.predict`` was given and bring it into one shape."""
    place = check_device(device)
    x, y = _with_batches(_tensor("inputs", inputs), _tensor("targets", targets))
    classes = None if classes is None else check_count("classes", classes)
    outputs = outputs_needed(loss, y, classes)
    evaluated = _eval(eval_inputs, x.shape[2], place)
    made = Problem(
        inputs=check_finite("inputs", x.float()).to(place),
        targets=_of_loss("targets", y, loss).to(place),
        eval_inputs=evaluated,
        eval_targets=_eval_targets(eval_targets, evaluated, loss, outputs),
        loss=loss,
        classes=outputs,
        horizon=check_real("horizon", horizon, above=0.0),
        activation=activation,
        block=check_choice("block", block, get_args(Block)),
        eta_c=_rates(eta_c, x.shape[0]),
        momentum=check_real("momentum", momentum, least=0.0, below=1.0),
        feedback=feedback,
        rule=rule,
        device=place,
        coupled=coupled,
    )
    made.network(1, 1, "dense", 0).param_groups(1.0, rule)  # the network knows its own names and rules
    return made


def _tensor(argument: str, value: Any) -> Tensor:
    try:
        tensor = plain(value.detach()) if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value).copy())
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputTypeError(
            f"{argument} must be a tensor or a rectangular array of numbers; got {type(value).__name__} ({error})."
        ) from None
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise InputTypeError(f"{argument} must be a dense array of real numbers; got {tensor.dtype}, {tensor.layout}.")
    return tensor


def _with_batches(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.dim() == 2:
        x, y = x[:, None], y[:, None] if y.dim() == 1 else y
    if x.dim() != 3 or 0 in x.shape:
        raise InputError(f"inputs must be [steps, batch, d] or [steps, d], none of them 0; got {list(x.shape)}.")
    if y.shape != x.shape[:2]:
        raise InputError(
            f"targets must be {list(x.shape[:2])}, one for every sample of inputs; got shape {list(y.shape)}."
        )
    return x, y


def _eval(value: Any, d: int, place: torch.device) -> Tensor | None:
    if value is None:
        return None
    x = _tensor("eval_inputs", value).float()
    if x.dim() != 2 or x.shape[1] != d or not len(x):
        raise InputError(f"eval_inputs must be [n_eval, {d}], n_eval of at least 1; got shape {list(x.shape)}.")
    return check_finite("eval_inputs", x).to(place)


def _of_loss(argument: str, y: Tensor, loss: str) -> Tensor:
    return check_finite(argument, y.float()) if loss == "mse" else y.long()


def _eval_targets(value: Any, inputs: Tensor | None, loss: str, classes: int) -> Tensor | None:
    if value is None:
        return None
    if inputs is None:
        raise InputError("eval_targets are the targets of eval_inputs; got eval_inputs=None. Pass both.")
    y, expected = _tensor("eval_targets", value), list(inputs.shape[:1])
    if list(y.shape) != expected or 0 in expected:
        raise InputError(
            f"eval_targets must be {expected}, one for every row of eval_inputs and at least one; got {list(y.shape)}."
        )
    try:
        outputs_needed(loss, y, classes)
    except UsageError as error:
        raise type(error)(str(error).replace("targets", "eval_targets")) from None
    return _of_loss("eval_targets", y, loss).to(inputs.device)


def _rates(eta_c: float | Sequence[float], steps: int) -> tuple[float, ...]:
    if isinstance(eta_c, int | float):
        return (check_real("eta_c", eta_c, least=0.0, below=MAX_ETA_C),) * steps
    values = _tensor("eta_c", eta_c)
    if values.shape not in ((), (steps,)):
        raise InputError(f"eta_c must be a number or one per step, [{steps}]; got shape {list(values.shape)}.")
    each = values.expand(steps).tolist()
    return tuple(check_real(f"eta_c[{k}]", v, least=0.0, below=MAX_ETA_C) for k, v in enumerate(each))
