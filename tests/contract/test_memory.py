"""What a library leaves of a process: the memory that others free beside wide layers goes back to
the system.
"""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

HELD = """
import os, numpy as np, nfd

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

nfd.ResNet(4, 2, 8192, 1, weights="structured")
before = resident()
block = np.ones(2**25)  # 256 MiB
assert resident() - before > 2**27
del block
print(resident() - before < 2**26)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other allocators decide for themselves"
)
def test_memory_that_is_freed_beside_wide_layers_goes_back() -> None:
    done = subprocess.run([sys.executable, "-c", HELD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
