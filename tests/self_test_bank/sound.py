"""Plans that scale as their rules promise, by mathematics, for networks of many kinds."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from tests.self_test_bank.cases import Case, MakeModel, both, rate_times, start_times
from tests.self_test_bank.models import (
    CLASSES,
    FEATURES,
    GRAPH,
    IDS,
    IMAGES,
    LENGTH,
    ROWS,
    SERIES,
    Actor,
    AdapterBlock,
    AttentionPooling,
    Autoencoder,
    BagOfWords,
    ConvNet,
    ConvNextBlock,
    Coupling,
    DeepSets,
    DenseNet,
    ExpertsBlock,
    Gat,
    GatedMlp,
    Gcn,
    Generator,
    GraphStack,
    GruCell,
    Highway,
    HyperNetwork,
    HyperScale,
    ImageStack,
    InvertedBlock,
    LayerScaleBlock,
    MacaronBlock,
    ManyHeads,
    Maxout,
    MixtureDensity,
    Mlp,
    MobileNet,
    Nerf,
    OneLayer,
    PatchMixer,
    PreActBlock,
    Recommender,
    Recurrent,
    ResMlp,
    ReZeroBlock,
    SandwichBlock,
    Seq2Seq,
    Siamese,
    SqueezeBlock,
    StackedExpertsBlock,
    SwiGluBlock,
    TextCnn,
    ThreeLayers,
    TimeMlp,
    TwoTowers,
    UNet,
    Variational,
    WaveNet,
    WideAutoencoder,
    group_norm,
    numbers,
    sequential,
    tokens,
)
from tests.self_test_bank.transformers import (
    T5,
    Actions,
    AlibiAttention,
    Bert,
    Clip,
    DiagonalStates,
    Dit,
    EinsumAttention,
    FourierMixing,
    GatedPositions,
    GatedRecurrence,
    Gpt2,
    Heads,
    LinearAttention,
    Llama,
    LowRankBlock,
    Mixer,
    NanoGpt,
    ParallelLayer,
    Perceiver,
    RecurrentMixing,
    Reward,
    SelectiveScan,
    Swin,
    Tabular,
    TorchAttention,
    TorchEncoder,
    TorchSeq2Seq,
    Vit,
)
from torch import nn
from torch.nn import functional as F  # noqa: N812

PAIR = (ROWS, numbers(8, FEATURES, seed=2))
PAIR_OF_IDS = (IDS, tokens(4, LENGTH, seed=2))
TASK = (ROWS, numbers(8, 5, seed=3))
TIME = (ROWS, numbers(8, seed=4).abs())
DENOISED = (SERIES, numbers(4, seed=4).abs(), tokens(4, below=CLASSES))
BAGS = (ROWS, tokens(8, 3, 4))
POINTS = numbers(8, 3)
NOISE = (ROWS, numbers(8, 4, seed=5))
SEGMENTS = {"input_ids": IDS, "token_type_ids": tokens(4, LENGTH, seed=6, below=2)}
GAME = (numbers(4, 5, 1), numbers(4, 5, FEATURES, seed=7), numbers(4, 5, 3, seed=8))

PLAIN = "Without a stream only width is promised, and muP is right for every matrix by its fans."
STREAM = "Branches and their updates shrink as 1/L, and muP scales every matrix by its fans."


def wide(name: str, make_model: MakeModel, sample: Any = ROWS, **more: Any) -> Case:
    """A network whose width alone grows, under muP."""
    more = {"why": PLAIN, **more}
    return Case(name, False, make_model, sample, rule="mup", axes="width", **more)


def deep(name: str, make_model: MakeModel, sample: Any = ROWS, **more: Any) -> Case:
    """A residual network, whose width and depth grow, under CompleteP."""
    return Case(name, False, make_model, sample, **{"why": STREAM, **more})


def blocks_of(block: Any, **options: Any) -> MakeModel:
    """A residual network of vectors from blocks of one kind."""
    return partial(ResMlp, block=block, **options)


def mixing(mixer: Any, **options: Any) -> MakeModel:
    """A network of tokens from mixers of one kind."""
    return partial(Mixer, mixer=mixer, **options)


PLAIN_NETWORKS = [
    wide("mlp-relu", Mlp),
    wide("mlp-tanh-no-bias", partial(Mlp, act=torch.tanh, bias=False)),
    wide("mlp-gelu-layernorm", partial(Mlp, act=F.gelu, norm=nn.LayerNorm)),
    wide("mlp-silu-rmsnorm", partial(Mlp, act=F.silu, norm=nn.RMSNorm, bias=False)),
    wide("mlp-selu-sgd", partial(Mlp, act=F.selu), optimizer="sgd"),
    wide("mlp-relu-sgd", Mlp, optimizer="sgd"),
    wide("mlp-softplus-lion", partial(Mlp, act=F.softplus), optimizer="lion"),
    wide("mlp-relu-muon", Mlp, optimizer="muon"),
    wide("mlp-elu-adam", partial(Mlp, act=F.elu), optimizer="adam"),
    wide("mlp-sine", partial(Mlp, act=torch.sin, bias=False)),
    wide("mlp-one-output", partial(Mlp, act=F.leaky_relu, outputs=1)),
    wide("mlp-batchnorm", partial(Mlp, norm=nn.BatchNorm1d)),
    wide("mlp-sequential-tapered", sequential),
    wide("mlp-maxout", Maxout),
    wide("mlp-glu", GatedMlp),
    wide("highway", Highway),
    wide("densenet-of-vectors", DenseNet),
    wide("three-heads", ManyHeads),
    wide("mixture-density", MixtureDensity),
    wide("autoencoder-narrow-code", Autoencoder),
    wide("autoencoder-wide-code", WideAutoencoder),
    wide("variational-autoencoder", Variational, NOISE),
    wide("two-towers-contrastive", TwoTowers, PAIR),
    wide("siamese", Siamese, PAIR),
    wide("dlrm", Recommender, BAGS),
    wide("bag-of-words", BagOfWords, IDS),
    wide("bag-of-words-sgd", BagOfWords, IDS, optimizer="sgd"),
    wide("deep-sets", DeepSets, SERIES),
    wide("gated-attention-pooling", AttentionPooling, SERIES),
    wide("coupling-flow", Coupling),
    wide("hypernetwork-of-gains", HyperScale, TASK),
    wide("hypernetwork-of-inputs", HyperNetwork, TASK),
    wide("actor-critic", Actor),
    wide("lstm-language-model", partial(Recurrent, kind="LSTM"), IDS),
    wide("gru-language-model", partial(Recurrent, kind="GRU"), IDS),
    wide("rnn-of-series", partial(Recurrent, kind="RNN", ids=False), SERIES),
    wide("lstm-of-series-sgd", partial(Recurrent, ids=False), SERIES, optimizer="sgd"),
    wide("gru-cell-loop", GruCell, SERIES),
    wide("seq2seq-additive-attention", Seq2Seq, PAIR_OF_IDS),
    wide("convnet", ConvNet, IMAGES),
    wide("convnet-batchnorm", partial(ConvNet, norm="batch"), IMAGES),
    wide("convnet-groupnorm-lion", partial(ConvNet, norm="group"), IMAGES, optimizer="lion"),
    wide("convnet-sgd", ConvNet, IMAGES, optimizer="sgd"),
    wide("mobilenet", MobileNet, IMAGES),
    wide("unet", UNet, IMAGES),
    wide("dcgan-generator", Generator),
    wide("text-cnn", TextCnn, IDS),
    wide("gcn", Gcn, GRAPH),
    wide("gat", Gat, GRAPH),
    wide(
        "post-norm-transformer",
        partial(TorchEncoder, norm_first=False),
        SERIES,
        why="Norms after adding spoil the limit of depth, not that of width.",
    ),
    wide("nanogpt-mup", NanoGpt, IDS),
    wide("res-mlp-mup", ResMlp),
    wide("llama-mup-muon", Llama, IDS, optimizer="muon"),
]

RESIDUAL_NETWORKS = [
    deep("res-mlp", ResMlp),
    deep("res-mlp-sgd", ResMlp, optimizer="sgd"),
    deep("res-mlp-lion", ResMlp, optimizer="lion"),
    deep("res-mlp-muon", ResMlp, optimizer="muon"),
    deep("res-mlp-adam", partial(ResMlp, act=F.gelu), optimizer="adam"),
    deep("res-mlp-no-norm", partial(ResMlp, norm=None, last=None)),
    deep("res-mlp-no-norm-sgd", partial(ResMlp, norm=None, last=None), optimizer="sgd"),
    deep("res-mlp-tanh-no-bias", partial(ResMlp, act=torch.tanh, bias=False, last=None)),
    deep("res-mlp-rmsnorm-muon", partial(ResMlp, norm=nn.RMSNorm, times=4), optimizer="muon"),
    deep(
        "res-mlp-over-depth",
        partial(ResMlp, norm=None, last=None, scale=lambda depth: 1 / depth),
        why="The forward pass divides branches by L; the plan must not do it again.",
    ),
    deep(
        "res-mlp-over-root-of-depth",
        partial(ResMlp, scale=lambda depth: depth**-0.5),
        why="The forward pass divides branches by the root of L; the plan adds the other root.",
    ),
    deep(
        "res-mlp-over-depth-sgd",
        partial(ResMlp, scale=lambda depth: 2 / depth),
        optimizer="sgd",
        why="As above; SGD feels the factor twice, in updates and in gradients.",
    ),
    deep("res-mlp-fixed-factor", partial(ResMlp, factor=0.5), why="A factor of no size is none."),
    deep("one-layer-blocks", blocks_of(OneLayer, last=None)),
    deep("one-layer-blocks-bias", blocks_of(OneLayer, bias=True, last=None), optimizer="sgd"),
    deep(
        "one-layer-blocks-depth-mup",
        blocks_of(OneLayer, last=None),
        rule="depth-mup",
        why="One layer to a block: starts as 1/sqrt(L) have the limit of a random walk.",
    ),
    deep(
        "one-layer-blocks-depth-mup-sgd",
        blocks_of(OneLayer, last=None),
        rule="depth-mup",
        optimizer="sgd",
        why="As above, with gradients that are as small as updates may be.",
    ),
    deep(
        "one-layer-over-root-depth-mup",
        blocks_of(OneLayer, last=None, scale=lambda depth: depth**-0.5),
        rule="depth-mup",
        why="The forward pass has the factor of this rule, so starts have none.",
    ),
    deep("three-layer-blocks", blocks_of(ThreeLayers)),
    deep("swiglu-blocks", blocks_of(SwiGluBlock, last=nn.RMSNorm)),
    deep("adapter-blocks", blocks_of(AdapterBlock)),
    deep("layer-scale", blocks_of(LayerScaleBlock)),
    deep(
        "rezero",
        blocks_of(ReZeroBlock, last=None),
        why="A branch that starts at zero is the limit of small starts; its gain moves as 1/L.",
    ),
    deep("learned-branch-gain", blocks_of(partial(ReZeroBlock, start=0.5), last=None)),
    deep("sandwich-norm", blocks_of(SandwichBlock)),
    deep("macaron", blocks_of(MacaronBlock)),
    deep("dense-experts", blocks_of(ExpertsBlock)),
    deep("stacked-experts", blocks_of(StackedExpertsBlock)),
    deep("film-of-time", TimeMlp, TIME),
    deep("film-of-time-from-zero", partial(TimeMlp, zero=True), TIME),
    deep(
        "resnet-groupnorm", partial(ImageStack, block=partial(PreActBlock, norm=group_norm)), IMAGES
    ),
    deep(
        "resnet-groupnorm-sgd",
        partial(ImageStack, block=partial(PreActBlock, norm=group_norm)),
        IMAGES,
        optimizer="sgd",
    ),
    deep(
        "resnet-batchnorm",
        partial(ImageStack, block=partial(PreActBlock, norm=nn.BatchNorm2d)),
        IMAGES,
    ),
    deep("convnext", partial(ImageStack, block=ConvNextBlock), IMAGES),
    deep(
        "convnext-no-scale", partial(ImageStack, block=partial(ConvNextBlock, scale=False)), IMAGES
    ),
    deep("squeeze-excite", partial(ImageStack, block=SqueezeBlock), IMAGES),
    deep("inverted-bottleneck", partial(ImageStack, block=InvertedBlock), IMAGES),
    deep("mlp-mixer", PatchMixer, IMAGES),
    deep("wavenet", WaveNet, SERIES),
    deep("residual-gcn", GraphStack, GRAPH),
    deep("residual-gat", partial(GraphStack, attention=True), GRAPH),
]

TRANSFORMERS = [
    deep("nanogpt-tied", NanoGpt, IDS),
    deep("nanogpt-untied", partial(NanoGpt, tied=False), IDS),
    deep("nanogpt-bias-muon", partial(NanoGpt, tied=False, bias=True), IDS, optimizer="muon"),
    deep("nanogpt-lion", partial(NanoGpt, tied=False), IDS, optimizer="lion"),
    deep("nanogpt-default-starts", partial(NanoGpt, tied=False, starts=False), IDS),
    deep("gpt2-transposed", Gpt2, IDS),
    deep("llama", Llama, IDS),
    deep("llama-grouped-keys", partial(Llama, group=2), IDS),
    deep("llama-qk-norm", partial(Llama, qk_norm=True), IDS),
    deep("llama-tied", partial(Llama, tied=True), IDS),
    deep(
        "llama-root-of-width",
        partial(Llama, root=True),
        IDS,
        why="Embeddings times the root of the width, as in Gemma, start and train lower by it.",
    ),
    deep("llama-muon", Llama, IDS, optimizer="muon"),
    deep("llama-sgd", Llama, IDS, optimizer="sgd"),
    deep(
        "growing-heads-over-size",
        mixing(partial(Heads, power=1.0)),
        IDS,
        why="Heads grow, and logits over their size stay, as muP wants it.",
    ),
    deep("learned-positions", mixing(TorchAttention), IDS),
    deep("sinusoidal-positions", mixing(TorchAttention, positions="waves"), IDS),
    deep("alibi", mixing(AlibiAttention, positions="none"), IDS),
    deep("einsum-attention", mixing(EinsumAttention), IDS),
    deep("parallel-branches", mixing(ParallelLayer, positions="none"), IDS),
    deep("linear-attention", mixing(LinearAttention), IDS),
    deep("gated-recurrence", mixing(GatedRecurrence, positions="none"), IDS),
    deep("diagonal-state-space", mixing(DiagonalStates, positions="none"), IDS),
    deep("residual-gru", mixing(RecurrentMixing, positions="none"), IDS),
    deep("fourier-mixing", mixing(FourierMixing), IDS),
    deep("gated-mlp-of-positions", mixing(GatedPositions), IDS),
    deep("pre-norm-encoder", TorchEncoder, SERIES),
    deep("pre-norm-encoder-gelu-muon", partial(TorchEncoder, act="gelu"), SERIES, optimizer="muon"),
    deep("pre-norm-encoder-decoder", TorchSeq2Seq, PAIR_OF_IDS),
    deep("t5", T5, PAIR_OF_IDS),
    deep("vit-class-token", Vit, IMAGES),
    deep("vit-mean-of-patches", partial(Vit, token=False), IMAGES),
    deep("swin", Swin, IMAGES),
    deep("perceiver", Perceiver, SERIES),
    deep("diffusion-transformer-from-zero", Dit, DENOISED),
    deep("diffusion-transformer", partial(Dit, zero=False), DENOISED),
    deep("tabular-transformer", Tabular, (ROWS, tokens(8, 2))),
    deep("clip", Clip, (IMAGES, IDS)),
    deep("bert-pre-norm", Bert, SEGMENTS),
    deep("reward-model", Reward, IDS),
    deep("decision-transformer", Actions, GAME),
]

HARMLESS_EDITS = [
    deep(
        "all-starts-halved",
        ResMlp,
        edit=start_times(("blocks.*.up.weight", "blocks.*.down.weight"), by=0.5),
        why="A constant that is the same at every size belongs to the base.",
    ),
    deep(
        "all-rates-doubled",
        partial(NanoGpt, tied=False),
        IDS,
        edit=rate_times("*", by=2.0),
        why="A constant that is the same at every size belongs to the base.",
    ),
    deep(
        "readout-faster-by-a-constant",
        Llama,
        IDS,
        edit=rate_times("lm_head.weight", by=3.0),
        why="A constant that is the same at every size belongs to the base.",
    ),
    deep(
        "readout-from-zero",
        ResMlp,
        edit=start_times("head.weight", by=0.0),
        why="Readouts that start at zero have a limit, the one of starts smaller than 1/n.",
    ),
    deep(
        "branches-from-zero",
        ResMlp,
        edit=start_times("blocks.*.down.weight", by=0.0),
        why="Branches that start at zero have a limit, the one of starts smaller than 1/L.",
    ),
    deep(
        "readout-called-hidden",
        ResMlp,
        roles={"head.weight": "hidden"},
        why="Where outputs do not grow, a hidden matrix starts and trains as a readout.",
    ),
    wide(
        "slower-readout-and-larger-embedding",
        BagOfWords,
        IDS,
        edit=both(rate_times("fc.weight", by=0.5), start_times("words.weight", by=2.0)),
        why="Constants that are the same at every size belong to the base.",
    ),
]

DISPUTED = [
    deep(
        "few-keys",
        partial(Llama, keys=1),
        IDS,
        disputed=True,
        why="One key for all heads: whether its matrix starts as in^-1/2 or in^-1 is a convention.",
    ),
    deep(
        "low-rank-update",
        blocks_of(LowRankBlock),
        disputed=True,
        why="Rates of thin matrices of fixed rank are a convention (LoRA, LoRA+).",
    ),
    deep(
        "selective-scan",
        mixing(SelectiveScan, positions="none"),
        IDS,
        disputed=True,
        why="A few states are made from a growing stream, and two of them meet in a product.",
    ),
    wide(
        "two-towers-fixed-code",
        partial(TwoTowers, code=6),
        PAIR,
        disputed=True,
        why="A norm behind a readout undoes its small start, so that updates outgrow it.",
    ),
    deep(
        "res-mlp-depth-mup",
        ResMlp,
        rule="depth-mup",
        disputed=True,
        why="In blocks of two layers the inner ones learn less and less under this rule.",
    ),
    deep(
        "nanogpt-depth-mup",
        partial(NanoGpt, tied=False),
        IDS,
        rule="depth-mup",
        disputed=True,
        why="In blocks of two layers the inner ones learn less and less under this rule.",
    ),
    wide(
        "nerf",
        Nerf,
        POINTS,
        disputed=True,
        why="One matrix reads inputs that grow and some that do not: its fan-in is neither.",
    ),
    deep(
        "best-two-experts",
        blocks_of(partial(ExpertsBlock, best=2)),
        disputed=True,
        why="Which experts are best is decided by scores that start at zero in the limit.",
    ),
]

SOUND = [*PLAIN_NETWORKS, *RESIDUAL_NETWORKS, *TRANSFORMERS, *HARMLESS_EDITS, *DISPUTED]
