"""Laws that are found by stepping: what is told apart, what is refused, and that plans use it."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests import optimizers as like
from torch import Tensor, nn

import nfd
from nfd.scaling.find_law import law_of
from nfd.scaling.optimizers import EACH_ENTRY, LAWS, WHOLE_MATRIX
from nfd.testing import LawError, check_law

ROUNDING = 0.03  # bfloat16 has a unit of 2^-8, and PyTorch's Newton-Schulz five steps


def matrix(rows: int = 4, columns: int = 4) -> nn.Parameter:
    return nn.Parameter(torch.ones(rows, columns))


def both() -> list[nn.Parameter]:
    return [matrix(), nn.Parameter(torch.ones(4))]


# ---- what is told apart

BUILT: dict[str, Any] = {
    "lion": like.Lion,
    "muon-spectral": like.with_shape(lambda rows, columns: (rows / columns) ** 0.5),
    "muon-unit": like.with_shape(lambda rows, columns: 1.0),
}
KNOWN = ["sgd", "adam", "adamw", "muon", "muon-match-rms-adamw", *BUILT]


@pytest.mark.parametrize("name", KNOWN)
def test_the_laws_of_the_library_are_true(name: str) -> None:
    law = LAWS[name]
    # exact polar factors stand for those of implementations that are not installed
    law = replace(law, classes=()) if name in BUILT else law
    measured = check_law(law, BUILT.get(name))
    assert measured.degree == law.degree
    assert measured.unit == law.unit


@pytest.mark.parametrize(
    ("name", "change", "claims"),
    [
        ("adamw", {"degree": 1.0}, ["degree is 1; measured 0"]),
        ("sgd", {"degree": 0.5}, ["degree is 0.5; measured 1"]),
        ("adamw", {"unit": WHOLE_MATRIX}, ["unit is WHOLE_MATRIX; measured EACH_ENTRY"]),
        ("muon", {"unit": EACH_ENTRY}, ["unit is EACH_ENTRY; measured WHOLE_MATRIX"]),
        (
            "adamw",
            {"vector_unit": WHOLE_MATRIX},
            ["vector_unit is WHOLE_MATRIX; measured EACH_ENTRY"],
        ),
        (
            "muon",
            {"shape_norm": lambda rows, columns: 1.0},
            [r"shape_norm of \[64, 16\].* is 1 .*; measured 2"],
        ),
        (
            "muon-match-rms-adamw",
            {"shape_norm": LAWS["muon"].shape_norm},
            [r"shape_norm of .*; measured"],
        ),
        ("adamw", {"shape_norm": lambda rows, columns: math.sqrt(rows)}, ["shape_norm of"]),
        ("adamw", {"epsilon": False}, ["epsilon is False; measured: an eps acts"]),
        ("muon", {"epsilon": True}, ["epsilon is True; measured: an eps does not act"]),
        (
            "adamw",
            {"decoupled": False},
            ["decoupled is False; measured: decay acts on the weights"],
        ),
        ("adam", {"decoupled": True}, ["decoupled is True; measured: decay acts on the gradient"]),
        ("adamw", {"states": 1}, ["states is 1; measured 2"]),
        ("muon", {"rest": None}, ["rest is None; the optimizer steps no vectors"]),
        ("adamw", {"equivariant": True}, ["equivariant is True; measured"]),
        ("adamw", {"classes": ("Lion",)}, ["classes are Lion; measured was AdamW"]),
        (
            "adamw",
            {"hyperparameters": (nfd.Hyperparameter("beta3", "beta1"),)},
            ["groups have no 'beta3'", "groups have 'weight_decay', which the law does not name"],
        ),
        (
            "adamw",
            {
                "hyperparameters": (
                    *LAWS["adamw"].settings[:2],
                    nfd.Hyperparameter("betas", ("beta1", "beta2", "beta1")),
                )
            },
            ["betas has 2 numbers; the law says what 3 follow"],
        ),
        (
            "muon",
            {
                "hyperparameters": (
                    LAWS["muon"].settings[0],
                    nfd.Hyperparameter("ns_steps", "beta1"),
                )
            },
            ["ns_steps has 5, which follows 'beta1'; measured: .* no running mean"],
        ),
        ("adamw", {"degree": 1.0, "states": 3}, ["degree is 1", "states is 3"]),
    ],
)
def test_false_claims_are_named(name: str, change: dict[str, Any], claims: list[str]) -> None:
    law = replace(LAWS[name], **change)
    for claim in claims:
        with pytest.raises(LawError, match=claim) as caught:
            check_law(law)
        assert isinstance(caught.value, AssertionError)


def test_running_means_have_the_shares_of_the_past_that_a_law_names() -> None:
    settings = (
        nfd.Hyperparameter("weight_decay", "weight decay"),
        nfd.Hyperparameter("betas", ("beta1", "beta2")),
    )
    law = nfd.OptimizerLaw("lion-of-two-means", like.Lion, states=1, hyperparameters=settings)
    # it only weighs this step's gradient
    with pytest.raises(LawError, match=r"betas has 0.9, which follows 'beta1'"):
        check_law(law)
    check_law(
        replace(law, hyperparameters=(settings[0], nfd.Hyperparameter("betas", (None, "beta1"))))
    )


# a law that exists; or degree, unit, that of vectors, and norms of 64 x 64, 64 x 16, 16 x 64 and 48
# x 16, over 16 x 16
OBJECTS: dict[str, tuple[Any, Any]] = {
    "Lion": (lambda: like.Lion(both()), "lion"),
    "Signum": (lambda: like.Signum(both()), "lion"),
    "NAdam": (lambda: torch.optim.NAdam(both()), "adam"),
    "NAdam, decoupled": (lambda: torch.optim.NAdam(both(), decoupled_weight_decay=True), "adamw"),
    "RMSprop": (lambda: torch.optim.RMSprop(both()), "adam"),
    "ASGD": (lambda: torch.optim.ASGD(both()), "sgd"),
    "Keller Jordan": (
        lambda: like.KellerJordan(
            [
                {"params": [matrix()], "use_muon": True, "weight_decay": 0.1},
                {"params": both()[1:], "use_muon": False, "weight_decay": 0.0},
            ]
        ),
        "muon",
    ),
    "Moonlight": (lambda: like.Moonlight(muon_params=[matrix()]), "muon-match-rms-adamw"),
    "spectral": (lambda: BUILT["muon-spectral"]([matrix()]), "muon-spectral"),
    "fused as a whole": (lambda: like.Fused([matrix()]), "muon-unit"),
    "root of signs": (
        lambda: like.RootSign(both()),
        (0.5, EACH_ENTRY, EACH_ENTRY, (4, 2, 2, 3**0.5)),
    ),
    "fused in parts": (lambda: like.Split([matrix()]), (0, WHOLE_MATRIX, None, (1, 1, 1, 3**0.5))),
    "rows in turn": (
        lambda: like.Interleaved([matrix()]),
        (0, WHOLE_MATRIX, None, (1, 1, 1, 3**0.5)),
    ),
    "heads": (lambda: like.ByHead([matrix()]), (0, WHOLE_MATRIX, None, (2, 2, 1, 3**0.5))),
    "Shampoo": (lambda: like.Shampoo(both()), (0, WHOLE_MATRIX, EACH_ENTRY, (1, 1, 1, 1))),
    "SOAP": (lambda: like.SOAP(both()), (0, WHOLE_MATRIX, EACH_ENTRY, (1, 1, 1, 1))),
    "over a norm": (lambda: like.NormSGD(both()), (0, WHOLE_MATRIX, WHOLE_MATRIX, (1, 1, 1, 1))),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_unknown_object_is_measured_and_is_not_stepped(name: str) -> None:
    make, expected = OBJECTS[name]
    optimizer = make()
    before = (
        copy.deepcopy(optimizer.state_dict()),
        [p.clone() for g in optimizer.param_groups for p in g["params"]],
    )
    random = torch.random.get_rng_state()
    law = law_of(optimizer)
    assert optimizer.state_dict() == before[0]
    after = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(torch.equal(a, b) and a.grad is None for a, b in zip(after, before[1], strict=True))
    assert torch.equal(random, torch.random.get_rng_state())
    if isinstance(expected, str):
        assert law.name == expected
        return
    degree, unit, of_vectors, norms = expected
    assert (law.degree, law.unit) == (degree, unit)
    assert law.for_vectors().unit == (unit if of_vectors is None else of_vectors)
    assert law.rest == ("adamw" if of_vectors is None else None)
    measured = check_law(optimizer)
    shapes = ((64, 64), (64, 16), (16, 64), (48, 16))
    assert [measured.norms[s] / measured.norms[16, 16] for s in shapes] == pytest.approx(
        norms, rel=ROUNDING
    )
    assert law_of(make()) == law  # another time, it is the same
    check_law(law, type(optimizer))


def test_parts_of_fused_matrices_are_seen() -> None:
    assert check_law(like.Split([matrix()])).parts[48, 16] == 3
    assert check_law(like.Interleaved([matrix()])).parts[48, 16] == 3
    assert check_law(like.ByHead([matrix()])).parts[64, 16] == 16
    for whole in (like.Fused, like.Shampoo, torch.optim.Muon):
        assert not check_law(whole([matrix()])).is_split
    fused = {"params": [matrix(12, 4)], "split": 3}
    others = {"params": [matrix()], "split": 1}
    by_group = check_law(like.Parts([fused, others]))
    assert (by_group.parts[48, 16], by_group.parts[16, 16]) == (3, 1)
    with pytest.raises(ValueError, match="step matrices of one shape with different split"):
        check_law(
            like.Parts(
                [
                    fused | {"split": 1, "params": [matrix(12, 4)]},
                    {"params": [matrix(12, 4)], "split": 3},
                ]
            )
        )


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda: like.LAMB(both()), "LAMB, whose updates follow the size of the weights"),
        (lambda: like.LARS(both()), "LARS, whose updates follow the size of the weights"),
        (
            lambda: torch.optim.Adafactor(both()),
            "Adafactor, whose updates follow the size of the weights",
        ),
        (lambda: like.Sophia(both()), "state 'hessian' is not filled by step"),
        (lambda: like.OverAll(both()), "follow the gradient of another"),
        (lambda: like.Clipped(both()), "no one power of the gradient"),
        (lambda: torch.optim.RAdam(both()), "no one power of the gradient"),
        (lambda: torch.optim.LBFGS(both()), "LBFGS, which could not be stepped"),
        (
            lambda: like.Lookahead(like.Signum(both())),
            "another like it cannot be made.*Pass a function",
        ),
        (lambda: like.Lookahead, "could not make an optimizer of one matrix"),
        (lambda: len, "could not make an optimizer of one matrix"),
    ],
)
def test_what_stepping_cannot_tell_is_refused_by_name(optimizer: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        law_of(optimizer())


def test_states_of_one_precision_and_an_idle_first_step_are_measured() -> None:
    law = law_of(like.Single(both()))
    assert (law.degree, law.unit, law.decoupled) == (0, EACH_ENTRY, False)
    with pytest.raises(LawError, match="decoupled is True; measured: decay acts on the gradient"):
        check_law(replace(law, decoupled=True), like.Single)


# ---- an optimizer that somebody describes

ADAN = nfd.OptimizerLaw(
    "adan",
    lambda groups, **options: like.Adan(groups, **options),
    classes=("Adan",),
    epsilon=True,
    states=4,
    hyperparameters=(
        nfd.Hyperparameter("weight_decay", "weight decay", 0.0),
        nfd.Hyperparameter("eps", "epsilon", 1e-8),
        nfd.Hyperparameter("betas", ("beta1", "beta1", "beta2")),
    ),
)


@pytest.fixture
def adan(monkeypatch: pytest.MonkeyPatch) -> nfd.OptimizerLaw:
    """The law of Adan, registered for one test."""
    monkeypatch.setitem(LAWS, "adan", ADAN)
    return ADAN


@pytest.mark.usefixtures("adan")
def test_means_of_differences_of_gradients_are_filled_and_their_law_is_checked() -> None:
    measured = check_law("adan")
    assert (measured.states, measured.decay) == (4, "weights")
    with pytest.raises(LawError, match="states is 3; measured 4"):
        check_law(replace(ADAN, states=3))


class OneShare(like.Adan):
    """Its second beta weighs nothing: both means of gradients forget alike."""

    def direction(self, p: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        first, _, third = group["betas"]
        return super().direction(p, state, {**group, "betas": (first, first, third)})


def test_a_mean_of_differences_that_forgets_otherwise_than_its_beta_is_named() -> None:
    with pytest.raises(LawError, match=r"betas has 0.92, which follows 'beta1'"):
        check_law(replace(ADAN, classes=()), OneShare)


@pytest.mark.usefixtures("adan")
def test_a_registered_law_is_the_law_of_its_class_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert law_of(like.Adan(both())) is ADAN
    assert law_of(like.Adan) is ADAN
    # Without a function that makes it, the class does.
    monkeypatch.setitem(LAWS, "adan", replace(ADAN, make=None))
    law = law_of(like.Adan)
    assert (law.name, law.make) == ("adan", like.Adan)
    assert LAWS["adan"] == law
    # A class of another name is measured, and so is one with steps of its own.
    assert law_of(like.Signum).name == "signum"


def test_decay_of_weights_after_an_update_is_told_from_decay_of_the_gradient() -> None:
    for kind, decoupled in ((like.Proximal, True), (like.OwnDecay, True), (like.Single, False)):
        assert law_of(kind(both())).decoupled == decoupled
    model = Fused(16, 2)
    plan = nfd.plan(
        model, (8, 2), make_model=Fused, sample=SAMPLE, rule="mup", optimizer=like.Proximal
    )
    optimizer = plan.make_optimizer(model, 0.1, weight_decay=0.1)
    # A step of every group removes the same share of the weights.
    shares = [group["lr"] * group["weight_decay"] for group in optimizer.param_groups]
    assert shares == pytest.approx([0.1 * 0.1] * len(shares))


def test_a_class_that_steps_otherwise_than_its_name_is_measured() -> None:
    class AdamW(torch.optim.AdamW):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(p.grad, alpha=group["lr"])

    assert law_of(AdamW(both())).degree == 1
    assert law_of(type("Mine", (torch.optim.AdamW,), {})(both())).name == "adamw"


# ---- plans use it


class Fused(nn.Module):
    """Blocks with fused queries, keys and values, of which keys and values keep their size; nothing
    attends.
    """

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.head = nn.Linear(width, 3)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(3 * width, width, bias=False) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for qkv, out in zip(self.qkv, self.out, strict=True):
            h = h + out(torch.relu(qkv(h)))
        return self.head(h)


SAMPLE = torch.linspace(-1, 1, 10).view(2, 5)


def norms(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Operator norms of the second update, from gradients of rank one."""
    for _ in range(2):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
    updates = {
        name: torch.atleast_2d(p.detach() - before[name]) for name, p in model.named_parameters()
    }
    return {name: float(torch.linalg.matrix_norm(update, 2)) for name, update in updates.items()}


PLANNED = {
    "Split": like.Split,
    "ByHead": like.ByHead,
    "SOAP": like.SOAP,
    "Shampoo": like.Shampoo,
    "NormSGD": like.NormSGD,
    "RootSign": like.RootSign,
    "NAdam": torch.optim.NAdam,
}


@pytest.mark.parametrize("name", PLANNED)
def test_measured_updates_are_as_large_as_the_rule_says(name: str) -> None:
    """The operator norm of every update grows as (out / in)^1/2; of a vector as out^1/2."""
    kind = PLANNED[name]

    def stepped(width: int) -> tuple[nfd.Plan, dict[str, float]]:
        # in float32 rounding is a gradient of full rank, which SOAP normalises as it does the rest
        model = Fused(width, 2).double()
        plan = nfd.plan(model, (8, 2), make_model=Fused, rule="mup", optimizer=kind)
        return plan, norms(model, plan.make_optimizer(model, lr=0.1))

    (_, base) = stepped(8)
    (plan, large) = stepped(64)
    for tensor, size in large.items():
        entry = plan.entries[tensor]
        fan_in = 1.0 if entry.is_vector else entry.ratios.fan_in
        # gradients of ones here; where they scale as in training, a power of them is left
        grown = plan.epsilon(tensor) ** -plan.law_for(tensor).degree
        assert size / base[tensor] / grown == pytest.approx(
            (entry.ratios.fan_out / fan_in) ** 0.5, rel=ROUNDING
        ), tensor


def test_a_plan_names_what_was_measured_and_a_matrix_optimizer_gets_no_note_about_muon() -> None:
    model = Fused(16, 2)

    def plan(optimizer: Any) -> nfd.Plan:
        return nfd.plan(
            model, (8, 2), make_model=Fused, sample=SAMPLE, rule="mup", optimizer=optimizer
        )

    soap = plan(like.SOAP)
    assert soap.optimizer == "soap"
    assert not any("uon" in note or "orthogonal" in note for note in soap.notes)
    assert not any(soap.is_muon(name) for name in soap.entries)
    assert any("orthogonalised as a whole" in note for note in plan("muon").notes)
    assert any(
        "normalises some matrices in parts" in note and "[48, 16] in 3" in note
        for note in plan(like.Split).notes
    )
    moonlight = plan(like.Moonlight(muon_params=[matrix()]))
    assert any(
        "updates are as large as those of 'muon-match-rms-adamw'" in note
        for note in moonlight.notes
    )
    assert not any("was not known" in note for note in plan(torch.optim.Muon([matrix()])).notes)
    assert nfd.Plan.from_dict(soap.to_dict()) == soap
    with pytest.raises(ValueError, match=r"not known here: 'no-such'.*register_optimizer"):
        nfd.Plan.from_dict(soap.to_dict() | {"optimizer": "no-such"})


def test_a_decay_that_does_not_know_the_rate_is_kept_at_every_size() -> None:
    model = Fused(64, 2)
    plan = nfd.plan(
        model, (8, 2), make_model=Fused, sample=SAMPLE, rule="mup", optimizer=like.OwnDecay
    )
    optimizer = plan.make_optimizer(model, 0.1, weight_decay=0.01)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.01}
