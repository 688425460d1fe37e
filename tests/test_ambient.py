"""What PyTorch was told to do around a call: every public computation gives the same numbers, bit for bit."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nfd.questions.kernel_fit import KernelFit
from PIL import Image
from torch import Tensor, nn

import nfd
from nfd.core.ambient import undisturbed
from nfd.data.dataset import Dataset
from nfd.data.digits import digits
from nfd.limits.function_space import kernel_facts
from nfd.paper.data.load import load
from nfd.paper.runs import RunConfig, train_group
from nfd.paper.settings import KernelConfig, StudyConfig
from nfd.paper.study import Study

X = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (3, 4), generator=torch.Generator().manual_seed(1))
ROWS = X.flatten(0, 1)
RUN = {"width": 16, "depth": 2, "steps": 3, "batch": 4}


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "gradients disabled": lambda: torch.set_grad_enabled(False),
    "double precision": default_dtype,
    "meta device": default_device,
    "deterministic algorithms": deterministic,
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(width, width, device="cpu", dtype=torch.float32) for _ in range(2))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(torch.relu(self.up(h)))


def model(width: int, depth: int) -> nn.Module:
    into, out = (nn.Linear(*s, device="cpu", dtype=torch.float32) for s in ((6, width), (width, 3)))
    return nn.Sequential(into, nn.Sequential(*[Block(width) for _ in range(depth)]), out)


def checked(make: Callable[[int, int], nn.Module]) -> Any:
    c = nfd.check(make, [8, 16], [2], list(zip(X, Y, strict=True)), rule="mup", eta_c=0.1, seeds=2)
    return [c.table, c.runs]


def planned() -> Any:
    torch.manual_seed(0)
    net = model(16, 2)
    plan = nfd.plan(net, rule="complete-p", make_model=model, base_width=8, base_depth=1, sample=ROWS)
    plan.initialize_(net, seed=1)
    groups = [{k: v for k, v in group.items() if k != "params"} for group in plan.param_groups(net, lr=0.1)]
    return [plan.to_dict(), dict(net.state_dict()), groups]


def studied() -> Any:
    tiny = {"depths": (2, 4), "limit_width": 32, "replicates": 3, "widths": (8, 9), "seeds": 2, "steps": 2, "batch": 2}
    with nfd.Sweep(None) as sweep:
        measured = Study(StudyConfig(**tiny, block_depths=(2, 4), block_width=8, block_seeds=2)).measure(sweep)
    return [measured.limits, measured.narrow, measured.real, measured.blocks]


def deferred() -> Any:
    torch.manual_seed(0)
    layer = nfd.DeferredLinear(6, 5)
    net = nfd.ResNet(6, 3, 40, 2, weights="deferred")
    return [layer.state_dict(), net.state_dict(), layer.complete(), nfd.MLP(6, 3, 9, 2, feedback="static").state_dict()]


def trained(**settings: Any) -> Any:
    (record,) = train_group([RunConfig(**RUN, **settings).model_dump()])
    return [record.status, record.metrics, record.curves]


def regression() -> Any:
    fit = KernelFit(KernelConfig(train=12, test=6, activation="identity"))
    return [fit.x, fit.score(0.5), fit.gram(0.5)]


@lru_cache
def folder() -> str:
    """Two classes of two images."""
    place = Path(tempfile.mkdtemp())
    for name, grey in (("dark", 10), ("light", 200)):
        (place / name).mkdir()
        for k in range(2):
            Image.new("L", (4, 4), grey + k).save(place / name / f"{k}.png")
    return str(place)


def parts(dataset: Dataset) -> Any:
    """The tensors of both parts, and whether they were made in inference mode: nothing could be trained on them."""
    tensors = [tensor for part in (dataset.train, dataset.test) for tensor in (part.pixels, part.labels)]
    return [tensors, [tensor.is_inference() for tensor in tensors]]


def gaussian() -> Any:
    kernel = nfd.InfiniteDepthKernel()
    return [kernel.diag(ROWS[:2].numpy()), *kernel(ROWS[:2].numpy(), eval_gradient=True)]


COMPUTATIONS: dict[str, Callable[[], Any]] = {
    "predict": lambda: nfd.predict(
        X, Y, depth=2, width=32, replicates=2, eval_inputs=ROWS, eval_targets=Y.flatten(), eta_c=0.5
    ),
    "predict deferred": lambda: nfd.predict(X, Y, depth=1, width=2**14, replicates=2, eta_c=0.5),
    "solve_nfd": lambda: nfd.solve_nfd(ROWS, ROWS[:, 0], grid=4, particles=64, replicates=2),
    "kernel": lambda: [nfd.kernel(ROWS, depth=3), nfd.kernel(ROWS.numpy(), depth=3)],
    "InfiniteDepthKernel": gaussian,
    "kernel fit": regression,
    "facts of a kernel": lambda: kernel_facts("identity"),
    "digits": lambda: parts(digits(1)),
    "folders of images": lambda: parts(load("images", folder())),
    "check": lambda: checked(lambda width, depth: nfd.ResNet(6, 3, width, depth, branch_exponent=0.0)),
    "check of anyone's model": lambda: checked(model),
    "plan": planned,
    "study": studied,
    "networks": deferred,
    "stacked runs": trained,
    "runs with deferred weights": lambda: trained(weights="deferred"),
    "runs with a meter": lambda: trained(meter="updates", block="two-layer", every=1),
}


def numbers(value: Any) -> Any:
    """Everything in a result that may differ, but for the time it took."""
    if isinstance(value, Tensor):
        return (str(value.dtype), str(value.device), value.detach().numpy().tobytes())
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tobytes())
    if is_dataclass(value):
        return {f.name: numbers(getattr(value, f.name)) for f in fields(value) if f.name != "seconds"}
    if isinstance(value, Mapping):
        return {key: numbers(v) for key, v in value.items()}
    return [numbers(v) for v in value] if isinstance(value, list | tuple) else repr(value)


def forget() -> None:
    """Empty every cache, which would hide where a number was made."""
    for name, module in list(sys.modules.items()):
        if name.startswith("nfd"):
            for member in list(vars(module).values()):
                if hasattr(member, "cache_clear"):
                    member.cache_clear()


@pytest.mark.filterwarnings("ignore:A DeferredLinear of size")
@pytest.mark.parametrize("name", COMPUTATIONS)
def test_what_pytorch_was_told_around_a_computation_does_not_reach_it(name: str) -> None:
    forget()
    expected = numbers(COMPUTATIONS[name]())
    for mode, entered in MODES.items():
        if name == "study" and mode not in ("autocast", "inference mode"):  # a wrapper around what the others compute
            continue
        forget()
        with entered():
            found = numbers(COMPUTATIONS[name]())
        assert found == expected, mode
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


def test_predict_stores_no_weights_in_this_test() -> None:
    assert nfd.predict(X, Y, depth=1, width=2**14, replicates=2).weights in ("deferred", "structured")


def test_inputs_that_were_made_in_inference_mode_may_be_trained_on() -> None:
    with torch.inference_mode():
        x = X.clone()
        p = nfd.predict(x, Y.clone(), depth=1, width=16, replicates=2)
        c = nfd.check(model, [8, 16], [2], [(x[0], Y[0].clone())], rule="mup", seeds=2)
        nfd.kernel(x[0])
    assert torch.equal(p.loss, nfd.predict(X, Y, depth=1, width=16, replicates=2).loss)
    assert numbers(c.table) == numbers(nfd.check(model, [8, 16], [2], [(X[0], Y[0])], rule="mup", seeds=2).table)


def test_the_surroundings_are_as_they_were_afterwards_whatever_happens() -> None:
    @undisturbed()
    def fails() -> float:
        assert (torch.ones(1) @ torch.ones(1)).dtype == torch.float32
        return 1 / 0

    with torch.autocast("cpu", torch.bfloat16), default_dtype(), default_device(), torch.no_grad():
        with pytest.raises(ZeroDivisionError):
            fails()
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
        assert torch.ones(1).is_meta
        assert torch.ones(1).dtype == torch.float64
