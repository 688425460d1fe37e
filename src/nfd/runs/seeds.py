"""The check that several seeds give different networks.

Everything that is trained from several seeds has it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from nfd.core.errors import InputError


def check_seeds_differ(
    size: tuple[int, int], what: str, outcomes: Mapping[int, Hashable], *, only_if_all: bool = False
) -> None:
    """Refuse networks that are the same for two seeds.

    Args:
        size: width and depth of the networks. what: what is compared, such as ``"losses"``.
            outcomes: what is compared, by seed.
        only_if_all: refuse them only where all seeds give the same. Two networks of many may have
            the same losses because both are dead.

    Raises:
        InputError: naming the size and the seeds.
    """
    first_seeds: dict[Hashable, int] = {}
    for seed, outcome in outcomes.items():
        first_seeds.setdefault(outcome, seed)
    count = len(first_seeds)
    if count == len(outcomes) or (only_if_all and count > 1):
        return
    same = "from every seed"
    if not only_if_all:
        first, second = next(
            (first_seeds[o], seed) for seed, o in outcomes.items() if first_seeds[o] != seed
        )
        same = f"for seeds {first} and {second}"
    raise InputError(
        f"make_model({size[0]}, {size[1]}) gives the same {what} {same}, but intervals come from "
        "differences between seeds. Does it set a seed of its own, or load weights? Draw from the "
        "global streams of PyTorch, NumPy or Python, which are seeded here."
    )
