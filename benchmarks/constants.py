"""The constants of the cost model in ``nfd.nets.matrix_cost``, measured on this machine.

python -m benchmarks.constants    # a minute on two idle cores; paste what it prints

Each is the shortest of several timings of the work that the model counts it for. Their ratios decide which way to hold
weights is taken to be the cheapest; so measure all of them at once, with nothing else running.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import nfd
from benchmarks.measure import best, seconds
from nfd.core.random import Increment, generator
from nfd.nets import matrix_cost
from nfd.nets.recorded import RecordedLinear
from nfd.nets.rotated import RotatedMatrix

_FLOAT = 4
_FEW, _MANY, _RANK = 8, 64, 256  # rows of a batch, and directions
_STEPS = 8


def measured(width: int = 8192, repeat: int = 7) -> dict[str, float]:
    """Every constant by its name; ``width`` is that of the large matrices."""
    transform, term = _transforms(width, repeat)
    row, layer = _structured_step(repeat)
    return {
        "PRODUCT_RATE": _product_rate(width, repeat),
        "MATRIX_RATE": _matrix_rate(width // 2, repeat),
        "DRAW_RATE": _draw_rate(width, repeat),
        "_QUERY_SECONDS": _query_seconds(repeat),
        "_TRANSFORM_SECONDS": transform,
        "_TERM_SECONDS": term,
        "_LAYER_SECONDS": max(layer - term, 0.0),
        "_RECORDED_SECONDS": max(_recorded_step(repeat) - term, 0.0),
        "_ROW_SECONDS": row,
        "STORED_SECONDS": _stored_step(repeat),
    }


def _product_rate(n: int, repeat: int) -> float:
    """Floating-point operations a second of few rows times many directions."""
    x, basis = torch.randn(2 * _FEW, n), torch.randn(n, _RANK)
    return 2 * x.numel() * _RANK / best(lambda: x @ basis, repeat)


def _matrix_rate(n: int, repeat: int) -> float:
    """Bytes a second of a step of SGD on a dense matrix: two are read and one is written."""
    weight, gradient = torch.zeros(n, n), torch.ones(n, n)
    return 3 * _FLOAT * n * n / best(lambda: weight.add_(gradient, alpha=-0.1), repeat)


def _draw_rate(n: int, repeat: int) -> float:
    """Normal numbers a second."""
    stream, rows = generator(0, "constants"), torch.empty(_RANK, n)
    return rows.numel() / best(lambda: rows.normal_(generator=stream), repeat)


def _transforms(n: int, repeat: int) -> tuple[float, float]:
    """Seconds of a number in one Hadamard transform, and of a matrix and step beside its four transforms."""

    def step(size: int, rows: int) -> float:
        cpu = torch.device("cpu")
        matrix = RotatedMatrix(size, size, source=Increment(0), name="constants", dtype=torch.float32, device=cpu)
        x = torch.randn(rows, size)

        def both() -> None:
            matrix.product(x)
            matrix.transposed_product(x)

        both()
        return best(both, repeat)

    term = step(_FEW, 1)
    return max(step(n, 2 * _FEW) - term, 0.0) / (4 * 2 * _FEW * n), term


def _structured_step(repeat: int) -> tuple[float, float]:
    """Seconds of a row, and of a structured layer and step without any, where products cost next to nothing."""
    few, many = (
        _step(lambda: nfd.StructuredLinear(64, 64, resolution=0.99, seed=0), rows, repeat) for rows in (_FEW, _MANY)
    )
    row = max(many - few, 0.0) / (_MANY - _FEW)
    return row, max(few - _FEW * row, 0.0)


def _recorded_step(repeat: int) -> float:
    """Seconds of a step of a layer whose update is recorded, where products cost next to nothing."""
    samples = _STEPS * _FEW
    return _step(lambda: RecordedLinear(nfd.StructuredLinear(64, 64, seed=0), samples), _FEW, repeat)


def _stored_step(repeat: int) -> float:
    """Seconds of a step of a stored matrix, where products cost next to nothing."""
    return _step(lambda: torch.nn.Linear(64, 64, bias=False), _FEW, repeat)


def _query_seconds(repeat: int) -> float:
    """Seconds of a query of a deferred layer, of which a step has two."""
    return _step(lambda: nfd.DeferredLinear(256, 256, seed=0), _FEW, repeat) / 2


def _step(make: Callable[[], torch.nn.Module], rows: int, repeat: int) -> float:
    """Seconds of a training step of one layer: the mean over its first steps, each the shortest of several."""
    trainings = [_timed_steps(make(), rows) for _ in range(repeat + 1)]
    return sum(float(min(of_step)) for of_step in zip(*trainings[1:], strict=True)) / _STEPS  # the first one warms up


def _timed_steps(layer: torch.nn.Module, rows: int) -> list[float]:
    optimizer = nfd.SGD([{"params": list(layer.parameters()), "lr": 0.01}])
    stream, size = generator(0, "constants", "rows"), (_STEPS, rows, int(layer.in_features))  # type: ignore[arg-type]

    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        layer(x.requires_grad_()).square().sum().backward()
        optimizer.step()

    return [seconds(partial(step, x)) for x in torch.randn(*size, generator=stream)]


def main() -> None:
    """Print what to paste, with what stands there."""
    for name, value in measured().items():
        print(f"{name} = {value:.1e}  # was {getattr(matrix_cost, name):.1e}")


if __name__ == "__main__":
    main()
