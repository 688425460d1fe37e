"""``nfd explore``: a page to play with."""

from __future__ import annotations

import shlex
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import tyro

from nfd.cli.options import Options
from nfd.core.errors import UsageError
from nfd.runs.config import Config


class ExploreCommand(Options, Config):
    """Open a page of sliders: what width, depth, horizon, rate and rule do to loss, updates and the best rate.

    Shows networks that come with the package, or with --from the runs of your own nfd sweep, nfd transfer or nfd
    capacity. Writes explore.html, which loads nothing from outside, explore.json with its numbers, and result.json to
    OUT. Nothing is trained. On a terminal the page is opened in the browser.
    """

    store: Annotated[str, tyro.conf.arg(name="from")] = ""
    """directory of runs of the paper's networks, from nfd sweep, nfd transfer or nfd capacity"""
    where: tuple[str, ...] = ()
    """with --from: settings that the runs must have, such as steps=30 rule=mup,depth-mup"""
    out: str = "out/explore"
    """directory for the page"""

    def files(self) -> list[str]:
        return ["explore.html", "explore.json", "result.json"]

    def check_used(self, config: Any) -> None:
        if self.where and not self.store:
            raise UsageError(f"--where chooses runs of a directory; got {' '.join(self.where)} without --from DIR.")

    def answer(self, config: Any, directory: Path, command: str) -> int:
        from nfd.core.files import staged, write_json, write_text
        from nfd.report.explore import about, explore_page

        table = self._table()
        with staged(directory) as folder:
            write_text(folder / "explore.html", explore_page(table))
            write_json(folder / "explore.json", table)
            write_json(folder / "result.json", {"command": command, "answers": [about(table)]})
        page = directory / "explore.html"
        print(f"Page: {page}")
        if sys.stdout.isatty():
            webbrowser.open(page.resolve().as_uri())
        return 0

    def _table(self) -> dict[str, Any]:
        """The numbers of the package, or of a directory."""
        if not self.store:
            from nfd.report.explore import stored

            return stored()
        from nfd.cli.runs import chosen
        from nfd.questions.explored import AXES, explored
        from nfd.store.store import Store

        with Store.read(self.store) as store:
            table = explored(store.records(chosen(self.where)), store)
        others = [shlex.quote(setting) for setting in self.where if setting.partition("=")[0] not in AXES]
        return table | {"store": shlex.quote(self.store), "where": others}
