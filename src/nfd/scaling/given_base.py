"""``GivenBase``: what the user said of the smaller model that was tuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from torch import nn

from nfd.core.errors import MOST, WIDEST, InputError, InputTypeError, check_callable, check_count
from nfd.scaling.blocks import blocks_of
from nfd.scaling.sizes import MakeModel, check_constructor, growing, instance
from nfd.scaling.tensors import check_stored, tensors


@dataclass(frozen=True)
class GivenBase:
    """The arguments ``base``, ``base_width``, ``base_depth`` and ``make_model`` of ``nfd.plan``."""

    model: nn.Module | None = None
    width: int | None = None
    depth: int | None = None
    make_model: MakeModel | None = None

    @classmethod
    def checked(
        cls, model: nn.Module | None, width: int | None, depth: int | None, make_model: MakeModel | None
    ) -> Self:
        """From the arguments; ValueError or TypeError where they are none of these or say it twice."""
        if model is not None and not isinstance(model, nn.Module):
            raise InputTypeError(f"base must be a torch.nn.Module; got {type(model).__name__}.")
        if model is not None:
            check_stored(model)
        width = None if width is None else check_count("base_width", width, maximum=WIDEST)
        depth = None if depth is None else check_count("base_depth", depth, maximum=MOST)
        if model is not None and (width, depth, make_model) != (None, None, None):
            raise InputError(
                "base is the tuned model itself: pass it alone, without base_width, base_depth or make_model."
            )
        if make_model is not None and width is None:
            raise InputError("make_model needs base_width, the width at which you tuned (and base_depth, its depth).")
        if make_model is not None:
            check_callable("make_model", make_model, "a function of (width, depth)")
        return cls(model, width, depth, make_model)

    @property
    def is_open(self) -> bool:
        """Whether nothing was said."""
        return self.model is None and self.width is None and self.depth is None

    def size(self, blocks: int) -> tuple[int, int] | None:
        """The arguments of the constructor that build the base of a model with so many blocks; None without one."""
        return None if self.make_model is None or self.width is None else (self.width, self.depth or max(blocks, 1))

    def instance(self, *, depth: int, times: int = 1) -> nn.Module:
        """What the constructor builds at so many times the base's width."""
        assert self.make_model is not None
        assert self.width is not None
        return instance(self.make_model, times * self.width, depth, seed=0)

    def as_deep(self, ratio: float) -> nn.Module | None:
        """An instance as wide as the base, so many times as deep; None where nothing builds it."""
        if self.make_model is None or self.depth is None:
            return None
        return self.instance(depth=round(ratio * self.depth))

    def built(self, model: nn.Module, blocks: str | Sequence[str] | None) -> nn.Module | None:
        """The base: itself, or from the constructor as deep as the model where no depth was said; None without either.

        Raises:
            ValueError: where arguments of the constructor seem to be (depth, width).
        """
        if self.make_model is None or self.width is None:
            return self.model
        depth = self.depth or max(len(blocks_of(model, blocks)), 1)
        base = self.instance(depth=depth)
        if len(blocks_of(base, blocks)) != depth or depth == self.width:  # else it is as deep as was asked for
            check_constructor(self.make_model, [self.width, 2 * self.width], [depth])
        return base

    def growing(self, model: nn.Module, base: nn.Module) -> dict[str, tuple[bool, ...]]:
        """Which dimensions of the model's tensors grow with width, from two instances."""
        grows = growing(base, model)
        if self.make_model is not None and not any(any(dims) for dims in grows.values()):
            grows = growing(base, self.instance(depth=self.depth or 2, times=2))
        return {name: grows.get(name, (False,) * len(t.shape)) for name, t in tensors(model).items()}
