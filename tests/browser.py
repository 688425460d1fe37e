"""Pages in headless Chromium: what they say of themselves, how they look, and what they complain
of.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from tests.waiting import PATIENCE

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

# Said by a page inside a frame: the marks of the charts that are shown, and how far it is wider
# than its window.
_PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement, mode = location.hash.slice(1);
  if (mode === "dark") root.style.colorScheme = "dark";
  const shown = [...document.querySelectorAll(".chart")].filter((chart) => chart.offsetParent);
  parent.postMessage({ mode,
    marks: shown.map((chart) => chart.querySelectorAll(".role-mark path, .role-mark line").length),
    overflow: Math.max(root.scrollWidth, document.body.scrollWidth) - innerWidth, width: innerWidth,
    paper: getComputedStyle(document.body).backgroundColor }, "*");
});
</script></body>"""


@dataclass(frozen=True)
class Seen:
    """What Chromium wrote to its console, what the pages said, by mode, and the picture of all
    frames.
    """

    console: list[str]
    said: dict[str, dict[str, Any]]
    picture: Image.Image


def browser() -> str | None:
    """The browser of this machine."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def seen(page: str, frames: dict[str, tuple[int, int, int]], folder: Path) -> Seen:
    """``page`` in a frame of each mode (light, dark, phone), at a place from the top and of a width
    and height.

    A script ends the page in the place of ``</body>``: it posts what it sees to the parent, under
    the ``mode`` that is the page's fragment.
    """
    allowed = page.replace(
        "default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'", 1
    )
    (folder / "page.html").write_text(_PROBE.join(allowed.rsplit("</body>", 1)))
    placed = "".join(
        f'<iframe src="page.html#{mode}" '
        f'style="position:absolute;border:0;left:0;top:{top}px;width:{width}px;height:{height}px"></iframe>'
        for mode, (top, width, height) in frames.items()
    )
    keep = "const all={};onmessage=e=>{all[e.data.mode]=e.data;out.textContent=JSON.stringify(all)}"
    text = (
        f"<!doctype html><body style='margin:0'><script>{keep}</script>{placed}<pre "
        "id=out></pre></body>"
    )
    (folder / "frames.html").write_text(text)
    size = max(f[1] for f in frames.values()), max(f[0] + f[2] for f in frames.values())
    done = _chromium(folder, size)
    found = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    said = json.loads(html.unescape(found[1])) if found and found[1] else {}
    console = re.findall(r":CONSOLE.*", done.stderr)
    return Seen(console, said, Image.open(folder / "shot.png").convert("RGB"))


def _chromium(folder: Path, size: tuple[int, int]) -> subprocess.CompletedProcess[str]:
    name = browser()
    assert name is not None
    options = [
        *(
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--enable-logging=stderr",
        ),
        *("--no-first-run", "--disable-dev-shm-usage", "--virtual-time-budget=20000", "--dump-dom"),
        *(f"--user-data-dir={folder / 'profile'}", f"--screenshot={folder / 'shot.png'}"),
        f"--window-size={size[0]},{size[1]}",
    ]
    command = [name, *options, (folder / "frames.html").as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
