"""Residual networks in plain PyTorch, trained apart from the library, with their kernels.

The tangent kernel is of all gradients of all parameters. R networks are trained side by side: the
loss is the sum of theirs, so that no network sees another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import nfd
from nfd.core.activations import activation

NAMES = ("features", "streams", "gradients", "tangent")

MOMENTUM = 0.9
# PyTorch's defaults of Adam and Muon
BETAS = (0.9, 0.999)
EPSILON = 1e-8
MUON_MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.775, 2.0315)


@dataclass(frozen=True)
class Problem:
    """Up to eight steps of four samples, four other inputs, and a residual network of depth 4.

    ``optimizer`` is "sgd", "momentum", "adam" or "muon". ``looks``: after how many steps kernels
    are read.
    """

    activation: str
    block: str = "one-layer"
    optimizer: str = "sgd"
    rate: float = 0.3
    looks: tuple[int, ...] = (0, 1, 4, 8)
    features: int = 8
    depth: int = 4

    @property
    def steps(self) -> int:
        """How many steps are trained."""
        return self.looks[-1]

    @property
    def data(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs [steps, 4, d], targets [steps, 4, 1] and probes [4, d]."""
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(8, 4, self.features, generator=generator)[: self.steps]
        y = torch.sin(2 * x[..., :1]) + x[..., 1:2] * x[..., 2:3]
        return x, y, torch.randn(4, self.features, generator=generator)

    @property
    def family(self) -> nfd.Family:
        """The networks that ``nfd.predict`` trains."""
        return nfd.resnets(
            self.features,
            1,
            activation=self.activation,
            block=self.block,
            optimizer="sgd" if self.optimizer == "momentum" else self.optimizer,
        )


class Dense:
    """R networks of a width: U [R, n, d], W and inner [L, R, n, n] and V [R, 1, n]."""

    def __init__(self, problem: Problem, width: int, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.problem = problem
        self.width = width
        self.phi = activation(problem.activation).phi

        def gaussian(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator).requires_grad_()

        self.U = gaussian(count, width, problem.features)
        self.W = [gaussian(count, width, width) for _ in range(problem.depth)]
        self.V = gaussian(count, 1, width)
        self.inner = list[Tensor]()
        if problem.block == "two-layer":
            self.inner = [gaussian(count, width, width) for _ in range(problem.depth)]
        self.stepper = _stepper(self)

    @property
    def hidden(self) -> list[Tensor]:
        """All matrices from the stream to the stream."""
        return [*self.W, *self.inner]

    @property
    def parameters(self) -> list[Tensor]:
        """All of them."""
        return [self.U, *self.hidden, self.V]

    def layers(self, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """The streams h_0 .. h_L of inputs [N, d], and what blocks multiply, [R, N, n] each."""
        h = [(x / math.sqrt(self.problem.features)) @ self.U.mT]
        features = list[Tensor]()
        for index, W in enumerate(self.W):
            before = h[-1]
            if self.inner:
                before = before @ self.inner[index].mT / math.sqrt(self.width)
            features.append(self.phi(before))
            branch = features[-1] @ W.mT / math.sqrt(self.width * self.problem.depth)
            h.append(h[-1] + branch)
        features.append(features[-1] if self.inner else self.phi(h[-1]))
        return h, features

    def step(self, x: Tensor, y: Tensor) -> None:
        """One step on the mean of ``(f - y)^2 / 2``."""
        f = self.layers(x)[0][-1] @ self.V.mT / self.width
        loss = (f - y).square().mean((1, 2)).sum() / 2
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            self.stepper.step(gradients)

    def look(self, x: Tensor) -> dict[str, Tensor]:
        """Return h, phi(h) and g [R, A, N, n], outputs and tangent kernels [R, N, N] of probes."""
        layers, features = self.layers(x)
        f = layers[-1] @ self.V.mT / self.width
        g = torch.autograd.grad(f.sum(), layers, retain_graph=True)
        tangent = torch.zeros(len(f), len(x), len(x))
        of_probes = [
            torch.autograd.grad(f[:, i].sum(), self.parameters, retain_graph=True)
            for i in range(len(x))
        ]
        for i, first in enumerate(of_probes):
            for j, second in enumerate(of_probes):
                for a, b in zip(first, second, strict=True):
                    tangent[:, i, j] += self.width * (a * b).flatten(1).sum(1)
        return {
            "streams": torch.stack(layers, 1).detach(),
            "features": torch.stack(features, 1).detach(),
            "gradients": self.width * torch.stack(g, 1),
            "tangent": tangent,
            "outputs": f.detach(),
        }


# ---- optimizers, with the rates that the paper's rule of width and depth gives a base of size 1


class _Stepper:
    """Plain gradient descent, with or without momentum: ``eta n`` for every matrix."""

    def __init__(self, networks: Dense) -> None:
        problem = networks.problem
        self.parameters = networks.parameters
        self.rate = problem.rate * networks.width
        self.momentum = MOMENTUM if problem.optimizer == "momentum" else 0.0
        self.buffers = [torch.zeros_like(parameter) for parameter in self.parameters]

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Step against gradients."""
        for parameter, gradient, buffer in zip(
            self.parameters, gradients, self.buffers, strict=True
        ):
            buffer.mul_(self.momentum).add_(gradient)
            parameter.sub_(self.rate * buffer)


class _Adam:
    """Adam: ``eta`` for input and readout, ``eta (n L)^-1/2`` for hidden matrices.

    Muon steps the hidden ones by ``eta (n / L)^1/2`` times its orthogonal matrix.
    """

    def __init__(self, networks: Dense) -> None:
        self.networks = networks
        self.steps = 0
        self.means = [torch.zeros_like(parameter) for parameter in networks.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in networks.parameters]

    def step(self, gradients: Sequence[Tensor]) -> None:
        """Step against gradients."""
        self.steps += 1
        problem = self.networks.problem
        n = self.networks.width
        L = problem.depth
        hidden = {id(matrix) for matrix in self.networks.hidden}
        for place, parameter in enumerate(self.networks.parameters):
            gradient = gradients[place]
            is_hidden = id(parameter) in hidden
            if is_hidden and problem.optimizer == "muon":
                step = self._muon(gradient, self.means[place])
                parameter.sub_(problem.rate * math.sqrt(n / L) * step)
                continue
            # Epsilon follows the size of a gradient's entries.
            scale = 1 / math.sqrt(n * L) if is_hidden else 1.0
            step = self._adam(gradient, place, EPSILON * scale / n)
            parameter.sub_(problem.rate * scale * step)

    def _adam(self, gradient: Tensor, place: int, epsilon: float) -> Tensor:
        mean = self.means[place].lerp_(gradient, 1 - BETAS[0])
        square = self.squares[place].lerp_(gradient.square(), 1 - BETAS[1])
        mean = mean / (1 - BETAS[0] ** self.steps)
        square = square / (1 - BETAS[1] ** self.steps)
        return mean / (square.sqrt() + epsilon)

    def _muon(self, gradient: Tensor, mean: Tensor) -> Tensor:
        """Nesterov's momentum, then five steps of Newton and Schulz."""
        mean.lerp_(gradient, 1 - MUON_MOMENTUM)
        step = gradient.lerp(mean, MUON_MOMENTUM)
        size: Tensor = torch.linalg.matrix_norm(step, keepdim=True)
        step = step / size
        a, b, c = NEWTON_SCHULZ
        for _ in range(5):
            gram = step @ step.mT
            step = a * step + (b * gram + c * gram @ gram) @ step
        return step


def _stepper(networks: Dense) -> _Stepper | _Adam:
    if networks.problem.optimizer in ("adam", "muon"):
        return _Adam(networks)
    return _Stepper(networks)


def dense_kernels(problem: Problem, width: int, count: int, seed: int) -> dict[str, Tensor]:
    """Return kernels of equal times by name, [count, S, A, N, N], and outputs [count, S, N]."""
    x, y, probes = problem.data
    parts: dict[str, list[Tensor]] = {name: [] for name in (*NAMES, "outputs")}
    chunk = max(1, 2**21 // width**2)
    for start in range(0, count, chunk):
        networks = Dense(problem, width, min(chunk, count - start), seed + start)
        looks: dict[str, list[Tensor]] = {name: [] for name in parts}
        for step in range(len(x) + 1):
            if step in problem.looks:
                for name, seen in networks.look(probes).items():
                    is_vector = name in ("streams", "features", "gradients")
                    looks[name].append(seen @ seen.mT / width if is_vector else seen)
            if step < len(x):
                networks.step(x[step], y[step])
        for name, rows in looks.items():
            parts[name].append(torch.stack(rows, 1).double())
    return {name: torch.cat(values) for name, values in parts.items()}
