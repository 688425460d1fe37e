"""Plans and watches in the trainers of Hugging Face and Lightning, tiny and for a few steps."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models import SHIFTED, Language, gpt2
from torch import nn

import nfd
from nfd.core.errors import InputError
from nfd.integrations import check_optimizers, of_network, to_tensorboard, to_wandb
from nfd.watch import Alert, Cause, WatchRow
from nfd.watch.causes import Alarm

pytestmark = pytest.mark.filterwarnings("ignore")  # of Hugging Face's and Lightning's own

SAMPLE = SHIFTED[0][0]
ROWS = [
    WatchRow(2, "alignment", None, None, 0.5, None),
    WatchRow(2, "update", "blocks.0.up", 0.5, 0.1, "up"),
    WatchRow(4, "alignment", None, None, 0.25, None),
]


def planned(rule: str = "complete-p") -> tuple[Language, nfd.Plan]:
    torch.manual_seed(0)
    model = Language(16, 2)
    plan = nfd.plan(model, rule=rule, make_model=Language, base=(8, 1), sample=SAMPLE)
    plan.apply_(model)
    return model, plan


# ---- whose optimizer


def test_the_optimizer_of_a_plan_is_told_from_any_other() -> None:
    model, plan = planned()
    twin, other_plan = planned("mup")
    frozen, _ = planned()
    frozen.tokens.weight.requires_grad_(False)

    def checked(optimizer: torch.optim.Optimizer, stepped: nn.Module = model) -> None:
        check_optimizers(plan, stepped, [optimizer], "Do this.")

    checked(plan.make_optimizer(model, lr=0.01))
    checked(torch.optim.AdamW(plan.param_groups(model, lr=0.3, no_decay="vectors")))
    checked(plan.make_optimizer(frozen, lr=0.01), frozen)
    with pytest.raises(
        InputError, match=r"The AdamW does not step 'tokens\.weight', .* its groups.* Do this\."
    ):
        checked(torch.optim.AdamW(model.parameters()))
    with pytest.raises(InputError, match=r"does not step 'tokens\.weight'.*another plan or model"):
        checked(plan.make_optimizer(twin, lr=0.01))
    with pytest.raises(InputError, match="does not step 'blocks"):
        checked(other_plan.make_optimizer(model, lr=0.01))
    before = plan.make_optimizer(frozen, lr=0.01)
    frozen.tokens.weight.requires_grad_(True)
    with pytest.raises(
        InputError, match=r"does not step 'tokens\.weight' at .* before these were to train"
    ):
        checked(before, frozen)
    whole, flat = planned("standard")
    check_optimizers(flat, whole, [torch.optim.AdamW(whole.parameters())], "")
    check_optimizers(flat, whole, [flat.make_optimizer(whole, lr=0.01)], "")
    parts = [
        {"params": whole.tokens.parameters()},
        {"params": whole.blocks.parameters(), "lr": 0.1},
    ]
    with pytest.raises(InputError, match="does not step 'tokens"):
        check_optimizers(flat, whole, [torch.optim.AdamW(parts)], "")
    mixed = plan.make_optimizer(model, lr=0.01)
    mixed.param_groups[0]["lr"] *= 2
    with pytest.raises(InputError, match=r"no longer the plan's"):
        checked(mixed)


def test_an_optimizer_of_groups_warns_of_lost_ratios_and_one_that_warns_does_so_once() -> None:
    model, plan = planned()
    for optimizer in (
        torch.optim.SGD(plan.param_groups(model, lr=0.01)),
        plan.make_optimizer(model, lr=0.01),
    ):
        check_optimizers(plan, model, [optimizer], "")
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        with pytest.warns(RuntimeWarning, match="The rates are no longer the plan's:") as warned:
            optimizer.step()
        assert len(warned) == 1


# ---- alerts


class AtTheSecondLook(Alarm):
    """Expects nothing, and raises one alert at step 2."""

    last_step = 99
    is_of_sound = True

    def __init__(self) -> None: ...

    def alerts(self, rows: Any) -> list[Alert]:
        row = rows[0]
        alert = Alert(
            row.step, row.step, row.meter, None, 1.0, None, Cause.UNKNOWN, "seen", "Look at it."
        )
        return [alert] if row.step == 2 else []

    def band(self, row: Any) -> None:
        return None


def trained_by_transformers(
    folder: Path, watching: dict[str, Any]
) -> tuple[nfd.Watch, list[float]]:
    """The watch of a training of four steps, and the numbers of alerts that were logged."""
    trainer, watch = trainer_of(folder, steps=4, watching=watching)
    trainer.train()
    return watch, [
        entry["nfd/alerts"] for entry in trainer.state.log_history if "nfd/alerts" in entry
    ]


def trained_by_lightning(_: Path, watching: dict[str, Any]) -> tuple[nfd.Watch, list[float]]:
    """The same in Lightning."""
    _, watch, said = fitted(steps=4, watching=watching)
    return watch, [metrics["nfd/alerts"] for metrics, _ in said if "nfd/alerts" in metrics]


@pytest.mark.parametrize("trained", [trained_by_transformers, trained_by_lightning])
@pytest.mark.parametrize(("on_alert", "steps"), [("warn", 4), ("stop", 2)])
def test_trainers_warn_log_and_count_an_alert_once_and_stop_where_they_are_to(
    trained: Any, on_alert: str, steps: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watch, logged = trained(tmp_path, {"expected": AtTheSecondLook(), "on_alert": on_alert})
    (alert,) = watch.alerts
    (told,) = (warning for warning in caught if str(warning.message) == str(alert))
    # The line of this file that called the trainer, and none of the trainer's own
    assert told.filename == __file__
    assert [record.getMessage() for record in caplog.records if record.name == "nfd"] == [
        str(alert)
    ]
    assert watch.steps == steps
    assert logged == [0.0, 1.0, 1.0, 1.0][:steps]


@pytest.mark.parametrize("trained", [trained_by_transformers, trained_by_lightning])
def test_trainers_go_on_and_warn_of_nothing_without_an_alert(
    trained: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch, logged = trained(tmp_path, {"on_alert": "stop"})
    assert (watch.steps, watch.should_stop, logged) == (4, False, [0.0] * 4)
    assert [record for record in caplog.records if record.name == "nfd"] == []


@pytest.mark.parametrize("trained", [trained_by_transformers, trained_by_lightning])
@pytest.mark.parametrize("every", [5, 4])
def test_trainers_warn_before_a_training_that_ends_without_a_look(
    trained: Any, every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four steps."""
    ends_before = every > 4
    expected = pytest.warns(UserWarning, match=r"Watch\(\.\.\., every=1\)")
    with expected if ends_before else contextlib.nullcontext():
        watch, _ = trained(tmp_path, {"every": every})
    assert (watch.steps, bool(watch.rows)) == (4, not ends_before)
    assert ends_before == any("no layer will be" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize("rule", ["standard", None])
@pytest.mark.parametrize("dies", [True, False])
def test_a_plain_trainer_is_watched(rule: str | None, dies: bool, tmp_path: Path) -> None:
    """With the optimizer of the Trainer itself, by a plan whose factors are 1 or by none."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = gpt2(16, 2)
    tokens = torch.randint(0, 16, (8, 8), generator=torch.Generator().manual_seed(1))
    quiet = {
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 2,
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=6,
        per_device_train_batch_size=2,
        weight_decay=0.1,
        warmup_steps=2,
        **quiet,
    )
    data = [{"input_ids": ids, "labels": ids} for ids in tokens]
    trainer = transformers.Trainer(model, arguments, train_dataset=data)
    sample = {"input_ids": tokens[:2]}
    plan = None if rule is None else nfd.plan(model, rule=rule, sample=sample)
    if dies:
        nn.init.constant_(model.get_parameter("transformer.h.1.mlp.c_fc.bias"), -100.0)
    watch = nfd.Watch(model, plan, sample, every=2, on_alert="stop")
    trainer.add_callback(nfd.integrations.TrainerCallback(plan, watch, log=trainer.log))
    trainer.train()
    assert watch.failed is None
    assert [(alert.layer, alert.cause) for alert in watch.alerts] == (
        [("transformer.h.1.mlp.c_proj", Cause.DEAD)] if dies else []
    )
    assert watch.steps == (4 if dies else 6)
    # the last one is logged after the last look
    assert list(watch.losses) == ([2] if dies else [2, 4])


@pytest.mark.parametrize("rule", ["standard", None])
def test_a_plain_lightning_module_is_watched(rule: str | None) -> None:
    lightning = pytest.importorskip("lightning")
    torch.manual_seed(0)
    net = Language(16, 2)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]).flatten(0, 1), batch[1].flatten())

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    plan = None if rule is None else nfd.plan(net, rule=rule, sample=SAMPLE)
    watch = nfd.Watch(net, plan, SAMPLE, every=2)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "logger": False,
    }
    callback = nfd.integrations.LightningCallback(plan, watch)
    trainer = lightning.Trainer(
        max_steps=4, enable_checkpointing=False, callbacks=[callback], **quiet
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(SHIFTED[:4], batch_size=None))
    assert (watch.steps, watch.alerts, watch.failed, list(watch.losses)) == (
        4,
        [],
        None,
        [1, 2, 3, 4],
    )


@pytest.mark.parametrize("name", ["TrainerCallback", "LightningCallback"])
def test_a_callback_without_a_plan_and_a_watch_is_refused(name: str) -> None:
    pytest.importorskip("transformers" if name == "TrainerCallback" else "lightning")
    callback = getattr(nfd.integrations, name)
    with pytest.raises(
        InputError, match=rf"neither a plan, .* {name}\(None, nfd\.Watch\(model, None, sample\)\)"
    ):
        callback()
    with pytest.raises(TypeError, match=r"watch must be an nfd\.Watch or None; got int"):
        callback(None, 3)
    with pytest.raises(TypeError, match=r"plan must be an nfd\.Plan or None; got str"):
        callback("mup")


# ---- writers


class Recorder:
    """Stands for a SummaryWriter and for a run of W&B."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.records.append((name, value, step))

    def log(self, values: dict[str, float], step: int) -> None:
        self.records.append((values, step))


def test_writers_give_every_row_its_name_and_step() -> None:
    writer = Recorder()
    run = Recorder()
    to_tensorboard(ROWS, writer)
    assert writer.records == [
        ("nfd/alignment", 0.5, 2),
        ("nfd/update/blocks.0.up", 0.1, 2),
        ("nfd/alignment", 0.25, 4),
    ]
    to_wandb(ROWS, run)
    assert run.records == [
        ({"nfd/alignment": 0.5, "nfd/update/blocks.0.up": 0.1}, 2),
        ({"nfd/alignment": 0.25}, 4),
    ]
    assert of_network(ROWS[:2]) == {"nfd/alignment": 0.5}


@pytest.mark.slow
def test_real_writers_store_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        to_tensorboard(ROWS, writer)
    events = reading.EventAccumulator(str(tmp_path)).Reload()
    assert [(event.step, event.value) for event in events.Scalars("nfd/alignment")] == [
        (2, 0.5),
        (4, 0.25),
    ]
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(mode="offline", dir=tmp_path) as run:
        to_wandb(ROWS, run)
        run.log({}, step=5)
        assert (run.summary["nfd/alignment"], run.summary["nfd/update/blocks.0.up"]) == (0.25, 0.1)


# ---- Hugging Face


def trainer_of(
    folder: Path,
    *,
    forget: bool = False,
    steps: int = 2,
    lr: float = 1e-3,
    watching: Any = None,
    **options: Any,
) -> tuple[Any, nfd.Watch]:
    """A Trainer on batches of tokens, with the callback of a plan and a watch."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = gpt2(16, 2)
    plan = nfd.plan(model, rule="complete-p", make_model=gpt2, base=(8, 1))
    plan.apply_(model)
    usual = {
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        max_grad_norm=0.0,
        **usual | options,
    )
    tokens = torch.randint(0, 16, (8, 8), generator=torch.Generator().manual_seed(1))
    optimizer = None if forget else plan.make_optimizer(model, lr=lr)
    data = [{"input_ids": ids, "labels": ids} for ids in tokens]
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data, optimizers=(optimizer, None)
    )
    watch = nfd.Watch(model, plan, {"input_ids": tokens[:2]}, **{"every": 1} | (watching or {}))
    trainer.add_callback(nfd.integrations.TrainerCallback(plan, watch, log=trainer.log))
    return trainer, watch


def test_a_trainer_that_is_given_no_optimizer_does_not_begin(tmp_path: Path) -> None:
    trainer, watch = trainer_of(tmp_path, forget=True)
    with pytest.raises(InputError, match=r"Give the Trainer optimizers=\(plan\.make_optimizer"):
        trainer.train()
    assert watch.steps == 0


def test_a_trainer_steps_and_logs_the_watch_once_per_step_of_the_optimizer(tmp_path: Path) -> None:
    trainer, watch = trainer_of(tmp_path, gradient_accumulation_steps=2)
    trainer.train()
    assert watch.steps == 2
    logged = [entry for entry in trainer.state.log_history if "nfd/activation" in entry]
    assert [entry["step"] for entry in logged] == [1, 2]
    for entry in logged:
        network = of_network(row for row in watch.rows if row.step == entry["step"])
        assert {name: entry[name] for name in network} == network


def test_a_resumed_trainer_has_the_rows_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    _, whole = first = trainer_of(tmp_path, save_strategy="steps", save_steps=1)
    first[0].train()
    trainer, watch = trainer_of(tmp_path)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert watch.steps == 2
    assert watch.rows == whole.rows


# ---- Lightning


def fitted(
    forget: bool = False,
    steps: int = 2,
    lr: float = 1e-3,
    checkpoint: Path | None = None,
    watching: Any = None,
    **options: Any,
) -> Any:
    """Lightning's Trainer, the watch, and what the logger was told."""
    lightning = pytest.importorskip("lightning")
    loggers = pytest.importorskip("lightning.pytorch.loggers")
    net, plan = planned()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]).flatten(0, 1), batch[1].flatten())

        def configure_optimizers(self) -> Any:
            return (
                torch.optim.AdamW(self.parameters()) if forget else plan.make_optimizer(net, lr=lr)
            )

    class Kept(loggers.logger.DummyLogger):
        def log_metrics(self, metrics: Any, step: int) -> None:
            said.append((metrics, step))

    said: list[Any] = []
    watch = nfd.Watch(net, plan, SAMPLE, **{"every": 1} | (watching or {}))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        max_steps=steps,
        logger=Kept(),
        enable_checkpointing=False,
        callbacks=[nfd.integrations.LightningCallback(plan, watch)],
        **quiet,
        **options,
    )
    trainer.fit(
        Module(),
        torch.utils.data.DataLoader(SHIFTED[:1] * 4, batch_size=None),
        ckpt_path=checkpoint,
    )
    return trainer, watch, said


def test_lightning_with_an_optimizer_of_its_own_does_not_begin() -> None:
    with pytest.raises(InputError, match=r"Let configure_optimizers return plan\.make_optimizer"):
        fitted(forget=True)


def test_lightning_steps_and_logs_the_watch_once_per_step_and_goes_on_from_a_checkpoint(
    tmp_path: Path,
) -> None:
    _, whole, said = fitted(accumulate_grad_batches=2)
    assert whole.steps == 2
    assert [(m, s) for m, s in said if "nfd/activation" in m] == [
        (of_network(row for row in whole.rows if row.step == step), step) for step in (1, 2)
    ]
    stopped, _, _ = fitted(steps=1)
    stopped.save_checkpoint(tmp_path / "one.ckpt")
    _, resumed, _ = fitted(steps=2, checkpoint=tmp_path / "one.ckpt")
    _, never_stopped, _ = fitted(steps=2)
    assert resumed.steps == 2
    assert resumed.rows == never_stopped.rows
