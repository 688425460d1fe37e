"""The two limits over activations, horizons, losses and outputs, and while training: a section of docs/two-limits.md.

    python -m benchmarks.two_limits_settings

fills the section in two minutes on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.show import fill_page
from benchmarks.two_limits import FEEDBACKS, PAGE
from nfd import SGD, ResNet, kernel
from nfd.core import Activation, Feedback, interval
from nfd.data import digits
from nfd.paper.two_limits import ETA_C, relative

WIDTH, NETWORKS = 256, 24
DEPTH, BATCH = 8, 8
LOOKS = (1, 2, 4, 8, 16, 32)
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu", "tanh", "erf")
HORIZONS, DEPTHS = (0.5, 1.0, 2.0, 4.0), (4, 16, 64)

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, tuple[int, Loss]] = {  # outputs, and the loss of a batch [B, outputs] with labels [B]
    "squared": (1, lambda f, label: (f[:, 0] - _sign(label)).square().mean() / 2),
    "logistic": (1, lambda f, label: torch.nn.functional.softplus(-f[:, 0] * _sign(label)).mean()),
    "cross-entropy, 10 outputs": (10, torch.nn.functional.cross_entropy),
}


@dataclass(frozen=True)
class Setting:
    """A problem on which networks are trained."""

    loss: str = "squared"
    activation: Activation = "relu"
    horizon: float = 1.0
    eta_c: float = ETA_C
    depth: int = DEPTH

    @property
    def name(self) -> str:
        rate = "" if self.eta_c == ETA_C else f", eta_c = {self.eta_c:g}"
        return f"{self.activation}, T = {self.horizon:g}, L = {self.depth}, {self.loss}{rate}"


def _sign(label: Tensor) -> Tensor:
    return torch.where(label % 2 == 0, 1.0, -1.0)


SETTINGS = (
    Setting(),
    Setting(activation="tanh"),
    Setting(horizon=4.0, eta_c=ETA_C / 8),
    Setting(depth=32),
    Setting(loss="logistic"),
    Setting(loss="cross-entropy, 10 outputs"),
    Setting(eta_c=ETA_C / 4),
)


def kernels() -> str:
    """The ratio of the two kernels by activation, horizon and depth."""
    x = torch.ones(1, 4, dtype=torch.float64)
    lines = [f"| activation | T | {' | '.join(f'L = {L}' for L in DEPTHS)} | infinite L |", "|---" * 6 + "|"]
    for activation in ACTIVATIONS:
        for horizon in HORIZONS:
            cells = [_ratio(x, activation, horizon, L) for L in (*DEPTHS, math.inf)]
            lines.append(f"| {activation} | {horizon:g} | {' | '.join(f'{cell:.3f}' for cell in cells)} |")
    return "\n".join(lines)


def _ratio(x: Tensor, activation: Activation, horizon: float, depth: float) -> float:
    own, other = (
        kernel(x, kind=kind, activation=activation, horizon=horizon, depth=depth)
        for kind in ("ntk", "independent-feedback")
    )
    return float(own / other)


def losses(width: int = WIDTH, count: int = NETWORKS) -> str:
    """The measured ratio of the first step by loss."""
    formula = 1 + 0.25 / (1 + 0.5 / 16)
    lines = ["| loss | standard / decoupled, measured | formula |", "|---|---|---|"]
    for name in LOSSES:
        both = [
            torch.stack([_first_step(Setting(name, depth=16), width, feedback, seed) for seed in range(count)])
            for feedback in FEEDBACKS
        ]
        lines.append(f"| {name} | {interval(lambda a, b: a.mean() / b.mean(), *both)} | {formula:.3f} |")
    return "\n".join(lines)


def _network(setting: Setting, x: Tensor, width: int, feedback: Feedback, seed: int) -> ResNet:
    outputs, _ = LOSSES[setting.loss]
    return ResNet(
        x.shape[1], outputs, width, setting.depth, horizon=setting.horizon, activation=setting.activation, seed=seed,
        feedback=feedback, dtype=x.dtype,
    )  # fmt: skip


def _first_step(setting: Setting, width: int, feedback: Feedback, seed: int) -> Tensor:
    """Change of the outputs of a sample by one small step on it, along dLoss/df, over eta_c and |dLoss/df|^2."""
    data = digits()
    x = data.inputs[:1].double()
    x = x / x.norm() * math.sqrt(x.shape[1])
    net = _network(setting, x, width, feedback, seed)
    optimizer = SGD(net.param_groups(1e-3))
    before = net(x)
    loss = LOSSES[setting.loss][1](before, data.labels[:1])
    (slope,) = torch.autograd.grad(loss, before, retain_graph=True)
    torch.autograd.backward(loss)
    optimizer.step()
    with torch.no_grad():
        change: Tensor = ((before.detach() - net(x)) * slope).sum() / slope.square().sum() / 1e-3
    return change


def gaps(settings: Sequence[Setting] = SETTINGS, width: int = WIDTH, count: int = NETWORKS) -> str:
    """The distance of standard from decoupled networks by the number of steps."""
    lines = [
        f"| setting | {' | '.join(f'k = {k}' for k in LOOKS)} |",
        "|---" * (len(LOOKS) + 1) + "|",
    ]
    for setting in settings:
        own, other = (
            torch.stack([_outputs(setting, width, feedback, seed) for seed in range(count)]) for feedback in FEEDBACKS
        )
        cells = [relative(own[:, k] - other[:, k], other[:, k]).unsigned for k in range(len(LOOKS))]
        lines.append(f"| {setting.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _outputs(setting: Setting, width: int, feedback: Feedback, seed: int) -> Tensor:
    """Changes of the outputs on other samples [looks, 32 * outputs]; a seed has one start for both kinds."""
    data = digits()
    x, label = data.inputs.float(), data.labels
    steps = LOOKS[-1]
    probe = x[steps * BATCH : steps * BATCH + 32]
    net = _network(setting, x, width, feedback, seed)
    with torch.no_grad():
        start = net(probe)
    optimizer = SGD(net.param_groups(setting.eta_c))
    seen = []
    for step in range(steps):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        torch.autograd.backward(LOSSES[setting.loss][1](net(x[batch]), label[batch]))
        optimizer.step()
        if step + 1 in LOOKS:
            with torch.no_grad():
                seen.append((net(probe) - start).flatten().double())
    return torch.stack(seen)


if __name__ == "__main__":
    made = {"kernels": kernels(), "losses": losses(), "settings": gaps()}
    print(*made.values(), sep="\n\n")
    fill_page(PAGE, made)
