"""``nfd.predict``: how an infinitely wide network trains, from networks of two widths.

Structured weights leave out what is shorter than a resolution, which moves losses by b. Pairs of
narrow networks from the same seeds, with it and without one, show b. (Pairs with it and with half
of it would not: directions that matter can be shorter than both.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from nfd.core.answer import Answer
from nfd.core.checks import (
    check_choice,
    check_count,
    check_depth,
    check_flag,
    check_real,
    check_seed,
)
from nfd.core.errors import InputError, blaming
from nfd.core.estimates import (
    Interval,
    Magnitude,
    magnitude,
    rms,
    share,
    standard_errors,
    stderr,
)
from nfd.core.machine import memory_of
from nfd.core.modes import undisturbed
from nfd.core.names import MOST, WIDEST, NetworkWeights
from nfd.core.random import derive
from nfd.core.words import listed, plural
from nfd.families.family import Family, NetworkFamily, as_family
from nfd.families.member import Member
from nfd.families.network import ResNet
from nfd.limits.control import (
    Samples,
    check_size,
    exact_kernels,
    first_loss,
    small_member,
    starts_at_zero,
    without_first_outputs,
)
from nfd.limits.in_width import PARTS, Estimates, at_infinite_width
from nfd.limits.kernels_page import blur_note, main_kernel
from nfd.limits.modules import (
    ModuleKernels,
    ModuleProbes,
    features_name,
    gradients_name,
    module_probes,
)
from nfd.limits.predict_page import prediction_answer, prediction_sections
from nfd.limits.probes import (
    MEMORY_SHARE,
    NO_DEFERRED,
    PAIRS,
    PROBE_OUTPUTS,
    InputOutputs,
    Kernels,
    Probing,
    StreamKernels,
    TrainedKernels,
    check_fits,
    check_has_kernels,
    checked_kernels,
    kernel_bytes,
    tangent_rates,
)
from nfd.report.shown import Shown
from nfd.runs.seeds import check_seeds_differ
from nfd.runs.sweep import Sweep, as_sweep
from nfd.runs.task import Batch, Task, as_task, inputs_of
from nfd.runs.trial import Curves, Observation, Observer, Step, Trial
from nfd.scaling.base import MakeModel
from nfd.scaling.optimizers import names_where
from nfd.scaling.rules import MAX_RATE, check_limit
from nfd.scaling.samples import (
    as_written,
    batch_size,
    evaluating,
    on_device,
    shape_of,
    tensors_in,
)
from nfd.store import Record
from nfd.wide.defer import deferral
from nfd.wide.parameters import CHANGED

if TYPE_CHECKING:
    from nfd.report.page import Section

# ---- ``nfd.predict``: how an infinitely wide network trains, from networks of two widths


WIDTH = 1024
REPLICATES = 8
# How many times narrower the networks are that show the bias of width: a smaller factor adds noise,
# a larger one bends 1/n.
LEVER = 4
# The tolerance of the limit in depth, where none is asked for.
_RTOL = 0.01
# The depth is doubled so often at most, from this depth where the base has depth 1.
_DOUBLINGS = 6
_SHALLOWEST = 8
# ``rtol`` asks for so many replicates at most.
_MOST_REPLICATES = 1024
# More replicates do not help where so many times as many as may be trained are needed: 8 replicates
# know that number to a factor of two.
_HOPELESS = 4
# The relative standard error (RMS) beyond which a kernel says nothing.
_HIDDEN = 0.5
# The width at which c/n^2 may be as large as a/n: intervals without it held .87 under Muon at 64
# over 16.
_BENT = 16
# The curves of outputs for other inputs, and the fields of ``Prediction`` that hold their limit.
_EVAL_OUTPUTS = "eval_outputs"
# So many outputs for evaluation batches are kept of a network: 16 MiB.
_MOST_OUTPUTS = 2**22


@undisturbed()
def predict(
    family: Family | MakeModel,
    task: Task | Iterable[Batch],
    lr: float | None = None,
    *,
    depth: float = math.inf,
    width: int | None = None,
    replicates: int = REPLICATES,
    weights: NetworkWeights | None = None,
    rtol: float | None = None,
    outputs: bool = False,
    probes: Any = None,
    kernels: bool | Kernels = False,
    blocks: str | Sequence[str] | None = None,
    roles: Mapping[str, str] | None = None,
    seed: int = 0,
    sweep: Sweep | None = None,
) -> Prediction:
    """Predict the loss of an infinitely wide network before every step, with 95 % intervals.

    R networks of width n are trained, and R that are r times narrower. As mean losses follow ``loss
    + a / n``,

        loss = loss(n) - bias,    bias = (loss(n / r) - loss(n)) / (r - 1).

    For infinite depth L is doubled from the base's until ``2 loss_2L - loss_L`` changes by less
    than ``rtol``. Up to one network in eight that diverges is left out, and ``note`` has the share:
    numbers are of the remaining networks.

    Example::

        p = nfd.predict(nfd.resnets(64, 10), batches, lr=0.3, depth=4, width=64, replicates=2)
        print(p)
        p.loss, p.loss_low, p.loss_high  # of every step

    Args:
        family: an ``nfd.Family``, such as ``nfd.resnets(...)``, or a function of (width, depth).
        task: batches, one update for each, or an ``nfd.Task``.
        lr: learning rate of the base; for ``nfd.resnets`` the paper's ``eta_c``. By default the
            optimizer's.
        depth: L, or ``math.inf`` under a rule with a limit in depth (``"depth-mup"``,
            ``"complete-p"``).
        width: n, a multiple of the base's width; by default 1,024 or the next multiple.
        replicates: how many networks are averaged, R.
        weights: ``"structured"``, ``"deferred"`` or ``"dense"`` (``nfd.defer``). By default
            structured under SGD and Muon, else dense; ``nfd.resnets`` are dense under Muon.
        rtol: the relative standard error that you want; R is doubled until it is met, up to 1,024.
            At infinite depth also how far the last doubling may move losses, by default 0.01.
        outputs: also give the outputs of every step, and of evaluation batches.
        probes: other inputs, whose outputs are given too.
        kernels: also give kernels of probes; True, or ``nfd.Kernels(...)``.
        blocks, roles: as in ``nfd.plan``.
        seed: of the networks. Predictions with one seed share them, and their luck: differences are
            paired.
        sweep: where networks are trained and kept.

    Returns:
        A ``Prediction``. From the step at which more than one in eight have diverged
        (docs/howto/limit.md) numbers are not-a-number. Estimates smaller than their error may be
        negative.

    Raises:
        ValueError, TypeError: naming the argument; for rules and optimizers without a limit, or too
            little memory.

    Source: Theorem 1 and Definition 1 for ``feedback="independent"``;
    docs/mathematics/extrapolation.md.
    """
    start = time.perf_counter()
    depth = check_depth(depth)
    task = as_task(task)
    base = (64, 4 if depth == math.inf else int(depth))
    family = as_family(family, base, sample=task.sample, blocks=blocks, roles=roles)
    kind = _weights_of(family, weights, depth)
    if lr is None:
        lr = family.law.default_lr
    lr = check_real("lr", lr, least=0.0, below=MAX_RATE)
    count = check_count("replicates", replicates, minimum=2, maximum=MOST)
    seed = check_seed(seed)
    if rtol is not None:
        rtol = check_real("rtol", rtol, above=0.0)
    widths = _widths_of(family, width)
    # Wide networks may not fit into memory.
    family.check_sizes([family.base[0], 2 * family.base[0]], [family.base[1]])
    depths = _depths_of(family, depth)
    if depth == math.inf:
        family = family.along_one_path(depths[1])
    observe = list[Observer]()
    if check_flag("outputs", outputs):
        _check_one_size(task)
        observe += [Outputs(), *_of_eval_batches(task)]
    observe += _of_probes(family, task, kind, depths, count, probes, kernels)
    with as_sweep(sweep) as opened:
        _check_optimizer(family, task, lr, kind, opened.device)
        ensembles = Ensembles(family, task, lr, kind, seed, opened, observe)
        pair = _trained(ensembles, widths, depths, count, rtol)
        estimates = _estimates(pair)
        notes = [*opened.notes(family), *task.notes, *pair.notes]
        if "kernels" in estimates:
            notes.append(estimates["kernels"].note)
        return Prediction(
            **estimates,
            about=task.about,
            depths=pair.limit.depths,
            extrapolated=pair.limit.extrapolated,
            width=widths[0],
            narrow_width=widths[1],
            replicates=pair.wide.count,
            converged=pair.limit.converged,
            weights=kind,
            seconds=time.perf_counter() - start,
            seed=seed,
            note=" ".join(filter(None, notes)),
        )


def _check_one_size(task: Task) -> None:
    """Raise InputError where outputs of the batches could not be one tensor."""
    shapes = {tuple(part.shape for part in tensors_in(inputs)) for inputs, _ in task.batches}
    if len(shapes) > 1:
        sizes = sorted({batch_size(inputs) for inputs, _ in task.batches})
        raise InputError(
            "outputs=True is for batches of one shape; got batches of "
            f"{listed([*map(str, sizes)])} samples. Make them alike, or pass probes=, inputs whose "
            "outputs are given at every step."
        )


def _of_eval_batches(task: Task) -> list[Observer]:
    """Return what observes outputs for evaluation batches; nothing where their shapes differ."""
    samples = [inputs for inputs, _ in task.eval_batches]
    shapes = {tuple(part.shape[1:] for part in tensors_in(sample)) for sample in samples}
    if len(shapes) != 1:
        return []
    return [InputOutputs(_EVAL_OUTPUTS, samples, _MOST_OUTPUTS)]


def _of_probes(
    family: Family,
    task: Task,
    weights: NetworkWeights,
    depths: Sequence[int],
    count: int,
    probes: Any,
    kernels: bool | Kernels,
) -> list[Observer]:
    """Return what observes probes in networks of these depths, ``count`` of each width."""
    depth = depths[0]
    wanted = checked_kernels(kernels, depth, task.steps)
    if probes is None:
        if wanted is not None:
            raise InputError("kernels are of probes=..., inputs as those of a batch; got none.")
        return []
    inputs = inputs_of("probes", probes)
    _check_takes(family, depth, inputs)
    if wanted is None:
        return [InputOutputs(PROBE_OUTPUTS, [inputs])]
    if wanted.modules is not None:
        _check_has_modules(weights, depths)
        of_modules = module_probes(family, depth, inputs, wanted, count)
        return [InputOutputs(PROBE_OUTPUTS, [inputs]), of_modules]
    member = small_member(family, depth)
    net = check_has_kernels(member, weights)
    if not isinstance(inputs, Tensor):
        raise InputError(
            f"probes must be [N, {net.in_features}], as the inputs of the network; got "
            f"{shape_of(inputs)}."
        )
    _check_kernels_fit(wanted, inputs, net.out_features, count, len(depths))
    check_size(family, task, inputs, depth)
    return [StreamKernels(inputs, wanted, tangent_rates(member) is not None)]


def _check_kernels_fit(
    kernels: Kernels, probes: Tensor, outputs: int, replicates: int, depths: int
) -> None:
    """Raise InputError where kernels of these probes would not fit into memory."""
    assert kernels.times is not None
    assert kernels.steps is not None
    what = (
        f"{plural(len(probes), 'probe')} with {plural(outputs, 'output')} at "
        f"{plural(kernels.times, 'depth')} and {plural(len(kernels.steps), 'step')}"
    )
    each = kernel_bytes(kernels, len(probes), outputs)
    check_fits(kernels, each, replicates, depths, what)


def _check_takes(family: Family, depth: int, probes: Any) -> None:
    """Raise InputError where a network of the family has no answer to the probes."""
    member = family.member(family.base[0], depth)
    place = next(member.module.parameters()).device
    what = (
        f"probes must be inputs that the model takes, as those of a batch; got {shape_of(probes)}. "
        "It raised"
    )
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[]),
            evaluating(member.module),
            as_written(),
            blaming(what),
        ):
            member(on_device(probes, place))
    except InputError as error:
        if str(error).startswith(what):
            raise
        # Our own layers name their own argument.
        raise InputError(f"{what}: {error}") from error


def _check_has_modules(weights: NetworkWeights, depths: Sequence[int]) -> None:
    """Raise InputError where kernels at modules are not computed."""
    if len(depths) > 1:
        raise InputError(
            "kernels at modules are of one depth, as a module has no place in networks of others; "
            "got depth=inf, the default. Pass depth=L."
        )
    if weights == "deferred":
        raise InputError(NO_DEFERRED)


def _estimates(pair: _Pair) -> dict[str, Any]:
    """Return losses, outputs and kernels of the limit, by the fields of ``Prediction``."""
    fields: dict[str, Any] = {}
    for part, values in pair.parts(pair.samples("losses")).items():
        fields[_name(part)] = values
    if pair.ensembles.task.eval_batches:
        judged = pair.parts(pair.samples("judged"))
        fields["eval_loss_replicates"] = judged.pop("replicates")[:, 0]
        fields["eval_row"] = {part: float(value) for part, value in judged.items()}
    held = pair.wide.at(pair.limit.depths[-1]).curves
    if "outputs" in held:
        fields["outputs"], fields["outputs_stderr"] = pair.outputs
    for name in (_EVAL_OUTPUTS, PROBE_OUTPUTS):
        if name in held:
            fields[name] = pair.outputs_of_inputs(name)
    for observer in pair.ensembles.observe:
        if isinstance(observer, StreamKernels):
            fields["kernels"] = pair.kernels(observer)
        if isinstance(observer, ModuleProbes):
            fields["module_kernels"] = pair.module_kernels(observer)
    return fields


def _weights_of(family: Family, weights: NetworkWeights | None, depth: float) -> NetworkWeights:
    """Return the kind of weights; refuse one that the family's optimizer does not allow.

    Refuse also a family without a limit at this depth.
    """
    acts_on_matrices = family.law.equivariant
    check_limit(family.rule, depth)
    if weights is None:
        is_structured = acts_on_matrices and not _needs_stored_weights(family)
        weights = "structured" if is_structured else "dense"
    check_choice("weights", weights, get_args(NetworkWeights))
    if weights != "dense" and not acts_on_matrices:
        raise InputError(
            f"optimizer={family.optimizer!r} acts on every entry of the hidden matrices by itself, "
            "which is exact only for stored weights. Use "
            f"{names_where(lambda law: law.equivariant)}, or weights='dense'."
        )
    return weights


def _check_optimizer(
    family: Family, task: Task, lr: float, weights: NetworkWeights, device: str | None
) -> None:
    """Raise InputError where the task's optimizer cannot step on weights that are not stored.

    A small network shows it in two steps, before wide ones are trained.
    """
    if task.make_optimizer is None or weights == "dense":
        return
    steps = min(2, task.steps)
    trial = Trial(family, task, *family.base, seed=0, lr=lr, stop=steps, weights=weights)
    record = trial.train(device)
    if record.status == "failed" and CHANGED in (record.error or ""):
        raise InputError(
            f"make_optimizer makes an optimizer that cannot step on {weights} weights, whose "
            "matrices are not stored. Pass nfd.SGD or nfd.Muon with your settings, such as "
            "make_optimizer=lambda groups: nfd.SGD(groups, momentum=0.9), or weights='dense'."
        )


def _needs_stored_weights(family: Family) -> bool:
    """Whether no layer of a family can do without its weights."""
    if isinstance(family, NetworkFamily):
        # The paper's networks have one optimizer where their weights are not stored.
        return family.law.rest is not None
    member = family.member(*family.base)
    matrices = deferral(member.module, member.plan)
    # What stands in the way of others, nfd.defer says by name.
    is_hindered = any(row.reason and row.reason.is_obstacle for row in matrices.replacements)
    return not matrices.replaced and not is_hindered


def _widths_of(family: Family, width: int | None) -> tuple[int, int]:
    """Return the widths of wide and of narrow networks, multiples of the base's width."""
    unit = family.base[0]
    if width is None:
        wide = -(-WIDTH // unit) * unit
    else:
        wide = check_count("width", width, maximum=WIDEST)
    narrow = max(unit, wide // LEVER // unit * unit)
    if narrow >= wide:
        raise InputError(
            f"width must be above that of the base, {unit}, whose networks show the bias of width; "
            f"got {wide}."
        )
    return wide, narrow


def _depths_of(family: Family, depth: float) -> list[int]:
    """Return the depths that may be trained; for infinite depth they double from the base's."""
    if depth != math.inf:
        return [int(depth)]
    first = family.base[1] if family.base[1] > 1 else _SHALLOWEST
    return [first * 2**k for k in range(_DOUBLINGS + 1)]


@dataclass(frozen=True)
class _Pair:
    """The wide and the narrow networks of a prediction.

    Attributes:
        exact: narrow networks without a resolution, from the seeds with the numbers ``paired``;
            None where networks drop nothing.
        error: the relative standard error of the wide networks.
        wanted: the one asked for; None where none was.
    """

    ensembles: Ensembles
    widths: tuple[int, int]
    wide: Networks
    narrow: Networks
    exact: Networks | None
    paired: list[int]
    error: float
    wanted: float | None

    @property
    def limit(self) -> Limit:
        """The limit in depth, which the wide networks chose."""
        return self.wide.limit

    @property
    def used(self) -> Tensor:
        """A mask of the replicates that make the answer, [R]."""
        return self.wide.kept & self.narrow.kept

    @property
    def bend(self) -> float:
        """The share of the bias of width by which it may be wrong."""
        return min(1.0, _BENT / self.widths[1])

    @property
    def ratio(self) -> float:
        """The factor by which the wide networks are wider."""
        return self.widths[0] / self.widths[1]

    def samples(self, name: str) -> Samples:
        """Return what the networks that make the answer hold under this name."""
        used = self.used
        coarse = self.limit.before(self.wide.at, name)
        shortened = None
        if self.exact is not None:
            shortened = _shortened(self.narrow, self.exact, self.paired, name)
        return Samples(
            self.wide.of(name)[used],
            self.narrow.of(name)[used],
            None if coarse is None else coarse[used],
            shortened,
        )

    def parts(self, samples: Samples) -> dict[str, Tensor]:
        """Return what ``at_infinite_width`` finds of samples.

        Replicates that were left out are not-a-number.
        """
        parts = at_infinite_width(
            samples.wide,
            samples.narrow,
            self.ratio,
            coarse=samples.coarse,
            shortened=samples.shortened,
            bend=self.bend,
        )
        of_used = parts["replicates"]
        used = self.used
        parts["replicates"] = of_used.new_full((len(used), *of_used.shape[1:]), math.nan)
        parts["replicates"][used] = of_used
        return parts

    def estimates(self, samples: Samples, exact: Tensor | None = None) -> Estimates:
        """Return estimates from samples; ``exact`` is what was subtracted from them."""
        parts = self.parts(samples)
        if exact is not None:
            for part in ("value", "low", "high", "replicates"):
                parts[part] = parts[part] + exact
        return Estimates(**{field.name: parts[field.name] for field in fields(Estimates)})

    @property
    def outputs(self) -> tuple[Tensor, Tensor]:
        """The mean outputs at infinite width and their standard errors, [steps, batch, C] each."""
        lever = 1 / (self.ratio - 1)
        wide = self.wide.of("outputs")[self.used]
        narrow = self.narrow.of("outputs")[self.used]
        mean = (1 + lever) * wide.mean(0) - lever * narrow.mean(0)
        return mean, ((1 + lever) * stderr(wide)).hypot(lever * stderr(narrow))

    def outputs_of_inputs(self, name: str) -> Estimates:
        """Return the outputs [updates + 1, N, ...] for probes or evaluation batches."""
        samples = self.samples(name)
        if starts_at_zero(self.ensembles.family):
            samples = without_first_outputs(samples)
        return self.estimates(samples)

    def kernels(self, observer: StreamKernels) -> TrainedKernels:
        """Return the kernels of probes, with those before training as they are known."""
        family = self.ensembles.family
        deepest = self.limit.depths[-1]
        # Before training the limit in depth is known, whether training has shown one or not.
        depth = math.inf if len(self.limit.depths) > 1 else deepest
        exact = exact_kernels(family, self.ensembles.task, observer, depth, deepest)
        count = int(self.used.sum())
        kernels = dict[str, Estimates]()
        moves = dict[str, Magnitude]()
        for name in observer.kernel_names:
            samples = self.samples(name)
            size = rms(samples.wide.mean(0))
            if exact is None:
                kernels[name] = self.estimates(samples)
            else:
                samples = samples.mapped(partial(observer.moved, name))
                kernels[name] = self.estimates(samples, exact[name])
            if samples.coarse is not None:
                moves[name] = _change((samples.wide - samples.coarse) / size)
        if self.limit.extrapolated:
            depth_note = _depth_note(moves, self.wanted or _RTOL, count)
        else:
            depth_note = self._without_limit(is_known=exact is not None)
        net = small_member(family, deepest).net
        assert isinstance(net, ResNet)
        assert observer.kernels.times is not None
        trained = TrainedKernels(
            features=kernels["features"],
            gradients=kernels["gradients"],
            streams=kernels["streams"],
            tangent=kernels.get("tangent"),
            times=torch.linspace(0, net.horizon, observer.kernels.times, dtype=torch.float64),
            steps=tuple(observer.steps),
            converged=not depth_note,
            missed_share=self.bend,
        )
        notes = [_noise_note(kernels), depth_note]
        if main_kernel(trained) not in notes[0]:
            notes.append(blur_note(trained, count))
        return replace(trained, note=" ".join(filter(None, notes)))

    def _without_limit(self, *, is_known: bool) -> str:
        """Say of which depth kernels are where none was extrapolated; empty for a finite depth."""
        if self.limit.converged:
            return ""
        if self.wide.diverged:
            return "Kernels after the divergence are not-a-number."
        of_depth = f"Kernels moved from training as at depth {self.limit.depths[-1]}"
        if not is_known:
            of_depth = f"Kernels are of depth {self.limit.depths[-1]}"
        before = "; before training they are exact at infinite depth" if is_known else ""
        return f"{of_depth}{before}. Intervals count the last doubling of the depth."

    def module_kernels(self, observer: ModuleProbes) -> ModuleKernels:
        """Return the kernels of probes at modules."""
        features = dict[str, Estimates]()
        gradients = dict[str, Estimates]()
        for place, name in enumerate(observer.modules):
            features[name] = self.estimates(self.samples(features_name(place)))
            gradients[name] = self.estimates(self.samples(gradients_name(place)))
        return ModuleKernels(features, gradients, tuple(observer.steps))

    @property
    def notes(self) -> list[str]:
        """Sentences on what limits the answer; empty ones where nothing does."""
        notes = [self.limit.note, self.wide.left_out, self.narrow.left_out]
        if not self.wide.diverged:
            notes.append(_no_bias(self.narrow, self.widths[0]))
        if self.exact is not None and not self.narrow.diverged:
            notes.append(_no_resolution_bias(self.exact))
        if self.wanted is not None and self.error > self.wanted:
            notes.append(_shortfall(self.ensembles, self.wide, self.error, self.wanted))
        return notes


def _trained(
    ensembles: Ensembles,
    widths: tuple[int, int],
    depths: Sequence[int],
    count: int,
    wanted: float | None,
) -> _Pair:
    """Train wide networks, as many narrow ones, and a few without a resolution."""
    wide, error = _wide_networks(ensembles, widths[0], depths, count, wanted)
    limit = wide.limit
    narrow_at = cache(lambda L: ensembles.train(widths[1], L, range(wide.count)))
    narrow = Networks(limit, limit.used, narrow_at)
    used = wide.kept & narrow.kept
    paired = used.nonzero().flatten().tolist()[:PAIRS]
    exact = None
    if ensembles.resolution is not None:
        exact_at = cache(lambda L: ensembles.train(widths[1], L, paired, exact=True))
        exact = Networks(limit, limit.used, exact_at)
    return _Pair(ensembles, widths, wide, narrow, exact, paired, error, wanted)


def _wide_networks(
    ensembles: Ensembles, width: int, depths: Sequence[int], count: int, wanted: float | None
) -> tuple[Networks, float]:
    """Train wide networks, more until the relative standard error is ``wanted``.

    Stops where that would take more networks than may be trained: then more would not help. Also
    returns the error.
    """
    while True:
        at = cache(lambda L, count=count: ensembles.train(width, L, range(count)))
        limit = to_limit(at, depths, wanted or _RTOL)
        wide = Networks(limit, limit.depths, at)
        losses = wide.of("losses")[wide.kept]
        # Losses that are exactly zero have no relative error.
        size = rms(losses.mean(0))
        error = rms(stderr(losses)) / size if size else 0.0
        if wanted is None or not error > wanted:
            return wide, error
        most = ensembles.most(wide)
        if count >= most or _needed(count, error, wanted) > _HOPELESS * most:
            return wide, error
        count = min(2 * count, most)


def _needed(count: int, error: float, wanted: float) -> float:
    """Return how many networks have the error ``wanted``, where ``count`` have ``error``."""
    return count * (error / wanted) ** 2


def _shortfall(ensembles: Ensembles, wide: Networks, error: float, wanted: float) -> str:
    """A sentence on an error that is larger than wanted."""
    needed = _needed(wide.count, error, wanted)
    most = ensembles.most(wide)
    bound = f"memory has room for {most:,}"
    if most == _MOST_REPLICATES:
        bound = f"at most {most:,} are trained"
    return (
        f"The standard error is {error:.2g} of the losses, above rtol={wanted:g}, for which about "
        f"{needed:,.0f} replicates would be needed; {bound}. Raise width, rtol or replicates."
    )


def _shortened(narrow: Networks, exact: Networks, numbers: Sequence[int], name: str) -> Tensor:
    """Return by how much a resolution moved the losses of narrow networks, ``[pairs, K]``.

    ``numbers`` are the rows of the narrow networks that ``exact`` trained without a resolution.
    """
    moved = narrow.of(name)[numbers] - exact.of(name)
    trained = [row for row in range(len(numbers)) if row not in exact.divergences.steps]
    if len(trained) > 1:
        return moved[trained]
    return moved


def _noise_note(kernels: Mapping[str, Estimates]) -> str:
    """A sentence on kernels that noise hides; empty where there are none."""
    hidden = list[str]()
    needed = 0.0
    for name, kernel in kernels.items():
        relative = rms(kernel.stderr) / rms(kernel.value)
        if relative > _HIDDEN:
            hidden.append(name)
            needed = max(needed, _needed(len(kernel.replicates), relative, _HIDDEN))
    if not hidden:
        return ""
    shown = [name for name in kernels if name not in hidden]
    others = f" (not of {listed(shown)})" if shown else ""
    return (
        f"Noise hides kernels, whose standard errors are above {_HIDDEN:g} of their size: "
        f"{', '.join(hidden)}{others}. About {math.ceil(needed):,} replicates would show them, or "
        "a larger width."
    )


def _depth_note(moves: Mapping[str, Magnitude], rtol: float, count: int) -> str:
    """Sentences on kernels that the last doubling of the depth moved, or may have moved.

    ``moves`` are relative to the RMS of each kernel, of ``count`` replicates.
    """
    moved = list[str]()
    hidden = list[str]()
    deciding = 0.0
    for name, move in moves.items():
        if _is_hidden(move, rtol):
            hidden.append(name)
            deciding = max(deciding, _deciding(count, move, rtol))
        elif move.value > rtol:
            moved.append(f"{name} by {move.value:.2g}")
    notes = list[str]()
    if moved:
        notes.append(
            f"The last doubling of the depth moved kernels beyond rtol={rtol:g} of their size "
            f"(RMS): {', '.join(moved)}. Their intervals count this. Lower rtol for deeper "
            "networks."
        )
    if hidden:
        notes.append(
            f"Noise hides whether kernels reached their limit in depth to rtol={rtol:g} of their "
            f"size: {', '.join(hidden)}. {_remedy(deciding)}"
        )
    reached = [name for name in moves if name not in hidden and moves[name].value <= rtol]
    if notes and reached:
        notes.append(f"Within rtol: {listed(reached)}.")
    return " ".join(notes)


def _no_bias(narrow: Networks, width: int) -> str:
    """A sentence on the bias of width, if too many narrow networks diverged; empty otherwise."""
    if narrow.divergences.end is None:
        return ""
    return (
        f"{narrow.counted}: the bias of width {width:,} is unknown from step "
        f"{narrow.divergences.end} on, and so are the intervals. Lower lr, or raise width."
    )


def _no_resolution_bias(exact: Networks) -> str:
    """A sentence on the bias of the resolution, if it is unknown; empty otherwise."""
    if exact.count - len(exact.divergences.steps) > 1:
        return ""
    return (
        f"Without a resolution {exact.counted}: its bias is unknown from there on, and so are the "
        "intervals. Lower lr."
    )


def _name(part: str) -> str:
    """Return the field of ``Prediction`` that holds a part of the losses."""
    return "loss" if part == "value" else f"loss_{part}"


# ---- The result of ``nfd.predict``, as numbers, a table and text


@dataclass(frozen=True, repr=False, eq=False)
class Prediction(Shown):
    """The result of ``nfd.predict``: losses of an infinitely wide network. Print it to see them.

    The bias from the finite width of the trained networks is estimated and subtracted.
    docs/api/limits.md says what the 95 % intervals include. ``to_pandas()`` is ``table``.

    Attributes:
        loss, loss_stderr, loss_low, loss_high: [steps], mean losses of the batches, before the
            update of each step; their standard errors and 95 % intervals.
        loss_bias, loss_bias_stderr: [steps], the bias of ``width``, which was subtracted, and its
            error.
        loss_resolution_bias, loss_resolution_bias_stderr: [steps], the bias from the resolution of
            structured weights, measured by narrower networks, and its error. It is not subtracted;
            the intervals include it. Zero for other weights. (Before training the loss of
            ``nfd.resnets`` is exact: their outputs are zero.)
        loss_sampling_error, loss_depth_error: [steps], the other parts of the error: the standard
            error of the wide networks, and the change of the losses at the last doubling of the
            depth.
        loss_replicates: [replicates, steps], the losses of the limit by single replicates: their
            mean is ``loss``. docs/api/limits.md says how to compare two predictions by them.
        outputs, outputs_stderr: [steps, batch, C], the mean outputs before every step and their
            standard errors, or None. ``eval_outputs``, ``probe_outputs``: ``nfd.Estimates``
            [steps + 1, N, C] for evaluation inputs and probes. ``kernels``: ``nfd.TrainedKernels``.
            ``module_kernels``: ``nfd.ModuleKernels``.
        eval_row: the mean evaluation loss after the last step, as a row of ``table``; None without
            evaluation data. ``eval_loss`` is its value, ``eval_interval`` its interval.
        eval_loss_replicates: [replicates], as ``loss_replicates``.
        about: how the batches were read: their number, samples and shape, in words.
        depths: depths that were trained; the last two are extrapolated when ``depth`` is infinite.
        extrapolated: whether they were; otherwise numbers are of the last of ``depths``, and their
            intervals count the last doubling.
        width, replicates: of the wide networks.
        narrow_width: of the networks that estimate the bias.
        converged: at infinite depth, whether the last doubling of the depth moved the losses by
            less than ``rtol``, beyond noise; else True unless training diverged.
        weights: "structured", "deferred" or "dense".
        seconds: time of the prediction.
        seed: of its networks.
        note: limitations of the answer, in words; empty if there are none.

    Example::

        p = nfd.predict(nfd.resnets(64, 10), batches, lr=0.3, depth=2, width=32, replicates=2)
        for row in p.table:
            print(row["step"], row["value"], row["low"], row["high"])
    """

    loss: Tensor
    loss_stderr: Tensor
    loss_low: Tensor
    loss_high: Tensor
    loss_bias: Tensor
    loss_bias_stderr: Tensor
    loss_resolution_bias: Tensor
    loss_resolution_bias_stderr: Tensor
    loss_sampling_error: Tensor
    loss_depth_error: Tensor
    loss_replicates: Tensor
    about: str
    depths: tuple[int, ...]
    extrapolated: bool
    width: int
    narrow_width: int
    replicates: int
    converged: bool
    weights: str
    seconds: float
    note: str
    eval_row: dict[str, float] | None = None
    eval_loss_replicates: Tensor | None = None
    outputs: Tensor | None = None
    outputs_stderr: Tensor | None = None
    eval_outputs: Estimates | None = None
    probe_outputs: Estimates | None = None
    kernels: TrainedKernels | None = None
    module_kernels: ModuleKernels | None = None
    seed: int = 0

    @property
    def table(self) -> list[dict[str, Any]]:
        """One dict per step: ``step``, and the loss as ``value``, ``stderr``, ``low``, ``high``.

        Further keys: ``bias``, which was subtracted, ``bias_stderr``, ``resolution_bias``,
        ``resolution_bias_stderr``, ``sampling_error`` and ``depth_error``. ``loss`` repeats
        ``value``. Not-a-number after a divergence.
        """
        columns = [getattr(self, _name(part)).tolist() for part in PARTS]
        rows = [dict(zip(PARTS, row, strict=True)) for row in zip(*columns, strict=True)]
        return [{"step": step, "loss": row["value"]} | row for step, row in enumerate(rows)]

    @property
    def eval_loss(self) -> float | None:
        """The mean evaluation loss after the last step; None without evaluation data."""
        if self.eval_row is None:
            return None
        return self.eval_row["value"]

    @property
    def eval_interval(self) -> Interval | None:
        """The evaluation loss with its error and 95 % interval; None without evaluation data."""
        if self.eval_row is None:
            return None
        return _interval(self.eval_row)

    @property
    def answer(self) -> Answer:
        """Where the loss ends, with its interval, and what speaks against the number."""
        return prediction_answer(self)

    def first_sections(self) -> list[Section]:
        """What a page and a notebook show first: the losses with their intervals."""
        return prediction_sections(self)


def _interval(row: Mapping[str, Any]) -> Interval:
    return Interval(row["value"], row["stderr"], row["low"], row["high"])


# ---- Limits in depth: ``2 f_2L - f_L`` where doubling L shows convergence, and plain words where
# it does not


# A change that keeps this share when the depth doubles is not converging (1/L would keep 1/2).
_SHRINKS = 0.8


@dataclass(frozen=True)
class Limit:
    """Which depths were trained, and whether the last two are extrapolated.

    Attributes:
        depths: ascending; the last is the deepest.
        extrapolated: whether values are ``2 f_2L - f_L``.
        converged: whether the limit was reached.
        note: what to say.
    """

    depths: tuple[int, ...]
    extrapolated: bool
    converged: bool
    note: str = ""

    @property
    def used(self) -> tuple[int, ...]:
        """The depths whose networks make the answer."""
        return self.depths[-2:] if self.extrapolated else self.depths[-1:]

    def of(self, ensemble_at: Callable[[int], Ensemble], name: str = "losses") -> Tensor:
        """Return the limit of what ensembles at depths hold under this name."""
        deep = ensemble_at(self.depths[-1]).of(name)
        if not self.extrapolated:
            return deep
        return extrapolated(ensemble_at(self.depths[-2]).of(name), deep)

    def before(self, ensemble_at: Callable[[int], Ensemble], name: str) -> Tensor | None:
        """Return what these values were one doubling ago, which shows the error of depth.

        None where one depth was trained.
        """
        if len(self.depths) == 1:
            return None
        if self.extrapolated and len(self.depths) == 2:
            return replace(self, extrapolated=False).of(ensemble_at, name)
        return replace(self, depths=self.depths[:-1]).of(ensemble_at, name)


def extrapolated(shallow: Tensor, deep: Tensor) -> Tensor:
    """Return ``2 f_2L - f_L`` of values at depths, or widths, L and 2L.

    It is the limit of what converges as 1/L.
    """
    return 2 * deep - shallow


def to_limit(ensemble_at: Callable[[int], Ensemble], depths: Sequence[int], rtol: float) -> Limit:
    """Find the limit by ``to_infinity`` where several depths are given.

    The limit of one depth is its ensemble itself.
    """
    if len(depths) > 1:
        return to_infinity(ensemble_at, depths, rtol)
    ensemble = ensemble_at(depths[0])
    if divergences([ensemble]).end is not None:
        return Limit((ensemble.depth,), False, False, _divergence([ensemble]))
    return Limit((ensemble.depth,), False, True)


def to_infinity(
    ensemble_at: Callable[[int], Ensemble], depths: Sequence[int], rtol: float
) -> Limit:
    """Double the depth until the limit moves by less than rtol, or changes do not shrink."""
    ensembles = list[Ensemble]()

    def ended(extrapolates: bool, converged: bool, note: str) -> Limit:
        return Limit(tuple(e.depth for e in ensembles), extrapolates, converged, note)

    for depth in depths:
        ensembles.append(ensemble_at(depth))
        diverged = divergences(ensembles)
        if diverged.end is not None:
            return ended(False, False, _divergence(ensembles))
        if len(ensembles) < 3:
            continue
        losses = [ensemble.losses[diverged.kept] for ensemble in ensembles]
        changes = [deep - shallow for shallow, deep in pairwise(losses)]
        wanted = rtol * rms(losses[-1].mean(0))
        stays = _stays(changes[-2], changes[-1])
        if depth == depths[-1]:
            stays = stays or _stays(changes[0], changes[-1])
        # Smaller changes are those that ``rtol`` allows, whether they shrink or not.
        if stays and _change(changes[-1]).value > wanted:
            return ended(False, False, _no_limit(ensembles, [_change(c) for c in changes]))
        moved = _change(extrapolated(*losses[-2:]) - extrapolated(*losses[-3:-1]))
        is_hidden = _is_hidden(moved, wanted)
        if moved.value <= wanted or (is_hidden and depth == depths[-1]):
            note = _noise_hides(moved, wanted, len(losses[-1])) if is_hidden else ""
            return ended(True, not note, note)
    moved_by = f"still changed the losses by {_change(changes[-1]).value:.3g} (RMS)"
    note = f"The last doubling of the depth {moved_by}; {depths[-1]} is the deepest tried."
    return ended(True, False, note)


def _no_limit(ensembles: Sequence[Ensemble], changes: Sequence[Magnitude]) -> str:
    """A sentence on changes that do not shrink while the depth doubles."""
    tried = ", ".join(str(e.depth) for e in ensembles)
    moves = ", ".join(f"{change.value:.3g}" for change in changes)
    return (
        f"No limit in depth was found: doubling it through {tried} changed the losses by {moves} "
        "(RMS), where a limit would halve the change. Nothing was extrapolated; these are the "
        f"losses at depth {ensembles[-1].depth}."
    )


def _noise_hides(moved: Magnitude, wanted: float, count: int) -> str:
    """A sentence on a move that may be noise, of so many replicates."""
    return (
        "Noise hides whether the limit in depth was reached: the last doubling moved the "
        f"extrapolation by {moved.value:.2g} ± {moved.noise:.2g} (RMS), where rtol allows "
        f"{wanted:.2g}. {_remedy(_deciding(count, moved, wanted))}"
    )


def _is_hidden(move: Magnitude, wanted: float) -> bool:
    """Whether noise hides if a move is below what is wanted."""
    if move.value > max(wanted, 2 * move.noise):
        return False
    return max(move.value, move.noise) > wanted


def _deciding(count: int, move: Magnitude, wanted: float) -> float:
    """Return how many replicates would show a move that noise hides, where there are ``count``."""
    if move.value > wanted:
        return _needed(count, move.noise, move.value / 2)
    return _needed(count, move.noise, wanted)


def _remedy(replicates: float) -> str:
    """A sentence that says how many replicates would decide."""
    if replicates > _MOST_REPLICATES:
        return f"That takes over {_MOST_REPLICATES:,} replicates: raise width or rtol."
    return f"About {math.ceil(replicates):,} replicates would decide; or raise width or rtol."


def _divergence(ensembles: Sequence[Ensemble]) -> str:
    """A sentence on the divergence that ended the search for a limit."""
    diverged = divergences(ensembles)
    last = ensembles[-1]
    remedy = "Lower lr" if diverged.end else "Check the batches and the initial weights"
    return (
        f"Training diverged at step {diverged.end} at width {last.width}, depth {last.depth}: "
        f"{len(diverged.steps)} of {diverged.count} networks. {remedy}."
    )


def _change(samples: Tensor) -> Magnitude:
    return magnitude(samples.mean(0), stderr(samples))


def _stays(before: Tensor, after: Tensor) -> bool:
    """Whether changes [R, K] did not shrink while the depth doubled, beyond noise.

    A limit halves them: what is left beyond one half must be more than noise, too.
    """
    first = _change(before)
    second = _change(after)
    if second.value <= _SHRINKS * first.value:
        return False
    return all(
        change.value > 2 * change.noise for change in (first, second, _change(after - before / 2))
    )


# ---- Networks of one width and depth that differ only in their seeds


# So many copies of losses and outputs are held at a time.
_COPIES = 4
# The share of networks that may diverge and be left out: one of the eight that are trained by
# default.
_RARE = 1 / 8
# A diverging loss goes 1, 80, 1e33, not-a-number (ReLU, depth 64). Networks that train never come
# near these bounds: the squared error before training, chi-squared with one degree of freedom, is
# 1,000 times its median once in 1e100. The first bound is relative to the other losses of a step
# and to the first ones. The second is relative to the first ones, for networks that all diverge
# alike; first losses are of order 1/n where targets are zero.
_OUTLIER = 1e3
_HUGE = 1e9
# The chance that a prediction counts a network as leaving whose loss is log-normal, as in
# tests/test_divergence.py.
_FALSE_ALARM = 0.01


@dataclass(frozen=True)
class Outputs(Observer):
    """The outputs of every step, before its update."""

    def begin(self, member: Member, task: Task) -> Observation:
        return _Outputs()


class _Outputs(Observation):
    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def after(self, row: Step) -> None:
        self.seen.append(row.outputs.cpu())

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        return {}, {"outputs": torch.stack(self.seen).flatten()}, list(self.seen[0].shape)


@dataclass(frozen=True)
class Ensemble:
    """What R networks gave, not-a-number after a divergence.

    Attributes:
        losses: ``[R, steps]``, before each update; before training as it is known of the limit.
        judged: evaluation losses ``[R, 1]``, or ``[R, 0]``.
        curves: what observers saw, ``[R, ...]`` each, by name.
        divergences: for every network that diverged, by its row, the step at which it did.
    """

    width: int
    depth: int
    losses: Tensor
    judged: Tensor
    curves: Mapping[str, Tensor]
    divergences: Mapping[int, int]

    def of(self, name: str) -> Tensor:
        """Return losses, evaluation losses or a curve by its name, [R, ...]."""
        held = {"losses": self.losses, "judged": self.judged, **self.curves}
        return held[name]


@dataclass(frozen=True)
class Networks:
    """The networks of one width.

    Attributes:
        depths: a network must have trained at each of them to be kept.
        at: the ensemble of a depth.
    """

    limit: Limit
    depths: Sequence[int]
    at: Callable[[int], Ensemble]

    def of(self, name: str) -> Tensor:
        """Return the limit of what they hold under this name, [R, ...]."""
        return self.limit.of(self.at, name)

    @property
    def count(self) -> int:
        """The number of networks, R."""
        return len(self.at(self.depths[-1]).losses)

    @property
    def divergences(self) -> Divergences:
        """The networks that diverged at one of the depths."""
        return divergences([self.at(depth) for depth in self.depths])

    @property
    def diverged(self) -> bool:
        """Whether more diverged than may be left out."""
        return self.divergences.end is not None

    @property
    def kept(self) -> Tensor:
        """A mask of the networks that make the answer, [R]."""
        return self.divergences.kept

    @property
    def counted(self) -> str:
        """Half of a sentence: how many diverged, and when."""
        return self._counted(self.divergences.steps)

    @property
    def left_out(self) -> str:
        """A sentence on the few networks that are left out; empty where none is."""
        diverged = self.divergences
        steps = {row: step for row, step in diverged.steps.items() if not diverged.kept[row]}
        if not steps:
            return ""
        before = ""
        if diverged.end is not None:
            before = f" before step {diverged.end}"
        return (
            f"{self._counted(steps)}: the answer{before} leaves them out. It and its interval are "
            "of networks that do not diverge, and hold if none does at infinite width."
        )

    def _counted(self, steps: Mapping[int, int]) -> str:
        part = share(len(steps), self.count)
        percent = f"{100 * part.value:.2g} % [{100 * part.low:.2g}, {100 * part.high:.2g}]"
        width = self.at(self.depths[-1]).width
        first = min(steps.values())
        return (
            f"{len(steps)} of {self.count} networks of width {width:,} diverged, the first at step "
            f"{first} ({percent})"
        )


@dataclass(frozen=True)
class Divergences:
    """Which networks diverged, and when.

    Attributes:
        steps: for every network that diverged, by its row, the first step at which it did.
        count: of all networks, R.
    """

    steps: Mapping[int, int]
    count: int

    @property
    def end(self) -> int | None:
        """The step at which more have diverged than may be left out; None where that never is."""
        in_order = sorted(self.steps.values())
        few = int(_RARE * self.count)
        if len(in_order) <= few:
            return None
        return in_order[few]

    @property
    def kept(self) -> Tensor:
        """A mask of the networks that make the answer, [R].

        It leaves out the few that diverged before too many had.
        """
        end = self.end
        kept = torch.ones(self.count, dtype=torch.bool)
        for row, step in self.steps.items():
            kept[row] = end is not None and step >= end
        return kept


def divergences(ensembles: Sequence[Ensemble]) -> Divergences:
    """List the networks that diverged at any of these depths, with the first step of each."""
    steps = dict[int, int]()
    for ensemble in ensembles:
        for row, step in ensemble.divergences.items():
            steps[row] = min(step, steps.get(row, step))
    return Divergences(steps, len(ensembles[-1].losses))


def first_divergences(losses: Tensor, judged: Tensor) -> dict[int, int]:
    """Find the step at which networks diverged, by row of each that did.

    It is the number of steps where the evaluation loss diverged.

    A loss that is not a number is a divergence. So is one out of all proportion to the losses of
    the other networks and to the first ones, and one that leaves the other networks and does not
    come back. Losses [R, steps], judged [R, 0 or 1].
    """
    sizes = torch.cat([losses, judged], 1).abs()
    diverged = _out_of_proportion(sizes) | _leaving(sizes)
    first_steps = dict[int, int]()
    for row in range(len(losses)):
        if bool(diverged[row].any()):
            first_steps[row] = int(diverged[row].nonzero()[0])
    return first_steps


def _out_of_proportion(sizes: Tensor) -> Tensor:
    """Mark losses ``[R, K]`` that are out of all proportion, or not a number.

    They are compared with the other losses of their step, and with the first ones.
    """
    ordered = sizes.nan_to_num(nan=math.inf).sort(0).values
    # Without the few that may be left out.
    largest = ordered[len(sizes) - 1 - int(_RARE * len(sizes))]
    bound = torch.minimum(_OUTLIER * torch.maximum(largest, largest[0]), _HUGE * largest[0])
    bound = torch.where(bound > 0, bound, math.inf)
    return ~(sizes <= bound) | sizes.isinf()


def _leaving(sizes: Tensor) -> Tensor:
    """Mark losses ``[R, K]`` of networks from the step at which they leave the other networks.

    They have left for good: a large loss that training brings back is part of the mean.
    """
    outside = ~(sizes < _beyond_chance(sizes))
    return outside.flip(1).int().cumprod(1).flip(1).bool()


def _beyond_chance(sizes: Tensor) -> Tensor:
    """Find the loss from which on networks have left the others of a step, [K].

    It is infinite where none has left. ``sizes`` are absolute losses ``[R, K]``.

    Of losses in ascending order it is the first that meets two conditions. It is larger than all
    smaller ones together, and than all of the first step: the mean would be its own. And smaller
    ones do not predict it: its logarithm is above the prediction interval, by Student's t, for one
    more value. Logarithms are taken to be normal above the median. The logarithms of squared errors
    have shorter tails; a product of many layers has these.
    """
    count, steps = sizes.shape
    half = (count + 1) // 2
    ordered = sizes.nan_to_num(nan=math.inf).sort(0).values
    median = ordered[(count - 1) // 2]
    above = ordered[half:].log() - median.log()
    freedoms = range(1, len(above))
    level = _FALSE_ALARM / (count * steps)
    reach = [standard_errors(freedom, level) * math.sqrt(1 + 1 / freedom) for freedom in freedoms]
    mean_squares = above.square().cumsum(0)[:-1] / sizes.new_tensor(freedoms)[:, None]
    is_unpredicted = above[1:] > sizes.new_tensor(reach)[:, None] * mean_squares.sqrt()
    sums = ordered.cumsum(0)[half:-1]
    first_sum = sizes[:, 0].nan_to_num(posinf=0.0).sum()
    outweighs = ordered[half + 1 :] > torch.maximum(sums, first_sum)
    has_left = is_unpredicted & outweighs & (median > 0)
    bounds = torch.where(has_left, ordered[half + 1 :], math.inf)
    never = sizes.new_full((1, steps), math.inf)
    return torch.cat([never, bounds]).min(0).values


class Ensembles:
    """The networks of a family at one learning rate; a sweep keeps what was trained."""

    def __init__(
        self,
        family: Family,
        task: Task,
        lr: float,
        weights: NetworkWeights,
        seed: int,
        sweep: Sweep,
        observe: Sequence[Observer] = (),
    ) -> None:
        self.family = family
        self.task = task
        self.lr = lr
        self.weights = weights
        self.seed = seed
        self.sweep = sweep
        self.observe = tuple(observe)
        self.first_loss = first_loss(family, task)
        # None where they drop nothing.
        self.resolution = family.resolution if weights == "structured" else None

    def train(
        self, width: int, depth: int, numbers: Sequence[int], *, exact: bool = False
    ) -> Ensemble:
        """Train the seeds with these numbers; ``exact`` networks have no resolution."""
        self._check_memory(width, depth)
        seeds = [derive(self.seed, "replicate", width, number) for number in numbers]
        resolution = None if exact else self.resolution
        trials = list[Trial]()
        for seed in seeds:
            trial = Trial(
                self.family,
                self.task,
                width,
                depth,
                seed,
                self.lr,
                weights=self.weights,
                resolution=resolution,
                observe=self.observe,
            )
            trials.append(trial)
        label = f"width {width}, depth {depth}"
        records = self.sweep.run_all({label: trials}, label)[label]
        curves = [self.sweep.curves(trial) for trial in trials]
        outcomes = {
            seed: tuple(curve["loss"].tolist()) for seed, curve in zip(seeds, curves, strict=True)
        }
        if len(set(outcomes.values())) == 1:
            _check_sees_inputs(self.task)
        check_seeds_differ((width, depth), "losses", outcomes, only_if_all=True)
        return self._ensemble(width, depth, records, curves)

    def _ensemble(
        self,
        width: int,
        depth: int,
        records: Sequence[Record],
        curves: Sequence[Mapping[str, Tensor]],
    ) -> Ensemble:
        """Stack what trials recorded, not-a-number after a divergence."""
        steps = self.task.steps
        losses = torch.stack([_padded(curve["loss"].double(), steps) for curve in curves])
        test_losses = list[list[float]]()
        for record in records:
            has_test_loss = "test_loss" in record.metrics
            test_losses.append([record.metrics["test_loss"]] if has_test_loss else [])
        judged = torch.tensor(test_losses, dtype=torch.float64)
        first_steps = first_divergences(losses, judged)
        if self.first_loss is not None:
            losses[:, 0] = torch.where(losses[:, 0].isfinite(), self.first_loss, math.nan)
        for row, step in first_steps.items():
            losses[row, step:] = math.nan
            judged[row] = math.nan
        observed = dict[str, Tensor]()
        for observer in self.observe:
            if isinstance(observer, Outputs):
                observed["outputs"] = _outputs(records, curves, steps, first_steps)
            if isinstance(observer, Probing):
                observed |= _probed(observer, curves, steps, first_steps)
        return Ensemble(width, depth, losses, judged, observed, first_steps)

    def most(self, networks: Networks) -> int:
        """Return how many networks may be trained.

        So many that what these hold of each, at all depths, fits into memory.
        """
        total = 0
        for depth in networks.depths:
            ensemble = networks.at(depth)
            for tensor in (ensemble.losses, ensemble.judged, *ensemble.curves.values()):
                total += tensor.numel() * tensor.element_size()
        held = total / networks.count
        # The narrow networks hold as much at most, and so do means, copies and what the sweep
        # keeps.
        room = MEMORY_SHARE * memory_of(torch.device("cpu")) / (_COPIES * held)
        return max(networks.count, min(_MOST_REPLICATES, int(room)))

    def _check_memory(self, width: int, depth: int) -> None:
        """Raise InputError where a network of this size would not fit into memory.

        A hidden matrix holds ``m n`` numbers, as many for its gradient and for each state of the
        optimizer; unstored, as many vectors of both sides as rows passed through it, twice for
        deferred weights.
        """
        n = max(self.family.base[0], 16)
        rows = self.task.rows
        small = self.family.member(n, self.family.base[1])
        blocks = max(len(small.plan.blocks), 1)
        hidden = [
            name for name, role in small.plan.roles.items() if role in ("hidden", "inner", "outer")
        ]
        shapes = [small.module.get_parameter(name).shape for name in hidden]
        area = sum(math.prod(shape) for shape in shapes) / n**2 / blocks * width**2 * depth
        sides = (
            sum(shape[0] + math.prod(shape[1:]) for shape in shapes) / n / blocks * width * depth
        )
        held = {
            "dense": (2 + self.family.law.states) * area,
            "structured": sides * rows,
            "deferred": 2 * sides * rows,
        }[self.weights]
        needed = 4 * (held + 2 * sides * rows / self.task.steps)
        room = MEMORY_SHARE * memory_of(torch.device(self.sweep.device or self.task.device))
        if needed > room:
            raise InputError(
                f"a network of width {width:,} and depth {depth} with {self.weights} weights needs "
                f"{needed / 2**30:.3g} GiB, and {room / 2**30:.3g} GiB may be used. Take a "
                "smaller width, depth or batch, or fewer steps."
            )


def _check_sees_inputs(task: Task) -> None:
    """Raise InputError where all inputs are zero, to which all networks may answer the same."""
    parts = [part for inputs, _ in task.batches for part in tensors_in(inputs)]
    if all(part.is_floating_point() and not part.any() for part in parts):
        raise InputError(
            "the inputs of all batches are zero, and every network answers them alike, so that "
            "nothing can be predicted. Check how the batches are made, or give the model biases."
        )


def _outputs(
    records: Sequence[Record],
    curves: Sequence[Mapping[str, Tensor]],
    steps: int,
    divergences: Mapping[int, int],
) -> Tensor:
    """Return the outputs for batches [R, steps, b, C], not-a-number after a divergence."""
    rows = list[Tensor]()
    for record, curve in zip(records, curves, strict=True):
        shape = record.observed[0]
        rows.append(_padded(curve["outputs"].double().view(-1, *shape), steps))
    outputs = torch.stack(rows)
    for row, step in divergences.items():
        outputs[row, step:] = math.nan
    return outputs


def _probed(
    observer: Probing,
    curves: Sequence[Mapping[str, Tensor]],
    updates: int,
    divergences: Mapping[int, int],
) -> dict[str, Tensor]:
    """Return the curves of an observer by name, [R, ...]; those that it did not keep are absent."""
    probed = dict[str, Tensor]()
    for name in observer.names:
        if name not in curves[0]:
            continue
        rows = list[Tensor]()
        for row, curve in enumerate(curves):
            rows.append(observer.until(name, curve[name], updates, divergences.get(row)))
        probed[name] = torch.stack(rows)
    return probed


def _padded(values: Tensor, steps: int) -> Tensor:
    """Values ``[steps, ...]``, not-a-number from where training diverged."""
    finite = torch.where(values.isfinite(), values, math.nan)
    return torch.cat([finite, finite.new_full((steps - len(finite), *finite.shape[1:]), math.nan)])
