"""Experts that no token reaches, and routers that choose one expert for all tokens, in the networks
of a check.

Experts stand in a block: matrices stacked in a bare parameter [E, n, m], or E alike children of a
``ModuleList``. Their router is a matrix with E outputs in the same block. An expert is reached
where the gradient of one of its tensors has an entry that is not zero. A router that is a module
shows its choices: its output with E entries for each token. Chance is no fault: routers begin at
random, and tokens resemble each other.

- An expert is dead that no step reached in any network, unless so few tokens or so uneven routers
  would explain it: unless others are missed with a probability p by which ``E p^networks`` is above
  ``_CHANCE``.
- A router has collapsed that chooses one expert first for more than ``_SHARE`` of the different
  tokens of the last step, in the networks of all seeds of a size. Of 4 experts and 64 tokens,
  random routers do that over 3 seeds with a chance of 4e-6 where tokens have a mean cosine of 0.5,
  1e-3 of 0.7, 8e-3 of 0.8; of 16 experts 2e-4 at 0.8.
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
from nfd.scaling.model import container_of, modules, tensors
from nfd.scaling.samples import tensors_in

_CHANCE = 0.01
# of the tokens, and how many different ones a share needs
_SHARE = 0.95
_FEWEST = 16
# tensors of every expert, and where it stands in each
_Experts = list[list[tuple[nn.Parameter, Any]]]


@dataclass(frozen=True)
class Routing(Observer):
    """What a training does to experts: by the name of what holds them how many there are and which
    no step reached, and by the name of a router the share of tokens that have the same first
    choice."""

    def begin(self, member: Member, task: Task) -> Observation:
        return _Watched(member)


class _Watched(Observation):
    """One training. ``left``: the experts that no step has reached so far."""

    def __init__(self, member: Member) -> None:
        self.parts = modules(member.module)
        self.steps = 0
        self.shares = dict[str, float]()
        self.experts, self.routers = experts_of(member)
        self.left = {
            holder: [e for e, trained in enumerate(own) if trained]
            for holder, own in self.experts.items()
        }

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        with ExitStack() as hooks:
            for name, count in self.routers.items():
                see = partial(self._see, name, count)
                hooks.enter_context(self.parts[name].register_forward_hook(see, with_kwargs=True))
            yield
        for holder, own in self.experts.items():
            self.left[holder] = [e for e in self.left[holder] if not any(map(_is_reached, own[e]))]

    def after(self, row: Step) -> None:
        self.steps = row.step + 1

    def end(self) -> tuple[dict[str, float], dict[str, Any], Any]:
        held = {holder: [len(own), self.left[holder]] for holder, own in self.experts.items()}
        return {}, {}, {"steps": self.steps, "experts": held, "shares": self.shares}

    def _see(
        self, name: str, count: int, _: nn.Module, args: Any, kwargs: Mapping[str, Any], out: Any
    ) -> None:
        scores = [t for t in tensors_in(out) if t.is_floating_point() and t.shape[-1:] == (count,)]
        tokens = tensors_in((args, kwargs))[0].detach()
        tokens = tokens.reshape(-1, tokens.shape[-1])
        if not scores or scores[0].numel() != len(tokens) * count:
            return
        # a token that is repeated is one
        different, place = torch.unique(tokens, dim=0, return_inverse=True)
        first = torch.zeros_like(place[: len(different)])
        first[place] = scores[0].detach().reshape(-1, count).argmax(-1)
        if len(different) >= _FEWEST:
            self.shares[name] = float(first.bincount().max()) / len(different)


def _is_reached(held: tuple[nn.Parameter, Any]) -> bool:
    parameter, place = held
    return parameter.grad is not None and bool(parameter.grad[place].any())


def experts_of(member: Member) -> tuple[dict[str, _Experts], dict[str, int]]:
    """The experts of a network by the name of what holds them, and how many there are by the module
    that alone can be the router of some."""
    found = dict[str, _Experts]()
    routers = dict[str, int]()
    parts = modules(member.module)
    fans = {name: entry.fan_in for name, entry in member.plan.entries.items()}
    trained = {
        n: t for n, t in tensors(member.module).items() if t.parameter.requires_grad and fans.get(n)
    }
    for block in member.plan.blocks:
        held = {n: t.parameter for n, t in trained.items() if n.startswith(f"{block}.")}
        lists = [
            n
            for n, p in parts.items()
            if n.startswith(f"{block}.") and isinstance(p, nn.ModuleList)
        ]
        here = {name: own for name in lists if (own := _of_list(parts[name]))}
        for name, p in held.items():
            if trained[name].ins is None and p.dim() == 3 and fans[name] in p.shape[1:]:
                stacked = here.setdefault(container_of(name), [[] for _ in p])
                for e, of_one in zip(range(len(p)), stacked, strict=False):
                    of_one.append((p, e))
        apart = {
            n: p
            for n, p in held.items()
            if p.dim() == 2 and not n.startswith(tuple(f"{own}." for own in lists))
        }
        for holder, experts in here.items():
            count = len(experts)
            fitting = [
                container_of(n) for n, p in apart.items() if p.numel() == (fans[n] or 0) * count
            ]
            if fitting:
                found[holder] = experts
            if len(fitting) == 1 and fitting[0] != holder:
                routers[fitting[0]] = count
    return found, routers


def _of_list(children: Any) -> _Experts:
    """The tensors of every child, where there are several and all have the same."""
    if any(child is None for child in children):
        return []
    shapes = [{n: p.shape for n, p in child.named_parameters()} for child in children]
    alike = len(shapes) > 1 and all(own == shapes[0] for own in shapes)
    return (
        [[(p, ...) for p in child.parameters() if p.requires_grad] for child in children]
        if alike
        else []
    )


def routing_events(runs: Sequence[Row]) -> Iterator[tuple[Row, Event]]:
    """What went wrong, and in which networks of a check, by what ``Routing`` returned of each as
    ``run["routing"]``.
    """
    for holder in dict.fromkeys(name for run in runs for name in run["routing"]["experts"]):
        own = [run for run in runs if holder in run["routing"]["experts"]]
        count = own[0]["routing"]["experts"][holder][0]
        missed = [{*run["routing"]["experts"][holder][1]} for run in own]
        dead = set.intersection(*missed)
        others = (sum(map(len, missed)) - len(dead) * len(own) + 1) / (
            (count - len(dead)) * len(own) + 1
        )
        for run in own if dead and count * others ** len(own) < _CHANCE else ():
            first = f"expert {min(dead)} of {holder}"
            yield run, Event("experts-dead", run["routing"]["steps"], first, len(dead) / count)
    for router in dict.fromkeys(name for run in runs for name in run["routing"]["shares"]):
        for size in {(run["width"], run["depth"]) for run in runs}:
            own = [run for run in runs if (run["width"], run["depth"]) == size]
            shares = [run["routing"]["shares"].get(router, 0.0) for run in own]
            if min(shares) > _SHARE:
                for run, share in zip(own, shares, strict=True):
                    yield run, Event("router-collapsed", run["routing"]["steps"], router, share)
