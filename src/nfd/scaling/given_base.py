"""``GivenBase``: what the user said of the smaller model that was tuned."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import nn

from nfd.core.errors import MOST, WIDEST, InputError, InputTypeError, check_callable, check_count
from nfd.scaling.entries import Base, MakeModel, check_constructor, instance, made_again
from nfd.scaling.model import Where, blocks_of, check_stored, tensors


@dataclass(frozen=True)
class GivenBase:
    """The arguments ``base`` and ``make_model`` of ``nfd.plan``."""

    model: nn.Module | None = None
    width: int | None = None
    depth: int | None = None
    make_model: MakeModel | None = None

    @classmethod
    def checked(cls, base: nn.Module | tuple[int | None, int | None] | None, make_model: MakeModel | None) -> Self:
        """From the arguments; ValueError or TypeError where they are none of these or say it twice."""
        if isinstance(base, nn.Module):
            if make_model is not None:
                raise InputError("base is the tuned model itself: pass it alone, without make_model.")
            check_stored(base)
            return cls(base)
        if base is not None and (not isinstance(base, tuple) or len(base) != 2):
            raise InputTypeError(
                f"base must be the tuned model, or its size as a pair (width, depth); got {base!r} of "
                f"{type(base).__name__}."
            )
        width, depth = (
            None if size is None else check_count(f"the {axis} of base", size, maximum=most)
            for size, axis, most in zip(base or (None, None), ("width", "depth"), (WIDEST, MOST), strict=True)
        )
        if make_model is not None:
            check_callable("make_model", make_model, "a function of (width, depth)")
            if width is None:
                raise InputError("make_model needs base=(width, depth), the size at which you tuned.")
        return cls(None, width, depth, make_model)

    @property
    def is_open(self) -> bool:
        """Whether nothing was said."""
        return self.model is None and self.width is None and self.depth is None

    @property
    def size(self) -> tuple[int, int] | None:
        """The arguments of the constructor that build the base; None without one."""
        return None if self.make_model is None or self.width is None or self.depth is None else (self.width, self.depth)

    def instance(self, *, depth: int, times: int = 1, seed: int = 0) -> nn.Module:
        """What the constructor builds at so many times the base's width."""
        assert self.make_model is not None
        assert self.width is not None
        return instance(self.make_model, times * self.width, depth, seed=seed)

    def as_deep(self, ratio: float) -> nn.Module | None:
        """An instance as wide as the base, so many times as deep; None where nothing builds it."""
        if self.make_model is None or self.depth is None:
            return None
        return self.instance(depth=round(ratio * self.depth))

    def completed(self, model: nn.Module, where: Where) -> Self:
        """With the depth at which the constructor builds as many tensors as the model has, where none was said.

        Raises:
            ValueError: where there is no such depth.
        """
        if self.make_model is None or self.depth is not None:
            return self
        depth = max(len(blocks_of(model, where)), 1)  # a unit of depth may be two blocks, or none that is found
        lacking, one_more = (len(tensors(model)) - len(tensors(self.instance(depth=depth + k))) for k in (0, 1))
        if lacking and lacking != one_more:
            more, rest = divmod(lacking, lacking - one_more)
            if rest or depth + more < 1:
                raise InputError(
                    f"make_model({self.width}, depth) has as many tensors as the model at no depth. Pass "
                    "base=(width, depth), the size at which you tuned."
                )
            depth += more
        return replace(self, depth=depth)

    def built(self, where: Where) -> nn.Module | None:
        """The base: itself, or from the constructor; None without either.

        Raises:
            ValueError: where arguments of the constructor seem to be (depth, width).
        """
        if self.make_model is None or self.width is None or self.depth is None:
            return self.model
        base = self.instance(depth=self.depth)
        if len(blocks_of(base, where)) != self.depth or self.depth == self.width:  # else it is as deep as was asked for
            check_constructor(self.make_model, [self.width, 2 * self.width], [self.depth])
        return base

    def begun(self, base: nn.Module, where: Where) -> Base:
        """What is known of the base's start; with a constructor also which of its tensors another seed builds alike."""
        own = tensors(base)
        again = (
            made_again(own, tensors(self.instance(depth=self.depth, seed=1))) if self.depth and self.make_model else {}
        )
        return Base(own, blocks_of(base, where), again)

    def growing(self, model: nn.Module, base: nn.Module, where: Where) -> dict[str, tuple[bool, ...]]:
        """Which dimensions of the model's tensors grow with width, from two instances."""
        own, blocks = tensors(model), blocks_of(model, where)
        grows = Base(tensors(base), blocks_of(base, where)).differing(own, blocks)
        if self.make_model is not None and not any(any(dims) for dims in grows.values()):
            assert self.depth is not None
            wide = self.instance(depth=self.depth, times=2)
            grows = Base(tensors(wide), blocks_of(wide, where)).differing(own, blocks)
        return grows
