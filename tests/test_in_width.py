"""Estimates at infinite width: entry by entry those of single numbers, and honest controls."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from nfd.core.estimates import Magnitude, combined, stderr
from nfd.limits.control import Samples, without_first_outputs
from nfd.limits.in_width import at_infinite_width
from nfd.limits.predict import _depth_note


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_every_entry_is_estimated_as_a_number_by_itself() -> None:
    wide = 1 + normal(5, 2, 3)
    narrow = 2 + 3 * normal(5, 2, 3, seed=1)
    # One entry has no noise, one diverged in narrow networks, and one in all.
    wide[:, 0, 0] = 1.0
    narrow[:, 0, 0] = 1.0
    narrow[:, 0, 1] = math.nan
    wide[:, 0, 2] = math.nan
    narrow[:, 0, 2] = math.nan
    coarse = wide + 0.1
    parts = at_infinite_width(wide, narrow, 4.0, coarse, bend=0.25)
    torch.testing.assert_close(parts["replicates"].mean(0)[1], parts["value"][1])
    for place in ((0, 0), (1, 0), (1, 1), (1, 2)):
        w = wide[(slice(None), *place)]
        n = narrow[(slice(None), *place)]
        bias = float(n.mean() - w.mean()) / 3
        one = combined(
            float(w.mean()) - bias,
            [(float(stderr(w)) ** 2 * (4 / 3) ** 2, 4), (float(stderr(n)) ** 2 / 9, 4)],
        )
        half = math.hypot(one.high - one.value, 0.1, 0.25 * bias)
        got = {name: float(values[place]) for name, values in parts.items() if values.dim() == 2}
        assert got["value"] == pytest.approx(one.value)
        assert got["stderr"] == pytest.approx(one.stderr)
        assert got["high"] - got["value"] == pytest.approx(half)
        assert got["value"] - got["low"] == pytest.approx(half)
        assert got["bias"] == pytest.approx(bias)
    assert float(parts["value"][0, 1]) == pytest.approx(float(wide[:, 0, 1].mean()))
    assert bool(parts["low"][0, 1:].isnan().all())
    assert bool(parts["value"][0, 2].isnan())


def outputs(kept: float, count: int, seed: int) -> Tensor:
    """Outputs of networks [R, 2, 3] that keep a share of those before training, and add noise."""
    first = normal(count, 3, seed=seed)
    last = 1 + kept * first + 0.1 * normal(count, 3, seed=seed + 1)
    return torch.stack([first, last], 1)


@pytest.mark.parametrize("count", [3, 8])
def test_what_outputs_keep_of_those_before_training_is_removed(count: int) -> None:
    samples = Samples(outputs(0.7, count, 1), outputs(0.7, count, 3))
    left = without_first_outputs(samples)
    for before, after in ((samples.wide, left.wide), (samples.narrow, left.narrow)):
        assert not after[:, 0].any()
        assert float(after[:, 1].std()) < 0.5 * float(before[:, 1].std())


def test_outputs_that_forgot_are_not_made_noisier() -> None:
    """By more than the freedom that a fit of one share takes."""
    samples = Samples(outputs(0.0, 16, 1), outputs(0.0, 16, 3))
    left = without_first_outputs(samples)
    assert float(left.wide[:, 1].std()) < 1.15 * float(samples.wide[:, 1].std())


def test_two_networks_cannot_show_what_they_keep() -> None:
    samples = Samples(outputs(0.7, 2, 1), outputs(0.7, 2, 3))
    left = without_first_outputs(samples)
    assert torch.equal(left.wide[:, 1], samples.wide[:, 1])


def test_a_note_says_which_kernels_depth_moved() -> None:
    moves = {
        "features": Magnitude(0.05, 0.01),
        "streams": Magnitude(0.0, 0.03),
        "gradients": Magnitude(0.03, 0.02),
        "tangent": Magnitude(0.005, 0.01),
    }
    note = _depth_note(moves, 0.02, 8)
    assert "features by 0.05." in note
    # Noise of 0.03 is 0.02 with 18 of 8 replicates, and twice 0.02 is 0.03 with 15.
    assert "streams, gradients. About 18 replicates would decide; or raise width or rtol." in note
    assert note.count("tangent") == 1
    assert note.endswith("Within rtol: tangent.")
    assert "over 1,024 replicates" in _depth_note({"streams": Magnitude(0.0, 1.0)}, 0.02, 8)
    assert _depth_note({"tangent": moves["tangent"]}, 0.02, 8) == ""
    assert _depth_note({}, 0.02, 8) == ""
