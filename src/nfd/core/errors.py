"""What users pass in: checks, whose errors say what arrived, what was expected, what to do; names and defaults."""

from __future__ import annotations

import difflib
import inspect
import math
import operator
import os
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar

if TYPE_CHECKING:  # the command line checks its options before it loads PyTorch
    import torch


_Choice = TypeVar("_Choice")
MAX_SEED = 2**63 - 1
MOST = 10**6  # of anything that is done or made one by one: blocks, seeds, replicates, steps, classes
WIDEST = 2**26  # a network of this width with one hidden matrix of numbers would hold 16 PiB


# ---- three kinds of errors, and exit codes -----------------------------------------------------------------------

VERDICT, INPUT, OURS, INTERRUPTED = 1, 2, 70, 130  # 70 is EX_SOFTWARE of sysexits.h


class UsageError(Exception):
    """What was asked for cannot be done, by no fault of the program; the message says why, and what to do.

    The mark of the errors below. Python's users catch them as the errors of Python that they are, the command line ends
    with exit code 2.
    """


class InputError(UsageError, ValueError):
    """A value that was given is none that can be used, or code of the user's raised an error."""


class InputTypeError(UsageError, TypeError):
    """What was given is of a type that cannot be used."""


class StateError(UsageError, RuntimeError):
    """What was asked for cannot be done as things stand, such as weights that were changed by something else."""


class UsageWarning(UserWarning):
    """What was asked for was done otherwise than one may expect; the message says how, and what to do."""


# ---- the names that networks and runs are chosen by ---------------------------------------------------------------

Axis = Literal["width", "depth"]
AXES: tuple[Axis, ...] = ("width", "depth")
Activation = Literal["relu", "tanh", "erf", "gelu", "identity"]
Block = Literal["one-layer", "two-layer"]
Order = Literal["pre", "post"]
Regime = Literal["feature", "kernel"]
Weights = Literal["dense", "deferred"]
NetworkWeights = Literal["dense", "deferred", "structured"]
Feedback = Literal["shared", "independent", "static"]
Space = Literal["inputs", "gradients"]
BasisName = Literal["auto", "inputs", "gradients"]
WideRuleName = Literal["mup", "depth-mup", "depth-mup-inner", "complete-p"]  # of rates that scale with width
RuleName = Literal["standard", "ntk", WideRuleName]
KernelKind = Literal["nngp", "ntk", "independent-feedback"]
Data = Literal["digits", "cifar10"]
ExecutorName = Literal["processes", "inline", "ray"]


# ---- defaults that Python's functions and the command line share ---------------------------------------------------

BASE = 64, 4  # width and depth at which rates are tuned
RULE: RuleName = "complete-p"  # of your own models, in plans and in every question about them
OPTIMIZER = "adamw"  # the same; networks of the paper have theirs
RESOLUTION = 0.1  # of structured layers
SEEDS = 3  # of each network of a check


# ---- what is said of an error, and whose it is -------------------------------------------------------------------

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_NOT_USERS = (_OURS, "<", *_INSTALLED)  # "<" begins generated code


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The part of a traceback that is the user's: from the first line that is no library's to the last."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, frame in enumerate(frames) if not frame.filename.startswith(_NOT_USERS)]
    return frames[own[0] : own[-1] + 1] if own else []


def is_ours(error: BaseException) -> bool:
    """Whether a line of ours raised an error, or called a library that did."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    whose = [file.startswith(_OURS) for file in files if file.startswith(_OURS) or not file.startswith(_NOT_USERS)]
    return not whose or whose[-1]


def place_of(error: BaseException) -> str:
    """Where the user's code was when an error came, in brackets; empty where it was not there."""
    frames = users_frames(error)
    return f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames else ""


@contextmanager
def blaming(what: str, kind: type[UsageError] = InputError) -> Iterator[None]:
    """An error of a model within becomes one of input, which says ``what`` failed and where; a mistake of ours stays.

    So does an ``InputError``, which says enough. Of what a layer or a plan refuses, it says for which model that was.
    """
    try:
        yield
    except Exception as error:
        refused = isinstance(error, UsageError)
        ours = traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_OURS)
        if isinstance(error, InputError) or out_of_memory(error) or (ours and not refused):
            raise
        name = "" if refused else f"{type(error).__name__}: "
        raise kind(f"{what}: {name}{in_brief(error)}{place_of(error)}") from error


def in_brief(error: BaseException) -> str:
    """Say what an error says: ours in full, one of another library without its traces.

    A line that ends with a colon announces what follows, as of ``load_state_dict``, so that the next one is needed.
    An error that says nothing gives its kind.
    """
    if isinstance(error, UsageError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    brief = list[str]()
    for line in lines:
        brief.append(line)
        if not line.endswith(":"):
            break
    return " ".join(brief) or type(error).__name__


LESS_MEMORY = (
    "Use smaller widths, depths or batches, or fewer workers at a time. Wide matrices need little memory with "
    "weights='structured' or 'deferred'; nfd.defer replaces those of your own model."
)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: Python's error, PyTorch's of accelerators, or that on the CPU, which has no type."""
    names = {kind.__name__ for kind in type(error).__mro__}
    on_the_cpu = isinstance(error, RuntimeError) and "DefaultCPUAllocator: " in str(error)
    return isinstance(error, MemoryError) or "OutOfMemoryError" in names or on_the_cpu


def described(error: BaseException) -> str:
    """An exception in one line: its type and its message, with a remedy where memory ran out."""
    remedy = f" {LESS_MEMORY}" if out_of_memory(error) else ""
    return f"{type(error).__name__}: {error}{remedy}"


def trace_of(error: BaseException) -> str | None:
    """The traceback of a mistake of ours; None of an error of the input, and where memory ran out."""
    if isinstance(error, UsageError) or out_of_memory(error):
        return None
    return "".join(traceback.format_tb(error.__traceback__))


# ---- checks --------------------------------------------------------------------------------------------------------


def nearest(name: object, choices: Iterable[str]) -> str:
    """A hint such as ``" Did you mean 'relu'?"``, or an empty string when nothing is near; case does not count."""
    close = closest(name, choices)
    return f" Did you mean {close!r}?" if close else ""


def closest(name: object, choices: Iterable[str]) -> str:
    """The choice that is nearest to a name, or an empty string when none is near; case does not count."""
    by_lower_case = {choice.lower(): choice for choice in choices}
    close = difflib.get_close_matches(str(name).lower(), by_lower_case, n=1, cutoff=0.5)
    return by_lower_case[close[0]] if close else ""


def check_choice(argument: str, value: _Choice, choices: Iterable[str]) -> _Choice:
    """Return ``value`` if it is one of ``choices``; otherwise raise a ValueError with the nearest one."""
    options = list(choices)
    if isinstance(value, str) and value in options:
        return value
    raise InputError(
        f"{argument} must be one of {', '.join(map(repr, options))}; got {value!r}.{nearest(value, options)}"
    )


def check_count(argument: str, value: SupportsIndex, minimum: int = 1, maximum: int = MAX_SEED) -> int:
    """Return ``value`` as an int in ``[minimum, maximum]``; TypeError if it is not a whole number."""
    try:
        if _is_truth(value):
            raise TypeError
        count = operator.index(value)
    except TypeError:
        raise InputTypeError(
            f"{argument} must be a whole number; got {value!r} of type {type(value).__name__}."
        ) from None
    if count < minimum:
        raise InputError(f"{argument} must be at least {minimum}; got {count}.")
    if count > maximum:
        raise InputError(f"{argument} must be at most {maximum}; got {count}.")
    return count


def check_seed(seed: int) -> int:
    """Return ``seed`` as an int in [0, 2**63 - 1], or raise."""
    return check_count("seed", seed, minimum=0)


def check_flag(argument: str, value: object) -> bool:
    """Return ``value`` if it is True or False, Python's or NumPy's."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise InputTypeError(f"{argument} must be True or False; got {value!r}.")
    return bool(value)


def check_takes(argument: str, function: Any, *names: str) -> None:
    """InputTypeError unless this is a function that can be called with as many arguments as there are names."""
    wanted = f"{argument} must be a function of ({', '.join(names)})"
    if not callable(function):
        raise InputTypeError(f"{wanted}; got {type(function).__name__}.")
    try:
        form = inspect.signature(function)
    except (TypeError, ValueError):  # some that are written in C do not tell
        return
    try:
        form.bind(*names)
    except TypeError as error:
        raise InputTypeError(f"{wanted}; got one of {form}: {error}.") from None


def check_several(argument: str, value: Any, kind: str) -> list[Any]:
    """The entries of a list, tuple, array or other iterable that is no text; ``kind`` says what they should be."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        return list(value)
    except TypeError:
        raise InputTypeError(f"{argument} must be a list of {kind}; got {value!r} of {type(value).__name__}.") from None


def check_ascending(argument: str, sizes: Any, most: int) -> list[int]:
    """Return ``sizes`` as a list of ascending whole numbers of at most ``most``; ValueError where they are none."""
    checked = [check_count(argument, size, maximum=most) for size in check_several(argument, sizes, "sizes")]
    if not checked or checked != sorted(set(checked)):
        raise InputError(f"{argument} must be ascending; got {list(sizes)}.")
    return checked


def check_patterns(argument: str, value: str | Sequence[str] | None) -> str | list[str] | None:
    """Return ``value`` if it is a text, a list of texts, or None."""
    if value is None or isinstance(value, str):
        return value
    patterns = check_several(argument, value, "texts, or one text")
    if not all(isinstance(item, str) for item in patterns):
        raise InputTypeError(f"{argument} must be a text or a list of texts; got {value!r}.")
    return patterns


def check_real(
    argument: str, value: Any, *, above: float | None = None, least: float | None = None, below: float | None = None
) -> float:
    """Return ``value`` as a finite float, optionally ``> above``, ``>= least``, ``< below``."""
    try:
        if _is_truth(value) or isinstance(value, str | bytes | bytearray):
            raise TypeError
        number = float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last is PyTorch's, of several numbers
        raise InputTypeError(f"{argument} must be a number; got {value!r} of type {type(value).__name__}.") from None
    if not math.isfinite(number):
        raise InputError(f"{argument} must be finite; got {number}.")
    bounds = ((above, operator.gt, "greater than"), (least, operator.ge, "at least"), (below, operator.lt, "less than"))
    for bound, holds, words in bounds:
        if bound is not None and not holds(number, bound):
            raise InputError(f"{argument} must be {words} {bound:g}; got {number:g}.")
    return number


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")


def check_depth(value: Any) -> float:
    """Return a number of blocks, a whole number of at most a million or infinity."""
    return math.inf if value == math.inf else check_count("depth", value, maximum=MOST)


def check_dtype(value: torch.dtype) -> torch.dtype:
    """Return ``value`` if it is torch.float32 or torch.float64."""
    import torch

    if value not in (torch.float32, torch.float64):
        raise InputError(f"dtype must be torch.float32 or torch.float64; got {value!r}.")
    return value


def check_device(device: torch.device | str) -> torch.device:
    """Return ``device`` if a tensor can be made there; otherwise say why not."""
    import torch

    try:
        place = torch.device(device)
        torch.zeros((), device=place).item()
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        raise InputError(
            f"device must be one that PyTorch can use here, such as 'cpu'; got {device!r} ({in_brief(error)})."
        ) from None
    return place


def check_numbers(argument: str, value: Any) -> torch.Tensor:
    """Real numbers as a tensor: a tensor as it is, without its gradient; anything else as a copy in float64."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        number = value.detach().clone() if value.is_inference() else value.detach()
    else:
        try:
            array = np.array(value)
            number = torch.from_numpy(array if np.iscomplexobj(array) else array.astype(np.float64))
        except (TypeError, ValueError, RuntimeError) as error:  # the last is PyTorch's, of tensors in a list
            message = f"{argument} must be an array of numbers; got {type(value).__name__} ({error})."
            raise InputTypeError(message) from None
    if number.is_complex():
        raise InputTypeError(f"{argument} must be real; got {number.dtype}.")
    return number


def check_detached(argument: str, value: Any) -> None:
    """Refuse a tensor whose gradient the caller wants; under ``torch.no_grad()`` nobody does.

    For functions whose result has no gradient. Call it outside of ``undisturbed()``, which turns gradients on.
    """
    import torch
    from torch.autograd import forward_ad

    if not isinstance(value, torch.Tensor):
        return
    backward = value.requires_grad and torch.is_grad_enabled()
    forward = forward_ad.unpack_dual(value).tangent is not None  # type: ignore[no-untyped-call]
    if backward or forward:
        raise InputError(
            f"{argument} carries a gradient, and this function gives none: its result would be a constant. Pass "
            f"{argument}.detach(), or call it under torch.no_grad()."
        )


def check_finite(argument: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` if it is dense and every entry finite; otherwise say where the first bad one is."""
    if tensor.is_meta or "strided" not in str(tensor.layout):
        got = f"{tensor.layout} on {tensor.device}"
        raise InputTypeError(f"{argument} must be a dense tensor with numbers in it; got {got}.")
    finite = tensor.isfinite()
    if bool(finite.all()):
        return tensor
    where = tuple((~finite).nonzero()[0].tolist())
    value = tensor[where].item() if where else tensor.item()
    raise InputError(
        f"{argument} must be finite; entry {list(where)} is {value} "
        f"({int((~finite).sum())} of {tensor.numel()} entries are bad). Remove or impute them first."
    )
