"""The Python file that a command reads: the user's model, and what it is trained on."""

from __future__ import annotations

import difflib
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nfd.core.errors import InputError
from nfd.core.words import nearest

if TYPE_CHECKING:
    from nfd.families.family import Family
    from nfd.runs.task import Task


# How names of tables of runs end.
_TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".gz")
_NOUNS = ("family", "make_model", "task", "batches")
# What a file may define beside make_model, and beside batches.
_FAMILY = ("blocks", "roles", "version")
_TASK = (
    "loss",
    "eval_batches",
    "schedule",
    "make_optimizer",
    "weight_decay",
    "adamw_lr",
    "init_scale",
)


# What is asked for on the command line, and might be looked for in the file.
_OPTIONS = ("lr", "rule", "optimizer")


class Setup:
    """What a Python file defines: ``make_model`` or ``family``, and ``batches`` or ``task``.

    The file may also define ``loss``, ``eval_batches``, ``schedule``, ``make_optimizer``,
    ``weight_decay``, ``adamw_lr``, ``init_scale``, ``blocks``, ``roles`` and ``version``. Its
    folder is on the path while it runs, so that it can import what lies beside it.

    Raises:
        InputError: naming the file, where it is not there or does not define what is needed.
    """

    def __init__(self, path: str, seed: int = 0) -> None:
        from nfd.core.random import global_streams

        self.path = path
        # With a seed, a loader that shuffles gives the same batches every time.
        with global_streams(seed):
            self.names: dict[str, Any] = vars(_imported(path))
        for name in self.names:
            near = _misspelt(name)
            if near:
                print(
                    f"nfd: {path} defines {name}, which is not read. Did you mean {near}?",
                    file=sys.stderr,
                )
            elif name in _OPTIONS and isinstance(self.names[name], str | int | float):
                print(
                    f"nfd: {path} defines {name}, which is not read. Pass it as --{name}.",
                    file=sys.stderr,
                )

    def family(
        self, base: tuple[int, int], rule: str | None = None, optimizer: str | None = None
    ) -> Family:
        """Return the family that the file defines."""
        from nfd.families.family import Family, as_family

        model = self._either("family", "make_model")
        settings = dict[str, Any]()
        if not isinstance(model, Family):
            settings = self._settings(_FAMILY)
            settings["name"] = f"{Path(self.path).name}:{getattr(model, '__name__', 'make_model')}"
        sample = None
        if self.has_task:
            sample = self.task.sample
        return as_family(model, base, rule, optimizer, sample, **settings)

    @property
    def has_task(self) -> bool:
        """Whether the file says what to train on."""
        return "task" in self.names or "batches" in self.names

    @property
    def task(self) -> Task:
        """The task that the file defines."""
        from nfd.runs.task import Task

        batches = self._either("task", "batches")
        if isinstance(batches, Task):
            return batches
        settings = self._settings(_TASK)
        # Both kinds of batches may be functions that return them.
        evaluated = settings.get("eval_batches")
        if callable(evaluated):
            settings["eval_batches"] = evaluated()
        if callable(batches):
            batches = batches()
        return Task(batches, **settings)

    def _settings(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the names that the file defines, with their values."""
        return {name: self.names[name] for name in names if name in self.names}

    def _either(self, noun: str, plain: str) -> Any:
        """Return the noun that the file defines, or else the plain thing of which one is made."""
        for name in (noun, plain):
            if name in self.names:
                return self.names[name]
        raise InputError(f"{self.path} defines neither {noun} nor {plain}. {_WANTED}")


_WANTED = (
    "Give a Python file with make_model(width, depth) and batches, a list of (inputs, targets)."
)


def _misspelt(name: str) -> str:
    """Return the name that was meant, if one differs by a letter or two; otherwise "".

    A longer or shorter one is another name.
    """
    names = (*_NOUNS, *_FAMILY, *_TASK)
    if name in names:
        return ""
    for near in difflib.get_close_matches(name, names, 1, cutoff=0.85):
        if not (near.startswith(name) or name.startswith(near)):
            return near
    return ""


def _imported(path: str) -> Any:
    """Run a file as a module. Its functions and classes travel to other processes as they are."""
    import cloudpickle

    file = Path(path).expanduser()
    if file.suffix != ".py" or not file.is_file():
        if file.name.lower().endswith(_TABLES):
            name = shlex.quote(path)
            raise InputError(
                f"{path!r} is not a Python file. A table of runs is read with --from: nfd "
                f"scaling-law --from {name}, of learning rates nfd transfer --from {name}."
            )
        near = nearest(file.name, [other.name for other in file.parent.glob("*.py")])
        raise InputError(f"there is no Python file {path!r}.{near} {_WANTED}")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
        folders = [folder, os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    module = ModuleType(f"nfd_setup_{file.stem}")
    module.__file__ = str(file.resolve())
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    # Compiled here, no bytecode is kept: an edit within a second would not renew it.
    try:
        exec(compile(file.read_bytes(), module.__file__, "exec"), vars(module))
    except SyntaxError as error:
        raise InputError(f"{error.filename}, line {error.lineno}: {error.msg}.") from error
    return module
