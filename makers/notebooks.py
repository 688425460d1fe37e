"""Make the notebooks of the gallery from their scripts: ``python -m makers.notebooks [NAME ...]``.

They are run, too; without names, all of them.
What libraries write to the error stream is left out: it holds paths and advice of the machine that
ran them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def executed(script: Path) -> nbformat.NotebookNode:
    """The executed notebook of a script in cells."""
    notebook: nbformat.NotebookNode = jupytext.read(script)
    NotebookClient(
        notebook, timeout=None, resources={"metadata": {"path": str(EXAMPLES.parent)}}
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


if __name__ == "__main__":
    names = sys.argv[1:]
    scripts = [path for path in sorted(EXAMPLES.glob("*.py")) if "# %%" in path.read_text()]
    if names:
        scripts = [path for path in scripts if path.stem in names]
    for script in scripts:
        print(script.stem, flush=True)
        jupytext.write(executed(script), EXAMPLES / "notebooks" / f"{script.stem}.ipynb")
