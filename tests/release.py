"""The release as its users get it: sdist and wheel, installed and tried in a folder away from the
repository.

make release-check                            # newest versions, this Python
make release-check VERSIONS=oldest            # the lowest versions that pyproject.toml allows
make release-check INTERPRETER=python3.14     # another Python
make release-check VERSIONS=tested            # the versions of constraints.txt

It needs a package index that has PyTorch, some minutes, and 2 GB of disk; with PyTorch for CUDA, as
PyPI has it for Linux, 8 GB. For PyTorch without CUDA name its index in PIP_EXTRA_INDEX_URL, or an
environment that has it (`--venv`).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SIZES = "--widths 16 32 --depths 1 2"
COMMANDS = (  # of the README, at small sizes; a check ends with 1 where it finds a fault
    "nfd --version && nfd --help",
    "python -c 'import nfd; [getattr(nfd, name) for name in nfd.__all__]'",
    f"nfd check setup.py {SIZES} --lr 0.004 --steps 2 --rule complete-p --out check || [ $? = 1 ]",
    f"nfd transfer setup.py {SIZES} --lr 0.001 0.002 0.004 0.008 --rules complete-p --seeds 2 "
    "--out transfer",
    "python -m pytest -q -p no:cacheprovider -m 'not slow' "
    "tests/contract/test_{public,nouns,wide}.py",
)
EXTRA = "ray"  # one that fails without it and runs with it
PREDICT = "nfd predict setup.py --base 16 1 --depth 1 --width 32 --replicates 2 --weights dense"
IN_SDIST = (
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "Makefile",
    "docs/conf.py",
    "tests/contract/test_public.py",
)
IN_WHEEL = (
    "nfd/py.typed",
    "nfd/__init__.pyi",
    "nfd/report/page.html",
    "nfd/report/page.css",
    "nfd/laws/priors/rates.json",
)


def requirements(versions: str) -> str:
    """Constraints for pip."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if versions == "tested":
        return (ROOT / "constraints.txt").read_text()
    bounds = [*project["dependencies"], *project["optional-dependencies"][EXTRA]]
    return "\n".join(bound.replace(">=", "==") for bound in bounds) if versions == "oldest" else ""


def main(versions: str, interpreter: str, venv: Path | None, *, extra: bool) -> list[str]:
    """What failed."""
    failed: list[str] = []

    def judge(what: str, good: bool, said: str = "") -> None:
        print(f"{'ok' if good else 'FAILED'}: {what}", flush=True)
        if not good:
            print(said)
            failed.append(what)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        venv = (venv or folder / "venv").resolve()
        if not venv.exists():
            subprocess.run([interpreter, "-m", "venv", venv], check=True)
        pip = [
            venv / "bin" / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        subprocess.run([*pip, "build"], check=True)
        build = [venv / "bin" / "python", "-m", "build", "--outdir", folder, ROOT]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (sdist,) = folder.glob("nfd-*.tar.gz")
        (wheel,) = folder.glob("nfd-*.whl")
        with tarfile.open(sdist) as packed, zipfile.ZipFile(wheel) as zipped:
            own = {name.partition("/")[2] for name in packed.getnames()}
            names = zipped.namelist()
        judge("the sdist has tests, documentation, licence and citation", set(IN_SDIST) <= own)
        alone = all(re.match(r"nfd(-[\d.]+\.dist-info)?/", name) for name in names)
        judge(
            "the wheel has types and templates, and nothing beside them",
            alone and set(IN_WHEEL) <= set(names),
        )

        (folder / "constraints.txt").write_text(requirements(versions))
        readme = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        (folder / "setup.py").write_text(
            next(block for block in readme if "make_model = " in block)
        )
        shutil.copytree(ROOT / "tests" / "contract", folder / "tests" / "contract")
        shutil.copy(ROOT / "tests" / "models.py", folder / "tests")
        (folder / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers =\n  slow\n  long\n")

        def expect(command: str, *, works: bool = True) -> None:
            path = {"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "HOME": place, "OMP_NUM_THREADS": "1"}
            ended = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=path, capture_output=True, text=True
            )
            said = ended.stdout[-2000:] + ended.stderr[-4000:]
            judge(
                ("" if works else "without its extra fails: ") + command,
                (ended.returncode == 0) == works,
                said,
            )

        constrained = [*pip, "--constraint", folder / "constraints.txt"]
        subprocess.run([*constrained, "--force-reinstall", "--no-deps", wheel], check=True)
        subprocess.run([*constrained, wheel], check=True)
        expect("pip check")
        expect("! pip list | grep -iE '^(lightning|ray|transformers|wandb) '")
        subprocess.run([*pip, "pytest"], check=True)
        for command in (*COMMANDS, f"{PREDICT} --out predict"):
            expect(command)
        if extra:
            expect(f"{PREDICT} --out ray --executor ray", works=False)
            subprocess.run([*constrained, f"{wheel}[{EXTRA}]"], check=True)
            expect(f"{PREDICT} --out ray --executor ray")
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", choices=("newest", "oldest", "tested"), default="newest")
    parser.add_argument(
        "--interpreter", default=sys.executable, help="the Python of the environment"
    )
    parser.add_argument("--venv", type=Path, help="an environment to install into, which is kept")
    parser.add_argument("--extra", action="store_true", help=f"try the extra {EXTRA} too")
    given = parser.parse_args()
    sys.exit(bool(main(given.versions, given.interpreter, given.venv, extra=given.extra)))
