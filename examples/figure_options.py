"""Options of the examples that train networks beside those of ``nfd paper figure``."""

from __future__ import annotations

import argparse
from pathlib import Path


def parser(description: str | None, numbers: str) -> argparse.ArgumentParser:
    """Where the images, the networks and the page are; ``numbers`` is the file that the page is made from."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data-dir", help="CIFAR-10; by default scikit-learn's digits")
    options.add_argument(
        "--store", type=Path, default=Path("out/figures"), help="trained networks: nfd paper figure's OUT"
    )
    options.add_argument("--out", type=Path, default=Path("docs"))
    options.add_argument("--page", type=Path, help=f"a folder with {numbers}: write its page again")
    return options
