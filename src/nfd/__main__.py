"""``python -m nfd`` is the command ``nfd``."""

from __future__ import annotations

import sys

from nfd.cli.main import main

sys.exit(main())
