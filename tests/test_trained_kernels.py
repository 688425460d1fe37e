"""Kernels in training are those of networks that are trained apart, in plain PyTorch."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from calibration.dense_networks import NAMES, Problem
from calibration.kernels_in_training import (
    RULES,
    distances_before,
    equal_times,
    prediction,
    rms,
    truth_of,
)
from nfd.core.activations import activation
from nfd.core.estimates import Magnitude
from nfd.limits.predict import _depth_note
from nfd.limits.untrained import Blocks, untrained


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.block}-{rule.optimizer}")
def test_kernels_are_those_of_networks_trained_apart(rule: Problem) -> None:
    """Near 1.2 standard errors from them, by Student's t with 7 degrees of freedom."""
    problem = replace(rule, looks=(0, 4))
    truth = truth_of(problem, 48, 128)
    kernels = prediction(problem, 128, 8, 1).kernels
    assert kernels is not None
    moved = list[float]()
    for name in NAMES:
        values, errors = truth[name]
        estimate = equal_times(kernels, name)[1]
        error = equal_times(kernels, name, "stderr")[1].hypot(errors[1])
        assert rms((estimate - values[1]) / error) < 2, name
        moved.append(rms((values[0] - values[1]) / error))
    # They are not those before training.
    assert max(moved) > 2.5


def test_two_layer_blocks_before_training_have_the_known_kernels() -> None:
    known = distances_before(replace(RULES[0], looks=(0, 1)), 32, 64, 2)
    assert max(known.values()) < 1.8


def test_kernels_before_training_that_leave_the_range_of_numbers_are_named() -> None:
    def tangent(size: float) -> Tensor:
        blocks = Blocks(activation("identity"), 50.0, 50.0, 1.0, 1.0, math.inf)
        return untrained(size * torch.ones(2, 3, dtype=torch.float64), blocks, 2).tangent

    assert bool(tangent(1e100).isfinite().all())
    with pytest.raises(ValueError, match=r"leave the range of numbers.*Lower the horizon"):
        tangent(1e150)


def test_a_note_names_the_kernels_that_reached_their_limit_in_depth() -> None:
    still = Magnitude(0.001, 0.0001)
    far = Magnitude(0.5, 0.01)
    noisy = Magnitude(0.02, 0.02)
    note = _depth_note({"tangent": still, "features": far, "gradients": noisy}, 0.01, 8)
    assert note.endswith("Within rtol: tangent.")
    assert "features by 0.5" in note
    assert "to rtol=0.01 of their size: gradients." in note
    assert _depth_note({"tangent": still}, 0.01, 8) == ""
