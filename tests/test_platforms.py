"""What Windows and macOS lack is not needed: a sweep runs without it, in workers and in the
driver.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.contract.test_commands import SETUP

SMALL = (
    "transfer setup.py --widths 8 16 --depths 1 --rules mup --lr 1e-3 1e-2 0.1 --seeds 2 --workers "
    "1"
)

# Run by every process when it starts. Each of these is missing on Windows: modules, signal masks,
# what the system says of itself, directories that open.
CUSTOMIZE = """
import os, signal, sys

for module in ("fcntl", "resource"):
    sys.modules[module] = None  # so that an import raises ImportError
for owner, name in ((signal, "pthread_sigmask"), (os, "sysconf"), (os, "sched_getaffinity")):
    delattr(owner, name)
opened = os.open

def no_directories(path, flags, *rest, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return opened(path, flags, *rest, **more)

os.open = no_directories
"""

SCRIPT = """
if __name__ == "__main__":
    import sys

    from nfd.cli import main
    from nfd.core.machine import cores, memory_of
    from torch import device

    assert cores() >= 1 and memory_of(device("cpu")) > 2**20
    sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_sweep_runs_without_what_only_posix_has(tmp_path: Path) -> None:
    """No locks of folders, no signal masks, no sysconf, no directories that open: in the driver and
    in its workers.
    """
    for name, text in (("setup.py", SETUP), ("run.py", SCRIPT), ("sitecustomize.py", CUSTOMIZE)):
        (tmp_path / name).write_text(text)
    paths = os.pathsep.join([str(tmp_path), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    ended = subprocess.run(
        [sys.executable, "run.py", *SMALL.split()],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out/transfer/transfer.csv").exists()
