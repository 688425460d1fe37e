"""Hostile arguments, and every public call with arguments that it takes: for tests that mix the two."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.models import Residual
from tests.rules import Polynomial
from torch import Tensor, nn

import nfd
from nfd.core.errors import RangeError, UsageError
from nfd.scaling.rules import Power

# What a call may raise of a bad argument; everything else is a fault.
REFUSALS = (ValueError, TypeError, OSError)

# Said by Python, NumPy or PyTorch, not by us: what arrived got deeper than it should have.
_FOREIGN = re.compile(
    r"unexpected keyword|positional argument|not subscriptable|has no attribute|unsupported operand|object is not|"
    r"cannot be interpreted|broadcast|must match the size|invalid literal|list index|aten::|unhashable|ambiguous|"
    r"truth value|not supported between|object cannot be"
)


class Odd:
    """An object that is nothing a call takes."""

    def __repr__(self) -> str:
        return "<odd>"


SCALARS = (
    *(None, True, False, 0, 1, 2, -1, 2**40, 2**63, 2**64, 10**400, 0.0, -0.0, 0.5, 1.0, 2.0, -1.5, 1e-320, 1e-200),
    *(1e300, math.inf, -math.inf, math.nan, 1j, "", " ", "relu", "auto", "1", "nan", "inf", "\0", "\ud800", "\u202ea"),
    *("x" * 5000, b"1", Decimal("1.5"), Decimal("NaN"), Fraction(1, 2), Odd()),
    *(np.int64(2), np.int8(-1), np.float32(0.5), np.float64(math.nan), np.bool_(True), np.str_("relu")),
    *(torch.tensor(2), torch.tensor(0.5), torch.tensor(math.nan), torch.tensor(True), torch.tensor(1.0 + 1j)),
    *(torch.tensor(0.5, requires_grad=True), torch.float16, torch.int64, torch.float64),
)

ARRAYS = (
    *([], [[]], [[[]]], [1], [1, 2], [1.0, math.nan], [[1.0], [2.0, 3.0]], [None], ["a"], [["a"]], (), {}, {"a": 1}),
    *(set(), {1}, [True, False], [2**70], [[1j]], [Odd()], [[0.0, 0.0], [0.0, 0.0]]),
    *(np.zeros(0), np.zeros((0, 3)), np.zeros((3, 0)), np.ones((2, 2, 2, 2)), np.ones((4, 3), dtype=object)),
    *(np.full((4, 3), np.nan), np.full((4, 3), np.inf), np.full((4, 3), 1e200), np.full((4, 3), -1e-200)),
    *(np.ones((3, 4)).T, np.ones((8, 6))[::2, ::2], np.ones((4, 3))[::-1], np.asfortranarray(np.ones((4, 3)))),
    *(np.ones((4, 3), dtype=np.float16), np.ones((4, 3), dtype=np.uint8), np.ones((4, 3), dtype=np.complex128)),
    *(np.ones((4, 3), dtype=bool), np.array([["a"] * 3] * 4), np.array("2020-01-01", dtype="datetime64[D]")),
    *(np.ones((4, 3), dtype=">f8"), np.ma.masked_array(np.ones((4, 3)), mask=True), np.arange(4), np.arange(4.0)),
    *(np.array([0, 1, 0, 1]), np.array([0, 1, 2, -1]), np.array([0, 1, 2, 10**9]), np.array([2**63], dtype=np.uint64)),
    *(torch.zeros(0), torch.zeros(4, 3), torch.ones(4, 3).half(), torch.ones(4, 3).bfloat16(), torch.ones(4, 3).bool()),
    *(
        torch.ones(4, 3, requires_grad=True),
        torch.ones(4, 3) * math.nan,
        torch.ones(3, 4).T,
        torch.ones(1).expand(4, 3),
    ),
    *(torch.ones(4, 3).to_sparse(), torch.ones(4, 3, device="meta"), torch.ones(4, 3, dtype=torch.complex64)),
    *(torch.ones(2, 4, 3), torch.tensor([0, 1, 0, 1])),
)

ODD = (*SCALARS, *ARRAYS)

odd_values = st.one_of(
    st.sampled_from(SCALARS),
    st.sampled_from(ARRAYS),
    st.floats(),
    st.integers(-5, 5),
    st.text(max_size=8),
    st.lists(st.floats(), max_size=5),
)


@dataclass(frozen=True)
class Call:
    """A public call: its name, arguments that it takes, and what its answers are like."""

    name: str
    do: Callable[..., Any]
    good: dict[str, Any]
    right: Callable[[Any], bool]
    also: tuple[str, ...] = ()  # what an error may name instead of an argument

    def answer(self, arguments: dict[str, Any]) -> Any:
        """What it answers; the error where it refuses in words that name an argument; AssertionError otherwise."""
        try:
            found = self.do(**{**self.good, **arguments})
        except REFUSALS as error:
            said = str(error)
            foreign = " must " not in said and _FOREIGN.search(said)
            if not isinstance(error, UsageError | OSError) and not _is_pytorchs(error):
                raise AssertionError(
                    f"{self.name}({arguments!r}): {type(error).__name__} has no mark: {said!r}"
                ) from error
            if not said or foreign or not any(word in said for word in (*_names(arguments), *self.also)):
                raise AssertionError(f"{self.name}({arguments!r}) says {type(error).__name__}: {said!r}") from error
            return error
        except Exception as error:
            if isinstance(error, RangeError) and "leave the range of numbers" in str(error):
                return error
            raise AssertionError(f"{self.name}({arguments!r}) raises {type(error).__name__}: {error}") from error
        if not self.right(found):
            raise AssertionError(f"{self.name}({arguments!r}) answers {found!r}")
        return found


def _is_pytorchs(error: BaseException) -> bool:
    """Whether PyTorch's own check refused, as those of ``torch.optim.SGD`` do for ``nfd.SGD``."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and "torch" in Path(trace.tb_frame.f_code.co_filename).parts


def _names(arguments: dict[str, Any]) -> list[str]:
    """The names that an error may call these arguments by."""
    return [*arguments, *(name.replace("_", " ") for name in arguments)]


def finite(*values: Any) -> bool:
    """Whether all numbers are."""
    return all(bool(np.isfinite(np.asarray(value, dtype=np.float64)).all()) for value in values)


# ---- the calls -----------------------------------------------------------------------------------------------

_X = torch.linspace(-1, 1, 12).view(4, 3)
_Y = torch.tensor([0, 1, 0, 1])
_WIDE = torch.linspace(-1, 1, 96).view(4, 24)
_FIVE = torch.linspace(-1, 1, 20).view(4, 5)


def _network(kind: Callable[..., Any]) -> Callable[..., Any]:
    def build(x: Any, **arguments: Any) -> Any:
        net = kind(**arguments)
        return net, net(x)

    return build


def _network_right(found: Any) -> bool:
    net, outputs = found
    tame = getattr(net, "branch", 1.0) < 1e3  # beyond, numbers may leave float32
    return outputs.shape == (4, net.out_features) and (finite(outputs.detach()) or not tame)


def _legal(outputs: Tensor) -> bool:
    """Numbers, or what too large weights make of inputs: seen by whoever looks, as every entry of a row says so."""
    return not bool(outputs.isnan().any()) or bool(outputs.isnan().all())


def _deferred(x: Any, **arguments: Any) -> Any:
    return nfd.DeferredLinear(**arguments)(x)


def _structured(x: Any, **arguments: Any) -> Any:
    return nfd.StructuredLinear(**arguments)(x)


def _sgd(**arguments: Any) -> Any:
    net = nfd.ResNet(3, 2, 32, 2, weights="deferred")
    params = arguments.pop("params")
    optimizer = nfd.SGD(net.param_groups(eta_c=0.1) if params is None else params, **arguments)
    net(_X).square().mean().backward()
    optimizer.step()
    return net(_X)


def _stepping(layer_of: Any, optimizer_of: Any) -> Callable[..., Any]:
    def stepped(**arguments: Any) -> Any:
        torch.manual_seed(0)
        layer = layer_of(24, 32, std=0.2)
        params = arguments.pop("params")
        optimizer = optimizer_of(layer.parameters() if params is None else params, **arguments)
        layer(_WIDE).square().mean().backward()
        optimizer.step()
        return layer(_WIDE)

    return stepped


def _defer(**arguments: Any) -> Any:
    torch.manual_seed(0)
    model = arguments.pop("model")
    return nfd.defer(Residual(8, 2) if model is None else model, **arguments)(_FIVE)


def _meta_matrices() -> bool:
    with nfd.meta_matrices():
        linear = nn.Linear(3, 2)
    return linear.weight.is_meta and not linear.bias.is_meta


def _watched(model: Any, plan: Any, **arguments: Any) -> Any:
    small = Residual(8, 2)
    drawn = nfd.plan(small, make_model=Residual, base_width=4, base_depth=2, sample=_FIVE)
    drawn.apply_(small)
    watch = nfd.Watch(small if model is None else model, drawn if plan is None else plan, **arguments)
    return watch.step()


def _deferral(**arguments: Any) -> Any:
    torch.manual_seed(0)
    model = arguments.pop("model")
    told = nfd.deferral(Residual(8, 2) if model is None else model, **arguments)
    return torch.tensor([float(own.bytes) for own in told.replacements])


def _store_weights(**arguments: Any) -> Any:
    torch.manual_seed(0)
    model = arguments.pop("model")
    return nfd.store_weights(nfd.defer(Residual(8, 2)) if model is None else model, **arguments)(_FIVE)


def _rates(**arguments: Any) -> Any:
    return nfd.ResNet(3, 2, 4, 2, block="two-layer").param_groups(**arguments)


def _plan(**arguments: Any) -> Any:
    found = nfd.plan(**arguments)
    groups = found.param_groups(arguments["model"], lr=0.1)
    return [number for group in groups for number in (group["lr"], group["weight_decay"])], found.explain()


def _grouped(**arguments: Any) -> Any:
    model = Residual(8, 2)
    plan = nfd.plan(model, make_model=Residual, base_width=4, base_depth=2, sample=_FIVE)
    return [
        number for group in plan.param_groups(model, **arguments) for number in (group["lr"], group["weight_decay"])
    ]


def _made(**arguments: Any) -> list[float]:
    model = Residual(8, 2)
    plan = nfd.plan(model, make_model=Residual, base_width=4, base_depth=2, sample=_FIVE)
    return [group["lr"] for group in plan.make_optimizer(model, **arguments).param_groups]


def _applied(**arguments: Any) -> list[Tensor]:
    model = Residual(8, 2)
    plan = nfd.plan(model, make_model=Residual, base_width=4, base_depth=2, sample=_FIVE)
    return [p.detach() for p in plan.apply_(model, **arguments).parameters()]


def _initialised(seed: Any) -> Any:
    model = Residual(8, 2)
    nfd.plan(model, make_model=Residual, base_width=4, base_depth=2, sample=_FIVE).initialize_(model, seed=seed)
    return [p.detach().flatten() for p in model.parameters()]


def _scaled(**arguments: Any) -> Any:
    return nfd.Scaled(**arguments)(_X).detach()


def _member(kind: Callable[..., Any]) -> Callable[..., Any]:
    def build(width: Any, depth: Any, seed: Any, **arguments: Any) -> Any:
        return kind(**arguments).build(width, depth, seed)

    return build


def _estimator_kernel(**arguments: Any) -> Any:
    X, Y = arguments.pop("X"), arguments.pop("Y")
    found = nfd.InfiniteDepthKernel(**arguments)
    return found(X, Y), found.diag(X)


def _predicted(found: Any) -> bool:
    numbers = (found.outputs, found.outputs_stderr, found.loss, found.loss_stderr)
    return finite(*numbers) or (not found.converged and "diverged" in found.note)


def _solved(found: Any) -> bool:
    return finite(found.outputs, found.outputs_stderr) or found.diverged_at is not None


_TRANSFER = {
    "make_model": Residual,
    "widths": (4, 8),
    "depths": (1,),
    "batches": [(_FIVE, torch.tensor([0, 1, 2, 0]))] * 2,
    "rules": ("mup",),
    "optimizer": "adamw",
    "lr": (0.01, 0.1, 1.0),
    "seeds": 2,
    "eval_batches": None,
    "loss": "cross-entropy",
    "weight_decay": 0.1,
    "blocks": "blocks.*",
    "roles": None,
    "schedule": None,
    "make_optimizer": None,
    "version": "1",
    "device": "cpu",
}


def _listed(answer: Any) -> bool:
    return bool(answer.table) and bool(str(answer))


def _checked(found: Any) -> bool:
    unknown = ("UNCERTAIN", "NOT MEASURED")
    said = all(math.isfinite(row["slope"]) or row["verdict"] in unknown for row in found.table)
    return said and bool(str(found))


_NET = {"in_features": 3, "out_features": 2, "width": 4, "depth": 2, "x": _X, "activation": "relu", "seed": 0}
_NET |= {
    "regime": "feature",
    "weights": "dense",
    "feedback": "shared",
    "resolution": None,
    "dtype": torch.float32,
    "device": "cpu",
}
_RESNET = {**_NET, "horizon": 1.0, "block": "one-layer", "order": "pre", "branch_exponent": 0.5, "coupled": False}
_PREDICT: dict[str, Any] = {"inputs": _X, "targets": _Y, "eval_inputs": None, "eval_targets": None, "device": "cpu"}
_PREDICT |= {"depth": 2, "horizon": 1.0, "activation": "relu", "block": "one-layer", "eta_c": 0.1, "momentum": 0.0}
_PREDICT |= {"loss": "cross-entropy", "classes": 2, "feedback": "shared", "rule": "depth-mup", "width": 8}
_PREDICT |= {"replicates": 2, "rtol": 0.5, "memory": "100 MB", "seed": 0}
_SOLVE: dict[str, Any] = {"inputs": _X, "targets": torch.tensor([1.0, -1.0, 1.0, -1.0]), "grid": 2, "horizon": 1.0}
_SOLVE |= {"activation": "tanh", "eta_c": 0.1, "loss": "mse", "particles": 16, "replicates": 2, "seed": 0}
_SOLVE |= {"eq5_term": False, "sampling": "sobol", "memory": "100 MB"}
_CHECK: dict[str, Any] = {"make_model": lambda width, depth: nfd.ResNet(3, 2, width, depth), "widths": [4, 8]}
_CHECK |= {"depths": [2], "batches": [(_X, _Y)], "rule": "depth-mup", "optimizer": "sgd", "eta_c": 0.1, "seeds": 2}
_CHECK |= {"loss": "cross-entropy", "blocks": None, "roles": None, "weight_decay": 0.0, "gia": False, "noise": False}
_RATES = [{"width": n, "lr": lr, "loss": 1 + abs(lr - 2)} for n in (8, 16) for lr in (1.0, 2.0, 3.0)]
_LADDER = [{"params": 2.0**k, "loss": 1 + 2.0**-k} for k in range(6)]
_CAPACITY: dict[str, Any] = {"make_model": Residual, "widths": (4, 8), "depths": (1, 2), "rule": "mup"}
_CAPACITY |= {"batches": [(_FIVE, torch.tensor([0, 1, 2, 0]))] * 2, "optimizer": "adamw", "lr": 0.01, "seeds": 2}
_CAPACITY |= {"eval_batches": None, "loss": "cross-entropy", "weight_decay": 0.0, "blocks": "blocks.*", "roles": None}
_CAPACITY |= {"schedule": None, "make_optimizer": None, "version": "1", "device": "cpu"}
_GRID: dict[str, Any] = {"width": [4, 8], "depth": 2, "rule": ["mup", "depth-mup"], "eta_c": 0.1, "seed": [0, 1]}
_GRID |= {"steps": 2, "batch": 4, "data": "digits", "data_dir": None, "image_size": None, "every": None}

CALLS = (
    Call("ResNet", _network(nfd.ResNet), _RESNET, _network_right, also=("x must be",)),
    Call("MLP", _network(nfd.MLP), _NET, _network_right, also=("x must be",)),
    Call(
        "DeferredLinear",
        _deferred,
        {"in_features": 24, "out_features": 32, "bias": True, "std": 0.1, "feedback": "shared", "seed": 0}
        | {"tolerance": None, "resolution": 0.2, "x": _WIDE, "dtype": torch.float32, "device": "cpu"},
        _legal,
        also=("features",),
    ),
    Call(
        "StructuredLinear",
        _structured,
        {"in_features": 24, "out_features": 32, "bias": True, "std": 0.1, "feedback": "shared", "seed": 0}
        | {"basis": "auto", "resolution": 0.1, "x": _WIDE, "dtype": torch.float32, "device": "cpu"},
        _legal,
        also=("features",),
    ),
    Call(
        "SGD",
        _sgd,
        {"params": None, "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "nesterov": False, "dampening": 0.0},
        _legal,
        also=("learning rate", "Nesterov", "parameter"),
    ),
    Call(
        "Muon",
        _stepping(nfd.StructuredLinear, nfd.Muon),
        {"params": None, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.0, "nesterov": False, "ns_steps": 5}
        | {"ns_coefficients": (3.4445, -4.7750, 2.0315), "eps": 1e-7, "adjust_lr_fn": None},
        _legal,
        also=("parameter", "optimizer"),
    ),
    Call(
        "Shampoo",
        _stepping(nfd.DeferredLinear, nfd.Shampoo),
        {"params": None, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.0, "eps": 1e-6},
        _legal,
        also=("parameter", "optimizer"),
    ),
    Call(
        "EquivariantOptimizer",
        _stepping(nfd.StructuredLinear, Polynomial),
        {"params": None, "lr": 0.1, "weight_decay": 0.0},
        _legal,
        also=("parameter", "optimizer"),
    ),
    Call(
        "defer",
        _defer,
        {
            "model": None,
            "plan": None,
            "weights": "structured",
            "where": "**",
            "samples": 4,
            "resolution": 0.1,
            "memory": "1 GiB",
            "seed": 0,
        },
        _legal,
    ),
    Call("meta_matrices", _meta_matrices, {}, bool),
    Call(
        "deferral",
        _deferral,
        {
            "model": None,
            "plan": None,
            "weights": "structured",
            "where": "**",
            "sample": _FIVE,
            "steps": 2,
            "samples": None,
        },
        _legal,
    ),
    Call("store_weights", _store_weights, {"model": None, "seed": 0}, _legal),
    Call(
        "ResNet.param_groups",
        _rates,
        {"eta_c": 0.1, "rule": "depth-mup", "optimizer": "sgd"},
        lambda groups: all(math.isfinite(group["lr"]) and group["lr"] >= 0 for group in groups),
    ),
    Call(
        "ConstructedFamily",
        _member(nfd.ConstructedFamily),
        {"make_model": Residual, "base": (4, 2), "rule": "mup", "optimizer": "adamw", "blocks": None, "roles": None}
        | {"sample": _FIVE, "version": None, "width": 8, "depth": 2, "seed": 0},
        lambda member: isinstance(member, nfd.Member),
        also=("Rule ", "The plan cannot decide"),
    ),
    Call(
        "PaperFamily",
        _member(nfd.PaperFamily),
        {"kind": nfd.ResNet, "in_features": 3, "out_features": 2, "rule": "depth-mup", "optimizer": "sgd"}
        | {"settings": {"horizon": 2.0}, "version": None, "width": 8, "depth": 2, "seed": 0},
        lambda member: isinstance(member, nfd.Member),
    ),
    Call("predict", nfd.predict, _PREDICT, _predicted, also=("targets",)),
    Call("solve_nfd", nfd.solve_nfd, _SOLVE, _solved),
    Call(
        "kernel",
        nfd.kernel,
        {"X": _X, "X2": None, "kind": "nngp", "activation": "relu", "horizon": 1.0, "depth": 2},
        lambda K: K.ndim == 2 and finite(K),
        also=("inputs",),
    ),
    Call(
        "InfiniteDepthKernel",
        _estimator_kernel,
        {"X": _X.numpy(), "Y": None, "kind": "nngp", "activation": "relu", "horizon": 1.0, "horizon_bounds": "fixed"},
        lambda found: found[0].ndim == 2 and found[1].ndim == 1 and finite(*found),
        also=("inputs", "X2"),
    ),
    Call(
        "plan",
        _plan,
        {
            "model": Residual(8, 2),
            "make_model": Residual,
            "base_width": 4,
            "base_depth": 2,
            "base": None,
            "sample": _FIVE,
        }
        | {"rule": "depth-mup", "optimizer": "adamw", "decay": "constant-product", "blocks": None, "roles": None}
        | {"batch": (1, 4), "tokens": (8, 64), "schedule": None, "critical_batch": None, "laws": None},
        lambda found: finite(found[0]) and isinstance(found[1], str),
        also=("Rule 'depth-mup' needs residual blocks", "The plan cannot decide"),
    ),
    Call(
        "RateSchedule",
        lambda **arguments: nfd.RateSchedule(**arguments)(1, 4),
        {"warmup": 2, "fall": "linear", "share": 0.5, "final": 0.1},
        lambda share: 0 <= share <= 1,
    ),
    Call(
        "OptimizerLaw",
        nfd.OptimizerLaw,
        {"name": "mine", "make": torch.optim.Adam, "degree": 0.0, "unit": Power(), "epsilon": True, "decoupled": False}
        | {"states": 2, "rest": None, "equivariant": False, "options": frozenset({"betas"}), "check_rate": 1e-3}
        | {"make_stacked": None, "shape_norm": max, "classes": ("Mine",)},
        lambda law: isinstance(law, nfd.OptimizerLaw),
    ),
    Call(
        "register_optimizer",
        nfd.register_optimizer,
        {"law": nfd.OptimizerLaw("registered-by-a-test", torch.optim.Adam), "replace": True},
        lambda law: isinstance(law, nfd.OptimizerLaw),
    ),
    Call(
        "Plan.param_groups",
        _grouped,
        {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-8, "no_decay": (), "betas": None},
        finite,
    ),
    Call("Plan.apply_", _applied, {"seed": 0}, lambda found: finite(*found)),
    Call(
        "Plan.make_optimizer",
        _made,
        {"lr": 0.1, "weight_decay": 0.1, "eps": 1e-8, "no_decay": (), "adamw_lr": None, "make": None},
        finite,
    ),
    Call("Plan.initialize_", _initialised, {"seed": 0}, lambda found: finite(*found)),
    Call(
        "Plan.load",
        nfd.Plan.load,
        {"path": Path("nowhere.json")},
        lambda found: False,
        also=("plan", "directory", "File name"),
    ),
    Call("Scaled", _scaled, {"module": nn.Linear(3, 2), "factor": 2.0}, lambda y: y.shape == (4, 2) and _legal(y)),
    Call(
        "Watch",
        _watched,
        {"model": None, "plan": None, "sample": _FIVE, "every": 1, "expected": None, "seed": 0, "samples": 2},
        lambda rows: isinstance(rows, list),
        also=("path", "File name"),
    ),
    Call("check", nfd.check, _CHECK, _checked, also=("lr of group",)),
    Call("transfer", nfd.transfer, _TRANSFER, lambda answer: isinstance(answer.table, list), also=("make_model",)),
    Call(
        "capacity",
        nfd.capacity,
        _CAPACITY,
        lambda answer: isinstance(answer.table, list),
        also=("make_model", "losses"),
    ),
    Call("fit_transfer", nfd.fit_transfer, {"rows": _RATES, "columns": None, "guess": None}, _listed, also=("log",)),
    Call("fit_capacity", nfd.fit_capacity, {"rows": _LADDER, "columns": None, "rate": None}, _listed, also=("log",)),
    Call("grid", nfd.grid, _GRID, lambda configs: 0 < len(configs) < 100),
)
