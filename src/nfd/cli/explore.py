"""``nfd explore``: a page to play with."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Any

from nfd.cli.options import Options
from nfd.runs.config import Config


class ExploreCommand(Options, Config):
    """Open a page of sliders: what width, depth, horizon, rate and rule do to loss, updates and the best rate.

    Writes explore.html, which loads nothing from outside, explore.json with its numbers, and result.json to OUT.
    Nothing is trained. On a terminal the page is opened in the browser.
    """

    out: str = "out/explore"
    """directory for the page"""

    def files(self) -> list[str]:
        return ["explore.html", "explore.json", "result.json"]

    def answer(self, config: Any, directory: Path, command: str) -> int:
        from nfd.core.files import staged, write_json, write_text
        from nfd.report.explore import about, explore_page, stored

        table = stored()
        with staged(directory) as folder:
            write_text(folder / "explore.html", explore_page(table))
            write_json(folder / "explore.json", table)
            write_json(folder / "result.json", {"command": command, "answers": [about(table)]})
        page = directory / "explore.html"
        print(f"Page: {page}")
        if sys.stdout.isatty():
            webbrowser.open(page.resolve().as_uri())
        return 0
