"""A language model as its users bring it: dicts of Hugging Face, whose model shifts its labels and returns its loss,
caches beside logits, and mistakes with what a message says of them."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
import torch
from nfd.families.constructed import ConstructedFamily
from nfd.questions.named import telling_of_pixels
from nfd.questions.sweep_settings import ModelCapacityConfig
from nfd.runs.model_settings import CheckConfig, ModelPredictConfig
from nfd.runs.trials import Trial
from nfd.training.recipe import Recipe
from nfd.training.tensors import TensorTask
from tests.models import Transformer
from torch import Tensor, nn

import nfd
from nfd.core.errors import ModelError
from nfd.questions import model_sweeps, prediction
from nfd.training.losses import loss_of
from nfd.training.task import Task
from nfd.training.together import together

IDS = torch.randint(0, 11, (4, 6, 8), generator=torch.Generator().manual_seed(0))
DICTS = [{"input_ids": ids, "labels": ids} for ids in IDS]
COPIED = [(ids, ids) for ids in IDS]
SHIFTED = [(ids[:, :-1], ids[:, 1:]) for ids in IDS]


class Shifting(Transformer):
    """Returns the loss of the next token, as a dict, an object or a tuple, beside its logits."""

    def __init__(self, width: int, depth: int, form: Any = dict, smoothing: float = 0.0) -> None:
        super().__init__(width, depth)
        self.form, self.smoothing = form, smoothing

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = super().forward(input_ids)
        loss = None if labels is None else shifted_loss(logits, labels, self.smoothing)
        return (logits, loss) if self.form is tuple else self.form(loss=loss, logits=logits)


def shifted_loss(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), label_smoothing=smoothing)


def recipe(make_model: Any, task: Task) -> Recipe:
    return Recipe(ConstructedFamily(make_model, (8, 2), "mup", "adamw", sample=task.batches[0][0]), task)


def losses(given: Recipe) -> Tensor:
    trial = Trial(given, 8, 2, 0, 0.01)
    (record,) = Trial.train([trial], "cpu")
    assert record.status == "done", record
    return torch.tensor([*record.curves["loss"], record.metrics["test_loss"]])


@pytest.mark.parametrize(
    ("form", "batches"), [(dict, DICTS), (SimpleNamespace, [(b, None) for b in DICTS]), (tuple, DICTS)]
)
def test_a_dict_is_trained_on_the_loss_that_the_model_returns(form: Any, batches: Any) -> None:
    own = losses(recipe(partial(Shifting, form=form), Task.of(batches[:3], eval_batches=batches[3:])))
    given = Task.of(COPIED[:3], lambda out, y: shifted_loss(out["logits"], y), COPIED[3:])
    torch.testing.assert_close(own, losses(recipe(Shifting, given)), rtol=1e-6, atol=0)


def test_every_question_takes_dicts() -> None:
    found = nfd.check(Shifting, [8, 16], [2], DICTS[:2], rule="mup", optimizer="adamw", seeds=2)
    assert not found.copies
    rates = (1e-3, 3e-3, 9e-3)
    answer = nfd.transfer(Shifting, [8, 16], [1], DICTS[:2], rules=("mup",), lr=rates, seeds=2, eval_batches=DICTS[2:])
    assert answer.notes == ()
    task = Task.of(DICTS)
    assert task.targets == IDS.numel()
    halves = task.in_batches(3)
    assert [y for _, y in halves.batches] == [None] * 8
    assert torch.equal(halves.batches[1][0]["labels"], IDS[0, 3:])


def test_what_the_model_s_loss_computes_names_its_runs() -> None:
    task = Task.of(DICTS[:2])
    one, two, smooth = (recipe(partial(Shifting, smoothing=s), task) for s in (0.0, 0.0, 0.1))
    assert one.identity == two.identity
    assert one.identity["training_code"] != smooth.identity["training_code"]
    sent = cloudpickle.loads(cloudpickle.dumps(two))
    assert sent.identity == one.identity
    assert Task.of([DICTS[1], DICTS[0]]).fingerprint != task.fingerprint


def test_batches_without_a_loss_are_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"it returned \[6, 8, 11\] torch\.float32\. .* loss=lambda output, targets"):
        Task.of([(IDS[0], None)]).value(Transformer(8, 2)(IDS[0]), None)
    with pytest.raises(TypeError, match=r"it returned dict of loss NoneType, logits .* such as labels"):
        Task.of([{"input_ids": IDS[0]}]).value(Shifting(8, 2)(IDS[0]), None)
    with pytest.raises(ValueError, match="got 1 of 2 batches without targets"):
        Task.of(DICTS[:1], eval_batches=COPIED[:1])
    with pytest.raises(ValueError, match="loss='mse' needs the targets"):
        Task.of(DICTS, "mse")


def test_a_check_says_that_the_targets_are_the_inputs() -> None:
    copied = nfd.check(Transformer, [8, 16], [1], COPIED[:1], rule="mup", optimizer="adamw", seeds=2)
    assert copied.copies
    assert "trained to copy its input" in str(copied)
    assert Task.of([((mask, ids), ids) for mask, ids in zip(IDS > 3, IDS, strict=True)]).notes
    for right in (Task.of(SHIFTED), Task.of(DICTS), Task.of([COPIED[0], SHIFTED[1]]), Task.of(COPIED, shifted_loss)):
        assert not right.notes


def test_the_model_s_own_error_comes_first() -> None:
    with pytest.raises(ValueError, match=r"it raised IndexError: .* largest id is 40 and whose length is 8\."):
        nfd.check(Transformer, [8, 16], [1], [(IDS[0] * 0 + 40, IDS[0])], rule="mup")
    with pytest.raises(ModelError) as told, telling_of_pixels(CheckConfig()):
        nfd.check(Transformer, [8, 16], [1], [(torch.rand(2, 8), IDS[0][:2, 0])], rule="mup")
    assert "it raised RuntimeError: " in str(told.value)
    assert "as no --batches was given" in str(told.value)
    with pytest.raises(ModelError, match="Give it an input") as told, telling_of_pixels(CheckConfig(batches="a:b")):
        nfd.check(Transformer, [8, 16], [1], [(torch.rand(2, 8), IDS[0][:2, 0])], rule="mup")
    assert "--batches" not in str(told.value)


def test_capacity_and_prediction_tell_of_pixels_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: Any, **settings: Any) -> None:
        raise ModelError("the model refuses its inputs.")

    monkeypatch.setattr(model_sweeps, "capacity", refuse)
    monkeypatch.setattr(prediction, "predict", refuse)
    place: Any = {"out": tmp_path, "executor": None, "device": None}
    for ask in (
        lambda: model_sweeps.capacity_of_model(ModelCapacityConfig(), "tests.models:Transformer", **place),
        lambda: prediction.prediction_of_model(ModelPredictConfig(), "tests.models:Transformer", **place),
    ):
        with pytest.raises(ModelError, match="rows of pixels of digits, as no --batches was given"):
            ask()


def test_one_batch_in_place_of_a_list_is_refused_and_a_list_says_how_it_was_read() -> None:
    with pytest.raises(ValueError, match=r"got a single dict\. Put it into a list: \[batch\]"):
        Task.of(DICTS[0])
    with pytest.raises(ValueError, match=r"got two tensors, \[6, 8\] and \[6, 8\]\. If they are one batch"):
        Task.of((IDS[0], IDS[0]))
    assert Task.of([(IDS[0], IDS[0])]).about == "1 step of 6 samples [6, 8]"
    assert Task.of(DICTS).about == "4 steps of 6 samples [6, 8]"
    rows = TensorTask.of_tensors(torch.rand(6, 8), torch.zeros(6, dtype=torch.long), loss="cross-entropy", classes=2)
    assert rows.about == "6 steps of 1 sample [1, 8]"


def test_a_model_in_place_of_its_constructor_is_refused() -> None:
    for ask in (nfd.check, nfd.transfer):
        with pytest.raises(
            TypeError, match="the function that builds the model, of width and depth, not a model; got a"
        ):
            ask(Transformer(8, 2), [8, 16], [2], SHIFTED[:1])


@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [
        (lambda model, lr: None, r"must take \(groups\); got a function of \(model, lr\).* from the parameter groups"),
        (lambda model: torch.optim.SGD(model.parameters()), "raised AttributeError: .* from the parameter groups"),
        (lambda groups: groups, "must return an optimizer; got list.* from the parameter groups"),
    ],
)
def test_make_optimizer_takes_the_groups_of_a_plan(make_optimizer: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^make_optimizer {message}"):
        nfd.check(Transformer, [8, 16], [1], SHIFTED[:1], rule="mup", make_optimizer=make_optimizer)


def test_the_head_of_a_check_names_the_optimizer_that_trained() -> None:
    own = nfd.check(Transformer, [8, 16], [1], SHIFTED[:1], rule="mup", seeds=2, make_optimizer=torch.optim.RMSprop)
    assert "\nRule 'mup', RMSprop, lr" in str(own)
    assert own.optimizer == "adamw"


class Cache:
    """Of no type that PyTorch knows, as that of keys and values."""

    def __init__(self, keys: Tensor) -> None:
        self.keys = keys


class Caching(Transformer):
    """Returns more than its logits."""

    def __init__(self, width: int, depth: int, beside: Any) -> None:
        super().__init__(width, depth)
        self.beside = beside

    def forward(self, ids: Tensor) -> Any:
        logits = super().forward(ids)
        return logits, self.beside(logits)


@pytest.mark.parametrize("beside", [lambda logits: None, Cache])
def test_what_a_model_returns_beside_its_logits_leaves_its_networks_together(beside: Any) -> None:
    assert together(recipe(partial(Caching, beside=beside), Task.of(SHIFTED)), 8, 2).reason is None


def test_outputs_that_could_be_either_of_two_are_refused() -> None:
    y, features, logits = torch.tensor([0, 1]), torch.ones(2, 4), torch.zeros(2, 3)
    loss = loss_of("cross-entropy")
    for either in ((features, logits), [features, logits], {"features": features, "y_hat": logits}):
        with pytest.raises(TypeError, match=r"returns \[2, 4\] and \[2, 3\], and either could be .*output\[1\], y\)"):
            loss(either, y)
    for plain in (logits, (logits, logits.sum()), {"features": features, "logits": logits}, (logits, torch.ones(7, 2))):
        assert float(loss(plain, y)) == pytest.approx(math.log(3))
