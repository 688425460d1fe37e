"""Cases that were held out: written by a hand that saw neither the test nor the models of the other cases.

Every sound case was trained for some steps in double precision at 1, 4 and 16 times the width and at up to 8
times the depth, by a script that knows no self-test. What each tensor's update does to the outputs stayed of
order one. Of wrong cases the same script saw it move by the power that ``why`` claims.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.self_test_bank import held_out_blocks as blocks
from tests.self_test_bank import held_out_models as models
from tests.self_test_bank.cases import (
    Case,
    MakeModel,
)
from tests.self_test_bank.held_out_blocks import Numbers, Words
from tests.self_test_bank.held_out_models import ids, mlp, normal
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

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
    _in_width("leaky-mlp", leaky, ROWS, "Hidden rates 1/in and a readout of 1/in: the rule as it stands."),
    _in_width("leaky-mlp-sgd", leaky, ROWS, "SGD: input out, hidden out/in, readout 1/in.", optimizer="sgd"),
    _in_width("leaky-mlp-muon-unit", leaky, ROWS, "Muon without a factor of shape: (out/in)^1/2.", optimizer="muon-unit"),
    _in_width("leaky-mlp-muon-rms", leaky, ROWS, "Updates of 0.2 max^1/2: rates 1/width^1/2.", optimizer="muon-match-rms-adamw"),
    _in_width("leaky-mlp-muon-spectral", leaky, ROWS, "Updates of (out/in)^1/2: rates 1.", optimizer="muon-spectral"),
    _in_width("tapered-mlp", tapered, ROWS, "All widths keep their ratios.", base=(64, 2)),
    _in_width("tapered-mlp-adam-narrow", tapered, ROWS, "The same from a base of 16.", optimizer="adam", base=(16, 2)),
    _in_width("normed-mlp-lion", normed, ROWS, "Norms make activations of order one; Lion steps like Adam.", optimizer="lion"),
    _in_width("raw-matrices", models.RawMatrices, ROWS, "Fan-in is the first dimension of x @ W."),
    _in_width("raw-matrices-sgd", models.RawMatrices, ROWS, "Fan-in is the first dimension.", optimizer="sgd"),
    _in_width("skip-concat", models.SkipConcat, normal(8, 3), "Three inputs beside width do not change the power of fan-in."),
    _in_width("skip-concat-sine", partial(models.SkipConcat, act=lambda x: x.sin()), normal(8, 3), "The same with sines."),
    _in_width("pinn-of-two-arguments", models.Pinn, (normal(8), normal(8, seed=1)), "A plain network of two numbers."),
    _in_width("pinn-fourier", models.FourierPinn, normal(8, 2), "Fixed waves are inputs of a fixed number."),
    _in_width("deep-o-net", models.DeepONet, (normal(4, 7), normal(8, 2, seed=1)), "Two readouts with biases of order one, whose product is of order one."),
    _in_width("dueling", models.Dueling, normal(8, 5), "Two readouts; the mean over actions is of a fixed number."),
    _in_width("masked-autoregressive", models.MaskedAutoregressive, ROWS, "A share of each row, which does not depend on width, is masked."),
    _in_width("radial-edges", models.RadialEdges, ROWS, "Each output sums width times six products."),
    _in_width("tied-steps", models.TiedSteps, ROWS, "One matrix used four times at every width."),
    _in_width("frozen-features", models.FrozenFeatures, ROWS, "Random features of order one at every width."),
    _in_width("two-frames-dict", models.TwoFrames, {"image": normal(8, 9), "state": normal(8, 4, seed=1)}, "Fan-in of the joint layer is 3/2 of the width."),
    _in_width("batched-ensemble", models.BatchedEnsemble, ROWS, "A stack of members, each a plain network."),
    _in_width("dropout-on", models.Evidence, ROWS, "Dropout multiplies by independent numbers of mean one."),
    _in_width("dropout-off", evaluated, ROWS, "Switched off it is the identity."),
    _in_width("gated-experts", models.GatedExperts, ROWS, "The gate's last layer is a readout before a softmax."),
    _in_width("multi-task", models.MultiTask, ROWS, "Gates of fixed inputs and outputs do not grow."),
    _in_width("wide-and-deep", models.WideAndDeep, (ids(8, 3), normal(8, 4)), "A table to one number does not grow beside embeddings that do."),
    _in_width("neural-filtering", models.NeuralFiltering, (ids(8), ids(8, seed=1)), "Embeddings of order one."),
    _in_width("neural-filtering-sgd", models.NeuralFiltering, (ids(8), ids(8, seed=1)), "SGD of embeddings: out.", optimizer="sgd"),
    _in_width("cross-network", models.CrossNetwork, normal(8, 8), "Products of entries of order one with hidden outputs of order one."),
    _in_width("next-word", models.NextWord, FOUR_WORDS, "Fan-in is four times the width."),
    _in_width("bag-plus-numbers", models.BagPlusNumbers, (FOUR_WORDS, normal(8, 4)), "A mean of embeddings and a linear map, both inputs."),
    _in_width("bidirectional-lstm", models.BothWays, WORDS, "Matrices of the state and of the layer below are hidden."),
    _in_width("stacked-gru", models.StackedGru, SERIES, "The first layer reads numbers, the second states."),
    _in_width("hand-lstm", models.HandLstm, SERIES, "Gates are parts of one matrix whose fan-out grows."),
    _in_width("hand-lstm-muon", models.HandLstm, SERIES, "Muon of fused gates.", optimizer="muon"),
    _in_width("minimal-unit", models.MinimalUnit, SERIES, "Fan-in is width plus five."),
    _in_width("strided-conv1d", models.TemporalConv, normal(4, 1, 40), "Fan-in is channels times the kernel."),
    _in_width("alex-like", models.AlexLike, IMAGES, "Flattened maps are 8 times the width."),
    _in_width("conv-autoencoder", models.ConvAutoencoder, IMAGES, "A transposed convolution sums its first dimension."),
    _in_width("video-conv", models.VideoConv, normal(2, 2, 3, 4, 4), "Fan-in is channels times 27."),
    _in_width("time-unet", models.TimeUnet, (IMAGES, TIMES[:4]), "Stages keep their ratios; the time embedding is hidden."),
    _in_width("image-pyramid", models.ImagePyramid, IMAGES, "One readout at three resolutions."),
    _in_width("sampled-vae", models.DiagonalGaussianVae, IMAGES, "A code of four numbers is a readout, and the decoder reads it as an input."),
    _in_width("point-net", models.PointNet, normal(4, 3, 10), "A largest value over ten points is of order one."),
    _in_width("edge-messages", models.EdgeMessages, (NODES, EDGES, normal(12, 2)), "Messages sum over a fixed number of edges."),
    _in_width("sage-graph", models.SageGraph, (NODES, NEIGHBOURS / 4), "Two matrices per layer of the same role."),
    _in_width("sage-graph-lion", models.SageGraph, (NODES, NEIGHBOURS / 4), "Two matrices per layer of the same role.", optimizer="lion"),
    _in_width("relational-graph", models.RelationalGraph, (ids(7), normal(3, 7, 7).abs() / 5), "A stack of matrices over relations."),
    _in_width("contrastive-towers", models.Contrastive, (ROWS, normal(8, 9)), "Unit vectors of the width: an entry is width^-1/2, and products sum over them."),
    _in_width("regions", models.Regions, ROWS, "Three readouts of three layers."),
    _in_width("generator-mlp", models.GeneratorMlp, (normal(8, 8), ids(8, below=10)), "Embeddings of a fixed size do not grow."),
    _in_width("post-norm-words", partial(Words, block=blocks.NormedStream, final=False), WORDS, "Norms on the stream, in width only."),
    _in_width("stream-mup-muon", grouped, WORDS, "Width only: depth has no factor.", optimizer="muon"),
    _in_width("repeated-mup", blocks.Repeated, WORDS, "A shared block at one depth."),
    _in_width("parallel-mup-sgd", parallel, WORDS, "SGD in width.", optimizer="sgd"),
]

IN_BOTH = [
    _sound("grouped-words", grouped, WORDS, "Heads of a fixed size; keys keep their ratio."),
    _sound("grouped-words-muon", grouped, WORDS, "Muon on the matrices.", optimizer="muon"),
    _sound("grouped-words-depth-mup-width", grouped, WORDS, "CompleteP with a base of 64 and 4.", base=(64, 4)),
    _sound("fused-words-places", fused, WORDS, "Learned positions are embeddings."),
    _sound("fused-words-places-tied", fused_tied, WORDS, "The last norm takes the factor of the tied head."),
    _sound("fused-words-adam", fused, WORDS, "Adam as AdamW.", optimizer="adam"),
    _sound("parallel-words", parallel, WORDS, "Two branches of one norm."),
    _sound("parallel-words-lion", parallel, WORDS, "Two branches of one norm.", optimizer="lion"),
    _sound("wrapped-attention", wrapped, SERIES, "in_proj holds three matrices of width by width."),
    _sound("wrapped-attention-sgd", wrapped, SERIES, "SGD in width and depth.", optimizer="sgd"),
    _sound("relative-words", partial(Words, mix=blocks.Relative), WORDS, "Vectors of distances are of a head's fixed size."),
    _sound("per-head-matrices", partial(Words, mix=blocks.PerHead), WORDS, "A stack over heads, whose number grows."),
    _sound("bias-table", partial(Words, mix=blocks.BiasTable), WORDS, "A number per head and distance is a vector."),
    _sound("growing-heads-over-size-words", partial(Words, mix=blocks.GrowingHeads), WORDS, "Logits over the size of growing heads."),
    _sound("normed-queries-and-heads", partial(Words, mix=blocks.Normed, feed=blocks.Subnormed), WORDS, "Norms inside of branches keep their gains of order one."),
    _sound("soft-cap", partial(Words, mix=blocks.SoftCap, norm=blocks.Rms), WORDS, "A cap of logits of order one."),
    _sound("retention-token-shift", token_shift, WORDS, "Products over heads of a fixed size, a norm by heads, gates."),
    _sound("min-gru", partial(Words, mix=blocks.MinGru), WORDS, "Gates by channel."),
    _sound("linear-unit", partial(Words, mix=blocks.LinearUnit, feed=blocks.Glu), WORDS, "Decays are vectors of order one."),
    _sound("linear-unit-muon", partial(Words, mix=blocks.LinearUnit, feed=blocks.Glu), WORDS, "Decays train by AdamW.", optimizer="muon"),
    _sound("long-filter", partial(Words, mix=blocks.LongFilter), WORDS, "Filters are read out of eight numbers: inputs."),
    _sound("short-conv", partial(Words, mix=blocks.ShortConv), WORDS, "A convolution by channel has fan-in three."),
    _sound("pool-former", partial(Numbers, mix=blocks.Pooling), SERIES, "Means of neighbours of the normed stream. They add with weight one at every depth.", axes="width", rule="mup"),
    _sound("conformer", partial(Numbers, mix=blocks.unmasked, block=blocks.Conformer), SERIES, "Half steps are the same at every size."),
    _sound("norm-after", partial(Words, block=blocks.NormedAfter), WORDS, "Gains at the end of branches take 1/L."),
    _sound("norm-after-muon", partial(Words, block=blocks.NormedAfter, mix=blocks.Grouped), WORDS, "Gains at the end of branches take 1/L.", optimizer="muon"),
    _sound("small-layer-scale", partial(Words, block=blocks.Scaled), WORDS, "Learned vectors at the end take 1/L."),
    _sound("shared-and-routed", partial(Words, feed=blocks.SharedAndRouted), WORDS, "A router of three outputs starts as in^-1."),
    _sound("soft-slots", partial(Numbers, mix=blocks.unmasked, feed=blocks.SoftSlots), SERIES, "Slots are readers of three outputs."),
    _sound("over-root-words", over_root, WORDS, "A factor of L^-1/2 in the forward pass, which the plan makes up for."),
    _sound("over-depth-words", over_depth, WORDS, "The factor 1/L is there already."),
    _sound("over-depth-words-muon", over_depth, WORDS, "The factor 1/L is there already.", optimizer="muon"),
    _sound("silu-vectors", silu_blocks, ROWS, "Two layers a block without biases."),
    _sound("silu-vectors-sgd", silu_blocks, ROWS, "SGD.", optimizer="sgd"),
    _sound("silu-vectors-muon-unit", silu_blocks, ROWS, "Muon without a factor of shape.", optimizer="muon-unit"),
    _sound("deep-branches", deep_blocks, ROWS, "Four layers a block: three inner, one outer."),
    _sound("deep-branches-lion", deep_blocks, ROWS, "Four layers a block.", optimizer="lion"),
    _sound("activated-depth-mup", activated, ROWS, "One matrix a block under depth-muP.", rule="depth-mup"),
    _sound("activated-complete-p-sgd", activated, ROWS, "One matrix a block is outer.", optimizer="sgd"),
    _sound("activated-depth-mup-lion", activated, ROWS, "One matrix a block under depth-muP.", rule="depth-mup", optimizer="lion"),
    _sound("tabular-resnet", partial(blocks.ResidualVectors, branch=blocks.tabular_branch), ROWS, "Batch norms, dropout on."),
    _sound("many-tables", blocks.ManyTables, (ids(8, 4), normal(8, 3)), "Five inputs are added."),
    _sound("vector-denoiser", blocks.VectorDenoiser, (ROWS, TIMES), "The time embedding enters inside of branches."),
    _sound("patch-series", blocks.PatchSeries, normal(4, 24), "A readout of six times the width."),
    _sound("distilled", blocks.Distilled, IMAGES, "Two tokens and two heads."),
    _sound("distilled-registers", partial(blocks.Distilled, registers=3), IMAGES, "Tokens that no head reads."),
    _sound("masked-images", blocks.MaskedImages, normal(4, 6, 12), "Two stacks of the same depth with a hidden matrix between them."),
    _sound("long-skips", blocks.LongSkips, SERIES, "A hidden matrix of twice the width joins two stacks."),
    _sound("speech", blocks.Speech, (normal(4, 4, 8), WORDS), "Encoder, decoder, and a stem of two convolutions."),
    _sound("repeated", blocks.Repeated, WORDS, "A shared block counts as often as it is applied."),
    _sound("player", blocks.Player, IMAGES, "Residual convolutions, a policy and a value."),
    _sound("player-groups", partial(blocks.Player, groups=True), IMAGES, "Groups of eight channels have a fixed fan-in."),
    _sound("player-sgd", blocks.Player, IMAGES, "SGD in width and depth.", optimizer="sgd"),
    _sound("conv-mixer", blocks.ConvMixer, IMAGES, "Both layers in one branch."),
    _sound("molecule", blocks.Molecule, (ids(6), normal(6, 3)), "Filters of the distance multiply neighbours."),
    _sound("graph-transformer", blocks.GraphTransformer, (NODES, NEIGHBOURS), "Sums over neighbours and attention, in parallel."),
    _sound("graph-transformer-muon", blocks.GraphTransformer, (NODES, NEIGHBOURS), "Edges' biases of heads are vectors.", optimizer="muon"),
    _sound("cross-reader", blocks.CrossReader, (normal(4, 3, 4), WORDS), "Cross attention to a context of its own encoder."),
    _sound("early-exits", blocks.EarlyExits, ROWS, "A mean over exits is of order one."),
    _sound("self-supervised", blocks.SelfSupervised, (ROWS, normal(8, 6, seed=5)), "Unit vectors of the width and a learned temperature."),
    _sound("frozen-words", blocks.FrozenWords, WORDS, "An embedding that does not train is of order one."),
    _sound("tower-and-table", blocks.TowerAndTable, WORDS, "The last norm takes the factor of the table."),
    _sound("tokens-and-channels", blocks.TokensAndChannels, SERIES, "A map over time of six places has a fixed fan-in and writes the stream."),
]

WRONG: list[Case] = []

DISPUTED: list[Case] = []

HELD_OUT: list[Case] = [*IN_WIDTH, *IN_BOTH, *WRONG, *DISPUTED]
