"""Deferred decisions: an i.i.d. N(0, 1) matrix W_0 revealed only where it is asked.

A product ``W_0 x`` is drawn given every answer already made. Forward queries span orthonormal directions ``Q``,
backward ones ``P``. For each new direction one fresh Gaussian vector is drawn, ``z`` for ``W_0 q`` and ``y`` for
``W_0' p``, and an answer depends on the past only by its component along the other side's directions:

    W_0 q  = z + P k,   k = Y' q - P' z          W_0' p = y + Q m,   m = Z' p - Q' y

with ``Z, Y`` the vectors drawn so far. The corrections ``k`` and ``m`` are the response (Onsager) term: with them
one matrix answers both kinds of query (``shared``), without them two independent ones do (``independent``).

The trained matrix is ``W = s W_0 + P D Q'`` with a scalar ``s`` and a small ``D``, so with ``x = Q c``

    W x = s Z c + P (s K + D) c.

A query passes over six factors: ``Q`` twice (coefficients, residual), ``Y`` and ``P`` once for ``k``, ``Z`` and ``P``
once for the answer; four when the feedback is independent. Nothing else is of size n. This is the exact law; only
directions below ``tolerance`` of the query's length are dropped.

With a ``resolution`` a remainder ``r q`` that is shorter is answered, ``r (z + P k)``, and forgotten: z is drawn for
this call alone, and q joins no basis. Each answer is a draw of ``W_0 x`` given all that is recorded, and the draw for a
batch is a joint one. Two answers to the same remainder are independent of each other, and the update sees none of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nfd.core.random import Increment
from nfd.wide.basis import (
    TOLERANCE,
    Basis,
    Expansion,
    Frame,
    add_combination,
    combination,
    expand,
    expand_by_length,
    inner,
    tiled,
    unit_rows,
    untiled,
    with_room,
)


@dataclass
class Side:
    """One kind of query: its directions, the Gaussian vectors drawn in answer, and the response matrix."""

    name: str
    directions: Basis  # Q, in the space of the queries
    drawn: Frame  # Z, in the space of the answers
    response: Tensor  # K, [other rank, rank] with room to grow


@dataclass(frozen=True)
class Answer:
    """``value`` = W x as ``[b, n]``; ``products`` Q'x of the queries with the recorded directions, [b, rank]."""

    value: Tensor
    products: Tensor


class RevealedMatrix:
    """W_0 of shape ``[n_out, n_in]`` with i.i.d. N(0, 1) entries, answered query by query."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        shared: bool,
        source: Increment,
        tolerance: float,
        resolution: float = 0.0,
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
        self.tolerance, self.resolution = tolerance, resolution
        self.passing = 0  # recorded queries with remainders that were not
        self.longest = 0.0  # of the gradients recorded so far
        self.forward = side("forward", n_in, n_out)
        self.backward = side("backward", n_out, n_in)

    @property
    def ranks(self) -> tuple[int, int]:
        """Directions revealed so far: (backward, forward), the shape of D."""
        return self.backward.directions.rank, self.forward.directions.rank

    @property
    def nbytes(self) -> int:
        """Bytes of the four factors, the responses and the Gram matrices."""
        sides = (self.forward, self.backward)
        return sum(f.nbytes for f in self._frames()) + sum(s.response.nbytes for s in sides)

    def ask(self, side: Side, x: Tensor, *, scale: Tensor | float, update: Tensor | None, record: bool) -> Answer:
        """``(scale W_0 + P D Q') x`` for the rows of ``x`` [b, n], or its transpose for the backward side.

        ``update`` is D (D' backward) with room to grow, or None for a matrix that carries no update. Rows that
        are not finite are answered by NaN and reveal nothing. With ``record=False`` the state stays as it was
        and the draw comes from a stream of its own: an exact conditional sample, consistent with every recorded
        answer, but not with other unrecorded ones.
        """
        unit, length, bad = unit_rows(x)
        expansion, kept = self._expanded(side, unit, length, record)
        other, rank, directions = self._other(side), side.directions.rank, expansion.directions
        coefficients = torch.cat([expansion.known, expansion.fresh], 1).mul_(length)
        products = expansion.products.mul_(length)
        scaled = coefficients * scale
        drawn = self._drawn(side, kept, directions.shape[1] - kept, record)
        if record:
            side.directions.extend(directions[:, :kept])
            side.drawn.append(drawn[:, :kept])
        known = side.drawn.rank
        value = combination(scaled[:, :known], side.drawn.tiles)
        add_combination(value, scaled[:, known:], drawn[:, kept:])
        P = other.directions.tiles
        s = P.shape[1]
        along = scaled.new_zeros(len(x), s) if update is None else products @ update[:s, :rank].T
        if self.shared:
            response = inner(directions, other.drawn.tiles) - inner(drawn, P)  # few rows first: half the time
            along.addmm_(scaled[:, :rank], side.response[:s, :rank].T).addmm_(scaled[:, rank:], response)
            if record:
                self._respond(side, other, rank, response[:kept].T)
        add_combination(value, along, P)
        answer = untiled(value, side.drawn.n)
        if bad:
            answer.masked_fill_(length.isnan(), torch.nan)
        return Answer(answer, torch.cat([products, coefficients[:, rank:known]], 1))

    def _expanded(self, side: Side, unit: Tensor, length: Tensor, record: bool) -> tuple[Expansion, int]:
        """The query in directions known and new, and how many of the new ones are to be recorded.

        A remainder is short relative to the query forward, to the longest query so far backward: gradients become short
        in training, and their remainders do not matter more for that.
        """
        if not record or self.resolution <= self.tolerance:
            expansion = expand(side.directions, unit, self.tolerance)
            return expansion, expansion.directions.shape[1] if record else 0
        shortest = np.full(len(unit), self.resolution)
        if side is self.backward:
            lengths = length.flatten().nan_to_num().double().cpu().numpy()
            self.longest = max(self.longest, float(lengths.max()))
            with np.errstate(divide="ignore", invalid="ignore"):
                shortest *= self.longest / lengths
        return expand_by_length(side.directions, unit, self.tolerance, shortest)

    def _drawn(self, side: Side, kept: int, passing: int, record: bool) -> Tensor:
        """Standard normal vectors, tiled: for directions that are kept, from the stream of this rank, then for others.

        What passes in a recorded query has a stream of its own.
        """
        rank = side.drawn.rank
        if not record:
            return self._normal(side, passing, "evaluate", rank)
        drawn = self._normal(side, kept, "reveal", rank)
        if not passing:
            return drawn
        self.passing += 1
        return torch.cat([drawn, self._normal(side, passing, "passing", self.passing)], 1)

    def _normal(self, side: Side, count: int, stream: str, number: int) -> Tensor:
        like = side.drawn.tiles
        z = torch.empty(count, side.drawn.n, dtype=like.dtype, device=like.device)
        if count:
            self.source.normal_(z, stream, side.name, number)
        return tiled(z)

    def _respond(self, side: Side, other: Side, rank: int, response: Tensor) -> None:
        """Record the response of the directions from ``rank`` on."""
        rows, fresh = response.shape
        side.response = with_room(side.response, rows, rank + fresh)
        side.response[:rows, rank : rank + fresh] = response
        other.response = with_room(other.response, rank + fresh, rows)

    def complete(self, seed: int) -> tuple[Tensor, Tensor]:
        """Dense forward and backward matrices, both ``[n_out, n_in]``, drawn given every answer.

        ``Z Q' + P Y' + P (K - Y' Q) Q' + (I - P P') G (I - Q Q')`` for shared feedback (the same matrix twice);
        ``Z Q' + G (I - Q Q')`` and ``P Y' + (I - P P') G~`` for independent feedback. O(n_out n_in) memory.
        """
        Q, Z, P, Y = (frame.rows for frame in self._frames())

        def fresh(name: str) -> Tensor:  # of this matrix alone: another one, completed by the same seed, has its own
            return self.source.normal_(Q.new_empty(Z.shape[1], Q.shape[1]), "complete", seed, name)

        def off(G: Tensor, rows: Tensor) -> Tensor:
            return G - (G @ rows.T) @ rows

        if not self.shared:
            return Z.T @ Q + off(fresh("forward"), Q), P.T @ Y + off(fresh("backward").T, P).T
        K = self.forward.response[: len(P), : len(Q)]
        W = Z.T @ Q + P.T @ (Y + (K - Y @ Q.T) @ Q) + off(off(fresh("forward"), Q).T, P).T
        return W, W

    def dense_update(self, update: Tensor) -> Tensor:
        """``P D Q'``."""
        P, Q = self.backward.directions.rows, self.forward.directions.rows
        return P.T @ update[: len(P), : len(Q)] @ Q

    def reserve(self, rank: int) -> None:
        """Make room for ``rank`` directions on each side, so that growing never copies."""
        for frame in self._frames():
            frame.reserve(min(rank, frame.n))

    def map(self, fn: Callable[[Tensor], Tensor]) -> None:
        """Apply a change of dtype or device to the state; a tolerance that is the default stays the default."""
        before = self.forward.response.dtype
        for frame in self._frames():
            frame.map(fn)
        for side in (self.forward, self.backward):
            side.response = fn(side.response)
        if self.tolerance == TOLERANCE[before]:
            self.tolerance = TOLERANCE[self.forward.response.dtype]

    def state(self) -> dict[str, Tensor]:
        """Copies of everything that was revealed; vectors as ``[rank, n]``."""
        state = {}
        for side in (self.forward, self.backward):
            state[f"{side.name}.directions"] = side.directions.rows
            state[f"{side.name}.gram"] = side.directions.gram.clone()
            state[f"{side.name}.drawn"] = side.drawn.rows
            if self.shared:
                state[f"{side.name}.response"] = side.response.clone()
        return state | {
            "passing": torch.tensor(self.passing, device="cpu"),
            "longest": torch.tensor(self.longest, dtype=torch.float64, device="cpu"),
        }

    def misfit(self, state: dict[str, Tensor]) -> str | None:
        """The first tensor of a saved layer whose shape contradicts the others."""
        n_in, n_out = self.forward.directions.n, self.backward.directions.n
        s, r = len(state["backward.directions"]), len(state["forward.directions"])
        exact = {
            "forward.directions": (r, n_in),
            "forward.drawn": (r, n_out),
            "backward.directions": (s, n_out),
            "backward.drawn": (s, n_in),
        }
        least = {"update": (s, r), "forward.response": (s, r), "backward.response": (r, s)}
        misfits = [key for key in ("passing", "longest") if state[key].dim()]
        misfits += [key for key, shape in exact.items() if state[key].shape != shape]
        misfits += [key for key, shape in least.items() if key in state and not _covers(state[key], shape)]
        return misfits[0] if misfits else None

    def restore(self, state: dict[str, Tensor], source: Increment) -> None:
        """Hold exactly what ``state`` returned, of this source."""
        self.source, self.passing, self.longest = source, int(state["passing"]), float(state["longest"])
        for side in (self.forward, self.backward):
            like = side.drawn.tiles
            side.directions.restore(state[f"{side.name}.directions"], state[f"{side.name}.gram"])
            side.drawn.replace(state[f"{side.name}.drawn"].to(like))
            if self.shared:
                side.response = state[f"{side.name}.response"].to(like, copy=True)

    def _other(self, side: Side) -> Side:
        return self.backward if side is self.forward else self.forward

    def _frames(self) -> tuple[Frame, Frame, Frame, Frame]:
        """Q, Z, P, Y."""
        return (
            self.forward.directions,
            self.forward.drawn,
            self.backward.directions,
            self.backward.drawn,
        )


def _covers(tensor: Tensor, shape: tuple[int, int]) -> bool:
    return tensor.dim() == 2 and all(have >= need for have, need in zip(tensor.shape, shape, strict=True))
