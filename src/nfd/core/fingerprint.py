"""``fingerprint``: a hash of a function's code and of all that the code refers to.

It names a constructor, a loss or an optimizer in a store of training runs, where a name would stand
for two functions. It follows closures, defaults, bound arguments, objects, classes with their
bases, and the global names that the code reads, as far as they are the user's. Code of libraries is
named: by the files that were installed, except for the libraries that nfd itself computes with,
whose upgrades change rounding only. Objects of libraries are named with their state.

It does not see what code finds out while it runs: files, environment variables, attributes and
modules by computed names. An object is what ``pickle`` would store of it. What the code writes and
never reads, such as a counter or a log, does not count.
"""

from __future__ import annotations

import copyreg
import dis
import functools
import importlib
import importlib.metadata
import importlib.util
import io
import os
import sys
import sysconfig
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
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

# Attributes of a class that say nothing of what it does: documentation, and what Python, a
# dataclass or the first pickle of an instance derives.
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
    "__slotnames__",
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
_READS_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}
_NAMING = {*_READS_GLOBAL, *_READS_ATTRIBUTE}
_LOCAL = {*dis.haslocal, *dis.hasfree}
# Methods that change a container and return nothing. Objects of other types have methods of these
# names that compute, such as ``Tensor.add``.
_CONTAINERS = (list, dict, set, deque, defaultdict, OrderedDict, Counter)
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

# What ``v += x`` and ``v[k] = x`` only change, beside containers and arrays.
_COUNTERS = (int, float, str)
# Methods that decide no number of a training run, whatever they read.
_SHOWING = {"__repr__", "__str__", "__eq__", "__hash__", "__del__"}
# Functions by which code reads global names that it does not hold.
_READS_ANY_GLOBAL = {"globals", "eval", "exec"}
_IMPORTS = {"import_module", "__import__"}

# What cannot be compared is known by itself: it is like no other object, and like none of another
# process.
_incomparable = list[Any]()


def fingerprint(value: Any) -> str:
    """Hash what a function, a class or an object does.

    Equal code gives equal hashes in every process of one minor version of Python, whose compiler
    decides what code is. Comments, docstrings, annotations and names of local variables do not
    count.
    """
    return _walked(value).digest.hexdigest()


def fingerprint_of_others(value: Any) -> str | None:
    """Hash what does more than code of nfd with plain data, as ``fingerprint`` does; else None."""
    walk = _walked(value)
    return walk.digest.hexdigest() if walk.has_others_code else None


def _walked(value: Any) -> _Walk:
    walk = _Walk()
    limit = sys.getrecursionlimit()
    # Deep structures, such as a chain of a thousand modules; calls of Python do not take the stack
    # of C.
    sys.setrecursionlimit(max(limit, _DEEPEST))
    try:
        walk.add(value)
        for place, name, function in _patches():
            walk.add((place, name, function))
        walk.finish()
    finally:
        sys.setrecursionlimit(limit)
    return walk


def logs_of(function: types.FunctionType) -> set[str]:
    """List the names of a function's closure that it changes and never reads, such as a log."""
    code = function.__code__
    uses = _outer_uses(code)
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    return {name for name, cell in cells if uses[name].only_change(_content(cell))}


class _Walk:
    """A walk through everything that a value refers to, each object once."""

    def __init__(self) -> None:
        self.digest = blake2b(digest_size=10)
        self.has_others_code = False
        self._visited = dict[int, int]()
        self._modules = set[tuple[str, tuple[str, ...]]]()
        # Objects made on the way, such as states: an id would be taken again if they were freed.
        self._alive = list[Any]()
        self._attributes = _AttributesOfCode()
        # Attributes that code changes, with their object's type: they count if code reads them.
        self._changed = list[tuple[str, Any, type]]()

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
            self._attributes.texts.add(value.__name__)
            self._add_all((value.__func__, value.__self__))
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
            self._add_object(value)

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
            walk.finish()
            self.has_others_code = self.has_others_code or walk.has_others_code
            digests.append(walk.digest.hexdigest())
        self._write(*sorted(digests))

    def _add_numbers(self, value: Any) -> bool:
        """Add a tensor or an array, if the value is one."""
        numpy = sys.modules.get("numpy")
        torch = sys.modules.get("torch")
        if torch is not None and type(value) in (torch.Tensor, torch.nn.Parameter):
            self.has_others_code = True
            self._write(
                "tensor", str(value.dtype), str(list(value.shape)), str(value.requires_grad)
            )
            if not value.is_meta:
                stored = value.detach().resolve_conj().resolve_neg().cpu()
                entries = stored.to_dense().contiguous().flatten()
                self.digest.update(entries.view(torch.uint8).numpy().data)
            return True
        if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
            self.has_others_code = True
            self._write("array", str(value.dtype), str(value.shape))
            self.digest.update(numpy.ascontiguousarray(value).tobytes())
            return True
        return False

    def _add_object(self, value: Any) -> None:
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
            # of an object with __slots__ a pair
            for state in part if type(part) is tuple else (part,):
                if type(state) is dict:
                    self._add_state(state, value)
                elif not isinstance(state, Iterator):
                    self.add(state)

    def _add_state(self, state: Mapping[Any, Any], holder: Any) -> None:
        """Add the attributes of an object; later those that the code so far only changes."""
        self._write("state")
        as_new = _as_new(holder)
        for name, content in state.items():
            if name in as_new and (content is as_new[name] or not (content or as_new[name])):
                continue
            # hooks have the next numbers of a process as keys
            if (
                name in as_new
                and isinstance(content, dict)
                and all(type(k) is int for k in content)
            ):
                content = list(content.values())
            if self._attributes.may_only_change(name, content):
                self._changed.append((name, content, type(holder)))
                continue
            self._add_all((name, content))

    def finish(self) -> None:
        """Add the attributes that code changes and other code reads.

        They may hold code that reads more of them.
        """
        read: list[tuple[str, Any, type]] | None = None
        while read or read is None:
            read = [a for a in self._changed if self._attributes.are_read(a[0], a[2])]
            self._changed = [a for a in self._changed if not any(a is other for other in read)]
            for name, content, _ in read:
                self._write("attribute", name)
                self.add(content)

    def _add_incomparable(self, value: Any) -> None:
        """Add what cannot be pickled.

        A function is added by itself, as it may be any, and an iterator, as it holds what it will
        give; a lock, a file or a counter by its type.
        """
        self._add_name(type(value))
        is_iterator = isinstance(value, Iterator) and not isinstance(value, io.IOBase | count)
        if not callable(value) and not is_iterator:
            return
        self.has_others_code = True
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
            self.has_others_code = True
            self._write("function")
            self._add_code(code)
            self._attributes.add(code)
            uses = _outer_uses(code)
            for name, value in _globals_of(function):
                self._write("global", name)
                if not uses[name].only_change(value):
                    self._add_global(value, code)
            self._add_all((function.__defaults__, function.__kwdefaults__))
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                if not uses[name].only_change(_content(cell)):
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
        instructions = _instructions(code)
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
        self.has_others_code = True
        self._write("class", kind.__name__)
        self.add(kind.__bases__)
        if type(kind) is not type:
            self.add(type(kind))
        for name, value in vars(kind).items():
            self._attributes.add_method(name, value)
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
        self.has_others_code = True
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
        if package not in ("nfd", "builtins"):
            self.has_others_code = True
        if package not in _TRUSTED and package not in sys.stdlib_module_names:
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
        instructions = _instructions(code)
        for index, instruction in enumerate(instructions):
            name = instruction.argval
            if instruction.opname in _READS_GLOBAL and name in function.__globals__:
                values[name] = function.__globals__[name]
            elif instruction.opname in _READS_GLOBAL and name in _READS_ANY_GLOBAL:
                values.update(_defined_beside(function))
            elif instruction.opname in _NAMING and name in _IMPORTS:
                module = instructions[index + 1].argval
                if isinstance(module, str):
                    values[f"import {module}"] = _imported(function, module, 0)
            elif instruction.opname == "IMPORT_NAME":
                # Two constants come before it: how many packages up, and the names that are
                # imported from it.
                level = instructions[index - 2].argval
                if not isinstance(level, int):
                    level = 0
                values[f"import {name}"] = _imported(function, name, level)
    return sorted(values.items())


def _defined_beside(function: types.FunctionType) -> dict[str, Any]:
    """Return the functions and classes of a function's module, which it may read by any name."""
    module = function.__globals__.get("__name__")
    return {
        name: value
        for name, value in function.__globals__.items()
        if isinstance(value, types.FunctionType | type) and value.__module__ == module
    }


@dataclass
class _Uses:
    """How often code uses a variable or an attribute, and how many of these uses only change it."""

    count: int = 0
    stores: int = 0  # v += x, v[k] = x
    calls: int = 0  # v.append(x)

    def add(self, change: str | None) -> None:
        """Count a use, by what ``_change`` says of it."""
        self.count += 1
        self.stores += change == "store"
        self.calls += change == "call"

    def only_change(self, value: Any) -> bool:
        """Whether the code writes this value and never reads it.

        Such a log, cache or counter decides no number.
        """
        if not 0 < self.count == self.stores + self.calls:
            return False
        return _is_changed_only(value, self.calls > 0)


def _is_changed_only(value: Any, by_method: bool) -> bool:
    """Whether what looks like a change of a value is nothing more, by its type."""
    if by_method:
        return type(value) in _CONTAINERS
    is_array = type(value).__module__.partition(".")[0] in ("torch", "numpy")
    return type(value) in (*_CONTAINERS, *_COUNTERS) or is_array


class _AttributesOfCode:
    """The attributes that the code of a walk reads, and those that it only changes, by name."""

    def __init__(self) -> None:
        # texts in code, and names of attributes and globals that it reads: code calls no others
        self.texts = set[str]()
        self._uses = defaultdict[str, _Uses](_Uses)
        # by the name of a method; under None by functions, which whoever holds them may call
        self._read = defaultdict[str | None, set[str]](set)
        self._methods = dict[int, str]()

    def add_method(self, name: str, value: Any) -> None:
        """Note what stands in a class under a name, before its code is added."""
        parts = [value, *(getattr(value, part, None) for part in _PARTS_OF_METHOD)]
        for part in parts:
            while isinstance(part, types.FunctionType):
                self._methods[id(part.__code__)] = name
                part = getattr(part, "__wrapped__", None)

    def add(self, code: types.CodeType) -> None:
        """Add the code of a function, with the functions inside of it."""
        method = self._methods.get(id(code))
        for part in _with_inner(code):
            names, texts, uses = _uses_of_attributes(part)
            self.texts |= names
            self._read[method] |= texts
            for name, change in uses:
                self._uses[name].add(change)
                if change is None:
                    self._read[method].add(name)

    def may_only_change(self, name: Any, content: Any) -> bool:
        """Whether code changes an attribute, so that it counts only if other code reads it."""
        if name not in self._uses:
            return False
        uses = self._uses[name]
        return uses.stores + uses.calls > 0 and _is_changed_only(content, uses.calls > 0)

    def are_read(self, name: str, holder: type) -> bool:
        """Whether code that a training may run reads an attribute of an object of some type."""
        for method, names in self._read.items():
            is_special = str(method).startswith("__") and method not in _SHOWING
            if name in names and (method is None or is_special or method in self.texts):
                return True
        return name in _names_in_libraries(holder)


# where a property, a static method or a cached property has its functions
_PARTS_OF_METHOD = ("fget", "fset", "fdel", "__func__", "func")


@functools.lru_cache(maxsize=4096)
def _uses_of_attributes(
    code: types.CodeType,
) -> tuple[set[str], set[str], list[tuple[str, str | None]]]:
    """List names and texts in code, its texts, and its uses of attributes with ``_change``."""
    texts = {constant for constant in code.co_consts if isinstance(constant, str)}
    instructions = _instructions(code)
    uses = list[tuple[str, str | None]]()
    for index, instruction in enumerate(instructions):
        if instruction.opname not in _READS_ATTRIBUTE:
            continue
        name = instruction.argval
        # self.a += x copies self first
        is_counted = instructions[index - 1].opname == "COPY" and any(
            later.opname == "STORE_ATTR" and later.argval == name
            for later in instructions[index + 1 :]
        )
        following = instructions[index + 1 : index + 5]
        uses.append((name, "store" if is_counted else _change(following, name)))
    return {*code.co_names, *texts}, texts, uses


@functools.lru_cache(maxsize=1024)
def _names_in_libraries(kind: type) -> set[str]:
    """List the names in the methods of the classes of libraries that a class derives from."""
    names = set[str]()
    for base in kind.__mro__:
        if _is_of_library(str(base.__module__), base.__qualname__, base):
            for value in vars(base).values():
                if isinstance(value, types.FunctionType):
                    names |= _names(value.__code__)
    return names


def _outer_uses(code: types.CodeType) -> dict[str, _Uses]:
    """How a function, and the functions inside of it, use outer variables, by their names."""
    uses = defaultdict[str, _Uses](_Uses)
    for part in _with_inner(code):
        instructions = _instructions(part)
        for index, instruction in enumerate(instructions):
            if instruction.opname in _READS:
                name = instruction.argval
                uses[name].add(_change(instructions[index + 1 : index + 5], name))
    return uses


def _change(following: Sequence[dis.Instruction], name: str) -> str | None:
    """Say how the instructions after the one that reads a variable only change it; None otherwise.

    Nothing then sees its value. ``v.append(x)``, a "call", is of a method that returns nothing;
    ``v[k] = x``, a "store", ends with variable, key and STORE_SUBSCR, ``v[k] += x`` copies variable
    and key first; ``v += 1`` stores what it read under the same name.
    """
    names = [instruction.opname for instruction in following]
    if names[:1] in (["LOAD_METHOD"], ["LOAD_ATTR"]):
        return "call" if following[0].argval in _CHANGES else None
    has_key = names[:1] != [] and names[0].startswith("LOAD_")
    if has_key and (names[1:2] == ["STORE_SUBSCR"] or names[1:3] == ["COPY", "COPY"]):
        return "store"
    is_counted = names[:2] == ["LOAD_CONST", "BINARY_OP"] and names[2:3] in (
        ["STORE_GLOBAL"],
        ["STORE_DEREF"],
    )
    return "store" if is_counted and following[2].argval == name else None


@functools.lru_cache(maxsize=4096)
def _instructions(code: types.CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


def _as_new(value: Any) -> Mapping[str, Any]:
    """Return what every module of PyTorch holds when it is new, such as no hooks.

    Which attributes these are differs from version to version. Nothing if the value is no module.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return {}
    return _new_module()


@functools.cache
def _new_module() -> Mapping[str, Any]:
    module: object = sys.modules["torch"].nn.Module()
    return vars(module)


def _patches() -> list[tuple[str, str, types.FunctionType]]:
    """List functions of the user's in the place of functions and methods of PyTorch."""
    if "torch.optim" not in sys.modules:
        return []
    found = list[tuple[str, str, types.FunctionType]]()
    for place, content in _patched_places():
        for name, value in list(content.items()):
            if type(value) is not types.FunctionType:
                continue
            file = value.__code__.co_filename
            if file not in _library_files and not _is_library(file):
                found.append((place, name, value))
            else:
                _library_files.add(file)
    return found


# The files of functions that were found in PyTorch; "<string>" is of the one that it makes itself.
_library_files = {"<string>"}


@functools.cache
def _patched_places() -> list[tuple[str, Mapping[str, Any]]]:
    """List the modules and classes of PyTorch whose functions are looked at, with their content."""
    torch = sys.modules["torch"]
    modules = [torch.nn.functional, torch.nn.init]
    classes = {torch.Tensor}
    for module in (torch.nn, torch.optim):
        classes |= {value for value in vars(module).values() if isinstance(value, type)}
    named = sorted(classes, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
    places = [(module.__name__, vars(module)) for module in modules]
    return places + [(f"{kind.__module__}.{kind.__qualname__}", vars(kind)) for kind in named]


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
