"""Losses of the bank that the library does not have."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from calibration.sound_bank.data import split

TEMPERATURE = 0.2
MARGIN = 0.5
OFF_DIAGONAL = 0.02
QUANTILES = (0.1, 0.5, 0.9)


def contrast(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """InfoNCE of two views."""
    one, two = (F.normalize(z, dim=-1) for z in outputs)
    return F.cross_entropy(one @ two.T / TEMPERATURE, torch.arange(len(one)))


def redundancy(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Barlow Twins: the correlations of two views are to be the identity."""
    one, two = ((z - z.mean(0)) / (z.std(0) + 0.1) for z in outputs)
    correlation = one.T @ two / len(one)
    diagonal = correlation.diagonal()
    rest = correlation.square().sum() - diagonal.square().sum()
    return (1 - diagonal).square().sum() + OFF_DIAGONAL * rest


def triplets(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """A view is to be nearer to its other view than to that of the next digit."""
    one, two = outputs
    return F.triplet_margin_loss(one, two, two.roll(1, 0), margin=MARGIN)


def pinball(outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of three quantiles of every target."""
    error = targets[..., None] - split(outputs, targets.shape[-1], len(QUANTILES))
    q = torch.tensor(QUANTILES)
    return torch.maximum(q * error, (q - 1) * error).mean()


def two_tasks(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    """The class and its parity."""
    of_class = F.cross_entropy(outputs["class"], targets[:, 0])
    return of_class + F.cross_entropy(outputs["odd"], targets[:, 1])


def every_token(outputs: Tensor, targets: Tensor) -> Tensor:
    """The next symbol and the one after it."""
    near = F.cross_entropy(outputs[:, :, 0].flatten(0, 1), targets.flatten())
    far = F.cross_entropy(outputs[:, :-1, 1].flatten(0, 1), targets[:, 1:].flatten())
    return near + 0.5 * far


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Huber's loss."""
    return F.smooth_l1_loss(outputs, targets)
