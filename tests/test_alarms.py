"""How often a watch is wrong: the page quotes what was measured, and a few networks are measured
again.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibration import alarms

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_quotes_what_was_measured() -> None:
    measured = [
        json.loads(line) for line in (ROOT / "calibration/alarms.jsonl").read_text().splitlines()
    ]
    page = (ROOT / "docs/howto/watch.md").read_text()
    for setting in alarms.SETTINGS:
        assert (
            alarms.page_row(setting, [row for row in measured if row["setting"] == str(setting)])
            in page
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The rates are no longer")  # of the fault that forgets one
@pytest.mark.filterwarnings("ignore:step ")  # alerts, which are counted
def test_few_sound_trainings_raise_an_alert_and_faults_are_named(tmp_path: Path) -> None:
    rows = alarms.measured(tmp_path / "rows", alarms.SETTINGS[0], 6, 3)
    assert sum(bool(row["alerts"]) for row in rows if row["case"].startswith("sound")) <= 2
    assert (
        sum(not alarms.named(row["case"], row) for row in rows if row["case"] in alarms.FAULTS) <= 1
    )
