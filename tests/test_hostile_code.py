"""Nothing that nfd reads from a file can run as code, and nothing that it does reaches a network."""

from __future__ import annotations

import ast
import multiprocessing.spawn
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nfd

SOURCE = Path(nfd.__file__).parent
WIRE = "runs/executors/messages.py"  # alone may pickle: what a driver and its own workers tell each other

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


def imports(code: str) -> set[str]:
    """The modules that a module imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return names | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def test_no_module_can_run_data_as_code_or_reach_a_network() -> None:
    modules = sorted(SOURCE.rglob("*.py"))
    assert len(modules) > 150
    found = {str(path.relative_to(SOURCE)): list(faults(path.read_text(encoding="utf-8"))) for path in modules}
    assert {path: problems for path, problems in found.items() if problems} == {
        WIRE: ["import cloudpickle"],
    }


def test_the_module_that_pickles_reads_and_writes_no_file() -> None:
    """It has bytes from its callers alone, and those are the ends of pipes."""
    code = (SOURCE / WIRE).read_text(encoding="utf-8")
    assert imports(code) == {
        "__future__", "collections.abc", "io", "typing", "cloudpickle", "sys", "nfd.core.errors",
        "nfd.runs.executors.executor",
    }  # fmt: skip
    assert "open(" not in code
    callers = [p for p in SOURCE.rglob("*.py") if "nfd.runs.executors.messages" in imports(p.read_text("utf-8"))]
    assert {str(path.relative_to(SOURCE)) for path in callers} == {
        f"runs/executors/{name}.py" for name in ("attempts", "processes", "ray")
    }
    for path in callers:
        code = path.read_text(encoding="utf-8")
        assert not imports(code) & {"io", "pathlib", "tempfile", "sqlite3", "mmap", "nfd.core.files"}
        assert "open(" not in code


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
from nfd.cli.main import main
if __name__ == "__main__":
    for line in sys.argv[1].splitlines():
        assert main(line.split()) in (0, 1), line
"""
GRID = "width = [4, 8]\ndepth = 2\nsteps = 2\nbatch = 4\nseed = [0, 1]\n"
SMALL = "--steps 2 --batch 4"
COMMANDS = f"""\
study --depths 2 4 --widths 4 8 --limit-width 16 --replicates 3 --seeds 2 --block-depths 2 4 --block-width 4 \
--block-seeds 2 {SMALL} --out study
sweep grid.toml --executor processes --workers 1 --out sweep
check model:make --widths 4 8 --depths 2 --seeds 2 {SMALL} --out check
figure 1 --size smoke --executor inline --out figure
report . --out report
runs sweep --out exported
kernel facts --out facts
data info --out data"""


def _few(commands: str) -> str:
    return "\n".join(line for line in commands.splitlines() if line.startswith(("sweep", "report")))


@pytest.mark.long
@pytest.mark.parametrize(
    "commands", [_few(COMMANDS), pytest.param(COMMANDS, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_nothing_reaches_a_network_and_no_data_is_unpickled(tmp_path: Path, commands: str) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(HOOK)
    (tmp_path / "work.py").write_text(WORK)
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "model.py").write_text(
        "import nfd\ndef make(width, depth):\n    return nfd.ResNet(64, 10, width, depth)\n"
    )
    seen = tmp_path / "seen"
    path = os.pathsep.join([str(tmp_path / "hook"), str(tmp_path), str(SOURCE.parent)])
    given = os.environ | {
        "PYTHONPATH": path,
        "SEEN": str(seen),
        "OMP_NUM_THREADS": "1",
        "NFD_CACHE": str(tmp_path / "c"),
    }
    done = subprocess.run(
        [sys.executable, "work.py", commands], cwd=tmp_path, env=given, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert not seen.exists(), seen.read_text()
    for line in commands.splitlines():
        assert (tmp_path / line.split()[-1] / "result.json").exists()
    # Objects are unpickled where a worker starts (multiprocessing's own description of the process) and where a driver
    # and its workers talk. No setting, record or tensor that is read from a file is.
    readers = set((tmp_path / "seen.unpickled").read_text().splitlines())
    assert readers == {str(SOURCE / WIRE), multiprocessing.spawn.__file__}


def test_the_hook_sees_what_it_should(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HOOK)
    given = os.environ | {"PYTHONPATH": str(tmp_path), "SEEN": str(tmp_path / "seen")}
    for code in ("import socket; socket.socket()", "import socket; socket.getaddrinfo('localhost', 80)"):
        done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True)
        assert "not allowed here" in done.stderr
    subprocess.run([sys.executable, "-c", "import pickle; pickle.loads(pickle.dumps(OSError))"], env=given, check=True)
    assert (tmp_path / "seen.unpickled").read_text() == "<string>\n"
