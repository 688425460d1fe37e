"""The wheel as its users get it: built, installed away from the repository, alone and with each extra.

make release-check                            # with the versions of constraints.txt
python -m tests.release --versions oldest     # with the lowest versions that pyproject.toml allows
python -m tests.release --versions newest     # with the newest ones there are

It takes minutes and some gigabytes, which it removes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETUP = """
import nfd
from nfd.data import digits

family = nfd.resnets(64, 10)
batches = list(zip(*digits().batches(size=4, steps=2, seed=0)))
"""
PREDICT = "nfd predict setup.py --depth 2 --width 32 --replicates 2"
ALONE = (
    "nfd --version",
    f"{PREDICT} --out predict",
    "python -c 'import nfd; [getattr(nfd, name) for name in nfd.__all__]'",
)
EXTRAS = {"ray": f"{PREDICT} --out ray --executor ray"}  # what runs with it, and fails without it


def requirements(versions: str) -> str:
    """Constraints for pip."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    if versions == "tested":
        return (ROOT / "constraints.txt").read_text()
    if versions == "newest":
        return ""
    bounds = [*project["dependencies"], *(line for extra in EXTRAS for line in optional[extra])]
    return "\n".join(bound.replace(">=", "==") for bound in bounds)


def main(versions: str) -> list[str]:
    """What failed, in a folder away from the repository with an environment of its own."""
    failed = []
    with tempfile.TemporaryDirectory() as place:
        folder, bin_ = Path(place), Path(place) / "venv" / "bin"
        (folder / "constraints.txt").write_text(requirements(versions))
        (folder / "setup.py").write_text(SETUP)
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        pip = [bin_ / "python", "-m", "pip", "--disable-pip-version-check"]
        subprocess.run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
        (wheel,) = folder.glob("nfd-*.whl")

        def install(extra: str) -> None:
            constrained = ["install", "--quiet", "--constraint", folder / "constraints.txt"]
            subprocess.run([*pip, *constrained, f"{wheel}{extra}"], check=True)

        def expect(command: str, *, works: bool) -> None:
            path = {"PATH": f"{bin_}:/usr/bin:/bin", "HOME": place}
            ended = subprocess.run(command, shell=True, cwd=folder, env=path, capture_output=True, text=True)
            good = (ended.returncode == 0) == works
            print(f"{'ok' if good else 'FAILED'}: {'' if works else 'without its extra: '}{command}", flush=True)
            if not good:
                print(ended.stdout[-2000:], ended.stderr[-4000:])
                failed.append(command)

        install("")
        for command in ALONE:
            expect(command, works=True)
        for extra, command in EXTRAS.items():
            expect(command, works=False)
            install(f"[{extra}]")
            expect(command, works=True)
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", choices=("tested", "oldest", "newest"), default="tested")
    sys.exit(bool(main(parser.parse_args().versions)))
