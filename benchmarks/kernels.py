"""The infinite-depth kernels against neural-tangents at L = 256, on a Gram matrix of 1,000 digits.

neural-tangents needs an old JAX, so it runs in an environment of its own, before ours:

    python3 -m venv nt && nt/bin/pip install 'jax==0.4.23' 'jaxlib==0.4.23' 'numpy<2' 'scipy<1.13' neural-tangents
    .venv/bin/python -m benchmarks.kernels inputs
    nt/bin/python benchmarks/kernels.py theirs
    .venv/bin/python -m benchmarks.kernels ours
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path("out/kernels")
DEPTH = 256
KINDS = ("nngp", "ntk")


def inputs() -> None:
    """Write the inputs that both sides read."""
    from nfd.data.digits import digits

    FOLDER.mkdir(parents=True, exist_ok=True)
    np.save(FOLDER / "inputs.npy", digits().inputs[:1000].double().numpy())


def theirs() -> None:
    """Eq. 1 at depth L and infinite width in neural-tangents."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from neural_tangents import stax

    def dense(scale: float) -> Any:
        return stax.Dense(1, W_std=scale, b_std=None)

    branch = stax.serial(stax.Relu(), dense(math.sqrt(1 / DEPTH)))
    block = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
    _, _, kernel = stax.serial(dense(1.0), *([block] * DEPTH), dense(1.0))
    x = np.load(FOLDER / "inputs.npy")
    for kind in KINDS:
        kernel(x, None, kind)  # compile
        start = time.perf_counter()
        gram = np.asarray(kernel(x, None, kind))
        np.savez(FOLDER / f"theirs-{kind}.npz", gram=gram, seconds=time.perf_counter() - start)


def ours() -> None:
    """Infinite depth and depth L here, compared."""
    import nfd
    from nfd.limits.table import table

    x = np.load(FOLDER / "inputs.npy")
    for kind in KINDS:
        stored = np.load(FOLDER / f"theirs-{kind}.npz")
        table.cache_clear()
        start = time.perf_counter()
        limit, bound = nfd.kernel(x, kind=kind, return_error=True)
        seconds = time.perf_counter() - start
        finite = nfd.kernel(x, kind=kind, depth=DEPTH)
        scale = np.sqrt(np.outer(np.diag(limit), np.diag(limit)))
        apart = np.abs(stored["gram"] - finite).max()
        error = (np.abs(stored["gram"] - limit) / scale).max()
        print(
            f"{kind}: neural-tangents {stored['seconds']:.1f} s, nfd {seconds:.2f} s, ratio "
            f"{stored['seconds'] / seconds:.0f}; to infinite depth: neural-tangents at L = {DEPTH} {error:.1e}, nfd "
            f"{bound:.1e}; same depth, difference {apart:.1e}"
        )


if __name__ == "__main__":
    {"inputs": inputs, "theirs": theirs, "ours": ours}[sys.argv[1]]()
