"""Facts about the process and the machine that go beside results."""

from __future__ import annotations

import math
import platform
import re
from pathlib import Path


def peak_memory() -> float:
    """Largest resident size of this process so far, in bytes; not-a-number where the system does not tell.

    On Linux from /proc, because there getrusage also counts what the parent held before it started this process.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if found:
            return 1024.0 * int(found[1])
    try:
        import resource
    except ImportError:
        return math.nan
    unit = 1 if platform.system() == "Darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
