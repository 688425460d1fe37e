"""Conformance: the paper's networks and anyone's answer every question of a family alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import Residual, Transformer
from torch import Tensor, nn

import nfd
from nfd.families.constructed import ConstructedFamily
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.families.paper import PaperFamily
from nfd.meters.updates import Baseline
from nfd.questions.study import Study
from nfd.runs.settings import StudyConfig
from nfd.scaling.calls import outputs_of
from nfd.store.store import Store
from nfd.training.recipe import Recipe
from nfd.training.task import Task

pytestmark = pytest.mark.filterwarnings("ignore:A (Deferred|Structured)Linear of size")  # these are small

STREAM = torch.Generator().manual_seed(0)
VECTORS = torch.randn(6, 5, generator=STREAM)
TOKENS = torch.randint(0, 11, (3, 7), generator=STREAM)


class Doubled(nfd.ResNet):
    """A subclass with the same arguments and another forward pass."""

    factor = 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * super().forward(x)


class Halved(nfd.ResNet):
    """A subclass with arguments of its own."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(5, 3, width // 2, depth)


def gpt2(width: int, depth: int) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    config = transformers.GPT2Config(
        n_embd=width, n_layer=depth, n_head=width // 4, n_positions=8, vocab_size=11, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def constructed(make_model: Any, sample: Any, **options: Any) -> ConstructedFamily:
    return ConstructedFamily(make_model, (8, 2), "complete-p", "adamw", sample=sample, **options)


@dataclass(frozen=True)
class Case:
    """A family and what is known of it."""

    family: Callable[[], Family]
    sample: Any
    twin: bool = False  # whether it has a decoupled twin
    limit: bool = False  # whether nfd.predict knows its limit
    weights: Any = "dense"
    products: Callable[[int, int], int] | None = None  # multiply-adds of a forward pass of one input, by (n, L)


def paper(kind: Any = nfd.ResNet, rule: Any = "depth-mup", **settings: Any) -> Callable[[], Family]:
    return lambda: PaperFamily(kind, 5, 3, rule, settings=settings)


CASES = {
    "ResNet": Case(paper(activation="tanh"), VECTORS, twin=True, limit=True, products=lambda n, L: 8 * n + L * n * n),
    "two-layer ResNet": Case(
        paper(block="two-layer"), VECTORS, twin=True, limit=True, products=lambda n, L: 8 * n + 2 * L * n * n
    ),
    "decoupled ResNet": Case(paper(feedback="independent"), VECTORS, limit=True),
    "deferred ResNet": Case(paper(activation="erf"), VECTORS, limit=True, weights="deferred"),
    "structured ResNet": Case(paper(activation="gelu"), VECTORS, weights="structured"),
    "MLP": Case(paper(nfd.MLP, "mup"), VECTORS, twin=True, products=lambda n, L: 8 * n + L * n * n),
    "subclass": Case(paper(Doubled), VECTORS, twin=True, products=lambda n, L: 8 * n + L * n * n),
    "constructor of a subclass": Case(
        lambda: ConstructedFamily(Halved, (8, 2), "depth-mup", "sgd", sample=VECTORS), VECTORS, twin=True
    ),
    "residual MLP": Case(
        lambda: constructed(Residual, VECTORS), VECTORS, products=lambda n, L: 8 * n + 4 * L * n * n
    ),
    "small GPT": Case(lambda: constructed(Transformer, TOKENS), TOKENS),
    "GPT with a tied head": Case(lambda: constructed(partial(Transformer, tied=True), TOKENS, version="1"), TOKENS),
    "Hugging Face's GPT-2": Case(lambda: constructed(gpt2, TOKENS), TOKENS),
}  # fmt: skip

SIZES = [(8, 2), (16, 2), (16, 4)]
REPEATED = ("small GPT", "Hugging Face's GPT-2")  # the GPT with a tied head stands for them
ALL = [pytest.param(name, marks=pytest.mark.slow if name in REPEATED else ()) for name in CASES]


@pytest.fixture(params=ALL)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def built(case: Case, width: int, depth: int, seed: int = 0) -> Member:
    return case.family().build(width, depth, seed, case.weights)


def step_of(member: Member, sample: Any) -> Tensor:
    """Outputs after one step of plain descent by the member's own groups."""
    outputs_of(member(sample)).square().mean().backward()  # type: ignore[no-untyped-call]
    groups = member.groups(0.01)
    (nfd.SGD(groups) if isinstance(member.module, nfd.nets.network.Network) else torch.optim.SGD(groups)).step()
    return outputs_of(member(sample)).detach()


def test_members_of_every_size_are_built_and_train(case: Case) -> None:
    before = torch.get_rng_state()
    members = [built(case, width, depth) for width, depth in SIZES]
    assert torch.equal(before, torch.get_rng_state())
    for (width, depth), member in zip(SIZES, members, strict=True):
        assert len(member.blocks) in (0, depth)
        assert member.time_step() == pytest.approx(1 / depth)
        first = outputs_of(member(case.sample)).detach()
        assert first.isfinite().all()
        assert not torch.allclose(step_of(member, case.sample), first)
        assert {id(p) for g in member.groups(0.01) for p in g["params"]} == {
            id(p) for p in member.module.parameters() if p.requires_grad
        }
        assert width >= (member.width or 0)


def test_a_seed_gives_a_member_and_another_seed_another(case: Case) -> None:
    values = [outputs_of(built(case, 16, 2, seed)(case.sample)).detach() for seed in (0, 0, 1)]
    assert torch.equal(values[0], values[1])
    assert not torch.allclose(values[0], values[2])


def test_rates_of_the_base_are_scaled_by_the_plan(case: Case) -> None:
    member = built(case, 16, 4)
    once, twice = ([group["lr"] for group in member.groups(rate)] for rate in (0.1, 0.2))
    assert twice == pytest.approx([2 * rate for rate in once])
    assert {"readout", "tied"} & set(member.roles.values())
    assert all(member.multiplier(name) > 0 for name in member.roles if "feedback" not in name)
    if case.weights == "dense":
        assert set(member.roles) == set(member.plan.entries)
        decays = [group["weight_decay"] * group["lr"] for group in member.groups(0.1, weight_decay=0.01)]
        assert decays == pytest.approx([0.001] * len(decays))  # rate times decay is the same for every tensor
    else:
        with pytest.raises(ValueError, match="are for plans"):
            member.groups(0.1, weight_decay=0.01)


def test_parameters_and_operations_are_counted(case: Case) -> None:
    members = [built(case, width, depth) for width, depth in SIZES]
    counts = [member.parameters for member in members]
    assert counts == sorted(set(counts))
    if case.weights != "dense":
        dense = case.family().build(16, 4, 0)
        assert counts[-1] == dense.parameters
        with pytest.raises(ValueError, match=f"operations of {case.weights} weights grow"):
            members[0].operations(case.sample)
        return
    operations = [member.operations(case.sample) for member in members]
    assert operations == sorted(set(operations))
    assert all(p.grad is None for p in members[0].module.parameters())
    if case.products is not None:
        for (n, L), counted in zip(SIZES, operations, strict=True):
            assert counted == 6 * case.products(n, L) - 2 * 5 * n  # inputs have no gradient


def test_ends_of_the_stream_are_seen_with_their_gradients(case: Case) -> None:
    member = built(case, 8, 2)
    with member.stream() as ends:
        outputs = outputs_of(member(case.sample))
    assert ends.gradients() is None  # before there is a backward pass
    (first,), (last,) = ends.first[""], ends.last[""]
    assert first.shape == last.shape
    outputs.sum().backward()  # type: ignore[no-untyped-call]
    other = built(case, 8, 2)
    with other.stream() as again:
        outputs = outputs_of(other(case.sample))
    wanted = torch.autograd.grad(outputs.sum(), [*again.first[""], *again.last[""]])
    assert ends.gradients() == pytest.approx([*(float(g.square().mean().sqrt()) for g in wanted), 0.0])
    with torch.no_grad(), member.stream() as ends:
        member(case.sample)
    assert torch.equal(ends.last[""][0], last) or case.weights == "deferred"


def test_the_decoupled_twin_begins_alike_and_learns_otherwise(case: Case) -> None:
    member = built(case, 16, 2)
    if not case.twin:
        with pytest.raises(ValueError, match="has no decoupled twin"):
            member.twin()
        return
    twin = member.twin()
    torch.testing.assert_close(twin(case.sample), member(case.sample))
    assert twin.parameters == member.parameters
    assert not torch.allclose(step_of(twin, case.sample), step_of(member, case.sample))


@cache
def identities_of_cases() -> dict[str, Any]:
    return {name: case.family().identity for name, case in CASES.items()}


def test_an_identity_is_stable_and_tells_families_apart(case: Case) -> None:
    family = case.family()
    assert family.identity == case.family().identity
    assert family.identity != family.under(rule="mup", optimizer="adam").identity
    assert family.under(rule="mup").rule == "mup"
    identities = [identity for name, identity in identities_of_cases().items() if CASES[name] is not case]
    assert family.identity not in identities
    assert family.name


def batches_of(case: Case) -> list[tuple[Any, Any]]:
    if case.sample.is_floating_point():
        return [(case.sample, torch.arange(len(case.sample)) % 3)] * 2
    return [(case.sample[:, :-1], case.sample[:, 1:])] * 2


def test_a_check_asks_any_family(case: Case) -> None:
    """The same meters for all; with the decoupled twin where there is one."""
    options: Any = {"seeds": 2, "eta_c": 1e-3, "gia": case.twin}
    check = nfd.check(case.family(), [8, 16], [2, 4], batches_of(case), **options)
    assert (check.rule, check.optimizer) == (case.family().rule, case.family().optimizer)
    assert len(check.runs) == 8
    wanted = {"activation", "function_update", "gradient", "loss", "gia_gap" if case.twin else "loss"}
    for run in check.runs:
        assert all(math.isfinite(run[meter]) and run[meter] >= 0 for meter in wanted - run["unread"].keys())
        assert run["gradient"] > 0
    with pytest.raises(ValueError, match="are part of a family"):
        nfd.check(case.family(), [8, 16], [2], batches_of(case), blocks="layers.*")
    if not case.twin and case.weights == "dense":
        with pytest.raises(ValueError, match="has no decoupled twin"):
            nfd.check(case.family(), [8, 16], [2], batches_of(case), gia=True, seeds=2)


def test_a_transfer_asks_any_family(case: Case) -> None:
    """The same measurement for all; a transfer trains stored weights."""
    if case.weights != "dense":
        return
    family = case.family()
    options: Any = {"rules": (family.rule,), "optimizer": family.optimizer, "lr": (0.001, 0.03, 0.9), "seeds": 2}
    answer = nfd.transfer(family, (8, 16), (2,), batches_of(case) * 2, **options)
    (transfer,) = answer.rules
    assert transfer.rate == family.rate_name
    assert [*transfer.cells] == [(8, 2), (16, 2)]
    assert all(cell.losses.shape[0] == 2 and cell.losses.min() < cell.guess for cell in transfer.cells.values())
    assert answer.verdict(family.rule) == "UNCERTAIN"  # two seeds leave that open


def test_a_capacity_asks_any_family(case: Case) -> None:
    """The law of size of all; it is fitted to the losses of the family's own members."""
    if case.weights != "dense":
        return
    family, batches = case.family(), batches_of(case)
    options: Any = {"rule": family.rule, "optimizer": family.optimizer, "lr": 0.01, "seeds": 2}
    answer = nfd.capacity(family, (8, 16), (2, 4), batches, **options)
    assert {size: len(losses) for size, losses in answer.losses.items()} == dict.fromkeys(product((8, 16), (2, 4)), 2)
    assert answer.law.variables == ("width", "depth")
    assert all(losses[0] != losses[1] for losses in answer.losses.values())
    recipe = Recipe(family, Task.of(batches, "cross-entropy", None))
    *_, last = recipe.rows(family.build(16, 4, 1), 0.01, 0.0, batches, None)
    assert answer.losses[16, 4][1] == pytest.approx(last.loss, rel=1e-4)
    with pytest.raises(ValueError, match="parameters is not known"):
        answer.best(parameters=10**6)  # four sizes do not tell what others cost


def trained_again(family: Family, network: Any, batches: Any) -> Tensor:
    """The outputs of a stored network, ``[steps, batch, C]``, when the family's own member is trained."""
    member = family.build(*(network[name] for name in ("width", "depth", "seed", "weights")))
    member.reserve(sum(len(x) for x, _ in batches))
    recipe = Recipe(family, Task.of(batches))
    return torch.stack([row.outputs for row in recipe.rows(member, network["eta_c"][0], 0.0, batches, None)])


def test_a_prediction_asks_a_family(case: Case, tmp_path: Path) -> None:
    """Its networks are members; so far only networks of nfd have a limit."""
    family = case.family()
    if not (case.limit and isinstance(family, PaperFamily)):
        return
    batches = batches_of(case)
    x, y = (torch.stack(parts) for parts in zip(*batches, strict=True))
    options: Any = {"depth": 2, "width": 16, "replicates": 2, "classes": 3, "rule": family.rule, **family.settings}
    prediction = nfd.predict(x, y, out=tmp_path, **options)
    with Store.read(tmp_path) as store:
        networks = [record.config for record in store.records() if record.config["width"] == 16]
    assert len(networks) == 2
    outputs = torch.stack([trained_again(family, network, batches) for network in networks]).double()
    torch.testing.assert_close(prediction.outputs, outputs.mean(0), rtol=1e-4, atol=1e-5)


def test_a_study_asks_families() -> None:
    """The same of its networks that stand for infinitely wide ones, and of its real ones."""
    tiny: Any = {"depths": (2, 4), "limit_width": 32, "replicates": 3, "widths": (8, 9), "seeds": 2, "steps": 2}
    study = Study(StudyConfig(**tiny, batch=2, block_depths=(2, 4), block_width=8, block_seeds=2))
    with nfd.Sweep(None) as sweep:
        measured, networks = study.measure(sweep), [record.config for record in sweep.store.records()]
    batches = list(zip(study.inputs, study.targets, strict=True))
    kind, names = ("depth", "width", "feedback", "block"), ("horizon", "activation", "block", "feedback", "coupled")
    for size, outputs in {(4, 32): measured.limits["shared", 4], (4, 9): measured.real[4, 9]}.items():
        own = [n for n in networks if tuple(n[name] for name in kind) == (*size, "shared", "one-layer")]
        family = PaperFamily(nfd.ResNet, 64, 10, own[0]["rule"], settings={name: own[0][name] for name in names})
        again = torch.stack([trained_again(family, network, batches) for network in own])
        torch.testing.assert_close(outputs, again.double(), rtol=1e-4, atol=1e-5)


def test_the_updates_of_a_member_are_measured(case: Case) -> None:
    if case.weights != "dense":
        return  # meters compare stored weights
    member = built(case, 16, 2)
    baseline = Baseline(member, case.sample)
    assert {value for meter, value in baseline.updates().items() if not meter.endswith("activation")} == {0.0}
    step_of(member, case.sample)
    updates = baseline.updates()
    expected = {"inner": "inner_update", "outer": "stream_update", "hidden": "function_update"}
    assert {expected[role] for role in member.roles.values() if role in expected} <= updates.keys()
    assert all(value > 0 for value in updates.values())


# ---- what tells one version of a code from another -----------------------------------------------------------------


@pytest.mark.parametrize("rule", ["standard", "mup", "complete-p"])
@pytest.mark.parametrize(("make", "sample"), [(Residual, VECTORS), (Transformer, TOKENS)])
def test_a_plan_is_made_once_for_a_size_and_is_that_of_every_seed(make: Any, sample: Tensor, rule: Any) -> None:
    built = []

    def make_model(width: int, depth: int) -> nn.Module:
        built.append((width, depth))
        return make(width, depth)  # type: ignore[no-any-return]

    family = ConstructedFamily(make_model, (8, 2), rule, sample=sample)
    family.build(16, 3, seed=0)
    built.clear()
    later, alone = (
        family.build(16, 3, seed=1),
        ConstructedFamily(make, (8, 2), rule, sample=sample).build(16, 3, seed=1),
    )
    assert built == [(16, 3)]
    rates = [
        [{k: v for k, v in group.items() if k != "params"} for group in m.groups(0.1, 0.2)] for m in (later, alone)
    ]
    assert rates[0] == rates[1]
    for ours, own in zip(later.module.parameters(), alone.module.parameters(), strict=True):
        assert torch.equal(ours, own)


class Tuned(Residual):
    """A model whose code has a number in it."""

    gain, slope = 1.0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = self.gain * super().forward(x)
        return (self.slope * out + (out - self.slope * out).detach()) if self.slope != 1 else out


def identity_of(make_model: Any, **options: Any) -> Any:
    return constructed(make_model, VECTORS, **options).identity


def test_a_change_of_code_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_of(Tuned)
    assert identity_of(Tuned) == before
    for name, value in (("gain", 1.001), ("slope", 0.5)):  # another function, and another gradient of the same one
        with monkeypatch.context() as changed:
            changed.setattr(Tuned, name, value)
            assert identity_of(Tuned) != before
    doubled = PaperFamily(Doubled, 5, 3).identity
    with monkeypatch.context() as changed:
        changed.setattr(Doubled, "factor", 3.0)
        assert PaperFamily(Doubled, 5, 3).identity != doubled
    dropped = identity_of(lambda width, depth: nn.Sequential(Residual(width, depth), nn.Dropout(0.5)))
    assert dropped != identity_of(lambda width, depth: nn.Sequential(Residual(width, depth), nn.Dropout(0.25)))
    assert identity_of(Tuned, version="1") != identity_of(Tuned, version="2")


class Judged(Residual):
    """With a number that only its answers in eval mode show."""

    gain = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if self.training else self.gain)


def test_what_judges_a_network_is_in_its_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity_of(Judged)
    monkeypatch.setattr(Judged, "gain", 2.0)
    assert identity_of(Judged) != before


def scaled(factor: float) -> Any:
    """A constructor with a variable of its own."""
    return lambda width, depth: nn.Sequential(Residual(width, depth), nn.Softplus(factor))


class Scaling:
    """A constructor with an attribute of its own."""

    def __init__(self, factor: float) -> None:
        self.factor, self.itself = factor, self

    def __call__(self, width: int, depth: int) -> nn.Module:
        return nn.Sequential(Residual(width, depth), nn.Softplus(self.factor))

    def make(self, width: int, depth: int) -> nn.Module:
        return self(width, depth)


def of_factor(width: int, depth: int, factor: float) -> nn.Module:
    return nn.Sequential(Residual(width, depth), nn.Softplus(factor))


def a_part(factor: float) -> Any:
    return partial(of_factor, factor=factor)


def a_method(factor: float) -> Any:
    return Scaling(factor).make


@pytest.mark.parametrize("made", [scaled, Scaling, a_part, a_method])
def test_a_version_tells_the_code_and_not_what_it_is_made_with(made: Any) -> None:
    """Other settings of one constructor are other networks, whatever the version of its text."""
    assert identity_of(made(1.0), version="1") == identity_of(made(1.0), version="1")
    assert identity_of(made(1.0), version="1") != identity_of(made(2.0), version="1")


def test_a_constructor_is_called_by_its_name() -> None:
    assert identity_of(Residual, version="1")["family"] == "tests.models:Residual"


def test_code_without_a_fingerprint_needs_a_version() -> None:
    count = iter(range(100))

    class Restless(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + next(count)

    for make_model, sample in ((Restless, VECTORS), (Residual, TOKENS), (Residual, None)):
        with pytest.raises(ValueError, match="version="):
            _ = constructed(make_model, sample).identity
        assert constructed(make_model, sample, version="1").identity["code"] == "1"


class Positioned(Residual):
    """With a buffer that its constructor computes, as rotary tables are."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__(width, depth)
        self.register_buffer("shift", torch.linspace(-1, 1, 5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.shift)


@pytest.mark.parametrize("make_model", [Residual, Positioned])
@pytest.mark.parametrize("weights", ["structured", "deferred"])
def test_a_member_without_stored_weights_is_that_of_its_plan(make_model: Any, weights: Any) -> None:
    """It has the outputs and the groups of the dense model that it stands for, and repeats from its seed."""
    family = constructed(make_model, VECTORS).under(optimizer="muon")
    member, again, other = (family.build(16, 4, seed, weights) for seed in (0, 0, 1))
    kind = nfd.StructuredLinear if weights == "structured" else nfd.DeferredLinear
    assert sum(isinstance(m, kind) for m in member.module.modules()) == 8
    values = [outputs_of(m(VECTORS)).detach() for m in (member, again, other)]
    assert torch.equal(values[0], values[1])
    assert not torch.allclose(values[0], values[2])
    dense = nfd.store_weights(member.module)
    torch.testing.assert_close(dense(VECTORS), values[0], rtol=1e-4, atol=1e-5)
    rates = {group["lr"] for group in again.groups(0.1, adamw_lr=0.01)}
    assert rates == {group["lr"] for group in family.build(16, 4, 0).groups(0.1, adamw_lr=0.01)}


def test_weights_are_stored_where_the_optimizer_or_the_network_needs_them() -> None:
    with pytest.raises(ValueError, match="acts on every entry"):
        constructed(Residual, VECTORS).build(16, 2, 0, "structured")
    with pytest.raises(ValueError, match="has an argument weights= of its own"):
        CASES["constructor of a subclass"].family().build(16, 2, 0, "deferred")


def test_the_time_step_is_the_horizon_over_the_depth() -> None:
    assert math.isclose(PaperFamily(nfd.ResNet, 5, 3, settings={"horizon": 2.0}).build(8, 4, 0).time_step(), 0.5)


def test_members_are_stacked_where_their_kind_can() -> None:
    family = PaperFamily(nfd.ResNet, 5, 3)
    members = [family.build(8, 2, seed) for seed in range(3)]
    stacked = type(members[0]).stacked(members)
    assert stacked is not None
    torch.testing.assert_close(stacked.module(VECTORS)[1], members[1](VECTORS))
    for group, alone in zip(
        stacked.groups([m.groups(0.1) for m in members]), family.build(8, 2, 0).groups(0.1), strict=False
    ):
        assert group["lr"].shape == (3, 1, 1)
        assert alone["lr"] > 0
    others = [constructed(Residual, VECTORS).build(8, 2, seed) for seed in range(2)]
    pair = type(others[0]).stacked(others)
    assert pair is not None
    torch.testing.assert_close(pair(VECTORS)[1], others[1](VECTORS))
    rates = [member.groups(lr) for member, lr in zip(others, (0.1, 0.2), strict=True)]
    assert pair.groups(rates)[0]["lr"].tolist() == [own[0]["lr"] for own in rates]
    deferred = [family.build(8, 2, 0, "deferred")]
    assert type(deferred[0]).stacked(deferred) is None


def test_only_networks_of_nfd_show_every_layer() -> None:
    assert isinstance(PaperFamily(nfd.ResNet, 5, 3).build(8, 2, 0).network(), nfd.ResNet)
    with pytest.raises(ValueError, match="Residual does not show h and g of every layer"):
        constructed(Residual, VECTORS).build(8, 2, 0).network()
