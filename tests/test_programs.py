"""Any sequence of queries: hypothesis writes the program, the completed matrix must have answered it."""

from __future__ import annotations

import warnings

import hypothesis.strategies as st
import torch
from hypothesis import given, settings
from torch import Tensor

import nfd

STEP = st.tuples(
    st.sampled_from(["forward", "backward", "repeat", "evaluate", "blend"]),
    st.integers(1, 6),
    st.sampled_from([1e-9, 1e-3, 1.0, 1e6]),
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(1, 14), st.integers(1, 14), st.booleans(), st.lists(STEP, max_size=8), st.integers(0, 99))
def test_one_matrix_answered_every_query(
    n_in: int, n_out: int, shared: bool, program: list[tuple[str, int, float]], seed: int
) -> None:
    layer = nfd.DeferredLinear(
        n_in, n_out, feedback="shared" if shared else "independent", seed=seed, dtype=torch.float64
    )
    stream = torch.Generator().manual_seed(seed)
    asked: list[tuple[Tensor, Tensor, Tensor | None, Tensor | None]] = []
    x = torch.randn(1, n_in, dtype=torch.float64, generator=stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, size, scale in program:
            fresh = scale * torch.randn(size, n_in, dtype=torch.float64, generator=stream)
            if kind == "evaluate":
                with torch.no_grad():
                    layer(fresh)
                continue
            x = x if kind == "repeat" else torch.cat([fresh, fresh[:1] + 1e-7 * scale * x[:1]])
            x = x.detach().requires_grad_()
            y = layer(x)
            if kind == "forward":
                asked.append((x.detach(), y.detach(), None, None))
                continue
            g = torch.randn(y.shape, dtype=y.dtype, generator=stream) if kind == "backward" else y.detach()
            (pulled,) = torch.autograd.grad(y, x, g)
            asked.append((x.detach(), y.detach(), g, pulled))
    W = layer.complete(seed)
    forward, backward = W if isinstance(W, tuple) else (W, W)
    for x, y, g, pulled in asked:
        torch.testing.assert_close(x @ forward.T, y, rtol=0, atol=1e-9 * float(x.norm() + 1e-30))
        if g is not None and pulled is not None:
            torch.testing.assert_close(g @ backward, pulled, rtol=0, atol=1e-9 * float(g.norm() + 1e-30))
