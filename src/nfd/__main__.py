"""``python -m nfd`` is the command ``nfd``."""

from __future__ import annotations

import sys

from nfd.cli import main

if __name__ == "__main__":
    sys.exit(main())
