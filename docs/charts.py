"""Make the images of the documentation by the commands that ``images/charts.toml`` lists.

Run: python docs/charts.py [NAME ...] [--data-dir DIR]   (or: make charts CHARTS=NAME.png DIR=...)
Commands run from the root of the repository and write to ``out``; a command that draws several images runs once.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs/images"
CHARTS: dict[str, dict[str, str]] = tomllib.loads((IMAGES / "charts.toml").read_text())


def arguments_of(command: str, data: str = "DIR") -> list[str]:
    """What this interpreter is given to run ``nfd ...`` or ``python ...``; ``data`` stands for DIR."""
    program, *rest = [data if part == "DIR" else part for part in shlex.split(command)]
    return (["-m", "nfd"] if program == "nfd" else []) + rest


def main() -> int:
    """Run and copy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CHARTS)}; all by default")
    parser.add_argument("--data-dir", help="CIFAR-10: its binary files, or a folder of images per class")
    given = parser.parse_args()
    if unknown := set(given.names) - set(CHARTS):
        parser.error(f"there is no chart {', '.join(sorted(unknown))}; there are {', '.join(CHARTS)}.")
    done: set[str] = set()
    for name in given.names or CHARTS:
        command = CHARTS[name]["command"]
        if "DIR" in command and given.data_dir is None:
            print(f"{name} is left as it is: {command!r} needs --data-dir.")
            continue
        if command not in done:
            print(f"$ {command}", flush=True)
            data = str(Path(given.data_dir).resolve()) if given.data_dir else "DIR"
            subprocess.run([sys.executable, *arguments_of(command, data)], cwd=ROOT, check=True)
            done.add(command)
        shutil.copyfile(ROOT / CHARTS[name]["file"], IMAGES / name)
        print(f"docs/images/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
