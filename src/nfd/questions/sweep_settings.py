"""What can be set in the sweeps of ``nfd transfer`` and ``nfd capacity``; nothing here needs PyTorch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from nfd.core.defaults import ETA_C
from nfd.core.errors import MAX_SEED, InputError
from nfd.core.names import Activation, Block, RuleName
from nfd.runs.config import Config, Count, Positive, Rate, Several, Width
from nfd.runs.fields import (
    Ascending,
    WholeOptimizer,
    ascending,
    different,
    distinct,
    holdable,
    rates,
    values_of_settings,
)
from nfd.runs.model_settings import EvaluationConfig, ModelConfig, check_planned
from nfd.runs.settings import DataConfig
from nfd.scaling.laws import check_optimizer
from nfd.scaling.rules import check_block


class SweepConfig(DataConfig):
    """What the sweeps of ``nfd transfer`` and ``nfd capacity`` share: the networks' form and their training."""

    activation: Activation = "relu"
    """relu, tanh, erf, gelu or identity"""
    horizon: Positive = 1.0
    """time horizon T"""
    block: Block = "one-layer"
    """one-layer or two-layer"""
    steps: Count = 40
    """steps of training"""
    epochs: Positive | None = None
    """passes over the training images, in place of steps"""
    batch: Count = 16
    """samples per step"""
    seeds: Several = 4
    """initialisations of each network"""

    def check(self) -> None:
        super().check()
        if self.epochs is not None and self.changed("steps"):
            raise InputError(
                f"epochs stand in place of steps; got epochs={self.epochs:g} and steps={self.steps}. Drop one."
            )

    def run_settings(self, training_images: int) -> dict[str, Any]:
        """What every run of the sweep has, as settings of ``RunConfig``."""
        names = ("activation", "horizon", "block", "batch")
        steps = self.steps if self.epochs is None else steps_of(self.epochs, training_images, self.batch)
        settings = data_settings(self) | {name: getattr(self, name) for name in names} | {"steps": steps}
        return settings | {"seed": [initial_seed(self.seed, index) for index in range(self.seeds)]}


def data_settings(config: DataConfig) -> dict[str, Any]:
    """The data of a sweep, as settings of ``RunConfig``."""
    data = config.data or "digits"  # a configuration may leave it open
    return {"data": data, "data_dir": config.data_dir, "image_size": config.image_size, "data_seed": config.seed}


def steps_of(epochs: float, images: int, batch: int) -> int:
    """Steps of so many passes over the images, in whole batches."""
    return max(1, round(epochs * (images // batch)))


def initial_seed(seed: int, index: int) -> int:
    """Initialisation ``index`` of a sweep; those of seed 0 are 0, 1, 2, ..."""
    return (seed * 1_000_003 + index) & MAX_SEED


class TransferConfig(SweepConfig):
    """Whether the best learning rate of small networks is that of large ones, rule by rule."""

    rules: Annotated[tuple[RuleName, ...], AfterValidator(different)] = ("mup", "depth-mup", "depth-mup-inner")
    """rules to compare: mup, depth-mup, depth-mup-inner, complete-p; standard and ntk are the raw rate eta_c for
    weights N(0, 1), in the feature and the kernel regime"""
    optimizer: WholeOptimizer = "sgd"
    """sgd, adam, adamw, or another registered one that takes every tensor"""
    block: Block = "two-layer"
    """one-layer or two-layer"""
    widths: Annotated[tuple[Count, ...], AfterValidator(distinct), AfterValidator(holdable)] = (32, 64, 128)
    """widths, ascending"""
    depths: Annotated[tuple[Count, ...], AfterValidator(distinct)] = (4, 8, 16)
    """numbers of residual blocks, ascending"""
    eta_c: Annotated[tuple[Positive, ...], AfterValidator(rates)] = (0.125, 0.1768, 0.25, 0.3536, 0.5, 0.7071, 1.0)
    """learning rates to begin with, three or more in any order; extended where the best one lies at an end"""
    batch: Count = 32
    """samples per step"""
    seeds: Several = 8
    """initialisations of each network"""
    score: Literal["train_loss", "test_loss"] = "train_loss"
    """loss that the best rate minimises: train_loss (mean over the last tenth of the steps) or test_loss"""

    @property
    def new_seeds(self) -> list[int]:
        """Twice as many initialisations, other than those that best rates are chosen by."""
        return [initial_seed(self.seed, self.seeds + index) for index in range(2 * self.seeds)]

    def check(self) -> None:
        super().check()
        if len(self.widths) * len(self.depths) < 2:
            raise InputError(
                f"widths and depths must make two sizes or more, from the smallest to the largest; got widths="
                f"{list(self.widths)} and depths={list(self.depths)}."
            )
        for rule in self.rules:
            check_block(rule, self.block)
            check_optimizer(self.optimizer, rule=rule)


class SizeConfig(Config):
    """What is asked of a law of size: about a network, and about budgets."""

    width: Count | None = None
    """width of your network; by default the largest of the fit"""
    depth: Count | None = None
    """depth of your network; by default the largest of the fit"""
    parameters: str | None = None
    """budget of parameters, such as 1M; by default that of the largest network of the fit"""
    flops: str | None = None
    """budget of floating-point operations of the training, such as 1T"""


class ModelSweepConfig(EvaluationConfig, ModelConfig):
    """What ``nfd transfer`` and ``nfd capacity`` share where they train a constructor's networks."""

    eval_batches: str | None = None
    """package.module:name of batches to judge by; by default the mean training loss over the last tenth of the steps"""


class ModelTransferConfig(ModelSweepConfig):
    """Whether the best learning rate of a constructor's small networks is that of its large ones, rule by rule."""

    rules: Annotated[tuple[RuleName, ...], AfterValidator(different)] | None = None
    """rules to compare: standard, mup, depth-mup, depth-mup-inner, complete-p; by default standard, your model as it
    is, beside complete-p; networks of nfd have their own"""
    lr: Annotated[tuple[Positive, ...], AfterValidator(rates)] | None = None
    """learning rates of the base to begin with, three or more in any order; by default from an eighth to eight times
    0.1 for sgd, 0.001 for the others; extended where the best one lies at an end"""
    adamw_lr: Rate | None = None
    """with muon, the rate of the tensors that adamw trains; by default that of muon"""
    axes: Annotated[tuple[str, ...], AfterValidator(values_of_settings)] | None = None
    """settings against which to find the best rate too, one at a time, such as batch_size=16,32,64; also steps,
    weight_decay, warmup, init_scale, and with muon adamw_lr; with axes one width and one depth are enough"""
    halving: bool = False
    """choose rates by short trainings first, so that fewer run to the end"""

    def check(self) -> None:
        super().check()
        for rule in self.rules or (None,):
            check_planned(self, rule)


class ModelCapacityConfig(SizeConfig, ModelSweepConfig):
    """The law of size of a constructor's networks, and the best size for a budget."""

    rule: RuleName | None = None
    """scaling rule, under which one learning rate serves every size: mup, depth-mup, depth-mup-inner or complete-p, the
    default; that of nfd.ResNet is depth-mup"""
    lr: Rate | None = None
    """learning rate of the base; by default 0.1 for sgd, 0.001 for the others"""
    lengths: Annotated[tuple[Count, ...], AfterValidator(distinct)] | None = None
    """numbers of steps, ascending, over each of which every size is trained, for a law in tokens too; by default one"""

    def check(self) -> None:
        super().check()
        check_planned(self, self.rule)
        of_one_size = self.changed("width", "depth") if len(self.lengths or ()) > 1 else []
        if of_one_size:
            raise InputError(
                "with several lengths the law also depends on the number of targets seen, and does not judge one "
                f"network; got {', '.join(of_one_size)}. Drop it, or give one length."
            )


class CapacityConfig(SizeConfig, SweepConfig):
    """The law of size: how far networks are from the loss of the infinite one, and what growing them buys."""

    widths: Annotated[Ascending, AfterValidator(holdable)] = (64, 128, 256, 512)
    """widths of the fit, ascending"""
    depths: Ascending = (4, 8, 16, 32, 64)
    """depths of the fit, ascending"""
    eta_c: Rate = ETA_C
    """learning rate that depends on neither width nor depth"""
    rule: Literal["depth-mup", "depth-mup-inner", "complete-p"] = "depth-mup"
    """learning-rate rule: depth-mup, depth-mup-inner or complete-p"""
    seeds: Several = 6
    """networks of each size, every one from a seed of its own"""
    horizons: Annotated[tuple[Positive, ...], AfterValidator(ascending)] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """horizons T at which the floor and the largest stable eta_c are found, ascending"""
    width: Count = 128
    """width of your network"""
    depth: Count = 8
    """depth of your network"""
    memory: str | None = None
    """budget of memory for training, such as 64 MiB"""
    held_out: tuple[Count, Count] | None = None
    """width and depth of a network that the law predicts before it is trained; by default twice as wide as any of the
    fit, which has four times the parameters"""
    hold_out: bool = True
    """whether to predict and train it"""
    limit_width: Width = 512
    """width of the networks by which nfd.predict finds the floor"""
    replicates: Annotated[int, Field(strict=True, ge=0)] = 16
    """how many of those, two or more; 0 to leave it out"""

    def check(self) -> None:
        super().check()
        if self.replicates == 1:
            raise InputError("replicates must be two or more, for a standard error, or 0; got 1.")
        if self.held_out is not None and not self.hold_out:
            raise InputError(
                f"held_out is the size to hold out; got {list(self.held_out)} and hold_out=False. Drop one."
            )
        if self.replicates == 0 and self.changed("limit_width"):
            raise InputError(
                f"limit_width is that of the replicates; got limit_width={self.limit_width} and replicates=0. Drop one."
            )
        check_block(self.rule, self.block)
