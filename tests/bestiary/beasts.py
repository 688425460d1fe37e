"""Twenty scaling bugs of public code in our own words, each with a sound twin that differs by one
argument.

Most users scale by code of their own, here that of ``tests.bestiary.gpt``, and ask ``nfd.check``
with ``rule="standard"``, which leaves it as it is. Some take a plan, and err in the loop:
``nfd.Watch`` looks at them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from tests.bestiary.gpt import (
    BASE_DEPTH,
    BASE_WIDTH,
    EXPERTS,
    GPT,
    HEAD,
    MLP,
    MUON_TABLE,
    TABLE,
    Attention,
    Block,
    Optimizer,
    Row,
    Size,
    adamw,
    batches,
    is_decayed,
    muon,
    parameters,
    task,
)
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import nfd

Cause = Literal["start", "update", "rate", "decay", "epsilon", "attention", "multiplier"]
MakeModel = Callable[[int, int], nn.Module]
Asked = tuple[MakeModel, nfd.Task]


@dataclass(frozen=True)
class Beast:
    """A bug and its twin.

    Attributes:
        name: of the bug. source: the repository and file, or the thread, where it stands or stood.
            says: what it does.
        make: from whether the twin is meant to the model and its task; under ``ask="watch"`` to a
            watch that has run.
        layers: kinds of tensors, one of which an answer must name. causes: one of these it must say
            of it.
        axis: along which the fault grows; None where it does not.
        optimizer: what the user tells nfd that it is.
    """

    name: str
    source: str
    says: str
    make: Callable[[bool], Any]
    layers: tuple[str, ...]
    causes: tuple[Cause, ...]
    ask: Literal["check", "watch"] = "check"
    axis: Literal["width", "depth"] | None = "width"
    optimizer: str = "adamw"
    lr: float = 3e-3
    sizes: tuple[tuple[int, ...], tuple[int, ...]] = field(default=((32, 64, 128, 256), (2,)))


DEEP = ((32,), (2, 4, 8))
NORMS = ("blocks.*.norm1.weight", "blocks.*.norm2.weight", "norm.weight")
INNER = ("blocks.*.attn.qkv.weight", "blocks.*.mlp.up.weight")
MATRICES = (*INNER, "blocks.*.attn.proj.weight", "blocks.*.mlp.down.weight")
BEASTS: list[Beast] = []


def beast(**about: Any) -> Callable[[Callable[[bool], Any]], Callable[[bool], Any]]:
    """Add what a function makes of ``sound`` to the bestiary."""

    def add(make: Callable[[bool], Any]) -> Callable[[bool], Any]:
        BEASTS.append(Beast(make.__name__, about.pop("source"), make.__doc__ or "", make, **about))
        return make

    return add


def scaled(rows: dict[str, Row], make: Callable[..., Optimizer] = adamw, **options: Any) -> Asked:
    """The GPT under a user's table."""
    return (lambda width, depth: GPT(Size(width, depth, {**TABLE, **rows}))), task(make, **options)


# ---- rates


@beast(
    source="karpathy/nanochat, nanochat/gpt.py: unembedding_lr",
    layers=("head.weight",),
    causes=("update",),
)
def head_rate_by_root(sound: bool) -> Asked:
    """The head's rate under AdamW falls as the root of the width; a sum over it needs 1/n."""
    return scaled({"head": Row(std=-1.0, rate=-1.0 if sound else -0.5)})


@beast(
    source="karpathy/nanochat, nanochat/gpt.py: embedding_lr",
    layers=("tokens.weight",),
    causes=("update",),
)
def embedding_rate_by_root(sound: bool) -> Asked:
    """The embedding's rate under AdamW falls as the root of the width; nothing adds up over it."""
    return scaled({"input": Row(rate=0.0 if sound else -0.5)})


class Skipped(Attention):
    """Attention beside a gain for every channel, as state-space layers have."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.D = size.mark(nn.Parameter(torch.ones(size.width)), "gain")

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the stream."""
        return self.proj(self.attend(*self.split(x)).transpose(1, 2).flatten(2) + self.D * x)


@beast(
    source="open-lm-engine/lm-engine, pull request 515, configs/param-groups/mup.yml",
    layers=("blocks.*.attn.D",),
    causes=("update",),
)
def vector_in_the_catch_all(sound: bool) -> Asked:
    """Everything but norms and embeddings takes 1/n of the rate, gains of channels, too."""
    table = {**TABLE, "gain": Row(rate=0.0 if sound else -1.0)}
    return (lambda width, depth: GPT(Size(width, depth, table), attention=Skipped)), task(adamw)


@beast(
    source="scottsuk0306/lingua, apps/mup/optim.py",
    layers=MATRICES,
    causes=("update",),
)
def names_of_another_model(sound: bool) -> Asked:
    """The matrices whose rates fall have the names of another model; none is found."""
    return scaled({} if sound else {"hidden": Row(-0.5), "outer": Row(-0.5, 0.0, -1.0, -1.0)})


# ---- the head


class Readout(GPT):
    """Logits divided by m: Tensor Programs V, table 8."""

    def logits(self, h: Tensor) -> Tensor:
        """What the head makes of the stream, as small as the width is large."""
        return self.head(h) / self.size.m


@beast(
    source="OpenBioML/protein-lm-scaling, pull request 64, model_pytorch.py",
    layers=("head.weight",),
    causes=("start", "update"),
)
def no_readout(sound: bool) -> Asked:
    """The head is a plain layer, and the optimizer leaves heads to a readout's factor."""
    table = {**TABLE, "head": Row() if sound else Row(std=-0.5)}
    return (lambda width, depth: (Readout if sound else GPT)(Size(width, depth, table))), task(
        adamw
    )


@beast(
    source="michaelellis003/lmxlab, src/lmxlab/training/optimizers.py and models/base.py",
    layers=("head.weight",),
    causes=("update",),
)
def readout_twice(sound: bool) -> Asked:
    """Logits are divided by m, and the head's rate under AdamW is, too."""
    table = {**TABLE, "head": Row(rate=0.0 if sound else -1.0)}
    return (lambda width, depth: Readout(Size(width, depth, table))), task(adamw)


class Tied(GPT):
    """A head that is the embedding, its logits divided by a power of m."""

    def __init__(self, size: Size, power: int) -> None:
        super().__init__(size)
        self.head.weight = self.tokens.weight
        self.power = power

    def logits(self, h: Tensor) -> Tensor:
        """Products with every row of the embedding."""
        return self.head(h) / (BASE_WIDTH * self.size.m**self.power)


@beast(
    source="EleutherAI/gpt-neox, pull request 1087, megatron/mpu/layers.py",
    layers=("tokens.weight", "head.weight", "norm.weight"),
    causes=("multiplier", "start"),
)
def tied_head_scaled_twice(sound: bool) -> Asked:
    """A tied head is divided by m before and after its product."""
    return (lambda width, depth: Tied(Size(width, depth), 1 if sound else 2)), task(adamw)


# ---- starts


@beast(
    source="karpathy/nanoGPT, model.py, _init_weights: std=0.02", layers=MATRICES, causes=("start",)
)
def constant_start(sound: bool) -> Asked:
    """Matrices start alike at all widths, beside the rates of muP."""
    same = {"hidden": Row(0.0, -1.0), "outer": Row(0.0, -1.0, -1.0, -1.0), "head": Row(0.0, -1.0)}
    return scaled({} if sound else same)


@beast(
    source="EleutherAI/gpt-neox, pull request 1087, megatron/model/init_functions.py",
    layers=INNER,
    causes=("start",),
)
def start_divided_once_more(sound: bool) -> Asked:
    """Matrices are drawn by their fans, and then divided by m as well."""
    return scaled({} if sound else {"hidden": Row(-1.5, -1.0)})


class Experts(nn.Module):
    """A mean over experts, whose matrices lie in stacks of [experts, in, out]."""

    def __init__(self, size: Size, alone: bool) -> None:
        super().__init__()
        n = size.width
        self.up, self.down = (
            nn.Parameter(torch.empty(EXPERTS, *fans)) for fans in ((n, 2 * n), (2 * n, n))
        )
        for stack, kind in ((self.up, "hidden"), (self.down, "outer")):
            for part in [matrix.T for matrix in stack.data] if alone else [stack.data]:
                # its fan-in: all dimensions but the first
                nn.init.kaiming_uniform_(part, a=math.sqrt(5))
            size.mark(stack, kind)

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the stream."""
        made = [F.gelu(x @ up) @ down for up, down in zip(self.up, self.down, strict=True)]
        return torch.stack(made).mean(0)


@beast(
    source="pytorch/torchtune, torchtune/modules/moe/experts.py, reset_parameters",
    layers=("blocks.*.mlp.up", "blocks.*.mlp.down"),
    causes=("start",),
)
def fan_of_a_stack(sound: bool) -> Asked:
    """The fan-in of a stack of experts is taken for in times out."""
    return (lambda width, depth: GPT(Size(width, depth), mlp=partial(Experts, alone=sound))), task(
        adamw
    )


@beast(
    source="karpathy/llama2.c, issue 579, model.py: w3 for w2",
    layers=("blocks.*.mlp.down.weight", "blocks.*.mlp.up.weight"),
    causes=("start",),
    axis="depth",
    sizes=DEEP,
)
def branch_unscaled(sound: bool) -> Asked:
    """One of two branches is not scaled by depth: a list has another layer's name."""
    shrinks = TABLE["outer"]
    rows = {"down": shrinks, "up": TABLE["hidden"]}
    if not sound:
        rows = {"down": shrinks._replace(std_l=0.0), "up": TABLE["hidden"]._replace(std_l=-1.0)}
    table = {**TABLE, **rows}
    return (
        lambda width, depth: GPT(Size(width, depth, table), mlp=partial(MLP, kinds=("up", "down")))
    ), task(adamw)


# ---- attention and Muon


class FewHeads(Attention):
    """Two heads, which grow with the width."""

    power = -1.0

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.heads = 2

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Values, mixed by logits that a power of the size of heads scales."""
        scale = HEAD**-0.5 * (q.shape[-1] / HEAD) ** self.power
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


class FewHeadsByRoot(FewHeads):
    """The same as most libraries scale it."""

    power = -0.5


@beast(
    source="charliezchen/scaling-matrix-preconditioning, issue 2",
    layers=("blocks.*.attn.qkv.weight",),
    causes=("attention",),
)
def attention_by_root(sound: bool) -> Asked:
    """Attention divides by the root of the size of heads, which grows with width here."""
    attention = FewHeads if sound else FewHeadsByRoot
    return (lambda width, depth: GPT(Size(width, depth), attention=attention)), task(adamw)


class Grouped(Attention):
    """Many heads of queries, and one head of keys and values, which lie in one matrix."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        del self.qkv
        self.q = size.linear(size.width, size.width)
        self.kv = size.linear(size.width, 2 * HEAD, "few")

    def split(self, x: Tensor) -> Any:
        """Queries, keys and values, each by its heads."""
        k, v = (t[:, None].expand(-1, self.heads, -1, -1) for t in self.kv(x).chunk(2, -1))
        return self.q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2), k, v


def clamped(rows: int, columns: int) -> float:
    """The factor of most implementations of Muon."""
    return math.sqrt(max(1.0, rows / columns))


def spectral(rows: int, columns: int) -> float:
    """The factor under which outputs of any matrix change alike."""
    return math.sqrt(rows / columns)


def of_adamw(rows: int, columns: int) -> float:
    """The factor under which entries change as much as AdamW's."""
    return 0.2 * math.sqrt(max(rows, columns))


@beast(
    source="karpathy/nanochat, nanochat/gpt.py, n_kv_head; KellerJordan/Muon, muon.py",
    layers=("blocks.*.attn.kv.weight",),
    causes=("update",),
    optimizer="muon",
    lr=0.02,
)
def muon_of_few_key_heads(sound: bool) -> Asked:
    """The factor of a shape stops at 1; few keys and values need less."""
    table = {**MUON_TABLE, "few": Row(-1.0)}
    make = partial(muon, shape=spectral if sound else clamped)
    return (lambda width, depth: GPT(Size(width, depth, table), attention=Grouped)), task(make)


@beast(
    source="MoonshotAI/Moonlight, examples/toy_train.py, adjust_lr_for_muon",
    layers=MATRICES,
    causes=("update",),
    optimizer="muon",
    lr=0.02,
)
def muon_at_adamws_size(sound: bool) -> Asked:
    """Muon's updates have AdamW's RMS; their spectral norm grows as the root of the width."""
    return scaled(MUON_TABLE, partial(muon, shape=spectral if sound else of_adamw))


class Routed(nn.Module):
    """Experts of two layers, mixed by a router."""

    def __init__(self, size: Size, router: str) -> None:
        super().__init__()
        self.router = size.linear(size.width, EXPERTS, router)
        self.experts = nn.ModuleList(MLP(size) for _ in range(EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        """What is added to the stream."""
        made = torch.stack([expert(x) for expert in self.experts], -1)
        return (made * self.router(x).softmax(-1)[..., None, :]).sum(-1)


@beast(
    source="MoonshotAI/Moonlight, examples/toy_train.py, get_optimizer",
    layers=("blocks.*.mlp.router.weight",),
    causes=("start", "update"),
    optimizer="muon",
    lr=0.02,
)
def router_as_hidden(sound: bool) -> Asked:
    """A router, which that model lacks, starts and steps as a hidden matrix."""
    table = {**MUON_TABLE, "router": TABLE["head"]}
    experts = partial(Routed, router="router" if sound else "hidden")
    make = partial(muon, shape=clamped)
    return (lambda width, depth: GPT(Size(width, depth, table), mlp=experts)), task(make)


# ---- decay and epsilon


def own_adamw(
    groups: list[dict[str, Any]], decay: Callable[[Any], float], eps: Callable[[Any], float]
) -> Optimizer:
    """AdamW at the table's rates, with a decay and an epsilon for every tensor."""
    lr = groups[0]["lr"]
    own = [
        {"params": [p], "lr": lr * p.rate, "weight_decay": decay(p), "eps": eps(p)}
        for p in parameters(groups)
    ]
    return torch.optim.AdamW(own)


@beast(
    source="EleutherAI/nanoGPT-mup, model.py, configure_optimizers",
    layers=MATRICES,
    causes=("decay",),
)
def decay_falls_with_the_rate(sound: bool) -> Asked:
    """AdamW multiplies decay by the rate: wider hidden matrices decay less."""
    strength = (
        (lambda p: 0.1 / p.rate * is_decayed(p)) if sound else (lambda p: 0.1 * is_decayed(p))
    )
    return scaled({}, partial(own_adamw, decay=strength, eps=lambda _: 1e-8))


@beast(
    source="huggingface/transformers, pull request 35927, trainer.py",
    layers=NORMS,
    causes=("decay",),
    axis=None,
)
def gain_decays(sound: bool) -> Asked:
    """Norms of one class are spared; the gain of the model's own RMSNorm decays."""

    def decay(p: Any) -> float:
        return 0.1 / p.rate if is_decayed(p) or (p.kind == "norm" and not sound) else 0.0

    return scaled({}, partial(own_adamw, decay=decay, eps=lambda _: 1e-8))


@beast(
    source="mlcommons/training_policies, pull request 567, training_rules.adoc",
    layers=INNER,
    causes=("epsilon",),
)
def epsilon_above_gradients(sound: bool) -> Asked:
    """Adam's epsilon is large at all widths; gradients fall with width, and updates do, too."""
    eps = (lambda p: 1e-3 if p.kind == "head" else 1e-3 / p.m) if sound else (lambda _: 1e-3)
    return scaled({}, partial(own_adamw, decay=lambda _: 0.0, eps=eps))


# ---- the loop of a large run


def watched(
    begun: Callable[[nn.Module], object] = lambda model: None,
    scheduled: Callable[[Optimizer], Any] = lambda optimizer: None,
) -> nfd.Watch:
    """A watch of a planned run: ``begun`` is called on the planned model, ``scheduled`` makes its
    scheduler.
    """
    torch.manual_seed(0)
    make_model = lambda width, depth: GPT(Size(width, depth))  # noqa: E731
    pairs = batches()
    model = make_model(128, 4)
    plan = nfd.plan(model, make_model=make_model, base=(BASE_WIDTH, BASE_DEPTH), sample=pairs[0][0])
    plan.apply_(model, seed=0)
    begun(model)
    watch = nfd.Watch(model, plan, pairs[0][0], every=1)
    optimizer = plan.make_optimizer(model, lr=3e-3)
    scheduler = scheduled(optimizer)
    for ids, targets in pairs:
        optimizer.zero_grad()
        F.cross_entropy(model(ids).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
        watch.step()
        if scheduler is not None:
            scheduler.step()
    return watch


@beast(
    source="shariqfarooq123/AdaBins, issue 44, train.py: OneCycleLR",
    layers=MATRICES,
    causes=("rate",),
    ask="watch",
    axis=None,
)
def one_rate_of_a_cycle(sound: bool) -> nfd.Watch:
    """A scheduler sets one highest rate in every group."""

    def cycle(optimizer: Optimizer) -> Any:
        rates = [group["lr"] for group in optimizer.param_groups] if sound else 3e-3
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, rates, total_steps=10, cycle_momentum=False
        )

    return watched(scheduled=cycle)


@beast(
    source="pytorch/pytorch, issue 104187, torch/distributed/fsdp/_init_utils.py",
    layers=MATRICES,
    causes=("start",),
    ask="watch",
    axis=None,
)
def drawn_again(sound: bool) -> nfd.Watch:
    """After the plan, every module draws its parameters again by PyTorch's rule."""

    def reset(module: nn.Module) -> None:
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()

    return watched(begun=(lambda model: None) if sound else (lambda model: model.apply(reset)))


# ---- sound models that look unlike a plan's


SOUND: list[Beast] = []


def sound(**about: Any) -> Callable[[Callable[[], Asked]], Callable[[], Asked]]:
    """Add what a function makes to the sound models, which have no bug beside them."""

    def add(make: Callable[[], Asked]) -> Callable[[], Asked]:
        model = partial(_sound_only, make)
        SOUND.append(
            Beast(make.__name__, about.pop("source"), make.__doc__ or "", model, (), (), **about)
        )
        return make

    return add


def _sound_only(make: Callable[[], Asked], sound: bool) -> Asked:
    assert sound, "there is no bug beside it"
    return make()


class ScaledBranches(Block):
    """Branches by 2 / L in the forward pass, which nothing else of depth scales."""

    def __init__(self, size: Size, factor: float) -> None:
        super().__init__(size, Attention, MLP)
        self.factor = factor

    def forward(self, h: Tensor) -> Tensor:
        """The stream behind this block."""
        h = h + self.factor * self.attn(self.norm1(h))
        return h + self.factor * self.mlp(self.norm2(h))


class Published(GPT):
    """CompleteP as it was published: the factor in the forward pass, hidden rates that fall with
    width alone.
    """

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.blocks = nn.ModuleList(
            ScaledBranches(size, BASE_DEPTH / size.depth) for _ in range(size.depth)
        )


@sound(source="NVIDIA/Megatron-LM, pull request 4381", axis="depth", sizes=DEEP)
def factor_in_the_forward_pass() -> Asked:
    """Branches are divided by depth in the forward pass; AdamW with an epsilon of 1e-12, rates of
    base / n.
    """
    table = {**TABLE, "outer": TABLE["hidden"]}
    return (lambda width, depth: Published(Size(width, depth, table))), task(
        partial(adamw, eps=1e-12)
    )


class Biased(Attention):
    """Queries, keys and values by layers with biases."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        del self.qkv
        self.q, self.k, self.v = (size.linear(size.width, size.width, bias=True) for _ in range(3))

    def split(self, x: Tensor) -> Any:
        """Queries, keys and values, each by its heads."""
        return (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )


@sound(source="huggingface/transformers, models/bert/modeling_bert.py: BertSelfAttention.key")
def biased_keys() -> Asked:
    """Keys have a bias, which softmax does not see: its gradient is rounding."""
    return (lambda width, depth: GPT(Size(width, depth), attention=Biased)), task(adamw)


class Probed(GPT):
    """Adds what a learned query finds in all positions."""

    def __init__(self, size: Size) -> None:
        super().__init__(size)
        self.probe = size.draw(nn.Parameter(torch.empty(1, 1, size.width)), "input", 0.7)
        self.pool = Biased(size)

    def logits(self, h: Tensor) -> Tensor:
        """What the head makes of the normalised stream beside what the query finds."""
        q = self.pool.q(self.probe).expand(len(h), -1, -1)
        q, k, v = (
            t.unflatten(-1, (self.pool.heads, -1)).transpose(1, 2)
            for t in (q, self.pool.k(h), self.pool.v(h))
        )
        pooled = self.pool.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.head(h + pooled)


@sound(source="huggingface/transformers, models/siglip/modeling_siglip.py: probe")
def learned_query() -> Asked:
    """A learned query of constant size attends to the stream."""
    return (lambda width, depth: Probed(Size(width, depth))), task(adamw)
