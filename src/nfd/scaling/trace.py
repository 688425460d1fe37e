"""What one forward pass shows of a model: which tensors write residual streams, and which act inside of branches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from nfd.scaling.calls import followed_outputs
from nfd.scaling.fans import Fans, fans_of
from nfd.scaling.final_norm import norms_before
from nfd.scaling.graph import Operation, operations, parameters_of
from nfd.scaling.names import numberless
from nfd.scaling.own_factors import Factors, factors_of
from nfd.scaling.scaled import Scaled
from nfd.scaling.self_describing import own_samples
from nfd.scaling.streams import Branch, branches_of, writers_of
from nfd.scaling.tensors import modules, tensors

_ATTENTION = re.compile("Attention|(?<!Log)Softmax")


@dataclass
class Trace:
    """What was seen, by the names of tensors.

    Attributes:
        writers: tensors that write a stream.
        inside: other tensors of branches, None where the branch has writers, else the operation that prevents it.
        streams: on which streams the branches of a tensor stand.
        seen: every tensor that had a part in the outputs.
        fans: dimensions of tensors that count inputs and outputs.
        unscaled: modules whose outputs are branches that no tensor scales.
        norms: gain and bias of the norm that alone feeds the products with a tensor.
        factors: constant factors of tensors.
        attends: whether something looks like attention: a softmax, alone or fused with its products.
    """

    writers: set[str] = field(default_factory=set)
    inside: dict[str, str | None] = field(default_factory=dict)
    streams: dict[str, Operation] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    fans: dict[str, Fans] = field(default_factory=dict)
    unscaled: set[str] = field(default_factory=set)
    norms: dict[str, frozenset[str]] = field(default_factory=dict)
    factors: dict[str, Factors] = field(default_factory=dict)
    attends: bool = False

    def alike(self, name: str) -> str | None:
        """The tensor itself where it was seen, or one of the same name but for numbers, such as another expert's."""
        if name in self.seen:
            return name
        return next((other for other in sorted(self.seen) if numberless(other) == numberless(name)), None)


def trace(model: nn.Module, sample: Any) -> Trace | None:
    """Run a model once, in eval mode; without a sample, the parts of it that say what they take.

    Returns:
        None where nothing could be run, because no part says it.

    Raises:
        TypeError: when the sample is no input of the model.
    """
    samples = own_samples(model) if sample is None else {"": sample}
    if not samples:
        return None
    if any(p.is_inference() for p in model.parameters()):
        model = deepcopy(model)  # which may be differentiated
    names = {id(t.parameter): name for name, t in tensors(model).items()}
    parts, traced = modules(model), Trace()
    for part, own in samples.items():
        parameters = [t.parameter for t in tensors(parts[part]).values()]
        with _ends_of(parts) as ends, _scaled_in(parts[part]) as scaled:
            outputs = followed_outputs(parts[part], own)
        ran = operations(outputs, parameters)
        branches = branches_of(ran)
        _read(traced, ran, branches, names, ends)
        traced.attends |= any(_ATTENTION.search(o.name) for o in ran)
        returned = {output.grad_fn for output in outputs}
        last = returned | {branch.end.node for branch in branches}
        traced.factors.update({names[key]: own for key, own in factors_of(ran, last, scaled).items()})
        for parameter, norm in norms_before(ran, [o for o in ran if o.node in returned]).items():
            traced.norms[names[id(parameter.parameter)]] = frozenset(names[id(o.parameter)] for o in norm)
    alike = {name: traced.alike(name) for name in names.values()}
    traced.factors = {name: traced.factors[other] for name, other in alike.items() if other is not None}
    return traced


@contextmanager
def _ends_of(parts: Mapping[str, nn.Module]) -> Iterator[dict[Any, str]]:
    """Within it, the innermost module whose output an operation is, by the operation as autograd keeps it."""
    ends: dict[Any, str] = {}

    def keep(name: str, out: Any) -> None:
        if isinstance(out, Tensor) and out.grad_fn is not None:
            ends.setdefault(out.grad_fn, name)

    hooks = [m.register_forward_hook(lambda _m, _in, out, name=name: keep(name, out)) for name, m in parts.items()]
    try:
        yield ends
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _scaled_in(model: nn.Module) -> Iterator[set[Any]]:
    """Within it, the operations that apply the factor of an ``nfd.Scaled``, as autograd keeps them."""
    scaled: set[Any] = set()
    hooks = [
        m.register_forward_hook(lambda _m, _in, out: scaled.add(out.grad_fn))
        for m in model.modules()
        if isinstance(m, Scaled)
    ]
    try:
        yield scaled
    finally:
        for hook in hooks:
            hook.remove()


def _read(
    traced: Trace, ran: list[Operation], branches: list[Branch], names: Mapping[int, str], ends: Mapping[Any, str]
) -> None:
    traced.seen.update(names[id(o.parameter)] for o in ran if o.parameter is not None)
    traced.fans.update({names[key]: fans for key, fans in fans_of(ran).items()})
    for branch in branches:
        _add(traced, branch, _read_in(branch), names, ends)
    for branch in branches:  # keys and values of what is read from elsewhere
        _add(traced, branch, {o for o in branch.inside if o.parameter is not None}, names, ends)


def _read_in(branch: Branch) -> set[Operation]:
    """The parameters that act on what the branch computes from its stream."""
    return {leaf for o in branch.reading for weight in o.weights for leaf in parameters_of(weight)}


def _module_of(branch: Branch, ends: Mapping[Any, str]) -> str | None:
    """The module whose output a branch is, but for rearrangements."""
    operation = branch.end
    while operation.node not in ends:
        if not (operation.is_linear and len(operation.data) == 1):
            return None
        operation = operation.data[0]
    return ends[operation.node] if operation in branch.inside else None


def _add(
    traced: Trace, branch: Branch, parameters: set[Operation], names: Mapping[int, str], ends: Mapping[Any, str]
) -> None:
    writers = writers_of(branch)
    written = frozenset() if isinstance(writers, Operation) else writers
    module = _module_of(branch, ends) if isinstance(writers, Operation) else None
    if module is not None:
        traced.unscaled.add(module)
    for operation in parameters:
        name = names[id(operation.parameter)]
        if name in traced.writers or (name in traced.inside and traced.inside[name] is None):
            continue
        traced.streams[name] = branch.start
        if operation in written:
            traced.writers.add(name)
            traced.inside.pop(name, None)
        else:
            traced.inside[name] = writers.name if isinstance(writers, Operation) and module is None else None
