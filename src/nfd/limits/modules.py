"""Kernels of features and gradients at chosen modules of any model in training.

A forward hook reads what a module returns, z, for the probes; autograd gives ``df/dz`` of one
number f for each probe. With the width n of z, their Gram matrices

    features   <z, z'> / n          gradients   n <df/dz, df/dz'>

have a limit as the width grows under a rule that scales with it. Positions are rows as probes are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor

from nfd.core.errors import InputError
from nfd.core.fingerprint import fingerprint
from nfd.core.words import listed, plural
from nfd.families.family import Family
from nfd.families.member import Member
from nfd.limits.in_width import Estimates
from nfd.limits.probes import Kernels, Probing, check_fits
from nfd.runs.task import Task, content_hash
from nfd.runs.trial import Curves, Observation, Step, judging
from nfd.scaling.model import modules as modules_of
from nfd.scaling.samples import as_written, batch_size, evaluating, on_device, outputs_of

# So many modules are shown in full.
_SHOWN = 4


@dataclass(frozen=True)
class ModuleKernels:
    """Kernels at named modules in training, of ``nfd.predict(kernels=nfd.Kernels(modules=...))``.

    Axes are S steps, N probes and the further axes of what a module returns, such as positions:
    ``[S, N, ..., S, N, ...]``, between all pairs of them. They are of infinite width, at the depth
    that was trained, and as measured: no kernel before training is known here.

    Attributes:
        features: by the name of a module, ``<z, z'> / n`` of what it returns, of width n.
        gradients: ``n <df/dz, df/dz'>`` of one number f for each probe (``nfd.Kernels(output=)``).
        steps: the S numbers of updates before.

    Example::

        def make_model(width, depth):
            hidden = [torch.nn.Linear(width, width), torch.nn.ReLU()]
            return torch.nn.Sequential(
                torch.nn.Linear(5, width), *hidden, torch.nn.Linear(width, 1)
            )

        x = torch.randn(2, 5)
        task = nfd.Task([(x, x[:, :1])] * 3, loss="mse")
        kernels = nfd.Kernels(modules=["2"], steps=[3])
        family = nfd.Family(make_model, base=(16, 1), rule="mup", optimizer="sgd")
        p = nfd.predict(
            family, task, 0.1, depth=1, width=32, replicates=2, probes=x, kernels=kernels
        )
        p.module_kernels.features["2"].value.shape  # [2, 2, 2, 2]
    """

    features: Mapping[str, Estimates]
    gradients: Mapping[str, Estimates]
    steps: tuple[int, ...]

    def __repr__(self) -> str:
        shapes = [f"{name!r} {list(of.value.shape)}" for name, of in self.features.items()]
        if len(shapes) > _SHOWN:
            shapes[_SHOWN:] = [f"{len(shapes) - _SHOWN} more"]
        return f"ModuleKernels(features and gradients at {listed(shapes)}; steps {self.steps})"


@dataclass(frozen=True)
class ModuleProbes(Probing):
    """Kernels of probes at ``kernels.modules`` after ``kernels.steps`` updates.

    Attributes:
        axes: of what each module returns, the axis that grows with the width.
    """

    probes: Any = field(repr=False)
    kernels: Kernels
    axes: tuple[int, ...]

    @property
    def settings(self) -> Mapping[str, Any]:
        output = self.kernels.output
        return {
            "probes": content_hash([self.probes]),
            "modules": list(self.modules),
            "steps": list(self.steps),
            "output": None if output is None else fingerprint(output),
        }

    @property
    def modules(self) -> Sequence[str]:
        """The names of modules."""
        assert self.kernels.modules is not None
        return self.kernels.modules

    @property
    def steps(self) -> Sequence[int]:
        """The numbers of updates."""
        assert self.kernels.steps is not None
        return self.kernels.steps

    @property
    def names(self) -> tuple[str, ...]:
        names = list[str]()
        for place in range(len(self.modules)):
            names += [features_name(place), gradients_name(place)]
        return tuple(names)

    def begin(self, member: Member, task: Task) -> Observation:
        return _ModuleProbes(self, member)

    def until(self, name: str, values: Tensor, updates: int, end: int | None) -> Tensor:
        full = torch.where(values.isfinite(), values, torch.nan).double()
        if end is None:
            return full
        is_after = torch.tensor(self.steps) >= end
        for axis in (0, full.dim() // 2):
            full.movedim(axis, 0)[is_after] = torch.nan
        return full


def features_name(place: int) -> str:
    """The curve of features of the module at a place in the list."""
    return f"module_features_{place}"


def gradients_name(place: int) -> str:
    """The curve of gradients of the module at a place in the list."""
    return f"module_gradients_{place}"


class _ModuleProbes(Observation):
    def __init__(self, spec: ModuleProbes, member: Member) -> None:
        self.spec = spec
        self.member = member
        self.probes = on_device(spec.probes, next(member.module.parameters()).device)
        # By step, for each module: [N, ..., n].
        self.features: list[list[Tensor]] = [[] for _ in spec.modules]
        self.gradients: list[list[Tensor]] = [[] for _ in spec.modules]
        self._probe()

    def after(self, row: Step) -> None:
        if row.step + 1 in self.spec.steps and not row.diverged:
            with judging(row.optimizer):
                self._probe()

    def _probe(self) -> None:
        looks = look_at(self.member, self.probes, self.spec.kernels)
        for place, (z, gradient) in enumerate(looks):
            axis = self.spec.axes[place]
            self.features[place].append(z.movedim(axis, -1))
            self.gradients[place].append(gradient.movedim(axis, -1))

    def end(self) -> tuple[dict[str, float], Curves, Any]:
        curves: Curves = {}
        for place in range(len(self.spec.modules)):
            features = self._gram(self.features[place])
            width = self.features[place][0].shape[-1]
            curves[features_name(place)] = features / width
            curves[gradients_name(place)] = self._gram(self.gradients[place]) * width
        return {}, curves, None

    def _gram(self, rows: list[Tensor]) -> Tensor:
        """Return the Gram matrix of vectors [N, ..., n] of all steps, not-a-number where absent."""
        missing = len(self.spec.steps) - len(rows)
        vectors = torch.stack(rows + [torch.full_like(rows[0], torch.nan)] * missing)
        axes = vectors.shape[:-1]
        flat = vectors.flatten(0, -2)
        return (flat @ flat.mT).view(*axes, *axes)


# ---- One pass of the probes


def look_at(member: Member, probes: Any, kernels: Kernels) -> list[tuple[Tensor, Tensor]]:
    """Return what each module returns for probes, and the gradients of the output by it.

    The modules are in eval mode, and no parameter gets a gradient.

    Raises:
        ValueError: naming a module that is absent or not called, or of which the output does not
            depend, and an output that is not one number for each probe.
    """
    assert kernels.modules is not None
    with (
        torch.enable_grad(),
        evaluating(member.module),
        # Compiled modules may pass hooks by.
        as_written(),
        _hooked(member, kernels.modules) as calls,
    ):
        outputs = outputs_of(member(probes))
    vectors = [_only_call(name, calls[name]) for name in kernels.modules]
    numbers = _number_of_each(outputs, batch_size(probes, "probes"), kernels)
    gradients = torch.autograd.grad(numbers.sum(), vectors, allow_unused=True)
    looks = list[tuple[Tensor, Tensor]]()
    for name, vector, gradient in zip(kernels.modules, vectors, gradients, strict=True):
        if gradient is None:
            raise InputError(f"modules: the output does not depend on {name!r}. Leave it out.")
        looks.append((vector.detach(), gradient))
    return looks


def _only_call(name: str, returned: Sequence[Tensor]) -> Tensor:
    """Return what a module returned in its one call; raise InputError unless it was one."""
    if not returned:
        raise InputError(f"modules: {name!r} is not called for the probes. Leave it out.")
    if len(returned) > 1:
        raise InputError(
            f"modules: {name!r} is called {len(returned)} times in a forward pass, so that its "
            "kernel could be of any of them. Name modules that are called once, or put a "
            "torch.nn.Identity() behind the call that you want, and name it."
        )
    return returned[0]


def _number_of_each(outputs: Tensor, count: int, kernels: Kernels) -> Tensor:
    """Return the numbers [N] of N probes whose gradients are wanted."""
    with torch.enable_grad():
        numbers = _first_output(outputs) if kernels.output is None else kernels.output(outputs)
    if not isinstance(numbers, Tensor) or numbers.shape != (count,):
        arrived = list(numbers.shape) if isinstance(numbers, Tensor) else type(numbers).__name__
        raise InputError(
            f"output must give one number for each of the {count} probes, [{count}]; got "
            f"{arrived}, of outputs {list(outputs.shape)}. Pass "
            "nfd.Kernels(output=lambda outputs: ...)."
        )
    if not numbers.requires_grad:
        what = "the model's outputs" if kernels.output is None else "what nfd.Kernels(output=) gave"
        raise InputError(
            f"kernels at modules need gradients, and {what} carries none. Take real outputs, and "
            "leave out .detach(), .data, argmax and torch.no_grad()."
        )
    return numbers


def _first_output(outputs: Tensor) -> Tensor:
    """The first output of each probe, at the last position: [N] of [N, ..., C]."""
    while outputs.dim() > 2:
        outputs = outputs[:, -1]
    return outputs[:, 0] if outputs.dim() == 2 else outputs


@contextmanager
def _hooked(member: Member, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """A context that keeps what modules return in each call, by name."""
    parts = modules_of(member.module)
    returned: dict[str, list[Tensor]] = {name: [] for name in names}
    with ExitStack() as hooks:
        for name in names:
            if name not in parts:
                raise InputError(_absent(name, list(parts)))

            def keep(_module: Any, _args: Any, result: Any, name: str = name) -> Any:
                z = outputs_of(result)
                if not z.is_floating_point():
                    raise InputError(f"modules: {name!r} returns {z.dtype}, not real numbers.")
                if not z.requires_grad:
                    z.requires_grad_()
                returned[name].append(z)
                # What comes after may change it in place.
                return z.clone() if result is z else result

            hooks.enter_context(parts[name].register_forward_hook(keep))
        yield returned


def _absent(name: str, names: Sequence[str]) -> str:
    """A message on a module that the model does not have."""
    close = get_close_matches(name, names, 3) or [other for other in names if other][:8]
    return (
        f"modules: the model has no module {name!r}. Take names of named_modules(), such as "
        f"{', '.join(map(repr, close))}."
    )


# ---- What can be asked of a model


def module_probes(
    family: Family, depth: int, probes: Any, kernels: Kernels, replicates: int
) -> ModuleProbes:
    """Return what observes the probes at modules, once two small networks have shown them.

    ``replicates`` is how many networks of one width are trained.

    Raises:
        ValueError: as ``look_at``; where the width is not one axis of what a module returns, or
            kernels would not fit into memory.
    """
    assert kernels.modules is not None
    assert kernels.steps is not None
    small, double = (
        look_at(family.member(factor * family.base[0], depth), probes, kernels) for factor in (1, 2)
    )
    axes = list[int]()
    numbers = 0
    for name, (narrow, _), (wide, _) in zip(kernels.modules, small, double, strict=True):
        grown = list[int]()
        if narrow.dim() == wide.dim():
            sizes = zip(narrow.shape, wide.shape, strict=True)
            grown = [axis for axis, (n, m) in enumerate(sizes) if n != m]
        if len(grown) != 1:
            raise InputError(
                f"modules: {name!r} returns {list(narrow.shape)} at width {family.base[0]} and "
                f"{list(wide.shape)} at twice that width; one axis must grow. Take modules inside "
                "of the network, such as its blocks."
            )
        axes.append(grown[0])
        rows = len(kernels.steps) * narrow.numel() // narrow.shape[grown[0]]
        numbers += 2 * rows**2
    what = (
        f"{plural(batch_size(probes, 'probes'), 'probe')} with their positions at "
        f"{plural(len(kernels.modules), 'module')} and {plural(len(kernels.steps), 'step')}"
    )
    check_fits(kernels, 8 * numbers, replicates, 1, what)
    return ModuleProbes(probes, kernels, tuple(axes))
