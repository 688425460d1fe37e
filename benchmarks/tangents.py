"""The opponent of the kernels: Eq. 1 at depth L and infinite width in neural-tangents.

It needs an old JAX, so this file runs in an environment of its own (``make bench-neural-tangents`` makes it), knows
nothing of ours, and is told by files: ``tangents.py INPUTS.npy DEPTH KIND OUT.npz``.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np

_REPEATS = 3


def main(inputs: str, depth: int, kind: str, out: str) -> None:
    """Write the Gram matrix and the seconds it took, compilation apart, some times."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from neural_tangents import stax

    def dense(scale: float) -> Any:
        return stax.Dense(1, W_std=scale, b_std=None)

    branch = stax.serial(stax.Relu(), dense(math.sqrt(1 / depth)))
    block = stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
    _, _, kernel = stax.serial(dense(1.0), *([block] * depth), dense(1.0))
    compiled = jax.jit(lambda x: kernel(x, None, kind))
    x = np.load(inputs)
    compiled(x).block_until_ready()
    seconds = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        gram = np.asarray(compiled(x))
        seconds.append(time.perf_counter() - start)
    np.savez(out, gram=gram, seconds=seconds)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
