"""Cases that were held out: written by a hand that saw neither the test nor the models of the other
cases.

A script of its own, which knows no self-test, looked at them in double precision at 1, 4 and 16
times the width and up to 8 times the depth: what the first update of each tensor does to outputs
and loss, and three steps of training. In sound cases neither grows; the first update may fall by a
root where the gradient has mean zero at the start, as of routers, shared small vectors, and what is
read through branches only. In wrong cases the script saw the powers that ``why`` claims.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.self_test_bank import held_out_blocks as blocks
from tests.self_test_bank import held_out_models as models
from tests.self_test_bank.cases import (
    Case,
    Edit,
    MakeModel,
    both,
    equal_rates,
    fans_exchanged,
    rate_times,
    start_times,
    without_depth,
    without_multipliers,
)
from tests.self_test_bank.held_out_blocks import Numbers, Words
from tests.self_test_bank.held_out_models import ids, mlp, normal
from torch import Tensor, nn

ROWS = normal(8, 6)
WORDS = ids(4, 6)
SERIES = normal(4, 6, 5)
IMAGES = normal(4, 3, 8, 8)
TIMES = normal(8, seed=2).abs()
FOUR_WORDS = ids(8, 4)
NODES = normal(7, 5)
NEIGHBOURS = (normal(7, 7, seed=1) > 0).float()
EDGES = ids(2, 12, below=7, seed=3)


def _sound(name: str, make_model: MakeModel, sample: Any, why: str, **options: Any) -> Case:
    """A sound case."""
    return Case(name, False, make_model, sample, why=why, **options)


def _in_width(name: str, make_model: MakeModel, sample: Any, why: str, **options: Any) -> Case:
    """A sound case of muP, in which only the width grows."""
    options = {"rule": "mup", "axes": "width"} | options
    return _sound(name, make_model, sample, why, **options)


# ---- networks that several cases share


def leaky(width: int, depth: int) -> nn.Module:
    """Four layers without biases."""
    return mlp(6, width, width, width, 3, act=nn.LeakyReLU, bias=False)


def tapered(width: int, depth: int) -> nn.Module:
    """Layers of twice the width, then the width, then half of it."""
    return mlp(6, 2 * width, width, width // 2, 3, act=nn.Mish)


def normed(width: int, depth: int) -> nn.Module:
    """Layer norms after linear maps without biases."""
    return nn.Sequential(
        nn.Linear(6, width, bias=False),
        nn.LayerNorm(width),
        nn.Tanh(),
        nn.Linear(width, width, bias=False),
        nn.LayerNorm(width),
        nn.Tanh(),
        nn.Linear(width, 3),
    )


def evaluated(width: int, depth: int) -> nn.Module:
    """A network with dropout that is switched off."""
    return models.Evidence(width, depth, p=0.5).eval()


grouped = partial(Words, mix=blocks.Grouped, feed=blocks.Glu, norm=blocks.Rms)
fused = partial(Words, positions=True)
fused_tied = partial(Words, positions=True, tied=0.5)
parallel = partial(Words, block=blocks.Parallel, mix=blocks.Grouped, feed=blocks.Glu)
wrapped = partial(Numbers, mix=blocks.Wrapped)
silu_blocks = partial(blocks.ResidualVectors, branch=blocks.silu_branch)
deep_blocks = partial(blocks.ResidualVectors, branch=blocks.deep_branch)
activated = partial(blocks.ResidualVectors, branch=blocks.activated_branch)
over_root = partial(Words, block=blocks.OverDepth, power=0.5)
over_depth = partial(Words, block=blocks.OverDepth, power=1.0)
token_shift = partial(Words, mix=blocks.Retention, feed=blocks.TokenShift)

IN_WIDTH = [
    _in_width(
        "leaky-mlp", leaky, ROWS, "Hidden rates 1/in and a readout of 1/in: the rule as it stands."
    ),
    _in_width(
        "leaky-mlp-sgd",
        leaky,
        ROWS,
        "SGD: input out, hidden out/in, readout 1/in.",
        optimizer="sgd",
    ),
    _in_width(
        "leaky-mlp-muon-unit",
        leaky,
        ROWS,
        "Muon without a factor of shape: (out/in)^1/2.",
        optimizer="muon-unit",
    ),
    _in_width(
        "leaky-mlp-muon-rms",
        leaky,
        ROWS,
        "Updates of 0.2 max^1/2: rates 1/width^1/2.",
        optimizer="muon-match-rms-adamw",
    ),
    _in_width(
        "leaky-mlp-muon-spectral",
        leaky,
        ROWS,
        "Updates of (out/in)^1/2: rates 1.",
        optimizer="muon-spectral",
    ),
    _in_width("tapered-mlp", tapered, ROWS, "All widths keep their ratios.", base=(64, 2)),
    _in_width(
        "tapered-mlp-adam-narrow",
        tapered,
        ROWS,
        "The same from a base of 16.",
        optimizer="adam",
        base=(16, 2),
    ),
    _in_width(
        "normed-mlp-lion",
        normed,
        ROWS,
        "Norms make activations of order one; Lion steps like Adam.",
        optimizer="lion",
    ),
    _in_width("raw-matrices", models.RawMatrices, ROWS, "Fan-in is the first dimension of x @ W."),
    _in_width(
        "raw-matrices-sgd",
        models.RawMatrices,
        ROWS,
        "Fan-in is the first dimension.",
        optimizer="sgd",
    ),
    _in_width(
        "skip-concat",
        models.SkipConcat,
        normal(8, 3),
        "Three inputs beside width do not change the power of fan-in.",
    ),
    _in_width(
        "skip-concat-sine",
        partial(models.SkipConcat, act=lambda x: x.sin()),
        normal(8, 3),
        "The same with sines.",
    ),
    _in_width(
        "pinn-of-two-arguments",
        models.Pinn,
        (normal(8), normal(8, seed=1)),
        "A plain network of two numbers.",
    ),
    _in_width(
        "pinn-fourier",
        models.FourierPinn,
        normal(8, 2),
        "Fixed waves are inputs of a fixed number.",
    ),
    _in_width(
        "deep-o-net",
        models.DeepONet,
        (normal(4, 7), normal(8, 2, seed=1)),
        "Two readouts with biases of order one, whose product is of order one.",
    ),
    _in_width(
        "dueling",
        models.Dueling,
        normal(8, 5),
        "Two readouts; the mean over actions is of a fixed number.",
    ),
    _in_width(
        "masked-autoregressive",
        models.MaskedAutoregressive,
        ROWS,
        "A share of each row, which does not depend on width, is masked.",
    ),
    _in_width(
        "radial-edges", models.RadialEdges, ROWS, "Each output sums width times six products."
    ),
    _in_width("tied-steps", models.TiedSteps, ROWS, "One matrix used four times at every width."),
    _in_width(
        "frozen-features",
        models.FrozenFeatures,
        ROWS,
        "Random features of order one at every width.",
    ),
    _in_width(
        "two-frames-dict",
        models.TwoFrames,
        {"image": normal(8, 9), "state": normal(8, 4, seed=1)},
        "Fan-in of the joint layer is 3/2 of the width.",
    ),
    _in_width(
        "batched-ensemble",
        models.BatchedEnsemble,
        ROWS,
        "A stack of members, each a plain network.",
    ),
    _in_width(
        "dropout-on",
        models.Evidence,
        ROWS,
        "Dropout multiplies by independent numbers of mean one.",
    ),
    _in_width("dropout-off", evaluated, ROWS, "Switched off it is the identity."),
    _in_width(
        "gated-experts",
        models.GatedExperts,
        ROWS,
        "The gate's last layer is a readout before a softmax.",
    ),
    _in_width(
        "multi-task", models.MultiTask, ROWS, "Gates of fixed inputs and outputs do not grow."
    ),
    _in_width(
        "wide-and-deep",
        models.WideAndDeep,
        (ids(8, 3), normal(8, 4)),
        "A table to one number does not grow beside embeddings that do.",
    ),
    _in_width(
        "neural-filtering",
        models.NeuralFiltering,
        (ids(8), ids(8, seed=1)),
        "Embeddings of order one.",
    ),
    _in_width(
        "neural-filtering-sgd",
        models.NeuralFiltering,
        (ids(8), ids(8, seed=1)),
        "SGD of embeddings: out.",
        optimizer="sgd",
    ),
    _in_width(
        "cross-network",
        models.CrossNetwork,
        normal(8, 8),
        "Products of entries of order one with hidden outputs of order one.",
    ),
    _in_width("next-word", models.NextWord, FOUR_WORDS, "Fan-in is four times the width."),
    _in_width(
        "next-word-roles-scores-as-hidden",
        models.NextWord,
        FOUR_WORDS,
        "A hidden matrix of few outputs has the start and the rate of a readout.",
        roles={"scores.weight": "hidden"},
    ),
    _in_width(
        "bag-plus-numbers",
        models.BagPlusNumbers,
        (FOUR_WORDS, normal(8, 4)),
        "A mean of embeddings and a linear map, both inputs.",
    ),
    _in_width(
        "bidirectional-lstm",
        models.BothWays,
        WORDS,
        "Matrices of the state and of the layer below are hidden.",
    ),
    _in_width(
        "stacked-gru",
        models.StackedGru,
        SERIES,
        "The first layer reads numbers, the second states.",
    ),
    _in_width(
        "hand-lstm", models.HandLstm, SERIES, "Gates are parts of one matrix whose fan-out grows."
    ),
    _in_width("hand-lstm-muon", models.HandLstm, SERIES, "Muon of fused gates.", optimizer="muon"),
    _in_width("minimal-unit", models.MinimalUnit, SERIES, "Fan-in is width plus five."),
    _in_width(
        "strided-conv1d",
        models.TemporalConv,
        normal(4, 1, 40),
        "Fan-in is channels times the kernel.",
    ),
    _in_width("alex-like", models.AlexLike, IMAGES, "Flattened maps are 8 times the width."),
    _in_width(
        "conv-autoencoder",
        models.ConvAutoencoder,
        IMAGES,
        "A transposed convolution sums its first dimension.",
    ),
    _in_width(
        "video-conv", models.VideoConv, normal(2, 2, 3, 4, 4), "Fan-in is channels times 27."
    ),
    _in_width(
        "time-unet",
        models.TimeUnet,
        (IMAGES, TIMES[:4]),
        "Stages keep their ratios; the time embedding is hidden.",
    ),
    _in_width("image-pyramid", models.ImagePyramid, IMAGES, "One readout at three resolutions."),
    _in_width(
        "sampled-vae",
        models.DiagonalGaussianVae,
        IMAGES,
        "A code of four numbers is a readout, and the decoder reads it as an input.",
    ),
    _in_width(
        "point-net",
        models.PointNet,
        normal(4, 3, 10),
        "A largest value over ten points is of order one.",
    ),
    _in_width(
        "edge-messages",
        models.EdgeMessages,
        (NODES, EDGES, normal(12, 2)),
        "Messages sum over a fixed number of edges.",
    ),
    _in_width(
        "sage-graph",
        models.SageGraph,
        (NODES, NEIGHBOURS / 4),
        "Two matrices per layer of the same role.",
    ),
    _in_width(
        "sage-graph-lion",
        models.SageGraph,
        (NODES, NEIGHBOURS / 4),
        "Two matrices per layer of the same role.",
        optimizer="lion",
    ),
    _in_width(
        "relational-graph",
        models.RelationalGraph,
        (ids(7), normal(3, 7, 7).abs() / 5),
        "A stack of matrices over relations.",
    ),
    _in_width(
        "contrastive-towers",
        models.Contrastive,
        (ROWS, normal(8, 9)),
        "Unit vectors of the width: an entry is width^-1/2, and products sum over them.",
    ),
    _in_width("regions", models.Regions, ROWS, "Three readouts of three layers."),
    _in_width(
        "generator-mlp",
        models.GeneratorMlp,
        (normal(8, 8), ids(8, below=10)),
        "Embeddings of a fixed size do not grow.",
    ),
    _in_width(
        "post-norm-words",
        partial(Words, block=blocks.NormedStream, final=False),
        WORDS,
        "Norms on the stream, in width only.",
    ),
    _in_width(
        "stream-mup-muon", grouped, WORDS, "Width only: depth has no factor.", optimizer="muon"
    ),
    _in_width("repeated-mup", blocks.Repeated, WORDS, "A shared block at one depth."),
    _in_width("parallel-mup-sgd", parallel, WORDS, "SGD in width.", optimizer="sgd"),
]

IN_BOTH = [
    _sound("grouped-words", grouped, WORDS, "Heads of a fixed size; keys keep their ratio."),
    _sound("grouped-words-muon", grouped, WORDS, "Muon on the matrices.", optimizer="muon"),
    _sound(
        "grouped-words-depth-mup-width",
        grouped,
        WORDS,
        "CompleteP with a base of 64 and 4.",
        base=(64, 4),
    ),
    _sound("fused-words-places", fused, WORDS, "Learned positions are embeddings."),
    _sound(
        "fused-words-places-tied",
        fused_tied,
        WORDS,
        "The last norm takes the factor of the tied head.",
    ),
    _sound("fused-words-adam", fused, WORDS, "Adam as AdamW.", optimizer="adam"),
    _sound("parallel-words", parallel, WORDS, "Two branches of one norm."),
    _sound("parallel-words-lion", parallel, WORDS, "Two branches of one norm.", optimizer="lion"),
    _sound("wrapped-attention", wrapped, SERIES, "in_proj holds three matrices of width by width."),
    _sound("wrapped-attention-sgd", wrapped, SERIES, "SGD in width and depth.", optimizer="sgd"),
    _sound(
        "relative-words",
        partial(Words, mix=blocks.Relative),
        WORDS,
        "Vectors of distances are of a head's fixed size.",
    ),
    _sound(
        "bias-table",
        partial(Words, mix=blocks.BiasTable),
        WORDS,
        "A number per head and distance is a vector.",
    ),
    _sound(
        "growing-heads-over-size-words",
        partial(Words, mix=blocks.GrowingHeads),
        WORDS,
        "Logits over the size of growing heads.",
    ),
    _sound(
        "normed-queries-and-heads",
        partial(Words, mix=blocks.Normed, feed=blocks.Subnormed),
        WORDS,
        "Norms inside of branches keep their gains of order one.",
    ),
    _sound(
        "soft-cap",
        partial(Words, mix=blocks.SoftCap, norm=blocks.Rms),
        WORDS,
        "A cap of logits of order one.",
    ),
    _sound(
        "retention-token-shift",
        token_shift,
        WORDS,
        "Products over heads of a fixed size, a norm by heads, gates.",
    ),
    _sound("min-gru", partial(Words, mix=blocks.MinGru), WORDS, "Gates by channel."),
    _sound(
        "linear-unit",
        partial(Words, mix=blocks.LinearUnit, feed=blocks.Glu),
        WORDS,
        "Decays are vectors of order one.",
    ),
    _sound(
        "linear-unit-muon",
        partial(Words, mix=blocks.LinearUnit, feed=blocks.Glu),
        WORDS,
        "Decays train by AdamW.",
        optimizer="muon",
    ),
    _sound(
        "long-filter",
        partial(Words, mix=blocks.LongFilter),
        WORDS,
        "Filters are read out of eight numbers: inputs.",
    ),
    _sound(
        "short-conv",
        partial(Words, mix=blocks.ShortConv),
        WORDS,
        "A convolution by channel has fan-in three.",
    ),
    _sound(
        "pool-former",
        partial(Numbers, mix=blocks.Pooling),
        SERIES,
        "Means of neighbours of the normed stream. They add with weight one at every depth.",
        axes="width",
        rule="mup",
    ),
    _sound(
        "conformer",
        partial(Numbers, mix=blocks.unmasked, block=blocks.Conformer),
        SERIES,
        "Half steps are the same at every size.",
    ),
    _sound(
        "norm-after",
        partial(Words, block=blocks.NormedAfter),
        WORDS,
        "Gains at the end of branches take 1/L.",
    ),
    _sound(
        "norm-after-muon",
        partial(Words, block=blocks.NormedAfter, mix=blocks.Grouped),
        WORDS,
        "Gains at the end of branches take 1/L.",
        optimizer="muon",
    ),
    _sound(
        "small-layer-scale",
        partial(Words, block=blocks.Scaled),
        WORDS,
        "Learned vectors at the end take 1/L.",
    ),
    _sound(
        "shared-and-routed",
        partial(Words, feed=blocks.SharedAndRouted),
        WORDS,
        "A router of three outputs starts as in^-1.",
    ),
    _sound(
        "soft-slots",
        partial(Numbers, mix=blocks.unmasked, feed=blocks.SoftSlots),
        SERIES,
        "Slots are readers of three outputs.",
    ),
    _sound(
        "over-root-words",
        over_root,
        WORDS,
        "A factor of L^-1/2 in the forward pass, which the plan makes up for.",
    ),
    _sound("over-depth-words", over_depth, WORDS, "The factor 1/L is there already."),
    _sound(
        "over-depth-words-muon",
        over_depth,
        WORDS,
        "The factor 1/L is there already.",
        optimizer="muon",
    ),
    _sound("silu-vectors", silu_blocks, ROWS, "Two layers a block without biases."),
    _sound("silu-vectors-sgd", silu_blocks, ROWS, "SGD.", optimizer="sgd"),
    _sound(
        "silu-vectors-muon-unit",
        silu_blocks,
        ROWS,
        "Muon without a factor of shape.",
        optimizer="muon-unit",
    ),
    _sound("deep-branches", deep_blocks, ROWS, "Four layers a block: three inner, one outer."),
    _sound("deep-branches-lion", deep_blocks, ROWS, "Four layers a block.", optimizer="lion"),
    _sound(
        "activated-depth-mup",
        activated,
        ROWS,
        "One matrix a block under depth-muP.",
        rule="depth-mup",
    ),
    _sound(
        "activated-complete-p-sgd", activated, ROWS, "One matrix a block is outer.", optimizer="sgd"
    ),
    _sound(
        "activated-depth-mup-lion",
        activated,
        ROWS,
        "One matrix a block under depth-muP.",
        rule="depth-mup",
        optimizer="lion",
    ),
    _sound(
        "tabular-resnet",
        partial(blocks.ResidualVectors, branch=blocks.tabular_branch),
        ROWS,
        "Batch norms, dropout on.",
    ),
    _sound("many-tables", blocks.ManyTables, (ids(8, 4), normal(8, 3)), "Five inputs are added."),
    _sound(
        "vector-denoiser",
        blocks.VectorDenoiser,
        (ROWS, TIMES),
        "Time enters inside of branches. Its first update acts as L^-1/2, as branches start at "
        "random; later as one.",
    ),
    _sound("patch-series", blocks.PatchSeries, normal(4, 24), "A readout of six times the width."),
    _sound("distilled", blocks.Distilled, IMAGES, "Two tokens and two heads."),
    _sound(
        "distilled-registers",
        partial(blocks.Distilled, registers=3),
        IMAGES,
        "Tokens that no head reads.",
    ),
    _sound(
        "masked-images",
        blocks.MaskedImages,
        normal(4, 6, 12),
        "Two stacks of the same depth with a hidden matrix between them.",
    ),
    _sound(
        "long-skips",
        blocks.LongSkips,
        SERIES,
        "A hidden matrix of twice the width joins two stacks.",
    ),
    _sound(
        "speech",
        blocks.Speech,
        (normal(4, 4, 8), WORDS),
        "What a decoder reads through branches only acts as L^-1/2 in the first step, and as one "
        "later.",
    ),
    _sound(
        "repeated",
        blocks.Repeated,
        WORDS,
        "A shared block counts as often as it is applied.",
        blocks="block",
    ),
    _sound("player", blocks.Player, IMAGES, "Residual convolutions, a policy and a value."),
    _sound(
        "player-groups",
        partial(blocks.Player, groups=True),
        IMAGES,
        "Groups of eight channels have a fixed fan-in.",
    ),
    _sound("player-sgd", blocks.Player, IMAGES, "SGD in width and depth.", optimizer="sgd"),
    _sound("conv-mixer", blocks.ConvMixer, IMAGES, "Both layers in one branch."),
    _sound(
        "molecule",
        blocks.Molecule,
        (ids(6), normal(6, 3)),
        "Filters of the distance multiply neighbours.",
    ),
    _sound(
        "graph-transformer",
        blocks.GraphTransformer,
        (NODES, NEIGHBOURS),
        "Sums over neighbours and attention, in parallel.",
    ),
    _sound(
        "graph-transformer-muon",
        blocks.GraphTransformer,
        (NODES, NEIGHBOURS),
        "Edges' biases of heads are vectors.",
        optimizer="muon",
    ),
    _sound(
        "cross-reader",
        blocks.CrossReader,
        (normal(4, 3, 4), WORDS),
        "Cross attention to a context of its own encoder.",
    ),
    _sound("early-exits", blocks.EarlyExits, ROWS, "A mean over exits is of order one."),
    _sound(
        "self-supervised",
        blocks.SelfSupervised,
        (ROWS, normal(8, 6, seed=5)),
        "Unit vectors of the width and a learned temperature.",
    ),
    _sound(
        "frozen-words",
        blocks.FrozenWords,
        WORDS,
        "An embedding that does not train is of order one.",
    ),
    _sound(
        "tower-and-table",
        blocks.TowerAndTable,
        WORDS,
        "The last norm takes the factor of the table.",
    ),
    _sound(
        "tokens-and-channels",
        blocks.TokensAndChannels,
        SERIES,
        "A map over time of six places has a fixed fan-in and writes the stream.",
    ),
]


# ---- wrong plans


class Times(nn.Module):
    """A network whose outputs are multiplied by a number."""

    def __init__(self, net: nn.Module, factor: float) -> None:
        super().__init__()
        self.net = net
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) * self.factor


def leaky_times_root(width: int, depth: int) -> nn.Module:
    """Outputs that somebody multiplies by the root of the width."""
    return Times(leaky(width, depth), (width / 32) ** 0.5)


def leaky_times_one(width: int, depth: int) -> nn.Module:
    """The same network without this factor."""
    return Times(leaky(width, depth), 1.0)


class TwoHeads(nn.Module):
    """PyTorch's attention with two heads at every width, which divides logits by the root of their
    size.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x, x, x, need_weights=False)[0]


class SeparateTwoHeads(nn.Module):
    """Two heads of queries, keys and values by matrices of their own, and logits over the root of
    their size.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.size = width // 2

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (blocks.split(part(x), self.size) for part in (self.q, self.k, self.v))
        return self.o(blocks.merged(nn.functional.scaled_dot_product_attention(q, k, v)))


def _bad_width(
    name: str, make_model: MakeModel, sample: Any, edit: Edit | None, why: str, **options: Any
) -> Case:
    """A wrong plan of muP, in which only the width grows."""
    options = {"rule": "mup", "axes": "width"} | options
    return Case(name, True, make_model, sample, edit=edit, wrong_in="width", why=why, **options)


def _bad(
    name: str,
    make_model: MakeModel,
    sample: Any,
    edit: Edit | None,
    wrong_in: str,
    why: str,
    **options: Any,
) -> Case:
    """A wrong plan of CompleteP, in which width and depth grow."""
    return Case(name, True, make_model, sample, edit=edit, wrong_in=wrong_in, why=why, **options)


def unscaled(patterns: str | tuple[str, ...]) -> Edit:
    """Writers of the stream that know nothing of depth: starts and rates of the base."""
    return both(start_times(patterns, depth=1), rate_times(patterns, depth=1))


N = "The update acts n times as much as it should."
ROOT = "The update acts n^1/2 times as much as it should."

WRONG_IN_WIDTH = [
    _bad_width(
        "leaky-hidden-rates-of-base", leaky, ROWS, rate_times(("2.weight", "4.weight"), width=1), N
    ),
    _bad_width(
        "leaky-sgd-by-adam",
        leaky,
        ROWS,
        rate_times(("0.weight", "2.weight", "4.weight"), width=-1),
        "Adam's rates for SGD: updates of these fall as 1/n.",
        optimizer="sgd",
    ),
    _bad_width(
        "leaky-adam-by-sgd",
        leaky,
        ROWS,
        rate_times(("0.weight", "2.weight", "4.weight"), width=1),
        N + " SGD's rates for Adam.",
    ),
    _bad_width(
        "leaky-muon-rms-rate-of-base",
        leaky,
        ROWS,
        rate_times(("2.weight", "4.weight"), width=0.5),
        ROOT + " The factor of Moonlight's is forgotten.",
        optimizer="muon-match-rms-adamw",
    ),
    _bad_width(
        "leaky-muon-spectral-over-root",
        leaky,
        ROWS,
        rate_times("4.weight", width=-0.5),
        "The rate of Moonlight's for spectral Muon: falls as n^-1/2.",
        optimizer="muon-spectral",
    ),
    _bad_width(
        "leaky-outputs-times-root",
        leaky_times_root,
        ROWS,
        None,
        "Outputs are multiplied by n^1/2, which the plan does not see.",
        plan_of=leaky_times_one,
    ),
    _bad_width(
        "raw-sgd-input-fans-exchanged",
        models.RawMatrices,
        ROWS,
        fans_exchanged("weights.0"),
        "x @ W: SGD's rate of the first matrix is that of fan-out 1, and its update falls as 1/n.",
        optimizer="sgd",
    ),
    _bad_width(
        "raw-readout-fans-exchanged",
        models.RawMatrices,
        ROWS,
        fans_exchanged("weights.3"),
        "The readout starts at the base's size and trains at its rate: n times too much.",
    ),
    _bad_width(
        "normed-lion-readout-rate-of-base",
        normed,
        ROWS,
        rate_times("6.weight", width=1),
        N,
        optimizer="lion",
    ),
    _bad_width(
        "skip-concat-third-by-root",
        models.SkipConcat,
        normal(8, 3),
        rate_times("third.weight", width=0.5),
        ROOT,
    ),
    _bad_width(
        "pinn-hidden-start-of-base",
        models.Pinn,
        (normal(8), normal(8, seed=1)),
        start_times("net.2.weight", width=0.5),
        "Inputs of tanh grow as n^1/2, and it saturates.",
    ),
    _bad_width(
        "deep-o-net-trunk-start-of-pytorch",
        models.DeepONet,
        (normal(4, 7), normal(8, 2, seed=1)),
        start_times("trunk.4.weight", width=0.5),
        "A readout of n^-1/2: updates of layers before it act n^1/2 times as much.",
    ),
    _bad_width("dueling-equal-rates", models.Dueling, normal(8, 5), equal_rates, N),
    _bad_width(
        "masked-standard",
        models.MaskedAutoregressive,
        ROWS,
        both(equal_rates, start_times("layers.2.weight", width=0.5)),
        "Standard parametrisation: one rate for all, and a readout of n^-1/2.",
    ),
    _bad_width(
        "radial-edges-second-rate-of-base",
        models.RadialEdges,
        ROWS,
        rate_times("second", width=1),
        N,
    ),
    _bad_width(
        "ensemble-readouts-start-of-pytorch",
        models.BatchedEnsemble,
        ROWS,
        start_times("weights.2", width=0.5),
        "Readouts of n^-1/2: earlier updates act n^1/2 times as much.",
    ),
    _bad_width(
        "two-frames-joint-by-root",
        models.TwoFrames,
        {"image": normal(8, 9), "state": normal(8, 4, seed=1)},
        rate_times("joint.0.weight", width=0.5),
        ROOT,
    ),
    _bad_width(
        "dropout-one-bias-too-fast", models.Evidence, ROWS, rate_times("trunk.3.bias", width=1), N
    ),
    _bad_width(
        "filtering-users-too-slow",
        models.NeuralFiltering,
        (ids(8), ids(8, seed=1)),
        rate_times("user.weight", width=-1),
        "An embedding's rate over the width: its update fades as 1/n.",
    ),
    _bad_width(
        "wide-and-deep-roles-first-as-input",
        models.WideAndDeep,
        (ids(8, 3), normal(8, 4)),
        None,
        "The matrix after the embeddings is called an input: its activations grow by n^1/2, its "
        "updates by n.",
        roles={"deep.0.weight": "input"},
    ),
    _bad_width(
        "cross-one-start-of-base",
        models.CrossNetwork,
        normal(8, 8),
        start_times("crosses.0.weight", width=0.5),
        "The stream after the first product grows as n^1/2.",
    ),
    _bad_width(
        "bidirectional-second-layer-too-fast",
        models.BothWays,
        WORDS,
        rate_times("net.weight_ih_l1*", width=1),
        N,
    ),
    _bad_width(
        "stacked-gru-readout-start-of-pytorch",
        models.StackedGru,
        SERIES,
        start_times("head.weight", width=0.5),
        "Earlier updates act n^1/2 times as much.",
    ),
    _bad_width(
        "hand-lstm-input-too-slow",
        models.HandLstm,
        SERIES,
        rate_times("of_input.weight", width=-1),
        "The update of the first matrix fades as 1/n.",
    ),
    _bad_width(
        "hand-lstm-muon-by-adam",
        models.HandLstm,
        SERIES,
        rate_times("of_state.weight", width=-1),
        "Adam's 1/in for Muon: the update fades as 1/n.",
        optimizer="muon",
    ),
    _bad_width(
        "minimal-unit-gate-by-root",
        models.MinimalUnit,
        SERIES,
        rate_times("gate.weight", width=0.5),
        ROOT,
    ),
    _bad_width(
        "alex-flattened-rate-of-base",
        models.AlexLike,
        IMAGES,
        rate_times("classifier.1.weight", width=1),
        N,
    ),
    _bad_width(
        "autoencoder-last-fans-exchanged",
        models.ConvAutoencoder,
        IMAGES,
        fans_exchanged("up.2.weight"),
        "The transposed readout is read as an input: n times too much.",
    ),
    _bad_width(
        "unet-time-alone-too-fast",
        models.TimeUnet,
        (IMAGES, TIMES[:4]),
        rate_times("time.2.weight", width=1),
        N,
    ),
    _bad_width(
        "pyramid-one-lateral-start-of-base",
        models.ImagePyramid,
        IMAGES,
        start_times("laterals.1.weight", width=0.5),
        "The second of three maps grows as n^1/2.",
    ),
    _bad_width(
        "point-net-gain-too-fast",
        models.PointNet,
        normal(4, 3, 10),
        rate_times("local.1.weight", width=1),
        N,
    ),
    _bad_width(
        "edge-messages-too-slow-by-root",
        models.EdgeMessages,
        (NODES, EDGES, normal(12, 2)),
        rate_times("message.2.weight", width=-0.5),
        "The update fades as n^-1/2.",
    ),
    _bad_width(
        "sage-neighbours-alone-too-fast",
        models.SageGraph,
        (NODES, NEIGHBOURS / 4),
        rate_times("of_others.1.weight", width=1),
        N,
    ),
    _bad_width(
        "relations-start-of-base",
        models.RelationalGraph,
        (ids(7), normal(3, 7, 7).abs() / 5),
        start_times("relations", width=0.5),
        "What neighbours send grows as n^1/2.",
    ),
    _bad_width(
        "contrastive-temperature-too-fast",
        models.Contrastive,
        (ROWS, normal(8, 9)),
        rate_times("log_scale", width=1),
        "One number needs one rate at every width.",
    ),
    _bad_width(
        "regions-one-head-start-of-pytorch",
        models.Regions,
        ROWS,
        start_times("heads.1.weight", width=0.5),
        "Earlier updates act n^1/2 times as much on the second output.",
    ),
    _bad_width(
        "generator-hidden-rate-of-base",
        models.GeneratorMlp,
        (normal(8, 8), ids(8, below=10)),
        rate_times("net.2.weight", width=1),
        N,
    ),
    _bad_width(
        "repeated-readers-too-fast",
        blocks.Repeated,
        WORDS,
        rate_times("block.mix.qkv.weight", width=1),
        N,
    ),
    _bad_width(
        "vae-code-start-of-base",
        models.DiagonalGaussianVae,
        IMAGES,
        start_times("code.weight", width=1),
        "The code and the logarithm of its spread grow as n^1/2.",
    ),
]

gated = partial(Numbers, mix=blocks.unmasked, feed=blocks.SoftSlots)
shared = partial(Words, feed=blocks.SharedAndRouted)

WRONG_IN_BOTH = [
    _bad(
        "two-heads-over-root-of-size",
        partial(Numbers, mix=TwoHeads),
        SERIES,
        None,
        "width",
        "Heads grow, and logits over the root of their size move as n^1/2; the first loss does not "
        "show it.",
    ),
    _bad(
        "separate-two-heads-over-root-of-size",
        partial(Numbers, mix=SeparateTwoHeads),
        SERIES,
        None,
        "width",
        "The same with a matrix each.",
    ),
    _bad(
        "grouped-attention-writers-by-root",
        grouped,
        WORDS,
        rate_times("blocks.*.mix.wo.weight", depth=0.5),
        "depth",
        "L writers of a rate of L^-1/2 act L^1/2 times as much.",
    ),
    _bad(
        "silu-factor-twice",
        silu_blocks,
        ROWS,
        both(
            start_times("branches.*.3.weight", depth=-1),
            rate_times("branches.*.3.weight", depth=-1),
        ),
        "depth",
        "1/L twice: all branches together fade as 1/L.",
    ),
    _bad(
        "silu-muon-unit-writers-rate-of-base",
        silu_blocks,
        ROWS,
        rate_times("branches.*.3.weight", depth=1),
        "depth",
        "L writers of a rate of one.",
        optimizer="muon-unit",
    ),
    _bad(
        "silu-sgd-readers-forgot-depth",
        silu_blocks,
        ROWS,
        rate_times("branches.*.1.weight", depth=-1),
        "depth",
        "Gradients of readers fall as 1/L, and SGD's rate has to grow as L.",
        optimizer="sgd",
    ),
    _bad(
        "deep-middle-too-slow",
        deep_blocks,
        ROWS,
        rate_times("branches.*.3.weight", depth=-1),
        "depth",
        "An inner matrix at an outer's rate fades as 1/L.",
    ),
    _bad(
        "deep-lion-writers-start-of-base",
        deep_blocks,
        ROWS,
        start_times("branches.*.7.weight", depth=1),
        "depth",
        "L branches of order one: the stream grows as L^1/2, updates of inner matrices act L times "
        "as much.",
        optimizer="lion",
    ),
    _bad(
        "activated-sgd-rate-of-base",
        activated,
        ROWS,
        rate_times("branches.*.2.weight", depth=1),
        "depth",
        "L updates of order one.",
        optimizer="sgd",
    ),
    _bad(
        "player-sgd-inner-forgot-depth",
        blocks.Player,
        IMAGES,
        rate_times("tower.*.conv1.weight", depth=-1),
        "depth",
        "SGD's rate of inner matrices has to grow as L.",
        optimizer="sgd",
    ),
    _bad(
        "places-too-slow",
        fused,
        WORDS,
        rate_times("positions", width=-1),
        "width",
        "Learned positions at a rate over the width fade as 1/n.",
    ),
    _bad(
        "table-without-its-factor",
        blocks.TowerAndTable,
        WORDS,
        without_multipliers,
        "width",
        "Scores of a table of order one sum n products: they and their change grow as n^1/2 and n.",
    ),
    _bad(
        "parallel-attention-alone-unscaled",
        parallel,
        WORDS,
        unscaled("blocks.*.mix.wo.weight"),
        "depth",
        "One of two parallel branches knows no depth.",
    ),
    _bad(
        "wrapped-projections-start-of-base",
        wrapped,
        SERIES,
        start_times("blocks.*.mix.inside.in_proj_weight", width=0.5),
        "width",
        "Queries, keys and values grow as n^1/2.",
    ),
    _bad(
        "relative-vectors-grow",
        partial(Words, mix=blocks.Relative),
        WORDS,
        start_times("blocks.*.mix.distances.weight", width=0.5),
        "width",
        "Logits of distances grow as n^1/2.",
    ),
    _bad(
        "bias-table-too-fast",
        partial(Words, mix=blocks.BiasTable),
        WORDS,
        rate_times("blocks.*.mix.table.weight", width=1),
        "width",
        "Logits move n times as much.",
    ),
    _bad(
        "queries-gain-grows",
        partial(Words, mix=blocks.Normed, feed=blocks.Subnormed),
        WORDS,
        start_times("blocks.*.mix.q_norm.weight", width=0.5),
        "width",
        "Logits grow as n^1/2.",
    ),
    _bad(
        "retention-gate-too-fast",
        token_shift,
        WORDS,
        rate_times("blocks.*.mix.g.weight", width=1),
        "width",
        N,
    ),
    _bad(
        "token-shift-blends-too-slow",
        token_shift,
        WORDS,
        rate_times("blocks.*.feed.blend_k", width=-1),
        "width",
        "A vector at a matrix's rate fades as 1/n.",
    ),
    _bad(
        "min-gru-gate-biases-too-fast-in-depth",
        partial(Words, mix=blocks.MinGru),
        WORDS,
        rate_times("blocks.*.mix.gate.bias", depth=1),
        "depth",
        "Biases inside of branches act L times as much.",
    ),
    _bad(
        "linear-unit-decays-too-fast",
        partial(Words, mix=blocks.LinearUnit, feed=blocks.Glu),
        WORDS,
        rate_times("blocks.*.mix.decay", width=1),
        "width",
        "A vector needs one rate at every width.",
    ),
    _bad(
        "long-filter-start-grows",
        partial(Words, mix=blocks.LongFilter),
        WORDS,
        start_times("blocks.*.mix.filters.2.weight", width=0.5),
        "width",
        "Filters grow as n^1/2.",
    ),
    _bad(
        "short-conv-taken-for-dense",
        partial(Words, mix=blocks.ShortConv),
        WORDS,
        both(
            start_times("blocks.*.mix.conv.weight", width=-0.5),
            rate_times("blocks.*.mix.conv.weight", width=-1),
        ),
        "width",
        "A convolution by channel has fan-in three: its start fades as n^-1/2, its update as 1/n.",
    ),
    _bad(
        "conformer-conv-alone-unscaled",
        partial(Numbers, mix=blocks.unmasked, block=blocks.Conformer),
        SERIES,
        unscaled("blocks.*.layers.2.out.weight"),
        "depth",
        "One of four branches knows no depth.",
    ),
    _bad(
        "norm-after-gains-rate-of-base",
        partial(Words, block=blocks.NormedAfter),
        WORDS,
        rate_times(("blocks.*.norm1.weight", "blocks.*.norm2.weight"), depth=1),
        "depth",
        "Gains at the end of L branches need 1/L.",
    ),
    _bad(
        "layer-scale-first-rate-of-base",
        partial(Words, block=blocks.Scaled),
        WORDS,
        rate_times("blocks.*.gamma1", depth=1),
        "depth",
        "Gains at the end of L branches need 1/L.",
    ),
    _bad(
        "shared-expert-alone-too-fast",
        shared,
        WORDS,
        rate_times("blocks.*.feed.shared.down.weight", width=1),
        "width",
        N,
    ),
    _bad(
        "slots-start-of-base",
        gated,
        SERIES,
        start_times("blocks.*.feed.slots", width=1),
        "width",
        "Logits of slots grow as n^1/2 at the start.",
    ),
    _bad(
        "over-depth-planned-as-over-root",
        over_depth,
        WORDS,
        None,
        "depth",
        "The model divides by L, the plan makes up for L^1/2: branches fade as L^-1/2.",
        plan_of=over_root,
    ),
    _bad(
        "tables-one-of-four-too-fast",
        blocks.ManyTables,
        (ids(8, 4), normal(8, 3)),
        rate_times("tables.2.weight", width=1),
        "width",
        N,
    ),
    _bad(
        "denoiser-time-start-of-base",
        blocks.VectorDenoiser,
        (ROWS, TIMES),
        start_times("blocks.*.of_time.weight", width=0.5),
        "width",
        "What time adds in blocks grows as n^1/2.",
    ),
    _bad(
        "patches-readout-start-of-pytorch",
        blocks.PatchSeries,
        normal(4, 24),
        start_times("head.weight", width=0.5),
        "width",
        "Earlier updates act n^1/2 times as much.",
    ),
    _bad(
        "distilled-one-head-rate-of-base",
        blocks.Distilled,
        IMAGES,
        rate_times("heads.1.weight", width=1),
        "width",
        N,
    ),
    _bad(
        "masked-decoder-alone-unscaled",
        blocks.MaskedImages,
        normal(4, 6, 12),
        unscaled(("decoder.*.mix.out.*", "decoder.*.feed.down.*")),
        "depth",
        "One of two stacks knows no depth.",
    ),
    _bad(
        "long-skips-join-rate-of-base",
        blocks.LongSkips,
        SERIES,
        rate_times("join.weight", width=1),
        "width",
        N,
    ),
    _bad(
        "speech-second-conv-by-root",
        blocks.Speech,
        (normal(4, 4, 8), WORDS),
        rate_times("conv2.weight", width=0.5),
        "width",
        ROOT,
    ),
    _bad(
        "repeated-knows-no-depth",
        blocks.Repeated,
        WORDS,
        without_depth,
        "depth",
        "A shared block acts L times.",
        blocks="block",
    ),
    _bad(
        "player-groups-taken-for-dense",
        partial(blocks.Player, groups=True),
        IMAGES,
        rate_times("tower.*.conv1.weight", width=-1),
        "width",
        "Groups of a fixed size have a fixed fan-in: their update fades as 1/n.",
    ),
    _bad(
        "conv-mixer-last-conv-rate-of-base",
        blocks.ConvMixer,
        IMAGES,
        rate_times("channel.*.3.weight", depth=1),
        "depth",
        "L writers of a rate of one.",
    ),
    _bad(
        "molecule-filters-too-fast",
        blocks.Molecule,
        (ids(6), normal(6, 3)),
        rate_times("blocks.*.filters.2.weight", width=1),
        "width",
        N,
    ),
    _bad(
        "graph-local-alone-unscaled",
        blocks.GraphTransformer,
        (NODES, NEIGHBOURS),
        unscaled("layers.*.local.2.weight"),
        "depth",
        "One of three branches knows no depth.",
    ),
    _bad(
        "cross-reader-context-too-fast",
        blocks.CrossReader,
        (normal(4, 3, 4), WORDS),
        rate_times("context.2.weight", width=1),
        "width",
        N,
    ),
    _bad(
        "exits-summed-planned-as-mean",
        partial(blocks.EarlyExits, mean=False),
        ROWS,
        None,
        "depth",
        "A sum over L exits grows as L.",
        plan_of=blocks.EarlyExits,
    ),
    _bad(
        "projector-start-too-small",
        blocks.SelfSupervised,
        (ROWS, normal(8, 6, seed=5)),
        start_times("project.2.*", width=-0.5),
        "width",
        "Unit vectors hide that the last matrix is small, and its updates turn them n^1/2 times as "
        "much.",
    ),
    _bad(
        "tokens-over-time-unscaled",
        blocks.TokensAndChannels,
        SERIES,
        unscaled("times.*.*"),
        "depth",
        "Maps over time write the stream and know no depth.",
    ),
    _bad(
        "per-head-matrices",
        partial(Words, mix=blocks.PerHead),
        WORDS,
        None,
        "width",
        "Heads grow in number, yet their stack starts as 1/n: updates of queries fade as 1/n. One "
        "matrix does not.",
    ),
    _bad(
        "per-head-matrices-sgd",
        partial(Words, mix=blocks.PerHead),
        WORDS,
        None,
        "width",
        "The same, and SGD's rate lacks the growth of fan-out.",
        optimizer="sgd",
    ),
]

PLANNED_WRONG = [case for case in WRONG_IN_BOTH if case.name.startswith("per-head-matrices")]

DISPUTED = [
    _sound(
        "distilled-small-tokens",
        partial(blocks.Distilled, std=0.02),
        IMAGES,
        "The limit is sound, but tokens that start small are made of branches, which shrink as "
        "L^-1/2.",
        disputed=True,
    ),
    _sound(
        "fused-words-small-tied",
        partial(Words, positions=True, tied=0.02),
        WORDS,
        "The limit is sound, but at small depth the stream is made of branches, which shrink as "
        "L^-1/2.",
        disputed=True,
    ),
]

HELD_OUT: list[Case] = [*IN_WIDTH, *IN_BOTH, *WRONG_IN_WIDTH, *WRONG_IN_BOTH, *DISPUTED]
