"""Everything on a CUDA device: a real one where there is one (``gpu``), and one in name alone
everywhere else.

The pretended device (``pretend.py``) runs on the CPU and raises where tensors of two devices would
meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models import Residual
from torch import Tensor, nn

import nfd
from nfd.families.network import Network
from nfd.wide.lazy_gaussian import LazyGaussian
from nfd.wide.rotated import _factor
from pretend import pretended_cuda
from replay import gap

F64 = torch.float64
CUDA = torch.cuda.is_available()
gpu = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a CUDA device; none is present")]


@pytest.fixture(params=["pretended", pytest.param("real", marks=gpu)])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "real":
        yield "cuda"
    else:
        with pretended_cuda():
            yield "cuda"
        # Matrices made for the pretended device lie on the CPU: a real one must not be given them.
        _factor.cache_clear()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# ---- the pretence itself


@pytest.mark.parametrize(
    "meeting",
    [
        lambda x: x + torch.ones(3),
        lambda x: torch.cat([x, torch.zeros(1, 3)]),
        lambda x: x @ torch.from_numpy(np.ones((3, 3), dtype=np.float32)),
        lambda x: torch.ones(3)[x[0].long()],
        lambda x: x.numpy(),
        lambda x: x.normal_(generator=torch.Generator()),
        lambda x: nn.Linear(3, 3)(x),
        lambda x: nn.functional.mse_loss(x.requires_grad_(), x.detach().cpu()).backward(),
    ],
)
def test_the_pretence_raises_where_two_devices_meet(meeting: Any) -> None:
    with pretended_cuda():
        x = torch.zeros(3, 3, device="cuda")
        with pytest.raises((RuntimeError, TypeError), match=r"device|numpy|generator"):
            meeting(x)


def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussians drawn without ``device=``, in the backward pass alone."""
    drawn = LazyGaussian._normal

    def planted(self: LazyGaussian, side: Any, *counts: Any) -> Tensor:
        right = drawn(self, side, *counts)
        return right if side.name == "forward" else torch.randn(right.shape)

    monkeypatch.setattr(LazyGaussian, "_normal", planted)
    with pretended_cuda():
        layer = nfd.DeferredLinear(6, 5, device="cuda")
        y = layer(torch.ones(2, 6, device="cuda"))
        with pytest.raises(RuntimeError, match="same device"):
            y.sum().backward()


# ---- networks


def training(device: str) -> Any:
    """Momentum, decay, a batch without a backward pass, evaluation between the steps."""

    def program(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        outputs = []
        for k, inputs in enumerate(numbers(5, 3, 5).to(device)):
            optimizer.zero_grad()
            y = net(inputs)
            outputs.append(y.detach())
            if k != 2:
                y.square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                net.eval()(-inputs)
                net.train()
        return outputs

    return program


@pytest.mark.parametrize(
    ("feedback", "block"),
    [("shared", "two-layer"), ("independent", "one-layer"), ("static", "one-layer")],
)
def test_completed_dense_network_repeats_every_output(
    device: str, feedback: str, block: str
) -> None:
    def build(weights: str) -> Network:
        return nfd.ResNet(
            5,
            2,
            30,
            2,
            weights=weights,
            feedback=feedback,
            block=block,
            activation="tanh",
            dtype=F64,
            device=device,
        )

    assert gap(build, training(device), 0.3, "depth-mup", momentum=0.9, weight_decay=1e-3) < 1e-10


@pytest.mark.parametrize(("activation", "kind"), [("relu", "independent-feedback"), ("erf", "ntk")])
def test_kernels_agree_with_those_of_the_cpu(device: str, activation: str, kind: str) -> None:
    X = numbers(7, 4)
    X2 = numbers(3, 4, seed=1)
    X2[0] = 0
    options: dict[str, Any] = {"kind": kind, "activation": activation, "horizon": 0.5, "depth": 2}
    expected = nfd.kernel(X, X2, **options)
    there = nfd.kernel(X.to(device), X2, **options)
    sent = nfd.kernel(X, X2, device=device, **options)
    assert there.device.type == sent.device.type == device
    arrays = nfd.kernel(X.numpy(), X2.numpy(), device=device, **options)
    for found in (there.cpu(), sent.cpu(), torch.from_numpy(arrays)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    own = nfd.kernel(X.to(device), **options).cpu()
    torch.testing.assert_close(own, nfd.kernel(X, **options), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("eq5_term", [False, True])
def test_particles_move_there_as_they_do_here(device: str, *, eq5_term: bool) -> None:
    x = numbers(4, 3)
    y = torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=F64)
    x[3] = x[2]  # a dropped direction
    options = {"grid": 3, "particles": 64, "replicates": 2, "eq5_term": eq5_term}
    here, there = (nfd.solve_nfd(x, y, device=place, **options) for place in ("cpu", device))
    for name in ("outputs", "Sigma", "Theta"):
        found = getattr(there, name)
        assert found.device.type == device
        torch.testing.assert_close(found.cpu(), getattr(here, name), rtol=1e-9, atol=1e-9)


def test_plans_are_made_and_used_there(device: str) -> None:
    here = Residual(16, 3)
    there = Residual(16, 3).to(device)
    options = {"rule": "complete-p", "make_model": Residual, "base": (8, 2), "optimizer": "sgd"}
    plan = nfd.plan(there, sample=torch.zeros(2, 5, device=device), **options)
    assert plan.entries["blocks.0.down.weight"].role == "outer"
    plan.apply_(there, seed=3)
    plan.apply_(here, seed=3)
    for name, p in here.named_parameters():
        assert torch.equal(there.get_parameter(name).detach().cpu(), p.detach())
    optimizer = torch.optim.SGD(plan.param_groups(there, lr=0.1), lr=0.1)
    there(torch.ones(2, 5, device=device)).sum().backward()
    optimizer.step()


def batches(place: str = "cpu") -> list[tuple[Tensor, Tensor]]:
    own = [(numbers(16, 5, seed=k).float(), torch.arange(16) % 2) for k in range(2)]
    return [(x.to(place), y.to(place)) for x, y in own]


def losses(place: str, device: str | None = None, **settings: Any) -> Tensor:
    """Of a trial whose batches lie in a place, or whose sweep is on a device."""
    family = nfd.Family(
        Residual, base=(8, 2), rule="complete-p", optimizer=settings.pop("optimizer", "sgd")
    )
    trial = nfd.Trial(
        family.under(sample=batches(place)[0][0]),
        nfd.Task(batches(place)),
        16,
        2,
        0,
        0.01,
        **settings,
    )
    with nfd.Sweep(device=device, progress=False) as sweep:
        (record,) = sweep.run([trial])
        assert record.status == "done", record.error
        return sweep.curves(trial)["loss"].cpu()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
@pytest.mark.parametrize("weights", ["dense", "structured"])
def test_trials_find_there_what_they_find_here(device: str, weights: str, optimizer: str) -> None:
    if (weights, optimizer) == ("structured", "adamw"):
        return  # which is refused everywhere
    settings = {"weights": weights, "optimizer": optimizer}
    here = losses("cpu", **settings)
    for place, asked in ((device, None), ("cpu", device)):
        # bfloat16 under Muon
        torch.testing.assert_close(losses(place, asked, **settings), here, rtol=2e-2, atol=0)


def test_predictions_are_made_there(device: str) -> None:
    judged = [(numbers(4, 5).float(), torch.ones(4, 2))]
    task = nfd.Task(
        [(numbers(2, 5).float(), torch.ones(2, 2))] * 3, loss="mse", eval_batches=judged
    )
    here, there = (
        nfd.predict(
            nfd.resnets(5, 2),
            task,
            0.1,
            depth=2,
            width=24,
            replicates=2,
            sweep=nfd.Sweep(device=place),
        )
        for place in ("cpu", device)
    )
    torch.testing.assert_close(there.loss.cpu(), here.loss, rtol=1e-4, atol=1e-5)
    assert there.eval_loss == pytest.approx(here.eval_loss, rel=1e-4)


def test_networks_are_checked_there(device: str) -> None:
    found = nfd.check(Residual, batches(), [8, 16], [2], seeds=2, sweep=nfd.Sweep(device=device))
    assert all(np.isfinite(run["loss"]) for run in found.runs)
    assert len(found.table) > 4


# ---- asking for a device that is not there


@pytest.mark.skipif(CUDA, reason="a CUDA device is present")
@pytest.mark.parametrize(
    "asking",
    [
        lambda: nfd.ResNet(2, 2, 4, 1, device="cuda"),
        lambda: nfd.DeferredLinear(2, 2, device="cuda:1"),
        lambda: nfd.kernel(np.ones((2, 2)), device="cuda"),
        lambda: nfd.InfiniteDepthKernel(device="cuda")(np.ones((2, 2))),
        lambda: nfd.solve_nfd(torch.ones(2, 2), torch.ones(2), device="cuda"),
        lambda: nfd.Sweep("nowhere", device="cuda"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_what_to_do(asking: Any) -> None:
    with pytest.raises(
        ValueError, match=r"device must be one that PyTorch can use here.*'cuda(:1)?'"
    ):
        asking()


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device; none is present")
def test_worker_processes_compute_there(tmp_path: Path) -> None:
    with nfd.Sweep(tmp_path, workers=2, device="cuda", progress=False) as sweep:
        trials = [
            nfd.Trial(nfd.resnets(5, 2), nfd.Task(batches()), 8, depth, 0, 0.1) for depth in (1, 2)
        ]
        assert [record.status for record in sweep.run(trials)] == ["done", "done"]
