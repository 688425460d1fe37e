"""``fingerprint``: a hash of a function's code and of all that the code refers to.

It names a constructor, a loss or an optimizer in a store of training runs, where a name would stand
for two functions. It follows closures, defaults, bound arguments, objects, classes with their
bases, and the global names that the code reads, as far as they are the user's. Code of libraries is
named: by the files that were installed, except for the libraries that nfd itself computes with,
whose upgrades change rounding only.

It does not see what code finds out while it runs: files, environment variables, and attributes by
computed names. What the code writes and never reads, such as a counter or a log, does not count.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

# Standard library and nfd: a record holds the version of our numerics. The others compute what nfd
# computes, and their upgrades change rounding only.
_TRUSTED = {
    "nfd",
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "cloudpickle",
    "builtins",
    "typing",
    "typing_extensions",
}
_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
# in paths of installed packages
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

# Attributes of a class that say nothing of what it does: documentation, and what Python or
# dataclasses derive.
_DERIVED = {
    "__doc__",
    "__module__",
    "__dict__",
    "__weakref__",
    "__annotations__",
    "__annotate__",
    "__annotate_func__",
    "__annotations_cache__",
    "__firstlineno__",
    "__static_attributes__",
    "__parameters__",
    "__orig_bases__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__match_args__",
    "__slots__",
    "__qualname__",
    "_abc_impl",
    "__abstractmethods__",
}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice)
# Whether two equal constants are one object differs between code that was compiled and code from a
# cache.
_CONSTANTS = (tuple, frozenset, types.CodeType)
_DEEPEST = 100_000
_READS_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_READS = {*_READS_GLOBAL, "LOAD_DEREF", "LOAD_CLASSDEREF"}
_LOCAL = {*dis.haslocal, *dis.hasfree}
# Methods that change a container and return nothing.
_CHANGES = {
    "append",
    "appendleft",
    "extend",
    "extendleft",
    "insert",
    "remove",
    "clear",
    "sort",
    "reverse",
    "rotate",
    "add",
    "discard",
    "update",
}

# What cannot be compared is known by itself: it is like no other object, and like none of another
# process.
_incomparable = list[Any]()


def fingerprint(value: Any) -> str | None:
    """Hash what a function, a class or an object does.

    None where only trusted libraries decide that.

    Equal code gives equal hashes in every process of one minor version of Python, whose compiler
    decides what code is. Comments, docstrings, annotations and names of local variables do not
    count.
    """
    walk = _Walk()
    limit = sys.getrecursionlimit()
    # Deep structures, such as a chain of a thousand modules; calls of Python do not take the stack
    # of C.
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        walk.add(value)
    finally:
        sys.setrecursionlimit(limit)
    return walk.digest.hexdigest() if walk.has_users_code else None


class _Walk:
    """A walk through everything that a value refers to, each object once."""

    def __init__(self) -> None:
        self.digest = blake2b(digest_size=10)
        self.has_users_code = False
        self._visited = dict[int, int]()
        self._modules = set[tuple[str, tuple[str, ...]]]()
        # Objects made on the way, such as states: an id would be taken again if they were freed.
        self._alive = list[Any]()

    # ---- one value

    def add(self, value: Any) -> None:
        """Add a value of any type."""
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self._write(type(value).__name__, repr(value))
            return
        if type(value) not in _CONSTANTS:
            if id(value) in self._visited:
                self._write("again", str(self._visited[id(value)]))
                return
            self._visited[id(value)] = len(self._visited)
            self._alive.append(value)
        self._add_new(value)

    def _add_new(self, value: Any) -> None:
        if isinstance(value, functools.partial):
            # Before anything asks for its __dict__: a partial that was asked is not flattened in
            # another one.
            self._write("partial")
            self._add_all((value.func, value.args, value.keywords))
            return
        original = _uncompiled(value)
        if original is not None:
            self._write("compiled")
            self.add(original)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.MethodType):
            self._write("method")
            self.add(value.__func__)
            self._add_without_state(value.__self__, value.__func__)
        elif isinstance(value, type):
            self._add_class(value)
        elif isinstance(value, types.ModuleType):
            self._add_module(value, ())
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, staticmethod | classmethod):
            self._write(type(value).__name__)
            self.add(value.__func__)
        elif isinstance(value, property):
            self._write("property")
            self._add_all((value.fget, value.fset, value.fdel))
        elif isinstance(value, types.CellType):
            self.add(_content(value))
        # classes of the user's may have methods beside their items
        elif type(value) in (tuple, list):
            self._write(type(value).__name__, str(len(value)))
            self._add_all(value)
        elif type(value) in (dict, types.MappingProxyType):
            self._write("dict", str(len(value)))
            for key, item in value.items():
                self.add(key)
                self.add(item)
        elif type(value) in (set, frozenset):
            self._add_set(value)
        elif isinstance(value, functools.cached_property):
            self._write("cached property")
            self.add(value.func)
        elif not self._add_numbers(value):
            method = type(value).__call__ if callable(value) else None
            self._add_without_state(value, method)

    def _add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def _add_set(self, values: set[Any] | frozenset[Any]) -> None:
        """Add a set, whose order differs from process to process."""
        self._write("set", str(len(values)))
        digests = []
        for value in values:
            walk = _Walk()
            # A member may refer to the set.
            walk._visited = dict(self._visited)
            walk._modules = set(self._modules)
            walk.add(value)
            self.has_users_code = self.has_users_code or walk.has_users_code
            digests.append(walk.digest.hexdigest())
        self._write(*sorted(digests))

    def _add_numbers(self, value: Any) -> bool:
        """Add a tensor or an array, if the value is one."""
        numpy = sys.modules.get("numpy")
        torch = sys.modules.get("torch")
        if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
            self._write(
                "tensor", str(value.dtype), str(list(value.shape)), str(value.requires_grad)
            )
            if not value.is_meta:
                stored = value.detach().resolve_conj().resolve_neg().cpu()
                entries = stored.to_dense().contiguous().flatten()
                self.digest.update(entries.view(torch.uint8).numpy().data)
            return True
        if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
            self._write("array", str(value.dtype), str(value.shape))
            self.digest.update(numpy.ascontiguousarray(value).tobytes())
            return True
        return False

    def _add_without_state(self, value: Any, method: Any) -> None:
        """Add an object without the attributes that a method of it writes and never reads."""
        if isinstance(value, type | types.ModuleType):
            self.add(value)
        else:
            self._add_object(value, frozenset(_state_of_self(method)))

    def _add_object(self, value: Any, left_out: frozenset[str]) -> None:
        """Add an object by the parts that ``pickle`` would store.

        Where it has none it is added by itself.
        """
        # it moves on whenever it is read
        if isinstance(value, Iterator):
            self._add_incomparable(value)
            return
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            parts = value.__reduce_ex__(4) if reduce is None else reduce(value)
        # locks, files: whatever says that it is not data
        except Exception:
            self._add_incomparable(value)
            return
        if isinstance(parts, str):
            # The name of something in its module, such as a dtype, or a function behind
            # ``functools.cache``.
            self.add(type(value))
            self._write(parts)
            self.add(dict(getattr(value, "__dict__", {})))
            return
        make, arguments, *rest = parts
        self._add_all((make, arguments))
        for part in rest:
            if isinstance(part, Iterator):  # the items of a subclass of list or dict
                self.add(list(part))
            elif isinstance(part, dict):
                self.add({name: content for name, content in part.items() if name not in left_out})
            else:
                self.add(part)

    def _add_incomparable(self, value: Any) -> None:
        """Add what cannot be pickled.

        A function is added by itself, as it may be any; a lock or a file by its type.
        """
        self._add_name(type(value))
        if not callable(value):
            return
        self.has_users_code = True
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):
            self._write(value.__qualname__)
            return
        index = next((k for k, other in enumerate(_incomparable) if other is value), None)
        if index is None:
            index = len(_incomparable)
            _incomparable.append(value)
        self._write(str(os.getpid()), str(_process_started()), str(index))

    # ---- functions and classes

    def _add_function(self, function: types.FunctionType) -> None:
        """Add a function with its defaults and closure.

        A function of the user's is added with its code and the globals that it reads.
        """
        code = function.__code__
        if _is_library(code.co_filename):
            self._add_library(function.__module__ or "", function.__qualname__)
            # What a decorator of a library wraps.
            self._add_all((function.__defaults__, function.__kwdefaults__, function.__closure__))
        else:
            self.has_users_code = True
            self._write("function")
            self._add_code(code)
            uses = _outer_uses(code)
            for name, value in _globals_of(function):
                self._write("global", name)
                if not uses[name].is_state:
                    self._add_global(value, code)
            self._add_all((function.__defaults__, function.__kwdefaults__))
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                if not uses[name].is_state:
                    self.add(cell)
        attributes = {
            name: value for name, value in vars(function).items() if name != "__wrapped__"
        }
        self.add(attributes)

    def _add_global(self, value: Any, code: types.CodeType) -> None:
        """Add what a global name stands for; of a module only what the code reads of it."""
        if isinstance(value, types.ModuleType):
            self._add_module(value, sorted(_names(code)))
        else:
            self.add(value)

    def _add_code(self, code: types.CodeType) -> None:
        """Add instructions by their meaning.

        Lines, docstrings and names of local variables do not count.
        """
        parameters = code.co_argcount + code.co_kwonlyargcount
        self._write("code", str(code.co_flags), *code.co_varnames[:parameters])
        # Python 3.11 and later keep what handles exceptions outside of the instructions.
        self.digest.update(getattr(code, "co_exceptiontable", b""))
        instructions = list(dis.get_instructions(code))
        for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
            if (
                following is not None
                and following.opname == "STORE_NAME"
                and following.argval in _DERIVED
            ):
                continue  # of the body of a class: its docstring or the number of its first line
            if instruction.opcode in _LOCAL:
                self._write(instruction.opname, str(instruction.arg))
            else:
                self._write(instruction.opname)
                self.add(instruction.argval)

    def _add_class(self, kind: type) -> None:
        """Add a class: one of the user's with its bases, methods and attributes."""
        # Some classes of C modules have a descriptor in place of a name.
        module = kind.__module__ if isinstance(kind.__module__, str) else "builtins"
        if _is_of_library(module, kind.__qualname__, kind):
            self._add_library(module, kind.__qualname__)
            return
        self.has_users_code = True
        self._write("class", kind.__name__)
        self.add(kind.__bases__)
        if type(kind) is not type:
            self.add(type(kind))
        for name, value in sorted(vars(kind).items()):
            if name not in _DERIVED:
                self._write("attribute", name)
                self.add(value)

    # ---- modules and libraries

    def _add_module(self, module: types.ModuleType, names: Iterable[str]) -> None:
        """Add a module: of a library by name, of the user's by what code reads of it, or whole."""
        file = (
            getattr(module, "__file__", None)
            or next(iter(getattr(module, "__path__", ())), "") + os.sep
        )
        is_standard = module.__name__.partition(".")[0] in {*sys.stdlib_module_names, *_TRUSTED}
        if is_standard or _is_library(file):
            self._add_library(module.__name__, "")
            return
        self.has_users_code = True
        self._write("module", module.__name__)
        names = tuple(names)
        # modules may import each other
        if (module.__name__, names) in self._modules:
            return
        self._modules.add((module.__name__, names))
        content = {name: value for name, value in vars(module).items() if not name.startswith("__")}
        read = [name for name in names if name in content]
        if all(isinstance(content[name], types.ModuleType) for name in read):
            # Code that holds a module reads of it by names that are not seen here.
            read = sorted(set(content) if not read or not names else read)
        for name in read:
            self._write("attribute", name)
            value = content[name]
            if isinstance(value, types.ModuleType):
                self._add_module(value, names)
            else:
                self.add(value)

    def _add_library(self, module: str, name: str) -> None:
        package = module.partition(".")[0]
        self._write("library", module, name)
        if package not in _TRUSTED and package not in sys.stdlib_module_names:
            self.has_users_code = True
            self._write(_installed(package))

    def _add_name(self, kind: type) -> None:
        self._write("of", str(kind.__module__), kind.__qualname__)

    def _write(self, *words: str) -> None:
        for word in words:
            content = word.encode(errors="surrogatepass")
            # Lengths keep apart ("ab", "c") and ("a", "bc").
            self.digest.update(f"{len(content)}:".encode() + content)


def _uncompiled(value: Any) -> Any:
    """What ``torch.compile`` was given, if the value is what it returned."""
    attributes = getattr(value, "__dict__", {})
    if isinstance(value, types.FunctionType) and "_torchdynamo_orig_callable" in attributes:
        return attributes["_torchdynamo_orig_callable"]
    modules = attributes.get("_modules") if isinstance(attributes, dict) else None
    return modules.get("_orig_mod") if isinstance(modules, dict) else None


def _content(cell: types.CellType) -> Any:
    """Return the content of a cell.

    A cell has none yet in a function that closes over itself; a text stands for it.
    """
    try:
        return cell.cell_contents
    except ValueError:
        return "empty cell"


def _is_library(file: str) -> bool:
    """Whether a file is of the standard library, or of an installed or trusted package.

    A trusted package may lie anywhere.
    """
    if file.startswith((*_STANDARD, "<frozen")) or any(part in file for part in _PACKAGES):
        return True
    return file.startswith(tuple(_trusted_folders()))


def _trusted_folders() -> list[str]:
    """List the folders of the trusted packages that are loaded.

    Some are installed on a path of their own.
    """
    files = [getattr(sys.modules.get(package), "__file__", None) for package in sorted(_TRUSTED)]
    folders = [os.path.dirname(file) + os.sep for file in files if file]
    return [folder for folder in folders if not folder.startswith(_STANDARD)]


def _is_of_library(module: str, name: str, value: Any) -> bool:
    """Whether a class stands under its name in the standard library or a package."""
    place = sys.modules.get(module)
    file = getattr(place, "__file__", None) or ""
    is_known = module.partition(".")[0] in {*sys.stdlib_module_names, *_TRUSTED} or _is_library(
        file
    )
    if place is None or module == "__main__" or not is_known:
        return False
    in_its_place: Any = place
    for part in name.split("."):
        in_its_place = getattr(in_its_place, part, None)
    if in_its_place is None:
        # A class that user's code makes by exec() says that it is of builtins. Classes of C modules
        # may have no place.
        return "<locals>" not in name and module != "builtins"
    return in_its_place is value


def _names(code: types.CodeType) -> set[str]:
    """List the names of globals and attributes in a function and the functions inside of it."""
    names = set[str]()
    for part in _with_inner(code):
        names.update(part.co_names)
    return names


def _globals_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """List the global names that a function reads, with what they stand for.

    It reads those that it imports when it is called, too.
    """
    values = dict[str, Any]()
    for code in _with_inner(function.__code__):
        instructions = list(dis.get_instructions(code))
        for index, instruction in enumerate(instructions):
            name = instruction.argval
            if instruction.opname in _READS_GLOBAL and name in function.__globals__:
                values[name] = function.__globals__[name]
            elif instruction.opname == "IMPORT_NAME":
                # Two constants come before it: how many packages up, and the names that are
                # imported from it.
                level = instructions[index - 2].argval
                if not isinstance(level, int):
                    level = 0
                values[f"import {name}"] = _imported(function, name, level)
    return sorted(values.items())


@dataclass
class _Uses:
    """How often code uses a variable or an attribute, and how many of these uses only change it."""

    count: int = 0
    changes: int = 0

    @property
    def is_state(self) -> bool:
        """Whether the code writes it and never reads it.

        Such a log, cache or counter decides no number.
        """
        return 0 < self.count == self.changes


def _outer_uses(code: types.CodeType) -> dict[str, _Uses]:
    """How a function, and the functions inside of it, use outer variables, by their names."""
    uses = defaultdict[str, _Uses](_Uses)
    for part in _with_inner(code):
        instructions = list(dis.get_instructions(part))
        for index, instruction in enumerate(instructions):
            if instruction.opname in _READS:
                name = instruction.argval
                uses[name].count += 1
                uses[name].changes += _is_change(instructions[index + 1 : index + 5], name)
    return uses


def _state_of_self(function: Any) -> set[str]:
    """The attributes of its object that a method writes and never reads."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_varnames:
        return set()
    uses = defaultdict[str, _Uses](_Uses)
    instructions = list(dis.get_instructions(code))
    for index, instruction in enumerate(instructions):
        if instruction.argval != code.co_varnames[0] or not instruction.opname.startswith(
            "LOAD_FAST"
        ):
            continue
        following = instructions[index + 1 : index + 7]
        names = [later.opname for later in following]
        if names[:2] == ["COPY", "LOAD_ATTR"]:  # self.a += x
            uses[following[1].argval].count += 1
            uses[following[1].argval].changes += 1
        elif names[:1] == ["LOAD_ATTR"]:
            name = following[0].argval
            uses[name].count += 1
            uses[name].changes += _is_change(following[1:], name)
    return {name for name, use in uses.items() if use.is_state}


def _is_change(following: Sequence[dis.Instruction], name: str) -> bool:
    """Whether the instructions after the one that reads a variable only change it.

    Nothing then sees its value. ``v.append(x)`` calls a method that returns nothing; ``v[k] = x``
    ends with variable, key and STORE_SUBSCR, ``v[k] += x`` copies variable and key first; ``v +=
    1`` stores what it read under the same name.
    """
    names = [instruction.opname for instruction in following]
    if names[:1] in (["LOAD_METHOD"], ["LOAD_ATTR"]):
        return following[0].argval in _CHANGES
    if names[1:2] == ["STORE_SUBSCR"] or names[1:3] == ["COPY", "COPY"]:
        return True
    is_counted = names[:2] == ["LOAD_CONST", "BINARY_OP"] and names[2:3] in (
        ["STORE_GLOBAL"],
        ["STORE_DEREF"],
    )
    return is_counted and following[2].argval == name


def _with_inner(code: types.CodeType) -> list[types.CodeType]:
    """The code of a function and of the functions inside of it."""
    codes = [code]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            codes += _with_inner(constant)
    return codes


def _imported(function: types.FunctionType, name: str, level: int) -> types.ModuleType | None:
    """Return the module that a function imports when it is called.

    None where that fails, which the call will say.
    """
    package = function.__globals__.get("__package__") or ""
    try:
        return importlib.import_module("." * level + name, package)
    except Exception:
        return None


@functools.cache
def _installed(package: str) -> str:
    """Say what is installed under the name of a package.

    That is its version, and a hash of its files where pip wrote one.
    """
    distribution: Callable[[str], importlib.metadata.Distribution] = importlib.metadata.distribution
    try:
        installed = distribution(package)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(package, [])
        if not names:
            return "unknown"
        installed = distribution(names[0])
    record = installed.read_text("RECORD") or ""
    # Compiled files differ from machine to machine, and what pip notes of an installation is not
    # code.
    lines = [
        line for line in record.splitlines() if ".pyc" not in line and ".dist-info/" not in line
    ]
    content = "\n".join(lines).encode()
    return f"{installed.version} {blake2b(content, digest_size=10).hexdigest()}"


@functools.cache
def _process_started() -> int:
    """A number that another process with the same id does not have."""
    return int.from_bytes(os.urandom(8))
