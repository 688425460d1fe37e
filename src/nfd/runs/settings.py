"""What can be set in a study and in a prediction: everything that decides their numbers.

Nothing here needs PyTorch, so that the command line can check its options before it loads it.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from nfd.core.defaults import DEPTH, ETA_C, MEMORY, RTOL
from nfd.core.errors import InputError
from nfd.core.names import (
    Activation,
    Architecture,
    Block,
    Data,
    Feedback,
    KernelKind,
    NetworkWeights,
    Order,
    PaperWeights,
    RuleName,
    RunMeter,
    WideRuleName,
)
from nfd.runs.config import Config, Count, Momentum, Positive, Rate, Seed, Several, Share, Width
from nfd.runs.fields import (
    AnyDepth,
    Ascending,
    ShareOrAuto,
    WholeOptimizer,
    WidthOrAuto,
    ascending,
    doubling,
    holdable,
    utf8,
)
from nfd.scaling.laws import check_optimizer, law_of, names_where
from nfd.scaling.rules import check_block, rule_named


class DataConfig(Config):
    """Which data set."""

    data: Data = "digits"
    """digits (scikit-learn's, nothing to download), cifar10 (official binary version), images (class folders)"""
    data_dir: Annotated[str, AfterValidator(utf8)] | None = None
    """where cifar10 (directory or tar.gz) or images are"""
    image_size: Annotated[int, Field(strict=True, ge=1, le=4096)] | None = None
    """side in pixels that images are cropped and scaled to; needed when their sizes differ"""
    seed: Seed = 0
    """seed of everything random"""

    def check(self) -> None:
        super().check()
        kind = self.data or "digits"  # a configuration may leave it open
        if kind == "digits" and self.data_dir is not None:
            raise InputError(
                f"data_dir is for data='cifar10' and data='images'; got data='digits' and data_dir={self.data_dir!r}. "
                "Drop it or name the data set with --data."
            )
        if kind != "digits" and not (self.data_dir or "").strip():
            raise InputError(
                f"data={self.data!r} needs data_dir, the directory that holds it. "
                "Give data_dir=DIR, or --data-dir DIR where the command has this option."
            )
        if self.image_size is not None and kind != "images":
            raise InputError(f"image_size is for data='images'; got data={kind!r}. Drop it.")


class TrainingConfig(DataConfig):
    """A residual network and its training."""

    activation: Activation = "relu"
    """relu, tanh, erf, gelu or identity"""
    horizon: Positive = 1.0
    """time horizon T"""
    eta_c: Rate = ETA_C
    """learning rate that depends on neither width nor depth"""
    steps: Count = 30
    """steps of SGD"""
    batch: Count = 16
    """samples per step"""


class RunConfig(TrainingConfig):
    """The settings of one run: a network, its training and its meters. A sweep is a list of these."""

    network: Architecture = "resnet"
    """resnet, or mlp: the vanilla network without skip connections"""
    width: Width = 64
    """width n"""
    depth: Count = 8
    """number of residual blocks L"""
    block: Block = "one-layer"
    """one-layer or two-layer"""
    order: Order = "pre"
    """pre (Eq. 1) or post (Eq. 9) activation"""
    feedback: Feedback = "shared"
    """shared (the standard network), independent (the paper's decoupled one) or static"""
    weights: NetworkWeights = "dense"
    """dense, deferred (the exact law) or structured (the limit)"""
    resolution: Share | None = None
    """shortest direction that deferred and structured weights record, relative to its vector; by default their own"""
    rule: RuleName = "depth-mup"
    """learning-rate rule, which also decides the residual multiplier; ntk is the kernel regime"""
    optimizer: WholeOptimizer = "sgd"
    """sgd, adam, adamw, or another registered one that takes every tensor"""
    momentum: Momentum = 0.0
    """momentum of sgd"""
    seed: Seed = 0
    """seed of the initial weights"""
    data_seed: Seed = 0
    """seed of the order of the batches, of train and validation, and of the split where the data bring none"""
    train: Count | None = None
    """training images, a random part of them; all by default"""
    validation: Count | None = None
    """evaluate on this many other training images instead of the test part"""
    coupled: bool = False
    """whether the layers of a seed's networks of every depth are increments of one path"""
    every: Count | None = None
    """steps between evaluations on the test part and of the meter; by default only after the last step"""
    meter: RunMeter = "none"
    """what is measured beside the loss: start (streams before training), updates (of features and of the function),
    spectra (of Sigma and Theta), outputs (on the test samples), or none; a run with a meter uses only the first 256
    test samples"""

    def check(self) -> None:
        super().check()
        self._check_network()
        check_block(self.rule, self.block)
        if self.order == "post" and self.block == "two-layer":
            raise InputError("order='post' is defined for block='one-layer'; got block='two-layer'.")
        check_optimizer(self.optimizer, rule=self.rule, momentum=self.momentum, weights=self.weights)

    def _check_network(self) -> None:
        plain = (self.block, self.order, self.horizon, self.coupled) == ("one-layer", "pre", 1.0, False)
        if self.network == "mlp" and not (plain and not rule_named(self.rule).scales_depth):
            raise InputError(
                "network='mlp' has no residual branch: it takes rule='mup', 'ntk' or 'standard', block='one-layer', "
                f"order='pre', horizon=1 and coupled=false; got rule={self.rule!r}, block={self.block!r}, "
                f"order={self.order!r}, horizon={self.horizon:g} and coupled={str(self.coupled).lower()}."
            )
        if self.coupled and self.block == "two-layer":
            raise InputError("coupled is for block='one-layer': two-layer blocks are no increments of a path.")
        if self.resolution is not None and self.weights == "dense":
            raise InputError(
                f"resolution is for weights='deferred' or 'structured'; got {self.resolution:g} for 'dense'. Drop it."
            )
        if self.meter not in ("none", "outputs") and (self.weights != "dense" or not law_of(self.optimizer).is_linear):
            raise InputError(
                f"meter={self.meter!r} needs weights='dense' and optimizer={names_where(lambda law: law.is_linear)}; "
                f"got {self.weights!r} and {self.optimizer!r}."
            )
        if self.meter == "updates" and rule_named(self.rule).regime == "kernel":
            raise InputError(f"meter='updates' is of the feature regime; got rule={self.rule!r}, the kernel regime.")
        if self.meter == "spectra" and self.batch != 1:
            raise InputError(f"meter='spectra' is of steps of one sample: it needs batch=1; got batch={self.batch}.")


class StudyConfig(TrainingConfig):
    """A study: predictions, real networks and two-layer blocks on the same batches."""

    depths: Annotated[Ascending, AfterValidator(doubling)] = (2, 4, 8, 16)
    """numbers of residual blocks L, ascending; infinite depth is extrapolated from the last two, L and 2L"""
    limit_width: Width = 2048
    """width of the networks that stand for the infinitely wide one"""
    replicates: Annotated[int, Field(strict=True, ge=3)] = 6
    """how many of those are averaged; 3 at least"""
    widths: Annotated[Ascending, AfterValidator(holdable)] = (64, 256, 1024)
    """widths of the real networks, ascending"""
    seeds: Several = 5
    """real networks of each width and depth"""
    block_depths: Ascending = (4, 8, 16, 32, 64)
    """depths of the two-layer networks whose updates are measured, ascending"""
    block_width: Count = 128
    """their width"""
    block_seeds: Several = 4
    """how many of each"""

    def check(self) -> None:
        super().check()
        if self.limit_width < 2 * self.widths[-1]:
            raise InputError(
                f"limit_width must be at least twice the largest of widths, {self.widths[-1]}, to stand for infinity; "
                f"got {self.limit_width}."
            )


class PredictConfig(TrainingConfig):
    """A prediction at one depth, or at infinite depth."""

    depth: AnyDepth = DEPTH
    """number of residual blocks, or inf"""
    steps: Count = 12
    """steps of SGD"""
    batch: Count = 8
    """samples per step"""
    block: Block = "one-layer"
    """one-layer or two-layer"""
    rule: WideRuleName = "depth-mup"
    """learning-rate rule: depth-mup, depth-mup-inner or complete-p, at a finite depth also mup"""
    feedback: Feedback = "shared"
    """shared (the standard network), independent (the paper's decoupled one) or static"""
    momentum: Momentum = 0.0
    """momentum of SGD"""
    width: WidthOrAuto = "auto"
    """width of the networks that stand for the infinitely wide one, or auto"""
    weights: PaperWeights = "auto"
    """dense, deferred, structured, or auto: the cheapest by predicted cost"""
    resolution: ShareOrAuto | None = None
    """resolution of structured weights, none by default, a number, or auto to weigh it against exact layers"""
    replicates: Several | None = None
    """how many of them are averaged; as many as rtol needs by default"""
    rtol: Positive = RTOL
    """wanted standard error, relative to the RMS of the outputs"""
    memory: str = MEMORY
    """bound on the memory of one network"""

    def check(self) -> None:
        super().check()
        check_block(self.rule, self.block)


class KernelConfig(DataConfig):
    """Gaussian-process regression with the kernel of an infinitely wide and deep network."""

    kind: KernelKind = "nngp"
    """nngp, ntk or independent-feedback, which is twice nngp and so gives the same fit, its scale being fitted"""
    activation: Activation = "relu"
    """relu, tanh, erf, gelu or identity"""
    horizon: Positive = 1.0
    """time horizon T whose accuracy is reported"""
    horizons: Annotated[tuple[Positive, ...], AfterValidator(ascending)] = tuple(2.0**k for k in range(-4, 6))
    """horizons of the curve, ascending"""
    train: Several = 1000
    """training images, at most as many as there are"""
    test: Count = 500
    """test images, at most as many as there are"""
    noise: Positive = 0.01
    """variance of the labels' noise, relative to that of the function"""
