"""Everything on a CUDA device: a real one where there is one (``gpu``), and one in name alone everywhere else.

The pretended device (``pretend.py``) runs on the CPU and raises where tensors of two devices would meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

import nfd
from nfd.meters.event import EventKind
from nfd.nets.network import Network
from nfd.nets.revealed import RevealedMatrix
from nfd.questions.kernel_fit import KernelFit, Score
from nfd.questions.study import Study
from nfd.runs.executors import executor_named
from nfd.runs.records import train_group
from nfd.runs.settings import KernelConfig, RunConfig, StudyConfig
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


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers on the CPU."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


# ---- the pretence itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "meeting",
    [
        lambda x: x + torch.ones(3),
        lambda x: x * torch.ones(3)[:, None],
        lambda x: torch.cat([x, torch.zeros(1, 3)]),
        lambda x: torch.arange(3.0) * x.sum(),
        lambda x: x @ torch.from_numpy(np.ones((3, 3), dtype=np.float32)),
        lambda x: torch.ones(3)[x[0].long()],
        lambda x: x.index_put_((torch.tensor([0]),), torch.ones(1, 3)),
        lambda x: x.numpy(),
        lambda x: np.asarray(x),
        lambda x: x.normal_(generator=torch.Generator()),
        lambda x: torch.randn(3, generator=torch.Generator(device="cuda")),
        lambda x: nn.Linear(3, 3)(x),
        lambda x: nn.functional.mse_loss(x.requires_grad_(), x.detach().cpu()).backward(),
    ],
)
def test_the_pretence_raises_where_two_devices_meet(meeting: Any) -> None:
    with pretended_cuda():
        x = torch.zeros(3, 3, device="cuda")
        with pytest.raises((RuntimeError, TypeError), match=r"device|numpy|generator"):
            meeting(x)


def test_the_pretence_lets_pass_what_pytorch_does() -> None:
    with pretended_cuda() as pretended:
        x = torch.ones(3, 3, device="cuda", requires_grad=True)
        y = x * torch.tensor(2.0) + 1  # a CPU number beside a tensor
        z = torch.empty(3, 3).copy_(y.detach())
        places = [
            t.device.type for t in (y, z, x.new_zeros(2), torch.zeros_like(z), y.cpu(), z.to(x), y[:, 0].double())
        ]
        assert places == ["cuda", "cpu", "cuda", "cpu", "cpu", "cuda", "cuda"]
        assert y[torch.tensor([0])].device.type == "cuda"
        y.square().sum().backward()
        assert x.grad is not None
        assert x.grad.device.type == "cuda"
        assert pretended.waits == 1  # y.cpu()
        assert nn.Linear(3, 3).to("cuda").weight.device.type == "cuda"
        assert y.cpu().detach().numpy().sum() == 27


def test_a_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussians drawn without ``device=``, in the backward pass alone."""
    drawn = RevealedMatrix._drawn

    def planted(self: RevealedMatrix, side: Any, *counts: Any) -> Tensor:
        right = drawn(self, side, *counts)
        return right if side.name == "forward" else torch.randn(right.shape)

    monkeypatch.setattr(RevealedMatrix, "_drawn", planted)
    with pretended_cuda():
        layer = nfd.DeferredLinear(6, 5, device="cuda")
        y = layer(torch.ones(2, 6, device="cuda"))
        with pytest.raises(RuntimeError, match="same device"):
            y.sum().backward()


# ---- networks --------------------------------------------------------------------------------------------------


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
    ("feedback", "block"), [("shared", "two-layer"), ("independent", "one-layer"), ("static", "one-layer")]
)
def test_completed_dense_network_repeats_every_output(device: str, feedback: str, block: str) -> None:
    def build(weights: str) -> Network:
        return nfd.ResNet(
            5, 2, 30, 2, weights=weights, feedback=feedback, block=block, activation="tanh", dtype=F64, device=device
        )

    assert gap(build, training(device), 0.3, "depth-mup", momentum=0.9, weight_decay=1e-3) < 1e-10


@pytest.mark.parametrize("feedback", ["shared", "independent"])
def test_dense_networks_train_there_as_they_do_here(device: str, feedback: str) -> None:
    outputs = []
    for place in ("cpu", device):
        net = nfd.MLP(5, 2, 12, 2, feedback=feedback, dtype=F64, device=place)
        outputs.append(training(place)(net, nfd.SGD(net.param_groups(0.3)))[-1].cpu())
        assert net.U.device.type == place
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-10, atol=1e-10)


def test_decoupled_copies_begin_alike_on_both(device: str) -> None:
    here, there = (nfd.ResNet(5, 2, 12, 2, device=place).decoupled() for place in ("cpu", device))
    for name, p in here.named_parameters():
        assert torch.equal(there.get_parameter(name).cpu(), p)


def test_deferred_networks_are_saved_there_and_loaded_here(device: str) -> None:
    def build(place: str, seed: int) -> Network:
        return nfd.ResNet(5, 2, 40, 2, weights="deferred", seed=seed, dtype=F64, device=place)

    net = build(device, 1)
    training(device)(net, nfd.SGD(net.param_groups(0.3), momentum=0.9))
    here, there = build("cpu", 2), build(device, 3)
    state = load(save(net.state_dict()))
    here.load_state_dict(state)
    there.load_state_dict(state)
    moved = build("cpu", 4)
    moved.load_state_dict(state)
    moved.to(device)
    asked = here.outer[1].matrix.forward.directions.rows  # these have their answers
    with torch.no_grad():
        answers = here.outer[1](asked)
        for other in (net, there, moved):
            y = other.outer[1](asked.to(device))
            assert y.device.type == device
            torch.testing.assert_close(y.cpu(), answers, rtol=1e-10, atol=1e-10)
    for other in (there, moved):  # and they go on training there
        training(device)(other, nfd.SGD(other.param_groups(0.1)))


def test_a_query_waits_for_the_device_only_to_factor_its_residual() -> None:
    """Once for the lengths of its vectors, once for the Gram matrix of what is new in them."""
    with pretended_cuda() as pretended:
        layer = nfd.DeferredLinear(200, 200, device="cuda")
        optimizer = nfd.SGD(layer.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        for x in numbers(4, 2, 200).float().to("cuda"):
            before = pretended.waits
            layer(x).backward(x)
            assert pretended.waits - before <= 4
            before = pretended.waits
            optimizer.step()
            assert pretended.waits == before


@pytest.mark.parametrize("move", [lambda layer: layer.to("cuda"), lambda layer: layer.cuda()])
def test_a_layer_that_moves_between_two_backward_passes_is_neither_suspected_nor_waited_for(move: Any) -> None:
    with pretended_cuda() as pretended:
        layer = nfd.DeferredLinear(200, 200)
        x = numbers(3, 2, 200).float()
        layer(x[0]).backward(x[0])
        move(layer)
        assert {p.grad.device.type for p in layer.parameters()} == {"cuda"}  # type: ignore[union-attr]
        optimizer, x = nfd.SGD(layer.parameters(), lr=0.1, momentum=0.9), x.to("cuda")
        for inputs in x[1:]:
            before = pretended.waits
            layer(inputs).backward(inputs)
            assert pretended.waits - before <= 4
        before = pretended.waits
        optimizer.step()
        assert pretended.waits == before
        assert layer.cpu().update.grad.sign_().any()
        with pytest.raises(RuntimeError, match="was changed"):
            nfd.SGD(layer.parameters(), lr=0.1).step()


def test_a_step_of_a_stack_waits_for_the_device_once() -> None:
    """To see whether a network is left that has not diverged."""
    runs = [RunConfig(width=8, depth=2, steps=steps, batch=4).model_dump() for steps in (3, 7)]
    waits = []
    for run in runs:
        with pretended_cuda() as pretended:
            train_group([run, run | {"seed": 1}], "cuda")
            waits.append(pretended.waits)
    assert waits[1] - waits[0] == 4


# ---- runs and sweeps -------------------------------------------------------------------------------------------

RUNS: list[dict[str, Any]] = [
    {},
    {"optimizer": "adam", "eta_c": 0.01},
    {"block": "two-layer", "rule": "depth-mup-inner", "meter": "updates"},
    {"network": "mlp", "rule": "mup", "feedback": "independent"},
    {"meter": "spectra", "batch": 1, "activation": "tanh"},
    {"meter": "start", "activation": "tanh"},
    {"meter": "outputs", "coupled": True},
]


@pytest.mark.parametrize("settings", RUNS)
def test_runs_find_there_what_they_find_here(device: str, settings: dict[str, Any]) -> None:
    base = {"width": 12, "depth": 2, "steps": 3, "batch": 4, "every": 2}
    if settings.get("meter") in ("outputs", "start"):
        del base["every"]
    runs = [RunConfig(**base | settings, seed=seed).model_dump() for seed in range(2)]
    for here, there in zip(train_group(runs), train_group(runs, device), strict=True):
        assert here.status == there.status == "done", (here.error, there.error)
        assert there.metrics == pytest.approx(here.metrics, rel=1e-3, abs=1e-6)
        assert there.curves.keys() == here.curves.keys()


def test_deferred_runs_train_there(device: str) -> None:
    (run,) = train_group([RunConfig(width=64, depth=2, steps=3, weights="deferred").model_dump()], device)
    assert run.status == "done", run.error


def test_a_sweep_passes_the_device_on(device: str, tmp_path: Path) -> None:
    configs = [RunConfig(width=8, depth=2, steps=2, batch=4, seed=seed) for seed in range(2)]
    with nfd.Sweep(tmp_path, device=device) as sweep:
        assert [record.status for record in sweep.run(configs)] == ["done", "done"]


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="needs a CUDA device; none is present")
def test_worker_processes_compute_there(tmp_path: Path) -> None:
    configs = [RunConfig(width=8, depth=depth, steps=2, batch=4) for depth in (1, 2)]
    with nfd.Sweep(tmp_path, executor_named("processes", workers=2), device="cuda") as sweep:
        assert [record.status for record in sweep.run(configs)] == ["done", "done"]


# ---- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "kind"), [("relu", "independent-feedback"), ("erf", "ntk")])
def test_kernels_agree_with_those_of_the_cpu(device: str, activation: str, kind: str) -> None:
    X, X2 = numbers(7, 4), numbers(3, 4, seed=1)
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


@pytest.fixture
def kernels_here() -> tuple[Any, ...]:
    """What scikit-learn gets on the CPU; made before a device is pretended, which would make it slow."""
    X, kernel = numbers(6, 4).numpy(), nfd.InfiniteDepthKernel()
    return *kernel(X, eval_gradient=True), kernel.diag(X)


def test_the_kernel_of_scikit_learn_computes_there(kernels_here: tuple[Any, ...], device: str) -> None:
    X, there = numbers(6, 4), nfd.InfiniteDepthKernel(device=device)
    assert there.get_params()["device"] == device
    for found, expected in zip(
        (*there(X.numpy(), eval_gradient=True), there.diag(X.numpy())), kernels_here, strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sampling", ["sobol", "antithetic", "plain"])
def test_particles_move_there_as_they_do_here(device: str, sampling: str) -> None:
    x, y = numbers(4, 3), torch.tensor([1.0, -1.0, 1.0, 1.0], dtype=F64)
    x[3] = x[2]  # a dropped direction
    options = {"grid": 3, "particles": 64, "replicates": 2, "sampling": sampling, "eq5_term": sampling == "plain"}
    here, there = (nfd.solve_nfd(x, y, device=place, **options) for place in ("cpu", device))
    for name in ("outputs", "Sigma", "Theta", "min_eigenvalues", "dropped"):
        found = getattr(there, name)
        assert found.device.type == device
        torch.testing.assert_close(found.cpu(), getattr(here, name), rtol=1e-9, atol=1e-9)


def test_particles_that_diverge_there_are_a_result(device: str) -> None:
    x, y = numbers(4, 3), torch.ones(4, dtype=F64)
    found = nfd.solve_nfd(
        100 * x, y, grid=2, particles=32, replicates=2, eta_c=1e8, activation="identity", device=device
    )
    assert found.diverged_at is not None


@pytest.mark.parametrize("depth", [2, pytest.param(float("inf"), marks=pytest.mark.slow)])
def test_predictions_are_made_there(device: str, depth: float) -> None:
    p = nfd.predict(
        numbers(3, 2, 5), torch.ones(3, 2), depth=depth, loss="mse", width=24, replicates=2, rtol=10.0, device=device,
        eval_inputs=numbers(4, 5), eval_targets=torch.ones(4),
    )  # fmt: skip
    assert torch.isfinite(p.loss).all()
    assert p.loss.device.type == device
    assert p.eval_loss is not None


# ---- plans, checks, studies ------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.outer(self.drop(torch.relu(self.inner(x))))


def make_model(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(5, width), nn.Sequential(*[Block(width) for _ in range(depth)]), nn.Linear(width, 2))


def test_plans_are_made_and_used_there(device: str) -> None:
    here, there = make_model(16, 3), make_model(16, 3).to(device)
    options = {"rule": "complete-p", "make_model": make_model, "base_width": 8, "base_depth": 2, "optimizer": "sgd"}
    plan = nfd.plan(there, sample=torch.zeros(2, 5, device=device), **options)
    assert plan.entries["1.0.outer.weight"].role == "outer"
    plan.initialize_(there, seed=3)
    plan.initialize_(here, seed=3)
    for name, p in here.named_parameters():
        assert torch.equal(there.get_parameter(name).detach().cpu(), p.detach())
    optimizer = torch.optim.SGD(plan.param_groups(there, lr=0.1), lr=0.1)
    there(torch.ones(2, 5, device=device)).sum().backward()
    optimizer.step()


def test_networks_are_checked_there(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nfd.meters.running.ThreadPoolExecutor", InTurn)
    batches = [(numbers(16, 5, seed=k).float(), torch.arange(16) % 2) for k in range(2)]
    found = nfd.check(make_model, [8], [2, 3], batches, seeds=2, device=device, at=(1, 2))
    assert all(0 < row["alignment"] <= 1 for row in found.rows if not row["matrix"])
    assert EventKind.NOT_FINITE not in [failure.event.kind for failure in found.failures]

    def ours(width: int, depth: int) -> nn.Module:
        return nfd.ResNet(5, 2, width, depth)

    found = nfd.check(ours, [8], [2, 3], batches, seeds=2, gia=True, device=device)
    assert {row["meter"] for row in found.table} >= {"gia_gap", "stream_update"}


@pytest.mark.parametrize("where", ["batches", pytest.param("device", marks=pytest.mark.slow)])
def test_networks_of_a_sweep_are_trained_where_the_batches_lie_or_as_asked(device: str, where: str) -> None:
    here = [(numbers(16, 5, seed=k).float(), torch.arange(16) % 2) for k in range(2)]
    there = [(x.to(device), y.to(device)) for x, y in here] if where == "batches" else here
    place = {} if where == "batches" else {"device": device}
    options: dict[str, Any] = {"seeds": 2, "optimizer": "adamw", "loss": spread}
    sizes: Any = ([8, 16], [2])
    moved, best = (
        nfd.transfer(make_model, *sizes, batches, rules=("mup",), lr=(0.001, 0.01, 0.1), **options | on)
        for batches, on in ((there, place), (here, {}))
    )
    assert moved.best("mup", 16, 2).value == pytest.approx(best.best("mup", 16, 2).value, rel=1e-2, nan_ok=True)
    sized = nfd.capacity(make_model, [8, 12, 16], [2, 3], there[:1], lr=0.01, **options | place)
    assert sized.costs is not None
    assert sized.costs.cost("parameters").at(16, 3) == sum(p.numel() for p in make_model(16, 3).parameters())


@pytest.mark.filterwarnings("ignore:A StructuredLinear of size")
@pytest.mark.parametrize("weights", ["dense", pytest.param("structured", marks=pytest.mark.slow)])
@pytest.mark.parametrize("where", ["batches", pytest.param("device", marks=pytest.mark.slow)])
def test_limits_of_anyones_networks_are_found_where_the_batches_lie_or_as_asked(
    device: str, where: str, weights: str
) -> None:
    here = [(numbers(8, 5, seed=k).float(), torch.arange(8) % 2) for k in range(2)]
    there = [(x.to(device), y.to(device)) for x, y in here] if where == "batches" else here
    place = {} if where == "batches" else {"device": device}
    options: dict[str, Any] = {"make_model": make_model, "depth": 2, "base_width": 8, "width": 16, "replicates": 2}
    options |= {"optimizer": "sgd"}  # which acts on whole matrices
    moved, near = (
        nfd.predict(batches=batches, weights=weights, **options | on) for batches, on in ((there, place), (here, {}))
    )
    assert torch.isfinite(moved.loss).all()
    assert moved.ways == near.ways


def spread(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss of the user's own, so that a fingerprint is taken of the training."""
    return nn.functional.cross_entropy(outputs, targets) + outputs.square().mean()


class InTurn(Executor):
    """One call after the other in this thread: what is pretended is pretended in one thread."""

    def __init__(self, workers: int) -> None:
        assert workers == 1  # networks take turns on an accelerator, which has one stream of random numbers

    def submit(self, call: Any, /, *args: Any, **options: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(call(*args, **options))
        return done


@pytest.mark.slow
def test_a_study_is_made_there(device: str) -> None:
    config = StudyConfig(
        steps=2, batch=2, depths=(2, 4), widths=(4, 8), seeds=2, limit_width=16, replicates=3, block_depths=(2, 4),
        block_seeds=2, block_width=8,
    )  # fmt: skip
    study = Study(config, device=device)
    with nfd.Sweep(None, device=device) as sweep:
        measured = study.measure(sweep)
    assert all(torch.isfinite(study.mean_loss(outputs)).all() for outputs in measured.real.values())
    assert study.facts()["device"].startswith(device)


FIT = KernelConfig(train=30, test=10)


@pytest.fixture
def score_here() -> Score:
    return KernelFit(FIT).score(1.0)


def test_regression_is_done_there(score_here: Score, device: str) -> None:
    there = KernelFit(FIT, device=device).score(1.0)
    assert there.likelihood == pytest.approx(score_here.likelihood, rel=1e-9)
    assert there.accuracy == score_here.accuracy


# ---- asking for a device that is not there -----------------------------------------------------------------------


@pytest.mark.skipif(CUDA, reason="a CUDA device is present")
@pytest.mark.parametrize(
    "asking",
    [
        lambda: nfd.ResNet(2, 2, 4, 1, device="cuda"),
        lambda: nfd.DeferredLinear(2, 2, device="cuda:1"),
        lambda: nfd.kernel(np.ones((2, 2)), device="cuda"),
        lambda: nfd.InfiniteDepthKernel(device="cuda")(np.ones((2, 2))),
        lambda: nfd.solve_nfd(torch.ones(2, 2), torch.ones(2), device="cuda"),
        lambda: nfd.predict(torch.ones(2, 2), torch.ones(2), loss="mse", device="cuda"),
        lambda: nfd.check(make_model, [2, 4], [1], [(torch.ones(2, 5), torch.zeros(2).long())], device="cuda"),
        lambda: nfd.Sweep("nowhere", device="cuda"),
    ],
)
def test_a_device_that_is_not_there_is_named_with_what_to_do(asking: Any) -> None:
    with pytest.raises(ValueError, match=r"device='cuda(:1)?' is not available: PyTorch sees no CUDA device. Use"):
        asking()


@pytest.mark.skipif(CUDA, reason="a CUDA device is present")
@pytest.mark.parametrize(
    "command", ["study", "predict", "check test_gpu:make_model", "kernel", "transfer", "capacity", "figure 1", "claims"]
)
def test_every_command_that_computes_takes_a_device(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nfd.cli.main import main

    assert main([*command.split(), "--device", "cuda", "--out", str(tmp_path / "out")]) == 2
    assert "PyTorch sees no CUDA device" in capsys.readouterr().err
