"""The state of a revealed matrix as named tensors, and back."""

from __future__ import annotations

from torch import Tensor

from nfd.nets.revealed import RevealedMatrix


def factors(matrix: RevealedMatrix) -> dict[str, Tensor]:
    """Copies of everything the matrix has revealed; vectors as ``[rank, n]``."""
    state = {}
    for side in (matrix.forward, matrix.backward):
        state[f"{side.name}.directions"] = side.directions.rows
        state[f"{side.name}.gram"] = side.directions.gram.clone()
        state[f"{side.name}.drawn"] = side.drawn.rows
        if matrix.shared:
            state[f"{side.name}.response"] = side.response.clone()
    return state


def misfit(matrix: RevealedMatrix, state: dict[str, Tensor]) -> str:
    """The first tensor of a saved layer whose shape contradicts the others; empty when none does."""
    n_in, n_out = matrix.forward.directions.n, matrix.backward.directions.n
    s, r = len(state["backward.directions"]), len(state["forward.directions"])
    exact = {
        "forward.directions": (r, n_in),
        "forward.drawn": (r, n_out),
        "backward.directions": (s, n_out),
        "backward.drawn": (s, n_in),
    }
    least = {"update": (s, r), "forward.response": (s, r), "backward.response": (r, s)}
    wrong = [key for key, shape in exact.items() if state[key].shape != shape]
    wrong += [key for key, shape in least.items() if key in state and not _covers(state[key], shape)]
    return wrong[0] if wrong else ""


def _covers(tensor: Tensor, shape: tuple[int, int]) -> bool:
    return tensor.dim() == 2 and all(have >= need for have, need in zip(tensor.shape, shape, strict=True))


def restore(matrix: RevealedMatrix, state: dict[str, Tensor]) -> None:
    """Hold exactly what ``factors`` saved."""
    for side in (matrix.forward, matrix.backward):
        like = side.drawn.tiles
        side.directions.restore(state[f"{side.name}.directions"], state[f"{side.name}.gram"])
        side.drawn.replace(state[f"{side.name}.drawn"].to(like))
        if matrix.shared:
            side.response = state[f"{side.name}.response"].to(like, copy=True)
