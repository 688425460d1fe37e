"""What networks in training answer to inputs that they are not trained on, and their kernels.

Observers read the networks that ``nfd.predict`` trains anyway, before the first update and after
every one. Training goes on as if nobody had looked, bit for bit.

Of probes x, with the stream h_t at depth t and its gradients ``g_t^c = n df_c/dh_t``,

    streams    E[h_t h'_t]
    features   E[phi(h_t) phi(h'_t)]
    gradients  E[g_t^c g'_t^c']
    tangent    r_L C_T delta_cc' + r b sum_l Sigma_{l-1} Theta_l^cc' + r_0 (x.x'/d) Theta_0^cc'

are Gram matrices over neurons, which have a limit as the width grows. The last is the sum over all
parameters of products of gradients, times their learning rates (``nfd.limits.untrained``).
Two-layer blocks multiply ``phi(x_l)``, whose covariance is Sigma_{l-1}; their tangent kernel has
another term, ``r_1 sum_l C_{l-1} E[q_l^c q'_l^c']`` with ``q_l^c = n df_c/dx_l``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nfd.core.answer import Answer
from nfd.core.checks import check_choice, check_count, check_several, check_takes
from nfd.core.errors import InputError, InputTypeError
from nfd.core.estimates import UNKNOWN, Interval, interval, rms, squared_size, stderr
from nfd.core.machine import memory_of
from nfd.core.tables import Row
from nfd.core.words import number
from nfd.families.member import Member
from nfd.families.network import ResNet, Streams
from nfd.limits.in_width import Estimates
from nfd.limits.kernels_page import kernels_answer, kernels_sections, movement_rows
from nfd.report.shown import Shown
from nfd.runs.task import Task, content_hash
from nfd.runs.trial import Curves, Observation, Observer, Step, judging
from nfd.scaling.samples import evaluating, on_device, outputs_of

if TYPE_CHECKING:
    from nfd.report.page import Section

# ---- What is asked for


# Depths and steps where nobody chose: two-time kernels grow with the square of the steps.
_TIMES = 5
_STEPS = 8
# The share of the memory that networks may take.
MEMORY_SHARE = 0.8
# So many pairs of networks show the bias of resolution.
PAIRS = 4
NO_DEFERRED = (
    "kernels need one matrix for the probes of all steps; weights='deferred' answer each probe by "
    "a new draw. Use 'structured' or 'dense'."
)


@dataclass(frozen=True)
class Kernels:
    """Which kernels in training ``nfd.predict(probes=..., kernels=...)`` gives.

    Args:
        times: A, at how many depths ``t = 0, T / (A - 1), ..., T``; ``A - 1`` must divide the
            depth, at infinite depth 8. By default the most up to 5.
        steps: after how many updates; 0, before training, is always among them. By default up to 8:
            0, 1, powers of 2 and the last.
        modules: names of modules of any model, as in ``named_modules()``, for ``module_kernels`` at
            a finite depth. By default none: kernels are of ``nfd.resnets``, at depths.
        output: for gradients at modules, a function from the model's outputs to one number for
            each probe, [N]. By default the first output, at the last position.

    Raises:
        ValueError, TypeError: naming the argument.

    Example::

        x = torch.randn(2, 5)
        task = nfd.Task([(x, x[:, :1])] * 3, loss="mse")
        p = nfd.predict(
            nfd.resnets(5, 1),
            task,
            0.3,
            depth=2,
            width=32,
            replicates=2,
            probes=x,
            kernels=nfd.Kernels(times=2, steps=[0, 3]),
        )
        p.kernels.features.value.shape  # [2, 2, 2, 2, 2]
    """

    times: int | None = None
    steps: Sequence[int] | None = None
    modules: Sequence[str] | None = None
    output: Callable[[Any], Tensor] | None = None

    def __post_init__(self) -> None:
        if self.times is not None:
            check_count("times", self.times, minimum=2)
        self._check_modules()
        if self.steps is not None:
            steps = [
                check_count("steps", step, minimum=0)
                for step in check_several("steps", self.steps, "numbers of updates")
            ]
            object.__setattr__(self, "steps", tuple(sorted({0, *steps})))

    def _check_modules(self) -> None:
        """Raise InputError where modules are not names, or settings are not of modules."""
        if self.output is not None:
            check_takes("output", self.output, "outputs")
        if self.modules is None:
            if self.output is not None:
                raise InputError("output is for gradients at modules=[...]; got none.")
            return
        if self.times is not None:
            raise InputError(
                f"times are depths of nfd.resnets, not of modules; got times={self.times} and "
                "modules. Leave one out."
            )
        names = [self.modules] if isinstance(self.modules, str) else self.modules
        names = tuple(check_several("modules", names, "names of modules"))
        if not names or not all(isinstance(name, str) for name in names):
            raise InputError(f"modules must be names of modules; got {names!r}.")
        object.__setattr__(self, "modules", tuple(dict.fromkeys(names)))

    def of(self, depth: int, updates: int) -> Kernels:
        """Return the depths and steps for networks of a depth that are trained for some updates."""
        return replace(self, times=self._times_at(depth), steps=self._steps_until(updates))

    def _times_at(self, depth: int) -> int | None:
        if self.modules is not None:
            return None
        times = self.times
        if times is None:
            times = next(most for most in range(_TIMES, 1, -1) if depth % (most - 1) == 0)
        if depth % (times - 1):
            raise InputError(
                f"times - 1 must divide the depth {depth}, so that layers lie at these depths; got "
                f"times={times}."
            )
        return times

    def _steps_until(self, updates: int) -> Sequence[int]:
        steps = self.steps
        if steps is None:
            steps = _chosen_steps(updates)
        if steps[-1] > updates:
            raise InputError(
                f"steps of kernels must be at most the {updates} updates of the task; got "
                f"{steps[-1]}."
            )
        return steps


def _chosen_steps(updates: int) -> list[int]:
    """Return 0, 1, powers of 2 and the last step; evenly thinned where they are too many."""
    steps = [0]
    power = 1
    while power < updates:
        steps.append(power)
        power *= 2
    steps.append(updates)
    if len(steps) <= _STEPS:
        return steps
    places = torch.linspace(0, len(steps) - 1, _STEPS).round().int().tolist()
    return [steps[place] for place in places]


def checked_kernels(kernels: bool | Kernels, depth: int, updates: int) -> Kernels | None:
    """Return which kernels were asked for; None for none."""
    if kernels is False or kernels is None:
        return None
    if kernels is True:
        kernels = Kernels()
    if not isinstance(kernels, Kernels):
        raise InputTypeError(f"kernels must be True, False or nfd.Kernels(...); got {kernels!r}.")
    return kernels.of(depth, updates)


def check_has_kernels(member: Member, weights: str) -> ResNet:
    """Return the network of a member; raise InputError where its kernels are not computed."""
    net = member.net
    is_residual = type(net) is ResNet and net.order == "pre"
    if not isinstance(net, ResNet) or not is_residual or net.regime != "feature":
        raise InputError(
            "kernels=True is for the paper's residual networks, such as nfd.resnets(64, 10). Name "
            "modules of other models, nfd.Kernels(modules=[...]), or leave kernels out: probes "
            "give outputs of every model."
        )
    if weights == "deferred":
        raise InputError(NO_DEFERRED)
    return net


def kernel_bytes(kernels: Kernels, probes: int, outputs: int) -> int:
    """Return the bytes that the kernels of a network take."""
    assert kernels.times is not None
    assert kernels.steps is not None
    steps = len(kernels.steps)
    at_depths = 2 * (steps * probes) ** 2 + (steps * probes * outputs) ** 2
    return 8 * (kernels.times * at_depths + steps * (probes * outputs) ** 2)


def check_fits(
    kernels: Kernels, bytes_of_each: int, replicates: int, depths: int, what: str
) -> None:
    """Raise InputError where kernels would not fit into memory.

    Args:
        kernels: which ones.
        bytes_of_each: the bytes of those of one network.
        replicates: how many networks of a size there are.
        depths: at how many depths they may be trained.
        what: of which probes, in words.
    """
    # A limit in depth is seen at three depths at least; of the last two there are narrow networks,
    # and some without a resolution.
    wide = replicates * min(depths, 3)
    narrow = (replicates + PAIRS) * min(depths, 2)
    # Measured: 38 copies for 4 replicates at one depth and 61 for 8, 58 for 4 at infinite depth.
    # Networks' own are kept in single precision too; estimates and their parts are ten arrays.
    copies = 1.5 * (wide + narrow) + 3 * replicates + 10
    needed = copies * bytes_of_each
    room = MEMORY_SHARE * memory_of(torch.device("cpu"))
    if needed <= room:
        return
    assert kernels.steps is not None
    remedies = ["fewer probes" if replicates == 2 else "fewer probes or replicates"]
    # Kernels before training are always given, and depths are two at least.
    if len(kernels.steps) > 2:
        remedies.append("fewer nfd.Kernels(steps=...)")
    if (kernels.times or 0) > 2:
        remedies.append("nfd.Kernels(times=2)")
    raise InputError(
        f"kernels of {what} take {number(bytes_of_each / 2**30)} GiB for each network, and about "
        f"{number(needed / 2**30)} GiB with {replicates} replicates of two widths and what is "
        f"computed from them; {number(room / 2**30)} GiB may be used. Take "
        f"{', or '.join(remedies)}."
    )


# ---- Observers


@dataclass(frozen=True)
class Probing(Observer):
    """An observer whose curves ``nfd.predict`` takes to infinite width."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its curves."""
        raise NotImplementedError

    def until(self, name: str, values: Tensor, updates: int, end: int | None) -> Tensor:
        """Return a curve with not-a-number after so many updates.

        ``updates`` are all of a training that does not diverge, ``end`` those before a divergence.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class InputOutputs(Probing):
    """The outputs for some inputs, before the first update and after every one.

    Attributes:
        name: of the curve, [updates + 1, N, ...]; samples: batches of inputs, one after the other.
        most: so many numbers are kept at most; there is no curve if they are more.
    """

    name: str
    samples: Sequence[Any] = field(repr=False)
    most: int | None = None

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"name": self.name, "samples": content_hash(list(self.samples)), "most": self.most}

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def begin(self, member: Member, task: Task) -> Observation:
        return _InputOutputs(self, member, task.steps)

    def until(self, name: str, values: Tensor, updates: int, end: int | None) -> Tensor:
        return _outputs_until(values, updates, end)


def _outputs_until(values: Tensor, updates: int, end: int | None) -> Tensor:
    """Return outputs [updates + 1, ...] of outputs that may end earlier."""
    full = values.new_full((updates + 1, *values.shape[1:]), torch.nan, dtype=torch.float64)
    count = len(values) if end is None else min(end, len(values))
    full[:count] = values[:count]
    return torch.where(full.isfinite(), full, torch.nan)


class _InputOutputs(Observation):
    def __init__(self, spec: InputOutputs, member: Member, updates: int) -> None:
        self.spec = spec
        self.member = member
        place = next(member.module.parameters()).device
        self.samples = [on_device(sample, place) for sample in spec.samples]
        first = self._outputs()
        self.rows = list[Tensor]()
        self.is_kept = spec.most is None or first.numel() * (updates + 1) <= spec.most
        if self.is_kept:
            self.rows.append(first)

    def after(self, row: Step) -> None:
        if self.is_kept and not row.diverged:
            with judging(row.optimizer):
                self.rows.append(self._outputs())

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        if not self.is_kept:
            return {}, {}, None
        return {}, {self.spec.name: torch.stack(self.rows)}, None

    @torch.no_grad()
    def _outputs(self) -> Tensor:
        """The outputs for all samples, [N, ...]."""
        parts = list[Tensor]()
        with evaluating(self.member.module):
            for sample in self.samples:
                outputs = outputs_of(self.member(sample))
                if outputs.dim() == 0:
                    raise InputError(
                        "probes need a model that returns outputs for each input; this one returns "
                        "a single number."
                    )
                parts.append(outputs.cpu())
        return torch.cat(parts)


# The curve of the outputs for probes.
PROBE_OUTPUTS = "probe_outputs"
# A letter for each axis of a kernel: depths A, steps S, probes N, outputs C.
_AXES = {"streams": "ASNSN", "features": "ASNSN", "gradients": "ASNCSNC", "tangent": "SNCNC"}


@dataclass(frozen=True)
class Rates:
    """Learning rates of matrices by their roles, over the paper's ``eta_c n``.

    ``inner`` is None for one-layer blocks.
    """

    input: float
    inner: float | None
    outer: float
    readout: float


def tangent_rates(member: Member) -> Rates | None:
    """Return the rates of matrices under SGD, whichever optimizer trains, for the tangent kernel.

    None where no step is along products of gradients, as gradients go back through other matrices.
    """
    net = member.net
    if net is None or net.feedback != "shared":
        return None
    rates = dict[str, float]()
    for group in net.base_groups(1.0, member.plan.rule, "sgd"):
        for role in group.roles:
            rates[role] = group.lr * group.lr_scale / net.width
    return Rates(rates["input"], rates.get("inner"), rates["outer"], rates["readout"])


@dataclass(frozen=True)
class StreamKernels(Probing):
    """Kernels of probes x [N, d] at ``kernels.times`` depths after ``kernels.steps`` updates.

    Their passes give the outputs too, as ``InputOutputs`` would.

    Attributes:
        tangent: whether the tangent kernel is computed.
    """

    probes: Tensor = field(repr=False)
    kernels: Kernels
    tangent: bool

    @property
    def settings(self) -> Mapping[str, Any]:
        return {
            "probes": content_hash([self.probes]),
            "times": self.kernels.times,
            "steps": list(self.steps),
            "tangent": self.tangent,
        }

    @property
    def steps(self) -> Sequence[int]:
        """The numbers of updates."""
        assert self.kernels.steps is not None
        return self.kernels.steps

    @property
    def names(self) -> tuple[str, ...]:
        return (PROBE_OUTPUTS, *self.kernel_names)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The names of its kernels."""
        if self.tangent:
            return tuple(_AXES)
        return ("streams", "features", "gradients")

    def begin(self, member: Member, task: Task) -> Observation:
        return _StreamKernels(self, member)

    def until(self, name: str, values: Tensor, updates: int, end: int | None) -> Tensor:
        if name == PROBE_OUTPUTS:
            return _outputs_until(values, updates, end)
        full = torch.where(values.isfinite(), values, torch.nan).double()
        if end is None:
            return full
        is_after = torch.tensor(self.steps) >= end
        for axis in _step_axes(name):
            full.movedim(axis, 0)[is_after] = torch.nan
        return full

    def moved(self, name: str, values: Tensor) -> Tensor:
        """Return how far kernels [R, ...] are from those of the same networks before training."""
        first = values
        for axis in _step_axes(name):
            first = first.narrow(axis + 1, 0, 1)
        return values - first


def _step_axes(name: str) -> Iterator[int]:
    """The axes of a kernel that count steps."""
    for axis, letter in enumerate(_AXES[name]):
        if letter == "S":
            yield axis


@dataclass(frozen=True)
class _Look:
    """What one pass of N probes shows of n neurons.

    Attributes:
        h, features: [L + 1, N, n], the streams and what the block after each multiplies.
        g: [L + 1, N, C, n], ``n df_c/dh_l``. q: [L, N, C, n], ``n df_c/dx_l`` inside of two-layer
            blocks; [0, ...] for one-layer blocks.
    """

    h: Tensor
    features: Tensor
    g: Tensor
    q: Tensor


class _StreamKernels(Observation):
    def __init__(self, spec: StreamKernels, member: Member) -> None:
        assert isinstance(member.net, ResNet)
        assert spec.kernels.times is not None
        self.spec = spec
        self.net = member.net
        self.x = spec.probes.to(member.net.U)
        self.times = spec.kernels.times
        # Those of a rule may depend on the depth, so that they are each network's own.
        self.rates = tangent_rates(member) if spec.tangent else None
        # By step: h and phi(h) [A, N, n], g [A, N, C, n], and the tangent kernel.
        self.rows: dict[str, list[Tensor]] = {name: [] for name in _AXES}
        self.outputs = list[Tensor]()
        self._probe()

    def after(self, row: Step) -> None:
        if row.diverged:
            return
        with judging(row.optimizer):
            if row.step + 1 in self.spec.steps:
                self._probe()
            else:
                with torch.no_grad():
                    self.outputs.append(self.net(self.x))

    @torch.enable_grad()
    def _probe(self) -> None:
        """Keep streams and their gradients at some depths, the tangent kernel, and outputs."""
        streams = self.net.streams(self.x)
        self.outputs.append(streams.outputs.detach())
        vectors = [*streams.layers, *streams.inner]
        gradients = list[Tensor]()
        for output in streams.outputs.sum(0):
            # Of the vectors alone: no parameter gets a gradient.
            of_vectors = torch.autograd.grad(output, vectors, retain_graph=True)
            gradients.append(torch.stack(of_vectors))
        g = streams.gradient_scale * torch.stack(gradients, 2)
        h = streams.h
        look = _Look(h, self._features(streams), g[: len(h)], g[len(h) :])
        stride = self.net.depth // (self.times - 1)
        self.rows["streams"].append(look.h[::stride])
        self.rows["features"].append(look.features[::stride])
        self.rows["gradients"].append(look.g[::stride])
        if self.rates is not None:
            self.rows["tangent"].append(self._tangent(look, self.rates))

    def _features(self, streams: Streams) -> Tensor:
        """Return what the block after each layer multiplies, [L + 1, N, n].

        No block comes after the last layer: two-layer blocks have no features there, and those of
        the last block take their place.
        """
        inner = streams.x_inner
        if inner is None:
            return self.net.activation.phi(streams.h)
        return self.net.activation.phi(torch.cat([inner, inner[-1:]]))

    def _tangent(self, look: _Look, rates: Rates) -> Tensor:
        """Return the tangent kernel, [N, C, N, C]."""
        n = self.net.width
        covariances = torch.einsum("lin,ljn->lij", look.h, look.h) / n
        sigma = torch.einsum("lin,ljn->lij", look.features, look.features) / n
        theta = torch.einsum("licn,ljdn->licjd", look.g, look.g) / n
        inputs = self.x @ self.x.T / self.x.shape[1]
        kernel = torch.einsum("lij,licjd->icjd", sigma[:-1], theta[1:])
        kernel = rates.outer * self.net.branch**2 * kernel
        kernel += rates.input * torch.einsum("ij,icjd->icjd", inputs, theta[0])
        if rates.inner is not None:
            inside = torch.einsum("licn,ljdn->licjd", look.q, look.q) / n
            kernel += rates.inner * torch.einsum("lij,licjd->icjd", covariances[:-1], inside)
        same_output = torch.eye(look.g.shape[2]).to(look.g)
        readout = torch.einsum("ij,cd->icjd", covariances[-1], same_output)
        return kernel + rates.readout * readout

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        curves: Curves = {PROBE_OUTPUTS: torch.stack(self.outputs)}
        for name in self.spec.kernel_names:
            rows = self.rows[name]
            # Steps after a divergence are not-a-number.
            missing = len(self.spec.steps) - len(rows)
            rows += [torch.full_like(rows[0], torch.nan)] * missing
            if name == "tangent":
                curves[name] = torch.stack(rows)
            else:
                curves[name] = self._gram(torch.stack(rows, 1))
        return {}, curves, None

    def _gram(self, vectors: Tensor) -> Tensor:
        """Return the Gram matrices of vectors [A, S, N, ..., n] at every depth."""
        flat = vectors.flatten(1, -2)
        axes = vectors.shape[1:-1]
        return (flat @ flat.mT / self.net.width).view(self.times, *axes, *axes)


# ---- What they become


@dataclass(frozen=True, repr=False, eq=False)
class TrainedKernels(Shown):
    """Kernels of the infinitely wide network in training, of ``nfd.predict(kernels=...)``.

    Print them to see how far training moved them.

    Axes are A depths, S steps, N probes and C outputs; kernels between two times of training have
    two axes of steps. Before training every kernel is known (to 1e-9 of its size at infinite
    depth), and serves to remove noise: reported is how far training moved the kernels of the
    networks, added to the exact ones (docs/kernels-in-training.md).

    Attributes:
        features: [A, S, N, S, N], ``E[phi(h_t) phi(h'_t)]``, the paper's Sigma. Of two-layer blocks
            ``E[phi(x) phi(x')]`` inside of the block that starts at t; at T of the last one.
        gradients: [A, S, N, C, S, N, C], ``E[g_t g'_t]``, the paper's Theta, of gradients ``g_t = n
            df/dh_t`` as training sends them back.
        streams: [A, S, N, S, N], ``E[h_t h'_t]``.
        tangent: [S, N, C, N, C]: a small step of SGD at rate eta_c on a probe x would move the
            output at x' by ``-eta_c`` times it times dloss/df(x). Under other optimizers too it is
            SGD's kernel, of the weights that they trained: their own steps do not follow it. None
            where gradients go back through other matrices (``feedback="independent"``).
        times: [A], depths t. steps: the S numbers of updates before.
        converged: at infinite depth, whether its last doubling moved every kernel by less than
            ``rtol`` of the kernel's RMS, beyond noise; losses decide how often it is doubled. At a
            finite depth True unless training diverged. note: what is not converged, in words.
        missed_share: the share of ``bias`` by which it may be wrong, as intervals count.

    Example::

        x = torch.randn(4, 5)
        task = nfd.Task([(x, x[:, :1])] * 3, loss="mse")
        settings = {"depth": 2, "width": 32, "replicates": 4, "probes": x}
        p = nfd.predict(nfd.resnets(5, 1), task, 0.3, **settings, kernels=True)
        print(p.kernels.moved("tangent")[3])  # after 3 updates, over its size before training
        p.kernels.tangent.value[-1, :, 0, :, 0]  # [4, 4], of the last step and the first output
    """

    features: Estimates
    gradients: Estimates
    streams: Estimates
    tangent: Estimates | None
    times: Tensor
    steps: tuple[int, ...]
    converged: bool
    note: str = ""
    missed_share: float = field(default=0.0, repr=False)

    @property
    def answer(self) -> Answer:
        """How far training moved the kernels, and what speaks against the number."""
        return kernels_answer(self)

    @property
    def table(self) -> list[Row]:
        """How far each kernel moved, as ``moved`` says, a dict for each kernel and step.

        ``kernel``, ``step``, ``value``, ``stderr``, ``low`` and ``high``; at the output.
        """
        return movement_rows(self)

    def first_sections(self) -> list[Section]:
        """What a page and a notebook show first: how far the kernels moved."""
        return kernels_sections(self)

    def moved(self, name: str, at: int = -1) -> dict[int, Interval]:
        """Return how far training moved a kernel, over its size before: ``|K_s - K_0| / |K_0|``.

        Norms are Frobenius', over all probes and outputs. Intervals count what those of the entries
        do: noise, by leaving out one replicate after another, the last doubling of the depth, and
        what the correction of width may miss. They are cut off at zero.

        Args:
            name: ``"tangent"``, ``"features"``, ``"gradients"`` or ``"streams"``.
            at: which of ``times``; by default the last, the output. ``"tangent"`` is of all.

        Returns:
            An interval for each of ``steps`` but 0, by step: 0.5 is half of the kernel. ``unknown``
            after a divergence. Two replicates show no interval.
        """
        check_choice("name", name, _AXES)
        estimates: Estimates | None = getattr(self, name)
        if estimates is None:
            raise InputError(
                "the tangent kernel is of networks whose gradients go back through their own "
                "matrices; these have feedback='independent'. Take 'features' or 'gradients'."
            )
        at = check_count("at", at, minimum=-len(self.times), maximum=len(self.times) - 1)
        replicates = _of_equal_steps(name, estimates.replicates, at)
        depth_error = _of_equal_steps(name, estimates.depth_error, at)
        missed = self.missed_share * _of_equal_steps(name, estimates.bias, at)
        moves = dict[int, Interval]()
        for place, step in enumerate(self.steps[1:], 1):
            both = replicates[:, [0, place]]
            both = both[both.flatten(1).isfinite().all(1)]
            moves[step] = _movement(both, depth_error[place].hypot(missed[place]))
        return moves


def _of_equal_steps(name: str, values: Tensor, at: int) -> Tensor:
    """Return a kernel [..., S, K] with the same step on both sides, at a depth if it has some."""
    axes = _AXES[name]
    if "A" in axes:
        values = values.select(-len(axes), at)
        axes = axes[1:]
    first, *others = (place - len(axes) for place, letter in enumerate(axes) if letter == "S")
    kept = values.dim() - len(axes)
    if others:
        # It puts the steps last.
        values = values.diagonal(0, first, others[0]).movedim(-1, kept)
    return values.flatten(kept + 1)


def _movement(both: Tensor, missed: Tensor) -> Interval:
    """Return how far kernels [R, 2, K], before and after, are apart over the size of the first.

    The square has no bias from noise. ``missed`` [K] are errors that are not noise.
    """
    if len(both) < 2:
        return UNKNOWN

    def square(samples: Tensor) -> Tensor:
        change = samples[:, 1] - samples[:, 0]
        apart = squared_size(change.mean(0), stderr(change))
        return apart / samples[:, 0].mean(0).square().mean()

    noise = interval(square, both).root()
    beyond = rms(missed) / rms(both[:, 0].mean(0))
    low = noise.value - math.hypot(noise.value - noise.low, beyond)
    high = noise.value + math.hypot(noise.high - noise.value, beyond)
    # Not-a-number stays.
    return replace(noise, low=max(low, 0.0), high=high)
