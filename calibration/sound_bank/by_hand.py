"""Scaling as users write it: by shapes beside those of the base, as microsoft/mup does, with no
word of nfd.

A matrix whose fan-in grows has a rate of 1/in under Adam; one whose fan-out is fixed starts lower
by the root of the fan-in, too. Branches have the model's own factor, which is 1/L.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import nn

from calibration.sound_bank.cases import BASE, BY_NAME, Case, Mistake

# Tables that are looked up or added, by the ends of their names: width is their last axis.
_TABLES = ("places", "special", "pos", "queries")
_SOUND = Mistake("")


class Fans(NamedTuple):
    """How much larger the fans of a tensor are than in the base."""

    fan_in: float
    fan_out: float


@cache
def _base_shapes(name: str) -> dict[str, tuple[int, ...]]:
    with torch.random.fork_rng():
        base = BY_NAME[name].make_model(*BASE)
    return {key: tuple(p.shape) for key, p in base.named_parameters()}


def _fans(case: Case, model: nn.Module) -> dict[str, Fans]:
    """The fans of every tensor, over those in the base."""
    shapes = _base_shapes(case.name)
    fans = dict[str, Fans]()
    for name, p in model.named_parameters():
        shape = shapes[name if name in shapes else _of_second_block(name)]
        ratios = [large / small for large, small in zip(p.shape, shape, strict=True)]
        owner = model.get_submodule(name.rpartition(".")[0])
        is_table = isinstance(owner, nn.Embedding) or name.endswith(_TABLES)
        if p.ndim < 2 or is_table:
            fans[name] = Fans(1.0, ratios[-1] if ratios else 1.0)
        elif isinstance(owner, nn.ConvTranspose1d):
            fans[name] = Fans(ratios[0], ratios[1])
        else:
            fans[name] = Fans(ratios[1], ratios[0])
    return fans


def _of_second_block(name: str) -> str:
    """The same tensor in the last block of the base, which is as large as those beyond."""
    stack, _, rest = name.partition(".")
    return f"{stack}.{BASE[1] - 1}.{rest.partition('.')[2]}"


def _block_number(name: str) -> int:
    """The number of the block of a tensor; 0 outside of blocks."""
    _, number, *_ = [*name.split("."), ""]
    return int(number) if number.isdigit() else 0


class ByHand:
    """The model of a case, scaled by hand, with its mistake or without: a function of its size."""

    def __init__(self, case: Case, *, is_broken: bool) -> None:
        self.case = case
        self.mistake = (case.mistake if is_broken else None) or _SOUND
        self.rule_has_depth = case.axes == "both"

    def __call__(self, width: int, depth: int) -> nn.Module:
        arguments: dict[str, Any] = {}
        if self.rule_has_depth:
            arguments["factor"] = BASE[1] / depth
        for name, value in self.mistake.code.items():
            arguments[name] = value(width, depth)
        model = self.case.make_model(width, depth, **arguments)
        wider, deeper = width / BASE[0], depth / BASE[1]
        fans = _fans(self.case, model)
        for name, p in model.named_parameters():
            ratio = fans[name]
            self._start(name, p, ratio, wider, deeper)
            p.by_hand = self._rate(name, p, ratio, wider, deeper)  # type: ignore[attr-defined]
            p.is_left_out = self._is_left_out(name)  # type: ignore[attr-defined]
        return model

    @torch.no_grad()
    def _start(self, name: str, p: nn.Parameter, ratio: Fans, wider: float, deeper: float) -> None:
        if p.ndim < 2:
            if name.endswith("bias") or ".bias_" in name:
                p.zero_()
            return
        # PyTorch's constructors have the root of the fan-in.
        if ratio.fan_in > 1 and ratio.fan_out == 1:
            p.mul_(ratio.fan_in**-0.5)
        p.mul_(power(self.mistake.std, name, wider, deeper))

    def _rate(self, name: str, p: nn.Parameter, ratio: Fans, wider: float, deeper: float) -> float:
        rate = 1 / ratio.fan_in
        if self.case.optimizer == "sgd":
            rate *= ratio.fan_out
            # The branch's factor multiplies its gradient, and its effect.
            rate *= deeper if name.startswith("blocks.") else 1.0
        return rate * power(self.mistake.rate, name, wider, deeper)

    def _is_left_out(self, name: str) -> bool:
        few = self.mistake.optimised
        return few is not None and _block_number(name) >= few

    def make_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """AdamW or SGD at rates by hand."""
        lr = groups[0]["lr"]
        tensors = [p for group in groups for p in group["params"]]
        parts = []
        for p in tensors:
            if p.is_left_out:
                continue
            decay = self.mistake.decay if p.ndim > 1 else 0.0
            parts.append({"params": [p], "lr": lr * p.by_hand, "weight_decay": decay})
        if self.case.optimizer == "sgd":
            return torch.optim.SGD(parts)
        return torch.optim.AdamW(parts, eps=self.mistake.eps)


def power(powers: Any, name: str, wider: float, deeper: float) -> float:
    """The factor by which a tensor of this name is wrong."""
    factor = 1.0
    for pattern, (of_width, of_depth) in powers.items():
        if fnmatchcase(name, pattern):
            factor *= wider**of_width * deeper**of_depth
    return factor


def broken_model(case: Case) -> Callable[[int, int], nn.Module]:
    """The model of a plan whose code was changed after it was planned."""
    assert case.mistake is not None
    code = case.mistake.code

    def make_model(width: int, depth: int) -> nn.Module:
        return case.make_model(width, depth, **{k: v(width, depth) for k, v in code.items()})

    return make_model
