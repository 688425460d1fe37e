"""Which tensors are matrices that a spectral optimizer may take, and what it does to those that hold several maps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nfd.scaling.blocks import block_of, in_any_block
from nfd.scaling.entry import Entry, Layout
from nfd.scaling.roles import Anatomy, Scaling
from nfd.scaling.rules import is_spectral
from nfd.scaling.tensors import TensorInfo

_SEVERAL = re.compile(r"qkv|c_attn|in_proj|query_key_value|gate_up", re.IGNORECASE)  # names of fused projections


def layout_of(t: TensorInfo) -> Layout | None:
    """How the weight of a linear map lies in memory; None for every other tensor, stacks of matrices included."""
    if len(t.shape) != 2 or not t.ins or not t.outs:
        return None
    return "out-in" if t.outs == (0,) else "in-out"


def with_layouts(entries: Mapping[str, Entry], structure: Anatomy, scaling: Scaling | None) -> dict[str, Entry]:
    """The entries with their layouts: None for matrices with a side that does not grow with width, such as routers."""
    grows = scaling or {}
    one_sided = {in_any_block(name, structure.blocks) for name, dims in grows.items() if any(dims) and not all(dims)}
    return {
        name: entry
        if in_any_block(name, structure.blocks) in one_sided
        else replace(entry, matrix=layout_of(structure.tensors[name]))
        for name, entry in entries.items()
    }


def acts_inside(name: str, entry: Entry, blocks: Sequence[str]) -> bool:
    """Whether a tensor acts in the blocks of a model: not at its ends, nor on what conditions the blocks from outside,
    such as the time of a diffusion model. A model without blocks is one."""
    return is_spectral(entry.role) and (entry.role != "hidden" or not blocks or block_of(name, blocks) is not None)


def notes_on_matrices(entries: Mapping[str, Entry], blocks: Sequence[str], rest: str) -> list[str]:
    """What the reader should know of an optimizer that normalises matrices in blocks and leaves others to ``rest``."""
    inside = {name: entry for name, entry in entries.items() if len(entry.shape) > 1 and is_spectral(entry.role)}
    taken = {name: e for name, e in inside.items() if e.matrix is not None and acts_inside(name, e, blocks)}
    left = _generic((name for name in inside if name not in taken), blocks)
    fused = _generic((name for name, entry in taken.items() if _is_fused(name, entry)), blocks)
    together = "Each matrix is orthogonalised as a whole, the heads of one projection together"
    notes = [f"{together}; so are the several maps in {', '.join(fused)}." if fused else f"{together}."]
    if left:
        kinds = "Convolutions, stacks, and matrices with a fixed side or outside of blocks"
        notes.append(f"{kinds} go to {rest}: {', '.join(left)}.")
    return notes


def _is_fused(name: str, entry: Entry) -> bool:
    rows, columns = entry.shape
    return bool(_SEVERAL.search(name)) or 3 * min(rows, columns) == max(rows, columns)


def _generic(names: Iterable[str], blocks: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(in_any_block(name, blocks) for name in names))
