"""Shared settings of the tests."""

from __future__ import annotations

import gc
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # threads that wait for each other on busy cores burn them

_PLACES = (
    Path(__file__).parents[2] / "shared" / "data",
    Path(os.environ.get("NFD_DATA", "/nowhere")),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, side by side: one process makes what they share, and none starts one at the
    end.
    """
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: collections of garbage need not go through them each
    time.
    """
    gc.freeze()
    # which readline, that pytest loads, hands to processes: they would break lines
    os.environ.pop("COLUMNS", None)
    os.unsetenv("COLUMNS")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """A test that leaves more threads behind does not slow those that follow."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept between runs goes to a folder of this one, not to the user's."""
    monkeypatch.setenv("NFD_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def cifar_files() -> Path:
    """Real CIFAR-10 pixels in the binary layout, where somebody has put them."""
    for place in _PLACES:
        if (place / "cifar-10-batches-bin").is_dir():
            return place
    pytest.skip("needs cifar-10-batches-bin in ../shared/data or in the folder that NFD_DATA names")


@pytest.fixture(scope="session")
def figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every figure of the paper at its smallest, made by the command: pages, panels, result.json
    and the runs.

    Made by the first process of pytest that needs them; every process has a copy of its own.
    """
    import fcntl  # which Windows lacks

    from nfd.cli import main

    own = tmp_path_factory.mktemp("figures")
    place = own.parent.parent if "PYTEST_XDIST_WORKER" in os.environ else own.parent
    made = place / "made-figures"
    done = place / "made-figures.done"
    with (place / "made-figures.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            words = ["--size", "smoke", "--executor", "inline", "--out", str(made)]
            assert main(["paper", "figure", "all", *words]) == 0
            done.touch()
    shutil.copytree(made, own, dirs_exist_ok=True)
    return own
