"""The Python file that a command reads: the user's model, and what it is trained on."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nfd.core.errors import (
    InputError,
)
from nfd.core.words import nearest

if TYPE_CHECKING:
    from nfd.families.family import Family
    from nfd.runs.task import Task


_NOUNS = ("family", "make_model", "task", "batches")
_FAMILY = ("blocks", "roles", "version")  # what a file may define beside make_model
_TASK = (  # and beside batches
    "loss", "eval_batches", "schedule", "make_optimizer", "weight_decay", "adamw_lr", "init_scale",
)  # fmt: skip


class Setup:
    """What a Python file defines: ``make_model`` or ``family``, ``batches`` or ``task``, and what belongs to them.

    The file may also define ``loss``, ``eval_batches``, ``schedule``, ``make_optimizer``, ``weight_decay``,
    ``adamw_lr``, ``init_scale``, ``blocks``, ``roles`` and ``version``. Its folder is on the path while it
    runs, so that it can import what lies beside it.

    Raises:
        InputError: naming the file, where it is not there or does not define what is needed.
    """

    def __init__(self, path: str, seed: int = 0) -> None:
        from nfd.core.random import global_streams

        self.path = path
        with global_streams(seed):  # a loader that shuffles gives the same batches every time
            self.names: dict[str, Any] = vars(_imported(path))
        for name in self.names:
            if near := _misspelt(name):
                print(f"nfd: {path} defines {name}, which is not read. Did you mean {near}?", file=sys.stderr)

    def family(self, base: tuple[int, int], rule: str | None = None, optimizer: str | None = None) -> Family:
        """The family that the file defines."""
        from nfd.families.family import Family, as_family

        given = self._either("family", "make_model")
        more = dict[str, Any]()
        if not isinstance(given, Family):
            more = {name: self.names[name] for name in _FAMILY if name in self.names}
            more["name"] = f"{Path(self.path).name}:{getattr(given, '__name__', 'make_model')}"
        return as_family(given, base, rule, optimizer, self.task.sample if self.has_task else None, **more)

    @property
    def has_task(self) -> bool:
        """Whether the file says what to train on."""
        return "task" in self.names or "batches" in self.names

    @property
    def task(self) -> Task:
        """The task that the file defines."""
        from nfd.runs.task import Task

        given = self._either("task", "batches")
        if isinstance(given, Task):
            return given
        more = {name: self.names[name] for name in _TASK if name in self.names}
        if callable(judged := more.get("eval_batches")):  # as batches may be
            more["eval_batches"] = judged()
        return Task(given() if callable(given) else given, **more)

    def _either(self, noun: str, plain: str) -> Any:
        for name in (noun, plain):
            if name in self.names:
                return self.names[name]
        raise InputError(f"{self.path} defines neither {noun} nor {plain}. {_WANTED}")


_WANTED = "Give a Python file with make_model(width, depth) and batches, a list of (inputs, targets)."


def _misspelt(name: str) -> str:
    """The name that was meant, where one is off by a letter or two; a longer or shorter one is another."""
    known = (*_NOUNS, *_FAMILY, *_TASK)
    close = () if name in known else difflib.get_close_matches(name, known, 1, cutoff=0.85)
    return next((near for near in close if not (near.startswith(name) or name.startswith(near))), "")


def _imported(path: str) -> Any:
    """The module that a file is. Its functions and classes travel to other processes as they are."""
    import cloudpickle

    file = Path(path).expanduser()
    if file.suffix != ".py" or not file.is_file():
        near = nearest(file.name, [own.name for own in file.parent.glob("*.py")])
        raise InputError(f"there is no Python file {path!r}.{near} {_WANTED}")
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
    module = ModuleType(f"nfd_setup_{file.stem}")
    module.__file__ = str(file.resolve())
    sys.modules[module.__name__] = module
    cloudpickle.register_pickle_by_value(module)
    try:  # no bytecode is kept, which an edit within a second would not renew
        exec(compile(file.read_bytes(), module.__file__, "exec"), vars(module))
    except SyntaxError as error:
        raise InputError(f"{error.filename}, line {error.lineno}: {error.msg}.") from error
    return module
