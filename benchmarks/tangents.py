"""The opponent of the kernels: Eq. 1 at depth L and infinite width in neural-tangents.

It needs an old JAX, so this file runs in an environment of its own (``make bench-neural-tangents`` makes it), knows
nothing of ours, and reads and writes files: ``tangents.py INPUTS.npy DEPTH KIND REPEATS OUT.npz``.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np


def main(inputs: str, depth: int, kind: str, repeats: int, out: str) -> None:
    """Write the Gram matrix and the seconds it took, compilation apart, some times."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from neural_tangents import stax

    def dense(scale: float) -> Any:
        return stax.Dense(1, W_std=scale, b_std=None)

    branch = stax.serial(stax.Relu(), dense(math.sqrt(1 / depth)))
    block = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
    _, _, kernel = stax.serial(dense(1.0), *([block] * depth), dense(1.0))
    x = np.load(inputs)
    compiled = jax.jit(lambda x: kernel(x, None, kind)).lower(x).compile()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        gram = np.asarray(compiled(x))
        seconds.append(time.perf_counter() - start)
    np.savez(out, gram=gram, seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
