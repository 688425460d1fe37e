"""What PyTorch was told to do around a call: every public computation gives the same numbers, bit
for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nfd
from nfd.core.modes import undisturbed

X = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 3, (3, 4), generator=torch.Generator().manual_seed(1))
ROWS = X.flatten(0, 1)
BATCHES = list(zip(X, Y, strict=True))


@contextmanager
def told(tell: Callable[[Any], None], value: Any, usual: Any) -> Iterator[None]:
    tell(value)
    try:
        yield
    finally:
        tell(usual)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "inference mode": torch.inference_mode,
    "no gradients": torch.no_grad,
    "double precision": lambda: told(torch.set_default_dtype, torch.float64, torch.float32),
    "meta device": lambda: told(torch.set_default_device, "meta", None),
    "deterministic algorithms": lambda: told(torch.use_deterministic_algorithms, True, False),
}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(width, width, device="cpu", dtype=torch.float32) for _ in range(2)
        )

    def forward(self, h: Tensor) -> Tensor:
        return h + self.down(torch.relu(self.up(h)))


def model(width: int, depth: int) -> nn.Module:
    into, out = (nn.Linear(*s, device="cpu", dtype=torch.float32) for s in ((6, width), (width, 3)))
    return nn.Sequential(into, nn.Sequential(*[Block(width) for _ in range(depth)]), out)


def checked(make: Callable[[int, int], nn.Module]) -> Any:
    c = nfd.check(make, BATCHES, [8, 16], [2], lr=0.1, rule="mup", seeds=2)
    return [c.table, c.runs]


def planned() -> Any:
    torch.manual_seed(0)
    net = model(16, 2)
    plan = nfd.plan(net, rule="complete-p", make_model=model, base=(8, 1), sample=ROWS)
    plan.apply_(net, seed=1)
    groups = [
        {k: v for k, v in group.items() if k != "params"}
        for group in plan.param_groups(net, lr=0.1)
    ]
    return [plan.to_dict(), dict(net.state_dict()), groups]


def unstored() -> Any:
    torch.manual_seed(0)
    layer = nfd.DeferredLinear(6, 5)
    net = nfd.ResNet(6, 3, 40, 2, weights="deferred")
    return [
        layer.state_dict(),
        net.state_dict(),
        layer.complete(),
        nfd.MLP(6, 3, 9, 2, feedback="static").state_dict(),
    ]


def predicted(weights: Any, width: int = 32) -> nfd.Prediction:
    settings: dict[str, Any] = {
        "depth": 2,
        "width": width,
        "replicates": 2,
        "weights": weights,
        "outputs": True,
    }
    return nfd.predict(
        nfd.resnets(6, 3), nfd.Task(BATCHES, eval_batches=BATCHES[:1]), 0.5, **settings
    )


def trained(**settings: Any) -> Any:
    family = nfd.Family(model, base=(8, 2), optimizer="sgd", sample=X[0])
    with nfd.Sweep(progress=False) as sweep:
        own = nfd.Trial(family, nfd.Task(BATCHES), 16, 2, 0, 0.1, **settings)
        (record,) = sweep.run([own])
        return [record.status, record.metrics, sweep.curves(own)]


def gaussian() -> Any:
    kernel = nfd.InfiniteDepthKernel()
    return [kernel.diag(ROWS[:2].numpy()), *kernel(ROWS[:2].numpy(), eval_gradient=True)]


COMPUTATIONS: dict[str, Callable[[], Any]] = {
    "predict": lambda: predicted("dense"),
    "predict by structured weights": lambda: predicted("structured", 2**11),
    "solve_nfd": lambda: nfd.solve_nfd(ROWS, ROWS[:, 0], grid=4, particles=64, replicates=2),
    "kernel": lambda: [nfd.kernel(ROWS, depth=3), nfd.kernel(ROWS.numpy(), depth=3)],
    "InfiniteDepthKernel": gaussian,
    "check": lambda: checked(
        lambda width, depth: nfd.ResNet(6, 3, width, depth, branch_exponent=0.0)
    ),
    "check of anyone's model": lambda: checked(model),
    "plan": planned,
    "networks": unstored,
    "trial": trained,
    "trial with deferred weights": lambda: trained(weights="deferred"),
}


def numbers(value: Any) -> Any:
    """Everything in a result that may differ, but for the time it took."""
    if isinstance(value, Tensor):
        return (str(value.dtype), str(value.device), value.detach().numpy().tobytes())
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tobytes())
    if is_dataclass(value):
        return {
            f.name: numbers(getattr(value, f.name)) for f in fields(value) if f.name != "seconds"
        }
    if isinstance(value, Mapping):
        return {key: numbers(v) for key, v in value.items()}
    return [numbers(v) for v in value] if isinstance(value, list | tuple) else repr(value)


@pytest.mark.parametrize("name", COMPUTATIONS)
def test_what_pytorch_was_told_around_a_computation_does_not_reach_it(name: str) -> None:
    expected = numbers(COMPUTATIONS[name]())
    for mode, entered in MODES.items():
        with entered():
            found = numbers(COMPUTATIONS[name]())
        assert found == expected, mode
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


def test_the_surroundings_are_as_they_were_afterwards_whatever_happens() -> None:
    @undisturbed()
    def fails() -> float:
        assert (torch.ones(1) @ torch.ones(1)).dtype == torch.float32
        return 1 / 0

    modes = (
        MODES[name]() for name in ("autocast", "double precision", "meta device", "no gradients")
    )
    with ExitStack() as entered:
        for mode in modes:
            entered.enter_context(mode)
        with pytest.raises(ZeroDivisionError):
            fails()
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
        assert torch.ones(1).is_meta
        assert torch.ones(1).dtype == torch.float64
