"""How many networks of a recipe are trained together: one, where that does not pay or changes their numbers.

The time of a small network goes into calling operations. A stack calls each of them once for all of its networks.
"""

from __future__ import annotations

import warnings
from contextlib import suppress

import torch

from nfd.core.random import global_state, global_streams
from nfd.families.member import Member
from nfd.scaling.calls import batch_size
from nfd.scaling.laws import law_of
from nfd.training.recipe import Recipe
from nfd.training.task import Task

_TOGETHER = 16  # most networks
_WIDEST = 256  # wider ones are not even built to be asked
_WORK = 1e6  # floating-point operations of a product, beyond which little of its time is its call
_STEPS = 2
_ROUNDING = 1e-5  # of a loss
_ROUNDING_OF_MUON = 1e-3  # whose products are in 16 bits


def most_together(recipe: Recipe, width: int, depth: int) -> int:
    """How many networks of a size are trained as one, at most.

    They are few operations and no more than rounding changes their numbers: two of them are trained for two steps,
    alone and together. A model that refuses, draws random numbers, or changes its buffers is trained alone.
    """
    if (width, depth) not in recipe.together:
        recipe.together[width, depth] = _TOGETHER if _fits(recipe, width, depth) else 1
    return recipe.together[width, depth]


def _fits(recipe: Recipe, width: int, depth: int) -> bool:
    if width > _WIDEST or recipe.make_optimizer is not None or law_of(recipe.family.optimizer).make_stacked is None:
        return False
    task = recipe.task.on(torch.device("cpu"))
    with suppress(Exception), warnings.catch_warnings(), global_streams(0):  # trained alone it says what is wrong
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", "There is a performance drop")  # by vmap, of what it calls R times
        members = [recipe.family.build(width, depth, seed, device="cpu") for seed in (0, 1)]
        return work(members[0], task) <= _WORK and _agree(recipe, members, task)
    return False


def work(member: Member, task: Task) -> float:
    """Floating-point operations of a product of a matrix, on average, in the first batch."""
    inputs, _ = task.batches[0]
    matrices = sum(p.dim() > 1 for p in member.module.parameters())
    return member.operations(inputs) * batch_size(inputs) / (3 * max(matrices, 1))


def _agree(recipe: Recipe, members: list[Member], task: Task) -> bool:
    """Whether two networks that differ lose together what they lose alone, and change nothing but their weights."""
    law, pairs = law_of(recipe.family.optimizer), task.batches[:_STEPS]
    stack = type(members[0]).stacked(members)
    if stack is None:
        return False
    for member in members:
        member.module.train()
    buffers = [b for member in members for b in member.module.buffers()]
    before, start = [b.clone() for b in buffers], global_state()
    groups = [member.groups(law.check_rate) for member in members]
    rows = recipe.rows_together(stack, groups, pairs, None)
    together = torch.stack([row.losses for row in rows])
    alone = [[row.losses for row in recipe.rows(member, law.check_rate, 0.0, pairs, None)] for member in members]
    unchanged = start == global_state() and all(map(torch.equal, buffers, before))
    rounding = _ROUNDING if law.rest is None else _ROUNDING_OF_MUON
    expected = torch.stack([torch.stack(losses) for losses in alone], dim=1)
    differ = not torch.equal(expected[:, 0], expected[:, 1])
    return unchanged and differ and torch.allclose(together, expected, rtol=rounding, atol=0.0)
