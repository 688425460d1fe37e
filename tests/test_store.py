"""Files are whole or absent; pages cannot be broken by what they show."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from nfd.core.files import prepare_directory, write_bytes, write_csv, write_json
from nfd.report.charts import loss_curves
from nfd.report.page import Section, page


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_json(tmp_path / "a.json", {"value": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nfd.core.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_bytes(path, b"half")
    assert json.loads(path.read_text()) == {"value": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_json_has_no_nan(tmp_path: Path) -> None:
    path = write_json(tmp_path / "a.json", {"x": [math.nan, 1.0, (math.inf,)], "y": {"z": None}})
    assert json.loads(path.read_text()) == {"x": [None, 1.0, [None]], "y": {"z": None}}


def test_csv_and_directories(tmp_path: Path) -> None:
    deep = prepare_directory(tmp_path / "a" / "b")
    assert write_csv(deep / "t.csv", [{"x": 1, "y": "p,q"}]).read_bytes() == b'x,y\r\n1,"p,q"\r\n'
    assert write_csv(deep / "e.csv", []).exists()


def test_hostile_names_stay_text() -> None:
    evil = "</script><script>alert(1)</script>"
    rows = [{"series": evil, "step": 0, "loss": 1.0, "low": 0.9, "high": 1.1}]
    text = page(evil, [Section(evil, [evil], loss_curves(rows, [evil]), [{evil: evil}])])
    assert "<script>alert" not in text
    assert text.count("</script>") == 2
