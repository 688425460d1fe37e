"""nfd.defer: anyone's model without stored weights trains as its dense twin, and goes back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.architectures import PreactivationResNet
from tests.models import ConvBlock, Residual, Transformer, encoder, gpt2
from torch import Tensor, nn

import nfd
from nfd.scaling.model import is_conv1d, modules
from nfd.scaling.samples import outputs_of
from nfd.wide import Reason
from nfd.wide.layers import FactoredLinear
from nfd.wide.stand_ins import DeferredConv

F64 = torch.float64
TOKENS = torch.arange(12).view(2, 6) % 11


def llama(width: int, depth: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=11,
        bos_token_id=0,
        eos_token_id=0,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 8,
        num_key_value_heads=width // 16,
        intermediate_size=2 * width,
    )
    return transformers.LlamaForCausalLM(config)


def vit(width: int, depth: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 8,
        intermediate_size=2 * width,
        image_size=8,
        patch_size=4,
    )
    return transformers.ViTForImageClassification(config)


# constructors without dropout, and inputs
MODELS: dict[str, tuple[Callable[[int, int], nn.Module], Any]] = {
    "mlp": (Residual, torch.zeros(2, 5)),
    "vit": (vit, {"pixel_values": torch.zeros(2, 3, 8, 8)}),
    "encoder": (encoder, torch.zeros(2, 5, 32)),
    "gpt2": (gpt2, {"input_ids": TOKENS}),
    "llama": (llama, {"input_ids": TOKENS}),
    "resnet": (PreactivationResNet, torch.zeros(2, 3, 8, 8)),
}


def inputs(kind: str, count: int) -> list[Tensor]:
    """Random batches that a model takes."""
    sample = MODELS[kind][1]
    stream = torch.Generator().manual_seed(0)
    like = next(iter(sample.values())) if isinstance(sample, dict) else sample
    if not like.is_floating_point():
        return [torch.randint(0, 11, (2, 4), generator=stream) for _ in range(count)]
    return [torch.randn(like.shape, generator=stream, dtype=F64) for _ in range(count)]


def train(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], batches: list[Tensor]
) -> list[Tensor]:
    seen = []
    for x in batches:
        y = outputs_of(model(x))
        seen.append(y.detach())
        model.zero_grad()
        torch.tanh(y - 1).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return seen


def unstored(model: nn.Module) -> dict[str, FactoredLinear]:
    """Layers without stored weights, by the names of the tensors that they stand for."""
    named = {f"{name}{getattr(m, 'suffix', '')}": m for name, m in modules(model).items()}
    return {name: m for name, m in named.items() if isinstance(m, FactoredLinear)}


def twin_of(trained: nn.Module, start: nn.Module) -> nn.Module:
    """The dense model that begins as a deferred one did, with the weights that its answers came
    from.
    """
    twin = nfd.store_weights(copy.deepcopy(start))
    for name, layer in unstored(trained).items():
        p = twin.get_parameter(name)
        W = layer.complete(seed=7)
        owner = twin.get_submodule(name.rpartition(".")[0])
        with torch.no_grad():
            p.copy_(W.T if is_conv1d(owner) else W.view_as(p))
    return twin


def optimizers_of(kind: str, model: nn.Module, names: set[str]) -> list[torch.optim.Optimizer]:
    """What steps the matrices of these names, stored or not; beside Muon AdamW, for the rest."""
    if kind == "sgd":
        return [nfd.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)]
    factors = [p for layer in unstored(model).values() for p in (layer.update, layer.scale)]
    own = factors or [model.get_parameter(name) for name in sorted(names)]
    rest = [p for p in model.parameters() if not any(p is other for other in own)]
    return [nfd.Muon(own, lr=0.02, weight_decay=0.1), torch.optim.AdamW(rest, lr=0.01)]


WITH = {
    "mlp": "sgd",
    "vit": "sgd",
    "encoder": "sgd",
    "gpt2": "muon",
    "llama": "muon",
    "resnet": "sgd",
}


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param(kind, optimizer, marks=() if optimizer == WITH[kind] else pytest.mark.slow)
        for kind in WITH
        for optimizer in ("sgd", "muon")
        if (kind, optimizer) != ("resnet", "muon")  # PyTorch's Muon takes no convolutions
    ],
)
def test_training_repeats_that_of_the_dense_twin(kind: str, optimizer: str) -> None:
    """The twin begins with the weights that the deferred model turned out to have."""
    torch.manual_seed(0)
    dense = MODELS[kind][0](32, 2).double()
    batches = inputs(kind, 5)
    for weights in ("structured", "deferred"):
        model = nfd.defer(copy.deepcopy(dense), weights=weights, seed=3)
        start = copy.deepcopy(model)
        matrices = set(unstored(model))
        seen = train(model, optimizers_of(optimizer, model, matrices), batches)
        stored = nfd.store_weights(copy.deepcopy(model))
        assert [type(m) for m in stored.modules()] == [type(m) for m in dense.modules()]
        twin = twin_of(model, start)
        again = train(twin, optimizers_of(optimizer, twin, matrices), batches)
        assert float((seen[0] - seen[-1]).abs().max()) > 1e-3
        for y, z in zip(seen, again, strict=True):
            torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-9)


def causal(positions: int) -> Tensor:
    return torch.ones(positions, positions, dtype=torch.bool).triu(1)


PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        ({}, {}),
        ({"bias": False}, {"need_weights": False}),
        ({"batch_first": True}, {"attn_mask": causal(5), "is_causal": True, "need_weights": False}),
        ({"batch_first": True}, {"key_padding_mask": PADDING, "average_attn_weights": False}),
        ({}, {"attn_mask": torch.randn(8, 5, 5, dtype=F64)}),
        ({}, {"attn_mask": causal(5), "key_padding_mask": PADDING}),
        ({"kdim": 12, "vdim": 20}, {}),
        ({"batch_first": True, "kdim": 16, "vdim": 20}, {"need_weights": False}),
    ],
)
@pytest.mark.parametrize("where", ["**", "out_proj"])
def test_an_attention_answers_as_pytorchs(
    made: dict[str, Any], asked: dict[str, Any], where: str
) -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, dtype=F64, **made)
    with torch.no_grad():
        for p in attention.parameters():
            p.normal_(std=0.3)
    sides = [16, made.get("kdim", 16), made.get("vdim", 16)]
    query, key, value = (torch.randn(2, 5, n, dtype=F64) for n in sides)
    if not made.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    layer = nfd.defer(attention, where=where)
    names = list(unstored(layer))
    assert "out_proj.weight" in names
    assert (len(names) == 1) == (where != "**")
    stored = nfd.store_weights(copy.deepcopy(layer))
    assert type(stored) is nn.MultiheadAttention
    assert [n for n, _ in stored.named_parameters()] == [
        n for n, _ in nn.MultiheadAttention(16, 4, **made).named_parameters()
    ]
    inputs = (
        [(query, key, value)]
        if "kdim" in made
        else [(query, key, value), (query, query, query), (query, key, key)]
    )
    for given in inputs:
        for ours, theirs in zip(layer(*given, **asked), stored(*given, **asked), strict=True):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    if "attn_mask" not in asked and "key_padding_mask" not in asked:
        first = [x[0] if made.get("batch_first") else x[:, 0] for x in inputs[0]]
        for ours, theirs in zip(layer(*first, **asked), stored(*first, **asked), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_does_not_read_weights_that_are_not_stored() -> None:
    """PyTorch's fast path of evaluation does; it hands padded sequences on as nested tensors."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
    encoder = nn.TransformerEncoder(layer, 2)
    x = torch.randn(2, 5, 16)
    for where in ("**", "layers.*.linear1", "layers.0.self_attn.out_proj"):
        model = nfd.defer(copy.deepcopy(encoder), where=where)
        y = model(x, src_key_padding_mask=PADDING)
        model.eval()
        with torch.no_grad():
            again = model(x, src_key_padding_mask=PADDING)
        torch.testing.assert_close(again[~PADDING], y[~PADDING].detach(), rtol=1e-4, atol=1e-5)
    later = nfd.defer(encoder, where="layers.1.**").eval()
    with torch.no_grad(), pytest.raises(ValueError, match="enable_nested_tensor=False"):
        later(x, src_key_padding_mask=PADDING)


def test_what_stays_is_the_same_tensor_and_what_goes_begins_alike() -> None:
    model = Residual(64, 2)
    kept = {
        name: p
        for name, p in model.named_parameters()
        if not name.startswith("blocks") or "bias" in name
    }
    spread = {
        name: float(p.detach().square().mean().sqrt()) for name, p in model.named_parameters()
    }
    assert nfd.defer(model) is model
    assert all(dict(model.named_parameters())[name] is p for name, p in kept.items())
    up = model.get_submodule("blocks.0.up")
    assert isinstance(up, nfd.StructuredLinear)
    assert up.std == pytest.approx(spread["blocks.0.up.weight"])
    assert float(up.dense_weights().square().mean().sqrt()) == pytest.approx(up.std, rel=0.1)
    assert not torch.equal(up.complete()[:64], model.get_submodule("blocks.1.up").complete()[:64])


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_a_plan_of_a_model_that_was_never_made_starts_and_groups_it(optimizer: str) -> None:
    sizes: dict[str, Any] = {"make_model": Transformer, "base": (16, 2), "sample": TOKENS}
    with torch.device("meta"):
        model: nn.Module = Transformer(48, 3)
    plan = nfd.plan(model, rule="depth-mup", optimizer=optimizer, **sizes)
    model = nfd.defer(model, plan, seed=1)
    dense = plan.apply_(Transformer(48, 3), seed=1)
    for name, p in model.named_parameters():
        if not name.endswith(("update", "scale")):
            assert torch.equal(p, dense.get_parameter(name)), name
    layer = model.get_submodule("layers.1.d")
    assert isinstance(layer, nfd.StructuredLinear)
    assert layer.std == pytest.approx(plan.std("layers.1.d.weight"))
    layers = {
        name: part for name, part in model.named_modules() if isinstance(part, nfd.StructuredLinear)
    }
    bases = {plan.entries[f"{name}.weight"].role: part.basis for name, part in layers.items()}
    # of the residual stream, or as the first batch tells
    assert bases == {"inner": "inputs", "outer": None}

    def settings(of: nn.Module) -> dict[str, tuple[float, float]]:
        groups = plan.param_groups(of, lr=0.1, weight_decay=0.1)
        by_id = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
        return {name: by_id[id(p)] for name, p in of.named_parameters()}

    ours = settings(model)
    theirs = settings(dense)
    assert all(
        ours[name] == ours[name.replace("update", "scale")]
        for name in ours
        if name.endswith("update")
    )
    assert {
        name.replace("update", "weight"): s
        for name, s in ours.items()
        if not name.endswith("scale")
    } == theirs
    step = plan.make_optimizer(model, lr=0.05)
    losses = []
    for _ in range(6):
        step.zero_grad()
        loss = nn.functional.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
        loss.backward()
        step.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", ["encoder", "vit", "resnet", "llama"])
def test_a_plan_reads_the_small_model_and_the_wide_one_keeps_its_buffers(kind: str) -> None:
    """Attention of PyTorch, running statistics, rotary tables: nothing wide is made, and every
    start is the plan's.
    """
    (make, sample) = MODELS[kind]
    sizes = set()

    def base_of(width: int, depth: int) -> nn.Module:
        sizes.add(width)
        return make(width, depth)

    with nfd.meta_matrices():
        model = make(96, 2)
    assert all(p.is_meta for p in model.parameters() if p.dim() == 2)
    options: dict[str, Any] = {"make_model": base_of, "base": (32, 2), "sample": sample}
    plan = nfd.plan(
        model, rule="depth-mup" if kind != "resnet" else "mup", optimizer="sgd", **options
    )
    assert max(sizes) <= 64
    assert all(p.is_meta for p in model.parameters() if p.dim() == 2)
    model = nfd.defer(model, plan, seed=1)
    dense = plan.apply_(make(96, 2), seed=1)
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if not name.endswith(("update", "scale")):
            theirs = dict([*dense.named_parameters(), *dense.named_buffers()])
            assert torch.equal(p, theirs[name.replace("linear.", "")]), name
    assert len(unstored(model)) >= 4
    assert set(dict(model.named_buffers())) == set(dict(dense.named_buffers()))


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": (2, 3), "stride": (2, 1), "dilation": (1, 2)},
        {"kernel_size": 3, "padding": "same", "padding_mode": "reflect"},
    ],
)
def test_convolutions_of_any_geometry(options: dict[str, Any]) -> None:
    flat = {
        name: value[-1] if isinstance(value, tuple) else value for name, value in options.items()
    }
    for kind, own in ((nn.Conv2d, options), (nn.Conv1d, flat)):
        conv = kind(5, 7, **own)
        x = torch.randn(2, 5, *([9, 8] if kind is nn.Conv2d else [9]))
        layer = nfd.defer(conv)
        assert isinstance(layer, DeferredConv)
        stored = nfd.store_weights(copy.deepcopy(layer))
        assert type(stored) is kind
        assert layer.weight.shape == stored.weight.shape
        for images in (x, x[0]):
            torch.testing.assert_close(layer(images), stored(images), rtol=1e-4, atol=1e-5)


def tied(width: int) -> nn.Module:
    model = Residual(width, 2)
    model.blocks[1].up.weight = model.blocks[0].up.weight
    return model


def test_what_no_layer_can_stand_in_for_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'blocks\.0\.up\.weight': its weight is tied"):
        nfd.defer(tied(16))
    for keys in ({"add_zero_attn": True}, {"add_bias_kv": True}):
        with pytest.raises(
            ValueError, match=r"'out_proj\.weight': it is not one linear map.* adds keys"
        ):
            nfd.defer(nn.MultiheadAttention(8, 2, **keys))
    with pytest.raises(ValueError, match="names no matrix that is wide"):
        nfd.defer(Residual(16, 2), where="block.*")
    with pytest.raises(ValueError, match="names no matrix"):
        nfd.defer(ConvBlock(4), where="spatial")
    with torch.device("meta"):
        unbuilt = Residual(16, 2)
        normed = nn.Sequential(Residual(16, 2), nn.BatchNorm1d(3))
    with pytest.raises(
        ValueError, match=r"no initial weights whose scale could be copied. Pass plan="
    ):
        nfd.defer(unbuilt)
    with pytest.raises(ValueError, match=r"buffers on the meta device.*1\.running_mean"):
        nfd.defer(normed)
    with nfd.meta_matrices():
        frozen = Residual(16, 2)
    frozen.embed.weight.requires_grad_(False)
    options: dict[str, Any] = {
        "make_model": Residual,
        "base": (8, None),
        "sample": torch.zeros(2, 5),
    }
    with pytest.raises(ValueError, match=r"'embed\.weight' are on the meta device"):
        nfd.defer(frozen, nfd.plan(frozen, rule="mup", optimizer="sgd", **options))
    plan = nfd.plan(
        Residual(16, 2), rule="mup", make_model=Residual, base=(8, None), sample=torch.zeros(2, 5)
    )
    with pytest.raises(ValueError, match=r"its optimizer acts on every entry.*'muon'"):
        nfd.defer(Residual(16, 2), plan)
    with pytest.raises(ValueError, match="feedback='independent'"):
        nfd.store_weights(nn.Sequential(nfd.StructuredLinear(4, 4, feedback="independent")))
    with pytest.raises(ValueError, match="Did you mean 'structured'"):
        nfd.defer(Residual(16, 2), weights="structure")
    with pytest.raises(TypeError, match="plan must be"):
        nfd.defer(Residual(16, 2), "mup")


def test_a_deferral_says_what_is_replaced_what_is_left_and_why() -> None:
    """The same decisions as those of ``nfd.defer``, before and after it."""
    model = Residual(24, 3)
    model.blocks[1].down.weight.requires_grad_(False)
    told = nfd.deferral(model, where="**.down")
    reasons = {own.name: own.reason for own in told.replacements}
    assert reasons["blocks.0.down.weight"] is None
    assert reasons["blocks.1.down.weight"] is Reason.FROZEN
    assert reasons["blocks.0.up.weight"] is Reason.UNNAMED
    assert reasons["embed.weight"] is reasons["head.weight"] is Reason.NARROW
    assert not any(p.is_meta for p in model.parameters())
    deferred = nfd.defer(model, where="**.down")
    assert deferred.deferral == told
    assert set(unstored(deferred)) == {own.name for own in told.replaced}
    again = nfd.deferral(deferred, where="**")
    assert {own.name for own in again.replacements if own.reason is Reason.UNSTORED} == set(
        unstored(deferred)
    )
    assert not hasattr(nfd.store_weights(deferred), "deferral")
    line = next(
        line for line in str(told).splitlines() if "blocks.*.down.weight" in line and "yes" in line
    )
    assert "2 x" in line
    assert {"name", "kind", "shape", "reason"} == told.table[0].keys()
