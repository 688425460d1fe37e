"""Scaling bugs of public code are named by layer and cause, and their sound twins raise nothing."""

from __future__ import annotations

import pytest
from tests.bestiary.beasts import BEASTS, SOUND, Beast
from tests.bestiary.judge import asked

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("beast", BEASTS, ids=[beast.name for beast in BEASTS])
def test_a_bug_is_named_and_its_twin_raises_nothing(beast: Beast) -> None:
    bug, twin = (asked(beast, sound=sound) for sound in (False, True))
    assert bug.named, bug.raised
    assert not twin.raised


@pytest.mark.parametrize("model", SOUND, ids=[model.name for model in SOUND])
def test_a_sound_model_raises_nothing(model: Beast) -> None:
    assert not asked(model, sound=True).raised


def test_there_are_twenty() -> None:
    assert len({beast.name for beast in BEASTS}) == 20
