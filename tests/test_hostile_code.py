"""Nothing that nfd reads from a file can run as code, and nothing that it does reaches a network."""

from __future__ import annotations

import ast
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.test_shell import SETUP

import nfd

SOURCE = Path(nfd.__file__).parent
WIRE = "runs/executors.py"  # alone may pickle: what a driver and its own workers tell each other

# Modules that read objects as code, or reach other machines.
FORBIDDEN = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "dbm", "copyreg", "yaml",
    "socket", "socketserver", "ssl", "http", "urllib", "urllib3", "requests", "httpx", "aiohttp", "ftplib", "smtplib",
    "telnetlib", "xmlrpc", "webbrowser", "xml", "code", "codeop", "ctypes", "runpy", "subprocess", "asyncio",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__", "input", "breakpoint"}
METHODS = {
    "torch.load", "torch.hub", "torch.save", "np.load", "numpy.load", "np.save", "np.savez", "np.fromregex",
    "os.system", "os.popen", "os.execv", "os.execvp", "os.spawnv", "os.posix_spawn", "pd.read_pickle",
    "multiprocessing.managers", "multiprocessing.shared_memory", "tempfile.mktemp", "tarfile.extractall",
}  # fmt: skip
# Attributes by whatever they are called on: what is unpacked, sent as objects, or run by a shell.
NAMES = {"extractall", "extract", "recv", "send", "to_pickle", "read_pickle", "load_extension", "enable_load_extension"}


def dotted(node: ast.expr) -> str:
    """``torch.hub.load`` as text; empty for what is no name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def faults(code: str) -> Iterator[str]:
    """What in a module could run data as code, or reach a network."""
    for node in ast.walk(ast.parse(code)):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        modules += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        yield from (f"import {name}" for name in modules if name.split(".")[0] in FORBIDDEN)
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            if name in METHODS or any(name.startswith(f"{m}.") for m in METHODS) or node.attr in NAMES:
                yield name or node.attr
        if isinstance(node, ast.Call):
            if dotted(node.func) in CALLS:
                yield f"{dotted(node.func)}()"
            yield from (f"{k.arg}=" for k in node.keywords if k.arg in ("shell", "allow_pickle", "weights_only"))


def test_no_module_can_run_data_as_code_or_reach_a_network() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 150
    found = {str(path.relative_to(SOURCE)): list(faults(path.read_text(encoding="utf-8"))) for path in modules}
    assert {path: problems for path, problems in found.items() if problems} == {
        WIRE: ["import cloudpickle"],
        "cli.py": ["import cloudpickle", "exec()", "compile()"],  # the user's own file, which the command names
    }


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from cloudpickle import loads",
        "from urllib.request import urlopen",
        "import a, http.client",
        "torch.load(x)",
        "eval('1')",
        "np.load(x, allow_pickle=True)",
        "tar.extractall()",
        "pipe.recv()",
        "torch.hub.load('a')",
        "f(shell=True)",
    ],
)
def test_each_of_these_would_be_noticed(code: str) -> None:
    assert list(faults(code))


# A hook of the interpreter itself, inherited by every process: no socket of a network, no name looked up; and whoever
# unpickles an object by name is written down.
HOOK = """
import os, sys
def hook(event, given):
    if event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.connect", "socket.bind", "socket.sendto"):
        network = event.startswith("socket.get") or isinstance(given[1], tuple)
    else:
        network = event == "socket.__new__" and int(given[1]) in (2, 10)
    if network or event in ("urllib.Request", "webbrowser.open", "marshal.load", "os.system"):
        with open(os.environ["SEEN"], "a") as file:
            file.write(f"{event} {given[1:]}\\n")
        raise PermissionError(f"{event}: not allowed here")
    if event == "pickle.find_class":
        frame = sys._getframe(1)
        with open(os.environ["SEEN"] + ".unpickled", "a") as file:
            file.write(f"{frame.f_code.co_filename}\\n")
sys.addaudithook(hook)
"""
WORK = """
import sys
from nfd.cli import main
if __name__ == "__main__":
    for line in sys.argv[1].splitlines():
        assert main(line.split()) in (0, 1), line
"""
COMMANDS = """\
transfer setup.py --widths 8 16 --depths 1 --rules mup --lr 1e-3 1e-2 0.1 --seeds 2 --workers 1
plan setup.py --width 16 --depth 1 --base 8 1
report out"""


@pytest.mark.long
def test_nothing_reaches_a_network_and_no_data_is_unpickled(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    for name, text in (("hook/sitecustomize.py", HOOK), ("work.py", WORK), ("setup.py", SETUP)):
        (tmp_path / name).write_text(text)
    seen = tmp_path / "seen"
    path = os.pathsep.join([str(tmp_path / "hook"), str(SOURCE.parent)])
    given = os.environ | {"PYTHONPATH": path, "SEEN": str(seen), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "work.py", COMMANDS], cwd=tmp_path, env=given, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert not seen.exists(), seen.read_text()
    # Objects are unpickled where a driver and its workers talk, by the standard library's pools. No setting, record or
    # tensor that is read from a file is.
    readers = {Path(file) for file in (tmp_path / "seen.unpickled").read_text().splitlines()}
    assert readers - {SOURCE / WIRE} <= set(Path(multiprocessing.__file__).parent.iterdir())


def test_the_hook_sees_what_it_should(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    given = os.environ | {"PYTHONPATH": str(tmp_path), "SEEN": str(tmp_path / "seen")}
    for code in ("import socket; socket.socket()", "import socket; socket.getaddrinfo('localhost', 80)"):
        done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
        assert "not allowed here" in done.stderr
    subprocess.run([sys.executable, "-c", "import pickle; pickle.loads(pickle.dumps(OSError))"], env=given, check=True)
    assert (tmp_path / "seen.unpickled").read_text() == "<string>\n"
