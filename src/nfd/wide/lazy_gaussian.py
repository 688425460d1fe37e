"""Deferred decisions: an i.i.d. N(0, 1) matrix W_0 that is drawn only where it is asked.

A product ``W_0 x`` is drawn given every answer already made. Forward queries span orthonormal
directions ``Q``, backward ones ``P``. For each new direction one fresh Gaussian vector is drawn,
``z`` for ``W_0 q`` and ``y`` for ``W_0' p``, and an answer depends on the past only by its
component along the other side's directions:

    W_0 q  = z + P k,   k = Y' q - P' z          W_0' p = y + Q m,   m = Z' p - Q' y

with ``Z, Y`` the vectors drawn so far. The corrections ``k`` and ``m`` are the response (Onsager)
term: with them one matrix answers both kinds of query (``shared``), without them two independent
ones do (``independent``).

The trained matrix is ``W = s W_0 + P D Q'`` with a scalar ``s`` and a small ``D``, so with ``x = Q
c``

    W x = s Z c + P (s K + D) c.

A query passes over six factors: ``Q`` twice (coefficients, residual), ``Y`` and ``P`` once for
``k``, ``Z`` and ``P`` once for the answer; four when the feedback is independent. Nothing else is
of size n. This is the exact law; only directions below ``TOLERANCE`` of the query's length are
dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nfd.core.random import Increment
from nfd.wide.basis import (
    TOLERANCE,
    Basis,
    Frame,
    add_combination,
    combination,
    expand,
    inner,
    scratch,
    tiled,
    unit_rows,
    untiled,
    with_room,
)


@dataclass
class Side:
    """One kind of query: forward or backward.

    Attributes:
        directions: Q, in the space of the queries.
        drawn: Z, the Gaussian vectors drawn in answer, in the space of the answers.
        response: K, [other rank, rank] with room to grow.
    """

    name: str
    directions: Basis
    drawn: Frame
    response: Tensor


class LazyGaussian:
    """W_0 of shape ``[n_out, n_in]`` with i.i.d. N(0, 1) entries, answered query by query."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        shared: bool,
        source: Increment,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def side(name: str, queries: int, answers: int) -> Side:
            return Side(
                name,
                directions=Basis(queries, dtype=dtype, device=device),
                drawn=Frame(answers, dtype=dtype, device=device),
                response=torch.zeros(0, 0, dtype=dtype, device=device),
            )

        self.shared = shared
        self.source = source
        self.forward = side("forward", n_in, n_out)
        self.backward = side("backward", n_out, n_in)

    @property
    def ranks(self) -> tuple[int, int]:
        """Directions revealed so far: (backward, forward), the shape of D."""
        return self.backward.directions.rank, self.forward.directions.rank

    def ask(
        self, side: Side, x: Tensor, *, scale: Tensor | float, update: Tensor | None, record: bool
    ) -> tuple[Tensor, Tensor]:
        """Answer ``(scale W_0 + P D Q') x`` for rows x [b, n].

        For the backward side it is the transpose. Also returns the products Q'x with the recorded
        directions, [b, rank]. ``update`` is D (D' backward) with room to grow, or None for a matrix
        that carries no update. Rows that are not finite are answered by NaN and reveal nothing.
        With ``record=False`` the state stays as it was and the draw comes from a stream of its own:
        an exact conditional sample, consistent with every recorded answer, but not with other
        unrecorded ones.
        """
        unit, length, has_bad_rows = unit_rows(x)
        products, inside, fresh, directions = expand(side.directions, unit, TOLERANCE[x.dtype])
        other = self.backward if side is self.forward else self.forward
        rank = side.directions.rank
        coefficients = torch.cat([inside, fresh], 1).mul_(length)
        products = products.mul_(length)
        scaled = coefficients * scale
        drawn = self._normal(side, directions.shape[1], "reveal" if record else "evaluate")
        P = other.directions.tiles
        p, s, width = P.shape
        value = scratch("answer", x, p, len(x), width)
        if record:
            side.directions.extend(directions)
            side.drawn.append(drawn)
            combination(scaled, side.drawn.tiles, value)
        else:
            combination(scaled[:, :rank], side.drawn.tiles, value)
            add_combination(value, scaled[:, rank:], drawn)
        along = scaled.new_zeros(len(x), s) if update is None else products @ update[:s, :rank].T
        if self.shared:
            # In this order, the block with few rows first, a product takes half the time.
            response = inner(directions, other.drawn.tiles) - inner(drawn, P)
            along.addmm_(scaled[:, :rank], side.response[:s, :rank].T)
            along.addmm_(scaled[:, rank:], response)
            if record:
                new_rank = rank + len(response)
                side.response = with_room(side.response, s, new_rank)
                side.response[:s, rank:new_rank] = response.T
                other.response = with_room(other.response, new_rank, s)
        add_combination(value, along, P)
        answer = untiled(value, side.drawn.n)
        if has_bad_rows:
            answer.masked_fill_(length.isnan(), torch.nan)
        if not record:
            return answer, products
        return answer, torch.cat([products, coefficients[:, rank:]], 1)

    def _normal(self, side: Side, count: int, stream: str) -> Tensor:
        """Draw standard normal vectors, tiled, from the stream of this rank."""
        like = side.drawn.tiles
        z = scratch("drawn", like, count, side.drawn.n)
        if count:
            self.source.normal_(z, stream, side.name, side.drawn.rank)
        return tiled(z)

    def complete(self, seed: int) -> tuple[Tensor, Tensor]:
        """Draw dense forward and backward matrices given every answer, both ``[n_out, n_in]``.

        ``Z Q' + P Y' + P (K - Y' Q) Q' + (I - P P') G (I - Q Q')`` for shared feedback (the same
        matrix twice); ``Z Q' + G (I - Q Q')`` and ``P Y' + (I - P P') G~`` for independent
        feedback. O(n_out n_in) memory.
        """
        Q, Z, P, Y = (frame.rows for frame in self._frames())

        def fresh(name: str) -> Tensor:
            # From the stream of this matrix: another one, completed by the same seed, has another.
            return self.source.normal_(Q.new_empty(Z.shape[1], Q.shape[1]), "complete", seed, name)

        def outside(G: Tensor, rows: Tensor) -> Tensor:
            return G - (G @ rows.T) @ rows

        if not self.shared:
            forward = Z.T @ Q + outside(fresh("forward"), Q)
            backward = P.T @ Y + outside(fresh("backward").T, P).T
            return forward, backward
        K = self.forward.response[: len(P), : len(Q)]
        unseen = outside(outside(fresh("forward"), Q).T, P).T
        W = Z.T @ Q + P.T @ (Y + (K - Y @ Q.T) @ Q) + unseen
        return W, W

    def dense_update(self, update: Tensor) -> Tensor:
        """``P D Q'``."""
        P = self.backward.directions.rows
        Q = self.forward.directions.rows
        return P.T @ update[: len(P), : len(Q)] @ Q

    def reserve(self, rank: int) -> None:
        """Make room for ``rank`` directions on each side, so that growing never copies."""
        for frame in self._frames():
            frame.reserve(min(rank, frame.n))

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device to the state."""
        for frame in self._frames():
            frame.map(fn)
        for side in (self.forward, self.backward):
            side.response = fn(side.response)

    def state(self) -> dict[str, Tensor]:
        """Copy everything that was revealed; vectors are ``[rank, n]``."""
        state = {}
        for side in (self.forward, self.backward):
            state[f"{side.name}.directions"] = side.directions.rows
            state[f"{side.name}.gram"] = side.directions.gram.clone()
            state[f"{side.name}.drawn"] = side.drawn.rows
            if self.shared:
                state[f"{side.name}.response"] = side.response.clone()
        return state

    def restore(self, state: dict[str, Tensor], source: Increment) -> None:
        """Hold exactly what ``state`` returned; new draws come from this source."""
        self.source = source
        for side in (self.forward, self.backward):
            like = side.drawn.tiles
            side.directions.restore(state[f"{side.name}.directions"], state[f"{side.name}.gram"])
            side.drawn.replace(state[f"{side.name}.drawn"].to(like))
            if self.shared:
                side.response = state[f"{side.name}.response"].to(like, copy=True)

    def _frames(self) -> tuple[Frame, Frame, Frame, Frame]:
        """The four factors Q, Z, P and Y."""
        return (
            self.forward.directions,
            self.forward.drawn,
            self.backward.directions,
            self.backward.drawn,
        )
