"""The opponent of the kernels: Eq. 1 at depth L and infinite width in neural-tangents.

It needs an old JAX, so this file runs in an environment of its own (``make bench-neural-tangents``
makes it), knows nothing of ours, and reads and writes files: ``tangents.py INPUTS.npy DEPTH KIND
REPEATS OUT.npz``.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np

# Above so many inputs the Gram matrix is made in blocks: XLA would ask for 98 GB at 4,000 inputs
# and L = 256.
BLOCK = 1000


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
    compile_kernel = _compiled if len(x) <= BLOCK else _compiled_in_blocks
    gram_of = compile_kernel(kernel, x, kind)
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        gram = np.asarray(gram_of(x))
        seconds.append(time.perf_counter() - start)
    np.savez(out, gram=gram, seconds=seconds)


def _compiled(kernel: Any, x: Any, kind: str) -> Any:
    import jax

    return jax.jit(lambda x: kernel(x, None, kind)).lower(x).compile()


def _compiled_in_blocks(kernel: Any, x: Any, kind: str) -> Any:
    import neural_tangents

    blocks = neural_tangents.batch(kernel, batch_size=BLOCK, device_count=0)
    blocks(x[:BLOCK], x[:BLOCK], kind)
    return lambda x: blocks(x, x, kind)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
