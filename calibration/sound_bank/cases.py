"""The cases of the bank: sound networks, and one mistake for about half of them.

Why a network is sound is one of two sentences. Without a stream (``wide``): every matrix sums over
features that grow, or over a fixed number, and muP is right for it by its fans; only width is
promised. With a stream (``deep``): branches and their updates shrink as 1/L as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from calibration.sound_bank import data, losses, plain, residual
from calibration.sound_bank.data import LENGTH, SYMBOLS, MakeBatches
from calibration.sound_bank.plain import Mish, Views
from calibration.sound_bank.residual import (
    Attention,
    Ffn,
    GatedFfn,
    GrowingHeads,
    Images,
    Stream,
    pixels,
    squared_relu,
    symbols,
)
from nfd.core.names import RuleName

BASE = (32, 2)
MakeModel = Callable[..., nn.Module]
Powers = Mapping[str, tuple[float, float]]
Axes = Literal["width", "both"]


@dataclass(frozen=True)
class Mistake:
    """What a user who scales by hand does wrong.

    Attributes:
        says: the mistake in words.
        std, rate: by pattern of names, the powers of the ratios of width and of depth by which
            initial weights and rates are wrong.
        code: arguments of the model that are wrong, as functions of width and depth.
        eps: of Adam, where it is not 1e-8.
        optimised: how many blocks of every stack are in the optimizer; None for all.
        decay: AdamW's, which does not follow the rates.
        of_plan: for a mistake in the code that a plan would not see, the same in a plan: powers of
            ``std`` and ``rate`` of these patterns. None where no plan can have this mistake.
        axis: the size along which it grows.
    """

    says: str
    std: Powers = field(default_factory=dict)
    rate: Powers = field(default_factory=dict)
    code: Mapping[str, Callable[[int, int], Any]] = field(default_factory=dict)
    eps: float = 1e-8
    optimised: int | None = None
    decay: float = 0.0
    of_plan: Powers = field(default_factory=dict)
    axis: Literal["width", "depth"] = "width"

    @property
    def is_of_loop(self) -> bool:
        """Whether it is made in the training loop, so that no plan has it."""
        return self.eps != 1e-8 or self.optimised is not None or self.decay != 0


@dataclass(frozen=True)
class Case:
    """A network at every size, what it is trained on, and the rule under which it is sound.

    Attributes:
        name: a unique name.
        make_model: a function of width and depth; of ``factor`` too where ``axes`` is "both" and
            there is a mistake.
        batches: of steps and seed.
        rule, optimizer, lr: under which it is sound.
        axes: the sizes that its rule promises.
        loss, options: of ``nfd.Task``.
        mistake: of its broken twin.
        unsound: why a closer look showed that it is not sound after all, by variant. Its answer
            stays, and does not count.
    """

    name: str
    make_model: MakeModel
    batches: MakeBatches
    rule: RuleName
    optimizer: str
    lr: float
    axes: Axes
    loss: Any = "cross-entropy"
    options: Mapping[str, Any] = field(default_factory=dict)
    mistake: Mistake | None = None
    unsound: Mapping[str, str] = field(default_factory=dict)


# What two cases lack, found by looking into the alarms that they raised.
SIDE_BY_SIDE = (
    "one matrix reads features and inputs side by side, and its fan-in is that of the features, so "
    "that the input fades with width"
)
OF_RECURRENT = "PyTorch draws the matrix of its inputs by the width, which ours by hand forgot"
LR = {"adamw": 3e-3, "adam": 3e-3, "sgd": 0.1, "muon": 0.02}


def wide(
    name: str, make_model: MakeModel, batches: MakeBatches = data.vectors, **more: Any
) -> Case:
    """A network without a stream, under muP."""
    optimizer = more.pop("optimizer", "adamw")
    lr = more.pop("lr", LR[optimizer])
    return Case(name, make_model, batches, "mup", optimizer, lr, "width", **more)


def deep(
    name: str, make_model: MakeModel, batches: MakeBatches = data.vectors, **more: Any
) -> Case:
    """A residual network, under CompleteP."""
    optimizer = more.pop("optimizer", "adamw")
    lr = more.pop("lr", LR[optimizer])
    rule = more.pop("rule", "complete-p")
    return Case(name, make_model, batches, rule, optimizer, lr, "both", **more)


def cosine(step: int, steps: int) -> float:
    """A cosine to zero after a warm-up of three steps."""
    warm = min(1.0, (step + 1) / 3)
    return warm * 0.5 * (1 + float(torch.cos(torch.tensor(torch.pi * step / steps))))


def falling(step: int, steps: int) -> float:
    """A line to zero."""
    return 1 - step / steps


def nesterov(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """SGD with Nesterov's momentum."""
    return torch.optim.SGD(groups, momentum=0.9, nesterov=True)


def root(width: int, depth: int) -> float:
    """A branch factor of the root of the depth."""
    return float((BASE[1] / depth) ** 0.5)


def none(width: int, depth: int) -> float:
    """No branch factor."""
    return 1.0


def half(width: int, depth: int) -> float:
    """The power of 1/sqrt(d) in attention, or in an inner product."""
    return 0.5


def half_heads(width: int, depth: int) -> tuple[Any, Any]:
    """Branches whose attention has this power."""
    return partial(GrowingHeads, power=0.5), partial(Ffn, act=F.relu)


def root_of_width(width: int, depth: int) -> Callable[[int], float]:
    """The stream is multiplied by the root of the width."""
    return lambda n: float((n / BASE[0]) ** 0.5)


def forgotten(*patterns: str) -> Powers:
    """Rates that do not fall with the width."""
    return dict.fromkeys(patterns, (1.0, 0.0))


def times(power: float, *patterns: str) -> Powers:
    """A power of the width."""
    return dict.fromkeys(patterns, (power, 0.0))


def unread(head: str) -> Mistake:
    """A readout without its 1/n."""
    return Mistake("the readout lacks its 1/n", std=times(0.5, head), rate=forgotten(head))


def branches(make: Callable[[int, int], float], *writers: str) -> Mistake:
    """Branches that are not divided by the depth."""
    power = 0.5 if make is root else 1.0
    words = "1/sqrt(L) for 1/L" if make is root else "no factor of depth"
    return Mistake(
        f"branches have {words}",
        code={"factor": make},
        of_plan=dict.fromkeys(writers, (0.0, power)),
        axis="depth",
    )


TEXT: dict[str, Any] = {"read": symbols, "outputs": SYMBOLS}
ROWS: dict[str, Any] = {"read": pixels, "pool": True, "places": 8}
PLAIN = [
    wide(
        "mish mlp",
        Mish,
        mistake=Mistake("hidden rates do not fall", rate=forgotten("layers.[1-9].weight")),
    ),
    wide(
        "mish mlp, cosine and decay",
        Mish,
        options={"schedule": cosine, "weight_decay": 0.1},
    ),
    wide(
        "regression, huber",
        partial(Mish, inputs=8, outputs=2),
        data.curves,
        loss=losses.huber,
        options={"schedule": falling},
    ),
    wide("quantiles", partial(Mish, inputs=8, outputs=6), data.curves, loss=losses.pinball),
    wide(
        "mish mlp, nesterov", Mish, optimizer="sgd", lr=0.03, options={"make_optimizer": nesterov}
    ),
    wide("mish mlp, adam", Mish, optimizer="adam"),
    wide(
        "mish mlp, muon",
        Mish,
        optimizer="muon",
        options={"adamw_lr": 3e-3, "weight_decay": 0.01},
    ),
    wide(
        "input at every layer",
        plain.InputEverywhere,
        data.curves,
        loss="mse",
        mistake=unread("last.weight"),
        unsound=dict.fromkeys(("planned", "by hand", "sound"), SIDE_BY_SIDE),
    ),
    wide(
        "bilinear layers",
        plain.Bilinear,
        mistake=Mistake(
            "hidden rates fall as the root",
            rate=times(0.5, "left.*.weight", "right.*.weight", "mix.*.weight"),
        ),
    ),
    wide(
        "random frequencies",
        plain.Fourier,
        data.curves,
        loss="mse",
        mistake=Mistake(
            "the first layer starts by its fan-out", std=times(-0.5, "body.layers.0.weight")
        ),
    ),
    wide(
        "deep-o-net",
        plain.DeepONet,
        data.operators,
        loss="mse",
        mistake=Mistake("the inner product is over sqrt(n)", code={"power": half}),
    ),
    wide("wide and deep", plain.WideAndDeep, optimizer="sgd"),
    wide(
        "factorisation machine",
        plain.FactorMachine,
        data.tables,
        mistake=Mistake(
            "tables scale as hidden matrices",
            std=times(-0.5, "tables.*.weight"),
            rate=times(-1, "tables.*.weight"),
        ),
    ),
    wide(
        "gru both ways",
        plain.BothWays,
        data.rows,
        mistake=Mistake("recurrent rates do not fall", rate=forgotten("layer.weight_hh_*")),
        unsound={"by hand": OF_RECURRENT},
    ),
    wide("lstm both ways, sgd", partial(plain.BothWays, kind="LSTM"), data.rows, optimizer="sgd"),
    wide(
        "minimal gru",
        plain.MinGru,
        data.words,
        mistake=Mistake("the table's rate falls", rate=times(-1, "symbols.weight")),
    ),
    wide("independent rnn", plain.IndRnn, data.series, loss="mse"),
    wide(
        "normed elman",
        plain.NormedElman,
        data.words,
        mistake=Mistake("one std at every width", std=times(0.5, "across.weight", "up.weight")),
    ),
    wide("frozen first layer", plain.RandomFeatures, optimizer="sgd"),
    wide(
        "point net, sgd",
        plain.PointNet,
        data.clouds,
        optimizer="sgd",
        mistake=Mistake(
            "one rate for all under SGD",
            rate={**times(-1, "one.*", "two.bias", "three.bias"), **times(1, "write.weight")},
        ),
    ),
    wide("set pooling", plain.SetPooling, data.clouds),
    wide(
        "gin",
        plain.Gin,
        data.graphs,
        mistake=Mistake("half of the rates do not fall", rate=forgotten("down.*.weight")),
    ),
    wide(
        "graph sage",
        plain.Sage,
        data.graphs,
        mistake=Mistake(
            "one rate over n for all", rate=times(-1, "node.0.weight", "near.0.weight", "*.bias")
        ),
    ),
    wide("continuous filter", plain.ContinuousFilter, data.clouds),
    wide(
        "vgg",
        plain.Vgg,
        data.images,
        mistake=Mistake("rates of convolutions do not fall", rate=forgotten("convolutions.[12].*")),
    ),
    wide(
        "groups of 8 channels",
        plain.Grouped,
        data.images,
        mistake=Mistake(
            "a grouped convolution's rate falls by its channels", rate=times(-1, "inside.*.weight")
        ),
    ),
    wide("4 groups of channels", partial(plain.Grouped, groups=4), data.images),
    wide(
        "causal convolutions",
        plain.Causal,
        data.series,
        loss="mse",
        mistake=Mistake("the readout starts by its fan-out", std=times(1, "write.weight")),
    ),
    wide("weight norm", plain.WeightNormed, data.curves, loss="mse"),
    wide(
        "u-net of time",
        plain.HourglassOfTime,
        data.series,
        loss="mse",
        mistake=Mistake("the bottom's rate does not fall", rate=forgotten("middle.weight")),
    ),
    wide(
        "contrast",
        Views,
        data.views,
        loss=losses.contrast,
        mistake=unread("project.weight"),
    ),
    wide("barlow twins", partial(Views, normed=True), data.views, loss=losses.redundancy, lr=1e-3),
    wide("triplets", Views, data.views, loss=losses.triplets, optimizer="sgd"),
    wide(
        "two tasks",
        plain.TwoTasks,
        data.tasks,
        loss=losses.two_tasks,
        mistake=unread("odd.weight"),
    ),
    wide(
        "mixture of layers",
        plain.Mixture,
        mistake=Mistake("rates of experts do not fall", rate=forgotten("experts.*.weight")),
    ),
    wide("both signs", plain.BothSigns, optimizer="sgd"),
    wide(
        "siren",
        plain.Siren,
        data.curves,
        loss="mse",
        lr=1e-3,
        mistake=Mistake("hidden rates fall as the root", rate=times(0.5, "layers.*.weight")),
    ),
    wide("functions on edges", plain.EdgeFunctions, data.curves, loss="mse"),
    wide("diagonal blocks", plain.BlockDiagonal),
    wide("dropout", plain.Dropped),
    wide("n-beats", plain.Beats, data.series, loss="mse"),
    wide(
        "one attention, growing head",
        plain.OverTokens,
        data.sums,
        mistake=Mistake("logits over the root of the growing head", code={"power": half}),
    ),
]
RESIDUAL = [
    deep(
        "gpt, rotary, normed keys",
        partial(
            Stream,
            branches=(
                partial(Attention, rotary=True, normed=True),
                partial(Ffn, times=4, act=squared_relu),
            ),
            norm=nn.RMSNorm,
            **TEXT,
        ),
        data.words,
        mistake=branches(root, "blocks.*.o.weight", "blocks.*.down.*"),
    ),
    deep(
        "gpt, one key, window, tied",
        partial(
            Stream,
            branches=(partial(Attention, keys=1, window=4), GatedFfn),
            tied=True,
            places=LENGTH,
            **TEXT,
        ),
        data.words,
    ),
    deep(
        "gpt, capped logits",
        partial(Stream, branches=(Attention, GatedFfn), cap=15.0, norm=nn.RMSNorm, **TEXT),
        data.words,
        options={"schedule": cosine, "weight_decay": 0.1},
    ),
    deep(
        "gpt, grouped keys",
        partial(Stream, branches=(partial(Attention, shared=2, rotary=True), Ffn), **TEXT),
        data.words,
        mistake=Mistake(
            "the rate of one matrix does not fall", rate=forgotten("blocks.*.o.weight")
        ),
    ),
    deep(
        "gpt, muon",
        partial(
            Stream,
            branches=(partial(Attention, rotary=True, normed=True), Ffn),
            norm=nn.RMSNorm,
            **TEXT,
        ),
        data.words,
        optimizer="muon",
        options={"adamw_lr": 3e-3},
    ),
    deep(
        "growing heads",
        partial(
            Stream, branches=(GrowingHeads, Ffn), places=LENGTH, read=partial(nn.Embedding, 10)
        ),
        data.sums,
    ),
    deep(
        "talking heads", partial(Stream, branches=(residual.TalkingHeads, Ffn), **ROWS), data.rows
    ),
    deep(
        "difference of attentions",
        partial(Stream, branches=(residual.Differential, GatedFfn), norm=nn.RMSNorm, **TEXT),
        data.words,
    ),
    deep(
        "latent keys",
        partial(Stream, branches=(residual.Latent, Ffn), places=LENGTH, **TEXT),
        data.words,
    ),
    deep(
        "retention",
        partial(Stream, branches=(residual.Retention, Ffn), **TEXT),
        data.words,
        mistake=Mistake(
            "the table scales as a hidden matrix",
            std=times(-0.5, "read.weight"),
            rate=times(-1, "read.weight"),
        ),
    ),
    deep(
        "learned decay",
        partial(Stream, branches=(residual.LearnedDecay, Ffn), **TEXT),
        data.words,
        mistake=Mistake(
            "the stream is multiplied by sqrt(n)",
            code={"times": root_of_width},
        ),
    ),
    deep(
        "long filters",
        partial(Stream, branches=(residual.LongFilter, Ffn), **TEXT),
        data.words,
        mistake=Mistake(
            "filters scale as hidden matrices",
            std=times(-0.5, "blocks.*.filter"),
            rate=times(-1, "blocks.*.filter"),
        ),
    ),
    deep("pooling", partial(Stream, branches=(residual.Pooling, Ffn), **ROWS), data.rows),
    deep(
        "conformer",
        partial(
            Stream,
            branches=(Ffn, partial(Attention, causal=False), residual.LocalConv, Ffn),
            **ROWS,
        ),
        data.rows,
        mistake=Mistake(
            "a depthwise convolution's rate falls", rate=times(-1, "blocks.*.along.weight")
        ),
    ),
    deep(
        "soft mixture of experts",
        partial(Stream, branches=(partial(Attention, causal=False), residual.SoftMoe), **ROWS),
        data.rows,
        mistake=Mistake(
            "the router scales as nothing",
            std=times(1, "blocks.*.slots.weight"),
            rate=forgotten("blocks.*.slots.weight"),
        ),
    ),
    deep(
        "top two of four experts",
        partial(Stream, branches=(Attention, residual.TopTwo), norm=nn.RMSNorm, **TEXT),
        data.words,
        mistake=Mistake(
            "rates of experts do not fall",
            rate=forgotten("blocks.*.experts.*.weight"),
        ),
    ),
    deep("fused block", partial(Stream, branches=(residual.Fused,), **ROWS), data.rows),
    deep(
        "sigmoid attention",
        partial(Stream, branches=(partial(Attention, sigmoid=True), Ffn), places=LENGTH, **TEXT),
        data.words,
    ),
    deep(
        "masked rows",
        partial(
            Stream,
            branches=(partial(Attention, causal=False), Ffn),
            read=pixels,
            places=8,
            outputs=8,
        ),
        data.masked,
        loss="mse",
    ),
    deep("gated branches", partial(Stream, branches=(residual.Gate,))),
    deep(
        "gated branches, nesterov",
        partial(Stream, branches=(residual.Gate,)),
        optimizer="sgd",
        lr=0.03,
        options={"make_optimizer": nesterov},
    ),
    deep(
        "bilinear branches",
        partial(Stream, branches=(residual.BilinearFfn,), norm=nn.RMSNorm),
        mistake=branches(none, "blocks.*.c.weight"),
    ),
    deep(
        "one matrix, no norm",
        partial(Stream, branches=(residual.OneMatrix,), norm=nn.Identity),
        rule="depth-mup",
        optimizer="sgd",
    ),
    deep(
        "residual convolutions, sgd",
        Images,
        data.images,
        optimizer="sgd",
        mistake=Mistake(
            "rates of blocks lack their factor L",
            rate={"blocks.*": (0.0, -1.0)},
            axis="depth",
        ),
    ),
    deep(
        "large depthwise convolutions",
        partial(Images, make=residual.DepthwiseSpace),
        data.images,
        options={"weight_decay": 0.05},
    ),
    deep(
        "vit with registers",
        residual.RegisterVit,
        data.images,
        mistake=branches(none, "blocks.*.ls[12]"),
    ),
    deep(
        "gated gcn",
        residual.GraphNet,
        data.graphs,
        mistake=branches(root, "blocks.*.mixing.out.*", "blocks.*.ffn.down.*"),
    ),
    deep(
        "graph transformer",
        partial(residual.GraphNet, make=residual.GraphAttention),
        data.graphs,
    ),
    deep(
        "point transformer",
        residual.PointTransformer,
        data.clouds,
        mistake=branches(none, "blocks.*.out.*"),
    ),
    deep(
        "coarse in the middle",
        residual.Coarsened,
        data.rows,
        mistake=Mistake("the optimizer has two blocks a stack", optimised=2, axis="depth"),
    ),
    deep(
        "conditioned by a query",
        residual.Conditioned,
        data.operators,
        loss="mse",
        mistake=Mistake("Adam's epsilon is 0.001", eps=1e-3),
    ),
    deep(
        "value residual",
        residual.ValueResidual,
        data.words,
        mistake=Mistake("decay does not follow the rates", decay=0.3),
    ),
    deep(
        "rows and columns",
        residual.TwoSenses,
        data.rows,
        mistake=Mistake(
            "one stack's rates do not fall",
            rate=forgotten(
                "column_blocks.*.[qkvo].weight",
                "column_blocks.*.up.weight",
                "column_blocks.*.down.weight",
            ),
        ),
    ),
    deep(
        "two tokens ahead",
        residual.SeveralTokens,
        data.words,
        loss=losses.every_token,
        mistake=unread("heads.*.weight"),
    ),
    deep("pytorch encoder", residual.PyTorchEncoder, data.words),
    deep(
        "pytorch encoder, muon",
        residual.PyTorchEncoder,
        data.words,
        optimizer="muon",
        options={"adamw_lr": 3e-3},
    ),
    deep("mixed nodes", residual.OneToken, data.graphs),
    deep(
        "half of the width in heads",
        partial(Stream, branches=(GrowingHeads, partial(Ffn, act=F.relu)), **ROWS),
        data.rows,
        mistake=Mistake(
            "logits over the root of growing heads",
            code={"branches": half_heads},
        ),
    ),
]
CASES = [*PLAIN, *RESIDUAL]
BY_NAME = {case.name: case for case in CASES}
BROKEN = [case for case in CASES if case.mistake is not None]
