"""Kernels in training are those of networks that are trained apart, in plain PyTorch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from calibration.dense_networks import NAMES, Problem
from calibration.kernels_in_training import (
    RULES,
    distances_before,
    equal_times,
    prediction,
    rms,
    truth_of,
)


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
