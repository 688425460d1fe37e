"""Files that a person or another program has changed: read as they are, or refused by name, whatever is in them."""

from __future__ import annotations

import json
import math
import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hostile import ODD

import nfd
from nfd.cli.main import main
from nfd.core.errors import UsageError
from nfd.limits.function_space import kernel_facts
from nfd.paper.claims.page import claims_sections
from nfd.paper.config import FigureConfig
from nfd.questions.findings.finding import Axes, Finding
from nfd.questions.sweep_settings import CapacityConfig, ModelCapacityConfig, ModelTransferConfig, TransferConfig
from nfd.report.overview import overview
from nfd.report.page import page
from nfd.report.results import read_results
from nfd.runs.config import Config
from nfd.runs.export import listing, rows
from nfd.runs.grid import grid_of
from nfd.runs.model_settings import CheckConfig, ModelPredictConfig, PlanConfig
from nfd.runs.settings import DataConfig, KernelConfig, PredictConfig, RunConfig, StudyConfig
from nfd.store.rows import Record
from nfd.store.store import Store

_HOW: dict[str, Any] = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}

CONFIGS = (
    DataConfig, RunConfig, StudyConfig, PredictConfig, KernelConfig, CheckConfig, TransferConfig, CapacityConfig,
    ModelTransferConfig, ModelCapacityConfig, ModelPredictConfig, FigureConfig,
)  # fmt: skip

plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.sampled_from([2**31, 2**64, 10**30, math.inf, -math.inf, math.nan, 1e308, 1e-320]),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from(["inf", "nan", "digits", "relu", "cifar10", "\ud800", "\0", "\u202e", "x" * 2000]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def refused(call: Callable[[], object], *words: str) -> object:
    """What the call gives, or its error if that is one of ours and says one of the words."""
    try:
        return call()
    except (ValueError, TypeError, OSError, UsageError) as error:
        said = str(error)
    assert any(word in said for word in words), said
    return None


# ---- configurations ------------------------------------------------------------------------------------------


@st.composite
def configured(draw: st.DrawFn) -> tuple[type[Config], dict[str, Any]]:
    kind = draw(st.sampled_from(CONFIGS))
    names = draw(st.lists(st.sampled_from(sorted(kind.model_fields)), min_size=1, max_size=3, unique=True))
    return kind, {name: draw(plain | st.sampled_from(ODD)) for name in names}


@given(configured())
@settings(max_examples=200, **_HOW)
def test_odd_settings_are_kept_or_refused_by_name(case: tuple[type[Config], dict[str, Any]]) -> None:
    kind, settings_ = case
    words = [*settings_, *(name.replace("_", "-") for name in settings_), "data_dir"]
    found = refused(lambda: kind(**settings_), *words)
    if found is not None:
        assert isinstance(found, kind)
        assert kind(**found.model_dump()) == found


_TOKENS = (b"[", b"]", b"{", b"}", b"=", b".", b"-", b"#", b"\n", b'"', b"\xff", b"\0", b"inf", b"nan", b"9" * 25)


def mutated(text: str, stream: random.Random) -> bytes:
    content = bytearray(text.encode())
    for _ in range(stream.randint(1, 4)):
        at = stream.randrange(len(content) + 1)
        kind = stream.randrange(3)
        if kind == 0:
            content[at:at] = stream.choice(_TOKENS)
        elif kind == 1:
            del content[at : at + stream.choice((1, 2, 9))]
        else:
            content[at : at + 1] = stream.randbytes(1)
    return bytes(content)


@pytest.mark.parametrize("kind", CONFIGS)
def test_mutated_toml_is_read_or_refused_with_its_name(tmp_path: Path, kind: type[Config]) -> None:
    stream, path = random.Random(0), tmp_path / "settings.toml"
    for _ in range(60):
        path.write_bytes(mutated(kind().toml(), stream))
        refused(lambda: kind.load(path), "settings.toml")
        refused(lambda: grid_of(path), "settings.toml")


NO_SETTINGS = (
    *(b"a = " + b"[" * 5000, b"a = " + b"9" * 5000, b"\xff\xfe", b"width = 1979-05-27T07:32:00Z", b"width = [[1]]"),
    *(b"a.b.c = 1", b"width = 1\nwidth = 2", b"width = []", b"width = " + str(list(range(1, 2000))).encode() * 2),
)


@pytest.mark.parametrize("content", NO_SETTINGS)
def test_toml_of_another_kind_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "grid.toml").write_bytes(content)
    with pytest.raises(ValueError, match=r"grid\.toml"):
        grid_of(tmp_path / "grid.toml")
    with pytest.raises(ValueError, match=r"grid\.toml"):
        StudyConfig.load(tmp_path / "grid.toml")


# ---- the command line ----------------------------------------------------------------------------------------

COMMANDS = {
    "study": StudyConfig, "predict": PredictConfig, "check": CheckConfig, "transfer": TransferConfig,
    "capacity": CapacityConfig, "kernel": KernelConfig, "figure": FigureConfig, "claims": FigureConfig,
    "data": DataConfig, "transfer nowhere:make": ModelTransferConfig, "capacity nowhere:make": ModelCapacityConfig,
    "predict nowhere:make": ModelPredictConfig, "plan nowhere:make": PlanConfig,
}  # fmt: skip

words = st.one_of(
    st.sampled_from(
        ["", " ", "-", "--", "-1", "0", "1e400", "nan", "inf", "1,2", ",", "None", "[]", "\ud800", "\u202e"]
    ),
    st.sampled_from(["x" * 5000, "--help=", "--out", "--config", "{}", "~nobody/x", "/dev/null", "\0", "relu", "2"]),
    st.text(max_size=8),
)


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(COMMANDS)))
    options = draw(st.lists(st.sampled_from(sorted(COMMANDS[name].model_fields)), max_size=3, unique=True))
    given_ = [part for o in options for part in (f"--{o.replace('_', '-')}", draw(words))]
    return [*name.split(), *given_, *draw(st.lists(words, max_size=1)), "--out", "\0"]  # nothing is ever begun


@given(lines())
@settings(max_examples=60, **_HOW)
def test_odd_command_lines_end_with_words_and_2(capsys: pytest.CaptureFixture[str], line: list[str]) -> None:
    try:
        code: object = main(line)
    except SystemExit as ended:  # the parser's own
        code = ended.code
    said = capsys.readouterr()
    assert code == 2 or (code == 0 and "usage" in said.out.lower())
    assert "Traceback" not in said.err
    assert code == 0 or said.err.strip() not in ("", "nfd:")


# ---- stores --------------------------------------------------------------------------------------------------


def stored(folder: Path) -> Path:
    with Store.open(folder) as store:
        curves = {"loss": np.arange(50.0)}
        store.add(Record(f"k{k}", "g", "done", {"width": k}, {"train_loss": 0.1 * k}, curves) for k in range(8))
    return folder / "runs.sqlite"


def looked_through(folder: Path) -> list[Record]:
    with Store.read(folder) as store:
        found = store.records()
        assert list(listing(found))
        rows(found)
        for record in found:
            store.curves(record.key)
    return found


def damages(sound: bytes, stream: random.Random) -> Iterator[bytes]:
    for _ in range(40):
        content = bytearray(sound)
        for _ in range(stream.choice((1, 3, 20))):
            at = stream.randrange(len(content))
            content[at : at + stream.choice((1, 4))] = stream.randbytes(stream.choice((1, 4)))
        yield bytes(content)
    for _ in range(10):
        yield sound[: stream.randrange(len(sound))]


def test_damaged_stores_are_refused_by_name_or_read_as_they_were(tmp_path: Path) -> None:
    path, whole = stored(tmp_path), None
    sound = path.read_bytes()
    whole = looked_through(tmp_path)
    for content in damages(sound, random.Random(0)):
        path.write_bytes(content)
        found = refused(lambda: looked_through(tmp_path), str(path))
        assert found is None or found == whole


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE curves",
        "ALTER TABLE runs RENAME COLUMN status TO state",
        "UPDATE runs SET config = 'null'",
        "UPDATE runs SET metrics = '[1]'",
        "UPDATE runs SET key = NULL WHERE 0; UPDATE runs SET checksum = 'x'",
        "UPDATE runs SET seconds = 'long'",
        "UPDATE runs SET status = x'ff'",
        "UPDATE curves SET content = 7",
        "UPDATE curves SET content = NULL WHERE 0; UPDATE curves SET content = x''",
        "DROP TABLE runs; CREATE VIEW runs AS SELECT 1 AS key",
        "DROP TABLE runs; CREATE TABLE runs (a)",
        "CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END; UPDATE runs SET group_key = 7",
        "PRAGMA user_version = 0",
        "PRAGMA user_version = 7",
        "PRAGMA user_version = -1",
        "PRAGMA application_id = 1",
    ],
)
def test_stores_changed_by_hand_are_refused_by_name(
    tmp_path: Path, statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = stored(tmp_path)
    database = sqlite3.connect(path)
    database.executescript(statement)
    database.commit()
    database.close()
    with pytest.raises(ValueError, match=r"runs\.sqlite"):
        looked_through(tmp_path)
    if "curves" not in statement:
        assert main(["runs", str(tmp_path)]) == 2
        assert "runs.sqlite" in capsys.readouterr().err


@given(st.dictionaries(st.sampled_from(["key", "group", "status", "config", "metrics", "error", "seconds"]), plain))
@settings(max_examples=60, **_HOW)
def test_odd_records_come_back_as_they_were_or_are_refused(
    tmp_path_factory: pytest.TempPathFactory, odd: dict[str, Any]
) -> None:
    given_: dict[str, Any] = {"key": "k", "group": "g", "status": "done", "config": {}, "metrics": {}} | odd
    with Store.open(tmp_path_factory.mktemp("store")) as store:
        record = Record(**given_)
        if refused(lambda: store.add([record]) or True, *given_, "metric") is not None:
            assert repr(store.record(given_["key"])) == repr(record)
            list(listing(store.records()))


@pytest.mark.parametrize("argument", ["directory", "device", "executor", "trackers", "progress"])
def test_sweeps_refuse_what_is_no_argument(tmp_path: Path, argument: str) -> None:
    good: dict[str, Any] = {"directory": tmp_path}
    odd = [None, 0, 1.5, b"x", [], "\0", "\ud800", "", object()]
    words = (argument, "path", "out")
    for value in odd if argument == "directory" else [0, 1.5, "\0", "cuda:99", object()]:
        refused(lambda: nfd.Sweep(**{**good, argument: value}).store.close(), *words)  # noqa: B023


# ---- results -------------------------------------------------------------------------------------------------

_ROW = {"series": "a", "step": 1, "loss": 1.0, "low": 0.5, "high": 1.5}
RESULT = {
    "command": "nfd study", "title": "A study", "complete": True, "answers": ["yes"], "config": {"width": 1},
    "rules": [{"sentence": "s"}], "values": {"a": {"b": 1.0}},
    "rows": [dict.fromkeys(("id", "source", "statement", "verdict", "measurement", "reading"), "x") | {"value": 1.0}],
    "findings": {
        kind: Finding(kind, "T", "H", [_ROW, _ROW], Axes("step", "loss", "x", "y", kind), "C", table=[{"a": "b"}],
                      references=[_ROW]).plain()  # type: ignore[arg-type]
        for kind in ("logcurves", "named")
    },
}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = replaced(value[path[0]], path[1:], new)
    return changed


changes = st.lists(st.tuples(st.sampled_from(sorted(places(RESULT), key=repr)[1:]), plain), min_size=1, max_size=2)


def reported(folder: Path, changed: list[tuple[tuple[Any, ...], Any]]) -> None:
    content = RESULT
    for path, new in changed:
        try:
            content = replaced(content, path, new)
        except (TypeError, KeyError, IndexError):  # the first change took the place of the second away
            continue
    (folder / "result.json").write_text(json.dumps(content))
    found, problems = read_results(folder)
    assert len(found) + len(problems) >= 1
    assert page("Results", overview(found, problems, [claims_sections])).endswith("</html>\n")


@given(changes)
@settings(max_examples=8, **_HOW)
def test_results_with_odd_values_make_a_page(tmp_path_factory: pytest.TempPathFactory, changed: Any) -> None:
    reported(tmp_path_factory.mktemp("result"), changed)


@pytest.mark.slow
@given(changes)
@settings(max_examples=400, **_HOW)
def test_many_results_with_odd_values_make_a_page(tmp_path_factory: pytest.TempPathFactory, changed: Any) -> None:
    reported(tmp_path_factory.mktemp("result"), changed)


NO_RESULTS = (
    *(b"", b"[" * 100_000, b"{}", b"\xff", b"null", b"9" * 5000, b'{"command": 1}', b'{"command": "\\ud800"}'),
    *(b'{"command": "x", "findings": 1}', b'{"command": "x", "findings": {"a": {"rows": 1}}}'),
    b'{"command": "x", "rows": [{}]}',
)


@pytest.mark.parametrize("content", NO_RESULTS)
def test_results_of_another_kind_are_a_sentence_on_the_page(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "result.json").write_bytes(content)
    found, problems = read_results(tmp_path)
    assert page("Results", overview(found, problems, [claims_sections]))
    assert found or "result.json" in problems[0]


def test_kernel_facts_take_their_names_alone() -> None:
    for value in ODD:
        if not (isinstance(value, str) and value == "relu"):
            with pytest.raises((ValueError, TypeError), match="activation"):
                kernel_facts(value)
