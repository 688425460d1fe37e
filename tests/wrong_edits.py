"""Wrong edits in the mathematics and the measurements, and whether the tests notice: ``make wrong-edits``.

``wrong_edits.toml`` lists them. Each is made in a copy of the repository, never in the checkout, and the tests that
should notice it are run there; where all of them pass, the whole default suite. An edit that passes that too has
survived. Results are kept as they come, and what has not changed since is not run again.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

ROOT = Path(__file__).parents[1]
LIST = ROOT / "tests/wrong_edits.toml"
RESULTS = ROOT / "out/wrong-edits.json"
PAGE = ROOT / "docs/wrong-edits.md"

SUITE = ("tests", "--ignore=tests/test_wrong_edits.py")  # which holds the list against the code, so that any edit fails

Verdict = Literal["noticed", "noticed by the suite", "survived", "not tested"]
_LONGEST = 3600.0  # seconds of one call of pytest: an edit may make a loop endless
_PASSED, _FAILED, _BROKEN = 0, 1, 2  # exit codes of pytest; 2: tests could not even be collected


@dataclass(frozen=True)
class Edit:
    """A wrong edit.

    Attributes:
        name: of the edit. file: below src/nfd. old, new: text, of which the old one stands there exactly once.
        why: what is wrong with the new one.
        tests: that should notice, ``test_x.py::test_y``. only: a pytest expression (-k) that selects among them.
        survives: for an edit that no test can notice, the reason.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    only: str = ""
    survives: str = ""

    @property
    def path(self) -> str:
        """Of the file, from the root of the repository."""
        return f"src/nfd/{self.file}"


@dataclass(frozen=True)
class Outcome:
    """What became of an edit: the verdict, the first test that failed, and seconds."""

    verdict: Verdict
    by: str
    seconds: float


def edits(path: Path = LIST) -> list[Edit]:
    """The list, with names that differ."""
    listed = tomllib.loads(path.read_text())["edit"]
    found = [Edit(**{**entry, "tests": tuple(entry["tests"])}) for entry in listed]
    twice = {edit.name for edit in found if sum(other.name == edit.name for other in found) > 1}
    if twice:
        raise ValueError(f"edits must have different names; got twice: {', '.join(sorted(twice))}.")
    return found


def applied(text: str, edit: Edit) -> str:
    """The text with the edit made; ValueError where it does not fit, or makes no Python."""
    count = text.count(edit.old)
    if count != 1:
        raise ValueError(f"{edit.name}: its old text must stand in {edit.path} once; it stands there {count} times.")
    changed = text.replace(edit.old, edit.new)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise ValueError(f"{edit.name}: the new text is no Python: {error}.") from None
    return changed


def copied(root: Path, to: Path) -> Path:
    """A copy of what git tracks or would track below ``root``."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (root / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, to / name)
    return to


def run_tests(root: Path, tests: Sequence[str], only: str = "") -> tuple[int, str]:
    """The exit code of pytest with the code of ``root``, and the first test that failed; stops there."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", *tests]
    command += ["-k", only] if only else []
    data = os.environ.get("NFD_DATA", str(ROOT.parent / "shared/data"))
    own = {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "NFD_DATA": data}
    own |= {"PYTHONDONTWRITEBYTECODE": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # no code of an earlier edit is left
    try:
        done = subprocess.run(
            command, cwd=root, env={**os.environ, **own}, capture_output=True, text=True, timeout=_LONGEST
        )
    except subprocess.TimeoutExpired:
        return _FAILED, "no test: none ended in time"
    if done.returncode not in (_PASSED, _FAILED, _BROKEN):
        raise RuntimeError(f"pytest could not run {' '.join(tests)} {only}:\n{done.stdout}{done.stderr}")
    failed = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", done.stdout, flags=re.MULTILINE)
    return done.returncode, failed[1] if failed else ""


def judged(root: Path, edit: Edit, *, suite: bool = True) -> Outcome:
    """Make the edit in ``root``, a copy, run the tests, and take it back."""
    path, start = root / edit.path, time.monotonic()
    before = path.read_text()
    path.write_text(applied(before, edit))
    try:
        code, by = run_tests(root, [f"tests/{test}" for test in edit.tests], edit.only)
        verdict: Verdict = "noticed" if code != _PASSED else "not tested"
        if code == _PASSED and suite:
            code, by = run_tests(
                root, ["tests", "--ignore=tests/test_wrong_edits.py"]
            )  # it holds edits against the code
            verdict = "survived" if code == _PASSED else "noticed by the suite"
    finally:
        path.write_text(before)
    return Outcome(verdict, by, round(time.monotonic() - start, 1))


# ---- results ---------------------------------------------------------------------------------------------------------


def key_of(edit: Edit, root: Path = ROOT) -> str:
    """Changes where the edit, its file or its tests do."""
    files = [edit.path, *sorted({f"tests/{test.split('::')[0]}" for test in edit.tests})]
    text = json.dumps(asdict(edit)) + "".join((root / name).read_text() for name in files)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def load(path: Path) -> dict[str, dict[str, Any]]:
    """Outcomes by the name of the edit, each with its key."""
    return json.loads(path.read_text()) if path.exists() else {}


def page(found: list[Edit], results: dict[str, dict[str, Any]]) -> str:
    """The table of the documentation."""
    verdicts = [results.get(edit.name, {}).get("verdict", "not tested") for edit in found]
    noticed = verdicts.count("noticed")
    both = noticed + verdicts.count("noticed by the suite")
    lines = [
        "# Wrong edits, and the tests that notice",
        "",
        "Look up which small mistakes in the code the tests notice, such as a wrong sign or a swapped argument.",
        "",
        "Each row is a small wrong edit of the mathematics or of a measurement. `make wrong-edits` makes it in a",
        "copy of the repository and runs the tests that should fail; if they pass, it runs the whole default suite.",
        "A test checks that every edit still applies to the code. Edits that change no number are left out, such as",
        "a factor that cancels in a ratio.",
        "",
        f"Of {len(found)} edits {noticed} are noticed by the tests named for them, {both} ({both / len(found):.1%}) by "
        "the default suite.",
        "",
        "| Edit | In | What is wrong | Noticed by |",
        "| --- | --- | --- | --- |",
    ]
    for edit, verdict in zip(found, verdicts, strict=True):
        by = results.get(edit.name, {}).get("by", "")
        told = {"noticed": f"`{by}`", "noticed by the suite": f"not those named; `{by}`"}.get(verdict, f"**{verdict}**")
        why = edit.why.replace("|", "\\|")
        lines.append(f"| {edit.name} | `{edit.file}` | {why} | {told} |")
    left = [edit for edit, verdict in zip(found, verdicts, strict=True) if verdict == "survived"]
    lines += ["", "## Survivors", ""]
    lines += [f"- **{edit.name}**: {edit.survives or 'not explained yet.'}" for edit in left] or ["None."]
    return "\n".join([*lines, ""])


# ---- the command -----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what has no outcome yet; 1 where an edit survived without a reason."""
    parser = argparse.ArgumentParser(prog="python -m tests.wrong_edits", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of edits; all by default")
    parser.add_argument("--workers", type=int, default=1, help="copies that are tested side by side")
    parser.add_argument("--named-only", action="store_true", help="leave out the whole suite for what survives")
    parser.add_argument("--again", action="store_true", help="run what has an outcome, too")
    parser.add_argument("--page", action="store_true", help=f"write {PAGE.relative_to(ROOT)} from the outcomes")
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    found, results = edits(), load(asked.results)
    chosen = [edit for edit in found if not asked.only or any(part in edit.name for part in asked.only)]
    done = {e.name for e in chosen if results.get(e.name, {}).get("key") == key_of(e) and not asked.again}
    done -= {name for name in done if results[name]["verdict"] == "not tested" and not asked.named_only}
    missing = [edit for edit in chosen if edit.name not in done]
    if missing:
        _run(missing, results, asked)
    if asked.page:
        PAGE.write_text(page(found, results))
    bad = [e.name for e in chosen if results[e.name]["verdict"] in ("survived", "not tested") and not e.survives]
    print(f"{len(chosen)} edits, {len(chosen) - len(bad)} noticed or explained." + "".join(f"\n! {n}" for n in bad))
    return 1 if bad else 0


def _run(missing: list[Edit], results: dict[str, dict[str, Any]], asked: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="wrong-edits-") as place:
        copies = [copied(ROOT, Path(place) / str(k)) for k in range(min(asked.workers, len(missing)))]
        _require_passing(copies[0], sorted({f"tests/{test}" for edit in missing for test in edit.tests}))
        left = _outcomes(missing, copies, results, asked.results, suite=False)
        if left and not asked.named_only:
            _require_passing(copies[0], SUITE)
            _outcomes(left, copies, results, asked.results, suite=True)


def _require_passing(root: Path, tests: Sequence[str]) -> None:
    """A test that fails without any edit notices nothing."""
    code, by = run_tests(root, tests)
    if code != _PASSED:
        raise SystemExit(f"Without any edit {by or 'a test'} fails already: mend that first.")


def _outcomes(
    wanted: list[Edit], copies: list[Path], results: dict[str, dict[str, Any]], kept: Path, *, suite: bool
) -> list[Edit]:
    """Run edits, a copy for each worker; those that their tests did not notice."""
    roots: SimpleQueue[Path] = SimpleQueue()
    for root in copies:
        roots.put(root)

    def one(edit: Edit) -> Outcome:
        root = roots.get()
        try:
            return judged(root, edit, suite=suite)
        finally:
            roots.put(root)

    with ThreadPoolExecutor(len(copies)) as pool:
        for edit, outcome in zip(wanted, pool.map(one, wanted), strict=True):
            results[edit.name] = {"key": key_of(edit), **asdict(outcome)}
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(results, indent=1))
            print(f"{edit.name}: {outcome.verdict} {outcome.by} ({outcome.seconds:.0f} s)", flush=True)
    return [edit for edit in wanted if results[edit.name]["verdict"] == "not tested"]


if __name__ == "__main__":
    raise SystemExit(main())
