"""What can be set where a constructor's networks are trained; nothing here needs PyTorch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from nfd.core.defaults import SEEDS
from nfd.core.errors import InputError
from nfd.core.names import RuleName
from nfd.runs.config import Count, Rate, Several, Width
from nfd.runs.fields import Optimizer, distinct, is_path, pairs
from nfd.runs.settings import DataConfig
from nfd.scaling.laws import check_optimizer, law_of
from nfd.scaling.rules import rule_named


class ModelConfig(DataConfig):
    """How the networks of a constructor are trained, and on what.

    Attributes:
        USUAL_STEPS: training steps on the data set by default.
    """

    USUAL_STEPS: ClassVar[int] = 40

    widths: Annotated[tuple[Width, ...], AfterValidator(distinct)] = (32, 64, 128)
    """widths of the networks, ascending; the smallest is the base"""
    depths: Annotated[tuple[Count, ...], AfterValidator(distinct)] = (4, 8, 16)
    """depths of the networks, ascending; the smallest is the base"""
    optimizer: Optimizer = "adamw"
    """sgd, adam, adamw, muon with adamw for what is no matrix of a block, or package.module:name of an
    nfd.OptimizerLaw"""
    make_optimizer: str | None = None
    """package.module:name of a function from parameter groups to an optimizer; by default PyTorch's"""
    schedule: str | None = None
    """package.module:name of a function from the step to a factor on every rate, or from an optimizer to a scheduler of
    PyTorch; by default rates stay as they are"""
    weight_decay: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    """weight decay of the base"""
    seeds: Several = SEEDS
    """initialisations of each network"""
    steps: Count | None = None
    """training steps, of batches the first so many; by default as many as there are batches, on the data set 40"""
    batch: Count = 32
    """samples per step"""
    blocks: str | None = None
    """pattern of the residual blocks, such as transformer.h.*; found by default"""
    roles: Annotated[tuple[str, ...], AfterValidator(pairs)] | None = None
    """roles of tensors by pattern, such as layers.*.up.weight=inner; by default what the plan finds"""
    loss: str = "cross-entropy"
    """cross-entropy, mse, or package.module:name of a function of what the model returns and the targets"""
    batches: str | None = None
    """package.module:name of a list or DataLoader of (inputs, targets), or of a function that returns one; by default
    the data set"""

    def check(self) -> None:
        super().check()
        if self.make_optimizer is None and not is_path(self.optimizer):
            law_of(self.optimizer).check_made()
        unused = self.changed("batch", *DataConfig.model_fields) if self.batches is not None else []
        if unused:
            raise InputError(
                f"batches={self.batches!r} brings its own data; got {', '.join(unused)} beside it. Drop one "
                "or the other."
            )


class CheckConfig(ModelConfig):
    """A check of how a constructor's networks scale."""

    USUAL_STEPS: ClassVar[int] = 10

    widths: Annotated[tuple[Width, ...], AfterValidator(distinct)] = (64, 128, 256)
    """widths of the networks, ascending; the smallest is the base"""
    depths: Annotated[tuple[Count, ...], AfterValidator(distinct)] = (4, 8, 16, 32)
    """depths of the networks, ascending; the smallest is the base"""
    rule: RuleName = "depth-mup"
    """scaling rule: standard, mup, depth-mup, depth-mup-inner or complete-p"""
    optimizer: Optimizer = "sgd"
    """sgd, adam, adamw, muon with adamw for what is no matrix of a block, or package.module:name of an
    nfd.OptimizerLaw"""
    lr: Rate | None = None
    """learning rate of the base; by default 0.1 for sgd, 0.001 for the others"""
    eta_c: Rate | None = None
    """the same rate by the paper's name, for networks of nfd"""
    steps: Count | None = None
    """training steps, of batches the first so many; by default what at says, or as many as there are batches, on the
    data set 10"""
    at: Annotated[tuple[Count, ...], AfterValidator(distinct)] | None = None
    """steps to look after, ascending, such as 1 10 100; training ends with the last; by default the last step alone"""
    batch: Count = 64
    """samples per step"""
    gia: bool = False
    """for networks of nfd.nets: train their decoupled twins too, and measure the gap"""

    def check(self) -> None:
        super().check()
        check_planned(self, self.rule)
        if self.lr is not None and self.eta_c is not None:
            raise InputError(f"lr and eta_c name one rate; got lr={self.lr:g} and eta_c={self.eta_c:g}. Drop one.")
        if self.at is not None and self.steps is not None:
            raise InputError(f"at decides the steps; got at={list(self.at)} and steps={self.steps}. Drop one.")


def check_planned(config: ModelConfig, rule: str) -> None:
    """Refuse the rule that is no plan's, and what the optimizer does not take under it."""
    if rule_named(rule).regime == "kernel":
        raise InputError(
            f"rule={rule!r} is for nfd.ResNet(regime='kernel'), which is not planned; choose another rule."
        )
    if not is_path(config.optimizer):  # of one that is still to be imported, the question itself asks
        check_optimizer(config.optimizer, rule=rule, weight_decay=config.weight_decay)
