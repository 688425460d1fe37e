"""A plan in other people's frameworks trains as in a plain loop.

Megatron-LM and torchtitan are not installed here: small stand-ins do what their code does with an
exported file, as read in Megatron-LM core 0.20.0 (commit d98e8a6) and torchtitan 0.2.2 (commit
b5bcd76). Hugging Face's Trainer is the real one.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tests.contract.common import ResidualMLP, batches, run, write_setup
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import nfd

LR = 0.004
DECAY = 0.1
# Large enough for losses to follow it.
EPS = 1e-3
BETAS = (0.9, 0.95)
STEPS = 6

Groups = list[dict[str, Any]]


def planned(
    make: Callable[[int, int], nn.Module] = ResidualMLP, **options: Any
) -> tuple[nn.Module, nfd.Plan]:
    """A model twice as wide and as deep as its base, initialised by its plan."""
    torch.manual_seed(0)
    model = make(32, 4)
    sizes = {"make_model": make, "base": (16, 2), "sample": batches(1)[0][0]}
    plan = nfd.plan(model, **{**sizes, **options})
    return plan.apply_(model, seed=0), plan


def losses(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses of a few steps on digits."""
    values = []
    for x, y in batches(STEPS):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    return values


def plain_losses(**options: Any) -> list[float]:
    """The losses of the plan's own optimizer."""
    model, plan = planned()
    optimizer = plan.make_optimizer(model, LR, DECAY, eps=EPS, betas=BETAS, **options)
    return losses(model, optimizer)


def loaded(text: str) -> SimpleNamespace:
    """The names of an exported file."""
    names: dict[str, Any] = {"__name__": "exported"}
    exec(text, names)
    return SimpleNamespace(**names)


def install(patch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """Let a module be imported that has these names."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        module = ModuleType(".".join(parts[:end]))
        patch.setitem(sys.modules, module.__name__, module)
    vars(module).update(names)


# ---- stand-ins of frameworks, after their code


@dataclass(frozen=True)
class ParamWithNamePredicate:
    """Megatron's, equal by its name."""

    name: str
    fn: Callable[[Tensor, str], bool] = field(compare=False)


@dataclass(frozen=True)
class ParamKey:
    """Megatron's, which fits by a pattern of the name or by a predicate."""

    name: str = ""
    with_name_predicate: ParamWithNamePredicate | None = None
    predicate: Callable[[Tensor], bool] | None = None

    def matches(self, parameter: Tensor, name: str) -> bool:
        of_name = self.with_name_predicate
        if of_name is not None and of_name.fn(parameter, name):
            return True
        fits = self.predicate is not None and self.predicate(parameter)
        return fits or fnmatch(name, self.name)


def megatron_groups(model: nn.Module, config: Any, overrides: dict[ParamKey, Any]) -> Groups:
    """Merge every override that fits, as ``_get_param_groups``, and schedule at a constant rate."""
    vectors = ParamKey("*.bias", predicate=lambda parameter: parameter.dim() == 1)
    standard = {vectors: {"wd_mult": 0.0}}
    groups = []
    for name, parameter in model.named_parameters():
        merged: dict[str, Any] = {}
        for key, override in {**standard, **overrides}.items():
            if not key.matches(parameter, name):
                continue
            for setting, value in override.items():
                if merged.setdefault(setting, value) != value:
                    raise ValueError(f"Conflicting overrides for {setting}")
        group = {"max_lr": config.lr, "wd_mult": 1.0, **merged}
        group["lr"] = group["max_lr"]
        group["weight_decay"] = config.weight_decay * group["wd_mult"]
        groups.append({"params": [parameter], **group})
    return groups


@dataclass(kw_only=True)
class ParamGroupConfig:
    """torchtitan's."""

    pattern: str
    optimizer_name: str
    optimizer_kwargs: dict[str, Any]


class OptimizersContainer:
    """torchtitan's, of which only the configuration is used."""

    @dataclass(kw_only=True)
    class Config:
        param_groups: list[ParamGroupConfig]
        implementation: str = "fused"


def torchtitan_groups(model: nn.Module, config: OptimizersContainer.Config) -> Groups:
    """Give every parameter to the first pattern that fits, as ``_build_param_groups``."""
    groups = []
    claimed = set()
    for one in config.param_groups:
        assert one.optimizer_name == "AdamW"
        names = [
            name
            for name, _ in model.named_parameters()
            if name not in claimed and re.search(one.pattern, name)
        ]
        assert names, f"{one.pattern} matched no parameters"
        claimed |= set(names)
        parameters = [model.get_parameter(name) for name in names]
        groups.append({"params": parameters, **one.optimizer_kwargs})
    assert claimed == {name for name, _ in model.named_parameters()}
    return groups


def megatron_config(**changes: Any) -> SimpleNamespace:
    settings = {
        "optimizer": "adam",
        "decoupled_weight_decay": True,
        "decoupled_lr": None,
        "lr": LR,
        "min_lr": LR / 10,
        "weight_decay": DECAY,
        "adam_eps": EPS,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
    }
    return SimpleNamespace(**{**settings, **changes})


@pytest.fixture
def frameworks() -> Iterator[None]:
    """Let exported files import the stand-ins."""
    with pytest.MonkeyPatch.context() as patch:
        install(
            patch,
            "megatron.core.optimizer.optimizer_config",
            ParamKey=ParamKey,
            ParamWithNamePredicate=ParamWithNamePredicate,
        )
        install(
            patch,
            "torchtitan.components.optimizer",
            ParamGroupConfig=ParamGroupConfig,
            OptimizersContainer=OptimizersContainer,
        )
        yield


class Wrapper(nn.Module):
    """A model under the name that DDP gives it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.module(x)
        return out


# ---- the same training


@pytest.mark.usefixtures("frameworks")
def test_megatrons_overrides_repeat_the_losses_of_a_plain_loop() -> None:
    model, plan = planned()
    file = loaded(plan.to("megatron"))
    chunk = Wrapper(Wrapper(model))
    config = megatron_config()
    groups = megatron_groups(chunk, config, file.config_overrides(config))
    optimizer = torch.optim.AdamW(groups, betas=BETAS)
    assert losses(chunk, optimizer) == pytest.approx(plain_losses(no_decay="vectors"), rel=1e-6)
    for group in groups:
        scale = group["max_lr"] / LR
        assert group["min_lr"] / config.min_lr == pytest.approx(scale)
        assert group["default_config"] is math.isclose(scale, 1, rel_tol=1e-6)
    # What a checkpoint pairs groups by. Groups of one identity must have one epsilon.
    settings = {(group["max_lr"], group["wd_mult"]): group["eps"] for group in groups}
    for group in groups:
        assert settings[group["max_lr"], group["wd_mult"]] == group["eps"]
    assert len(set(settings.values())) > 1


def added_lines(page: str) -> str:
    """What a page of the documentation says to add."""
    text = (Path(__file__).parents[2] / "docs/howto" / page).read_text()
    blocks = re.findall(r"(?s)```diff\n(.*?)```", text)
    lines = "".join(blocks).splitlines()
    return "\n".join(line[1:] for line in lines if line.startswith("+"))


@pytest.mark.usefixtures("frameworks")
def test_the_lines_to_add_to_megatron_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model, plan = planned()
    file = loaded(plan.to("megatron"))
    theirs = {ParamKey("*.bias"): {"wd_mult": 0.0}}
    config = megatron_config()
    training = ModuleType("training")
    vars(training)["get_megatron_optimizer_config"] = lambda args: (config, theirs)
    install(monkeypatch, "megatron.training", training=training)
    monkeypatch.setitem(sys.modules, "nfd_megatron", file)
    exec(added_lines("megatron.md"), {"model": model})
    _, overrides = training.get_megatron_optimizer_config(None)
    assert overrides == theirs | file.config_overrides(config)


@pytest.mark.usefixtures("frameworks")
def test_the_lines_to_add_to_torchtitan_do_so(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = planned()
    file = loaded(plan.to("torchtitan"))
    monkeypatch.setitem(sys.modules, "nfd_torchtitan", file)

    class Model(ResidualMLP):
        """A model of torchtitan, which is initialised by ``init_states``."""

        def init_states(self, *, buffer_device: Any = None) -> None:
            for parameter in self.parameters():
                nn.init.normal_(parameter)

    names: dict[str, Any] = {"Llama3Model": Model, "lr": LR}
    exec(added_lines("torchtitan.md"), names)
    assert names["optimizer"] == file.optimizer_config(lr=LR, weight_decay=0.1)
    model = names["PlannedModel"](32, 4)
    model.init_states()
    rms = model.head.weight.detach().square().mean().sqrt().item()
    assert rms == pytest.approx(plan.std("head.weight"), rel=1e-5) != pytest.approx(1.0, rel=0.1)


def automodel_groups(model: nn.Module, overrides: list[dict[str, Any]]) -> Groups:
    """Give a parameter to the first pattern that fits, as NeMo Automodel 0.5.0 (commit 36044ad)."""
    groups = []
    for name, parameter in model.named_parameters():
        multipliers = {"lr_mult": 1.0, "wd_mult": 1.0}
        fitting = [one for one in overrides if re.search(one["pattern"], name)]
        if fitting:
            multipliers = fitting[0]
        rates = {"lr": LR * multipliers["lr_mult"], "weight_decay": DECAY * multipliers["wd_mult"]}
        groups.append({"params": [parameter], **rates})
    return groups


def olmo_groups(model: nn.Module, overrides: list[dict[str, Any]]) -> Groups:
    """Expand names as globs, and keep the others, as OLMo-core 2.5.0 (commit fa6c501)."""
    parameters = dict(model.named_parameters())
    groups = []
    for override in overrides:
        names = [name for name in parameters for glob in override["params"] if fnmatch(name, glob)]
        groups.append({"params": [parameters.pop(name) for name in names], **override["opts"]})
    assert not parameters
    return groups


def test_the_lists_for_other_frameworks_have_the_rates_of_the_plan() -> None:
    page = (Path(__file__).parents[2] / "docs/howto/other-frameworks.md").read_text()
    code = re.findall(r"(?s)```python\n(.*?)```", page)[-1]
    model, plan = planned()
    names: dict[str, Any] = {
        "model": model,
        "rows": json.loads(plan.to("json"))["groups"],
        "tuned": {"lr": LR, "weight_decay": DECAY, "eps": EPS},
        "re": re,
    }
    exec(code, names)
    # Automodel has one epsilon for all tensors: its losses are not the plan's to rounding.
    groups = automodel_groups(model, names["automodel"])
    for group, name in zip(groups, plan.entries, strict=True):
        assert group["lr"] == pytest.approx(LR * plan.rate(name))
        assert group["weight_decay"] == pytest.approx(DECAY * plan.weight_decay(name))
    optimizer = torch.optim.AdamW(olmo_groups(model, names["olmo"]), betas=BETAS)
    assert losses(model, optimizer) == pytest.approx(plain_losses(), rel=1e-6)


@pytest.mark.usefixtures("frameworks")
def test_megatron_refuses_a_run_that_is_not_the_plans() -> None:
    file = loaded(planned()[1].to("megatron"))
    with pytest.raises(ValueError, match=r"config\.optimizer is 'sgd'"):
        file.config_overrides(megatron_config(optimizer="sgd"))
    with pytest.raises(ValueError, match="decoupled_weight_decay"):
        file.config_overrides(megatron_config(decoupled_weight_decay=False))
    with pytest.raises(ValueError, match="leave decoupled_lr out"):
        file.config_overrides(megatron_config(decoupled_lr=0.1))
    by_adam = loaded(planned(optimizer="adam")[1].to("megatron"))
    with pytest.raises(ValueError, match="for adam without decay"):
        by_adam.config_overrides(megatron_config())
    assert by_adam.config_overrides(megatron_config(weight_decay=0.0))


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("decay_vectors", [True, False])
def test_torchtitans_groups_repeat_the_losses_of_a_plain_loop(decay_vectors: bool) -> None:
    model, plan = planned()
    for number, block in enumerate(model.blocks):
        model.blocks[number] = checkpoint_wrapper(block)
    file = loaded(plan.to("torchtitan"))
    config = file.optimizer_config(
        LR, DECAY, EPS, BETAS, decay_vectors=decay_vectors, implementation="foreach"
    )
    assert config.implementation == "foreach"
    optimizer = torch.optim.AdamW(torchtitan_groups(model, config))
    spared = () if decay_vectors else "vectors"
    assert losses(model, optimizer) == pytest.approx(plain_losses(no_decay=spared), rel=1e-6)


def test_the_table_alone_repeats_the_losses_of_a_plain_loop(tmp_path: Path) -> None:
    model, plan = planned()
    plan.save(tmp_path / "plan.json")
    stored = json.loads((tmp_path / "plan.json").read_text())
    assert stored["version"] == 1
    groups = []
    for name, parameter in model.named_parameters():
        (row,) = [row for row in stored["groups"] if re.search(row["regex"], name)]
        base = {"lr": LR, "weight_decay": DECAY, "eps": EPS}
        settings = {key: value * row["factors"][key] for key, value in base.items()}
        groups.append({"params": [parameter], **settings})
    optimizer = torch.optim.AdamW(groups, betas=BETAS)
    assert losses(model, optimizer) == pytest.approx(plain_losses(), rel=1e-6)
    assert nfd.Plan.load(tmp_path / "plan.json") == plan
    assert plan.to("json") == (tmp_path / "plan.json").read_text()


def gpt2(width: int, depth: int) -> Any:
    """GPT-2 of Hugging Face, without dropout."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=width,
        n_layer=depth,
        n_head=width // 8,
        n_positions=8,
        vocab_size=16,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        loss_type="ForCausalLM",
    )
    return transformers.GPT2LMHeadModel(config)


def language() -> list[dict[str, Tensor]]:
    """Rows of tokens, four for each step."""
    tokens = torch.randint(0, 16, (4 * STEPS, 8), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    # The Trainer divides the sum of the losses by the number of labels. The first one of a row has
    # no token before it, and would count.
    labels[:, 0] = -100
    pairs = zip(tokens, labels, strict=True)
    return [{"input_ids": ids, "labels": targets} for ids, targets in pairs]


def trainer_of(make: Any, model: nn.Module, folder: Path, **changes: Any) -> Any:
    """A Trainer of the class ``make`` with the settings of the base."""
    transformers = pytest.importorskip("transformers")
    arguments = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "learning_rate": LR,
        "weight_decay": DECAY,
        "adam_epsilon": EPS,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "optim": "adamw_torch",
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "save_strategy": "no",
    }
    return make(
        model,
        transformers.TrainingArguments(str(folder), **{**arguments, **changes}),
        train_dataset=language(),
    )


def trained_losses(trainer: Any) -> list[float]:
    """The losses that a Trainer logs."""
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's own
def test_the_trainer_of_hugging_face_repeats_the_losses_of_a_plain_loop(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, plan = planned(gpt2, sample=language()[0]["input_ids"][None])
    reference, unplanned = (plan.apply_(gpt2(32, 4), seed=0) for _ in range(2))
    optimizer = plan.make_optimizer(reference, LR, DECAY, eps=EPS, no_decay="vectors")
    expected = []
    for batch in torch.utils.data.DataLoader(language(), batch_size=4):
        loss = reference(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())

    make = loaded(plan.to("transformers")).PlannedTrainer
    with pytest.raises(ValueError, match="The plan is for AdamW"):
        trainer_of(make, model, tmp_path, optim="sgd").create_optimizer()
    trainer = trainer_of(make, model, tmp_path)
    trainer.add_callback(nfd.integrations.TrainerCallback(plan))
    # Steps of one group after another, or of several at once, differ in rounding.
    assert trained_losses(trainer) == pytest.approx(expected, rel=1e-6)
    by_default = trained_losses(trainer_of(transformers.Trainer, unplanned, tmp_path))
    assert by_default[0] == pytest.approx(expected[0], rel=1e-6)
    assert by_default != pytest.approx(expected, rel=1e-3)


@pytest.mark.filterwarnings("ignore")  # of Hugging Face's own
def test_a_trainer_of_another_library_makes_the_plans_optimizer(tmp_path: Path) -> None:
    """As axolotl's, which takes no model when it makes an optimizer."""
    transformers = pytest.importorskip("transformers")

    class Other(transformers.Trainer):  # type: ignore[misc, name-defined]
        def create_optimizer(self) -> Any:
            return super().create_optimizer()

    model, plan = planned(gpt2, sample=language()[0]["input_ids"][None])
    expected = trained_losses(trainer_of(transformers.Trainer, model, tmp_path))
    plan.apply_(model, seed=0)
    make = type("Planned", (loaded(plan.to("transformers")).PlannedTrainer, Other), {})
    trainer = trainer_of(make, model, tmp_path)
    trainer.add_callback(nfd.integrations.TrainerCallback(plan))
    assert trained_losses(trainer) != pytest.approx(expected, rel=1e-3)


# ---- initial weights


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("framework", ["megatron", "torchtitan"])
def test_initial_weights_get_the_size_of_the_plan(framework: Any) -> None:
    _, plan = planned()
    torch.manual_seed(1)
    model = ResidualMLP(32, 4)
    file = loaded(plan.to(framework))
    before = model.head.weight.clone()
    file.initialise_(Wrapper(model))
    for name, parameter in model.named_parameters():
        if plan.constant(name) is None:
            rms = parameter.detach().square().mean().sqrt().item()
            assert rms == pytest.approx(plan.std(name), rel=1e-5), name
    assert torch.allclose(model.head.weight, before * (model.head.weight / before).mean())
    with torch.no_grad():
        model.head.weight.zero_()
    with pytest.raises(ValueError, match=r"'module\.head\.weight' is 0"):
        file.initialise_(Wrapper(model))
    with pytest.raises(ValueError, match="'other' is not in the plan"):
        file.row_of("other")


# ---- names


class SameEnds(nn.Module):
    """Two tensors whose names end alike, with other rates, and blocks of two kinds."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, 10)
        self.inner = nn.ModuleDict({"head": nn.Linear(width, width)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        out: Tensor = self.head(torch.relu(self.inner["head"](x)))
        return out


def test_a_pattern_fits_no_tensor_with_other_factors() -> None:
    _, plan = planned(SameEnds, rule="mup")
    rows = json.loads(plan.to("json"))["groups"]
    for name in plan.entries:
        for wrapped in (name, f"module.{name}", f"module.module._orig_mod.{name}"):
            (row,) = [row for row in rows if re.search(row["regex"], wrapped)]
            assert row["factors"]["lr"] == plan.rate(name)
            assert row["init_factor"] == plan.start_factor(name)
    assert {"layers.0.weight", "layers.1.weight"} < {row["pattern"] for row in rows}
    assert all(row["tensors"] == 1 for row in rows if "*" not in row["pattern"])


class NamedModule(nn.Module):
    """A tensor whose name is that of another one in a wrapper."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.head = nn.Linear(width, 10)
        self.module = nn.ModuleDict({"head": nn.Linear(width, width)})

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.module["head"](torch.relu(self.embed(x)))))
        return out


@pytest.mark.parametrize(
    ("make", "rows_expected"), [(NamedModule, 6), (SameEnds, 8), (ResidualMLP, 12)]
)
def test_every_tensor_fits_one_row_that_has_its_numbers(
    make: Callable[[int, int], nn.Module], rows_expected: int
) -> None:
    _, plan = planned(make, rule="mup")
    assert len(json.loads(plan.to("json"))["groups"]) == rows_expected
    rows = json.loads(plan.to("json"))["groups"]
    for name in plan.entries:
        (row,) = [row for row in rows if re.search(row["regex"], name)]
        assert row["factors"]["lr"] == plan.rate(name)
        if row["init"] == "drawn":
            assert row["init_value"] == plan.std(name)
    assert sum(row["tensors"] for row in rows) == len(plan.entries)


def test_a_plan_of_a_run_exports_its_running_means() -> None:
    model, plan = planned()
    longer = plan.for_run((32, 256), (1e6, 1e8))
    rows = json.loads(longer.to("json"))["groups"]
    (row,) = [row for row in rows if row["pattern"] == "head.weight"]
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = longer.param_groups(model, LR, DECAY, EPS, betas=BETAS)
    (group,) = [
        group for group in groups if "head.weight" in {names[id(p)] for p in group["params"]}
    ]
    assert LR * row["factors"]["lr"] == pytest.approx(group["lr"])
    assert DECAY * row["factors"]["weight_decay"] == pytest.approx(group["weight_decay"])
    assert EPS * row["factors"]["eps"] == pytest.approx(group["eps"])
    half_lives = row["half_lives"]["betas"]
    betas = [beta ** (1 / h) for beta, h in zip(BETAS, half_lives, strict=True)]
    assert betas == pytest.approx(group["betas"])


# ---- what cannot be exported is output


class Tied(nn.Module):
    """A tied head that no affine norm feeds: its factor stays in the forward pass."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.hidden = nn.Linear(width, width)
        self.output_layer = nn.Linear(width, 16, bias=False)
        self.output_layer.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.output_layer(torch.relu(self.hidden(self.embedding(tokens))))
        return out


def tied() -> nfd.Plan:
    return planned(Tied, rule="mup", sample=torch.zeros(2, 4, dtype=torch.long))[1]


@pytest.mark.usefixtures("frameworks")
def test_a_factor_of_the_output_is_megatrons_setting() -> None:
    plan = tied()
    (factor,) = plan.multipliers.values()
    assert factor == pytest.approx(0.5)
    file = loaded(plan.to("megatron"))
    assert file.NOT_EXPRESSED == []
    settings = file.transformer_settings(hidden_size=32, kv_channels=16)
    # Under use_mup the scale of attention would be 1 / kv_channels.
    assert settings == {
        "softmax_scale": 0.25,
        "use_mup": True,
        "mup_base_hidden_size": 32,
        "mup_output_mult": factor,
    }
    plain = loaded(planned()[1].to("megatron"))
    assert plain.transformer_settings(hidden_size=32, kv_channels=16) == {}


@pytest.mark.usefixtures("frameworks")
@pytest.mark.parametrize("framework", ["torchtitan", "transformers"])
def test_a_factor_that_a_framework_cannot_express_is_said(framework: Any) -> None:
    if framework == "transformers":
        pytest.importorskip("transformers")
    plan = tied()
    with pytest.warns(UserWarning, match=r"no setting .* the output of output_layer by 0\.5"):
        text = plan.to(framework)
    assert "NOT IN THIS FILE" in text
    (sentence,) = loaded(text).NOT_EXPRESSED
    assert "output_layer" in sentence
    assert "NOT IN THIS FILE" not in planned()[1].to(framework)


class GrowingHeads(nn.Module):
    """One head of attention, whose size is the width."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.unflatten(-1, (8, 8)))
        attended = nn.functional.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h))
        out: Tensor = self.head((h + attended).mean(-2))
        return out


@pytest.mark.usefixtures("frameworks")
def test_the_scale_of_attention_is_that_of_the_base_where_heads_grow() -> None:
    _, plan = planned(GrowingHeads, rule="mup")
    (row,) = json.loads(plan.to("json"))["forward"]
    assert (row["kind"], row["at"]) == ("attention", "q.weight")
    settings = loaded(plan.to("megatron")).transformer_settings(hidden_size=32, kv_channels=32)
    # Logits over the size of a head, and as in the base at the base's size of 16.
    assert settings == {"softmax_scale": pytest.approx(math.sqrt(16) / 32)}
    with pytest.warns(UserWarning, match=r"the logits of attention \(queries: q\.weight\)"):
        plan.to("torchtitan")


def test_the_scale_of_attention_is_seen_on_the_meta_device() -> None:
    def build(width: int, depth: int) -> nn.Module:
        with torch.device("meta" if width > 16 else "cpu"):
            return GrowingHeads(width, depth)

    _, plan = planned(GrowingHeads, rule="mup")
    options = {"make_model": GrowingHeads, "base": (16, 2), "rule": "mup"}
    of_meta = nfd.plan(build(32, 4), sample=batches(1)[0][0], **options)
    (row,) = json.loads(of_meta.to("json"))["forward"]
    (expected,) = json.loads(plan.to("json"))["forward"]
    assert row == expected | {"factor": pytest.approx(expected["factor"])}


def test_unknown_frameworks_and_optimizers_are_refused(tmp_path: Path) -> None:
    _, plan = planned()
    with pytest.raises(ValueError, match="framework must be one of 'json', 'megatron'"):
        plan.to("megatorn")  # type: ignore[arg-type]
    _, by_muon = planned(optimizer="muon")
    with pytest.raises(ValueError, match=r"this one is for muon\. Write the table"):
        by_muon.to("torchtitan")
    optimizers = {row["optimizer"] for row in json.loads(by_muon.to("json"))["groups"]}
    assert optimizers == {"muon", "adamw"}
    later = json.loads(plan.to("json")) | {"version": 2}
    (tmp_path / "plan.json").write_text(json.dumps(later))
    with pytest.raises(ValueError, match="is a plan of version 2; this nfd reads version 1"):
        nfd.Plan.load(tmp_path / "plan.json")


def on_meta(width: int, depth: int) -> nn.Module:
    with torch.device("meta"):
        return ResidualMLP(width, depth)


@pytest.mark.parametrize("framework", ["json", "megatron", "torchtitan", "transformers"])
def test_a_model_on_the_meta_device_has_the_file_of_one_with_numbers(framework: Any) -> None:
    _, plan = planned()
    of_meta = nfd.plan(
        on_meta(32, 4), make_model=ResidualMLP, base=(16, 2), sample=batches(1)[0][0]
    )
    assert of_meta.to(framework) == plan.to(framework)


# ---- in the shell

SETUP = """
from common import ResidualMLP as make_model, batches
batches = batches(2)
"""


def test_the_command_writes_the_file_of_a_framework(tmp_path: Path) -> None:
    write_setup(tmp_path, SETUP)
    command = ("plan", "setup.py", "--width", "32", "--depth", "4", "--base", "16", "2")
    done = run(*command, "--to", "torchtitan", folder=tmp_path)
    assert done.returncode == 0
    output = " ".join(done.stdout.split())
    assert "by out/plan/nfd_torchtitan.py, written for torchtitan 0.2.2" in output
    assert "nfd_torchtitan.optimizer_config(lr=lr)" in output
    assert "has no setting" not in output
    plan = nfd.Plan.load(tmp_path / "out/plan/plan.json")
    assert (tmp_path / "out/plan/nfd_torchtitan.py").read_text() == plan.to("torchtitan")
    wrong = run(*command, "--to", "torchtitam", folder=tmp_path)
    assert wrong.returncode == 2
    assert "'torchtitan'" in wrong.stderr
    stored = ("--fits", "out/plan/plan.json")
    both = run(*command, *stored, "--to", "torchtitan", folder=tmp_path)
    assert both.returncode == 2
    assert "writes no file" in both.stderr


SETUP_ON_META = """
import torch
from common import ResidualMLP, batches
batches = batches(2)
def make_model(width, depth):
    if width <= 16:
        return ResidualMLP(width, depth)
    with torch.device("meta"):
        return ResidualMLP(width, depth)
"""


def test_the_command_writes_the_file_of_a_model_on_the_meta_device(tmp_path: Path) -> None:
    command = ("plan", "setup.py", "--width", "32", "--depth", "4", "--base", "16", "2")
    texts = []
    for setup in (SETUP, SETUP_ON_META):
        write_setup(tmp_path, setup)
        assert run(*command, "--to", "torchtitan", folder=tmp_path).returncode == 0
        texts.append((tmp_path / "out/plan/nfd_torchtitan.py").read_text())
    assert texts[0] == texts[1]
    write_setup(tmp_path, SETUP_ON_META.replace("width <= 16", "False"))
    refused = run(*command, "--to", "torchtitan", folder=tmp_path)
    assert refused.returncode == 2
    assert "The model and its base are on the meta device" in refused.stderr


SETUP_OF_A_TIED_HEAD = """
import torch
from tied import Tied as make_model
tokens = torch.zeros(2, 4, dtype=torch.long)
batches = [(tokens, tokens)]
"""


def test_the_command_says_what_a_framework_cannot_express(tmp_path: Path) -> None:
    write_setup(tmp_path, SETUP_OF_A_TIED_HEAD)
    source = "import torch\nfrom torch import Tensor, nn\n\n" + inspect.getsource(Tied)
    (tmp_path / "tied.py").write_text(source)
    sizes = ("--width", "32", "--depth", "2", "--base", "16", "2", "--rule", "mup")
    done = run("plan", "setup.py", *sizes, "--to", "torchtitan", folder=tmp_path)
    assert done.returncode == 0
    output = " ".join(done.stdout.split())
    assert "But torchtitan has no setting that multiplies the output of output_layer" in output
    by_megatron = run("plan", "setup.py", *sizes, "--to", "megatron", folder=tmp_path)
    assert "has no setting" not in " ".join(by_megatron.stdout.split())


@pytest.mark.usefixtures("frameworks")
def test_what_a_plan_remarks_stands_in_the_file() -> None:
    plan = tied()
    assert loaded(plan.to("megatron")).NOTES == list(plan.notes) != []
