"""Run a target under a coverage-guided fuzzer: ``python -m fuzz.run cifar CORPUS [libFuzzer options]``.

CORPUS is a folder of inputs to begin with and to keep what is new; the seeds are written there first.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

import atheris


def main() -> None:
    """Write the seeds, instrument the readers, fuzz until something is found or the time is up."""
    name, folder, *options = sys.argv[1:]
    with atheris.instrument_imports(include=["nfd", "tarfile", "gzip", "json"], enable_loader_override=False):
        from fuzz.targets import TARGETS, mutated, seeds
    target, corpus = TARGETS[name], Path(folder)
    corpus.mkdir(parents=True, exist_ok=True)
    known = seeds(name)
    for content in known:
        (corpus / hashlib.sha1(content, usedforsecurity=False).hexdigest()).write_bytes(content)

    def once(content: bytes) -> None:
        target(content)

    def change(content: bytes, most: int, seed: int) -> bytes:
        stream = random.Random(seed)
        if stream.random() < 0.5:
            return bytes(atheris.Mutate(content, most))
        return mutated(content, stream, known)[:most]

    atheris.Setup([sys.argv[0], str(corpus), *options], once, custom_mutator=change)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
