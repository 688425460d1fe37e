"""What is known of networks before training removes noise from what is estimated in training.

The noise of a network before its first update stays with it while it trains. Where the limit before
training is known, the distance of the same network from it is subtracted: a control variate,
replicate by replicate. It changes no mean, as its own is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.families.family import Family, NetworkFamily
from nfd.families.member import Member
from nfd.families.network import ResNet
from nfd.limits.probes import Rates, StreamKernels, tangent_rates
from nfd.limits.untrained import Blocks, untrained
from nfd.runs.task import Task
from nfd.scaling.samples import on_device, outputs_of

# Networks to read settings from: quick to build, at a width that every base divides.
_SMALL = 16


@dataclass(frozen=True)
class Samples:
    """What networks gave, ``[R, ...]`` each, as ``at_infinite_width`` takes it."""

    wide: Tensor
    narrow: Tensor
    coarse: Tensor | None = None
    shortened: Tensor | None = None

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Samples:
        """Apply a linear map to all of them."""
        return Samples(
            change(self.wide),
            change(self.narrow),
            None if self.coarse is None else change(self.coarse),
            None if self.shortened is None else change(self.shortened),
        )


def without_first_outputs(samples: Samples) -> Samples:
    """Subtract the outputs before training, whose limit is zero, from outputs [R, U + 1, ...].

    Training forgets them, so that a share is subtracted, fitted for every number U of updates over
    inputs and the other wide networks. Taking all of it made intervals at late steps 1.3 times as
    wide.
    """
    shares = _left_out_shares(samples.wide)
    share = shares.mean(0, keepdim=True)

    def less(values: Tensor, share: Tensor) -> Tensor:
        share = share.view(*share.shape, *[1] * (values.dim() - 2))
        return values - share * values[:, :1]

    coarse = samples.coarse
    return Samples(
        less(samples.wide, shares),
        less(samples.narrow, share),
        None if coarse is None else less(coarse, shares),
        samples.shortened,
    )


def _left_out_shares(outputs: Tensor) -> Tensor:
    """Fit which share of the first outputs later ones still have, [R, U + 1].

    For each network from all others, so that its own noise does not choose its share.
    """
    count = len(outputs)
    flat = outputs.double().flatten(2)
    if flat.dim() == 2:
        flat = flat[..., None]
    shares = list[Tensor]()
    for row in range(count):
        others = torch.cat([flat[:row], flat[row + 1 :]])
        centred = others - others.mean(0)
        first = centred[:, :1]
        below = first.square().sum((0, 2))
        share = (centred * first).sum((0, 2)) / below
        shares.append(torch.where(below > 0, share, 0.0))
    fitted = torch.stack(shares)
    # Before training the outputs are their own control.
    fitted[:, 0] = 1.0
    return fitted


def first_loss(family: Family, task: Task) -> float | None:
    """Return the loss of the limit before training, where outputs are zero; None elsewhere."""
    if not starts_at_zero(family):
        return None
    inputs, targets = task.batches[0]
    with torch.no_grad():
        outputs = outputs_of(small_member(family, 1)(on_device(inputs, torch.device("cpu"))))
        loss = float(task.value(torch.zeros_like(outputs, device=task.device), targets))
    return loss if math.isfinite(loss) else None


# ---- Kernels before training


def check_size(family: Family, task: Task, probes: Tensor, depth: int) -> None:
    """Raise InputError where probes [N, d] are too large for their kernels to be computed."""
    net = small_member(family, depth).net
    assert isinstance(net, ResNet)
    size = float(torch.linalg.vector_norm(probes.double(), dim=1).max()) / math.sqrt(
        net.in_features
    )
    # Kernels are squares of streams, and streams may grow.
    most = torch.finfo(net.U.dtype).max ** 0.4
    if not size < most:
        raise InputError(
            f"probes must have norms below {most:.1g} sqrt(d) for kernels, as these are squares in "
            f"{net.U.dtype}; got {size:.2g} sqrt(d). Scale them down."
        )
    if net.activation.name != "tanh" or not _is_known(family, task):
        return
    # It imports SciPy, which is slow to load.
    from nfd.limits.kernels import hermite_coefficients

    # A block adds its square at most, as tanh is at most 1.
    variance = size**2 + net.branch**2 * net.depth
    try:
        hermite_coefficients(net.activation, variance)
    except InputError as error:
        raise InputError(f"probes are too large for kernels before training. {error}") from None


def _is_known(family: Family, task: Task) -> bool:
    """Whether the kernels before training are known."""
    return isinstance(family, NetworkFamily) and task.init_scale == 1


def small_member(family: Family, depth: int) -> Member:
    """Build a narrow network of a family, to read its settings."""
    return family.member(max(family.base[0], _SMALL), depth)


def starts_at_zero(family: Family) -> bool:
    """Whether outputs of the limit are zero before training, as those of ``nfd.resnets``."""
    if not isinstance(family, NetworkFamily):
        return False
    net = small_member(family, 1).net
    return net is not None and net.regime == "feature"


def exact_kernels(
    family: Family, task: Task, observer: StreamKernels, depth: float, trained_depth: int
) -> dict[str, Tensor] | None:
    """Return the kernels before training, to broadcast over steps; None where they are not known.

    ``trained_depth`` is a depth of networks, where ``depth`` is infinite.
    """
    if not _is_known(family, task):
        return None
    member = small_member(family, trained_depth)
    net = member.net
    assert isinstance(net, ResNet)
    assert observer.kernels.times is not None
    rates = tangent_rates(member) or Rates(1.0, None, 1.0, 1.0)
    added = net.branch**2 * net.depth
    # Deep networks whose multiplier falls faster than L^-1/2 add no variance in the limit.
    variance = 0.0 if math.isinf(depth) and net.branch_exponent > 0.5 else added
    learned_inside = None
    if net.block == "two-layer":
        learned_inside = added * (rates.inner or 0.0)
    blocks = Blocks(
        net.activation,
        variance,
        learned=rates.outer * added,
        input_rate=rates.input,
        readout_rate=rates.readout,
        depth=depth,
        learned_inside=learned_inside,
    )
    kernels = untrained(observer.probes, blocks, observer.kernels.times)
    one = torch.eye(net.out_features, dtype=torch.float64)
    return {
        "streams": kernels.streams[:, None, :, None, :],
        "features": kernels.features[:, None, :, None, :],
        "gradients": torch.einsum("aij,cd->aicjd", kernels.gradients, one)[:, None, :, :, None],
        "tangent": torch.einsum("ij,cd->icjd", kernels.tangent, one),
    }
