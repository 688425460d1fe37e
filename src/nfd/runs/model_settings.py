"""What can be set where a constructor's networks are trained; nothing here needs PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from nfd.core.defaults import BASE_WIDTH, LOSS_RTOL, MEMORY, MODEL_DEPTH, OPTIMIZER, RULE, SEEDS
from nfd.core.errors import InputError, check_choice
from nfd.core.names import Decay, ModelWeights, RuleName, WideRuleName
from nfd.runs.config import Config, Count, Positive, Rate, Seed, Several, Width
from nfd.runs.fields import AnyDepth, Optimizer, ShareOrAuto, WidthOrAuto, distinct, is_path, pairs, settings, switches
from nfd.runs.settings import DataConfig
from nfd.scaling.laws import OptimizerLaw, check_optimizer, law_of
from nfd.scaling.rate_schedule import RateSchedule
from nfd.scaling.rules import rule_named
from nfd.scaling.run_scaling import RunScaling, run_scaling


class ModelSizes(DataConfig):
    """The sizes of a constructor's networks."""

    widths: Annotated[tuple[Width, ...], AfterValidator(distinct)] = (32, 64, 128)
    """widths of the networks, ascending; the smallest is the base"""
    depths: Annotated[tuple[Count, ...], AfterValidator(distinct)] = (4, 8, 16)
    """depths of the networks, ascending; the smallest is the base"""


class RecipeConfig(DataConfig):
    """How the networks of a constructor are trained, and on what.

    Attributes:
        USUAL_STEPS: training steps on the data set by default.
    """

    USUAL_STEPS: ClassVar[int] = 40

    optimizer: Optimizer | None = None
    """sgd, adam, adamw, muon (with adamw for all but matrices in blocks), or package.module:name of an
    nfd.OptimizerLaw; by default adamw, for networks of nfd sgd"""
    schedule: str | None = None
    """package.module:name of a function from the step to a factor on every rate, or from an optimizer to a scheduler of
    PyTorch; by default rates stay as they are"""
    weight_decay: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    """weight decay of the base"""
    steps: Count | None = None
    """training steps, one per batch; by default all of batches, or 40 on the data set"""
    batch: Count = 32
    """samples per step"""
    blocks: str | None = None
    """pattern of the residual blocks, such as transformer.h.*; found by default"""
    roles: Annotated[tuple[str, ...], AfterValidator(pairs)] | None = None
    """roles of tensors by pattern, such as layers.*.up.weight=inner; by default what the plan finds"""
    loss: str = "cross-entropy"
    """cross-entropy, mse (half of F.mse_loss), or package.module:name of a function of what the model returns and the
    targets"""
    batches: str | None = None
    """package.module:name of a list or DataLoader of (inputs, targets) or of dicts, or of a function that returns one;
    by default the data set"""

    def check(self) -> None:
        super().check()
        unused = self.changed("batch", *DataConfig.model_fields) if self.batches is not None else []
        if unused:
            raise InputError(
                f"batches={self.batches!r} brings its own data; got {', '.join(unused)} beside it. Drop one "
                "or the other."
            )


class ModelConfig(RecipeConfig, ModelSizes):
    """How a constructor's networks of several sizes are trained, each from several seeds."""

    make_optimizer: str | None = None
    """package.module:name of a function from parameter groups to an optimizer; by default PyTorch's"""
    seeds: Several = SEEDS
    """initialisations of each network"""

    def check(self) -> None:
        super().check()
        if self.make_optimizer is None and self.optimizer is not None and not is_path(self.optimizer):
            law_of(self.optimizer).check_made()


class EvaluationConfig(DataConfig):
    """What trained networks are judged by, and the version of their code."""

    eval_batches: str | None = None
    """package.module:name of batches to judge by; by default the training loss alone judges"""
    version: str | None = None
    """a text that you change with your code; needed if it draws its own random numbers or refuses double precision"""


class CheckConfig(ModelConfig):
    """A check of how a constructor's networks scale."""

    USUAL_STEPS: ClassVar[int] = 10

    widths: Annotated[tuple[Width, ...], AfterValidator(distinct)] = (64, 128, 256)
    """widths of the networks, ascending; the smallest is the base"""
    depths: Annotated[tuple[Count, ...], AfterValidator(distinct)] = (4, 8, 16, 32)
    """depths of the networks, ascending; the smallest is the base"""
    rule: RuleName | None = None
    """scaling rule: standard, mup, depth-mup, depth-mup-inner or complete-p, the default; that of nfd.ResNet is
    depth-mup"""
    lr: Rate | None = None
    """learning rate of the base; by default 0.1 for sgd, 0.001 for the others"""
    eta_c: Rate | None = None
    """the same rate by the paper's name, for networks of nfd"""
    steps: Count | None = None
    """training steps, one per batch; by default the last of at, or all of batches, or 10 on the data set"""
    at: Annotated[tuple[Count, ...], AfterValidator(distinct)] | None = None
    """steps to look after, ascending, such as 1 10 100; training ends with the last; by default only the last step"""
    batch: Count = 64
    """samples per step"""
    gia: bool = False
    """for networks of nfd.nets: train their decoupled twins too, and measure the gap"""
    noise: bool = False
    """estimate the noise scale of the gradients after the last step, with intervals"""

    def check(self) -> None:
        super().check()
        check_planned(self, self.rule)
        if self.lr is not None and self.eta_c is not None:
            raise InputError(f"lr and eta_c name one rate; got lr={self.lr:g} and eta_c={self.eta_c:g}. Drop one.")
        if self.at is not None and self.steps is not None:
            raise InputError(f"at decides the steps; got at={list(self.at)} and steps={self.steps}. Drop one.")


class ModelPredictConfig(EvaluationConfig, RecipeConfig):
    """A prediction of the losses of a constructor's infinitely wide network."""

    USUAL_STEPS: ClassVar[int] = 12

    depth: AnyDepth = MODEL_DEPTH
    """depth of the network, or inf"""
    rule: WideRuleName | None = None
    """scaling rule: complete-p, the default, or depth-mup, at a finite depth also mup or depth-mup-inner"""
    lr: Rate | None = None
    """learning rate of the base; by default 0.1 for sgd, 0.001 for the others"""
    adamw_lr: Rate | None = None
    """with muon, the rate of the tensors that adamw trains; by default that of muon"""
    base_width: Width = BASE_WIDTH
    """width that rates were tuned at; widths are multiples of it"""
    base_depth: Count | None = None
    """depth that rates were tuned at; by default that of the network, or 4 where it is infinite"""
    width: WidthOrAuto = "auto"
    """width of the networks that stand for the infinitely wide one, or auto"""
    weights: ModelWeights = "auto"
    """dense, structured, or auto: the cheaper of both by predicted cost"""
    resolution: ShareOrAuto | None = None
    """resolution of structured weights, by default 0.1 under sgd and none under others; a number selects them; auto
    compares it with exact layers"""
    rank: Width | None = None
    """largest number of directions that the update of a structured matrix needs, if you know it"""
    replicates: Several | None = None
    """how many networks are averaged; as many as rtol needs by default"""
    rtol: Positive = LOSS_RTOL
    """wanted standard error, relative to the losses"""
    memory: str = MEMORY
    """bound on the memory of one network"""

    def check(self) -> None:
        super().check()
        check_planned(self, self.rule)

    @property
    def base(self) -> tuple[int, int]:
        """The width and depth that rates were tuned at."""
        return self.base_width, tuned_depth(self.base_depth, self.depth)


def tuned_depth(given: int | None, depth: float) -> int:
    """The depth that rates were tuned at: the given one, else that of the network, or 4 where it is infinite."""
    return int(MODEL_DEPTH if depth == math.inf else depth) if given is None else given


class PlanConfig(Config):
    """A plan of a constructor's network of one size."""

    width: Width = 4 * BASE_WIDTH
    """width of the network"""
    depth: Count = MODEL_DEPTH
    """depth of the network"""
    base_width: Width = BASE_WIDTH
    """width that rates were tuned at"""
    base_depth: Count | None = None
    """depth that rates were tuned at; by default that of the network"""
    rule: RuleName | None = None
    """scaling rule: standard, mup, depth-mup, depth-mup-inner or complete-p, the default; that of nfd.ResNet is
    depth-mup"""
    optimizer: Optimizer | None = None
    """sgd, adam, adamw, lion, muon (with adamw for all but matrices in blocks), or package.module:name of an
    nfd.OptimizerLaw; by default adamw, for networks of nfd sgd"""
    decay: Decay = "constant-product"
    """constant-product keeps rate times decay, independent the shrinkage of a step, raw the number"""
    lr: Rate | None = None
    """learning rate of the base, for the lines that train; by default a name to fill in"""
    adamw_lr: Rate | None = None
    """with muon, the rate of the tensors that adamw trains, for the lines that train; by default that of muon"""
    weight_decay: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    """weight decay of the base, for the lines that train"""
    blocks: str | None = None
    """pattern of the residual blocks, such as transformer.h.*; found by default"""
    roles: Annotated[tuple[str, ...], AfterValidator(pairs)] | None = None
    """roles of tensors by pattern, such as layers.*.up.weight=inner; by default what the plan finds"""
    batches: str | None = None
    """package.module:name of a list or DataLoader of (inputs, targets) or of dicts, or of a function that returns one,
    whose first inputs trace the network; by default the inputs that its class declares, or rows of 64 pixels"""
    batch: tuple[Positive, Positive] | None = None
    """of a step, in the small run and in this one: in tokens, or in samples"""
    tokens: tuple[Positive, Positive] | None = None
    """of the whole run, in the small run and in this one, in the unit of batch"""
    schedule: Annotated[tuple[str, ...], AfterValidator(settings)] | None = None
    """of the rate in the small run: warmup=200 steps, fall=constant, linear or cosine, share=0.5 of the steps over
    which it falls, final=0.1 of it left at the end; by default none"""
    critical_batch: Positive | None = None
    """measured in the small run, in the unit of batch; rates stop growing beyond it; nfd check --noise estimates it"""
    laws: Annotated[tuple[str, ...], AfterValidator(switches)] | None = None
    """laws of the run that are switched, such as tokens-rate=off; by default all are on"""
    seed: Seed = 0
    """seed of the initial weights, for the lines that train"""

    def check(self) -> None:
        super().check()
        check_planned(self, self.rule)
        optimizer = self.optimizer or OPTIMIZER
        if not is_path(optimizer):
            law = law_of(optimizer)
            law.check_rest_rate(self.adamw_lr)
            self.scaled_run(law)

    def scaled_run(self, law: OptimizerLaw) -> RunScaling | None:
        """How batch and length scale the settings of an optimizer; None where neither is given."""
        scales_decay = self.decay != "raw"
        return run_scaling(
            law, self.batch, self.tokens, self._rate_schedule, self.critical_batch, self.switched_laws, scales_decay
        )

    @property
    def switched_laws(self) -> dict[str, bool] | None:
        """Whether laws are on, by name; None where none is switched."""
        return None if self.laws is None else {name: state == "on" for name, state in _named(self.laws)}

    @property
    def _rate_schedule(self) -> RateSchedule | None:
        if self.schedule is None:
            return None
        kinds: dict[str, Callable[[str], Any]] = {"warmup": int, "fall": str, "share": float, "final": float}
        given = {}
        for name, text in _named(self.schedule):
            read = kinds[check_choice("a name in schedule", name, tuple(kinds))]
            try:
                given[name] = read(text)
            except ValueError:
                kind = "a whole number" if read is int else "a number"
                raise InputError(f"schedule: {name} must be {kind}; got {text!r}.") from None
        return RateSchedule(**given)


def _named(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Names and values of ``name=value``."""
    return [(name, value) for name, _, value in (text.partition("=") for text in texts)]


def check_planned(config: RecipeConfig | PlanConfig, rule: str | None) -> None:
    """Refuse a rule that no plan has, and what the optimizer does not take under it."""
    rule, optimizer = rule or RULE, config.optimizer or OPTIMIZER
    if rule_named(rule).regime == "kernel":
        raise InputError(
            f"rule={rule!r} is for nfd.ResNet(regime='kernel'), which is not planned; choose another rule."
        )
    if not is_path(optimizer):  # of one that is still to be imported, the question itself asks
        check_optimizer(optimizer, rule=rule, weight_decay=config.weight_decay)
