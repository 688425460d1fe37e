"""Experts that no token reaches, and routers that choose one expert for all tokens.

Experts stand in a block: matrices stacked in a bare parameter [E, n, m], or E alike children of a
``ModuleList``. Their router is a matrix with E outputs in the same block. An expert is reached
where the gradient of one of its tensors has an entry that is not zero. A router that is a module
shows its choices: its output with E entries for each token. Chance is not a fault: routers are
initialised at random, and tokens resemble each other.

- An expert is dead if no step reached it in any network, unless few tokens or uneven routers
  would explain it: unless the other experts are missed with a probability p by which
  ``E p^networks`` is above ``_CHANCE``.
- A router has collapsed if it chooses one expert first for more than ``_SHARE`` of the different
  tokens of the last step, in the networks of all seeds of a size. With 4 experts and 64 tokens,
  random routers do this over 3 seeds with a chance of 4e-6 if tokens have a mean cosine of 0.5,
  1e-3 for 0.7, and 8e-3 for 0.8; with 16 experts 2e-4 for 0.8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from nfd.core.tables import Row
from nfd.families.member import Member
from nfd.meters.events import Event
from nfd.runs.task import Task
from nfd.runs.trial import Observation, Observer, Step
from nfd.scaling.model import TensorInfo, container_of, modules, tensors
from nfd.scaling.samples import tensors_in

_CHANCE = 0.01
# The share of the tokens, and how many different tokens it needs
_SHARE = 0.95
_FEWEST = 16
# Tensors of every expert, and where it stands in each
_Experts = list[list[tuple[nn.Parameter, Any]]]


@dataclass(frozen=True)
class Routing(Observer):
    """What training does to experts.

    By the name of what holds them, how many there are and which no step reached; by the name of a
    router, the share of tokens that have the same first choice.
    """

    def begin(self, member: Member, task: Task) -> Observation:
        return _Watched(member)


class _Watched(Observation):
    """One network in training; ``unreached`` are the experts that no step has reached so far."""

    def __init__(self, member: Member) -> None:
        self.parts = modules(member.module)
        self.steps = 0
        self.shares = dict[str, float]()
        self.experts, self.routers = experts_of(member)
        self.unreached = dict[str, list[int]]()
        for holder, experts in self.experts.items():
            self.unreached[holder] = [
                e for e, tensors_of_one in enumerate(experts) if tensors_of_one
            ]

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, count in self.routers.items():
                see = partial(self._see, name, count)
                hooks.enter_context(self.parts[name].register_forward_hook(see, with_kwargs=True))
            yield
        for holder, experts in self.experts.items():
            self.unreached[holder] = [
                e for e in self.unreached[holder] if not any(map(_is_reached, experts[e]))
            ]

    def after(self, row: Step) -> None:
        self.steps = row.step + 1

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        held = {}
        for holder, experts in self.experts.items():
            held[holder] = [len(experts), self.unreached[holder]]
        return {}, {}, {"steps": self.steps, "experts": held, "shares": self.shares}

    def _see(
        self, name: str, count: int, _: nn.Module, args: Any, kwargs: Mapping[str, Any], out: Any
    ) -> None:
        floats = [t for t in tensors_in(out) if t.is_floating_point()]
        scores = [t for t in floats if t.shape[-1:] == (count,)]
        tokens = tensors_in((args, kwargs))[0].detach()
        tokens = tokens.reshape(-1, tokens.shape[-1])
        if not scores or scores[0].numel() != len(tokens) * count:
            return
        # A token that is repeated counts once.
        different, place = torch.unique(tokens, dim=0, return_inverse=True)
        first = torch.zeros_like(place[: len(different)])
        first[place] = scores[0].detach().reshape(-1, count).argmax(-1)
        if len(different) >= _FEWEST:
            self.shares[name] = float(first.bincount().max()) / len(different)


def _is_reached(held: tuple[nn.Parameter, Any]) -> bool:
    parameter, place = held
    return parameter.grad is not None and bool(parameter.grad[place].any())


def experts_of(member: Member) -> tuple[dict[str, _Experts], dict[str, int]]:
    """Find the experts of a network, and their routers.

    Returns:
        The experts by the name of what holds them; and by the name of a router how many experts
        there are, if only one module can be their router.
    """
    experts_by_holder = dict[str, _Experts]()
    routers = dict[str, int]()
    fans = {name: entry.fan_in for name, entry in member.plan.entries.items()}
    parts = modules(member.module)
    trained = _trained_in(member)
    for block in member.plan.blocks:
        lists = _lists_in(parts, block)
        matrices = {name: t for name, t in trained.items() if name.startswith(f"{block}.")}
        held = {name: experts for name, experts in lists.items() if experts}
        for name, t in matrices.items():
            p = t.parameter
            if t.ins is None and p.dim() == 3 and fans[name] in p.shape[1:]:
                stacked = held.setdefault(container_of(name), [[] for _ in p])
                for e, of_one in zip(range(len(p)), stacked, strict=False):
                    of_one.append((p, e))
        in_lists = tuple(f"{name}." for name in lists)
        outside = {name: t for name, t in matrices.items() if not name.startswith(in_lists)}
        apart = {name: t.parameter for name, t in outside.items() if t.parameter.dim() == 2}
        for holder, experts in held.items():
            count = len(experts)
            fitting = [
                container_of(name)
                for name, p in apart.items()
                if p.numel() == (fans[name] or 0) * count
            ]
            if fitting:
                experts_by_holder[holder] = experts
            if len(fitting) == 1 and fitting[0] != holder:
                routers[fitting[0]] = count
    return experts_by_holder, routers


def _trained_in(member: Member) -> dict[str, TensorInfo]:
    """The tensors that train and have a fan, by name."""
    entries = member.plan.entries
    trained = {}
    for name, t in tensors(member.module).items():
        has_fan = name in entries and bool(entries[name].fan_in)
        if has_fan and t.parameter.requires_grad:
            trained[name] = t
    return trained


def _lists_in(parts: Mapping[str, nn.Module], block: str) -> dict[str, _Experts]:
    """The experts of every ``ModuleList`` in a block; none where its children differ."""
    lists = {}
    for name, part in parts.items():
        if name.startswith(f"{block}.") and isinstance(part, nn.ModuleList):
            lists[name] = _of_list(part)
    return lists


def _of_list(children: Any) -> _Experts:
    """The tensors of every child, where there are several and all have the same."""
    if any(child is None for child in children):
        return []
    shapes = [_shapes_of(child) for child in children]
    if len(shapes) < 2 or any(of_child != shapes[0] for of_child in shapes):
        return []
    return [_trained_of(child) for child in children]


def _shapes_of(child: nn.Module) -> dict[str, torch.Size]:
    return {name: p.shape for name, p in child.named_parameters()}


def _trained_of(child: nn.Module) -> list[tuple[nn.Parameter, Any]]:
    return [(p, ...) for p in child.parameters() if p.requires_grad]


def routing_events(runs: Sequence[Row]) -> Iterator[tuple[Row, Event]]:
    """Find what went wrong, and in which networks of a check.

    ``run["routing"]`` of each is what ``Routing`` returned.
    """
    holders = dict[str, None]()
    routers = dict[str, None]()
    for run in runs:
        holders |= dict.fromkeys(run["routing"]["experts"])
        routers |= dict.fromkeys(run["routing"]["shares"])
    for holder in holders:
        yield from _dead_experts(holder, runs)
    for router in routers:
        yield from _collapsed(router, runs)


def _dead_experts(holder: str, runs: Sequence[Row]) -> Iterator[tuple[Row, Event]]:
    """The experts of one holder that no network reached, beyond chance."""
    having = [run for run in runs if holder in run["routing"]["experts"]]
    count = having[0]["routing"]["experts"][holder][0]
    missed = [{*run["routing"]["experts"][holder][1]} for run in having]
    dead = set.intersection(*missed)
    # The share at which networks miss the other experts, with one more miss and one more chance
    misses = sum(map(len, missed)) - len(dead) * len(having) + 1
    probability = misses / ((count - len(dead)) * len(having) + 1)
    if not dead or count * probability ** len(having) >= _CHANCE:
        return
    first = f"expert {min(dead)} of {holder}"
    for run in having:
        yield run, Event("experts-dead", run["routing"]["steps"], first, len(dead) / count)


def _collapsed(router: str, runs: Sequence[Row]) -> Iterator[tuple[Row, Event]]:
    """The networks of sizes at which a router has collapsed from every seed."""
    for size in {(run["width"], run["depth"]) for run in runs}:
        of_size = [run for run in runs if (run["width"], run["depth"]) == size]
        shares = [run["routing"]["shares"].get(router, 0.0) for run in of_size]
        if min(shares) > _SHARE:
            for run, share in zip(of_size, shares, strict=True):
                yield run, Event("router-collapsed", run["routing"]["steps"], router, share)
