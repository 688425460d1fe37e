"""A look as single numbers: of which meter and layer, and where that layer stands along the stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from nfd.families.member import Member
from nfd.meters.updates import Look
from nfd.scaling.model import block_of


class Reading(NamedTuple):
    """One number of a look.

    Attributes:
        meter: its name; of one of several stacks of blocks with the name of the stack.
        layer: the name of the module that it was read from; None for the whole network.
        depth: where that layer stands along the stream, in (0, 1]: the place of its block, counted from 1, over the
            number of blocks of its stack. The second stack, such as a decoder, has (1, 2]. None for layers outside of
            the blocks, and for the whole network.
        value: not-a-number where training diverged.
    """

    meter: str
    layer: str | None
    depth: float | None
    value: float


def readings(member: Member, look: Look) -> Iterator[Reading]:
    """The numbers of a look: those of the network, of its stacks, blocks and matrices."""
    for meter, value in look.network.items():
        yield Reading(meter, None, None, value)
    for stack, meters in look.stacks.items():
        yield from (Reading(meter_of(meter, stack), None, None, value) for meter, value in meters.items())
    for block, meters in look.blocks.items():
        yield from of_layer(member, block, block, meters)
    for matrix, layer in layers_of(look.matrices).items():
        yield from of_layer(member, layer, matrix, look.matrices[matrix])


def meter_of(meter: str, stack: str) -> str:
    """The name of a meter of one of several stacks: ``activation of decoder.layers``."""
    return f"{meter} of {stack}" if stack else meter


def layers_of(matrices: Collection[str]) -> dict[str, str]:
    """The name of the layer of each matrix: that of its module, and its own where the module holds several."""
    modules = {matrix: matrix.rpartition(".")[0] for matrix in matrices}
    held = Counter(modules.values())
    return {matrix: module if module and held[module] == 1 else matrix for matrix, module in modules.items()}


def of_layer(member: Member, layer: str, name: str, meters: Mapping[str, float]) -> Iterator[Reading]:
    """The numbers of a layer; ``name`` is its own, or that of one of its tensors."""
    depth = None
    for before, blocks in enumerate(member.stacks.values()):
        block = name if name in blocks else block_of(name, blocks)
        if block is not None:
            depth = before + (blocks.index(block) + 1) / len(blocks)
    for meter, value in meters.items():
        yield Reading(meter, layer, depth, value)
