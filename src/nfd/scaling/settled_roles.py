"""The role of every tensor under a rule, settled, or one error that lists what is open and what would decide it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from nfd.core.errors import InputError
from nfd.scaling.blocks import single_blocks
from nfd.scaling.names import numberless
from nfd.scaling.roles import Anatomy, Decision, RoleReason
from nfd.scaling.rules import ROLES, Role, Rule

_WAYS = {
    RoleReason.NEEDS_SAMPLE: "sample=, an input to trace, such as the inputs of a batch",
    RoleReason.NEEDS_SECOND_SIZE: "make_model= or base= of another width",
    RoleReason.NEEDS_BLOCKS: "blocks=, the names of the modules that add to their input, and of no others",
}


def settled_roles(structure: Anatomy, chosen: Rule, rule: str, model: nn.Module) -> dict[str, tuple[Role, str]]:
    """Every tensor's role and why it has it; a ValueError that lists what is open."""
    decisions = dict(structure.decisions)
    if not chosen.scales_width:  # every factor is 1, whatever the role
        decisions = {n: d if d.role else Decision("vector", d.why) for n, d in decisions.items()}
    elif not chosen.scales_depth:
        inside = tuple(f"{block}." for block in structure.blocks)
        decisions = {
            n: Decision("hidden", "in a block; this rule treats inner and outer alike")
            if d.role is None and n.startswith(inside) and len(structure.tensors[n].names) == 1
            else d
            for n, d in decisions.items()
        }
    if chosen.scales_depth and structure.interrupted:
        raise InputError(f"Rule {rule!r} {_needs(structure.interrupted, model)}")
    undecided = {n: d for n, d in decisions.items() if d.role is None}
    if undecided:
        raise InputError(_question(undecided))
    if chosen.scales_depth and not structure.blocks:
        raise InputError(f"Rule {rule!r} needs residual blocks; none were found. {_where_blocks_are(model)}")
    return {name: (d.role, d.why) for name, d in decisions.items() if d.role is not None}


def _needs(interrupted: Mapping[str, str], model: nn.Module) -> str:
    """What a depth rule needs of the stream, and what stands on it."""
    where, operation = next(iter(interrupted.items()))
    instead = ", or build the model with norm_first=True" if _is_post_norm(model) else ""
    return (
        f"needs a residual stream that passes from block to block unchanged; between those of {where!r} it goes "
        f"through {operation}, as in a model that normalises after adding. Use rule='mup'{instead}."
    )


def _is_post_norm(model: nn.Module) -> bool:
    return any(getattr(module, "norm_first", None) is False for module in model.modules())


def _where_blocks_are(model: nn.Module) -> str:
    """What to do in a model whose blocks are unknown."""
    single = single_blocks(model)
    if not single:
        return "Pass blocks='path.to.blocks.*', or rule='mup' where the model has none."
    return f"One module alone is not known to be a block: pass blocks={single[0]!r}, or take a depth of at least 2."


def _question(undecided: Mapping[str, Decision]) -> str:
    """Which tensors are open, those of several blocks as one line, and what would decide them."""
    lines = list(dict.fromkeys(f"  {numberless(n)}: {d.why}" for n, d in undecided.items()))
    if len(lines) > 12:
        lines = [*lines[:12], f"  and {len(lines) - 12} more"]
    reasons = {decision.reason for decision in undecided.values()}
    ways = [way for reason, way in _WAYS.items() if reason in reasons]
    ways.append(f"the roles yourself: roles={{pattern: role}}, each one of {', '.join(ROLES)}")
    count = "1 tensor" if len(undecided) == 1 else f"{len(undecided)} tensors"
    return "\n".join([f"The plan cannot decide {count}:", *lines, f"Pass {', or '.join(ways)}."])
