"""What is fuzzed: each target turns bytes into a file, reads it, and lets pass only what a reader may say of a file.

A target returns what was read, or the error that refused it, when that is a ``ValueError`` or an ``OSError`` whose
message names the file or the field. Anything else (another exception, a result that contradicts itself) leaves it as
an exception, which is a finding. The tests run the same functions over ``seeds`` and mutations of them.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nfd.paper.data.cifar10 import CLASSES, FOLDER, TEST, TRAIN, cifar10
from nfd.scaling.plan import Plan
from nfd.scaling.planning import plan

Target = Callable[[bytes], object]

_NAMES = (*TRAIN, TEST)
_TOKENS = (b"\0", b"\xff", b"-1", b"1e400", b"NaN", b"null", b"[]", b"{}", b'"', b"0" * 40, b"9" * 30, b"true")
_VALUES = (
    *(None, True, False, 0, 1, -1, 2**31, 2**64, 10**400, 0.5, -0.5, 1e-320, 1e-300, 1e300, math.inf, -math.inf),
    *(math.nan, "", "1", "nan", "\0", "\ud800", "\u202e", "x" * 300, [], [1], [[]], {}, {"a": 1}, "sgd", "adam", "raw"),
)
_RECORD = 1 + 3 * 32 * 32


def cifar(content: bytes) -> object:
    """CIFAR-10 from bytes. The first says how: as an archive, as what a gzip stream holds, or as unpacked files."""
    how, content = content[:1], content[1:]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "data.tar.gz"
        if how == b"a":
            place.write_bytes(content)
        elif how == b"t":
            place.write_bytes(gzip.compress(content, 0, mtime=0))
        else:
            place = Path(folder)
            (place / FOLDER).mkdir()
            for name, part in zip(_NAMES, _parts(content, len(_NAMES)), strict=True):
                (place / FOLDER / name).write_bytes(part)
        try:
            found = cifar10(place)
        except ValueError as error:
            _check(str(place) in str(error), f"names no file: {error}")
            return error
        for images in (found.train, found.test):
            _check(images.pixels.shape == (len(images), 3, 32, 32), f"shape {images.pixels.shape}")
            _check(images.pixels.dtype == torch.uint8, f"dtype {images.pixels.dtype}")
            labels = int(images.labels.min()), int(images.labels.max())
            _check(labels[0] >= 0 and labels[1] < len(CLASSES), f"labels {labels}")
        return found


def plan_file(content: bytes) -> object:
    """A plan from bytes: what is read can be shown, has numbers that can be used, and is written as it was read."""
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "plan.json", Path(folder) / "copy.json"
        path.write_bytes(content)
        try:
            found = Plan.load(path)
        except ValueError as error:
            _check("plan" in str(error), f"does not say what it is about: {error}")
            return error
        _check(found.rule in found.explain(), "does not explain itself")
        for name in found.entries:
            numbers = (found.std(name), found.rate(name), found.epsilon(name), found.weight_decay(name))
            _check(all(math.isfinite(x) and x >= 0 for x in numbers), f"{name}: {numbers}")
        found.save(copy)
        _check(Plan.load(copy) == found, "reads back as something else")
        return found


TARGETS: dict[str, Target] = {"cifar": cifar, "plan": plan_file}


def seeds(target: str) -> list[bytes]:
    """Small inputs that a target reads, and some that it nearly reads, for a fuzzer to begin with."""
    return {"cifar": _cifar_seeds, "plan": _plan_seeds}[target]()


def mutations(target: str, count: int, seed: int = 0) -> Iterator[bytes]:
    """Seeds, each changed a few times; always the same ones."""
    stream, known = random.Random(seed), seeds(target)
    for _ in range(count):
        content = stream.choice(known)
        for _ in range(stream.randint(1, 3)):
            content = mutated(content, stream, known)
        yield content


def mutated(content: bytes, stream: random.Random, known: Sequence[bytes]) -> bytes:
    """``content`` with a value changed, where it is JSON, or with bytes changed, cut, doubled or taken from another."""
    if content[:1] == b"{" and stream.random() < 0.8:
        try:
            return json.dumps(_swapped(json.loads(content), stream)).encode()
        except ValueError:
            pass
    at, length = stream.randrange(len(content) + 1), stream.choice((1, 1, 1, 2, 8, 64, 512))
    before, after = content[:at], content[at:]
    other = stream.choice(known)
    start = stream.randrange(len(other) + 1)
    return stream.choice(
        (
            before + stream.randbytes(1) + after[1:],
            before + after[length:],
            before + after[:length] + after,
            before + stream.choice(_TOKENS) + after,
            before + other[start : start + length] + after[length:],
        )
    )


def _swapped(value: Any, stream: random.Random) -> Any:
    """A JSON value with one value in it, at whatever depth, replaced, left out or said twice."""
    if isinstance(value, dict) and value and stream.random() < 0.9:
        key, kind = stream.choice(sorted(value)), stream.random()
        if kind < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: _swapped(value[key], stream)}
    if isinstance(value, list) and value and stream.random() < 0.9:
        at = stream.randrange(len(value))
        if stream.random() < 0.1:
            return value[: at + 1] + value[at:]
        return [*value[:at], _swapped(value[at], stream), *value[at + 1 :]]
    return stream.choice(_VALUES)


def archive(members: dict[str, bytes], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar file of regular files."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=form) as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return written.getvalue()


def _check(right: bool, said: str) -> None:
    if not right:  # not assert: a fuzzer may run without it
        raise AssertionError(said)


def _parts(content: bytes, count: int) -> list[bytes]:
    size = max(1, len(content) // count)
    return [content[k * size : (k + 1) * size if k < count - 1 else None] for k in range(count)]


def _records(first: int, count: int) -> bytes:
    return b"".join(bytes([(first + k) % 10]) + bytes([37 * k % 256]) * (_RECORD - 1) for k in range(count))


def _cifar_seeds() -> list[bytes]:
    files = {name: _records(k, 1) for k, name in enumerate(_NAMES)}
    plain = archive({f"{FOLDER}/{name}": content for name, content in files.items()})
    tall = archive({f"{FOLDER}/{'x' * 120}/{name}": content for name, content in files.items()}, tarfile.PAX_FORMAT)
    gnu = archive({f"{'y' * 120}/{name}": content for name, content in files.items()}, tarfile.GNU_FORMAT)
    return [
        b"a" + gzip.compress(plain, mtime=0),
        b"a" + gzip.compress(tall, mtime=0),
        b"t" + plain,
        b"t" + tall,
        b"t" + gnu,
        b"t" + archive({TEST: b""}),
        b"d" + b"".join(files.values()),
        b"d" + files[TEST][:-1] * 6,
        b"",
    ]


def _plan_seeds() -> list[bytes]:
    def model(width: int, depth: int) -> torch.nn.Module:
        from nfd.families.resnet import ResNet

        return ResNet(4, 2, width, depth, block="two-layer")

    def plain(width: int, depth: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))

    wide = plain(8, 1)
    found = [
        plan(model(8, 2), rule="depth-mup-inner", base=(4, 1), optimizer="sgd"),
        plan(wide, rule="mup", base=(4, None), make_model=plain, optimizer="adamw", decay="independent"),
        plan(wide, rule="mup", base=(4, None), make_model=plain, optimizer="muon"),
    ]
    texts = [json.dumps(one.to_dict()).encode() for one in found]
    return [*texts, b"{}", b"[]", b"null", b'{"format": 1}', b"{" * 100, b""]
