"""A plan in other people's training loops: each repeats the losses of the same plain loop.

One training for all: four updates of two batches each, gradients clipped to a norm that they
exceed, a rate that falls linearly to zero. Each framework trains it whole, resumed from its own
checkpoint after two updates, and without the plan, which has to show.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoints
import torch.multiprocessing as mp
from tests.models import Residual
from tests.waiting import PATIENCE
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

import nfd

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks' own

ROOT = Path(__file__).parents[1]
EPOCHS = 2  # of the same batches, so that every framework can resume between them
UPDATES = 2  # of one epoch
ACCUMULATED = 2
STEPS = EPOCHS * UPDATES
CLIP = 0.05  # gradients have norms of 0.1 and more, so every update is clipped
LR = 0.01
DECAY = 0.1
# Large enough for losses to follow it.
EPS = 1e-3
# Relative. Sums in another order, of batches or of groups, differ in the last bits of 32; the
# largest difference that was seen is 3e-7.
SAME = 1e-6
WITHOUT_PLAN = 100 * SAME
ROWS = 8  # of a batch
TOKENS = 8  # of a row of language
WORDS = 16

TIMM = "timm needs a torchvision that fits PyTorch: make zoo has both"

Optimizer = torch.optim.Optimizer
Batches = list[tuple[Tensor, Tensor]]
Parts = Sequence[Any]  # a model, its optimizer, and a scheduler


def linear(step: int) -> float:
    """The rate over its first value."""
    return 1 - step / STEPS


def data() -> Batches:
    """The batches of an epoch."""
    g = torch.Generator().manual_seed(0)
    inputs = torch.randn(UPDATES * ACCUMULATED, ROWS, 5, generator=g)
    return [(x, x[:, :3].argmax(dim=1)) for x in inputs]


def save_whole(parts: Parts, place: Path) -> None:
    """Store a checkpoint of one process."""
    torch.save([part.state_dict() for part in parts], place)


def load_whole(parts: Parts, place: Path) -> None:
    """Load a checkpoint of one process."""
    for part, state in zip(parts, torch.load(place), strict=True):
        part.load_state_dict(state)


@dataclass
class Training:
    """A model that is to train, what makes its optimizer, and where its checkpoint is.

    Attributes:
        model: as it is before its first step.
        make_optimizer: of the model, wrapped or not.
        batches: of an epoch.
        folder: of the checkpoint.
        epochs: after which it is stored.
        resumes: whether to go on from a stored one.
        clip: the largest norm of gradients.
        plan: of the optimizer; None without one.
        save, load: of a plain loop's model, optimizer and scheduler.
        start: what draws the weights of a model that has none yet.
    """

    model: nn.Module
    make_optimizer: Callable[[nn.Module], Optimizer]
    batches: Batches = field(default_factory=data)
    folder: Path = Path()
    epochs: int = EPOCHS
    resumes: bool = False
    clip: float = CLIP
    plan: nfd.Plan | None = None
    save: Callable[[Parts, Path], None] = save_whole
    load: Callable[[Parts, Path], None] = load_whole
    start: Callable[[nn.Module], nn.Module] | None = None

    @property
    def place(self) -> Path:
        """Where the checkpoint is."""
        return self.folder / "checkpoint"


def adamw(model: nn.Module) -> Optimizer:
    """One rate for all tensors."""
    return torch.optim.AdamW(model.parameters(), LR, weight_decay=DECAY, eps=EPS)


def planned() -> tuple[nn.Module, nfd.Plan]:
    """A model four times as wide and deep as its base, and its plan."""
    torch.manual_seed(0)
    model = Residual(16, 4)
    return model, nfd.plan(model, make_model=Residual, base=(4, 1), sample=data()[0][0])


def training(
    is_planned: bool = True, seed: int = 0, meta: bool = False, **settings: Any
) -> Training:
    """A model of the plan's initial weights, with its optimizer or one without the plan.

    On the meta device it waits for its weights.
    """
    model, plan = planned()
    if meta:
        with torch.device("meta"):
            model = Residual(16, 4)
        settings["start"] = partial(plan.apply_, seed=seed)
    else:
        plan.apply_(model, seed=seed)
    if not is_planned:
        return Training(model, adamw, **settings)

    def make_optimizer(net: nn.Module) -> Optimizer:
        return plan.make_optimizer(net, LR, DECAY, eps=EPS)

    return Training(model, make_optimizer, plan=plan, **settings)


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of a batch."""
    x, y = batch
    if x.dtype is torch.long:  # of language, whose model has the loss
        loss: Tensor = model(input_ids=x, labels=y).loss
        return loss
    return nn.functional.cross_entropy(model(x), y)


def check_other(losses: list[float], expected: list[float]) -> None:
    """Raise unless all losses differ but the first, of the same weights."""
    assert losses[0] == pytest.approx(expected[0], rel=SAME)
    for loss, other in zip(losses[1:], expected[1:], strict=True):
        assert loss != pytest.approx(other, rel=WITHOUT_PLAN)


def means(losses: list[float]) -> list[float]:
    """The losses of updates, from those of their batches."""
    return torch.tensor(losses, dtype=torch.float64).view(-1, ACCUMULATED).mean(dim=1).tolist()


# ---- loops: each returns the losses of its updates


def by_hand(start: Training) -> list[float]:
    """Train in a plain loop of PyTorch."""
    model = start.model
    optimizer = start.make_optimizer(model)
    scheduler = LambdaLR(optimizer, linear)
    parts = (model, optimizer, scheduler)
    first = 0
    if start.resumes:
        start.load(parts, start.place)
        first = 1
    losses = []
    for place, batch in enumerate(start.batches * (start.epochs - first)):
        loss = cross_entropy(model, batch)
        (loss / ACCUMULATED).backward()
        losses.append(loss.item())
        if place % ACCUMULATED == ACCUMULATED - 1:
            nn.utils.clip_grad_norm_(model.parameters(), start.clip)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    if start.epochs < EPOCHS:
        start.save(parts, start.place)
    return means(losses)


def compiled(start: Training) -> list[float]:
    """Train a compiled model in a plain loop."""
    start.model = torch.compile(start.model, backend="aot_eager")  # type: ignore[assignment]
    return by_hand(start)


def by_accelerate(start: Training) -> list[float]:
    """Train in a loop of Accelerate."""
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(
        cpu=True,
        gradient_accumulation_steps=ACCUMULATED,
        # A batch is parted between processes, and the scheduler steps once for all
        dataloader_config=accelerate.DataLoaderConfiguration(split_batches=True),
    )
    optimizer = start.make_optimizer(start.model)
    scheduler = LambdaLR(optimizer, linear)
    inputs, targets = (torch.cat(parts) for parts in zip(*start.batches, strict=True))
    rows = torch.utils.data.TensorDataset(inputs, targets)
    loader = torch.utils.data.DataLoader(rows, batch_size=ROWS)
    model, optimizer, loader, scheduler = accelerator.prepare(
        start.model, optimizer, loader, scheduler
    )
    first = 0
    if start.resumes:
        accelerator.load_state(str(start.place))
        first = 1
    losses = []
    for _ in range(first, start.epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loss = cross_entropy(model, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    if start.epochs < EPOCHS:
        accelerator.save_state(str(start.place))
    return means(losses)


def by_timm(start: Training) -> list[float]:
    """Train with an optimizer and a scheduler of timm."""
    timm = pytest.importorskip("timm.optim", reason=TIMM)
    schedulers = pytest.importorskip("timm.scheduler")
    groups: Any = start.model
    if start.plan is not None:
        groups = start.plan.param_groups(start.model, lr=LR)
    optimizer = timm.create_optimizer_v2(groups, "adamw", lr=LR, weight_decay=DECAY, eps=EPS)
    if start.plan is not None:
        for group in optimizer.param_groups:
            group["lr"] /= group["lr_scale"]  # by which the scheduler multiplies
    first = 0
    if start.resumes:
        load_whole((start.model, optimizer), start.place)
        first = 1
    scheduler = schedulers.PolyLRScheduler(optimizer, STEPS, power=1.0, t_in_epochs=False)
    losses = []
    updates = first * UPDATES
    scheduler.step_update(updates)
    for place, batch in enumerate(start.batches * (start.epochs - first)):
        loss = cross_entropy(start.model, batch)
        (loss / ACCUMULATED).backward()
        losses.append(loss.item())
        if place % ACCUMULATED == ACCUMULATED - 1:
            nn.utils.clip_grad_norm_(start.model.parameters(), start.clip)
            optimizer.step()
            updates += 1
            scheduler.step_update(updates)
            optimizer.zero_grad()
    if start.epochs < EPOCHS:
        save_whole((start.model, optimizer), start.place)
    return means(losses)


def by_lightning(start: Training) -> list[float]:
    """Train in Lightning's Trainer."""
    lightning = pytest.importorskip("lightning")
    losses = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = start.model

        def training_step(self, batch: Any, _: int) -> Tensor:
            loss = cross_entropy(self.net, batch)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = start.make_optimizer(self.net)
            scheduler = LambdaLR(optimizer, linear)
            return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=start.epochs,
        accumulate_grad_batches=ACCUMULATED,
        gradient_clip_val=CLIP,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(start.batches, batch_size=None)
    trainer.fit(Module(), loader, ckpt_path=start.place if start.resumes else None)
    if start.epochs < EPOCHS:
        trainer.save_checkpoint(start.place)
    return means(losses)


LOOPS = {
    "plain": by_hand,
    "compiled": compiled,
    "accelerate": by_accelerate,
    "lightning": by_lightning,
    "timm": by_timm,
}


@pytest.fixture(scope="module")
def expected() -> list[float]:
    """The losses of the plan in a plain loop."""
    return by_hand(training())


@pytest.mark.parametrize("name", LOOPS)
def test_a_framework_repeats_the_losses_of_a_plain_loop(name: str, expected: list[float]) -> None:
    assert LOOPS[name](training()) == pytest.approx(expected, rel=SAME)


def test_without_clipping_the_losses_are_others(expected: list[float]) -> None:
    check_other(by_hand(training(clip=1e9)), expected)


@pytest.mark.parametrize("name", LOOPS)
def test_a_framework_goes_on_from_its_checkpoint(
    name: str, expected: list[float], tmp_path: Path
) -> None:
    first = LOOPS[name](training(folder=tmp_path, epochs=1))
    # Its own initial weights are others
    second = LOOPS[name](training(folder=tmp_path, resumes=True, seed=1))
    assert first + second == pytest.approx(expected, rel=SAME)


@pytest.mark.parametrize("name", LOOPS)
def test_a_framework_without_the_plan_is_told_from_it(name: str, expected: list[float]) -> None:
    check_other(LOOPS[name](training(is_planned=False)), expected)


# ---- a GPT-2, in the trainers of Hugging Face


def gpt2(width: int, depth: int) -> Any:
    """GPT-2 of Hugging Face, without dropout."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=width,
        n_layer=depth,
        n_head=width // 4,
        n_positions=TOKENS,
        vocab_size=WORDS,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        loss_type="ForCausalLM",
    )
    return transformers.GPT2LMHeadModel(config)


def tokens() -> Tensor:
    """The rows of an epoch: words that count on by one or by two."""
    g = torch.Generator().manual_seed(0)
    count = UPDATES * ACCUMULATED * ROWS
    first = torch.randint(0, WORDS, (count, 1), generator=g)
    return (first + torch.arange(TOKENS) * torch.randint(1, 3, (count, 1), generator=g)) % WORDS


def labels() -> Tensor:
    """Targets of the rows: no token predicts the first of a row, and Trainers count labels."""
    targets = tokens()
    targets[:, 0] = -100
    return targets


def language(seed: int = 0) -> Training:
    """A GPT-2 of its plan's initial weights; vectors have no decay, as in a Trainer."""
    torch.manual_seed(0)
    model = gpt2(16, 4)
    plan = nfd.plan(model, make_model=gpt2, base=(4, 1), sample=tokens()[:1])
    batches = list(zip(tokens().split(ROWS), labels().split(ROWS), strict=True))

    def make_optimizer(net: nn.Module) -> Optimizer:
        return plan.make_optimizer(net, LR, DECAY, eps=EPS, no_decay="vectors")

    return Training(plan.apply_(model, seed=seed), make_optimizer, batches, plan=plan)


def exported(start: Training) -> Any:
    """The Trainer in the file of the plan."""
    assert start.plan is not None
    names: dict[str, Any] = {"__name__": "exported"}
    exec(start.plan.to("transformers"), names)
    return names["PlannedTrainer"]


def arguments(make: Any, folder: Path, **changes: Any) -> Any:
    """The settings of the base, for a Trainer."""
    settings = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": ROWS,
        "gradient_accumulation_steps": ACCUMULATED,
        "max_grad_norm": CLIP,
        "lr_scheduler_type": "linear",
        "learning_rate": LR,
        "weight_decay": DECAY,
        "adam_epsilon": EPS,
        "optim": "adamw_torch",
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "epoch",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
    }
    return make(str(folder), **settings, **changes)


def in_trainer(make: Any, model: nn.Module, folder: Path, **options: Any) -> Any:
    """A Trainer of a class, on the rows."""
    transformers = pytest.importorskip("transformers")
    pairs = zip(tokens(), labels(), strict=True)
    return make(
        model,
        arguments(transformers.TrainingArguments, folder),
        train_dataset=[{"input_ids": ids, "labels": targets} for ids, targets in pairs],
        **options,
    )


def in_sft(make: Any, model: nn.Module, folder: Path, **options: Any) -> Any:
    """An SFTTrainer of a class, on the rows, whose first tokens count as a prompt."""
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {str(word): word for word in range(WORDS)}
    by_word = tokenizers.models.WordLevel(words, unk_token="0")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(by_word), eos_token="0", pad_token="0"
    )
    is_answer = [0] + [1] * (TOKENS - 1)
    rows = datasets.Dataset.from_dict(
        {"input_ids": tokens().tolist(), "completion_mask": [is_answer] * len(tokens())}
    )
    return make(
        model,
        arguments(trl.SFTConfig, folder, completion_only_loss=True),
        train_dataset=rows,
        processing_class=tokenizer,
        **options,
    )


def trained(trainer: Any, epochs: int = EPOCHS, checkpoint: Path | None = None) -> list[float]:
    """The losses of the updates that a Trainer makes."""
    transformers = pytest.importorskip("transformers")

    class Stop(transformers.TrainerCallback):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.epoch >= epochs

    trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    first = UPDATES if checkpoint else 0
    history = trainer.state.log_history
    return [row["loss"] for row in history if "loss" in row and row["step"] > first]


def planned_trainer(start: Training, folder: Path) -> Any:
    """The exported Trainer."""
    return in_trainer(exported(start), start.model, folder)


def trainer_with_optimizer(start: Training, folder: Path) -> Any:
    """Hugging Face's Trainer, given the plan's optimizer."""
    transformers = pytest.importorskip("transformers")
    optimizers = (start.make_optimizer(start.model), None)
    return in_trainer(transformers.Trainer, start.model, folder, optimizers=optimizers)


def planned_sft(start: Training, folder: Path) -> Any:
    """The exported Trainer before trl's."""
    trl = pytest.importorskip("trl")
    make = type("PlannedSFT", (exported(start), trl.SFTTrainer), {})
    return in_sft(make, start.model, folder)


def sft_with_optimizer(start: Training, folder: Path) -> Any:
    """trl's Trainer, given the plan's optimizer."""
    trl = pytest.importorskip("trl")
    optimizers = (start.make_optimizer(start.model), None)
    return in_sft(trl.SFTTrainer, start.model, folder, optimizers=optimizers)


SFT = pytest.mark.slow  # trl takes seconds to import
TRAINERS = pytest.mark.parametrize(
    "make",
    [
        planned_trainer,
        trainer_with_optimizer,
        pytest.param(planned_sft, marks=SFT),
        pytest.param(sft_with_optimizer, marks=SFT),
    ],
)


@pytest.fixture(scope="module")
def expected_on_tokens() -> list[float]:
    """The losses of the plan in a plain loop."""
    return by_hand(language())


@TRAINERS
def test_a_trainer_repeats_the_losses_of_a_plain_loop(
    make: Any, expected_on_tokens: list[float], tmp_path: Path
) -> None:
    assert trained(make(language(), tmp_path)) == pytest.approx(expected_on_tokens, rel=SAME)


@TRAINERS
def test_a_trainer_goes_on_from_its_checkpoint(
    make: Any, expected_on_tokens: list[float], tmp_path: Path
) -> None:
    first = trained(make(language(), tmp_path), epochs=1)
    checkpoint = tmp_path / f"checkpoint-{UPDATES}"
    second = trained(make(language(seed=1), tmp_path), checkpoint=checkpoint)
    assert first + second == pytest.approx(expected_on_tokens, rel=SAME)


@pytest.mark.parametrize(
    ("library", "name", "make"),
    [
        ("transformers", "Trainer", in_trainer),
        pytest.param("trl", "SFTTrainer", in_sft, marks=SFT),
    ],
)
def test_a_trainer_without_the_plan_is_told_from_it(
    library: str, name: str, make: Any, expected_on_tokens: list[float], tmp_path: Path
) -> None:
    kind = getattr(pytest.importorskip(library), name)
    check_other(trained(make(kind, language().model, tmp_path)), expected_on_tokens)


# ---- what rates are measured by, and what is stored with them


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_schedule_that_ends_at_a_rate_of_the_base_does_so(optimizer: Any) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    model = Residual(16, 4)
    sample = data()[0][0]
    plan = nfd.plan(model, make_model=Residual, base=(4, 1), sample=sample, optimizer=optimizer)
    made = plan.make_optimizer(model, LR)
    schedule = optimization.get_cosine_with_min_lr_schedule_with_warmup
    scheduler = schedule(made, num_warmup_steps=0, num_training_steps=STEPS, min_lr=LR / 10)
    for _ in range(STEPS):
        made.step()
        scheduler.step()
    plan.check_rates(made)
    for group in made.param_groups:
        assert group["lr"] == pytest.approx(LR / 10 * group["lr_scale"])


def test_a_stored_optimizer_has_the_rates_of_its_groups() -> None:
    start = training()
    assert start.plan is not None
    stored = start.make_optimizer(start.model)
    cross_entropy(start.model, data()[0]).backward()
    stored.step()
    other = start.plan.make_optimizer(start.model, lr=7 * LR)
    other.load_state_dict(stored.state_dict())
    start.plan.check_rates(other)
    assert [group["lr"] for group in other.param_groups] == [
        group["lr"] for group in stored.param_groups
    ]
    with pytest.raises(ValueError, match="different number of parameter groups"):
        other.load_state_dict(adamw(start.model).state_dict())


def test_rates_that_a_scheduler_of_timm_squares_are_seen() -> None:
    pytest.importorskip("timm.optim", reason=TIMM)
    schedulers = pytest.importorskip("timm.scheduler")
    start = training()
    assert start.plan is not None
    optimizer = start.make_optimizer(start.model)
    scheduler = schedulers.CosineLRScheduler(optimizer, STEPS, lr_min=LR / 10, t_in_epochs=False)
    with pytest.raises(ValueError, match=r'set group\["lr"\] /= group\["lr_scale"\]'):
        start.plan.check_rates(optimizer)
    optimizer = start.make_optimizer(start.model)
    for group in optimizer.param_groups:
        group["lr"] /= group["lr_scale"]
    # Rates that are added, such as of the warm-up, are scaled, too
    added = {"lr_min": LR / 10, "warmup_t": 2, "warmup_lr_init": LR / 100}
    scheduler = schedulers.CosineLRScheduler(optimizer, STEPS, t_in_epochs=False, **added)
    for step in range(STEPS):
        scheduler.step_update(step)
        start.plan.check_rates(optimizer)


# ---- two processes


def save_parts(parts: Parts, place: Path) -> None:
    """Store a checkpoint of all processes."""
    model, optimizer, scheduler = parts
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "scheduler": scheduler.state_dict()}
    checkpoints.save(state, checkpoint_id=place)


def load_parts(parts: Parts, place: Path) -> None:
    """Load a checkpoint of all processes."""
    model, optimizer, scheduler = parts
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "scheduler": scheduler.state_dict()}
    checkpoints.load(state, checkpoint_id=place)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    scheduler.load_state_dict(state["scheduler"])


def by_ddp(start: Training) -> list[float]:
    """Train in DDP, of half the rows in every process."""
    start.model = DistributedDataParallel(start.model)
    return on_halves(start)


def by_fsdp(start: Training) -> list[float]:
    """Train in FSDP 2, of half the rows in every process."""
    for block in start.model.get_submodule("blocks").children():
        fully_shard(block)
    fully_shard(start.model)
    if start.start is not None:
        start.start(start.model)
    return on_halves(start)


def on_halves(start: Training) -> list[float]:
    """Train each process on its rows; the losses are means over the processes."""
    rank = dist.get_rank()
    start.batches = [(x.chunk(2)[rank], y.chunk(2)[rank]) for x, y in start.batches]
    losses = torch.tensor(by_hand(start), dtype=torch.float64)
    dist.all_reduce(losses)
    return (losses / 2).tolist()


def by_tensor_parallel(start: Training) -> list[float]:
    """Train with the matrices of the blocks in two parts; all else is in both processes."""
    mesh = init_device_mesh("cpu", (2,))
    last = RowwiseParallel(use_local_output=False)
    in_two = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": last}
    distribute_module(parallelize_module(start.model, mesh, in_two), mesh)
    if start.start is not None:
        start.start(start.model)
    whole = partial(distribute_tensor, device_mesh=mesh, placements=[Replicate()])
    start.batches = [(whole(x), whole(y)) for x, y in start.batches]
    return by_hand(start)


IN_PROCESSES = {
    "ddp": by_ddp,
    "fsdp": by_fsdp,
    "tensor parallel": by_tensor_parallel,
    "accelerate": by_accelerate,
}


def process(rank: int, port: int, folder: str) -> None:
    """Check every kind in one of two processes."""
    torch.set_num_threads(1)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    # as torchrun does
    os.environ |= {name: str(value) for name, value in (ranks | address).items()}
    dist.init_process_group("gloo")
    expected = by_hand(training())
    for name, loop in IN_PROCESSES.items():
        assert loop(training()) == pytest.approx(expected, rel=SAME)
        parts = {"folder": Path(folder) / name, "save": save_parts, "load": load_parts}
        first = loop(training(epochs=1, **parts))
        second = loop(training(resumes=True, seed=1, **parts))
        assert first + second == pytest.approx(expected, rel=SAME)
        check_other(loop(training(is_planned=False)), expected)
        if loop in (by_fsdp, by_tensor_parallel):
            assert loop(training(meta=True)) == pytest.approx(expected, rel=SAME)
        if rank == 0:
            print(name)
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_repeat_the_losses_of_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.test_frameworks", str(port), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.splitlines() == [*IN_PROCESSES], done.stderr[-2000:]


if __name__ == "__main__":
    mp.spawn(process, args=(int(sys.argv[1]), sys.argv[2]), nprocs=2)
